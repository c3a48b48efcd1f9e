"""Steps to verl's sequences: masks, log-probs and rewards by hand, and what holds for every episode."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_r1.errors import ConfigError, DataError
from agent_r1.integrations.verl import VerlSequence, check_lengths, mask_runs, sequences_of
from agent_r1.integrations.verl.outputs import VerlSetting, verl_sequences
from agent_r1.types import Action, Observation, Step, StopReason, Trajectory


def step(prompt: Sequence[int], action: Sequence[int], reward: float = 0.0) -> Step:
    return Step(
        observation=Observation(token_ids=tuple(prompt)),
        prompt_ids=tuple(prompt),
        action=Action(text=""),
        action_ids=tuple(action),
        rollout_logprobs=tuple(-0.1 * token for token in action),
        reward=reward,
        done=False,
        policy_versions=(0,) * len(action),
    )


def trajectory(*steps: Step) -> Trajectory:
    return Trajectory(task_id="t", group_id=0, member=0, steps=steps, outcome_reward=1.0, stop_reason=StopReason.DONE)


def setting(estimator: str = "agent_r1/group", *, is_v1: bool = True, step_ratio: bool = False) -> VerlSetting:
    return VerlSetting(estimator=estimator, is_v1=is_v1, prompt_length=8, response_length=8, step_ratio=step_ratio)


def test_prompts_that_extend_each_other_are_one_sequence() -> None:
    (found,) = sequences_of([step([1, 2], [3], 0.5), step([1, 2, 3, 7], [4, 5], 1.0)])
    assert found == VerlSequence(
        prompt_ids=(1, 2),
        response_ids=(3, 7, 4, 5),
        response_mask=(1, 0, 1, 1),
        response_logprobs=(-0.1 * 3, 0.0, -0.1 * 4, -0.5),
        response_rewards=(0.5, 0.0, 0.0, 1.0),
        steps=(0, 1),
        runs_are_steps=True,
    )
    assert sum(found.response_rewards) == 1.5


def test_rewritten_history_begins_a_sequence_and_the_last_step_is_in_the_last() -> None:
    first, second = sequences_of([step([1, 2], [3]), step([9, 2], [4]), step([9, 2, 4, 8], [5])])
    assert (first.prompt_ids, first.response_ids, first.steps) == ((1, 2), (3,), (0,))
    assert (second.prompt_ids, second.response_ids, second.response_mask) == ((9, 2), (4, 8, 5), (1, 0, 1))
    assert second.steps == (1, 2)


def test_a_branch_reads_the_actions_before_it_as_a_prompt() -> None:
    """Step 2 continues step 0, as step 1 did: the action of step 0 is trained in the first sequence alone."""
    main, branch = sequences_of([step([1], [2]), step([1, 2, 3], [4]), step([1, 2, 5], [6])])
    assert (main.response_ids, main.response_mask) == ((2, 3, 4), (1, 0, 1))
    assert (branch.prompt_ids, branch.response_ids, branch.response_mask) == ((1, 2, 5), (6,), (1,))


def test_a_prompt_that_drops_the_end_of_the_turn_begins_a_sequence() -> None:
    assert len(sequences_of([step([1], [2, 3]), step([1, 2, 7], [4])])) == 2


def test_a_step_that_sampled_nothing_gives_its_reward_to_the_token_before_it() -> None:
    (found,) = sequences_of([step([1], [2, 3], 0.5), step([1, 2, 3, 4], [], 0.25)])
    assert (found.response_ids, found.response_rewards) == ((2, 3), (0.0, 0.75))
    assert not found.runs_are_steps


def test_a_first_step_that_sampled_nothing_gives_its_reward_to_the_next() -> None:
    (found,) = sequences_of([step([1], [], 0.25), step([1, 4], [5], 0.5)])
    assert (found.prompt_ids, found.response_ids, found.response_rewards) == ((1,), (4, 5), (0.0, 0.75))


def test_a_conversation_that_sampled_nothing_gives_its_reward_to_the_last_token() -> None:
    (found,) = sequences_of([step([1], [2], 0.5), step([9], [], 0.25)])
    assert (found.steps, found.response_rewards) == ((0,), (0.75,))


def test_an_episode_without_a_sampled_token_is_refused() -> None:
    with pytest.raises(DataError, match="no sampled id"):
        sequences_of([step([1], [])])


def test_rewards_must_be_one_per_step() -> None:
    with pytest.raises(ValueError, match="2 rewards for 1 steps"):
        sequences_of([step([1], [2])], [0.0, 1.0])


def test_steps_that_touch_are_one_run_of_the_mask() -> None:
    (found,) = sequences_of([step([1], [2, 3]), step([1, 2, 3], [4])])
    assert mask_runs(found.response_mask) == [3]
    assert not found.runs_are_steps


@st.composite
def episodes(draw: st.DrawFn) -> list[Step]:
    """Episodes that append, cut, rewrite and branch, in a small vocabulary so that prefixes meet by chance too."""
    ids = st.lists(st.integers(0, 2), max_size=3)
    steps: list[Step] = []
    for _ in range(draw(st.integers(1, 6))):
        past: list[int] = []
        if steps and draw(st.booleans()):
            before = draw(st.sampled_from(steps))
            past = [*before.prompt_ids, *before.action_ids]
            past = past[: draw(st.integers(0, len(past)))] if draw(st.integers(0, 3)) == 0 else past
        prompt = [*past, *draw(ids)]
        steps.append(step(prompt, draw(ids), draw(st.sampled_from([0.0, 0.5, -1.0]))))
    return steps


@given(episodes())
def test_every_sampled_id_is_trained_once_after_exactly_the_ids_it_was_sampled_after(steps: list[Step]) -> None:
    if not any(each.action_ids for each in steps):
        return
    found = sequences_of(steps)
    trained = []
    for sequence in found:
        size = len(sequence.response_ids)
        assert size == len(sequence.response_mask) == len(sequence.response_logprobs) == len(sequence.response_rewards)
        assert sequence.response_mask[-1] == 1
        ids = [*sequence.prompt_ids, *sequence.response_ids]
        for place, (marked, logprob) in enumerate(
            zip(sequence.response_mask, sequence.response_logprobs, strict=True), start=len(sequence.prompt_ids)
        ):
            assert marked or logprob == 0.0
            if marked:
                trained.append((tuple(ids[:place]), ids[place], logprob))
    sampled = [
        ((*each.prompt_ids, *each.action_ids[:place]), token, each.rollout_logprobs[place])
        for each in steps
        for place, token in enumerate(each.action_ids)
    ]
    assert sorted(trained) == sorted(sampled)
    assert sum(sum(sequence.response_rewards) for sequence in found) == pytest.approx(
        sum(each.reward for each in steps)
    )
    rewarded = [
        marked
        for sequence in found
        for marked, r in zip(sequence.response_mask, sequence.response_rewards, strict=True)
        if r
    ]
    assert all(rewarded)


@given(episodes())
def test_runs_are_steps_says_whether_the_mask_has_their_lengths(steps: list[Step]) -> None:
    if not any(each.action_ids for each in steps):
        return
    for sequence in sequences_of(steps):
        lengths = [len(steps[index].action_ids) for index in sequence.steps]
        assert sequence.runs_are_steps == (mask_runs(sequence.response_mask) == lengths)


# --- what verl cannot carry -------------------------------------------------------------------------------------------

REWRITTEN = trajectory(step([1], [2]), step([9], [3]))
APPENDED = trajectory(step([1], [2], 0.5), step([1, 2, 7], [3]))
TOUCHING = trajectory(step([1], [2]), step([1, 2], [3]))


def test_rewritten_history_is_refused_where_a_worker_takes_one_output() -> None:
    with pytest.raises(ConfigError, match=r"2 sequences.*takes one per episode.*trainer.use_v1=True"):
        verl_sequences(REWRITTEN, [0.0, 1.0], setting("grpo", is_v1=False))


def test_rewritten_history_needs_the_estimator_that_compares_episodes() -> None:
    with pytest.raises(ConfigError, match=r"adv_estimator=grpo.*found agent_r1/group"):
        verl_sequences(REWRITTEN, [0.0, 1.0], setting())
    assert len(verl_sequences(REWRITTEN, [0.0, 1.0], setting("grpo"))) == 2


def test_a_step_reward_is_refused_where_it_would_be_moved_to_the_end() -> None:
    with pytest.raises(ConfigError, match=r"one reward per episode.*reward.process_weight=0"):
        verl_sequences(APPENDED, [0.5, 1.0], setting("gae", is_v1=False))
    assert len(verl_sequences(APPENDED, [0.5, 1.0], setting("rloo", is_v1=False))) == 1
    assert len(verl_sequences(APPENDED, [0.0, 1.0], setting("gae", is_v1=False))) == 1
    (found,) = verl_sequences(APPENDED, [0.5, 1.0], setting("gae"))
    assert found.response_rewards == (0.5, 0.0, 1.0)


def test_steps_without_anything_between_them_are_refused_where_boundaries_count() -> None:
    for refused in (setting("agent_r1/step_group"), setting(step_ratio=True)):
        with pytest.raises(ConfigError, match="no step boundaries but the runs of its mask"):
            verl_sequences(TOUCHING, [0.0, 1.0], refused)
    assert len(verl_sequences(TOUCHING, [0.0, 1.0], setting())) == 1


@pytest.mark.parametrize(("prompt", "action", "name"), [(range(9), [1], "prompt"), ([1], range(9), "response")])
def test_what_verl_would_cut_is_refused(prompt: Sequence[int], action: Sequence[int], name: str) -> None:
    (sequence,) = sequences_of([step(list(prompt), list(action))])
    with pytest.raises(ConfigError, match=f"a {name} of 9 tokens does not fit data.max_{name}_length=8"):
        check_lengths(sequence, prompt_length=8, response_length=8)
