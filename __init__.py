"""Weighted CLIP: prompt conditioning with explicit masks and exact weighting schemes, for ComfyUI and the WebUI.

ComfyUI loads this file and reads the three names below. Importing patches nothing and needs no host; where ComfyUI's
server runs, it adds one route to it.
"""

from .nodes import NODE_CLASS_MAPPINGS, NODE_DISPLAY_NAME_MAPPINGS
from .web.routes import add_routes

WEB_DIRECTORY = "./web/comfyui"

__version__ = "0.1.0"
__all__ = ["NODE_CLASS_MAPPINGS", "NODE_DISPLAY_NAME_MAPPINGS", "WEB_DIRECTORY", "__version__"]

add_routes()
