// The curves of some runs: search, smoothing, steps or minutes, seeds as bands, one panel per metric.

import { createChart } from "./chart.js";
import { debounce, h } from "./dom.js";
import { createMetricsStore } from "./metrics_store.js";
import { bandOf, byPrefix, firstPanels, lineOf, searchKeys, seedFamilies } from "./series.js";

const MOST_PANELS = 48;

/**
 * Panels for runs. `show(runs, query, colors)` draws them; `changeQuery({name: value})` is called when the reader changes
 * how; `onPick(run, step)` when a point of a single run is clicked.
 */
export function createPanels({ source, changeQuery, onPick }) {
  const store = createMetricsStore(source);
  const panels = new Map(); // metric key -> {element, chart}
  const openPrefixes = new Set();
  const grid = h("div", { class: "panels" });
  const sections = h("div", { class: "panel-sections" });
  const legend = h("ul", { class: "legend", "aria-label": "Seeds" });
  const note = h("p", { class: "note", hidden: true });
  const toolbar = createToolbar(changeQuery);
  const element = h("div", { class: "curves" }, toolbar.element, legend, note, grid, sections);
  let current = { runs: [], query: new URLSearchParams(), colors: new Map() };
  let turn = 0;

  async function show(runs, query, colors) {
    current = { runs, query, colors };
    toolbar.show(query);
    const mine = ++turn;
    await store.load(runs, visibleKeys());
    if (mine === turn) draw();
  }

  function mainKeys() {
    const search = current.query.get("q") ?? "";
    const keys = keysOf(current.runs);
    return search ? searchKeys(keys, search).slice(0, MOST_PANELS) : firstPanels(keys);
  }

  function visibleKeys() {
    const groups = byPrefix(keysOf(current.runs));
    return [...new Set([...mainKeys(), ...[...openPrefixes].flatMap((prefix) => groups.get(prefix) ?? [])])];
  }

  function draw() {
    const { runs, query } = current;
    const members = families(runs, query.get("seeds") ?? "range");
    toolbar.showSeeds(runs.length > 1 && seedFamilies(runs).some((family) => family.length > 1));
    drawLegend(members);
    const main = mainKeys();
    note.hidden = main.length > 0;
    note.textContent = !runs.length
      ? "No run is selected. Tick runs to draw their curves."
      : query.get("q") ? "No metric has these words in its name." : "No step is logged yet.";
    grid.replaceChildren(...keep(grid, main.map((key) => panelOf(key).element)));
    for (const key of main) drawPanel(key, members);
    drawSections(members, query.get("q") ? [] : main);
  }

  function families(runs, seeds) {
    const lists = seeds === "off" || runs.length < 2 ? runs.map((run) => [run]) : seedFamilies(runs);
    return lists.map((list) => ({ runs: list, color: current.colors.get(list[0].id), name: familyName(list) }));
  }

  function drawLegend(members) {
    const bands = members.some((family) => family.runs.length > 1);
    legend.hidden = !bands;
    legend.replaceChildren(
      ...(bands ? members : []).map((family) =>
        h("li", {}, h("i", { class: "dot", vars: { "--dot": `var(${family.color})` } }), h("bdi", {}, family.name)),
      ),
    );
  }

  function panelOf(key) {
    if (!panels.has(key)) panels.set(key, createPanel(key, { changeQuery, pick }));
    return panels.get(key);
  }

  function pick({ line, index }) {
    if (line.run && onPick) onPick(line.run, line.steps[index]);
  }

  function drawPanel(key, members) {
    const { query } = current;
    const axis = query.get("x") === "minutes" ? "minutes" : "steps";
    const amount = Number(query.get("smooth") ?? 0);
    const lines = members.map(({ runs, color, name }) => {
      const own = runs.map((run) => store.metricsOf(run)).filter(Boolean).map((data) => lineOf(data, key, axis, amount));
      const line = bandOf(own.filter(Boolean), query.get("seeds") === "std" ? "std" : "range");
      return line && { ...line, name, color, run: runs.length === 1 ? runs[0] : null };
    });
    const panel = panelOf(key);
    panel.element.classList.toggle("large", query.get("panel") === key);
    panel.chart.draw({ lines: lines.filter(Boolean), marks: marks(axis), axis });
  }

  function marks(axis) {
    return current.runs.flatMap((run) => {
      const data = store.metricsOf(run);
      return (data?.warnings ?? []).map(({ step, rule, text }) => {
        const at = axis === "minutes" ? data.minutes[data.steps.indexOf(step)] : step;
        const prefix = current.runs.length > 1 ? `${run.name}, step ${step}: ` : `step ${step}: `;
        return { x: at ?? step, text: `${prefix}${text || rule}` };
      });
    });
  }

  function drawSections(members, shown) {
    const groups = current.query.get("q") ? new Map() : byPrefix(keysOf(current.runs));
    const wanted = [...groups].map(([prefix, keys]) => sectionOf(prefix, keys));
    sections.replaceChildren(...keep(sections, wanted));
    for (const [prefix, keys] of groups) {
      if (!openPrefixes.has(prefix)) continue;
      const rest = keys.filter((key) => !shown.includes(key));
      const inner = sectionOf(prefix, keys).querySelector(".panels");
      inner.replaceChildren(...keep(inner, rest.map((key) => panelOf(key).element)));
      for (const key of rest) drawPanel(key, members);
    }
  }

  const sectionElements = new Map();

  function sectionOf(prefix, keys) {
    if (!sectionElements.has(prefix)) {
      const section = h("details", { class: "section" }, h("summary", {}), h("div", { class: "panels" }));
      section.addEventListener("toggle", () => {
        if (section.open) openPrefixes.add(prefix);
        else openPrefixes.delete(prefix);
        void show(current.runs, current.query, current.colors);
      });
      sectionElements.set(prefix, section);
    }
    const section = sectionElements.get(prefix);
    const label = `${prefix} (${keys.length})`;
    const summary = section.querySelector("summary");
    if (summary.textContent !== label) summary.replaceChildren(h("bdi", {}, prefix), h("span", { class: "faint" }, ` ${keys.length}`));
    return section;
  }

  function destroy() {
    turn++;
    for (const panel of panels.values()) panel.chart.destroy();
  }

  return { element, show, destroy, store, focusSearch: toolbar.focusSearch };
}

function keysOf(runs) {
  return [...new Set(runs.flatMap((run) => run.metric_names))].sort();
}

/** The same nodes in the same order are left alone, so that nothing flickers. */
function keep(parent, wanted) {
  const same = parent.children.length === wanted.length && wanted.every((node, i) => parent.children[i] === node);
  return same ? [...parent.children] : wanted;
}

function createPanel(key, { changeQuery, pick }) {
  const chart = createChart({ label: key, onPick: pick });
  const enlarge = h("button", { class: "quiet small", type: "button", "aria-label": `Enlarge ${key}`, title: "Enlarge" }, "⤢");
  const element = h("section", { class: "panel" }, h("header", {}, h("h3", {}, h("bdi", {}, key)), enlarge), chart.element);
  enlarge.addEventListener("click", () => changeQuery({ panel: element.classList.contains("large") ? "" : key }));
  return { element, chart };
}

function familyName(runs) {
  if (runs.length === 1) return runs[0].name;
  let shared = runs[0].name;
  for (const run of runs) while (!run.name.startsWith(shared)) shared = shared.slice(0, -1);
  return `${shared.replace(/[-_. ]*(seed|s)?[-_. =]*\d*$/i, "") || runs[0].name} (${runs.length} seeds)`;
}

function createToolbar(changeQuery) {
  const search = h("input", { type: "search", placeholder: "Search metrics", "aria-label": "Search metrics", "data-search": true });
  search.addEventListener("input", debounce(() => changeQuery({ q: search.value }), 150));
  const axis = h("div", { class: "segmented", role: "group", "aria-label": "Horizontal axis" });
  for (const [value, label] of [["", "Steps"], ["minutes", "Minutes"]]) {
    axis.append(h("button", { type: "button", "data-value": value, onclick: () => changeQuery({ x: value }) }, label));
  }
  const slider = h("input", { type: "range", min: 0, max: 0.99, step: 0.01, "aria-label": "Smoothing" });
  const amount = h("output", { class: "num" });
  slider.addEventListener("input", () => {
    amount.value = slider.value;
    changeQuery({ smooth: Number(slider.value) || "" });
  });
  const seeds = h("select", { "aria-label": "Runs that differ only in their seed" });
  for (const [value, label] of [["", "Seeds: min to max"], ["std", "Seeds: ± std"], ["off", "Seeds: single lines"]]) {
    seeds.append(h("option", { value }, label));
  }
  seeds.addEventListener("change", () => changeQuery({ seeds: seeds.value }));
  const element = h("div", { class: "toolbar" }, search, axis, h("label", { class: "slider" }, "Smoothing", slider, amount), seeds);
  return {
    element,
    focusSearch: () => search.focus(),
    showSeeds: (has) => (seeds.hidden = !has),
    show(query) {
      if (document.activeElement !== search) search.value = query.get("q") ?? "";
      if (document.activeElement !== slider) slider.value = query.get("smooth") ?? 0;
      amount.value = slider.value;
      seeds.value = query.get("seeds") ?? "";
      for (const button of axis.children) {
        button.setAttribute("aria-pressed", String((query.get("x") ?? "") === button.dataset.value));
      }
    },
  };
}
