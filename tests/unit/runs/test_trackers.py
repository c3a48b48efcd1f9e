"""Trackers: whatever one of them does, the run continues and metrics.jsonl has every metric."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from agent_r1.config import Config, load_config
from agent_r1.errors import MissingExtraError, UnknownNameError
from agent_r1.runs import RunFolder, check_trackers, open_trackers, tracker_factories
from agent_r1.runs.tracking import BackgroundTracker, JsonlTracker, Trackers
from agent_r1.runs.tracking.background import MAX_FAILURES
from agent_r1.runs.tracking.base import save_id, saved_id

FAILED = "error/failed_trackers"


class Listed:
    """Keeps what it is given; raises or blocks as it is told."""

    def __init__(self, act: Callable[[int], None] = lambda step: None) -> None:
        self.act = act
        self.logged: list[tuple[int, dict[str, float]]] = []
        self.is_closed = False

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        self.act(step)
        self.logged.append((step, dict(metrics)))

    def close(self) -> None:
        self.act(-1)
        self.is_closed = True


def raising_at(*steps: int, error: BaseException | None = None) -> Callable[[int], None]:
    def act(step: int) -> None:
        if step in steps:
            raise error or ConnectionError(f"no answer at step {step}")

    return act


@pytest.fixture
def warnings() -> list[str]:
    return []


@pytest.fixture
def trackers(tmp_path: Path, warnings: list[str]) -> Callable[..., Trackers]:
    def make(*others: Listed, close_seconds: float = 10.0) -> Trackers:
        background = [BackgroundTracker("mine", other, close_seconds=close_seconds) for other in others]
        return Trackers(JsonlTracker(tmp_path / "metrics.jsonl"), background, warnings.append)

    return make


def read(tmp_path: Path) -> list[dict[str, Any]]:
    return RunFolder(tmp_path).read_metrics()


def test_a_tracker_gets_every_step_in_order_and_is_closed_after_the_last(trackers: Callable[..., Trackers]) -> None:
    mine = Listed()
    every = trackers(mine)
    for step in range(50):
        every.log(step, {"reward": float(step)})
    every.close()
    assert mine.logged == [(step, {"reward": float(step)}) for step in range(50)]
    assert mine.is_closed


def test_a_step_that_a_tracker_cannot_log_is_counted_and_the_next_is_logged(
    trackers: Callable[..., Trackers], tmp_path: Path, warnings: list[str]
) -> None:
    mine = Listed(raising_at(1))
    every = trackers(mine)
    for step in range(3):
        every.log(step, {"reward": 1.0})
    every.close()
    assert [step for step, _ in mine.logged] == [0, 2]
    lines = read(tmp_path)
    assert [line["step"] for line in lines if "reward" in line] == [0, 1, 2]
    assert [line["step"] for line in lines if FAILED in line] == [1]
    assert warnings == ["tracker 'mine' failed (ConnectionError: no answer at step 1)"]


def test_a_tracker_that_keeps_failing_is_given_up(
    trackers: Callable[..., Trackers], tmp_path: Path, warnings: list[str]
) -> None:
    mine = Listed(raising_at(*range(100), error=OSError("gone")))
    every = trackers(mine)
    for step in range(100):
        every.log(step, {"reward": 1.0})
    every.close()
    assert sum(FAILED in line for line in read(tmp_path)) == MAX_FAILURES
    assert warnings[-1].endswith(f"after {MAX_FAILURES} failures in a row it is not used any more")
    assert mine.is_closed


@pytest.mark.parametrize("error", [SystemExit(0), StopIteration(), RuntimeError("odd")], ids=repr)
def test_whatever_a_tracker_raises_at_its_end_is_a_warning(
    trackers: Callable[..., Trackers], warnings: list[str], error: BaseException
) -> None:
    every = trackers(Listed(raising_at(-1, error=error)))
    every.log(0, {"reward": 1.0})
    every.close()
    assert len(warnings) == 1
    assert "tracker 'mine'" in warnings[0]


def test_a_tracker_that_hangs_holds_up_neither_a_step_nor_the_end(
    trackers: Callable[..., Trackers], tmp_path: Path, warnings: list[str]
) -> None:
    released = threading.Event()
    stuck, other = Listed(lambda step: released.wait(30) and None), Listed()
    every = trackers(stuck, other, close_seconds=0.2)
    for step in range(5):
        every.log(step, {"reward": 1.0})
    every.close()
    assert len(read(tmp_path)) == len(other.logged) == 5
    assert not stuck.logged
    assert "is not closed 0.2 s after the end of the run" in warnings[0]
    released.set()


# --- from the configuration ----------------------------------------------------------------------------------------


def config_with(*overrides: str) -> Config:
    return load_config(None, ["model.path=none", *overrides])


@pytest.fixture
def broken() -> Iterator[str]:
    def make(config: Config, folder: Path) -> Any:
        raise PermissionError("no key")

    tracker_factories.register("broken_in_test")(make)
    yield "broken_in_test"
    tracker_factories._entries.pop("broken_in_test")


def test_a_tracker_that_cannot_be_opened_is_a_warning(tmp_path: Path, warnings: list[str], broken: str) -> None:
    every = open_trackers(config_with(f"tracking.trackers=[{broken}]"), RunFolder(tmp_path), warnings.append)
    every.log(1, {"reward": 1.0})
    every.close()
    assert warnings == [
        "tracker 'broken_in_test' cannot be opened (PermissionError: no key). The run continues without it; "
        "metrics.jsonl has every metric"
    ]
    assert read(tmp_path) == [{"step": 1, "reward": 1.0}]


def test_a_tracker_that_is_named_twice_is_opened_once(tmp_path: Path, warnings: list[str], broken: str) -> None:
    open_trackers(config_with(f"tracking.trackers=[{broken},{broken}]"), RunFolder(tmp_path), warnings.append).close()
    assert len(warnings) == 1


@pytest.mark.parametrize(
    ("name", "package"), [("tensorboard", "tensorboard"), ("wandb", "wandb"), ("mlflow", "mlflow-skinny")]
)
def test_a_missing_package_is_an_error_with_the_pip_line(
    monkeypatch: pytest.MonkeyPatch, name: str, package: str
) -> None:
    monkeypatch.setattr("agent_r1.errors.find_spec", lambda module: None)
    with pytest.raises(MissingExtraError, match=rf"needs the package '{package}': pip install 'agent-r1\["):
        check_trackers(config_with(f"tracking.trackers=[{name}]"))


def test_an_unknown_tracker_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(UnknownNameError, match="Did you mean 'mlflow'"):
        check_trackers(config_with("tracking.trackers=[mlflo]"))


def test_the_ids_of_several_trackers_are_kept_in_one_file(tmp_path: Path) -> None:
    assert saved_id(tmp_path, "wandb") is None
    save_id(tmp_path, "wandb", "abc")
    save_id(tmp_path, "mlflow", "def")
    assert (saved_id(tmp_path, "wandb"), saved_id(tmp_path, "mlflow")) == ("abc", "def")
    (tmp_path / "trackers.json").write_text("not json")
    assert saved_id(tmp_path, "wandb") is None


class WithStatus(Listed):
    """Shows how the run ended."""

    status = "finished"

    def mark_failed(self) -> None:
        assert not self.is_closed
        self.status = "failed"


def test_trackers_learn_that_an_error_ended_the_run_and_those_without_a_status_are_closed_alike(
    trackers: Callable[..., Trackers],
) -> None:
    shows, plain = WithStatus(), Listed()
    with pytest.raises(ValueError, match="broken"), trackers(shows, plain):
        raise ValueError("broken")
    assert (shows.status, shows.is_closed, plain.is_closed) == ("failed", True, True)
    fine = WithStatus()
    with trackers(fine):
        pass
    assert (fine.status, fine.is_closed) == ("finished", True)
