"""The card of a vision-language model says how such a model is opened."""

from __future__ import annotations

from pathlib import Path

import pytest

from agent_r1.images import is_vision_model
from agent_r1.inference.model_card import CardFacts, model_card
from tests.helpers.vision_models import make_vlm


@pytest.mark.parametrize(("sees", "opener"), [(True, "AutoModelForImageTextToText"), (False, "AutoModelForCausalLM")])
@pytest.mark.parametrize("adapters", [True, False])
def test_the_code_of_a_card_opens_the_model(sees: bool, opener: str, adapters: bool) -> None:
    facts = CardFacts(name="mine", run=None, step=None, adapters=adapters, base="base", reads_images=sees)
    card = model_card(facts)
    assert f"{opener}.from_pretrained" in card
    assert card.count("AutoModelFor") == 2


def test_a_folder_tells_whether_its_model_reads_images(tmp_path: Path) -> None:
    make_vlm("llava").config.save_pretrained(tmp_path / "seeing")
    assert is_vision_model(str(tmp_path / "seeing"))
    assert not is_vision_model(str(tmp_path / "missing"))
