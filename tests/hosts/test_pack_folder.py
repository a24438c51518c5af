"""Hosts are given the folder that WEIGHTED_CLIP_PACK names as our pack."""

from __future__ import annotations

from pathlib import Path

import pytest

from .comfy_server import PACK, REPOSITORY, ComfyServer, pack_folder


def test_the_folder_is_the_repository_or_the_one_that_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(PACK, raising=False)
    assert pack_folder() == REPOSITORY
    monkeypatch.setenv(PACK, str(tmp_path))
    with pytest.raises(AssertionError, match="our pack is not in it"):
        pack_folder()
    (tmp_path / "nodes").mkdir()
    (tmp_path / "nodes" / "__init__.py").touch()
    assert pack_folder() == tmp_path


@pytest.mark.host
def test_comfyui_has_our_pack_from_there(ruler_server: ComfyServer) -> None:
    (ours,) = (
        path for path in (ruler_server.base / "custom_nodes").iterdir() if path.resolve() == pack_folder().resolve()
    )
    node = ruler_server.get("/object_info/WeightedCLIPTextEncode")["WeightedCLIPTextEncode"]
    assert node["python_module"] == f"custom_nodes.{ours.name}"
    script = "ruler.js"
    status, served = ruler_server.request(f"/extensions/{ours.name}/{script}")
    assert status == 200
    assert served == (pack_folder() / "web" / "comfyui" / script).read_bytes()
