"""TensorBoard's view of a run, read by its own reader."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
from weighted_clip.studio.training.log import BOARD_NAME, board

from ..libraries import library
from .objectives import stopping_after
from .runs import Start, log_of


def shown(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """All curves, by name."""
    library("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = EventAccumulator(str(folder))
    found.Reload()
    return {name: [(one.step, one.value) for one in found.Scalars(name)] for name in found.Tags()["scalars"]}


def test_tensorboard_shows_the_log_of_a_run_that_was_stopped(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = ("--steps", "5", "--held-out", "8", "--watch", "a cat")
    with stopping_after(3):
        assert start(*options) == 130
    assert start(*options, "--resume") == 0
    curves = shown(tmp_path / "out" / BOARD_NAME)
    assert curves.keys() >= {"loss", "rate", "scale", "text to image @5", "moved/a cat"}
    assert [step for step, _ in curves["loss"]] == [1, 2, 3, 4, 5]
    for entry in log_of(tmp_path / "out"):
        for name, value in entry.items():
            if name != "step":
                assert (entry["step"], pytest.approx(value, rel=1e-6)) in curves[name.replace(": ", "/")]


def test_what_a_killed_run_has_written_after_its_checkpoint_is_not_shown(tmp_path: Path) -> None:
    library("tensorboard")
    for step, losses in ((0, {1: 9.0, 2: 8.0, 3: 7.0}), (2, {3: 1.0})):
        with board(tmp_path, step) as add:
            for number, loss in losses.items():
                add({"step": number, "loss": loss})
    assert shown(tmp_path / BOARD_NAME)["loss"] == [(1, 9.0), (2, 8.0), (3, 1.0)]


def test_a_run_needs_no_tensorboard(start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *more: None if name == "tensorboard" else find_spec(name, *more)
    )
    assert start("--steps", "1", "--held-out", "0") == 0
    assert not (tmp_path / "out" / BOARD_NAME).exists()
