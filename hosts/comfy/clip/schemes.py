"""ComfyUI CLIPs and conditionings for the schemes that need more of the model than rows: ``negpip`` and ``repeat``.

``negpip``: signed rows on their way to the sampler, and CLIPs patched by ComfyUI-ppm's CLIP NegPip.

``repeat``: a U-Net's cross-attention reads only rows of text, so all of them may be repeated. If text and image share a
softmax, rows of weight 1 must occur exactly once. For other families ComfyUI uses only CLIP's pooled vector.

Source: behaviour of ComfyUI 0.29.0; of ComfyUI-ppm 200f4609 (2026-05); docs/reference/schemes.md, "NegPip".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ....weighting.attention import PLAIN, RowEffect
from ....weighting.pipeline import EncodedPrompt
from ....weighting.reading.prompt_reader import ReadPrompt
from ....weighting.schemes.negpip import NegPipError, paired
from ....weighting.schemes.repeat import RepeatError, copies_of
from ....weighting.text.prompt import Issue, Span
from ..attention.attention import with_effects
from ..types import Clip, Conditioning


def is_patched(clip: Clip) -> bool:
    """Whether ComfyUI-ppm's CLIP NegPip has patched a CLIP."""
    patches = clip.patcher.object_patches
    functions = [patch for path, patch in patches.items() if path.endswith(".encode_token_weights")]
    names = (getattr(getattr(function, "func", function), "__name__", "") for function in functions)
    return any("negpip" in name for name in names)


def check_signs(clip: Clip, reads: Mapping[str, Sequence[ReadPrompt]], *, is_stable_diffusion: bool) -> None:
    """Raise `NegPipError` if words cannot be subtracted in the model of a CLIP and a weight is below 0.

    ``is_stable_diffusion``: it has only CLIP text towers.
    """
    if is_stable_diffusion or not any(read.has_signs for some in reads.values() for read in some):
        return
    scheme = next(iter(reads.values()))[0].options.scheme
    raise NegPipError(
        f"The scheme {scheme} takes words away in the cross attention of Stable Diffusion 1, 2 and XL, not with this "
        f"CLIP ({type(clip.cond_stage_model).__name__}). Attention Weights with bias does so in other models, or take "
        "weights of 0 and above."
    )


def with_signs(conditioning: Conditioning, prompts: Mapping[str, EncodedPrompt]) -> Conditioning:
    """Attach signs to a conditioning, so that words of weights below 0 are subtracted wherever an image reads it.

    All towers have the same signs. Without a sign of -1 it is returned as it is, else a copy.
    """
    signs = next(iter(prompts.values())).signs
    if not signs:
        return conditioning
    return with_effects(conditioning, [RowEffect(0.0, sign) if sign < 0 else PLAIN for sign in signs])[0]


def for_patched(encoded: EncodedPrompt) -> EncodedPrompt:
    """Prepare a prompt for the MODEL of ComfyUI-ppm's CLIP NegPip, which reads every other row as a value.

    Then that pack subtracts the words, and an issue says so if there are any.
    """
    issues = encoded.read.issues
    if encoded.signs:
        message = (
            "CLIP NegPip of ComfyUI-ppm is connected: that node takes words with weights below 0 away, not this one."
        )
        issues = (Issue("negpip-of-ppm", message, Span(0, 0)), *issues)
    hidden = paired(encoded.hidden, encoded.signs)
    return encoded._replace(hidden=hidden, signs=(), read=encoded.read._replace(issues=issues))


WHOLE_WEIGHTS = {"SD3ClipModel": "Stable Diffusion 3", "StableCascadeClipModel": "Stable Cascade"}
"""Models in which text and image share a softmax, by ComfyUI's class of their text encoders."""


def check_repeat(clip: Clip, reads: Mapping[str, Sequence[ReadPrompt]], *, is_stable_diffusion: bool) -> None:
    """Raise `RepeatError` if rows cannot be repeated for the model of a CLIP and a prompt has weights.

    Prompts are read for the scheme ``repeat``. ``is_stable_diffusion``: it has only CLIP text towers.
    """
    copies = [copies_of(read) for some in reads.values() for read in some]
    if not any(one.is_repeating for one in copies):
        return
    if is_patched(clip):
        raise RepeatError(
            "This CLIP comes from CLIP NegPip (ComfyUI-ppm), whose MODEL takes every other row for a value: repeated "
            "rows cannot be told from those. Take the CLIP and the MODEL from before that node, or another scheme."
        )
    classes = [cls.__name__ for cls in type(clip.cond_stage_model).__mro__]
    shared = next((WHOLE_WEIGHTS[name] for name in classes if name in WHOLE_WEIGHTS), None)
    if shared is None and not is_stable_diffusion:
        raise RepeatError(
            "The scheme repeat works with Stable Diffusion 1, 2, 3 and XL and with Stable Cascade, not with this CLIP "
            f"({classes[0]}): of its CLIP encoders ComfyUI's models read the pooled vector at most, which repeat "
            "leaves as it is. Take masked_blend with pooled weighted, or ComfyUI's own node."
        )
    if shared is not None and (unit := max(one.unit for one in copies)) > 1:
        raise RepeatError(
            f"In {shared} text and image share one softmax, where a word of weight 1 has to stand once, and here it "
            f"would stand {unit} times: the scheme repeat can only give whole weights there, such as (word:2) and "
            "(word:0). Set finest_step to 1, which rounds the weights, or take another scheme."
        )
