"""Textual-inversion embeddings: their names in a prompt, and their vectors in a chunk.

Each program has its own way of recognising a name in a prompt; see ``chunking/a1111.py`` and ``chunking/comfy.py``.

Source: docs/reference/chunks.md, "Textual inversion".
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
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
    behind: tuple[Any, ...] = field(default=(), compare=False)
    """More vectors, under the rule ``a1111``, for which the prompt has no positions: they cover what follows."""


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


class Placed(list[Any]):
    """Vectors of an embedding that take another number of positions under the rule ``a1111``, as in SDXL."""

    def __init__(self, vectors: Iterable[Any], num_positions: int) -> None:
        """Give vectors ``[dim]`` a number of positions, at least 1."""
        super().__init__(vectors)
        self.num_positions = num_positions


@dataclass(frozen=True)
class EmbeddingsOfSdxl:
    """Embeddings of one of SDXL's text towers as the WebUI has them.

    One is known if its file has vectors for both towers, and takes as many positions as it has vectors for CLIP-G.
    """

    tower: str
    """Name of the tower, ``clip_l`` or ``clip_g``."""
    by_tower: Mapping[str, Embeddings]
    """Embeddings of both towers."""

    def names(self) -> Sequence[str]:
        """Every name, as in `Embeddings`."""
        return self.by_tower[self.tower].names()

    def find(self, name: str) -> Placed | None:
        """Look up a name, as in `Embeddings`; one that does not fit both towers is refused."""
        vectors = {tower: embeddings.find(name) for tower, embeddings in self.by_tower.items()}
        own, of_clip_g = vectors[self.tower], vectors["clip_g"]
        return None if own is None or not of_clip_g else Placed(own, len(of_clip_g))


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
