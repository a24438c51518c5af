"""Pictures of the nodes' help pages that are of the small world, or show what our code answers."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from PIL import Image

from ...encoder.image_file import image_of
from ...encoder.tokenizer import default_tokenizer
from ...hosts.comfy.a1111.noise import A1111Noise
from ...hosts.comfy.a1111.parameters import read_parameters
from ...hosts.comfy.a1111.schedules import Sigmas, make_sigmas
from ...studio.world.model import noise_of, sampled, to_pictures
from ...studio.world.painter import Drawable
from ...studio.world.questions import PHRASES, REGIONS, Places, Way
from ...studio.world.watched_maps import mean_maps, watched
from ...web import pictures
from ...web.pictures.canvas import Canvas
from ...web.pictures.style import DARK, MARGIN, mix, readable
from ...web.pictures.weight_grid import draw_sweep
from ...weighting.infotext import read_infotext
from ...weighting.options import EncodeOptions
from ...weighting.phrases.words import words_of_towers
from ...weighting.placing.word_maps import key_rows
from ...weighting.reading.convert import convert
from ...weighting.reading.prompt_reader import ReadPrompt, read_prompt
from ...weighting.reading.sweep import read_sweep
from ...weighting.reading.view import view
from ...weighting.timed.schedule import COUNTERS, read_timed, runs
from .docs_pictures import TWO, painter

HELP_WIDTH = 340
"""Width of the pictures in help pages, in pixels: the panel that shows them is hardly wider."""


def read(text: str) -> ReadPrompt:
    """Read a prompt in A1111's syntax."""
    return read_prompt(text, EncodeOptions(syntax="a1111"), default_tokenizer())


def timeline(text: str, steps: int) -> Image.Image:
    """Text of a timed prompt at each step, by both counters."""
    (branch,) = read_timed(text, steps).branches
    height, left, top = 28, 14, 40
    width = (HELP_WIDTH - 2 * left) / steps
    canvas = Canvas(HELP_WIDTH, top + 2 * 88, DARK.background)
    colors = [mix(DARK.surface, DARK.down, 0.75), mix(DARK.surface, DARK.up, 0.75)]
    canvas.text(left, 20, text, DARK.text, size=15, bold=True)
    for row, counter in enumerate(reversed(COUNTERS)):
        y = top + row * 88
        canvas.text(left, y + 12, f"counter: {counter}", DARK.muted, size=13)
        for number, run in enumerate(runs(branch, steps, counter)):
            for step in range(run.first, run.end):
                x = left + step * width
                canvas.box(x, y + 24, x + width - 1, y + 24 + height, fill=colors[number], radius=3)
                ink = readable(colors[number], DARK.text)
                canvas.text(x + width / 2, y + 24 + height / 2, str(step + 1), ink, size=13, align="center")
            start, what = left + run.first * width, run.fragment.text.split(" on ")[0] + " on …"
            canvas.text(start, y + 24 + height + 12, what, DARK.text, size=13)
    return canvas.image()


def converted(text: str) -> Image.Image:
    """A prompt in A1111's syntax and in ComfyUI's, above their common chips."""
    target_text = convert(text, "a1111", "comfy", default_tokenizer()).text
    chips = pictures.draw_tokens(view(read(text)), width=HELP_WIDTH).crop((0, 10, HELP_WIDTH, MARGIN + 92))
    canvas = Canvas(HELP_WIDTH, chips.height + 92, DARK.background)
    for row, (name, written) in enumerate({"a1111": text, "comfy": target_text}.items()):
        y = 18 + row * 42
        canvas.text(MARGIN, y, name, DARK.muted, size=13)
        canvas.text(MARGIN, y + 19, written, DARK.text, size=14)
    canvas.paste(chips, 0, 92)
    return canvas.image()


def as_picture(pixels: torch.Tensor, side: int) -> Image.Image:
    """The first image of ``[b, 3, h, w]`` with so many pixels a side."""
    return image_of(pixels[0]).resize((side, side), Image.Resampling.NEAREST)


def in_small_world(
    title: str, columns: Sequence[str], rows: Mapping[str, Sequence[tuple[Drawable, int]]]
) -> Image.Image:
    """Pictures of the small world: below each name, prompts with their seeds."""
    left, gap, head, line = 10, 5, 30 + 20 * any(columns), 20
    side = (HELP_WIDTH - 2 * left + gap) // len(columns) - gap
    canvas = Canvas(HELP_WIDTH, head + len(rows) * (line + side + gap) + gap, DARK.background)
    canvas.text(left, 17, title.replace("*", "weight"), DARK.text, size=14)
    for column, name in enumerate(columns):
        canvas.text(left + column * (side + gap) + side / 2, 40, name, DARK.muted, size=13, align="center")
    for row, (name, cells) in enumerate(rows.items()):
        top = head + row * (line + side + gap)
        canvas.text(left, top + line / 2, name, DARK.text, size=13, bold=True)
        drawn = painter().pictures([text for text, _ in cells], [[seed] for _, seed in cells])
        for column, drawing in enumerate(drawn):
            canvas.paste(as_picture(drawing, side), left + column * (side + gap), top + line)
    return canvas.image()


def swept_in_small_world(text: str, seeds: Sequence[int], side: int) -> Image.Image:
    """Grid of a prompt with ranges of weights."""
    way, swept = Way("masked_blend", {"scheme": "masked_blend"}), read_sweep(text)
    drawn = painter().pictures([painter().text(variant, way) for variant in swept.texts], [seeds] * len(swept.texts))
    return draw_sweep(
        swept, [[as_picture(drawing, side) for drawing in row.split(1)] for row in drawn], side=side, theme="dark"
    )


def by_weight(text: str, weights: Sequence[float], ways: Mapping[str, Way], seed: int) -> Image.Image:
    """Pictures of a prompt in which ``*`` is a weight: a column for each weight, a row for each way of weighting."""
    texts = [text.replace("*", f"{weight:g}") for weight in weights]
    rows = {name: [(painter().text(variant, way), seed) for variant in texts] for name, way in ways.items()}
    return in_small_world(text, [f"{weight:g}" for weight in weights], rows)


def by_seed(
    rows: Mapping[str, Drawable], title: str = TWO.text(part=""), seeds: Sequence[int] = range(5)
) -> Image.Image:
    """Pictures of some prompts: a row for each of them, a column for each seed."""
    cells = {name: [(text, seed) for seed in seeds] for name, text in rows.items()}
    return in_small_world(title, [""] * len(seeds), cells)


def of_two(options: Mapping[str, Any] | None = None, places: Places | None = None) -> Drawable:
    """A prompt of two things, as the U-Net reads it; weight 4 inside the places of phrases, as in the template."""
    return painter().drawable(TWO, Way("", options or {}, places=places), 4.0 if places == PHRASES else 1.0, "")


def kept_apart() -> dict[str, Drawable]:
    """A prompt of three things without and with their phrases kept apart."""
    ways = {"CLIP Text Encode": SOME["comfy"], "Color Bleed": Way("", binds=True)}
    return {name: painter().text(", ".join(APART), way, APART) for name, way in ways.items()}


def word_maps(prompt: str, words: Sequence[str], seed: int) -> Image.Image:
    """A picture of the small world and the maps of some words of its prompt, two in a row."""
    world = painter()
    text = world.text(prompt, Way("watched"))
    [encoded] = world.encoders.prepare([prompt], EncodeOptions()).run()
    rows = (words_of_towers(encoded.prompts) or {})["clip_l"]
    word_keys = key_rows([rows.rows_of(word) for word in words], text.rows.shape[1])[None]
    with watched(world.network) as recorded:
        *_, latent = sampled(world.network, noise_of([seed]), text._replace(words=word_keys), world.empty)
    maps = mean_maps(recorded)[0]
    tiles = [("the picture", as_picture(to_pictures(latent), 160))]
    enlarged = (maps / maps.max()).repeat_interleave(10, 1).repeat_interleave(10, 2)
    tiles += [(word, pictures.draw_heat(heat_map.numpy())) for word, heat_map in zip(words, enlarged, strict=True)]
    canvas = Canvas(HELP_WIDTH, math.ceil(len(tiles) / 2) * 190 + 4, DARK.background)
    for number, (title, tile) in enumerate(tiles):
        left, top = 8 + number % 2 * 166, number // 2 * 190
        canvas.text(left, top + 14, title, DARK.text, size=14)
        canvas.paste(tile, left, top + 26)
    return canvas.image()


def webui_noise(side: int, sources: Mapping[str, A1111Noise]) -> Image.Image:
    """First noise of each setting, in the colours of three of its four channels."""
    gap, top = 8, 26
    tile = (HELP_WIDTH - gap) // len(sources) - gap
    canvas = Canvas(HELP_WIDTH, top + tile + gap, DARK.background)
    for number, (title, noise) in enumerate(sources.items()):
        left = gap + number * (tile + gap)
        canvas.text(left, 14, title, DARK.text, size=12)
        (drawn,) = noise.generate_noise({"samples": torch.zeros(1, 4, side, side)})
        canvas.paste(as_picture((0.5 + drawn[None, :3] / 5).clamp(0, 1), tile), left, top)
    return canvas.image()


def webui_schedules(names: Sequence[str], num_steps: int) -> Image.Image:
    """Sigmas of schedules for SD's noise levels, on a logarithmic scale."""
    betas = torch.linspace(0.00085**0.5, 0.012**0.5, 1000, dtype=torch.float64) ** 2
    alphas = torch.cumprod(1 - betas, 0)
    table = ((1 - alphas) / alphas).sqrt()
    sigmas = Sigmas(table, table.log())
    left, top, height = 44, 34, 170
    canvas = Canvas(HELP_WIDTH, top + height + 30, DARK.background)
    colors = (DARK.up, DARK.down, DARK.accent)
    low, high = math.log(sigmas.smallest), math.log(sigmas.largest)
    for level in (10, 1, 0.1):
        y = top + height * (high - math.log(level)) / (high - low)
        canvas.line([(left, y), (HELP_WIDTH - 14, y)], DARK.line, width=1)
        canvas.text(left - 8, y, f"{level:g}", DARK.muted, size=12, align="right")
    for number, (name, color) in enumerate(zip(names, colors, strict=True)):
        canvas.box(left + 98 * number, 10, left + 98 * number + 10, 20, fill=color, radius=2)
        canvas.text(left + 98 * number + 16, 15, name, DARK.text, size=13)
        points = [
            (left + 8 + i * (HELP_WIDTH - left - 30) / (num_steps - 1), top + height * (high - value) / (high - low))
            for i, value in enumerate(make_sigmas(name, sigmas, num_steps)[:-1].log().tolist())
        ]
        canvas.line(points, color)
        for x, y in points:
            canvas.dot(x, y, 3, color)
    canvas.text(left + 8, top + height + 16, f"sigma at each of {num_steps} steps", DARK.muted, size=12)
    return canvas.image()


def read_settings(infotext: str) -> Image.Image:
    """Outputs of the node Read Generation Data."""
    parameters = read_parameters(read_infotext(infotext), "NV")
    rows = {
        "prompt": parameters.prompt,
        "negative": parameters.negative,
        "SAMPLER": parameters.sampler,
        "SIGMAS": parameters.schedule,
        "NOISE": f"seed {parameters.noise.seed}, {parameters.noise.source}",
        "cfg": f"{parameters.cfg:g}",
        "size": f"{parameters.width} x {parameters.height}",
        "clip_skip": str(parameters.clip_skip),
        "settings": parameters.settings.options.scheme,
    }
    height, left = 24, 96
    canvas = Canvas(HELP_WIDTH, height * len(rows) + 20, DARK.background)
    for row, (name, value) in enumerate(rows.items()):
        y = 22 + row * height
        canvas.text(left - 10, y, name, DARK.muted, size=13, align="right")
        canvas.text(left, y, value, DARK.up if name == "settings" else DARK.text, size=13)
    return canvas.image()


INFOTEXT = (
    "a (red:1.3) cat\nNegative prompt: blurry\nSteps: 20, Sampler: Euler a, Schedule type: Karras, CFG scale: 7, "
    "Seed: 1234, Size: 512x768, RNG: CPU, Clip skip: 2, Emphasis: No norm"
)
FADED, FALLING = "a red circle and a (blue square:*)", (1, 0.75, 0.5, 0.25, 0)
DROP = {"padding": "drop"}
APART = ("a red circle", "a blue square", "a green triangle")
SOME = {name: Way(name, {"scheme": name}) for name in ("comfy", "a1111", "compel", "masked_blend")}
FADING = {
    "CLIP Text Encode": SOME["comfy"],
    "Fade Words": SOME["masked_blend"],
    "Fade Words, mask_method remove": Way("", {"scheme": "masked_blend", "mask_method": "remove"}),
}
WEIGHED = {
    "CLIP Text Encode": SOME["comfy"],
    "Attention Weights, bias": Way("", how="bias"),
    "value": Way("", how="value"),
}
PICTURES: dict[str, Callable[[], Image.Image]] = {
    "text-encode": lambda: by_weight(FADED, FALLING, SOME, 2),
    "a1111-encode": lambda: timeline("a [cat:dog:0.5] on a (red:1.3) sofa", 10),
    "masked-blend": lambda: by_weight(FADED, FALLING, FADING, 1),
    "bind-phrases": lambda: by_seed(kept_apart(), ", ".join(APART), (22, 60, 73, 70, 95)),
    "mask-control": lambda: by_seed(
        {"CLIP Text Encode": of_two(), "blue square hidden": of_two({"hide": "blue square"})}
    ),
    "weigh-attention": lambda: by_weight("a red circle (and a blue square:*)", (1, 0.5, 0, -0.5, -1), WEIGHED, 7),
    "word-maps": lambda: word_maps("a red circle and a blue square", ("red circle", "blue square", "and"), 3),
    "place": lambda: by_seed({"nothing placed": of_two(DROP), "circle left, square right": of_two(DROP, PHRASES)}),
    "region": lambda: by_seed({"one prompt": of_two(DROP), "one for each half": of_two(DROP, REGIONS)}),
    "convert": lambda: converted("a ((red)) [cat], (dog:1.3)"),
    "inspect": lambda: pictures.draw_tokens(
        view(read("a (red:1.4) cat, [photorealistic] BREAK (sharp focus")), width=HELP_WIDTH
    ),
    "sweep": lambda: swept_in_small_world("a red circle and a (blue square:0..1:5)", range(2), 35),
    "sweep-grid": lambda: swept_in_small_world("a (red circle:0..1:3) and a (blue square:0..1:3)", range(1), 50),
    "load-world": lambda: by_seed(
        {
            weight: painter().text(FADED.replace("*", weight), SOME["masked_blend"])
            for weight in ("1", "0.5", "0.25", "0")
        },
        FADED,
    ),
    "a1111-noise": lambda: webui_noise(
        16,
        {
            "seed 7": A1111Noise(7),
            "half seed 9": A1111Noise(7, subseed=9, subseed_strength=0.5),
            "seed 9": A1111Noise(9),
            "7, resized": A1111Noise(7, resize_width=96, resize_height=96),
        },
    ),
    "a1111-sampler": lambda: webui_schedules(("Karras", "Uniform", "Exponential"), 10),
    "read-parameters": lambda: read_settings(INFOTEXT),
}
"""Pictures of web/comfyui/docs/images by name. The others were drawn once."""
