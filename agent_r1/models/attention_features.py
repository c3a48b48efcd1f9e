"""Which features of a model's attention are supported; models with others are refused, and the feature is named.

`transformers` passes the features of a model's attention to the attention function as keyword arguments: a cap on the
scores, a window, sinks, a bias. A function that ignores one of them silently computes another model. Ours, the engine's
and the learner's, apply what is in APPLIED and refuse the rest, once when a model is loaded (`check_attention`) and
again in every call (`refuse_features`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers import AttentionInterface

from agent_r1.errors import EngineError, raising, report_problems
from agent_r1.models.vision import set_attention

APPLIED = frozenset({"scaling", "sliding_window", "softcap"})
"""Keyword arguments that change what a layer computes, and that the engine and the learner both apply."""

NOT_ATTENTION = frozenset(
    {
        "attention_calls",
        "cache_position",
        "logits_to_keep",
        "output_attentions",
        "output_hidden_states",
        "output_router_logits",
        "paged",
        "past_key_values",
        "position_embeddings",
        "position_ids",
        "return_dict",
        "use_cache",
    }
)
"""Keyword arguments that change nothing: decoders pass them to every layer, or they were applied before."""

NAMES = {
    "dropout": "dropout",
    "head_mask": "a mask over heads",
    "indices": "attention to selected tokens",
    "block_indices": "attention to selected blocks",
    "is_causal": "attention to later tokens",
    "position_bias": "a bias by position",
    "s_aux": "attention sinks",
}
"""The usual names of these keyword arguments; others are named as they are."""

_KNOWN_LAYERS = {"full_attention", "sliding_attention"}
_RECORDER = "agent_r1_recorder"
_ADVICE = "Choose a model without it: training would compute another model than this one"


class AttentionCall(NamedTuple):
    """What a model passed to the attention function of one layer."""

    layer: int | None
    module: nn.Module
    mask: Tensor | None
    features: Mapping[str, Any]


def refuse_features(module: nn.Module, features: Mapping[str, Any]) -> None:
    """Raise `EngineError` when a layer uses a feature that is not applied; None, False and 0 mean it is not used."""
    if features:
        unknown = _unknown(features)
        if unknown:
            raise EngineError(f"{type(module).__name__} uses {', '.join(unknown)}, which is not applied. {_ADVICE}")


def _unknown(features: Mapping[str, Any]) -> list[str]:
    """
    >>> _unknown({"scaling": 0.1, "dropout": 0.0, "is_causal": True, "s_aux": torch.ones(4), "tilt": 2})
    ['attention sinks (s_aux)', 'tilt']
    """
    unknown = []
    for name, setting in features.items():
        if name in APPLIED or name in NOT_ATTENTION or setting is None:
            continue
        is_neutral = setting is True if name == "is_causal" else isinstance(setting, (bool, int, float)) and not setting
        if not is_neutral:
            unknown.append(f"{NAMES[name]} ({name})" if name in NAMES else name)
    return unknown


def layer_windows(config: Any) -> list[int | None]:
    """How many tokens each layer attends to, including the token itself; None for a layer without a window.

    Gemma 3 with a window of 512 in five of six layers: [512, 512, 512, 512, 512, None, 512, ...].
    """
    text_config = config.get_text_config()
    num_layers = int(text_config.num_hidden_layers)
    window = getattr(text_config, "sliding_window", None)
    if window is None or not getattr(text_config, "use_sliding_window", True):
        return [None] * num_layers
    layer_types = getattr(text_config, "layer_types", None)
    if not layer_types:  # a window without layer types applies to every layer
        return [int(window)] * num_layers
    return [int(window) if kind == "sliding_attention" else None for kind in layer_types]


def check_attention(model: nn.Module) -> None:
    """Raise `EngineError` for a model whose attention we would compute differently; the error names every reason.

    A forward pass over two tokens records what each layer passes to its attention function. Its results are not used.
    """
    name, config = type(model).__name__, _config(model)
    problems = _config_problems(config)
    if not getattr(model, "_supports_attention_backend", False):
        problems.append("it does not let its attention be replaced")
    if not problems:
        problems = _call_problems(_record_calls(model), layer_windows(config))
    report_problems(problems, EngineError, f"{name} cannot be used. {_ADVICE}:")


def _config(model: Any) -> Any:
    return model.config.get_text_config()


def _config_problems(config: Any) -> list[str]:
    problems = []
    unknown = sorted(set(getattr(config, "layer_types", None) or ()) - _KNOWN_LAYERS)
    if unknown:
        problems.append(f"it has layers of type {unknown}; known are {sorted(_KNOWN_LAYERS)}")
    rope = getattr(config, "rope_parameters", None) or {}
    kinds = {str(part.get("rope_type")) for part in (rope, *rope.values()) if isinstance(part, dict)}
    by_length = sorted(kinds & {"dynamic", "longrope"})
    if by_length:
        # Their frequencies follow the longest request of a step: logits would depend on batch composition.
        problems.append(f"it has rotary embeddings of type {by_length}, which depend on the length of other requests")
    return problems


def _call_problems(calls: list[AttentionCall], windows: list[int | None]) -> list[str]:
    problems: dict[str, None] = {}  # in order, without the repetitions of further layers
    missing = sorted(set(range(len(windows))) - {call.layer for call in calls if call.layer is not None})
    if missing:
        problems[f"layers {missing} do not call the attention function"] = None
    for call in calls:
        found = [f"it uses {feature}" for feature in _unknown(call.features)]
        if getattr(call.module, "is_causal", True) is False:
            found.append(f"it uses {NAMES['is_causal']} (is_causal)")
        if call.mask is not None:
            found.append("its layers make attention masks of their own")
        expected = None if call.layer is None else windows[call.layer]
        if call.features.get("sliding_window") != expected:
            found.append(
                f"layer {call.layer} attends within sliding_window={call.features.get('sliding_window')}, and its "
                f"configuration says {expected}"
            )
        problems |= dict.fromkeys(found)
    return list(problems)


def _record_calls(model: Any) -> list[AttentionCall]:
    calls: list[AttentionCall] = []
    tokens = torch.zeros(1, 2, dtype=torch.long, device=next(model.parameters()).device)
    before = set_attention(model, _RECORDER)
    try:
        with torch.no_grad(), raising(EngineError, f"{type(model).__name__} cannot compute two tokens"):
            model.get_decoder()(
                input_ids=tokens,
                position_ids=torch.arange(2, device=tokens.device)[None],
                use_cache=False,
                attention_calls=calls,
            )
    finally:
        set_attention(model, before)
    return calls


def _record(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    attention_calls: list[AttentionCall] | None = None,
    **features: Any,
) -> tuple[Tensor, None]:
    if attention_calls is not None:
        layer = getattr(module, "layer_idx", None)
        attention_calls.append(AttentionCall(layer, module, attention_mask, features))
    return query.new_zeros(query.shape[0], query.shape[2], query.shape[1], value.shape[3]), None


AttentionInterface.register(_RECORDER, _record)
