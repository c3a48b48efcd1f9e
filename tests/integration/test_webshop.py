"""The recipe webshop on its made-up products: pages, episodes, the service, demonstrations, and whole runs."""

from __future__ import annotations

import asyncio
import random
import subprocess
import sys
import tracemalloc
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from transformers import LlamaForCausalLM

from agent_r1.chat import ChatRenderer
from agent_r1.data.tasks import load_tasks, read_rows
from agent_r1.engines import ScriptedEngine
from agent_r1.envs import AgentEnv, RemoteEnv, check_env, make_env
from agent_r1.errors import ConfigError, DataError
from agent_r1.models.tiny import train_tokenizer
from agent_r1.registry import load_module, recipe_folder
from agent_r1.rollout import Rollout, RolloutLimits
from agent_r1.types import Action, Episode, Observation, SamplingParams, StopReason, Task, Trajectory
from benchmarks.speed import webshop as speed
from tests.conftest import tiny_config
from tests.helpers import commands
from tests.helpers.commands import resolve
from tests.helpers.recipe_runs import ROOT, WHOLE_DATA, MadeSample, demonstrated_turns

pytest.importorskip("rapidfuzz", reason="the extra webshop is not installed")
pytest.importorskip("bm25s", reason="the extra webshop is not installed")

RECIPE = ROOT / "recipes" / "webshop"
SAMPLE = RECIPE / "sample"
MODEL = "model.path=none"

with recipe_folder(RECIPE):
    baselines = load_module("baselines")
    environment = load_module("env")
    expert = load_module("expert")
    goals = load_module("goals")
    pages = load_module("pages")
    process = load_module("data_preprocess.process_webshop")
    prompts = load_module("prompts")
    reward_fn = load_module("reward_fn")
    shops = load_module("shop")


@dataclass(frozen=True)
class Made(MadeSample):
    """The sample as the recipe makes it."""

    @property
    def shop(self) -> Any:
        return shops.open_shop(self.folder)

    def env(self, **arguments: Any) -> AgentEnv:
        env: AgentEnv = environment.ShopEnv(shop=str(self.folder), **arguments)
        return env


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """The files that the script writes, and a tokenizer made of them."""
    folder = tmp_path_factory.mktemp("runs") / "webshop_data"
    process.main(["--local_save_dir", str(folder), "--local_dataset_path", str(SAMPLE), MODEL])
    _, config = resolve([str(RECIPE), f"run.folder={folder.parent}", MODEL])
    renderer = ChatRenderer(train_tokenizer(list(read_rows(folder / "demonstrations.jsonl"))))
    return Made(folder=folder, config=config, renderer=renderer)


def goal_of(task: Task) -> Any:
    return goals.Goal.from_json(task.env_kwargs["goal"])


def plan_of(made: Made, task: Task) -> list[str]:
    return cast(list[str], expert.gold_plan(made.shop, goal_of(task)))


def play(env: AgentEnv, task: Task, texts: Sequence[str]) -> list[Any]:
    """The first observation, then the result of each action."""

    async def run() -> list[Any]:
        seen: list[Any] = [await env.reset(task)]
        for text in texts:
            seen.append(await env.step(Action(text=text, content=text)))
        await env.close()
        return seen

    return asyncio.run(run())


def replies(env: AgentEnv, task: Task, texts: Sequence[str]) -> list[str]:
    """What the environment answers to each action."""
    return [str(result.observation.messages[-1]["content"]) for result in play(env, task, texts)[1:]]


def test_demonstrating_says_how_far_it_is(
    made: Made, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agent_r1.console._SECONDS_BETWEEN_LINES", 0.0)
    tasks = [(task, goal_of(task)) for task in made.tasks("train")[:2]]
    asyncio.run(expert.demonstrations(made.env, made.shop, tasks))
    assert "demonstrating: 1 of 2 goals after 0 min\n" in capsys.readouterr().err


def task_with_options(made: Made, least: int = 1) -> Task:
    return next(task for task in made.tasks("train") if len(goal_of(task).options) >= least)


# Rows


def test_the_sample_becomes_rows_with_the_usual_columns(made: Made) -> None:
    sizes = {split: len(made.tasks(split)) for split in ("train", "validation", "test")}
    assert min(sizes.values()) >= 10
    task = made.tasks("test")[0]
    assert (task.data_source, task.agent_name, task.task_id) == (
        "webshop",
        "env_loop",
        f"webshop-{goal_of(task).goal_id}",
    )
    assert [message["role"] for message in task.prompt] == ["system", "user"]
    assert task.prompt[1]["content"] == f"Instruction: {goal_of(task).text}"
    assert task.ground_truth is None


def test_human_goals_have_a_file_of_their_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    process.main(["--local_save_dir", str(tmp_path), "--local_dataset_path", str(SAMPLE), "--human", MODEL])
    tasks = load_tasks([tmp_path / "human.parquet"])
    assert {task.data_source for task in tasks} == {"webshop_human"}
    assert f"{len(tasks)} human goals of 8 products" in capsys.readouterr().out


# Pages


def walk(made: Made, *clicks: str) -> Any:
    """The page after a search that finds more than fifty products, and some clicks."""
    page = pages.search("size color tea desk headset")
    for button in clicks:
        page = pages.follow(made.shop, page, button)
        assert page is not None, button
    return page


def test_results_have_ten_products_per_page_and_both_ways_to_turn(made: Made) -> None:
    first, last = walk(made), walk(made, "next >", "next >", "next >", "next >")
    found = made.shop.search(first.query)
    assert len(found) == 50
    assert pages.buttons(made.shop, first) == ["back to search", "next >", *map(str.lower, found[:10])]
    assert pages.buttons(made.shop, last) == ["back to search", "< prev", *map(str.lower, found[40:])]
    assert pages.follow(made.shop, first, "< prev") is None
    assert pages.follow(made.shop, last, "next >") is None
    assert walk(made, "next >", "< prev") == first


def test_every_button_leads_to_a_page_and_nothing_else_does(made: Made) -> None:
    rng = random.Random(0)
    page = walk(made)
    for _ in range(100):
        names = pages.buttons(made.shop, page)
        assert all(pages.follow(made.shop, page, name) is not None for name in names)
        assert pages.follow(made.shop, page, "no such button") is None
        page = pages.follow(made.shop, page, rng.choice(names))
        page = walk(made) if not page.query or page.bought else page


def test_going_back_to_the_results_forgets_options_and_a_sub_page_keeps_them(made: Made) -> None:
    asin = next(asin for asin in made.shop.search(walk(made).query)[:10] if made.shop.product(asin).options)
    value = next(iter(made.shop.product(asin).option_names))
    chosen = walk(made, asin.lower(), value.upper())
    assert dict(chosen.options) == {made.shop.product(asin).option_names[value]: value}
    assert pages.follow(made.shop, pages.follow(made.shop, chosen, "features"), "< prev") == chosen
    assert pages.follow(made.shop, chosen, "< prev") == walk(made)
    assert pages.follow(made.shop, chosen, "back to search") == pages.Page()
    assert walk(made, asin.lower(), "description", "< prev", "reviews", "< prev") == walk(made, asin.lower())


def test_a_later_value_of_an_option_replaces_the_earlier_one(made: Made) -> None:
    task = task_with_options(made)
    item = made.shop.product(goal_of(task).asin)
    name, (first, second, *_) = next((name, values) for name, values in item.options.items() if len(values) > 1)
    page = pages.Page(query="x", asin=item.asin)
    for value in (first, second):
        page = pages.follow(made.shop, page, value)
    assert page.options == ((name, second),)


def test_pages_say_what_their_buttons_are(made: Made) -> None:
    text = pages.PageText(title_characters=20, text_characters=30)
    results, asin = text.write(made.shop, walk(made)).splitlines(), made.shop.search(walk(made).query)[0]
    assert results[:2] == ["Page 1 of 5, 50 products", "[back to search] [next >]"]
    assert results[2].startswith(f"[{asin}] ")
    assert results[2].endswith(made.shop.product(asin).price_tag)
    assert all(len(line) <= 20 + len("[M000000000] ") + len(" $100.00 to $140.00") for line in results[2:])
    item = made.shop.product(asin)
    page = text.write(made.shop, walk(made, asin.lower()))
    assert page.startswith(f"{item.name}\nPrice: {item.price_tag}, rating: N.A.\n")
    assert all(f"[{value}]" in page for value in item.option_names)
    assert page.endswith("[back to search] [< prev] [description] [features] [reviews] [buy now]")
    features = text.write(made.shop, walk(made, asin.lower(), "features"))
    assert features.startswith("features:\nIt is ")
    assert features.endswith("\n[back to search] [< prev]")
    assert len(features) <= len("features:\n") + 30 + len("\n[back to search] [< prev]")
    assert text.write(made.shop, walk(made, asin.lower(), "reviews")).startswith("reviews:\nnone\n")
    assert text.write(made.shop, pages.search("zzzz")) == "No product was found.\n[back to search]"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("search[ green   tea ]", "search[green tea]"),
        ("Thought: the size.\nAction: Click[8 fl oz (pack of 2)]", "click[8 fl oz (pack of 2)]"),
        ("search[a]\nclick[b]", "click[b]"),
        ("click[size [us] 8]", "click[size [us] 8]"),
        ("click[]", "None"),
        ("research[tea", "None"),
        ("", "None"),
    ],
)
def test_the_last_action_of_a_text_counts(text: str, expected: str) -> None:
    assert str(prompts.read_action(text)) == expected


# Episodes


def test_gold_plans_score_one_and_plans_that_stop_short_do_not(made: Made) -> None:
    tasks = [task for split in ("train", "validation", "test") for task in made.tasks(split)]
    for task in tasks[::12]:
        plan = plan_of(made, task)
        last = play(made.env(), task, plan)[-1]
        assert last.done
        assert last.info["purchase"]["score"] == 1.0
        assert last.info["asin"] == goal_of(task).asin
        assert not play(made.env(), task, plan[:-1])[-1].done
        if goal_of(task).options:
            bare = [*(text for text in plan if text.removeprefix("click[")[:-1] not in goal_of(task).options.values())]
            assert play(made.env(), task, bare)[-1].info["purchase"]["score"] < 1.0


def test_the_plans_of_other_goals_score_less(made: Made) -> None:
    tasks = made.tasks("test")
    for task in tasks[::5]:
        kind = made.shop.product(goal_of(task).asin).category
        other = next(task for task in tasks if made.shop.product(goal_of(task).asin).category != kind)
        assert play(made.env(), task, plan_of(made, other))[-1].info["purchase"]["score"] < 1.0


def test_the_environment_has_no_findings(made: Made) -> None:
    task = task_with_options(made)
    actions = [Action(text=text, content=text) for text in ("click[x]", "hello", *plan_of(made, task))]
    for context in ("append", "shop_page"):
        assert check_env(partial(made.env, context=context), task, actions) == []
        assert check_env(partial(made.env, context=context), task) == []


def test_what_is_no_button_changes_nothing_and_says_what_is_one(made: Made) -> None:
    task = task_with_options(made)
    before, search, *_ = plan = ["click[buy now]", *plan_of(made, task)]
    said = replies(made.env(), task, [before, "buy it", search, "click[no such thing]"])
    assert said[0] == "Error: this page has no button [buy now]. Write search[words]."
    assert said[1] == "Error: write one action, search[words] or click[button], and nothing else."
    assert said[3].startswith(
        "Error: this page has no button [no such thing]. Click a product, a value or one of: back to"
    )
    assert play(made.env(), task, [*plan[:2], "click[nothing]", *plan[2:]])[-1].info["purchase"]["score"] == 1.0


def test_a_search_is_possible_from_every_page(made: Made) -> None:
    task = task_with_options(made)
    search, *clicks = plan_of(made, task)
    texts = ["search[tea]", f"click[{made.shop.search('tea')[0]}]", "click[features]", search, *clicks]
    assert play(made.env(), task, texts)[-1].info["purchase"]["score"] == 1.0


def test_anchors_are_equal_for_equal_pages_and_for_no_others(made: Made) -> None:
    task = task_with_options(made, 2)
    search, item, one, other, buy = plan_of(made, task)[:2] + plan_of(made, task)[-3:]

    def anchor(*texts: str) -> Any:
        return play(made.env(), task, texts)[-1].observation.anchor

    assert anchor(search, item, one, other) == anchor("search[tea]", search.upper(), item, other, "oops", one)
    different = [anchor(search), anchor("search[tea]"), anchor(search, item), anchor(search, item, one)]
    assert len({*different, anchor(search, item, other), play(made.env(), task, [])[0].anchor}) == 6
    assert buy == "click[buy now]"


def test_after_the_purchase_the_episode_is_over(made: Made) -> None:
    task = made.tasks("train")[0]
    with pytest.raises(RuntimeError, match="the episode is over"):
        play(made.env(), task, [*plan_of(made, task), "search[tea]"])


def test_a_goal_of_a_product_that_the_shop_lacks_is_refused(made: Made) -> None:
    task = made.tasks("train")[0]
    stranger = {"goal": {**task.env_kwargs["goal"], "asin": "B0MISSING"}}
    with pytest.raises(DataError, match="the shop has no product B0MISSING"):
        play(made.env(), replace(task, env_kwargs=stranger), [])


def test_a_missing_shop_says_how_to_make_it(made: Made, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"has no products\.jsonl and index .*process_webshop\.py --local_save_dir"):
        play(environment.ShopEnv(shop=str(tmp_path)), made.tasks("train")[0], [])


@pytest.mark.parametrize("name", ["title_characters", "text_characters"])
def test_lengths_are_checked(made: Made, name: str) -> None:
    with pytest.raises(ConfigError, match=f"env.{name}"):
        made.env(**{name: 0})


def test_open_episodes_share_the_shop(made: Made) -> None:
    task = task_with_options(made)
    plan = plan_of(made, task)[:-1]

    async def open_all() -> list[AgentEnv]:
        envs = [made.env() for _ in range(64)]
        for env in envs:
            await env.reset(task)
            for text in plan:
                await env.step(Action(text=text, content=text))
        return envs

    asyncio.run(open_all())  # what is made once, such as the memory of searches
    tracemalloc.start()
    envs = asyncio.run(open_all())
    taken = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert len(envs) == 64
    assert taken < 64 * 20_000  # bytes; the shop alone takes more


# What the model sees


def test_a_page_that_stands_in_the_conversation_is_not_written_again(made: Made) -> None:
    task = task_with_options(made, 2)
    search, item, one, other, _ = plan_of(made, task)[:2] + plan_of(made, task)[-3:]
    goal = goal_of(task)
    names = [made.shop.product(goal.asin).option_names[text.removeprefix("click[")[:-1]] for text in (one, other)]
    said = replies(
        made.env(), task, [search, item, one, other, "click[features]", "click[< prev]", "click[< prev]", search]
    )
    assert said[2] == f"Chosen: {names[0]}: {goal.options[names[0]]}. Not chosen: {names[1]}."
    assert said[3] == f"Chosen: {names[0]}: {goal.options[names[0]]}, {names[1]}: {goal.options[names[1]]}."
    assert said[5] == said[3]
    assert said[6] == said[7] == f"Page 1 of the results for {search.removeprefix('search[')[:-1].lower()}, as above."


def test_the_policy_shop_page_shows_the_instruction_the_actions_and_the_page(made: Made) -> None:
    task = task_with_options(made)
    search, item = plan_of(made, task)[:2]
    env = made.env(context="shop_page")
    results = play(env, task, [search, item, "click[nothing]"])
    messages = results[2].observation.messages
    text = str(messages[1]["content"])
    assert [message["role"] for message in messages] == ["system", "user"]
    assert text.startswith(f"Instruction: {goal_of(task).text}\n\nActions so far: {search} {item}\n\n")
    assert text.endswith("[buy now]")
    with_error = results[3].observation.messages
    assert with_error[:2] == messages
    assert [message["role"] for message in with_error[2:]] == ["assistant", "user"]
    assert str(with_error[3]["content"]).startswith("Error: ")


def test_shop_page_keeps_prompts_short(made: Made) -> None:
    task = task_with_options(made)
    texts = [text for n in range(4) for text in (f"search[{word}]" for word in ("tea", "lamp", f"desk{n} shirt"))]

    def longest(context: str) -> int:
        seen = play(made.env(context=context), task, texts)[1:]
        return max(sum(len(str(m["content"])) for m in result.observation.messages) for result in seen)

    assert longest("shop_page") * 2 < longest("append")


# The service


def record(seen: Sequence[Any]) -> list[Any]:
    """What a model, a reward function and an algorithm see of an episode."""
    shown = [seen[0], *(result.observation for result in seen[1:])]
    parts = [(o.messages, o.anchor) if isinstance(o, Observation) else None for o in shown]
    return [*parts, *((result.done, result.reward, dict(result.info)) for result in seen[1:])]


async def play_in_turn(make: Callable[[], AgentEnv], task: Task, texts: Sequence[str]) -> list[Any]:
    env = make()
    try:
        seen: list[Any] = [await env.reset(task)]
        for text in texts:
            seen.append(await env.step(Action(text=text, content=text)))
        return record(seen)
    finally:
        await env.close()


def compare_with_service(made: Made, url: str, tasks: Sequence[Task]) -> Awaitable[None]:
    async def run() -> None:
        for task in tasks:
            texts = ["search[tea lamp]", "click[next >]", "hello", *plan_of(made, task)]
            for context in ("append", "shop_page"):
                arguments = {"shop": str(made.folder), "context": context}
                remote = await play_in_turn(partial(RemoteEnv, url, args=arguments), task, texts)
                local = await play_in_turn(partial(made.env, context=context), task, texts)
                assert remote == local
                assert local[-1][2]["purchase"]["score"] == 1.0

    return run()


@pytest.mark.whole
def test_a_service_gives_the_same_pages_and_scores(made: Made) -> None:
    pytest.importorskip("uvicorn", reason="the extra serve is not installed")
    from agent_r1.envs.remote.server import EnvService, create_app
    from agent_r1.web import listen, running_server

    async def run() -> None:
        service = EnvService(environment.ShopEnv, name="webshop")
        async with running_server(create_app(service), listen("127.0.0.1", 0)) as url:
            await compare_with_service(made, url, made.tasks("test")[:2])

    asyncio.run(run())


@contextmanager
def served_shop() -> Iterator[str]:
    """`agent-r1 env serve env:ShopEnv` in the recipe's folder, as a process; its address."""
    command = [sys.executable, "-m", "agent_r1.cli", "env", "serve", "env:ShopEnv", "--port", "0"]
    process = subprocess.Popen(command, cwd=RECIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        assert line.startswith("serving env:ShopEnv at "), line + (process.communicate()[1] if process.poll() else "")
        yield line.split()[-1]
    finally:
        process.kill()
        process.communicate()


# Demonstrations


def rollout(made: Made, config: Any, task: Task, engine: ScriptedEngine) -> Trajectory:
    runner = Rollout(
        engine=engine,
        renderer=made.renderer,
        reward=reward_fn.score,
        make_env=partial(make_env, section=config.env),
        limits=RolloutLimits(max_steps=config.rollout.max_steps, retries=0),
    )
    sampling = SamplingParams(max_tokens=2000)
    return asyncio.run(runner.run([task], group_size=1, sampling=sampling, seed=0))[0].trajectories[0]


def test_demonstrations_earn_full_marks_and_teach_the_prompts_that_a_rollout_shows(made: Made) -> None:
    tasks = {str(task.prompt[1]["content"]): task for task in made.tasks("train")}
    rows = made.demonstrations
    assert len(rows) > 100
    for row in rows[::12]:
        turns = list(demonstrated_turns(made.renderer, row))
        engine = ScriptedEngine([action for _, action in turns], context_length=20_000)
        trajectory = rollout(made, made.config, tasks[row["messages"][1]["content"]], engine)
        assert trajectory.outcome_reward == 1.0, trajectory.error
        assert trajectory.reward_parts["bought"] == trajectory.reward_parts["options"] == 1.0
        assert [prompt for prompt, _ in engine.requests] == [prompt for prompt, _ in turns]


def test_demonstrations_of_shop_page_are_one_per_step(made: Made, tmp_path: Path) -> None:
    process.main(
        ["--local_save_dir", str(tmp_path), "--local_dataset_path", str(SAMPLE), MODEL, "env.context=shop_page"]
    )
    rows = list(read_rows(tmp_path / "demonstrations.jsonl"))
    assert all([message["role"] for message in row["messages"]] == ["system", "user", "assistant"] for row in rows)
    assert sum(row["messages"][-1]["content"] == "click[buy now]" for row in rows) == len(made.demonstrations)
    assert (tmp_path / "test.parquet").read_bytes() == (made.folder / "test.parquet").read_bytes()


def test_demonstrations_are_of_training_goals_and_differ_in_form(made: Made) -> None:
    texts = {str(task.prompt[1]["content"]) for task in made.tasks("train")}
    said = [[m["content"] for m in row["messages"] if m["role"] == "assistant"] for row in made.demonstrations]
    assert {row["messages"][1]["content"] for row in made.demonstrations} <= texts
    assert max(map(len, said)) <= expert.MAX_ACTIONS
    flat = [text for texts in said for text in texts]
    assert any(text in ("click[features]", "click[description]") for text in flat)
    assert any(
        texts.count("click[< prev]") and "click[features]" not in texts for texts in said
    )  # left a wrong product
    assert len({len(texts) for texts in said}) >= 4


def test_an_expert_that_does_not_find_the_product_has_no_plan(made: Made) -> None:
    goal = replace(goal_of(made.tasks("train")[0]), text="Find me zzzz")
    assert expert.plan(made.shop, goal, random.Random(0)) is None


# Reward


def test_an_episode_without_a_purchase_earns_nothing() -> None:
    empty = Episode(steps=(), stop_reason=StopReason.DONE)
    assert reward_fn.score(Task(task_id="t", prompt=()), empty) == {"score": 0.0, "success": 0.0, "bought": 0.0}


def test_an_episode_that_runs_out_of_steps_earns_nothing(made: Made) -> None:
    task = task_with_options(made)
    config = replace(made.config, env={**made.config.env, "limits": [{"name": "steps", "steps": 2, "ends": True}]})
    plan = [made.renderer.tokenizer.encode(text, add_special_tokens=False) for text in plan_of(made, task)]
    end = made.renderer.tokenizer.eos_token_id
    engine = ScriptedEngine([(*ids, end) for ids in plan], context_length=20_000)
    trajectory = rollout(made, config, task, engine)
    assert (trajectory.outcome_reward, trajectory.stop_reason) == (0.0, StopReason.DONE)
    assert len(trajectory.steps) == 2


# Commands


def test_the_scripted_customers_are_in_the_order_of_what_they_know(
    made: Made, capsys: pytest.CaptureFixture[str]
) -> None:
    baselines.main([str(made.folder), "--split", "test"])
    lines = [line.split() for line in capsys.readouterr().out.splitlines()[1:]]
    scores = {name: float(score) for name, score, _ in lines}
    assert list(scores) == ["random", "first_hit", "with_options", "first_offering", "gold"]
    assert scores["random"] < scores["first_hit"] < scores["with_options"] <= scores["first_offering"] <= scores["gold"]
    assert lines[-1][1:] == ["100.0", "100.0"]


@pytest.mark.whole
def test_the_benchmark_counts_steps_and_bytes(made: Made, tmp_path: Path) -> None:
    file = tmp_path / "webshop.json"
    figures = speed.main([str(made.folder), "--steps", "100", "--repeats", "1", "--episodes", "8", "--json", str(file)])
    assert figures["steps_per_cpu_second"] > 200
    assert 0 < figures["memory_mb"] < 1 < figures["shop_mb"] + 1
    assert file.is_file()


@pytest.mark.whole
@pytest.mark.skipif(not (WHOLE_DATA / "webshop").is_dir(), reason="the whole data set is not here")
def test_gold_plans_of_all_held_out_goals_score_one_in_the_environment(tmp_path: Path) -> None:
    process.main(["--local_save_dir", str(tmp_path), "--local_dataset_path", str(WHOLE_DATA / "webshop"), MODEL])
    tasks = load_tasks([tmp_path / "validation.parquet", tmp_path / "test.parquet"])
    assert len(tasks) == 764
    assert asyncio.run(baselines.play_all(str(tmp_path), tasks, baselines.gold)) == [1.0] * 764


# Whole runs

SMALL = (
    "rollout.groups_per_step=2",
    "rollout.group_size=2",
    "rollout.max_steps=3",
    "rollout.max_tokens=16",
    "rollout.context_length=1024",
    "trainer.steps=2",
    "sft.steps=2",
    "sft.batch_size=2",
    "eval.max_tasks=2",
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
def test_it_trains_from_a_warm_start_in_the_process_and_in_a_service(
    made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "webshop").symlink_to(SAMPLE)
    monkeypatch.setenv("AGENT_R1_DATA", str(tmp_path / "data"))
    small = [*SMALL, f"model.path={write_model(made, tmp_path / 'model')}"]
    summary = commands.train(str(RECIPE), *small, "algorithm=gigpo", quiet=True)
    assert summary.steps == 2
    evaluation = commands.evaluate(str(RECIPE), *small, "eval.split=test", model="runs/webshop/hf", quiet=True)
    assert "eval/webshop/greedy" in evaluation.metrics
    with served_shop() as url:
        asyncio.run(compare_with_service(made, url, made.tasks("test")[:2]))  # type: ignore[arg-type]
        remote = ("env=remote", f"env.url={url}", f"env.args={{shop:{tmp_path}/runs/webshop_data}}", "run.name=served")
        assert commands.train(str(RECIPE), *small, *remote, quiet=True).steps == 2
