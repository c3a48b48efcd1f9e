"""verl's servers as an engine: lengths, what is sent, and answers that cannot be used."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from agent_r1.errors import ConfigError, EngineError, EngineRequestError
from agent_r1.integrations.verl import VerlEngine
from agent_r1.types import SamplingParams

VERL_SAMPLING = {"temperature": 0.7, "top_p": 1.0, "top_k": -1, "repetition_penalty": 1.0, "logprobs": True}


def answer(ids: list[int], logprobs: list[float] | None = None, **more: Any) -> SimpleNamespace:
    given = {"stop_reason": "completed", "num_preempted": None, "extra_fields": {}, **more}
    return SimpleNamespace(token_ids=ids, log_probs=[-0.5] * len(ids) if logprobs is None else logprobs, **given)


class Server:
    """Plays answers and keeps requests."""

    def __init__(self, *answers: SimpleNamespace) -> None:
        self.answers = list(answers)
        self.requests: list[dict[str, Any]] = []

    async def generate(self, request_id: str, **request: Any) -> SimpleNamespace:
        self.requests.append({"request_id": request_id, **request})
        return self.answers.pop(0)


def engine_of(server: Server, **changes: Any) -> VerlEngine:
    settings = {"sampling_params": VERL_SAMPLING, "prompt_length": 10, "response_length": 6, **changes}
    return VerlEngine(server, request_id="r", **settings)


def ask(engine: VerlEngine, prompt: list[int], max_tokens: int = 4) -> Any:
    return asyncio.run(engine.generate(prompt, SamplingParams(max_tokens=max_tokens, stop=(7,), seed=3)))


def test_a_request_has_verls_sampling_and_our_limits() -> None:
    server = Server(answer([5, 7], [-0.25, -1.5]))
    completion = ask(engine_of(server, priority=2), [1, 2])
    assert (completion.token_ids, completion.logprobs, completion.finish_reason) == ((5, 7), (-0.25, -1.5), "stop")
    (request,) = server.requests
    assert (request["request_id"], request["prompt_ids"], request["priority"]) == ("r", [1, 2], 2)
    assert request["sampling_params"] == {**VERL_SAMPLING, "max_tokens": 4, "stop_token_ids": [7]}


def test_a_completion_without_a_stop_id_was_cut() -> None:
    assert ask(engine_of(Server(answer([5, 6]))), [1]).finish_reason == "length"


def test_the_context_ends_where_verls_response_does() -> None:
    """A first prompt of 2 tokens and a response of 6: 8 tokens, whatever the prompt might have had."""
    server = Server(answer([5, 5, 5]), answer([5, 5]))
    engine = engine_of(server)
    assert engine.context_length == 16
    ask(engine, [1, 2])
    assert engine.context_length == 8
    ask(engine, [1, 2, 5, 5, 5, 9])
    assert server.requests[1]["sampling_params"]["max_tokens"] == 2
    with pytest.raises(EngineRequestError, match="leaves no room"):
        ask(engine, [1, 2, 5, 5, 5, 9, 5, 5])


def test_a_rewritten_prompt_begins_another_response() -> None:
    server = Server(answer([5, 5, 5]), answer([5, 5, 5, 5]))
    engine = engine_of(server)
    ask(engine, [1, 2])
    ask(engine, [9, 9, 9, 9, 9])
    assert server.requests[1]["sampling_params"]["max_tokens"] == 4
    assert engine.context_length == 11


def test_a_first_prompt_that_is_too_long_is_refused_before_it_is_sent() -> None:
    server = Server()
    with pytest.raises(EngineRequestError, match=r"data\.max_prompt_length=10"):
        ask(engine_of(server), list(range(11)))
    assert not server.requests


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (answer([5, 6], [-0.5]), "1 log-probs for 2 tokens"),
        (SimpleNamespace(token_ids=[5], log_probs=None, stop_reason="completed"), "none log-probs for 1 tokens"),
        (answer([]), "sampled 0 tokens"),
        (answer([5] * 5), "sampled 5 tokens; expected 1 to 4"),
        (answer([5], stop_reason="aborted"), "aborted a request after 1 tokens"),
    ],
)
def test_an_answer_that_cannot_be_trained_on_is_an_error(given: SimpleNamespace, message: str) -> None:
    with pytest.raises(EngineError, match=message):
        ask(engine_of(Server(given)), [1])


def test_log_probs_must_be_switched_on() -> None:
    with pytest.raises(ConfigError, match="calculate_log_probs=True"):
        engine_of(Server(), sampling_params={**VERL_SAMPLING, "logprobs": False})


def test_versions_and_preemptions_are_those_of_verl() -> None:
    server = Server(
        answer([5], extra_fields={"global_steps": 4, "min_global_steps": 3, "max_global_steps": 4}, num_preempted=1),
        answer([5], extra_fields={"global_steps": 6}, num_preempted=2),
    )
    engine = engine_of(server)
    assert engine.policy_version == 0
    assert ask(engine, [1]).policy_versions == (4,)
    assert ask(engine, [1, 5, 2]).policy_versions == (6,)
    counts = engine.counts
    assert (counts.min_global_steps, counts.max_global_steps, counts.num_preempted) == (3, 6, 3)


def test_only_verl_updates_its_servers() -> None:
    with pytest.raises(EngineError, match="verl updates"):
        asyncio.run(engine_of(Server()).update_weights([], 1))
