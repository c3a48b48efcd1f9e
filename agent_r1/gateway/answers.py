"""The calls of a request, and the response that its client gets."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

from agent_r1.chat import TokenTexts
from agent_r1.gateway.history import RecordedCall
from agent_r1.gateway.open_rollouts import OpenRollout, SamplingRequest
from agent_r1.openai_api import (
    DONE,
    ApiError,
    ChatChunks,
    ChatRequest,
    Choice,
    ChoiceDelta,
    CompletionChunks,
    CompletionRequest,
    ResponseHead,
    chat_response,
    completion_response,
)
from agent_r1.types import TokenIds


class _Answer:
    """What both kinds of request share: the calls that answer it."""

    def __init__(self) -> None:
        self.calls: Sequence[RecordedCall] = ()
        self._texts: TokenTexts | None = None

    @property
    def _prompt_ids(self) -> TokenIds:
        return self.calls[0].turn.prompt.token_ids

    @property
    def _used_texts(self) -> TokenTexts:
        assert self._texts is not None
        return self._texts


class ChatAnswer(_Answer):
    """Answers one request to `/chat/completions`."""

    def __init__(self, request: ChatRequest, model: str) -> None:
        super().__init__()
        self._request = request
        self._head = ResponseHead(kind="chat.completion", model=model)

    async def sample(self, rollout: OpenRollout) -> None:
        """Call the model and record the steps."""
        request = self._request
        if request.logprobs or request.return_token_ids:
            rollout.check_offers_tokens("logprobs" if request.logprobs else "token ids (return_token_ids)")
        sampling = SamplingRequest(
            n=request.n,
            max_tokens=request.sampling.max_tokens,
            stop=request.sampling.stop,
            with_calls=bool(request.offered_tools),
            one_call=not request.parallel_tool_calls,
        )
        self.calls = await rollout.chat(request.messages, request.offered_tools, sampling)
        self._texts = rollout.token_texts
        rollout.remember_response(str(self._head.fields()["id"]), self.calls)

    def response(self) -> dict[str, object]:
        """The whole response."""
        return chat_response(self._head, self._request, self._prompt_ids, _choices(self.calls), self._used_texts)

    async def events(self) -> AsyncIterator[bytes]:
        """The response as a stream. It has been sampled to its end, so that it is one step or none."""
        chunks = ChatChunks(self._head, self._request, self._prompt_ids, self._used_texts)
        for choice in _choices(self.calls):
            yield chunks.first(choice.index)
            for delta in _deltas(choice):
                yield chunks.delta(choice.index, delta)
        yield chunks.usage(call.turn.completion for call in self.calls)
        yield DONE


class TextAnswer(_Answer):
    """Answers one request to `/completions`."""

    def __init__(self, request: CompletionRequest, model: str) -> None:
        super().__init__()
        if len(request.prompts) != 1:
            raise ApiError(f"prompt has {len(request.prompts)} entries; send one prompt per request", param="prompt")
        self._request = request
        self._head = ResponseHead(kind="text_completion", model=model)
        self._echoed = ""

    async def sample(self, rollout: OpenRollout) -> None:
        """Call the model and record the steps."""
        request = self._request
        sampling = SamplingRequest(
            n=request.n, max_tokens=request.sampling.max_tokens, stop=request.sampling.stop, with_calls=False
        )
        [prompt] = request.prompts
        self.calls = await rollout.complete(prompt, sampling)
        self._texts = rollout.token_texts
        if request.echo:
            self._echoed = prompt if isinstance(prompt, str) else rollout.text_of(prompt)
        rollout.remember_response(str(self._head.fields()["id"]), self.calls)

    def response(self) -> dict[str, object]:
        """The whole response."""
        return completion_response(
            self._head, self._request, [self._prompt_ids], [self._echoed], _choices(self.calls), self._used_texts
        )

    async def events(self) -> AsyncIterator[bytes]:
        """The response as a stream."""
        chunks = CompletionChunks(self._head, self._request, [self._prompt_ids], self._used_texts)
        for choice in _choices(self.calls):
            yield chunks.first(choice.index, self._echoed)
            for delta in _deltas(choice):
                yield chunks.delta(choice.index, delta)
        yield chunks.usage(call.turn.completion for call in self.calls)
        yield DONE


def _choices(calls: Sequence[RecordedCall]) -> list[Choice]:
    choices = []
    for index, call in enumerate(calls):
        action = call.turn.action
        calls_of_tools = () if action.parse_error is not None else action.tool_calls
        content = action.as_message()["content"]
        choices.append(
            Choice(
                index=index,
                completion=call.turn.completion,
                text=content,
                action=action,
                tool_calls=calls_of_tools,
            )
        )
    return choices


def _deltas(choice: Choice) -> list[ChoiceDelta]:
    """A finished choice in two parts, as clients of streams expect them: the content, then the end."""
    sampled = choice.completion
    content = ChoiceDelta(text=choice.text, token_ids=sampled.token_ids, logprobs=sampled.logprobs)
    return [content, ChoiceDelta(text="", token_ids=(), logprobs=(), choice=choice)]
