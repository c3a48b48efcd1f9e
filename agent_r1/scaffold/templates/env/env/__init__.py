"""The environment of my_task."""

from .my_task_env import RegisterEnv

__all__ = ["RegisterEnv"]
