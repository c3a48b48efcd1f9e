"""Loading tokenizers. The only module outside the torch packages that imports `transformers`, and only when called."""

from __future__ import annotations

from pathlib import Path
from typing import cast

from agent_r1.chat.renderer import ChatRenderer, Tokenizer


def load_tokenizer(path: str | Path, *, trust_remote_code: bool = False) -> Tokenizer:
    """The tokenizer of a model folder or hub id."""
    from transformers import AutoTokenizer

    return cast(Tokenizer, AutoTokenizer.from_pretrained(str(path), trust_remote_code=trust_remote_code))


def load_renderer(path: str | Path, tool_format: str = "hermes", *, trust_remote_code: bool = False) -> ChatRenderer:
    """A renderer for the model at `path`. Stop ids are the tokenizer's and the generation config's."""
    tokenizer = load_tokenizer(path, trust_remote_code=trust_remote_code)
    return ChatRenderer(tokenizer, tool_format, stop_ids=generation_stop_ids(path))


def generation_sampling(path: str | Path) -> dict[str, float]:
    """What generation_config.json says about `temperature`, `top_p` and `top_k`, of a model that is to be sampled."""
    from transformers import GenerationConfig

    try:
        config = GenerationConfig.from_pretrained(str(path))
    except OSError:
        return {}
    names = ("temperature", "top_p", "top_k") if config.do_sample else ()
    return {name: value for name in names if (value := getattr(config, name, None)) is not None}


def generation_stop_ids(path: str | Path) -> tuple[int, ...]:
    """`eos_token_id` of generation_config.json: chat models often have more stop tokens than their tokenizer names."""
    from transformers import GenerationConfig

    try:
        eos = GenerationConfig.from_pretrained(str(path)).eos_token_id
    except OSError:
        return ()
    return tuple(eos) if isinstance(eos, list) else () if eos is None else (int(eos),)
