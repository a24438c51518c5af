"""State kept in the browser by the stand-alone lab: across reloads, in a link, and never on the server."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

import pytest

from .chromium import Tab
from .lab_in_browser import LabPage, running_lab

TEXT = "a (red:1.2) “fox” & 50 % of a 🦊"


@pytest.fixture
def lab(tab: Tab) -> Iterator[LabPage]:
    yield LabPage(tab)
    assert tab.complaints() == []


def kept(lab: LabPage) -> dict[str, Any]:
    """State in the page's address."""
    return json.loads(unquote(lab.tab.run("return location.hash.slice(1)")) or "{}")


def test_a_reload_loses_nothing_and_no_server_is_told(lab: LabPage, small_lab: str) -> None:
    lab.open(small_lab)
    lab.fill("prompt", TEXT)
    lab.choose("scheme", "masked_blend")
    lab.choose("padding", "mask")
    lab.open_part("Compare schemes")
    lab.check("schemes", "comfy", "perp")
    lab.tab.wait("return location.hash.includes('perp') && location.hash.includes('masked_blend')")
    assert kept(lab)["prompt"] == TEXT
    for again in (small_lab, lab.tab.run("return location.href")):  # by the storage, by the address
        lab.tab.open("about:blank")
        lab.open(again)
        lab.wait_for_value("prompt", TEXT)
        lab.wait_for_value("scheme", "masked_blend")
        lab.wait_for_value("padding", "mask")
        lab.wait_until_read(TEXT)
        lab.tab.wait("return document.querySelector('.wcr-bar').textContent.includes('masked_blend')")
        lab.open_part("Compare schemes")
        lab.tab.wait(
            "return [...document.querySelectorAll('#weighted_clip_schemes label:has(input:checked)')]"
            "  .map((one) => one.textContent.trim()).join() === 'a1111,masked_blend,perp,unweighted'"
        )
    assert [chip.split()[0] for chip in lab.chips()][:4] == ["a", "red", "“", "fox"]
    assert not [one for one in lab.tab.requests() if "#" in one or "fox" in unquote(one)]


def test_a_private_lab_stores_nothing_and_forgets_what_was_stored(lab: LabPage, tmp_path: Path) -> None:
    stored = "return (JSON.stringify(localStorage) + location.href)"
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])  # a browser keeps a storage for each
    with running_lab(tmp_path, "--port", port) as address:
        lab.open(address)
        lab.fill("prompt", TEXT)
        lab.tab.wait("return JSON.stringify(localStorage).includes('fox') && location.hash.includes('fox')")
    lab.tab.open("about:blank")
    with running_lab(tmp_path, "--port", port, "--private") as address:
        lab.open(address)
        lab.fill("prompt", "a (blue:1.2) wolf")
        lab.wait_until_read("a (blue:1.2) wolf")
        assert not lab.tab.run(f"{stored}.match(/fox|wolf/)?.[0]")
        lab.tab.run("return new Promise((done) => setTimeout(done, 1000))")  # longer than it waits before it stores
        assert not lab.tab.run(f"{stored}.match(/fox|wolf/)?.[0]")


@pytest.mark.parametrize(
    "fragment",
    [
        "anything",
        "%ff%fe",
        "7",
        "null",
        quote(json.dumps({"prompt": 7, "scheme": "no such", "schemes": ["nope"], "bind_strength": 2, "syntax": ["a"]})),
        quote('{"prompt": "half \\ud800"}'),
    ],
)
def test_an_address_that_is_none_of_ours_changes_nothing(lab: LabPage, small_lab: str, fragment: str) -> None:
    lab.open(f"{small_lab}#{fragment}")
    lab.wait_for_value("prompt", "a (red:1.4) cat and a (dog:0.5) in a bowl")
    assert lab.value("scheme") == lab.value("syntax") == "a1111"
    assert len(lab.chips()) == 9
