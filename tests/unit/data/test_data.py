"""Rows as tasks, the order they are shown in, and demonstrations as tokens."""

from __future__ import annotations

import copy
import json
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent_r1.chat import ChatRenderer
from agent_r1.data import TaskSampler, load_tasks, read_rows, write_rows
from agent_r1.data.demonstrations import load_demonstrations, tokenise_conversation
from agent_r1.data.tasks import task_from_row
from agent_r1.errors import DataError
from agent_r1.types import Observation, Task
from recipes.quickstart.shop import demonstration, draw_basket, task_row
from tests.helpers.fuzzing import cases

ROWS: list[dict[str, Any]] = [
    {
        "task_id": "first",
        "prompt": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "2 apple?"}],
        "agent_name": "single_step",
        "reward_model": {"style": "rule", "ground_truth": "14"},
        "env_kwargs": {"prices": {"apple": 7}, "wanted": ["apple"]},
        "data_source": "shop",
        "extra_info": {"index": 0},
    },
    {
        "task_id": "second",
        "prompt": [{"role": "user", "content": "3 apple?"}],
        "agent_name": "single_step",
        "reward_model": {"style": "rule", "ground_truth": "15"},
        "env_kwargs": {"prices": {"apple": 5}, "wanted": []},
        "data_source": "market",
        "extra_info": {"index": 1},
    },
]


def write_lines(path: Path, *rows: Any) -> Path:
    """JSONL; a row that is text is written as it stands."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
    return path


def write_parquet(path: Path, rows: list[dict[str, Any]]) -> Path:
    pq.write_table(pa.Table.from_pylist(rows), path)
    return path


def problems_of(*paths: Path) -> str:
    with pytest.raises(DataError) as caught:
        load_tasks(paths)
    return str(caught.value)


# Rows


def test_row_becomes_a_task(tmp_path: Path) -> None:
    first, second = load_tasks([write_lines(tmp_path / "train.jsonl", *ROWS)])
    assert first == Task(
        task_id="first",
        prompt=({"role": "system", "content": "Be brief."}, {"role": "user", "content": "2 apple?"}),
        agent_name="single_step",
        reward_model={"style": "rule", "ground_truth": "14"},
        env_kwargs={"prices": {"apple": 7}, "wanted": ["apple"]},
        data_source="shop",
        extra_info={"index": 0},
    )
    assert (second.task_id, second.ground_truth) == ("second", "15")


def test_columns_left_out_have_defaults_and_text_is_one_user_message(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "train.jsonl", {"prompt": "2 apple?"}, "", {"prompt": "3 apple?"})
    first, second = load_tasks([path], default_agent="single_step")
    assert first == Task(task_id="train-0", prompt=({"role": "user", "content": "2 apple?"},), agent_name="single_step")
    assert second.task_id == "train-1"


def test_parquet_with_structs_gives_the_same_tasks_as_jsonl(tmp_path: Path) -> None:
    lines = load_tasks([write_lines(tmp_path / "a.jsonl", *ROWS)])
    assert load_tasks([write_parquet(tmp_path / "a.parquet", ROWS)]) == lines


def test_the_first_rows_of_a_large_parquet_file_do_not_need_the_others(tmp_path: Path) -> None:
    rows = [{"prompt": f"number {number}"} for number in range(2048)]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "a.parquet", row_group_size=1024)
    start = pq.ParquetFile(tmp_path / "a.parquet").metadata.row_group(1).column(0).dictionary_page_offset
    damaged = bytearray((tmp_path / "a.parquet").read_bytes())
    damaged[start : start + 2000] = b"\xff" * 2000
    (tmp_path / "a.parquet").write_bytes(damaged)
    reading = read_rows(tmp_path / "a.parquet")
    assert [next(reading)["prompt"] for _ in range(1024)][-1] == "number 1023"
    with pytest.raises(DataError, match=r"a\.parquet cannot be read"):
        next(reading)


def test_parquet_with_json_text_gives_the_same_tasks_as_jsonl(tmp_path: Path) -> None:
    lines = load_tasks([write_lines(tmp_path / "a.jsonl", *ROWS)])
    columns = ("env_kwargs", "reward_model", "extra_info")
    as_text = [{**row, **{column: json.dumps(row[column]) for column in columns}} for row in ROWS]
    assert load_tasks([write_parquet(tmp_path / "a.parquet", as_text)]) == lines


def test_parquet_rows_with_different_keys_give_the_same_tasks_as_jsonl(tmp_path: Path) -> None:
    called = {"type": "function", "function": {"name": "price", "arguments": '{"item": "apple"}'}}
    rows = [
        {"prompt": [{"role": "user", "content": "a"}], "env_kwargs": {"tools": ["calculate"]}},
        {
            "prompt": [
                {"role": "user", "content": "b"},
                {"role": "assistant", "content": "", "tool_calls": [called]},
                {"role": "tool", "content": "7", "name": "price"},
            ],
            "env_kwargs": {"prices": {"pear": 5}},
        },
    ]
    lines = load_tasks([write_lines(tmp_path / "a.jsonl", *rows)])
    assert load_tasks([write_parquet(tmp_path / "a.parquet", rows)]) == lines


def test_quickstart_rows_load(tmp_path: Path) -> None:
    basket = draw_basket(random.Random(1))
    [task] = load_tasks([write_lines(tmp_path / "train.jsonl", task_row(basket))])
    assert task.ground_truth == str(basket.total)
    assert task.env_kwargs["prices"] == basket.prices


def test_several_files_are_read_one_after_the_other(tmp_path: Path) -> None:
    a = write_lines(tmp_path / "a.jsonl", {"prompt": "1"}, {"prompt": "2"})
    b = write_parquet(tmp_path / "b.parquet", [{"prompt": "3"}])
    assert [task.task_id for task in load_tasks([a, str(b)])] == ["a-0", "a-1", "b-0"]


def test_files_of_the_same_name_in_different_folders_load_together(tmp_path: Path) -> None:
    paths = [write_lines(tmp_path / folder / "train.jsonl", {"prompt": folder}) for folder in ("gsm8k", "math")]
    tasks = load_tasks(paths)
    assert [task.prompt[0]["content"] for task in tasks] == ["gsm8k", "math"]
    assert len({task.task_id for task in tasks}) == 2


def test_numbers_as_task_ids_are_kept(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "a.jsonl", *({"prompt": "?", "task_id": number} for number in (0, 1)))
    assert [task.task_id for task in load_tasks([path])] == ["0", "1"]


# Problems


def test_all_problems_of_a_file_are_reported_at_once_by_row(tmp_path: Path) -> None:
    path = write_lines(
        tmp_path / "bad.jsonl",
        {"prompt": "fine"},
        {"problem": "2+2?", "answer": "4"},
        '{"prompt": ',
        {"prompt": []},
        {"prompt": [{"role": "user"}]},
        {"prompt": [{"role": "user", "content": "a"}, "b"]},
        {"prompt": 3},
        {"prompt": "x", "env_kwargs": "{not json"},
        {"prompt": "x", "reward_model": [1]},
        [1, 2],
    )
    report = problems_of(path).splitlines()
    assert report[0] == "the data cannot be used:"
    problems = [line.removeprefix(f"  - {path}, ") for line in report[1:]]
    assert [problem.partition(":")[0] for problem in problems] == [f"row {number}" for number in range(1, 10)]
    by_row = dict(problem.split(": ", 1) for problem in problems)
    assert by_row["row 1"] == (
        "the column 'prompt' is missing; a row has 'prompt', or 'question' and 'answer'. Found: answer, problem"
    )
    assert by_row["row 2"].startswith("not JSON (Expecting value at character ")
    assert by_row["row 3"] == "'prompt' must be text or a list of messages, found list"
    assert by_row["row 4"] == "message 0 of 'prompt' needs 'role' and 'content', found {'role': 'user'}"
    assert by_row["row 5"] == "message 1 of 'prompt' needs 'role' and 'content', found 'b'"
    assert by_row["row 6"] == "'prompt' must be text or a list of messages, found int"
    assert by_row["row 7"].startswith("'env_kwargs' is text that is not JSON")
    assert by_row["row 8"] == "'reward_model' must be an object, found list"
    assert by_row["row 9"] == "expected an object, found list"


def test_problems_of_several_files_are_reported_together(tmp_path: Path) -> None:
    a = write_lines(tmp_path / "a.jsonl", {"question": "?"})
    b = write_parquet(tmp_path / "b.parquet", [{"problem": "?"}])
    report = problems_of(a, b)
    assert (
        f"{a}, row 0: the column 'prompt' is missing; a row has 'prompt', or 'question' and 'answer'. Found: question"
        in report
    )
    assert (
        f"{b}, row 0: the column 'prompt' is missing; a row has 'prompt', or 'question' and 'answer'. Found: problem"
        in report
    )


def test_long_report_is_cut_and_says_how_much_is_left(tmp_path: Path) -> None:
    report = problems_of(write_lines(tmp_path / "a.jsonl", *({"question": "?"} for _ in range(25))))
    assert len(report.splitlines()) == 12
    assert report.endswith("... and 15 more")


def test_written_rows_are_read_back(tmp_path: Path) -> None:
    write_rows(tmp_path / "deep" / "rows.jsonl", iter(ROWS))
    assert list(read_rows(tmp_path / "deep" / "rows.jsonl")) == ROWS


def test_rows_written_as_parquet_are_the_same_tasks(tmp_path: Path) -> None:
    rows = [
        {"prompt": [{"role": "user", "content": "a?"}], "env_kwargs": {"prices": {"tea": 1}}, "task_id": "0"},
        {"prompt": [{"role": "user", "content": "b?"}], "env_kwargs": {"prices": {"rice": 2}}, "task_id": "1"},
    ]
    write_rows(tmp_path / "deep" / "rows.parquet", iter(rows))
    write_rows(tmp_path / "rows.jsonl", rows)
    from_parquet = load_tasks([tmp_path / "deep" / "rows.parquet"])
    assert from_parquet == load_tasks([tmp_path / "rows.jsonl"])
    assert [task.env_kwargs["prices"] for task in from_parquet] == [{"tea": 1}, {"rice": 2}]
    assert [file.name for file in (tmp_path / "deep").iterdir()] == ["rows.parquet"]


def test_parquet_has_the_columns_of_all_rows(tmp_path: Path) -> None:
    write_rows(tmp_path / "rows.parquet", [{"prompt": "x"}, {"prompt": "y", "env_kwargs": {"a": 1}, "task_id": "t"}])
    assert [(task.task_id, task.env_kwargs) for task in load_tasks([tmp_path / "rows.parquet"])] == [
        ("rows-0", {}),
        ("t", {"a": 1}),
    ]


@pytest.mark.parametrize("name", ["rows.parquet", "rows.jsonl.gz"])
def test_rows_that_cannot_be_written_are_one_clear_error(tmp_path: Path, name: str) -> None:
    rows = [
        {"prompt": "x", "reward_model": {"ground_truth": 1}},
        {"prompt": "y", "reward_model": {"ground_truth": "a"}},
    ]
    with pytest.raises(DataError, match=name):
        write_rows(tmp_path / name, rows)
    assert not list(tmp_path.iterdir())


def test_missing_file_names_the_files_nearby(tmp_path: Path) -> None:
    write_lines(tmp_path / "train.jsonl", {"prompt": "x"})
    write_lines(tmp_path / "eval.jsonl", {"prompt": "x"})
    report = problems_of(tmp_path / "trian.jsonl")
    assert "there is no data file" in report
    assert "Did you mean 'train.jsonl'? Known: eval.jsonl, train.jsonl." in report


def test_missing_folder_is_a_missing_file(tmp_path: Path) -> None:
    assert "there is no data file" in problems_of(tmp_path / "nowhere" / "train.jsonl")


def test_task_id_that_appears_twice_is_refused(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "a.jsonl", *({"prompt": "x", "task_id": name} for name in ("p", "q", "p")))
    assert "the task_id 'p' appears twice" in problems_of(path)


def test_file_without_rows_is_refused(tmp_path: Path) -> None:
    assert "no rows in" in problems_of(write_lines(tmp_path / "a.jsonl"))


def test_file_that_is_not_what_its_name_says_is_refused(tmp_path: Path) -> None:
    assert "is neither .parquet nor .jsonl" in problems_of(write_lines(tmp_path / "a.csv", "prompt"))
    assert "is not a parquet file" in problems_of(write_lines(tmp_path / "a.parquet", {"prompt": "x"}))
    (tmp_path / "b.jsonl").write_bytes(b'{"prompt": "\xff"}\n')
    assert "row 0: not UTF-8 text" in problems_of(tmp_path / "b.jsonl")


# The sampler


def tasks_named(number: int) -> list[Task]:
    return [Task(task_id=str(index), prompt=()) for index in range(number)]


def shown(sampler: TaskSampler, batches: range) -> list[str]:
    return [task.task_id for number in batches for task in sampler.batch(number)]


def test_every_epoch_shows_each_task_once_in_another_order() -> None:
    names = shown(TaskSampler(tasks_named(20), batch_size=5, seed=0), range(12))
    epochs = [names[:20], names[20:40], names[40:]]
    assert [sorted(epoch, key=int) for epoch in epochs] == [[str(i) for i in range(20)]] * 3
    assert epochs[0] != epochs[1] != epochs[2] != epochs[0]
    assert epochs[0] != [str(i) for i in range(20)]


def test_other_seed_gives_another_order() -> None:
    orders = [shown(TaskSampler(tasks_named(20), batch_size=20, seed=seed), range(1)) for seed in (0, 1)]
    assert orders[0] != orders[1]


@settings(deadline=None, max_examples=cases(60))
@given(
    num_tasks=st.integers(1, 9),
    batch_size=st.integers(1, 12),
    seed=st.integers(0, 2**63 - 1),
    visits=st.lists(st.integers(0, 20), min_size=1, max_size=6),
)
def test_batch_is_a_function_of_the_seed_and_its_number_alone(
    num_tasks: int, batch_size: int, seed: int, visits: list[int]
) -> None:
    tasks = tasks_named(num_tasks)
    wanderer = TaskSampler(tasks, batch_size=batch_size, seed=seed)
    for number in visits:
        fresh = TaskSampler(tasks, batch_size=batch_size, seed=seed)
        assert wanderer.batch(number) == fresh.batch(number)


@settings(deadline=None, max_examples=cases(60))
@given(num_tasks=st.integers(1, 9), batch_size=st.integers(1, 12), seed=st.integers(0, 99))
def test_any_number_of_whole_epochs_shows_each_task_as_often(num_tasks: int, batch_size: int, seed: int) -> None:
    sampler = TaskSampler(tasks_named(num_tasks), batch_size=batch_size, seed=seed)
    counts = Counter(shown(sampler, range(num_tasks)))
    assert counts == {str(index): batch_size for index in range(num_tasks)}


# Demonstrations


def decode(renderer: ChatRenderer, token_ids: Any) -> str:
    return str(renderer.tokenizer.decode(list(token_ids), skip_special_tokens=False))


def test_actions_are_exactly_the_assistants_tokens_and_its_ends_of_turn(renderer: ChatRenderer) -> None:
    call = {"type": "function", "function": {"name": "price", "arguments": {"item": "apple"}}}
    messages = [
        {"role": "user", "content": "3 apple?"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": "7"},
        {"role": "assistant", "content": "21"},
    ]
    [row] = tokenise_conversation(renderer, messages)
    spoken = set(row.actions)
    pieces: list[tuple[bool, str]] = []
    for index, token in enumerate(row.token_ids):
        mine = index in spoken
        if pieces and pieces[-1][0] == mine:
            pieces[-1] = (mine, pieces[-1][1] + decode(renderer, [token]))
        else:
            pieces.append((mine, decode(renderer, [token])))
    assert pieces == [
        (False, "<|user|>3 apple?<|end|><|assistant|>"),
        (True, '<tool_call>{"name": "price", "arguments": {"item": "apple"}}</tool_call><|end|>'),
        (False, "<|user|><tool_response>7</tool_response><|end|><|assistant|>"),
        (True, "21<|end|>"),
    ]


def test_row_of_a_conversation_is_its_whole_rendering(renderer: ChatRenderer) -> None:
    rng = random.Random(5)
    for _ in range(20):
        conversation = demonstration(draw_basket(rng), rng)
        [row] = tokenise_conversation(renderer, conversation["messages"], conversation["tools"])
        whole = renderer.tokenizer.apply_chat_template(
            conversation["messages"], tools=conversation["tools"], tokenize=False
        )
        assert row.token_ids == tuple(renderer.tokenizer.encode(whole, add_special_tokens=False))


def test_demonstrated_prompt_is_the_prompt_a_rollout_shows(renderer: ChatRenderer) -> None:
    rng = random.Random(6)
    conversation = demonstration(draw_basket(rng), rng)
    [row] = tokenise_conversation(renderer, conversation["messages"], conversation["tools"])
    first = Observation(messages=(conversation["messages"][0],), tools=tuple(conversation["tools"]))
    prompt = renderer.render(first).token_ids
    assert row.token_ids[: len(prompt)] == prompt
    assert row.actions[0] == len(prompt)


def test_template_that_rewrites_earlier_turns_gives_a_row_for_each(tokenizer: Any) -> None:
    forgetful = copy.deepcopy(tokenizer)
    forgetful.chat_template = (
        "{% for message in messages %}{{ message.role }}:"
        "{% if loop.last %}{{ message.content }}{% else %}{{ message.content.split('</think>\n\n')[-1] }}{% endif %}"
        "<|end|>{% endfor %}{% if add_generation_prompt %}assistant:{% endif %}"
    )
    messages = [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "<think>\nx\n</think>\n\nb"},
        {"role": "user", "content": "c"},
        {"role": "assistant", "content": "d"},
    ]
    renderer = ChatRenderer(forgetful)
    rows = tokenise_conversation(renderer, messages)
    assert [decode(renderer, row.token_ids) for row in rows] == [
        "user:a<|end|>assistant:<think>\nx\n</think>\n\nb<|end|>",
        "user:a<|end|>assistant:b<|end|>user:c<|end|>assistant:d<|end|>",
    ]
    assert [decode(renderer, [row.token_ids[i] for i in row.actions]) for row in rows] == [
        "<think>\nx\n</think>\n\nb<|end|>",
        "d<|end|>",
    ]


def test_conversation_without_an_assistant_is_refused(renderer: ChatRenderer) -> None:
    with pytest.raises(ValueError, match="no assistant message to learn from"):
        tokenise_conversation(renderer, [{"role": "user", "content": "hi"}])


def test_problems_of_demonstrations_are_reported_at_once_by_row(renderer: ChatRenderer, tmp_path: Path) -> None:
    path = write_lines(
        tmp_path / "demos.jsonl",
        {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]},
        {"conversation": []},
        "not json",
        {"messages": [{"content": "a"}]},
        {"messages": [{"role": "user", "content": "a"}]},
    )
    with pytest.raises(DataError) as caught:
        load_demonstrations([path], renderer)
    report = str(caught.value)
    assert f"{path}, row 1: a demonstration needs 'messages', a list; found: conversation" in report
    assert f"{path}, row 2: not JSON" in report
    assert f"{path}, row 3: message 0 of 'messages' needs 'role'" in report
    assert f"{path}, row 4: no assistant message to learn from" in report


def test_only_the_chosen_demonstrations_are_tokenised_and_all_are_checked(
    renderer: ChatRenderer, tmp_path: Path
) -> None:
    rng = random.Random(7)
    rows = [demonstration(draw_basket(rng), rng) for _ in range(5)]
    path = write_lines(tmp_path / "demos.jsonl", *rows)
    everything = load_demonstrations([path], renderer)
    tracked: list[int] = []

    def track(indices: Sequence[int]) -> Iterator[int]:
        for index in indices:
            yield index
            tracked.append(index)

    chosen = load_demonstrations([path], renderer, choose=lambda number: [number - 1, 1, 1], tracked=track)
    assert chosen == [[], everything[1], [], [], everything[4]]
    assert tracked == [1, 4]
    bad = write_lines(tmp_path / "bad.jsonl", *rows, {"messages": [{"role": "user", "content": "a"}]})
    with pytest.raises(DataError, match="row 5: no assistant message to learn from"):
        load_demonstrations([bad], renderer, choose=lambda number: [0])


def test_tools_of_a_demonstration_may_be_json_text(renderer: ChatRenderer, tmp_path: Path) -> None:
    rng = random.Random(7)
    row = demonstration(draw_basket(rng), rng)
    a = write_lines(tmp_path / "a.jsonl", row)
    b = write_lines(tmp_path / "b.jsonl", {**row, "tools": json.dumps(row["tools"])})
    assert load_demonstrations([a], renderer) == load_demonstrations([b], renderer)


def test_other_columns_of_a_row_with_a_prompt_alone_are_its_extra_info(tmp_path: Path) -> None:
    """A row as TRL has it: the reward reads its own columns."""
    path = write_lines(
        tmp_path / "rows.jsonl",
        {"prompt": "2+2?", "solution": "4", "level": 1},
        {"prompt": "2+2?", "solution": "4", "extra_info": {"split": "train"}},
        {"prompt": "2+2?", "solution": "4", "reward_model": {"ground_truth": "4"}},
    )
    plain, own, full = load_tasks([path])
    assert plain.extra_info == {"solution": "4", "level": 1}
    assert plain.ground_truth is None
    assert own.extra_info == {"solution": "4", "split": "train"}
    assert full.extra_info == {}


@pytest.mark.parametrize(
    ("row", "ground_truth", "extra_info"),
    [
        ({"prompt": "2+2?", "answer": "4", "level": 1, "extra_info": {"index": 7}}, "4", {"level": 1, "index": 7}),
        ({"prompt": "2+2?", "answer": "4", "index": 1, "extra_info": {"index": 7}}, "4", {"index": 7}),
        ({"prompt": "2+2?", "answer": "4", "extra_info": '{"index": 7}'}, "4", {"index": 7}),
        ({"prompt": "2+2?", "question": "raw", "answer": "4"}, "4", {"question": "raw"}),
        ({"prompt": None, "question": "2+2?", "answer": "4"}, "4", {}),
        ({"prompt": "2+2?", "question": None, "answer": "4", "reward_model": None}, "4", {"question": None}),
        ({"prompt": "2+2?", "answer": "4", "reward_model": {"style": "rule", "ground_truth": None}}, "4", {}),
        ({"prompt": "2+2?", "answer": "4", "reward_model": '{"style": "rule"}'}, "4", {}),
        ({"prompt": "2+2?", "answer": "no", "reward_model": {"ground_truth": "4"}}, "4", {}),
        ({"question": "2+2?", "reward_model": {"ground_truth": "4"}}, "4", {}),
        ({"prompt": "2+2?", "answer": None, "reward_model": {"style": "llm"}}, None, {}),
    ],
)
def test_columns_of_the_ecosystem_reach_the_task_in_any_mixture(
    row: dict[str, Any], ground_truth: Any, extra_info: dict[str, Any]
) -> None:
    task = task_from_row(row, "one")
    assert (task.prompt[0]["content"], task.ground_truth, task.extra_info) == ("2+2?", ground_truth, extra_info)


def test_a_ground_truth_in_a_column_of_its_own_keeps_what_else_the_reward_model_says() -> None:
    row = {"prompt": "2+2?", "answer": "4", "reward_model": {"style": "rule", "ground_truth": None}}
    assert task_from_row(row, "one").reward_model == {"style": "rule", "ground_truth": "4"}


def test_a_column_of_another_type_beside_a_prompt_alone_is_left_out() -> None:
    task = task_from_row({"prompt": "2+2?", "solution": "4", "raw": b"4"}, "one")
    assert task.extra_info == {"solution": "4"}
