"""Collects what the host tests measured: docs/evidence/parity.csv has all of it, docs/evidence/parity.md a summary."""

from __future__ import annotations

import csv
import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from weighted_clip.workshop.bench import page

PAGE = Path(__file__).resolve().parents[2] / "docs" / "evidence" / "parity.md"
HEADS = ("Compared", "Required")
VERSIONS = "Versions"
"""First cell of the row with the versions of what else ran in each host."""
AREAS = (
    (
        "Prompts that CLIP Text Encode reads",
        r"everything on comfy|^(CLIP|LoRA (and last|hook)|Pixels with|Every|SD1|SDXL|Long-CLIP in SD1).*with stock$",
    ),
    ("Other schemes", r"^Other schemes"),
    ("Native encoder", r"^(Native encoder|Bare embedding names, with|Trained)"),
    ("Remember Encodings", r"^(Remember Encodings|Stock on a CLIP that remembers)"),
    ("CLIPs in use elsewhere, partly loaded, or after an error", r"^(Stock|Ours on|Partly loaded)"),
    ("Attention Weights", r"^(Attention Weights|The same|Krea 2|Wan in)"),
    ("Schemes `repeat` and `negpip`", r"\b[Ss]cheme (repeat|negpip)"),
    ("Padding, hidden words, causality", r"^(All-True|Padding|Dropped|Hide Words|Causality)"),
    ("Color Bleed", r"^(Color Bleed|Bind as Cutoff)"),
    ("Timed prompts and AND", r"^(Timed prompts|AND:)"),
    ("Text encoders other than CLIP", r"\b(T5|Qwen|Flux)\b"),
    ("LoRA tags, A1111/Forge Prompt, bare names", r"^(LoRA tags|A1111/Forge Prompt|Bare)"),
    ("Pictures", r"^Pixels"),
)
"""Titles of the summary, each with a pattern of what it sums up; the first that fits counts."""


@dataclass
class Row:
    """One line of the data."""

    required: str
    """Requirement of the test."""
    cases: int = 0
    """Number of comparisons it covers."""
    largest: float = 0.0
    """Largest absolute difference of any of them."""
    smallest: float = float("inf")
    """Smallest of their largest differences."""

    @classmethod
    def read(cls, required: str, cell: str) -> Row:
        """Read what `cell` wrote."""
        cases, _, numbers = cell.partition(": ")
        values = [float(number) for number in numbers.split(" to ")]
        return cls(required, int(cases), max(values), min(values))

    def add(self, other: Row) -> None:
        """Count the comparisons of another line too."""
        self.cases += other.cases
        self.largest = max(self.largest, other.largest)
        self.smallest = min(self.smallest, other.smallest)

    def cell(self) -> str:
        """Number of comparisons and their largest difference, or its range where they must differ."""
        if self.required.startswith("different"):
            return f"{self.cases}: {self.smallest:.2g} to {self.largest:.2g}"
        return f"{self.cases}: 0" if self.largest == 0 else f"{self.cases}: {self.largest:.1e}"


@dataclass
class Figures:
    """Measurements in each host."""

    about: dict[str, str] = field(default_factory=dict)
    """Versions and revisions, in words."""
    rows: dict[str, Row] = field(default_factory=dict)
    """By what is compared, in the order of the tests."""
    hosts: dict[str, Figures] = field(default_factory=dict)
    """By name and version of the host."""
    nodes: list[list[str]] = field(default_factory=list)
    """Rows about nodes of other packs (pack_table.py)."""

    def of(self, host: str) -> Figures:
        """The figures of one host."""
        return self.hosts.setdefault(host, Figures())

    def add(
        self, subject: str, difference: float, *, required: str = "equal, bit for bit", comparisons: int = 1
    ) -> None:
        """Note a comparison, or the largest difference of several, before it is asserted."""
        self.rows.setdefault(subject, Row(required)).add(Row(required, comparisons, difference, difference))


def revision_of(checkout: Path) -> str:
    """The commit of a checkout, short, or that it is not known."""
    command = ["git", "-C", str(checkout), "rev-parse", "--short=8", "HEAD"]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    return found.stdout.strip() if found.returncode == 0 and (checkout / ".git").exists() else "of unknown revision"


@dataclass
class Measured:
    """All that is known of all hosts: cells by host; by what is compared and what is required."""

    about: dict[str, str] = field(default_factory=dict)
    """Versions of what else ran in each host, in words."""
    rows: dict[tuple[str, str], dict[str, str]] = field(default_factory=dict)

    @classmethod
    def read(cls, data: Path) -> Measured:
        """Read a file that `write` wrote; without one nothing is known."""
        measured = cls()
        if data.exists():
            with data.open(encoding="utf-8", newline="") as lines:
                for row in csv.DictReader(lines):
                    subject, required = (row.pop(head) for head in HEADS)
                    cells = {host: cell for host, cell in row.items() if cell}
                    if subject == VERSIONS:
                        measured.about = cells
                    else:
                        measured.rows[subject, required] = cells
        return measured

    def put(self, host: str, figures: Figures) -> None:
        """Replace what is known of a host."""
        self.about[host] = ", ".join(f"{name} {value}" for name, value in figures.about.items())
        for cells in self.rows.values():
            cells.pop(host, None)
        for subject, row in figures.rows.items():
            self.rows.setdefault((subject, row.required), {})[host] = row.cell()

    def write(self, data: Path) -> None:
        """Write all of it, a column for each host."""
        with data.open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, [*HEADS, *sorted(self.about)], lineterminator="\n")
            writer.writeheader()
            writer.writerow({HEADS[0]: VERSIONS, **self.about})
            for key, cells in self.rows.items():
                if cells:
                    writer.writerow({**dict(zip(HEADS, key, strict=True)), **cells})

    def lines(self) -> Iterator[str]:
        """The part of the page: hosts, and a line for each area and requirement."""
        hosts = sorted(self.about)
        yield from (f"- {host}: {self.about[host]}" for host in hosts)
        summed: dict[tuple[int, str, str], dict[str, Row]] = {}
        for (subject, required), cells in self.rows.items():
            for host, cell in cells.items():
                shown = required.partition(",")[0]  # bit for bit, or byte for byte
                sums = summed.setdefault((*_area(subject), shown), {})
                sums.setdefault(host, Row(shown)).add(Row.read(shown, cell))
        rows = [
            [area, required, *(sums[host].cell() if host in sums else "-" for host in hosts)]
            for (_, area, required), sums in sorted(summed.items())
        ]
        yield from ("", page.table([*HEADS, *hosts], rows, num_left=2))


def _area(subject: str) -> tuple[int, str]:
    """Place and title of the area that a subject belongs to."""
    found = (number for number, (_, pattern) in enumerate(AREAS) if re.search(pattern, subject))
    number = next(found, len(AREAS))
    return number, AREAS[number][0] if number < len(AREAS) else "All else"


def write_parity(figures: Figures) -> None:
    """Put the measurements into the data and the page, replacing those of these hosts."""
    data = PAGE.with_suffix(".csv")
    measured = Measured.read(data)
    for host, found in figures.hosts.items():
        measured.put(host, found)
    measured.write(data)
    page.write({"hosts": "\n".join(measured.lines())}, PAGE)
