"""Results that are written: an image tower that no step used, and weights at another strength than trained."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save
from weighted_clip.encoder.files.checkpoint import clip_config
from weighted_clip.studio.commands.program import main
from weighted_clip.studio.output.export import save_tensors
from weighted_clip.studio.training.objectives.contrastive import ContrastiveRun

from ..libraries import library
from .models import TEXT, VISION
from .objectives import OBJECTIVES, RESULTS, words
from .objectives import start as start_objective
from .runs import Start, copy_clip, log_of


def test_the_image_tower_takes_no_memory_in_steps_and_is_written_as_it_was(
    start: Start,
    weights: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    devices: list[set[str]] = []
    real = ContrastiveRun._train_on

    def train_on(self: ContrastiveRun, loaded: Any) -> dict[str, float]:
        devices.append({parameter.device.type for parameter in self.clip.vision.parameters()})
        return real(self, loaded)

    monkeypatch.setattr(ContrastiveRun, "_train_on", train_on)
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
    own = copy_clip(weights, tmp_path / "own.safetensors")
    options = ["--weights", str(own), "--steps", "2"]
    real = ContrastiveRun.save

    def save(self: ContrastiveRun) -> None:
        real(self)
        if kind == "gone":
            own.unlink()
        else:
            shutil.copy(tmp_path / "both" / "clip.safetensors", own)

    if kind == "another":
        assert start("--steps", "1", "--towers", "both", out="both") == 0
    with monkeypatch.context() as patch:
        patch.setattr(ContrastiveRun, "save", save)
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


def test_files_that_are_passed_on_have_neither_watched_prompts_nor_names_of_folders(data: Path, tmp_path: Path) -> None:
    config = tmp_path / "secret folder" / "config.json"
    config.parent.mkdir()
    config.write_text(json.dumps(clip_config(TEXT, VISION)), encoding="utf-8")
    command = words(
        "contrastive", data, tmp_path / "out", "--towers", "both", "--new", str(config), "--watch", "hidden prompt"
    )
    at = command.index("--weights")
    assert main([*command[:at], *command[at + 2 :]]) == 0
    for path in (tmp_path / "out").glob("*.safetensors"):
        with safe_open(path, "pt") as file:
            about = str(file.metadata())
        assert "config.json" in about
        assert "secret folder" not in about
        assert "hidden prompt" not in about


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_the_same_run_writes_the_same_bytes(objective: str, data: Path, tmp_path: Path) -> None:
    for name in ("a", "b"):
        assert start_objective(objective, data, tmp_path / name) == 0
    for name in RESULTS[objective]:
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()


def test_metadata_of_any_text_are_in_order_and_change_no_tensor(tmp_path: Path) -> None:
    tensors = {"b": torch.rand(3), "a": torch.rand(2).half(), "é": torch.zeros(0, 5), "<\x1f>": torch.ones(())}
    texts = ["", "\x00\x1f\x7f\b\f\n\r\t", '"\\/', "é\u2028\uffff", "\U0001f600", "x" * 9]
    metadata = {f"{number}{text}": text for number, text in enumerate(texts)}
    for about in (metadata, {}):
        save_tensors(tensors, tmp_path / "a", about)
        save_tensors(tensors, tmp_path / "b", dict(reversed(about.items())))
        ours, theirs = (tmp_path / "a").read_bytes(), save(tensors, about)
        assert ours == (tmp_path / "b").read_bytes()
        size = 8 + int.from_bytes(theirs[:8], "little")
        assert (ours[:8], ours[size:]) == (theirs[:8], theirs[size:])
        with safe_open(tmp_path / "a", "pt") as file:
            assert (file.metadata() or {}) == about
            assert all(torch.equal(file.get_tensor(key), tensor) for key, tensor in tensors.items())


KINDS = {
    "text": [],
    "both with an average": ["--towers", "both", "--ema", "0.5"],
    "the best": ["--patience", "9"],
}


@pytest.mark.parametrize("options", KINDS.values(), ids=KINDS)
def test_merged_weights_are_those_from_before_and_a_share_of_the_change(
    start: Start, weights: Path, tmp_path: Path, options: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    options = [*options, "--steps", "4", "--held-out", "4"]
    assert start(*options) == 0
    first, trained = load_file(weights), load_file(tmp_path / "out" / "clip.safetensors")
    log = log_of(tmp_path / "out")
    for strength in (0.25, 0.0, 1.5, 1.0):  # without training again
        capsys.readouterr()
        assert start(*options, "--merge", str(strength), "--resume") == 0
        told = capsys.readouterr().out
        assert (f"merged: the weights from before and {strength:g} of their change" in told) == (strength != 1)
        merged = load_file(tmp_path / "out" / "clip.safetensors")
        assert merged.keys() == trained.keys()
        for key, tensor in merged.items():
            expected = (1 - strength) * first[key] + strength * trained[key]
            assert (tensor - expected).abs().max() < 1e-6, key
        text = load_file(tmp_path / "out" / "text_encoder.safetensors")
        assert all(torch.equal(tensor, merged[key]) for key, tensor in text.items())
    assert all(torch.equal(merged[key], tensor) for key, tensor in trained.items())
    assert log_of(tmp_path / "out") == log
    if "--patience" not in options:  # whose best weights may be the first
        assert max((trained[key] - tensor).abs().max() for key, tensor in first.items()) > 1e-3


def test_a_lora_has_its_updates_at_that_strength(start: Start, weights: Path, tmp_path: Path) -> None:
    library("peft")
    options = ["--lora", "2", "--lora-for", "sd1", "--steps", "4", "--held-out", "0"]
    assert start(*options) == 0
    lora, trained = (load_file(tmp_path / "out" / name) for name in ("lora.safetensors", "clip.safetensors"))
    assert start(*options, "--resume", "--merge", "0.5") == 0
    half, merged = (load_file(tmp_path / "out" / name) for name in ("lora.safetensors", "clip.safetensors"))
    for key, first in load_file(weights).items():
        assert (merged[key] - (first + trained[key]) / 2).abs().max() < 1e-6, key
    for key, tensor in lora.items():
        assert torch.equal(half[key], tensor * (0.5 if "lora_up" in key else 1.0)), key


def test_weights_that_changed_since_are_not_merged_with(
    start: Start, weights: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    own = copy_clip(weights, tmp_path / "own.safetensors")
    assert start("--steps", "1", "--towers", "both", out="other") == 0
    real = ContrastiveRun.save

    def save(self: ContrastiveRun) -> None:
        real(self)
        shutil.copy(tmp_path / "other" / "clip.safetensors", own)

    monkeypatch.setattr(ContrastiveRun, "save", save)
    assert start("--steps", "1", "--weights", str(own), "--merge", "0.5") == 1
    told = capsys.readouterr().err
    assert "its text tower is another one than when the run began. So nothing is merged or written" in told
    assert not list((tmp_path / "out").glob("*.safetensors"))
