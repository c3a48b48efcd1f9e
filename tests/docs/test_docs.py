"""What docs/algorithms.md says, held against the code: its example runs, its presets and names are all there are."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from agent_r1.algorithms import aggregations, corrections, kl_estimators, policy_losses
from agent_r1.registry import Registry
from agent_r1.rewards import NORMALISATIONS
from tests.helpers.forks import run_python
from tests.helpers.tiny_runs import RECIPE, tiny_overrides
from tests.integration.test_learning import PRESETS

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "algorithms.md").read_text()


@pytest.mark.whole
def test_the_examples_of_ones_own_group_plan_estimator_and_loss_train(tmp_path: Path, model_folder: Path) -> None:
    recipe = tmp_path / "recipes" / "quickstart"
    shutil.copytree(RECIPE, recipe)
    plan, parts = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
    (recipe / "shapes.py").write_text(plan)
    (recipe / "mine.py").write_text(parts)
    [group_plan] = re.findall(r"`(algorithm\.group_plan=\w+:\w+)`", TEXT)
    [command] = re.findall(r"agent-r1 (train quickstart imports=.*)", TEXT)
    small = [*tiny_overrides(tmp_path, model_folder)[1:], "trainer.steps=2", group_plan]
    result = run_python("-m", "agent_r1.cli", *command.split(), *small, cwd=tmp_path)
    assert result.returncode == 0, result.stdout + result.stderr
    last = json.loads((tmp_path / "tiny" / "metrics.jsonl").read_text().splitlines()[-1])
    assert (last["step"], last["loss/updates"]) == (2, 1.0)


def test_every_preset_has_a_section_and_every_section_a_preset() -> None:
    assert sorted(re.findall(r"^### `(\w+)`", TEXT, re.MULTILINE)) == PRESETS


def test_every_part_is_named() -> None:
    registries: list[Registry[Any]] = [aggregations, policy_losses, corrections, kl_estimators]
    ours = [
        name
        for registry in registries
        for name in registry.names()
        # Tests register names of their own; a `+` is a suffix.
        if registry.get(name).__module__.startswith("agent_r1.") and not name.endswith("+")
    ]
    assert not [name for name in (*ours, *NORMALISATIONS) if f"`{name}`" not in TEXT]


def test_every_file_it_links_to_exists() -> None:
    links = re.findall(r"\]\(\.\./([^)]+)\)", TEXT)
    assert links
    assert not [link for link in links if not (ROOT / link).is_file()]


def test_the_table_of_results_has_every_preset() -> None:
    table = TEXT.partition("<!-- results: begin -->")[2].partition("<!-- results: end -->")[0]
    assert not [preset for preset in PRESETS if f"| `{preset}` |" not in table]
