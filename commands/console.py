"""What is written for people and programs to read, whatever the console or the pipe can take.

A console of Windows, and a pipe there, often know only a few hundred characters. What they lack is written as an escape
instead of ending the command. A terminal obeys some characters instead of showing them, so there these are written as
escapes too: prompts and file names come from strangers.
"""

from __future__ import annotations

import io
import json
import os
import re
import sys
import time
from typing import Any, TextIO

_UNSEEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f"  # control characters but for tab and line feed; some begin commands to a terminal
    "\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069"  # line ends, and what reverses the order of characters
    "\udc80-\udc9f]"  # bytes of an odd file name that are written as they are
)

PROGRESS_SECONDS = 5.0
"""Where progress is told in lines that stay, it is at most this often."""


def show(text: str = "", file: TextIO | None = None, *, end: str = "\n", flush: bool = False) -> None:
    """Print text; all that commands print goes through here.

    On a terminal control characters and those that reverse the order of others are shown as escapes. A file or a pipe
    gets the text as it is.

    Args:
        text: What to print.
        file: Where to; None for the output stream.
        end: What follows the text.
        flush: Whether to write it at once.
    """
    stream = sys.stdout if file is None else file
    print(visible(text) if stream.isatty() else text, file=stream, end=end, flush=flush)


def visible(text: str) -> str:
    r"""Write what a terminal would obey as escapes.

    >>> print(visible("red\x1bc cat\u202e"))
    red\x1bc cat\u202e
    """
    return _UNSEEN.sub(lambda match: match[0].encode("unicode_escape").decode("ascii"), text)


class Progress:
    """How far something has come, on the error stream.

    A terminal shows it in one line, which is written over. A file or a pipe gets whole lines, now and then: they stay.
    """

    def __init__(self) -> None:
        self._told = time.monotonic()
        self._is_shown = False

    def tell(self, line: str) -> None:
        """Show how far it is."""
        if sys.stderr.isatty():
            self.clear()
            self._is_shown = True
            show(line, sys.stderr, end="", flush=True)
        elif time.monotonic() - self._told >= PROGRESS_SECONDS:
            self._told = time.monotonic()
            show(line, sys.stderr, flush=True)

    def clear(self) -> None:
        """Clear the line on a terminal: something else is to be said, or it is done."""
        if self._is_shown:
            self._is_shown = False
            sys.stderr.write(f"\r{'':60}\r")  # older consoles of Windows print escape sequences


def write_anything() -> None:
    """Let the output and error streams escape what they cannot encode. Bytes of odd file names pass as they did."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and (stream.errors == "strict" or not _is_utf8(stream.encoding)):
            stream.reconfigure(errors="backslashreplace")


def drop_unwritable() -> None:
    """Give up what the output stream could not write, as on a full disk: at its end Python would try and fail again."""
    try:
        print(end="", flush=True)
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def json_text(data: Any) -> str:
    """Data as JSON that the output can take: in ASCII where it cannot take all characters, or would obey some."""
    text = json.dumps(data, ensure_ascii=False, indent=2)
    text = _UNSEEN.sub(lambda match: f"\\u{ord(match[0]):04x}", text)
    try:
        text.encode(sys.stdout.encoding or "utf-8")
    except UnicodeEncodeError:
        return json.dumps(data, indent=2)
    return text


def standard_input() -> str:
    """All of the standard input: UTF-8, as files with prompts are, or else what the system takes it for."""
    if not isinstance(sys.stdin, io.TextIOWrapper):
        return sys.stdin.read()
    given = sys.stdin.buffer.read()
    try:
        text = given.decode("utf-8-sig")
    except UnicodeDecodeError:
        text = given.decode(sys.stdin.encoding, sys.stdin.errors)
    return text.replace("\r\n", "\n").replace("\r", "\n")  # as text is read everywhere


def _is_utf8(encoding: str) -> bool:
    return encoding.lower().replace("-", "").replace("_", "") == "utf8"
