"""Whole runs of ``dalle train``: output, comparison with a plain loop, stopped and resumed, processes, errors, gate."""

from __future__ import annotations

import json
import math
import random
import re
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from torch.nn import functional
from weighted_clip.encoder.models.clip import load_full_clip
from weighted_clip.studio.dalle.config import PriorConfig
from weighted_clip.studio.dalle.full_model import load_dalle
from weighted_clip.studio.dalle.prior import Prior, initialise
from weighted_clip.studio.dalle.weight_files import load_dvae, save_dvae
from weighted_clip.studio.training.data.datasets import Example, read_data
from weighted_clip.studio.training.data.image_inputs import picture_of
from weighted_clip.studio.training.objectives.dalle_options import PRIOR_RECIPES, PriorOptions
from weighted_clip.studio.training.objectives.prior import PriorRun

from ..launching import launched
from ..libraries import library
from ..training.models import accelerator
from ..training.runs import log_of, run_anew
from .models import TINY_SMALL, cosines_of, seeded
from .process import trained_prior

Start = Callable[..., int]
PROCESS = Path(__file__).with_name("process.py")
TINY_PRIOR: dict[str, Any] = {
    "hidden_dim": 16,
    "num_heads": 2,
    "num_layers": 3,
    "size": 16,
    "batch": 4,
    "accumulate": 1,
    "text_length": 10,
    "pieces": 600,
    "bpe_dropout": 0.0,
    "warmup": 2,
    "halvings": 0,
    "ema": 0.0,
    "is_augmented": False,
    "held_out": 4,
}


@pytest.fixture(scope="module")
def dvae(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("dvae") / "dvae.safetensors"
    save_dvae(seeded(TINY_SMALL), path)
    return path


@pytest.fixture
def start(data: Path, dvae: Path, tmp_path: Path) -> Start:
    """Runs the command at a small size; the folder is ``out``, and a second value of an option counts."""

    def started(*options: str, out: str = "out", data: Path = data, dvae: Path = dvae) -> int:
        usual = ["--recipe", "small", "--device", "cpu", "--width", "16", "--heads", "2", "--layers", "3"]
        more = ["--size", "16", "--batch", "4", "--steps", "8", "--held-out", "4", "--pieces", "600", *options]
        return run_anew("dalle", "train", data, "--dvae", dvae, "--out", tmp_path / out, *usual, *more)

    return started


PAPER = ["--recipe", "paper", "--accumulate", "2", "--ema", "0.9", "--warmup", "3"]

# ---- what is written


def test_a_clip_scores_the_images_of_the_page(
    start: Start, clip: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As torchmetrics: 100 times the mean cosine, from 0. Features are those of the towers called by themselves."""
    out, tensors = tmp_path / "out", load_file(clip)
    tensors["text_projection.weight"] *= -1  # so that the mean is above 0
    save_file(tensors, clip := tmp_path / "clip.safetensors")
    assert start("--score", str(tmp_path / "none.safetensors")) == 1
    assert "none.safetensors" in capsys.readouterr().err and not out.exists()
    assert start("--score", str(clip)) == 0
    page = (out / "report.html").read_text(encoding="utf-8")
    model, towers = load_dalle(out / "dalle.safetensors"), load_full_clip(clip)
    [captions] = re.findall(r"Images of held-out captions, one after the other: ([^<]+)", page)
    cosines = [
        cosines_of(towers, caption, model.images(model.tokens(caption, range(8)))) for caption in captions.split("; ")
    ]
    score = max(0.0, 100 * float(torch.cat(cosines).mean()))
    [said] = re.findall(r"CLIP score of these images, by clip\.safetensors: ([\d.]+)", page)
    assert float(said) == pytest.approx(score, abs=0.006) and score > 1


@pytest.mark.parametrize("options", [[], PAPER], ids=["small", "paper"])
def test_a_run_writes_a_model_a_log_and_a_page(
    start: Start, tmp_path: Path, dvae: Path, capsys: pytest.CaptureFixture[str], options: list[str]
) -> None:
    assert start(*options) == 0
    told, out = capsys.readouterr().out, tmp_path / "out"
    model = load_dalle(out / "dalle.safetensors")
    assert model.size == (16, 16)
    assert model.prior.config.text_length == (256 if options else 16)
    before = load_dvae(dvae).state_dict()
    assert all(torch.equal(tensor, before[key]) for key, tensor in model.dvae.state_dict().items())
    assert model.images(model.tokens("a red ring", [0])).shape == (1, 3, 16, 16)
    entries = log_of(out)
    assert [entry["step"] for entry in entries if "loss" in entry] == list(range(1, 9))
    assert [entry["step"] for entry in entries if "right" in entry] == list(range(9))
    assert all(math.isfinite(value) for entry in entries for value in entry.values())
    for entry in entries:
        if "loss" in entry:
            assert entry["loss"] == pytest.approx(entry["text"] / 8 + entry["image"] * 7 / 8, rel=1e-6)
    # heads begin at 0, so all tokens are equally probable
    assert entries[0]["held-out image"] == pytest.approx(math.log(16), rel=1e-5)
    assert "20 pairs to train on, 4 held out, 8 steps" in told
    assert "masks of the layers: row, column, convolutional" in told
    page = (out / "report.html").read_text(encoding="utf-8")
    for name in ("reconstructions.png", "held_out.png", "right.png", "loss.png"):
        assert f'src="{name}"' in page
        assert (out / name).is_file()


def test_paper_and_small_recipes_are_as_documented() -> None:
    paper, small = PRIOR_RECIPES["paper"](None), PRIOR_RECIPES["small"](None)
    assert (
        PriorConfig(hidden_dim=paper.hidden_dim, num_heads=paper.num_heads, num_layers=paper.num_layers)
        == PriorConfig()
    )
    assert (paper.steps, paper.batch * paper.accumulate, paper.betas) == (430_000, 1024, (0.9, 0.96))
    assert (paper.weight_decay, paper.clip, paper.max_second_moment) == (0.045, 4, 5)
    assert (paper.ema, paper.ema_every, paper.bpe_dropout, paper.pieces) == (0.99, 25, 0.1, 16384)
    assert paper.rate(0) == pytest.approx(4.5e-4 / 5000)
    assert paper.rate(5_000) == 4.5e-4
    assert paper.rate(429_999) == 4.5e-4 / 32
    assert (small.steps, small.batch, small.size, small.text_length) == (3_000, 16, 48, 16)


def run_of(data: Path, folder: Path, **options: Any) -> PriorRun:
    folder.mkdir(exist_ok=True)
    given = PriorOptions(**{**TINY_PRIOR, **options})
    return PriorRun(seeded(TINY_SMALL), read_data(data), folder, given, accelerator(), lambda line: None)


@pytest.fixture
def in_float64() -> Any:
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(before)


@pytest.mark.parametrize("counts_padding", [True, False])
@pytest.mark.parametrize("divided", [{}, {"batch": 2, "accumulate": 2}], ids=["whole", "in two parts"])
@pytest.mark.usefixtures("in_float64")
def test_a_run_equals_a_plain_loop(data: Path, tmp_path: Path, counts_padding: bool, divided: dict[str, int]) -> None:
    """PyTorch's AdamW and cross-entropy on whole batches; after 20 steps."""
    library("accelerate")
    run = run_of(
        data, tmp_path / "run", steps=20, clip=None, max_second_moment=None, counts_padding=counts_padding, **divided
    )
    plain = Prior(run.trained.prior.config)
    plain.load_state_dict(run.trained.prior.state_dict())
    matrices = [one for one in plain.parameters() if one.ndim >= 2]
    others = [one for one in plain.parameters() if one.ndim < 2]
    groups = [{"params": matrices, "weight_decay": 0.045}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=1.0, betas=(0.9, 0.96))
    dvae, size = seeded(TINY_SMALL), plain.config.text_vocab_size
    for step in range(20):
        _, indices = run.batches(step)
        some = [run.examples[index] for index in indices]
        text = plain.padded([run.pieces(example.captions[0]) for example in some])
        pictures = torch.stack([picture_of(example, 16, None) for example in some])
        image = dvae.tokens(pictures.double() / 255).flatten(1)
        logits, labels = plain(text, image), text[:, 1:]
        if not counts_padding:
            labels = labels.masked_fill(labels >= size, -100)
        loss = functional.cross_entropy(logits.text.transpose(1, 2), labels) / 8
        loss = loss + functional.cross_entropy(logits.image.transpose(1, 2), image) * 7 / 8
        for group in optimizer.param_groups:
            group["lr"] = run.options.rate(step)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    first = {name: tensor.clone() for name, tensor in run.trained.prior.state_dict().items()}
    run.train()
    found = run.trained.prior.state_dict()
    differences = {name: float((found[name] - tensor).abs().max()) for name, tensor in plain.state_dict().items()}
    # the gradient of a key's bias is 0 up to rounding, of which AdamW makes whole steps
    assert max(value for name, value in differences.items() if "k_proj.bias" not in name) < 1e-10
    assert max(float((found[name] - tensor).abs().max()) for name, tensor in first.items()) > 1e-3


def test_the_second_moment_is_clipped_and_the_average_moves_every_so_often(data: Path, tmp_path: Path) -> None:
    library("accelerate")
    run = run_of(data, tmp_path / "run", steps=7, max_second_moment=1e-9, ema=0.5, ema_every=3)
    seen: list[torch.Tensor] = []
    train_on = run._train_on

    def watched(loaded: Any) -> dict[str, float]:
        entry = train_on(loaded)
        seen.append(run.result.prior.image_head.weight.clone())
        return entry

    run._train_on = watched
    run.train()
    moments = [state["exp_avg_sq"].max() for state in run.optimizer.state.values()]
    assert max(moments) == pytest.approx(1e-9)
    changed = [not torch.equal(one, other) for one, other in pairwise(seen)]
    assert changed == [False, True, False, False, True, False]


def test_pieces_are_dropped_in_training_alone(data: Path, tmp_path: Path) -> None:
    library("accelerate")
    from concurrent.futures import ThreadPoolExecutor

    run = run_of(data, tmp_path / "run", bpe_dropout=0.5, text_length=40)
    with ThreadPoolExecutor() as pool:
        loaded = [run._load(pool, step) for step in (0, 0, 5)]
    pieces = [[pieces for pieces, _ in some] for some in loaded]
    assert pieces[0] == pieces[1]
    captions = {example.captions[0] for example in run.data.examples}
    whole = {tuple(run.pieces(caption)) for caption in captions}
    assert not {tuple(one) for one in pieces[2]} <= whole
    words = {"".join(map(run.pieces.symbol, one)).replace("</w>", " ").strip() for one in pieces[2]}
    assert words <= captions


def test_pictures_of_the_paper_are_cut_anew_and_never_mirrored(tmp_path: Path) -> None:
    """A picture of which each pixel tells its place."""
    height, width = 60, 108
    down, along = np.mgrid[:height, :width]
    Image.fromarray(np.stack([down * 2, along * 2, down * 0], 2).astype(np.uint8)).save(tmp_path / "a.png")
    example = Example("a.png", tmp_path / "a.png", ())
    lefts, scales = set(), []
    for seed in range(80):
        picture = picture_of(example, 48, random.Random(seed), "prior").float()
        assert picture.shape == (3, 48, 48)
        steps = picture[1].diff(dim=1)
        assert steps.mean() > 0
        scales.append(60 * 2 / float(steps.mean()))
        lefts.add(round(float(picture[1, 0, 0]) / 2))
    assert min(lefts) >= 18  # 3/8 of the 48 pixels next to the square
    assert max(lefts) < 30 + 7
    assert len(lefts) > 5
    assert 47 < min(scales) < 49
    assert 52 < max(scales) < 55  # 9/8 of 48 is 54


def test_augmented_pictures_are_encoded_for_each_update(data: Path, tmp_path: Path) -> None:
    library("accelerate")
    from concurrent.futures import ThreadPoolExecutor

    run = run_of(data, tmp_path / "run", is_augmented=True)
    with ThreadPoolExecutor() as pool:
        parts = [run._image_tokens([picture for _, picture in run._load(pool, step)]) for step in range(5)]
    indices = [index for step in range(5) for index in run.batches(step)[1]]
    middle = torch.stack([run._tokens[run.examples[index].name] for index in indices])
    found = torch.cat(parts)
    assert found.shape == middle.shape == (20, 16)
    assert not torch.equal(found, middle.long())


# ---- resumed, as also in tests/training/test_termination.py


def test_a_run_is_not_resumed_with_another_dvae(
    start: Start, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert start("--steps", "2") == 0
    save_dvae(seeded(TINY_SMALL, 5), tmp_path / "other.safetensors")
    assert start("--steps", "2", "--resume", dvae=tmp_path / "other.safetensors") == 1
    assert "is of a run with other tokens" in capsys.readouterr().err


def test_float16_has_a_scale_for_each_resblock(start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside float32; an update whose gradients are not finite is skipped; stopped and resumed to the bit."""
    assert start(out="fp32") == 0
    assert start("--precision", "fp16", out="fp16") == 0
    plain, half = ([one for one in log_of(tmp_path / name) if "loss" in one] for name in ("fp32", "fp16"))
    assert [one["loss"] for one in half] == pytest.approx([one["loss"] for one in plain], rel=2e-3)
    assert [one["loss"] for one in half] != [one["loss"] for one in plain]
    assert half[0]["lowest scale"] == half[0]["highest scale"] == pytest.approx(13 + 1 / 1000)
    assert half[-1]["highest scale"] == pytest.approx(13 + 8 / 1000)
    assert (tmp_path / "fp16" / "scales.png").is_file()

    real = PriorRun._backward

    def broken(self: PriorRun, loaded: Any) -> dict[str, float]:
        found = real(self, loaded)
        if self.step == 2:
            assert self.scales is not None
            self.scales.blocks[1].parameters[0].grad[0] = math.inf
            before.update({name: one.clone() for name, one in self.trained.state_dict().items()})
        if self.step == 3:
            after.update({name: one.clone() for name, one in self.trained.state_dict().items()})
            self.is_stopped = True
        return found

    before: dict[str, torch.Tensor] = {}
    after: dict[str, torch.Tensor] = {}
    monkeypatch.setattr(PriorRun, "_backward", broken)
    assert start("--precision", "fp16", out="broken") == 130
    assert all(torch.equal(before[name], one) for name, one in after.items())
    entries = [one for one in log_of(tmp_path / "broken") if "loss" in one]
    assert [one["skipped"] for one in entries] == [0, 0, 1, 0]
    assert entries[2]["lowest scale"] == pytest.approx(13 + 2 / 1000 - 1 / 2)
    assert entries[2]["highest scale"] == pytest.approx(13 + 3 / 1000)
    monkeypatch.setattr(PriorRun, "_backward", real)
    assert start("--precision", "fp16", "--resume", out="broken") == 0
    last = [one for one in log_of(tmp_path / "broken") if "loss" in one][-1]
    assert last["lowest scale"] == pytest.approx(13 + 7 / 1000 - 1 / 2)


# ---- several processes


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [pytest.param(2, marks=pytest.mark.long), 3])
def test_several_processes_equal_one(tmp_path: Path, data: Path, ranks: int) -> None:
    done = launched(ranks, PROCESS, "prior", tmp_path, data)
    assert done.returncode == 0, done.stderr
    one, before = trained_prior(data, tmp_path / "one", 1), trained_prior(data, tmp_path / "none", 1, steps=1)
    for rank in range(ranks):
        for how, other in torch.load(tmp_path / f"{rank}.pt").items():
            assert one.keys() == other.keys()
            assert max((one[key] - other[key]).abs().max() for key in one) <= 1e-10, (rank, how)
    once, sharded = (load_dalle(tmp_path / name / "dalle.safetensors").prior for name in ("shared", "sharded"))
    for key, tensor in once.state_dict().items():
        assert (tensor - sharded.state_dict()[key]).abs().max() <= 1e-7, key  # files are in float32
    assert max((one[key] - before[key]).abs().max() for key in one) > 1e-4


# ---- bad input


def test_pairs_that_cannot_be_used_are_named(start: Start, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = tmp_path / "data"
    data.mkdir()
    for number in range(6):
        Image.new("RGB", (20, 30), (number * 20, 0, 0)).save(data / f"{number}.png")
        (data / f"{number}.txt").write_text("a red thing")
    (data / "5.txt").write_text("thing " * 17)
    Image.new("RGB", (15, 30)).save(data / "thin.png")
    (data / "thin.txt").write_text("a red thing")
    assert start("--steps", "1", "--held-out", "2", data=data) == 0
    told = capsys.readouterr().out
    assert "1 left out: its short side has fewer than 16 pixels (thin.png)" in told
    assert "1 left out: its caption has more than 16 pieces (5.png)" in told
    assert "3 pairs to train on, 2 held out" in told


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--batch", "0"], "batch must be at least 1, got 0"),
        (["--steps", "0"], "steps must be at least 1, got 0"),
        (["--size", "18"], "the size of pictures must be a multiple of 4, got 18"),
        (["--heads", "3"], "hidden_dim 16 is not a multiple of num_heads 3"),
        (["--pieces", "100"], "pieces must be at least 512, one for each byte, or 0 for CLIP's own; got 100"),
        (["--bpe-dropout", "1"], "bpe_dropout must be from 0 to below 1, got 1"),
        (["--text-weight", "2"], "the weight of the text must be from 0 to 1, got 2"),
        (["--held-out", "24"], "24 usable pairs, 24 of them held out: none is left to train on"),
        (["--rate", "1e30", "--clip", "1e30"], "the loss of step"),
        (["--size", "512"], "none is left to train on"),
    ],
)
def test_wrong_options_are_refused_in_a_line(
    start: Start, capsys: pytest.CaptureFixture[str], options: list[str], message: str
) -> None:
    assert start(*options) == 1
    told = capsys.readouterr().err
    assert message in told
    assert len(told.splitlines()) == 1


# ---- learning


def test_64_captions_and_grids_are_learned_by_heart() -> None:
    """All tokens of 64 random grids of 4 x 4, by their random captions, each likelier than any other."""
    config = PriorConfig(
        text_vocab_size=40,
        text_length=6,
        rows=4,
        columns=4,
        image_vocab_size=32,
        hidden_dim=96,
        num_heads=3,
        num_layers=2,
        mlp_dim=192,
        activation="gelu",
    )
    generator = torch.Generator().manual_seed(0)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        prior = Prior(config)
        initialise(prior)
    text = prior.padded(torch.randint(40, (64, 4), generator=generator).tolist())
    image = torch.randint(32, (64, 16), generator=generator)
    optimizer = torch.optim.AdamW(prior.parameters(), lr=2e-3, betas=(0.9, 0.96))
    for step in range(150):
        loss = functional.cross_entropy(prior(text, image).image.flatten(0, 1), image.flatten())
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(prior.parameters(), 1.0)
        optimizer.step()
        if step == 0:
            assert loss.item() == pytest.approx(math.log(32), rel=1e-5)
    right = (prior(text, image).image.argmax(-1) == image).double().mean()
    assert right >= 0.99
    shuffled = text[torch.randperm(64, generator=generator)]
    assert (prior(shuffled, image).image.argmax(-1) == image).double().mean() < 0.9


@pytest.mark.long
def test_all_of_dalle_on_shapes(tmp_path: Path) -> None:
    """The gate: the documented command, from nothing to a page, judged on captions that were in no training."""
    assert run_anew("dalle", "demo", tmp_path / "demo") == 0
    results = json.loads((tmp_path / "demo" / "results.json").read_text(encoding="utf-8"))
    print(json.dumps(results))  # noqa: T201
    assert results["captions"] == 64
    assert results["best of"]["1"]["color"] >= 0.90
    assert results["best of"]["1"]["kind"] >= 0.60
    assert results["gain"]["mean"] >= 0.05
    assert results["gain"]["low"] > 0
    assert sum(results["seconds"].values()) < 90 * 60
