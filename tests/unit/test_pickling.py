"""Records are pickled quickly, and arrive as they were."""

from __future__ import annotations

import copy
import pickle
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_r1.types import Action, Observation, SamplingParams, Step, StopReason, ToolCall, Trajectory

IMAGE_ID = 2**62 + 17


def step(prompt_ids: tuple[int, ...], action_ids: tuple[int, ...] = (1, 2)) -> Step:
    return Step(
        observation=Observation(token_ids=prompt_ids, anchor="here"),
        prompt_ids=prompt_ids,
        action=Action(text="hi", token_ids=action_ids, tool_calls=(ToolCall(name="search", arguments={"q": "x"}),)),
        action_ids=action_ids,
        rollout_logprobs=(-0.5,) * len(action_ids),
        reward=0.25,
        done=True,
        policy_versions=(3,) * len(action_ids),
        info={"metrics": {"found": 1}},
    )


def trajectory(*steps: Step) -> Trajectory:
    return Trajectory(
        task_id="a",
        group_id=1,
        member=0,
        steps=steps,
        outcome_reward=1.0,
        stop_reason=StopReason.MAX_STEPS,
        next_prompt_ids=(5, IMAGE_ID),
    )


def assert_same(one: Any, other: Any) -> None:
    """Equal, and of equal types throughout."""
    assert one == other
    assert repr(one) == repr(other)
    assert type(one) is type(other)


@given(st.lists(st.integers(0, 2**63 - 1), max_size=8), st.lists(st.integers(0, 60_000), min_size=1, max_size=8))
def test_a_trajectory_arrives_as_it_was(prompt_ids: list[int], action_ids: list[int]) -> None:
    sent = trajectory(step(tuple(prompt_ids), tuple(action_ids)), step((IMAGE_ID, 7)))
    for protocol in (2, pickle.HIGHEST_PROTOCOL):
        assert_same(pickle.loads(pickle.dumps(sent, protocol=protocol)), sent)
    assert_same(copy.deepcopy(sent), sent)
    assert_same(copy.copy(sent), sent)


@dataclass(frozen=True, kw_only=True)
class Labelled(SamplingParams):
    label: str = ""


def test_a_subclass_keeps_its_own_fields() -> None:
    assert_same(pickle.loads(pickle.dumps(Labelled(label="x", seed=3))), Labelled(label="x", seed=3))


def test_a_record_that_arrived_is_still_frozen() -> None:
    arrived = pickle.loads(pickle.dumps(SamplingParams(seed=3)))
    with pytest.raises(AttributeError):
        arrived.seed = 4
