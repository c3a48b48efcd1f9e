"""The data of hotpotqa: questions as parquet files, the index of passages, and demonstrations for the warm start.

    python recipes/hotpotqa/data_preprocess/process_hotpotqa.py --local_save_dir runs/hotpotqa_data

`agent-r1 train` calls `make_data` when a file that `base.yaml` names is missing. The settings of the search tool are
those of `base.yaml`; overrides such as `env.context=search_notes` may follow.
"""

from __future__ import annotations

import argparse
import asyncio
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from itertools import chain
from pathlib import Path
from typing import Any

from agent_r1.cli.errors import script_errors
from agent_r1.config import Config, load_config
from agent_r1.console import progress_counter
from agent_r1.data import write_rows
from agent_r1.envs import make_policy
from agent_r1.errors import ConfigError
from agent_r1.registry import load_module, recipe_folder
from agent_r1.tools import BaseTool, SearchTool
from agent_r1.tools.builtin.search import BM25Index, Passage

RECIPE = Path(__file__).resolve().parents[1]

# A plain import would not find them when this file is run as a script.
with recipe_folder(RECIPE):
    prompts = load_module("prompts")
    demonstrations = load_module("demonstrations")
    sources = load_module("data_preprocess.sources")
    load_module("context")

CROSS_FILE = "cross.parquet"


def task_rows(
    questions: Iterable[Any], source: str, split: str, tools: Sequence[Mapping[str, Any]] = ()
) -> Iterator[dict[str, Any]]:
    """Questions as dataset rows; `tools` are those of these rows where not `env.tools` are meant."""
    for number, question in enumerate(questions):
        yield {"task_id": f"{source}-{question.question_id or f'{split}-{number}'}", **_row(question, source, tools)}


def _row(question: Any, source: str, tools: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    return {
        "data_source": source,
        "prompt": prompts.question_messages(question.question),
        "agent_name": "env_loop",
        "reward_model": {"style": "rule", "ground_truth": question.answers},
        "env_kwargs": {"tools": [dict(tool) for tool in tools]} if tools else {},
        "extra_info": {"kind": question.kind, "supporting_titles": question.supporting_titles},
    }


def search_entry(config: Config) -> dict[str, Any]:
    """The search tool of `env.tools`, with its settings."""
    entries = [dict(entry) for entry in config.env.get("tools", []) if isinstance(entry, Mapping)]
    found = next((entry for entry in entries if entry.get("name") == "search"), None)
    if found is None or not found.get("index"):
        raise ConfigError("hotpotqa needs {name: search, index: FOLDER, ...} in env.tools; found " + repr(entries))
    return found


def build_index(passages: Iterable[Passage], folder: Path) -> None:
    """Index passages by words, unless there is an index in the folder: one of another kind may be put there before."""
    if not folder.exists():
        with progress_counter("passages") as progress:
            BM25Index.build(passages, folder, progress=progress)


async def plan_all(questions: Sequence[Any], tool: SearchTool) -> list[tuple[dict[str, Any], list[Any]]]:
    """The questions that can be answered by searching, each with its searches."""
    planned = []
    with progress_counter("questions", len(questions)) as progress:
        for number, question in enumerate(questions):
            progress("searching", number)
            row = {**asdict(question), "answer": question.answer}
            searches = await demonstrations.plan_searches(row, tool)
            if searches is not None:
                planned.append((row, searches))
    return planned


def describe(planned: Sequence[tuple[Mapping[str, Any], Sequence[Any]]], num_questions: int) -> str:
    """How many questions have a demonstration, and of what kind."""
    counts = Counter(len(searches) for _, searches in planned)
    several = sum(any(len(search.queries) > 1 for search in searches) for _, searches in planned)
    kinds = ", ".join(f"{counts[number]} with {number} searches" for number in sorted(counts))
    return (
        f"{len(planned)} of {num_questions} training questions have a demonstration: {kinds}; "
        f"{several} ask several things at once"
    )


def write_data(folder: Path, config: Config, dataset: Path | None = None) -> None:
    """Write the index, `demonstrations.jsonl` and one file per split."""
    source = sources.hotpotqa(dataset)
    entry = search_entry(config)
    build_index(source.passages, Path(entry["index"]))
    [tool] = BaseTool.find(entry)
    assert isinstance(tool, SearchTool)
    train = source.questions["train"]
    planned = asyncio.run(plan_all(train, tool))
    print(describe(planned, len(train)))
    policy = make_policy(config.env.get("context", "append"))
    shown = (demonstrations.conversations(row, searches, policy, tool) for row, searches in planned)
    write_rows(folder / "demonstrations.jsonl", chain.from_iterable(shown))
    for split in ("test", "validation", "train"):
        write_rows(folder / f"{split}.parquet", task_rows(source.questions[split], "hotpotqa", split))


def write_cross(folder: Path, config: Config, dataset: Path | None = None) -> None:
    """Write `cross.parquet`: the questions of other collections, each with a search tool over passages of its own."""
    write_rows(folder / CROSS_FILE, _cross_rows(folder, dataset))


def _cross_rows(folder: Path, dataset: Path | None) -> Iterator[dict[str, Any]]:
    for name in sources.CROSS:
        source = sources.cross(name, dataset)
        index = folder / f"index_{name}"
        build_index(source.passages, index)
        # The configuration lists this index with its settings (env.row_tools); a row only chooses it.
        yield from task_rows(source.questions["test"], name, "test", [{"name": "search", "index": str(index)}])


def make_data(config: Config) -> None:
    """The `data.prepare` of `base.yaml`: makes what is missing."""
    named = map(Path, (*config.data.train, *config.data.eval, *config.data.test, *config.sft.data))
    missing = [path for path in named if not path.is_file()]
    if any(path.name != CROSS_FILE for path in missing):
        write_data(Path(config.data.train[0]).parent, config)
    for path in missing:
        if path.name == CROSS_FILE:
            write_cross(path.parent, config)


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--local_save_dir", type=Path, required=True, help="where the files go")
    parser.add_argument("--local_dataset_path", type=Path, help="take the questions and passages from this folder")
    parser.add_argument("--cross", action="store_true", help=f"make {CROSS_FILE} of 2Wiki and MuSiQue instead")
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="changes to base.yaml")
    chosen = parser.parse_args(arguments)
    folder = chosen.local_save_dir
    with recipe_folder(RECIPE):
        config = load_config(RECIPE, chosen.overrides)
        if not any(override.startswith("env.tools") for override in chosen.overrides):
            config.env["tools"] = [{**search_entry(config), "index": str(folder / "index")}]
        (write_cross if chosen.cross else write_data)(folder, config, chosen.local_dataset_path)


if __name__ == "__main__":
    with script_errors():
        main()
