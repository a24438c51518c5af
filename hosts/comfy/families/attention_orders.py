"""Models of ComfyUI that do not say which attention reads text: it is known from the order of their layers.

The host names no kind of block there, so each attention of a call is counted (``attention_layers.py`` has the others).

Source: behaviour of ComfyUI 0.29.0; docs/reference/attention.md, "Weights in the attention".
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from ..types import TransformerOptions
from .attention_layers import ComfyWeighting, around_attention, in_joint_attention
from .queries import ModelCall


def by_turns(weighing: ComfyWeighting, call: ModelCall, turns: Sequence[ComfyWeighting | None]) -> TransformerOptions:
    """Options for weights in a fixed order of attentions; each turn names the weights of one attention, or none."""
    left = list(turns)

    def act(attention: Callable[..., Tensor], *inputs: Any, **choices: Any) -> Tensor:
        turn = left.pop(0) if left else None
        return attention(*inputs, **choices) if turn is None else turn.attend(attention, *inputs, **choices)

    return around_attention(call.options, act, weighing)


def in_every_attention(weighing: ComfyWeighting, call: ModelCall) -> TransformerOptions:
    """Options for weights in Ideogram 4 and CogVideoX: in every attention, with the text first."""
    return around_attention(call.options, weighing.attend, weighing)


def behind_picture(weighing: ComfyWeighting, call: ModelCall) -> TransformerOptions:
    """Same as `in_joint_attention`, for Lens and JoyImage, whose text stands behind the picture and references."""
    weighing.is_last = True
    return in_joint_attention(weighing, call)


def behind_refiners_apart(weighing: ComfyWeighting, call: ModelCall) -> TransformerOptions:
    """Options for weights in OmniGen 2 and Boogu, with the text first, once layers have refined text and images apart.

    Hidden rows are hidden from the refined text, too. Each of Boogu's double layers reads text and images together,
    then images alone.
    """
    network = call.network
    num_apart = len(network.noise_refiner) + (len(network.ref_image_refiner) if call.inputs.get("ref_latents") else 0)
    both = [weighing, None] * len(getattr(network, "double_stream_layers", ()))
    both += [weighing] * len(getattr(network, "single_stream_layers", None) or network.layers)
    return by_turns(weighing, call, [weighing.of_hidden()] * len(network.context_refiner) + [None] * num_apart + both)


def in_every_second_attention(weighing: ComfyWeighting, call: ModelCall) -> TransformerOptions:
    """Options for weights in Cosmos 1: in the cross attention of each block, which follows its self attention."""
    return by_turns(weighing, call, [None, weighing] * len(call.network.blocks))


def before_pixels(weighing: ComfyWeighting, call: ModelCall) -> TransformerOptions:
    """Options for weights in PixelDiT: in the blocks of patches, with the text first; blocks of pixels read no text.

    The model reads the first ``txt_max_length`` rows only.
    """
    weighing.cut(call.network.txt_max_length)
    return by_turns(weighing, call, [weighing] * len(call.network.patch_blocks))


def behind_registers(weighing: ComfyWeighting, call: ModelCall) -> TransformerOptions:
    """Options for weights in AuraFlow: in every attention, with the text after the model's registers."""
    weighing.insert(0, call.network.register_tokens.shape[1])
    return in_every_attention(weighing, call)


def in_language_model(weighing: ComfyWeighting, call: ModelCall) -> TransformerOptions:
    """Options for weights in HiDream-O1: where the picture reads, in every attention with the text first.

    Text itself is read by the model as by any text encoder. Reference images follow the first three of its tokens.
    """
    weighing.insert(3, call.inputs["input_ids"].shape[1] - weighing.bias.shape[1])
    return in_every_attention(weighing, call)


def behind_token_refiner(weighing: ComfyWeighting, call: ModelCall) -> TransformerOptions:
    """Options for weights in Hunyuan Video: in every block, once layers have refined the text.

    Hidden rows are hidden from the refined text, too. In front of it stand rows of an image and, in 1.5, of texts in
    quotation marks, which weigh 1.
    """
    network = call.network
    hidden = weighing.of_hidden()
    image, quoted = call.inputs.get("clip_fea"), call.inputs.get("txt_byt5")
    weighing.insert(0, 0 if image is None else image.shape[1])
    if quoted is not None and network.byt5_in is not None and network.cond_type_embedding is not None:
        weighing.insert(0, quoted.shape[1])
    num_refined = len(network.txt_in.individual_token_refiner.blocks)
    num_blocks = len(network.double_blocks) + len(network.single_blocks)
    return by_turns(weighing, call, [hidden] * num_refined + [weighing] * num_blocks)


def behind_text_blocks(weighing: ComfyWeighting, call: ModelCall) -> TransformerOptions:
    """Options for weights in Kandinsky 5: in the cross attention of each block, after its self attention.

    Hidden rows are hidden from the text that its first layers refine, too.
    """
    network = call.network
    refined = [weighing.of_hidden()] * len(network.text_transformer_blocks)
    return by_turns(weighing, call, refined + [None, weighing] * len(network.visual_transformer_blocks))


def behind_video(weighing: ComfyWeighting, call: ModelCall) -> TransformerOptions:
    """Options for weights in Mochi: in every attention, with the text last, as much of it as is no padding."""
    weighing.cut(call.inputs.get("num_tokens", weighing.bias.shape[1]))
    weighing.is_last = True
    return in_every_attention(weighing, call)
