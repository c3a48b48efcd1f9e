// Builds elements. Data becomes text nodes and attributes, never markup: there is no innerHTML on this page.

import { pieces, visible } from "./text.js";

/**
 * An element: `h("a", { class: "quiet", href: "#/", onclick: f }, "Runs")`.
 * Children are nodes, strings, numbers, lists of them; null, undefined and false are left out.
 */
export function h(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "vars") setVariables(element, value);
    else if (name === "value" || name === "checked" || name === "disabled" || name === "open") element[name] = value;
    else element.setAttribute(name, value === true ? "" : visible(value));
  }
  element.append(...nodes(children));
  return element;
}

function setVariables(element, variables) {
  for (const [name, value] of Object.entries(variables)) element.style.setProperty(name, value);
}

function nodes(children) {
  return children
    .flat(Infinity)
    .filter((child) => child !== null && child !== undefined && child !== false)
    .map((child) => (child instanceof Node ? child : document.createTextNode(visible(child))));
}

/** A short piece of foreign text inside a line of ours; its direction does not reach its neighbours. */
export function foreign(text, properties = {}) {
  return h("bdi", properties, String(text));
}

/** Appends foreign text, its hidden characters as marked spans. */
export function appendText(element, text) {
  for (const piece of pieces(text)) {
    if (piece.hidden) {
      const span = document.createElement("span");
      span.className = "hidden-mark";
      span.textContent = piece.text;
      element.append(span);
    } else element.append(document.createTextNode(piece.text));
  }
}

/** 12345 as "12,345". */
export function count(value) {
  return Number(value ?? 0).toLocaleString("en-US");
}

/** A number in few characters: 0.123, 12.3, 1,234, 1.2e-5; "–" when there is none. */
export function number(value) {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  if (typeof value !== "number") return String(value);
  if (!Number.isFinite(value)) return value > 0 ? "∞" : "−∞";
  const size = Math.abs(value);
  if (value === 0) return "0";
  if (size >= 1e7 || size < 1e-3) return minus(value.toExponential(1).replace(".0e", "e").replace("e+", "e"));
  if (Number.isInteger(value) || size >= 1000) return minus(Math.round(value).toLocaleString("en-US"));
  const digits = size >= 100 ? 1 : size >= 10 ? 2 : 3;
  return minus(value.toFixed(digits).replace(/0+$/, "").replace(/\.$/, ""));
}

/** A number with its sign: +0.5, −0.25, 0. */
export function signed(value) {
  return typeof value === "number" && value > 0 ? `+${number(value)}` : number(value);
}

function minus(text) {
  return text.replace(/^-/, "−").replace("e-", "e−");
}

/** Seconds as "0.4 s", "3 min", "2.5 h". */
export function duration(seconds) {
  if (typeof seconds !== "number" || !Number.isFinite(seconds)) return "–";
  if (seconds < 1) return `${number(Math.round(seconds * 1000))} ms`;
  if (seconds < 100) return `${number(Math.round(seconds * 10) / 10)} s`;
  if (seconds < 6000) return `${Math.round(seconds / 60)} min`;
  return `${(seconds / 3600).toFixed(1)} h`;
}

/** A time (seconds since 1970, or ISO text) as "2 min ago", "3 days ago". */
export function ago(time) {
  const then = typeof time === "number" ? time * 1000 : Date.parse(time);
  if (!Number.isFinite(then)) return "–";
  const seconds = Math.max(0, (Date.now() - then) / 1000);
  const units = [[86400, "day"], [3600, "h"], [60, "min"]];
  for (const [size, name] of units) {
    const amount = Math.floor(seconds / size);
    if (amount >= 1) return `${amount} ${name}${name === "day" && amount > 1 ? "s" : ""} ago`;
  }
  return "now";
}

/** Calls `action` once, `wait` ms after the last of many calls. */
export function debounce(action, wait) {
  let timer = 0;
  return (...values) => {
    clearTimeout(timer);
    timer = setTimeout(() => action(...values), wait);
  };
}
