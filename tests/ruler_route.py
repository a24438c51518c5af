"""The ruler's route without a server: the parts of aiohttp and ComfyUI that it uses, and a request."""

import asyncio
import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from weighted_clip import NODE_CLASS_MAPPINGS
from weighted_clip.nodes.base import routes
from weighted_clip.nodes.base.routes import ruler_nodes

NODES = ruler_nodes(NODE_CLASS_MAPPINGS)


class Request:
    """aiohttp's request: a stream that gives a few bytes at a time."""

    def __init__(self, body: bytes) -> None:
        self.body = body
        self.content = self

    async def read(self, size: int) -> bytes:
        part, self.body = self.body[: min(size, 1000)], self.body[min(size, 1000) :]
        return part


@contextmanager
def route_host(embeddings: Sequence[str] = ()) -> Iterator[None]:
    """As in ComfyUI with these embeddings; an answer is its status and content."""
    aiohttp, paths = ModuleType("aiohttp"), ModuleType("folder_paths")
    # as aiohttp does, what is not text yet becomes JSON where it is called
    aiohttp.__dict__["web"] = SimpleNamespace(
        json_response=lambda data=None, status=200, text="": (status, json.loads(text or json.dumps(data)))
    )
    paths.__dict__["get_filename_list"] = lambda kind: embeddings if kind == "embeddings" else []
    with pytest.MonkeyPatch.context() as patch:
        for module in (aiohttp, paths):
            patch.setitem(sys.modules, module.__name__, module)
        yield


def post(body: bytes) -> tuple[int, dict[str, Any]]:
    """Send a body to the route, inside `route_host`; status and answer."""
    return asyncio.run(routes.answer(Request(body), NODES))
