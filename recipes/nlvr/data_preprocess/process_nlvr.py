"""The data of nlvr: sentences about pictures as rows, captions and demonstrations for the warm start.

    python recipes/nlvr/data_preprocess/process_nlvr.py --local_save_dir runs/nlvr_data

The official repository is downloaded, unless `--local_dataset_path FOLDER` or AGENT_R1_DATA says where its files are
(`corpus.py`). `agent-r1 train` calls `make_data` when a file that `base.yaml` names is missing. The script prints the
size of each split and how often its most frequent label is right.
"""

from __future__ import annotations

import argparse
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from agent_r1.config import Config
from agent_r1.data import hold_out, write_rows
from agent_r1.registry import load_module, recipe_folder

# A plain import would not find them when this file is run as a script.
with recipe_folder(Path(__file__).resolve().parents[1]):
    corpus, tools = load_module("corpus"), load_module("tools")

COLORS = {"#0099ff": "blue", "black": "black", "yellow": "yellow"}
GUESSES = 0.5
"""The share of demonstrations that answer without looking at the boxes."""


def split_examples(found: Mapping[str, Sequence[Any]]) -> dict[str, list[Any]]:
    """Training, validation and test examples: the official train, dev and test.

    Where train is missing, dev is divided by presentation, so that no sentence or scene of a presentation is in both.
    """
    if "train" in found:
        return {"train": list(found["train"]), "validation": list(found["dev"]), "test": list(found["test"])}
    train, validation = hold_out(found["dev"], len(found["dev"]) // 5, key=lambda example: str(example.presentation))
    return {"train": train, "validation": validation, "test": list(found["test"])}


def majority(examples: Sequence[Any]) -> tuple[str, float]:
    """The most frequent label and how often it is right."""
    [(label, count)] = Counter(example.label for example in examples).most_common(1)
    return label, count / len(examples)


def prompt(example: Any) -> list[dict[str, Any]]:
    """The messages an episode begins with."""
    text = f"True or false: {example.sentence}"
    return [{"role": "user", "content": [_image(example.picture()), {"type": "text", "text": text}]}]


def task_row(example: Any, split: str) -> dict[str, Any]:
    """An example as a dataset row."""
    return {
        "prompt": prompt(example),
        "data_source": "nlvr",
        "reward_model": {"style": "rule", "ground_truth": example.label},
        "env_kwargs": {},
        "extra_info": {"split": split, "identifier": example.identifier},
    }


def caption(shapes: Sequence[Mapping[str, Any]]) -> str:
    """What is in a box, as counts: "2 black squares, 1 yellow circle".

    >>> caption([{"color": "Black", "type": "square"}, {"color": "Black", "type": "square"}])
    '2 black squares'
    """
    kinds = Counter(f"{COLORS.get(shape['color'].lower(), shape['color'])} {shape['type']}" for shape in shapes)
    return ", ".join(f"{count} {kind}{'s' * (count > 1)}" for kind, count in sorted(kinds.items())) or "nothing"


def caption_row(example: Any) -> dict[str, Any]:
    """A conversation about the three boxes of a picture."""
    picture, messages = example.picture(), []
    for number, shapes in enumerate(example.boxes, start=1):
        question = [_image(tools.box_of(picture, number)), {"type": "text", "text": "What is in the box?"}]
        messages.append({"role": "user", "content": question})
        messages.append({"role": "assistant", "content": caption(shapes)})
    return {"messages": messages}


def demonstration(example: Any, rng: random.Random) -> dict[str, Any]:
    """The label, given after a look at all boxes, or at once."""
    messages = prompt(example)
    if rng.random() >= GUESSES:
        numbers = range(1, tools.NUM_BOXES + 1)
        calls = [{"type": "function", "function": {"name": "crop", "arguments": {"box": number}}} for number in numbers]
        messages.append({"role": "assistant", "content": "", "tool_calls": calls})
        picture = example.picture()
        messages += [{"role": "tool", "content": [_image(tools.box_of(picture, number))]} for number in numbers]
    messages.append({"role": "assistant", "content": example.label})
    return {"messages": messages, "tools": [dict(tools.crop.tool_schema)]}


def write_data(folder: Path, local_dataset_path: Path | None = None, limit: int | None = None) -> None:
    """Write `warm_start.jsonl` (of training examples), `test.jsonl`, `validation.jsonl` and `train.jsonl`."""
    splits = split_examples(corpus.read_corpus(local_dataset_path))
    for name, examples in splits.items():
        label, share = majority(examples)
        print(f"{name}: {len(examples)} examples; always saying '{label}' is right in {share:.1%}")
    rng, train = random.Random("nlvr"), splits["train"][:limit]
    rows = [row for example in train for row in (caption_row(example), demonstration(example, rng))]
    rng.shuffle(rows)
    write_rows(folder / "warm_start.jsonl", rows)
    for name in ("test", "validation", "train"):
        write_rows(folder / f"{name}.jsonl", (task_row(example, name) for example in splits[name][:limit]))


def make_data(config: Config) -> None:
    """The `data.prepare` of `base.yaml`."""
    write_data(Path(config.data.train[0]).parent)


def _image(picture: Any) -> dict[str, Any]:
    return {"type": "image", "image": picture}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--local_save_dir", type=Path, required=True, help="where the files go")
    parser.add_argument("--local_dataset_path", type=Path, help="a folder with NLVR's files")
    parser.add_argument("--limit", type=int, help="examples of each split, for trying things out")
    arguments = parser.parse_args()
    write_data(arguments.local_save_dir, arguments.local_dataset_path, arguments.limit)
