"""HTTP calls to one inference server. Every failure is a `ServerError` that says what the server did.

`aiohttp` is imported here and nowhere else in this package. Not `httpx`, whose pool looks at every connection for every
request: with hundreds of open requests that is most of what one costs.
"""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from agent_r1.engines.http.images import ServerPrompt
from agent_r1.errors import MissingExtraError, described
from agent_r1.types import SamplingParams, TokenIds
from agent_r1.web import (
    ACCEPTED,
    AnswerEncodingError,
    AnswerTooLargeError,
    decode_answer,
    read_answer,
    redirection,
    unpacked,
)

try:
    import aiohttp
except ImportError as error:
    raise MissingExtraError("aiohttp", "servers", "an engine behind HTTP") from error

CONNECT_SECONDS = 10.0
"""How long a connection may take."""

KEEP_ALIVE_SECONDS = 2.0
"""How long an idle connection is kept. vLLM and SGLang close theirs after 5 s; a request on one that is being closed
fails, and would count as a lost server."""

LARGE_BODY = 1 << 20
"""Bytes above which a body is sent in pieces, so that other requests are not held up."""

RESUME_SECONDS = 30.0
"""How long a server that was paused is asked to resume."""

MIN_LOGPROB, MAX_LOGPROB = -9000.0, 1e-3
"""Log-probs are at most 0; rounding may put them a little above. vLLM says -9999 for one that it does not have."""

AnswerFinish = Literal["stop", "length", "abort"]


class ServerError(Exception):
    """A call to a server failed; another attempt may succeed."""

    def __init__(self, message: str, *, is_down: bool = False) -> None:
        super().__init__(message)
        self.is_down = is_down
        """Whether the connection itself failed, so that the server may have been restarted."""


class RequestRefusedError(ServerError):
    """The server says that the request is wrong (400, 413, 422): no attempt will succeed."""


class ServerUnusableError(ServerError):
    """The server answers, but was started in a way that this engine cannot use."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    """What a server sampled for one request."""

    token_ids: TokenIds
    """The new ids."""
    logprobs: tuple[float, ...]
    """One per id."""
    finish: AnswerFinish
    """`abort`: the server stopped the request before its end; the ids are those it had."""
    labels: tuple[str, ...] | None
    """Per id: the label of the weights that sampled it; None: the server does not say."""


class Adapter(Protocol):
    """How one kind of server is talked to."""

    name: str
    """vllm or sglang."""
    renormalises: bool
    """Whether log-probs under top_p and top_k are those of the kept tokens alone, which differ from the trainer's."""
    image_families: frozenset[str]
    """The families of models (`model_type`) with which it takes images beside token ids."""

    async def context_length(self, *, seconds: float) -> int | None:
        """The most tokens that a request may have, prompt included; None when the server does not say."""
        ...

    async def check_health(self, *, seconds: float) -> None:
        """Raise `ServerError` when the server says that it is not well."""
        ...

    async def label(self, *, seconds: float) -> str | None:
        """The label of the loaded weights; None when the server does not say."""
        ...

    async def generate(
        self, prompt: ServerPrompt, sampling: SamplingParams, *, request_id: str, seconds: float
    ) -> Answer:
        """Sample one completion. Raises `RequestRefusedError` when the server made something else of the images of the
        prompt than the trainer does, `ServerUnusableError` when it takes no images."""
        ...

    async def load(self, folder: str, label: str, *, keeps_requests: bool, seconds: float) -> None:
        """Pause, load the weights in a folder, label them, drop cached prefixes, resume. Running requests continue with
        the new weights (`keeps_requests`) or are aborted with the tokens they have. `seconds` bounds each call."""
        ...


class ServerClient:
    """Calls to one server."""

    def __init__(self, url: str, http: aiohttp.ClientSession, *, key: str | None = None) -> None:
        self.url = url.rstrip("/")
        self._http = http
        self._headers = {} if key is None else {"Authorization": f"Bearer {key}"}

    async def call(
        self,
        method: str,
        path: str,
        *,
        seconds: float,
        body: Mapping[str, Any] | None = None,
        params: Mapping[str, str] | None = None,
    ) -> Any:
        """The JSON of a successful response, None when its body is empty."""
        where = f"{method} {self.url}{path}"
        content = None if body is None else json.dumps(body, separators=(",", ":")).encode()
        headers = self._headers if content is None else {**self._headers, "Content-Type": "application/json"}
        try:
            async with asyncio.timeout(seconds):
                async with self._http.request(
                    method,
                    self.url + path,
                    data=_sendable(content),
                    params=params,
                    headers=headers,
                    allow_redirects=False,
                ) as response:
                    encoding = response.headers.get("Content-Encoding")
                    answer = await read_answer(unpacked(response.content.iter_any(), encoding))
                    status, content_type = response.status, response.headers.get("Content-Type")
                    elsewhere = redirection(status, response.headers)
                    text = decode_answer(answer, content_type, strict=status == 200)
        except aiohttp.ServerTimeoutError:
            raise ServerError(f"{where}: no connection in {CONNECT_SECONDS:g} s", is_down=True) from None
        except TimeoutError:
            raise ServerError(f"{where}: no answer in {seconds:g} s") from None
        except (aiohttp.ClientError, OSError) as error:
            raise ServerError(f"{where}: {type(error).__name__}: {error}", is_down=True) from None
        except (AnswerTooLargeError, AnswerEncodingError) as error:
            raise ServerError(f"{where}: {error}") from None
        if elsewhere is not None:
            raise ServerUnusableError(f"{where}: {elsewhere}")
        return _read(where, status, text)


def _sendable(content: bytes | None) -> bytes | io.BytesIO | None:
    return io.BytesIO(content) if content is not None and len(content) > LARGE_BODY else content


def _read(where: str, status: int, text: str) -> Any:
    if status in (400, 413, 422):
        raise RequestRefusedError(f"{where}: {status} {text:.300}")
    if status in (401, 403, 404, 405):
        raise ServerUnusableError(f"{where}: {status} {text:.300}")
    if status != 200:
        raise ServerError(f"{where}: {status} {text:.300}")
    if not text.strip():
        return None
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise ServerError(f"{where}: the answer is not JSON: {text!r:.100}") from None


@contextmanager
def reading_answer(where: str) -> Iterator[None]:
    """Within the block, JSON of another form than expected is a `ServerError`: a number in place of a list, say."""
    try:
        yield
    except (AttributeError, TypeError, ValueError, LookupError, ArithmeticError) as error:
        raise ServerError(f"{where}: the answer has an unexpected form ({described(error):.200})") from error


def make_http() -> aiohttp.ClientSession:
    """One pool of connections for all servers. How many requests run at once is the servers' business."""
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEP_ALIVE_SECONDS),
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS),
        cookie_jar=aiohttp.DummyCookieJar(),
        headers={"Accept-Encoding": ACCEPTED},
        auto_decompress=False,
    )


def checked_answer(
    where: str, *, token_ids: Any, logprobs: Sequence[Any], finish: Any, spans: Any, sampling: SamplingParams
) -> Answer:
    """An answer whose parts fit together; anything else is a `ServerError`."""
    if not isinstance(token_ids, list) or not all(type(token) is int and token >= 0 for token in token_ids):
        raise ServerError(f"{where}: the answer has no token ids: {token_ids!r:.100}")
    if len(token_ids) > sampling.max_tokens:
        raise ServerError(f"{where}: {len(token_ids)} tokens came, and {sampling.max_tokens} were asked for")
    if len(logprobs) != len(token_ids):
        raise ServerError(f"{where}: {len(token_ids)} tokens came with {len(logprobs)} log-probs")
    if not all(isinstance(value, int | float) and MIN_LOGPROB < value <= MAX_LOGPROB for value in logprobs):
        raise ServerError(f"{where}: the answer has log-probs that are none: {list(logprobs)!r:.100}")
    if finish not in ("stop", "length", "abort"):
        raise ServerError(f"{where}: the answer ended with {finish!r:.40}; expected stop, length or abort")
    if not token_ids and finish != "abort":
        raise ServerError(f"{where}: the answer has no tokens and ended with {finish}")
    return Answer(
        token_ids=tuple(token_ids),
        logprobs=tuple(min(0.0, float(value)) for value in logprobs),
        finish=finish,
        labels=_labels(where, spans, len(token_ids)),
    )


def images_differ(where: str, prompt: ServerPrompt, num_tokens: Any) -> str:
    """The message for a server that made another prompt of ids and images than the trainer has."""
    return (
        f"{where}: with {len(prompt.pictures)} images the model there reads a prompt of {num_tokens} tokens, and the "
        f"trainer's has {len(prompt.expanded)}, or others of them: the server must have the same tokenizer and image "
        "processor (tokenizer.json, preprocessor_config.json, processor_config.json) and keep the given ids"
    )


def _labels(where: str, spans: Any, count: int) -> tuple[str, ...] | None:
    """The label of each token from spans: [{version: a, start: 0, end: 2}, {version: b, start: 2, end: 3}] for three
    tokens is ("a", "a", "b")."""
    if spans is None:
        return None
    labels: list[str] = []
    for span in spans if isinstance(spans, list) else [spans]:
        try:
            version, start, end = str(span["version"]), int(span["start"]), int(span["end"])
        except (TypeError, KeyError, ValueError, OverflowError):
            raise ServerError(f"{where}: weight versions that cannot be read: {spans!r:.200}") from None
        if start != len(labels) or not start <= end <= count:
            raise ServerError(f"{where}: weight versions with gaps for {count} tokens: {spans!r:.200}")
        labels += [version] * (end - start)
    if len(labels) != count:
        raise ServerError(f"{where}: weight versions for {len(labels)} of {count} tokens: {spans!r:.200}")
    return tuple(labels)
