// Starts the page: opens the source, shows the view of the address, keeps it alive.

import { configPage } from "./config_page.js";
import { foreign, h } from "./dom.js";
import { groupPage } from "./group_page.js";
import { showShortcuts, startKeyboard } from "./keyboard.js";
import { go, link, navigation, parseRoute } from "./router.js";
import { runPage } from "./run_page.js";
import { runsPage } from "./runs_page.js";
import { openSource } from "./source.js";
import { taskPage } from "./task_page.js";
import { isDark, onThemeChange, toggleTheme } from "./theme.js";
import { hideTip } from "./tip.js";
import { trajectoriesPage } from "./trajectories_page.js";
import { trajectoryPage } from "./trajectory_page.js";

const PAGES = {
  runs: runsPage,
  run: runPage,
  config: configPage,
  trajectories: trajectoriesPage,
  trajectory: trajectoryPage,
  group: groupPage,
  task: taskPage,
};

const main = document.getElementById("main");
const source = openSource();
const state = {
  runs: [],
  problems: [],
  run(id) {
    const run = this.runs.find((other) => other.id === id);
    if (!run) throw new Error(`There is no run "${id}" here.`);
    return run;
  },
};
const scrolls = new Map();
let shown = { route: null, page: null, address: null };
let turn = 0;

async function show() {
  const mine = ++turn;
  const route = parseRoute(location.hash);
  const sameView = shown.page && route.name === shown.route.name && JSON.stringify(route.params) === JSON.stringify(shown.route.params);
  hideTip();
  if (sameView && shown.page.update) {
    shown = { ...shown, route, address: location.hash };
    return guard(shown.page.update(route));
  }
  const { isForward } = navigation;
  navigation.isForward = false;
  if (shown.address !== null) scrolls.set(shown.address, scrollY);
  main.setAttribute("aria-busy", "true");
  let page;
  try {
    if (!route.name) throw new Error(`This page has no view "${location.hash}".`);
    page = await PAGES[route.name]({ source, route, state });
  } catch (error) {
    page = errorPage(error);
  }
  if (mine !== turn) return page.destroy?.();
  shown.page?.destroy?.();
  shown = { route, page, address: location.hash };
  main.replaceChildren(page.element);
  main.removeAttribute("aria-busy");
  main.dataset.address = location.hash;
  document.title = page.title === "Runs" ? "Agent-R1" : `${page.title} · Agent-R1`;
  showCrumbs(page.crumbs);
  scrollTo(0, isForward ? 0 : scrolls.get(location.hash) ?? 0);
  if (isForward) main.focus({ preventScroll: true });
  page.shown?.();
  return undefined;
}

async function guard(promise) {
  try {
    await promise;
  } catch (error) {
    shown.page?.destroy?.();
    shown.page = errorPage(error);
    main.replaceChildren(shown.page.element);
  }
}

function errorPage(error) {
  const element = h("div", { class: "empty", role: "alert" },
    h("h2", {}, "This cannot be shown"),
    h("p", {}, foreign(error.message)),
    h("p", {}, h("a", { href: "#/" }, "All runs")),
  );
  return { element, crumbs: [["Error", null]], title: "Error", keys: {} };
}

function showCrumbs(crumbs) {
  const trail = [["Agent-R1", crumbs.length ? "#/" : null], ...crumbs];
  document.getElementById("crumbs").replaceChildren(
    h("ol", {}, trail.map(([label, href]) =>
      h("li", {}, href ? h("a", { href }, foreign(label)) : h("span", { "aria-current": "page" }, foreign(label))),
    )),
  );
}

function up() {
  const { crumbs = [] } = shown.page ?? {};
  const parents = crumbs.filter(([, href]) => href);
  go(parents.length ? parents.at(-1)[1] : "#/");
}

// A link or a key leads forward, to the top of a view; Back and Forward return to where the reader was.
document.addEventListener("click", (event) => {
  if (event.target.closest?.("a[href^='#/']")) navigation.isForward = true;
});
addEventListener("hashchange", show);
addEventListener("popstate", hideTip);
history.scrollRestoration = "manual";

document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault(); // The address behind the # is that of the view.
  main.focus();
});

const themeButton = document.getElementById("theme");
const showTheme = () => (themeButton.textContent = isDark() ? "☀" : "☾");
themeButton.addEventListener("click", toggleTheme);
onThemeChange(showTheme);
showTheme();
document.getElementById("help").addEventListener("click", showShortcuts);

startKeyboard({
  page: () => shown.page,
  common: {
    "?": showShortcuts,
    "/": () => shown.page?.search?.(),
    escape: up,
    backspace: up,
    d: toggleTheme,
    r: () => go(link("runs")),
  },
});

const live = document.getElementById("live");

function showLive(connection) {
  const running = state.runs.filter((run) => run.state === "running").length;
  live.hidden = !(connection === "lost" || running);
  live.dataset.state = connection;
  live.textContent = connection === "lost" ? "connection lost" : `live`;
  live.title = running === 1 ? "1 run is training" : `${running} runs are training`;
}

function onRuns(news) {
  const before = new Map(state.runs.map((run) => [run.id, run]));
  const changed = news.filter((run) => JSON.stringify(run) !== JSON.stringify(before.get(run.id)));
  for (const run of changed) before.set(run.id, run);
  state.runs = inOrder([...before.values()]);
  showLive("connected");
  if (changed.length && shown.page?.live) void guard(shown.page.live(new Set(changed.map((run) => run.id))));
}

/** Those that are training first, then the newest. */
function inOrder(runs) {
  const rank = (run) => (run.state === "running" ? 1 : 0);
  return [...runs].sort((a, b) => rank(b) - rank(a) || (b.started ?? 0) - (a.started ?? 0) || (a.id < b.id ? -1 : 1));
}

async function start() {
  try {
    const { runs, problems = [] } = await source.runs();
    state.runs = inOrder(runs);
    state.problems = problems;
  } catch (error) {
    main.replaceChildren(errorPage(error).element);
    return;
  }
  showLive("connected");
  await show();
  source.watch({ onRuns, onState: showLive });
}

void start();
