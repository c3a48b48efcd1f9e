"""docs/what_works.md: made from results whose figures are worked out by hand, and the page that is published."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.claims.study.plan import base_settings, variants_of
from benchmarks.claims.study.results import Start, Trained, append_result, read_results
from docs.generate.what_works import ADVICE, IMAGES, PAGE, compare, draw_pictures, holm, study_page

NUM_TASKS = 20
START = Start(
    task="hotpotqa",
    model="Tiny-1B",
    digest="0123",
    settings={**base_settings("hotpotqa"), "trainer.steps": "2"},
    tasks=[f"task {number}" for number in range(NUM_TASKS)],
    sources=["x"] * NUM_TASKS,
    solved=[1.0] * 2 + [0.0] * 18,
    metrics={},
)


def add(folder: Path, variant: str, *by_seed: int) -> None:
    """The runs of a variant, of which each solves the first so many tasks."""
    [changes] = [one.changes for one in variants_of("hotpotqa", START.settings) if one.name == variant]
    for seed, solved in enumerate(by_seed):
        run = Trained(
            task="hotpotqa",
            model="Tiny-1B",
            variant=variant,
            seed=seed,
            settings={**START.settings, **changes},
            start=START.digest,
            solved=[1.0] * solved + [0.0] * (NUM_TASKS - solved),
            metrics={},
            curves={"reward/success": [[1, solved / 20], [2, solved / 10]]},
            seconds=60.0,
            minutes=0.5,
            peak_gpu_gb=None,
            version="9.9",
            commit="abc",
        )
        append_result(folder, run)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    append_result(tmp_path, START)
    add(tmp_path, "base", 4, 4, 4)
    add(tmp_path, "gigpo", 16, 16, 16)
    add(tmp_path, "rloo", 18, 18, 3)  # much better twice, worse once
    add(tmp_path, "kl_0.01", 4, 4)
    add(tmp_path, "no_critic", 10, 10, 10)
    add(tmp_path, "critic", 1, 0, 0)
    return tmp_path


def rows_of(page: str, name: str) -> list[list[str]]:
    lines = [line for line in page.splitlines() if line.startswith(f"| `{name}` |")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_holm_multiplies_the_smallest_by_the_number_of_comparisons() -> None:
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.5, 0.6]) == [1.0, 1.0]
    assert holm([]) == []


def test_differences_are_paired_with_the_reference_of_their_question(folder: Path) -> None:
    [results] = read_results(folder)
    found = compare(results)
    assert list(found) == ["rloo", "gigpo", "critic", "kl_0.01"]
    assert found["gigpo"].gain.gain == pytest.approx(12 / 20)
    assert found["gigpo"].gain.seeds == 3
    assert found["gigpo"].by_seed == pytest.approx([0.6, 0.6, 0.6])
    assert found["gigpo"].gain.p_value < 0.003  # 12 tasks, all for the better: 2 / 2 ** 12
    assert found["critic"].by_seed == pytest.approx([-0.45, -0.5, -0.5])  # against no_critic, not against the base
    assert found["kl_0.01"].gain.seeds == 2


def test_a_difference_is_clear_when_every_seed_agrees_and_chance_is_improbable(folder: Path) -> None:
    [results] = read_results(folder)
    verdicts = {name: one.verdict for name, one in compare(results).items()}
    assert verdicts == {
        "rloo": "not clear",
        "gigpo": "clear: better",
        "critic": "clear: worse",
        "kl_0.01": "not clear",
    }
    assert compare(results)["rloo"].adjusted < 0.05  # only one seed speaks against it


def test_two_seeds_are_too_few_for_a_clear_difference(tmp_path: Path) -> None:
    append_result(tmp_path, START)
    add(tmp_path, "base", 4, 4, 4)
    add(tmp_path, "gigpo", 18, 18)
    [results] = read_results(tmp_path)
    assert compare(results)["gigpo"].adjusted < 0.01
    assert compare(results)["gigpo"].verdict == "not clear"


def test_the_page_has_a_table_for_each_question_that_has_runs(folder: Path) -> None:
    page = study_page(folder)
    assert "## hotpotqa, Tiny-1B" in page
    assert "20 validation tasks; the warm start solves 10.0 %. 17 runs, 17 minutes of processes" in page
    assert "version 9.9, commit abc. Unlike the protocol: `trainer.steps=2`." in " ".join(page.split())
    assert "Clear are 2 of 4 differences: `gigpo` (+0.600), `critic` (-0.483)." in page
    assert "### Step-level or trajectory-level credit: hotpotqa" in page
    assert "### Temperature: hotpotqa" not in page
    assert "No run of this study" not in page
    gigpo = rows_of(page, "gigpo")[-1]
    assert gigpo[1:4] == ["`algorithm=gigpo`", "80.0", "80.0, 80.0, 80.0"]
    assert gigpo[4].startswith("+0.700 (")
    assert gigpo[5].startswith("+0.600 (")
    assert gigpo[6] == "clear: better"
    base = rows_of(page, "base")[0]
    assert base[1:4] == ["none", "20.0", "20.0, 20.0, 20.0"]
    assert base[5:] == ["", ""]
    assert len(rows_of(page, "base")) == 2  # of credit and of KL
    assert "| `no_critic` | clear" not in page
    assert "against `no_critic`" in page


def test_another_copy_of_the_warm_start_is_said(folder: Path) -> None:
    append_result(folder, replace(START, digest="4567", solved=[1.0] * 3 + [0.0] * 17))
    assert "the warm start solves 10.0 % and 15.0 %. It was made 2 times" in study_page(folder)


def pictures_in(page: str) -> Sequence[str]:
    return [line.partition("images/")[2].partition(")")[0] for line in page.splitlines() if "](images/" in line]


@pytest.mark.whole
def test_curves_are_means_over_seeds_and_each_table_has_its_picture(folder: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="the extra plot is not installed")
    drawn = draw_pictures(folder, tmp_path / "images")
    assert sorted(path.name for path in drawn) == sorted(pictures_in(study_page(folder)))
    assert all(path.suffix == ".svg" and b"<svg" in path.read_bytes() for path in drawn)


def test_the_published_page_is_made_from_the_published_results() -> None:
    page = PAGE.read_text()
    assert page == study_page(), "run: python -m docs.generate.what_works"
    assert ADVICE.read_text() in page
    assert not [name for name in pictures_in(page) if not (IMAGES / name).is_file()]


def test_without_results_the_page_says_so(tmp_path: Path) -> None:
    page = study_page(tmp_path)
    assert "No run of this study has been published yet." in page
    assert "15 steps of 32 tasks with 8 rollouts each are 3,840" in page
    assert "python benchmarks/claims/what_works.py --jobs 3 --out docs/generate/study" in page
