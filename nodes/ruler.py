"""Interface of the nodes to the token ruler: how each reads its prompts.

A node with a ruler marks its prompt boxes and the inputs that affect reading (`common.MARK`), which the page finds in
the node's description. Its ``options`` makes `EncodeOptions` from the values of those inputs, for itself and for the
ruler. If it accepts text encoders other than CLIP, its ``reads_as`` reads a prompt for these
(hosts/comfy/live_tokenizers.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..web.inspection import RulerNode, TextReader
from . import common

TIMES = ("steps", "counter")
"""Inputs of a node for timed prompts, named as in a request."""


def ruler_nodes(classes: Mapping[str, Any]) -> dict[str, RulerNode]:
    """Reading of prompts for the nodes with a prompt box, by id, out of all nodes by id."""
    return {name: _ruler_node(node) for name, node in classes.items() if hasattr(node, "options")}


def _ruler_node(node: Any) -> RulerNode:
    types = node.INPUT_TYPES()
    inputs = {**types.get("required", {}), **types.get("optional", {})}
    marked = {name: spec[1] for name, spec in inputs.items() if spec[1:] and spec[1].get(common.MARK) == common.COUNTS}
    defaults = {name: options["default"] for name, options in marked.items() if "default" in options}

    def fields(values: Mapping[str, Any]) -> dict[str, Any]:
        options = node.options(**{name: value for name, value in values.items() if name not in TIMES})
        return {**vars(options), **{name: values[name] for name in TIMES if name in values}}

    def reader(encoder: str) -> TextReader | None:
        reads_as = getattr(node, "reads_as", None)
        if reads_as is None:
            return None
        from ..hosts.comfy.live_tokenizers import live_reader

        return live_reader(encoder, reads_as)

    return RulerNode(defaults, fields, reader)
