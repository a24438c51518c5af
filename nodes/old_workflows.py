"""Nodes that take the place of other packs' in saved workflows, where those packs are not installed.

Their inputs and menus have the other nodes' names, as ComfyUI copies values as they are. What has no equivalent here is
refused in words.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from ..encoder.quoting import quote
from ..hosts.comfy.clip.clip import EitherClip, encode_text, towers_of
from ..hosts.comfy.old_nodes import OldNode, balanced
from ..hosts.comfy.titles import WEIGHTED_PROMPT
from ..hosts.comfy.weighted_clip.live_tokenizers import as_by_host
from ..weighting.normalization import NORMALIZATIONS
from ..weighting.options import EncodeOptions
from ..weighting.text.problems import Problem, refuse
from ..weighting.text.prompt import shortened
from ..weighting.timed.schedule import read_timed
from .base.node import CATEGORY, NODES, EncodeNode, checked, inputs, make_input, number, prompt_input
from .base.node_state import NodeState
from .base.results import encoded_result
from .encode import TextNode

INTERPRETATIONS = {
    "comfy": "comfy",
    "A1111": "a1111_global_norm",
    "compel": "adv_compel",
    "comfy++": "comfy++",
    "down_weight": "down_weight",
}
"""Our schemes by ADV_CLIP_emb's names."""
TOLD = {
    "token_normalization": make_input(NORMALIZATIONS, "How weights are normalized, as in ADV_CLIP_emb.", counts=True),
    "weight_interpretation": make_input(INTERPRETATIONS, "What a weight does, as in ADV_CLIP_emb.", counts=True),
}
"""Menus of ADV_CLIP_emb."""


class OldNodes(EncodeNode):
    """Base of nodes in the place of another pack's; ComfyUI does not offer them for new workflows."""

    CATEGORY = f"{CATEGORY}/old workflows"
    DEPRECATED = True
    replaces: str
    """Id of the other node."""
    widgets: tuple[str, ...]
    """Its widgets, in the order in which workflows store their values."""

    reads_as = staticmethod(as_by_host)
    """Reading of prompts for T5, Qwen and others."""


class WeightedCLIPAdvEncode(OldNodes, TextNode):
    """Replaces CLIP Text Encode (Advanced) of ADV_CLIP_emb in an old workflow, and gives the same rows. In new
    workflows use Weighted Prompt.
    """

    title = "ADV_CLIP_emb Prompt"
    aliases = "BNK_CLIPTextEncodeAdvanced, advanced clip text encode, old workflow"
    replaces = "BNK_CLIPTextEncodeAdvanced"
    widgets = ("text", *TOLD)
    required = {**inputs("clip", "text"), **TOLD}

    @staticmethod
    def options(token_normalization: str, weight_interpretation: str, **_: Any) -> EncodeOptions:
        """Options from the menus."""
        interpretation = checked("weight_interpretation", weight_interpretation, INTERPRETATIONS)
        return EncodeOptions(scheme=INTERPRETATIONS[interpretation], normalization=token_normalization)


class WeightedCLIPAdvEncodeSDXL(OldNodes):
    """Replaces CLIP Text Encode SDXL (Advanced) of ADV_CLIP_emb in an old workflow, and gives the same rows. In new
    workflows use Weighted Prompt (SDXL).
    """

    title = "ADV_CLIP_emb Prompt (SDXL)"
    aliases = "BNK_CLIPTextEncodeSDXLAdvanced, advanced clip text encode sdxl, old workflow"
    replaces = "BNK_CLIPTextEncodeSDXLAdvanced"
    widgets = ("text_l", "text_g", *TOLD, "balance")
    required = {
        "text_l": prompt_input("The prompt for CLIP-L."),
        "text_g": prompt_input("The prompt for CLIP-G."),
        **inputs("clip"),
        **TOLD,
        "balance": make_input(
            "FLOAT",
            "0.5: both encoders count in full. Towards 0, CLIP-G's rows fade; towards 1, CLIP-L's.",
            **number(0.5, 0.0, 1.0, 0.01),
        ),
    }
    options = staticmethod(WeightedCLIPAdvEncode.options)

    def encode(self, clip: EitherClip, text_l: str, text_g: str, balance: float, **choices: Any) -> dict[str, Any]:
        """Encode a text for each tower; ``choices`` are the menus."""
        if set(towers := towers_of(clip)) != {"clip_l", "clip_g"}:
            raise ValueError(f"This CLIP holds {' and '.join(towers)}: it is not SDXL's. Use {WEIGHTED_PROMPT} here.")
        if not 0 <= balance <= 1:
            raise ValueError(f"balance must be from 0 to 1, got {balance}")
        encoded = encode_text(clip, {"clip_l": text_l, "clip_g": text_g}, self.options(**choices))
        return encoded_result(encoded._replace(conditioning=balanced(encoded, balance)))


class SmzParser(NamedTuple):
    """Our equal of one of smZNodes' parsers."""

    reading: dict[str, Any]
    """Options for reading."""
    scheme: str
    scheme_without_mean: str
    changes: bool = True
    """Whether it reads prompts that change with the steps."""


PARSERS: dict[str, SmzParser | None] = {
    "comfy": SmzParser({"syntax": "comfy"}, "comfy", "comfy", changes=False),
    "comfy++": SmzParser({"syntax": "comfy"}, "a1111", "a1111_no_norm", changes=False),
    "A1111": SmzParser({"syntax": "a1111"}, "a1111", "a1111_no_norm"),
    "full": None,
    "compel": SmzParser({"syntax": "compel", "chunking": "a1111"}, "a1111", "a1111_no_norm"),
    "fixed attention": SmzParser({"syntax": "none"}, "unweighted", "unweighted"),
}
"""Ours by smZNodes' names; None for one without an equal."""


class WeightedCLIPSmzEncode(OldNodes):
    """Replaces CLIP Text Encode++ of smZNodes in an old workflow, and gives the same rows. In new workflows use
    Weighted Prompt or A1111/Forge Prompt.
    """

    title = "smZNodes Prompt"
    aliases = "smZ CLIPTextEncode, clip text encode++, old workflow"
    replaces = "smZ CLIPTextEncode"
    widgets = (
        *("text", "parser", "mean_normalization", "multi_conditioning", "use_old_emphasis_implementation"),
        *("with_SDXL", "ascore", "width", "height", "crop_w", "crop_h", "target_width", "target_height"),
        *("text_g", "text_l", "smZ_steps"),
    )
    required = {
        **inputs("clip", "text"),
        "parser": make_input(PARSERS, "How the prompt is read. full has no equivalent here.", counts=True),
        "mean_normalization": make_input(
            "BOOLEAN", "Whether each chunk's mean is restored.", default=True, counts=True
        ),
        "use_old_emphasis_implementation": make_input(
            "BOOLEAN", "On has no equivalent here.", default=False, advanced=True
        ),
        "with_SDXL": make_input(
            "BOOLEAN", f"On has no equivalent here: use {WEIGHTED_PROMPT} (SDXL).", default=False, advanced=True
        ),
    }

    @staticmethod
    def options(parser: str, mean_normalization: bool, **_: Any) -> EncodeOptions:
        """Options from the inputs."""
        equal = PARSERS[checked("parser", parser, PARSERS)]
        if equal is None:
            return EncodeOptions()
        return EncodeOptions(**equal.reading, scheme=equal.scheme if mean_normalization else equal.scheme_without_mean)

    @classmethod
    def problems(cls, state: NodeState) -> Iterator[Problem]:
        """Inputs for which smZNodes gives what no node of ours gives."""
        values = state.values
        text = values.get("text", "")
        equal = PARSERS.get(str(values.get("parser")), PARSERS["comfy"])  # other names are refused by `options`
        if equal is None:
            name = quote(values["parser"])
            yield Problem(f"The parser {name} of smZNodes has no equivalent here: choose A1111.", "parser")
        if values.get("use_old_emphasis_implementation"):
            message = "The old emphasis implementation of smZNodes has no equivalent here: turn it off."
            yield Problem(message, "use_old_emphasis_implementation")
        if values.get("with_SDXL"):
            yield Problem(f"A text for each encoder of SDXL: use {WEIGHTED_PROMPT} (SDXL).", "with_SDXL")
        if isinstance(text, str) and (match := re.search(r"\bAND\b", text)):
            part = shortened(text[match.start() :])
            yield Problem(f"“{part}” would be a conditioning of its own: use A1111/Forge Prompt for it.", "text")
        elif isinstance(text, str) and equal is not None and equal.changes:
            texts = [timed_text.text for branch in read_timed(text, 20).branches for timed_text in branch.texts]
            if len(texts) > 1:
                changes = f"“{shortened(texts[0])}” becomes “{shortened(texts[1])}”"
                yield Problem(f"This prompt changes with the steps, {changes}: use A1111/Forge Prompt for it.", "text")

    def encode(self, clip: EitherClip, text: str, **choices: Any) -> dict[str, Any]:
        """Encode; ``choices`` are the other inputs."""
        refuse(self.problems(NodeState({"text": text, **choices})))
        return encoded_result(encode_text(clip, text, self.options(**choices)))


OLD_NODES = {
    node.replaces: OldNode(
        name,
        tuple(node.required),
        {key: spec[1]["default"] for key, spec in node.required.items() if "default" in spec[1]},
        node.widgets,
    )
    for name, node in NODES.items()
    if issubclass(node, OldNodes)
}
"""Our nodes by the id of the node of another pack that they stand for."""
