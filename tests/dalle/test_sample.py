"""The commands ``dalle sample`` and ``dalle demo``: files, ranking, completion, interrupts, errors; and the numbers."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor
from weighted_clip.encoder.models.clip import load_full_clip
from weighted_clip.studio.commands.console import Progress
from weighted_clip.studio.commands.program import main
from weighted_clip.studio.commands.training.dalle_demo import _curve
from weighted_clip.studio.commands.training.dalle_sample import clip_scores
from weighted_clip.studio.dalle import sampling
from weighted_clip.studio.dalle.full_model import save_dalle
from weighted_clip.studio.dalle.sampling import SampleOptions

from ..libraries import library
from .models import cosines_of, shrink_demo, tiny_dalle

CAPTION = "a small red ring"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "dalle.safetensors"
    save_dalle(tiny_dalle(), path)
    return path


def pixels(path: Path) -> Tensor:
    return torch.from_numpy(np.array(Image.open(path).convert("RGB"))).permute(2, 0, 1)


def expected(seeds: Any, **options: Any) -> Tensor:
    dalle = tiny_dalle()
    return (dalle.images(dalle.tokens(CAPTION, seeds, **options)) * 255).round().byte()


def test_images_are_written_by_their_seeds(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    command = ["dalle", "sample", str(model), CAPTION, "--out", str(out), "--count", "3", "--seed", "5"]
    assert main([*command, "--top-k", "4", "--temperature", "0.8"]) == 0
    images = expected(range(5, 8), options=SampleOptions(0.8, 4))
    assert sorted(path.name for path in out.glob("*")) == ["seed5.png", "seed6.png", "seed7.png"]
    with Image.open(tmp_path / "out-montage.png") as montage:
        assert montage.width > 0
    for seed, image in zip(range(5, 8), images, strict=True):
        assert torch.equal(pixels(out / f"seed{seed}.png"), image)
    told = capsys.readouterr().out
    assert "'a small red ring' as pieces: a</w> | small</w> | r | e | d</w> | ri | n | g</w>" in told
    assert "written: 3 images" in told
    assert main(command) == 1
    assert "has .png files already, which are not overwritten" in capsys.readouterr().err


def test_the_best_come_first_where_a_clip_is_given(
    model: Path, clip: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Scores of the towers called by themselves."""
    out, towers = tmp_path / "out", load_full_clip(clip)
    options = ["--count", "6", "--clip", str(clip), "--keep", "2"]
    assert main(["dalle", "sample", str(model), CAPTION, "--out", str(out), *options]) == 0
    dalle = tiny_dalle()
    images = dalle.images(dalle.tokens(CAPTION, range(6)))
    scores = cosines_of(towers, CAPTION, images)
    assert clip_scores(towers, CAPTION, list(images)) == pytest.approx(scores.tolist(), abs=1e-6)
    first, second = scores.argsort(descending=True)[:2].tolist()
    names = sorted(path.name for path in out.glob("0*"))
    assert names == [f"001-seed{first}.png", f"002-seed{second}.png"]
    told = capsys.readouterr().out
    assert f"{scores[first]:7.4f}" in told
    assert f"CLIP score {max(0, 50 * float(scores[first] + scores[second])):.2f}" in told


def test_an_image_is_completed(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    picture = tmp_path / "given.png"
    Image.fromarray(np.random.default_rng(0).integers(0, 255, (12, 16, 3), np.uint8)).save(picture)
    command = ["dalle", "sample", str(model), CAPTION, "--count", "2", "--prefix", str(picture)]
    assert main([*command, "--out", str(tmp_path / "out"), "--rows", "2"]) == 0
    given = tiny_dalle().prefix(pixels(picture).float() / 255, 2)
    assert torch.equal(pixels(tmp_path / "out" / "seed1.png"), expected([0, 1], prefix=given)[1])
    Image.new("RGB", (20, 12)).save(picture)
    assert main([*command, "--out", str(tmp_path / "other")]) == 1
    told = capsys.readouterr().err
    assert "given.png: an image of 20 x 12 pixels cannot be completed: this model draws 16 x 12" in told


def test_finished_images_are_kept_when_it_is_interrupted(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sampling, "images_at_once", lambda prior, budget=0: 2)
    calls = 0

    def interrupt(_: Progress, line: str) -> None:
        nonlocal calls
        calls += 1
        if line.startswith("images 3 to 4 of 5: token 7 of 12"):
            raise KeyboardInterrupt

    monkeypatch.setattr(Progress, "tell", interrupt)
    assert main(["dalle", "sample", str(model), CAPTION, "--out", str(tmp_path / "out"), "--count", "5"]) == 130
    told = capsys.readouterr()
    assert "interrupted: 2 of 5 images are finished" in told.err
    assert "written: 2 images" in told.out
    assert calls == 12 + 7
    assert torch.equal(pixels(tmp_path / "out" / "seed1.png"), expected(range(2))[1])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--count", "0"], "--count must be at least 1, got 0"),
        (["--keep", "2"], "--keep 2: it is at least 1, and needs --clip"),
        (["--top-p", "0"], "top_p must be above 0"),
        (["--temperature", "-1"], "temperature must be a number from 0"),
        (["--prefix", "none.png"], "none.png"),
    ],
)
def test_wrong_options_are_refused_in_a_line(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], options: list[str], message: str
) -> None:
    assert main(["dalle", "sample", str(model), CAPTION, "--out", str(tmp_path / "out"), *options]) == 1
    told = capsys.readouterr().err
    assert message in told
    assert len(told.splitlines()) == 1


def test_too_long_captions_and_other_files_are_refused(
    model: Path, clip: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["dalle", "sample", str(model), "x " * 13, "--out", str(tmp_path / "out")]) == 1
    assert "has 13 pieces: this model reads at most 12" in capsys.readouterr().err
    assert main(["dalle", "sample", str(clip), CAPTION, "--out", str(tmp_path / "out")]) == 1
    assert "this is no DALL·E of ours" in capsys.readouterr().err


# ---- the demo


def test_the_curve_and_its_interval_by_hand() -> None:
    """Two captions: of the first every fifth image of 16 is the only right one and has the best score."""
    right, scores = np.zeros((2, 64, 4), bool), np.zeros((2, 64))
    right[:, :, :3] = True
    right[0, 4::16], scores[0, 4::16] = True, 1.0
    right[1, 0] = True
    found = _curve(right, scores, ("size", "color", "kind", "place"))
    assert found["best of"]["1"] == {"size": 1, "color": 1, "kind": 1, "place": 5 / 128, "all": 5 / 128}
    assert found["best of"]["4"]["all"] == (4 + 1) / 32
    assert found["best of"]["8"]["all"] == (4 + 1) / 16
    assert found["best of"]["16"]["all"] == (4 + 1) / 8
    assert found["best of"]["64"]["all"] == 1
    assert found["CLIP score"]["1"] == pytest.approx(100 * 4 / 128)
    assert found["CLIP score"]["16"] == pytest.approx(50)
    assert found["gain"] == {"mean": 0.5, "low": 0.0, "high": 1.0}


@pytest.mark.slow
def test_the_demo_goes_on_where_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With few pictures and steps; interrupted in the prior."""
    library("accelerate")
    from weighted_clip.studio.training.objectives.prior import PriorRun

    shrink_demo(monkeypatch)
    run = ["dalle", "demo", str(tmp_path / "demo"), "--captions", "2"]
    run += ["--vae-steps", "2", "--clip-steps", "1", "--prior-steps", "2"]
    backward = PriorRun._backward

    def interrupt(self: PriorRun, loaded: Any) -> dict[str, float]:
        self.is_stopped = self.step == 0
        return backward(self, loaded)

    with monkeypatch.context() as patch:
        patch.setattr(PriorRun, "_backward", interrupt)
        assert main(run) == 130
    assert main(run) == 0
    told = capsys.readouterr().out
    assert "[2/5] discrete VAE: there already" in told
    assert "goes on after step 1 of 2" in told
    folder = tmp_path / "demo"
    results = json.loads((folder / "results.json").read_text(encoding="utf-8"))
    assert set(results["seconds"]) == {"pictures", "discrete VAE", "CLIP", "prior", "images"}
    assert all(math.isfinite(share) for shares in results["best of"].values() for share in shares.values())
    page = (folder / "index.html").read_text(encoding="utf-8")
    for name in ("montage.png", "best_of.png", "vae/report.html", "clip/report.html", "prior/report.html"):
        assert f'"{name}"' in page
        assert (folder / name).is_file()
