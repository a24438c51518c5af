"""The page about a training run of a discrete VAE: curves, and held-out pictures before and behind their tokens."""

from __future__ import annotations

import json
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..output.files import written_whole
from .train_report import REPORT_NAME, STYLE

if TYPE_CHECKING:
    from torch import Tensor

MONTAGE_NAME = "reconstructions.png"
CURVES = {
    "elb.png": ("Negative ELB of held-out pictures", ("relaxed", "hard")),
    "loss.png": ("Loss of each step", ("loss",)),
    "kl.png": ("KL divergence of a position from uniform, in nats", ("kl",)),
    "perplexity.png": ("Tokens in use", ("tokens", "perplexity")),
}
"""File, title and entries of the log of each chart."""
_ACROSS = 16  # pictures in a row
_WIDTH = 960


def montage(pictures: Tensor, shown: Tensor, path: Path) -> None:
    """Draw pictures and, below each row, what becomes of them.

    Args:
        pictures: ``[n, 3, h, w]``, in 0..1.
        shown: Likewise.
        path: Of the .png file.

    Raises:
        OSError: If it cannot be written.
    """
    import torch
    from PIL import Image

    rows: list[Tensor] = []
    count = min(_ACROSS, len(pictures))
    for start in range(0, len(pictures) - count + 1, count):
        for some in (pictures, shown):
            rows.append(torch.cat(list(some[start : start + count]), 2))
    whole = (torch.cat(rows, 1) * 255).round().byte().permute(1, 2, 0).contiguous()
    image = Image.fromarray(whole.numpy())
    factor = max(1, _WIDTH // image.width)
    image = image.resize((image.width * factor, image.height * factor), Image.Resampling.NEAREST)
    with written_whole(path) as place:
        image.save(place)


def write_report(folder: Path, log: Path, about: dict[str, Any], notes: Sequence[str]) -> Path:
    """Write curves and page of a run; the montage, if there is one, is shown too.

    Args:
        folder: Of the run.
        log: Its log: one JSON object a line, with ``step``.
        about: What the page says of the run, by name.
        notes: Lines such as those on what was left out of the data.

    Returns:
        The page.

    Raises:
        OSError: If a file cannot be written.
    """
    from ..web.pictures.curves import draw_curves

    entries = [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()]
    pictures = [MONTAGE_NAME] if (folder / MONTAGE_NAME).is_file() else []
    for name, (title, keys) in CURVES.items():
        curves = {key: [(entry["step"], entry[key]) for entry in entries if key in entry] for key in keys}
        if any(curves.values()):
            with written_whole(folder / name) as place:
                draw_curves(title, {key: points for key, points in curves.items() if points}).save(place)
            pictures.append(name)
    measured = [entry for entry in entries if "relaxed" in entry]
    parts = [
        "<!doctype html>",
        '<html lang="en"><meta charset="utf-8"><title>Training of a discrete VAE</title>',
        f"<style>{STYLE}</style><h1>Training of a discrete VAE</h1>",
        *(f"<p>{escape(note)}</p>" for note in notes),
    ]
    if measured:
        rows = "".join(
            f"<tr><td>{escape(key)}<td>{measured[0][key]:.4g}<td>{measured[-1][key]:.4g}"
            for key in measured[0]
            if key != "step"
        )
        parts.append(f"<h2>Held-out pictures</h2><table><tr><th><th>before<th>after{rows}</table>")
    parts += [f'<p><img src="{name}" alt="{name.partition(".")[0]}"></p>' for name in pictures]
    rows = "".join(f"<tr><td>{escape(name)}<td><code>{escape(str(value))}</code>" for name, value in about.items())
    parts.append(f"<h2>Options</h2><table>{rows}</table>")
    with written_whole(folder / REPORT_NAME) as place:
        place.write_text("\n".join(parts) + "\n", encoding="utf-8")
    return folder / REPORT_NAME
