// Where data comes from: the server of `agent-r1 view`, or a page that `agent-r1 view --export` wrote. Both answer alike;
// docs/view.md describes the answers.

import { differences, filterRows, groupOf, taskOf } from "./embedded_queries.js";

const RETRY = 3000;

/** The source of this page. */
export function openSource() {
  const embedded = document.getElementById("embedded-data");
  return embedded ? new EmbeddedSource(JSON.parse(embedded.textContent)) : new ServerSource();
}

class ServerSource {
  runs() {
    return get("/api/runs");
  }

  /** Series of some metrics. */
  metrics(run, keys) {
    return get(`${runPath(run)}/metrics`, { keys: keys.join(",") });
  }

  config(run) {
    return get(`${runPath(run)}/config`);
  }

  differences(runs) {
    return get("/api/differences", { runs: runs.join(",") });
  }

  trajectories(run, query) {
    return get(`${runPath(run)}/trajectories`, query);
  }

  trajectory(run, key) {
    return get(`${runPath(run)}/trajectories/${encodeURIComponent(key)}`);
  }

  /** A part of a text that the answer of `trajectory` has cut: `{text, offset, total}`, in code points. */
  text(run, key, query) {
    return get(`${runPath(run)}/trajectories/${encodeURIComponent(key)}/text`, query);
  }

  /** The address of a picture. */
  picture(run, hash) {
    return `${runPath(run)}/images/${hash}`;
  }

  group(run, kind, step, group) {
    return get(`${runPath(run)}/groups/${encodeURIComponent(step)}/${encodeURIComponent(group)}`, { kind });
  }

  task(run, task) {
    return get(`${runPath(run)}/tasks/${encodeURIComponent(task)}`);
  }

  /**
   * Calls `onRuns(runs)` with the runs that changed. One event stream serves all of them, and only while the window can be
   * seen: browsers allow six connections per server over all windows.
   */
  watch({ onRuns, onState }) {
    let events = null;
    const follow = () => {
      if (document.hidden) {
        events?.close();
        events = null;
      } else if (!events || events.readyState === EventSource.CLOSED) {
        events = new EventSource("/api/live");
        events.onopen = () => onState("connected");
        events.onerror = () => {
          onState("lost");
          if (events?.readyState === EventSource.CLOSED) setTimeout(follow, RETRY);
        };
        events.onmessage = (event) => onRuns(JSON.parse(event.data).runs);
      }
    };
    document.addEventListener("visibilitychange", follow);
    addEventListener("pagehide", () => events?.close());
    follow();
  }
}

function runPath(run) {
  return `/api/runs/${encodeURIComponent(run)}`;
}

async function get(path, query = {}) {
  const search = new URLSearchParams(query).toString();
  let answer;
  try {
    answer = await fetch(search ? `${path}?${search}` : path, { headers: { accept: "application/json" } });
  } catch {
    throw new Error("The server does not answer. Is `agent-r1 view` still running?");
  }
  const body = await answer.json().catch(() => ({}));
  if (!answer.ok) throw new Error(body.error ?? `The server answered ${answer.status} to ${path}.`);
  return body;
}

class EmbeddedSource {
  constructor(data) {
    this.data = data;
  }

  async runs() {
    return { runs: this.data.runs };
  }

  async metrics(run) {
    return this.data.metrics[run] ?? missing("run", run);
  }

  async config(run) {
    return this.data.config[run] ?? missing("run", run);
  }

  async differences(runs) {
    return differences(runs, this.data.config);
  }

  async trajectories(run, query) {
    return filterRows(this.#of(run).rows, query);
  }

  async trajectory(run, key) {
    return this.#of(run).records[key] ?? missing("trajectory", key);
  }

  async group(run, kind, step, group) {
    return groupOf(this.#of(run), { kind, step, group }) ?? missing("group", group);
  }

  async task(run, task) {
    return taskOf(this.#of(run), task) ?? missing("task", task);
  }

  picture(run, hash) {
    return this.data.pictures?.[run]?.[hash] ?? null;
  }

  watch() {}

  #of(run) {
    return this.data.trajectories[run] ?? missing("run", run);
  }
}

function missing(what, name) {
  throw new Error(`This page was exported without the ${what} "${name}". To see it, open the run with \`agent-r1 view\`.`);
}
