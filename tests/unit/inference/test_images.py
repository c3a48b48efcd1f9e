"""A chat with a model that sees: attached files, tools that show images, and records that keep them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from typer.testing import CliRunner

from agent_r1.chat import ChatRenderer
from agent_r1.cli.app import app
from agent_r1.errors import ImageError
from agent_r1.images import FIRST_IMAGE_ID, pictures_in
from agent_r1.inference.terminal import ask_once
from agent_r1.runs import read_trajectories
from agent_r1.tools import BaseTool, FunctionTool, ToolResponse
from agent_r1.types import content_text
from tests.helpers.scripted_agents import scripted_agent
from tests.helpers.seeing import drawn, part, seeing_renderer
from tests.unit.inference.test_terminal import type_lines

DOT = drawn(200)


@pytest.fixture
def dot(tmp_path: Path) -> Path:
    DOT.pil().save(tmp_path / "a dot.png")
    return tmp_path / "a dot.png"


def test_files_are_attached_to_the_next_message_and_saved_with_the_chat(
    monkeypatch: pytest.MonkeyPatch, dot: Path, tmp_path: Path
) -> None:
    agent = scripted_agent(seeing_renderer(), "a dot", "a dot again", "nothing")
    file = tmp_path / "saved" / "chat.jsonl"
    lines = (f"/image '{dot}'", "What is this?", "/retry", "And now?", f"/save {file}")
    shown, chat = type_lines(agent, monkeypatch, *lines)
    assert "40 x 30" in shown
    said = [message["content"] for message in chat.session.messages if message["role"] == "user"]
    assert said == [[part(DOT), {"type": "text", "text": "What is this?"}], "And now?"]
    first, second = read_trajectories(file)
    assert list(pictures_in(first.steps[0].observation.messages or ())) == [DOT]
    assert any(token >= FIRST_IMAGE_ID for token in second.steps[0].prompt_ids)
    assert [path.name for path in (file.parent / "images").iterdir()] == [f"{DOT.content_hash}.png"]


def test_what_is_attached_can_be_taken_back(monkeypatch: pytest.MonkeyPatch, dot: Path) -> None:
    agent = scripted_agent(seeing_renderer(), "hello")
    shown, chat = type_lines(agent, monkeypatch, f"/image '{dot}' '{dot}'", "/image", "hello")
    assert "40 x 30  40 x 30" in shown
    assert "Nothing is attached." in shown
    assert chat.session.messages[0]["content"] == "hello"


@pytest.mark.parametrize("name", ["there_is_none.png", "text.png", "."])
def test_a_file_that_is_no_image_is_named_and_the_chat_continues(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str
) -> None:
    (tmp_path / "text.png").write_text("text")
    agent = scripted_agent(seeing_renderer(), "hello")
    shown, _ = type_lines(agent, monkeypatch, f"/image {tmp_path / name}", "hello")
    assert "the image " in shown
    assert shown.endswith("hello\n")


def test_a_model_that_sees_none_says_so(renderer: ChatRenderer, monkeypatch: pytest.MonkeyPatch, dot: Path) -> None:
    agent = scripted_agent(renderer, "hello")
    shown, chat = type_lines(agent, monkeypatch, f"/image '{dot}'", "What is this?", "hello")
    assert "holds image content, which this model does not see" in shown
    assert shown.endswith("hello\n")
    assert len(chat.session.exchanges) == 1


def test_one_question_may_bring_images(dot: Path, tmp_path: Path) -> None:
    agent = scripted_agent(seeing_renderer(), "a dot")
    trajectory, line = ask_once(agent, question="What is this?", task=None, images=[str(dot)])
    assert list(pictures_in(trajectory.steps[0].observation.messages or ())) == [DOT]
    (tmp_path / "one.jsonl").write_text(line)
    [read] = read_trajectories(tmp_path / "one.jsonl")
    assert read.steps[0].observation == trajectory.steps[0].observation
    with pytest.raises(ImageError, match=r"the image none\.png"):
        ask_once(agent, question="What is this?", task=None, images=["none.png"])


def test_an_image_without_a_question_is_refused_by_the_command() -> None:
    result = CliRunner().invoke(app, ["chat", "model", "--image", "x.png"])
    assert result.exit_code == 2
    assert "--image comes with --question TEXT" in result.output


def test_a_tool_shows_an_image_and_the_chat_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def corner() -> ToolResponse:
        """Zoom."""
        return ToolResponse(text="the corner", images=(Image.new("RGB", (8, 6)),))

    BaseTool.registry.add("corner", FunctionTool(corner), replaceable=True)
    call = '<tool_call>{"name": "corner", "arguments": {}}</tool_call>'
    agent = scripted_agent(seeing_renderer(), call, "black", overrides=["env.tools=[corner]"])
    shown, chat = type_lines(agent, monkeypatch, "What is in the corner?")
    assert "<- corner: the corner\n   [image, 8 x 6]" in shown
    [trajectory] = [exchange.trajectory for exchange in chat.session.exchanges]
    assert any(token >= FIRST_IMAGE_ID for token in trajectory.steps[1].prompt_ids)


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("plain", "plain"),
        (None, ""),
        ([{"type": "text", "text": "a"}, part(DOT)], "a\n[image, 40 x 30]"),
        ([{"type": "image_url", "image_url": {"url": "data:"}}, {"type": "video"}, 3], "[image]\n[video]\n3"),
    ],
)
def test_a_content_for_people_names_what_is_no_text(content: Any, text: str) -> None:
    assert content_text(content) == text
    json.dumps(content_text(content))
