"""The lab's tab for images as tokens: a picture, the grid of its tokens, their decoding, and the effect of each token.

Values of the page's components in, new values out, as in ``handlers.py``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import gradio as gr
from PIL import Image
from torch import Tensor

from ....studio.dalle.dvae import DVAE, cropped
from ....studio.dalle.tokens import Swap, swapped
from ...pictures import draw_token_grid
from ...pictures.token_grid import cell_at
from .. import markup
from ..components import Inputs, Tab, button, element_id, html, whole
from ..model import LabError, enlarged, explained, picture_of, pixels_of, uploaded_picture, whole_number

MAX_SIDE = 256
"""Maximum length of a picture's longer side, in pixels; larger ones are reduced. DALL·E's own pictures have this
size."""


@dataclass(frozen=True)
class Encoded:
    """An encoded picture."""

    picture: Image.Image
    """The picture, its sides multiples of a token's."""
    tokens: Tensor
    """``[1, rows, columns]``."""
    decoded: Tensor
    """``[1, 3, h, w]``, 0 to 1, float32."""


class TokenLab(Tab):
    """The tab."""

    title, name = "Image tokens", "tab_image"

    def __init__(self, dvae: DVAE) -> None:
        self._dvae = dvae

    def build(self, page: Inputs) -> None:
        """As in `Tab`."""
        encoded = gr.State(None)
        html("dvae", "What encodes images", self.about)
        with gr.Row():
            with gr.Column():
                picture = gr.Image(label="Picture", elem_id=element_id("picture"))
                make = button("make_tokens", "Make tokens", variant="primary")
                with gr.Row():
                    row = whole("token_row", "Row")
                    column = whole("token_column", "Column")
                    number = whole("token_number", "Swap for token", 0)
                swap = button("swap_token", "Swap")
            grid = gr.Image(
                label="Grid of tokens: click one to swap it", interactive=False, elem_id=element_id("token_grid")
            )
        shown = html("token_change", "What the tokens decode to")

        def encode(given: Any) -> tuple[Any, ...]:
            try:
                return self.encode(uploaded_picture(given))
            except LabError as error:
                return None, None, markup.refused(error)

        def point(state: Any, token: Any, event: gr.SelectData = None) -> tuple[Any, Any, str]:  # type: ignore[assignment]
            return self.point(state, token, (-1, -1) if event is None else event.index)

        asked = {"inputs": [picture], "outputs": [encoded, grid, shown], "preprocess": False}
        make.click(encode, **asked, show_progress="minimal")
        grid.select(point, inputs=[encoded, number], outputs=[row, column, shown], show_progress="minimal")
        swap.click(self.swap, inputs=[encoded, row, column, number], outputs=[shown], show_progress="minimal")

    @property
    def about(self) -> str:
        """Line that names the encoder."""
        config = self._dvae.config
        line = f"A dVAE with {config.vocab_size:,} tokens of {config.downsampling} x {config.downsampling} pixels."
        return markup.note(line)

    def encode(self, picture: Image.Image | None) -> tuple[Encoded | None, Image.Image | None, str]:
        """Encode a picture and decode its tokens: state for the other handlers, the grid, and figures."""
        if picture is None:
            return None, None, markup.refused("Choose a picture first.")
        try:
            encoded, notes = _encoded(self._dvae, picture)
            grid = draw_token_grid(encoded.picture, encoded.tokens[0].tolist())
        except Exception as error:  # the page is the only place where the user can see it
            return None, None, markup.refused(explained(error))
        rows, columns = encoded.tokens.shape[1:]
        count = len(encoded.tokens.unique())
        told = f"{rows} x {columns} tokens, {count} of them different.{notes} Click one in the grid to swap it."
        shown = markup.photos([_figure("reconstruction", "What the tokens decode to.", encoded.decoded)])
        return encoded, grid, shown + markup.note(told)

    def point(self, encoded: Encoded | None, number: float | None, place: Any) -> tuple[Any, Any, str]:
        """Effect of the token at a pixel ``(x, y)`` of the grid's picture: its row and column, and figures."""
        if encoded is None:
            return None, None, markup.refused("Make tokens of a picture first.")
        found = cell_at(*place, *encoded.tokens.shape[1:])
        if found is None:
            return None, None, markup.refused("That is beside the grid: click a token.")
        return *found, self.swap(encoded, *found, number)

    def swap(self, encoded: Encoded | None, row: float | None, column: float | None, number: float | None) -> str:
        """Effect of swapping a token, as figures: with the original, the swapped, and their difference."""
        if encoded is None:
            return markup.refused("Make tokens of a picture first.")
        rows, columns = encoded.tokens.shape[1:]
        try:
            down, along = whole_number("Row", row, 1, rows), whole_number("Column", column, 1, columns)
            token = whole_number("Swap for token", number, 0, self._dvae.config.vocab_size - 1)
            ids, notes = swapped(encoded.tokens, [Swap((down, down), (along, along), token)])
            decoded = self._dvae.images(ids).float().cpu()
            grid = draw_token_grid(encoded.picture, ids[0].tolist(), marked=[(down, along)])
        except Exception as error:  # as above
            return markup.refused(explained(error))
        change = (decoded - encoded.decoded).abs().amax(1, keepdim=True)
        largest = float(change.max())
        told = "Nothing changes." if not largest else _reach(change[0, 0], largest)
        figures = [
            _figure("reconstruction", "What the tokens decode to.", encoded.decoded),
            _figure("swapped", f"After the swap. {notes[0]}.", decoded),
            _figure("difference", told, (change / (largest or 1)).expand(-1, 3, -1, -1)),
            ("grid", "The grid after the swap, the token framed.", grid),
        ]
        return markup.photos(figures)


def _encoded(dvae: DVAE, picture: Image.Image) -> tuple[Encoded, str]:
    """Encode a picture; also returns how it was prepared, as a sentence or nothing."""
    small = picture.convert("RGB")
    small.thumbnail((MAX_SIDE, MAX_SIDE), Image.Resampling.LANCZOS)
    notes = "" if small.size == picture.size else f" It was made smaller, {small.width} x {small.height} pixels."
    pixels = pixels_of(small)[None]
    inner = cropped(pixels, dvae.config.downsampling)
    if inner.shape != pixels.shape:
        notes += f" Cut at both ends to {inner.shape[3]} x {inner.shape[2]} pixels."
    ids = dvae.tokens(inner)
    return Encoded(picture_of(inner[0]), ids, dvae.images(ids).float().cpu()), notes


def _reach(change: Tensor, largest: float) -> str:
    """Extent and size of a swap's change of the picture; ``change`` is ``[h, w]``."""
    rows, columns = (change > 0.01).nonzero(as_tuple=True)
    told = f"Bright: changed most, by up to {100 * largest:.0f} % of the whole range."
    if not len(rows):
        return told
    height, width = (int(one.max() - one.min()) + 1 for one in (rows, columns))
    return f"{told} Pixels that change by more than 1 % lie within {width} x {height}."


def _figure(title: str, caption: str, pixels: Tensor) -> tuple[str, str, Image.Image]:
    """Figure of the first of ``[b, 3, h, w]``."""
    return title, caption, enlarged(pixels[0])
