"""Opening Hugging Face models."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import cast

import torch
from torch import nn

from agent_r1.errors import ConfigError


def open_model(
    path: str, *, dtype: torch.dtype | str, attention: str | None = None, trust_remote_code: bool = False
) -> nn.Module:
    """The causal language model of a Hugging Face folder or hub id, on the CPU.

    `dtype="auto"` keeps the type the weights are stored in; `attention` replaces the model's default implementation.
    """
    from transformers import AutoModelForCausalLM

    try:
        with no_progress_bars():
            model = AutoModelForCausalLM.from_pretrained(
                path, dtype=dtype, trust_remote_code=trust_remote_code, attn_implementation=attention
            )
    except (OSError, ValueError) as error:
        raise ConfigError(f"the model '{path}' cannot be loaded: {error}") from error
    return cast(nn.Module, model)


@contextmanager
def no_progress_bars() -> Iterator[None]:
    """Turn off the progress bars of `transformers`: they would break into ours."""
    from transformers.utils import logging

    active = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        if active:
            logging.enable_progress_bar()  # type: ignore[no-untyped-call]
