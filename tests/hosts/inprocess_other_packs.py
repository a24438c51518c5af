"""Checks of other packs' encode nodes on a Weighted CLIP: at its defaults as on the host's, with a scheme ours or said.

Run by test_comfyui_inprocess.py in ComfyUI's own Python; see inprocess.py.
"""

# pyright: reportMissingImports=false

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any, NamedTuple
from unittest.mock import patch

import pack_nodes
import torch
from inprocess import CLOSE, TEXTS, apart, compares, difference, main, make_clip, ours, pack_module, rows, stock
from inprocess_traces import changed, traces
from pack_nodes import BOTH, OWN_RULE, OWN_SYNTAX, PackNode

TEXT = "a (red:1.3) cat ((on a)) (mat:0.4), [oil] painting"
"""A prompt in A1111's syntax."""
IN_COMFYUI = "a (red:1.3) cat (on a:1.2100000000000002) (mat:0.4), (oil:0.9090909090909091) painting"
"""The same words and weights in ComfyUI's syntax."""
EACH_BEHIND_EACH = (0, 1, 0, 2, 0, 3, 1, 2, 1, 3, 2, 3, 0)
"""An order of four things in which each comes right behind each other."""
SCHEMES = ({"syntax": "a1111", "scheme": "masked_blend"}, {"syntax": "a1111", "scheme": "a1111"})


def served(clip: Any, lines: list[str] | None = None, **choices: Any) -> Any:
    """The CLIP that Weighted CLIP makes; what it tells is added to the lines."""
    said = [] if lines is None else lines
    settings = pack_module("hosts.comfy.weighted_clip.settings").ClipSettings
    options = pack_module("weighting.options").EncodeOptions
    scheme = {"choice": choices.pop("scheme")} if "scheme" in choices else {}
    make = pack_module("hosts.comfy.weighted_clip.wrapped_clip").weighted_clip
    return make(clip, settings(options(**choices), **scheme), lambda report: said.extend(report.lines))


def rows_of(conditioning: Any) -> Any:
    """Rows and pooled vectors of a conditioning; those of a node that gives none are nothing."""
    return [
        [rows, {"pooled_output": pooled} if (pooled := values.get("pooled_output")) is not None else {}]
        for rows, values in conditioning
    ]


def alike(found: Any, expected: Any) -> float:
    """Difference of rows, and of pooled vectors if both have them."""
    found, expected = rows_of(found), rows_of(expected)
    if not all(values for _, values in [*found, *expected]):
        found, expected = ([[rows, {}] for rows, _ in some] for some in (found, expected))
    return difference(found, expected)


# ---- how a node encodes


@contextmanager
def watched(events: list[str]) -> Iterator[None]:
    """Note what a node calls of the host's CLIPs itself."""
    import comfy.sd
    from comfy.sd1_clip import SDClipModel

    depth = 0
    tokenized: list[Any] = []

    def plain(chunks: Any) -> Any:
        return [
            [tuple(id(part) if isinstance(part, torch.Tensor) else part for part in one[:2]) for one in chunk]
            for chunk in chunks
        ]

    def noting(name: str, function: Any) -> Any:
        @wraps(function)
        def call(self: Any, given: Any, *rest: Any, **choices: Any) -> Any:
            nonlocal depth
            depth += 1
            try:
                result = function(self, given, *rest, **choices)
            finally:
                depth -= 1
            if depth:
                return result
            if name == "tokenize":
                tokenized.extend(plain(chunks) for chunks in result.values())
                event = name if isinstance(given, str) else "own tokenizer"
            else:
                parts = given.values() if isinstance(given, dict) else [given]
                is_same = all(plain(part) in tokenized for part in parts)
                event = name if is_same else f"{name} of its own tokens"
            events.append(event)
            return result

        return call

    with (
        patch.multiple(
            comfy.sd.CLIP,
            tokenize=noting("tokenize", comfy.sd.CLIP.tokenize),
            encode_from_tokens=noting("encode_from_tokens", comfy.sd.CLIP.encode_from_tokens),
            encode_from_tokens_scheduled=noting(
                "encode_from_tokens_scheduled", comfy.sd.CLIP.encode_from_tokens_scheduled
            ),
        ),
        patch.object(
            SDClipModel, "encode_token_weights", noting("encode_token_weights", SDClipModel.encode_token_weights)
        ),
    ):
        yield


def how_it_encodes(node: PackNode, clip: Any) -> str:
    events: list[str] = []
    with watched(events):
        node.encode(clip, IN_COMFYUI)
    return ", ".join(dict.fromkeys(events))


# ---- the checks


class Clips(NamedTuple):
    """CLIPs of a family."""

    host: Any
    """One that only the host's and another pack's nodes use."""
    used: Any
    """One that all nodes use."""
    served: Any
    """Its copy by Weighted CLIP at the defaults."""
    expected: dict[str, Any]
    """Conditionings of `TEXT` on fresh CLIPs: by the host's node and by our own."""

    @classmethod
    def of(cls, family: str) -> Clips:
        """CLIPs that nobody has used."""
        expected = {"stock": stock(make_clip(family), TEXT), "ours": ours(make_clip(family), TEXT, **SCHEMES[0])}
        used = make_clip(family)
        return cls(make_clip(family), used, served(used), expected)


def beside(pack: str, nodes: Iterable[PackNode]) -> None:
    """Compare nodes at the defaults with themselves on the host's CLIP, and with a scheme with what they must be."""
    clips = {family: Clips.of(family) for family in BOTH}
    for node in nodes:
        lines: dict[str, None] = {}
        for family in node.families:
            compare_at_defaults(node, clips[family], family)
            effects = [compare_with_scheme(node, clips[family], choices, lines) for choices in SCHEMES]
            assert node.same in (OWN_RULE, OWN_SYNTAX) or max(effects) > 1e-3, (node.name, family, effects)
        effect = node.same if isinstance(node.same, str) else "as ours"
        way = how_it_encodes(node, clips[node.families[0]].host)
        rows.append([pack, node.name, way, "0", effect, "\n".join(lines)])


def compare_at_defaults(node: PackNode, clips: Clips, family: str) -> None:
    expected = {**clips.expected, "the node": node.encode(clips.host, TEXT)}
    expected["the node on ours"] = expected["the node"]
    steps = {
        "stock": lambda: stock(clips.used, TEXT),
        "the node": lambda: node.encode(clips.used, TEXT),
        "the node on ours": lambda: node.encode(clips.served, TEXT),
        "ours": lambda: ours(clips.used, TEXT, **SCHEMES[0]),
    }
    for number in EACH_BEHIND_EACH:
        name = list(steps)[number]
        assert not (far := alike(steps[name](), expected[name])), (node.name, family, name, far)
    for text in ("", TEXTS[2]):
        host, left = with_traces(clips.used, lambda text=text: node.encode(clips.used, text))
        found, more = with_traces(clips.used, lambda text=text: node.encode(clips.served, text))
        assert more <= left, (node.name, family, more, left)
        assert not (far := alike(found, host)), (node.name, family, text, far)


def with_traces(clip: Any, encode: Callable[[], Any]) -> tuple[Any, set[str]]:
    """A conditioning, and names of what its encoding has left on the host's objects."""
    before = traces(clip.patcher)
    return encode(), set(changed(before, traces(clip.patcher)))


def compare_with_scheme(node: PackNode, clips: Clips, choices: dict[str, Any], lines: dict[str, None]) -> float:
    """Compare a node with a scheme, and add what was told to the lines; how far it is from the host's."""
    host = node.encode(clips.host, TEXT if node.same == OWN_SYNTAX else IN_COMFYUI)
    told: list[str] = []
    _, left = with_traces(clips.used, lambda: node.encode(clips.used, TEXT))
    work = served(clips.used, told, **choices)
    found, more = with_traces(clips.used, lambda: node.encode(work, TEXT))
    where = node.name, len(found[0][0][0, 0]), choices, told
    assert more <= left, (where, more, left)
    expected = node.same(clips.used, TEXT, **choices) if callable(node.same) else None
    if node.same in (OWN_RULE, OWN_SYNTAX):
        expected = host
    if expected is not None:
        assert (far := alike(found, expected)) <= node.limit, (where, far)
    assert any(node.line in line for line in told) if node.line else not told, where
    lines |= dict.fromkeys(told)
    return apart(found[0][0], host[0][0])


@compares("Nodes of ComfyUI on a Weighted CLIP, small, with themselves on the host's and with ours")
def check_nodes_of_comfyui() -> None:
    beside("ComfyUI", pack_nodes.comfyui())


@compares("Nodes of ComfyUI-Impact-Pack on a Weighted CLIP, small, with themselves on the host's and with ours")
def check_nodes_of_impact() -> None:
    beside("ComfyUI-Impact-Pack", pack_nodes.impact())


@compares("Nodes of ComfyUI-Inspire-Pack on a Weighted CLIP, small, with themselves on the host's and with ours")
def check_nodes_of_inspire() -> None:
    beside("ComfyUI-Inspire-Pack", pack_nodes.inspire())


@compares("Nodes of ComfyUI_ADV_CLIP_emb on a Weighted CLIP, small, with themselves on the host's and with ours")
def check_nodes_of_adv_clip_emb() -> None:
    beside("ComfyUI_ADV_CLIP_emb", pack_nodes.adv_clip_emb())


@compares("Nodes of efficiency-nodes-comfyui on a Weighted CLIP, small, with themselves on the host's and with ours")
def check_nodes_of_efficiency() -> None:
    beside("efficiency-nodes-comfyui", pack_nodes.efficiency())


@compares("Nodes of ComfyUI-Easy-Use on a Weighted CLIP, small, with themselves on the host's and with ours")
def check_nodes_of_easy_use() -> None:
    beside("ComfyUI-Easy-Use", pack_nodes.easy_use())


@compares("Nodes of ComfyUI_tinyterraNodes on a Weighted CLIP, small, with themselves on the host's and with ours")
def check_nodes_of_tinyterra() -> None:
    beside("ComfyUI_tinyterraNodes", pack_nodes.tinyterra())


@compares("Nodes of ComfyUI_Cutoff on a Weighted CLIP, small, with themselves on the host's and with ours")
def check_nodes_of_cutoff() -> None:
    beside("ComfyUI_Cutoff", pack_nodes.cutoff())


@compares("Nodes of ComfyUI_FizzNodes on a Weighted CLIP, small, with themselves on the host's and with ours")
def check_nodes_of_fizznodes() -> None:
    beside("ComfyUI_FizzNodes", pack_nodes.fizznodes())


@compares("Nodes of SwarmUI on a Weighted CLIP, small, with themselves on the host's and with ours")
def check_nodes_of_swarmui() -> None:
    beside("SwarmUI", pack_nodes.swarmui())


@compares("Nodes of comfyui-prompt-control on a Weighted CLIP, small, with themselves on the host's and with ours")
def check_nodes_of_prompt_control() -> None:
    beside("comfyui-prompt-control", pack_nodes.prompt_control())


@compares("Nodes of ComfyUI-ppm on a Weighted CLIP, small, with themselves on the host's and with ours")
def check_nodes_of_ppm() -> None:
    beside("ComfyUI-ppm", pack_nodes.ppm())


@compares("Nodes of ComfyUI_smZNodes on a Weighted CLIP, small, with themselves on the host's and with ours")
def check_nodes_of_smz() -> None:
    beside("ComfyUI_smZNodes", pack_nodes.smz())


@compares("Nodes of Vector_Sculptor_ComfyUI on a Weighted CLIP, small, with themselves on the host's and with ours")
def check_nodes_of_vector_sculptor() -> None:
    beside("Vector_Sculptor_ComfyUI", pack_nodes.vector_sculptor())


@compares("Nodes of ComfyUI_essentials on a Weighted CLIP, small, with themselves on the host's and with ours")
def check_nodes_of_essentials() -> None:
    beside("ComfyUI_essentials", pack_nodes.essentials())


@compares(
    "Nodes of ComfyUI-PhotoMaker-Plus on a Weighted CLIP, small, with themselves on the host's and with ours",
    limit=CLOSE,
)
def check_nodes_of_photomaker_plus() -> None:
    beside("ComfyUI-PhotoMaker-Plus", pack_nodes.photomaker_plus())


@compares("Nodes of mikey_nodes on a Weighted CLIP, small, with themselves on the host's and with ours")
def check_nodes_of_mikey() -> None:
    beside("mikey_nodes", pack_nodes.mikey())


@compares(
    "Nodes of ComfyUI_Comfyroll_CustomNodes on a Weighted CLIP, small, with themselves on the host's and with ours"
)
def check_nodes_of_comfyroll() -> None:
    beside("ComfyUI_Comfyroll_CustomNodes", pack_nodes.comfyroll())


@compares("Nodes of comfy_mtb on a Weighted CLIP, small, with themselves on the host's and with ours")
def check_nodes_of_mtb() -> None:
    beside("comfy_mtb", pack_nodes.mtb())


@compares("Nodes of ComfyUI_omost on a Weighted CLIP, small, with themselves on the host's and with ours")
def check_nodes_of_omost() -> None:
    beside("ComfyUI_omost", pack_nodes.omost())


@compares("Nodes of ComfyUI-AnimateDiff-Evolved on a Weighted CLIP, small, with themselves on the host's and with ours")
def check_nodes_of_animatediff() -> None:
    beside("ComfyUI-AnimateDiff-Evolved", pack_nodes.animatediff())


@compares("Nodes of rgthree-comfy on a Weighted CLIP, small, with themselves on the host's and with ours")
def check_nodes_of_rgthree() -> None:
    beside("rgthree-comfy", pack_nodes.rgthree())


if __name__ == "__main__":
    main(globals())
