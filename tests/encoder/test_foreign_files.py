"""Files that are none, are named as something else, or hold JSON with a trap: a line that says so, at once."""

from __future__ import annotations

import gzip
import io
import json
import os
import pickle
import sys
from pathlib import Path

import pytest
import torch
from PIL import Image
from weighted_clip.encoder.files.kinds import kind_of
from weighted_clip.encoder.files.tensor_file import open_tensor_file
from weighted_clip.encoder.files.textual_inversion import read_embedding_file
from weighted_clip.encoder.foreign_text import parse_json
from weighted_clip.encoder.image_file import open_image
from weighted_clip.encoder.regular_file import NoRegularFile, open_regular, read_regular
from weighted_clip.hosts.webui.script import routes as webui_routes
from weighted_clip.nodes.base import routes as comfy_routes
from weighted_clip.studio.dalle.weight_files import load_dvae
from weighted_clip.studio.training import checkpoint
from weighted_clip.studio.world.model import load_world


def saved(value: object, *, is_zip: bool = True) -> bytes:
    file = io.BytesIO()
    torch.save(value, file, _use_new_zipfile_serialization=is_zip)
    return file.getvalue()


def picture() -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (8, 8)).save(file, "PNG")
    return file.getvalue()


POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a214614ab2935c943f9e0ff69d22eadbb\nsize 1234\n"
OTHERS = {
    "Git LFS": POINTER,
    "GGUF": b"GGUF\x03\0\0\0" + bytes(64),
    "web page": b"\n <!DOCTYPE html>\n<html lang='en'>",
    "by PyTorch": saved({"a": torch.ones(3)}),
    "a pickle": pickle.dumps({"a": 1}),
    "pickle, which": saved({"a": torch.ones(3)}, is_zip=False),
    "zip": b"PK\x03\x04\x14" + bytes(60),
    "gzip": gzip.compress(b"x"),
    "JSON": json.dumps({"error": "Entry not found"}).encode(),
    "empty": b"",
    "zeros": bytes(4096),
    "PNG": picture(),
    "Invalid username": "Invalid username or password. é".encode(),
    "text": "é".encode() * 300,
}


@pytest.mark.parametrize("kind", OTHERS)
def test_what_is_named_safetensors_and_is_another_kind_is_named(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    path.write_bytes(OTHERS[kind])
    for read in (
        lambda: open_tensor_file(path).__enter__(),
        lambda: read_embedding_file(path),
        lambda: load_dvae(path),
    ):
        with pytest.raises(ValueError, match=kind) as told:
            read()
        assert "bytes" not in str(told.value)
        assert len(str(told.value)) < 300 + len(str(path))


@pytest.mark.parametrize("content", [b"\0\1\2", bytes(range(256)), (10**6).to_bytes(8, "little") + b'{"a": '])
def test_a_kind_that_is_not_known_is_not_named(content: bytes) -> None:
    assert kind_of(content) == ""


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no pipes among files")
@pytest.mark.parametrize("kind", ["pipe", "folder", "zero", "link"])
def test_every_reader_refuses_what_is_no_file_at_once(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "checkpoint.pt"
    make = {"pipe": os.mkfifo, "folder": os.mkdir, "zero": lambda path: path.symlink_to("/dev/zero")}
    make.get(kind, lambda path: path.symlink_to(path))(path)
    readers = (
        open_regular,
        lambda path: read_regular(path, 10),
        open_image,
        load_world,
        lambda path: checkpoint.load(path.parent),
        lambda path: open_tensor_file(path.rename(path.with_suffix(".safetensors"))).__enter__(),
    )
    for read in readers:
        with pytest.raises((OSError, ValueError)):
            read(path)


def test_a_file_of_as_many_bytes_as_are_read_is_read_and_no_larger_one(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(b"12345")
    assert read_regular(path, 5) == b"12345"
    with pytest.raises(OSError, match="it has 5 bytes, at most 4 are read"):
        read_regular(path, 4)


def test_what_is_swapped_for_a_pipe_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from weighted_clip.encoder import regular_file

    path = tmp_path / "x"
    os.mkfifo(path)
    monkeypatch.setattr(regular_file, "stat_of", lambda path: None)
    with pytest.raises(NoRegularFile):
        open_regular(path)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("7" * 5000, "4,300 digits"),
        ("[" * 100_000, "nested too deeply"),
        (b'"\xff"', "UTF-8"),
        ('{"a": ', "no JSON"),
    ],
)
def test_json_is_refused_in_words_of_its_own(text: str | bytes, told: str) -> None:
    with pytest.raises(ValueError, match=told) as error:
        parse_json(text)
    assert "sys." not in str(error.value)
    assert len(str(error.value)) < 100


@pytest.mark.parametrize("body", [b'{"text": ' + b"7" * 5000 + b"}", b"[" * 60_000, b"\xff", b"{"])
def test_routes_refuse_such_json_in_words(body: bytes) -> None:
    for read in (comfy_routes._read, comfy_routes._converted, comfy_routes._infotext_parts):
        with pytest.raises(ValueError, match=r"^(no JSON|nested too deeply|not UTF-8)"):
            read(body, {})
    with pytest.raises(ValueError, match=r"^(no JSON|nested too deeply|not UTF-8)"):
        webui_routes._answered(body)
