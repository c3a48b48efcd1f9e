"""Our numbers against verl's own functions, wherever both compute the same thing: single-step trajectories.

In an environment with agent-r1 (`pip install -e .`; Python 3.11 or 3.12, which verl asks for) verl goes into a folder
of its own, without its dependencies; delete the folder to be rid of it:

    pip install --no-deps --target build/verl verl==0.9.1 tensordict==0.10.0 pyvers cloudpickle orjson codetiming
    python benchmarks/claims/verl_agreement.py --verl build/verl

Every row gives the largest absolute difference over random ragged batches in float64, of the value and, for losses, of
the gradient. Policy losses are compared under every aggregation. The exit code is 1 when a row differs by more than
1e-6.

What is compared are verl's functions as installed, nothing is patched. verl cannot be imported without `ray`, though
none of these functions uses it: when `ray` is missing, an empty module takes its place (verl reads `ray.ObjectRef` in
annotations). Left out is what only verl has (OPO, GPG, SAPO, ...) and what only we have (several steps).
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import json
import sys
import types
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn
from transformers import PretrainedConfig

from agent_r1.algorithms import (
    LossInputs,
    StepTable,
    adapted_coefficient,
    aggregations,
    corrections,
    estimators,
    kl_estimators,
    policy_losses,
    value_loss,
)
from agent_r1.learner import Compute, score_micro_batch, with_token_penalty
from agent_r1.learner.packing import Sample, pack

TOLERANCE = 1e-6
PIP_LINE = (
    "pip install --no-deps --target build/verl verl==0.9.1 tensordict==0.10.0 pyvers cloudpickle orjson codetiming"
)
AGGREGATIONS = (
    ("token-mean", "token-mean"),
    ("seq-mean-token-mean", "trajectory-mean-token-mean"),
    ("seq-mean-token-mean", "step-mean-token-mean"),
    ("seq-mean-token-sum", "trajectory-mean-token-sum"),
    ("seq-mean-token-sum-norm", "token-sum-norm"),
)
"""verl's name and ours."""

# --- verl -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class Verl:
    """verl's modules."""

    version: str
    core: Any
    """`verl.trainer.ppo.core_algos`."""
    correction: Any
    """`verl.trainer.ppo.rollout_corr_helper`."""
    functional: Any
    """`verl.utils.torch_functional`."""

    def actor(self, **settings: Any) -> Any:
        """verl's own actor configuration."""
        required = {"strategy": "fsdp", "rollout_n": 1, "ppo_micro_batch_size_per_gpu": 1}
        return self.core.ActorConfig(**required, **settings)


def load_verl(folder: Path | None) -> Verl:
    """Import verl from the folder, else from the environment."""
    if folder is not None:
        sys.path.append(str(folder))  # at the end: what the environment has comes first
    if importlib.util.find_spec("ray") is None:
        ray = types.ModuleType("ray")
        ray.ObjectRef = object  # type: ignore[attr-defined]
        sys.modules["ray"] = ray
    try:
        version = importlib.import_module("verl").__version__
        core = importlib.import_module("verl.trainer.ppo.core_algos")
        correction = importlib.import_module("verl.trainer.ppo.rollout_corr_helper")
        functional = importlib.import_module("verl.utils.torch_functional")
    except ModuleNotFoundError as error:
        raise SystemExit(
            f"verl cannot be imported: there is no module '{error.name}'. Install it without its dependencies and say "
            f"where it is:\n\n    {PIP_LINE}\n    python benchmarks/claims/verl_agreement.py --verl build/verl"
        ) from error
    return Verl(version=version, core=core, correction=correction, functional=functional)


# --- data -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class Batch:
    """Single-step trajectories of different lengths. verl reads padded rows [R, L], we read flat arrays [N]."""

    generator: torch.Generator
    """What else is random."""
    lengths_R: Tensor
    """Tokens, at least one."""
    group_R: Tensor
    """Groups of two to six, not sorted."""
    outcome_R: Tensor
    """Rewards: continuous, so that every group has spread."""

    @classmethod
    def draw(cls, seed: int) -> Batch:
        """A batch of five groups."""
        generator = torch.Generator().manual_seed(seed)
        sizes = torch.randint(2, 7, (5,), generator=generator)
        group_R = torch.repeat_interleave(torch.arange(5), sizes)
        group_R = group_R[torch.randperm(len(group_R), generator=generator)]
        lengths_R = torch.randint(1, 13, (len(group_R),), generator=generator)
        outcome_R = torch.randn(len(group_R), generator=generator, dtype=torch.float64)
        return cls(generator=generator, lengths_R=lengths_R, group_R=group_R, outcome_R=outcome_R)

    @property
    def mask(self) -> Tensor:
        """[R, L] 1.0 on tokens."""
        return (torch.arange(int(self.lengths_R.max())) < self.lengths_R[:, None]).double()

    @property
    def owner_N(self) -> Tensor:
        """The trajectory, which is also the step, of each token."""
        return torch.repeat_interleave(torch.arange(len(self.lengths_R)), self.lengths_R)

    @property
    def table(self) -> StepTable:
        """What our estimators read."""
        num = len(self.lengths_R)
        return StepTable(
            rewards_S=self.outcome_R,
            lengths_S=self.lengths_R,
            trajectory_S=torch.arange(num),
            group_R=self.group_R,
        )

    @property
    def index(self) -> np.ndarray:
        """What verl calls the groups: strings."""
        return np.array([f"task {number}" for number in self.group_R.tolist()], dtype=object)

    @property
    def rewards(self) -> Tensor:
        """[R, L] What verl's estimators read: the outcome on the last token."""
        rows = torch.zeros_like(self.mask)
        rows[torch.arange(len(self.lengths_R)), self.lengths_R - 1] = self.outcome_R
        return rows

    def normal(self, scale: float = 1.0, *shape: int) -> Tensor:
        """Random numbers, one (or a `shape` of them) a token."""
        size = (int(self.lengths_R.sum()), *shape)
        return scale * torch.randn(size, generator=self.generator, dtype=torch.float64)

    def logprobs(self) -> Tensor:
        """Random log-probabilities, one per token."""
        return -self.normal(2.0).abs()

    def padded(self, values_N: Tensor) -> Tensor:
        """[N, ...] as [R, L, ...], with gradients; 0 where there is no token."""
        rows = values_N.new_zeros(*self.mask.shape, *values_N.shape[1:])
        return rows.index_put(tuple(self.mask.nonzero(as_tuple=True)), values_N)

    def flat(self, rows: Tensor) -> Tensor:
        """[R, L] as [N]."""
        return rows[self.mask.bool()]

    def weights_N(self, name: str) -> Tensor:
        """Our weights of an aggregation in which every token has credit."""
        owner_N = self.owner_N
        arguments = {"divisor": float(self.mask.shape[1])} if name == "token-sum-norm" else {}
        return aggregations.get(name)(torch.ones(len(owner_N), dtype=torch.bool), owner_N, owner_N, **arguments)


# --- differences ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class Difference:
    """Of one quantity."""

    value: float
    gradient: float | None = None


def largest(differences: Sequence[Difference]) -> Difference:
    """The largest of each; NaN when any is."""
    gradients = [each.gradient for each in differences if each.gradient is not None]
    return Difference(
        value=float(torch.tensor([each.value for each in differences], dtype=torch.float64).max()),
        gradient=float(torch.tensor(gradients, dtype=torch.float64).max()) if gradients else None,
    )


def of_values(ours: Tensor, verls: Tensor) -> Difference:
    """Without gradients."""
    return Difference(value=float((ours.double() - verls.double()).abs().max()))


def of_functions(ours: Callable[[Tensor], Tensor], verls: Callable[[Tensor], Tensor], at: Tensor) -> Difference:
    """Of two functions at the same point, and of the gradients of their sums."""
    (value, gradient), (verl_value, verl_gradient) = (_with_gradient(function, at) for function in (ours, verls))
    return Difference(value=of_values(value, verl_value).value, gradient=float((gradient - verl_gradient).abs().max()))


def _with_gradient(function: Callable[[Tensor], Tensor], at: Tensor) -> tuple[Tensor, Tensor]:
    leaf = at.clone().requires_grad_()
    value = function(leaf)
    (gradient,) = torch.autograd.grad(value.sum(), leaf)
    return value.detach(), gradient


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table."""

    quantity: str
    verl: str
    """The name of the function."""
    ours: str
    """The name of the part, with the settings that are not its defaults."""
    measure: Callable[[Verl, Batch], Difference]
    differs: str = ""
    """Where the definitions part; the data stay where they do not."""


NO_SPREAD = "a group of one or without spread gets no credit with us; here every group has spread"
WHITENING = "whitening: verl's 1e-8 stands under the root, ours beside it"
DENOMINATOR = "tokens without credit are in none of our denominators; here all have credit"

# --- advantages -----------------------------------------------------------------------------------------------------


def gae(verl: Verl, batch: Batch, *, whitened: bool) -> Difference:
    """verl whitens always; its advantages before that are its returns minus the values."""
    values_N, rewards_N = batch.normal(), batch.normal(0.1)
    table = replace(with_token_penalty(batch.table, -rewards_N), values_N=values_N)
    ours = estimators.get("token_gae")(table, gamma=0.97, lam=0.9, whitened=whitened)
    rewards = batch.rewards + batch.padded(rewards_N)
    advantages, returns = verl.core.compute_gae_advantage_return(
        rewards, batch.padded(values_N), batch.mask, gamma=0.97, lam=0.9
    )
    assert ours.returns_N is not None
    expected_N = batch.flat(advantages) if whitened else batch.flat(returns) - values_N
    return largest([of_values(ours.advantages_N, expected_N), of_values(ours.returns_N, batch.flat(returns))])


def token_return(verl: Verl, batch: Batch) -> Difference:
    """With rewards on single tokens; verl's returns are what it whitens."""
    rewards_N = batch.normal(0.1)
    table = with_token_penalty(batch.table, -rewards_N)
    advantages, returns = verl.core.compute_reinforce_plus_plus_outcome_advantage(
        batch.rewards + batch.padded(rewards_N), batch.mask, config=verl.core.AlgoConfig(gamma=0.9)
    )
    ours, plain = (estimators.get("token_return")(table, gamma=0.9, whitened=whitened) for whitened in (True, False))
    return largest(
        [of_values(ours.advantages_N, batch.flat(advantages)), of_values(plain.advantages_N, batch.flat(returns))]
    )


def greedy(verl: Verl, batch: Batch) -> Difference:
    """Against a random greedy return."""
    greedy_R = torch.randn(len(batch.lengths_R), generator=batch.generator, dtype=torch.float64)
    credit = estimators.get("greedy_baseline")(replace(batch.table, greedy_returns_R=greedy_R))
    advantages, _ = verl.core.compute_remax_outcome_advantage(batch.rewards, greedy_R, batch.mask)
    return of_values(credit.advantages_N, batch.flat(advantages))


def kl_in_reward(verl: Verl, batch: Batch) -> Difference:
    """The reward of each token after the penalty."""
    old_N, reference_N = batch.logprobs(), batch.logprobs()
    penalty_N = 0.05 * kl_estimators.get("k1")(old_N, reference_N)
    ours_N = with_token_penalty(batch.table, penalty_N).per_token().rewards_S
    rewards = verl.core.compute_rewards(batch.rewards, batch.padded(old_N), batch.padded(reference_N), 0.05)
    return of_values(ours_N, batch.flat(rewards))


def by_group(quantity: str, function: str, name: str, *, with_std: bool | None = None, differs: str = NO_SPREAD) -> Row:
    """An estimator that compares the members of a group."""
    verls = {} if with_std is None else {"norm_adv_by_std_in_grpo": with_std}
    ours = {} if with_std is None else {"normalise_std": with_std}

    def measure(verl: Verl, batch: Batch) -> Difference:
        credit = estimators.get(name)(batch.table, **ours)
        advantages, _ = getattr(verl.core, function)(batch.rewards, batch.mask, index=batch.index, **verls)
        assert bool(credit.credited_N.all())
        return of_values(credit.advantages_N, batch.flat(advantages))

    return Row(quantity, function, shown(name, ours), measure, differs)


def shown(name: str, settings: dict[str, Any]) -> str:
    """A part and its settings: `group, normalise_std=false`."""
    return ", ".join([name, *(f"{key}={json.dumps(value)}" for key, value in settings.items())]).replace('"', "")


ADVANTAGES = (
    Row("GAE, whitened", "compute_gae_advantage_return", "token_gae", partial(gae, whitened=True), WHITENING),
    Row(
        "GAE and returns, not whitened",
        "compute_gae_advantage_return",
        "token_gae, whitened=false",
        partial(gae, whitened=False),
    ),
    by_group("GRPO", "compute_grpo_outcome_advantage", "group", with_std=True),
    by_group("GRPO without std (Dr. GRPO)", "compute_grpo_outcome_advantage", "group", with_std=False),
    by_group("RLOO", "compute_rloo_outcome_advantage", "leave_one_out"),
    by_group("RLOO, vectorised", "compute_rloo_vectorized_outcome_advantage", "leave_one_out"),
    Row(
        "REINFORCE++ and its returns",
        "compute_reinforce_plus_plus_outcome_advantage",
        "token_return",
        token_return,
        WHITENING,
    ),
    by_group(
        "REINFORCE++ with baseline",
        "compute_reinforce_plus_plus_baseline_outcome_advantage",
        "group_whitened",
        differs=f"{NO_SPREAD}; {WHITENING}",
    ),
    Row(
        "ReMax",
        "compute_remax_outcome_advantage",
        "greedy_baseline",
        greedy,
        "verl's tokens get the return from themselves on, ours all of it; the same for a reward at the end",
    ),
    Row("rewards with KL taken off", "compute_rewards", "with_token_penalty, k1", kl_in_reward),
)

# --- losses ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class PolicyLosses:
    """One policy loss, verl's and ours, on the same random tokens."""

    function: str
    name: str
    ours: dict[str, Any]
    actor: dict[str, Any]
    spread: float
    """Of the log-ratio."""

    def __call__(self, verl: Verl, batch: Batch) -> Difference:
        """With every aggregation."""
        policy_N = batch.logprobs()
        old_N, advantages_N = policy_N + batch.normal(self.spread), batch.normal()
        config = verl.actor(**self.actor)

        def ours(logprobs_N: Tensor, *, name: str) -> Tensor:
            inputs = LossInputs(
                policy_logprobs_N=logprobs_N, old_logprobs_N=old_N, advantages_N=advantages_N, step_N=batch.owner_N
            )
            return (batch.weights_N(name) * policy_losses.get(self.name)(inputs, **self.ours).loss_N).sum()

        def verls(logprobs_N: Tensor, *, mode: str) -> Tensor:
            rows = (batch.padded(old_N), batch.padded(logprobs_N), batch.padded(advantages_N), batch.mask)
            return torch.as_tensor(getattr(verl.core, self.function)(*rows, loss_agg_mode=mode, config=config)[0])

        return largest(
            [of_functions(partial(ours, name=name), partial(verls, mode=mode), policy_N) for mode, name in AGGREGATIONS]
        )


def policy_loss(
    quantity: str,
    function: str,
    name: str,
    *,
    ours: dict[str, Any] | None = None,
    actor: dict[str, Any] | None = None,
    spread: float = 0.7,
    differs: str = "",
) -> Row:
    """A policy loss; the spread of the log-ratio is such that every clip acts."""
    measure = PolicyLosses(function=function, name=name, ours=ours or {}, actor=actor or {}, spread=spread)
    return Row(quantity, function, shown(name, ours or {}), measure, differs)


def clip_metrics(verl: Verl, batch: Batch) -> Difference:
    """Clipped fraction and mean log-ratio, as token means."""
    policy_N = batch.logprobs()
    old_N, advantages_N = policy_N + batch.normal(0.3), batch.normal()
    inputs = LossInputs(
        policy_logprobs_N=policy_N, old_logprobs_N=old_N, advantages_N=advantages_N, step_N=batch.owner_N
    )
    seen = policy_losses.get("clip")(inputs).metrics_N
    rows = (batch.padded(old_N), batch.padded(policy_N), batch.padded(advantages_N), batch.mask)
    _, found = verl.core.compute_policy_loss_vanilla(*rows, config=verl.actor())
    return of_values(
        torch.stack([seen["clip_fraction"].double().mean(), seen["approx_kl"].mean()]),
        torch.tensor([found["actor/pg_clipfrac"], found["actor/ppo_kl"]], dtype=torch.float64),
    )


def aggregation(mode: str, name: str) -> Row:
    """Any number per token, aggregated."""

    def measure(verl: Verl, batch: Batch) -> Difference:
        return of_functions(
            lambda loss_N: (batch.weights_N(name) * loss_N).sum(),
            lambda loss_N: torch.as_tensor(verl.core.agg_loss(batch.padded(loss_N), batch.mask, mode)),
            batch.normal(),
        )

    return Row(f"aggregation {mode}", "agg_loss", name, measure, DENOMINATOR)


def critic_loss(verl: Verl, batch: Batch) -> Difference:
    """The mean over tokens."""
    old_N, returns_N = batch.normal(), batch.normal()

    def verls(values_N: Tensor) -> Tensor:
        rows = (batch.padded(values_N), batch.padded(returns_N), batch.padded(old_N), batch.mask)
        return torch.as_tensor(verl.core.compute_value_loss(*rows, cliprange_value=0.5)[0])

    return of_functions(
        lambda values_N: value_loss(values_N, old_N, returns_N, clip_range=0.5).mean(), verls, old_N + batch.normal()
    )


def kl(verls: str, ours: str) -> Row:
    """A KL estimator per token: where policies are close, and so far apart that k3's bounds act."""

    def at_spread(verl: Verl, batch: Batch, spread: float) -> Difference:
        policy_N = batch.logprobs()
        reference_N = policy_N + batch.normal(spread)
        return of_functions(
            lambda logprobs_N: kl_estimators.get(ours)(logprobs_N, reference_N),
            lambda logprobs_N: torch.as_tensor(verl.core.kl_penalty(logprobs_N, reference_N, verls)),
            policy_N,
        )

    def measure(verl: Verl, batch: Batch) -> Difference:
        return largest([at_spread(verl, batch, 0.5), at_spread(verl, batch, 15.0)])

    return Row(f"KL penalty {verls}", "kl_penalty", ours, measure)


def kl_controller(verl: Verl, batch: Batch) -> Difference:
    """Fifty updates in a row."""
    controller = verl.core.AdaptiveKLController(init_kl_coef=0.1, target_kl=0.05, horizon=1000)
    coefficient, ours, theirs = 0.1, [], []
    for observed in (0.1 * torch.rand(50, generator=batch.generator)).tolist():
        coefficient = adapted_coefficient(
            coefficient, observed=observed, target=0.05, horizon=1000, num_trajectories=64
        )
        controller.update(current_kl=observed, n_steps=64)
        ours.append(coefficient)
        theirs.append(float(controller.value))
    return of_values(torch.tensor(ours, dtype=torch.float64), torch.tensor(theirs, dtype=torch.float64))


def off_policy(quantity: str, name: str, level: str, threshold: float | str, differs: str = "") -> Row:
    """Weights for the difference between engine and trainer; of `mask` only which tokens are kept."""

    def measure(verl: Verl, batch: Batch) -> Difference:
        old_N, log_weight_N = batch.logprobs(), batch.normal(0.5)
        ours_N = corrections.get(name)(old_N, old_N - log_weight_N, batch.owner_N)
        found, _ = verl.correction.compute_rollout_correction_weights(
            batch.padded(log_weight_N), batch.mask, rollout_is=level, rollout_is_threshold=threshold
        )
        found_N = batch.flat(found)
        return of_values(ours_N, (found_N > 0).double() if name == "mask" else found_N)

    return Row(quantity, "compute_rollout_correction_weights", name, measure, differs)


class FixedLogits(nn.Module):
    """A policy with the given logits [R, L, V], those of the row whose number is the prompt. They are its hidden
    states, and its output layer is the identity."""

    def __init__(self, rows: Tensor) -> None:
        super().__init__()
        self.rows = rows
        self.config = PretrainedConfig()
        self.head = nn.Linear(rows.shape[-1], rows.shape[-1], bias=False, dtype=rows.dtype)
        self.head.weight = nn.Parameter(torch.eye(rows.shape[-1], dtype=rows.dtype), requires_grad=False)

    def get_decoder(self) -> nn.Module:
        """The trunk: this module itself."""
        return self

    def get_output_embeddings(self) -> nn.Linear:
        """The output layer."""
        return self.head

    def forward(self, input_ids: Tensor, **_: Any) -> types.SimpleNamespace:
        """The prompt is one token, so column 0 predicts the first action token."""
        return types.SimpleNamespace(last_hidden_state=self.rows[input_ids[:, 0]])


def scored(verl: Verl, batch: Batch, *, entropy: bool) -> Difference:
    """The mean log-probability of random actions, or the mean entropy; ours from our own forward pass."""
    vocabulary, temperature = 11, 0.7
    actions_N = torch.randint(vocabulary, (len(batch.owner_N),), generator=batch.generator)
    rows = zip(batch.padded(actions_N).tolist(), batch.lengths_R.tolist(), strict=True)
    samples = [Sample.of_step((number,), tuple(row[:length])) for number, (row, length) in enumerate(rows)]
    compute = Compute(device=torch.device("cpu"), pack=partial(pack, max_tokens=1_000_000), temperature=temperature)
    (micro,) = compute.pack(samples, range(len(samples)))

    def ours(logits_N: Tensor) -> Tensor:
        policy = FixedLogits(batch.padded(logits_N))
        scores = score_micro_batch(policy, micro, compute, with_entropy_gradient=True)
        return (scores.entropy_N if entropy else scores.logprobs_N).double().mean()

    def verls(logits_N: Tensor) -> Tensor:
        logits = batch.padded(logits_N) / temperature
        if entropy:
            return torch.as_tensor(verl.core.compute_entropy_loss(logits, batch.mask))
        return batch.flat(verl.functional.logprobs_from_logits(logits, batch.padded(actions_N))).mean()

    return of_functions(ours, verls, batch.normal(2.0, vocabulary))


LOSSES = (
    policy_loss(
        "PPO clip with dual clip",
        "compute_policy_loss_vanilla",
        "clip",
        ours={"clip_high": 0.28},
        actor={"clip_ratio_high": 0.28},
    ),
    policy_loss("PPO clip, log-ratios beyond 20", "compute_policy_loss_vanilla", "clip", spread=15.0),
    Row("clipped fraction, approximate KL", "compute_policy_loss_vanilla", "clip", clip_metrics),
    policy_loss(
        "GSPO",
        "compute_policy_loss_gspo",
        "clip",
        ours={"ratio": "step", "dual_clip": None},
        differs="log-ratios are bounded at 10 in verl, at 20 in ours; here below both",
    ),
    policy_loss(
        "CISPO",
        "compute_policy_loss_cispo",
        "cispo",
        ours={"clip_high": 1.0},
        actor={"clip_ratio_low": 1.0, "clip_ratio_high": 1.0},
        differs="verl bounds the weight from below too; here at 0",
    ),
    policy_loss("REINFORCE", "compute_policy_loss_reinforce", "reinforce"),
    *(aggregation(mode, name) for mode, name in AGGREGATIONS),
    Row("value loss, clipped", "compute_value_loss", "value_loss", critic_loss),
    *(
        kl(verls + plus, ours + plus)
        for verls, ours in (("kl", "k1"), ("abs", "abs"), ("mse", "k2"), ("low_var_kl", "k3"))
        for plus in ("", "+")
    ),
    Row(
        "adaptive KL coefficient",
        "AdaptiveKLController",
        "adapted_coefficient",
        kl_controller,
        "a batch moves ours by a fifth at most; here batches are smaller than the horizon",
    ),
    Row(
        "log-probs of the actions",
        "logprobs_from_logits",
        "score",
        partial(scored, entropy=False),
        "ours is float32",
    ),
    Row("entropy", "compute_entropy_loss", "score", partial(scored, entropy=True), "ours is float32"),
    off_policy("off-policy weight of a token", "token", "token", 2.0),
    off_policy("off-policy weight of a sequence", "sequence", "sequence", 2.0),
    off_policy(
        "off-policy mask",
        "mask",
        "token",
        "0.5_2.0",
        differs="inside the band verl's weight is the ratio, ours 1; compared is which tokens are kept",
    ),
)

# --- the table ------------------------------------------------------------------------------------------------------


def measured(rows: Sequence[Row], verl: Verl, num_batches: int) -> Iterator[tuple[Row, Difference, bool]]:
    """Each row, its difference over all batches, and whether it is small enough. NaN is not."""
    for row in rows:
        difference = largest([row.measure(verl, Batch.draw(seed)) for seed in range(num_batches)])
        yield row, difference, difference.value <= TOLERANCE and (difference.gradient or 0.0) <= TOLERANCE


def main() -> int:
    """Print the table; 1 when anything differs."""
    parser = argparse.ArgumentParser(description="Compare our numbers with verl's.")
    parser.add_argument("--verl", type=Path, help="the folder verl was installed into; default: the environment")
    parser.add_argument("--batches", type=int, default=10, help="random batches a row")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    verl = load_verl(arguments.verl)
    table = Table(title=f"agent-r1 and verl {verl.version}: largest difference over {arguments.batches} batches")
    for name in ("quantity", "verl", "ours"):
        table.add_column(name, overflow="fold")
    table.add_column("value", justify="right", no_wrap=True)
    table.add_column("gradient", justify="right", no_wrap=True)
    table.add_column("verdict", no_wrap=True)
    table.add_column("what differs", overflow="fold")
    num_differing = 0
    for row, difference, agrees in measured([*ADVANTAGES, *LOSSES], verl, arguments.batches):
        gradient = "" if difference.gradient is None else f"{difference.gradient:.0e}"
        verdict = "agrees" if agrees else "[bold red]DIFFERS"
        table.add_row(row.quantity, row.verl, row.ours, f"{difference.value:.0e}", gradient, verdict, row.differs)
        num_differing += not agrees
    console = Console()
    # A file or a pipe has no width of its own: do not fold there.
    (console if console.is_terminal else Console(width=240)).print(table)
    print(f"{num_differing} of {len(ADVANTAGES) + len(LOSSES)} differ by more than {TOLERANCE:g}")
    return 1 if num_differing else 0


if __name__ == "__main__":
    sys.exit(main())
