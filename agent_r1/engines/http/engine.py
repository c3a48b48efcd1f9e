"""`ServersEngine`: samples from inference servers in processes of their own.

A request goes to one of them, is retried on another when that fails, and continues from the tokens it has. Each update
writes the weights to a folder, which every server loads while it keeps its requests. Which weights sampled a token is
what the server reports, and a label that this engine has not given is a failed attempt: nothing sampled by unknown
weights is returned.
"""

from __future__ import annotations

import asyncio
import math
import shutil
import tempfile
import uuid
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from agent_r1.engines.http.client import Answer, RequestRefusedError, ServerClient, ServerError, make_http
from agent_r1.engines.http.images import ServerPrompt
from agent_r1.engines.http.pool import ServerPool
from agent_r1.engines.http.probe import Probe
from agent_r1.engines.http.processes import StartedServers
from agent_r1.engines.http.server import Published, Server, ServerSettings
from agent_r1.errors import EngineError, EngineRequestError
from agent_r1.seeds import mix_seed
from agent_r1.types import Completion, SamplingParams, TokenIds

WriteWeights = Callable[[Iterable[tuple[str, Any]] | None, Path, Probe | None], Probe]
"""Writes weights (None: the policy's own) to a folder and returns the trainer's answer to the probe; called in a
thread. The probe of the weights before says how much changed."""

MIN_TEMPERATURE = 0.01
"""vLLM samples at this temperature when a lower one is asked for, and gives the log-probs of this one."""

RENORMALISED = (
    "vLLM gives log-probs renormalised over the tokens that top_p and top_k keep, which the trainer's are not: use "
    "top_p=1 and top_k=0, or an SGLang server"
)


@dataclass(frozen=True, kw_only=True, slots=True)
class EngineSettings:
    """What an engine needs to know about its servers."""

    urls: tuple[str, ...]
    servers: ServerSettings
    concurrency: int
    retries: int
    lost_seconds: float
    weights_folder: Path | None
    key: str | None


class ServersEngine:
    """An engine behind HTTP."""

    def __init__(self, settings: EngineSettings, write: WriteWeights, *, started: StartedServers) -> None:
        self._settings = settings
        self._write = write
        self._started_servers = started
        self._run = uuid.uuid4().hex[:8]
        self._versions: dict[str, int] = {}
        self._version = 0
        self._published: Published | None = None
        self._pool: ServerPool | None = None
        self._http: Any = None
        self._folder: Path | None = None
        self._updating = asyncio.Lock()
        self._retries = self._discarded = 0

    @property
    def policy_version(self) -> int:
        """The version given with the latest weight update."""
        return self._version

    @property
    def context_length(self) -> int:
        """Maximum length of prompt and completion together."""
        return self._settings.servers.context_length

    @property
    def adapters(self) -> tuple[str, ...]:
        """None: servers load merged weights."""
        return ()

    @property
    def pauses_during_update(self) -> bool:
        """False: servers have hardware of their own and keep serving while the learner computes."""
        return False

    # --- sampling ----------------------------------------------------------------------------------------------------

    async def generate(self, prompt_ids: Sequence[int], sampling: SamplingParams) -> Completion:
        """Sample one completion."""
        servers = self._settings.servers
        prompt = servers.prompt(prompt_ids)
        _check_request(prompt.expanded, sampling, context_length=self.context_length, vocabulary=servers.vocabulary)
        pool = await self._start_pool()
        request = _Request(tuple(prompt_ids), prompt, sampling)
        num_failures = 0
        while not request.is_finished:
            failure = await self._attempt(pool, request)
            if failure is not None:
                num_failures += 1
                self._retries += 1
                if num_failures > self._settings.retries:
                    raise EngineError(f"a request failed {num_failures} times; the last time: {failure}") from None
        return request.completion()

    async def _attempt(self, pool: ServerPool, request: _Request) -> ServerError | None:
        """Send a request once and keep what was sampled; the error when that was nothing."""
        try:
            async with pool.server_for(request.tokens) as server:
                if server.renormalises and (request.remaining.top_p < 1 or request.remaining.top_k > 0):
                    raise EngineRequestError(RENORMALISED)
                answer, label = await server.ask(request.prompt, request.remaining)
                made_progress = request.extend(answer, self._versions_of(server, answer, label))
                pool.note_computed(server, request.tokens)
        except RequestRefusedError as error:
            raise EngineRequestError(f"the server refused a request: {error}") from None
        except ServerError as error:
            return error
        return None if made_progress else ServerError(f"{server.url} aborted the request before its first token")

    def _versions_of(self, server: Server, answer: Answer, label: str | None) -> list[int]:
        """The policy version of each token. Labels that this engine has not given mean unknown weights."""
        labels = answer.labels if answer.labels is not None else (label,) * len(answer.token_ids)
        unknown = [label for label in labels if label not in self._versions]
        if unknown:
            self._discarded += len(answer.token_ids)
            server.label = None
            error = ServerError(f"{server.url} sampled with unknown weights {unknown[0]!r:.60}; it was restarted")
            server.counts["failures"] += 1
            server.take_down(str(error))
            raise error
        return [self._versions[label] for label in labels if label is not None]

    # --- weights -----------------------------------------------------------------------------------------------------

    async def update_weights(self, weights: Iterable[tuple[str, Any]], version: int) -> None:
        """Write the weights, have every server load them and compare log-probs. Servers serve while they are written.

        A server that fails is left out until it is back; one whose log-probs differ is refused until the next update.
        """
        async with self._updating:
            await self._publish(weights, version)

    async def _start_pool(self) -> ServerPool:
        """The pool. Without an update so far, servers get the policy as it is: evaluation makes none."""
        if self._published is None:
            async with self._updating:
                if self._published is None:
                    await self._publish(None, self._version)
        assert self._pool is not None
        return self._pool

    async def _publish(self, weights: Iterable[tuple[str, Any]] | None, version: int) -> None:
        before = self._published
        number = len(self._versions)
        label = f"{self._run}.{number}.{version}"
        folder = self._place() / f"weights-{label}"
        probe = await asyncio.to_thread(self._write, weights, folder, None if before is None else before.probe)
        published = Published(version=version, label=label, folder=folder, probe=probe)
        self._versions[label] = version
        self._version = version
        self._pool = self._pool or self._make_pool()
        await self._pool.publish(published)
        self._published = published
        if before is not None:
            await asyncio.to_thread(shutil.rmtree, before.folder, ignore_errors=True)

    def _place(self) -> Path:
        if self._folder is None:
            chosen = self._settings.weights_folder
            if chosen is not None:
                chosen.mkdir(parents=True, exist_ok=True)
            self._folder = Path(tempfile.mkdtemp(prefix=f"agent-r1-{self._run}-", dir=chosen)).absolute()
            self._folder.chmod(0o755)  # servers may run as another user
        return self._folder

    def _make_pool(self) -> ServerPool:
        settings = self._settings
        self._http = make_http()
        clients = [ServerClient(url, self._http, key=settings.key) for url in settings.urls]
        servers = [Server(client, settings.servers, process=self._started_servers.at(client.url)) for client in clients]
        return ServerPool(servers, concurrency=settings.concurrency, lost_seconds=settings.lost_seconds)

    @asynccontextmanager
    async def paused(self) -> AsyncIterator[None]:
        """Does nothing: servers continue while the learner computes."""
        yield

    def metrics(self) -> dict[str, float]:
        """Counts since the last call."""
        if self._pool is None:
            return {}
        metrics = {
            **self._pool.read_metrics(),
            "servers/retries": float(self._retries),
            "servers/discarded_tokens": float(self._discarded),
        }
        self._retries = self._discarded = 0
        return metrics

    async def close(self) -> None:
        """Leave the servers, stop those that this run started, and remove the folder of weights."""
        try:
            if self._pool is not None:
                await self._pool.close()
            if self._http is not None:
                await self._http.close()
        finally:
            self._pool, self._http, self._published = None, None, None
            await asyncio.to_thread(self._started_servers.stop)
            if self._folder is not None:
                await asyncio.to_thread(shutil.rmtree, self._folder, ignore_errors=True)
                self._folder = None


class _Request:
    """A request and what has been sampled for it, by one or several servers."""

    def __init__(self, tokens: TokenIds, prompt: ServerPrompt, sampling: SamplingParams) -> None:
        self.tokens: list[int] = list(tokens)
        self._prompt = prompt
        self._num_prompt = len(tokens)
        self._sampling = sampling
        self._logprobs: list[float] = []
        self._versions: list[int] = []

    @property
    def _stopped(self) -> bool:
        return bool(self._logprobs) and self.tokens[-1] in self._sampling.stop

    @property
    def prompt(self) -> ServerPrompt:
        """What a server is asked to continue."""
        return self._prompt.followed_by(self.tokens[self._num_prompt :])

    @property
    def is_finished(self) -> bool:
        """Whether a stop id was sampled or there is no room for more."""
        return self._stopped or len(self._logprobs) >= self._sampling.max_tokens

    @property
    def remaining(self) -> SamplingParams:
        """How the rest is sampled. With the same seed, a continued request would use the same random numbers again."""
        done = len(self._logprobs)
        if not done:
            return self._sampling
        num_left = self._sampling.max_tokens - done
        return replace(self._sampling, max_tokens=num_left, seed=mix_seed(self._sampling.seed, done))

    def extend(self, answer: Answer, versions: Sequence[int]) -> bool:
        """Keep what was sampled; returns whether that was anything."""
        ends = [index for index, token in enumerate(answer.token_ids) if token in self._sampling.stop]
        count = ends[0] + 1 if ends else len(answer.token_ids)
        self.tokens += answer.token_ids[:count]
        self._logprobs += answer.logprobs[:count]
        self._versions += versions[:count]
        return count > 0

    def completion(self) -> Completion:
        """The whole of it."""
        return Completion(
            token_ids=tuple(self.tokens[self._num_prompt :]),
            logprobs=tuple(self._logprobs),
            finish_reason="stop" if self._stopped else "length",
            policy_versions=tuple(self._versions),
        )


def _check_request(prompt: TokenIds, sampling: SamplingParams, *, context_length: int, vocabulary: int) -> None:
    """Refuse what no server can answer: some servers die of ids that they do not know."""
    if not prompt:
        raise EngineRequestError("the prompt is empty; give at least one token")
    if sampling.max_tokens < 1:
        raise EngineRequestError(f"max_tokens is {sampling.max_tokens}; ask for at least one token")
    if len(prompt) + sampling.max_tokens > context_length:
        total = f"a prompt of {len(prompt)} tokens and {sampling.max_tokens} new ones"
        raise EngineRequestError(f"{total} do not fit a context of {context_length}")
    ids = (*prompt, *sampling.stop)
    if min(ids) < 0 or max(ids) >= vocabulary:
        raise EngineRequestError(
            f"token ids from {min(ids)} to {max(ids)} were given; the model knows 0 to {vocabulary - 1}"
        )
    temperature, top_k, top_p = sampling.temperature, sampling.top_k, sampling.top_p
    if not (temperature == 0 or MIN_TEMPERATURE <= temperature < math.inf):
        raise EngineRequestError(f"temperature is {temperature}; give 0 (greedy) or at least {MIN_TEMPERATURE}")
    if top_k < 0 or not 0 < top_p <= 1:
        raise EngineRequestError(f"top_k is {top_k} and top_p {top_p}; give top_k >= 0 and top_p in (0, 1]")
