"""Checks of the node Load Small World: stock nodes and ours on it, against the world's own encoder and sampler.

Run by test_comfyui_inprocess.py in ComfyUI's own Python; see inprocess.py.
"""

# pyright: reportMissingImports=false

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from inprocess import (
    CLOSE,
    OURS,
    compares,
    difference,
    main,
    make_lora,
    ours,
    pack_module,
    refusal,
    run_ours,
    stock,
    with_lora,
)

SEED, STEPS, GUIDANCE = 7, 20, 3.0
PROMPT = "a red circle and a (blue square:0.5)"
PROMPTS = ("", "a red circle", PROMPT, "a (white:1.4) cross, a (green triangle:0.2), a yellow circle")
WEIGH, BIND = "WeightedCLIPWeighAttention", "WeightedCLIPBindPhrases"


COUNTS = {"unet": 8, "joint": 4}
"""Pictures of each world that are drawn at once."""


@cache
def loaded(kind: str = "unet") -> tuple[Any, Any, Any]:
    """Results of the node: MODEL, CLIP and VAE."""
    import nodes

    return nodes.NODE_CLASS_MAPPINGS["WeightedCLIPLoadWorld"]().load("auto", kind)


@cache
def painter(kind: str = "unet") -> Any:
    """The world's own encoder and sampler, which know nothing of ComfyUI."""
    model = pack_module("studio.world.model")
    return pack_module("studio.world.painter").painter_of(model.load_world(model.trained(kind))[0])


def way(**options: Any) -> Any:
    """Choices for `painter`."""
    how, binds = options.pop("how", ""), options.pop("binds", False)
    return pack_module("studio.world.questions").Way("", options=options, how=how, binds=binds)


def empty(width: int = 32, height: int = 32, count: int = 8) -> dict[str, Any]:
    """The stock node's latents; older versions give an eighth of each side, and tell no sampler so."""
    import nodes

    latents = nodes.EmptyLatentImage().generate(width, height, count)[0]
    if "downscale_ratio_spacial" in latents:
        return latents
    return nodes.EmptyLatentImage().generate(4 * width, 4 * height, count)[0]


def drawn(
    positive: Any,
    latents: Mapping[str, Any] | None = None,
    *,
    kind: str = "unet",
    model: Any = None,
    **choices: Any,
) -> Any:
    """Pictures by KSampler and VAE Decode, ``[n, h, w, 3]`` in 0..255."""
    import nodes

    default_model, clip, vae = loaded(kind)
    (sampled,) = nodes.common_ksampler(
        *(model or default_model, SEED, STEPS, GUIDANCE, "euler", "simple", positive, stock(clip, "")),
        latents or empty(count=COUNTS[kind]),
        **choices,
    )
    return (nodes.VAEDecode().decode(vae, sampled)[0] * 255).round()


def expected(text: Any, width: int = 32, height: int = 32, count: int | None = None, kind: str = "unet") -> Any:
    """The same pictures by the world's own sampler, of the host's noise."""
    import comfy.sample

    world, own = pack_module("studio.world.model"), painter(kind)
    noise = comfy.sample.prepare_noise(torch.zeros(count or COUNTS[kind], 12, height // 2, width // 2), SEED)
    *_, latents = world.sampled(own.network, noise, text, own.empty, STEPS, GUIDANCE)
    return (world.to_pictures(latents).movedim(1, -1) * 255).round()


def same_pictures(pictures: Any, wanted: Any, min_std: float = 30.0) -> None:
    """Note the difference of some pictures, which have something on them."""
    assert wanted.std() > min_std
    difference(pictures, wanted)


@compares("small world, pictures in 8 bits, with its own sampler", limit=1)
def check_ksampler_draws_the_pictures_of_our_sampler() -> None:
    clip = loaded()[1]
    for text in PROMPTS:
        same_pictures(drawn(stock(clip, text)), expected(painter().text(text, way(scheme="comfy"))))
    same_pictures(
        drawn(stock(clip, PROMPT), empty(40, 32, 3)), expected(painter().text(PROMPT, way(scheme="comfy")), 40, 32, 3)
    )


@compares("small world, rows of stock CLIP Text Encode, with ours", limit=CLOSE)
def check_stock_rows_are_those_of_our_encoder() -> None:
    clip = loaded()[1]
    for text in PROMPTS:
        difference(stock(clip, text)[0][0], painter().text(text, way(scheme="comfy")).rows)
        difference(ours(clip, text), stock(clip, text))


@compares("small world, pictures with our nodes, with its own sampler", limit=1)
def check_our_nodes_draw_what_is_measured_without_a_host() -> None:
    model, clip, _ = loaded()
    for scheme in ("a1111", "compel", "masked_blend", "lerp_last", "negpip"):
        result = run_ours(OURS, clip=clip, text=PROMPT, scheme=scheme)["result"]
        if scheme != "negpip":  # its signs need Attention Weights
            same_pictures(drawn(result[0]), expected(painter().text(PROMPT, way(scheme=scheme))))
    removed = run_ours("WeightedCLIPMaskedBlend", clip=clip, text=PROMPT, syntax="comfy", mask_method="remove")
    wanted = way(scheme="masked_blend", mask_method="remove")
    same_pictures(drawn(removed["result"][0]), expected(painter().text(PROMPT, wanted)))
    phrases = ["red circle", "blue square"]
    bound = run_ours(BIND, clip=clip, text=PROMPT, phrases="\n".join(phrases))
    same_pictures(drawn(bound["result"][0]), expected(painter().text(PROMPT, way(scheme="comfy", binds=True), phrases)))
    for how in ("bias", "value"):
        for given in (None, model):
            positive, _, weighing = run_ours(WEIGH, clip=clip, text=PROMPT, syntax="comfy", how=how, model=given)[
                "result"
            ]
            found = drawn(positive, model=weighing if given else None)
            same_pictures(found, expected(painter().text(PROMPT, way(how=how))))


@compares("small world, pictures at weights from -1 to 1.5, with its own sampler", limit=1)
def check_weights_draw_what_is_measured_without_a_host() -> None:
    clip = loaded()[1]
    for weight in (-1.0, 0.0, 1.5):
        text = f"a red circle and (a blue square:{weight})"
        same_pictures(drawn(stock(clip, text)), expected(painter().text(text, way(scheme="comfy"))))
        for scheme in ("a1111", "masked_blend"):
            result = run_ours(OURS, clip=clip, text=text, scheme=scheme)["result"]
            same_pictures(drawn(result[0]), expected(painter().text(text, way(scheme=scheme))))
        for how in ("bias", "value"):
            positive = run_ours(WEIGH, clip=clip, text=text, syntax="comfy", how=how)["result"][0]
            same_pictures(drawn(positive), expected(painter().text(text, way(how=how))))


@compares("small world, pictures by guidance, with its sampler", limit=1)
def check_guidance_draws_what_is_measured_without_a_host() -> None:
    clip, text = loaded()[1], "a red circle and (a blue square:0.5)"
    (positive, _, _) = run_ours(WEIGH, clip=clip, text=text, syntax="comfy", how="guidance")["result"]
    # half a square has little contrast
    same_pictures(drawn(positive), expected(painter().guided(text, way(how="guidance"))), min_std=20.0)


@compares("small world, pictures with placed phrases, regions and Conditioning (Set Mask), with its sampler", limit=1)
def check_places_draw_what_is_measured_without_a_host() -> None:
    def encode(text: str) -> Any:
        return run_ours(OURS, clip=loaded()[1], text=text, padding="drop")["result"][0]

    places_draw_what_is_measured("unet", ("circle", "square"), encode, {"padding": "drop"})


def places_draw_what_is_measured(
    kind: str,
    kinds: tuple[str, str],
    encode: Callable[[str], Any],
    options: dict[str, str],
    blocks: tuple[str, ...] = ("all",),
    min_std: float = 30.0,
) -> None:
    """A red thing and a blue one are drawn in their halves as the world's own code draws them there.

    Args:
        kind: The world.
        kinds: What is red, and what is blue.
        encode: From a text to a conditioning.
        options: The same choices for the world's own code.
        blocks: Choices of Regional Prompt.
        min_std: As in `same_pictures`.
    """
    import nodes

    questions, scenes = pack_module("studio.world.questions"), pack_module("studio.world.scenes")
    things = scenes.Thing("red", kinds[0]), scenes.Thing("blue", kinds[1])
    prompt, halves = questions.Prompt(scenes.Scene(things), 0), ("left half", "right half")
    place, region = (nodes.NODE_CLASS_MAPPINGS[f"WeightedCLIP{name}"]() for name in ("Place", "Region"))

    def compare(positive: Any, **places: Any) -> None:
        one = questions.Way("", options, places=questions.Places(**places))
        text = painter(kind).drawable(prompt, one, 4.0 if places["of"] == "phrases" else 1.0, "")
        same_pictures(drawn(positive, kind=kind), expected(text, kind=kind), min_std)

    alone = [encode(thing.phrase) for thing in things]
    for edge, end, unit in (("", 1, "percent"), (" ~0.25", 1, "percent"), ("", 8, "steps")):
        areas = tuple(half + edge for half in halves)
        placed = encode(prompt.scene.caption)
        for thing, area in zip(things, areas, strict=True):
            (placed, _) = place.place(placed, thing.phrase, 4.0, 0.0, area, 0.0, end, unit)["result"]
        until = 0.4 if unit == "steps" else 1.0
        compare(placed, of="phrases", areas=areas, until=until)
        for which in blocks:
            base = encode(prompt.scene.caption)
            for one, area in zip(alone, areas, strict=True):
                (base, _) = region.place(base, one, 1.0, area, 0.0, end, unit, blocks=which)["result"]
            compare(base, of="regions", areas=areas, until=until, blend=which != "all")

    masked: list[Any] = []
    for one, left in zip(alone, (1.0, 0.0), strict=True):
        mask = torch.tensor([left] * 8 + [1 - left] * 8).expand(16, 16)
        masked += nodes.ConditioningSetMask().append(one, mask, "default", 1.0)[0]
    compare(masked, of="predictions")


def check_masked_blend_fades_the_square_and_leaves_the_circle() -> None:
    things_in, clip = pack_module("studio.world.judge").things_in, loaded()[1]
    share: dict[float, float] = {}
    for weight in (1.0, 0.25):
        text = f"a red circle and a (blue square:{weight})"
        pictures = drawn(run_ours(OURS, clip=clip, text=text, scheme="masked_blend")["result"][0])
        colors = [{thing.thing.color for thing in things} for things in things_in(pictures.movedim(-1, 1) / 255)]
        assert all("red" in found for found in colors)
        share[weight] = sum("blue" in found for found in colors) / len(colors)
    assert share[1.0] >= 0.75 and share[0.25] == 0, share


def moved(one: Any, other: Any) -> bool:
    """Whether two batches of pictures differ in something that one sees."""
    return bool((one - other).abs().mean() > 2)


@compares("small world, rows at clip skip 2, with ours", limit=CLOSE)
def check_loras_clip_skip_and_hooks_act() -> None:
    import comfy.hooks
    import comfy.sd
    from comfy_extras import nodes_hooks

    import nodes

    model, clip, _ = loaded()
    plain, text = stock(clip, PROMPT), "a red circle"
    skipped = nodes.CLIPSetLastLayer().set_last_layer(clip, -2)[0]
    world = pack_module("studio.world.model").load_world()[0]
    encoders = pack_module("weighting.encoders").Encoders.of_models({"clip_l": world.whole_text()}, clip_skip=2)
    difference(stock(skipped, text)[0][0], encoders(text).hidden)
    assert (stock(skipped, text)[0][0] - stock(clip, text)[0][0]).abs().max() > 0.1

    lora = make_lora(clip.cond_stage_model, r"layers\.\d+\.mlp\.fc1\.weight")
    changed = with_lora(clip, lora, 1.0)
    assert (stock(changed, PROMPT)[0][0] - plain[0][0]).abs().max() > 0.01
    difference(ours(changed, PROMPT), stock(changed, PROMPT))
    hooks = comfy.hooks.create_hook_lora(lora=lora, strength_model=0.0, strength_clip=1.0)
    hooked = nodes_hooks.SetClipHooks().apply_hooks(clip, False, False, hooks)[0]
    difference(stock(hooked, PROMPT)[0][0], stock(changed, PROMPT)[0][0])

    of_model = make_lora(model.model, r"attn2\.to_(v|out\.0)\.weight")
    weaker = comfy.sd.load_lora_for_models(model, None, of_model, 20.0, 0.0)[0]
    assert moved(drawn(plain, model=weaker), drawn(plain))


def halves_with(color: str, pictures: Any) -> tuple[float, float]:
    """Share of pictures with a thing of a colour in the left half, and in the right."""
    found = pack_module("studio.world.judge").things_in(pictures.movedim(-1, 1) / 255)
    places = [[one.thing.x < 16 for one in things if one.thing.color == color] for things in found]
    return tuple(sum(is_left in picture for picture in places) / len(places) for is_left in (True, False))  # type: ignore[return-value]


def check_a_lora_in_one_region_marks_its_half_alone() -> None:
    """The LoRA that comes with the pack makes things purple: in 64 pictures of each way of writing it."""
    import nodes

    clip, node = loaded()[1], nodes.NODE_CLASS_MAPPINGS["WeightedCLIPRegion"]()
    tag, encode, count = "<lora:small-world-purple>", "WeightedCLIPA1111Encode", 64

    def prompt(text: str, **inputs: Any) -> Any:
        return run_ours(encode, clip=clip, text=text, padding="drop", **inputs)["result"][0]

    def by_nodes(left: str, right: str) -> Any:
        base = prompt("a red circle and a blue square")
        for text, area in ((left, "left half"), (right, "right half")):
            (base, _) = node.place(base, prompt(text, loras="in time"), 1.0, area, 0.0, 1.0, "percent")["result"]
        return base

    by_part = {"regions": "prompt-control", "loras": "in time, by part"}
    ways = {
        "nodes": by_nodes("a red circle", f"a blue square {tag}"),
        "couple": prompt(f"a red circle FILL() COUPLE(0.5 1) a blue square {tag}", **by_part),
        "and": prompt(f"a red circle MASK(0 0.5) AND a blue square MASK(0.5 1) {tag}", **by_part),
    }
    for name, positive in ways.items():
        left, right = halves_with("purple", drawn(positive, empty(count=count)))
        assert right >= 0.95 and left <= 0.05, (name, left, right)
    left, right = halves_with("purple", drawn(by_nodes(f"a blue square {tag}", "a red circle"), empty(count=count)))
    assert left >= 0.95 and right <= 0.05, (left, right)
    unused = prompt("a red circle FILL() COUPLE(0.5 1) a blue square", **by_part)
    assert halves_with("purple", drawn(unused, empty(count=32))) == (0, 0)


@compares("small world, VAE Encode, with the world's own", limit=CLOSE)
def check_pictures_and_latents_go_both_ways() -> None:
    import nodes

    _, clip, vae = loaded()
    pixels = drawn(stock(clip, PROMPT)) / 255
    (latents,) = nodes.VAEEncode().encode(vae, pixels)
    difference(latents["samples"], pack_module("studio.world.model").to_latents(pixels.movedim(-1, 1)))
    tiled = nodes.VAEDecodeTiled().decode(vae, latents, 512)[0]
    difference(tiled, pixels)
    nearby = drawn(stock(clip, PROMPT), latents, denoise=0.3)
    assert moved(nearby, 255 * pixels)
    assert (nearby - 255 * pixels).abs().mean() < (drawn(stock(clip, "a green cross")) - 255 * pixels).abs().mean()

    inpainting = nodes.SetLatentNoiseMask().set_mask(latents, torch.cat([torch.zeros(32, 16), torch.ones(32, 16)], 1))[
        0
    ]
    half = drawn(stock(clip, "a green cross"), inpainting)
    assert (half - 255 * pixels)[:, :, :14].abs().max() <= 1 and moved(half[:, :, 16:], 255 * pixels[:, :, 16:])


def check_areas_and_previews_work() -> None:
    import latent_preview
    from comfy.cli_args import LatentPreviewMethod, args

    import nodes

    model, clip, _ = loaded()
    area = nodes.ConditioningSetArea().append(stock(clip, "a blue square"), 64, 128, 0, 0, 1.0)[
        0
    ]  # an eighth of it in latents
    assert moved(drawn(stock(clip, "a red circle") + area), drawn(stock(clip, "a red circle")))
    with patch.object(args, "preview_method", LatentPreviewMethod.Latent2RGB):
        previewer = latent_preview.get_previewer(torch.device("cpu"), model.model.latent_format)
        picture = torch.rand(1, 3, 32, 32)
        shown = previewer.decode_latent_to_preview(pack_module("studio.world.model").to_latents(picture))
        assert shown.size == (16, 16)
        mean = torch.nn.functional.avg_pool2d(picture, 2)[0].movedim(0, -1)
        found = torch.frombuffer(bytearray(shown.tobytes()), dtype=torch.uint8).view(16, 16, 3) / 255
        assert (found - mean).abs().max() < 0.02


def check_a_missing_or_damaged_file_is_told_in_words() -> None:
    import nodes

    world, hosted = pack_module("studio.world.model"), pack_module("hosts.comfy.models.world")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "world.safetensors")
        whole = world.TRAINED.read_bytes()
        for data in (None, b"", whole[: len(whole) // 2], whole[:8] + b"x" + whole[9:]):
            if data is not None:
                path.write_bytes(data)
            message = refusal(lambda: hosted.load_hosted_world(path))
            assert message.startswith(str(path)) and "\n" not in message, message
        path.unlink()
        node, read = nodes.NODE_CLASS_MAPPINGS["WeightedCLIPLoadWorld"](), hosted.load_hosted_world
        with patch.object(world, "TRAINED", path), patch.object(read, "__defaults__", (path, "auto")):
            assert "world train" in refusal(lambda: node.load("cpu"))
    assert "auto, cpu" in refusal(lambda: node.load("cuda:9"))


if __name__ == "__main__":
    main(globals())
