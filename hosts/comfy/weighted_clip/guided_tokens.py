"""Prompts weighted by guidance, in the boxes of any node.

Source: docs/powers.md, "Dial".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ....weighting.guidance import GUIDANCE, predictions
from ..guidance import with_shares
from ..types import Conditioning
from .marks import values_of

if TYPE_CHECKING:
    from .encoding import Session


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
    found = predictions(text, session.method.options, settings.strength)
    if len(found) == 1 and not found[0].left_out:
        return tokens
    parts = [(one.share, tokens_of(one.text) if one.left_out else None) for one in found]
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
    chunks = [some for some in tokens.values() if isinstance(some, list)]
    guided = [some for some in chunks if isinstance(some, GuidedChunks)]
    if not guided:
        return encoded(tokens)
    parts = guided[0].predictions
    if len(guided) < len(chunks) or any(
        some.predictions is not parts or values_of(some) != some.values for some in guided
    ):
        raise ValueError(
            "A node has edited or mixed the tokens of a prompt that is weighed by guidance: choose another scheme, or "
            "take the weights out."
        )
    whole = encoded(tokens)  # also told if it has no share
    return with_shares([(share, whole if some is None else encoded(some)) for share, some in parts])
