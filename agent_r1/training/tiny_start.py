"""Tiny models, made on the spot for a recipe's demonstrations: for recipes that train immediately and offline, and to
try any recipe on a laptop (`model=tiny`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from agent_r1.config import Config, ModelConfig
from agent_r1.console import RunConsole
from agent_r1.data import read_rows
from agent_r1.errors import ConfigError, DataError
from agent_r1.runs import TINY_SUFFIX
from agent_r1.types import media_in

LEAST_CONTEXT = 512
"""Tokens that a tiny model can read, or more where `rollout.context_length` is larger."""


def make_warm_start(config: Config, *, build: Callable[[Sequence[dict[str, Any]], Path], None] | None = None) -> None:
    """Make `model.path`: a tiny model, trained on `sft.data` by the settings of `sft`; one that reads images when the
    demonstrations have some. `build` makes another model of the demonstrations, in a folder.

    It depends only on those settings and the data, not on the run's seed, algorithm or optimizer: all runs of a recipe
    start from the same weights.
    """
    # A recipe imports this module for a dry run too, which needs no torch.
    from agent_r1.training.run import sft_run
    from agent_r1.training.sft import warm_start_recipe

    warm = Path(config.model.path).parent
    untrained = warm.with_name(f"{warm.name}{TINY_SUFFIX}")
    _build(config, untrained, build)
    # A vision tower with random weights is trained too, whatever the run that follows trains.
    tiny = ModelConfig(path=str(untrained), tool_format=config.model.tool_format, train_vision="all")
    sft_run(warm_start_recipe(replace(config, model=tiny), warm), RunConsole())


def make_untrained(config: Config) -> None:
    """Make `model.path`: a tiny model with random weights, for the demonstrations in `sft.data`. The recipe's own warm
    start, in `sft.folder`, trains it."""
    if config.sft.folder is None:
        raise ConfigError(
            "model=tiny has random weights and needs a warm start: the recipe sets no sft.folder. Set sft.folder and "
            "sft.data, or choose a trained model with model.path"
        )
    _build(config, Path(config.model.path), None)


def _build(config: Config, folder: Path, build: Callable[[Sequence[dict[str, Any]], Path], None] | None) -> None:
    """A model with room for a whole episode, or what `build` makes."""
    from agent_r1.models import build_tiny_model, build_tiny_vision_model

    demonstrations = _read_demonstrations(config.sft.data)
    if build is not None:
        build(demonstrations, folder)
        return
    sees = any("image" in media_in(row["messages"]) for row in demonstrations)
    make = build_tiny_vision_model if sees else build_tiny_model
    make(demonstrations, folder, context_length=max(LEAST_CONTEXT, config.rollout.context_length or 0))


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
