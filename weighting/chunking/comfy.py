"""ComfyUI's chunk rule: groups of tokens are packed, and small ones kept whole.

A group is a weighted segment (``comfy segment``, since December 2024) or a word (``comfy word``, until then).

Source: docs/reference/chunks.md, "Chunks" and "Textual inversion"; behaviour of ComfyUI 0.29.0 and of its last revision
before 2024-12-10.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import count
from typing import NamedTuple

from ..text.chunks import ChunkContext, Chunked, Token, TokenChunk, close_chunk, tokens_of
from ..text.embeddings import EMBEDDING_PREFIX, Embeddings, EmbeddingVector, LookUp, look_up
from ..text.prompt import Break, Issue, Prompt, Span

LARGE_GROUP = 8
"""Groups with fewer tokens than this are kept in one chunk."""

_WORD_BORDER = re.compile("[ \n]")
_EMBEDDING_BORDER = re.compile(rf"(?<=\s){EMBEDDING_PREFIX}")
_NAME = re.compile(r"\s*(?=\S)([^\s<\[]*)")
_BETWEEN_SPACES = re.compile("[^\x1c-\x1f]+")
"""Text between whitespace known to Python but not to the tokenizer; after a name ComfyUI makes it one space."""


class _Group(NamedTuple):
    tokens: list[Token]
    issue: Issue | None = None


def chunk_comfy(prompt: Prompt, context: ChunkContext, *, split: Callable[[str], Iterable[tuple[int, int]]]) -> Chunked:
    """Pack groups of tokens, keeping small ones whole. Words are numbered through the prompt, including empty groups.

    A break, which ComfyUI does not have, starts a new chunk. ``split`` is `segments` or `words`.
    """
    layout = context.layout
    chunks: list[TokenChunk] = []
    issues: list[Issue] = []
    content: list[Token] = []
    numbers = count(1)
    for index, part in enumerate(prompt.parts):
        if isinstance(part, Break):
            chunks.append(close_chunk(content, layout))
            content = []
            continue
        text, positions = part.text, part.positions
        groups = (
            group
            for a, b in split(text)
            for group in _groups(text[a:b], positions[a:b], part.weight, index, numbers, context)
        )
        for tokens, issue in groups:
            if issue is not None:
                issues.append(issue)
                continue
            is_large = len(tokens) >= LARGE_GROUP or len(tokens) > layout.capacity
            start = 0
            while len(content) + len(tokens) - start > layout.capacity:
                end = start + layout.capacity - len(content) if is_large else start
                chunks.append(close_chunk(content + tokens[start:end], layout))
                content, start = [], end
            content += tokens[start:]
    chunks.append(close_chunk(content, layout))
    return Chunked(tuple(chunks), tuple(issues))


def segments(text: str) -> Iterator[tuple[int, int]]:
    """Groups since December 2024: a weighted segment, split before ``embedding:``."""
    borders = [match.start() for match in _EMBEDDING_BORDER.finditer(text)]
    yield from zip([0, *borders], [*borders, len(text)], strict=True)


def words(text: str) -> Iterator[tuple[int, int]]:
    """Groups until December 2024: the words of a weighted segment, between spaces or newlines."""
    start = 0
    for match in _WORD_BORDER.finditer(text + " "):
        yield start, match.start()
        start = match.end()


def _groups(
    text: str, positions: Sequence[int], weight: float, fragment: int, numbers: Iterator[int], context: ChunkContext
) -> Iterator[_Group]:
    """Group or groups of a segment or word, which may start with an embedding's name. Each takes a number."""
    if not text:
        return
    rests = [(0, len(text))]
    mention = None if context.embeddings is None else _read_mention(text, context.embeddings)
    if mention is not None:
        rests = mention.rests
        span = Span(positions[0], positions[mention.end - 1] + 1)
        if mention.found.vectors is not None:
            vectors = (EmbeddingVector(mention.name, i, vector) for i, vector in enumerate(mention.found.vectors))
            word = next(numbers)
            yield _Group([Token(vector, weight, word, fragment, span) for vector in vectors])
        elif mention.found.problem:
            yield _Group([], Issue("unusable-embedding", f"{mention.found.problem} The name is left out.", span))
        else:
            missing = (
                f"There is no embedding “{mention.name}”" if mention.name else f"“{EMBEDDING_PREFIX}” names nothing"
            )
            message = f"{missing}: the name is left out, as in ComfyUI."
            yield _Group([], Issue("unknown-embedding", message, span))
    if rests:
        word = next(numbers)
        tokens: list[Token] = []
        for a, b in rests:
            tokens += tokens_of(text[a:b], positions[a:b], weight, fragment, word, context.tokenize)
        yield _Group(tokens)


class _Mention(NamedTuple):
    """An embedding named at the start of a text."""

    name: str
    """The last name looked up."""
    found: LookUp
    end: int
    """End of the name in the text."""
    rests: list[tuple[int, int]]
    """Parts of the text after the name, to be tokenized separately."""


def _read_mention(text: str, embeddings: Embeddings) -> _Mention | None:
    """Read ``embedding:name`` at the start of a text.

    The name ends at whitespace, ``<`` or ``[``, and may be empty before these. If there is no embedding of that name,
    commas around it are stripped and become text.

    >>> from types import SimpleNamespace
    >>> _read_mention("embedding:cat, b", SimpleNamespace(find={"cat": [0.5]}.get))
    _Mention(name='cat', found=LookUp(vectors=[0.5], problem=''), end=13, rests=[(13, 14), (14, 16)])
    """
    if not text.startswith(EMBEDDING_PREFIX):
        return None
    match = _NAME.match(text, len(EMBEDDING_PREFIX))
    if match is None:
        return None
    name, (start, end) = match[1], match.span(1)
    rests = [found.span() for found in _BETWEEN_SPACES.finditer(text, end) if found[0].strip()]
    found = look_up(name, embeddings)
    stripped = name.strip(",")
    if found == LookUp(None) and len(stripped) < len(name):
        # the reference returns as many characters from the end as there were commas, even leading ones
        cut = start + len(stripped)
        return _Mention(stripped, look_up(stripped, embeddings), cut, [(cut, end), *rests])
    return _Mention(name, found, end, rests)
