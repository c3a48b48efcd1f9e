"""The section `model` of the configuration."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Optional

from pydantic import Field

from agent_r1.constraints import CountOrZero, PathText, Positive, one_of


@dataclass
class LoraConfig:
    """LoRA: train low-rank adapters instead of the weights (extra `lora`)."""

    rank: CountOrZero = 0
    """Rank of the adapters; 0 trains all weights without adapters."""
    alpha: Positive = 32.0
    """Adapters are scaled by alpha / rank."""
    targets: list[str] = field(default_factory=lambda: ["all-linear"])
    """Layers with an adapter, by the end of their names (`q_proj`); all-linear: every linear layer of the decoder, not
    the head."""


@dataclass
class ModelConfig:
    """The policy."""

    path: PathText = "???"
    """A Hugging Face folder or id, or a GGUF file. `model=smollm2` is a preset."""
    prepare: Optional[str] = None
    """`module:function` that makes the recipe's own `path` when it is missing; called with the configuration."""
    tool_format: str = "hermes"
    """How the model writes tool calls: hermes, qwen3_coder, llama3, mistral, harmony, retool, react or your own."""
    dtype: Annotated[str, one_of("float32", "bfloat16")] = "float32"
    """Type of frozen weights (a LoRA base), of matrix products on a CPU, and of the exported model unless `model.path`
    holds float32. Trained weights are always float32."""
    trust_remote_code: bool = False
    """Run code that comes with the model. Only for models whose code you have read."""
    lora: LoraConfig = field(default_factory=LoraConfig)
    """Adapters."""
    train_vision: Annotated[str, one_of("none", "projector", "all")] = "projector"
    """What is trained in front of the language model of a vision-language model: none of it, the projector, or all
    (the tower too). With LoRA: which of these parts get adapters beside the language model's."""
    max_image_tokens: Optional[Annotated[int, Field(ge=1, le=8192)]] = None
    """Maximum tokens of one image, which the model's processor decides; an image with more is refused. null: 8192."""
    max_image_pixels: Optional[Annotated[int, Field(ge=1, le=4096 * 4096)]] = None
    """Maximum pixels of one image; an image with more is refused. null: 4096 x 4096."""
