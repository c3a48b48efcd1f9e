"""The tiny model that reads images, and a vision tower in front of a language model."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForImageTextToText, AutoTokenizer, LlamaConfig, LlamaForCausalLM

pytest.importorskip("PIL", reason="images need Pillow: pip install 'agent-r1[images]'")

from PIL import Image

from agent_r1.chat import load_renderer
from agent_r1.errors import ConfigError
from agent_r1.images import is_image_id, read_picture
from agent_r1.models import add_vision_tower, build_tiny_vision_model
from agent_r1.types import Observation
from tests.helpers.tiny_vlms import tiny_vlm_tokenizer

RED = Image.new("RGB", (20, 10), "red")
ASKED = (
    {"role": "user", "content": [{"type": "image", "image": RED}, {"type": "text", "text": "What color?"}]},
    {"role": "assistant", "content": "red"},
)


def image_features(folder: Path) -> torch.Tensor:
    """What the model's own code makes of one image."""
    renderer = load_renderer(str(folder))
    encoded = renderer.processor.encode(read_picture(RED))
    model = AutoModelForImageTextToText.from_pretrained(folder)
    inputs = {name: torch.tensor(array) for name, array in encoded.inputs.items()}
    features = model.get_image_features(**inputs).pooler_output[0]
    assert features.shape[0] == encoded.num_tokens
    return features


def test_a_tiny_model_is_a_complete_folder_with_nine_tokens_per_image(tmp_path: Path) -> None:
    build_tiny_vision_model([{"messages": list(ASKED)}] * 30, tmp_path / "model")
    assert image_features(tmp_path / "model").shape == (9, 128)
    prompt = load_renderer(str(tmp_path / "model")).render(Observation(messages=ASKED[:1]))
    assert sum(map(is_image_id, prompt.token_ids)) == 9


def test_a_token_can_stand_for_several_patches(tmp_path: Path) -> None:
    sizes = {"image_size": 40, "patch_size": 10, "patches_per_token": 2}
    build_tiny_vision_model([{"messages": list(ASKED)}] * 30, tmp_path / "model", **sizes)
    assert image_features(tmp_path / "model").shape == (4, 128)


def test_the_same_demonstrations_make_the_same_model_and_leave_torchs_random_numbers_alone(tmp_path: Path) -> None:
    state = torch.random.get_rng_state()
    for name in ("one", "two"):
        build_tiny_vision_model([{"messages": list(ASKED)}] * 30, tmp_path / name, image_size=32, patch_size=8)
    assert torch.equal(state, torch.random.get_rng_state())
    assert (tmp_path / "one" / "model.safetensors").read_bytes() == (
        tmp_path / "two" / "model.safetensors"
    ).read_bytes()
    assert image_features(tmp_path / "one").shape[0] == 16


def make_language_model(folder: Path, *, tied: bool) -> LlamaForCausalLM:
    """A small Llama with the tokens of ChatML, without image tokens."""
    tokenizer = tiny_vlm_tokenizer("llava")
    config = LlamaConfig(
        vocab_size=len(tokenizer) - 1,  # the last is <image>
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        tie_word_embeddings=tied,
        bos_token_id=None,
    )
    model = LlamaForCausalLM(config)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return model


@pytest.mark.whole
@pytest.mark.parametrize("tied", [True, False])
def test_a_language_model_with_a_tower_says_what_it_said_about_text(tmp_path: Path, tied: bool) -> None:
    language = make_language_model(tmp_path / "language", tied=tied)
    add_vision_tower(tmp_path / "language", tmp_path / "model", hidden_size=16, layers=1, image_size=32, patch_size=16)
    seeing = AutoModelForImageTextToText.from_pretrained(tmp_path / "model")
    ids = torch.arange(3, 30)[None]
    with torch.no_grad():
        before = language(input_ids=ids).logits
        after = seeing(input_ids=ids).logits[..., : before.shape[-1]]
    torch.testing.assert_close(after, before, atol=1e-5, rtol=1e-5)
    assert image_features(tmp_path / "model").shape == (4, 32)
    words = language.get_input_embeddings().weight.norm(dim=-1).mean()
    assert 0.2 < image_features(tmp_path / "model").norm(dim=-1).mean() / words < 5


def test_turns_end_where_the_template_closes_them_whatever_ended_texts_before(tmp_path: Path) -> None:
    make_language_model(tmp_path / "language", tied=True)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "language")
    tokenizer.add_special_tokens({"eos_token": "<|endoftext|>"})
    tokenizer.save_pretrained(tmp_path / "language")
    add_vision_tower(tmp_path / "language", tmp_path / "model", hidden_size=16, layers=1, image_size=32, patch_size=16)
    renderer = load_renderer(str(tmp_path / "model"))
    turn = renderer.encode_turn(renderer.render(Observation(messages=ASKED[:1])), dict(ASKED[1]))
    assert renderer.tokenizer.decode(turn, skip_special_tokens=False) == "red<|im_end|>"


def test_a_tower_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="image_size must be a multiple of patch_size"):
        add_vision_tower(tmp_path, tmp_path / "model", image_size=50)
