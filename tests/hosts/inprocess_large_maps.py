"""Checks of the memory of word maps: a batch of 8 pictures of 1024 pixels and 20 words, sampled again and again.

Run by test_comfyui_inprocess.py in ComfyUI's own Python, see inprocess.py, and for long by
tests/long/test_large_maps.py, which names the number of samplings and a file for what was counted in the environment.
"""

# pyright: reportMissingImports=false

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any
from unittest import SkipTest
from unittest.mock import patch

import torch
from inprocess import WIDTHS, main, make_clip, stock
from inprocess_places import encoded
from inprocess_samplings import look
from inprocess_word_maps import shown, watched
from toys import TOYS, build, sampled, unet_sizes

COUNT, COUNTED = "WEIGHTED_CLIP_SAMPLINGS", "WEIGHTED_CLIP_COUNTED"
TEXT = "cat dog bird tree house sun sky sea ship car road river hill stone flower horse king queen snow rain"
"""Twenty words."""
BATCH, SIDE = 8, 1024
MEBIBYTE = 2**20
MAX_KEPT = 64 * MEBIBYTE
"""Most bytes that a process may keep of all samplings: those of the last four, and of the host."""
MAX_SHOWN = 1536 * MEBIBYTE
"""Most bytes while maps are shown: 1 GiB of masks and overlays, grids, and one map on its way."""


def make_large_model() -> Any:
    """A U-Net whose layers read text in 64 by 64 and in 32 by 32 cells of a picture of 1024 pixels."""
    sizes = unet_sizes(WIDTHS["l"], channels=32) | {
        **{"num_res_blocks": [1] * 3, "channel_mult": [1] * 3, "transformer_depth": [0, 1, 1]},
        # what a picture reads of itself takes most of the time, and makes no maps
        **{"transformer_depth_output": [0, 0, 1, 1, 1, 1], "disable_self_attentions": [True] * 3},
        "disable_middle_self_attn": True,
    }
    model = build("SD15", sizes)
    model.model.toy = TOYS["SD1"]._replace(latent=(SIDE // 8, SIDE // 8))
    return model


def peak() -> int:
    """Most memory of this process since the last call, where Linux tells."""
    try:
        lines = Path("/proc/self/status").read_text(encoding="ascii", errors="replace").splitlines()
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    except OSError as error:
        raise SkipTest(f"the memory of a process is not told here: {error}") from error
    [most] = [int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM")]
    return most


def check_memory_of_large_maps_is_flat_bounded_and_told() -> None:
    from comfy import model_management

    count = int(os.environ.get(COUNT, "2"))
    clip, model = make_clip("SD1"), make_large_model()
    ours, watch = watched(encoded(clip, TEXT), "\n".join(TEXT.split()))
    negative, picture = stock(clip, ""), torch.rand(BATCH, SIDE, SIDE, 3)
    looks: list[dict[str, int]] = []
    told: list[int] = []
    for index in range(count):
        samples = sampled(model, ours, negative, batch=BATCH, steps=1, cfg=1.0)
        if index % max(1, count // 10):
            continue
        look()
        peak()
        before = peak()
        with patch.object(model_management, "free_memory", lambda num_bytes, _: told.append(num_bytes)):
            masks, grids, overlays, report = shown(watch, samples, image=picture)
        most = peak() - before
        assert "masks and overlays: the first 8 of 20 words" in report
        assert len(masks) == len(overlays) == 8 * BATCH and len(grids) == BATCH
        assert told[-1] == masks.nbytes + overlays.nbytes <= 2**30
        del masks, grids, overlays
        looks.append({"step": index + 1, "resident": look()["resident"], "shown": most})
        assert most <= MAX_SHOWN, looks
    assert len(watch.records) <= 4
    assert max(one["resident"] for one in looks) - looks[0]["resident"] <= MAX_KEPT, looks
    if COUNTED in os.environ:
        Path(os.environ[COUNTED]).write_text(json.dumps(looks), encoding="utf-8")


if __name__ == "__main__":
    main(globals())
