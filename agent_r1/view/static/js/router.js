// Every view has an address behind the `#`: a path for what is shown, a query for how. The back button walks over both.

const ROUTES = {
  runs: [],
  run: ["run", ":run"],
  config: ["run", ":run", "config"],
  trajectories: ["run", ":run", "trajectories"],
  trajectory: ["run", ":run", "trajectory", ":key"],
  group: ["run", ":run", "group", ":kind", ":step", ":group"],
  task: ["run", ":run", "task", ":task"],
};

/** Reads an address: `{name, params, query}`; name is null when no view has it. */
export function parseRoute(hash) {
  const [path, search = ""] = split(hash.replace(/^#\/?/, ""));
  const parts = path.split("/").filter(Boolean).map(decode);
  const query = new URLSearchParams(search);
  for (const [name, pattern] of Object.entries(ROUTES)) {
    if (pattern.length !== parts.length) continue;
    const params = {};
    const matches = pattern.every((piece, i) => {
      if (!piece.startsWith(":")) return piece === parts[i];
      params[piece.slice(1)] = parts[i];
      return true;
    });
    if (matches) return { name, params, query };
  }
  return { name: null, params: {}, query };
}

function split(address) {
  const at = address.indexOf("?");
  return at < 0 ? [address] : [address.slice(0, at), address.slice(at + 1)];
}

function decode(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

/** The address of a view: `link("task", { run: "a", task: "7" })` is "#/run/a/task/7". Empty query values are left out. */
export function link(name, params = {}, query = {}) {
  const path = ROUTES[name].map((piece) => (piece.startsWith(":") ? encodeURIComponent(params[piece.slice(1)]) : piece));
  const search = new URLSearchParams();
  const entries = query instanceof URLSearchParams ? query : Object.entries(query);
  for (const [key, value] of entries) {
    if (value !== "" && value !== null && value !== undefined && value !== false) search.set(key, String(value));
  }
  const text = search.toString();
  return `#/${path.join("/")}${text ? `?${text}` : ""}`;
}

/** Whether the next view is opened by a link or a key, and starts at its top, or by Back, and returns to its old place. */
export const navigation = { isForward: true };

/** Opens an address. With `replace` it takes the place of the current one, so that Back skips what was there. */
export function go(address, { replace = false } = {}) {
  if (replace) {
    history.replaceState(null, "", address);
    dispatchEvent(new HashChangeEvent("hashchange"));
  } else {
    navigation.isForward = true;
    location.hash = address;
  }
}
