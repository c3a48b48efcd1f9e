"""Configuration: dataclasses as the schema, composed with Hydra."""

from agent_r1.config.algorithm_schema import AlgorithmConfig, CriticConfig, KLConfig
from agent_r1.config.compose import from_yaml, known_keys, load_config, presets, to_yaml, value_problems
from agent_r1.config.differences import algorithm_name, config_differences
from agent_r1.config.quoting import quoted
from agent_r1.config.schema import Config, LoraConfig, ModelConfig, OptimizerConfig, RunConfig
from agent_r1.registry import bind_part

__all__ = [
    "AlgorithmConfig",
    "Config",
    "CriticConfig",
    "KLConfig",
    "LoraConfig",
    "ModelConfig",
    "OptimizerConfig",
    "RunConfig",
    "algorithm_name",
    "bind_part",
    "config_differences",
    "from_yaml",
    "known_keys",
    "load_config",
    "presets",
    "quoted",
    "to_yaml",
    "value_problems",
]
