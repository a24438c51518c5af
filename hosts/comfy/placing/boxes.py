"""Boxes of ComfyUI's nodes, such as Create Bounding Boxes, as areas of a picture: rectangles in its pixels.

Source: behaviour of ComfyUI 0.29.0, type ``BOUNDING_BOX``: an object, a list of objects, or a list with one such list
for each frame.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from ....encoder.quoting import quote
from ....weighting.placing.areas import Area, Extent, area_mask
from ....weighting.text.problems import Problem, refused
from .upstream import Source

MAX_BOXES = 100
SIDES = ("x", "y", "width", "height")
CANVAS, BOX = "CreateBoundingBoxes", "PrimitiveBoundingBox"
"""Nodes of the host that draw boxes, and that make one of numbers."""


def read_boxes(boxes: Any) -> tuple[Area, ...]:
    """Read the boxes of a picture.

    Args:
        boxes: A BOUNDING_BOX of the host; None if none is connected.

    Returns:
        An area in pixels for each; their union is the place.

    Raises:
        ValueError: If there is no box, or one is not understood, is empty or reaches out of the picture to the left or
            at the top; the message quotes it.
    """
    if boxes is None:
        return ()
    frame: Any = [boxes] if isinstance(boxes, Mapping) else boxes
    if isinstance(frame, (list, tuple)) and frame and all(isinstance(one, (list, tuple)) for one in frame):
        if len(frame) > 1:
            raise ValueError(f"boxes are those of {len(frame)} frames: give the boxes of one picture, or a mask.")
        frame = next(iter(frame))
    if not isinstance(frame, (list, tuple)):
        raise ValueError(
            f"boxes must be boxes with {', '.join(SIDES)}, as of Create Bounding Boxes; got {quote(boxes)}."
        )
    if not 0 < len(frame) <= MAX_BOXES:
        raise ValueError(f"boxes must be 1 to {MAX_BOXES}, got {len(frame)}: draw the place.")
    return tuple(map(_area_of, frame))


def _area_of(box: Any) -> Area:
    """A box as an area."""
    values: list[Any] = [box.get(name) for name in SIDES] if isinstance(box, Mapping) else []
    if not values or not all(type(one) in (int, float) and math.isfinite(one) for one in values):
        raise ValueError(f"A box has the numbers {', '.join(SIDES)}, in pixels; got {quote(box)}.")
    x, y, width, height = map(float, values)
    if min(x, y) < 0 or not (width > 0 and height > 0):
        sizes = f"{x:g}, {y:g} with width {width:g} and height {height:g}"
        raise ValueError(f"The box at {sizes} is no place in the picture: it begins at 0 or more, and has a size.")
    text = f"box {x:g} {x + width:g}, {y:g} {y + height:g}"
    return Area(Extent(x, x + width, is_pixels=True), Extent(y, y + height, is_pixels=True), text=text)


def box_problems(source: Source | None, size: tuple[int, int] | None) -> Iterator[Problem]:
    """Problems of boxes before a run, by the node that they come from, and height and width of the picture if known."""
    values = source.values if source else {}
    if source and source.kind == BOX and all(name in values for name in SIDES):
        found = list(refused("boxes", read_boxes, {name: values[name] for name in SIDES}))
        yield from found
        if size is not None and not found:
            yield from refused("boxes", area_mask, read_boxes(dict(values))[0], (1, 1), size)
    if source and source.kind == CANVAS and size is not None and all(name in values for name in SIDES[2:]):
        width, height = (values[name] for name in SIDES[2:])
        if (height, width) != size:
            canvas, picture = f"{quote(width)} x {quote(height)}", f"{size[1]} x {size[0]}"
            message = f"Boxes are drawn on a canvas of {canvas} pixels, but the picture is {picture}: make it the same."
            yield Problem(message, "boxes", is_refused=False)
