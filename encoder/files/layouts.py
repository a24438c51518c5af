"""Locations of CLIP's towers in files, and the keys of their parameters.

Holds the tables of prefixes and key names; ``tensor_file.py`` reads files by them. A table maps a file's key to our
parameter name, with ``{}`` for the number of a layer. Three things do not follow from names alone: OpenCLIP stacks
query, key and value into one tensor, which is called ``qkv_proj`` here, and stores its projections transposed;
Long-CLIP has its positions in two tensors.

Source: key names as found in files of openai/clip-vit-large-patch14 and Stable Diffusion 1.5, as written by open_clip
3.3.0, and as read by ComfyUI 0.29 and Forge from Stable Diffusion 2.x and SDXL checkpoints; B. Zhang et al.,
"Long-CLIP: Unlocking the Long-Text Capability of CLIP", 2024.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from ..models.config import TOWERS

Shapes = Mapping[str, tuple[int, ...]]
"""Shape of each tensor in a file, by key."""
KeyTable = Mapping[str, str]
"""From a file's key, without its prefix, to our parameter name."""

TOKEN_NAME = "embeddings.token_embedding.weight"
POSITION_NAME = "embeddings.position_embedding.weight"
PROJECTION_NAME = "text_projection.weight"
CLASS_NAME = "embeddings.class_embedding"
PATCH_NAME = "embeddings.patch_embedding.weight"
VISUAL_PROJECTION_NAME = "visual_projection.weight"

_KINDS = ("weight", "bias")
KEPT_POSITIONS = 20
"""Long-CLIP's own files keep CLIP's first positions in one tensor, and the others in another."""
_LATER_SUFFIX = "_res"
_THIRDS = ("q_proj", "k_proj", "v_proj")
_TRANSPOSED = ("text_projection", "visual.proj")
LAYER_NUMBER = re.compile(r"(?<=\.layers\.)\d+(?=\.)")

_BLOCK = tuple(
    f"encoder.layers.{{}}.{part}.{kind}"
    for part in (
        "layer_norm1",
        *(f"self_attn.{third}" for third in _THIRDS),
        "self_attn.out_proj",
        "layer_norm2",
        "mlp.fc1",
        "mlp.fc2",
    )
    for kind in _KINDS
)
_OWN = (TOKEN_NAME, POSITION_NAME, *_BLOCK, "final_layer_norm.weight", "final_layer_norm.bias")
_PROJECTION: KeyTable = {"text_projection.weight": PROJECTION_NAME, "text_projection": PROJECTION_NAME}

HUGGING_FACE: KeyTable = {f"text_model.{name}": name for name in _OWN} | dict(_PROJECTION)
"""transformers before 5; the projection is outside the tower, and transposed in old files of ComfyUI's CLIPSave."""

TRANSFORMERS_5: KeyTable = {name: name for name in _OWN} | dict(_PROJECTION)
"""transformers from 5 on, which dropped ``text_model.``; our own names."""


def _both(names: Mapping[str, str]) -> dict[str, str]:
    """Names of weights and biases."""
    return {f"{theirs}.{kind}": f"{ours}.{kind}" for theirs, ours in names.items() for kind in _KINDS}


_OPENCLIP_BLOCK: KeyTable = {
    f"transformer.resblocks.{{}}.{theirs}": f"encoder.layers.{{}}.{ours}"
    for theirs, ours in {
        **{f"attn.in_proj_{kind}": f"self_attn.qkv_proj.{kind}" for kind in _KINDS},
        **_both(
            {
                "ln_1": "layer_norm1",
                "attn.out_proj": "self_attn.out_proj",
                "ln_2": "layer_norm2",
                "mlp.c_fc": "mlp.fc1",
                "mlp.c_proj": "mlp.fc2",
            }
        ),
    }.items()
}

OPENCLIP: KeyTable = {
    "token_embedding.weight": TOKEN_NAME,
    "positional_embedding": POSITION_NAME,
    **_OPENCLIP_BLOCK,
    **_both({"ln_final": "final_layer_norm"}),
    **_PROJECTION,
}
"""OpenAI's release and open_clip, which can also make the projection a linear layer."""

_OWN_VISION: KeyTable = {
    CLASS_NAME: CLASS_NAME,
    PATCH_NAME: PATCH_NAME,
    POSITION_NAME: POSITION_NAME,
    **_both({"pre_layrnorm": "pre_layer_norm", "post_layernorm": "post_layer_norm"}),  # misspelled in the program
    **{name: name for name in _BLOCK},
}
_VISUAL_PROJECTION: KeyTable = {"visual_projection.weight": VISUAL_PROJECTION_NAME}

HUGGING_FACE_VISION: KeyTable = {f"vision_model.{key}": name for key, name in _OWN_VISION.items()} | dict(
    _VISUAL_PROJECTION
)
"""transformers, for an image tower with its projection or together with a text tower."""

TRANSFORMERS_5_VISION: KeyTable = {**_OWN_VISION, **_VISUAL_PROJECTION}
"""transformers from 5 on, for an image tower alone."""

OPENCLIP_VISION: KeyTable = {
    "visual.class_embedding": CLASS_NAME,
    "visual.conv1.weight": PATCH_NAME,
    "visual.positional_embedding": POSITION_NAME,
    **_both({"visual.ln_pre": "pre_layer_norm", "visual.ln_post": "post_layer_norm"}),
    **{f"visual.{key}": name for key, name in _OPENCLIP_BLOCK.items()},
    "visual.proj": VISUAL_PROJECTION_NAME,
}
"""OpenAI's release and open_clip."""


@dataclass(frozen=True)
class Place:
    """A possible location of a text tower in a file."""

    prefix: str
    """Prefix of all keys of the tower."""
    table: KeyTable
    """Key naming scheme after the prefix."""
    layout: str
    """Name of the layout of a file with a tower here."""
    tower: str | None = None
    """Name of the tower, or None to infer it from the width."""
    width: int | None = None
    """The only width this entry applies to, or None for any."""

    @property
    def layer_prefix(self) -> str:
        """Beginning of the keys of its layers, before the layer number."""
        return self.prefix + next(key for key in self.table if "{}" in key).partition("{}")[0]

    def key_of(self, name: str) -> str:
        """Key of a parameter; by that of the token or class embedding, a tower is recognised."""
        return self.prefix + next(key for key, own in self.table.items() if own == name)

    def layers_in(self, shapes: Shapes) -> tuple[str, ...]:
        """Layer numbers as written in a file."""
        prefix = self.layer_prefix
        return tuple({key.removeprefix(prefix).split(".")[0]: None for key in shapes if key.startswith(prefix)})


PLACES = (
    Place("", HUGGING_FACE, "Hugging Face text model"),
    Place("", TRANSFORMERS_5, "Hugging Face text model (transformers 5)"),
    Place("", OPENCLIP, "OpenAI or OpenCLIP model"),
    Place("text.", OPENCLIP, "OpenCLIP model with its text tower apart"),
    Place("cond_stage_model.transformer.", HUGGING_FACE, "Stable Diffusion 1.x checkpoint", "clip_l"),
    Place(
        "cond_stage_model.transformer.",
        TRANSFORMERS_5,
        "Stable Diffusion 1.x checkpoint (transformers 5 names)",
        "clip_l",
    ),
    Place("cond_stage_model.model.", OPENCLIP, "Stable Diffusion 2.x checkpoint", "clip_h"),
    Place("conditioner.embedders.0.transformer.", HUGGING_FACE, "SDXL checkpoint", "clip_l"),
    Place("conditioner.embedders.0.transformer.", TRANSFORMERS_5, "SDXL checkpoint (transformers 5 names)", "clip_l"),
    Place("conditioner.embedders.1.model.", OPENCLIP, "SDXL checkpoint", "clip_g"),
    Place("conditioner.embedders.0.model.", OPENCLIP, "Stable Diffusion 2.x checkpoint (sgm names)", "clip_h", 1024),
    Place("conditioner.embedders.0.model.", OPENCLIP, "SDXL refiner checkpoint", "clip_g"),
    *(
        Place(f"{prefix}{tower}.{inner}", table, f"ComfyUI {kind}", tower)
        for prefix, kind in (("text_encoders.", "checkpoint"), ("", "text encoders"))
        for inner, tables in (("transformer.", (HUGGING_FACE, TRANSFORMERS_5)), ("", (HUGGING_FACE, OPENCLIP)))
        for table in tables
        for tower in TOWERS
    ),
)
"""Known locations of a text tower, most common first."""

VISION_PLACES = (
    Place("", HUGGING_FACE_VISION, "Hugging Face image model"),
    Place("", OPENCLIP_VISION, "OpenAI or OpenCLIP model"),
    Place("", TRANSFORMERS_5_VISION, "Hugging Face image model (transformers 5)"),
)
"""Known locations of an image tower."""


class Source(NamedTuple):
    """Location of a model parameter in a file."""

    key: str
    """The file's key, possibly missing in the file."""
    third: int | None
    """0, 1 or 2 for query, key or value in a stacked tensor; None for a separate tensor."""
    is_transposed: bool
    """Whether the matrix is transposed in the file."""
    later_key: str | None = None
    """Key of a second tensor with all rows but the first `KEPT_POSITIONS`, if there is one."""

    def stored_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Shape in the file of a parameter of this shape."""
        if self.third is not None:
            return (len(_THIRDS) * shape[0], *shape[1:])
        return shape[::-1] if self.is_transposed else shape


class FoundTower(NamedTuple):
    """A tower in a file."""

    name: str
    """ComfyUI's name for a text tower: ``clip_l``, ``clip_g`` or ``clip_h``; ``vision`` for an image tower."""
    place: Place
    """Location of the tower."""
    layers: tuple[str, ...]
    """Layer numbers as written in the file, which may be anything."""

    def source(self, name: str, shapes: Shapes) -> Source:
        """Location of a parameter in the file or, if it is missing, the first location to search."""
        match = LAYER_NUMBER.search(name)
        number = match.group() if match else ""
        pattern = LAYER_NUMBER.sub("{}", name)
        third = next((index for index, part in enumerate(_THIRDS) if f".{part}." in pattern), None)
        stacked = pattern if third is None else pattern.replace(_THIRDS[third], "qkv_proj")
        candidates = [
            Source(self.place.prefix + key.format(number), third if own != pattern else None, key in _TRANSPOSED)
            for key, own in self.place.table.items()
            if own in (pattern, stacked)
        ]
        found = next((source for source in candidates if source.key in shapes), candidates[0])
        later_key = found.key + _LATER_SUFFIX
        return found._replace(later_key=later_key) if name == POSITION_NAME and later_key in shapes else found


def find_towers(shapes: Shapes) -> list[FoundTower]:
    """All text towers in a file, in the order of `TOWERS`.

    A tower found at two locations is read from the one listed first.

    Args:
        shapes: The file's keys and shapes.

    Returns:
        The towers; empty for other files.
    """
    found: dict[str, FoundTower] = {}
    seen: set[str] = set()
    for place in PLACES:
        key = place.key_of(TOKEN_NAME)
        if key not in shapes or key in seen:
            continue
        width = shapes[key][-1] if shapes[key] else 0
        if place.width in (None, width):
            seen.add(key)
            name = place.tower or tower_of_width(width)
            found.setdefault(name, FoundTower(name, place, place.layers_in(shapes)))
    return [found[name] for name in TOWERS if name in found]


def find_vision_tower(shapes: Shapes) -> FoundTower | None:
    """The image tower of a file, or None."""
    for place in VISION_PLACES:
        if place.key_of(CLASS_NAME) in shapes:
            return FoundTower("vision", place, place.layers_in(shapes))
    return None


def tower_of_width(width: int) -> str:
    """Name of the text tower that a width most likely belongs to."""
    return next((name for name, config in TOWERS.items() if config.hidden_dim == width), "clip_l")
