"""vLLM: token ids in and out over `/inference/v1/generate`, weights over its development endpoints.

A server needs `--logprobs-mode processed_logprobs`, `VLLM_SERVER_DEV_MODE=1` and, where it knows the flag,
`--enable-scale-out`; `agent-r1 serve-engine` starts it so. Log-probs are those of softmax(logits / temperature), at
temperature 1 when greedy, as ours; with top_p or top_k they are renormalised over the kept tokens, which ours are not.

Images come as `content_parts` (vLLM 0.32): the server's own processor expands the placeholder of each, and the answer
has the ids that the model read.

vLLM 0.26 does not report which weights sampled a token: its requests are aborted before an update, with the tokens they
have, and continued after it.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from agent_r1.engines.http.client import (
    RESUME_SECONDS,
    Answer,
    RequestRefusedError,
    ServerClient,
    ServerError,
    ServerUnusableError,
    checked_answer,
    images_differ,
    reading_answer,
)
from agent_r1.engines.http.images import ServerPrompt
from agent_r1.types import SamplingParams


class VllmAdapter:
    """A vLLM server."""

    name = "vllm"
    renormalises = True
    image_families = frozenset(("smolvlm", "idefics3", "llava", "qwen2_vl", "qwen2_5_vl", "qwen3_vl"))

    def __init__(self, client: ServerClient, *, model: str | None = None, sees_images: bool = False) -> None:
        self._client = client
        self._model = model
        self._sees_images = sees_images

    async def context_length(self, *, seconds: float) -> int | None:
        """`max_model_len` of the served model."""
        answer = await self._client.call("GET", "/v1/models", seconds=seconds)
        for entry in _entries(answer, "data"):
            if self._model in (None, entry.get("id")) and isinstance(entry.get("max_model_len"), int):
                return int(entry["max_model_len"])
        return None

    async def check_health(self, *, seconds: float) -> None:
        """`/health`: 503 when the engine is dead, but not always."""
        await self._client.call("GET", "/health", seconds=seconds)

    async def label(self, *, seconds: float) -> str | None:
        """What `/update_weight_version` has set."""
        with suppress(ServerUnusableError):
            answer = await self._client.call("GET", "/weight_info", seconds=seconds)
            if isinstance(answer, dict) and answer.get("weight_version") is not None:
                return str(answer["weight_version"])
        return None

    async def generate(
        self, prompt: ServerPrompt, sampling: SamplingParams, *, request_id: str, seconds: float
    ) -> Answer:
        """`ignore_eos` leaves `stop_token_ids` alone: the request ends at those, as in the local engine."""
        path = "/inference/v1/generate"
        body: dict[str, Any] = {
            "request_id": request_id,
            "token_ids": list(prompt.token_ids),
            "sampling_params": {
                "max_tokens": sampling.max_tokens,
                "temperature": sampling.temperature,
                "top_p": sampling.top_p,
                "top_k": sampling.top_k,
                "seed": sampling.seed,
                "stop_token_ids": list(sampling.stop),
                "ignore_eos": True,
                "logprobs": 0,
                "detokenize": False,
            },
        }
        if self._model is not None:
            body["model"] = self._model
        if prompt.pictures:
            body |= _image_fields(prompt)
        try:
            answer = await self._client.call("POST", path, body=body, seconds=seconds)
        except ServerUnusableError as error:
            raise ServerUnusableError(f"{error}; a vLLM server needs --enable-scale-out") from None
        where = f"{self._client.url}{path}"
        if prompt.pictures:
            _check_images(where, prompt, answer)
        choices = _entries(answer, "choices")
        if len(choices) != 1:
            raise ServerError(f"{where}: the answer has {len(choices)} choices: {answer!r:.200}")
        choice = choices[0]
        with reading_answer(where):
            token_ids = choice.get("token_ids") or []
            content = (choice.get("logprobs") or {}).get("content") or []
            if [_token_of(entry) for entry in content] != token_ids:
                raise ServerError(f"{where}: the log-probs are not those of the {len(token_ids)} tokens")
            logprobs = [entry.get("logprob") for entry in content]
        return checked_answer(
            where,
            token_ids=token_ids,
            logprobs=logprobs,
            finish=choice.get("finish_reason"),
            spans=choice.get("weight_versions"),
            sampling=sampling,
        )

    async def load(self, folder: str, label: str, *, keeps_requests: bool, seconds: float) -> None:
        """Cached prefixes, and embeddings of images, are dropped after loading: the reload does not clear them."""
        mode = "keep" if keeps_requests else "abort"
        try:
            await self._post("/pause", seconds, params={"mode": mode})
            reload = {"method": "reload_weights", "kwargs": {"weights_path": folder}}
            await self._post("/collective_rpc", seconds, body=reload)
            if keeps_requests:
                await self._post("/update_weight_version", seconds, body={"new_version": label})
            reset = {"reset_running_requests": "true"}
            answer = await self._post("/reset_prefix_cache", seconds, params=reset)
            if isinstance(answer, dict) and answer.get("success") is False:
                raise ServerError(f"{self._client.url}/reset_prefix_cache: the prefix cache could not be dropped")
            if self._sees_images:
                await self._post("/reset_encoder_cache", seconds)
        except BaseException:
            with suppress(ServerError):
                await self._post("/resume", RESUME_SECONDS)
            raise
        await self._post("/resume", RESUME_SECONDS)

    async def _post(
        self, path: str, seconds: float, *, body: dict[str, Any] | None = None, params: dict[str, str] | None = None
    ) -> Any:
        try:
            return await self._client.call("POST", path, body=body, params=params, seconds=seconds)
        except ServerUnusableError as error:
            raise ServerUnusableError(f"{error}; a vLLM server needs VLLM_SERVER_DEV_MODE=1") from None
        except RequestRefusedError as error:
            raise ServerError(str(error)) from None


def _image_fields(prompt: ServerPrompt) -> dict[str, Any]:
    """What a request has beside the ids when there are images. The server caches what it made of one by its `uuid`."""
    parts = [
        {"type": "image_url", "url": address, "uuid": picture.content_hash}
        for address, picture in zip(prompt.addresses(), prompt.pictures, strict=True)
    ]
    return {"content_parts": parts, "return_token_ids": True}


def _check_images(where: str, prompt: ServerPrompt, answer: Any) -> None:
    """The model must have read what the trainer reads. A server that does not know the field ignores the images."""
    prompt_ids = answer.get("prompt_token_ids") if isinstance(answer, dict) else None
    if not isinstance(prompt_ids, list):
        raise ServerUnusableError(
            f"{where}: the server ignores images beside token ids, as vLLM before 0.32 does; use a newer one, or "
            "engine=local"
        )
    if tuple(prompt_ids) != prompt.expanded:
        raise RequestRefusedError(images_differ(where, prompt, len(prompt_ids)))


def _token_of(entry: dict[str, Any]) -> Any:
    """The id that a log-prob belongs to; older servers write it as a text.

    >>> _token_of({"token_id": 5}), _token_of({"token": "token_id:5"}), _token_of({"token": "x"})
    (5, 5, None)
    """
    if "token_id" in entry:
        return entry["token_id"]
    name, _, number = str(entry.get("token")).partition(":")
    return int(number) if name == "token_id" and number.isdecimal() else None


def _entries(answer: Any, key: str) -> list[dict[str, Any]]:
    """The objects of a list in an answer; none when it is anything else."""
    entries = answer.get(key) if isinstance(answer, dict) else None
    return [entry for entry in entries if isinstance(entry, dict)] if isinstance(entries, list) else []
