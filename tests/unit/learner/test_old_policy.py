"""What an update starts from: the old policy's log-probs, the reference's, the engine's; and which settings exclude
each other."""

from __future__ import annotations

import copy
import io
import math
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
import torch
import yaml
from torch import Tensor, nn
from transformers import LlamaForCausalLM

import agent_r1
from agent_r1.algorithms.algorithm import bind_algorithm
from agent_r1.config import AlgorithmConfig, KLConfig, load_config
from agent_r1.errors import ConfigError
from agent_r1.learner.learner import TorchLearner
from agent_r1.learner.models import make_models
from agent_r1.types import Trajectory
from tests.helpers import commands
from tests.helpers.hand_made import (
    Fixed,
    assert_same_gradients,
    credited,
    experience_of,
    gradients_of,
    make_learner,
    make_step,
    make_trajectory,
    random_batch,
    random_group,
    row_logprobs,
    same_weights,
    sharpened,
    shifted_copy,
    weights_of,
    with_parts,
)
from tests.helpers.tiny_runs import tiny_overrides

PRESET_FOLDER = Path(agent_r1.__file__).parent / "config" / "algorithm"
PRESETS = sorted(path.stem for path in PRESET_FOLDER.glob("*.yaml"))


@pytest.fixture
def policy(tiny_model: LlamaForCausalLM) -> LlamaForCausalLM:
    return sharpened(tiny_model)


def off_by(batch: Sequence[Trajectory], noise: float, seed: int = 0) -> list[Trajectory]:
    """The same episodes from an engine whose log-probs are wrong by up to `noise`."""
    rng = random.Random(seed)

    def steps(trajectory: Trajectory) -> tuple[Any, ...]:
        return tuple(
            replace(step, rollout_logprobs=tuple(p + rng.uniform(-noise, noise) for p in step.rollout_logprobs))
            for step in trajectory.steps
        )

    return [replace(trajectory, steps=steps(trajectory)) for trajectory in batch]


def own_logprobs(policy: nn.Module, batch: Sequence[Trajectory]) -> list[Tensor]:
    """The log-probs of each step, from one unpadded row each."""
    steps = [step for trajectory in batch for step in trajectory.steps]
    return [row_logprobs(policy, step.prompt_ids, step.action_ids) for step in steps]


def engine_logprobs(batch: Sequence[Trajectory]) -> list[Tensor]:
    return [torch.tensor(step.rollout_logprobs) for trajectory in batch for step in trajectory.steps]


# --- whose log-probs the ratio starts from -------------------------------------------------------------------------


class CountsPasses:
    """Notes of each pass through a model's trunk whether it had a gradient."""

    def __init__(self, model: LlamaForCausalLM) -> None:
        self.with_gradient: list[bool] = []
        model.get_decoder().register_forward_pre_hook(
            lambda *arguments: self.with_gradient.append(torch.is_grad_enabled())
        )


@pytest.mark.parametrize(
    ("old_logprobs", "epochs", "minibatches", "extra_passes"),
    [
        ("auto", 1, 1, 0),
        ("rollout", 1, 1, 0),
        ("trainer", 1, 1, 0),
        ("auto", 2, 1, 1),
        ("auto", 1, 2, 1),
        ("trainer", 2, 2, 1),
        ("rollout", 2, 2, 0),
    ],
)
def test_the_old_policy_costs_at_most_one_pass_without_gradient(
    policy: LlamaForCausalLM, old_logprobs: str, epochs: int, minibatches: int, extra_passes: int
) -> None:
    experience = experience_of(*random_batch(policy))
    counter = CountsPasses(policy)
    learner = make_learner(policy, old_logprobs=old_logprobs, epochs=epochs, minibatches=minibatches)
    learner.learn_sync(experience, step=0)
    assert counter.with_gradient == [False] * extra_passes + [True] * epochs * minibatches


def test_a_correction_of_one_update_costs_no_pass(policy: LlamaForCausalLM) -> None:
    experience = experience_of(*random_batch(policy))
    counter = CountsPasses(policy)
    make_learner(policy, off_policy={"name": "token"}).learn_sync(experience, step=0)
    assert counter.with_gradient == [True]


def test_kl_in_the_reward_is_taken_between_the_trainers_own_numbers(policy: LlamaForCausalLM) -> None:
    """The reward must be known before the update, so one pass is spent on it."""
    reference = shifted_copy(policy)
    kl = KLConfig(coefficient=0.5, estimator="k1", place="reward")
    learner = with_parts(make_learner(policy, reference=reference, kl=kl), estimate=Fixed())
    batch = random_group(policy, 2, [1.0, 0.0])
    with torch.no_grad():
        penalty = 0.5 * (torch.cat(own_logprobs(policy, batch)) - torch.cat(own_logprobs(reference, batch)))
    counter = CountsPasses(policy)
    learner.learn_sync(experience_of(*off_by(batch, 0.5)), step=0)
    assert counter.with_gradient == [False, True]
    charged_N = cast(Fixed, learner.algorithm.estimate).table.token_rewards_N
    assert charged_N is not None
    assert charged_N.tolist() == pytest.approx((-penalty).tolist(), abs=1e-4)


STEP_CLIP = {"name": "clip", "ratio": "step", "clip_low": 3e-4, "clip_high": 4e-4}


def test_from_the_trainers_own_numbers_the_one_update_starts_at_ratio_one(policy: LlamaForCausalLM) -> None:
    """However wrong the engine is: a clip of 3e-4 would else cut what nobody has moved yet."""
    batch = random_batch(policy)
    found = []
    for noise in (0.0, 0.05):
        learner = make_learner(copy.deepcopy(policy), old_logprobs="trainer", loss=STEP_CLIP, micro_batch_tokens=100)
        metrics = learner.learn_sync(experience_of(*off_by(batch, noise)), step=0)
        assert metrics["policy/clip_fraction"] == 0.0
        assert metrics["policy/approx_kl"] == 0.0
        assert metrics["policy/ratio"] == pytest.approx(1.0, abs=1e-6)
        found.append(learner.policy)
    assert same_weights(found[1], weights_of(found[0]))
    assert not same_weights(policy, weights_of(found[0]))


def test_from_the_engines_numbers_such_a_narrow_clip_cuts_rounding(policy: LlamaForCausalLM) -> None:
    learner = make_learner(policy, old_logprobs="rollout", loss=STEP_CLIP)
    metrics = learner.learn_sync(experience_of(*off_by(random_batch(policy), 0.05)), step=0)
    assert metrics["policy/clip_fraction"] > 0.1


@pytest.mark.parametrize("preset", PRESETS)
def test_presets_start_from_the_engines_numbers_unless_their_clip_is_narrower_than_rounding(preset: str) -> None:
    settings = yaml.safe_load((PRESET_FOLDER / f"{preset}.yaml").read_text())
    narrow = settings["loss"].get("clip_low", 1.0) < 1e-2
    assert settings.get("old_logprobs", "auto") == ("trainer" if narrow else "auto")


def test_the_ratio_of_a_bypass_is_against_the_engine(policy: LlamaForCausalLM) -> None:
    batch = off_by(random_group(policy, 3, [1.0, 0.0]), 0.1)
    with torch.no_grad():
        difference = torch.cat(own_logprobs(policy, batch)) - torch.cat(engine_logprobs(batch))
    learner = with_parts(make_learner(policy, aggregation="token-mean"), estimate=Fixed(1.0))
    metrics = learner.learn_sync(experience_of(*batch), step=0)
    assert metrics["policy/ratio"] == pytest.approx(float(difference.exp().mean()), abs=1e-4)
    assert metrics["policy/approx_kl"] == pytest.approx(-float(difference.mean()), abs=1e-4)


@pytest.mark.parametrize("old_logprobs", ["auto", "trainer"])
def test_several_updates_all_start_from_the_trainers_numbers_of_before_the_first(
    policy: LlamaForCausalLM, old_logprobs: str
) -> None:
    batch = off_by(random_group(policy, 3, [1.0, 0.0]), 0.1)
    with torch.no_grad():
        expected = torch.cat(own_logprobs(policy, batch))
    old_N = credited(
        make_learner(policy, old_logprobs=old_logprobs, epochs=2), experience_of(*batch)
    ).arrays.old_logprobs_N
    assert old_N is not None
    assert old_N.tolist() == pytest.approx(expected.tolist(), abs=1e-4)


# --- correcting for the engine -------------------------------------------------------------------------------------


def weights_by_hand(name: str, own: Sequence[Tensor], engine: Sequence[Tensor]) -> list[Tensor]:
    """w = pi_old / pi_rollout: capped at 2 per token or per step, or left out beyond a factor of 1.5."""
    ratios = [(mine - theirs).exp() for mine, theirs in zip(own, engine, strict=True)]
    if name == "token":
        return [torch.tensor([min(w, 2.0) for w in ratio.tolist()]) for ratio in ratios]
    if name == "sequence":
        return [torch.full((len(ratio),), min(math.prod(ratio.tolist()), 2.0)) for ratio in ratios]
    return [torch.tensor([float(1 / 1.5 <= w <= 1.5) for w in ratio.tolist()]) for ratio in ratios]


@pytest.mark.parametrize("epochs", [1, 2])
@pytest.mark.parametrize(
    "correction",
    [{"name": "token"}, {"name": "sequence"}, {"name": "mask", "low": 1 / 1.5, "high": 1.5}],
    ids=lambda correction: str(correction["name"]),
)
def test_each_tokens_loss_is_weighed_by_how_likely_the_trainer_finds_it(
    policy: LlamaForCausalLM, correction: dict[str, Any], epochs: int
) -> None:
    batch = off_by(random_group(policy, 3, [1.0, 0.0]), 1.0)
    slow, engine = copy.deepcopy(policy), engine_logprobs(batch)
    own = own_logprobs(slow, batch)
    weights = weights_by_hand(correction["name"], [logprobs.detach() for logprobs in own], engine)
    num_tokens = sum(map(len, own))
    assert len({round(w, 3) for weight in weights for w in weight.tolist()}) > 1
    # The gradient of -A w ratio at ratio 1.
    (-torch.cat([w * logprobs for w, logprobs in zip(weights, own, strict=True)]).sum() * 1.5 / num_tokens).backward()
    learner = with_parts(
        make_learner(policy, off_policy=correction, aggregation="token-mean", epochs=epochs), estimate=Fixed(1.5)
    )
    metrics = learner.learn_sync(experience_of(*batch), step=0)
    assert metrics["offpolicy/weight"] == pytest.approx(float(torch.cat(weights).mean()), abs=1e-4)
    if epochs == 1:
        assert metrics["loss/policy"] == pytest.approx(-1.5 * float(torch.cat(weights).mean()), abs=1e-4)
        expected = [parameter.grad for parameter in slow.parameters() if parameter.grad is not None]
        assert_same_gradients(gradients_of(learner.policy_optimizer), expected, tolerance=1e-3)


def test_micro_batches_do_not_change_a_correction(policy: LlamaForCausalLM) -> None:
    experience = experience_of(*off_by(random_batch(policy), 1.0))
    found = []
    for budget in (4096, max(map(len, experience.samples))):
        learner = make_learner(
            copy.deepcopy(policy), off_policy={"name": "sequence"}, loss=STEP_CLIP, micro_batch_tokens=budget
        )
        learner.learn_sync(experience, step=0)
        found.append(gradients_of(learner.policy_optimizer))
    assert_same_gradients(found[1], found[0])


WAYS: list[dict[str, Any]] = [
    {"old_logprobs": "auto"},
    {"old_logprobs": "trainer"},
    {"old_logprobs": "auto", "epochs": 3},
    {"old_logprobs": "rollout", "epochs": 3},
    {"old_logprobs": "auto", "off_policy": {"name": "mask"}},
    {"old_logprobs": "trainer", "off_policy": {"name": "token"}, "epochs": 2},
]


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_how_far_the_engine_is_from_the_trainer_is_always_logged(policy: LlamaForCausalLM, way: dict[str, Any]) -> None:
    batch = off_by(random_group(policy, 3, [1.0, 0.0]), 0.3)
    with torch.no_grad():
        difference = torch.cat(own_logprobs(policy, batch)) - torch.cat(engine_logprobs(batch))
    learner = with_parts(make_learner(policy, aggregation="token-mean", **way), estimate=Fixed(1.0))
    metrics = learner.learn_sync(experience_of(*batch), step=0)
    assert metrics["offpolicy/logprob_difference"] == pytest.approx(float(difference.abs().mean()), abs=1e-4)
    assert metrics["offpolicy/kl"] == pytest.approx(
        sum(math.exp(d) - d - 1 for d in difference.tolist()) / len(difference), abs=1e-4
    )


def test_a_minibatch_without_credit_does_not_dilute_what_the_other_saw(policy: LlamaForCausalLM) -> None:
    """Two groups in two updates, one of them without spread: what was seen is what the other one saw."""
    reference = shifted_copy(policy)
    live, dead = random_group(policy, 1, [1.0, 0.0]), make_step(policy, (5, 6), (7, 8))
    expected: dict[str, float] | None = None
    for place in (0, 1):  # the live group is in the first update of one batch and in the second of the other
        batch = [replace(trajectory, group_id=place) for trajectory in live]
        batch += [make_trajectory([dead], 1.0, group_id=1 - place) for _ in range(2)]
        learner = make_learner(copy.deepcopy(policy), reference=reference, kl=KLConfig(coefficient=0.1), minibatches=2)
        metrics = learner.learn_sync(experience_of(*batch), step=0)
        names = ("policy/reference_kl", "policy/entropy", "offpolicy/kl", "policy/gradient_norm")
        found = {name: metrics[name] for name in names}
        expected = expected or found
        assert found == pytest.approx(expected, rel=1e-4)


# --- staying close to the reference --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("estimator", "divergence"),
    [("k2", lambda d: 0.5 * d**2), ("k3", lambda d: (-d).exp() + d - 1), ("abs", lambda d: d.abs())],
)
def test_kl_in_the_loss_is_its_coefficient_times_its_mean(
    policy: LlamaForCausalLM, estimator: str, divergence: Callable[[Tensor], Tensor]
) -> None:
    reference, slow = shifted_copy(policy), copy.deepcopy(policy)
    batch = random_group(policy, 3, [1.0, 0.0])
    with torch.no_grad():
        of_reference = torch.cat(own_logprobs(reference, batch))
    mean = divergence(torch.cat(own_logprobs(slow, batch)) - of_reference).mean()
    (0.3 * mean).backward()
    mean = mean.detach()
    learner = make_learner(
        policy, reference=reference, kl=KLConfig(coefficient=0.3, estimator=estimator), aggregation="token-mean"
    )
    metrics = with_parts(learner, estimate=Fixed(0.0)).learn_sync(experience_of(*batch), step=0)
    assert metrics["policy/reference_kl"] == pytest.approx(float(mean), rel=1e-3)
    assert metrics["loss/policy"] == pytest.approx(0.3 * float(mean), rel=1e-3)
    expected = [parameter.grad for parameter in slow.parameters() if parameter.grad is not None]
    assert_same_gradients(gradients_of(learner.policy_optimizer), expected, tolerance=1e-3)


def test_kl_in_the_reward_changes_the_advantage_of_who_left_the_reference(policy: LlamaForCausalLM) -> None:
    """Leave-one-out of two: the difference of their returns, each less half its summed divergence."""
    reference = shifted_copy(policy)
    batch = random_group(policy, 3, [2.0, 0.0])
    returns = []
    for trajectory in batch:
        with torch.no_grad():
            own, theirs = own_logprobs(policy, [trajectory]), own_logprobs(reference, [trajectory])
        divergence = float((torch.cat(own) - torch.cat(theirs)).sum())
        returns.append(trajectory.outcome_reward + trajectory.process_reward - 0.5 * divergence)
    kl = KLConfig(coefficient=0.5, estimator="k1", place="reward")
    learner = make_learner(policy, estimator={"name": "leave_one_out"}, reference=reference, kl=kl)
    found = credited(learner, experience_of(*batch))
    lengths = [trajectory.num_action_tokens for trajectory in batch]
    expected = [returns[0] - returns[1]] * lengths[0] + [returns[1] - returns[0]] * lengths[1]
    assert found.credit.advantages_N.tolist() == pytest.approx(expected, abs=1e-3)
    earned = sum(trajectory.outcome_reward + trajectory.process_reward for trajectory in batch)
    assert found.metrics["reward/kl_penalty"] == pytest.approx((earned - sum(returns)) / 2, abs=1e-3)


@pytest.mark.parametrize("preset", PRESETS)
def test_a_preset_has_the_models_it_asks_for_and_no_others(policy: LlamaForCausalLM, preset: str) -> None:
    settings = yaml.safe_load((PRESET_FOLDER / f"{preset}.yaml").read_text())
    kl = KLConfig(**settings.get("kl", {}))
    config = load_config(None, [f"algorithm={preset}", "model.path=none"])
    models = make_models(config, policy, bind_algorithm(config.algorithm))
    with_reference = preset in ("rloo", "reinforce_pp")
    assert (kl.coefficient > 0) == with_reference
    assert (models.reference is not None) == with_reference
    assert (models.critic is not None) == (preset in ("ppo", "steppo", "pspo"))
    if models.reference is not None:
        assert same_weights(models.reference, weights_of(policy))
        assert all(not parameter.requires_grad for parameter in models.reference.parameters())
        assert all(parameter.requires_grad for parameter in policy.parameters())


@pytest.mark.parametrize(("target", "error"), [(1e-6, 0.2), (1e6, -0.2), (None, 0.0)])
def test_the_coefficient_rises_above_the_target_and_falls_below_it(
    policy: LlamaForCausalLM, target: float | None, error: float
) -> None:
    """Six trajectories of a horizon of 60: a tenth of the bounded error at a time."""
    kl = KLConfig(coefficient=0.5, target=target, horizon=60.0)
    learner = make_learner(policy, reference=shifted_copy(policy), kl=kl)
    experience = experience_of(*random_batch(policy))
    used = [learner.learn_sync(experience, step=step)["policy/kl_coefficient"] for step in range(3)]
    assert used == pytest.approx([0.5 * (1 + error / 10) ** step for step in range(3)])
    assert learner.kl_coefficient == pytest.approx(0.5 * (1 + error / 10) ** 3)


def test_near_the_target_the_coefficient_moves_by_the_relative_error(policy: LlamaForCausalLM) -> None:
    reference, experience = shifted_copy(policy), experience_of(*random_batch(policy))

    def learn(target: float | None) -> tuple[TorchLearner, dict[str, float]]:
        kl = KLConfig(coefficient=0.5, target=target, horizon=60.0)
        learner = make_learner(copy.deepcopy(policy), reference=reference, kl=kl)
        return learner, learner.learn_sync(experience, step=0)

    observed = learn(None)[1]["policy/reference_kl"]
    learner, _ = learn(observed / 1.1)
    assert learner.kl_coefficient == pytest.approx(0.5 * (1 + 0.1 * 6 / 60))


@pytest.mark.parametrize("place", ["loss", "reward"])
def test_the_adapted_coefficient_is_the_one_that_counts(policy: LlamaForCausalLM, place: str) -> None:
    kl = KLConfig(coefficient=0.5, estimator="k3", place=place)
    learner = with_parts(make_learner(policy, reference=shifted_copy(policy), kl=kl), estimate=Fixed(0.0))
    learner.kl_coefficient = 0.0
    before = weights_of(policy)
    metrics = learner.learn_sync(experience_of(*random_batch(policy)), step=0)
    assert metrics["policy/kl_coefficient"] == 0.0
    assert metrics["policy/reference_kl"] > 0.0
    assert metrics.get("reward/kl_penalty", 0.0) == 0.0
    assert same_weights(policy, before)


def test_the_adapted_coefficient_is_saved_and_restored(policy: LlamaForCausalLM) -> None:
    def fresh() -> TorchLearner:
        kl = KLConfig(coefficient=0.5, target=1e-6, horizon=10.0)
        return make_learner(copy.deepcopy(policy), reference=shifted_copy(policy), kl=kl)

    learner, restored = fresh(), fresh()
    learner.learn_sync(experience_of(*random_batch(policy)), step=0)
    saved = io.BytesIO()
    torch.save(learner.state_dict(), saved)
    saved.seek(0)
    restored.load_state_dict(torch.load(saved, weights_only=True))
    assert restored.kl_coefficient == learner.kl_coefficient == pytest.approx(0.5 * (1 + 0.2 * 6 / 10))


# --- what cannot work is refused -----------------------------------------------------------------------------------


@pytest.mark.parametrize("correction", ["token", "sequence", "mask"])
def test_a_ratio_that_starts_at_the_engine_leaves_nothing_to_correct(correction: str) -> None:
    with pytest.raises(ConfigError, match=r"old_logprobs=rollout leaves nothing for algorithm\.off_policy"):
        bind_algorithm(AlgorithmConfig(old_logprobs="rollout", off_policy={"name": correction}))


def test_a_baseline_that_is_not_rolled_out_is_asked_for() -> None:
    with pytest.raises(ConfigError, match=r"algorithm\.group_plan=with_greedy"):
        bind_algorithm(AlgorithmConfig(estimator={"name": "greedy_baseline"}))


REFUSED = {
    "algorithm.old_logprobs=foo": "auto, rollout, trainer",
    "algorithm.critic.privileged=foo": "ground_truth, observation",
    "algorithm.process.normalisation=foo": "none, return_max, group_std, running",
    "algorithm.kl.place=foo": "loss, reward",
    "algorithm.overlong_fraction=2.0": "at most 1",
    "algorithm.critic.warmup_steps=-1": "at least 0",
    "algorithm.refill_rounds=-1": "at least 0",
    "algorithm.kl.coefficient=-0.1": "at least 0",
    "algorithm.kl.target=0.0": "more than 0",
    "algorithm.kl.horizon=0.0": "more than 0",
    "algorithm.process.bound=-1.0": "at least 0",
}


def refusal(folder: Path, model: Path, *extra: str) -> list[str]:
    """The lines of the error that a run is refused with, before it touches its model's weights."""
    broken = folder / "broken_model"
    broken.mkdir()
    for file in model.iterdir():
        # Weights that cannot be loaded: whoever reaches for them fails differently.
        content = b"not weights" if file.suffix == ".safetensors" else file.read_bytes()
        (broken / file.name).write_bytes(content)
    with pytest.raises(ConfigError) as caught:
        commands.train(*tiny_overrides(folder, broken), "algorithm=ppo", *extra, quiet=True)
    assert not (folder / "tiny").exists()
    return str(caught.value).splitlines()


def test_all_settings_that_cannot_be_used_are_named_in_one_error_and_no_model_is_loaded(
    tmp_path: Path, model_folder: Path
) -> None:
    lines = refusal(tmp_path, model_folder, *REFUSED)
    for setting, words in REFUSED.items():
        (line,) = (line for line in lines if setting in line)
        assert words in line


@pytest.mark.parametrize(
    ("extra", "words"),
    [
        (["algorithm.critic.warmup_steps=-1"], "algorithm.critic.warmup_steps=-1 must be at least 0"),
        (["algorithm.kl.estimator=k4"], "unknown KL estimator 'k4'"),
        (["algorithm.off_policy.name=tokn"], "Did you mean 'token'"),
        (["algorithm.old_logprobs=rollout", "algorithm.off_policy.name=token"], "algorithm.old_logprobs=rollout"),
        (["algorithm.critic.kind=shared", "algorithm.critic.privileged=observation"], "exclude each other"),
        (["algorithm=grpo", "algorithm.critic.bootstrap=true"], "algorithm.critic.bootstrap is set, but this"),
        (["algorithm=grpo", "algorithm.critic.warmup_steps=2"], "algorithm.critic.warmup_steps is set, but this"),
        (["algorithm=grpo", "algorithm.critic.privileged=ground_truth"], "has no critic"),
        (["algorithm.kl.target=0.1"], "start it above 0 with algorithm.kl.coefficient"),
        (["algorithm.critic.warmup_steps=some"], "algorithm.critic.warmup_steps"),
    ],
    ids=lambda value: str(value)[:60],
)
def test_a_setting_that_cannot_be_used_is_one_clear_error(
    tmp_path: Path, model_folder: Path, extra: list[str], words: str
) -> None:
    assert any(words in line for line in refusal(tmp_path, model_folder, *extra))
