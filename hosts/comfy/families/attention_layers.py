"""Text layers of ComfyUI's diffusion models, and how weights get into their attention; families.py says whose is whose.

For one call of a model its options get another function around the attention, which adds a bias to the logits of the
text's keys and multiplies their values. The text keys are known from the model, never guessed from a shape.

Source: behaviour of ComfyUI 0.29.0; docs/reference/attention.md, "Weights in the attention".
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from inspect import getsource, unwrap
from typing import Any

import torch
from torch import Tensor

from ....weighting.key_weights import AttentionWeighting
from ..contract import host
from ..titles import PLACE_PHRASE, REGIONAL_PROMPT, WATCH_WORDS, WEIGHTED_PROMPT
from ..types import AttentionFunction, TransformerOptions
from .queries import ModelCall, of_layer, pad_multiple

OVERRIDE = "optimized_attention_override"
"""The host's option for a function around its attention."""
WITHOUT_BIAS = ("attention_sage", "attention3_sage", "attention_flash")
"""Attention functions of the host that take no bias, or warn about it at each call; PyTorch's is used instead."""
TEXTS = ("txt", "v_context")
"""The host's names of the text among a block's inputs; LTX-2's audio reads another form of the same rows."""
TEXT_LAYERS = ("attn2", "audio_attn2")
"""Layers of a block of LTX-Video and of LTX-2 that read the text."""
COUPLED = (
    f"Attention Weights, {PLACE_PHRASE}, {REGIONAL_PROMPT} and the scheme negpip cannot act beside another pack's node "
    "that reads several prompts in one attention, such as Attention Couple: they would act on the rows of its other "
    f"prompts. Use {WEIGHTED_PROMPT} with another scheme for all prompts of that node, or take out the node and give "
    f"each prompt its place with {REGIONAL_PROMPT}."
)
"""Message about another pack's node that lets one attention read further prompts."""


WeightingFunction = Callable[["ComfyWeighting", ModelCall], TransformerOptions]
"""From weights and a call of a model to a copy of its options with the weights applied."""


class ComfyWeighting(AttentionWeighting):
    """Weights for one call of a model of ComfyUI."""

    of_others = COUPLED
    unplaced = (
        f"{PLACE_PHRASE} and {REGIONAL_PROMPT} need to know where in the picture each of {{num_queries}} places is, "
        "but here {num_expected} are known, the picture's being {grid}: another node has changed them or joined other "
        f"pictures, or this ComfyUI is too old to tell. Take out that node, or {PLACE_PHRASE} and {REGIONAL_PROMPT}."
    )
    too_large = (
        f"{PLACE_PHRASE} and {REGIONAL_PROMPT} would take {{gib:.1f}} GiB in this model at this size, for the weights "
        "of {keys:,} rows at {queries:,} places in {prompts}; they take 1 GiB at most. Take a smaller picture, or "
        "Conditioning (Set Mask)."
    )

    def num_references(self, options: Mapping[str, Any]) -> int:
        """Number of queries of reference images, as the host tells it."""
        return sum(options.get("transformer_options", {}).get("reference_image_num_tokens", ()))


@cache
def takes_scale(function: AttentionFunction) -> bool:
    """Whether one of the host's attention functions takes the scale of its logits, and keeps to it with their bits."""
    try:
        source = getsource(unwrap(function))
    except (OSError, TypeError):  # not written in Python
        return False
    return '"scale"' in source and "sage" not in function.__name__


def read_with_bias(function: AttentionFunction, *inputs: Any, **choices: Any) -> Tensor:
    """One of the host's attention functions, or PyTorch's instead of one that takes no bias, if there is one."""
    if function.__name__ in WITHOUT_BIAS and (len(inputs) > 4 and inputs[4] is not None):
        return host("comfy.ldm.modules.attention").attention_pytorch(*inputs, **choices)
    return function(*inputs, **choices)


def around_attention(
    options: TransformerOptions, act: Callable[..., Tensor], weighing: ComfyWeighting
) -> TransformerOptions:
    """A copy of a model's options with another function around its attention; another pack's is called inside ours.

    In a compiled model it is not compiled if the weights depend on the place.
    """
    earlier = options.get(OVERRIDE)
    disable: Any = torch.compiler.disable
    if weighing.has_places and "torch._dynamo" in sys.modules:  # importing it takes a second
        act = disable(act)

    def override(function: AttentionFunction, *inputs: Any, **choices: Any) -> Tensor:
        def attention(*inputs: Any, **choices: Any) -> Tensor:
            if earlier is not None:
                return earlier(function, *inputs, **choices)
            return read_with_bias(function, *inputs, **choices)

        attention.takes_scale = earlier is None and takes_scale(function)  # pyright: ignore[reportFunctionMemberAccess]
        return act(attention, *inputs, **choices)

    return {**options, OVERRIDE: override}


def _acting_in(pending: list[bool], weighing: ComfyWeighting) -> Callable[..., Tensor]:
    """For `around_attention`: ``pending`` says for each next attention whether weights act in it, and is consumed."""

    def act(attention: Callable[..., Tensor], *inputs: Any, **choices: Any) -> Tensor:
        if pending and pending.pop(0):
            return weighing.attend(attention, *inputs, **choices)
        return attention(*inputs, **choices)

    return act


def in_cross_attention(weighing: ComfyWeighting, call: ModelCall) -> TransformerOptions:
    """Options for weights in a cross attention the host can patch: in the next one after its patch.

    Refused if another pack replaces that attention.
    """
    options = call.options
    if options.get("patches_replace", {}).get("attn2"):
        raise ValueError(
            "Attention Weights and Place Phrase cannot act in this model: another node, such as IP-Adapter, replaces "
            "its cross attention (attn2_replace), where the weights would be lost. Take out that node or ours."
        )
    num_keys = weighing.bias.shape[1]
    are_text: list[bool] = []

    def before(query: Tensor, key: Tensor, value: Tensor, *extra: Any, **named: Any) -> Any:
        weighing.check_batch(query)  # first, as regions of other lengths change the number of rows as well
        if key.shape[1] != num_keys:
            raise ValueError(
                f"Attention Weights and Place Phrase expect {num_keys} rows of text in the cross attention, but "
                f"another node's patch has made them {key.shape[1]}: which of them are words can no longer be told. "
                "Take out that node, such as NegPip, or ours."
            )
        if extra:  # the host's options of a U-Net; Anima passes them by name, without a size
            weighing.queries = of_layer(extra[0])
            weighing.is_middle = (extra[0].get("block") or ("",))[0] == "middle"
        are_text[:] = [True]
        return {} if named else (query, key, value)  # Anima passes the others by name and takes changed ones

    patches = options.get("patches", {})
    patched = {**patches, "attn2_patch": [*patches.get("attn2_patch", ()), before]}
    return around_attention({**options, "patches": patched}, _acting_in(are_text, weighing), weighing)


def in_joint_attention(weighing: ComfyWeighting, call: ModelCall) -> TransformerOptions:
    """Options for weights where text and image share an attention: in all blocks, with the text first.

    Refused if another pack changes the text there.
    """
    if call.options.get("patches", {}).get("post_input"):
        raise ValueError(
            "Attention Weights and Place Phrase cannot act in this model: another node's patch changes the rows of "
            "text and image before the first block (post_input), so that nobody can tell which are words. Take out "
            "that node or ours."
        )

    def act(attention: Callable[..., Tensor], *inputs: Any, **choices: Any) -> Tensor:
        if _block_type(choices) in ("double", "single"):
            return weighing.attend(attention, *inputs, **choices)
        return attention(*inputs, **choices)

    return around_attention(call.options, act, weighing)


def behind_refiners(weighing: ComfyWeighting, call: ModelCall) -> TransformerOptions:
    """Same as `in_joint_attention`, for models whose first layers refine the text alone, then the image alone.

    Hidden rows are hidden from the refined text, too. Reference images bring texts of their own, which precede ours;
    words with places are refused then.
    """
    references, texts = (call.inputs.get(name) or () for name in ("ref_latents", "ref_contexts"))
    if references and weighing.has_places:
        raise ValueError(
            f"{PLACE_PHRASE}, {REGIONAL_PROMPT} and {WATCH_WORDS} cannot act in this model beside reference images, as "
            "nobody can tell then where in the picture its places are. Take out the reference images, or these nodes."
        )
    multiple = pad_multiple(call.network)
    lengths = [text.shape[1] for text in texts[: len(references)]]
    lengths += [multiple] * (len(references) - len(lengths))
    weighing.insert(0, sum(length + -length % multiple for length in lengths))
    hidden = weighing.of_hidden()
    left = len(call.network.context_refiner)

    def act(attention: Callable[..., Tensor], *inputs: Any, **choices: Any) -> Tensor:
        nonlocal left
        if _block_type(choices) == "double":
            return weighing.attend(attention, *inputs, **choices)
        if left:
            left -= 1
            return hidden.attend(attention, *inputs, **choices)
        return attention(*inputs, **choices)

    return around_attention(call.options, act, weighing)


def behind_text_fusion(weighing: ComfyWeighting, call: ModelCall) -> TransformerOptions:
    """Same as `in_joint_attention`, for Krea 2, whose first layers join the encoder's layers by row, then refine rows.

    Hidden rows are hidden from the refined ones, too.
    """
    options = in_joint_attention(weighing, call)
    hidden, fusion = weighing.of_hidden(), call.network.txtfusion
    read_rows = [False for _ in fusion.layerwise_blocks] + [True for _ in fusion.refiner_blocks]
    return around_attention(options, _acting_in(read_rows, hidden), weighing)


def in_wan_cross_attention(weighing: ComfyWeighting, call: ModelCall) -> TransformerOptions:
    """Options for weights in Wan's cross attention: after the self attention, which the host can patch.

    Refused if another pack replaces the cross attention.
    """
    check_are_original([block.cross_attn for block in call.network.blocks])
    # image-to-video reads an image first; without one, the host reads the text there as well, but not WanDancer's
    reads_twice = call.inputs.get("clip_fea") is None and not hasattr(call.network, "img_emb_refimage")
    first = [reads_twice] if call.network.model_type == "i2v" else []
    are_text: list[bool] = []

    def behind_self_attention(values: Mapping[str, Any]) -> Tensor:
        are_text[:] = [*first, True]
        return values["x"]

    patches = call.options.get("patches", {})
    patched = {**patches, "attn1_patch": [*patches.get("attn1_patch", ()), behind_self_attention]}
    return around_attention({**call.options, "patches": patched}, _acting_in(are_text, weighing), weighing)


def in_masked_cross_attention(weighing: ComfyWeighting, call: ModelCall) -> TransformerOptions:
    """Options for weights in the cross attention of LTX-Video and LTX-2: in those that get the mask of the text's rows.

    Each block is told that mask, or one that only marks them if it has none, in however many parts its self attention
    runs. The attention of LTX-2's audio reads the text, too. Refused if another pack replaces the cross attention.
    """
    blocks = call.network.transformer_blocks
    check_are_original([layer for block in blocks for name in TEXT_LAYERS if (layer := getattr(block, name, None))])
    mark = torch.zeros((), device=weighing.device)
    mask: Tensor | None = None

    def note(block: Mapping[str, Any]) -> Mapping[str, Any]:
        nonlocal mask
        block_mask = block["attention_mask"]
        mask = mark if block_mask is None else block_mask
        return {**block, "attention_mask": mask}

    def act(attention: Callable[..., Tensor], *inputs: Any, **choices: Any) -> Tensor:
        if mask is None or choices.get("mask") is not mask:
            return attention(*inputs, **choices)
        return weighing.attend(attention, *inputs, **{**choices, "mask": None if mask is mark else mask})

    options = _noting_blocks(weighing, call.options, len(blocks), note)
    return around_attention(options, act, weighing)


def check_are_original(layers: Sequence[Any]) -> None:
    """Refuse layers of text of which another pack replaces any; once it is taken out, the host restores it."""
    for layer in layers:
        forward = vars(layer).get("forward")
        if forward is not None and getattr(forward, "__func__", None) is not type(layer).forward:
            raise ValueError(
                "Attention Weights and Place Phrase cannot act in this model: another node, such as WanVideoNAG "
                "or LTX2_NAG, replaces its cross attention, so that nobody can tell which rows are words. Take out "
                "that node or ours."
            )


def in_joint_blocks(weighing: ComfyWeighting, call: ModelCall) -> TransformerOptions:
    """Options for weights in Stable Diffusion 3: in the first attention of each block.

    The text comes first there. Some blocks of 3.5 Medium have a second one, of the image alone. A function around each
    block distinguishes them; it is inside another pack's, which may skip blocks. Refused if layers refine the text
    alone, where weights cannot act, or if another pack changes its rows.
    """
    if call.network.context_processor is not None:
        raise ValueError(
            "Attention Weights and Place Phrase cannot act in this variant of Stable Diffusion 3, in which layers of "
            "their own refine the text. For this model, encode without them."
        )
    are_text: list[bool] = []

    def note(block: Mapping[str, Any]) -> Mapping[str, Any]:
        are_text[:] = [True]
        return block

    options = _noting_blocks(weighing, call.options, len(call.network.joint_blocks), note)
    return around_attention(options, _acting_in(are_text, weighing), weighing)


def _noting_blocks(
    weighing: ComfyWeighting,
    options: TransformerOptions,
    number: int,
    note: Callable[[Mapping[str, Any]], Mapping[str, Any]],
) -> TransformerOptions:
    """A copy of a model's options with a function that gets, and may change, the inputs of each of its blocks.

    It is inside another pack's around the block, which may skip it. Refused if another pack changes the text's rows.
    """
    num_rows = weighing.bias.shape[1]

    def around(earlier: Callable[..., Any] | None) -> Callable[..., Any]:
        def replacement(block: Mapping[str, Any], extra: Mapping[str, Any]) -> Any:
            def original(block: Mapping[str, Any]) -> Any:
                num_block_rows = next(block[name].shape[1] for name in TEXTS if name in block)
                if num_block_rows != num_rows:
                    raise ValueError(
                        f"Attention Weights and Place Phrase expect {num_rows} rows of text in each block, but another "
                        f"node has made them {num_block_rows}: which of them are words can no longer be told. Take out "
                        "that node or ours."
                    )
                return extra["original_block"](note(block))

            return original(block) if earlier is None else earlier(block, {**extra, "original_block": original})

        return replacement

    replaced = options.get("patches_replace", {})
    blocks = replaced.get("dit", {})
    names = [("double_block", index) for index in range(number)]
    wrapped_blocks = {name: around(blocks.get(name)) for name in names}
    return {**options, "patches_replace": {**replaced, "dit": {**blocks, **wrapped_blocks}}}


def before_three_texts(weighing: ComfyWeighting, call: ModelCall) -> TransformerOptions:
    """Options for weights in HiDream: in every attention, with the text last.

    After the image come T5's rows, the rows of Llama's last layer, and the rows of Llama's layer for this block.
    """
    weighing.read_again(call.inputs["encoder_hidden_states_llama3"].shape[2])  # [batch, layers, rows, dim]
    weighing.is_last = True
    return around_attention(call.options, weighing.attend, weighing)


def _block_type(choices: Mapping[str, Any]) -> Any:
    """Kind of block that an attention belongs to, as named by the host."""
    return choices.get("transformer_options", {}).get("block_type")
