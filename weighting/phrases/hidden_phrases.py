"""Hidden phrases: finding them in a prompt, and the attention masks that hide them.

Source: docs/reference/masks.md, "Mask control".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ..options import EncodeOptions
from ..plan import Visible, VisibleFn, intersection
from ..schemes.scheme import hide_nothing
from ..text.chunks import Token, TokenChunk, Tokenize
from ..text.phrases import Phrases, absent, cover, phrases_in, stretches
from ..text.prompt import Issue, Span


def mark_hidden(chunks: Sequence[TokenChunk], options: EncodeOptions, tokenize: Tokenize) -> tuple[TokenChunk, ...]:
    """Mark hidden tokens, and those that do not see them.

    A phrase is found by its token ids, within a chunk, ignoring case and weight; an embedding by its name.
    """
    if not options.hide.strip():
        return tuple(chunks)
    hide = phrases_in(chunks, options.hide, tokenize)
    is_partial = options.hidden_from == "the phrases below"
    from_phrases = phrases_in(chunks, options.from_phrases if is_partial else "", tokenize)
    result: list[TokenChunk] = []
    for chunk in chunks:
        hidden, blind = _positions(chunk, hide), _positions(chunk, from_phrases)
        if options.hidden_from == "padding rows only" and hidden:
            blind = set(range(chunk.num_content + 2, len(chunk.tokens)))
        if not hidden and not blind:  # a prompt may be thousands of chunks
            result.append(chunk)
            continue
        tokens = list(chunk.tokens)
        for position in hidden | blind:
            tokens[position] = tokens[position]._replace(is_hidden=position in hidden, is_blind=position in blind)
        result.append(replace(chunk, tokens=tuple(tokens)))
    return tuple(result)


def hiding_issues(chunks: Sequence[TokenChunk], options: EncodeOptions, tokenize: Tokenize) -> list[Issue]:
    """Issues about phrases missing in a marked prompt, and hiding without effect; otherwise as `mark_hidden`."""
    if not options.hide.strip():
        return []
    is_partial = options.hidden_from == "the phrases below"
    issues: list[Issue] = []
    for text in (options.hide, options.from_phrases if is_partial else ""):
        for phrase in _missing_from(chunks, phrases_in(chunks, text, tokenize)):
            message = absent(phrase)
            issues.append(Issue("no-such-phrase", message, Span(0, 0)))
    if is_partial and not options.from_phrases.strip():
        issues.append(Issue("no-phrases", "There are no phrases to hide them from: nothing is hidden.", Span(0, 0)))
    if options.is_causal and is_partial:
        issues += _causality_issues(chunks)
    return issues


def _causality_issues(chunks: Sequence[TokenChunk]) -> list[Issue]:
    """Issues about tokens before everything hidden in their chunk, which do not see it anyway."""
    unaffected: dict[int, Token] = {}
    for chunk in chunks:
        hidden = [position for position, token in enumerate(chunk.tokens) if token.is_hidden]
        for position, token in enumerate(chunk.tokens):
            if token.is_blind and not any(hidden_position <= position for hidden_position in hidden):
                unaffected.setdefault(token.fragment, token)
    message = (
        "This comes before everything that is hidden from it. CLIP reads from left to right, so it would not see "
        "that anyway."
    )
    return [Issue("already-unseen", message, token.at) for token in unaffected.values()]


def phrases_visible(options: EncodeOptions) -> VisibleFn:
    """Mask of the marked tokens.

    Args:
        options: ``hide`` and ``hidden_from``.

    Returns:
        Function from a marked chunk to a flag for each of its positions or, if only some rows are blind, for each query
        and key.
    """
    if not options.hide.strip():
        return hide_nothing

    def visible(chunk: TokenChunk) -> Visible:
        flags = bytes(not token.is_hidden for token in chunk.tokens)
        if options.hidden_from != "everything":
            everything = b"\1" * len(flags)
            flags = b"".join(flags if token.is_blind else everything for token in chunk.tokens)
        return intersection(flags, None)

    return visible


def _positions(chunk: TokenChunk, phrases: Phrases) -> set[int]:
    """Positions of all phrases in a chunk."""
    tokens = stretches(chunk.content, 1)
    places = cover(phrases.matches(token.id for token in tokens))
    return {position for place in places for position in range(tokens[place].start, tokens[place].end)}


def _missing_from(chunks: Sequence[TokenChunk], phrases: Phrases) -> list[str]:
    """Phrases missing in all of these chunks."""
    present = phrases.texts_in(
        match for chunk in chunks for match in phrases.matches(token.id for token in stretches(chunk.content))
    )
    return [phrase for phrase in phrases.texts if phrase not in present]
