"""A CLIP that ``stretch`` gave more positions, trained on captions that need them."""

from pathlib import Path

import pytest
import torch
from weighted_clip.commands.program import main
from weighted_clip.encoder.clip import load_full_clip
from weighted_clip.encoder.files.checkpoint import load_text_models
from weighted_clip.weighting.encoders import Encoders

from .runs import Start, write_pairs

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
