"""Presets are taken as they are; every other combination of parts is tried before a run."""

from __future__ import annotations

import dataclasses

import pytest

from agent_r1.algorithms import bind_algorithm
from agent_r1.algorithms.algorithm import _is_preset, _rehearse
from agent_r1.config import load_config, presets
from agent_r1.config.algorithm_schema import AlgorithmConfig
from agent_r1.errors import ConfigError


def algorithm_of(*overrides: str) -> AlgorithmConfig:
    return load_config(None, ["model.path=none", *overrides]).algorithm


@pytest.mark.parametrize("preset", presets("algorithm"))
def test_the_parts_of_every_preset_fit(preset: str) -> None:
    config = algorithm_of(f"algorithm={preset}")
    assert _is_preset(config)
    algorithm = bind_algorithm(config)
    _rehearse(algorithm)
    tried = dataclasses.replace(algorithm, settings=dataclasses.replace(algorithm.settings, preset=None))
    assert algorithm.needs_greedy == tried.needs_greedy


@pytest.mark.parametrize(
    "override",
    [
        "algorithm.estimator=token_gae",
        "algorithm.loss=cispo",
        "algorithm.aggregation=token-mean",
        "algorithm.off_policy.name=token",
        "algorithm.critic.kind=own",
        "algorithm.group_plan=with_greedy",
    ],
)
def test_a_preset_with_another_part_is_tried(override: str) -> None:
    assert not _is_preset(algorithm_of("algorithm=grpo", override))


def test_a_preset_with_another_argument_is_still_checked() -> None:
    config = algorithm_of("algorithm=grpo", "algorithm.loss.dual_clip=0.5")
    assert _is_preset(config)
    with pytest.raises(ConfigError, match="dual_clip"):
        bind_algorithm(config)
    with pytest.raises(ConfigError, match="divisor"):
        bind_algorithm(algorithm_of("algorithm=dr_grpo", "algorithm.aggregation.divisor=0"))
    with pytest.raises(ConfigError, match="ratio"):
        bind_algorithm(algorithm_of("algorithm=grpo", "algorithm.loss.ratio=word"))


def test_a_name_alone_makes_no_preset() -> None:
    config = dataclasses.replace(algorithm_of("algorithm=ppo"), preset="grpo")
    assert not _is_preset(config)
    assert not _is_preset(dataclasses.replace(config, preset="../algorithm/ppo"))
