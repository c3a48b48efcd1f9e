"""`tracking.record_credit`: what is recorded is what the updates used, for every preset and packing, at no cost."""

from __future__ import annotations

import copy
import math
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from transformers import LlamaForCausalLM

from agent_r1.algorithms.algorithm import Algorithm, bind_algorithm
from agent_r1.config import CriticConfig, KLConfig, load_config, presets
from agent_r1.errors import ConfigError
from agent_r1.learner import learner as learner_module
from agent_r1.learner.critics import make_critic as make_configured_critic
from agent_r1.learner.experience import Experience
from agent_r1.learner.learner import TorchLearner
from agent_r1.learner.packing.samples import Packer, pack
from agent_r1.learner.packing.trie import pack_tries
from agent_r1.runs import RunFolder, read_credit, read_trajectories
from agent_r1.training.plan import check_config
from agent_r1.types import Group, Numbers, Step, StepCredit, Task, TokenIds, Trajectory, TrajectoryCredit
from tests.helpers import commands
from tests.helpers.hand_made import (
    gather,
    make_critic,
    make_learner,
    make_step,
    make_trajectory,
    random_ids,
    row_logprobs,
    same_weights,
    sharpened,
    shifted_copy,
    weights_of,
)
from tests.helpers.ragged import PerStep, Ragged
from tests.helpers.tiny_runs import score_variety, tiny_overrides
from tests.unit.algorithms.test_estimators import (
    reference_greedy_baseline,
    reference_return_to_go,
    reference_step_gae,
    reference_token_gae,
    reference_token_return,
)
from tests.unit.algorithms.test_group_estimators import (
    reference_gigpo,
    reference_group,
    reference_group_whitened,
    reference_leave_one_out,
    reference_step_group,
)

PACKINGS: dict[str, Packer] = {
    "rows": partial(pack, max_tokens=60),
    "trie": partial(pack_tries, max_tokens=120, row_tokens=80),
}
GREEDY_RETURN = 0.4


@pytest.fixture
def policy(tiny_model: LlamaForCausalLM) -> LlamaForCausalLM:
    return sharpened(tiny_model)


def groups_of(policy: nn.Module, noise: float = 0.0, *, with_empty_step: bool = True) -> list[Group]:
    """Three groups of conversations that share their first prompt and part ways. All members of the second earned the
    same. One step has no token. The engine's log-probs are wrong by up to `noise`."""
    rng = random.Random(7)

    def off(step: Step) -> Step:
        wrong = tuple(logprob + rng.uniform(-noise, noise) for logprob in step.rollout_logprobs)
        return replace(step, rollout_logprobs=wrong)

    groups = []
    for number, outcomes in enumerate(([1.0, 0.0, 0.5], [1.0, 1.0, 1.0], [0.0, 1.0, 1.0])):
        first, members = random_ids(rng, 6), []
        for member, outcome in enumerate(outcomes):
            prompt, steps = first, []
            for index in range(1 + (member + number) % 3):
                is_empty = with_empty_step and (number, member, index) == (2, 0, 1)
                action = () if is_empty else random_ids(rng, rng.randint(1, 5))
                steps.append(off(make_step(policy, prompt, action, reward=0.0 if number == 1 else 0.1 * index)))
                prompt = prompt + action + random_ids(rng, 2)
            members.append(replace(make_trajectory(steps, outcome, group_id=10 + number), member=member))
        greedy = replace(members[0], member=-1, outcome_reward=GREEDY_RETURN - members[0].process_reward)
        task = Task(task_id=f"task-{number}", prompt=())
        groups.append(Group(task=task, group_id=10 + number, trajectories=tuple(members), greedy=greedy))
    return groups


@cache
def bound(preset: str) -> Algorithm:
    return bind_algorithm(load_config(None, [f"algorithm={preset}", "model.path=none"]).algorithm)


def preset_learner(policy: nn.Module, preset: str, packer: Packer) -> TorchLearner:
    algorithm = bound(preset)
    settings = algorithm.settings.critic
    critic = (
        make_configured_critic(policy, settings, within_steps=algorithm.values_within_steps)
        if settings.enabled
        else None
    )
    return make_learner(policy, algorithm=algorithm, critic=critic, packer=packer)


def recorded(learner: TorchLearner, experience: Experience, step: int = 0) -> list[TrajectoryCredit]:
    found: list[TrajectoryCredit] = []
    learner.learn_sync(experience, step=step, on_credit=found.extend)
    return found


def steps_of(credits: Sequence[TrajectoryCredit]) -> list[StepCredit]:
    return [step for credit in credits for step in credit.steps]


def over_tokens(batch: Sequence[Ragged], per_step: PerStep) -> list[float | None]:
    pairs = [pair for t, row in zip(batch, per_step, strict=True) for pair in zip(row, t.lengths, strict=True)]
    return [advantage for advantage, length in pairs for _ in range(length)]


def slow_advantages(algorithm: Algorithm, batch: list[Ragged]) -> list[float | None]:
    """The advantages of a preset by plain loops."""
    name, given = algorithm.settings.estimator.name, algorithm.settings.estimator.arguments
    by_token: dict[str, Callable[[], Sequence[float | None]]] = {
        "step_gae": lambda: reference_step_gae(batch, given["gamma"], given["lam"])[0],
        "token_gae": lambda: reference_token_gae(batch, given["gamma"], given["lam"])[0],
        "token_return": lambda: reference_token_return(batch, given["gamma"]),
        "group_whitened": lambda: reference_group_whitened(batch),
    }
    by_step: dict[str, Callable[[], PerStep]] = {
        "group": lambda: reference_group(batch, given["normalise_std"]),
        "leave_one_out": lambda: reference_leave_one_out(batch),
        "return_to_go": lambda: reference_return_to_go(batch, given["gamma"]),
        "greedy_baseline": lambda: reference_greedy_baseline(batch),
        "step_group": lambda: reference_step_group(batch, given["gamma"]),
        "gigpo": lambda: reference_gigpo(batch, given["gamma"], given["step_weight"], given["mean_norm"]),
    }
    return list(by_token[name]()) if name in by_token else over_tokens(batch, by_step[name]())


def ragged_of(trajectory: Trajectory, credit: TrajectoryCredit, letters: dict[TokenIds, str]) -> Ragged:
    """The trajectory as the references take it: rewards by hand, values as recorded, one letter per prompt."""
    rewards = [step.reward for step in trajectory.steps]
    rewards[-1] += trajectory.outcome_reward
    values = [0.0 if value is None else value for step in credit.steps for value in step.values]
    anchors = [letters.setdefault(step.prompt_ids, chr(97 + len(letters))) for step in trajectory.steps]
    return Ragged(
        rewards=rewards,
        lengths=[len(step.action_ids) for step in trajectory.steps],
        group=trajectory.group_id,
        values=values or None,
        greedy=GREEDY_RETURN,
        anchors="".join(anchors),
    )


def assert_numbers(found: Sequence[float | None], expected: Sequence[float | None], tolerance: float) -> None:
    assert [number is None for number in found] == [number is None for number in expected]
    assert [number or 0.0 for number in found] == pytest.approx([number or 0.0 for number in expected], abs=tolerance)


@pytest.mark.parametrize(
    ("preset", "packing"),
    [*((name, "trie") for name in sorted(presets("algorithm"))), ("ppo", "rows"), ("grpo", "rows")],
)
def test_recorded_advantages_are_those_of_the_slow_references(
    policy: LlamaForCausalLM, preset: str, packing: str
) -> None:
    groups = groups_of(policy)
    learner = preset_learner(policy, preset, PACKINGS[packing])
    credits = recorded(learner, gather(groups))
    members = [trajectory for group in groups for trajectory in group]
    assert [(credit.group_id, credit.member) for credit in credits] == [(t.group_id, t.member) for t in members]
    letters: dict[TokenIds, str] = {}
    batch = [ragged_of(trajectory, credit, letters) for trajectory, credit in zip(members, credits, strict=True)]
    assert [[step.reward for step in credit.steps] for credit in credits] == [pytest.approx(t.rewards) for t in batch]
    assert [[len(step.advantages) for step in credit.steps] for credit in credits] == [t.lengths for t in batch]
    expected = slow_advantages(learner.algorithm, batch)
    assert_numbers([number for step in steps_of(credits) for number in step.advantages], expected, 1e-5)
    gamma = learner.algorithm.settings.gamma
    for t, credit in zip(batch, credits, strict=True):
        togo = [sum(gamma**k * reward for k, reward in enumerate(t.rewards[i:])) for i in range(len(t.rewards))]
        assert [step.observed_return for step in credit.steps] == pytest.approx(togo)


@pytest.mark.parametrize("packing", PACKINGS)
@pytest.mark.parametrize("kind", ["own", "shared", "closed_form"])
def test_recorded_values_are_the_critics_before_the_update(policy: LlamaForCausalLM, kind: str, packing: str) -> None:
    """Each step's value is that of one unpadded row, whatever the packing and the order of its tokens."""
    settings = CriticConfig(kind=kind)
    estimator = {"name": "step_gae", "lam": 1.0, "whitened": False}
    found = []
    for packer in (PACKINGS["trie"], partial(pack, max_tokens=4096)):
        own = copy.deepcopy(policy)
        critic = make_configured_critic(own, settings, within_steps=False)
        if kind != "closed_form":
            with torch.no_grad():
                critic.head.weight.normal_(0.0, 0.3, generator=torch.Generator().manual_seed(2))
        learner = make_learner(
            own, estimator=estimator, critic=critic, critic_settings=settings, packer=packer, loss={"name": "clip"}
        )
        found.append(steps_of(recorded(learner, gather(groups_of(policy)))))
    values = [step.value for step in found[0] if step.values]
    assert len({round(value, 4) for value in values if value is not None}) > 3
    assert values == pytest.approx([step.value for step in found[1] if step.values], abs=1e-4)
    for step in found[0]:
        if step.values:
            assert step.observed_return is not None
            assert step.value is not None
            assert step.advantage == pytest.approx(step.observed_return - step.value, abs=1e-5)
            assert set(step.values[1:]) <= {None}


# --- ratios --------------------------------------------------------------------------------------------------------


def logprobs_under(policy: nn.Module, groups: Sequence[Group]) -> list[list[float]]:
    """Of each step, from one unpadded row."""
    with torch.no_grad():
        return [
            row_logprobs(policy, step.prompt_ids, step.action_ids).tolist() if step.action_ids else []
            for group in groups
            for trajectory in group
            for step in trajectory.steps
        ]


def engine_logprobs(groups: Sequence[Group]) -> list[list[float]]:
    return [list(step.rollout_logprobs) for group in groups for t in group for step in t.steps]


def ratios(now: Sequence[Sequence[float]], old: Sequence[Sequence[float]]) -> list[list[float]]:
    return [[math.exp(a - b) for a, b in zip(one, other, strict=True)] for one, other in zip(now, old, strict=True)]


def rows(numbers: Sequence[Numbers]) -> list[Any]:
    return [pytest.approx(list(entry), abs=2e-4) for entry in numbers]


EVERYWHERE = {"name": "return_to_go"}
"""Credit for every token, so that every token is in an update."""


@pytest.mark.parametrize(
    ("old_logprobs", "epochs", "packing"),
    [("rollout", 1, "trie"), ("trainer", 1, "rows"), ("rollout", 3, "rows"), ("trainer", 3, "trie")],
)
def test_a_ratio_is_the_probability_in_the_last_epoch_over_the_old_one(
    policy: LlamaForCausalLM, old_logprobs: str, epochs: int, packing: str
) -> None:
    """The first epoch is the last one when there is only one; the weights are those before the last update."""
    groups = groups_of(policy, noise=0.2)
    start = copy.deepcopy(policy)
    make = partial(make_learner, estimator=EVERYWHERE, old_logprobs=old_logprobs, packer=PACKINGS[packing])
    before_last = copy.deepcopy(policy)
    if epochs > 1:
        make(before_last, epochs=epochs - 1).learn_sync(gather(groups), step=0)
    found = steps_of(recorded(make(policy, epochs=epochs), gather(groups)))
    now = logprobs_under(before_last, groups)
    old = engine_logprobs(groups) if old_logprobs == "rollout" else logprobs_under(start, groups)
    assert now == rows([step.logprobs for step in found])
    assert old == rows([step.old_logprobs for step in found])
    assert ratios(now, old) == rows([step.ratios for step in found])
    moved = max(abs(ratio - 1) for step in found for ratio in step.ratios if ratio is not None)
    assert moved == 0.0 if (epochs, old_logprobs) == (1, "trainer") else moved > 0.01


def test_every_minibatch_gives_the_ratios_of_its_own_last_update(policy: LlamaForCausalLM) -> None:
    groups = groups_of(policy, with_empty_step=False)
    experience, start = gather(groups), copy.deepcopy(policy)
    learner = make_learner(policy, estimator=EVERYWHERE, epochs=2, minibatches=2, old_logprobs="trainer")
    weights: list[nn.Module] = []

    def keep(*arguments: Any) -> None:
        if torch.is_grad_enabled():
            weights.append(copy.deepcopy(policy))

    handle = policy.get_decoder().register_forward_pre_hook(keep)
    found = steps_of(recorded(learner, experience))
    handle.remove()
    updates = learner._minibatches(experience, 0)
    assert len(weights) == len(updates) == 4
    old, checked = logprobs_under(start, groups), 0
    for model, chosen in zip(weights[2:], updates[2:], strict=True):
        now = logprobs_under(model, groups)
        for index in chosen:
            assert ratios([now[index]], [old[index]]) == rows([found[index].ratios])
            checked += 1
    assert checked == len(found)


def test_a_token_that_no_update_read_has_no_ratio(policy: LlamaForCausalLM) -> None:
    """The second group earned the same: its samples are in no update."""
    credits = recorded(make_learner(policy), gather(groups_of(policy)))
    for credit in credits:
        for step in credit.steps:
            is_read = credit.group_id != 11
            assert all((ratio is not None) == is_read for ratio in step.ratios)
            assert all((entropy is not None) == is_read for entropy in step.entropies)
            assert all((advantage is not None) == is_read for advantage in step.advantages)


def test_while_a_critic_warms_up_there_are_advantages_but_no_ratios(policy: LlamaForCausalLM) -> None:
    learner = make_learner(
        policy,
        estimator={"name": "step_gae"},
        critic=make_critic(policy),
        critic_settings=CriticConfig(kind="own", warmup_steps=1),
    )
    steps = steps_of(recorded(learner, gather(groups_of(policy))))
    assert all(ratio is None for step in steps for ratio in step.ratios)
    assert all(advantage is not None for step in steps for advantage in step.advantages)


def test_entropies_are_those_of_the_same_pass(policy: LlamaForCausalLM) -> None:
    groups = groups_of(policy, with_empty_step=False)
    with torch.no_grad():
        expected = [
            torch.distributions.Categorical(
                logits=policy(input_ids=torch.tensor([step.prompt_ids + step.action_ids])).logits[
                    0, len(step.prompt_ids) - 1 : -1
                ]
            )
            .entropy()
            .tolist()
            for group in groups
            for trajectory in group
            for step in trajectory.steps
        ]
    found = steps_of(recorded(make_learner(policy, estimator=EVERYWHERE, packer=PACKINGS["trie"]), gather(groups)))
    assert expected == rows([step.entropies for step in found])


def test_a_kl_penalty_in_the_reward_is_part_of_the_recorded_reward(policy: LlamaForCausalLM) -> None:
    groups, reference = groups_of(policy), shifted_copy(policy)
    own, theirs = logprobs_under(policy, groups), logprobs_under(reference, groups)
    learner = make_learner(policy, reference=reference, kl=KLConfig(coefficient=0.5, estimator="k1", place="reward"))
    credits = recorded(learner, gather(groups))
    plain = [reward for g in groups for t in g for reward in ragged_of(t, credits[0], {}).rewards]
    expected = [reward - 0.5 * (sum(a) - sum(b)) for reward, a, b in zip(plain, own, theirs, strict=True)]
    assert [step.reward for step in steps_of(credits)] == pytest.approx(expected, abs=1e-3)


# --- at no cost ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("preset", ["grpo", "steppo", "ppo"])
def test_recording_changes_no_metric_and_no_weight(policy: LlamaForCausalLM, preset: str) -> None:
    experience, found = gather(groups_of(policy)), []
    for on_credit in (None, lambda credits: None):
        own = copy.deepcopy(policy)
        passes: list[bool] = []
        own.get_decoder().register_forward_pre_hook(lambda *_, passes=passes: passes.append(torch.is_grad_enabled()))
        learner = preset_learner(own, preset, PACKINGS["trie"])
        metrics = [learner.learn_sync(experience, step=step, on_credit=on_credit) for step in range(2)]
        found.append((metrics, passes, weights_of(own)))
    assert found[0][:2] == found[1][:2]
    assert all(torch.equal(weight, found[1][2][name]) for name, weight in found[0][2].items())
    assert not same_weights(policy, found[0][2])


def test_without_being_asked_nothing_is_kept(policy: LlamaForCausalLM, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: Any, **keywords: Any) -> None:
        raise AssertionError("recorded without being asked")

    monkeypatch.setattr(learner_module, "PassLog", refuse)
    monkeypatch.setattr(learner_module, "recorded_credit", refuse)
    metrics = make_learner(policy).learn_sync(gather(groups_of(policy)), step=0)
    assert metrics["loss/updates"] == 1.0


def test_credit_without_recorded_trajectories_is_refused(tmp_path: Path, model_folder: Path) -> None:
    overrides = tiny_overrides(tmp_path, model_folder, "tracking.record_credit=true", "tracking.record_every=0")
    with pytest.raises(ConfigError, match=r"record_every=0 records none; set record_every=1"):
        check_config(load_config(overrides[0], overrides[1:]))


# --- whole runs ----------------------------------------------------------------------------------------------------


def untimed(metrics: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    timed = ("time/", "perf/", "tool/")
    return [{name: value for name, value in line.items() if not name.startswith(timed)} for line in metrics]


@pytest.mark.whole
def test_a_run_writes_credit_beside_the_trajectories_it_records(
    tmp_path: Path, model_folder: Path, uninterrupted: Callable[..., Path]
) -> None:
    tracking = ["tracking.record_credit=true", "tracking.record_every=2"]
    commands.train(*tiny_overrides(tmp_path, model_folder, *tracking), quiet=True, reward=score_variety)
    run, plain = RunFolder(tmp_path / "tiny"), RunFolder(uninterrupted())
    assert sorted(path.name for path in run.credit.iterdir()) == ["2.jsonl", "4.jsonl"]
    assert not plain.credit.exists()
    assert untimed(run.read_metrics()) == untimed(plain.read_metrics())
    for step in (2, 4):
        trajectories = {(t.group_id, t.member): t for t in read_trajectories(run.step_trajectories(step))}
        credit = read_credit(run.step_credit(step))
        assert credit.keys() == trajectories.keys()
        for key, steps in credit.items():
            for one, other in zip(steps, trajectories[key].steps, strict=True):
                assert one.old_logprobs == pytest.approx(other.rollout_logprobs, abs=2e-6)
                assert len(one.advantages) == len(other.action_ids)
                assert one.ratios == pytest.approx([1.0] * len(other.action_ids), abs=1e-2)


@pytest.mark.whole
def test_credit_that_cannot_be_written_does_not_end_the_run(tmp_path: Path, model_folder: Path) -> None:
    overrides = tiny_overrides(tmp_path, model_folder, "trainer.steps=1", "tracking.record_credit=true")
    commands.train(*overrides, "tracking.record_credit=false", quiet=True, reward=score_variety)
    (tmp_path / "tiny" / "credit").write_text("a file in the place of the folder")
    summary = commands.train(*overrides, "trainer.steps=2", "run.resume=must", quiet=True, reward=score_variety)
    assert summary.steps == 2
    assert any("credit" in warning for warning in summary.warnings)
