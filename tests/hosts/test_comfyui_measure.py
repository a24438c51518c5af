"""``world measure --comfy`` in a real ComfyUI: a checkpoint of random weights, in which a CLIP must find nothing."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from weighted_clip.commands.program import main
from weighted_clip.encoder.clip import FullClip

from ..transformers_clip import write_clip
from .comfy_server import CHECKPOINT, ComfyServer, assert_is_picture

pytestmark = [pytest.mark.host, pytest.mark.slow]

LINES = (
    "(a red circle:1) and a blue square",
    "a green cross and (a white triangle:1)",
    "(a blue triangle:1) and a yellow circle",
    "a purple square and (a green circle:1)",
    "(a yellow square:1) and a red cross",
    "a white circle and (a purple cross:1)",
)
WAYS = ("comfy", "masked_blend nested remove", "attention bias")


def test_random_weights_show_nothing_and_the_command_says_so(
    server: ComfyServer, trained_clip: FullClip, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its pictures change with the weights, but the CLIP, which has learned coloured shapes, sees no phrase in them."""
    clip, prompts, out = tmp_path / "clip.safetensors", tmp_path / "prompts.txt", tmp_path / "out"
    write_clip(clip, trained_clip.text, trained_clip.vision, trained_clip.logit_scale)
    prompts.write_text("\n".join(LINES), encoding="utf-8")
    given = ["--comfy", server.address, "--checkpoint", CHECKPOINT, "--clip", str(clip), "--prompts", str(prompts)]
    ways = [part for way in WAYS for part in ("--way", way)]
    small = ["--seeds", "1", "--size", "64", "--steps", "1", "--guidance", "1", "--out", str(out)]
    status = main(["world", "measure", *given, *ways, *small])
    told = capsys.readouterr()
    assert status == 0, told.err
    assert "Found nothing" in told.out
    assert "*" not in (out / "comfy.md").read_text(encoding="utf-8")

    def picture(folder: str) -> np.ndarray:
        return np.asarray(Image.open(out / "pictures" / folder / "001-001.png"))

    plain = picture("weight 1")
    assert_is_picture(plain)
    for way in WAYS:
        for weight in ("0", "2"):
            assert (picture(f"{way} {weight}") != plain).any()
