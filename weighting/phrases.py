"""Phrases by token ids, and their positions in a prompt: hidden phrases, names of embeddings."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from functools import cached_property, lru_cache

from .chunks import Tokenize
from .embeddings import EMBEDDING_PREFIX
from .prompt import shortened


class Phrases:
    """Phrases indexed by the ids of their tokens."""

    def __init__(self, texts: str | tuple[str, ...], tokenize: Tokenize) -> None:
        """Tokenize the phrases."""
        if isinstance(texts, str):
            texts = tuple(dict.fromkeys(line.strip() for line in texts.splitlines() if line.strip()))
        self.texts = texts
        self.by_ids: dict[tuple[int, ...], list[str]] = {}
        for text in texts:
            self.by_ids.setdefault(tuple(token_id for token_id, _, _ in tokenize(text)), []).append(text)
        self.by_ids.pop((), None)
        lengths: dict[int, set[int]] = {}
        for ids in self.by_ids:
            lengths.setdefault(ids[0], set()).add(len(ids))
        # ascending, by the first id of a phrase
        self._lengths = {first: sorted(some) for first, some in lengths.items()}

    @cached_property
    def by_embedding(self) -> dict[str, str]:
        """Phrases by the lower-case name of the embedding that each may be."""
        return {text.removeprefix(EMBEDDING_PREFIX).lower(): text for text in self.texts}

    def keys_at(self, position: int, ids: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
        """Keys of `by_ids` for the phrases at a position."""
        lengths = self._lengths.get(ids[position])
        if lengths is None:
            return
        for length in reversed(lengths[: bisect_right(lengths, len(ids) - position)]):
            key = ids[position : position + length]
            if key in self.by_ids:
                yield key

    def at(self, position: int, ids: tuple[int, ...]) -> Iterator[tuple[str, int]]:
        """Phrases at a position, each with its number of tokens; otherwise as `keys_at`."""
        for key in self.keys_at(position, ids):
            for text in self.by_ids[key]:
                yield text, len(key)


def absent(phrase: str) -> str:
    """Message about a phrase that occurs in no chunk."""
    return f"“{shortened(phrase)}” is not in the prompt, or is cut by the end of a chunk."


_kept = lru_cache(maxsize=8)(Phrases)


def phrases_of(texts: str | tuple[str, ...], tokenize: Tokenize) -> Phrases:
    """Tokenize phrases, with a cache.

    A prompt is read at every keystroke, a folder may hold thousands of embeddings, and a prompt thousands of sections
    that each need the phrases.
    """
    try:
        hash(tokenize)
    except TypeError:  # a caller's own class may not be hashable
        return Phrases(texts, tokenize)
    return _kept(texts, tokenize)
