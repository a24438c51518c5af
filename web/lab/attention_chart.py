"""Weights of one head as markup: attending words beside attended words, and both matrices.

``javascript/attention.mjs`` shows the weights of the word under the pointer or with the focus; ``style.css`` draws.

Source: the view of heads of BertViz (J. Vig, "A Multiscale Visualization of Attention in the Transformer Model", 2019).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from ..pictures.matrices import Scale

ROW = 26
"""Distance between words in pixels, as in ``style.css``."""
LEVELS = 16
"""Steps of opacity in the matrix of weights."""
NAMED = 3
"""Number of words named in the line above."""
_PERCENT = Scale(0.0, 1.0, True)
NOTE = (
    "How much of each word on the right a head takes into the one on the left, 100 % in all. Point at a word, or use "
    "the arrow keys; strength is drawn as a square root."
)


@dataclass(frozen=True)
class Attended:
    """Content of the chart."""

    labels: Sequence[str]
    """Labels of the positions shown, from the first."""
    weights: Sequence[Sequence[float]]
    """Query by key, 0 to 1."""
    allowed: Sequence[Sequence[bool]]
    """Query by key: True where mask and causality allow attention."""
    is_causal: bool
    told: str
    """Description of the weights."""
    num_more: int = 0
    """Number of further positions not shown."""


def attention_chart(attended: Attended) -> str:
    """Draw the weights of a head, initially those of the last word.

    Returns:
        Markup that includes the texts of all words, for the script.
    """
    labels = attended.labels
    rows = [row_of(attended, query) for query in range(len(labels))]
    query = max((i for i, name in enumerate(labels) if name not in ("BOS", "EOS", "PAD")), default=len(labels) - 1)
    names = ["&nbsp;" if not name.strip() else escape(name) for name in labels]
    words = "".join(
        f"<button type='button' role='radio' aria-checked='{'true' if i == query else 'false'}' "
        f"tabindex='{0 if i == query else -1}' title='{escape(labels[i])}'>{name}</button>"
        for i, name in enumerate(names)
    )
    told, texts, shares = rows[query]
    keys = "".join(
        f"<li><b title='{escape(label)}'>{name}</b><span><u style='width: {100 * share:.1f}%'></u></span>"
        f"<em>{text}</em></li>"
        for label, name, share, text in zip(labels, names, shares, texts, strict=True)
    )
    height = ROW * len(labels)
    lines = "".join(
        f"<line x1='0' y1='{ROW * (query + 0.5):g}' x2='100' y2='{ROW * (key + 0.5):g}' "
        f"stroke-opacity='{share**0.5:.3f}'/>"
        for key, share in enumerate(shares)
    )
    more = f" {attended.num_more} positions of padding behind these are not shown." if attended.num_more else ""
    return (
        f"<section class='weighted-clip-attention' data-rows='{escape(json.dumps(rows, separators=(',', ':')))}'>"
        f"<h2>{escape(attended.told)}</h2><p class='weighted-clip-told' role='status'>{escape(told)}</p>"
        "<div class='weighted-clip-head-view'><div class='weighted-clip-from' role='radiogroup' "
        f"aria-label='Word that attends'>{words}</div>"
        f"<svg viewBox='0 0 100 {height}' style='height: {height}px' preserveAspectRatio='none' aria-hidden='true'>"
        f"{lines}</svg><ol class='weighted-clip-to' aria-label='Words that are attended'>{keys}</ol></div>"
        f"<div class='weighted-clip-matrices'>{_matrix('Weights', _weights(attended.weights), len(labels), query)}"
        f"{_matrix('Mask', _open(attended.allowed), len(labels), query)}</div>"
        f"</section><p class='weighted-clip-note'>{NOTE}{more}</p>"
    )


def row_of(attended: Attended, query: int) -> tuple[str, list[str], list[float]]:
    """Text about a word, texts at each word that it could attend to, and its shares."""
    labels, weights, allowed = attended.labels, attended.weights[query], attended.allowed[query]
    texts = [
        _PERCENT.text(weight) if is_open else "later" if attended.is_causal and key > query else "hidden"
        for key, (weight, is_open) in enumerate(zip(weights, allowed, strict=True))
    ]
    most = sorted(range(len(weights)), key=lambda key: -weights[key])[:NAMED]
    named = ", ".join(f"{labels[key]} {texts[key]}" for key in most if allowed[key])
    shut = [f"{count} {why}" for why in ("later", "hidden") if (count := texts.count(why))]
    told = f"{labels[query]} attends {named}" + (f"; not seen: {' and '.join(shut)}" if shut else "")
    return told, texts, [round(weight, 4) for weight in weights]


def _weights(weights: Sequence[Sequence[float]]) -> str:
    """Path for each step of opacity."""
    cells: dict[int, list[str]] = {}
    for y, row in enumerate(weights):
        for x, weight in enumerate(row):
            level = round(LEVELS * weight**0.5)
            if level:
                cells.setdefault(level, []).append(f"M{x} {y}h1v1h-1z")
    return "".join(
        f"<path fill-opacity='{level / LEVELS:g}' d='{''.join(some)}'/>" for level, some in sorted(cells.items())
    )


def _open(allowed: Sequence[Sequence[bool]]) -> str:
    cells = (f"M{x} {y}h1v1h-1z" for y, row in enumerate(allowed) for x, is_open in enumerate(row) if is_open)
    return f"<path fill-opacity='0.55' d='{''.join(cells)}'/>"


def _matrix(title: str, cells: str, count: int, query: int) -> str:
    told = {
        "Weights": "the stronger, the more a row's word attends a column's",
        "Mask": "filled is what a row's word may attend",
    }[title]
    return (
        f"<figure><svg viewBox='0 0 {count} {count}' role='img' aria-label='{title}: {escape(told)}' "
        f"shape-rendering='crispEdges'>{cells}<rect x='0' y='{query}' width='{count}' height='1'/></svg>"
        f"<figcaption>{title}: {escape(told)}</figcaption></figure>"
    )
