"""Model families: their text towers, and the layers they were trained on.

Holds that table, and chooses the layer for a clip skip counted as in the WebUI. Other modules process the towers'
outputs.

Source: ``backend/diffusion_engine`` of Forge 2.0.1, for the smallest clip skip and the final layer norm; for Stable
Diffusion 2.x ``comfy/text_encoders/sd2_clip.py`` of ComfyUI 0.29, as Forge counts from diffusers' shortened encoder.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from .config import OPENCLIP_H, TextConfig
from .prefix import PrefixTextEncoder
from .remember import default_bytes
from .text_model import TextEncoder, TextModel


@dataclass(frozen=True)
class Family:
    """Use of text towers by a model family."""

    name: str
    """Name known to users."""
    towers: tuple[str, ...]
    """Its towers, by ComfyUI's names, in the order in which their rows are joined."""
    min_clip_skip: int
    """Layer it was trained on: 1 = last, 2 = penultimate. A smaller clip skip counts as this one."""
    final_norm: bool
    """Whether that layer passes the final layer norm."""
    projected: bool
    """Whether pooled vectors are projected, if the tower has a text projection. SDXL's are those of ``clip_g``."""


FAMILIES = (
    Family("SD 1.x", ("clip_l",), min_clip_skip=1, final_norm=True, projected=False),
    Family("SD 2.x", ("clip_h",), min_clip_skip=2, final_norm=True, projected=True),
    Family("SDXL", ("clip_l", "clip_g"), min_clip_skip=2, final_norm=False, projected=True),
    Family("SDXL refiner", ("clip_g",), min_clip_skip=2, final_norm=False, projected=True),
)
"""Families that condition on CLIP text towers only."""


def encoders_for(
    models: Mapping[str, TextModel], clip_skip: int = 1, *, max_bytes: int | None = None, is_packed: bool = True
) -> tuple[Family, dict[str, TextEncoder]]:
    """The family with these towers, and each tower with the layer that the family conditions on.

    Args:
        models: Towers by ComfyUI's names, from `load_text_models`.
        clip_skip: 1 = last layer, 2 = penultimate, ... as in the WebUI; at least the family's own is used.
        max_bytes: Total cache size of the encoders, shared in proportion to their states; by default `default_bytes`.
        is_packed: As in `PrefixTextEncoder`.

    Returns:
        The family, and its encoders in the order in which their rows are joined. Their results equal those of full
        passes up to rounding.

    Raises:
        ValueError: If no family has just these towers, or ``clip_skip`` is out of range.
    """
    family = next((family for family in FAMILIES if set(family.towers) == set(models)), None)
    if family is None:
        allowed = ", ".join(f"{' + '.join(family.towers)} ({family.name})" for family in FAMILIES)
        raise ValueError(f"no model family has the text encoders {' + '.join(models) or 'none'}; allowed are {allowed}")
    if clip_skip < 1:
        raise ValueError(f"clip_skip {clip_skip} is out of range: 1 is the last layer")
    clip_skip = max(clip_skip, family.min_clip_skip)
    max_bytes = default_bytes() if max_bytes is None else max_bytes
    sizes = {name: models[name].config.hidden_dim * models[name].config.num_layers for name in family.towers}
    encoders: dict[str, TextEncoder] = {
        name: PrefixTextEncoder(
            models[name],
            clip_skip=clip_skip - _num_cut_layers(name, models[name].config),
            final_norm=family.final_norm,
            projected=family.projected and models[name].text_projection is not None,
            max_bytes=max_bytes * sizes[name] // sum(sizes.values()),
            is_packed=is_packed,
        )
        for name in family.towers
    }
    return family, encoders


def _num_cut_layers(name: str, config: TextConfig) -> int:
    """1 for ``clip_h`` as diffusers keeps it for Stable Diffusion 2.x: without the last layer, which is never used."""
    return int(name == "clip_h" and config.num_layers == OPENCLIP_H.num_layers - 1)
