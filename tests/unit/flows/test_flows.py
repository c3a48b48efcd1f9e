"""The built-in flows and flows of a user's own, run with a scripted engine."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from agent_r1.chat import ChatRenderer
from agent_r1.engines import ScriptedEngine
from agent_r1.envs import AgentEnv, ToolEnv
from agent_r1.errors import ConfigError, EpisodeError
from agent_r1.flows import AgentEnvLoop, AgentFlowBase, FlowContext, SingleStepFlow, try_flow
from agent_r1.tools import calculate
from agent_r1.types import (
    Action,
    Episode,
    Observation,
    SamplingParams,
    StepResult,
    StopReason,
    Task,
)
from tests.helpers.shop import LOOK_UP, TASK, context_of, reply, run_loop, script


def call_text(name: str, **arguments: Any) -> str:
    return f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"


class ListEnv(AgentEnv):
    """Plays a list of step results; an exception in it is raised."""

    def __init__(self, results: Sequence[Any], on_reset: Exception | None = None) -> None:
        self.results = list(results)
        self.on_reset = on_reset
        self.seen: list[Action] = []
        self.num_closed = 0

    async def reset(self, task: Task) -> Observation:
        if self.on_reset is not None:
            raise self.on_reset
        return Observation(messages=task.prompt)

    async def step(self, action: Action) -> Any:
        self.seen.append(action)
        result = self.results.pop(0)
        if isinstance(result, Exception):
            raise result
        return result

    async def close(self) -> None:
        self.num_closed += 1


def going_on(text: str = "and then?", reward: float = 0.0) -> StepResult:
    return StepResult(observation=Observation(messages=({"role": "user", "content": text},)), reward=reward)


DONE = StepResult(observation=None, done=True)


class RewritingEnv(AgentEnv):
    """Rewrites and extends the messages and the notes that it has returned; the state is in the first message."""

    def __init__(self, states: Sequence[str], form: type) -> None:
        self.states, self.form = list(states), form
        self.info: dict[str, Any] = {}
        self.tools: list[dict[str, Any]] = [{"type": "function", "function": {"name": "go", "parameters": {}}}]

    def shown(self) -> Observation:
        self.messages[0]["content"] = self.tools[0]["function"]["description"] = self.states.pop(0)
        return Observation(messages=self.form(self.messages), tools=self.form(self.tools))

    async def reset(self, task: Task) -> Observation:
        self.messages: list[dict[str, Any]] = [{"role": "system"}, {"role": "user", "content": "Go."}]
        return self.shown()

    async def step(self, action: Action) -> Any:
        self.messages += [dict(action.as_message()), {"role": "tool", "content": f"{len(self.messages)}"}]
        self.info["turn"] = [len(self.messages)]
        return self.shown(), 0.0, False, self.info


# AgentEnvLoop


@pytest.mark.parametrize("form", [tuple, list])
def test_messages_that_the_environment_rewrites_in_place_are_seen_and_recorded_as_they_were(
    renderer: ChatRenderer, form: type
) -> None:
    states = [*["health 9"] * 12, "health 8", "health 7", "health 6"]
    env, engine = RewritingEnv(states, form), script(renderer, *["look"] * 14)
    episode = run_loop(renderer, engine, env, max_steps=14)
    prompts = [
        str(renderer.tokenizer.decode(list(step.prompt_ids), skip_special_tokens=False)) for step in episode.steps
    ]
    assert all(state in prompt for state, prompt in zip(states, prompts, strict=False))
    observations = [step.observation for step in episode.steps]
    assert [one.messages and one.messages[0]["content"] for one in observations] == states[:14]
    assert [one.tools[0]["function"]["description"] for one in observations] == states[:14]
    assert [len(one.messages or ()) for one in observations] == list(range(2, 30, 2))
    assert [step.info["turn"] for step in episode.steps] == [[number] for number in range(4, 32, 2)]


def test_loop_records_every_step_with_its_exact_tokens(renderer: ChatRenderer) -> None:
    texts = (call_text("look_up", item="apple"), call_text("calculate", expression="3*7"), "21")
    engine = script(renderer, *texts)
    episode = run_loop(renderer, engine, ToolEnv([LOOK_UP, calculate]))
    assert episode.stop_reason is StopReason.DONE
    assert episode.next_prompt_ids is None
    assert [step.action_ids for step in episode.steps] == [reply(renderer, text) for text in texts]
    assert [step.prompt_ids for step in episode.steps] == [prompt for prompt, _ in engine.requests]
    assert [step.rollout_logprobs for step in episode.steps] == [(-0.5,) * len(reply(renderer, t)) for t in texts]
    assert [step.reward for step in episode.steps] == [0.25, 0.0, 0.0]
    assert [step.done for step in episode.steps] == [False, False, True]
    assert (episode.final_text, episode.num_tool_calls) == ("21", 2)
    assert episode.metrics["tool/look_up/calls"] == 1.0


def test_prompts_of_the_loop_are_bridged(renderer: ChatRenderer) -> None:
    texts = (call_text("look_up", item="apple"), call_text("look_up", item="pear"), "21")
    first, second, third = run_loop(renderer, script(renderer, *texts), ToolEnv([LOOK_UP])).steps
    answer = "<|user|><tool_response>{}</tool_response><|end|><|assistant|>"
    assert second.prompt_ids == first.prompt_ids + first.action_ids + reply(renderer, answer.format(7), closed=False)
    assert third.prompt_ids == second.prompt_ids + second.action_ids + reply(renderer, answer.format(5), closed=False)


def test_observation_of_a_step_is_what_the_environment_showed(renderer: ChatRenderer) -> None:
    env = ListEnv([going_on("rewritten"), DONE])
    first, second = run_loop(renderer, script(renderer, "a", "b"), env).steps
    assert first.observation.messages == TASK.prompt
    assert second.observation.messages == ({"role": "user", "content": "rewritten"},)
    assert second.prompt_ids == renderer.render(second.observation).token_ids


def test_malformed_call_of_the_model_is_a_step_and_the_episode_goes_on(renderer: ChatRenderer) -> None:
    engine = script(renderer, '<tool_call>{"name": look_up}</tool_call>', "21")
    episode = run_loop(renderer, engine, ToolEnv([LOOK_UP]))
    assert episode.stop_reason is StopReason.DONE
    assert episode.steps[0].action.parse_error is not None
    assert "not valid JSON" in renderer.tokenizer.decode(list(episode.steps[1].prompt_ids), skip_special_tokens=False)


def test_text_that_is_not_unicode_in_a_call_does_not_break_the_episode(renderer: ChatRenderer) -> None:
    engine = script(renderer, r'<tool_call>{"name": "\ud800", "arguments": {}}</tool_call>', "21")
    episode = run_loop(renderer, engine, ToolEnv([LOOK_UP]))
    assert [len(episode.steps), episode.stop_reason] == [2, StopReason.DONE]


def test_action_cut_by_its_token_limit_is_told_and_the_episode_goes_on(renderer: ChatRenderer) -> None:
    long = reply(renderer, call_text("look_up", item="apple"))
    engine = ScriptedEngine([long, reply(renderer, "21")])
    episode = run_loop(renderer, engine, ToolEnv([LOOK_UP]), max_tokens=4)
    first, second = episode.steps
    assert first.action_ids == long[:4]
    assert first.action.parse_error == "Tool call 1 is malformed: it was cut by the length limit."
    assert episode.metrics["episode/cut_actions"] == 1
    reach = len(first.prompt_ids) + 4
    assert second.prompt_ids[:reach] == first.prompt_ids + long[:4]
    assert second.prompt_ids[reach] == renderer.stop_ids[0]
    assert episode.stop_reason is StopReason.DONE


def test_limit_on_steps_truncates_and_keeps_the_next_prompt(renderer: ChatRenderer) -> None:
    texts = (call_text("look_up", item="apple"), call_text("look_up", item="pear"), "never asked")
    engine = script(renderer, *texts)
    episode = run_loop(renderer, engine, ToolEnv([LOOK_UP]), max_steps=2)
    assert episode.stop_reason is StopReason.MAX_STEPS
    assert len(engine.requests) == len(episode.steps) == 2
    last = episode.steps[-1]
    answer = "<|user|><tool_response>5</tool_response><|end|><|assistant|>"
    assert episode.next_prompt_ids == last.prompt_ids + last.action_ids + reply(renderer, answer, closed=False)
    assert not last.done


def test_episode_that_ends_on_its_last_allowed_step_is_done_and_not_truncated(renderer: ChatRenderer) -> None:
    episode = run_loop(renderer, script(renderer, "21"), ToolEnv([LOOK_UP]), max_steps=1)
    assert (episode.stop_reason, episode.next_prompt_ids) == (StopReason.DONE, None)


def test_next_prompt_that_does_not_fit_is_a_full_context(renderer: ChatRenderer) -> None:
    first = renderer.render(Observation(messages=TASK.prompt)).token_ids
    said = reply(renderer, "a")
    engine = script(renderer, "a", "never asked", context_length=len(first) + len(said) + 3)
    episode = run_loop(renderer, engine, ListEnv([going_on("x" * 200)]))
    assert episode.stop_reason is StopReason.CONTEXT_FULL
    assert len(episode.steps) == 1
    assert episode.next_prompt_ids == first + said


def test_action_cut_by_the_end_of_the_context_is_a_full_context(renderer: ChatRenderer) -> None:
    first = renderer.render(Observation(messages=TASK.prompt)).token_ids
    engine = script(renderer, "What do 3 apple cost?", context_length=len(first) + 2)
    env = ListEnv([going_on()])
    episode = run_loop(renderer, engine, env)
    assert engine.requests[0][1].max_tokens == 2
    assert episode.stop_reason is StopReason.CONTEXT_FULL
    assert episode.steps[0].action_ids == reply(renderer, "What do 3 apple cost?")[:2]
    assert episode.next_prompt_ids == first + episode.steps[0].action_ids


def test_next_prompt_of_a_truncation_never_exceeds_the_context(renderer: ChatRenderer) -> None:
    first = renderer.render(Observation(messages=TASK.prompt)).token_ids
    said = reply(renderer, "a")
    engine = script(renderer, "a", context_length=len(first) + len(said) + 3)
    episode = run_loop(renderer, engine, ListEnv([going_on("x" * 200)]), max_tokens=2, max_steps=1)
    assert episode.stop_reason is StopReason.MAX_STEPS
    assert episode.next_prompt_ids == first + said


def test_first_prompt_that_does_not_fit_is_refused(renderer: ChatRenderer) -> None:
    with pytest.raises(ConfigError, match="the first prompt of task 'apples' has"):
        run_loop(renderer, script(renderer, context_length=5), ListEnv([]))


def test_sampling_stops_at_the_end_of_turn_and_each_step_has_its_own_seed(renderer: ChatRenderer) -> None:
    def seeds(seed: int) -> list[int]:
        engine = script(renderer, "a", "b")
        run_loop(renderer, engine, ListEnv([going_on(), DONE]), seed=seed)
        assert all(sampling.stop == renderer.stop_ids for _, sampling in engine.requests)
        return [sampling.seed for _, sampling in engine.requests]

    assert len(set(seeds(1) + seeds(2))) == 4
    assert seeds(1) == seeds(1)


def test_plain_tuple_from_step_is_accepted(renderer: ChatRenderer) -> None:
    episode = run_loop(renderer, script(renderer, "a"), ListEnv([(None, 2, True, {"metrics": {"wins": 1}})]))
    assert (episode.steps[0].reward, episode.steps[0].done) == (2.0, True)
    assert episode.metrics == {"wins": 1.0, "episode/cut_actions": 0.0}


class LostEngine(ScriptedEngine):
    """Breaks when asked."""

    async def generate(self, prompt_ids: Sequence[int], sampling: SamplingParams) -> Any:
        raise ConnectionError("the server is gone")


def failure_of(renderer: ChatRenderer, engine: Any, env: AgentEnv) -> EpisodeError:
    with pytest.raises(EpisodeError) as caught:
        run_loop(renderer, engine, env)
    return caught.value


@pytest.mark.parametrize(
    ("result", "on_reset", "where", "detail"),
    [
        (DONE, OSError("no such room"), "reset of ListEnv", "no such room"),
        (KeyError("door"), None, "step of ListEnv", "door"),
        (TimeoutError("slow door"), None, "step of ListEnv", "slow door"),
        (StepResult(observation=None, reward=math.nan, done=True), None, "step of ListEnv", "must be finite"),
        (None, None, "step of ListEnv", "must return a StepResult"),
    ],
)
def test_broken_environment_is_an_env_error_with_its_traceback(
    renderer: ChatRenderer, result: Any, on_reset: Exception | None, where: str, detail: str
) -> None:
    env = ListEnv([result], on_reset)
    failure = failure_of(renderer, script(renderer, "a"), env)
    assert (failure.reason, failure.where) == (StopReason.ENV_ERROR, where)
    assert "Traceback" in failure.details
    assert detail in failure.details
    assert env.num_closed == 1


def test_broken_engine_is_an_engine_error_and_the_environment_is_closed(renderer: ChatRenderer) -> None:
    env = ListEnv([])
    failure = failure_of(renderer, LostEngine([]), env)
    assert failure.reason is StopReason.ENGINE_ERROR
    assert "the server is gone" in failure.details
    assert (env.num_closed, env.seen) == (1, [])


def test_environment_that_cannot_be_made_is_an_env_error(renderer: ChatRenderer) -> None:
    def make_env(task: Task) -> AgentEnv:
        raise OSError("no room")

    context = FlowContext(engine=script(renderer), renderer=renderer, sampling=SamplingParams(), make_env=make_env)
    with pytest.raises(EpisodeError) as caught:
        asyncio.run(AgentEnvLoop(context).run(TASK))
    assert caught.value.reason is StopReason.ENV_ERROR


def test_environment_is_closed_once_after_a_good_episode(renderer: ChatRenderer) -> None:
    env = ListEnv([DONE])
    run_loop(renderer, script(renderer, "a"), env)
    assert env.num_closed == 1


def test_environment_is_closed_when_the_episode_is_cancelled(renderer: ChatRenderer) -> None:
    class Stuck(ListEnv):
        async def step(self, action: Action) -> Any:
            await asyncio.Event().wait()

    env = Stuck([])

    async def run() -> None:
        async with asyncio.timeout(0.05):
            await AgentEnvLoop(context_of(renderer, script(renderer, "a"), env)).run(TASK)

    with pytest.raises(TimeoutError):
        asyncio.run(run())
    assert env.num_closed == 1


def test_loop_without_an_environment_is_refused(renderer: ChatRenderer) -> None:
    with pytest.raises(ConfigError, match=r"set env\.name"):
        asyncio.run(AgentEnvLoop(context_of(renderer, script(renderer))).run(TASK))


# SingleStepFlow and flows of one's own


def ask_once(renderer: ChatRenderer, engine: ScriptedEngine, **more: Any) -> Episode:
    return asyncio.run(SingleStepFlow(context_of(renderer, engine, **more)).run(TASK))


def test_single_step_asks_once(renderer: ChatRenderer) -> None:
    episode = ask_once(renderer, script(renderer, "21"))
    [step] = episode.steps
    assert (episode.stop_reason, episode.next_prompt_ids) == (StopReason.DONE, None)
    assert step.prompt_ids == renderer.render(Observation(messages=TASK.prompt)).token_ids
    assert (step.action_ids, step.done, step.reward) == (reply(renderer, "21"), True, 0.0)


def test_single_step_cut_by_its_token_limit_is_truncated(renderer: ChatRenderer) -> None:
    episode = ask_once(renderer, script(renderer, "What do 3 apple cost?"), max_tokens=3)
    [step] = episode.steps
    assert episode.stop_reason is StopReason.MAX_TOKENS
    assert step.action_ids == reply(renderer, "What do 3 apple cost?")[:3]
    assert not step.done
    assert episode.next_prompt_ids == step.prompt_ids + step.action_ids


def test_single_step_cut_by_the_context_is_a_full_context(renderer: ChatRenderer) -> None:
    room = len(renderer.render(Observation(messages=TASK.prompt)).token_ids) + 2
    episode = ask_once(renderer, script(renderer, "What do 3 apple cost?", context_length=room))
    assert episode.stop_reason is StopReason.CONTEXT_FULL
    assert len(episode.next_prompt_ids or ()) == room


def test_flow_of_ones_own_is_found_by_name_and_decides_what_is_recorded(renderer: ChatRenderer) -> None:
    @AgentFlowBase.register("tests_draft_and_answer")
    class DraftAndAnswer(AgentFlowBase):
        async def run(self, task: Task) -> Episode:
            draft = await self.act(self.render(Observation(messages=task.prompt)))
            shown = (*task.prompt, draft.action.as_message(), {"role": "user", "content": "Shorter."})
            answer = await self.act(self.render(Observation(messages=shown), after=draft))
            self.record(answer, reward=0.5, done=True, info={"metrics": {"drafts": 1}})
            return self.episode(StopReason.DONE)

    engine = script(renderer, "a long draft", "21")
    flow = AgentFlowBase.registry.get("tests_draft_and_answer")(context_of(renderer, engine))
    assert isinstance(flow, DraftAndAnswer)
    episode = asyncio.run(flow.run(TASK))
    [step] = episode.steps
    assert (step.action.text, step.reward, episode.metrics["drafts"]) == ("21", 0.5, 1.0)
    draft = reply(renderer, "a long draft")
    first = engine.requests[0][0]
    assert step.prompt_ids[: len(first) + len(draft)] == first + draft


def test_a_reward_that_a_flow_records_is_a_finite_number(renderer: ChatRenderer) -> None:
    async def record(reward: Any) -> Any:
        flow = SingleStepFlow(context_of(renderer, script(renderer, "21")))
        turn = await flow.act(flow.render(Observation(messages=TASK.prompt)))
        return flow.record(turn, reward=reward, done=True).reward

    assert type(asyncio.run(record(np.float32(0.5)))) is float
    for reward in (math.nan, math.inf, 1e300):
        with pytest.raises(ValueError, match=r"the reward that record was given is .*; rewards must be finite"):
            asyncio.run(record(reward))


def test_both_built_in_flows_have_names() -> None:
    assert AgentFlowBase.registry.get("env_loop") is AgentEnvLoop
    assert AgentFlowBase.registry.get("single_step") is SingleStepFlow
    assert AgentEnv.registry.get("tool") is ToolEnv


# What a flow, or an environment in the loop, may get wrong


class _Plain(ListEnv):
    """An environment whose methods are not async."""

    def reset(self, task: Task) -> Observation:  # type: ignore[override]
        return Observation(messages=task.prompt)


class _ResetsAsGymnasium(ListEnv):
    async def reset(self, task: Task) -> Any:
        return Observation(messages=task.prompt), {}


@pytest.mark.parametrize(
    ("env", "message"),
    [
        (_Plain, "_Plain.reset is not async, but returned a Observation; write `async def`"),
        (_ResetsAsGymnasium, "AgentEnv.reset must return an Observation, and nothing beside it; got a tuple of 2"),
    ],
)
def test_a_wrong_reset_is_named(renderer: ChatRenderer, env: type[ListEnv], message: str) -> None:
    with pytest.raises(EpisodeError, match=message):
        run_loop(renderer, script(renderer, "4"), env([DONE]))


class _Wrong(AgentFlowBase):
    """A flow with one mistake, by name."""

    mistake = ""

    async def run(self, task: Task) -> Episode:
        observation: Any = task.prompt if "messages for render" in self.mistake else Observation(messages=task.prompt)
        prompt: Any = self.render(observation) if "async" not in self.mistake else await self.render_async(observation)
        if self.mistake == "an observation for act":
            prompt = Observation(messages=task.prompt)
        turn: Any = await self.act(prompt)
        self.record(
            "no turn" if self.mistake == "text for record" else turn,
            reward={"no reward": None, "a reward as text": "1", "an infinite reward": math.inf}.get(self.mistake, 0.5),  # type: ignore[arg-type]
            done=True,
            info={"metrics": {"a": "b"}} if self.mistake == "a metric as text" else {},
        )
        if self.mistake == "a turn twice":
            self.record(turn, reward=0.0, done=True)
        endings: dict[str, Any] = {"a reason as text": "done", "a failure": StopReason.ENV_ERROR}
        answer: Any = 9 if self.mistake == "a number as the answer" else None
        return self.episode(endings.get(self.mistake, StopReason.DONE), answer=answer)


@pytest.mark.parametrize(
    ("mistake", "message"),
    [
        (
            "messages for render",
            r"render needs an Observation, got tuple; write self.render\(Observation\(messages=task.prompt\)\)",
        ),
        ("messages for render, async", "render_async needs an Observation, got tuple"),
        ("an observation for act", r"act needs a prompt, got Observation; write await self.act\(self.render"),
        ("text for record", "record needs the turn that act returned, got str"),
        ("a turn twice", "this turn is recorded already; record each turn once"),
        ("no reward", r"the reward that record was given is None \(NoneType\); rewards must be numbers"),
        ("a reward as text", r"the reward that record was given is '1' \(str\); rewards must be numbers"),
        ("an infinite reward", "the reward that record was given is inf; rewards must be finite"),
        ("a metric as text", r"record was given info\['metrics'\]\['a'\]='b' \(str\); metrics are numbers"),
        ("a reason as text", "_Wrong.run ended its episode with 'done'; end it with StopReason.DONE"),
        ("a number as the answer", r"_Wrong.run gave the answer 9 \(int\); an answer is text.*answer=str"),
        ("a failure", "_Wrong.run ended its episode with <StopReason.ENV_ERROR: 'env_error'>; .* raise an exception"),
    ],
)
def test_a_mistake_in_a_flow_is_named_with_what_to_write(mistake: str, message: str) -> None:
    flow = type("_Wrong", (_Wrong,), {"mistake": mistake})
    with pytest.raises(ConfigError, match=message):
        try_flow(flow, TASK, ["4"])


def test_a_recorded_reward_is_a_float_of_python() -> None:
    class Numpy(AgentFlowBase):
        async def run(self, task: Task) -> Episode:
            turn = await self.act(self.render(Observation(messages=task.prompt)))
            self.record(turn, reward=np.float32(0.5), done=np.True_)  # type: ignore[arg-type]
            return self.episode(StopReason.DONE)

    [step] = try_flow(Numpy, TASK, ["4"]).steps
    assert (step.reward, type(step.reward), step.done, type(step.done)) == (0.5, float, True, bool)


def test_a_prompt_that_fills_the_context_is_named_with_both_lengths(renderer: ChatRenderer) -> None:
    class Long(AgentFlowBase):
        async def run(self, task: Task) -> Episode:
            await self.act(self.render(Observation(token_ids=(1,) * 70)))
            raise AssertionError

    flow = Long(context_of(renderer, script(renderer, "4", context_length=64)))
    with pytest.raises(
        ConfigError, match="the prompt has 70 tokens and leaves no room for an action in a context of 64"
    ):
        asyncio.run(flow.run(TASK))


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"flow": "single_step"}, "flow must be a subclass of AgentFlowBase, found 'single_step'"),
        ({"task": "hi"}, "task must be a Task, found 'hi'"),
        ({"replies": "4"}, "replies must be a list of texts, found '4'"),
        ({"replies": [4]}, r"replies must be a list of texts, found \[4\]"),
    ],
)
def test_try_flow_names_an_argument_of_the_wrong_type(parts: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        try_flow(**{"flow": SingleStepFlow, "task": TASK, "replies": ["4"], **parts})
