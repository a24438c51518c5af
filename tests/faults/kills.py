"""Files written by processes that pause and are killed anywhere; what they leave behind is then looked at.

    python -m tests.faults.kills --count 2000

Run it in the repository's root, on a system with fork. In each round one to three processes write the same file, or
copy the same files. Each stops for some milliseconds at random lines of the code, ours or Python's, and two of
three are killed at one. Then a file must be whole and of someone who wrote it, nobody else may have been hindered,
nothing may be lost, and one more write, that nobody disturbs, must succeed and leave nothing beside its file. The exit
status is 1 if something else was found.
"""

from __future__ import annotations

import argparse
import errno
import json
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from ..fuzz.campaign import load

OLD, LAST = 8, 9
"""Numbers of the versions that are there before and written afterwards; the processes write versions 0 to 2."""
SECONDS = 300
"""After so long a process never ends."""
MAX_SHOWN = 10
"""Findings that are printed; all are counted."""


class Outcome(NamedTuple):
    """End of one process of a round."""

    number: int
    is_killed: bool
    error: str | None
    """Error that it ended with, or None."""

    @property
    def is_ok(self) -> bool:
        return not self.is_killed and self.error is None


class Kind:
    """Something that is written, for one round in a folder of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def prepare(self, rng: random.Random) -> None:
        """Write what is there before."""
        raise NotImplementedError

    def work(self, number: int) -> None:
        """Write, in a process of its own."""
        raise NotImplementedError

    def problems(self, outcomes: Sequence[Outcome]) -> Iterator[str]:
        """Name what is wrong after the processes have ended, and after one more write."""
        raise NotImplementedError


def content(number: int) -> bytes:
    return f"{number}:".encode() + random.Random(number).randbytes(5_000) + f":{number}".encode()


def write_in_parts(place: Path, number: int) -> None:
    data = content(number)
    with place.open("wb") as file:
        for start in range(0, len(data), 1_000):
            file.write(data[start : start + 1_000])
            file.flush()


@contextmanager
def no_links() -> Iterator[None]:
    """A file system without hard links."""
    before = os.link

    def link(*_: object, **__: object) -> None:
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    os.link = link
    try:
        yield
    finally:
        os.link = before


class Replaced(Kind):
    """A file of which each version replaces the last."""

    name = "file"

    @property
    def path(self) -> Path:
        return self.folder / self.name

    def prepare(self, rng: random.Random) -> None:
        self.had_old = rng.random() < 0.7
        if self.had_old:
            self.work(OLD)

    def work(self, number: int) -> None:
        from weighted_clip.studio.output.files import written_whole

        with written_whole(self.path) as place:
            write_in_parts(place, number)

    def version(self) -> int:
        """Number of the version that is there; an error if it is not whole."""
        data = self.path.read_bytes()
        number = int(data[:2].partition(b":")[0])
        if data != content(number):
            raise ValueError(f"{len(data)} bytes, not those of version {number}")
        return number

    def problems(self, outcomes: Sequence[Outcome]) -> Iterator[str]:
        allowed: set[int | None] = {one.number for one in outcomes if one.error is None}
        if not any(one.is_ok for one in outcomes):
            allowed.add(OLD if self.had_old else None)
        yield from self._wrong(allowed)
        yield from (f"process {one.number} fails: {one.error}" for one in outcomes if one.error)
        self.work(LAST)
        yield from self._wrong({LAST})
        yield from beside(self.folder, [self.name])

    def _wrong(self, allowed: set[int | None]) -> Iterator[str]:
        try:
            found = self.version() if self.path.exists() else None
        except Exception as error:
            yield f"not whole: {type(error).__name__}: {error}"
            return
        if found not in allowed:
            yield f"version {found} is there, not one of {sorted(map(str, allowed))}"


class Folder(Replaced):
    """A folder that replaces another one."""

    name = "folder"

    def work(self, number: int) -> None:
        from weighted_clip.studio.output.files import folder_written_whole

        with folder_written_whole(self.path, may_replace=True) as whole:
            for name in "ab":
                write_in_parts(whole / name, number)

    def version(self) -> int:
        (number,) = {int(path.read_bytes()[:2].partition(b":")[0]) for path in self.path.iterdir()}
        if any((self.path / name).read_bytes() != content(number) for name in "ab"):
            raise ValueError(f"not the files of version {number}")
        return number

    def problems(self, outcomes: Sequence[Outcome]) -> Iterator[str]:
        written: set[int | None] = {one.number for one in outcomes if one.error is None}
        if not all(one.is_ok for one in outcomes):  # Linux exchanges them in one step, so that there always is one
            written |= {OLD} if self.had_old and sys.platform == "linux" else {OLD, None}
        yield from self._wrong(written)
        for one in outcomes:  # of two at once, which no run allows, one may find the other's
            if one.error and "not empty" not in one.error:
                yield f"process {one.number} fails: {one.error}"
        self.work(LAST)
        yield from self._wrong({LAST})
        yield from beside(self.folder, [self.name])


class New(Replaced):
    """A file that is written once."""

    def prepare(self, rng: random.Random) -> None:
        pass

    def work(self, number: int) -> None:
        from weighted_clip.studio.output.files import written_whole

        with written_whole(self.path, may_replace=False) as place:
            write_in_parts(place, number)

    def problems(self, outcomes: Sequence[Outcome]) -> Iterator[str]:
        ok = [one.number for one in outcomes if one.is_ok]
        killed = [one.number for one in outcomes if one.is_killed]
        if len(ok) > 1 or not (ok or killed):
            yield f"{len(ok)} of {len(outcomes)} say that they wrote it"
        yield from self._wrong({*ok} if ok else {None, *killed})
        for one in outcomes:
            if one.error and "exists" not in one.error and "busy" not in one.error:
                yield f"process {one.number} fails: {one.error}"
        before = self.version() if self.path.exists() else LAST
        try:
            self.work(LAST)
        except OSError:
            if before == LAST:
                yield "nothing is there, and it cannot be written"
        yield from self._wrong({before})
        yield from beside(self.folder, [self.name])


class NewWithoutLinks(New):
    """The same where there are no hard links."""

    def work(self, number: int) -> None:
        with no_links():
            super().work(number)


class Copied(Kind):
    """Files that are copied to other folders."""

    names = ("a", "b", "c", "d")

    def prepare(self, rng: random.Random) -> None:
        (self.folder / "from").mkdir()
        for number, name in enumerate(self.names):
            self.source(name).write_bytes(content(number))

    def source(self, name: str) -> Path:
        return self.folder / "from" / name

    def target(self, name: str) -> Path:
        return self.folder / "to" / ("x" if name in "ab" else "y") / name

    def work(self, number: int) -> None:
        from weighted_clip.studio.output.file_copies import Placement, place_files

        place_files([Placement(self.source(name), self.target(name)) for name in self.names])

    def problems(self, outcomes: Sequence[Outcome]) -> Iterator[str]:
        yield from self._lost()
        if not any(one.is_killed or one.is_ok for one in outcomes):
            yield "nobody succeeds"
        if any(one.is_ok for one in outcomes):
            yield from (f"{name} is not there" for name in self.names if not self.target(name).exists())
        for one in outcomes:
            if one.error and "another run" not in one.error:
                yield f"process {one.number} fails: {one.error}"
        self.work(LAST)
        yield from self._lost()
        yield from (f"{name} is not there in the end" for name in self.names if not self.target(name).exists())
        for folder, names in (("x", "ab"), ("y", "cd")):
            yield from beside(self.folder / "to" / folder, names)

    def _lost(self) -> Iterator[str]:
        for number, name in enumerate(self.names):
            there = [path for path in (self.source(name), self.target(name)) if path.exists()]
            if not self.source(name).exists():
                yield f"{name} is lost"
            yield from (f"{path} is not whole" for path in there if path.read_bytes() != content(number))


class Rewritten(Replaced):
    """A safetensors file with other metadata."""

    name = "file.safetensors"

    def work(self, number: int) -> None:
        from weighted_clip.studio.output.files import written_whole

        with written_whole(self.path) as place:
            self._rewrite(place, number)

    def _rewrite(self, place: Path, number: int) -> None:
        from weighted_clip.studio.output.rewriting import rewrite

        source = self.folder.with_name("source.safetensors")
        if not source.exists():
            header = json.dumps({"x": {"dtype": "U8", "shape": [5_000], "data_offsets": [0, 5_000]}}).encode()
            source.write_bytes(len(header).to_bytes(8, "little") + header + content(0)[:5_000])
        rewrite(source, place, {}, {"version": str(number)})

    def version(self) -> int:
        data = self.path.read_bytes()
        number = int(json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])["__metadata__"]["version"])
        self._rewrite(self.folder.with_name("expected"), number)
        if data != self.folder.with_name("expected").read_bytes():
            raise ValueError(f"{len(data)} bytes, not those of version {number}")
        return number


class Shard(Replaced):
    """A shard of encoded prompts."""

    name = "prompts-00000000.safetensors"

    def work(self, number: int) -> None:
        import torch
        from weighted_clip.encoder.encoding import Encoding
        from weighted_clip.studio.output.shards import ShardHead, write_shard

        rows = [Encoding(torch.full((7, 8), float(number)), torch.full((8,), float(number))) for _ in "abc"]
        write_shard(self.path, ShardHead(0, (f"a {number}", "b", "c"), {"version": str(number)}), rows)

    def version(self) -> int:
        from weighted_clip.studio.output.shards import read_head, read_shards

        number = int(read_head(self.path).about["version"])
        lines = [*read_shards(self.folder)]
        if len(lines) != 3 or lines[0].text != f"a {number}" or any((line.hidden != number).any() for line in lines):
            raise ValueError(f"not the lines of version {number}")
        return number


class Checkpoint(Replaced):
    """The checkpoint of a run."""

    name = "checkpoint.pt"

    def work(self, number: int) -> None:
        import torch
        from weighted_clip.studio.training import checkpoint

        checkpoint.save(self.folder, {"step": number, "model": {"x": torch.full((1_000,), float(number))}})

    def version(self) -> int:
        from weighted_clip.studio.training import checkpoint

        state = checkpoint.load(self.folder)
        if (state["model"]["x"] != state["step"]).any():
            raise ValueError(f"not the tensors of version {state['step']}")
        return state["step"]


LIGHT: dict[str, type[Kind]] = {
    "replaced": Replaced,
    "folder": Folder,
    "new": New,
    "new without links": NewWithoutLinks,
    "copied": Copied,
    "rewritten": Rewritten,
}
"""Kinds that need no PyTorch."""
KINDS: dict[str, type[Kind]] = {**LIGHT, "shard": Shard, "checkpoint": Checkpoint}


def beside(folder: Path, names: Sequence[str]) -> Iterator[str]:
    """Name what else is in a folder."""
    left = sorted(path.name for path in folder.iterdir() if path.name not in names)
    if left:
        yield f"left beside it: {left}"


def child(act: Callable[[], None], lines: dict[int, float | None]) -> tuple[int, int]:
    """Begin a process, and return its number and the pipe that tells how it ends.

    Args:
        act: Work of the process.
        lines: Seconds of rest by number of lines run before; None to be killed there.
    """
    reading, writing = os.pipe()
    process = os.fork()
    if process:
        os.close(writing)
        return process, reading
    signal.alarm(SECONDS)
    count = 0

    def trace(_: object, event: str, __: object) -> Callable[..., Any]:
        nonlocal count
        if event == "line":
            count += 1
            if count in lines:
                rest = lines[count]
                if rest is None:
                    os.kill(os.getpid(), signal.SIGKILL)
                else:
                    time.sleep(rest)
        return trace

    error: str | None = None
    sys.settrace(trace)
    try:
        act()
    except Exception as raised:
        error = f"{type(raised).__name__}: {raised}"
    finally:
        sys.settrace(None)
    os.write(writing, json.dumps([error, count]).encode())
    os._exit(0)


def ended(number: int, process: int, reading: int) -> tuple[Outcome, int]:
    """End of a process, and the number of lines that it ran."""
    with os.fdopen(reading, "rb") as pipe:
        told = pipe.read()
    status = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
    if status == -signal.SIGKILL:
        return Outcome(number, True, None), 0
    if status:
        return Outcome(number, False, f"ends with status {status}"), 0
    error, count = json.loads(told)
    return Outcome(number, False, error), count


def num_lines(kind: type[Kind]) -> int:
    """Number of lines that one undisturbed process runs."""
    with tempfile.TemporaryDirectory() as place:
        made(kind, place, random.Random(0)).work(0)  # imports what is needed, which processes then need not do
    with tempfile.TemporaryDirectory() as place:
        one = made(kind, place, random.Random(0))
        return ended(0, *child(lambda: one.work(0), {}))[1]


def made(kind: type[Kind], place: str, rng: random.Random) -> Kind:
    folder = Path(place, "round")
    folder.mkdir()
    one = kind(folder)
    one.prepare(rng)
    return one


def one_round(kind: type[Kind], length: int, rng: random.Random) -> tuple[list[Outcome], list[str]]:
    """Let processes write, and look at what they leave."""
    with tempfile.TemporaryDirectory() as place:
        one = made(kind, place, rng)
        begun: list[tuple[int, int]] = []
        for number in range(rng.choice((1, 2, 2, 3))):
            lines: dict[int, float | None] = {rng.randrange(1, length): rng.uniform(0, 0.004) for _ in range(3)}
            if rng.random() < 2 / 3:
                lines[rng.randrange(1, length)] = None
            begun.append(child(lambda number=number: one.work(number), lines))
        outcomes = [ended(number, *both)[0] for number, both in enumerate(begun)]
        try:
            found = [*one.problems(outcomes)]
        except Exception as error:
            found = [f"one more write fails: {type(error).__name__}: {error}"]
        return outcomes, [problem.replace(place, "") for problem in found]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kinds", nargs="*", metavar="KIND", help=f"which ({', '.join(KINDS)}; all)")
    parser.add_argument("--count", type=int, default=2000, metavar="N", help="rounds of all kinds together (2000)")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of pauses and kills (0)")
    options = parser.parse_args()
    unknown = [name for name in options.kinds if name not in KINDS]
    if unknown:
        parser.error(f"no such kind: {', '.join(unknown)}; there are: {', '.join(KINDS)}")
    load()
    names = options.kinds or [*KINDS]
    lengths = {name: num_lines(KINDS[name]) for name in names}
    counts: Counter[tuple[str, str]] = Counter()
    for number in range(options.count):
        name = names[number % len(names)]
        rng = random.Random(f"{options.seed}/{number}")
        outcomes, found = one_round(KINDS[name], lengths[name], rng)
        counts[name, "rounds"] += 1
        counts[name, "processes"] += len(outcomes)
        counts[name, "killed"] += sum(one.is_killed for one in outcomes)
        counts[name, "found"] += bool(found)
        if found and sum(counts[one, "found"] for one in names) <= MAX_SHOWN:
            sys.stdout.write(f"round {number}, {name}: {'; '.join(found)}\n")
    columns = ("rounds", "processes", "killed", "found")
    for name in names:
        sys.stdout.write(f"{name}: {', '.join(f'{counts[name, column]:,} {column}' for column in columns)}\n")
    return 1 if any(counts[name, "found"] for name in names) else 0


if __name__ == "__main__":
    sys.exit(main())
