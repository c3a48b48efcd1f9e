"""TensorBoard event files in the run's folder (`tracking.trackers=[tensorboard]`)."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from agent_r1.config import Config
from agent_r1.errors import MissingExtraError
from agent_r1.files import atomic_write
from agent_r1.runs.tracking.base import tracker_factories


@tracker_factories.register("tensorboard")
class TensorBoardTracker:
    """TensorBoard event files in `<run>/tensorboard`."""

    def __init__(self, config: Config, run_folder: Path) -> None:
        folder = run_folder / "tensorboard"
        try:
            from tensorboard.compat.proto import event_pb2, summary_pb2
            from tensorboard.summary.writer.event_file_writer import EventFileWriter
        except ImportError as error:
            raise MissingExtraError("tensorboard", "tensorboard", "the tracker 'tensorboard'") from error
        self._event: Any = event_pb2.Event
        self._summary: Any = summary_pb2.Summary
        self._folder = folder
        with atomic_write(folder):
            folder.mkdir(parents=True, exist_ok=True)
            self._writer: Any = EventFileWriter(str(folder))

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Write one scalar per metric."""
        values = [self._summary.Value(tag=name, simple_value=value) for name, value in metrics.items()]
        event = self._event(wall_time=time.time(), step=step, summary=self._summary(value=values))
        with atomic_write(self._folder):
            self._writer.add_event(event)
            self._writer.flush()

    def close(self) -> None:
        """Flush and close; `log` has already raised for what could not be written."""
        with suppress(OSError):
            self._writer.close()
