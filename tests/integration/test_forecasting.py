"""The recipe forecasting on drawn series: models, what a window may see, answers, rewards, programs, whole runs."""

from __future__ import annotations

import asyncio
import json
import lzma
import math
import random
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from transformers import LlamaForCausalLM

from agent_r1.chat import ChatRenderer
from agent_r1.checks.rows import answer_episode, gold_result
from agent_r1.config import to_yaml
from agent_r1.data.tasks import load_tasks, read_rows
from agent_r1.engines import ScriptedEngine
from agent_r1.envs import check_env, make_env
from agent_r1.errors import ConfigError, DataError
from agent_r1.models.tiny import train_tokenizer
from agent_r1.registry import load_module, recipe_folder
from agent_r1.rollout import Rollout, RolloutLimits
from agent_r1.runs import EvaluationRecord, RunFolder, write_evaluation
from agent_r1.types import Action, SamplingParams, Task, ToolCall, Trajectory
from tests.conftest import tiny_config
from tests.helpers import commands
from tests.helpers.commands import resolve
from tests.helpers.recipe_runs import ROOT, WHOLE_DATA, MadeSample, demonstrated_turns

RECIPE = ROOT / "recipes" / "forecasting"
SAMPLE = RECIPE / "sample"
MODEL = "model.path=none"
ETT = WHOLE_DATA / "forecasting"

with recipe_folder(RECIPE):
    process = load_module("data_preprocess.process_forecasting")
    sources, make_sample = load_module("data_preprocess.sources"), load_module("data_preprocess.make_sample")
    models, series, window = load_module("models"), load_module("series"), load_module("window")
    answer, reward_fn = load_module("answer"), load_module("reward_fn")
    environment, baselines = load_module("environment"), load_module("baselines")
    demonstrations, compare_run = load_module("demonstrations"), load_module("compare_run")

NAMES = list(models.MODELS)


@cache
def _tasks(file: Path) -> list[Task]:
    return load_tasks([file])


@dataclass(frozen=True)
class Made(MadeSample):
    """The sample as the recipe makes it."""

    @property
    def series(self) -> Any:
        return series.open_series(str(self.folder / "series"))

    def tasks(self, split: str) -> list[Task]:
        return _tasks(self.folder / f"{split}.parquet")

    def window(self, task: Task) -> Any:
        return window.Window(self.series[task.env_kwargs["series"]].past(task.env_kwargs["start"]))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """The files that the script writes, and a tokenizer made of them."""
    folder = tmp_path_factory.mktemp("runs") / "forecasting_data"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(process, "NUM_DEMONSTRATIONS", 40)
        process.main(["--local_save_dir", str(folder), "--local_dataset_path", str(SAMPLE), MODEL])
    _, config = resolve([str(RECIPE), f"run.folder={folder.parent}", MODEL])
    renderer = ChatRenderer(train_tokenizer(list(read_rows(folder / "demonstrations.jsonl"))))
    return Made(folder=folder, config=config, renderer=renderer)


def play(made: Made, task: Task, engine: ScriptedEngine) -> Trajectory:
    with recipe_folder(RECIPE):
        rollout = Rollout(
            engine=engine,
            renderer=made.renderer,
            reward=reward_fn.score,
            make_env=partial(make_env, section=made.config.env),
            limits=RolloutLimits(max_steps=made.config.rollout.max_steps, retries=0),
        )
        sampling = SamplingParams(max_tokens=2000)
        return asyncio.run(rollout.run([task], group_size=1, sampling=sampling, seed=0))[0].trajectories[0]


def play_texts(made: Made, task: Task, *texts: str) -> Trajectory:
    tokenizer = cast(Any, made.renderer.tokenizer)
    replies = [[*tokenizer.encode(text, add_special_tokens=False), tokenizer.eos_token_id] for text in texts]
    return play(made, task, ScriptedEngine(replies, context_length=20_000))


def call(tool: str, **arguments: Any) -> str:
    return f"<tool_call>\n{json.dumps({'name': tool, 'arguments': arguments})}\n</tool_call>"


def action(tool: str, **arguments: Any) -> Action:
    return Action(text=call(tool, **arguments), tool_calls=(ToolCall(name=tool, arguments=arguments),))


def run_steps(made: Made, task: Task, *actions: Action) -> list[Any]:
    async def steps() -> list[Any]:
        env = environment.ForecastEnv(str(made.folder / "series"))
        await env.reset(task)
        return [await env.step(action) for action in actions]

    with recipe_folder(RECIPE):
        return asyncio.run(steps())


def shown(result: Any) -> str:
    return str(result.observation.messages[-1]["content"])


def daily_wave(hours: int = models.WEEK) -> Any:
    return 10 + 3 * np.cos(2 * np.pi * np.arange(hours) / 24) + np.sin(4 * np.pi * np.arange(hours) / 24)


def scaled_error(task: Task, values: Any) -> float:
    scale = task.reward_model["scale"]
    return float(
        np.mean([((value - true) / scale) ** 2 for value, true in zip(values, task.ground_truth, strict=True)])
    )


# Models


def test_simple_models_are_what_their_names_say() -> None:
    history = np.arange(float(models.WEEK))[None] ** 1.5
    found = {name: model(history)[0] for name, model in models.MODELS.items()}
    values = history[0]
    assert found["last"] == pytest.approx([values[-1]] * 24)
    assert found["seasonal"] == pytest.approx(values[-24:])
    by_hour = [np.mean([values[-24 * day + hour] for day in range(1, 5)]) for hour in range(24)]
    assert found["mix"] == pytest.approx([(values[-1] + mean) / 2 for mean in by_hour])
    slope = (values[-1] - values[0]) / (models.WEEK - 1)
    assert found["drift"] == pytest.approx([values[-1] + slope * hour for hour in range(1, 25)])


@pytest.mark.parametrize("name", ["seasonal", "profile", "smoothing", "ar", "fourier"])
def test_models_with_a_daily_course_continue_a_daily_wave(name: str) -> None:
    wave = daily_wave(models.WEEK + 24)
    assert models.MODELS[name](wave[None, :-24])[0] == pytest.approx(wave[-24:], abs=1e-6)


def test_smoothing_is_the_recursion_that_textbooks_write() -> None:
    rng = np.random.default_rng(0)
    history = daily_wave() + rng.normal(size=models.WEEK).cumsum()
    shape = models.daily_profile(history[None])[0]
    rest = history - np.tile(shape, 7)
    level = rest[0]
    for value in rest[1:]:
        level = 0.3 * value + 0.7 * level
    assert models.smoothing(history[None])[0] == pytest.approx(level + shape)


def test_autoregressions_find_the_weights_that_made_a_series() -> None:
    rng = np.random.default_rng(0)
    values = [0.0, 0.0]
    for _ in range(4000):
        values.append(1.2 * values[-1] - 0.5 * values[-2] + rng.normal())
    history = np.array(values)
    found = models._autoregression(history[None], (1, 2), 0.0)[0] - history.mean()
    expected = [history[-2] - history.mean(), history[-1] - history.mean()]
    for _ in range(24):
        expected.append(1.2 * expected[-1] - 0.5 * expected[-2])
    assert found == pytest.approx(expected[2:], abs=0.2)


def test_fourier_is_the_regression_that_numpy_fits() -> None:
    rng = np.random.default_rng(0)
    history = daily_wave() + rng.normal(size=models.WEEK).cumsum()
    hours = np.arange(models.WEEK + 24)
    columns = [np.ones(len(hours)), hours]
    for number in (1, 2, 3):
        columns += [np.cos(2 * np.pi * number * hours / 24), np.sin(2 * np.pi * number * hours / 24)]
    design = np.stack(columns, axis=1)
    weights = np.linalg.lstsq(design[:-24], history, rcond=None)[0]
    fading = (history[-1] - design[models.WEEK - 1] @ weights) * 0.97 ** np.arange(1, 25)
    assert models.fourier(history[None])[0] == pytest.approx(design[-24:] @ weights + fading)


def test_many_histories_are_forecast_as_each_alone_and_none_explodes() -> None:
    rng = np.random.default_rng(0)
    growth = 1.05 ** np.arange(models.WEEK)
    histories = np.stack([np.full(models.WEEK, 7.0), np.zeros(models.WEEK), growth, rng.normal(size=models.WEEK)])
    for name, model in models.MODELS.items():
        together = model(histories)
        assert together.shape == (4, 24)
        assert np.isfinite(together).all()
        assert together == pytest.approx(np.concatenate([model(history[None]) for history in histories])), name
        assert together[0] == pytest.approx(7.0), name
        assert np.abs(together[2]).max() < 10 * growth.max(), name


# Series, splits and what may be seen


def test_the_sample_is_what_its_script_draws(tmp_path: Path) -> None:
    make_sample.main([str(tmp_path)])
    files = sorted(SAMPLE.iterdir())
    assert [file.name for file in files] == ["drawn1.csv", "drawn2.csv"]
    assert [file.read_text() for file in files] == [(tmp_path / file.name).read_text() for file in files]
    assert sum(file.stat().st_size for file in files) < 300_000


def test_forecast_days_lie_wholly_in_their_split(made: Made) -> None:
    for name, data in made.series.items():
        assert [data.borders(split) for split in series.SPLITS] == [(0, 900), (900, 1200), (1200, 1500)]
        for split in series.SPLITS:
            low, high = data.borders(split)
            starts = [t.env_kwargs["start"] for t in made.tasks(split) if t.env_kwargs["series"] == name]
            assert starts == list(data.starts(split, process.STRIDES[split]))
            assert low <= min(starts)
            assert max(starts) + 24 <= high


def test_the_usual_split_of_a_long_series_has_the_usual_rows() -> None:
    data = series.Series(name="long", values=np.zeros(17_420), first=make_sample.FIRST)
    assert [data.borders(split) for split in series.SPLITS] == [(0, 8640), (8640, 11_520), (11_520, 14_400)]


def test_nothing_after_the_start_of_a_window_changes_what_the_model_sees(made: Made) -> None:
    """Also not through scaling, which is of the rows to train on alone."""
    for data in made.series.values():
        start = data.starts("test")[5]
        values = data.values.copy()
        values[start:] = 1e6
        other = series.Series(name=data.name, values=values, first=data.first)
        before, after = (process.window_of(one, start) for one in (data, other))
        assert before.statistics() == after.statistics()
        assert before.decomposition() == after.decomposition()
        assert before.backtest() == after.backtest()
        assert all((before.forecasts[name] == after.forecasts[name]).all() for name in NAMES)
        assert process.question(data, start) == process.question(other, start)
        assert (data.scale, data.mean) == (other.scale, other.mean)
        assert len(data.past(start)) == series.PAST


def test_rows_give_the_future_to_the_reward_alone(made: Made) -> None:
    for task in made.tasks("test"):
        data, start = made.series[task.env_kwargs["series"]], task.env_kwargs["start"]
        assert list(task.ground_truth) == data.values[start : start + 24].tolist()
        assert set(task.env_kwargs) == {"series", "start"}
        assert f"last value {data.values[start - 1]:.1f}." in str(task.prompt[-1]["content"])


def test_a_backtest_forecasts_each_day_from_the_week_before_it(made: Made) -> None:
    task = made.tasks("test")[3]
    looked = made.window(task)
    errors = []
    for end in range(len(looked.past) - 24, len(looked.past) - models.WEEK - 1, -6):
        forecast = models.ar(looked.past[None, end - models.WEEK : end])[0]
        errors.append(float(((forecast - looked.past[end : end + 24]) ** 2).mean()))
    assert looked.errors["ar"] == pytest.approx(math.sqrt(np.mean(errors)))
    assert list(looked.errors.values()) == sorted(looked.errors.values())
    assert looked.backtest().startswith(f"error over the last week: {next(iter(looked.errors))} ")


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("date,HUFL\n2024-01-01 00:00:00,1\n", r"has no column OT; found date, HUFL"),
        ("date,OT\n2024-01-01 00:00:00,one\n2024-01-01 00:00:00,nan\n", r"row 0: OT is 'one'.*row 1: OT is 'nan'"),
        ("date,OT\n2024-01-01 00:00:00,1\n2024-01-01 02:00:00,2\n", r"row 1: .* is not an hour after.*at least 600"),
        ("date,OT\nyesterday,1\n2024-01-01 02:00:00\n", r"row 1: OT is None.*row 0: 'yesterday' is not a date"),
        ("", r"has no column OT, date; found none"),
    ],
)
def test_wrong_files_are_refused_with_what_is_wrong(content: str, problem: str, tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text(content)
    with pytest.raises(DataError, match=problem):
        series.read_series(tmp_path / "x.csv")


def test_files_that_cannot_be_found_or_read_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DataError, match=r"has no files \*\.csv .* Found: nothing"):
        sources.find_series(tmp_path)
    monkeypatch.setenv("AGENT_R1_DATA", str(tmp_path))
    with pytest.raises(DataError, match=r"forecasting has no files .*no such folder"):
        sources.find_series()
    with pytest.raises(ConfigError, match=r"env\.series=.*nowhere.*Make it: python"):
        series.open_series(str(tmp_path / "nowhere"))
    (tmp_path / "broken.csv.xz").write_bytes(b"no archive")
    with pytest.raises(DataError, match=r"broken\.csv\.xz cannot be read"):
        series.read_series(tmp_path / "broken.csv.xz")
    packed = tmp_path / "drawn1.csv.xz"
    packed.write_bytes(lzma.compress((SAMPLE / "drawn1.csv").read_bytes()))
    assert (series.read_series(packed).values == series.read_series(SAMPLE / "drawn1.csv").values).all()


def test_the_series_are_copied_unchanged(made: Made) -> None:
    for file in SAMPLE.iterdir():
        assert (made.folder / "series" / file.name).read_bytes() == file.read_bytes()


# Answers


@pytest.mark.parametrize(
    ("text", "weights", "offset"),
    [
        ("ar", {"ar": 1}, 0),
        ("ar + mix", {"ar": 1, "mix": 1}, 0),
        ("0.5*ar+.5 * last - 0.25", {"ar": 0.5, "last": 0.5}, -0.25),
        ("-1.5 + 2 seasonal_ar + 1. ar + 2ar - 1", {"seasonal_ar": 2, "ar": 3}, -2.5),
        ("+ drift", {"drift": 1}, 0),
    ],
)
def test_combinations_are_read(text: str, weights: dict[str, float], offset: float) -> None:
    found = answer.read_answer(f"I take <answer> {text}\n</answer>.")
    assert (found.weights, found.offset) == (weights, offset)
    again = answer.read_combination(str(found))
    forecasts = {name: np.arange(24.0) * number for number, name in enumerate(NAMES)}
    assert again.forecast(forecasts) == pytest.approx(found.forecast(forecasts))


def test_weights_count_relative_to_their_sum() -> None:
    forecasts = {"ar": np.full(24, 10.0), "last": np.full(24, 20.0)}
    assert answer.read_combination("3 ar + last + 0.5").forecast(forecasts) == pytest.approx(np.full(24, 13.0))


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "expected 24 numbers"),
        ("0.5", "found 1 numbers"),
        (", ".join(["1"] * 23), "found 23 numbers"),
        (", ".join(["1"] * 25), "found 25 numbers"),
        (", ".join(["1"] * 23 + ["1.2.3"]), r"found '1\.2\.3'"),
        (", ".join(["9" * 30] * 24), "found '999"),
        (", ".join(["1"] * 24) + " " * 999 + "x", "at most 1000 characters"),
        (", ".join(["nan"] * 24), "expected terms such as"),
        (", ".join(["1e9"] * 24), "expected terms such as"),
        ("inf", "no model 'inf'"),
        ("prophet", "no model 'prophet'; known: last, seasonal"),
        ("ar - mix", "weights are positive; found -1 mix"),
        ("0 ar", r"weights are positive; found \+0 ar"),
        ("ar ar", "expected terms such as"),
        ("ar + ", "expected terms such as 0.5 ar, found ''"),
        ("ar + 2**9", "expected terms such as"),
        ("__import__('os').system('ls')", "expected terms such as"),
        ("(ar + mix) / 2", "expected terms such as"),
        ("ar + " * 10_000 + "ar", "at most 1000 characters"),
        ("ar</answer><answer>mix", "found 2"),
    ],
)
def test_anything_else_is_no_answer(text: str, problem: str, made: Made) -> None:
    wrapped = f"<answer>{text}</answer>"
    with pytest.raises(answer.AnswerError, match=problem):
        answer.read_answer(wrapped)
    score = reward_fn.score(made.tasks("test")[0], answer_episode(wrapped))
    assert (score["score"], score["answered"]) == (0.0, 0.0)


# The environment


def test_the_episode_in_the_readme_is_what_the_tools_say(made: Made) -> None:
    readme = (RECIPE / "README.md").read_text()
    data = made.series["drawn2"]
    looked = process.window_of(data, 1260)
    combined = answer.read_combination("smoothing + ar").forecast(looked.forecasts)
    texts = [process.question(data, 1260)[-1]["content"], looked.statistics(), looked.backtest()]
    shortened = [text.split("\n")[0][:70] for text in texts]
    assert [text for text in (*shortened, window.show_forecast(combined)) if text not in readme] == []


def test_tools_show_what_the_window_knows(made: Made) -> None:
    task = made.tasks("test")[0]
    looked = made.window(task)
    results = run_steps(
        made, task, *(action(name) for name in ("statistics", "decompose", "backtest")), action("forecast", models="ar")
    )
    assert [shown(result) for result in results] == [
        looked.statistics(),
        looked.decomposition(),
        looked.backtest(),
        window.show_forecast(looked.forecasts["ar"]),
    ]
    assert [result.done for result in results] == [False] * 4
    assert all(len(shown(result)) < 400 for result in results)


def test_a_wrong_combination_is_an_error_that_the_model_reads(made: Made) -> None:
    [result] = run_steps(made, made.tasks("test")[0], action("forecast", models="prophet + ar"))
    assert "there is no model 'prophet'; known: last, seasonal" in shown(result)
    assert not result.done


def test_shares_of_the_decomposition_are_those_of_a_made_series() -> None:
    days = np.repeat([0.0, 0, 0, 0, 0, 0, 7], 24)
    wave = np.tile(np.repeat([1.0, -1.0], 12), 14)
    text = window.Window(wave + np.concatenate([np.zeros(models.WEEK), days])).decomposition()
    assert text.startswith("share of the variance: daily profile 0.14, levels of days 0.86, rest 0.00\n")
    assert "1, 4, ... 22: +1.0 +1.0 +1.0 +1.0 -1.0 -1.0 -1.0 -1.0\n" in text
    assert "0.00, rest 0.00" in window.Window(np.full(series.PAST, 3.0)).decomposition()


def test_episodes_are_independent_and_equal_actions_give_equal_results(made: Made) -> None:
    with recipe_folder(RECIPE):
        found = check_env(
            lambda: environment.ForecastEnv(str(made.folder / "series")),
            made.tasks("test")[0],
            [action("backtest"), action("forecast", models="ar + mix")],
        )
    assert found == []


def test_a_row_of_a_series_that_is_not_there_is_an_error(made: Made) -> None:
    task = Task(task_id="t", prompt=(), env_kwargs={"series": "ETTh9", "start": 400})
    with pytest.raises(DataError, match=r"task 't' is of the series ETTh9; .* has drawn1, drawn2"):
        run_steps(made, task)


# Rewards


def test_gold_answers_score_full_marks_and_wrong_ones_never(made: Made) -> None:
    tasks = [*made.tasks("validation"), *made.tasks("test"), *made.tasks("train")[::4]]
    result = asyncio.run(gold_result(reward_fn.score, tasks))
    assert result.findings == ()
    assert result.seen == f"{len(tasks)} of {len(tasks)} gold answers (gold_answer) score full marks, 0 wrong ones do"


def test_the_reward_falls_with_the_error_and_is_one_half_near_that_of_the_mix(made: Made) -> None:
    task = made.tasks("test")[0]
    mix = task.reward_model["errors"]["mix"]
    scores = []
    for shift in (0.0, 0.1, 1.0, 10.0, 1e5):
        text = ", ".join(f"{value + shift:.9f}" for value in task.ground_truth)
        found = reward_fn.score(task, answer_episode(f"<answer>{text}</answer>"))
        assert found["mse"] == pytest.approx((shift / task.reward_model["scale"]) ** 2, abs=1e-12)
        assert found["score"] == pytest.approx((mix + 0.01) / (mix + 0.01 + found["mse"]))
        scores.append(found["score"])
    assert scores == sorted(scores, reverse=True)
    assert scores[0] == 1.0
    assert scores[-1] > 0
    mixed = play_texts(made, task, "<answer>mix</answer>")
    assert mixed.reward_parts["mse"] == pytest.approx(mix)
    assert mixed.outcome_reward == pytest.approx((mix + 0.01) / (2 * mix + 0.01))
    assert mixed.reward_parts["beats_mix"] == 0.0


def test_an_answer_is_scored_by_the_forecasts_that_it_names(made: Made) -> None:
    task = made.tasks("validation")[7]
    forecasts = made.window(task).forecasts
    trajectory = play_texts(made, task, call("backtest"), "<answer>0.75 ar + 0.25 fourier - 0.5</answer>")
    assert trajectory.error is None
    expected = 0.75 * forecasts["ar"] + 0.25 * forecasts["fourier"] - 0.5
    parts = trajectory.reward_parts
    assert parts["mse"] == pytest.approx(scaled_error(task, expected))
    assert (parts["models"], parts["answered"]) == (2.0, 1.0)
    assert parts["mae"] == pytest.approx(np.abs(expected - task.ground_truth).mean() / task.reward_model["scale"])
    assert [parts[f"{name}_mse"] for name in process.BASELINES] == pytest.approx(
        [scaled_error(task, forecasts[name]) for name in process.BASELINES]
    )
    assert list(trajectory.steps[-1].info["forecasts"]) == ["ar", "fourier"]


def test_no_answer_earns_nothing_and_counts_as_the_mean_of_the_training_rows(made: Made) -> None:
    task = made.tasks("test")[0]
    mean = [task.reward_model["mean"]] * 24
    for texts in (["It will rain."], ["<answer>arima</answer>"], [call("backtest")] * 4):
        trajectory = play_texts(made, task, *texts)
        assert trajectory.outcome_reward == 0.0
        assert trajectory.reward_parts["answered"] == 0.0
        assert trajectory.reward_parts["mse"] == pytest.approx(scaled_error(task, mean))


# Demonstrations and baselines


def test_demonstrations_show_the_prompts_of_rollouts_and_are_no_worse_than_the_mix(made: Made) -> None:
    tasks = {str(task.prompt[-1]["content"]) + task.data_source: task for task in made.tasks("train")}
    rows = made.demonstrations
    assert len(rows) >= 15
    for row in rows[::4]:
        question = row["messages"][1]["content"]
        turns = list(demonstrated_turns(made.renderer, row))
        engine = ScriptedEngine([said for _, said in turns], context_length=20_000)
        trajectory = play(made, tasks[question + question.split(",")[0]], engine)
        assert trajectory.error is None
        assert [prompt for prompt, _ in engine.requests] == [prompt for prompt, _ in turns]
        assert 2 <= len(turns) <= made.config.rollout.max_steps
        assert trajectory.reward_parts["mse"] <= trajectory.reward_parts["mix_mse"] + 1e-12


def test_programs_choose_by_the_past_of_the_window_alone(made: Made) -> None:
    looked = made.window(made.tasks("train")[0])
    ranked = list(looked.errors)
    for kind, expected in {"best": ranked[:1], "two": ranked[:2], "three": ranked[:3]}.items():
        assert list(demonstrations.choose(looked, kind, random.Random(0)).weights) == expected
    played = [demonstrations.demonstrate(looked, random.Random(seed)) for seed in range(120)]
    assert {one.kind for one in played} == set(demonstrations.KINDS)
    assert {tool for one in played for turn in one.turns for tool, _, _ in turn} == set(demonstrations.LOOKS)
    for one in played:
        assert answer.read_combination(str(one.answer)).forecast(looked.forecasts) == pytest.approx(one.values)
    without = [demonstrations.demonstrate(looked, random.Random(seed), ("backtest",)) for seed in range(40)]
    assert {tool for one in without for turn in one.turns for tool, _, _ in turn} == {"backtest"}


def test_baselines_are_below_none_that_knows_more(made: Made, capsys: pytest.CaptureFixture[str]) -> None:
    baselines.main(["--data", str(made.folder), "--split", "test"])
    lines = capsys.readouterr().out.splitlines()[1:]
    errors = {line.split()[0]: float(line.split()[-2]) for line in lines}
    assert set(errors) == {
        *NAMES,
        *("mean_of_all", "backtest_best", "backtest_two", "backtest_three", "fixed", "linear", "oracle"),
    }
    assert errors["oracle"] < min(errors[name] for name in (*NAMES, "backtest_best"))
    tasks = made.tasks("test")
    for name in process.BASELINES:
        by_series = [
            np.mean([task.reward_model["errors"][name] for task in tasks if task.data_source == source])
            for source in ("drawn1", "drawn2")
        ]
        assert errors[name] == pytest.approx(np.mean(by_series), abs=1e-4)
    with pytest.raises(SystemExit):
        baselines.main(["--data", str(made.folder), "--stride", "0"])
    assert "--stride 0: hours between windows are at least 1" in capsys.readouterr().err


def evaluated(run: Path, made: Made, rewards: dict[str, float], split: str = "test") -> Path:
    """The folder of a run whose model earned these rewards."""
    folder = RunFolder(run)
    folder.path.mkdir(parents=True)
    folder.config.write_text(to_yaml(made.config))
    tasks = made.tasks(split)
    record = EvaluationRecord(
        split=split,
        model="m",
        step=1,
        tasks=[task.task_id for task in tasks],
        sources=[str(task.data_source) for task in tasks],
        solved=[rewards[task.task_id] for task in tasks],
        metrics={},
        intervals={},
    )
    write_evaluation(folder.evaluation(split, "after"), record)
    return run


def test_a_run_is_compared_with_the_best_single_model_window_by_window(
    made: Made, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A run that always answers one model has its errors; two runs have the mean of theirs."""
    rewards: dict[str, dict[str, float]] = {name: {} for name in NAMES}
    errors: dict[str, dict[str, list[float]]] = {name: {} for name in NAMES}
    for task in made.tasks("test"):
        forecasts = made.window(task).forecasts
        for name in NAMES:
            error = reward_fn.squared_error(forecasts[name], task)
            reference = task.reward_model["errors"]["mix"] + reward_fn.SOFTENING
            rewards[name][task.task_id] = reference / (reference + error)
            errors[name].setdefault(str(task.data_source), []).append(error)
    means = {name: float(np.mean([np.mean(found) for found in errors[name].values()])) for name in NAMES}
    ranked = sorted(NAMES, key=means.__getitem__)
    runs = {name: evaluated(tmp_path / name, made, rewards[name]) for name in ranked}

    compare_run.main([str(runs[ranked[0]])])
    *_, best, difference = capsys.readouterr().out.splitlines()
    assert best.startswith(f"{ranked[0]}, the best single model")
    assert difference == f"difference over {len(made.tasks('test'))} windows: +0.0000 (+0.0000 to +0.0000)"

    compare_run.main([str(runs[ranked[0]]), str(runs[ranked[-1]])])
    _, *lines, difference = capsys.readouterr().out.splitlines()
    worse = (means[ranked[-1]] - means[ranked[0]]) / 2
    assert [float(line.split()[-1]) for line in lines] == pytest.approx(
        [means[ranked[0]], means[ranked[-1]], means[ranked[0]] + worse, means[ranked[0]]], abs=6e-5
    )
    found, low, high = (float(text.strip("()+")) for text in difference.split(": ")[1].replace("to ", "").split())
    assert found == pytest.approx(worse, abs=6e-5)
    assert 0 < low < found < high

    unanswered = evaluated(tmp_path / "silent", made, dict.fromkeys(rewards[ranked[0]], 0.0))
    compare_run.main([str(unanswered)])
    told = float(capsys.readouterr().out.splitlines()[1].split()[-1])
    by_series = [
        np.mean([reward_fn.squared_error(np.full(24, task.reward_model["mean"]), task) for task in of_series])
        for source in ("drawn1", "drawn2")
        for of_series in [[task for task in made.tasks("test") if task.data_source == source]]
    ]
    assert told == pytest.approx(float(np.mean(by_series)), abs=6e-5)


def test_runs_that_cannot_be_compared_say_why(made: Made, tmp_path: Path) -> None:
    rewards = {task.task_id: 0.5 for split in ("test", "validation") for task in made.tasks(split)}
    run = evaluated(tmp_path / "run", made, rewards)
    with pytest.raises(SystemExit, match="was not evaluated on its validation rows; do that first: agent-r1 eval"):
        compare_run.main([str(run), "--split", "validation"])
    file = RunFolder(evaluated(tmp_path / "part", made, rewards)).evaluation("test", "after")
    found = json.loads(file.read_text())
    file.write_text(json.dumps({**found, **{name: found[name][1:] for name in ("tasks", "sources", "solved")}}))
    with pytest.raises(SystemExit, match="were evaluated on different windows of the test rows"):
        compare_run.main([str(run), str(file.parents[1])])


needs_ett = pytest.mark.skipif(not ETT.is_dir(), reason="ETTh1 and ETTh2 are not here")


@needs_ett
@pytest.mark.whole
def test_known_figures_of_ett_are_reproduced() -> None:
    """Days of the test rows from midnight to midnight, all but the last: last value, last day, and their mix."""
    known = {"ETTh1": (0.032, 0.046, 0.029), "ETTh2": (0.150, 0.095, 0.088)}
    for file in sources.find_series(ETT):
        data = series.read_series(file)
        assert len(data.values) == 17_420
        given = baselines.Windows(data, data.starts("test", 24)[:-1])
        found = [float(given.errors(given.forecasts[name]).mean()) for name in process.BASELINES]
        assert found == pytest.approx(known[data.name], abs=0.0005)


@needs_ett
@pytest.mark.whole
def test_on_ett_gold_answers_score_full_marks_and_combining_leaves_room_to_learn() -> None:
    known = {data.name: data for data in map(series.read_series, sources.find_series(ETT))}
    chosen = [*process.windows(list(known.values()), "test"), *process.windows(list(known.values()), "validation")]
    rows = [process.task_row(data, start, "test") for data, start in chosen[::3]]
    tasks = [
        Task(task_id=row["task_id"], prompt=tuple(row["prompt"]), reward_model=row["reward_model"]) for row in rows
    ]
    result = asyncio.run(gold_result(reward_fn.score, tasks))
    assert (result.findings, result.seen.startswith(f"{len(tasks)} of {len(tasks)} gold")) == ((), True)
    table = {
        name: np.mean([error for error, _ in row.values()])
        for name, row in baselines.compare(known, "test", 21).items()
    }
    simple = min(table[name] for name in process.BASELINES)
    single = min(table[name] for name in NAMES)
    assert table["oracle"] < table["fixed"] < single < simple
    assert table["backtest_best"] < simple


# Whole runs

SMALL = (
    "rollout.groups_per_step=2",
    "rollout.group_size=2",
    "rollout.max_tokens=12",
    "rollout.context_length=2048",
    "trainer.steps=2",
    "sft.steps=2",
    "sft.batch_size=2",
    "eval.max_tasks=4",
    "eval.every=0",
)


@pytest.mark.whole
def test_it_trains_from_a_warm_start_and_is_evaluated_on_test_rows(
    made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "forecasting").symlink_to(SAMPLE)
    monkeypatch.setenv("AGENT_R1_DATA", str(tmp_path / "data"))
    config = tiny_config(made.renderer.tokenizer)
    config.max_position_embeddings = 4096
    torch.manual_seed(0)
    LlamaForCausalLM(config).save_pretrained(tmp_path / "model")
    cast(Any, made.renderer.tokenizer).save_pretrained(tmp_path / "model")
    small = [*SMALL, f"model.path={tmp_path / 'model'}"]
    summary = commands.train(str(RECIPE), *small, quiet=True)
    assert summary.steps == 2
    assert (tmp_path / "runs" / "forecasting_warm_start" / "hf" / "model.safetensors").is_file()
    evaluation = commands.evaluate(str(RECIPE), *small, "eval.split=test", model="runs/forecasting/hf", quiet=True)
    figures = {f"eval/{name}/{figure}" for name in ("drawn1", "drawn2") for figure in ("mse", "mix_mse")}
    assert figures <= set(evaluation.metrics)
    assert len(load_tasks([tmp_path / "runs" / "forecasting_data" / "test.parquet"])) == 80
