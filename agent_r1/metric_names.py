"""Names of the metrics that the health monitor, the console and the reports read.

A run logs more than these. A test checks that it logs each of them, so a metric is renamed here or not at all.
"""

from __future__ import annotations

OUTCOME = "reward/outcome"
PROCESS = "reward/process"
SUCCESS = "reward/success"
GROUPS_WITH_SPREAD = "reward/groups_with_spread"
REWARD_FIGURES = frozenset(
    {"outcome", "process", "process_balanced", "success", "overlong", "groups_with_spread", "kl_penalty"}
)
"""Names under `reward/` that the library logs itself."""

EPISODE_STEPS = "episode/steps"
ACTION_TOKENS = "episode/action_tokens"
TOOL_CALLS = "episode/tool_calls"
TRUNCATED = "episode/truncated"
CUT_ACTIONS = "episode/cut_actions"
PARSE_ERRORS = "step/parse_errors"

ENTROPY = "policy/entropy"
APPROX_KL = "policy/approx_kl"
REFERENCE_KL = "policy/reference_kl"
CREDITED_TRAJECTORIES = "policy/credited_trajectories"
LOGPROB_DIFFERENCE = "offpolicy/logprob_difference"
STALENESS_MEAN = "offpolicy/staleness_mean"

SFT_LOSS = "loss/sft"
"""The loss of a warm start, which logs nothing else."""

STEP_SECONDS = "time/step"
COMPILE_SECONDS = "time/compile"
"""Seconds of compiling: in the first steps, and when sizes are met for the first time."""
PEAK_GPU_GB = "perf/peak_gpu_gb"
EPISODES = "perf/episodes"
PREEMPTIONS = "perf/preemptions"
"""Requests that the in-process engine preempted."""

USAGE_PREFIX = "usage/"
"""Begins what a server behind a chat API says that an episode took: tokens and requests."""

EVAL_PREFIX = "eval/"
RUN_FAMILIES = ("loss/", "policy/", "critic/", "offpolicy/", EVAL_PREFIX)
"""Beginnings of names that only the learner and evaluations log; not in every step, so a name that is free in one step
is taken in the next."""
ALL_SOURCES = "all"


def eval_metric(figure: str, source: str = ALL_SOURCES) -> str:
    """The name of a figure of an evaluation.

    >>> eval_metric("greedy"), eval_metric("rows", "math")
    ('eval/all/greedy', 'eval/math/rows')
    """
    return f"{EVAL_PREFIX}{source}/{figure}"


EVAL_GREEDY = eval_metric("greedy")
EVAL_ROWS = eval_metric("rows")
EVAL_TOOL_CALLS = eval_metric("tool_calls")
