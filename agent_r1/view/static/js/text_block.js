// Foreign text of any length: collapsed when it is long, and fetched piece by piece when the server has cut it.

import { appendText, count, h } from "./dom.js";
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
  let end = firstEnd(text, first, lines);
  appendText(body, text.slice(0, end));
  if (end >= text.length && !rest) return wrapper;

  const total = rest?.total ?? text.length;
  let fetched = rest ? [...text].length : 0;
  const isComplete = () => end >= text.length && (!rest || fetched >= total);
  const more = h("button", { class: "more", type: "button" });
  const label = () => {
    const isLast = rest ? total - fetched <= 0 : text.length - end <= MORE;
    more.textContent = isLast ? `Show all ${count(total)} characters` : `Show more of ${count(total)} characters`;
  };
  more.addEventListener("click", async () => {
    more.disabled = true;
    if (end < text.length) {
      const next = head(text, MORE, end);
      appendText(body, next.text);
      end = next.end;
    } else {
      const part = await rest.load(fetched, MORE);
      appendText(body, part.text);
      fetched = part.text ? fetched + [...part.text].length : total;
    }
    more.disabled = false;
    if (isComplete()) more.remove();
    else label();
  });
  label();
  wrapper.append(more);
  return wrapper;
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

/** A function `(value, path, options) -> block` that knows which texts of a trajectory are longer on the server. */
export function createTextLoader(source, run, key, cuts) {
  const totals = new Map(cuts.filter((cut) => cut.chars).map((cut) => [cut.path, cut.chars]));
  return (value, path, options = {}) => {
    const total = totals.get(path);
    if (!total || typeof value !== "string" || !source.text) return textBlock(value, options);
    const shown = value.replace(/… \[[\d,]+ more characters\]$/, "");
    const load = (offset, limit) => source.text(run, key, { path, offset, limit });
    return textBlock(shown, { ...options, rest: { total, load } });
  };
}
