"""Tokens of a text by one of the host's tokenizers, with their positions: words, and vectors of embeddings.

The host cuts a text before each ``embedding:`` after whitespace, tokenizes the parts separately, and takes the first
word of a part as the name. It drops whitespace after a name, and the name if there is no such embedding. Embeddings are
read by the host's own loader, from its own folders.

Source: behaviour of ComfyUI 0.3.64 and 0.29.0 (``comfy.sd1_clip.SDTokenizer``).
"""

from __future__ import annotations

import re
import sys
import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

import torch
from torch import Tensor

from ....weighting.text.embeddings import EMBEDDING_PREFIX, EmbeddingError, EmbeddingVector, TokenId
from ..contract import host


@dataclass(frozen=True)
class HostEmbeddings:
    """The embeddings that fit one text tower."""

    folders: str | list[str]
    """Folders in the form of the host's tokenizer."""
    dim: int
    """Width of the tower's token embedding."""
    tower: str
    """Name of the tower, to select vectors from files for several towers."""

    def names(self) -> list[str]:
        """All names; files in sub-folders also by their bare name, as in the WebUI."""
        return sorted({PurePath(name).stem for name in host("folder_paths").get_filename_list("embeddings")})

    def find(self, name: str) -> list[Tensor] | None:
        """Load by name, with or without suffix, from the folders or their sub-folders: vectors ``[dim]``, or None.

        A name as written in a prompt cannot lead out of the folders. Raises `EmbeddingError` for another model's.
        """
        loaded = host("comfy.sd1_clip").load_embed(name, self.folders, self.dim, self.tower)
        if loaded is None:
            return None
        vectors = torch.atleast_2d(loaded)
        if vectors.shape[-1] != self.dim:
            raise EmbeddingError(
                f"The embedding “{name}” is for another model: its vectors are {vectors.shape[-1]} wide, {self.tower} "
                f"takes {self.dim}."
            )
        return list(vectors)


_MARK = re.compile(r"[<\[]")
"""End of a name without whitespace."""
_START = re.compile(rf"(?<=\s){EMBEDDING_PREFIX}")

Offsets = Callable[[Any, str], list[tuple[int, int, int]]]
"""Function from a host's tokenizer and a text to id, start and end of each token."""
Piece = tuple[TokenId, int, int]
"""Id or vector, with start and end in the text."""


class NoSuchEmbedding(ValueError):
    """Raised for a name without an embedding in the host."""


def pieces(tokenizer: Any, text: str, offsets: Offsets) -> list[Piece]:
    """Tokens and vectors of a text without weights, with their positions, except tokens that the tokenizer adds itself.

    ``offsets`` reads texts without embeddings.
    """
    starts = [0, *(match.start() for match in _START.finditer(text))]
    result: list[Piece] = []
    for start, end in zip(starts, [*starts[1:], len(text)], strict=True):
        part = text[start:end]
        if part.startswith(EMBEDDING_PREFIX) and tokenizer.embedding_directory is not None:
            result += _named(tokenizer, part, start, offsets)
        else:
            result += [(token_id, start + a, start + b) for token_id, a, b in offsets(tokenizer, part)]
    return result


def as_id(token: Any) -> int | bytes:
    """A token in comparable form: its id, or the content of a vector, the host's or an `EmbeddingVector`."""
    vector: Any = token.vector if isinstance(token, EmbeddingVector) else token
    return vector.float().numpy().tobytes() if isinstance(vector, torch.Tensor) else vector


def _named(tokenizer: Any, part: str, start: int, offsets: Offsets) -> list[Piece]:
    """Tokens of a part that begins with an embedding."""
    name, *rest_words = part[len(EMBEDDING_PREFIX) :].split()
    rest = " ".join(rest_words)
    if (mark := _MARK.search(name)) is not None:
        name, rest = name[: mark.start()], f"{name[mark.start() :]} {rest}".rstrip()
    embeddings = HostEmbeddings(tokenizer.embedding_directory, tokenizer.embedding_size, tokenizer.embedding_key)
    vectors = embeddings.find(name)
    bare = name.strip(",")
    if vectors is None and bare != name:
        vectors, name, rest = embeddings.find(bare), bare, f"{name[len(bare) :]} {rest}"
    if vectors is None:
        raise NoSuchEmbedding(f"There is no embedding “{name}” for {tokenizer.embedding_key}.")
    # the characters of the rest are the last ones of the part, except for whitespace
    places = [start + place for place, character in enumerate(part) if not character.isspace()]
    rest_places = iter(places[len(places) - len("".join(rest.split())) :])
    at = [None if character.isspace() else next(rest_places) for character in rest]
    first = next((place for place in at if place is not None), places[-1] + 1)
    named_pieces: list[Piece] = [
        (EmbeddingVector(name, index, vector), start, first) for index, vector in enumerate(vectors)
    ]
    for token_id, a, b in offsets(tokenizer, rest) if rest else ():
        token_places = [place for place in at[a:b] if place is not None]
        named_pieces.append(
            (token_id, token_places[0], token_places[-1] + 1) if token_places else (token_id, first, first)
        )
    return named_pieces


def offsets(tokenizer: Any, text: str) -> list[tuple[int, int, int]]:
    """Id, start and end in the text of each token, except those that the tokenizer adds itself."""
    if hasattr(tokenizer.tokenizer, "serialize_model"):  # sentencepiece, as the host wraps it
        return _sentencepiece_offsets(tokenizer.tokenizer.tokenizer, text)
    stop = -1 if tokenizer.tokenizer_adds_end_token else None
    raw: Any = getattr(tokenizer.tokenizer, "tokenizer", None)
    # of the package tokenizers, as the host wraps it, if anything has imported that
    if isinstance(raw, getattr(sys.modules.get("tokenizers"), "Tokenizer", ())):
        encoding = raw.encode(text, add_special_tokens=False)
        pairs = zip(encoding.ids, encoding.offsets, strict=True)
        return [(token_id, start, end) for token_id, (start, end) in pairs][tokenizer.tokens_start : stop]
    try:
        tokenized = tokenizer.tokenizer(text, return_offsets_mapping=True)
    except (NotImplementedError, TypeError) as error:
        raise ValueError(
            f"Telling words by rows needs a newer transformers: {type(tokenizer.tokenizer).__name__} of the one that "
            "ComfyUI has installed does not say where its tokens come from."
        ) from error
    pairs = zip(tokenized["input_ids"], tokenized["offset_mapping"], strict=True)
    return [(token_id, start, end) for token_id, (start, end) in pairs][tokenizer.tokens_start : stop]


def check_offsets(tokenizer: Any, text: str, token_pieces: Sequence[Piece]) -> None:
    """Refuse a tokenizer that omits letters; if it changes letters, that cannot be detected."""
    covered = {place for _, start, end in token_pieces for place in range(start, end)}
    missed = any(letter.isalnum() and place not in covered for place, letter in enumerate(text))
    if missed and unicodedata.is_normalized("NFKC", text):
        raise ValueError(
            f"Nobody can tell which rows are a word's: {type(tokenizer.tokenizer).__name__} of the "
            "transformers that ComfyUI has installed does not say where in the text its tokens stand, or leaves "
            "letters out. Another version of transformers may."
        )


def _sentencepiece_offsets(processor: Any, text: str) -> list[tuple[int, int, int]]:
    """The same from sentencepiece itself (``SentencePieceProcessor``)."""
    alone = {"add_bos": False, "add_eos": False}
    if hasattr(processor, "EncodeAsOffsetMapping"):
        encoded = processor.encode(text, return_type="offset_mapping", **alone)
        pieces = [(piece_id, *place) for piece_id, place in zip(encoded["ids"], encoded["offsets"], strict=True)]
    else:  # before 0.2.2
        encoded = processor.encode(text, out_type="immutable_proto", **alone).pieces
        pieces = [(piece.id, piece.begin, piece.end) for piece in encoded]
    # of the pieces of one character, such as its bytes, only the last has a position
    for index in reversed(range(len(pieces) - 1)):
        piece_id, start, end = pieces[index]
        if start == end:
            pieces[index] = (piece_id, *pieces[index + 1][1:])
    return pieces
