// The metric series of the runs that are shown, asked for once and again when a run has grown.

export function createMetricsStore(source) {
  const loaded = new Map(); // run id -> {data, keys: Set, version}

  /** Loads these keys of one run unless they are there and the run has not changed since. */
  async function load(run, keys) {
    const known = loaded.get(run.id);
    const version = `${run.steps}/${run.updated}/${run.state}`;
    const own = keys.filter((key) => run.metric_names.includes(key));
    if (known && known.version === version && own.every((key) => known.keys.has(key))) return;
    const wanted = new Set([...(known?.keys ?? []), ...own]);
    const data = await source.metrics(run.id, [...wanted]);
    loaded.set(run.id, { data, keys: wanted, version });
  }

  return {
    metricsOf: (run) => loaded.get(run.id)?.data ?? null,
    load: (runs, keys) => Promise.all(runs.map((run) => load(run, keys))),
  };
}
