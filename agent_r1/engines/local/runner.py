"""The engine's copy of the model: one forward pass over a step's chunks, and the tokens sampled after it."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from agent_r1.engines.local.attention import ATTENTION_NAME, attach_caches
from agent_r1.engines.local.batch import PagedBatch, step_inputs
from agent_r1.engines.local.cpu.linear import BatchInvariantLinear, use_batch_invariant_products
from agent_r1.engines.local.images.embeddings import ImageEmbeddings
from agent_r1.engines.local.images.prompt_images import StepImages
from agent_r1.engines.local.kv_cache import empty_caches, kv_blocks
from agent_r1.engines.local.request import Chunk, Request, check_request
from agent_r1.engines.local.sampling import sample
from agent_r1.errors import EngineError, EngineLostError
from agent_r1.models import (
    VisionFamily,
    add_unmerged_adapters,
    changed_torch_defaults,
    check_attention,
    decoder_inputs,
    set_attention,
    vision_of,
)


@dataclass(frozen=True, slots=True)
class Sampled:
    """What was sampled for the chunks that sample, in their order."""

    tokens: list[list[int]]
    """One list of tokens per chunk."""
    logprobs: list[list[float]]
    """The log-probs of the tokens."""

    def done(self) -> bool:
        """Always: the result is here."""
        return True

    def result(self) -> Sampled:
        """The sample itself: it is complete."""
        return self


class PendingSample(Protocol):
    """Sampled tokens that a device may still be computing."""

    def done(self) -> bool:
        """Whether `result` would not wait."""
        ...

    def result(self) -> Sampled:
        """The sampled tokens."""
        ...


@dataclass(frozen=True)
class PendingStep:
    """A step that was started and whose result was not read yet."""

    chunks: list[Chunk]
    sample: PendingSample


class ModelRunner:
    """A copy of `model` that attends over the paged KV cache.

    runner = ModelRunner(model, max_requests=2, context_length=64)
    runner.sample([Chunk(request, 0, 5)]).result().tokens  # [[17]], when the chunk ends its request's tokens
    """

    burst = 1
    """Maximum number of tokens a decoding request samples per step."""

    def __init__(
        self,
        model: nn.Module,
        *,
        max_requests: int,
        context_length: int,
        kv_memory: float | None = None,
        dtype: torch.dtype | None = None,
        adapters: Mapping[str, int] | None = None,
    ) -> None:
        model_copy: Any = copy.deepcopy(model).eval().requires_grad_(False)
        check_attention(model_copy)
        self._model = model_copy
        set_attention(self._model, ATTENTION_NAME)
        if dtype is not None:
            # Parameters only: buffers such as the rotary frequencies keep their precision.
            for parameter in self._model.parameters():
                parameter.data = parameter.data.to(dtype)
        add_unmerged_adapters(self._model, adapters or {})
        self._config: Any = self._model.config.get_text_config()
        parameter = next(self._model.parameters())
        self._device, self._dtype = parameter.device, parameter.dtype
        exact = self._device.type == "cpu" and self._dtype == torch.float32
        vision = vision_of(self._model)
        self.images = None if vision is None else ImageEmbeddings(vision, one_by_one=exact)
        self._num_read = 0
        # What computes tokens: a vision tower is left as it is.
        self._decoder: Any = self._model if vision is None else self._model.get_decoder()
        if exact:
            use_batch_invariant_products(self._decoder)
            if vision is not None:
                self._model.set_output_embeddings(BatchInvariantLinear(self._model.get_output_embeddings()))
        self.num_blocks = kv_blocks(
            kv_memory,
            config=self._config,
            dtype=self._dtype,
            device=self._device,
            max_requests=max_requests,
            context_length=context_length,
        )
        self._make_caches()

    @property
    def vocabulary(self) -> int:
        """Size of the vocabulary; token ids are below it."""
        return int(self._config.vocab_size)

    @property
    def family(self) -> VisionFamily | None:
        """The family of a model that reads images."""
        return None if self.images is None else self.images.family

    @property
    def num_encoded_images(self) -> int:
        """How many images went through the vision tower."""
        return 0 if self.images is None else self.images.num_encoded

    def check(self, request: Request, context_length: int) -> None:
        """Raise EngineRequestError for a request that can never be answered, and find the images of all others. Raises
        EngineLostError for all requests once torch's defaults were changed."""
        changed = changed_torch_defaults()
        if changed is not None:
            raise EngineLostError(f"the engine cannot compute: {changed}")
        check_request(
            request,
            context_length=context_length,
            num_blocks=self.num_blocks,
            vocabulary=self.vocabulary,
            family=self.family,
        )

    def read_metrics(self) -> dict[str, float]:
        """Counts since the last call, by the names they are logged under."""
        if self.images is None:
            return {}
        fresh, self._num_read = self.images.num_encoded - self._num_read, self.images.num_encoded
        return {"perf/encoded_images": float(fresh)}

    def finish(self) -> None:
        """Wait until the device has computed all that was started."""

    def clear_cache(self) -> None:
        """Empty the KV cache: what old or broken weights wrote must never be read again."""
        self._make_caches()

    def load_weights(self, weights: Iterable[tuple[str, Any]]) -> None:
        """Copy weights in place, by their names in the model's `state_dict`."""
        parameters = self._model.state_dict(keep_vars=True)
        with torch.no_grad():
            for name, tensor in weights:
                if name not in parameters:
                    raise EngineError(f"the engine's model has no parameter '{name}'")
                if parameters[name].shape != tensor.shape:
                    raise EngineError(
                        f"'{name}' has shape {tuple(tensor.shape)}; the engine's has {tuple(parameters[name].shape)}"
                    )
                if self.images is not None:
                    self.images.note_weight(name, parameters[name], tensor)
                parameters[name].copy_(tensor)

    def sample(self, chunks: list[Chunk], after: list[Chunk] | None = None) -> PendingSample:
        """Compute the chunks and sample the next tokens of those that sample: up to `burst` for each, at least one.

        `after` are the chunks of the pending step, given when some of these continue it (`Chunk.pending_token`).
        """
        sampling = [chunk.request for chunk in chunks if chunk.samples]
        logits = self.forward(chunks)
        if not sampling:
            return Sampled([], [])
        tokens, logprobs = sample(logits, [r.sampling for r in sampling], [r.num_sampled for r in sampling])
        return Sampled([[token] for token in tokens], [[logprob] for logprob in logprobs])

    def forward(self, chunks: list[Chunk]) -> Tensor:
        """Logits [chunks that sample, vocabulary]. Writes the keys and values of all chunks to the cache."""
        inputs = step_inputs(chunks, self._device, reads_images=self.images is not None)
        num_samples = sum(chunk.samples for chunk in chunks)
        logits = self._logits(inputs.token_ids, inputs.batch, inputs.logit_rows, inputs.images)
        return logits[:num_samples]

    def _logits(
        self, token_ids: Tensor, batch: PagedBatch, rows: Tensor | None = None, images: StepImages | None = None
    ) -> Tensor:
        """Logits [rows, vocabulary] after some rows of the flat row, by default after all of them."""
        inputs: dict[str, Any] = {"input_ids": token_ids[None], "position_ids": batch.positions[None]}
        if self.images is None:
            options = {} if rows is None else {"logits_to_keep": rows}
            output: Any = self._model(**inputs, **options, use_cache=False, paged=batch)
            logits: Tensor = output.logits[0]
            return logits
        if images is not None:
            del inputs["input_ids"]
            places = torch.from_numpy(images.places).to(self._device)
            inputs |= decoder_inputs(self._decoder, token_ids[None], places, self.images.rows(images.spans))
            if images.positions is not None:
                inputs["position_ids"] = torch.from_numpy(images.positions).to(self._device)[:, None]
        hidden = self._decoder(**inputs, use_cache=False, paged=batch).last_hidden_state[0]
        image_logits: Tensor = self._model.get_output_embeddings()(hidden if rows is None else hidden[rows])
        return image_logits

    def _make_caches(self) -> None:
        self._caches = empty_caches(self.num_blocks, config=self._config, dtype=self._dtype, device=self._device)
        attach_caches(self._decoder, self._caches)


def make_runner(model: nn.Module, *, compile_layers: bool, **settings: Any) -> ModelRunner:
    """The runner for the model's device."""
    if next(model.parameters()).device.type != "cuda":
        return ModelRunner(model, **settings)
    from agent_r1.engines.local.cuda.runner import CudaRunner  # needs Triton, which machines without CUDA lack

    return CudaRunner(model, compile_layers=compile_layers, **settings)
