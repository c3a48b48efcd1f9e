// The first view: runs on the left, their curves together on the right, or what differs in their configurations.

import { foreign, h } from "./dom.js";
import { differencesTable } from "./config_page.js";
import { createListKeys } from "./keyboard.js";
import { createPanels } from "./panels.js";
import { go, link } from "./router.js";
import { colorsOf, runFigures } from "./run_head.js";

const MOST_SELECTED = 8;

export async function runsPage({ source, route, state }) {
  const list = h("ol", { class: "runs", "aria-label": "Runs" });
  const problems = h("ul", { class: "problems" }, state.problems.map((text) => h("li", {}, foreign(text))));
  const filter = h("input", { type: "search", placeholder: "Filter runs", "aria-label": "Filter runs" });
  const tabs = h("div", { class: "segmented", role: "group", "aria-label": "What to compare" });
  const body = h("div", { class: "compare-body" });
  const element = h("div", { class: "split" },
    h("aside", { class: "side", "aria-label": "Runs" }, h("div", { class: "side-head" }, h("h1", {}, "Runs"), filter), list, problems),
    h("section", { class: "content" }, h("div", { class: "content-head" }, tabs), body),
  );
  const changeQuery = (changes) => go(link("runs", {}, { ...Object.fromEntries(query), ...changes }), { replace: true });
  const openStep = (run, step) => go(link("trajectories", { run: run.id }, { step }));
  const panels = createPanels({ source, changeQuery, onPick: openStep });
  const cards = new Map();
  let query = route.query;

  filter.addEventListener("input", () => show());
  for (const [value, label] of [["", "Curves"], ["differences", "Configuration differences"]]) {
    tabs.append(h("button", { type: "button", "data-value": value, onclick: () => changeQuery({ tab: value }) }, label));
  }

  function selected() {
    const runs = state.runs;
    if (query.has("runs")) {
      const ids = new Set(query.get("runs").split(","));
      return runs.filter((run) => ids.has(run.id));
    }
    return runs.slice(0, MOST_SELECTED);
  }

  function toggle(run) {
    const ids = new Set(selected().map((other) => other.id));
    if (!ids.delete(run.id)) ids.add(run.id);
    changeQuery({ runs: state.runs.filter((other) => ids.has(other.id)).map((other) => other.id).join(",") || "none" });
  }

  async function show() {
    const colors = colorsOf(state.runs, { byFamily: query.get("seeds") !== "off" && (query.get("tab") ?? "") === "" });
    const chosen = selected();
    const words = filter.value.toLowerCase();
    filter.hidden = state.runs.length < 6;
    const shown = state.runs.filter((run) => `${run.name} ${run.algorithm} ${run.model}`.toLowerCase().includes(words));
    for (const run of shown) {
      if (!cards.has(run.id)) cards.set(run.id, createCard(run, toggle));
      cards.get(run.id).show(run, { color: colors.get(run.id), isChosen: chosen.includes(run) });
    }
    const wanted = shown.map((run) => cards.get(run.id).element);
    if (wanted.length !== list.children.length || wanted.some((node, i) => list.children[i] !== node)) list.replaceChildren(...wanted);
    const tab = query.get("tab") ?? "";
    for (const button of tabs.children) button.setAttribute("aria-pressed", String(button.dataset.value === tab));
    if (!state.runs.length) body.replaceChildren(emptyNote());
    else if (tab === "differences") body.replaceChildren(await differencesTable(source, chosen, colors));
    else {
      if (panels.element.parentNode !== body) body.replaceChildren(panels.element);
      await panels.show(chosen, query, colors);
    }
  }

  await show();
  const rows = createListKeys(() => [...list.children]);
  return {
    element,
    crumbs: [],
    title: "Runs",
    keys: {
      ...rows.keys,
      x: () => rows.current() && toggle(rows.current().run),
      enter: () => rows.current()?.querySelector("a").click(),
    },
    search: () => panels.focusSearch(),
    update: (next) => ((query = next.query), show()),
    live: () => show(),
    destroy: () => panels.destroy(),
  };
}

function createCard(run, toggle) {
  const box = h("input", { type: "checkbox", "aria-label": `Draw ${run.name}` });
  const name = h("a", { class: "run-name", href: link("run", { run: run.id }) }, foreign(run.name));
  const badge = h("span", { class: "badge" });
  const facts = h("div", { class: "run-facts" });
  const bar = h("progress", { max: 1, "aria-label": "Steps done" });
  const figures = h("dl", { class: "figures" });
  const element = h("li", { class: "run" }, box, h("div", { class: "run-body" }, h("div", { class: "run-head" }, name, badge), facts, bar, figures));
  box.addEventListener("change", () => toggle(element.run));
  return {
    element,
    show(latest, { color, isChosen }) {
      element.run = latest;
      element.style.setProperty("--dot", `var(${color})`);
      box.checked = isChosen;
      badge.textContent = latest.state;
      badge.dataset.state = latest.state;
      const seed = latest.seed === null || latest.seed === undefined ? null : `seed ${latest.seed}`;
      facts.replaceChildren(foreign([latest.algorithm, latest.model, seed].filter(Boolean).join(" · ")));
      bar.hidden = !latest.total_steps;
      bar.value = latest.total_steps ? Math.min(1, latest.steps / latest.total_steps) : 0;
      figures.replaceChildren(...runFigures(latest));
    },
  };
}

function emptyNote() {
  return h("div", { class: "empty" },
    h("h2", {}, "No runs here yet"),
    h("p", {}, "Start one, and it appears on this page while it trains:"),
    h("pre", {}, "agent-r1 train quickstart"),
  );
}
