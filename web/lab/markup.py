"""The parts of the lab's page that are plain markup: model line, token strip, tables, figures, problems.

Everything is escaped here and styled by ``style.css``. It knows nothing of gradio, which shows it in ``gr.HTML``.
"""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from PIL import Image

MAX_FALLBACK_CHIPS = 600
"""Of more chips than this the text shown without the drawing script leaves out the rest; the ruler's own number."""


def model_line(title: str, warning: str, note: str = "") -> str:
    """What encodes, and what has to be said about it.

    Args:
        title: Of the model; empty if there is none.
        warning: What every screen must say; empty for real weights.
        note: Anything else, such as why there is no model.

    Returns:
        Markup.
    """
    parts = [f"<p class='weighted-clip-model'><b>Prompt Lab</b> {escape(title)}</p>"]
    parts += [_paragraph("weighted-clip-warning", text, role="alert") for text in (warning,) if text]
    parts += [_paragraph("weighted-clip-note", text) for text in (note,) if text]
    return "".join(parts)


def strip(view: Mapping[str, Any] | None, message: str, inputs: Mapping[str, str]) -> str:
    """The token strip: a view for ``javascript/weighted_clip.mjs`` to draw, and the same as text if it does not.

    Args:
        view: As `weighting.view.view` gives it; None if the prompt could not be read.
        message: Why it could not.
        inputs: The texts that were read, by the id of the box they stand in; the script asks again where they differ
            from what stands there by now.

    Returns:
        Markup.

    >>> "a (1.4)" not in strip(None, "No prompt", {})
    True
    """
    data = json.dumps({"view": view, "message": message}, ensure_ascii=False, separators=(",", ":"))
    fallback = "" if view is None else _tokens_as_text(view)
    if message:
        fallback = _paragraph("weighted-clip-problem", message, role="alert") + fallback
    return f"<div class='weighted-clip-strip' data-strip='{escape(data)}' {_inputs(inputs)}>{fallback}</div>"


def current(inner: str, inputs: Mapping[str, str]) -> str:
    """Any other markup with the texts it was made of, as `strip` has them."""
    return f"<div {_inputs(inputs)}>{inner}</div>"


def message(text: str, *, is_problem: bool = True) -> str:
    """A line of text; a problem is also read out."""
    if is_problem:
        return _paragraph("weighted-clip-problem", text, role="alert")
    return _paragraph("weighted-clip-note", text, role="status")


def problems(messages: Sequence[str]) -> str:
    """A list of problems, or nothing."""
    items = "".join(f"<li>{escape(text)}</li>" for text in messages)
    return f"<ul class='weighted-clip-problems'>{items}</ul>" if items else ""


def table(header: Sequence[str], rows: Iterable[Iterable[str]], note: str = "") -> str:
    """A table of text.

    Args:
        header: Of each column.
        rows: Cells of each row.
        note: What stands below.

    Returns:
        Markup.
    """
    head = "".join(f"<th scope='col'>{escape(cell)}</th>" for cell in header)
    body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    below = message(note, is_problem=False) if note else ""
    return (
        f"<div class='weighted-clip-scroll'><table class='weighted-clip-table'><thead><tr>{head}</tr></thead>"
        f"<tbody>{body}</tbody></table></div>{below}"
    )


def figures(pictures: Iterable[tuple[str, str, Image.Image]], *, is_wide: bool = False) -> str:
    """Pictures side by side, each with its caption.

    Args:
        pictures: What it is, which is drawn in it too; caption; picture.
        is_wide: Whether each is shown at its own size if there is room; else at 0.7 of it.

    Returns:
        Markup with the pictures in it as PNG, so that no host has to serve a file.
    """
    drawn = [
        f"<figure class='weighted-clip-figure{' weighted-clip-wide' if is_wide else ''}' "
        f"style='--weighted-clip-width: {picture.width}px'><img src='{_data_url(picture)}' width='{picture.width}' "
        f"height='{picture.height}' alt='{escape(f'{title}. {caption}')}'>"
        + (f"<figcaption>{escape(caption)}</figcaption>" if caption else "")
        + "</figure>"
        for title, caption, picture in pictures
    ]
    return f"<div class='weighted-clip-figures'>{''.join(drawn)}</div>"


def progress(done: int, total: int, text: str) -> str:
    """How far a comparison has come."""
    return (
        "<div class='weighted-clip-progress' role='status'><div class='weighted-clip-meter'>"
        f"<i style='width: {100 * done / total:.0f}%'></i></div>"
        f"<span>{done} of {total} schemes: {escape(text)}</span></div>"
    )


def _paragraph(name: str, text: str, role: str = "") -> str:
    return f"<p class='{name}'{f' role={role!r}' if role else ''}>{escape(text)}</p>"


def _inputs(inputs: Mapping[str, str]) -> str:
    """The attribute that the script compares with what stands in the boxes."""
    return f"data-weighted-clip-inputs='{escape(json.dumps(inputs))}'"


def _tokens_as_text(view: Mapping[str, Any]) -> str:
    chips = [chip for chunk in view["chunks"] for chip in chunk["chips"]]
    shown = chips[:MAX_FALLBACK_CHIPS]
    left = sum(len(chip["ids"]) for chip in chips[MAX_FALLBACK_CHIPS:])
    text = " · ".join(f"{chip['text']} ({chip['note']})" if chip["note"] else chip["text"] for chip in shown)
    text += f" … {left} more" if left else ""
    last = view["chunks"][-1]
    count = f"{last['num_tokens']} / {last['capacity']}"
    if len(view["chunks"]) > 1:
        count += f" in chunk {len(view['chunks'])} of {len(view['chunks'])}"
    return (
        f"<p class='weighted-clip-tokens'>{escape(text)}</p><p class='weighted-clip-note'>{escape(count)}</p>"
        + problems([issue["message"] for issue in view["issues"]])
    )


def _data_url(picture: Image.Image) -> str:
    buffer = io.BytesIO()
    picture.save(buffer, format="PNG")
    return f"data:image/png;base64,{base64.b64encode(buffer.getvalue()).decode('ascii')}"


NOT_YET = current("", {})
"""What `current` gives before there is anything: it is of no text, so that the script asks once it is to be seen."""
