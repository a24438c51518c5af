"""Strengths of a LoRA for each block of a diffusion model: ``lbw=`` in its tag.

A preset or a list has a number for each block, the first for the text encoder. Lists of 12, 17 and 20 numbers leave out
blocks of a U-Net, which count 0. What is in no block counts 1.

Source: behaviour of sd-webui-lora-block-weight b403cb7 (2025-06); docs/reference/syntaxes.md, "LoRA tags".
"""

from __future__ import annotations

import math
import re
from typing import NamedTuple

from .prompt import shortened

UNET = ("BASE", *(f"IN{n:02}" for n in range(12)), "M00", *(f"OUT{n:02}" for n in range(12)))
"""Blocks of a U-Net, the text encoder first."""
FLUX = ("CLIP", "T5", "IN", *(f"D{n:02}" for n in range(19)), *(f"S{n:02}" for n in range(38)), "OUT")
"""Blocks of Flux, two text encoders first."""
KINDS = {
    12: "a LoRA for SDXL",
    17: "a LoRA for Stable Diffusion 1 and 2",
    20: "a LoCon or LyCORIS for SDXL",
    26: "every block of a U-Net",
    61: "a LoRA for Flux",
}
"""What lists of so many numbers are for."""
LISTED: dict[int, tuple[str, ...]] = {
    12: ("BASE", "IN04", "IN05", "IN07", "IN08", "M00", *(f"OUT{n:02}" for n in range(6))),
    17: (
        *("BASE", "IN01", "IN02", "IN04", "IN05", "IN07", "IN08", "M00"),
        *(f"OUT{n:02}" for n in range(3, 12)),
    ),
    20: ("BASE", *(f"IN{n:02}" for n in range(9)), "M00", *(f"OUT{n:02}" for n in range(9))),
    26: UNET,
    61: FLUX,
}
"""Blocks of the numbers of a list, by how many there are."""
_ROW_OF_17 = {
    "NONE": "00000000000000000",
    "ALL": "11111111111111111",
    "INS": "11110000000000000",
    "IND": "10001110000000000",
    "INALL": "11111110000000000",
    "MIDD": "10001111111100000",
    "OUTD": "10000000111100000",
    "OUTS": "10000000000011111",
    "OUTALL": "10000000111111111",
}
PRESETS: dict[str, tuple[float, ...]] = {
    **{name: tuple(map(float, row)) for name, row in _ROW_OF_17.items()},
    "ALL0.5": (0.5,) * 17,
    "FLUXALL": (1.0,) * 61,
}
"""The extension's own presets; their names are case-sensitive."""


class BlockStrengths(NamedTuple):
    """Strengths of a LoRA by block."""

    written: tuple[float, ...]
    """Numbers of the list or preset."""
    name: str = ""
    """The preset, or the list as typed."""

    @property
    def is_flux(self) -> bool:
        """Whether they are for Flux's blocks, rather than those of a U-Net."""
        return len(self.written) == len(FLUX)

    @property
    def by_block(self) -> dict[str, float]:
        """Strength of each block that the list names."""
        return dict(zip(LISTED[len(self.written)], self.written, strict=True))

    def of(self, key: str) -> float:
        """Strength for a weight of a model or text encoder, by the host's name of it; 1 if it is in no block.

        >>> strengths = BlockStrengths(PRESETS["OUTD"])
        >>> [strengths.of(f"diffusion_model.output_blocks.{block}.1.proj_in.weight") for block in (2, 3)]
        [0.0, 1.0]
        """
        block = self.block_of(key)
        return 1.0 if block is None else self.by_block.get(block, 0.0)

    def block_of(self, key: str) -> str | None:
        """Block of a weight, named or not; None if it is in none."""
        return flux_block(key) if self.is_flux else unet_block(key)


_IN_UNET = re.compile(r"diffusion_model\.(input|output)_blocks\.(\d+)\.|diffusion_model\.(middle_block)\.")
_IN_FLUX = re.compile(r"diffusion_model\.(?:(double|single)_blocks\.(\d+)\.|(\w+_in)\.|(final_layer)\.)")


def unet_block(key: str) -> str | None:
    """Block of a U-Net, or the text encoder, that a weight belongs to; None for others, such as those for the time."""
    if (match := _IN_UNET.match(key)) is None:
        return "BASE" if "encoder" in key else None
    side, number, middle = match.groups()
    name = "M00" if middle else f"{'IN' if side == 'input' else 'OUT'}{int(number):02}"
    return name if name in UNET else None


def flux_block(key: str) -> str | None:
    """Block of Flux, or its text encoder, that a weight belongs to; None for others."""
    if match := _IN_FLUX.match(key):
        side, number, _, last = match.groups()
        name = "OUT" if last else "IN" if side is None else f"{'D' if side == 'double' else 'S'}{int(number):02}"
        return name if name in FLUX else None
    return "T5" if "t5xxl" in key else "CLIP" if key.startswith("clip_") else None


def read_blocks(text: str) -> BlockStrengths | str:
    """Read a preset or a list.

    Returns:
        The strengths, or a message saying what is wrong.

    >>> read_blocks("INS").by_block["IN02"], read_blocks("1,0.5").partition(":")[0]
    (1.0, '“1,0.5” has 2 numbers')
    """
    text = text.strip()
    if text in PRESETS:
        return BlockStrengths(PRESETS[text], text)
    name = f"“{shortened(text, 40)}”"
    if "," not in text:
        like = next((preset for preset in PRESETS if preset == text.upper()), None)
        if like is not None:
            return f"{name} is no preset of blocks: did you mean {like}?"
        if text in UNET or text in FLUX:
            return f"{name} is the name of one block, and lbw= takes a preset or a number for each: {_LENGTHS}."
        return f"{name} is no preset of blocks. There are {', '.join(PRESETS)}, and lists: {_LENGTHS}."
    count = text.count(",") + 1
    if count not in LISTED:
        return f"{name} has {count} numbers: lists of blocks have {_LENGTHS}."
    numbers: list[float] = []
    for part in text.split(","):
        try:
            number = float(part)
        except ValueError:
            number = math.nan
        if not math.isfinite(number):
            return f"“{shortened(part.strip(), 40)}” among the blocks is no number, such as 0.5."
        numbers.append(number)
    return BlockStrengths(tuple(numbers), text)


_LENGTHS = ", ".join(f"{count} ({kind})" for count, kind in KINDS.items())
