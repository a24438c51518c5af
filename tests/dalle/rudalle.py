"""ru-DALL-E's own package as the reference, without what it needs for anything but the transformer."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

import pytest
import torch
from weighted_clip.encoder.sparse_masks import MASK_VARIANTS, MaskVariant

RUDALLE: tuple[MaskVariant, ...] = tuple(name for name in MASK_VARIANTS if name != "dalle")
INSTALL = "pip install --no-deps rudalle==1.1.3 einops"
PARTS = ("model", "transformer", "image_attention")


def rudalle(part: str) -> ModuleType:
    """A module of ``rudalle.dalle`` 1.1.3, which is in no requirements, as it wants old versions of many packages.

    Importing the package itself, or ``rudalle.dalle``, imports all that it can do. So empty modules stand in the place
    of these two while the module is imported.
    """
    assert part in PARTS
    found = importlib.util.find_spec("rudalle")
    if found is None or found.origin is None or not (folder := Path(found.origin).parent / "dalle").is_dir():
        pytest.skip(f"compares with rudalle 1.1.3, which is not installed: {INSTALL}")
    pytest.importorskip("einops", reason=f"rudalle needs einops: {INSTALL}")
    with _without_the_rest(folder):
        return importlib.import_module(f"rudalle.dalle.{part}")


@contextmanager
def _without_the_rest(folder: Path) -> Iterator[None]:
    stubs = {"rudalle": folder.parent, "rudalle.dalle": folder}
    for name, place in stubs.items():
        module = ModuleType(name)
        module.__path__ = [str(place)]
        sys.modules[name] = module
    try:
        yield
    finally:
        for name in stubs:
            del sys.modules[name]


def their_mask(kind: str, text_length: int, side: int, kernel_size: int = 11) -> torch.Tensor:
    """``[s, s]``, bool. ``kind``: row, column, or a variant of the convolutional one. Its images are squares."""
    masks = rudalle("image_attention")
    if kind in ("row", "column"):
        make = {"row": masks.get_row_mask, "column": masks.get_col_mask}[kind]
        return make(text_length, side, is_bool_mask=True)
    return masks.get_conv_mask(
        text_length, side, kernel_size, is_bool_mask=True, hf_version=kind.removeprefix("rudalle-")
    )


def their_schedule(num_layers: int) -> list[str]:
    """Which mask their transformer gives each layer."""
    transformer = rudalle("transformer").DalleTransformer
    names = {"row_mask": "row", "col_mask": "column", "conv_mask": "convolutional"}
    empty = transformer.__new__(transformer)
    torch.nn.Module.__init__(empty)
    empty.num_layers = num_layers
    for attribute, name in names.items():
        setattr(empty, attribute, name)
    return [transformer._get_layer_mask(empty, index) for index in range(num_layers)]
