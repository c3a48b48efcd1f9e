"""The recipe tau_retail on its sample: files, episodes, gold plans, customers, demonstrations, endpoints, runs."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import tracemalloc
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from transformers import LlamaForCausalLM

from agent_r1.chat import ChatRenderer
from agent_r1.checks.plans import _score, plans_result
from agent_r1.data.tasks import read_rows
from agent_r1.engines import ScriptedEngine
from agent_r1.envs import check_env, make_env
from agent_r1.errors import ConfigError, DataError
from agent_r1.models.tiny import train_tokenizer
from agent_r1.registry import load_module, recipe_folder
from agent_r1.rollout import Rollout, RolloutLimits
from agent_r1.types import Action, SamplingParams, Task, ToolCall, Trajectory
from benchmarks.speed import tau_retail as benchmark
from tests.conftest import tiny_config
from tests.helpers import commands
from tests.helpers.chat_server import answer, chat_server
from tests.helpers.commands import resolve
from tests.helpers.recipe_runs import ROOT, WHOLE_DATA, MadeSample, demonstrated_turns

RECIPE = ROOT / "recipes" / "tau_retail"
SAMPLE = RECIPE / "sample"
MODEL = "model.path=none"

with recipe_folder(RECIPE):
    process = load_module("data_preprocess.process_tau_retail")
    sources, unnamed = load_module("data_preprocess.sources"), load_module("data_preprocess.unnamed")
    database, environment, expert = load_module("database"), load_module("env"), load_module("expert")
    customers, wording, prompts = load_module("customers"), load_module("wording"), load_module("prompts")
    model_customer, reward_fn, tools = load_module("model_customer"), load_module("reward_fn"), load_module("tools")


@dataclass(frozen=True)
class Made(MadeSample):
    """The sample as the recipe makes it."""

    @property
    def database(self) -> Any:
        return database.open_database(str(self.folder))

    def env(self, **settings: Any) -> Any:
        return environment.RetailEnv(str(self.folder), **settings)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """The files that the script writes, and a tokenizer made of them."""
    folder = tmp_path_factory.mktemp("runs") / "tau_retail_data"
    process.main(["--local_save_dir", str(folder), "--local_dataset_path", str(SAMPLE), MODEL])
    _, config = resolve([str(RECIPE), f"run.folder={folder.parent}", MODEL])
    rows = list(read_rows(folder / "demonstrations.jsonl"))
    return Made(folder=folder, config=config, renderer=ChatRenderer(train_tokenizer(rows[:8])))


def call(name: str, **arguments: Any) -> Action:
    return Action(text="", tool_calls=(ToolCall(name=name, arguments=arguments),))


def say(text: str) -> Action:
    return Action(text=text, content=text)


def as_call(action: Any) -> Action:
    return call(action["name"], **action["kwargs"])


async def play(env: Any, task: Task, *actions: Action) -> list[Any]:
    try:
        await env.reset(task)
        return [await env.step(action) for action in actions]
    finally:
        await env.close()


def run(env: Any, task: Task, *actions: Action) -> list[Any]:
    return asyncio.run(play(env, task, *actions))


def success(made: Made, task: Task, *actions: Action | str) -> float:
    return asyncio.run(_score(made.env(), reward_fn.score, task, actions))


def kind(made: Made, split: str, *names: str) -> Task:
    """The first task whose gold changes are these."""
    return next(
        task
        for task in made.tasks(split)
        if [one["name"] for one in task.env_kwargs["actions"] if one["name"] in tools.WRITING] == list(names)
    )


# Rows and splits


def test_splits_share_no_task_and_held_out_users_are_not_trained_on(made: Made) -> None:
    splits = {name: made.tasks(name) for name in ("train", "validation", "test")}
    assert {name: {task.data_source for task in tasks} for name, tasks in splits.items()} == {
        "train": {"synthetic", "unnamed"},
        "validation": {"synthetic", "dev"},
        "test": {"test"},
    }
    texts = [task.env_kwargs["instruction"] for tasks in splits.values() for task in tasks]
    assert len(texts) == len(set(texts))
    users = {
        name: {task.extra_info["user_id"] for task in tasks if task.data_source != "dev"}
        for name, tasks in splits.items()
    }
    assert not users["train"] & users["validation"]


def test_the_sample_is_small_and_the_policy_is_short(made: Made) -> None:
    assert sum(file.stat().st_size for file in SAMPLE.iterdir()) < 300_000
    task = made.tasks("train")[0]
    assert task.prompt == made.env().preview(task).messages
    short, full = (made.env(policy=policy).preview(task).messages[0]["content"] for policy in ("short", "full"))
    assert len(short) < 2_200 < 5_000 < len(full)
    assert len(json.dumps(made.env().preview(task).tools)) < 5_400


def test_order_ids_are_left_out_only_where_one_order_can_be_meant(made: Made) -> None:
    rows = [task for task in made.tasks("train") if task.data_source == "unnamed"]
    assert len(rows) >= 5
    for task in rows:
        assert "#W" not in task.env_kwargs["instruction"]
        [action] = task.env_kwargs["actions"]
        found = unnamed.meant_orders(made.database, task.extra_info["user_id"], action)
        assert found == [action["kwargs"]["order_id"]]
    orders = made.database.orders
    user_id, pending = next(
        (user_id, pending)
        for user_id, user in made.database.users.items()
        if len(pending := [order for order in user["orders"] if orders[order]["status"] == "pending"]) > 1
    )
    action = {"name": "cancel_pending_order", "kwargs": {"order_id": pending[0], "reason": "no longer needed"}}
    assert unnamed.meant_orders(made.database, user_id, action) == pending
    said = f"You are shy. Cancel order {pending[0]} because no longer needed. "
    task = {"task_id": "t", "user_id": user_id, "actions": [action], "instruction": said}
    assert unnamed.without_ids(made.database, task) is None


# Gold plans and wrong ones


def test_gold_plans_score_full_marks_and_cut_ones_never(made: Made) -> None:
    tasks = [task for split in ("train", "validation", "test") for task in made.tasks(split)]
    found = asyncio.run(plans_result(lambda task: made.env(), reward_fn.score, tasks[:50]))
    assert found is not None
    assert (found.findings, found.seen) == ((), "50 of 50 gold plans score full marks, 0 cut ones do")
    rest = asyncio.run(plans_result(lambda task: made.env(), reward_fn.score, tasks[50:]))
    assert rest is not None
    assert rest.findings == ()


def test_a_wrong_or_extra_or_missing_change_scores_nothing(made: Made) -> None:
    task = kind(made, "train", "cancel_pending_order", "cancel_pending_order")
    first, second = map(as_call, task.env_kwargs["actions"])
    kwargs = dict(task.env_kwargs["actions"][1]["kwargs"])
    reasons = {"no longer needed", "ordered by mistake"}
    wrong = call("cancel_pending_order", **{**kwargs, "reason": (reasons - {kwargs["reason"]}).pop()})
    address = dict.fromkeys(("address1", "address2", "city", "state", "country", "zip"), "x")
    extra = call("modify_user_address", user_id=task.extra_info["user_id"], **address)
    assert success(made, task, first, second, "Done.") == 1.0
    assert success(made, task, second, first, second, "Done.") == 1.0  # the third call is refused
    assert success(made, task, first, "Done.") == 0.0
    assert success(made, task, first, wrong, "Done.") == 0.0
    assert success(made, task, first, second, extra, "Done.") == 0.0
    assert success(made, task, first, second) == 0.0


def test_outputs_must_be_told_and_the_database_must_be_right(made: Made) -> None:
    task = next(task for task in made.tasks("test") if task.env_kwargs["outputs"])
    *plan, last = made.env().gold_actions(task)
    assert success(made, task, *plan, last) == 1.0
    assert success(made, task, *plan, "All is done.") == 0.0
    assert success(made, task, *plan, f"<think>{last.text}</think>All is done.") == 0.0
    writes = [one for one in plan if one.tool_calls[0].name in tools.WRITING]
    if writes:
        assert success(made, task, last) == 0.0


def test_several_calls_in_one_action_run_in_their_order(made: Made) -> None:
    task = kind(made, "train", "modify_pending_order_payment", "modify_pending_order_items")
    calls = tuple(ToolCall(name=one["name"], arguments=one["kwargs"]) for one in task.env_kwargs["actions"])
    both, turned = Action(text="", tool_calls=calls), Action(text="", tool_calls=calls[::-1])
    assert success(made, task, both, "Done.") == 1.0
    assert success(made, task, turned, "Done.") == 0.0  # once its items are changed, an order is closed


def test_a_transfer_ends_the_episode(made: Made) -> None:
    task = made.tasks("train")[0]
    results = run(made.env(), task, call("transfer_to_human_agents", summary="no"))
    assert results[-1].done
    assert results[-1].info["database_right"] == 0.0


def test_malformed_and_unknown_calls_are_explained_and_change_nothing(made: Made) -> None:
    task = made.tasks("train")[0]
    broken = Action(text="<tool_call>{", parse_error="not JSON")
    odd = call("get_order_details", order_id="#W\ud800" + "9" * 5000)
    results = run(made.env(), task, broken, call("drop_table", table="orders"), odd, say("Sorry."))
    shown = [str(result.observation.messages[-1]["content"]) for result in results[:-1]]
    assert all(text.startswith("Error: ") for text in shown)
    assert max(map(len, shown)) < 500
    assert results[-1].info["writes"] == []


def test_the_environment_keeps_its_contract(made: Made) -> None:
    task = made.tasks("train")[0]
    actions = [call("find_user_id_by_email", email="x@example.com"), say("I cannot find you.")]
    assert check_env(made.env, task, actions) == []


@pytest.mark.parametrize("setting", ["user", "policy", "form"])
def test_settings_that_do_not_exist_are_refused(made: Made, setting: str) -> None:
    with pytest.raises(ConfigError, match=rf"env\.{setting}=odd must be one of "):
        made.env(**{setting: "odd"})


def test_rows_without_an_instruction_or_with_unknown_actions_are_refused(made: Made) -> None:
    task = made.tasks("train")[0]
    with pytest.raises(DataError, match=r"env_kwargs\.instruction must be a text"):
        run(made.env(), replace(task, env_kwargs={}))
    wrong = replace(task, env_kwargs={**task.env_kwargs, "actions": [{"name": "drop", "kwargs": {}}]})
    with pytest.raises(DataError, match="with names of tools"):
        run(made.env(), wrong, say("Done."))


# Customers


def test_an_instruction_becomes_what_a_customer_says() -> None:
    request = wording.read_request(
        "Your name is Omar Lopez and your email is omar.lopez1868@example.com. You are rigid, creative. You want to "
        "return your 1.5 L kettle (#W7273336). If they ask you for a reason, you don't know it."
    )
    assert request.identity == "My name is Omar Lopez and my email is omar.lopez1868@example.com."
    assert request.parts == (
        "I want to return my 1.5 L kettle (#W7273336).",
        "If they ask me for a reason, I don't know it.",
    )
    request = wording.read_request("You are mei_kovacs_8020 (zip code 28236) and you want to exchange the bottle.")
    assert (request.identity, request.parts) == (
        "I am mei_kovacs_8020 (zip code 28236).",
        ("You want to exchange the bottle.".replace("You", "I"),),
    )


def dialog(instruction: str, *messages: str) -> list[str | None]:
    async def talk() -> list[str | None]:
        customer = customers.make_customer("rules", instruction, {})
        return [await customer.begin(), *[await customer.reply(message) for message in messages]]

    return asyncio.run(talk())


def test_a_customer_by_rules_tells_its_request_in_turns_and_says_yes() -> None:
    said = dialog(
        "Your name is Ann Lee and your zip code is 89501. You are shy. Cancel order #W1 because no longer needed. "
        "Return #W2 via paypal_1: Mug; ",
        "Please tell me your e-mail, or your name and zip code.",
        "What is the reason for the cancellation?",
        "I will cancel #W1 because it is no longer needed. Do you want me to proceed (yes/no)?",
        "The order is cancelled. Is there anything else?",
        "Shall I return the mug and refund paypal_1?",
        "The return is requested. Is there anything else I can do?",
    )
    assert said == [
        "Hello. Cancel order #W1 because no longer needed.",
        "My name is Ann Lee and my zip code is 89501.",
        "Cancel order #W1 because no longer needed.",
        "Yes, please.",
        "Return #W2 via paypal_1: Mug;",
        "Yes, please.",
        None,
    ]


def test_a_customer_by_rules_waits_until_something_is_said_about_its_request() -> None:
    said = dialog(
        "Your name is Ann Lee. Cancel order #W1.", "Let me see.", "One moment.", "I am sorry, I cannot do that."
    )
    assert said[1:] == ["Fine, I wait.", "Fine, I wait.", None]


def test_a_customer_by_rules_leaves_who_asks_for_the_same_forever() -> None:
    said = dialog("Your name is Ann Lee. Cancel order #W1.", *["What is your name?"] * 5)
    assert said[1:] == ["My name is Ann Lee."] * 3 + [None, None]


def test_a_customer_by_rules_says_what_stands_under_a_condition_when_it_is_met() -> None:
    instruction = (
        "Your name is Ann Lee. You want to cancel the mug in #W1, but if it is not possible, cancel the whole order. "
        "If the agent asks for confirmation, only exchange the lamp. If multiple colors are available, you prefer red."
    )
    assert dialog(
        instruction,
        "I am sorry, I can only cancel the whole order. Do you want me to proceed?",
        "Which color do you prefer?",
        "I cannot find the zip code. Is there anything else?",
        "I will cancel #W1 (yes/no)?",
        "I will exchange the lamp (yes/no)?",
        "It is cancelled.",
    ) == [
        "Hello. I want to cancel the mug in #W1.",
        "Cancel the whole order.",  # and no yes to another proposal
        "If multiple colors are available, I prefer red.",
        "My name is Ann Lee.",
        "Only exchange the lamp.",
        "Yes, please.",
        None,
    ]


def carried(instruction: str) -> tuple[int, bool]:
    """How many conditions an instruction has, and whether an agent that meets them all hears what follows from each,
    then a yes, and sees the customer leave."""
    request = wording.read_request(instruction)
    refused = [condition for condition in request.conditions if condition.kind == "refused"]
    asked = [condition for condition in request.conditions if condition.kind == "asked"]
    messages = [
        *["Is there anything else to change?"] * (len(request.parts) + 1),
        *(f"I am sorry, that is not possible: {condition.topic}." for condition in refused),
        *("Shall I do this?" if condition.confirms else f"Please tell me: {condition.topic}?" for condition in asked),
        *("Shall I do this (yes/no)?", "It is done."),
    ]
    heard = dialog(instruction, *messages)
    told = " ".join(filter(None, heard[: len(request.parts) + 1]))
    expected = [condition.then for condition in (*refused, *asked)]
    is_heard = heard[len(request.parts) + 2 :] == [*expected, "Yes, please.", None]
    early = [condition.then for condition in request.conditions if condition.then in told]
    return len(request.conditions), is_heard and not early and all(part in told for part in request.parts)


@pytest.mark.skipif(not (WHOLE_DATA / "tau_bench").is_dir(), reason="the whole data set is not here")
def test_the_conditions_of_all_published_tasks_are_carried() -> None:
    tasks = sources.read_retail(WHOLE_DATA / "tau_bench").tasks
    found = {split: [carried(str(task["instruction"])) for task in tasks[split]] for split in ("train", "dev", "test")}
    counts = {
        split: (sum(number > 0 for number, _ in rows), sum(number for number, _ in rows), sum(ok for _, ok in rows))
        for split, rows in found.items()
    }
    # Tasks with conditions, their conditions, and tasks of which all is heard in time.
    assert counts == {"train": (0, 0, 500), "dev": (4, 4, 20), "test": (31, 41, 75)}


def test_an_agent_that_asks_and_acts_succeeds_with_a_customer_by_rules(made: Made) -> None:
    task = kind(made, "train", "cancel_pending_order")
    [action] = task.env_kwargs["actions"]
    order = action["kwargs"]["order_id"]
    results = run(
        made.env(user="rules"),
        task,
        say("Hello. What is your e-mail address, or your name and zip code?"),
        say(f"I will cancel {order}. Do you confirm (yes/no)?"),
        as_call(action),
        say(f"{order} is cancelled."),
    )
    assert [result.done for result in results] == [False, False, False, True]
    assert results[1].observation.messages[-1] == {"role": "user", "content": "Yes, please."}
    assert results[-1].info["database_right"] == 1.0
    first = results[0].observation.messages
    assert "wait for the customer's yes" in first[0]["content"]
    assert order in first[1]["content"]


def talk_through(made: Made, task: Task) -> tuple[list[str], bool]:
    """What a customer by rules tells an agent that asks for all, does it and says so; and whether that is right."""

    async def talk() -> tuple[list[str], bool]:
        env = made.env(user="rules")
        observation = await env.reset(task)
        heard = [str(observation.messages[-1]["content"])]
        questions = [
            "What is your name and zip code, or your e-mail?",
            *["Is there anything else you want to change?"] * 15,
        ]
        for text in questions:
            heard.append(str((await env.step(say(text))).observation.messages[-1]["content"]))
            if heard[-1] == "That is all.":
                break
        heard.append((await env.step(say("Shall I do this (yes/no)?"))).observation.messages[-1]["content"])
        for action in task.env_kwargs["actions"]:
            if action["name"] in tools.WRITING:
                await env.step(as_call(action))
        last = await env.step(say(prompts.answer_text(task.env_kwargs["outputs"])))
        await env.close()
        return heard, bool(last.done and last.info["database_right"] == last.info["outputs_given"] == 1.0)

    return asyncio.run(talk())


def test_a_customer_by_rules_tells_all_of_every_request_before_it_leaves(made: Made) -> None:
    for task in [*made.tasks("validation"), *made.tasks("test")]:
        heard, right = talk_through(made, task)
        assert right
        assert heard[-2:] == ["That is all.", "Yes, please."]
        facts = r"#W\d+|[\w.]+@[\w.]+\w|\w+_\d{7}|\{[^}]*\}"
        told = " ".join(heard)
        assert [fact for fact in re.findall(facts, task.env_kwargs["instruction"]) if fact not in told] == []


def test_a_model_plays_the_customer_behind_a_real_server(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUSTOMER_KEY", "secret")
    task = kind(made, "train", "cancel_pending_order")
    [action] = task.env_kwargs["actions"]
    with chat_server() as server:
        server.replies = [
            answer("I want to cancel an order."),
            answer("<think>They need a yes.</think>Yes."),
            answer(model_customer.STOP),
        ]
        settings = {"url": server.url, "key_env": "CUSTOMER_KEY", "max_tokens": 50, "retries": 0}
        env = made.env(user="openai", user_server=settings)
        results = run(env, task, say("Shall I?"), as_call(action), say("It is cancelled."))
        shown = results[0].observation.messages
        assert [message["content"] for message in shown[1:]] == ["I want to cancel an order.", "Shall I?", "Yes."]
        assert results[-1].done
        assert results[-1].info["database_right"] == 1.0
        roles = [message["role"] for message in server.bodies[-1]["messages"]]
        assert roles == ["system", "user", "assistant", "user", "assistant", "user"]
        assert task.env_kwargs["instruction"] in server.bodies[0]["messages"][0]["content"]
        assert {headers["Authorization"] for _, headers, _ in server.requests} == {"Bearer secret"}
        assert all("tools" not in body for body in server.bodies)


def test_a_customer_without_a_server_is_refused_and_episodes_share_one_client(made: Made) -> None:
    with pytest.raises(ConfigError, match=r"env\.user=openai needs a server: env\.user_server\.url="):
        made.env(user="openai")
    with pytest.raises(ConfigError, match=r"env\.user_server has no ulr\. Known: url"):
        made.env(user="openai", user_server={"ulr": "x"})

    async def share(url: str) -> list[int]:
        envs = [made.env(user="openai", user_server={"url": url}) for _ in range(3)]
        await asyncio.gather(*[env.reset(made.tasks("train")[0]) for env in envs])
        shared = model_customer._engines[asyncio.get_running_loop()]
        counts = [len(shared)]
        await envs[0].close()
        counts.append(len(shared))
        await asyncio.gather(*[env.close() for env in envs])
        return [*counts, len(shared)]

    with chat_server() as server:
        server.reply = lambda body: answer("Hello, I want to return a thing.")
        assert asyncio.run(share(server.url)) == [1, 1, 0]


# Endpoints


def gold_endpoint(made: Made, split: str) -> Any:
    """What an endpoint says that knows the gold plans: the next action of the task whose instruction was asked."""
    plans = {task.env_kwargs["instruction"]: made.env().gold_actions(task) for task in made.tasks(split)}

    def reply(body: dict[str, Any]) -> Any:
        asked = next(message["content"] for message in body["messages"] if message["role"] == "user")
        action = plans[asked][sum(message["role"] == "assistant" for message in body["messages"])]
        calls = [(one.name, json.dumps(dict(one.arguments))) for one in action.tool_calls]
        return answer(action.text, calls)

    return reply


@pytest.mark.whole
def test_eval_runs_an_endpoint_and_its_success_is_that_of_the_database(made: Made) -> None:
    limits = "env.limits=[{name: steps, steps: 20, ends: true}]"
    overrides = [f"run.folder={made.folder.parent}", MODEL, "engine=openai", "rollout.max_steps=20", limits]
    with chat_server() as server:
        server.reply = gold_endpoint(made, "test")
        overrides += [f"engine.servers.urls=[{server.url}]"]
        right = commands.evaluate(str(RECIPE), *overrides, "eval.split=test", quiet=True)
        assert right.metrics["eval/test/greedy"] == 1.0
        assert {len(body["tools"]) for body in server.bodies} == {16}
        server.reply = lambda body: answer("I am sorry.")
        wrong = commands.evaluate(str(RECIPE), *overrides, "eval.split=test", quiet=True)
    assert wrong.metrics["eval/test/greedy"] < 0.5


# Demonstrations


def rollout_of(made: Made, task: Task, engine: ScriptedEngine) -> Trajectory:
    with recipe_folder(RECIPE):
        rollout = Rollout(
            engine=engine,
            renderer=made.renderer,
            reward=reward_fn.score,
            make_env=partial(make_env, section=made.config.env),
            limits=RolloutLimits(max_steps=made.config.rollout.max_steps, retries=0),
        )
        sampling = SamplingParams(max_tokens=4000)
        return asyncio.run(rollout.run([task], group_size=1, sampling=sampling, seed=0))[0].trajectories[0]


def test_demonstrations_show_the_prompts_of_rollouts_and_score_one(made: Made) -> None:
    tasks = {task.env_kwargs["instruction"]: task for task in made.tasks("train")}
    rows = made.demonstrations
    assert len(rows) == len(tasks) - sum(t.extra_info["num_writes"] > process.MAX_WRITES for t in tasks.values())
    for row in rows[:: len(rows) // 3]:
        task = tasks[row["messages"][1]["content"]]
        turns = list(demonstrated_turns(made.renderer, row))
        engine = ScriptedEngine([said for _, said in turns], context_length=100_000)
        trajectory = rollout_of(made, task, engine)
        assert trajectory.error is None
        assert [prompt for prompt, _ in engine.requests] == [prompt for prompt, _ in turns]
        assert trajectory.success == 1.0


def test_demonstrations_use_only_ids_that_were_shown_before(made: Made) -> None:
    for row in made.demonstrations:
        seen = ""
        for message in row["messages"]:
            for made_call in message.get("tool_calls", ()):
                ids = re.findall(r"#W\d+|\d{10}|\w+_\d{4,7}", json.dumps(made_call["function"]["arguments"]))
                assert [one for one in ids if one not in seen] == []
            seen += "\n" + str(message["content"])


def test_demonstrations_can_be_made_with_the_whole_policy_and_json(made: Made) -> None:
    task = kind(made, "train", "cancel_pending_order")
    env = made.env(policy="full", form="json")
    right, [row], _ = asyncio.run(expert.play(env, task, expert.look_ups(made.database, task)))
    assert right
    assert "# Retail agent policy" in row[0]["content"]
    assert json.loads(row[-2]["content"])["status"] == "cancelled"
    assert row[-1]["content"] == "Done: cancel pending order."


# Sources

TASKS = """
from tau_bench.types import Action, Task
TASKS = [
    Task(annotator="0", user_id="u_1", instruction="You want " "tea.", actions=[
        Action(name="cancel_pending_order", kwargs={"order_id": "#W1", "reason": "no longer needed"}),
    ], outputs=["10"]),
    {"user_id": "u_2", "instruction": "Nothing.", "actions": [{"name": "think", "arguments": {"thought": "x"}}]},
]
"""


def test_tasks_of_a_python_file_are_parsed_and_never_run() -> None:
    first, second = sources.parse_tasks(TASKS, Path("tasks.py"))
    assert (first["instruction"], first["outputs"]) == ("You want tea.", ["10"])
    assert first["actions"][0]["kwargs"] == {"order_id": "#W1", "reason": "no longer needed"}
    assert second["actions"] == [{"name": "think", "kwargs": {"thought": "x"}}]
    for wrong in ("T = [Task(user_id=open('x'))]", "T = [Task(*args)]", "T = [", "x = 1"):
        with pytest.raises(DataError, match=r"tasks\.py (cannot be read|has no list)"):
            list(sources.parse_tasks(wrong, Path("tasks.py")))


def test_a_clone_of_tau_bench_is_read(tmp_path: Path, made: Made) -> None:
    inside = tmp_path / sources.INSIDE
    (inside / "data").mkdir(parents=True)
    for name in database.TABLES:
        (inside / "data" / f"{name}.json").write_text(json.dumps(getattr(made.database, name)))
    for split in ("train", "dev", "test"):
        rows = list(read_rows(SAMPLE / f"retail_tasks_{split}.jsonl"))
        (inside / f"tasks_{split}.py").write_text(f"TASKS = {rows!r}")
    (inside / "wiki.md").write_text("Be polite.")
    retail = sources.read_retail(tmp_path)
    assert (retail.database, retail.policy) == (made.database, "Be polite.")
    packed = sources.read_retail(SAMPLE)
    assert retail.tasks["train"][3]["actions"] == packed.tasks["train"][3]["actions"]
    (inside / "tasks_dev.py").write_text("TASKS = [{'user_id': 'a', 'instruction': '', 'outputs': []}]")
    with pytest.raises(DataError, match="1 tasks cannot be used:\n  - dev task 0: instruction must be a text"):
        sources.read_retail(tmp_path)


# Many episodes


def test_an_episode_holds_its_changes_and_not_the_database(made: Made) -> None:
    figures = benchmark.measure(made.folder, num_episodes=24, repeats=1)
    assert figures["calls"] >= 24 * 4
    assert 0 < figures["kb_per_episode"] < 60


@pytest.mark.whole
def test_memory_stays_bounded_with_512_episodes_alive(made: Made) -> None:
    tasks = [task for task in made.tasks("train") if task.extra_info["num_writes"]]

    async def held(count: int) -> int:
        envs = [made.env() for _ in range(count)]
        tracemalloc.start()
        for number, env in enumerate(envs):
            task = tasks[number % len(tasks)]
            await env.reset(task)
            for action in task.env_kwargs["actions"]:
                await env.step(as_call(action))
        size = tracemalloc.get_traced_memory()[0]
        tracemalloc.stop()
        for env in envs:
            await env.close()
        return size

    small, large = asyncio.run(held(64)), asyncio.run(held(512))
    assert large < 512 * 60_000
    assert large < 10 * small  # linear, with 8 times as many


# Whole data and whole runs


@pytest.mark.whole
@pytest.mark.skipif(not (WHOLE_DATA / "tau_bench").is_dir(), reason="the whole data set is not here")
def test_gold_actions_of_all_published_tasks_score_one(tmp_path: Path) -> None:
    retail = sources.read_retail(WHOLE_DATA / "tau_bench")
    assert {split: len(tasks) for split, tasks in retail.tasks.items()} == {"train": 500, "dev": 20, "test": 75}
    retail.database.write(tmp_path)
    rows = [
        process.task_row(task, f"{split}-{number}", split, tmp_path)
        for split, tasks in retail.tasks.items()
        for number, task in enumerate(tasks)
    ]
    tasks = [process.task_from_row(row, row["task_id"]) for row in rows]

    async def scores() -> tuple[list[str], list[str]]:
        missed, fooled = [], []
        for task in tasks:
            plan = environment.RetailEnv(str(tmp_path)).gold_actions(task)
            for actions, names, fine in ((plan, missed, 1.0), (plan[:-1], fooled, 0.0)):
                if await _score(environment.RetailEnv(str(tmp_path)), reward_fn.score, task, actions) != fine:
                    names.append(task.task_id)
        return missed, fooled

    assert asyncio.run(scores()) == ([], [])


SMALL = (
    "rollout.groups_per_step=2",
    "rollout.group_size=2",
    "rollout.max_steps=3",
    "rollout.max_tokens=12",
    "trainer.steps=2",
    "sft.steps=2",
    "sft.batch_size=2",
    "eval.max_tasks=4",
    "eval.every=0",
)


def write_model(made: Made, folder: Path) -> Path:
    """A model of a few thousand parameters that has read the sample's words."""
    config = tiny_config(made.renderer.tokenizer)
    config.max_position_embeddings = 16384
    torch.manual_seed(0)
    LlamaForCausalLM(config).save_pretrained(folder)
    cast(Any, made.renderer.tokenizer).save_pretrained(folder)
    return folder


@pytest.mark.whole
def test_it_trains_from_a_warm_start_and_is_evaluated_on_test_rows(
    made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copytree(made.folder, tmp_path / "runs" / "tau_retail_data")
    model = write_model(made, tmp_path / "model")
    small = [*SMALL, f"model.path={model}", "rollout.context_length=12000"]
    summary = commands.train(str(RECIPE), *small, quiet=True)
    assert summary.steps == 2
    assert (tmp_path / "runs" / "tau_retail_warm_start" / "hf" / "model.safetensors").is_file()
    for user in ("solo", "rules"):
        evaluation = commands.evaluate(
            str(RECIPE), *small, "eval.split=test", f"env.user={user}", model="runs/tau_retail/hf", quiet=True
        )
        assert {"eval/test/greedy", "eval/test/database"} <= set(evaluation.metrics)
