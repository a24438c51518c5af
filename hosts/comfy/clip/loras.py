"""LoRAs named in a prompt, loaded by ComfyUI's own LoRA loader, or as its hooks, whose strengths change with the steps.

Source: behaviour of ComfyUI 0.3.64 and 0.29.0; docs/reference/syntaxes.md, "LoRA tags";
docs/same-picture.md, "LoRAs in time".
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from ....weighting.text.prompt import Issue, shortened
from ....weighting.text.tags import LoraTag
from ....weighting.timed.loras import LoraTimes, once
from ..contract import host
from ..models.lora_files import files_named, lora_files
from ..models.models import NativeClip
from ..types import Clip, ModelPatcher
from .clip import EitherClip, is_stable_diffusion
from .timed_prompts import Timing


class FoundLora(NamedTuple):
    """A LoRA of a prompt, and its file."""

    times: LoraTimes
    file: str
    """The file as the host lists it."""


class FoundLoras(NamedTuple):
    """LoRAs of a prompt, and issues about them."""

    loras: list[FoundLora]
    """Those that are found, without what another one does already."""
    issues: list[Issue]
    """Issues about LoRAs that were not found, whose name several files have, or that are named again."""


def find_loras(loras: Sequence[LoraTimes]) -> FoundLoras:
    """Find the files of LoRAs. As in Forge, one that is named again at the same strength acts once."""
    issues: list[Issue] = []
    files = lora_files() if loras else ()
    found = [FoundLora(lora, file) for lora in loras if (file := _file_of(lora.tag, files, issues)) is not None]
    times, repeated = once([one.times for one in found], [one.file for one in found])
    kept = [
        one._replace(times=new)
        for one, new in zip(found, times, strict=True)
        if new == one.times or any(new.clip) or any(new.model)
    ]
    return FoundLoras(kept, [*issues, *repeated])


class LoadedLoras(NamedTuple):
    """A model and CLIP with LoRAs on them."""

    model: ModelPatcher
    clip: Clip
    lines: list[str]
    """Loaded LoRAs, one line each."""


def load_loras(model: ModelPatcher, clip: Clip, loras: Sequence[FoundLora]) -> LoadedLoras:
    """Apply LoRAs one by one to ComfyUI's MODEL and CLIP, at their strengths of the first call.

    Returns:
        Clones with the LoRAs, or the original objects if there is none.
    """
    lines: list[str] = []
    for lora in loras:
        model_strength, clip_strength = lora.times.model[0], lora.times.clip[0]
        model, clip = host("nodes").LoraLoader().load_lora(model, clip, lora.file, model_strength, clip_strength)
        lines.append(f"{lora.file}: model {model_strength:g}, CLIP {clip_strength:g}")
    return LoadedLoras(model, clip, lines)


def lora_issues(loras: Sequence[LoraTimes]) -> list[Issue]:
    """Issues about LoRAs that are known before they are loaded, by the host's list of files."""
    return find_loras(loras).issues


class HookedClip(NamedTuple):
    """A CLIP whose conditioning carries LoRAs as hooks."""

    clip: EitherClip
    lines: list[str]
    """LoRAs, one line each."""
    issues: list[Issue]
    """Issues about LoRAs that do not fit."""


def hook_loras(
    clip: EitherClip, loras: Sequence[FoundLora], timing: Timing, model: ModelPatcher | None = None
) -> HookedClip:
    """Give a CLIP LoRAs that change with the steps, as ComfyUI's hooks with keyframes.

    The text is encoded anew for each change of a LoRA that reaches the text encoder, and all of its conditioning
    carries the LoRAs to the diffusion model.

    Args:
        clip: ComfyUI's CLIP.
        loras: The LoRAs.
        timing: Times of the steps.
        model: ComfyUI's MODEL, if it is known, to find LoRAs that fit neither.

    Returns:
        A clone of the CLIP, or the original object if there is no LoRA.

    Raises:
        ValueError: If it is our native encoder, or of a family whose text the host cannot encode under hooks.
    """
    lines: list[str] = []
    issues: list[Issue] = []
    if not loras:
        return HookedClip(clip, lines, issues)
    if isinstance(clip, NativeClip):
        names = shortened(", ".join(f"“{lora.times.tag.name}”" for lora in loras), 200)
        raise ValueError(f"Our native encoder takes no LoRA ({names}): connect its loader's second output, CLIP.")
    lora_module = host("comfy.lora")
    keys = lora_module.model_lora_keys_clip(clip.cond_stage_model, {})
    model_keys = {} if model is None else lora_module.model_lora_keys_unet(model.model, {})
    weights = {file: _weights_in(file) for file in dict.fromkeys(lora.file for lora in loras)}
    of_clip, of_model = [clip.patcher.forced_hooks], [clip.apply_hooks_to_conds]
    for times, file in loras:
        if lora_module.load_lora(weights[file], keys, log_missing=False):
            of_clip.append(_hook(weights[file], 0.0, 1.0, times.clip, timing))
        elif model is not None and not lora_module.load_lora(weights[file], model_keys, log_missing=False):
            message = f"The LoRA “{shortened(times.tag.name)}” has nothing that fits this model: it changes nothing."
            issues.append(Issue("unfitting-lora", message, times.tag.span))
            continue
        of_model.append(_hook(weights[file], 1.0, 0.0, times.model, timing))
        lines.append(f"{file}: steps {times.text}")
    if not lines:
        return HookedClip(clip, lines, issues)
    combined = host("comfy.hooks").HookGroup.combine_all_hooks
    if of_clip[1:]:
        _check_encodes_under_hooks(clip)
        set_hooks = host("comfy_extras.nodes_hooks").SetClipHooks().apply_hooks
        (work,) = set_hooks(clip, schedule_clip=True, apply_to_conds=False, hooks=combined(of_clip))
    else:
        work = clip.clone()
    work.apply_hooks_to_conds = combined(of_model)
    return HookedClip(work, lines, issues)


def _weights_in(file: str) -> Any:
    """Weights of a LoRA, as the host's own loader reads them."""
    path = host("folder_paths").get_full_path_or_raise("loras", file)
    return host("comfy.lora_convert").convert_lora(host("comfy.utils").load_torch_file(path, safe_load=True))


def _hook(weights: Any, on_model: float, on_clip: float, strengths: Sequence[float], timing: Timing) -> Any:
    """Hook with a keyframe at each change of strength."""
    hooks = host("comfy.hooks")
    keyframes = hooks.HookKeyframeGroup()
    for call, strength in enumerate(strengths):
        if call == 0 or strength != strengths[call - 1]:
            start = timing.start_of(call)
            keyframes.add(hooks.HookKeyframe(strength=strength, start_percent=start, guarantee_steps=0))
    group = hooks.create_hook_lora(weights, on_model, on_clip)
    group.set_keyframes_on_hooks(keyframes)
    return group


def _check_encodes_under_hooks(clip: Clip) -> None:
    """Raise for a CLIP of which the host drops results besides the rows and the pooled vector under hooks."""
    if is_stable_diffusion(clip):
        return
    known = {"cond", "pooled_output", "hooks"}
    dropped = clip.encode_from_tokens(clip.tokenize(""), return_pooled=True, return_dict=True).keys() - known
    if dropped:
        name = type(clip.cond_stage_model).__name__
        raise ValueError(
            f"ComfyUI cannot change LoRAs of this text encoder ({name}) with the steps: it would lose its "
            f"{', '.join(sorted(dropped))}. Set loras to “as A1111”, or use a LoRA for the diffusion model alone."
        )


def _file_of(lora: LoraTag, files: Sequence[str], issues: list[Issue]) -> str | None:
    """File of a LoRA in the host's loras folder; adds an issue if there is none or several."""
    name, found = shortened(lora.name), files_named(lora.name, files)
    if not found:
        message = f"There is no LoRA “{name}” in ComfyUI's loras folder: it is left out."
        issues.append(Issue("unknown-lora", message, lora.span))
    elif len(found) > 1:
        message = f"Several LoRAs are called “{name}”: {shortened(', '.join(found), 200)}. The first is taken."
        issues.append(Issue("ambiguous-lora", message, lora.span))
    return next(iter(found), None)
