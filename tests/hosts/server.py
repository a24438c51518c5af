"""A host as a server of its own: started, waited for, asked over HTTP, and stopped; and our pack as hosts get it.

With WEIGHTED_CLIP_PACK=DIR in the environment hosts are given that folder as our pack, such as the unpacked archive of
a release, instead of the repository; the tests themselves compare with the repository.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..patience import SECONDS

TESTS = Path(__file__).resolve().parent
REPOSITORY = TESTS.parent.parent
PACK = "WEIGHTED_CLIP_PACK"
"""The environment variable with the folder of another copy of our pack."""


def pack_folder() -> Path:
    """Folder that hosts are given as our pack: the one that the environment names, or else the repository."""
    given = os.environ.get(PACK)
    if not given:
        return REPOSITORY
    folder = Path(given).resolve()
    assert (folder / "nodes" / "__init__.py").is_file(), f"{PACK}={given}: our pack is not in it"
    return folder


def link_folder(source: Path, target: Path) -> None:
    """Make a folder appear in another place: by a link or, where links are not allowed, as a copy."""
    try:
        target.symlink_to(source, target_is_directory=True)
    except OSError:
        ignored = shutil.ignore_patterns(".*", "__pycache__", "tests", "build", "dist")
        shutil.copytree(source, target, ignore=ignored)


@dataclass
class Server:
    """A running program that listens on loopback."""

    port: int
    log: Path
    process: subprocess.Popen[bytes]

    @property
    def address(self) -> str:
        """Address of its page, without a slash at the end."""
        return f"http://127.0.0.1:{self.port}"

    def request(
        self, path: str, data: Any = None, headers: Mapping[str, str] | None = None, *, seconds: float = SECONDS
    ) -> tuple[int, bytes]:
        """GET, or POST if there is data, bytes or what is sent as JSON: the status and the body, also of an error."""
        body = data if data is None or isinstance(data, bytes) else json.dumps(data).encode()
        request = urllib.request.Request(
            self.address + path, body, {"Content-Type": "application/json", **(headers or {})}
        )
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with opener.open(request, timeout=seconds) as response:
                return response.status, response.read()
        except urllib.error.HTTPError as error:
            return error.code, error.read()

    def answers(self, path: str) -> bool:
        """Whether there is a page at a path."""
        try:
            return self.request(path)[0] == 200
        except OSError:
            return False

    def wait(self, ask: Callable[[], Any], seconds: float, problem: str) -> Any:
        """Ask until there is an answer; fail when the time is over or the program has ended."""
        end = time.monotonic() + seconds
        while time.monotonic() < end and self.alive():
            answer = ask()
            if answer:
                return answer
            time.sleep(0.05)
        raise AssertionError(f"{problem}\n{self.log_tail()}")

    def alive(self) -> bool:
        """Whether the program still runs."""
        return self.process.poll() is None

    def log_text(self) -> str:
        """All that the program wrote."""
        return self.log.read_text(encoding="utf-8", errors="replace") if self.log.exists() else ""

    def log_tail(self) -> str:
        """The last lines that the program wrote."""
        return self.log_text()[-5000:]


def free_port() -> int:
    """A port that nothing listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@contextmanager
def started(
    command: Sequence[str | Path], log: Path, *, folder: Path, environment: Mapping[str, str]
) -> Iterator[subprocess.Popen[bytes]]:
    """Start a program in a folder, in a session of its own, and end it in the end with what it has started."""
    with log.open("wb") as stream:
        process = subprocess.Popen(
            [*map(str, command)],
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=stream,
            start_new_session=True,
        )
        try:
            yield process
        finally:
            _stop(process)


def _stop(process: subprocess.Popen[bytes]) -> None:
    """End a program, and what it has started."""
    for is_last in (False, True):
        if hasattr(os, "killpg"):
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL if is_last else signal.SIGTERM)
        elif is_last:
            process.kill()
        else:
            process.terminate()
        try:
            process.wait(20)
            return
        except subprocess.TimeoutExpired:
            continue
