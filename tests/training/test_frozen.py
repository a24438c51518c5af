"""The image tower that no step uses: out of memory while the text tower is trained, and whole in what is written."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from weighted_clip.training.contrastive import Run

from .runs import Start


def test_the_image_tower_takes_no_memory_in_steps_and_is_written_as_it_was(
    start: Start,
    weights: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    devices: list[set[str]] = []
    real = Run._train_on

    def train_on(self: Run, loaded: Any) -> dict[str, float]:
        devices.append({parameter.device.type for parameter in self.clip.vision.parameters()})
        return real(self, loaded)

    monkeypatch.setattr(Run, "_train_on", train_on)
    assert start("--steps", "2") == 0
    assert start("--steps", "2", "--towers", "both", out="both") == 0
    assert devices == [{"meta"}, {"meta"}, {"cpu"}, {"cpu"}]
    before, after = load_file(weights), load_file(tmp_path / "out" / "clip.safetensors")
    assert before.keys() == after.keys()
    unchanged = {key for key in before if torch.equal(before[key], after[key])}
    assert unchanged >= {key for key in before if key.startswith("vis")}
    assert len(unchanged) < len(before)


@pytest.mark.parametrize("kind", ["gone", "another"])
def test_weights_that_are_not_there_any_more_cost_nothing_but_the_whole_clip(
    start: Start,
    weights: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    kind: str,
) -> None:
    own = shutil.copy(weights, tmp_path / "own.safetensors")
    options = ["--weights", str(own), "--steps", "2"]
    real = Run.save

    def save(self: Run) -> None:
        real(self)
        if kind == "gone":
            own.unlink()
        else:
            shutil.copy(tmp_path / "both" / "clip.safetensors", own)

    if kind == "another":
        assert start("--steps", "1", "--towers", "both", out="both") == 0
    with monkeypatch.context() as patch:
        patch.setattr(Run, "save", save)
        assert start(*options) == 1
    told = capsys.readouterr().err
    assert "own.safetensors: " in told
    assert ("there is no such file" if kind == "gone" else "another one than when the run began") in told
    assert "clip.safetensors is not written; text_encoder.safetensors is. Put the file back, and use --resume" in told
    assert len(told.strip().splitlines()) == 1
    assert {path.name for path in (tmp_path / "out").glob("*.safetensors")} == {"text_encoder.safetensors"}
    shutil.copy(weights, own)
    assert start(*options, "--resume") == 0
    assert (tmp_path / "out" / "clip.safetensors").is_file()
