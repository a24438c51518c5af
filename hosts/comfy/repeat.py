"""ComfyUI CLIPs that work with the scheme ``repeat``, depending on how their models use the rows.

A U-Net's cross-attention reads only rows of text, so all of them may be repeated. If text and image share a softmax,
rows of weight 1 must occur exactly once. For other families ComfyUI uses only CLIP's pooled vector.

Source: behaviour of ComfyUI 0.29.0; of ComfyUI-ppm 200f4609.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ...weighting.reading import ReadPrompt
from ...weighting.schemes.repeat import RepeatError, copies_of
from .negpip import is_patched
from .types import Clip

WHOLE_WEIGHTS = {"SD3ClipModel": "Stable Diffusion 3", "StableCascadeClipModel": "Stable Cascade"}
"""Models in which text and image share a softmax, by ComfyUI's class of their text encoders."""


def check_repeat(clip: Clip, reads: Mapping[str, Sequence[ReadPrompt]], *, is_stable_diffusion: bool) -> None:
    """Check that rows can be repeated for the model of a CLIP. Prompts without weights always pass.

    Args:
        clip: The CLIP.
        reads: Prompts by tower, read for the scheme ``repeat``.
        is_stable_diffusion: Whether it has only CLIP text towers.

    Raises:
        RepeatError: If they cannot; the message names the model.
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
