"""The three layouts of training data, what is left out of them and why, captions, token ids and batches."""

from __future__ import annotations

import io
import json
import os
import tarfile
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from weighted_clip.encoder.models.config import OPENCLIP_H
from weighted_clip.encoder.tokenizer import default_tokenizer
from weighted_clip.studio.training.data.captions import (
    Batches,
    CaptionOptions,
    caption_of,
    held_out,
    is_too_long,
    token_ids,
)
from weighted_clip.studio.training.data.datasets import Problem, read_captions, read_data, summary
from weighted_clip.studio.training.data.examples import Example, Examples

from ..libraries import library

FOLDERS = {
    "1_x": True,
    "003_x": True,
    "1000_x": True,
    "0_x": False,
    "1001_x": False,
    "1000000000_x": False,
    "2024_holiday": False,
}
"""Folders named as in kohya's scripts, and whether so many repeats are allowed."""
needs_pipes = pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")


def picture(color: str = "red") -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (8, 6), color).save(file, "PNG")
    return file.getvalue()


def write(folder: Path, files: dict[str, bytes | str]) -> Path:
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
    return folder


def write_shard(path: Path, files: dict[str, bytes | str]) -> Path:
    with tarfile.open(path, "w") as archive:
        for name, content in files.items():
            data = content.encode() if isinstance(content, str) else content
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return path


def reasons(problems: tuple[Problem, ...]) -> dict[str, str]:
    return {problem.name: problem.reason for problem in problems}


def test_a_shard_without_pictures_is_named(tmp_path: Path) -> None:
    for name in ("empty.tar", "texts.tar", "whole.tar"):
        with tarfile.open(tmp_path / name, "w") as shard:
            for member, content in {"notes.md": b"x", "a.png": picture(), "a.txt": b"a cat"}.items():
                if name == "whole.tar" or (name == "texts.tar" and member == "notes.md"):
                    about = tarfile.TarInfo(member)
                    about.size = len(content)
                    shard.addfile(about, io.BytesIO(content))
    data = read_data(tmp_path)
    assert [one.name for one in data.examples] == ["whole.tar/a"]
    assert reasons(data.problems) == dict.fromkeys(["empty.tar", "texts.tar"], "there is no image in it")


# ---- layouts


def test_images_with_a_txt_beside_them(tmp_path: Path) -> None:
    files = {
        "b.png": picture(),
        "b.txt": "\ufeffa red cat\n\n a cat, red \r\n",
        "3_cats/a.webp": picture("blue"),
        "3_cats/a.txt": "a blue cat",
        "0_none/c.png": picture(),
        "0_none/c.txt": "never",
        "empty.png": picture(),
        "empty.txt": " \n",
        "alone.png": picture(),
        "latin.png": picture(),
        "latin.txt": b"caf\xe9",
        "notes.md": "no image",
    }
    data = read_data(write(tmp_path, files))
    assert [(one.name, one.captions, one.repeats) for one in data.examples] == [
        ("3_cats/a.webp", ("a blue cat",), 3),
        ("b.png", ("a red cat", "a cat, red"), 1),
    ]
    assert data.examples[1].image().getpixel((0, 0)) == (255, 0, 0)
    assert reasons(data.problems) == {
        "0_none/c.png": "its folder's name, 0_none, begins with a number of repeats, as in kohya's scripts; 1 to 1,000 "
        "are allowed: rename it, as to 1_0_none",
        "empty.png": "its caption is empty",
        "alone.png": "no .txt, .caption or .json beside it",
        "latin.png": "its .txt cannot be read: it is not UTF-8",
    }
    lines = summary(data.problems, most=1)
    assert "1 left out: its caption is empty (empty.png)" in lines
    assert sum(int(line.split()[0]) for line in lines) == 4


@pytest.mark.parametrize("kind", ["jsonl", "csv"])
def test_a_table_of_file_names_and_texts(tmp_path: Path, kind: str) -> None:
    rows = [
        ("a.png", "a cat"),
        ("in/b.png", "a dog, really"),
        ("a.png", "one more"),
        ("no.png", "x"),
        ("../c.png", "y"),
    ]
    if kind == "jsonl":
        text = "\n".join(json.dumps({"file_name": name, "text": text, "id": 3}) for name, text in rows)
    else:
        text = "file_name,text\n" + "".join(f'{name},"{text}"\n' for name, text in rows)
    root = tmp_path / "data"
    write(root, {"a.png": picture(), "in/b.png": picture(), "../c.png": picture(), f"metadata.{kind}": text})
    data = read_data(root)
    assert {one.name: one.captions for one in data.examples} == {
        "a.png": ("a cat", "one more"),
        "in/b.png": ("a dog, really",),
    }
    assert reasons(data.problems) == {"no.png": "no such file", "../c.png": "outside the folder"}


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        (
            "metadata.jsonl",
            '{"file_name": "a.png", "label": "x"}',
            r"metadata\.jsonl:1: .*'text'.*file_name', 'label",
        ),
        ("metadata.jsonl", '\n{"file', r"metadata\.jsonl:2: it cannot be read: "),
        ("metadata.jsonl", "[1]", r"its columns are none"),
        ("metadata.csv", "file,text\na.png,x\n", r"metadata\.csv:2: .*file', 'text"),
        ("metadata.csv", b"file_name,text\na.png,caf\xe9\n", "it cannot be read"),
    ],
)
def test_a_table_of_another_kind_is_refused_by_line(tmp_path: Path, name: str, text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read_data(write(tmp_path, {name: text}))


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ('{"file_name": "a.png", "te', "it cannot be read: "),
        ('{"file_name": "a.png", "text": "x", "id": ' + "9" * 5000 + "}", "more than 4,300 digits"),
        ('{"file_name": "' + "a" * 5000 + '", "text": "x"}', "its file cannot be looked for"),
        ('{"file_name": "a\\u0000.png", "text": "x"}', "its file cannot be looked for"),
        ('{"file_name": "\\ud800.png", "text": "x"}', "surrogate"),
        ('{"file_name": "a.png", "text": "\\ud800"}', "surrogate"),
        ("[" * 100_000, "nested too deeply"),
        ('{"file_name": "a.png", "text": "x", "text": "y"}', "'text' twice"),
        ('{"file_name": "a.png", "text": NaN}', "texts both"),
        ('{"file_name": " ", "text": "x"}', "'file_name' is empty"),
        ("x" * 3_000_000, "longer than 1,048,576 characters"),
        (b"caf\xe9", "not UTF-8"),
    ],
)
def test_a_broken_row_is_left_out_with_its_line(tmp_path: Path, row: str | bytes, reason: str) -> None:
    files: dict[str, bytes | str] = {f"{number}.png": picture() for number in range(12)}
    rows = [json.dumps({"file_name": name, "text": f"x{name}"}).encode() for name in files]
    rows[9] = row.encode() if isinstance(row, str) else row
    data = read_data(write(tmp_path, {**files, "metadata.jsonl": b"\r\n".join(rows)}))
    assert {one.name for one in data.examples} == {*files} - {"9.png"}
    (problem,) = data.problems
    assert problem.name == "metadata.jsonl:10"
    assert reason in problem.reason
    assert len(problem.reason) < 300


def test_rows_of_a_csv_table_are_not_cut_or_swallowed(tmp_path: Path) -> None:
    rows = [
        "file_name,text",
        "a.png,x",
        "b.png,a dog, really",
        'c.png,"two\nlines"',
        "d.png,y,,",
        'e.png,"z',
        "f.png,z",
    ]
    files: dict[str, bytes | str] = {f"{name}.png": picture() for name in "abcdef"}
    data = read_data(write(tmp_path, {**files, "metadata.csv": "\n".join(rows)}))
    assert [one.captions for one in data.examples] == [("x",), ("two\nlines",), ("y",)]
    assert reasons(data.problems) == {
        "metadata.csv:3": "it has more fields than columns: put quotes around a text with ',' in it",
        "metadata.csv:7": "it cannot be read: a quote in it is not closed; all up to line 8 is left out with it",
    }


@pytest.mark.parametrize(("name", "is_allowed"), FOLDERS.items())
def test_a_folder_repeats_up_to_a_thousand_times(tmp_path: Path, name: str, is_allowed: bool) -> None:
    data = read_data(write(tmp_path, {f"{name}/a.png": picture(), f"{name}/a.txt": "x", "b.png": picture()}))
    if is_allowed:
        assert [one.repeats for one in data.examples] == [int(name.partition("_")[0])]
    else:
        assert len(data.examples) == 0
        assert f", {name}, " in reasons(data.problems)[f"{name}/a.png"]
        assert f"1_{name}" in reasons(data.problems)[f"{name}/a.png"]
        renamed = read_data(write(tmp_path / "new", {f"1_{name}/a.png": picture(), f"1_{name}/a.txt": "x"}))
        assert [one.repeats for one in renamed.examples] == [1]


def test_what_is_no_file_and_names_that_are_not_utf_8_are_left_out(tmp_path: Path) -> None:
    try:
        (tmp_path / "no.png").symlink_to(tmp_path / "nothing")
        (tmp_path / "self.png").symlink_to(tmp_path / "self.png")
        (tmp_path / "cats").symlink_to(tmp_path, target_is_directory=True)
        write(tmp_path, {"a.png": picture(), "a.txt": "x", "b\udcff.png": picture(), "b\udcff.txt": "x"})
    except OSError:
        pytest.skip("no such links or names here")
    data = read_data(tmp_path)
    assert [one.name for one in data.examples] == ["a.png"]
    assert {*reasons(data.problems)} == {"no.png", "self.png", "cats", "b\\udcff.png"}
    "\n".join(summary(data.problems)).encode()  # as reports are written


def test_folders_are_looked_into_at_any_depth(tmp_path: Path) -> None:
    root = write(tmp_path / "root", {"deep.png": picture(), "deep.txt": "x"})
    for _ in range(1200):  # from the inside out, as no path may be this long
        outer = tmp_path / "outer"
        outer.mkdir()
        root.rename(outer / "d")
        outer.rename(root)
    try:
        assert [one.captions for one in read_data(root).examples] == [("x",)]
        assert [one.captions for one in read_captions(root).examples] == [("x",)]
    finally:
        for _ in range(1200):  # nothing that removes folders goes this deep
            (root / "d").rename(tmp_path / "inner")
            root.rmdir()
            (tmp_path / "inner").rename(root)


@needs_pipes
def test_a_caption_that_is_a_pipe_or_too_long_is_left_out_unread(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.txt")
    (tmp_path / "b.txt").touch()
    os.truncate(tmp_path / "b.txt", 2**40)
    data = read_captions(write(tmp_path, {"c.txt": "x"}))
    assert [one.name for one in data.examples] == ["c.txt:1"]
    assert {*reasons(data.problems)} == {"a.txt", "b.txt"}
    write(tmp_path, {"a.png": picture(), "b.png": picture()})
    assert reasons(read_data(tmp_path).problems) == {
        "a.png": "no .txt, .caption or .json beside it",
        "b.png": "its .txt cannot be read: it is longer than 1,048,576 bytes",
    }


def test_several_captions_in_a_list(tmp_path: Path) -> None:
    row = json.dumps({"file_name": "a.png", "text": ["one", "two"]})
    (example,) = read_data(write(tmp_path, {"a.png": picture(), "metadata.jsonl": row})).examples
    assert example.captions == ("one", "two")


SHARD = {
    "000.png": picture("red"),
    "000.txt": "a red cat\na cat",
    "000.json": "{}",
    "sub/0.1.png": picture(),  # the name ends at its first dot
    "001.JPG": picture("blue"),
    "001.txt": "a blue cat",
    "002.png": picture(),
    "003.png": picture(),
    "003.txt": "",
    "004.png": picture(),
    "004.txt": b"\xff",
}


def test_shards_are_read_in_place(tmp_path: Path) -> None:
    write_shard(tmp_path / "b.tar", SHARD)
    write_shard(tmp_path / "a.tar", {"000.png": picture("lime"), "000.txt": "a green cat"})
    data = read_data(tmp_path)
    assert [one.name for one in data.examples] == ["a.tar/000", "b.tar/000", "b.tar/001"]
    assert [one.image().getpixel((3, 3)) for one in data.examples] == [(0, 255, 0), (255, 0, 0), (0, 0, 255)]
    assert data.examples[1].captions == ("a red cat", "a cat")
    assert reasons(data.problems) == {
        "b.tar/002": "no .txt, .caption or .json of its name in the shard",
        "b.tar/003": "its caption is empty",
        "b.tar/004": "its .txt cannot be read: it is not UTF-8",
        "b.tar/sub/0": "no .txt, .caption or .json of its name in the shard",
    }
    assert [*read_data(tmp_path / "b.tar").examples] == data.examples[1:]


def test_pairs_of_a_shard_are_those_of_webdataset(tmp_path: Path) -> None:
    webdataset = library("webdataset")
    shard = write_shard(tmp_path / "b.tar", SHARD)
    expected = {
        f"b.tar/{sample['__key__']}": tuple(sample["txt"].decode().splitlines())
        for sample in webdataset.WebDataset(str(shard), shardshuffle=False)
        if {"png", "jpg"} & sample.keys() and sample.get("txt", b"\xff") not in (b"", b"\xff")
    }
    assert {one.name: one.captions for one in read_data(shard).examples} == expected


def test_compressed_shards_are_called_so(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "a.tar", "w:gz"):
        pass
    with pytest.raises(ValueError, match=r"a\.tar: no whole, uncompressed \.tar file: it is a gzip file"):
        read_data(tmp_path)


def test_damaged_shards_are_all_named_and_good_ones_read(tmp_path: Path) -> None:
    pairs = {name: content for number in range(8) for name, content in member_pair(number).items()}
    whole = write_shard(tmp_path / "0.tar", pairs).read_bytes()
    for number in range(1, 6):  # the same damage in each: a bad header, half of it in
        (tmp_path / f"{number}.tar").write_bytes(whole[:8192] + b"x" + whole[8193:])
    write_shard(tmp_path / "6.tar", member_pair(0))
    (tmp_path / "7.tar").write_bytes(whole[:8192])
    data = read_data(tmp_path)
    assert Counter(one.path.stem for one in data.examples) == {"0": 8, **dict.fromkeys("12345", 4), "6": 1, "7": 4}
    lines = summary(data.problems)
    bad = [line for line in lines if "damaged at byte 8,192 (bad checksum)" in line]
    assert [line.partition(": ")[0] for line in bad] == [f"{number}.tar" for number in range(1, 6)]
    (cut,) = [line for line in lines if line not in bad]
    assert cut.startswith("7.tar: damaged at byte 8,192 (the file stops there")


def member_pair(number: int) -> dict[str, bytes | str]:
    return {f"{number}.png": picture(), f"{number}.txt": f"a cat {number}"}


def test_two_shards_put_together_are_not_taken_for_one(tmp_path: Path) -> None:
    first, second = (write_shard(tmp_path / name, member_pair(number)) for number, name in enumerate("ab"))
    (tmp_path / "c.tar").write_bytes(first.read_bytes() + second.read_bytes())
    data = read_data(tmp_path / "c.tar")
    assert [one.captions for one in data.examples] == [("a cat 0",)]
    assert "more follows" in reasons(data.problems)["c.tar"]


@needs_pipes
def test_an_unreadable_shard_does_not_hold_up_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in "ab":
        write_shard(tmp_path / f"{name}.tar", member_pair(0))
    os.mkfifo(tmp_path / "c.tar")
    opened = Path.open

    def refused(path: Path, *given: Any, **named: Any) -> Any:
        if path.name == "a.tar":
            raise PermissionError(13, "Permission denied", str(path))
        return opened(path, *given, **named)

    monkeypatch.setattr(Path, "open", refused)
    data = read_data(tmp_path)
    assert [one.name for one in data.examples] == ["b.tar/0"]
    assert summary(data.problems) == [
        "a.tar: it cannot be read: Permission denied; what is in it is left out",
        "c.tar: it is a link to nothing, a pipe or a device, or may not be read",
    ]


@pytest.mark.parametrize("name", ["nowhere", "empty", "file.zip"])
def test_what_holds_no_data_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "file.zip").touch()
    with pytest.raises(ValueError, match=name):
        read_data(tmp_path / name)


def test_a_broken_image_is_an_error_where_it_is_asked_for(tmp_path: Path) -> None:
    data = read_data(write(tmp_path, {"a.png": picture()[:-30], "a.txt": "x"}))
    with pytest.raises(ValueError, match=r"a\.png: broken image"):
        data.examples[0].image()
    left = data.without([Problem("a.png", "broken")])
    assert len(left.examples) == 0
    assert left.problems == (Problem("a.png", "broken"),)
    assert left.digest != data.digest
    write_shard(tmp_path / "a.tar", {"a.png": picture()[:-30], "a.txt": "x"})
    with pytest.raises(ValueError, match=r"a\.tar/a: broken image"):
        read_data(tmp_path).examples[0].image()


# ---- captions


def example(*captions: str, name: str = "a.png", repeats: int = 1) -> Example:
    return Example(name, Path(name), captions, repeats)


def test_each_caption_comes_in_some_epoch_and_the_choice_is_kept() -> None:
    one = example("x", "y", "z")
    chosen = [caption_of(one, epoch, 7, CaptionOptions()) for epoch in range(300)]
    assert chosen == [caption_of(one, epoch, 7, CaptionOptions()) for epoch in range(300)]
    assert all(70 < count < 130 for count in Counter(chosen).values())
    assert chosen != [caption_of(one, epoch, 8, CaptionOptions()) for epoch in range(300)]
    assert chosen != [caption_of(example("x", "y", "z", name="b.png"), e, 7, CaptionOptions()) for e in range(300)]


def test_tags_are_mixed_and_dropped_behind_those_that_are_kept() -> None:
    one = example("cat, a, b,, c , d")
    options = CaptionOptions(shuffle_tags=True, keep_tags=2)
    mixed = {caption_of(one, epoch, 0, options) for epoch in range(200)}
    assert len(mixed) == 6
    assert all(text.startswith("cat, a, ") and sorted(text.split(", ")[2:]) == ["b", "c", "d"] for text in mixed)
    dropped = [caption_of(one, epoch, 0, CaptionOptions(keep_tags=1, tag_dropout=0.25)) for epoch in range(400)]
    assert all(text.split(", ")[0] == "cat" for text in dropped)
    assert 0.2 < 1 - sum(len(text.split(", ")) - 1 for text in dropped) / 1600 < 0.3
    assert caption_of(example("only"), 3, 0, CaptionOptions(tag_dropout=0.999)) == "only"  # never nothing


@pytest.mark.parametrize("wrong", [{"keep_tags": -1}, {"tag_dropout": 1.0}, {"tag_dropout": -0.1}])
def test_numbers_out_of_range_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=str(next(iter(wrong.values())))):
        CaptionOptions(**wrong)


def test_ids_are_those_of_transformers_and_end_with_the_longest_caption() -> None:
    reference = library("open_clip").get_tokenizer("ViT-L-14")
    captions = ["a red cat", "Ein süßer Hund, 2 Bälle", "x"]
    ids = token_ids(captions, default_tokenizer(), OPENCLIP_H)
    theirs = reference(captions)
    assert ids.shape[1] == int((theirs != 0).sum(1).max())
    assert ids.equal(theirs[:, : ids.shape[1]])


def test_a_caption_that_is_too_long_is_cut_and_known() -> None:
    reference = library("open_clip").get_tokenizer("ViT-L-14")
    captions = ["cat " * 75, "dog " * 76, "cow " * 500]
    assert token_ids(captions, default_tokenizer(), OPENCLIP_H).equal(reference(captions))
    assert [is_too_long(text, default_tokenizer(), OPENCLIP_H) for text in captions] == [False, True, True]


# ---- batches


def test_an_epoch_has_every_pair_as_often_as_it_repeats() -> None:
    examples = [example("x", name=str(index), repeats=1 + index % 3) for index in range(30)]
    batches = Batches([one.repeats for one in examples], 6, seed=1)
    assert batches.per_epoch == 10
    for epoch in range(3):
        parts = [batches(epoch * 10 + step) for step in range(10)]
        assert {part[0] for part in parts} == {epoch}
        seen = Counter(index for _, part in parts for index in part)
        assert seen == {index: 1 + index % 3 for index in range(30)}
        assert sum(len(set(part)) == 6 for _, part in parts) >= 8
    assert batches(3) == Batches([one.repeats for one in examples], 6, seed=1)(3) != batches(13)
    assert batches(3) != Batches([one.repeats for one in examples], 6, seed=2)(3)


def test_a_batch_larger_than_an_epoch_is_refused() -> None:
    with pytest.raises(ValueError, match="2 pairs, fewer than a batch of 3"):
        Batches([2], 3, seed=0)


def test_what_is_held_out_is_in_no_batch() -> None:
    examples = [example("x", name=str(index)) for index in range(10)]
    split = [[[*part] for part in held_out(Examples(examples), 4, seed)] for seed in (0, 0, 1)]
    train, out = split[0]
    assert len(out) == 4
    assert {*train} | {*out} == {*examples}
    assert split[0] == split[1] != split[2]
