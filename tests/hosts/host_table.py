"""Table of what was run in which host, in docs/evidence/README.md; rows of other hosts stay."""

from __future__ import annotations

import datetime
import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from weighted_clip.workshop.bench.timing import processor

from .parity import revision_of
from .server import REPOSITORY

PAGE = REPOSITORY / "docs" / "evidence" / "README.md"
MARKERS = ("<!-- hosts: made by tests/hosts -->", "<!-- end of hosts -->")
HEADS = ("Host", "When", "In its process", "Page, canvas", "Page, Nodes 2.0", "API, commands", "Failed")
HOST = re.compile(r"(ComfyUI|Forge Classic|Forge|A1111) (\d[\w.]*|classic)")
"""Name and version, as they stand in a test's id."""


class HostTable:
    """Outcomes of tests by host."""

    def __init__(self) -> None:
        self._counts: dict[str, Counter[tuple[str, str]]] = {}
        self._failed: dict[str, list[str]] = {}

    def note(self, test: str, outcome: str) -> None:
        """Count a test, named by pytest's id, for each host that it ran in."""
        for host in dict.fromkeys(" ".join(found) for found in HOST.findall(test.partition("[")[2])):
            self._counts.setdefault(host, Counter())[_part(test), outcome] += 1
            if outcome == "failed":
                name = test.rpartition("/")[2].replace(f"{host}-", "").replace(f"-{host}", "")
                self._failed.setdefault(host, []).append(f"`{name}`".replace("|", "\\|"))

    def write(self, page: Path = PAGE) -> None:
        """Put the rows of these hosts into the page."""
        start, _, rest = page.read_text(encoding="utf-8").partition(MARKERS[0])
        old, _, end = rest.partition(MARKERS[1])
        rows = {line.split(" | ")[0].removeprefix("| "): line for line in old.splitlines()[3:] if line}
        rows |= {host: self._row(host, counts) for host, counts in self._counts.items()}
        head = ["| " + " | ".join(HEADS) + " |", "| --- | --- |" + " ---: |" * 4 + " --- |"]
        table = "\n".join([*head, *(rows[host] for host in sorted(rows))])
        page.write_text(f"{start}{MARKERS[0]}\n{table}\n{MARKERS[1]}{end}", encoding="utf-8")

    def _row(self, host: str, counts: Mapping[tuple[str, str], int]) -> str:
        day = datetime.datetime.now(datetime.timezone.utc).date()
        cells = [host, f"{day}, {revision_of(REPOSITORY)}, {processor()}"]
        for part in HEADS[2:6]:
            passed, skipped = counts[part, "passed"], counts[part, "skipped"]
            cells.append(f"{passed}" + f", {skipped} skipped" * bool(skipped))
        return "| " + " | ".join([*cells, "<br>".join(self._failed.get(host, ["none"]))]) + " |"


def _part(test: str) -> str:
    """Column of a test."""
    file, _, case = test.partition("[")
    if "test_comfyui_inprocess" in file:
        return HEADS[2]
    return next((part for part in HEADS[3:5] if part.removeprefix("Page, ") in case), HEADS[5])
