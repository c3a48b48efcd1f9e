"""verl's real rollout workers around a client that plays replies, and the same replies for an engine of ours.

Everything here is imported where verl is installed (`make verl`). Rows are of the quickstart's shop.
"""

from __future__ import annotations

import asyncio
import json
import urllib.request
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

from agent_r1.config import load_config, to_yaml
from agent_r1.engines import ScriptedEngine
from agent_r1.types import Completion, SamplingParams, Task

CALL = '<tool_call>{{"name": "{name}", "arguments": {{"{key}": "{value}"}}}}</tool_call>'
QUICKSTART = Path(__file__).parents[2] / "recipes" / "quickstart"
PRICES = {"tea": 4, "milk": 6}


def replies_of(number: int) -> list[str]:
    """The turns of an episode: one, two or three model calls."""
    price = CALL.format(name="price", key="item", value="tea")
    product = CALL.format(name="calculate", key="expression", value="4*2")
    return [["8"], [price, "8"], [price, product, "9"]][number % 3]


def shop_task(number: int) -> Task:
    """A task whose number decides what the model will do."""
    return Task(
        task_id=f"shop-{number}",
        prompt=({"role": "user", "content": f"What do 2 tea cost, {number}?"},),
        reward_model={"ground_truth": "8"},
        env_kwargs={"prices": PRICES, "wanted": ["tea"]},
    )


def logprobs_of(ids: Sequence[int]) -> list[float]:
    """Numbers that differ from token to token, exact in float32."""
    return [-((place * 31 + token) % 64) / 64 for place, token in enumerate(ids)]


@dataclass
class Script:
    """Replies by the number in the question and the turn, as ids. It can be sent to a worker of Ray."""

    model: str
    """The folder with the tokenizer."""
    _tokenizer: Any = field(default=None, repr=False)

    def __getstate__(self) -> dict[str, Any]:
        return {"model": self.model, "_tokenizer": None}

    @property
    def tokenizer(self) -> Any:
        """Loaded when first needed, in the process that needs it."""
        if self._tokenizer is None:
            from transformers import AutoTokenizer

            self._tokenizer = AutoTokenizer.from_pretrained(self.model)
        return self._tokenizer

    def reply(self, prompt_ids: Sequence[int]) -> list[int]:
        """What the model says after this prompt."""
        text = self.tokenizer.decode(prompt_ids)
        number = int(text.partition("cost, ")[2].partition("?")[0])
        turns = replies_of(number)
        told = sum(text.count(turn) for turn in {*turns})
        return [
            *self.tokenizer(turns[min(told, len(turns) - 1)], add_special_tokens=False)["input_ids"],
            self.tokenizer.eos_token_id,
        ]


class FakeClient:
    """verl's `LLMServerClient` without servers: it plays a script. `score` gives log-probs for (prompt, ids)."""

    def __init__(self, script: Script, score: Callable[[list[int], list[int]], list[float]] | None = None) -> None:
        self.script = script
        self.score = score
        self.requests: list[tuple[str, list[int], dict[str, Any]]] = []

    async def generate(
        self, request_id: str, *, prompt_ids: list[int], sampling_params: dict[str, Any], **_: Any
    ) -> Any:
        """One `TokenOutput`."""
        from verl.workers.rollout.replica import TokenOutput

        self.requests.append((request_id, list(prompt_ids), dict(sampling_params)))
        ids = self.script.reply(prompt_ids)[: sampling_params["max_tokens"]]
        logprobs = logprobs_of(ids) if self.score is None else self.score(list(prompt_ids), ids)
        return TokenOutput(token_ids=ids, log_probs=logprobs, stop_reason="completed", extra_fields={"global_steps": 3})


class HttpClient:
    """verl's client in front of a server that speaks vLLM's `/inference/v1/generate`."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.seeds = count()

    async def generate(
        self, request_id: str, *, prompt_ids: list[int], sampling_params: dict[str, Any], **_: Any
    ) -> Any:
        """One `TokenOutput`."""
        from verl.workers.rollout.replica import TokenOutput

        asked = {name: sampling_params[name] for name in ("max_tokens", "temperature", "top_p", "stop_token_ids")}
        asked |= {"top_k": max(0, sampling_params["top_k"]), "seed": next(self.seeds), "logprobs": 0}
        body = {"request_id": request_id, "token_ids": prompt_ids, "sampling_params": asked}
        request = urllib.request.Request(
            f"{self.url}/inference/v1/generate",
            data=json.dumps(body).encode(),
            headers={"Content-Type": "application/json"},
        )
        (choice,) = (await asyncio.to_thread(_read, request))["choices"]
        return TokenOutput(
            token_ids=choice["token_ids"],
            log_probs=[entry["logprob"] for entry in choice["logprobs"]["content"]],
            stop_reason="completed",
            extra_fields={"global_steps": 3},
        )


def _read(request: urllib.request.Request) -> dict[str, Any]:
    with urllib.request.urlopen(request, timeout=120) as answer:
        return dict(json.load(answer))


class ScriptedTwin(ScriptedEngine):
    """An engine of ours that plays the same script with the same log-probs."""

    def __init__(self, script: Script, context_length: int) -> None:
        super().__init__(lambda prompt, _: script.reply(prompt), context_length=context_length)

    async def generate(self, prompt_ids: Sequence[int], sampling: SamplingParams) -> Completion:
        """The reply."""
        played = await super().generate(prompt_ids, sampling)
        return Completion(
            token_ids=played.token_ids,
            logprobs=tuple(logprobs_of(played.token_ids)),
            finish_reason=played.finish_reason,
            policy_versions=played.policy_versions,
        )


def write_recipe(folder: Path, model: Path, *overrides: str) -> Path:
    """The quickstart's recipe with this model, as the one file that our command writes."""
    settings = [f"model.path={model}", "rollout.max_tokens=60", "rollout.retries=0", "rollout.context_length=400"]
    config = load_config(QUICKSTART, [*settings, *overrides])
    file = folder / "recipe.yaml"
    file.write_text(to_yaml(config))
    return file


def verl_config(model: Path, loop_file: Path, *overrides: str) -> Any:
    """verl's own configuration of its trainer, as its command composes it."""
    from hydra import compose, initialize_config_module

    with initialize_config_module("verl.trainer.config", version_base=None):
        return compose(
            "ppo_trainer",
            overrides=[
                f"actor_rollout_ref.model.path={model}",
                "actor_rollout_ref.rollout.name=vllm",
                "algorithm.adv_estimator=agent_r1",
                "data.max_prompt_length=100",
                "data.max_response_length=300",
                f"actor_rollout_ref.rollout.agent.agent_loop_config_path={loop_file}",
                *overrides,
            ],
        )


def write_loop_file(folder: Path, recipe: Path) -> Path:
    """verl's file of agent loops."""
    file = folder / "agent_loop.yaml"
    target = "agent_r1.integrations.verl.loop.AgentR1Loop"
    file.write_text(f"- name: agent_r1\n  _target_: {target}\n  recipe: {recipe}\n")
    return file


def batch_of(tasks: Sequence[Task]) -> Any:
    """Tasks as verl's dataset gives them to a worker."""
    import numpy as np
    import torch
    from tensordict import TensorDict
    from verl.protocol import DataProto

    from agent_r1.integrations.verl.export import verl_row

    rows = [{**verl_row(task, index), "uid": task.task_id} for index, task in enumerate(tasks)]
    columns: dict[str, Any] = {}
    for name in rows[0]:
        column = np.empty(len(rows), dtype=object)
        column[:] = [row[name] for row in rows]
        columns["raw_prompt" if name == "prompt" else name] = column
    return DataProto(
        batch=TensorDict({"dummy_tensor": torch.zeros(len(rows), 1)}, batch_size=len(rows)), non_tensor_batch=columns
    )
