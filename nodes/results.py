"""Results of the ComfyUI nodes: outputs, a report in words, and for the front end the views of what was read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from ..hosts.comfy import Encoded
from ..hosts.comfy_timed import TimedEncoded, TimedRun
from ..hosts.comfy_timing import Timing
from ..weighting.encode import EncodedPrompt, ReadPrompt
from ..weighting.prompt import Issue
from ..weighting.schedule import TimedPrompt
from ..weighting.view import counted, placed, token_table, view

if TYPE_CHECKING:
    from PIL import Image


def encoded_result(encoded: Encoded, issues: Sequence[Issue] = ()) -> dict[str, Any]:
    """Result of a node that encodes one prompt, or one for each tower: conditioning and report.

    Args:
        encoded: What became of it.
        issues: What the user should know besides.

    Returns:
        ComfyUI's result.
    """
    first, *others = _reads(encoded)
    reads = [first._replace(issues=(*issues, *first.issues)), *others]
    lines = [*map(token_table, reads), *_encoding_lines(encoded)]
    return node_result((encoded.conditioning, "\n".join(lines)), reads)


def node_result(result: tuple[Any, ...], reads: Sequence[ReadPrompt]) -> dict[str, Any]:
    """Outputs of a node, with the views and problems of its prompts for the front end."""
    return _result(result, [view(read) for read in reads])


def timed_result(prompt: TimedPrompt, encoded: TimedEncoded, timing: Timing) -> dict[str, Any]:
    """Result of a node that encodes a timed prompt: conditioning and report.

    Args:
        prompt: As it was read.
        encoded: What became of it.
        timing: When its steps are.

    Returns:
        ComfyUI's result. Each text has a view of its own in places of the whole prompt, with ``branch`` and ``weight``
        (those of AND) and ``steps`` (first and last of each run, counted from 1). A problem stands in one view only.
    """
    runs_of: dict[tuple[int, str], list[TimedRun]] = {}
    for timed in encoded.runs:
        runs_of.setdefault((timed.branch, timed.run.fragment.text), []).append(timed)
    is_timed = len(encoded.runs) > len(prompt.branches)
    known = [*prompt.issues, *(timing.issues if is_timed else ())]
    lines = [timing.note] if is_timed else []
    views: list[dict[str, Any]] = []
    for (branch, text), group in runs_of.items():
        weight = prompt.branches[branch].weight
        steps = [[timed.run.first + 1, timed.run.end] for timed in group]
        (read,) = (placed(read, prompt.source, group[0].run.fragment) for read in _reads(group[0].encoded))
        new = [*([] if views else known), *(issue for issue in read.issues if issue not in known)]
        known += new
        read = read._replace(issues=tuple(sorted(new, key=lambda issue: issue.span)))
        views.append({**view(read), "branch": branch, "weight": weight, "steps": steps})
        if len(runs_of) > 1:
            lines.append(_heading(text, steps, weight if len(prompt.branches) > 1 else None))
        lines += [token_table(read), *_encoding_lines(group[0].encoded)]
    return _result((encoded.conditioning, "\n".join(lines)), views)


def _result(result: tuple[Any, ...], views: list[dict[str, Any]]) -> dict[str, Any]:
    problems = [issue["message"] for one in views for issue in one["issues"]]
    return {"ui": {"weighted_clip": views, "text": problems}, "result": result}


def _reads(encoded: Encoded) -> list[ReadPrompt]:
    """What was read, towers of the same text as one, with the problems of all of them."""
    reads: dict[str, ReadPrompt] = {}
    for prompt in encoded.prompts.values():
        read = reads.setdefault(prompt.read.prompt.source, prompt.read)
        issues = tuple(dict.fromkeys([*read.issues, *prompt.read.issues]))
        reads[read.prompt.source] = read._replace(issues=issues)
    return list(reads.values())


def _heading(text: str, steps: Sequence[Sequence[int]], weight: float | None) -> str:
    """Which text stands when, and its weight between ANDs."""
    times = ", ".join(f"{first}" if first == last else f"{first} to {last}" for first, last in steps)
    return f"steps {times}{'' if weight is None else f', AND weight {weight:g}'}: “{text}”"


def _encoding_lines(encoded: Encoded) -> list[str]:
    """How each tower encoded, and what was left to the host."""
    lines = [_encoding_line(name, prompt) for name, prompt in encoded.prompts.items()]
    if encoded.left_to_host:
        lines.append(f"encoded by ComfyUI itself, without our weights: {', '.join(encoded.left_to_host)}")
    return lines


def _encoding_line(name: str, prompt: EncodedPrompt) -> str:
    rows, dim = prompt.hidden.shape[1:]
    chunks = counted(prompt.num_encodings, "chunk")
    return f"{name}: {prompt.read.options.scheme}, {chunks} encoded -> {rows} rows of {dim}"


def to_image(picture: Image.Image) -> Tensor:
    """A Pillow picture as ComfyUI's IMAGE: ``[1, height, width, 3]``, float32, 0 to 1."""
    return torch.from_numpy(np.asarray(picture.convert("RGB"), dtype=np.float32) / 255.0).unsqueeze(0)
