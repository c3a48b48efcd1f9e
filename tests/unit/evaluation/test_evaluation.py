"""Evaluation: panels, confidence intervals, parts of the reward, the ReAct baseline, and what `agent-r1 eval` says."""

from __future__ import annotations

import asyncio
import copy
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from agent_r1.chat import ChatRenderer
from agent_r1.cli import app
from agent_r1.engines import ScriptedEngine
from agent_r1.envs import ToolEnv
from agent_r1.errors import UnknownNameError
from agent_r1.evaluation.evaluate import Evaluation, evaluate, sample_eval_tasks
from agent_r1.evaluation.metrics import interval, rollout_metrics
from agent_r1.rollout import Rollout, RolloutLimits
from agent_r1.runs import read_trajectories, write_trajectories
from agent_r1.tools import FunctionTool
from agent_r1.types import Completion, Episode, Group, Observation, SamplingParams, Task
from tests.helpers import commands
from tests.helpers.tiny_runs import tiny_overrides
from tests.unit.chat.test_chat import QUESTION, TOOL, decode, said
from tests.unit.chat.test_formats import parse
from tests.unit.rollout.test_rollout import evaluated

# --- intervals -----------------------------------------------------------------------------------------------------


def test_a_share_has_wilsons_interval() -> None:
    """8 of 10, z = 1.96: (0.8 + 0.192 -+ 1.96 sqrt(0.8 * 0.2 / 10 + 0.0096)) / 1.384."""
    assert interval([1.0] * 8 + [0.0] * 2) == pytest.approx((0.4902, 0.9433), abs=1e-4)


def test_a_share_of_all_or_none_is_not_certain() -> None:
    """n / (n + z^2): 10 / 13.84."""
    assert interval([1.0] * 10) == pytest.approx((0.7225, 1.0), abs=1e-4)
    assert interval([0.0] * 10) == pytest.approx((0.0, 0.2775), abs=1e-4)


def test_other_means_have_the_normal_interval_over_tasks() -> None:
    """The sample deviation of 1/4, 1/2, 1/2, 3/4 is 0.2041; 1.96 * 0.2041 / 2 = 0.2000."""
    assert interval([0.25, 0.5, 0.5, 0.75]) == pytest.approx((0.3, 0.7), abs=1e-4)


def test_an_interval_of_shares_stays_between_nothing_and_all_and_others_need_not() -> None:
    assert interval([0.0, 0.5, 1.0]) == (0.0, 1.0)
    low, high = interval([0.0, 5.0, 10.0]) or (0.0, 0.0)
    assert low < 0.0 < 10.0 < high


def test_one_task_that_is_half_solved_has_no_interval() -> None:
    assert interval([0.5]) is None
    assert interval([]) is None


def test_an_evaluation_has_an_interval_for_every_score(renderer: ChatRenderer) -> None:
    evaluation = evaluated(
        renderer,
        greedy={"m1": "right", "m2": "wrong"},
        sampled={"m1": ["right", "wrong"], "m2": ["wrong", "wrong"]},
    )
    wanted = {"greedy", "reward", "mean", "best@2", "maj@2"}
    assert {name.rsplit("/", 1)[1] for name in evaluation.intervals} == wanted
    assert evaluation.intervals["eval/math/greedy"] == interval([1.0, 0.0])
    assert evaluation.intervals["eval/math/mean"] == interval([0.5, 0.0])
    assert evaluation.intervals["eval/math/best@2"] == interval([1.0, 0.0])


def test_unsolved_episodes_are_shown_before_solved_ones(renderer: ChatRenderer) -> None:
    evaluation = evaluated(renderer, greedy={"m1": "right", "m2": "wrong", "m3": "right", "m4": "wrong"}, sampled={})
    assert [trajectory.task_id for trajectory in evaluation.worst_first()] == ["m2", "m4", "m1", "m3"]
    assert evaluation.as_json()["solved"] == [1.0, 0.0, 1.0, 0.0]


# --- panels --------------------------------------------------------------------------------------------------------


def rows(**counts: int) -> list[Task]:
    return [
        Task(task_id=f"{source}{number}", prompt=(QUESTION,), data_source=source)
        for source, count in counts.items()
        for number in range(count)
    ]


def sources_of(panel: list[Task]) -> dict[str, int]:
    return {source: sum(task.data_source == source for task in panel) for source in ("math", "shop", "web")}


@pytest.mark.parametrize(
    ("max_tasks", "wanted"),
    [(30, (20, 10, 0)), (20, (10, 10, 0)), (3, (2, 1, 0)), (99, (89, 10, 0))],
)
def test_a_panel_has_as_many_rows_of_each_source_as_there_are(max_tasks: int, wanted: tuple[int, int, int]) -> None:
    assert tuple(sources_of(sample_eval_tasks(rows(math=90, shop=10), max_tasks)).values()) == wanted


def test_the_same_number_gives_the_same_rows_in_the_order_of_the_file() -> None:
    tasks = rows(math=40, shop=40, web=40)
    panel = sample_eval_tasks(tasks, 12)
    assert panel == sample_eval_tasks(tasks, 12)
    assert panel == sorted(panel, key=tasks.index)
    assert sources_of(panel) == {"math": 4, "shop": 4, "web": 4}


def test_a_smaller_panel_is_part_of_a_larger_one() -> None:
    tasks = rows(math=40, shop=9)
    small, large = ({task.task_id for task in sample_eval_tasks(tasks, max_tasks)} for max_tasks in (10, 25))
    assert small < large


@pytest.mark.parametrize("max_tasks", [None, 5, 6])
def test_without_a_limit_that_binds_all_rows_are_used(max_tasks: int | None) -> None:
    tasks = rows(math=3, shop=2)
    assert sample_eval_tasks(tasks, max_tasks) == tasks


# --- parts of the reward ---------------------------------------------------------------------------------------------


def scored(renderer: ChatRenderer, answers: dict[str, str], reward: Any) -> Evaluation:
    """Tasks whose model gives these answers; a task's source is its name without the number."""
    tasks = [
        Task(
            task_id=name,
            prompt=({"role": "user", "content": f"Task {name}."},),
            agent_name="single_step",
            data_source=name.rstrip("0123456789"),
        )
        for name in answers
    ]

    def say(prompt: Any, sampling: SamplingParams) -> tuple[int, ...]:
        question = decode(renderer, prompt)
        [answer] = [text for name, text in answers.items() if f"Task {name}." in question]
        return (*renderer.encode(answer), renderer.stop_ids[0])

    rollout = Rollout(
        engine=ScriptedEngine(say),
        renderer=renderer,
        reward=reward,
        make_env=lambda task: ToolEnv(),
        limits=RolloutLimits(retries=0),
    )
    return asyncio.run(evaluate(rollout, tasks, sampling=SamplingParams(), num_samples=0, seed=0))


def test_every_part_of_the_reward_is_a_mean_of_its_source(renderer: ChatRenderer) -> None:
    def reward(task: Task, episode: Episode) -> dict[str, float]:
        if episode.final_text == "broken":
            raise ValueError("cannot score this")
        parts = {"score": 0.25, "em": float(episode.final_text == "right"), "f1": 0.5, "success": 1.0}
        return {**parts, "bonus": 3.0} if task.task_id == "wiki1" else parts

    found = scored(renderer, {"wiki1": "right", "wiki2": "wrong", "wiki3": "broken", "web1": "right"}, reward)
    wanted = {
        "eval/wiki/em": 1 / 3,  # a failed rollout counts 0
        "eval/wiki/f1": 1 / 3,
        "eval/wiki/bonus": 3 / 2,  # of the one task that has it and the one that failed
        "eval/wiki/reward": 0.5 / 3,
        "eval/wiki/greedy": 2 / 3,
        "eval/web/em": 1.0,
        "eval/all/em": 2 / 4,
        "eval/all/rows": 4.0,
        "eval/wiki/rows": 3.0,
        "eval/wiki/failed": 1.0,
    }
    assert {name: found.metrics[name] for name in wanted} == pytest.approx(wanted)
    assert "eval/wiki/success" not in found.metrics
    assert "eval/web/failed" not in found.metrics
    assert found.intervals["eval/all/em"] == interval([1.0, 0.0, 0.0, 1.0])


def test_a_part_with_the_name_of_another_figure_keeps_both(renderer: ChatRenderer) -> None:
    found = scored(renderer, {"a1": "right"}, lambda task, episode: {"score": 1.0, "steps": 9.0}).metrics
    assert (found["eval/a/steps"], found["eval/a/reward_steps"]) == (1.0, 9.0)


def test_a_source_called_all_keeps_its_own_figures(renderer: ChatRenderer) -> None:
    answers = {"all1": "right", "all2": "right", "b1": "wrong"}
    found = scored(renderer, answers, lambda task, episode: float(episode.answer == "right")).metrics
    greedy = {name.split("/")[1]: value for name, value in found.items() if name.endswith("/greedy")}
    assert greedy == {"source_all": 1.0, "b": 0.0, "all": pytest.approx(2 / 3)}


def test_what_a_run_logs_itself_is_not_replaced_by_what_a_task_reports(renderer: ChatRenderer) -> None:
    reward = {"score": 0.5, "process": 44.0, "kl_penalty": 7.0, "format": 1.0}
    [[member]] = scored(renderer, {"a1": "right"}, lambda task, episode: reward).greedy
    member = replace(member, metrics={"reward/outcome": 77.0, "env/depth": 3.0})
    found = rollout_metrics([Group(task=Task(task_id="a", prompt=()), group_id=0, trajectories=(member,))])
    assert (found["reward/outcome"], found["own/reward/outcome"], found["env/depth"]) == (0.5, 77.0, 3.0)
    assert (found["reward/process"], found["reward/reward_process"]) == (0.0, 44.0)
    assert (found["reward/reward_kl_penalty"], found["reward/format"]) == (7.0, 1.0)


def test_response_tokens_are_what_the_model_said(renderer: ChatRenderer) -> None:
    found = scored(renderer, {"a1": "right"}, lambda task, episode: 1.0).metrics
    assert found["eval/a/response_tokens"] == len(renderer.encode("right")) + 1


# --- the ReAct baseline ----------------------------------------------------------------------------------------------


def test_react_is_shown_in_words_even_to_a_template_that_shows_tools(tokenizer: Any) -> None:
    renderer = ChatRenderer(copy.deepcopy(tokenizer), "react")
    prompt = renderer.render(Observation(messages=(QUESTION,), tools=(TOOL,)))
    assert decode(renderer, prompt.token_ids) == (
        f"<|system|>{renderer.format.schemas_text([TOOL])}<|end|><|user|>What do 3 apple cost?<|end|><|assistant|>"
    )


def evaluated_in_react(renderer: ChatRenderer, *turns: str, right: str) -> Evaluation:
    """One task with a tool `price`, which says 7, and a model that says these turns."""
    replies = iter(turns)

    async def price(item: str) -> str:
        """The price of one item."""
        return "7"

    rollout = Rollout(
        engine=ScriptedEngine(lambda prompt, sampling: (*renderer.encode(next(replies)), renderer.stop_ids[0])),
        renderer=renderer,
        reward=lambda task, episode: float(episode.final_text == right),
        make_env=lambda task: ToolEnv(tools=[FunctionTool(price)]),
        limits=RolloutLimits(retries=0),
    )
    task = Task(task_id="one", prompt=(QUESTION,))
    return asyncio.run(evaluate(rollout, [task], sampling=SamplingParams(), num_samples=0, seed=0))


def test_a_reward_reads_the_final_answer_of_a_react_episode(tokenizer: Any, tmp_path: Path) -> None:
    renderer = ChatRenderer(copy.deepcopy(tokenizer), "react")
    call, answer = 'Thought: Hm.\nAction: price\nAction Input: {"item": "apple"}', "Thought: 3 * 7.\nFinal Answer: 21"
    found = evaluated_in_react(renderer, call, answer, right="21")
    assert found.metrics["eval/all/greedy"] == 1.0
    assert found.metrics["eval/all/tool_calls"] == 1.0
    write_trajectories(tmp_path / "t.jsonl", found.greedy, policy_step=0)
    [read] = read_trajectories(tmp_path / "t.jsonl")
    assert [step.action.final_answer for step in read.steps] == [None, "21"]
    assert decode(renderer, read.steps[1].prompt_ids).endswith("<|user|>Observation: 7<|end|><|assistant|>")


def test_a_model_that_writes_its_own_observation_is_stopped_there(tokenizer: Any) -> None:
    renderer = ChatRenderer(copy.deepcopy(tokenizer), "react")
    action = 'Thought: Hm.\nAction: price\nAction Input: {"item": "apple"}\n'
    found = evaluated_in_react(renderer, f"{action}Observation: 999\nFinal Answer: 999", "Final Answer: 7", right="7")
    [[first, second]] = [trajectory.steps for group in found.greedy for trajectory in group.trajectories]
    assert decode(renderer, first.action_ids) == action
    assert len(first.action_ids) == len(first.rollout_logprobs) == len(first.policy_versions)
    assert second.prompt_ids[: len(first.prompt_ids + first.action_ids)] == first.prompt_ids + first.action_ids
    assert decode(renderer, second.prompt_ids).endswith(f"{action}<|end|><|user|>Observation: 7<|end|><|assistant|>")
    assert (found.metrics["eval/all/greedy"], found.metrics["eval/all/tool_calls"]) == (1.0, 1.0)


def test_a_token_that_ends_a_call_and_its_line_stays(tokenizer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    pieces = ["Action: price\n", "Action Input: ", '{"item": 1', "}\n", '{"result"', ": 7}", "\nFinal Answer: 7"]

    def decode(ids: list[int], **options: Any) -> str:
        return "".join(pieces[i - 1000] if i >= 1000 else str(tokenizer.decode([i], **options)) for i in ids)

    own = copy.deepcopy(tokenizer)
    monkeypatch.setattr(own, "decode", decode)
    renderer = ChatRenderer(own, "react")
    sampled = Completion(
        token_ids=tuple(range(1000, 1007)),
        logprobs=tuple(-0.1 * number for number in range(7)),
        finish_reason="length",
        policy_versions=(3,) * 7,
    )
    assert renderer.own_turn(sampled) == Completion(
        token_ids=sampled.token_ids[:4], logprobs=sampled.logprobs[:4], finish_reason="stop", policy_versions=(3,) * 4
    )
    whole = replace(sampled, token_ids=sampled.token_ids[:4], logprobs=sampled.logprobs[:4], policy_versions=(3,) * 4)
    assert renderer.own_turn(whole) is whole


def test_only_what_is_marked_is_a_final_answer(renderer: ChatRenderer) -> None:
    assert parse("react", "Thought: I know.\nFinal Answer: 21").final_answer == "21"
    assert parse("react", "21").final_answer is None
    assert parse("react", "Action: price\nFinal Answer: 21").final_answer is None
    assert said(renderer, "21").final_answer is None


@pytest.mark.whole
def test_a_baseline_runs_without_warm_start_in_react(tmp_path: Path, model_folder: Path) -> None:
    seen: list[str] = []

    def note(task: Task, episode: Episode) -> float:
        seen.append(str((episode.steps[0].observation.messages, episode.steps[0].prompt_ids)))
        return 0.0

    run = tiny_overrides(tmp_path, model_folder, "eval.max_tasks=1", "rollout.context_length=500")
    commands.evaluate(*run, f"sft.folder={tmp_path / 'warm'}", baseline="react", quiet=True, reward=note)
    commands.evaluate(*run, quiet=True, reward=note)
    in_react, in_hermes = seen
    assert in_react != in_hermes
    assert not (tmp_path / "warm").exists()


def test_an_unknown_baseline_names_what_there_is(tmp_path: Path, model_folder: Path) -> None:
    with pytest.raises(UnknownNameError, match=r"unknown baseline 'reakt'\. Did you mean 'react'"):
        commands.evaluate(*tiny_overrides(tmp_path, model_folder), baseline="reakt", quiet=True)


# --- the command -----------------------------------------------------------------------------------------------------


def test_the_command_shows_every_source_and_writes_the_figures(tmp_path: Path, model_folder: Path) -> None:
    sizes = ["eval.max_tasks=3", "eval.samples=2", "eval.split=train"]
    recipe, *overrides = tiny_overrides(tmp_path, model_folder, *sizes)
    file = tmp_path / "figures" / "eval.json"
    episodes = tmp_path / "episodes.jsonl"
    asked = ["--json", str(file), "--show", "2", "--trajectories", str(episodes)]
    result = CliRunner().invoke(app, ["eval", recipe, *overrides, *asked])
    assert result.exit_code == 0, result.output
    written = json.loads(file.read_text())
    assert written["recipe"] == recipe
    assert (written["baseline"], written["split"]) == (None, "train")
    assert len(written["tasks"]) == 3
    assert [trajectory.task_id for trajectory in read_trajectories(episodes)] == written["tasks"]
    assert sum(written["solved"]) / 3 == pytest.approx(written["metrics"]["eval/all/greedy"])
    assert result.output.count("agent: ") >= 2
    assert written["metrics"]["eval/all/rows"] == 3.0
    low, high = written["intervals"]["eval/all/greedy"]
    assert 0.0 <= low <= written["metrics"]["eval/all/greedy"] <= high <= 1.0
    lines = [[cell.strip() for cell in line.split("│")[1:-1]] for line in result.output.splitlines() if "│" in line]
    lines = [cells for cells in lines if len(cells) == 4]  # the others are the episodes'
    figures = [figure for _, figure, _, _ in lines]
    assert figures[:4] == ["rows", "greedy", "mean", "best@2"]
    assert ["all", "rows", "3", ""] in lines


def test_metrics_of_an_environment_never_hide_those_that_the_run_logs_later(renderer: ChatRenderer) -> None:
    [[member]] = scored(renderer, {"a1": "right"}, lambda task, episode: 0.5).greedy
    names = ("step", "loss/policy", "eval/all/greedy", "time/update", "env/depth")
    member = replace(member, metrics=dict.fromkeys(names, 3.0))
    groups = [Group(task=Task(task_id="a", prompt=()), group_id=0, trajectories=(member,))]
    found = rollout_metrics(groups, {"time/update": 0.5})
    assert {name for name in found if found[name] == 3.0} == {
        *("own/step", "own/loss/policy", "own/eval/all/greedy", "own/time/update", "env/depth")
    }
