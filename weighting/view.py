"""What became of a prompt, as plain data that every front end draws: tokens, weights, chunks, issues.

The view is JSON-able and counts UTF-16 units, as a browser does; see `view` for its keys. `token_table` is the same for
a terminal.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any

from .embeddings import EmbeddingVector
from .prompt import Break, Span
from .reading import ReadPrompt

VERSION = 1
"""Raised when a key of the view changes its meaning."""


def view(read: ReadPrompt) -> dict[str, Any]:
    """The JSON view of a prompt.

    Args:
        read: The prompt.

    Returns:
        ``version``; ``text``; the options ``syntax``, ``scheme``, ``normalization``, ``chunking``, ``padding``;
        ``num_tokens``; ``chunks``, each with ``num_tokens``, ``capacity`` and ``tokens``; ``breaks``, ``marks`` (both
        ``[start, end]``) and ``issues`` (``code``, ``message``, ``start``, ``end``). A token has ``id``, or null and
        for a vector of an embedding ``embedding``, as in ``name[0]``; ``text`` as typed, ``weight``, ``word``,
        ``start``, ``end``, ``hidden`` (from all others). Special tokens are left out. All offsets count UTF-16 units of
        ``text``.

    >>> from ..encoder.tokenizer import default_tokenizer
    >>> from .encode import EncodeOptions, read_prompt
    >>> v = view(read_prompt("a (cat:1.2)", EncodeOptions(), default_tokenizer()))
    >>> [(token["text"], token["weight"]) for token in v["chunks"][0]["tokens"]]
    [('a', 1.0), ('cat', 1.2)]
    """
    text, options = read.prompt.source, read.options
    offset = _utf16_offsets(text)

    def pair(span: Span) -> list[int]:
        return [offset(span.start), offset(span.end)]

    chunks = [
        {
            "num_tokens": chunk.num_content,
            "capacity": read.layout.capacity,
            "tokens": [
                {
                    "id": token.id if isinstance(token.id, int) else None,
                    "embedding": None if isinstance(token.id, int) else _vector_name(token.id),
                    "text": _text_of(text, token.span),
                    "weight": token.weight,
                    "word": token.word,
                    "start": offset(token.span.start) if token.span else 0,
                    "end": offset(token.span.end) if token.span else 0,
                    "hidden": token.is_hidden and options.hidden_from == "everything",
                }
                for token in chunk.content
            ],
        }
        for chunk in read.chunks
    ]
    return {
        "version": VERSION,
        "text": text,
        "syntax": options.syntax,
        "scheme": options.scheme,
        "normalization": options.normalization,
        "chunking": options.chunking,
        "padding": options.padding,
        "num_tokens": sum(chunk.num_content for chunk in read.chunks),
        "chunks": chunks,
        "breaks": [pair(part.span) for part in read.prompt.parts if isinstance(part, Break)],
        "marks": [pair(span) for span in read.prompt.marks],
        "issues": [
            {"code": i.code, "message": i.line, "start": offset(i.span.start), "end": offset(i.span.end)}
            for i in read.issues
        ],
    }


def token_table(read: ReadPrompt) -> str:
    """Tokens of every chunk with place, id, text and weight, and the issues below, for a terminal or a text box.

    Args:
        read: The prompt.

    Returns:
        Lines of text.
    """
    lines: list[str] = []
    chunks = read.chunks  # gathered anew each time it is asked for
    for number, chunk in enumerate(chunks, 1):
        lines.append(f"chunk {number} of {len(chunks)}: {chunk.num_content}/{read.layout.capacity} tokens")
        for position, token in enumerate(chunk.content, 1):
            token_id = str(token.id) if isinstance(token.id, int) else _vector_name(token.id)
            weight = "" if token.weight == 1.0 else f"{token.weight:.4g}"
            lines.append(
                f"{position:>5} {token_id:>7}  {_text_of(read.prompt.source, token.span)!r:<24}{weight:>8}".rstrip()
            )
    lines += [f"{counted(len(read.issues), 'problem')}:"] if read.issues else []
    lines += [f"  {issue.line}" for issue in read.issues]
    return "\n".join(lines)


def counted(number: int, noun: str) -> str:
    """A number with its noun.

    >>> counted(1, "chunk"), counted(2, "chunk")
    ('1 chunk', '2 chunks')
    """
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _vector_name(vector: EmbeddingVector) -> str:
    return f"{vector.name}[{vector.index}]"


def _text_of(text: str, span: Span | None) -> str:
    return text[slice(*span)] if span else ""


def _utf16_offsets(text: str) -> Callable[[int], int]:
    """A function from code point offsets to UTF-16 offsets."""
    if text.isascii():
        return lambda offset: offset
    offsets: Sequence[int] = [0, *accumulate(2 if ord(character) > 0xFFFF else 1 for character in text)]
    return offsets.__getitem__
