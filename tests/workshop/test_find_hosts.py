"""Finding hosts in a folder, for tests, parity and benchmarks alike."""

from pathlib import Path

from weighted_clip.workshop.find_hosts import WEBUIS, find_hosts

COMFY = {"main.py": "", "comfy/sd.py": "", "comfyui_version.py": '__version__ = "{}"'}
WEBUI = {"launch.py": "", "modules/processing.py": "", "CHANGELOG.md": "## {}"}
FORGE = {**WEBUI, "backend/text_processing/x.py": "", "modules_forge/forge_version.py": "version = '{}'"}
CLASSIC = {**WEBUI, "ldm_patched/modules/sd.py": "", "modules_forge/forge_version.py": 'version = "{}"'}


def make(folder: Path, files: dict[str, str], version: str, python: str = ".venv/bin/python") -> Path:
    for name, text in {**files, python: ""}.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text.format(version))
    return folder


def test_hosts_of_each_kind_are_found_with_their_python_the_newest_last(tmp_path: Path) -> None:
    make(tmp_path / "a", COMFY, "0.29.0")
    make(tmp_path / "b", COMFY, "0.3.64", "venv/Scripts/python.exe")
    make(tmp_path / "c", FORGE, "f2.0.1")
    make(tmp_path / "d", WEBUI, "1.10.1")
    make(tmp_path / "e", CLASSIC, "classic")
    make(tmp_path / "no python", COMFY, "9.9.9", "x")
    make(tmp_path / "nothing known", {"launch.py": ""}, "1")
    found = [(host.kind, host.folder.name, host.version) for host in find_hosts(tmp_path, "ComfyUI")]
    assert found == [("ComfyUI", "b", "0.3.64"), ("ComfyUI", "a", "0.29.0")]
    assert find_hosts(tmp_path, "ComfyUI")[0].python == tmp_path / "b" / "venv" / "Scripts" / "python.exe"
    found = {host.kind: host.version for host in find_hosts(tmp_path, *WEBUIS)}
    assert found == {"Forge": "f2.0.1", "Forge Classic": "classic", "A1111": "1.10.1"}
    assert [host.folder.name for host in find_hosts(tmp_path / "c", "Forge")] == ["c"]  # a host itself
    assert find_hosts(tmp_path / "not there", "ComfyUI") == []
