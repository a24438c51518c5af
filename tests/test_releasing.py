"""Data about the project for the Comfy Registry and readers: one version."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import weighted_clip

ROOT = Path(__file__).resolve().parents[1]
SYSTEMS = ("Microsoft", "POSIX", "MacOS", "OS Independent")
REQUIRED = r"(?:(?:==|>=|<=|!=|~=|>|<)\d+\.\d+\.\d+(?:-\w+)?)(?:,(?:==|>=|<=|!=|~=|>|<)\d+\.\d+\.\d+(?:-\w+)?)*"
"""A range of versions as comfy-cli 1.23.0 reads it; what it cannot read is left out with a warning only."""


@pytest.fixture(scope="module")
def project() -> dict:
    """pyproject.toml."""
    tomllib = pytest.importorskip("tomllib")
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def test_the_version_is_that_of_pyproject_toml_everywhere(project: dict) -> None:
    version = project["project"]["version"]
    assert re.fullmatch(r"\d+\.\d+\.\d+", version)
    assert weighted_clip.__version__ == version
    changes = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert re.findall(r"^## (\d\S+) - ", changes, re.MULTILINE)[0] == version


def test_the_registry_is_told_all_that_it_shows(project: dict) -> None:
    comfy, about = project["tool"]["comfy"], project["project"]
    assert re.fullmatch(r"[a-z][a-z0-9]*(?:[-_.][a-z0-9]+)*", about["name"])
    assert "comfyui" not in about["name"]
    assert comfy["PublisherId"]
    assert comfy["DisplayName"] == "Weighted CLIP"
    assert about["license"] == {"file": "LICENSE"}
    systems = [one.removeprefix("Operating System :: ") for one in about["classifiers"] if "Operating" in one]
    assert systems
    assert all(system.startswith(SYSTEMS) for system in systems)
    assert re.fullmatch(REQUIRED, comfy["requires-comfyui"])
    page = (ROOT / "docs" / "compatibility.md").read_text(encoding="utf-8")
    tried = re.findall(r"^\| ComfyUI \| ([\d.]+)", page, re.MULTILINE)
    oldest = min(tried, key=lambda version: [int(part) for part in version.split(".")])
    assert comfy["requires-comfyui"] == f">={oldest}"
