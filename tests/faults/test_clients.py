"""Clients that go away, never finish, or meet an error in the middle: all others are served as before."""

import asyncio
import gc
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
import urllib.request
import weakref
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import torch
from safetensors import safe_open
from weighted_clip.encoder.files.checkpoint import seeded_text_model
from weighted_clip.nodes.base import routes
from weighted_clip.web import inspection
from weighted_clip.web.lab.native import LoadSettings, NativeLabModel
from weighted_clip.weighting.options import EncodeOptions
from weighted_clip.weighting.reading.prompt_reader import read_prompt

from ..patience import SECONDS
from ..ruler_route import NODES, route_host
from .disks import CONFIG, ROOT, environment
from .test_threads import at_once

BODY = json.dumps({"node": "WeightedCLIPTextEncode", "text": "a (red:1.3) cat", "values": {}}).encode()
NUM_SLOW = 200


@pytest.fixture(autouse=True)
def host() -> Iterator[None]:
    with route_host():
        yield


class Request:
    """A request whose body comes as the test feeds it, by a stream of asyncio's, as aiohttp's are read alike."""

    def __init__(self, *parts: bytes, is_whole: bool = True) -> None:
        self.content = asyncio.StreamReader()
        for part in parts:
            self.content.feed_data(part)
        if is_whole:
            self.content.feed_eof()


def served(work: Callable[[], Awaitable[Any]]) -> Any:
    return asyncio.run(asyncio.wait_for(work(), SECONDS))


def test_an_error_in_the_routes_thread_is_the_hosts_to_tell_and_the_next_request_is_answered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def work() -> None:
        expected = await routes.answer(Request(BODY), NODES)
        assert expected[0] == 200
        for error in (RuntimeError("a bug"), MemoryError()):
            with monkeypatch.context() as patch:
                patch.setattr(inspection, "read_prompt", lambda *_, error=error, **__: (_ for _ in ()).throw(error))
                with pytest.raises(type(error)) as caught:
                    await routes.answer(Request(BODY), NODES)
            assert caught.value is error
            assert await routes.answer(Request(BODY), NODES) == expected

    served(work)


def test_clients_that_never_finish_take_no_thread_and_keep_nobody_waiting() -> None:
    async def work() -> None:
        slow = [Request(BODY[: number % len(BODY)], is_whole=False) for number in range(NUM_SLOW)]
        waiting = [asyncio.create_task(routes.answer(request, NODES)) for request in slow]
        for _ in range(3):
            assert (await routes.answer(Request(BODY), NODES))[0] == 200
        assert not any(task.done() for task in waiting)
        for number, (request, task) in enumerate(zip(slow, waiting, strict=True)):
            if number % 3 == 0:
                task.cancel()  # as aiohttp does where it is asked to
            elif number % 3 == 1:
                request.content.set_exception(ConnectionResetError("the client is gone"))
            else:
                request.content.feed_data(BODY[number % len(BODY) :])
                request.content.feed_eof()
        results = await asyncio.gather(*waiting, return_exceptions=True)
        kinds = [asyncio.CancelledError, ConnectionResetError, tuple]
        assert [type(result) for result in results] == [kinds[number % 3] for number in range(NUM_SLOW)]
        assert {result[0] for result in results[2::3]} == {200, 429}  # they all came in the same moment
        assert (await routes.answer(Request(BODY), NODES))[0] == 200

    served(work)


@dataclass
class Held:
    """Readings of prompts that wait."""

    begun: list[str] = field(default_factory=list)
    """Their texts."""
    may_go_on: threading.Event = field(default_factory=threading.Event)


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> Iterator[Held]:
    """Keeps every reading of a prompt waiting until it may go on."""
    held = Held()

    def waiting(text: str, *arguments: Any, **options: Any) -> Any:
        held.begun.append(text)
        assert held.may_go_on.wait(SECONDS)
        return read_prompt(text, *arguments, **options)

    monkeypatch.setattr(inspection, "read_prompt", waiting)
    yield held
    held.may_go_on.set()


def test_two_requests_are_read_at_a_time_and_others_are_told_to_ask_again(held: Held) -> None:
    async def work() -> None:
        tasks = [asyncio.create_task(routes.answer(Request(BODY), NODES)) for _ in range(5)]
        done, reading = await asyncio.wait(tasks, timeout=SECONDS, return_when=asyncio.FIRST_COMPLETED)
        while len(done) < 3:
            more, reading = await asyncio.wait(reading, timeout=SECONDS, return_when=asyncio.FIRST_COMPLETED)
            assert more
            done |= more
        assert [task.result() for task in done] == [(429, {"error": "2 prompts are being read: ask again"})] * 3
        held.may_go_on.set()
        assert [(await task)[0] for task in reading] == [200, 200]
        assert (await routes.answer(Request(BODY), NODES))[0] == 200

    served(work)


def test_requests_whose_clients_have_gone_are_counted_until_they_are_read(held: Held) -> None:
    async def work() -> None:
        tasks = [asyncio.create_task(routes.answer(Request(BODY), NODES)) for _ in range(2)]
        while len(held.begun) < 2:
            await asyncio.sleep(0.01)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert (await routes.answer(Request(BODY), NODES))[0] == 429
        held.may_go_on.set()
        while (status := (await routes.answer(Request(BODY), NODES))[0]) == 429:
            await asyncio.sleep(0.01)
        assert status == 200

    served(work)


def test_a_body_that_is_too_long_is_refused_before_it_is_whole() -> None:
    async def work() -> None:
        status, _ = await routes.answer(Request(b"x" * (inspection.MAX_BYTES + 1), is_whole=False), NODES)
        assert status == 413

    served(work)


def option_values() -> list[Any]:
    """Values of the lab's controls for options: their defaults."""
    from weighted_clip.web.lab.handlers import OPTIONS

    return [getattr(EncodeOptions(), name) for name in OPTIONS]


def test_a_comparison_whose_page_was_closed_encodes_nothing_more() -> None:
    tabs = pytest.importorskip("weighted_clip.web.lab.tabs.prompt_tabs", reason="needs gradio")
    encoded: list[str] = []
    kept: list[weakref.ref[torch.Tensor]] = []

    class Model(NativeLabModel):
        def encode(self, text: str, options: EncodeOptions, check: Any = None) -> Any:
            encoded.append(options.scheme)
            result = super().encode(text, options)
            kept.extend(weakref.ref(one.hidden) for one in result.values())
            return result

    model = Model("tiny", {"clip_l": CONFIG}, lambda: {"clip_l": seeded_text_model(CONFIG)}, LoadSettings())
    tab = tabs.CompareTab(tabs.Handlers(lambda: model, EncodeOptions()))
    values = option_values()
    job = {"is_cancelled": False}
    steps = tab.compare(job, ["comfy", "a1111", "compel", "lpw"], "a (red:1.3) cat", *values)
    next(steps)
    next(steps)
    count = len(encoded)
    assert 0 < count < 6
    steps.close()  # as gradio does when nobody listens any more
    del steps
    gc.collect()
    assert len(encoded) == count
    assert not any(one() is not None for one in kept)
    last = list(tab.compare(job, ["comfy"], "a (red:1.3) cat", *values))[-1]
    assert "done" in last[2]


def test_two_sessions_compare_at_once_and_only_one_is_cancelled(lab_model: NativeLabModel) -> None:
    tabs = pytest.importorskip("weighted_clip.web.lab.tabs.prompt_tabs", reason="needs gradio")
    tab = tabs.CompareTab(tabs.Handlers(lambda: lab_model, EncodeOptions()))
    values = option_values()
    jobs = [{"is_cancelled": False}, {"is_cancelled": False}]
    runs = [tab.compare(job, ["comfy", "a1111", "lpw"], "a (red:1.3) cat", *values) for job in jobs]
    for run in runs:
        next(run)
        next(run)
    tab.cancel(jobs[0])
    assert ["cancelled" in list(run)[-1][2] for run in runs] == [True, False]


def test_sessions_that_export_at_once_each_get_their_own_file(lab_model: NativeLabModel) -> None:
    tabs = pytest.importorskip("weighted_clip.web.lab.tabs.prompt_tabs", reason="needs gradio")
    tab = tabs.ExportTab(tabs.Handlers(lambda: lab_model, EncodeOptions()))
    values = option_values()
    exported = at_once(lambda index: tab.export(f"a cat and {index} dogs", *values)[0])
    assert len(set(exported)) == len(exported)
    for index, path in enumerate(exported):
        with safe_open(path, "pt") as file:
            assert file.metadata()["prompt"] == f"a cat and {index} dogs"


def wakings(process: int) -> int:
    """Times that a process has slept, so far."""
    told = Path(f"/proc/{process}/status").read_text(encoding="utf-8")
    return int(told.partition("\nvoluntary_ctxt_switches:")[2].split()[0])


@pytest.mark.skipif(os.name != "posix", reason="ended by a signal")
def test_the_lab_sleeps_while_idle_serves_on_while_clients_hang_and_vanish_and_ends_when_told(
    tmp_path: Path, weights: Path
) -> None:
    pytest.importorskip("gradio")
    command = [sys.executable, "-P", "-u", str(ROOT / "__main__.py"), "lab", "--no-browser", "--port", "0"]
    command += ["--weights", str(weights)]
    given = environment(HF_HUB_OFFLINE="1", HOME=str(tmp_path))
    clients: list[socket.socket] = []
    with (
        (tmp_path / "errors.txt").open("w") as errors,
        subprocess.Popen(command, text=True, env=given, stdout=subprocess.PIPE, stderr=errors) as lab,
    ):
        try:
            assert lab.stdout
            line = next(line for line in lab.stdout if line.startswith("Prompt Lab: "))
            address = line.split()[2]
            port, path = urlsplit(address).port, urlsplit(address).path
            if Path("/proc").exists():
                with urllib.request.urlopen(address, timeout=SECONDS):
                    before = wakings(lab.pid)
                time.sleep(2)
                assert wakings(lab.pid) - before < 400  # gradio by itself wakes some 900 times a second
            for number in range(30):
                client = socket.create_connection(("127.0.0.1", port), timeout=SECONDS)
                head = (
                    f"POST {path}gradio_api/queue/join HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Length: 1000\r\n"
                )
                client.sendall((head + "Content-Type: application/json\r\n\r\n{").encode()[: 20 + 10 * number])
                if number % 2:  # gone without a farewell; the others stay and say nothing
                    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                    client.close()
                else:
                    clients.append(client)
            with urllib.request.urlopen(address, timeout=SECONDS) as page:
                assert page.status == 200
                assert b"Prompt Lab" in page.read()
            lab.send_signal(signal.SIGINT)
            assert lab.wait(SECONDS) == 0
        finally:
            lab.kill()
            for client in clients:
                client.close()
    assert "Traceback" not in (tmp_path / "errors.txt").read_text(encoding="utf-8")
