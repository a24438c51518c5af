"""Requests refused by the stand-alone lab, tested as a separate ASGI application. test_lab_page.py asks the real
server.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from weighted_clip.web.lab.access import MAX_BYTES, MAX_UPLOAD_BYTES, NO_SECRET, UPLOADS, Guard

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
