"""The recipe tables: cells, the database, the tool format, scores, the search for programs, its data, a small run."""

from __future__ import annotations

import asyncio
import contextlib
import json
import zipfile
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import LlamaForCausalLM

from agent_r1.chat import ChatRenderer
from agent_r1.checks.rows import answer_episode, gold_result
from agent_r1.data.tasks import read_rows
from agent_r1.engines import ScriptedEngine
from agent_r1.errors import DataError
from agent_r1.models.tiny import train_tokenizer
from agent_r1.registry import load_module, recipe_folder
from agent_r1.rewards import score_episode
from agent_r1.tools import ToolContext, num_cores
from agent_r1.training import prepare_plan
from agent_r1.types import StopReason, Task
from recipes.tables import demonstrations, reward_fn
from recipes.tables.blocks import TableBlocks
from recipes.tables.cells import first_number, read_amount, read_date, read_number
from recipes.tables.database import Database, QueryError, show_rows
from recipes.tables.denotation import is_right
from recipes.tables.search.find import find_program
from recipes.tables.table import Table, identifiers, make_table, read_table, show, table_text
from recipes.tables.tatqa_score import derivation_share, exact_and_f1
from recipes.tables.tools import TablePython, TableSql
from tests.conftest import tiny_config
from tests.helpers import commands
from tests.helpers.fuzzing import cases
from tests.helpers.recipe_runs import ROOT, WHOLE_DATA, SampleRun, demonstrated_turns, play, task_of

RECIPE = ROOT / "recipes" / "tables"
SAMPLE = RECIPE / "sample"

with recipe_folder(RECIPE):
    process = load_module("data_preprocess.process_tables")
    sources = load_module("data_preprocess.sources")

HEADER = ["Year", "City", "Score", "Opened", "Order"]
ROWS = [
    ["1990", "Paris", "3-1", "7 May 1990", "4"],
    ["1991", "Rome (Italy)", "0-2", "8 June 1991", "1,200"],
    ["1992", "O'Neil", "", "9 July 1992", "-"],
    ["1993", "Paris", "2-2", "1 May 1993", "7.5"],
]


@pytest.fixture(scope="module")
def table() -> Table:
    return make_table(HEADER, ROWS)


# --- tables ----------------------------------------------------------------------------------------------------------


def test_columns_have_types_and_derived_ones_stand_behind(table: Table) -> None:
    assert table.names == ["id", "year", "city", "score", "opened", "order_", "score_num", "opened_date"]
    assert table.rows[0] == (1, 1990, "Paris", "3-1", "7 May 1990", 4, 3, "1990-05-07")
    assert table.rows[2] == (3, 1992, "O'Neil", None, "9 July 1992", None, None, "1992-07-09")
    assert table.values("order_") == [4, 1200, None, 7.5]
    assert read_table(table_text(HEADER, ROWS)) == table


def test_names_are_different_and_need_no_quotes() -> None:
    names = identifiers(["A", "a", "select", "2019", "2 km", "", "ID", "T", "Größe", "a" * 80])
    assert names == ["a", "a_2", "select_", "y2019", "c_2_km", "col6", "id_2", "t_2", "groe", "a" * 28]
    with Database(make_table(names, [["1"] * len(names)])) as database:
        assert len(database.query(f"SELECT {', '.join(names)} FROM t")[0]) == len(names)


def test_texts_are_numbers_and_dates_only_where_they_are() -> None:
    assert [read_number(text) for text in ("1,234.5", "-3", "", "007", "1,23", "3 km", "nan")] == [
        *(1234.5, -3),
        *[None] * 5,
    ]
    assert [read_amount(text) for text in ("$ (1,200)", "(3.5)%", "45 %", "2019 (1)")] == [-1200, -3.5, 45, None]
    assert [first_number(text) for text in ("£1,250.50 m", "no", "Won 3-1")] == [1250.5, None, 3]
    assert [read_date(text) for text in ("2003-06-07", "June 31st", "June 45", "May", "7 March 1999")] == [
        *("2003-06-07", "xxxx-06-31", None, None, "1999-03-07")
    ]


def test_a_long_table_is_shown_with_its_first_rows_and_its_last() -> None:
    long = make_table(["Name", "Text"], [[f"n{number}", "x" * 100] for number in range(50)])
    shown = show(long, 300).splitlines()
    assert shown[0] == "id (number) | name | text"
    assert shown[1].startswith("1 | n0 | xxx")
    assert len(shown[1]) < 60
    assert shown[-3].endswith("more rows ...")
    assert shown[-2].startswith("50 | n49 | ")
    assert shown[-1] == "Also: name_num"
    assert len("\n".join(shown)) < 500


@pytest.mark.parametrize(
    ("num_rows", "hidden"), [(0, []), (1, []), (2, ["2 | b"]), (4, ["... 2 more rows ...", "4 | d"])]
)
def test_one_row_is_shown_whatever_the_budget_and_what_is_hidden_is_counted(num_rows: int, hidden: list[str]) -> None:
    table = make_table(["Name"], [[name] for name in "abcd"[:num_rows]])
    assert show(table, 0).splitlines() == ["id (number) | name", *["1 | a"][:num_rows], *hidden]


def test_rows_that_are_not_shown_are_not_made_into_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of twenty thousand questions shows its table."""
    made: list[object] = []

    def counting_text(value: object) -> str:
        made.append(value)
        return str(value)

    monkeypatch.setattr("recipes.tables.table.value_text", counting_text)
    show(make_table(["Name"], [[f"name {number}"] for number in range(5000)]), 300)
    assert len(made) < 100


# --- SQL -------------------------------------------------------------------------------------------------------------


def test_a_query_gives_rows_and_texts_match_in_any_case(table: Table) -> None:
    with Database(table) as database:
        assert database.query("SELECT year FROM t WHERE city = 'paris' ORDER BY opened_date") == [(1990,), (1993,)]
        assert database.query("SELECT city FROM t WHERE city LIKE '%italy%'") == [("Rome (Italy)",)]
        rows = database.query("SELECT city, SUM(order_) FROM t GROUP BY city ORDER BY 2 DESC")
    assert show_rows(rows, max_rows=2, max_chars=100) == "Rome (Italy) | 1200\nParis | 11.5\n... 1 more row"
    assert show_rows([], max_rows=2, max_chars=100) == "(no rows)"


@pytest.mark.parametrize(
    ("query", "reason"),
    [
        ("DROP TABLE t", "only SELECT over t"),
        ("INSERT INTO t (year) VALUES (1)", "only SELECT over t"),
        ("UPDATE t SET year = 1", "only SELECT over t"),
        ("ATTACH 'file.db' AS other", "not authorized"),
        ("PRAGMA table_info(t)", "not authorized"),
        ("SELECT * FROM sqlite_master", "prohibited"),
        ("SELECT * FROM pragma_database_list", "not authorized"),
        ("VACUUM INTO 'copy.db'", "authorization denied"),
        ("SELECT load_extension('x')", "load_extension"),
        ("SELECT zeroblob(1000000000)", "zeroblob"),
        ("SELECT randomblob(9)", "randomblob"),
        ("WITH RECURSIVE r(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM r) SELECT x FROM r", "not authorized"),
        ("SELECT 1; DROP TABLE t", "one statement"),
        ("", "only SELECT"),
        ("SELECT 'a\ud800'", "surrogates"),
        ("SELECT '\0'", "null character"),
        ("SELECT " + "(" * 900 + "1" + ")" * 900, "overflow"),
        ("SELECT 1" + " " * 3000, "more than 2000"),
        ("SELECT nme FROM t", "no such column: nme. Columns: id, year, city"),
        ("SELECT 1 FROM other", "The table is t"),
        ("SELECT replace(replace(replace(hex, 'a', 'b'), 'b', 'c'), 'c', 'd') FROM t", "no such column: hex"),
    ],
)
def test_what_is_not_a_small_select_is_refused_with_a_reason(table: Table, query: str, reason: str) -> None:
    with Database(table) as database:
        with pytest.raises(QueryError, match=reason.replace("(", r"\(")):
            database.query(query)
        assert database.query("SELECT COUNT(*) FROM t") == [(4,)]


def test_queries_that_do_not_end_are_stopped_and_long_texts_are_not_made() -> None:
    many = make_table(["A"], [["x" * 50 + str(number)] for number in range(100)])
    join = "FROM t a, t b, t c, t d, t e"
    with Database(many) as database:
        with pytest.raises(QueryError, match="takes too long"):
            database.query(f"SELECT COUNT(*) {join}")
        with pytest.raises(QueryError, match=r"takes too long|too big"):
            database.query(f"SELECT group_concat(a.a || b.a) {join}")
        part = "replace(" * 4 + "a" + ", 'x', 'xxxxxxxxxxxxxxxxxxxxxxx')" * 4
        with pytest.raises(QueryError, match="too big"):
            database.query(f"SELECT {part} FROM t")
        assert len(database.query("SELECT a.a FROM t a, t b")) == 200


@settings(deadline=None, max_examples=cases(40))
@given(st.text(alphabet="selctfromwhgupby *()t,'\";-%1=<>", max_size=40))
def test_any_text_is_rows_or_a_query_error(text: str) -> None:
    with Database(make_table(["a"], [["1"]])) as database:
        for query in (text, f"SELECT {text}", f"SELECT * FROM t WHERE {text}"):
            with contextlib.suppress(QueryError):
                show_rows(database.query(query), max_rows=3, max_chars=50)


def context_of(rows: list[list[str]], header: list[str]) -> ToolContext:
    return ToolContext(task=Task(task_id="1", prompt=(), env_kwargs={"table": table_text(header, rows)}))


def test_the_sql_tool_answers_errors_as_text() -> None:
    async def run(query: str) -> tuple[str, Any]:
        response, _, info = await TableSql().execute({"query": query}, context=context_of(ROWS, HEADER))
        return response.text, info["ended"]

    assert asyncio.run(run("SELECT city FROM t WHERE year = 1991")) == ("Rome (Italy)", "ok")
    text, ended = asyncio.run(run("SELECT town FROM t"))
    assert (text.startswith("Error: no such column: town. Columns: id"), ended) == (True, "error")


@pytest.mark.whole
def test_python_has_the_rows_of_the_table_and_keeps_variables() -> None:
    async def run() -> list[str]:
        tool, context = TablePython(), context_of(ROWS, HEADER)
        codes = ["x = 2", "print(x, sum(row['year'] == 1990 for row in rows))", "rows = []", "print(len(rows), x)"]
        try:
            return [(await tool.execute({"code": code}, context=context))[0].text for code in codes]
        finally:
            await tool.close(context)

    assert asyncio.run(run()) == ["(no output)", "2 1", "(no output)", "0 2"]


# --- the tool format -------------------------------------------------------------------------------------------------


def test_calls_at_a_time_are_as_many_as_cores_of_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: range(4), raising=False)
    monkeypatch.setattr("os.cpu_count", lambda: 64)
    cores = num_cores()
    assert cores <= 4
    assert (TableSql().policy.max_concurrency, TablePython().policy.max_concurrency) == (2 * cores, cores)


def test_a_turn_ends_with_its_first_block_of_sql_or_python() -> None:
    text = "```sql\nSELECT 1\n```\n```python\nprint(1)\n```"
    parsed = TableBlocks().parse(text, truncated=False)
    assert [(call.name, dict(call.arguments)) for call in parsed.tool_calls] == [
        ("sql", {"query": "SELECT 1"}),
        ("python", {"code": "print(1)"}),
    ]
    assert text[: TableBlocks().end_of_turn(text)] == "```sql\nSELECT 1\n```"
    assert TableBlocks().schemas_text([TableSql().tool_schema, TablePython().tool_schema]) == (
        "To run a program, write one block and stop there:\n```sql\nSELECT COUNT(*) FROM t\n```\nor\n"
        "```python\nprint(len(rows))\n```\nIts output comes in the next message."
    )


# --- scores ----------------------------------------------------------------------------------------------------------


@settings(deadline=1000, max_examples=cases(30))
@given(part=st.text(alphabet='[1]( )*"a.|-', max_size=6), end=st.sampled_from(["", "x", "[", ")"]))
def test_hostile_answers_are_judged_at_once(part: str, end: str) -> None:
    text = (part * 600)[:590] + end
    assert is_right([text], [text]) or not text
    assert not is_right(["Paris"], [text])
    assert exact_and_f1(["Paris"], "", [text], "", numeric=False)[0] == 0.0


def scored(task: Task, *texts: str) -> list[tuple[float, float]]:
    async def score() -> list[tuple[float, float]]:
        found = [await score_episode(reward_fn.score, task, answer_episode(text)) for text in texts]
        return [(round(entry.value, 2), entry.parts["success"]) for entry in found]

    return asyncio.run(score())


def test_a_wrong_answer_in_the_right_form_earns_a_little_and_a_right_one_all() -> None:
    task = Task(
        task_id="1", prompt=(), data_source="wikitablequestions", reward_model={"ground_truth": ["Paris", "Rome"]}
    )
    texts = ("Answer: rome | Paris", "Rome first.\nanswer: Rome | Paris", "Answer: Rome", "Rome | Paris", "Answer:", "")
    assert scored(task, *texts) == [(1.0, 1.0), (1.0, 1.0), (0.1, 0.0), (0.0, 0.0), (0.0, 0.0), (0.0, 0.0)]
    assert scored(task, "Answer: Rome\nAnswer: Rome | Paris") == [(0.0, 0.0)]


def test_tatqa_needs_the_scale_and_overlap_earns_a_part() -> None:
    truth = {"ground_truth": ["net sales growth"], "scale": "", "derivation": "5-3", "numeric": False}
    task = Task(task_id="1", prompt=(), data_source="tatqa", reward_model=truth)
    assert scored(task, "Answer: net sales growth", "Answer: sales") == [(1.0, 1.0), (0.25, 0.0)]
    number = Task(
        task_id="2",
        prompt=(),
        data_source="tatqa",
        reward_model={"ground_truth": ["2"], "scale": "million", "derivation": "5-3", "numeric": True},
    )
    assert scored(number, "Answer: 2\nScale: million", "Answer: 2", "Answer: 2000000") == [
        *((1.0, 1.0), (0.1, 0.0), (1.0, 1.0))
    ]
    found = asyncio.run(score_episode(reward_fn.score, number, answer_episode("5 - 3\nAnswer: 2")))
    assert (found.parts["derivation"], found.parts["scale"]) == (1.0, 0.0)
    assert derivation_share("(1,200-3.50)/3.50", ["1200 / 7"]) == 0.5


# --- the search for programs -----------------------------------------------------------------------------------------

RACES = make_table(
    ["Year", "Team", "Driver", "Points", "Rank"],
    [
        ["1990", "Alpha", "Ann Lee", "12", "1st"],
        ["1991", "Beta", "Bob Ray", "30", "2nd"],
        ["1992", "Alpha", "Cy Fox", "7", "3rd"],
        ["1993", "Alpha", "Ann Lee", "9", "5th"],
        ["1994", "Gamma", "Dee Kay", "30", "2nd"],
    ],
)


@pytest.mark.parametrize(
    ("question", "gold", "sql"),
    [
        ("which team had bob ray as its driver?", "Beta", "SELECT team FROM t WHERE driver = 'Bob Ray'"),
        ("how many times was the team alpha?", "3", "SELECT COUNT(*) FROM t WHERE team = 'Alpha'"),
        ("how many years had more than 10 points?", "3", "SELECT COUNT(*) FROM t WHERE points > 10"),
        ("what is the total points of ann lee?", "21", "SELECT SUM(points) FROM t WHERE driver = 'Ann Lee'"),
        ("which driver had the least points?", "Cy Fox", "SELECT driver FROM t ORDER BY points ASC LIMIT 1"),
        (
            "which driver is listed after bob ray?",
            "Cy Fox",
            "SELECT driver FROM t WHERE id = (SELECT id FROM t WHERE driver = 'Bob Ray') + 1",
        ),
        (
            "what is the difference in points between bob ray and cy fox?",
            "23",
            "SELECT ABS((SELECT points FROM t WHERE driver = 'Bob Ray') - "
            "(SELECT points FROM t WHERE driver = 'Cy Fox'))",
        ),
        (
            "who had more points, cy fox or dee kay?",
            "Dee Kay",
            "SELECT driver FROM t WHERE driver IN ('Cy Fox', 'Dee Kay') ORDER BY points DESC LIMIT 1",
        ),
    ],
)
def test_the_words_of_a_question_lead_to_its_program(question: str, gold: str, sql: str) -> None:
    with Database(RACES) as database:
        found = find_program(question, RACES, database, lambda values: is_right([gold], values))
        assert found is not None
        assert (found.sql, found.values) == (sql, (gold,))


@pytest.mark.parametrize(
    ("question", "gold"),
    [
        ("how many times was the team alpha?", "1992"),  # there, but no word leads to it
        ("which team had bob ray as its driver?", "Gamma"),  # the likeliest program gives another answer
        ("is it so?", "Beta"),
        ("", "Beta"),
    ],
)
def test_a_program_that_is_right_by_coincidence_is_not_kept(question: str, gold: str) -> None:
    with Database(RACES) as database:
        assert find_program(question, RACES, database, lambda values: is_right([gold], values)) is None


def test_derivations_become_programs() -> None:
    programs = demonstrations.programs_of
    assert programs("($272,815/$613,300 ) * 100", "percent") == ["print(round((272815/613300 ) * 100, 2))"]
    assert programs("460-466", "million") == ["print(round(460-466, 2))"]
    assert programs("3/4", "percent") == ["print(round(3/4 * 100, 2))", "print(round(3/4, 2))"]
    assert programs("a##b", "") == ["print(len(['a', 'b']))"]
    for other in ("", "1,496.5>1,202.9", "__import__('os')", "2019", "locate row 5", "1 if 2 else 3"):
        assert programs(other, "") == []


# --- data ------------------------------------------------------------------------------------------------------------


def test_validation_and_training_share_no_table_and_nothing_tested_is_trained_on() -> None:
    splits = sources.read_splits(SAMPLE)
    assert (len(splits.train), len(splits.validation), len(splits.test)) == (95, 21, 28)
    tables = [{question.table_id for question in part} for part in (splits.train, splits.validation, splits.test)]
    assert not tables[0] & tables[1] | tables[0] & tables[2] | tables[1] & tables[2]
    assert {question.source for question in splits.validation} == {"wikitablequestions", "tatqa"}


def test_gold_answers_of_the_sample_score_full_marks_and_wrong_ones_do_not() -> None:
    splits = sources.read_splits(SAMPLE)
    assert gold_findings([*splits.train, *splits.validation, *splits.test]) == (144, ())


def gold_findings(questions: list[Any]) -> tuple[int, tuple[Any, ...]]:
    tasks = [
        Task(task_id=one.question_id, prompt=(), data_source=one.source, reward_model=process.truth(one))
        for one in questions
    ]
    found = asyncio.run(gold_result(reward_fn.score, tasks))
    return int(found.seen.split()[0]), found.findings


def test_the_official_layouts_are_read(tmp_path: Path) -> None:
    archive = tmp_path / "release.zip"
    with zipfile.ZipFile(archive, "w") as packed:
        head = "id\tutterance\tcontext\ttargetValue\n"
        packed.writestr("W/data/training.tsv", head + "nt-0\twhich city?\tcsv/1.csv\tParis|a\\pb\n")
        packed.writestr("W/data/pristine-unseen-tables.tsv", head + "nu-0\twhen?\tcsv/2.csv\t1990\n")
        packed.writestr("W/csv/1.csv", '"City","Say"\n"Paris","\\"hi\\", there"\n')
        packed.writestr("W/csv/2.csv", '"Year"\n"1990"\n')
    [train], [test] = sources._read_archive(archive)
    assert (train.question_id, train.values, test.values) == ("nt-0", ("Paris", "a|b"), ("1990",))
    assert read_table(train.table).rows == ((1, "Paris", '"hi", there'),)
    archive.write_bytes(b"<html>")
    with pytest.raises(DataError, match="is not the release archive of WikiTableQuestions"):
        sources._read_archive(archive)
    context = {
        "table": {"uid": "t1", "table": [["", "2019"], ["Sales", "$ 5"]]},
        "paragraphs": [{"order": 2, "text": "second"}, {"order": 1, "text": "first"}],
        "questions": [{"uid": "q", "question": "?", "answer": 5, "answer_type": "arithmetic", "scale": "million"}],
    }
    [question] = sources.tatqa_questions(sources._plain_context(context))
    assert (question.paragraphs, question.values, question.numeric) == (("first", "second"), ("5",), True)
    assert read_table(question.table).rows == ((1, "Sales", 5),)


def test_wrong_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"there is no folder .*wikitablequestions"):
        sources.read_splits(tmp_path)
    folder = tmp_path / "wikitablequestions"
    folder.mkdir()
    row = {"id": "1", "question": "?", "table": "x", "answer": ["1"]}
    for name, entry in (("tables", {"table": "y", "header": [], "rows": []}), ("train", row), ("test", row)):
        (folder / f"{name}.jsonl").write_text(json.dumps(entry) + "\n")
    with pytest.raises(DataError, match="question 1 of wikitablequestions is about x, which is not among the tables"):
        sources.read_splits(tmp_path)
    (folder / "tables.jsonl").write_text('{"name": "x"}\n')
    with pytest.raises(DataError, match="table 0 of wikitablequestions has no table, header, rows; found name"):
        sources.read_splits(tmp_path)


# --- whole runs ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> SampleRun:
    """The recipe with the rows of its sample and a tiny model whose vocabulary is that of its demonstrations."""
    folder = tmp_path_factory.mktemp("tables")
    overrides = [
        f"run.folder={folder / 'runs'}",
        f"model.path={folder / 'model'}",
        "rollout.context_length=1536",
        "rollout.max_tokens=24",
    ]
    _, config = commands.resolve([str(RECIPE), *overrides])
    with pytest.MonkeyPatch.context() as patch, recipe_folder(RECIPE):
        patch.setenv("AGENT_R1_DATA", str(SAMPLE))
        plan = prepare_plan(config)
    rows = list(read_rows(Path(config.sft.data[0])))
    tokenizer = train_tokenizer(rows)
    shape = tiny_config(tokenizer)
    shape.max_position_embeddings = 4096
    LlamaForCausalLM(shape).save_pretrained(folder / "model")
    cast(Any, tokenizer).save_pretrained(folder / "model")
    return SampleRun(RECIPE, plan, ChatRenderer(tokenizer, "table_blocks"), rows, overrides)


@pytest.mark.whole
def test_every_demonstration_solves_its_task_as_a_rollout_would_show_it(run: SampleRun) -> None:
    assert len(run.demonstrations) > 50
    num_calls = 0
    for row in run.demonstrations:
        turns = list(demonstrated_turns(run.renderer, row))
        engine = ScriptedEngine([said for _, said in turns])
        trajectory = play(run, task_of(run, row), engine)
        assert (trajectory.outcome_reward, trajectory.stop_reason) == (1.0, StopReason.DONE), trajectory.error
        assert [prompt for prompt, _ in engine.requests] == [prompt for prompt, _ in turns]
        assert trajectory.num_tool_calls == len(turns) - 1
        num_calls += trajectory.num_tool_calls
    assert num_calls > 40
    held_out = {task.prompt[-1]["content"] for task in run.plan.eval_tasks}
    assert not [row for row in run.demonstrations if row["messages"][1]["content"] in held_out]


@pytest.mark.whole
def test_the_recipe_checks_and_trains_from_its_own_warm_start(run: SampleRun) -> None:
    small = ["trainer.steps=2", "rollout.groups_per_step=2", "rollout.group_size=2", "sft.steps=2", "sft.batch_size=4"]
    overrides = [*run.overrides, *small, "eval.max_tasks=2", "eval.every=0", "trainer.micro_batch_tokens=2048"]
    report = commands.check(str(RECIPE), *overrides, groups=1, members=2, quiet=True)
    # Two steps do not teach a model to answer, or to write a query.
    found = {result.title: result for result in report.results}
    assert {title for title, result in found.items() if result.findings} <= {"rewards", "trial episodes", "tool use"}
    assert found["tools"].seen == "python, sql"
    summary = commands.train(str(RECIPE), *overrides, quiet=True)
    assert summary.steps == 2
    assert (Path(run.plan.config.run.folder) / "tables" / "hf" / "model.safetensors").is_file()
    evaluation = commands.evaluate(
        str(RECIPE), *overrides, "eval.split=test", model=f"{run.plan.config.run.folder}/tables/hf", quiet=True
    )
    assert "eval/wikitablequestions/greedy" in evaluation.metrics


@pytest.mark.whole
@pytest.mark.skipif(not (WHOLE_DATA / "wikitablequestions").is_dir(), reason="needs the whole data sets")
def test_gold_answers_of_all_questions_score_full_marks_and_wrong_ones_never() -> None:
    splits = sources.read_splits(WHOLE_DATA)
    assert (len(splits.train), len(splits.validation), len(splits.test)) == (15030, 790, 5147)
    # The row after the one with $8.0 million has 8000 thousand, which is no wrong answer to it.
    questions = [one for one in (*splits.test, *splits.validation) if one.values != ("$8.0 million",)]
    assert gold_findings(questions) == (5936, ())
