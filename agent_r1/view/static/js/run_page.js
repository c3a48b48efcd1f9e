// One run: its curves, and what the health monitor warned of.

import { h } from "./dom.js";
import { createPanels } from "./panels.js";
import { go, link } from "./router.js";
import { colorsOf, runHead } from "./run_head.js";
import { textBlock } from "./text_block.js";

export async function runPage({ source, route, state }) {
  const id = route.params.run;
  let query = route.query;
  const head = runHead(state.run(id), "run");
  const changeQuery = (changes) => go(link("run", { run: id }, { ...Object.fromEntries(query), ...changes }), { replace: true });
  const openStep = (run, step) => go(link("trajectories", { run: run.id }, { step }));
  const panels = createPanels({ source, changeQuery, onPick: openStep });
  const warnings = h("section", { class: "warnings", "aria-label": "Warnings", hidden: true });
  let shown = "";

  async function show() {
    const run = state.run(id);
    head.show(run);
    await panels.show([run], query, colorsOf(state.runs));
    const found = panels.store.metricsOf(run)?.warnings ?? [];
    const text = JSON.stringify(found);
    if (text === shown) return;
    shown = text;
    warnings.hidden = !found.length;
    warnings.replaceChildren(h("h2", {}, found.length === 1 ? "1 warning" : `${found.length} warnings`), h("ul", {}, found.map(warningOf)));
  }

  function warningOf({ step, rule, text }) {
    return h("li", {},
      h("a", { class: "step-link", href: link("trajectories", { run: id }, { step }) }, `step ${step}`),
      h("div", { class: "warning-text" }, textBlock(text || rule, { first: 500, lines: 6 })),
    );
  }

  await show();
  const run = state.run(id);
  return {
    element: h("div", { class: "page" }, head.element, warnings, panels.element),
    crumbs: [[run.name, null]],
    title: run.name,
    keys: { t: () => go(link("trajectories", { run: id })) },
    search: () => panels.focusSearch(),
    update: (next) => ((query = next.query), show()),
    live: () => show(),
    destroy: () => panels.destroy(),
  };
}
