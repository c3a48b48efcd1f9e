// One chart on a canvas: lines with bands, marks on the axis, a cross-hair that all charts of a page share.

import { drawChart } from "./chart_drawing.js";
import { h, number } from "./dom.js";
import { nearest } from "./series.js";
import { onThemeChange } from "./theme.js";
import { hideTip, showTip } from "./tip.js";

export const MARGINS = { left: 58, right: 12, top: 10, bottom: 24 };
const MARK_REACH = 7;

const charts = new Set();

/**
 * A chart. `draw(spec)` shows
 * `{lines: [{name, color, x, y, raw, low, high, steps, points, dashed}], marks: [{x, text}], axis, format}`;
 * `onPick({line, index})` is called for a click on a point.
 */
export function createChart({ label, onPick = null }) {
  const canvas = h("canvas", { role: "img", "aria-label": label });
  const element = h("div", { class: "chart" }, canvas);
  const chart = { canvas, element, spec: null, cursor: null, area: null, onPick };

  chart.draw = (spec) => {
    chart.spec = spec;
    canvas.setAttribute("aria-label", describe(label, spec));
    paint(chart);
  };
  chart.destroy = () => {
    charts.delete(chart);
    resize.disconnect();
    stopTheme();
  };
  const resize = new ResizeObserver(() => paint(chart));
  resize.observe(element);
  const stopTheme = onThemeChange(() => paint(chart));
  canvas.addEventListener("pointermove", (event) => onMove(chart, event));
  canvas.addEventListener("pointerleave", () => {
    setCursor(null);
    hideTip();
  });
  if (onPick) canvas.addEventListener("click", (event) => onClick(chart, event));
  charts.add(chart);
  return chart;
}

function describe(label, { lines }) {
  const values = lines.map((line) => `${line.name}: last ${number(line.y.at(-1))}`);
  return values.length ? `${label}. ${values.slice(0, 8).join("; ")}` : `${label}: no values`;
}

function paint(chart) {
  if (!chart.spec || !chart.element.isConnected) return;
  const { width, height } = chart.element.getBoundingClientRect();
  if (width < 40 || height < 40) return;
  const scale = Math.max(1, devicePixelRatio || 1);
  const [w, hgt] = [Math.round(width * scale), Math.round(height * scale)];
  if (chart.canvas.width !== w || chart.canvas.height !== hgt) {
    chart.canvas.width = w;
    chart.canvas.height = hgt;
    chart.canvas.style.width = `${width}px`;
    chart.canvas.style.height = `${height}px`;
  }
  const context = chart.canvas.getContext("2d");
  context.setTransform(scale, 0, 0, scale, 0, 0);
  chart.area = drawChart(context, chart.spec, { width, height, margins: MARGINS, cursor: chart.cursor });
}

function setCursor(x, axis = null) {
  for (const chart of charts) {
    const next = x !== null && chart.spec?.axis === axis ? x : null;
    if (chart.cursor === next) continue;
    chart.cursor = next;
    paint(chart);
  }
}

function onMove(chart, event) {
  if (!chart.area) return;
  const box = chart.canvas.getBoundingClientRect();
  const at = chart.area.toX(event.clientX - box.left);
  const anchor = nearestX(chart.spec.lines, at);
  if (anchor === null) return;
  setCursor(anchor, chart.spec.axis);
  const marked = chart.spec.marks.filter(
    (mark) => Math.abs(chart.area.fromX(mark.x) - (event.clientX - box.left)) <= MARK_REACH,
  );
  showTip(readOut(chart.spec, anchor, marked), event.clientX, event.clientY);
}

function nearestX(lines, x) {
  const candidates = lines.filter((line) => line.x.length).map((line) => line.x[nearest(line.x, x)]);
  if (!candidates.length) return null;
  return candidates.reduce((best, value) => (Math.abs(value - x) < Math.abs(best - x) ? value : best));
}

function readOut(spec, x, marked) {
  const rows = spec.lines
    .map((line) => ({ line, i: nearest(line.x, x) }))
    .filter(({ line, i }) => i >= 0 && isNear(line, i, x))
    .sort((a, b) => b.line.y[b.i] - a.line.y[a.i])
    .map(({ line, i }) =>
      h("tr", {},
        h("td", {}, h("i", { class: "dot", vars: { "--dot": `var(${line.color})` } }), h("bdi", {}, line.name)),
        h("td", { class: "num" }, number(line.y[i])),
        line.raw ? h("td", { class: "num faint" }, number(line.raw[i])) : null,
        line.low ? h("td", { class: "num faint" }, `${number(line.low[i])} to ${number(line.high[i])}`) : null,
      ),
    );
  return [
    h("div", { class: "tip-head" }, spec.axis === "minutes" ? `${number(x)} min` : `step ${number(x)}`),
    h("table", {}, rows),
    ...marked.map((mark) => h("p", { class: "tip-warning" }, mark.text)),
  ];
}

/** Whether a line has a point where the cross-hair is; a short run has no value far behind its end. */
function isNear(line, i, x) {
  const spacing = line.x.length > 1 ? (line.x.at(-1) - line.x[0]) / (line.x.length - 1) : 1;
  return Math.abs(line.x[i] - x) <= Math.max(spacing, 1e-9);
}

function onClick(chart, event) {
  if (!chart.area) return;
  const box = chart.canvas.getBoundingClientRect();
  const [px, py] = [event.clientX - box.left, event.clientY - box.top];
  let best = null;
  for (const line of chart.spec.lines) {
    if (!line.x.length) continue;
    const index = nearest(line.x, chart.area.toX(px));
    const distance = Math.hypot(
      chart.area.fromX(line.x[index]) - px,
      (chart.area.fromY(line.y[index]) - py) / 3,
    );
    if (!best || distance < best.distance) best = { line, index, distance };
  }
  if (best) chart.onPick(best);
}
