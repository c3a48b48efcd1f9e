"""The simulated engine, in cases worked out by hand."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_r1.planning import Clock, EngineRates, SimulatedEngine

RATES = EngineRates(per_prompt_token=0.01, base=0.1, per_request=0.05)


def ends(requests: list[tuple[float, float, float]], rates: EngineRates = RATES) -> tuple[list[float], SimulatedEngine]:
    """When requests (arrival, prompt tokens, action tokens) are answered."""
    clock = Clock()
    engine = SimulatedEngine(clock, rates)
    found: dict[int, float] = {}
    for number, (arrival, prompt, action) in enumerate(requests):

        def submit(number: int = number, prompt: float = prompt, action: float = action) -> None:
            engine.submit(prompt, action, lambda: found.update({number: clock.now}))

        clock.after(arrival, submit)
    clock.run_until(lambda: len(found) == len(requests))
    return [found[number] for number in range(len(requests))], engine


def test_one_request_takes_its_prompt_and_then_its_tokens_alone() -> None:
    [end], engine = ends([(1.0, 10, 4)])
    assert end == pytest.approx(1.0 + 10 * 0.01 + 4 * 0.15)
    assert engine.busy_seconds == pytest.approx(0.7)


def test_two_requests_at_once_compute_both_prompts_then_share_the_decode_loop() -> None:
    """0 - 0.2: prompts; then 4 tokens at 0.1 + 2 * 0.05 for both."""
    found, _ = ends([(0.0, 10, 4), (0.0, 10, 4)])
    assert found == pytest.approx([1.0, 1.0])


def test_the_longer_request_is_faster_once_it_is_alone() -> None:
    """2 tokens for both at 0.2 s, then 3 more for the longer one at 0.15 s."""
    found, _ = ends([(0.0, 0, 2), (0.0, 0, 5)])
    assert found == pytest.approx([0.4, 0.4 + 0.45])


def test_a_prompt_that_arrives_stops_the_others_while_it_is_computed() -> None:
    """The first has 2 tokens at 0.3; a prompt of 100 tokens takes until 1.3; both then decode at 0.2 s: the first needs
    2 more tokens (1.7), the second 4, two of them alone (1.7 + 2 * 0.15)."""
    found, _ = ends([(0.0, 0, 4), (0.3, 100, 4)])
    assert found == pytest.approx([1.7, 2.0])


def test_a_paused_engine_keeps_its_requests_and_counts_no_time() -> None:
    clock = Clock()
    engine = SimulatedEngine(clock, RATES)
    found: list[float] = []
    engine.submit(0, 4, lambda: found.append(clock.now))
    clock.after(0.3, engine.pause)
    clock.after(5.3, engine.resume)
    clock.run_until(lambda: bool(found))
    assert found == pytest.approx([5.6])
    assert engine.busy_seconds == pytest.approx(0.6)


def test_an_engine_that_costs_nothing_answers_at_once() -> None:
    found, _ = ends([(1.0, 10, 4)], EngineRates(per_prompt_token=0.0, base=0.0, per_request=0.0))
    assert found == [1.0]


def test_waiting_for_what_never_happens_is_an_error() -> None:
    with pytest.raises(RuntimeError, match="never happens"):
        Clock().run_until(lambda: False)


requests = st.lists(
    st.tuples(st.floats(0, 3), st.integers(0, 50), st.integers(1, 20)).map(tuple), min_size=1, max_size=12
)


@given(requests)
def test_no_token_is_lost_and_the_engine_is_busy_for_exactly_its_work(calls: list[tuple[float, float, float]]) -> None:
    found, engine = ends(calls)
    assert engine.action_tokens == sum(action for _, _, action in calls)
    assert engine.prompt_tokens == sum(prompt for _, prompt, _ in calls)
    # Decoding one request's token costs at least per_request, and at most a whole round of its own.
    prompts = 0.01 * engine.prompt_tokens
    assert prompts + 0.05 * engine.action_tokens <= engine.busy_seconds + 1e-6
    assert engine.busy_seconds <= prompts + 0.15 * engine.action_tokens + 1e-6
    for (arrival, prompt, action), end in zip(calls, found, strict=True):
        assert end >= arrival + 0.01 * prompt + 0.15 * action - 1e-6
