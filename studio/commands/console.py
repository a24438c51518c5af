"""Output for people and programs, adapted to the console or pipe.

Consoles and pipes on Windows often support only a few hundred characters. Others are written as escapes instead of
ending the command. A terminal interprets some characters instead of showing them, so these are escaped there too:
prompts and file names come from strangers.
"""

from __future__ import annotations

import argparse
import codecs
import io
import json
import os
import re
import sys
import time
from typing import Any, TextIO

from ...encoder.quoting import quote

_UNSEEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f"  # control characters except tab and line feed; some start terminal commands
    "\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069"  # line ends, and characters that reverse the order of others
    "\udc80-\udc9f]"  # undecodable bytes of a file name, which are written as they are
)

_UNDECODED = re.compile("[\ud800-\udfff]")

PROGRESS_SECONDS = 5.0
"""Minimum interval of progress messages in output that keeps its lines."""


def show(text: str = "", file: TextIO | None = None, *, end: str = "\n", flush: bool = False) -> None:
    """Print text; all output of commands goes through here.

    On a terminal control characters and those that reverse the order of others are shown as escapes. A file or a pipe
    gets the text as it is.
    """
    stream = sys.stdout if file is None else file
    print(visible(text) if stream.isatty() else text, file=stream, end=end, flush=flush)


def visible(text: str) -> str:
    r"""Escape characters that a terminal would interpret.

    >>> print(visible("red\x1bc cat\u202e"))
    red\x1bc cat\u202e
    """
    return _UNSEEN.sub(lambda match: match[0].encode("unicode_escape").decode("ascii"), text)


class Progress:
    """Progress of a task, on the error stream.

    A terminal shows it in one line, which is overwritten. A file or a pipe keeps its lines, so it gets whole ones from
    time to time.
    """

    def __init__(self) -> None:
        self._told = time.monotonic()
        self._is_shown = False

    def tell(self, line: str) -> None:
        """Show the current progress."""
        if sys.stderr.isatty():
            self.clear()
            self._is_shown = True
            show(line, sys.stderr, end="", flush=True)
        elif time.monotonic() - self._told >= PROGRESS_SECONDS:
            self._told = time.monotonic()
            show(line, sys.stderr, flush=True)

    def clear(self) -> None:
        """Clear the line on a terminal, before other output or at the end."""
        if self._is_shown:
            self._is_shown = False
            sys.stderr.write(f"\r{'':60}\r")  # older Windows consoles print escape sequences


def write_anything() -> None:
    """Let output and error streams escape characters they cannot encode. Undecodable bytes of file names still pass."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and (
            stream.errors == "strict" or codecs.lookup(stream.encoding).name != "utf-8"
        ):
            stream.reconfigure(errors="backslashreplace")


def drop_unwritable() -> None:
    """Discard output that could not be written, e.g. on a full disk: Python would try again at exit, and fail."""
    try:
        print(end="", flush=True)
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def json_text(data: Any) -> str:
    """Data as JSON the output can represent: in ASCII if it lacks some characters, or would interpret some."""
    text = json.dumps(data, ensure_ascii=False, indent=2)
    text = _UNSEEN.sub(lambda match: f"\\u{ord(match[0]):04x}", text)
    try:
        text.encode(sys.stdout.encoding or "utf-8")
    except UnicodeEncodeError:
        return json.dumps(data, indent=2)
    return text


PATHS = ("batch", "name")
"""Arguments that are names of files, although no type says so: those need not be UTF-8."""


def check_texts(arguments: argparse.Namespace) -> None:
    """Refuse texts among the arguments of any command that the system did not give as UTF-8."""
    for name, value in vars(arguments).items():
        for text in value if isinstance(value, list) else [value]:
            if isinstance(text, str) and name not in PATHS:
                _check_decoded(text, name.replace("_", "-"))


def standard_input() -> str:
    """All of the standard input, decoded as UTF-8 like files of prompts, or else by the system's encoding."""
    if not isinstance(sys.stdin, io.TextIOWrapper):
        return sys.stdin.read()
    content = sys.stdin.buffer.read()
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError:
        text = content.decode(sys.stdin.encoding, "surrogateescape")
        _check_decoded(text, "standard input")
    return text.replace("\r\n", "\n").replace("\r", "\n")  # as in all text that is read


def _check_decoded(text: str, where: str) -> None:
    if undecoded := _UNDECODED.search(text):
        code = ord(undecoded[0])
        what = f"the byte {code - 0xDC00:#04x}" if 0xDC80 <= code <= 0xDCFF else "half of a character"
        before = text[max(0, undecoded.start() - 20) : undecoded.start()]
        line = text.count("\n", 0, undecoded.start()) + 1
        raise ValueError(
            f"{where}: line {line} has {what} after {quote(before)}, which is not UTF-8; give the text as UTF-8"
        )
