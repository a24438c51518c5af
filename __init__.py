"""Weighted CLIP: prompt conditioning with explicit masks and exact weighting schemes, for ComfyUI and the WebUI.

ComfyUI loads this file and reads the three names below. Importing registers nothing, patches nothing and needs no host.
"""

from .nodes import NODE_CLASS_MAPPINGS, NODE_DISPLAY_NAME_MAPPINGS

WEB_DIRECTORY = "./web/comfyui"

__version__ = "0.1.0"
__all__ = ["NODE_CLASS_MAPPINGS", "NODE_DISPLAY_NAME_MAPPINGS", "WEB_DIRECTORY", "__version__"]
