"""What is written for people and programs to read, whatever the console or the pipe can take.

A console of Windows, and a pipe there, often know only a few hundred characters. What they lack is written as an escape
instead of ending the command.
"""

from __future__ import annotations

import io
import json
import os
import sys
from typing import Any


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
    """Data as JSON that the output can take: in ASCII where it cannot take all characters."""
    text = json.dumps(data, ensure_ascii=False, indent=2)
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
