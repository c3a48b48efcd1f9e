"""Conformance servers: stand-ins for vLLM and SGLang servers, with a real model underneath and faults on request.

They speak the part of the HTTP interfaces that `engines/http` uses, as seen in vLLM 0.32 and 0.26 and SGLang 0.5.23.
They are not those servers. Underneath is our in-process engine: log-probs are real, and weights really change through
folders. `tests/integration/test_vllm_server.py` runs the same engine against a real vLLM. For a model that reads
images they expand placeholders with the image processor of their own folder; `sglang-0.5.12` also encodes the text of
the ids again, as that version does.

    with engine_server(folder) as server:          # a thread of this process
    with engine_server_process(folder) as server:  # a process, which a test can kill
        server.fault(path="/inference/v1/generate", kind="500", times=2)

    python -m tests.helpers.engine_server FOLDER --kind vllm --port 8000
"""

from __future__ import annotations

import argparse
import asyncio
import atexit
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import AsyncExitStack, aclosing, contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import torch
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from torch import nn
from transformers import AutoModelForCausalLM, AutoModelForImageTextToText, AutoTokenizer

from agent_r1.engines.http.policy_weights import server_name
from agent_r1.engines.local.engine import LocalEngine
from agent_r1.images import ImageProcessor, is_image_id, is_vision_model, load_image_processor, read_picture
from agent_r1.types import SamplingParams
from agent_r1.web import listen, running_server

ROOT = Path(__file__).parents[2]
START_LABEL = "default"


@dataclass
class Fault:
    """Something that goes wrong, `times` times, with requests to a path."""

    path: str
    kind: str
    """500, garbage, half, late, hang, die, abort, unknown_id, wrong_version, keep_head, keep_weights."""
    times: int = 1
    seconds: float = 0.0
    after: int = 0
    """Requests to the path that go well before."""


@dataclass
class ServedModel:
    """The state of a server."""

    model: nn.Module
    kind: str
    max_model_len: int
    eos: int | None
    engine: LocalEngine
    tokenizer: Any = None
    """Of a model that reads images."""
    processor: ImageProcessor | None = None
    labels: list[str] = field(default_factory=lambda: [START_LABEL])
    """By the engine's version."""
    faults: list[Fault] = field(default_factory=list)
    calls: list[str] = field(default_factory=list)
    is_dead: bool = False
    aborting: asyncio.Event = field(default_factory=asyncio.Event)
    pause: AsyncExitStack | None = None
    max_running: int = 0
    running: int = 0


def load_model(folder: Path) -> nn.Module:
    """The model with a head of its own, whatever the folder says."""
    kind: Any = AutoModelForImageTextToText if is_vision_model(folder) else AutoModelForCausalLM
    model: Any = kind.from_pretrained(folder, dtype=torch.float32).eval()
    head = model.get_output_embeddings()
    head.weight = nn.Parameter(head.weight.detach().clone())
    model.config.tie_word_embeddings = False
    return model


def make_app(folder: Path, kind: str, *, max_model_len: int | None = None) -> Starlette:
    """The application of one server."""
    model: Any = load_model(folder)
    settings = model.config.get_text_config()
    length = max_model_len or int(settings.max_position_embeddings)
    engine = LocalEngine(model, max_requests=64, context_length=length)
    state = ServedModel(model=model, kind=kind, max_model_len=length, eos=settings.eos_token_id, engine=engine)
    if is_vision_model(folder):
        state.tokenizer = AutoTokenizer.from_pretrained(folder)
        state.processor = load_image_processor(folder, state.tokenizer)
    routes = {
        "vllm": _vllm_routes,
        "vllm-0.26": _old_vllm_routes,
        "sglang": _sglang_routes,
        "sglang-0.5.12": _sglang_routes,
    }[kind](state)

    async def set_faults(request: Request) -> JSONResponse:
        state.faults = [Fault(**entry) for entry in await request.json()]
        return JSONResponse({})

    async def tell(request: Request) -> JSONResponse:
        left = sum(fault.times for fault in state.faults)
        told = {"calls": state.calls, "labels": state.labels, "faults_left": left, "max_running": state.max_running}
        return JSONResponse({**told, "version": state.engine.policy_version})

    routes += [Route("/test/faults", set_faults, methods=["POST"]), Route("/test/state", tell)]
    return Starlette(routes=routes)


# --- what both kinds do ---------------------------------------------------------------------------------------------


def _route(state: ServedModel, path: str, answer: Any, method: str) -> Route:
    async def handle(request: Request) -> Response:
        state.calls.append(path)
        fault = _due(state, path)
        if fault is not None:
            broken = await _break(fault)
            if broken is not None:
                return broken
        if state.is_dead and path != "/health":
            return JSONResponse({"error": "EngineDeadError"}, status_code=500)
        text = await request.body()
        body = json.loads(text) if text else {}
        found = await answer(body, request, fault)
        if fault is not None and fault.kind == "half":
            whole = json.dumps(found).encode()
            return _half(whole)
        return found if isinstance(found, Response) else JSONResponse(found)

    return Route(path, handle, methods=[method])


def _due(state: ServedModel, path: str) -> Fault | None:
    for fault in state.faults:
        if fault.path == path and fault.times > 0:
            if fault.after > 0:
                fault.after -= 1
                return None
            fault.times -= 1
            return fault
    return None


async def _break(fault: Fault) -> Response | None:
    if fault.kind == "500":
        return JSONResponse({"error": "internal"}, status_code=500)
    if fault.kind == "garbage":
        return Response(b"<html>Bad gateway</html>", status_code=200)
    if fault.kind == "nonsense":
        return JSONResponse({"choices": [{"token_ids": "abc"}], "meta_info": []})
    if fault.kind in ("late", "hang"):
        await asyncio.sleep(fault.seconds)
    if fault.kind == "die":
        os._exit(9)
    return None


def _half(whole: bytes) -> StreamingResponse:
    """The first half of a body, and then the end of the connection."""

    async def body() -> Any:
        yield whole[: len(whole) // 2]
        raise ConnectionResetError

    return StreamingResponse(body(), headers={"Content-Length": str(len(whole))}, media_type="application/json")


def _expanded(state: ServedModel, token_ids: list[int], addresses: list[str]) -> list[int]:
    """The prompt with the tokens of each image where its placeholder is."""
    if state.processor is None or not addresses:
        return token_ids
    if state.kind == "sglang-0.5.12":
        token_ids = state.tokenizer.encode(state.tokenizer.decode(token_ids), add_special_tokens=False)
    processor, images = state.processor, iter(addresses)
    expanded: list[int] = []
    for token in token_ids:
        address = next(images, None) if token == processor.placeholder_id else None
        expanded += [token] if address is None else processor.prompt_ids(processor.encode(read_picture(address)))
    return expanded


def _as_read(state: ServedModel, prompt: list[int]) -> list[int]:
    """The ids that a model reads: placeholders where image tokens are."""
    placeholder = None if state.processor is None else state.processor.placeholder_id
    return [placeholder if is_image_id(token) else token for token in prompt]  # type: ignore[misc]


async def _sample(
    state: ServedModel, prompt: list[int], sampling: SamplingParams, fault: Fault | None
) -> dict[str, Any]:
    """Tokens with their log-probs, versions and finish reason; until the end, or an abort."""
    tokens: list[int] = []
    logprobs: list[float] = []
    versions: list[int] = []
    finish = "abort"
    aborting = state.aborting
    state.running += 1
    state.max_running = max(state.max_running, state.running)
    try:
        async with aclosing(state.engine.stream(prompt, sampling)) as stream:
            reading = asyncio.ensure_future(anext(stream))
            aborted = asyncio.ensure_future(aborting.wait())
            while True:
                await asyncio.wait({reading, aborted}, return_when=asyncio.FIRST_COMPLETED)
                if aborted.done() and not reading.done():
                    reading.cancel()
                    await asyncio.gather(reading, return_exceptions=True)
                    break
                new = reading.result()
                tokens += new.token_ids
                logprobs += new.logprobs
                versions += new.policy_versions
                if new.completion is not None:
                    finish = new.completion.finish_reason
                    break
                if fault is not None and fault.kind == "abort" and len(tokens) >= 2:
                    break
                reading = asyncio.ensure_future(anext(stream))
            aborted.cancel()
    finally:
        state.running -= 1
    labels = [state.labels[version] for version in versions]
    if fault is not None and fault.kind == "unknown_id":
        tokens[-1] = 10**6
    if fault is not None and fault.kind == "wrong_version":
        labels = ["another-run.7" for _ in labels]
    spans: list[dict[str, Any]] = []
    for index, label in enumerate(labels):
        if spans and spans[-1]["version"] == label:
            spans[-1]["end"] = index + 1
        else:
            spans.append({"version": label, "start": index, "end": index + 1})
    return {"tokens": tokens, "logprobs": logprobs, "finish": finish, "spans": spans}


async def _load(state: ServedModel, folder: str, fault: Fault | None) -> None:
    """Load a folder. A head that the folder does not have stays the old one, as in a server with tied weights."""
    from safetensors.torch import load_file

    weights: dict[str, Any] = {}
    for file in sorted(Path(folder).glob("*.safetensors")):
        weights |= load_file(file)
    if fault is not None and fault.kind == "keep_weights":
        return
    current = dict(state.model.state_dict())
    if fault is not None and fault.kind == "keep_head":
        weights.pop("lm_head.weight")
    of_server = {server_name(name): name for name in current}
    current |= {of_server[name]: tensor for name, tensor in weights.items() if name in of_server}
    state.model.load_state_dict(current)
    await state.engine.update_weights(current.items(), state.engine.policy_version + 1)
    state.labels.append(state.labels[-1])


async def _pause(state: ServedModel, *, abort: bool) -> None:
    if abort:
        state.aborting.set()
        state.aborting = asyncio.Event()
    if state.pause is None:
        state.pause = AsyncExitStack()
        await state.pause.enter_async_context(state.engine.paused())


async def _resume(state: ServedModel) -> None:
    if state.pause is not None:
        pause, state.pause = state.pause, None
        await pause.aclose()


# --- vLLM -----------------------------------------------------------------------------------------------------------


def _vllm_routes(state: ServedModel) -> list[Route]:
    async def generate(body: dict[str, Any], request: Request, fault: Fault | None) -> Any:
        asked = body["sampling_params"]
        parts = [] if state.kind == "vllm-0.26" else body.get("content_parts") or []
        prompt = _expanded(state, body["token_ids"], [part["url"] for part in parts])
        if max(body["token_ids"]) >= state.model.get_input_embeddings().weight.shape[0]:
            state.is_dead = True
            return JSONResponse({"error": "id out of range"}, status_code=500)
        sampled = await _sample(
            state,
            prompt,
            SamplingParams(
                max_tokens=asked["max_tokens"],
                temperature=asked["temperature"],
                top_p=asked["top_p"],
                top_k=asked["top_k"],
                seed=asked["seed"],
                stop=tuple(asked["stop_token_ids"]),
            ),
            fault,
        )
        if state.kind == "vllm-0.26" and not sampled["tokens"]:
            return JSONResponse({"error": "Did not output logprobs"}, status_code=500)
        content: list[dict[str, Any]] = [
            {"token": f"token_id:{token}", "logprob": logprob}
            if state.kind == "vllm-0.26"
            else {"token_id": token, "logprob": logprob, "rank": None, "top_logprobs": []}
            for token, logprob in zip(sampled["tokens"], sampled["logprobs"], strict=True)
        ]
        choice = {
            "index": 0,
            "token_ids": sampled["tokens"],
            "logprobs": {"content": content},
            "finish_reason": sampled["finish"],
            **({} if state.kind == "vllm-0.26" else {"weight_versions": sampled["spans"]}),
        }
        asked_ids = body.get("return_token_ids") and state.kind != "vllm-0.26"
        return {
            "request_id": body["request_id"],
            "choices": [choice],
            "prompt_logprobs": None,
            **({"prompt_token_ids": _as_read(state, prompt)} if asked_ids else {}),
        }

    async def models(body: Any, request: Request, fault: Fault | None) -> Any:
        return {"object": "list", "data": [{"id": "tiny", "max_model_len": state.max_model_len}]}

    async def pause(body: Any, request: Request, fault: Fault | None) -> Any:
        await _pause(state, abort=request.query_params["mode"] == "abort")
        return {"status": "paused"}

    async def collective_rpc(body: dict[str, Any], request: Request, fault: Fault | None) -> Any:
        assert body["method"] == "reload_weights"
        folder = body["kwargs"]["weights_path"]
        if not Path(folder).is_dir():
            state.is_dead = True
            return JSONResponse({"error": f"{folder} is missing"}, status_code=500)
        await _load(state, folder, fault)
        return {"results": [None]}

    async def set_label(body: dict[str, Any], request: Request, fault: Fault | None) -> Any:
        state.labels[state.engine.policy_version] = body["new_version"]
        return {"success": True, "new_version": body["new_version"]}

    async def weight_info(body: Any, request: Request, fault: Fault | None) -> Any:
        return {"weight_version": state.labels[-1]}

    async def reset(body: Any, request: Request, fault: Fault | None) -> Any:
        return {"success": True}

    async def resume(body: Any, request: Request, fault: Fault | None) -> Any:
        await _resume(state)
        return {"status": "resumed"}

    async def health(body: Any, request: Request, fault: Fault | None) -> Any:
        return Response()

    async def version(body: Any, request: Request, fault: Fault | None) -> Any:
        return {"version": "0.32.0"}

    return [
        _route(state, "/inference/v1/generate", generate, "POST"),
        _route(state, "/v1/models", models, "GET"),
        _route(state, "/pause", pause, "POST"),
        _route(state, "/collective_rpc", collective_rpc, "POST"),
        _route(state, "/update_weight_version", set_label, "POST"),
        _route(state, "/weight_info", weight_info, "GET"),
        _route(state, "/reset_prefix_cache", reset, "POST"),
        _route(state, "/reset_encoder_cache", reset, "POST"),
        _route(state, "/resume", resume, "POST"),
        _route(state, "/health", health, "GET"),
        _route(state, "/version", version, "GET"),
    ]


def _old_vllm_routes(state: ServedModel) -> list[Route]:
    """vLLM 0.26 does not know weight versions."""
    unknown = ("/update_weight_version", "/weight_info")
    return [route for route in _vllm_routes(state) if route.path not in unknown]


# --- SGLang ---------------------------------------------------------------------------------------------------------


def _sglang_routes(state: ServedModel) -> list[Route]:
    async def generate(body: dict[str, Any], request: Request, fault: Fault | None) -> Any:
        asked = body["sampling_params"]
        eos = () if state.eos is None else (state.eos,)
        prompt = _expanded(state, body["input_ids"], body.get("image_data") or [])
        sampled = await _sample(
            state,
            prompt,
            SamplingParams(
                max_tokens=asked["max_new_tokens"],
                temperature=asked["temperature"],
                top_p=asked["top_p"],
                top_k=max(0, asked["top_k"]),
                seed=asked["sampling_seed"],
                stop=(*asked["stop_token_ids"], *eos),
            ),
            fault,
        )
        pairs = [[logprob, token, None] for token, logprob in zip(sampled["tokens"], sampled["logprobs"], strict=True)]
        meta = {
            "id": body["rid"],
            "finish_reason": {"type": sampled["finish"]},
            "output_token_logprobs": pairs,
            "cached_tokens": 0,
            "prompt_tokens": len(prompt),
            "weight_version": state.labels[-1],
            "weight_versions": sampled["spans"],
        }
        return {"text": "", "output_ids": sampled["tokens"], "meta_info": meta}

    async def pause(body: dict[str, Any], request: Request, fault: Fault | None) -> Any:
        await _pause(state, abort=body["mode"] == "abort")
        return {"status": "ok"}

    async def resume(body: Any, request: Request, fault: Fault | None) -> Any:
        await _resume(state)
        return {"status": "ok"}

    async def update(body: dict[str, Any], request: Request, fault: Fault | None) -> Any:
        if not Path(body["model_path"]).is_dir():
            return JSONResponse({"success": False, "message": "no such folder"}, status_code=400)
        await _load(state, body["model_path"], fault)
        state.labels[state.engine.policy_version] = body["weight_version"]
        return {"success": True, "message": "Succeeded to update model weights.", "num_paused_requests": 0}

    async def model_info(body: Any, request: Request, fault: Fault | None) -> Any:
        return {"model_path": "tiny", "is_generation": True, "weight_version": state.labels[-1]}

    async def server_info(body: Any, request: Request, fault: Fault | None) -> Any:
        return {"context_length": state.max_model_len}

    async def health(body: Any, request: Request, fault: Fault | None) -> Any:
        return Response()

    return [
        _route(state, "/generate", generate, "POST"),
        _route(state, "/pause_generation", pause, "POST"),
        _route(state, "/continue_generation", resume, "POST"),
        _route(state, "/update_weights_from_disk", update, "POST"),
        _route(state, "/model_info", model_info, "GET"),
        _route(state, "/get_server_info", server_info, "GET"),
        _route(state, "/health", health, "GET"),
    ]


# --- running one ----------------------------------------------------------------------------------------------------


@dataclass
class RunningServer:
    """A running server, in a thread or in a process."""

    url: str
    process: int | None = None

    def fault(self, **fault: Any) -> None:
        """Let one thing go wrong from here on; without arguments, nothing."""
        self.faults([fault] if fault else [])

    def faults(self, faults: list[dict[str, Any]]) -> None:
        """Let these things go wrong."""
        request = urllib.request.Request(f"{self.url}/test/faults", data=json.dumps(faults).encode())
        urllib.request.urlopen(request, timeout=10).close()

    def state(self) -> dict[str, Any]:
        """Calls, labels, faults that have not happened yet."""
        with urllib.request.urlopen(f"{self.url}/test/state", timeout=10) as response:
            return dict(json.load(response))

    def kill(self) -> None:
        """Kill the process, as `kill -9` does."""
        assert self.process is not None
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.process, signal.SIGKILL)

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """Inside, the process does not run (SIGSTOP)."""
        assert self.process is not None
        os.kill(self.process, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(self.process, signal.SIGCONT)


@contextmanager
def engine_server(folder: Path, kind: str = "vllm", *, port: int = 0, **settings: Any) -> Iterator[RunningServer]:
    """A server in a thread of this process."""
    ready, state = threading.Event(), dict[str, Any]()

    async def main() -> None:
        app = make_app(folder, kind, **settings)
        async with running_server(app, listen("127.0.0.1", port), shutdown_seconds=1) as url:
            state.update(url=url, loop=asyncio.get_running_loop(), stop=asyncio.Event())
            ready.set()
            await state["stop"].wait()

    thread = threading.Thread(target=lambda: asyncio.run(main()))
    thread.start()
    assert ready.wait(30)
    try:
        yield RunningServer(state["url"])
    finally:
        state["loop"].call_soon_threadsafe(state["stop"].set)
        thread.join(30)


class _Nursery:
    """A process that has imported everything and forks servers: a new one is there at once."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.helpers.engine_server", "--nursery"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
        self._lock = threading.Lock()

    def start(self, folder: Path, kind: str, port: int) -> RunningServer:
        """A new server."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with self._lock:
            self._process.stdin.write(json.dumps({"folder": str(folder), "kind": kind, "port": port}) + "\n")
            self._process.stdin.flush()
            url, _, process = self._process.stdout.readline().strip().partition(" ")
        assert url.startswith("http"), f"the server did not start: {url!r}"
        return RunningServer(url, int(process))

    def close(self) -> None:
        """End it; each server is ended by the test that started it."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()


@cache
def _nursery() -> _Nursery:
    nursery = _Nursery()
    atexit.register(nursery.close)
    return nursery


@contextmanager
def engine_server_process(folder: Path, kind: str = "vllm", *, port: int = 0) -> Iterator[RunningServer]:
    """A server in a process of its own."""
    server = _nursery().start(folder, kind, port)
    try:
        yield server
    finally:
        server.kill()


@contextmanager
def startable_servers(folder: Path) -> Iterator[StartableServers]:
    """An interpreter for `engine.servers.python` whose `vllm` is a conformance server, there at once: what it runs asks
    this process for a fork of the nursery, and ends when that ends."""
    _nursery()
    address, servers = str(folder / "nursery"), list[RunningServer]()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(address)
        listener.listen()

        def answer() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                with connection:
                    asked = json.loads(connection.makefile().readline())
                    servers.append(_nursery().start(Path(asked["model"]), "vllm", asked["port"]))
                    connection.sendall(f"{servers[-1].process}\n".encode())

        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        script = folder / "python"
        program = f"exec {sys.executable} -S {Path(__file__).with_name('startable_server.py')} {address}"
        says = 'test "$1" = -c && echo \'{"installed": true, "has_scale_out": true}\' && exit'
        script.write_text(f'#!/bin/sh\n{says}\n{program} "$@"\n')
        script.chmod(0o755)
        try:
            yield StartableServers(python=script, servers=servers)
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join(30)
            for server in servers:
                server.kill()


@dataclass
class StartableServers:
    """What a run starts with `engine.servers.python`, and what it has started."""

    python: Path
    servers: list[RunningServer]


def _serve_nursery() -> None:
    """Fork a server for every line on the standard input."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the system forgets children that ended
    torch.set_num_threads(1)
    for line in sys.stdin:
        asked = json.loads(line)
        child = os.fork()
        if child == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            asyncio.run(_main(Path(asked["folder"]), asked["kind"], asked["port"], None))
            os._exit(0)


def wait_for(condition: Any, seconds: float = 20.0) -> None:
    """Wait until a condition holds; a test that would wait forever fails."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "the condition did not become true"
        time.sleep(0.02)


async def _main(folder: Path, kind: str, port: int, max_model_len: int | None) -> None:
    app = make_app(folder, kind, max_model_len=max_model_len)
    async with running_server(app, listen("127.0.0.1", port), shutdown_seconds=1) as url:
        print(url, os.getpid(), flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", nargs="?")
    parser.add_argument("-m", dest="module")
    parser.add_argument("--model", "--model-path", dest="model")
    parser.add_argument("--kind", default=None)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--max-model-len", "--context-length", dest="length", type=int, default=None)
    parser.add_argument("--nursery", action="store_true")
    parser.add_argument("--pids", type=Path, default=None)
    given, _ = parser.parse_known_args()
    if given.pids is not None:
        (given.pids / f"{os.getpid()}.pid").touch()
    if given.nursery:
        _serve_nursery()
        sys.exit()
    torch.set_num_threads(1)
    chosen = given.kind or ("sglang" if "sglang" in (given.module or "") else "vllm")
    asyncio.run(_main(Path(given.model or given.folder), chosen, given.port, given.length))
