"""Agent-R1 from Python: `train`, `evaluate`, `sft`, `demonstrate`, `check` and `replay`, as on the command line.

    agent_r1.train("quickstart", overrides={"algorithm": "ppo", "trainer.steps": 20})
    agent_r1.train(model="Qwen/Qwen3-0.6B", data=rows, tools=[stock], reward=score, overrides=["trainer.steps=20"])
    agent_r1.train(model="Qwen/Qwen3-0.6B", env="gym:FrozenLake-v1")
    agent_r1.replay("runs/quickstart", reward=stricter)

All of them work in a notebook too, where an event loop is running.
"""

from agent_r1.api.arguments import Recipe, Reward, RewardTerm, ToolLike, folder_of, resolve
from agent_r1.api.checks import check
from agent_r1.api.evaluation import BASELINES, SPLITS, evaluate, evaluate_run, evaluations_of
from agent_r1.api.replays import replay
from agent_r1.api.training import demonstrate, sft, train

__all__ = [
    "BASELINES",
    "SPLITS",
    "Recipe",
    "Reward",
    "RewardTerm",
    "ToolLike",
    "check",
    "demonstrate",
    "evaluate",
    "evaluate_run",
    "evaluations_of",
    "folder_of",
    "replay",
    "resolve",
    "sft",
    "train",
]
