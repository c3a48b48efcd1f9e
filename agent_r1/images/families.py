"""How the families of models write an image in a prompt: the text that its placeholder becomes, and the grid of its
tokens.

The image processor of `transformers` resizes, splits and normalises; what it returns decides the number of tokens. The
text is what the family's processor in `transformers` writes, which needs packages for video and is not used here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from agent_r1.errors import ConfigError


@dataclass(frozen=True, kw_only=True, slots=True)
class ImageLayout:
    """One image in a prompt."""

    text: str
    """What its placeholder becomes: text with one image token for each of its tokens."""
    num_tokens: int
    grid: tuple[int, int] | None = None
    """Rows and columns of its tokens, for models with positions in two dimensions."""


@dataclass(frozen=True, kw_only=True, slots=True)
class FamilySettings:
    """What a model folder says about images."""

    image_token: str
    config: Mapping[str, Any]
    """`config.json`."""
    processor: Mapping[str, Any]
    """`processor_config.json`, or nothing."""
    tokens: Callable[[str, str], str]
    """A special token of the tokenizer by its name, or the usual one."""


Layout = Callable[[Mapping[str, Any], FamilySettings, Any], ImageLayout]
"""From what the image processor returned for one image, the settings and the image processor."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Family:
    """A family of models that read images."""

    layout: Layout
    processors: Mapping[str, str]
    """Image processors by name, with the package of `transformers` that has them; the first one is the usual one."""
    inputs: tuple[str, ...]
    """The arguments of `get_image_features`, as the image processor names them."""
    image_token: str = "<image>"
    """The usual text of an image token."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Further arguments of the image processor."""


def _tiles(output: Mapping[str, Any], settings: FamilySettings, image_processor: Any) -> ImageLayout:
    """SmolVLM and Idefics3: tiles with their row and column, and the whole image after them."""
    import numpy as np

    rows, columns = int(np.ravel(output["rows"])[0]), int(np.ravel(output["cols"])[0])
    per_tile = _tokens_per_tile(settings)
    tokens = settings.image_token * per_tile
    around = settings.tokens("fake_image_token", "<fake_token_around_image>")
    whole = around + settings.tokens("global_image_token", "<global-img>") + tokens + around
    if not rows or not columns:
        return ImageLayout(text=whole, num_tokens=per_tile)
    lines = [
        "".join(f"{around}<row_{row}_col_{column}>{tokens}" for column in range(1, columns + 1)) + "\n"
        for row in range(1, rows + 1)
    ]
    return ImageLayout(text="".join(lines) + "\n" + whole, num_tokens=per_tile * (rows * columns + 1))


def _tokens_per_tile(settings: FamilySettings) -> int:
    length = settings.processor.get("image_seq_len")
    if length is not None:
        return int(length)
    vision = settings.config.get("vision_config") or {}
    size, patch = int(vision.get("image_size", 364)), int(vision.get("patch_size", 14))
    return int((size // patch) ** 2 / int(settings.config.get("scale_factor", 2)) ** 2)


def _patches(output: Mapping[str, Any], settings: FamilySettings, image_processor: Any) -> ImageLayout:
    """LLaVA: one token for each patch, with or without that of the class."""
    vision = settings.config.get("vision_config") or {}
    kind = vision.get("model_type", "clip_vision_model")
    if kind not in ("clip_vision_model", "siglip_vision_model"):
        raise ConfigError(f"a LLaVA model with the vision tower '{kind}' is not supported (clip and siglip are)")
    has_class = kind == "clip_vision_model"
    patch = int(settings.processor.get("patch_size") or vision["patch_size"])
    extra = settings.processor.get("num_additional_image_tokens")
    selects = settings.processor.get("vision_feature_select_strategy")
    selects = selects or settings.config.get("vision_feature_select_strategy", "default")
    height, width = output["pixel_values"].shape[-2:]
    num_tokens = (height // patch) * (width // patch) + int(has_class if extra is None else extra)
    num_tokens -= selects == "default"
    return ImageLayout(text=settings.image_token * num_tokens, num_tokens=num_tokens)


def _merged_patches(output: Mapping[str, Any], settings: FamilySettings, image_processor: Any) -> ImageLayout:
    """Qwen-VL: one token for each square of `merge_size` patches."""
    import numpy as np

    _, rows, columns = (int(size) for size in np.asarray(output["image_grid_thw"])[0])
    merge = int(image_processor.merge_size)
    grid = rows // merge, columns // merge
    return ImageLayout(text=settings.image_token * (grid[0] * grid[1]), num_tokens=grid[0] * grid[1], grid=grid)


def _tile_family(name: str, package: str) -> Family:
    return Family(
        layout=_tiles,
        processors={name: package},
        inputs=("pixel_values", "pixel_attention_mask"),
        options={"return_row_col_info": True},
    )


_QWEN = Family(
    layout=_merged_patches,
    processors={"Qwen2VLImageProcessor": "qwen2_vl"},
    inputs=("pixel_values", "image_grid_thw"),
    image_token="<|image_pad|>",
)

FAMILIES: dict[str, Family] = {
    "smolvlm": _tile_family("SmolVLMImageProcessor", "smolvlm"),
    "idefics3": _tile_family("Idefics3ImageProcessor", "idefics3"),
    "llava": Family(
        layout=_patches,
        processors={"CLIPImageProcessor": "clip", "SiglipImageProcessor": "siglip", "LlavaImageProcessor": "llava"},
        inputs=("pixel_values",),
    ),
    "qwen2_vl": _QWEN,
    "qwen2_5_vl": _QWEN,
    "qwen3_vl": _QWEN,
}
"""By `model_type` in `config.json`."""
