"""What the Python host costs around the engine, in HotpotQA episodes of the recipe with its prompts and tokenizer.

    AGENT_R1_DATA=FOLDER python benchmarks/speed/host.py --model FOLDER                  # no GPU: an engine for free
    AGENT_R1_DATA=FOLDER python benchmarks/speed/host.py --model FOLDER --device cuda    # rollouts, raw rate, steps
    python benchmarks/speed/host.py --tiny    # seconds, on the recipe's sample: tries the script, not speed

Without a GPU, 512 episodes are played from a script: the searches of the recipe's demonstrations with the members' own
words, up to four per episode, answered at once from what the demonstrations found. The engine is the in-process one,
with its scheduler, prefix cache and bursts, on a model that costs nothing (`--engine none`: without it). What is left
is the host: milliseconds per episode of wall time and of the main thread's processor time, the best round of several,
divided into parts by a sampling profiler in rounds of its own. Rollouts are recorded as a run records them.
`--compare FOLDER` measures another checkout in alternation with this one and prints the ratios.

With `--device cuda`, the recipe's GRPO steps (64 groups of 8; settings by the size of the model as in docs/results.md)
run in a real training run, from the recipe's warm start: seconds per step, rollout and update. Then rollouts alone, one
of them sampled by the profiler, and the raw rate of the engine at the same lengths: the recorded prompts are sent
straight to `engine.generate`, each to sample as many tokens as were sampled in the rollout, without stop ids, tools,
templates or records. `at once` sends all of them together; `in turns` sends the next prompt of an episode when the last
was answered. `ratio` is the rollouts' rate by the raw one. With `--steps-only` only the training steps are measured,
also those of other engines: `--set engine.name=vllm engine.servers.urls=[http://127.0.0.1:8000]`.

The data is made by the recipe (extra: search) in RUNS/hotpotqa_data once. Without `bm25s` a folder that was made
elsewhere works too, with `--search stored`.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # the clone: agent_r1, benchmarks, recipes

from agent_r1 import runs as run_files
from agent_r1.chat import ChatRenderer, load_renderer
from agent_r1.config import Config
from agent_r1.envs import make_env
from agent_r1.rollout import Rollout, RolloutLimits
from agent_r1.tools import ToolRunner
from agent_r1.training import RunPlan, tool_policies
from agent_r1.types import Group, SamplingParams, Task, TokenIds
from benchmarks.common.host_profile import WAITING, Clock, HostProfile, as_json
from benchmarks.common.hotpotqa import (
    PlayingEngine,
    Row,
    Script,
    read_demonstrations,
    recipe_config,
    recipe_plan,
    sample_data,
    with_stored_search,
)
from benchmarks.common.hotpotqa_steps import (
    SETTINGS,
    WARMUP,
    StepFigures,
    device_name,
    measure_steps,
    settings_for,
)

CONTEXT_LENGTH = 2560
UPDATE_SECONDS = 0.5
"""Stands for an update, during which rollouts are encoded; not counted."""

CLONE = Path(__file__).resolve().parents[2]
RUN_IN = "import sys, runpy; sys.path.insert(0, {!r}); import agent_r1; runpy.run_path({!r}, run_name='__main__')"
"""Runs this file on the `agent_r1` of another checkout."""

Say = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class HostFigures:
    """What a round of scripted episodes cost; seconds of the best round."""

    episodes: int
    calls: float
    """Model calls per episode."""
    tokens: float
    """Sampled tokens per episode."""
    prompt_tokens: float
    """Tokens of the last prompt of an episode."""
    wall: float
    thread: float
    """Processor time of the main thread."""
    process: float
    """Processor time of all threads."""
    record_wall: float
    """Seconds that the loop is held up by recording a batch."""
    profile: HostProfile

    @property
    def as_dict(self) -> dict[str, Any]:
        """For a file."""
        fields = {name: getattr(self, name) for name in self.__dataclass_fields__ if name != "profile"}
        return fields | {"profile": as_json(self.profile), "parts_ms": dict(self.parts())}

    def parts(self) -> list[tuple[str, float]]:
        """Milliseconds per episode of the main thread, by part, the largest first."""
        per_episode = 1000 * self.thread / self.episodes
        shares = {part: self.profile.share(part) for part in self.profile.parts if part != WAITING}
        return sorted(((part, share * per_episode) for part, share in shares.items()), key=lambda entry: -entry[1])


# --- scripted episodes ----------------------------------------------------------------------------------------------


class HostBench:
    """Plays scripted episodes, batch after batch."""

    def __init__(self, plan: RunPlan, renderer: ChatRenderer, demonstrations: Sequence[Row], *, engine: str) -> None:
        self._config: Config = plan.config
        self._plan = plan
        self._renderer = renderer
        self._script = Script(renderer, demonstrations, ())
        self._tasks = [task for task in plan.train_tasks if self._script.knows(task.prompt)]
        self._engine_kind = engine

    async def run(self, *, rounds: int, profiled: int) -> HostFigures:
        """The best of `rounds`, and the profile of `profiled` further ones. The first round warms up."""
        with tempfile.TemporaryDirectory() as folder:
            return await self._run(Path(folder), rounds, profiled)

    async def _run(self, folder: Path, rounds: int, profiled: int) -> HostFigures:
        settings = self._config.rollout
        replies: dict[int, TokenIds] = {}
        profile = HostProfile()
        clocks, records = list[Clock](), list[float]()
        with contextlib.ExitStack() as stack:
            inner: Any = None
            if self._engine_kind == "local":
                from benchmarks.common.free_engine import free_engine

                inner = stack.enter_context(
                    free_engine(replies, max_requests=settings.concurrency, context_length=CONTEXT_LENGTH)
                )
            engine = PlayingEngine(inner, replies, context_length=CONTEXT_LENGTH)
            async with ToolRunner(tool_policies(self._config)) as tools:
                rollout = self._rollout(engine, tools)
                for number in range(1 + rounds + profiled):
                    tasks = self._batch(number, engine)
                    await engine.update_weights((), number)
                    engine.num_calls = engine.num_tokens = 0
                    gc.collect()
                    clock = Clock()
                    with contextlib.ExitStack() as watched:
                        watched.enter_context(clock.running())
                        if number > rounds:
                            watched.enter_context(profile.sampling())
                        groups = await rollout.run(
                            tasks, group_size=settings.group_size, sampling=self._sampling, seed=number
                        )
                    record = self._record(
                        folder / f"{number}.jsonl", groups, clock, profile if number > rounds else None
                    )
                    _check(groups)
                    if 0 < number <= rounds:
                        clocks.append(clock)
                        records.append(record)
            await engine.close()
        episodes = sum(len(group.trajectories) for group in groups)
        prompts = [len(t.steps[-1].prompt_ids) for group in groups for t in group]
        best = min(clocks, key=lambda clock: clock.thread)
        return HostFigures(
            episodes=episodes,
            calls=engine.num_calls / episodes,
            tokens=engine.num_tokens / episodes,
            prompt_tokens=statistics.mean(prompts),
            wall=min(clock.wall for clock in clocks),
            thread=best.thread,
            process=min(clock.process for clock in clocks),
            record_wall=min(records),
            profile=profile,
        )

    def _record(self, path: Path, groups: Sequence[Group], clock: Clock, profile: HostProfile | None) -> float:
        """Record a batch as a training step does, around an update. Returns the seconds that the step waits for it."""
        wall = clock.wall
        with contextlib.ExitStack() as watched:
            watched.enter_context(clock.running())
            if profile is not None:
                watched.enter_context(profile.sampling())
            pending = None
            if hasattr(run_files, "PendingTrajectories"):
                pending = run_files.PendingTrajectories(groups, policy_step=0, path=path)
            else:  # a checkout that has none
                run_files.write_trajectories(path, groups, policy_step=0)
        if pending is None:
            return clock.wall - wall
        time.sleep(UPDATE_SECONDS)
        with contextlib.ExitStack() as watched:
            watched.enter_context(clock.running())
            if profile is not None:
                watched.enter_context(profile.sampling())
            pending.publish()
        return clock.wall - wall

    @property
    def _sampling(self) -> SamplingParams:
        return SamplingParams(max_tokens=self._config.rollout.max_tokens)

    def _rollout(self, engine: PlayingEngine, tools: ToolRunner) -> Rollout:
        config = self._config
        limits = RolloutLimits(max_steps=config.rollout.max_steps, concurrency=config.rollout.concurrency)
        return Rollout(
            engine=engine,
            renderer=self._renderer,
            reward=self._plan.reward,
            make_env=partial(make_env, section=config.env, runner=tools),
            limits=limits,
            tool_runner=tools,
        )

    def _batch(self, number: int, engine: PlayingEngine) -> list[Task]:
        """The tasks of a batch, their scripts given to the engine."""
        settings = self._config.rollout
        first = number * settings.groups_per_step
        tasks = [self._tasks[(first + index) % len(self._tasks)] for index in range(settings.groups_per_step)]
        for task in tasks:
            observation = make_env(task, self._config.env).preview(task)
            first_prompt = self._renderer.render(observation).token_ids
            members = [self._script.replies(task.prompt, member) for member in range(settings.group_size)]
            engine.learn(first_prompt, members)
        return tasks


def _check(groups: Sequence[Group]) -> None:
    for group in groups:
        for trajectory in group:
            if trajectory.is_failure or not trajectory.steps:
                raise RuntimeError(f"an episode did not end as scripted: {trajectory.error}")


def show_host(figures: HostFigures, say: Say) -> None:
    """Print the table."""
    say(
        f"{figures.episodes} episodes, {figures.calls:.2f} calls, {figures.tokens:.0f} sampled tokens and a last "
        f"prompt of {figures.prompt_tokens:.0f} tokens per episode"
    )
    say("milliseconds per episode")
    for name in ("wall", "thread", "process", "record_wall"):
        say(f"  {name:28}{1000 * getattr(figures, name) / figures.episodes:8.3f}")
    say("main thread by part, milliseconds per episode (processor time of the best round, shares by sampling)")
    for part, milliseconds in figures.parts():
        say(f"  {part:28}{milliseconds:8.3f}")
    show_top(figures.profile, say)


def show_top(profile: HostProfile, say: Say) -> None:
    """Print the functions that the main thread is most often seen in."""
    say("functions with the most samples")
    for name, share in profile.top(25):
        say(f"  {100 * share:5.1f} %  {name}")


# --- steps on a real engine -----------------------------------------------------------------------------------------


def step_figures(given: argparse.Namespace, runs: Path, scratch: Path) -> StepFigures:
    """Training steps, rollouts and raw rates in this process."""
    sizes = settings_for(given.model)
    chosen = [
        f"run.folder='{runs}'",
        f"model.path='{Path(given.model).resolve()}'",
        "model.prepare=null",
        f"trainer.device={given.device}",
        f"trainer.steps={given.rounds + WARMUP}",
        *SETTINGS[sizes],
    ]
    warm = [] if given.as_it_is else [f"sft.folder='{runs / f'hotpotqa_warm_start_{Path(given.model).name}'}'"]
    config = recipe_config([*chosen, *warm, *(TINY if given.tiny else ()), *given.set])
    if given.as_it_is:
        config = replace(config, sft=replace(config.sft, folder=None))
    if (given.search or ("index" if find_spec("bm25s") else "stored")) == "stored":
        config = with_stored_search(config, read_demonstrations(config))
    config = replace(config, run=replace(config.run, folder=str(scratch), name="host"))
    return measure_steps(recipe_plan(config), rounds=given.rounds, with_rollouts=not given.steps_only)


def show_steps(figures: StepFigures, say: Say) -> None:
    """Print the table."""
    median = figures.median
    say(f"{device_name()}: a training step, seconds, medians of {len(figures.steps)}")
    for name in ("time/step", "time/rollout", "time/update", "time/weight_sync"):
        say(f"  {name:44}{median(name):10.2f}")
    if not figures.rollouts:
        return
    say(
        f"{figures.episodes} episodes, {median('calls'):.2f} calls and {median('tokens'):.0f} sampled tokens per "
        f"episode, {median('prompt_tokens'):.0f} prompt tokens per call; medians of {len(figures.rollouts)}"
    )
    say("rollouts alone, and the recorded prompts and lengths straight through the engine")
    for name, words in ROLLOUT_ROWS:
        say(f"  {words:44}{median(name):10,.2f}")
    say(f"main thread of a rollout of {figures.profiled_seconds:.2f} s by part, seconds")
    profile = figures.profile
    for part, count in profile.parts.most_common():
        say(f"  {part:44}{figures.profiled_seconds * count / profile.num_samples:10.3f}")
    show_top(profile, say)


ROLLOUT_ROWS = (
    ("rollout_seconds", "rollout, seconds"),
    ("main_thread_seconds", "  processor time of the main thread"),
    ("process_seconds", "  processor time of all threads"),
    ("rollout_rate", "rollout, tokens/s"),
    ("raw_rate", "raw, all prompts at once, tokens/s"),
    ("raw_rate_in_turns", "raw, each episode in turns, tokens/s"),
    ("ratio", "rollout / raw at once"),
    ("ratio_in_turns", "rollout / raw in turns"),
)


# --- the command line -----------------------------------------------------------------------------------------------


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The arguments."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="a Hugging Face folder; without a GPU only its tokenizer is read")
    parser.add_argument(
        "--device", choices=("cpu", "cuda"), default="cpu", help="cuda: the real engine and whole steps"
    )
    parser.add_argument("--part", choices=("host", "steps"), help="default: host, and with --device cuda steps")
    parser.add_argument("--as-it-is", action="store_true", help="steps: the model without the recipe's warm start")
    parser.add_argument(
        "--runs", type=Path, default=Path("runs"), help="the folder of the recipe's data and warm start"
    )
    parser.add_argument("--engine", choices=("local", "none"), default="local", help="without a GPU: see above")
    parser.add_argument("--rounds", type=int, default=5, help="rounds that are timed; on a GPU also steps")
    parser.add_argument("--profiled", type=int, default=3, help="rounds that are profiled, without a GPU")
    parser.add_argument("--compare", type=Path, help="another checkout to measure in alternation")
    parser.add_argument("--repeats", type=int, default=3, help="runs of each checkout, with --compare")
    parser.add_argument("--search", choices=("index", "stored"), help="on a GPU: default index, stored without bm25s")
    parser.add_argument("--set", nargs="*", default=[], metavar="KEY=VALUE", help="overrides of the recipe")
    parser.add_argument("--steps-only", action="store_true", help="on a GPU: training steps alone, of any engine")
    parser.add_argument("--tiny", action="store_true", help="the recipe's sample, few episodes, a tokenizer made of it")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    given = parser.parse_args(arguments)
    if given.model is None and not given.tiny:
        parser.error("give the model with --model FOLDER, or try the script with --tiny")
    given.part = given.part or ("steps" if given.device == "cuda" else "host")
    return given


TINY = ("rollout.groups_per_step=3", "rollout.group_size=4", "rollout.concurrency=12")


def host_figures(given: argparse.Namespace, runs: Path) -> HostFigures:
    """Scripted episodes in this process."""
    from agent_r1.models.tiny import train_tokenizer

    overrides = [f"run.folder='{runs}'", "model.path=none", "model.prepare=null", *(TINY if given.tiny else ())]
    config = recipe_config([*overrides, *given.set])
    demonstrations = read_demonstrations(config)
    renderer = (
        ChatRenderer(train_tokenizer([dict(row) for row in demonstrations]))
        if given.model is None
        else load_renderer(given.model)
    )
    if given.engine == "local" and hasattr(renderer, "encode_in_threads"):  # as with an engine on a GPU
        renderer.encode_in_threads()
    plan = recipe_plan(with_stored_search(config, demonstrations))
    bench = HostBench(plan, renderer, demonstrations, engine=given.engine)
    return asyncio.run(bench.run(rounds=given.rounds, profiled=given.profiled))


def show_comparison(given: argparse.Namespace, arguments: Sequence[str], say: Say) -> None:
    """Measure both checkouts in alternation, each time in a process of its own, and print the best of each."""
    passed = list(arguments)
    for place in reversed(range(len(passed))):
        if passed[place].partition("=")[0] == "--compare":
            del passed[place : place + (1 if "=" in passed[place] else 2)]
    trees = {"before": given.compare.resolve(), "after": CLONE}
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in trees}
    with tempfile.TemporaryDirectory() as folder:
        for number in range(given.repeats):
            for name, tree in trees.items():
                file = Path(folder) / f"{name}_{number}.json"
                code = RUN_IN.format(str(tree), __file__)
                command = [sys.executable, "-c", code, *passed, "--json", str(file)]
                subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
                runs[name].append(json.loads(file.read_text()))
    say(f"milliseconds per episode, the best of {given.repeats} runs of each: before ({given.compare}), after, ratio")
    for name in ("wall", "thread", "process", "record_wall"):
        before, after = (1000 * min(run[name] / run["episodes"] for run in runs[tree]) for tree in trees)
        say(f"  {name:28}{before:8.3f}{after:8.3f}{before / after:8.2f}")
    parts = {part: None for tree in trees for part in min(runs[tree], key=lambda run: run["thread"])["parts_ms"]}
    for part in parts:
        before, after = (min(run["parts_ms"].get(part, 0.0) for run in runs[tree]) for tree in trees)
        say(f"  {part:28}{before:8.3f}{after:8.3f}" + (f"{before / after:8.2f}" if after else ""))


def main(arguments: Sequence[str] | None = None, say: Say = print) -> None:
    """Measure and print."""
    given = parse(arguments)
    with contextlib.ExitStack() as stack:
        runs = given.runs.resolve()
        if given.tiny:
            scratch = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            runs = scratch / "runs"
            sample_data(scratch)
        if given.compare is not None:
            show_comparison(given, list(sys.argv[1:] if arguments is None else arguments), say)
            return
        figures: HostFigures | StepFigures
        if given.part == "steps":
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            figures = step_figures(given, runs, folder)
            show_steps(figures, say)
        else:
            figures = host_figures(given, runs)
            show_host(figures, say)
        if given.json is not None:
            given.json.write_text(json.dumps(figures.as_dict, indent=2) + "\n")


if __name__ == "__main__":
    main()
