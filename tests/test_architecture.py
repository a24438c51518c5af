"""The map and the recipes name files, folders and definitions that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
MAPS = ("docs/architecture.md", "CONTRIBUTING.md")
FOLDERS = sorted(path.name for path in ROOT.iterdir() if path.is_dir() and not path.name.startswith("."))
_PATH = re.compile(rf"(?<![\w/.])(?:(?:{'|'.join(FOLDERS)})/[\w./-]*|[\w-]+\.(?:py|md|toml))")
_DEFINED = r"`(\w+)`\s+in\s+`([\w/]+\.py)`"


def text_of(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def paths_in(text: str) -> list[str]:
    """Texts that look like a path from the root; for one with a NAME to fill in, its folder."""
    return [re.sub(r"NAME.*", "", found.rstrip(".")) for found in _PATH.findall(re.sub(r"\]\([^)]*\)", "]", text))]


@pytest.mark.parametrize("name", MAPS)
def test_every_path_leads_somewhere(name: str) -> None:
    paths = paths_in(text_of(name))
    assert len(paths) > 30
    assert [path for path in paths if not (ROOT / path).exists()] == []


@pytest.mark.parametrize("name", MAPS)
def test_definitions_are_in_the_files_that_are_named(name: str) -> None:
    found = re.findall(_DEFINED, text_of(name))
    assert found
    for definition, path in found:
        assert re.search(rf"^\s*(?:def|class) {definition}\b|^{definition}\b.* = ", text_of(path), re.MULTILINE), path


def test_the_steps_of_the_drawings_are_where_they_are_drawn() -> None:
    drawings = "\n".join(re.findall(r"```\n(.*?)```", text_of("docs/architecture.md"), re.DOTALL))
    steps = re.findall(r"(\w+) {2,}(weighting/[\w/]+(?:\.py)?)", drawings)
    assert len(steps) >= 8
    for definition, path in steps:
        files = [ROOT / path] if path.endswith(".py") else sorted((ROOT / path).glob("*.py"))
        sources = "\n".join(file.read_text(encoding="utf-8") for file in files)
        assert re.search(rf"^(?:def|class) {definition}\b", sources, re.MULTILINE), f"{definition} in {path}"
