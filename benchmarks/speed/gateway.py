"""What a model call costs through the gateway, against the same call in a flow.

    python benchmarks/speed/gateway.py --episodes 64 --repeats 3

A scripted engine answers at once, so what is left is the library: rendering, parsing, recording, and for the gateway
HTTP on both sides. `flow`: `AgentEnvLoop` with the same two tools. `http`: an agent on `http.client`, the cheapest
client there is. `openai`: the agent of examples/existing_agents on the official client (extra: `pip install openai`).
Three calls per episode; milliseconds of processor time and of wall time per call, the best of several runs, and the
ratio of the processor times to that of the flow.
"""

from __future__ import annotations

import argparse
import asyncio
import http.client
import json
import random
import sys
import time
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # the clone: agent_r1, benchmarks, recipes

from agent_r1.chat import ChatRenderer
from agent_r1.config import AgentConfig
from agent_r1.engines import ScriptedEngine
from agent_r1.envs import ToolEnv
from agent_r1.gateway import Gateway
from agent_r1.models.tiny import train_tokenizer
from agent_r1.rollout import Rollout, RolloutLimits
from agent_r1.tools import ToolRunner
from agent_r1.types import SamplingParams, Task, TokenIds
from recipes.quickstart.shop import demonstration, draw_basket, shop_tools

CALLS = 3
REPLIES = (
    '<tool_call>{"name": "price", "arguments": {"item": "tea"}}</tool_call>',
    '<tool_call>{"name": "calculate", "arguments": {"expression": "3*4"}}</tool_call>',
    "12",
)
RESULTS = ("4", "12")
OPENAI_AGENT = Path(__file__).resolve().parents[2] / "examples" / "existing_agents" / "openai_agent.py"


def call_with_http(task: Mapping[str, Any], base_url: str, api_key: str) -> str:
    """The cheapest agent: one connection, no client library."""
    address = urlsplit(base_url)
    connection = http.client.HTTPConnection(str(address.hostname), address.port)
    tools = [dict(tool.tool_schema) for tool in shop_tools()]
    messages: list[Any] = list(task["prompt"])
    message: dict[str, Any] = {}
    for turn in range(CALLS):
        body = json.dumps({"model": "policy", "messages": messages, "tools": tools})
        connection.request("POST", f"{address.path}/chat/completions", body, {"Content-Type": "application/json"})
        message = json.loads(connection.getresponse().read())["choices"][0]["message"]
        if turn < len(RESULTS):
            answer = {"role": "tool", "tool_call_id": message["tool_calls"][0]["id"], "content": RESULTS[turn]}
            messages += [message, answer]
    connection.close()
    return str(message["content"])


def scripted_engine(renderer: ChatRenderer) -> ScriptedEngine:
    """The reply depends on how many results the prompt has."""
    replies = [[*renderer.encode_rendered(reply), renderer.stop_ids[0]] for reply in REPLIES]
    [mark] = renderer.encode_rendered("<tool_response>")

    def reply(prompt: TokenIds, sampling: SamplingParams) -> list[int]:
        return replies[prompt.count(mark)]

    return ScriptedEngine(reply)


async def measure(renderer: ChatRenderer, flow: str, settings: AgentConfig, episodes: int) -> tuple[float, float]:
    """Milliseconds of processor time and of wall time per call."""
    task = Task(
        task_id="t",
        prompt=({"role": "user", "content": "What do 3 tea cost?"},),
        agent_name=flow,
        env_kwargs={"prices": {"tea": 4}, "wanted": ["tea"]},
    )
    runner = ToolRunner()

    def make_env(task: Task) -> ToolEnv:
        env = ToolEnv(["price", "calculate"])
        env.set_tool_runner(runner)
        return env

    async with runner, Gateway(settings) as gateway:
        rollout = Rollout(
            engine=scripted_engine(renderer),
            renderer=renderer,
            reward=lambda task, episode: float(episode.answer == "12"),
            make_env=make_env,
            limits=RolloutLimits(max_steps=CALLS),
            services={"gateway": gateway},
        )
        await rollout.run([task], group_size=2, sampling=SamplingParams(), seed=0)  # starts the server, imports
        wall, processor = time.perf_counter(), time.process_time()
        [group] = await rollout.run([task], group_size=episodes, sampling=SamplingParams(), seed=1)
        processor, wall = time.process_time() - processor, time.perf_counter() - wall
    if any(trajectory.outcome_reward != 1.0 or len(trajectory.steps) != CALLS for trajectory in group):
        raise RuntimeError(f"an episode did not end as scripted: {group.trajectories[0].error}")
    return 1000 * processor / (episodes * CALLS), 1000 * wall / (episodes * CALLS)


def cases() -> dict[str, tuple[str, AgentConfig]]:
    """What is measured: a flow, and the agent it runs."""
    found = {
        "flow": ("env_loop", AgentConfig()),
        "http": ("gateway", AgentConfig(function="benchmarks.speed.gateway:call_with_http")),
    }
    if find_spec("openai") is not None:
        found["openai"] = ("gateway", AgentConfig(function=f"{OPENAI_AGENT}:solve"))
    return found


def main(arguments: list[str] | None = None, say: Callable[[str], None] = print) -> None:
    """Measure and print one row per case."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--episodes", type=int, default=64, help="episodes at once")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", type=Path, help="also write the rows to this file")
    given = parser.parse_args(arguments)
    rng = random.Random(0)
    renderer = ChatRenderer(train_tokenizer([demonstration(draw_basket(rng), rng) for _ in range(300)]))
    rows: list[dict[str, Any]] = []
    for name, (flow, settings) in cases().items():
        runs = [asyncio.run(measure(renderer, flow, settings, given.episodes)) for _ in range(given.repeats)]
        processor, wall = min(run[0] for run in runs), min(run[1] for run in runs)
        ratio = processor / rows[0]["cpu_ms_per_call"] if rows else 1.0
        rows.append({"name": name, "cpu_ms_per_call": processor, "wall_ms_per_call": wall, "ratio_to_flow": ratio})
        say(f"{name:8} {processor:7.2f} ms of processor per call {wall:7.2f} ms of wall time {ratio:6.1f} x the flow")
    if given.json is not None:
        given.json.write_text(json.dumps({"episodes": given.episodes, "rows": rows}, indent=2) + "\n")


if __name__ == "__main__":
    main()
