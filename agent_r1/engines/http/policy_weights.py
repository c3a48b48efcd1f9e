"""The policy's weights as a folder that servers load, and the policy's own answer to the probe.

The folder is untied: `tie_word_embeddings` is false and `lm_head.weight` is in it. A server that ties the head to the
embeddings keeps its old head when it reloads them. This is the one module of `engines/http` that imports torch.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from agent_r1.engines.http.probe import ProbeText
from agent_r1.errors import EngineError
from agent_r1.files import atomic_write
from agent_r1.images import has_image_ids, image_store, is_image_id, rope_positions
from agent_r1.models import ImagePass, decoder_inputs, merged_weights, places_in_two_dimensions, vision_family
from agent_r1.types import TokenIds

MAX_SHARD_BYTES = 4 * 2**30
"""The weights are written in files of this size: only one is in memory at once."""


def server_dtype(config: Any, policy: nn.Module) -> str:
    """The type in which weights are written, as the local engine chooses its own."""
    on_gpu = next(policy.parameters()).is_cuda
    chosen: str = config.engine.dtype
    return chosen if chosen != "auto" else "bfloat16" if on_gpu else config.model.dtype


def vocabulary_of(policy: nn.Module) -> int:
    """How many ids the model knows: rows of its embeddings."""
    return int(cast(Any, policy).get_input_embeddings().weight.shape[0])


def write_weights(policy: nn.Module, weights: Iterable[tuple[str, Tensor]] | None, folder: Path, *, dtype: str) -> None:
    """Write a Hugging Face folder with these weights, by default the policy's with adapters merged, untied; it appears
    under its name when it is complete."""
    partial = folder.with_name(f"{folder.name}.partial")
    with atomic_write(folder, partial=partial):
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        _write_shards(
            partial, _untie(policy, merged_weights(policy) if weights is None else weights), getattr(torch, dtype)
        )
        _write_config(policy, partial / "config.json", dtype)
        partial.replace(folder)


def _untie(policy: nn.Module, weights: Iterable[tuple[str, Tensor]]) -> Iterable[tuple[str, Tensor]]:
    """The weights with a head of its own: a tied head is a copy of the embeddings."""
    model = cast(Any, policy)
    names = {id(part): name for name, part in model.named_modules()}
    embeddings, head = (
        f"{names[id(part)]}.weight" for part in (model.get_input_embeddings(), model.get_output_embeddings())
    )
    embedded, has_head = None, False
    for name, tensor in weights:
        has_head |= name == head
        embedded = tensor if name == embeddings else embedded
        yield name, tensor
    if not has_head:
        if embedded is None:
            raise EngineError(f"the weights have neither {head} nor {embeddings}, so servers cannot load them")
        yield head, embedded


def server_name(name: str) -> str:
    """The name under which a server loads a weight. LLaVA's tower has one level more there and on the hub than in newer
    versions of `transformers`.

    >>> server_name("model.vision_tower.embeddings.patch_embedding.weight")
    'model.vision_tower.vision_model.embeddings.patch_embedding.weight'
    """
    tower, level = "model.vision_tower.", "vision_model."
    is_flat = name.startswith(tower) and not name.startswith(tower + level)
    return f"{tower}{level}{name.removeprefix(tower)}" if is_flat else name


def _write_shards(folder: Path, weights: Iterable[tuple[str, Tensor]], dtype: torch.dtype) -> None:
    """Safetensors files of bounded size, with an index when there are several."""
    from safetensors.torch import save_file

    shards: list[list[str]] = []
    shard: dict[str, Tensor] = {}
    num_bytes = total = 0

    def flush() -> None:
        save_file(shard, folder / f"model-{len(shards) + 1:05d}.safetensors", metadata={"format": "pt"})
        shards.append(list(shard))
        shard.clear()

    for name, tensor in weights:
        kind = dtype if tensor.is_floating_point() else tensor.dtype
        copy = tensor.detach().to(device="cpu", dtype=kind, copy=True).contiguous()
        size = copy.numel() * copy.element_size()
        if shard and num_bytes + size > MAX_SHARD_BYTES:
            flush()
            num_bytes = 0
        shard[server_name(name)] = copy
        num_bytes, total = num_bytes + size, total + size
    flush()
    if len(shards) == 1:
        (folder / "model-00001.safetensors").replace(folder / "model.safetensors")
        return
    index = {
        "metadata": {"total_size": total},
        "weight_map": {
            name: f"model-{number + 1:05d}.safetensors" for number, names in enumerate(shards) for name in names
        },
    }
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def _write_config(policy: nn.Module, file: Path, dtype: str) -> None:
    settings = json.loads(cast(Any, policy).config.to_json_string(use_diff=False))
    for part in (settings, *(part for part in settings.values() if isinstance(part, dict) and "vocab_size" in part)):
        part["tie_word_embeddings"] = False
        part["dtype"] = part["torch_dtype"] = dtype
    for name in ("_attn_implementation", "_name_or_path", "attn_implementation"):
        settings.pop(name, None)
    file.write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")


def media_ids(policy: nn.Module) -> frozenset[int]:
    """The ids that stand for images and videos, or for their beginning and end: no text has them."""
    settings = cast(Any, policy).config.to_dict()
    kinds = ("image", "video", "vision")
    return frozenset(
        value
        for name, value in settings.items()
        if isinstance(value, int) and name.startswith(kinds) and name.endswith(("_token_id", "_token_index"))
    )


@torch.no_grad()
def next_logprobs(policy: nn.Module, texts: Iterable[ProbeText], *, folder: Path) -> Any:
    """The policy's log-prob of every token after each prefix of each text, as an array [prefixes, vocabulary].

    A policy that is sharded over processes cannot compute in one of them alone: then the model in `folder` is loaded.
    """
    is_sharded = any(hasattr(parameter, "full_tensor") for parameter in policy.parameters())
    model = _load_folder(folder, policy) if is_sharded else policy
    was_training = model.training
    model.eval()
    try:
        return torch.cat([_logprobs(model, text) for text in texts]).cpu().numpy()
    finally:
        model.train(was_training)


def _logprobs(model: nn.Module, text: ProbeText) -> Tensor:
    device = next(model.parameters()).device
    positions = torch.tensor(text.lengths, device=device) - 1
    if has_image_ids(text.token_ids):
        hidden = _hidden_with_images(model, text.token_ids)[0, positions]
        logits = cast(Any, model).get_output_embeddings()(hidden)
    else:
        tokens = torch.tensor([text.token_ids], device=device)
        logits = cast(Any, model)(input_ids=tokens, use_cache=False).logits[0, positions]
    return torch.log_softmax(logits.float(), dim=-1)


def _hidden_with_images(model: nn.Module, token_ids: TokenIds) -> Tensor:
    """The last hidden states [1, tokens, width] of a prompt with images."""
    device, decoder = next(model.parameters()).device, cast(Any, model).get_decoder()
    spans = image_store().spans(token_ids)
    places = [place for span in spans for place in range(span.start, span.start + span.length)]
    ids = torch.tensor([[0 if is_image_id(token) else token for token in token_ids]], device=device)
    rows = ImagePass(model, trained=False).rows(spans)
    inputs = decoder_inputs(decoder, ids, torch.tensor(places, device=device), rows)
    if places_in_two_dimensions(decoder.config):
        positions = torch.from_numpy(rope_positions(token_ids, image_store())).to(device)
        inputs["position_ids"] = positions[:, None]
    hidden: Tensor = decoder(**inputs, use_cache=False).last_hidden_state
    return hidden


def _load_folder(folder: Path, policy: nn.Module) -> nn.Module:
    from transformers import AutoModelForCausalLM, AutoModelForImageTextToText

    sees = vision_family(getattr(policy, "config", None)) is not None
    device = next(policy.parameters()).device
    kind: Any = AutoModelForImageTextToText if sees else AutoModelForCausalLM
    loaded: nn.Module = kind.from_pretrained(folder, dtype=torch.float32)
    return loaded.to(device)
