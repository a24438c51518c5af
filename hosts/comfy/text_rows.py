"""Rows of a CONDITIONING by word, for text encoders other than CLIP or more than CLIP.

A prompt is parsed, its syntax stripped, and the rest encoded by the host. The host's own tokenizer gives the position
of each token in that text. Its ids must equal those the host encodes, and so must the number of rows: tokens are never
searched for.

Source: behaviour of ComfyUI 0.29.0; docs/reference/attention.md, "Weights in the attention".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any, NamedTuple

from torch import Tensor

from ...weighting.chunking import ChunkedSection
from ...weighting.chunks import ChunkLayout, Token, TokenChunk
from ...weighting.embeddings import TokenId
from ...weighting.options import EncodeOptions
from ...weighting.prompt import Break, Issue, Prompt, Span
from ...weighting.reading import ReadPrompt
from ...weighting.syntax import parse, syntax_of
from ...weighting.tags import bare
from ...weighting.words import Stretch, Words, words_in
from .connectors import UNCONNECTED, rows_of_connectors
from .families import Family, rows_of_anima
from .token_offsets import Piece, as_id, check_offsets, offsets, pieces
from .types import Clip

Part = Mapping[str, Words]
"""Words and rows by text encoder; several stand side by side, cut to the length of the shortest."""


class TextRows(NamedTuple):
    """A prompt as read by such an encoder."""

    text: str
    """The host's input: the prompt without its syntax."""
    tokens: tuple[Token, ...]
    """Token of each row of its conditioning."""
    read: ReadPrompt
    """The prompt as read, for views and reports."""
    host_tokens: dict[str, Any]
    """Tokens in the host's form, to be encoded."""
    encoder: str
    """Encoder of ``read``, by its key among the host's tokens."""
    words: tuple[Part, ...]
    """Words and rows of each part of its conditioning's rows."""


def inner_tokenizer(clip: Clip, key: str) -> Any:
    """The host's tokenizer of one encoder, by its name among the host's tokens, or None."""
    return getattr(clip.tokenizer, key, None) or getattr(clip.tokenizer, f"clip_{key}", None)


def num_rows_read(rows: Tensor, values: Mapping[str, Any]) -> int:
    """Number of text rows that a model reads of an entry of a conditioning: ``[1, rows, dim]`` and its values.

    HiDream also reads those of Llama. Anima's model makes others from them and T5's ids; that of LTX-2 adds some.
    """
    ids, llama = values.get("t5xxl_ids"), values.get("conditioning_llama3")  # llama: [1, layers, rows, dim]
    num_rows = rows.shape[1] if ids is None else rows_of_anima(len(ids))
    if values.get(UNCONNECTED):
        num_rows = rows_of_connectors(num_rows)
    return num_rows + (0 if llama is None else llama.shape[2])


def read_rows(clip: Clip, family: Family, text: str, options: EncodeOptions) -> TextRows:
    """Read a prompt as a text encoder does, with the token of each row; refused if the rows of a word are uncertain."""
    prompt, characters = stripped(text, options)
    plain = "".join(character.text for character in characters)
    host_tokens = clip.tokenize(plain, **({"disable_weights": True} if family.has_weights else {}))
    given = (as_id(pair[0]) for chunks in host_tokens.values() for chunk in chunks for pair in chunk)
    if not family.takes_embeddings and any(isinstance(token, bytes) for token in given):
        raise ValueError(f"Attention Weights takes no embeddings with {family.title}: take “embedding:…” out.")
    encoder = family.encoder_of(clip)
    issues: list[Issue] = []
    parts = _parts(clip, family, host_tokens, [[characters]], issues)
    rows = [token for part in parts for token in _shared(part)]
    words = {key: [token for token in part[key] if token.span is not None] for part in parts for key in part if key}
    key = encoder if encoder in words else next(iter(words))
    read = as_read(prompt, words[key], tuple(dict.fromkeys(issues)), options)
    return TextRows(plain, tuple(rows), read, host_tokens, key, _words(parts, characters))


def words_by_host(
    clip: Clip,
    family: Family,
    host_tokens: Mapping[str, Any],
    text: str,
    characters: Sequence[Character],
    of_towers: Mapping[str, Words],
) -> tuple[Part, ...]:
    """Words and rows of each part of what the host makes of its tokens of a text.

    Args:
        clip: The CLIP.
        family: Its family.
        host_tokens: The tokens.
        text: The text; some of the host's encoders read its syntax as well.
        characters: The text without its syntax.
        of_towers: Those of CLIP text towers, if they read other tokens.

    Raises:
        ValueError: If the rows of words are uncertain.
    """
    cut = [[*run] for _, run in groupby(characters, lambda character: (character.fragment, character.weight))]
    typed = [Character(character, 1.0, 0, place) for place, character in enumerate(text)]
    host_tokens = {key: tokens for key, tokens in host_tokens.items() if key not in of_towers}
    parts = _parts(clip, family, host_tokens, [cut, [characters], [typed]], [])  # the host may cut a text at weights
    return tuple({key: of_towers.get(key, words) for key, words in part.items()} for part in _words(parts, characters))


def _parts(
    clip: Clip,
    family: Family,
    host_tokens: Mapping[str, Any],
    readings: Sequence[Sequence[Sequence[Character]]],
    issues: list[Issue],
) -> list[dict[str, list[Token]]]:
    """Tokens of the rows of each part of a conditioning by encoder, or by none if they are of no word.

    ``readings`` are runs of the text, which are tokenized separately; the first reading that an encoder's tokens are of
    counts. An encoder without tokens gets none.
    """
    found: list[dict[str, list[Token]]] = []
    for part in ((family.encoder_of(clip),),) if family.parts is None else family.parts(clip):
        if isinstance(part, int):
            found.append({"": [Token(0)] * part})
            continue
        found.append({})
        for key in part:
            chunks = host_tokens.get(key)
            ids = [as_id(pair[0]) for chunk in chunks or () for pair in chunk]
            tokens = _first_reading(clip, key, chunks, readings, issues) if chunks else []
            found[-1][key] = tokens[family.num_left_out(ids) : len(tokens) - family.num_left_out_behind(ids)]
    num_rows = sum(len(tokens) for part in found for tokens in part.values())
    if num_more := family.filled_up(num_rows) - num_rows:
        found.append({"": [Token(0)] * num_more})
    return found


def _first_reading(
    clip: Clip,
    key: str,
    chunks: Sequence[Sequence[tuple[Any, ...]]],
    readings: Sequence[Sequence[Sequence[Character]]],
    issues: list[Issue],
) -> list[Token]:
    """Tokens of one encoder by the first of some readings that fits."""
    for runs in readings[:-1]:
        try:
            return _tokens(clip, key, chunks, runs, issues)
        except ValueError:
            continue
    return _tokens(clip, key, chunks, readings[-1], issues)


def _words(parts: Sequence[Mapping[str, Sequence[Token]]], characters: Sequence[Character]) -> tuple[Part, ...]:
    """Words of a text, with the rows of each of its parts."""
    stretches: list[Stretch | None] = []
    for is_break, group in groupby(characters, lambda character: character.is_break):
        own = [*group]
        stretches.append(None if is_break else ("".join(one.text for one in own), [one.place for one in own]))
    return tuple({key: words_in(stretches, tokens) for key, tokens in part.items()} for part in parts)


def _tokens(
    clip: Clip,
    key: str,
    chunks: Sequence[Sequence[tuple[Any, ...]]],
    runs: Sequence[Sequence[Character]],
    issues: list[Issue],
) -> list[Token]:
    """Tokens of one encoder for the runs of a text, all chunks in sequence."""
    inner = inner_tokenizer(clip, key)
    plain = "".join(character.text for run in runs for character in run)
    template = getattr(clip.tokenizer, "llama_template", "{}")
    if plain.startswith(("<|im_start|>", "<|start_header_id|>")):  # the host treats it as a template of its own
        template = "{}"
    found: list[tuple[Piece, Sequence[Character]]] = []
    for run in runs or [[]]:
        text = template.format("".join(character.text for character in run))
        own_pieces = pieces(inner, text, offsets)
        check_offsets(inner, text, own_pieces)
        found += [(piece, run) for piece in own_pieces]
    starts_at = len(template.split("{}")[0])
    tokens: list[Token] = []
    for chunk in chunks:
        ids = [as_id(pair[0]) for pair in chunk]
        own = found[: inner.max_length - (inner.start_token is not None) - (inner.end_token is not None)]
        found = found[len(own) :]
        first = max(0, len(ids) - len(own)) if getattr(inner, "pad_left", False) else int(inner.start_token is not None)
        around = {*ids[:first], *ids[first + len(own) :]}
        if ids[first : first + len(own)] != [as_id(token_id) for (token_id, _, _), _ in own] or around - {
            inner.start_token,
            inner.end_token,
            inner.pad_token,
        }:
            raise ValueError(
                f"Nobody can tell which rows are a word's: ComfyUI's tokens of “{plain[:80]}” are not those that its "
                "tokenizer gives for it. Escaped brackets may be the reason."
            )
        tokens += [Token(pair[0]) for pair in chunk[:first]]
        tokens += [token_of(*piece, starts_at, run, issues) for piece, run in own]
        tokens += [Token(pair[0]) for pair in chunk[first + len(own) :]]
    left_out = [token_of(*piece, starts_at, run, []) for piece, run in found]
    if spans := [token.span for token in left_out if token.span is not None]:
        message = f"{key} reads no more than {len(tokens)} tokens: it does not see this or what follows."
        issues.append(Issue("rows-cut", message, spans[0]))
    return tokens


def _shared(encoders: Mapping[str, Sequence[Token]]) -> Sequence[Token]:
    """Rows of encoders joined side by side, as many as in the shortest."""
    (name, first), *others = encoders.items()
    for other, tokens in others:
        for row, (one, two) in enumerate(zip(first, tokens, strict=False)):
            if (one.weight, one.fragment) != (two.weight, two.fragment):
                raise ValueError(
                    f"The text encoders {name} and {other} have different words in row {row}, as one of them reads "
                    "longer chunks: their rows have one weight together. Write a shorter prompt, or load encoders of "
                    "the same length."
                )
    return first[: min(map(len, encoders.values()))]


class Character(NamedTuple):
    """A character of the host's text."""

    text: str
    weight: float
    fragment: int
    place: int
    """Position in the prompt as typed."""
    is_break: bool = False
    """Whether it replaces a BREAK."""


def stripped(text: str, options: EncodeOptions) -> tuple[Prompt, list[Character]]:
    """A prompt, and its characters without syntax, comments and tags of extra networks; BREAK is a space."""
    found = bare(text, has_comments=options.is_cleaned, has_tags=syntax_of(options.syntax).has_tags)
    prompt = parse(found.fragment.text, options.syntax)
    plain = all(len(section.prompts) == 1 and section.weight == 1.0 for section in prompt.sections)
    if len(prompt.sections) > 1 or not plain:
        raise ValueError(
            "This text encoder does not take .and and .blend, whose rows are several prompts: encode each prompt on "
            "its own and join them with Conditioning (Combine)."
        )
    is_spaced = syntax_of(options.syntax).is_spaced  # a space that its parser takes for the end of a fragment
    characters: list[Character] = []
    places = [*found.fragment.positions, len(text)]
    for index, part in enumerate(prompt.parts):
        if isinstance(part, Break):
            characters.append(Character(" ", 1.0, index, places[part.span.start], is_break=True))
            continue
        if is_spaced and characters and part.text:
            place = places[part.positions[0]]
            between = text[characters[-1].place + 1 : place]
            if part.text[0].isalnum() or any(character.isspace() for character in between):
                characters.append(Character(" ", part.weight, index, place))
        for character, position in zip(part.text, part.positions, strict=True):
            characters.append(Character(character, part.weight, index, places[position]))
    moved = [replace(issue, span=found.fragment.span_of(issue.span)) for issue in prompt.issues]
    issues = (*moved, *found.issues(text))
    return replace(prompt, source=text, parts=(), marks=(), sections=(), issues=issues), characters


def token_of(
    token_id: TokenId, start: int, end: int, starts_at: int, characters: Sequence[Character], issues: list[Issue]
) -> Token:
    """A token with the weight of its text, or without a position if it belongs to the template."""
    own = characters[max(0, start - starts_at) : max(0, end - starts_at)]
    own = [character for character in own if character.text.strip()] or own
    if not own:
        return Token(token_id)
    first = own[0]
    span = Span(first.place, own[-1].place + 1)
    if any(character.weight != first.weight for character in own):
        shown = "".join(character.text for character in own)
        message = f"“{shown}” is one token of this text encoder: all of it gets the weight {first.weight:g}."
        issues.append(Issue("one-token", message, span))
    return Token(token_id, first.weight, first.fragment + 1, first.fragment, span)


def as_read(prompt: Prompt, tokens: Sequence[Token], issues: Sequence[Issue], options: EncodeOptions) -> ReadPrompt:
    """The tokens of the prompt as one chunk that contains just them."""
    chunk = TokenChunk((Token(0), *tokens, Token(0)), len(tokens))
    layout = ChunkLayout(max(3, len(chunk.tokens)), is_open=True)
    every = tuple(sorted([*prompt.issues, *issues], key=lambda issue: issue.span))
    return ReadPrompt(prompt, (ChunkedSection(((chunk,),)),), every, options, layout)
