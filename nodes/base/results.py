"""Results of the ComfyUI nodes: outputs, a report in words, and views of prompts for the front end."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from ...hosts.comfy.attention.attention import NOT_ACTING
from ...hosts.comfy.clip.clip import EncodedText
from ...hosts.comfy.clip.loras import HookedClip
from ...hosts.comfy.clip.timed_prompts import TimedEncoded, Timing
from ...hosts.comfy.contract import host
from ...hosts.comfy.placing.placed_view import placed_views
from ...hosts.comfy.types import Conditioning
from ...weighting.reading.prompt_reader import ReadPrompt
from ...weighting.reading.timed_view import (
    MAX_TEXTS,
    TimedRead,
    read_standing,
    standing_texts,
    timed_view,
    with_lora_times,
    without_issues,
)
from ...weighting.reading.view import bound_text, counted, encoded_text, encodings_text, token_table, view
from ...weighting.text.prompt import Issue
from ...weighting.timed.loras import LoraTimes
from ...weighting.timed.schedule import Counter, TimedPrompt, runs

if TYPE_CHECKING:
    from PIL import Image


def encoded_result(encoded: EncodedText, issues: Sequence[Issue] = ()) -> dict[str, Any]:
    """ComfyUI's result of a node that encodes one prompt, or one per tower: conditioning and report.

    Its ``texts`` are, for each given text, the part that was encoded.
    """
    first, *rest = _reads(encoded)
    reads = [first._replace(issues=(*issues, *first.issues)), *rest]
    lines = [line for parsed in reads for line in (_text_line(encoded_text(parsed)), token_table(parsed))]
    views = [{**view(parsed), "towers": _towers_of(parsed, encoded), **_of_run(parsed, encoded)} for parsed in reads]
    result = _result((encoded.conditioning, "\n".join([*lines, *_encoding_lines(encoded)])), views)
    return {**result, "texts": {parsed.prompt.source: encoded_text(parsed) for parsed in reads}}


NOTHING = torch.zeros(1, 1, 1, 3)
"""IMAGE of an output that is not connected."""


def masked_result(encoded: EncodedText, is_drawn: bool = True) -> dict[str, Any]:
    """Same as `encoded_result`, with a picture of the first tower's masks between conditioning and report."""
    picture = NOTHING
    if is_drawn:
        from ...web.pictures import draw_encoding_masks

        prompt = next(iter(encoded.prompts.values()))
        picture = to_image(draw_encoding_masks(prompt.read, prompt.variants()))
    result = encoded_result(encoded)
    conditioning, report = result["result"]
    return {**result, "result": (conditioning, picture, report)}


def node_result(result: tuple[Any, ...], reads: Sequence[ReadPrompt]) -> dict[str, Any]:
    """Outputs of a node, with the views and problems of its prompts for the front end."""
    return _result(result, [view(parsed) for parsed in reads])


def timed_loras_result(
    result: tuple[Any, ...],
    prompt: TimedPrompt,
    counter: Counter,
    read_text: Callable[[str], ReadPrompt],
    times: Sequence[LoraTimes],
    issues: Sequence[Issue],
    without: Sequence[str] = (),
) -> dict[str, Any]:
    """Outputs of a node that does not encode a timed prompt, with a view of each of its first texts.

    ``without`` has codes of issues that are left out, as the node does what they say is not done.
    """
    texts = standing_texts(prompt, prompt.steps, counter)[:MAX_TEXTS]
    reads = read_standing(prompt, texts, read_text, issues)
    views = [with_lora_times(without_issues(timed_view(timed), without), times) for timed in reads]
    return _result(result, views)


def shown_result(result: tuple[Any, ...], lines: Sequence[str]) -> dict[str, Any]:
    """Outputs of a node without a prompt, with lines for the front end."""
    return {"ui": {"text": list(lines)}, "result": result}


def placed_result(conditioning: Conditioning, report: str, node_id: str | None) -> dict[str, Any]:
    """ComfyUI's result of a node that places phrases or prompts: conditioning and report, and a view of each text."""
    views = placed_views(conditioning, node_id)
    return {"ui": {"weighted_clip": views, "text": report.splitlines()[:1]}, "result": (conditioning, report)}


def timed_result(
    prompt: TimedPrompt,
    encoded: TimedEncoded,
    timing: Timing,
    counter: Counter,
    times: Sequence[LoraTimes] = (),
    hooked: HookedClip | None = None,
    *,
    by_part: bool = False,
) -> dict[str, Any]:
    """ComfyUI's result of a node that encodes a timed prompt: conditioning, report, and a view of each text.

    ``times`` are its LoRAs' strengths over time, which the CLIP carries as hooks, that of each part if ``by_part``.
    ``texts`` are as in `encoded_result`.
    """
    is_timed = any(len(runs(branch, timing.steps, counter)) > 1 for branch in prompt.branches)
    is_timed = is_timed or any(lora.changes for lora in times)
    issues = [*(timing.issues if is_timed else ()), *(hooked.issues if hooked else ())]
    texts = standing_texts(prompt, timing.steps, counter)
    reads = read_standing(prompt, texts, lambda text: _reads(encoded.texts[text])[0], issues)
    whole = encoded_text(reads[0].read, is_timed=True)
    lines = [_text_line(whole), *([timing.note] if is_timed else []), *(hooked.lines if hooked else [])]
    for timed in reads:
        if len(reads) > 1:
            lines.append(_heading(timed, has_weight=len(prompt.branches) > 1))
        lines += [token_table(timed.read), *_encoding_lines(encoded.texts[timed.text])]
    views = [
        {
            **with_lora_times(timed_view(timed), times, by_part=by_part),
            **_of_run(timed.read, encoded.texts[timed.text]),
        }
        for timed in reads
    ]
    return {**_result((encoded.conditioning, "\n".join(lines)), views), "texts": {prompt.source: whole}}


def _text_line(text: str) -> str:
    """The prompt as it was encoded, for a report."""
    return f"prompt as encoded: “{text}”"


def _result(result: tuple[Any, ...], views: list[dict[str, Any]]) -> dict[str, Any]:
    problems = [issue["message"] for prompt_view in views for issue in prompt_view["issues"]]
    return {"ui": {"weighted_clip": views, "text": problems}, "result": result}


def merged_reads(prompts: Iterable[ReadPrompt]) -> list[ReadPrompt]:
    """Merge the prompts that several towers read from the same text, including their problems."""
    reads: dict[str, ReadPrompt] = {}
    for parsed in prompts:
        merged = reads.setdefault(parsed.prompt.source, parsed)
        issues = tuple(dict.fromkeys([*merged.issues, *parsed.issues]))
        reads[parsed.prompt.source] = merged._replace(issues=issues)
    return list(reads.values())


def _reads(encoded: EncodedText) -> list[ReadPrompt]:
    return merged_reads(prompt.read for prompt in encoded.prompts.values())


def _of_run(parsed: ReadPrompt, encoded: EncodedText) -> dict[str, Any]:
    """Additions of a run to the view of a text: encodings, parts left to the host, and further notes."""
    # a timed text is in positions of the whole prompt
    tower = next(iter(_towers_of(parsed, encoded) or encoded.prompts))
    encodings = encodings_text(encoded.prompts[tower].num_encodings, len(parsed.chunks))
    notes = [encoded.note] if encoded.note else []
    left = list(encoded.left_to_host)
    return {"encodings": encodings, "left_to_host": left, "notes": notes, "encoder": encoded.tokenizer}


def _towers_of(parsed: ReadPrompt, encoded: EncodedText) -> list[str]:
    """Towers that read this text."""
    return [name for name, prompt in encoded.prompts.items() if prompt.read.prompt.source == parsed.prompt.source]


def _heading(timed: TimedRead, *, has_weight: bool) -> str:
    """Steps of a text, and its weight between ANDs, or that COUPLE joins it."""
    is_coupled = timed.place is not None and timed.place.is_coupled
    joint = ", COUPLE" if is_coupled else f", {timed.joint} weight {timed.weight:g}" if has_weight else ""
    times = ", ".join(f"{first}" if first == last else f"{first} to {last}" for first, last in timed.steps)
    shares = [share for first, last in timed.steps for share in timed.shares[first - 1 : last]]
    mixed = f", share {shares[0]:.3g} to {shares[-1]:.3g}" if shares else ""
    gliding = f", in {counted(len(timed.versions), 'version')} or more" if timed.versions else ""
    return f"steps {times}{joint}{mixed}{gliding}: “{timed.text}”"


def _encoding_lines(encoded: EncodedText) -> list[str]:
    """Encoding by each tower, and parts left to the host."""
    lines: list[str] = []
    for name, prompt in encoded.prompts.items():
        rows, dim = prompt.hidden.shape[1:]
        count = counted(prompt.num_encodings, "encoding")
        summary = ", ".join(filter(None, (prompt.read.options.scheme, bound_text(prompt.read), count)))
        lines.append(f"{name}: {summary} -> {rows} rows of {dim}")
        if encoded.how_computed.get(name):
            lines.append(f"{name}: {encoded.how_computed[name]}")
    if encoded.left_to_host:
        lines.append(f"encoded by ComfyUI itself, without our weights: {', '.join(encoded.left_to_host)}")
    if encoded.note:
        lines.append(encoded.note)
    if any(prompt.signs for prompt in encoded.prompts.values()):
        lines.append(f"words of weights below 0 are taken away in the attention; {NOT_ACTING}")
    return lines


def with_preview(result: dict[str, Any], picture: Image.Image) -> dict[str, Any]:
    """A node's result with a picture shown on the node, as by the stock Preview Image."""
    return {**result, "ui": {**result["ui"], "images": [saved_preview(picture)]}}


def saved_preview(picture: Image.Image) -> dict[str, str]:
    """Write a temporary file of the host; how its page asks for it."""
    folder = Path(host("folder_paths").get_temp_directory())
    folder.mkdir(parents=True, exist_ok=True)
    with ExitStack() as on_error:
        with tempfile.NamedTemporaryFile(prefix="weighted-clip-", suffix=".png", dir=folder, delete=False) as file:
            on_error.callback(Path(file.name).unlink)
            picture.save(file, "PNG")
        on_error.pop_all()
    return {"filename": Path(file.name).name, "subfolder": "", "type": "temp"}


def to_image(picture: Image.Image) -> Tensor:
    """Convert a Pillow picture to ComfyUI's IMAGE: ``[1, height, width, 3]``, float32, 0 to 1."""
    return torch.from_numpy(np.asarray(picture.convert("RGB"), dtype=np.float32) / 255.0).unsqueeze(0)


def to_picture(image: Tensor) -> Image.Image:
    """Convert one of ComfyUI's IMAGE, ``[height, width, channels]``, 0 to 1, to a Pillow picture."""
    from PIL import Image

    pixels = image[..., :3].float().clamp(0, 1).mul(255).round().byte().cpu().expand(-1, -1, 3)
    return Image.fromarray(pixels.numpy())
