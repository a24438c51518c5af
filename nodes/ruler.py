"""What the token ruler asks of the nodes: how each reads its prompts.

A node with a ruler marks its prompt boxes and the inputs that count (`common.MARK`), which the page finds in the node's
description. From the values of those inputs its ``options`` makes `EncodeOptions`, for itself and for the ruler.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..web.inspection import RulerNode
from . import common

TIMES = ("steps", "counter")
"""Inputs of a node for timed prompts, called as in a request."""


def ruler_nodes(classes: Mapping[str, Any]) -> dict[str, RulerNode]:
    """How a prompt is read by the nodes that have a prompt box, by id, out of all nodes by id."""
    return {name: _ruler_node(node) for name, node in classes.items() if hasattr(node, "options")}


def _ruler_node(node: Any) -> RulerNode:
    inputs = {name: spec for some in node.INPUT_TYPES().values() for name, spec in some.items()}
    marked = {name: spec[1] for name, spec in inputs.items() if spec[1:] and spec[1].get(common.MARK) == common.COUNTS}
    defaults = {name: options["default"] for name, options in marked.items() if "default" in options}

    def fields(values: Mapping[str, Any]) -> dict[str, Any]:
        options = node.options(**{name: value for name, value in values.items() if name not in TIMES})
        return {**vars(options), **{name: values[name] for name in TIMES if name in values}}

    return RulerNode(defaults, fields)
