"""`try_flow`: runs one episode of a flow with scripted replies, without a model.

episode = try_flow(SecondLook, task, ["4", "no", "9"])
assert [step.action.text for step in episode.steps] == ["4", "no", "9"]
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from agent_r1.chat import ChatRenderer
from agent_r1.engines import ScriptedEngine
from agent_r1.envs import AgentEnv
from agent_r1.errors import ConfigError
from agent_r1.event_loop import callable_in_event_loop, run_cancelling
from agent_r1.flows.base import AgentFlowBase, FlowContext
from agent_r1.flows.ended import checked_episode
from agent_r1.types import Episode, SamplingParams, Task

_END = "\x03"


class _PlainTokenizer:
    """A tokenizer for tests: one token per character, turns end with \\x03, the chat template is `role: content`."""

    eos_token_id = ord(_END)
    chat_template = "role: content"

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        return [ord(character) for character in text]

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool) -> str:
        return "".join(map(chr, token_ids))

    def apply_chat_template(self, conversation: Any, **kwargs: Any) -> str:
        turns = [f"{message['role']}: {message['content']}{_END}\n" for message in conversation]
        return "".join(turns) + ("assistant: " if kwargs["add_generation_prompt"] else "")


@callable_in_event_loop
def try_flow(
    flow: type[AgentFlowBase],
    task: Task,
    replies: Sequence[str],
    *,
    make_env: Callable[[Task], AgentEnv] | None = None,
    max_steps: int = 8,
) -> Episode:
    """The episode of `flow` on `task` when the model's replies are `replies`, in order.

    Exceptions of the flow are raised unchanged. Tool calls are written as `<tool_call>{"name": ...}</tool_call>`.
    """
    if not (isinstance(flow, type) and issubclass(flow, AgentFlowBase)):
        raise ConfigError(f"flow must be a subclass of AgentFlowBase, found {flow!r:.80}")
    if not isinstance(task, Task):
        raise ConfigError(f"task must be a Task, found {task!r:.80}")
    if isinstance(replies, str) or not all(isinstance(reply, str) for reply in replies):
        raise ConfigError(f"replies must be a list of texts, found {replies!r:.80}")
    engine = ScriptedEngine([[*map(ord, reply), ord(_END)] for reply in replies], context_length=1_000_000)
    context = FlowContext(
        engine=engine,
        renderer=ChatRenderer(_PlainTokenizer()),
        sampling=SamplingParams(max_tokens=100_000),
        make_env=make_env,
        max_steps=max_steps,
        trusted=task.trusted,
    )
    instance = flow(context)
    episode = checked_episode(instance, run_cancelling(lambda: instance.run(task)))
    if len(engine.requests) < len(replies):
        raise ConfigError(
            f"{flow.__name__} ended after {len(engine.requests)} calls of the model; "
            f"of the {len(replies)} replies {replies[len(engine.requests) :]} were never asked for"
        )
    return episode
