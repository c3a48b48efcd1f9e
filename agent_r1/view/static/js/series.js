// Numbers behind the curves: smoothing, seeds as one band, panels for metric names. No drawing here.

/** An exponential mean that weighs its start fairly; `amount` from 0 (none) to 0.99. Gaps stay gaps. */
export function smooth(values, amount) {
  if (!(amount > 0)) return values;
  let mean = 0;
  let weight = 0;
  return values.map((value) => {
    if (value === null || !Number.isFinite(value)) return null;
    mean = amount * mean + (1 - amount) * value;
    weight = amount * weight + (1 - amount);
    return mean / weight;
  });
}

/** Points without gaps: `{x, y}` where both are numbers. */
export function dense(x, y) {
  const points = { x: [], y: [] };
  for (let i = 0; i < x.length; i++) {
    if (x[i] === null || y[i] === null || y[i] === undefined || !Number.isFinite(x[i]) || !Number.isFinite(y[i])) continue;
    points.x.push(x[i]);
    points.y.push(y[i]);
  }
  return points;
}

/** One line of a metric: its points, smoothed, with the raw ones behind it. */
export function lineOf(metrics, key, axis, amount) {
  const part = metrics.series?.[key] ? metrics : metrics.eval;
  const values = part?.series?.[key];
  if (!values) return null;
  const isEvaluation = part === metrics.eval;
  const raw = dense(part[axis] ?? part.steps, values);
  const steps = dense(part.steps, values).x;
  if (!raw.x.length) return null;
  const y = isEvaluation ? raw.y : smooth(raw.y, amount);
  return { x: raw.x, y, raw: y === raw.y ? null : raw.y, steps, points: isEvaluation };
}

/**
 * Several seeds as one line with a band. By step, a value is averaged over the seeds that have the step; by minutes, over
 * seeds interpolated at the times of the first one, as far as all of them reach.
 */
export function bandOf(lines, kind) {
  if (lines.length < 2) return lines[0] ?? null;
  const sameSteps = lines.every((line) => line.x === line.steps || line.x.every((x, i) => x === line.steps[i]));
  const columns = sameSteps ? bySteps(lines) : byTimes(lines);
  const band = { x: [], y: [], low: [], high: [], steps: [], raw: null, points: lines[0].points, seeds: lines.length };
  for (const [x, values] of columns) {
    const mean = values.reduce((sum, value) => sum + value, 0) / values.length;
    const spread = Math.sqrt(values.reduce((sum, value) => sum + (value - mean) ** 2, 0) / values.length);
    band.x.push(x);
    band.steps.push(x);
    band.y.push(mean);
    band.low.push(kind === "std" ? mean - spread : Math.min(...values));
    band.high.push(kind === "std" ? mean + spread : Math.max(...values));
  }
  return band;
}

function bySteps(lines) {
  const columns = new Map();
  for (const line of lines) {
    line.x.forEach((x, i) => {
      if (!columns.has(x)) columns.set(x, []);
      columns.get(x).push(line.y[i]);
    });
  }
  return [...columns].sort((a, b) => a[0] - b[0]);
}

function byTimes(lines) {
  const from = Math.max(...lines.map((line) => line.x[0]));
  const to = Math.min(...lines.map((line) => line.x.at(-1)));
  return lines[0].x
    .filter((x) => x >= from && x <= to)
    .map((x) => [x, lines.map((line) => interpolate(line, x))]);
}

function interpolate(line, x) {
  const i = nearestBelow(line.x, x);
  if (i >= line.x.length - 1) return line.y.at(-1);
  const part = (x - line.x[i]) / (line.x[i + 1] - line.x[i] || 1);
  return line.y[i] + part * (line.y[i + 1] - line.y[i]);
}

/** The last index whose value is at most `x`, or 0; values rise. */
export function nearestBelow(values, x) {
  let low = 0;
  let high = values.length - 1;
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (values[middle] <= x) low = middle;
    else high = middle - 1;
  }
  return low;
}

/** The index whose value is nearest to `x`. */
export function nearest(values, x) {
  const i = nearestBelow(values, x);
  return i + 1 < values.length && values[i + 1] - x < x - values[i] ? i + 1 : i;
}

const FIRST_PANELS = [
  "reward/success", "reward/outcome", /^eval\/all\/(greedy|mean)$/, "reward/process", "episode/tool_calls", "episode/steps",
  "episode/action_tokens", "policy/entropy", "policy/approx_kl", "critic/explained_variance", "policy/gradient_norm",
  "step/parse_errors", "error/failed_rollouts", "perf/tokens_per_second",
];

/** The panels shown without a search, in the order of interest. */
export function firstPanels(keys) {
  const chosen = FIRST_PANELS.flatMap((wanted) => keys.filter((key) => (wanted.test ? wanted.test(key) : wanted === key)));
  return chosen.length ? [...new Set(chosen)] : keys.slice(0, 9);
}

/** The keys that contain every word of a search. */
export function searchKeys(keys, search) {
  const words = search.toLowerCase().split(/\s+/).filter(Boolean);
  return keys.filter((key) => words.every((word) => key.toLowerCase().includes(word)));
}

/** Keys by what stands before their first slash. */
export function byPrefix(keys) {
  const groups = new Map();
  for (const key of keys) {
    const prefix = key.includes("/") ? key.split("/")[0] : "other";
    if (!groups.has(prefix)) groups.set(prefix, []);
    groups.get(prefix).push(key);
  }
  return groups;
}

/** Runs that differ only in seed and name, together: a list of lists, in the order given. */
export function seedFamilies(runs) {
  return [...Map.groupBy(runs, (run) => run.family ?? run.id).values()];
}
