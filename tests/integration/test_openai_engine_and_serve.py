"""`agent-r1 eval engine=openai` against a real `agent-r1 serve`: what the local engine samples, through the API."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import agent_r1
from tests.helpers.tiny_runs import tiny_overrides

pytest.importorskip("httpx", reason="the engine needs the extra 'servers'")
pytest.importorskip("uvicorn", reason="the server needs the extra 'serve'")

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.slow


@contextmanager
def serving(model: Path, key: str) -> Iterator[str]:
    """The address of a server in a process of its own."""
    process = subprocess.Popen(
        [sys.executable, "-m", "agent_r1.cli", "serve", str(model), "--port", "0"],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), "AGENT_R1_SERVE_KEY": key},
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    try:
        for line in process.stdout:
            if found := re.search(r"(http://[\d.]+:\d+)/v1", line):
                yield found[1]
                return
        pytest.fail(f"the server did not start: {process.stderr.read()}")
    finally:
        process.kill()
        process.communicate()


def command(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "agent_r1.cli", *arguments],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), **variables},
        text=True,
        capture_output=True,
        check=False,
    )


def played(file: Path) -> list[list[str]]:
    """What the model said in each greedy episode."""
    return [[step.action.text for step in trajectory.steps] for trajectory in agent_r1.load_trajectories(file)]


def test_the_served_model_says_what_the_local_one_says_and_a_wrong_key_is_one_line(
    model_folder: Path, tmp_path: Path
) -> None:
    recipe, *overrides = tiny_overrides(tmp_path, model_folder, "rollout.max_tokens=24")
    figures: dict[str, Any] = {}
    with serving(model_folder, "secret") as url:
        remote = ["engine=openai", f"engine.servers.urls=[{url}]", "engine.servers.key_env=SHOP_KEY"]
        for name, extra in (("there", remote), ("here", [])):
            files = ["--json", str(tmp_path / f"{name}.json"), "--trajectories", str(tmp_path / f"{name}.jsonl")]
            done = command("eval", recipe, *overrides, *extra, *files, SHOP_KEY="secret")
            assert done.returncode == 0, done.stderr
            figures[name] = json.loads((tmp_path / f"{name}.json").read_text())
        refused = command("eval", recipe, *overrides, *remote, SHOP_KEY="wrong")
        assert refused.returncode == 2
        assert re.fullmatch(r"error: .* refused the request with 401: .*\n", refused.stderr)
    assert played(tmp_path / "there.jsonl") == played(tmp_path / "here.jsonl")
    assert figures["there"]["solved"] == figures["here"]["solved"]
    there, here = figures["there"]["metrics"], figures["here"]["metrics"]
    assert there["eval/all/response_tokens"] == here["eval/all/response_tokens"]
    assert there["eval/all/prompt_tokens"] > 0
