"""A real notebook: the cells of docs/notebooks.md, whose output is neat."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.helpers.notebooks import displays_of, run_cells, text_of
from tests.helpers.optional import needs

needs("ipykernel", reason="the extra `notebook` is not installed")
needs("nbclient", reason="nbclient is not installed")
pytestmark = pytest.mark.whole

PAGE = (Path(__file__).parents[2] / "docs" / "notebooks.md").read_text()
CELLS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
QUIET = 'agent_r1.train(**task, overrides={"run.name": "quiet", "trainer.steps": 1}, quiet=True).steps'


def test_every_cell_of_the_page_runs_and_its_output_is_neat(tmp_path: Path, model_folder: Path) -> None:
    small = f"""
import asyncio
asyncio.get_running_loop()  # a notebook has one
task["model"] = "{model_folder}"
task["reward"] = lambda task, episode: float(len(set(episode.final_text)))
task["reward"].__name__ = "variety"  # a random model never answers
limits = {{"rollout.max_steps": 2, "rollout.max_tokens": 8, "rollout.group_size": 2}}
train = agent_r1.train
agent_r1.train = lambda *, overrides, **named: train(**{{**named, "overrides": {{**overrides, **limits}}}})
"""
    first, *others = CELLS
    _, _, tool, check, train, evaluate, quiet = run_cells([first, small, *others, QUIET], tmp_path)

    assert tool[-1]["data"]["text/plain"] == "'4'"
    assert "configuration and data: 12 rows to train on, 4 held out" in text_of(check)
    printed = text_of(train)
    assert re.search(r"(?s)step 1/2  reward.*step 2/2  reward.*held-out tasks.*summary: runs/notebook/summary", printed)
    for outputs in (tool, check, train, evaluate, quiet):
        assert "\x1b" not in text_of(outputs)
        assert "ipywidgets" not in text_of(outputs)
        # Each bar was shown in one place, and is gone; nothing else is displayed.
        assert {data["text/html"] for data in displays_of(outputs)} <= {""}
    assert displays_of(check)
    assert displays_of(train)
    assert displays_of(evaluate)
    assert evaluate[-1]["data"]["text/plain"] == "4.0"
    assert (text_of(quiet), displays_of(quiet)) == ("", [])
    assert quiet[-1]["data"]["text/plain"] == "1"


def test_bars_are_shown_in_place_while_work_is_going_on(tmp_path: Path) -> None:
    cell = """
from agent_r1.console import RunConsole
console = RunConsole()
with console.progress("training", 3) as outer, console.progress("<b>rollout</b>", 2) as inner:
    inner.advance("one")
    console.info("a line")
    shown = console._bars._content()
shown
"""
    [outputs] = run_cells([cell], tmp_path)
    assert text_of(outputs) == "a line\n"
    content = outputs[-1]["data"]["text/plain"]
    assert "training 0/3" in content
    assert '<progress value="1" max="2"></progress> &lt;b&gt;rollout&lt;/b&gt; 1/2 one' in content
    assert [data["text/html"] for data in displays_of(outputs)] == [""]
