"""A prompt as the page shows it: read for a model, and its tokens as a table.

None of this needs a loaded model. ``masks.py`` draws the masks, ``comparing.py`` compares schemes, ``export.py`` writes
files.
"""

from __future__ import annotations

import json
from typing import NamedTuple

from ...encoder.tokenizer import default_tokenizer
from ...weighting.chunks import TokenChunk
from ...weighting.options import EncodeOptions
from ...weighting.reading import ReadPrompt, told_here
from ...weighting.syntax.a1111 import TIMED_READER
from ...weighting.towers import read_for_towers
from ...weighting.view import counted, id_of, text_of, token_bytes
from .model import LabError, LabModel

HEADERS = ("chunk", "position", "id", "text", "weight", "word", "hidden from", "part of a character")
"""Columns of the table of tokens."""


class TokenTable(NamedTuple):
    """Tokens of a prompt, one row each."""

    rows: list[list[str | int | float]]
    """Rows with the columns of `HEADERS`: chunk and position from 1; the id, or an embedding's vector as in
    ``name[0]``; the text as typed; the final weight; the number of its word; the tokens it is hidden from, empty for
    none; its bytes, if a character takes several tokens."""
    num_more: int
    """Number of further tokens."""


def read(model: LabModel, text: str, options: EncodeOptions) -> ReadPrompt:
    """Read a prompt for the first text tower of a model, with the chunks that other towers add to it.

    Raises:
        LabError: If an option is out of range, or in strict mode if the reference refuses the prompt.
    """
    try:
        reads = read_for_towers(text, options, model.readers())
    except ValueError as error:
        raise LabError(str(error)) from error
    return told_here(next(iter(reads.values())), TIMED_READER, "The tab Schedule shows how")


def token_rows(read: ReadPrompt, limit: int) -> TokenTable:
    """Tokens of a prompt as a table with a maximum number of rows."""
    rows: list[list[str | int | float]] = []
    tokens = [token for chunk in read.chunks for token in chunk.content]
    parts = iter(token_bytes(tokens, default_tokenizer().symbol))
    words: dict[int, int] = {}  # those without tokens do not count
    for number, chunk in enumerate(read.chunks, 1):
        for position, token in enumerate(chunk.content, 1):
            weight = float(f"{token.weight:.6g}")
            hidden_from = read.options.hidden_from if token.is_hidden else ""
            word = words.setdefault(token.word, len(words) + 1)
            text = text_of(token, read.prompt.source)
            part = next(parts)
            told = "" if part is None else str(part)
            rows.append([number, position, id_of(token.id), text, weight, word, hidden_from, told])
    return TokenTable(rows[:limit], max(0, len(rows) - limit))


def totals(read: ReadPrompt) -> str:
    """Numbers of tokens, characters and chunks in a prompt, in words."""
    counts = [chunk.num_content for chunk in read.chunks]
    characters = len(read.prompt.source)
    told = f"{counted(sum(counts), 'token')} of {counted(characters, 'character')} in {counted(len(counts), 'chunk')}"
    return f"{told}: {', '.join(map(str, counts))} of {read.layout.capacity}"


def ids_text(read: ReadPrompt) -> str:
    """Ids of a prompt's tokens as JSON: a list per chunk, without BOS, EOS and padding; only one list for one chunk."""
    ids = [[id_of(token.id) for token in chunk.content] for chunk in read.chunks]
    return json.dumps(ids if len(ids) > 1 else ids[0], ensure_ascii=False)


def chunk_of(read: ReadPrompt, chunk: int) -> TokenChunk:
    """Chunk of a prompt by its number from 0.

    Raises:
        LabError: If it does not exist.
    """
    if not 0 <= chunk < len(read.chunks):
        raise LabError(f"there is no chunk {chunk + 1}: this prompt has chunks 1 to {len(read.chunks)}")
    return read.chunks[chunk]
