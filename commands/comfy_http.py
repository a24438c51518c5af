"""A running ComfyUI, asked over its HTTP interface: node classes, and pictures of workflows.

No address but the given one is asked: proxies of the environment are not used, and redirects are not followed.
"""

from __future__ import annotations

import http.client
import json
import time
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any
from urllib.parse import quote as escaped
from urllib.parse import urlencode, urlsplit

from ..encoder.foreign_text import parse_json
from ..encoder.quoting import quote
from ..weighting.prompt import shortened

Graph = Mapping[str, Mapping[str, Any]]
"""A workflow in ComfyUI's API format: nodes by id."""
EXAMPLE = "http://127.0.0.1:8188"
CLIENT = "weighted-clip"
MAX_REPLY = 64 * 2**20
"""Bytes of an answer at most."""
SECONDS = 120.0
"""Time without a sign of life after which an answer is given up."""
POLL_SECONDS = 0.25
"""Time between two questions whether a picture is finished."""
POLLS_OF_QUEUE = 20
"""Questions until the queue, which may be long, is asked for."""
MAX_QUOTED = 300
"""Characters of each of the host's own words at most."""
MAX_ERRORS = 4
"""Errors that are quoted at most."""


class ComfyError(ValueError):
    """Raised for an address without a usable ComfyUI, and for what that ComfyUI refuses or fails at."""


class _AsTheyAre(urllib.request.HTTPErrorProcessor):
    """Hands on all answers: redirects are not followed, and the words of errors are read."""

    def http_response(self, request: urllib.request.Request, response: Any) -> Any:
        return response

    https_response = http_response


class Comfy:
    """A running ComfyUI."""

    def __init__(self, address: str) -> None:
        """Check the address; nothing is asked yet.

        Raises:
            ComfyError: If it is no address of a web server.
        """
        try:
            parts = urlsplit(address)
            is_good = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
        except ValueError:  # a port that is no number, or brackets
            is_good = False
        else:
            is_good = is_good and "@" not in parts.netloc and not (parts.query or parts.fragment)
        if not is_good or not address.isascii() or not address.isprintable() or " " in address:
            raise ComfyError(f"{quote(address)} is no address of a ComfyUI: give one such as {EXAMPLE}")
        self.address = address.rstrip("/")
        self._sent = urllib.request.build_opener(urllib.request.ProxyHandler({}), _AsTheyAre).open

    def node(self, class_type: str) -> dict[str, Any]:
        """Inputs of a node class with their types and options, by name, those that are required; empty if unknown.

        Raises:
            ComfyError: If there is no ComfyUI.
        """
        path = f"/object_info/{escaped(class_type, safe='')}"
        found = self._get(path)
        with self._understood(path):
            return dict(found[class_type]["input"]["required"]) if class_type in found else {}

    def picture(self, graph: Graph, output: str) -> bytes:
        """Run a workflow, however long that takes; Ctrl-C takes it out of the queue.

        Args:
            graph: The workflow.
            output: Id of its node that saves or previews one picture.

        Returns:
            The file that this node wrote.

        Raises:
            ComfyError: If it is refused, a node fails, or it is lost.
        """
        prompt_id = self._queue(graph)
        try:
            entry = self._finished(prompt_id)
        except KeyboardInterrupt:
            with suppress(ComfyError):
                self._ask("/queue", {"delete": [prompt_id]})
            raise
        with self._understood("/history"):
            if entry["status"]["status_str"] != "success":
                raise ComfyError(f"{self.address}: {_failure(entry['status']['messages'])}")
            image = entry["outputs"][output]["images"][0]
            path = "/view?" + urlencode({name: str(image[name]) for name in ("filename", "subfolder", "type")})
        status, data = self._ask(path)
        if status != http.client.OK:
            raise self._odd(path, f"status {status}")
        return data

    def _queue(self, graph: Graph) -> str:
        status, answer = self._json("/prompt", {"prompt": graph, "client_id": CLIENT})
        with self._understood("/prompt"):
            if status != http.client.OK:
                raise ComfyError(f"{self.address} refuses the workflow: {_refusal(answer)}")
            return str(answer["prompt_id"])

    def _finished(self, prompt_id: str) -> Any:
        """Entry of a finished workflow in the history."""
        path, polls, is_lost = f"/history/{escaped(prompt_id, safe='')}", 0, False
        while True:
            history = self._get(path)
            with self._understood(path):
                if prompt_id in history:
                    return history[prompt_id]
            if is_lost:
                raise ComfyError(
                    f"{self.address} no longer knows the workflow that it was given: was it started again, or its "
                    "queue cleared?"
                )
            polls += 1
            if polls % POLLS_OF_QUEUE == 0:
                queue = self._get("/queue")
                with self._understood("/queue"):
                    is_lost = not any(
                        prompt_id in entry for name in ("queue_running", "queue_pending") for entry in queue[name]
                    )
                continue
            time.sleep(POLL_SECONDS)

    def _get(self, path: str) -> Any:
        status, answer = self._json(path)
        if status != http.client.OK:
            raise self._odd(path, f"status {status}")
        return answer

    def _json(self, path: str, data: Any = None) -> tuple[int, Any]:
        status, body = self._ask(path, data)
        try:
            return status, parse_json(body)
        except ValueError as error:
            raise self._odd(path, f"status {status}, no JSON") from error

    def _ask(self, path: str, data: Any = None) -> tuple[int, bytes]:
        """GET, or POST if there is data: status and body."""
        body = None if data is None else json.dumps(data).encode()
        request = urllib.request.Request(self.address + path, body, {"Content-Type": "application/json"})  # noqa: S310
        try:
            with self._sent(request, timeout=SECONDS) as answer:
                target, status, content = answer.headers.get("Location"), answer.status, answer.read(MAX_REPLY + 1)
        except (OSError, http.client.HTTPException) as error:
            raise ComfyError(
                f"{self.address} does not answer ({getattr(error, 'reason', None) or error or type(error).__name__}): "
                "is ComfyUI running there?"
            ) from error
        if len(content) > MAX_REPLY:
            raise self._odd(path, f"more than {MAX_REPLY:,} bytes")
        if http.client.MULTIPLE_CHOICES <= status < http.client.BAD_REQUEST:
            raise self._odd(path, f"a redirect to {quote(target, 200)}, which is not followed")
        return status, content

    def _odd(self, path: str, what: str) -> ComfyError:
        return ComfyError(f"{self.address} is no ComfyUI, or one of an unknown kind: it answered {path} with {what}")

    @contextmanager
    def _understood(self, path: str) -> Iterator[None]:
        """Report an answer of another form than ComfyUI's."""
        try:
            yield
        except ComfyError:
            raise
        except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
            raise self._odd(path, "other data than ComfyUI's") from error


def _refusal(answer: Any) -> str:
    """Words of an answer that refuses a workflow."""
    nodes = answer.get("node_errors") or {}
    errors = [(node, error) for node in nodes.values() for error in node["errors"]]
    lines = [
        f"{_text(node['class_type'])}: {_text(error['message'])} ({_text(error['details'])})"
        for node, error in errors[:MAX_ERRORS]
    ]
    return "; ".join(lines) or _text(answer["error"]["message"])


def _text(value: Any) -> str:
    """A text of the server's, shortened, or a quotation of another value in its place."""
    return shortened(value, MAX_QUOTED) if isinstance(value, str) else quote(value)


def _failure(messages: Any) -> str:
    """Words of a workflow that ended early."""
    told = dict(messages)
    if "execution_error" not in told:
        return "the workflow was interrupted"
    error = told["execution_error"]
    return f"the node {_text(error['node_type'])} failed: {_text(error['exception_message'])}"
