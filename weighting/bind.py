"""Bound phrases: phrases of a prompt that cannot see each other, so that the colour of one does not leak into another.

The prompt is encoded once more for each phrase, with the words of all other phrases hidden from everything, and the
phrase's rows are taken from that encoding. Every encoding a scheme needs is bound in this way.

Source: docs/reference/masks.md, "Bound phrases".
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple, TypeVar

from ..encoder.encoding import Encoding
from .chunks import Apart, TokenChunk, Tokenize
from .options import EncodeOptions
from .phrases import Phrases, absent, phrases_of
from .plan import Plan, Variant, Visible, both
from .prompt import Issue, Span, shortened

UNBOUND = "unbound-phrase"
"""Issue code for phrases that cannot be bound."""
ABSENT = "absent-phrase"
"""Issue code for missing phrases, or missing words of phrases."""


COMMA = ","


class BindError(ValueError):
    """Raised for phrases that cannot be bound; the message names them."""


class Bound(NamedTuple):
    """Chunks with marked bound phrases."""

    chunks: tuple[TokenChunk, ...]
    """The prompt, with ``phrase`` and ``apart`` of its tokens set."""
    issues: tuple[Issue, ...]
    """Issues about phrases that cannot be bound or are missing."""


def words_of(options: EncodeOptions) -> tuple[str, ...]:
    """Distinct words that phrases hide from each other."""
    return tuple(
        dict.fromkeys(
            word.strip() for line in options.bind_words.split("\n") for word in line.split(COMMA) if word.strip()
        )
    )


def bound_passes(chunks: Sequence[TokenChunk], rest: str) -> list[int]:
    """Phrases with a pass of their own in a prompt, in order; then 0 if all other tokens have one too.

    Under ``cutoff`` they can have one where no phrase has: see `marked_as_cutoff`.
    """
    tokens = [token for chunk in chunks for token in chunk.tokens]
    phrases = sorted({token.phrase for token in tokens} - {0})
    return [*phrases, 0] if rest == "alone" and any(token.apart is not None for token in tokens) else phrases


def bind_issue(code: str, message: str) -> Issue:
    """Issue placed before all others, since it must survive when only the first issues are kept."""
    return Issue(code, message, Span(0, 0))


def refusal(issues: Sequence[Issue], options: EncodeOptions) -> str:
    """Reason why a prompt with these issues cannot be bound; empty if it can."""
    codes = (UNBOUND,) if options.binds_some else (UNBOUND, ABSENT)
    found = next((issue for issue in issues if issue.code in codes), None)
    return "" if found is None else f"These phrases cannot be bound: {found.line}"


T = TypeVar("T")


def bound(plan: Plan[T], strength: float, rest: str) -> Plan[T]:
    """Bind every version of the prompt in a plan.

    Args:
        plan: Plan of chunks marked by `mark_bound`.
        strength: Share of the bound encoding, 0 to 1; the rest is the plain one.
        rest: ``full`` or ``alone``.

    Returns:
        The plan with more variants: one pass per phrase for each version of the prompt, and one more with ``alone``.
        Pooled vectors are those of the plain pass.
    """

    def variants() -> Iterator[Variant]:
        for variant in plan.variants():
            yield from _passes(variant, rest)

    def folded(rows: Iterator[Encoding]) -> Iterator[Encoding]:
        for variant in plan.variants():
            passes = _passes(variant, rest)
            plain = next(rows)
            yield _folded(variant, plain, [next(rows) for _ in passes[1:]], strength, rest)

    return Plan(variants, lambda rows: plan.combine(folded(rows)))


# Passes


def _passes(variant: Variant, rest: str) -> list[Variant]:
    """The variant, a pass for each of its phrases, and with ``alone`` one without any phrase."""
    # no host makes such a call, so there is none to reproduce
    plain = replace(variant, call=None)
    return [plain, *(_pass(plain, number) for number in _numbers(variant, rest))]


def _numbers(variant: Variant, rest: str) -> list[int]:
    """Passes of a version, as in `bound_passes`; none for a variant that is not a version of the prompt."""
    return [] if variant.is_aside else bound_passes(variant.chunks, rest)


def _pass(plain: Variant, number: int) -> Variant:
    """The pass of one phrase, or 0 for the rest. Chunks without the phrase stay plain: nothing is taken from them."""
    chunks, visible = list(plain.chunks), list(plain.visible)
    for index, chunk in enumerate(plain.chunks):
        if any(token.phrase == number for token in chunk.tokens):
            chunks[index], shown = _apart(chunk, number)
            visible[index] = both(visible[index], shown)
    title = f"bound: phrase {number}" if number else "bound: the rest"
    return replace(plain, chunks=tuple(chunks), visible=tuple(visible), title=title)


def _apart(chunk: TokenChunk, number: int) -> tuple[TokenChunk, Visible]:
    """A chunk with the tokens hidden by other phrases replaced, and its mask."""
    tokens, shown = list(chunk.tokens), bytearray(b"\1" * len(chunk.tokens))
    for position, token in enumerate(tokens):
        if token.apart is not None and token.apart.phrase != number:
            if token.apart.stand_in is None:
                shown[position] = 0
            else:
                tokens[position] = token._replace(id=token.apart.stand_in)
    return replace(chunk, tokens=tuple(tokens)), bytes(shown)


def _folded(variant: Variant, plain: Encoding, passes: Sequence[Encoding], strength: float, rest: str) -> Encoding:
    """Combine the passes of a version into one encoding."""
    import torch  # here, because the command line marks phrases without it

    if not passes:
        return plain
    phrase = torch.tensor([[token.phrase for token in chunk.tokens] for chunk in variant.chunks])
    phrase = phrase.to(plain.hidden.device)
    hidden = plain.hidden.clone()
    for number, one in zip(_numbers(variant, rest), passes, strict=True):
        hidden[phrase == number] = one.hidden[phrase == number]
    if strength != 1.0:
        hidden = (1.0 - strength) * plain.hidden + strength * hidden
    return Encoding(hidden, plain.pooled)


# Given phrases


def marked_phrases(chunks: Sequence[TokenChunk], options: EncodeOptions, tokenize: Tokenize) -> Bound:
    """Mark the tokens of given phrases, and the words that they hide from each other; see `reading.mark_bound`."""
    found = phrases_of(options.bind, tokenize)
    numbers = {ids: number for number, ids in enumerate(found.by_ids, 1)}
    is_whole = options.bind_hide == "whole phrases"
    missing = dict.fromkeys(found.texts)
    overlaps: dict[tuple[str, str], None] = {}
    result: list[TokenChunk] = []
    for chunk in chunks:
        tokens = list(chunk.tokens)
        taken: dict[int, tuple[int, ...]] = {}
        for start, ids in _places(chunk, found):
            for text in found.by_ids[ids]:
                missing.pop(text, None)
            for position in range(start, start + len(ids)):
                other = taken.setdefault(position, ids)
                if other != ids:
                    overlaps[found.by_ids[other][0], found.by_ids[ids][0]] = None
                number = numbers[ids]
                tokens[position] = tokens[position]._replace(phrase=number, apart=Apart(number) if is_whole else None)
        result.append(replace(chunk, tokens=tuple(tokens)))
    issues = [
        bind_issue(UNBOUND, f"“{shortened(one)}” and “{shortened(two)}” overlap: a word can be in one phrase only.")
        for one, two in overlaps
    ]
    issues += [bind_issue(ABSENT, absent(one)) for one in missing]
    if is_whole:
        return Bound(tuple(result), tuple(issues))
    marked, of_words = _with_hidden_words(result, options, tokenize)
    return Bound(marked, (*issues, *of_words))


def _with_hidden_words(
    chunks: Sequence[TokenChunk], options: EncodeOptions, tokenize: Tokenize
) -> tuple[tuple[TokenChunk, ...], list[Issue]]:
    """Mark the words that phrases hide from each other, wherever they occur in a phrase."""
    words = words_of(options)
    if not words:
        return tuple(chunks), [bind_issue(UNBOUND, "No words are given for the phrases to hide from each other.")]
    found = phrases_of(words, tokenize)
    missing = dict.fromkeys(words)
    result: list[TokenChunk] = []
    for chunk in chunks:
        tokens = list(chunk.tokens)
        for start, ids in _places(chunk, found):
            places = range(start, start + len(ids))
            if tokens[start].phrase and len({tokens[position].phrase for position in places}) == 1:
                for one in found.by_ids[ids]:
                    missing.pop(one, None)
                for position in places:
                    tokens[position] = tokens[position]._replace(apart=Apart(tokens[start].phrase))
        result.append(replace(chunk, tokens=tuple(tokens)))
    return tuple(result), [bind_issue(ABSENT, f"“{shortened(one)}” is in none of the phrases.") for one in missing]


def _places(chunk: TokenChunk, found: Phrases) -> Iterator[tuple[int, tuple[int, ...]]]:
    """Occurrences of phrases in a chunk: position of the first token, and ids of the phrase."""
    ids = tuple(token.id if isinstance(token.id, int) else -1 for token in chunk.content)
    for position, token_id in enumerate(ids):
        if token_id >= 0:
            yield from ((position + 1, key) for key in found.keys_at(position, ids))
