"""Models of ComfyUI that pass no options to their attention: weights get in by hooks of its layers, for one call.

The hooks are PyTorch's own and are taken off after the call. They give the layer a mask, the bias of the text's keys,
and multiply the values that it makes.

Source: behaviour of ComfyUI 0.29.0; docs/reference/attention.md, "Weights in the attention".
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from ..titles import PLACE_PHRASE
from ..types import TransformerOptions
from .attention_layers import WITHOUT_BIAS, ComfyWeighting
from .kinds import class_of
from .queries import ModelCall


def by_hooks(weighing: ComfyWeighting, call: ModelCall) -> TransformerOptions:
    """Options for weights in Ernie-Image: in every attention, with the text behind the picture.

    Refused if the model is compiled, so that hooks would be passed over or stay, and if the attention takes no mask.
    """
    network = getattr(call.network, "_orig_mod", call.network)
    if network is not call.network or any(hasattr(layer, "_orig_mod") for layer in network.layers):
        raise ValueError(
            f"Attention Weights and {PLACE_PHRASE} cannot act in this model while it is compiled (torch.compile), as "
            "the host passes no options to its attention. Take out the node that compiles it, or ours."
        )
    kernel = vars(sys.modules[class_of(network).rpartition(".")[0]])["optimized_attention"].__name__
    if kernel in WITHOUT_BIAS:
        raise ValueError(
            f"Attention Weights and {PLACE_PHRASE} cannot act in this model with {kernel}, which takes no mask. Start "
            "ComfyUI with --use-pytorch-cross-attention."
        )
    weighing.is_last = True
    for layer in network.layers:
        _hook(weighing, layer.self_attention)
    return call.options


def _hook(weighing: ComfyWeighting, attention: Any) -> None:
    """Put hooks on an attention until ``weighing.closing`` is closed."""
    factor: Tensor | None = None

    def before(layer: Any, inputs: tuple[Any, ...], named: dict[str, Any]) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
        states: Tensor = inputs[0]  # [batch, keys, dim]

        def read(query: Tensor, key: Tensor, value: Tensor, heads: int, mask: Any, **_: Any) -> Any:
            nonlocal factor
            factor = value
            return mask

        ones = states.new_ones(*states.shape[:2], 1)
        mask = weighing.attend(read, states, states, ones, layer.heads, named.get("attention_mask"))
        return inputs, {**named, "attention_mask": mask}

    def behind(_: Any, __: Any, values: Tensor) -> Tensor:
        return values if factor is None else weighing.checked(values * factor)

    weighing.closing.callback(attention.register_forward_pre_hook(before, with_kwargs=True).remove)
    weighing.closing.callback(attention.to_v.register_forward_hook(behind).remove)
