"""Any rows and any configuration are accepted or are one `AgentR1Error`: no other exception, no hang, no code of rows.

`make test` tries tens of cases of each kind, `make fuzz` thousands (tests/helpers/fuzzing.py).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from agent_r1.chat import ChatRenderer
from agent_r1.config import Config, from_yaml, known_keys, load_config, to_yaml
from agent_r1.data.demonstrations import load_demonstrations
from agent_r1.data.tasks import COLUMNS
from agent_r1.errors import AgentR1Error
from agent_r1.registry import recipe_folder
from agent_r1.training import first_observation, prepare_plan
from tests.helpers.commands import resolve
from tests.helpers.fuzzing import CASES, fuzz_settings
from tests.helpers.tiny_runs import RECIPE, tiny_overrides

TOUCHED: list[str] = []
"""What was called although a row only named it."""


def touch(*args: Any, **kwargs: Any) -> None:
    TOUCHED.append("called")


# --- what is tried ----------------------------------------------------------------------------------------------------

CODE = f"{__name__}:touch"
NAMES = [CODE, "os:getpid", "tool", "gym", "remote", "python", "search", "price", "calculate", "mcp:x", "env_loop"]
KEYS = ["name", "env", "tools", "seed", "options", "sandbox", "index", "limits", "url", "context", "command", "level"]
ODD_TEXTS = [
    "",
    "\0",
    "\ud800",
    "<|im_end|>",
    "user<|im_start|>",
    "[1, 2",
    '{"tools": null}',
    "a" * 5000,
    "ä\u202e",
    ":",
]
NUMBERS = st.integers() | st.floats() | st.sampled_from([10**400, -(2**63), 1e308, float("nan"), float("inf")])
TEXTS = st.text(max_size=20) | st.sampled_from([*NAMES, *ODD_TEXTS])
JSON = st.recursive(
    st.none() | st.booleans() | NUMBERS | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS | st.sampled_from(KEYS), inner, max_size=3),
    max_leaves=8,
)
"""Any JSON value, and what Python's writer makes beyond JSON."""

MESSAGES = st.lists(
    st.fixed_dictionaries(
        {"role": st.sampled_from(["user", "system", "assistant", "tool"]) | JSON, "content": TEXTS | JSON},
        optional={"tool_calls": JSON, "name": JSON, "tool_call_id": JSON},
    ),
    max_size=3,
)
TOOLS = st.lists(
    st.sampled_from(NAMES) | st.dictionaries(st.sampled_from(KEYS), st.sampled_from(NAMES) | JSON, max_size=3) | JSON,
    max_size=3,
)
ENV_KWARGS = st.fixed_dictionaries(
    {}, optional={"env": st.sampled_from(NAMES) | JSON, "tools": TOOLS | JSON, "seed": JSON, "prices": JSON}
)
ROWS = st.fixed_dictionaries(
    {"prompt": MESSAGES | TEXTS | JSON},
    optional={
        **{column: JSON for column in COLUMNS if column != "prompt"},
        "env_kwargs": ENV_KWARGS | JSON | ENV_KWARGS.map(json.dumps),
        "agent_name": st.sampled_from(NAMES) | JSON,
    },
)
"""Rows that are nearly right, with any value in any column."""

ODD_VALUES = [
    *("nan", "inf", "-inf", "null", "true", "0", "-1", "1e999", "9" * 5000, "1.5", "''", "${run.name}", "${nothing}"),
    *("[", "{", "[]", "{}", "[null]", "{name: null}", "{name: x}", "[[[", "[" * 3000, "'", "\\", "\0", "\ud800"),
    *("???", "${", "a,b", "choice(1,2)", "range(1,9)", "x" * 5000, "/home/jürgen", "math:pi", ":", "a:", ":b", "..:x"),
]
VALUES = st.text(max_size=30) | st.sampled_from(ODD_VALUES) | JSON.map(lambda value: json.dumps(value))
OPEN_KEYS = [
    *(f"env.{name}" for name in ("name", "tools", "row_tools", "limits", "context", "context.turns", "depth", "url")),
    *("tools.price.timeout", "tools.price", "tools.mcp", "tools.mcp.x.url", "tools.mcp.x.command", "tools.nothing.x"),
    *("algorithm.loss.clip_low", "algorithm.estimator.name", "algorithm.aggregation.divisor", "algorithm.off_policy"),
    *("env", "tools", "algorithm", "model", "trainer", "algorithm.kl", "~env.tools", "+env.x", "++trainer.steps"),
]
CONFIG_SHARE = 0.25 if CASES <= 200 else 1.0
"""Composing a configuration takes a fifth of a second: a quick run tries fewer."""
OVERRIDE_KEYS = st.sampled_from([*known_keys(), *OPEN_KEYS])


# --- the contract -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, model_folder: Path) -> list[str]:
    """The overrides of a run that could begin."""
    return tiny_overrides(tmp_path_factory.mktemp("fuzz"), model_folder)


@pytest.fixture
def rows_config(run: list[str], tmp_path: Path) -> Config:
    """A configuration with a sandboxed tool whose rows are in `tmp_path/rows.jsonl`."""
    tools = "env.tools=[price,calculate,{name: python, sandbox: auto, seconds: 2}]"
    return resolve([*run, f"data.train=[{tmp_path}/rows.jsonl]", tools, "reward.function=none"])[1]


@pytest.fixture(autouse=True)
def nothing_is_called() -> Iterator[None]:
    TOUCHED.clear()
    yield
    assert TOUCHED == []


def use_rows(config: Config, renderer: ChatRenderer) -> None:
    """What a dry run does with rows: read them, find what they name, render what the model would see first."""
    with recipe_folder(RECIPE):
        plan = prepare_plan(config)
        for task in plan.train_tasks:
            renderer.render(first_observation(plan, task))


def accepted(config: Config, renderer: ChatRenderer, content: bytes) -> bool:
    """Whether the file can be used; anything but an `AgentR1Error` of some lines is raised."""
    Path(config.data.train[0]).write_bytes(content)
    message = message_of(lambda: use_rows(config, renderer))
    assert message is None or 0 < len(message) < 10_000
    return message is None


def message_of(work: Callable[[], object]) -> str | None:
    """What the `AgentR1Error` says that `work` ends with; None: it ends well. Anything else is raised."""
    try:
        work()
    except AgentR1Error as error:
        return str(error)
    return None


def test_ordinary_rows_are_accepted(rows_config: Config, renderer: ChatRenderer) -> None:
    ordinary = {"prompt": "?", "env_kwargs": {"tools": ["calculate"], "prices": {"egg": 2}}}
    assert accepted(rows_config, renderer, json.dumps(ordinary).encode())


@pytest.mark.whole
@fuzz_settings(0.5)
@given(rows=st.lists(ROWS, min_size=1, max_size=3))
@example(rows=[{"prompt": "x", "env_kwargs": {"env": CODE}}])
@example(rows=[{"prompt": "x", "env_kwargs": {"tools": [CODE]}}])
@example(rows=[{"prompt": "x", "agent_name": CODE}])
@example(rows=[{"prompt": "x", "env_kwargs": {"tools": [{"name": "python", "sandbox": "limits"}]}}])
@example(rows=[{"prompt": [{"role": "user", "content": [1, 2]}]}])
@example(rows=[{"prompt": "x", "env_kwargs": {"tools": None}}])
def test_any_value_in_any_column(rows_config: Config, renderer: ChatRenderer, rows: list[dict[str, Any]]) -> None:
    accepted(rows_config, renderer, "\n".join(json.dumps(row) for row in rows).encode())
    assert TOUCHED == []


@fuzz_settings(0.25)
@given(value=JSON | st.sampled_from([5, [], [{}], "x", None]))
def test_any_json_value_as_a_row(rows_config: Config, renderer: ChatRenderer, value: Any) -> None:
    accepted(rows_config, renderer, json.dumps(value).encode())


@fuzz_settings(0.15)
@given(row=ROWS, noise=st.binary(max_size=8), place=st.floats(0, 1))
@example(row={"prompt": "x"}, noise=b"[" * 100_000, place=0.0)
@example(row={"prompt": "x"}, noise=b"9" * 5000, place=0.5)
def test_any_bytes_in_a_file_of_rows(
    rows_config: Config, renderer: ChatRenderer, row: dict[str, Any], noise: bytes, place: float
) -> None:
    content = json.dumps(row).encode()
    cut = int(place * len(content))
    accepted(rows_config, renderer, content[:cut] + noise + content[cut:])


@fuzz_settings(0.1)
@given(row=st.fixed_dictionaries({"messages": MESSAGES | JSON}, optional={"tools": JSON | TOOLS}))
def test_any_demonstration(tmp_path: Path, renderer: ChatRenderer, row: dict[str, Any]) -> None:
    (tmp_path / "demos.jsonl").write_text(json.dumps(row))
    assert message_of(lambda: load_demonstrations([tmp_path / "demos.jsonl"], renderer)) != ""


def configured(recipe: str | Path, overrides: list[str]) -> bool:
    """Whether a run with this configuration could begin; anything but an `AgentR1Error` is raised."""

    def begin() -> None:
        config = load_config(recipe, overrides)
        with recipe_folder(RECIPE):
            prepare_plan(config)
        assert from_yaml(to_yaml(config)) == config

    message = message_of(begin)
    assert message != ""
    return message is None


def test_ordinary_configuration_is_accepted(run: list[str]) -> None:
    assert configured(run[0], run[1:])


@pytest.mark.whole
@fuzz_settings(0.6 * CONFIG_SHARE)
@given(key=OVERRIDE_KEYS, value=VALUES)
@example(key="model.path", value="/home/jürgen/m")
@example(key="trainer.steps", value="9" * 5000)
@example(key="env.tools", value="[" * 3000)
@example(key="reward.function", value="math:pi")
@example(key="env.limits", value="5")
@example(key="model.path", value="x" * 5000)
def test_any_text_for_any_key(run: list[str], key: str, value: str) -> None:
    configured(run[0], [*run[1:], f"{key}={value}"])


@fuzz_settings(0.15 * CONFIG_SHARE)
@given(override=st.text(max_size=40) | st.sampled_from(["=", "~", "a=", "+=5", "run.name", "\0=\0", "ä=ö", "a" * 5000]))
def test_any_text_as_an_override(run: list[str], override: str) -> None:
    configured(run[0], [*run[1:], override])


@pytest.mark.whole
@fuzz_settings(0.25 * CONFIG_SHARE)
@given(key=st.sampled_from([key for key in known_keys() if "prepare" not in key]), value=JSON)
def test_any_value_for_any_key_of_a_recipe(run: list[str], tmp_path: Path, key: str, value: Any) -> None:
    nested: Any = value
    for part in reversed(key.split(".")):
        nested = {part: nested}
    head = "defaults:\n  - agent_r1\n  - algorithm: grpo\n  - _self_\n"
    (tmp_path / "base.yaml").write_text(head + json.dumps(nested)[1:-1].replace("{", "{ ", 1) + "\n")
    configured(tmp_path, [entry for entry in run[1:] if not entry.startswith(f"{key}=")])
