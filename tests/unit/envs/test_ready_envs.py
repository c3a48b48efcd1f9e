"""`env=KIND:NAME`: what each kind makes of a name, and what is refused."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from agent_r1 import AgentEnv, Observation
from agent_r1.api import resolve
from agent_r1.config import load_config
from agent_r1.data import load_tasks
from agent_r1.envs import make_env
from agent_r1.envs.ready import env_kinds, ready_env
from agent_r1.envs.ready.answer_guards import guard_of
from agent_r1.envs.ready.gym import gym_outcome
from agent_r1.envs.ready.reasoning_gym import reasoning_gym_score
from agent_r1.errors import AgentR1Error, ConfigError, DataError, MissingExtraError
from agent_r1.registry import recipe_folder
from agent_r1.rewards import score_episode
from agent_r1.training import prepare_plan
from agent_r1.types import Action, Episode, Step, StopReason, Task


def episode_of(*turns: tuple[str, float], stop: StopReason = StopReason.DONE) -> Episode:
    """An episode with these texts and rewards."""
    steps = tuple(
        Step(
            observation=Observation(text="?"),
            prompt_ids=(),
            action=Action(text=text, content=text),
            action_ids=(),
            rollout_logprobs=(),
            reward=reward,
            done=True,
            policy_versions=(),
        )
        for text, reward in turns
    )
    return Episode(steps=steps, stop_reason=stop)


def plan_of(folder: Path, *overrides: str) -> Any:
    return prepare_plan(resolve(overrides=[f"run.folder={folder}", "model.path=unused", *overrides]))


# gym


def test_the_tasks_of_a_gymnasium_environment_are_seeds_that_are_the_same_each_time() -> None:
    section = {"name": "gym:FrozenLake-v1", "tasks": 5, "eval_tasks": 3, "seed": 7}
    ready = ready_env(section)
    assert (len(ready.train), len(ready.eval)) == (5, 3)
    assert ready == ready_env(section)
    seeds = [task.env_kwargs["seed"] for task in (*ready.train, *ready.eval)]
    assert len(set(seeds)) == 8
    assert not set(seeds) & {task.env_kwargs["seed"] for task in ready_env({**section, "seed": 8}).train}


def test_known_environments_have_named_actions_a_picture_and_a_threshold() -> None:
    ready = ready_env({"name": "gym:FrozenLake-v1", "tasks": 1, "arguments": {"map_name": "8x8"}})
    assert ready.env == {
        "name": "gym",
        "make": "FrozenLake-v1",
        "arguments": {"map_name": "8x8", "render_mode": "ansi"},
        "actions": ["left", "down", "right", "up"],
        "context": "append",
    }
    task = ready.train[0]
    assert "one of: left, down, right, up." in task.prompt[0]["content"]
    assert task.reward_model == {"style": "gym", "success": 0.7}
    other = ready_env({"name": "gym:Blackjack-v1", "tasks": 1, "instructions": "Win.", "actions": ["stand", "card"]})
    assert other.env["actions"] == ["stand", "card"]
    assert "arguments" not in other.env
    assert other.train[0].prompt[0]["content"] == "Win."


def test_environments_of_code_are_trained_in_one_line_too() -> None:
    ready = ready_env({"name": "gym:tests.helpers.tiny_gym:Line", "observe": "tests.helpers.tiny_gym:describe"})
    assert "a whole number from 5 to 6" in ready.train[0].prompt[0]["content"]

    async def first() -> Any:
        env = make_env(ready.train[0], ready.env)
        try:
            return await env.reset(ready.train[0])
        finally:
            await env.close()

    assert asyncio.run(first()).messages[-1]["content"] == "You stand at 0."


@pytest.mark.parametrize(
    ("threshold", "rewards", "success"),
    [(0.7, [0.0, 1.0], 1.0), (0.7, [0.0, 0.5], 0.0), (None, [0.5, -0.4], 1.0), (None, [0.0], 0.0), (0.0, [0.0], 1.0)],
)
def test_success_is_a_return_at_the_threshold_or_any_gain(
    threshold: float | None, rewards: list[float], success: float
) -> None:
    task = Task(task_id="t", prompt=(), reward_model={} if threshold is None else {"success": threshold})
    score = asyncio.run(score_episode(gym_outcome, task, episode_of(*[("x", reward) for reward in rewards])))
    assert (score.value, score.parts["success"]) == (0.0, success)
    assert score.parts["return"] == pytest.approx(sum(rewards))


# reasoning-gym


@pytest.mark.whole
def test_questions_are_reproducible_and_none_is_in_both_splits() -> None:
    section = {"name": "reasoning_gym:leg_counting", "tasks": 30, "eval_tasks": 10}
    narrow = {**section, "arguments": {"min_animals": 1, "max_animals": 1, "max_instances": 3}}
    for chosen in (section, narrow):
        ready = ready_env(chosen)
        train, held_out = ([task.prompt[-1]["content"] for task in tasks] for tasks in (ready.train, ready.eval))
        assert ready == ready_env(chosen)
        assert (len(train), len(held_out)) == (30, 10)
        assert not set(train) & set(held_out)
        assert len(set(held_out)) == 10
    assert ready_env({**section, "seed": 1}).train[0].prompt != ready_env(section).train[0].prompt


def test_answers_are_scored_by_the_data_sets_own_scorer() -> None:
    task = ready_env({"name": "reasoning_gym:countdown", "tasks": 1, "eval_tasks": 0}).train[0]
    gold = task.ground_truth

    def score(text: str) -> Any:
        return asyncio.run(score_episode(reasoning_gym_score, task, episode_of((text, 0.0))))

    assert (score(f"<think>?</think> so <answer> {gold} </answer>").value, score(gold).value) == (1.0, 1.0)
    assert 0 < score("<answer>1 + 1</answer>").value < 1  # countdown's own scorer gives a little for a wrong sum
    assert score("<answer>1 + 1</answer>").answer == "1 + 1"
    assert (score("").value, score("<answer></answer>").value) == (0.0, 0.0)


@pytest.mark.parametrize("answer", ["__import__('os').mkdir('{place}')", "exec(chr(49))", "9**9**9**9", "1" * 2000])
def test_a_scorer_that_evaluates_never_sees_code_of_the_model(
    answer: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import reasoning_gym.games.countdown as countdown

    monkeypatch.setattr(countdown, "parse_expr", lambda text: pytest.fail(f"evaluated {text}"))
    task = ready_env({"name": "reasoning_gym:countdown", "tasks": 1, "eval_tasks": 0}).train[0]
    text = answer.format(place=tmp_path / "made")
    assert asyncio.run(score_episode(reasoning_gym_score, task, episode_of((text, 0.0)))).value == 0.0
    assert not (tmp_path / "made").exists()


def test_a_scorer_that_evaluates_and_is_not_known_is_refused() -> None:
    class Sneaky:
        def score_answer(self, answer: str, entry: dict[str, Any]) -> float:
            return float(eval(answer))

    with pytest.raises(ConfigError, match="evaluates answers as Python"):
        guard_of("sneaky", Sneaky)


def test_a_row_with_another_question_or_none_of_the_keys_is_not_scored() -> None:
    task = ready_env({"name": "reasoning_gym:leg_counting", "tasks": 2, "eval_tasks": 0}).train[0]
    changed = {**task.reward_model, "index": 1}
    for row, reason in (
        (Task(task_id="a", prompt=task.prompt, reward_model=changed), "another question"),
        (Task(task_id="b", prompt=task.prompt), "no row of reasoning-gym"),
    ):
        with pytest.raises(DataError, match=reason):
            reasoning_gym_score(row, episode_of(("4", 0.0)))


def test_with_tools_the_model_may_call_them_before_it_answers() -> None:
    ready = ready_env({"name": "reasoning_gym:leg_counting", "tasks": 1, "tools": ["calculate"]})
    assert ready.env == {"name": "tool", "tools": ["calculate"]}
    assert ready.train[0].agent_name == "env_loop"


# mcp


def test_an_mcp_server_is_the_whole_set_of_tools() -> None:
    ready = ready_env({"name": "mcp:python 'my server.py' --fast", "timeout": 5, "tools": ["add"]})
    assert ready.env == {"name": "tool", "tools": ["mcp:server/add"], "context": "append"}
    assert ready.tools["mcp"]["server"]["command"] == ["python", "my server.py", "--fast"]
    assert ready.tools["mcp"]["server"]["timeout"] == 5
    served = ready_env({"name": "mcp:http://localhost:8000/mcp", "headers": {"key": "k"}})
    assert served.tools["mcp"]["server"]["url"] == "http://localhost:8000/mcp"
    assert served.tools["mcp"]["server"]["headers"] == {"key": "k"}


def test_an_mcp_server_needs_the_users_data_and_reward(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"(?s)brings no tasks: give data\.train.*brings no reward: give"):
        plan_of(tmp_path, "env=mcp:python server.py")


# all kinds


@pytest.mark.parametrize(
    ("section", "problem"),
    [
        ({"name": "gym:FrozenLak-v1"}, "Did you mean: `FrozenLake`"),
        ({"name": "gym:"}, "needs a name after the colon, such as gym:FrozenLake-v1"),
        ({"name": "gym:FrozenLake-v1", "arguments": {"size": 3}}, "unexpected keyword argument 'size'"),
        ({"name": "gym:FrozenLake-v1", "task": 3}, "Did you mean 'tasks'"),
        ({"name": "gym:FrozenLake-v1", "tasks": 0}, "env.tasks=0 must be at least 1"),
        ({"name": "gym:FrozenLake-v1", "actions": ["a"]}, "env.actions has 1 names"),
        ({"name": "gym:no_such_module:Maze-v0"}, "no_such_module"),
        ({"name": "gym:tests.helpers.tiny_gym:Lin"}, "Did you mean 'Line'"),
        ({"name": "reasoning_gym:leg_countin"}, "Did you mean 'leg_counting'"),
        ({"name": "reasoning_gym:leg_counting", "arguments": {"min_animal": 1}}, "env.arguments: min_animals"),
        ({"name": "reasoning_gym:leg_counting", "arguments": {"min_animals": 9, "max_animals": 2}}, "max_animals must"),
        (
            {"name": "reasoning_gym:leg_counting", "arguments": {"seed": 2}},
            "is set by env.tasks",
        ),
        ({"name": "reasoning_gym:composite"}, "name one data set"),
        ({"name": "reasoning_gym:list_functions"}, "another question for the same seed"),
        ({"name": "mcp:python 'unclosed"}, "No closing quotation"),
        ({"name": "mcp:x", "timeout": -1}, "timeout"),
    ],
)
def test_what_cannot_be_used_is_refused_with_its_name(section: dict[str, Any], problem: str) -> None:
    with pytest.raises(AgentR1Error, match=problem.replace("(", r"\(")):
        ready_env(section)


@pytest.mark.parametrize(
    ("module", "name", "extra"),
    [
        ("gymnasium", "gym:FrozenLake-v1", "gym"),
        ("reasoning_gym", "reasoning_gym:leg_counting", "reasoning-gym"),
        ("verifiers", "verifiers:my_environment", "verifiers"),
        ("mcp", "mcp:python server.py", "mcp"),
    ],
)
def test_a_missing_extra_is_one_error_with_the_pip_command(
    module: str, name: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingExtraError, match=rf"pip install 'agent-r1\[{extra}\]'"):
        ready_env({"name": name})


def test_a_kind_of_your_own_is_one_file_and_a_name(tmp_path: Path) -> None:
    """The file is named in `imports`; the keyword arguments of its function are keys of `env`."""
    (tmp_path / "coins.py").write_text(
        """
from agent_r1 import Action, AgentEnv, Observation, StepResult, Task
from agent_r1.constraints import Count
from agent_r1.envs import ReadyEnv, env_kinds

class Coin(AgentEnv):
    def __init__(self, side):
        self.side = side

    async def reset(self, task):
        return Observation(messages=task.prompt)

    async def step(self, action):
        return StepResult(observation=None, reward=float(action.text == self.side), done=True)

@env_kinds.register("coin")
def coin(name: str, *, tasks: Count = 10):
    prompt = ({"role": "user", "content": "Heads or tails?"},)
    rows = [Task(task_id=f"coin-{number}", prompt=prompt) for number in range(tasks)]
    return ReadyEnv(env={"name": "coins:Coin", "side": name}, train=rows, reward="none")
"""
    )
    try:
        with recipe_folder(tmp_path):
            plan = plan_of(tmp_path, "imports=[coins]", f"recipe={tmp_path}", "env=coin:heads", "env.tasks=4")
            assert isinstance(make_env(plan.train_tasks[0], plan.config.env), AgentEnv)
    finally:
        env_kinds._entries.pop("coin", None)
    assert [task.task_id for task in plan.train_tasks] == [f"coin-{number}" for number in range(4)]
    assert plan.config.env == {"name": "coins:Coin", "side": "heads"}


def test_the_saved_configuration_needs_no_kind_and_its_rows_are_files(tmp_path: Path) -> None:
    settings = ["env=gym:FrozenLake-v1", "env.tasks=3", "env.eval_tasks=2", "env.limits=[{name: steps, steps: 5}]"]
    config = plan_of(tmp_path, *settings).config
    assert config == plan_of(tmp_path, *settings).config
    assert (config.env["name"], config.reward.function) == ("gym", "gym")
    assert config.env["limits"] == [{"name": "steps", "steps": 5}]
    assert [task.task_id for task in load_tasks(config.data.train)] == [f"FrozenLake-v1-train-{n}" for n in range(3)]
    assert len(load_tasks(config.data.eval)) == 2
    assert {Path(file).parent for file in (*config.data.train, *config.data.eval)} == {tmp_path / ".data"}
    assert prepare_plan(config).config == config


def test_data_and_reward_of_the_user_have_precedence(tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text(json.dumps({"prompt": "Cross the lake.", "env_kwargs": {"seed": 3}, "task_id": "mine"}) + "\n")
    reward = "tests.helpers.tiny_runs:score_variety"
    config = plan_of(
        tmp_path,
        "env=gym:FrozenLake-v1",
        f"data.train=[{rows}]",
        f"reward.function={reward}",
    ).config
    assert (config.data.train, config.data.eval) == ([str(rows)], [])
    assert config.reward.function == reward


def test_a_row_may_not_name_a_kind(tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text(json.dumps({"prompt": "?", "env_kwargs": {"env": "mcp:rm -rf x"}}) + "\n")
    with pytest.raises(DataError, match="a data row may not name the environment 'mcp:rm -rf x'"):
        plan_of(tmp_path, "env=gym:FrozenLake-v1", f"data.train=[{rows}]")


def test_an_unknown_kind_names_the_kinds(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"(?s)no module 'gm'.*gym:FrozenLake-v1.*verifiers:my_environment"):
        plan_of(tmp_path, "env=gm:FrozenLake-v1")


@pytest.mark.parametrize(
    ("override", "name"),
    [
        ("env=gym:FrozenLake-v1", "gym:FrozenLake-v1"),
        ("env=mcp:python my_server.py --port=8000", "mcp:python my_server.py --port=8000"),
        ("env=mcp:http://localhost:8000/mcp", "mcp:http://localhost:8000/mcp"),
        ("env=mcp:npx -y '@scope/server' [a, b]", "mcp:npx -y '@scope/server' [a, b]"),
        ("env=my_envs:Maze", "my_envs:Maze"),
    ],
)
def test_every_name_survives_the_command_line(override: str, name: str) -> None:
    assert resolve(overrides=["model.path=x", override]).env["name"] == name


def test_arguments_on_the_command_line_reach_the_environment(tmp_path: Path) -> None:
    given = ["env=gym:FrozenLake-v1", "env.arguments.is_slippery=false", "env.arguments.map_name=8x8", "env.tasks=2"]
    assert plan_of(tmp_path, *given).config.env["arguments"] == {
        "is_slippery": False,
        "map_name": "8x8",
        "render_mode": "ansi",
    }


def test_nested_arguments_of_a_replaced_environment_are_dropped(tmp_path: Path) -> None:
    """`env=` replaces the recipe's environment; what is set beside it is all that remains of `arguments`."""
    (tmp_path / "base.yaml").write_text(
        "defaults: [agent_r1, {algorithm: grpo}, _self_]\nmodel: {path: x}\n"
        "env: {name: gym, make: Maze, arguments: {size: 4, walls: {thick: 1, thin: 2}}}\n"
    )
    config = load_config(tmp_path, ["env=gym:Lake-v1", "env.arguments.walls.thin=5", "env.tasks=3"])
    assert config.env == {"name": "gym:Lake-v1", "arguments": {"walls": {"thin": 5}}, "tasks": 3}


def test_a_run_without_a_recipe_is_named_after_its_environment() -> None:
    assert resolve(env="gym:FrozenLake-v1", model="x").run.name == "FrozenLake-v1"
    assert resolve(env="mcp:python shop/server.py", model="x").run.name == "python_shop_server.py"
    assert resolve(env="gym:FrozenLake-v1", model="x", overrides=["run.name=mine"]).run.name == "mine"
    assert resolve(env="tool", model="x").run.name == "run"


def test_the_questions_of_reasoning_gym_are_spread_over_levels() -> None:
    pytest.importorskip("reasoning_gym")
    easy, hard = {"min_animals": 1, "max_animals": 2}, {"min_animals": 4, "max_animals": 5}
    levels = [easy, hard]
    ready = ready_env({"name": "reasoning_gym:leg_counting", "tasks": 5, "eval_tasks": 2, "levels": levels})
    assert [task.difficulty for task in ready.train] == [1, 1, 1, 2, 2]
    assert [task.data_source for task in ready.eval] == ["leg_counting-level1", "leg_counting-level2"]
    assert len({task.task_id for task in (*ready.train, *ready.eval)}) == 7
    with pytest.raises(ConfigError, match=r"env.arguments.seed is set by"):
        ready_env({"name": "reasoning_gym:leg_counting", "levels": [{"seed": 3}]})
