"""Tags that a model was never trained to write are found in its output head."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from agent_r1.data import DemonstrationRow
from agent_r1.training.tag_rows import SharedRow, describe_shared, shared_rows, warm_start_warning
from tests.conftest import tiny_config

UNUSED = ("<tool_call>", "</tool_call>", "<tool_response>")


def ids_of(tokenizer: Any, *texts: str) -> list[int]:
    return [tokenizer.convert_tokens_to_ids(text) for text in texts]


def head_of(model: Any) -> torch.Tensor:
    weight: torch.Tensor = model.get_output_embeddings().weight.data
    return weight


def with_equal_rows(model: Any, tokenizer: Any, noise: float = 0.0) -> Any:
    """The model with one row for all of `UNUSED`; `noise` is relative to its size."""
    head = head_of(model)
    row = head[ids_of(tokenizer, UNUSED[0])]
    rows = row.repeat(len(UNUSED), 1)
    head[ids_of(tokenizer, *UNUSED)] = rows + noise * row.norm() * torch.nn.functional.normalize(torch.randn_like(rows))
    return model


def test_rows_that_are_random_are_not_shared(tiny_model: Any, tokenizer: Any) -> None:
    assert shared_rows(tiny_model, tokenizer, range(len(tokenizer))) == []


def test_an_equal_row_is_found_with_the_number_of_its_tokens(tiny_model: Any, tokenizer: Any) -> None:
    with_equal_rows(tiny_model, tokenizer)
    opening, closing, _ = ids_of(tokenizer, *UNUSED)
    [row] = shared_rows(tiny_model, tokenizer, [opening, tokenizer.eos_token_id])
    scale = float(head_of(tiny_model)[sorted(tokenizer.added_tokens_decoder)].square().mean().sqrt())
    assert (row.text, row.token_id, row.num_others) == ("<tool_call>", opening, 2)
    assert row.scale == pytest.approx(scale)
    assert [row.token_id for row in shared_rows(tiny_model, tokenizer, [opening, closing])] == [opening, closing]


def test_the_head_is_looked_at_where_it_is_not_the_embedding(tokenizer: Any) -> None:
    from transformers import LlamaForCausalLM

    config = tiny_config(tokenizer)
    config.tie_word_embeddings = False
    torch.manual_seed(0)
    model: Any = LlamaForCausalLM(config)
    model.get_input_embeddings().weight.data[:] = 1.0
    assert shared_rows(model, tokenizer, range(len(tokenizer))) == []
    with_equal_rows(model, tokenizer)
    assert [row.text for row in shared_rows(model, tokenizer, range(len(tokenizer)))] == list(UNUSED)


@pytest.mark.parametrize(("noise", "number"), [(0.003, 3), (0.1, 0)])
def test_rows_are_shared_when_they_differ_by_less_than_training_would(
    tiny_model: Any, tokenizer: Any, noise: float, number: int
) -> None:
    with_equal_rows(tiny_model, tokenizer, noise)
    assert len(shared_rows(tiny_model, tokenizer, range(len(tokenizer)))) == number


def test_rows_of_zeros_are_equal(tiny_model: Any, tokenizer: Any) -> None:
    ids = ids_of(tokenizer, *UNUSED)
    head_of(tiny_model)[[*ids, tokenizer.pad_token_id]] = 0.0
    rows = shared_rows(tiny_model, tokenizer, ids)
    assert [row.num_others for row in rows] == [3, 3, 3]
    assert rows[0].scale > 0


def test_tokens_of_ordinary_text_are_not_compared(tiny_model: Any, tokenizer: Any) -> None:
    ids = tokenizer.encode("egg tea", add_special_tokens=False)
    head_of(tiny_model)[ids] = 1.0
    assert shared_rows(tiny_model, tokenizer, ids) == []


def test_the_words_name_the_tags_and_count_the_others() -> None:
    row = SharedRow(text="<a>", token_id=7, num_others=1, scale=0.1)
    assert describe_shared([row]).startswith(
        "'<a>' (token 7) has the same row of the output head as 1 other added token:"
    )
    two = describe_shared([replace(row, num_others=12), replace(row, text="<b>", token_id=8, num_others=12)])
    assert "as 12 other added tokens, '<b>' (token 8) the same as 12: the model was never trained to write them" in two


def demonstrations(token_id: int) -> list[list[DemonstrationRow]]:
    """One that writes this token, and none that the warm start will not use."""
    return [[], [DemonstrationRow(token_ids=(1, 2, token_id), actions=(2,))]]


def test_a_warm_start_that_moves_weights_too_little_is_warned_of(tiny_model: Any, tokenizer: Any) -> None:
    [opening] = ids_of(tokenizer, UNUSED[0])
    conversations = demonstrations(opening)
    assert warm_start_warning(tiny_model, tokenizer, conversations, steps=60, learning_rate=1e-5) is None
    with_equal_rows(tiny_model, tokenizer)
    warning = warm_start_warning(tiny_model, tokenizer, conversations, steps=60, learning_rate=1e-5)
    assert warning is not None
    assert "sft.steps=60 x sft.learning_rate=1e-05 make 0.0006" in warning
    assert warm_start_warning(tiny_model, tokenizer, conversations, steps=60, learning_rate=1e-2) is None
    others = demonstrations(tokenizer.eos_token_id)
    assert warm_start_warning(tiny_model, tokenizer, others, steps=60, learning_rate=1e-5) is None


def test_a_head_that_is_not_trained_is_warned_of_at_every_learning_rate(tiny_model: Any, tokenizer: Any) -> None:
    with_equal_rows(tiny_model, tokenizer).requires_grad_(False)
    [opening] = ids_of(tokenizer, UNUSED[0])
    warning = warm_start_warning(tiny_model, tokenizer, demonstrations(opening), steps=60, learning_rate=1.0)
    assert warning is not None
    assert "model.lora.rank=0" in warning
