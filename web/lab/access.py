"""Access to the stand-alone lab: its port, and a filter that lets only short requests from its own pages pass.

Imports nothing heavy: a port in use is reported before anything is loaded.

Other users of the computer, and their programs, reach its port as well. So the first part of every path is a secret,
which the lab prints with its address. A cookie would not do: browsers send it to all ports of a host, and so to the
servers of others.

Any page on the internet can send requests to a program on its visitor's computer. It cannot read the answers, but could
have prompts encoded and fill the disk through gradio's upload route. Browsers state the origin of a request, so such
requests can be refused.

Source: the Fetch standard, headers ``Origin`` and ``Sec-Fetch-Site``; behaviour of gradio 6.31.
"""

from __future__ import annotations

import errno
import json
import os
import secrets
import socket
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

from ...encoder.quoting import quote

MAX_BYTES = 1024 * 1024
"""Maximum body of a request: the page's longest contains a prompt of 64 KiB a few times."""
MAX_UPLOAD_BYTES = 4096 * MAX_BYTES
"""Maximum upload: weights, up to the 3.97 GiB of a checkpoint of Stable Diffusion 1.x in float32; pictures are less."""
UPLOADS = ("/gradio_api/upload", "/gradio_api/upload/")
"""gradio's upload routes."""

NO_SECRET = "this is not the lab's address: open the whole one, which the lab printed when it started"
"""Answer to a request without the secret."""

_SECRET_PAGE = f"""<!doctype html>
<meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>Prompt Lab</title>
<body style="font: 1.1em system-ui, sans-serif; margin: 2em">
<p>{NO_SECRET[0].upper()}{NO_SECRET[1:]}. After that, links to a prompt work in this browser, too.
<script>
  const secret = localStorage.getItem("weighted-clip-lab-secret");
  const isOther = /^[0-9a-f]+$/.test(secret) && location.pathname.split("/")[1] !== secret;
  if (isOther) location.replace(`/${{secret}}/${{location.hash}}`);
</script>
"""
"""The same for a link that was followed: copied links have no secret, but the lab's page has stored it for its own
address. Storage, unlike cookies, is for each port, and what a lab that has ended stored opens no other."""

_MANIFEST = b'<link rel="manifest" href="/manifest.json" />'
"""Line of gradio's page that asks for a file at a path without the secret, as browsers also do for an icon."""
_ICON = b'<link rel="icon" href="favicon.ico" />'.ljust(len(_MANIFEST))
"""Line put in its place, of the same length."""

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

    The first part of the path of every request that is passed on is the secret; the application sees what follows.
    Every response carries the headers that keep the browser from loading anything else.
    """

    def __init__(self, app: Any, secret: str) -> None:
        self._app = app
        self._secret = secret

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Handle a request, as defined by ASGI."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] == "websocket":  # gradio 6 has none; browsers would let every page open one
            await send({"type": "websocket.close", "code": 1008})
            return

        first, _, rest = scope["path"].removeprefix("/").partition("/")
        is_page = not rest

        async def send_more(message: Any) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message["headers"], *_HEADERS]}
            elif is_page:
                message = {**message, "body": message.get("body", b"").replace(_MANIFEST, _ICON)}
            await send(message)

        if not secrets.compare_digest(first.encode(errors="replace"), self._secret.encode()):
            refusal = HTTPStatus.FORBIDDEN, NO_SECRET
        else:
            refusal = _refusal(scope, f"/{rest}")
        if refusal is None:
            headers = [header for header in scope["headers"] if not is_page or header[0] != b"accept-encoding"]
            await self._app({**scope, "root_path": f"/{self._secret}", "headers": headers}, receive, send_more)
            return
        status, reason = refusal
        kind, body = b"application/json", json.dumps({"error": reason, "detail": reason})
        if reason == NO_SECRET and _is_link(scope["method"], _headers(scope)):
            kind, body = b"text/html; charset=utf-8", _SECRET_PAGE
        headers = [(b"content-type", kind), (b"connection", b"close")]
        await send_more({"type": "http.response.start", "status": int(status), "headers": headers})
        await send({"type": "http.response.body", "body": body.encode()})


def _headers(scope: Mapping[str, Any]) -> dict[str, str]:
    return {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}


def _is_link(method: str, headers: Mapping[str, str]) -> bool:
    """Whether an address was typed or a link was followed."""
    return method in ("GET", "HEAD") and headers.get("sec-fetch-mode") == "navigate"


def _refusal(scope: Mapping[str, Any], path: str) -> tuple[HTTPStatus, str] | None:
    """Status and reason if a request with the secret is refused; ``path`` is what follows the secret."""
    headers = _headers(scope)
    is_reading = scope["method"] in ("GET", "HEAD")
    is_link = _is_link(scope["method"], headers)
    origin = headers.get("origin")
    is_foreign = headers.get("sec-fetch-site", "none") not in ("none", "same-origin") and not is_link
    if is_foreign or (origin is not None and origin.partition("://")[2] != headers.get("host")):
        return HTTPStatus.FORBIDDEN, f"the lab answers its own page only; this request is of {origin or 'another page'}"
    length = headers.get("content-length", "0" if is_reading else "")
    if "transfer-encoding" in headers or not (length.isascii() and length.isdigit()):
        return HTTPStatus.LENGTH_REQUIRED, f"a request has to say how long it is, got content-length {quote(length)}"
    limit = MAX_UPLOAD_BYTES if path in UPLOADS else MAX_BYTES
    if len(length) > len(str(limit)) or int(length) > limit:
        return HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"a request may have {limit} bytes at most, got {length:.20}"
    return None


HOST = "127.0.0.1"
"""Loopback: not reachable from outside this computer."""
FIRST_PORT = 7867
"""First port to try, if none is given."""
NUM_PORTS = 20
"""Number of ports to try."""


def listen(port: int | None) -> socket.socket:
    """Listen at a port of this computer, by default 7867 or the next free one; clients wait until it is served.

    Raises:
        ValueError: If the port is in use or not available.
    """
    tried = range(FIRST_PORT, FIRST_PORT + NUM_PORTS) if port is None else [port]
    for candidate in tried:
        listening = socket.socket()
        if os.name == "posix":  # elsewhere it would share the port with another program
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listening.bind((HOST, candidate))
            listening.listen(128)
        except OSError as error:
            listening.close()
            # EACCES is Windows' error for its reserved ports
            if error.errno not in (errno.EADDRINUSE, errno.EACCES) or port is not None:
                raise ValueError(
                    f"port {candidate} cannot be used: {error.strerror}; choose another with --port"
                ) from error
        except OverflowError as error:
            listening.close()
            raise ValueError(f"a port is a number from 0 to 65535; got {candidate}") from error
        else:
            return listening
    raise ValueError(f"no port from {tried[0]} to {tried[-1]} is free; choose one with --port")
