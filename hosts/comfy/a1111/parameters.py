"""Settings of generation data as values for ComfyUI's nodes, and what is to be said about those that are not used.

Source: behaviour of stable-diffusion-webui-forge dfdcbab6 (2025-06), which writes and reads them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from ....weighting.infotext import Infotext
from ....weighting.prompt import MOST_CHARACTERS, shortened
from ....weighting.timed.schedule import split_and
from .noise import A1111Noise, batch_note
from .samplers import AUTOMATIC, KINDS
from .schedules import SCHEDULES

RNG = {"NV": "NV", "GPU": "NV", "CPU": "CPU"}
"""Our source of random numbers by the WebUI's."""
MOST_PIXELS = 16384
"""Largest width and height that is taken."""

IGNORED = frozenset(
    {"Version", "Lora hashes", "TI", "TI hashes", "Hashes", "VAE hash", "Model hash", "Civitai metadata"}
)
"""Settings that change nothing in the picture."""
BY_HAND = {
    "Emphasis": "set emphasis of A1111/Forge Prompt to it",
    "VAE": "load it with Load VAE",
    "Distilled CFG Scale": "set guidance of FluxGuidance to it",
    "Denoising strength": "give A1111 Sampler's denoise, and the picture it was made from as latent",
    "Civitai resources": "load these models",
    "Schedule rho": "A1111 Sampler has the schedule's own",
}
"""Settings that other nodes take, and how."""
HIRES = (
    "a second pass, which this does not make: scale the latent or picture, and sample it again with A1111 Sampler, "
    "exact_steps on, and noise of the same seed"
)
NO_ENSD = (
    "Forge draws LCM's noise by it and does not write it: if the setting Eta noise seed delta was not 0, give it to "
    "A1111 Noise and A1111 Sampler"
)
ROUNDING = (
    "rounding: last bits of two programs differ, so some values of the picture may be one level of 255 apart, more of "
    "them with AND, an embedding or a LoRA"
)
"""Line for every picture."""


@dataclass(frozen=True)
class Parameters:
    """Generation data, read for ComfyUI."""

    prompt: str
    negative: str
    steps: int
    cfg: float
    """Scale of the guidance, times the sum of the weights of a prompt's parts between ANDs."""
    sampler: str
    """One of `KINDS`."""
    schedule: str
    """One of `SCHEDULES`, or `AUTOMATIC`."""
    noise: A1111Noise
    width: int
    """In pixels, as the height."""
    height: int
    clip_skip: int
    """For *CLIP Set Last Layer*: -1 is the last layer."""
    model: str
    """Name of the checkpoint, or nothing."""
    model_hash: str
    report: tuple[str, ...]
    """A line for each setting that is not used, or is read otherwise than it stands."""


def read_parameters(infotext: Infotext, source: str) -> Parameters:
    """Read the settings of generation data.

    Args:
        infotext: Generation data.
        source: Source of random numbers where the text names none: one of `SOURCES`.

    Raises:
        ValueError: If a setting is missing or cannot be read, its sampler or schedule is not ours, or a prompt is too
            long; it is quoted.
    """
    left = dict(infotext.settings)
    if not left:
        raise ValueError(
            f"Read A1111 Parameters: there are no settings in “{shortened(infotext.prompt, 80)}”: its last line "
            f"must be like “Steps: 20, Sampler: Euler a, CFG scale: 7, Seed: 1, Size: 512x512”"
            f"{''.join(f'. {problem}' for problem in infotext.problems[:3])}"
        )
    for name, text in (("prompt", infotext.prompt), ("negative prompt", infotext.negative)):
        if len(text) > MOST_CHARACTERS:
            raise ValueError(
                f"Read A1111 Parameters: the {name} “{shortened(text, 40)}” has {len(text):,} characters; at most "
                f"{MOST_CHARACTERS:,} are read"
            )
    notes = [*infotext.problems]
    sampler, levels = _sampler(left)
    steps = _number(left, "Steps", int, (1, 1000))
    if sampler == "LCM" and "ENSD" not in left:
        notes.append(f"ENSD: {NO_ENSD}")
    cfg = _number(left, "CFG scale", float, (-1000, 1000))
    parts = math.fsum(part.weight for part in split_and(infotext.prompt))
    if parts != 1:
        notes.append(f"AND: cfg is {cfg:g} times {parts:g}, the sum of the parts' weights")
    rng = left.pop("RNG", None)
    if rng is not None and rng not in RNG:
        raise ValueError(f"Read A1111 Parameters: RNG must be one of: {', '.join(RNG)}; got “{rng}”")
    if rng is None:
        notes.append(f"RNG is not given: that of the WebUI's own device; {source} is taken")
    width, height = _size(left, "Size", notes)
    resize = _size(left, "Seed resize from") if "Seed resize from" in left else (0, 0)
    noise = A1111Noise(
        seed=_number(left, "Seed", int, (0, 2**64 - 1)),
        source=source if rng is None else RNG[rng],
        ensd=_number(left, "ENSD", int, (-(2**63), 2**63), 0),
        subseed=_number(left, "Variation seed", int, (0, 2**64 - 1), 0),
        subseed_strength=_number(left, "Variation seed strength", float, (0, 1), 0.0),
        resize_width=resize[0],
        resize_height=resize[1],
    )
    if {"Batch size", "Batch pos"} & left.keys():
        notes.append(batch_note(noise, left.pop("Batch size", "?"), left.pop("Batch pos", "?"), sampler))
    found = Parameters(
        prompt=infotext.prompt,
        negative=infotext.negative,
        steps=steps,
        cfg=cfg * parts,
        sampler=sampler,
        schedule=levels,
        noise=noise,
        width=width,
        height=height,
        clip_skip=-_number(left, "Clip skip", int, (1, 24), 1),
        model=left.pop("Model", ""),
        model_hash=left.get("Model hash", ""),
        report=(),
    )
    return Parameters(**{**vars(found), "report": (*notes, *_unused(left))})


def _sampler(left: dict[str, str]) -> tuple[str, str]:
    """Take the sampler and its schedule; before version 1.9 one name said both."""
    name, schedule = _take(left, "Sampler"), left.pop("Schedule type", "")
    if name not in KINDS:
        found = next((s for s in SCHEDULES if name.endswith(f" {s}")), "")
        if found and name.removesuffix(f" {found}") in KINDS:
            name, schedule = name.removesuffix(f" {found}"), schedule or found
    schedule = schedule or AUTOMATIC
    for what, value, known in (("Sampler", name, KINDS), ("Schedule type", schedule, (AUTOMATIC, *SCHEDULES))):
        if value not in known:
            raise ValueError(
                f"Read A1111 Parameters: the {what.lower()} “{shortened(value, 80)}” is not among ours, which are "
                f"equal to the WebUI's: {', '.join(known)}"
            )
    return name, schedule


def _take(left: dict[str, str], name: str) -> str:
    if name not in left:
        raise ValueError(f"Read A1111 Parameters: “{name}” is missing among the settings: {', '.join(left)}")
    return left.pop(name).strip()


def _number(
    left: dict[str, str], name: str, kind: Callable[[str], Any], ends: tuple[int, int], default: Any = None
) -> Any:
    """Take a number; an error if it is none, or too large."""
    if name not in left and default is not None:
        return default
    text = _take(left, name)
    try:
        value = kind(text)
    except ValueError:
        value = math.nan
    if not ends[0] <= value <= ends[1]:
        wanted = "a whole number" if kind is int else "a number"
        raise ValueError(
            f"Read A1111 Parameters: {name} must be {wanted} from {ends[0]} to {ends[1]}; got “{shortened(text, 40)}”"
        )
    return value


def _size(left: dict[str, str], name: str, notes: list[str] | None = None) -> tuple[int, int]:
    """Take a width and height; 512 x 512 if they may be missing and are."""
    if name not in left and notes is not None:
        notes.append(f"{name} is not given: 512 x 512")
        return 512, 512
    text = _take(left, name)
    found = re.fullmatch(r"(\d{1,5})x(\d{1,5})", text, re.ASCII)
    width, height = (int(found[1]), int(found[2])) if found else (0, 0)
    if not (0 < width <= MOST_PIXELS and 0 < height <= MOST_PIXELS):
        raise ValueError(
            f"Read A1111 Parameters: {name} must be like 512x768, up to {MOST_PIXELS} pixels; "
            f"got “{shortened(text, 40)}”"
        )
    return width, height


def _unused(left: dict[str, str]) -> Iterator[str]:
    """A line for each setting that is left, if it can change the picture; those of hires. fix together."""
    hires = {name: value for name, value in left.items() if name.startswith("Hires ")}
    if hires:
        hires["Denoising strength"] = left.pop("Denoising strength", "?")
        yield f"{', '.join(f'{name}: {shortened(value, 40)}' for name, value in hires.items())}: {HIRES}"
    for name, value in left.items():
        if name in IGNORED or name in hires:
            continue
        advice = BY_HAND.get(name, "not used: the picture may differ for it")
        yield f"{name}: {shortened(value, 80)}: {advice}"
