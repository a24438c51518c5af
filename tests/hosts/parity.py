"""Collects what the host tests measured and writes docs/evidence/parity.md, the column of one host at a time."""

from __future__ import annotations

import subprocess
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

PAGE = Path(__file__).resolve().parents[2] / "docs" / "evidence" / "parity.md"


@dataclass
class Row:
    """One line of the page."""

    required: str
    """Requirement of the test."""
    cases: int = 0
    """Number of comparisons it covers."""
    largest: float = 0.0
    """Largest absolute difference of any of them."""
    smallest: float = float("inf")
    """Smallest of their largest differences."""


@dataclass
class Figures:
    """Measurements in each host."""

    about: dict[str, str] = field(default_factory=dict)
    """Versions and revisions, in words."""
    rows: dict[str, Row] = field(default_factory=dict)
    """By what is compared, in the order of the tests."""
    hosts: dict[str, Figures] = field(default_factory=dict)
    """By name and version of the host."""

    def of(self, host: str) -> Figures:
        """The figures of one host."""
        return self.hosts.setdefault(host, Figures())

    def add(
        self, subject: str, difference: float, *, required: str = "equal, bit for bit", comparisons: int = 1
    ) -> None:
        """Note a comparison, or the largest difference of several, before it is asserted."""
        row = self.rows.setdefault(subject, Row(required))
        row.cases += comparisons
        row.largest = max(row.largest, difference)
        row.smallest = min(row.smallest, difference)


HEAD = """\
# Parity with real hosts, measured

Every number on this page was written by the tests in `tests/hosts` as they ran. They start a real ComfyUI or Forge and
send it what a browser would, or work in a process of the host's own Python, and compare what comes out. To run them
again, with a folder that holds the hosts, each with its virtual environment, and the other packs that are named below:

    python run.py test --hosts DIR -m host

With `WEIGHTED_CLIP_WRITE_PARITY=1` in the environment, a run in which all tests pass writes the columns of the hosts
that it had.

[parity-schemes.md](parity-schemes.md) compares every scheme with the programs it is named after.

## What is run

- The workflow is a checkpoint loader, text encode nodes, KSampler (two steps of euler, cfg 7), VAEDecode and SaveImage,
  64 x 64 pixels, on the CPU, everything in float32 (`--cpu --force-fp32 --fp32-text-enc`), on one thread.
- The checkpoint has the full size of Stable Diffusion 1.5 and random weights from a fixed seed
  (`tests/hosts/make_checkpoint.py`), norm gains spread around 1 and biases around 0. The pictures show coloured noise,
  but every layer and every LoRA key is exercised. "Small": text encoders of ComfyUI's own classes with four narrow
  layers; "each denoiser call": the text encoding that every call of a small U-Net was given.
- A difference is the largest absolute one between two tensors: hidden states, whose standard deviation is about 1, and
  pooled vectors. For pictures it is in steps of 255.
- A cell has the number of comparisons, and the largest difference of any of them.
- "Equal, bit for bit" means that `torch.equal` holds for every tensor and that all else in the conditioning is the
  same.
- "Stock" is ComfyUI's own CLIP Text Encode. "Everything on comfy" means that syntax, scheme and chunking of
  Weighted Prompt are `comfy`, which are its defaults.
- The scheme `a1111` multiplies by a ratio of two means of signed numbers, which brings rounding out; hence its wider
  limit.
"""


def revision_of(checkout: Path) -> str:
    """The commit of a checkout, short, or that it is not known."""
    command = ["git", "-C", str(checkout), "rev-parse", "--short=8", "HEAD"]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    return found.stdout.strip() if found.returncode == 0 and (checkout / ".git").exists() else "of unknown revision"


@dataclass
class Program:
    """Measurements in all versions of a host."""

    about: dict[str, str] = field(default_factory=dict)
    """In words, by version."""
    rows: dict[tuple[str, str], dict[str, str]] = field(default_factory=dict)
    """Number of comparisons and the difference by version; by what is compared and what is required."""

    @classmethod
    def read(cls, lines: Iterable[str]) -> Program:
        """Read its part of the page, as `lines` writes it."""
        program = cls()
        for line in lines:
            if line.startswith("- "):
                version, _, about = line.removeprefix("- ").partition(": ")
                program.about[version] = about
            elif line.startswith("| ") and not line.startswith(("| Compared ", "| --- ")):
                subject, required, *cells = (cell.strip() for cell in line.strip("|").split("|"))
                measured = zip(program.about, cells, strict=True)
                program.rows[subject, required] = {version: cell for version, cell in measured if cell != "-"}
        return program

    def put(self, version: str, measured: Figures) -> None:
        """Replace what is known of a version."""
        self.about[version] = ", ".join(f"{name} {value}" for name, value in measured.about.items())
        for cells in self.rows.values():
            cells.pop(version, None)
        for subject, row in measured.rows.items():
            self.rows.setdefault((subject, row.required), {})[version] = f"{row.cases}: {_number(row)}"

    def lines(self) -> Iterator[str]:
        """Its part of the page: versions, and a table with a column for each."""
        yield from (f"- {version}: {about}" for version, about in self.about.items())
        yield from ("", f"| Compared | Required | {' | '.join(self.about)} |")
        yield f"| --- | --- | {' | '.join('---:' for _ in self.about)} |"
        for (subject, required), cells in self.rows.items():
            if cells:
                yield f"| {subject} | {required} | {' | '.join(cells.get(one, '-') for one in self.about)} |"


def write_parity(figures: Figures) -> None:
    """Put the measurements into the page, replacing those of these hosts."""
    text = PAGE.read_text(encoding="utf-8") if PAGE.exists() else ""
    parts = [part.splitlines() for part in text.split("\n## ")[1:]]
    programs = {title: Program.read(lines) for title, *lines in parts if title != "What is run"}
    for host, measured in figures.hosts.items():
        name, _, version = host.rpartition(" ")
        programs.setdefault(name, Program()).put(version, measured)
    shown = ("\n".join([f"## {name}\n", *programs[name].lines()]) + "\n" for name in sorted(programs))
    PAGE.write_text("\n".join([HEAD, *shown]), encoding="utf-8")


def _number(row: Row) -> str:
    if row.required.startswith("different"):
        return f"{row.smallest:.2g} to {row.largest:.2g}"
    return "0" if row.largest == 0 else f"{row.largest:.1e}"
