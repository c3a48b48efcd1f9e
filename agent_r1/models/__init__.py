"""Models: loading, export, LoRA, precision, and the parts of a decoder that engine and learner share."""

from agent_r1.files import is_gguf
from agent_r1.models.attention_features import check_attention, layer_windows, refuse_features
from agent_r1.models.compile_clock import compile_seconds, watch_compilation
from agent_r1.models.export import Rounding, copy_model, export_adapters, export_model, export_policy, stored_bytes
from agent_r1.models.fused_projections import fuse_projections
from agent_r1.models.gc_tuning import freeze_gc
from agent_r1.models.gguf import convert_gguf, gguf_folder, make_smollm2, unpack_gguf
from agent_r1.models.lm_head import action_scores
from agent_r1.models.load import (
    LoadedModel,
    checkpoint_layers,
    choose_device,
    compile_layers,
    load_model,
    load_policy,
    load_trained,
    merge_trained,
)
from agent_r1.models.lora import (
    adapter_factors,
    adapters_off,
    add_adapters,
    base_fingerprint,
    check_form,
    check_targets,
    find_targets,
    merged_weights,
    require_peft,
    restore_state,
    saved_state,
)
from agent_r1.models.padding import round_up
from agent_r1.models.precision import changed_torch_defaults, train_in_float32
from agent_r1.models.tiny import add_vision_tower, build_tiny_model, build_tiny_vision_model, train_tokenizer
from agent_r1.models.unmerged_adapters import add_unmerged_adapters
from agent_r1.models.vision import (
    ByteCache,
    ImagePass,
    Vision,
    VisionFamily,
    decoder_inputs,
    freeze_vision,
    places_in_two_dimensions,
    set_attention,
    vision_family,
    vision_of,
)

__all__ = [
    "ByteCache",
    "ImagePass",
    "LoadedModel",
    "Rounding",
    "Vision",
    "VisionFamily",
    "action_scores",
    "adapter_factors",
    "adapters_off",
    "add_adapters",
    "add_unmerged_adapters",
    "add_vision_tower",
    "base_fingerprint",
    "build_tiny_model",
    "build_tiny_vision_model",
    "changed_torch_defaults",
    "check_attention",
    "check_form",
    "check_targets",
    "checkpoint_layers",
    "choose_device",
    "compile_layers",
    "compile_seconds",
    "convert_gguf",
    "copy_model",
    "decoder_inputs",
    "export_adapters",
    "export_model",
    "export_policy",
    "find_targets",
    "freeze_gc",
    "freeze_vision",
    "fuse_projections",
    "gguf_folder",
    "is_gguf",
    "layer_windows",
    "load_model",
    "load_policy",
    "load_trained",
    "make_smollm2",
    "merge_trained",
    "merged_weights",
    "places_in_two_dimensions",
    "refuse_features",
    "require_peft",
    "restore_state",
    "round_up",
    "saved_state",
    "set_attention",
    "stored_bytes",
    "train_in_float32",
    "train_tokenizer",
    "unpack_gguf",
    "vision_family",
    "vision_of",
    "watch_compilation",
]
