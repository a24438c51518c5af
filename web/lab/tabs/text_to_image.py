"""The lab's tab for images of a caption: its pieces, and images that fill up while their tokens are drawn.

Values of the page's components in, new values out, as in ``handlers.py``.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import gradio as gr
import torch
from PIL import Image, ImageOps
from torch import Tensor

from ....encoder.quoting import quote
from ....encoder.tokenizer import END_OF_WORD, bytes_of
from ....studio.dalle.full_model import DALLE
from ....studio.dalle.pieces import Pieces
from ....studio.dalle.sampling import MEMORY_BUDGET, SampleOptions, images_at_once, steps
from ....weighting.reading.view import counted
from .. import markup
from ..components import Inputs, Tab, button, buttons, element_id, html, live, slider, textbox, whole
from ..model import (
    LabError,
    checked_number,
    checked_text,
    enlarged,
    explained,
    pixels_of,
    uploaded_picture,
    whole_number,
)

COUNT = 8
"""Default number of images at a time."""
MAX_COUNT = 16
"""Maximum number of images at a time."""
MAX_CHARACTERS = 2000
"""Maximum length of a caption."""
MAX_SEED = 2**53 - MAX_COUNT
"""Maximum seed: larger integers are not exact in a browser."""
MAX_TEMPERATURE, MIN_TOP_P = 2.0, 0.05
"""Ends of the sliders; the others are 0 and 1."""
GREY = 0.5
"""Red, green and blue of areas not drawn yet."""
PAUSE = 4.0
"""Minimum ratio of drawing time to the time taken by the last update of the page."""


@dataclass(frozen=True)
class Wish:
    """Request for images."""

    caption: str
    text: Tensor
    """``[T]``, pieces of the caption for the prior."""
    seeds: list[int]
    """Seeds of the images."""
    options: SampleOptions
    given: Tensor
    """``[k]``, tokens at the beginning of all images."""
    note: str
    """Note on the preparation of the picture they come from."""


class TextToImageLab(Tab):
    """The tab. A clock in seconds limits updates of the page."""

    title, name = "Text to image", "tab_drawing"

    def __init__(self, dalle: DALLE, clock: Callable[[], float] = time.perf_counter) -> None:
        self.dalle = dalle
        self._clock = clock

    def build(self, page: Inputs) -> None:
        """As in `Tab`."""
        job, options, rows = gr.State({"is_cancelled": False}), SampleOptions(), self.dalle.prior.config.rows
        html("dalle", "What draws", self.about)
        caption = textbox("caption", "Caption", max_lines=6, placeholder="Such as: a small red ring at the top")
        pieces = html("pieces", "Pieces of the caption", self.pieces(""))
        with gr.Row():
            with gr.Column():
                with gr.Row():
                    count = slider("count", "Images", "How many", (1, MAX_COUNT, 1), COUNT)
                    temperature = slider(
                        "temperature",
                        "Temperature",
                        "0: the likeliest token",
                        (0, MAX_TEMPERATURE, 0.05),
                        options.temperature,
                    )
                with gr.Row():
                    top_k = whole("top_k", "Top-k", 0, info="Likeliest tokens; 0: all")
                    top_p = slider("top_p", "Top-p", "Likeliest share; 1: all", (MIN_TOP_P, 1, 0.05), options.top_p)
                seed = whole("seed", "Seed", 0, info="Of the first image; those after it count on")
                with gr.Accordion("Complete a picture", open=False, elem_id=element_id("completion")):
                    picture = gr.Image(
                        label="Picture whose top is kept", height=260, elem_id=element_id("kept_picture")
                    )
                    kept = slider(
                        "kept_rows", "Rows kept", "Of tokens, from the top of the picture", (0, rows, 1), rows // 2
                    )
                with gr.Row():
                    start = button("draw", "Draw", variant="primary")
                    stop = button("draw_cancel", "Cancel", interactive=False)
            with gr.Column():
                progress = html("draw_progress", "Progress of the drawing")
                drawn = html("drawn", "Images")

        def begin(state: dict[str, Any]) -> tuple[Any, ...]:
            return *buttons(is_running=True), self.begin(state)

        def draw(*values: Any) -> Iterator[tuple[Any, ...]]:
            *others, given, kept = values
            try:
                values = (*others, uploaded_picture(given), kept)
            except LabError as error:
                yield *buttons(is_running=False), markup.refused(error), gr.update()
                return
            for is_running, told, images in self.draw(*values):
                yield *buttons(is_running=is_running), told, gr.update() if images is None else images

        def cancel(state: dict[str, Any]) -> Any:  # shows no line, which might come after the drawing's own last one
            self.cancel(state)
            return gr.update(interactive=False)

        live(caption.change, {"fn": self.pieces, "inputs": [caption], "outputs": [pieces]})
        # others may be drawing
        begun = start.click(begin, inputs=[job], outputs=[start, stop, progress], queue=False, show_progress="hidden")
        begun.then(
            draw,
            inputs=[job, caption, count, temperature, top_k, top_p, seed, picture, kept],
            outputs=[start, stop, progress, drawn],
            show_progress="hidden",
            preprocess=False,
        )
        live(stop.click, {"fn": cancel, "inputs": [job], "outputs": [stop]})

    @property
    def about(self) -> str:
        """Line that names the model."""
        (height, width), prior, f = self.dalle.size, self.dalle.prior.config, self.dalle.dvae.config.downsampling
        line = (
            f"A DALL·E for images of {width} x {height} pixels: {prior.rows} x {prior.columns} tokens of {f} x {f} "
            f"pixels, each of {prior.image_vocab_size:,} kinds. It reads captions of up to {prior.text_length} pieces."
        )
        return markup.note(line)

    def pieces(self, caption: str) -> str:
        """Pieces of each word of a caption."""
        try:
            words = words_in_pieces(self.dalle.pieces, self._caption(caption))
        except Exception as error:  # the page is the only place where the user can see it
            return markup.message(explained(error))
        count, most = sum(map(len, words)), self.dalle.prior.config.text_length
        told = f"{count} of at most {counted(most, 'piece')}" if words else "No pieces: the caption is empty."
        return markup.words(words) + markup.message(told, is_problem=count > most)

    def begin(self, job: dict[str, Any]) -> str:
        """Line for the page before `draw`, which may have to wait for other users."""
        job["is_cancelled"] = False
        return markup.progress(0, "waiting for its turn")

    def draw(self, job: dict[str, Any], *values: Any) -> Iterator[tuple[bool, str, str | None]]:
        """Draw images of a caption, until `cancel` sets ``is_cancelled`` in this user's job.

        Yields whether more follows, the progress, and the images so far, or None if they are unchanged. Updates come
        after tokens, but rarely enough that most of the time is spent drawing; images are updated after a row of them.
        """
        if job["is_cancelled"]:
            yield False, markup.progress(0, "cancelled before it began"), None
            return
        yield True, markup.progress(0, "reading"), ""
        try:
            yield from self._drawn(job, self._wish(*values))
        except Exception as error:  # as above
            yield False, markup.refused(explained(error)), None

    def cancel(self, job: dict[str, Any]) -> None:
        """Stop drawing after the current token."""
        job["is_cancelled"] = True

    def _drawn(self, job: dict[str, Any], wish: Wish) -> Iterator[tuple[bool, str, str | None]]:
        """Implementation of `draw`."""
        prior, count = self.dalle.prior, len(wish.seeds)
        length, columns = prior.config.num_image_tokens, prior.config.columns
        together = images_at_once(prior, MEMORY_BUDGET)
        images = _pictures(self.dalle, torch.zeros(1, 0)) * count
        ended, took = self._clock(), 0.0
        for first in range(0, count, together):
            num_shown = -columns  # so that the first token is shown
            for tokens in steps(prior, wish.text, wish.seeds[first : first + together], wish.options, wish.given):
                drawn, last = tokens.shape[1], first + len(tokens)
                where = f"images {first + 1} to {last}" if len(tokens) > 1 else f"image {last}"
                told = f"token {drawn} of {length}, {where} of {count}"
                share = (first * length + len(tokens) * drawn) / (count * length)
                if drawn == length or self._clock() - ended >= PAUSE * took:
                    began, sheet = self._clock(), None
                    if drawn == length or drawn - num_shown >= columns:
                        images[first:last] = _pictures(self.dalle, tokens)
                        sheet, num_shown = _sheet(wish, images), drawn // columns * columns
                    yield True, markup.progress(share, told), sheet
                    ended = self._clock()
                    took = ended - began  # including the time to update the page
                if job["is_cancelled"]:
                    images[first:last] = _pictures(self.dalle, tokens)
                    yield False, markup.progress(share, f"cancelled after {told}"), _sheet(wish, images)
                    return
        yield False, markup.progress(1, f"done: {counted(count, 'image')}"), None

    def _wish(
        self,
        caption: str,
        count: float,
        temperature: float,
        top_k: float,
        top_p: float,
        seed: float,
        picture: Image.Image | None,
        rows: float,
    ) -> Wish:
        """Request made from the page's components; raises if it cannot be drawn."""
        prior, (height, width) = self.dalle.prior.config, self.dalle.size
        text = self.dalle.text(self._caption(caption))
        first = whole_number("Seed", seed, 0, MAX_SEED)
        seeds = list(range(first, first + whole_number("Images", count, 1, MAX_COUNT)))
        options = SampleOptions(
            checked_number("Temperature", temperature, 0, MAX_TEMPERATURE),
            whole_number("Top-k", top_k, 0, prior.image_vocab_size),
            checked_number("Top-p", top_p, MIN_TOP_P, 1),
        )
        given, note = torch.zeros(0, dtype=torch.long), ""
        if picture is not None:
            kept = whole_number("Rows kept", rows, 0, prior.rows)
            fitting = ImageOps.fit(picture.convert("RGB"), (width, height), Image.Resampling.LANCZOS)
            given = self.dalle.prefix(pixels_of(fitting), kept)
            note = f"The top {kept} of {prior.rows} rows of tokens are the picture's."
            if picture.size != fitting.size:
                note += f" It was scaled, and cut at both ends, to {width} x {height} pixels."
        return Wish(caption, text, seeds, options, given, note)

    def _caption(self, caption: str) -> str:
        if len(checked_text("Caption", caption)) > MAX_CHARACTERS:
            raise LabError(
                f"the caption {quote(caption, 60)} has {len(caption):,} characters, at most {MAX_CHARACTERS:,} are read"
            )
        return caption


def words_in_pieces(pieces: Pieces, text: str) -> list[list[str]]:
    r"""Words of a text, each as its pieces; parts of a character are written as bytes.

    >>> words_in_pieces(Pieces([("e", "d</w>")]), "Red é")
    [['r', 'ed'], ['\\xc3', '\\xa9']]
    """
    words: list[list[str]] = [[]]
    for piece in pieces(text):
        symbol = pieces.symbol(piece)
        words[-1].append(bytes_of(symbol).decode(errors="backslashreplace"))
        if symbol.endswith(END_OF_WORD):
            words.append([])
    return words[:-1]


def _pictures(dalle: DALLE, tokens: Tensor) -> list[Image.Image]:
    """Images of their first tokens, ``[n, k]``, grey where there are none yet."""
    (rows, columns), f = dalle.prior.config.grid, dalle.dvae.config.downsampling
    count, drawn = tokens.shape
    images = torch.full((count, 3, rows * f, columns * f), GREY)
    begun = -(-drawn // columns)
    if begun:
        some = tokens[:, -1:].repeat(1, begun * columns).cpu()
        some[:, :drawn] = tokens
        images[:, :, : begun * f] = dalle.images(some.unflatten(1, (begun, columns))).float()
        left = drawn - (begun - 1) * columns
        images[:, :, (begun - 1) * f : begun * f, left * f :] = GREY
    return [enlarged(image) for image in images]


def _sheet(wish: Wish, images: list[Image.Image]) -> str:
    """All images, with notes about them."""
    shown = [
        (f"{wish.caption:.200}, image {index}", f"seed {seed}", image)
        for index, (seed, image) in enumerate(zip(wish.seeds, images, strict=True), 1)
    ]
    return markup.note(wish.note) + markup.photos(shown, is_sheet=True)
