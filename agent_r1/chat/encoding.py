"""Text to token ids, fast: straight through the `tokenizers` library where that gives the same ids, and on request in
threads beside the event loop.

A call through `transformers` costs a few hundred microseconds of Python and of offsets that are not needed. The
tokenizer's own call stays what counts: the short way is taken only for tokenizers that encode in the library's usual
way, after it gave the same ids for a number of texts. All other tokenizers are called as before.

Threads are for engines that compute elsewhere (a GPU, a server): `tokenizers` works without the interpreter's lock, so
the event loop continues meanwhile. Texts that wait in one round of the loop are encoded together. Where the engine
computes on the event loop itself, texts are encoded there, and the order of events stays a function of the requests.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Any, Protocol

from agent_r1.chat.control_tokens import SPLIT, encode_pieces
from agent_r1.types import TokenIds

MAX_KNOWN = 2048
"""Texts whose ids are kept. The members of a group have the same first prompt, and often the same tool results."""
MAX_THREADS = 4
SHORT_TEXT = 256
"""Characters below which handing a text to a thread costs more than encoding it."""
MIN_CHUNK = 4
"""Texts that are worth a call of their own."""

_PROBES = (
    "",
    " ",
    "Plain words, and 1234567 numbers.",
    "\n\n  two  spaces\t'quotes' \"double\" don't\r\nend \n",
    "Zürich naïve 東京 🙂 \u200d \ufffd e\u0301",
    '{"name": "search", "arguments": {"query": ["a", "b"]}}',
    "</s><s>[INST] <|im_start|>user\n<|im_end|><|eot_id|><think></think> <tool_call>",
)


class Tokenizer(Protocol):
    """The part of a Hugging Face tokenizer that is used."""

    eos_token_id: Any
    chat_template: Any

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """Text to ids."""
        ...

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool) -> Any:
        """Ids to text."""
        ...

    def apply_chat_template(self, conversation: Any, **kwargs: Any) -> Any:
        """Messages to text."""
        ...


class TextEncoder:
    """Encodes texts with one tokenizer, without special tokens added, and remembers the ids."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._backend = fast_backend(tokenizer)
        self._decoder = fast_decoder(tokenizer, self._backend)
        self._known: dict[str, TokenIds] = {}
        self._threads: EncodingThreads | None = None

    def use_threads(self) -> None:
        """Let `encode_async` work in threads; without a fast tokenizer nothing changes."""
        if self._backend is not None and self._threads is None:
            num_threads = max(1, min(MAX_THREADS, (os.cpu_count() or 1) - 1))
            self._threads = EncodingThreads(self._encode_all, num_threads)

    @property
    def has_threads(self) -> bool:
        """Whether `encode_async` works in threads."""
        return self._threads is not None

    def encode(self, text: str) -> TokenIds:
        """The ids of a text. Its pieces between cuts (see `control_tokens`) are encoded separately."""
        ids = self._known.get(text)
        return self._keep(text, self._encode(text)) if ids is None else ids

    async def encode_async(self, text: str) -> TokenIds:
        """What `encode` returns, computed in threads if there are any; the event loop continues meanwhile."""
        ids = self._known.get(text)
        if ids is not None:
            return ids
        if self._threads is None or len(text) < SHORT_TEXT or SPLIT in text or not self._is_plain():
            return self._keep(text, self._encode(text))
        return self._keep(text, await self._threads.submit(text))

    def decode(self, token_ids: Sequence[int]) -> str:
        """The text of ids, special tokens included."""
        decoder = self._tokenizer if self._decoder is None else self._decoder
        return str(decoder.decode(list(token_ids), skip_special_tokens=False))

    def _keep(self, text: str, ids: TokenIds) -> TokenIds:
        if len(self._known) >= MAX_KNOWN:
            del self._known[next(iter(self._known))]
        self._known[text] = ids
        return ids

    def _encode(self, text: str) -> TokenIds:
        return tuple(encode_pieces(self._encode_piece, _without_surrogates(text)))

    def _encode_piece(self, text: str) -> list[int]:
        if self._backend is not None and self._is_plain():
            return _fast_ids(self._backend, [text])[0]
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False)
        return ids

    def _encode_all(self, texts: Sequence[str]) -> list[TokenIds]:
        ids = _fast_ids(self._backend, [_without_surrogates(text) for text in texts])
        return [tuple(some) for some in ids]

    def _is_plain(self) -> bool:
        """Whether the tokenizer cuts, pads and splits nothing: other users of it may have set that."""
        return _is_plain(self._tokenizer, self._backend)


def fast_backend(tokenizer: Any) -> Any:
    """The tokenizer of the `tokenizers` library that encodes for `tokenizer`; None when `tokenizer` does more than
    that."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if type(backend).__module__.partition(".")[0] != "tokenizers" or not hasattr(backend, "encode_batch"):
        return None
    if any(_origin(tokenizer, name) not in ("transformers", "agent_r1", "") for name in ("encode", "_encode_plus")):
        return None
    marks = "".join(str(token) for token in list(getattr(tokenizer, "added_tokens_decoder", {}).values())[:64])
    probes = [*_PROBES, marks, f"a {marks} b"]
    expected = [list(tokenizer.encode(text, add_special_tokens=False)) for text in probes]
    is_same = _is_plain(tokenizer, backend) and _fast_ids(backend, probes) == expected
    return backend if is_same else None


def fast_decoder(tokenizer: Any, backend: Any) -> Any:
    """`backend` if it also decodes for `tokenizer`, else None: some tokenizers change the decoded text."""
    if backend is None or getattr(tokenizer, "clean_up_tokenization_spaces", False):
        return None
    if any(_origin(tokenizer, name) not in ("transformers", "agent_r1", "") for name in ("decode", "_decode")):
        return None
    some = [ids for ids in _fast_ids(backend, list(_PROBES)) if ids]
    is_same = all(
        backend.decode(ids, skip_special_tokens=False) == tokenizer.decode(ids, skip_special_tokens=False)
        for ids in (*some, *([token] for ids in some for token in ids))
    )
    return backend if is_same else None


def _origin(tokenizer: Any, name: str) -> str:
    """The package whose code a method runs; "" when there is no such method."""
    method = getattr(type(tokenizer), name, None)
    return "" if method is None else str(getattr(method, "__module__", "unknown")).partition(".")[0]


def _is_plain(tokenizer: Any, backend: Any) -> bool:
    splits = bool(getattr(tokenizer, "split_special_tokens", False))
    return backend.truncation is None and backend.padding is None and backend.encode_special_tokens == splits


def _fast_ids(backend: Any, texts: list[str]) -> list[list[int]]:
    """The ids of each text, without the offsets that the tokenizer would compute beside them, where it can do so."""
    encode = getattr(backend, "encode_batch_fast", None) or backend.encode_batch
    return [encoding.ids for encoding in encode(texts, add_special_tokens=False)]


def _without_surrogates(text: str) -> str:
    """A JSON escape can be half a surrogate pair, which no tokenizer accepts."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode("utf-8")


class EncodingThreads:
    """Encodes texts in threads: those that wait in one round of the event loop together, each text once."""

    def __init__(self, encode: Callable[[Sequence[str]], list[TokenIds]], num_threads: int) -> None:
        self._encode = encode
        self._num_threads = num_threads
        self._threads = ThreadPoolExecutor(num_threads, thread_name_prefix="encode")
        self._loop: asyncio.AbstractEventLoop | None = None
        self._waiting: dict[str, list[asyncio.Future[TokenIds]]] = {}
        self._running: dict[str, list[asyncio.Future[TokenIds]]] = {}

    async def submit(self, text: str) -> TokenIds:
        """The ids of a text."""
        loop = asyncio.get_running_loop()
        if loop is not self._loop:  # what an earlier loop waited for is gone with it
            self._loop, self._waiting, self._running = loop, {}, {}
        future: asyncio.Future[TokenIds] = loop.create_future()
        if text in self._running:
            self._running[text].append(future)
        else:
            if not self._waiting:
                loop.call_soon(self._start)
            self._waiting.setdefault(text, []).append(future)
        return await future

    def _start(self) -> None:
        """Encode all waiting texts, in as many calls as there are threads."""
        texts = list(self._waiting)
        self._running |= self._waiting
        self._waiting = {}
        size = max(MIN_CHUNK, -(-len(texts) // self._num_threads))
        chunks = [texts[first : first + size] for first in range(0, len(texts), size)]
        assert self._loop is not None
        batch = _Batch(self._loop, self._running, chunks)
        for number, chunk in enumerate(chunks):
            self._threads.submit(self._encode, chunk).add_done_callback(partial(batch.note, number))


class _Batch:
    """The texts of one round. Their callers continue together, when all are encoded: what they submit to the engine
    next is then computed in one step, not in one step per thread."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        running: dict[str, list[asyncio.Future[TokenIds]]],
        chunks: Sequence[Sequence[str]],
    ) -> None:
        self._loop = loop
        self._running = running
        self._chunks = chunks
        self._calls: dict[int, Future[list[TokenIds]]] = {}
        self._lock = threading.Lock()

    def note(self, number: int, call: Future[list[TokenIds]]) -> None:
        """A call has ended; after the last one the event loop hands out the ids. Called in the threads."""
        with self._lock:
            self._calls[number] = call
            is_last = len(self._calls) == len(self._chunks)
        if is_last:
            with suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(self._hand_out)

    def _hand_out(self) -> None:
        for number, texts in enumerate(self._chunks):
            call = self._calls[number]
            error = call.exception()
            results: Sequence[TokenIds] = [()] * len(texts) if error is not None else call.result()
            for text, ids in zip(texts, results, strict=True):
                for future in self._running.pop(text):
                    if error is not None and not future.done():
                        future.set_exception(error)
                    elif not future.done():
                        future.set_result(ids)
