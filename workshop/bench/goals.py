"""Goals of the project, and whether the figures of the other sections meet them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase

from .dalle import DRAWERS, DRAWING, OWN, TRAINERS, TRAINING
from .encoding import COMPEL
from .hosts import ADV, STOCK, WAYS
from .page import table, table_rows
from .runs import TRANSFORMERS
from .sharing import GRID, NO_MEMORY, TYPED
from .training import EVERY_STEP, FULL_SIZE, LOCKED, OPEN_CLIP, SMALL, WITH_ACCELERATE

HEAD = ("Goal", "Beside", "Asked", "Measured", "", "Found under")
NOT_MEASURED = "not measured"
SECTIONS = {
    "parse": "Reading a prompt",
    "tokens": "From text to tokens",
    "encode": "Beside transformers and compel",
    "sharing": "What is computed once",
    "training": "Training",
    "dalle": "Image tokens",
    "hosts": "Inside ComfyUI",
    "gpu": "On a GPU",
}
"""Position of each section on the page."""


@dataclass(frozen=True)
class Goal:
    """A bound on some rows of a section; the worst of them counts."""

    name: str
    beside: str
    """The peer, in words."""
    section: str
    where: Mapping[str, tuple[str, ...]]
    """The rows, by allowed values of some columns; ``*`` matches anything."""
    target: float
    """Minimum speed as a multiple of the peer's; or with ``column`` the maximum number of milliseconds."""
    column: str = ""
    """A column with milliseconds."""


def _rows(prompt: str, ours: str, peer: str) -> dict[str, tuple[str, ...]]:
    return {"Prompt": (prompt,), "Ours": (ours,), "Peer": (peer,)}


_MEMORY, _NATIVE = WAYS["memory"], WAYS["native"]
GOALS = (
    Goal("A plain prompt", "transformers", "encode", _rows("plain", "comfy", TRANSFORMERS), 0.97),
    Goal(
        "A weighted prompt, native encoder",
        "ComfyUI's own encode",
        "hosts",
        _rows("one word up", f"comfy, {_NATIVE}", STOCK),
        1.9,
    ),
    Goal(
        "A weighted prompt, ComfyUI's CLIP, remembering",
        "ComfyUI's own encode",
        "hosts",
        _rows("one word up", f"comfy, {_MEMORY}", STOCK),
        1.3,
    ),
    Goal("Four words down in 60 tokens", "compel", "encode", _rows("four words down", "compel", COMPEL), 2.0),
    Goal(
        "Four words down in 60 tokens",
        "ADV_CLIP_emb",
        "hosts",
        _rows("four words down", f"adv_compel, {_NATIVE}", f"{ADV}: compel"),
        2.0,
    ),
    Goal(
        "The last word of three chunks changed",
        "transformers' full encode",
        "sharing",
        _rows(TYPED, "*", f"{TRANSFORMERS}*"),
        5.0,
    ),
    Goal("The last word of three chunks changed", "our own full encode", "sharing", _rows(TYPED, "*", NO_MEMORY), 5.0),
    Goal(
        "64 prompts, 40 tokens alike", "transformers' best batch", "sharing", _rows(GRID, "*", f"{TRANSFORMERS}*"), 1.6
    ),
    Goal("Tokenizing", "transformers' fast tokenizer", "tokens", {"Ours": ("ids with places",)}, 1.0),
    Goal(
        "Reading 300 characters",
        "-",
        "parse",
        {"Syntax": ("a1111", "comfy"), "Text": ("normal",)},
        0.2,
        "300 characters, ms",
    ),
    Goal(
        "A step of training",
        "open_clip's own loop",
        "training",
        {"Text tower": (SMALL, FULL_SIZE), "Peer": (OPEN_CLIP,)},
        1.0,
    ),
    Goal(
        "A step of training",
        "transformers and accelerate",
        "training",
        {"Text tower": (SMALL, FULL_SIZE), "Peer": (WITH_ACCELERATE,)},
        1.0,
    ),
    Goal(
        "A step of training, CLIP-L",
        "loops that run the image tower",
        "training",
        {"Text tower": (FULL_SIZE,), "Peer": (LOCKED, EVERY_STEP)},
        4.0,
    ),
    Goal("Drawing 1,024 image tokens", "our own full passes", "dalle", {"Work": (DRAWING,), "Peer": (OWN,)}, 10.0),
    Goal(
        "Drawing 1,024 image tokens",
        "dalle-pytorch's cache",
        "dalle",
        {"Work": (DRAWING,), "Peer": tuple(DRAWERS.values())},
        1.0,
    ),
    Goal(
        "A step of training a prior",
        "dalle-pytorch",
        "dalle",
        {"Work": (TRAINING,), "Peer": tuple(TRAINERS.values())},
        1.0,
    ),
    Goal("A weighted prompt on a GPU", "transformers, eager", "gpu", {"Peer": (f"{TRANSFORMERS}, eager",)}, 3.0),
)


def goal_block(blocks: Mapping[str, str]) -> str:
    """Make the table.

    Args:
        blocks: Markdown of the measured sections, by name.

    Returns:
        Markdown with a row for each of `GOALS`.
    """
    return table(HEAD, [_row(goal, blocks.get(goal.section, "")) for goal in GOALS], num_left=6)


def _row(goal: Goal, block: str) -> list[str]:
    section = f"[{SECTIONS[goal.section]}](#{SECTIONS[goal.section].lower().replace(' ', '-')})"
    asked = f"under {goal.target:g} ms" if goal.column else f"at least {goal.target:g} times as fast"
    found = [
        row
        for row in table_rows(block)
        if all(any(fnmatchcase(row.get(column, ""), one) for one in cells) for column, cells in goal.where.items())
    ]
    figures = [figure for figure in (_figure(goal, row) for row in found) if figure is not None]
    if not figures:
        return [goal.name, goal.beside, asked, NOT_MEASURED, "", section]
    worst = max(figures) if goal.column else min(figures)
    is_met = worst < goal.target if goal.column else worst >= goal.target
    measured = f"{worst:g} ms" if goal.column else f"{worst:.2f} times"
    return [goal.name, goal.beside, asked, measured, "met" if is_met else "missed", section]


def _figure(goal: Goal, row: Mapping[str, str]) -> float | None:
    """Milliseconds, or speed as a multiple of the peer's; None if a time is missing."""
    if goal.column:
        return _number(row.get(goal.column))
    ours, peer = (
        next((_number(cell) for column, cell in row.items() if column.startswith(side)), None)
        for side in ("Ours, ", "Peer, ")
    )
    return None if not ours or peer is None else peer / ours


def _number(cell: str | None) -> float | None:
    try:
        return None if cell is None else float(cell)
    except ValueError:
        return None
