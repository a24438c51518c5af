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
from weighted_clip.encoder.models.config import MaskVariant
from weighted_clip.studio.dalle.published import VARIANTS

RUDALLE = VARIANTS
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
    """Mask of each layer in their transformer."""
    transformer = rudalle("transformer").DalleTransformer
    names = {"row_mask": "row", "col_mask": "column", "conv_mask": "convolutional"}
    empty = transformer.__new__(transformer)
    torch.nn.Module.__init__(empty)
    empty.num_layers = num_layers
    for attribute, name in names.items():
        setattr(empty, attribute, name)
    return [transformer._get_layer_mask(empty, index) for index in range(num_layers)]


SIZES = {
    "num_layers": 7,
    "vocab_size": 20 + 6,
    "hidden_size": 32,
    "num_attention_heads": 4,
    "text_seq_length": 6,
    "image_tokens_per_dim": 8,
    "image_vocab_size": 13,
}
"""Sizes of their model. The last of 7 layers has the convolutional mask, and with 8 columns the variants' masks
differ."""


def formula_state(num_layers: int = SIZES["num_layers"], dtype: torch.dtype = torch.float32) -> dict[str, torch.Tensor]:
    """A state dict of ru-DALL-E, without masks, that any program can repeat: sines, smaller for more inputs."""
    d, texts, side = SIZES["hidden_size"], SIZES["vocab_size"], SIZES["image_tokens_per_dim"]
    images = SIZES["image_vocab_size"]
    shapes = {
        "text_embeddings.weight": (texts, d),
        "image_embeddings.weight": (images, d),
        "text_pos_embeddings.weight": (SIZES["text_seq_length"] + 1, d),
        "image_row_embeddings.weight": (side, d),
        "image_col_embeddings.weight": (side, d),
        "to_logits.0.weight": (d,),
        "to_logits.1.weight": (texts + images, d),
        "to_logits.1.bias": (texts + images,),
        "transformer.final_layernorm.weight": (d,),
    }
    norms = ("input", "post_attention", "before_first_addition", "before_second_addition")
    for layer in range(num_layers):
        at = f"transformer.layers.{layer}"
        shapes |= {f"{at}.{name}_layernorm.weight": (d,) for name in norms}
        shapes |= {
            f"{at}.attention.query_key_value.weight": (3 * d, d),
            f"{at}.attention.dense.weight": (d, d),
            f"{at}.mlp.dense_h_to_4h.weight": (4 * d, d),
            f"{at}.mlp.dense_4h_to_h.weight": (d, 4 * d),
        }
    for name, shape in list(shapes.items()):
        if "embeddings" not in name and name.endswith(".weight"):
            shapes[name.removesuffix(".weight") + ".bias"] = shape[:1]
    state: dict[str, torch.Tensor] = {}
    for number, name in enumerate(sorted(shapes)):
        shape = shapes[name]
        count = torch.Size(shape).numel()
        values = torch.sin(0.37 * torch.arange(count, dtype=torch.float64) + number * (1 + 0.01 * number))
        is_norm = "layernorm" in name or "to_logits.0" in name
        if is_norm and name.endswith("weight"):
            values = 1 + 0.3 * values
        elif name.endswith("bias"):
            values = 0.2 * values
        elif "embeddings" not in name:
            values = values * (2 / shape[1]) ** 0.5
        state[name] = values.view(shape).to(dtype)
    return state


def their_model(variant: MaskVariant, state: dict[str, torch.Tensor], *, is_relaxed: bool = True) -> torch.nn.Module:
    """ru-DALL-E's whole transformer with these weights; ``is_relaxed``: in CogView's order of the same arithmetic."""
    layers = 1 + max(int(name.split(".")[2]) for name in state if name.startswith("transformer.layers."))
    model = rudalle("model").DalleModel(
        "cpu",
        **{**SIZES, "num_layers": layers},
        embedding_dropout_prob=0.1,
        attention_dropout_prob=0.1,
        output_dropout_prob=0.1,
        cogview_sandwich_layernorm=True,
        cogview_pb_relax=is_relaxed,
        hf_version=variant.removeprefix("rudalle-"),
    )
    model = model.to("cpu", state["to_logits.0.weight"].dtype).eval().requires_grad_(False)
    missing, unexpected = model.load_state_dict(state, strict=False)
    assert not unexpected
    assert sorted(missing) == ["transformer.col_mask", "transformer.conv_mask", "transformer.row_mask"]
    return model


def their_logits(model: torch.nn.Module, ids: torch.Tensor) -> torch.Tensor:
    """``[b, s, text and image values]`` of ids ``[b, T + tokens of the image so far]``, in which 0 is padding."""
    length = SIZES["text_seq_length"] + SIZES["image_tokens_per_dim"] ** 2
    attended = torch.ones(1, 1, length, length, dtype=next(model.parameters()).dtype).tril()
    return model(ids, attended)[0]


def formula_ids() -> torch.Tensor:
    """``[2, T + n]``: two captions, one with padding, and the tokens of two images."""
    side, kinds = SIZES["image_tokens_per_dim"], SIZES["image_vocab_size"]
    text = torch.tensor([[2, 7, 19, 3, 0, 0], [2, 11, 4, 5, 6, 3]])
    places = torch.arange(2 * side * side)
    return torch.cat([text, (places * places * 5 + places // 3).remainder(kinds).view(2, -1)], 1)
