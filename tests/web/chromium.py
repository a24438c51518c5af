"""Headless Chromium, driven through its DevTools protocol over a pipe: needs a Chromium and nothing else.

Source: https://chromedevtools.github.io/devtools-protocol/, by
--remote-debugging-pipe: messages are JSON and end with NUL.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import select
import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ..patience import SECONDS

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
ARGUMENTS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run", "--no-proxy-server"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
)


@contextlib.contextmanager
def running_browser(profile: Path) -> Iterator[Browser]:
    """Start a browser, and end it; ``profile`` is an empty folder for what it keeps."""
    fcntl = pytest.importorskip("fcntl", reason="a browser is driven over a pipe, which needs POSIX")
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        pytest.skip(f"no browser ({', '.join(BROWSERS)}): apt-get install chromium")
    to_browser, from_browser = os.pipe(), os.pipe()
    log = os.open(profile / "chromium.log", os.O_WRONLY | os.O_CREAT, 0o600)
    theirs = (to_browser[0], from_browser[1], log, log)
    # away from the numbers at which the browser looks for them
    ends = [fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 10) for end in theirs]
    process = os.posix_spawn(
        browser,
        [browser, *ARGUMENTS, "--remote-debugging-pipe", f"--user-data-dir={profile}", "about:blank"],
        os.environ,
        file_actions=[(os.POSIX_SPAWN_DUP2, end, place) for end, place in zip(ends, (3, 4, 1, 2), strict=True)],
        setpgroup=0,
    )
    for end in {*theirs, *ends}:
        os.close(end)
    pipe = _Pipe(from_browser[0], to_browser[1])
    try:
        yield Browser(pipe)
    finally:
        with contextlib.suppress(OSError, AssertionError):
            pipe.call("Browser.close")
        _end(process)
        os.close(from_browser[0])
        os.close(to_browser[1])


@contextlib.contextmanager
def running_chromium(profile: Path, *, width: int = 1280, height: int = 1400) -> Iterator[Tab]:
    """Start a browser of its own for one tab, as in `Browser.tab`, and end it."""
    with running_browser(profile) as browser, browser.tab(width=width, height=height) as tab:
        yield tab


class Browser:
    """A browser that runs."""

    def __init__(self, pipe: _Pipe) -> None:
        self._pipe = pipe

    @contextlib.contextmanager
    def tab(self, *, width: int = 1280, height: int = 1400) -> Iterator[Tab]:
        """An empty tab in a window of that size, in pixels, that shares no storage with others."""
        context = self._pipe.call("Target.createBrowserContext")["browserContextId"]
        wanted = {"url": "about:blank", "width": width, "height": height, "newWindow": True}
        target = self._pipe.call("Target.createTarget", {**wanted, "browserContextId": context})["targetId"]
        session = self._pipe.call("Target.attachToTarget", {"targetId": target, "flatten": True})["sessionId"]
        try:
            yield Tab(self._pipe, session, context)
        finally:
            with contextlib.suppress(OSError, AssertionError):
                self._pipe.call("Target.disposeBrowserContext", {"browserContextId": context})
            self._pipe.events = [one for one in self._pipe.events if one.get("sessionId") != session]


def _end(process: int) -> None:
    """Wait for the browser's end; after a while, force it."""
    end = time.monotonic() + 10
    while os.waitpid(process, os.WNOHANG)[0] == 0:
        if time.monotonic() > end:
            os.killpg(process, signal.SIGKILL)
            os.waitpid(process, 0)
            return
        time.sleep(0.05)


class _Pipe:
    """Messages to and from the browser."""

    def __init__(self, source: int, target: int) -> None:
        self.events: list[dict[str, Any]] = []
        """Unsolicited messages of the browser."""
        self._source = source
        self._target = target
        self._left = b""
        self._count = 0

    def call(self, method: str, parameters: dict[str, Any] | None = None, session: str | None = None) -> dict[str, Any]:
        """Call a method of the protocol and wait for its result."""
        self._count += 1
        message: dict[str, Any] = {"id": self._count, "method": method, "params": parameters or {}}
        if session is not None:
            message["sessionId"] = session
        left = json.dumps(message).encode() + b"\0"
        while left:
            left = left[os.write(self._target, left) :]
        end = time.monotonic() + SECONDS
        while True:
            answer = self._next(end - time.monotonic(), method)
            if answer.get("id") != self._count:
                self.events.append(answer)
                continue
            assert "error" not in answer, f"{method}: {answer['error']}"
            return answer["result"]

    def _next(self, seconds: float, method: str) -> dict[str, Any]:
        while b"\0" not in self._left:
            readable, _, _ = select.select([self._source], [], [], max(0, seconds))
            assert readable, f"{method}: no answer within {SECONDS} s"
            data = os.read(self._source, 1 << 16)
            assert data, f"{method}: the browser has ended"
            self._left += data
        message, self._left = self._left.split(b"\0", 1)
        return json.loads(message)


class Tab:
    """A page in the browser."""

    def __init__(self, pipe: _Pipe, session: str, context: str) -> None:
        self._pipe = pipe
        self._session = session
        self._context = context
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")
        self.call("Emulation.setFocusEmulationEnabled", enabled=True)

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Call a method of the protocol."""
        return self._pipe.call(method, parameters, self._session)

    def open(self, address: str) -> None:
        """Go to an address."""
        result = self.call("Page.navigate", url=address)
        assert "errorText" not in result, f"{address}: {result['errorText']}"

    def run(self, script: str, *arguments: Any) -> Any:
        """The value of a function body; a promise is waited for, and what it throws fails the test."""
        given = ", ".join(map(json.dumps, arguments))
        expression = f"(async (...args) => {{ {script} }})({given})"
        result = self.call("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        thrown = result.get("exceptionDetails", {})
        assert not thrown, f"{thrown.get('exception', thrown)}\nin {script}"
        return result["result"].get("value")

    def wait(self, script: str, *arguments: Any, seconds: float = SECONDS) -> Any:
        """Run a function body until its value is true."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            try:
                value = self.run(script, *arguments)
            except AssertionError as error:  # the page is just leading to another
                if "navigated" not in str(error):
                    raise
                value = None
            if value:
                return value
            time.sleep(0.05)
        raise AssertionError(f"never true within {seconds} s: {script}\n{self.complaints()[-10:]}")

    def type(self, text: str) -> None:
        """Type into what has the focus, a key for each character."""
        for character in text:
            self.call("Input.dispatchKeyEvent", type="char", text=character)

    def paste(self, text: str) -> None:
        """Put text at once into what has the focus."""
        self.call("Input.insertText", text=text)

    def press_backspace(self) -> None:
        """Press that key."""
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key="Backspace", windowsVirtualKeyCode=8)

    def allow_clipboard(self) -> None:
        """Let pages read and write the clipboard, as a user would."""
        permissions = ["clipboardReadWrite", "clipboardSanitizedWrite"]
        self._pipe.call("Browser.grantPermissions", {"permissions": permissions, "browserContextId": self._context})

    def _events(self, method: str) -> list[dict[str, Any]]:
        """Parameters of all events of a kind in this tab."""
        events = [one for one in self._pipe.events if one.get("sessionId") == self._session]
        return [one["params"] for one in events if one["method"] == method]

    def requests(self) -> list[str]:
        """Addresses of everything that the page asked for."""
        self.run("")
        return [one["request"]["url"] for one in self._events("Network.requestWillBeSent")]

    def complaints(self) -> list[str]:
        """Errors in the page's scripts, and what else the browser logged as an error."""
        thrown = [json.dumps(one["exceptionDetails"]) for one in self._events("Runtime.exceptionThrown")]
        entries = [one["entry"] for one in self._events("Log.entryAdded")]
        return thrown + [json.dumps(one) for one in entries if one["level"] == "error"]

    def prefer(self, scheme: str) -> None:
        """Let the page believe that the user likes ``dark`` or ``light``."""
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def screenshot(self, path: Path) -> None:
        """Save what the window shows, as PNG."""
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"]))
