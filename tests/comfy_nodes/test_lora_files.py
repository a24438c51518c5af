"""LoRA files by alias and hash, as A1111 and Forge write them; and files named again, which act once."""

import hashlib
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from weighted_clip.hosts.comfy.models import lora_files
from weighted_clip.hosts.comfy.models.lora_files import file_by_hash, files_named, names_in

from .fake_comfy import install, node


def load(text: str, **inputs: Any) -> dict:
    return node("LoadPromptLoras").load([], [], text, **inputs)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Path]:
    """A loras folder: files with and without metadata, some that are none, and a pipe."""
    metadata: dict[str, dict[str, str] | None] = {
        "v2-final.safetensors": {"ss_output_name": "Ink Style", "sshs_model_hash": "ab" * 32},
        "paint.safetensors": {"ss_output_name": "watercolour"},
        "one.safetensors": {"ss_output_name": "shared"},
        "two.safetensors": {"ss_output_name": "shared"},
        "three.safetensors": {"ss_output_name": "paint"},
        "plain.safetensors": None,
    }
    for number, (name, about) in enumerate(metadata.items()):
        save_file({"lora_up.weight": torch.full((2, 2), float(number))}, tmp_path / name, about)
    (tmp_path / "page.safetensors").write_text("<!DOCTYPE html>")
    (tmp_path / "old.pt").write_bytes(b"pickle")
    if hasattr(os, "mkfifo"):
        os.mkfifo(tmp_path / "pipe.safetensors")
    else:
        (tmp_path / "pipe.safetensors").mkdir()
    files = {path.name: path for path in sorted(tmp_path.iterdir())}
    install(monkeypatch, {"loras": {**files, "gone.safetensors": tmp_path / "gone.safetensors"}})
    return files


@pytest.mark.parametrize(
    ("name", "files"),
    [
        ("Ink Style", ["v2-final.safetensors"]),
        ("ink style", ["v2-final.safetensors"]),
        ("v2-final", ["v2-final.safetensors"]),
        ("paint", ["paint.safetensors"]),  # and not the one whose alias this is
        ("shared", ["one.safetensors", "two.safetensors"]),
        ("", []),
        ("pipe", ["pipe.safetensors"]),
        ("nothing", []),
    ],
)
def test_a_file_is_found_by_its_name_and_else_by_its_alias(folder: dict, name: str, files: list[str]) -> None:
    assert files_named(name, lora_files.lora_files()) == files


def test_a_lora_of_an_alias_is_loaded(folder: dict) -> None:
    result = load("a <lora:Ink Style:0.8> cat")
    assert result["result"][0] == [("v2-final.safetensors", 0.8)]
    assert result["ui"]["text"] == []
    (problem,) = load("<lora:shared:1>")["ui"]["text"]
    assert "one.safetensors, two.safetensors" in problem


def hashes_of(path: Path) -> tuple[str, str]:
    """SHA-256 of a file, and of what follows the header, as additional-networks defines it."""
    data = path.read_bytes()
    return hashlib.sha256(data).hexdigest(), hashlib.sha256(data[int.from_bytes(data[:8], "little") + 8 :]).hexdigest()


def test_a_file_is_found_by_the_hashes_of_a1111_forge_and_civitai(folder: dict) -> None:
    for name in ("plain.safetensors", "one.safetensors", "old.pt", "page.safetensors"):
        whole, tensors = hashes_of(folder[name])
        assert file_by_hash(whole[:12]) == file_by_hash(whole[:10].upper()) == name
        if name in ("plain.safetensors", "one.safetensors"):
            assert file_by_hash(tensors[:12]) == name
    assert file_by_hash("ab" * 6) == "v2-final.safetensors"
    for unknown in ("0" * 12, "abab", "", "not a hash", "ab" * 40):
        assert file_by_hash(unknown) is None


def test_what_was_read_of_a_file_is_remembered_until_it_changes(folder: dict, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = []
    really = lora_files.opened
    monkeypatch.setattr(lora_files, "opened", lambda path, most: opened.append(path) or really(path, most))
    path = folder["paint.safetensors"]
    assert [names_in("paint.safetensors").alias for _ in range(3)] == ["watercolour"] * 3
    assert len(opened) == 1
    for number, alias in enumerate(("watercolors", "x" * 5000)):  # of the same size, and of another
        save_file({"lora_up.weight": torch.ones(2, 2)}, path, {"ss_output_name": alias})
        os.utime(path, (number, number))
        assert names_in("paint.safetensors").alias == alias[:1000]


def test_a_search_by_hash_reads_so_many_bytes_at_most(folder: dict, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lora_files, "MAX_HASHED", 10)
    monkeypatch.setattr(lora_files, "_hashes", lambda *about: pytest.fail(f"{about} was hashed"))
    for path in folder.values():
        if path.is_file() and path.stat().st_size <= 10:
            path.write_bytes(b"x" * 11)
    assert file_by_hash("0" * 12) is None


@pytest.mark.parametrize(
    ("text", "model", "clip"),
    [
        ("<lora:paint:0.8> <lora:paint.safetensors:0.8> <lora:watercolour:0.5>", [0.8, 0.5], [0.8, 0.5]),
        ("<lora:paint:0.8> <lora:paint:0.8:0.5>", [0.8, 0.5], [0.8, 0.0]),
        ("<lora:paint:0.8:0.5> <lora:paint:0.6:0.5>", [0.5, 0.0], [0.8, 0.6]),
        ("<lora:paint:0@0,1@1> <lora:paint:1>", [1.0], [1.0]),
        ("<lora:paint:0>", [0.0], [0.0]),
    ],
)
def test_a_file_acts_once_at_each_strength(folder: dict, text: str, model: list, clip: list) -> None:
    result = load(text)
    assert result["result"][0] == [("paint.safetensors", strength) for strength in model]
    assert result["result"][1] == [("paint.safetensors", strength) for strength in clip]
    assert any("named again" in line for line in result["ui"]["text"]) == (text.count("<") > 1)


def test_in_time_a_file_that_always_acts_does_not_act_again_later(folder: dict) -> None:
    result = load("<lora:paint:0.8> [a<lora:watercolour:0.8>:5]", loras="in time")
    assert result["result"][0] == [("paint.safetensors", 0.8)]
    assert sum("named again" in line for line in result["ui"]["text"]) == 1
