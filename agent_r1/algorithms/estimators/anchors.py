"""GiGPO: groups within groups, made of the steps that started from the same observation (arXiv:2505.10978)."""

from __future__ import annotations

import difflib
import hashlib
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING

from agent_r1.algorithms.estimators.base import Credit, estimators, group_statistics, has_spread, standardize
from agent_r1.algorithms.lazy_torch import torch
from agent_r1.algorithms.table import StepTable
from agent_r1.constraints import Fraction, NotNegative, Positive
from agent_r1.images import Picture
from agent_r1.types import Observation

if TYPE_CHECKING:
    from torch import Tensor


@estimators.register("gigpo")
def gigpo(
    table: StepTable,
    *,
    step_weight: NotNegative = 1.0,
    gamma: Fraction = 0.95,
    mean_norm: bool = False,
    similarity: Fraction | None = None,
    epsilon: Positive = 1e-6,
) -> Credit:
    """The episode's advantage plus `step_weight` times the step's (Feng et al. 2025).

    The episode's is GRPO's. The step's compares the discounted return-to-go of all steps of the group that started from
    the same anchor observation; it is 0 where no other member was, or all earned the same. `mean_norm` omits both stds.
    `similarity` joins observations that are at least so similar (0 to 1) to a cluster's first member, instead of equal.

    Two single-step members with returns (1, 0) and the same observation: (.7071 + .7071, -.7071 - .7071).
    """
    if table.observations_S is None:
        raise ValueError("this estimator needs the observations of the steps")
    episodes = group_statistics(table.returns_R, table.group_R)
    episode_R = table.returns_R - episodes.mean_R
    returns_to_go_S = table.rewards_to_go_S(gamma)
    cluster_S = anchor_clusters(table.observations_S, table.group_R[table.trajectory_S], similarity)
    clusters = group_statistics(returns_to_go_S, cluster_S)
    # Whether a cluster's returns differ is decided by the task's rewards, as for groups. A trajectory that returns to a
    # state is not compared with itself alone.
    task_returns_to_go_S = table.task_rewards_to_go_S(gamma)
    several_S = group_statistics(table.trajectory_S.double(), cluster_S).has_spread_R
    compared_S = several_S & group_statistics(task_returns_to_go_S, cluster_S).has_spread_R
    step_S = torch.where(compared_S, returns_to_go_S - clusters.mean_R, torch.zeros_like(returns_to_go_S))
    if not mean_norm:
        episode_R = standardize(episode_R, episodes.std_R, epsilon)
        step_S = standardize(step_S, clusters.std_R, epsilon)
    alive_S = has_spread(table)[table.trajectory_S]
    episode_S = torch.where(alive_S, episode_R[table.trajectory_S], torch.zeros_like(returns_to_go_S))
    return Credit.of_steps(table, episode_S + step_weight * step_S, alive_S | compared_S)


def anchor_clusters(observations: Sequence[Observation], group_S: Tensor, similarity: float | None = None) -> Tensor:
    """A cluster id for each step: steps of one group share it when they started from the same anchor.

    Anchors (a, b, a) in groups (0, 0, 0) give (0, 1, 0); in groups (0, 0, 1) they give (0, 1, 2). A step joins the
    first cluster of its group whose first member is similar enough.
    """
    firsts: dict[int, list[tuple[str, int]]] = {}
    exact: dict[tuple[int, str], int] = {}
    result, num_clusters = [], 0
    for observation, group_id in zip(observations, group_S.tolist(), strict=True):
        anchor = anchor_of(observation)
        cluster = exact.get((group_id, anchor))
        if cluster is None and similarity is not None:
            clusters = firsts.setdefault(group_id, [])
            cluster = next((number for first, number in clusters if _similar(first, anchor) >= similarity), None)
        if cluster is None:
            cluster, num_clusters = num_clusters, num_clusters + 1
            firsts.setdefault(group_id, []).append((anchor, cluster))
        exact[group_id, anchor] = cluster
        result.append(cluster)
    return torch.tensor(result, dtype=torch.long)


def anchor_of(observation: Observation) -> str:
    """What identifies the state a step started from: the environment's anchor, else everything that the model saw.

    >>> anchor_of(Observation(text="a room with two doors", anchor="room 2"))
    'room 2'
    """
    if observation.anchor is not None:
        return observation.anchor
    if observation.messages is not None:
        # As a person would read it: braces and quotes would make all conversations look alike.
        parts = [f"{name}: {_as_text(message[name])}" for message in observation.messages for name in sorted(message)]
    else:
        parts = [_as_text(observation.text if observation.text is not None else list(observation.token_ids or ()))]
    kind = next(name for name in ("messages", "text", "token_ids") if getattr(observation, name) is not None)
    return "\n".join([kind, *parts, *map(_as_text, (*observation.tools, *observation.images))])


def _as_text(part: object) -> str:
    """Text as it stands, pictures by what is in them, anything else as JSON."""
    if isinstance(part, str):
        return part
    plain = _hash_of_picture(part)
    return (
        plain
        if isinstance(plain, str)
        else json.dumps(plain, sort_keys=True, ensure_ascii=False, default=_json_default)
    )


def _hash_of_picture(part: object) -> object:
    """The hash of a picture, of bytes or of what has bytes; anything else as it is."""
    if isinstance(part, Picture):
        return part.content_hash
    content = part.tobytes() if hasattr(part, "tobytes") else part
    return hashlib.sha256(content).hexdigest() if isinstance(content, bytes) else part


def _json_default(part: object) -> str:
    return str(_hash_of_picture(part))


def _similar(first: str, second: str) -> float:
    """2 * matching characters / all characters, in [0, 1]."""
    return difflib.SequenceMatcher(None, first, second, autojunk=False).ratio()
