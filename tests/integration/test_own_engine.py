"""An engine that a recipe folder registers trains, is evaluated and is checked like the local one."""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from agent_r1.errors import ConfigError
from agent_r1.rollout import Rollout
from tests.helpers import commands
from tests.helpers.tiny_runs import tiny_overrides, write_tasks

BASE = """
defaults: [agent_r1, {algorithm: grpo}, _self_]
imports: [my_engine]
engine: {name: plain}
env: {tools: [calculate]}
reward: {function: "my_engine:score"}
rollout: {context_length: 384}
"""

MY_ENGINE = '''
"""One forward pass of a transformers model per token: slow, and complete."""

import contextlib

import torch
from transformers import AutoModelForCausalLM

from agent_r1.engines import engine_factories
from agent_r1.seeds import unit_float
from agent_r1.types import Completion

CALLS = []


class PlainEngine:
    policy_version = 0
    adapters = ()

    def __init__(self, path, context_length, greeting, pauses):
        self.model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
        self.context_length = context_length
        self.pauses_during_update = pauses
        CALLS.append(greeting)

    @torch.no_grad()
    async def generate(self, prompt_ids, sampling):
        ids, logprobs = [], []
        while len(ids) < sampling.max_tokens and (not ids or ids[-1] not in sampling.stop):
            logits = self.model(torch.tensor([[*prompt_ids, *ids]])).logits[0, -1]
            scores = torch.log_softmax(logits / (sampling.temperature or 1.0), dim=-1)
            if sampling.temperature:
                drawn = torch.tensor(unit_float(sampling.seed or 0, len(ids)), dtype=torch.float64)
                token = min(int(torch.searchsorted(scores.double().exp().cumsum(0), drawn)), len(scores) - 1)
            else:
                token = int(scores.argmax())
            ids.append(token)
            logprobs.append(float(scores[token]))
        stopped = ids[-1] in sampling.stop
        return Completion(
            token_ids=tuple(ids),
            logprobs=tuple(logprobs),
            finish_reason="stop" if stopped else "length",
            policy_versions=(self.policy_version,) * len(ids),
        )

    def paused(self):
        return contextlib.nullcontext()

    async def update_weights(self, weights, version):
        self.model.load_state_dict(dict(weights))
        self.policy_version = version
        CALLS.append(version)

    async def close(self):
        CALLS.append("closed")


@engine_factories.register("plain")
def make_plain(config, policy, context_length, *, greeting="hello", pauses=True):
    return PlainEngine(config.model.path, context_length, greeting, pauses)


def score(task, episode):
    return float(len(set(episode.final_text)))
'''


@pytest.fixture
def run(tmp_path: Path, model_folder: Path) -> list[str]:
    """A recipe folder with an engine of its own."""
    recipe = tmp_path / "recipe"
    recipe.mkdir()
    (recipe / "base.yaml").write_text(BASE)
    (recipe / "my_engine.py").write_text(MY_ENGINE)
    _, *overrides = tiny_overrides(tmp_path, model_folder)
    return [str(recipe), *overrides, "rollout.max_steps=1", "trainer.steps=2"]


def calls_of(name: str = "my_engine") -> list[object]:
    [module] = [module for key, module in sys.modules.items() if key.endswith(f".{name}") and hasattr(module, "CALLS")]
    calls: list[object] = module.CALLS
    return calls


@pytest.fixture(autouse=True)
def fresh_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each test's recipe is another file that registers the name again."""
    from agent_r1.engines import engine_factories

    monkeypatch.setattr(engine_factories, "_entries", {"local": engine_factories.get("local")})
    for key in [key for key in sys.modules if key.endswith(".my_engine")]:
        monkeypatch.delitem(sys.modules, key)


@pytest.mark.whole
def test_an_engine_of_a_recipe_folder_trains(run: list[str], tmp_path: Path) -> None:
    summary = commands.train(*run, "engine.arguments.greeting=good day", quiet=True)
    assert summary.steps == 2
    assert calls_of() == ["good day", 0, 1, 2, "closed"]
    lines = [json.loads(line) for line in (tmp_path / "tiny" / "metrics.jsonl").read_text().splitlines()]
    # Its log-probs are those of the trainer, after each update too: it samples from the policy that is trained.
    assert [line["offpolicy/logprob_difference"] < 1e-3 for line in lines] == [True, True]


def test_an_engine_of_a_recipe_folder_evaluates(run: list[str], tmp_path: Path) -> None:
    held_out = write_tasks(tmp_path / "held_out.jsonl", count=2)
    evaluation = commands.evaluate(*run, f"data.eval=[{held_out}]", quiet=True)
    assert evaluation.metrics["eval/all/rows"] == 2
    assert calls_of() == ["hello", "closed"]


def test_an_engine_of_a_recipe_folder_is_checked(run: list[str]) -> None:
    report = commands.check(*run, groups=1, members=2, quiet=True)
    results = {result.title: result for result in report.results}
    assert results["engine and trainer"].status == "ok"
    assert results["tokens in the loss"].status == "ok"
    assert calls_of() == ["hello", "closed"]


@pytest.mark.whole
@pytest.mark.parametrize("pauses", [True, False])
def test_deadlines_stop_during_an_update_only_if_the_engine_pauses(
    run: list[str], monkeypatch: pytest.MonkeyPatch, pauses: bool
) -> None:
    stopped: list[Rollout] = []
    stop = Rollout.clock_stopped

    def counted(rollout: Rollout) -> AbstractContextManager[None]:
        stopped.append(rollout)
        return stop(rollout)

    monkeypatch.setattr(Rollout, "clock_stopped", counted)
    commands.train(*run, f"engine.arguments.pauses={pauses}", quiet=True)
    assert len(stopped) == (2 + 2 if pauses else 2)  # two checkpoints, which always block, and two updates


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["engine.name=plane"], "unknown engine 'plane'. Did you mean 'plain'?"),
        (["engine.arguments.greting=hi"], r"takes no argument 'greting' \(key 'engine.arguments.greting'\)"),
        (["engine.name='my_engine:shop'"], "unknown engine 'my_engine:shop'"),
    ],
)
def test_an_engine_that_does_not_exist_is_refused_before_a_model_is_loaded(
    run: list[str], overrides: list[str], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        commands.train(*run, *overrides, "model.path=nowhere/at/all", quiet=True)


@pytest.mark.whole
def test_importing_engines_does_not_import_torch() -> None:
    code = "import sys, agent_r1.engines; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
