"""Opening Hugging Face models."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, cast

import torch
from torch import nn

from agent_r1.errors import ConfigError, raising
from agent_r1.images import read_model_json
from agent_r1.models.vision import FAMILIES, set_attention, vision_family


def open_model(
    path: str, *, dtype: torch.dtype | str, attention: str | None = None, trust_remote_code: bool = False
) -> nn.Module:
    """The causal language model of a Hugging Face folder or hub id, or the vision-language model, on the CPU.

    `dtype="auto"` keeps the type the weights are stored in; `attention` replaces the decoder's default implementation.
    """
    with no_progress_bars(), raising(ConfigError, f"the model '{path}' cannot be loaded"):
        model_class, is_vision = model_class_of(path, trust_remote_code=trust_remote_code)
        model, loaded = model_class.from_pretrained(
            path,
            dtype=dtype,
            trust_remote_code=trust_remote_code,
            attn_implementation=None if is_vision else attention,
            output_loading_info=True,
        )
    _check_complete(path, sorted(loaded["missing_keys"]))
    if is_vision and attention is not None:
        set_attention(model, attention)
    return cast(nn.Module, model)


def _check_complete(path: str, missing: Sequence[str]) -> None:
    """Raise ConfigError for weights that the files of a model lack: random numbers would take their place."""
    if missing:
        names = ", ".join(missing[:3]) + (", ..." if len(missing) > 3 else "")
        raise ConfigError(
            f"the model '{path}' cannot be loaded: {len(missing)} of its weights are in none of its files ({names}); "
            "its config.json is another model's, or a file is missing or was made for another use of the model"
        )


def model_class_of(path: str, *, trust_remote_code: bool = False) -> tuple[Any, bool]:
    """The auto class that opens a model, and whether it is a vision-language model of a supported family.

    Raises ConfigError for a vision-language model of another family. Some of them also open as plain language models,
    without their tower, which stays possible.
    """
    from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES as LANGUAGE_MODELS

    model_type = (read_model_json(path, "config.json") or {}).get("model_type")
    if model_type in LANGUAGE_MODELS and model_type not in FAMILIES:
        return AutoModelForCausalLM, False
    config: Any = AutoConfig.from_pretrained(path, trust_remote_code=trust_remote_code)
    if vision_family(config) is not None:
        return AutoModelForImageTextToText, True
    images = cast(Any, AutoModelForImageTextToText)._model_mapping
    if type(config) in images and type(config) not in cast(Any, AutoModelForCausalLM)._model_mapping:
        names = ", ".join(family.name for family in FAMILIES.values())
        raise ConfigError(
            f"the model '{path}' is a vision-language model of the type '{config.model_type}', which is not supported; "
            f"supported are {names}"
        )
    return AutoModelForCausalLM, False


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
