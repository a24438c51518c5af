"""Pictures of the nodes' help pages, with the pack's own drawing code."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from PIL import Image, ImageDraw

from ..dalle.config import PUBLISHED, DVAEConfig
from ..dalle.dvae import DVAE
from ..dalle.pieces import clip_pieces
from ..dalle.tokens import read_swaps, swapped
from ..encoder.config import CLIP_L, VISION_TOWERS, TextConfig, VisionConfig
from ..encoder.image_file import image_of
from ..encoder.images import best
from ..encoder.text_model import TextEncoder
from ..encoder.tokenizer import default_tokenizer
from ..hosts.comfy.a1111.noise import A1111Noise
from ..hosts.comfy.a1111.parameters import read_parameters
from ..hosts.comfy.a1111.schedules import Sigmas, make_sigmas
from ..web import difference, pictures
from ..web.pictures import matrices, sheets
from ..web.pictures.canvas import Canvas
from ..web.pictures.style import DARK, MARGIN, SMALL_SIZE, Color, mix, readable
from ..web.pictures.weight_grid import draw_sweep
from ..weighting.convert import convert
from ..weighting.encoders import Encoders
from ..weighting.infotext import read_infotext
from ..weighting.options import EncodeOptions
from ..weighting.sweep import read_sweep
from ..weighting.timed.schedule import COUNTERS, read_timed, runs
from ..weighting.towers import Reader
from ..weighting.view import view
from ..weighting.word_maps import key_rows
from ..weighting.words import words_of_towers
from ..world.measure import PHRASES, REGIONS, Drawable, Places, Way
from ..world.model import noise_of, sampled, to_pictures
from ..world.watching import mean_maps, watched
from .docs_pictures import TWO, load_clip_module, load_of_tests, painter, read, scored_shapes

HELP_WIDTH = 340
"""Width of the pictures in help pages, in pixels: the panel that shows them is hardly wider."""


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
    other = convert(text, "a1111", "comfy", default_tokenizer()).text
    chips = pictures.draw_tokens(view(read(text)), width=HELP_WIDTH).crop((0, 10, HELP_WIDTH, MARGIN + 92))
    canvas = Canvas(HELP_WIDTH, chips.height + 92, DARK.background)
    for row, (name, written) in enumerate({"a1111": text, "comfy": other}.items()):
        y = 18 + row * 42
        canvas.text(MARGIN, y, name, DARK.muted, size=13)
        canvas.text(MARGIN, y + 19, written, DARK.text, size=14)
    picture = canvas.image()
    picture.paste(chips, (0, 92))
    return picture


def two_towers(text_g: str, text_l: str) -> Image.Image:
    """Both texts of SDXL, their encoders, and the rows side by side."""
    canvas = Canvas(HELP_WIDTH, 214, DARK.background)
    left, unit = 14.0, (HELP_WIDTH - 28) / (768 + 1280)
    towers = (("text_l", text_l, "CLIP-L", 768, DARK.down), ("text_g", text_g, "CLIP-G", 1280, DARK.up))
    for row, (name, text, tower, dim, color) in enumerate(towers):
        y, middle = 60 - row * 40, left + dim * unit / 2
        start = HELP_WIDTH - 34 if row else middle  # next to the other text
        canvas.text(14, y, name, DARK.muted, size=13)
        canvas.text(64, y, text, DARK.text, size=14)
        canvas.arrow([(start, y + 12), (start, 116)], DARK.muted)
        label(canvas, middle, 134, tower, mix(DARK.surface, color, 0.6), dim * unit - 2, 32)
        canvas.text(middle, 163, f"{dim} wide", DARK.text, size=13, align="center")
        left += dim * unit
    canvas.text(HELP_WIDTH / 2, 192, "77 rows for each chunk, side by side", DARK.muted, size=13, align="center")
    return canvas.image()


def clip_skips() -> Image.Image:
    """Layers of CLIP-L, and those used by clip skip 1 and 2."""
    canvas = Canvas(HELP_WIDTH, 136, DARK.background)
    step, y, count = (HELP_WIDTH - 28) / CLIP_L.num_layers, 50, CLIP_L.num_layers
    canvas.text(14, 18, "the layers of CLIP-L", DARK.muted, size=13)
    for layer in range(1, count + 1):
        x = 14 + (layer - 0.5) * step
        skip = count + 1 - layer
        color = mix(DARK.surface, DARK.down, 0.7) if skip < 3 else DARK.surface
        label(canvas, x, y, str(layer), color, step - 3, 32)
        if skip < 3:
            bottom = 114 if skip == 1 else 88
            canvas.line([(x, y + 18), (x, bottom), (x - 18, bottom)], DARK.muted)
            canvas.text(x - 24, bottom, f"clip_skip {skip}", DARK.text, size=14, align="right")
    return canvas.image()


def lora_tag() -> Image.Image:
    """A prompt with a LoRA's tag, and the destination of its parts."""
    canvas = Canvas(HELP_WIDTH, 162, DARK.background)
    canvas.text(14, 28, "a castle in the fog", DARK.text, size=14)
    tag = 246
    label(canvas, tag, 28, "<lora:ink:0.5:0.8>", mix(DARK.surface, DARK.up, 0.6), 166, 30)
    ends = ((74, "text", "a castle in the fog"), (198, "CLIP", "ink at 0.5"), (294, "MODEL", "ink at 0.8"))
    for x, name, what in ends:
        start = x if name == "text" else tag
        points = [(start, 46), (x, 96)] if start == x else [(start, 46), (start, 70), (x, 70), (x, 96)]
        canvas.arrow(points, DARK.muted)
        canvas.text(x, 112, name, DARK.text, size=14, bold=True, align="center")
        canvas.text(x, 134, what, DARK.muted, size=13, align="center")
    return canvas.image()


def remembered_chunks() -> Image.Image:
    """Chunks of a prompt with a changed word, and which of them are encoded."""
    canvas = Canvas(HELP_WIDTH, 178, DARK.background)
    rows = (
        ("chunk 1", "a castle, …"),
        ("chunk 2", "oil painting, …"),
        ("chunk 3", "… evening light"),
        ("empty prompt", ""),
    )
    for index, (name, text) in enumerate(rows):
        y, is_new = 24 + 34 * index, name == "chunk 3"
        canvas.text(10, y, name, DARK.muted, size=SMALL_SIZE)
        label(canvas, 174, y, text, mix(DARK.surface, DARK.up, 0.6 * is_new), 140, 26)
        about = "encoded" if is_new else "remembered"
        canvas.text(254, y, about, DARK.text if is_new else DARK.muted, size=SMALL_SIZE, bold=is_new)
    canvas.text(10, 162, "A word of chunk 3 was changed.", DARK.muted, size=SMALL_SIZE)
    return canvas.image()


def changed_word(text: str, word: str, other: str) -> Image.Image:
    """Chart of the changes in a text if the tests' CLIP has the embedding of another word for one."""
    tokenize = default_tokenizer()
    [[one], [another]] = [[token.id for token in tokenize(name)] for name in (word, other)]
    model = load_clip_module().trained_clip().text
    changed = copy.deepcopy(model)
    changed.embeddings.token_embedding.weight[one] = model.embeddings.token_embedding.weight[another]
    original, swapped = (
        Encoders({"clip_l": Reader(tokenize)}, {"clip_l": TextEncoder(encoder)})
        .prepare([text], scheme="unweighted")
        .run()[0]
        .prompts["clip_l"]
        for encoder in (model, changed)
    )
    with (
        patch.multiple(difference, HEADING="Each token, before and after", LEGEND="length and angle: of each row"),
        patch.multiple(pictures.changes, GUTTER=148, MARGIN=10),
    ):
        found = difference.difference("clip_l", original, swapped)
        return difference.draw_differences([found], width=HELP_WIDTH + 10)


def two_halves(text: str, *, clip: TextConfig, tower: VisionConfig) -> Image.Image:
    """Inputs of the two halves of a CLIP, and where their vectors meet."""
    canvas = Canvas(HELP_WIDTH, 232, DARK.background)
    halves = (
        (86, f"“{text}”", "text encoder", f"{clip.num_layers} layers, {clip.hidden_dim} wide", DARK.down),
        (254, f"{tower.image_size} × {tower.image_size} pixels", "image encoder", "", DARK.up),
    )
    for x, given, name, size, color in halves:
        size = size or f"{tower.num_layers} layers, {tower.hidden_dim} wide"
        canvas.text(x, 24, given, DARK.text, size=14, align="center")
        canvas.arrow([(x, 36), (x, 56)], DARK.muted)
        label(canvas, x, 76, name, mix(DARK.surface, color, 0.6), 136, 36)
        canvas.text(x, 108, size, DARK.muted, size=13, align="center")
        canvas.arrow([(x, 120), (x, 140)], DARK.muted)
        label(canvas, x, 156, f"{tower.projection_dim} numbers", DARK.surface, 136, 28)
        canvas.line([(x, 171), (x, 186), (HELP_WIDTH / 2, 186)], DARK.muted)
    canvas.arrow([(HELP_WIDTH / 2, 186), (HELP_WIDTH / 2, 202)], DARK.muted)
    canvas.text(HELP_WIDTH / 2, 216, "score: their cosine", DARK.text, size=14, bold=True, align="center")
    return canvas.image()


def image_and_tokens(config: DVAEConfig, side: int) -> Image.Image:
    """Tokens of an image, and a dVAE's reconstruction."""
    with torch.device("meta"):
        dvae = DVAE(config)
    sizes = [sum(part.numel() for part in half.parameters()) / 1e6 for half in (dvae.encoder, dvae.decoder)]
    count = side // config.downsampling
    canvas = Canvas(HELP_WIDTH, 196, DARK.background)
    for x, name, size, color, is_down in (
        (86, "encoder", sizes[0], DARK.down, True),
        (254, "decoder", sizes[1], DARK.up, False),
    ):
        canvas.text(x, 24, f"{side} × {side} pixels", DARK.text, size=14, align="center")
        for top, bottom in ((36, 56), (112, 134)):
            canvas.arrow([(x, top), (x, bottom)] if is_down else [(x, bottom), (x, top)], DARK.muted)
        label(canvas, x, 76, name, mix(DARK.surface, color, 0.6), 136, 36)
        canvas.text(x, 103, f"{size:.1f} million parameters", DARK.muted, size=12, align="center")
    text = f"{count} × {count} tokens, each 0 to {config.vocab_size - 1:,}"
    label(canvas, HELP_WIDTH / 2, 156, text, DARK.surface, 304, 34)
    return canvas.image()


def house(side: int) -> Image.Image:
    """A picture of a house on a hill."""
    picture = Image.new("RGB", (512, 512), (90, 160, 250))
    draw = ImageDraw.Draw(picture)
    draw.ellipse((360, 40, 470, 150), fill=(255, 240, 90))
    draw.ellipse((-200, 330, 520, 900), fill=(60, 170, 60))
    draw.ellipse((200, 370, 800, 900), fill=(30, 130, 40))
    draw.rectangle((130, 220, 290, 370), fill=(245, 240, 225))
    draw.polygon([(105, 220), (210, 120), (315, 220)], fill=(200, 40, 30))
    draw.rectangle((185, 290, 235, 370), fill=(120, 70, 30))
    draw.rectangle((390, 320, 410, 400), fill=(110, 60, 20))
    draw.ellipse((340, 210, 460, 340), fill=(20, 110, 30))
    return picture.resize((side, side), Image.Resampling.BOX)


def palette_tokens(side: int) -> tuple[DVAE, torch.Tensor]:
    """The tests' dVAE of plain colours, and the tokens of a picture."""
    dvae = load_of_tests("dalle", "models").palette_dvae()
    pixels = torch.from_numpy(np.asarray(house(side)) / 255).float().movedim(-1, 0)  # [3, h, w]
    return dvae, dvae.tokens(pixels.unsqueeze(0))


def as_picture(pixels: torch.Tensor, side: int) -> Image.Image:
    """The first image of ``[b, 3, h, w]`` with so many pixels a side."""
    return image_of(pixels[0]).resize((side, side), Image.Resampling.NEAREST)


def token_grid() -> Image.Image:
    """The grid of the node Image to Tokens."""
    _, tokens = palette_tokens(32)
    with patch.multiple(pictures.token_grid, MAX_CELL=37, MIN_CELL=37):
        return pictures.draw_token_grid(house(512), tokens[0].tolist())


def swapped_tokens(swap: str) -> Image.Image:
    """A picture of tokens, and one with swapped tokens."""
    dvae, tokens = palette_tokens(64)
    _, rows, columns = tokens.shape
    changed, _ = swapped(tokens, read_swaps(swap, rows, columns, dvae.config.vocab_size))
    side, gap = 152, 36
    canvas = Canvas(HELP_WIDTH, side + 44, DARK.background)
    canvas.text(side / 2, 16, "as it is", DARK.text, size=14, align="center")
    canvas.text(HELP_WIDTH - side / 2, 16, swap, DARK.text, size=14, align="center")
    middle = 32 + side / 2
    canvas.arrow([(side + 8, middle), (side + gap - 6, middle)], DARK.muted)
    picture = canvas.image()
    for left, ids in ((0, tokens), (HELP_WIDTH - side, changed)):
        picture.paste(as_picture(dvae.images(ids), side), (left, 32))
    return picture


def parts_of_dalle(caption: str, side: int) -> Image.Image:
    """The way from a caption to an image."""
    dvae, tokens = palette_tokens(4 * side)
    canvas = Canvas(HELP_WIDTH, 338, DARK.background)
    middle, cell, top = HELP_WIDTH / 2, 9, 192
    canvas.text(middle, 18, f"“{caption}”", DARK.text, size=14, align="center")
    canvas.arrow([(middle, 30), (middle, 46)], DARK.muted)
    pieces = clip_pieces()
    shown = [*(pieces.symbol(piece).removesuffix("</w>") for piece in pieces(caption)), "", ""]
    widths = [10 + 8 * len(text) if text else 22 for text in shown]
    left = middle - (sum(widths) + 5 * (len(widths) - 1)) / 2
    for text, width in zip(shown, widths, strict=True):
        color = mix(DARK.surface, DARK.down, 0.6) if text else DARK.surface
        label(canvas, left + width / 2, 62, text, color, width, 26)
        left += width + 5
    canvas.arrow([(middle, 80), (middle, 98)], DARK.muted)
    label(canvas, middle, 120, "transformer: token after token", mix(DARK.surface, DARK.up, 0.45), 230, 36)
    grid, picture_left, picture_side = 26.0, HELP_WIDTH - 26 - side * cell, side * cell
    canvas.line([(middle, 138), (middle, 158), (grid + picture_side / 2, 158)], DARK.muted)
    canvas.arrow([(grid + picture_side / 2, 158), (grid + picture_side / 2, top - 8)], DARK.muted)
    for row, numbers in enumerate(tokens[0].tolist()):
        for column, number in enumerate(numbers):
            x, y = grid + column * cell, top + row * cell
            canvas.box(x, y, x + cell - 1, y + cell - 1, fill=pictures.token_grid.token_color(number))
    canvas.text(
        grid + picture_side / 2, top + picture_side + 18, f"{side} × {side} tokens", DARK.text, size=14, align="center"
    )
    edge, y = grid + picture_side, top + picture_side / 2
    canvas.arrow([(edge + 6, y), (picture_left - 6, y)], DARK.muted)
    label(canvas, (edge + picture_left) / 2, y - 26, "dVAE", mix(DARK.surface, DARK.down, 0.6), 54, 30)
    text = f"{dvae.config.downsampling * side} × {dvae.config.downsampling * side} pixels"
    canvas.text(picture_left + picture_side / 2, top + picture_side + 18, text, DARK.text, size=14, align="center")
    picture = canvas.image()
    picture.paste(as_picture(dvae.images(tokens), picture_side), (picture_left, top))
    return picture


def growing_images(side: int) -> Image.Image:
    """An image as in its preview, each time with more rows of tokens."""
    dvae, tokens = palette_tokens(4 * side)
    pixels, gap = dvae.images(tokens), 12
    shown, width = [side // 4, side // 2, side], (HELP_WIDTH - 2 * gap) // 3
    canvas = Canvas(HELP_WIDTH, width + 30, DARK.background)
    for index, rows in enumerate(shown):
        text = f"{rows} of {side} rows" if rows < side else "done"
        canvas.text(index * (width + gap) + width / 2, 14, text, DARK.text, size=13, align="center")
    picture = canvas.image()
    for index, rows in enumerate(shown):
        drawn = torch.full_like(pixels, 0.5)
        top = rows * dvae.config.downsampling
        drawn[:, :, :top] = pixels[:, :, :top]
        picture.paste(as_picture(drawn, width), (index * (width + gap), 28))
    return picture


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
    for row, name in enumerate(rows):
        canvas.text(left, head + row * (line + side + gap) + line / 2, name, DARK.text, size=13, bold=True)
    picture = canvas.image()
    for row, cells in enumerate(rows.values()):
        drawn = painter().pictures([text for text, _ in cells], [[seed] for _, seed in cells])
        for column, one in enumerate(drawn):
            picture.paste(
                as_picture(one, side), (left + column * (side + gap), head + row * (line + side + gap) + line)
            )
    return picture


def swept_in_small_world(text: str, seeds: Sequence[int], side: int) -> Image.Image:
    """Grid of a prompt with ranges of weights."""
    way, swept = Way("masked_blend", {"scheme": "masked_blend"}), read_sweep(text)
    drawn = painter().pictures([painter().text(one, way) for one in swept.texts], [seeds] * len(swept.texts))
    return draw_sweep(
        swept, [[as_picture(one, side) for one in some.split(1)] for some in drawn], side=side, theme="dark"
    )


def by_weight(text: str, weights: Sequence[float], ways: Mapping[str, Way], seed: int) -> Image.Image:
    """Pictures of a prompt in which ``*`` is a weight: a column for each weight, a row for each way of weighting."""
    texts = [text.replace("*", f"{weight:g}") for weight in weights]
    rows = {name: [(painter().text(one, way), seed) for one in texts] for name, way in ways.items()}
    return in_small_world(text, [f"{weight:g}" for weight in weights], rows)


def by_seed(
    rows: Mapping[str, Drawable], title: str = TWO.text(part=""), seeds: Sequence[int] = range(5)
) -> Image.Image:
    """Pictures of some prompts: a row for each of them, a column for each seed."""
    shown = {name: [(text, seed) for seed in seeds] for name, text in rows.items()}
    return in_small_world(title, [""] * len(seeds), shown)


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
    own = key_rows([rows.rows_of(word) for word in words], text.rows.shape[1])[None]
    with watched(world.unet) as recorded:
        *_, latent = sampled(world.unet, noise_of([seed]), text._replace(words=own), world.empty)
    maps = mean_maps(recorded)[0]
    tiles = [("the picture", as_picture(to_pictures(latent), 160))]
    shown = (maps / maps.max()).repeat_interleave(10, 1).repeat_interleave(10, 2)
    tiles += [(word, pictures.draw_heat(one.numpy())) for word, one in zip(words, shown, strict=True)]
    canvas = Canvas(HELP_WIDTH, math.ceil(len(tiles) / 2) * 190 + 4, DARK.background)
    for number, (title, _) in enumerate(tiles):
        canvas.text(8 + number % 2 * 166, 14 + number // 2 * 190, title, DARK.text, size=14)
    picture = canvas.image()
    for number, (_, tile) in enumerate(tiles):
        picture.paste(tile, (8 + number % 2 * 166, 26 + number // 2 * 190))
    return picture


def webui_noise(side: int, sources: Mapping[str, A1111Noise]) -> Image.Image:
    """First noise of each setting, in the colours of three of its four channels."""
    gap, top = 8, 26
    tile = (HELP_WIDTH - gap) // len(sources) - gap
    canvas = Canvas(HELP_WIDTH, top + tile + gap, DARK.background)
    for number, title in enumerate(sources):
        canvas.text(gap + number * (tile + gap), 14, title, DARK.text, size=12)
    picture = canvas.image()
    for number, noise in enumerate(sources.values()):
        (drawn,) = noise.generate_noise({"samples": torch.zeros(1, 4, side, side)})
        shown = as_picture((0.5 + drawn[None, :3] / 5).clamp(0, 1), tile)
        picture.paste(shown, (gap + number * (tile + gap), top))
    return picture


def webui_schedules(names: Sequence[str], num_steps: int) -> Image.Image:
    """Sigmas of schedules for SD's noise levels, on a logarithmic scale."""
    betas = torch.linspace(0.00085**0.5, 0.012**0.5, 1000, dtype=torch.float64) ** 2
    alphas = torch.cumprod(1 - betas, 0)
    table = ((1 - alphas) / alphas).sqrt()
    sigmas = Sigmas(table, table.log())
    left, top, height = 44, 34, 170
    canvas = Canvas(HELP_WIDTH, top + height + 30, DARK.background)
    colors = (DARK.up, DARK.down, DARK.accent)
    low, high = math.log(sigmas.least), math.log(sigmas.most)
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
    """Outputs of the node Read A1111 Parameters."""
    found = read_parameters(read_infotext(infotext), "NV")
    rows = {
        **{"prompt": found.prompt, "negative": found.negative, "SAMPLER": found.sampler, "SIGMAS": found.schedule},
        **{"NOISE": f"seed {found.noise.seed}, {found.noise.source}", "cfg": f"{found.cfg:g}"},
        **{
            "size": f"{found.width} x {found.height}",
            "clip_skip": str(found.clip_skip),
            "settings": found.settings.options.scheme,
        },
    }
    height, left = 24, 96
    canvas = Canvas(HELP_WIDTH, height * len(rows) + 20, DARK.background)
    for row, (name, value) in enumerate(rows.items()):
        y = 22 + row * height
        canvas.text(left - 10, y, name, DARK.muted, size=13, align="right")
        canvas.text(left, y, value, DARK.up if name == "settings" else DARK.text, size=13)
    return canvas.image()


def label(canvas: Canvas, x: float, y: float, text: str, color: Color, width: float, height: float) -> None:
    """Draw a box with a text in it, at its centre."""
    canvas.box(x - width / 2, y - height / 2, x + width / 2, y + height / 2, fill=color, radius=5)
    canvas.text(x, y, text, readable(color, DARK.text), size=14, align="center")


def similarity_in_help() -> Image.Image:
    """Scores of texts and images, as narrow as in help pages."""
    scores, texts, images = scored_shapes()
    some = [0, 2, 5]  # those whose captions fit
    with patch.multiple(matrices, TEXT_WIDTH=92, CELLS=((8, 64),), LEGEND_WIDTH=120):
        return pictures.draw_similarity(
            scores[some][:, some], [texts[index] for index in some], [images[index] for index in some]
        )


def ranking_in_help() -> Image.Image:
    """Images in the order of their scores, as narrow as in help pages."""
    scores, texts, images = scored_shapes()
    width = HELP_WIDTH + 16 - 2 * MARGIN
    ranked = scores[0, :8].tolist()
    with patch.multiple(sheets, RANKING_WIDTH=width, MIN_RANKING_WIDTH=width):
        return pictures.draw_ranking(images[:8], ranked, best(ranked, 8), 2, texts[0])


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
    "sdxl-encode": lambda: two_towers("a (lighthouse:1.2) at dusk", "oil painting, (thick strokes:1.3)"),
    "weigh-attention": lambda: by_weight("a red circle (and a blue square:*)", (1, 0.5, 0, -0.5, -1), WEIGHED, 7),
    "word-maps": lambda: word_maps("a red circle and a blue square", ("red circle", "blue square", "and"), 3),
    "place": lambda: by_seed({"nothing placed": of_two(DROP), "circle left, square right": of_two(DROP, PHRASES)}),
    "region": lambda: by_seed({"one prompt": of_two(DROP), "one for each half": of_two(DROP, REGIONS)}),
    "convert": lambda: converted("a ((red)) [cat], (dog:1.3)"),
    "inspect": lambda: pictures.draw_tokens(
        view(read("a (red:1.4) cat, [photorealistic] BREAK (sharp focus")), width=HELP_WIDTH
    ),
    "load": clip_skips,
    "load-prompt-loras": lora_tag,
    "remember": remembered_chunks,
    "load-full": lambda: two_halves("a red fox", clip=CLIP_L, tower=VISION_TOWERS["L/14"]),
    "difference": lambda: changed_word("a red ring", "red", "blue"),
    "load-dvae": lambda: image_and_tokens(PUBLISHED, 256),
    "image-to-tokens": token_grid,
    "tokens-to-image": lambda: swapped_tokens("3-4, 2-7 = 120"),
    "load-dalle": lambda: parts_of_dalle("A house on a hill", 12),
    "dalle-sample": lambda: growing_images(12),
    "sweep": lambda: swept_in_small_world("a red circle and a (blue square:0..1:5)", range(2), 35),
    "sweep-grid": lambda: swept_in_small_world("a (red circle:0..1:3) and a (blue square:0..1:3)", range(1), 50),
    "load-world": lambda: by_seed(
        {one: painter().text(FADED.replace("*", one), SOME["masked_blend"]) for one in ("1", "0.5", "0.25", "0")},
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
    "read-parameters": lambda: read_settings(
        "a (red:1.3) cat\nNegative prompt: blurry\nSteps: 20, Sampler: Euler a, Schedule type: Karras, CFG scale: 7, "
        "Seed: 1234, Size: 512x768, RNG: CPU, Clip skip: 2, Emphasis: No norm"
    ),
    "similarity": similarity_in_help,
    "rerank": ranking_in_help,
}
"""Pictures of web/comfyui/docs/images by name."""
