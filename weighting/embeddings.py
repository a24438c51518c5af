"""Textual-inversion embeddings: what a prompt can name, and what stands in a chunk for one.

How a name is recognised in a prompt is each program's own; see ``chunking/a1111.py`` and ``chunking/comfy.py``.

Source: docs/reference/chunks.md, "Textual inversion".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

EMBEDDING_PREFIX = "embedding:"
"""What stands before a name in ComfyUI."""


@dataclass(frozen=True)
class EmbeddingVector:
    """One vector of a textual-inversion embedding, standing in a chunk where a token id would."""

    name: str
    """Name of the embedding."""
    index: int
    """Which of its vectors."""
    vector: Any = field(compare=False)
    """The vector, ``[dim]``, as the encoder's owner wants it."""
    placeholder: int = 0
    """The id beneath it, for what goes by ids: pooled vectors are taken at the first EOS."""


TokenId = int | EmbeddingVector
"""What stands at one position of a chunk."""


def plain_id(token: TokenId) -> int:
    """A token's id; of a vector, the id beneath it.

    >>> plain_id(320), plain_id(EmbeddingVector("cat", 0, None, placeholder=49407))
    (320, 49407)
    """
    return token if isinstance(token, int) else token.placeholder


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


class LookUp(NamedTuple):
    """What came of looking a name up."""

    vectors: Sequence[Any] | None
    """Its vectors, each ``[dim]``; None if there is no such embedding, or it cannot be used."""
    problem: str = ""
    """Why it cannot be used."""


def look_up(name: str, embeddings: Embeddings) -> LookUp:
    """Look a name up; an embedding that cannot be used is no error here."""
    try:
        return LookUp(embeddings.find(name))
    except EmbeddingError as error:
        return LookUp(None, str(error))
