// Tokens as they were sampled or read: colored by a quantity, with all their numbers under the pointer or the arrow keys.

import { appendText, count, h, number, signed } from "./dom.js";
import { visible } from "./text.js";
import { writerOf } from "./token_scales.js";
import { hideTip, showTip } from "./tip.js";

const FIRST = 1500;
const MORE = 6000;

/** A strip of tokens; `paint(scale)` colors it. `pictureOf` makes the thumbnails of images, which are one box each. */
export function createTokenStrip(tokens, label, pictureOf) {
  const body = h("div", { class: "tokens", tabindex: 0, role: "group", dir: "auto", "aria-label": `${label}; arrow keys move over tokens` });
  const element = h("div", { class: "token-strip" }, body);
  const spans = [];
  let scale = null;
  let at = -1;

  function append(to) {
    while (spans.length < Math.min(to, tokens.length)) {
      const span = spanOf(tokens[spans.length], pictureOf);
      span.dataset.i = spans.length;
      spans.push(span);
      body.append(span);
      if (scale) paintSpan(span, tokens[spans.length - 1], scale);
    }
  }
  append(tokens.length <= FIRST * 1.3 ? tokens.length : FIRST);
  if (spans.length < tokens.length) element.append(moreButton());

  function moreButton() {
    const button = h("button", { class: "more", type: "button" });
    const label = () => (button.textContent = `Show more of ${count(tokens.length)} tokens`);
    button.addEventListener("click", () => {
      append(spans.length + MORE);
      if (spans.length >= tokens.length) button.remove();
    });
    label();
    return button;
  }

  function point(index, x = null, y = null) {
    spans[at]?.classList.remove("pointed");
    at = index;
    const span = spans[index];
    if (!span) return hideTip();
    span.classList.add("pointed");
    const box = span.getBoundingClientRect();
    return showTip(readOut(tokens[index]), x ?? box.left, y ?? box.bottom);
  }

  body.addEventListener("pointermove", (event) => {
    const span = event.target.closest("[data-i]");
    if (span) point(Number(span.dataset.i), event.clientX, event.clientY);
  });
  body.addEventListener("pointerleave", () => point(-1));
  body.addEventListener("blur", () => point(-1));
  body.addEventListener("keydown", (event) => {
    const by = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!by) return;
    event.preventDefault();
    point(Math.max(0, Math.min(spans.length - 1, at + by)));
    spans[at].scrollIntoView({ block: "nearest" });
  });

  return {
    element,
    paint(next) {
      scale = next;
      spans.forEach((span, i) => paintSpan(span, tokens[i], scale));
    },
  };
}

function spanOf(token, pictureOf) {
  const span = document.createElement("span");
  if (token.image) {
    const thumbnail = pictureOf?.(token.image, "thumbnail");
    if (thumbnail) span.append(thumbnail);
  }
  const text = token.text ?? "";
  if (text === "") span.append(h("span", { class: "hidden-mark" }, `⟨${token.id}⟩`));
  else {
    for (const [i, line] of text.split("\n").entries()) {
      if (i) span.append(h("span", { class: "hidden-mark newline" }, "⏎"), "\n");
      appendText(span, line.length > 4000 ? `${line.slice(0, 4000)} … ${count(line.length - 4000)} more characters` : line);
    }
  }
  span.className = kindOf(token);
  return span;
}

function kindOf(token) {
  return `${token.action ? "" : "given"} ${token.image ? "image-tokens" : ""}`.trim();
}

function paintSpan(span, token, scale) {
  const look = scale.of(token);
  span.className = `${kindOf(token)} ${look ? look.hue : ""}`.trim();
  if (look) span.style.setProperty("--v", look.strength.toFixed(3));
  else span.style.removeProperty("--v");
}

function readOut(token) {
  const rows = [
    [token.image ? "first id" : "id", String(token.id)],
    ["written by", writerOf(token)],
    ["log-prob", token.logprob, number],
    ["probability", Number.isFinite(token.logprob) ? Math.exp(token.logprob) : null, number],
    ["entropy", token.entropy, number],
    ["advantage", token.advantage, signed],
    ["ratio", token.ratio, number],
  ];
  const shown = rows.filter(([, value]) => value !== null && value !== undefined);
  return [
    h("div", { class: "tip-head mono" }, h("bdi", {}, visible(JSON.stringify(String(token.text ?? "").slice(0, 80))))),
    h("table", {}, shown.map(([name, value, format]) => h("tr", {}, h("td", {}, name), h("td", { class: "num" }, format ? format(value) : value)))),
  ];
}
