"""The page's tabs about images: their components, and the handlers these call."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gradio as gr
from PIL import Image

from ...dalle.sampling import SampleOptions
from . import markup
from .components import buttons, element_id, html, live
from .image_tokens import TokenLab
from .model import LabError
from .text_to_image import MAX_COUNT, TextToImageLab
from .values import opened_upload

TOKENS_TAB = "Image tokens"
DRAWING_TAB = "Text to image"
COUNT = 8
"""Default number of images to draw."""


def image_tokens_tab(lab: TokenLab) -> None:
    """Build the tab for images as tokens."""
    encoded = gr.State(None)
    html("dvae", "What encodes images", lab.title)
    with gr.Row():
        with gr.Column():
            picture = gr.Image(label="Picture", elem_id=element_id("picture"))
            make = gr.Button("Make tokens", variant="primary", elem_id=element_id("make_tokens"))
            with gr.Row():
                row = gr.Number(value=1, label="Row", precision=0, elem_id=element_id("token_row"))
                column = gr.Number(value=1, label="Column", precision=0, elem_id=element_id("token_column"))
                number = gr.Number(value=0, label="Swap for token", precision=0, elem_id=element_id("token_number"))
            swap = gr.Button("Swap", elem_id=element_id("swap_token"))
        grid = gr.Image(
            label="Grid of tokens: click one to swap it", interactive=False, elem_id=element_id("token_grid")
        )
    shown = html("token_change", "What the tokens decode to")

    def encode(given: Any) -> tuple[Any, ...]:
        try:
            return lab.encode(_picture(given))
        except LabError as error:
            return None, None, markup.message(str(error))

    def point(state: Any, token: Any, event: gr.SelectData = None) -> tuple[Any, Any, str]:  # type: ignore[assignment]
        return lab.point(state, token, (-1, -1) if event is None else event.index)

    asked = {"inputs": [picture], "outputs": [encoded, grid, shown], "preprocess": False}
    make.click(encode, **asked, show_progress="minimal")
    grid.select(point, inputs=[encoded, number], outputs=[row, column, shown], show_progress="minimal")
    swap.click(lab.swap, inputs=[encoded, row, column, number], outputs=[shown], show_progress="minimal")


def text_to_image_tab(lab: TextToImageLab) -> None:
    """Build the tab for images of a caption."""
    job, options, rows = gr.State({"is_cancelled": False}), SampleOptions(), lab.dalle.prior.config.rows
    html("dalle", "What draws", lab.title)
    caption = gr.Textbox(
        value="",
        label="Caption",
        lines=2,
        max_lines=6,
        placeholder="Such as: a small red ring at the top",
        elem_id=element_id("caption"),
    )
    pieces = html("pieces", "Pieces of the caption", lab.pieces(""))

    def slider(name: str, label: str, info: str, span: tuple[float, float, float], value: float) -> gr.Slider:
        first, last, step = span
        return gr.Slider(first, last, value=value, step=step, label=label, info=info, elem_id=element_id(name))

    def whole(name: str, label: str, info: str) -> gr.Number:
        return gr.Number(value=0, label=label, info=info, precision=0, elem_id=element_id(name))

    with gr.Row():
        with gr.Column():
            with gr.Row():
                count = slider("count", "Images", "How many", (1, MAX_COUNT, 1), COUNT)
                temperature = slider(
                    "temperature", "Temperature", "0: the likeliest token", (0, 2, 0.05), options.temperature
                )
            with gr.Row():
                top_k = whole("top_k", "Top-k", "Likeliest tokens; 0: all")
                top_p = slider("top_p", "Top-p", "Likeliest share; 1: all", (0.05, 1, 0.05), options.top_p)
            seed = whole("seed", "Seed", "Of the first image; those after it count on")
            with gr.Accordion("Complete a picture", open=False, elem_id=element_id("completion")):
                picture = gr.Image(label="Picture whose top is kept", height=260, elem_id=element_id("kept_picture"))
                kept = slider(
                    "kept_rows", "Rows kept", "Of tokens, from the top of the picture", (0, rows, 1), rows // 2
                )
            with gr.Row():
                start = gr.Button("Draw", variant="primary", elem_id=element_id("draw"))
                stop = gr.Button("Cancel", interactive=False, elem_id=element_id("draw_cancel"))
        with gr.Column():
            progress = html("draw_progress", "Progress of the drawing")
            drawn = html("drawn", "Images")

    def begin(state: dict[str, Any]) -> tuple[Any, ...]:
        return *buttons(is_running=True), lab.begin(state)

    def draw(*values: Any) -> Iterator[tuple[Any, ...]]:
        *others, given, kept = values
        try:
            values = (*others, _picture(given), kept)
        except LabError as error:
            yield *buttons(is_running=False), markup.message(str(error)), gr.update()
            return
        for is_running, told, images in lab.draw(*values):
            yield *buttons(is_running=is_running), told, gr.update() if images is None else images

    def cancel(state: dict[str, Any]) -> Any:  # shows no line, which might come after the drawing's own last one
        lab.cancel(state)
        return gr.update(interactive=False)

    live(caption.change, {"fn": lab.pieces, "inputs": [caption], "outputs": [pieces]})
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


def _picture(given: Any) -> Image.Image | None:
    """Picture that a component holds as a file, without gradio's preprocessing, which opens every format there is."""
    return None if given is None else opened_upload(Path(given["path"]))
