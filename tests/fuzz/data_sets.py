"""Hostile and damaged training data: shards, tables and folders, each with the pairs in it that are whole.

`finding` tells of which something is lost in silence, made up, refused without its file's name, or read without end.
"""

from __future__ import annotations

import base64
import bz2
import gzip
import io
import json
import lzma
import os
import re
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAIAAAACCAIAAAD91JpzAAAAFklEQVR4nGP8z8DAwMDAxMDAwMDAAAANHQEDasKb6QAAAABJRU5ErkJggg=="
)
"""A picture of 2 x 2 pixels."""
BLOCK, RECORD = 512, 10240
NUM_PAIRS, NUM_ROWS = 4, 10
GOOD = frozenset(("good 0", "good 1"))
"""Captions of the shard beside a damaged one."""


class DataSet(NamedTuple):
    """A set of data with something wrong in it."""

    name: str
    write: Callable[[Path], None]
    """Fill an empty folder."""
    expected: str | None
    """Regular expression of what must be named; None if nothing is lost."""
    whole: frozenset[str]
    """Captions of the pairs that are whole and can be found."""
    behind: frozenset[str] = frozenset()
    """Captions of those that may be given, as what is named is beside them or in front of them."""
    may_refuse: bool = False
    """Whether an error may be raised instead, which names it too."""
    reader: str = "read_data"
    """Function of ``studio/training/data/datasets.py``."""


def finding(one: DataSet, folder: Path) -> str:
    """Read a set, already written into a folder; return what is wrong with the result, or nothing.

    Raises:
        Exception: If reading raises another error than those documented.
    """
    from weighted_clip.studio.training.data import datasets as data

    try:
        found = getattr(data, one.reader)(folder)
    except (ValueError, OSError) as error:
        said = str(error)
        if not one.may_refuse:
            return f"refused as a whole: {said[:200]}"
        return "" if one.expected and re.search(one.expected, said) else f"refused without {one.expected}: {said[:200]}"
    captions: list[str] = []
    for example in found.examples:
        if not 1 <= example.repeats <= 1000:
            return f"{example.repeats} repeats"
        example.name.encode()  # or a log could not be written
        with suppress(ValueError):
            if one.reader == "read_data":
                example.image()
            captions += example.captions
    said = "\n".join([f"{problem.name}: {problem.reason}" for problem in found.problems])
    "\n".join(data.summary(found.problems)).encode()
    if lost := one.whole - {*captions}:
        return f"lost: {', '.join(sorted(lost))}; said: {said[:200]}"
    if made_up := {*captions} - one.whole - one.behind:
        return f"made up: {', '.join(made_up)[:200]}"
    missing = one.behind - {*captions}
    if one.expected and not re.search(one.expected, said) and (missing or not one.behind):
        return f"left out in silence: {', '.join(sorted(missing)) or one.expected}; said: {said[:200]!r}"
    return ""


def hostile_sets() -> Iterator[DataSet]:
    """Yield all sets, always the same."""
    for one in _shards():
        yield one
        yield _beside_a_good_one(one)
    yield from _tables()
    yield from _folders()
    yield from _captions()


# ---- shards


def header(called: bytes, length: int, kind: bytes = b"0", **fields: bytes) -> bytes:
    """A header of 512 bytes, with other bytes in some fields; its checksum is right, unless that is given too."""
    places = {
        "name": (0, 100),
        "mode": (100, 8),
        "uid": (108, 8),
        "gid": (116, 8),
        "size": (124, 12),
        "mtime": (136, 12),
        "checksum": (148, 8),
        "type": (156, 1),
        "linkname": (157, 100),
        "magic": (257, 8),
        "devmajor": (329, 8),
        "devminor": (337, 8),
        "prefix": (345, 155),
        "is_extended": (482, 1),
        "real_size": (483, 12),
    }
    values = {
        "name": called,
        "mode": b"0000644",
        "size": b"%011o" % length,
        "mtime": b"00000000000",
        "checksum": b" " * 8,
        "type": kind,
        "magic": b"ustar\x0000",
        **{key: value for key, value in fields.items() if key != "checksum"},
    }
    block = bytearray(BLOCK)
    for key, value in values.items():
        start, room = places[key]
        block[start : start + room] = value[:room].ljust(room, b"\0")
    block[148:156] = fields.get("checksum", b"%06o\0 " % sum(block))[:8].ljust(8, b"\0")
    return bytes(block)


def padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % BLOCK)


def pax(records: dict[str, bytes] | bytes, kind: bytes = b"x", **fields: bytes) -> bytes:
    """A PAX header with records, or with other bytes in their place."""
    data = records if isinstance(records, bytes) else b"".join(record(*one) for one in records.items())
    return header(b"PaxHeader", len(data), kind, **fields) + padded(data)


def record(key: str, value: bytes) -> bytes:
    """A PAX record; its length counts itself."""
    rest = b" %s=%s\n" % (key.encode(), value)
    length = len(rest) + 1
    while len(b"%d" % length) + len(rest) != length:
        length += 1
    return b"%d" % length + rest


def base256(number: int) -> bytes:
    """A number as GNU tar writes it into 12 bytes if it is large or negative."""
    lead = b"\x80" if number >= 0 else b"\xff"
    return lead + (number % 256**11).to_bytes(11, "big")


END = bytes(2 * BLOCK)


def pair(number: int, stem: bytes = b"", word: str = "pair", before: bytes = b"", **fields: bytes) -> bytes:
    """Image and caption of a shard; the image's header has other bytes in some fields, and something before it."""
    stem, text = stem or b"%03d" % number, f"{word} {number}".encode()
    image = before + header(stem + b".png", len(PNG), **fields) + padded(PNG)
    return image + header(stem + b".txt", len(text)) + padded(text)


def shard(parts: Sequence[bytes], end: bytes = END) -> bytes:
    data = b"".join(parts) + end
    return data + bytes(-len(data) % RECORD) if end == END else data


def captions(numbers: Sequence[int] | range) -> frozenset[str]:
    return frozenset(f"pair {number}" for number in numbers)


ALL = range(NUM_PAIRS)
WIDTH = len(pair(0))
STOPS = "stops"  # nothing behind the member can be found
GOES_ON = "goes on"  # only this pair is not whole
IS_WHOLE = "is whole"
_FIELDS: list[tuple[str, dict[str, bytes], str]] = [
    *(
        (f"size {name}", {"size": value}, STOPS)
        for name, value in {
            "-512": base256(-512),
            "-1024": base256(-1024),
            "-2^40": base256(-(2**40)),
            "octal -512": b"-0000001000",
            "2^33": base256(2**33),
            "2^62": base256(2**62),
            "2^80": base256(2**80),
            "largest octal": b"777777777777",
            "no number": b"zzzzzzzzzzz",
            "nan": b"nan",
            "none": b"",
            "zero": b"00000000000",
            "a block more": b"%011o" % (len(PNG) + BLOCK),
            "decimal": b"99999999999",
        }.items()
    ),
    ("size in base 256", {"size": base256(len(PNG))}, IS_WHOLE),
    *(
        (f"checksum {name}", {"checksum": value}, STOPS)
        for name, value in {
            "zero": b"000000\0 ",
            "none": b"",
            "no number": b"zzzzzzz",
            "of another": b"012345\0 ",
            "negative": b"-00001\0 ",
        }.items()
    ),
    *(
        (f"{field} {name}", {field: value}, STOPS)
        for field in ("mode", "uid", "gid", "mtime", "devmajor", "devminor")
        for name, value in {"no number": b"zzzzzzz", "not ASCII": b"\x01\xfe\xff"}.items()
    ),
    ("mtime 2^80", {"mtime": base256(2**80)}, IS_WHOLE),
    ("mtime -2^80", {"mtime": base256(-(2**80))}, IS_WHOLE),
    ("uid -1", {"uid": b"\xff" * 8}, IS_WHOLE),
    ("magic", {"magic": b"\xff" * 8}, IS_WHOLE),
    ("linkname", {"linkname": b"\xff" * 100}, IS_WHOLE),
    ("name with a prefix of its own", {"prefix": b"elsewhere"}, GOES_ON),
    ("name of nothing", {"name": b""}, GOES_ON),
    ("name not UTF-8", {"name": b"\xff\xfe.png"}, GOES_ON),
    ("name of the pair before", {"name": b"000.jpg"}, GOES_ON),
    *((f"type {kind!r}", {"type": kind}, STOPS) for kind in (b"1", b"2", b"3", b"4", b"5", b"6", b"x", b"g", b"X")),
    *((f"type {kind!r}", {"type": kind}, GOES_ON) for kind in (b"K", b"D", b"M", b"N", b"V", b"A", b"Z", b"\xff")),
    *((f"type {kind!r}", {"type": kind}, IS_WHOLE) for kind in (b"\0", b"7")),
    ("sparse", {"type": b"S", "real_size": b"00000001000"}, GOES_ON),
    ("sparse 2^80", {"type": b"S", "real_size": base256(2**80)}, GOES_ON),
    ("sparse -1", {"type": b"S", "real_size": base256(-1)}, GOES_ON),
    ("sparse with more of its map", {"type": b"S", "is_extended": b"\1", "real_size": b"00000001000"}, STOPS),
]
"""Other bytes in the fields of an image's header: name, fields, and what is left of the file."""

_BEFORE: list[tuple[str, bytes, str]] = [
    *(
        (f"PAX {name}", pax(records), STOPS)
        for name, records in {
            "size -512": {"size": b"-512"},
            "size nan": {"size": b"nan"},
            "size 1e3": {"size": b"1e3"},
            "size 10^30": {"size": b"1" + b"0" * 30},
            "size of 5,000 digits": {"size": b"9" * 5000},
            "size 2^62": {"size": b"%d" % 2**62},
            "size 0": {"size": b"0"},
            "without =": b"9 path a\n",
            "without a length": b"path=a\n",
            "without an end": b"9 path=ab",
            "of length 0": b"0 path=a\n",
            "of length 4": b"4 a=\n",
            "of a length that is too large": b"99 path=a\n",
            "of a length of 5,000 digits": b"9" * 5000 + b" path=a\n",
            "of noise": bytes(range(1, 256)),
        }.items()
    ),
    ("PAX of 2^33 bytes", header(b"x", 0, b"x", size=base256(2**33)), STOPS),
    ("PAX of -512 bytes", header(b"x", 0, b"x", size=base256(-512)), STOPS),
    ("PAX global of 2^62 bytes", header(b"x", 0, b"g", size=base256(2**62)), STOPS),
    ("PAX in place of a member", pax({"path": b"a"}) + END, STOPS),
    *(
        (f"PAX {name}", pax(records), GOES_ON)
        for name, records in {
            "sparse 1.0": {"GNU.sparse.major": b"1", "GNU.sparse.minor": b"0", "GNU.sparse.realsize": b"99"},
            "sparse 0.1": {"GNU.sparse.size": b"99", "GNU.sparse.map": b"0,99"},
            "sparse of a map of words": {"GNU.sparse.size": b"99", "GNU.sparse.map": b"a,b"},
            "sparse of no number": {"GNU.sparse.size": b"nan", "GNU.sparse.map": b"0,1"},
            "path elsewhere": {"path": b"/etc/passwd.png"},
            "path not UTF-8": {"path": b"\xff\xfe.png"},
            "path with NUL": {"path": b"a\0b.png"},
            "path of 60,000 letters": {"path": b"a" * 60_000 + b".png"},
            "path of half a character": {"path": "\ud800.png".encode("utf-8", "surrogatepass")},
        }.items()
    ),
    ("PAX path that is right", pax({"path": b"./here/a.png", "mtime": b"nan"}), GOES_ON),
    ("PAX of other things", pax({"mtime": b"nan", "uid": b"-1", "comment": b"\xff" * 2000, "a" * 900: b""}), IS_WHOLE),
    ("PAX of nothing", pax(b""), IS_WHOLE),
    ("PAX of zeros", pax(bytes(600)), IS_WHOLE),
    ("PAX global", pax({"comment": b"a commit"}, b"g"), IS_WHOLE),
    ("PAX with a charset", pax({"hdrcharset": b"BINARY"}), IS_WHOLE),
    ("long name of 2^33 bytes", header(b"L", 0, b"L", size=base256(2**33)), STOPS),
    ("long name of 2^62 bytes", header(b"L", 0, b"L", size=base256(2**62)), STOPS),
    ("long name of -512 bytes", header(b"L", 0, b"L", size=base256(-512)), STOPS),
    ("long name of noise", header(b"L", 255, b"L") + padded(bytes(range(1, 256))), GOES_ON),
    ("long name of 60,000 letters", header(b"L", 60_000, b"L") + padded(b"a" * 59_996 + b".png"), GOES_ON),
    ("long link of 2^62 bytes", header(b"L", 0, b"K", size=base256(2**62)), STOPS),
    ("long link of noise", header(b"L", 255, b"K") + padded(bytes(range(1, 256))), IS_WHOLE),
    ("long name in place of a member", header(b"L", 5, b"L") + padded(b"a.png") + END, STOPS),
    ("a link to the picture", header(b"a.png", 0, b"2", linkname=b"000.png"), GOES_ON),
    ("a link of other names", header(b"a", 0, b"1", linkname=b"../../etc/passwd"), IS_WHOLE),
    ("a device of another name", header(b"dev", 0, b"4"), IS_WHOLE),
    ("a folder", header(b"sub/", 0, b"5"), IS_WHOLE),
    ("a block of zeros", bytes(BLOCK), STOPS),
    ("an end", END, STOPS),
    ("a record of zeros", bytes(RECORD), STOPS),
    ("a block of noise", bytes(range(256)) * 2, STOPS),
    ("a byte", b"\1", STOPS),
    ("a member without a name", header(b"", 3) + padded(b"abc"), IS_WHOLE),
    ("a member of nothing", header(b"a.json", 0), IS_WHOLE),
]
"""Bytes in front of a pair's header: name, bytes, and what is left of the file."""


def _shards() -> Iterator[DataSet]:
    for at in (0, 2, NUM_PAIRS - 1):
        front, others = captions(range(at)), captions([number for number in ALL if number != at])
        sets = [(name, {}, fields, left) for name, fields, left in _FIELDS]
        sets += [(name, {"before": given}, {}, left) for name, given, left in _BEFORE]
        for name, more, fields, left in sets:
            name = f"shard, {name} in pair {at}"
            if at == 0 and "of the pair before" in name:
                continue
            parts = [pair(number, **(more | fields if number == at else {})) for number in ALL]
            if left == STOPS:
                yield _shard(name, shard(parts), front, captions(range(at, NUM_PAIRS)))
            elif left == GOES_ON:
                also = captions([0]) if "of the pair before" in name else frozenset[str]()
                yield _shard(name, shard(parts), others - also, captions([at]) | also)
            else:
                yield _shard(name, shard(parts), captions(ALL))
        for name, stem in {
            "above": b"../../x",
            "absolute": b"/etc/x",
            "with control characters": b"\x1b[2Jx\r",
            "of blanks": b"   ",
            "of dots in folders": b"a.b/c",
            "with backslashes": b"a\\b",
        }.items():
            parts = [pair(number, stem if number == at else b"") for number in ALL]
            yield _shard(f"shard, names {name} in pair {at}", shard(parts), captions(ALL))
        parts = [pair(number, b"\xff" if number == at else b"") for number in ALL]
        yield _shard(f"shard, names not UTF-8 in pair {at}", shard(parts), others, captions([at]))
    yield _shard(
        "shard, a name twice", shard([*map(pair, ALL), pair(9, b"002")]), captions([0, 1, 3, 9]), captions([2])
    )
    yield from _cut_shards()
    yield from _other_shards()


def _cut_shards() -> Iterator[DataSet]:
    """Cuts at every border of blocks and beside it, and holes of zeros."""
    data = shard(list(map(pair, ALL)))
    for border in range(0, NUM_PAIRS * WIDTH + 2 * BLOCK + 1, BLOCK):
        for cut in {max(0, border - 1), border, border + 1, border + 90}:
            # the caption is in the first bytes of the last block of a pair
            found = [number for number in ALL if (number + 1) * WIDTH - BLOCK + len("pair 0") <= cut]
            if cut >= NUM_PAIRS * WIDTH - BLOCK + len("pair 0"):
                yield _shard(f"shard, cut at byte {cut}", data[:cut], captions(ALL))
            else:
                yield _shard(f"shard, cut at byte {cut}", data[:cut], captions(found), captions(ALL[len(found) :]))
    for begin in range(0, NUM_PAIRS * WIDTH, BLOCK):
        if begin // BLOCK % 4 not in (0, 2):
            continue  # data in place of a header
        for length in (BLOCK, 2 * BLOCK):
            hole = data[:begin] + bytes(length) + data[begin + length :]
            front = begin // WIDTH
            name = f"shard, a hole of {length} bytes at byte {begin}"
            yield _shard(name, hole, captions(range(front)), captions(range(front, NUM_PAIRS)))


def _other_shards() -> Iterator[DataSet]:
    """Files of other kinds that are called .tar, and more behind the end."""
    data, second = shard(list(map(pair, ALL))), shard([pair(number) for number in (7, 8)])
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        archive.writestr("000.txt", "pair 0")
    others = {
        "gzip": gzip.compress(data, mtime=0),
        "bzip2": bz2.compress(data),
        "xz": lzma.compress(data),
        "zip": stream.getvalue(),
        "7z": b"7z\xbc\xaf\x27\x1c" + bytes(100),
        "HTML": b"<!DOCTYPE html><html><title>404 Not Found</title>" + b"\n" * 600,
        "Git LFS": b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n",
        "PNG": PNG,
        "noise": bytes(range(256)) * 40,
        "no bytes": b"",
        "one byte": b"\1",
        "cut gzip": gzip.compress(data, mtime=0)[:50],
        "backwards": data[::-1],
    }
    for name, content in others.items():
        yield _shard(f"shard, {name}", content, frozenset(), captions(ALL))
    for zeros in (0, BLOCK, RECORD, 2**21):
        name = f"shard, two put together, {zeros} zeros between them"
        yield _shard(name, data + bytes(zeros) + second, captions(ALL), captions([7, 8]))
    yield _shard("shard, noise behind the end", data + bytes(range(256)), captions(ALL), frozenset({"behind"}))
    yield _shard("shard, noise in front", bytes(range(256)) * 2 + data, frozenset(), captions(ALL))
    yield _shard("shard, one block at its end", shard(list(map(pair, ALL)), bytes(BLOCK)), captions(ALL))
    yield _shard("shard, nothing at its end", shard(list(map(pair, ALL)), b""), captions(ALL))


def _shard(name: str, data: bytes, whole: frozenset[str], behind: frozenset[str] = frozenset()) -> DataSet:
    def write(folder: Path) -> None:
        (folder / "s.tar").write_bytes(data)

    return DataSet(name, write, r"s\.tar" if behind else None, whole, behind, may_refuse=bool(behind))


def _beside_a_good_one(one: DataSet) -> DataSet:
    def write(folder: Path) -> None:
        one.write(folder)
        (folder / "good.tar").write_bytes(shard([pair(number, word="good") for number in range(2)]))
        (folder / "z.tar").write_bytes(shard([pair(2, word="good")]))

    whole = one.whole | GOOD | {"good 2"}
    return one._replace(name=f"{one.name}, beside good ones", write=write, whole=whole, may_refuse=False)


# ---- tables


_LINES: dict[str, bytes | str] = {
    "half a line": '{"file_name": "a.png", "te',
    "no JSON": "a.png\ta cat",
    "a list": '["a.png", "a cat"]',
    "a text": '"a.png"',
    "null": "null",
    "nothing but braces": "{}",
    "two objects": '{"file_name": "a.png", "text": "x"}{"file_name": "a.png", "text": "x"}',
    "a number of 5,000 digits": '{"file_name": "a.png", "text": "x", "id": ' + "9" * 5000 + "}",
    "a name of 5,000 digits": '{"file_name": ' + "9" * 5000 + ', "text": "x"}',
    "a text of 5,000 digits": '{"file_name": "a.png", "text": ' + "9" * 5000 + "}",
    "a text of NaN": '{"file_name": "a.png", "text": NaN}',
    "a text of infinity": '{"file_name": "a.png", "text": -1e999}',
    "texts of numbers": '{"file_name": "a.png", "text": ["x", 1]}',
    "texts in texts": '{"file_name": "a.png", "text": [["x"]]}',
    "a text of null": '{"file_name": "a.png", "text": null}',
    "a name of null": '{"file_name": null, "text": "x"}',
    "a name of lists": '{"file_name": ["a.png"], "text": "x"}',
    "a name of nothing": '{"file_name": "", "text": "x"}',
    "a name of blanks": '{"file_name": "  ", "text": "x"}',
    "a name with NUL": '{"file_name": "a\\u0000b.png", "text": "x"}',
    "a name of NUL": '{"file_name": "\\u0000", "text": "x"}',
    "a name of 5,000 letters": '{"file_name": "' + "a" * 5000 + '.png", "text": "x"}',
    "a name of 300 letters": '{"file_name": "' + "a" * 300 + '.png", "text": "x"}',
    "a name of half a character": '{"file_name": "\\ud800.png", "text": "x"}',
    "a name of an escaped byte": '{"file_name": "\\udcff.png", "text": "x"}',
    "a text of half a character": '{"file_name": "a.png", "text": "x\\udfff"}',
    "100,000 brackets": "[" * 100_000,
    "100,000 braces": '{"a":' * 100_000,
    "a text of 100,000 brackets": '{"file_name": "a.png", "text": ' + "[" * 100_000 + "]" * 100_000 + "}",
    "not UTF-8": b'{"file_name": "a.png", "text": "caf\xe9"}',
    "bytes of a half character": b'{"file_name": "a.png", "text": "\xed\xa0\x80"}',
    "UTF-16": '{"file_name": "a.png", "text": "x"}'.encode("utf-16"),
    "a NUL": '{"file_name": "a.png"\0, "text": "x"}',
    "two texts": '{"file_name": "a.png", "text": "x", "text": "y"}',
    "two names": '{"file_name": "a.png", "file_name": "b.png", "text": "x"}',
    "a text of two million letters": '{"file_name": "a.png", "text": "' + "x" * 2_000_000 + '"}',
    "two million blanks and no JSON": " " * 2_000_000 + "x",
    "another column": '{"file_name": "a.png", "name": "x"}',
    "a column of 9,000 letters": '{"' + "c" * 9000 + '": 1}',
    "a comma at the end": '{"file_name": "a.png", "text": "x",}',
    "single quotes": "{'file_name': 'a.png', 'text': 'x'}",
    "a tab in a text": '{"file_name": "a.png", "text": "\t"}',
    "a byte order mark": "\ufeffx",
}
"""Rows of a metadata.jsonl that are left out."""
_NAMES = {
    "nowhere": "no.png",
    "above": "../x.png",
    "absolute": "/etc/passwd",
    "a folder": "sub",
    "a folder above": "..",
    "here": ".",
    "a file as a folder": "0.png/x.png",
    "a drive": "C:\\x.png",
    "a device": "/dev/zero",
}
"""Names in a table that are of no image in its folder."""
_CSV: dict[str, bytes] = {
    "one field": b"a.png",
    "three fields": b"a.png,a dog, really",
    "not UTF-8": b"a.png,caf\xe9",
    "a name of nothing": b",x",
    "a name of 5,000 letters": b"a" * 5000 + b",x",
    "a text of 200,000 letters": b"a.png," + b"x" * 200_000,
    "a text of two million letters": b"a.png," + b"x" * 2_000_000,
    "a name with NUL": b"a\0b.png,x",
}


def _tables() -> Iterator[DataSet]:
    rows = [json.dumps({"file_name": f"{number}.png", "text": f"pair {number}"}).encode() for number in range(NUM_ROWS)]
    named = {
        f"a name that is {name}": (json.dumps({"file_name": given, "text": "x"}), given)
        for name, given in _NAMES.items()
    }
    lines = {name: (line, None) for name, line in _LINES.items()} | named
    for at in (0, 4, NUM_ROWS - 1):
        whole = captions([number for number in range(NUM_ROWS) if number != at])
        for name, (line, given) in lines.items():
            row = line.encode() if isinstance(line, str) else line
            table = [*rows[:at], row, *rows[at + 1 :]]
            for kind, end in {"": b"\n", ", with CRLF": b"\r\n"}.items() if at == 4 else {"": b"\n"}.items():
                title = f"metadata.jsonl, {name} in row {at + 1}{kind}"
                yield _table(title, "metadata.jsonl", end.join(table), whole, at + 1, given)
        cells = [b"%d.png,pair %d" % (number, number) for number in range(NUM_ROWS)]
        for name, cell in _CSV.items():
            table = [b"file_name,text", *cells[:at], cell, *cells[at + 1 :]]
            yield _table(f"metadata.csv, {name} in row {at + 2}", "metadata.csv", b"\n".join(table), whole, at + 2)
        table = [b"file_name,text", *cells[:at], b'%d.png,"pair' % at, *cells[at + 1 :]]
        name = f"metadata.csv, a quote that is not closed in row {at + 2}"
        one = _table(name, "metadata.csv", b"\n".join(table), captions(range(at)), at + 2)
        yield one._replace(may_refuse=at == 0)
        table = [b"file_name,text", *cells[:at], b'%d.png,"pair %d"' % (at, at), *cells[at + 1 :]]
        yield _table(
            f"metadata.csv, a quote in row {at + 2}", "metadata.csv", b"\n".join(table), captions(range(NUM_ROWS))
        )
    good = {
        "a byte order mark": b"\xef\xbb\xbf" + b"\n".join(rows),
        "CRLF": b"\r\n".join(rows),
        "blank lines": b"\n \n\n".join(rows),
        "an end of line": b"\n".join(rows) + b"\n",
    }
    for name, content in good.items():
        yield _table(f"metadata.jsonl, {name}", "metadata.jsonl", content, captions(range(NUM_ROWS)))
    bad = {"UTF-16": b"\n".join(rows).decode().encode("utf-16"), "zeros": bytes(5000), "gzip": gzip.compress(rows[0])}
    for name, content in bad.items():
        one = _table(f"metadata.jsonl, all of it {name}", "metadata.jsonl", content, frozenset())
        yield one._replace(expected=r"metadata\.jsonl", may_refuse=True)


def _table(
    title: str, name: str, content: bytes, whole: frozenset[str], row: int | None = None, given: str | None = None
) -> DataSet:
    """A table that names ten pictures; row and name are of what is left out."""

    def write(folder: Path) -> None:
        (folder / "sub").mkdir()
        for number in range(NUM_ROWS):
            (folder / f"{number}.png").write_bytes(PNG)
        (folder / "a.png").write_bytes(PNG)
        (folder / name).write_bytes(content)

    expected = None if row is None else rf"{re.escape(name)}(:|, line |, row ){row}\b"
    if given is not None:
        expected = rf"{expected}|(?m:^{re.escape(given)}: )"
    return DataSet(title, write, expected, whole)


# ---- folders


def _folders() -> Iterator[DataSet]:
    counts = ("0", "00", "1001", "2024", "1000000000", "9" * 200, "٩٩٩٩٩٩")
    for name in [f"{count}_cat" for count in counts]:
        yield _folder(f"folder, called {name}", {f"{name}/b.png": PNG, f"{name}/b.txt": b"pair 1"}, re.escape(name))
    for name in ("1_cat", "1000_cat", "003_cat", "_cat", "cat_3", "3cat", "-3_cat", "1e9_cat"):
        files = {f"{name}/b.png": PNG, f"{name}/b.txt": b"pair 1"}
        yield _folder(f"folder, called {name}", files, None, captions([0, 1]))
    texts = {
        "not UTF-8": b"caf\xe9",
        "UTF-16": "a cat".encode("utf-16"),
        "of half a character": b"\xed\xa0\x80",
        "of blanks": b" \n\t\n",
        "of no bytes": b"",
        "of two million letters": b"x" * 2_000_000,
    }
    for name, text in texts.items():
        yield _folder(f"folder, a caption {name}", {"b.png": PNG, "b.txt": text}, r"b\.png")
    for name in ("\x1b[2Jb", "b\r\n", "x" * 200, "b;rm -rf", "<b>"):
        yield _folder(
            f"folder, an image called {ascii(name)[:30]}",
            {f"{name}.png": PNG, f"{name}.txt": b"pair 1"},
            None,
            captions([0, 1]),
        )
    yield _folder("folder, a caption that is a folder", {"b.png": PNG, "b.txt/x": b"x"}, r"b\.png")
    yield _folder("folder, an image that is a folder", {"b.png/x": b"x"}, None)
    special: dict[str, Callable[[Path], None]] = {
        "an image that is a link to nothing": lambda folder: (folder / "b.png").symlink_to(folder / "none"),
        "an image that is a link to itself": lambda folder: (folder / "b.png").symlink_to(folder / "b.png"),
        "an image that is a pipe": lambda folder: os.mkfifo(folder / "b.png"),
        "a caption that is a pipe": lambda folder: _filled(folder, {"b.png": PNG}, lambda: os.mkfifo(folder / "b.txt")),
        "a caption that is a link to itself": lambda folder: _filled(
            folder, {"b.png": PNG}, lambda: (folder / "b.txt").symlink_to(folder / "b.txt")
        ),
        "a caption of 2^40 bytes": lambda folder: _filled(
            folder, {"b.png": PNG, "b.txt": b""}, lambda: os.truncate(folder / "b.txt", 2**40)
        ),
        "an image whose name is not UTF-8": lambda folder: _filled(folder, {"b\udcff.png": PNG, "b\udcff.txt": b"x"}),
        "a folder whose name is not UTF-8": lambda folder: _filled(
            folder, {"b\udcff/b.png": PNG, "b\udcff/b.txt": b"x"}
        ),
        "a folder that is a link": lambda folder: _filled(
            folder.parent / f"{folder.name} b",
            {"b.png": PNG, "b.txt": b"x"},
            lambda: (folder / "b").symlink_to(folder.parent / f"{folder.name} b"),
        ),
    }
    for name, write in special.items():
        one = _folder(f"folder, {name}", {}, r"(?m)^b.*: ")
        yield one._replace(write=lambda folder, first=one.write, write=write: (first(folder), write(folder))[0])


def _filled(folder: Path, files: dict[str, bytes], then: Callable[[], Any] = lambda: None) -> None:
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    then()


def _folder(
    title: str, files: dict[str, bytes], expected: str | None, whole: frozenset[str] = captions([0])
) -> DataSet:
    """A folder with one good pair and others."""
    return DataSet(title, lambda folder: _filled(folder, {"a.png": PNG, "a.txt": b"pair 0", **files}), expected, whole)


# ---- captions without images


def _captions() -> Iterator[DataSet]:
    special: dict[str, Callable[[Path], Any]] = {
        "that is a pipe": lambda folder: os.mkfifo(folder / "b.txt"),
        "that is a link to itself": lambda folder: (folder / "b.txt").symlink_to(folder / "b.txt"),
        "of 2^40 bytes": lambda folder: _filled(folder, {"b.txt": b""}, lambda: os.truncate(folder / "b.txt", 2**40)),
        "not UTF-8": lambda folder: (folder / "b.txt").write_bytes(b"caf\xe9"),
        "whose name is not UTF-8": lambda folder: (folder / "b\udcff.txt").write_bytes(b"x"),
    }
    for name, write in special.items():
        yield DataSet(
            f"captions, a file {name}",
            lambda folder, write=write: _filled(folder, {"a.txt": b"pair 0"}, lambda: write(folder)),
            r"(?m)^b.*: ",
            captions([0]),
            reader="read_captions",
        )


# ---- for a process of limited.py


def load_readers() -> None:
    """Load once what reading takes."""
    with tempfile.TemporaryDirectory() as place:
        good = _shard("a good one", shard([pair(0)]), captions([0]))
        good.write(Path(place))
        assert not finding(good, Path(place))


@cache
def _all() -> list[DataSet]:
    return list(hostile_sets())


def finding_of(number: int, folder: str) -> str:
    """`finding` of one of the `hostile_sets`, by its number."""
    try:
        return finding(_all()[number], Path(folder))
    except Exception as error:
        return f"raises {type(error).__name__}: {str(error)[:200]}"
