"""What FlexAttention is told about token tries, as far as it shows without a GPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.attention.flex_attention import flex_attention

from agent_r1.learner.packing.flex_attention import LARGE_BLOCK, kernel_options, with_own_heads


def heads(count: int, width: int) -> Tensor:
    return torch.randn(1, count, width, 16)


def test_a_head_of_keys_is_repeated_for_each_head_of_queries_that_shares_it() -> None:
    torch.manual_seed(0)
    query, key, value = heads(6, 5), heads(2, 5), heads(2, 5)
    attend = torch.nn.functional.scaled_dot_product_attention
    own_key, own_value = with_own_heads(query, key, value)
    assert own_key[0, :, 0, 0].tolist() == [*[float(key[0, 0, 0, 0])] * 3, *[float(key[0, 1, 0, 0])] * 3]
    torch.testing.assert_close(attend(query, own_key, own_value), attend(query, key, value, enable_gqa=True))


def test_heads_that_nothing_shares_are_not_copied() -> None:
    query, key, value = heads(2, 5), heads(2, 5), heads(2, 5)
    own = with_own_heads(query, key, value)
    assert own[0] is key
    assert own[1] is value


@pytest.mark.parametrize(("width", "is_whole"), [(2 * LARGE_BLOCK, True), (LARGE_BLOCK + 64, False), (1, False)])
def test_kernels_check_bounds_only_where_a_row_is_no_whole_blocks(width: int, is_whole: bool) -> None:
    assert kernel_options(heads(1, width), LARGE_BLOCK).get("IS_DIVISIBLE", False) is is_whole


@pytest.fixture
def options_seen() -> tuple[list[dict[str, Any]], Callable[[Any, Any], Any]]:
    """The kernel options of what is compiled, and a compiler that notes them and compiles nothing."""
    seen: list[dict[str, Any]] = []

    def compiler(graph: Any, inputs: Any) -> Any:
        seen.extend(node.args[6] for node in graph.graph.nodes if node.target is torch.ops.higher_order.flex_attention)
        return graph.forward

    return seen, compiler


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_width_that_is_a_symbol_to_the_compiler_is_still_known_to_be_whole_blocks(
    options_seen: tuple[list[dict[str, Any]], Callable[[Any, Any], Any]],
) -> None:
    seen, compiler = options_seen

    def attend(query: Tensor) -> Any:
        return flex_attention(query, query, query, kernel_options=kernel_options(query, LARGE_BLOCK))

    compiled = torch.compile(attend, backend=compiler, dynamic=True)
    with torch.no_grad():
        for blocks in (2, 3, 5):
            compiled(heads(1, blocks * LARGE_BLOCK))
        compiled(heads(1, LARGE_BLOCK + 1))
    whole, ragged = seen  # one graph for all widths of whole blocks, another for the rest
    assert whole["IS_DIVISIBLE"] is True
    assert "IS_DIVISIBLE" not in ragged
