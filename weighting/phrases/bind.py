"""Bound phrases: phrases of a prompt that cannot see each other, so that the colour of one does not leak into another.

The prompt is encoded once more for each phrase, with the words of all other phrases hidden from everything, and the
phrase's rows are taken from that encoding. Every encoding a scheme needs is bound in this way.

Source: docs/reference/masks.md, "Bound phrases".
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import groupby, islice
from operator import itemgetter
from typing import NamedTuple, TypeVar

from ...encoder.encoding import Encoding
from ..options import EncodeOptions
from ..plan import Plan, Variant, Visible, intersection
from ..text.chunks import Apart, TokenChunk, Tokenize
from ..text.phrases import COMMA, Match, absent, cover, phrases_in, stretches
from ..text.prompt import Issue, Span, shortened

UNBOUND = "unbound-phrase"
"""Issue code for phrases that cannot be bound."""
ABSENT = "absent-phrase"
"""Issue code for missing phrases, or missing words of phrases."""


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
    problem = next((issue for issue in issues if issue.code in codes), None)
    return "" if problem is None else f"These phrases cannot be bound: {problem.line}"


def within_bounds(marked: Bound, chunks: Sequence[TokenChunk]) -> Bound:
    """Marked chunks, or ``chunks`` as they were if there are more phrases than `MAX_PHRASES`."""
    number = len({token.phrase for chunk in marked.chunks for token in chunk.tokens} - {0})
    if number <= MAX_PHRASES:
        return marked
    message = f"At most {MAX_PHRASES} phrases can be kept apart, as each is one more encoding: there are {number:,}."
    return Bound(tuple(chunks), (bind_issue(UNBOUND, message),))


T = TypeVar("T")


def bound(plan: Plan[T], strength: float, rest: str) -> Plan[T]:
    """Bind every version of the prompt in a plan.

    Args:
        plan: Plan of chunks marked by `mark_bound`.
        strength: Share of the bound encoding, 0 to 1; the rest is the plain one.
        rest: ``full`` or ``alone``.

    Returns:
        The plan with more variants: one pass per phrase for each version of the prompt, and one more with ``alone``.
        Pooled vectors come from the plain pass.
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
    chunks_of: dict[int, list[int]] = {}
    for index, chunk in enumerate(plain.chunks):
        for number in {token.phrase for token in chunk.tokens}:
            chunks_of.setdefault(number, []).append(index)
    return [plain, *(_pass(plain, number, chunks_of.get(number, ())) for number in _numbers(variant, rest))]


def _numbers(variant: Variant, rest: str) -> list[int]:
    """Passes of a version, as in `bound_passes`; none for a variant that is not a version of the prompt."""
    return [] if variant.is_aside else bound_passes(variant.chunks, rest)


def _pass(plain: Variant, number: int, indices: Sequence[int]) -> Variant:
    """The pass of one phrase, or 0 for the rest, in its chunks. Others stay plain: nothing is taken from them."""
    chunks, visible = list(plain.chunks), list(plain.visible)
    for index in indices:
        chunks[index], mask = _with_stand_ins(plain.chunks[index], number)
        visible[index] = intersection(visible[index], mask)
    title = f"bound: phrase {number}" if number else "bound: the rest"
    return replace(plain, chunks=tuple(chunks), visible=tuple(visible), title=title)


def _with_stand_ins(chunk: TokenChunk, number: int) -> tuple[TokenChunk, Visible]:
    """A chunk with the tokens hidden by other phrases replaced, and its mask."""
    tokens, mask = list(chunk.tokens), bytearray(b"\1" * len(chunk.tokens))
    for position, token in enumerate(tokens):
        if token.apart is not None and token.apart.phrase != number:
            if token.apart.stand_in is None:
                mask[position] = 0
            else:
                tokens[position] = token._replace(id=token.apart.stand_in)
    return replace(chunk, tokens=tuple(tokens)), bytes(mask)


def _folded(variant: Variant, plain: Encoding, passes: Sequence[Encoding], strength: float, rest: str) -> Encoding:
    """Combine the passes of a version into one encoding."""
    import torch  # here, because the command line marks phrases without it

    if not passes:
        return plain
    phrase = torch.tensor([[token.phrase for token in chunk.tokens] for chunk in variant.chunks])
    phrase = phrase.to(plain.hidden.device)
    hidden = plain.hidden.clone()
    for number, encoding in zip(_numbers(variant, rest), passes, strict=True):
        hidden[phrase == number] = encoding.hidden[phrase == number]
    if strength != 1.0:
        hidden = (1.0 - strength) * plain.hidden + strength * hidden
    return Encoding(hidden, plain.pooled)


# Given phrases


MAX_PHRASES = 100
"""Most phrases that are kept apart: the prompt is encoded once more for each."""
MAX_OVERLAPS = 20
"""Most overlaps of phrases that are named."""


def marked_phrases(chunks: Sequence[TokenChunk], options: EncodeOptions, tokenize: Tokenize) -> Bound:
    """Mark the tokens of given phrases, and the words that they hide from each other; see `reading.mark_bound`."""
    phrases = phrases_in(chunks, options.bind, tokenize)
    numbers = {
        text: number for number, text in enumerate(dict.fromkeys(texts[0] for texts in phrases.by_ids.values()), 1)
    }
    is_whole = options.bind_hide == "whole phrases"
    matches: list[Match] = []
    overlaps: dict[tuple[str, str], None] = {}
    result: list[TokenChunk] = []
    for chunk in chunks:
        tokens = stretches(chunk.content, 1)
        phrase_of: dict[int, int] = {}
        before: Match | None = None
        for match in phrases.matches(token.id for token in tokens):
            text = phrases.by_ids[match.ids][0]
            overlapping = [phrases.shorter(match.ids)]
            if before is not None and match.start < before.end:
                overlapping.append(before.ids)
            names = (phrases.by_ids[ids][0] for ids in overlapping if ids)
            overlaps.update(dict.fromkeys((name, text) for name in names if name != text))
            for place in range(max(match.start, before.end if before else 0), match.end):
                phrase_of |= dict.fromkeys(range(tokens[place].start, tokens[place].end), numbers[text])
            matches.append(match)
            before = match
        marked = [*chunk.tokens]
        for position, number in phrase_of.items():
            marked[position] = marked[position]._replace(phrase=number, apart=Apart(number) if is_whole else None)
        result.append(replace(chunk, tokens=tuple(marked)))
    issues = [
        bind_issue(
            UNBOUND, f"“{shortened(first)}” and “{shortened(second)}” overlap: a word can be in one phrase only."
        )
        for first, second in islice(overlaps, MAX_OVERLAPS)
    ]
    present = phrases.texts_in(matches)
    issues += [bind_issue(ABSENT, absent(text)) for text in phrases.texts if text not in present]
    if is_whole:
        return Bound(tuple(result), tuple(issues))
    marked_words, of_words = _with_hidden_words(result, options, tokenize)
    return Bound(marked_words, (*issues, *of_words))


def _with_hidden_words(
    chunks: Sequence[TokenChunk], options: EncodeOptions, tokenize: Tokenize
) -> tuple[tuple[TokenChunk, ...], list[Issue]]:
    """Mark the words that phrases hide from each other, wherever they occur in a phrase."""
    words = words_of(options)
    if not words:
        return tuple(chunks), [bind_issue(UNBOUND, "No words are given for the phrases to hide from each other.")]
    phrases = phrases_in(chunks, words, tokenize)
    matches: list[Match] = []
    result: list[TokenChunk] = []
    for chunk in chunks:
        marked = [*chunk.tokens]
        numbered = ((chunk.tokens[token.start].phrase, token) for token in stretches(chunk.content, 1))
        for number, group in groupby(numbered, itemgetter(0)):
            tokens = [token for _, token in group] if number else []
            of_phrase = [*phrases.matches(token.id for token in tokens)]
            for place in cover(of_phrase):
                for position in range(tokens[place].start, tokens[place].end):
                    marked[position] = marked[position]._replace(apart=Apart(number))
            matches += of_phrase
        result.append(replace(chunk, tokens=tuple(marked)))
    present = phrases.texts_in(matches)
    missing = [word for word in words if word not in present]
    return tuple(result), [bind_issue(ABSENT, f"“{shortened(word)}” is in none of the phrases.") for word in missing]
