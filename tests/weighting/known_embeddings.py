"""Embeddings that tests name: any number of vectors under any name, and every look-up remembered."""

from collections.abc import Mapping

from weighted_clip.weighting.chunks import TokenChunk
from weighted_clip.weighting.embeddings import EmbeddingError, EmbeddingVector


class KnownEmbeddings:
    def __init__(self, sizes: Mapping[str, int], unusable: Mapping[str, str] | None = None) -> None:
        self.sizes = sizes
        self.unusable = unusable or {}
        self.looked_up: list[str] = []

    def names(self) -> list[str]:
        return [*self.sizes, *self.unusable]

    def find(self, name: str) -> list[str] | None:
        self.looked_up.append(name)
        if name in self.unusable:
            raise EmbeddingError(self.unusable[name])
        return shown(name, self.sizes[name]) if name in self.sizes else None


def shown(name: str, size: int) -> list[str]:
    """The vectors of an embedding as ``name[index]``."""
    return [f"{name}[{index}]" for index in range(size)]


def vectors_in(chunk: TokenChunk) -> dict[int, str]:
    """The vectors in a chunk by position, as `shown`."""
    return {
        place: f"{token.name}[{token.index}]"
        for place, token in enumerate(chunk.ids)
        if isinstance(token, EmbeddingVector)
    }
