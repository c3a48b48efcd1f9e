"""What the health monitor, the console and the reports read is what runs write, under the same names."""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path
from typing import Any

import pytest

import agent_r1
from agent_r1 import metric_names
from tests.helpers import commands
from tests.helpers.tiny_runs import tiny_overrides, write_tasks

LIBRARY = Path(agent_r1.__file__).parent
READERS = [LIBRARY / "console.py", LIBRARY / "evaluation" / "health.py", *sorted((LIBRARY / "runs").glob("*.py"))]

NAMES = {
    value
    for name, value in vars(metric_names).items()
    if name.isupper() and isinstance(value, str) and "/" in value and not name.endswith("PREFIX")
}
ONLY_ON_A_GPU = {metric_names.PEAK_GPU_GB}
OF_COMPILED_RUNS = {metric_names.COMPILE_SECONDS}
OF_A_WARM_START = {metric_names.SFT_LOSS}
METRIC = re.compile(rf"(?:{'|'.join({name.partition('/')[0] for name in NAMES})})/[a-z_/@]+")


def score_variety(task: Any, episode: Any) -> float:
    """Differs between the members of a group, whatever a random model says."""
    return float(len(set(episode.final_text)))


@pytest.mark.whole
def test_a_run_writes_every_metric_that_is_read(tmp_path: Path, model_folder: Path) -> None:
    """With a reference model and overlapping rollouts, which have metrics of their own."""
    held_out = write_tasks(tmp_path / "held_out.jsonl", count=2)
    run = tiny_overrides(tmp_path, model_folder, f"data.eval=[{held_out}]", "trainer.steps=2")
    overlap = ["rollout.max_staleness=1", "algorithm.off_policy.name=token", "algorithm.kl.coefficient=0.01"]
    commands.train(*run, *overlap, quiet=True, reward=score_variety)
    lines = (tmp_path / "tiny" / "metrics.jsonl").read_text().splitlines()
    written = {name for line in lines for name in json.loads(line)}
    assert written >= NAMES - ONLY_ON_A_GPU - OF_COMPILED_RUNS - OF_A_WARM_START


@pytest.mark.parametrize("path", READERS, ids=[path.name for path in READERS])
def test_readers_name_no_metric_of_their_own(path: Path) -> None:
    texts = [node.value for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Constant)]
    assert [text for text in texts if isinstance(text, str) and METRIC.fullmatch(text)] == []
