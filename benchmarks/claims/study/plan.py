"""What the study compares: every variant is GRPO with one change, and all variants of a task have as many episodes.

The sizes below are those of the published runs. Results of other sizes are another study: keep them in another folder.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from types import MappingProxyType

from benchmarks.common.recipe_runs import Settings

TASKS = ("alfworld", "hotpotqa")
SEEDS = (0, 1, 2)
MODEL = "SmolLM2-135M-Instruct"

STEPS = 15
GROUPS, GROUP_SIZE = 32, 8
"""32 tasks of 8 rollouts: 256 episodes per step, 3,840 per run."""
LEARNING_RATE = {"alfworld": 1e-5, "hotpotqa": 2e-5}
WARM_START_STEPS = {"alfworld": 40, "hotpotqa": 120}
"""Few enough that the warm start solves between a fifth and a half of the validation tasks: there is room to learn."""

_SHARED = {
    "algorithm": "grpo",
    "rollout.groups_per_step": str(GROUPS),
    "rollout.group_size": str(GROUP_SIZE),
    "rollout.concurrency": str(GROUPS * GROUP_SIZE),
    "rollout.temperature": "1.0",
    "optimizer.warmup_steps": "2",
    "trainer.steps": str(STEPS),
    # Runs that share a GPU share what was compiled, too: all but the first compile for some seconds.
    "trainer.compile": "true",
    "trainer.micro_batch_tokens": "8192",
    "engine.kv_memory": "400000",  # an update of four fifths of 256 games computed 385,000 tokens
}


def base_settings(task: str) -> dict[str, str]:
    """The settings of a task that every variant starts from."""
    return {
        **_SHARED,
        "optimizer.learning_rate": f"{LEARNING_RATE[task]:g}",
        "sft.steps": str(WARM_START_STEPS[task]),
    }


@dataclass(frozen=True, kw_only=True)
class Question:
    """What a table of the page answers."""

    name: str
    """Its short name."""
    title: str
    """Its heading."""
    reference: str = "base"
    """The variant that the others are compared with."""
    note: str = ""
    """What a reader must know to read its table."""


@dataclass(frozen=True, kw_only=True)
class Variant:
    """One change to the base."""

    name: str
    """Its name in files and tables."""
    question: str
    """The question that it belongs to."""
    changes: Settings
    """The keys that it sets; the base sets none."""
    tasks: Sequence[str] = TASKS
    """The tasks that have it."""


QUESTIONS = (
    Question(name="credit", title="Step-level or trajectory-level credit"),
    Question(
        name="critic",
        title="Closed-form critic or none",
        reference="no_critic",
        note="`critic` and `no_critic` give every token the return of its episode, whitened over the batch; `critic` "
        "subtracts the critic's value first. They are compared with each other, not with the base.",
    ),
    Question(name="group", title="Group size or tasks per batch"),
    Question(
        name="process",
        title="Process rewards",
        note="Process rewards are penalties of single steps in alfworld; hotpotqa has none.",
    ),
    Question(name="kl", title="KL penalty"),
    Question(
        name="learning_rate",
        title="Learning rate",
        note="The learning rates are a third and three times the base's of the task; the table has those of hotpotqa.",
    ),
    Question(
        name="revisit",
        title="Drawing tasks of 10 to 90 % success again",
        note="`revisit` is described in [curriculum.md](curriculum.md#tasks-that-are-solved-now-and-then).",
    ),
    Question(name="temperature", title="Temperature"),
)


def variants_of(task: str, base: Settings | None = None) -> list[Variant]:
    """The variants of a task with these settings of the base, in the order in which they are run; the base is first."""
    return [variant for variant in _variants(base or base_settings(task)) if task in variant.tasks]


def _variants(base: Settings) -> list[Variant]:
    groups, size, rate = (
        int(base["rollout.groups_per_step"]),
        int(base["rollout.group_size"]),
        float(base["optimizer.learning_rate"]),
    )
    shapes = {half_or_double: groups * size // half_or_double for half_or_double in (size // 2, size * 2)}
    only = ("alfworld",)
    return [
        Variant(name="base", question="credit", changes={}),
        *_variants_by_key("credit", "{}", "algorithm", ("rloo", "step_grpo", "gigpo", "steppo")),
        # Both give every token the whitened return; only one subtracts the critic's value first.
        Variant(name="no_critic", question="critic", changes={"algorithm.estimator": "token_return"}),
        Variant(
            name="critic",
            question="critic",
            changes={
                "algorithm.estimator": "token_gae",
                "algorithm.estimator.lam": "1.0",
                "algorithm.critic.kind": "closed_form",
            },
        ),
        *(
            Variant(
                name=f"{name}_groups",
                question="group",
                changes={"rollout.group_size": str(members), "rollout.groups_per_step": str(count)},
            )
            for name, (members, count) in zip(("small", "large"), shapes.items(), strict=True)
        ),
        Variant(name="invalid_penalty", question="process", changes={"env.invalid_penalty": "0.1"}, tasks=only),
        Variant(name="step_penalty", question="process", changes={"env.step_penalty": "0.01"}, tasks=only),
        *_variants_by_key("kl", "kl_{}", "algorithm.kl.coefficient", ("0.001", "0.01")),
        Variant(name="low_rate", question="learning_rate", changes={"optimizer.learning_rate": f"{rate / 3:.3g}"}),
        Variant(name="high_rate", question="learning_rate", changes={"optimizer.learning_rate": f"{rate * 3:.3g}"}),
        Variant(name="revisit", question="revisit", changes={"data.revisit.share": "0.5"}),
        *_variants_by_key("temperature", "temperature_{}", "rollout.temperature", ("0.7", "1.3")),
    ]


def _variants_by_key(question: str, name: str, key: str, values: Sequence[str]) -> list[Variant]:
    return [Variant(name=name.format(value), question=question, changes={key: value}) for value in values]


@dataclass(frozen=True, kw_only=True)
class Run:
    """One training run of the study."""

    task: str
    """Its task."""
    variant: Variant
    """What it changes."""
    seed: int
    """Its seed."""
    base: Settings
    """The settings that all variants of the task start from."""

    @property
    def name(self) -> str:
        """The name of its folder."""
        return f"{self.variant.name}_{self.seed}"

    @property
    def settings(self) -> dict[str, str]:
        """All its settings but the seed."""
        return {**self.base, **self.variant.changes}

    @property
    def key(self) -> tuple[str, str, int]:
        """What tells it from the other runs of a model."""
        return self.task, self.variant.name, self.seed

    @property
    def episodes(self) -> int:
        """Episodes that it trains on."""
        settings = self.settings
        per_step = int(settings["rollout.groups_per_step"]) * int(settings["rollout.group_size"])
        return per_step * int(settings["trainer.steps"])


def make_plan(
    *,
    tasks: Sequence[str] = TASKS,
    variants: Sequence[str] = (),
    seeds: Sequence[int] = SEEDS,
    settings: Settings = MappingProxyType({}),
) -> list[Run]:
    """All runs in their order: one seed of everything before the next seed, so that a study that is cut is balanced.

    `settings` are those of all runs, and variants are changes to them.
    """
    bases = {task: {**base_settings(task), **settings} for task in tasks}
    chosen = [(task, variant) for task in tasks for variant in variants_of(task, bases[task])]
    known = list(dict.fromkeys(variant.name for _, variant in chosen))
    unknown = [name for name in variants if name not in known]
    if unknown:
        raise SystemExit(f"unknown variant {unknown[0]} of {', '.join(tasks)}; known: {', '.join(known)}")
    order = [variant.name for variant in _variants(bases[tasks[0]])]
    chosen.sort(key=lambda pair: order.index(pair[1].name))
    runs = [
        Run(task=task, variant=variant, seed=seed, base=bases[task])
        for seed, (task, variant) in product(seeds, chosen)
        if not variants or variant.name in variants
    ]
    for run in runs:
        base = Run(task=run.task, variant=Variant(name="", question="", changes={}), seed=0, base=run.base)
        if run.episodes != base.episodes:
            raise SystemExit(
                f"{run.variant.name} would have {run.episodes} episodes and the base {base.episodes}; choose sizes "
                "that can be halved and doubled"
            )
        if run.variant.changes and run.settings == base.settings:
            raise SystemExit(
                f"with these settings {run.variant.name} is the base; leave it out, or change the settings"
            )
    return runs
