"""Vision-language models: loading, refusals, copies, export, adapters."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForImageTextToText, PaliGemmaConfig

from agent_r1.config import LoraConfig, ModelConfig
from agent_r1.errors import ConfigError
from agent_r1.learner.packing import TRIE_ATTENTION
from agent_r1.models import (
    adapters_off,
    add_adapters,
    check_targets,
    export_model,
    find_targets,
    freeze_vision,
    load_policy,
    load_trained,
    merge_trained,
    restore_state,
    saved_state,
    train_in_float32,
    vision_of,
)
from agent_r1.models.vision.positions import steady_positions
from agent_r1.models.vision.segments import attend_in_segments
from tests.helpers.vision_models import FAMILIES, FEW_FIRST, make_image, make_vlm, plain_logits


class Bare:
    """A tokenizer that is not asked for anything."""

    def save_pretrained(self, folder: Path) -> None:
        (Path(folder) / "tokenizer_config.json").write_text("{}")


def written(family: str, folder: Path) -> Path:
    """A folder with a model of the family and what a processor would have there."""
    make_vlm(family).save_pretrained(folder)
    (folder / "preprocessor_config.json").write_text('{"size": 16}')
    return folder


def opened(folder: Path, **settings: Any) -> Any:
    return load_policy(str(folder), dtype="float32", device=torch.device("cpu"), **settings)


@pytest.mark.parametrize("family", FEW_FIRST)
def test_a_folder_is_opened_with_its_tower_which_keeps_its_own_attention(family: str, tmp_path: Path) -> None:
    model = opened(written(family, tmp_path / "model"), attention=TRIE_ATTENTION)
    vision = vision_of(model)
    assert vision is not None
    assert model.get_decoder().config._attn_implementation == TRIE_ATTENTION
    assert model.get_submodule(vision.family.tower).config._attn_implementation != TRIE_ATTENTION
    assert not any(part.training for part in model.modules())


@pytest.mark.whole
@pytest.mark.parametrize("family", FEW_FIRST)
def test_an_exported_model_opens_in_transformers_and_says_the_same(family: str, tmp_path: Path) -> None:
    model = opened(written(family, tmp_path / "model"))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))
    ids = (5, 6, *make_image(family, 1).token_ids, 7)
    twin = copy.deepcopy(model)
    export_model(model, Bare(), tmp_path / "exported", dtype=torch.float32)
    again = AutoModelForImageTextToText.from_pretrained(tmp_path / "exported").eval()
    for other in (twin, again, opened(tmp_path / "exported")):
        torch.testing.assert_close(plain_logits(other, ids), plain_logits(model, ids), atol=1e-5, rtol=1e-5)
    assert (tmp_path / "exported" / "preprocessor_config.json").read_text() == '{"size": 16}'


def test_tied_embeddings_stay_tied_through_copies_and_export(tmp_path: Path) -> None:
    model = make_vlm("smolvlm", tied=True)
    assert model.lm_head.weight is model.model.text_model.embed_tokens.weight
    twin = copy.deepcopy(model)
    assert twin.lm_head.weight is twin.model.text_model.embed_tokens.weight
    export_model(model, Bare(), tmp_path / "exported")
    again = opened(tmp_path / "exported")
    assert again.lm_head.weight is again.model.text_model.embed_tokens.weight


def test_a_vision_language_model_of_another_family_is_refused_by_name(tmp_path: Path) -> None:
    PaliGemmaConfig().save_pretrained(tmp_path)
    with pytest.raises(ConfigError, match=r"'paligemma', which is not supported; supported are SmolVLM, .*Qwen2-VL"):
        opened(tmp_path)


@pytest.mark.parametrize("family", FAMILIES)
def test_frozen_parts_are_those_that_train_vision_leaves_out(family: str) -> None:
    model, known = make_vlm(family), {}
    for trained in ("none", "projector", "all"):
        freeze_vision(model, trained)
        known[trained] = {name for name, entry in model.named_parameters() if entry.requires_grad}
    family_of = vision_of(model).family  # type: ignore[union-attr]
    everything = {name for name, _ in model.named_parameters()}
    assert known["all"] == everything
    assert known["none"] == {name for name in everything if not family_of.owns(name)}
    assert known["projector"] - known["none"] == {name for name in everything if family_of.is_projector(name)}
    assert known["projector"] > known["none"]


@pytest.mark.parametrize(
    ("vision", "places"),
    [
        ("none", {"model.text_model"}),
        ("projector", {"model.text_model", "model.connector"}),
        ("all", {"model.text_model", "model.connector", "model.vision_model"}),
    ],
)
def test_adapters_go_where_train_vision_says(vision: str, places: set[str]) -> None:
    model = make_vlm("smolvlm")
    targets = find_targets(model, ["all-linear"], vision=vision)
    assert {".".join(name.split(".")[:2]) for name in targets} == places
    assert {name.split(".")[1] for name in find_targets(model, ["q_proj"], vision=vision)} == {
        part.split(".")[1] for part in places
    } - {"connector"}


def test_targets_are_checked_without_weights(tmp_path: Path) -> None:
    folder = written("smolvlm", tmp_path)
    lora = LoraConfig(rank=2, targets=["proj"])
    check_targets(ModelConfig(path=str(folder), lora=lora, train_vision="projector"))
    with pytest.raises(ConfigError, match="there is no 'proj'"):
        check_targets(ModelConfig(path=str(folder), lora=lora, train_vision="none"))


@pytest.mark.whole
def test_adapters_of_all_parts_are_saved_restored_and_merged(tmp_path: Path) -> None:
    folder = written("qwen2_vl", tmp_path / "model")
    settings = ModelConfig(path=str(folder), lora=LoraConfig(rank=2), train_vision="all")
    ids = (5, 6, *make_image("qwen2_vl", 1).token_ids, 7)
    policy = opened(folder)
    plain = plain_logits(policy, ids)
    add_adapters(policy, settings.lora, seed=0, vision="all")
    with torch.no_grad():
        for name, parameter in policy.named_parameters():
            if "lora_B" in name:
                parameter.normal_(0.0, 0.2)
    adapted = plain_logits(policy, ids)
    assert not torch.allclose(adapted, plain, atol=1e-2)
    with adapters_off(policy):
        torch.testing.assert_close(plain_logits(policy, ids), plain)
    again = load_trained(settings, saved_state(policy), device=torch.device("cpu"))
    torch.testing.assert_close(plain_logits(again, ids), adapted)
    merged = merge_trained(again, settings)
    torch.testing.assert_close(plain_logits(merged, ids), adapted, atol=1e-4, rtol=1e-4)


def test_a_checkpoint_of_a_policy_with_a_frozen_tower_is_restored() -> None:
    policy = make_vlm("llava").to(torch.bfloat16)
    freeze_vision(policy, "projector")
    train_in_float32(policy)
    assert next(policy.model.vision_tower.parameters()).dtype == torch.bfloat16
    assert next(policy.model.multi_modal_projector.parameters()).dtype == torch.float32
    other = copy.deepcopy(policy)
    with torch.no_grad():
        policy.lm_head.weight.add_(1.0)
    restore_state(other, saved_state(policy))
    assert torch.equal(other.lm_head.weight, policy.lm_head.weight)


def test_positions_of_patches_are_found_in_float32_whatever_the_weights_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """Older versions of transformers round them to the type of the pixels: 3/10 is then below 3/10."""
    from transformers import SmolVLMVisionConfig
    from transformers.models.smolvlm.modeling_smolvlm import SmolVLMVisionEmbeddings, SmolVLMVisionTransformer

    config = SmolVLMVisionConfig(
        hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=2, image_size=100, patch_size=10
    )
    tower = SmolVLMVisionTransformer(config).bfloat16()
    plain, seen = SmolVLMVisionEmbeddings.forward, []

    def forward(self: Any, pixel_values: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        seen.append(pixel_values.dtype)
        return plain(self, pixel_values, *args, **kwargs)

    monkeypatch.setattr(SmolVLMVisionEmbeddings, "forward", forward)
    for _ in range(2):  # a second time changes nothing
        steady_positions(tower)
    positions = list[torch.Tensor]()
    tower.embeddings.position_embedding.register_forward_pre_hook(lambda module, args: positions.append(args[0]))
    pixels, mask = torch.rand(1, 3, 100, 100, dtype=torch.bfloat16), torch.ones(1, 10, 10, dtype=torch.bool)
    output = copy.deepcopy(tower).embeddings(pixel_values=pixels, patch_attention_mask=mask)
    assert output.dtype == torch.bfloat16
    assert seen == [torch.float32]
    assert positions[0].tolist() == [list(range(100))]


@pytest.mark.parametrize("sizes", [(4, 4, 4), (4, 2, 4, 5)])
@pytest.mark.parametrize("family", ["qwen2_vl", "qwen2_5_vl", "qwen3_vl"])
def test_segments_of_one_length_are_attended_to_together(
    family: str, sizes: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """And give what the model's own code gives, one segment after the other, with its gradients."""
    model = make_vlm(family)
    images = [make_image(family, seed, size=size) for seed, size in enumerate(sizes)]
    pixels = torch.cat([torch.from_numpy(image.inputs["pixel_values"]) for image in images])
    grids = torch.cat([torch.from_numpy(image.inputs["image_grid_thw"]) for image in images])
    tower = model.model.visual

    def run() -> tuple[torch.Tensor, torch.Tensor]:
        model.zero_grad()
        rows = tower(pixels, grid_thw=grids).pooler_output
        (rows * torch.linspace(-1, 1, rows.numel()).view_as(rows)).sum().backward()
        return rows.detach(), tower.blocks[0].attn.qkv.weight.grad.clone()

    expected = run()
    for _ in range(2):  # a second time changes nothing
        attend_in_segments(tower)
    tower = model.model.visual = copy.deepcopy(tower)  # as an engine copies it
    plain, calls = torch.nn.functional.scaled_dot_product_attention, []

    def count(query: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        calls.append(query.shape)
        return plain(query, *args, **kwargs)

    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", count)
    for found, wanted in zip(run(), expected, strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)
    assert len(calls) == len(tower.blocks) * (1 if len(set(sizes)) == 1 else 3) or family == "qwen2_5_vl"
    assert len(calls) < len(tower.blocks) * 6
