"""Files copied: all or none, nothing overwritten, nothing lost, on one file system and from one to another."""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from weighted_clip.studio.output import file_copies as placing
from weighted_clip.studio.output.file_copies import FileCopy, place_files

NAMES = ("a.png", "b.png", "c.png", "d.png")


@pytest.fixture(params=["one file system", "no second names", "another file system"])
def into(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Destination of files, not existing yet."""
    if request.param == "another file system":
        other = Path("/dev/shm")
        if not other.is_dir() or other.stat().st_dev == tmp_path.stat().st_dev:
            pytest.skip("there is no other file system at /dev/shm")
        with tempfile.TemporaryDirectory(dir=other) as folder:
            yield Path(folder, "sorted")
        return
    if request.param == "no second names":

        def link(*_: object, **__: object) -> None:
            raise OSError(errno.ENOTSUP, "not supported")

        monkeypatch.setattr(os, "link", link)
    yield tmp_path / "sorted"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "images"
    folder.mkdir()
    for number, name in enumerate(NAMES):
        (folder / name).write_bytes(name.encode() * (number + 1))
        (folder / name).chmod(0o640)
        os.utime(folder / name, (1_000_000_000 + number, 1_100_000_000 + number))
    return folder


def placements(folder: Path, into: Path) -> list[FileCopy]:
    """Two labels, in turn."""
    return [FileCopy(folder / name, into / "xy"[number % 2] / name) for number, name in enumerate(NAMES)]


def state(*folders: Path) -> dict[str, object]:
    """All that is in some folders: bytes, times and permissions of files, and what links lead to."""
    found: dict[str, object] = {}
    for folder in folders:
        for path in folder.rglob("*") if folder.exists() else ():
            about = path.lstat()
            content = path.readlink() if path.is_symlink() else path.read_bytes() if path.is_file() else None
            found[str(path)] = content, about.st_mode, about.st_mtime_ns if path.is_file() else None
    return found


def test_files_reach_their_targets_as_they_were(folder: Path, into: Path) -> None:
    before = state(folder)
    some, counted = placements(folder, into), []
    assert place_files(some, on_progress=counted.append) == []
    assert counted == [1, 2, 3, 4]
    assert sorted(into.rglob("*.png")) == sorted(target for _, target in some)
    for source, target in some:
        about = target.stat()
        assert (target.read_bytes(), about.st_mode, about.st_mtime_ns) == before[str(source)]
        assert about.st_nlink == 1  # a copy is no second name: what is changed in one must not change in the other
    assert state(folder) == before
    assert len(list(into.rglob("*"))) == 6  # and nothing else


def different(target: Path, source: Path) -> None:
    target.write_bytes(b"x" * source.stat().st_size)
    shutil.copystat(source, target)


IN_THE_WAY = {
    "another file of the same size and time": different,
    "another file": lambda target, source: target.write_bytes(b"mine"),
    "a folder": lambda target, source: target.mkdir(),
    "a link to nowhere": lambda target, source: target.symlink_to("nowhere"),
    "a link to the source": lambda target, source: target.symlink_to(source),
}


@pytest.mark.parametrize("what", IN_THE_WAY)
def test_what_is_in_the_way_is_named_and_nothing_is_done(folder: Path, into: Path, what: str) -> None:
    some = placements(folder, into)
    (into / "y").mkdir(parents=True)
    source, target = some[3]
    IN_THE_WAY[what](target, source)
    before = state(folder, into)
    with pytest.raises(ValueError, match=r"d\.png exists and is not overwritten; nothing was done"):
        place_files(some)
    assert state(folder, into) == before


def test_what_came_in_the_way_meanwhile_is_not_overwritten(
    folder: Path, into: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = state(folder)
    real = placing._divided

    def divided(some: Sequence[FileCopy]) -> object:
        found = real(some)
        (into / "y" / "d.png").write_bytes(b"mine")
        return found

    monkeypatch.setattr(placing, "_divided", divided)
    with pytest.raises(OSError, match=r"d\.png"):
        place_files(placements(folder, into))
    assert state(folder) == before
    assert [path.relative_to(into).as_posix() for path in into.rglob("*")] == ["y", "y/d.png"]
    assert (into / "y" / "d.png").read_bytes() == b"mine"


def test_the_same_bytes_stay_where_they_are(folder: Path, into: Path) -> None:
    some = placements(folder, into)
    (into / "x").mkdir(parents=True)
    shutil.copy(*some[0])
    assert place_files(some) == some[:1]
    assert all(target.is_file() for _, target in some)
    assert all(source.is_file() for source, _ in some)


@pytest.mark.parametrize("by", ["the same path", "a link"])
def test_a_folder_is_never_copied_into_itself(folder: Path, tmp_path: Path, by: str) -> None:
    target = folder if by == "the same path" else tmp_path / "link"
    if by == "a link":
        target.symlink_to(folder, target_is_directory=True)
    before = state(folder)
    with pytest.raises(ValueError, match="already; nothing was done"):
        place_files([FileCopy(folder / name, target / name) for name in NAMES])
    assert state(folder) == before


def test_two_files_never_go_to_one_target(folder: Path, into: Path) -> None:
    before = state(folder)
    some = [FileCopy(folder / name, into / "same.png") for name in NAMES[:2]]
    with pytest.raises(ValueError, match=r"same\.png would come twice"):
        place_files(some)
    assert state(folder) == before
    assert not into.exists()


@pytest.mark.parametrize("has_folder", [True, False])
def test_an_interrupt_takes_everything_back(folder: Path, into: Path, has_folder: bool) -> None:
    if has_folder:
        (into / "x").mkdir(parents=True)
    before = state(folder, into)

    def count(done: int) -> None:
        if done == 3:
            assert len(list(into.rglob("*.png"))) == 3
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        place_files(placements(folder, into), on_progress=count)
    assert state(folder, into) == before
    assert into.exists() == has_folder


def test_a_full_disk_takes_everything_back(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before, real = state(folder), shutil.copyfile

    def copyfile(source: Path, target: Path) -> None:
        if source.name == "c.png":
            target.write_bytes(b"half")
            raise OSError(errno.ENOSPC, "No space left on device", str(target))
        real(source, target)

    monkeypatch.setattr(shutil, "copyfile", copyfile)
    with pytest.raises(OSError, match=r"c\.png cannot be written: No space left on device"):
        place_files(placements(folder, tmp_path / "sorted"))
    assert state(folder) == before
    assert not (tmp_path / "sorted").exists()


def test_a_link_is_copied_as_the_file_that_it_leads_to(folder: Path, into: Path, tmp_path: Path) -> None:
    (folder / "a.png").rename(tmp_path / "original.png")
    (folder / "a.png").symlink_to("../original.png")
    place_files(placements(folder, into))
    copied = into / "x" / "a.png"
    assert not copied.is_symlink()
    assert copied.read_bytes() == (tmp_path / "original.png").read_bytes() == b"a.png"


def test_a_file_in_place_of_a_folder_is_named(folder: Path, into: Path) -> None:
    into.mkdir()
    (into / "y").write_bytes(b"mine")
    before = state(folder, into)
    with pytest.raises(ValueError, match="y is a file, and no folder; nothing was done"):
        place_files(placements(folder, into))
    assert state(folder, into) == before


def test_a_second_run_into_the_same_folders_is_told_and_harms_nothing(folder: Path, into: Path) -> None:
    def count(done: int) -> None:
        if done == 2:  # here the first would take back what the second relied on, or the other way round
            with pytest.raises(ValueError, match=rf"{into / 'x'}: another run is writing there"):
                place_files(placements(folder, into))
            raise KeyboardInterrupt

    before = state(folder)
    with pytest.raises(KeyboardInterrupt):
        place_files(placements(folder, into), on_progress=count)
    assert state(folder) == before
    assert not into.exists()


def test_a_copy_that_was_killed_is_finished(folder: Path, into: Path) -> None:
    some = placements(folder, into)
    place_files(some[:3])
    assert place_files(some) == some[:3]
    assert [target.read_bytes() for _, target in some] == [source.read_bytes() for source, _ in some]


def test_the_last_name_of_a_file_is_never_taken_back(folder: Path, into: Path) -> None:
    def count(done: int) -> None:
        if done == 2:
            (folder / "a.png").unlink()  # by someone who takes the copy for done
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        place_files(placements(folder, into), on_progress=count)
    assert sorted(path.name for path in (*folder.iterdir(), *into.rglob("*.png"))) == sorted(NAMES)
