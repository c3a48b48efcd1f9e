// What stands at the top of every view of one run: its name, its state, its figures, and links to its other views.

import { ago, count, foreign, h, number } from "./dom.js";
import { link } from "./router.js";
import { visible } from "./text.js";

const COLORS = 8;

/** The color of each run, whichever others are shown; with `byFamily`, one for all seeds of an experiment. */
export function colorsOf(runs, { byFamily = false } = {}) {
  const owner = new Map();
  const sorted = [...runs].sort((a, b) => (a.id < b.id ? -1 : 1));
  const nameOf = (run) => (byFamily ? run.family ?? run.id : run.id);
  for (const run of sorted) if (!owner.has(nameOf(run))) owner.set(nameOf(run), owner.size % COLORS);
  return new Map(runs.map((run) => [run.id, `--series-${owner.get(nameOf(run)) + 1}`]));
}

/** The few numbers of a run that everyone asks for first. */
export function runFigures(run) {
  const latest = run.latest ?? {};
  const total = run.total_steps ? `${count(run.steps)} / ${count(run.total_steps)}` : count(run.steps);
  const rows = [
    ["steps", total],
    ["success", "reward/success" in latest ? number(latest["reward/success"]) : null],
    ["reward", "reward/outcome" in latest ? number(latest["reward/outcome"]) : null],
    ["held out", "eval/all/greedy" in latest ? number(latest["eval/all/greedy"]) : null],
    ["trajectories", run.trajectories ? count(run.trajectories) : null],
    ["updated", run.updated ? ago(run.updated) : null],
  ];
  return rows.filter(([, value]) => value !== null).map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value)));
}

/** The last two names of a path: "runs/quickstart". */
function shortPath(path) {
  return String(path ?? "").split(/[\\/]/).filter(Boolean).slice(-2).join("/");
}

const VIEWS = [["run", "Curves"], ["trajectories", "Trajectories"], ["config", "Configuration"]];

/** The head of a run's views; `show(run)` renews it. */
export function runHead(run, view) {
  const badge = h("span", { class: "badge" });
  const facts = h("p", { class: "run-facts" });
  const figures = h("dl", { class: "figures wide" });
  const problems = h("ul", { class: "problems", "aria-label": "What could not be read" });
  const tabs = VIEWS.map(([name, label]) =>
    h("a", { href: link(name, { run: run.id }), "aria-current": name === view ? "page" : null }, label),
  );
  const show = (latest) => {
    badge.textContent = latest.state;
    badge.dataset.state = latest.state;
    const seed = latest.seed === null || latest.seed === undefined ? null : `seed ${latest.seed}`;
    facts.title = visible(latest.path);
    facts.replaceChildren(foreign([latest.algorithm, latest.model, seed, shortPath(latest.path)].filter(Boolean).join(" · ")));
    figures.replaceChildren(...runFigures(latest));
    const found = [...(latest.problems ?? [])];
    if (latest.corrupt_lines) found.push(`${count(latest.corrupt_lines)} lines of the trajectories could not be read`);
    problems.hidden = !found.length;
    problems.replaceChildren(...found.map((text) => h("li", {}, foreign(text))));
  };
  show(run);
  const element = h("header", { class: "run-top" },
    h("div", { class: "run-title" }, h("h1", {}, foreign(run.name)), badge),
    facts,
    figures,
    problems,
    h("nav", { class: "tabs", "aria-label": "Views of this run" }, tabs),
  );
  return { element, show };
}
