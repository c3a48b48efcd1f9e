"""One run as the viewer sees it: its state, metrics, configuration and index. Nothing that is damaged is fatal."""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from omegaconf.errors import OmegaConfBaseException

from agent_r1.codec import write_json
from agent_r1.errors import AgentR1Error, DataError
from agent_r1.metric_names import SFT_LOSS, STEP_SECONDS
from agent_r1.runs import RunFolder, RunRecord, is_locked, parse_credit, parse_metrics_line
from agent_r1.types import StepCredit
from agent_r1.view.bounds import Bounds
from agent_r1.view.index.scan import lines_of
from agent_r1.view.index.store import TrajectoryIndex
from agent_r1.view.inside import Signature, open_inside, read_inside, signature_of

_MAX_FILE = 4 << 20
_MAX_CONFIG = 256 << 10
_MAX_SETTINGS = 5_000
_NEEDED_SECTIONS = ("model", "rollout", "algorithm", "trainer")
"""What the labels of a run are derived from."""
_STEP_WARNING = re.compile(r"step (\d{1,15}): (.*)", re.DOTALL)
_OF_ONE_RUN = ("trainer.seed", "run.", "tracking.")
"""Keys in which the runs of a family differ."""
_YAML_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class ViewedRun:
    """A run folder, read as often as it changes. Methods may be called from several threads."""

    def __init__(self, run_id: str, folder: Path) -> None:
        self.id = run_id
        self.folder = folder
        self.index = TrajectoryIndex(folder)
        self._lock = threading.RLock()
        self._cache: dict[str, tuple[object, Any]] = {}
        self._lines: list[dict[str, Any]] = []
        self._corrupt = 0
        self._offset = 0
        self._head = b""
        self._signature: Signature | None = None
        self.rewrites = 0
        """How often the metrics were written anew, by a resumed run."""
        self.problems: dict[str, str] = {}
        """What could not be read, by file."""

    # --- files -------------------------------------------------------------------------------------------------------

    def lines(self) -> tuple[list[dict[str, Any]], int]:
        """The lines of metrics so far, and how many others there are. Only what was appended is read."""
        with self._lock:
            try:
                with open_inside(self.folder, "metrics.jsonl") as file:
                    signature = signature_of(file)
                    if signature != self._signature:
                        head = file.read(len(self._head) or 4096)
                        if head != self._head or signature.size < self._offset:
                            self.rewrites += bool(self._head)
                            self._lines, self._corrupt, self._offset = [], 0, 0
                        file.seek(self._offset)
                        self._read_lines(file.read())
                        file.seek(0)
                        self._head = file.read(min(4096, self._offset))
                        self._signature = signature
                self.problems.pop("metrics.jsonl", None)
            except FileNotFoundError:
                self._lines, self._corrupt, self._offset, self._head, self._signature = [], 0, 0, b"", None
            except DataError as error:
                self.problems["metrics.jsonl"] = str(error)
            return self._lines, self._corrupt

    def _read_lines(self, unread: bytes) -> None:
        complete = unread[: unread.rfind(b"\n") + 1]
        new = []
        for text in complete.split(b"\n"):
            line = parse_metrics_line(text) if text.strip() else None
            if line is not None:
                new.append({name: _finite(value) for name, value in line.items()})
            elif text.strip():
                self._corrupt += 1
        self._lines = [*self._lines, *new]
        self._offset += len(complete)

    @property
    def config_text(self) -> str:
        """The configuration file; "" without one."""
        return self._read("config.yaml")

    def config(self) -> dict[str, Any]:
        """The configuration as flat keys."""
        return _flat(self._sections())

    def _sections(self) -> dict[str, Any]:
        """The configuration, bounded."""
        sections: dict[str, Any] = self._derive("config", self.config_text, self._parse_config)
        return sections

    def summary(self) -> dict[str, Any]:
        """The summary of a finished run; empty for an unfinished one."""
        summary: dict[str, Any] = self._derive("summary", self._read("summary.json"), self._parse_summary)
        return summary

    def warnings(self) -> list[dict[str, Any]]:
        """The warnings of the run, each at its step: from warnings.jsonl, or the summary of an older run."""
        text = self._read("warnings.jsonl")
        if text:
            stored: list[dict[str, Any]] = self._derive("warnings", text, _parse_warnings)
            return stored
        listed = self.summary().get("warnings")
        matches = [_STEP_WARNING.fullmatch(str(entry)) for entry in listed] if isinstance(listed, list) else []
        return [{"step": int(match[1]), "rule": "", "text": match[2]} for match in matches if match]

    def _read(self, name: str) -> str:
        try:
            content = read_inside(self.folder, name, max_bytes=_MAX_CONFIG if name == "config.yaml" else _MAX_FILE)
            self.problems.pop(name, None)
        except DataError as error:
            self.problems[name] = str(error)
            return ""
        return (content or b"").decode("utf-8", "replace")

    def _derive(self, name: str, source: object, make: Callable[[Any], Any]) -> Any:
        """What `make` makes of a text, made again when the text changes."""
        cached = self._cache.get(name)
        if cached is None or cached[0] != source:
            cached = self._cache[name] = (source, make(source))
        return cached[1]

    def _parse_config(self, text: str) -> dict[str, Any]:
        self.problems.pop("configuration", None)
        try:
            loaded = yaml.load(text, _YAML_LOADER) if text else {}
        except (yaml.YAMLError, RecursionError, ValueError) as error:
            self.problems["configuration"] = f"config.yaml is not YAML: {str(error)[:300]}"
            return {}
        return Bounds(max_nodes=_MAX_SETTINGS).apply(loaded) if isinstance(loaded, dict) else {}

    def _parse_summary(self, text: str) -> dict[str, Any]:
        self.problems.pop("result", None)
        try:
            summary = json.loads(text) if text else {}
        except (ValueError, RecursionError):
            summary = None
        if not isinstance(summary, dict):
            self.problems["result"] = "summary.json is not the summary of a run"
            return {}
        return summary

    # --- what the page shows -----------------------------------------------------------------------------------------

    @property
    def state(self) -> str:
        """running, finished, failed (it ended before its last step) or unknown."""
        if is_locked(self.folder):
            return "running"
        if self.summary() or RunFolder(self.folder).has_model:  # a warm start has a model and no summary
            return "finished"
        return "failed" if self.config_text else "unknown"

    def overview(self) -> dict[str, Any]:
        """The run in the list of runs."""
        lines, corrupt = self.lines()
        settings = self.config()
        names, latest = _latest(lines)
        index = self.index.state
        training = [line["step"] for line in lines]
        is_warm_start = SFT_LOSS in names
        total = settings.get("sft.steps" if is_warm_start else "trainer.steps")
        return {
            "id": self.id,
            "name": self.folder.name,
            "path": str(self.folder),
            "state": self.state,
            **self._identity(),
            **({"algorithm": "sft"} if is_warm_start else {}),
            "steps": max(training, default=0),
            "total_steps": total if isinstance(total, int) else None,
            "started": self._time("config.yaml"),
            "updated": self.updated,
            "latest": latest,
            "metric_names": names,
            "corrupt_metric_lines": corrupt,
            "trajectories": index.trajectories,
            "corrupt_lines": index.corrupt_lines,
            "indexed": index.complete,
            "index_progress": index.progress,
            "problems": [*self.problems.values(), *index.problems][:20],
        }

    def _identity(self) -> dict[str, Any]:
        """Algorithm, model, seed and family; they take a while to derive, so they are kept."""
        source = (self.config_text, self._read("summary.json"))
        identity: dict[str, Any] = self._derive("identity", source, lambda _: self._identify())
        return identity

    def _identify(self) -> dict[str, Any]:
        settings, summary = self.config(), self.summary()
        # YAML can repeat a value without end; JSON, which is YAML too, cannot.
        sections = {name: value for name, value in self._sections().items() if name in _NEEDED_SECTIONS}
        bounded = write_json(sections, default=str)
        record = RunRecord(label=self.id, lines=[], config_text=bounded, summary=summary)
        seed = summary.get("seed", settings.get("trainer.seed"))
        rest = {key: value for key, value in settings.items() if not key.startswith(_OF_ONE_RUN)}
        return {
            "algorithm": _attempt(lambda: record.algorithm),
            "model": _attempt(lambda: record.model),
            "seed": seed if isinstance(seed, int) else None,
            "family": hashlib.blake2b(json.dumps(rest, sort_keys=True, default=str).encode(), digest_size=6).hexdigest()
            if rest
            else self.id,
        }

    @property
    def updated(self) -> float | None:
        """When its metrics were last written."""
        return self._time("metrics.jsonl")

    @property
    def model_path(self) -> str:
        """The model it started from, as its configuration names it."""
        return str(self.config().get("model.path") or "")

    def credit(self, rows: Sequence[Mapping[str, Any]]) -> dict[str, Sequence[StepCredit]]:
        """What the learner recorded about the tokens of trajectories of one step, per key and step of the episode."""
        keys = {
            f'{{"group_id": {row["group_id"]}, "member": {row["member"]},'.encode(): row["key"]
            for row in rows
            if row["kind"] == "train"
        }
        credit_of: dict[str, Sequence[StepCredit]] = {}
        try:
            with open_inside(self.folder, "credit", f"{rows[0]['step']}.jsonl") as file:
                for _, _, line in lines_of(file):
                    key = keys.get(line[: line.find(b",", line.find(b",") + 1) + 1]) if line else None
                    if line is not None and key is not None:
                        credit_of[key] = parse_credit(line).steps
        except (FileNotFoundError, DataError):
            pass
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            self.problems["credit"] = f"credit/{rows[0]['step']}.jsonl has a line that is no credit: {error}"
        return credit_of

    def _time(self, name: str) -> float | None:
        try:
            return (self.folder / name).lstat().st_mtime
        except OSError:
            return None

    def metrics(self, keys: list[str] | None) -> dict[str, Any]:
        """The curves of training and of evaluations, and the warnings."""
        lines, corrupt = self.lines()
        training: dict[int, dict[str, Any]] = {}
        evaluations: dict[int, dict[str, Any]] = {}
        minutes: dict[int, float] = {}
        spent = 0.0
        for line in lines:
            spent += (line.get(STEP_SECONDS) or 0.0) / 60 if isinstance(line.get(STEP_SECONDS), int | float) else 0.0
            is_evaluation = any(name.startswith("eval/") for name in line)
            (evaluations if is_evaluation else training).setdefault(line["step"], {}).update(line)
            minutes[line["step"]] = spent
        return {
            **_columns(training, minutes, keys),
            "eval": _columns(evaluations, minutes, keys),
            "warnings": self.warnings(),
            "corrupt_lines": corrupt,
            "lines": len(lines),
        }


def _flat(section: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested keys as dotted ones.

    >>> _flat({"kl": {"target": 1}, "seed": 0})
    {'kl.target': 1, 'seed': 0}
    """
    flat: dict[str, Any] = {}
    for name, value in section.items():
        if isinstance(value, Mapping) and value:
            flat |= _flat(value, f"{prefix}{name}.")
        else:
            flat[f"{prefix}{name}"] = value
    return flat


def _columns(
    rows: Mapping[int, Mapping[str, Any]], minutes: Mapping[int, float], keys: list[str] | None
) -> dict[str, Any]:
    steps = sorted(rows)
    names = sorted({name for row in rows.values() for name in row} - {"step"})
    return {
        "steps": steps,
        "minutes": [round(minutes[step], 4) for step in steps],
        "series": {name: [rows[step].get(name) for step in steps] for name in names if keys is None or name in keys},
    }


def _latest(lines: list[dict[str, Any]]) -> tuple[list[str], dict[str, Any]]:
    latest: dict[str, Any] = {}
    for line in lines:
        latest.update(line)
    latest.pop("step", None)
    return sorted(latest), latest


def _parse_warnings(text: str) -> list[dict[str, Any]]:
    warnings = []
    for line in text.splitlines():
        try:
            entry = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(entry, dict) and type(entry.get("step")) is int:
            rule, words = str(entry.get("rule") or ""), str(entry.get("text") or "")
            warnings.append({"step": entry["step"], "rule": rule[:100], "text": words[:2000]})
    return warnings[:1000]


def _finite(value: Any) -> Any:
    """Metrics are numbers; anything else in their place is nothing."""
    return value if isinstance(value, int | float) and abs(value) < 1e300 else None


def _attempt(make: Callable[[], str]) -> str:
    """A label; "?" where the configuration is not one of ours."""
    try:
        return make()[:200]
    except (AgentR1Error, OmegaConfBaseException, yaml.YAMLError, ValueError, TypeError, KeyError, AttributeError):
        return "?"
