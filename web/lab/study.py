"""A prompt as the page shows it: read for a model, and its tokens as a table.

None of this needs a loaded model. ``masks.py`` draws the masks, ``comparing.py`` compares schemes, ``export.py`` writes
files.
"""

from __future__ import annotations

from typing import NamedTuple

from ...weighting.chunks import TokenChunk
from ...weighting.encode import EncodeOptions, ReadPrompt
from ...weighting.reading import told_here
from ...weighting.syntax.a1111 import TIMED_READER
from ...weighting.towers import read_for_towers
from ...weighting.view import id_of, text_of
from .model import LabError, LabModel

HEADERS = ("chunk", "position", "id", "text", "weight", "word", "hidden from")
"""Columns of the table of tokens."""


class TokenTable(NamedTuple):
    """Tokens of a prompt, one row each."""

    rows: list[list[str | int | float]]
    """Rows with the columns of `HEADERS`: chunk and position from 1; the id, or an embedding's vector as in
    ``name[0]``; the text as typed; the final weight; the number of its word; the tokens it is hidden from, empty for
    none."""
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
    words: dict[int, int] = {}  # those without tokens do not count
    for number, chunk in enumerate(read.chunks, 1):
        for position, token in enumerate(chunk.content, 1):
            weight = float(f"{token.weight:.6g}")
            hidden_from = read.options.hidden_from if token.is_hidden else ""
            word = words.setdefault(token.word, len(words) + 1)
            text = text_of(token, read.prompt.source)
            rows.append([number, position, id_of(token.id), text, weight, word, hidden_from])
    return TokenTable(rows[:limit], max(0, len(rows) - limit))


def chunk_of(read: ReadPrompt, chunk: int) -> TokenChunk:
    """Chunk of a prompt by its number from 0.

    Raises:
        LabError: If it does not exist.
    """
    if not 0 <= chunk < len(read.chunks):
        raise LabError(f"there is no chunk {chunk + 1}: this prompt has chunks 1 to {len(read.chunks)}")
    return read.chunks[chunk]
