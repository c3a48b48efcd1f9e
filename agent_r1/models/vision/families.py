"""The families of vision-language models that are supported, and where their parts are.

All of them have a tower that turns pixels into features, a projector that turns features into embeddings, and a plain
decoder, which reads these embeddings where image tokens are. Attention is causal over image tokens too: models in which
they see each other (PaliGemma, Gemma 3) are not supported.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, cast

from torch import nn


@dataclass(frozen=True, kw_only=True, slots=True)
class VisionFamily:
    """Models with the same parts under the same names."""

    name: str
    """As people call it."""
    tower: str
    """The module that turns pixels into features."""
    projectors: tuple[str, ...]
    """The modules that turn features into embeddings; they may be inside the tower."""
    two_dimensional: bool = False
    """Whether image tokens have positions in two dimensions, so that images have a grid."""
    projects_last: bool = True
    """Whether embeddings are what the projector returns, as it returns them: features can be kept, and projected
    again."""
    deepstack: bool = False
    """Whether features of several layers of the tower are added to the first layers of the decoder."""

    def tower_parameters(self, model: nn.Module) -> Iterator[nn.Parameter]:
        """The parameters of the tower, without those of projectors inside it."""
        projecting = {id(parameter) for part in self.projector_parts(model) for parameter in part.parameters()}
        for parameter in model.get_submodule(self.tower).parameters():
            if id(parameter) not in projecting:
                yield parameter

    def projector_parts(self, model: nn.Module) -> list[nn.Module]:
        """The modules of the projectors."""
        return [model.get_submodule(name) for name in self.projectors]

    def owns(self, name: str) -> bool:
        """Whether a parameter or a module is part of the tower or of a projector, by its full name."""
        return any(f"{name}.".startswith(f"{part}.") for part in (self.tower, *self.projectors))

    def is_projector(self, name: str) -> bool:
        """Whether a parameter or a module is part of a projector, by its full name."""
        return any(f"{name}.".startswith(f"{part}.") for part in self.projectors)


FAMILIES: dict[str, VisionFamily] = {
    "smolvlm": VisionFamily(name="SmolVLM", tower="model.vision_model", projectors=("model.connector",)),
    "idefics3": VisionFamily(name="Idefics3", tower="model.vision_model", projectors=("model.connector",)),
    "llava": VisionFamily(name="LLaVA", tower="model.vision_tower", projectors=("model.multi_modal_projector",)),
    "qwen2_vl": VisionFamily(
        name="Qwen2-VL", tower="model.visual", projectors=("model.visual.merger",), two_dimensional=True
    ),
    "qwen2_5_vl": VisionFamily(
        # The merged features are put in another order afterwards.
        name="Qwen2.5-VL",
        tower="model.visual",
        projectors=("model.visual.merger",),
        two_dimensional=True,
        projects_last=False,
    ),
    "qwen3_vl": VisionFamily(
        name="Qwen3-VL",
        tower="model.visual",
        projectors=("model.visual.merger", "model.visual.deepstack_merger_list"),
        two_dimensional=True,
        projects_last=False,
        deepstack=True,
    ),
}
"""By `model_type` of the configuration."""


def vision_family(config: Any) -> VisionFamily | None:
    """The family of a model with this configuration; None for a model without a supported tower."""
    return FAMILIES.get(str(getattr(config, "model_type", "")))


def places_in_two_dimensions(config: Any) -> bool:
    """Whether a model, or a decoder, with this configuration places image tokens in two dimensions."""
    family = FAMILIES.get(str(getattr(config, "model_type", "")).removesuffix("_text"))
    return family is not None and family.two_dimensional


def set_attention(model: nn.Module, name: str) -> str:
    """Set the attention implementation of a model's decoder; a vision tower keeps its own. Returns what it was."""
    target: Any = model
    if vision_family(getattr(model, "config", None)) is not None:
        target = cast(Any, model).get_decoder()
    before = str(target.config._attn_implementation)
    target.set_attn_implementation(name)
    return before


def freeze_vision(policy: nn.Module, trained: str) -> None:
    """Freeze what `model.train_vision` leaves out: `none` of tower and projector is trained, the `projector`, or `all`.

    A model without a tower is left as it is.
    """
    family = vision_family(getattr(policy, "config", None))
    if family is None:
        return
    for parameter in family.tower_parameters(policy):
        parameter.requires_grad_(trained == "all")
    for part in family.projector_parts(policy):
        part.requires_grad_(trained != "none")
