"""A small vision tower in front of a language model that has none: SmolLM2, for one.

The language model keeps its weights; the tower and the projector begin at random, so a warm start with captions comes
first. The result is a SmolVLM.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from agent_r1.errors import ConfigError
from agent_r1.models.export import export_model
from agent_r1.models.pretrained import open_model
from agent_r1.models.tiny.vision import IMAGE_SPECIALS, PARTS_MACRO, processor_files, tiny_tower, vision_model

CHAT_TEMPLATE = (
    PARTS_MACRO
    + """\
{%- if tools %}<|im_start|>system
You may call these tools:
{% for tool in tools %}{{ tool | tojson }}
{% endfor %}To call one, write <tool_call>{"name": ..., "arguments": ...}</tool_call>.<|im_end|>
{% endif %}
{%- for message in messages %}
{%- if message["role"] == "tool" %}<|im_start|>user
<tool_response>{{ parts(message["content"]) }}</tool_response><|im_end|>
{% else %}<|im_start|>{{ message["role"] }}
{{ parts(message["content"]) }}
{%- for call in message["tool_calls"] or [] %}<tool_call>{"name": {{ call.function.name | tojson }}, "arguments": \
{{ call.function.arguments | tojson }}}</tool_call>
{%- endfor %}<|im_end|>
{% endif %}
{%- endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
)
"""ChatML with tools and images, in the place of the language model's own template."""


def add_vision_tower(
    language_model: Path,
    folder: Path,
    *,
    hidden_size: int = 256,
    layers: int = 4,
    image_size: int = 96,
    patch_size: int = 16,
    seed: int = 0,
) -> None:
    """Write the model in `language_model` with a vision tower in front of it to `folder`.

    The language model must be a Llama whose tokenizer has the tokens of ChatML. An image becomes
    `(image_size / patch_size) ** 2` tokens.
    """
    from transformers import AutoTokenizer

    if image_size % patch_size or hidden_size % 4:
        raise ConfigError(
            f"image_size must be a multiple of patch_size and hidden_size of 4; found {image_size}, {patch_size} and "
            f"{hidden_size}"
        )
    language: Any = open_model(str(language_model), dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(language_model)
    missing = [token for token in ("<|im_start|>", "<|im_end|>") if len(_ids(tokenizer, token)) != 1]
    if language.config.model_type != "llama" or missing:
        raise ConfigError(
            f"'{language_model}' cannot get a vision tower: it needs a Llama whose tokenizer has <|im_start|> and "
            f"<|im_end|>, such as SmolLM2; found model_type '{language.config.model_type}'"
            + (f" without {' and '.join(missing)}" if missing else "")
        )
    tokenizer.add_special_tokens({"additional_special_tokens": list(IMAGE_SPECIALS)})
    tokenizer.chat_template = CHAT_TEMPLATE
    tokenizer.eos_token = "<|im_end|>"  # what closes a turn of this template
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        if len(tokenizer) > language.config.vocab_size:
            language.resize_token_embeddings(len(tokenizer))
        text = {
            **language.config.to_dict(),
            "eos_token_id": tokenizer.eos_token_id,
            "pad_token_id": tokenizer.pad_token_id,
        }
        tower = tiny_tower(hidden_size, layers=layers, image_size=image_size, patch_size=patch_size)
        model = vision_model(text, tokenizer, vision=tower, initializer_range=0.02)
    model.model.text_model.load_state_dict(language.model.state_dict())
    if not language.config.tie_word_embeddings:
        model.lm_head.load_state_dict(language.lm_head.state_dict())
    # Image tokens begin about as large as the tokens of words.
    scale = language.get_input_embeddings().weight.detach().norm(dim=-1).mean()
    torch.nn.init.normal_(model.model.connector.modality_projection.proj.weight, std=float(scale) / hidden_size)
    num_tokens = (image_size // patch_size) ** 2
    export_model(model, tokenizer, folder, files=processor_files(image_size, num_tokens))


def _ids(tokenizer: Any, token: str) -> list[int]:
    return list(tokenizer.encode(token, add_special_tokens=False))
