"""Tiny models that read images, one for each family, with random weights: complete folders as a hub would have them.

    folder = make_tiny_vlm("smolvlm", tmp_path / "model")

A few ten thousand parameters, a byte-level tokenizer, ChatML with Hermes tools and image parts in every role, an image
processor in the form of the hub (`preprocessor_config.json`, `processor_config.json`). Nothing is downloaded.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

FAMILIES = ("smolvlm", "idefics3", "llava", "qwen2_vl", "qwen2_5_vl", "qwen3_vl")

HIDDEN, HEADS, LAYERS, CONTEXT = 64, 4, 2, 2048

_TILE_TOKENS = (
    *("<image>", "<fake_token_around_image>", "<global-img>"),
    *(f"<row_{row}_col_{column}>" for row in range(1, 7) for column in range(1, 7)),
)
_QWEN_TOKENS = ("<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>")
_IMAGE_TOKENS = {"smolvlm": _TILE_TOKENS, "idefics3": _TILE_TOKENS, "llava": ("<image>",)}
_MARKS = ("<|im_start|>", "<|im_end|>", "<|pad|>", "<end_of_utterance>")
_TOOL_MARKS = ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")

CHAT_TEMPLATE = """\
{%- macro parts(content) %}
{%- if content is string %}{{ content }}
{%- elif content %}
{%- for part in content %}
{%- if part.type == "image" %}PLACEHOLDER{% elif part.type == "text" %}{{ part.text }}{% endif %}
{%- endfor %}
{%- endif %}
{%- endmacro %}
{%- if tools %}<|im_start|>system
{% for tool in tools %}{{ tool | tojson }}
{% endfor %}<|im_end|>
{% endif %}
{%- for message in messages %}
{%- if message.role == "tool" %}<|im_start|>user
<tool_response>{{ parts(message.content) }}</tool_response><|im_end|>
{% else %}<|im_start|>{{ message.role }}
{{ parts(message.content) }}
{%- for call in message.tool_calls or [] %}<tool_call>{"name": {{ call.function.name | tojson }}, "arguments": \
{{ call.function.arguments | tojson }}}</tool_call>
{%- endfor %}<|im_end|>
{% endif %}
{%- endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""

_TEXTS = [
    "What is in the picture? A red square and two blue circles on a white ground. Zoom in, then answer.",
    '<tool_call>{"name": "zoom", "arguments": {"x": 12, "y": 34}}</tool_call> the answer is 4. user assistant system',
    "Which one is larger: the green triangle on the left or the yellow one on the right?",
] * 20


def make_tiny_vlm(
    family: str, folder: Path, *, splits: bool = True, chat_template: str | None = None, weights: bool = True
) -> Path:
    """Write a tiny random model of this family with its tokenizer and processor; the same bytes every time.

    `splits` is about SmolVLM and Idefics3: whether images are split into tiles. Without `weights` the folder is enough
    for a renderer."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = tiny_vlm_tokenizer(family, chat_template)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = _MODELS[family](tokenizer)
    model.generation_config.eos_token_id = tokenizer.eos_token_id
    if weights:
        model.save_pretrained(folder)
    else:
        model.config.save_pretrained(folder)
        model.generation_config.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    preprocessor, processor = _processor_settings(family, splits)
    (folder / "preprocessor_config.json").write_text(json.dumps(preprocessor, indent=2))
    (folder / "processor_config.json").write_text(json.dumps(processor, indent=2))
    return folder


def tiny_vlm_tokenizer(family: str, chat_template: str | None = None) -> Any:
    """Byte-level BPE; the marks of images and turns are special tokens, those of calls are not."""
    image_tokens = _IMAGE_TOKENS.get(family, _QWEN_TOKENS)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(_trained()), eos_token="<|im_end|>", pad_token="<|pad|>"
    )
    tokenizer.add_special_tokens(
        {"additional_special_tokens": [AddedToken(text, normalized=False) for text in (*_MARKS, *image_tokens)]}
    )
    tokenizer.add_tokens([AddedToken(text, normalized=False) for text in _TOOL_MARKS])
    placeholder = "<image>" if "<image>" in image_tokens else "<|vision_start|><|image_pad|><|vision_end|>"
    tokenizer.chat_template = chat_template or CHAT_TEMPLATE.replace("PLACEHOLDER", placeholder)
    return tokenizer


@cache
def _trained() -> str:
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=384,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        special_tokens=["<|im_end|>", "<|pad|>"],
        show_progress=False,
    )
    bpe.train_from_iterator(_TEXTS, trainer)
    return str(bpe.to_str())


def _processor_settings(family: str, splits: bool) -> tuple[dict[str, Any], dict[str, Any]]:
    """`preprocessor_config.json` and `processor_config.json`."""
    half = {"image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5]}
    if family in ("smolvlm", "idefics3"):
        name = {"smolvlm": "SmolVLM", "idefics3": "Idefics3"}[family]
        preprocessor = {
            "image_processor_type": f"{name}ImageProcessor",
            "processor_class": f"{name}Processor",
            "do_image_splitting": splits,
            "size": {"longest_edge": 48},
            "max_image_size": {"longest_edge": 16},
            **half,
        }
        return preprocessor, {"processor_class": f"{name}Processor", "image_seq_len": 4}
    if family == "llava":
        preprocessor = {
            "image_processor_type": "CLIPImageProcessor",
            "processor_class": "LlavaProcessor",
            "size": {"shortest_edge": 16},
            "crop_size": {"height": 16, "width": 16},
            **half,
        }
        processor = {
            "processor_class": "LlavaProcessor",
            "patch_size": 4,
            "vision_feature_select_strategy": "default",
            "num_additional_image_tokens": 1,
        }
        return preprocessor, processor
    name = {"qwen2_vl": "Qwen2VLProcessor", "qwen2_5_vl": "Qwen2_5_VLProcessor", "qwen3_vl": "Qwen3VLProcessor"}[family]
    preprocessor = {
        "image_processor_type": "Qwen2VLImageProcessor",
        "processor_class": name,
        "size": {"shortest_edge": 16 * 16, "longest_edge": 48 * 48},
        "patch_size": 4,
        "merge_size": 2,
        "temporal_patch_size": 2,
        **half,
    }
    return preprocessor, {"processor_class": name}


def _text_settings(tokenizer: Any) -> dict[str, Any]:
    return {
        "vocab_size": len(tokenizer),
        "hidden_size": HIDDEN,
        "intermediate_size": 2 * HIDDEN,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": 2,
        "max_position_embeddings": CONTEXT,
        "initializer_range": 0.2,
        "bos_token_id": None,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
        "tie_word_embeddings": False,
    }


def _tile_model(tokenizer: Any, name: str) -> Any:
    import transformers

    config_class, vision_class = (
        getattr(transformers, f"{name}Config"),
        getattr(transformers, f"{name}VisionConfig"),
    )
    vision = {
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "image_size": 16,
        "patch_size": 4,
        "initializer_range": 0.2,
    }
    config = config_class(
        vision_config=vision_class(**vision).to_dict(),
        text_config={"model_type": "llama", **_text_settings(tokenizer)},
        scale_factor=2,
        image_token_id=tokenizer.convert_tokens_to_ids("<image>"),
        pad_token_id=tokenizer.pad_token_id,
        tie_word_embeddings=False,
    )
    return getattr(transformers, f"{name}ForConditionalGeneration")(config)


def _llava_model(tokenizer: Any) -> Any:
    from transformers import LlavaConfig, LlavaForConditionalGeneration

    vision = {
        "model_type": "clip_vision_model",
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 3,
        "num_attention_heads": 2,
        "image_size": 16,
        "patch_size": 4,
        "projection_dim": 32,
        "initializer_range": 0.2,
    }
    config = LlavaConfig(
        vision_config=vision,
        text_config={"model_type": "llama", **_text_settings(tokenizer)},
        image_token_index=tokenizer.convert_tokens_to_ids("<image>"),
        image_seq_length=16,
        tie_word_embeddings=False,
    )
    return LlavaForConditionalGeneration(config)


def _qwen_model(tokenizer: Any, name: str, vision: dict[str, Any], text: dict[str, Any]) -> Any:
    import transformers

    config = getattr(transformers, f"{name}Config")(
        vision_config={"patch_size": 4, "temporal_patch_size": 2, "spatial_merge_size": 2, **vision},
        text_config={**_text_settings(tokenizer), **text},
        image_token_id=tokenizer.convert_tokens_to_ids("<|image_pad|>"),
        video_token_id=tokenizer.convert_tokens_to_ids("<|video_pad|>"),
        vision_start_token_id=tokenizer.convert_tokens_to_ids("<|vision_start|>"),
        vision_end_token_id=tokenizer.convert_tokens_to_ids("<|vision_end|>"),
        tie_word_embeddings=False,
    )
    return getattr(transformers, f"{name}ForConditionalGeneration")(config)


_ROPE = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 3, 3]}


def _qwen2(tokenizer: Any) -> Any:
    vision = {"depth": 2, "embed_dim": 32, "hidden_size": HIDDEN, "num_heads": 2, "mlp_ratio": 2}
    return _qwen_model(tokenizer, "Qwen2VL", vision, {"rope_parameters": {**_ROPE, "type": "mrope"}})


def _qwen2_5(tokenizer: Any) -> Any:
    vision = {
        "depth": 2,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_heads": 2,
        "out_hidden_size": HIDDEN,
        "window_size": 16,
        "fullatt_block_indexes": [1],
    }
    return _qwen_model(tokenizer, "Qwen2_5_VL", vision, {"rope_parameters": {**_ROPE, "type": "mrope"}})


def _qwen3(tokenizer: Any) -> Any:
    vision = {
        "depth": 2,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_heads": 2,
        "out_hidden_size": HIDDEN,
        "num_position_embeddings": 64,
        "deepstack_visual_indexes": [0],
    }
    rope = {**_ROPE, "mrope_interleaved": True}
    return _qwen_model(tokenizer, "Qwen3VL", vision, {"head_dim": HIDDEN // HEADS, "rope_parameters": rope})


_MODELS = {
    "smolvlm": lambda tokenizer: _tile_model(tokenizer, "SmolVLM"),
    "idefics3": lambda tokenizer: _tile_model(tokenizer, "Idefics3"),
    "llava": _llava_model,
    "qwen2_vl": _qwen2,
    "qwen2_5_vl": _qwen2_5,
    "qwen3_vl": _qwen3,
}
