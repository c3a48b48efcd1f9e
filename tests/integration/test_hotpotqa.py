"""The recipe hotpotqa on its sample: rows, index, demonstrations, reward, notes, other collections, and whole runs."""

from __future__ import annotations

import asyncio
import shutil
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any, cast

import pyarrow
import pyarrow.parquet
import pytest
import torch
from transformers import LlamaForCausalLM

from agent_r1.chat import ChatRenderer
from agent_r1.checks.rows import answer_episode, gold_result
from agent_r1.console import RunConsole
from agent_r1.data.tasks import load_tasks, read_rows
from agent_r1.engines import ScriptedEngine
from agent_r1.envs import History, make_env, make_policy
from agent_r1.errors import ConfigError, DataError, UnknownNameError
from agent_r1.models.tiny import train_tokenizer
from agent_r1.registry import load_module, recipe_folder
from agent_r1.rollout import Rollout, RolloutLimits
from agent_r1.tools import BaseTool
from agent_r1.training import prepare_plan
from agent_r1.types import SamplingParams, Task, Trajectory
from recipes.hotpotqa import reward_fn
from recipes.hotpotqa.demonstrations import Search, can_be_read, is_named, plan_searches, shown_titles
from tests.conftest import tiny_config
from tests.helpers import commands
from tests.helpers.commands import resolve
from tests.helpers.recipe_runs import ROOT, WHOLE_DATA, MadeSample, demonstrated_turns

RECIPE = ROOT / "recipes" / "hotpotqa"
SAMPLE = RECIPE / "sample"
MODEL = "model.path=none"

with recipe_folder(RECIPE):
    process = load_module("data_preprocess.process_hotpotqa")
    sources = load_module("data_preprocess.sources")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> MadeSample:
    """The files that the script writes, and a tokenizer made of them."""
    folder = tmp_path_factory.mktemp("runs") / "hotpotqa_data"
    process.main(["--local_save_dir", str(folder), "--local_dataset_path", str(SAMPLE), MODEL])
    _, config = resolve([str(RECIPE), f"run.folder={folder.parent}", MODEL])
    renderer = ChatRenderer(train_tokenizer(list(read_rows(folder / "demonstrations.jsonl"))))
    return MadeSample(folder=folder, config=config, renderer=renderer)


def play(made: MadeSample, config: Any, task: Task, engine: ScriptedEngine) -> Trajectory:
    rollout = Rollout(
        engine=engine,
        renderer=made.renderer,
        reward=reward_fn.score,
        make_env=partial(make_env, section=config.env),
        limits=RolloutLimits(max_steps=config.rollout.max_steps, retries=0),
    )
    sampling = SamplingParams(max_tokens=2000)
    return asyncio.run(rollout.run([task], group_size=1, sampling=sampling, seed=0))[0].trajectories[0]


def check_demonstrations(made: MadeSample, config: Any, rows: list[dict[str, Any]]) -> None:
    """Played by a scripted model, each demonstration earns 1 and shows the prompts that it teaches."""
    by_question: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        by_question.setdefault(row["messages"][1]["content"].split("\n\nSearched for:")[0], []).append(row)
    tasks = {str(task.prompt[1]["content"]): task for task in made.tasks("train")}
    for question, parts in by_question.items():
        turns = [turn for row in parts for turn in demonstrated_turns(made.renderer, row)]
        engine = ScriptedEngine([action for _, action in turns], context_length=20_000)
        trajectory = play(made, config, tasks[question], engine)
        assert trajectory.outcome_reward == 1.0, trajectory.error
        assert [prompt for prompt, _ in engine.requests] == [prompt for prompt, _ in turns]


# Rows


def test_the_sample_becomes_rows_with_the_usual_columns(made: MadeSample) -> None:
    train, validation, test = (made.tasks(split) for split in ("train", "validation", "test"))
    assert (len(train), len(validation), len(test)) == (13, 3, 8)
    task = test[0]
    assert task.task_id == "hotpotqa-" + next(iter(read_rows(SAMPLE / "test.jsonl")))["id"]
    assert (task.data_source, task.agent_name) == ("hotpotqa", "env_loop")
    assert task.ground_truth == ["University of Oxford, England"]
    assert [message["role"] for message in task.prompt] == ["system", "user"]


def test_rows_without_an_official_id_get_a_number() -> None:
    questions = [sources.packed_question({"id": None, "question": "Why?", "answer": "so"})] * 2
    assert [row["task_id"] for row in process.task_rows(questions, "x", "train")] == ["x-train-0", "x-train-1"]


def test_gold_answers_score_full_marks_and_wrong_ones_do_not(made: MadeSample) -> None:
    found = asyncio.run(
        gold_result(reward_fn.score, [task for split in ("train", "validation", "test") for task in made.tasks(split)])
    )
    assert not found.findings
    assert found.seen == "24 of 24 gold answers (gold_answer) score full marks, 0 wrong ones do"


@pytest.mark.skipif(not (WHOLE_DATA / "hotpotqa").is_dir(), reason="the whole data set is not here")
def test_gold_answers_of_all_rows_of_all_collections_score_full_marks() -> None:
    collections = {"hotpotqa": sources.hotpotqa(WHOLE_DATA / "hotpotqa")}
    collections |= {name: sources.cross(name, WHOLE_DATA / "multihop_other") for name in sources.CROSS}
    tasks = [
        Task(task_id=row["task_id"], prompt=tuple(row["prompt"]), reward_model=row["reward_model"])
        for name, source in collections.items()
        for split, questions in source.questions.items()
        for row in process.task_rows(questions, name, split)
    ]
    found = asyncio.run(gold_result(reward_fn.score, tasks))
    assert len({task.task_id for task in tasks}) == len(tasks) == 2911 + 300 + 169 + 300
    assert not found.findings


# Reward


def scored(text: str, *accepted: str) -> dict[str, float | str]:
    task = Task(task_id="t", prompt=(), reward_model={"ground_truth": list(accepted)})
    return reward_fn.score(task, answer_episode(text))


def test_a_right_answer_earns_one_by_any_of_its_names() -> None:
    expected = {"score": 1.0, "success": 1.0, "em": 1.0, "f1": 1.0, "format": 1.0, "answer": "mets"}
    assert scored("I know. <answer>The Mets</answer>", "New York Mets", "Mets") == expected


def test_a_near_miss_earns_a_share_and_never_full_marks() -> None:
    near = scored("<answer>York New</answer>", "New York")  # every word is right, the order is not
    assert near["f1"] == 1.0
    assert near["score"] == pytest.approx(0.7)
    assert near["success"] == 0.0
    assert scored("<answer>Boston</answer>", "New York")["score"] == pytest.approx(0.1)


@pytest.mark.parametrize("text", ["New York", "<answer>New York", "New York</answer>", "<answer></answer>", ""])
def test_what_is_not_in_tags_is_no_answer(text: str) -> None:
    assert scored(text, "New York")["score"] == 0.0


def test_listing_answers_does_not_pay() -> None:
    # The last one counts, without the part for the form; all in one pair of tags share few words with any of them.
    assert scored("<answer>New York</answer><answer>Boston</answer>", "New York")["score"] == 0.0
    many = scored("<answer>Boston Rome Oslo New York</answer>", "New York")
    assert many["score"] == pytest.approx(0.6 * 4 / 7 + 0.1)


def test_an_answer_beside_a_call_has_not_the_form() -> None:
    text = '<answer>Rome</answer><tool_call>{"name": "search", "arguments": {"query": "Rome"}}</tool_call>'
    assert scored(text, "Oslo")["format"] == 0.0


# Demonstrations


def test_demonstrations_earn_full_marks_and_teach_the_prompts_that_a_rollout_shows(made: MadeSample) -> None:
    check_demonstrations(made, made.config, made.demonstrations)


def test_the_script_says_how_many_questions_have_a_demonstration() -> None:
    searches = [Search(queries=("a", "b"), thought="", found=""), Search(queries=("c",), thought="", found="")]
    assert process.describe([({}, searches), ({}, searches[1:])], 5) == (
        "2 of 5 training questions have a demonstration: 1 with 1 searches, 1 with 2 searches; "
        "1 ask several things at once"
    )


def test_demonstrations_are_of_training_rows_alone(made: MadeSample) -> None:
    asked = {row["messages"][1]["content"] for row in made.demonstrations}
    assert len(asked) >= 12
    assert asked <= {str(task.prompt[1]["content"]) for task in made.tasks("train")}


def test_some_demonstrations_ask_several_queries_at_once_and_some_search_twice(made: MadeSample) -> None:
    calls = [[m for m in row["messages"] if m.get("tool_calls")] for row in made.demonstrations]
    queries = [[m["tool_calls"][0]["function"]["arguments"]["query"] for m in some] for some in calls]
    assert any(isinstance(some[0], list) for some in queries)
    assert any(len(some) == 2 for some in queries)
    assert all(some for some in queries)


def test_a_demonstration_asks_only_for_what_it_can_know(made: MadeSample) -> None:
    for row in made.demonstrations:
        seen = ""
        for message in row["messages"]:
            for call in message.get("tool_calls", ()):
                query = call["function"]["arguments"]["query"]
                assert all(is_named(text, seen) for text in ([query] if isinstance(query, str) else query))
            seen += str(message["content"]) + "\n"


def test_a_question_whose_second_passage_nothing_leads_to_has_no_demonstration(made: MadeSample) -> None:
    [tool] = BaseTool.find(process.search_entry(made.config))
    row = {"question": "What is the Yunnan Provincial Museum?", "answer": "a museum"}
    assert asyncio.run(plan_searches({**row, "supporting_titles": ["Dell"]}, tool)) is None


def test_what_can_be_read() -> None:
    assert can_be_read("44", "How many?\n[1] Ace\nHe had 44 victories.", "How many?")
    assert not can_be_read("4", "How many?\n[1] Ace\nHe had 44 victories.", "How many?")
    assert not can_be_read("44", "Was it 44?\n[1] Ace\nA pilot.", "Was it 44?")
    assert can_be_read("yes", "", "")
    assert shown_titles('Results for "Tea":\n[1] Tea\nA [2] drink.\n\n[2] Alû\nA demon.') == ["Tea", "Alû"]


# Notes: the state rebuilt at each step


def turn(query: Any, *answers: str) -> tuple[Any, ...]:
    call = {"type": "function", "function": {"name": "search", "arguments": {"query": query}}}
    said = {"role": "assistant", "content": "I think.", "tool_calls": [call]}
    return (said, *({"role": "tool", "content": answer} for answer in answers))


def test_notes_stand_in_for_the_history() -> None:
    task = ({"role": "system", "content": "Answer."}, {"role": "user", "content": "Which is hot?"})
    found = 'Results for "Tea":\n[1] Tea\nA drink.\n\n[2] Milk\nWhite.\n\nResults for "Ice":\n[1] Ice\nCold.'
    turns = (turn(["Tea", "Ice"], found), turn("Tea", "[1] Tea\nA drink."), turn("?", "No passage matches."))
    policy = make_policy({"name": "search_notes", "characters": 100})
    assert policy.show(History(task=task)) == task
    shown = policy.show(History(task=task, turns=turns))
    assert shown[0] == task[0]
    assert shown[1]["content"] == (
        'Which is hot?\n\nSearched for: "Tea"; "Ice"; "?"\nNo passage matches.\nFound:\n'
        "[1] Tea\nA drink.\n[2] Milk\nWhite.\n[3] Ice\nCold."
    )


def test_notes_are_shortened_to_their_share() -> None:
    task = ({"role": "user", "content": "Q"},)
    found = "[1] One\n" + "word " * 50 + "\n\n[2] Two\n" + "word " * 50
    policy = make_policy({"name": "search_notes", "characters": 40})
    shown = policy.show(History(task=task, turns=(turn("x", found),)))[0]["content"]
    assert shown == 'Q\n\nSearched for: "x"\nFound:\n[1] One\nword word word …\n[2] Two\nword word word …'
    with pytest.raises(ConfigError, match=r"env\.context\.characters=0"):
        make_policy({"name": "search_notes", "characters": 0})


def test_demonstrations_with_notes_teach_the_prompts_that_a_rollout_with_notes_shows(
    made: MadeSample, tmp_path: Path
) -> None:
    arguments = ["--local_save_dir", str(tmp_path), "--local_dataset_path", str(SAMPLE), MODEL]
    process.main([*arguments, "env.context=search_notes"])
    rows = list(read_rows(tmp_path / "demonstrations.jsonl"))
    assert len(rows) > len(made.demonstrations)  # one a step
    assert all(len(row["messages"]) == 3 for row in rows)
    _, config = resolve([str(RECIPE), f"run.folder={made.folder.parent}", MODEL, "env.context=search_notes"])
    check_demonstrations(made, config, rows)


# Sources


def hub_rows(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows as the official files have them, each with its two passages."""
    return [
        {
            "id": row["id"],
            "question": row["question"],
            "answer": row["answer"],
            "type": row["type"],
            "supporting_facts": {"title": [*row["supporting_titles"], row["supporting_titles"][0]], "sent_id": [0] * 3},
            "context": {
                "title": row["supporting_titles"],
                "sentences": [[f"About {title}.", " More."] for title in row["supporting_titles"]],
            },
        }
        for row in rows
    ]


def write_hub_files(folder: Path) -> list[dict[str, Any]]:
    rows = [row for row in read_rows(SAMPLE / "train.jsonl") if isinstance(row, dict)]
    for name, some in {"train-00000-of-00002": rows[:12], "validation-00000-of-00001": rows[12:]}.items():
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(hub_rows(some)), folder / f"{name}.parquet")
    return rows


def check_hub_source(source: Any, rows: list[dict[str, Any]]) -> None:
    trained, held_out = ({q.question_id for q in source.questions[split]} for split in ("train", "validation"))
    assert (len(trained), len(held_out)) == (10, 2)
    assert trained | held_out == {row["id"] for row in rows[:12]}
    assert [q.question_id for q in source.questions["test"]] == [row["id"] for row in rows[12:]]
    assert source.questions["test"][0].supporting_titles == rows[12]["supporting_titles"]
    passages = {passage.title: passage.text for passage in source.passages}
    assert set(passages) == {title for row in rows for title in row["supporting_titles"]}
    assert passages[rows[0]["supporting_titles"][0]] == f"About {rows[0]['supporting_titles'][0]}. More."


def test_official_files_in_a_folder_bring_their_passages_along(tmp_path: Path) -> None:
    rows = write_hub_files(tmp_path)
    check_hub_source(sources.hotpotqa(tmp_path), rows)


def test_official_files_are_downloaded_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    served = tmp_path / "served"
    served.mkdir()
    rows = write_hub_files(served)
    monkeypatch.delenv("AGENT_R1_DATA", raising=False)
    monkeypatch.setenv("AGENT_R1_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(SimpleHTTPRequestHandler, "log_message", lambda *arguments: None)
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(SimpleHTTPRequestHandler, directory=str(served)))
    thread = Thread(target=server.serve_forever)
    thread.start()
    try:
        for name, addresses in sources.HOTPOTQA.items():
            file = addresses[0].rpartition("/")[2]
            monkeypatch.setitem(sources.HOTPOTQA, name, [f"http://127.0.0.1:{server.server_port}/{file}"])
        check_hub_source(sources.hotpotqa(), rows)
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
    check_hub_source(sources.hotpotqa(), rows)  # nobody serves them any more


def test_musique_rows_bring_paragraphs_and_other_names_of_the_answer() -> None:
    paragraphs = [
        {"title": "Anna", "paragraph_text": "She married Kris.", "is_supporting": True},
        {"title": "Rome", "paragraph_text": "A city.", "is_supporting": False},
    ]
    row = {"id": "2hop__1_2", "question": "Which team?", "answer": "New York Mets", "answer_aliases": ["Mets"]}
    question = sources.hub_question({**row, "paragraphs": paragraphs})
    assert question.answers == ["New York Mets", "Mets"]
    assert question.supporting_titles == ["Anna"]
    assert list(sources.hub_passages({"paragraphs": paragraphs}))[1] == ("Rome", "A city.")


def test_rows_of_a_sorted_file_are_taken_evenly() -> None:
    assert sources.spread(list(range(7)), 3) == [0, 2, 4]  # 0, 7/3, 14/3
    assert sources.spread([1, 2], 3) == [1, 2]


def test_a_row_without_an_answer_is_refused() -> None:
    with pytest.raises(DataError, match="a question needs answer; found: id, question"):
        sources.packed_question({"id": "1", "question": "Why?"})


# Other collections


def test_other_collections_search_in_passages_of_their_own(made: MadeSample, tmp_path: Path) -> None:
    arguments = ["--local_save_dir", str(tmp_path), "--local_dataset_path", str(SAMPLE / "cross"), "--cross", MODEL]
    process.main(arguments)
    tasks = load_tasks([tmp_path / "cross.parquet"])
    assert [task.data_source for task in tasks] == ["2wiki", "2wiki", "musique", "musique"]
    assert tasks[2].ground_truth[:2] == ["Pittsburgh Pirates", "Orioles"]
    assert not asyncio.run(gold_result(reward_fn.score, tasks)).findings
    answers = []
    for task in (tasks[0], tasks[2]):
        [tool] = BaseTool.find(task.env_kwargs["tools"][0])
        answered = asyncio.run(tool.execute({"query": "Kris Benson"}))
        answers.append(answered[0].text)
    assert "Benson" not in answers[0]
    assert shown_titles(answers[1])[:2] == ["Anna Benson", "Kris Benson"]


# Preparation


def test_a_run_builds_the_index_that_its_tool_names_and_says_what_it_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("agent_r1.console._SECONDS_BETWEEN_LINES", 0.0)
    monkeypatch.setenv("AGENT_R1_DATA", str(linked_sample(tmp_path)))
    recipe, config = resolve([str(RECIPE), f"run.folder={tmp_path / 'runs'}", MODEL])
    with recipe_folder(recipe):
        plan = prepare_plan(config, RunConsole())
    assert (len(plan.train_tasks), len(plan.eval_tasks)) == (13, 3)
    said = capsys.readouterr()
    train = tmp_path / "runs" / "hotpotqa_data" / "train.parquet"
    prepare = "data_preprocess.process_hotpotqa:make_data"
    assert said.out.startswith(f"{train} is not there yet: making the data with {prepare}\n")
    assert "searching: 12 of 13 questions after 0 min" in said.err
    assert (tmp_path / "runs" / "hotpotqa_data" / "index" / "manifest.json").is_file()


def test_a_missing_index_says_how_to_build_it(made: MadeSample, tmp_path: Path) -> None:
    shutil.copytree(made.folder, tmp_path / "hotpotqa_data", ignore=shutil.ignore_patterns("index"))
    recipe, config = resolve([str(RECIPE), f"run.folder={tmp_path}", MODEL])
    with (
        recipe_folder(recipe),
        pytest.raises(ConfigError, match=r"there is no search index.*Build it: agent-r1 index .*hotpotqa_data/index"),
    ):
        prepare_plan(config)


def test_a_tool_that_does_not_exist_is_refused_before_anything_is_prepared(tmp_path: Path) -> None:
    overrides = [f"run.folder={tmp_path}", MODEL, "env.tools=[{name: serch, index: here}]"]
    recipe, config = resolve([str(RECIPE), *overrides])
    with recipe_folder(recipe), pytest.raises((ConfigError, UnknownNameError), match="Did you mean 'search'"):
        prepare_plan(config)
    assert not list(tmp_path.iterdir())


def linked_sample(folder: Path) -> Path:
    """A folder as AGENT_R1_DATA names one."""
    data = folder / "data"
    data.mkdir()
    (data / "hotpotqa").symlink_to(SAMPLE)
    (data / "multihop_other").symlink_to(SAMPLE / "cross")
    return data


# Whole runs

SMALL = (
    "env.tools=[{name: search, index: runs/hotpotqa_data/index, k: 2, characters: 300, description: Search.}]",
    "rollout.groups_per_step=2",
    "rollout.group_size=2",
    "rollout.max_steps=2",
    "rollout.max_tokens=12",
    "trainer.steps=2",
    "sft.steps=2",
    "sft.batch_size=2",
    "eval.max_tasks=2",
    "eval.every=0",
)


def small_settings(made: MadeSample, folder: Path) -> list[str]:
    return [*(setting.replace(" ", "") for setting in SMALL), f"model.path={write_model(made, folder / 'model')}"]


def write_model(made: MadeSample, folder: Path) -> Path:
    """A model of a few thousand parameters that has read the sample's words."""
    config = tiny_config(made.renderer.tokenizer)
    config.max_position_embeddings = 4096
    torch.manual_seed(0)
    LlamaForCausalLM(config).save_pretrained(folder)
    cast(Any, made.renderer.tokenizer).save_pretrained(folder)
    return folder


@pytest.mark.whole
def test_it_trains_from_a_warm_start_and_is_evaluated_on_other_collections(
    made: MadeSample, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("AGENT_R1_DATA", str(linked_sample(tmp_path)))
    small = small_settings(made, tmp_path)
    summary = commands.train(str(RECIPE), *small, quiet=True)
    assert summary.steps == 2
    assert (tmp_path / "runs" / "hotpotqa_warm_start" / "hf" / "model.safetensors").is_file()
    cross = (
        "eval.split=test",
        "data.test=[runs/hotpotqa_data/cross.parquet]",
        "data.prepare=data_preprocess.process_hotpotqa:make_data",
    )
    evaluation = commands.evaluate(
        str(RECIPE), *small, *cross, "eval.max_tasks=4", model="runs/hotpotqa/hf", quiet=True
    )
    assert {"eval/2wiki/greedy", "eval/musique/greedy"} <= set(evaluation.metrics)
