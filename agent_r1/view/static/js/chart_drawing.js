// Draws a chart: axes with round numbers, bands, raw values behind smoothed ones, marks of warnings.

import { number } from "./dom.js";
import { nearest } from "./series.js";
import { color } from "./theme.js";

const FONT = '11px ui-sans-serif, system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", sans-serif';

/** Draws on a context in CSS pixels; returns how values and pixels are related. */
export function drawChart(context, spec, { width, height, margins, cursor }) {
  context.clearRect(0, 0, width, height);
  const lines = spec.lines.filter((line) => line.x.length);
  const box = { left: margins.left, right: width - margins.right, top: margins.top, bottom: height - margins.bottom };
  const [x0, x1] = range(lines.flatMap((line) => [line.x[0], line.x.at(-1)]), 0);
  const [y0, y1] = range(lines.flatMap(extremes), 0.06);
  const area = {
    fromX: (x) => box.left + ((x - x0) / (x1 - x0)) * (box.right - box.left),
    fromY: (y) => box.bottom - ((y - y0) / (y1 - y0)) * (box.bottom - box.top),
    toX: (pixel) => x0 + ((pixel - box.left) / (box.right - box.left)) * (x1 - x0),
  };
  drawAxes(context, box, area, { x0, x1, y0, y1, wholeX: spec.axis === "steps" });
  context.save();
  context.beginPath();
  context.rect(box.left - 4, box.top - 4, box.right - box.left + 8, box.bottom - box.top + 8);
  context.clip();
  for (const line of lines) drawBand(context, line, area);
  for (const line of lines) drawRaw(context, line, area);
  for (const line of lines) drawLine(context, line, area);
  context.restore();
  for (const mark of spec.marks) drawMark(context, mark, area, box);
  if (cursor !== null) drawCursor(context, lines, cursor, area, box);
  return area;
}

function extremes(line) {
  let low = Infinity;
  let high = -Infinity;
  for (const values of [line.y, line.raw, line.low, line.high]) {
    for (const value of values ?? []) {
      if (value < low) low = value;
      if (value > high) high = value;
    }
  }
  return [low, high];
}

function range(values, padding) {
  const finite = values.filter(Number.isFinite);
  if (!finite.length) return [0, 1];
  let [low, high] = [Math.min(...finite), Math.max(...finite)];
  if (low === high) {
    const reach = Math.abs(low) > 1e-9 ? Math.abs(low) * 0.5 : 0.5;
    [low, high] = [low - reach, high + reach];
  }
  return [low - (high - low) * padding, high + (high - low) * padding];
}

/** Round numbers between two values, whole ones on request: `ticks(0, 1, 4)` is [0, 0.25, 0.5, 0.75, 1]. */
export function ticks(low, high, most, isWhole = false) {
  const rough = Math.max((high - low) / Math.max(1, most), isWhole ? 1 : 0);
  const power = 10 ** Math.floor(Math.log10(rough));
  const factors = isWhole ? [1, 2, 5, 10] : [1, 2, 2.5, 5, 10];
  const step = power * (factors.find((factor) => factor * power >= rough * 0.999) ?? 10);
  const first = Math.ceil(low / step - 1e-9);
  const last = Math.floor(high / step + 1e-9);
  return Array.from({ length: Math.max(0, last - first + 1) }, (_, i) => Number(((first + i) * step).toPrecision(12)));
}

function drawAxes(context, box, area, { x0, x1, y0, y1, wholeX }) {
  context.font = FONT;
  context.fillStyle = color("--ink-3");
  context.strokeStyle = color("--grid");
  context.lineWidth = 1;
  context.textAlign = "right";
  context.textBaseline = "middle";
  for (const y of ticks(y0, y1, Math.max(2, (box.bottom - box.top) / 34))) {
    const at = Math.round(area.fromY(y)) + 0.5;
    context.beginPath();
    context.moveTo(box.left, at);
    context.lineTo(box.right, at);
    context.stroke();
    context.fillText(number(y), box.left - 8, at);
  }
  context.textAlign = "center";
  context.textBaseline = "top";
  for (const x of ticks(x0, x1, Math.max(2, (box.right - box.left) / 70), wholeX)) {
    context.fillText(number(x), area.fromX(x), box.bottom + 8);
  }
}

/** Where a line has many more points than pixels, one column of pixels is drawn by its first, lowest, highest and last. */
function path(context, xs, ys, area) {
  const step = Math.floor(xs.length / 4000);
  context.beginPath();
  if (step < 2) {
    xs.forEach((x, i) => context.lineTo(area.fromX(x), area.fromY(ys[i])));
    return;
  }
  for (let from = 0; from < xs.length; from += step) {
    const to = Math.min(xs.length, from + step);
    let [low, high] = [from, from];
    for (let i = from; i < to; i++) {
      if (ys[i] < ys[low]) low = i;
      if (ys[i] > ys[high]) high = i;
    }
    for (const i of [from, Math.min(low, high), Math.max(low, high), to - 1]) {
      context.lineTo(area.fromX(xs[i]), area.fromY(ys[i]));
    }
  }
}

function drawBand(context, line, area) {
  if (!line.low) return;
  context.beginPath();
  line.x.forEach((x, i) => context.lineTo(area.fromX(x), area.fromY(line.high[i])));
  for (let i = line.x.length - 1; i >= 0; i--) context.lineTo(area.fromX(line.x[i]), area.fromY(line.low[i]));
  context.closePath();
  context.globalAlpha = 0.16;
  context.fillStyle = color(line.color);
  context.fill();
  context.globalAlpha = 1;
}

function drawRaw(context, line, area) {
  if (!line.raw) return;
  path(context, line.x, line.raw, area);
  context.globalAlpha = 0.32;
  context.lineWidth = 1;
  context.strokeStyle = color(line.color);
  context.stroke();
  context.globalAlpha = 1;
}

function drawLine(context, line, area) {
  context.strokeStyle = context.fillStyle = color(line.color);
  context.lineWidth = 1.75;
  context.lineJoin = context.lineCap = "round";
  if (!line.pointsOnly) {
    path(context, line.x, line.y, area);
    context.stroke();
  }
  if (line.points || line.x.length === 1) {
    line.x.forEach((x, i) => dot(context, area.fromX(x), area.fromY(line.y[i]), 3));
  }
}

function dot(context, x, y, radius) {
  context.beginPath();
  context.arc(x, y, radius, 0, 2 * Math.PI);
  context.fill();
}

function drawMark(context, mark, area, box) {
  const x = area.fromX(mark.x);
  if (x < box.left - 1 || x > box.right + 1) return;
  context.fillStyle = color("--warning");
  context.beginPath();
  context.moveTo(x, box.bottom - 7);
  context.lineTo(x - 5, box.bottom + 2);
  context.lineTo(x + 5, box.bottom + 2);
  context.closePath();
  context.fill();
}

function drawCursor(context, lines, cursor, area, box) {
  const at = Math.round(area.fromX(cursor)) + 0.5;
  if (at < box.left - 1 || at > box.right + 1) return;
  context.strokeStyle = color("--ink-3");
  context.setLineDash([3, 3]);
  context.lineWidth = 1;
  context.beginPath();
  context.moveTo(at, box.top);
  context.lineTo(at, box.bottom);
  context.stroke();
  context.setLineDash([]);
  for (const line of lines) {
    const i = nearest(line.x, cursor);
    if (line.x[i] !== cursor) continue;
    context.fillStyle = color("--surface");
    dot(context, area.fromX(line.x[i]), area.fromY(line.y[i]), 5);
    context.fillStyle = color(line.color);
    dot(context, area.fromX(line.x[i]), area.fromY(line.y[i]), 3.5);
  }
}
