"""Routes of the page in ComfyUI's server: ``inspect``, ``check``, ``convert``, ``infotext``, ``picture``.

A node with a ruler marks its prompt boxes and the inputs that affect reading (`node.MARK`), which the page finds in
the node's description. Its ``options`` makes `EncodeOptions` from the values of those inputs, for itself and for the
ruler. If it accepts text encoders other than CLIP, its ``reads_as`` reads a prompt for these
(hosts/comfy/weighted_clip/live_tokenizers.py).

Source: behaviour of ComfyUI 0.3.64 and 0.29.0.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import lru_cache, partial
from itertools import islice
from pathlib import Path, PurePath
from typing import Any

from ...encoder.foreign_text import parse_json
from ...hosts.comfy.contract import running_server
from ...web.inspection import RulerNode, TextReader
from ...weighting.text.problems import Problem
from . import node

PATH = "/weighted_clip/inspect"
CHECK_PATH = "/weighted_clip/check"
CONVERT_PATH = "/weighted_clip/convert"
INFOTEXT_PATH = "/weighted_clip/infotext"
PICTURE_PATH = "/weighted_clip/picture"
MAX_AT_ONCE = 2
"""Maximum number of requests handled at once; others are refused meanwhile. Each slows the host's own answers down."""
FOLDERS = ("text_encoders", "checkpoints")
"""The host's folders with files of text encoders."""
MAX_FILES_KNOWN = 64
"""Maximum number of files whose numbers of positions are cached."""

TIMES = ("steps", "counter", "regions", "loras", "glides", "joins", "second_pass")
"""Inputs of a node for timed prompts, named as in a request."""

# not the loop's own threads, which the host uses to serve files
_threads = ThreadPoolExecutor(MAX_AT_ONCE, thread_name_prefix="weighted-clip-ruler")
_running: set[Future[str]] = set()


def add_routes(nodes: Mapping[str, RulerNode], classes: Mapping[str, Any]) -> None:
    """Add the routes to the running server, if there is one, for all nodes by id and those with a prompt box."""
    server = running_server()
    if server is not None:
        paths = {
            PATH: _read,
            CHECK_PATH: partial(check, classes=classes),
            CONVERT_PATH: _converted,
            INFOTEXT_PATH: _infotext_parts,
            PICTURE_PATH: _picture,
        }
        for path, handle in paths.items():
            server.routes.post(path)(partial(answer, nodes=nodes, handle=handle))


async def answer(
    request: Any, nodes: Mapping[str, RulerNode], handle: Callable[[bytes, Mapping[str, RulerNode]], str] | None = None
) -> Any:
    """Answer an aiohttp request: the views, or another result of ``handle``, or 400, 413 or 429 with ``error``."""
    from aiohttp import web

    from ...web.inspection import MAX_BYTES

    body = await request.content.read(MAX_BYTES + 1)
    while len(body) <= MAX_BYTES and (more := await request.content.read(MAX_BYTES + 1 - len(body))):
        body += more
    if len(body) > MAX_BYTES:
        return web.json_response({"error": f"a request may have {MAX_BYTES} bytes at most"}, status=413)
    if len(_running) >= MAX_AT_ONCE:
        return web.json_response({"error": f"{MAX_AT_ONCE} prompts are being read: ask again"}, status=429)
    try:
        answered = await _start(handle or _read, body, nodes)
    except RecursionError:
        return web.json_response({"error": "the request is nested too deep"}, status=400)
    except ValueError as error:  # also raised by json, its codec, and for a number of more digits than Python reads
        return web.json_response({"error": str(error)}, status=400)
    return web.json_response(text=answered)


def _start(
    handle: Callable[[bytes, Mapping[str, RulerNode]], str], body: bytes, nodes: Mapping[str, RulerNode]
) -> asyncio.Future[str]:
    """Handle a request in a thread. One whose client is gone counts until its thread has finished."""
    reading = _threads.submit(handle, body, nodes)
    _running.add(reading)
    reading.add_done_callback(_running.discard)
    return asyncio.wrap_future(reading)


def _read(body: bytes, nodes: Mapping[str, RulerNode]) -> str:
    from ...web.inspection import as_json, files_of, inspect, inspect_sweep, reader_of, request_of, with_problems
    from .checks import MAX_PROBLEMS

    asked = parse_json(body)
    request = request_of(asked, nodes)
    node = nodes[asked["node"]]
    reading = embedding_names(), reader_of(asked, nodes), positions_in(files_of(asked))
    if node.is_swept:
        answered = inspect_sweep(request, *reading)
    else:
        answered = inspect(request, *reading, lora_issues=node.lora_issues)
    values = {**node.defaults, **asked["values"], "text": asked["text"]}
    messages = [problem.message for problem in islice(node.problems(values), MAX_PROBLEMS)]
    first, *rest = answered["views"]
    return as_json({"views": [with_problems(first, *messages), *rest]})


def check(body: bytes, nodes: Mapping[str, RulerNode], classes: Mapping[str, Any]) -> str:
    """Answer a request for the problems of a node without a prompt box, as JSON."""
    from .checks import answer_check

    return json.dumps(answer_check(parse_json(body), classes, nodes))


def positions_in(files: Iterable[str]) -> int:
    """Chunk length of the first CLIP text tower in some files, of which only headers are read; CLIP's if none gives it.

    They are in the host's folders, as ``text_encoders/name`` or ``checkpoints/name``.
    """
    from ...encoder.models.config import CLIP_L, TOWERS
    from ...hosts.comfy.contract import host

    folder_paths = host("folder_paths")

    positions: dict[str, int] = {}
    for file in files:
        folder, _, name = file.partition("/")
        path = folder_paths.get_full_path(folder, name) if folder in FOLDERS else None
        if path is not None and "\0" not in path:
            with suppress(OSError):  # it has been removed
                state = Path(path).stat()
                positions = {**_positions(path, state.st_mtime_ns, state.st_size), **positions}
    return next((positions[name] for name in TOWERS if name in positions), CLIP_L.context_length)


@lru_cache(maxsize=MAX_FILES_KNOWN)
def _positions(path: str, changed: int, size: int) -> Mapping[str, int]:
    """Positions of each text tower of a file; ``changed`` and ``size`` distinguish states of the file."""
    from ...encoder.files.tensor_file import CheckpointError, open_tensor_file

    try:
        with open_tensor_file(Path(path)) as file:
            return {tower.name: file.config(tower).context_length for tower in file.towers()}
    except CheckpointError:  # pickled, or of another family
        return {}


def _converted(body: bytes, _: Mapping[str, RulerNode]) -> str:
    from ...web.inspection import conversion

    return json.dumps(conversion(parse_json(body)))


def _infotext_parts(body: bytes, _: Mapping[str, RulerNode]) -> str:
    from ...web.inspection import generation_data

    return json.dumps(generation_data(parse_json(body)))


def _picture(body: bytes, _: Mapping[str, RulerNode]) -> str:
    """The checkpoint that a picture's data names, if it is there; and lines about files that are not, or of no use."""
    from ...hosts.comfy.a1111.files import checkpoint_of, file_rows, widths_of_file, with_loras_by_hash
    from ...hosts.comfy.a1111.noise import SOURCES
    from ...hosts.comfy.a1111.parameters import MAX_ROWS, read_parameters
    from ...web.inspection import text_of
    from ...weighting.infotext import read_infotext

    infotext = with_loras_by_hash(read_infotext(text_of(json.loads(body))), hashes_files=False)[0]
    read_parameters(infotext, SOURCES[0])  # refuses what the template's node would
    checkpoint = checkpoint_of(infotext)
    rows = file_rows(infotext, widths_of_file(checkpoint) if checkpoint else {})
    missing = [row.line for row in rows if not row.output]
    return json.dumps({"checkpoint": checkpoint, "missing": missing[:MAX_ROWS]})


def embedding_names() -> list[str]:
    """Names of the host's embeddings from its cached list: as file paths, and bare."""
    from ...hosts.comfy.contract import host

    names = [PurePath(name) for name in host("folder_paths").get_filename_list("embeddings")]
    # with the system's own separator too, as ComfyUI's front end completes names and its loader takes them
    paths = [(name, path) for name in names for path in (name.as_posix(), str(name))]
    # not with_suffix(), which refuses names such as "..pt"
    return sorted({text for name, path in paths for text in (path, path.removesuffix(name.suffix), name.stem)})


def ruler_nodes(classes: Mapping[str, Any]) -> dict[str, RulerNode]:
    """Reading of prompts for the nodes with a prompt box, by id, out of all nodes by id."""
    return {name: _ruler_node(node_class) for name, node_class in classes.items() if hasattr(node_class, "options")}


def _ruler_node(node_class: Any) -> RulerNode:
    types = node_class.INPUT_TYPES()
    inputs = {**types.get("required", {}), **types.get("optional", {})}
    marked = {name: spec[1] for name, spec in inputs.items() if spec[1:] and spec[1].get(node.MARK) == node.COUNTS}
    defaults = {name: options["default"] for name, options in marked.items() if "default" in options}

    times = getattr(node_class, "times", _times)

    def fields(values: Mapping[str, Any]) -> dict[str, Any]:
        options = node_class.options(**{name: value for name, value in values.items() if name not in TIMES})
        return {**vars(options), **times(values)}

    def reader(encoder: str, values: Mapping[str, Any]) -> TextReader | None:
        reader_for = getattr(node_class, "reader_for", None)
        reads_as = reader_for(values) if reader_for else getattr(node_class, "reads_as", None)
        if reads_as is None:
            return None
        from ...hosts.comfy.weighted_clip.live_tokenizers import live_reader

        return live_reader(encoder, reads_as)

    def problems(values: Mapping[str, Any]) -> Iterable[Problem]:
        from .node_state import NodeState

        return node_class.problems(NodeState(values))

    texts = tuple(name for name, spec in inputs.items() if spec[1:] and spec[1].get(node.MARK) == node.PROMPT)
    loads, is_swept = getattr(node_class, "lora_issues", None), getattr(node_class, "is_swept", False)
    return RulerNode(defaults, fields, reader, texts, problems, loads, is_swept)


def _times(values: Mapping[str, Any]) -> dict[str, Any]:
    """Inputs by which a node reads timed prompts."""
    return {name: values[name] for name in TIMES if name in values}
