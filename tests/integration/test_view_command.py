"""`agent-r1 view` as a whole: the command started as a person starts it, a run followed while it trains, many rows."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest

pytest.importorskip("starlette", reason="needs the extra view")
pytest.importorskip("uvicorn", reason="needs the extra view")

from benchmarks.speed import view as benchmark
from tests.helpers.forks import forks
from tests.helpers.tiny_runs import tiny_overrides
from tests.helpers.view_server import view_server
from tests.helpers.viewed_runs import shop_run

pytestmark = pytest.mark.whole


def test_a_run_is_followed_while_it_trains(tmp_path: Path, model_folder: Path) -> None:
    overrides = tiny_overrides(tmp_path, model_folder, "tracking.record_credit=true", "trainer.steps=20")
    with view_server([tmp_path]) as server, server.events("/api/live") as events:
        training = forks().start(["agent-r1", "train", *overrides], cwd=tmp_path)
        try:
            metrics = tmp_path / "tiny" / "metrics.jsonl"
            while not (metrics.exists() and metrics.read_text().count("\n") >= 2) and training.poll() is None:
                time.sleep(0.002)
            training.send_signal(signal.SIGSTOP)  # else it may end before the page has looked once
            seen = []
            for _, _, data in events:
                [run] = [run for run in data["runs"] if run["id"] == "tiny"] or [None]
                if run is not None:
                    seen.append((run["state"], run["steps"], run["trajectories"]))
                    if run["state"] == "running" and run["steps"]:
                        training.send_signal(signal.SIGCONT)
                    if run["state"] == "finished" and run["indexed"] and run["trajectories"] == 160:
                        break
            assert training.wait(60) == 0
        finally:
            training.close()
        assert any(state == "running" and 0 < steps < 20 for state, steps, _ in seen)
        assert [steps for _, steps, _ in seen] == sorted(steps for _, steps, _ in seen)
        record = server.get("/api/runs/tiny/trajectories/2-1")
        assert record["credit"]
        assert record["tokenizer"]
        sampled = [token for token in record["steps"][0]["tokens"] if token["action"]]
        assert all(token["logprob"] <= 0 and token["text"] is not None for token in sampled)


@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGTERM])
def test_the_command_serves_until_it_is_stopped(tmp_path: Path, end: signal.Signals) -> None:
    shop_run(tmp_path / "runs" / "shop")
    command = [sys.executable, "-m", "agent_r1.cli", "view", "--folder", "runs", "--port", "0", "--no-browser"]
    server = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        line = server.stdout.readline()
        address = re.fullmatch(r"1 run at (http://127\.0\.0\.1:\d+) \(Ctrl-C ends it\)\n", line)
        assert address is not None, line
        with urllib.request.urlopen(f"{address[1]}/") as page:
            assert b"<title>Agent-R1</title>" in page.read()
        with urllib.request.urlopen(f"{address[1]}/api/runs") as answer:
            assert [run["id"] for run in json.load(answer)["runs"]] == ["shop"]
        stream = urllib.request.urlopen(f"{address[1]}/api/live")  # does not keep the command alive
        server.send_signal(end)
        _, errors = server.communicate(timeout=30)
        stream.close()
        assert "Traceback" not in errors
        assert server.returncode in (0, -end, 128 + end)
    finally:
        server.kill()
        server.communicate()


def test_the_benchmark_measures_a_small_run(tmp_path: Path) -> None:
    figures = benchmark.main(["--trajectories", "120", "--folder", str(tmp_path), "--json", str(tmp_path / "f.json")])
    assert figures["trajectories"] == 120
    assert figures["index_mb_per_cpu_second"] > 1
    assert json.loads((tmp_path / "f.json").read_text()) == figures
