"""Layout of the encoder's picture: the stream on the left, the masks on the right.

Source: docs/lecture.md Figure 2.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from .architecture import Block
from .style import MARGIN

WIDTH = 1180
STREAM = 360
"""Centre of the stream."""
BOX_WIDTH = 400
SIDE = 960
"""Centre of the mask's column."""
SIDE_WIDTH = 330
BOX_HEIGHT = 44
PART_HEIGHT = 66
"""Height of the boxes Q, K and V: three lines."""
SIGN_HEIGHT = 28
STEP = 36
"""Distance between boxes: room for an arrow and a shape."""
SKIP = 96
"""Position of the residual connections."""
FRAME_LEFT, FRAME_RIGHT = 56, 690
MINI = 6
"""Positions in the small masks: BOS, three tokens, EOS, PAD."""
MINI_CELL = 17


class Box(NamedTuple):
    """A position, in pixels from the picture's top left corner; right and bottom are exclusive."""

    left: float
    top: float
    right: float
    bottom: float

    @property
    def x(self) -> float:
        """Horizontal centre."""
        return (self.left + self.right) / 2

    @property
    def y(self) -> float:
        """Vertical centre."""
        return (self.top + self.bottom) / 2


def lay_out(blocks: Sequence[Block]) -> dict[str, Box]:
    """Box for each key of the blocks, and ``frame`` for the border of the repeated layer.

    Except for the frame, no two of them touch.
    """
    boxes: dict[str, Box] = {}
    y = MARGIN + 64.0

    def centred(key: str, width: float = BOX_WIDTH, height: float = BOX_HEIGHT, x: float = STREAM) -> None:
        boxes[key] = Box(x - width / 2, y, x + width / 2, y + height)

    def stack(*keys: str, width: float = BOX_WIDTH, x: float = STREAM) -> None:
        nonlocal y
        for key in keys:
            is_sign = key.startswith("residual") or key == "embedding_sum"
            size = (SIGN_HEIGHT, SIGN_HEIGHT) if is_sign else (width, BOX_HEIGHT)
            centred(key, *size, x=x)
            y = boxes[key].bottom + STEP

    stack("token_ids")
    if any(block.key == "position_embedding" for block in blocks):
        centred("token_embedding")
        centred("position_embedding", 210, x=STREAM + BOX_WIDTH / 2 + 20 + 105)
        y += BOX_HEIGHT + STEP - 6
        stack("embedding_sum")
    else:
        stack("token_embedding")
    frame_top = y
    y += 64
    stack("norm_1")
    third = (BOX_WIDTH - 2 * 14) / 3
    for number, key in enumerate(("value", "query", "key")):
        centred(key, third, PART_HEIGHT, x=STREAM + (number - 1) * (third + 14))
    y += PART_HEIGHT + STEP
    right_part = 2 * third + 14
    stack("scores", "softmax", width=right_part, x=STREAM + BOX_WIDTH / 2 - right_part / 2)
    stack("mix", "attention_out", "residual_1", "norm_2", "mlp_in", "activation", "mlp_out", "residual_2")
    boxes["frame"] = Box(FRAME_LEFT, frame_top, FRAME_RIGHT, y - STEP + 32)
    y += 32
    stack("final_norm", "hidden")

    grid = MINI * MINI_CELL
    top = boxes["softmax"].y - 28 - grid
    boxes["mask_product"] = Box(SIDE - grid / 2, top, SIDE + grid / 2, top + grid)
    top -= grid + 92
    boxes["causal_mask"] = Box(SIDE - grid - 28, top, SIDE - 28, top + grid)
    boxes["padding_mask"] = Box(SIDE + 28, top, SIDE + 28 + grid, top + grid)
    # the path of the pooled vector ends beside the hidden states, however many boxes it has
    keys = [b.key for b in blocks if b.key in ("first_eos", "pooled", "text_projection", "projected")]
    y = boxes["hidden"].top
    stack(*keys, width=SIDE_WIDTH, x=SIDE)
    return boxes
