// Foreign text of any length: collapsed when it is long, and fetched piece by piece when the server has cut it.

import { appendText, count, h } from "./dom.js";
import { createPictures } from "./picture.js";
import { head } from "./text.js";

const FIRST = 1600;
const FIRST_LINES = 24;
const MORE = 65536;

/**
 * A block of text. `first` characters or `lines` lines of it are shown, the rest on demand. `rest` is what the server has
 * beyond `value`: `{total, load(offset, limit)}`, counted in code points.
 */
export function textBlock(value, { className = "", first = FIRST, lines = FIRST_LINES, rest = null } = {}) {
  const text = typeof value === "string" ? value : String(value ?? "");
  const body = h("div", { class: `text ${className}`, dir: "auto" });
  const wrapper = h("div", { class: "text-block" }, body);
  const end = firstEnd(text, first, lines);
  appendText(body, text.slice(0, end));
  if (end >= text.length && !rest) return wrapper;

  const total = rest?.total ?? text.length;
  const more = h("button", { class: "more", type: "button" }, `Show ${total > MORE ? "more of" : "all"} ${count(total)} characters`);
  const next = readerOf(text, rest);
  let isFirst = true;
  more.addEventListener("click", async () => {
    more.disabled = true;
    const piece = await next();
    if (isFirst) body.replaceChildren();
    isFirst = false;
    // Pieces are blocks of their own: those out of sight cost no layout, however many there are.
    const block = h("span", { class: "piece" });
    appendText(block, piece.text);
    body.append(block);
    more.disabled = false;
    if (piece.isLast) more.remove();
    else more.textContent = `Show more of ${count(total)} characters`;
  });
  wrapper.append(more);
  return wrapper;
}

/** A function that gives the next piece of a text from its beginning on, cut after a line where there is one. */
function readerOf(text, rest) {
  let at = 0;
  let known = text;
  let fetched = rest ? [...text].length : 0;
  return async () => {
    if (rest && at >= known.length && fetched < rest.total) {
      const part = await rest.load(fetched, MORE);
      known = part.text;
      at = 0;
      fetched = part.text ? fetched + [...part.text].length : rest.total;
    }
    const piece = head(known, MORE, at).text;
    const line = piece.lastIndexOf("\n") + 1;
    const cut = at + piece.length < known.length && line > MORE / 2 ? piece.slice(0, line) : piece;
    at += cut.length;
    return { text: cut, isLast: at >= known.length && (!rest || fetched >= rest.total) };
  };
}

function firstEnd(text, characters, lines) {
  if (text.length <= characters * 1.25 && text.split("\n", lines + 4).length <= lines + 3) return text.length;
  let end = head(text, characters).end;
  for (let line = 0, at = -1; line < lines; line++) {
    at = text.indexOf("\n", at + 1);
    if (at < 0) break;
    if (line === lines - 1) end = Math.min(end, at);
  }
  return end;
}

/**
 * A function `(value, path, options) -> block` that knows which texts of a trajectory are longer on the server; its
 * `picture` shows pictures.
 */
export function createTextLoader(source, run, key, cuts) {
  const totals = new Map(cuts.filter((cut) => cut.chars).map((cut) => [cut.path, cut.chars]));
  const block = (value, path, options = {}) => {
    const total = totals.get(path);
    if (!total || typeof value !== "string" || !source.text) return textBlock(value, options);
    const shown = value.replace(/… \[[\d,]+ more characters\]$/, "");
    const load = (offset, limit) => source.text(run, key, { path, offset, limit });
    return textBlock(shown, { ...options, rest: { total, load } });
  };
  return Object.assign(block, { picture: createPictures(source, run) });
}

/** The same for overviews, whose texts are as short as the server gives them. */
export function createShortBlocks(source, run) {
  const block = (value, path, options) => textBlock(value, options);
  return Object.assign(block, { picture: createPictures(source, run) });
}
