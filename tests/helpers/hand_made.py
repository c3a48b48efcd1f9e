"""Hand-made experience and learners over a tiny model: what the tests of learning are built from."""

from __future__ import annotations

import copy
import random
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from transformers import LlamaForCausalLM

from agent_r1.algorithms import Credit, StepTable
from agent_r1.algorithms.algorithm import Algorithm, bind_algorithm
from agent_r1.config import AlgorithmConfig, CriticConfig, KLConfig, OptimizerConfig
from agent_r1.learner.compute import Compute
from agent_r1.learner.credit import CreditedBatch, assign_credit
from agent_r1.learner.critics import AnyCritic, ClosedFormCritic, Critic, SharedCritic, TrainedCritic
from agent_r1.learner.experience import CriticView, Experience, gather_experience
from agent_r1.learner.learner import TorchLearner
from agent_r1.learner.models import Models
from agent_r1.learner.packing.samples import Packer, pack
from agent_r1.rewards import ProcessBalance, RewardShaping
from agent_r1.types import Action, Episode, Group, Observation, Step, StopReason, Task, TokenIds, Trajectory

CPU = torch.device("cpu")
GROUP = {"name": "group"}
TOKEN_GAE = {"name": "token_gae"}

CriticT = TypeVar("CriticT", Critic, SharedCritic)


def rows_on_cpu(max_tokens: int = 4096, temperature: float = 1.0) -> Compute:
    """Padded rows, the simple form."""
    return Compute(device=CPU, pack=partial(pack, max_tokens=max_tokens), temperature=temperature)


def gather(
    groups: Sequence[Group], *, view: CriticView | None = None, bootstrap: bool = False, **process: Any
) -> Experience:
    """The experience of some groups; without a view, for a critic that reads what the policy reads."""
    shaping = RewardShaping(process=ProcessBalance(**process), max_tokens=1000, bootstrap=bootstrap)
    return gather_experience(groups, shaping, view or CriticView(None, lambda text: ()))


def sharpened(model: LlamaForCausalLM) -> LlamaForCausalLM:
    """The same model with weights so large that what it attends to decides what it says."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 2:
                parameter.normal_(0.0, 0.15, generator=generator)
    return model.train()


def shifted_copy(policy: nn.Module) -> nn.Module:
    """Another policy near by: a reference that the policy has left."""
    reference = copy.deepcopy(policy).requires_grad_(False)
    generator = torch.Generator().manual_seed(4)
    for parameter in reference.parameters():
        parameter.add_(0.05 * torch.randn(parameter.shape, generator=generator))
    return reference


def row_logprobs(policy: nn.Module, prompt: TokenIds, action: TokenIds) -> Tensor:
    """Log-probabilities of an action from one unpadded row."""
    ids = torch.tensor([prompt + action])
    logits = policy(input_ids=ids, use_cache=False).logits[0, len(prompt) - 1 : -1]
    return logits.log_softmax(-1).gather(1, ids[0, len(prompt) :, None]).squeeze(1)


def make_step(
    policy: nn.Module, prompt: TokenIds, action: TokenIds, reward: float = 0.0, privileged: str | None = None
) -> Step:
    with torch.no_grad():
        logprobs = row_logprobs(policy, prompt, action).tolist() if action else []
    return Step(
        observation=Observation(token_ids=prompt, privileged=privileged),
        prompt_ids=prompt,
        action=Action(text="", token_ids=action),
        action_ids=action,
        rollout_logprobs=tuple(logprobs),
        reward=reward,
        done=False,
        policy_versions=(0,) * len(action),
    )


def make_trajectory(
    steps: Sequence[Step],
    outcome: float,
    *,
    group_id: int = 0,
    stop_reason: StopReason = StopReason.DONE,
    next_prompt_ids: TokenIds | None = None,
    next_privileged: str | None = None,
) -> Trajectory:
    return Trajectory(
        task_id=f"task-{group_id}",
        group_id=group_id,
        member=0,
        steps=tuple(steps),
        outcome_reward=outcome,
        stop_reason=stop_reason,
        next_prompt_ids=next_prompt_ids,
        next_privileged=next_privileged,
    )


def experience_of(*trajectories: Trajectory, bootstrap: bool = False) -> Experience:
    ids = sorted({trajectory.group_id for trajectory in trajectories})
    groups = [
        Group(
            task=Task(task_id=f"task-{group_id}", prompt=()),
            group_id=group_id,
            trajectories=tuple(t for t in trajectories if t.group_id == group_id),
        )
        for group_id in ids
    ]
    return gather(groups, bootstrap=bootstrap)


def random_ids(rng: random.Random, length: int) -> TokenIds:
    return tuple(rng.choices(range(2, 90), k=length))


def random_trajectory(
    policy: nn.Module, rng: random.Random, outcome: float, *, group_id: int = 0, num_steps: int | None = None
) -> Trajectory:
    """A conversation: each prompt continues the turn before it."""
    prompt, steps = random_ids(rng, rng.randint(2, 9)), []
    for _ in range(num_steps or rng.randint(1, 4)):
        action = random_ids(rng, rng.randint(1, 6))
        steps.append(make_step(policy, prompt, action, reward=rng.choice([0.0, 0.1])))
        prompt = prompt + action + random_ids(rng, rng.randint(1, 4))
    return make_trajectory(steps, outcome, group_id=group_id)


def random_group(policy: nn.Module, seed: int, outcomes: Sequence[float], group_id: int = 0) -> list[Trajectory]:
    rng = random.Random(seed)
    return [random_trajectory(policy, rng, outcome, group_id=group_id) for outcome in outcomes]


def random_batch(policy: nn.Module, seed: int = 0, num_groups: int = 2) -> list[Trajectory]:
    return [t for g in range(num_groups) for t in random_group(policy, seed + g, [1.0, 0.0, 0.5], group_id=g)]


def make_learner(
    policy: nn.Module,
    *,
    estimator: dict[str, Any] = GROUP,
    critic: AnyCritic | None = None,
    reference: nn.Module | None = None,
    kl: KLConfig | None = None,
    critic_settings: CriticConfig | None = None,
    optimizer: OptimizerConfig | None = None,
    micro_batch_tokens: int = 4096,
    packer: Packer | None = None,
    max_skipped_updates: int = 3,
    algorithm: Algorithm | None = None,
    loss: dict[str, Any] | None = None,
    aggregation: str = "trajectory-mean-token-mean",
    **numbers: Any,
) -> TorchLearner:
    config = AlgorithmConfig(
        estimator=dict(estimator),
        loss=loss or {"name": "clip"},
        aggregation={"name": aggregation},
        kl=kl or KLConfig(),
        critic=critic_settings or CriticConfig(kind=kind_of(critic)),
        **numbers,
    )
    models = Models(
        policy=policy,
        reference=reference,
        critic=critic,
        compute=rows_on_cpu(max_tokens=micro_batch_tokens) if packer is None else Compute(device=CPU, pack=packer),
    )
    return TorchLearner(
        models=models,
        algorithm=algorithm or bind_algorithm(config),
        optimizer=optimizer or OptimizerConfig(learning_rate=1e-3, gradient_clip=1e9),
        max_skipped_updates=max_skipped_updates,
        total_steps=5,
        seed=0,
    )


def kind_of(critic: AnyCritic | None) -> str | None:
    """What the configuration calls it."""
    if critic is None:
        return None
    return {SharedCritic: "shared", ClosedFormCritic: "closed_form"}.get(type(critic), "own")


def credited(learner: TorchLearner, experience: Experience) -> CreditedBatch:
    """What the learner knows before its first update."""
    return assign_credit(
        experience, learner.models, learner.algorithm, kl_coefficient=learner.algorithm.settings.kl.coefficient
    )


def make_critic(policy: nn.Module) -> Critic:
    """A critic whose head is not zero, so that its trunk has a gradient too."""
    return with_opinions(Critic(policy))


def make_shared_critic(policy: nn.Module) -> SharedCritic:
    """The same on the policy's own trunk."""
    return with_opinions(SharedCritic(policy))


def with_opinions(critic: CriticT) -> CriticT:
    with torch.no_grad():
        critic.head.weight.normal_(0.0, 0.3, generator=torch.Generator().manual_seed(2))
    return critic


def value_after(critic: TrainedCritic, state: TokenIds) -> float:
    """The critic's value at the end of one unpadded row."""
    with torch.no_grad():
        hidden = critic.trunk(input_ids=torch.tensor([state]), use_cache=False).last_hidden_state
        return float(plain_values(critic.head, hidden[0, -1]))


def plain_values(head: nn.Linear, hidden: Tensor) -> Tensor:
    """What a value head says of hidden states, written out: of size 1 each, then 256 entries' worth of them."""
    unit = hidden / hidden.square().mean(-1, keepdim=True).sqrt()
    values: Tensor = head(unit * 256 / hidden.shape[-1]).squeeze(-1)
    return values


def weights_of(model: nn.Module) -> dict[str, Tensor]:
    return {name: parameter.detach().clone() for name, parameter in model.named_parameters()}


def same_weights(model: nn.Module, weights: dict[str, Tensor]) -> bool:
    return all(torch.equal(parameter, weights[name]) for name, parameter in model.named_parameters())


def gradients_of(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    """The gradients of the one update made so far: AdamW's first moment starts as (1 - beta1) times the gradient."""
    parameters = [parameter for entry in optimizer.param_groups for parameter in entry["params"]]
    beta1 = optimizer.param_groups[0]["betas"][0]
    return [optimizer.state[parameter]["exp_avg"] / (1 - beta1) for parameter in parameters]


def num_steps_of(optimizer: torch.optim.Optimizer) -> int:
    parameter = optimizer.param_groups[0]["params"][0]
    return int(optimizer.state[parameter]["step"]) if optimizer.state else 0


def assert_same_gradients(found: Sequence[Tensor], expected: Sequence[Tensor], tolerance: float = 1e-5) -> None:
    """Relative to the largest entry of each tensor."""
    for one, other in zip(found, expected, strict=True):
        assert float(other.abs().max()) > 0
        assert float((one - other).abs().max()) <= tolerance * float(other.abs().max())


def token_variety(task: Task, episode: Episode) -> float:
    """A reward that differs between the members of a group whatever a random model says."""
    return float(len({token for step in episode.steps for token in step.action_ids}))


class Fixed:
    """An estimator that says what it is told, and keeps the table it was shown."""

    def __init__(self, advantage: float = 0.0) -> None:
        self.advantage = advantage

    def __call__(self, table: StepTable) -> Credit:
        self.table = table
        everywhere_N = torch.ones(table.num_tokens, dtype=torch.bool)
        return Credit(
            advantages_N=torch.full((table.num_tokens,), self.advantage, dtype=torch.float64), credited_N=everywhere_N
        )


def with_parts(learner: TorchLearner, **parts: Any) -> TorchLearner:
    """The same learner with other functions in its algorithm."""
    learner.algorithm = replace(learner.algorithm, **parts)
    return learner
