"""Our list of names beside the lists of other packs, run from their own code: one list at a time, theirs first.

The packs are looked for in ``--hosts``: ComfyUI-Custom-Scripts and ComfyUI-Autocomplete-Plus. They are run as copies,
as both write into their own folders, and with words of ours, so that nothing is downloaded.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from weighted_clip.workshop.find_hosts import Host, find_packs

from .browser import running_browser
from .comfy_server import running_server
from .ruler_page import VALUE, WEB_FOLDER, RulerPage

pytestmark = pytest.mark.host

WORDS = "easy chair,1000\neasy street,900\ncat,800\n"
TAGS = "easy_chair,0,1000,\neasy_street,0,900,\ncat,0,800,\n"
NO_DOWNLOADS = {"version": 1, "check_updates_on_startup": False, "hf_datasets": []}
EMBEDDINGS = ("easynegative.pt", "unlisted.pt")
LISTS = """
const rows = (selector) => [...document.querySelectorAll(selector)].filter((row) => row.checkVisibility());
const theirs = rows('.pysssss-autocomplete-item, .autocomplete-plus-item');
return {
    ours: rows('#weighted-clip-names [role=option]').map((row) => row.firstChild.innerText),
    theirs: theirs.map((row) => row.textContent.replace('_', ' ').trim()),
};
"""


class Pack(NamedTuple):
    """A pack with an autocompleter."""

    name: str
    files: dict[str, str]
    """Text written into the copy."""


PACKS = (
    Pack("ComfyUI-Custom-Scripts", {"user/autocomplete.txt": WORDS}),
    Pack(
        "ComfyUI-Autocomplete-Plus",
        {
            "data/danbooru_tags.csv": TAGS,
            "data/danbooru_tags_cooccurrence.csv": "",
            "csv_meta.json": json.dumps(NO_DOWNLOADS),
        },
    ),
)


@pytest.fixture(scope="module", params=PACKS, ids=lambda pack: pack.name)
def beside(host: Host, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RulerPage]:
    """A browser at a server with one of the packs beside ours."""
    found = find_packs(Path(request.config.getoption("--hosts")), [host], request.param.name)
    if not found:
        pytest.skip(f"there is no {request.param.name} in --hosts")
    copy = tmp_path_factory.mktemp("pack") / request.param.name
    shutil.copytree(found[0], copy, ignore=shutil.ignore_patterns(".git"))
    for name, text in request.param.files.items():
        (copy / name).parent.mkdir(exist_ok=True)
        (copy / name).write_text(text)
    models, base = tmp_path_factory.mktemp("models"), tmp_path_factory.mktemp("comfyui") / "base"
    others = {request.param.name: copy}
    with running_server(host, models, base, with_pack=True, folder=WEB_FOLDER, others=others) as server:
        server.request("/settings", {"Comfy.TutorialCompleted": True})
        for name in EMBEDDINGS:
            path = base / "models" / "embeddings" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
        with running_browser(tmp_path_factory.mktemp("browser")) as driver:
            yield RulerPage(driver, server.port)


@pytest.fixture(params=[False, True], ids=["canvas", "Nodes 2.0"])
def page(beside: RulerPage, request: pytest.FixtureRequest) -> RulerPage:
    """Its page, with nodes drawn in either way."""
    beside.open_drawn(is_nodes_2=request.param)
    beside.load_inspect("", syntax="comfy")
    beside.wait("return document.querySelectorAll('.wcr-count').length > 0")
    beside.text_area().click()
    return beside


def lists(page: RulerPage) -> dict[str, list[str]]:
    """Lists shown after a key, waiting longer than any list takes; never two at once."""
    both = page.run(
        f"let both = 0; const end = Date.now() + 1500; const read = () => {{{LISTS}}};"
        "while (Date.now() < end) {"
        "  await new Promise((done) => requestAnimationFrame(done));"
        "  const { ours, theirs } = read();"
        "  both = ours.length && theirs.length ? both + 1 : 0;"
        "  if (both > 2) return true;"
        "}"
        "return false"
    )
    assert not both
    return page.run(LISTS)


def test_one_list_is_shown_and_theirs_comes_first(page: RulerPage) -> None:
    page.press(*"easy")
    shown = lists(page)
    if shown["theirs"]:
        assert any("easy chair" in row for row in shown["theirs"])
        assert shown["ours"] == []
    else:  # as of the versions of February 2026, neither works in Nodes 2.0
        assert page.is_nodes_2
        assert shown["ours"] == ["easynegative"]


def test_keys_go_to_the_list_that_is_shown(page: RulerPage) -> None:
    page.press(*"easy")
    is_theirs = bool(lists(page)["theirs"])
    page.press("ARROW_DOWN", "TAB")
    written = page.run(VALUE)
    assert written.startswith("easy " if is_theirs else "embedding:easynegative"), written
    assert written.count("easy") == 1
    assert page.run("return document.activeElement.tagName") == "TEXTAREA"
