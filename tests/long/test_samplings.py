"""A thousand samplings with places, regions and word maps in ComfyUI's Python leave all there as it was."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from ..hosts.comfy_server import PACK_FOLDER, Host, link_folder, pack_folder, run_script
from .page import (
    MEBIBYTE,
    NO_PROC,
    PROC,
    Point,
    about,
    counted_growth,
    growth,
    resident_growth,
    write_part,
)

pytestmark = [pytest.mark.host, pytest.mark.long, pytest.mark.skipif(not PROC.is_dir(), reason=NO_PROC)]

SCRIPT = Path(__file__).parents[1] / "hosts" / "inprocess_samplings.py"
NUM_SAMPLINGS = 1000
SECONDS = 7200
MAX_MEBIBYTES = 8
MAX_OBJECTS = 5
"""Most of Python's objects for each sampling: a reference and what is noted down."""


def test_a_thousand_samplings_leave_nothing_behind(host: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pack, results, counted = tmp_path / PACK_FOLDER, tmp_path / "results.json", tmp_path / "counted.json"
    link_folder(pack_folder(), pack)
    monkeypatch.setenv("WEIGHTED_CLIP_SAMPLINGS", str(NUM_SAMPLINGS))
    monkeypatch.setenv("WEIGHTED_CLIP_COUNTED", str(counted))
    began = time.perf_counter()
    run_script(host, SCRIPT, pack, results, seconds=SECONDS)
    minutes = (time.perf_counter() - began) / 60
    [found] = json.loads(results.read_text(encoding="utf-8")).values()
    assert "error" not in found, found["error"]
    assert found["difference"] == 0
    looks = json.loads(counted.read_text(encoding="utf-8"))
    courses = {name: [Point(one["step"], one[name]) for one in looks] for name in ("resident", "objects", "tensors")}
    resident, objects = growth(courses["resident"]), growth(courses["objects"])
    assert resident.total <= MAX_MEBIBYTES * MEBIBYTE
    assert objects.slope <= MAX_OBJECTS
    assert growth(courses["tensors"]).total == 0
    write_part(
        f"Samplings in ComfyUI {host.version}",
        [
            "Small SD 1 and Flux models in ComfyUI's own Python, KSampler, by turns with a phrase in a place or time, "
            "with a region, or with both, and Word Maps shown each time; a fifth of the phrases follow a word's map.",
            about(ComfyUI=host.version),
            f"{NUM_SAMPLINGS:,} samplings in {minutes:.0f} minutes. Then stock's pictures and the first six were drawn "
            "again: equal to the bit. No function, class or list of the host's modules had changed but its list of "
            "loaded models, which had no other than before, and no watch was left.",
            resident_growth(courses["resident"], "sampling") + " " + counted_growth("Objects", objects),
        ],
    )
