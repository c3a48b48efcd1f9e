"""The recipe paper_search on its sample: files, what a task may see, reading, rewards, demonstrations, whole runs."""

from __future__ import annotations

import asyncio
import json
import shutil
import tarfile
from dataclasses import dataclass
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any, cast

import numpy as np
import pytest
import torch
from transformers import LlamaForCausalLM

from agent_r1.chat import ChatRenderer
from agent_r1.checks.rows import answer_episode, gold_result
from agent_r1.data.tasks import read_rows
from agent_r1.engines import ScriptedEngine
from agent_r1.envs import check_env, make_env
from agent_r1.errors import ConfigError, DataError
from agent_r1.models.tiny import train_tokenizer
from agent_r1.registry import load_module, recipe_folder
from agent_r1.rollout import Rollout, RolloutLimits
from agent_r1.types import Action, SamplingParams, Task, ToolCall, Trajectory
from benchmarks.speed import paper_search
from tests.conftest import tiny_config
from tests.helpers import commands
from tests.helpers.commands import resolve
from tests.helpers.recipe_runs import ROOT, WHOLE_DATA, MadeSample, demonstrated_turns

pytest.importorskip("bm25s", reason="paper_search searches by words: pip install 'agent-r1[search]'")

RECIPE = ROOT / "recipes" / "paper_search"
SAMPLE = RECIPE / "sample"
MODEL = "model.path=none"

with recipe_folder(RECIPE):
    process = load_module("data_preprocess.process_paper_search")
    sources, peerread = load_module("data_preprocess.sources"), load_module("data_preprocess.peerread")
    library, reading, policies = load_module("library"), load_module("reading"), load_module("policies")
    environment, reward_fn = load_module("environment"), load_module("reward_fn")
    baselines = load_module("baselines")


@dataclass(frozen=True)
class Made(MadeSample):
    """The sample as the recipe makes it."""

    @property
    def library(self) -> Any:
        return library.open_library(str(self.folder / "library"))

    def view(self, task: Task) -> Any:
        given = task.env_kwargs
        return library.View(library=self.library, hidden=tuple(given["hidden"]), day=given["day"])


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """The files that the script writes, and a tokenizer made of them."""
    folder = tmp_path_factory.mktemp("runs") / "paper_search_data"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(process, "NUM_DEMONSTRATIONS", 8)
        process.main(["--local_save_dir", str(folder), "--local_dataset_path", str(SAMPLE), MODEL])
    _, config = resolve([str(RECIPE), f"run.folder={folder.parent}", MODEL])
    renderer = ChatRenderer(train_tokenizer(list(read_rows(folder / "demonstrations.jsonl"))))
    return Made(folder=folder, config=config, renderer=renderer)


def play(made: Made, task: Task, engine: ScriptedEngine, config: Any = None) -> Trajectory:
    config = config or made.config
    with recipe_folder(RECIPE):
        rollout = Rollout(
            engine=engine,
            renderer=made.renderer,
            reward=reward_fn.score,
            make_env=partial(make_env, section=config.env),
            limits=RolloutLimits(max_steps=config.rollout.max_steps, retries=0),
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


def env_of(made: Made, **settings: Any) -> Any:
    return environment.PaperSearchEnv(str(made.folder / "library"), **settings)


async def steps(env: Any, task: Task, *actions: Action) -> list[Any]:
    await env.reset(task)
    return [await env.step(action) for action in actions]


def run_steps(made: Made, task: Task, *actions: Action, **settings: Any) -> list[Any]:
    with recipe_folder(RECIPE):
        return asyncio.run(steps(env_of(made, **settings), task, *actions))


# Rows and splits


def test_queries_of_one_paper_are_in_one_split(made: Made) -> None:
    papers = {
        split: {paper for task in made.tasks(split) for paper in task.env_kwargs["hidden"]}
        for split in ("train", "validation", "test")
    }
    assert all(papers.values())
    assert not papers["train"] & papers["validation"]
    assert not papers["train"] & papers["test"]
    assert not papers["validation"] & papers["test"]


def test_rows_have_the_usual_columns_and_hide_what_is_to_be_found(made: Made) -> None:
    tasks = made.tasks("train")
    assert {task.data_source for task in tasks} == {"inline_citation", "related_work"}
    for task in tasks:
        assert task.ground_truth
        assert "ground_truth" not in task.env_kwargs
        assert task.env_kwargs["query"] in str(task.prompt[-1]["content"])


def test_every_relevant_paper_can_be_seen(made: Made) -> None:
    for split in ("train", "validation", "test"):
        for task in made.tasks(split):
            assert made.view(task).visible(np.array(task.ground_truth, np.int32)).all()


@pytest.mark.whole
@pytest.mark.skipif(not (WHOLE_DATA / "papers").is_dir(), reason="the whole data set is not here")
def test_the_whole_data_set_has_splits_of_hundreds_of_queries() -> None:
    splits = process.split_queries(sources.read_collection(WHOLE_DATA / "papers").queries)
    assert min(len(splits[name]) for name in ("validation", "test")) >= 300
    owners = [{query.source for query in queries} for queries in splits.values()]
    assert sum(map(len, owners)) == len(set.union(*owners))


def test_wrong_rows_are_reported_together(tmp_path: Path) -> None:
    papers = [{"title": "Tea", "cites": [1]}, {"title": " ", "cites": []}, {"title": "Milk", "cites": [9]}]
    queries = [{"type": "poem", "query": "x", "source_pid": 0, "gold": [1]}]
    with pytest.raises(
        DataError, match=r"3 rows(.|\n)*paper 1: title(.|\n)*paper 2: 9 is not(.|\n)*query 0: type 'poem'"
    ):
        sources.checked(papers, queries)


def test_papers_that_are_dated_later_are_not_asked_for() -> None:
    dates = ["1-Jan-2015", "1-Jan-2014", "1-Jan-2016", None]
    papers = [{"title": f"Paper {n}", "date": date, "cites": []} for n, date in enumerate(dates)]
    asked = [{"type": "related_work", "query": "x", "source_pid": 0, "gold": [1, 2, 3]}]
    only_later = [{"type": "related_work", "query": "x", "source_pid": 0, "gold": [2]}]
    [query] = sources.checked(papers, asked + only_later).queries
    assert query.relevant == (1, 3)


def test_versions_of_one_paper_are_hidden_together_and_share_a_split() -> None:
    abstract = " ".join(f"word{number}" for number in range(40))
    papers = [
        {"title": f"Paper {number}", "abstract": text, "cites": []}
        for number, text in enumerate([abstract, "Another one.", abstract.upper() + " More.", "", ""])
    ]
    queries = [{"type": "related_work", "query": "x", "source_pid": source, "gold": [2, 1, 4]} for source in (0, 2, 3)]
    first, second, third = sources.checked(papers, queries).queries
    assert (first.versions, second.versions, third.versions) == ((0, 2), (0, 2), (3,))
    assert (first.relevant, third.relevant) == ((1, 4), (1, 2, 4))
    splits = process.split_queries([first, second] * 10 + [third])
    assert all(len({query.versions for query in queries}) == 1 for queries in splits.values() if queries)


# What a task may see


def test_nothing_shows_the_source_paper_or_a_later_one(made: Made) -> None:
    days = made.library.days
    for task in (*made.tasks("train"), *made.tasks("test")):
        view, query = made.view(task), task.env_kwargs["query"]
        shown = {
            *view.search(query),
            *view.cited(query),
            *(p for n in range(len(days)) for p in view.references(n, query)),
        }
        assert shown
        assert not shown & set(view.hidden)
        assert all(not view.day or days[paper] <= view.day for paper in shown)


def test_hidden_hits_do_not_take_the_places_of_visible_ones(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    days = made.library.days
    everything = library.View(library=made.library).search("neural networks learning")
    day = sorted(day for day in days.tolist() if day)[40]
    expected = [paper for paper in everything if days[paper] <= day]
    assert 10 < len(expected) < len(everything) // 2
    monkeypatch.setattr(library, "_DEPTH", 2)
    view = library.View(library=made.library, day=day)
    assert view.search("neural networks learning", 10) == expected[:10]
    assert view.search("neural networks learning") == expected


def test_cited_adds_the_weights_of_the_papers_that_cite(made: Made) -> None:
    for task in made.tasks("test"):
        view, topic = made.view(task), policies.keywords(task.env_kwargs["query"])
        papers, scores = view.ranked(topic, library.NEIGHBOURS)
        totals: dict[int, float] = {}
        for paper, weight in zip(papers.tolist(), (scores / scores[0]).tolist(), strict=True):
            totals[paper] = totals.get(paper, 0.0) + weight
            for reference in made.library.references(paper).tolist():
                totals[reference] = totals.get(reference, 0.0) + weight**2
        allowed = [paper for paper in totals if view.visible(np.array([paper], np.int32))[0]]
        found = view.cited(topic)
        assert set(found) == set(allowed)
        assert [totals[paper] for paper in found] == pytest.approx(sorted((totals[p] for p in allowed), reverse=True))


def test_references_that_match_the_query_come_first(made: Made) -> None:
    view = library.View(library=made.library)
    paper = max(range(len(made.library)), key=lambda paper: len(made.library.references(paper)))
    references = made.library.references(paper).tolist()
    for wanted in references:
        title = made.library.titles[wanted]
        found, expected = view.references(paper, title), [hit for hit in view.search(title) if hit in references]
        assert found[: len(expected)] == expected
        assert sorted(found) == references
    assert view.references(paper, "zzz") == references


# Reading


def test_every_paper_counts_once_and_the_limit_holds(made: Made) -> None:
    [task, *_] = made.tasks("test")
    same = action("cited", topic="neural networks")
    results = run_steps(made, task, *[same] * 8, max_read=12)
    read = results[-1].info["read"]
    assert len(read) == len(set(read)) == 12
    assert [len(result.info["read"]) for result in results] == [5, 10, 12, 12, 12, 12, 12, 12]
    texts = [result.observation.messages[-1]["content"] for result in results]
    assert texts[0].startswith("[1] ")
    assert texts[0].endswith("\n7 papers left to read.")
    assert texts[1].startswith("[6] ")
    assert texts[2].endswith("No papers left to read: write the answer.")
    assert texts[3] == "You have read 12 papers: write the answer."


def test_several_calls_of_one_action_share_the_limit(made: Made) -> None:
    [task, *_] = made.tasks("test")
    calls = tuple(ToolCall(name="search", arguments={"query": word}) for word in ("neural", "learning", "model"))
    [result] = run_steps(made, task, Action(text="", tool_calls=calls), max_read=7)
    assert len(set(result.info["read"])) == 7


def test_a_number_that_was_not_shown_is_an_error_that_the_model_reads(made: Made) -> None:
    [task, *_] = made.tasks("test")
    results = run_steps(
        made, task, action("expand", paper=3), action("search", query="neural"), action("expand", paper=9)
    )
    texts = [result.observation.messages[-1]["content"] for result in results]
    assert "there is no paper [3]: no paper was shown yet" in texts[0]
    assert "there is no paper [9]: the papers shown are 1 to 5" in texts[2]
    assert [result.done for result in results] == [False] * 3


def test_a_query_without_known_words_shows_nothing_and_costs_nothing(made: Made) -> None:
    [task, *_] = made.tasks("test")
    results = run_steps(made, task, action("search", query="qqq zzz"), action("cited", topic=""))
    assert [result.info["read"] for result in results] == [[], []]
    assert results[0].observation.messages[-1]["content"] == "Nothing new.\n30 papers left to read."


def test_episodes_do_not_share_what_was_read_and_equal_states_have_one_anchor(made: Made) -> None:
    [task, *_] = made.tasks("test")
    with recipe_folder(RECIPE):
        assert (
            check_env(lambda: env_of(made), task, [action("search", query="neural"), action("expand", paper=1)]) == []
        )
    first, second = (
        run_steps(made, task, *order)[-1].observation.anchor
        for order in (
            (action("search", query="neural"), action("cited", topic="neural")),
            (action("search", query="neural"), action("cited", topic="neural")),
        )
    )
    assert first == second != ""


def test_settings_that_cannot_be_are_refused(made: Made, tmp_path: Path) -> None:
    with recipe_folder(RECIPE), pytest.raises(ConfigError, match=r"env\.max_read=0 and env\.page=5 must be at least 1"):
        env_of(made, max_read=0)
    with pytest.raises(ConfigError, match=r"no collection of papers in .*nowhere\. Make it: python"):
        library.open_library(str(tmp_path / "nowhere"))


# Rewards


def test_a_relevant_paper_earns_its_share_once(made: Made) -> None:
    task = max(made.tasks("train"), key=lambda task: len(task.ground_truth))
    searches = {paper: made.library.titles[paper] for paper in task.ground_truth}
    first = [title for paper, title in searches.items() if made.view(task).search(title)[0] == paper]
    assert len(first) >= 5
    results = run_steps(made, task, *[action("search", query=title) for title in first], page=1)
    share = 2.0 / len(task.ground_truth)
    assert [result.reward for result in results] == pytest.approx([share] * len(first))
    again = run_steps(made, task, *[action("search", query=first[0])] * 2)
    assert again[0].reward >= share
    assert again[0].reward + again[1].reward == pytest.approx(share * len({*again[1].info["read"]} & {*searches}))
    assert sum(result.info["metrics"]["papers/relevant"] for result in results) == len(first)


def test_gold_answers_score_full_marks_and_wrong_ones_never(made: Made) -> None:
    tasks = [task for split in ("train", "validation", "test") for task in made.tasks(split)]
    result = asyncio.run(gold_result(reward_fn.score, tasks))
    assert result.findings == ()
    assert result.seen == f"{len(tasks)} of {len(tasks)} gold answers (gold_answer) score full marks, 0 wrong ones do"


def test_the_answer_names_papers_by_the_numbers_under_which_they_were_shown(made: Made) -> None:
    task = made.tasks("train")[0]
    wanted = list(task.ground_truth)
    first, second = (made.library.titles[paper] for paper in wanted[:2])
    searching = [call("search", query=first), call("search", query=second)]
    shown = run_steps(made, task, action("search", query=first), action("search", query=second))[-1].info["read"]
    right = [number for number, paper in enumerate(shown, start=1) if paper in wanted]
    wrong = next(number for number, paper in enumerate(shown, start=1) if paper not in wanted)
    recall = len(right) / len(wanted)

    def parts(answer: str) -> dict[str, float]:
        trajectory = play_texts(made, task, *searching, answer)
        assert trajectory.error is None
        return {"score": trajectory.outcome_reward, **trajectory.reward_parts}

    best = parts(f"<answer>{', '.join(map(str, right))}</answer>")
    assert (best["precision"], best["recall"], best["answer_recall"]) == (1.0, recall, recall)
    assert best["score"] == best["f1"] == pytest.approx(2 * recall / (1 + recall))
    mixed = parts(f"<answer>{right[0]}, {wrong}, 77, {wanted[0] + 10_000}</answer>")
    assert (mixed["precision"], mixed["recall"]) == (0.25, recall)
    none = parts("<answer>1</answer> or <answer>2</answer>")
    assert (none["score"], none["answered"], none["recall"], none["success"]) == (0.0, 0.0, recall, recall)


def test_what_was_read_counts_also_when_the_episode_was_cut(made: Made) -> None:
    task = made.tasks("train")[0]
    searching = call("search", query=made.library.titles[task.ground_truth[0]])
    trajectory = play_texts(made, task, *[searching] * 9)
    assert trajectory.outcome_reward == 0.0
    assert trajectory.success == trajectory.reward_parts["recall"] > 0


def test_an_answer_outside_an_episode_is_not_found_by_guessing() -> None:
    task = Task(task_id="a", prompt=(), reward_model={"ground_truth": [4, 5]})
    score = reward_fn.score(task, answer_episode("<answer>4, 5, 6</answer>"))
    assert score["success"] == pytest.approx(0.8)


# Demonstrations


def test_demonstrations_show_the_prompts_of_rollouts_and_earn_what_they_find(made: Made) -> None:
    tasks = {str(task.prompt[-1]["content"]): task for task in made.tasks("train")}
    rows = made.demonstrations
    assert len(rows) >= 4
    for row in rows[::2]:
        task = tasks[row["messages"][1]["content"]]
        turns = list(demonstrated_turns(made.renderer, row))
        engine = ScriptedEngine([said for _, said in turns], context_length=20_000)
        trajectory = play(made, task, engine)
        assert trajectory.error is None
        assert [prompt for prompt, _ in engine.requests] == [prompt for prompt, _ in turns]
        parts = trajectory.reward_parts
        assert parts["recall"] >= process.MIN_RECALL
        assert parts["precision"] == 1.0
        assert parts["read"] <= made.config.env["max_read"]
        assert sum(step.reward for step in trajectory.steps) == pytest.approx(2 * parts["recall"])


def test_demonstrations_use_only_words_and_numbers_that_were_shown(made: Made) -> None:
    for row in made.demonstrations:
        seen = ""
        for message in row["messages"]:
            for made_call in message.get("tool_calls", ()):
                for value in made_call["function"]["arguments"].values():
                    words = {f"[{value}]"} if isinstance(value, int) else set(str(value).split())
                    assert all(word in seen.lower() for word in words)
            seen += "\n" + str(message["content"])


def test_demonstrations_of_other_tools_do_not_use_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "NUM_DEMONSTRATIONS", 4)
    overrides = [MODEL, 'env.tools=["tools:search","tools:expand"]']
    process.main(["--local_save_dir", str(tmp_path), "--local_dataset_path", str(SAMPLE), *overrides])
    used = {
        made_call["function"]["name"]
        for row in read_rows(tmp_path / "demonstrations.jsonl")
        for message in row["messages"]
        for made_call in message.get("tool_calls", ())
    }
    assert used == {"search", "expand"}


# Baselines


def test_baselines_read_no_more_than_they_may(made: Made, capsys: pytest.CaptureFixture[str]) -> None:
    baselines.main(["--data", str(made.folder), "--split", "test", "--max_read", "12", "--experts"])
    lines = [line.split() for line in capsys.readouterr().out.splitlines()[1:]]
    assert {line[0] for line in lines} == {*policies.BASELINES, "expert", "expert_without_cited"}
    assert all(float(line[-1]) <= 12 for line in lines)
    recall = {line[0]: float(line[3]) for line in lines if line[1] == "all"}
    assert recall["expert"] >= max(value for name, value in recall.items() if not name.startswith("expert"))


# PeerRead


def write_peerread(folder: Path) -> Path:
    """A clone with four papers, the last of which cites the others."""
    for number in range(4):
        section = folder / "data" / ("acl_2017" if number else "arxiv.cs.cl_2007-2017") / "train"
        about = {"title": f"Title {number}.", "abstract": "Words.", "DATE_OF_SUBMISSION": f"{number + 1}-Apr-2017"}
        cited = [{"title": f"title {other}"} for other in range(3)] if number == 3 else [{"title": None}]
        sentence = "This sentence is long enough and cites two papers (A, 2015; B, 2016)."
        mentions = [{"referenceID": other, "context": sentence} for other in (0, 2, 17)]
        parsed = {"metadata": {"references": cited, "referenceMentions": mentions}}
        for kind, name, content in (
            ("reviews", f"{number}.json", about),
            ("parsed_pdfs", f"{number}.pdf.json", parsed),
        ):
            (section / kind).mkdir(parents=True, exist_ok=True)
            (section / kind / name).write_text(json.dumps(content))
    return folder


def check_peerread(collection: Any) -> None:
    titles = [paper.title for paper in collection.papers]
    assert sorted(titles) == [f"Title {number}." for number in range(4)]
    asked = {
        query.kind: (titles[query.source], sorted(titles[paper] for paper in query.relevant))
        for query in collection.queries
    }
    assert asked == {
        "inline_citation": ("Title 3.", ["Title 0.", "Title 2."]),
        "related_work": ("Title 3.", ["Title 0.", "Title 1.", "Title 2."]),
    }


def test_peerread_is_read_from_a_clone(tmp_path: Path) -> None:
    check_peerread(sources.read_collection(write_peerread(tmp_path / "PeerRead")))
    with pytest.raises(DataError, match="it is not PeerRead"):
        peerread.read_peerread(tmp_path)


def test_peerread_is_downloaded_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    served = tmp_path / "served"
    served.mkdir()
    write_peerread(tmp_path / "PeerRead-master")
    with tarfile.open(served / "master.tar.gz", "w:gz") as archive:
        archive.add(tmp_path / "PeerRead-master", "PeerRead-master")
    monkeypatch.setenv("AGENT_R1_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("AGENT_R1_DATA", raising=False)

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(served)))
    Thread(target=server.serve_forever, daemon=True).start()
    try:
        monkeypatch.setattr(sources, "ARCHIVE", f"http://127.0.0.1:{server.server_port}/master.tar.gz")
        check_peerread(sources.read_collection())
    finally:
        server.shutdown()
        server.server_close()
    check_peerread(sources.read_collection())
    broken = tmp_path / "broken.tar.gz"
    broken.write_bytes(b"not an archive")
    with pytest.raises(DataError, match="cannot be read as an archive"):
        sources.read_collection(broken)


# Whole runs

SMALL = (
    "rollout.groups_per_step=2",
    "rollout.group_size=2",
    "rollout.max_steps=3",
    "rollout.max_tokens=12",
    "rollout.context_length=2048",
    "trainer.steps=2",
    "sft.steps=2",
    "sft.batch_size=2",
    "eval.max_tasks=4",
    "eval.every=0",
)


def write_model(made: Made, folder: Path) -> Path:
    """A model of a few thousand parameters that has read the sample's words."""
    config = tiny_config(made.renderer.tokenizer)
    config.max_position_embeddings = 4096
    torch.manual_seed(0)
    LlamaForCausalLM(config).save_pretrained(folder)
    cast(Any, made.renderer.tokenizer).save_pretrained(folder)
    return folder


@pytest.mark.whole
@pytest.mark.parametrize("algorithm", ["pspo", "grpo"])
def test_it_trains_from_a_warm_start_and_is_evaluated_on_test_rows(
    made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, algorithm: str
) -> None:
    monkeypatch.chdir(tmp_path)
    if algorithm == "pspo":  # makes its data itself
        (tmp_path / "data").mkdir()
        (tmp_path / "data" / "papers").symlink_to(SAMPLE)
        monkeypatch.setenv("AGENT_R1_DATA", str(tmp_path / "data"))
    else:
        shutil.copytree(made.folder, tmp_path / "runs" / "paper_search_data")
    small = [*SMALL, f"model.path={write_model(made, tmp_path / 'model')}", f"algorithm={algorithm}"]
    summary = commands.train(str(RECIPE), *small, quiet=True)
    assert summary.steps == 2
    assert (tmp_path / "runs" / "paper_search_warm_start" / "hf" / "model.safetensors").is_file()
    evaluation = commands.evaluate(str(RECIPE), *small, "eval.split=test", model="runs/paper_search/hf", quiet=True)
    figures = {
        f"eval/{kind}/{name}" for kind in ("inline_citation", "related_work") for name in ("recall", "f1", "precision")
    }
    assert figures <= set(evaluation.metrics)


# Many episodes


def test_an_episode_holds_little_memory(made: Made) -> None:
    figures = paper_search.measure(made.folder, num_episodes=24, repeats=1)
    assert figures["calls"] == 24 * paper_search.CALLS
    assert 0 < figures["kb_per_episode"] < 100
