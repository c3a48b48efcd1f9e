// The filters of a list of trajectories. Each is one key of the address and one of the server.

import { count, debounce, h } from "./dom.js";
import { visible } from "./text.js";

export const FILTERS = [
  "kind", "step", "step_min", "step_max", "reward_min", "reward_max", "success", "stop_reason", "failed", "tool", "task", "text",
];

const LABELS = {
  kind: "from", step: "step", step_min: "step from", step_max: "step to", reward_min: "reward from", reward_max: "reward to",
  success: "success", stop_reason: "stopped by", failed: "failed", tool: "tool", task: "task", text: "text",
};

const VALUES = {
  success: { 1: "solved", 0: "not solved" },
  failed: { 1: "yes", 0: "no" },
  kind: { train: "training", eval: "evaluation" },
};

export function createFilters(changeQuery) {
  const inputs = new Map();
  // An exact step, as links from curves set it, ends where the reader writes a range.
  const change = debounce(
    (name, value) => changeQuery({ [name]: value, ...(name.startsWith("step_") ? { step: "" } : {}) }),
    200,
  );

  function typed(name, properties) {
    const input = h("input", { "aria-label": LABELS[name], ...properties });
    input.addEventListener("input", () => change(name, input.value.trim()));
    inputs.set(name, input);
    return input;
  }

  function chosen(name, options) {
    const select = h("select", { "aria-label": LABELS[name] }, options.map(([value, label]) => h("option", { value }, label)));
    select.addEventListener("change", () => changeQuery({ [name]: select.value }));
    inputs.set(name, select);
    return select;
  }

  const yesNo = (any, yes, no) => [["", any], ["1", yes], ["0", no]];
  const text = typed("text", { type: "search", placeholder: "Search in text", "data-search": true });
  const element = h("form", { class: "filters", role: "search", "aria-label": "Filters", onsubmit: (event) => event.preventDefault() },
    field("Text", text),
    field("From", chosen("kind", [["", "all"], ["train", "training"], ["eval", "evaluation"]])),
    field("Steps", h("span", { class: "between" }, typed("step_min", { type: "number", placeholder: "first" }), "–", typed("step_max", { type: "number", placeholder: "last" }))),
    field("Reward", h("span", { class: "between" },
      typed("reward_min", { type: "number", step: "any", placeholder: "min" }), "–", typed("reward_max", { type: "number", step: "any", placeholder: "max" }))),
    field("Success", chosen("success", yesNo("any", "solved", "not solved"))),
    field("Stopped by", chosen("stop_reason", [["", "any"]])),
    field("Failure", chosen("failed", yesNo("any", "failed", "did not fail"))),
    field("Tool", chosen("tool", [["", "any"]])),
    field("Task", typed("task", { type: "text", placeholder: "task id" })),
  );
  const chips = h("div", { class: "chips", "aria-label": "Active filters" });

  function show(query, facets) {
    offer(inputs.get("stop_reason"), facets?.stop_reasons ?? {}, query.get("stop_reason"));
    offer(inputs.get("tool"), facets?.tools ?? {}, query.get("tool"));
    for (const [name, input] of inputs) {
      const value = query.get(name) ?? (name.startsWith("step_") ? query.get("step") : null) ?? "";
      if (document.activeElement !== input && input.value !== value) input.value = value;
    }
    const active = FILTERS.filter((name) => query.get(name));
    chips.hidden = !active.length;
    chips.replaceChildren(
      ...active.map((name) =>
        h("button", { type: "button", class: "chip", "aria-label": `Remove filter ${LABELS[name]} ${query.get(name)}`, onclick: () => changeQuery({ [name]: "" }) },
          h("span", { class: "faint" }, LABELS[name]), h("bdi", {}, VALUES[name]?.[query.get(name)] ?? query.get(name)), h("span", { "aria-hidden": "true" }, "×")),
      ),
      h("button", { type: "button", class: "chip clear", onclick: () => changeQuery(Object.fromEntries(FILTERS.map((name) => [name, ""]))) }, "Clear all"),
    );
  }

  // Where there is room, the filters stand open.
  const box = h("details", { class: "filter-details", open: matchMedia("(min-width: 901px)").matches }, h("summary", {}, "Filters"), element);
  const focusSearch = () => {
    box.open = true;
    text.focus();
  };
  return { element: h("div", { class: "filter-box" }, box, chips), show, focusSearch };
}

function field(label, control) {
  return h("label", { class: "field" }, h("span", {}, label), control);
}

/** The values that occur, with how often, as options; the chosen one stays even where nothing has it. */
function offer(select, counts, chosen) {
  const values = Object.entries(counts).sort((a, b) => b[1] - a[1]);
  if (chosen && !(chosen in counts)) values.unshift([chosen, 0]);
  const wanted = [["", "any"], ...values.map(([value, times]) => [value, `${visible(value)} (${count(times)})`])];
  const current = [...select.options].map((option) => [option.value, option.textContent]);
  if (JSON.stringify(current) === JSON.stringify(wanted)) return;
  select.replaceChildren(
    ...wanted.map(([value, label]) => {
      const option = h("option", {}, label);
      option.value = value;
      return option;
    }),
  );
  select.value = chosen ?? "";
}
