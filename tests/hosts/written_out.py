"""Attention that reads text written out in float64, with weights for the rows of known encodings.

For scripts that test_comfyui_inprocess.py runs in ComfyUI's own Python; see inprocess.py.
"""

# pyright: reportMissingImports=false

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple
from unittest.mock import patch

import torch
from toys import Weights

FUNCTIONS = {
    "comfy.ldm.aura.mmdit": "optimized_attention",
    "comfy.ldm.boogu.model": "optimized_attention_masked",
    "comfy.ldm.cogvideo.model": "optimized_attention",
    "comfy.ldm.cosmos.blocks": "optimized_attention",
    "comfy.ldm.ernie.model": "optimized_attention",
    "comfy.ldm.flux.math": "optimized_attention",
    "comfy.ldm.genmo.joint_model.asymm_models_joint": "optimized_attention",
    "comfy.ldm.hidream.model": "optimized_attention",
    "comfy.ldm.hidream_o1.attention": "optimized_attention",
    "comfy.ldm.hunyuan_video.model": "optimized_attention",
    "comfy.ldm.ideogram4.model": "optimized_attention_masked",
    "comfy.ldm.joyimage.model": "optimized_attention",
    "comfy.ldm.kandinsky5.model": "optimized_attention",
    "comfy.ldm.lens.model": "optimized_attention",
    "comfy.ldm.lumina.model": "optimized_attention_masked",
    "comfy.ldm.modules.diffusionmodules.mmdit": "optimized_attention",
    "comfy.ldm.omnigen.omnigen2": "optimized_attention_masked",
    "comfy.ldm.pixart.blocks": "optimized_attention",
    "comfy.ldm.pixeldit.model": "optimized_attention",
    "comfy.ldm.qwen_image.model": "optimized_attention_masked",
}
"""Functions of the host by which text and image read each other."""


BLOCKS = (
    *("layers", "double_layers", "single_layers", "double_blocks", "single_blocks", "transformer_blocks"),
    *("single_stream_layers", "patch_blocks"),
)
"""The host's names for the blocks in which text and image read each other."""
BY_CELL = ("comfy.ldm.ideogram4.model", "comfy.ldm.lens.model")
"""Modules of networks that take each cell of the latent for a place."""
IMAGE_IDS = range(151652, 151657)
"""Ids of Qwen's tokenizer that stand for an image."""
TEXT_LAST = ("comfy.ldm.ernie.model", "comfy.ldm.joyimage.model", "comfy.ldm.lens.model")
"""Modules of networks in which the image comes first."""


class ByPlace(NamedTuple):
    """A weight that depends on the place in the picture."""

    at: Callable[..., torch.Tensor]
    """From the sizes of a latent, or of an area of it, to the weights: ``[1 or pictures, (frames,) height, width]``."""
    least: float
    """Weight for queries without a place."""


def least_of(fields: Sequence[ByPlace], size: Sequence[int], index: int) -> float:
    """Weight of a row for queries without a place: the least product of its fields in a picture."""
    if len(fields) == 1:
        return fields[0].least
    weights = [field.at(*size).double() for field in fields]
    product = math.prod(weight[index % len(weight)] for weight in weights)
    return float(product.min())


def cells_of(weight: torch.Tensor, patch: int) -> torch.Tensor:
    """Mean weights in square patches of a picture, as much of each as is in it: ``[pictures, (frames *) cells]``."""
    height, width = weight.shape[-2:]
    cells = [
        weight[..., y : y + patch, x : x + patch].mean((-1, -2))
        for y in range(0, height, patch)
        for x in range(0, width, patch)
    ]
    return torch.stack(cells, -1).flatten(1)


def read_out(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    how: str,
    weights: torch.Tensor,
    by_place: torch.Tensor | None = None,
) -> torch.Tensor:
    """Attention written out, in float64.

    Args:
        q: ``[batch, heads, queries, dim]``.
        k: The same with keys.
        v: As ``k``.
        how: As in our node.
        weights: ``[batch, rows]``, of the first keys; the others weigh 1.
        by_place: Factors of shares, ``[batch, queries, keys]``.

    Returns:
        ``[batch, queries, heads * dim]``.
    """
    ones = torch.ones(len(weights), k.shape[2] - weights.shape[1], dtype=torch.float64)
    weights = torch.cat([weights, ones], 1)[:, None]  # [batch, 1, keys]
    logits = q.double() @ k.double().transpose(-1, -2) / q.shape[-1] ** 0.5
    shares = torch.exp(logits - logits.amax(-1, keepdim=True))
    times, factor = {
        "bias": (weights.abs(), weights.sign().masked_fill(weights == 0, 1)),
        "value": (torch.ones_like(weights), weights),
        "krea2": (torch.exp(2 * (weights - 1).clamp(min=0)), weights.clamp(max=1)),
    }[how]
    shares = shares * times[:, None]
    if by_place is not None:
        shares = shares * by_place[:, None]
    shares = shares / shares.sum(-1, keepdim=True)
    return (shares @ (v.double() * factor[..., None])).transpose(1, 2).flatten(2).float()


def split(tensor: torch.Tensor, heads: int) -> torch.Tensor:
    """``[batch, rows, heads * dim]``, or with heads and dim apart, to ``[batch, heads, rows, dim]``."""
    return tensor.reshape(*tensor.shape[:2], heads, -1).transpose(1, 2)


@contextmanager
def written_out(
    model: Any,
    how: str,
    *texts: tuple[Any, Weights],
    skipped: tuple[int, ...] = (),
    placed: tuple[tuple[Any, dict[int, list[ByPlace]]], ...] = (),
) -> Iterator[None]:
    """Let a MODEL read text by the attention written out here.

    Args:
        model: The MODEL; all its clones read so too.
        how: As in our node.
        texts: Stock conditionings and the weights of their rows; all other text has none.
        skipped: Blocks of Stable Diffusion 3 that do not run.
        placed: Stock conditionings and the weights by place of their rows.
    """
    network = model.model.diffusion_model
    with ExitStack() as replaced:
        if hasattr(network, "input_blocks"):
            replaced.enter_context(_read_by_unet(model, how, texts, placed))
        else:
            replaced.enter_context(blocks_by(network, WrittenOut(network, how, texts, skipped, placed)))
        yield


@contextmanager
def blocks_by(network: Any, written: Any) -> Iterator[None]:
    """Let a network of transformer blocks read by a `WrittenOut`, or another object with its methods."""
    with ExitStack() as replaced:
        replaced.enter_context(patch.object(network, "forward", written.forward))
        if hasattr(network, "video_embeddings_connector"):
            replaced.enter_context(patch.object(network, "preprocess_text_embeds", written.connect))
        for module, function in FUNCTIONS.items():
            if module in sys.modules:
                replaced.enter_context(patch.object(sys.modules[module], function, written.attend))
        for module, name, by_hand in (
            ("comfy.ldm.wan.model", "WanT2VCrossAttention", written.wan),
            ("comfy.ldm.wan.model", "WanI2VCrossAttention", written.wan),
            ("comfy.ldm.cosmos.predict2", "Attention", written.anima),
            ("comfy.ldm.krea2.model", "Attention", written.krea2),
            ("comfy.ldm.lightricks.model", "CrossAttention", written.ltx),
        ):
            if module in sys.modules:
                kind = getattr(sys.modules[module], name)
                replaced.enter_context(patch.object(kind, "forward", _as_method(by_hand, kind.forward)))
        yield


def _as_method(by_hand: Callable[..., Any], theirs: Callable[..., Any]) -> Callable[..., Any]:
    def forward(module: Any, *inputs: Any, **named: Any) -> torch.Tensor:
        return by_hand(module, theirs, *inputs, **named)

    return forward


@contextmanager
def cross_attention_by(model: Any, forward_of: Callable[[Any], Any], latent: list[tuple[int, int]]) -> Iterator[None]:
    """Give each cross attention of a U-Net another forward, and note the size of the latent that is drawn."""
    network = model.model.diffusion_model

    def note_size(_: Any, inputs: Any) -> None:
        latent[:] = [tuple(inputs[0].shape[-2:])]

    with ExitStack() as undone:
        undone.callback(network.register_forward_pre_hook(note_size).remove)
        for name, module in network.named_modules():
            if name.endswith("attn2"):
                undone.enter_context(patch.object(module, "forward", forward_of(module)))
        yield


def is_repeated(context: torch.Tensor, rows: torch.Tensor) -> bool:
    """Whether a context is the same rows once or several times, as the host repeats text to the length of another."""
    times = len(context) // len(rows)
    return len(context) == times * len(rows) and torch.equal(context, rows.repeat(times, 1))


def cells_of_layer(weight: torch.Tensor, num_queries: int) -> torch.Tensor:
    """Mean weights in the cells of a U-Net's layer, of 1, 2, 4, ... places a side: ``[pictures, queries]``."""
    height, width = weight.shape[-2:]
    side = 1
    while -(-height // side) * -(-width // side) > num_queries:
        side *= 2
    cells = cells_of(weight, side)
    assert cells.shape[1] == num_queries, (height, width, num_queries)
    return cells


def _read_by_unet(model: Any, how: str, texts: tuple[Any, ...], placed: tuple[Any, ...]) -> Any:
    """Let the layers of Stable Diffusion 1, 2 or XL read text so."""
    latent: list[tuple[int, int]] = []

    def weights_of(context: torch.Tensor) -> torch.Tensor:
        weights = torch.ones(context.shape[0], dtype=torch.float64)
        for conditioning, by_row in texts:
            rows = conditioning[0][0][0]
            if is_repeated(context, rows):
                for row, weight in by_row.items():
                    weights[row :: rows.shape[0]] = weight
        return weights

    def by_place(context: torch.Tensor, picture_index: int, num_queries: int) -> torch.Tensor:
        weights = torch.ones(num_queries, len(context), dtype=torch.float64)
        for conditioning, by_row in placed:
            rows = conditioning[0][0][0]
            for row, fields in by_row.items() if is_repeated(context, rows) else ():
                for field in fields:
                    cells = cells_of_layer(field.at(*latent[0]), num_queries)
                    weights[:, row :: len(rows)] *= cells[picture_index % len(cells)][:, None]
        return weights

    def forward_of(module: Any) -> Callable[..., torch.Tensor]:
        def forward(x: torch.Tensor, context: torch.Tensor, **_: Any) -> torch.Tensor:
            weights = torch.stack([weights_of(one) for one in context])
            places = torch.stack([by_place(one, number, x.shape[1]) for number, one in enumerate(context)])
            q, k, v = (
                split(part(tensor).double(), module.heads)
                for part, tensor in ((module.to_q, x), (module.to_k, context), (module.to_v, context))
            )
            return module.to_out(read_out(q, k, v, how, weights, places).to(x.dtype))

        return forward

    return cross_attention_by(model, forward_of, latent)


class WrittenOut:
    """The attention of a network of transformer blocks; which one it is, is known by its place in the network.

    A model with refiners asks for text alone first, then for the image alone, then for both; of weights only 0 counts
    in the text alone.
    """

    def __init__(
        self,
        network: Any,
        how: str,
        texts: tuple[tuple[Any, Weights], ...],
        skipped: tuple[int, ...],
        placed: tuple[tuple[Any, dict[int, list[ByPlace]]], ...],
    ) -> None:
        self.how, self.network = how, network
        # Flux 2's and LTX-Video's is 1, in pixels 4
        size = getattr(network, "patch_size", 2)
        is_by_cell = hasattr(network, "patchifier") or type(network).__module__ in BY_CELL
        self.patch = 1 if is_by_cell else size if size in (1, 4) else 2
        self.pads_to = 32 if getattr(network, "pad_tokens_multiple", None) else 1
        self.places_known = [(rows_read(network, conditioning), by_row) for conditioning, by_row in placed]
        self.places: list[dict[int, list[ByPlace]]] = []
        self.size: tuple[int, ...] = ()
        self.num_text = 0
        self.mask: Any = None
        """1 for rows of LTX-Video that are read, else 0."""
        self.before = 0
        """Queries of Wan's reference image, in front of the picture's."""
        kept = getattr(network, "ref_conv", None) is not None
        self.has_references_in_front = kept or hasattr(network, "patch_embedding_pose")
        """Whether Wan has them there; HuMo and S2V have them behind."""
        self.in_front = 0
        """Rows of Hunyuan Video in front of the text: of an image, and of texts in quotation marks."""
        self.num_references = 0
        """Queries of other models' reference images, the last ones."""
        self.theirs = network.forward
        self.connect_by_theirs: Any = getattr(network, "preprocess_text_embeds", None)
        self.unconnected: list[tuple[torch.Tensor, Weights]] = []
        """Rows of LTX-2 before its connectors, of texts that are known."""
        self.connected: set[int] = set()
        """Layers of the connectors."""
        self.of_text: set[int] = set()
        """Layers of Wan, LTX-Video and LTX-2 that read the text."""
        self.hidden: Any = None
        """The weights of rows in the connectors, where only 0 counts."""
        for name, module in network.named_modules():
            if "_embeddings_connector" in name and name.endswith("attn1"):
                self.connected.add(id(module))
            elif name.endswith(("attn2", ".cross_attn")):
                self.of_text.add(id(module))
        if self.connected:
            self.unconnected = [(conditioning[0][0][0], by_row) for conditioning, by_row in texts]
        self.known = [(rows_read(network, conditioning), by_row) for conditioning, by_row in texts]
        self.weights = torch.ones(1, 1)
        self.parts: list[str] = []
        self.order = [f"{part} alone" for part in ("text", "image") for _ in getattr(network, "context_refiner", ())]
        self.order += ["both", "image alone"] * len(getattr(network, "double_stream_layers", ()))  # Boogu's
        is_text_last = type(network).__module__ in TEXT_LAST
        model = getattr(network, "language_model", network)  # HiDream-O1's, which is all of it
        for blocks in BLOCKS:
            self.order += ["image first" if is_text_last else "both"] * len(getattr(model, blocks, ()))
        for index, block in enumerate(getattr(network, "joint_blocks", ())):
            if index not in skipped:
                self.order += ["both", "image alone"] if block.x_block.x_block_self_attn else ["both"]
        if hasattr(network, "num_single_layers"):  # HiDream
            self.order = ["image first"] * (network.num_layers + network.num_single_layers)
        if type(network).__module__ in ("comfy.ldm.cosmos.model", "comfy.ldm.pixart.pixartms"):
            self.order = ["image alone", "text only"] * len(network.blocks)
        elif type(network).__module__ == "comfy.ldm.cogvideo.model":
            self.order = ["both"] * len(network.blocks)
        elif type(network).__module__ == "comfy.ldm.genmo.joint_model.asymm_models_joint":  # Mochi
            self.order = ["image first"] * len(network.blocks)
        elif type(network).__module__ == "comfy.ldm.kandinsky5.model":
            self.order = ["text alone"] * len(network.text_transformer_blocks)
            self.order += ["image alone", "text only"] * len(network.visual_transformer_blocks)
        elif type(network).__module__ == "comfy.ldm.hunyuan_video.model":
            self.order = ["text alone"] * len(network.txt_in.individual_token_refiner.blocks) + self.order
        self.joint = {id(block.attn) for block in getattr(network, "blocks", ()) if hasattr(block, "attn")}
        fusion = getattr(network, "txtfusion", None)
        self.refined = {id(block.attn) for block in getattr(fusion, "refiner_blocks", ())}

    def forward(self, x: torch.Tensor, timestep: torch.Tensor, context: torch.Tensor, **named: Any) -> torch.Tensor:
        """The network's own, after noting which rows weigh what."""
        self.parts[:] = self.order
        self.hidden = None
        if named.get("ref_latents") and (refiner := getattr(self.network, "ref_image_refiner", None)) is not None:
            self.parts[len(self.network.context_refiner) : 0] = ["image alone"] * len(refiner)
        llama = named.get("encoder_hidden_states_llama3")
        num_rows = context.shape[1] + (0 if llama is None else llama.shape[2])
        self.weights = torch.ones(len(context), num_rows, dtype=torch.float64)
        picture = x[0] if isinstance(x, list) else x  # beside its sound
        self.size, self.num_text = tuple(picture.shape[2:]), num_rows + (0 if llama is None else llama.shape[2])
        if (keyframes := named.get("keyframe_idxs")) is not None:  # the last frames are guides
            guides = keyframes.shape[2] // math.prod(picture.shape[3:])
            self.size = (self.size[0] - guides, *self.size[1:])
        self.mask = named.get("attention_mask") if hasattr(self.network, "patchifier") else None
        reference = named.get("reference_latent")
        self.before = 0
        if reference is not None and self.has_references_in_front:
            self.before = math.prod(reference.shape[2:-2]) * (reference.shape[-2] // 2) * (reference.shape[-1] // 2)
        self.num_references = sum(
            math.prod(one.shape[2:-2]) * math.prod(-(-side // self.patch) for side in one.shape[-2:])
            for one in named.get("ref_latents") or ()
        )
        self.places = [{} for _ in context]
        for index, one in enumerate(context):
            for rows, by_row in self.places_known:
                start = len(one) - len(rows)
                if start >= 0 and torch.equal(one[start:], rows):
                    found = {start + row: fields for row, fields in by_row.items()}
                    if llama is not None:  # its rows are read twice
                        twice = llama.shape[2]
                        found |= {row + twice: own for row, own in found.items() if row >= context.shape[1]}
                    self.places[index] |= found
            for rows, by_row in self.known:
                start = len(one) - len(rows)  # Flux 2 has rows of zeros in front
                if start >= 0 and torch.equal(one[start:], rows):
                    assert not one[:start].any()
                    for row, weight in by_row.items():
                        self.weights[index, start + row] = weight
        if llama is not None:
            self.weights = torch.cat([self.weights, self.weights[:, context.shape[1] :]], 1)
        self.weights = self.weights[:, : named.get("num_tokens")]  # Mochi's, without padding
        self.in_front = 0
        for one in (named.get("clip_fea"), named.get("txt_byt5")):  # behind the text in Hunyuan Image 2.1
            if one is not None and getattr(self.network, "cond_type_embedding", None) is not None:
                self.in_front += one.shape[1]
        if hasattr(self.network, "cap_embedder") and named.get("ref_latents"):  # texts of images come first
            texts = named.get("ref_contexts", ())[: len(named["ref_latents"])]
            lengths = [one.shape[1] for one in texts] + [32] * (len(named["ref_latents"]) - len(texts))
            before = torch.ones(
                len(context), sum(math.ceil(length / self.pads_to) * self.pads_to for length in lengths)
            )
            self.weights = torch.cat([before, self.weights], 1)
        self.weights = self.among_others(self.weights, named.get("input_ids"))
        return self.theirs(x, timestep, context=context, **named)

    def among_others(self, weights: torch.Tensor, ids: Any) -> torch.Tensor:
        """Weights of AuraFlow's text behind its registers, and of HiDream-O1's tokens that are not of an image."""
        if hasattr(self.network, "register_tokens"):
            return torch.cat([torch.ones(len(weights), self.network.register_tokens.shape[1]), weights], 1)
        if ids is None:
            return weights
        is_text = (ids < IMAGE_IDS.start) | (ids >= IMAGE_IDS.stop)  # [batch, tokens]
        return torch.ones(ids.shape, dtype=weights.dtype).masked_scatter_(is_text, weights)

    def attend(
        self,
        q: Any,
        k: Any,
        v: Any,
        heads: int,
        mask: Any = None,
        skip_reshape: bool = False,
        skip_output_reshape: bool = False,
        **_: Any,
    ) -> Any:
        """Attention of text and image with each other."""
        assert self.parts, f"{type(self.network).__name__} has more attentions than `BLOCKS` and `order` tell"
        assert mask is None or not mask.any()  # Lens's, which hides nothing
        if not skip_reshape:
            q, k, v = (split(one, heads) for one in (q, k, v))
        k, v = (one.repeat_interleave(q.shape[1] // one.shape[1], 1) for one in (k, v))
        read = self.read_part(q, k, v, self.parts.pop(0))
        return split(read, heads) if skip_output_reshape else read

    def read_part(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, part: str) -> torch.Tensor:
        """Attention in one of the parts of the network."""
        if part == "text alone":
            return read_out(q, k, v, "bias", self.of_zeros())
        own = torch.ones(len(q), 0) if part == "image alone" else self.weights
        num_others = k.shape[2] - own.shape[1]
        if part == "text only":
            assert num_others == 0
            return read_out(q, k, v, self.how, own, self.by_place(q, k, 0, 0))
        assert num_others >= 35, "the image, or an area of it, is missing"
        by_place = None
        if part == "image first":
            own = torch.cat([torch.ones(len(own), num_others), own], 1)
            by_place = self.by_place(q, k, 0, num_others)
        elif part == "both":
            own = torch.cat([torch.ones(len(own), self.in_front), own], 1)
            before = self.num_references if hasattr(self.network, "ref_image_refiner") else 0
            by_place = self.by_place(q, k, -(-self.num_text // self.pads_to) * self.pads_to + before, 0)
        return read_out(q, k, v, self.how, own, by_place)

    def by_place(self, q: torch.Tensor, k: torch.Tensor, first: int, first_key: int) -> torch.Tensor | None:
        """Factors of shares by place; the picture's queries begin at ``first``, keys of text at ``first_key``."""
        if not any(self.places):
            return None
        factors = torch.ones(len(q), q.shape[2], k.shape[2], dtype=torch.float64)
        for index, by_row in enumerate(self.places):
            for row, fields in by_row.items():
                by_field = [cells_of(field.at(*self.size).double(), self.patch) for field in fields]
                cells = math.prod(one[index % len(one)] for one in by_field)
                own = torch.full((q.shape[2],), least_of(fields, self.size, index), dtype=torch.float64)
                own[first : first + len(cells)] = cells
                factors[index, :, first_key + row] *= own
        return factors

    def of_zeros(self) -> torch.Tensor:
        """The weights where only 0 counts."""
        is_zero = (self.weights == 0) & (self.how == "bias")
        zeros = torch.where(is_zero, 0.0, 1.0).double()
        for index, by_row in enumerate(self.places):
            for row, fields in by_row.items():
                if row < zeros.shape[1] and any(field.least == 0 for field in fields):
                    zeros[index, row] = 0
        return zeros

    def wan(
        self, module: Any, theirs: Any, x: Any, context: Any, transformer_options: Any = None, **named: Any
    ) -> torch.Tensor:
        """Cross attention of Wan, to text and to an image that CLIP saw; not one to sound."""
        if id(module) not in self.of_text:
            return theirs(module, x, context, **named)
        heads, length = module.num_heads, named.get("context_img_len")
        has_eyes = hasattr(module, "k_img")
        text = context[:, length:] if has_eyes else context
        q = split(module.norm_q(module.q(x)), heads)
        k, v = module.norm_k(module.k(text)), module.v(text)
        k = split(k, heads)
        read = read_out(q, k, split(v, heads), self.how, self.weights, self.by_place(q, k, self.before, 0))
        if has_eyes:
            image = context[:, :length]
            k, v = module.norm_k_img(module.k_img(image)), module.v_img(image)
            is_text = length is None
            own = self.weights if is_text else torch.ones(len(context), 0, dtype=torch.float64)
            k = split(k, heads)
            by_place = self.by_place(q, k, self.before, 0) if is_text else None
            read = read + read_out(q, k, split(v, heads), self.how, own, by_place)
        return module.o(read)

    def connect(self, context: torch.Tensor, unprocessed: bool = False) -> torch.Tensor:
        """Rows as the connectors of LTX-2 make them, where no row reads those of weight 0."""
        self.hidden = None
        for rows, by_row in self.unconnected:
            if unprocessed and torch.equal(context[0].float(), rows.to(context.dtype).float()):
                hidden = [row for row, weight in by_row.items() if weight == 0 and self.how == "bias"]
                self.hidden = torch.ones(1, context.shape[1], dtype=torch.float64)
                self.hidden[:, hidden] = 0
                made = self.connect_by_theirs(context, unprocessed)
                self.known.append((made[0], by_row))
                return made
        return self.connect_by_theirs(context, unprocessed)

    def ltx(
        self,
        module: Any,
        theirs: Any,
        x: Any,
        context: Any = None,
        mask: Any = None,
        pe: Any = None,
        **named: Any,
    ) -> torch.Tensor:
        """Cross attention of LTX-Video, whose mask hides padding, and of LTX-2; self attention of its connectors."""
        from comfy.ldm.lightricks.model import apply_rotary_emb

        is_connector = id(module) in self.connected and self.hidden is not None
        if not is_connector and id(module) not in self.of_text:
            return theirs(module, x, context, mask, pe, **named)
        text = x if context is None else context
        q, k = module.q_norm(module.to_q(x)), module.k_norm(module.to_k(text))
        if is_connector:
            q, k = apply_rotary_emb(q, pe), apply_rotary_emb(k, pe)
        q, k, v = (split(one, module.heads) for one in (q, k, module.to_v(text)))
        if is_connector:
            read = read_out(q, k, v, "bias", self.hidden)
        elif self.mask is None:
            read = read_out(q, k, v, self.how, self.weights)
        else:
            assert bool((self.mask == 0).any()) and torch.equal(mask[:, 0, 0] == 0, self.mask == 1)
            read = self.read_masked(q, k, v)
        if module.to_gate_logits is not None:
            gates = 2 * torch.sigmoid(module.to_gate_logits(x))
            read = (read.unflatten(2, (module.heads, -1)) * gates[..., None]).flatten(2)
        return module.to_out(read)

    def read_masked(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """Attention to the rows that the mask leaves."""
        by_place = self.by_place(q, k, 0, 0)
        factors = self.mask.double()[:, None].expand(-1, q.shape[2], -1)
        return read_out(q, k, v, self.how, self.weights, factors if by_place is None else factors * by_place)

    def anima(self, module: Any, theirs: Any, x: Any, context: Any = None, **named: Any) -> torch.Tensor:
        """Cross attention of Anima."""
        if module.is_selfattn:
            return theirs(module, x, context, **named)
        q, k, v = (
            split(part(tensor), module.n_heads)
            for part, tensor in ((module.q_proj, x), (module.k_proj, context), (module.v_proj, context))
        )
        q, k = module.q_norm(q), module.k_norm(k)
        return module.output_proj(read_out(q, k, v, self.how, self.weights, self.by_place(q, k, 0, 0)))

    def krea2(
        self, module: Any, theirs: Any, x: Any, freqs: Any = None, mask: Any = None, **named: Any
    ) -> torch.Tensor:
        """Attention of Krea 2: of text and image with each other, or of the text alone."""
        from comfy.ldm.flux.math import apply_rope

        if id(module) not in self.joint | self.refined:
            return theirs(module, x, freqs, mask, **named)
        own, how, by_place = self.weights, self.how, None
        if id(module) in self.refined:
            own, how = self.of_zeros(), "bias"
        q, k = module.qknorm(split(module.wq(x), module.heads), split(module.wk(x), module.kvheads))
        if freqs is not None:
            q, k = apply_rope(q, k, freqs)
        each = module.heads // module.kvheads
        k, v = (one.repeat_interleave(each, 1) for one in (k, split(module.wv(x), module.kvheads)))
        if id(module) in self.joint:
            by_place = self.by_place(q, k, self.num_text, 0)
        return module.wo(read_out(q, k, v, how, own, by_place) * torch.sigmoid(module.gate(x)))


def rows_read(network: Any, conditioning: Any) -> torch.Tensor:
    """The rows of text that a model gets of a stock conditioning; Anima's makes them itself."""
    rows, values = conditioning[0]
    if "t5xxl_ids" in values:
        ids, weights = values["t5xxl_ids"][None], values["t5xxl_weights"][None, :, None]
        rows = network.preprocess_text_embeds(rows, ids, t5xxl_weights=weights)
        assert rows.shape[1] == 512
    if values.get("unprocessed_ltxav_embeds"):
        rows = network.preprocess_text_embeds(rows, unprocessed=True)
        assert rows.shape[1] >= 1024
    return rows[0]
