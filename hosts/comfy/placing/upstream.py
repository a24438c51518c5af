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
"""Maximum number of nodes behind one another in a request."""
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


class Source(NamedTuple):
    """A node that a link comes from."""

    type: str
    """Type of the link."""
    kind: str
    """Class of the node."""
    output: str
    """Name of the output."""
    values: Mapping[str, Any]
    """Values of its widgets, as far as they are known."""
    links: Mapping[str, Source | None]
    """Origins of its own links, by the names of its inputs; None for one that is not known."""
    served: Served | None = None
    """Weighted CLIP that its CLIP comes from, if it is not a node of ours."""


def source_of(data: object, depth: int = MAX_DEPTH) -> Source | None:
    """Read a node of a request.

    Raises:
        ValueError: If it is malformed, or too many nodes are behind one another.
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
    return Source(data["type"], data["node"], data["output"], values, sources, _served_of(data.get("served")))


def _served_of(data: object) -> Served | None:
    if data is None:
        return None
    values, texts = (data.get("values"), data.get("texts")) if isinstance(data, dict) else (None, None)
    if not isinstance(values, dict) or not isinstance(texts, list) or not all(isinstance(one, str) for one in texts):
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
    """Message about any phrase of it, if its rows are not those of words."""

    def has(self, phrase: str) -> bool:
        """Whether a phrase is in it, or may be."""
        return not self.is_whole or any(words.numbers_of(phrase) for words in self.words)


UNKNOWN = Prompts()


def prompts_before(source: Source | None, read: Callable[[Source], Prompts | None]) -> Prompts:
    """Prompts of a CONDITIONING.

    Args:
        source: The node it comes from.
        read: Function from a node of ours that encodes, or one that is served, to its prompts; None for any other node.
    """
    if source is None:
        return UNKNOWN
    own = read(source)
    if own is not None:
        # what another pack's node adds to its prompts is not known
        is_known = source.served is None or source.kind in _STOCK_ENCODERS
        return own if is_known else own._replace(is_whole=False)
    if source.kind in _STOCK_ENCODERS:
        return Prompts(refusal=lambda phrase: FOREIGN)
    if source.kind not in _PASSING and source.kind not in _CHANGING:
        return UNKNOWN
    links = {name: link for name, link in source.links.items() if link is None or link.type == source.type}
    if source.output in links:  # as positive and negative of ControlNetApplyAdvanced
        links = {source.output: links[source.output]}
    found = _joined([prompts_before(link, read) for link in links.values()])
    if source.kind in _CHANGING:
        is_same = source.kind == "ConditioningAverage" and source.values.get("conditioning_to_strength") == 1
        return found if is_same else found._replace(refusal=found.refusal or changed)
    if addition := _PASSING[source.kind]:
        found = found._replace(additions=found.additions | {addition})
    if addition == "region":
        base = prompts_before(links.get("base"), read)
        found = found._replace(num_entries=base.num_entries, num_regions=base.num_regions + 1, refusal=base.refusal)
    if addition in (_AREA, "strength"):
        strength = source.values.get("strength")
        found = found._replace(strength=float(strength) if isinstance(strength, (int, float)) else 1.0)
    return found


def _joined(prompts: Iterable[Prompts]) -> Prompts:
    found = tuple(prompts)
    return Prompts(
        tuple(words for one in found for words in one.words),
        bool(found) and all(one.is_whole for one in found),
        sum(one.num_entries for one in found),
        frozenset().union(*(one.additions for one in found)),
        next((one.strength for one in found if one.strength != 1.0), 1.0),
        max((one.num_regions for one in found), default=0),
        next((one.refusal for one in found if one.refusal), None),
    )


def blended(phrase: str) -> str:
    """Message about a phrase of a blend of prompts."""
    return without_rows(phrase, BLEND)


def mask_before(source: Source | None) -> Tensor | None:
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
        about = path.stat()
        return _painted_mask(path, about.st_mtime_ns, about.st_size)
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
    shown = torch.frombuffer(bytearray(alpha.tobytes()), dtype=torch.uint8).view(1, alpha.height, alpha.width)
    mask = 1.0 - shown.float() / 255.0
    return torch.nn.functional.adaptive_max_pool2d(mask, (min(CELLS, alpha.height), min(CELLS, alpha.width)))
