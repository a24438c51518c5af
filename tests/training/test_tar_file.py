"""Members of .tar files as their writers made them; damaged ones are in tests/fuzz/data_sets.py."""

from __future__ import annotations

import io
import shutil
import subprocess
import tarfile
from pathlib import Path

import pytest
from weighted_clip.studio.training.data.tar_file import MAX_EXTENDED_BYTES, DamageError, Member, members

from ..fuzz.data_sets import PNG, base256, header, padded, pax, shard
from ..libraries import library

NAMES = ("a.png", "b.txt", "sub/" + "n" * 90 + ".png", "x" * 90 + "/" + "y" * 150 + ".txt", "é" * 60 + ".png")


def read(data: bytes) -> list[Member]:
    return list(members(io.BytesIO(data)))


@pytest.mark.parametrize("form", [tarfile.GNU_FORMAT, tarfile.PAX_FORMAT, tarfile.USTAR_FORMAT])
def test_members_are_those_of_pythons_own_reader(form: int) -> None:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w", format=form, pax_headers={"comment": "c"}) as archive:
        for number, name in enumerate(NAMES):
            info = tarfile.TarInfo(name)
            info.size, info.mtime = 700 * number, -5 if form != tarfile.USTAR_FORMAT else 5
            if form == tarfile.USTAR_FORMAT and len(name.encode()) > 100:
                info.name = f"{number}/{'z' * 90}.txt"
            archive.addfile(info, io.BytesIO(bytes([number]) * info.size))
        folder, link = tarfile.TarInfo("folder"), tarfile.TarInfo("link.png")
        folder.type, link.type = tarfile.DIRTYPE, tarfile.SYMTYPE
        link.linkname = "t" * (90 if form == tarfile.USTAR_FORMAT else 200)
        archive.addfile(folder)
        archive.addfile(link)
    stream.seek(0)
    with tarfile.open(fileobj=stream) as archive:
        expected = [(one.name, one.offset_data, one.size) for one in archive]
    found = list(members(stream))
    assert [(one.name.rstrip("/"), one.start, one.size) for one in found] == expected
    assert [one.kind for one in found] == [""] * len(NAMES) + ["a folder", "a link"]
    data = stream.getvalue()
    assert all(data[one.start : one.start + one.size] == bytes([i]) * one.size for i, one in enumerate(found[:5]))


@pytest.mark.skipif(shutil.which("tar") is None, reason="this system has no tar")
def test_members_are_those_that_the_systems_tar_wrote(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    for name in ("a.png", "b.txt", "c" * 150 + ".png"):
        (tmp_path / "in" / name).write_bytes(name.encode() * 100)
    subprocess.run(["tar", "-cf", "x.tar", "in"], cwd=tmp_path, check=True)
    data = (tmp_path / "x.tar").read_bytes()
    found = {one.name: data[one.start : one.start + one.size] for one in read(data) if not one.kind}
    assert found == {f"in/{path.name}": path.read_bytes() for path in (tmp_path / "in").iterdir()}


def test_shards_of_webdatasets_writer_end_as_they_should(tmp_path: Path) -> None:
    webdataset = library("webdataset")
    with webdataset.TarWriter(str(tmp_path / "0.tar")) as writer:
        writer.write({"__key__": "000", "png": PNG, "txt": "a cat"})
    found = read((tmp_path / "0.tar").read_bytes())
    assert sorted(one.name for one in found) == ["000.png", "000.txt"]


def test_a_size_in_pax_records_is_that_of_the_data() -> None:
    data = shard([pax({"size": b"600"}), header(b"a.png", 0), padded(b"x" * 600), header(b"b.png", 1), padded(b"y")])
    assert [(one.name, one.size) for one in read(data)] == [("a.png", 600), ("b.png", 1)]


def test_what_is_no_ordinary_file_says_what_it_is() -> None:
    kinds = {b"1": "a link", b"2": "a link", b"3": "a device", b"4": "a device", b"6": "a pipe", b"5": "a folder"}
    parts = [header(b"a.png", 0, kind) for kind in kinds]
    parts += [header(b"a.png", 3, b"S") + padded(b"abc"), pax({"GNU.sparse.major": b"1"}) + header(b"a.png", 0)]
    parts += [header(b"a.png", 3, b"V") + padded(b"abc")]
    assert [one.kind for one in read(shard(parts))] == [*kinds.values(), *["a sparse file"] * 2, "of an unknown kind"]


@pytest.mark.parametrize("kind", [b"x", b"g", b"L", b"K"])
@pytest.mark.parametrize("size", [MAX_EXTENDED_BYTES + 1, 2**80])
def test_no_header_is_read_that_claims_to_be_large(kind: bytes, size: int) -> None:
    data = header(b"x", 0, kind, size=base256(size)) + bytes(2 * MAX_EXTENDED_BYTES)
    with pytest.raises(DamageError, match="damaged at byte 0 "):
        read(data)
