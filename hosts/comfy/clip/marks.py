"""Tokens in the host's form that know their word: ids and weights of a prompt, marked.

Nodes of the host and of other packs cut lists of tokens, join them, copy them and compute weights anew. So the mark is
on the smallest things, each id and each weight; a list is compared with what it was when it was made. One that was
edited is read by the marks and weights that stand in it.

Source: behaviour of ComfyUI 0.29.0.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from torch import Tensor

from ....weighting.chunking import ChunkedSection
from ....weighting.options import EncodeOptions
from ....weighting.padding import rows_kept
from ....weighting.reading.characters import Character
from ....weighting.reading.prompt_reader import ReadPrompt
from ....weighting.text.chunks import ChunkLayout, Token, TokenChunk
from ....weighting.text.embeddings import EmbeddingVector, plain_id
from ....weighting.text.prompt import Fragment, Issue, Piece, Prompt, Span
from .towers import host_id

Entry = tuple[Any, ...]
"""A token in the host's form: id, vector or picture; weight; and perhaps the number of its word."""
HostTokens = Mapping[str, Sequence[Sequence[Entry]]]
"""Tokens in the host's form: chunks by name of the text encoder."""


Letter = tuple[str, Character | None]
"""A letter of a host's text, with that of the prompt; None for one of the host's own words."""


class HostText(NamedTuple):
    """A prompt as the host is given it, for encoders that read it by the host's rules."""

    prompt: Prompt
    """The prompt as parsed."""
    characters: Sequence[Character]
    """Its text without syntax."""
    options: EncodeOptions
    issues: list[Issue]
    """Problems for its author; more are added when it is tokenized."""
    written: str
    """The text for the host."""
    is_weighed: bool
    """Whether weights act later, in the attention: then the host reads none."""
    encoders: frozenset[str] = frozenset()
    """Names among the host's tokens of the encoders whose words have to be known for that."""

    @property
    def letters(self) -> list[Letter]:
        """Letters of the prompt without its syntax."""
        return [(character.text, character) for character in self.characters]

    @property
    def has_weights(self) -> bool:
        """Whether any word has a weight other than 1."""
        return any(character.weight != 1.0 for character in self.characters)


class Mark(NamedTuple):
    """Origin of an id and a weight in the host's tokens."""

    token: Token
    """The token as it was read, with its weight."""
    prompt: ReadPrompt | HostText
    """The prompt it belongs to."""


class MarkedId(int):
    """An id with its mark."""

    mark: Mark


class MarkedWeight(float):
    """A weight with its mark."""

    mark: Mark


class MarkedChunks(list[list[Entry]]):
    """Chunks of one text encoder, with the prompt that they were made of."""

    prompt: ReadPrompt
    values: tuple[Any, ...]
    """Their content as long as nobody edits them."""


def marked_entry(entry: Entry, token: Token, prompt: ReadPrompt | HostText) -> Entry:
    """A token in the host's form with a mark; the same values."""
    mark = Mark(token, prompt)
    token_id, weight, *rest = entry
    if isinstance(token_id, int):
        token_id = MarkedId(token_id)
        token_id.mark = mark
    weight = MarkedWeight(weight)
    weight.mark = mark
    return (token_id, weight, *rest)


def marked_chunks(prompt: ReadPrompt, *, has_words: bool, weighs: bool) -> MarkedChunks:
    """Chunks of a prompt in the host's form.

    Args:
        prompt: The prompt.
        has_words: Whether the host asks for the number of each token's word.
        weighs: Whether weights stand in the tokens; otherwise all are 1.
    """
    found = MarkedChunks()
    for tokens in prompt.encoded:
        entries = ((host_id(token.id), token.weight if weighs else 1.0, token.word) for token in tokens)
        found.append(
            [
                marked_entry(entry if has_words else entry[:2], token, prompt)
                for entry, token in zip(entries, tokens, strict=True)
            ]
        )
    return sealed(found, prompt)


def sealed(chunks: Iterable[Sequence[Entry]], prompt: ReadPrompt) -> MarkedChunks:
    """Chunks that will be taken for those of a prompt as long as nobody edits them."""
    found = MarkedChunks(list(chunk) for chunk in chunks)
    found.prompt, found.values = prompt, values_of(found)
    return found


def unweighted(tokens: HostTokens) -> HostTokens:
    """Tokens whose weights are 1, still known as those of their prompt if they were."""
    return {key: _unweighted(chunks) if isinstance(chunks, list) else chunks for key, chunks in tokens.items()}


def _unweighted(chunks: Sequence[Sequence[Entry]]) -> Sequence[Sequence[Entry]]:
    plain = [[(entry[0], 1.0, *entry[2:]) if _is_pair(entry) else entry for entry in chunk] for chunk in chunks]
    prompt = prompt_of(chunks)
    return plain if prompt is None else sealed(plain, prompt)


def prompt_of(chunks: Any) -> ReadPrompt | None:
    """The prompt that chunks are of; None if somebody has edited them, or they are not ours."""
    is_whole = isinstance(chunks, MarkedChunks) and values_of(chunks) == chunks.values
    return chunks.prompt if is_whole else None


def values_of(chunks: Iterable[Sequence[Entry]]) -> tuple[Any, ...]:
    """Ids and weights in comparable form."""
    return tuple(
        tuple((int(entry[0]) if isinstance(entry[0], int) else id(entry[0]), float(entry[1])) for entry in chunk)
        for chunk in chunks
    )


def _is_pair(entry: Any) -> bool:
    """Whether it is an id with a weight; packs with a rule of their own make other tokens."""
    return len(entry) > 1 and isinstance(entry[1], (int, float))


def pairs_in(tokens: HostTokens) -> list[Entry]:
    """All tokens that are ids with weights."""
    lists = (chunks for chunks in tokens.values() if isinstance(chunks, list))
    return [entry for chunks in lists for chunk in chunks for entry in chunk if _is_pair(entry)]


def mark_of(entry: Entry) -> Mark | None:
    """The mark of a token: its weight's, or its id's if the weight was computed anew."""
    return next((mark for part in (*entry[1:2], *entry[:1]) if (mark := getattr(part, "mark", None))), None)


def token_of_entry(entry: Entry) -> Token:
    """A token in the host's form with the id and the weight that stand there now."""
    token_id, mark = entry[0], mark_of(entry)
    if isinstance(token_id, Tensor):
        known = None if mark is None else mark.token.id
        is_same = isinstance(known, EmbeddingVector) and known.vector is token_id
        token_id = known if known is not None and is_same else EmbeddingVector("?", 0, token_id)
    elif isinstance(token_id, int):
        token_id = int(token_id)
    else:  # a picture
        token_id = 0
    token = Token(token_id) if mark is None else mark.token._replace(id=token_id)
    return token._replace(weight=float(entry[1]))


def rebuilt(chunks: Sequence[Sequence[Entry]], options: EncodeOptions, layout: ChunkLayout) -> ReadPrompt:
    """A prompt made of chunks that another node has put together, for the schemes.

    Tokens without a mark that have one weight in a row are a group, as if they had been written in one bracket.

    Raises:
        ValueError: If it is a part of a prompt with ``.and`` or ``.blend``, whose rows are several prompts.
    """
    chunks = chunks if layout.has_bos else [((0, 1.0), *chunk) for chunk in chunks]
    numbers: dict[Any, int] = {}

    def number(key: Any) -> int:
        return numbers.setdefault(key, len(numbers))

    found: list[TokenChunk] = []
    run = 0
    for chunk in chunks:
        tokens: list[Token] = []
        before, is_closed = None, False
        for place, entry in enumerate(chunk):
            mark, token = mark_of(entry), token_of_entry(entry)
            sections = mark.prompt.sections if mark is not None and isinstance(mark.prompt, ReadPrompt) else ()
            if len(sections) > 1 or any(section.shares for section in sections):
                raise ValueError(
                    "Another node has put the tokens of this prompt together anew, so that .and and .blend cannot act: "
                    "take them out, or give the prompt to a node that leaves its tokens as they are."
                )
            if mark is None:
                is_closed = is_closed or (place > 0 and plain_id(token.id) == layout.eos_id)
                if place and not is_closed:
                    run += token.weight != before
                    before = token.weight
                    fragment = number(("unmarked", run))
                    token = token._replace(fragment=fragment, word=fragment + 1, span=Span(0, 0))
            elif mark.token.fragment >= 0:
                owner = id(mark.prompt)
                fragment = number((owner, mark.token.fragment, token.weight))
                word = number((owner, "word", mark.token.word)) + 1
                token = token._replace(fragment=fragment, word=word, span=Span(0, 0))
            tokens.append(token)
        ends = [place for place, token in enumerate(tokens) if place and plain_id(token.id) == layout.eos_id]
        found.append(TokenChunk(tuple(tokens), (ends[0] if ends else len(tokens)) - 1))
    fragments = tuple(Fragment((Piece("", Span(0, 0)),)) for _ in numbers)
    sections = (ChunkedSection((tuple(found),)),)
    kept = rows_kept(sections) if options.drops_padding else None
    return ReadPrompt(Prompt("", options.syntax, fragments), sections, (), options, layout, kept)
