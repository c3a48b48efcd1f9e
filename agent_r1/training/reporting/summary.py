"""The summary of a finished training run."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Summary:
    """The result of a finished run; written as `summary.json`."""

    success_before: float | None
    """Held-out tasks solved greedily before training; None without held-out rows."""
    success_after: float | None
    """The success after training."""
    train_seconds: float
    """Wall time of the training steps, evaluation not included, over all resumes."""
    steps: int
    """Training steps."""
    tool_calls_per_episode: float
    """In the evaluation after training, else in the last batch."""
    model: str | None
    """The exported Hugging Face folder; None when it could not be exported."""
    export_rounding: float | None
    """What rounding for the export changed, as a share of what training changed; None when nothing was rounded."""
    base_model: str
    """The model it started from; a warm start counts as the model it was made of."""
    algorithm: str
    """The preset, with what was changed in it."""
    seed: int
    """The run's seed."""
    peak_gpu_gb: float | None
    """The most GPU memory that the process held; None on a CPU."""
    metrics: dict[str, float]
    """The evaluation after training, else the last step's metrics."""
    metrics_before: dict[str, float]
    """The evaluation before training; empty when there was none."""
    warnings: list[str]
    """Everything the run warned about."""
