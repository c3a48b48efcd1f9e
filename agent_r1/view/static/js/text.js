// Text from models, tools and tasks is hostile. Whatever cannot be seen, or would change how its neighbours are shown, is
// written as a visible mark: control characters, escape sequences, direction marks, zero-width and tag characters.

const CONTROLS =
  "NUL SOH STX ETX EOT ENQ ACK BEL BS TAB LF VT FF CR SO SI DLE DC1 DC2 DC3 DC4 NAK SYN ETB CAN EM SUB ESC FS GS RS US".split(" ");
const NAMED = new Map([
  ...CONTROLS.map((name, code) => [code, name]),
  [0x7f, "DEL"],
  [0x061c, "ALM"], [0x180e, "MVS"], [0x200b, "ZWSP"], [0x200c, "ZWNJ"], [0x200d, "ZWJ"], [0x200e, "LRM"], [0x200f, "RLM"],
  [0x2028, "LS"], [0x2029, "PS"], [0x202a, "LRE"], [0x202b, "RLE"], [0x202c, "PDF"], [0x202d, "LRO"], [0x202e, "RLO"],
  [0x2060, "WJ"], [0x2066, "LRI"], [0x2067, "RLI"], [0x2068, "FSI"], [0x2069, "PDI"], [0xfeff, "BOM"],
]);

// A zero-width joiner or non-joiner between two visible characters (emoji, Indic scripts) is ordinary writing.
const HIDDEN =
  /\u001b\[[0-9;:?<=>]*[ -/]*[@-~]|[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060\u2066-\u206f\ufeff\ufff9-\ufffb]|[\u{e0000}-\u{e007f}]|[\ud800-\udfff]/gu;

/** The visible mark of a hidden character or escape sequence: `mark("\u0000")` is "⟨NUL⟩", `mark("\u001b[31m")` "⟨ESC⟩[31m". */
export function mark(hidden) {
  if (hidden.length > 2) return mark(hidden[0]) + hidden.slice(1);
  const code = hidden.codePointAt(0);
  return `⟨${NAMED.get(code) ?? "U+" + code.toString(16).toUpperCase().padStart(4, "0")}⟩`;
}

/** The text with every hidden character as its mark, for labels and attributes. */
export function visible(text) {
  return String(text).replace(HIDDEN, mark);
}

/** Splits text into runs of plain text and marks: `[{text, hidden}]`. */
export function pieces(text) {
  const parts = [];
  let from = 0;
  for (const match of text.matchAll(HIDDEN)) {
    if (match.index > from) parts.push({ text: text.slice(from, match.index), hidden: false });
    const last = parts.at(-1);
    // A million marks in a row are one element, not a million.
    if (last?.hidden) last.text += mark(match[0]);
    else parts.push({ text: mark(match[0]), hidden: true });
    from = match.index + match[0].length;
  }
  if (from < text.length) parts.push({ text: text.slice(from), hidden: false });
  return parts;
}

/** The first `limit` characters without cutting a surrogate pair, and the position after them. */
export function head(text, limit, from = 0) {
  let end = Math.min(text.length, from + limit);
  if (end < text.length && (text.charCodeAt(end - 1) & 0xfc00) === 0xd800) end += 1;
  return { text: text.slice(from, end), end };
}

/** One line for a table: runs of white space are one space. */
export function oneLine(text, limit = 160) {
  const start = head(String(text), limit * 4).text.replace(/\s+/g, " ").trim();
  return start.length > limit ? head(start, limit).text + "…" : start;
}
