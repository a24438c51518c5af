"""A hundred samplings of 8 pictures of 1024 pixels with 20 watched words in one process keep its memory flat."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from ..hosts.comfy_server import PACK_FOLDER, Host, link_folder, pack_folder, run_script
from .page import MEBIBYTE, NO_PROC, PROC, about, write_part

pytestmark = [pytest.mark.host, pytest.mark.long, pytest.mark.skipif(not PROC.is_dir(), reason=NO_PROC)]

SCRIPT = Path(__file__).parents[1] / "hosts" / "inprocess_large_maps.py"
NUM_SAMPLINGS = 100
SECONDS = 6 * 3600


def test_word_maps_of_large_pictures_keep_memory_flat(
    host: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pack, results, counted = tmp_path / PACK_FOLDER, tmp_path / "results.json", tmp_path / "counted.json"
    link_folder(pack_folder(), pack)
    monkeypatch.setenv("WEIGHTED_CLIP_SAMPLINGS", str(NUM_SAMPLINGS))
    monkeypatch.setenv("WEIGHTED_CLIP_COUNTED", str(counted))
    began = time.perf_counter()
    run_script(host, SCRIPT, pack, results, seconds=SECONDS)
    minutes = (time.perf_counter() - began) / 60
    [found] = json.loads(results.read_text(encoding="utf-8")).values()
    assert "error" not in found, found["error"]
    looks = json.loads(counted.read_text(encoding="utf-8"))
    assert len(looks) == 10
    kept = (max(one["resident"] for one in looks) - looks[0]["resident"]) / MEBIBYTE
    most = max(one["shown"] for one in looks) / MEBIBYTE
    write_part(
        f"Word maps of large pictures in ComfyUI {host.version}",
        [
            "A small SD 1 model in ComfyUI's own Python, KSampler, 8 pictures of 1024 × 1024 pixels, 20 watched words.",
            about(ComfyUI=host.version),
            f"{NUM_SAMPLINGS} samplings in {minutes:.0f} minutes, Word Maps shown after every tenth, with masks and "
            f"overlays of the first 8 words: {kept:.0f} MiB more at most than after the first; while maps are shown "
            f"{most:,.0f} MiB, of which 1,024 are what the node gives.",
        ],
    )
