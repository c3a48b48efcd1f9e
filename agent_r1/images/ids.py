"""The ids of image tokens: made from the content of the image, above every vocabulary.

bit 62            set in image tokens alone
bits 13 to 61     49 bits of the image's key
bits 0 to 12      which of its tokens
"""

from __future__ import annotations

import hashlib

from agent_r1.types import TokenIds

FIRST_IMAGE_ID = 2**62
"""Ids from here on are image tokens; ids of text are far below."""

_INDEX_BITS: int = 13
_HASH_BITS: int = 49

MAX_IMAGE_TOKENS = 1 << _INDEX_BITS
"""The most tokens one image may have."""


def is_image_id(token_id: int) -> bool:
    """Whether an id is an image token.

    >>> is_image_id(151_655), is_image_id(image_token_ids("some key", 1)[0])
    (False, True)
    """
    return token_id >= FIRST_IMAGE_ID


def image_token_ids(key: str, num_tokens: int) -> TokenIds:
    """The ids of the tokens of the image with this key, in order.

    >>> first, second = image_token_ids("some key", 2)
    >>> second - first, image_number(first) == image_number(second)
    (1, True)
    """
    if not 0 < num_tokens <= MAX_IMAGE_TOKENS:
        raise ValueError(f"an image has 1 to {MAX_IMAGE_TOKENS} tokens; got {num_tokens}")
    digest = int.from_bytes(hashlib.sha256(key.encode()).digest()[:8])
    first = FIRST_IMAGE_ID + (digest >> (64 - _HASH_BITS) << _INDEX_BITS)
    return tuple(range(first, first + num_tokens))


def image_number(token_id: int) -> int:
    """What all tokens of one image have in common."""
    return token_id >> _INDEX_BITS


def token_index(token_id: int) -> int:
    """Which token of its image an id is.

    >>> token_index(image_token_ids("some key", 3)[2])
    2
    """
    return token_id & (MAX_IMAGE_TOKENS - 1)
