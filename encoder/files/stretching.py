"""A text tower's position table stretched to more positions, by the rule of Long-CLIP.

Long-CLIP keeps the first 20 rows of the table, which are well trained, turns each of the others into four by linear
interpolation, and extrapolates the last step after the last row. 77 positions become 248. The rule works for any factor
instead of four: ``k`` makes ``20 + 57 k`` positions.

Source: B. Zhang et al., "Long-CLIP: Unlocking the Long-Text Capability of CLIP", 2024, section 3.1, and
``load_from_clip`` in its program, revision 3966af9.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from ..models.config import MAX_POSITIONS
from ..models.text_model import TextModel
from ..quoting import quote
from .layouts import KEPT_POSITIONS, POSITION_NAME
from .tensor_file import CheckpointError, TensorFile

_OF_CHECKPOINTS = ("cond_stage_model.", "conditioner.", "text_encoders.")
"""Prefixes of the text towers in checkpoints, which hosts read with 77 positions only."""
_TABLE_AND_IDS = ("position_embedding.weight", "position_ids")
"""Suffixes of the keys of Hugging Face's table, and of its row numbers in older files."""
_TABLE_AND_COUNT = ("positional_embedding", "context_length")
"""Suffixes of the keys of OpenAI's table, and of its row count in the original release."""


def stretched(table: Tensor, num_positions: int) -> Tensor:
    """Stretch a position table to more rows.

    Args:
        table: ``[rows, dim]``, floating point, with more than 20 rows.
        num_positions: Rows of the result: ``20 + (rows - 20) * k``, for a whole number ``k`` from 2.

    Returns:
        ``[num_positions, dim]``, in the table's type. Every operation is rounded to that type, as in Long-CLIP's
        program; types of 8 bits, which PyTorch cannot compute with, are rounded once.

    Raises:
        ValueError: If the rule cannot make that number of rows.

    >>> stretched(torch.arange(22.0).unsqueeze(1), 24).squeeze(1)[18:]
    tensor([18.0000, 19.0000, 20.0000, 20.5000, 21.0000, 21.5000])
    """
    factor = _factor(len(table), num_positions)
    rows = table.float() if table.element_size() == 1 else table
    kept_rows, later_rows = rows[:KEPT_POSITIONS], rows[KEPT_POSITIONS:]
    parts = [later_rows]
    for part in range(1, factor):
        interpolated = (factor - part) * later_rows[:-1] / factor + part * later_rows[1:] / factor
        extrapolated = rows[-1:] + part * (rows[-1:] - rows[-2:-1]) / factor
        parts.append(torch.cat([interpolated, extrapolated]))
    return torch.cat([kept_rows, torch.stack(parts, dim=1).flatten(0, 1)]).to(table.dtype)


class StretchedFile(NamedTuple):
    """Changes to a file for a longer position table."""

    tower: str
    """ComfyUI's name for its text tower."""
    old_positions: int
    """Rows of the old table."""
    tensors: dict[str, Tensor]
    """Replacements of tensors of the file, by key, in their original types."""


def stretched_file(file: TensorFile, num_positions: int) -> StretchedFile:
    """Extend the positions of a file's text tower.

    Args:
        file: A text encoder or a whole CLIP.
        num_positions: As in `stretched`.

    Returns:
        Changes to the file.

    Raises:
        CheckpointError: If it is a checkpoint, holds several text towers, has rotary positions, or cannot be loaded.
        ValueError: If the rule cannot make that number of positions.
    """
    towers = file.towers()
    tower = towers[0]
    if tower.location.prefix.startswith(_OF_CHECKPOINTS):
        raise CheckpointError(
            f"this is a file of the layout “{tower.location.layout}”: hosts read checkpoints with 77 positions only. "
            "Give a text encoder or a whole CLIP; ComfyUI's node CLIPSave writes the text encoder of a checkpoint"
        )
    if len(towers) > 1:
        raise CheckpointError(
            f"it holds several text encoders ({', '.join(tower.name for tower in towers)}): give a file of one"
        )
    config = file.config(tower)
    if config.positions == "rotary":
        raise CheckpointError("it has rotary positions, of which there is no table to stretch")
    with torch.device("meta"):
        file.sources(tower, TextModel(config))  # reports problems with the others
    source = tower.source(POSITION_NAME, file.shapes)
    table = stretched(file.tensor(source), num_positions)
    if not bool(torch.isfinite(table.float()).all()):
        raise CheckpointError(
            f"key {quote(source.key, 200)} holds values so large that the stretched ones are beyond its type"
        )
    tensors = {key: table for key in (source.key, source.later_key) if key}
    tensors |= _following(file, source.key, num_positions)
    return StretchedFile(tower.name, config.context_length, tensors)


def _following(file: TensorFile, key: str, num_positions: int) -> dict[str, Tensor]:
    """Tensors that hold a position table's row numbers or count, by key; hosts that read them would refuse old ones."""
    rows = file.shapes[key][0]
    ids = key.removesuffix(_TABLE_AND_IDS[0]) + _TABLE_AND_IDS[1]
    if file.shapes.get(ids) in ((1, rows), (rows,)):
        old: Tensor = file.handle.get_tensor(ids)
        return {ids: torch.arange(num_positions).expand(*old.shape[:-1], -1).to(old.dtype)}
    count = key.removesuffix(_TABLE_AND_COUNT[0]) + _TABLE_AND_COUNT[1]
    if file.shapes.get(count) in ((), (1,)):
        return {count: torch.full_like(file.handle.get_tensor(count), num_positions)}
    return {}


def _factor(rows: int, num_positions: int) -> int:
    """Number of rows made from each row that is not kept."""
    num_later = rows - KEPT_POSITIONS
    if num_later < 1:
        raise ValueError(f"{rows} positions cannot be stretched: Long-CLIP's rule keeps the first {KEPT_POSITIONS}")
    factor, rest = divmod(num_positions - KEPT_POSITIONS, num_later)
    if factor < 2 or rest or num_positions > MAX_POSITIONS:
        possible = ", ".join(str(KEPT_POSITIONS + num_later * each) for each in (2, 3, 4, 5))
        raise ValueError(
            f"{num_positions} positions cannot be made of {rows}: Long-CLIP's rule keeps the first {KEPT_POSITIONS} "
            f"and makes the same number of each of the other {num_later}. Possible are {possible} and so on, up to "
            f"{MAX_POSITIONS:,}"
        )
    return factor
