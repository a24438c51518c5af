"""A small lab that tests share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from safetensors.torch import save_file
from weighted_clip.encoder.files.checkpoint import seeded_text_model, seeded_vision_model
from weighted_clip.encoder.models.config import TextConfig, VisionConfig
from weighted_clip.studio.dalle.config import PriorConfig
from weighted_clip.studio.dalle.full_model import DALLE, save_dalle
from weighted_clip.studio.dalle.pieces import learned_pieces
from weighted_clip.studio.dalle.prior import Prior
from weighted_clip.web.pictures.canvas import Canvas
from weighted_clip.web.pictures.style import Color

from ..dalle.models import palette_dvae
from .chromium import Browser, Tab, running_browser
from .lab_in_browser import LabPage, running_lab

SMALL = TextConfig(hidden_dim=64, num_heads=1, num_layers=2, mlp_dim=128, projection_dim=32)
VISION = VisionConfig(image_size=28, hidden_dim=64, num_heads=1, num_layers=2, mlp_dim=64, projection_dim=32)
CAPTION = "a small red ring"
PRIOR = PriorConfig(
    text_vocab_size=540,
    text_length=12,
    rows=3,
    columns=4,
    image_vocab_size=125,
    hidden_dim=16,
    num_heads=2,
    num_layers=3,
    mlp_dim=32,
    kernel_size=3,
)


Boxes = list[tuple[tuple[float, ...], dict[str, Any]]]
"""Edges and options of each box of a picture."""


def watch(patch: pytest.MonkeyPatch, name: str, note: Callable[[tuple[Any, ...], dict[str, Any]], None]) -> None:
    """Note the arguments of a method of `Canvas` while it is called."""
    method = getattr(Canvas, name)

    def watched(self: Canvas, *arguments: Any, **options: Any) -> Any:
        note(arguments, options)
        return method(self, *arguments, **options)

    patch.setattr(Canvas, name, watched)


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Every text that is drawn in pictures, in order."""
    texts: list[str] = []
    for name in ("text", "upright_text"):
        watch(monkeypatch, name, lambda arguments, _: texts.append(arguments[2]))
    return texts


@pytest.fixture
def boxes(monkeypatch: pytest.MonkeyPatch) -> Boxes:
    """Every box that is drawn in pictures, in order."""
    found: Boxes = []
    watch(monkeypatch, "box", lambda edges, options: found.append((edges, options)))
    return found


def count_color(image: Image.Image, color: Color, box: tuple[float, ...] | None = None) -> int:
    """Number of pixels of exactly this colour."""
    part = image.crop(tuple(round(value) for value in box)) if box else image
    return {value: count for count, value in part.getcolors(part.width * part.height)}.get(color, 0)


def dalle_of(prior: PriorConfig) -> DALLE:
    """Random, but for its dVAE, whose tokens are colours; and its pieces, which know the words of one caption."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = Prior(prior).eval().requires_grad_(False)
    return DALLE(model, palette_dvae(), learned_pieces([CAPTION] * 2, prior.text_vocab_size))


def save_clip(path: Path, text: TextConfig = SMALL, *, is_whole: bool = True) -> Path:
    """A seeded CLIP under Hugging Face's names, with its image half or without."""
    tensors = {"logit_scale": torch.tensor(4.0)} if is_whole else {}
    for name, tensor in seeded_text_model(text).state_dict().items():
        tensors[name if "projection" in name else f"text_model.{name}"] = tensor
    for name, tensor in seeded_vision_model(VISION).state_dict().items() if is_whole else ():
        renamed = name.replace("pre_layer_norm", "pre_layrnorm").replace("post_layer_norm", "post_layernorm")
        tensors[name if name.startswith("visual_projection") else f"vision_model.{renamed}"] = tensor
    path.parent.mkdir(parents=True, exist_ok=True)
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, path)
    return path


def save_pictures(folder: Path) -> list[Path]:
    """Three pictures, the first wider than the others."""
    paths = [folder / f"{color}.png" for color in ("red", "green", "blue")]
    for number, path in enumerate(paths):
        Image.new("RGB", (60 - 10 * number, 30), path.stem).save(path)
    return paths


@pytest.fixture(scope="session")
def small_clip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """File of a small CLIP, which a lab has at once; random weights of full size take it seconds."""
    return save_clip(tmp_path_factory.mktemp("lab") / "clip" / "small.safetensors")


@pytest.fixture(scope="session")
def small_lab(small_clip: Path) -> Iterator[str]:
    """Address of a lab with a small CLIP, another to choose and a small DALL·E, and so with all of its tabs."""
    folder = small_clip.parents[1]
    save_clip(folder / "clip" / "text.safetensors", is_whole=False)
    save_dalle(dalle_of(PRIOR), folder / "dalle.safetensors")
    with running_lab(folder, "--models", ".", "--model", "small", "--dalle", "dalle.safetensors") as found:
        yield found


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """The browser of all tests; each has a tab that has seen nothing yet."""
    with running_browser(tmp_path_factory.mktemp("browser")) as found:
        yield found


@pytest.fixture
def tab(browser: Browser) -> Iterator[Tab]:
    with browser.tab() as found:
        yield found


@pytest.fixture
def lab(tab: Tab, small_lab: str) -> Iterator[LabPage]:
    """The page of the small lab, which must not complain."""
    page = LabPage(tab)
    page.open(small_lab)
    yield page
    assert tab.complaints() == []
