"""Checks of Watch Words and Word Maps: maps are probabilities written out, and the picture stays the same.

Run by test_comfyui_inprocess.py in ComfyUI's own Python; see inprocess.py. Probabilities, the cells of a layer and what
lies between them are worked out here once more, in float64.
"""

# pyright: reportMissingImports=false

from __future__ import annotations

import importlib
import importlib.util
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from importlib.machinery import ModuleSpec
from types import SimpleNamespace
from typing import Any
from unittest import SkipTest
from unittest.mock import MagicMock, patch

import torch
import written_out
from inprocess import (
    CLOSE,
    WIDTHS,
    compares,
    difference,
    main,
    make_clip,
    note,
    pack_module,
    pack_of,
    refusal,
    run_ours,
    stock,
)
from inprocess_attention import NODE, area, left_of, logged, masked, rel, timed
from inprocess_places import (
    PLACE,
    UNETS,
    applied,
    draws_as,
    encoded,
    families,
    half,
    others,
    placed,
    resized,
    video,
    weights,
)
from inprocess_regions import LEFT, ROWS, region
from toys import (
    LATENT,
    NEGATIVE,
    PLAIN,
    POOLED,
    TOYS,
    build,
    make_model,
    make_text_encoder,
    rows_by_hand,
    sampled,
    unet_sizes,
    weighable,
)
from written_out import WrittenOut, cells_of_layer, cross_attention_by, is_repeated, split
from written_out_regions import Maps

WORDS = ("red cat", "mat", "snow")
Shares = list[torch.Tensor]
"""Probabilities of words by place, the mean over heads, of each layer and step: ``[pictures, words, h, w]``."""


def watched(conditioning: Any, words: str = "\n".join(WORDS), every: int = 1, layers: str = "all") -> tuple[Any, Any]:
    import nodes

    return nodes.NODE_CLASS_MAPPINGS["WeightedCLIPWatch"]().watch(conditioning, words, every, layers)


def shown(watch: Any, samples: torch.Tensor, scale: str = "one for all", word: str = "", **more: Any) -> Any:
    import nodes

    node = nodes.NODE_CLASS_MAPPINGS["WeightedCLIPWordMaps"]()
    return node.show(watch, {"samples": samples}, scale, word, **more)["result"]


def enlarged(cells: torch.Tensor, height: int, width: int) -> torch.Tensor:
    """Maps in cells of 1, 2, 4, ... places at each place, in straight lines from centre to centre."""
    found = cells
    for axis, size in ((-2, height), (-1, width)):
        number = cells.shape[axis]
        side = 1
        while -(-size // side) > number:
            side *= 2
        weights = torch.zeros(size, number, dtype=torch.float64)
        for place in range(size):
            at = min(max((place + 0.5) / side - 0.5, 0.0), number - 1.0)
            first = min(int(at), number - 1)
            weights[place, first] += 1 - (at - first)
            weights[place, min(first + 1, number - 1)] += at - first
        found = torch.einsum("pn,...nk->...pk" if axis == -2 else "pn,...kn->...kp", weights, found)
    return found


@contextmanager
def probabilities_of_unet(
    model: Any, known: Any, by_word: list[tuple[int, ...]], maps: Maps | None = None
) -> Iterator[Shares]:
    """Probabilities of each word's rows, of the images of a U-Net that read a stock conditioning.

    ``maps``: weights by place.
    """
    rows = known[0][0][0]
    found: Shares = []
    latent: list[tuple[int, int]] = []

    def forward_of(layer: Any) -> Callable[..., torch.Tensor]:
        theirs = layer.forward

        def forward(x: torch.Tensor, context: torch.Tensor, **named: Any) -> torch.Tensor:
            q, k = (split(part(one).double(), layer.heads) for part, one in ((layer.to_q, x), (layer.to_k, context)))
            own = [index for index, one in enumerate(context) if is_repeated(one, rows)]
            times = context.shape[1] // len(rows)
            height, width = latent[0]
            side = 1
            while -(-height // side) * -(-width // side) > x.shape[1]:
                side *= 2
            if own:
                shares = (q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5).softmax(-1)[own]
                for of_rows, weight_of in (maps or {}).items():
                    factor = cells_of_layer(weight_of(height, width), x.shape[1])[:, None, :, None]
                    for row in of_rows:
                        shares[..., row :: len(rows)] *= factor
                probabilities = (shares / shares.sum(-1, keepdim=True)).mean(1)
                probabilities = probabilities.unflatten(2, (times, len(rows))).sum(2)
                of_words = torch.stack([probabilities[..., list(own)].sum(-1) for own in by_word], 1)
                found.append(of_words.unflatten(-1, (-(-height // side), -(-width // side))))
            return theirs(x, context=context, **named)

        return forward

    with cross_attention_by(model, forward_of, latent):
        yield found


@contextmanager
def probabilities_of_blocks(model: Any, known: Any, by_word: list[tuple[int, ...]], **more: Any) -> Iterator[Shares]:
    """The same of each word's rows, for a network of transformer blocks that reads a stock conditioning."""
    found: Shares = []

    def by_place(self: WrittenOut, q: torch.Tensor, k: torch.Tensor, first: int, first_key: int) -> None:
        own = [index for index, places in enumerate(self.places) if places]
        if not own:
            return None
        cells = [-(-side // self.patch) for side in self.size[-2:]]
        frames = self.size[:-2]
        number = cells[0] * cells[1] * (frames[0] if frames else 1)
        logits = q.double() @ k.double().transpose(-1, -2) / q.shape[-1] ** 0.5
        if self.mask is not None:
            logits.masked_fill_(self.mask[:, None, None] == 0, -torch.inf)
        probabilities = logits.softmax(-1).mean(1)[own, first : first + number]
        of_words = [[row for row, of_row in self.places[own[0]].items() if mark in of_row] for mark in marks]
        shares = torch.stack([probabilities[..., [first_key + row for row in rows]].sum(-1) for rows in of_words], 1)
        found.append(shares.unflatten(-1, (*frames, *cells)))
        return None

    marks = [written_out.ByPlace(lambda *_: torch.ones(1), 1.0) for _ in by_word]
    placed = {row: [mark] for mark, rows in zip(marks, by_word, strict=True) for row in rows}
    texts = ((known, placed),)
    with patch.object(WrittenOut, "by_place", by_place), written_out.written_out(model, "bias", placed=texts, **more):
        yield found


def compared(watch: Any, samples: torch.Tensor, shares: Shares) -> None:
    """The maps of a sampling are those of the words' probabilities."""
    expected = torch.stack([enlarged(one, *samples.shape[-2:]) for one in shares]).mean(0)
    found = watch.record_of(samples).maps()
    assert found.shape == expected.shape, (found.shape, expected.shape)
    assert float(expected.max()) > 1e-4
    note(float((found - expected).abs().max()))


@compares("Watch Words, with stock")
def check_the_picture_stays_the_same() -> None:
    for family in (*UNETS, *families()):
        clip, model = make_text_encoder(family), make_model(family)
        negative = stock(clip, TOYS[family].negative if family in families() else NEGATIVE)
        words = encoded(clip)
        expected = sampled(model, words, negative)
        ours, watch = watched(words)
        difference(sampled(model, ours, negative), expected)
        assert len(watch.records) == 1, family
        difference(sampled(model, words, negative), expected)
        assert len(watch.records) == 1, family


@compares("Word maps on SD1, SD2 and SDXL, small, KSampler, with probabilities written out", limit=CLOSE)
def check_maps_of_unets_are_probabilities() -> None:
    for family in UNETS:
        clip = make_text_encoder(family)
        negative = stock(clip, "blurry, " * 60)
        for height, width, batch in ((*LATENT, 1), (13, 21, 2)):
            ours, watch = watched(encoded(clip))
            own = resized(make_model(family), height, width)
            with probabilities_of_unet(own, stock(clip, PLAIN), [ROWS[word] for word in WORDS]) as shares:
                samples = sampled(own, stock(clip, PLAIN), negative, batch=batch)
            assert torch.equal(sampled(own, ours, negative, batch=batch), samples)
            compared(watch, samples, shares)


@compares("Word maps of a prompt of two chunks, likewise", limit=CLOSE)
def check_maps_of_a_long_prompt() -> None:
    clip, model = make_clip("SD1"), make_model("SD1")
    text = f"{PLAIN}, {'very ' * 70}, a dog"
    plain, negative = stock(clip, text), stock(clip, NEGATIVE)
    ours, watch = watched(encoded(clip, text), "red cat\ndog")
    ids = [pair[0] for chunk in clip.tokenize(text)["l"] for pair in chunk]
    (dog,) = (row for row, token_id in enumerate(ids) if token_id == clip.tokenize("dog")["l"][0][1][0])
    assert dog > 77
    with probabilities_of_unet(model, plain, [ROWS["red cat"], (dog,)]) as shares:
        sampled(model, plain, negative)
    compared(watch, sampled(model, ours, negative), shares)


@compares("Word maps in all other families, small, KSampler, likewise", limit=CLOSE)
def check_maps_of_other_families_are_probabilities() -> None:
    if not families():
        raise SkipTest("this ComfyUI does not tell blocks apart: Attention Weights refuses all other families")
    for family in families():
        clip, model = make_text_encoder(family), make_model(family)
        plain, negative = stock(clip, PLAIN), stock(clip, TOYS[family].negative)
        by_row = [tuple(rows_by_hand(family, clip, PLAIN, dict.fromkeys(word.split(), 1.0))) for word in WORDS]
        for batch in (1, 2):
            ours, watch = watched(encoded(clip))
            with probabilities_of_blocks(model, plain, by_row) as shares:
                sampled(model, plain, negative, batch=batch)
            samples = sampled(model, ours, negative, batch=batch)
            compared(watch, samples, shares)


@compares("Word maps beside weights, places and regions, likewise", limit=CLOSE)
def check_weights_and_places_count_in_the_maps() -> None:
    clip, model = make_clip("SD1"), make_model("SD1")
    plain, negative = stock(clip, PLAIN), stock(clip, NEGATIVE)
    weighed = run_ours(NODE, clip=clip, text=PLAIN.replace("mat", "(mat:1.7)"))["result"][0]
    ours, watch = watched(placed(weighed, "red cat", area="left"))
    maps: Maps = {ROWS["red cat"]: lambda *s: weights(LEFT(*s)), ROWS["mat"]: lambda h, w: torch.full((1, h, w), 1.7)}
    by_word = [ROWS[word] for word in WORDS]
    fields = {row: [half()] for row in ROWS["red cat"]}
    read = written_out.written_out(model, "bias", (plain, dict.fromkeys(ROWS["mat"], 1.7)), placed=((plain, fields),))
    with read, probabilities_of_unet(model, plain, by_word, maps) as shares:
        sampled(model, plain, negative)
    samples = sampled(model, ours, negative)
    compared(watch, samples, shares)
    dog = encoded(clip, "a blue dog")
    ours, watch = watched(region(encoded(clip), dog, area="right half"), "red cat\nblue dog")
    cat, blue_dog = watch_maps(watch, sampled(model, ours, negative))
    for word, inside in ((cat, slice(0, 6)), (blue_dog, slice(16, 22))):
        outside = slice(16, 22) if inside.start == 0 else slice(0, 6)
        assert float(word[0, :, inside].mean()) > 10 * float(word[0, :, outside].mean())


def watch_maps(watch: Any, samples: torch.Tensor) -> Any:
    return watch.record_of(samples).maps().unbind(1)


@compares("Word maps of all rows of a prompt together, with 1", limit=CLOSE)
def check_shares_of_all_rows_add_up_to_1() -> None:
    attention, watching = (pack_module(f"hosts.comfy.attention.{name}") for name in ("attention", "recorder"))
    for family in UNETS:
        clip, model = make_text_encoder(family), make_model(family)
        watch = watching.Watch(["all"])
        ours = attention.with_watch(encoded(clip), watch, [[tuple(range(77))]])
        samples = sampled(model, ours, stock(clip, NEGATIVE), batch=2)
        (found,) = watch_maps(watch, samples)
        difference(found, torch.ones_like(found))


@compares("Word maps with other attention functions, with PyTorch's", limit=CLOSE)
def check_other_attention_functions_give_the_same_maps() -> None:
    import comfy.ldm.modules.attention as functions

    for family in (*UNETS, *families()):
        clip, model = make_text_encoder(family), make_model(family)
        negative = stock(clip, TOYS[family].negative if family in families() else NEGATIVE)
        found = []
        for name in ("attention_pytorch", "attention_basic", "attention_split", "attention_sub_quad"):
            function = getattr(functions, name)
            own = model.clone()
            own.model_options["transformer_options"]["optimized_attention_override"] = (
                lambda _, *given, function=function, **named: function(*given, **named)
            )
            ours, watch = watched(encoded(clip))
            found.append(watch.record_of(sampled(own, ours, negative)).maps())
            note(float((found[-1] - found[0]).abs().max()))


@compares("Word maps in areas, parts of the time and of frames, with probabilities written out", limit=CLOSE)
def check_areas_times_and_frames() -> None:
    clip, model = make_clip("SD1"), make_model("SD1")
    plain, negative, dog = stock(clip, PLAIN), stock(clip, NEGATIVE), stock(clip, "a dog")
    by_word = [ROWS[word] for word in WORDS]
    for layout in (
        lambda one, two: [*area(one, 88), *two],
        lambda one, two: [*masked(one, left_of(LATENT, 12), "mask bounds"), *two],
    ):
        ours, watch = watched(layout(encoded(clip), encoded(clip, "a dog")))
        with probabilities_of_unet(model, plain, by_word) as shares:
            sampled(model, layout(plain, dog), negative)
        samples = sampled(model, ours, negative)
        found = watch.record_of(samples).maps()
        columns = found.sum((0, 1, 2)).nonzero().flatten()
        first, last = int(columns[0]), int(columns[-1]) + 1
        expected = torch.stack([enlarged(one, LATENT[0], last - first) for one in shares]).mean(0)
        assert last - first < LATENT[1]
        note(float((found[..., first:last] - expected).abs().max()))
    ours, watch = watched(timed(encoded(clip), 0.0, 0.4) + timed(encoded(clip, "a dog"), 0.4, 1.0))
    with probabilities_of_unet(model, plain, by_word) as shares:
        sampled(model, timed(plain, 0.0, 0.4) + timed(dog, 0.4, 1.0), negative, steps=5)
    compared(watch, sampled(model, ours, negative, steps=5), shares)
    for family in weighable("Wan", "Qwen-Image"):
        clip, model = make_text_encoder(family), make_model(family)
        plain, negative = stock(clip, PLAIN), stock(clip, TOYS[family].negative)
        by_row = [tuple(rows_by_hand(family, clip, PLAIN, dict.fromkeys(word.split(), 1.0))) for word in WORDS]
        ours, watch = watched(encoded(clip))
        with probabilities_of_blocks(model, plain, by_row) as shares:
            video(model, plain, negative, frames=3)
        compared(watch, video(model, ours, negative, frames=3), shares)


@compares("Word maps of some layers and steps, likewise", limit=CLOSE)
def check_layers_and_steps_are_chosen() -> None:
    clip, model = make_clip("SD1"), make_model("SD1")
    plain, negative = stock(clip, PLAIN), stock(clip, NEGATIVE)
    with probabilities_of_unet(model, plain, [ROWS[word] for word in WORDS]) as shares:
        sampled(model, plain, negative, steps=5)
    each = len(shares) // 5
    for every, layers in ((2, "all"), (4, "coarse"), (1, "fine"), (9, "fine")):
        ours, watch = watched(encoded(clip), every=every, layers=layers)
        some = [one for index, one in enumerate(shares) if index // each % every == 0]
        some = [one for one in some if layers == "all" or (one.shape[-2:] == LATENT) == (layers == "fine")]
        assert some and (every > 4 or len(some) < len(shares))
        compared(watch, sampled(model, ours, negative, steps=5), some)


SDXL_SIZES = {"num_res_blocks": [1] * 3, "channel_mult": [1] * 3}
DAAM_UNETS = {
    "SD1": ("SD15", [1, 1, 1, 0], {"num_res_blocks": [1] * 4, "channel_mult": [1] * 4}, (64, 64)),
    "SDXL": ("SDXL", [0, 1, 2], SDXL_SIZES, (128, 128)),
    "SDXL at 512": ("SDXL", [0, 1, 2], SDXL_SIZES, (64, 64)),
}
"""Configuration, depth of the levels, other sizes, and latent: layers have the grids of the real models."""


def daam_model(name: str) -> tuple[Any, Any]:
    """A CLIP and a small MODEL whose layers have a model's grids."""
    config, depths, sizes, latent = DAAM_UNETS[name]
    family = name.split()[0]
    width, adm = (WIDTHS["l"], None) if family == "SD1" else (POOLED, WIDTHS["g"] + 6 * 256)
    channels = 32 if family == "SD1" else 128  # two heads
    sizes = {**unet_sizes(width, adm, channels=channels), **sizes, "transformer_depth": depths}
    sizes |= {"transformer_depth_output": [depth for depth in depths for _ in range(2)]}
    model = build(config, sizes)
    model.model.toy = TOYS[family]._replace(latent=latent)
    return make_clip(family), model


def as_diffusers(network: Any, made: dict[Any, Any]) -> Any:
    """The blocks of a U-Net of the host as diffusers names and groups them, with other attentions in their place."""

    class CrossAttnBlock2D(SimpleNamespace):
        pass

    def block(*modules: Any) -> Any:
        layers = [part for module in modules for part in module.modules() if hasattr(part, "attn2")]
        return CrossAttnBlock2D(
            attentions=[
                SimpleNamespace(transformer_blocks=[SimpleNamespace(attn2=made[layer.attn2])]) for layer in layers
            ]
        )

    return SimpleNamespace(
        down_blocks=[block(*network.input_blocks)],
        mid_block=block(network.middle_block),
        up_blocks=[block(*network.output_blocks)],
    )


@compares(
    "Word maps as DAAM on SD1 and SDXL, small, 64 × 64 and 128 × 128, KSampler, with castorini/daam, relative to the "
    "largest",
    limit=1e-4,
)
def check_as_daam_equals_daam() -> None:
    """Its own code, in attentions of diffusers that have the layers' weights, in the layers where it looks."""
    if importlib.util.find_spec("diffusers") is None:
        raise SkipTest("daam needs diffusers in the host's Python")
    from diffusers.models.attention_processor import Attention

    with patch.object(sys, "path", [*sys.path, str(pack_of("daam"))]):
        # what it only draws and parses with
        unused = ("spacy", "spacy.tokens", "matplotlib", "matplotlib.pyplot")
        with patch.dict(sys.modules, {name: MagicMock(__spec__=ModuleSpec(name, None)) for name in unused}):
            daam = importlib.import_module("daam.trace")
    for name in DAAM_UNETS:
        clip, model = daam_model(name)
        latent = model.model.toy.latent
        plain, negative = stock(clip, PLAIN), stock(clip, NEGATIVE)
        pipe = SimpleNamespace(tokenizer=clip.tokenizer.clip_l.tokenizer)
        traced = SimpleNamespace(
            all_heat_maps=daam.RawHeatMapCollection(), _gen_idx=0, latent_hw=64 * 64, last_prompt=PLAIN, pipe=pipe
        )
        theirs_of: dict[Any, Any] = {}

        def forward_of(
            layer: Any, theirs_of: dict[Any, Any] = theirs_of, plain: Any = plain
        ) -> Callable[..., torch.Tensor]:
            theirs = layer.forward
            width, context_dim = layer.to_q.in_features, layer.to_k.in_features
            own = theirs_of[layer] = Attention(width, context_dim, heads=layer.heads, dim_head=layer.dim_head)
            own.load_state_dict(layer.state_dict())

            def forward(x: torch.Tensor, context: torch.Tensor, **named: Any) -> torch.Tensor:
                order = sorted(range(len(x)), key=lambda index: is_repeated(context[index], plain[0][0][0]))
                assert len(order) == 2  # the second half is the prompt's, as in pipelines of diffusers
                read, expected = own(x[order], context[order]), theirs(x, context=context, **named)
                assert float((read - expected[order]).abs().max()) < CLOSE
                return expected

            return forward

        with tempfile.TemporaryDirectory() as folder, cross_attention_by(model, forward_of, []):
            located = daam.UNetCrossAttentionLocator().locate(as_diffusers(model.model.diffusion_model, theirs_of))
            assert 0 < len(located) < len(theirs_of)  # those of the middle block are left out
            for number, own in enumerate(located):
                daam.UNetCrossAttentionHooker(own, traced, layer_idx=number, latent_hw=64 * 64, data_dir=folder).hook()
            expected = sampled(model, plain, negative, steps=3)
        ours, watch = watched(encoded(clip), layers="as DAAM")
        samples = sampled(model, ours, negative, steps=3)
        assert torch.equal(samples, expected) and samples.shape[-2:] == latent
        theirs = daam.DiffusionHeatMapHooker.compute_global_heat_map(traced)
        for word, found in zip(WORDS, watch.record_of(samples).maps()[0], strict=True):
            heat = theirs.compute_word_heat_map(word).value / 3  # theirs is a sum over the steps
            assert found.shape == heat.shape, (name, found.shape, heat.shape)
            assert float(heat.max() - heat.min()) > 0.05 * float(heat.max())
            note(float((found - heat).abs().max() / heat.max()))


def check_other_changes_of_the_model() -> None:
    import nodes

    clip, model = make_clip("SD1"), make_model("SD1")
    negative, words = stock(clip, NEGATIVE), encoded(clip)
    for node, inputs in others(nodes.NODE_CLASS_MAPPINGS, model):
        own = applied(node, inputs)
        expected = sampled(own, words, negative)
        ours, watch = watched(words)
        samples = sampled(own, ours, negative)
        assert torch.equal(samples, expected), node.__name__
        assert len(watch.record_of(samples).levels) == 3, node.__name__


def check_each_sampling_has_its_own_maps() -> None:
    import comfy.model_management

    clip, model = make_clip("SD1"), make_model("SD1")
    negative = stock(clip, NEGATIVE)
    ours, watch = watched(encoded(clip))
    one, two = sampled(model, ours, negative), sampled(model, ours, negative, cfg=7.0)
    first, second = (shown(watch, samples)[0] for samples in (one, two))
    assert not torch.equal(first, second)
    assert torch.equal(shown(watch, one)[0], first)
    message = refusal(lambda: shown(watch, one + 1))
    assert "No word maps are known of this LATENT" in message

    calls = []

    def interrupt(*_: Any) -> None:
        calls.append(1)
        if len(calls) == 2:
            raise comfy.model_management.InterruptProcessingException

    hook = model.model.diffusion_model.register_forward_pre_hook(interrupt)
    try:
        sampled(model, ours, negative, cfg=3.0)
        raise AssertionError("it was not interrupted")
    except comfy.model_management.InterruptProcessingException:
        pass
    finally:
        hook.remove()
    assert len(watch.records) == 2
    assert torch.equal(sampled(model, ours, negative), one)
    for cfg in (1.5, 2.5, 3.5):
        sampled(model, ours, negative, cfg=cfg)
    assert len(watch.records) == 4 and "No word maps" in refusal(lambda: shown(watch, two))


@contextmanager
def read_where(
    model: Any, plain: Any, own: tuple[int, ...], word: tuple[int, ...], inside: float, outside: float
) -> Any:
    """Let a U-Net read rows of a stock conditioning by the place where a word was read in the steps before.

    The place is where the word's mean share is at least 0.4 of its largest, and half of that in the cells beside.
    """
    rows, latent, shares = plain[0][0][0], list[tuple[int, int]](), list[torch.Tensor]()
    calls = {
        "layers": 0,
        "per call": sum(name.endswith("attn2") for name, _ in model.model.diffusion_model.named_modules()),
    }

    def weights_now(height: int, width: int) -> torch.Tensor | None:
        known = shares[: len(shares) // calls["per call"] * calls["per call"]]
        if not known:
            return None
        mean = torch.stack([enlarged(one, height, width) for one in known]).mean(0)
        hard = (mean >= 0.4 * mean.amax((-2, -1), keepdim=True)).double()
        soft = torch.zeros_like(hard)
        for y in range(height):
            for x in range(width):
                soft[:, y, x] = hard[:, max(0, y - 1) : y + 2, max(0, x - 1) : x + 2].mean((1, 2))
        return outside + soft * (inside - outside)

    def forward_of(layer: Any) -> Callable[..., torch.Tensor]:
        def forward(x: torch.Tensor, context: torch.Tensor, **_: Any) -> torch.Tensor:
            height, width = latent[0]
            if calls["layers"] % calls["per call"] == 0:
                calls["weights"] = weights_now(height, width)
            calls["layers"] += 1
            q, k, v = (
                split(part(one).double(), layer.heads)
                for part, one in ((layer.to_q, x), (layer.to_k, context), (layer.to_v, context))
            )
            found = (q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5).softmax(-1)
            texts = [index for index, one in enumerate(context) if is_repeated(one, rows)]
            if calls["weights"] is not None:
                cells = cells_of_layer(calls["weights"], x.shape[1])
                for picture, index in enumerate(texts):
                    for row in own:
                        found[index, :, :, row :: len(rows)] *= cells[picture % len(cells)][None, :, None]
            found = found / found.sum(-1, keepdim=True)
            side = 1
            while -(-height // side) * -(-width // side) > x.shape[1]:
                side *= 2
            of_word = sum(found[texts][..., row :: len(rows)].sum(-1) for row in word).mean(1)
            shares.append(of_word.unflatten(-1, (-(-height // side), -(-width // side))))
            return layer.to_out((found @ v).transpose(1, 2).flatten(2).to(x.dtype))

        return forward

    with cross_attention_by(model, forward_of, latent):
        yield


@compares("Place Phrase and Regional Prompt where a word is read, with masks made by hand at each step", limit=CLOSE)
def check_a_phrase_follows_the_map_of_a_word() -> None:
    clip, model = make_clip("SD1"), make_model("SD1")
    for name, parameter in model.model.diffusion_model.named_parameters():
        if "attn2.to_q" in name:
            parameter.data *= 12  # so that words are read in some places more than in others
    plain, negative, words = stock(clip, PLAIN), stock(clip, NEGATIVE), encoded(clip)
    for batch in (1, 2):
        ours = placed(words, "red cat", area="where  mat", inside=3.0, outside=0.2)
        written = read_where(model, plain, ROWS["red cat"], ROWS["mat"], 3.0, 0.2)
        draws_as(written, model, ours, plain, negative, f"batch {batch}", batch=batch, steps=4)
    everywhere = placed(words, "red cat", inside=3.0, start=1, end=9, unit="steps")
    drawn = [sampled(model, one, negative, batch=2, steps=4) for one in (ours, everywhere)]
    assert rel(*drawn) > 100 * CLOSE
    other = region(words, encoded(clip, "a dog"), area="where snow")
    for node, name, positive in ((PLACE, "“red cat”", ours), ("Regional Prompt", "region 1", other)):
        lines = logged(lambda positive=positive: sampled(model, positive, negative, steps=4), node)
        assert any(f"{name} acted in 3 of 4 steps" in line for line in lines), lines
    first = placed(words, "red cat", area="where mat", end=1, unit="steps")
    difference(sampled(model, first, negative), sampled(model, words, negative))
    for inputs, message in (
        ({"phrase": "red cat", "area": "where cat"}, "would follow its own map"),
        ({"phrase": "red cat", "area": "where dog"}, "“dog”, where “red cat” is placed, is not in the prompt"),
        ({"phrase": "red cat", "area": "Where "}, "The area “Where” lacks a word"),
    ):
        assert message in refusal(lambda given=inputs: placed(words, **given)), message
    for family in weighable("Flux", "Wan"):  # where nothing else can be placed yet, all is as without
        clip, model = make_text_encoder(family), make_model(family)
        negative = stock(clip, TOYS[family].negative)
        words = encoded(clip)
        follows = sampled(model, placed(words, "red cat", area="where mat", outside=0.0), negative, steps=3)
        assert bool(follows.isfinite().all())
        assert not torch.equal(follows, sampled(model, words, negative, steps=3))


def check_outputs_and_refusals() -> None:
    clip, model = make_clip("SD1"), make_model("SD1")
    negative = stock(clip, NEGATIVE)
    ours, watch = watched(encoded(clip), "")
    assert watch.names == ("a", "red", "cat", "on", "mat", "oil", "painting", "in", "snow")
    samples = sampled(model, ours, negative, batch=2)
    masks, grid, overlay, report = shown(watch, samples)
    height, width = (8 * side for side in LATENT)
    assert masks.shape == (9 * 2, height, width) and overlay.shape == (18, height, width, 3) and grid.shape[0] == 2
    assert float(masks.max()) == 1.0 and float(masks.min()) >= 0.0
    assert "snow: " in report and "picture or frame 2:" in report
    own, _, _, _ = shown(watch, samples, word=" Red ", image=torch.rand(2, 40, 60, 3))
    assert own.shape == (2, 40, 60)
    apart, *_ = shown(watch, samples, "each its own", "red")
    assert torch.equal(apart.amax((1, 2)), torch.ones(2)) and float(apart.amin()) == 0.0
    assert "word must be one that is watched" in refusal(lambda: shown(watch, samples, word="dog"))
    assert "image has 3 pictures" in refusal(lambda: shown(watch, samples, image=torch.rand(3, 8, 8, 3)))
    assert "“dog” is not in the prompt" in refusal(lambda: watched(encoded(clip), "red\ndog"))
    assert "does not say which of its rows are words" in refusal(lambda: watched(stock(clip, PLAIN)))
    for family in weighable("Flux"):
        clip, model = make_text_encoder(family), make_model(family)
        as_daam, _ = watched(encoded(clip), layers="as DAAM")
        message = refusal(partial(sampled, model, as_daam, stock(clip, "a dog")))
        assert "as DAAM does in Stable Diffusion" in message


if __name__ == "__main__":
    main(globals())
