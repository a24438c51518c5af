"""Training that generalises: captions of coloured shapes that were in no batch find their pictures, and these them."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
from weighted_clip.encoder.models.clip import FullClip
from weighted_clip.studio.training import loop
from weighted_clip.studio.training.data.examples import Examples

from ..encoder.trained_clip import BATCH, NUM_PICTURES, NUM_STEPS, _models, _one_thread, picture_of, split
from ..transformers_clip import write_clip
from .runs import run_anew


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One picture of each of the 540 combinations; no two captions are the same."""
    folder, rng = tmp_path_factory.mktemp("shapes"), random.Random(2)
    for number, shape in enumerate([*split()[0], *split()[1]]):
        picture_of(shape, rng).save(folder / f"{number:03}.png")
        (folder / f"{number:03}.txt").write_text(shape.caption, encoding="utf-8")
    return folder


def train(data: Path, weights: Path, out: Path, *options: str) -> dict[str, float]:
    """The last measure of recall."""
    usual = ["--device", "cpu", "--held-out", "64", "--accumulate", "1", "--rate", "1e-3", "--seed", "0"]
    with _one_thread():
        assert run_anew("train", data, "--weights", weights, "--out", out, *usual, *options) == 0
    return json.loads((out / "log.jsonl").read_text(encoding="utf-8").splitlines()[-1])


@pytest.mark.long
def test_a_new_text_tower_learns_what_an_image_tower_sees(
    pictures: Path, trained_clip: FullClip, tmp_path: Path
) -> None:
    weights = write_clip(tmp_path / "clip.safetensors", _models(1)[0], trained_clip.vision, 1 / 0.07)
    found = train(pictures, weights, tmp_path / "out", "--batch", "119", "--steps", "60", "--warmup", "10")
    assert found["text to image @1"] >= 60 / 64
    assert found["image to text @1"] >= 60 / 64


@pytest.mark.long
def test_both_towers_learn_from_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten pictures of each combination but 64, of which none is in training."""
    rng, data = random.Random(1), tmp_path / "data"
    data.mkdir()
    learned, out = split()
    for name, shapes, count in (("train", learned, NUM_PICTURES), ("out", out, 1)):
        for number, shape in enumerate(shapes * count):
            (data / f"{name}{number:04}.txt").write_text(shape.caption, encoding="utf-8")
            picture_of(shape, rng).save(data / f"{name}{number:04}.png")

    def by_name(examples: Examples, *_: int) -> tuple[Examples, ...]:
        return tuple(
            examples.chosen(index for index, one in enumerate(examples) if one.name.startswith(kind))
            for kind in ("train", "out")
        )

    monkeypatch.setattr(loop, "held_out", by_name)
    text, vision, _ = _models(0)
    weights = write_clip(tmp_path / "clip.safetensors", text, vision, 1 / 0.07)
    options = ["--towers", "both", "--batch", str(BATCH), "--steps", str(NUM_STEPS), "--warmup", "50"]
    found = train(data, weights, tmp_path / "run", *options)
    assert found["text to image @1"] >= 60 / 64
    assert found["image to text @1"] >= 60 / 64
