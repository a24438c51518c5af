"""One prompt encoded by two CLIPs with the same text encoders: the original, and one changed by a LoRA or training."""

from __future__ import annotations

from typing import NamedTuple

from ....weighting.options import EncodeOptions
from ....weighting.pipeline import EncodedPrompt
from ....weighting.reading.prompt_reader import ReadPrompt
from ....weighting.reading.view import id_of
from ....weighting.towers import read_for_towers
from ..models.models import NativeClip
from .clip import EitherClip, encode_text, has_towers, is_stable_diffusion, other_encoders, readers_of, towers_of
from .schemes import is_patched


class EncodedPair(NamedTuple):
    """A prompt encoded by two CLIPs."""

    prompts: dict[str, tuple[EncodedPrompt, EncodedPrompt]]
    """Prompt by the original and by the changed CLIP, with rows of equal shape, for each CLIP text tower by name."""
    left_to_host: tuple[str, ...]
    """Further text encoders of other families."""


def encode_by_both(clip: EitherClip, clip_changed: EitherClip, text: str, options: EncodeOptions) -> EncodedPair:
    """Encode a prompt by two CLIPs.

    Args:
        clip: The original.
        clip_changed: The changed one.
        text: The prompt.
        options: Options, with a scheme that keeps all rows.

    Returns:
        The encodings.

    Raises:
        ValueError: If one is None or has no CLIP text tower, or their towers differ; the message names them.
    """
    _check(clip, clip_changed)
    reads = [read_for_towers(text, options, readers_of(either)) for either in (clip, clip_changed)]
    for name in reads[0]:
        before, after = reads[0][name], reads[1][name]
        if before.layout.length == after.layout.length and _ids(before) != _ids(after):
            raise ValueError(f"{name} of clip and of clip_changed read this text as different tokens.")
    original, changed = (encode_text(either, text, options) for either in (clip, clip_changed))
    prompts: dict[str, tuple[EncodedPrompt, EncodedPrompt]] = {}
    for name, before in original.prompts.items():
        pair = _with_own_rows(clip, before), _with_own_rows(clip_changed, changed.prompts[name])
        sizes = [f"{prompt.read.layout.length} rows of {prompt.hidden.shape[-1]}" for prompt in pair]
        if sizes[0] != sizes[1]:
            raise ValueError(
                f"{name} of clip has {sizes[0]} for a chunk, and that of clip_changed {sizes[1]}: their rows cannot be "
                "compared. Connect two versions of one text encoder, such as a CLIP with a LoRA and without it."
            )
        prompts[name] = pair
    return EncodedPair(prompts, original.left_to_host)


def _check(clip: EitherClip, clip_changed: EitherClip) -> None:
    """Refuse CLIPs without a CLIP text tower, and two of different families."""
    for name, clip_input in (("clip", clip), ("clip_changed", clip_changed)):
        if clip_input is None:
            raise ValueError(
                f"The input {name} is None. If it comes from a checkpoint loader, that checkpoint holds no text "
                "encoder: load one with Load CLIP."
            )
        if not isinstance(clip_input, NativeClip) and not has_towers(clip_input):
            raise ValueError(
                f"The input {name} ({type(clip_input.cond_stage_model).__name__}) holds no CLIP text encoder: CLIP "
                "Difference compares CLIP-L, CLIP-G and CLIP-H."
            )
    if not _is_one_family(clip, clip_changed):
        raise ValueError(
            f"clip holds {_described(clip)}, and clip_changed {_described(clip_changed)}: CLIP Difference compares two "
            "CLIPs of one family, such as a CLIP with a LoRA and without it."
        )


def _is_one_family(clip: EitherClip, clip_changed: EitherClip) -> bool:
    if towers_of(clip) != towers_of(clip_changed):
        return False
    if isinstance(clip, NativeClip) or isinstance(clip_changed, NativeClip):
        return is_stable_diffusion(clip) and is_stable_diffusion(clip_changed)
    return _class_of(clip) == _class_of(clip_changed)


def _class_of(clip: EitherClip) -> str:
    """Class of a host's model; the host names a variant with fewer encoders with a trailing _."""
    return type(clip).__name__ if isinstance(clip, NativeClip) else type(clip.cond_stage_model).__name__.rstrip("_")


def _described(clip: EitherClip) -> str:
    if isinstance(clip, NativeClip):
        return f"{', '.join(towers_of(clip))} ({clip.family.name})"
    return f"{', '.join([*towers_of(clip), *other_encoders(clip)])} ({_class_of(clip)})"


def _with_own_rows(clip: EitherClip, encoded: EncodedPrompt) -> EncodedPrompt:
    """An encoding without the rows added by ComfyUI-ppm's CLIP NegPip, each after its original."""
    if isinstance(clip, NativeClip) or not is_patched(clip):
        return encoded
    return encoded._replace(hidden=encoded.hidden[:, ::2])


def _ids(prompt: ReadPrompt) -> list[int | str]:
    return [id_of(token.id) for chunk in prompt.chunks for token in chunk.tokens]
