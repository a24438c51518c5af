"""Phrases by token ids, and their positions in a prompt: bound and hidden phrases, names of embeddings."""

from __future__ import annotations

import sys
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property, lru_cache
from itertools import groupby
from string import whitespace
from typing import NamedTuple

from .chunks import Token, TokenChunk, Tokenize
from .embeddings import EMBEDDING_PREFIX, EmbeddingVector
from .prompt import shortened

COMMA = ","
Ids = tuple[int | str, ...]
"""Ids of a phrase's tokens; instead of an embedding's vectors its name in lower case."""


class Match(NamedTuple):
    """The longest phrase that ends at a place."""

    start: int
    end: int
    """Place after it."""
    ids: Ids


class Phrases:
    """Phrases indexed by the ids of their tokens."""

    def __init__(
        self, texts: str | tuple[str, ...], tokenize: Tokenize, embeddings: frozenset[str] = frozenset()
    ) -> None:
        """Tokenize the phrases.

        Args:
            texts: One phrase a line, without the commas around it; or phrases as they are.
            tokenize: The encoder's tokenizer.
            embeddings: Embeddings, by their names in lower case, that phrases may name. A phrase with such names is
                found as text and as embeddings.
        """
        if isinstance(texts, str):
            texts = tuple(dict.fromkeys(phrase for line in texts.splitlines() if (phrase := without_commas(line))))
        self.texts = texts
        self.by_ids: dict[Ids, list[str]] = {}
        names = phrases_of(tuple(sorted(embeddings)), tokenize) if embeddings else None
        prefix = tuple(token_id for token_id, _, _ in tokenize(EMBEDDING_PREFIX)) if names else ()
        for text in texts:
            ids: Ids = tuple(token_id for token_id, _, _ in tokenize(text))
            self.by_ids.setdefault(ids, []).append(text)
            bare = text.removeprefix(EMBEDDING_PREFIX).lower()
            if names and (named := (bare,) if bare in embeddings else _with_names(ids, prefix, names)) != ids:
                self.by_ids.setdefault(named, []).append(text)
        self.by_ids.pop((), None)
        lengths: dict[int | str, set[int]] = {}
        for ids in self.by_ids:
            lengths.setdefault(ids[0], set()).add(len(ids))
        # ascending, by the first id of a phrase
        self._lengths = {first: sorted(sizes) for first, sizes in lengths.items()}

    def at(self, position: int, ids: Ids) -> Iterator[tuple[str, int]]:
        """Phrases at a position, each with its number of tokens, the longest first."""
        lengths = self._lengths.get(ids[position], [])
        for length in reversed(lengths[: bisect_right(lengths, len(ids) - position)]):
            key = ids[position : position + length]
            if key in self.by_ids:
                yield from ((text, length) for text in self.by_ids[key])

    def matches(self, ids: Iterable[int | str]) -> Iterator[Match]:
        """Longest phrase that ends at each place, in time that grows with the ids alone."""
        index, state = self._index, 0
        for place, token_id in enumerate(ids, 1):
            while state and token_id not in index.next[state]:
                state = index.fallback[state]
            state = index.next[state].get(token_id, 0)
            if phrase := index.phrases[state]:
                yield Match(place - len(phrase), place, phrase)

    def shorter(self, ids: Ids) -> Ids | None:
        """The longest other phrase that a phrase ends with."""
        return self._index.shorter[ids]

    def texts_in(self, matches: Iterable[Match]) -> set[str]:
        """Texts of matches, and of the phrases within them."""
        ids: set[Ids] = set()
        for match in matches:
            phrase: Ids | None = match.ids
            while phrase is not None and phrase not in ids:
                ids.add(phrase)
                phrase = self.shorter(phrase)
        return {text for phrase in ids for text in self.by_ids[phrase]}

    @cached_property
    def _index(self) -> _Index:
        return _Index(self.by_ids)


class _Index:
    """States of a search for phrases; Aho and Corasick, Communications of the ACM 18 (1975). A state is a beginning."""

    def __init__(self, phrases: Iterable[Ids]) -> None:
        self.next: list[dict[int | str, int]] = [{}]
        """State by the id that follows, for each state; 0 is the empty beginning."""
        self.phrases: list[Ids | None] = [None]
        """Longest phrase at the end of each state."""
        self.fallback = [0]
        """State of the longest end of each that is a beginning too."""
        self.shorter: dict[Ids, Ids | None] = {}
        """Longest other phrase that a phrase ends with."""
        for phrase in phrases:
            state = 0
            for token_id in phrase:
                if token_id not in self.next[state]:
                    self.next[state][token_id] = len(self.next)
                    self.next.append({})
                    self.phrases.append(None)
                    self.fallback.append(0)
                state = self.next[state][token_id]
            self.phrases[state] = phrase
        states = [*self.next[0].values()]
        for state in states:  # grows, with shorter beginnings first
            ending = self.phrases[self.fallback[state]]
            if phrase := self.phrases[state]:
                self.shorter[phrase] = ending
            else:
                self.phrases[state] = ending
            for token_id, next_state in self.next[state].items():
                states.append(next_state)
                before = self.fallback[state]
                while before and token_id not in self.next[before]:
                    before = self.fallback[before]
                self.fallback[next_state] = self.next[before].get(token_id, 0)


def _with_names(ids: Ids, prefix: Ids, names: Phrases) -> Ids:
    """Ids of a text with each name of an embedding, with or without the prefix, in one piece."""
    result: list[int | str] = []
    place = 0
    while place < len(ids):
        start = place + len(prefix) if ids[place : place + len(prefix)] == prefix else place
        name, length = next(names.at(start, ids), ("", 0)) if start < len(ids) else ("", 0)
        result.append(name or ids[place])
        place = start + length if name else place + 1
    return tuple(result)


class Stretch(NamedTuple):
    """Positions of a chunk that are one id of a phrase: a token, or all vectors of an embedding."""

    id: int | str
    start: int
    end: int


def stretches(content: Sequence[Token], first: int = 0) -> list[Stretch]:
    """Ids of tokens as phrases have them, with their positions, counted from ``first``."""

    def mention(place: int) -> tuple[str, int]:
        token_id = content[place].id  # of one mention the index grows with the place
        return (token_id.name, place - token_id.index) if isinstance(token_id, EmbeddingVector) else ("", place)

    result: list[Stretch] = []
    for (name, _), group in groupby(range(len(content)), mention):
        places = [*group]
        token_id = content[places[0]].id
        key = name.lower() if isinstance(token_id, EmbeddingVector) else token_id
        result.append(Stretch(key, first + places[0], first + places[-1] + 1))
    return result


def phrases_in(chunks: Iterable[TokenChunk], texts: str | tuple[str, ...], tokenize: Tokenize) -> Phrases:
    """Phrases, which may name embeddings that are in some chunks."""
    ids = (token.id for chunk in chunks for token in chunk.content)
    names = {token_id.name.lower() for token_id in ids if isinstance(token_id, EmbeddingVector)}
    if names:
        typed = (texts if isinstance(texts, str) else "\n".join(texts)).lower()
        names = {name for name in names if name in typed}
    return phrases_of(texts, tokenize, frozenset(names))


def cover(matches: Iterable[Match]) -> set[int]:
    """Places of matches, which come in the order of their ends."""
    places: set[int] = set()
    first = sys.maxsize
    for match in reversed([*matches]):
        places.update(range(match.start, min(match.end, first)))
        first = min(first, match.start)
    return places


def without_commas(phrase: str) -> str:
    r"""Take off the spaces and commas around a phrase, which are copied along; commas alone stay.

    >>> without_commas(" red hat, \n"), without_commas(","), without_commas("\n")
    ('red hat', ',', '')
    """
    return phrase.strip(COMMA + whitespace) or phrase.strip()


def absent(phrase: str) -> str:
    """Message about a phrase that occurs in no chunk."""
    return f"“{shortened(phrase)}” is not in the prompt, or is cut by the end of a chunk."


_kept = lru_cache(maxsize=8)(Phrases)


def phrases_of(texts: str | tuple[str, ...], tokenize: Tokenize, embeddings: frozenset[str] = frozenset()) -> Phrases:
    """Tokenize phrases, with a cache.

    A prompt is read at every keystroke, a folder may hold thousands of embeddings, and a prompt thousands of sections
    that each need the phrases.
    """
    try:
        hash(tokenize)
    except TypeError:  # a caller's own class may not be hashable
        return Phrases(texts, tokenize, embeddings)
    return _kept(texts, tokenize, embeddings)
