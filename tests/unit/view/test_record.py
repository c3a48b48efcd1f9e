"""One trajectory as it is shown: messages, results, tokens with their writers, recorded credit, and cut texts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_r1.codec import write_json
from agent_r1.runs import write_credit
from agent_r1.types import Action, Observation, Step, StepCredit, TrajectoryCredit
from agent_r1.view import Catalog, NotFoundError, ViewApi
from agent_r1.view.bounds import MAX_ITEMS, MAX_NODES, MAX_TEXT, Bounds, text_at
from agent_r1.view.tokens import TokenTexts, find_tokenizer, writers_of
from tests.helpers.viewed_runs import HOSTILE, WrittenRun, make_group, make_step, make_trajectory, shop_run


@pytest.fixture
def run(tmp_path: Path) -> WrittenRun:
    return WrittenRun(tmp_path / "run")


def shown(run: WrittenRun, key: str = "1-1", **options: Any) -> dict[str, Any]:
    api = ViewApi(Catalog([run.path]))
    return api.trajectory("run", key, **options)


def test_a_step_has_its_new_messages_and_what_came_back(run: WrittenRun) -> None:
    run.write(1, make_group(0, [make_trajectory("look", "again", "it is 3", result="3 coins")]))
    record = shown(run)
    assert record["prompt"] == [{"role": "user", "content": "What does an egg cost?"}]
    assert [len(step["messages"]) for step in record["steps"]] == [1, 2, 2]
    assert [step["num_messages"] for step in record["steps"]] == [1, 3, 5]
    assert [[result["content"] for result in step["results"]] for step in record["steps"]] == [
        ["3 coins"],
        ["3 coins"],
        [],
    ]
    assert [step["rewritten"] for step in record["steps"]] == [False] * 3
    assert record["tool_schemas"] == [{"type": "function", "function": {"name": "price"}}]
    assert record["neighbours"] == {"previous": None, "next": None}


def test_a_history_that_the_environment_rewrote_is_marked(run: WrittenRun) -> None:
    first = make_step("look", tool="price")
    second = make_step("x", question="A summary of what was said.")
    run.write(1, make_group(0, [make_trajectory().__class__(**trajectory_fields(steps=(first, second)))]))
    assert [step["rewritten"] for step in shown(run)["steps"]] == [False, True]


def trajectory_fields(**fields: Any) -> dict[str, Any]:
    made = make_trajectory("x")
    return {name: getattr(made, name) for name in made.__slots__} | fields


def test_failed_attempts_have_their_tracebacks(tmp_path: Path) -> None:
    record = shown(shop_run(tmp_path / "run"), "4-1")
    assert record["failed"]
    assert record["error"] == "Traceback: the shop burnt down"
    assert [attempt["error"] for attempt in record["failed_attempts"]] == ["Traceback: smoke"]


def test_repairs_and_parse_errors_are_shown(run: WrittenRun) -> None:
    step = make_step("bad", parse_error="no closing brace", repairs=("call 1: trailing comma",))
    run.write(1, make_group(0, [make_trajectory().__class__(**trajectory_fields(steps=(step,)))]))
    record = shown(run)
    assert (record["parse_errors"], record["repairs"]) == (1, 1)
    assert record["steps"][0]["parse_error"] == "no closing brace"
    assert record["steps"][0]["repairs"] == ["call 1: trailing comma"]


def test_prompts_of_text_and_of_ids_are_shown(run: WrittenRun) -> None:
    for step, observation in enumerate((Observation(text="raw prompt"), Observation(token_ids=(1, 2))), start=1):
        made = Step(
            observation=observation,
            prompt_ids=(1, 2),
            action=Action(text="a"),
            action_ids=(3,),
            rollout_logprobs=(-0.5,),
            reward=0.0,
            done=True,
            policy_versions=(0,),
        )
        run.write(step, make_group(0, [make_trajectory().__class__(**trajectory_fields(steps=(made,)))]))
    assert shown(run, "1-1")["steps"][0]["prompt_text"] == "raw prompt"
    assert shown(run, "2-1")["steps"][0]["messages"] == []
    assert [token["id"] for token in shown(run, "2-1")["steps"][0]["tokens"]] == [1, 2, 3]


def test_a_key_that_is_not_there_is_not_found(run: WrittenRun) -> None:
    run.write(1, make_group(0, [make_trajectory("x")]))
    for key in ("1-2", "2-1", "1", "", "-", "../1-1", "1-0x1", "1-1.0", "eval_x-1", "\ud800-1", "1-" + "9" * 50):
        with pytest.raises(NotFoundError):
            shown(run, key)


def test_a_file_that_was_rewritten_is_read_as_it_is(run: WrittenRun) -> None:
    run.write(1, make_group(0, [make_trajectory("first")]))
    api = ViewApi(Catalog([run.path]))
    assert api.trajectory("run", "1-1")["preview"] == "first"
    run.write(1, make_group(0, [make_trajectory("second, and longer")]))
    assert api.trajectory("run", "1-1")["steps"][0]["text"] == "second, and longer"


# --- tokens ----------------------------------------------------------------------------------------------------------


def test_tokens_have_their_texts_writers_and_logprobs(run: WrittenRun, tokenizer: Any) -> None:
    question = "What do 2 egg cost?"
    messages = [{"role": "user", "content": question}]
    prompt = tuple(tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=True)["input_ids"])
    action = tuple(tokenizer.encode("It is 6", add_special_tokens=False))
    step = Step(
        observation=Observation(messages=tuple(messages)),
        prompt_ids=prompt,
        action=Action(text="It is 6", token_ids=action),
        action_ids=action,
        rollout_logprobs=tuple(-0.5 for _ in action),
        reward=0.0,
        done=True,
        policy_versions=tuple(0 for _ in action),
    )
    run.write(1, make_group(0, [make_trajectory().__class__(**trajectory_fields(steps=(step,)))]))
    tokenizer.save_pretrained(run.folder.model)
    record = shown(run)
    tokens = record["steps"][0]["tokens"]
    assert record["tokenizer"]
    assert "".join(token["text"] for token in tokens) == tokenizer.decode([*prompt, *action])
    by_user = "".join(token["text"] for token in tokens if token["writer"] == "user")
    assert by_user.strip() == question
    assert {token["writer"] for token in tokens if not token["action"]} == {"user", "template"}
    sampled = [token for token in tokens if token["action"]]
    assert [(token["writer"], token["logprob"]) for token in sampled] == [("model", -0.5)] * len(action)


def test_without_a_tokenizer_tokens_have_no_text(run: WrittenRun) -> None:
    run.write(1, make_group(0, [make_trajectory("x")]))
    record = shown(run)
    assert not record["tokenizer"]
    tokens = record["steps"][0]["tokens"]
    assert [(token["id"], token["text"], token["writer"]) for token in tokens] == [
        (0, None, None),
        (1, None, None),
        (7, None, "model"),
        (8, None, "model"),
        (9, None, "model"),
    ]
    assert shown(run, with_tokens=False)["steps"][0]["tokens"] == []


@pytest.mark.parametrize("content", ["", "[]", "{", '{"model": {"vocab": 5}}', '{"model": {"vocab": {"a": "b"}}}'])
def test_a_damaged_tokenizer_is_none(run: WrittenRun, content: str) -> None:
    run.folder.model.mkdir()
    (run.folder.model / "tokenizer.json").write_text(content)
    assert find_tokenizer(run.path, "") is None


def test_the_tokenizer_of_the_starting_model_is_used_where_none_was_exported(
    run: WrittenRun, model_folder: Path
) -> None:
    assert find_tokenizer(run.path, str(model_folder)) is not None
    assert find_tokenizer(run.path, "org/never-downloaded") is None
    assert find_tokenizer(run.path, "\0") is None


def test_a_character_of_several_tokens_belongs_to_the_last() -> None:
    euro = "€".encode()
    texts = TokenTexts({1: euro[:1], 2: euro[1:2], 3: euro[2:], 4: b"a", 5: b"\xff"})
    assert texts.split([4, 1, 2, 3, 4]) == ["a", "", "", "€", "a"]
    assert texts.split([1, 4]) == ["", "\ufffda"]
    assert texts.split([5, 99, 1]) == ["\ufffd", "\ufffd", "\ufffd"]
    assert texts.split([]) == []


def test_writers_follow_the_order_of_the_messages() -> None:
    texts = ["<s>", "be", " kind", "<u>", "6", "</u>", "<t>", "6", "</t>"]
    messages = [
        {"role": "system", "content": "be kind"},
        {"role": "user", "content": "6"},
        {"role": "tool", "content": "6"},
        {"role": "tool", "content": "not rendered"},
    ]
    assert writers_of(texts, messages) == [
        "template", "user", "user", "template", "user", "template", "template", "tool", "template",
    ]  # fmt: skip


# --- credit ----------------------------------------------------------------------------------------------------------


def credit_of(**numbers: Any) -> StepCredit:
    given: dict[str, Any] = {
        "reward": 1.0,
        "observed_return": 0.9,
        "advantages": (0.5, None, 1.5),
        "values": (),
        "old_logprobs": (-1.0, -1.0, -1.0),
        "logprobs": (-1.0, None, -1.0),
        "entropies": (0.7, None, 0.1),
    }
    return StepCredit(**{**given, **numbers})


def test_recorded_credit_is_shown_per_token_and_per_step(run: WrittenRun) -> None:
    members = [make_trajectory("x", member=member) for member in (0, 1)]
    run.write(1, make_group(0, members))
    write_credit(run.folder.step_credit(1), [TrajectoryCredit(group_id=0, member=1, steps=(credit_of(),))])
    assert not shown(run, "1-1")["credit"]
    record = shown(run, "1-2")
    [step] = record["steps"]
    sampled = [token for token in step["tokens"] if token["action"]]
    assert record["credit"]
    assert (step["advantage"], step["return"]) == (1.0, 0.9)
    assert [token["advantage"] for token in sampled] == [0.5, None, 1.5]
    assert [token["ratio"] for token in sampled] == [1.0, None, 1.0]
    assert [token["entropy"] for token in sampled] == [0.7, None, 0.1]


def test_members_of_a_group_have_their_advantages(run: WrittenRun) -> None:
    run.write(1, make_group(0, [make_trajectory("x")]))
    write_credit(run.folder.step_credit(1), [TrajectoryCredit(group_id=0, member=0, steps=(credit_of(),))])
    api = ViewApi(Catalog([run.path]))
    api.run("run").index.update()
    [member] = api.group("run", 1, 0, "train")["members"]
    assert member["record"]["steps"][0]["advantage"] == 1.0


@pytest.mark.parametrize("content", ["", "x\n", '{"group_id": 0, "member": 0, "steps": [{}]}\n', "[]\n"])
def test_damaged_credit_is_no_credit(run: WrittenRun, content: str) -> None:
    run.write(1, make_group(0, [make_trajectory("x")]))
    run.folder.credit.mkdir()
    run.folder.step_credit(1).write_text(content)
    assert not shown(run)["credit"]


def test_credit_of_other_lengths_than_the_action_does_no_harm(run: WrittenRun) -> None:
    run.write(1, make_group(0, [make_trajectory("x")]))
    short = credit_of(advantages=(0.5,), old_logprobs=(-1.0,), logprobs=(-1.0,), entropies=(0.1,))
    write_credit(run.folder.step_credit(1), [TrajectoryCredit(group_id=0, member=0, steps=(short, short))])
    sampled = [token for token in shown(run)["steps"][0]["tokens"] if token["action"]]
    assert [token["advantage"] for token in sampled] == [0.5, None, None]


# --- hostile and long ------------------------------------------------------------------------------------------------


def test_a_long_text_is_cut_and_can_be_fetched_in_parts(run: WrittenRun) -> None:
    long = "é" * 200_000 + HOSTILE
    run.write(1, make_group(0, [make_trajectory(long)]))
    api = ViewApi(Catalog([run.path]))
    record = api.trajectory("run", "1-1")
    text = record["steps"][0]["text"]
    assert text.startswith("é" * MAX_TEXT + "… [")
    assert {"path": "steps.0.text", "chars": len(long)} in record["cut"]
    assert len(write_json(record)) < 1_000_000
    parts = [api.text("run", "1-1", "steps.0.text", offset, 120_000) for offset in (0, 120_000)]
    assert "".join(part["text"] for part in parts) == long
    assert {part["total"] for part in parts} == {len(long)}
    for path in ("steps.1.text", "steps", "", "steps.0", "steps.-1.text", "__class__", "steps.0.text.x"):
        with pytest.raises(NotFoundError):
            api.text("run", "1-1", path, 0, 10)


def test_hostile_text_is_valid_json_and_unchanged(run: WrittenRun) -> None:
    run.write(1, make_group(0, [make_trajectory(HOSTILE, HOSTILE, question=HOSTILE, result=HOSTILE, task=HOSTILE)]))
    record = json.loads(write_json(shown(run)).encode("ascii"))
    assert record["steps"][0]["text"] == HOSTILE
    assert record["steps"][0]["results"][0]["content"] == HOSTILE


def test_a_step_with_too_many_tokens_says_how_many(run: WrittenRun, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agent_r1.view.record.MAX_TOKENS", 6)
    run.write(1, make_group(0, [make_trajectory("a", "b")]))
    first, second = shown(run)["steps"]
    assert len(first["tokens"]) == 5
    assert (second["tokens"], second["tokens_cut"]) == ([], 5)


values = st.recursive(
    st.none() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=20,
)


@given(values)
def test_what_is_short_is_not_changed(value: Any) -> None:
    bounds = Bounds()
    assert bounds.apply(value) == value
    assert bounds.cut == []


@given(values)
def test_every_cut_text_is_found_at_its_path(value: Any) -> None:
    bounds = Bounds(max_text=2)
    bounds.apply(value)
    for cut in bounds.cut:
        assert text_at(value, cut["path"]) is not None


def test_what_is_large_in_every_other_way_is_cut_too() -> None:
    deep: Any = "x"
    for _ in range(200):
        deep = [deep]
    shared: Any = ["y"] * 10
    for _ in range(12):
        shared = [shared] * 10  # 10^13 values
    bounds = Bounds()
    cut = bounds.apply({"deep": deep, "long": list(range(MAX_ITEMS * 2)), "k" * 5000: 1, "shared": shared})
    assert len(cut["long"]) == MAX_ITEMS
    assert "k" * 300 in cut
    assert len(json.dumps(cut)) < 20 * MAX_NODES
    assert {entry["path"] for entry in bounds.cut} >= {"long"}
