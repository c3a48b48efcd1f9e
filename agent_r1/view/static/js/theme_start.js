// Runs before the first paint, so that a remembered theme does not flash. Everything else about themes is in theme.js.
try {
  const remembered = localStorage.getItem("agent-r1-theme");
  if (remembered === "dark" || remembered === "light") document.documentElement.dataset.theme = remembered;
} catch {
  // Storage may be closed to pages opened from a file; the system's theme holds.
}
