"""`agent-r1 serve` as people start it: a run's folder, the official client, the recipe's tools, Ctrl-C and SIGTERM."""

from __future__ import annotations

import json
import os
import re
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.helpers import commands
from tests.helpers.forks import Forked, forks
from tests.helpers.optional import needs
from tests.helpers.tiny_runs import tiny_overrides

openai = needs("openai", reason="the client is in the extra 'dev'")
pytest.importorskip("uvicorn", reason="the server needs the extra 'serve'")

ROOT = Path(__file__).parents[2]
QUESTION = [{"role": "user", "content": "What do 3 egg cost?"}]

pytestmark = pytest.mark.whole


@contextmanager
def serving(*arguments: str, **variables: str) -> Iterator[tuple[str, Forked, list[str]]]:
    """Address, process and first lines of a server in a process of its own."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **variables}
    process = forks().start(["agent-r1", "serve", *arguments, "--port", "0"], ROOT, environment)
    try:
        lines: list[str] = []
        for line in process.stdout:
            lines.append(line)
            if found := re.search(r"(http://[\d.]+:\d+)/v1", line):
                yield found[1].replace("0.0.0.0", "127.0.0.1"), process, lines
                return
        pytest.fail(f"the server did not start: {process.stderr.read()}")
    finally:
        process.close()


@pytest.fixture(scope="module")
def run(model_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of one step."""
    folder = tmp_path_factory.mktemp("runs")
    commands.train(*tiny_overrides(folder, model_folder, "trainer.steps=1"))
    return folder / "tiny"


def test_a_run_is_served_with_its_tools_and_stops_when_asked(run: Path) -> None:
    with serving(str(run), "--max-tokens", "300", "--shutdown-seconds", "20") as (url, process, lines):
        assert lines == [f"serving tiny at {url}/v1\n"]
        with openai.OpenAI(base_url=f"{url}/v1", api_key="none") as client:
            answer = client.chat.completions.create(model="tiny", messages=QUESTION, max_tokens=8, seed=1)
            streamed = client.chat.completions.create(
                model="tiny", messages=QUESTION, max_tokens=8, seed=1, stream=True
            )
            text = "".join(event.choices[0].delta.content or "" for event in streamed)
            assert text == answer.choices[0].message.content
        ends = [
            json.loads(line.removeprefix("data: "))
            for line in httpx.post(f"{url}/v1/agent", json={"messages": QUESTION}, timeout=60).text.splitlines()
            if line.startswith('data: {"type": "end"')
        ]
        assert len(ends) == 1
        assert ends[0]["error"] is None
        assert ends[0]["num_turns"] >= 1
        answers: list[Any] = []
        body = {"model": "tiny", "messages": QUESTION, "max_tokens": 300, "seed": 1, "stream": True}
        with httpx.stream("POST", f"{url}/v1/chat/completions", json=body, timeout=60) as stream:
            events = stream.iter_lines()
            assert next(events).startswith("data: ")
            process.send_signal(signal.SIGTERM)
            answers = list(events)
        assert "data: [DONE]" in answers, "a running request is finished"
        assert process.wait(30) in (0, -signal.SIGTERM)
        assert "Traceback" not in process.stderr.read()


def test_another_address_needs_a_key_which_is_printed(run: Path) -> None:
    with serving(str(run), "--host", "0.0.0.0") as (url, process, _):
        key = process.stdout.readline().split()[-1]
        assert httpx.get(f"{url}/v1/models").status_code == 401
        assert httpx.get(f"{url}/v1/models", headers={"Authorization": f"Bearer {key}"}).status_code == 200
        process.send_signal(signal.SIGINT)
        assert process.wait(30) in (0, -signal.SIGINT)


def test_many_clients_with_the_key_get_their_own_answers(run: Path) -> None:
    options = ("--max-running", "16", "--max-waiting", "64", "--key-env", "SHOP_KEY")
    with serving(str(run), *options, SHOP_KEY="s3cret") as (url, _, lines):
        assert "s3cret" not in "".join(lines)
        wrong = openai.OpenAI(base_url=f"{url}/v1", api_key="wrong", max_retries=0)
        with wrong, pytest.raises(openai.AuthenticationError, match="needs its key"):
            wrong.models.list()
        found: dict[int, list[str]] = {}

        def ask(number: int) -> None:
            with openai.OpenAI(base_url=f"{url}/v1", api_key="s3cret") as client:
                found[number] = [
                    client.chat.completions.create(model="tiny", messages=QUESTION, max_tokens=12, seed=number % 8)
                    .choices[0]
                    .message.content
                    for _ in range(2)
                ]

        threads = [threading.Thread(target=ask, args=(number,)) for number in range(24)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(120)
        assert len(found) == 24
        assert all(set(texts) == set(found[number % 8]) and len(set(texts)) == 1 for number, texts in found.items())
