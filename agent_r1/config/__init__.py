"""Configuration: dataclasses as the schema, composed with Hydra."""

from agent_r1.config.algorithm_schema import PART_KEYS, AlgorithmConfig, CriticConfig, KLConfig
from agent_r1.config.compose import (
    from_yaml,
    known_keys,
    load_config,
    preset_values,
    presets,
    to_yaml,
    value_problems,
)
from agent_r1.config.differences import algorithm_name, changed_settings, config_differences
from agent_r1.config.model_schema import LoraConfig, ModelConfig
from agent_r1.config.overrides import Overrides, override_texts
from agent_r1.config.quoting import quoted
from agent_r1.config.schema import (
    AgentConfig,
    Config,
    OptimizerConfig,
    RewardConfig,
    RewardPart,
    RunConfig,
    ShardingConfig,
)
from agent_r1.config.schema_nodes import check_saved
from agent_r1.config.servers_schema import ServersConfig
from agent_r1.config.workers_schema import ProcessesConfig, RayConfig

__all__ = [
    "PART_KEYS",
    "AgentConfig",
    "AlgorithmConfig",
    "Config",
    "CriticConfig",
    "KLConfig",
    "LoraConfig",
    "ModelConfig",
    "OptimizerConfig",
    "Overrides",
    "ProcessesConfig",
    "RayConfig",
    "RewardConfig",
    "RewardPart",
    "RunConfig",
    "ServersConfig",
    "ShardingConfig",
    "algorithm_name",
    "changed_settings",
    "check_saved",
    "config_differences",
    "from_yaml",
    "known_keys",
    "load_config",
    "override_texts",
    "preset_values",
    "presets",
    "quoted",
    "to_yaml",
    "value_problems",
]
