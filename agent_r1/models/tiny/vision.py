"""A tiny model that reads images, for recipes that train offline: the architecture of SmolVLM with random weights.

An image of any size is shown to it as `IMAGE_SIZE` x `IMAGE_SIZE` pixels in nine tokens, one for each third of its
width and height: a 3 x 3 board has a token per cell.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from agent_r1.models.export import export_model
from agent_r1.models.tiny.text import CHAT_TEMPLATE, train_tokenizer

IMAGE_TOKEN, AROUND_IMAGE, WHOLE_IMAGE = "<image>", "<fake_token_around_image>", "<global-img>"
IMAGE_SPECIALS = (IMAGE_TOKEN, AROUND_IMAGE, WHOLE_IMAGE)
"""The names that SmolVLM's processor has for them."""
IMAGE_SIZE, PATCH_SIZE = 48, 16

PARTS_MACRO = """\
{%- macro parts(content) %}
{%- if content is string %}{{ content }}
{%- else %}
{%- for part in content or [] -%}
{% if part["type"] == "text" %}{{ part["text"] }}{% else %}<image>{% endif %}{% endfor %}
{%- endif %}
{%- endmacro %}
"""
"""Writes a message's content, be it a text or a list of parts."""
VISION_CHAT_TEMPLATE = PARTS_MACRO + CHAT_TEMPLATE.replace('message["content"]', 'parts(message["content"])')
"""The template of the tiny text model, with images among the content parts of any message."""


def build_tiny_vision_model(
    demonstrations: Sequence[dict[str, Any]],
    folder: Path,
    *,
    hidden_size: int = 128,
    layers: int = 2,
    image_size: int = IMAGE_SIZE,
    patch_size: int = PATCH_SIZE,
    patches_per_token: int = 1,
    context_length: int = 512,
) -> None:
    """Train a tokenizer on the demonstrations' text and write it to `folder` with a randomly initialised model and the
    settings of its image processor. An image becomes `(image_size / patch_size / patches_per_token) ** 2` tokens: a
    token stands for so many patches in each direction."""
    tokenizer = train_tokenizer(demonstrations, chat_template=VISION_CHAT_TEMPLATE, special_tokens=IMAGE_SPECIALS)
    text = {
        "model_type": "llama",
        "vocab_size": len(tokenizer),
        "hidden_size": hidden_size,
        "intermediate_size": 3 * hidden_size,
        "num_hidden_layers": layers,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "max_position_embeddings": context_length,
        "tie_word_embeddings": True,
        "initializer_range": hidden_size**-0.5,
        "bos_token_id": None,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
    }
    tower = tiny_tower(hidden_size, layers=layers, image_size=image_size, patch_size=patch_size)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = vision_model(
            text, tokenizer, vision=tower, initializer_range=hidden_size**-0.5, scale_factor=patches_per_token
        )
    num_tokens = (image_size // patch_size // patches_per_token) ** 2
    export_model(model, tokenizer, folder, files=processor_files(image_size, num_tokens))


def tiny_tower(hidden: int, *, layers: int, image_size: int, patch_size: int) -> dict[str, Any]:
    """The settings of a vision tower."""
    return {
        "hidden_size": hidden,
        "intermediate_size": 2 * hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": 4,
        "image_size": image_size,
        "patch_size": patch_size,
        "initializer_range": 0.05,
    }


def vision_model(
    text: dict[str, Any],
    tokenizer: Any,
    *,
    vision: dict[str, Any],
    initializer_range: float,
    scale_factor: int = 1,
) -> Any:
    """A SmolVLM with random weights, one token per `scale_factor ** 2` patches."""
    from transformers import SmolVLMConfig, SmolVLMForConditionalGeneration

    make_config: Any = SmolVLMConfig
    config = make_config(
        text_config=text,
        vision_config=vision,
        scale_factor=scale_factor,
        image_token_id=tokenizer.convert_tokens_to_ids(IMAGE_TOKEN),
        tie_word_embeddings=text["tie_word_embeddings"],
        initializer_range=initializer_range,
        pad_token_id=tokenizer.pad_token_id,
    )
    model = SmolVLMForConditionalGeneration(config)  # type: ignore[no-untyped-call]
    model.generation_config.eos_token_id = tokenizer.eos_token_id
    # As large as what the patches hold. With the usual 0.02 the model knows what it sees long before it knows where.
    positions = model.model.vision_model.embeddings.position_embedding.weight
    torch.nn.init.normal_(positions, std=0.7)
    return model


def processor_files(image_size: int, num_tokens: int) -> dict[str, str]:
    """The files that say how images are prepared: scaled to a square, never cut into tiles."""
    preprocessor = {
        "image_processor_type": "SmolVLMImageProcessor",
        "processor_class": "SmolVLMProcessor",
        "do_image_splitting": False,
        "size": {"longest_edge": image_size},
        "max_image_size": {"longest_edge": image_size},
        "image_mean": [0.5, 0.5, 0.5],
        "image_std": [0.5, 0.5, 0.5],
    }
    processor = {"processor_class": "SmolVLMProcessor", "image_seq_len": num_tokens}
    return {
        "preprocessor_config.json": json.dumps(preprocessor, indent=2),
        "processor_config.json": json.dumps(processor, indent=2),
    }
