"""Ten thousand encodings in one process: memory stays flat, and results are those of a fresh process.

First the criteria for this and other runs, and the page they write.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import pytest
from safetensors.torch import load_file
from torch import Tensor

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
from .prompts import draw_prompts

ROOT = Path(__file__).resolve().parents[2]
SEED = 1
SECONDS = 3 * 60 * 60
"""No run may hang longer."""
CLOSE = 1e-5
"""Rounding of float32 in a pass that shares states, beside a full one; encoder/test_exactness.py holds the promise."""
TIMES = 10
"""A scheme that multiplies by a ratio of two small means brings rounding out, ours and PyTorch's: so many times as far
from the numbers in float64 as PyTorch's own pass in float32 is for its worst prompt ours may be for its worst."""
WAYS = ("fresh", "plain", "exact")
"""Encodings that the long-lived process is compared with."""
MAX_OBJECTS = 300
"""Allowed increase of Python's objects; one left behind by each encoding would be thousands."""
MAX_MEBIBYTES = 4
"""Allowed growth of the process; one encoding left behind by each would be gigabytes."""


@dataclass(frozen=True)
class Job:
    """As encode_process.py takes it."""

    count: int
    config: dict[str, int]
    num_kept: int
    points: int
    max_bytes: int | None = None
    """None: the default, 64 MiB."""

    @property
    def kept(self) -> list[int]:
        """The prompts whose encodings are compared."""
        return sorted(random.Random(SEED).sample(range(self.count), self.num_kept))


SHORT = Job(200, {"hidden_dim": 64, "num_heads": 1, "num_layers": 2, "mlp_dim": 128}, 40, 20, max_bytes=MEBIBYTE)
LONG = Job(10_000, {"num_layers": 2}, 300, 50)
FULL = Job(500, {}, 100, 50)


def encoded(job: Job, way: str, folder: Path) -> dict[str, Any]:
    """Do a job in a process of its own on one thread: its figures."""
    file = folder / f"{way}.json"
    file.write_text(json.dumps({**asdict(job), "seed": SEED, "kept": job.kept, "way": way}), encoding="utf-8")
    command = [sys.executable, "-m", "tests.long.encode_process", str(file), str(folder / way)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=SECONDS, check=False
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads((folder / way / "figures.json").read_text(encoding="utf-8"))


class Difference(NamedTuple):
    """Differences between encodings of a prompt made in several ways: the largest over all numbers."""

    number: int
    """Number of the prompt."""
    from_fresh: float
    """Difference of the long-lived process from one with an empty cache."""
    from_exact: float
    """Difference of the same from the encoder in float64 that neither shares nor caches."""
    of_plain: float
    """Difference of that encoder in float32 from itself in float64."""


def differences(folder: Path) -> list[Difference]:
    """Compare what the processes wrote."""
    found: list[Difference] = []
    for file in sorted((folder / "on").glob("*.safetensors")):
        on, fresh, plain, exact = (load_file(folder / way / file.name) for way in ("on", *WAYS))
        found.append(Difference(int(file.stem), _away(on, fresh), _away(on, exact), _away(plain, exact)))
    return found


def _away(one: dict[str, Tensor], other: dict[str, Tensor]) -> float:
    assert all(one[name].shape == other[name].shape for name in ("hidden", "pooled"))
    return max(float((one[name].double() - other[name].double()).abs().max()) for name in one)


def _told(found: list[Difference]) -> str:
    """Results of the comparison, as a list."""
    num_equal = sum(one.from_fresh == 0 for one in found)
    worst = max(found, key=lambda one: one.from_exact)
    usual = median(one.from_exact for one in found), median(one.of_plain for one in found)
    return (
        f"- with a process that had nothing remembered before each of {len(found)} of them: {num_equal} equal bit for "
        f"bit, largest difference {max(one.from_fresh for one in found):.1e}\n"
        f"- with float64, neither shared nor remembered: {usual[0]:.1e} (median of the prompts), in float32 "
        f"{usual[1]:.1e}. At worst {worst.from_exact:.1e} and {max(one.of_plain for one in found):.1e}, where a scheme "
        "multiplies by the ratio of two small means"
    )


def live_long(job: Job, folder: Path, *, title: str = "", told: str = "") -> None:
    """Run a job and what it is compared with; check all, and write it down under a title."""
    figures = encoded(job, "on", folder)
    for way in WAYS:
        encoded(job, way, folder)
    courses = {
        name: [Point(point["step"], point[name]) for point in figures["points"]]
        for name in ("resident", "objects", "tensors", "remembered")
    }
    last = figures["points"][-1]
    evicted = last["asked"] - last["found"] - last["entries"]
    assert figures["highest"] <= figures["bound"]
    assert last["found"] > job.count / 10, "the memory was hardly ever of use, so this run says little"
    assert evicted > job.count / 10, "the memory was hardly ever full, so this run says little"
    assert growth(courses["objects"]).total <= MAX_OBJECTS
    assert growth(courses["tensors"]).total <= MAX_OBJECTS
    found = differences(folder)
    assert [one.number for one in found] == sorted(job.kept, key=str)
    assert max(one.from_fresh for one in found) <= CLOSE
    assert median(one.from_exact for one in found) <= CLOSE
    assert max(one.from_exact for one in found) <= max(CLOSE, TIMES * max(one.of_plain for one in found))
    if not title:
        return
    assert growth(courses["resident"]).total <= MAX_MEBIBYTES * MEBIBYTE
    prompts = draw_prompts(SEED, job.count)
    different = len({(prompt.text, json.dumps(prompt.options)) for prompt in prompts})
    write_part(
        title,
        [
            told,
            about(),
            f"{job.count:,} prompts, {different:,} of them different, in {figures['seconds'] / 60:.0f} minutes. Of "
            f"{last['asked']:,} chunks asked for, {last['found']:,} were remembered; {evicted:,} made room for others. "
            f"The memory never had more than {figures['highest'] / MEBIBYTE:.1f} of its "
            f"{figures['bound'] / MEBIBYTE:.0f} MiB, and its count of bytes was what its tensors keep alive.",
            resident_growth(courses["resident"], "encoding")
            + " "
            + counted_growth("Objects", growth(courses["objects"])),
            "Encodings of the long-lived process compared:",
            _told(found),
        ],
    )


def test_hundreds_of_encodings_leave_nothing_behind_and_equal_a_fresh_process(tmp_path: Path) -> None:
    live_long(SHORT, tmp_path)


@pytest.mark.long
@pytest.mark.skipif(not PROC.is_dir(), reason=NO_PROC)
def test_ten_thousand_encodings_leave_nothing_behind_and_equal_a_fresh_process(tmp_path: Path) -> None:
    live_long(
        LONG,
        tmp_path,
        title="Encodings",
        told="CLIP-L at full width with two of its twelve layers and random weights, remembering as by default. "
        "Prompts are drawn at random over all options: new ones, repeated ones, ones with a word more or with other "
        "options, timed ones, up to 200 words. Each number of rows that can occur is met once beforehand, as oneDNN "
        "keeps the code that it compiles for each. Memory is looked at after `gc.collect` and `malloc_trim`.",
    )


@pytest.mark.long
@pytest.mark.skipif(not PROC.is_dir(), reason=NO_PROC)
def test_hundreds_of_encodings_at_full_size_leave_nothing_behind_and_equal_a_fresh_process(tmp_path: Path) -> None:
    live_long(FULL, tmp_path, title="Encodings, full size", told="The same with all twelve layers.")
