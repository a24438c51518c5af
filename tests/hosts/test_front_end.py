"""The front end that WEIGHTED_CLIP_FRONT_END names is the one that the browser tests run on."""

from __future__ import annotations

from pathlib import Path

import pytest

from .comfy_server import FRONT_END, ComfyServer, front_end_folder


@pytest.mark.parametrize("place", ["", "static", "comfyui_frontend_package/static"])
def test_the_folder_is_found_where_pip_or_an_archive_puts_it(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(FRONT_END, raising=False)
    assert front_end_folder() is None
    monkeypatch.setenv(FRONT_END, str(tmp_path))
    with pytest.raises(AssertionError, match=r"no index\.html"):
        front_end_folder()
    (tmp_path / place).mkdir(parents=True, exist_ok=True)
    (tmp_path / place / "index.html").touch()
    assert front_end_folder() == tmp_path / place


@pytest.mark.host
def test_the_server_serves_it(ruler_server: ComfyServer) -> None:
    folder = front_end_folder()
    if folder is None:
        pytest.skip(f"the front end is the host's own: {FRONT_END} is not set")
    status, page = ruler_server.request("/")
    assert status == 200
    assert page == (folder / "index.html").read_bytes()
