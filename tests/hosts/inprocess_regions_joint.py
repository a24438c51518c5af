"""Checks of regions in families other than Stable Diffusion 1, 2 and XL: what is drawn is an attention written out.

Run by test_comfyui_inprocess.py in ComfyUI's own Python; see inprocess.py. Who may read whom, and how much, is worked
out once more here and in written_out.py, with loops.
"""

# pyright: reportMissingImports=false

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch
from inprocess import CLOSE, compares, difference, main, note, refusal, stock
from inprocess_attention import left_of, num_calls, rel
from inprocess_places import columns, draws_as, encoded, placed, resized, run_ours
from inprocess_places_joint import soft_of
from inprocess_regions import Other, Text, region, shares_of
from toys import PLAIN, TOYS, make_model, make_text_encoder, rows_by_hand, sampled
from written_out import WrittenOut, blocks_by, cells_of, read_out, rows_read, split

DOG, HOUSE = "a blue dog in a forest", "a house"
JOINT = ("Flux", "Chroma", "Qwen-Image", "SD 3", "SD 3.5", "Krea 2", "Flux 2 Klein", "Lumina 2", "Z-Image", "HiDream")
APART = ("Anima", "LTX-Video", "Wan", "Wan image to video", "Wan VACE", "Wan Camera")
REFERENCE_CFG = 1.0
"""Here the negative prompt is not read; otherwise it would run apart."""


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
def read_by_region(model: Any, text: Text, is_free: bool = False) -> Iterator[None]:
    """Let a MODEL read a base prompt with its regions by an attention written out; all read all if it ``is_free``."""
    from comfy import samplers

    network = model.model.diffusion_model
    apart = patch.object(samplers, "can_concat_cond", lambda one, other: one is other)  # entries, not images
    with apart, blocks_by(network, Regions(network, text, is_free)):
        yield


def draws_by_region(model: Any, ours: Any, stocks: Any, text: Text, name: str = "", **settings: Any) -> None:
    """Ours draws what stock draws with regions written out, at CFG 1."""
    given = {"cfg": REFERENCE_CFG, **settings}
    draws_as(read_by_region(model, text), model, ours, stocks, stocks, name, **given)


def toys(*families: str) -> Iterator[tuple[str, Any, Any, Any, Any, Any]]:
    """For each family its name, CLIP, MODEL, and stock's base prompt and two others."""
    for family in families:
        clip = make_text_encoder(family)
        yield (family, clip, make_model(family), *(stock(clip, text) for text in (PLAIN, DOG, HOUSE)))


def check(families: tuple[str, ...]) -> None:
    for family, _, model, base, dog, house in toys(*families):
        width = TOYS[family].latent[1]
        mask = soft_of(family)

        def soft(h: int, w: int, mask: torch.Tensor = mask) -> torch.Tensor:
            return mask.double().view(1, h, 8, w, 8).mean((2, 4))

        left, right = columns(0, width / 2), columns(0.45 * width, width)
        for name, ours, others in (
            ("hard", region(base, dog, area="left half"), [Other(dog, left)]),
            ("soft", region(base, house, mask=mask, strength=0.7), [Other(house, soft, 0.7)]),
            (
                "two",
                region(region(base, dog, area="left half"), house, area="0.45 1, 0 1"),
                [Other(dog, left), Other(house, right)],
            ),
        ):
            draws_by_region(model, ours, base, Text(base, others), name=f"{family}, {name}")
        draws_by_region(
            model, region(base, dog, area="left half"), base, Text(base, [Other(dog, left)]), batch=2, name=family
        )


@compares(
    "Regional Prompt where text and picture share an attention, small, with masks written out, likewise", limit=CLOSE
)
def check_regions_equal_masks_written_out() -> None:
    check(JOINT)


@compares(
    "Regional Prompt in the cross attention of Anima, LTX-Video and Wan, small, with attention written out, likewise",
    limit=CLOSE,
)
def check_regions_equal_attention_to_each_prompt_written_out() -> None:
    check(APART)


@compares("Regions in every other block of six families, with masks written out, likewise", limit=CLOSE)
def check_regions_in_every_other_block_equal_masks_written_out() -> None:
    for family, _, model, base, dog, house in toys("Flux", "SD 3.5", "Krea 2", "Flux 2 Klein", "Z-Image", "HiDream"):
        left, right = columns(0, TOYS[family].latent[1] / 2), columns(0.45 * TOYS[family].latent[1], 99)
        one = region(base, dog, area="left half", blocks="every other")
        always = region(base, dog, area="left half")
        draws_by_region(model, one, base, Text(base, [Other(dog, left, blends=True)]), name=family, batch=2)
        drawn = [sampled(model, ours, base, cfg=REFERENCE_CFG) for ours in (one, always)]
        assert rel(*drawn) > CLOSE, family
        for blends in ((True, False), (True, True)):
            both = region(one, house, area="0.45 1, 0 1", blocks="every other" if blends[1] else "all")
            others = [Other(dog, left, blends=True), Other(house, right, blends=blends[1])]
            draws_by_region(model, both, base, Text(base, others), name=f"{family}, {blends}")


@compares("Regions in every other block of SD1, Anima, LTX-Video and Wan, with all blocks")
def check_blocks_change_nothing_in_cross_attention() -> None:
    for _, _, model, base, dog, _ in toys("SD1", "Anima", "LTX-Video", "Wan"):
        drawn = [
            sampled(model, region(base, dog, area="left", blocks=blocks), base, cfg=REFERENCE_CFG)
            for blocks in ("all", "every other")
        ]
        difference(*drawn)


@compares("Regions on odd sizes in other families, likewise", limit=CLOSE)
def check_odd_sizes() -> None:
    for family, _, model, base, dog, _ in toys("Flux", "Z-Image", "Flux 2 Klein", "LTX-Video", "Wan"):
        for height, width in ((13, 21), (15, 10)):

            def corner(h: int, w: int) -> torch.Tensor:
                return columns(0, 0.3 * w)(h, w) * columns(0, 0.4 * h)(w, h).transpose(1, 2)

            own = region(base, dog, area="0 0.3, 0 0.4")
            text, name = Text(base, [Other(dog, corner)]), f"{family}, {height} x {width}"
            draws_by_region(resized(model, height, width), own, base, text, name=name)


@compares("Regions in all of the picture in other families, with the region's prompt alone; stock afterwards")
def check_a_region_everywhere_is_its_prompt_alone() -> None:
    for family, clip, model, base, dog, _ in toys(*JOINT, *APART):
        negative = stock(clip, TOYS[family].negative)
        before = sampled(model, base, negative)
        read_too = "t5xxl_ids", "t5xxl_weights", "conditioning_llama3", "attention_mask"
        taken = {key: dog[0][1][key] for key in read_too if key in dog[0][1]}
        alone = [[dog[0][0], {**base[0][1], **taken}]]
        for inputs in ({}, {"mask": torch.ones(1, 40, 60)}):
            difference(sampled(model, region(base, dog, **inputs), negative), sampled(model, alone, negative))
        unused = region(base, dog, area="left", start=7, end=9, unit="steps")
        difference(sampled(model, unused, negative), before)
        assert rel(sampled(model, region(base, dog, area="left"), negative), before) > CLOSE, family
        difference(sampled(model, base, negative), before)


@compares("Regions at CFG 2, with its two predictions", limit=CLOSE)
def check_guidance_with_prompts_of_other_lengths() -> None:
    for family, clip, model, base, dog, house in toys("Flux", "Qwen-Image", "Z-Image", "Anima", "LTX-Video", "Wan"):
        negative = stock(clip, TOYS[family].negative)
        one, two = region(base, dog, area="left"), region(negative, house, area="top")
        for positive, other in ((one, negative), (one, two), (base, two)):
            found = sampled(model, positive, other, steps=1, cfg=2.0)
            conditional, unconditional = (sampled(model, each, each, steps=1, cfg=1.0) for each in (positive, other))
            expected = unconditional + 2.0 * (conditional - unconditional)
            assert note(rel(found, expected)) <= CLOSE, family
        if family in APART:
            assert num_calls(model, one, two) == 1


def cut(model: Any, num_text: int) -> Any:
    """A clone of a MODEL whose queries read no key behind the text but their own."""

    def override(function: Any, q: Any, k: Any, v: Any, heads: int, mask: Any = None, *rest: Any, **named: Any) -> Any:
        rows = k.shape[-2]
        if rows > num_text and q.shape[-2] == rows:
            own = torch.zeros(1, 1, rows, rows)
            own[..., num_text:] = -1e4
            own += torch.diag_embed(torch.full((rows,), 1e4).where(torch.arange(rows) >= num_text, 0.0))
            mask = own if mask is None else mask + own
        return function(q, k, v, heads, mask, *rest, **named)

    work = model.clone()
    work.model_options["transformer_options"]["optimized_attention_override"] = override
    return work


def check_little_of_a_region_reaches_another() -> None:
    families = "Flux", "Qwen-Image", "SD 3", "Lumina 2", "Z-Image", "Flux 2 Klein", "HiDream"
    for family, _, model, base, dog, house in toys(*families):
        width = TOYS[family].latent[1]
        half = width // 4 * 2  # the border of two patches
        masks = columns(0, half), columns(half, width)
        left, right = {"mask": left_of(TOYS[family].latent, half)}, {"mask": 1 - left_of(TOYS[family].latent, half)}

        def drawn(
            first: Any, work: Any = model, base: Any = base, house: Any = house, sides: Any = (left, right)
        ) -> Any:
            ours = region(region(base, first, **sides[0]), house, **sides[1])
            return sampled(work, ours, base, cfg=1.0)

        def free(first: Any, model: Any = model, base: Any = base, house: Any = house, masks: Any = masks) -> Any:
            with read_by_region(model, Text(base, [Other(first, masks[0]), Other(house, masks[1])]), is_free=True):
                return sampled(model, base, base, cfg=1.0)

        def leak(one: torch.Tensor, other: torch.Tensor, half: int = half) -> float:
            change = (one - other).abs()
            return float(change[..., half:].mean() / change[..., :half].mean())

        another = stock_like(dog)
        leaks = [leak(draw(dog), draw(another)) for draw in (drawn, free)]
        assert leaks[0] <= 0.3 * leaks[1], (family, leaks)
        num_text = rows_read(model.model.diffusion_model, base).shape[0]
        num_text = max(num_text, 512) if family == "Flux 2 Klein" else num_text
        num_text += sum(rows_read(model.model.diffusion_model, one).shape[0] for one in (dog, house))
        if family == "Flux":
            work = cut(model, num_text)
            assert leak(drawn(dog, work), drawn(another, work)) == 0.0, family


def stock_like(conditioning: Any) -> Any:
    """A prompt whose words are all others."""
    rows, values = conditioning[0]
    drawn = torch.randn(rows.shape, generator=torch.Generator().manual_seed(4)) * rows.std()
    if (llama := values.get("conditioning_llama3")) is not None:
        others = torch.randn(llama.shape, generator=torch.Generator().manual_seed(5)) * llama.std()
        values = {**values, "conditioning_llama3": others}
    return [[drawn, values]]


@compares("Regions with Attention Weights and Place Phrase, with a softmax written out, likewise", limit=CLOSE)
def check_weights_and_fields_of_every_prompt_act() -> None:
    weigh = "WeightedCLIPWeighAttention"
    for family, clip, model, base, dog, _ in toys("Flux", "HiDream"):
        half, left = {"area": "left half"}, columns(0, TOYS[family].latent[1] / 2)
        heavy, faint, words = (
            run_ours(weigh, clip=clip, text=text)["result"][0]
            for text in (PLAIN.replace("mat", "(mat:1.7)"), DOG.replace("dog", "(dog:0.4)"), DOG)
        )
        mat, dogs = (
            rows_by_hand(family, clip, text, weights) for text, weights in ((PLAIN, {"mat": 1.7}), (DOG, {"dog": 0.4}))
        )
        text = Text(base, [Other(dog, left, rows=dogs)], rows=mat)
        draws_by_region(model, region(heavy, faint, **half), base, text, name=family)
        text = Text(base, [Other(dog, left, rows=dogs)])
        after = region(encoded(clip), words, **half)
        for ours in (region(base, placed(words, "dog", inside=0.4), **half), placed(after, "dog", inside=0.4)):
            draws_by_region(model, ours, base, text, name=family)


def check_unknown_models_are_refused_by_name() -> None:
    clip, model = make_text_encoder("Flux"), make_model("Flux")
    network = model.model.diffusion_model
    known = type(network)
    for area in ("left", ""):
        ours = region(stock(clip, PLAIN), stock(clip, DOG), area=area)
        network.__class__ = type("Other", (known,), {"forward": known.forward})
        message = refusal(lambda ours=ours: sampled(model, ours, ours))
        network.__class__ = known
        assert "Regional Prompt do not know where this model (Flux, Other) reads text" in message, message


if __name__ == "__main__":
    main(globals())
