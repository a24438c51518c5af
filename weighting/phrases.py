"""Phrases by their token ids, and where they stand in a prompt: hidden phrases, names of embeddings."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from functools import cached_property, lru_cache

from .chunks import Tokenize
from .embeddings import EMBEDDING_PREFIX
from .prompt import shortened


class Phrases:
    """Phrases, by the ids of their tokens."""

    def __init__(self, texts: str | tuple[str, ...], tokenize: Tokenize) -> None:
        """Tokenize them.

        Args:
            texts: The phrases; or a text with one a line, of which blank lines and spaces around a line do not count.
            tokenize: The encoder's tokenizer.
        """
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
        # by the id that a phrase begins with, ascending
        self._lengths = {first: sorted(some) for first, some in lengths.items()}

    @cached_property
    def by_embedding(self) -> dict[str, str]:
        """The phrases by the name in lower case of the embedding that each may be."""
        return {text.removeprefix(EMBEDDING_PREFIX).lower(): text for text in self.texts}

    def keys_at(self, position: int, ids: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
        """Keys of `by_ids` for the phrases that stand at a place.

        Args:
            position: The place, an index of ``ids``.
            ids: Token ids.

        Yields:
            Each key, the longest first.
        """
        lengths = self._lengths.get(ids[position])
        if lengths is None:
            return
        for length in reversed(lengths[: bisect_right(lengths, len(ids) - position)]):
            key = ids[position : position + length]
            if key in self.by_ids:
                yield key

    def at(self, position: int, ids: tuple[int, ...]) -> Iterator[tuple[str, int]]:
        """The phrases that stand at a place, each with its number of tokens; otherwise as `keys_at`."""
        for key in self.keys_at(position, ids):
            for text in self.by_ids[key]:
                yield text, len(key)


def absent(phrase: str) -> str:
    """What is said of a phrase that stands in no chunk."""
    return f"“{shortened(phrase)}” is not in the prompt, or is cut by the end of a chunk."


_kept = lru_cache(maxsize=8)(Phrases)


def phrases_of(texts: str | tuple[str, ...], tokenize: Tokenize) -> Phrases:
    """`Phrases`, tokenized once.

    A prompt is read at every keystroke, a folder may hold thousands of embeddings, a prompt thousands of sections that
    each ask for the phrases.
    """
    try:
        hash(tokenize)
    except TypeError:  # a caller's own class may have no hash
        return Phrases(texts, tokenize)
    return _kept(texts, tokenize)
