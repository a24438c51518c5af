"""Words of an encoded prompt, with the rows of its conditioning that they became: where a phrase stands.

Words are found in the text, not by token ids, so that no tokenizer is needed and syntax between them does not count.

Source: docs/places.md, "Phrases".
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from typing import TYPE_CHECKING, NamedTuple

from ...encoder.quoting import quote
from ..schemes.scheme import RowOrigin
from ..text.chunks import Token, TokenChunk
from ..text.embeddings import EMBEDDING_PREFIX, EmbeddingVector
from ..text.phrases import without_commas
from ..text.prompt import Break, Fragment, Span, shortened

if TYPE_CHECKING:
    from ..pipeline import EncodedPrompt

_ALONE = "\u2e80-\U0003ffff"
"""Characters of scripts without spaces between words: each is a word."""
_PREFIX = re.compile(rf"\b{EMBEDDING_PREFIX}(?=\S)", re.IGNORECASE)
_WORD = re.compile(rf"[{_ALONE}]|[^\W{_ALONE}]+|[^\w\s]")


class Word(NamedTuple):
    """A word of a prompt, a sign between words, or the mention of an embedding."""

    text: str
    """Its text without case; of an embedding, its name."""
    span: Span
    """Its position in the prompt as typed."""
    typed: str
    """Its text as typed."""
    embedding: str = ""
    """Name of the embedding that it is; empty for a word."""


class _Atom(NamedTuple):
    """A word, or a part of an embedding's name, as phrases are compared with it."""

    text: str | None
    """Its text without case; None for a BREAK."""
    word: int
    """Number of its word."""
    begins: bool = True
    """Whether a phrase may begin with it: not within an embedding's name."""
    ends: bool = True
    """Whether a phrase may end with it."""


@dataclass(frozen=True)
class Words:
    """Words of a prompt and its rows."""

    words: tuple[Word | None, ...]
    """Words in order; None for a BREAK."""
    rows: tuple[Span | None, ...]
    """Text that each row of the conditioning was made of; None for rows without a word."""

    def rows_of(self, phrase: str) -> tuple[int, ...]:
        """Rows of a phrase, counted from 0, in all places where it stands; none if it is absent.

        A phrase is found by its whole words, whatever their case, weight and syntax, and without commas around it; an
        embedding by its name, with or without ``embedding:``.
        """
        return tuple(sorted({row for number in self.numbers_of(phrase) for row in self._rows_of_words.get(number, ())}))

    def numbers_of(self, phrase: str) -> set[int]:
        """Numbers of a phrase's words among ``words``, in all places where it stands; none if it is absent."""
        pattern = [text.casefold() for text in _WORD.findall(_PREFIX.sub(" ", without_commas(phrase)))]
        numbers: set[int] = set()
        end = 0
        for start in self._starts(pattern):
            last = start + len(pattern) - 1
            if self._atoms[start].begins and self._atoms[last].ends:
                numbers.update(self._atoms[place].word for place in range(max(start, end), last + 1))
                end = last + 1
        return numbers

    def _starts(self, pattern: Sequence[str]) -> Iterable[int]:
        """Places of some atoms in a row, in time that grows with the prompt and the phrase alone."""
        if not pattern or not all(text in self._places for text in pattern):
            return ()
        return (
            self._places[pattern[0]] if len(pattern) == 1 else _starts_of(pattern, [atom.text for atom in self._atoms])
        )

    @cached_property
    def _atoms(self) -> list[_Atom]:
        atoms: list[_Atom] = []
        for number, word in enumerate(self.words):
            if word is None or not word.embedding:
                atoms.append(_Atom(word and word.text, number))
                continue
            texts = [text.casefold() for text in _WORD.findall(word.embedding)]
            atoms += (_Atom(text, number, place == 0, place == len(texts) - 1) for place, text in enumerate(texts))
        return atoms

    @cached_property
    def _places(self) -> dict[str | None, list[int]]:
        """Numbers of the atoms that have a text."""
        places: dict[str | None, list[int]] = {}
        for place, atom in enumerate(self._atoms):
            places.setdefault(atom.text, []).append(place)
        return places

    @cached_property
    def _rows_of_words(self) -> dict[int, list[int]]:
        """Rows of each word, by its number."""
        by_place = sorted((word.span, number) for number, word in enumerate(self.words) if word is not None)
        ends = [span.end for span, _ in by_place]
        rows: dict[int, list[int]] = {}
        for row, span in enumerate(self.rows):
            place = len(ends) if span is None else bisect_right(ends, span.start)
            while span is not None and place < len(ends) and by_place[place][0].start < span.end:
                rows.setdefault(by_place[place][1], []).append(row)
                place += 1
        return rows


def _starts_of(pattern: Sequence[str], texts: Sequence[str | None]) -> Iterator[int]:
    """Places where texts stand in a row among others; Knuth, Morris and Pratt, SIAM Journal on Computing 6 (1977)."""
    borders = [0]  # of the first texts: how many of them are also the last ones
    for text in pattern[1:]:
        border = borders[-1]
        while border and text != pattern[border]:
            border = borders[border - 1]
        borders.append(border + (text == pattern[border]))
    matched = 0
    for place, text in enumerate(texts):
        while matched and (matched == len(pattern) or text != pattern[matched]):
            matched = borders[matched - 1]
        matched += text == pattern[matched]
        if matched == len(pattern):
            yield place - matched + 1


Stretch = tuple[str, Sequence[int]]
"""A text whose character i is at position i of the numbers in the prompt; its first and last words end there."""


def words_of(
    parts: Iterable[Fragment | Break], chunks: Sequence[TokenChunk] = (), places: Sequence[RowOrigin] = ()
) -> Words:
    """Words of a prompt.

    Args:
        parts: The prompt as parsed.
        chunks: Its chunks.
        places: Place of each row of its conditioning in the chunks; none if there is none yet.
    """
    stretches = [None if isinstance(part, Break) else (part.text, part.positions) for part in parts]
    return words_in(stretches, [chunks[chunk].tokens[position] for chunk, position in places])


def words_in(stretches: Iterable[Stretch | None], rows: Sequence[Token]) -> Words:
    """Words of stretches of a prompt, with None for a BREAK between them; ``rows`` are the tokens of its rows."""
    spans = {token.span: token.id.name for token in rows if token.span and isinstance(token.id, EmbeddingVector)}
    embeddings = sorted(spans.items())
    words: list[Word | None] = []
    for stretch in stretches:
        words += [None] if stretch is None else _words(*stretch, embeddings)
    return Words(tuple(words), tuple(token.span for token in rows))


def words_of_towers(prompts: Mapping[str, EncodedPrompt]) -> dict[str, Words] | None:
    """Words of an encoded prompt, as read by each text tower; None if its rows are a blend of several prompts."""
    if any(len(section.prompts) > 1 for prompt in prompts.values() for section in prompt.read.sections):
        return None
    return {
        name: words_of(prompt.read.prompt.parts, prompt.read.chunks, prompt.places) for name, prompt in prompts.items()
    }


def names_in(prompts: Iterable[Words]) -> tuple[str, ...]:
    """Words and embeddings of prompts in order and as typed, without signs, each once whatever its case."""
    names: dict[str, str] = {}
    for words in prompts:
        for word in words.words:
            if word is not None and (word.embedding or word.typed[0].isalnum()):
                names.setdefault(word.text, word.embedding or word.typed)
    return tuple(names.values())


def rows_in_towers(words: Mapping[str, Words], phrase: str, num_rows: int) -> tuple[int, ...]:
    """Rows of a phrase, as in `Words.rows_of`, of text towers whose rows stand side by side.

    ``num_rows``: the number of rows to which a host cuts the longer ones.

    Raises:
        ValueError: If the towers have the phrase in different rows.
    """
    by_tower = {
        name: tuple(row for row in tower_words.rows_of(phrase) if row < num_rows) for name, tower_words in words.items()
    }
    (first, rows), *rest = by_tower.items()
    for name, tower_rows in rest:
        if tower_rows != rows:
            raise ValueError(
                f"The text encoders {first} and {name} have “{shortened(phrase)}” in different rows, "
                f"{quote(list(rows))} and {quote(list(tower_rows))}, which stand side by side. Give both the same text."
            )
    return rows


def _words(text: str, positions: Sequence[int], embeddings: Sequence[tuple[Span, str]]) -> Iterator[Word]:
    """Words of a text whose character i is at ``positions[i]`` of the prompt; ``embeddings`` are in its order."""
    starts = [span.start for span, _ in embeddings]

    def mention(match: re.Match[str]) -> int | None:
        start = positions[match.start()]
        number = bisect_right(starts, start) - 1
        return number if number >= 0 and start < embeddings[number][0].end else None

    for number, group in groupby(_WORD.finditer(text), mention):
        matches = [*group]
        parts = [(match, match) for match in matches] if number is None else [(matches[0], matches[-1])]
        for first, last in parts:
            typed, name = text[first.start() : last.end()], "" if number is None else embeddings[number][1]
            yield Word(
                (name or typed).casefold(), Span(positions[first.start()], positions[last.end() - 1] + 1), typed, name
            )
