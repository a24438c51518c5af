"""Textual-inversion embeddings in a prompt: how ``embedding:name`` is read, and what stands in a chunk for one.

Source: docs/weighting.md, "Chunks"; behaviour of ComfyUI 0.29.0.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

EMBEDDING_PREFIX = "embedding:"

_NAME = re.compile(r"\s*([^\s<\[]+)")


@dataclass(frozen=True)
class EmbeddingVector:
    """One vector of a textual-inversion embedding, standing in a chunk where a token id would."""

    name: str
    """Name of the embedding."""
    index: int
    """Which of its vectors."""
    vector: Any = field(compare=False)
    """The vector, ``[dim]``, as the encoder's owner wants it."""


TokenId = int | EmbeddingVector
"""What stands at one position of a chunk."""


class EmbeddingError(ValueError):
    """An embedding that is there and cannot be used; the message says why, for the prompt's author."""


class Embeddings(Protocol):
    """The embeddings that a prompt can name."""

    def names(self) -> Sequence[str]:
        """Every name, as it stands in a prompt."""
        ...

    def find(self, name: str) -> Sequence[Any] | None:
        """Look a name up.

        Args:
            name: As written in the prompt.

        Returns:
            Its vectors, each ``[dim]``, or None where there is no such embedding.

        Raises:
            EmbeddingError: If it is there and does not fit this encoder, or cannot be read.
        """
        ...


class Mention(NamedTuple):
    """An embedding named at the start of a text."""

    name: str
    """The name looked up last."""
    vectors: Sequence[Any] | None
    """Its vectors; None if there is no such embedding."""
    end: int
    """Where the name ends in the text."""
    rests: list[tuple[int, int]]
    """Stretches of the text behind the name, to be tokenized one by one."""


def read_embedding(text: str, embeddings: Embeddings) -> Mention | None:
    """Read ``embedding:name`` at the start of a text, as ComfyUI does.

    The name ends at white space, ``<`` or ``[``. If there is no embedding of that name, commas round it are taken off
    and become text.

    Args:
        text: A segment or word of a prompt.
        embeddings: Where the name is looked up.

    Returns:
        The mention, or None where the text does not start with one.

    >>> from types import SimpleNamespace
    >>> read_embedding("embedding:cat, b", SimpleNamespace(find={"cat": [0.5]}.get))
    Mention(name='cat', vectors=[0.5], end=13, rests=[(13, 14), (14, 16)])
    """
    if not text.startswith(EMBEDDING_PREFIX):
        return None
    match = _NAME.match(text, len(EMBEDDING_PREFIX))
    if match is None:
        return None
    name, (start, end) = match[1], match.span(1)
    rests = [(end, len(text))] if text[end:].strip() else []
    vectors = embeddings.find(name)
    stripped = name.strip(",")
    if vectors is None and len(stripped) < len(name):
        # the reference gives back the last characters, as many as there were commas, even where some stood in front
        cut = start + len(stripped)
        return Mention(stripped, embeddings.find(stripped), cut, [(cut, end), *rests])
    return Mention(name, vectors, end, rests)
