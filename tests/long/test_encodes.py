"""Ten thousand encodings in one process: memory stays flat, and results are those of a fresh process."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from .course import MEBIBYTE, NO_PROC, PROC, Point, growth
from .page import about, counted_growth, course_table, resident_growth, write_part
from .prompts import Drawn, draw_prompts

SCRIPT = Path(__file__).with_name("encode_process.py")
SEED = 1
SECONDS = 3 * 60 * 60
"""No run may hang longer."""
CLOSE = 1e-5
"""Documented difference of a pass that shares states from a full one, for hidden states of a size about 1."""
MEAN_RATIO_CLOSE = 1e-4
"""Schemes that multiply by a ratio of two means of signed numbers bring rounding out."""
MEAN_RATIO_SCHEMES = ("a1111", "a1111_global_norm", "lpw")
MAX_OBJECTS = 300
"""That Python may have more of in the end; one left behind by each encoding would be thousands."""
MAX_MEBIBYTES = 16
"""That the process may have grown by; one encoding left behind by each would be gigabytes."""


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
    command = [sys.executable, "-P", str(SCRIPT), str(file), str(folder / way)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=SECONDS, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads((folder / way / "figures.json").read_text(encoding="utf-8"))


@dataclass(frozen=True)
class Difference:
    """Of the encodings of some prompts made in two ways."""

    num: int
    num_equal: int
    """Bit for bit."""
    largest: float
    """Absolute, where no mean ratio is multiplied with."""
    largest_of_ratios: float
    """Absolute, where one is."""

    def __str__(self) -> str:
        return (
            f"{self.num_equal} of {self.num} equal bit for bit, largest difference {self.largest:.1e} "
            f"({self.largest_of_ratios:.1e} with the schemes {', '.join(MEAN_RATIO_SCHEMES)})"
        )


def difference(prompts: list[Drawn], folder: Path, one: str, other: str) -> Difference:
    """Compare what two processes wrote."""
    largest = {False: 0.0, True: 0.0}
    files = sorted((folder / one).glob("*.safetensors"))
    num_equal = 0
    for file in files:
        mine, theirs = load_file(file), load_file(folder / other / file.name)
        assert all(mine[name].shape == theirs[name].shape for name in mine)
        away = max(float((mine[name].double() - theirs[name].double()).abs().max()) for name in mine)
        scale = max(1.0, *(float(theirs[name].abs().max()) / 5 for name in mine))  # of a normal row it is about 5
        num_equal += away == 0
        is_ratio = prompts[int(file.stem)].options["scheme"] in MEAN_RATIO_SCHEMES
        largest[is_ratio] = max(largest[is_ratio], away / scale)
    return Difference(len(files), num_equal, largest[False], largest[True])


def live_long(job: Job, folder: Path, *, title: str = "", told: str = "") -> None:
    """Run a job and what it is compared with; check all, and write it down under a title."""
    figures = encoded(job, "on", folder)
    encoded(job, "fresh", folder)
    encoded(job, "plain", folder)
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
    prompts = draw_prompts(SEED, job.count)
    fresh, plain = (difference(prompts, folder, "on", way) for way in ("fresh", "plain"))
    assert fresh.num == job.num_kept
    for one in (fresh, plain):
        assert one.largest <= CLOSE, one
        assert one.largest_of_ratios <= MEAN_RATIO_CLOSE, one
    if not title:
        return
    assert growth(courses["resident"]).total <= MAX_MEBIBYTES * MEBIBYTE
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
            course_table(
                "encoded",
                {
                    "process, MiB": courses["resident"],
                    "remembered, MiB": courses["remembered"],
                    "tensors": courses["tensors"],
                    "Python's objects": courses["objects"],
                },
                {"process, MiB": MEBIBYTE, "remembered, MiB": MEBIBYTE},
            ),
            resident_growth(courses["resident"], "encoding")
            + " "
            + counted_growth("Objects", growth(courses["objects"])),
            f"- with a process that had nothing remembered before each of {fresh.num} of them: {fresh}\n"
            f"- with the encoder that neither shares nor remembers: {plain}",
        ],
    )


def test_hundreds_of_encodings_leave_nothing_behind_and_equal_a_fresh_process(tmp_path: Path) -> None:
    live_long(SHORT, tmp_path)


def test_a_job_is_the_same_for_everyone() -> None:
    assert draw_prompts(SEED, 50) == draw_prompts(SEED, 200)[:50]
    assert replace(SHORT, count=100).kept != SHORT.kept == SHORT.kept


@pytest.mark.long
@pytest.mark.skipif(not PROC.is_dir(), reason=NO_PROC)
def test_ten_thousand_encodings_leave_nothing_behind_and_equal_a_fresh_process(tmp_path: Path) -> None:
    live_long(
        LONG,
        tmp_path,
        title="Encodings",
        told="CLIP-L at full width with two of its twelve layers and seeded random weights, on one thread, remembering "
        "as by default. Prompts are drawn at random: new ones, repeated ones, ones with a word more or with other "
        "options, timed ones, up to 200 words, over all syntaxes, schemes, normalisations, chunk rules, paddings, laws "
        "and mask methods, with and without hidden phrases and causality. Memory is looked at after `gc.collect` and "
        "`malloc_trim`.",
    )


@pytest.mark.long
@pytest.mark.skipif(not PROC.is_dir(), reason=NO_PROC)
def test_hundreds_of_encodings_at_full_size_leave_nothing_behind_and_equal_a_fresh_process(tmp_path: Path) -> None:
    live_long(FULL, tmp_path, title="Encodings, full size", told="The same with all twelve layers.")
