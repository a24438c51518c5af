"""Prompts for text encoders that the host runs itself, and which of its tokens are which of their words.

The prompt is stripped of its syntax and tokenized by the host, which may put it into a template or give it to several
encoders. Shallow copies of the host's tokenizers see each text as it is in the end; a second call with another prompt
shows where in it the prompt stands. Tokens are marked there, so that marks survive what the host does with them later.

Source: behaviour of ComfyUI 0.29.0; docs/reference/attention.md, "Weights in the attention".
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from copy import copy
from itertools import islice
from typing import Any

from ....weighting.options import EncodeOptions
from ....weighting.reading.characters import stripped
from ....weighting.text.chunks import Token
from ....weighting.text.embeddings import EMBEDDING_PREFIX, EmbeddingError
from ....weighting.text.prompt import Issue, Span, shortened
from ..attention.text_rows import token_of
from ..contract import host
from ..families.families import TOKENIZE, ModelFamily
from ..models.token_offsets import NoSuchEmbedding, as_id, check_offsets, offsets, pieces
from .marks import Entry, HostText, Letter, Mark, mark_of, marked_entry

STAND_IN = "\ue000\ue001\ue000"
"""Text of private characters in place of the prompt, to find where it stands in the host's texts."""
Call = Callable[[Any, str], dict[str, Any]]
"""Tokenization by the host: from a tokenizer and a text to its tokens."""
Around = Sequence[str]
"""Texts that the host puts around the occurrences of a prompt in its own text."""
FindPrompt = Callable[[str, int, str], Around | None]
"""Search for a prompt: from the name of an encoder, the number of its call and its text."""


def is_replaced(tokenizer: Any) -> bool:
    """Whether another pack has put a function of its own on a host's tokenizer or on one in it."""
    return any(TOKENIZE in vars(part) for part in (tokenizer, *_parts(tokenizer).values()))


def text_to_weigh(clip: Any, family: ModelFamily, text: str, options: EncodeOptions) -> HostText:
    """A prompt of a CLIP of some family, without its syntax, whose words are weighed in the attention."""
    prompt, characters = stripped(text, options)
    plain = "".join(character.text for character in characters)
    return HostText(prompt, characters, options, [], plain, is_weighed=True, encoders=frozenset(family.names_of(clip)))


def text_as_typed(text: str, options: EncodeOptions) -> HostText:
    """A prompt that the host reads as it is typed, in its own syntax."""
    prompt, characters = stripped(text, EncodeOptions(syntax="comfy"))
    return HostText(prompt, characters, options, [], text, is_weighed=False)


def tokens_of_text(clip: Any, text: HostText, **choices: Any) -> dict[str, Any]:
    """Marked tokens of a prompt, as `marked_tokens` makes them with a host's CLIP; ``choices`` are its own."""

    def by_host(tokenizer: Any, written: str) -> dict[str, Any]:
        work = copy(clip)
        work.tokenizer = tokenizer
        return work.tokenize(written, **choices)

    return marked_tokens(clip.tokenizer, text, by_host)


def marked_tokens(tokenizer: Any, text: HostText, call: Call) -> dict[str, Any]:
    """Tokenize a prompt by the host, and mark the tokens of its words.

    Args:
        tokenizer: The host's tokenizer of a CLIP.
        text: The prompt; issues about its tokens are added to it.
        call: Function that tokenizes.

    Returns:
        The host's tokens; with weights if the text is weighted later.

    Raises:
        ValueError: If a prompt with weights is weighed later and its words cannot be told.
    """
    templates: dict[str, list[str]] = {}
    if text.written:

        def note(name: str, number: int, final: str) -> None:
            templates.setdefault(name, []).append(final)

        call(_spied(tokenizer, text, note, {}), STAND_IN)
    num_marked = 0

    def around(name: str, number: int, final: str) -> Around | None:
        nonlocal num_marked
        encoder_templates = templates.get(name, [])
        texts_around = _around(
            text.written, final, encoder_templates[number] if number < len(encoder_templates) else ""
        )
        num_marked += texts_around is not None
        return texts_around

    chunks_by_encoder: dict[str, list[Sequence[Entry]]] = {}
    tokens = call(_spied(tokenizer, text, around, chunks_by_encoder), text.written)
    if text.is_weighed and text.has_weights and not num_marked:
        raise ValueError(
            f"Nobody can tell which rows are a word's: this encoder does not give “{shortened(text.written)}” to its "
            "tokenizer as it is written. Take the weights out."
        )
    for name, chunks in chunks_by_encoder.items():
        text.issues.extend(_cut_off(name, chunks, tokens.get(name.removeprefix("clip_"), ())))
    return tokens


def _cut_off(name: str, marked_chunks: Sequence[Sequence[Entry]], tokens: Sequence[Sequence[Entry]]) -> Iterator[Issue]:
    """An issue if the host drops marked tokens of an encoder after it was read."""
    spans = [mark.token.span for mark in _marks(marked_chunks)]
    present_spans = {mark.token.span for mark in _marks(tokens)}
    if present_spans and (dropped := [span for span in spans if span is not None and span not in present_spans]):
        yield _rows_cut(name, sum(map(len, tokens)), dropped[0])


def _marks(chunks: Iterable[Iterable[Entry]]) -> Iterator[Mark]:
    """Marks of tokens."""
    return (mark for chunk in chunks for entry in chunk if (mark := mark_of(entry)) is not None)


def _rows_cut(name: str, num_rows: int, span: Span) -> Issue:
    message = f"{name} reads no more than {num_rows} tokens: it does not see this or what follows."
    return Issue("rows-cut", message, span)


def _parts(tokenizer: Any) -> dict[str, Any]:
    """Tokenizers of text encoders in a host's tokenizer, by name."""
    return {name: part for name, part in vars(tokenizer).items() if hasattr(part, TOKENIZE)}


def _spied(
    tokenizer: Any, text: HostText, around: FindPrompt, chunks_by_encoder: dict[str, list[Sequence[Entry]]]
) -> Any:
    """A copy of a host's tokenizer that tells its texts, and marks the tokens of those in which the prompt is found.

    ``around`` is called with the name of the encoder, the number of its call and the text. The chunks of
    each encoder are added to ``chunks_by_encoder``.
    """
    spied = copy(tokenizer)
    for name, part in _parts(tokenizer).items():
        setattr(spied, name, _spied_part(part, name, text, around, chunks_by_encoder.setdefault(name, [])))
    return spied


class _Recorder:
    """A tokenizer of another library that tells the texts that it was given."""

    def __init__(self, tokenizer: Any) -> None:
        self.texts: list[Any] = []
        self._tokenizer = tokenizer

    def __call__(self, text: Any, *rest: Any, **choices: Any) -> Any:
        self.texts.append(text)
        return self._tokenizer(text, *rest, **choices)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tokenizer, name)


def _spied_part(part: Any, name: str, text: HostText, around: FindPrompt, marked_chunks: list[Sequence[Entry]]) -> Any:
    """A copy of the tokenizer of one encoder."""
    spied = copy(part)
    spied.tokenizer = recorder = _Recorder(getattr(part, "tokenizer", None))
    num_calls = 0

    def tokenize(part_text: Any, *rest: Any, **choices: Any) -> Any:
        nonlocal num_calls
        if text.is_weighed:
            choices.setdefault("disable_weights", True)
        reads_weights = not choices.get("disable_weights", getattr(part, "disable_weights", False))
        recorder.texts.clear()
        chunks = getattr(type(part), TOKENIZE)(spied, part_text, *rest, **choices)
        if not isinstance(part_text, str):
            return chunks
        cuts = [] if reads_weights or not _has_own_rule(part) or EMBEDDING_PREFIX in part_text else recorder.texts
        cuts = cuts or [part_text]
        texts_around = around(name, num_calls, "".join(cuts))
        num_calls += 1
        if texts_around is not None:
            chunks = _marked(part, name, chunks, cuts, texts_around, text, reads_weights)
            marked_chunks.extend(chunks)
        return chunks

    setattr(spied, TOKENIZE, tokenize)
    return spied


def _has_own_rule(part: Any) -> bool:
    """Whether a host's tokenizer cuts or completes a text by a rule of its own before it reads tokens."""
    return getattr(type(part), TOKENIZE) is not host("comfy.sd1_clip").SDTokenizer.tokenize_with_weights


def _around(written: str, final: str, template: str) -> Around | None:
    """Texts around a prompt in a host's text; None if it does not stand in it as it is written.

    ``template`` is the same text with `STAND_IN` in place of the prompt.
    """
    surroundings = template.split(STAND_IN)
    if len(surroundings) > 1 and written.join(surroundings) == final:
        return surroundings
    return final.split(written) if written and final.count(written) == 1 else None


def _runs(cuts: Sequence[str], around: Around, text: HostText, reads_weights: bool) -> list[list[Letter]]:
    """Letters of the parts of a host's text that its tokenizer takes one by one; without syntax, if it reads any."""
    parts = [*cuts]
    if reads_weights:
        clip = host("comfy.sd1_clip")
        weighted = clip.token_weights(clip.escape_important("".join(cuts)), 1.0)
        parts = [clip.unescape_important(part) for part, _ in weighted]
    letters: list[Letter] = []
    for index, surrounding in enumerate(around):
        letters += [*(text.letters if index else ()), *((letter, None) for letter in surrounding)]
    if [letter for letter, _ in letters] != [*"".join(parts)]:
        raise ValueError(
            "Nobody can tell which rows are a word's: ComfyUI reads other letters of this prompt than stand in it. "
            "Escaped brackets may be the reason."
        )
    rest = iter(letters)
    return [list(islice(rest, len(part))) for part in parts]


def _marked(
    inner: Any,
    name: str,
    chunks: Sequence[Sequence[Entry]],
    cuts: Sequence[str],
    around: Around,
    text: HostText,
    reads_weights: bool,
) -> Any:
    """Chunks with marks, as they are if their words cannot be told; refused if weights would be lost with them."""
    issues: list[Issue] = []
    try:
        tokens = _tokens(inner, name, chunks, _runs(cuts, around, text, reads_weights), issues)
    except (AttributeError, ValueError) as error:
        is_needed = not text.encoders or name.removeprefix("clip_") in text.encoders
        if text.is_weighed and text.has_weights and is_needed:
            raise
        if isinstance(error, (NoSuchEmbedding, EmbeddingError)):
            code = "unknown-embedding" if isinstance(error, NoSuchEmbedding) else "unusable-embedding"
            text.issues.append(Issue(code, f"{error} ComfyUI leaves it out.", Span(0, 0)))
        return chunks
    text.issues.extend(issue for issue in issues if issue not in text.issues)
    return [
        [_marked_entry(entry, token, text) for entry, token in zip(chunk, chunk_tokens, strict=True)]
        for chunk, chunk_tokens in zip(chunks, tokens, strict=True)
    ]


def _marked_entry(entry: Entry, token: Token, text: HostText) -> Entry:
    if token.span is None:
        return entry
    if text.is_weighed:
        entry = (entry[0], token.weight, *entry[2:])
    return marked_entry(entry, token, text)


def _tokens(
    inner: Any, name: str, chunks: Sequence[Sequence[Entry]], runs: Sequence[Sequence[Letter]], issues: list[Issue]
) -> list[list[Token]]:
    """Tokens of the chunks of one encoder, for the runs of a text that it tokenizes one by one."""
    expected: list[tuple[Any, Token]] = []
    for run in runs:
        run_text = "".join(letter for letter, _ in run)
        run_pieces = pieces(inner, run_text, offsets)
        check_offsets(inner, run_text, run_pieces)
        for token_id, start, end in run_pieces:
            characters = [character for _, character in run[start:end] if character is not None]
            expected.append((as_id(token_id), token_of(token_id, characters, issues)))
    tokens_by_chunk: list[list[Token]] = []
    for chunk in chunks:
        ids = [as_id(entry[0]) for entry in chunk]
        first = len(ids) - len(expected) if getattr(inner, "pad_left", False) else int(inner.start_token is not None)
        tokens = [Token(entry[0]) for entry in chunk]
        place = max(0, first)
        while expected and place < len(ids) and ids[place] == expected[0][0]:
            tokens[place] = expected.pop(0)[1]
            place += 1
        if {*ids[: max(0, first)], *ids[place:]} - {inner.start_token, inner.end_token, inner.pad_token}:
            raise ValueError(
                "Nobody can tell which rows are a word's: ComfyUI's tokens of this prompt are not those that its "
                "tokenizer gives for it. Escaped brackets may be the reason."
            )
        tokens_by_chunk.append(tokens)
    if spans := [token.span for _, token in expected if token.span is not None]:
        issues.append(_rows_cut(name, sum(map(len, tokens_by_chunk)), spans[0]))
    return tokens_by_chunk
