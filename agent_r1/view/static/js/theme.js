// Dark and light: the system's choice until the reader makes one, which is remembered.

const listeners = new Set();
const system = matchMedia("(prefers-color-scheme: dark)");

export function isDark() {
  const chosen = document.documentElement.dataset.theme;
  return chosen ? chosen === "dark" : system.matches;
}

export function toggleTheme() {
  const theme = isDark() ? "light" : "dark";
  document.documentElement.dataset.theme = theme;
  try {
    localStorage.setItem("agent-r1-theme", theme);
  } catch {
    // Without storage the choice lasts as long as the page.
  }
  announce();
}

/** Calls `listener` after each change of colors; returns a function that stops it. */
export function onThemeChange(listener) {
  listeners.add(listener);
  return () => listeners.delete(listener);
}

function announce() {
  resolved.clear();
  for (const listener of listeners) listener();
}

system.addEventListener("change", announce);

const resolved = new Map();

/** The color that a CSS variable has in the current theme, in a form that canvas understands. */
export function color(variable) {
  if (!resolved.has(variable)) {
    const probe = document.createElement("i");
    probe.style.color = `var(${variable})`;
    document.body.append(probe);
    resolved.set(variable, getComputedStyle(probe).color);
    probe.remove();
  }
  return resolved.get(variable);
}
