"""LoRA through peft: small matrices are trained beside frozen weights (https://arxiv.org/abs/2106.09685).

A linear layer `W x` becomes `W x + (alpha / rank) B A x`. A [rank, in] starts random and B [out, rank] at zero, so a
run starts from the model itself. The exported folder and a float32 engine get merged weights, `W + (alpha / rank) B A`
under the plain model's names. An engine with coarser weights, in which most of that sum would be rounded away, gets W,
A and (alpha / rank) B. All functions but `add_adapters` also accept models without adapters.

Not supported: dropout, adapters on embeddings, head and fused experts, quantised base weights.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, cast

import torch
from torch import Tensor, nn

from agent_r1.config import LoraConfig, ModelConfig
from agent_r1.errors import CheckpointError, ConfigError, MissingExtraError, did_you_mean, report_problems
from agent_r1.models.precision import train_in_float32
from agent_r1.models.pretrained import model_class_of
from agent_r1.models.vision import VisionFamily, vision_family

ALL_LINEAR = "all-linear"
"""The target that means every linear layer of the decoder."""

_ADAPTER = "default"
_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


# --- checks before a model is loaded ----------------------------------------------------------------------------------


def require_peft(settings: LoraConfig) -> Any:
    """The package, or an error that says how to get it."""
    try:
        import peft
    except ImportError as error:
        raise MissingExtraError("peft", "lora", f"model.lora.rank={settings.rank}") from error
    return peft


def check_form(settings: LoraConfig) -> None:
    """Raise `ConfigError` for targets that no model could have."""
    if not settings.targets:
        raise ConfigError(f"model.lora.targets is empty; name linear layers such as q_proj, or [{ALL_LINEAR}]")
    if ALL_LINEAR in settings.targets and len(settings.targets) > 1:
        raise ConfigError(f"model.lora.targets={settings.targets}: {ALL_LINEAR} stands alone, it names all there are")


def check_targets(model: ModelConfig) -> None:
    """Raise `ConfigError` for targets that this model does not have. The model is built without weights for that."""
    from transformers import AutoConfig

    config = AutoConfig.from_pretrained(model.path, trust_remote_code=model.trust_remote_code)
    model_class, _ = model_class_of(model.path, trust_remote_code=model.trust_remote_code)
    with torch.device("meta"):
        skeleton = model_class.from_config(config, trust_remote_code=model.trust_remote_code)
    find_targets(skeleton, model.lora.targets, vision=model.train_vision)


def find_targets(model: nn.Module, targets: Sequence[str], *, vision: str = "none") -> list[str]:
    """The full names of the targeted linear layers of the decoder; `vision` adds those of the `projector`, or `all` of
    projector and tower.

    `["q_proj"]` in a model of two layers is `["model.layers.0.self_attn.q_proj", "model.layers.1.self_attn.q_proj"]`.
    """
    inside, family = set(cast(Any, model).get_decoder().modules()), vision_family(getattr(model, "config", None))
    linear = [
        name
        for name, part in model.named_modules()
        if isinstance(part, nn.Linear)
        and (part in inside or (family is not None and vision != "none" and _is_seeing(family, name, vision)))
    ]
    if not linear:
        raise ConfigError(f"model.lora.rank: the decoder of {type(model).__name__} has no linear layers to adapt")
    if ALL_LINEAR in targets:
        return linear
    names = {name.rpartition(".")[2] for name in linear}
    unknown = [target for target in targets if not any(_means(target, name) for name in linear)]
    report_problems(
        [f"there is no '{target}'. {did_you_mean(target, names)}" for target in unknown],
        ConfigError,
        "model.lora.targets must be linear layers of the decoder:",
    )
    return [name for name in linear if any(_means(target, name) for target in targets)]


def _is_seeing(family: VisionFamily, name: str, vision: str) -> bool:
    """Whether a layer is part of the projector or, for `all`, of the tower."""
    return family.is_projector(name) or (vision == "all" and family.owns(name))


def _means(target: str, name: str) -> bool:
    """`q_proj`, `self_attn.q_proj` and the full name all mean `model.layers.0.self_attn.q_proj`; `proj` does not."""
    return f".{name}".endswith(f".{target}")


# --- the policy -------------------------------------------------------------------------------------------------------


def add_adapters(policy: nn.Module, settings: LoraConfig, *, seed: int, vision: str = "none") -> None:
    """Put adapters into a policy, in place. They alone are trained from here on; all other weights are frozen.

    The model keeps its class, its decoder and its head. Adapters are float32 whatever the weights are.
    """
    peft = require_peft(settings)
    lora_config = peft.LoraConfig(
        r=settings.rank,
        lora_alpha=settings.alpha,
        target_modules=find_targets(policy, settings.targets, vision=vision),
    )
    torch.manual_seed(seed)  # A is sampled from the global generator
    peft.inject_adapter_in_model(lora_config, policy, adapter_name=_ADAPTER)
    train_in_float32(policy)


@contextmanager
def adapters_off(model: nn.Module) -> Iterator[None]:
    """Within the context, the model computes without its adapters, as before training."""
    layers = list(_adapted_layers(model).values())
    for layer in layers:
        layer.enable_adapters(False)
    try:
        yield
    finally:
        for layer in layers:
            layer.enable_adapters(True)


def merged_weights(
    policy: nn.Module,
    *,
    device: torch.device | None = None,
    apart: Collection[str] = (),
    gathered: Callable[[Iterable[tuple[str, Tensor]]], Iterable[tuple[str, Tensor]]] = iter,
) -> Iterator[tuple[str, Tensor]]:
    """The weights of the equivalent plain model, one by one, under the plain model's names.

    W = [[1, 0], [0, 1]], B = [[1], [2]], A = [[3, 4]], alpha / rank = 0.5 -> [[2.5, 2], [3, 5]]. What is merged is
    float32, whatever W is: the receiver rounds it. The policy's weights are not changed. Merged weights are put on
    `device`, by default that of W.

    Layers named in `apart` are not merged: they give `weight`, `lora_A` and `lora_B`, the latter scaled by alpha /
    rank. `gathered` makes the weights of a sharded policy whole, in order.
    """
    layers, state = _adapted_layers(policy), policy.state_dict()
    names = _adapter_names(layers)
    adapters = dict(gathered([(name, tensor) for name, tensor in state.items() if name in names]))
    for name, tensor in gathered([(name, tensor) for name, tensor in state.items() if name not in names]):
        path, _, leaf = name.rpartition(".base_layer.")
        if path not in layers:
            yield name, tensor
        elif leaf != "weight":
            yield f"{path}.{leaf}", tensor
        else:
            up, down = (adapters[f"{path}.{side}.{_ADAPTER}.weight"].float() for side in ("lora_B", "lora_A"))
            scale = layers[path].scaling[_ADAPTER]
            if path in apart:
                yield from ((f"{path}.weight", tensor), (f"{path}.lora_A", down), (f"{path}.lora_B", scale * up))
            else:
                yield f"{path}.weight", torch.addmm(tensor.float(), up, down, alpha=scale).to(device or tensor.device)


def adapter_factors(policy: nn.Module) -> list[tuple[float, Tensor, Tensor]]:
    """Scale, B and A of every adapter."""
    return [
        (float(layer.scaling[_ADAPTER]), layer.lora_B[_ADAPTER].weight, layer.lora_A[_ADAPTER].weight)
        for layer in _adapted_layers(policy).values()
    ]


def adapter_targets(policy: nn.Module) -> list[str]:
    """The layers with adapters, as short as they are unambiguous: `q_proj` when every layer of that name has one."""
    adapted = _adapted_layers(policy)
    short = sorted({name.rpartition(".")[2] for name in adapted})
    matching = {
        name
        for name, part in policy.named_modules()
        if (isinstance(part, nn.Linear) or name in adapted) and name.rpartition(".")[2] in short
    }
    return short if matching == adapted.keys() else sorted(adapted)


# --- checkpoints ------------------------------------------------------------------------------------------------------


def saved_state(policy: nn.Module, *, base: Tensor | None = None) -> dict[str, Any]:
    """What a checkpoint keeps of a policy: all weights; with adapters only these and a fingerprint of the rest, `base`
    where it is known already."""
    layers, state = _adapted_layers(policy), policy.state_dict()
    if not layers:
        return state
    return {
        "adapters": {name: state[name] for name in sorted(_adapter_names(layers))},
        "base": base_fingerprint(policy) if base is None else base,
        "scales": _scales(layers),
    }


def restore_state(policy: nn.Module, saved: Mapping[str, Any], *, base: Tensor | None = None) -> None:
    """Load what `saved_state` gave, from a policy with the same settings and the same base model."""
    layers = _adapted_layers(policy)
    if bool(layers) != ("adapters" in saved):
        how = "without" if layers else "with"
        raise CheckpointError(f"the checkpoint was written {how} LoRA; set model.lora as it was, or start a new run")
    if not layers:
        policy.load_state_dict(saved)
        return
    adapters, state = saved["adapters"], policy.state_dict()
    expected = {name: state[name].shape for name in _adapter_names(layers)}
    if {name: tensor.shape for name, tensor in adapters.items()} != expected:
        raise CheckpointError("the checkpoint's adapters are of another shape; set model.lora as it was")
    if saved["scales"] != _scales(layers):
        raise CheckpointError("the checkpoint was written with another model.lora.alpha; set it as it was")
    if not torch.equal(saved["base"].cpu(), base_fingerprint(policy) if base is None else base):
        raise CheckpointError(
            "model.path holds other weights than when the checkpoint was written, and its adapters belong to those"
        )
    policy.load_state_dict(adapters, strict=False)


def _scales(layers: Mapping[str, Any]) -> dict[str, float]:
    """The scale of each adapter: alpha / rank."""
    return {name: float(scale) for name, layer in layers.items() for scale in layer.scaling.values()}


def base_fingerprint(policy: nn.Module) -> Tensor:
    """The sum of each frozen weight's bits, read as integers: the same on every device."""
    adapters = _adapter_names(_adapted_layers(policy))
    frozen = [tensor for name, tensor in policy.state_dict().items() if name not in adapters]
    return torch.tensor(
        [int(tensor.contiguous().view(_BITS[tensor.element_size()]).sum(dtype=torch.int64)) for tensor in frozen]
    )


def _adapted_layers(model: nn.Module) -> dict[str, Any]:
    """The layers with adapters, by the plain model's names; recognised by attribute, since peft may be missing."""
    return {name: part for name, part in model.named_modules() if hasattr(part, "lora_A")}


def _adapter_names(layers: Mapping[str, Any]) -> set[str]:
    return {f"{name}.{side}.{_ADAPTER}.weight" for name in layers for side in ("lora_A", "lora_B")}
