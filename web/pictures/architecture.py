"""The CLIP text encoder as a list of blocks with weights and output shapes, and as a picture: the stream and the mask.

Source: docs/lecture.md Figure 2, Definitions 5.1 to 5.10; biases as in the released checkpoints.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Literal, NamedTuple

from PIL import Image

from ...encoder.config import TextConfig
from .canvas import Canvas, shorten
from .masks import draw_cells
from .style import MARGIN, SMALL_SIZE, Color, Theme, ThemeName, mix, readable, theme_named

ACTIVATIONS = {"quick_gelu": ("QuickGELU", "x · σ(1.702 x)"), "gelu": ("GELU", "x · Φ(x)")}
"""Name and formula of each activation."""


@dataclass(frozen=True)
class Block:
    """One box of the picture."""

    key: str
    """Permanent name, e.g. ``mlp_in``."""
    title: str
    """Its title."""
    detail: str = ""
    """Its function in a few words."""
    shape: tuple[int, ...] = ()
    """Shape of its output."""
    num_parameters: int = 0
    """Trainable numbers in one copy of it."""
    copies: int = 1
    """Number of copies: every layer has its own."""
    in_layer: bool = False
    """Whether it is part of the repeated layer."""
    kind: Literal["module", "operation", "tensor"] = "module"
    """``module`` has weights or is a step of the encoder, ``operation`` is a sign, ``tensor`` an input or output."""


def architecture_blocks(config: TextConfig, *, batch: int = 1) -> list[Block]:
    """All sub-layers of a text encoder in the order of computation."""
    if batch < 1:
        raise ValueError(f"batch must be at least 1 chunk, got {batch}")
    length, dim = config.context_length, config.hidden_dim
    ids, hidden = (batch, length), (batch, length, dim)
    mask = (1, length, length)
    blocks = [
        Block("token_ids", "token ids", "BOS, tokens, EOS, PAD", ids, kind="tensor"),
        Block("token_embedding", "token embedding", f"{config.vocab_size} × {dim}", hidden, config.vocab_size * dim),
        *_position_blocks(config, hidden),
        Block("causal_mask", "causal mask", "", mask, kind="tensor"),
        Block("padding_mask", "PAD mask", "", (batch, 1, length), kind="tensor"),
        Block("mask_product", "mask of the attention", "", (batch, length, length), kind="tensor"),
        *_layer_blocks(config, batch),
        Block("final_norm", "final LayerNorm", _norm_detail(config), hidden, 2 * dim),
        Block("hidden", "hidden states", "for the U-Net's cross-attention", hidden, kind="tensor"),
        Block("first_eos", "state at the first EOS", "", (batch, dim)),
        Block("pooled", "pooled", "", (batch, dim), kind="tensor"),
    ]
    if config.projection_dim is not None:
        width = config.projection_dim
        blocks += [
            Block("text_projection", "text projection", f"{dim} → {width}", (batch, width), dim * width),
            Block("projected", "projected", "", (batch, width), kind="tensor"),
        ]
    return blocks


def num_parameters(blocks: Sequence[Block]) -> int:
    """Trainable numbers in all blocks, including copies."""
    return sum(block.num_parameters * block.copies for block in blocks)


def count_text(count: int) -> str:
    """Format a number of parameters with three digits.

    >>> [count_text(count) for count in (1536, 2362368, 123060480, 999)]
    ['1.54 K', '2.36 M', '123 M', '999']
    """
    for unit, size in (("G", 10**9), ("M", 10**6), ("K", 10**3)):
        if count >= size:
            value = count / size
            return f"{value:.{2 if value < 9.995 else 1 if value < 99.95 else 0}f} {unit}"
    return str(count)


def _position_blocks(config: TextConfig, hidden: tuple[int, ...]) -> list[Block]:
    """A learned table added to the tokens; empty for rotary positions."""
    if config.positions == "rotary":
        return []
    length, dim = config.context_length, config.hidden_dim
    return [
        Block("position_embedding", "position embedding", f"{length} × {dim}", (length, dim), length * dim),
        Block("embedding_sum", "+", "", hidden, kind="operation"),
    ]


def _layer_blocks(config: TextConfig, batch: int) -> list[Block]:
    length, dim, heads, mlp = config.context_length, config.hidden_dim, config.num_heads, config.mlp_dim
    hidden = (batch, length, dim)
    split, square = (batch, heads, length, config.head_dim), (batch, heads, length, length)
    linear = dim * dim + dim
    turned = ", rotary" if config.positions == "rotary" else ""
    blocks = [
        Block("norm_1", "LayerNorm", _norm_detail(config), hidden, 2 * dim),
        Block("value", "V", f"{dim} → {dim}", split, linear),
        Block("query", "Q", f"{dim} → {dim}{turned}", split, linear),
        Block("key", "K", f"{dim} → {dim}{turned}", split, linear),
        Block("scores", f"Q Kᵀ / √{config.head_dim}", f"{heads} heads", square),
        Block("softmax", "masked softmax", "", square),
        Block("mix", "times V, heads joined", "", hidden),
        Block("attention_out", "output projection", f"{dim} → {dim}", hidden, linear),
        Block("residual_1", "+", "", hidden, kind="operation"),
        Block("norm_2", "LayerNorm", _norm_detail(config), hidden, 2 * dim),
        Block("mlp_in", "linear", f"{dim} → {mlp}", (batch, length, mlp), dim * mlp + mlp),
        Block("activation", *ACTIVATIONS[config.activation], (batch, length, mlp)),
        Block("mlp_out", "linear", f"{mlp} → {dim}", hidden, mlp * dim + dim),
        Block("residual_2", "+", "", hidden, kind="operation"),
    ]
    return [replace(block, copies=config.num_layers, in_layer=True) for block in blocks]


def _norm_detail(config: TextConfig) -> str:
    return f"ε = {config.layer_norm_eps:g}"


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


TINY = 13.0


def draw_architecture(config: TextConfig, *, batch: int = 1, theme: ThemeName = "light") -> Image.Image:
    """Draw a CLIP text encoder with all its sub-layers, tensor shapes and numbers of parameters.

    Args:
        config: Sizes of the encoder.
        batch: Chunks encoded together.
        theme: ``light`` or ``dark``.

    Returns:
        The picture, RGB.

    Raises:
        ValueError: If ``batch`` is below 1 or the theme unknown.
    """
    colors = theme_named(theme)
    blocks = architecture_blocks(config, batch=batch)
    boxes = lay_out(blocks)
    by_key = {block.key: block for block in blocks}
    canvas = Canvas(WIDTH, max(box.bottom for box in boxes.values()) + MARGIN + 14, colors.background)
    _draw_heading(canvas, config, blocks, colors)
    _draw_frame(canvas, config, blocks, boxes["frame"], colors)
    _draw_stream(canvas, by_key, boxes, colors)
    _draw_masks(canvas, by_key, boxes, colors)
    _draw_pooled(canvas, by_key, boxes, colors)
    _draw_legend(canvas, boxes["frame"], colors)
    for block in blocks:
        if not block.key.endswith(("_mask", "mask_product")):
            _draw_block(canvas, block, boxes[block.key], colors)
    return canvas.image()


def _draw_heading(canvas: Canvas, config: TextConfig, blocks: Sequence[Block], colors: Theme) -> None:
    canvas.text(MARGIN, MARGIN + 12, "CLIP text encoder", colors.text, size=22, bold=True)
    sizes = f"{config.num_layers} layers, width {config.hidden_dim}, {config.num_heads} heads of {config.head_dim}"
    text = f"{sizes}, {count_text(num_parameters(blocks))} parameters"
    canvas.text(MARGIN, MARGIN + 40, text, colors.muted, size=15)


def _draw_frame(canvas: Canvas, config: TextConfig, blocks: Sequence[Block], frame: Box, colors: Theme) -> None:
    fill = mix(colors.background, colors.surface, 0.45)
    canvas.box(*frame, fill=fill, outline=colors.line, radius=14, line_width=1.5)
    each = sum(block.num_parameters for block in blocks if block.in_layer)
    left = frame.left + 18
    left += canvas.text(left, frame.top + 22, f"{config.num_layers} × encoder layer", colors.text, size=16, bold=True)
    canvas.text(frame.right - 18, frame.top + 22, f"{count_text(each)} each", colors.muted, size=TINY, align="right")


def _draw_stream(canvas: Canvas, blocks: Mapping[str, Block], boxes: Mapping[str, Box], colors: Theme) -> None:
    """Draw arrows and shapes of the main stream and its residual connections."""
    has_table = "position_embedding" in boxes
    before = f"token_ids token_embedding {'embedding_sum ' if has_table else ''}norm_1"
    after = "mix attention_out residual_1 norm_2 mlp_in activation mlp_out residual_2 final_norm hidden"
    attention = (("query", "scores"), ("key", "scores"), ("value", "mix"), ("scores", "softmax"), ("softmax", "mix"))
    for upper, lower in (*pairwise(before.split()), *attention, *pairwise(after.split())):
        _down(canvas, boxes[upper], boxes[lower], colors)
        _shape(canvas, blocks[upper], boxes[upper].x, boxes[upper].bottom, colors)
    if has_table:
        position, total = boxes["position_embedding"], boxes["embedding_sum"]
        canvas.arrow([(position.x, position.bottom), (position.x, total.y), (total.right, total.y)], colors.muted)
        _shape(canvas, blocks["position_embedding"], position.x, position.bottom, colors)

    fork = boxes["norm_1"].bottom + 12
    canvas.line([(STREAM, boxes["norm_1"].bottom), (STREAM, fork)], colors.muted)
    for key in ("value", "query", "key"):
        canvas.arrow([(STREAM, fork), (boxes[key].x, fork), (boxes[key].x, boxes[key].top)], colors.muted)
    _shape(canvas, blocks["norm_1"], boxes["key"].x, fork - 8, colors)

    for key, first in (("residual_1", "norm_1"), ("residual_2", "norm_2")):
        start, end = boxes[first].top - 14, boxes[key]
        canvas.arrow([(STREAM, start), (SKIP, start), (SKIP, end.y), (end.left, end.y)], colors.muted)
        canvas.dot(STREAM, start, 3, colors.muted)
        canvas.upright_text(SKIP - 12, (start + end.y) / 2, "residual", colors.muted, size=TINY, align="center")


def _draw_masks(canvas: Canvas, blocks: Mapping[str, Block], boxes: Mapping[str, Box], colors: Theme) -> None:
    """Draw the two masks, their product, and its path into the attention."""
    causal = [[key <= query for key in range(MINI)] for query in range(MINI)]
    padding = [[key < MINI - 1 for key in range(MINI)] for _ in range(MINI)]
    product = [[a and b for a, b in zip(*rows, strict=True)] for rows in zip(causal, padding, strict=True)]
    ids, pad, softmax = boxes["token_ids"], boxes["padding_mask"], boxes["softmax"]
    canvas.arrow([(ids.right, ids.y), (pad.x, ids.y), (pad.x, pad.top - 56)], colors.accent)
    for key, rows in (("causal_mask", causal), ("padding_mask", padding), ("mask_product", product)):
        box, block = boxes[key], blocks[key]
        draw_cells(canvas, rows, box.left, box.top, MINI_CELL, colors)
        canvas.text(box.x, box.top - 34, block.title, colors.text, size=15, bold=True, align="center")
        canvas.text(box.x, box.top - 14, str(list(block.shape)), colors.muted, size=TINY, align="center")
    canvas.text(SIDE, pad.y, "×", colors.text, size=24, align="center")
    result = boxes["mask_product"]
    canvas.text(SIDE, (pad.bottom + result.top - 44) / 2, "=", colors.text, size=24, align="center")
    way = [(result.x, result.bottom + 4), (result.x, softmax.y), (softmax.right, softmax.y)]
    canvas.arrow(way, colors.accent, width=2)


def _draw_pooled(canvas: Canvas, blocks: Mapping[str, Block], boxes: Mapping[str, Box], colors: Theme) -> None:
    """Draw the path from the hidden states to the pooled and the projected vector."""
    hidden, first = boxes["hidden"], boxes["first_eos"]
    canvas.arrow([(hidden.right, hidden.y), (first.left, first.y)], colors.muted)
    keys = [key for key in ("first_eos", "pooled", "text_projection", "projected") if key in boxes]
    for upper, lower in pairwise(keys):
        _down(canvas, boxes[upper], boxes[lower], colors)


def _draw_legend(canvas: Canvas, frame: Box, colors: Theme) -> None:
    """Draw the legend of colours, in the free space beside the layer."""
    y = frame.bottom - 5 * 28
    left = SIDE - SIDE_WIDTH / 2
    for text, fill in _fills(colors).items():
        canvas.box(left, y - 8, left + 26, y + 8, fill=fill, outline=mix(fill, colors.text, 0.25), radius=4)
        canvas.text(left + 38, y, text, colors.muted, size=TINY)
        y += 28
    canvas.arrow([(left, y), (left + 26, y)], colors.accent, width=2)
    canvas.text(left + 38, y, "the way of the masks", colors.muted, size=TINY)


def _draw_block(canvas: Canvas, block: Block, box: Box, colors: Theme) -> None:
    if block.kind == "operation":
        canvas.dot(box.x, box.y, SIGN_HEIGHT / 2, colors.background, outline=colors.muted)
        canvas.line([(box.x - 6, box.y), (box.x + 6, box.y)], colors.text, width=2)
        canvas.line([(box.x, box.y - 6), (box.x, box.y + 6)], colors.text, width=2)
        return
    fill, radius = _fill(block, colors), (box.bottom - box.top) / 2 if block.kind == "tensor" else 8
    canvas.box(*box, fill=fill, outline=mix(fill, colors.text, 0.25), radius=radius)
    strong, muted = readable(fill, colors.text), readable(fill, colors.muted, colors.text)
    count = count_text(block.num_parameters) if block.num_parameters else ""
    width = box.right - box.left - 16
    if block.kind == "tensor" or width < 240:  # title above details, all centred
        title = f"{block.title}  {list(block.shape)}" if block.kind == "tensor" else block.title
        details = [text for text in (block.detail, count) if text]
        if details and box.bottom - box.top < PART_HEIGHT:
            details = [", ".join(details)]
        lines = [title, *details]
        for number, line in enumerate(lines):
            y = box.y + (number - (len(lines) - 1) / 2) * 18
            size, bold = (15.0, True) if number == 0 else (SMALL_SIZE, False)
            line = shorten(line, width, size, bold=bold)
            canvas.text(box.x, y, line, muted if number else strong, size=size, bold=bold, align="center")
        return
    left = box.left + 26 + canvas.text(box.left + 14, box.y, block.title, strong, size=15, bold=True)
    right = box.right - 26 - canvas.text(box.right - 14, box.y, count, muted, size=TINY, align="right")
    canvas.text(left, box.y, shorten(block.detail, right - left, TINY) if block.detail else "", muted, size=TINY)


def _fills(colors: Theme) -> dict[str, Color]:
    """Colours of blocks by meaning."""
    return {
        "tensors": mix(colors.background, colors.accent, 0.28),
        "LayerNorm": mix(colors.background, colors.up, 0.26),
        "embeddings and linear layers": mix(colors.background, colors.down, 0.3),
        "steps without weights": colors.surface,
    }


def _fill(block: Block, colors: Theme) -> Color:
    tensor, norm, weights, plain = _fills(colors).values()
    if block.kind == "tensor":
        return tensor
    return norm if "norm" in block.key else weights if block.num_parameters else plain


def _down(canvas: Canvas, upper: Box, lower: Box, colors: Theme) -> None:
    canvas.arrow([(upper.x, upper.bottom), (upper.x, lower.top)], colors.muted)


def _shape(canvas: Canvas, block: Block, x: float, top: float, colors: Theme) -> None:
    """Draw the shape of a block's output, to the right of its arrow."""
    canvas.text(x + 9, top + 13, str(list(block.shape)), colors.muted, size=SMALL_SIZE)
