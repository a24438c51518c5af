"""Page about a training run of one of DALL·E's two halves: curves, and a montage."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..output.files import written_whole
from .train_report import REPORT_NAME, STYLE, skipped

if TYPE_CHECKING:
    from torch import Tensor

MONTAGE_NAME = "reconstructions.png"
Curves = Mapping[str, tuple[str, Sequence[str]]]
"""File name of each chart, with its title and the log entries that it shows."""
DVAE_CURVES: Curves = {
    "elb.png": ("Negative ELB of held-out pictures", ("relaxed", "hard")),
    "loss.png": ("Loss of each step", ("loss",)),
    "kl.png": ("KL divergence of a position from uniform, in nats", ("kl",)),
    "perplexity.png": ("Tokens in use", ("tokens", "perplexity")),
}
PRIOR_CURVES: Curves = {
    "held_out.png": ("Held-out pairs, nats for one token", ("held-out image", "held-out text")),
    "right.png": ("Share of held-out image tokens that are the likeliest", ("right",)),
    "loss.png": ("Loss of each step, nats for one token", ("image", "text", "loss")),
    "scales.png": ("Gradient scales of the resblocks, base-2 logarithm", ("lowest scale", "highest scale")),
}
_ACROSS = 16  # pictures per row
_WIDTH = 960


def montage(rows: Sequence[Tensor], path: Path) -> None:
    """Draw pictures in rows.

    Args:
        rows: ``[n, 3, h, w]`` each, in 0..1, all of one size.
        path: The .png file.

    Raises:
        OSError: If it cannot be written.
    """
    import torch
    from PIL import Image

    whole = torch.cat([torch.cat(list(row), 2) for row in rows], 1)
    whole = (whole * 255).round().byte().permute(1, 2, 0).contiguous()
    image = Image.fromarray(whole.numpy())
    factor = max(1, _WIDTH // image.width)
    image = image.resize((image.width * factor, image.height * factor), Image.Resampling.NEAREST)
    with written_whole(path) as place:
        image.save(place)


def in_turn(pictures: Tensor, shown: Tensor) -> list[Tensor]:
    """Arrange rows of pictures, each followed by a row of results; for `montage`.

    Args:
        pictures: ``[n, 3, h, w]``, in 0..1. An incomplete last row is left out.
        shown: Results, in the same form.
    """
    count = min(_ACROSS, len(pictures))
    starts = range(0, len(pictures) - count + 1, count)
    return [some[start : start + count] for start in starts for some in (pictures, shown)]


def write_report(
    folder: Path, log: Path, title: str, curves: Curves, about: dict[str, Any], notes: Sequence[str]
) -> Path:
    """Write curves and page of a run; the montage, if any, is included.

    Args:
        folder: The run's folder.
        log: Its log: one JSON object per line, with ``step``.
        title: Title of the page.
        curves: Charts to draw; the first one's entries are among the measured ones.
        about: Information about the run, by name.
        notes: Lines such as those about data left out.

    Returns:
        The page.

    Raises:
        OSError: If a file cannot be written.
    """
    from ..web.pictures.curves import draw_curves

    entries = [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()]
    pictures = [MONTAGE_NAME] if (folder / MONTAGE_NAME).is_file() else []
    for name, (heading, keys) in curves.items():
        drawn = {key: [(entry["step"], entry[key]) for entry in entries if key in entry] for key in keys}
        if any(drawn.values()):
            with written_whole(folder / name) as place:
                draw_curves(heading, {key: points for key, points in drawn.items() if points}).save(place)
            pictures.append(name)
    (_, (first, *_)), *_ = curves.values()
    measured = [entry for entry in entries if first in entry]
    parts = [
        "<!doctype html>",
        '<html lang="en"><meta charset="utf-8"><title>' + escape(title) + "</title>",
        f"<style>{STYLE}</style><h1>{escape(title)}</h1>",
        *(f"<p>{escape(note)}</p>" for note in (*notes, *skipped(entries))),
    ]
    if measured:
        rows = "".join(
            f"<tr><td>{escape(key)}<td>{measured[0][key]:.4g}<td>{measured[-1][key]:.4g}"
            for key in measured[0]
            if key != "step"
        )
        parts.append(f"<h2>Measured</h2><table><tr><th><th>before<th>after{rows}</table>")
    parts += [f'<p><img src="{name}" alt="{name.partition(".")[0]}"></p>' for name in pictures]
    rows = "".join(f"<tr><td>{escape(name)}<td><code>{escape(str(value))}</code>" for name, value in about.items())
    parts.append(f"<h2>Options</h2><table>{rows}</table>")
    with written_whole(folder / REPORT_NAME) as place:
        place.write_text("\n".join(parts) + "\n", encoding="utf-8")
    return folder / REPORT_NAME
