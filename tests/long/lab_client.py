"""A user of the lab without a browser: what the page sends when something on it changes, over the same addresses."""

from __future__ import annotations

import http.client
import json
import subprocess
import sys
import urllib.parse
import uuid
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
SECONDS = 900
"""That an answer may take before something hangs."""


class Lab:
    """A lab that runs as a program of its own."""

    def __init__(self, address: str, process_id: int) -> None:
        _, self.netloc, self.root, *_ = urllib.parse.urlsplit(address.rstrip("/"))
        self.process_id = process_id
        dependencies = json.loads(self.request("GET", "/config"))["dependencies"]
        self.functions: dict[str, int] = {one["api_name"]: one["id"] for one in dependencies}
        """Numbers of the page's handlers by name."""

    def request(self, method: str, path: str, data: Any = None) -> bytes:
        """The body of an answer."""
        with closing(http.client.HTTPConnection(self.netloc, timeout=SECONDS)) as connection:
            body = None if data is None else json.dumps(data)
            connection.request(method, self.root + path, body, {"Content-Type": "application/json"})
            answer = connection.getresponse()
            text = answer.read()
            assert answer.status == 200, f"{path}: {answer.status} {text[:2000]!r}"
            return text


@contextmanager
def running_lab(folder: Path, *options: str) -> Iterator[Lab]:
    """Start a lab, on one thread for arithmetic, on a port of its own; it must have nothing to complain of."""
    command = [sys.executable, "-P", str(ROOT / "__main__.py"), "lab", "--no-browser", "--port", "0", *options]
    log = folder / "lab.log"
    with log.open("wb") as errors, _process(command, errors) as process:
        assert process.stdout is not None
        line = process.stdout.readline().decode()
        while line and not line.startswith("Prompt Lab: "):
            line = process.stdout.readline().decode()
        assert line, log.read_text(encoding="utf-8", errors="replace")[-4000:]
        yield Lab(line.split()[2], process.pid)
        assert process.poll() is None, "the lab has ended by itself"
    complaints = log.read_text(encoding="utf-8", errors="replace")
    assert "Traceback" not in complaints, complaints[-4000:]


@contextmanager
def _process(command: Sequence[str], errors: Any) -> Iterator[subprocess.Popen[bytes]]:
    from weighted_clip.workshop.job import own_environment

    # one place for all threads' memory: else the C library keeps what each of them has freed, for itself
    environment = {**own_environment(), "OMP_NUM_THREADS": "1", "MALLOC_ARENA_MAX": "1"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, env=environment) as process:
        try:
            yield process
        finally:
            process.terminate()
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()


class Client:
    """One user with the page open."""

    def __init__(self, lab: Lab) -> None:
        self._lab = lab
        self._session = uuid.uuid4().hex[:11]

    def ask(self, name: str, *values: Any) -> list[Any]:
        """Answer of a handler that does not wait in the queue; session states are passed as None."""
        answer = self._lab.request("POST", f"/gradio_api/run/{name}", self._event(name, values))
        return json.loads(answer)["data"]

    def queue(self, name: str, *values: Any) -> Iterator[list[Any]]:
        """Each answer of a handler that waits in the queue; of later ones, only what has changed may be in it."""
        event = json.loads(self._lab.request("POST", "/gradio_api/queue/join", self._event(name, values)))["event_id"]
        with closing(http.client.HTTPConnection(self._lab.netloc, timeout=SECONDS)) as connection:
            connection.request("GET", f"{self._lab.root}/gradio_api/queue/data?session_hash={self._session}")
            answer = connection.getresponse()
            assert answer.status == 200
            for line in answer:
                message = json.loads(line[5:]) if line.startswith(b"data:") else {}
                if message.get("event_id", event) != event:
                    continue
                if message.get("msg") in ("process_generating", "process_completed"):
                    assert message["success"], message
                    yield message["output"]["data"]
                if message.get("msg") == "process_completed":
                    return
        raise AssertionError(f"{name} was never completed")

    def download(self, path: str) -> bytes:
        """A file that the lab has made."""
        return self._lab.request("GET", f"/gradio_api/file={urllib.parse.quote(path)}")

    def _event(self, name: str, values: Sequence[Any]) -> dict[str, Any]:
        return {"data": values, "fn_index": self._lab.functions[name], "session_hash": self._session}
