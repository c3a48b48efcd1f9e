"""SGLang: token ids in and out over `/generate`, weights over `/update_weights_from_disk`.

Log-probs under top_p and top_k are those of the whole distribution, as ours. Seeds are used only by a server that was
started with `--enable-deterministic-inference`. `ignore_eos` would switch `stop_token_ids` off, so it is not sent: a
request that ended with an end-of-text token that is not among its stop ids is continued by the engine.

Images come as `image_data`. Newer servers keep the given ids and put the tokens of each image where its placeholder is
(`SGLANG_MM_AVOID_RETOKENIZE`, the default); that fits families whose image is nothing but its tokens. Servers before
0.5.13 decode the ids and encode the text again: the number of tokens that the model read tells.
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

_SEEDS = 2**31
"""Seeds are 32-bit numbers there."""


class SglangAdapter:
    """An SGLang server."""

    name = "sglang"
    renormalises = False
    image_families = frozenset(("qwen2_vl", "qwen2_5_vl", "qwen3_vl"))

    def __init__(self, client: ServerClient, *, model: str | None = None, sees_images: bool = False) -> None:
        self._client = client
        self._model = model

    async def context_length(self, *, seconds: float) -> int | None:
        """What `/get_server_info` says, where it does."""
        with suppress(ServerUnusableError):
            answer = await self._client.call("GET", "/get_server_info", seconds=seconds)
            length = answer.get("context_length") if isinstance(answer, dict) else None
            return length if isinstance(length, int) else None
        return None

    async def check_health(self, *, seconds: float) -> None:
        """Call `/health`, which answers when the server works."""
        await self._client.call("GET", "/health", seconds=seconds)

    async def label(self, *, seconds: float) -> str | None:
        """The `weight_version` of the last update; newer servers have `/model_info`."""
        for path in ("/model_info", "/get_model_info"):
            with suppress(ServerUnusableError):
                answer = await self._client.call("GET", path, seconds=seconds)
                if isinstance(answer, dict) and answer.get("weight_version") is not None:
                    return str(answer["weight_version"])
        return None

    async def generate(
        self, prompt: ServerPrompt, sampling: SamplingParams, *, request_id: str, seconds: float
    ) -> Answer:
        """Sample one completion."""
        body: dict[str, Any] = {
            "rid": request_id,
            "input_ids": list(prompt.token_ids),
            "return_logprob": True,
            "sampling_params": {
                "max_new_tokens": sampling.max_tokens,
                "temperature": sampling.temperature,
                "top_p": sampling.top_p,
                "top_k": sampling.top_k or -1,
                "stop_token_ids": list(sampling.stop),
                "sampling_seed": sampling.seed % _SEEDS,
                "no_stop_trim": True,
                "skip_special_tokens": False,
            },
        }
        if prompt.pictures:
            body["image_data"] = prompt.addresses()
        answer = await self._client.call("POST", "/generate", body=body, seconds=seconds)
        where = f"{self._client.url}/generate"
        meta = answer.get("meta_info") if isinstance(answer, dict) else None
        if not isinstance(meta, dict):
            raise ServerError(f"{where}: the answer has no meta_info: {answer!r:.200}")
        if prompt.pictures and meta.get("prompt_tokens") != len(prompt.expanded):
            raise RequestRefusedError(images_differ(where, prompt, meta.get("prompt_tokens")))
        with reading_answer(where):
            token_ids = answer.get("output_ids") or []
            pairs = meta.get("output_token_logprobs") or []
            if not all(isinstance(pair, list) and len(pair) >= 2 for pair in pairs):
                raise ServerError(f"{where}: the answer has log-probs that cannot be read: {pairs!r:.200}")
            if [pair[1] for pair in pairs] != token_ids:
                raise ServerError(f"{where}: the log-probs are not those of the {len(token_ids)} tokens")
        reason = meta.get("finish_reason")
        return checked_answer(
            where,
            token_ids=token_ids,
            logprobs=[pair[0] for pair in pairs],
            finish=reason.get("type") if isinstance(reason, dict) else reason,
            spans=meta.get("weight_versions"),
            sampling=sampling,
        )

    async def load(self, folder: str, label: str, *, keeps_requests: bool, seconds: float) -> None:
        """`retract` puts running requests back into the queue with the tokens they have."""
        try:
            mode = "retract" if keeps_requests else "abort"
            await self._post("/pause_generation", seconds, {"mode": mode})
            answer = await self._post(
                "/update_weights_from_disk",
                seconds,
                {"model_path": folder, "weight_version": label, "flush_cache": True},
            )
            if not isinstance(answer, dict) or answer.get("success") is not True:
                raise ServerError(f"{self._client.url}/update_weights_from_disk: {answer!r:.300}")
        except BaseException:
            with suppress(ServerError):
                await self._post("/continue_generation", RESUME_SECONDS, {})
            raise
        await self._post("/continue_generation", RESUME_SECONDS, {})

    async def _post(self, path: str, seconds: float, body: dict[str, Any]) -> Any:
        try:
            return await self._client.call("POST", path, body=body, seconds=seconds)
        except RequestRefusedError as error:  # a folder that it cannot read
            raise ServerError(str(error)) from None
