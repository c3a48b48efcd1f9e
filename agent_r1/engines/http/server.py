"""`Server`: one inference server, what is known about it, and how it gets weights.

    new -> updating -> ready -> down -> (health, weights, probe) -> ready
                    \\-> refused, until the next weights

Only a ready server gets requests, and it is ready only when it has the current weights and the probe agreed.
"""

from __future__ import annotations

import asyncio
import uuid
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from agent_r1.engines.http.client import (
    Adapter,
    Answer,
    RequestRefusedError,
    ServerClient,
    ServerError,
    ServerUnusableError,
)
from agent_r1.engines.http.images import ServerImages, ServerPrompt
from agent_r1.engines.http.probe import Probe
from agent_r1.engines.http.processes import StartedServer
from agent_r1.engines.http.sglang import SglangAdapter
from agent_r1.engines.http.vllm import VllmAdapter
from agent_r1.types import SamplingParams

ADAPTERS: dict[str, type[VllmAdapter] | type[SglangAdapter]] = {"vllm": VllmAdapter, "sglang": SglangAdapter}
"""By the name of the engine."""


def image_problem(kind: str, family: str) -> str | None:
    """Why servers of a kind take no images with models of a family; None: they do, or the kind is not known yet."""
    if kind not in ADAPTERS or family in ADAPTERS[kind].image_families:
        return None
    families = ", ".join(sorted(ADAPTERS[kind].image_families))
    return (
        f"an {kind} server takes no images beside token ids with a model of type {family} (it does with {families}); "
        "use engine=local"
    )


HEALTH_SECONDS = 10.0
"""How long a server may take to say how it is."""

MAX_FAILURES_IN_A_ROW = 3
"""Requests that fail one after the other, on a connection that works, before a server gets no more of them."""

State = Literal["new", "updating", "ready", "down", "refused"]


class _DisagreementError(ServerError):
    """A server does not sample from the weights it was given."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Published:
    """Weights that servers can load."""

    version: int
    """The policy version."""
    label: str
    """What servers call it: unlike a bare number, it is never that of another run."""
    folder: Path
    """The folder that holds them."""
    probe: Probe
    """How to find out whether a server has them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ServerSettings:
    """What all servers of an engine share."""

    kind: str
    """vllm, sglang, or http: the server is asked."""
    model: str | None
    context_length: int
    vocabulary: int
    """How many ids the policy knows."""
    timeout: float
    admin_timeout: float
    images: ServerImages | None = None
    """How images are sent, for a model that reads them."""

    def prompt(self, token_ids: Sequence[int]) -> ServerPrompt:
        """A prompt as servers take it."""
        return ServerPrompt.of_text(token_ids) if self.images is None else self.images.prompt(token_ids)


class Server:
    """One inference server: its state, its weights and the requests it has."""

    def __init__(self, client: ServerClient, settings: ServerSettings, *, process: StartedServer | None = None) -> None:
        self.client = client
        self.settings = settings
        self.process = process
        """The process of the server, when the run started it."""
        self.state: State = "new"
        self.reason = "it has not been asked yet"
        """Why it is not ready."""
        self.label: str | None = None
        """The label of the weights that it has loaded."""
        self.in_flight = 0
        self.is_starting = process is not None
        """Whether it was just started: that it does not answer yet is no news."""
        self.has_been_ready = self.has_answered = False
        """Whether it was ready in this run; whether it answered a request since it was started."""
        self.on_down: Callable[[str], None] = lambda reason: None
        """Called when it fails while it is ready."""
        self.down = asyncio.Event()
        """Set when it fails while it is ready."""
        self.difference = 0.0
        """What the last probe found."""
        self.counts: Counter[str] = Counter()
        self._adapter: Adapter | None = None
        self._reports_labels = True
        self._failures_in_a_row = 0
        self._num_updates = 0
        self._updating = asyncio.Lock()

    @property
    def url(self) -> str:
        """The address of the server."""
        return self.client.url

    @property
    def renormalises(self) -> bool:
        """Whether its log-probs under top_p and top_k differ from the trainer's."""
        return self._adapter is not None and self._adapter.renormalises

    # --- requests ----------------------------------------------------------------------------------------------------

    async def ask(self, prompt: ServerPrompt, sampling: SamplingParams) -> tuple[Answer, str | None]:
        """Sample; also gives the label that all tokens have when the server does not report labels.

        A server without reports aborts its requests before it loads weights. An answer that was complete although
        weights were loaded meanwhile may come from either of them, and is discarded.
        """
        assert self._adapter is not None
        label, updates = self.label, self._num_updates
        self.counts["requests"] += 1
        try:
            answer = await self._adapter.generate(
                prompt, sampling, request_id=uuid.uuid4().hex, seconds=self.settings.timeout
            )
            if not self._reports_labels and self._num_updates != updates and answer.finish != "abort":
                raise ServerError(f"{self.url}: its weights changed during the request, and it does not say when")
            self._check_known(answer)
        except RequestRefusedError:
            raise
        except ServerError as error:
            self.note_failure(error)
            raise
        self._failures_in_a_row = 0
        self.has_answered = True
        self.counts["tokens"] += len(answer.token_ids)
        return answer, label

    def _check_known(self, answer: Answer) -> None:
        """Raise `ServerError` for ids that the policy does not have: it can neither continue nor train them."""
        largest, vocabulary = max(answer.token_ids, default=0), self.settings.vocabulary
        if largest >= vocabulary:
            raise ServerError(f"{self.url} sampled the id {largest}, and the policy knows 0 to {vocabulary - 1}")

    def note_failure(self, error: ServerError) -> None:
        """Count a failure; too many, or a lost connection, and the server gets no requests until it is well."""
        self.counts["failures"] += 1
        self._failures_in_a_row += 1
        if error.is_down or isinstance(error, ServerUnusableError) or self._failures_in_a_row >= MAX_FAILURES_IN_A_ROW:
            self.take_down(str(error))

    def take_down(self, reason: str) -> None:
        """Give it no more requests until it is well and has the current weights."""
        if self.state == "ready":
            self.state, self.reason = "down", reason
            self.down.set()
            self.on_down(reason)

    # --- weights -----------------------------------------------------------------------------------------------------

    async def check_health(self) -> None:
        """Raise `ServerError` when it does not answer, or answers that it is not well."""
        adapter = await self._connect()
        await adapter.check_health(seconds=HEALTH_SECONDS)

    async def synchronise(self, current: Callable[[], Published]) -> None:
        """Make it ready with the current weights: load them unless it has them, and compare log-probs with the
        trainer's. Which weights are current is asked when earlier updates of this server have ended.

        Raises `ServerError` when that fails (the state is then `down` or `refused`). A server is never left paused, and
        an update that has begun is finished although the caller is cancelled: servers crash otherwise.
        """
        updating = asyncio.ensure_future(self._synchronise(current))
        try:
            await asyncio.shield(updating)
        except asyncio.CancelledError:
            await asyncio.wait({updating}, timeout=self.settings.admin_timeout)
            raise

    async def _synchronise(self, current: Callable[[], Published]) -> None:
        async with self._updating:
            weights = current()
            self.state, self.reason = "updating", "its weights are being updated"
            try:
                await self.check_health()
                adapter = await self._connect()
                has_them = await adapter.label(seconds=HEALTH_SECONDS) == weights.label
                if not has_them or self.label != weights.label:
                    await self._load(adapter, weights)
                await self._compare(adapter, weights)
            except _DisagreementError as error:
                self.state, self.reason = "refused", str(error)
                self.counts["refused"] += 1
                raise
            except ServerError as error:
                self.state, self.reason = "down", str(error)
                raise
            except BaseException:
                self.state, self.reason = "down", "its update was interrupted"
                raise
            self.state, self.reason, self._failures_in_a_row = "ready", "", 0
            self.is_starting, self.has_been_ready = False, True
            self.down.clear()

    async def _load(self, adapter: Adapter, weights: Published) -> None:
        self.label = None
        self._num_updates += 1
        self.counts["updates"] += 1
        await adapter.load(
            str(weights.folder),
            weights.label,
            keeps_requests=self._reports_labels,
            seconds=self.settings.admin_timeout,
        )
        self.label = weights.label

    async def _compare(self, adapter: Adapter, weights: Published) -> None:
        """Refuse a server whose log-probs, or whose label, are not those of the weights."""
        probe = weights.probe
        answers = await asyncio.gather(
            *(
                adapter.generate(
                    self.settings.prompt(token_ids),
                    sampling,
                    request_id=uuid.uuid4().hex,
                    seconds=self.settings.admin_timeout,
                )
                for token_ids, sampling in probe.requests()
            )
        )
        wrong = {label for answer in answers for label in answer.labels or ()} - {weights.label}
        if wrong:
            raise self._refusal(f"it says that its weights are {sorted(wrong)[0]!r:.60}, not {weights.label!r}")
        tokens = [answer.token_ids[0] for answer in answers if answer.token_ids]
        if len(tokens) < len(answers) or max(tokens) >= probe.logprobs.shape[1]:
            raise self._refusal(f"it sampled ids that the policy does not have: {tokens}")
        differences = probe.differences(tokens, [answer.logprobs[0] for answer in answers])
        self.difference = max(differences)
        if not self.difference <= probe.tolerance:
            is_text = not differences[0] <= probe.tolerance
            raise self._refusal(
                f"its log-probs{'' if is_text else ' after an image'} differ from the trainer's by "
                f"{self.difference:.3g} on average after weights {weights.version} were loaded, and "
                f"{probe.tolerance:.3g} is allowed: it has other weights, another number type, or "
                f"{'old cached prefixes' if is_text else 'another way to resize and normalise images'} "
                "(engine.servers.tolerance sets what is allowed)"
            )

    def _refusal(self, reason: str) -> ServerError:
        return _DisagreementError(f"{self.url} was refused: {reason}")

    async def start_again(self) -> None:
        """Start another process in place of the one that ended. It is asked what it is, like any server, and has no
        weights of this run."""
        assert self.process is not None
        async with self._updating:
            self.process.start()
            self.client.url = self.process.url
            self.state, self.reason, self.is_starting = "down", "it was started again", True
            self.label, self._adapter, self.has_answered = None, None, False
            self.counts["restarts"] += 1

    # --- the first contact -------------------------------------------------------------------------------------------

    async def _connect(self) -> Adapter:
        """The adapter; the server is asked what it is and whether it can be used when that is not known."""
        if self._adapter is None:
            adapter = await self._identify()
            length = await adapter.context_length(seconds=HEALTH_SECONDS)
            if length is not None and length < self.settings.context_length:
                raise ServerUnusableError(
                    f"{self.url} serves a context of {length} tokens, and this run needs "
                    f"{self.settings.context_length}; start it with a longer one, or set rollout.context_length"
                )
            first = SamplingParams(max_tokens=1, temperature=1.0)
            answer = await adapter.generate(
                ServerPrompt.of_text([1]), first, request_id=uuid.uuid4().hex, seconds=self.settings.admin_timeout
            )
            self._reports_labels = answer.labels is not None
            self._adapter = adapter
        return self._adapter

    async def _identify(self) -> Adapter:
        kind = self.settings.kind
        if kind == "http":
            kind = await self._ask_kind()
        images = self.settings.images
        problem = None if images is None else image_problem(kind, images.family)
        if problem is not None:
            raise ServerUnusableError(f"{self.url}: {problem}")
        return ADAPTERS[kind](self.client, model=self.settings.model, sees_images=images is not None)

    async def _ask_kind(self) -> str:
        """vLLM has `/version`, SGLang `/model_info` or `/get_model_info`."""
        for path, kind, key in (
            ("/version", "vllm", "version"),
            ("/model_info", "sglang", "model_path"),
            ("/get_model_info", "sglang", "model_path"),
        ):
            try:
                answer = await self.client.call("GET", path, seconds=HEALTH_SECONDS)
            except ServerUnusableError:
                continue
            if isinstance(answer, dict) and key in answer:
                return kind
        raise ServerUnusableError(f"{self.url} is neither a vLLM nor an SGLang server")
