"""The in-process engine: log-probs against a plain forward pass, and answers that never depend on company."""

from __future__ import annotations

import asyncio
import math
import random
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

import pytest
import torch
from torch import Tensor, nn
from transformers import LlamaForCausalLM

from agent_r1.engines.local import LocalEngine
from agent_r1.engines.local.engine import _LOOP_ROUNDS
from agent_r1.engines.local.sampling import sample
from agent_r1.errors import EngineError
from agent_r1.types import Completion, SamplingParams, TokenIds

T = TypeVar("T")
Request = tuple[TokenIds, SamplingParams]


@pytest.fixture
def model(tiny_model: LlamaForCausalLM) -> LlamaForCausalLM:
    """The tiny model with weights so large that what it attends to decides what it says."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in tiny_model.parameters():
            if parameter.dim() == 2:
                parameter.normal_(0.0, 0.3, generator=generator)
    return tiny_model.eval()


def random_prompt(seed: int, length: int, vocabulary: int = 100) -> TokenIds:
    return tuple(random.Random(seed).choices(range(vocabulary), k=length))


def random_requests(count: int, *, max_tokens: Callable[[int], int] = lambda index: 12) -> list[Request]:
    return [
        (random_prompt(index, 1 + index * 7 % 40), SamplingParams(max_tokens=max_tokens(index), seed=1000 + index))
        for index in range(count)
    ]


def answer(model: nn.Module, prompt: TokenIds, sampling: SamplingParams) -> Completion:
    """What a fresh engine says to one request alone."""
    return asyncio.run(LocalEngine(model, max_requests=1).generate(prompt, sampling))


async def all_answers(engine: LocalEngine, requests: Sequence[Request]) -> list[Completion]:
    return list(await asyncio.gather(*(engine.generate(prompt, sampling) for prompt, sampling in requests)))


async def ticks(count: int) -> None:
    """Wait for so many steps of the engine."""
    for _ in range(count * _LOOP_ROUNDS):
        await asyncio.sleep(0)


async def in_time(work: Coroutine[Any, Any, T]) -> T:
    """A hang is a failed test, not a hung one."""
    async with asyncio.timeout(20):
        return await work


def plain_logprobs(model: nn.Module, prompt: TokenIds, completion: Completion, temperature: float = 1.0) -> Tensor:
    """Log-probabilities of the completion from one forward pass over all tokens, without any cache."""
    ids = torch.tensor([prompt + completion.token_ids])
    with torch.no_grad():
        logits = model(input_ids=ids, use_cache=False).logits[0, len(prompt) - 1 : -1] / temperature
    return logits.log_softmax(-1).gather(1, ids[0, len(prompt) :, None]).squeeze(1)


def assert_same(found: Completion, expected: Completion) -> None:
    assert found.token_ids == expected.token_ids
    assert found.finish_reason == expected.finish_reason
    assert found.logprobs == expected.logprobs


# --- log-probs are the model's -------------------------------------------------------------------------------------


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_logprobs_equal_a_plain_forward_pass(model: LlamaForCausalLM, temperature: float) -> None:
    assert model.config.num_key_value_heads < model.config.num_attention_heads
    prompt = random_prompt(3, 37)
    completion = answer(model, prompt, SamplingParams(max_tokens=40, temperature=temperature, seed=5))
    assert len(completion.token_ids) == 40
    expected = plain_logprobs(model, prompt, completion, temperature)
    assert completion.logprobs == pytest.approx(expected.tolist(), abs=1e-4)


def test_logprobs_of_a_batch_of_ragged_requests_equal_plain_forward_passes(model: LlamaForCausalLM) -> None:
    requests = random_requests(20, max_tokens=lambda index: 1 + index)
    completions = asyncio.run(all_answers(LocalEngine(model, max_requests=32, prefill_tokens=64), requests))
    for (prompt, _), completion in zip(requests, completions, strict=True):
        expected = plain_logprobs(model, prompt, completion)
        assert completion.logprobs == pytest.approx(expected.tolist(), abs=1e-4)


# --- company does not matter ---------------------------------------------------------------------------------------


def test_a_request_gets_the_same_answer_alone_and_among_forty(model: LlamaForCausalLM) -> None:
    request = (random_prompt(99, 25), SamplingParams(max_tokens=20, seed=7))
    others = random_requests(40)
    completions = asyncio.run(all_answers(LocalEngine(model, max_requests=64), [*others[:20], request, *others[20:]]))
    assert_same(completions[20], answer(model, *request))


@pytest.mark.whole
def test_a_request_gets_the_same_answer_when_others_come_and_go(model: LlamaForCausalLM) -> None:
    request = (random_prompt(99, 25), SamplingParams(max_tokens=30, seed=7))

    async def staggered() -> Completion:
        engine = LocalEngine(model, max_requests=16)

        async def late(index: int, other: Request) -> None:
            await ticks(index)
            await engine.generate(*other)

        running = [asyncio.create_task(late(i, other)) for i, other in enumerate(random_requests(20))]
        await ticks(6)
        completion = await engine.generate(*request)
        await asyncio.gather(*running)
        return completion

    assert_same(asyncio.run(in_time(staggered())), answer(model, *request))


@pytest.mark.whole
def test_every_request_gets_its_own_answer_when_there_are_more_than_may_run(model: LlamaForCausalLM) -> None:
    requests = random_requests(16 + 14, max_tokens=lambda index: 1 + index * 5 % 13)
    completions = asyncio.run(in_time(all_answers(LocalEngine(model, max_requests=16), requests)))
    for request, completion in zip(requests, completions, strict=True):
        assert len(completion.token_ids) == request[1].max_tokens
        assert_same(completion, answer(model, *request))


def test_the_last_of_many_goes_on_alone(model: LlamaForCausalLM) -> None:
    requests = random_requests(60, max_tokens=lambda index: 25 if index == 59 else 2)
    completions = asyncio.run(all_answers(LocalEngine(model, max_requests=64), requests))
    assert_same(completions[59], answer(model, *requests[59]))


def test_seeds_tell_equal_prompts_apart(model: LlamaForCausalLM) -> None:
    prompt = random_prompt(2, 9)
    requests = [(prompt, SamplingParams(max_tokens=8, temperature=2.0, seed=seed)) for seed in (1, 2, 1)]
    first, second, third = asyncio.run(all_answers(LocalEngine(model), requests))
    assert first.token_ids == third.token_ids
    assert first.token_ids != second.token_ids


def test_the_engine_answers_on_a_second_event_loop(model: LlamaForCausalLM) -> None:
    engine = LocalEngine(model)
    request = (random_prompt(4, 6), SamplingParams(max_tokens=5, seed=1))
    first = asyncio.run(engine.generate(*request))
    assert_same(asyncio.run(engine.generate(*request)), first)


# --- stopping ------------------------------------------------------------------------------------------------------


def test_a_stop_id_ends_the_completion_and_is_part_of_it(model: LlamaForCausalLM) -> None:
    prompt = random_prompt(5, 12)
    free = answer(model, prompt, SamplingParams(max_tokens=20, seed=3))
    assert free.finish_reason == "length"
    stop = free.token_ids[6]
    length = free.token_ids.index(stop) + 1
    stopped = answer(model, prompt, SamplingParams(max_tokens=20, seed=3, stop=(stop, 10**6)))
    assert stopped.token_ids == free.token_ids[:length]
    assert stopped.logprobs == pytest.approx(free.logprobs[:length], abs=1e-5)
    assert stopped.finish_reason == "stop"


def test_a_stop_id_as_the_very_last_allowed_token_is_a_stop(model: LlamaForCausalLM) -> None:
    prompt = random_prompt(5, 12)
    (only,) = answer(model, prompt, SamplingParams(max_tokens=1, seed=3)).token_ids
    stopped = answer(model, prompt, SamplingParams(max_tokens=1, seed=3, stop=(only,)))
    assert stopped.token_ids == (only,)
    assert stopped.finish_reason == "stop"


# --- later turns ---------------------------------------------------------------------------------------------------


def test_a_later_turn_equals_the_same_prompt_in_a_fresh_engine(model: LlamaForCausalLM) -> None:
    async def conversation() -> list[tuple[TokenIds, SamplingParams, Completion]]:
        engine = LocalEngine(model, max_requests=16)
        turns, prompt = [], random_prompt(6, 15)
        for turn in range(4):
            sampling = SamplingParams(max_tokens=9 if turn != 2 else 1, seed=turn)
            completion, _ = await asyncio.gather(
                engine.generate(prompt, sampling),
                engine.generate(random_prompt(50 + turn, 11), SamplingParams(max_tokens=6, seed=turn)),
            )
            turns.append((prompt, sampling, completion))
            prompt = prompt + completion.token_ids + random_prompt(70 + turn, 1 + 4 * turn)
        return turns

    for prompt, sampling, completion in asyncio.run(conversation()):
        assert_same(completion, answer(model, prompt, sampling))


def test_a_later_turn_computes_only_what_is_new(model: LlamaForCausalLM) -> None:
    prompt, sampling = random_prompt(6, 150), SamplingParams(max_tokens=3, seed=0)

    async def two_turns() -> tuple[int, int]:
        engine = LocalEngine(model)
        first = await engine.generate(prompt, sampling)
        after_first = engine.stats.computed_tokens
        await engine.generate(prompt + first.token_ids + random_prompt(7, 20), sampling)
        return after_first, engine.stats.computed_tokens - after_first

    # The last sampled token is never computed. 152 tokens fill 9 blocks of 16, so that 173 - 144 are new in turn two.
    assert asyncio.run(two_turns()) == (150 + 2, 29 + 2)


def test_several_members_may_continue_the_same_turn(model: LlamaForCausalLM) -> None:
    prompt, opening = random_prompt(6, 15), SamplingParams(max_tokens=5, seed=0)

    async def branched() -> tuple[Completion, list[Completion]]:
        engine = LocalEngine(model)
        first = await engine.generate(prompt, opening)
        following = prompt + first.token_ids + (3, 4)
        return first, await all_answers(
            engine, [(following, SamplingParams(max_tokens=6, seed=seed)) for seed in range(3)]
        )

    first, completions = asyncio.run(branched())
    for seed, completion in enumerate(completions):
        following = prompt + first.token_ids + (3, 4)
        assert_same(completion, answer(model, following, SamplingParams(max_tokens=6, seed=seed)))


def test_a_rewritten_history_is_not_taken_from_the_cache(model: LlamaForCausalLM) -> None:
    prompt, sampling = random_prompt(6, 15), SamplingParams(max_tokens=5, seed=0)

    async def rewritten() -> tuple[TokenIds, Completion]:
        engine = LocalEngine(model)
        first = await engine.generate(prompt, sampling)
        other = (prompt[0] + 1, *prompt[1:], *first.token_ids, 3)
        return other, await engine.generate(other, sampling)

    other, completion = asyncio.run(rewritten())
    assert_same(completion, answer(model, other, sampling))


# --- weights -------------------------------------------------------------------------------------------------------


def shifted(model: nn.Module) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(9)
    return {
        name: tensor + 0.2 * torch.randn(tensor.shape, generator=generator)
        for name, tensor in model.state_dict().items()
    }


def test_new_weights_change_what_is_generated_and_are_named_by_their_version(model: LlamaForCausalLM) -> None:
    request = (random_prompt(8, 10), SamplingParams(max_tokens=12, seed=4))
    weights = shifted(model)

    async def before_and_after() -> tuple[Completion, Completion, int]:
        engine = LocalEngine(model)
        before = await engine.generate(*request)
        await engine.update_weights(weights.items(), 7)
        return before, await engine.generate(*request), engine.policy_version

    before, after, version = asyncio.run(before_and_after())
    assert (set(before.policy_versions), set(after.policy_versions), version) == ({0}, {7}, 7)
    assert before.token_ids != after.token_ids
    model.load_state_dict(weights)
    assert_same(after, answer(model, *request))


def test_new_weights_forget_what_the_cache_holds(model: LlamaForCausalLM) -> None:
    prompt, sampling = random_prompt(8, 30), SamplingParams(max_tokens=8, seed=4)
    weights = shifted(model)

    async def two_turns() -> tuple[TokenIds, Completion]:
        engine = LocalEngine(model)
        first = await engine.generate(prompt, sampling)
        await engine.update_weights(weights.items(), 1)
        following = prompt + first.token_ids + (5, 6)
        return following, await engine.generate(following, sampling)

    following, completion = asyncio.run(two_turns())
    model.load_state_dict(weights)
    assert_same(completion, answer(model, following, sampling))


def test_the_engine_keeps_a_copy_of_its_own(model: LlamaForCausalLM) -> None:
    request = (random_prompt(8, 10), SamplingParams(max_tokens=6, seed=4))
    engine = LocalEngine(model)
    before = asyncio.run(engine.generate(*request))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    assert_same(asyncio.run(engine.generate(*request)), before)


def test_weights_of_another_model_are_refused_by_name(model: LlamaForCausalLM) -> None:
    with pytest.raises(EngineError, match=r"no parameter 'trunk\.weight'"):
        asyncio.run(LocalEngine(model).update_weights([("trunk.weight", torch.zeros(1))], 1))


# --- when things go wrong ------------------------------------------------------------------------------------------


@pytest.mark.whole
def test_a_cancelled_request_frees_its_place_and_the_others_finish(model: LlamaForCausalLM) -> None:
    requests = random_requests(16 + 4, max_tokens=lambda index: 400 if index < 4 else 15)

    async def cancel_some() -> list[Completion]:
        engine = LocalEngine(model, max_requests=16)
        tasks = [asyncio.create_task(engine.generate(*request)) for request in requests]
        await ticks(5)
        for task in tasks[:4]:
            task.cancel()
        gone = await asyncio.gather(*tasks[:4], return_exceptions=True)
        assert all(isinstance(error, asyncio.CancelledError) for error in gone)
        finished = await asyncio.gather(*tasks[4:])
        await engine.update_weights([], 1)
        return list(finished)

    completions = asyncio.run(in_time(cancel_some()))
    for request, completion in zip(requests[4:], completions, strict=True):
        assert_same(completion, answer(model, *request))


def test_a_request_that_is_cancelled_while_it_waits_is_never_computed(model: LlamaForCausalLM) -> None:
    async def cancel_the_waiting() -> Completion:
        engine = LocalEngine(model, max_requests=16)
        running = [asyncio.create_task(engine.generate(*request)) for request in random_requests(16)]
        waiting = asyncio.create_task(engine.generate((1, 2), SamplingParams(max_tokens=300)))
        await ticks(3)
        waiting.cancel()
        await asyncio.gather(*running)
        await ticks(2)
        await engine.update_weights([], 1)
        return await engine.generate((1, 2), SamplingParams(max_tokens=2))

    assert_same(asyncio.run(in_time(cancel_the_waiting())), answer(model, (1, 2), SamplingParams(max_tokens=2)))


@pytest.mark.parametrize(
    ("prompt", "max_tokens", "message"),
    [
        pytest.param((), 4, "empty", id="empty prompt"),
        pytest.param((1, 2), 0, "at least one token", id="no tokens wanted"),
        pytest.param((1,) * 30, 3, "do not fit a context of 32", id="too long together"),
        pytest.param((1,) * 40, 1, "do not fit a context of 32", id="prompt too long"),
        pytest.param((1, -1), 1, "token ids from -1 to 1", id="negative token id"),
        pytest.param((1, 10**6), 1, "token ids from 1 to 1000000", id="token id beyond the vocabulary"),
    ],
)
def test_requests_that_cannot_be_answered_are_refused(
    model: LlamaForCausalLM, prompt: TokenIds, max_tokens: int, message: str
) -> None:
    engine = LocalEngine(model, context_length=32)
    with pytest.raises(EngineError, match=message):
        asyncio.run(engine.generate(prompt, SamplingParams(max_tokens=max_tokens)))


def test_a_request_may_fill_the_context_to_the_last_token(model: LlamaForCausalLM) -> None:
    completion = asyncio.run(LocalEngine(model, context_length=32).generate((1,) * 30, SamplingParams(max_tokens=2)))
    assert len(completion.token_ids) == 2
    expected = plain_logprobs(model, (1,) * 30, completion)
    assert completion.logprobs == pytest.approx(expected.tolist(), abs=1e-4)


class BreaksOnFourthCall(LlamaForCausalLM):
    calls = 0

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        self.calls += 1
        if self.calls == 4:
            raise RuntimeError("out of memory")
        return super().forward(*args, **kwargs)


@pytest.mark.whole
@pytest.mark.filterwarnings("ignore:a step of the engine failed")
def test_a_step_that_is_too_large_is_computed_one_by_one(model: LlamaForCausalLM) -> None:
    breaking = BreaksOnFourthCall(model.config)
    breaking.load_state_dict(model.state_dict())
    requests = random_requests(22)
    completions = asyncio.run(in_time(all_answers(LocalEngine(breaking, max_requests=16), requests)))
    for request, completion in zip(requests, completions, strict=True):
        assert_same(completion, answer(model, *request))


class FearsOneToken(LlamaForCausalLM):
    def forward(self, *args: Any, **kwargs: Any) -> Any:
        if (kwargs["input_ids"] == 113).any():
            raise RuntimeError("not that one")
        return super().forward(*args, **kwargs)


@pytest.mark.whole
@pytest.mark.filterwarnings("ignore:a step of the engine failed")
def test_a_request_that_breaks_the_model_fails_alone(model: LlamaForCausalLM) -> None:
    fearful = FearsOneToken(model.config)
    fearful.load_state_dict(model.state_dict())
    expected = [(request, answer(model, *request)) for request in random_requests(20)]
    expected = [(request, alone) for request, alone in expected if 113 not in alone.token_ids]
    good = [request for request, _ in expected]
    bad = [((1, 113, 2), SamplingParams(max_tokens=4)), ((5,) * 40 + (113,), SamplingParams(max_tokens=4))]

    async def mixed() -> list[Completion | BaseException]:
        engine = LocalEngine(fearful, max_requests=16)
        requests = [*good[:5], bad[0], *good[5:], bad[1]]
        outcomes = await asyncio.gather(*(engine.generate(*r) for r in requests), return_exceptions=True)
        return [*outcomes[:5], *outcomes[6:-1], outcomes[5], outcomes[-1]]

    assert len(good) > 10
    *answered, first, second = asyncio.run(in_time(mixed()))
    for error in (first, second):
        assert isinstance(error, EngineError)
        assert str(error) == "generation failed: RuntimeError: not that one"
    for (_, alone), completion in zip(expected, answered, strict=True):
        assert isinstance(completion, Completion)
        assert_same(completion, alone)


def test_closing_fails_what_is_under_way(model: LlamaForCausalLM) -> None:
    async def closed() -> None:
        engine = LocalEngine(model)
        running = asyncio.create_task(engine.generate((1, 2, 3), SamplingParams(max_tokens=300)))
        await ticks(4)
        await engine.close()
        with pytest.raises(EngineError, match="closed"):
            await running

    asyncio.run(in_time(closed()))


# --- drawing tokens ------------------------------------------------------------------------------------------------


def test_temperature_zero_takes_the_most_likely_token_each_time(model: LlamaForCausalLM) -> None:
    prompt = random_prompt(11, 14)
    completion = answer(model, prompt, SamplingParams(max_tokens=10, temperature=0.0, seed=1))
    ids = list(prompt)
    for token in completion.token_ids:
        with torch.no_grad():
            logits = model(input_ids=torch.tensor([ids]), use_cache=False).logits[0, -1]
        assert token == int(logits.argmax())
        ids.append(token)
    expected = plain_logprobs(model, prompt, completion)
    assert completion.logprobs == pytest.approx(expected.tolist(), abs=1e-4)


def test_top_k_of_one_is_greedy(model: LlamaForCausalLM) -> None:
    prompt = random_prompt(11, 14)
    greedy = answer(model, prompt, SamplingParams(max_tokens=12, temperature=0.0))
    top = answer(model, prompt, SamplingParams(max_tokens=12, top_k=1, seed=77))
    assert_same(top, greedy)


PROBABILITIES = [0.5, 0.25, 0.15, 0.06, 0.04]


def draws(count: int, **sampling: Any) -> list[int]:
    logits = torch.tensor(PROBABILITIES).log().expand(count, -1)
    requests = [SamplingParams(seed=seed, **sampling) for seed in range(count)]
    tokens, _ = sample(logits, requests, [3] * count)
    return tokens


def assert_frequencies(tokens: list[int], probabilities: dict[int, float]) -> None:
    """Pearson's statistic stays below what chance exceeds once in a million."""
    counts = Counter(tokens)
    assert set(counts) == set(probabilities)
    total = len(tokens)
    statistic = sum((counts[token] - total * p) ** 2 / (total * p) for token, p in probabilities.items())
    bound = {1: 24.0, 2: 27.7, 3: 30.7, 4: 33.4}[len(probabilities) - 1]
    assert statistic < bound


def test_sampled_frequencies_follow_the_softmax() -> None:
    assert_frequencies(draws(20_000), dict(enumerate(PROBABILITIES)))


def test_temperature_sharpens_the_frequencies() -> None:
    # At temperature 1/2 probabilities are squared and normalised.
    total = sum(p**2 for p in PROBABILITIES)
    assert_frequencies(draws(20_000, temperature=0.5), {i: p**2 / total for i, p in enumerate(PROBABILITIES)})


def test_top_k_keeps_the_most_likely_tokens_in_proportion() -> None:
    assert_frequencies(draws(10_000, top_k=2), {0: 2 / 3, 1: 1 / 3})


@pytest.mark.parametrize(("top_p", "kept"), [(0.2, 1), (0.45, 1), (0.6, 2), (0.8, 3), (1.0, 5)])
def test_top_p_keeps_the_smallest_set_that_reaches_it(top_p: float, kept: int) -> None:
    total = sum(PROBABILITIES[:kept])
    tokens = draws(10_000, top_p=top_p)
    if kept == 1:
        assert set(tokens) == {0}
    else:
        assert_frequencies(tokens, {i: PROBABILITIES[i] / total for i in range(kept)})


def test_tokens_of_one_request_are_drawn_independently() -> None:
    count = 20_000
    logits = torch.tensor([0.5, 0.5]).log().expand(count, -1)
    tokens, _ = sample(logits, [SamplingParams(seed=5)] * count, range(count))
    pairs = [2 * first + second for first, second in zip(tokens[::2], tokens[1::2], strict=True)]
    assert_frequencies(pairs, dict.fromkeys(range(4), 0.25))


def test_the_reported_logprob_is_that_of_the_whole_distribution() -> None:
    logits = torch.tensor([PROBABILITIES]).log()
    for sampling in (SamplingParams(top_k=1), SamplingParams(top_p=0.1), SamplingParams(temperature=0.0)):
        tokens, logprobs = sample(logits, [sampling], [0])
        assert tokens == [0]
        assert logprobs == pytest.approx([math.log(0.5)], abs=1e-6)


def test_rows_with_different_parameters_share_a_batch() -> None:
    logits = torch.tensor(PROBABILITIES).log().expand(3, -1)
    mixed = [SamplingParams(temperature=0.0), SamplingParams(seed=4, top_k=2), SamplingParams(seed=11)]
    together, _ = sample(logits, mixed, [0, 1, 2])
    alone = [sample(logits[:1], [one], [index])[0][0] for index, one in enumerate(mixed)]
    assert together == alone


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"temperature": -1.0}, "temperature is -1.0"),
        ({"temperature": 1e-46}, "temperature is 1e-46"),
        ({"temperature": math.nan}, "temperature is nan"),
        ({"top_k": -1}, "top_k is -1"),
        ({"top_p": 0.0}, "top_p is 0.0"),
    ],
)
def test_sampling_that_means_nothing_is_refused(model: LlamaForCausalLM, wrong: dict[str, Any], named: str) -> None:
    with pytest.raises(EngineError, match=named):
        answer(model, (5, 6), SamplingParams(max_tokens=2, **wrong))


def test_an_engine_that_was_closed_can_be_asked_again(model: LlamaForCausalLM) -> None:
    engine = LocalEngine(model)
    request = random_requests(3)[2]

    async def close_and_ask() -> Completion:
        broken_off = asyncio.create_task(engine.generate(*request))
        await ticks(3)
        await engine.close()
        with pytest.raises(EngineError, match="closed"):
            await broken_off
        return await in_time(engine.generate(*request))

    assert_same(asyncio.run(close_and_ask()), answer(model, *request))


def test_weights_that_do_not_fit_leave_no_old_keys_behind(model: LlamaForCausalLM) -> None:
    engine = LocalEngine(model)
    request = random_requests(9)[8]
    name, tensor = next(iter(model.state_dict().items()))
    doubled = {key: 2 * value for key, value in model.state_dict().items()}

    async def ask_again() -> Completion:
        await engine.generate(*request)
        with pytest.raises(EngineError, match=f"'{name}' has shape"):
            await engine.update_weights([*doubled.items(), (name, tensor[:1])], 1)
        return await engine.generate(*request)

    found = asyncio.run(ask_again())
    model.load_state_dict(doubled)
    assert found.logprobs == answer(model, *request).logprobs


def test_one_request_may_be_as_long_as_the_context(model: LlamaForCausalLM) -> None:
    """The memory set aside for few requests of moderate length must hold one long one."""
    engine = LocalEngine(model, max_requests=1)
    assert engine._runner.num_blocks * 16 >= engine.context_length


def test_episodes_that_wait_some_rounds_of_the_event_loop_still_share_steps(tiny_model: LlamaForCausalLM) -> None:
    async def episodes(rounds: int) -> int:
        engine = LocalEngine(tiny_model, max_requests=8, context_length=64)

        async def one(number: int) -> None:
            for turn in range(3):
                await engine.generate([1, 2, number], SamplingParams(max_tokens=2, seed=turn))
                for _ in range(rounds + number % 4):  # what an answer over HTTP takes, not the same for everybody
                    await asyncio.sleep(0)

        await asyncio.gather(*(one(number) for number in range(8)))
        await engine.close()
        return engine.stats.steps

    # Each turn is a step for the prompts and one for the second tokens.
    assert asyncio.run(episodes(0)) == asyncio.run(episodes(10)) == 6


def test_closing_waits_for_what_the_device_still_computes(
    tiny_model: LlamaForCausalLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    finished: list[bool] = []

    async def close_early() -> None:
        engine = LocalEngine(tiny_model, max_requests=2, context_length=64)
        monkeypatch.setattr(engine._runner, "finish", lambda: finished.append(engine._serve_task is None))
        task = asyncio.create_task(engine.generate([1, 2, 3], SamplingParams(max_tokens=40)))
        await asyncio.sleep(0)
        await engine.close()
        with pytest.raises(EngineError, match="the engine was closed"):
            await task

    asyncio.run(close_early())
    assert finished == [True]
