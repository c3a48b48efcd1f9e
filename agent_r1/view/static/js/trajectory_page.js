// One trajectory: its figures, its steps as cards, its tokens colored, and what failed before it.

import { count, foreign, h, number, signed } from "./dom.js";
import { createListKeys } from "./keyboard.js";
import { go, link, parseRoute } from "./router.js";
import { createStepCard, messageOf, signOf } from "./step_card.js";
import { oneLine } from "./text.js";
import { createTextLoader } from "./text_block.js";
import { listQuery } from "./trajectories_page.js";
import { availableModes, MODES, scaleFor } from "./token_scales.js";
import { resultBadge } from "./trajectory_table.js";

const TRACEBACK = { className: "mono", first: 4000, lines: 60 };

export async function trajectoryPage({ source, route, state }) {
  const { run: id, key } = route.params;
  const run = state.run(id);
  let query = route.query;
  const record = await source.trajectory(id, key);
  const steps = record.steps;
  const block = createTextLoader(source, id, key, record.cut ?? []);
  const cards = steps.map((step, i) => createStepCard(step, i, block));
  const modes = availableModes(steps);
  const changeQuery = (changes) => go(link("trajectory", { run: id, key }, { ...Object.fromEntries(query), ...changes }), { replace: true });
  const colors = createColorBar(modes, changeQuery);
  const outline = outlineOf(steps);
  const groupLink = link("group", { run: id, kind: record.kind, step: record.step, group: record.group_id });
  const taskLink = link("task", { run: id, task: record.task_id });
  // The address may already be that of the next one, when keys are pressed faster than views are shown.
  const neighbour = (by) => openNeighbour({ source, id, query: parseRoute(location.hash).query, record, by });

  const element = h("div", { class: "page trajectory" },
    headOf(record, { groupLink, taskLink, neighbour }),
    failures(record, block),
    steps.length ? colors.element : promptOf(record, block),
    h("div", { class: "with-outline" }, outline, h("div", { class: "step-cards" }, cards.map((card) => card.element))),
  );

  function paint() {
    const asked = query.get("color") ?? "logprob";
    const mode = modes.has(asked) ? asked : "text";
    const scale = scaleFor(mode, steps);
    const prompt = query.has("prompt") ? query.get("prompt") === "1" : mode === "writer";
    for (const card of cards) card.paint(scale, { prompt });
    colors.show(mode, scale.legend, prompt);
  }
  paint();

  const list = createListKeys(() => cards.map((card) => card.element), {
    onMove: (card) => markOutline(outline, card.id),
  });
  const nextColor = () => {
    const names = MODES.map(({ name }) => name).filter((name) => modes.has(name));
    const asked = query.get("color") ?? "logprob";
    changeQuery({ color: names[(names.indexOf(asked) + 1) % names.length], prompt: "" });
  };
  outline?.addEventListener("click", (event) => {
    const item = event.target.closest("[data-step]");
    if (item) list.select(cards[Number(item.dataset.step)].element);
  });
  const back = { ...Object.fromEntries(query), at: "", color: "", prompt: "" };
  back.offset = Math.floor(Number(query.get("at") ?? 0) / 100) * 100 || "";
  return {
    element,
    crumbs: [
      [run.name, link("run", { run: id })],
      ["Trajectories", link("trajectories", { run: id }, back)],
      [`${record.task_id} · ${memberName(record)}`, null],
    ],
    title: `${record.task_id}, step ${record.step}`,
    keys: {
      ...list.keys,
      n: () => neighbour(1),
      p: () => neighbour(-1),
      g: () => go(groupLink),
      h: () => go(taskLink),
      c: nextColor,
    },
    update: (next) => ((query = next.query), paint()),
  };
}

export function memberName(row) {
  return row.member === -1 ? "greedy" : `member ${row.member}`;
}

/** Opens the trajectory before or after this one in the list that led here; without a list, in its file. */
async function openNeighbour({ source, id, query, record, by }) {
  if (!query.has("at")) {
    const other = by > 0 ? record.neighbours?.next : record.neighbours?.previous;
    if (other) go(link("trajectory", { run: id, key: other }, query));
    return;
  }
  const at = Number(query.get("at")) + by;
  if (at < 0) return;
  const { rows } = await source.trajectories(id, listQuery(query, { offset: at, limit: 1 }));
  if (rows.length) go(link("trajectory", { run: id, key: rows[0].key }, { ...Object.fromEntries(query), at }));
}

function headOf(record, { groupLink, taskLink, neighbour }) {
  const figures = [
    ["reward", number(record.reward), signOf(record.reward)],
    ["process", signed(record.process_reward ?? 0), signOf(record.process_reward)],
    ...Object.entries(record.reward_parts ?? {}).map(([name, value]) => [name, number(value), ""]),
    ["steps", count(record.num_steps), ""],
    ["calls", count(record.tool_calls), ""],
    ["tokens", count(record.tokens), ""],
    record.retries ? ["retries", count(record.retries), ""] : null,
  ].filter(Boolean);
  const facts = [
    record.kind === "eval" ? `evaluation at step ${record.step}` : `training step ${record.step}`,
    `group ${record.group_id}`,
    memberName(record),
    record.data_source && record.data_source !== "default" ? record.data_source : null,
    record.vote ? `answered “${String(record.vote).slice(0, 60)}”` : null,
  ].filter(Boolean);
  return h("header", { class: "run-top" },
    h("div", { class: "run-title" }, h("h1", {}, foreign(oneLine(record.task_id))), resultBadge(record)),
    h("p", { class: "run-facts" }, foreign(facts.join(" · "))),
    h("dl", { class: "figures wide" }, figures.map(([name, value, sign]) => h("div", {}, h("dt", {}, foreign(name)), h("dd", { class: sign }, value)))),
    h("nav", { class: "actions", "aria-label": "From this trajectory" },
      h("button", { type: "button", class: "quiet", title: "Previous (p)", onclick: () => neighbour(-1) }, "← Previous"),
      h("button", { type: "button", class: "quiet", title: "Next (n)", onclick: () => neighbour(1) }, "Next →"),
      h("a", { class: "button", href: groupLink, title: "Group (g)" }, "Compare group"),
      h("a", { class: "button", href: taskLink, title: "Task (h)" }, "Task over training"),
    ),
  );
}

function failures(record, block) {
  const attempts = record.failed_attempts ?? [];
  const boxes = attempts.map((attempt, i) => {
    const title = `Attempt ${i + 1} failed: ${reason(attempt)} after ${count(attempt.num_steps)} steps`;
    return failureOf(title, block(attempt.error ?? "", `failed_attempts.${i}.error`, TRACEBACK), false);
  });
  if (record.error) boxes.push(failureOf(`This rollout failed: ${reason(record)}`, block(record.error, "error", TRACEBACK), true));
  return boxes.length ? h("section", { class: "failures", "aria-label": "Failures" }, boxes) : null;
}

function reason({ stop_reason: name }) {
  return String(name ?? "unknown").replaceAll("_", " ");
}

function failureOf(title, traceback, isOpen) {
  return h("details", { class: "failure", open: isOpen }, h("summary", {}, foreign(title)), traceback);
}

/** The task, for a rollout that failed before its first step. */
function promptOf({ prompt }, block) {
  if (!prompt?.length) return null;
  const messages = prompt.map((message, i) => messageOf(message, block, `prompt.${i}`));
  return h("section", { class: "step-card" }, h("header", {}, h("h3", {}, "Task")), messages);
}

function outlineOf(steps) {
  if (steps.length < 2) return null;
  const most = Math.max(1e-9, ...steps.map((step) => Math.abs(step.advantage ?? step.reward ?? 0)));
  return h("nav", { class: "outline", "aria-label": "Steps" }, h("ol", {}, steps.map((step, i) => {
    const value = step.advantage ?? step.reward ?? 0;
    const names = (step.tool_calls ?? []).map((call) => call.name).join(", ") || (step.parse_error ? "malformed" : "answer");
    return h("li", {}, h("button", { type: "button", "data-step": i, "data-card": `step-${i + 1}` },
      h("span", { class: "num faint" }, String(i + 1)),
      h("span", { class: "outline-name" }, foreign(names)),
      h("i", { class: `reward-bar ${value < 0 ? "negative" : ""}`, vars: { "--size": Math.abs(value) / most } }),
    ));
  })));
}

function markOutline(outline, card) {
  for (const button of outline?.querySelectorAll("button") ?? []) {
    if (button.dataset.card === card) button.setAttribute("aria-current", "step");
    else button.removeAttribute("aria-current");
  }
}

function createColorBar(modes, changeQuery) {
  const select = h("select", { "aria-label": "Color tokens by", "data-search": true }, MODES.map(({ name, label }) => {
    const option = h("option", { value: name, disabled: !modes.has(name) }, modes.has(name) ? label : `${label} (not recorded)`);
    return option;
  }));
  select.addEventListener("change", () => changeQuery({ color: select.value, prompt: "" }));
  const legend = h("div", { class: "scale" });
  const prompt = h("input", { type: "checkbox" });
  prompt.addEventListener("change", () => changeQuery({ prompt: prompt.checked ? "1" : "0" }));
  const hint = modes.has("advantage") ? null
    : h("span", { class: "faint hint" }, "Advantages and ratios are recorded with ", h("code", {}, "tracking.record_credit=true"));
  const element = h("div", { class: "toolbar color-bar" }, h("label", { class: "inline" }, "Color tokens by", select), legend,
    h("label", { class: "inline" }, prompt, "Prompt tokens"), hint);
  return {
    element,
    show(mode, scale, showsPrompt) {
      select.value = mode;
      prompt.checked = showsPrompt;
      legend.replaceChildren(...legendOf(scale));
    },
  };
}

function legendOf(legend) {
  if (!legend) return [];
  if (legend.swatches) return legend.swatches.map((name) => h("span", { class: `swatch by-${name}` }, name));
  return [h("span", { class: "num faint" }, legend.low), h("i", { class: `gradient ${legend.gradient}` }), h("span", { class: "num faint" }, legend.high)];
}
