"""The fields of a request: which are read, which change nothing, and which are refused because they cannot be honored.

A field that this server does not know is refused by name. A client that sets one wants something; to ignore it would
give an answer to another question.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from agent_r1.openai_api.errors import ApiError

_Model = TypeVar("_Model", bound=BaseModel)

HARMLESS = frozenset(
    (
        "metadata",
        "prediction",
        "prompt_cache_key",
        "prompt_cache_retention",
        "safety_identifier",
        "service_tier",
        "store",
        "user",
    )
)
"""Fields that do not change what is sampled; they are accepted and ignored."""

NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "frequency_penalty": (0,),
    "presence_penalty": (0,),
    "repetition_penalty": (1,),
    "min_p": (0,),
    "min_tokens": (0,),
    "logit_bias": ({},),
    "response_format": ({"type": "text"},),
    "modalities": (["text"],),
    "functions": ([],),
    "function_call": ("auto", "none"),
    "audio": (),
    "web_search_options": (),
    "reasoning_effort": (),
    "verbosity": (),
    "best_of": (1,),
    "suffix": ("",),
}
"""Fields that are not supported, with the values that change nothing."""

OF_THE_RUN = frozenset(
    (
        "frequency_penalty",
        "logit_bias",
        "min_p",
        "min_tokens",
        "presence_penalty",
        "reasoning_effort",
        "repetition_penalty",
        "response_format",
        "verbosity",
    )
)
"""Fields of `NEUTRAL` that say how to sample. A policy in training is sampled as its run says, so the gateway ignores
them, as it does the temperature."""

Stop = str | Annotated[list[Annotated[str, Field(min_length=1)]], Field(max_length=16)]
Positive = Annotated[int, Field(ge=1, lt=2**31)]
TokenId = Annotated[int, Field(ge=0, lt=2**31)]


class StreamOptions(BaseModel):
    """The field `stream_options` of a request."""

    model_config = ConfigDict(extra="forbid", strict=True)

    include_usage: bool = False
    include_obfuscation: bool = False


class _Common(BaseModel):
    """Fields of both endpoints."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, arbitrary_types_allowed=False)

    model: Annotated[str, Field(min_length=1)]
    n: Annotated[int, Field(ge=1, le=128)] = 1
    stream: bool = False
    stream_options: StreamOptions | None = None
    max_tokens: Positive | None = None
    temperature: Annotated[float, Field(ge=0, le=100)] = 1.0
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    top_k: Annotated[int, Field(ge=-1, lt=2**31)] = 0
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63)] | None = None
    stop: Stop | None = None
    return_token_ids: bool = False


class ChatFields(_Common):
    """The body of `/v1/chat/completions`."""

    messages: Annotated[list[dict[str, Any]], Field(min_length=1)]
    tools: list[dict[str, Any]] = []
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool = True
    max_completion_tokens: Positive | None = None
    logprobs: bool = False
    top_logprobs: Annotated[int, Field(ge=0, le=20)] = 0


class CompletionFields(_Common):
    """The body of `/v1/completions`."""

    prompt: str | list[TokenId] | list[str] | list[list[TokenId]]
    echo: bool = False
    logprobs: Annotated[int, Field(ge=0, le=5)] | None = None
    add_special_tokens: Literal[False] = False


def read_fields(body: Mapping[str, Any], model: type[_Model], *, ignored: Collection[str] = ()) -> _Model:
    """The checked fields of a body; `ApiError` names the first one that is wrong. A field that is null is not set;
    fields in `ignored` are left out, whatever their value."""
    fields = {
        name: value
        for name, value in body.items()
        if value is not None and name not in HARMLESS and name not in ignored
    }
    for name in [name for name in fields if name in NEUTRAL and name not in model.model_fields]:
        if fields.pop(name) not in NEUTRAL[name]:
            raise ApiError(
                f"{name} is not supported by this server; leave it out{_neutral_values(NEUTRAL[name])}",
                param=name,
                code="unsupported_parameter",
            )
    unknown = sorted(str(name)[:60] for name in fields if name not in model.model_fields)
    if unknown:
        raise ApiError(
            f"unknown fields: {', '.join(unknown[:5])}; known are {', '.join(model.model_fields)}",
            param=unknown[0],
            code="unknown_parameter",
        )
    try:
        return model.model_validate(fields)
    except ValidationError as error:
        raise _api_error(error.errors(include_url=False, include_context=False)) from None


def _neutral_values(values: Iterable[Any]) -> str:
    choices = " or ".join(repr(value) for value in values)
    return f" or set it to {choices}" if choices else ""


def _api_error(errors: list[Any]) -> ApiError:
    """The problem that says most: of a union, pydantic reports every branch, also those of another type."""
    worst = max(errors, key=lambda error: (len(error["loc"]), not error["type"].endswith("_type")))
    place = [part for part in worst["loc"] if not (isinstance(part, str) and ("[" in part or part in _BRANCHES))]
    where = ".".join(map(str, place))
    observed = "" if worst["type"] == "missing" else f", found {repr(worst['input'])[:80]}"
    return ApiError(f"{where}: {worst['msg']}{observed}", param=str(place[0]) if place else None)


_BRANCHES = frozenset(("str", "int", "float", "bool", "dict"))
"""Names of a union's branches in the place of an error."""
