"""Whole runs of ``dalle train-vae``: what is written, stopped and resumed to the bit, processes, errors, the gate."""

from __future__ import annotations

import json
import math
import random
import tarfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn
from weighted_clip.studio.commands.program import main
from weighted_clip.studio.dalle.config import SMALL, DVAEConfig
from weighted_clip.studio.dalle.dvae import DVAE
from weighted_clip.studio.dalle.layers import MOMENTUM, SCALE, LogitNorm
from weighted_clip.studio.dalle.weight_files import load_dvae
from weighted_clip.studio.training.data.datasets import DataProblem, Example, read_data
from weighted_clip.studio.training.data.image_inputs import picture_of
from weighted_clip.studio.training.objectives.dalle_options import DVAE_RECIPES, DVAEOptions
from weighted_clip.studio.training.objectives.dvae import TrainedDVAE, noise_of
from weighted_clip.studio.world.judge import ShapeJudge, right
from weighted_clip.studio.world.scenes import Shape, draw_shape, split, write_shapes

from ..launching import launched
from ..libraries import library
from ..training.objectives import stopping_after
from ..training.runs import log_of, tensors_of
from .models import TINY, TINY_SMALL, pictures, seeded
from .process import trained_dvae

Start = Callable[..., int]
PROCESS = Path(__file__).with_name("process.py")
RANKS = 2


@pytest.fixture
def start(data: Path, tmp_path: Path) -> Start:
    """Runs the command at a small size; the folder is ``out``, and a second value of an option counts."""
    library("accelerate")
    from accelerate.state import AcceleratorState

    def started(*options: str, out: str = "out", data: Path = data) -> int:
        AcceleratorState._reset_state(reset_partial_state=True)
        usual = ["--recipe", "small", "--device", "cpu", "--tokens", "16", "--width", "8", "--size", "16"]
        more = ["--batch", "4", "--steps", "8", "--held-out", "4", *options]
        return main(["dalle", "train-vae", str(data), "--out", str(tmp_path / out), *usual, *more])

    return started


PAPER = ["--recipe", "paper", "--tokens", "12", "--width", "8", "--accumulate", "2"]

# ---- what is written


@pytest.mark.parametrize("options", [[], PAPER], ids=["small", "paper"])
def test_a_run_writes_a_model_a_log_and_a_page(
    start: Start, tmp_path: Path, capsys: pytest.CaptureFixture[str], options: list[str]
) -> None:
    assert start(*options) == 0
    told = capsys.readouterr().out
    out = tmp_path / "out"
    model = load_dvae(out / "dvae.safetensors")
    assert model.config.architecture == ("dall-e" if options else "small")
    rows = 16 // model.config.downsampling
    assert model.tokens(pictures(1, 16, 16)).shape == (1, rows, rows)
    entries = log_of(out)
    assert [entry["step"] for entry in entries if "loss" in entry] == list(range(1, 9))
    assert [entry["step"] for entry in entries if "relaxed" in entry] == list(range(9))
    assert all(math.isfinite(value) for entry in entries for value in entry.values())
    assert "20 pictures to train on, 4 held out, 8 steps" in told
    assert ("the temperature will be at 1 in the end" in told) == bool(options)
    assert "0 to 6.6 within 5,000 updates (cosine)" in told or not options
    page = (out / "report.html").read_text(encoding="utf-8")
    for name in ("reconstructions.png", "elb.png", "loss.png", "kl.png", "perplexity.png"):
        assert f'src="{name}"' in page
        assert (out / name).is_file()


def test_the_numbers_of_a_step_follow_the_schedules(start: Start, tmp_path: Path) -> None:
    assert start("--steps", "50", "--rate", "4e-3", "--kl-weight", "0.4") == 0
    entries = [entry for entry in log_of(tmp_path / "out") if "loss" in entry]
    options = DVAE_RECIPES["small"](50)
    assert options.noiseless == 4
    for step, entry in enumerate(entries):
        assert entry["temperature"] == options.temperature(step)
        assert entry["kl weight"] == pytest.approx(2 * options.kl_weight(step))
        assert entry["loss"] == pytest.approx(entry["nll"] + entry["kl weight"] / 48 * entry["kl"], rel=1e-6)
    assert entries[0]["rate"] == pytest.approx(4e-3 / 30)
    assert entries[-1]["temperature"] == 1 / 8


def test_paper_and_small_recipes_are_as_documented() -> None:
    paper, small = DVAE_RECIPES["paper"](None), DVAE_RECIPES["small"](None)
    assert (paper.steps, paper.batch * paper.accumulate, paper.betas) == (3_000_000, 512, (0.9, 0.999))
    assert (paper.weight_decay, paper.ema, paper.noiseless, paper.size) == (1e-4, 0.999, 0, 256)
    assert (small.config, small.size, small.steps, small.batch) == (SMALL, 48, 1800, 32)
    assert (small.noiseless, small.temperature(1260), small.temperature(1259) > 1 / 8) == (144, 1 / 8, True)
    assert small.kl_weight(144) == 0
    assert small.kl_weight(144 + 360) == 0.2


# ---- the pieces


def test_normalised_logits_are_those_of_torchs_batch_norm_and_fold_into_the_convolution() -> None:
    model = TrainedDVAE(seeded(TINY_SMALL).double().requires_grad_(True), 1 / 3).double().train()
    reference = nn.BatchNorm2d(16, affine=False, momentum=MOMENTUM).double()
    assert isinstance(model.norm, LogitNorm)
    assert reference.running_mean is not None
    assert reference.running_var is not None
    batches = [pictures(3, 16, 24, seed).double() for seed in range(5)]
    for images in batches:
        plain = model.dvae.encoder(images)
        assert (model.logits(images) - SCALE * reference(plain)).abs().max() < 1e-10
    images = batches[0]
    assert (model.norm.mean - reference.running_mean).abs().max() < 1e-12
    assert (model.norm.variance - reference.running_var).abs().max() < 1e-12
    model.eval()
    assert (model.finished().encoder(images) - model.logits(images)).abs().max() < 1e-10
    assert (model.logits(images) - SCALE * reference.eval()(model.dvae.encoder(images))).abs().max() < 1e-10
    assert (model.dvae.encoder(images) - model.logits(images)).abs().max() > 0.1


def test_the_noise_of_a_picture_does_not_depend_on_how_a_batch_is_divided() -> None:
    model, like = DVAE(TINY_SMALL), torch.zeros(1)
    whole = noise_of(model, 16, 0, 3, range(6), like)
    parts = [noise_of(model, 16, 0, 3, numbers, like) for numbers in (range(2), range(2, 6))]
    assert torch.equal(whole, torch.cat(parts))
    assert whole.shape == (6, 16, 4, 4)
    for other in (noise_of(model, 16, 1, 3, range(6), like), noise_of(model, 16, 0, 4, range(6), like)):
        assert not torch.equal(whole, other)
    assert len({float(one.sum()) for one in whole}) == 6


def test_pictures_are_cut_as_in_the_paper(tmp_path: Path) -> None:
    """A picture of which each pixel tells its place."""
    height, width = 60, 100
    down, along = np.mgrid[:height, :width]
    array = np.stack([down * 2, along * 2, down * 0], 2).astype(np.uint8)
    Image.fromarray(array).save(tmp_path / "a.png")
    example = Example("a.png", tmp_path / "a.png", ())
    middle = picture_of(example, 60, None)
    assert torch.equal(middle, torch.from_numpy(array[:, 20:80]).permute(2, 0, 1))
    scales, mirrored = [], 0
    for seed in range(60):
        picture = picture_of(example, 32, random.Random(seed)).float()
        assert picture.shape == (3, 32, 32)
        steps = picture[1].diff(dim=1)
        mirrored += steps.mean() < 0
        scales.append(60 * 2 / float(steps.abs().mean()))  # the side that the whole square had
        assert picture[0].diff(dim=0).mean() > 0  # never upside down
    assert 15 < mirrored < 45
    assert 35 < min(scales) < 38  # 9/8 of 32 is 36
    assert 46 < max(scales) < 50  # 12/8 is 48
    small = picture_of(example, 64, None)
    assert isinstance(small, DataProblem)
    assert small.reason == "its short side has fewer than 64 pixels"


def test_pictures_in_shards_need_no_captions_either(tmp_path: Path, data: Path) -> None:
    with tarfile.open(tmp_path / "0.tar", "w") as archive:
        for path in sorted(data.glob("*.png")):
            archive.add(path, path.name)
    assert len(read_data(tmp_path).examples) == 0
    found = read_data(tmp_path, is_captioned=False)
    assert len(found.examples) == 24
    assert not found.problems
    expected = picture_of(read_data(data, is_captioned=False).examples[7], 48, None)
    assert torch.equal(picture_of(found.examples[7], 48, None), expected)


# ---- stopped and resumed


def test_a_run_with_an_average_is_resumed_to_the_same_bits(start: Start, tmp_path: Path) -> None:
    """The small recipe is resumed in tests/training/test_termination.py."""
    options = [*PAPER, "--ema", "0.9"]
    assert start(*options, out="whole") == 0
    with stopping_after(5):
        assert start(*options) == 130
    assert start(*options, "--kl-weight", "2", "--resume") == 1  # which may differ in a longer run alone
    assert start(*options, "--resume") == 0
    whole, resumed = (tensors_of(tmp_path / name / "dvae.safetensors") for name in ("whole", "out"))
    assert all(torch.equal(whole[key], resumed[key]) for key in whole)
    assert log_of(tmp_path / "whole") == log_of(tmp_path / "out")


# ---- several processes


@pytest.mark.slow
def test_two_processes_equal_one(tmp_path: Path) -> None:
    done = launched(RANKS, PROCESS, "dvae", tmp_path)
    assert done.returncode == 0, done.stderr
    for name in ("dall-e", "small"):
        one, before = trained_dvae(name, 0, 1), trained_dvae(name, 0, 1, steps=0)
        for rank in range(RANKS):
            other = torch.load(tmp_path / f"{rank}.pt")[name]
            assert one.keys() == other.keys()
            assert max((one[key] - other[key]).abs().max() for key in one) <= 1e-10
        assert max((one[key] - before[key]).abs().max() for key in one) > 1e-4


# ---- bad input


def test_pictures_that_are_broken_or_too_small_are_named(
    start: Start, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = tmp_path / "data"
    data.mkdir()
    for number in range(6):
        Image.new("RGB", (20, 30), (number * 20, 0, 0)).save(data / f"{number}.png")
    (data / "broken.png").write_bytes(b"no image")
    Image.new("RGB", (15, 30)).save(data / "thin.png")
    assert start("--steps", "1", "--no-held-out", data=data) == 0
    told = capsys.readouterr().out
    assert "1 left out: its short side has fewer than 16 pixels (thin.png)" in told
    assert "1 left out: no image of a kind that is read" in told
    assert "5 pictures to train on, 1 held out" in told


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--batch", "0"], "batch must be at least 1, got 0"),
        (["--steps", "0"], "steps must be at least 1, got 0"),
        (["--size", "18"], "must be a multiple of 4, got 18"),
        (["--tokens", "1"], "vocab_size must be a whole number from 2"),
        (["--width", "30"], "hidden_dim must be a multiple of 4, got 30"),
        (["--held-out", "24"], "24 usable pictures, 24 of them held out: none is left to train on"),
        (["--held-out", "0"], "--held-out must be at least 1, got 0"),
        (["--ema", "1"], "below 1, got 1.0"),
        (["--temperature", "0"], "from above 0, got 0.0"),
        (["--rate", "1e30", "--clip", "1e30"], "the loss of step"),
    ],
)
def test_wrong_options_are_refused_in_a_line(
    start: Start, capsys: pytest.CaptureFixture[str], options: list[str], message: str
) -> None:
    assert start(*options) == 1
    told = capsys.readouterr().err
    assert message in told
    assert len(told.splitlines()) == 1


# ---- shapes, and the gate


def test_shapes_are_written_with_captions_and_never_over_something(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    counts = write_shapes(tmp_path / "shapes", copies=(1, 1))
    assert counts == {"train": 476, "held_out": 64}
    captions = {
        name: {path.read_text(encoding="utf-8") for path in (tmp_path / "shapes" / name).glob("*.txt")}
        for name in counts
    }
    assert [len(some) for some in captions.values()] == [476, 64]
    assert not captions["train"] & captions["held_out"]
    assert main(["dalle", "shapes", str(tmp_path / "shapes")]) == 1
    assert "is there already, and is no empty folder" in capsys.readouterr().err


def test_shapes_that_are_not_finished_are_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, count = draw_shape, iter(range(600))

    def interrupted(*given: Any) -> Image.Image:
        if next(count) == 500:  # among those held out
            raise KeyboardInterrupt
        return real(*given)

    (tmp_path / "shapes").mkdir()
    with monkeypatch.context() as patch:
        patch.setattr("weighted_clip.studio.world.scenes.draw_shape", interrupted)
        with pytest.raises(KeyboardInterrupt):
            write_shapes(tmp_path / "shapes", copies=(1, 1))
    assert [path.name for path in tmp_path.rglob("*")] == ["shapes"]
    assert write_shapes(tmp_path / "shapes", copies=(1, 1)) == {"train": 476, "held_out": 64}


def test_shapes_that_two_write_at_once_are_those_of_the_first_to_finish(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, count, folder = draw_shape, iter(range(10_000)), tmp_path / "parent" / "shapes"

    def beside_another(*given: Any) -> Image.Image:
        if next(count) == 10:
            write_shapes(folder, copies=(1, 1), seed=1)
        return real(*given)

    monkeypatch.setattr("weighted_clip.studio.world.scenes.draw_shape", beside_another)
    with pytest.raises(OSError, match="not empty") as caught:
        write_shapes(folder, copies=(1, 1))
    assert str(folder) in str(caught.value)
    assert len(list(folder.rglob("*.png"))) == len(list(folder.rglob("*.txt"))) == 476 + 64
    assert [path.name for path in folder.parent.iterdir()] == ["shapes"]


def drawn(shapes: list[Shape], seed: int) -> torch.Tensor:
    rng = random.Random(seed)
    some = [draw_shape(shape, rng).resize((48, 48), Image.Resampling.BOX) for shape in shapes]
    return torch.stack([torch.from_numpy(np.array(picture)).permute(2, 0, 1) for picture in some]).float() / 255


def test_the_judge_knows_real_pictures() -> None:
    shapes = split()[1] * 4
    assert min(right(ShapeJudge()(drawn(shapes, 5)), shapes).values()) >= 0.98
    moved = drawn(shapes, 5).roll(16, 3)
    assert right(ShapeJudge()(moved), shapes)["place"] < 0.5


@pytest.mark.long
def test_the_small_recipe_gives_tokens_that_carry_colour_and_shape(tmp_path: Path) -> None:
    """The gate: from nothing to a model by the documented commands, judged on combinations that it has not seen."""
    library("accelerate")
    from accelerate.state import AcceleratorState

    AcceleratorState._reset_state(reset_partial_state=True)
    began = time.monotonic()
    assert main(["dalle", "shapes", str(tmp_path / "shapes")]) == 0
    options = ["--out", str(tmp_path / "out"), "--recipe", "small", "--device", "cpu"]
    assert main(["dalle", "train-vae", str(tmp_path / "shapes" / "train"), *options]) == 0
    shapes = split()[1] * 4
    real = drawn(shapes, 5)
    model, judge = load_dvae(tmp_path / "out" / "dvae.safetensors"), ShapeJudge()
    tokens = model.tokens(real)
    found = right(judge(model.images(tokens)), shapes)
    measured = [entry for entry in log_of(tmp_path / "out") if "relaxed" in entry]
    gaps = [entry["hard"] - entry["relaxed"] for entry in measured]
    print(json.dumps({"seconds": time.monotonic() - began, **found, "gaps": gaps, **measured[-1]}))  # noqa: T201
    assert min(right(judge(real), shapes).values()) >= 0.98
    assert found["color"] >= 0.95
    assert found["kind"] >= 0.90
    assert measured[-1]["perplexity"] >= 16
    assert gaps[-1] < 0.5 * max(gaps)


def test_options_say_what_cannot_be() -> None:
    for wrong, message in (
        ({"clip": 0.0}, "the norm to clip at must be above 0, got 0.0"),
        ({"laplace_scale": 0.0}, "weight decay and scale"),
        ({"size": 12}, "multiple of 8, got 12"),
    ):
        with pytest.raises(ValueError, match=message):
            DVAEOptions(**wrong)
    assert DVAEOptions(config=DVAEConfig("small"), size=12).held_out is None
    assert TINY.downsampling == 8
