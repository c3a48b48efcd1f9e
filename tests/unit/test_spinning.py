"""OpenMP's threads sleep soon when they wait for each other, unless the user has chosen; the benchmark of it."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import agent_r1
from benchmarks.speed import busy

ROOT = Path(__file__).parents[2]


def test_the_spin_count_is_set_unless_the_user_has_chosen_how_threads_wait() -> None:
    for chosen in ({}, {"GOMP_SPINCOUNT": "7"}, {"OMP_WAIT_POLICY": "active"}):
        environment = dict(chosen)
        agent_r1._limit_spinning(environment)
        assert environment == (chosen or {"GOMP_SPINCOUNT": "10000"})


def test_openmp_reads_the_spin_count_when_agent_r1_was_imported_first() -> None:
    spec = importlib.util.find_spec("torch")
    assert spec is not None
    libraries = [
        file for place in spec.submodule_search_locations or () for file in Path(place).glob("lib/libgomp*.so*")
    ]
    if not libraries:
        pytest.skip("this torch does not bring GNU OpenMP")
    variables = {name: value for name, value in os.environ.items() if name not in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")}
    result = subprocess.run(
        [sys.executable, "-c", f"import agent_r1.cli, ctypes; ctypes.CDLL({str(libraries[0])!r})"],
        env={**variables, "PYTHONPATH": str(ROOT), "OMP_DISPLAY_ENV": "VERBOSE"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "GOMP_SPINCOUNT = '10000'" in result.stderr


def test_busy_processes_run_within_the_block_and_not_after_it() -> None:
    with busy.busy_processes(2) as processes:
        assert all(process.poll() is None for process in processes)
    assert all(process.returncode is not None for process in processes)


def test_the_benchmark_reads_the_steps_of_a_run(tmp_path: Path) -> None:
    metrics = tmp_path / "metrics.jsonl"
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        watched = busy.Training(process, metrics)
        metrics.write_text(json.dumps({"time/step": 3.0, "time/rollout": 2.0, "time/update": 1.0}) + "\n{")
        step = watched.next_step()
        assert {name: step[name] for name in ("step", "rollout", "update")} == {
            "step": 3.0,
            "rollout": 2.0,
            "update": 1.0,
        }
        process.communicate(b"\n")
        with pytest.raises(SystemExit, match="training ended with exit code 0"):
            watched.next_step()
