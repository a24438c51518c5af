"""Textual-inversion embeddings: their names in a prompt, and their vectors in a chunk.

Each program has its own way of recognising a name in a prompt; see ``chunking/a1111.py`` and ``chunking/comfy.py``.

Source: docs/reference/chunks.md, "Textual inversion".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

EMBEDDING_PREFIX = "embedding:"
"""Prefix of a name in ComfyUI."""


@dataclass(frozen=True)
class EmbeddingVector:
    """One vector of a textual-inversion embedding, used in a chunk instead of a token id."""

    name: str
    """Name of the embedding."""
    index: int
    """Index of the vector within the embedding."""
    vector: Any = field(compare=False)
    """The vector, ``[dim]``, in the form the encoder needs."""
    placeholder: int = 0
    """Id beneath it, for code that goes by ids: pooled vectors are taken at the first EOS."""


TokenId = int | EmbeddingVector
"""Entry at one position of a chunk."""


def plain_id(token: TokenId) -> int:
    """Id of a token; for a vector, the id beneath it.

    >>> plain_id(320), plain_id(EmbeddingVector("cat", 0, None, placeholder=49407))
    (320, 49407)
    """
    return token if isinstance(token, int) else token.placeholder


class EmbeddingError(ValueError):
    """Raised for an existing embedding that cannot be used; the message tells the prompt's author why."""


class Embeddings(Protocol):
    """Embeddings a prompt can name."""

    def names(self) -> Sequence[str]:
        """Every name, as written in a prompt."""
        ...

    def find(self, name: str) -> Sequence[Any] | None:
        """Look up a name.

        Args:
            name: As written in the prompt.

        Returns:
            Its vectors, each ``[dim]``, or None if there is no such embedding.

        Raises:
            EmbeddingError: If it does not fit this encoder, or cannot be read.
        """
        ...


class LookUp(NamedTuple):
    """Result of looking up a name."""

    vectors: Sequence[Any] | None
    """Its vectors, each ``[dim]``; None if there is no such embedding, or it cannot be used."""
    problem: str = ""
    """Reason why it cannot be used."""


def look_up(name: str, embeddings: Embeddings) -> LookUp:
    """Look up a name without raising for an embedding that cannot be used."""
    try:
        return LookUp(embeddings.find(name))
    except EmbeddingError as error:
        return LookUp(None, str(error))
