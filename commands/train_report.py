"""Page about a training run: curves of its log, and measurements before and after."""

from __future__ import annotations

import json
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

from ..output.files import written_whole

REPORT_NAME = "report.html"
LOSS_NAME, RECALL_NAME, MOVED_NAME = "loss.png", "recall.png", "moved.png"

MAX_WATCHED = 6
"""Maximum number of prompts drawn."""

STYLE = (
    "body{font:16px system-ui,sans-serif;max-width:46rem;margin:2rem auto;padding:0 1rem;color:#222;background:#fff}"
    "table{border-collapse:collapse}td,th{padding:.2rem .8rem .2rem 0;text-align:left;vertical-align:top}"
    "img{max-width:100%}code{word-break:break-word}"
    "@media(prefers-color-scheme:dark){body{color:#e7e9ed;background:#2a2c31}}"
)


def write_report(folder: Path, log: Path, about: dict[str, Any], notes: Sequence[str]) -> Path:
    """Write curves and page of a run.

    Args:
        folder: The run's folder.
        log: Its log: one JSON object per line, with ``step``.
        about: Information about the run, by name.
        notes: Lines such as those about data left out.

    Returns:
        The page.

    Raises:
        OSError: If a file cannot be written.
    """
    from ..web.pictures.curves import draw_curves

    entries = [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()]
    losses = [(entry["step"], entry["loss"]) for entry in entries if "loss" in entry]
    measured = [entry for entry in entries if any("@" in name for name in entry)]
    pictures: list[str] = []
    if losses:
        with written_whole(folder / LOSS_NAME) as place:
            draw_curves("Loss of each step", {"loss": losses}).save(place)
        pictures.append(LOSS_NAME)
    if measured:
        names = [name for name in measured[0] if "@" in name]
        curves = {name: [(entry["step"], entry[name]) for entry in measured] for name in names}
        with written_whole(folder / RECALL_NAME) as place:
            draw_curves("Recall of held-out pairs", curves, top=1.0).save(place)
        pictures.append(RECALL_NAME)
    watched = list(dict.fromkeys(name for entry in entries for name in entry if name.startswith("moved: ")))
    if watched:
        curves = {
            name.removeprefix("moved: "): [(entry["step"], entry[name]) for entry in entries if name in entry]
            for name in watched[:MAX_WATCHED]
        }
        with written_whole(folder / MOVED_NAME) as place:
            draw_curves("How far the rows of prompts have moved", curves).save(place)
        pictures.append(MOVED_NAME)
    with written_whole(folder / REPORT_NAME) as place:
        place.write_text(_page(about, [*notes, *skipped(entries)], measured, pictures), encoding="utf-8")
    return folder / REPORT_NAME


def skipped(entries: Sequence[dict[str, float]]) -> list[str]:
    """Note about the skipped updates of a log, if any."""
    count = sum(bool(entry.get("skipped")) for entry in entries)
    return [f"{count:,} updates were skipped, as a gradient was not finite"] if count else []


def _page(
    about: dict[str, Any], notes: Sequence[str], measured: Sequence[dict[str, float]], pictures: Sequence[str]
) -> str:
    """The page as HTML; everything from outside is escaped."""
    parts = [
        "<!doctype html>",
        '<html lang="en"><meta charset="utf-8"><title>Training run</title>',
        f"<style>{STYLE}</style><h1>Training run</h1>",
        *(f"<p>{escape(note)}</p>" for note in notes),
    ]
    if measured:
        first, last = measured[0], measured[-1]
        rows = "".join(
            f"<tr><td>{escape(name)}<td>{first[name]:.1%}<td>{max(entry[name] for entry in measured):.1%}"
            f"<td>{last[name]:.1%}"
            for name in first
            if "@" in name
        )
        parts.append(
            "<h2>Recall of held-out pairs</h2><p>How often a text finds its own image among all held-out ones, and an "
            "image its own text, as the first or among the first 5 or 10.</p><table><tr><th><th>before<th>best<th>"
            f"after{rows}</table>"
        )
    parts += [f'<p><img src="{name}" alt="{name.partition(".")[0]}"></p>' for name in pictures]
    rows = "".join(f"<tr><td>{escape(name)}<td><code>{escape(str(value))}</code>" for name, value in about.items())
    parts.append(f"<h2>Options</h2><table>{rows}</table>")
    return "\n".join(parts) + "\n"
