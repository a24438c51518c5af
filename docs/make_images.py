r"""Draw the pictures of the documentation with the pack's own drawing code.

Run it with a Python that has the requirements, for example the one that ``run.py`` makes:
``.venv/bin/python docs/make_images.py`` (Windows: ``.venv\Scripts\python``). It overwrites ``docs/images/*.png``.
"""

# ruff: noqa: E402 - the package has to be loaded before anything can be imported from it

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import TYPE_CHECKING

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "docs" / "images"

if "weighted_clip" not in sys.modules:  # load the package by path, whatever the folder is called
    spec = importlib.util.spec_from_file_location(
        "weighted_clip", ROOT / "__init__.py", submodule_search_locations=[str(ROOT)]
    )
    assert spec is not None
    assert spec.loader is not None
    package = sys.modules["weighted_clip"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(package)

import torch
from weighted_clip.encoder.checkpoint import seeded_text_model
from weighted_clip.encoder.config import CLIP_L
from weighted_clip.encoder.masks import causal_mask, combine, hide_from, span_mask
from weighted_clip.encoder.text_model import Encoding, TextEncoder
from weighted_clip.encoder.tokenizer import default_tokenizer
from weighted_clip.web import pictures
from weighted_clip.web.pictures.canvas import Canvas
from weighted_clip.web.pictures.style import LIGHT, MARGIN, SMALL_SIZE, mix, readable
from weighted_clip.weighting.encode import EncodeOptions, ReadPrompt, encode_prompt, read_prompt
from weighted_clip.weighting.schemes import SCHEMES
from weighted_clip.weighting.view import view

if TYPE_CHECKING:
    from collections.abc import Sequence

    from PIL import Image

STRIP = (
    "a (red:1.4) cat and a (dog:0.5) in a bowl, [photorealistic] BREAK ((oil painting)), (cinematic lighting:1.2), "
    "(sharp focus"
)
LENGTH = CLIP_L.context_length


def main() -> None:
    """Draw all of them."""
    FOLDER.mkdir(exist_ok=True)
    drawn = {
        "tokens": pictures.draw_tokens(view(read(STRIP)), width=860),
        "masks": pictures.draw_figure_masks(),
        "architecture": pictures.draw_architecture(CLIP_L),
        "masked-blend": blend("a (red:0.6) cat and a (dog:0.3)"),
        "hidden": hidden("a red cat, a blue dog"),
        "schemes": schemes("a photo of a (red:1.4) cat and a (dog:0.5) in a bowl"),
    }
    for name, picture in drawn.items():
        picture.quantize(128).save(FOLDER / f"{name}.png", optimize=True)


def read(text: str, scheme: str = "a1111") -> ReadPrompt:
    """The prompt in A1111's syntax."""
    return read_prompt(text, EncodeOptions(syntax="a1111", scheme=scheme), default_tokenizer())


def blend(text: str) -> Image.Image:
    """The masks under which masked_blend encodes a prompt with two faded words."""
    prompt = read(text, "masked_blend")
    masks: list[torch.Tensor] = []

    def encode(ids: object, mask: torch.Tensor | None = None) -> Encoding:
        assert mask is not None
        masks.append(mask & causal_mask(LENGTH))
        return Encoding(torch.zeros(len(mask), LENGTH, 1), torch.zeros(len(mask), 1))

    encode_prompt(prompt, encode, default_tokenizer())
    titles = ["0.3 × whole prompt", "0.3 × without dog", "0.4 × without red, dog"]
    labels = pictures.mask_labels(prompt.chunks[0], text)
    rows = list(zip(titles, masks[0], strict=True))
    return pictures.draw_masks(rows, labels, signs=("+", "+"), visible=prompt.chunks[0].num_content + 3)


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
    """How far each scheme moves each row of a short prompt, on an encoder with seeded random weights."""
    tokenize, encoder = default_tokenizer(), TextEncoder(seeded_text_model())
    prompts = {name: read(text, name) for name in SCHEMES}
    rows = {name: encode_prompt(prompt, encoder, tokenize).hidden[0] for name, prompt in prompts.items()}
    plain = rows["unweighted"]
    change = {name: ((row - plain).norm(dim=-1) / plain.norm(dim=-1)).tolist() for name, row in rows.items()}
    (chunk,) = prompts["comfy"].chunks
    labels = [*pictures.mask_labels(chunk, text)[: chunk.num_content + 2], "PAD"]
    return heat_map(change, labels, chunk.weights)


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


if __name__ == "__main__":
    main()
