"""Prompts weighted by guidance in ComfyUI: a CONDITIONING with an entry for each prediction of the model.

The host draws all entries of a CONDITIONING and takes their mean by strength. So an entry for each form of a prompt,
with its share as a factor of its strength, gives the mixture. The share is a marker of the entry; a wrapper of the
host's sampler takes it away. It needs to know nothing of the model.

Source: behaviour of ComfyUI 0.29.0; docs/powers.md, "Dial".
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import count
from typing import Any, NamedTuple

from ....weighting.guidance import Prediction, predictions, without_weights
from ....weighting.options import EncodeOptions
from ....weighting.reading.view import counted
from ....weighting.text.prompt import shortened
from ..families.families import text_family
from ..markers import MarkerKind
from ..models.models import NativeClip
from ..types import Conditioning, ModelPatcher
from .clip import EitherClip, EncodedText, encode_texts, is_stable_diffusion
from .host_clip import host_clip
from .weighted_rows import encode_without_weights, without_ignored

_prompts = count()


class _Share(NamedTuple):
    factor: float  # of the entry's strength
    prompt: int
    number: int  # of the entry
    num_entries: int  # of its prompt


class GuidedText(NamedTuple):
    """A prompt whose weights act by guidance."""

    encoded: EncodedText
    """Its conditioning, which carries the shares, and the prompt as read."""
    predictions: tuple[Prediction, ...]
    """Predictions of the model; one if no weight acts."""
    model: ModelPatcher | None
    """The model for it, if one was given."""


def guide_text(
    clip: EitherClip, text: str, options: EncodeOptions, strength: float = 1.0, model: ModelPatcher | None = None
) -> GuidedText:
    """Encode a prompt for guidance.

    Args:
        clip: ComfyUI's CLIP, or a `NativeClip`; of any model.
        text: The prompt.
        options: Options; the scheme is ignored.
        strength: Scale of weights.
        model: Model for the wrapper; None for any model that samples with the conditioning.

    Raises:
        ValueError: If the prompt is several, as of ``.and``.
    """
    options = replace(options, scheme="unweighted")
    clip = host_clip(clip)
    forms = predictions(text, options, strength)
    encoded = _encoded(clip, text, options)
    encoded = encoded._replace(prompts={name: without_ignored(prompt) for name, prompt in encoded.prompts.items()})
    if len(forms) == 1 and not forms[0].left_out:
        return GuidedText(encoded, forms, model)
    parts = [_encoded(clip, form.text, options) if form.left_out else encoded for form in forms]
    conditioning = with_shares(
        [(form.share, part.conditioning) for form, part in zip(forms, parts, strict=True)], is_hooked=model is None
    )
    return GuidedText(encoded._replace(conditioning=conditioning), forms, model and _MARKERS.with_wrappers(model))


def _encoded(clip: EitherClip, text: str, options: EncodeOptions) -> EncodedText:
    if not (clip is None or isinstance(clip, NativeClip) or is_stable_diffusion(clip)):
        if (family := text_family(clip)) is not None:
            return encode_without_weights(clip, family, text, options)[0]
        text = without_weights(text, options)  # some of its encoders may read weights by the host's rule
    # signs of rows are not checked: the conditioning does not carry them
    return encode_texts(clip, [text], options, check=lambda reads: None)[0]


def report_of_guidance(forms: Sequence[Prediction], strength: float) -> list[str]:
    """Lines about the predictions of a prompt."""
    if len(forms) == 1 and not forms[0].left_out:
        return ["no word is weighted: the conditioning is that of CLIP Text Encode"]
    lines = [f"weighted by guidance, strength {strength:g}, of predictions of the model for:"]
    for form in forms:
        words = ", ".join(f"“{shortened(word.strip())}”" for word in form.left_out)
        lines.append(f"  {form.share:+.4g}: the prompt" + (f" without {words}" if words else ""))
    num_added = len(forms) - 1
    lines.append(
        f"{counted(num_added, 'more call')} of the model in each step" if num_added else "as many calls of the model"
    )
    return lines


def with_shares(parts: Sequence[tuple[float, Conditioning]], *, is_hooked: bool = True) -> Conditioning:
    """One conditioning of several, each with its share; with hooks, or for a MODEL that has the wrapper.

    One that has all of it stays as it is.
    """
    if len(parts) == 1:
        return parts[0][1]
    prompt, entries = next(_prompts), [(share, entry) for share, part in parts for entry in part]
    shares = [_Share(share, prompt, number, len(entries)) for number, (share, _) in enumerate(entries)]
    marked = _MARKERS.marked([entry for _, entry in entries], shares)
    return _MARKERS.with_hooks(marked) if is_hooked else marked


def _outer_sample(executor: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    """Wrapper around a whole sampling: shares become factors of the entries' strengths."""
    guider: Any = executor.class_obj  # type: ignore[attr-defined]
    for entries in guider.conds.values():
        _check_are_whole(_MARKERS.values_of(entries))
    guider.conds = {kind: [_with_strength(entry) for entry in entries] for kind, entries in guider.conds.items()}
    return executor(*arguments, **options)


def _check_are_whole(shares: Sequence[_Share]) -> None:
    """Refuse prompts of which another node has left out predictions."""
    numbers = Counter((share.prompt, share.number) for share in shares)
    for share in shares:
        if any(numbers[share.prompt, number] != numbers[share.prompt, 0] for number in range(share.num_entries)):
            raise ValueError(
                f"Of a prompt weighted by guidance the sampler needs all {share.num_entries} entries, but another "
                "node has left out some of them: choose another way, or take out that node."
            )


def _with_strength(entry: dict[str, Any]) -> dict[str, Any]:
    """An entry with its share as a factor of its strength, in the form of the host's sampler."""
    copy, share = _MARKERS.taken(entry)
    return copy if share is None else {**copy, "strength": entry.get("strength", 1.0) * share.factor}


_MARKERS = MarkerKind(
    "weighted_clip_share",
    {"outer_sample": _outer_sample},
    "Weights by guidance would be lost: another node has replaced the hooks that the CONDITIONING came with, or the "
    "MODEL that is connected to Attention Weights is sampled instead of its MODEL output.",
)
