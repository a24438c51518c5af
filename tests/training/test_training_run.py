"""Whole runs: what is learned and written, stopped and resumed to the bit, and what is said of bad input."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from safetensors import safe_open
from torch import Tensor, distributed
from weighted_clip.encoder.files.checkpoint import load_text_models
from weighted_clip.encoder.models.clip import load_full_clip
from weighted_clip.encoder.models.vision_model import VisionModel
from weighted_clip.encoder.tokenizer import default_tokenizer
from weighted_clip.studio.commands.program import main
from weighted_clip.studio.training.metrics import places, recalls
from weighted_clip.studio.training.objectives import contrastive
from weighted_clip.studio.training.objectives.contrastive import ContrastiveRun
from weighted_clip.web.pictures.curves import draw_curves
from weighted_clip.web.pictures.style import THEMES

from ..patience import SECONDS
from .runs import Start, log_of, tensors_of, write_pairs
from .test_termination import signalling

# ---- what is learned and written


@pytest.mark.parametrize(("towers", "most"), [("both", 0.05), ("text", 3.0)])
def test_thirty_two_random_pairs_are_learned_by_heart(
    start: Start, tmp_path: Path, wide_weights: Path, towers: str, most: float
) -> None:
    """A text tower alone learns less, since the features of a random image tower are all alike."""
    options = ["--towers", towers, "--batch", "32", "--accumulate", "1", "--steps", "80", "--held-out", "0"]
    assert start(*options, "--weights", str(wide_weights)) == 0
    losses = [entry["loss"] for entry in log_of(tmp_path / "out")]
    assert len(losses) == 80
    assert losses[0] > 3.3
    assert losses[-1] < most
    before, after = load_full_clip(wide_weights), load_full_clip(tmp_path / "out" / "clip.safetensors")
    is_same = [torch.equal(*both) for both in zip(before.vision.parameters(), after.vision.parameters(), strict=True)]
    assert all(is_same) if towers == "text" else not any(is_same)
    assert after.logit_scale != before.logit_scale


def test_what_is_written_has_the_keys_of_hosts_and_says_what_it_is(start: Start, tmp_path: Path) -> None:
    assert start("--steps", "3") == 0
    text = tensors_of(tmp_path / "out" / "text_encoder.safetensors")
    whole = tensors_of(tmp_path / "out" / "clip.safetensors")
    assert {key.partition(".")[0] for key in text} == {"text_model", "text_projection"}
    assert {key.partition(".")[0] for key in whole} - {key.partition(".")[0] for key in text} == {
        "vision_model",
        "visual_projection",
        "logit_scale",
    }
    assert all(torch.equal(whole[key], tensor) for key, tensor in text.items())
    models, report = load_text_models(tmp_path / "out" / "text_encoder.safetensors")
    assert (list(models), report.ignored) == (["clip_l"], ())
    with safe_open(tmp_path / "out" / "text_encoder.safetensors", framework="pt") as file:
        about = file.metadata()
    assert (about["trained_from"], about["steps"]) == ("tiny.safetensors", "3")
    assert json.loads(about["options"])["rates"]["rate"] == 1e-3


def test_recall_counts_how_many_find_their_own() -> None:
    texts = torch.eye(12)
    images = texts[torch.tensor([0, 1, 3, 2, *range(4, 12)])] + texts * 0.5  # two are swapped
    found = recalls(places(texts, images))
    assert found["text to image @1"] == found["image to text @1"] == pytest.approx(10 / 12)
    assert found["text to image @5"] == 1
    # equal scores find nothing
    assert recalls(places(torch.ones(12, 3), torch.ones(12, 3))) == dict.fromkeys(found, 0.0)
    assert recalls(places(torch.full((12, 2), math.nan), torch.ones(12, 2))) == dict.fromkeys(found, 0.0)
    for count, names in ((10, {"@1", "@5"}), (5, {"@1"}), (1, {"@1"})):  # among so few more would always be found
        assert {name[-2:].strip() for name in recalls(places(texts[:count], images[:count]))} == names


def by_a_loop(texts: torch.Tensor, images: torch.Tensor, captions: list[str], at: int) -> float:
    """Share of texts with an image of their caption among the first; among equal scores the wrong ones come first."""
    num_found = 0
    for text, caption in zip(texts, captions, strict=True):
        scores = [(float(text @ image), other) for image, other in zip(images, captions, strict=True)]
        ranked = sorted(scores, key=lambda one: (-one[0], one[1] == caption))
        num_found += any(other == caption for _, other in ranked[:at])
    return num_found / len(captions)


@pytest.mark.parametrize("num_captions", [1, 3, 8, 30])
@pytest.mark.parametrize("is_equal", [True, False])
def test_any_pair_of_the_same_caption_is_right(num_captions: int, *, is_equal: bool) -> None:
    rng = torch.Generator().manual_seed(num_captions)
    numbers = torch.arange(30)[torch.randperm(30, generator=rng)] % num_captions
    captions = [str(number) for number in numbers.tolist()]
    some = torch.eye(8) if is_equal else torch.nn.functional.normalize(torch.randn(30, 8, generator=rng))
    texts, images = some[numbers % len(some)], some[torch.randint(len(some), (30,), generator=rng)]
    found = recalls(places(texts, images, captions))
    for at in (1, 5, 10):
        assert found[f"text to image @{at}"] == pytest.approx(by_a_loop(texts, images, captions, at))
        assert found[f"image to text @{at}"] == pytest.approx(by_a_loop(images, texts, captions, at))
    if num_captions == 30:
        assert found == recalls(places(texts, images))
    if num_captions <= len(some):
        assert set(recalls(places(texts, texts, captions)).values()) == {1.0}  # a perfect model
    assert recalls(places(texts.fill_(math.nan), images, captions)) == dict.fromkeys(found, 0.0)


def test_equal_captions_are_counted_as_the_encoder_reads_them(
    start: Start, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = tmp_path / "pairs"
    write_pairs(data, 12)
    for number, text in enumerate(["A  cat", "a cat", "a dog", "A CAT", "a bird", "a dog "] * 2):
        (data / f"{number:03}.txt").write_text(text)
    assert start("--steps", "1", "--held-out", "8", data=data) == 0
    told = capsys.readouterr().out
    held = [entry for entry in told.splitlines() if "after 0 steps" in entry]
    assert "recall of 8 held-out pairs (" in held[0]
    assert "have a caption that another has, and count as right with each other) after 0 steps: text to" in held[0]


def test_the_log_and_the_lines_tell_of_recall_and_progress(
    start: Start, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert start("--epochs", "2", "--held-out", "8", "--batch", "4") == 0
    entries = log_of(tmp_path / "out")
    assert [entry["step"] for entry in entries if "loss" in entry] == [1, 2, 3, 4, 5, 6]
    assert [entry["step"] for entry in entries if "text to image @5" in entry] == [0, 1, 2, 3, 4, 5, 6]
    told = capsys.readouterr().out
    assert "24 pairs to train on, 8 held out, 6 steps, on cpu in fp32" in told
    assert "recall of 8 held-out pairs after 0 steps: text to image @1 " in told
    assert "step 6 of 6: loss " in told
    assert " pairs/s, 0 s left" in told


def test_watched_prompts_tell_how_far_their_rows_have_moved(
    start: Start, weights: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    prompts = ["a red cat 3", "something else: 9%"]
    options = [option for prompt in prompts for option in ("--watch", prompt)]
    assert start("--steps", "3", "--held-out", "0", *options) == 0
    assert start("--steps", "3", "--held-out", "0", *options, "--resume") == 0  # measures from the first weights too
    entries = [entry for entry in log_of(tmp_path / "out") if "moved: a red cat 3" in entry]
    assert [entry["step"] for entry in entries] == [0, 1, 2, 3]
    told = capsys.readouterr().out
    before, after = (load_full_clip(path).text for path in (weights, tmp_path / "out" / "clip.safetensors"))
    for prompt in prompts:
        tokens = [token.id for token in default_tokenizer()(prompt)]
        ids = torch.tensor([[49406, *tokens, *[49407] * (76 - len(tokens))]])
        rows = [model(ids).hidden[0, 1 : len(tokens) + 2] for model in (before, after)]
        ratios = [((new - old).norm() / old.norm()).item() for old, new in zip(*rows, strict=True)]
        assert len(ratios) == len(tokens) + 1
        expected = sum(ratios) / len(ratios)
        assert entries[-1][f"moved: {prompt}"] == pytest.approx(expected, rel=1e-3)
        assert expected > 0.01
        assert entries[0][f"moved: {prompt}"] == 0
        assert f"{prompt!r} has moved by " in told
    assert 'src="moved.png"' in (tmp_path / "out" / "report.html").read_text(encoding="utf-8")


def test_the_average_of_the_weights_is_written_and_not_the_last_ones(start: Start, tmp_path: Path) -> None:
    key, decay = "text_model.encoder.layers.0.mlp.fc1.weight", 0.75
    expected = None
    assert start("--steps", "3", "--ema", str(decay)) == 0
    # by hand: the weights after each step, and their average
    seen: list[Tensor] = []

    class Seeing(ContrastiveRun):
        def _train_on(self, loaded: Any) -> dict[str, float]:
            entry = super()._train_on(loaded)
            seen.append(self.trained.text.encoder.layers[0].mlp.fc1.weight.detach().clone())
            return entry

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(contrastive, "ContrastiveRun", Seeing)
        assert start("--steps", "3", "--ema", str(decay), out="seen") == 0
    for weight in seen:
        expected = weight if expected is None else decay * expected + (1 - decay) * weight
    assert expected is not None
    for folder in (tmp_path / "out", tmp_path / "seen"):
        written = tensors_of(folder / "text_encoder.safetensors")[key]
        assert (written - expected).abs().max() < 1e-7
        assert (written - seen[-1]).abs().max() > 1e-5


def test_a_run_has_a_report_with_its_curves(start: Start, tmp_path: Path) -> None:
    data = write_pairs(tmp_path / "<b>data", 12)
    (data / "<b>.png").write_bytes(b"no image")
    (data / "<b>.txt").write_text("x", encoding="utf-8")
    assert start("--steps", "4", "--held-out", "4", "--batch", "4", "--accumulate", "1", data=data) == 0
    page = (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    assert "8 pairs to train on, 4 held out, 4 steps" in page
    assert "1 left out: no image of a kind that is read" in page
    assert "&lt;b&gt;.png" in page
    assert "<b>" not in page
    entries = [entry for entry in log_of(tmp_path / "out") if "text to image @1" in entry]
    shares = [entry["text to image @1"] for entry in entries]
    expected = "".join(f"<td>{share:.1%}" for share in (shares[0], max(shares), shares[-1]))
    assert f"<td>text to image @1{expected}" in page
    for name in ("loss.png", "recall.png"):
        assert f'src="{name}"' in page
        with Image.open(tmp_path / "out" / name) as picture:
            assert picture.format == "PNG"


def test_a_curve_goes_where_its_numbers_are() -> None:
    picture = draw_curves("Falling", {"x": [(0, 4.0), (1, math.nan), (10, 0.0)]})
    accent = THEMES["dark"].accent
    pixels = picture.load()
    places = [
        (x, y) for x in range(74, picture.width - 20) for y in range(95, picture.height - 40) if pixels[x, y] == accent
    ]
    (_, first), (_, last) = min(places), max(places)
    assert first < 105
    assert last > picture.height - 60
    six = draw_curves("Six", {f"a name of some length {number}": [(0, number), (9, 0)] for number in range(6)})
    background = THEMES["dark"].background
    names = six.crop((0, 45, six.width, 90))
    assert {color for _, color in names.crop((six.width - 22, 0, six.width, 45)).getcolors()} == {background}
    assert len(names.crop((six.width - 250, 20, six.width, 45)).getcolors()) > 3  # the sixth
    narrow = draw_curves("Narrow", {"x": [(0, 1004.0), (1, math.nan), (10, 1000.0)]}).load()
    assert all(narrow[place] == accent for place in places)  # as high as from 4 to 0
    with pytest.raises(ValueError, match="nothing to draw"):
        draw_curves("Nothing", {"x": [(0, math.inf)]})
    assert len({color for _, color in draw_curves("One", {"x": [(3, 1.0)]}).getcolors(10**6)}) > 3


@pytest.mark.parametrize("options", [["--checkpointing"], ["--batch", "4", "--accumulate", "4"]])
def test_ways_to_save_memory_give_the_same_losses(start: Start, tmp_path: Path, options: list[str]) -> None:
    assert start("--steps", "4", "--towers", "both", "--batch", "16", "--accumulate", "1") == 0
    assert start("--steps", "4", "--towers", "both", "--batch", "16", "--accumulate", "1", *options, out="again") == 0
    once, again = ([entry["loss"] for entry in log_of(tmp_path / name) if "loss" in entry] for name in ("out", "again"))
    assert len(once) == 4
    assert again == pytest.approx(once, abs=2e-5)


# ---- stopped and resumed


RESUMED = {
    "text": ["--shuffle-tags"],
    "a LoRA": ["--lora", "2", "--lora-for", "sdxl_l"],
    "a word": ["--word", "cat", "--ema", "0.9"],
    "both with an average": ["--towers", "both", "--ema", "0.9", "--warmup", "3"],
    "both with random parts": ["--towers", "both", "--random-crop", "0.5", "--mirror"],
    "another optimizer": ["--optimizer", "adafactor"],
    "a new text tower": ["--new-text", "--positions", "rotary", "--context-length", "30"],
    "masked words": ["--objective", "mlm", "--ema", "0.9", "--new-text", "--positions", "rotary", "--shuffle-tags"],
}


@pytest.mark.parametrize("options", RESUMED.values(), ids=RESUMED)
def test_a_run_that_is_stopped_and_resumed_ends_with_the_same_bits(
    start: Start,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    options: list[str],
) -> None:
    options = [*options, "--steps", "9", "--held-out", "4", "--batch", "4"]
    on_interrupt = signal.getsignal(signal.SIGINT)  # which a shell leaves ignored in what it runs in the background
    assert start(*options, out="whole") == 0
    with monkeypatch.context() as patch:
        signalling(patch, 5, signal.SIGINT)
        assert start(*options) == 130
    said = capsys.readouterr().out
    assert "stopping after this step" in said and "stopped after step 5 of 9: --resume" in said
    is_small = (tmp_path / "out" / "checkpoint.pt").stat().st_size < 2**20  # without what is not trained
    assert is_small == ("--lora" in options or "--word" in options)
    assert signal.getsignal(signal.SIGINT) is on_interrupt
    assert [entry["step"] for entry in log_of(tmp_path / "out") if "loss" in entry] == [1, 2, 3, 4, 5]
    with (tmp_path / "out" / "log.jsonl").open("a") as file:  # as a kill after the checkpoint would leave it
        file.write('{"step": 6, "loss": 1.0}\n{"step": 7, "lo')
    assert start(*options, "--resume") == 0
    assert "goes on after step 5 of 9" in capsys.readouterr().out
    assert (tmp_path / "out" / "lora.safetensors").exists() == ("--lora" in options)
    for path in (tmp_path / "whole").glob("*.safetensors"):
        name = path.name
        whole, resumed = (tensors_of(tmp_path / folder / name) for folder in ("whole", "out"))
        assert whole.keys() == resumed.keys()
        assert all(torch.equal(whole[key], resumed[key]) for key in whole)
    assert log_of(tmp_path / "whole") == log_of(tmp_path / "out")


def test_a_run_is_not_begun_over_another_and_not_resumed_with_other_data_or_options(
    start: Start, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = write_pairs(tmp_path / "data", 12)
    assert start("--resume", data=data) == 1
    assert "nothing to go on with; leave out --resume" in capsys.readouterr().err
    assert start("--steps", "2", data=data) == 0
    assert start("--steps", "2", data=data) == 1
    assert "there is a run in it; go on with it by --resume" in capsys.readouterr().err
    assert start("--steps", "2", "--resume", "--seed", "1", "--towers", "both", data=data) == 1
    told = capsys.readouterr().err
    assert 'is of a run with other towers ("text" then, "both" now), seed (0 then, 1 now)' in told
    assert start("--steps", "2", "--resume", "--warmup", "5", "--mirror", "--towers", "both", data=data) == 1
    told = capsys.readouterr().err
    assert "warmup (0 then, 5 now)" in told
    assert "mirror (False then, True now)" in told
    assert "weight_decay" not in told
    (data / "003.txt").write_text("something else", encoding="utf-8")
    assert start("--steps", "2", "--resume", data=data) == 1
    assert "is of a run with other data. Undo the change" in capsys.readouterr().err
    (tmp_path / "out" / "checkpoint.pt").write_bytes(b"PK\x03\x04")
    assert start("--steps", "2", "--resume", data=data) == 1
    assert "checkpoint.pt cannot be read" in capsys.readouterr().err


def test_features_of_images_are_computed_once_and_anew_for_a_changed_image(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, seen = write_pairs(tmp_path / "data", 10), []
    real = VisionModel.project
    monkeypatch.setattr(VisionModel, "project", lambda self, pixels: seen.append(len(pixels)) or real(self, pixels))

    def records() -> list[bytes]:
        (path,) = (tmp_path / "out" / "features").iterdir()
        content, size = path.read_bytes(), path.stat().st_size // 10
        return [content[start : start + size] for start in range(0, len(content), size)]

    assert start("--steps", "1", data=data) == 0
    assert start("--steps", "1", "--resume", data=data) == 0
    assert sum(seen) == 10
    before = records()
    Image.new("RGB", (9, 9), "red").save(data / "004.png")
    assert start("--steps", "1", "--resume", data=data) == 0
    assert sum(seen) == 20  # of the batch that it is in
    after = records()
    assert [index for index in range(10) if before[index] != after[index]] == [4]
    assert start("--steps", "1", "--resume", "--crop", "letterbox", data=data) == 1  # another option
    assert sum(seen) == 30


# ---- several processes


@pytest.mark.slow
def test_torchrun_trains_on_the_batch_of_all_processes(
    start: Start, weights: Path, pairs: Path, tmp_path: Path
) -> None:
    if not distributed.is_available() or not distributed.is_gloo_available():
        pytest.skip("this torch has no gloo")
    options = ["--towers", "both", "--steps", "3", "--rate", "1e-4", "--ema", "0.5", "--batch", "4", "--held-out", "4"]
    assert start(*options, "--accumulate", "4") == 0
    program = str(Path(__file__).resolve().parents[2] / "__main__.py")
    usual = ["--weights", str(weights), "--out", str(tmp_path / "two"), "--device", "cpu", "--accumulate", "2"]
    launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = subprocess.run(
        [sys.executable, *launch, program, "train", str(pairs), *usual, *options],
        env={**os.environ, "OMP_NUM_THREADS": "1"} | ({"GLOO_SOCKET_IFNAME": "lo"} if sys.platform == "linux" else {}),
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("28 pairs to train on") == 1  # the first process speaks for all
    one, two = (log_of(tmp_path / name) for name in ("out", "two"))
    assert [entry["step"] for entry in two] == [entry["step"] for entry in one]
    for ours, theirs in zip(one, two, strict=True):
        assert ours == pytest.approx(theirs, abs=1e-4)
    once, together = (tensors_of(tmp_path / name / "clip.safetensors") for name in ("out", "two"))
    before = tensors_of(weights)
    for key, tensor in once.items():
        assert (tensor - together[key]).abs().max() < 4e-5, key  # true gradients of 0 are a step of AdamW
    assert max((tensor - before[key]).abs().max() for key, tensor in once.items()) > 1e-4


# ---- bad input


def bad_data(folder: Path, kind: str) -> Path:
    data = write_pairs(folder / "data", 3 if kind != "one pair" else 1)
    if kind == "no captions":
        for path in data.glob("*.txt"):
            path.unlink()
    if kind == "broken images":
        for path in data.glob("*.png"):
            path.write_bytes(path.read_bytes()[:60])
    return data


@pytest.mark.parametrize("towers", ["text", "both"])
@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("one pair", "1 usable pair, 0 of them held out"),
        ("no captions", "0 usable pairs: 3 left out: no .txt, .caption or .json beside it (000.png, 001.png, 002.png)"),
        ("broken images", "0 usable pairs: 3 left out: broken image"),
    ],
)
def test_too_few_pairs_are_refused_with_the_reason(
    start: Start, tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: str, message: str, towers: str
) -> None:
    assert start("--towers", towers, data=bad_data(tmp_path, kind)) == 1
    assert message in capsys.readouterr().err


def test_one_broken_image_an_empty_caption_and_a_long_one_are_named(
    start: Start, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = write_pairs(tmp_path / "data", 8)
    (data / "001.png").write_bytes(b"no image")
    (data / "002.txt").write_text(" ", encoding="utf-8")
    (data / "003.txt").write_text("cat " * 90, encoding="utf-8")
    assert start("--steps", "1", data=data) == 0
    told = capsys.readouterr().out
    assert "1 left out: its caption is empty (002.png)" in told
    assert "1 left out: no image of a kind that is read" in told
    assert "(001.png)" in told
    assert "1 caption has more than 75 tokens, and is read up to there (003.png)" in told
    assert "batch of 6 pairs, as there are no more" in told


def test_a_full_disk_is_said_and_leaves_the_last_checkpoint(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    resource = pytest.importorskip("resource")
    assert start("--steps", "2") == 0
    kept = (tmp_path / "out" / "checkpoint.pt").read_bytes()
    old = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, old[1]))
    try:
        assert start("--steps", "2", "--resume") == 1
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, old)
        signal.signal(signal.SIGXFSZ, ignored)
    told = capsys.readouterr().err
    assert "checkpoint.pt cannot be written" in told
    assert "Traceback" not in told
    assert (tmp_path / "out" / "checkpoint.pt").read_bytes() == kept
    assert start("--steps", "2", "--resume") == 0


def test_without_accelerate_the_command_says_how_to_get_it(
    weights: Path, pairs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "accelerate", None)
    assert main(["train", str(pairs), "--weights", str(weights), "--out", str(tmp_path / "out")]) == 1
    assert "train needs accelerate, which python run.py train installs" in capsys.readouterr().err
