"""Open a run folder: decide whether a run resumes or a new one starts.

A process that opens a run holds its lock (`locked_run`): a folder that is in use is never moved.
"""

from __future__ import annotations

import copy
import json
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agent_r1.config import Config, config_differences, from_yaml, to_yaml
from agent_r1.errors import CheckpointError, ConfigError
from agent_r1.files import write_atomically
from agent_r1.runs import fingerprints
from agent_r1.runs.checkpoints import list_checkpoints
from agent_r1.runs.folder import RUN_FILES, RUN_MARKS, RunFolder
from agent_r1.runs.lock import FolderLock, lock_folder
from agent_r1.runs.names import name_problem
from agent_r1.runs.tracking import JsonlTracker, NoTracker, Trackers, open_each

_MAX_LISTED = 20


@dataclass(frozen=True, kw_only=True, slots=True)
class Opening:
    """What starting a run does with its folder."""

    resumes: bool
    """Whether it resumes from a checkpoint."""
    story: str
    """What the folder holds and what happens to it, for the console; "" when there is nothing to say."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Differences:
    """What differs from the run in the folder."""

    keys: list[str]
    """Of the configuration, but the number of steps and what only concerns reports."""
    replaced: list[str]
    """Files of data and model with other content."""
    code: list[str]
    """Files of the recipe's code with other content."""


def plan_opening(config: Config) -> Opening:
    """Decide whether a run resumes; writes nothing. Raises `CheckpointError` when `run.resume=must` is impossible."""
    folder = RunFolder.of(config)
    mode = config.run.resume
    if mode not in ("auto", "never", "must"):
        raise ConfigError(f"run.resume is '{mode}'; known: auto, never, must")
    steps = [step for step, _ in list_checkpoints(folder.checkpoints)]
    if mode == "must" and not steps:
        raise CheckpointError(f"run.resume=must, but there is no checkpoint in {folder.checkpoints}{_why_none(folder)}")
    if not folder.path.exists():
        return Opening(resumes=False, story="")
    _check_is_run(folder.path)
    aside = f"It is moved to {_free_name(folder.path)}, and a new run starts."
    if mode == "never":
        return Opening(resumes=False, story=f"{folder.path} holds a run, and run.resume=never. {aside}")
    summary = folder.read_summary()
    finished = summary is not None and summary["steps"] >= config.trainer.steps and not _lacks_export(summary)
    if mode == "auto" and finished:
        return Opening(resumes=False, story=f"{folder.path} holds a finished run. {aside}")
    if not steps:
        why = _why_none(folder)
        return Opening(resumes=False, story=f"{folder.path} holds a run without a checkpoint{why}. {aside}")
    found = _differences(folder, config)
    code = _told(
        f"the recipe's code has changed since {folder.path} began; the run continues with the new code", found.code
    )
    if mode == "must":
        _refuse_replaced(folder, found.replaced)
        keys = _told(f"resuming {folder.path} with another configuration", found.keys)
        return Opening(resumes=True, story="\n".join([*keys, *code]))
    if not found.keys and not found.replaced:
        return Opening(resumes=True, story="\n".join(code))
    return Opening(
        resumes=False,
        story=f"{folder.path} holds a run with a checkpoint of step {steps[-1]} that differs from this one:\n"
        f"{_as_list([*found.keys, *found.replaced])}\n{aside} To resume the old one instead, stop this run, rename the "
        "folder back and restore what differs"
        + (", or resume it with the new configuration: run.resume=must" if not found.replaced else ""),
    )


def _why_none(folder: RunFolder) -> str:
    """Why there is no checkpoint, where the run's configuration says it."""
    try:
        return " (its trainer.keep_checkpoints is 0)" if not folder.read_config().trainer.keep_checkpoints else ""
    except ConfigError:
        return ""


def _refuse_replaced(folder: RunFolder, replaced: list[str]) -> None:
    if replaced:
        raise CheckpointError(
            f"run.resume=must, but data or model of {folder.path} have changed since its start:\n{_as_list(replaced)}\n"
            "Restore it, or start a new run with run.resume=never"
        )


def open_run(
    config: Config, *, say: Callable[[str], None] = lambda text: None, lock: FolderLock | None = None
) -> tuple[RunFolder, bool]:
    """The folder of this run and whether it resumes from a checkpoint. `say` is called with what happens. No run is
    ever deleted: an old one of the same name is renamed. With the lock of the folder, what killed processes were
    writing there is removed."""
    problem = name_problem(config.run.name)
    if problem is not None:
        raise ConfigError(f"run.name={config.run.name!r} {problem}")
    folder = RunFolder.of(config, lock)
    opening = plan_opening(config)
    if opening.story:
        say(opening.story)
    if opening.resumes:
        # Unreadable logs are an error before a model is loaded. The configuration is written only once the checkpoint
        # fits: a refused resume must not change the folder.
        folder.read_metrics()
        if lock is not None:
            folder.remove_leftovers()
        return folder, True
    if folder.path.exists():
        if lock is not None:
            folder.remove_leftovers()
        folder.path.rename(_free_name(folder.path))
    write_atomically(folder.config, to_yaml(config))
    write_atomically(folder.run_id, f"{uuid.uuid4().hex}\n")
    write_fingerprints(folder, config)
    return folder, False


def write_fingerprints(folder: RunFolder, config: Config) -> None:
    """Write the hashes of the run's data, model and code."""
    write_atomically(folder.fingerprints, json.dumps(fingerprints.run_fingerprints(config), indent=2) + "\n")


@contextmanager
def locked_run(config: Config) -> Iterator[FolderLock]:
    """Within this block no other process uses the run's folder; `RunLockedError` names the one that does."""
    with lock_folder(RunFolder.of(config).path) as lock:
        yield lock


def _differences(folder: RunFolder, config: Config) -> _Differences:
    """What differs from the run in the folder."""
    try:
        old = from_yaml(folder.config.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return _Differences(keys=[f"{folder.config} is missing"], replaced=[], code=[])
    except (ConfigError, UnicodeDecodeError) as error:
        problem = f"{folder.config} cannot be read: {str(error).splitlines()[0]}"
        return _Differences(keys=[problem], replaced=[], code=[])
    recorded, now = fingerprints.read_fingerprints(folder.path), fingerprints.run_fingerprints(config)
    same_paths = (old.model.path, old.data) == (config.model.path, config.data)
    files = map(fingerprints.without_code, (recorded, now))
    return _Differences(
        keys=config_differences(_essence(old), _essence(config)),
        replaced=fingerprints.fingerprint_differences(*files) if same_paths else [],
        code=fingerprints.code_differences(recorded, now),
    )


def _lacks_export(summary: Mapping[str, Any]) -> bool:
    """Whether a run did all its steps but could not export its model; resuming it exports it."""
    return "model" in summary and summary["model"] is None


def _essence(config: Config) -> Config:
    essence = copy.deepcopy(config)
    essence.recipe = None
    essence.run = type(config.run)()
    essence.tracking = type(config.tracking)()
    essence.algorithm.preset = None  # only a name: what it set is compared key by key
    essence.sft.from_episode = None  # a run does not read it
    essence.trainer.steps = essence.trainer.save_every = essence.trainer.keep_checkpoints = 0
    essence.trainer.sharding = type(config.trainer.sharding)()  # a run resumes on any number of ranks
    return essence


def _check_is_run(path: Path) -> None:
    """Refuse a folder that is not a run's: it would be renamed."""
    if not path.is_dir():
        raise ConfigError(f"{path} is a file; choose another run.name")
    names = {entry.name for entry in path.iterdir() if not entry.name.endswith(".partial")}
    if names and not names & RUN_MARKS and not names <= RUN_FILES:
        raise ConfigError(
            f"{path} exists and is not the folder of a run: it has no config.yaml and no metrics.jsonl. It is left "
            "alone; choose another run.name"
        )


def _told(title: str, lines: list[str]) -> list[str]:
    """A title with its lines; nothing without lines."""
    return [f"{title}:\n{_as_list(lines)}"] if lines else []


def _as_list(lines: Iterable[str]) -> str:
    entries = list(lines)
    more = [f"and {len(entries) - _MAX_LISTED} more"] if len(entries) > _MAX_LISTED else []
    return "\n".join(f"  - {line}" for line in [*entries[:_MAX_LISTED], *more])


def _free_name(path: Path) -> Path:
    number = 1
    while (aside := path.with_name(f"{path.name}.{number}")).exists():
        number += 1
    return aside


def open_trackers(
    config: Config, folder: RunFolder | None, warn: Callable[[str], None] = lambda text: None
) -> Trackers:
    """The trackers that a run's metrics are written to; `warn` is called with what a tracker could not do. Without a
    folder nothing is written: another process of the run does."""
    if folder is None:
        return Trackers(NoTracker(), [], warn)
    return Trackers(JsonlTracker(folder.metrics), open_each(config, folder.path, warn), warn)
