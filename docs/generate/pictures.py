"""The pictures of docs/concepts.md, drawn here and kept in docs/pictures.

    python -m docs.generate.pictures

Each has a background of its own, so that it can be read on a dark and on a light page.
"""

from __future__ import annotations

from html import escape
from pathlib import Path

FOLDER = Path(__file__).parents[1] / "pictures"

INK, SOFT, LINE, PAPER = "#1f2937", "#5b6472", "#9aa4b2", "#fbfbfd"
BLUE, GREEN, ORANGE, RED, GREY = "#dbe7ff", "#d9f2e3", "#ffe5cf", "#ffd9d9", "#eceff4"
FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"


class Picture:
    """An SVG picture made of boxes, texts and arrows."""

    def __init__(self, width: int, height: int, title: str) -> None:
        self.size, self.title = (width, height), title
        self.parts: list[str] = []

    def box(self, x: float, y: float, w: float, h: float, fill: str, lines: str = "", *, dashed: bool = False) -> None:
        """A rounded box with centred lines of text; the first line is strong when there are several."""
        dash = ' stroke-dasharray="5 4"' if dashed else ""
        self.parts.append(
            f'<rect x="{x}" y="{y}" width="{w}" height="{h}" rx="8" fill="{fill}" stroke="{LINE}"{dash}/>'
        )
        texts = lines.split("\n") if lines else []
        top = y + h / 2 - (len(texts) - 1) * 9
        for number, line in enumerate(texts):
            strong = number == 0 and len(texts) > 1
            self.text(x + w / 2, top + number * 18 + 5, line, anchor="middle", strong=strong, soft=number > 0)

    def text(
        self, x: float, y: float, line: str, *, anchor: str = "start", strong: bool = False, soft: bool = False
    ) -> None:
        """One line of text."""
        weight, fill, size = ("600" if strong else "400"), (SOFT if soft else INK), (13 if soft else 14)
        self.parts.append(
            f'<text x="{x}" y="{y}" text-anchor="{anchor}" font-size="{size}" font-weight="{weight}" '
            f'fill="{fill}">{escape(line)}</text>'
        )

    def arrow(self, *points: tuple[float, float], dashed: bool = False) -> None:
        """A line through the points, with a head at its end."""
        path = " ".join(f"{x},{y}" for x, y in points)
        dash = ' stroke-dasharray="5 4"' if dashed else ""
        self.parts.append(
            f'<polyline points="{path}" fill="none" stroke="{SOFT}" stroke-width="1.6" marker-end="url(#head)"{dash}/>'
        )

    def svg(self) -> str:
        """The file."""
        width, height = self.size
        head = (
            '<defs><marker id="head" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="7" markerHeight="7" '
            f'orient="auto-start-reverse"><path d="M0 0L10 5L0 10z" fill="{SOFT}"/></marker></defs>'
        )
        return "\n".join(
            [
                f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
                f'height="{height}" role="img" font-family="{FONT}">',
                f"<title>{escape(self.title)}</title>",
                head,
                f'<rect width="{width}" height="{height}" rx="10" fill="{PAPER}"/>',
                *self.parts,
                "</svg>\n",
            ]
        )


def steps() -> Picture:
    """An episode as a Markov decision process: every model call is one step."""
    picture = Picture(860, 330, "An episode as a Markov decision process over model calls")
    titles = ("step 1", "step 2", "step 3: the answer")
    prompts = ("question, tools", "+ call, result 4", "+ call, result 20")
    actions = ("calls price(tea)", "calls calculate(5*4)", "writes 20")
    rewards = ("process reward 0.1", "process reward 0", "outcome reward 1")
    for number in range(3):
        x = 24 + number * 275
        picture.text(x + 115, 38, titles[number], anchor="middle", strong=True)
        picture.box(x, 52, 232, 52, BLUE, f"observation = model input\n{prompts[number]}")
        picture.arrow((x + 110, 104), (x + 110, 130))
        picture.text(x + 118, 122, "policy", soft=True)
        picture.box(x, 132, 232, 52, ORANGE, f"action = sampled tokens\n{actions[number]}")
        picture.arrow((x + 110, 184), (x + 110, 214))
        picture.text(x + 118, 204, "environment", soft=True)
        picture.box(x, 216, 232, 34, GREEN, rewards[number])
        if number < 2:
            picture.arrow((x + 232, 158), (x + 252, 158), (x + 252, 78), (x + 273, 78))
    picture.text(30, 284, "Blue: the exact input ids of the step, never trained.")
    picture.text(
        30,
        306,
        "Orange: the exact sampled ids with their log-probs. They alone carry loss, with the credit of their step.",
    )
    return picture


def layers() -> Picture:
    """What is replaced on its own."""
    picture = Picture(860, 432, "The layers of Agent-R1")
    picture.text(30, 36, "you write or choose", strong=True)
    picture.text(500, 36, "Agent-R1 runs", strong=True)
    own = [
        ("data", "rows: prompt, ground truth, names"),
        ("tools", "typed functions, search, Python, MCP"),
        ("environment", "reset and step: the whole next input"),
        ("flow", "how an episode runs; most tasks need none"),
        ("reward", "a function of task and episode"),
        ("algorithm", "a preset, or parts of your own"),
    ]
    for number, (name, what) in enumerate(own):
        picture.box(30, 52 + number * 58, 330, 48, BLUE if number < 5 else ORANGE, f"{name}\n{what}")
    machine = [
        ("rollout", "groups, retries, deadlines", GREEN),
        ("engine", "token ids in; ids and log-probs out", GREEN),
        ("credit", "advantages per step or token", ORANGE),
        ("learner", "token tries, critics, guarded updates", ORANGE),
        ("run folder", "metrics, trajectories, checkpoints, model", GREY),
    ]
    for number, (name, what, fill) in enumerate(machine):
        picture.box(500, 66 + number * 68, 330, 50, fill, f"{name}\n{what}")
        if number < 4:
            picture.arrow((665, 116 + number * 68), (665, 133 + number * 68))
    for number in range(5):
        picture.arrow((360, 76 + number * 58), (430, 76 + number * 58), (430, 91), (498, 91))
    picture.arrow((360, 366), (455, 366), (455, 227), (498, 227))
    picture.arrow((830, 295), (846, 295), (846, 160), (832, 160), dashed=True)
    picture.text(500, 412, "dashed: new weights", soft=True)
    return picture


def trie() -> Picture:
    """Steps that share a prefix share its computation."""
    picture = Picture(860, 390, "Four prompts with shared prefixes as rows and as one trie")
    picture.text(30, 36, "one row per step", strong=True)
    rows = [("task", "a"), ("task", "a", "result", "b"), ("task", "c"), ("task", "c", "result", "d")]
    width = {"task": 110, "a": 44, "b": 44, "c": 44, "d": 44, "result": 62}
    for number, row in enumerate(rows):
        x = 30
        for part in row:
            picture.box(x, 52 + number * 44, width[part], 34, ORANGE if len(part) == 1 else BLUE, part)
            x += width[part] + 4
    picture.text(30, 250, "The task is computed four times, actions a and c twice.", soft=True)
    picture.text(470, 36, "one trie", strong=True)
    picture.box(470, 118, 110, 34, BLUE, "task")
    for top, names in ((72, ("a", "result", "b")), (164, ("c", "result", "d"))):
        x = 612
        picture.arrow((580, 135), (596, 135), (596, top + 17), (610, top + 17))
        for part in names:
            picture.box(x, top, width[part], 34, ORANGE if len(part) == 1 else BLUE, part)
            x += width[part] + 14
            if part != names[-1]:
                picture.arrow((x - 14, top + 17), (x - 2, top + 17))
    picture.text(470, 250, "Everything is computed once.", soft=True)
    picture.text(30, 292, "packed into one row, depth first:", strong=True)
    x, order = 30, ("task", "a", "result", "b", "c", "result", "d")
    for part in order:
        picture.box(x, 304, width[part], 34, ORANGE if len(part) == 1 else BLUE, part)
        x += width[part] + 4
    picture.text(
        30,
        366,
        "Token j is visible to token i exactly when j ≤ i < end[j], the end of j's subtree: c does not see a.",
        soft=True,
    )
    return picture


def failures() -> Picture:
    """Where a failure is handled, from the nearest place outwards."""
    picture = Picture(860, 400, "What a failure reaches")
    rings = [
        (20, 20, 820, 360, GREY, "the run: stops with one error, and a checkpoint of the last finished step is kept"),
        (
            60,
            66,
            740,
            268,
            PAPER,
            "the group: with too few members left, those that failed run once more; then the group is dropped",
        ),
        (
            100,
            112,
            660,
            176,
            GREEN,
            "the rollout: retried in a fresh environment, then counted as failed and left out of the loss",
        ),
        (140, 158, 580, 84, BLUE, ""),
    ]
    for x, y, w, h, fill, text in rings:
        picture.box(x, y, w, h, fill)
        picture.text(x + 18, y + 27, text)
    picture.text(158, 190, "the tool call: raises, times out, answers too much", strong=True)
    picture.text(158, 212, "The model reads the error as the result and continues.", soft=True)
    picture.text(
        118,
        272,
        "an environment, engine or reward that raises, hangs or returns NaN; never a reward of zero",
        soft=True,
    )
    picture.text(78, 318, "more than half of the members failed", soft=True)
    picture.text(
        38, 364, "a hundred failures in a row, weights that explode, a full disk, no memory, Ctrl-C", soft=True
    )
    return picture


PICTURES = {"steps": steps, "layers": layers, "trie": trie, "failures": failures}


def main() -> None:
    """Write every picture."""
    FOLDER.mkdir(exist_ok=True)
    for name, draw in PICTURES.items():
        (FOLDER / f"{name}.svg").write_text(draw().svg(), encoding="utf-8")


if __name__ == "__main__":
    main()
