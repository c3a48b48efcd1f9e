"""Fault injection: the quickstart under one real fault after the other.

    python benchmarks/claims/faults.py --folder runs --json faults.json
    python benchmarks/claims/faults.py --only tool_hangs reward_nan

Each row is a whole run of `recipes/quickstart` from one warm start in which tools, environment, reward or server break
at the given rate (`faulty_shop.py`), all through training. The evaluation on held-out tasks at the end is without
faults: it says what was learned. `injected` is what struck, as those who struck wrote it down; `counted` what
`metrics.jsonl` says of it; `recorded` what is in `trajectories/`. Nothing is lost when every member of every group is
recorded and the groups that taught nothing are counted as dropped.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import resource
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
RECIPE = ROOT / "recipes" / "quickstart"
FAULTY_SHOP = "benchmarks.claims.faulty_shop"
AWAY_SECONDS = 3.0

if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))  # runs find the faulty shop by its module


@dataclass(frozen=True, kw_only=True)
class Fault:
    """One way to break."""

    settings: tuple[str, ...]
    """What puts it into a run."""
    counted_as: str
    """A counter of `metrics.jsonl` that is a mean over episodes; or `attempts`, which fail and are made anew."""
    rate: float = 0.1
    """How often it strikes: of the calls, resets, steps, answers or rewards."""
    at_least: bool = False
    """One fault may be seen several times (a late answer is asked for twice, a server takes all episodes with it)."""
    server: tuple[str, ...] = ()
    """What serves the environment, as arguments of Python; PORT stands for its port."""


def _tool(name: str, counter: str, rate: float = 0.1) -> Fault:
    return Fault(
        settings=(f"env.tools=[{FAULTY_SHOP}:{name},calculate]",), counted_as=f"tool/price/{counter}", rate=rate
    )


def _attempts(*settings: str, rate: float = 0.1) -> Fault:
    return Fault(settings=settings, counted_as="attempts", rate=rate)


REMOTE = ("env=remote", "env.url=http://127.0.0.1:PORT", "env.read_seconds=1", "env.pause_seconds=0.1", "env.retries=9")

FAULTS: dict[str, Fault] = {
    "none": Fault(settings=(), counted_as="attempts"),
    "tool_raises": _tool("raises", "errors"),
    "tool_hangs": _tool("hangs", "timeouts", rate=0.05),
    "tool_returns_100_mb": _tool("huge", "truncated"),
    "tool_returns_garbage": _tool("garbage", "errors"),
    "tool_forks": _tool("forks", "errors"),
    "env_crashes_in_reset": _attempts(f"env.name={FAULTY_SHOP}:CrashingReset", rate=0.2),
    "env_crashes_in_step": _attempts(f"env.name={FAULTY_SHOP}:CrashingStep", rate=0.05),
    "env_process_dies": _attempts(f"env.name={FAULTY_SHOP}:DyingWorld", rate=0.05),
    "env_answers_late_and_out_of_order": Fault(
        settings=REMOTE,
        counted_as="episode/env_retries",
        rate=0.1,
        at_least=True,
        server=("-m", FAULTY_SHOP, "PORT"),
    ),
    "reward_raises": _attempts(f"reward.function={FAULTY_SHOP}:raising_score"),
    "reward_hangs": _attempts(f"reward.function={FAULTY_SHOP}:hanging_score", "reward.timeout=1.5", rate=0.05),
    "reward_nan": _attempts(f"reward.function={FAULTY_SHOP}:nan_score"),
    "server_disappears": Fault(
        settings=(*REMOTE, "env.args={die_at: DIE_AT}"),
        counted_as="attempts",
        at_least=True,
        server=(
            "-m",
            "agent_r1.cli",
            "env",
            "serve",
            f"{FAULTY_SHOP}:ServedShop",
            "--port",
            "PORT",
            "--max-episodes",
            "4096",
        ),
    ),
}


def main(arguments: Sequence[str] | None = None) -> list[dict[str, Any]]:
    """Run the faults and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=list(FAULTS), default=list(FAULTS), metavar="NAME")
    parser.add_argument("--folder", type=Path, default=Path("runs"), help="where the warm start is, or is made")
    parser.add_argument("--steps", type=int, default=14, help="training steps of each run")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    chosen = parser.parse_args(arguments)
    rows: list[dict[str, Any]] = []
    print(HEADER)
    for name in chosen.only:
        overrides = [f"trainer.steps={chosen.steps}", "trainer.save_every=1000", "eval.before=false"]
        # A process for each: its memory is its own, and what it leaves behind is seen.
        with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as alone:
            rows.append(alone.submit(run_fault, name, chosen.folder.resolve(), overrides, chosen.seed).result())
        print(as_line(rows[-1]), flush=True)
        if chosen.json is not None:
            chosen.json.write_text(json.dumps(rows, indent=2) + "\n")
    return rows


HEADER = "fault                               rate success  injected  counted  recorded  failed  dropped  lost  MB    s"


def as_line(row: dict[str, Any]) -> str:
    """One line of the table."""
    success = "-" if row["success"] is None else f"{row['success']:.3f}"
    return (
        f"{row['fault']:34} {row['rate']:5.3f} {success:>7} {row['injected']:9} {row['counted']:8} {row['recorded']:9} "
        f"{row['failed']:7} {row['dropped']:8} {row['lost']:5}  {row['peak_mb']:<5.0f} {row['seconds']:.0f}"
        + "".join(f"\n    {problem}" for problem in row["problems"])
    )


def run_fault(
    name: str,
    folder: Path,
    overrides: Sequence[str],
    seed: int = 0,
    *,
    recipe: Path = RECIPE,
    rate: float | None = None,
    die_at: int = 2000,
) -> dict[str, Any]:
    """A whole run under one fault, and its books."""
    import agent_r1

    fault = FAULTS[name]
    books = folder / f"faults_{name}.books"
    shutil.rmtree(books, ignore_errors=True)
    books.mkdir(parents=True)
    plan = {"folder": str(books), "rate": fault.rate if rate is None else rate, "seed": seed}
    os.environ["AGENT_R1_FAULTS"] = json.dumps(plan)
    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    port = str(_free_port())
    settings = [entry.replace("PORT", port).replace("DIE_AT", str(die_at)) for entry in fault.settings]
    started = time.perf_counter()
    server = _kept_up([part.replace("PORT", port) for part in fault.server]) if fault.server else nullcontext()
    with server:
        names = (f"run.folder={folder}", f"run.name=faults_{name}", "run.resume=never")
        summary = agent_r1.train(recipe, overrides=[*names, *overrides, *settings], quiet=True)
    row = {"fault": name, "success": summary.success_after, "steps": summary.steps}
    return {
        **row,
        **keep_books(name, books, folder / f"faults_{name}"),
        "seconds": time.perf_counter() - started,
        "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


def keep_books(name: str, books: Path, run: Path) -> dict[str, Any]:
    """What struck, against what the run counted and recorded; `problems` says where they disagree."""
    from agent_r1.config import from_yaml
    from agent_r1.runs import read_trajectories

    fault = FAULTS[name]
    settings = from_yaml((run / "config.yaml").read_text())
    members = settings.rollout.groups_per_step * settings.rollout.group_size
    struck = [json.loads(line) for line in _lines(books / "faults.jsonl")]
    injected = sum(entry["kind"] == "fault" for entry in struck)
    num_draws = (books / "draws").stat().st_size if (books / "draws").exists() else 0
    steps = [line for line in map(json.loads, _lines(run / "metrics.jsonl")) if "reward/outcome" in line]
    problems: list[str] = []
    counted, recorded, failed, dropped, lost = 0.0, 0.0, 0, 0, 0
    for line in steps:
        trajectories = list(read_trajectories(run / "trajectories" / f"{line['step']}.jsonl"))
        lost += members - len({(one.group_id, one.member) for one in trajectories})
        num_failed = int(line["error/failed_rollouts"])
        failed, dropped = failed + num_failed, dropped + int(line["error/dropped_groups"])
        attempts = [attempt for one in trajectories for attempt in one.failed_attempts]
        failures = [one for one in trajectories if one.is_failure]
        errors = [entry.error for entry in attempts] + [entry.error for entry in failures]
        if num_failed != len(failures) or not all(errors):
            problems.append(f"step {line['step']}: {num_failed} failed rollouts counted, {len(failures)} recorded")
        if fault.counted_as == "attempts":
            counted += line["error/retries"] + num_failed
            recorded += len(attempts) + len(failures)
        else:
            counted += line.get(fault.counted_as, 0.0) * (len(trajectories) - len(failures))
            infos = [step.info.get("metrics", {}) for one in trajectories for step in one.steps]
            recorded += sum(info.get(fault.counted_as, 0.0) for info in infos)
    counted, recorded = round(counted), round(recorded)
    if counted != recorded or (recorded < injected if fault.at_least else recorded != injected):
        problems.append(f"{injected} struck, {counted} counted, {recorded} recorded")
    if lost:
        problems.append(f"{lost} rollouts are not recorded")
    problems += [f"process {pid} still runs" for pid in (entry.get("pid") for entry in struck) if pid and _lives(pid)]
    by_attempt = fault.at_least and fault.counted_as == "attempts"
    tried = len(steps) * members + recorded if by_attempt else num_draws
    return {
        "rate": (recorded if by_attempt else injected) / max(tried, 1),
        "injected": injected,
        "counted": counted,
        "recorded": recorded,
        "failed": failed,
        "dropped": dropped,
        "lost": lost,
        "success_while_training": steps[-1]["reward/success"] if steps else None,
        "problems": problems,
    }


def _lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


def _lives(pid: int) -> bool:
    """The process runs: it is neither gone nor a corpse that waits for its parent."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


@contextmanager
def _kept_up(command: Sequence[str]) -> Iterator[None]:
    """A server that is started again, after a while, whenever it dies."""
    over = threading.Event()
    is_up = threading.Event()
    running: list[subprocess.Popen[str]] = []

    def keep() -> None:
        while not over.is_set():
            process = subprocess.Popen([sys.executable, *command], stdout=subprocess.PIPE, text=True)
            running.append(process)
            assert process.stdout is not None
            process.stdout.readline()
            is_up.set()
            process.wait()
            process.stdout.close()
            over.wait(AWAY_SECONDS)

    keeper = threading.Thread(target=keep, daemon=True)
    keeper.start()
    try:
        if not is_up.wait(120):
            raise RuntimeError(f"{' '.join(command)} does not start")
        yield
    finally:
        over.set()
        running[-1].kill()
        keeper.join()


if __name__ == "__main__":
    failures = [row for row in main() if row["problems"] or (row["success"] or 0.0) < 0.85]
    sys.exit(f"{len(failures)} of the faults did harm" if failures else 0)
