"""LoRAs named in a prompt, loaded by ComfyUI's own LoRA loader, or as its hooks, whose strengths change with the steps.

Source: behaviour of ComfyUI 0.3.64 and 0.29.0; docs/reference/syntaxes.md, "LoRA tags";
docs/same-picture.md, "LoRAs in time".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from ....weighting.text.lora_blocks import BlockStrengths
from ....weighting.text.prompt import Issue, shortened
from ....weighting.text.tags import LoraTag
from ....weighting.timed.loras import LoraTimes, once
from ....weighting.timed.schedule import TimedPrompt
from ..attention.region_passes import check_memory_mode
from ..contract import host
from ..models.lora_files import OWN, files_named, lora_files, path_of
from ..models.lora_patches import block_hook, block_issues, with_patches
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


def find_loras(loras: Sequence[LoraTimes], *, by_part: bool = False) -> FoundLoras:
    """Find the files of LoRAs. As in Forge, one that is named again at the same strength acts once.

    ``by_part`` as in `with_times`.
    """
    issues: list[Issue] = []
    files = lora_files() if loras else ()
    matches = [FoundLora(lora, file) for lora in loras if (file := _file_of(lora.tag, files, issues)) is not None]
    parts = [match.times.part if by_part else 0 for match in matches]
    keys = [(match.file, part) for match, part in zip(matches, parts, strict=True)]
    times, repeated = once([match.times for match in matches], keys)
    effective = [
        match._replace(times=new)
        for match, new in zip(matches, times, strict=True)
        if new == match.times or any(new.clip) or any(new.model)
    ]
    return FoundLoras(effective, [*issues, *repeated])


class LoadedLoras(NamedTuple):
    """A model and CLIP with LoRAs on them."""

    model: ModelPatcher
    clip: Clip
    lines: list[str]
    """Loaded LoRAs, one line each."""
    issues: list[Issue]
    """Issues about blocks that the model has not."""


def load_loras(model: ModelPatcher, clip: Clip, loras: Sequence[FoundLora]) -> LoadedLoras:
    """Apply LoRAs one by one to ComfyUI's MODEL and CLIP, at their strengths of the first call.

    Returns:
        Clones with the LoRAs, or the original objects if there is none.
    """
    lines: list[str] = []
    issues: list[Issue] = []
    for lora in loras:
        model_strength, clip_strength, blocks = lora.times.model[0], lora.times.clip[0], lora.times.tag.blocks
        if blocks is None and lora.file not in OWN:
            model, clip = host("nodes").LoraLoader().load_lora(model, clip, lora.file, model_strength, clip_strength)
        else:
            model, clip = model.clone(), clip.clone()
            of_model, of_clip = _patches(_weights_in(lora.file), model, clip)
            if blocks is not None:
                issues += block_issues(of_model, blocks, lora.times.tag.name, lora.times.tag.span)
            with_patches(model, of_model, model_strength, blocks)
            with_patches(clip.patcher, of_clip, clip_strength, blocks)
        lines.append(f"{lora.file}: model {model_strength:g}, CLIP {clip_strength:g}{lora.times.tag.of_blocks}")
    return LoadedLoras(model, clip, lines, issues)


def _patches(weights: Any, model: ModelPatcher, clip: Clip) -> tuple[dict[Any, Any], dict[Any, Any]]:
    """A LoRA's patches of a MODEL and of a CLIP."""
    lora = host("comfy.lora")
    of_model = lora.load_lora(weights, lora.model_lora_keys_unet(model.model, {}), log_missing=False)
    return of_model, lora.load_lora(weights, lora.model_lora_keys_clip(clip.cond_stage_model, {}), log_missing=False)


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
    clip: EitherClip,
    loras: Sequence[FoundLora],
    timing: Timing,
    model: ModelPatcher | None = None,
    weights: Mapping[str, Any] | None = None,
) -> HookedClip:
    """Give a CLIP LoRAs that change with the steps, as ComfyUI's hooks with keyframes.

    The text is encoded anew for each change of a LoRA that reaches the text encoder, and all of its conditioning
    carries the LoRAs to the diffusion model.

    Args:
        clip: ComfyUI's CLIP.
        loras: The LoRAs.
        timing: Times of the steps.
        model: ComfyUI's MODEL, if it is known, to find LoRAs that fit neither.
        weights: Weights of the files, if they are read already.

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
    weights = _weights_of(loras) if weights is None else weights
    of_clip, of_model = [clip.patcher.forced_hooks], [clip.apply_hooks_to_conds]
    for times, file in loras:
        blocks = times.tag.blocks
        patches = lora_module.load_lora(weights[file], model_keys, log_missing=False) if model is not None else {}
        if lora_module.load_lora(weights[file], keys, log_missing=False):
            of_clip.append(_hook(weights[file], 0.0, 1.0, times.clip, timing, blocks))
        elif model is not None and not patches:
            message = f"The LoRA “{shortened(times.tag.name)}” has nothing that fits this model: it changes nothing."
            issues.append(Issue("unfitting-lora", message, times.tag.span))
            continue
        if blocks is not None:
            issues += block_issues(patches, blocks, times.tag.name, times.tag.span)
        untold = times.tag.name if model is None else ""
        of_model.append(_hook(weights[file], 1.0, 0.0, times.model, timing, blocks, untold))
        lines.append(f"{file}: steps {times.text}{times.tag.of_blocks}")
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


def hook_parts(
    clip: EitherClip,
    loras: Sequence[FoundLora],
    timing: Timing,
    model: ModelPatcher | None,
    prompt: TimedPrompt,
) -> tuple[list[EitherClip], HookedClip]:
    """Give each part of a prompt between ANDs and COUPLEs its own LoRAs.

    Returns:
        The CLIP of each part, and what is said of all of them.

    Raises:
        ValueError: As in `hook_loras`, or if parts are joined otherwise, or the host keeps weights off the device.
    """
    if prompt.joined is not None:
        raise ValueError("LoRAs by part need ANDs or COUPLEs; with AND_PERP and its like set loras to “in time”.")
    clips: list[EitherClip] = []
    lines: list[str] = []
    issues: list[Issue] = []
    check_memory_mode()
    weights = _weights_of(loras)
    for part, branch in enumerate(prompt.branches):
        hooked = hook_loras(clip, [lora for lora in loras if lora.times.part == part], timing, model, weights)
        clips.append(hooked.clip)
        is_region = branch.place is not None and branch.place.is_coupled
        more = ", with one more pass of the model" if is_region else ""
        lines += [f"part {part + 1}: {line}{more}" for line in hooked.lines]
        issues += hooked.issues
    return clips, HookedClip(clip, lines, issues)


def _weights_of(loras: Sequence[FoundLora]) -> dict[str, Any]:
    """Weights of LoRAs by file, each read once."""
    return {file: _weights_in(file) for file in dict.fromkeys(lora.file for lora in loras)}


def _weights_in(file: str) -> Any:
    """Weights of a LoRA, as the host's own loader reads them."""
    path = path_of(file) or host("folder_paths").get_full_path_or_raise("loras", file)
    return host("comfy.lora_convert").convert_lora(host("comfy.utils").load_torch_file(path, safe_load=True))


def _hook(
    weights: Any,
    on_model: float,
    on_clip: float,
    strengths: Sequence[float],
    timing: Timing,
    blocks: BlockStrengths | None,
    name: str = "",
) -> Any:
    """Hook with a keyframe at each change of strength; ``name`` as in `block_hook`."""
    hooks = host("comfy.hooks")
    keyframes = hooks.HookKeyframeGroup()
    for call, strength in enumerate(strengths):
        if call == 0 or strength != strengths[call - 1]:
            start = timing.start_of(call)
            keyframes.add(hooks.HookKeyframe(strength=strength, start_percent=start, guarantee_steps=0))
    if blocks is None:
        group = hooks.create_hook_lora(weights, on_model, on_clip)
    else:
        group = block_hook(weights, on_model, on_clip, blocks, name)
    group.set_keyframes_on_hooks(keyframes)
    return group


def _check_encodes_under_hooks(clip: Clip) -> None:
    """Raise for a CLIP of which the host drops results besides the rows and the pooled vector under hooks."""
    if is_stable_diffusion(clip):
        return
    kept_keys = {"cond", "pooled_output", "hooks"}
    dropped = clip.encode_from_tokens(clip.tokenize(""), return_pooled=True, return_dict=True).keys() - kept_keys
    if dropped:
        name = type(clip.cond_stage_model).__name__
        raise ValueError(
            f"ComfyUI cannot change LoRAs of this text encoder ({name}) with the steps: it would lose its "
            f"{', '.join(sorted(dropped))}. Set loras to “as A1111”, or use a LoRA for the diffusion model alone."
        )


def _file_of(lora: LoraTag, files: Sequence[str], issues: list[Issue]) -> str | None:
    """File of a LoRA in the host's loras folder; adds an issue if there is none or several."""
    name, matches = shortened(lora.name), files_named(lora.name, files)
    if not matches:
        message = f"There is no LoRA “{name}” in ComfyUI's loras folder: it is left out."
        issues.append(Issue("unknown-lora", message, lora.span))
    elif len(matches) > 1:
        message = f"Several LoRAs are called “{name}”: {shortened(', '.join(matches), 200)}. The first is taken."
        issues.append(Issue("ambiguous-lora", message, lora.span))
    return next(iter(matches), None)
