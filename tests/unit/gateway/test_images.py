"""Agents that see behind the gateway: their requests' images are recorded as pictures, and tasks bring theirs."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agent_r1.chat import ChatRenderer
from agent_r1.engines import ScriptedEngine
from agent_r1.gateway.agents import task_for_agent
from agent_r1.gateway.open_rollouts import OpenRollout
from agent_r1.runs import read_trajectories, write_trajectories
from agent_r1.types import Group, StopReason, Trajectory
from agent_r1.web import RefusedError
from tests.helpers.gateway_agents import TASK
from tests.helpers.seeing import drawn, part, seeing_renderer, sent
from tests.helpers.shop import reply
from tests.unit.gateway.test_open_rollouts import ask, run

DOT, OTHER = drawn(200), drawn(90)
TEXT = {"type": "text", "text": "What is this?"}


def test_requests_with_images_are_steps_that_continue_each_other(tmp_path: Path) -> None:
    renderer = seeing_renderer()
    engine = ScriptedEngine([reply(renderer, "a dot"), reply(renderer, "another")], context_length=4096)

    async def agent(rollout: OpenRollout) -> None:
        messages: list[Any] = [{"role": "user", "content": [sent(DOT), TEXT]}]
        [said] = await ask(rollout, messages)
        await ask(rollout, [*messages, said, {"role": "user", "content": [sent(OTHER)]}])

    steps, _ = run(engine, renderer, agent)
    first, second = steps
    assert (first.parent, second.parent) == (-1, 0)
    assert second.prompt_ids[: len(first.prompt_ids)] == first.prompt_ids
    assert first.observation.messages == ({"role": "user", "content": [part(DOT), TEXT]},)
    trajectory = Trajectory(
        task_id="t", group_id=0, member=0, steps=tuple(steps), outcome_reward=1.0, stop_reason=StopReason.DONE
    )
    write_trajectories(tmp_path / "1.jsonl", [Group(task=TASK, group_id=0, trajectories=(trajectory,))], policy_step=0)
    [read] = read_trajectories(tmp_path / "1.jsonl")
    assert [step.observation for step in read.steps] == [step.observation for step in steps]
    assert len(list((tmp_path / "images").iterdir())) == 2


def test_another_picture_begins_a_conversation_of_its_own() -> None:
    renderer = seeing_renderer()
    engine = ScriptedEngine([reply(renderer, "a dot")] * 2, context_length=4096)

    async def agent(rollout: OpenRollout) -> None:
        [said] = await ask(rollout, [{"role": "user", "content": [sent(DOT), TEXT]}])
        changed = {"role": "user", "content": [sent(OTHER), TEXT]}
        await ask(rollout, [changed, said, {"role": "user", "content": "And?"}])

    steps, _ = run(engine, renderer, agent)
    assert [step.parent for step in steps] == [-1, -1]


def test_a_model_that_sees_none_refuses_the_request(renderer: ChatRenderer) -> None:
    async def agent(rollout: OpenRollout) -> None:
        with pytest.raises(RefusedError, match="which this model does not see") as refused:
            await ask(rollout, [{"role": "user", "content": [sent(DOT)]}])
        assert (refused.value.status, refused.value.kind) == (400, "invalid_messages")

    run(ScriptedEngine([]), renderer, agent)


def test_an_agent_gets_the_images_of_its_task_as_data_urls() -> None:
    task = replace(TASK, prompt=({"role": "user", "content": [part(DOT), TEXT]}, {"role": "user", "content": "And?"}))
    seen = task_for_agent(task)["prompt"]
    assert seen == [{"role": "user", "content": [sent(DOT), TEXT]}, {"role": "user", "content": "And?"}]
    assert json.loads(json.dumps(seen)) == seen
