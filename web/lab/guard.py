"""Request filter of the stand-alone lab: it accepts only requests from its own pages, up to a maximum size.

Any page on the internet can send requests to a program on its visitor's computer. It cannot read the answers, but could
have prompts encoded and fill the disk through gradio's upload route. Browsers state the origin of a request, so such
requests can be refused.

Source: the Fetch standard, headers ``Origin`` and ``Sec-Fetch-Site``; behaviour of gradio 6.31.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

MAX_BYTES = 1024 * 1024
"""Maximum body of a request: the page's longest contains a prompt of 64 KiB a few times."""
MAX_UPLOAD_BYTES = 4096 * MAX_BYTES
"""Maximum upload: weights, up to the 3.97 GiB of a checkpoint of Stable Diffusion 1.x in float32; pictures are less."""
UPLOADS = ("/gradio_api/upload", "/gradio_api/upload/")
"""gradio's upload routes."""

_SECURITY = (
    "default-src 'self' data: blob:; script-src 'self' 'unsafe-inline' 'unsafe-eval' blob:; "
    "style-src 'self' 'unsafe-inline'; connect-src 'self' data: blob:; object-src 'none'; base-uri 'self'; "
    "form-action 'self'; frame-ancestors 'none'"
)
_HEADERS = (
    (b"content-security-policy", _SECURITY.encode()),
    (b"referrer-policy", b"no-referrer"),
    (b"x-content-type-options", b"nosniff"),
)


class Guard:
    """ASGI application that passes requests on to another, or refuses them with a reason, as gradio does.

    Every response carries the headers that keep the browser from loading anything else.
    """

    def __init__(self, app: Any) -> None:
        self._app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Handle a request, as defined by ASGI."""
        if scope["type"] == "websocket":  # gradio 6 has none; browsers would let every page open one
            await send({"type": "websocket.close", "code": 1008})
            return

        async def send_more(message: Any) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message["headers"], *_HEADERS]}
            await send(message)

        refusal = _refusal(scope) if scope["type"] == "http" else None
        if refusal is None:
            await self._app(scope, receive, send_more)
            return
        status, reason = refusal
        kind = [(b"content-type", b"application/json"), (b"connection", b"close")]
        await send_more({"type": "http.response.start", "status": int(status), "headers": kind})
        await send({"type": "http.response.body", "body": json.dumps({"error": reason, "detail": reason}).encode()})


def _refusal(scope: Mapping[str, Any]) -> tuple[HTTPStatus, str] | None:
    """Status and reason if a request is refused."""
    headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}
    is_reading = scope["method"] in ("GET", "HEAD")
    is_link = is_reading and headers.get("sec-fetch-mode") == "navigate"
    origin = headers.get("origin")
    is_foreign = headers.get("sec-fetch-site", "none") not in ("none", "same-origin") and not is_link
    if is_foreign or (origin is not None and origin.partition("://")[2] != headers.get("host")):
        return HTTPStatus.FORBIDDEN, f"the lab answers its own page only; this request is of {origin or 'another page'}"
    length = headers.get("content-length", "0" if is_reading else "")
    if "transfer-encoding" in headers or not (length.isascii() and length.isdigit()):
        return HTTPStatus.LENGTH_REQUIRED, f"a request has to say how long it is, got content-length {length!r}"
    most = MAX_UPLOAD_BYTES if scope["path"] in UPLOADS else MAX_BYTES
    if len(length) > len(str(most)) or int(length) > most:
        return HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"a request may have {most} bytes at most, got {length:.20}"
    return None
