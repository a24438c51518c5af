"""Finding hosts in a folder, for tests, parity and benchmarks alike."""

from pathlib import Path

from weighted_clip.workshop.bench.hosts import ADV, STOCK, find_places
from weighted_clip.workshop.find_hosts import PEERS, PPM, WEBUIS, find_hosts, find_packs, find_references

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


def test_packs_are_found_beside_the_hosts_and_in_them(tmp_path: Path) -> None:
    make(tmp_path / "ComfyUI", COMFY, "1.0")
    for name in ("Some-Pack-main", "ComfyUI/custom_nodes/some-pack", "ComfyUI/custom_nodes/other"):
        (tmp_path / name).mkdir(parents=True)
    hosts = find_hosts(tmp_path, "ComfyUI")
    assert [path.name for path in find_packs(tmp_path, hosts, "some-pack")] == ["Some-Pack-main", "some-pack"]


def test_references_are_found_with_their_pythons(tmp_path: Path) -> None:
    for version in ("0.29.0", "0.3.64"):
        make(tmp_path / f"ComfyUI-{version}", COMFY, version)
    make(tmp_path / "no-python", COMFY, "9.9.9", "x")
    make(tmp_path / "forge", FORGE, "f2", "venv/bin/python")
    for name in ("ComfyUI_ADV_CLIP_emb", "ComfyUI-ppm", "ComfyUI-0.3.64/custom_nodes/ComfyUI-Prompt-Control"):
        (tmp_path / name).mkdir(parents=True)
    newest = tmp_path / "ComfyUI-0.29.0"
    own = newest / ".venv" / "bin" / "python"
    assert find_places(tmp_path)[ADV].python == find_places(tmp_path)[STOCK].python == own
    assert find_places(newest).keys() == {STOCK}

    peers = make(tmp_path / "peers-venv", {}, "", "bin/python") / "bin" / "python"
    found = find_references(tmp_path)
    assert [one.host.name for one in found["comfyui"]] == ["ComfyUI-0.3.64", "ComfyUI-0.29.0"]
    assert [one.host.name for one in found["forge"]] == ["forge"]
    for name in PEERS:  # in the newest ComfyUI, first with the Python made for them, then with its own
        assert [(one.host, one.python) for one in found[name]] == [(newest, peers), (newest, own)]
    assert found["prompt_control"][0].folder.parent.name == "custom_nodes"
    (ppm,) = found["ppm"]
    assert (ppm.host, ppm.python, ppm.folder.name) == (newest, own, PPM)
    places = find_places(tmp_path)
    assert (places[ADV].python, places[ADV].folder.name) == (peers, "ComfyUI_ADV_CLIP_emb")
    assert places[STOCK].host == newest
