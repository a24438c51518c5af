"""A tiny seeded text encoder, prompts that are read and encoded with it, and embeddings that tests name."""

from collections.abc import Mapping
from typing import Any

from weighted_clip.encoder.encoding import EncodeFn
from weighted_clip.encoder.files.checkpoint import seeded_text_model
from weighted_clip.encoder.models.config import TextConfig
from weighted_clip.encoder.models.text_model import TextEncoder
from weighted_clip.encoder.tokenizer import default_tokenizer
from weighted_clip.weighting.options import EncodeOptions
from weighted_clip.weighting.pipeline import EncodedPrompt
from weighted_clip.weighting.reading.prompt_reader import ReadPrompt, read_prompt
from weighted_clip.weighting.text.chunks import ChunkLayout, TokenChunk
from weighted_clip.weighting.text.embeddings import EmbeddingError, EmbeddingVector
from weighted_clip.weighting.towers import Reader

from ..door import encode_prompt

MODEL = seeded_text_model(TextConfig(hidden_dim=32, num_heads=2, num_layers=2, mlp_dim=64))
TINY = TextEncoder(MODEL)
READERS = {"clip_l": Reader(default_tokenizer()), "clip_g": Reader(default_tokenizer(), ChunkLayout(pad_id=0))}
"""Readers of SDXL's two towers."""
LONG = "red castle, blue garden. near the river, " * 12
"""A text of two chunks."""


def read(text: str, **options: Any) -> ReadPrompt:
    return read_prompt(text, EncodeOptions(**options), default_tokenizer())


def encode(text: str, encoder: EncodeFn = TINY, **options: Any) -> EncodedPrompt:
    return encode_prompt(read(text, **options), encoder)


class KnownEmbeddings:
    """Any number of vectors under any name, and every look-up remembered."""

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
