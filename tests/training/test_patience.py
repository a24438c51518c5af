"""Early stop by recall, with the best weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from weighted_clip.studio.training.objectives.contrastive import Run

from .objectives import stopping_after
from .runs import Start, log_of

KEY = "text_model.encoder.layers.0.mlp.fc1.weight"


@pytest.fixture
def shares(monkeypatch: pytest.MonkeyPatch) -> dict[int, float]:
    """Recall by step; else 0.1. The weights at each measurement are kept under the step's negative number."""
    given: dict[int, Any] = {}

    def measure(self: Run, *, is_quiet: bool = False) -> dict[str, float]:
        given[-1 - self.step] = self.trained.text.encoder.layers[0].mlp.fc1.weight.detach().clone()
        return {"text to image @1": given.get(self.step, 0.1), "moved: x": float(self.step)}

    monkeypatch.setattr(Run, "measure", measure)
    return given


@pytest.mark.parametrize(("best", "last"), [({2: 0.3}, 5), ({0: 0.3}, 3), ({1: 0.2, 3: 0.3, 5: 0.4}, 8), ({9: 0.9}, 3)])
def test_a_run_ends_after_so_many_measurements_and_writes_the_best_weights(
    start: Start,
    tmp_path: Path,
    shares: dict[int, Any],
    capsys: pytest.CaptureFixture[str],
    best: dict[int, float],
    last: int,
) -> None:
    shares |= best
    options = ["--steps", "10", "--held-out", "4", "--patience", "3"]
    assert start(*options) == 0
    step = max((one for one in best if one <= last), key=best.__getitem__, default=0)
    assert [entry["step"] for entry in log_of(tmp_path / "out") if "loss" in entry] == list(range(1, last + 1))
    assert f"stopped after step {last}; the best weights, of step {step}, are written" in capsys.readouterr().out
    path = tmp_path / "out" / "text_encoder.safetensors"
    assert torch.equal(load_file(path)[KEY], shares[-1 - step])
    with safe_open(path, framework="pt") as file:
        assert file.metadata()["steps"] == str(step)
    before = load_file(path)
    assert start(*options, "--resume") == 0  # it is over, and stays so
    assert [entry["step"] for entry in log_of(tmp_path / "out") if "loss" in entry] == list(range(1, last + 1))
    assert all(torch.equal(before[key], tensor) for key, tensor in load_file(path).items())


def test_the_best_average_is_written_where_there_is_one(start: Start, tmp_path: Path, shares: dict[int, Any]) -> None:
    shares[2] = 0.5
    options = ["--held-out", "4", "--ema", "0.5", "--rate-of", "scale=0"]
    assert start("--steps", "10", "--patience", "2", *options) == 0
    one, two = (shares[-1 - step] for step in (1, 2))
    written = load_file(tmp_path / "out" / "text_encoder.safetensors")[KEY]
    assert (written - (one + two) / 2).abs().max() < 1e-7
    assert (written - two).abs().max() > 1e-5


def test_a_run_that_goes_on_remembers_its_best(start: Start, tmp_path: Path, shares: dict[int, Any]) -> None:
    shares[2] = 0.5
    options = ["--steps", "10", "--held-out", "4", "--patience", "3"]
    with stopping_after(4):
        assert start(*options) == 130
    assert start(*options, "--resume") == 0
    assert log_of(tmp_path / "out")[-1]["step"] == 5
    assert torch.equal(load_file(tmp_path / "out" / "text_encoder.safetensors")[KEY], shares[-3])
