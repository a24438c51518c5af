"""Text layers of ComfyUI's diffusion models, and how weights get into their attention; families.py says whose is whose.

For one call of a model its options get another function around the attention, which adds a bias to the logits of the
text's keys and multiplies their values. The text keys are known from the model, never guessed from a shape.

Source: behaviour of ComfyUI 0.29.0; docs/reference/attention.md, "Weights in the attention".
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ...weighting.view import counted
from .contract import host
from .fields import Places
from .queries import Call, Queries, of_layer
from .regions import Shared
from .titles import PLACE_PHRASE, REGIONAL_PROMPT, WATCH_WORDS, WEIGHTED_PROMPT
from .types import AttentionFunction, TransformerOptions
from .watching import Maps

MAX_BYTES = 2**30
"""Largest size of a bias by place in a layer."""
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
"""Message where another pack's node puts prompts beside ours in the attention."""


Weigh = Callable[["Weighing", Call], TransformerOptions]
"""From weights and a call of a model to a copy of its options with the weights applied."""


class Weighing:
    """Weights for one call of a model, and the layers in which they acted."""

    def __init__(self, bias: Tensor, factor: Tensor, device: torch.device | str = "cpu") -> None:
        """Store the effect on each text key, both ``[batch, keys]`` in float32.

        The bias is added to logits, ``-inf`` hides a key; the factor multiplies values. Both should be given on the
        CPU, so that reading them does not wait for a GPU; ``device`` is the model's.
        """
        self._has_bias = bool((bias != 0).any())
        self._has_factor = bool((factor != 1).any())
        self._enlarges = bool((factor.abs() > 1).any())
        self.bias = bias.to(device)
        self.factor = factor.to(device)
        self.places: Places | None = None
        """Fields of the text's keys, beside their bias."""
        self.shared: Shared | None = None
        """Prompts that the text's keys belong to, if they are several."""
        self.maps: Maps | None = None
        """Maps of words that are watched in this call."""
        self.queries = Queries(())
        """Layout of the queries of layers with fields or several prompts."""
        self.is_middle = False
        """Whether the layer is in the middle block of a U-Net."""
        self.is_text_alone = False
        """Whether all queries are the text's keys, or padding behind them."""
        self._by_place: dict[tuple[Any, ...], Tensor] = {}
        """Bias by place of layers with the same layout."""
        self.is_last = False
        """Whether the text's keys are the last ones of a layer instead of the first."""
        self.num_layers = 0
        """Number of attention layers in which it acted so far."""
        self.is_finite = torch.ones((), dtype=torch.bool, device=device)
        """Whether all values that it multiplied are still numbers; reading it waits for a GPU."""
        self.closing = ExitStack()
        """Closed after the call of the model."""

    @property
    def has_places(self) -> bool:
        """Whether it has to know which query is which place."""
        return not (self.places is self.shared is self.maps is None)

    def check_batch(self, query: Tensor) -> None:
        """Check that each query reads the prompt that its weights are for; another pack may put others beside it."""
        if query.shape[0] != self.bias.shape[0]:
            raise ValueError(COUPLED)

    def of_hidden(self) -> Weighing:
        """A copy in which only weights of 0 act, i.e. hidden keys; for queries without a place."""
        bias = (self.bias if self.places is None else self.bias + self.places.least).cpu()
        found = Weighing(bias.masked_fill(bias != -torch.inf, 0.0), torch.ones(bias.shape), self.bias.device)
        found.shared, found.is_text_alone = self.shared, True
        return found

    def read_again(self, num_rows: int) -> None:
        """Add the last rows once more, for layers that read them twice."""
        self.bias, self.factor = (torch.cat([rows, rows[..., -num_rows:]], -1) for rows in (self.bias, self.factor))
        for each in (self.places, self.shared, self.maps):
            if each is not None:
                each.read_again(num_rows)

    def insert(self, at: int, number: int) -> None:
        """Insert keys of no word that a model puts among those of the text; not beside fields or several prompts."""
        self.bias, self.factor = (
            torch.cat([rows[:, :at], torch.full_like(rows[:, :1], plain).expand(-1, number), rows[:, at:]], 1)
            for rows, plain in ((self.bias, 0.0), (self.factor, 1.0))
        )

    def cut(self, number: int) -> None:
        """Leave out the keys of text behind the first ones; not beside fields or several prompts."""
        self.bias, self.factor = self.bias[:, :number], self.factor[:, :number]

    def attend(
        self,
        attention: Callable[..., Tensor],
        query: Tensor,
        key: Tensor,
        value: Tensor,
        heads: int,
        mask: Tensor | None = None,
        *rest: Any,
        **options: Any,
    ) -> Tensor:
        """The host's attention with the weights applied; ``mask`` is another mask of keys, in the host's form.

        Query and key are ``[batch, positions, dim]`` or ``[batch, heads, positions, head_dim]``; the value is like the
        key, or ``[batch, keys, heads, head_dim]`` beside a key of three dimensions.
        """
        self.check_batch(query)
        self.num_layers += 1
        others = key.shape[-2] - self.bias.shape[1]
        around = (others, 0) if self.is_last else (0, others)
        bias: Tensor | None = None
        is_between = self._is_between
        if self.places is not None or self._is_masked(is_between):
            bias = self._bias_by_place(query, around, options, is_between)
        elif self._has_bias:
            bias = torch.nn.functional.pad(_held(self.bias[:, None, None], query.dtype), around)
        if bias is not None:
            mask = bias if mask is None else _with_mask(bias, mask)
        if self._has_factor:
            factor = torch.nn.functional.pad(self.factor, around, value=1.0)
            shape = (-1, 1, key.shape[2], 1) if key.dim() == 4 else (-1, key.shape[1], *[1] * (value.dim() - 2))
            value = value * factor.view(shape).to(value.dtype)
            value = self.checked(value)
        is_apart = self.shared is not None and not self._is_joint
        if self.shared is not None and is_apart:
            own = None if mask is None else _in_four_dimensions(mask)
            queries = self._queries_of(query, options)
            read = partial(self.shared.attend, queries, attention, query, key)
        else:
            own, read = mask, partial(attention, query, key)
        result = read(value, heads, own, *rest, **options)
        if self.maps is not None and not self.is_text_alone:
            queries = self._queries_of(query, options)
            picked = None if is_apart else self.maps.picked(own)

            def of_images(values: Tensor) -> Tensor:
                if picked is None:
                    return read(values, heads, own, *rest, **options)
                masks = own if own is None or len(own) == 1 else own[picked]
                return attention(query[picked], key[picked], values, heads, masks, *rest, **options)

            is_by_row = value.dim() == 4 and key.dim() == 3
            dim = query.shape[-1] // (heads if query.dim() == 3 else 1)
            of_layer = {"is_by_row": is_by_row, "is_middle": self.is_middle}
            self.maps.add(self.num_layers, queries, around, of_images, value, dim, picked, **of_layer)
        return result

    def checked(self, values: Tensor) -> Tensor:
        """Values that were multiplied, noted if any is no number; some models make 0 of it, which no picture shows."""
        if self._enlarges:
            self.is_finite = self.is_finite & values.isfinite().all()
        return values

    @property
    def _is_joint(self) -> bool:
        """Whether text is among the queries."""
        return self.is_text_alone or bool(self.queries.text)

    @property
    def _is_between(self) -> bool:
        """Whether this is one of every second block, in which prompts that blend have no mask."""
        is_second = self._is_joint and not self.is_text_alone and self.num_layers % 2 == 0
        return is_second and self.shared is not None and self.shared.any_blends

    def _is_masked(self, is_between: bool) -> bool:
        """Whether prompts have masks in a layer, being rows of one softmax."""
        return self.shared is not None and self._is_joint and not (is_between and self.shared.all_blend)

    def _queries_of(self, query: Tensor, options: Mapping[str, Any]) -> Queries:
        """Layout of the queries of a layer, checked against them."""
        if self.is_text_alone:
            return Queries((0, 0), before=query.shape[-2], text=range(self.bias.shape[1]))
        return self.queries.check(query.shape[-2], _num_references(options))

    def _bias_by_place(
        self, query: Tensor, around: tuple[int, int], options: Mapping[str, Any], is_between: bool
    ) -> Tensor:
        """Bias of all keys at each query, ``[batch, 1, queries, keys]``, with others ``around`` those of the text."""
        num_queries = query.shape[-2]
        queries = self._queries_of(query, options)
        key = queries, around, query.dtype, is_between
        if key not in self._by_place:
            batch, num_text = self.bias.shape
            shape = batch, 1, num_queries, num_text + sum(around)
            size = math.prod(shape) * query.element_size()
            if size > MAX_BYTES:
                raise ValueError(
                    f"{PLACE_PHRASE} and {REGIONAL_PROMPT} would take {size / 2**30:.1f} GiB in this model at this "
                    f"size, for the weights of {shape[3]:,} rows at {num_queries:,} places in "
                    f"{counted(batch, 'prompt')}; they take 1 GiB at most. Take a smaller picture, or Conditioning "
                    "(Set Mask)."
                )
            found = query.new_zeros(shape)
            text = found[..., around[0] : around[0] + num_text]
            if self.places is None:
                text[:] = _held(self.bias[:, None, None], query.dtype)
            else:
                for index, by_place in enumerate(self.places.biases(queries)):
                    text[index, 0] = _held(by_place.add_(self.bias[index]), query.dtype)
            if self.shared is not None and self._is_masked(is_between):
                by_prompt = self.shared.bias(queries, _num_references(options), is_between=is_between)
                text += by_prompt[:, None].to(query.dtype)
            self._by_place[key] = found
        return self._by_place[key]


def _num_references(options: Mapping[str, Any]) -> int:
    """Number of queries of reference images, which come last, from an attention's options."""
    return sum(options.get("transformer_options", {}).get("reference_image_num_tokens", ()))


def _held(bias: Tensor, dtype: torch.dtype) -> Tensor:
    """A bias in a number type, within what cannot make a row of only -inf, or one with inf, whose softmax is NaN."""
    limit = torch.finfo(dtype).max / 2
    return bias.clamp(-limit, limit).to(dtype)


def _in_four_dimensions(mask: Tensor) -> Tensor:
    """The host's mask as ``[batch, heads, queries, keys]``, each but the last possibly 1."""
    while mask.dim() < 4:
        mask = mask.unsqueeze(0 if mask.dim() == 2 else 1)
    return mask


def _with_mask(bias: Tensor, mask: Tensor) -> Tensor:
    """Combine bias and the host's own mask, which is boolean (may be attended) or additive."""
    mask = _in_four_dimensions(mask)
    if mask.dtype == torch.bool:
        return bias.masked_fill(~mask, torch.finfo(bias.dtype).min / 2)
    return bias + mask.to(bias.dtype)


def around_attention(options: TransformerOptions, act: Callable[..., Tensor], weighing: Weighing) -> TransformerOptions:
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
            if function.__name__ in WITHOUT_BIAS and (len(inputs) > 4 and inputs[4] is not None):
                return host("comfy.ldm.modules.attention").attention_pytorch(*inputs, **choices)
            return function(*inputs, **choices)

        return act(attention, *inputs, **choices)

    return {**options, OVERRIDE: override}


def _acting_in(pending: list[bool], weighing: Weighing) -> Callable[..., Tensor]:
    """For `around_attention`: ``pending`` says for each next attention whether weights act in it, and is consumed."""

    def act(attention: Callable[..., Tensor], *inputs: Any, **choices: Any) -> Tensor:
        if pending and pending.pop(0):
            return weighing.attend(attention, *inputs, **choices)
        return attention(*inputs, **choices)

    return act


def in_cross_attention(weighing: Weighing, call: Call) -> TransformerOptions:
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


def in_joint_attention(weighing: Weighing, call: Call) -> TransformerOptions:
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


def behind_refiners(weighing: Weighing, call: Call) -> TransformerOptions:
    """Same as `in_joint_attention`, for models whose first layers refine the text alone, then the image alone.

    Hidden rows are hidden from the refined text, too. Reference images bring texts of their own, which precede ours.
    Refused beside them if words have places.
    """
    references, texts = (call.inputs.get(name) or () for name in ("ref_latents", "ref_contexts"))
    if references and weighing.has_places:
        raise ValueError(
            f"{PLACE_PHRASE}, {REGIONAL_PROMPT} and {WATCH_WORDS} cannot act in this model beside reference images, as "
            "nobody can tell then where in the picture its places are. Take out the reference images, or these nodes."
        )
    multiple = getattr(call.network, "pad_tokens_multiple", None) or 1
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


def behind_text_fusion(weighing: Weighing, call: Call) -> TransformerOptions:
    """Same as `in_joint_attention`, for Krea 2, whose first layers join the encoder's layers by row, then refine rows.

    Hidden rows are hidden from the refined ones, too.
    """
    options = in_joint_attention(weighing, call)
    hidden, fusion = weighing.of_hidden(), call.network.txtfusion
    read_rows = [False for _ in fusion.layerwise_blocks] + [True for _ in fusion.refiner_blocks]
    return around_attention(options, _acting_in(read_rows, hidden), weighing)


def in_wan_cross_attention(weighing: Weighing, call: Call) -> TransformerOptions:
    """Options for weights in Wan's cross attention: after the self attention, which the host can patch.

    Refused if another pack replaces the cross attention.
    """
    _check_are_original([block.cross_attn for block in call.network.blocks])
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


def in_masked_cross_attention(weighing: Weighing, call: Call) -> TransformerOptions:
    """Options for weights in the cross attention of LTX-Video and LTX-2: in those that get the mask of the text's rows.

    Each block is told that mask, or one that only marks them if it has none, in however many parts its self attention
    runs. The attention of LTX-2's audio reads the text, too. Refused if another pack replaces the cross attention.
    """
    blocks = call.network.transformer_blocks
    _check_are_original([layer for block in blocks for name in TEXT_LAYERS if (layer := getattr(block, name, None))])
    mark = torch.zeros((), device=weighing.bias.device)
    mask: Tensor | None = None

    def note(block: Mapping[str, Any]) -> Mapping[str, Any]:
        nonlocal mask
        given = block["attention_mask"]
        mask = mark if given is None else given
        return {**block, "attention_mask": mask}

    def act(attention: Callable[..., Tensor], *inputs: Any, **choices: Any) -> Tensor:
        if mask is None or choices.get("mask") is not mask:
            return attention(*inputs, **choices)
        return weighing.attend(attention, *inputs, **{**choices, "mask": None if mask is mark else mask})

    options = _noting_blocks(weighing, call.options, len(blocks), note)
    return around_attention(options, act, weighing)


def _check_are_original(layers: Sequence[Any]) -> None:
    """Refuse layers of text of which another pack replaces any; once it is taken out, the host restores it."""
    for layer in layers:
        forward = vars(layer).get("forward")
        if forward is not None and getattr(forward, "__func__", None) is not type(layer).forward:
            raise ValueError(
                "Attention Weights and Place Phrase cannot act in this model: another node, such as WanVideoNAG "
                "or LTX2_NAG, replaces its cross attention, so that nobody can tell which rows are words. Take out "
                "that node or ours."
            )


def in_joint_blocks(weighing: Weighing, call: Call) -> TransformerOptions:
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
    weighing: Weighing,
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
                found = next(block[name].shape[1] for name in TEXTS if name in block)
                if found != num_rows:
                    raise ValueError(
                        f"Attention Weights and Place Phrase expect {num_rows} rows of text in each block, but another "
                        f"node has made them {found}: which of them are words can no longer be told. Take out that "
                        "node or ours."
                    )
                return extra["original_block"](note(block))

            return original(block) if earlier is None else earlier(block, {**extra, "original_block": original})

        return replacement

    replaced = options.get("patches_replace", {})
    blocks = replaced.get("dit", {})
    names = [("double_block", index) for index in range(number)]
    ours = {name: around(blocks.get(name)) for name in names}
    return {**options, "patches_replace": {**replaced, "dit": {**blocks, **ours}}}


def before_three_texts(weighing: Weighing, call: Call) -> TransformerOptions:
    """Options for weights in HiDream: in every attention, with the text last.

    The image is followed by the rows of T5, those of Llama's last layer, and those of Llama's layer for this block.
    """
    weighing.read_again(call.inputs["encoder_hidden_states_llama3"].shape[2])  # [batch, layers, rows, dim]
    weighing.is_last = True
    return around_attention(call.options, weighing.attend, weighing)


def _block_type(choices: Mapping[str, Any]) -> Any:
    """Kind of block that an attention belongs to, as named by the host."""
    return choices.get("transformer_options", {}).get("block_type")
