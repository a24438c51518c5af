"""The tabs of the page that are about images: their components and which handler each of them calls."""

from __future__ import annotations

from typing import Any

import gradio as gr

from .components import element_id, html
from .image_tokens import TokenLab

TOKENS_TAB = "Image tokens"


def image_tokens_tab(lab: TokenLab) -> None:
    """The tab for images as tokens."""
    encoded = gr.State(None)
    html("dvae", "What encodes images", lab.title)
    with gr.Row():
        with gr.Column():
            picture = gr.Image(type="pil", label="Picture", elem_id=element_id("picture"))
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

    def point(state: Any, token: Any, event: gr.SelectData = None) -> tuple[Any, Any, str]:  # type: ignore[assignment]
        return lab.point(state, token, (-1, -1) if event is None else event.index)

    make.click(lab.encode, inputs=[picture], outputs=[encoded, grid, shown], show_progress="minimal")
    grid.select(point, inputs=[encoded, number], outputs=[row, column, shown], show_progress="minimal")
    swap.click(lab.swap, inputs=[encoded, row, column, number], outputs=[shown], show_progress="minimal")
