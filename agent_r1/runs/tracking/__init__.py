"""Trackers write metrics: always to a JSONL file, on request to TensorBoard, Weights & Biases, MLflow and trackers of
your own.

A tracker of your own is a function under a name, in a module that `imports` lists:

    @tracker_factories.register("mine")
    def make_mine(config, folder): return MyTracker(folder / "mine.csv")

    tracking.trackers=[mine]
"""

from agent_r1.runs.tracking.background import BackgroundTracker
from agent_r1.runs.tracking.base import Trackers, check_trackers, open_each, tracker_factories
from agent_r1.runs.tracking.jsonl import NOT_FINITE, JsonlTracker, parse_metrics_line, read_metrics
from agent_r1.runs.tracking.mlflow import MlflowTracker
from agent_r1.runs.tracking.protocol import NoTracker, StatusTracker, Tracker
from agent_r1.runs.tracking.tensorboard import TensorBoardTracker
from agent_r1.runs.tracking.wandb import WandbTracker

__all__ = [
    "NOT_FINITE",
    "BackgroundTracker",
    "JsonlTracker",
    "MlflowTracker",
    "NoTracker",
    "StatusTracker",
    "TensorBoardTracker",
    "Tracker",
    "Trackers",
    "WandbTracker",
    "check_trackers",
    "open_each",
    "parse_metrics_line",
    "read_metrics",
    "tracker_factories",
]
