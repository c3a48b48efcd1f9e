// One step of a trajectory as a card: what the model read, what it wrote, what was understood, what came back, what it earned.

import { count, duration, foreign, h, number, signed } from "./dom.js";
import { createTokenStrip } from "./tokens.js";

/**
 * A card of a step. `block(value, path)` makes blocks of its texts. `paint(scale, {prompt})` colors its tokens and shows or
 * hides those of the prompt.
 */
export function createStepCard(step, index, block) {
  const path = `steps.${index}`;
  const tokens = step.tokens ?? [];
  const sampled = tokens.filter((token) => token.action);
  const given = tokens.filter((token) => !token.action);
  const hasTexts = sampled.some((token) => token.text !== null);
  const strips = [];
  const action = sampled.length && hasTexts ? createTokenStrip(sampled, `Tokens of step ${index + 1}`, block.picture) : null;
  if (action) strips.push(action);
  const promptBox = h("div", { class: "prompt-tokens", hidden: true });
  const promptStrip = once(() => {
    const strip = createTokenStrip(given, `Prompt tokens of step ${index + 1}`, block.picture);
    promptBox.append(h("h4", {}, `${count(given.reduce((sum, token) => sum + (token.image?.tokens ?? 1), 0))} prompt tokens`), strip.element);
    strips.push(strip);
  });

  const element = h("section", { class: "step-card", id: `step-${index + 1}`, "aria-label": `Step ${index + 1}` },
    headOf(step, index),
    promptBox,
    readBy(step, index, block),
    h("div", { class: "turn by-model-turn" },
      h("div", { class: "who" }, "model"),
      h("div", { class: "said" },
        action ? action.element : block(step.text ?? "", `${path}.text`, { className: "mono" }),
        step.tokens_cut ? h("p", { class: "faint" }, `${count(step.tokens_cut)} tokens: too many to show one by one`) : null,
        parsed(step, path, block),
      ),
    ),
    (step.results ?? []).map((result, i) => resultOf(result, `${path}.results.${i}`, block)),
    details(step, path, block),
  );
  return {
    element,
    paint(scale, { prompt }) {
      if (prompt && given.length) promptStrip();
      promptBox.hidden = !(prompt && given.length);
      for (const strip of strips) strip.paint(scale);
    },
  };
}

function once(make) {
  let isMade = false;
  return () => {
    if (!isMade) make();
    isMade = true;
  };
}

/** What the model read that no card before has shown: results of the step before are on its card. */
function readBy(step, index, block) {
  const path = `steps.${index}`;
  if (index && !step.rewritten && !step.prompt_text) return null;
  return [
    index && step.rewritten ? h("p", { class: "callout rewritten" }, h("strong", {}, "Rewritten"), "The environment changed or removed earlier messages.") : null,
    step.prompt_text ? h("div", { class: "turn" }, h("div", { class: "who" }, "prompt"), h("div", { class: "said" }, block(step.prompt_text, `${path}.prompt_text`))) : null,
    (step.messages ?? []).map((message, i) => messageOf(message, block, `${path}.messages.${i}`)),
  ];
}

function headOf(step, index) {
  const seconds = Object.values(step.timings ?? {}).filter(Number.isFinite).reduce((sum, value) => sum + value, 0);
  const facts = [
    ["reward", signed(step.reward ?? 0), signOf(step.reward)],
    Number.isFinite(step.advantage) ? ["advantage", signed(step.advantage), signOf(step.advantage)] : null,
    Number.isFinite(step.return) ? ["return", signed(step.return), ""] : null,
    Number.isFinite(step.value) ? ["value", number(step.value), ""] : null,
    ["tokens", count(step.num_action_tokens ?? step.tokens?.filter((token) => token.action).length), ""],
    seconds > 0 ? ["time", duration(seconds), ""] : null,
  ].filter(Boolean);
  return h("header", {},
    h("h3", {}, `Step ${index + 1}`),
    step.done ? h("span", { class: "badge" }, "done") : null,
    h("dl", { class: "figures" }, facts.map(([name, value, sign]) => h("div", {}, h("dt", {}, name), h("dd", { class: sign }, value)))),
  );
}

/** The class of a number's sign. */
export function signOf(value) {
  return value > 0 ? "plus" : value < 0 ? "minus" : "";
}

/** A message of a chat: who, and what; parts that are not text are named. */
export function messageOf(message, block, path, options = {}) {
  const role = String(message.role ?? "text");
  const known = ["system", "user", "tool", "assistant"].includes(role) ? role : "other";
  const short = role === "system" ? { first: 600, lines: 8 } : {};
  return h("div", { class: `turn by-${known}-turn` },
    h("div", { class: "who" }, foreign(role), message.name ? h("span", { class: "faint" }, " ", foreign(message.name)) : null),
    h("div", { class: "said" },
      contentOf(message.content, block, `${path}.content`, { ...short, ...options }),
      (message.tool_calls ?? []).map((call, i) => callOf(call.function ?? call, block, `${path}.tool_calls.${i}`)),
    ),
  );
}

/** The content of a message, which may be a list of parts: texts and pictures in their order. */
function contentOf(content, block, path, options) {
  if (!content) return null;
  if (typeof content === "string") return block(content, path, options);
  if (!Array.isArray(content)) return block(JSON.stringify(content, null, 1), path, options);
  return content.map((part, i) => {
    const text = typeof part === "string" ? part : part?.text;
    if (typeof text === "string") return block(text, `${path}.${i}.text`, options);
    return block.picture(part?.image) ?? block(`[${part?.type ?? "part"}]`, `${path}.${i}`, options);
  });
}

function parsed(step, path, block) {
  const notes = [
    ...(step.tool_calls ?? []).map((call, i) => callOf(call, block, `${path}.tool_calls.${i}`)),
    ...(step.repairs ?? []).map((text) => callout("repair", "Repaired", text)),
    step.parse_error ? callout("error", "Malformed", step.parse_error) : null,
    typeof step.final_answer === "string" ? callout("answer", "Answer", step.final_answer) : null,
  ].filter(Boolean);
  return notes.length ? h("div", { class: "parsed" }, notes) : null;
}

/** A colored line with a word in front. */
export function callout(kind, word, text) {
  return h("div", { class: `callout ${kind}` }, h("strong", {}, word), foreign(String(text).slice(0, 4000)));
}

/** A tool call: its name and its arguments. */
export function callOf(call, block, path) {
  const given = call.arguments;
  const entries = typeof given === "object" && given !== null ? Object.entries(given) : given === undefined || given === null ? [] : [["", given]];
  return h("div", { class: "call" },
    h("span", { class: "call-name" }, foreign(call.name)),
    entries.length
      ? h("dl", {}, entries.map(([name, value]) =>
          h("div", {}, h("dt", {}, foreign(name)), h("dd", {}, block(asText(value), `${path}.arguments.${name}`, { className: "mono", first: 800, lines: 12 })))))
      : h("span", { class: "faint" }, "no arguments"),
  );
}

function asText(value) {
  return typeof value === "string" ? value : JSON.stringify(value, null, 1) ?? "";
}

function resultOf(result, path, block) {
  const who = result.role && result.role !== "tool" ? result.role : "tool";
  return h("div", { class: `turn by-${who === "tool" ? "tool" : "other"}-turn` },
    h("div", { class: "who" }, foreign(who), result.name ? h("span", { class: "faint" }, " ", foreign(result.name)) : null),
    h("div", { class: "said" },
      result.content || !result.pictures ? block(result.content ?? "", `${path}.content`) : null,
      (result.pictures ?? []).map((image) => block.picture(image)),
    ),
  );
}

function details(step, path, block) {
  const timings = Object.entries(step.timings ?? {});
  const info = Object.entries(step.info ?? {});
  if (!timings.length && !info.length) return null;
  return h("details", { class: "extra" },
    h("summary", {}, "Timings and info"),
    h("dl", { class: "pairs" },
      timings.map(([name, value]) => h("div", {}, h("dt", {}, foreign(name)), h("dd", {}, duration(value)))),
      info.map(([name, value]) => h("div", {}, h("dt", {}, foreign(name)),
        h("dd", {}, typeof value === "number" ? number(value) : block(asText(value), `${path}.info.${name}`, { className: "mono", first: 600, lines: 10 })))),
    ),
  );
}
