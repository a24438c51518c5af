"""The parts of ComfyUI's objects that we use, by their names there. They are not checked at run time.

Attributes of some versions only are accessed by `getattr`.

Source: ComfyUI 0.3.64 and 0.29.0, which agree in all of it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor, nn

Conditioning = list[list[Any]]
"""ComfyUI's CONDITIONING: a list of ``[hidden [1, tokens, dim], dict]``."""
TransformerOptions = dict[str, Any]
"""Options of a diffusion model for one call: patches, wrappers, the current block."""


class AttentionFunction(Protocol):
    """One of the attention functions in ``comfy.ldm.modules.attention``."""

    __name__: str

    def __call__(self, *inputs: Any, **options: Any) -> Tensor:
        """Compute attention from query, key, value, heads and mask."""
        ...


class HostTokenizer(Protocol):
    """``comfy.sd1_clip.SDTokenizer``: the tokenizer of one tower."""

    tokenizer: Callable[[str], Mapping[str, Sequence[int]]]
    tokenizer_adds_end_token: bool
    tokens_start: int
    start_token: int
    end_token: int
    pad_token: int
    max_length: int
    embedding_directory: str | list[str] | None
    embedding_size: int
    embedding_key: str


class HostTower(Protocol):
    """``comfy.sd1_clip.SDClipModel``: one text tower. The host sets its layer choice for each encoding."""

    transformer: Any
    layer: str
    layer_idx: int | None
    layer_norm_hidden_state: bool
    return_projected_pooled: bool
    encode: Callable[[Sequence[Any]], Sequence[Any]]
    encode_token_weights: Callable[..., Any]
    process_tokens: Callable[[Sequence[Any], torch.device], tuple[Tensor, Tensor, list[int], Any]]


class ModelPatcher(Protocol):
    """``comfy.model_patcher.ModelPatcher``: a model, its patches and its memory; also what a MODEL link carries."""

    model: nn.Module
    object_patches: Mapping[str, Any]
    forced_hooks: Any
    get_model_object: Callable[[str], Any]
    clone: Callable[[], ModelPatcher]
    add_wrapper_with_key: Callable[[str, str, Callable[..., Any]], None]
    remove_wrappers_with_key: Callable[[str, str], None]


class Clip(Protocol):
    """``comfy.sd.CLIP``: what a CLIP link carries."""

    cond_stage_model: nn.Module
    tokenizer: object
    patcher: ModelPatcher
    apply_hooks_to_conds: Any
    clone: Callable[[], Clip]
    tokenize: Callable[..., dict[str, Any]]
    encode_from_tokens: Callable[..., dict[str, Any]]
    encode_from_tokens_scheduled: Callable[..., Conditioning]
