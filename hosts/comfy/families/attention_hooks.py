"""Models of ComfyUI that pass no options to their attention: weights get in by hooks of its layers, for one call.

The hooks are PyTorch's own and are taken off after the call. A layer that takes a mask gets one, the bias of the text's
keys, and the values that it makes are multiplied. Where a layer takes none, its queries read the text once more, with
the weights, and its last projection gets that result instead of the layer's own.

Source: behaviour of ComfyUI 0.29.0; docs/reference/attention.md, "Weights in the attention".
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from torch import Tensor

from ..contract import host
from ..titles import PLACE_PHRASE
from ..types import TransformerOptions
from .attention_layers import WITHOUT_BIAS, ComfyWeighting, check_are_original, read_with_bias
from .kinds import class_of
from .queries import ModelCall


def by_hooks(weighing: ComfyWeighting, call: ModelCall) -> TransformerOptions:
    """Options for weights in Ernie-Image: in every attention, with the text behind the picture.

    Refused if the model is compiled, so that hooks would be passed over or stay, and if the attention takes no mask.
    """
    network = getattr(call.network, "_orig_mod", call.network)
    _check_is_not_compiled(call.network, network.layers)
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


def in_cross_attention_without_mask(weighing: ComfyWeighting, call: ModelCall) -> TransformerOptions:
    """Options for weights in PixArt: in the cross attention of each block.

    Refused if the model is compiled, and if another pack replaces the cross attention.
    """
    network = getattr(call.network, "_orig_mod", call.network)
    _check_is_not_compiled(call.network, network.blocks)
    layers = [block.cross_attn for block in network.blocks]
    check_are_original(layers)
    for layer in layers:
        _hook_without_mask(weighing, layer)
    return call.options


def _check_is_not_compiled(network: Any, blocks: Sequence[Any]) -> None:
    """Refuse a network that is compiled, as a whole or block by block: its hooks would be passed over, or stay."""
    if hasattr(network, "_orig_mod") or any(hasattr(block, "_orig_mod") for block in blocks):
        raise ValueError(
            f"Attention Weights and {PLACE_PHRASE} cannot act in this model while it is compiled (torch.compile), as "
            "the host passes no options to its attention. Take out the node that compiles it, or ours."
        )


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


def _hook_without_mask(weighing: ComfyWeighting, attention: Any) -> None:
    """The same for a cross attention that takes no mask and gives its result to its layer ``proj``."""
    states: dict[str, Tensor] = {}
    function = host("comfy.ldm.pixart.blocks").optimized_attention

    def note(name: str, _: Any, __: Any, output: Tensor) -> None:
        states[name] = output

    def read(_: Any, __: Any) -> tuple[Tensor]:
        query = states.pop("query")  # [batch, places, dim]
        rows = states.pop("rows")  # [1, batch * rows, 2 * dim]: the prompts one behind the other
        key, value = rows.view(len(query), -1, rows.shape[-1]).chunk(2, -1)
        return (weighing.attend(partial(read_with_bias, function), query, key, value, attention.num_heads),)

    weighing.closing.callback(attention.q_linear.register_forward_hook(partial(note, "query")).remove)
    weighing.closing.callback(attention.kv_linear.register_forward_hook(partial(note, "rows")).remove)
    weighing.closing.callback(attention.proj.register_forward_pre_hook(read).remove)
