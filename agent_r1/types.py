"""The records that walk through the house.

A dataset row becomes a `Task`. An environment shows the model an `Observation`, the model answers with an `Action`, and
the two together with the exact token ids are one `Step` of a Markov decision process. A flow returns an `Episode`
(steps and why it stopped); scoring it gives a `Trajectory`.

    row -> Task -> [Observation -> Action -> StepResult] * n -> Episode -> Trajectory

All records are frozen and keyword-only. Nothing here imports more than the standard library, so environments and tools
can be written and tested without torch.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Literal

TokenIds = tuple[int, ...]

Message = Mapping[str, Any]
"""A chat message in OpenAI form: `role`, `content`, and for tool use `tool_calls`, `tool_call_id`, `name`."""

ToolSchema = Mapping[str, Any]
"""A tool in OpenAI form: `{"type": "function", "function": {"name", "description", "parameters"}}`."""

TEXT_ARGUMENT = "input"
"""The argument that plain text is, in formats where a call may have it instead of names and values."""

_MEDIA = {
    f"{before}{kind}{after}": kind
    for kind in ("image", "video", "audio")
    for before in ("", "input_")
    for after in ("", "s", "_url")
}
"""The types and keys of content parts and messages that hold what is not text, and what kind that is."""

FinishReason = Literal["stop", "length"]


class StopReason(StrEnum):
    """Why an episode ended."""

    DONE = "done"
    """The environment said so: the episode terminated."""
    MAX_STEPS = "max_steps"
    """The limit on steps was reached."""
    MAX_TOKENS = "max_tokens"
    """The last action was cut by the token limit and the flow does not go on."""
    CONTEXT_FULL = "context_full"
    """The next prompt no longer fits the model's context."""
    TIMEOUT = "timeout"
    """The episode's deadline passed."""
    ENV_ERROR = "env_error"
    """`reset` or `step` of the environment raised."""
    TOOL_ERROR = "tool_error"
    """The machinery that runs tools broke (a tool that raises is not this: the model reads its error)."""
    ENGINE_ERROR = "engine_error"
    """The engine could not answer."""
    REWARD_ERROR = "reward_error"
    """A reward function raised or returned something that is not a finite number."""
    FLOW_ERROR = "flow_error"
    """The flow's own code raised."""

    @property
    def is_truncation(self) -> bool:
        """The episode was cut: its last state has a future, so a critic's value may stand for it."""
        return self in _TRUNCATIONS

    @property
    def is_failure(self) -> bool:
        """The episode says nothing about the policy: it is retried, and never counted as a zero reward."""
        return self is not StopReason.DONE and not self.is_truncation


_TRUNCATIONS = frozenset({StopReason.MAX_STEPS, StopReason.MAX_TOKENS, StopReason.CONTEXT_FULL})


def media_in(messages: Iterable[Any]) -> list[str]:
    """The kinds of content in messages that are not text: of image, video, audio those there are.

    >>> media_in([{"role": "user", "content": [{"type": "image_url", "image_url": {}}, {"type": "text", "text": "?"}]}])
    ['image']
    """
    found: set[str] = set()
    for message in messages:
        if not isinstance(message, Mapping):
            continue
        content = message.get("content")
        parts = [part for part in content if isinstance(part, Mapping)] if isinstance(content, list | tuple) else []
        names = [str(part.get("type")) for part in parts]
        names += [str(key) for holder in (message, *parts) for key, value in holder.items() if value is not None]
        found.update(_MEDIA[name] for name in names if name in _MEDIA)
    return [kind for kind in ("image", "video", "audio") if kind in found]


@dataclass(frozen=True, kw_only=True, slots=True)
class Task:
    """One dataset row."""

    task_id: str
    """Unique in its data file; names the group of rollouts made from it."""
    prompt: tuple[Message, ...]
    """The chat messages the episode begins with."""
    agent_name: str = "env_loop"
    """The flow that runs it: a registered name or `module:attribute`."""
    reward_model: Mapping[str, Any] = field(default_factory=dict)
    """`{"style": ..., "ground_truth": ...}`: what the reward function needs. Tools never see it."""
    env_kwargs: Mapping[str, Any] = field(default_factory=dict)
    """What the environment and its tools need for this row."""
    data_source: str = "default"
    """Evaluation figures are given per data source."""
    extra_info: Mapping[str, Any] = field(default_factory=dict)
    """Anything else from the row; never read by the library."""
    control_tokens: bool = False
    """Control tokens in `prompt` count: the model sees the tokens. By default their characters are ordinary text."""

    @property
    def trusted(self) -> tuple[Message, ...]:
        """The messages in which control tokens count: the row's own, when the row says so."""
        return self.prompt if self.control_tokens else ()

    @property
    def ground_truth(self) -> Any:
        """`reward_model["ground_truth"]`, or None when the row has none."""
        return self.reward_model.get("ground_truth")


@dataclass(frozen=True, kw_only=True, slots=True)
class Observation:
    """The *whole* next model input; exactly one of `messages`, `text`, `token_ids` is given.

    The environment decides it, so history can be appended, cut, summarised or rewritten.
    """

    messages: tuple[Message, ...] | None = None
    """Chat messages, to be rendered with the model's chat template."""
    text: str | None = None
    """A raw prompt. Control tokens in it are ordinary characters: give `token_ids` where they must count."""
    token_ids: TokenIds | None = None
    """The exact prompt."""
    images: tuple[Any, ...] = ()
    """Images referred to by the messages. No engine reads images yet: a prompt with any is refused."""
    tools: tuple[ToolSchema, ...] = ()
    """Tools the chat template shows to the model."""
    anchor: str | None = None
    """Which state this is, for algorithms that compare steps taken in equal states; None: all that the model sees."""
    privileged: str | None = None
    """What is true of this state and hidden from the model: only a critic may read it."""

    def __post_init__(self) -> None:
        given = [name for name in ("messages", "text", "token_ids") if getattr(self, name) is not None]
        if len(given) != 1:
            raise ValueError(
                f"an Observation needs exactly one of messages, text, token_ids; got {given or 'none of them'}"
            )


@dataclass(frozen=True, kw_only=True, slots=True)
class ToolCall:
    """One call the model asked for, already parsed."""

    name: str
    """The tool's name as the model wrote it (it may not exist)."""
    arguments: Mapping[str, Any]
    """The arguments as the model wrote them (they may not fit the schema)."""
    call_id: str = ""
    """Ties the tool's answer to the call."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Action:
    """What the model did in one step."""

    text: str
    """All the text of the action, without the end-of-turn token."""
    content: str = ""
    """The text outside tool calls."""
    token_ids: TokenIds = ()
    """The ids exactly as sampled."""
    tool_calls: tuple[ToolCall, ...] = ()
    """Well-formed calls, in order."""
    parse_error: str | None = None
    """What was wrong with the action's form, in words the model can use; None when it was well formed."""
    repairs: tuple[str, ...] = ()
    """One entry for each call that was not quite well formed and was mended, such as `call 1: trailing comma`."""
    final_answer: str | None = None
    """What the format marks as the answer (`Final Answer:` in ReAct); None: it marks none."""
    history_text: str | None = None
    """What stands in a chat history for an action without calls, where its text cannot: chat templates write the marks
    of some formats (harmony) themselves. None: the text does."""

    def as_message(self) -> Message:
        """The assistant message this action is in a chat history.

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
    """The environment cuts the episode here although it could go on, at a limit of its own; `done` counts more."""
    info: Mapping[str, Any] = field(default_factory=dict)
    """Notes for the recorder; numbers under `metrics` are summed over the episode and averaged over episodes."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SamplingParams:
    """How an engine draws one completion."""

    max_tokens: int = 256
    """At most this many tokens."""
    temperature: float = 1.0
    """0 is greedy. Log-probs are those of softmax(logits / temperature) (temperature 1 when greedy)."""
    top_p: float = 1.0
    """Keep the smallest set of tokens whose probability reaches this."""
    top_k: int = 0
    """Keep this many most likely tokens; 0 keeps all."""
    stop: TokenIds = ()
    """Any of these ids ends the completion; the stop id is part of it."""
    seed: int = 0
    """The same seed, prompt and weights give the same tokens."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Completion:
    """What an engine returns for one request."""

    token_ids: TokenIds
    """The sampled ids, including the stop id when one was sampled."""
    logprobs: tuple[float, ...]
    """The engine's log-probability of each sampled id."""
    finish_reason: FinishReason
    """`stop`: a stop id was sampled. `length`: `max_tokens` was reached."""
    policy_versions: tuple[int, ...]
    """Of each sampled id: the version of the weights it was sampled with. They rise where weights came in between."""


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
    """What the model did, as sampled: the only ids that carry loss."""
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
    """Seconds spent in `generate` and `env`."""

    def __post_init__(self) -> None:
        for name, given in (("log-probs", self.rollout_logprobs), ("policy versions", self.policy_versions)):
            if len(given) != len(self.action_ids):
                raise ValueError(
                    f"a Step has {len(self.action_ids)} action ids but {len(given)} {name}; "
                    "each sampled id needs its own"
                )


@dataclass(frozen=True, kw_only=True, slots=True)
class Episode:
    """What a flow returns: the steps of one rollout and why it stopped. Reward functions read this."""

    steps: tuple[Step, ...]
    """In order."""
    stop_reason: StopReason
    """Why it ended."""
    next_prompt_ids: TokenIds | None = None
    """For truncated episodes: the prompt after the last step, whose value a critic bootstraps from."""
    next_privileged: str | None = None
    """What is hidden from the model in that state."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    """Numbers to be averaged over episodes, for example `tool/price/calls`."""

    @property
    def final_text(self) -> str:
        """The text of the last action whatever it is: a sentence that was cut, a tool call, an answer (only the answer
        where the format marks one); "" if there was no action. Rewards should read `answer`."""
        if not self.steps:
            return ""
        action = self.steps[-1].action
        return action.text if action.final_answer is None else action.final_answer

    @property
    def answer(self) -> str:
        """`final_text` where it is an answer, the text of a finished last turn: "" when the episode was cut, or its
        last action calls a tool, is malformed or was cut by the token limit. A right number in a call, or in a sentence
        that was never ended, is not an answer."""
        if not self.steps or self.stop_reason is not StopReason.DONE:
            return ""
        action = self.steps[-1].action
        return "" if action.tool_calls or action.parse_error is not None else self.final_text

    @property
    def num_tool_calls(self) -> int:
        """Well-formed tool calls over all steps."""
        return sum(len(step.action.tool_calls) for step in self.steps)


@dataclass(frozen=True, kw_only=True, slots=True)
class FailedAttempt:
    """An attempt at a rollout that broke before another one was made: kept, so that no failure is only a number."""

    stop_reason: StopReason
    """What broke."""
    error: str
    """Its traceback."""
    num_steps: int = 0
    """Steps that were taken before."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    """What these steps counted; in no average."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Trajectory:
    """A scored rollout of one member of a group."""

    task_id: str
    """The row it came from."""
    group_id: int
    """The group: all rollouts of one task in one batch. No other group of the batch has its number."""
    member: int
    """Which rollout of the group; -1 is the greedy one."""
    steps: tuple[Step, ...]
    """In order."""
    outcome_reward: float
    """The reward of the whole episode, given once, at its end. 0 when the rollout failed (see `is_failure`)."""
    stop_reason: StopReason
    """Why it ended."""
    data_source: str = "default"
    """The row's data source."""
    reward_parts: Mapping[str, float] = field(default_factory=dict)
    """What the reward function reported beside the score."""
    answer: str = ""
    """What a majority vote counts: the reward function's `answer`, else that of the episode; "" is no vote."""
    next_prompt_ids: TokenIds | None = None
    """For truncated episodes: the prompt after the last step."""
    next_privileged: str | None = None
    """What is hidden from the model in that state."""
    error: str | None = None
    """The traceback of a failed rollout."""
    num_retries: int = 0
    """Failed attempts before this one."""
    failed_attempts: tuple[FailedAttempt, ...] = ()
    """What broke in each of them."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    """Numbers to be averaged over episodes."""

    @property
    def is_failure(self) -> bool:
        """A failed rollout is left out of baselines, loss and averages."""
        return self.stop_reason.is_failure

    @property
    def process_reward(self) -> float:
        """The sum of the steps' own rewards."""
        return sum(step.reward for step in self.steps)

    @property
    def num_tool_calls(self) -> int:
        """Well-formed tool calls over all steps."""
        return sum(len(step.action.tool_calls) for step in self.steps)

    @property
    def num_action_tokens(self) -> int:
        """Sampled tokens over all steps."""
        return sum(len(step.action_ids) for step in self.steps)

    @property
    def success(self) -> float:
        """`reward_parts["success"]` when the reward function reports it, else 1 for an outcome reward of 1 or more."""
        return float(self.reward_parts.get("success", self.outcome_reward >= 1.0))


@dataclass(frozen=True, kw_only=True, slots=True)
class Group:
    """The rollouts of one task in one batch."""

    task: Task
    """The row."""
    group_id: int
    """Its place in the batch; where batches overlap, in the run."""
    trajectories: tuple[Trajectory, ...]
    """Its members, failed ones included."""
    greedy: Trajectory | None = None
    """A rollout at temperature 0, for algorithms that compare with it. Not a member."""
    dropped: bool = False
    """Too few members finished: the others would be compared with too little. Nothing is learned from it."""

    def __iter__(self) -> Iterator[Trajectory]:
        return iter(self.trajectories)

    @property
    def valid(self) -> tuple[Trajectory, ...]:
        """The members that did not fail."""
        return tuple(t for t in self.trajectories if not t.is_failure)

    @property
    def learnable(self) -> tuple[Trajectory, ...]:
        """The valid members that did anything; none of a dropped group."""
        return () if self.dropped else tuple(t for t in self.valid if t.steps)
