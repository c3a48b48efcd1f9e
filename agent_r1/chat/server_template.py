"""`server_renderer`: stands in for a renderer where a server renders prompts and parses turns itself."""

from __future__ import annotations

from typing import Any, NoReturn, cast

from agent_r1.chat.renderer import ChatRenderer
from agent_r1.errors import EngineRequestError
from agent_r1.types import TokenIds


class _ServerTemplate:
    """Has what a flow asks of a renderer when the server renders, and refuses the rest."""

    stop_ids: TokenIds = ()
    format = None

    def encode_in_threads(self) -> None:
        """There is nothing to encode here."""

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__"):  # Python's own questions, such as __deepcopy__
            raise AttributeError(name)
        raise EngineRequestError(
            f"the chat template and the tokenizer are at the server: there is no '{name}' of a renderer here. A flow "
            "that needs token ids needs an engine that has them (engine=local, vllm or sglang)"
        )


def server_renderer() -> ChatRenderer:
    """The renderer of a run whose engine is behind a chat API."""
    template: Any = _ServerTemplate()
    return cast(ChatRenderer, template)
