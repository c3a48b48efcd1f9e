"""The HTTP server of the gateway (extra `serve`). Each rollout has a base URL of its own, `/<token>/v1`:

    POST /<token>/v1/chat/completions   as OpenAI's: messages, tools, n, stream, stop, max_tokens, logprobs
    POST /<token>/v1/completions        a raw prompt: text or token ids
    GET  /<token>/v1/models             and /models/NAME, for any name: requests may name any model
    POST /<token>/v1/reward             {"reward": 1.0}, with "step" or the "id" of a response for a step's reward
    POST /<token>/v1/finish             {"answer": "12"} or {"error": "..."}: the end of a remote program's rollout
    POST /rollouts                      {"wait_seconds": 30}: a task and its base URL, for agent.remote=true; status 204
                                        when none came, 410 when the run is over
    GET  /health

Temperature, top_p, top_k and seed of a request are ignored: the policy is trained at the temperature it is sampled at,
which is the run's. So are penalties, `response_format` and the other fields of `OF_THE_RUN`. `tool_choice` decides
which tools the model sees; a required call is not enforced. Errors have OpenAI's shape. Status 410: the rollout has
ended. 404: there is no such rollout.
"""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from agent_r1.codec import write_json
from agent_r1.errors import EpisodeError, MissingExtraError
from agent_r1.gateway.agents import RemoteAgents
from agent_r1.gateway.answers import ChatAnswer, TextAnswer
from agent_r1.gateway.open_rollouts import OpenRollout
from agent_r1.openai_api import (
    OF_THE_RUN,
    ApiError,
    models_response,
    path_error,
    read_async,
    read_chat_request,
    read_completion_request,
    refusal_body,
)
from agent_r1.types import StopReason
from agent_r1.web import (
    CLIENT_DISCONNECTED,
    Access,
    AccessControl,
    RefusedError,
    has_disconnected,
    read_body,
    read_object,
    while_connected,
)

try:
    from starlette.applications import Starlette
    from starlette.exceptions import HTTPException
    from starlette.requests import ClientDisconnect, Request
    from starlette.responses import Response, StreamingResponse
    from starlette.routing import Route
except ImportError as missing:
    raise MissingExtraError(str(missing.name), "serve", "the flow 'gateway'") from missing

if TYPE_CHECKING:
    from agent_r1.gateway.service import Gateway

MODEL_NAME = "policy"
MAX_BODY_BYTES = 16 << 20
BODY_SECONDS = 60.0
MAX_WAIT_SECONDS = 300.0

Handler = Callable[[Request], Awaitable[Response]]
_read_chat = partial(read_chat_request, ignored=OF_THE_RUN)


def create_app(gateway: Gateway, access: Access) -> Starlette:
    """The web application of a gateway."""
    routes = _Routes(gateway)
    app = Starlette(
        routes=[
            Route("/{token}/v1/chat/completions", _answering(routes.chat), methods=["POST"]),
            Route("/{token}/v1/completions", _answering(routes.complete), methods=["POST"]),
            Route("/{token}/v1/models", _answering(routes.models), methods=["GET"]),
            Route("/{token}/v1/models/{name:path}", _answering(routes.one_model), methods=["GET"]),
            Route("/{token}/v1/reward", _answering(routes.reward), methods=["POST"]),
            Route("/{token}/v1/finish", _answering(routes.finish), methods=["POST"]),
            Route("/rollouts", _answering(routes.claim), methods=["POST"]),
            Route("/health", _answering(routes.health), methods=["GET"]),
        ],
        exception_handlers={HTTPException: _refuse_path},
    )
    app.router.redirect_slashes = False
    app.add_middleware(AccessControl, access=access, body=refusal_body)
    return app


class _Routes:
    """The requests of the API."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    async def chat(self, request: Request) -> Response:
        rollout = self._rollout(request)
        chat_request = await read_async(_read_chat, await _body(request))
        answer = ChatAnswer(chat_request, MODEL_NAME)
        await while_connected(request, answer.sample(rollout))
        return _completion_response(answer.events() if chat_request.stream else None, answer)

    async def complete(self, request: Request) -> Response:
        rollout = self._rollout(request)
        completion_request = read_completion_request(await _body(request), ignored=OF_THE_RUN)
        answer = TextAnswer(completion_request, MODEL_NAME)
        await while_connected(request, answer.sample(rollout))
        return _completion_response(answer.events() if completion_request.stream else None, answer)

    async def models(self, request: Request) -> Response:
        self._rollout(request)
        return _json(models_response([MODEL_NAME], 0))

    async def one_model(self, request: Request) -> Response:
        """The policy under the name that the client uses, since requests may name any model."""
        self._rollout(request)
        [entry] = models_response([request.path_params["name"]], 0)["data"]
        return _json(entry)

    async def reward(self, request: Request) -> Response:
        rollout, body = self._rollout(request), await _body(request)
        unknown = sorted(body.keys() - {"reward", "step", "id", "index"})
        if unknown:
            raise RefusedError(
                422, "unknown_field", f"a reward has no field {unknown[0]!r:.60}; known: reward, step, id, index"
            )
        reward, step, response_id = body.get("reward"), body.get("step"), body.get("id")
        if isinstance(reward, bool) or not isinstance(reward, int | float):
            raise RefusedError(422, "invalid_reward", f"reward must be a number, found {reward!r:.60}")
        if step is not None and (isinstance(step, bool) or not isinstance(step, int)):
            raise RefusedError(422, "unknown_step", f"step must be a whole number, found {step!r:.60}")
        if response_id is not None:
            step = rollout.step_of(response_id, body.get("index", 0))
        rollout.post_reward(float(reward) if abs(reward) < 1e300 else math.inf, step)
        return _json({"accepted": True})

    async def finish(self, request: Request) -> Response:
        rollout = self._rollout(request)
        try:
            body = await _body(request)
        except ClientDisconnect:
            if self._gateway.settings.remote and not rollout.finished.done():
                details = "it disconnected while it sent its answer (POST <base_url>/finish)"
                rollout.finished.set_exception(EpisodeError(StopReason.AGENT_ERROR, "the remote agent", details))
            raise
        if not self._gateway.settings.remote:
            raise RefusedError(409, "not_remote", "this rollout ends with its agent; finish is for agent.remote=true")
        answer, error = body.get("answer"), body.get("error")
        if not isinstance(answer, str | int | float | None) or not isinstance(error, str | None):
            raise RefusedError(422, "invalid_end", "answer is text or a number, error is text; both may be left out")
        if rollout.finished.done():
            raise RefusedError(409, "finished_twice", "this rollout has been finished already")
        if error is not None:
            failure = EpisodeError(StopReason.AGENT_ERROR, "the remote agent", error[:20_000])
            rollout.finished.set_exception(failure)
        else:
            rollout.finished.set_result(None if answer is None else str(answer))
        return _json({"accepted": True})

    async def claim(self, request: Request) -> Response:
        agents = self._gateway.agent
        if not isinstance(agents, RemoteAgents):
            raise RefusedError(409, "not_remote", "this run starts its agents itself; set agent.remote=true")
        seconds = (await _body(request, may_be_empty=True)).get("wait_seconds", 30.0)
        if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 <= seconds <= MAX_WAIT_SECONDS:
            raise RefusedError(422, "invalid_wait", f"wait_seconds is a number from 0 to {MAX_WAIT_SECONDS:g}")
        assignment = await while_connected(request, agents.claim(float(seconds)))
        if assignment is None:
            if agents.is_closed:
                raise RefusedError(410, "run_over", "the run is over; there are no more rollouts")
            return Response(status_code=204)
        if await has_disconnected(request):
            agents.take_back(assignment)
            raise ClientDisconnect
        return _json({"task": assignment.task, "base_url": assignment.base_url, "api_key": assignment.api_key})

    async def health(self, request: Request) -> Response:
        return _json({"rollouts_open": len(self._gateway.rollouts)})

    def _rollout(self, request: Request) -> OpenRollout:
        rollout = self._gateway.rollouts.get(request.path_params["token"])
        if rollout is None:
            raise RefusedError(404, "unknown_rollout", "there is no rollout under this address, or it has ended")
        return rollout


async def _body(request: Request, *, may_be_empty: bool = False) -> dict[str, Any]:
    content = await read_body(request, max_bytes=MAX_BODY_BYTES, seconds=BODY_SECONDS)
    return {} if may_be_empty and not content.strip() else read_object(content)


def _answering(handler: Handler) -> Handler:
    """The handler, with what it refuses as a response in OpenAI's shape."""

    async def answer(request: Request) -> Response:
        try:
            return await handler(request)
        except ApiError as error:
            return _json(error.body, error.status)
        except RefusedError as refused:
            return _json(refusal_body(refused), refused.status)
        except ClientDisconnect:
            return Response(status_code=CLIENT_DISCONNECTED)

    return answer


async def _refuse_path(request: Request, error: Exception) -> Response:
    status = error.status_code if isinstance(error, HTTPException) else 500
    routes = [route for route in request.app.routes if isinstance(route, Route)]
    served = [f"{method} {route.path}" for route in routes for method in sorted((route.methods or set()) - {"HEAD"})]
    return _json(path_error(request.method, request.url.path, status, served).body, status)


def _completion_response(events: AsyncIterator[bytes] | None, answer: ChatAnswer | TextAnswer) -> Response:
    headers = {"x-agent-r1-step": str(answer.calls[0].index)}
    if events is not None:
        return StreamingResponse(events, media_type="text/event-stream", headers=headers)
    return _json(answer.response(), headers=headers)


def _json(value: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return Response(write_json(value), status_code=status, media_type="application/json", headers=headers)
