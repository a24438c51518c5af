"""Words of an encoded prompt, with the rows of its conditioning that they became: where a phrase stands.

Words are found in the text, not by token ids, so that no tokenizer is needed and syntax between them does not count.

Source: docs/places.md, "Phrases".
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from .chunks import TokenChunk
from .prompt import Break, Fragment, Span
from .scheme import Place

if TYPE_CHECKING:
    from .pipeline import EncodedPrompt

_ALONE = "\u2e80-\U0003ffff"
"""Characters of scripts without spaces between words: each is a word."""
_WORD = re.compile(rf"[{_ALONE}]|[^\W{_ALONE}]+|[^\w\s]")


class Word(NamedTuple):
    """A word of a prompt, or a sign between words."""

    text: str
    """Its text without case."""
    span: Span
    """Its position in the prompt as typed."""
    typed: str
    """Its text as typed."""


class Words(NamedTuple):
    """Words of a prompt and its rows."""

    words: tuple[Word | None, ...]
    """Words in order; None for a BREAK."""
    rows: tuple[Span | None, ...]
    """Text that each row of the conditioning was made of; None for those of no word."""

    def rows_of(self, phrase: str) -> tuple[int, ...]:
        """Rows of a phrase, counted from 0, in all places where it stands; none if it is absent.

        A phrase is found by its whole words, whatever their case, weight and syntax.
        """
        spans = sorted(word.span for number in self.numbers_of(phrase) if (word := self.words[number]))
        ends = [span.end for span in spans]

        def is_found(row: Span) -> bool:
            first = bisect_right(ends, row.start)
            return first < len(spans) and spans[first].start < row.end

        return tuple(number for number, row in enumerate(self.rows) if row and is_found(row))

    def numbers_of(self, phrase: str) -> set[int]:
        """Numbers of a phrase's words among ``words``, in all places where it stands; none if it is absent."""
        wanted = [word.text for word in _words(phrase, range(len(phrase)))]
        texts = [word and word.text for word in self.words]
        starts = [start for start in range(len(texts)) if wanted and texts[start : start + len(wanted)] == wanted]
        return {number for start in starts for number in range(start, start + len(wanted))}


Stretch = tuple[str, Sequence[int]]
"""A text whose character i is at position i of the numbers in the prompt; its first and last words end there."""


def words_of(
    parts: Iterable[Fragment | Break], chunks: Sequence[TokenChunk] = (), places: Sequence[Place] = ()
) -> Words:
    """Words of a prompt.

    Args:
        parts: The prompt as parsed.
        chunks: Its chunks.
        places: Place of each row of its conditioning in the chunks; none if there is none yet.
    """
    stretches = [None if isinstance(part, Break) else (part.text, part.positions) for part in parts]
    return words_in(stretches, [chunks[chunk].tokens[position].span for chunk, position in places])


def words_in(stretches: Iterable[Stretch | None], rows: Sequence[Span | None]) -> Words:
    """Words of stretches of a prompt, with None for a BREAK between them, and of rows made of some of its text."""
    words: list[Word | None] = []
    for stretch in stretches:
        words += [None] if stretch is None else _words(*stretch)
    return Words(tuple(words), tuple(rows))


def words_of_towers(prompts: Mapping[str, EncodedPrompt]) -> dict[str, Words] | None:
    """Words of an encoded prompt, as read by each text tower; None if its rows are a blend of several prompts."""
    if any(len(section.prompts) > 1 for prompt in prompts.values() for section in prompt.read.sections):
        return None
    return {
        name: words_of(prompt.read.prompt.parts, prompt.read.chunks, prompt.places) for name, prompt in prompts.items()
    }


def names_in(prompts: Iterable[Words]) -> tuple[str, ...]:
    """Words of prompts in order and as typed, without signs, each once whatever its case."""
    found: dict[str, str] = {}
    for words in prompts:
        for word in words.words:
            if word is not None and word.typed[0].isalnum():
                found.setdefault(word.text, word.typed)
    return tuple(found.values())


def rows_in_towers(words: Mapping[str, Words], phrase: str, num_rows: int) -> tuple[int, ...]:
    """Rows of a phrase, as in `Words.rows_of`, of text towers whose rows stand side by side.

    ``num_rows``: the number of rows to which a host cuts the longer ones.

    Raises:
        ValueError: If the towers have the phrase in different rows.
    """
    by_tower = {name: tuple(row for row in own.rows_of(phrase) if row < num_rows) for name, own in words.items()}
    (first, found), *others = by_tower.items()
    for name, own in others:
        if own != found:
            raise ValueError(
                f"The text encoders {first} and {name} have “{phrase}” in different rows, {list(found)} and "
                f"{list(own)}, which stand side by side. Give both the same text."
            )
    return found


def _words(text: str, positions: Sequence[int]) -> list[Word]:
    """Words of a text whose character i is at ``positions[i]`` of the prompt."""
    return [
        Word(found.group().casefold(), Span(positions[found.start()], positions[found.end() - 1] + 1), found.group())
        for found in _WORD.finditer(text)
    ]
