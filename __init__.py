"""Weighted CLIP: prompt conditioning with explicit masks and exact weighting schemes, for ComfyUI, WebUI and Python.

ComfyUI loads this file and reads the two tables of nodes and the folder of scripts; a program imports `Encoders`. The
tables and `Encoders` are made on first access, so importing stays fast. Importing patches nothing and needs no host;
if ComfyUI's server is running, it adds its routes to the server and receives its requests, so that saved images record
what our nodes encoded.
"""

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .nodes import NODE_CLASS_MAPPINGS, NODE_DISPLAY_NAME_MAPPINGS
    from .weighting.encoders import Encoders

WEB_DIRECTORY = "./web/comfyui"

__version__ = "0.3.0"

__all__ = ["NODE_CLASS_MAPPINGS", "NODE_DISPLAY_NAME_MAPPINGS", "WEB_DIRECTORY", "Encoders", "__version__"]

_HOMES = {
    "NODE_CLASS_MAPPINGS": ".nodes",
    "NODE_DISPLAY_NAME_MAPPINGS": ".nodes",
    "Encoders": ".weighting.encoders",
}
"""Modules of the names imported on first access."""


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return getattr(import_module(_HOMES[name], __name__), name)
    except AttributeError as error:  # to a host, which asks by hasattr(), this would say that there are no nodes
        raise ImportError(f"{name} cannot be imported: {error}") from error


if "server" in sys.modules:  # ComfyUI's, or that of another program, to which nothing is added
    from .hosts.comfy.encoded_texts import add_texts
    from .hosts.comfy.old_nodes import add_replacements
    from .nodes import NODE_CLASS_MAPPINGS
    from .nodes.base.routes import add_routes, ruler_nodes
    from .nodes.old_workflows import OLD_NODES

    add_routes(ruler_nodes(NODE_CLASS_MAPPINGS), NODE_CLASS_MAPPINGS)
    add_replacements(OLD_NODES)
    add_texts(NODE_CLASS_MAPPINGS)
