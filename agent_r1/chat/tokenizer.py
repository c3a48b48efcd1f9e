"""Loading tokenizers and renderers. `transformers` is imported only when they are called."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, cast

from agent_r1.chat.encoding import Tokenizer
from agent_r1.chat.renderer import ChatRenderer
from agent_r1.chat.tokenizer_file import read_json, read_tokenizer_file, without_transformers
from agent_r1.errors import ConfigError, raising
from agent_r1.images import is_vision_model, load_image_processor, read_model_json
from agent_r1.types import Observation


def load_tokenizer(path: str | Path, *, trust_remote_code: bool = False) -> Tokenizer:
    """The tokenizer of a model folder or hub id; `ConfigError` when it cannot be loaded."""
    from transformers import AutoTokenizer

    with raising(ConfigError, f"the tokenizer of '{path}' cannot be loaded"):
        tokenizer: Any = AutoTokenizer.from_pretrained(str(path), trust_remote_code=trust_remote_code)
    if Path(path).is_dir() or not tokenizer.chat_template:
        # Where older models that see have their template; `transformers` reads it with their processor only.
        template = (read_model_json(path, "chat_template.json") or {}).get("chat_template")
        tokenizer.chat_template = template if isinstance(template, str) else tokenizer.chat_template
    return cast(Tokenizer, tokenizer)


def load_renderer(
    path: str | Path,
    tool_format: str = "hermes",
    *,
    trust_remote_code: bool = False,
    max_image_tokens: int | None = None,
    max_image_pixels: int | None = None,
) -> ChatRenderer:
    """A renderer for the model at `path`, with its image processor if it sees. Stop ids are the tokenizer's and the
    generation config's."""
    tokenizer = load_tokenizer(path, trust_remote_code=trust_remote_code)
    processor = load_image_processor(path, tokenizer, max_tokens=max_image_tokens, max_pixels=max_image_pixels)
    return ChatRenderer(tokenizer, tool_format, stop_ids=generation_stop_ids(path), processor=processor)


def generation_sampling(path: str | Path) -> dict[str, float]:
    """What generation_config.json says about `temperature`, `top_p` and `top_k`, of a model that is to be sampled."""
    from transformers import GenerationConfig

    try:
        config = GenerationConfig.from_pretrained(str(path))
    except OSError:
        return {}
    names = ("temperature", "top_p", "top_k") if config.do_sample else ()
    return {name: value for name in names if (value := getattr(config, name, None)) is not None}


def read_renderer(folder: Path, tool_format: str = "hermes") -> ChatRenderer | None:
    """A renderer made of the files of a model folder, without importing `transformers`, for checks; None when they do
    not suffice, as for a model that sees."""
    if is_vision_model(folder):
        return None
    tokenizer = read_tokenizer_file(folder)
    if tokenizer is None:
        return None
    file = folder / "generation_config.json"
    stop_ids = _as_ids((read_json(file) or {}).get("eos_token_id"), str(file))
    return ChatRenderer(tokenizer, tool_format, stop_ids=stop_ids)


def portable_tokenizer(
    renderer: ChatRenderer, tool_format: str, observations: Iterable[Observation]
) -> Tokenizer | None:
    """The renderer's tokenizer as one that can be sent to a process without `transformers` and torch; None when it
    cannot, or when it would not write and read these observations, which have no images, in the same way."""
    tokenizer = without_transformers(renderer.tokenizer)
    if tokenizer is None:
        return None
    other = ChatRenderer(tokenizer, tool_format, stop_ids=renderer.stop_ids)
    for observation in observations:
        ids = renderer.render(observation).token_ids
        if other.render(observation).token_ids != ids or other.text_of(ids) != renderer.text_of(ids):
            return None
    return tokenizer if other.stop_ids == renderer.stop_ids else None


def read_context_length(folder: Path) -> int | None:
    """The longest sequence of a model folder's model, from its config.json; None when that does not say it."""
    settings = read_json(folder / "config.json") or {}
    text = settings.get("text_config")
    length = (text if isinstance(text, dict) else settings).get("max_position_embeddings")
    return length if isinstance(length, int) else None


def generation_stop_ids(path: str | Path) -> tuple[int, ...]:
    """`eos_token_id` of generation_config.json: chat models often have more stop tokens than their tokenizer names."""
    from transformers import GenerationConfig

    try:
        eos = GenerationConfig.from_pretrained(str(path)).eos_token_id
    except OSError as error:
        file = Path(path) / "generation_config.json"
        if file.is_file():  # turns would not end where the model ends them
            raise ConfigError(f"{file} cannot be read: {error}") from error
        return ()
    return _as_ids(eos, f"{Path(path) / 'generation_config.json'}")


def _as_ids(eos: Any, file: str) -> tuple[int, ...]:
    ids = eos if isinstance(eos, list) else [] if eos is None else [eos]
    wrong = [entry for entry in ids if isinstance(entry, bool) or not isinstance(entry, int) or entry < 0]
    if wrong:
        raise ConfigError(f"{file}: eos_token_id must be the id of a token or a list of ids, found {wrong[0]!r:.80}")
    return tuple(ids)
