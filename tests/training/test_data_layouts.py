"""Data as other programs write it: open_clip's tables, kohya's captions, shards of several parts, several sources."""

from __future__ import annotations

import json
import math
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from weighted_clip.studio.training.data import remote
from weighted_clip.studio.training.data.captions import Batches, num_in_epoch
from weighted_clip.studio.training.data.datasets import READING, Reading, read_data, summary
from weighted_clip.studio.training.data.table import Columns

from ..libraries import library
from .test_data import picture, reasons, write, write_shard


def captions_of(source: Path | str, reading: Reading = READING) -> dict[str, tuple[str, ...]]:
    return {one.name: one.captions for one in read_data(source, reading).examples}


@pytest.mark.parametrize("separator", ["\t", ",", ";"])
def test_tables_of_open_clip_name_images_anywhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, separator: str
) -> None:
    """Paths as pandas reads them: absolute, or in the working directory; and those beside the table."""
    pandas = pytest.importorskip("pandas")
    write(tmp_path, {"here/a.png": picture(), "there/b.png": picture(), "tables/c.png": picture()})
    monkeypatch.chdir(tmp_path / "here")
    paths, titles = ["a.png", str(tmp_path / "there" / "b.png"), "c.png"], ['a "red" cat', "two, dogs", "x"]
    rows = {"filepath": paths, "title": titles}
    table = tmp_path / "tables" / "train.csv"
    pandas.DataFrame(rows).to_csv(table, sep=separator, index=False)
    expected = {name: (text,) for name, text in zip(paths, titles, strict=True)}
    assert captions_of(table) == expected
    assert all(one.image() for one in read_data(table).examples)
    others = pandas.DataFrame({"where": paths, "title": "no", "what": titles})
    others.to_csv(table, sep="#", index=False)
    with pytest.raises(ValueError, match=r"train\.csv:2: .*its columns are \['where#title#what'\]"):
        read_data(table)
    assert captions_of(table, Reading(Columns(("where",), ("what",), "#"))) == expected


def test_captions_of_kohya_s_scripts(tmp_path: Path) -> None:
    files: dict[str, bytes | str] = {f"{name}.png": picture() for name in "abcdef"}
    files |= {
        "a.caption": "one\ntwo",
        "b.TXT": "three",
        "c.json": '{"caption": "four"}',
        "d.json": '{"title": ["5", "6"]}',
    }
    files |= {"e.json": '{"tags": 3}', "f.txt": "seven", "f.caption": "no", "f.json": "{"}
    data = read_data(write(tmp_path, files))
    assert {one.name[0]: one.captions for one in data.examples} == {
        "a": ("one", "two"),
        "b": ("three",),
        "c": ("four",),
        "d": ("5", "6"),
        "f": ("seven",),
    }
    assert reasons(data.problems) == {
        "e.png": "its .json cannot be read: it has no text under 'caption', 'text', 'title'"
    }


def test_a_table_of_kohya_s_scripts(tmp_path: Path) -> None:
    entries: dict[str, Any] = {
        "a": {"caption": "a cat", "tags": "red, sitting"},
        "in/b.png": {"tags": "blue"},
        str(tmp_path / "c.webp"): {"caption": "x", "train_resolution": [1, 2]},
        "d": {"caption": 3},
        "e": {"caption": "y"},
        "a.png": "text",
    }
    files: dict[str, bytes | str] = {"a.png": picture(), "in/b.png": picture(), "c.webp": picture()}
    data = read_data(write(tmp_path, {**files, "meta_cap.json": json.dumps(entries)}))
    assert {one.name: one.captions for one in data.examples} == {
        "a": ("a cat, red, sitting",),
        "in/b.png": ("blue",),
        str(tmp_path / "c.webp"): ("x",),
    }
    why = "each image needs an object with the text 'caption', 'tags', or both"
    assert reasons(data.problems) == {"meta_cap.json:4": why, "e": "no such file", "meta_cap.json:6": why}
    for text in ("[1]", "{", "[" * 100_000):
        (tmp_path / "meta_cap.json").write_text(text)
        with pytest.raises(ValueError, match=r"meta_cap\.json: it "):
            read_data(tmp_path)


def test_names_in_shards_may_have_several_parts(tmp_path: Path) -> None:
    webdataset = library("webdataset")
    members: dict[str, bytes | str] = {
        "000.image.png": picture("red"),
        "000.caption.txt": "a cat",
        "001.png": picture("lime"),
        "001.mask.png": picture("blue"),
        "001.json": '{"caption": "no"}',
        "001.txt": "a dog",
        "002.jpg": picture(),
        "002.meta.json": '{"text": "a bird"}',
    }
    shard = write_shard(tmp_path / "0.tar", members)
    data = read_data(shard)
    assert {one.name: one.captions for one in data.examples} == {
        "0.tar/000": ("a cat",),
        "0.tar/001": ("a dog",),
        "0.tar/002": ("a bird",),
    }
    assert [one.image().getpixel((0, 0)) for one in data.examples][:2] == [(255, 0, 0), (0, 255, 0)]
    assert not data.problems
    theirs = {sample["__key__"]: {*sample} for sample in webdataset.WebDataset(str(shard), shardshuffle=False)}
    assert theirs["000"] > {"image.png", "caption.txt"}


def test_where_there_is_no_caption_the_nearest_file_is_named(tmp_path: Path) -> None:
    files = {"cat.png": picture(), "cat.text": "a cat", "dog.png": picture(), "notes.md": "x"}
    lines = summary(read_data(write(tmp_path / "folder", files)).problems)
    assert any("; the nearest file is 'cat.text' (cat.png)" in line for line in lines)
    assert sum(int(line.split()[0]) for line in lines) == 2
    write_shard(tmp_path / "0.tar", {"0.png": picture(), "0.cap": "a cat", "1.png": picture()})
    assert reasons(read_data(tmp_path / "0.tar").problems) == {
        "0.tar/0": "no .txt, .caption or .json of its name in the shard; beside it is '0.cap'",
        "0.tar/1": "no .txt, .caption or .json of its name in the shard",
    }


# ---- several sources


def test_several_sources_come_as_often_as_asked(tmp_path: Path) -> None:
    for name, count in (("a", 6), ("b", 10)):
        for number in range(count):
            write(tmp_path / name, {f"{number}.png": picture(), f"{number}.txt": "x"})
    sources = f"{tmp_path / 'a'}::{tmp_path / 'b'}"
    data = read_data(sources, Reading(factors="2::0.5"))
    assert [one.name for one in data.examples][:2] == ["a/0.png", "a/1.png"]
    assert (len(data.examples), num_in_epoch(data.examples.repeats)) == (16, 17)
    batches = Batches(data.examples.repeats, 17, seed=0)
    seen = [Counter(data.examples[index].name[0] for index in batches(epoch)[1]) for epoch in range(4)]
    assert seen == [{"a": 12, "b": 5}] * 4
    assert {index for epoch in range(9) for index in batches(epoch)[1]} == {*range(16)}
    both = read_data(f"{tmp_path / 'a'}::{tmp_path / 'a'}")
    assert {one.name.split("/")[0] for one in both.examples} == {"1-a", "2-a"}
    for factors in ("1", "1::x", "0::1", "1::-1", "1::nan", "1::1001", "1::2::3"):
        with pytest.raises(ValueError, match=f"{factors!r} are no factors of 2 sources"):
            read_data(sources, Reading(factors=factors))


# ---- shards elsewhere


@pytest.mark.parametrize("protocol", ["file", "memory"])
def test_shards_at_an_address_are_copied_once(tmp_path: Path, protocol: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fsspec = pytest.importorskip("fsspec")
    root = f"memory:///{tmp_path.name}" if protocol == "memory" else (tmp_path / "far").as_uri()
    (tmp_path / "far").mkdir()
    for number in range(3):
        shard = write_shard(tmp_path / "one.tar", {"0.png": picture(), "0.txt": f"cat {number}"})
        with fsspec.open(f"{root}/{number}.tar", "wb") as file:
            file.write(shard.read_bytes())
    reading = Reading(cache=tmp_path / "cache")
    for address in (root, f"{root}/*.tar", f"{root}/{{0..2}}.tar"):
        data = read_data(address, reading)
        assert [one.captions for one in data.examples] == [("cat 0",), ("cat 1",), ("cat 2",)]
        assert all(one.image() for one in data.examples)
    system = type(fsspec.core.url_to_fs(root)[0])
    monkeypatch.setattr(system, "get_file", None)  # all are there
    assert len(read_data(root, reading).examples) == 3
    with pytest.raises(ValueError, match=r"there is no \.tar file"):
        read_data(f"{root}/*.tar.gz", reading)
    with pytest.raises(ValueError, match="only files of this machine"):
        read_data(root)
    with pytest.raises(ValueError, match="nowhere://x: "):
        read_data("nowhere://x", reading)


@pytest.mark.parametrize("times", [1, 99])
def test_a_shard_that_cannot_be_fetched_is_tried_again_and_then_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, times: int
) -> None:
    fsspec = pytest.importorskip("fsspec")
    monkeypatch.setattr(remote, "PAUSES", (0.0, 0.0))
    root = (tmp_path / "far").as_uri()
    (tmp_path / "far").mkdir()
    for name in "ab":
        write_shard(tmp_path / "far" / f"{name}.tar", {"0.png": picture(), "0.txt": name})
    system, tries = type(fsspec.core.url_to_fs(root)[0]), Counter[str]()
    real = system.get_file

    def get_file(self: Any, path: str, place: str, **named: Any) -> Any:
        tries[path[-5:]] += 1
        if path.endswith("a.tar") and tries["a.tar"] <= times:
            Path(place).write_bytes(b"half")
            raise ConnectionResetError(104, "Connection reset by peer")
        return real(self, path, place, **named)

    monkeypatch.setattr(system, "get_file", get_file)
    data = read_data(root, Reading(cache=tmp_path / "cache"))
    assert [one.captions for one in data.examples] == [("a",), ("b",)][times > 1 :]
    assert tries == {"a.tar": min(3, times + 1), "b.tar": 1}
    assert [problem.reason for problem in data.problems] == [
        "it could not be fetched in 3 tries: Connection reset by peer; what is in it is left out"
    ] * (times > 1)
    tries.clear()
    if times > 1:
        with pytest.raises(ValueError, match="could not be fetched in 3 tries"):
            read_data(f"{root}/a.tar", Reading(cache=tmp_path / "other"))


def test_fractions_of_repeats_are_of_each_epoch_s_own_choice() -> None:
    batches = Batches([0.3] * 10 + [1.5] * 4, 9, seed=3)
    assert math.isclose(batches.per_epoch, 1)
    orders = [Counter(batches(epoch)[1]) for epoch in range(30)]
    assert all(sum(order[index] for index in range(10)) == 3 for order in orders)
    assert all(sum(order[index] for index in range(10, 14)) == 6 for order in orders)
    assert len({tuple(sorted(order)) for order in orders}) > 5
