"""The data of nlvr: real and drawn rows to train on, and the warm start.

    python recipes/nlvr/data_preprocess/process_nlvr.py --local_save_dir runs/nlvr_data

The official repository is downloaded, unless `--local_dataset_path FOLDER` or AGENT_R1_DATA says where its files are
(`corpus.py`). `agent-r1 train` calls `make_data` when a file that `base.yaml` names is missing. The script prints the
size of each split, how often its most frequent label is right, and how many training rows the grammar understands.
"""

from __future__ import annotations

import argparse
import multiprocessing
import random
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

from agent_r1.cli.errors import script_errors
from agent_r1.config import Config
from agent_r1.console import progress_counter
from agent_r1.data import hold_out, write_rows
from agent_r1.errors import DataError
from agent_r1.files import write_atomically
from agent_r1.registry import load_module, recipe_folder
from agent_r1.tools import num_cores

# A plain import would not find them when this file is run as a script.
with recipe_folder(Path(__file__).resolve().parents[1]):
    corpus, grammar, rows, scenes = (load_module(name) for name in ("corpus", "grammar", "rows", "scenes"))
    statements, tools = load_module("statements"), load_module("tools")

KNOWN = 0.3
"""The share of drawn rows whose sentence is one of the training rows."""
MAX_POOL = 2000
"""Boxes of each kind that the scenes of a part are drawn from, at most; each has variants."""
PARTS = 16
"""Parts in which rows are drawn, each with a seed of its own."""
_SECONDS_BETWEEN_COUNTS = 0.2


@dataclass(frozen=True, kw_only=True, slots=True)
class Amounts:
    """How much is drawn. The defaults are for a GPU."""

    demonstrations: int = 8000
    """Of the warm start, in pairs of a true and a false scene for a sentence."""
    sentences: int = 24000
    """Demonstrations without pictures, in such pairs."""
    tasks: int = 800
    """To train on, in such pairs."""
    workers: int = field(default_factory=num_cores)
    """Processes that draw, at most `PARTS`; the rows are the same with any number."""
    limit: int | None = None
    """Real examples of each split at most."""


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


def understood(examples: Sequence[Any]) -> list[tuple[Any, Any]]:
    """The examples that the grammar understands, with what they mean; those whose label it contradicts are left out."""
    found = []
    for example in examples:
        meaning = grammar.understand(example.sentence, towers=example.has_towers)
        if meaning is not None and str(meaning.is_true(example.boxes)).lower() == example.label:
            found.append((example, meaning))
    return found


def real_rows(examples: Sequence[Any]) -> Iterator[dict[str, Any]]:
    """Warm-start rows of training examples: captions of all, demonstrations of those that the grammar understands."""
    for example in examples:
        picture = example.picture()
        crops = [tools.box_of(picture, number) for number in range(1, tools.NUM_BOXES + 1)]
        yield rows.caption_row(list(zip(crops, example.boxes, strict=True)))
    for example, meaning in understood(examples):
        yield rows.demonstration(example.sentence, example.picture(), example.boxes, meaning)


def drawn_rows(maker: Any, rng: random.Random, num_pairs: int) -> Iterator[dict[str, Any]]:
    """Warm-start rows of drawn scenes: for each sentence two demonstrations, and captions of three other boxes."""
    for _ in range(num_pairs):
        statement, *pair = maker.pair()
        for scene in pair:
            picture = scenes.draw_picture(scene)
            yield rows.demonstration(statement.sentence, picture, scene, statement.meaning)
        boxes = scenes.random_scene(rng, towers=False)
        picture = scenes.draw_picture(boxes)
        yield rows.caption_row([(tools.box_of(picture, place + 1), box) for place, box in enumerate(boxes)])


def rows_in_words(maker: Any, num_pairs: int) -> Iterator[dict[str, Any]]:
    """Warm-start rows of scenes that are told, not shown: two for each sentence."""
    for _ in range(num_pairs):
        statement, *pair = maker.pair()
        for scene in pair:
            yield rows.demonstration_in_words(statement.sentence, scene, statement.meaning)


def drawn_tasks(maker: Any, num_pairs: int) -> Iterator[dict[str, Any]]:
    """Drawn rows to train on."""
    for _ in range(num_pairs):
        statement, true, false = maker.pair()
        yield rows.synthetic_row(statement.sentence, true, True)
        yield rows.synthetic_row(statement.sentence, false, False)


def write_data(folder: Path, local_dataset_path: Path | None = None, amounts: Amounts | None = None) -> None:
    """Write `warm_start.jsonl` (of training examples and drawn scenes), `test.jsonl`, `validation.jsonl` and
    `train.jsonl`."""
    amounts = amounts or Amounts()
    splits = split_examples(corpus.read_corpus(local_dataset_path))
    for name, examples in splits.items():
        label, share = majority(examples)
        print(f"{name}: {len(examples)} examples; always saying '{label}' is right in {share:.1%}")
    train = splits["train"][: amounts.limit]
    known = understood(train)
    print(f"the grammar understands {len(known)} of the {len(train)} training examples as their labels say")
    sentences = dict.fromkeys((example.sentence, example.has_towers) for example, _ in known)
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("*.part*.jsonl"):
        old.unlink()
    with _drawing(folder, list(sentences), amounts):
        write_rows(folder / "warm_start.part_real.jsonl", real_rows(train))
        write_rows(folder / "train.part_real.jsonl", (_real_task(example, "train") for example in train))
        for name in ("test", "validation"):
            tasks = (_real_task(example, name) for example in splits[name][: amounts.limit])
            write_rows(folder / f"{name}.jsonl", tasks)
    for name in ("warm_start", "train"):
        _join(folder, name)


def _real_task(example: Any, split: str) -> dict[str, Any]:
    return dict(
        rows.task_row(example.sentence, example.picture(), example.label, split=split, identifier=example.identifier)
    )


@contextmanager
def _drawing(folder: Path, sentences: Sequence[tuple[str, bool]], amounts: Amounts) -> Iterator[None]:
    """Write the drawn rows in parts meanwhile, by several processes: storing a scene's pictures takes milliseconds."""
    context = multiprocessing.get_context("fork")
    counts = [context.Value("L", 0, lock=False) for _ in range(min(max(1, amounts.workers), PARTS))]
    processes = [
        context.Process(target=_write_parts, args=(folder, range(first, PARTS, len(counts)), sentences, amounts, count))
        for first, count in enumerate(counts)
    ]
    for process in processes:
        process.start()
    try:
        yield
    finally:
        with progress_counter("rows") as progress:
            waiting = processes
            while waiting:
                waiting[0].join(_SECONDS_BETWEEN_COUNTS)
                waiting = [process for process in waiting if process.exitcode is None]
                progress("drawing", sum(count.value for count in counts))
    failed = [process.exitcode for process in processes if process.exitcode]
    if failed:
        raise DataError(f"{len(failed)} of {len(processes)} processes that draw scenes failed (exit code {failed[0]})")


def _write_parts(
    folder: Path, parts: Sequence[int], sentences: Sequence[tuple[str, bool]], amounts: Amounts, count: Any
) -> None:
    """Write some parts; `count.value` says how many of their rows are made."""

    def counted(made: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        for row in made:
            count.value += 1
            yield row

    known = [
        grammar.Statement(sentence, towers, grammar.understand(sentence, towers=towers))
        for sentence, towers in sentences
    ]
    for part in parts:
        rng = random.Random(f"nlvr {part}")
        demonstrations, sentences_alone, tasks = (
            len(range(part, count // 2, PARTS)) for count in (amounts.demonstrations, amounts.sentences, amounts.tasks)
        )
        num_boxes = min(MAX_POOL, 10 + demonstrations + sentences_alone + tasks)
        maker = statements.PairMaker(rng, num_boxes=num_boxes, known=known, share=KNOWN)
        warm_start = chain(drawn_rows(maker, rng, demonstrations), rows_in_words(maker, sentences_alone))
        write_rows(folder / f"warm_start.part{part:02}.jsonl", counted(warm_start))
        write_rows(folder / f"train.part{part:02}.jsonl", counted(drawn_tasks(maker, tasks)))


def _join(folder: Path, name: str) -> None:
    """Put the parts of a file together, in random order."""
    parts = sorted(folder.glob(f"{name}.part*.jsonl"))
    lines = [line for part in parts for line in part.read_text(encoding="utf-8").splitlines(keepends=True)]
    random.Random(name).shuffle(lines)
    write_atomically(folder / f"{name}.jsonl", "".join(lines))
    for part in parts:
        part.unlink()


def make_data(config: Config) -> None:
    """The `data.prepare` of `base.yaml`."""
    write_data(Path(config.data.train[0]).parent)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--local_save_dir", type=Path, required=True, help="where the files go")
    parser.add_argument("--local_dataset_path", type=Path, help="a folder with NLVR's files")
    parser.add_argument("--limit", type=int, help="examples of each split, for trying things out")
    parser.add_argument("--demonstrations", type=int, default=Amounts().demonstrations, help="drawn, of the warm start")
    parser.add_argument("--sentences", type=int, default=Amounts().sentences, help="demonstrations without pictures")
    parser.add_argument("--tasks", type=int, default=Amounts().tasks, help="drawn, to train on")
    parser.add_argument("--workers", type=int, default=Amounts().workers, help="processes that draw")
    arguments = parser.parse_args()
    sizes = Amounts(
        demonstrations=arguments.demonstrations,
        sentences=arguments.sentences,
        tasks=arguments.tasks,
        workers=arguments.workers,
        limit=arguments.limit,
    )
    with script_errors():
        write_data(arguments.local_save_dir, arguments.local_dataset_path, sizes)
