"""The lab's page in the gradio of A1111 (3.41) and of Forge (4.40): the same handlers, the same page in a browser.

With ``--hosts DIR`` it runs in the Python of every ``DIR/gradio*`` (a virtual environment with a gradio in it, and what
the pack needs) and of every WebUI in DIR whose environment has gradio.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from safetensors import safe_open
from weighted_clip.web.lab.tabs.prompt_tabs import COMPARED
from weighted_clip.workshop.job import own_environment, run_in_host

from ..patience import SECONDS
from ..web.chromium import running_chromium
from ..web.lab_in_browser import LabPage
from .server import Server, free_port, pack_folder, started

pytestmark = pytest.mark.host

SCRIPT = Path(__file__).with_name("lab_gradio.py")
PROMPT = "a (red:1.4) cat and a (dog:0.5) in a bowl"
CHIPS = ["a", "red 1.4", "cat", "and", "a", "dog 0.5", "in", "a", "bowl"]
LONG = "(cat:1.1) dog, " * 1000
PLACES = ("bin/python", "Scripts/python.exe")


def find_gradios(folder: Path) -> list[Path]:
    """Pythons of virtual environments with a gradio."""
    environments = [*sorted(folder.glob("gradio*")), *sorted(folder.glob("*/venv")), *sorted(folder.glob("*/.venv"))]
    with_gradio = [one for one in environments if [*one.glob("lib*/**/site-packages/gradio/__init__.py")]]
    return [one / place for one in with_gradio for place in PLACES if (one / place).exists()]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "python" not in metafunc.fixturenames:
        return
    folder = metafunc.config.getoption("--hosts")
    pythons = [] if folder is None else find_gradios(Path(folder).resolve())
    reason = "no gradio: give --hosts DIR with DIR/gradio341 or a WebUI and its venv"
    missing = pytest.param(None, marks=pytest.mark.skip(reason=reason), id="no gradio")
    found = [pytest.param(one, id=one.parents[1].name.strip(".") + " " + one.parents[2].name) for one in pythons]
    metafunc.parametrize("python", found or [missing], scope="module")


def environment(folder: Path) -> dict[str, str]:
    """Environment of a process that leaves its temporary files in one of our folders."""
    offline = {"GRADIO_ANALYTICS_ENABLED": "False", "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    return {**own_environment(), **offline, "no_proxy": "127.0.0.1,localhost", "TMPDIR": str(folder)}


@pytest.fixture(scope="module")
def results(python: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Results of the handlers there."""
    folder = tmp_path_factory.mktemp("gradio")
    arguments = [SCRIPT, pack_folder(), folder / "results.json"]
    done = run_in_host(python, arguments, folder=folder, environment=environment(folder), seconds=SECONDS)
    assert done.returncode == 0, done.stdout[-4000:]
    return json.loads((folder / "results.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def server(python: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """This gradio with the page as a tab of a larger one."""
    folder = tmp_path_factory.mktemp("gradio-page")
    port, log = free_port(), folder / "server.log"
    command = [python, SCRIPT, pack_folder(), str(port)]
    with started(command, log, folder=folder, environment=environment(folder)) as process:
        server = Server(port, log, process)
        server.wait(lambda: server.answers("/"), SECONDS, "no page")
        yield server


@pytest.fixture(scope="module")
def lab(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LabPage]:
    """The page in a browser."""
    with running_chromium(tmp_path_factory.mktemp("browser")) as tab:
        page = LabPage(tab)
        page.open(server.address, host_tab="Weighted CLIP")
        yield page
        # the rest is what these gradios fetch from elsewhere by themselves
        ours = [one for one in tab.complaints() if "weighted" in one]
        assert ours == [], server.log_tail()


def test_handlers_give_the_same(results: dict[str, Any]) -> None:
    assert "a · red (1.4) · cat · and · a · dog (0.5) · in · a · bowl" in results["read"][1]
    assert "NO REAL WEIGHTS" in results["read"][0]
    assert "<td>1929</td><td>dog</td><td>0.5</td>" in results["tokens"]
    assert results["masks"].count("<img") >= 3
    assert results["converted"] == "a (red)1.4 cat and a (dog)0.5 in a bowl"
    assert "2 of 2 schemes: done" in results["compared"]
    assert results["exported"] > 77 * 64 * 4
    assert "Encoded with masked_blend" in results["report"]
    ours = [name for name in results["ids"] if name.startswith("weighted_clip_")]
    assert len(ours) > 25
    assert len(set(ours)) == len(ours)


def test_strip_is_drawn_and_follows_the_typing(lab: LabPage) -> None:
    assert lab.chips() == CHIPS
    assert "NO REAL WEIGHTS" in lab.text("model")
    lab.focus("prompt")
    lab.tab.type("two (foxes:1.3) meet by the river at dawn")
    lab.wait_for_chips(["two", "foxes 1.3", "meet", "by", "the", "river", "at", "dawn"])
    lab.fill("prompt", LONG)
    lab.wait_until_read(LONG)
    lab.fill("prompt", PROMPT)
    lab.wait_for_chips(CHIPS)
    lab.choose("scheme", "masked_blend")
    lab.tab.wait("return document.querySelector('.wcr-bar').textContent.includes('masked_blend')")


def test_parts_work(server: Server, lab: LabPage, tmp_path: Path) -> None:
    lab.open_part("Masks")
    lab.wait_for_pictures("masks", 3)
    lab.open_part("Compare schemes")
    lab.click("compare")
    lab.wait_for_text("progress", f"{len(COMPARED)} of {len(COMPARED)} schemes: done")
    assert "×1.40" in lab.text("comparison")
    lab.open_part("Convert")
    lab.wait_for_value("converted", "a (red)1.4 cat and a (dog)0.5 in a bowl")
    lab.click("use_converted")
    lab.wait_for_value("syntax", "compel")
    lab.wait_for_chips(CHIPS)
    lab.open_part("Export")
    lab.click("export")
    link = lab.tab.wait("return document.querySelector('#weighted_clip_file a[href]')?.href")
    path = tmp_path / "downloaded.safetensors"
    path.write_bytes(server.request(link.removeprefix(server.address))[1])
    with safe_open(path, "pt") as file:
        assert file.get_tensor("hidden").shape == (1, 77, 64)
        assert re.fullmatch("compel", file.metadata()["syntax"])


def test_a_file_that_a_request_names_is_not_handed_out(server: Server, tmp_path: Path) -> None:
    """At every input of every handler that does not wait in the queue, for which this gradio would take a request."""
    secret = tmp_path / "secret.txt"
    secret.write_text("known to its owner alone", encoding="utf-8")

    def answered(path: str, data: Any = None) -> str:
        return server.request(path, data, seconds=SECONDS)[1].decode("utf-8", "replace")

    config = json.loads(answered("/config"))
    parts = {one["id"]: one for one in config["components"]}
    named = {"path": str(secret), "name": str(secret), "is_file": True, "meta": {"_type": "gradio.FileData"}}
    kinds, paths = set(), {str(secret)}
    for number, handler in enumerate(config["dependencies"]):
        if not handler["backend_fn"] or handler["queue"] is not False:
            continue
        for index, part in enumerate(handler["inputs"]):
            if (parts[part]["type"], len(handler["inputs"])) in kinds:
                continue
            kinds.add((parts[part]["type"], len(handler["inputs"])))
            for value in (named, [named], [[named]]):
                data = [parts[one]["props"].get("value") for one in handler["inputs"]]
                data[index] = value
                asked = {"data": data, "fn_index": handler.get("id", number), "session_hash": "a"}
                paths |= {*re.findall(r"/[^\s'\"\\]*secret\.txt", answered("/run/predict", asked))}
    assert {"textbox", "dropdown", "radio", "slider", "number"} <= {kind for kind, _ in kinds}
    assert paths == {str(secret)}
    assert "known to its owner" not in answered(f"/file={secret}")


def test_comparison_can_be_cancelled(lab: LabPage) -> None:
    lab.fill("prompt", LONG)
    lab.wait_until_read(LONG)
    lab.open_part("Compare schemes")
    lab.click("compare")
    lab.wait_for_text("progress", "encoding with")
    lab.click("cancel")
    lab.wait_for_text("progress", "schemes: cancelled")
    lab.tab.wait("return !document.querySelector('button#weighted_clip_compare').disabled")
