"""Phrases that tokens shall not see: finding them in a prompt, and the attention masks that hide them.

Source: docs/masks.md, "Mask control".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

from .chunks import Token, TokenChunk, Tokenize
from .embeddings import EMBEDDING_PREFIX
from .options import EncodeOptions
from .plan import Visible, VisibleFn, both
from .prompt import Issue, Span, shortened
from .scheme_api import hide_nothing


def mark_hidden(chunks: Sequence[TokenChunk], options: EncodeOptions, tokenize: Tokenize) -> tuple[TokenChunk, ...]:
    """Mark the tokens that are hidden, and those that shall not see them.

    A phrase is found by its token ids, within a chunk and in any case, whatever its weight; an embedding by its name.

    Args:
        chunks: A prompt.
        options: ``hide``, ``hidden_from`` and ``from_phrases``.
        tokenize: The encoder's tokenizer.

    Returns:
        The chunks with ``is_hidden`` and ``is_blind`` set.
    """
    if not options.hide.strip():
        return tuple(chunks)
    hide = _phrases(options.hide, tokenize)
    from_phrases = _phrases(options.from_phrases if options.hidden_from == "the phrases below" else "", tokenize)
    result: list[TokenChunk] = []
    for chunk in chunks:
        hidden, blind = hide.found_in(chunk).places, from_phrases.found_in(chunk).places
        if options.hidden_from == "padding rows only" and hidden:
            blind = set(range(chunk.num_content + 2, len(chunk.tokens)))
        if not hidden and not blind:  # a prompt may be thousands of chunks
            result.append(chunk)
            continue
        tokens = list(chunk.tokens)
        for place in hidden | blind:
            tokens[place] = tokens[place]._replace(is_hidden=place in hidden, is_blind=place in blind)
        result.append(replace(chunk, tokens=tuple(tokens)))
    return tuple(result)


def hiding_issues(chunks: Sequence[TokenChunk], options: EncodeOptions, tokenize: Tokenize) -> list[Issue]:
    """Phrases that are not in the prompt, and hiding that cannot have an effect.

    Args:
        chunks: The prompt, marked.
        options: As in `mark_hidden`.
        tokenize: As in `mark_hidden`.

    Returns:
        The issues.
    """
    if not options.hide.strip():
        return []
    is_partial = options.hidden_from == "the phrases below"
    issues: list[Issue] = []
    for text in (options.hide, options.from_phrases if is_partial else ""):
        for phrase in _phrases(text, tokenize).missing_from(chunks):
            message = f"“{shortened(phrase)}” is not in the prompt, or is cut by the end of a chunk."
            issues.append(Issue("no-such-phrase", message, Span(0, 0)))
    if is_partial and not options.from_phrases.strip():
        issues.append(Issue("no-phrases", "No phrases are given from which to hide: nothing is hidden.", Span(0, 0)))
    if options.is_causal and is_partial:
        issues += _causality_issues(chunks)
    return issues


def _causality_issues(chunks: Sequence[TokenChunk]) -> list[Issue]:
    """Tokens that stand before all that is hidden in their chunk do not see it anyway."""
    unaffected: dict[int, Token] = {}
    for chunk in chunks:
        hidden = [place for place, token in enumerate(chunk.tokens) if token.is_hidden]
        for place, token in enumerate(chunk.tokens):
            if token.is_blind and not any(other <= place for other in hidden):
                unaffected.setdefault(token.fragment, token)
    message = (
        "This stands before all that is hidden from it. CLIP reads from left to right, so it does not see that anyway."
    )
    return [Issue("already-unseen", message, token.place) for token in unaffected.values()]


def phrases_visible(options: EncodeOptions) -> VisibleFn:
    """What hides the marked tokens.

    Args:
        options: ``hide`` and ``hidden_from``.

    Returns:
        A function from a marked chunk to a flag for each of its positions or, where only some rows are blind, for each
        query and key.
    """
    if not options.hide.strip():
        return hide_nothing

    def visible(chunk: TokenChunk) -> Visible:
        shown = bytes(not token.is_hidden for token in chunk.tokens)
        if options.hidden_from != "everything":
            everything = b"\1" * len(shown)
            shown = b"".join(shown if token.is_blind else everything for token in chunk.tokens)
        return both(shown, None)

    return visible


class _Found(NamedTuple):
    """What stands in a chunk."""

    ids: set[tuple[int, ...]]
    """Of its phrases; thousands may have the same, as letter case is nothing to CLIP."""
    names: set[str]
    """Phrases that name an embedding."""
    places: set[int]
    """The positions of all of them."""


def _phrases(text: str, tokenize: Tokenize) -> _Phrases:
    """Tokenize phrases: once, because each of thousands of sections of a prompt asks for them."""
    if getattr(tokenize, "__hash__", None) is None:  # a caller's own class may have none
        return _Phrases(text, tokenize)
    return _kept_phrases(text, tokenize)


@lru_cache(maxsize=4)
def _kept_phrases(text: str, tokenize: Tokenize) -> _Phrases:
    return _Phrases(text, tokenize)


class _Phrases:
    """Phrases, one a line, and where they stand in chunks."""

    def __init__(self, text: str, tokenize: Tokenize) -> None:
        self.texts = list(dict.fromkeys(line.strip() for line in text.splitlines() if line.strip()))
        self.by_ids: dict[tuple[int, ...], list[str]] = {}
        for phrase in self.texts:
            self.by_ids.setdefault(tuple(token_id for token_id, _, _ in tokenize(phrase)), []).append(phrase)
        self.by_ids.pop((), None)
        lengths: dict[int, set[int]] = {}
        for ids in self.by_ids:
            lengths.setdefault(ids[0], set()).add(len(ids))
        self.lengths = {first: sorted(some) for first, some in lengths.items()}
        """By the id that a phrase begins with."""
        self.by_name = {phrase.removeprefix(EMBEDDING_PREFIX).lower(): phrase for phrase in self.texts}

    def found_in(self, chunk: TokenChunk) -> _Found:
        """The phrases that stand in a chunk, and where."""
        found: set[tuple[int, ...]] = set()
        names: set[str] = set()
        places: set[int] = set()
        ids = tuple(token.id if isinstance(token.id, int) else -1 for token in chunk.content)
        for start, first in enumerate(ids):
            longest = 0
            for length in self.lengths.get(first, ()):
                key = ids[start : start + length]
                if len(key) < length:
                    break
                if key in self.by_ids:
                    found.add(key)
                    longest = length
            places.update(range(start + 1, start + 1 + longest))
        for place, token in enumerate(chunk.content, 1):
            if not isinstance(token.id, int) and (phrase := self.by_name.get(token.id.name.lower())):
                names.add(phrase)
                places.add(place)
        return _Found(found, names, places)

    def missing_from(self, chunks: Sequence[TokenChunk]) -> list[str]:
        """The phrases that stand in none of these chunks."""
        found = [self.found_in(chunk) for chunk in chunks]
        there = {name for one in found for name in one.names}
        there.update(phrase for ids in {ids for one in found for ids in one.ids} for phrase in self.by_ids[ids])
        return [phrase for phrase in self.texts if phrase not in there]
