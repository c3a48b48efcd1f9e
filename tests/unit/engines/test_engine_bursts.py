"""Bursts and steps that start before the last one was looked at, on the CPU.

A device that samples several tokens per step and answers late is played by `LateRunner`: it computes with the plain CPU
runner, keeps sampled tokens to itself until the engine has asked a few times, and reads the tokens of a burst that
continues another one from its own memory, as the CUDA runner does. Answers must be those of the plain engine, bit for
bit.
"""

from __future__ import annotations

import asyncio
import random
from contextlib import aclosing
from dataclasses import replace
from typing import Any

import pytest
import torch
from transformers import LlamaForCausalLM

from agent_r1.engines.local import LocalEngine
from agent_r1.engines.local.cuda import graphs
from agent_r1.engines.local.request import Chunk, Request
from agent_r1.engines.local.runner import ModelRunner, PendingSample, Sampled
from agent_r1.types import Completion, SamplingParams, TokenIds
from tests.helpers.hand_made import sharpened

Prompt = tuple[TokenIds, SamplingParams]


class Late:
    """Sampled tokens that the device computes for a while."""

    def __init__(self, sampled: Sampled) -> None:
        self._sampled, self._asked = sampled, 0

    def done(self) -> bool:
        self._asked += 1
        return self._asked > 3

    def result(self) -> Sampled:
        return self._sampled


class LateRunner(ModelRunner):
    """Bursts of 4; what it drew last stays on the 'device'."""

    burst = 4

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._rows: list[list[int]] = []
        self.num_continued = {"prompts": 0, "a burst": 0, "with others": 0}

    def sample(self, chunks: list[Chunk], after: list[Chunk] | None = None) -> PendingSample:
        if not all(chunk.length == 1 and chunk.samples for chunk in chunks):
            sampled = super().sample(chunks).result()
            sampling = [chunk for chunk in chunks if chunk.samples]
            self._rows = [[*c.request.tokens, *new] for c, new in zip(sampling, sampled.tokens, strict=True)]
            return Late(sampled)
        place = {chunk.request: row for row, chunk in enumerate(c for c in after or () if c.samples)}
        assert (after is not None) == any(chunk.pending_token for chunk in chunks)
        if after is not None:
            self.num_continued["prompts" if any(chunk.length > 1 for chunk in after) else "a burst"] += 1
            self.num_continued["with others"] += not all(chunk.pending_token for chunk in chunks)
        rows = []
        for chunk in chunks:
            known = self._rows[place[chunk.request]] if chunk.pending_token else chunk.request.tokens
            assert len(known) == chunk.end
            rows.append(list(known))
        tokens, logprobs = [list[int]() for _ in chunks], [list[float]() for _ in chunks]
        for _ in range(max(chunk.new_tokens for chunk in chunks)):
            shadows = [_shadow(chunk, row) for chunk, row in zip(chunks, rows, strict=True)]
            sampled = super().sample(shadows).result()
            for index, (token, logprob) in enumerate(zip(sampled.tokens, sampled.logprobs, strict=True)):
                rows[index].append(token[0])
                tokens[index] += token
                logprobs[index] += logprob
        self._rows = rows
        counts = [chunk.new_tokens for chunk in chunks]
        return Late(
            Sampled(
                [sampled[:count] for sampled, count in zip(tokens, counts, strict=True)],
                [sampled[:count] for sampled, count in zip(logprobs, counts, strict=True)],
            )
        )


def _shadow(chunk: Chunk, tokens: list[int]) -> Chunk:
    """The request as the device sees it: with the tokens it drew, and the spare block behind its last one."""
    request = Request(prompt=chunk.request.prompt, sampling=chunk.request.sampling)
    request.tokens = list(tokens)
    request.logprobs = [0.0] * (len(tokens) - len(request.prompt))
    request.blocks = [*chunk.request.blocks, 0]
    return Chunk(request, len(tokens) - 1, 1)


@pytest.fixture
def model(tiny_model: LlamaForCausalLM) -> LlamaForCausalLM:
    return sharpened(tiny_model)


def late_engine(model: LlamaForCausalLM, monkeypatch: pytest.MonkeyPatch, **settings: Any) -> LocalEngine:
    monkeypatch.setattr("agent_r1.engines.local.runner.ModelRunner", LateRunner)
    return LocalEngine(model, **settings)


def prompts(count: int, *, stop: TokenIds = ()) -> list[Prompt]:
    rng = random.Random(3)
    return [
        (
            tuple(rng.choices(range(100), k=1 + index * 7 % 40)),
            SamplingParams(max_tokens=1 + index * 5 % 23, seed=index, stop=stop),
        )
        for index in range(count)
    ]


async def all_answers(engine: LocalEngine, requests: list[Prompt]) -> list[Completion]:
    async with asyncio.timeout(60):
        return list(await asyncio.gather(*(engine.generate(*request) for request in requests)))


@pytest.mark.whole
@pytest.mark.parametrize("settings", [{}, {"kv_memory": 200}, {"max_requests": 3}, {"prefill_tokens": 20}])
@pytest.mark.parametrize("stop", [(), tuple(range(0, 100, 7))])
def test_answers_are_those_of_the_plain_engine(
    model: LlamaForCausalLM, monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any], stop: TokenIds
) -> None:
    requests = prompts(16, stop=stop)
    expected = asyncio.run(all_answers(LocalEngine(model), requests))
    assert any(answer.finish_reason == "stop" for answer in expected) == bool(stop)
    engine = late_engine(model, monkeypatch, **settings)
    assert asyncio.run(all_answers(engine, requests)) == expected
    runner: Any = engine._runner
    assert runner.num_continued["prompts"] > 0
    assert runner.num_continued["a burst"] > 0
    assert engine._scheduler.pool.num_held > 0
    engine._scheduler.cache.clear()
    assert engine._scheduler.pool.num_held == 0


def test_those_who_decode_go_on_with_those_whose_prompt_is_being_computed(
    model: LlamaForCausalLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = late_engine(model, monkeypatch, prefill_tokens=20)
    asyncio.run(all_answers(engine, prompts(16)))
    runner: Any = engine._runner
    assert runner.num_continued["with others"] > 0


@pytest.mark.whole
def test_the_first_prompts_are_started_on_while_others_are_still_coming(
    model: LlamaForCausalLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = late_engine(model, monkeypatch, prefill_tokens=40)
    plain, arrived = LateRunner.sample, list[int]()

    def noting(self: LateRunner, chunks: list[Chunk], after: list[Chunk] | None = None) -> PendingSample:
        arrived.append(len(engine._futures))
        return plain(self, chunks, after)

    monkeypatch.setattr(LateRunner, "sample", noting)
    asyncio.run(all_answers(engine, [(tuple(range(index, index + 10)), SamplingParams()) for index in range(12)]))
    assert arrived[:2] == [4, 12]


@pytest.mark.whole
def test_a_request_that_is_cancelled_in_flight_frees_its_blocks_and_harms_nobody(
    model: LlamaForCausalLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    requests = [(ids, replace(sampling, max_tokens=40)) for ids, sampling in prompts(12)]
    expected = asyncio.run(all_answers(LocalEngine(model), requests))
    engine = late_engine(model, monkeypatch)

    async def cancel_half() -> list[Completion]:
        tasks = [asyncio.create_task(engine.generate(*request)) for request in requests]
        for _ in range(12):
            await asyncio.sleep(0)
        for task in tasks[::2]:
            task.cancel()
        late_comer = engine.generate(*requests[0])
        rest = await asyncio.gather(*tasks[1::2])
        return [await late_comer, *rest]

    assert asyncio.run(cancel_half()) == [expected[0], *expected[1::2]]
    engine._scheduler.cache.clear()
    assert engine._scheduler.pool.num_held == 0


@pytest.mark.whole
@pytest.mark.parametrize("settings", [{}, {"kv_memory": 200}], ids=str)
def test_streams_give_bursts_and_closing_them_in_flight_frees_their_blocks(
    model: LlamaForCausalLM, monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any]
) -> None:
    requests = [(ids, replace(sampling, max_tokens=40)) for ids, sampling in prompts(12)]
    expected = asyncio.run(all_answers(LocalEngine(model), requests))
    engine = late_engine(model, monkeypatch, **settings)

    async def read(number: int) -> tuple[TokenIds, ...]:
        pieces: list[TokenIds] = []
        async with aclosing(engine.stream(*requests[number])) as stream:
            async for new in stream:
                pieces.append(new.token_ids)
                if number % 2 == 0 and len(pieces) == 2 + number // 4:
                    break
        return tuple(pieces)

    async def run() -> list[tuple[TokenIds, ...]]:
        async with asyncio.timeout(60):
            return list(await asyncio.gather(*map(read, range(12))))

    for number, (pieces, whole) in enumerate(zip(asyncio.run(run()), expected, strict=True)):
        tokens = sum(pieces, ())
        assert tokens == whole.token_ids[: len(tokens)]
        assert len(tokens) == 40 or number % 2 == 0
        assert max(map(len, pieces)) > 1, "the tokens of a burst come together"
    assert not engine._futures._streams
    engine._scheduler.release_finished()
    engine._scheduler.cache.clear()
    assert engine._scheduler.pool.num_held == 0


@pytest.mark.parametrize("closed", [False, True])
def test_callers_have_their_answers_before_their_blocks_are_seen_to_and_none_is_lost(
    model: LlamaForCausalLM, monkeypatch: pytest.MonkeyPatch, closed: bool
) -> None:
    engine = late_engine(model, monkeypatch)
    requests = [(ids, SamplingParams(max_tokens=5, seed=index)) for index, (ids, _) in enumerate(prompts(6))]

    async def ask() -> int:
        await all_answers(engine, requests)
        unseen_to = len(engine._scheduler._finished)
        if closed:
            await engine.close()
        return unseen_to

    for _ in range(2):  # each time the loop ends with the answers, and with it whoever serves
        assert asyncio.run(ask()) == len(requests)
        assert not engine._scheduler.has_work
        engine._scheduler.cache.clear()
        assert engine._scheduler.pool.num_held == 0


def test_a_caller_who_asks_on_at_once_starts_the_device_before_old_blocks_are_seen_to(
    model: LlamaForCausalLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = late_engine(model, monkeypatch, prefill_tokens=40)
    plain, unseen_to = LateRunner.sample, list[int]()

    def noting(self: LateRunner, chunks: list[Chunk], after: list[Chunk] | None = None) -> PendingSample:
        unseen_to.append(len(engine._scheduler._finished))
        return plain(self, chunks, after)

    monkeypatch.setattr(LateRunner, "sample", noting)
    rounds = [
        [
            (tuple(range(first + index, first + index + 10)), SamplingParams(max_tokens=5, seed=index))
            for index in range(8)
        ]
        for first in (0, 20)
    ]

    async def ask() -> list[list[Completion]]:
        return [await all_answers(engine, requests) for requests in rounds]

    answers = asyncio.run(ask())
    assert 8 in unseen_to
    assert answers == [asyncio.run(all_answers(LocalEngine(model), requests)) for requests in rounds]
    engine._scheduler.cache.clear()
    assert engine._scheduler.pool.num_held == 0


def test_new_weights_wait_for_the_step_in_flight_and_sample_what_comes_after_it(
    model: LlamaForCausalLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = late_engine(model, monkeypatch)
    changed = {name: 1.1 * tensor for name, tensor in model.state_dict().items()}
    prompt, sampling = prompts(9)[8][0], SamplingParams(max_tokens=40, seed=1)

    async def change_half_way() -> Completion:
        task = asyncio.create_task(engine.generate(prompt, sampling))
        for _ in range(25):
            await asyncio.sleep(0)
        await engine.update_weights(changed.items(), 1)
        return await task

    answer = asyncio.run(change_half_way())
    assert len(answer.token_ids) == 40
    assert list(answer.policy_versions) == sorted(answer.policy_versions)
    first_new = answer.policy_versions.index(1)
    assert 0 < first_new < 40
    for weights, part in ((model.state_dict(), slice(0, first_new)), (changed, slice(first_new, 40))):
        model.load_state_dict({name: tensor.clone() for name, tensor in weights.items()})
        ids = torch.tensor([prompt + answer.token_ids])
        with torch.no_grad():
            logprobs = model(input_ids=ids, use_cache=False).logits[0, len(prompt) - 1 : -1].log_softmax(-1)
        found = logprobs.gather(1, ids[0, len(prompt) :, None]).squeeze(1)[part]
        assert answer.logprobs[part] == pytest.approx(found.tolist(), abs=1e-4)


@pytest.mark.filterwarnings("ignore:a step of the engine failed")
def test_a_step_that_fails_in_flight_is_tried_one_by_one(
    model: LlamaForCausalLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    requests = [(ids, replace(sampling, max_tokens=20)) for ids, sampling in prompts(6)]
    expected = asyncio.run(all_answers(LocalEngine(model), requests))
    engine = late_engine(model, monkeypatch)
    plain, calls = LateRunner.sample, 0

    def sometimes(self: LateRunner, chunks: list[Chunk], after: list[Chunk] | None = None) -> PendingSample:
        nonlocal calls
        calls += 1
        if calls in (3, 5) and len(chunks) > 1:
            raise RuntimeError("out of memory")
        return plain(self, chunks, after)

    monkeypatch.setattr(LateRunner, "sample", sometimes)
    assert asyncio.run(all_answers(engine, requests)) == expected


@pytest.mark.whole
def test_a_pool_full_of_old_prefixes_does_not_end_the_flow(
    model: LlamaForCausalLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody uses the blocks of answers that are done: they make room, and bursts go on without a pause."""
    engine = late_engine(model, monkeypatch, kv_memory=800)
    requests = [(ids, replace(sampling, max_tokens=40)) for ids, sampling in prompts(8)]
    fresh = [(tuple(token + 1 for token in ids), sampling) for ids, sampling in requests]
    asyncio.run(all_answers(engine, requests))
    runner: Any = engine._runner
    while_empty, runner.num_continued = runner.num_continued, dict.fromkeys(runner.num_continued, 0)
    asyncio.run(all_answers(engine, fresh))
    asyncio.run(all_answers(engine, requests))
    assert engine.stats.preemptions == 0
    assert runner.num_continued == {kind: 2 * count for kind, count in while_empty.items()}


def test_the_inputs_of_a_burst_on_cuda_take_unseen_tokens_from_where_they_were_sampled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(graphs, "send", lambda array, device: torch.from_numpy(array))  # no pinned memory here
    known, first, second = (Request(prompt=(1, 2, 3), sampling=SamplingParams()) for _ in range(3))
    known.append([11], [0.0], 0)
    for block, request in enumerate((known, first, second), start=5):
        request.blocks = [block]
    chunks = [Chunk(known, 3, 1), Chunk(first, 3, 1, pending_token=True), Chunk(second, 3, 1, pending_token=True)]
    inputs = graphs.DecodeInputs(4, 2, torch.device("cpu"))
    sampled = torch.tensor([70, 80, 90, 0], dtype=torch.int32)
    inputs.fill(chunks, 4, 8, torch.zeros(4, 3 + graphs.BURST), {second: 0, first: 2}, sampled)
    tokens, positions = inputs.next_tokens.tolist()
    assert tokens == [11, 90, 70, 0]
    assert positions == [3, 3, 3, 0]
    assert inputs.contexts.tolist() == [4, 4, 4, 1]
    assert inputs.tables[:, 0].tolist() == [5, 6, 7, 0]
