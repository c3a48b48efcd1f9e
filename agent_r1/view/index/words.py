"""Words for the full-text search: how texts are cut into words, and how a search box becomes an FTS5 query.

Scripts that do not separate words (Chinese, Japanese, Thai ...) are indexed character by character, and a run of such
characters is searched as a phrase.
"""

from __future__ import annotations

import re

MAX_WORDS = 12
_UNSPACED = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003134f"
)
_CHARACTER = re.compile(f"([{_UNSPACED}])")
_PIECE = re.compile(r'"([^"]*)"?|(\S+)')


def as_words(text: str) -> str:
    """Text in which every character of an unspaced script is a word of its own.

    >>> as_words("価格 is 3")
    ' 価  格  is 3'
    """
    return text if text.isascii() else _CHARACTER.sub(r" \1 ", text)


def search_phrases(query: str) -> list[str]:
    """One FTS5 query per word or quoted phrase of a search box; the last word may be the beginning of a word.

    >>> search_phrases('cost "two tea" plu')
    ['"cost"', '"two tea"', '"plu"*']
    """
    phrases: list[str] = []
    is_open = False
    for quoted, word in _PIECE.findall(query)[:MAX_WORDS]:
        text = " ".join(as_words((quoted or word).replace("\0", " ").replace('"', " ")).split())
        if any(character.isalnum() for character in text):
            phrases.append(f'"{text}"')
            is_open = bool(word)
    if phrases and is_open and not query.endswith((" ", '"')):
        phrases[-1] += "*"
    return phrases
