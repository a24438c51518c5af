"""An earlier state of the pack in a real WebUI is upgraded and then removed: the same prompts give the same pictures.

WEIGHTED_CLIP_EARLIER=COMMIT names the earlier state, as in test_upgrade.py; without it, this is skipped. The extension
is a clone at that commit, which is replaced by the present state, or by the folder that WEIGHTED_CLIP_PACK names. With
each, every scheme that the earlier one had makes a picture.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from weighted_clip.workshop.find_hosts import Host

from .comfy_server import REPOSITORY
from .test_upgrade import CHANGED, PROMPT, files, git
from .webui_server import (
    EXTENSION_FOLDER,
    TITLE,
    Generation,
    WebUIServer,
    copy_repository,
    prepare_data_folder,
    serving_webui,
)

pytestmark = [pytest.mark.host, pytest.mark.slow]

SWITCH = "weighted_clip_ruler"
"""A setting of ours, which is changed, so that the WebUI has something to keep."""


@dataclass(frozen=True)
class Story:
    """A clean host, the earlier state, the present one, and the host without the pack again."""

    stock: tuple[Generation, Generation]
    """`PROMPT` without the pack, before it came and after it went."""
    earlier: Mapping[str, Generation]
    """`PROMPT` by each scheme."""
    present: Mapping[str, Generation]
    logs: tuple[str, str, str, str]
    left: list[str]
    """Files in the data folder with our name in them or in their own, relative to it, after the removal."""


def schemes(server: WebUIServer) -> list[str]:
    """Choices of the first menu of our script, without what it says of them."""
    (ours,) = (one for one in server.api("/sdapi/v1/script-info") if one["name"] == TITLE and not one["is_img2img"])
    shown = next(argument["choices"] for argument in ours["args"] if argument.get("choices"))
    return [choice.split(":")[0] for choice in shown]


def named_ours(base: Path) -> list[str]:
    """Files below a folder that have our name in them or in their own."""

    def is_ours(name: str) -> bool:
        text = (base / name).read_bytes().lower()
        return any(word in part for word in (b"weighted_clip", b"weighted clip") for part in (text, name.encode()))

    return sorted(name for name in files(base) if name.endswith((".json", ".csv", ".txt", ".log")) and is_ours(name))


@pytest.fixture(scope="module")
def story(earlier: str, webui_host: Host, webui_models: Path, tmp_path_factory: pytest.TempPathFactory) -> Story:
    """All of it, in one data folder."""
    base = tmp_path_factory.mktemp("upgrade") / "data"
    environment = prepare_data_folder(webui_host, webui_models, base)
    extension = base / "extensions" / EXTENSION_FOLDER
    logs: list[str] = []

    @contextmanager
    def serving() -> Iterator[WebUIServer]:
        with serving_webui(webui_host, base, environment) as server:
            yield server
            logs.append(server.log_text())

    def generations(server: WebUIServer, names: list[str]) -> dict[str, Generation]:
        return {name: server.txt2img(PROMPT, script=[True, name]) for name in names}

    with serving() as server:
        before = server.txt2img(PROMPT)
    git(base, "clone", "--quiet", str(REPOSITORY), str(extension))
    git(extension, "checkout", "--quiet", "-B", "earlier", earlier)  # Forge asks for the name of the branch
    with serving() as server:
        names = schemes(server)
        then = generations(server, names)
    shutil.rmtree(extension)
    copy_repository(extension)
    with serving() as server:
        now = generations(server, names)
        server.api("/sdapi/v1/options", {SWITCH: False})
    shutil.rmtree(extension)
    with serving() as server:
        after = server.txt2img(PROMPT)
    one, two, three, four = logs
    (base / "server.log").unlink()
    return Story((before, after), then, now, (one, two, three, four), named_ours(base))


def test_every_scheme_draws_the_same_picture(story: Story) -> None:
    assert len(story.earlier) > 10
    different = {name for name, then in story.earlier.items() if not story.present[name].equals(then)}
    assert different <= {name.removeprefix("scheme ") for name in CHANGED}
    assert any(not then.equals(story.stock[0]) for then in story.earlier.values())


def test_the_host_is_as_before_once_the_pack_is_gone(story: Story) -> None:
    before, after = story.stock
    assert after.equals(before)
    assert after.infotext == before.infotext
    assert "weighted" not in story.logs[3].lower()
    for log in story.logs:
        assert "Traceback" not in log


def test_what_is_left_is_what_the_host_keeps_of_every_extension(story: Story) -> None:
    assert story.left == ["config.json", "ui-config.json"]
