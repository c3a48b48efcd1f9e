"""Requests answered by an engine and a renderer: prompts, sampled choices, and choices as they are sampled.

Gateway and server have this in common; neither a network nor a model is needed to use it:

    model = ChatModel(engine, renderer, name="shop")
    request = read_chat_request(body)
    prompt = model.prompt(request)
    choice = await model.choice(request, prompt, seed=7, index=0)   # choice.completion has the exact tokens
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, replace

from agent_r1.chat import ChatRenderer, ContentStream, Prompt, TokenTexts, content_stream
from agent_r1.engines import Engine
from agent_r1.errors import ChatTemplateError, ImageError, UnsupportedMediaError
from agent_r1.openai_api.errors import ApiError
from agent_r1.openai_api.requests import ChatRequest, CompletionRequest, Sampling
from agent_r1.openai_api.sampled_text import SampledText, sample_text, sample_whole_text
from agent_r1.openai_api.turn_memory import TurnMemory
from agent_r1.seeds import mix_seed
from agent_r1.types import Action, Completion, Observation, SamplingParams, TokenIds, ToolCall

_MAX_ATTEMPTS = 3
"""Completions sampled until one has the tool call that the client requires."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Choice:
    """One finished completion."""

    index: int
    completion: Completion
    """The sampled tokens, without those after the model's own turn."""
    text: str
    """The content of the message, or the text of a plain completion."""
    action: Action | None = None
    """The completion, parsed; None for a plain completion."""
    tool_calls: tuple[ToolCall, ...] = ()
    """The calls that the client gets."""
    stop_text: str | None = None
    """The stop text that ended it. The completion's tokens contain it, the text does not."""

    @property
    def finish_reason(self) -> str:
        """`tool_calls`, `stop` or `length`."""
        return "tool_calls" if self.tool_calls else self.completion.finish_reason


@dataclass(frozen=True, kw_only=True, slots=True)
class ChoiceDelta:
    """What a choice has gained since the last delta."""

    text: str
    token_ids: TokenIds
    logprobs: tuple[float, ...]
    choice: Choice | None = None
    """The finished choice, in the last delta only."""


class ChatModel:
    """A policy behind the API: an engine, and the renderer of its chat template."""

    def __init__(
        self,
        engine: Engine,
        renderer: ChatRenderer,
        *,
        name: str,
        max_tokens: int | None = None,
        max_prompt_tokens: int | None = None,
    ) -> None:
        """`max_tokens` and `max_prompt_tokens` limit every request; by default only the context does."""
        self.engine = engine
        self.renderer = renderer
        self.name = name
        self.token_texts = TokenTexts(renderer.tokenizer)
        self.memory = TurnMemory(renderer)
        self._max_tokens = max_tokens
        self._max_prompt_tokens = max_prompt_tokens

    def prompt(self, request: ChatRequest) -> Prompt:
        """The prompt of a conversation. Turns that this model sampled keep their exact ids, as in training."""
        observation = Observation(messages=request.messages, tools=request.offered_tools)
        try:
            prompt = self.memory.prompt(observation)
        except (ChatTemplateError, ImageError, UnsupportedMediaError) as error:
            raise ApiError(str(error)[:1000], param="messages") from None
        self._check_prompt(len(prompt.token_ids), "messages")
        return prompt

    def prompt_ids(self, prompt: str | TokenIds) -> TokenIds:
        """The ids of a plain prompt. Control tokens in text are ordinary characters."""
        ids = self.renderer.encode(prompt) if isinstance(prompt, str) else prompt
        if not ids:
            raise ApiError("prompt is empty; give at least one token", param="prompt")
        self._check_prompt(len(ids), "prompt")
        return ids

    def _check_prompt(self, num_tokens: int, field: str) -> None:
        limit, name = self.engine.context_length - 1, "one less than the context"
        if self._max_prompt_tokens is not None and self._max_prompt_tokens < limit:
            limit, name = self._max_prompt_tokens, "the limit of this server"
        if num_tokens > limit:
            raise ApiError(
                f"the prompt has {num_tokens} tokens; at most {limit} fit ({name})",
                param=field,
                code="context_length_exceeded",
            )

    def sampling_params(self, sampling: Sampling, prompt_ids: TokenIds, *, seed: int, index: int) -> SamplingParams:
        """What the engine gets. A completion is also limited by what is left of the context."""
        limit = self.engine.context_length if self._max_tokens is None else self._max_tokens
        if sampling.max_tokens is not None and sampling.max_tokens > limit:
            raise ApiError(
                f"max_tokens is {sampling.max_tokens}; this server samples at most {limit} per completion",
                param="max_tokens",
            )
        room = min(sampling.max_tokens or limit, self.engine.context_length - len(prompt_ids))
        return sampling.params(max_tokens=room, stop_ids=self.renderer.stop_ids, seed=seed, index=index)

    async def choice(self, request: ChatRequest, prompt: Prompt, *, seed: int, index: int = 0) -> Choice:
        """One choice of a request, sampled to its end."""
        params = self.sampling_params(request.sampling, prompt.token_ids, seed=seed, index=index)
        required = request.tool_choice.mode == "required"
        attempts = _MAX_ATTEMPTS if required and params.temperature > 0 else 1
        for attempt in range(attempts):
            attempt_params = params if not attempt else replace(params, seed=mix_seed(params.seed, attempt))
            choice = await self._one_choice(request, prompt, attempt_params, index)
            if not required or _is_required_call(choice, request):
                return choice
        requirement = f"a call of {request.tool_choice.name}" if request.tool_choice.name else "a tool call"
        raise ApiError(
            f"the model wrote {requirement} in none of {attempts} completions, but tool_choice requires it",
            status=422,
            param="tool_choice",
            code="tool_choice_not_met",
        )

    async def _one_choice(self, request: ChatRequest, prompt: Prompt, params: SamplingParams, index: int) -> Choice:
        if request.sampling.stop:
            async for delta in self._sample_chat(request, prompt, params, index):
                if delta.choice is not None:
                    return delta.choice
        sampled = await sample_whole_text(self.engine, self.renderer, prompt.token_ids, params)
        return self._make_choice(request, prompt, sampled, index)

    async def stream_choice(
        self, request: ChatRequest, prompt: Prompt, *, seed: int, index: int = 0
    ) -> AsyncGenerator[ChoiceDelta, None]:
        """One choice as it is sampled. A required tool call is checked first, so it comes as one delta."""
        if request.tool_choice.mode == "required":
            choice = await self.choice(request, prompt, seed=seed, index=index)
            sampled = choice.completion
            yield ChoiceDelta(text=choice.text, token_ids=sampled.token_ids, logprobs=sampled.logprobs, choice=choice)
            return
        params = self.sampling_params(request.sampling, prompt.token_ids, seed=seed, index=index)
        async with aclosing(self._sample_chat(request, prompt, params, index)) as deltas:
            async for delta in deltas:
                yield delta

    async def _sample_chat(
        self, request: ChatRequest, prompt: Prompt, params: SamplingParams, index: int
    ) -> AsyncGenerator[ChoiceDelta, None]:
        stop = request.sampling.stop
        content = content_stream(self.renderer, has_tools=bool(request.offered_tools), stop=stop)
        async with aclosing(sample_text(self.engine, self.renderer, prompt.token_ids, params, stop)) as sampled:
            async for new in sampled:
                choice = None if new.end is None else self._make_choice(request, prompt, new.end, index)
                text = content.push(new.text) if choice is None else content.rest(choice.text)
                yield ChoiceDelta(text=text, token_ids=new.token_ids, logprobs=new.logprobs, choice=choice)

    def _make_choice(self, request: ChatRequest, prompt: Prompt, end: SampledText, index: int) -> Choice:
        """The choice of a completion; the turn is remembered for the request that continues it."""
        has_tools, is_whole = bool(request.offered_tools), end.stop_text is None
        turn = self.renderer.own_turn(end.completion) if has_tools and is_whole else end.completion
        truncated = turn.finish_reason == "length"
        action = self.renderer.parse(turn.token_ids, truncated=truncated, text=None if is_whole else end.text)
        calls = action.tool_calls if has_tools and action.parse_error is None else ()
        if is_whole:
            self.memory.remember(prompt, action)
        content = action.content if calls else action.text if action.history_text is None else action.history_text
        return Choice(
            index=index,
            completion=turn,
            text=content,
            action=action,
            tool_calls=calls if request.parallel_tool_calls else calls[:1],
            stop_text=end.stop_text,
        )

    async def completion(
        self, request: CompletionRequest, prompt_ids: TokenIds, *, seed: int, index: int = 0
    ) -> Choice:
        """One plain completion, sampled to its end. `index` counts the choices of all prompts: choice `k` of every
        prompt has the same seed."""
        if request.sampling.stop:
            async for delta in self.stream_text(request, prompt_ids, seed=seed, index=index):
                if delta.choice is not None:
                    return delta.choice
        params = self.sampling_params(request.sampling, prompt_ids, seed=seed, index=index % request.n)
        sampled = await sample_whole_text(self.engine, self.renderer, prompt_ids, params)
        return Choice(index=index, completion=sampled.completion, text=sampled.text)

    async def stream_text(
        self, request: CompletionRequest, prompt_ids: TokenIds, *, seed: int, index: int = 0
    ) -> AsyncGenerator[ChoiceDelta, None]:
        """One plain completion as it is sampled."""
        stop = request.sampling.stop
        params = self.sampling_params(request.sampling, prompt_ids, seed=seed, index=index % request.n)
        content = ContentStream(stop=stop)
        async with aclosing(sample_text(self.engine, self.renderer, prompt_ids, params, stop)) as sampled:
            async for new in sampled:
                end = new.end
                choice = None
                if end is not None:
                    choice = Choice(index=index, completion=end.completion, text=end.text, stop_text=end.stop_text)
                text = content.push(new.text) if choice is None else content.rest(choice.text)
                yield ChoiceDelta(text=text, token_ids=new.token_ids, logprobs=new.logprobs, choice=choice)


def _is_required_call(choice: Choice, request: ChatRequest) -> bool:
    names = {tool["function"]["name"] for tool in request.offered_tools}
    return bool(choice.tool_calls) and all(call.name in names for call in choice.tool_calls)
