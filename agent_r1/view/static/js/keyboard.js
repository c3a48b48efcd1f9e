// Keys: those of the page that is shown, those that hold everywhere, and the overlay that lists them.

import { h } from "./dom.js";

export const SHORTCUTS = [
  ["Everywhere", [["?", "show these keys"], ["/", "search"], ["Esc or Backspace", "one level up"], ["d", "dark or light"], ["r", "all runs"]]],
  ["Lists", [["j / k", "next / previous entry"], ["Enter", "open it"], ["x", "draw or hide a run"], ["[ / ]", "previous / next page"]]],
  ["A run", [["t", "its trajectories"]]],
  ["A trajectory", [
    ["n / p", "next / previous trajectory of the list"],
    ["j / k", "next / previous step"],
    ["g", "all members of its group"],
    ["h", "its task over the training"],
    ["c", "color tokens by the next quantity"],
    ["← / →", "move over tokens, once they have the focus"],
  ]],
];

/** Handles key presses. `page()` gives the page that is shown: `{keys, search}`; `common` holds everywhere. */
export function startKeyboard({ page, common }) {
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented) return;
    const name = { Escape: "escape", Backspace: "backspace", Enter: "enter" }[event.key] ?? event.key;
    const dialog = document.getElementById("shortcuts");
    if (dialog.open) {
      if (name === "?") dialog.close();
      return;
    }
    const target = event.target;
    if (target.matches?.("input:not([type=checkbox]):not([type=range]), select, textarea")) {
      if (name === "escape") target.blur();
      return;
    }
    if (name === "enter" && target.matches?.("a, button, summary, input")) return;
    const action = page()?.keys?.[name] ?? common[name];
    if (!action) return;
    event.preventDefault();
    action();
  });
}

export function showShortcuts() {
  const dialog = document.getElementById("shortcuts");
  if (dialog.open) return dialog.close();
  const sections = SHORTCUTS.map(([title, keys]) =>
    h("section", {}, h("h3", {}, title), h("dl", {}, keys.map(([key, text]) => h("div", {}, h("dt", {}, keyCaps(key)), h("dd", {}, text))))),
  );
  const close = h("button", { class: "quiet", type: "button", onclick: () => dialog.close() }, "Close");
  dialog.replaceChildren(h("header", {}, h("h2", {}, "Keyboard"), close), h("div", { class: "shortcut-grid" }, sections));
  dialog.showModal();
  return undefined;
}

function keyCaps(text) {
  return text.split(/( \/ | or )/).map((part) => (part === " / " || part === " or " ? part : h("kbd", {}, part)));
}

/** j and k over the elements that `items()` gives; the current one has the class `current` and is in view. */
export function createListKeys(items, { onMove = null } = {}) {
  let at = null;
  const index = () => (at === null ? -1 : items().indexOf(at));
  function select(element) {
    at?.classList.remove("current");
    at?.removeAttribute("aria-current");
    at = element ?? null;
    at?.classList.add("current");
    at?.setAttribute("aria-current", "true");
    at?.scrollIntoView({ block: "nearest" });
    if (at && onMove) onMove(at);
  }
  const move = (by) => {
    const list = items();
    if (list.length) select(list[Math.max(0, Math.min(list.length - 1, index() + by))]);
  };
  return {
    keys: { j: () => move(1), k: () => move(-1) },
    current: () => (index() >= 0 ? at : null),
    index,
    select,
    move,
  };
}
