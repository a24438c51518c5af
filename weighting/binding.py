"""Bound phrases: phrases of a prompt that cannot see each other, so that the colour of one does not leak into another.

The prompt is encoded once more for each phrase, with the words of all other phrases hidden from everything, and the
phrase's rows are taken from there. Whatever encodings a scheme asks for are bound so, one by one.

Source: docs/masks.md, "Bound phrases".
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Literal, TypeVar, get_args

from ..encoder.encoding import Encoding
from .chunks import TokenChunk, Tokenize
from .phrases import absent, phrases_of
from .prompt import Issue, Span, shortened
from .schemes.plan import Plan, Variant, Visible, both

T = TypeVar("T")

BindRest = Literal["full", "alone"]
BIND_RESTS: tuple[BindRest, ...] = get_args(BindRest)
"""Where the rows of all other tokens come from, default first: the plain pass, or one with all phrases hidden."""


UNBOUND = "unbound-phrase"
"""Code of what is said of phrases that cannot be bound."""


def mark_bound(chunks: Sequence[TokenChunk], phrases: str, tokenize: Tokenize) -> tuple[TokenChunk, ...]:
    """Mark the tokens of each phrase with its number, counted from 1 in the order of the phrases.

    A phrase is found by its token ids, within a chunk and in any case, whatever its weight. It takes all its places; of
    two phrases that overlap, the later one takes what they share, which `bound_issues` names.

    Args:
        chunks: A prompt.
        phrases: One a line.
        tokenize: The encoder's tokenizer.

    Returns:
        The chunks with ``phrase`` set.
    """
    if not phrases.strip():
        return tuple(chunks)
    numbers = _numbers(phrases, tokenize)
    result: list[TokenChunk] = []
    for chunk in chunks:
        tokens = list(chunk.tokens)
        for start, ids in _places(chunk, phrases, tokenize):
            for position in range(start, start + len(ids)):
                tokens[position] = tokens[position]._replace(phrase=numbers[ids])
        result.append(replace(chunk, tokens=tuple(tokens)))
    return tuple(result)


def bound_issues(chunks: Sequence[TokenChunk], phrases: str, tokenize: Tokenize) -> list[Issue]:
    """Phrases that cannot be bound: absent ones and those that overlap; otherwise as `mark_bound`."""
    if not phrases.strip():
        return []
    found = phrases_of(phrases, tokenize)
    overlaps: dict[tuple[str, str], None] = {}
    missing = dict.fromkeys(found.texts)
    for chunk in chunks:
        taken: dict[int, tuple[int, ...]] = {}
        for start, ids in _places(chunk, phrases, tokenize):
            for text in found.by_ids[ids]:
                missing.pop(text, None)
            for position in range(start, start + len(ids)):
                other = taken.setdefault(position, ids)
                if other != ids:
                    overlaps[found.by_ids[other][0], found.by_ids[ids][0]] = None
    messages = [
        f"“{shortened(one)}” and “{shortened(two)}” overlap: a word can be in one phrase only." for one, two in overlaps
    ]
    messages += [absent(one) for one in missing]
    return [Issue(UNBOUND, message, Span(0, 0)) for message in messages]


def bound(plan: Plan[T], strength: float, rest: BindRest) -> Plan[T]:
    """A plan whose every version of the prompt is bound.

    Args:
        plan: Of chunks that `mark_bound` has marked.
        strength: 0 to 1: how much of the bound encoding there is; the rest is the plain one.
        rest: One of `BIND_RESTS`.

    Returns:
        The plan with more variants: for each version of the prompt one pass for each phrase, and with ``alone`` one
        more. Pooled vectors stay the plain pass's.
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


def _passes(variant: Variant, rest: BindRest) -> list[Variant]:
    """The variant, a pass for each phrase in it, and with ``alone`` one with no phrase."""
    # the host makes no such call, so there is none to be made just so
    plain = replace(variant, call=None)
    seen = [(number, f"bound: phrase {number}") for number in _phrases_in(variant)]
    if seen and rest == "alone":
        seen.append((0, "bound: the rest"))
    return [plain, *(replace(plain, visible=_visible(variant, number), title=title) for number, title in seen)]


def _visible(variant: Variant, number: int) -> tuple[Visible, ...]:
    """What a pass shows of each chunk: of the phrases only one."""
    return tuple(
        both(visible, bytes(token.phrase in (0, number) for token in chunk.tokens))
        for chunk, visible in zip(variant.chunks, variant.visible, strict=True)
    )


def _phrases_in(variant: Variant) -> list[int]:
    """The phrases of a version, in order; none of what is no version of the prompt."""
    if variant.is_aside:
        return []
    return sorted({token.phrase for chunk in variant.chunks for token in chunk.tokens} - {0})


def _folded(variant: Variant, plain: Encoding, passes: Sequence[Encoding], strength: float, rest: BindRest) -> Encoding:
    """One encoding of a version out of those of its passes."""
    import torch  # here, because the command line reads the options of this file without it

    if not passes:
        return plain
    phrase = torch.tensor([[token.phrase for token in chunk.tokens] for chunk in variant.chunks])
    phrase = phrase.to(plain.hidden.device)
    hidden = (passes[-1] if rest == "alone" else plain).hidden.clone()
    for number, one in zip(_phrases_in(variant), passes, strict=False):
        hidden[phrase == number] = one.hidden[phrase == number]
    if strength != 1.0:
        hidden = (1.0 - strength) * plain.hidden + strength * hidden
    return Encoding(hidden, plain.pooled)


def _numbers(phrases: str, tokenize: Tokenize) -> dict[tuple[int, ...], int]:
    """The number of each phrase by its ids; phrases that differ in letter case only are one."""
    return {ids: number for number, ids in enumerate(phrases_of(phrases, tokenize).by_ids, 1)}


def _places(chunk: TokenChunk, phrases: str, tokenize: Tokenize) -> Iterator[tuple[int, tuple[int, ...]]]:
    """Where phrases stand in a chunk: the position of the first token, and the phrase's ids."""
    ids = tuple(token.id if isinstance(token.id, int) else -1 for token in chunk.content)
    found = phrases_of(phrases, tokenize)
    for position, token_id in enumerate(ids):
        if token_id >= 0:
            yield from ((position + 1, key) for key in found.keys_at(position, ids))
