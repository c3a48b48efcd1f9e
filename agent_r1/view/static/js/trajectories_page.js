// The trajectories of a run: filters that live in the address, sorting, pages. The server's index does the work.

import { count, h } from "./dom.js";
import { createListKeys } from "./keyboard.js";
import { go, link } from "./router.js";
import { runHead } from "./run_head.js";
import { createFilters, FILTERS } from "./trajectory_filters.js";
import { createTable } from "./trajectory_table.js";

const PAGE = 100;
const lastOpened = new Map(); // run id -> key of the trajectory that was read last

/** What the server is asked for the list of an address; also used to find a trajectory's neighbours. */
export function listQuery(query, { offset, limit }) {
  const wanted = { sort: query.get("sort") ?? "-step", offset, limit };
  for (const name of FILTERS) if (query.get(name)) wanted[name] = query.get(name);
  return wanted;
}

export async function trajectoriesPage({ source, route, state }) {
  const id = route.params.run;
  let query = route.query;
  let offset = Number(query.get("offset") ?? 0);
  let answer = { total: 0, rows: [], facets: {} };
  let turn = 0;
  const head = runHead(state.run(id), "trajectories");
  const changeQuery = (changes, { replace = true } = {}) => {
    const next = { ...Object.fromEntries(query), offset: "", ...changes };
    go(link("trajectories", { run: id }, next), { replace });
  };
  const filters = createFilters(changeQuery);
  const total = h("p", { class: "total", role: "status" });
  const table = createTable({ changeQuery, addressOf, onOpen: (row) => lastOpened.set(id, row.key) });
  const pager = createPager((next) => changeQuery({ offset: next || "" }, { replace: false }));
  const list = h("div", { class: "list" }, h("div", { class: "list-head" }, total, pager.top), table.element, pager.bottom);
  const element = h("div", { class: "page" }, head.element, filters.element, list);

  function addressOf(row, index) {
    const context = { ...Object.fromEntries(query), offset: "", at: offset + index };
    return link("trajectory", { run: id, key: row.key }, context);
  }

  async function load() {
    const mine = ++turn;
    element.setAttribute("aria-busy", "true");
    const found = await source.trajectories(id, listQuery(query, { offset, limit: PAGE }));
    if (mine !== turn) return;
    answer = found;
    element.removeAttribute("aria-busy");
    show();
  }

  function show() {
    const run = state.run(id);
    head.show(run);
    filters.show(query, answer.facets, run);
    table.show(answer.rows, query);
    total.textContent = totalText(answer, offset, run);
    pager.show(offset, answer.total);
  }

  const rows = createListKeys(() => table.rows());
  let selectAfter = null; // which row of the next page is to be selected: "first" or "last"
  function turnPage(by, select = null) {
    const next = offset + by * PAGE;
    if (next < 0 || next >= answer.total) return;
    selectAfter = select;
    changeQuery({ offset: next || "" }, { replace: false });
  }

  /** j and k turn the page at its ends. */
  function move(by) {
    const end = by > 0 ? table.rows().length - 1 : 0;
    if (rows.current() && rows.index() === end) turnPage(by, by > 0 ? "first" : "last");
    else rows.move(by);
  }

  await load();
  const run = state.run(id);
  return {
    element,
    crumbs: [[run.name, link("run", { run: id })], ["Trajectories", null]],
    title: `${run.name}: trajectories`,
    keys: {
      j: () => move(1),
      k: () => move(-1),
      enter: () => rows.current()?.querySelector("a").click(),
      "[": () => turnPage(-1),
      "]": () => turnPage(1),
    },
    search: () => filters.focusSearch(),
    async update(next) {
      query = next.query;
      const before = offset;
      offset = Number(query.get("offset") ?? 0);
      if (before !== offset) {
        rows.select(null);
        scrollTo(0, Math.min(scrollY, list.offsetTop));
      }
      await load();
      if (selectAfter) rows.select(table.rows().at(selectAfter === "first" ? 0 : -1));
      selectAfter = null;
    },
    live: (changed) => (changed.has(id) ? load() : undefined),
    shown: () => rows.select(table.rowOf(lastOpened.get(id))),
  };
}

function totalText({ total, rows, exported }, offset, run) {
  const parts = [];
  if (!total) parts.push("No trajectory matches");
  else parts.push(`${count(offset + 1)} to ${count(Math.min(offset + rows.length, total))} of ${count(total)} trajectories`);
  if (run.indexed === false) parts.push(`${Math.round(100 * (run.index_progress ?? 0))} % are indexed`);
  if (exported < run.trajectories) parts.push(`this file has ${count(exported)} of ${count(run.trajectories)}`);
  return parts.join(" · ");
}

function createPager(open) {
  const parts = [0, 1].map(() => {
    const back = h("button", { class: "quiet", type: "button", title: "Previous page ([)" }, "← Previous");
    const on = h("button", { class: "quiet", type: "button", title: "Next page (])" }, "Next →");
    const where = h("span", { class: "faint num" });
    return { back, on, where, element: h("nav", { class: "pager", "aria-label": "Pages" }, back, where, on) };
  });
  let offset = 0;
  for (const part of parts) {
    part.back.addEventListener("click", () => open(Math.max(0, offset - PAGE)));
    part.on.addEventListener("click", () => open(offset + PAGE));
  }
  return {
    top: parts[0].element,
    bottom: parts[1].element,
    show(from, total) {
      offset = from;
      for (const part of parts) {
        part.element.hidden = total <= PAGE;
        part.back.disabled = from <= 0;
        part.on.disabled = from + PAGE >= total;
        part.where.textContent = `page ${count(Math.floor(from / PAGE) + 1)} of ${count(Math.max(1, Math.ceil(total / PAGE)))}`;
      }
    },
  };
}
