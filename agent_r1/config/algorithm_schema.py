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
    """Staying close to the policy the run started from."""

    coefficient: NotNegative = 0.0
    """0: no reference model is loaded."""
    estimator: str = "k3"
    """k1, abs, k2 or k3; with a `+` (`k3+`) its value with the gradient of k2."""
    place: Annotated[str, one_of("loss", "reward")] = "loss"
    """loss: added to the loss. reward: taken off the reward, token by token."""
    target: Optional[Positive] = None
    """Divergence per token to hold by moving the coefficient; null: the coefficient is fixed."""
    horizon: Positive = 10000.0
    """Trajectories over which the coefficient adapts; fewer is faster."""


@dataclass
class CriticConfig:
    """The value model of algorithms that need one."""

    kind: Optional[Annotated[str, one_of("closed_form", "own", "shared")]] = None
    """null: none. closed_form: a linear head on the policy's hidden states, solved from sums over batches; no second
    model, no optimizer. own: a copy of the policy that is trained. shared: a trained head on the policy's own trunk,
    which the value loss reaches."""
    bootstrap: bool = False
    """false: an episode that is cut by a limit is scored, and ends there. true: its outcome is left out, and the
    critic's value of its next state takes the outcome's place."""
    learning_rate: Positive = 1e-4
    """own, shared: of the critic's own optimizer."""
    value_clip: Optional[Positive] = 0.5
    """own, shared: how far a value may move from its old one in one update; null: as far as it likes."""
    warmup_steps: CountOrZero = 0
    """First training steps in which only the critic learns."""
    privileged: Optional[Annotated[str, one_of("ground_truth", "observation")]] = None
    """Text that only the critic reads. ground_truth: the row's. observation: what the environment gives as
    `Observation.privileged`."""

    @property
    def enabled(self) -> bool:
        """Whether there is a critic."""
        return self.kind is not None


@dataclass
class ProcessConfig:
    """How the steps' own rewards are balanced against the outcome; `reward.process_weight` is their weight."""

    normalisation: Annotated[str, one_of("none", "return_max", "group_std", "running")] = "none"
    """What they are divided by. none, return_max: the batch's largest return-to-go, group_std: the spread of their
    sums in the group, running: the spread over the whole run."""
    bound: Optional[NotNegative] = None
    """Cut a step's process reward to this size first; null: take it as it is."""


@dataclass
class AlgorithmConfig:
    """What is learned from experience. `algorithm=<preset>` fills it."""

    preset: Optional[str] = None
    """The preset that was loaded (`algorithm=grpo`), for reports; changing this key alone changes nothing."""
    estimator: _PartOrMapping = field(default_factory=lambda: _named("group"))
    """The advantage estimator and its arguments."""
    loss: _PartOrMapping = field(default_factory=lambda: _named("clip"))
    """The policy loss and its arguments."""
    aggregation: _PartOrMapping = field(default_factory=lambda: _named("trajectory-mean-token-mean"))
    """What gets equal weight: tokens, steps or trajectories."""
    off_policy: _PartOrMapping = field(default_factory=lambda: _named("none"))
    """Correction for the difference between the engine's and the trainer's probabilities: none, token, sequence or
    mask."""
    old_logprobs: Annotated[str, one_of("auto", "rollout", "trainer")] = "auto"
    """Whose log-probs the ratio starts from. rollout: the engine's, no extra pass. trainer: the trainer's own, one
    extra pass when several updates follow a rollout. auto: rollout when one update follows and nothing asks for more.
    """
    epochs: Count = 1
    """Passes over each batch."""
    minibatches: Count = 1
    """Updates a pass; whole groups go into each."""
    entropy_coefficient: NotNegative = 0.0
    """Weight of the entropy bonus."""
    refill_rounds: CountOrZero = 0
    """Up to this many further rounds of rollouts take the place of groups whose members all earned the same."""
    group_plan: str = "sampled"
    """Which rollouts the group of a task has. sampled: `rollout.group_size` alike. with_greedy: a greedy one too, as a
    baseline. Or a plan of one's own, `module:function`."""
    overlong_fraction: Fraction = 0.0
    """The last part of `rollout.max_tokens` in which an action is charged, up to 1 at the limit; 0: never."""
    process: ProcessConfig = field(default_factory=ProcessConfig)
    """Balance of process and outcome rewards."""
    kl: KLConfig = field(default_factory=KLConfig)
    """Divergence from the starting policy."""
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


def _named(name: str) -> Any:
    return {"name": name}
