"""Prompt boxes that a Weighted CLIP serves: the running node, its metadata, and the message to the page.

Source: behaviour of ComfyUI 0.29.0.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ..contract import host, running_server
from ..encoded_texts import note_texts

EVENT = "weighted_clip.served"
"""Message to the page after a prompt of a box was encoded (web/comfyui/ruler.js)."""


def tell_served(
    by: str | None, texts: Mapping[str, str], views: Sequence[Mapping[str, Any]], lines: Iterable[str]
) -> None:
    """Tell the page what became of the prompt of the running node, and note it for saved images.

    Args:
        by: Id of the Weighted CLIP that serves it.
        texts: Encoded part of each text.
        views: Views of the texts for the page.
        lines: Lines for their author.
    """
    server = running_server()
    context = host("comfy_execution.utils").get_executing_context() if server is not None else None
    if server is None or context is None:
        return
    running = getattr(server.prompt_queue, "currently_running", {})
    item = next((item for item in [*running.values()] if item[1] == context.prompt_id), None)
    if item is not None:
        inputs = item[2].get(context.node_id, {}).get("inputs", {})
        names = {text: name for name, text in reversed(inputs.items()) if isinstance(text, str)}
        extra = item[3].get("extra_pnginfo") if isinstance(item[3], dict) else None
        note_texts(extra, {names.get(text, "text"): encoded for text, encoded in texts.items()})
    message = {"node": context.node_id, "by": by, "views": [*views], "problems": [*lines]}
    server.send_sync(EVENT, message, server.client_id)
