"""Tiny random vision-language models of every supported family, with images that no processor made.

Exactness needs no pictures: a model's own function turns the arrays of an `EncodedImage` into embeddings, whatever they
show.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from agent_r1.images import EncodedImage, image_store, is_image_id
from agent_r1.types import TokenIds

TEXT: dict[str, Any] = {
    "vocab_size": 60,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "initializer_range": 0.3,
    "bos_token_id": None,
    "eos_token_id": 1,
    "pad_token_id": 0,
}
PLACEHOLDER = 59
SPECIAL = {"image_token_id": PLACEHOLDER, "tie_word_embeddings": False, "pad_token_id": 0}
QWEN_SPECIAL = SPECIAL | {"video_token_id": 58, "vision_start_token_id": 57, "vision_end_token_id": 56}


def make_vlm(family: str, *, seed: int = 0, tied: bool = False, width: int = 32) -> Any:
    """A model of the family with random weights, in float32 and evaluation mode; SmolVLM also with tied embeddings.
    Kernels of GPUs need a `width` of 128."""
    torch.manual_seed(seed)
    text = TEXT | {"hidden_size": width, "tie_word_embeddings": tied}
    model = _BUILDERS[family](text).eval()
    with torch.no_grad():
        for parameter in model.parameters():  # projectors begin so small that no image would matter
            if parameter.dim() > 1:
                parameter.add_(0.1 * torch.randn_like(parameter))
    return model


def _smol(kind: str, text: dict[str, Any]) -> Any:
    import transformers

    vision = {
        "hidden_size": 24,
        "intermediate_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "image_size": 16,
        "patch_size": 4,
    }
    name = {"smolvlm": "SmolVLM", "idefics3": "Idefics3"}[kind]
    config = getattr(transformers, f"{name}Config")(
        vision_config=vision,
        text_config={"model_type": "llama", **text},
        scale_factor=2,
        **SPECIAL | {"tie_word_embeddings": text["tie_word_embeddings"]},
    )
    return getattr(transformers, f"{name}ForConditionalGeneration")(config)


def _llava(text: dict[str, Any]) -> Any:
    from transformers import CLIPVisionConfig, LlamaConfig, LlavaConfig, LlavaForConditionalGeneration

    vision = CLIPVisionConfig(
        hidden_size=24, intermediate_size=32, num_hidden_layers=3, num_attention_heads=2, image_size=16, patch_size=4
    )
    return LlavaForConditionalGeneration(
        LlavaConfig(
            vision_config=vision,
            text_config=LlamaConfig(**text),
            image_token_index=PLACEHOLDER,
            image_seq_length=16,
            tie_word_embeddings=False,
        )
    )


def _qwen(kind: str, text: dict[str, Any]) -> Any:
    import transformers

    name = {"qwen2_vl": "Qwen2VL", "qwen2_5_vl": "Qwen2_5_VL", "qwen3_vl": "Qwen3VL"}[kind]
    heads = {"depth": 2, "num_heads": 2, "patch_size": 4, "spatial_merge_size": 2, "temporal_patch_size": 2}
    vision = {
        "qwen2_vl": {"embed_dim": 32, "hidden_size": text["hidden_size"], "mlp_ratio": 2, **heads},
        "qwen2_5_vl": {
            "hidden_size": 32,
            "intermediate_size": 48,
            "out_hidden_size": text["hidden_size"],
            "window_size": 16,
            "fullatt_block_indexes": [1],
            **heads,
        },
        "qwen3_vl": {
            "hidden_size": 32,
            "intermediate_size": 48,
            "out_hidden_size": text["hidden_size"],
            "num_position_embeddings": 64,
            "deepstack_visual_indexes": [0],
            **heads,
        },
    }[kind]
    head = text["hidden_size"] // text["num_attention_heads"]
    rope = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [head // 4, head // 8, head // 8]}
    text = text | {"rope_parameters": rope, "head_dim": head}
    config = getattr(transformers, f"{name}Config")(vision_config=vision, text_config=text, **QWEN_SPECIAL)
    return getattr(transformers, f"{name}ForConditionalGeneration")(config)


_BUILDERS: dict[str, Any] = {
    "smolvlm": lambda text: _smol("smolvlm", text),
    "idefics3": lambda text: _smol("idefics3", text),
    "llava": _llava,
    "qwen2_vl": lambda text: _qwen("qwen2_vl", text),
    "qwen2_5_vl": lambda text: _qwen("qwen2_5_vl", text),
    "qwen3_vl": lambda text: _qwen("qwen3_vl", text),
}
FAMILIES = list(_BUILDERS)
FEW_FIRST = [
    family if family in ("smolvlm", "qwen2_5_vl") else pytest.param(family, marks=pytest.mark.whole)
    for family in FAMILIES
]
"""One family of each kind, and the others with the longer tests."""


def make_image(family: str, seed: int, *, key: str | None = None, size: int = 2) -> EncodedImage:
    """An image of random pixels, known to the store of this process. `size` makes larger ones: more tiles, or a wider
    grid."""
    rng = np.random.default_rng(seed)
    key = f"{family}/{seed}/{size}" if key is None else key
    if family in ("smolvlm", "idefics3"):
        inputs = {"pixel_values": rng.normal(size=(1, size, 3, 16, 16)).astype(np.float32)}
        image = EncodedImage(key=key, num_tokens=4 * size, inputs=inputs)
    elif family == "llava":
        inputs = {"pixel_values": rng.normal(size=(1, 3, 16, 16)).astype(np.float32)}
        image = EncodedImage(key=key, num_tokens=16, inputs=inputs)
    else:
        rows, columns = 2, size + 1
        grid = np.array([[1, 2 * rows, 2 * columns]])
        pixels = rng.normal(size=(4 * rows * columns, 3 * 2 * 4 * 4)).astype(np.float32)
        inputs = {"pixel_values": pixels, "image_grid_thw": grid}
        image = EncodedImage(key=key, num_tokens=rows * columns, inputs=inputs, grid=(rows, columns))
    image_store().add(image)
    return image


def plain_inputs(model: Any, token_ids: Sequence[int]) -> dict[str, Any]:
    """The inputs of the plain model: placeholders, and all pixels of the sequence."""
    images = [span.image for span in image_store().spans(token_ids) if not span.first]
    # A random model also samples the placeholder, as text: here it is an id that the sequence does not have.
    placeholder = max(set(range(TEXT["vocab_size"])) - set(token_ids))
    model.config.image_token_id = placeholder
    ids = torch.tensor([[placeholder if is_image_id(token) else token for token in token_ids]])
    inputs: dict[str, Any] = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "use_cache": False}
    if images and "image_grid_thw" in images[0].inputs:
        inputs["mm_token_type_ids"] = (ids == placeholder).int()
    for name in images[0].inputs if images else ():
        arrays = [image.inputs[name] for image in images]
        # Several images of one sequence are side by side in the second dimension for models that cut them into tiles.
        inputs[name] = torch.from_numpy(np.concatenate(arrays, axis=1 if arrays[0].ndim == 5 else 0))
    return {name: entry.to(model.device) if isinstance(entry, Tensor) else entry for name, entry in inputs.items()}


def plain_logits(model: Any, token_ids: Sequence[int]) -> Tensor:
    """The logits [tokens, vocabulary] of the plain model."""
    with torch.no_grad():
        logits: Tensor = model(**plain_inputs(model, token_ids)).logits[0]
    return logits


def plain_logprobs(model: Any, token_ids: TokenIds, positions: Sequence[int]) -> Tensor:
    """The log-probs of the tokens at some positions, by the plain model."""
    logprobs = plain_logits(model, token_ids).float().log_softmax(-1)
    return torch.stack([logprobs[position - 1, token_ids[position]] for position in positions])
