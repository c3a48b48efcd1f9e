"""Every fault of `benchmarks/claims/faults.py` in small runs: what strikes is counted and recorded, nothing is lost.

The policy is a script that shops as it should, so that tools, environment and reward are really used; what is learned
under faults is what the slow tests ask.
"""

from __future__ import annotations

import json
import random
import re
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from agent_r1.config import Config
from agent_r1.engines import ScriptedEngine
from agent_r1.types import SamplingParams, TokenIds
from benchmarks.claims.faults import FAULTS, main, run_fault
from recipes.quickstart.shop import draw_basket, task_row


def make_shopper(config: Config, policy: Any, context_length: int) -> ScriptedEngine:
    """Looks prices up, calculates, answers; what it cannot read it takes for an answer of 0."""
    tokenizer = AutoTokenizer.from_pretrained(config.model.path)

    def reply(prompt: TokenIds, sampling: SamplingParams) -> list[int]:
        text = tokenizer.decode(prompt)
        wanted = re.findall(r"(\d+) (\w+)", text.split("What do ")[1].split(" cost?")[0])
        turns = text.split("<|assistant|>")[1:-1]
        answers = re.findall(r"<tool_response>(.*?)</tool_response>", text.rsplit("<|assistant|>", 2)[1], re.DOTALL)
        if not turns:
            said = "".join(call("price", item=item) for _, item in wanted)
        elif len(turns) == 1:
            terms = [f"{n}*{cost if cost.isdecimal() else 0}" for (n, _), cost in zip(wanted, answers, strict=True)]
            said = call("calculate", expression="+".join(terms))
        else:
            said = answers[0]
        return [*tokenizer.encode(said, add_special_tokens=False), tokenizer.eos_token_id]

    return ScriptedEngine(reply)


def call(name: str, **arguments: str) -> str:
    return f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"


@pytest.mark.whole
@pytest.mark.parametrize("name", [name for name in FAULTS if name != "none"])
def test_what_strikes_is_counted_and_recorded_and_nothing_is_lost(
    name: str, tmp_path: Path, model_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AGENT_R1_FAULTS", "")  # given back at the end
    monkeypatch.setenv("PYTHONPATH", "")
    monkeypatch.setattr("benchmarks.claims.faults.AWAY_SECONDS", 0.3)
    rng = random.Random(0)
    tasks = tmp_path / "train.jsonl"
    tasks.write_text("".join(json.dumps(task_row(draw_basket(rng))) + "\n" for _ in range(8)))
    overrides = [
        f"model.path={model_folder}",
        f"engine.name='{__name__}:make_shopper'",
        f"data.train=[{tasks}]",
        "data.eval=[]",
        "rollout.groups_per_step=4",
        "rollout.group_size=4",
        "rollout.context_length=480",
        "trainer.steps=2",
    ]
    row = run_fault(name, tmp_path, overrides, rate=0.1, die_at=70)
    assert row["problems"] == []
    assert row["injected"] > 0
    assert (row["steps"], row["lost"]) == (2, 0)


@pytest.mark.slow
@pytest.mark.parametrize("name", FAULTS)
def test_the_quickstart_learns_under_every_fault(name: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.getbasetemp() / "faults"  # one warm start for all
    [row] = main(["--folder", str(folder), "--only", name])
    assert row["problems"] == []
    assert 0.04 <= row["rate"] <= 0.22 or name == "none"
    assert row["success"] >= 0.85
