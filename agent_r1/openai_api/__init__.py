"""The OpenAI API: requests and responses as records, and requests answered by an engine. No torch and no server.

    request = read_chat_request(body)                            # ApiError: status, message and field, for a bad body
    model = ChatModel(engine, renderer, name="shop")
    prompt = model.prompt(request)                               # ids; sampled turns keep their ids
    choice = await model.choice(request, prompt, seed=7)         # completion (exact tokens), action, calls, text
    chat_response(head, request, prompt.token_ids, [choice], model.token_texts)    # the JSON object

    async for delta in model.stream_choice(request, prompt, seed=7): chunks.delta(0, delta)    # server-sent events

Messages of a request become those that an environment would have written (`messages_from_openai`). docs/serving.md
lists the fields.
"""

from agent_r1.openai_api.answers import ChatModel, Choice, ChoiceDelta
from agent_r1.openai_api.errors import ApiError, path_error, refusal_body
from agent_r1.openai_api.fields import OF_THE_RUN, read_fields
from agent_r1.openai_api.messages import (
    arguments_from_json,
    messages_from_openai,
    tool_calls_to_openai,
    tools_from_openai,
)
from agent_r1.openai_api.requests import (
    ChatRequest,
    CompletionRequest,
    Sampling,
    ToolChoice,
    read_async,
    read_chat_request,
    read_completion_request,
)
from agent_r1.openai_api.responses import (
    DONE,
    ChatChunks,
    CompletionChunks,
    ResponseHead,
    chat_response,
    completion_response,
    error_event,
    models_response,
)
from agent_r1.openai_api.turn_memory import TurnMemory

__all__ = [
    "DONE",
    "OF_THE_RUN",
    "ApiError",
    "ChatChunks",
    "ChatModel",
    "ChatRequest",
    "Choice",
    "ChoiceDelta",
    "CompletionChunks",
    "CompletionRequest",
    "ResponseHead",
    "Sampling",
    "ToolChoice",
    "TurnMemory",
    "arguments_from_json",
    "chat_response",
    "completion_response",
    "error_event",
    "messages_from_openai",
    "models_response",
    "path_error",
    "read_async",
    "read_chat_request",
    "read_completion_request",
    "read_fields",
    "refusal_body",
    "tool_calls_to_openai",
    "tools_from_openai",
]
