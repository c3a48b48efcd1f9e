"""The warm start of a tiny model, for recipes that train immediately and offline."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from agent_r1.config import Config, ModelConfig
from agent_r1.console import RunConsole
from agent_r1.data import read_rows
from agent_r1.errors import DataError
from agent_r1.types import media_in


def make_warm_start(config: Config, *, build: Callable[[Sequence[dict[str, Any]], Path], None] | None = None) -> None:
    """Make `model.path`: a tiny model, trained on `sft.data` by the settings of `sft`; one that reads images when the
    demonstrations have some. `build` makes another model of the demonstrations, in a folder.

    It depends only on those settings and the data, not on the run's seed, algorithm or optimizer: all runs of a recipe
    start from the same weights.
    """
    # A recipe imports this module for a dry run too, which needs no torch.
    from agent_r1.models import build_tiny_model, build_tiny_vision_model
    from agent_r1.training.run import sft_run
    from agent_r1.training.sft import warm_start_recipe

    warm = Path(config.model.path).parent
    untrained = warm.with_name(f"{warm.name}_untrained")
    demonstrations = _read_demonstrations(config.sft.data)
    sees = any("image" in media_in(row["messages"]) for row in demonstrations)
    (build or (build_tiny_vision_model if sees else build_tiny_model))(demonstrations, untrained)
    # A vision tower with random weights is trained too, whatever the run that follows trains.
    tiny = ModelConfig(path=str(untrained), tool_format=config.model.tool_format, train_vision="all")
    sft_run(warm_start_recipe(replace(config, model=tiny), warm), RunConsole())


def _read_demonstrations(paths: Sequence[str]) -> list[dict[str, Any]]:
    missing = [path for path in paths if not Path(path).is_file()]
    if missing or not paths:
        raise DataError(
            f"the tiny model is trained on sft.data, and there is no {', '.join(missing) or 'file in it'}. "
            "Make the recipe's data first, or set model.path to a model of your own"
        )
    rows = [row for path in paths for row in read_rows(Path(path))]
    bad = next((row for row in rows if not isinstance(row, dict) or "messages" not in row), None)
    if bad is not None:
        raise DataError(f"a demonstration in {', '.join(paths)} needs 'messages', found: {bad!r:.80}")
    return rows
