"""One exchange of model and environment: the observation, the action, and the step they make with their token ids."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from agent_r1.types.messages import Message, TokenIds, ToolSchema
from agent_r1.types.own_values import own_values
from agent_r1.types.pickling import quickly_pickled
from agent_r1.types.sequences import common_prefix


@quickly_pickled
@dataclass(frozen=True, kw_only=True, slots=True)
class Observation:
    """The *whole* next model input; exactly one of `messages`, `text`, `token_ids` is given.

    The environment decides it, so history can be appended, cut, summarised or rewritten.
    """

    messages: tuple[Message, ...] | None = None
    """Chat messages, to be rendered with the model's chat template."""
    text: str | None = None
    """A raw prompt. Control tokens in it are ordinary characters; use `token_ids` for real ones."""
    token_ids: TokenIds | None = None
    """The exact prompt."""
    images: tuple[Any, ...] = ()
    """Images that belong to the messages, in any form that `agent_r1.images.read_picture` takes: they fill parts
    `{"type": "image"}` in order, the others are appended to the last message that is not the assistant's. An image may
    also stand in a message itself, as a part `{"type": "image", "image": ...}`."""
    tools: tuple[ToolSchema, ...] = ()
    """Tools the chat template shows to the model."""
    anchor: str | None = None
    """The state's identity, for algorithms that compare steps taken in equal states; None: the whole model input."""
    privileged: str | None = None
    """Facts about this state that are hidden from the model; only a critic may read them."""

    def __post_init__(self) -> None:
        forms = [name for name in ("messages", "text", "token_ids") if getattr(self, name) is not None]
        if len(forms) != 1:
            raise ValueError(
                f"an Observation needs exactly one of messages, text, token_ids; got {forms or 'none of them'}"
            )
        if self.anchor is not None and not isinstance(self.anchor, str):
            raise ValueError(
                f"the anchor of an Observation is text that names the state; got {self.anchor!r:.80} "
                f"({type(self.anchor).__name__}). str(...) of it will do when equal states give equal texts"
            )

    def with_own_values(self, seen: Observation | None = None) -> Observation:
        """The same observation, with messages and tools of its own: environments extend and rewrite those
        that they have returned. The messages that it shares with `seen`, an earlier copy, are the same objects."""
        messages = self.messages
        if messages is not None:
            messages = tuple(messages)
            old = () if seen is None or seen.messages is None else seen.messages
            shared = common_prefix(old, messages)
            messages = (*old[:shared], *map(own_values, messages[shared:]))
        tools = seen.tools if seen is not None and seen.tools == self.tools else own_values(tuple(self.tools))
        return replace(self, messages=messages, tools=tools)


@quickly_pickled
@dataclass(frozen=True, kw_only=True, slots=True)
class ToolCall:
    """One tool call of the model, parsed."""

    name: str
    """The tool's name as the model wrote it (it may not exist)."""
    arguments: Mapping[str, Any]
    """The arguments as the model wrote them (they may not fit the schema)."""
    call_id: str = ""
    """Links the tool's result to the call."""


def turn_call_id(number: int) -> str:
    """The id of a call by its number in its turn: nine letters and digits, which all chat templates take.

    >>> turn_call_id(0)
    'call00000'
    """
    return f"call{number:05d}"


@quickly_pickled
@dataclass(frozen=True, kw_only=True, slots=True)
class Action:
    """What the model did in one step."""

    text: str
    """The whole text of the action, without the end-of-turn token."""
    content: str = ""
    """The text outside tool calls."""
    token_ids: TokenIds = ()
    """The ids exactly as sampled."""
    tool_calls: tuple[ToolCall, ...] = ()
    """Well-formed calls, in order."""
    parse_error: str | None = None
    """What was wrong with the action's form, in words the model can use; None when it was well formed."""
    repairs: tuple[str, ...] = ()
    """One entry per call that was malformed and could be repaired, such as `call 1: trailing comma`."""
    final_answer: str | None = None
    """What the format marks as the answer (`Final Answer:` in ReAct); None: nothing is marked."""
    history_text: str | None = None
    """What a chat history shows of an action without calls; None: `text`. It differs for formats such as harmony, whose
    marks the chat template writes itself."""

    def as_message(self) -> Message:
        """This action as an assistant message in a chat history.

        >>> Action(text="hi", content="hi").as_message()
        {'role': 'assistant', 'content': 'hi'}
        """
        if self.parse_error is not None or not self.tool_calls:
            return {"role": "assistant", "content": self.text if self.history_text is None else self.history_text}
        calls = [
            {
                "id": call.call_id,
                "type": "function",
                "function": {"name": call.name, "arguments": dict(call.arguments)},
            }
            for call in self.tool_calls
        ]
        return {"role": "assistant", "content": self.content, "tool_calls": calls}


@dataclass(frozen=True, kw_only=True, slots=True)
class StepResult:
    """What `AgentEnv.step` returns. It may return a tuple instead: `(observation, reward, done, info)`, or as in
    Gymnasium `(observation, reward, terminated, truncated, info)`."""

    observation: Observation | None
    """The next model input; may be None only when the episode is over."""
    reward: float = 0.0
    """The process reward of this step. It stays on this step."""
    done: bool = False
    """The episode terminated: there is no future after this step."""
    truncated: bool = False
    """The environment truncates the episode here, at a limit of its own. Ignored when `done` is true."""
    info: Mapping[str, Any] = field(default_factory=dict)
    """Notes for the recorder; numbers under `metrics` are summed over the episode and averaged over episodes."""
    answer: str | None = None
    """Where the episode is done: its answer, such as the argument of a call that submits it. None: the text of the last
    action."""


@quickly_pickled
@dataclass(frozen=True, kw_only=True, slots=True)
class Step:
    """One MDP transition with its exact tokens."""

    observation: Observation
    """What the model saw, as the environment gave it."""
    prompt_ids: TokenIds
    """What the model saw, as token ids."""
    action: Action
    """What the model did, parsed."""
    action_ids: TokenIds
    """What the model did, as sampled: the only ids that are trained on."""
    rollout_logprobs: tuple[float, ...]
    """The engine's log-probability of each action id."""
    reward: float
    """The process reward of this step (the outcome reward is on the trajectory)."""
    done: bool
    """The environment terminated the episode here."""
    policy_versions: tuple[int, ...]
    """Of each action id: the version of the weights that sampled it."""
    info: Mapping[str, Any] = field(default_factory=dict)
    """What the environment said about the step."""
    timings: Mapping[str, float] = field(default_factory=dict)
    """Seconds spent in `generate` and `env`; `wait`: between the step before, or the beginning of the episode, and the
    call; `reward`, on the last step of a scored episode: in the reward function."""
    parent: int | None = None
    """In an episode that branches: the index of the step whose conversation this one continues, -1 for none (a
    conversation of its own). None: the step before it."""

    def __post_init__(self) -> None:
        for name, values in (("log-probs", self.rollout_logprobs), ("policy versions", self.policy_versions)):
            if len(values) != len(self.action_ids):
                raise ValueError(
                    f"a Step has {len(self.action_ids)} action ids but {len(values)} {name}; "
                    "each sampled id needs its own"
                )
