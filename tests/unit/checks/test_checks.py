"""`agent-r1 check`: each thing that would spoil a run is found, and what is good is left alone."""

from __future__ import annotations

import asyncio
import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from agent_r1.chat import ChatRenderer
from agent_r1.checks import Report, Result
from agent_r1.checks.chat import call_findings, tag_findings, template_findings
from agent_r1.checks.rows import gold_result, prompt_findings, room_findings
from agent_r1.checks.trials import Trials, episodes_result
from agent_r1.cli import app
from agent_r1.envs import AgentEnv
from agent_r1.findings import Finding
from agent_r1.flows import AgentFlowBase
from agent_r1.rewards import RewardFunction
from agent_r1.tools import BaseTool, FunctionTool, ToolContext, ToolPolicy, ToolResponse, check_tool
from agent_r1.tools.check import example_arguments
from agent_r1.training import RunComponents, load_components
from agent_r1.types import (
    Action,
    Episode,
    Group,
    Observation,
    StepResult,
    StopReason,
    Task,
    ToolCall,
    Trajectory,
)
from tests.helpers import commands
from tests.helpers.tiny_runs import tiny_overrides, write_tasks

FORGETS = (
    "{% for m in messages %}{% if m.role != 'assistant' or loop.last %}{{ m.role }}: {{ m.content }}"
    "<|end|>{% endif %}{% endfor %}{% if add_generation_prompt %}assistant: {% endif %}"
)
"""A chat template that leaves out what the model said before."""

NEVER_ENDS = (
    "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)


def cost(item: str) -> int:
    """What an item costs.

    Args:
        item: Its name.
    """
    return len(item)


price = FunctionTool(cost)


def shop(*tools: BaseTool) -> Observation:
    return Observation(
        messages=({"role": "user", "content": "What is an egg?"},), tools=tuple(t.tool_schema for t in tools)
    )


def with_template(tokenizer: Any, template: str, tool_format: str = "hermes") -> ChatRenderer:
    other = copy.deepcopy(tokenizer)
    other.chat_template = template
    return ChatRenderer(other, tool_format)


def rules(findings: list[Finding]) -> list[str]:
    return [finding.rule for finding in findings]


# --- chat template and tool format -----------------------------------------------------------------------------------


def test_a_template_that_appends_is_left_alone(renderer: ChatRenderer) -> None:
    assert template_findings(renderer, shop()) == []
    assert template_findings(renderer, shop(price)) == []
    assert call_findings(renderer, shop(price)) == []


def test_a_template_that_rewrites_earlier_turns_is_found(tokenizer: Any) -> None:
    findings = template_findings(with_template(tokenizer, FORGETS), shop())
    assert "the template preserves prefixes" in rules(findings)


@pytest.mark.parametrize(
    ("template", "left_out"),
    [
        ("{{ '' }}", ["message 0 of the prompt, of the role 'system'", "message 1 of the prompt, of the role 'user'"]),
        ("{% for m in messages if m.role != 'system' %}{{ m.content }}{% endfor %}", ["of the role 'system'"]),
    ],
)
def test_a_template_that_leaves_messages_out_is_found(tokenizer: Any, template: str, left_out: list[str]) -> None:
    asked = Observation(messages=({"role": "system", "content": "Be brief."}, *(shop().messages or ())))
    findings = template_findings(with_template(tokenizer, template), asked)
    assert set(rules(findings)) == {"the template writes every message"}
    assert len(findings) == len(left_out)
    assert all(text in finding.observed for text, finding in zip(left_out, findings, strict=True))


def test_a_message_without_text_is_not_said_to_be_left_out(tokenizer: Any) -> None:
    """Such as a call among the examples of a prompt."""
    shown = [{"role": "assistant", "content": ""}, {"role": "tool", "content": "7"}]
    asked = Observation(messages=(*(shop().messages or ()), *shown))
    template = "{% for m in messages if m.role != 'assistant' %}{{ m.content }}{% endfor %}"
    assert "the template writes every message" not in rules(
        template_findings(with_template(tokenizer, template), asked)
    )


def test_a_template_that_never_ends_a_turn_is_found(tokenizer: Any) -> None:
    [finding] = template_findings(with_template(tokenizer, NEVER_ENDS), shop())
    assert "does not close the assistant's turn" in finding.observed


def test_a_tool_format_that_does_not_read_the_templates_calls_is_found_with_the_one_that_does(tokenizer: Any) -> None:
    renderer = ChatRenderer(copy.deepcopy(tokenizer), "mistral")
    [finding] = call_findings(renderer, shop(price))
    assert finding.rule == "the template's calls are read by the tool format"
    assert finding.fix == "Set model.tool_format=hermes"


def test_a_tool_the_format_cannot_write_is_found(tokenizer: Any) -> None:
    renderer = ChatRenderer(copy.deepcopy(tokenizer), "react")
    broken = {"type": "function", "function": {**price.tool_schema["function"], "name": "cost\nObservation: 7"}}
    observation = Observation(messages=({"role": "user", "content": "?"},), tools=(broken,))
    assert rules(call_findings(renderer, observation)) == ["every tool can be called"]


def test_a_tool_that_is_not_the_one_a_format_knows_is_found(tokenizer: Any) -> None:
    [finding] = call_findings(ChatRenderer(copy.deepcopy(tokenizer), "retool"), shop(price))
    assert "writes calls of code_interpreter" in finding.observed


def with_equal_tags(model: Any, tokenizer: Any) -> Any:
    """The model with one row of the head for the tags of calls and of results, as when none of them was trained."""
    head = model.get_output_embeddings().weight.data
    ids = tokenizer.convert_tokens_to_ids(["<tool_call>", "</tool_call>", "<tool_response>"])
    head[ids] = head[ids[0]].clone()
    return model


def test_tags_that_the_model_was_never_trained_to_write_are_found(
    renderer: ChatRenderer, tokenizer: Any, tiny_model: Any
) -> None:
    assert tag_findings(renderer, shop(price), tiny_model) == []
    with_equal_tags(tiny_model, tokenizer)
    [finding] = tag_findings(renderer, shop(price), tiny_model)
    opening, closing = tokenizer.convert_tokens_to_ids(["<tool_call>", "</tool_call>"])
    assert (finding.rule, finding.severity) == ("the model was trained to write its tags", "warning")
    assert f"'<tool_call>' (token {opening}) has the same row of the output head as 2 other" in finding.observed
    assert f"'</tool_call>' (token {closing})" in finding.observed
    assert "Adam moves a weight by about the learning rate per step" in finding.fix
    assert "set model.tool_format=react, whose tags are ordinary text" in finding.fix
    assert tag_findings(renderer, shop(), tiny_model) == []  # without tools it writes no call


def test_an_end_of_turn_that_was_never_trained_is_found_where_no_other_format_helps(
    renderer: ChatRenderer, tokenizer: Any, tiny_model: Any
) -> None:
    head = tiny_model.get_output_embeddings().weight.data
    head[tokenizer.pad_token_id] = head[tokenizer.eos_token_id]
    for observation in (shop(), shop(price)):
        [finding] = tag_findings(renderer, observation, tiny_model)
        assert f"(token {tokenizer.eos_token_id}) has the same row of the output head as 1 other" in finding.observed
        assert "model.tool_format" not in finding.fix


def test_tags_of_ordinary_text_need_no_row_of_their_own(tokenizer: Any, tiny_model: Any) -> None:
    with_equal_tags(tiny_model, tokenizer)
    assert tag_findings(ChatRenderer(copy.deepcopy(tokenizer), "react"), shop(price), tiny_model) == []


def test_a_turn_that_the_template_does_not_write_is_left_to_its_own_check(tokenizer: Any, tiny_model: Any) -> None:
    with_equal_tags(tiny_model, tokenizer)
    assert tag_findings(with_template(tokenizer, NEVER_ENDS), shop(price), tiny_model) == []
    assert tag_findings(with_template(tokenizer, FORGETS), Observation(token_ids=(1, 2)), tiny_model) == []


# --- rows ------------------------------------------------------------------------------------------------------------


def rows(*truths: Any) -> list[Task]:
    return [
        Task(task_id=str(number), prompt=(), reward_model={"ground_truth": truth})
        for number, truth in enumerate(truths)
    ]


def after_hashes(task: Task, episode: Episode) -> float:
    return float(episode.answer.split("####")[-1].strip() == str(task.ground_truth) and "####" in episode.answer)


def anything(task: Task, episode: Episode) -> float:
    return 1.0


def contained(task: Task, episode: Episode) -> float:
    """Too lenient: 42 is no answer to a question whose answer is 4."""
    return float(bool(episode.answer) and str(task.ground_truth) in episode.answer)


def in_units(task: Task, episode: Episode) -> float:
    """Answers such as `8 thousand` and `8000` are the same."""
    plain = {text: text.replace(" thousand", "000") for text in (str(task.ground_truth), episode.answer)}
    return float(bool(episode.answer) and len(set(plain.values())) == 1)


async def one_of(task: Task, episode: Episode) -> dict[str, float]:
    return {"score": 0.5, "success": float(episode.answer in task.ground_truth)}


@pytest.mark.parametrize(
    ("reward", "truths", "expected"),
    [
        (after_hashes, ("4", "5"), []),
        (one_of, (["four", "4"], ["five"]), []),
        (anything, ("4", "5"), ["wrong answers do not"]),
        (anything, ("4", "5", "6"), ["wrong answers do not"]),
        (contained, ("4", "42", "7"), ["wrong answers do not"]),
        (in_units, ("8 thousand", "8000", "3"), []),
        (in_units, ("8 thousand", "8000"), ["wrong answers do not"]),  # no third row says that it is the same answer
        (after_hashes, ("4", " 5"), ["gold answers score full marks"]),
    ],
)
def test_gold_answers_score_full_marks_and_wrong_ones_do_not(
    reward: RewardFunction, truths: tuple[Any, ...], expected: list[str]
) -> None:
    result = asyncio.run(gold_result(reward, rows(*truths)))
    assert rules(list(result.findings)) == expected


def test_a_reward_that_no_usual_form_satisfies_asks_for_the_recipes_own() -> None:
    def mumbled(task: Task, episode: Episode) -> float:
        return float(episode.answer == f"well, {task.ground_truth}, I think")

    [finding] = (asyncio.run(gold_result(mumbled, rows("4", "5")))).findings
    assert finding.severity == "warning"
    assert "Write gold_answer(task) beside the reward function" in finding.fix


def test_gold_answer_beside_the_reward_function_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "gold_answer", lambda task: f"#### {task.ground_truth}")
    result = asyncio.run(gold_result(after_hashes, rows("4", "5")))
    assert result.seen == "2 of 2 gold answers (gold_answer) score full marks, 0 wrong ones do"


def test_rows_without_a_ground_truth_are_skipped() -> None:
    assert (asyncio.run(gold_result(anything, [Task(task_id="a", prompt=())]))).skipped


@pytest.mark.parametrize(("context", "severity"), [(100, []), (60, ["warning"]), (55, ["warning"]), (49, ["problem"])])
def test_the_longest_row_needs_room_for_an_action_and_better_for_two(context: int, severity: list[str]) -> None:
    findings = room_findings([("short", 5), ("long", 30)], context=context, max_tokens=20, max_steps=4)
    assert [finding.severity for finding in findings] == severity


def test_one_action_is_enough_where_there_is_one_step() -> None:
    assert room_findings([("long", 30)], context=55, max_tokens=20, max_steps=1) == []


# --- tools -----------------------------------------------------------------------------------------------------------


class Hand(BaseTool):
    """A tool whose schema is written by hand."""

    name = "hand"
    policy = ToolPolicy(timeout=0.2)

    def __init__(self, **changes: Any) -> None:
        parameters = {
            "type": "object",
            "properties": {"n": {"type": "integer", "description": "How many."}},
            "required": ["n"],
        }
        function = {"name": "hand", "description": "Waves.", "parameters": parameters}
        self.tool_schema = {"type": "function", "function": {**function, **changes}}

    async def execute(self, args: Any, **kwargs: Any) -> tuple[ToolResponse, None, dict[str, Any]]:
        if args["n"] == 0:
            raise ValueError("nobody to wave at")
        return ToolResponse(text="~" * args["n"]), None, {}


def test_a_good_tool_has_no_findings_and_is_run_with_what_it_is_given() -> None:
    assert check_tool(Hand(), [{"n": 3}]) == []
    assert check_tool(price, [{"item": "egg"}]) == []


@pytest.mark.parametrize(
    ("changes", "rule"),
    [
        ({"name": "foot"}, "a tool answers to the name the model reads"),
        ({"description": " "}, "a tool is described"),
        ({"parameters": {"type": "string"}}, "parameters are an object"),
        ({"parameters": {"type": "object", "properties": {"n": {"type": "integer"}}}}, "parameters are described"),
        ({"parameters": {"type": "object", "properties": {}, "required": ["n"]}}, "what is required exists"),
        ({"description": {1, 2}}, "a schema is JSON"),
    ],
)
def test_what_the_model_reads_about_a_tool_is_checked(changes: dict[str, Any], rule: str) -> None:
    assert rule in rules(check_tool(Hand(**changes)))


def test_a_name_that_formats_cannot_write_is_found() -> None:
    odd = Hand(name="hand wave")
    odd.name = "hand wave"
    assert rules(check_tool(odd)) == ["a name is letters, digits, _ and -"]


@pytest.mark.parametrize(
    ("call", "rule"), [({"n": 0}, "a call that should work works"), ({"n": 30_000}, "answers fit")]
)
def test_calls_that_go_wrong_are_found(call: dict[str, Any], rule: str) -> None:
    assert rules(check_tool(Hand(), [call])) == [rule]


def test_a_tool_that_no_worker_process_could_make_is_found() -> None:
    [finding] = check_tool(Hand(), policies={"hand": {"process": True}})
    assert finding.rule == "its policy can be kept"


def test_example_arguments_follow_the_schema() -> None:
    schema = {
        "type": "object",
        "$defs": {"Colour": {"enum": ["red", "blue"]}},
        "properties": {
            "colour": {"$ref": "#/$defs/Colour"},
            "sizes": {"type": "array", "items": {"type": "number", "minimum": 3}, "minItems": 2},
            "where": {"anyOf": [{"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]}]},
            "spare": {"type": "string"},
        },
        "required": ["colour", "sizes", "where"],
    }
    assert example_arguments(schema) == {"colour": "red", "sizes": [3, 3], "where": {"x": 1}}


# --- trial episodes --------------------------------------------------------------------------------------------------


def variety(task: Any, episode: Any) -> float:
    """Differs between the members of a group whatever a random model says."""
    return float(len(set(episode.final_text)))


@pytest.fixture
def check(tmp_path: Path, model_folder: Path) -> Callable[..., dict[str, Result]]:
    """Check a tiny recipe; results by title."""

    def checked(*overrides: str, **parts: Any) -> dict[str, Result]:
        options = {"groups": 2, "members": 3, "quiet": True, "reward": variety} | parts
        report = commands.check(*tiny_overrides(tmp_path, model_folder), *overrides, **options)
        return {result.title: result for result in report.results}

    return checked


@pytest.mark.whole
def test_a_random_model_is_told_that_it_never_calls_a_tool_and_nothing_else_is_wrong(
    check: Callable[..., dict[str, Result]],
) -> None:
    results = check("rollout.max_tokens=24")
    assert rules(list(results["tool use"].findings)) == ["tools are called"]
    good = ("configuration and data", "tools", "model", "context", "chat template", "calls", "tags", "rewards")
    good += ("tokens in the loss", "engine and trainer", "environment")
    assert {title: results[title].status for title in good} == dict.fromkeys(good, "ok")


def test_a_configuration_that_cannot_be_used_is_the_only_thing_said(check: Callable[..., dict[str, Result]]) -> None:
    [result] = check("algorithm.loss.name=clipp").values()
    assert result.status == "problem"
    assert "clip" in result.findings[0].observed


def test_rewards_that_never_differ_are_found(check: Callable[..., dict[str, Result]]) -> None:
    [finding] = check(reward=anything)["rewards"].findings
    assert finding.observed == "every episode earned 1 in 2 groups"


class Retokenised(AgentFlowBase):
    """Says again, in other tokens, what was sampled."""

    async def run(self, task: Task) -> Episode:
        turn = await self.act(self.render(Observation(messages=task.prompt)))
        self.record(turn, reward=0.0, done=True)
        self.steps[-1] = _with_other_ids(self.steps[-1])
        return self.episode(StopReason.DONE)


def _with_other_ids(step: Any) -> Any:
    from dataclasses import replace

    changed = (*step.action_ids[:-1], (step.action_ids[-1] + 1) % 50)
    return replace(step, action_ids=changed)


def test_tokens_that_were_not_sampled_are_found(check: Callable[..., dict[str, Result]], tmp_path: Path) -> None:
    flow = f"{__name__}:Retokenised"
    tasks = write_tasks(tmp_path / "other.jsonl")
    lines = [json.loads(line) | {"agent_name": flow} for line in tasks.read_text().splitlines()]
    tasks.write_text("".join(json.dumps(line) + "\n" for line in lines))
    results = check(f"data.train=[{tasks}]", f"data.agent_name={flow}")
    assert rules(list(results["tokens in the loss"].findings)) == ["only sampled tokens carry loss"]
    assert results["engine and trainer"].skipped
    assert results["environment"].skipped


def test_an_engine_that_is_not_the_trainers_model_is_found(
    check: Callable[..., dict[str, Result]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def drifted(*args: Any) -> RunComponents:
        parts = load_components(*args)
        with torch.no_grad():
            for parameter in parts.policy.parameters():
                parameter *= 1.5
        return parts

    monkeypatch.setattr("agent_r1.checks.run.load_components", drifted)
    assert check()["engine and trainer"].status == "problem"


class Leaky(AgentEnv):
    """Remembers episodes that are over."""

    episodes = 0

    async def reset(self, task: Task) -> Observation:
        Leaky.episodes += 1
        return Observation(messages=(*task.prompt, {"role": "user", "content": f"episode {Leaky.episodes}"}))

    async def step(self, action: Action) -> StepResult:
        return StepResult(observation=None, done=True)


def test_an_environment_that_leaks_is_found(check: Callable[..., dict[str, Result]]) -> None:
    findings = check("~env.tools", f"env.name='{__name__}:Leaky'")["environment"].findings
    assert "episodes do not leak into each other" in rules(list(findings))


class Crashing(Leaky):
    async def step(self, action: Action) -> StepResult:
        raise ConnectionError("the world is away")


def test_an_environment_that_always_raises_ends_the_trials_with_its_traceback(
    check: Callable[..., dict[str, Result]],
) -> None:
    result = check("~env.tools", f"env.name='{__name__}:Crashing'", "rollout.retries=0")["trial episodes"]
    assert "the world is away" in result.findings[0].observed


def test_failures_and_cut_episodes_are_counted() -> None:
    def ended(reason: StopReason, **others: Any) -> Trajectory:
        return Trajectory(task_id="a", group_id=0, member=0, steps=(), outcome_reward=0.0, stop_reason=reason, **others)

    many = (ended(StopReason.CONTEXT_FULL), ended(StopReason.CONTEXT_FULL), ended(StopReason.ENV_ERROR, error="bang"))
    group = Group(task=Task(task_id="a", prompt=()), group_id=0, trajectories=many)
    result = episodes_result(Trials(groups=(group,), samples=frozenset()))
    assert rules(list(result.findings)) == ["episodes run to their end", "episodes fit the context"]
    assert "bang" in result.findings[0].observed


def test_without_trials_no_model_is_loaded(
    check: Callable[..., dict[str, Result]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agent_r1.checks.run.load_components", None)
    assert check(trials=False)["trial episodes"].skipped


# --- the command -----------------------------------------------------------------------------------------------------


def test_the_command_prints_every_check_writes_json_and_ends_with_1_when_something_is_wrong(
    tmp_path: Path, model_folder: Path
) -> None:
    overrides = tiny_overrides(tmp_path, model_folder)
    written = tmp_path / "findings.json"
    options = ["--groups", "2", "--members", "2", "--json", str(written)]
    result = CliRunner().invoke(app, ["check", *overrides, *options])
    assert result.exit_code == 1
    assert "problem  tool use" in result.output
    assert "-> Warm-start the model" in result.output
    checks = json.loads(written.read_text())["checks"]
    assert {entry["title"] for entry in checks} >= {"gold answers", "chat template", "tool use", "environment"}
    assert not (tmp_path / "tiny").exists()


def test_a_report_counts_problems_and_warnings() -> None:
    finding = Finding(rule="a", observed="b", fix="c", severity="warning")
    report = Report(results=(Result(title="x", findings=(finding,)), Result(title="y")))
    assert (report.problems, report.warnings) == ([], [finding])
    assert [result.status for result in report.results] == ["warning", "ok"]


def test_a_call_keeps_its_name_and_the_names_of_its_arguments(renderer: ChatRenderer) -> None:
    """What `calls` rests on."""
    call = ToolCall(name="cost", arguments={"item": "text"})
    assert renderer.format.parse(renderer.format.call_text([call], ""), truncated=False).tool_calls[0].name == "cost"


def test_a_context_is_given_to_tools_that_are_tried() -> None:
    seen: list[Any] = []

    def note(context: ToolContext) -> str:
        """Note it."""
        seen.append(context.task.task_id)
        return "noted"

    assert check_tool(FunctionTool(note), [{}]) == []
    assert seen == ["check_tool"]


QUESTION = {"role": "user", "content": "2+2?"}


@pytest.mark.parametrize(
    ("prompt", "rules"),
    [
        ((QUESTION,), []),
        ((QUESTION, {"role": "assistant", "content": "4"}), ["a prompt ends before the model's turn"]),
        (({"role": "user", "content": json.dumps([QUESTION])},), ["a prompt is messages, or plain text"]),
        (({"role": "user", "content": "[1, 2] + [3]?"},), []),
        (({"role": "user", "content": "[]"},), []),
    ],
)
def test_prompts_that_a_model_takes_for_something_else_are_named(prompt: Any, rules: list[str]) -> None:
    assert [finding.rule for finding in prompt_findings([Task(task_id="a", prompt=prompt)])] == rules
