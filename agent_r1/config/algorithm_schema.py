"""The keys below `algorithm`: what is learned from experience."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, Optional

from agent_r1.constraints import Count, CountOrZero, Fraction, NotNegative, Positive, one_of
from agent_r1.registry import Part

if TYPE_CHECKING:
    _PartOrMapping = Part
else:
    _PartOrMapping = dict[str, Any]
"""A `Part`. OmegaConf knows only mappings, the form that files have; `read_parts` reads them."""


@dataclass
class KLConfig:
    """KL penalty towards the policy that the run started from."""

    coefficient: NotNegative = 0.0
    """Weight of the penalty; 0: no reference model is loaded."""
    estimator: str = "k3"
    """k1, abs, k2 or k3; `k3+` has the value of k3 and the gradient of k2."""
    place: Annotated[str, one_of("loss", "reward")] = "loss"
    """loss: added to the loss. reward: subtracted from the reward, per token."""
    target: Optional[Positive] = None
    """KL per token that an adaptive coefficient aims at; null: the coefficient is fixed."""
    horizon: Positive = 10000.0
    """Trajectories over which the coefficient adapts."""


@dataclass
class CriticConfig:
    """The value model of algorithms that need one."""

    kind: Optional[Annotated[str, one_of("closed_form", "own", "shared")]] = None
    """null: no critic. closed_form: a linear head on the policy's hidden states, solved in closed form, without a
    second model or an optimizer. own: a trained copy of the policy. shared: a trained head on the policy's trunk, which
    the value loss also updates."""
    bootstrap: bool = False
    """false: an episode that is cut by a limit is scored as it is. true: the critic's value of its next state replaces
    its outcome reward."""
    learning_rate: Positive = 1e-4
    """own, shared: learning rate of the critic's optimizer."""
    value_clip: Optional[Positive] = 0.5
    """own, shared: maximum change of a value in one update; null: no limit."""
    warmup_steps: CountOrZero = 0
    """Training steps at the start in which only the critic learns."""
    privileged: Optional[Annotated[str, one_of("ground_truth", "observation")]] = None
    """Text that only the critic reads. ground_truth: the row's ground truth. observation: `Observation.privileged`."""

    @property
    def enabled(self) -> bool:
        """Whether there is a critic."""
        return self.kind is not None


@dataclass
class ProcessConfig:
    """How process rewards are scaled; `reward.process_weight` is their weight."""

    normalisation: Annotated[str, one_of("none", "return_max", "group_std", "running")] = "none"
    """What they are divided by. return_max: the batch's largest return-to-go. group_std: the standard deviation of
    their sums in the group. running: the standard deviation over the whole run."""
    bound: Optional[NotNegative] = None
    """Process rewards are first clipped to this size; null: no clipping."""


@dataclass
class AlgorithmConfig:
    """What is learned from experience. `algorithm=<preset>` fills it."""

    preset: Optional[str] = None
    """The preset that was loaded (`algorithm=grpo`), for reports; changing this key alone changes nothing."""
    estimator: _PartOrMapping = field(default_factory=lambda: _part_named("group"))
    """The advantage estimator and its arguments."""
    loss: _PartOrMapping = field(default_factory=lambda: _part_named("clip"))
    """The policy loss and its arguments."""
    aggregation: _PartOrMapping = field(default_factory=lambda: _part_named("trajectory-mean-token-mean"))
    """What gets equal weight: tokens, steps or trajectories."""
    off_policy: _PartOrMapping = field(default_factory=lambda: _part_named("none"))
    """Correction for the difference between the engine's and the trainer's probabilities: none, token, sequence or
    mask."""
    old_logprobs: Annotated[str, one_of("auto", "rollout", "trainer")] = "auto"
    """Log-probs of the old policy in the ratio. rollout: the engine's. trainer: the trainer's, which costs one forward
    pass when several updates follow a rollout. auto: rollout when one update follows and no other key needs more."""
    epochs: Count = 1
    """Passes over each batch."""
    minibatches: Count = 1
    """Updates per pass; a group is never split."""
    entropy_coefficient: NotNegative = 0.0
    """Weight of the entropy bonus."""
    refill_rounds: CountOrZero = 0
    """Maximum further rounds of rollouts that replace groups whose members all got the same reward."""
    group_plan: str = "sampled"
    """Rollouts of a task's group. sampled: `rollout.group_size` alike. with_greedy: a greedy one too, as a baseline. Or
    a plan of your own, `module:function`."""
    overlong_fraction: Fraction = 0.0
    """The last fraction of `rollout.max_tokens`, in which actions are penalised by up to 1 at the limit; 0: never."""
    process: ProcessConfig = field(default_factory=ProcessConfig)
    """Scaling of process rewards."""
    kl: KLConfig = field(default_factory=KLConfig)
    """KL penalty."""
    critic: CriticConfig = field(default_factory=CriticConfig)
    """The value model."""

    def __post_init__(self) -> None:
        self.read_parts()

    def read_parts(self) -> None:
        """Make a `Part` of every part that is still a mapping."""
        for key in PART_KEYS:
            setattr(self, key, Part.of(getattr(self, key)))

    @property
    def gamma(self) -> float:
        """The estimator's discount; 1 for an estimator that does not discount."""
        return float(self.estimator.arguments.get("gamma", 1.0))


PART_KEYS = ("estimator", "loss", "aggregation", "off_policy")
"""The keys of `AlgorithmConfig` that hold a `Part`."""


def unread_algorithm() -> AlgorithmConfig:
    """The default algorithm with its parts as mappings: OmegaConf builds its schema from this."""
    algorithm = AlgorithmConfig()
    for key in PART_KEYS:
        setattr(algorithm, key, getattr(algorithm, key).as_mapping())
    return algorithm


def _part_named(name: str) -> Any:
    return {"name": name}
