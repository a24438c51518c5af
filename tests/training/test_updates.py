"""Losses, gradients and weights that are not finite: what is skipped, what ends a run, and what is written then."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from weighted_clip.studio.training import checkpoint, loop
from weighted_clip.studio.training.checkpoint import MOST_WEIGHT, NotFiniteError, check_weights

from ..launching import launched
from ..libraries import library
from .objectives import OBJECTIVES, RESULTS, kinds, start, words
from .runs import log_of, tensors_of

FAULTY = Path(__file__).with_name("faulty.py")
Break = Callable[..., None]


@pytest.fixture
def spoil(monkeypatch: pytest.MonkeyPatch) -> Break:
    """Makes one number of the gradients, or the loss, NaN at some steps, counted from 1."""
    accelerate = library("accelerate")
    real = accelerate.Accelerator.backward

    def at(*steps: int, is_loss: bool = False) -> None:
        done = iter(range(1, 1000))

        def backward(self: Any, loss: torch.Tensor, **more: Any) -> None:
            real(self, loss, **more)
            if next(done) in steps:
                spoiled(self._models[-1])

        def with_loss(of: Callable[..., dict[str, float]], *given: Any) -> dict[str, float]:
            found = of(*given)
            return {**found, "loss": math.nan} if next(done) in steps else found

        def train(self: Any) -> dict[str, float]:
            self._backward = partial(with_loss, self._backward)
            return real_train(self)

        if not is_loss:
            monkeypatch.setattr(accelerate.Accelerator, "backward", backward)
            return
        real_train = loop.Loop._train
        monkeypatch.setattr(loop.Loop, "_train", train)

    return at


def spoiled(model: torch.nn.Module) -> None:
    """Make a number of a gradient NaN, outside of the blocks, whose gradients in float16 have their own rule."""
    named = [(name, one) for name, one in model.named_parameters() if one.grad is not None and ".layers." not in name]
    *_, (_, parameter) = named
    parameter.grad.view(-1)[-1] = math.nan


def is_good(folder: Path, objective: str) -> bool:
    """Whether all files of a run are there, and hold nothing that float16 cannot."""
    tensors = [tensor for name in RESULTS[objective] for tensor in tensors_of(folder / name).values()]
    return all(tensor.isfinite().all() and tensor.half().isfinite().all() for tensor in tensors)


def see(
    patch: pytest.MonkeyPatch, kind: Any, name: str, seen: list[tuple[int, dict[str, torch.Tensor]]], step: int = -1
) -> None:
    """Record the weights that a run measures and writes, before a method that is called after a step, or after any."""
    real = getattr(kind, name)

    def called(self: Any, *given: Any) -> Any:
        if step in (-1, self.step):
            seen.append((self.step, {name: one.detach().clone() for name, one in self.result.named_parameters()}))
        return real(self, *given)

    patch.setattr(kind, name, called)


# ---- gradients


AVERAGED = ["--ema", "0.5"]


@pytest.mark.parametrize(
    ("objective", "step", "options"),
    [*((one, 3, AVERAGED) for one in OBJECTIVES), ("contrastive", 8, []), ("prior", 8, AVERAGED)],
)
def test_one_gradient_that_is_not_finite_is_skipped_and_counted(
    data: Path,
    tmp_path: Path,
    spoil: Break,
    capsys: pytest.CaptureFixture[str],
    objective: str,
    step: int,
    options: list[str],
) -> None:
    out = tmp_path / "out"
    spoil(step)
    assert start(objective, data, out, *options) == 0
    assert is_good(out, objective)
    entries = [entry for entry in log_of(out) if "loss" in entry]
    assert [entry["step"] for entry in entries if entry.get("skipped")] == [step]
    assert all(math.isfinite(value) for entry in log_of(out) for value in entry.values())
    assert ", 1 updates skipped, as a gradient was not finite" in capsys.readouterr().out
    assert "1 updates were skipped, as a gradient was not finite" in (out / "report.html").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("objective", "options"), [*((one, []) for one in OBJECTIVES), ("contrastive", AVERAGED), ("prior", AVERAGED)]
)
def test_three_in_a_row_end_the_run_with_the_last_good_weights(
    data: Path,
    tmp_path: Path,
    spoil: Break,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    objective: str,
    options: list[str],
) -> None:
    """Those are the weights before the first of the three, to the bit; two in a row, or three apart, end nothing."""
    out = tmp_path / "out"
    spoil(2, 4, 5, 7)
    assert start(objective, data, tmp_path / "apart", *options) == 0
    assert [entry["step"] for entry in log_of(tmp_path / "apart") if entry.get("skipped")] == [2, 4, 5, 7]
    capsys.readouterr()
    monkeypatch.undo()
    spoil(4, 5, 6)
    seen: dict[str, list[tuple[int, dict[str, torch.Tensor]]]] = {"before step 4": [], "written": []}
    see(monkeypatch, loop.Loop, "_train_on", seen["before step 4"], 3)
    for kind in kinds():
        see(monkeypatch, kind, "write_results", seen["written"])
    assert start(objective, data, out, *options) == 1
    told = capsys.readouterr().err
    assert "a gradient of step 6 is not finite, after 2 such steps: try a lower --rate" in told
    assert f"The last good weights, of step 5, are written to {out}" in told
    assert len(told.splitlines()) == 1
    assert is_good(out, objective)
    (_, good), (_, written) = seen["before step 4"][-1], seen["written"][-1]
    assert all(torch.equal(tensor, written[name]) for name, tensor in good.items())


# ---- losses and weights


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_a_loss_that_is_not_finite_is_skipped_too(
    data: Path,
    tmp_path: Path,
    spoil: Break,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    objective: str,
) -> None:
    spoil(3, is_loss=True)
    assert start(objective, data, tmp_path / "out") == 0
    assert [entry["step"] for entry in log_of(tmp_path / "out") if entry.get("skipped")] == [3]
    assert is_good(tmp_path / "out", objective)
    monkeypatch.undo()
    spoil(3, 4, 5, is_loss=True)
    assert start(objective, data, tmp_path / "three") == 1
    assert "the loss of step 5 is nan, after 2 such steps" in capsys.readouterr().err
    assert is_good(tmp_path / "three", objective)


@pytest.mark.parametrize("options", [[], ["--ema", "0.5"], ["--steps", "1"]], ids=["", "ema", "one step"])
@pytest.mark.parametrize("objective", OBJECTIVES)
def test_a_rate_that_destroys_all_weights_writes_none(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], objective: str, options: list[str]
) -> None:
    assert start(objective, data, tmp_path / "out", "--rate", "1e30", *options) == 1
    told = capsys.readouterr().err
    assert "try a lower --rate" in told
    assert "No weights are written, as there is no checkpoint with good ones yet" in told
    assert len(told.splitlines()) == 1
    assert not list((tmp_path / "out").glob("*.safetensors"))
    assert not (tmp_path / "out" / "checkpoint.pt").exists()


@pytest.mark.parametrize(
    ("objective", "factor"), [*((one, math.nan) for one in OBJECTIVES), ("contrastive", 1e30), ("prior", 1e30)]
)
def test_destroyed_weights_are_not_saved_and_those_of_the_last_checkpoint_are_written(
    data: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    objective: str,
    factor: float,
) -> None:
    real = loop.Loop._train_on

    def train_on(self: Any, loaded: Any) -> Any:
        found = real(self, loaded)
        if self.step == 4:
            assert torch.load(self.folder / checkpoint.NAME)["step"] == 4
            for parameter in self.model.parameters():
                parameter.data.mul_(factor)
        return found

    monkeypatch.setattr(loop.Loop, "_train_on", train_on)
    assert start(objective, data, tmp_path / "out", "--save-every", "1") == 1
    told = capsys.readouterr().err
    assert "have become nan" in told or ("have become " in told and factor == 1e30)
    assert f"The last good weights, of step 4, are written to {tmp_path / 'out'}" in told
    assert is_good(tmp_path / "out", objective)
    assert torch.load(tmp_path / "out" / checkpoint.NAME)["step"] == 4


def test_merging_and_a_lora_write_nothing_that_is_not_finite(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert start("contrastive", data, tmp_path / "out", "--merge", "1e30") == 1
    assert "have become" in capsys.readouterr().err
    assert not list((tmp_path / "out").glob("*.safetensors"))


def test_weights_are_bounded_by_half_precision() -> None:
    check_weights({"a": torch.tensor([MOST_WEIGHT, -MOST_WEIGHT]), "b": torch.tensor(10**9), "c": torch.zeros(0, 3)})
    for value in (math.nan, math.inf, -65520.0, 1e30):
        with pytest.raises(NotFiniteError, match=r"the weights layer\.bias have become "):
            check_weights({"a": torch.zeros(2), "layer.bias": torch.tensor([0.0, value])})


# ---- several processes


@pytest.mark.slow
@pytest.mark.parametrize("options", [[], ["--shard"]], ids=["", "sharded"])
def test_all_processes_skip_what_one_finds(data: Path, tmp_path: Path, options: list[str]) -> None:
    done = launched(2, FAULTY, "nan", 1, 4, *words("contrastive", data, tmp_path / "out", *options))
    assert done.returncode == 0, done.stderr
    assert ", 1 updates skipped, as a gradient was not finite" in done.stdout
    assert [entry["step"] for entry in log_of(tmp_path / "out") if entry.get("skipped")] == [4]
    assert is_good(tmp_path / "out", "contrastive")
