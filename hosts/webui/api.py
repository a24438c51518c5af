"""A look at the API's requests before the host takes our values out of them.

The host takes no more values than there are controls, says nothing about further ones, and fails over anything but a
list. So the method by which its API reads a request is replaced, on that one object, by one that looks first.

Source: behaviour of stable-diffusion-webui 1.10 and stable-diffusion-webui-forge dfdcbab6 (2025-06).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .engines import WebUIError
from .settings import INFOTEXT, NAMES, Settings

METHOD = "init_script_args"
"""Method of the host's API that is replaced."""


def add_to(callbacks: Any) -> None:
    """Let the host's ``script_callbacks`` call us once its API is there."""
    callbacks.on_app_started(_look_at_requests)


def check(scripts: Mapping[str, Any]) -> None:
    """Check what a request has for our script.

    Args:
        scripts: Its ``alwayson_scripts``.

    Raises:
        WebUIError: If it is not an object with ``args``, or has too many of them.
    """
    for name, given in scripts.items():
        if name.lower() != INFOTEXT.lower() or given == {}:
            continue
        values = given.get("args") if isinstance(given, dict) else None
        if not isinstance(values, list):
            raise WebUIError(
                f"“{INFOTEXT.lower()}” in alwayson_scripts is an object with args, a list of values in this order: "
                f"{', '.join(NAMES)}; got {given!r:.80}"
            )
        Settings.of(values)


def _look_at_requests(page: object, app: Any) -> None:
    """Replace the method, if the host has an API."""
    owners = [getattr(getattr(route, "endpoint", None), "__self__", None) for route in app.routes]
    owner: Any = next((one for one in owners if hasattr(one, METHOD)), None)
    if owner is None or METHOD in vars(owner):
        return
    inner = getattr(owner, METHOD)

    def init_script_args(request: Any, *others: Any, **named: Any) -> Any:
        check(request.alwayson_scripts or {})
        return inner(request, *others, **named)

    setattr(owner, METHOD, init_script_args)
