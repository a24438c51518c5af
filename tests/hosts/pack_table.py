"""Table of other packs' nodes on a Weighted CLIP, in docs/evidence/other-packs.md, from what their checks found."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from weighted_clip.workshop.bench import page

from .parity import Figures
from .server import REPOSITORY

PAGE = REPOSITORY / "docs" / "evidence" / "other-packs.md"
HEADS = ("Pack", "Node", "How it encodes", "At the defaults", "With a scheme", "Said")


def lines(figures: Figures) -> Iterable[str]:
    """The table, and the lines that are said in it by number."""
    said: dict[str, str] = {}
    rows: list[Sequence[str]] = []
    for pack, node, way, far, effect, told in figures.nodes:
        revision = figures.about.get(pack)
        numbers = [said.setdefault(line, f"({len(said) + 1})") for line in told.splitlines()]
        name = pack if revision is None else f"{pack} {revision}"
        rows.append([name, re.sub(r"([|<])", r"\\\1", node), way, far, effect, " ".join(numbers)])
    yield page.table(HEADS, rows, num_left=len(HEADS))
    yield ""
    yield from (f"{number} {line}\n" for line, number in said.items())


def write_packs(figures: Figures, path: Path = PAGE) -> None:
    """Put what was found in a host into the page."""
    page.write({"packs": "\n".join(lines(figures)).rstrip()}, path)
