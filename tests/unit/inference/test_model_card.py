"""A model card names recipes so that its commands work for readers elsewhere."""

from __future__ import annotations

from pathlib import Path

import pytest

from agent_r1.config import load_config, to_yaml
from agent_r1.inference.model_card import CardFacts, model_card
from agent_r1.runs import RunFolder
from agent_r1.shipped import find_recipe


def card_of(recipe: str, folder: Path) -> str:
    folder.mkdir()
    (folder / "config.yaml").write_text(to_yaml(load_config(recipe)), encoding="utf-8")
    return model_card(CardFacts(name="mine", run=RunFolder(folder), step=None, adapters=False, base="base"))


@pytest.mark.parametrize("recipe", ["quickstart", str(find_recipe("quickstart"))])
def test_a_card_calls_a_recipe_of_the_package_by_its_name(recipe: str, tmp_path: Path) -> None:
    card = card_of(recipe, tmp_path / "run")
    assert "- recipe: `quickstart`\n" in card
    assert "agent-r1 train quickstart\n" in card
    assert "agent-r1 chat mine --recipe quickstart\n" in card


def test_a_card_calls_the_current_folder_by_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "cellar").mkdir()
    monkeypatch.chdir(tmp_path / "cellar")
    Path("base.yaml").write_text(
        "defaults: [agent_r1, {algorithm: grpo}, _self_]\nmodel: {path: base}\n", encoding="utf-8"
    )
    card = card_of(".", tmp_path / "run")
    assert "- recipe: `cellar`\n" in card
    assert "agent-r1 train cellar\n" in card
