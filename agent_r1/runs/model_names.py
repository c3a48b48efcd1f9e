"""What reports and trackers call a model, by its path."""

from __future__ import annotations

from pathlib import Path

MODEL_FOLDER = "hf"
"""Of the trained model in a run's folder."""
TINY_SUFFIX = "_untrained"
"""Of the folder of a tiny model with random weights, beside the warm start that trains it (`model=tiny` too)."""


def model_name(path: str) -> str:
    """The name of a model: of one that a run exported the run's, and `tiny` of one that was made for a warm start.

    >>> model_name("models/Qwen3-0.6B"), model_name("runs/warm/hf"), model_name("runs/warm_untrained")
    ('Qwen3-0.6B', 'warm', 'tiny')
    """
    folder = Path(path)
    name = folder.parent.name if folder.name == MODEL_FOLDER else folder.name
    return "tiny" if name.endswith(TINY_SUFFIX) else name
