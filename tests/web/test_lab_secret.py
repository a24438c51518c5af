"""The lab's address: nothing is answered without its secret, which others do not see, and it keeps the page's state.

First the filter as a separate ASGI application, then the server as the command starts it.
"""

from __future__ import annotations

import asyncio
import json
import os
import stat
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote, unquote, urlsplit

import pytest
from starlette.testclient import TestClient
from weighted_clip.encoder.models.config import TextConfig
from weighted_clip.web.lab import server
from weighted_clip.web.lab.access import MAX_BYTES, MAX_UPLOAD_BYTES, NO_SECRET, UPLOADS, Guard
from weighted_clip.web.lab.native import LoadSettings, Shelf, random_model

from ..patience import SECONDS
from .chromium import Browser, Tab
from .lab_in_browser import LabPage, running_lab

pytest.importorskip("gradio", reason="gradio is not installed: python run.py test installs it")


HOST = "127.0.0.1:7867"
OWN = f"http://{HOST}"
EVIL = "https://evil.example"
SECRET = "0123456789abcdef" * 2


def answered(
    method: str, *, kind: str = "http", path: str = "/", root: str = f"/{SECRET}", **headers: str
) -> tuple[list[Any], list[Any]]:
    """Result of a request: the input of the application, and all messages to the client."""
    reached: list[Any] = []
    sent: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        reached.append(scope)
        if scope["type"] == "http":
            await send({"type": "http.response.start", "status": 200, "headers": [(b"x-own", b"1")]})
            await send({"type": "http.response.body", "body": b"page"})

    async def receive() -> Any:
        raise AssertionError("nothing is read of a request before it is let through")

    async def send(message: Any) -> None:
        sent.append(message)

    pairs = [(b"host", HOST.encode())]
    pairs += [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    scope = {"type": kind, "method": method, "path": root + path, "headers": pairs}
    asyncio.run(Guard(app, SECRET)(scope, receive, send))
    return reached, sent


@pytest.mark.parametrize(
    ("method", "headers"),
    [
        ("GET", {}),  # no browser, or an old one
        ("GET", {"sec_fetch_site": "none", "sec_fetch_mode": "navigate"}),  # the address was typed
        ("GET", {"sec_fetch_site": "cross-site", "sec_fetch_mode": "navigate"}),  # a link elsewhere was followed
        ("GET", {"sec_fetch_site": "same-origin", "sec_fetch_mode": "cors", "origin": OWN}),
        ("POST", {"sec_fetch_site": "same-origin", "origin": OWN, "content_length": "17"}),
        ("POST", {"content_length": str(MAX_BYTES)}),
        ("POST", {"content_length": "0"}),
    ],
)
def test_the_page_of_the_lab_is_answered(method: str, headers: dict[str, str]) -> None:
    reached, sent = answered(method, **headers)
    assert len(reached) == 1
    assert [message["type"] for message in sent] == ["http.response.start", "http.response.body"]
    names = [name for name, _ in sent[0]["headers"]]
    assert (sent[0]["status"], sent[1]["body"], names[0]) == (200, b"page", b"x-own")
    assert {b"content-security-policy", b"referrer-policy", b"x-content-type-options"} < set(names)


@pytest.mark.parametrize(
    ("method", "headers", "status", "says"),
    [
        ("POST", {"origin": EVIL, "content_length": "2"}, 403, f"own page only; this request is of {EVIL}"),
        ("POST", {"origin": "null", "content_length": "2"}, 403, "is of null"),
        ("POST", {"origin": "http://127.0.0.1:8188", "content_length": "2"}, 403, "is of http://127.0.0.1:8188"),
        ("POST", {"sec_fetch_site": "cross-site", "sec_fetch_mode": "navigate", "content_length": "2"}, 403, "another"),
        ("GET", {"sec_fetch_site": "cross-site", "sec_fetch_mode": "no-cors"}, 403, "is of another page"),
        ("GET", {"sec_fetch_site": "same-site", "sec_fetch_mode": "cors"}, 403, "is of another page"),
        ("POST", {"content_length": str(MAX_BYTES + 1)}, 413, f"{MAX_BYTES} bytes at most, got {MAX_BYTES + 1}"),
        ("POST", {"content_length": "9" * 5000}, 413, f"got {'9' * 20}"),
        ("POST", {"transfer_encoding": "chunked"}, 411, "got content-length ''"),
        ("POST", {"content_length": "5", "transfer_encoding": "chunked"}, 411, "how long it is"),
        ("GET", {"transfer_encoding": "chunked"}, 411, "how long it is"),
        ("GET", {"content_length": str(MAX_BYTES + 1)}, 413, f"{MAX_BYTES} bytes at most"),
        ("PUT", {"content_length": "-1"}, 411, "got content-length '-1'"),
        ("POST", {"content_length": "²"}, 411, "got content-length"),
    ],
)
def test_others_are_refused_before_anything_is_read(
    method: str, headers: dict[str, str], status: int, says: str
) -> None:
    reached, sent = answered(method, **headers)
    assert reached == []
    assert [message["type"] for message in sent] == ["http.response.start", "http.response.body"]
    assert sent[0]["status"] == status
    assert says in json.loads(sent[1]["body"])["error"]


@pytest.mark.parametrize(
    "root",
    [
        "",
        "/",
        f"/{SECRET[:-1]}",
        f"/{SECRET}0",
        f"/{SECRET.upper()}",
        f"/x/{SECRET}",
        f"//{SECRET}",
        f"/ {SECRET}",
        f"{EVIL}/{SECRET}",
        "/é",
        "/\ud800",
        "/\0",
        f"/{'0' * 100_000}",
    ],
)
@pytest.mark.parametrize(
    "path", ["/", "/config", "/gradio_api/queue/data", "/gradio_api/upload", "/weighted-clip/x.js"]
)
def test_no_path_without_the_secret_is_answered(root: str, path: str) -> None:
    for method, headers in (("GET", {}), ("HEAD", {}), ("POST", {"origin": OWN, "content_length": "2"}), ("PUT", {})):
        reached, sent = answered(method, root=root, path=path, **headers)
        assert reached == []
        assert sent[0]["status"] == 403
        assert json.loads(sent[1]["body"])["error"] == NO_SECRET


def test_a_link_without_the_secret_is_told_in_words_and_does_not_get_it() -> None:
    reached, sent = answered("GET", root="", sec_fetch_mode="navigate", sec_fetch_site="none")
    assert reached == []
    assert sent[0]["status"] == 403
    assert NO_SECRET[1:] in sent[1]["body"].decode()
    assert SECRET not in repr(sent)


def test_the_application_sees_the_path_behind_the_secret() -> None:
    for path in ("/", "/config"):
        ((scope,), _) = answered("GET", path=path)
        assert (scope["path"].removeprefix(scope["root_path"]), scope["root_path"]) == (path, f"/{SECRET}")


def test_a_websocket_is_closed() -> None:
    reached, sent = answered("GET", kind="websocket", origin=OWN)
    assert reached == []
    assert sent == [{"type": "websocket.close", "code": 1008}]


def test_the_beginning_and_the_end_of_the_server_pass() -> None:
    assert len(answered("", kind="lifespan")[0]) == 1


@pytest.mark.parametrize("path", UPLOADS)
def test_only_pictures_may_be_longer(path: str) -> None:
    most = str(MAX_UPLOAD_BYTES)
    assert len(answered("POST", path=path, content_length=most)[0]) == 1
    assert answered("POST", path=path, content_length=str(MAX_UPLOAD_BYTES + 1))[1][0]["status"] == 413
    assert answered("POST", path=f"{path}x", content_length=most)[1][0]["status"] == 413
    assert answered("POST", path=path, content_length=most, origin=EVIL)[1][0]["status"] == 403


SECRET = "0123456789abcdef" * 2
TEXT = "a (red:1.2) “fox” & 50 % of a 🦊"
WORDS = "open the whole one, which the lab printed"
STORED = "weighted-clip-lab-secret"


class OtherLab(NamedTuple):
    """A lab that stores nothing in the browser."""

    address: str
    opened: str
    """Address that its browser was started with, a file's; empty where other users do not see that."""


@pytest.fixture(scope="module")
def other_lab(tmp_path_factory: pytest.TempPathFactory, small_clip: Path) -> Iterator[OtherLab]:
    folder = tmp_path_factory.mktemp("other")
    seen, browser = folder / "seen", folder / "browser"
    browser.write_text(f"#!/bin/sh\nprintf '%s' \"$*\" > '{seen}.new' && mv '{seen}.new' '{seen}'\n", encoding="utf-8")
    browser.chmod(0o700)
    given, opened = ("--weights", str(small_clip), "--private"), ""
    with running_lab(folder, *given, browser=browser if os.name == "posix" else None) as address:
        if os.name == "posix":
            end = time.monotonic() + SECONDS
            while not seen.exists():
                assert time.monotonic() < end, "no browser was started"
                time.sleep(0.05)
            opened = seen.read_text(encoding="utf-8")
        yield OtherLab(address, opened)
    assert not opened or not file_of(opened).exists()


def file_of(address: str) -> Path:
    return Path(unquote(urlsplit(address).path))


def status(address: str, headers: Mapping[str, str] | None = None) -> tuple[int, str]:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(urllib.request.Request(address, headers=headers or {}), timeout=SECONDS) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def port_of(address: str) -> str:
    """The address without its secret."""
    return f"http://{urlsplit(address).netloc}/"


def routes_of(router: Any) -> Iterator[tuple[str, str]]:
    """Method and path of every route, also of what is mounted or included."""
    for route in router.routes:
        inner = getattr(route, "original_router", None) or getattr(route, "app", None)
        if hasattr(inner, "routes"):
            yield from routes_of(inner)
        else:
            yield from ((method, route.path or "/") for method in getattr(route, "methods", None) or {"GET", "POST"})


def test_no_route_is_answered_without_the_secret() -> None:
    config = TextConfig(hidden_dim=64, num_heads=1, num_layers=2, mlp_dim=64)
    shelf = Shelf(random_model(LoadSettings(), config=config), "random weights", LoadSettings(), {})
    app = server._app(shelf.source, None, None, shelf, SECRET, is_private=False)
    routes = {*routes_of(app)}
    assert {("POST", "/gradio_api/queue/join"), ("GET", "/config"), ("GET", "/weighted-clip/style.css")} < routes
    client = TestClient(app, base_url="http://127.0.0.1")
    for method, path in routes:
        for prefix in ("", "/", f"/{SECRET[:-1]}", "/é"):
            answer = client.request(method, f"http://127.0.0.1{prefix}{path}", follow_redirects=False)
            assert answer.status_code == 403, (method, prefix + path)
            assert method == "HEAD" or WORDS in answer.json()["error"]
    assert client.get(f"/{SECRET}/config").json()["title"] == "Prompt Lab"
    assert client.get(f"/{SECRET}/config", headers={"Host": "elsewhere.example"}).status_code == 400


def test_the_secret_of_a_lab_opens_no_other(small_lab: str, other_lab: OtherLab) -> None:
    paths = [urlsplit(one).path for one in (small_lab, other_lab.address)]
    assert paths[0] != paths[1]
    for lab, other in ((small_lab, paths[1]), (other_lab.address, paths[0])):
        assert status(lab)[0] == 200
        assert status(lab, {"Cookie": f"{STORED}={other}"})[0] == 200
        told = status(port_of(lab).rstrip("/") + other)
        assert told[0] == 403
        assert WORDS in json.loads(told[1])["error"]


def test_a_copied_link_has_no_secret_and_opens_in_this_browser(tab: Tab, small_lab: str) -> None:
    lab = LabPage(tab)
    lab.open(small_lab)
    lab.fill("prompt", TEXT)
    lab.choose("syntax", "comfy")
    lab.wait_until_read(TEXT)
    tab.allow_clipboard()
    lab.click("link")
    assert "opens with this prompt and these options" in lab.wait_for_text("linked", "Copied")
    link = tab.run("return navigator.clipboard.readText()")
    assert urlsplit(small_lab).path.strip("/") not in link
    assert json.loads(unquote(link.partition("#")[2]))["syntax"] == "comfy"
    tab.run("localStorage.removeItem('weighted-clip-lab')")
    assert tab.complaints() == []
    tab.open("about:blank")
    lab.open(link)
    lab.wait_for_value("prompt", TEXT)
    lab.wait_for_value("syntax", "comfy")
    assert tab.run("return location.href").startswith(small_lab)
    assert [one for one in tab.complaints() if f'"{port_of(small_lab)}#' not in one] == []


def test_a_link_that_may_not_be_copied_can_be_taken_from_the_page(tab: Tab, small_lab: str) -> None:
    lab = LabPage(tab)
    lab.open(small_lab)
    lab.fill("prompt", TEXT)
    lab.wait_until_read(TEXT)
    tab.run("navigator.clipboard.writeText = () => Promise.reject(new Error('no'))")
    lab.click("link")
    lab.wait_for_text("linked", "copy it here")
    link = tab.run("return document.querySelector('#weighted_clip_linked a').href")
    assert link.startswith(f"{port_of(small_lab)}#")
    assert json.loads(unquote(link.partition("#")[2]))["prompt"] == TEXT


@pytest.mark.parametrize("stored", ["", "0" * 32, "../evil", "//evil.example", "<img src=x>"])
def test_a_browser_without_the_secret_is_told_in_words_and_stays(tab: Tab, small_lab: str, stored: str) -> None:
    tab.open(port_of(small_lab))
    tab.run("if (args[1]) localStorage.setItem(args[0], args[1])", STORED, stored)
    tab.open("about:blank")
    tab.open(f"{port_of(small_lab)}#%7B%22prompt%22%3A%22a%20fox%22%7D")
    tab.wait("return document.body?.innerText.includes(args[0])", WORDS)
    time.sleep(0.5)
    assert tab.run("return location.host") == urlsplit(small_lab).netloc
    assert tab.run("return document.body.innerText.includes(args[0])", WORDS)
    assert not [one for one in tab.requests() if urlsplit(one).netloc not in ("", urlsplit(small_lab).netloc)]


@pytest.mark.skipif(os.name != "posix", reason="elsewhere other users do not see how programs are started")
def test_the_browser_is_not_started_with_the_secret(tab: Tab, other_lab: OtherLab) -> None:
    assert urlsplit(other_lab.address).path.strip("/") not in other_lab.opened
    assert stat.S_IMODE(file_of(other_lab.opened).stat().st_mode) == 0o600
    LabPage(tab).open(other_lab.opened)
    assert tab.run("return location.href").startswith(other_lab.address)


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
        lab.wait_for_text("scheme_note", "Padding mask")  # its menu is folded
        lab.wait_until_read(TEXT)
        lab.tab.wait("return document.querySelector('.wcr-bar').textContent.includes('masked_blend')")
        lab.open_part("Compare schemes")
        lab.tab.wait(
            "return [...document.querySelectorAll('#weighted_clip_schemes label:has(input:checked)')]"
            "  .map((one) => one.textContent.trim().match(/^\\w+/)[0]).join() === 'a1111,masked_blend,perp'"
        )
    assert [chip.split()[0] for chip in lab.chips()][:4] == ["a", "red", "“", "fox"]
    assert not [one for one in lab.tab.requests() if "#" in one or "fox" in unquote(one)]


def test_a_private_lab_stores_nothing_and_forgets_what_was_stored(
    lab: LabPage, small_lab: str, other_lab: OtherLab
) -> None:
    stored = "return (JSON.stringify(localStorage) + location.href)"
    lab.open(small_lab)
    lab.fill("prompt", TEXT)
    lab.tab.wait("return JSON.stringify(localStorage).includes('fox') && location.hash.includes('fox')")
    entries = lab.tab.run("return {...localStorage}")
    # a browser keeps a storage for each port: let this one have what the other stored
    fill = f"Object.assign(localStorage, {json.dumps(entries)}); window.storedBefore = JSON.stringify(localStorage)"
    lab.tab.call("Page.addScriptToEvaluateOnNewDocument", source=fill)
    lab.open(other_lab.address)
    assert "fox" in lab.tab.run("return window.storedBefore")
    lab.fill("prompt", "a (blue:1.2) wolf")
    lab.wait_until_read("a (blue:1.2) wolf")
    assert not lab.tab.run(f"{stored}.match(/fox|wolf/)?.[0]")
    lab.tab.run("return new Promise((done) => setTimeout(done, 1000))")  # longer than it waits before it stores
    assert not lab.tab.run(f"{stored}.match(/fox|wolf/)?.[0]")


@pytest.fixture(scope="module")
def one_tab(browser: Browser) -> Iterator[Tab]:
    with browser.tab() as found:
        yield found


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
def test_an_address_that_is_none_of_ours_changes_nothing(one_tab: Tab, small_lab: str, fragment: str) -> None:
    lab = LabPage(one_tab)
    one_tab.open("about:blank")
    lab.open(f"{small_lab}#{fragment}")
    lab.wait_for_value("prompt", "a (red:1.4) cat and a (dog:0.5) in a bowl")
    assert {lab.value(name).split(":")[0] for name in ("scheme", "syntax")} == {"a1111"}
    assert len(lab.chips()) == 9
    assert one_tab.complaints() == []
