"""The server of `agent-r1 view`: addresses, who may ask, what cannot be read, and streams of a run that grows."""

from __future__ import annotations

import json
import shutil
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

pytest.importorskip("starlette", reason="needs the extra view")
pytest.importorskip("uvicorn", reason="needs the extra view")

from agent_r1.view.server import browser_address
from agent_r1.web import Access, make_access
from tests.helpers.view_server import ViewServer, view_server
from tests.helpers.viewed_runs import HOSTILE, WrittenRun, make_group, make_trajectory, shop_run

SECRET = "the-secret-of-another-folder"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """runs/ with a plain run, a hostile one, and links that lead out of it."""
    parent = tmp_path_factory.mktemp("server")
    runs = parent / "runs"
    shop_run(runs / "shop")
    secret = WrittenRun(parent / "elsewhere" / "secret", "trainer.seed=77")
    secret.write(1, make_group(0, [make_trajectory(SECRET)]))
    (parent / "elsewhere" / "secret.txt").write_text(SECRET)
    (runs / "linked").symlink_to(secret.path)
    hostile = WrittenRun(runs / "hostile", "trainer.seed=5")
    hostile.write(1, make_group(0, [make_trajectory(HOSTILE, "x" * 1_000_000, task=HOSTILE, question=HOSTILE)]))
    shutil.copy(secret.folder.step_trajectories(1), hostile.folder.trajectories / "2.jsonl.bak")
    (hostile.folder.trajectories / "3.jsonl").symlink_to(secret.folder.step_trajectories(1))
    (hostile.path / "summary.json").symlink_to(parent / "elsewhere" / "secret.txt")
    (hostile.path / "warnings.jsonl").symlink_to(parent / "elsewhere" / "secret.txt")
    (hostile.path / "credit").symlink_to(parent / "elsewhere")
    return runs


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[ViewServer]:
    with view_server([folder]) as running:
        until(lambda: all(run["indexed"] for run in running.get("/api/runs")["runs"]))
        yield running


@pytest.fixture(autouse=True)
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agent_r1.view.live.POLL_SECONDS", 0.05)
    monkeypatch.setattr("agent_r1.view.api._TOUCH_SECONDS", 0.05)


def until(condition: Callable[[], Any], seconds: float = 30.0) -> Any:
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.02)
    return found


def run_named(server: ViewServer, name: str) -> dict[str, Any]:
    return next(run for run in server.get("/api/runs")["runs"] if run["name"] == name)


# --- what is answered ------------------------------------------------------------------------------------------------


def test_runs_are_listed_with_their_state_and_latest_metrics(server: ViewServer) -> None:
    run = run_named(server, "shop")
    assert run["id"] == "shop"
    assert (run["state"], run["steps"], run["seed"], run["model"]) == ("failed", 4, 0, "base")
    assert run["latest"]["reward/outcome"] == 0.4
    assert (run["trajectories"], run["corrupt_lines"], run["indexed"]) == (20, 0, True)
    assert run["metric_names"] == ["eval/all/greedy", "eval/all/rows", "reward/outcome", "time/step"]


def test_metrics_are_columns_by_step_and_minute(server: ViewServer) -> None:
    answer = server.get("/api/runs/shop/metrics?keys=reward/outcome,eval/all/greedy")
    assert answer["steps"] == [1, 2, 3, 4]
    assert answer["minutes"] == [0.5, 1.0, 1.5, 2.0]
    assert answer["series"] == {"reward/outcome": [0.1, 0.2, 0.3, 0.4]}
    assert answer["eval"] == {"steps": [0], "minutes": [0.0], "series": {"eval/all/greedy": [0.25]}}
    assert set(server.get("/api/runs/shop/metrics")["series"]) == {"reward/outcome", "time/step"}


def test_configurations_are_flat_and_compared(server: ViewServer) -> None:
    assert server.get("/api/runs/shop/config")["config"]["optimizer.learning_rate"] > 0
    assert server.get("/api/differences?runs=shop,hostile") == {
        "runs": ["shop", "hostile"],
        "differences": {"trainer.seed": {"shop": 0, "hostile": 5}},
    }
    assert run_named(server, "shop")["family"] == run_named(server, "hostile")["family"]


def test_trajectories_records_groups_and_tasks_are_answered(server: ViewServer) -> None:
    page = server.get("/api/runs/shop/trajectories?tool=price&sort=-reward&limit=3&text=price")
    assert page["total"] == 12
    assert [row["reward"] for row in page["rows"]] == [1.0, 1.0, 1.0]
    record = server.get(f"/api/runs/shop/trajectories/{page['rows'][0]['key']}")
    assert record["steps"][-1]["text"] == "the price is 1"
    assert len(server.get("/api/runs/shop/groups/2/1")["members"]) == 3
    assert server.get("/api/runs/shop/groups/0/0?kind=eval")["task_id"] == "held-out"
    assert len(server.get("/api/runs/shop/tasks/task-1")["rows"]) == 9
    text = server.get("/api/runs/shop/trajectories/1-1/text?path=steps.0.text")
    assert text == {"path": "steps.0.text", "text": "let me look", "offset": 0, "total": 11}


def test_a_task_may_have_any_name(server: ViewServer) -> None:
    name = run_rows(server, "hostile")[0]["task_id"]
    assert "</script>" in name
    assert server.get(f"/api/runs/hostile/tasks/{quote(name, safe='')}")["task_id"] == name


def run_rows(server: ViewServer, run: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = server.get(f"/api/runs/{run}/trajectories")["rows"]
    return rows


def test_hostile_text_and_long_lines_are_small_valid_ascii_json(server: ViewServer) -> None:
    answer = server.request("/api/runs/hostile/trajectories/1-1")
    assert answer.headers["content-type"] == "application/json"
    assert len(answer.body) < 200_000
    assert answer.json["steps"][0]["text"] == HOSTILE
    assert answer.json["cut"] == [{"path": f"steps.1.{name}", "chars": 1_000_000} for name in ("text", "content")]


@pytest.mark.parametrize(
    ("path", "status", "message"),
    [
        ("/api/runs/nope/metrics", 404, "no run 'nope'"),
        ("/api/runs/shop/trajectories/9-9", 404, "no trajectory '9-9'"),
        ("/api/runs/shop/trajectories?step=x", 400, "step='x'"),
        ("/api/runs/shop/trajectories/1-1/text?path=steps.9", 404, "no text at"),
        ("/api/runs/shop/trajectories/1-1/text?path=steps.0.text&offset=x", 400, "offset='x' is not a whole number"),
        ("/api/runs/shop/groups/x/1", 400, "step='x'"),
        ("/api/runs/shop/groups/1/99", 404, "no group 99"),
        ("/api/runs/shop/groups/1/1?kind=all", 400, "expected train or eval"),
        ("/api/runs/shop/tasks/nope", 404, "task 'nope'"),
        ("/api/runs/shop/live?since=-1", 400, "not a number of lines"),
        ("/api/differences", 400, "name 1 to 50 runs"),
        ("/api/differences?runs=shop,nope", 404, "no run 'nope'"),
        ("/api/nothing", 404, "Not Found"),
        ("/static/nothing.js", 404, "no file"),
    ],
)
def test_a_wrong_address_says_what_is_wrong(server: ViewServer, path: str, status: int, message: str) -> None:
    answer = server.request(path)
    assert answer.status == status
    assert message in answer.json["error"]


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"])
def test_nothing_can_be_written(server: ViewServer, method: str) -> None:
    assert server.request("/api/runs", method=method).status == 405


# --- who may ask -----------------------------------------------------------------------------------------------------


def test_every_answer_forbids_foreign_scripts(server: ViewServer) -> None:
    for path in ("/", "/api/runs", "/api/nothing", "/static/x"):
        headers = server.request(path).headers
        assert headers["content-security-policy"].startswith(
            "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'"
        )
        assert headers["x-content-type-options"] == "nosniff"
        assert "access-control-allow-origin" not in headers


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "localhost.evil.example", ""])
def test_a_foreign_host_name_is_refused(server: ViewServer, host: str) -> None:
    assert server.request("/api/runs", host=host).status in (400, 403)


@pytest.mark.parametrize("origin", ["http://evil.example", "null", "https://127.0.0.1", "file://"])
def test_pages_of_others_are_refused(server: ViewServer, origin: str) -> None:
    answer = server.request("/api/runs", origin=origin)
    assert answer.status == 403
    assert "runs" not in answer.json


def test_the_own_page_may_ask(server: ViewServer) -> None:
    assert server.request("/api/runs", host="localhost:1", origin="http://localhost:1").status == 200


@pytest.mark.whole
def test_with_a_key_nothing_is_answered_without_it(folder: Path) -> None:
    access = make_access("127.0.0.1", key="k%3D;ey= 1", own_pages=True)
    with view_server([folder], access) as server:
        for path in ("/", "/api/runs", "/static/x", "/api/runs?key=k%253D%3Bey%3D+1", "/?key=wrong", "/?key="):
            assert server.request(path).status == 401, path
        assert server.request("/api/runs", authorization="Bearer k%3D;ey= 1").status == 200
        assert server.request("/api/runs", authorization="Bearer wrong", cookie="agent_r1_view=x").status == 401
        entered = server.request("/?key=k%253D%3Bey%3D%201")
        assert (entered.status, entered.headers["location"]) == (303, "/")
        cookie = entered.headers["set-cookie"]
        assert "HttpOnly" in cookie
        assert "SameSite=lax" in cookie
        given = cookie.partition(";")[0]
        assert server.request("/api/runs", cookie=f"other=1; {given}").status == 200
        assert server.request("/api/runs", cookie=given[:-1]).status == 401
        assert server.request("/api/runs", cookie=given, origin="http://evil.example").status == 403


def test_another_address_gets_a_key() -> None:
    assert make_access("127.0.0.1", key=None, own_pages=True).token is None
    made = make_access("0.0.0.0", key=None, own_pages=True).token
    assert made is not None
    assert len(made) >= 32


def test_the_address_for_a_browser_has_the_key_and_a_name() -> None:
    assert browser_address("http://127.0.0.1:1", Access()) == "http://127.0.0.1:1"
    name = socket.gethostname()
    assert browser_address("http://0.0.0.0:1", Access(token="a/b")) == f"http://{name}:1/?key=a%2Fb"
    assert browser_address("http://[::]:1", Access(token="k")) == f"http://{name}:1/?key=k"


# --- what cannot be read ---------------------------------------------------------------------------------------------

TRICKS = [
    "..", "../elsewhere/secret", "..%2f..%2felsewhere%2fsecret", "%2e%2e%2felsewhere", "shop/..", "linked", "secret",
    "/etc/passwd", "%2fetc%2fpasswd", "shop%00", "~", ".", "*", "shop;ls", "C:%5c", "%ed%a0%80",
]  # fmt: skip


@pytest.mark.parametrize("trick", TRICKS)
def test_run_ids_are_looked_up_and_never_paths(server: ViewServer, trick: str) -> None:
    for rest in ("config", "metrics", "trajectories", "trajectories/1-1", "tasks/x", "groups/1/0"):
        answer = server.request(f"/api/runs/{trick}/{rest}")
        assert answer.status in (400, 404)
        assert SECRET.encode() not in answer.body


@pytest.mark.parametrize("trick", [*TRICKS, "1-1/../../../../elsewhere/secret/trajectories/1-1", "2.jsonl-1", "3-1"])
def test_keys_are_looked_up_and_never_paths(server: ViewServer, trick: str) -> None:
    for address in (f"/api/runs/hostile/trajectories/{trick}", f"/static/{trick}", f"/static/../{trick}"):
        answer = server.request(address)
        assert answer.status in (400, 404)
        assert SECRET.encode() not in answer.body


def test_links_that_lead_out_are_reported_and_not_read(server: ViewServer) -> None:
    everything = server.get("/api/runs")
    assert [run["id"] for run in everything["runs"]] == ["hostile", "shop"]
    assert any("linked leads out of" in problem for problem in everything["problems"])
    server.get("/api/runs/hostile/metrics")
    problems = " ".join(run_named(server, "hostile")["problems"])
    for name in ("summary.json", "warnings.jsonl", "3.jsonl"):
        assert f"{name} is a link" in problems
    for path in ("config", "metrics", "trajectories", "trajectories/1-1", "groups/1/0"):
        assert SECRET.encode() not in server.request(f"/api/runs/hostile/{path}").body


# --- damage ----------------------------------------------------------------------------------------------------------


def test_a_damaged_run_is_shown_with_its_problems(tmp_path: Path) -> None:
    run = WrittenRun(tmp_path / "run")
    run.folder.config.write_text("a: [1\n b: ]")
    run.folder.summary.write_text("no json")
    lines = [b'{"step": 1, "a": NaN, "b": "text", "c": 2}', b"broken", b"\xff", b'{"step": 2, "c": 1e400}', b'{"st']
    run.folder.metrics.write_bytes(b"\n".join(lines))
    run.folder.trajectories.mkdir()
    run.folder.step_trajectories(1).write_text("broken\n")
    with view_server([tmp_path]) as server:
        until(lambda: run_named(server, "run")["indexed"])
        shown = run_named(server, "run")
        assert (shown["corrupt_lines"], shown["corrupt_metric_lines"], shown["steps"]) == (1, 2, 2)
        assert len(shown["problems"]) == 2
        metrics = server.get("/api/runs/run/metrics")
        assert metrics["series"] == {"a": [None, None], "b": [None, None], "c": [2, None]}
        assert metrics["corrupt_lines"] == 2


HUGE = b"9" * 4000
DAMAGED = {
    "metrics.jsonl": [
        b'{"step": 3, "a": ' + b"[" * 100_000 + b"\n",
        b'{"step": ' + HUGE + b"}\n",
        b'{"step": 3, "time/step": ' + HUGE + b', "reward/outcome": 1e400}\n',
    ],
    "warnings.jsonl": [b"[" * 100_000 + b"\n"],
    "summary.json": [b'{"steps": 1, "warnings": 5}', b'{"steps": 1, "warnings": ["step ' + HUGE * 2 + b': x"]}'],
}


@pytest.mark.parametrize(("name", "content"), [(name, text) for name, texts in DAMAGED.items() for text in texts])
def test_one_damaged_run_hides_no_other(tmp_path: Path, name: str, content: bytes) -> None:
    WrittenRun(tmp_path / "whole")
    damaged = WrittenRun(tmp_path / "damaged")
    (damaged.path / "warnings.jsonl").unlink(missing_ok=True)
    (damaged.path / name).write_bytes(content)
    with view_server([tmp_path]) as server:
        assert {run["name"] for run in server.get("/api/runs")["runs"]} == {"damaged", "whole"}
        for address in ("metrics", "config", "trajectories"):
            server.get(f"/api/runs/damaged/{address}")


def test_yaml_that_grows_without_end_is_bounded(tmp_path: Path) -> None:
    run = WrittenRun(tmp_path / "run")
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 12)]
    run.folder.config.write_text("\n".join(lines))
    with view_server([tmp_path]) as server:
        assert len(server.request("/api/runs/run/config").body) < 5_000_000
        assert run_named(server, "run")["algorithm"] == "?"


# --- live ------------------------------------------------------------------------------------------------------------


def test_a_stream_gives_new_lines_counts_and_warnings(tmp_path: Path) -> None:
    run = WrittenRun(tmp_path / "run")
    run.log(1, reward__outcome=0.1)
    with view_server([tmp_path]) as server, server.events("/api/runs/run/live?since=0") as events:
        name, number, data = next(events)
        assert (name, number, data["total"]) == ("metrics", "1", 1)
        assert data["lines"] == [{"step": 1, "reward/outcome": 0.1}]
        run.log(2, reward__outcome=0.2)
        run.write(2, make_group(0, [make_trajectory("x")]))
        run.folder.add_warning(2, "entropy collapses", "entropy is collapsing")
        seen: dict[str, Any] = {}
        for event in events:
            seen[event[0]] = event[2]
            if (
                seen.get("metrics", {}).get("total") == 2
                and seen.get("trajectories", {}).get("trajectories") == 1
                and seen["trajectories"]["indexed"]
                and seen.get("warnings", {}).get("warnings")
            ):
                break
        assert seen["metrics"]["lines"] == [{"step": 2, "reward/outcome": 0.2}]
        assert seen["warnings"]["warnings"] == [
            {"step": 2, "rule": "entropy collapses", "text": "entropy is collapsing"}
        ]
        assert event[1] == "2"


def test_a_browser_that_reconnects_continues_where_it_was(tmp_path: Path) -> None:
    run = WrittenRun(tmp_path / "run")
    for step in (1, 2, 3):
        run.log(step, a=1.0)
    with view_server([tmp_path]) as server:
        with server.events("/api/runs/run/live?since=0", **{"Last-Event-ID": "2"}) as events:
            _, _, data = next(events)
            assert [line["step"] for line in data["lines"]] == [3]
        run.folder.rewind(1)
        with server.events("/api/runs/run/live?since=3") as events:
            _, _, data = next(events)
            assert (data["rewritten"], [line["step"] for line in data["lines"]]) == (True, [1])


def test_a_resumed_run_tells_its_streams_to_start_over(tmp_path: Path) -> None:
    run = WrittenRun(tmp_path / "run")
    for step in (1, 2, 3):
        run.log(step, a=float(step))
    with view_server([tmp_path]) as server, server.events("/api/runs/run/live?since=3") as events:
        next(events)
        run.folder.rewind(1)
        rewritten = next(data for name, _, data in events if name == "metrics")
        assert rewritten == {"lines": [{"step": 1, "a": 1.0}], "rewritten": True, "total": 1}


@pytest.mark.whole
def test_the_stream_of_all_runs_gives_those_that_changed(tmp_path: Path) -> None:
    runs = [WrittenRun(tmp_path / name) for name in ("a", "b")]
    with view_server([tmp_path]) as server, server.events("/api/live") as events:
        _, _, first = next(events)
        assert [run["id"] for run in first["runs"]] == ["a", "b"]
        until(lambda: all(run["indexed"] for run in server.get("/api/runs")["runs"]))
        runs[1].log(1, a=1.0)
        told = next(data["runs"] for _, _, data in events if any(run["steps"] for run in data["runs"]))
        assert [(run["id"], run["steps"]) for run in told][-1] == ("b", 1)
        runs[0].log(1, a=1.0)
        told = next(data["runs"] for _, _, data in events)
        assert [(run["id"], run["steps"]) for run in told] == [("a", 1)]


def test_streams_are_limited_and_freed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agent_r1.view.live.MAX_STREAMS", 1)
    WrittenRun(tmp_path / "run")
    with view_server([tmp_path]) as server:
        with server.events("/api/live") as events:
            next(events)
            assert server.request("/api/live").status == 503
            assert server.request("/api/runs/run/live").status == 503

        def is_free() -> bool:
            try:
                with server.events("/api/live") as events:
                    return bool(next(events))
            except AssertionError:
                return False

        until(is_free)


@pytest.mark.whole
def test_a_run_is_running_while_its_folder_is_locked(tmp_path: Path) -> None:
    from agent_r1.runs import lock_folder

    run = WrittenRun(tmp_path / "run")
    with view_server([tmp_path]) as server:
        assert run_named(server, "run")["state"] == "failed"
        with lock_folder(run.path):
            assert run_named(server, "run")["state"] == "running"
        run.folder.write_summary({"steps": 1})
        assert run_named(server, "run")["state"] == "finished"
        run.folder.summary.unlink()
        run.folder.model.mkdir()
        (run.folder.model / "config.json").write_text("{}")  # as a warm start leaves it
        assert run_named(server, "run")["state"] == "finished"


def test_a_warm_start_counts_in_its_own_steps(tmp_path: Path) -> None:
    run = WrittenRun(tmp_path / "warm")
    run.folder.metrics.write_text('{"step": 3, "loss/sft": 0.5}\n')
    run.folder.config.write_text(run.folder.config.read_text() + "sft: {steps: 7}\n")
    with view_server([tmp_path]) as server:
        shown = run_named(server, "warm")
    assert (shown["algorithm"], shown["steps"], shown["total_steps"]) == ("sft", 3, 7)


@pytest.mark.whole
def test_a_run_that_appears_later_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agent_r1.view.catalog._SCAN_SECONDS", 0.0)
    WrittenRun(tmp_path / "first")
    with view_server([tmp_path]) as server:
        late = WrittenRun(tmp_path / "late")
        late.write(1, make_group(0, [make_trajectory("x")]))
        until(lambda: run_named(server, "late")["trajectories"] == 1)
        shutil.rmtree(late.path)
        assert server.request("/api/runs/late/metrics").status in (200, 404)
        assert [run["id"] for run in server.get("/api/runs")["runs"]] == ["first"]


def test_no_descriptor_is_left_open(server: ViewServer) -> None:
    def descriptors() -> int:
        return len(list(Path("/proc/self/fd").iterdir()))

    if not Path("/proc/self/fd").is_dir():
        pytest.skip("needs /proc")
    run_rows(server, "shop")
    before = descriptors()
    for _ in range(20):
        server.request("/api/runs/shop/trajectories/1-1")
        server.request("/api/runs/hostile/trajectories/3-1")
        server.request("/api/runs")
    assert descriptors() <= before + 5


def test_answers_are_json_that_a_strict_parser_reads(server: ViewServer) -> None:
    def refuse(name: str) -> None:
        raise AssertionError(name)

    for path in ("/api/runs", "/api/runs/hostile/metrics", "/api/runs/hostile/trajectories/1-1"):
        json.loads(server.request(path).body.decode("ascii"), parse_constant=refuse)
