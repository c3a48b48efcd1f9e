"""Run folders: their layout, opening and following them, metrics and trajectories, curves and tables. No torch."""

from agent_r1.runs.checkpoints import (
    SHARDS,
    SHARDS_LIST,
    checksum,
    find_damage,
    find_model_damage,
    list_checkpoints,
    newest_readable,
    seal_model,
    seal_state,
)
from agent_r1.runs.credit import parse_credit, read_credit, write_credit
from agent_r1.runs.evaluations import EvaluationPair, EvaluationRecord, read_evaluation, write_evaluation
from agent_r1.runs.fingerprints import fingerprint_differences, read_fingerprints, run_fingerprints
from agent_r1.runs.folder import RUN_MARKS, RunFolder, base_model
from agent_r1.runs.follow import MetricsFollower, MetricsUpdate, follow_metrics, follow_trajectories
from agent_r1.runs.load import LoadedRun, Table, load_run, load_trajectories
from agent_r1.runs.lock import FolderLock, is_locked, lock_folder, remove_stale_lock
from agent_r1.runs.model_names import TINY_SUFFIX
from agent_r1.runs.names import check_reads_outside, folder_problems
from agent_r1.runs.opening import locked_run, open_run, open_trackers, plan_opening, write_fingerprints
from agent_r1.runs.read import RunRecord, read_runs
from agent_r1.runs.reports.paired import Gain, paired_gain
from agent_r1.runs.reports.plot import DEFAULT_KEYS, draw_curves, save_figure
from agent_r1.runs.reports.published import (
    Published,
    publish_evaluation,
    publish_run,
    read_published,
    write_published,
)
from agent_r1.runs.reports.table import describe_gain, markdown_table, table_rows
from agent_r1.runs.tracking import Tracker, check_trackers, parse_metrics_line, tracker_factories
from agent_r1.runs.trajectories import (
    PendingTrajectories,
    read_trajectories,
    read_with_prompts,
    trajectory_lines,
    write_trajectories,
)

__all__ = [
    "DEFAULT_KEYS",
    "RUN_MARKS",
    "SHARDS",
    "SHARDS_LIST",
    "TINY_SUFFIX",
    "EvaluationPair",
    "EvaluationRecord",
    "FolderLock",
    "Gain",
    "LoadedRun",
    "MetricsFollower",
    "MetricsUpdate",
    "PendingTrajectories",
    "Published",
    "RunFolder",
    "RunRecord",
    "Table",
    "Tracker",
    "base_model",
    "check_reads_outside",
    "check_trackers",
    "checksum",
    "describe_gain",
    "draw_curves",
    "find_damage",
    "find_model_damage",
    "fingerprint_differences",
    "folder_problems",
    "follow_metrics",
    "follow_trajectories",
    "is_locked",
    "list_checkpoints",
    "load_run",
    "load_trajectories",
    "lock_folder",
    "locked_run",
    "markdown_table",
    "newest_readable",
    "open_run",
    "open_trackers",
    "paired_gain",
    "parse_credit",
    "parse_metrics_line",
    "plan_opening",
    "publish_evaluation",
    "publish_run",
    "read_credit",
    "read_evaluation",
    "read_fingerprints",
    "read_published",
    "read_runs",
    "read_trajectories",
    "read_with_prompts",
    "remove_stale_lock",
    "run_fingerprints",
    "save_figure",
    "seal_model",
    "seal_state",
    "table_rows",
    "tracker_factories",
    "trajectory_lines",
    "write_credit",
    "write_evaluation",
    "write_fingerprints",
    "write_published",
    "write_trajectories",
]
