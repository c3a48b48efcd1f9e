// How a token's number becomes a color: a class for the hue and a strength from 0 to 1, so that both themes can choose theirs.

import { number, signed } from "./dom.js";

export const WRITERS = ["model", "tool", "user", "template"];

/** The quantities tokens can be colored by, in the order of the key `c`. */
export const MODES = [
  { name: "text", label: "nothing", field: null },
  { name: "logprob", label: "log-prob", field: "logprob", low: "likely", high: "unlikely" },
  { name: "entropy", label: "entropy", field: "entropy", low: "certain", high: "uncertain" },
  { name: "advantage", label: "advantage", field: "advantage" },
  { name: "ratio", label: "ratio", field: "ratio" },
  { name: "writer", label: "who wrote it", field: "writer" },
];

/** The modes for which a trajectory has values. */
export function availableModes(steps) {
  const tokens = steps.flatMap((step) => step.tokens ?? []);
  return new Set(
    MODES.filter(({ field }) => !field || tokens.some((token) => token[field] !== null && token[field] !== undefined)).map(({ name }) => name),
  );
}

/** A function from token to `{hue, strength}` or null, with `legend`: `{gradient: [low label, high label]}` or `{swatches}`. */
export function scaleFor(name, steps) {
  const values = steps.flatMap((step) => (step.tokens ?? []).map((token) => token[name])).filter(Number.isFinite);
  if (name === "logprob") return sequential(name, (value) => (-value / 4) ** 0.6, "0", "−4 and less");
  if (name === "entropy") {
    const top = Math.max(0.5, quantile(values, 0.98));
    return sequential(name, (value) => (value / top) ** 0.6, "0", number(top));
  }
  if (name === "advantage") {
    const top = Math.max(1e-6, ...values.map(Math.abs));
    return diverging(name, (value) => value / top, number(-top), signed(top));
  }
  if (name === "ratio") {
    const top = Math.max(0.05, ...values.map((value) => Math.abs(Math.log(Math.max(value, 1e-6)))));
    return diverging(name, (value) => Math.log(Math.max(value, 1e-6)) / top, number(Math.exp(-top)), number(Math.exp(top)));
  }
  if (name === "writer") return { of: (token) => ({ hue: `by-${writerOf(token)}`, strength: 1 }), legend: { swatches: WRITERS } };
  return { of: () => null, legend: null };
}

export function writerOf(token) {
  return WRITERS.includes(token.writer) ? token.writer : token.action ? "model" : "template";
}

function sequential(field, strength, low, high) {
  const of = (token) => (Number.isFinite(token[field]) ? { hue: "heat", strength: clamp(strength(token[field])) } : null);
  return { of, legend: { gradient: "heat", low, high } };
}

function diverging(field, position, low, high) {
  const of = (token) => {
    if (!Number.isFinite(token[field])) return null;
    const at = position(token[field]);
    return { hue: at < 0 ? "below" : "above", strength: clamp(Math.abs(at)) };
  };
  return { of, legend: { gradient: "diverging", low, high } };
}

function clamp(value) {
  return Math.max(0, Math.min(1, value));
}

function quantile(values, part) {
  if (!values.length) return 0;
  const sorted = [...values].sort((a, b) => a - b);
  return sorted[Math.min(sorted.length - 1, Math.floor(part * sorted.length))];
}
