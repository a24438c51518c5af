"""Training of a new text tower, with learned or rotary positions, and of one that ``stretch`` gave more positions."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from weighted_clip.commands.program import main
from weighted_clip.encoder.clip import load_full_clip
from weighted_clip.encoder.config import OPENCLIP_H
from weighted_clip.encoder.files.checkpoint import load_text_models
from weighted_clip.training.new_text import new_text_model
from weighted_clip.weighting.encoders import Encoders

from ..encoder.test_open_clip import seeded_model
from .models import TEXT
from .runs import Start, log_of, tensors_of, write_pairs

NEW = ("--new-text", "--steps", "3", "--held-out", "4")


def test_first_weights_are_spread_as_open_clips(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    theirs = seeded_model("ViT-H-14", 2)
    save_file({key: one.contiguous() for key, one in theirs.state_dict().items()}, tmp_path / "theirs.safetensors")
    [reference] = load_text_models(tmp_path / "theirs.safetensors")[0].values()
    ours = new_text_model(replace(OPENCLIP_H, num_layers=2), seed=0)
    names = [name for name, _ in ours.named_parameters()]
    assert [name for name, _ in reference.named_parameters()] == names
    for (name, one), other in zip(ours.named_parameters(), reference.parameters(), strict=True):
        if name.endswith("weight") and "layer_norm" not in name:  # the others are not left as first chosen there
            assert one.std().item() == pytest.approx(other.std().item(), rel=0.1, abs=1e-9), name
    again, other = (new_text_model(ours.config, seed) for seed in (0, 1))
    assert all(one.equal(two) for one, two in zip(ours.parameters(), again.parameters(), strict=True))
    assert not ours.text_projection.weight.equal(other.text_projection.weight)


@pytest.mark.parametrize("precision", ["fp32", "fp16", "bf16"])
def test_a_new_tower_with_rotary_positions_is_trained_and_goes_on(
    start: Start, weights: Path, pairs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], precision: str
) -> None:
    more = ("--precision", precision, "--checkpointing", "--ema", "0.5")
    assert start(*NEW, "--positions", "rotary", "--context-length", "100", *more) == 0
    told = capsys.readouterr().out
    assert told.count("ComfyUI, A1111 and Forge refuse such an encoder, only this program reads it") == 2
    assert " for a host" not in told
    path = tmp_path / "out" / "clip.safetensors"
    clip, old = load_full_clip(path), load_full_clip(weights)
    assert clip.text.config == replace(TEXT, positions="rotary", context_length=100)
    assert all(map(torch.equal, clip.vision.parameters(), old.vision.parameters()))
    with safe_open(tmp_path / "out" / "text_encoder.safetensors", framework="pt") as file:
        about = file.metadata()
    assert (about["positions"], about["rotary"]) == ("rotary", "half-split pairs as Llama's, base 10000")
    assert json.loads(about["options"])["new_text"] is True
    table = "text_model.embeddings.position_embedding.weight"
    assert tensors_of(tmp_path / "out" / "text_encoder.safetensors")[table].shape == (100, 0)
    scales = [entry["scale"] for entry in log_of(tmp_path / "out") if "scale" in entry]
    assert scales[0] == pytest.approx(1 / 0.07, rel=0.01)
    # goes on as what it is, without being asked
    assert start("--steps", "1", "--held-out", "4", "--weights", str(path), out="on") == 0
    assert load_full_clip(tmp_path / "on" / "clip.safetensors").text.config.positions == "rotary"


def test_a_new_tower_has_learned_positions_if_nothing_else_is_asked_for(start: Start, tmp_path: Path) -> None:
    assert start(*NEW) == 0
    with safe_open(tmp_path / "out" / "text_encoder.safetensors", framework="pt") as file:
        assert not {"positions", "rotary"} & set(file.metadata())
    assert load_full_clip(tmp_path / "out" / "clip.safetensors").text.config == TEXT


def test_released_weights_are_never_read_with_other_positions(
    start: Start, weights: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert start("--positions", "rotary") != 0
    told = capsys.readouterr().err
    assert f"--positions rotary: the text encoder of {weights} was trained with learned positions" in told
    assert "add --new-text" in told
    assert not (tmp_path / "out").exists()
    assert start(*NEW, "--positions", "rotary") == 0
    rotary = ("--weights", str(tmp_path / "out" / "clip.safetensors"))
    capsys.readouterr()
    assert start(*rotary, "--positions", "learned", out="other") != 0
    assert "was trained with rotary positions, and its weights mean nothing with others" in capsys.readouterr().err
    assert start(*rotary, "--lora", "4", out="other") != 0
    assert "no host loads: --lora and --word are for the text encoder of a host" in capsys.readouterr().err


def test_the_command_encode_reads_a_rotary_tower(
    start: Start, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert start(*NEW, "--positions", "rotary") == 0
    path = tmp_path / "out" / "text_encoder.safetensors"
    command = ["encode", "a (red:1.3) cat", "--weights", str(path), "--out", str(tmp_path / "cat"), "--figures"]
    assert main(command) == 0
    assert tensors_of(tmp_path / "cat" / "prompt.safetensors")["hidden"].shape == (1, 77, 64)


WORDS = "small red cat sits on a mat "
LAST_WORDS = ["one", "two", "three", "four", "five", "six", "seven", "eight"]


@pytest.fixture
def long_pairs(tmp_path: Path) -> Path:
    """Captions of 142 tokens that differ only in the last one, far beyond the 77th position."""
    folder = write_pairs(tmp_path / "long", 8)
    for path, word in zip(sorted(folder.glob("*.txt")), LAST_WORDS, strict=True):
        path.write_text(f"{WORDS * 20} number {word}\n", "utf-8")
    return folder


def test_it_is_trained_on_to_the_last_position(
    start: Start, tmp_path: Path, weights: Path, long_pairs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    longer = tmp_path / "long.safetensors"
    assert main(["stretch", str(weights), "--out", str(longer)]) == 0
    capsys.readouterr()
    usual = ("--steps", "3", "--held-out", "0", "--accumulate", "1", "--weight-decay", "0")
    assert start(*usual, "--weights", str(longer), data=long_pairs) == 0
    assert "captions have more than" not in capsys.readouterr().out
    before, after = (load_full_clip(path).text for path in (longer, tmp_path / "out" / "clip.safetensors"))
    assert after.config.context_length == 248
    moved = (after.embeddings.position_embedding.weight - before.embeddings.position_embedding.weight).abs().amax(1)
    assert bool((moved[:144] > 1e-4).all())  # 142 tokens, BOS and EOS
    assert bool((moved[144:] == 0).all())
    (model,) = load_text_models(tmp_path / "out" / "text_encoder.safetensors")[0].values()
    assert torch.equal(model.embeddings.position_embedding.weight, after.embeddings.position_embedding.weight)
    hidden, _ = Encoders.load(tmp_path / "out" / "text_encoder.safetensors")(WORDS * 20)
    assert hidden.shape == (1, 248, 64)


def test_without_it_the_ends_of_long_captions_are_not_read(
    start: Start, long_pairs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert start("--steps", "1", "--held-out", "0", "--accumulate", "1", data=long_pairs) == 0
    assert "8 captions have more than 75 tokens, and are read up to there" in capsys.readouterr().out
