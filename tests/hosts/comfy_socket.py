"""Messages of a working ComfyUI to its page over a WebSocket: progress and previews. Standard library only.

Source: RFC 6455; messages of ComfyUI 0.3.64 and 0.29.0.
"""

from __future__ import annotations

import io
import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from PIL import Image

_TEXT, _BINARY, _CLOSE = 1, 2, 8
_PREVIEW = 1
"""Number of a picture event; it is followed by that of the format, then by the file."""
_KEY = "MDEyMzQ1Njc4OWFiY2RlZg=="


@dataclass
class Messages:
    """Messages so far."""

    events: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    """Types of the messages in words, with their data."""
    previews: list[Image.Image] = field(default_factory=list)
    """The pictures."""
    has_begun: threading.Event = field(default_factory=threading.Event)
    """Set by the first progress."""

    def progress(self, node_id: str) -> list[tuple[int, int]]:
        """Value and end of each progress of a node."""
        told = (data for kind, data in self.events if kind == "progress")
        return [(data["value"], data["max"]) for data in told if data["node"] == node_id]

    def _add(self, kind: int, data: bytes) -> None:
        if kind == _TEXT:
            message = json.loads(data)
            self.events.append((message["type"], message["data"]))
            if message["type"] == "progress":
                self.has_begun.set()
        elif kind == _BINARY and int.from_bytes(data[:4], "big") == _PREVIEW:
            picture = Image.open(io.BytesIO(data[8:]))
            picture.load()
            self.previews.append(picture)


@contextmanager
def listening(port: int, client: str) -> Iterator[Messages]:
    """Receive what a server tells a client, in a thread of its own.

    Args:
        port: Port of the server on this machine.
        client: The client's id, as in the prompts it queues.
    """
    messages = Messages()
    with socket.create_connection(("127.0.0.1", port), 60) as connection, connection.makefile("rb") as stream:
        connection.sendall(
            f"GET /ws?clientId={client} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nUpgrade: websocket\r\n"
            f"Connection: Upgrade\r\nSec-WebSocket-Key: {_KEY}\r\nSec-WebSocket-Version: 13\r\n\r\n".encode()
        )
        status = stream.readline()
        assert b" 101 " in status, status
        while stream.readline() != b"\r\n":
            pass
        connection.settimeout(None)
        thread = threading.Thread(target=_receive, args=(stream, messages), daemon=True)
        thread.start()
        try:
            yield messages
        finally:
            connection.shutdown(socket.SHUT_RDWR)
            thread.join(10)


def _receive(stream: io.BufferedReader, messages: Messages) -> None:
    """Read frames until there are no more; a server's are not masked."""
    kind, data = 0, b""
    while len(head := stream.read(2)) == 2:
        length = head[1] & 127
        if length >= 126:
            length = int.from_bytes(stream.read(2 if length == 126 else 8), "big")
        part = stream.read(length)
        code = head[0] & 15
        if code == _CLOSE:
            return
        if code > _CLOSE:
            continue  # a ping
        kind, data = code or kind, data + part if code == 0 else part
        if head[0] & 128:
            messages._add(kind, data)
