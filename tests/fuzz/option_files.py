"""Hostile files of options, for ``--config``: each must end in one line that names the file, or be read as it stands.

Most are of the 64 KiB that are read at most, made of what YAML can say beyond a table of texts: references, types,
nesting, documents. The others are no files, or not text.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from .limited import Outcome

SECONDS = 2.0
"""Most processor time for one file."""
MEMORY = 300 * 2**20
"""Bytes that one file may take."""
MOST_TOLD = 700
"""Most characters of a refusal besides the file's name."""
LARGE = 64_000
"""Nearly as many characters as are read."""


class OptionFile(NamedTuple):
    """A hostile file."""

    name: str
    write: Callable[[Path], object]
    is_refused: bool = True
    """Whether it must be refused; any other may be read."""


def _levels(count: int, width: int, reference: str = "*") -> str:
    """A value of ``width ** count`` entries, in a few characters for each level."""
    lines = ["&l0 [x]"]
    for level in range(1, count):
        lines.append(f"&l{level} [{','.join([f'{reference}l{level - 1}'] * width)}]")
    return f"[{', '.join(lines)}]"


VALUES = {
    "billion laughs": _levels(9, 9),
    "laughs in tables": "{a: &a {x: y}, b: &b {x: *a, y: *a}, c: {x: *b, y: *b}}",
    "a bare anchor": "&a 5",
    "an alias to nothing": "*a",
    "an alias to itself": "&a [*a]",
    "bool of foo": "!!bool foo",
    "int of nothing": '!!int ""',
    "float of foo": "!!float foo",
    "timestamp of foo": "!!timestamp foo",
    "binary": "!!binary ////",
    "a set": "!!set {a, b}",
    "pairs": "!!pairs [a: b]",
    "python name": "!!python/name:os.system",
    "python object": "!!python/object/apply:os.system [ls]",
    "python tuple": "!!python/tuple [1, 2]",
    "a tag of its own": "!x 5",
    "the tag of no tag": "! 5",
    "a tag of 60,000 characters": f"!{'t' * 60_000} 5",
    "deep lists": "[" * 60_000,
    "deep closed lists": "[" * 30_000 + "]" * 30_000,
    "deep tables": "{a: " * 15_000,
    "deep keys": "? " * 30_000,
    "a table": "{a: 1}",
    "a list in a list": "[[1]]",
    "an unclosed quote": '"' + "x" * LARGE,
    "a wrong escape": '"\\xZZ"',
    "a tab": "\t- 5",
    "octal": "010",
}
"""Values that no option takes. In the place of a text of any option."""
NUMBERS = {
    "5,000 digits": "7" * 5000,
    "60,000 digits": "7" * 60_000,
    "digits of Arabic": "٠١٢٣٤x",
    "an infinite number": ".inf",
    "not a number": ".nan",
    "sexagesimal": "1:30:00",
    "a date": "2026-11-28",
    "a text": "many",
    "text of 60,000 characters": "x" * 60_000,
    "a block": "|\n  one\n  two",
    "an empty text": "''",
    "a bool": "true",
    "a list of numbers": "[1, 2]",
}
"""Values that no option of a whole number takes."""
KEYS = ("steps", "weight_decay", "mirror", "watch", "weights", "towers", "data")
"""An option of each kind: a whole number, a number, a flag, several texts, a file, a choice and the positional one."""
WHOLE = ("steps", "seed", "context-length", "held_out", "keep-tags")


def _texts() -> Iterator[tuple[str, str | bytes]]:
    """Whole files that must be refused."""
    for name, value in VALUES.items():
        for key in KEYS:
            yield f"{name}: {key}", f"seed: 1\n{key}: {value}\n"
    for name, value in NUMBERS.items():
        for key in WHOLE:
            yield f"{name}: {key}", f"mirror: true\n{key}: {value}\n"
    for number in range(0, 20):  # the fault's own file, grown
        yield f"laughs of {number + 2} levels", f"steps: {_levels(number + 2, 9)}\n"
    yield from {
        "nothing": "",
        "blank lines": "\n" * LARGE,
        "a comment": "#" * LARGE,
        "a million keys": "".join(f"k{number}: 1\n" for number in range(1_000_000)),
        "8,000 keys": "".join(f"k{number}: 1\n" for number in range(4_000)),
        "one key 8,000 times": "steps: 1\n" * 7_000,
        "one key in two spellings": "save_every: 5\nsave-every: 5\n",
        "a key of 60,000 characters": f"{'k' * 60_000}: 1\n",
        "a key that is a list": "? [steps]\n: 5\n",
        "a key that is a table": "? {a: b}\n: 5\n",
        "an anchored key": "&a steps: 5\n",
        "an alias as a key": "&a x: y\n*a : z\n",
        "a tagged key": "!!str steps: 5\n",
        "merge keys": "<<: {steps: 5}\n",
        "merge keys of 9 levels": f"<<: {_levels(9, 9)}\n",
        "a tagged root": "!!map\nsteps: 5\n",
        "an anchored root": "&a\nsteps: 5\n",
        "an ordered root": "!!omap\n- steps: 5\n",
        "two documents": "steps: 5\n---\nseed: 1\n",
        "30,000 documents": "---\n" * 15_000,
        "an unknown directive's version": "%YAML 9.9\n---\nsteps: 5\n",
        "20,000 directives": "%TAG ! !\n" * 7_000,
        "an undefined handle": f"steps: !{'h' * 20_000}!x 5\n",
        "a list": "- steps\n",
        "a text": "steps\n",
        "a number": "5\n",
        "deep lists as a root": "[" * LARGE,
        "deep tables as a root": "{" * LARGE,
        "depth of 100,000": "[" * 100_000,
        "quotes": "'" * LARGE,
        "questions": "?" * LARGE,
        "colons": ": " * (LARGE // 2),
        "dashes": "- " * (LARGE // 2),
        "percent": "%" * LARGE,
        "bars": "|\n" * (LARGE // 2),
        "ampersands": "&" * LARGE,
        "stars": "*" * LARGE,
        "exclamations": "!" * LARGE,
        "steps of lines": "\n".join(" " * depth + "a:" for depth in range(350)),
        "a file in a file": "config: other.yaml\n",
        "help": "help: true\n",
        "exclusive options": "steps: 5\nepochs: 5\n",
        "a null": "steps: 5\0\n",
        "an escape": "steps: \x1b[2J\n",
        "UTF-16": "\ufeffsteps: 5\n".encode("utf-16-le"),
        "UTF-16 big-endian": "\ufeffsteps: 5\n".encode("utf-16-be"),
        "UTF-16 without a mark": "steps: 5\n".encode("utf-16-le"),
        "UTF-32": "steps: 5\n".encode("utf-32"),
        "Latin": b"word: caf\xe9\n",
        "two marks": b"\xef\xbb\xbf\xef\xbb\xbfsteps: x\n",
        "zeros": bytes(LARGE),
        "bytes": bytes(range(256)) * 200,
        "an archive": b"PK\x03\x04" + bytes(100),
        "gzip": b"\x1f\x8b" + bytes(100),
        "a page": b"<!doctype html><title>Not found</title>",
        "16 MiB": b"#" * 2**24,
    }.items()


def option_files() -> Iterator[OptionFile]:
    """All files."""
    for name, text in _texts():
        content = text if isinstance(text, bytes) else text.encode()
        yield OptionFile(name, lambda path, content=content: path.write_bytes(content))
    yield OptionFile("a mark of UTF-8", lambda path: path.write_bytes(b"\xef\xbb\xbfsteps: 5\n"), is_refused=False)
    half = b'watch: "\\ud800"\n'
    yield OptionFile("half a character", lambda path: path.write_bytes(half), is_refused=False)
    yield OptionFile("lines of Windows", lambda path: path.write_bytes(b"steps: 5\r\nseed: 1\r\n"), is_refused=False)
    texts = "watch: [" + "x, " * 20_000 + "x]\n"
    yield OptionFile("20,000 texts", lambda path: path.write_text(texts), is_refused=False)
    yield OptionFile("nothing there", lambda path: None)
    yield OptionFile("a folder", Path.mkdir)
    yield OptionFile("a pipe", os.mkfifo)
    for device in ("zero", "full", "random", "tty", "stdin"):
        yield OptionFile(f"a link to /dev/{device}", lambda path, device=device: path.symlink_to(f"/dev/{device}"))
    yield OptionFile("a link to itself", lambda path: path.symlink_to(path.name))
    yield OptionFile("a link to nothing", lambda path: path.symlink_to("nothing"))
    yield OptionFile("a hole of 1 TiB", lambda path: os.truncate(os.open(path, os.O_RDWR | os.O_CREAT), 2**40))


def words(path: Path) -> list[str]:
    """The command that reads such a file."""
    return ["train", "pairs", "--out", "o", "--config", str(path)]


def wrong(file: OptionFile, path: Path, outcome: Outcome) -> str:
    """Fault of the end of the command, or nothing."""
    told = outcome.told.strip()
    if isinstance(outcome.status, str):
        return outcome.status
    if outcome.seconds > SECONDS:
        return f"takes {outcome.seconds:.1f} s"
    if not told or "Traceback" in told or len(told.splitlines()) > 1:
        return f"ends with {outcome.status}, and not one line: {told[-200:]}"
    if len(told) > MOST_TOLD + len(str(path)):
        return f"is refused in {len(told):,} characters"
    if file.is_refused and (outcome.status != 2 or f"--config {path}" not in told):
        return f"is not refused by its name, but: {told[:200]}"
    return ""
