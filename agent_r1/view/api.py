"""The answers of the viewer as plain records: what each address of docs/view.md gives."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from agent_r1.errors import AgentR1Error, DataError
from agent_r1.version import __version__
from agent_r1.view.bounds import Bounds, text_at
from agent_r1.view.catalog import Catalog
from agent_r1.view.index import query
from agent_r1.view.index.filters import parse_filters
from agent_r1.view.index.scan import decode
from agent_r1.view.pictures import read_png
from agent_r1.view.record import add_tokens, light_steps, whole_record
from agent_r1.view.run import ViewedRun
from agent_r1.view.tokens import find_tokenizer

MAX_TEXT_ANSWER = 1_000_000
_TOUCH_SECONDS = 1.0
_LIGHT_TEXT = 2_000
_MAX_MEMBERS = 64


class NotFoundError(LookupError):
    """What was asked for is not there."""


class Indexer:
    """Keeps indexes up to date in a thread of its own: those that are looked at first."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._wanted: deque[ViewedRun] = deque()
        self._touched: dict[str, float] = {}
        self._wake = threading.Condition()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._work, name="view index", daemon=True)

    def start(self) -> None:
        """Begin; first with the runs that were written last."""
        runs = sorted(self._catalog.runs(), key=lambda run: run.updated or 0.0, reverse=True)
        self._wanted.extend(runs)
        self._thread.start()

    def stop(self) -> None:
        """End after the file that is being read."""
        self._stop.set()
        with self._wake:
            self._wake.notify()
        if self._thread.is_alive():
            self._thread.join(timeout=10)

    def touch(self, run: ViewedRun) -> None:
        """Ask for an update of a run that somebody looks at."""
        now = time.monotonic()
        if now - self._touched.get(run.id, -_TOUCH_SECONDS) < _TOUCH_SECONDS:
            return
        self._touched[run.id] = now
        with self._wake:
            with suppress(ValueError):
                self._wanted.remove(run)
            self._wanted.appendleft(run)
            self._wake.notify()

    def _work(self) -> None:
        while not self._stop.is_set():
            with self._wake:
                while not self._wanted and not self._stop.is_set():
                    self._wake.wait()
                run = self._wanted.popleft() if self._wanted else None
            if run is not None and not self._stop.is_set():
                try:
                    run.index.update(self._stop)
                    run.problems.pop("index", None)
                except (AgentR1Error, OSError) as error:
                    run.problems["index"] = str(error)


class ViewApi:
    """Answers for the page, the export and the tests."""

    def __init__(self, catalog: Catalog) -> None:
        self.catalog = catalog
        self.indexer = Indexer(catalog)

    def run(self, run_id: str) -> ViewedRun:
        """The run with this id."""
        run = self.catalog.get(run_id)
        if run is None:
            raise NotFoundError(f"there is no run {run_id!r:.100}; /api/runs lists them")
        return run

    def runs(self) -> dict[str, Any]:
        """All runs, as the page lists them."""
        runs = self.catalog.runs()
        for run in runs:
            if not run.index.is_current:
                self.indexer.touch(run)
        return {
            "runs": [run.overview() for run in runs],
            "problems": self.catalog.problems[:20],
            "version": __version__,
        }

    def metrics(self, run_id: str, keys: str | None) -> dict[str, Any]:
        """The curves of a run."""
        names = None if keys is None else [key.strip() for key in keys.split(",") if key.strip()]
        return self.run(run_id).metrics(names)

    def config(self, run_id: str) -> dict[str, Any]:
        """The configuration of a run as flat keys, and its summary."""
        run = self.run(run_id)
        return {"config": run.config(), "summary": Bounds().apply(run.summary())}

    def differences(self, ids: Sequence[str]) -> dict[str, Any]:
        """The keys in which the configurations of runs differ."""
        if not 1 <= len(ids) <= 50:
            raise DataError("name 1 to 50 runs: /api/differences?runs=a,b")
        configs = [self.run(run_id).config() for run_id in ids]
        keys = sorted({key for config in configs for key in config})
        differing = {
            key: {run_id: config[key] for run_id, config in zip(ids, configs, strict=True) if key in config}
            for key in keys
            if any((key in config, config.get(key)) != (key in configs[0], configs[0].get(key)) for config in configs)
        }
        return {"runs": list(ids), "differences": differing}

    def trajectories(self, run_id: str, parameters: Sequence[tuple[str, str]]) -> dict[str, Any]:
        """A page of the list of trajectories."""
        filters, page = parse_filters(parameters)
        run = self.run(run_id)
        self.indexer.touch(run)
        with run.index.reading() as connection:
            rows = query.list_rows(connection, filters, page)
        state = run.index.state
        return rows | {"indexed": state.complete, "corrupt_lines": state.corrupt_lines}

    def trajectory(self, run_id: str, key: str, *, with_tokens: bool = True) -> dict[str, Any]:
        """One trajectory."""
        run = self.run(run_id)
        row, neighbours, record = self._read(run, key)
        bounds = Bounds()
        shown_record: dict[str, Any] = bounds.apply(whole_record(record))
        tokenizer = find_tokenizer(run.folder, run.model_path) if with_tokens else None
        credit = run.credit([row]).get(row["key"]) if with_tokens else None
        if with_tokens:
            add_tokens(shown_record, record, tokenizer, credit)
        return {
            **row,
            **shown_record,
            "tokenizer": tokenizer is not None,
            "credit": credit is not None,
            "neighbours": neighbours,
            "cut": bounds.cut,
        }

    def picture(self, run_id: str, content_hash: str) -> bytes:
        """The PNG file of a picture."""
        run = self.run(run_id)
        try:
            return read_png(run.folder, content_hash)
        except FileNotFoundError:
            raise NotFoundError(f"the run has no picture {content_hash!r:.100}") from None

    def text(self, run_id: str, key: str, path: str, offset: int, limit: int) -> dict[str, Any]:
        """A part of one long text of a trajectory."""
        _, _, record = self._read(self.run(run_id), key)
        text = text_at(whole_record(record), path)
        if text is None:
            raise NotFoundError(f"the trajectory has no text at {path!r:.200}")
        offset, limit = max(0, offset), max(1, min(MAX_TEXT_ANSWER, limit))
        return {"path": path, "text": text[offset : offset + limit], "offset": offset, "total": len(text)}

    def group(self, run_id: str, step: int, group: int, kind: str) -> dict[str, Any]:
        """The members of a group side by side."""
        if kind not in ("train", "eval"):
            raise DataError(f"kind={kind!r:.40}: expected train or eval")
        run = self.run(run_id)
        with run.index.reading() as connection:
            rows = query.rows_of(connection, query.group_ids(connection, step, group, kind))
        num_members = len(rows)
        if not rows:
            raise NotFoundError(f"step {step} has no group {group} ({kind})")
        bounds = Bounds(max_text=_LIGHT_TEXT)
        members: list[dict[str, Any]] = []
        prompt: Any = []
        rows = rows[:_MAX_MEMBERS]
        credit = run.credit(rows)
        for row in rows:
            _, _, record = self._read(run, row["key"])
            prompt = prompt or record.get("prompt") or []
            steps = light_steps(record, credit.get(row["key"]))
            light = {"steps": steps, "vote": record.get("vote") or "", "error": record.get("error")}
            members.append({**row, "record": bounds.apply(light)})
        return {
            "step": step,
            "kind": kind,
            "group_id": group,
            "task_id": rows[0]["task_id"],
            "prompt": Bounds().apply(prompt),
            "members": members,
            "num_members": num_members,
        }

    def task(self, run_id: str, task: str) -> dict[str, Any]:
        """One task over the steps of training."""
        run = self.run(run_id)
        with run.index.reading() as connection:
            steps, ids = query.task_steps(connection, task)
            rows = query.rows_of(connection, ids)
        if not rows:
            raise NotFoundError(f"no trajectory of the task {task!r:.200} is in the index")
        _, _, record = self._read(run, rows[-1]["key"])
        prompt = Bounds().apply(record.get("prompt") or [])
        return {"task_id": rows[0]["task_id"], "prompt": prompt, "steps": steps, "rows": rows}

    def _read(self, run: ViewedRun, key: str) -> tuple[dict[str, Any], dict[str, str | None], dict[str, Any]]:
        """The row, the neighbours and the decoded line of a trajectory; the index is updated when the file is new."""
        for attempt in range(2):
            with run.index.reading() as connection:
                entry = query.find_key(connection, key)
                if entry is not None:
                    [row] = query.rows_of(connection, [entry["id"]])
                    neighbours = query.neighbours(connection, entry)
            if entry is not None:
                try:
                    line = run.index.read_line(entry["file_name"], entry["start"], entry["length"])
                    return row, neighbours, decode(line)
                except (FileNotFoundError, ValueError):  # rewritten since it was indexed
                    pass
            if attempt == 0:
                run.index.update()
        raise NotFoundError(f"there is no trajectory {key!r:.100}; the run may have been resumed before that step")
