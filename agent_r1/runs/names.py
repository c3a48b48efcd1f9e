"""Check the names and folders of a run. A run's name is a single folder below `run.folder`."""

from __future__ import annotations

from pathlib import Path

from agent_r1.config import Config
from agent_r1.errors import ConfigError, report_problems
from agent_r1.runs.folder import RunFolder

_MAX_BYTES = 200
"""File systems allow 255; lock files, partial files and numbered folders append to the name."""


def name_problem(name: str) -> str | None:
    """What is wrong with a run's name; None for a valid one.

    >>> name_problem("grpo-seed=1"), name_problem("a/b")
    (None, "contains '/'")
    """
    if not name.strip():
        return "is empty"
    if name in (".", "..") or name.startswith("."):
        return "starts with '.'"
    separator = next((mark for mark in "/\\" if mark in name), None)
    if separator is not None:
        return f"contains '{separator}'"
    if not name.isprintable() or name != name.strip():
        return "has blanks at its ends, or unprintable characters"
    if len(name.encode(errors="surrogatepass")) > _MAX_BYTES:
        return f"is longer than {_MAX_BYTES} bytes"
    return None


def folder_problems(config: Config) -> list[str]:
    """What is wrong with the folders that a run would write; all problems."""
    problems = []
    problem = name_problem(config.run.name)
    if problem is not None:
        problems.append(
            f"run.name={config.run.name!r} {problem}; a run's name is the name of a folder in run.folder, for example "
            "run.name=grpo_seed1 (is a shell variable unset?)"
        )
    if not config.run.folder.strip():
        problems.append("run.folder is empty; give the parent of all run folders, for example run.folder=runs")
    warm = config.sft.folder
    if warm is not None and (not warm.strip() or name_problem(Path(warm).name) is not None):
        problems.append(f"sft.folder={warm!r} is not a folder for a warm start; set for example sft.folder=runs/warm")
    return problems


def check_reads_outside(config: Config) -> None:
    """Refuse a run that reads from the folder it writes: that folder may be renamed before it is read."""
    report_problems(_overlaps(config), ConfigError, "the run would read from the folder that it writes:")


def _overlaps(config: Config) -> list[str]:
    run_folder = RunFolder.of(config).path.resolve()
    inputs = [
        ("model.path", [config.model.path]),
        ("data.train", config.data.train),
        ("data.eval", config.data.eval),
        ("data.test", config.data.test),
        ("sft.data", config.sft.data),
        ("sft.folder", [] if config.sft.folder is None else [config.sft.folder]),
    ]
    return [
        f"{key}={path} is inside {run_folder}, which is this run's own folder; choose another run.name"
        for key, paths in inputs
        for path in paths
        if path and run_folder in (Path(path).resolve(), *Path(path).resolve().parents)
    ]
