"""`check` finds images that the model does not see, that its template does not show, and that do not fit."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from agent_r1.chat import ChatRenderer, load_renderer
from agent_r1.checks.chat import template_findings
from agent_r1.checks.images import image_findings, tool_image_findings
from agent_r1.types import Observation, Task
from tests.helpers.tiny_vlms import make_tiny_vlm

ZOOM = {"type": "function", "function": {"name": "zoom", "description": "Zoom in.", "parameters": {"type": "object"}}}


def image(width: int = 20, height: int = 20) -> dict[str, Any]:
    return {"type": "image", "image": np.full((height, width, 3), 7, dtype=np.uint8)}


def shown(*contents: Any) -> list[tuple[Task, Observation]]:
    rows = []
    for number, content in enumerate(contents):
        messages = ({"role": "user", "content": content},)
        rows.append((Task(task_id=f"row {number}", prompt=messages), Observation(messages=messages, tools=(ZOOM,))))
    return rows


@pytest.fixture(scope="module")
def seeing(tmp_path_factory: pytest.TempPathFactory) -> ChatRenderer:
    return load_renderer(make_tiny_vlm("qwen2_vl", tmp_path_factory.mktemp("vlm"), weights=False))


def rules(renderer: ChatRenderer, rows: Any, context: int = 2048, max_images: int | None = None) -> list[str]:
    return [finding.rule for finding in image_findings(renderer, rows, context=context, max_images=max_images)]


def test_good_images_and_rows_without_any_are_no_finding(seeing: ChatRenderer, renderer: ChatRenderer) -> None:
    assert rules(seeing, shown([image(), {"type": "text", "text": "What?"}], "Hello")) == []
    assert rules(renderer, shown("Hello <image>")) == []


def test_a_model_of_text_with_images_is_a_finding(renderer: ChatRenderer) -> None:
    [finding] = image_findings(renderer, shown([image()], "Hello"), context=99, max_images=None)
    assert finding.rule == "the model sees images"
    assert "1 of 2 rows have images" in finding.observed
    assert "qwen2_5_vl" in finding.fix


def test_images_beyond_limits_and_context_are_findings(seeing: ChatRenderer, tmp_path: Path) -> None:
    assert rules(seeing, shown([image(), image()]), context=20, max_images=1) == [
        "every image fits the context",
        "no row has more images than allowed",
    ]
    small = load_renderer(make_tiny_vlm("qwen2_vl", tmp_path, weights=False), max_image_tokens=2)
    [finding] = image_findings(small, shown([image()]), context=2048, max_images=None)
    assert finding.rule == "every image is within the limits"
    assert "model.max_image_tokens" in finding.observed


def test_broken_images_are_findings_with_their_row(seeing: ChatRenderer) -> None:
    rows = shown([image()], [{"type": "image", "image": b"broken"}])
    [finding] = image_findings(seeing, rows, context=2048, max_images=None)
    assert "'row 1' (message 0" in finding.observed


def test_a_placeholder_in_the_text_is_a_finding(seeing: ChatRenderer) -> None:
    assert rules(seeing, shown("<image>What is this?")) == ["every placeholder stands for an image"]
    assert rules(seeing, shown([{"type": "text", "text": "<|image_pad|>"}])) == [
        "every placeholder stands for an image"
    ]


def test_a_template_that_hides_images_is_a_finding(seeing: ChatRenderer) -> None:
    blind = copy.copy(seeing.tokenizer)
    blind.chat_template = blind.chat_template.replace("<|vision_start|><|image_pad|><|vision_end|>", "")
    renderer = ChatRenderer(blind, processor=seeing.processor)
    [finding] = image_findings(renderer, shown([image()]), context=2048, max_images=None)
    assert finding.rule == "the template shows every image"
    assert "role 'user'" in finding.observed


def test_a_template_that_hides_images_of_tools_is_a_warning(seeing: ChatRenderer, renderer: ChatRenderer) -> None:
    [(_, observation)] = shown("Hello")
    assert tool_image_findings(seeing, observation) == []
    assert tool_image_findings(renderer, observation) == []
    own = copy.copy(seeing.tokenizer)
    own.chat_template = own.chat_template.replace("{{ parts(message.content) }}</tool_response>", "</tool_response>")
    [finding] = tool_image_findings(ChatRenderer(own, processor=seeing.processor), observation)
    assert finding.severity == "warning"
    assert "role 'tool'" in finding.observed


def test_the_chat_template_is_checked_with_images_in_the_conversation(seeing: ChatRenderer) -> None:
    [(_, observation)] = shown([image(), {"type": "text", "text": "What?"}])
    assert [finding.rule for finding in template_findings(seeing, observation)] == []
