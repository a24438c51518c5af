"""What became of a prompt, as the page shows it: the prompt read for a model, and its tokens as a table.

No model has to be loaded for any of it. ``masks.py`` draws the masks, ``comparing.py`` compares schemes, ``export.py``
writes files.
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
    """The tokens of a prompt, a row for each."""

    rows: list[list[str | int | float]]
    """By the columns of `HEADERS`. Chunk and position from 1; the id, or an embedding's vector as in ``name[0]``; the
    text as typed; the final weight; the number of its word; who shall not see it, empty where all may."""
    num_more: int
    """How many more tokens there are."""


def read(model: LabModel, text: str, options: EncodeOptions) -> ReadPrompt:
    """Read a prompt for the first text tower of a model, with the chunks that the other towers add to it.

    Raises:
        LabError: If an option is out of range, or in strict mode where the reference refuses the prompt.
    """
    try:
        reads = read_for_towers(text, options, model.readers())
    except ValueError as error:
        raise LabError(str(error)) from error
    return told_here(next(iter(reads.values())), TIMED_READER, "The tab Schedule shows how")


def token_rows(read: ReadPrompt, limit: int) -> TokenTable:
    """The tokens of a prompt as a table of so many rows at most."""
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
    """The chunk of a prompt with a number, from 0.

    Raises:
        LabError: If there is none of that number.
    """
    if not 0 <= chunk < len(read.chunks):
        raise LabError(f"there is no chunk {chunk + 1}: this prompt has chunks 1 to {len(read.chunks)}")
    return read.chunks[chunk]
