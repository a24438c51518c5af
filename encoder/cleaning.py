"""Text cleaned as in Forge before it is tokenized, with the origin of each character.

Forge tokenizes with the slow CLIPTokenizer of transformers 4, which repairs text by ftfy: curly quotes become straight
ones, ``&amp;`` becomes ``&``, ligatures and full-width letters become plain ones, and wrongly decoded text is decoded
again. ftfy is imported only when a text may need it.

Source: docs/reference/syntaxes.md, "Cleaning"; transformers 4.46.1 ``CLIPTokenizer`` with ftfy 6.3.1.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib.util import find_spec
from typing import NamedTuple

from .tokenizer import TokenSpan, without_surrogates

_WORDS = re.compile(r"\s+|\S+")
_SPECIAL = re.compile(r"<\|(?:start|end)oftext\|>")
_SPECIAL_WORD = re.compile(r"(?<![^\w\s])(?<!_)" + _SPECIAL.pattern, re.IGNORECASE)
"""BOS or EOS in letters of any case at a possible word start, i.e. not after a symbol."""


class Cleaned(NamedTuple):
    """A text as it is tokenized."""

    text: str
    """The cleaned text."""
    spans: list[tuple[int, int]]
    """Start and end in code points of the original, for each character."""

    def span_of(self, start: int, end: int) -> tuple[int, int]:
        """Origin of a stretch of the text; (0, 0) for an empty one."""
        return (self.spans[start][0], self.spans[end - 1][1]) if end > start else (0, 0)


@dataclass(frozen=True)
class CleaningTokenize:
    """A tokenizer preceded by `clean`; equal for equal tokenizers. Without ftfy it is the tokenizer itself."""

    tokenize: Callable[[str], Sequence[tuple[int, int, int]]]
    """From text to ``(id, start, end)`` triples."""

    def __call__(self, text: str) -> Sequence[tuple[int, int, int]]:
        """Tokens of a text, with positions in the text before cleaning."""
        cleaned = clean(text) if may_change(text) and can_clean() else None
        if cleaned is None:
            return self.tokenize(text)
        return [
            TokenSpan(token_id, *cleaned.span_of(start, end)) for token_id, start, end in self.tokenize(cleaned.text)
        ]


def can_clean() -> bool:
    """Whether ftfy is installed."""
    return find_spec("ftfy") is not None


def may_change(text: str) -> bool:
    """Whether `clean` examines a text at all: plain ASCII without ``&`` and ``<|`` remains unchanged.

    >>> may_change("a (red:1.2) cat's bowl"), may_change("rock &amp; roll")
    (False, True)
    """
    return not (text.isascii() and text.isprintable() and "&" not in text and "<|" not in text)


def clean(text: str) -> Cleaned | None:
    """Repair a text as Forge does.

    Args:
        text: Text of one weight; Forge cleans each stretch separately.

    Returns:
        The cleaned text, or None if it is unchanged.

    Raises:
        ImportError: If the text may change, and ftfy is not installed.

    >>> clean("“red” &amp; blue").text
    '"red" & blue'
    """
    if not may_change(text):
        return None
    text = without_surrogates(text)
    parts: list[str] = []
    spans: list[tuple[int, int]] = []
    start = 0
    for special in (*_SPECIAL.finditer(text), None):  # BOS and EOS are found before anything is repaired
        end = len(text) if special is None else special.start()
        words = list(_repaired(text, start, end))
        parts.append(_SPECIAL_WORD.sub(lambda found: found[0].lower(), "".join(word for word, _, _ in words)))
        for word, first, last in words:
            spans += _spans(text[first:last], word, first)
        if special is not None:
            parts.append(special[0])
            start = special.end()
            spans += ((index, index + 1) for index in range(end, start))
    cleaned = "".join(parts)
    return None if cleaned == text else Cleaned(cleaned, spans)


def _repaired(text: str, start: int, end: int) -> Iterator[tuple[str, int, int]]:
    """Repair a part of a text by ftfy: word by word, each with its position in the text, if that gives the same."""
    import ftfy

    part = text[start:end]
    fixed = ftfy.fix_text(part)
    is_html = "<" in part
    words = [
        (_repaired_word(word[0], is_html), start + word.start(), start + word.end()) for word in _WORDS.finditer(part)
    ]
    is_same = "".join(word for word, _, _ in words) == fixed
    yield from words if is_same else [(fixed, start, end)]


@lru_cache(maxsize=4096)
def _repaired_word(word: str, is_html: bool) -> str:
    """Repair a word of a part by ftfy; entities are decoded only if the part is not HTML."""
    import ftfy

    if not may_change(word):
        return word
    return ftfy.fix_text(word, ftfy.TextFixerConfig(unescape_html=False if is_html else "auto"))


def _spans(old: str, new: str, first: int) -> Iterator[tuple[int, int]]:
    """Origin of each character of a repaired word in the old one, which begins at code point ``first``."""
    before = behind = 0
    if len(old) == len(new):
        before = len(old)
    else:
        shorter = min(len(old), len(new))
        while before < shorter and old[before] == new[before]:
            before += 1
        while behind < shorter - before and old[-1 - behind] == new[-1 - behind]:
            behind += 1
        before -= before > 0 and before + behind == len(new)  # omitted characters belong to the character before
    end = first + len(old)
    yield from ((index, index + 1) for index in range(first, first + before))
    yield from [(first + before, end - behind)] * (len(new) - before - behind)
    yield from ((index, index + 1) for index in range(end - behind, end))
