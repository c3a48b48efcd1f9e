"""Replay: recorded rollouts scored again with another reward or estimator, and one offline update, without rolling out.

report = replay_run(Path("runs/quickstart"), ["reward.function=reward_fn:stricter"], RunConsole())
report.advantages.flipped                    # the share of trajectories whose advantage changed its sign
"""

from agent_r1.training.replay.compare import AdvantageChange, Change, Example, rank_correlation
from agent_r1.training.replay.offline import OfflineUpdate
from agent_r1.training.replay.replay import Replay, replay_run
from agent_r1.training.replay.report import print_replay, replay_as_json

__all__ = [
    "AdvantageChange",
    "Change",
    "Example",
    "OfflineUpdate",
    "Replay",
    "print_replay",
    "rank_correlation",
    "replay_as_json",
    "replay_run",
]
