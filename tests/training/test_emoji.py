"""Training on a small folder of real pictures: emoji that were held out are found by their names, and these by them."""

from __future__ import annotations

import json
import os
import time
import unicodedata
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from PIL import Image, ImageDraw, ImageFont
from torch import nn
from weighted_clip.encoder.images import preprocess
from weighted_clip.encoder.models.clip import load_full_clip
from weighted_clip.encoder.models.config import TextConfig, VisionConfig
from weighted_clip.encoder.models.text_model import TextModel
from weighted_clip.encoder.models.vision_model import VisionModel
from weighted_clip.encoder.tokenizer import default_tokenizer
from weighted_clip.studio.commands.program import main
from weighted_clip.studio.training.data.captions import held_out, token_ids
from weighted_clip.studio.training.data.datasets import Example, read_data
from weighted_clip.studio.training.metrics import places, recalls
from weighted_clip.workshop.bench import page

from ..libraries import library
from ..long.page import VARIABLE, about
from ..transformers_clip import write_clip

PAGE = Path(__file__).resolve().parents[2] / "docs" / "evidence" / "training.md"
TEXT = TextConfig(hidden_dim=128, num_heads=2, num_layers=2, mlp_dim=512, projection_dim=64)
VISION = VisionConfig(
    image_size=32, patch_size=8, hidden_dim=128, num_heads=2, num_layers=3, mlp_dim=512, projection_dim=64
)
HELD_OUT = 256
OPTIONS = [
    *("--towers", "both", "--batch", "256", "--accumulate", "1", "--steps", "600", "--warmup", "20", "--rate", "1e-3"),
    *("--weight-decay", "0.2", "--random-crop", "0.4", "--mirror", "--held-out", str(HELD_OUT), "--seed", "0"),
]
ALL, KNOWN = "all held out", "names of which all words were in training"
LEAST = {1: 0.05, 10: 0.22}
"""Recall both ways of all held-out pairs; chance is 1/256 and 10/256."""


BLOCK = """\
- Data: {count} emoji of Noto Color Emoji (Debian's fonts-noto-color-emoji), one character each, on white; captions are
  their names in Unicode {unicode}. {training} are trained on, {held_out} held out, of which {unknown} have a word that
  no training caption has.
- Model: random weights, both towers {width} wide, {text_layers} layers for the text, {image_layers} for images of
  {side} pixels.
- `train DATA --weights NEW --out OUT {told}`, {minutes} minutes, reading and measuring included.

{machine}

{table}"""


def new_clip(path: Path) -> Path:
    """A small CLIP with random weights."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        text, vision = TextModel(TEXT), VisionModel(VISION)
        for module in (*text.modules(), *vision.modules()):
            if isinstance(module, nn.Embedding):
                nn.init.normal_(module.weight, std=0.05)
        nn.init.normal_(vision.embeddings.class_embedding, std=0.05)
    return write_clip(path, text, vision, 1 / 0.07)


@pytest.mark.long
def test_held_out_emoji_are_found_by_their_names(tmp_path: Path) -> None:
    library("accelerate")
    count = write_emoji(tmp_path / "emoji")
    weights, began = new_clip(tmp_path / "new.safetensors"), time.monotonic()
    arguments = [str(tmp_path / "emoji"), "--weights", str(weights), "--out", str(tmp_path / "out"), *OPTIONS]
    assert main(["train", *arguments, "--device", "cpu"]) == 0
    minutes = (time.monotonic() - began) / 60
    training, held = held_out(read_data(tmp_path / "emoji").examples, HELD_OUT, 0)
    seen = {word for pair in training for word in words_of(pair)}
    known = [pair for pair in held if seen.issuperset(words_of(pair))]
    found = {ALL: (HELD_OUT, measured(tmp_path / "out", held))}
    found[KNOWN] = (len(known), measured(tmp_path / "out", known))
    last = json.loads((tmp_path / "out" / "log.jsonl").read_text(encoding="utf-8").splitlines()[-1])
    assert found[ALL][1] == pytest.approx({name: last[name] for name in found[ALL][1]})
    if os.environ.get(VARIABLE) == "1":
        write_part(count, minutes, found)
    for at, least in LEAST.items():
        for way in ("text to image", "image to text"):
            assert found[ALL][1][f"{way} @{at}"] >= least


def words_of(pair: Example) -> list[str]:
    return pair.captions[0].replace("-", " ").split()


def measured(folder: Path, pairs: Sequence[Example]) -> dict[str, float]:
    """Recall by what was written, among some pairs alone."""
    clip = load_full_clip(folder / "clip.safetensors")
    ids = token_ids([pair.captions[0] for pair in pairs], default_tokenizer(), clip.text.config)
    pixels = preprocess([pair.image() for pair in pairs], clip.vision.config.image_size)
    return recalls(places(clip.text_features(ids.tolist()), clip.image_features(pixels)))


def write_part(count: int, minutes: float, found: dict[str, tuple[int, dict[str, float]]]) -> None:
    """The part of the page about this run."""
    names = list(found[ALL][1])
    rows = [
        [f"{which}: {number}", *(f"{shares[name]:.1%}" for name in names), f"{10 / number:.1%}"]
        for which, (number, shares) in found.items()
    ]
    block = BLOCK.format(
        count=f"{count:,}",
        held_out=HELD_OUT,
        unknown=HELD_OUT - found[KNOWN][0],
        width=TEXT.hidden_dim,
        text_layers=TEXT.num_layers,
        image_layers=VISION.num_layers,
        side=VISION.image_size,
        training=f"{count - HELD_OUT:,}",
        unicode=unicodedata.unidata_version,
        told=" ".join(OPTIONS),
        minutes=f"{minutes:.1f}",
        machine=about(),
        table=page.table(("Pairs", *names, "chance @10"), rows, num_left=1),
    )
    page.write({"emoji": block}, PAGE)


FONT = "NotoColorEmoji.ttf"
"""Font of Google's Noto, under the SIL Open Font License; Debian has it as fonts-noto-color-emoji."""
SIDE = 144
"""Side of a picture, in pixels; the font's own are 136 wide and 128 high."""
_SIZE = 109
"""The one size that the font has."""


def write_emoji(folder: Path) -> int:
    """Draw every emoji that is one character with a name, on white, each with its name in a ``.txt`` next to it.

    Args:
        folder: Made here.

    Returns:
        Their number. The test is skipped if the font is not installed.
    """
    try:
        font = ImageFont.truetype(FONT, _SIZE)
    except OSError:
        pytest.skip(f"draws with {FONT}, which is not installed; Debian has it as fonts-noto-color-emoji")
    folder.mkdir()
    missing, blank = _picture("\U0003fff0", font), Image.new("RGB", (SIDE, SIDE), "white")
    count = 0
    for code in range(0xA0, 0x20000):
        name = unicodedata.name(chr(code), "")
        if not name or unicodedata.category(chr(code)) != "So":
            continue
        picture = _picture(chr(code), font)
        if picture not in (missing, blank):
            picture.save(folder / f"{code:05x}.png")
            (folder / f"{code:05x}.txt").write_text(name.lower(), encoding="utf-8")
            count += 1
    return count


def _picture(character: str, font: ImageFont.FreeTypeFont) -> Image.Image:
    picture = Image.new("RGB", (SIDE, SIDE), "white")
    ImageDraw.Draw(picture).text((4, 8), character, font=font, embedded_color=True)
    return picture
