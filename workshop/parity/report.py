"""Results of comparisons, their table, and its part of docs/evidence/parity.md."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..bench import page
from ..bench.page import table as aligned

PAGE = Path(__file__).resolve().parents[2] / "docs" / "evidence" / "parity.md"
COLUMNS = "| Reference | Its name | Ours | Encoder | Prompts | Allowed | Largest difference |"
RULE = "| --- | --- | --- | --- | ---: | ---: | ---: |"
NUMPY_2_NOTE = "none: numpy 2"


@dataclass(frozen=True)
class Result:
    """One line of the table."""

    reference: str
    """Name and version."""
    name: str
    """Name in the reference."""
    way: str
    """Our options, in words."""
    encoder: str
    """``native``, or ``the host's``; ``-`` if no encoder runs."""
    num_prompts: int
    """Number of prompts compared."""
    limit: float | None
    """Largest difference allowed; None if the reference is known to differ."""
    difference: float
    """Largest absolute difference; infinity if shapes differ."""
    prompt: str = ""
    """Prompt with that difference."""

    @property
    def is_within(self) -> bool:
        """Whether the difference is allowed; NaN is not."""
        return self.limit is None or self.difference <= self.limit

    def line(self) -> str:
        """The line in Markdown."""
        limit = NUMPY_2_NOTE if self.limit is None else number(self.limit)
        cells = (self.reference, self.name, self.way, self.encoder, self.num_prompts, limit, number(self.difference))
        return "| " + " | ".join(str(cell).replace("|", "\\|") for cell in cells) + " |"


@dataclass(frozen=True)
class Absence:
    """A reference without results."""

    reference: str
    """Its name."""
    reason: str
    """Reason, in one line or more."""
    is_failure: bool = False
    """Whether it was found but failed to run."""

    def line(self) -> str:
        """The line in Markdown."""
        return f"| {self.reference} | {self.reason.splitlines()[0] if self.reason else 'failed'} | | | | | |"


def number(value: float) -> str:
    """Format a difference or a limit briefly."""
    return "0" if value == 0 else f"{value:.1e}".replace("e-0", "e-")


def in_words(options: dict[str, Any]) -> str:
    """Our options as a table cell: the scheme, then everything that is not the default.

    >>> in_words({"syntax": "compel", "scheme": "compel", "chunking": "compel words"})
    'compel, chunking compel words'
    """
    parts = [options.get("scheme", "comfy")]
    parts += [
        name if value is True else f"{name.replace('_', ' ')} {value}"
        for name, value in options.items()
        if name not in ("scheme", "syntax")
    ]
    return ", ".join(part for part in parts if part != "normalization none")


def table(results: Sequence[Result | Absence]) -> str:
    """All lines with the table's heading."""
    return "\n".join([COLUMNS, RULE, *(result.line() for result in results)])


def problems(results: Sequence[Result | Absence]) -> list[str]:
    """Problems that make the command fail, one text each."""
    messages: list[str] = []
    for result in results:
        if isinstance(result, Absence):
            if result.is_failure:
                messages.append(f"{result.reference} did not run:\n{result.reason}")
        elif not result.is_within:
            messages.append(
                f"{result.reference}, {result.name}, {result.encoder} encoder: {result.difference:.3g} is above "
                f"{result.limit:.3g}, for the prompt {result.prompt!r}"
            )
    return messages


# ---- the page


def block(lines: Sequence[Result | Absence], versions: Mapping[str, str]) -> str:
    """Text for the page: for each reference what else it ran with, and a table with a column for each encoder.

    A column's head has the smallest limit of its cells; a cell with another one says so. Results without a limit are in
    a sentence.
    """
    parts: list[str] = []
    for reference in dict.fromkeys(line.reference for line in lines):
        results = [line for line in lines if isinstance(line, Result) and line.reference == reference]
        absent = [line.reason for line in lines if isinstance(line, Absence) and line.reference == reference]
        libraries = [part for part in versions.get(reference, "").split(", ") if part and part not in reference]
        free = [f"{result.way} {number(result.difference)}" for result in results if result.limit is None]
        held = [result for result in results if result.limit is not None]
        parts += [f"### {reference}", *([f"With {', '.join(libraries)}."] if libraries else []), *absent]
        parts += [f"Without a limit: {', '.join(free)}."] if free else []
        parts += [_by_encoder(held)] if held else []
    return "\n\n".join(parts)


def _by_encoder(results: Sequence[Result]) -> str:
    encoders = list(dict.fromkeys(result.encoder for result in results))
    limits = {
        encoder: min(result.limit or 0.0 for result in results if result.encoder == encoder) for encoder in encoders
    }
    rows: dict[tuple[str, str, int], dict[str, str]] = {}
    for result in results:
        note = "" if result.limit == limits[result.encoder] else f" (at most {number(result.limit or 0.0)})"
        key = result.name, result.way, result.num_prompts
        rows.setdefault(key, {})[result.encoder] = f"{number(result.difference)}{note}"
    heads = [f"{encoder}, at most {number(limit)}" for encoder, limit in limits.items()]
    cells = [
        [name.replace("|", "\\|"), way, str(count), *(row_cells.get(encoder, "-") for encoder in encoders)]
        for (name, way, count), row_cells in rows.items()
    ]
    return aligned(["Its name", "Ours", "Prompts", *(head.removeprefix("-, ") for head in heads)], cells, num_left=2)


def write_page(lines: Sequence[Result | Absence], versions: Mapping[str, str]) -> None:
    """Write what was compared into the page."""
    page.write({"schemes": block(lines, versions)}, PAGE)
