"""The lab's tab for pictures: those that match the prompt best, and all of them compared with some texts.

Values of the page's components in, new values out, as in ``handlers.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from html import escape
from pathlib import Path
from typing import Protocol

import gradio as gr
import torch
from PIL import Image

from ....encoder.images import best, image_features
from ....encoder.models.clip import FullClip
from ....encoder.quoting import quote
from ....encoder.similarity import Over, probabilities, similarity
from ....encoder.tokenizer import default_tokenizer
from ....weighting.reading.features import text_features
from ....weighting.reading.view import counted
from ....weighting.syntax import SYNTAXES
from ....weighting.towers import layout_of
from ...pictures.matrices import scale_of
from .. import markup
from ..components import Inputs, Tab, button, element_id, html, textbox
from ..model import LabError, checked_text, explained, opened_upload

MAX_PICTURES = 48
MAX_TEXTS = 8
"""Maximum number of texts, including the prompt."""
MAX_CHARACTERS = 20_000
"""Maximum length of all texts together."""
THUMBNAIL = 200
"""Longer side of a picture as displayed, in pixels."""
SOFTMAX: dict[str, Over] = {"cosines": "none", "over texts": "texts", "over pictures": "images"}
NOTES: dict[str, str] = {
    "cosines": "Cosines, from -1 to 1: only the order within a column is meaningful, not the size.",
    "over texts": "How probable each text is for a picture, among these texts; rows add up to 100 %.",
    "over pictures": "How probable each picture is for a text, among these pictures; columns add up to 100 %.",
}


class FullModel(Protocol):
    """A model that may have an image tower."""

    def full(self) -> FullClip:
        """Both towers; raises `LabError` if the model has only one."""
        ...


class RankingLab(Tab):
    """The tab, in gradio 6 only; ``source`` returns the model."""

    title, name = "Pictures", "tab_pictures"

    def __init__(self, source: Callable[[], FullModel]) -> None:
        self._source = source

    def build(self, page: Inputs) -> None:
        """As in `Tab`."""
        with gr.Row():
            files = gr.File(
                label=f"Pictures, up to {MAX_PICTURES}",
                file_count="multiple",
                file_types=["image"],
                height=160,
                elem_id=element_id("pictures"),
            )
            with gr.Column():
                info = f"One per line, up to {MAX_TEXTS - 1}; the prompt is the first"
                other_texts = textbox("other_texts", "Other texts to compare with", info=info, max_lines=8)
                softmax = gr.Radio(
                    list(SOFTMAX),
                    value=next(iter(SOFTMAX)),
                    label="Matrix",
                    info="Cosines, or probabilities over the texts of a picture or the pictures of a text",
                    elem_id=element_id("softmax"),
                )
        self._start = button("rank", "Rank", variant="primary")
        self._sheet = html("ranked", "Pictures, best first")
        self._asked, self.kept = [files, other_texts, softmax], {"other_texts": other_texts, "softmax": softmax}

    def connect(self, page: Inputs) -> None:
        """As in `Tab`."""
        asked = [*self._asked, page.prompt, page.options["syntax"]]
        self._start.click(self.rank, inputs=asked, outputs=[self._sheet], show_progress="minimal")

    def rank(self, files: Sequence[str] | None, other_texts: str, softmax: str, prompt: str, syntax: str) -> str:
        """Pictures, best matches of the prompt first, and a matrix of pictures and texts."""
        try:
            if softmax not in SOFTMAX or syntax not in tuple(SYNTAXES):
                raise LabError(
                    f"choose among {', '.join(SOFTMAX)}, and a syntax; got {quote(softmax, 40)}, {quote(syntax, 40)}"
                )
            return self._ranked([Path(file) for file in files or ()], _texts(prompt, other_texts), softmax, syntax)
        except Exception as error:  # the page is the only place where the user can see it
            return markup.refused(explained(error))

    def _ranked(self, paths: list[Path], texts: list[str], softmax: str, syntax: str) -> str:
        clip = self._source().full()  # before the pictures, which nobody should choose in vain
        if not paths:
            raise LabError("Choose pictures first, or drop some.")
        if len(paths) > MAX_PICTURES:
            raise LabError(f"these are {len(paths)} pictures; at most {MAX_PICTURES} are ranked at a time")
        layout = layout_of(clip.text.config)
        encoded_texts = [text_features(text, syntax, default_tokenizer(), layout, clip.text_features) for text in texts]
        images, problems = _opened(paths)
        if not images:
            return markup.problems(problems)
        features = image_features(clip, [image for _, image in images])
        scale = 1.0 if softmax == "cosines" else 1 / clip.logit_scale
        scores = similarity(torch.stack([encoded_text.vector for encoded_text in encoded_texts]), features)
        values: list[list[float]] = probabilities(scores / scale, SOFTMAX[softmax]).tolist()
        order = best(scores[0], len(images))
        for number, encoded_text in enumerate(encoded_texts):
            problems += [
                f"{f'Text {number}' if number else 'Prompt'}, {issue.line}" for issue in encoded_text.read.issues
            ]
        sheet: list[tuple[str, str, Image.Image]] = []
        for rank, index in enumerate(order, 1):
            name, image = images[index]
            sheet.append((f"{rank}. {name}", f"{rank}. {scores[0, index]:.4f} {name}", _small(image)))
        summary = f"{counted(len(images), 'picture')}, best match for the prompt first."
        return (
            markup.note(summary)
            + markup.problems(problems)
            + markup.photos(sheet, is_sheet=True)
            + _matrix(values, texts, [images[index][0] for index in order], order, SOFTMAX[softmax])
            + markup.note(NOTES[softmax])
        )


def _texts(prompt: str, other_texts: str) -> list[str]:
    """The prompt and each of the other lines."""
    if (
        len(checked_text("Prompt", prompt)) + len(checked_text("Other texts to compare with", other_texts))
        > MAX_CHARACTERS
    ):
        raise LabError(f"the texts are longer than {MAX_CHARACTERS:,} characters: shorten them")
    texts = [prompt, *(line.strip() for line in other_texts.splitlines() if line.strip())]
    if len(texts) > MAX_TEXTS:
        raise LabError(f"these are {len(texts) - 1} other texts; at most {MAX_TEXTS - 1} are compared")
    return texts


def _opened(paths: Sequence[Path]) -> tuple[list[tuple[str, Image.Image]], list[str]]:
    """Pictures with their names, and problems with those that cannot be read."""
    images: list[tuple[str, Image.Image]] = []
    problems: list[str] = []
    for path in paths:
        try:
            images.append((path.name, opened_upload(path)))
        except LabError as error:
            problems.append(str(error))
    return images, problems


def _small(image: Image.Image) -> Image.Image:
    small = image.convert("RGB")
    small.thumbnail((THUMBNAIL, THUMBNAIL), Image.Resampling.LANCZOS)
    return small


def _matrix(
    values: Sequence[Sequence[float]], texts: Sequence[str], names: Sequence[str], order: Sequence[int], over: Over
) -> str:
    """Row for each picture, column for each text; the larger a value, the stronger its colour."""
    scale = scale_of(values, over)
    head = "".join(f"<th scope='col'>{escape(text[:80] + ('…' if len(text) > 80 else ''))}</th>" for text in texts)
    body = "".join(
        f"<tr><th scope='row'>{escape(name)}</th>"
        + "".join(
            f"<td style='--weighted-clip-share: {100 * min(1.0, max(0.0, share)):.0f}%'>{scale.text(row[index])}</td>"
            for row in values
            for share in [(row[index] - scale.low) / (scale.high - scale.low)]
        )
        + "</tr>"
        for name, index in zip(names, order, strict=True)
    )
    return (
        "<div class='weighted-clip-scroll' tabindex='0' role='region' aria-label='Pictures and texts'>"
        f"<table class='weighted-clip-table weighted-clip-values'><thead><tr><td></td>{head}</tr></thead>"
        f"<tbody>{body}</tbody></table></div>"
    )
