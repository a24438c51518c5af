"""Attention that reads a base prompt and its regions written out in float64, in every family.

For scripts that test_comfyui_inprocess.py runs in ComfyUI's own Python; see inprocess.py.
"""

# pyright: reportMissingImports=false

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple
from unittest.mock import patch

import torch
from toys import Weights
from written_out import (
    WrittenOut,
    blocks_by,
    cells_of,
    cells_of_layer,
    cross_attention_by,
    is_repeated,
    read_out,
    rows_read,
    split,
)

Maps = dict[tuple[int, ...], Callable[[int, int], torch.Tensor]]
"""For some rows, the weight at each place of a latent of a height and width: ``[1 or pictures, height, width]``."""
Mask = Callable[[int, int], torch.Tensor]


class Other(NamedTuple):
    """A region written out."""

    conditioning: Any
    """Stock's."""
    mask: Mask
    """For a latent of a height and width ``[1 or pictures, height, width]``."""
    strength: float = 1.0
    maps: Maps = {}  # noqa: RUF012
    """Weights by place of its rows."""
    rows: Weights = {}  # noqa: RUF012
    """Weights of its rows where text and picture share an attention."""
    blends: bool = False
    """Whether all read it in every second block, where text and picture share an attention."""


class Text(NamedTuple):
    """A base prompt with its regions written out."""

    conditioning: Any
    others: Sequence[Other]
    maps: Maps = {}  # noqa: RUF012
    rows: Weights = {}  # noqa: RUF012


def shares_of(text: Text, height: int, width: int) -> torch.Tensor:
    """Share of the base and of each region at each place: ``[pictures, prompts, height, width]``."""
    masks = [one.strength * one.mask(height, width).double() for one in text.others]
    shares = torch.zeros(max(map(len, masks)), 1 + len(masks), height, width, dtype=torch.float64)
    for picture, own in enumerate(shares):
        for y in range(height):
            for x in range(width):
                found = [float(mask[picture % len(mask), y, x]) for mask in masks]
                total = sum(found)
                own[:, y, x] = torch.tensor([max(0.0, 1 - total), *found]) / max(1.0, total)
    return shares


@contextmanager
def read_by_unet(model: Any, *texts: Text) -> Iterator[None]:
    """Let a U-Net read known base prompts with their regions by an attention to each of them in float64."""
    latent: list[tuple[int, int]] = []
    kept: dict[tuple[int, int, int], torch.Tensor] = {}

    def at(weight: torch.Tensor, picture: int, num_queries: int) -> torch.Tensor:
        cells = cells_of_layer(weight, num_queries)
        return cells[picture % len(cells)]

    def one_prompt(layer: Any, x: torch.Tensor, rows: torch.Tensor, maps: Maps, picture: int) -> torch.Tensor:
        q, k, v = (
            split(part(tensor[None]).double(), layer.heads)
            for part, tensor in ((layer.to_q, x), (layer.to_k, rows), (layer.to_v, rows))
        )
        logits = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5
        shares = torch.exp(logits - logits.amax(-1, keepdim=True))
        for own, weight_of in maps.items():
            for row in own:
                shares[..., row] *= at(weight_of(*latent[0]), picture, len(x))
        return ((shares / shares.sum(-1, keepdim=True)) @ v).transpose(1, 2).flatten(2)[0]

    def forward_of(layer: Any) -> Callable[..., torch.Tensor]:
        def forward(x: torch.Tensor, context: torch.Tensor, **_: Any) -> torch.Tensor:
            read: list[torch.Tensor] = []
            for picture, (queries, found) in enumerate(zip(x, context, strict=True)):
                known = [text for text in texts if is_repeated(found, text.conditioning[0][0][0])]
                if not known:
                    read.append(one_prompt(layer, queries, found, {}, picture))
                    continue
                (text,) = known
                key = (id(text), *latent[0])
                if key not in kept:
                    kept[key] = shares_of(text, *latent[0])
                shares = kept[key]
                prompts = [(text.conditioning, text.maps), *((one.conditioning, one.maps) for one in text.others)]
                read.append(
                    sum(
                        at(shares[:, number], picture, len(queries))[:, None]
                        * one_prompt(layer, queries, conditioning[0][0][0], maps, picture)
                        for number, (conditioning, maps) in enumerate(prompts)
                    )
                )
            return layer.to_out(torch.stack(read).to(x.dtype))

        return forward

    with cross_attention_by(model, forward_of, latent):
        yield


class Regions(WrittenOut):
    """The attention of a network that reads a known base prompt with its regions."""

    def __init__(self, network: Any, text: Text, is_free: bool = False) -> None:
        super().__init__(network, "bias", (), (), ())
        self.text, self.is_free = text, is_free
        self.base = rows_read(network, text.conditioning)
        self.others = [rows_read(network, one.conditioning) for one in text.others]
        prompts = (text.conditioning, *(one.conditioning for one in text.others))
        self.llamas = [one[0][1].get("conditioning_llama3") for one in prompts]
        self.rows = (text.rows, *(one.rows for one in text.others))
        self.owners: list[int] = []
        self.weights_of_keys: dict[int, float] = {}
        self.num_joint = 0
        """Number of layers so far in which text and picture read each other."""

    def forward(self, x: torch.Tensor, timestep: torch.Tensor, context: torch.Tensor, **named: Any) -> torch.Tensor:
        """The network's own, with the regions' rows behind the base's."""
        start, self.num_joint = context.shape[1] - len(self.base), 0
        self.owners, llama = [0] * context.shape[1], named.get("encoder_hidden_states_llama3")
        if start >= 0 and all(torch.equal(one[start:], self.base) for one in context):
            rows = [one.expand(len(context), *one.shape) for one in self.others]
            context = torch.cat([context, *rows], 1)
            for number, own in enumerate(self.others, 1):
                self.owners += [number] * len(own)
            if "num_tokens" in named:
                named = {**named, "num_tokens": context.shape[1]}
            if "attention_mask" in named:
                masks = [one.conditioning[0][1]["attention_mask"].expand(len(context), -1) for one in self.text.others]
                named = {**named, "attention_mask": torch.cat([named["attention_mask"], *masks], 1)}
            if llama is not None:  # read twice in each block
                llamas = (one.expand(len(context), -1, -1, -1) for one in self.llamas)
                named = {**named, "encoder_hidden_states_llama3": torch.cat([*llamas], 2)}
                self.owners += [number for number, one in enumerate(self.llamas) for _ in range(one.shape[2])] * 2
            self.weights_of_keys = {}
            for number, weights in enumerate(self.rows):
                keys = [key for key, owner in enumerate(self.owners) if owner == number]
                keys = keys[start if number == 0 else 0 :]
                for row, weight in weights.items():
                    self.weights_of_keys[keys[row]] = weight
                    if llama is not None and row >= len((self.base, *self.others)[number]):
                        self.weights_of_keys[keys[row + self.llamas[number].shape[2]]] = weight
        return super().forward(x, timestep, context, **named)

    def shares(self) -> torch.Tensor:
        """Share of each prompt in each patch: ``[pictures, prompts, cells]``, in float64."""
        shares = shares_of(self.text, *self.size[-2:])
        return torch.stack([cells_of(one, self.patch) for one in shares.unbind(1)], 1)

    def factors(self, q: torch.Tensor, k: torch.Tensor, first: int) -> torch.Tensor:
        """Factors of shares, ``[batch, queries, keys]``; text comes first, and the picture's queries at ``first``."""
        found = torch.ones(len(q), q.shape[2], k.shape[2], dtype=torch.float64)
        self.num_joint += first < q.shape[2]
        if self.is_free or not any(self.owners):
            return found
        owners = torch.tensor(self.owners)
        text, number = len(owners), int(owners.max()) + 1
        for other in range(number):
            keys = (owners == other).nonzero().flatten()
            if other:
                found[:, text:, keys] = 0.0  # of no prompt, such as padding
            for one in range(number):
                for row in (owners == one).nonzero().flatten().tolist():
                    found[:, row, keys] = float(one == other)
            if first < q.shape[2]:
                shares = self.shares()
                for image in range(len(q)):
                    own = shares[image % len(shares), other][:, None]
                    found[image, first : first + len(own), keys] = own.expand(-1, len(keys))
        if self.num_references and first < q.shape[2]:
            found[:, -self.num_references :] = 1.0
        for key, weight in self.weights_of_keys.items():
            found[:, :, key] *= weight
        if first < q.shape[2] and self.num_joint % 2 == 0:  # every second block
            blends = [one.blends for one in self.text.others]
            for number, is_free in enumerate([False not in blends, *blends]):
                if is_free:
                    found[:, :, (owners == number).nonzero().flatten()] = 1.0
        return found

    def read_part(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, part: str) -> torch.Tensor:
        """Attention of text and image with each other, or to the text alone."""
        if part == "text only":
            return self.mixed(q, k, v)
        first = -(-self.num_text // self.pads_to) * self.pads_to
        is_last = part == "image first"
        if is_last:  # text; here it comes first
            q, k, v = (one.roll(self.num_text, 2) for one in (q, k, v))
            part = "both"
        factors = None if part == "image alone" else self.factors(q, k, first if part == "both" else q.shape[2])
        found = read_out(q, k, v, "bias", torch.ones(len(q), 0), factors)
        return found.roll(-self.num_text, 1) if is_last else found

    def mixed(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """An attention to each prompt by itself, mixed: ``[batch, queries, heads * dim]``."""
        owners = torch.tensor(self.owners)
        factors = None if self.mask is None else self.mask.double()[:, None].expand(-1, q.shape[2], -1)
        if not any(self.owners):
            return read_out(q, k, v, "bias", torch.ones(len(q), 0), factors)
        result = torch.zeros(len(q), q.shape[2], q.shape[1] * q.shape[3], dtype=torch.float64)
        places = self.shares()
        mean = shares_of(self.text, *self.size[-2:]).flatten(2).mean(2, keepdim=True)
        places = places.repeat(1, 1, math.prod(self.size[:-2]))
        behind = q.shape[2] - self.before - places.shape[2]
        shares = torch.cat([mean.expand(-1, -1, self.before), places, mean.expand(-1, -1, behind)], 2)
        for number in range(shares.shape[1]):
            own = owners == number
            left = None if factors is None else factors[..., own]
            read = read_out(q, k[:, :, own], v[:, :, own], "bias", torch.ones(len(q), 0), left)
            for image in range(len(q)):
                result[image] += shares[image % len(shares), number][:, None] * read[image]
        return result.to(q.dtype)

    def read_masked(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """The same for LTX-Video."""
        return self.mixed(q, k, v)

    def wan(self, module: Any, theirs: Any, x: Any, context: Any, transformer_options: Any = None, **named: Any) -> Any:
        """Cross attention of Wan to text; image to video without an image reads it twice."""
        q = split(module.norm_q(module.q(x)), module.num_heads)
        read = self.mixed(
            q, *(split(one, module.num_heads) for one in (module.norm_k(module.k(context)), module.v(context)))
        )
        if hasattr(module, "k_img"):
            pair = module.norm_k_img(module.k_img(context)), module.v_img(context)
            read = read + self.mixed(q, *(split(one, module.num_heads) for one in pair))
        return module.o(read)

    def anima(self, module: Any, theirs: Any, x: Any, context: Any = None, **named: Any) -> torch.Tensor:
        """Cross attention of Anima."""
        if module.is_selfattn:
            return theirs(module, x, context, **named)
        q, k, v = (
            split(part(tensor), module.n_heads)
            for part, tensor in ((module.q_proj, x), (module.k_proj, context), (module.v_proj, context))
        )
        return module.output_proj(self.mixed(module.q_norm(q), module.k_norm(k), v))

    def krea2(self, module: Any, theirs: Any, x: Any, freqs: Any = None, mask: Any = None, **named: Any) -> Any:
        """Attention of Krea 2: of text and image with each other, or of the text alone."""
        from comfy.ldm.flux.math import apply_rope

        if id(module) not in self.joint | self.refined:
            return theirs(module, x, freqs, mask, **named)
        q, k = module.qknorm(split(module.wq(x), module.heads), split(module.wk(x), module.kvheads))
        if freqs is not None:
            q, k = apply_rope(q, k, freqs)
        each = module.heads // module.kvheads
        k, v = (one.repeat_interleave(each, 1) for one in (k, split(module.wv(x), module.kvheads)))
        factors = self.factors(q, k, self.num_text if id(module) in self.joint else q.shape[2])
        return module.wo(read_out(q, k, v, "bias", torch.ones(len(q), 0), factors) * torch.sigmoid(module.gate(x)))


@contextmanager
def read_by_region(model: Any, *texts: Text, is_free: bool = False) -> Iterator[None]:
    """Let a MODEL read known base prompts with their regions by an attention written out.

    Other models than U-Nets know one base prompt; all read all of it if it ``is_free``.
    """
    from comfy import samplers

    network = model.model.diffusion_model
    if hasattr(network, "input_blocks"):
        with read_by_unet(model, *texts):
            yield
        return
    (text,) = texts
    apart = patch.object(samplers, "can_concat_cond", lambda one, other: one is other)  # entries, not images
    with apart, blocks_by(network, Regions(network, text, is_free)):
        yield
