"""The data of gsm8k_tool: GSM8K's splits as parquet files, and demonstrations made of its annotations.

    python recipes/gsm8k_tool/data_preprocess/process_gsm8k_tool.py --local_save_dir runs/gsm8k_tool_data

GSM8K marks calculations in its solutions: "She sold 48/2 = <<48/2=24>>24 clips." Each mark becomes a call of
`calculate`, whose result is worked out by the tool itself. The official files are found as in `recipes/gsm8k`.
"""

from __future__ import annotations

import argparse
import asyncio
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agent_r1.cli.errors import script_errors
from agent_r1.config import Config
from agent_r1.data import write_rows
from agent_r1.errors import DataError
from agent_r1.registry import load_module, recipe_folder
from agent_r1.shipped import find_recipe
from agent_r1.tools import ToolContext
from agent_r1.tools.builtin import evaluate
from agent_r1.types import Task

_RECIPE = Path(__file__).resolve().parents[1]
with recipe_folder(_RECIPE):
    prompts, tools = load_module("prompts"), load_module("tools")
_SIBLING = _RECIPE.with_name("gsm8k")
with recipe_folder(_SIBLING if _SIBLING.is_dir() else find_recipe("gsm8k")):  # the same problems
    gsm8k = load_module("data_preprocess.process_gsm8k")

MAX_STEPS = 5
"""Steps an episode may have (`rollout.max_steps`), the last of them the answer."""
CHECK_EVERY = 4
"""One in so many demonstrations that have a step left checks its answer before giving it."""

_ANNOTATION = re.compile(r"<<(?P<expression>[^<>=]*)=(?P<value>[^<>=]*)>>")


@dataclass(frozen=True, kw_only=True, slots=True)
class Calculation:
    """A calculation of a worked solution, and the words that lead to it."""

    words: str
    """What is said before it, since the calculation before."""
    expression: str
    """What is calculated."""


def calculations(worked: str) -> tuple[list[Calculation], str]:
    """The calculations of a solution, and the words after the last.

    "She sold 48/2 = $<<48/2=24>>24. Bye." gives ([Calculation("She sold 48/2 =", "48/2")], "$24. Bye.").
    """
    found: list[Calculation] = []
    words, rest = "", worked
    while match := _ANNOTATION.search(rest):
        words += rest[: match.start()]
        spoken = words.rstrip(" $")
        found.append(Calculation(words=spoken.strip(), expression=match["expression"].strip()))
        words, rest = words[len(spoken) :].strip(), rest[match.end() :]
    return found, (words + rest).strip()


def task_row(problem: Any, split: str, index: int) -> dict[str, Any]:
    """A problem as a dataset row. `env_kwargs` has what the solution comes to, the answer last: for the process reward,
    the model reads nothing of it."""
    steps, _ = calculations(problem.worked)
    answer = float(problem.answer)
    try:
        reached = dict.fromkeys(evaluate(step.expression) for step in steps)
    except ValueError as error:
        raise DataError(f"row {index} of {split} has a calculation that does not work out: {error}") from error
    return {
        "data_source": "gsm8k",
        "prompt": prompts.question(problem.question),
        "agent_name": "env_loop",
        "reward_model": {"style": "rule", "ground_truth": problem.answer},
        "env_kwargs": {"results": [*(value for value in reached if value != answer), answer]},
        "extra_info": {"split": split, "index": index},
    }


async def demonstration(problem: Any, *, check: bool) -> dict[str, Any] | None:
    """A problem solved with the tools, or None when its solution has no calculation or too many for an episode.

    Words, a call, its result, the words that follow with the next call, ..., the answer. With `check`, and a step left
    for it, the answer is checked before it is given.
    """
    steps, last_words = calculations(problem.worked)
    if not 0 < len(steps) < MAX_STEPS:
        return None
    row = task_row(problem, "train", 0)
    context = ToolContext(task=Task(task_id="demonstration", prompt=row["prompt"], env_kwargs=row["env_kwargs"]))
    calculator, checker = tools.Calculator(), tools.check_answer
    messages: list[dict[str, Any]] = list(row["prompt"])
    for step in steps:
        response, _, _ = await calculator.execute({"expression": step.expression}, context=context)
        messages.append(prompts.call(step.words, calculator.name, expression=step.expression))
        messages.append(prompts.result(calculator.name, response.text))
    number = float(problem.answer)
    # Of an answer that was not calculated the checker says so; whoever gives it all the same ignores the checker.
    if check and len(steps) + 1 < MAX_STEPS and number in context.state["results"]:
        number = int(number) if number.is_integer() else number
        response, _, _ = await checker.execute({"answer": number}, context=context)
        messages.append(prompts.call(last_words, checker.name, answer=number))
        messages.append(prompts.result(checker.name, response.text))
        last_words = ""
    messages.append(prompts.answer(last_words, problem.answer))
    return {"messages": messages, "tools": [dict(tool.tool_schema) for tool in (calculator, checker)]}


async def demonstrations(problems: Iterable[Any]) -> list[dict[str, Any]]:
    """The demonstrations of all problems that have one."""
    made = [await demonstration(problem, check=index % CHECK_EVERY == 0) for index, problem in enumerate(problems)]
    return [row for row in made if row is not None]


def write_data(folder: Path, local_dataset_path: Path | None = None) -> None:
    """Write `demonstrations.jsonl` and one file per split."""
    splits = gsm8k.read_splits(local_dataset_path)
    write_rows(folder / "demonstrations.jsonl", asyncio.run(demonstrations(splits["train"])))
    gsm8k.write_splits(folder, splits, task_row)


def make_data(config: Config) -> None:
    """The `data.prepare` of `base.yaml`."""
    write_data(Path(config.data.train[0]).parent)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--local_save_dir", type=Path, required=True, help="where the files go")
    parser.add_argument("--local_dataset_path", type=Path, help="a folder with train.jsonl and test.jsonl of GSM8K")
    arguments = parser.parse_args()
    with script_errors():
        write_data(arguments.local_save_dir, arguments.local_dataset_path)
