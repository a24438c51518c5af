"""Parts of the lab's page that are plain markup: model line, token strip, tables, figures, problems.

Everything is escaped here and styled by ``style.css``. Independent of gradio, which shows it in ``gr.HTML``.
"""

from __future__ import annotations

import base64
import io
import itertools
import json
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from PIL import Image

_numbers = itertools.count()

MAX_FALLBACK_CHIPS = 600
"""Maximum number of chips in the text shown without the drawing script; the same as in the ruler."""


def model_line(title: str, warning: str, note: str = "") -> str:
    """Line with the encoder, if any, the model's warning, and a note such as why there is no model."""
    line = f"<div class='weighted-clip-model'><h1>Prompt Lab</h1> {escape(title)}</div>"
    return line + _paragraph("weighted-clip-warning", warning, role="alert") + _paragraph("weighted-clip-note", note)


def strip(view: Mapping[str, Any] | None, message: str, inputs: Mapping[str, str]) -> str:
    """Token strip: a view for ``javascript/weighted_clip.mjs`` to draw, and the same as text in case it does not.

    Without a view the message says why the prompt could not be read. The inputs are the texts that were read, by the id
    of their box; the script asks again if the boxes have changed since.

    >>> "a (1.4)" not in strip(None, "No prompt", {})
    True
    """
    return _strip({"view": view, "message": message}, "" if view is None else _tokens_as_text(view), inputs)


def strips(views: Sequence[Mapping[str, Any]], message: str, inputs: Mapping[str, str]) -> str:
    """Same as `strip`, for the texts of a timed prompt: each view has the steps at which it is active."""
    texts = ""
    for view in views:
        runs = ", ".join(f"{first} to {last}" for first, last in view["steps"])
        texts += _paragraph("weighted-clip-note", f"steps {runs}, weight {view['weight']:g}") + _tokens_as_text(view)
    return _strip({"views": views, "message": message}, texts, inputs)


def _strip(data: Mapping[str, Any], texts: str, inputs: Mapping[str, str]) -> str:
    drawn = escape(json.dumps(data, ensure_ascii=False, separators=(",", ":")))
    message = _paragraph("weighted-clip-problem", data["message"], role="alert")
    return f"<div class='weighted-clip-strip' data-strip='{drawn}' {_inputs(inputs)}>{message}{texts}</div>"


def current(inner: str, inputs: Mapping[str, str]) -> str:
    """Any other markup with the texts it was made from, as in `strip`."""
    return f"<div {_inputs(inputs)}>{inner}</div>"


def greyed_when_changed(inner: str, inputs: Mapping[str, str]) -> str:
    """Markup that stays when its texts and choices change: the script then greys it out."""
    note = "This belongs to another prompt or other options: compare again."
    return (
        f"<div class='weighted-clip-kept' data-weighted-clip-of='{escape(json.dumps(inputs))}'>"
        f"<p class='weighted-clip-problem weighted-clip-changed' role='status' hidden>{note}</p>{inner}</div>"
    )


def message(text: str, *, is_problem: bool = True) -> str:
    """A line of text, or nothing; a problem is also announced to screen readers."""
    return _paragraph("weighted-clip-problem", text, role="alert") if is_problem else note(text)


def passing(inner: str) -> str:
    """Markup that an action left on the page; the script hides it once its user changes anything there.

    Each has a number of its own, or gradio would not show the same again.
    """
    return f"<div class='weighted-clip-passing' data-number='{next(_numbers)}'>{inner}</div>" if inner else ""


def refused(error: Exception | str) -> str:
    """Message about an action that was refused, as `passing` markup."""
    return passing(message(str(error)))


def note(text: str) -> str:
    """A line of text that is no problem, or nothing."""
    return _paragraph("weighted-clip-note", text, role="status")


def problems(messages: Sequence[str]) -> str:
    """A list of problems, or nothing."""
    items = "".join(f"<li>{escape(text)}</li>" for text in messages)
    return f"<ul class='weighted-clip-problems'>{items}</ul>" if items else ""


def table(header: Sequence[str], rows: Iterable[Iterable[str]], below: str = "") -> str:
    """Table of text: column headers, cells of each row, and a note below."""
    head = "".join(f"<th scope='col'>{escape(cell)}</th>" for cell in header)
    body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    label = escape(f"Table with the columns {', '.join(header)}")
    return (
        f"<div class='weighted-clip-scroll' tabindex='0' role='group' aria-label='{label}'>"
        f"<table class='weighted-clip-table'><thead><tr>{head}</tr></thead>"
        f"<tbody>{body}</tbody></table></div>{note(below)}"
    )


def copies(line: str, texts: Mapping[str, str]) -> str:
    """A line of text, and buttons that copy others, by what stands on them; the script does it."""
    buttons = "".join(
        f"<button type='button' class='weighted-clip-copy' data-weighted-clip-copy='{escape(text)}'>{escape(name)}"
        "</button>"
        for name, text in texts.items()
    )
    return f"<p class='weighted-clip-copies'><span>{escape(line)}</span>{buttons}<span role='status'></span></p>"


def figures(pictures: Iterable[tuple[str, str, Image.Image]]) -> str:
    """Drawings side by side, each with its title (also drawn in it) and caption, at 0.7 of its size.

    On a dark page they are dark, too. They are embedded as PNG, so that no host needs to serve a file.
    """
    return f"<div class='weighted-clip-figures'>{_figures(pictures, 'weighted-clip-drawing')}</div>"


def photos(pictures: Iterable[tuple[str, str, Image.Image]], *, is_sheet: bool = False) -> str:
    """Images with unchanged colours, with title and caption, at full size; or a sheet of small ones."""
    place = "weighted-clip-sheet" if is_sheet else "weighted-clip-figures"
    return f"<div class='{place}'>{_figures(pictures, 'weighted-clip-wide')}</div>"


def words(pieces: Iterable[Iterable[str]]) -> str:
    """Words side by side, each divided into its pieces.

    >>> words([["r", "ed"]])
    "<p class='weighted-clip-words'><span><i>r</i><i>ed</i></span> </p>"
    """
    divided = ("".join(f"<i>{escape(piece)}</i>" for piece in word) for word in pieces)
    return f"<p class='weighted-clip-words'>{''.join(f'<span>{word}</span> ' for word in divided)}</p>"


def progress(share: float, text: str) -> str:
    """Progress of some work, from 0 to 1, and in words."""
    return (
        "<div class='weighted-clip-progress' role='status'><div class='weighted-clip-meter'>"
        f"<i style='width: {100 * share:.0f}%'></i></div><span>{escape(text)}</span></div>"
    )


def _figures(pictures: Iterable[tuple[str, str, Image.Image]], kind: str) -> str:
    return "".join(
        f"<figure class='weighted-clip-figure {kind}' tabindex='0' style='--weighted-clip-width: {picture.width}px'>"
        f"<img src='{_data_url(picture)}' width='{picture.width}' height='{picture.height}' "
        f"alt='{escape(f'{title}. {caption}')}'>"
        + (f"<figcaption>{escape(caption)}</figcaption>" if caption else "")
        + "</figure>"
        for title, caption, picture in pictures
    )


def _paragraph(name: str, text: str, role: str = "") -> str:
    """A paragraph of a class; nothing for an empty text."""
    return f"<p class='{name}'{f' role={role!r}' if role else ''}>{escape(text)}</p>" if text else ""


def _inputs(inputs: Mapping[str, str]) -> str:
    """Attribute that the script compares with the content of the boxes."""
    return f"data-weighted-clip-inputs='{escape(json.dumps(inputs))}'"


def _tokens_as_text(view: Mapping[str, Any]) -> str:
    chips = [chip for chunk in view["chunks"] for chip in chunk["chips"]]
    first_chips = chips[:MAX_FALLBACK_CHIPS]
    left = sum(len(chip["ids"]) for chip in chips[MAX_FALLBACK_CHIPS:])
    text = " · ".join(f"{chip['text']} ({chip['note']})" if chip["note"] else chip["text"] for chip in first_chips)
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
"""Result of `current` before there is anything: it belongs to no text, so the script asks once it becomes visible."""
