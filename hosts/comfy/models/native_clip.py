"""Our native encoder as a CLIP of the host's, which every node takes: its encoder is ours, all else is the host's.

The host's own model of the family is made without weights, and its towers get our layers under the host's names. So
tokens, weights of rows, choice of layer, LoRAs, hooks, merging, saving and memory are the host's.

Source: behaviour of ComfyUI 0.3.64 and 0.29.0.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from copy import copy
from functools import cache
from numbers import Integral
from types import SimpleNamespace
from typing import Any

import torch

from ....encoder.encoding import Encoding
from ....encoder.models.config import Family
from ....encoder.models.prefix import num_cut_layers
from ....encoder.models.text_model import TextEncoder
from ....encoder.quoting import quote
from ....weighting.text.embeddings import EmbeddingVector, TokenId
from ..contract import checked_object, host
from ..types import Clip
from .cache import changed_calls

logger = logging.getLogger(__name__)

ENCODER = "weighted_clip_encoder"
"""Attribute of a tower with our encoder."""


def native_clip(family: Family, encoders: Mapping[str, TextEncoder], device: str) -> Clip:
    """A host's CLIP whose towers are ours.

    Args:
        family: Family of the towers.
        encoders: The towers by name, whose layer is the CLIP's own.
        device: ``auto`` for the host's choice of device for text encoders, or ``cpu``.

    Returns:
        The CLIP. The host keeps our towers in memory by its patcher.
    """
    model_class, tokenizer_class = _classes_of(family)

    def model(*, dtype: torch.dtype, **_: Any) -> Any:
        made = model_class(device="meta", dtype=dtype)
        for name, encoder in encoders.items():
            _take(getattr(made, name), encoder, family, num_cut_layers(name, encoder.config))
        made.disable_offload = True  # for the plain kind of patcher: the other moves the host's own layers alone
        return made

    cpu = torch.device("cpu")
    lengths = {f"{name}_max_length": encoder.config.context_length for name, encoder in encoders.items()}
    dtype = next(iter(encoders.values())).model.final_layer_norm.weight.dtype
    clip = host("comfy.sd").CLIP(
        target=SimpleNamespace(params={}, clip=model, tokenizer=tokenizer_class),
        embedding_directory=host("folder_paths").get_folder_paths("embeddings") or None,
        tokenizer_data=lengths,
        model_options={"dtype": dtype, **({} if device == "auto" else {"load_device": cpu, "offload_device": cpu})},
    )
    clip.patcher.__class__ = _class_of(type(clip.patcher), _Whole)
    for name, encoder in encoders.items():
        getattr(clip.tokenizer, name).embedding_size = encoder.config.hidden_dim
    return clip


def _classes_of(family: Family) -> tuple[Any, Any]:
    """The host's model and tokenizer of a family."""
    if family.name == "SD 1.x":
        sd1 = host("comfy.sd1_clip")
        return sd1.SD1ClipModel, sd1.SD1Tokenizer
    if family.name == "SD 2.x":
        sd2 = host("comfy.text_encoders.sd2_clip")
        return sd2.SD2ClipModel, sd2.SD2Tokenizer
    sdxl = host("comfy.sdxl_clip")
    return sdxl.SDXLClipModel if family.name == "SDXL" else sdxl.SDXLRefinerClipModel, sdxl.SDXLTokenizer


def is_native(tower: Any) -> bool:
    """Whether a host's tower has our layers."""
    return hasattr(tower, ENCODER)


def encoder_of(tower: Any) -> TextEncoder | None:
    """Our encoder in a host's tower, for the layer that the host has chosen; None if the tower is not ours.

    Raises:
        ValueError: If our encoder cannot give that layer.
    """
    encoder: TextEncoder | None = getattr(tower, ENCODER, None)
    if encoder is None:
        return None
    model, index = encoder.model, tower.layer_idx
    if tower.layer == "last":
        clip_skip, final_norm = 1, True
    elif tower.layer == "hidden":
        clip_skip = -index if index < 0 else tower.num_layers - index
        final_norm = tower.layer_norm_hidden_state
    else:
        raise ValueError(f"The native encoder gives one layer, and {quote(tower.layer)} was asked for.")
    num_missing = tower.num_layers - model.config.num_layers
    if clip_skip <= num_missing:
        raise ValueError(
            "The file of the native encoder is without the last layer: set clip skip to 2, or the layer to -2."
        )
    chosen = copy(encoder)
    if any(changed_calls(tower)):  # such as bypassed LoRAs, which only layers called one by one give
        chosen = TextEncoder(model)
    chosen.clip_skip, chosen.final_norm = clip_skip - num_missing, final_norm
    chosen.projected = tower.return_projected_pooled and model.text_projection is not None
    return chosen


class _Native:
    """Mixin of the host's towers with our layers."""

    layer: Any

    def set_clip_options(self, options: Mapping[str, Any]) -> None:
        """Take the host's choices; the loader's layer stays where none is chosen, also that of the embeddings."""
        before = self.layer
        super().set_clip_options(options)  # type: ignore[misc]
        if before == "hidden" and "layer" not in options:
            self.layer = before

    def forward(self, tokens: Sequence[Sequence[Any]]) -> Encoding:
        """Encode chunks in the host's form."""
        encoder = encoder_of(self)
        assert encoder is not None
        pad_id = self.special_tokens["pad"]  # type: ignore[attr-defined]
        return encoder([_chunk(chunk, encoder.config.hidden_dim, pad_id) for chunk in tokens])


class _Whole:
    """Mixin of the host's patcher that moves and patches all layers or none: in part only the host's own can be."""

    def load(self, device_to: Any = None, *_: Any, **choices: Any) -> None:
        """Move all layers to a device."""
        choices.pop("lowvram_model_memory", None)
        super().load(device_to, **{**choices, "full_load": True})  # type: ignore[misc]

    def partially_unload(self, *_: Any, **__: Any) -> int:
        """Free no memory, so that the host unloads all."""
        return 0


def _take(tower: Any, encoder: TextEncoder, family: Family, num_missing: int) -> None:
    """Give a host's tower our layers in place of its own, which have no weights."""
    model, transformer = encoder.model, checked_object(tower, "comfy.sdxl_clip.SDXLClipG").transformer
    text_model = transformer.text_model
    text_model.embeddings, text_model.encoder = model.embeddings, model.encoder
    text_model.final_layer_norm = model.final_layer_norm
    transformer.text_projection = model.text_projection
    transformer.num_layers = tower.num_layers = model.config.num_layers + num_missing
    clip_skip = encoder.clip_skip + num_missing
    if clip_skip != family.min_clip_skip:
        tower.layer, tower.layer_idx = "hidden", -clip_skip
        tower.options_default = (tower.layer, tower.layer_idx, tower.return_projected_pooled)
    tower.__class__ = _class_of(type(tower), _Native)
    setattr(tower, ENCODER, encoder)


@cache
def _class_of(base: type, mixin: type) -> type:
    """A class of the host's with a mixin of ours; it has the same name, as some nodes look at that."""
    return type(base.__name__, (mixin, base), {"__module__": base.__module__, "__qualname__": base.__qualname__})


def _chunk(tokens: Sequence[Any], dim: int, pad_id: int) -> list[TokenId]:
    """A chunk in the host's form in ours; as there, padding stands for embeddings of another width, at the end."""
    chunk: list[TokenId] = []
    num_left_out = 0
    for token in tokens:
        if isinstance(token, Integral):
            chunk.append(int(token))
            continue
        vectors = token.get("data") if isinstance(token, Mapping) else token
        if not isinstance(vectors, torch.Tensor):
            raise ValueError(f"The native encoder takes ids of tokens and vectors of embeddings, got {quote(token)}.")
        rows = vectors.reshape(-1, vectors.shape[-1])
        if rows.shape[-1] == dim:
            chunk += [EmbeddingVector("", index, row) for index, row in enumerate(rows)]
        else:
            logger.warning("an embedding %d wide is left out: this encoder takes those %d wide", rows.shape[-1], dim)
            num_left_out += len(rows)
    return chunk + [pad_id] * num_left_out
