"""The front end and the copy of our pack that the environment names are those that a host serves."""

from __future__ import annotations

import pytest

from .comfy_server import FRONT_END, ComfyServer, front_end_folder
from .server import pack_folder


@pytest.mark.host
def test_the_server_serves_it(ruler_server: ComfyServer) -> None:
    folder = front_end_folder()
    if folder is None:
        pytest.skip(f"the front end is the host's own: {FRONT_END} is not set")
    status, page = ruler_server.request("/")
    assert status == 200
    assert page == (folder / "index.html").read_bytes()


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
