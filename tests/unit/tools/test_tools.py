"""Tools from functions, running calls, the calculator."""

from __future__ import annotations

import asyncio
import datetime
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Literal, NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel

from agent_r1.envs import ToolEnv
from agent_r1.errors import ConfigError, UnknownNameError
from agent_r1.tools import (
    BaseTool,
    CallOutcome,
    FunctionTool,
    ToolContext,
    ToolInputError,
    ToolResponse,
    ToolResult,
    calculate,
    run_call,
    tool,
    try_tool,
)
from agent_r1.tools.builtin.calculator import evaluate, format_number
from agent_r1.types import Action, Task, ToolCall
from tests.helpers.fuzzing import cases

CONTEXT = ToolContext(task=Task(task_id="t", prompt=(), env_kwargs={"stock": {"tea": 4}}))


def order(
    item: str,
    context: ToolContext,
    count: int = 1,
    sizes: list[float] | None = None,
    colour: Literal["red", "blue"] = "red",
) -> str:
    """Order something
    from the shop.

    It is delivered the same day.

    Args:
        item: The item's name.
        context: The episode.
        count (int): How many.

    Returns:
        colour: not a description of the parameter.
    """
    return f"{count} {colour} {item} of {context.task.env_kwargs['stock'][item]}"


def returning(value: Any) -> FunctionTool:
    def give() -> Any:
        """Give it."""
        return value

    return FunctionTool(give)


def raising(error: BaseException) -> FunctionTool:
    def break_down() -> str:
        """Raise it."""
        raise error

    return FunctionTool(break_down)


def execute(made: BaseTool, **arguments: Any) -> ToolResult:
    return asyncio.run(made.execute(arguments, context=CONTEXT))


def call(made: BaseTool, name: str | None = None, **arguments: Any) -> CallOutcome:
    """Run one call to the only tool there is; a call that takes seconds has hung."""

    async def run() -> CallOutcome:
        asked = ToolCall(name=name or made.name, arguments=arguments)
        return await asyncio.wait_for(run_call({made.name: made}, asked, CONTEXT), 3)

    return asyncio.run(run())


# Schema


def test_schema_comes_from_signature_and_docstring_and_hides_the_context() -> None:
    assert FunctionTool(order).tool_schema == {
        "type": "function",
        "function": {
            "name": "order",
            "description": "Order something from the shop.",
            "parameters": {
                "type": "object",
                "properties": {
                    "item": {"type": "string", "description": "The item's name."},
                    "count": {"type": "integer", "default": 1, "description": "How many."},
                    "sizes": {
                        "anyOf": [{"type": "array", "items": {"type": "number"}}, {"type": "null"}],
                        "default": None,
                    },
                    "colour": {"type": "string", "enum": ["red", "blue"], "default": "red"},
                },
                "required": ["item"],
            },
        },
    }


def test_parameter_called_title_is_kept() -> None:
    def publish(title: str) -> str:
        """Publish a book."""
        return title

    properties = FunctionTool(publish).tool_schema["function"]["parameters"]["properties"]
    assert properties == {"title": {"type": "string"}}


def test_description_that_goes_on_on_the_next_line_is_kept_whole() -> None:
    def stock(item: str, shelf: int) -> str:
        """How many there are.

        Args:
            item: The name of the item,
                in the singular.
            shelf: The shelf.
        """
        return item

    properties = FunctionTool(stock).tool_schema["function"]["parameters"]["properties"]
    assert properties["item"]["description"] == "The name of the item, in the singular."
    assert properties["shelf"]["description"] == "The shelf."


def numpy_style(item: str, shelf: int) -> str:
    """How many there are.

    Parameters
    ----------
    item : str
        The name.
    shelf : int
        The shelf.
    """
    return item


def rest_style(item: str, shelf: int) -> str:
    """How many there are.

    :param item: The name.
    :param shelf: The shelf.
    """
    return item


def google_style_with_prose_sections(item: str, shelf: int) -> str:
    """How many there are.

    Args:
        item:
            The name.
        shelf: The shelf.
    Raises:
        nothing that anybody knows of
    Note:
        item: not this one.
    """
    return item


@pytest.mark.parametrize("function", [numpy_style, rest_style, google_style_with_prose_sections])
def test_parameters_are_described_in_any_common_style(function: Callable[..., str]) -> None:
    made = FunctionTool(function).tool_schema["function"]
    assert made["description"] == "How many there are."
    described = {name: entry["description"] for name, entry in made["parameters"]["properties"].items()}
    assert described == {"item": "The name.", "shelf": "The shelf."}


def test_a_docstring_that_cannot_be_parsed_is_refused() -> None:
    def stock(item: str) -> str:
        """How many there are.

        Args:
            item is the name.
        """
        return item

    with pytest.raises(ConfigError, match=r"docstring of tool 'stock' cannot be parsed: .*item is the name"):
        FunctionTool(stock)


def test_parameters_may_have_any_name() -> None:
    def query(schema: str, json: bool, copy: int) -> str:
        """Ask a database."""
        return f"{schema} {json} {copy}"

    response, _, _ = execute(FunctionTool(query), schema="shop", json=True, copy=2)
    assert response.text == "shop True 2"


def test_tool_without_parameters_has_an_empty_schema() -> None:
    assert returning("x").tool_schema["function"]["parameters"] == {"type": "object", "properties": {}}


def test_tool_without_a_docstring_is_refused() -> None:
    def silent(item: str) -> str:
        return item

    with pytest.raises(ConfigError, match="tool 'silent' has no docstring"):
        FunctionTool(silent)


def test_parameter_without_a_type_is_refused() -> None:
    def untyped(item) -> str:  # type: ignore[no-untyped-def]
        """Do it."""
        return str(item)

    with pytest.raises(ConfigError, match="parameter 'item' of tool 'untyped' has no type"):
        FunctionTool(untyped)


class Basket:
    """Keeps something."""

    def put(self, item: str) -> str:
        """Put it in."""
        return item


@pytest.mark.parametrize("given", [Basket.put, Basket(), Basket])
def test_methods_and_objects_are_told_where_shared_state_goes(given: Any) -> None:
    with pytest.raises(ConfigError, match=r"which keep it in context\.state"):
        FunctionTool(given)


def star(*items: str) -> str:
    """Do it."""
    return str(items)


def double_star(**items: str) -> str:
    """Do it."""
    return str(items)


@pytest.mark.parametrize("function", [star, double_star])
def test_parameters_without_names_are_refused(function: Callable[..., str]) -> None:
    with pytest.raises(ConfigError, match="a tool needs named parameters"):
        FunctionTool(function)


def test_decorator_registers_the_tool_and_leaves_a_function_to_call() -> None:
    @tool
    def tests_double(number: int) -> int:
        """Twice a number."""
        return 2 * number

    assert tests_double(4) == 8
    assert BaseTool.get("tests_double") is tests_double


def test_decorator_takes_another_name() -> None:
    @tool(name="tests_triple")
    def times_three(number: int) -> int:
        """Three times a number."""
        return 3 * number

    assert times_three.name == "tests_triple"
    assert times_three.tool_schema["function"]["name"] == "tests_triple"
    assert BaseTool.get("tests_triple") is times_three


def test_registered_class_is_made_when_asked_for() -> None:
    @BaseTool.register("tests_echo")
    class Echo(BaseTool):
        name = "tests_echo"
        tool_schema: Mapping[str, Any] = {"type": "function", "function": {"name": "tests_echo"}}

        async def execute(self, args: Mapping[str, Any], **kwargs: Any) -> ToolResult:
            return ToolResponse(text=str(args["text"])), 0.25, {"task": kwargs["context"].task.task_id}

    found = BaseTool.get("tests_echo")
    assert isinstance(found, Echo)
    assert execute(found, text="hi") == (ToolResponse(text="hi"), 0.25, {"task": "t"})


class Remembering(BaseTool):
    """Keeps in itself what it was asked before, as its author expects of a tool that an episode has for itself."""

    name = "remembering"
    tool_schema: Mapping[str, Any] = {"type": "function", "function": {"name": "remembering"}}

    def __init__(self, first: str = "") -> None:
        self.seen = [first]

    async def execute(self, args: Mapping[str, Any], **kwargs: Any) -> ToolResult:
        self.seen.append(str(args["text"]))
        return ToolResponse(text=" ".join(self.seen)), None, {}


class RememberingBatches(Remembering):
    async def batch_execute(
        self, list_of_args: Sequence[Mapping[str, Any]], contexts: Sequence[ToolContext]
    ) -> Sequence[ToolResult | Exception]:
        raise NotImplementedError


def test_what_a_tool_keeps_in_itself_does_not_reach_the_next_episode() -> None:
    answers = []
    for text in ("one", "two"):
        env = ToolEnv([{"name": "tests.unit.tools.test_tools:Remembering", "first": "zero"}])
        answers.append(asyncio.run(_answer_in(env, text)))
    again = asyncio.run(_answer_in(env, "three"))  # the same environment, reset
    assert [*answers, again] == ["zero one", "zero two", "zero three"]


async def _answer_in(env: ToolEnv, text: str) -> str:
    await env.reset(CONTEXT.task)
    call = ToolCall(name="remembering", arguments={"text": text})
    result = await env.step(Action(text="", tool_calls=(call,)))
    assert result.observation is not None
    assert result.observation.messages is not None
    return str(result.observation.messages[-1]["content"])


def test_a_tool_that_batches_is_one_object_for_all_episodes_with_the_same_arguments() -> None:
    name = "tests.unit.tools.test_tools:RememberingBatches"
    assert BaseTool.get(name, first="a") is BaseTool.get(name, first="a")
    assert BaseTool.get(name, first="a") is not BaseTool.get(name, first="b")


def test_unknown_tool_in_a_configuration_names_the_nearest() -> None:
    with pytest.raises(UnknownNameError, match="Did you mean 'calculate'"):
        BaseTool.get("calculat")


# Arguments


def test_arguments_are_checked_filled_and_given_with_the_context() -> None:
    response, reward, info = execute(FunctionTool(order), item="tea", count="3")
    assert (response.text, reward, info) == ("3 red tea of 4", None, {})


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "wrong arguments for order: item: Field required"),
        ({"item": "tea", "count": "many"}, "count: Input should be a valid integer"),
        ({"item": "tea", "color": "red"}, "color: Extra inputs are not permitted"),
        ({"item": "tea", "colour": "green"}, "colour: Input should be 'red' or 'blue'"),
        ({"item": "tea", "sizes": [1, "x"]}, "sizes.1: Input should be a valid number"),
        ({"item": "tea", "context": {}}, "context: Extra inputs are not permitted"),
    ],
)
def test_wrong_arguments_are_explained_to_the_model(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ToolInputError) as caught:
        execute(FunctionTool(order), **arguments)
    assert message in str(caught.value)


def test_all_wrong_arguments_are_explained_at_once() -> None:
    with pytest.raises(ToolInputError) as caught:
        execute(FunctionTool(order), count="many", color="red")
    assert all(part in str(caught.value) for part in ("item: ", "count: ", "color: "))


# What a function returns


@pytest.mark.parametrize(
    ("returned", "result"),
    [
        ("text", (ToolResponse(text="text"), None, {})),
        (3, (ToolResponse(text="3"), None, {})),
        (2.5, (ToolResponse(text="2.5"), None, {})),
        (None, (ToolResponse(text="null"), None, {})),
        ({"städte": ["Köln"]}, (ToolResponse(text='{"städte": ["Köln"]}'), None, {})),
        (("text", 0.5), (ToolResponse(text="text"), 0.5, {})),
        ((7, 1), (ToolResponse(text="7"), 1.0, {})),
        (("text", None), (ToolResponse(text="text"), None, {})),
        (("text", -1, {"seen": 2}), (ToolResponse(text="text"), -1.0, {"seen": 2})),
        (ToolResponse(text="a", images=("i",)), (ToolResponse(text="a", images=("i",)), None, {})),
        ((ToolResponse(text="a"), 0.1), (ToolResponse(text="a"), 0.1, {})),
    ],
)
def test_answer_reward_and_notes_are_read_from_what_a_function_returns(returned: Any, result: ToolResult) -> None:
    assert execute(returning(returned)) == result


class Unit(Enum):
    kilo = "kg"


class Line(BaseModel):
    item: str
    unit: Unit = Unit.kilo


@dataclass
class Order:
    line: Line
    count: int = 2


class Place(NamedTuple):
    row: int
    column: int


@pytest.mark.parametrize(
    ("returned", "text"),
    [
        (Unit.kilo, "kg"),
        ({"unit": Unit.kilo}, '{"unit": "kg"}'),
        (Line(item="tea"), '{"item": "tea", "unit": "kg"}'),
        ([Line(item="tea")], '[{"item": "tea", "unit": "kg"}]'),
        (Order(Line(item="tea")), '{"line": {"item": "tea", "unit": "kg"}, "count": 2}'),
        ({"b", "a"}, '["a", "b"]'),
        ({"n": np.int64(3), "all": np.arange(2)}, '{"n": 3, "all": [0, 1]}'),
        (Place(3, 4), "[3, 4]"),
        ({"day": datetime.date(2031, 5, 17)}, '{"day": "2031-05-17"}'),
    ],
)
def test_the_model_reads_values_in_the_form_in_which_it_writes_them(returned: Any, text: str) -> None:
    assert execute(returning(returned)) == (ToolResponse(text=text), None, {})


def test_async_function_runs_on_the_event_loop() -> None:
    async def where() -> str:
        """Which thread."""
        await asyncio.sleep(0)
        return threading.current_thread().name

    assert execute(FunctionTool(where))[0].text == threading.current_thread().name


def test_sync_functions_do_not_hold_up_the_event_loop() -> None:
    both_here = threading.Barrier(2, timeout=5)

    def meet() -> str:
        """Wait for the other one."""
        both_here.wait()
        return "met"

    made = FunctionTool(meet)

    async def run() -> list[ToolResult]:
        return await asyncio.gather(made.execute({}), made.execute({}))

    assert [response.text for response, _, _ in asyncio.run(run())] == ["met", "met"]


# Running a call


def test_call_that_works_comes_back_with_its_reward_and_notes() -> None:
    outcome = call(returning(("7", 0.5, {"hit": True})))
    assert (outcome.response.text, outcome.status, outcome.reward, outcome.info) == ("7", "ok", 0.5, {"hit": True})


def test_tool_that_gives_no_reward_counts_zero() -> None:
    assert call(returning("7")).reward == 0.0


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ValueError("there is no tea here"), "Error: there is no tea here"),
        (OSError(), "Error: OSError"),
        (TimeoutError(), "Error: TimeoutError"),
    ],
)
def test_error_of_a_tool_becomes_text(error: Exception, text: str) -> None:
    outcome = call(raising(error))
    assert (outcome.response.text, outcome.status, outcome.reward) == (text, "error", 0.0)


def test_tool_that_runs_out_of_an_iterator_becomes_text() -> None:
    def first_match() -> str:
        """The first of none."""
        return next(iter(()))

    assert call(FunctionTool(first_match)).status == "error"


def test_tool_that_exits_becomes_text() -> None:
    def leave() -> str:
        """Leave, as argparse does when it dislikes its arguments."""
        sys.exit(2)

    assert call(FunctionTool(leave)).status == "error"


def test_wrong_arguments_become_text_and_are_the_models_mistake() -> None:
    outcome = call(FunctionTool(order), count=1)
    assert outcome.status == "invalid"
    assert outcome.response.text == "Error: wrong arguments for order: item: Field required"


def test_unknown_tool_becomes_text_that_names_the_nearest() -> None:
    async def run() -> CallOutcome:
        tools = {"price": returning("1"), "calculate": calculate}
        return await run_call(tools, ToolCall(name="prize", arguments={}), CONTEXT)

    outcome = asyncio.run(run())
    assert outcome.status == "invalid"
    assert outcome.response.text == "Error: unknown tool 'prize'. Did you mean 'price'? Known: calculate, price."


def test_cancelled_call_is_cancelled_and_not_an_answer() -> None:
    async def wait() -> str:
        """Wait for ever."""
        await asyncio.Event().wait()
        return "never"

    async def run() -> None:
        made = FunctionTool(wait)
        await asyncio.wait_for(run_call({"wait": made}, ToolCall(name="wait", arguments={}), CONTEXT), 0.01)

    with pytest.raises(TimeoutError):
        asyncio.run(run())


# The calculator


@pytest.mark.parametrize(
    ("expression", "text"),
    [
        ("3 * (2 + 4)", "18"),
        ("7 / 2", "3.5"),
        ("7 // 2", "3"),
        ("-7 % 3", "2"),
        ("--2 + +1", "3"),
        ("4 / 2", "2"),
        ("0.1 + 0.2", "0.3"),
        (" 1_000 ", "1000"),
    ],
)
def test_calculator_works_out(expression: str, text: str) -> None:
    assert call(calculate, expression=expression).response.text == text


@pytest.mark.parametrize(
    ("value", "text"), [(12345.67, "12345.67"), (1234567.5, "1234567.5"), (-99999.99, "-99999.99")]
)
def test_sums_of_money_keep_their_cents(value: float, text: str) -> None:
    assert format_number(value) == text


@pytest.mark.parametrize(
    ("expression", "value"),
    [("(" * 99 + "1" + ")" * 99, 1), ("-" * 199 + "1", -1), ("1+" * 99 + "1", 100), ("0" * 200, 0)],
)
def test_calculator_works_out_whatever_fits_its_length(expression: str, value: float) -> None:
    assert evaluate(expression) == value


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        ("(1).real", "only numbers"),
        ("().__class__", "only numbers"),
        ("x + 1", "only numbers"),
        ("__import__('os')", "only numbers"),
        ("abs(1)", "only numbers"),
        ("[1, 2]", "only numbers"),
        ("'a' * 3", "only numbers"),
        ("True + 1", "only numbers"),
        ("1j", "only numbers"),
        ("1 < 2", "only numbers"),
        ("~1", "only numbers"),
        ("1 << 60", "only numbers"),
        ("9 ** 9 ** 9", "only numbers"),
        ("(lambda: 1)()", "only numbers"),
        ("1 / 0", "division by zero"),
        ("1 % 0", "division by zero"),
        ("1 // 0.0", "division by zero"),
        ("9" * 200, "too large"),
        ("1e999", "too large"),
        ("1e9 * 1e9", "too large"),
        ("1+" * 100 + "1", "longer than 200"),
        ("", "not an arithmetic expression"),
        ("1 +", "not an arithmetic expression"),
        ("1; 2", "not an arithmetic expression"),
        ("1 \x00", "not an arithmetic expression"),
        ("(" * 199, "not an arithmetic expression"),
        ("nan", "only numbers"),
        ("1e999 - 1e999", "too large"),
        ("0x" + "f" * 198, "too large"),
        ("2 ** -1", "only numbers"),
        ("\ud800", "not an arithmetic expression"),
    ],
)
def test_calculator_refuses(expression: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        evaluate(expression)


def test_refusal_is_an_error_the_model_reads() -> None:
    outcome = call(calculate, expression="x")
    assert outcome.status == "error"
    assert outcome.response.text == "Error: only numbers, + - * / // % and parentheses are allowed"


EXPRESSIONS = st.recursive(
    st.integers(0, 60).map(str),
    lambda inner: st.tuples(inner, st.sampled_from("+-*"), inner).map(lambda parts: f"({' '.join(parts)})"),
    max_leaves=7,
)


@settings(deadline=None, max_examples=cases(60))
@given(expression=EXPRESSIONS)
def test_calculator_agrees_with_integer_arithmetic(expression: str) -> None:
    value = evaluate(expression)
    assert isinstance(value, int)
    assert value == eval(expression)
    assert format_number(value) == str(eval(expression))


@settings(deadline=None, max_examples=cases(60))
@given(expression=st.text(alphabet="0123456789.eExjo_+-*/%() abc\x00\n'\\[]é²", max_size=30))
def test_calculator_refuses_with_a_value_error_or_gives_a_finite_number(expression: str) -> None:
    try:
        value = evaluate(expression)
    except ValueError:
        return
    assert abs(value) <= 1e15


def test_an_optional_context_is_filled_in_and_not_shown_to_the_model() -> None:
    def where(item: str, context: ToolContext | None = None) -> str:
        """Where an item is."""
        return f"{item}: {context.task.env_kwargs['shelf']}" if context is not None else "no context"

    target = FunctionTool(where)
    assert list(target.tool_schema["function"]["parameters"]["properties"]) == ["item"]
    assert try_tool(target, {"item": "tea"}, env_kwargs={"shelf": 3}).response.text == "tea: 3"


class _Opaque:
    pass


def _of_opaque(item: _Opaque) -> str:
    """A parameter that JSON cannot hold."""
    return str(item)


def _of_unknown(item: Missing) -> str:  # type: ignore[name-defined]  # noqa: F821
    """A type that is not there."""
    return str(item)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (
            _of_opaque,
            r"tool '_of_opaque' has a parameter of a type that a model cannot write as JSON \(item: _Opaque\)",
        ),
        (
            _of_unknown,
            "the types of the parameters of tool '_of_unknown' cannot be read: name 'Missing' is not defined",
        ),
    ],
)
def test_a_parameter_type_that_no_schema_can_have_is_named(function: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        FunctionTool(function)


@pytest.mark.parametrize("arguments", [None, "tea", ["tea"]])
def test_arguments_of_a_trial_that_are_no_mapping_are_refused(arguments: Any) -> None:
    with pytest.raises(ConfigError, match=r"arguments must be a mapping such as \{'item': 'tea'\}, found "):
        try_tool(calculate, arguments)
