"""Opening Hugging Face models."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path, PurePath
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
    _check_index(path)
    _check_whole(Path(path))
    with no_progress_bars(), raising(ConfigError, f"the model '{path}' cannot be loaded"):
        model_class, is_vision = model_class_of(path, trust_remote_code=trust_remote_code)
        try:
            model, loaded = model_class.from_pretrained(
                path,
                dtype=dtype,
                trust_remote_code=trust_remote_code,
                attn_implementation=None if is_vision else attention,
                output_loading_info=True,
            )
        except Exception as error:
            found = _damage(Path(path), model_class, trust_remote_code=trust_remote_code)
            if found is None:
                raise
            raise ConfigError(f"the model '{path}' cannot be loaded: {found}") from error
    _check_sizes(path, model.config.get_text_config())
    _check_complete(path, sorted(loaded["missing_keys"]))
    _check_layers(path, model, sorted(loaded["unexpected_keys"]))
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


def _check_layers(path: str, model: nn.Module, unused: Sequence[str]) -> None:
    """Raise ConfigError for layers in the files of a model that its configuration does not have: the model would be cut
    without a word. Other weights that it does not use, such as those of a head, do no harm."""
    present = {layer for name in model.state_dict() for layer in _layers_of(name)}
    forms = {_layer_form(layer) for layer in present}
    last = _layers_that_predict_further(cast(Any, model).config.get_text_config())
    layers = [
        name
        for name in unused
        if any(
            layer not in present and _layer_form(layer) in forms and int(layer.rpartition(".")[2]) not in last
            for layer in _layers_of(name)
        )
    ]
    if layers:
        raise ConfigError(
            f"the model '{path}' cannot be loaded: its files have {len(layers)} weights of layers that its config.json "
            f"does not have ({layers[0]}, ...); num_hidden_layers there must be that of the files"
        )


def _layers_of(name: str) -> list[str]:
    """The layers, and experts in them, that a weight belongs to.

    >>> _layers_of("model.layers.3.mlp.experts.7.up_proj.weight")
    ['model.layers.3', 'model.layers.3.mlp.experts.7']
    """
    return [name[: number.end()] for number in re.finditer(r"\.\d+(?=\.)", name)]


def _layer_form(layer: str) -> str:
    """The name of a layer without numbers."""
    return re.sub(r"\d+", "#", layer)


def _layers_that_predict_further(config: Any) -> range:
    """The numbers of layers that predict the token after the next. Their weights stand after those of the model, which
    does without them."""
    first = getattr(config, "num_hidden_layers", None) or 0
    return range(first, first + (getattr(config, "num_nextn_predict_layers", None) or 0))


def _check_sizes(path: str, config: Any) -> None:
    """Raise ConfigError for sizes of a model that no model has."""
    for key in ("num_hidden_layers", "max_position_embeddings"):
        size = getattr(config, key, None)
        if isinstance(size, int) and size < 1:
            raise ConfigError(f"the model '{path}' cannot be loaded: its config.json says {key}={size}")


def _check_whole(folder: Path) -> None:
    """Raise ConfigError for the folder of an adapter alone."""
    adapter = folder / "adapter_config.json"
    if adapter.is_file() and not (folder / "config.json").exists():
        base = (read_model_json(str(folder), adapter.name) or {}).get("base_model_name_or_path")
        raise ConfigError(
            f"the model '{folder}' cannot be loaded: it is an adapter for {base or 'another model'}, without its "
            "weights. Take the folder with the merged weights, which `agent-r1 export RUN` writes"
        )


def _check_index(path: str) -> None:
    """Raise ConfigError for an index of weights that names files outside of the model's folder."""
    index = read_model_json(path, "model.safetensors.index.json") if Path(path).is_dir() else None
    files = (index or {}).get("weight_map")
    for file in set(map(str, files.values())) if isinstance(files, dict) else ():
        if PurePath(file).is_absolute() or ".." in PurePath(file).parts:
            raise ConfigError(
                f"the model '{path}' cannot be loaded: model.safetensors.index.json names the file {file}, which is "
                "not in the model's folder"
            )


def _damage(folder: Path, model_class: Any, *, trust_remote_code: bool) -> str | None:
    """What is wrong with the weight files of a model that could not be loaded; None when nothing can be found."""
    from safetensors import SafetensorError, safe_open
    from transformers import AutoConfig

    shapes: dict[str, list[int]] = {}
    for file in sorted(folder.glob("*.safetensors")):
        try:
            with safe_open(file, framework="pt") as weights:
                shapes |= {name: list(weights.get_slice(name).get_shape()) for name in weights.keys()}  # noqa: SIM118
        except SafetensorError as error:
            with file.open("rb") as content:
                is_pointer = content.read(40).startswith(b"version https://git-lfs")
            if is_pointer:
                return f"{file.name} is only a pointer of Git LFS; fetch the weights with: git lfs pull"
            size = file.stat().st_size
            return f"{file.name} ({size:,} bytes) is cut short or damaged: {error}; download it again"
        except OSError as error:
            return f"{file.name} cannot be read: {error}"
    if not shapes:
        return None
    try:
        config = AutoConfig.from_pretrained(str(folder), trust_remote_code=trust_remote_code)
        if getattr(config, "quantization_config", None) is not None:  # packed weights have shapes of their own
            return None
        with torch.device("meta"):
            model = model_class.from_config(config, trust_remote_code=trust_remote_code)
    except Exception:  # noqa: BLE001 - the caller has the error of the configuration already
        return None
    expected = {name: list(weight.shape) for name, weight in model.state_dict().items()}
    wrong = [name for name, shape in shapes.items() if expected.get(name, shape) != shape]
    if not wrong:
        return None
    return (
        f"{len(wrong)} of its weights are of another shape than its config.json says: {wrong[0]} is {shapes[wrong[0]]} "
        f"in the files and {expected[wrong[0]]} by config.json"
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
