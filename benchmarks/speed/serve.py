"""`agent-r1 serve` against the engine alone: tokens per second with CLIENTS clients at once.

    python -m benchmarks.speed.serve [--model FOLDER] [--tokens 64] [--rounds 3]

The server is a process of its own. The same requests (prompts, seeds, maximum tokens) go to an engine in this process
and, one connection per client, to the server: streamed chat, whole chat, and plain completions with token ids. Both
have the same number of threads, and each is idle while the other is measured. A rate is the best of ROUNDS, and its
ratio is the server's over the engine's. `processor` is the same ratio for the seconds of processor time that the
process used (Linux), which other programs on the machine disturb less. The tokens of both are compared: on a CPU they
are equal.

Without --model a random Llama of about 20 million weights is made: with fewer, HTTP would be measured, not serving.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import os
import random
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

CLIENTS = 64
THREADS = os.environ.setdefault("OMP_NUM_THREADS", "1")
KINDS = ("chat, streamed", "chat, whole", "ids, streamed", "ids, whole")


def make_model(folder: Path) -> None:
    """A random model with the quickstart's tokenizer."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    from agent_r1.models import train_tokenizer
    from recipes.quickstart.shop import demonstration, draw_basket

    rng = random.Random(0)
    tokenizer: Any = train_tokenizer([demonstration(draw_basket(rng), rng) for _ in range(300)])
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=8192,
        hidden_size=512,
        intermediate_size=1408,
        num_hidden_layers=6,
        num_attention_heads=8,
        num_key_value_heads=2,
        max_position_embeddings=2048,
        eos_token_id=tokenizer.eos_token_id,
    )
    model = LlamaForCausalLM(config)
    with torch.no_grad():  # ids that the tokenizer does not have are never sampled
        model.lm_head.weight[len(tokenizer) :] = 0
        model.lm_head.weight[: len(tokenizer)] *= 20
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


@contextmanager
def served(model: str) -> Iterator[tuple[tuple[str, int], int]]:
    """Address and port of `agent-r1 serve MODEL`, and its process."""
    command = [sys.executable, "-m", "agent_r1.cli", "serve", model, "--port", "0", "--name", "bench"]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env={**os.environ, "OMP_NUM_THREADS": THREADS}
    )
    assert process.stdout is not None
    try:
        for line in process.stdout:
            if found := re.search(r"http://([\d.]+):(\d+)/v1", line):
                yield (found[1], int(found[2])), process.pid
                return
        raise SystemExit("the server did not start")
    finally:
        process.terminate()
        process.wait()


def requests(num_tokens: int) -> list[dict[str, Any]]:
    """One request per client; questions of different lengths."""
    rng = random.Random(1)
    return [
        {
            "model": "bench",
            "messages": [{"role": "user", "content": "What do " + "3 apples and " * rng.randint(4, 24) + "tea cost?"}],
            "max_tokens": num_tokens,
            "seed": number,
        }
        for number in range(CLIENTS)
    ]


async def post(address: tuple[str, int], path: str, body: dict[str, Any]) -> bytes:
    """The body of a response, read to its end over a connection of its own."""
    reader, writer = await asyncio.open_connection(*address)
    content = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: {len(content)}\r\n\r\n"
    writer.write(head.encode() + content)
    answer = await reader.read()
    writer.close()
    if b" 200 " not in answer[:20]:
        raise SystemExit(answer[:1000].decode())
    return answer


class Direct:
    """The engine alone, with the requests of the clients."""

    def __init__(self, model: str, bodies: list[dict[str, Any]]) -> None:
        from agent_r1.inference import load_agent
        from agent_r1.openai_api import ChatModel, read_chat_request

        agent = load_agent(model, overrides=[f"rollout.concurrency={CLIENTS}"])
        self.engine, chat = agent.engine, ChatModel(agent.engine, agent.renderer, name="bench")
        self.work = []
        for body in bodies:
            request = read_chat_request(body)
            ids = chat.prompt(request).token_ids
            self.work.append((ids, chat.sampling_params(request.sampling, ids, seed=body["seed"], index=0)))

    async def run(self) -> list[tuple[int, ...]]:
        """The sampled ids of every request."""
        done = await asyncio.gather(*(self.engine.generate(ids, params) for ids, params in self.work))
        return [completion.token_ids for completion in done]


async def ask_server(address: tuple[str, int], kind: str, bodies: list[dict[str, Any]], direct: Direct) -> list[bytes]:
    """All requests at once."""
    path, stream = "/v1/chat/completions", kind.endswith("streamed")
    if kind.startswith("ids"):
        path = "/v1/completions"
        bodies = [
            {**{name: value for name, value in body.items() if name != "messages"}, "prompt": list(ids)}
            for body, (ids, _) in zip(bodies, direct.work, strict=True)
        ]
    return await asyncio.gather(*(post(address, path, {**body, "stream": stream}) for body in bodies))


def processor_seconds(pid: int) -> float:
    """Processor time of a process so far; nan where the system does not tell."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return math.nan
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def measure(
    address: tuple[str, int], pid: int, direct: Direct, bodies: list[dict[str, Any]], rounds: int
) -> None:
    """Print the rates; every round measures the engine and each kind of request."""
    best: dict[str, float] = dict.fromkeys(("engine", *KINDS), 0.0)
    processor: dict[str, float] = dict.fromkeys(best, math.inf)
    first = await direct.run()
    num_tokens = sum(map(len, first))
    await ask_server(address, KINDS[0], bodies, direct)
    for _ in range(rounds):
        for kind in best:
            worker = os.getpid() if kind == "engine" else pid
            started, used = time.perf_counter(), processor_seconds(worker)
            await (direct.run() if kind == "engine" else ask_server(address, kind, bodies, direct))
            best[kind] = max(best[kind], num_tokens / (time.perf_counter() - started))
            processor[kind] = min(processor[kind], processor_seconds(worker) - used)
    exact = [{**body, "return_token_ids": True} for body in bodies]
    answers = await ask_server(address, KINDS[3], exact, direct)
    found = [tuple(json.loads(a.partition(b"\r\n\r\n")[2])["choices"][0]["token_ids"]) for a in answers]
    same = sum(a == b for a, b in zip(found, first, strict=True))
    print(f"{CLIENTS} clients, {num_tokens} tokens, {THREADS} threads; {same} of {CLIENTS} completions have equal ids")
    for kind, rate in best.items():
        share = processor["engine"] / processor[kind]
        print(f"{kind:16} {rate:8.0f} tokens/s   rate {rate / best['engine']:5.0%}   processor {share:5.0%}")


def main() -> None:
    """Make a model if none is given, start the server, measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model")
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        model = options.model or folder
        if options.model is None:
            make_model(Path(folder))
        bodies = requests(options.tokens)
        direct = Direct(model, bodies)
        with served(model) as (address, pid):
            asyncio.run(measure(address, pid, direct, bodies, options.rounds))


if __name__ == "__main__":
    main()
