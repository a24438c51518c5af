"""The rulers of javascript/weighted_clip_prompts.mjs on a page that stands for the WebUI's, in headless Chromium."""

from __future__ import annotations

import functools
import http.server
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from weighted_clip.web.inspection import inspect

from .chromium import Browser, Tab

ROOT = Path(__file__).resolve().parents[2]
PAGE = """<!doctype html><meta charset=utf-8><script type=module src=/javascript/weighted_clip_prompts.mjs></script>
<div class=prompt-row><div id=txt2img_prompt><textarea></textarea></div></div>
<div id=txt2img_token_counter><div class=wrap></div><span>0/75</span></div>
<div id=script_txt2img_weighted_clip_enabled><input type=checkbox></div>
<div id=script_txt2img_weighted_clip_syntax><input value=compel></div>"""
COUNTED = (
    "return document.querySelector('#weighted_clip_ruler_txt2img_prompt .wcr-bar .wcr-count')?.textContent === args[0]"
)


class _Handler(http.server.SimpleHTTPRequestHandler):
    """Serves the page and our scripts, and reads prompts, or answers with ``failure``."""

    failure: tuple[int, bytes] | None

    def do_GET(self) -> None:
        if self.path == "/":
            self._answer(200, PAGE.encode(), "text/html")
        else:
            super().do_GET()

    def do_POST(self) -> None:
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        views = inspect({"text": request["text"], "syntax": request["syntax"]})["views"]
        answer = {"views": [{**view, "total": f"{view['num_tokens']}/75"} for view in views], "notes": []}
        self._answer(*(self.failure or (200, json.dumps(answer).encode())), "application/json")

    def _answer(self, status: int, body: bytes, kind: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:  # the base class's names
        del format, args


@pytest.fixture(scope="module")
def boxes(browser: Browser) -> Iterator[Tab]:
    with browser.tab(width=800, height=600) as tab:
        yield tab


@pytest.fixture
def handler(boxes: Tab) -> Iterator[type[_Handler]]:
    """The server's side of the page, which is open in the browser."""
    handler = type("Handler", (_Handler,), {"failure": None})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(handler, directory=str(ROOT))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        boxes.open(f"http://127.0.0.1:{server.server_port}/")
        boxes.wait("return document.readyState === 'complete' && !!document.querySelector('textarea')")
        yield handler
        server.shutdown()


def type_prompt(tab: Tab, text: str) -> None:
    tab.run("document.querySelector('textarea').focus()")
    tab.paste(text)


def test_seconds_that_gradio_counts_are_no_tokens(boxes: Tab, handler: type[_Handler]) -> None:
    count = "document.querySelector('#txt2img_token_counter .wrap').textContent = args[0];"
    boxes.run(f"{count} document.querySelector('#txt2img_token_counter span').textContent = args[1]", "1.6s ", "3/75")
    type_prompt(boxes, "a red cat")
    boxes.wait(COUNTED, "3/75")
    boxes.run(count, "")
    boxes.run("document.querySelector('#txt2img_token_counter span').textContent = '?/?'")
    boxes.wait("return !document.querySelector('.wcr-bar .wcr-count')")


def test_a_number_that_comes_later_does_not_keep_the_tokens_from_being_announced(
    boxes: Tab, handler: type[_Handler]
) -> None:
    type_prompt(boxes, "a red cat")
    boxes.wait("return document.querySelectorAll('.wcr-chip').length === 3")
    boxes.run("document.querySelector('#txt2img_token_counter span').textContent = '3/75'")
    boxes.wait("return document.querySelector('[role=status]').textContent === '3 / 75 tokens.'")


def test_in_another_syntax_it_says_how_many_tokens_that_syntax_reads(boxes: Tab, handler: type[_Handler]) -> None:
    boxes.run("document.querySelector('#txt2img_token_counter span').textContent = '3/75'")
    type_prompt(boxes, "(a:2) cat")
    boxes.wait(COUNTED, "3/75")
    boxes.run("document.querySelector('[type=checkbox]').click()")
    boxes.wait(COUNTED, "4/75")
