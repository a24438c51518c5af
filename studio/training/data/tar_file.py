"""Members of a ``.tar`` file that nobody has checked, read header by header.

Python's `tarfile` takes a damaged header, or an end in the middle, as the end of the file, follows sizes below 0 back
to where it was (CVE-2025-8194), and allocates what a header claims. Here every size is compared with the file, and an
end that is none is an error. Headers themselves are decoded by `tarfile`.

Source: POSIX.1-2017, pax, "Interchange Formats"; the GNU tar manual, "Basic Tar Format".
"""

from __future__ import annotations

import os
import re
import tarfile
from collections.abc import Iterator
from typing import BinaryIO, NamedTuple

from ....encoder.files.kinds import kind_of
from ....encoder.quoting import quote

MAX_EXTENDED_BYTES = 1024 * 1024
"""Maximum size of a header's extension: a long name, or PAX records."""
MAX_PADDING_BYTES = 1024 * 1024
"""Maximum number of zeros behind the end; GNU tar fills up 10 KiB by default, and 1 MiB for large tapes."""

FOLDER = "a folder"
"""Kind of a folder's entry."""

_BLOCK = tarfile.BLOCKSIZE
_EXTENSIONS = (
    tarfile.GNUTYPE_LONGNAME,
    tarfile.GNUTYPE_LONGLINK,
    tarfile.XHDTYPE,
    tarfile.SOLARIS_XHDTYPE,
    tarfile.XGLTYPE,
)
_KINDS = {
    tarfile.REGTYPE: "",
    tarfile.AREGTYPE: "",
    tarfile.CONTTYPE: "",
    tarfile.LNKTYPE: "a link",
    tarfile.SYMTYPE: "a link",
    tarfile.CHRTYPE: "a device",
    tarfile.BLKTYPE: "a device",
    tarfile.FIFOTYPE: "a pipe",
    tarfile.DIRTYPE: FOLDER,
}
_WITHOUT_DATA = [kind for kind, name in _KINDS.items() if name]
"""Kinds of members that have no data, whatever their size says."""
_RECORD = re.compile(rb"([0-9]{1,7}) ([^=\n]+)=")
_SPARSE = "GNU.sparse"
_SIZE = re.compile(r"[0-9]{1,19}")


class DamageError(ValueError):
    """Raised at the first byte from which on a file cannot be read; the message says where and why."""


class Member(NamedTuple):
    """A member of the file."""

    name: str
    """Its name, of any length; bytes that are not UTF-8 are surrogates."""
    kind: str
    """Empty for an ordinary file, else what it is, such as `FOLDER`."""
    start: int
    """Offset of its data."""
    size: int
    """Size of its data in bytes; they are all in the file."""


def members(file: BinaryIO) -> Iterator[Member]:
    """Read the members one by one."""
    num_bytes = file.seek(0, os.SEEK_END)
    common: dict[str, str] = {}  # PAX records of all members
    own: dict[str, str] = {}  # and of the next one
    at, is_begun = 0, False  # whether a header about the next member has been read
    while at < num_bytes:
        header, start = _header(file, at)
        if header is None and is_begun:
            raise _damage(at, "the member of the header before it is missing")
        if header is None:
            return _check_end(file, at)
        is_extension = header.type in _EXTENSIONS
        records = {} if is_extension else common | own
        is_sparse = header.type == tarfile.GNUTYPE_SPARSE or _SPARSE in records
        kind = "a sparse file" if is_sparse else _KINDS.get(header.type, "of an unknown kind")
        size = 0 if header.type in _WITHOUT_DATA else _size_of(records, header.size, at)
        if size > num_bytes - start:
            raise _damage(at, f"a member of {size:,} bytes, and {max(0, num_bytes - start):,} are left")
        at = start + -(-size // _BLOCK) * _BLOCK
        if is_extension:
            found = _extension(file, header.type, start, size)
            if header.type == tarfile.XGLTYPE:
                common |= found
            else:
                own |= found
                is_begun = True
            continue
        yield Member(records.get("path", header.name), kind, start, size)
        own, is_begun = {}, False
    raise _damage(num_bytes, "the file stops there, without the mark of its end")


def _header(file: BinaryIO, at: int) -> tuple[tarfile.TarInfo | None, int]:
    """The header at an offset, None if it is zeros, and the offset behind it."""
    file.seek(at)
    block = file.read(_BLOCK)
    if not block.strip(b"\0"):
        return None, at
    try:
        header = tarfile.TarInfo.frombuf(block, "utf-8", "surrogateescape")
    except tarfile.HeaderError as error:
        if at == 0 and (kind := kind_of(block)):
            raise DamageError(f"it is {kind}") from error
        raise _damage(at, f"{error}") from error
    has_more = header.type == tarfile.GNUTYPE_SPARSE and block[482]
    while has_more:  # of the map of a sparse file
        block = file.read(_BLOCK)
        has_more = len(block) == _BLOCK and block[504]
    return header, file.tell()


def _extension(file: BinaryIO, kind: bytes, start: int, size: int) -> dict[str, str]:
    """Content of a header about the next member, as PAX records."""
    if size > MAX_EXTENDED_BYTES:
        raise _damage(start - _BLOCK, f"a header of {size:,} bytes; at most {MAX_EXTENDED_BYTES:,} are read")
    file.seek(start)
    data = file.read(size)
    if kind == tarfile.GNUTYPE_LONGNAME:
        return {"path": data.partition(b"\0")[0].decode("utf-8", "surrogateescape")}
    if kind == tarfile.GNUTYPE_LONGLINK:
        return {}
    found: dict[str, str] = {}
    at = 0
    while data[at : at + 1].strip(b"\0"):
        record = _RECORD.match(data, at)
        end = at + int(record[1]) if record else 0
        if record is None or not record.end() < end <= size or data[end - 1 : end] != b"\n":
            raise _damage(start + at, "a broken PAX header")
        key = record[2]
        if key in (b"path", b"size"):  # nothing else is kept
            found[key.decode()] = data[record.end() : end - 1].decode("utf-8", "surrogateescape")
        elif key.startswith(b"GNU.sparse."):
            found[_SPARSE] = ""
        at = end
    return found


def _size_of(records: dict[str, str], size: int, at: int) -> int:
    """Size of a member's data: in its PAX records if it is too large for the header."""
    given = records.get("size", str(size))
    if not _SIZE.fullmatch(given):
        raise _damage(at, f"a size of {quote(given, 40)} bytes")
    return int(given)


def _check_end(file: BinaryIO, at: int) -> None:
    """Look at what is behind the end: zeros, and no more than tapes are filled up with."""
    file.seek(at)
    rest = file.read(MAX_PADDING_BYTES + 1)
    if len(rest) > MAX_PADDING_BYTES or rest.strip(b"\0"):
        raise _damage(at, "the mark of its end is there, and more follows, as after `cat a.tar b.tar`")


def _damage(at: int, reason: str) -> DamageError:
    return DamageError(f"damaged at byte {at:,} ({reason}); the pairs behind it are left out")
