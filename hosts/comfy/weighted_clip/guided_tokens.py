"""Prompts weighted by guidance, in the boxes of any node.

Source: docs/powers.md, "Dial".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ....weighting.guidance import GUIDANCE, predictions
from ..clip.guidance import with_shares
from ..clip.marks import values_of
from ..types import Conditioning

if TYPE_CHECKING:
    from .encoder_call import Session


class GuidedChunks(list[Any]):
    """Chunks of a prompt, with those of each of its predictions."""

    predictions: Sequence[tuple[float, Mapping[str, Any] | None]]
    """Share and the host's tokens of each; None for those of the whole prompt."""
    values: tuple[Any, ...]
    """Their content as long as nobody edits them."""


def guided_tokens(text: str, session: Session, tokens_of: Callable[[str], dict[str, Any]]) -> dict[str, Any]:
    """Tokens of a prompt whose weights act by guidance; as ``tokens_of`` makes them if none acts."""
    settings, tokens = session.settings, tokens_of(text)
    if settings.way != GUIDANCE:
        return tokens
    forms = predictions(text, session.method.options, settings.strength)
    if len(forms) == 1 and not forms[0].left_out:
        return tokens
    parts = [(form.share, tokens_of(form.text) if form.left_out else None) for form in forms]
    for key, chunks in tokens.items():
        if isinstance(chunks, list):
            guided = tokens[key] = GuidedChunks(chunks)
            guided.predictions, guided.values = parts, values_of(chunks)
    return tokens


def guided_conditioning(
    tokens: Mapping[str, Any], encoded: Callable[[Mapping[str, Any]], Conditioning]
) -> Conditioning:
    """Conditioning of tokens; of a prompt weighted by guidance one with the entries of its predictions.

    Raises:
        ValueError: If another node has edited the tokens of such a prompt, or mixed those of several.
    """
    lists = [chunks for chunks in tokens.values() if isinstance(chunks, list)]
    guided = [chunks for chunks in lists if isinstance(chunks, GuidedChunks)]
    if not guided:
        return encoded(tokens)
    parts = guided[0].predictions
    if len(guided) < len(lists) or any(
        chunks.predictions is not parts or values_of(chunks) != chunks.values for chunks in guided
    ):
        raise ValueError(
            "A node has edited or mixed the tokens of a prompt that is weighted by guidance: choose another scheme, or "
            "take the weights out."
        )
    whole = encoded(tokens)  # also told if it has no share
    return with_shares([(share, whole if part is None else encoded(part)) for share, part in parts])
