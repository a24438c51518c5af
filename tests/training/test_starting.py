"""Runs on many images start at once: each is read when it comes, and what cannot be read is replaced and named."""

from __future__ import annotations

import gc
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
import torch
from weighted_clip.encoder.foreign_text import parse_json
from weighted_clip.studio.training import loop
from weighted_clip.studio.training.data import image_inputs as images
from weighted_clip.studio.training.data.captions import Batches, held_out
from weighted_clip.studio.training.data.datasets import Data
from weighted_clip.studio.training.data.examples import DataProblem, Example, Examples
from weighted_clip.studio.training.data.image_inputs import FeatureFile, LeftOut

from ..libraries import is_torch, library
from ..patience import SECONDS
from .runs import Start, log_of, tensors_of, write_pairs
from .test_termination import signalling


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let forty pictures be many."""
    for module in (images, loop):
        monkeypatch.setattr(module, "FEW", 8)
    monkeypatch.setattr("weighted_clip.studio.training.objectives.contrastive.FEW", 8)


def spoil(data: Path, *numbers: int) -> Path:
    for number in numbers:
        (data / f"{number:03}.png").write_bytes(b"no image")
    return data


def opened_by(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the pictures that are opened."""
    names: list[str] = []
    real = Example.image
    monkeypatch.setattr(Example, "image", lambda self: names.append(self.name) or real(self))
    return names


@pytest.mark.parametrize("towers", ["both", "text"])
def test_only_pictures_of_the_steps_are_opened(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, towers: str
) -> None:
    data, names = write_pairs(tmp_path / "data", 40), opened_by(monkeypatch)
    options = ["--towers", towers, "--batch", "4", "--accumulate", "1", "--steps", "2", "--held-out", "4"]
    options += ["--val-every", "2"]
    assert start(*options, data=data) == 0
    assert len({*names}) == 4 + 2 * 4
    if towers == "text":
        assert len(names) == 12  # features of those held out are computed once, too
    names.clear()
    assert start(*options, "--resume", data=data) == 0
    assert len({*names}) == (4 if towers == "both" else 0)


@pytest.mark.parametrize("towers", ["both", "text"])
def test_unreadable_pictures_are_replaced_named_and_make_no_difference_to_a_stop(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], towers: str
) -> None:
    data = spoil(write_pairs(tmp_path / "data", 40), 3, 7, 11, 20, 30)
    options = ["--towers", towers, "--batch", "6", "--accumulate", "1", "--steps", "8", "--held-out", "4"]
    assert start(*options, out="whole", data=data) == 0
    told = capsys.readouterr().out
    assert "5 left out: no image of a kind that is read" in told
    assert "pairs/s, 5 images left out, " in told
    assert "5 left out" in (tmp_path / "whole" / "report.html").read_text(encoding="utf-8")
    lines = (tmp_path / "whole" / "unreadable.jsonl").read_text().splitlines()
    assert {parse_json(line)[0] for line in lines} == {f"{number:03}.png" for number in (3, 7, 11, 20, 30)}
    for step in (2, 5):  # in the first epoch, and in the second
        with monkeypatch.context() as patch:
            signalling(patch, step, signal.SIGINT)
            assert start(*options, out=str(step), data=data) == 130
        assert start(*options, "--resume", out=str(step), data=data) == 0
        for name in ("clip.safetensors", "text_encoder.safetensors"):
            whole, resumed = (tensors_of(tmp_path / folder / name) for folder in ("whole", str(step)))
            assert all(torch.equal(whole[key], resumed[key]) for key in whole)
        assert log_of(tmp_path / "whole") == log_of(tmp_path / str(step))
    assert signal.getsignal(signal.SIGINT) is not None


@pytest.mark.parametrize("towers", ["both", "text"])
def test_a_set_that_is_all_unreadable_is_refused(
    start: Start, tmp_path: Path, capsys: pytest.CaptureFixture[str], towers: str
) -> None:
    data = spoil(write_pairs(tmp_path / "data", 20), *range(20))
    assert start("--towers", towers, "--steps", "2", "--held-out", "2", data=data) == 1
    told = capsys.readouterr().err
    assert "none can be read: 20 left out: no image of a kind that is read" in told or "none can be read" in told
    assert "Traceback" not in told


def test_training_begins_and_ends_without_the_compiler_of_pytorch(weights: Path, pairs: Path, tmp_path: Path) -> None:
    library("accelerate")
    if not is_torch("2.13"):
        pytest.skip("older ones were not looked at")
    words = ["train", str(pairs), "--weights", str(weights), "--out", str(tmp_path / "out"), "--device", "cpu"]
    code = f"""
import runpy, sys
runpy.run_path({str(Path(__file__).parents[2] / "__main__.py")!r})["load_package"]()
from weighted_clip.studio.commands.program import main
status = main({[*words, "--towers", "both", "--accumulate", "1", "--steps", "2"]!r})
slow = {{"torch._dynamo", "torch._inductor", "torch.distributed.tensor", "sympy"}}
sys.exit(status or ", ".join(slow & {{*sys.modules}}) or 0)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=SECONDS, check=False)
    assert done.returncode == 0, done.stderr


def run_of(examples: Examples, rank: int) -> Any:
    """One of two processes' runs, in batches of ten."""
    kind: Any = type("Run", (loop.Loop,), {})
    kind.__abstractmethods__ = frozenset()
    run: Any = object.__new__(kind)
    run.options, run.accelerator = SimpleNamespace(seed=0), SimpleNamespace(process_index=rank, num_processes=2)
    run.examples, run._share, run.batches = examples, 5, Batches(examples.repeats, 10, 0)
    return run


@pytest.fixture
def forty() -> Examples:
    return Examples(Example(f"{number:03}", Path(f"{number:03}"), ("x",)) for number in range(40))


def test_two_processes_begin_to_read_half_of_a_batch_each(tmp_path: Path, forty: Examples) -> None:
    read: list[list[int]] = []
    for rank in range(2):
        provider: Any = SimpleNamespace(left_out=LeftOut(tmp_path), begin=lambda _pool, _epoch, share: share)
        given, _ = run_of(forty, rank).begin_images(None, 2, provider)
        read.append([next(candidates).number for candidates in given])
    assert [len(some) for some in read] == [5, 5]
    assert [*read[0], *read[1]] == [*Batches(forty.repeats, 10, 0)(2)[1]]
    assert len({*read[0], *read[1]}) == 10


def test_what_replaces_a_picture_is_of_no_other_place_of_the_batch(tmp_path: Path, forty: Examples) -> None:
    run, left_out = run_of(forty, 0), LeftOut(tmp_path)
    _, batch = run.batches(0)
    for index in batch[:5]:
        left_out.add(DataProblem(forty[index].name, "broken"))
    drawn = [[next(run._candidates(step, number, batch, left_out)).number for number in range(10)] for step in range(8)]
    assert all(numbers[5:] == [*batch[5:]] for numbers in drawn)
    replacements = [numbers[:5] for numbers in drawn]
    assert not {*batch} & {number for numbers in replacements for number in numbers}
    assert all(len({*numbers}) > 1 for numbers in replacements)
    assert len({tuple(numbers) for numbers in replacements}) == 8


def test_memory_does_not_grow_with_the_number_of_examples() -> None:
    process = psutil.Process()

    def grown(count: int) -> int:
        gc.collect()
        before = process.memory_info().rss
        caption = "a photo of a small red cat that sits on a large blue sofa " * 2
        found = (
            Example(f"{number:08}.jpg", Path(f"/data/{number:08}.jpg"), (f"{caption}{number}",))
            for number in range(count)
        )
        data = Data(Examples(found), ())
        train, held = held_out(data.examples, 256, 0)
        batches = Batches(train.repeats, 64, 0)
        assert len({train[index].name for index in batches(3)[1]}) == 64
        assert len(held) == 256
        return process.memory_info().rss - before

    grown(2000)
    assert grown(200_000) < 24 * 2**20  # whose texts alone are 26 million characters


def test_a_record_of_features_is_of_its_image_whole_or_none(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(b"1")
    features = FeatureFile(tmp_path / "features", "key", 4)
    examples = [Example(f"{number}", tmp_path / "a.png", ("x",), number=number) for number in range(3)]
    rows = torch.nn.functional.normalize(torch.arange(1.0, 13.0).view(3, 4))
    assert features.read(examples[2]) is None
    assert features.kept(examples[2], rows[2]).equal(rows[2])
    assert features.kept(examples[2], rows[1]).equal(rows[2])  # the first ones stay
    assert features.kept(examples[0], rows[0], is_written=False).equal(rows[0])
    assert features.read(examples[0]) is features.read(examples[1]) is None
    other = FeatureFile(tmp_path / "features", "key", 4)  # of another process
    assert other.read(examples[2]).equal(rows[2])
    (path,) = (tmp_path / "features").iterdir()
    content = path.read_bytes()
    path.write_bytes(content[:-4])
    assert other.read(examples[2]) is None
    path.write_bytes(content[:-8] + bytes(8))
    assert other.read(examples[2]) is None
    path.write_bytes(content)
    (tmp_path / "a.png").write_bytes(b"12")
    assert other.read(examples[2]) is None
    assert FeatureFile(tmp_path / "features", "another key", 4).read(examples[2]) is None


def test_unreadable_pictures_to_measure_by_are_named_as_such(start: Start, tmp_path: Path) -> None:
    val = spoil(write_pairs(tmp_path / "val", 4), 0)
    assert start("--val", str(val), "--steps", "1") == 0
    lines = (tmp_path / "out" / "unreadable.jsonl").read_text().splitlines()
    assert [parse_json(line)[0] for line in lines] == ["val: 000.png"]


def test_names_of_other_data_are_told_apart(tmp_path: Path) -> None:
    example = Example("a.png", Path("a.png"), ("x",))
    training, val = LeftOut(tmp_path), LeftOut(tmp_path, "val: ")
    val.add(DataProblem("a.png", "broken"))
    assert example in val and example not in training
    with (tmp_path / "unreadable.jsonl").open("a") as file:
        file.write('["b.png", "cu')  # by a kill
    assert example in LeftOut(tmp_path, "val: ") and example not in LeftOut(tmp_path)
    assert training.problems() == [DataProblem("val: a.png", "broken")]
