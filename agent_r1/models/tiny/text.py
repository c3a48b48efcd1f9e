"""A tiny model for recipes that train offline: a tokenizer trained on the recipe's demonstrations, a Llama of about a
million parameters with random weights, and a chat template with tools. A warm start follows in training.

    model:
      path: ${run.folder}/shop_warm_start/hf
      prepare: agent_r1.training.tiny_start:make_warm_start
    sft:
      data: ["${run.folder}/shop_data/demonstrations.jsonl"]
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from agent_r1.models.export import export_model

END_OF_TURN, PADDING = "<|end|>", "<|pad|>"
ROLES = ("<|system|>", "<|user|>", "<|assistant|>")
MARKUP = (*ROLES, "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")

# Short on purpose: a tool is shown as `name(parameters): description`, and every role is one token. Subscripts, since
# Jinja looks for `message.role` among the attributes first, which takes a third longer.
CHAT_TEMPLATE = """\
{%- if tools %}<|system|>
{%- for tool in tools %}{% set function = tool["function"] %}\
{{ function["name"] }}({{ function["parameters"]["properties"] | join(", ") }}): {{ function["description"] }}
{% endfor %}<|end|>
{%- endif %}
{%- for message in messages %}
{%- if message["role"] == "tool" %}
{%- if loop.first or messages[loop.index0 - 1]["role"] != "tool" %}<|user|>{% endif -%}
<tool_response>{{ message["content"] }}</tool_response>
{%- if loop.last or messages[loop.index0 + 1]["role"] != "tool" %}<|end|>{% endif %}
{%- else %}<|{{ message["role"] }}|>{{ message["content"] }}
{%- for call in message["tool_calls"] or [] %}{% set function = call["function"] %}\
<tool_call>{"name": {{ function["name"] | tojson }}, "arguments": {{ function["arguments"] | tojson }}}</tool_call>
{%- endfor %}<|end|>
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}<|assistant|>{% endif %}"""


def build_tiny_model(demonstrations: Sequence[dict[str, Any]], folder: Path, *, context_length: int = 512) -> None:
    """Train a tokenizer on the demonstrations' text and write it with a randomly initialised model to `folder`."""
    tokenizer = train_tokenizer(demonstrations)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=128,
        intermediate_size=384,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=context_length,
        tie_word_embeddings=True,
        # 1 / sqrt(hidden size): with the usual 0.02 attention starts out nearly uniform in a model this narrow, and
        # learning to copy takes many times longer.
        initializer_range=0.088,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    export_model(LlamaForCausalLM(config), tokenizer, folder)  # type: ignore[no-untyped-call]


def train_tokenizer(
    demonstrations: Sequence[dict[str, Any]], *, chat_template: str = CHAT_TEMPLATE, special_tokens: Sequence[str] = ()
) -> Any:
    """A byte-level BPE: any text can be encoded, each digit is a token, frequent words and pieces of JSON are one
    token. `special_tokens` are control tokens besides those of a turn's end and of padding."""
    specials = (END_OF_TURN, PADDING, *special_tokens)
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(r"\d| ?[^\s\d]+|\s"), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    bpe.decoder = decoders.ByteLevel()
    # Tags are single tokens but not special: parsers must see them in the decoded text.
    bpe.add_tokens([AddedToken(text, normalized=False) for text in MARKUP])
    bpe.add_special_tokens([AddedToken(text, normalized=False) for text in specials])
    tokenizer = _wrap_tokenizer(bpe, chat_template)
    texts = [
        tokenizer.apply_chat_template(row["messages"], tools=row.get("tools"), tokenize=False)
        for row in demonstrations[:1000]
    ]
    trainer = trainers.BpeTrainer(
        vocab_size=1024,
        min_frequency=20,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=[*MARKUP, *specials],
        show_progress=False,
    )
    bpe.train_from_iterator(texts, trainer)
    return _wrap_tokenizer(bpe, chat_template)


def _wrap_tokenizer(bpe: Tokenizer, chat_template: str) -> PreTrainedTokenizerFast:
    tokenizer = PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=bpe, eos_token=END_OF_TURN, pad_token=PADDING
    )
    tokenizer.chat_template = chat_template
    return tokenizer
