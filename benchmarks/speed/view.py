"""The run viewer with many trajectories: how fast the index is made, and how soon and how fast pages are answered.

    python -m benchmarks.speed.view --trajectories 100000 --json view.json

Makes a run of that many trajectories (several steps with tool calls, results, token ids and log-probs) in a temporary
folder, indexes it, starts `agent-r1 view` on it as a person would, and times the answers over HTTP.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from agent_r1.files import size_in_words
from agent_r1.view import TrajectoryIndex

GROUP_SIZE = 8
GROUPS_PER_STEP = 64
MB = 1_000_000


def main(arguments: Sequence[str] | None = None) -> dict[str, Any]:
    """Measure, print and write the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trajectories", type=int, default=100_000)
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    parser.add_argument("--folder", type=Path, help="keep the run in this folder; a run that is there is used again")
    chosen = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as temporary:
        run = (chosen.folder or Path(temporary)) / "many"
        if not (run / "config.yaml").is_file():
            make_run(run, chosen.trajectories)
        figures = measure(run)
    for name, value in figures.items():
        print(f"{name:32} {value:.4g}" if isinstance(value, float) else f"{name:32} {value}")
    if chosen.json is not None:
        chosen.json.write_text(json.dumps(figures, indent=2) + "\n")
    return figures


def measure(run: Path) -> dict[str, Any]:
    """All figures of one run."""
    files = sorted((run / "trajectories").glob("*.jsonl"))
    num_bytes = sum(file.stat().st_size for file in files)
    for leftover in run.glob("view_index.sqlite*"):
        leftover.unlink()
    index = TrajectoryIndex(run)
    started, cpu_started = time.perf_counter(), time.process_time()
    index.update()
    seconds, cpu_seconds = time.perf_counter() - started, time.process_time() - cpu_started
    figures: dict[str, Any] = {
        "trajectories": index.state.trajectories,
        "size": size_in_words(num_bytes),
        "bytes_per_trajectory": num_bytes // max(1, index.state.trajectories),
        "index_seconds": seconds,
        "index_mb_per_second": num_bytes / MB / seconds,
        "index_mb_per_cpu_second": num_bytes / MB / cpu_seconds,
        "index_size": size_in_words((run / "view_index.sqlite").stat().st_size),
    }
    return figures | time_answers(run)


def time_answers(run: Path) -> dict[str, float]:
    """Seconds from the start of the command to the first page, then of single answers (the best of three)."""
    started = time.perf_counter()
    command = [sys.executable, "-m", "agent_r1.cli", "view", str(run), "--port", "0", "--no-browser"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        address = next(word for word in server.stdout.readline().split() if word.startswith("http"))
        listening = time.perf_counter()
        fetch(f"{address}/api/runs")
        listed = f"{address}/api/runs/{run.name}/trajectories?limit=100"
        page = fetch(listed)
        while not page["indexed"]:
            page = fetch(listed)
        figures = {
            "seconds_until_listening": listening - started,
            "seconds_until_first_view": time.perf_counter() - listening,
        }
        key = page["rows"][0]["key"]
        questions = {
            "runs": "/api/runs",
            "first_page": f"/api/runs/{run.name}/trajectories?limit=100",
            "last_page": f"/api/runs/{run.name}/trajectories?limit=100&offset={page['total'] - 100}",
            "by_reward": f"/api/runs/{run.name}/trajectories?limit=100&sort=-reward",
            "filtered": f"/api/runs/{run.name}/trajectories?limit=100&tool=search&reward_min=0.5&step_min=3",
            "rare_word": f"/api/runs/{run.name}/trajectories?limit=100&text=word7999",
            "frequent_words": f"/api/runs/{run.name}/trajectories?limit=100&text=word1%20word2%20",
            "one_trajectory": f"/api/runs/{run.name}/trajectories/{key}",
        }
        for name, path in questions.items():
            figures[f"{name}_seconds"] = min(timed(address + path) for _ in range(3))
    finally:
        server.terminate()
        server.wait()
    return figures


def fetch(url: str) -> Any:
    """The JSON at an address."""
    with urllib.request.urlopen(url) as answer:
        return json.load(answer)


def timed(url: str) -> float:
    """Seconds until the whole answer is there."""
    started = time.perf_counter()
    with urllib.request.urlopen(url) as answer:
        answer.read()
    return time.perf_counter() - started


def make_run(run: Path, count: int) -> None:
    """Write a run with `count` trajectories, as a run writes them."""
    generator = random.Random(0)
    words = [f"word{number}" for number in range(8_000)]
    weights = [1.0 / (rank + 10) for rank in range(len(words))]
    texts = [" ".join(generator.choices(words, weights, k=60)) for _ in range(4_000)]
    (run / "trajectories").mkdir(parents=True)
    per_step = GROUP_SIZE * GROUPS_PER_STEP
    steps = -(-count // per_step)
    for step in range(1, steps + 1):
        lines = [
            json.dumps(make_record(generator, texts, step, number)) + "\n"
            for number in range(min(per_step, count - (step - 1) * per_step))
        ]
        (run / "trajectories" / f"{step}.jsonl").write_text("".join(lines))
    with (run / "metrics.jsonl").open("w") as file:
        for step in range(1, steps + 1):
            figures = {f"metric/{number}": generator.random() for number in range(40)}
            file.write(
                json.dumps({"step": step, "time/step": 3.0, "reward/outcome": generator.random(), **figures}) + "\n"
            )
    (run / "config.yaml").write_text(f"run:\n  name: many\ntrainer:\n  steps: {steps}\nseed: 0\n")


def make_record(generator: random.Random, texts: Sequence[str], step: int, number: int) -> dict[str, Any]:
    """One trajectory of two to four steps, in the form of `write_trajectories`."""
    group = number // GROUP_SIZE
    question = {"role": "user", "content": texts[(step * GROUPS_PER_STEP + group) % len(texts)]}
    turns = generator.randint(2, 4)
    reward = float(generator.random() < 0.4)
    return {
        "policy_step": step - 1,
        "prompt": [question],
        "task_id": f"task-{(step * GROUPS_PER_STEP + group) % 5_000}",
        "group_id": group,
        "member": number % GROUP_SIZE,
        "data_source": "made",
        "outcome_reward": reward,
        "process_reward": 0.1,
        "reward_parts": {},
        "vote": "",
        "stop_reason": generator.choice(["done", "done", "done", "max_steps"]),
        "next_prompt_ids": None,
        "next_privileged": None,
        "error": None,
        "num_retries": 0,
        "failed_attempts": [],
        "metrics": {"tool/search/calls": 1.0},
        "steps": [make_step(generator, texts, question, turn, turns) for turn in range(turns)],
    }


def make_step(
    generator: random.Random, texts: Sequence[str], question: dict[str, Any], turn: int, turns: int
) -> dict[str, Any]:
    """One step: the question first, then what a tool found."""
    ids = [generator.randrange(150_000) for _ in range(120)]
    logprobs = [-round(generator.random(), 6) for _ in ids]
    tool = generator.choice(["search", "python", "open_page"])
    call = {"name": tool, "arguments": {"query": generator.choice(texts)[:60]}, "call_id": "call00000"}
    found = {"role": "tool", "name": tool, "tool_call_id": "call00000", "content": generator.choice(texts)}
    written = {"id": "call00000", "type": "function", "function": {"name": tool, "arguments": call["arguments"]}}
    history = [{"role": "assistant", "content": "", "tool_calls": [written]}, found]
    function = {"name": "search", "description": texts[0], "parameters": {"type": "object", "properties": {}}}
    return {
        "shared": 300 * turn,
        "prompt_ids": [*ids, *ids] if turn == 0 else ids,
        "form": "messages",
        "shared_messages": 2 * turn,
        "messages": [question] if turn == 0 else history,
        "shared_text": 0,
        "prompt_text": "",
        "token_ids": None,
        "shared_images": 0,
        "images": [],
        "tools": [{"type": "function", "function": function}] * 3 if turn == 0 else "same",
        "anchor": None,
        "privileged": None,
        "text": generator.choice(texts),
        "content": "",
        "tool_calls": [call] if turn + 1 < turns else [],
        "parse_error": None,
        "repairs": [],
        "final_answer": None,
        "history_text": None,
        "action_ids": ids,
        "rollout_logprobs": logprobs,
        "reward": 0.0,
        "done": turn + 1 == turns,
        "policy_versions": [1] * len(ids),
        "info": {"metrics": {"tool/search/calls": 1, "tool/search/seconds": 0.01}},
        "timings": {"generate": 0.5, "env": 0.1},
    }


if __name__ == "__main__":
    main()
