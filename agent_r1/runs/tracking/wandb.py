"""Weights & Biases (`tracking.trackers=[wandb]`). With `WANDB_MODE=offline` nothing leaves the machine; `wandb sync`
uploads such a run later."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from agent_r1.config import Config
from agent_r1.errors import MissingExtraError
from agent_r1.runs.tracking.base import plain_config, run_tags, save_id, saved_id, tracker_factories

_MAX_TAG = 64
_FINISH_SECONDS = 50.0


@tracker_factories.register("wandb")
class WandbTracker:
    """A run of a W&B project, with its files in `<run>/wandb`. A resumed run continues under the same id."""

    def __init__(self, config: Config, folder: Path) -> None:
        try:
            import wandb
        except ImportError as error:
            raise MissingExtraError("wandb", "wandb", "the tracker 'wandb'") from error
        run_id = saved_id(folder, "wandb")
        self._exit_code = 0
        # W&B would put itself between the progress bars and the terminal.
        settings: dict[str, Any] = {"console": "off"}
        if "finish_timeout" in wandb.Settings.model_fields:
            settings["finish_timeout"] = _FINISH_SECONDS
        self._run: Any = wandb.init(
            project=config.tracking.project,
            name=config.run.name,
            dir=str(folder),
            id=run_id,
            resume=None if run_id is None else "allow",
            config=plain_config(config),
            tags=[tag[:_MAX_TAG] for tag in (*filter(None, run_tags(config).values()), *config.tracking.tags)],
            settings=wandb.Settings(**settings),
        )
        if run_id is None:
            save_id(folder, "wandb", self._run.id)

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Log one step. Metrics of the same step are merged; a resumed run does not log a step twice."""
        self._run.log(dict(metrics), step=step)

    def mark_failed(self) -> None:
        """Show the run as failed when it is closed."""
        self._exit_code = 1

    def close(self) -> None:
        """Finish the run, and wait for its upload."""
        self._run.finish(exit_code=self._exit_code)
