// Rows of trajectories. A row that is shown again keeps its element, so live lists do not flicker.

import { count, foreign, h, number, signed } from "./dom.js";
import { oneLine } from "./text.js";

const COLUMNS = [
  { name: "step", label: "Step", sort: "step", numeric: true },
  { name: "task", label: "Task" },
  { name: "reward", label: "Reward", sort: "reward", numeric: true },
  { name: "process", label: "Process", numeric: true },
  { name: "result", label: "Result" },
  { name: "steps", label: "Steps", sort: "steps", numeric: true },
  { name: "calls", label: "Calls", sort: "calls", numeric: true },
  { name: "tokens", label: "Tokens", sort: "tokens", numeric: true },
  { name: "preview", label: "Text" },
];

/** A table; `show(rows, query)` fills it. `addressOf(row, index)` gives the link of a row. */
export function createTable({ changeQuery = null, addressOf, onOpen = () => {} }) {
  const body = h("tbody", {});
  const heads = COLUMNS.map((column) => headOf(column, changeQuery));
  const table = h("table", { class: "trajectories" }, h("thead", {}, h("tr", {}, heads)), body);
  const elements = new Map();

  function show(rows, query = new URLSearchParams()) {
    const sort = query.get("sort") ?? "-step";
    if (changeQuery) COLUMNS.forEach((column, i) => column.sort && showSort(heads[i], column.sort, sort));
    const keys = new Set(rows.map((row) => row.key));
    for (const key of elements.keys()) if (!keys.has(key)) elements.delete(key);
    const wanted = rows.map((row, i) => {
      if (!elements.has(row.key)) elements.set(row.key, rowOf(row, onOpen));
      const element = elements.get(row.key);
      element.querySelector("a").href = addressOf(row, i);
      return element;
    });
    if (wanted.length !== body.children.length || wanted.some((node, i) => node !== body.children[i])) body.replaceChildren(...wanted);
  }

  return { element: table, show, rows: () => [...body.children], rowOf: (key) => elements.get(key) ?? null };
}

function headOf({ name, label, sort, numeric }, changeQuery) {
  const className = `col-${name}${numeric ? " num" : ""}`;
  if (!sort || !changeQuery) return h("th", { scope: "col", class: className }, label);
  const head = h("th", { scope: "col", class: className }, h("button", { type: "button", class: "sorter" }, label, h("i", { "aria-hidden": "true" })));
  head.firstChild.addEventListener("click", () =>
    changeQuery({ sort: head.getAttribute("aria-sort") === "descending" ? sort : `-${sort}` }),
  );
  return head;
}

function showSort(head, own, sort) {
  if (sort.replace("-", "") === own) head.setAttribute("aria-sort", sort.startsWith("-") ? "descending" : "ascending");
  else head.removeAttribute("aria-sort");
}

function rowOf(row, onOpen) {
  const anchor = h("a", { "aria-label": `Open step ${row.step}, task ${row.task_id}, member ${row.member}` }, foreign(oneLine(row.task_id, 40)));
  anchor.addEventListener("click", () => onOpen(row));
  const member = row.member === -1 ? "greedy" : `member ${row.member}`;
  const element = h("tr", { class: row.failed ? "failed" : null },
    h("td", { class: "col-step num" }, row.kind === "eval" ? h("span", { class: "kind" }, "eval") : null, number(row.step)),
    h("td", { class: "col-task" }, anchor, h("span", { class: "faint" }, member)),
    h("td", { class: "col-reward num" }, rewardBar(row.reward), number(row.reward)),
    h("td", { class: "col-process num" }, row.process_reward ? signed(row.process_reward) : h("span", { class: "faint" }, "0")),
    h("td", { class: "col-result" }, resultBadge(row), row.retries ? h("span", { class: "faint", title: `${row.retries} attempts failed before` }, ` ↻ ${row.retries}`) : null),
    h("td", { class: "col-steps num" }, count(row.num_steps)),
    h("td", { class: "col-calls num", title: row.tools?.join(", ") }, count(row.tool_calls)),
    h("td", { class: "col-tokens num" }, count(row.tokens)),
    h("td", { class: "col-preview" }, row.question ? h("div", { class: "asked", dir: "auto" }, oneLine(row.question, 160)) : null, h("div", { class: "preview", dir: "auto" }, oneLine(row.preview ?? "", 220))),
  );
  element.addEventListener("click", (event) => {
    if (!event.target.closest("a") && !String(getSelection())) anchor.click();
  });
  return element;
}

/** Solved, not solved, cut at a limit, or failed: in words and color. */
export function resultBadge(row) {
  const reason = String(row.stop_reason ?? "").replaceAll("_", " ");
  const [kind, label] = row.failed
    ? ["failed", reason || "failed"]
    : row.success >= 1 ? ["solved", "solved"] : row.stop_reason === "done" ? ["unsolved", "not solved"] : ["cut", reason];
  return h("span", { class: "badge", "data-state": kind }, label);
}

function rewardBar(reward) {
  const size = Math.max(0, Math.min(1, Math.abs(reward ?? 0)));
  return h("i", { class: `reward-bar ${reward < 0 ? "negative" : ""}`, "aria-hidden": "true", vars: { "--size": size } });
}
