"""A tokenizer without `transformers` and torch: read from the files of a model folder, for checks that should be fast,
or made of a tokenizer of `transformers`, for processes that run episodes and nothing else.

It covers what most models have: `tokenizer.json`, one chat template, special tokens by name. `read_tokenizer_file`
gives None for everything else, and the caller loads the tokenizer with `transformers`. Runs always do.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

_SPECIAL = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


def read_tokenizer_file(folder: Path) -> TokenizerFile | None:
    """The tokenizer of a model folder; None when its files alone do not say how to use it."""
    from jinja2 import TemplateError
    from tokenizers import Tokenizer

    settings, template = read_json(folder / "tokenizer_config.json"), _template_text(folder)
    if settings is None or template is None or "auto_map" in settings or not (folder / "tokenizer.json").is_file():
        return None
    special = {name: _text(settings[name]) for name in _SPECIAL if settings.get(name) is not None}
    try:
        return TokenizerFile(Tokenizer.from_file(str(folder / "tokenizer.json")), template, special)
    except TemplateError:  # tags that only transformers knows
        return None


def without_transformers(tokenizer: Any) -> TokenizerFile | None:
    """A tokenizer of `transformers` as one that needs only `tokenizers`; None when it is of another kind."""
    from jinja2 import TemplateError

    if isinstance(tokenizer, TokenizerFile):
        return tokenizer
    backend, template = getattr(tokenizer, "backend_tokenizer", None), tokenizer.chat_template
    if backend is None or not isinstance(template, str):
        return None
    special = {name: str(token) for name in _SPECIAL if (token := getattr(tokenizer, name, None)) is not None}
    try:
        return TokenizerFile(backend, template, special)
    except TemplateError:  # tags that only transformers knows
        return None


class TokenizerFile:
    """What `ChatRenderer` needs of a tokenizer, from `tokenizer.json` and a chat template."""

    def __init__(self, backend: Any, chat_template: str, special_tokens: dict[str, str]) -> None:
        self.backend_tokenizer = backend
        self.chat_template = chat_template
        self.added_tokens_decoder: dict[int, Any] = self.backend_tokenizer.get_added_tokens_decoder()
        self.all_special_tokens = list(special_tokens.values())
        eos = special_tokens.get("eos_token")
        self.eos_token_id: int | None = None if eos is None else self.backend_tokenizer.token_to_id(eos)
        self._special_tokens = special_tokens
        self._compiled = _compile(chat_template)

    def __reduce__(self) -> tuple[Any, ...]:
        return TokenizerFile, (self.backend_tokenizer, self.chat_template, self._special_tokens)

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """Text to ids."""
        ids: list[int] = self.backend_tokenizer.encode(text, add_special_tokens=add_special_tokens).ids
        return ids

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool) -> str:
        """Ids to text."""
        return str(self.backend_tokenizer.decode(list(token_ids), skip_special_tokens=skip_special_tokens))

    def apply_chat_template(self, conversation: Any, **kwargs: Any) -> str:
        """Messages to text."""
        return str(self._compiled.render(messages=conversation, documents=None, **self._special_tokens, **kwargs))


def read_json(file: Path) -> dict[str, Any] | None:
    """The object in a JSON file; None when there is none."""
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return content if isinstance(content, dict) else None


def _template_text(folder: Path) -> str | None:
    """The chat template, if there is exactly one."""
    if (folder / "additional_chat_templates").exists():
        return None
    try:
        return (folder / "chat_template.jinja").read_text(encoding="utf-8")
    except OSError:
        template = (read_json(folder / "tokenizer_config.json") or {}).get("chat_template")
    return template if isinstance(template, str) else None


def _text(token: Any) -> str:
    return str(token["content"] if isinstance(token, dict) else token)


def _compile(template: str) -> Any:
    """The template in the environment that chat templates are written for: sandboxed, blocks trimmed, JSON not escaped
    for HTML."""
    from jinja2 import TemplateError
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    def raise_exception(message: str) -> None:
        raise TemplateError(message)

    def to_json(value: Any, **options: Any) -> str:
        return json.dumps(value, **{"ensure_ascii": False, **options})

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = to_json
    environment.globals.update(
        raise_exception=raise_exception, strftime_now=lambda form: datetime.now().strftime(str(form))
    )
    return environment.from_string(template)
