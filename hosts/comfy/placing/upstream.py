"""Nodes before a node that is edited, as ComfyUI's page follows its links: the prompts and the mask of its run.

The page sends the nodes that it finds as they are (web/comfyui/ruler/sources.js). What their classes do with a
CONDITIONING is known here; of any other node nothing is concluded.

Source: behaviour of ComfyUI 0.29.0.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ....encoder.image_file import open_image
from ....encoder.quoting import quote
from ....weighting.phrases.words import Words
from ..attention.words import BLEND, FOREIGN, changed, without_rows
from ..contract import host

MAX_DEPTH = 32
"""Maximum length of a chain of nodes in a request."""
CELLS = 64
"""Cells along a side of a mask that is looked at, each with the largest value in it."""

_STOCK_ENCODERS = {
    *("CLIPTextEncode", "CLIPTextEncodeSDXL", "CLIPTextEncodeSDXLRefiner", "CLIPTextEncodeFlux", "CLIPTextEncodeSD3"),
    *("CLIPTextEncodeHiDream", "CLIPTextEncodeHunyuanDiT", "CLIPTextEncodeLumina2"),
}
"""Nodes of the host that encode a prompt, and do not say which rows are words."""
_CHANGING = {"ConditioningAverage", "ConditioningConcat", "ConditioningZeroOut"}
"""Nodes of the host that change rows."""
_AREA, _MASK, _CONTROL = "area", "mask", "control"
_PASSING: Mapping[str, str] = {
    "ConditioningCombine": "",
    "ConditioningSetArea": _AREA,
    "ConditioningSetAreaPercentage": _AREA,
    "ConditioningSetAreaPercentageVideo": _AREA,
    "ConditioningSetAreaStrength": "strength",
    "ConditioningSetMask": _MASK,
    "ConditioningSetTimestepRange": "times",
    "ControlNetApply": _CONTROL,
    "ControlNetApplyAdvanced": _CONTROL,
    "ControlNetApplySD3": _CONTROL,
    "FluxGuidance": "",
    "GLIGENTextBoxApply": "gligen",
    "WeightedCLIPPlace": "",
    "WeightedCLIPRegion": "region",
    "WeightedCLIPWatch": "",
}
"""Nodes that hand the rows of a CONDITIONING on, and what each adds to its entries."""


class Served(NamedTuple):
    """A Weighted CLIP by which a node reads its prompts."""

    values: Mapping[str, Any]
    """Values of the widgets of Weighted CLIP."""
    texts: tuple[str, ...]
    """Names of the node's prompt boxes."""


class UpstreamNode(NamedTuple):
    """A node that a link comes from."""

    type: str
    """Type of the link."""
    kind: str
    """Class of the node."""
    output: str
    """Name of the output."""
    values: Mapping[str, Any]
    """Values of its widgets, as far as they are known."""
    links: Mapping[str, UpstreamNode | None]
    """Origins of its own links, by the names of its inputs; None for one that is not known."""
    served: Served | None = None
    """Weighted CLIP that its CLIP comes from, if it is not a node of ours."""


def source_of(data: object, depth: int = MAX_DEPTH) -> UpstreamNode | None:
    """Read a node of a request.

    Raises:
        ValueError: If it is malformed, or a chain of nodes is too long.
    """
    if data is None:
        return None
    names = ("type", "node", "output")
    if not isinstance(data, dict) or not all(isinstance(data.get(name), str) for name in names):
        raise ValueError(f"a link must be null or an object with the strings {', '.join(names)}, got {quote(data)}")
    values, links = data.get("values", {}), data.get("links", {})
    if not isinstance(values, dict) or not isinstance(links, dict):
        raise ValueError(f"values and links of a link must be objects, got {quote([values, links])}")
    if not depth:
        raise ValueError(f"at most {MAX_DEPTH} nodes may be behind one another")
    sources = {name: source_of(link, depth - 1) for name, link in links.items()}
    return UpstreamNode(data["type"], data["node"], data["output"], values, sources, _served_of(data.get("served")))


def _served_of(data: object) -> Served | None:
    if data is None:
        return None
    values, texts = (data.get("values"), data.get("texts")) if isinstance(data, dict) else (None, None)
    if not isinstance(values, dict) or not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise ValueError(f"served must be an object with values, an object, and texts, strings, got {quote(data)}")
    return Served(values, tuple(texts))


class Prompts(NamedTuple):
    """Prompts of a CONDITIONING, as far as they are known before a run."""

    words: tuple[Words, ...] = ()
    """Words of each text."""
    is_whole: bool = False
    """Whether there is no other text."""
    num_entries: int = 0
    """Number of entries that are sampled at the same time."""
    additions: frozenset[str] = frozenset()
    """Values that nodes have added to its entries, by the keys there; and ``region``, ``times`` or ``strength``."""
    strength: float = 1.0
    """Strength of its entries."""
    num_regions: int = 0
    """Number of regions that it has."""
    refusal: Callable[[str], str] | None = None
    """Message about any phrase of it, if its rows do not belong to words."""

    def has(self, phrase: str) -> bool:
        """Whether a phrase is in it, or may be."""
        return not self.is_whole or any(words.numbers_of(phrase) for words in self.words)


UNKNOWN = Prompts()


def prompts_before(source: UpstreamNode | None, prompts_of: Callable[[UpstreamNode], Prompts | None]) -> Prompts:
    """Prompts of a CONDITIONING.

    Args:
        source: The node it comes from.
        prompts_of: Function from a node of ours that encodes, or a served one, to its prompts; None for any other.
    """
    if source is None:
        return UNKNOWN
    node_prompts = prompts_of(source)
    if node_prompts is not None:
        # what another pack's node adds to its prompts is not known
        is_known = source.served is None or source.kind in _STOCK_ENCODERS
        return node_prompts if is_known else node_prompts._replace(is_whole=False)
    if source.kind in _STOCK_ENCODERS:
        return Prompts(refusal=lambda phrase: FOREIGN)
    if source.kind not in _PASSING and source.kind not in _CHANGING:
        return UNKNOWN
    links = {name: link for name, link in source.links.items() if link is None or link.type == source.type}
    if source.output in links:  # as positive and negative of ControlNetApplyAdvanced
        links = {source.output: links[source.output]}
    joined = _joined([prompts_before(link, prompts_of) for link in links.values()])
    if source.kind in _CHANGING:
        is_same = source.kind == "ConditioningAverage" and source.values.get("conditioning_to_strength") == 1
        return joined if is_same else joined._replace(refusal=joined.refusal or changed)
    if addition := _PASSING[source.kind]:
        joined = joined._replace(additions=joined.additions | {addition})
    if addition == "region":
        base = prompts_before(links.get("base"), prompts_of)
        joined = joined._replace(num_entries=base.num_entries, num_regions=base.num_regions + 1, refusal=base.refusal)
    if addition in (_AREA, "strength"):
        strength = source.values.get("strength")
        joined = joined._replace(strength=float(strength) if isinstance(strength, (int, float)) else 1.0)
    return joined


def _joined(prompts: Iterable[Prompts]) -> Prompts:
    branches = tuple(prompts)
    return Prompts(
        tuple(words for branch in branches for words in branch.words),
        bool(branches) and all(branch.is_whole for branch in branches),
        sum(branch.num_entries for branch in branches),
        frozenset().union(*(branch.additions for branch in branches)),
        next((branch.strength for branch in branches if branch.strength != 1.0), 1.0),
        max((branch.num_regions for branch in branches), default=0),
        next((branch.refusal for branch in branches if branch.refusal), None),
    )


def blended(phrase: str) -> str:
    """Message about a phrase of a blend of prompts."""
    return without_rows(phrase, BLEND)


def mask_before(source: UpstreamNode | None) -> Tensor | None:
    """Mask that a node would give, made small: ``[1, rows, columns]``, float32; None if it is not known."""
    if source is None:
        return None
    if source.kind == "SolidMask":
        value = source.values.get("value")
        return torch.full((1, 1, 1), float(value)) if isinstance(value, (int, float)) else None
    name = source.values.get("image")
    if source.kind != "LoadImage" or source.output != "MASK" or not isinstance(name, str):
        return None
    folder = Path(host("folder_paths").get_input_directory()).resolve()
    try:
        path = (folder / name.removesuffix(" [input]")).resolve()
        if not path.is_relative_to(folder) or not path.is_file():
            return None
        stat = path.stat()
        return _painted_mask(path, stat.st_mtime_ns, stat.st_size)
    except (OSError, ValueError):  # also for a name with a zero byte
        return None


@lru_cache(maxsize=16)
def _painted_mask(path: Path, changed: int, size: int) -> Tensor | None:
    """The mask that Load Image makes of a picture's alpha channel, in cells; 0 everywhere without one."""
    del changed, size  # which tell states of the file apart
    image = open_image(path)
    if "transparency" in image.info and image.mode == "P":
        image = image.convert("RGBA")
    if "A" not in image.getbands():
        return torch.zeros(1, 1, 1)
    alpha = image.getchannel("A")
    opacity = torch.frombuffer(bytearray(alpha.tobytes()), dtype=torch.uint8).view(1, alpha.height, alpha.width)
    mask = 1.0 - opacity.float() / 255.0
    return torch.nn.functional.adaptive_max_pool2d(mask, (min(CELLS, alpha.height), min(CELLS, alpha.width)))
