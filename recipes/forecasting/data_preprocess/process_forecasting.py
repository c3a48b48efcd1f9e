"""The data of forecasting: windows as parquet files, the series unchanged, demonstrations for the warm start.

    python recipes/forecasting/data_preprocess/process_forecasting.py --local_save_dir runs/forecasting_data

`agent-r1 train` calls `make_data` when a file that `base.yaml` names is missing. A row has the name of a series and the
number of the first hour to forecast; the environment cuts what comes before out of the series.
"""

from __future__ import annotations

import argparse
import random
import shutil
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from agent_r1.cli.errors import script_errors
from agent_r1.config import Config, load_config
from agent_r1.console import progress_counter
from agent_r1.data import write_rows
from agent_r1.registry import load_module, recipe_folder
from agent_r1.tools import BaseTool

RECIPE = Path(__file__).resolve().parents[1]

# A plain import would not find them when this file is run as a script.
with recipe_folder(RECIPE):
    models, series, window = load_module("models"), load_module("series"), load_module("window")
    prompts, demonstrations = load_module("prompts"), load_module("demonstrations")
    sources = load_module("data_preprocess.sources")

STRIDES = {"train": 3, "validation": 11, "test": 7}
"""Hours between windows. The last two have no common factor with 24: every hour of the day is a start equally often."""
BASELINES = ("last", "seasonal", "mix")
NUM_DEMONSTRATIONS = 1500
"""How many training windows a program is played on."""


def window_of(data: Any, start: int) -> Any:
    """What the tools see of a window."""
    return window.Window(data.past(start))


def scaled_errors(data: Any, start: int) -> dict[str, float]:
    """Mean squared errors of the baselines, on scaled data."""
    week, truth = data.past(start)[None, -models.WEEK :], data.future(start)
    return {name: float((((models.MODELS[name](week)[0] - truth) / data.scale) ** 2).mean()) for name in BASELINES}


def task_row(data: Any, start: int, split: str) -> dict[str, Any]:
    """A window as a dataset row. What comes after its start goes to the reward alone."""
    return {
        "task_id": f"{split}-{data.name}-{start}",
        "data_source": data.name.lower(),
        "prompt": question(data, start),
        "agent_name": "env_loop",
        "reward_model": {
            "style": "rule",
            "ground_truth": data.future(start).tolist(),
            "mean": data.mean,
            "scale": data.scale,
            "errors": scaled_errors(data, start),
        },
        "env_kwargs": {"series": data.name, "start": start},
        "extra_info": {"split": split},
    }


def question(data: Any, start: int) -> list[dict[str, Any]]:
    """The messages a window begins with."""
    messages: list[dict[str, Any]] = prompts.question_messages(data.name, data.time(start), data.past(start)[-1])
    return messages


def windows(known: Sequence[Any], split: str) -> list[tuple[Any, int]]:
    """The windows of a split, in the order of time, the series in turn."""
    found = [(start, number) for number, data in enumerate(known) for start in data.starts(split, STRIDES[split])]
    return [(known[number], start) for start, number in sorted(found)]


def demonstration_rows(chosen: Sequence[tuple[Any, int]], config: Config) -> Iterator[dict[str, Any]]:
    """Programs on training windows, those whose error is at most that of the mix."""
    schemas = [tool.tool_schema for entry in config.env["tools"] for tool in BaseTool.find(entry)]
    names = {schema["function"]["name"] for schema in schemas}
    kinds = Counter[str]()
    with progress_counter("windows", len(chosen)) as progress:
        for number, (data, start) in enumerate(chosen):
            progress("demonstrating", number)
            shown = demonstrations.demonstrate(window_of(data, start), random.Random(f"{data.name} {start}"), names)
            error = float((((shown.values - data.future(start)) / data.scale) ** 2).mean())
            if error <= scaled_errors(data, start)["mix"]:
                kinds[shown.kind] += 1
                yield {
                    "messages": demonstrations.conversation(question(data, start), shown),
                    "tools": [dict(schema) for schema in schemas],
                }
    counts = ", ".join(f"{kind} {count}" for kind, count in kinds.most_common())
    print(f"{kinds.total()} of {len(chosen)} programs forecast as well as the mix: {counts or 'none'}")


def write_data(folder: Path, config: Config, dataset: Path | None = None) -> None:
    """Copy the series, write `demonstrations.jsonl` and one file per split."""
    files = sources.find_series(dataset)
    known = [series.read_series(file) for file in files]
    copies = Path(config.env["series"])
    copies.mkdir(parents=True, exist_ok=True)
    for file in files:
        shutil.copyfile(file, copies / file.name)
    splits = {split: windows(known, split) for split in series.SPLITS}
    chosen = random.Random("forecasting").sample(splits["train"], min(NUM_DEMONSTRATIONS, len(splits["train"])))
    write_rows(folder / "demonstrations.jsonl", demonstration_rows(chosen, config))
    for split in ("test", "validation", "train"):
        print(f"{split}: {len(splits[split])} windows of {', '.join(data.name for data in known)}")
        write_rows(folder / f"{split}.parquet", (task_row(data, start, split) for data, start in splits[split]))


def make_data(config: Config) -> None:
    """The `data.prepare` of `base.yaml`."""
    write_data(Path(config.data.train[0]).parent, config)


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--local_save_dir", type=Path, required=True, help="where the files go")
    parser.add_argument("--local_dataset_path", type=Path, help="a folder with *.csv or *.csv.xz (columns date and OT)")
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="changes to base.yaml")
    chosen = parser.parse_args(arguments)
    with recipe_folder(RECIPE):
        config = load_config(RECIPE, chosen.overrides)
        if not any(override.startswith("env.series") for override in chosen.overrides):
            config.env["series"] = str(chosen.local_save_dir / "series")
        write_data(chosen.local_save_dir, config, chosen.local_dataset_path)


if __name__ == "__main__":
    with script_errors():
        main()
