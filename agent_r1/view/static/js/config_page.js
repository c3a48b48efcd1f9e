// The configuration of a run, and what differs between runs.

import { foreign, h } from "./dom.js";
import { link } from "./router.js";
import { runHead } from "./run_head.js";

export async function configPage({ source, route, state }) {
  const run = state.run(route.params.run);
  const { config } = await source.config(run.id);
  const filter = h("input", { type: "search", placeholder: "Search keys and values", "aria-label": "Search keys and values", "data-search": true });
  const body = h("tbody", {});
  const table = h("table", { class: "plain" }, h("thead", {}, h("tr", {}, h("th", {}, "key"), h("th", {}, "value"))), body);
  const show = () => {
    const words = filter.value.toLowerCase().split(/\s+/);
    const entries = Object.entries(config).filter(([key, value]) => {
      const text = `${key} ${valueText(value)}`.toLowerCase();
      return words.every((word) => text.includes(word));
    });
    body.replaceChildren(...entries.map(([key, value]) => h("tr", {}, h("th", { scope: "row" }, foreign(key)), valueCell(value))));
  };
  filter.addEventListener("input", show);
  show();
  const head = runHead(run, "config");
  return {
    element: h("div", { class: "page" }, head.element, h("div", { class: "toolbar" }, filter), h("div", { class: "scroll-x" }, table)),
    crumbs: [[run.name, link("run", { run: run.id })], ["Configuration", null]],
    title: `${run.name}: configuration`,
    keys: {},
    search: () => filter.focus(),
    live: () => head.show(state.run(run.id)),
  };
}

function valueText(value) {
  return typeof value === "string" ? value : JSON.stringify(value) ?? "";
}

function valueCell(value) {
  return h("td", { class: "mono" }, value === undefined ? h("span", { class: "faint" }, "not set") : foreign(valueText(value)));
}

/** A table of the keys in which runs differ, one column per run. */
export async function differencesTable(source, runs, colors) {
  if (runs.length < 2) return h("p", { class: "note" }, "Tick two runs or more to compare their configurations.");
  const answer = await source.differences(runs.map((run) => run.id));
  const entries = Object.entries(answer.differences);
  if (!entries.length) return h("p", { class: "note" }, "These runs have the same configuration.");
  const columns = runs.map((run) =>
    h("th", { scope: "col" }, h("i", { class: "dot", vars: { "--dot": `var(${colors.get(run.id)})` } }), foreign(run.name)),
  );
  const rows = entries.map(([key, values]) =>
    h("tr", {}, h("th", { scope: "row" }, foreign(key)), runs.map((run) => valueCell(values[run.id]))),
  );
  return h("div", { class: "scroll-x", tabindex: 0, role: "region", "aria-label": "Configuration differences" },
    h("table", { class: "plain differences" }, h("thead", {}, h("tr", {}, h("th", {}, "key"), columns)), h("tbody", {}, rows)),
  );
}
