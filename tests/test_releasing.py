"""Data about the project for the Comfy Registry, the index of the WebUI and readers: one version, one address."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import weighted_clip
from PIL import Image

ROOT = Path(__file__).resolve().parents[1]
SKIPPED = {".git", ".venv", "__pycache__", "node_modules", "build", "out", "dist", ".ruff_cache", ".hypothesis"}
TEXTS = {".py", ".md", ".json", ".js", ".html", ".toml", ".yml", ".txt", ".css"}
INDEX = ROOT / ".github" / "webui-index" / "weighted-clip.json"
TAGS = {
    *("script", "localization", "tab", "dropdown", "ads", "installed", "training", "models", "UI related", "prompting"),
    *("editing", "manipulations", "online", "animation", "query", "science", "extras"),
}
"""tags.json of AUTOMATIC1111/stable-diffusion-webui-extensions, May 2026."""
SYSTEMS = ("Microsoft", "POSIX", "MacOS", "OS Independent")
REQUIRED = r"(?:(?:==|>=|<=|!=|~=|>|<)\d+\.\d+\.\d+(?:-\w+)?)(?:,(?:==|>=|<=|!=|~=|>|<)\d+\.\d+\.\d+(?:-\w+)?)*"
"""A range of versions as comfy-cli 1.23.0 reads it; what it cannot read is left out with a warning only."""


@pytest.fixture(scope="module")
def project() -> dict:
    """pyproject.toml."""
    tomllib = pytest.importorskip("tomllib")
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def texts() -> list[Path]:
    """Our text files."""
    files = (path for path in ROOT.rglob("*") if path.suffix in TEXTS and not SKIPPED & set(path.parts))
    return [path for path in files if path.is_file()]


def test_the_version_is_that_of_pyproject_toml_everywhere(project: dict) -> None:
    version = project["project"]["version"]
    assert re.fullmatch(r"\d+\.\d+\.\d+", version)
    assert weighted_clip.__version__ == version
    changes = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert re.findall(r"^## (\d\S+) - ", changes, re.MULTILINE)[0] == version


def test_only_pyproject_toml_says_where_the_project_lives(project: dict) -> None:
    urls, comfy = project["project"].get("urls", {}), project["tool"]["comfy"]
    name = re.escape(project["project"]["name"])
    ours = rf"https?://[\w.]*github(?:usercontent)?\.(?:com|io)/[\w.-]*/{name}(?![\w-])"
    found = {path.relative_to(ROOT).as_posix() for path in texts() if re.search(ours, path.read_text(encoding="utf-8"))}
    assert found == ({"pyproject.toml"} if urls else set())
    raw = urls.get("Repository", "").replace("github.com", "raw.githubusercontent.com") + "/main/docs/images/"
    wanted = {"Icon": f"{raw}icon.png", "Banner": f"{raw}banner.png"} if urls else {}
    assert {key: comfy[key] for key in ("Icon", "Banner") if key in comfy} == wanted


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


def test_icon_and_banner_have_the_sizes_that_the_registry_asks_for() -> None:
    sizes = {}
    for name in ("icon", "banner"):
        with Image.open(ROOT / "docs" / "images" / f"{name}.png") as opened:
            assert opened.format == "PNG"
            sizes[name] = opened.size
    assert sizes["icon"][0] <= 800
    assert sizes["icon"][1] <= 400
    assert sizes["banner"][0] * 9 == sizes["banner"][1] * 21


def test_the_entry_for_the_webui_has_the_fields_that_its_index_wants(project: dict) -> None:
    entry = json.loads(INDEX.read_text(encoding="utf-8"))
    assert set(entry) == {"name", "description", "tags"}  # "url" is written when it is sent, "added" when it is merged
    assert entry["name"] == project["tool"]["comfy"]["DisplayName"]
    assert entry["description"].isascii()  # English is asked for
    assert "\n" not in entry["description"]
    assert entry["tags"]
    assert set(entry["tags"]) <= TAGS - {"installed"}  # that one is the WebUI's own


def test_publishing_needs_a_tag_that_is_the_version_and_reads_only() -> None:
    yaml = pytest.importorskip("yaml")
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "publish.yml").read_text(encoding="utf-8"))
    assert workflow[True] == {"push": {"tags": ["v*"]}}  # YAML reads "on" as a boolean
    assert workflow["permissions"] == {"contents": "read"}
    (job,) = workflow["jobs"].values()
    assert all(re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40}", step["uses"]) for step in job["steps"] if "uses" in step)
    commands = [step["run"] for step in job["steps"] if "run" in step]
    assert "GITHUB_REF_NAME" in commands[0]
    assert "Repository" in commands[0]
    assert commands[1].startswith(".ci/run")
    assert "secrets" not in "".join(commands)  # by the environment, where no log shows it
    assert "node publish" in commands[-1]
    page = (ROOT / "docs" / "releasing.md").read_text(encoding="utf-8")
    installing = [command for command in commands if "pip install" in command]
    assert installing
    assert all("--require-hashes" in command and "--no-deps" in command for command in installing)
    lists = re.findall(r"-r (\S+)", " ".join(installing))
    lines = [line for name in lists for line in (ROOT / name).read_text(encoding="utf-8").splitlines()]
    pins = [line for line in lines if not line.startswith(("#", "    --hash="))]
    assert all(re.fullmatch(r"[\w.-]+==[\w.]+ \\", pin) for pin in pins)
    assert sum("--hash=sha256:" in line for line in lines) >= len(pins)
    (tool,) = (pin.removesuffix(" \\") for pin in pins if pin.startswith("comfy-cli=="))
    assert tool in page
    assert job["environment"] in page
    assert all(name in page for step in job["steps"] for name in step.get("env", {}))


def test_windows_and_macos_are_tried_with_every_python() -> None:
    yaml = pytest.importorskip("yaml")
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "systems.yml").read_text(encoding="utf-8"))
    job = workflow["jobs"]["test"]
    assert workflow["permissions"] == {"contents": "read"}
    assert job["strategy"]["matrix"] == {
        "system": ["windows-latest", "macos-latest"],
        "python": ["3.10", "3.11", "3.12", "3.13", "3.14"],
    }
    assert all(re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40}", step["uses"]) for step in job["steps"] if "uses" in step)
    (tests,) = (step for step in job["steps"] if "run.py test" in step.get("run", ""))
    assert tests["if"] == "matrix.python != '3.10'"  # as run.py refuses
