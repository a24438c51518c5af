"""Settings of generation data as values for ComfyUI's nodes, with a row for each setting that says where it went.

Source: behaviour of stable-diffusion-webui-forge dfdcbab6 (2025-06), which writes and reads them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, NamedTuple

from ....weighting.infotext import Infotext
from ....weighting.schemes import SCHEMES
from ....weighting.script_settings import ACTED_BY, INFOTEXT, OWN, SETTINGS, PromptSettings, infotext_key, read_setting
from ....weighting.syntax import SYNTAXES
from ....weighting.text.prompt import MOST_CHARACTERS, shortened
from ....weighting.timed.schedule import split_and
from ..titles import READ_GENERATION_DATA
from .noise import A1111Noise, batch_note
from .samplers import AUTOMATIC, KINDS
from .schedules import SCHEDULES

RNG = {"NV": "NV", "GPU": "NV", "CPU": "CPU"}
"""Our source of random numbers by the WebUI's."""
MAX_PIXELS = 16384
"""Largest width and height that is taken."""
MAX_CFG = 1_000_000
"""Largest scale of the guidance, with the weights of parts between ANDs."""
MAX_ROWS = 20
"""Maximum number of settings that are not used of which each has a line; the rest are only counted."""
MAX_VALUE, MAX_LINE = 80, 200
"""Maximum lengths of a value among others and in a line of its own."""

OF_FOREIGN = {"Sampler": "Euler", "Schedule type": AUTOMATIC, "Steps": "20", "CFG scale": "7", "Seed": "0"}
"""Values that are taken where another program than the WebUI names none, or one that is not ours."""
WITHOUT_EFFECT = frozenset(
    {
        *("Version", "User", "Lora hashes", "TI hashes", "Hashes", "VAE hash", "Model hash", "Civitai metadata"),
        *("Created Date", "Template", "Negative Template"),
        *map(infotext_key, ("word_maps", "attention", "attention_strength")),
        ACTED_BY,
    }
)
"""Settings that change nothing in the picture."""
BY_HAND = {
    "VAE": "load it with Load VAE",
    "Distilled CFG Scale": "set guidance of FluxGuidance to it",
    "Denoising strength": "give A1111 Sampler's denoise, and the picture it was made from as latent",
    "Schedule rho": "A1111 Sampler has the schedule's own",
}
"""Settings that other nodes take, and how."""
NOT_USED = "not used: the picture may differ for it"
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
SAMPLING = "SAMPLER, SIGMAS"
NOISE = "NOISE"
READING = "settings, negative_settings"
"""Outputs with how prompts are read and weighted."""
NOTHING = "nothing, as it does not change the picture"


def _refused(message: str) -> ValueError:
    """Error about generation data, of the node that reads it."""
    return ValueError(f"{READ_GENERATION_DATA}: {message}")


class SettingRow(NamedTuple):
    """Whereabouts of a setting."""

    name: str
    value: str
    output: str = ""
    """Outputs of Read Generation Data that its value went into; what it goes into otherwise."""
    advice: str = ""
    """What the user has to do about it, or that it is not used; empty if nothing is left to do."""

    @property
    def line(self) -> str:
        """It with its advice."""
        return f"{shortened(self.name, 40)}: {shortened(self.value, MAX_LINE)}: {self.advice}"


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
    settings: PromptSettings
    """Reading and weighting of the prompt."""
    negative_settings: PromptSettings
    """The same of the negative prompt."""
    rows: tuple[SettingRow, ...]
    """A row for each setting."""
    notes: tuple[str, ...]
    """Lines on what was left out or guessed before, and on each value that is read otherwise than it stands."""
    is_foreign: bool = False
    """Whether another program than the WebUI drew it, of which the first note says so."""

    def report(self, file_rows: Sequence[SettingRow] = ()) -> list[str]:
        """Lines on where each setting went, those first that went nowhere.

        ``file_rows`` are rows of files that the picture names, which take the place of the settings that name them.
        """
        replaced_names = {row.name for row in file_rows}
        rows = [*file_rows, *(row for row in self.rows if row.name not in replaced_names)]
        undone = [row for row in rows if row.advice]
        lines = [row.line for row in undone[:MAX_ROWS]]
        if len(undone) > MAX_ROWS:
            lines.append(f"and {len(undone) - MAX_ROWS:,} more settings that are not used")
        by_output: dict[str, list[str]] = {}
        for row in rows:
            if not row.advice:
                by_output.setdefault(row.output, []).append(f"{row.name} {shortened(row.value, MAX_VALUE)}".rstrip())
        used = [f"→ {output}: {', '.join(said)}" for output, said in by_output.items()]
        if self.is_foreign:
            return [*self.notes[:1], *lines, *self.notes[1:], *used]
        return [*lines, *self.notes, *used, ROUNDING]


class _SettingsTable:
    """Settings, each of which is taken once, and the rows of those that were."""

    def __init__(self, infotext: Infotext) -> None:
        self.infotext = infotext
        self.left = dict(infotext.settings)
        self.rows: list[SettingRow] = []
        self.notes = [*infotext.problems]

    def take(self, name: str, output: str, default: str | None = None) -> str:
        """Take a setting; an error if it has no default and is missing."""
        if name not in self.left:
            if default is not None:
                return default
            if self.infotext.is_foreign and name in OF_FOREIGN:
                self.notes.append(f"{name} is not given: {OF_FOREIGN[name]} is taken")
                return OF_FOREIGN[name]
            names = shortened(", ".join(list(self.left)[:MAX_ROWS]), 400)
            raise _refused(f"“{name}” is missing among the settings: {names}")
        text = self.left.pop(name).strip()
        self.rows.append(SettingRow(name, text, output))
        return text

    def number(
        self, name: str, output: str, kind: Callable[[str], Any], ends: tuple[int, int], default: Any = None
    ) -> Any:
        """Take a number; an error if it is none, or too large."""
        text = self.take(name, output, None if default is None else str(default))
        try:
            value = kind(re.sub(r"\.0\Z", "", text) if kind is int else text)
        except ValueError:
            value = math.nan
        if "_" in text:  # which Python reads
            value = math.nan
        if not ends[0] <= value <= ends[1]:
            kind_text = "a whole number" if kind is int else "a number"
            raise _refused(f"{name} must be {kind_text} from {ends[0]} to {ends[1]}; got “{shortened(text, 40)}”")
        return value

    def size(self, name: str, output: str, default: tuple[int, int]) -> tuple[int, int]:
        """Take a width and height."""
        text = self.take(name, output, "x".join(map(str, default)))
        match = re.fullmatch(r"(\d{1,5})x(\d{1,5})", text, re.ASCII)
        width, height = (int(match[1]), int(match[2])) if match else (0, 0)
        if (width, height) != default and not (0 < width <= MAX_PIXELS and 0 < height <= MAX_PIXELS):
            raise _refused(f"{name} must be like 512x768, up to {MAX_PIXELS} pixels; got “{shortened(text, 40)}”")
        return width, height

    def sampler(self) -> tuple[str, str]:
        """Take the sampler and its schedule; before version 1.9 one name said both."""
        name, schedule = self.take("Sampler", SAMPLING), self.take("Schedule type", SAMPLING, "")
        if name not in KINDS:
            suffix = next((s for s in SCHEDULES if name.endswith(f" {s}")), "")
            if suffix and name.removesuffix(f" {suffix}") in KINDS:
                name, schedule = name.removesuffix(f" {suffix}"), schedule or suffix
        schedule = schedule or AUTOMATIC
        for what, value, choices in (("Sampler", name, KINDS), ("Schedule type", schedule, (AUTOMATIC, *SCHEDULES))):
            if value not in choices and self.infotext.is_foreign:
                name, schedule = (OF_FOREIGN[what], schedule) if what == "Sampler" else (name, OF_FOREIGN[what])
                self.rows = [row for row in self.rows if row.name != what]
                advice = f"not used, as none of ours is equal to it: {OF_FOREIGN[what]} is taken"
                self.rows.append(SettingRow(what, value, advice=advice))
            elif value not in choices:
                which = f"which are equal to the WebUI's: {', '.join(choices)}"
                raise _refused(f"the {what.lower()} “{shortened(value, 80)}” is not among ours, {which}")
        return name, schedule

    def readings(self) -> tuple[PromptSettings, PromptSettings]:
        """Take our script's settings and the WebUI's emphasis, for prompt and negative prompt."""
        values: dict[str, Any] = {}
        script_keys = [key for key in SETTINGS if key in self.left and key not in WITHOUT_EFFECT]
        for key in script_keys if INFOTEXT in self.left else ():
            text = self.left.pop(key)
            try:
                values[SETTINGS[key]] = read_setting(SETTINGS[key], text)
                self.rows.append(SettingRow(key, text, READING))
            except ValueError as error:
                self.rows.append(SettingRow(key, text, advice=f"not used: {shortened(str(error), 400)}"))
        for name, choices in (("syntax", SYNTAXES), ("scheme", SCHEMES)):
            if value := getattr(self.infotext, name):
                advice = "" if value in choices else f"not used: it is none of: {', '.join(choices)}"
                self.rows.append(SettingRow(name, value, READING, advice))
                values |= {} if advice else {name: value}
        mode = self.left.pop("Emphasis", "Original")
        is_known = mode in OWN or mode == "None"
        if mode != "Original":
            advice = "" if is_known else f"not used: it is none of: {', '.join((*OWN, 'None'))}"
            self.rows.append(SettingRow("Emphasis", mode, READING, advice))
        return PromptSettings.of(values, mode, is_timed=not self.infotext.syntax)

    def take_rest(self) -> None:
        """Take all that is left, which goes nowhere; settings of hires. fix together."""
        hires = {name: value for name, value in self.left.items() if name.startswith("Hires ")}
        if hires:
            hires["Denoising strength"] = self.left.pop("Denoising strength", "?")
            said = [f"{shortened(name, 40)} {shortened(value, 40)}" for name, value in islice(hires.items(), MAX_ROWS)]
            self.rows.append(SettingRow("Hires. fix", ", ".join(said), advice=HIRES))
        for name, value in self.left.items():
            if name in WITHOUT_EFFECT:
                self.rows.append(SettingRow(name, "", NOTHING))
            elif name not in hires:
                self.rows.append(SettingRow(name, value, advice=BY_HAND.get(name, NOT_USED)))
        self.left.clear()


def last_layer(clip_skip: int, towers: Collection[str]) -> int:
    """Layer for *CLIP Set Last Layer*, by the WebUI's clip skip and a checkpoint's text towers.

    Forge takes SDXL's last layer but one for its last, and has SD 2's without the last.

    >>> last_layer(1, {"clip_l"}), last_layer(1, {"clip_l", "clip_g"}), last_layer(2, {"clip_h"})
    (-1, -2, -3)
    """
    if "clip_h" in towers:
        return -clip_skip - 1
    return -max(clip_skip, 2 if "clip_g" in towers else 1)


def read_parameters(infotext: Infotext, source: str, towers: Collection[str] = ()) -> Parameters:
    """Read the settings of generation data.

    Args:
        infotext: Generation data.
        source: Source of random numbers where the text names none: one of `SOURCES`.
        towers: Text towers of the checkpoint, if they are known: `TOWERS`.

    Raises:
        ValueError: If a setting is missing or cannot be read, its sampler or schedule is not ours, or a prompt is too
            long; it is quoted.
    """
    if infotext.is_foreign and not infotext.settings and not infotext.prompt:
        raise _refused(" ".join(infotext.problems[:3]))
    if not infotext.settings and not infotext.is_foreign:
        raise _refused(
            f"there are no settings in “{shortened(infotext.prompt, 80)}”: its last line must be like “Steps: 20, "
            f"Sampler: Euler a, CFG scale: 7, Seed: 1, Size: 512x512”"
            f"{''.join(f'. {problem}' for problem in infotext.problems[:3])}"
        )
    for name, text in (("prompt", infotext.prompt), ("negative prompt", infotext.negative)):
        if len(text) > MOST_CHARACTERS:
            what = f"{len(text):,} characters; at most {MOST_CHARACTERS:,} are read"
            raise _refused(f"the {name} “{shortened(text, 40)}” has {what}")
    table = _SettingsTable(infotext)
    notes = table.notes
    is_random = "RNG" not in table.left
    has_ensd, has_size = "ENSD" in table.left, "Size" in table.left
    sampler, levels = table.sampler()
    steps = table.number("Steps", f"{SAMPLING}, steps", int, (1, 1000))
    if sampler == "LCM" and not has_ensd:
        notes.append(f"ENSD: {NO_ENSD}")
    cfg = table.number("CFG scale", "cfg", float, (-1000, 1000))
    parts = 1.0 if infotext.syntax else sum(part.weight for part in split_and(infotext.prompt))
    if not abs(cfg * parts) <= MAX_CFG:
        weighs = f"the parts between ANDs weigh {parts:g} together"
        raise _refused(f"{weighs}, and cfg, {cfg:g} times that, may be {MAX_CFG:,} at most")
    if parts != 1:
        notes.append(f"AND: cfg is {cfg:g} times {parts:g}, the sum of the parts' weights")
    rng = table.take("RNG", NOISE, source)
    if rng not in RNG:
        raise _refused(f"RNG must be one of: {', '.join(RNG)}; got “{shortened(rng, 40)}”")
    device = ": that of the WebUI's own device"
    if is_random:
        notes.append(f"RNG is not given{'' if infotext.is_foreign else device}; {source} is taken")
    width, height = table.size("Size", "width, height", (512, 512))
    if not has_size:
        notes.append("Size is not given: 512 x 512")
    resize = table.size("Seed resize from", NOISE, (0, 0))
    noise = A1111Noise(
        seed=table.number("Seed", f"{NOISE}, seed", int, (0, 2**64 - 1)),
        source=RNG[rng],
        ensd=table.number("ENSD", NOISE, int, (-(2**63), 2**63), 0),
        subseed=table.number("Variation seed", NOISE, int, (0, 2**64 - 1), 0),
        subseed_strength=table.number("Variation seed strength", NOISE, float, (0, 1), 0.0),
        resize_width=resize[0],
        resize_height=resize[1],
    )
    batch, position = (table.take(name, NOTHING, "?") for name in ("Batch size", "Batch pos"))
    if (batch, position) != ("?", "?"):
        notes.append(batch_note(noise, batch, position, sampler))
    clip_skip = table.number("Clip skip", "clip_skip", int, (1, 24), 1)
    settings, negative_settings = table.readings()
    model_hash = table.left.get("Model hash", "")
    model = table.take("Model", "checkpoint, whose file Load Checkpoint is to have", "")
    table.take_rest()
    return Parameters(
        prompt=infotext.prompt,
        negative=infotext.negative,
        steps=steps,
        cfg=cfg * parts,
        sampler=sampler,
        schedule=levels,
        noise=noise,
        width=width,
        height=height,
        clip_skip=last_layer(clip_skip, towers),
        model=model,
        model_hash=model_hash,
        settings=settings,
        negative_settings=negative_settings,
        rows=tuple(table.rows),
        notes=tuple(notes),
        is_foreign=infotext.is_foreign,
    )
