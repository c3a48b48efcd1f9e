"""Which runs docs/results.md shows: per recipe the settings for a model of 1.5 billion parameters, then the order.

The settings were chosen on training and validation rows, before any test row was looked at.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from benchmarks.common.recipe_runs import Settings

MODEL = "Qwen2.5-Coder-1.5B-Instruct"
REACT = "react"
"""The untrained model in the ReAct format: an evaluation, in the plan beside the algorithms."""
FIRST = "grpo"
COMPARED = ("gigpo", "ppo", "steppo", "rloo", "reinforce_pp")
COMPARED_ON = ("alfworld", "hotpotqa")
WITHOUT_ANCHORS = ("hotpotqa",)
"""Its observations have no anchor, which `gigpo` compares."""
NO_TOOLS = "no_tools"
"""The untrained model in its own words, without tools."""
ALGORITHMS = (REACT, NO_TOOLS, FIRST, *COMPARED)
SEEDS = (0, 1, 2)

OWN_MODELS = MappingProxyType({"nlvr": "SmolVLM-6M"})
"""Recipes that make their model from scratch, and its name. They have the settings of their base.yaml, and one seed."""

_SHARED = {
    "model.prepare": "null",
    "trainer.compile": "true",
    "trainer.gradient_checkpointing": "true",
    "trainer.micro_batch_tokens": "8192",
    "engine.kv_memory": "400000",  # 11.5 GB
    "optimizer.learning_rate": "5e-6",
    "optimizer.warmup_steps": "2",
    "optimizer.final_fraction": "0.1",
}


def _rollouts(*, steps: int, groups: int) -> dict[str, str]:
    """So many training steps of so many groups of eight."""
    return {
        "trainer.steps": str(steps),
        "rollout.groups_per_step": str(groups),
        "rollout.group_size": "8",
        "rollout.concurrency": str(8 * groups),
    }


def _warm_start(*, steps: int, rate: str) -> dict[str, str]:
    return {"sft.steps": str(steps), "sft.learning_rate": rate}


# The token <tool_call> was never trained in Qwen2.5-Coder: a warm start at a rate of 1e-5 leaves calls rare, one at
# 5e-5 has 0.4 malformed calls per episode of gsm8k_tool. So calls are lines of text, which the model can write already.
_LINES = {"model.tool_format": "react", **_warm_start(steps=40, rate="2e-5")}
_COMMANDS = _warm_start(steps=24, rate="1e-5")  # plain text, which the model can write already
_CODE_BLOCKS = _warm_start(steps=40, rate="2e-5")

# With one update per step hardly any ratio leaves 0.8 to 1.2 (a share of 1e-4), and in 50 steps the training tasks of
# gsm8k_tool are solved 4 points more often. More updates of the same rollouts take no longer.
_SMALL_UPDATES = {"algorithm.minibatches": "4", "algorithm.old_logprobs": "rollout"}


@dataclass(frozen=True, kw_only=True)
class OwnEpisodes:
    """A warm start on what the untrained model solves by itself (`agent-r1 demonstrate`)."""

    tasks: int
    """Training tasks that it tries."""
    samples: int
    """Episodes of each."""
    keep: int
    """Solved ones of each that become demonstrations."""
    settings: Settings
    """Settings of these episodes alone."""

    @property
    def options(self) -> list[str]:
        """The options of `agent-r1 demonstrate`."""
        return [f"--tasks={self.tasks}", f"--samples={self.samples}", f"--keep={self.keep}"]


_BOXED: Settings = MappingProxyType(
    {
        "env": "gsm8k_plain",
        "model.tool_format": "hermes",
        "reward.function": "reward_fn:score_boxed",
        "rollout.max_tokens": "512",
    }
)
"""gsm8k_tool without tools."""

OWN_EPISODES = MappingProxyType(
    {
        # Without tools, in its own words; recipes/gsm8k_tool/own_words.py makes the calculations calls.
        "gsm8k_tool": OwnEpisodes(
            tasks=2000,
            samples=2,
            keep=2,
            settings=_BOXED,
        ),
        "math_code": OwnEpisodes(tasks=700, samples=3, keep=2, settings={}),
    }
)
"""Recipes whose warm start is on the model's own episodes."""

WITHOUT_TOOLS: Mapping[str, Settings] = MappingProxyType(
    {
        "gsm8k_tool": _BOXED,
        "math_code": {"env": "plain", "model.tool_format": "hermes", "rollout.max_tokens": "1024"},
    }
)
"""Recipes whose tasks can be solved without tools, and how."""

RECIPES: dict[str, dict[str, str]] = {
    # 94 steps of warm start solve 99 % of the validation games, which leaves nothing to learn; 8 steps solve 59 %.
    "alfworld": {**_warm_start(steps=8, rate="1e-5"), **_rollouts(steps=18, groups=24)},
    "hotpotqa": {**_LINES, **_rollouts(steps=32, groups=64)},
    "webshop": {**_COMMANDS, **_rollouts(steps=18, groups=32)},
    "gsm8k_tool": {**_LINES, "sft.batch_size": "32", **_rollouts(steps=80, groups=48), **_SMALL_UPDATES},
    "paper_search": {**_LINES, **_rollouts(steps=16, groups=32)},
    # TAT-QA has a tenth of the rows, too few for its own scale and derivation to be learned.
    "tables": {
        **_CODE_BLOCKS,
        **_rollouts(steps=80, groups=32),
        **_SMALL_UPDATES,
        "data.shares": "{wikitablequestions: 2, tatqa: 1}",
    },
    "math_code": {**_CODE_BLOCKS, **_rollouts(steps=32, groups=32), **_SMALL_UPDATES},
    "tau_retail": {**_LINES, **_rollouts(steps=16, groups=32)},
    "forecasting": {**_LINES, **_rollouts(steps=16, groups=32)},
    "games": {**_COMMANDS, **_rollouts(steps=16, groups=32)},
    "nlvr": {},
}
"""What each recipe sets beside `_SHARED`, in the order in which they are run."""

TEST_ROWS: Settings = MappingProxyType({"eval.split": "test", "eval.max_tasks": "null"})
"""Published figures are of all test rows."""
_OF_EVALUATIONS = (
    *("engine.", "env.", "model.", "trainer.device"),
    *("rollout.max_", "rollout.context_length", "rollout.concurrency"),
)
"""The keys, or how they begin, that the evaluation of an untrained model has of a recipe's settings."""


@dataclass(frozen=True, kw_only=True)
class PlannedRun:
    """One published result: a training run, or the evaluation of the untrained model."""

    recipe: str
    """Its recipe."""
    algorithm: str
    """Its algorithm; `react` or `no_tools` for the untrained model."""
    seed: int
    """Its seed."""
    base: Settings
    """Its settings but algorithm and seed."""

    @property
    def is_untrained(self) -> bool:
        """Whether nothing is trained."""
        return self.algorithm in (REACT, NO_TOOLS)

    @property
    def title(self) -> str:
        """How it is reported."""
        return f"{self.recipe}, {self.algorithm}" + ("" if self.is_untrained else f", seed {self.seed}")

    @property
    def settings(self) -> dict[str, str]:
        """All its settings but the seed: those that an evaluation has, when nothing is trained."""
        if self.is_untrained:
            kept = {key: value for key, value in self.base.items() if key.startswith(_OF_EVALUATIONS)}
            return {**kept, **(WITHOUT_TOOLS[self.recipe] if self.algorithm == NO_TOOLS else {})}
        return {"algorithm": self.algorithm, **self.base}

    def name(self, model: str) -> str:
        """The name of its folder and of its published file."""
        kind = self.algorithm if self.is_untrained else f"{self.algorithm}_{self.seed}"
        return f"{self.recipe}_{kind}_{model}"


def base_settings(recipe: str) -> dict[str, str]:
    """The settings of a recipe that all its runs have."""
    return {} if recipe in OWN_MODELS else {**_SHARED, **RECIPES[recipe]}


def make_plan(
    *,
    recipes: Sequence[str] = tuple(RECIPES),
    algorithms: Sequence[str] = ALGORITHMS,
    seeds: Sequence[int] = SEEDS,
    settings: Settings = MappingProxyType({}),
) -> list[PlannedRun]:
    """The runs in an order that is useful wherever it is cut: every recipe once, then the algorithms, then seeds. A
    training comes before the untrained rows of its recipe, which are short: they run beside it."""
    everything = [
        *((recipe, algorithm, 0) for recipe in RECIPES for algorithm in _first_algorithms(recipe)),
        *((recipe, algorithm, 0) for algorithm in COMPARED for recipe in COMPARED_ON if _suits(recipe, algorithm)),
        *((recipe, FIRST, seed) for seed in SEEDS[1:] for recipe in RECIPES if recipe not in OWN_MODELS),
    ]
    return [
        PlannedRun(recipe=recipe, algorithm=algorithm, seed=seed, base={**base_settings(recipe), **settings})
        for recipe, algorithm, seed in everything
        if recipe in recipes and algorithm in algorithms and seed in seeds
    ]


def _first_algorithms(recipe: str) -> tuple[str, ...]:
    if recipe in OWN_MODELS:
        return (FIRST,)
    return (FIRST, REACT, NO_TOOLS) if recipe in WITHOUT_TOOLS else (FIRST, REACT)


def _suits(recipe: str, algorithm: str) -> bool:
    return algorithm != "gigpo" or recipe not in WITHOUT_ANCHORS
