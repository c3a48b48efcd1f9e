"""The models a speed benchmark runs: a Hugging Face folder, or random weights of a well-known shape.

Speed does not depend on what the weights say, so shapes can be tried where no weights are.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM, LlamaConfig, Qwen2Config

from agent_r1.learner.packing import TRIE_ATTENTION
from agent_r1.models import load_policy

SHAPES: dict[str, Any] = {
    "random-smollm2-135m": lambda: LlamaConfig(
        vocab_size=49152,
        hidden_size=576,
        intermediate_size=1536,
        num_hidden_layers=30,
        num_attention_heads=9,
        num_key_value_heads=3,
        tie_word_embeddings=True,
        rope_parameters={"rope_type": "default", "rope_theta": 1e5},
        max_position_embeddings=8192,
    ),
    "random-qwen2-1.5b": lambda: Qwen2Config(
        vocab_size=151936,
        hidden_size=1536,
        intermediate_size=8960,
        num_hidden_layers=28,
        num_attention_heads=12,
        num_key_value_heads=2,
        tie_word_embeddings=True,
        max_position_embeddings=32768,
    ),
}


@dataclass(frozen=True, kw_only=True)
class SampleModel:
    """A model to be measured."""

    name: str
    """Its name in the table."""
    source: str
    """A folder, a hub id, or a name of `SHAPES`."""

    @property
    def is_random(self) -> bool:
        """Random weights, and no tokenizer."""
        return self.source in SHAPES

    def config(self) -> Any:
        """The `transformers` configuration."""
        return SHAPES[self.source]() if self.is_random else AutoConfig.from_pretrained(self.source)

    @property
    def vocabulary(self) -> int:
        """Token ids are below this."""
        return int(self.config().get_text_config().vocab_size)

    def load(self, dtype: torch.dtype, device: torch.device) -> nn.Module:
        """The policy, as a training run would load it."""
        if not self.is_random:
            return load_policy(
                self.source, dtype=str(dtype).removeprefix("torch."), device=device, attention=TRIE_ATTENTION
            )
        torch.manual_seed(0)
        with device:
            model: nn.Module = AutoModelForCausalLM.from_config(
                self.config(), dtype=dtype, attn_implementation=TRIE_ATTENTION
            )
        return model.eval()

    def peer_folder(self, scratch: Path) -> tuple[str, dict[str, Any]]:
        """Where a peer finds the model, and what vLLM must be told: a shape is a configuration without weights."""
        if not self.is_random:
            return self.source, {}
        config = self.config()
        config.architectures = [type(config).__name__.replace("Config", "ForCausalLM")]
        config.save_pretrained(scratch)
        return str(scratch), {"load_format": "dummy", "skip_tokenizer_init": True}


def parse_model(text: str) -> SampleModel:
    """`S=FOLDER`; a bare `FOLDER` is called by its last part."""
    name, equals, source = text.partition("=")
    if not equals:
        name, source = Path(text).name, text
    if source.startswith("random-") and source not in SHAPES:
        raise ValueError(f"no shape '{source}'; there are {', '.join(SHAPES)}")
    return SampleModel(name=name, source=source)


def tiny_model(folder: Path) -> SampleModel:
    """The quickstart's model and tokenizer, untrained, written to `folder`."""
    from agent_r1.models import build_tiny_model
    from recipes.quickstart.shop import demonstration, draw_basket

    rng = random.Random(0)
    build_tiny_model([demonstration(draw_basket(rng), rng) for _ in range(300)], folder)
    return SampleModel(name="tiny", source=str(folder))
