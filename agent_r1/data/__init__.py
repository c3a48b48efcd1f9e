"""Data: rows as tasks, demonstrations, and downloads of the public files that recipes use."""

from agent_r1.data.curriculum import Curriculum
from agent_r1.data.demonstration_workers import MAX_WORKERS, DemonstrationWorkers
from agent_r1.data.demonstrations import (
    DemonstrationRow,
    check_demonstration,
    load_demonstrations,
    tokenise_conversation,
    write_demonstrations,
)
from agent_r1.data.downloads import DATA_VARIABLE, find_files, locate, read_raw
from agent_r1.data.given_rows import Rows, row_files
from agent_r1.data.own_episodes import UnfitEpisodeError, conversation_key, episode_row, solved_episode
from agent_r1.data.revisit import RevisitingSampler
from agent_r1.data.sampler import TaskSampler
from agent_r1.data.shares import MixingSampler
from agent_r1.data.splits import hold_out
from agent_r1.data.tasks import load_tasks, read_rows, task_from_row, write_rows

__all__ = [
    "DATA_VARIABLE",
    "MAX_WORKERS",
    "Curriculum",
    "DemonstrationRow",
    "DemonstrationWorkers",
    "MixingSampler",
    "RevisitingSampler",
    "Rows",
    "TaskSampler",
    "UnfitEpisodeError",
    "check_demonstration",
    "conversation_key",
    "episode_row",
    "find_files",
    "hold_out",
    "load_demonstrations",
    "load_tasks",
    "locate",
    "read_raw",
    "read_rows",
    "row_files",
    "solved_episode",
    "task_from_row",
    "tokenise_conversation",
    "write_demonstrations",
    "write_rows",
]
