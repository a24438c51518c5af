"""Pictures of the documents, with the pack's own drawing code, and the icon and the banner of the Comfy Registry.

The registry accepts icons up to 800 × 400 pixels, and banners of 21:9.
"""

from __future__ import annotations

import importlib.util
import random
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType

import torch
from PIL import Image
from safetensors.torch import save_file

from ..encoder.cache import chunk_keys
from ..encoder.config import CLIP_L
from ..encoder.files.checkpoint import hugging_face_tensors, seeded_text_model
from ..encoder.image_file import image_of, open_image
from ..encoder.images import best, image_features
from ..encoder.masks import causal_mask, combine, hide_from, span_mask
from ..encoder.prefix import share
from ..encoder.similarity import similarity
from ..encoder.text_model import TextEncoder
from ..encoder.tokenizer import default_tokenizer
from ..web import pictures
from ..web.pictures.canvas import Canvas
from ..web.pictures.fonts import text_width
from ..web.pictures.measured import draw_chart, draw_grid
from ..web.pictures.style import DARK, LIGHT, MARGIN, SMALL_SIZE, Color, mix, readable
from ..web.pictures.weight_grid import draw_weight_grid
from ..weighting.encoders import Encoders
from ..weighting.options import EncodeOptions
from ..weighting.pipeline import plan_prompt
from ..weighting.plan import mask_tensor, variant_mask, versions_of_first
from ..weighting.reading import ReadPrompt, read_prompt
from ..weighting.schemes import SCHEMES
from ..weighting.towers import Reader
from ..weighting.view import view
from ..weighting.word_maps import key_rows
from ..world.measure import QUESTIONS, SEEDS, WEIGHTS, Painter, Places, Prompt, Way
from ..world.model import load_world
from ..world.scenes import Scene, Thing
from ..world.shapes import KINDS
from ..world.tables import read_measured
from ..world.watching import mean_maps, watched
from .generate import MEASURED
from .sparse_pictures import draw_sparse_masks

ROOT = Path(__file__).resolve().parents[1]
TWO = Prompt(Scene((Thing("red", "circle"), Thing("blue", "square"))), 0)
STRIP = (
    "a (red:1.4) cat and a (dog:0.5) in a bowl, [photorealistic] BREAK ((oil painting)), (cinematic lighting:1.2), "
    "(sharp focus"
)
LENGTH = CLIP_L.context_length


def read(text: str, scheme: str = "a1111") -> ReadPrompt:
    """Read a prompt in A1111's syntax."""
    return read_prompt(text, EncodeOptions(syntax="a1111", scheme=scheme), default_tokenizer())


def blend(text: str, titles: Sequence[str]) -> Image.Image:
    """Masks under which masked_blend encodes a prompt with faded words, with a title for each encoding."""
    prompt = read(text, "masked_blend")
    labels = pictures.mask_labels(prompt.chunks[0], text)
    versions = versions_of_first(plan_prompt(prompt, default_tokenizer()).variants())
    rows = [(title, variant_mask(version, LENGTH)[0]) for title, version in zip(titles, versions, strict=False)]
    return pictures.draw_masks(rows, labels, signs=["+"] * (len(rows) - 1), visible=prompt.chunks[0].num_content + 3)


def hidden(text: str) -> Image.Image:
    """A word hidden from every position, and from some only."""
    prompt = read(text)
    labels = pictures.mask_labels(prompt.chunks[0], text)
    red, dog = labels.index("red"), labels.index("dog")
    causal = causal_mask(LENGTH)
    everywhere = combine(causal, span_mask(LENGTH, [(red, red + 1)]))
    some = combine(causal, hide_from(LENGTH, keys=[red], queries=[dog - 1, dog]))
    assert everywhere is not None
    assert some is not None
    rows = [("red hidden from all", everywhere[0]), ("red hidden from blue and dog", some[0])]
    return pictures.draw_masks(rows, labels, visible=prompt.chunks[0].num_content + 3)


def schemes(text: str) -> Image.Image:
    """Change of each row of a short prompt under each scheme."""
    # to repeat a row does not move it, and without weights below 0 negpip is comfy, and negpip_apart a1111
    moving = tuple(name for name, scheme in SCHEMES.items() if not (scheme.is_repeating or scheme.is_signed))
    change, labels, weights = changes(text, moving)
    return heat_map(change, labels, weights)


def changes(text: str, names: Sequence[str]) -> tuple[dict[str, list[float]], list[str], Sequence[float]]:
    """Change of each row under some schemes, on an encoder with seeded random weights; the rows' labels and weights."""
    encoders = Encoders({"clip_l": Reader(default_tokenizer())}, {"clip_l": TextEncoder(seeded_text_model())})
    prompts = {name: encoders.prepare([text], syntax="a1111", scheme=name) for name in ("unweighted", *names)}
    rows = {name: prepared.run()[0].hidden[0] for name, prepared in prompts.items()}
    plain = rows["unweighted"]
    change: dict[str, list[float]] = {}
    for name in names:
        before = plain[: len(rows[name])]  # a scheme may have no rows of padding
        change[name] = ((rows[name] - before).norm(dim=-1) / before.norm(dim=-1)).tolist()
    (chunk,) = prompts["unweighted"].reads["clip_l"][0].chunks
    return change, [*pictures.mask_labels(chunk, text)[: chunk.num_content + 2], "PAD"], chunk.weights


def heat_map(change: dict[str, list[float]], labels: Sequence[str], weights: Sequence[float]) -> Image.Image:
    """Numbers in coloured cells: a row for each scheme, a column for each token with its label and weight."""
    width, height, left, top = 52, 28, MARGIN + 150, MARGIN + 44
    canvas = Canvas(left + width * len(labels) + MARGIN, top + height * len(change) + MARGIN, LIGHT.background)
    for column, (label, weight) in enumerate(zip(labels, weights, strict=False)):
        x = left + (column + 0.5) * width
        canvas.text(x, top - 36, label, LIGHT.text, size=15, align="center")
        if weight != 1.0:
            canvas.text(x, top - 14, f"{weight:g}", LIGHT.muted, size=SMALL_SIZE, align="center")
    for row, (name, values) in enumerate(change.items()):
        y = top + row * height
        canvas.text(left - 10, y + height / 2, name, LIGHT.text, size=15, align="right")
        for column, value in enumerate(values[: len(labels)]):
            x = left + column * width
            is_moved = value >= 0.0005
            fill = mix(LIGHT.surface, LIGHT.up, min(1.0, 0.12 + value / 0.6)) if is_moved else LIGHT.surface
            canvas.box(x + 1, y + 1, x + width - 1, y + height - 1, fill=fill, radius=3)
            if is_moved:
                number = f"{value:.3f}" if value < 0.01 else f"{value:.2f}"
                middle = x + width / 2
                canvas.text(middle, y + height / 2, number, readable(fill, LIGHT.text), size=SMALL_SIZE, align="center")
    return canvas.image()


def shared_prefix(text: str, names: Sequence[str]) -> Image.Image:
    """Encodings of a masked blend, and which of their states are computed anew."""
    found = read(text, scheme="masked_blend")
    variants = versions_of_first(plan_prompt(found, default_tokenizer()).variants())
    ids = [chunk.ids for variant in variants for chunk in variant.chunks]
    mask = mask_tensor([visible for variant in variants for visible in variant.visible], LENGTH)
    fresh = set(share(chunk_keys(ids, mask, is_causal=True)).fresh)
    words = [*pictures.mask_labels(found.chunks[0], text)[: found.chunks[0].num_content + 2], "…"]
    left, width, height = 110.0, 52.0, 30.0
    canvas = Canvas(left + width * len(words) + MARGIN, 3 * height + 76, LIGHT.background)
    for column, word in enumerate(words):
        canvas.text(left + width * (column + 0.5), 24, word, LIGHT.text, size=14, align="center")
    for row, name in enumerate(names):
        y = 40 + row * height
        canvas.text(left - 10, y + height / 2, name, LIGHT.text, size=14, align="right")
        for column in range(len(words)):
            fill = LIGHT.visible if (row, column) in fresh else LIGHT.hidden
            x = left + width * column
            canvas.box(x + 1, y + 1, x + width - 1, y + height - 1, fill=fill, radius=3)
    count = len(fresh)
    caption = f"dark: computed, {count} states of {len(names) * LENGTH}; light: taken from a row above"
    canvas.text(left, 40 + 3 * height + 18, caption, LIGHT.muted, size=13)
    return canvas.image()


# ---- pictures by the tests' small CLIP


@cache
def load_clip_module() -> ModuleType:
    """Load the module that trains the tests' small CLIP."""
    return load_of_tests("encoder", "trained_clip")


def load_of_tests(folder: str, name: str) -> ModuleType:
    """Load a module of the tests."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "tests" / folder / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def scored_shapes() -> tuple[torch.Tensor, list[str], list[Image.Image]]:
    """Scores by the tests' CLIP on captions and pictures that it was not trained on; and these two."""
    module = load_clip_module()
    clip, rng, shown = module.trained_clip(), random.Random(2), module.split()[1]
    images = [module.picture_of(shape, rng, 192) for shape in shown]
    texts = [shape.caption for shape in shown]
    vectors = clip.text_features([module.chunk_of(text).plain_ids for text in texts])
    return similarity(vectors, image_features(clip, images)), texts, images


@cache
def compared(count: int, keep: int) -> dict[str, Image.Image]:
    """Texts and images with their scores."""
    scores, texts, images = scored_shapes()
    ranked = scores[0].tolist()
    return {
        "similarity": pictures.draw_similarity(scores[:count, :count], texts[:count], images[:count]),
        "ranking": pictures.draw_ranking(images, ranked, best(ranked, len(ranked)), keep, texts[0]),
    }


@cache
def sorted_shapes() -> dict[str, Image.Image]:
    """Output of ``sort``: 192 pictures by the shape in them, from 20 examples each; by the tests' CLIP."""
    module = load_clip_module()
    clip, rng = module.trained_clip(), random.Random(5)
    learned, others = module.split()
    scale = {"logit_scale": torch.tensor(clip.logit_scale).log()}
    with TemporaryDirectory() as name:
        folder = Path(name)
        save_file(
            {**hugging_face_tensors(clip.text), **hugging_face_tensors(clip.vision), **scale},
            folder / "clip.safetensors",
        )
        (folder / "images").mkdir()
        for number, shape in enumerate(others * 3):
            module.picture_of(shape, rng).save(folder / "images" / f"{number:03}.png")
        for kind in KINDS:
            (folder / "examples" / kind).mkdir(parents=True)
            for number, shape in enumerate([shape for shape in learned if shape.kind == kind][:20]):
                module.picture_of(shape, rng).save(folder / "examples" / kind / f"{number:02}.png")
        given = {"--examples": "examples", "--weights": "clip.safetensors", "--out": "out"}
        options = [part for option, value in given.items() for part in (option, str(folder / value))]
        command = [sys.executable, str(ROOT / "__main__.py"), "sort", str(folder / "images"), *options]
        subprocess.run(command, check=True)
        return {f"sort-{part}": open_image(folder / "out" / f"{part}.png") for part in ("confusion", "unsure")}


# ---- the registry

UP, DOWN, GONE = DARK.up, DARK.down, mix(DARK.down, DARK.background, 0.72)
ICON = ((("a", None), ("red", UP)), (("cat", None), ("and", None)), (("a", None), ("dog", DOWN)), (("fence", GONE),))
BANNER = (
    (("a", None), ("red 1.4", UP), ("cat", None), ("and", None), ("a", None), ("dog 0.5", DOWN)),
    (("on", None), ("a", None), ("sofa", None), ("fence 0", GONE)),
)
"""Rows of words with the colours of their chips; None for plain ones."""
Rows = tuple[tuple[tuple[str, Color | None], ...], ...]


def chips(canvas: Canvas, rows: Rows, top: float, size: float) -> None:
    """Draw rows of chips, each centred on the canvas, with letters of that size."""
    pad, gap, height = size * 0.55, size * 0.3, size * 1.9
    for number, row in enumerate(rows):
        widths = [text_width(word, size, bold=True) + 2 * pad for word, _ in row]
        left = (canvas.width - sum(widths) - gap * (len(row) - 1)) / 2
        y = top + number * (height + gap)
        for (word, color), width in zip(row, widths, strict=True):
            fill = color or DARK.surface
            canvas.box(left, y, left + width, y + height, fill=fill, outline=DARK.line, radius=size * 0.4)
            letters = mix(DARK.text, fill, 0.45) if color == GONE else readable(fill, DARK.text)
            canvas.text(left + pad, y + height / 2, word, letters, size=size, bold=True)
            left += width + gap


def icon() -> Image.Image:
    """Four rows of words: plain, above 1, below 1, gone."""
    canvas = Canvas(400, 400, DARK.background)
    size = 40
    chips(canvas, ICON, (400 - size * (4 * 1.9 + 3 * 0.3)) / 2, size)
    return canvas.image()


def banner() -> Image.Image:
    """The name, and a prompt as in the ruler."""
    canvas = Canvas(1260, 540, DARK.background)
    canvas.text(630, 120, "Weighted CLIP", DARK.text, size=84, bold=True, align="center")
    canvas.text(630, 200, "prompt weights, exact and visible", DARK.muted, size=32, align="center")
    chips(canvas, BANNER, 280, 46)
    return canvas.image()


# ---- the small world


@cache
def painter() -> Painter:
    """The committed world."""
    return Painter(load_world()[0])


def weights(chosen: Mapping[str, str], shown: Sequence[float]) -> Image.Image:
    """Pictures of the measurement's second prompt, in ways that it names."""
    ways = {way.name: way for question in QUESTIONS for way in question.ways}
    some = tuple(ways[name]._replace(name=title) for title, name in chosen.items())
    return draw_grid(painter(), QUESTIONS[0]._replace(ways=some, weights=tuple(shown)), seeds=2, number=1)


def places() -> Image.Image:
    """One prompt from eight seeds: with nothing placed, its phrases placed, regions, and predictions mixed."""
    drop, title = {"padding": "drop"}, "a red circle | a blue square"
    placings = {"nothing": None, "Place Phrase": "phrases", "Regional Prompt": "regions", "Set Mask": "predictions"}
    seeds = list(range(SEEDS))
    blocks: dict[str, list[list[Image.Image]]] = {}
    for name, of in placings.items():
        way = Way(name, drop, places=None if of is None else Places(of))
        text = painter().drawable(TWO, way, 4.0 if of == "phrases" else 1.0, "")
        blocks[name] = [[image_of(one) for one in painter().pictures([text], [seeds])[0]]]
    return draw_weight_grid(title, [f"seed {seed}" for seed in seeds], blocks)


def maps() -> Image.Image:
    """One prompt from three seeds, and the map of each of its words, all on one scale."""
    world, prompt, seeds = painter(), "a red circle and a blue square", [0, 2, 3]
    words = prompt.split()
    text = world.text(prompt, Way("watched"))
    own = key_rows([(1 + number,) for number in range(len(words))], text.rows.shape[1])[None]
    with watched(world.unet) as recorded:
        [drawn] = world.pictures([text._replace(words=own)], [seeds])
    found = mean_maps(recorded)
    heats = [[pictures.draw_heat(one.numpy()) for one in some] for some in found / found.max()]
    rows = [[image_of(picture), *some] for picture, some in zip(drawn, heats, strict=True)]
    return draw_weight_grid(prompt, ["picture", *words], {"maps": rows})


Drawn = Callable[[], Image.Image]
FADED = "a (red:0.6) cat and a (dog:0.3)"
PICTURES: dict[str, Drawn] = {
    "tokens": lambda: pictures.draw_tokens(view(read(STRIP)), width=860),
    "masked-blend": lambda: blend(FADED, ["0.3 × whole prompt", "0.3 × without dog", "0.4 × without red, dog"]),
    "hidden": lambda: hidden("a red cat, a blue dog"),
    "schemes": lambda: schemes("a photo of a (red:1.4) cat and a (dog:0.5) in a bowl"),
    "sparse-masks": draw_sparse_masks,
    "shared-prefix": lambda: shared_prefix(f"{FADED} in a bowl", ["whole", "no dog", "no red, dog"]),
    "icon": icon,
    "banner": banner,
    "similarity": lambda: compared(6, keep=4)["similarity"],
    "ranking": lambda: compared(6, keep=4)["ranking"],
    "sort-confusion": lambda: sorted_shapes()["sort-confusion"],
    "sort-unsure": lambda: sorted_shapes()["sort-unsure"],
    "weights": lambda: weights(
        {
            **{"comfy": "comfy", "a1111": "a1111", "compel": "compel", "masked_blend, remove": "nested remove"},
            "Attention Weights": "attention bias",
        },
        WEIGHTS[2:-1],
    ),
    "webui-grid": lambda: weights(
        {"off": "a1111", "masked_blend": "masked_blend", "compel": "compel"}, (0, 0.25, 0.5, 0.75, 1)
    ),
    "places": places,
    "meaning-maps": maps,
    "meaning-grid": lambda: draw_grid(painter(), QUESTIONS[0]),
    "meaning-present": lambda: draw_chart(read_measured(ROOT / MEASURED), QUESTIONS[0], "present"),
    "meaning-others": lambda: draw_chart(read_measured(ROOT / MEASURED), QUESTIONS[0], "others"),
}
"""Pictures of docs/images by name. Screenshots are made otherwise."""
REGISTRY = ("icon", "banner")
PHOTOGRAPHS = ("similarity", "ranking", "sort-confusion", "sort-unsure")
"""Those of many colours."""
