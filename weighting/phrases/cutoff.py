"""Bound phrases as in Cutoff: the parts of a prompt between commas, with hidden words replaced by ``_``.

Source: docs/reference/masks.md, "Cutoff"; behaviour of sd-webui-cutoff 33f102c (2023-11).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import replace

from ..options import EncodeOptions
from ..syntax import parse
from ..text.chunks import Apart, Token, TokenChunk, Tokenize
from ..text.embeddings import EmbeddingVector
from ..text.prompt import Fragment, Issue, Span, shortened
from .bind import ABSENT, COMMA, UNBOUND, Bound, bind_issue, words_of

STAND_IN = "_"
"""Text by which Cutoff replaces each token that it hides."""


def marked_as_cutoff(chunks: Sequence[TokenChunk], text: str, options: EncodeOptions, tokenize: Tokenize) -> Bound:
    """Mark the tokens of each part between commas, and those that Cutoff replaces in the passes of other parts.

    Cutoff counts parts twice: for the words to replace by the commas of the text, for the rows to take by the tokens
    that are commas. If these differ it mistakes one part for another, which is reproduced here.
    """
    [(stand_in, _, _)] = tokenize(STAND_IN)
    comma_ids = {token_id for token_id, _, _ in tokenize(COMMA)}
    commas = [place for place, character in enumerate(text) if character == COMMA]
    places = _words_in(text, words_of(options))
    hidden = sorted(span for spans in places.values() for span in spans)
    active = {bisect_left(commas, span.start) + 1 for span in hidden}
    number, miscounted = 1, ""

    def marked(token: Token) -> Token:
        nonlocal number, miscounted
        if token.span is None:
            return token
        in_text, number_before = bisect_left(commas, token.span.start) + 1, number
        number += token.id in comma_ids
        if in_text != number_before and not miscounted:
            miscounted = shortened(text[max(0, token.span.start - 10) : token.span.end].strip())
        before = bisect_right(hidden, token.span.start, key=lambda span: span.start)
        is_hidden = before > 0 and token.span.start < hidden[before - 1].end
        return token._replace(
            phrase=number_before if number_before in active and token.id not in comma_ids else 0,
            apart=Apart(in_text, stand_in) if is_hidden else None,
        )

    result = tuple(replace(chunk, tokens=tuple(map(marked, chunk.tokens))) for chunk in chunks)
    counts = {word: _num_tokens(word, options.syntax, tokenize) for word in places}
    issues = _split_words(chunks, text, places, counts)
    issues += _issues_of_unplaced(text, places, hidden)
    if miscounted:
        message = (
            f"In “{miscounted}” a comma is not a token of its own: from there Cutoff mistakes one part for another. "
        )
        issues.append(bind_issue("miscounted-parts", f"{message}Put spaces around commas."))
    return Bound(result, tuple(issues))


def _words_in(text: str, words: Sequence[str]) -> dict[str, list[Span]]:
    """Occurrences of each word as a whole word in a text; earlier words take precedence over later ones.

    >>> _words_in("red, Red reddish red-haired", ["red"])
    {'red': [Span(start=0, end=3), Span(start=17, end=20)]}
    """
    found: dict[str, list[Span]] = {}
    left = list(text)
    for word in words:
        found[word] = _whole(word, "".join(left))
        for start, end in found[word]:
            left[start:end] = " " * (end - start)
    return found


def _whole(word: str, text: str) -> list[Span]:
    """Occurrences of a word with no letter, digit or underscore around it, from left to right."""
    found: list[Span] = []
    start = text.find(word)
    while start >= 0:
        end = start + len(word)
        if is_whole := _is_edge(text, start) and _is_edge(text, end):
            found.append(Span(start, end))
        start = text.find(word, end if is_whole else start + 1)
    return found


def _is_edge(text: str, place: int) -> bool:
    """Whether a word begins or ends at a position."""
    before, behind = text[max(0, place - 1) : place], text[place : place + 1]
    return _is_of_word(before) != _is_of_word(behind)


def _is_of_word(character: str) -> bool:
    return character.isalnum() or character == "_"


def _num_tokens(word: str, syntax: str, tokenize: Tokenize) -> int:
    """Number of tokens of a word alone; -1 if it has a break or a weight, which Cutoff would lose."""
    parts = parse(word, syntax).parts
    is_plain = all(isinstance(part, Fragment) and part.weight == 1.0 for part in parts)
    return sum(len(tokenize(part.text)) for part in parts if isinstance(part, Fragment)) if is_plain else -1


def _is_inside_punctuation(text: str, place: int) -> bool:
    """Whether a position is in a run of underscores and punctuation, which the spaces around ``_`` would divide."""
    around = text[max(0, place - 1) : place + 1]
    return len(around) == 2 and not any(character.isalnum() or character.isspace() for character in around)


def _issues_of_unplaced(text: str, places: dict[str, list[Span]], hidden: Sequence[Span]) -> list[Issue]:
    """Issues about words without an occurrence of their own, unless each is hidden with a longer word."""
    issues: list[Issue] = []
    for word in (word for word, spans in places.items() if not spans):
        matches = _whole(word, text)
        if not matches:
            message = (
                f"“{shortened(word)}” is not in the prompt as whole words written just like that, as Cutoff needs."
            )
            issues.append(bind_issue(ABSENT, message))
        elif not all(any(span.start <= start and end <= span.end for span in hidden) for start, end in matches):
            message = f"“{shortened(word)}” overlaps words that are given before it: give the longer one first."
            issues.append(bind_issue(UNBOUND, message))
    return sorted(issues, key=lambda issue: issue.code == ABSENT)


def _split_words(
    chunks: Sequence[TokenChunk], text: str, places: dict[str, list[Span]], counts: dict[str, int]
) -> list[Issue]:
    """Issues about words tokenized differently in the prompt, so that Cutoff would replace a wrong number of tokens.

    ``counts`` are the words' numbers of tokens when they stand alone.
    """
    content = [token for chunk in chunks for token in chunk.content if token.span is not None]
    starts, ends = [token.at.start for token in content], [token.at.end for token in content]
    issues: list[Issue] = []
    for word, spans in places.items():
        for span in spans:
            first, last = bisect_right(ends, span.start), bisect_left(starts, span.end)
            tokens = content[first:last]
            is_whole = all(span.start <= token.at.start and token.at.end <= span.end for token in tokens)
            is_embedding = any(isinstance(token.id, EmbeddingVector) for token in tokens)
            is_joined = any(_is_inside_punctuation(text, place) for place in span)
            if not is_whole or is_joined or not (is_embedding or len(tokens) == counts[word]):
                where = shortened(f"{text[: span.start].split(' ')[-1]}{text[span.start :].split(' ')[0]}")
                told = f"“{shortened(word)}” is not the same tokens in “{where}” as alone"
                message = f"{told}, so that Cutoff cannot replace it."
                issues.append(bind_issue(UNBOUND, message))
    return issues
