"""Phrases that tokens shall not see: finding them in a prompt, and the attention masks that hide them.

Source: docs/masks.md, "Mask control".
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from .chunks import Token, TokenChunk, Tokenize
from .embeddings import EMBEDDING_PREFIX
from .options import EncodeOptions
from .prompt import Issue, Span
from .scheme_api import MaskFn, hide_nothing


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
    from_phrases = options.from_phrases if options.hidden_from == "the phrases below" else ""
    result: list[TokenChunk] = []
    for chunk in chunks:
        hidden = {place for phrase in _phrases(options.hide) for place in _places(chunk, phrase, tokenize)}
        blind = {place for phrase in _phrases(from_phrases) for place in _places(chunk, phrase, tokenize)}
        if options.hidden_from == "padding rows only":
            blind = set(range(chunk.num_content + 2, len(chunk.tokens)))
        tokens = (
            token._replace(is_hidden=place in hidden, is_blind=place in blind)
            for place, token in enumerate(chunk.tokens)
        )
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
    phrases = [*_phrases(options.hide), *(_phrases(options.from_phrases) if is_partial else ())]
    issues = [
        Issue("no-such-phrase", f"“{phrase}” is not in the prompt, or is cut by the end of a chunk.", Span(0, 0))
        for phrase in phrases
        if not any(next(_places(chunk, phrase, tokenize), None) is not None for chunk in chunks)
    ]
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


def hidden_mask_fn(options: EncodeOptions) -> MaskFn:
    """The mask that hides the marked tokens.

    Args:
        options: ``hide`` and ``hidden_from``.

    Returns:
        A function from marked chunks to ``[chunks, 1, 77]`` or, where only some rows are blind, ``[chunks, 77, 77]``.
    """
    if not options.hide.strip():
        return hide_nothing

    def mask(chunks: Sequence[TokenChunk]) -> Tensor:
        hidden = torch.tensor([[token.is_hidden for token in chunk.tokens] for chunk in chunks])
        if options.hidden_from == "everything":
            return ~hidden.unsqueeze(1)  # [chunks, 1, 77]
        blind = torch.tensor([[token.is_blind for token in chunk.tokens] for chunk in chunks])
        return ~(blind.unsqueeze(2) & hidden.unsqueeze(1))  # [chunks, 77, 77]

    return mask


def _phrases(text: str) -> list[str]:
    return list(dict.fromkeys(line.strip() for line in text.splitlines() if line.strip()))


def _places(chunk: TokenChunk, phrase: str, tokenize: Tokenize) -> Iterator[int]:
    """Positions in a chunk at which a phrase stands."""
    content = chunk.content
    ids = [token.id if isinstance(token.id, int) else -1 for token in content]
    wanted = [token_id for token_id, _, _ in tokenize(phrase)]
    for start in range(len(ids) - len(wanted) + 1 if wanted else 0):
        if ids[start : start + len(wanted)] == wanted:
            yield from range(start + 1, start + 1 + len(wanted))
    name = phrase.removeprefix(EMBEDDING_PREFIX).lower()
    for place, token in enumerate(content, 1):
        if not isinstance(token.id, int) and token.id.name.lower() == name:
            yield place
