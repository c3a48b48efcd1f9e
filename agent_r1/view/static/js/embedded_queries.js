// What the server answers from its index, computed from the rows of an exported page.

const SORTS = { step: "step", reward: "reward", tokens: "tokens", steps: "num_steps", calls: "tool_calls" };

/** The rows that match a query, sorted and cut to a page, with the counts of tools and stop reasons. */
export function filterRows(rows, query) {
  const wanted = new URLSearchParams(query);
  const matching = rows.filter((row) => matches(row, wanted));
  const facets = { tools: {}, stop_reasons: {} };
  for (const row of matching) {
    for (const tool of new Set(row.tools)) facets.tools[tool] = (facets.tools[tool] ?? 0) + 1;
    facets.stop_reasons[row.stop_reason] = (facets.stop_reasons[row.stop_reason] ?? 0) + 1;
  }
  const sort = wanted.get("sort") ?? "";
  const field = SORTS[sort.replace("-", "")];
  if (field) {
    const sign = sort.startsWith("-") ? -1 : 1;
    matching.sort((a, b) => sign * ((a[field] ?? -Infinity) - (b[field] ?? -Infinity)));
  }
  const offset = Number(wanted.get("offset") ?? 0);
  const limit = Number(wanted.get("limit") ?? 100);
  return { total: matching.length, rows: matching.slice(offset, offset + limit), facets, exported: rows.length };
}

function matches(row, wanted) {
  const value = (name) => wanted.get(name) || null;
  const atLeast = (name, found) => value(name) === null || (found !== null && found >= Number(value(name)));
  const atMost = (name, found) => value(name) === null || (found !== null && found <= Number(value(name)));
  const yesNo = (name, found) => value(name) === null || Boolean(found) === ["1", "true", "yes"].includes(value(name));
  return (
    (value("step") === null || row.step === Number(value("step"))) &&
    atLeast("step_min", row.step) &&
    atMost("step_max", row.step) &&
    atLeast("reward_min", row.reward) &&
    atMost("reward_max", row.reward) &&
    yesNo("success", row.success >= 1) &&
    yesNo("failed", row.failed) &&
    (value("stop_reason") === null || row.stop_reason === value("stop_reason")) &&
    (value("tool") === null || row.tools.includes(value("tool"))) &&
    (value("task") === null || String(row.task_id) === value("task")) &&
    (value("kind") === null || row.kind === value("kind")) &&
    (value("text") === null || hasWords(row.search ?? `${row.question} ${row.preview}`, value("text")))
  );
}

function hasWords(text, words) {
  const lower = text.toLowerCase();
  return words.toLowerCase().split(/\s+/).every((word) => lower.includes(word.replaceAll('"', "")));
}

/** The members of a group. */
export function groupOf({ rows, records }, { kind, step, group }) {
  const members = rows.filter((row) => row.kind === kind && row.step === Number(step) && String(row.group_id) === String(group));
  if (!members.length) return null;
  members.sort((a, b) => (a.member < 0) - (b.member < 0) || a.member - b.member);
  return {
    task_id: members[0].task_id,
    prompt: records[members[0].key]?.prompt ?? [],
    members: members.map((row) => ({ ...row, record: records[row.key] ?? { steps: [] } })),
  };
}

/** All rollouts of a task, and how each batch of them went. */
export function taskOf({ rows, records }, task) {
  const own = rows.filter((row) => String(row.task_id) === task).sort((a, b) => a.step - b.step);
  if (!own.length) return null;
  const batches = Map.groupBy(own, (row) => `${row.kind} ${row.step}`);
  const steps = [...batches.values()].map((batch) => {
    const rewards = batch.filter((row) => !row.failed && Number.isFinite(row.reward)).map((row) => row.reward);
    const mean = rewards.length ? rewards.reduce((sum, value) => sum + value, 0) / rewards.length : null;
    return {
      step: batch[0].step,
      kind: batch[0].kind,
      reward: mean,
      reward_min: rewards.length ? Math.min(...rewards) : null,
      reward_max: rewards.length ? Math.max(...rewards) : null,
    };
  });
  return { task_id: task, prompt: records[own[0].key]?.prompt ?? [], steps, rows: own };
}

/** The keys of the configurations that are not equal in all runs, each with the values of the runs that have it. */
export function differences(runs, configs) {
  const flat = runs.map((run) => configs[run]?.config ?? {});
  const keys = [...new Set(flat.flatMap(Object.keys))].sort();
  const differing = keys.filter((key) => new Set(flat.map((config) => JSON.stringify(config[key]))).size > 1);
  const valuesOf = (key) => Object.fromEntries(runs.map((run, i) => [run, flat[i][key]]).filter(([, value]) => value !== undefined));
  return { runs, differences: Object.fromEntries(differing.map((key) => [key, valuesOf(key)])) };
}
