// The one floating read-out of the page.

const MARGIN = 12;

/** Shows nodes beside a place of the window. */
export function showTip(nodes, x, y) {
  const tip = document.getElementById("tip");
  tip.replaceChildren(...nodes);
  tip.hidden = false;
  const { width, height } = tip.getBoundingClientRect();
  const left = x + MARGIN + width > innerWidth - 8 ? x - MARGIN - width : x + MARGIN;
  const top = y + MARGIN + height > innerHeight - 8 ? y - MARGIN - height : y + MARGIN;
  tip.style.left = `${Math.max(8, Math.min(left, innerWidth - width - 8))}px`;
  tip.style.top = `${Math.max(8, top)}px`;
}

export function hideTip() {
  document.getElementById("tip").hidden = true;
}
