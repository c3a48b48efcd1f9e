// One task over the steps of training: what it earned each time, and every rollout of it.

import { createChart } from "./chart.js";
import { count, foreign, h } from "./dom.js";
import { promptBox } from "./group_page.js";
import { createListKeys } from "./keyboard.js";
import { link } from "./router.js";
import { oneLine } from "./text.js";
import { createShortBlocks } from "./text_block.js";
import { createTable } from "./trajectory_table.js";

export async function taskPage({ source, route, state }) {
  const { run: id, task } = route.params;
  const run = state.run(id);
  let version = "";
  const figures = h("dl", { class: "figures wide" });
  const chart = createChart({ label: "Reward of this task over training" });
  const table = createTable({ addressOf: (row) => link("trajectory", { run: id, key: row.key }, { step: row.step, kind: row.kind }) });
  const prompt = h("div", {});
  const element = h("div", { class: "page" },
    h("header", { class: "run-top" }, h("div", { class: "run-title" }, h("h1", {}, foreign(oneLine(task)))),
      h("p", { class: "run-facts" }, "one task over the training"), figures),
    prompt,
    h("section", { class: "panel task-panel" }, h("header", {}, h("h3", {}, "reward")), chart.element),
    h("div", { class: "list" }, table.element),
  );

  async function load() {
    const latest = state.run(id);
    if (version === `${latest.steps}/${latest.trajectories}`) return;
    version = `${latest.steps}/${latest.trajectories}`;
    const answer = await source.task(id, task);
    const rows = answer.rows.filter((row) => !row.failed);
    figures.replaceChildren(...taskFigures(answer.rows, rows));
    if (answer.prompt?.length && !prompt.children.length) prompt.append(promptBox(answer.prompt, createShortBlocks(source, id)));
    table.show(answer.rows);
    chart.draw({ lines: linesOf(answer.steps), marks: [], axis: "steps" });
  }

  await load();
  const list = createListKeys(() => table.rows());
  return {
    element,
    crumbs: [[run.name, link("run", { run: id })], ["Trajectories", link("trajectories", { run: id }, { task })], [task, null]],
    title: `Task ${task}`,
    keys: { ...list.keys, enter: () => list.current()?.querySelector("a").click() },
    live: (changed) => (changed.has(id) ? load() : undefined),
    destroy: () => chart.destroy(),
  };
}

function taskFigures(all, rows) {
  const solved = rows.filter((row) => row.success >= 1).length;
  const steps = new Set(all.map((row) => `${row.kind} ${row.step}`));
  return [
    ["rollouts", count(all.length)],
    ["in batches", count(steps.size)],
    ["solved", rows.length ? `${count(solved)} of ${count(rows.length)}` : "–"],
    ["failed", count(all.length - rows.length)],
  ].map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value)));
}

/** Each batch as a point with the range of its rewards. */
function linesOf(steps) {
  const kinds = [["train", "training", "--series-1"], ["eval", "evaluation", "--series-2"]];
  return kinds.flatMap(([kind, name, color]) => {
    const own = steps.filter((batch) => batch.kind === kind && Number.isFinite(batch.reward));
    const line = { x: own.map((batch) => batch.step), y: own.map((batch) => batch.reward) };
    const range = { low: own.map((batch) => batch.reward_min), high: own.map((batch) => batch.reward_max) };
    return own.length ? [{ ...line, ...range, name, color, steps: line.x, points: true }] : [];
  });
}
