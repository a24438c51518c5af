"""What web/comfyui/problems.js shows on our nodes, in a real ComfyUI and Chromium, on the canvas and in Nodes 2.0.

Needs selenium (``pip install selenium``; not among the test requirements), Chromium and its chromedriver.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterator
from typing import Any

import pytest

from . import comfy_server
from .comfy_server import ComfyServer, Host, running_server

webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")

pytestmark = pytest.mark.host

SECONDS = 60
ARGUMENTS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-proxy-server",
    "--window-size=1400,1000",
)
NODES_2 = "Comfy.VueNodes.Enabled"
UNCLOSED = "a (cat"


class Page:
    """ComfyUI's page in a browser."""

    def __init__(self, driver: Any, address: str) -> None:
        self.driver = driver
        self.address = address

    def run(self, script: str, *arguments: Any) -> Any:
        """The value of a function body; a promise is waited for, and what it throws fails the test."""
        wrapped = (
            "const done = arguments[arguments.length - 1];"
            f"(async (...args) => {{ {script} }})(...[...arguments].slice(0, -1))"
            ".then((value) => done([true, value ?? null]), (error) => done([false, String(error)]))"
        )
        is_good, value = self.driver.execute_async_script(wrapped, *arguments)
        assert is_good, f"{value}\nin {script}"
        return value

    def wait(self, script: str) -> Any:
        """Run a function body until its value is true."""
        end = time.monotonic() + SECONDS
        while time.monotonic() < end:
            value = self.run(script)
            if value:
                return value
            time.sleep(0.1)
        raise AssertionError(f"never true: {script}\nwidgets: {self.shown()}\n{self.driver.get_log('browser')[-10:]}")

    def open(self) -> None:
        """Load the page anew and wait until our nodes are there."""
        self.driver.get(self.address)
        self.wait("return Boolean(window.app?.vueAppReady && app.canvas?.graph)")
        self.wait("return 'WeightedCLIPInspect' in LiteGraph.registered_node_types")

    def set_nodes_2(self, is_on: bool) -> None:
        """Choose how nodes are drawn."""
        self.run("await app.extensionManager.setting.set(args[0], args[1])", NODES_2, is_on)

    def load(self, *texts: str) -> None:
        """Replace the workflow by an Inspect node for each text."""
        inputs = {"syntax": "a1111", "chunking": "as syntax"}
        graph = {
            str(number): {"class_type": "WeightedCLIPInspect", "inputs": {"text": text, **inputs}}
            for number, text in enumerate(texts, 1)
        }
        self.run("await app.loadApiJson(args[0], 'test')", graph)
        self.wait(f"return document.querySelectorAll('.weighted-clip-problems').length === {len(texts)}")

    def set_text(self, text: str) -> None:
        """Write into the first node's prompt box."""
        self.run("app.graph.nodes[0].widgets.find(({ name }) => name === 'text').value = args[0]", text)

    def queue(self) -> None:
        """Run the workflow, as the button does."""
        self.run("await app.queuePrompt(0)")

    def shown(self) -> list[list[str]]:
        """For each widget, its problems and then its count of tokens, as lines."""
        return self.run(
            "return [...document.querySelectorAll('.weighted-clip-problems')]"
            ".map((element) => [...element.querySelectorAll('p')].map((line) => line.innerText))"
        )

    def wait_for(self, count: str) -> list[list[str]]:
        """Wait until the first widget ends with this count of tokens; all widgets."""
        last = "document.querySelector('.weighted-clip-problems > div > :last-child')"
        self.wait(f"return {last}?.innerText.trim() === {json.dumps(count)}")
        return self.shown()

    def heights(self) -> list[float]:
        """What each widget takes on the screen, in pixels; 0 for what is not visible."""
        return self.run(
            "return [...document.querySelectorAll('.weighted-clip-problems > div')]"
            ".map((box) => box.checkVisibility() ? box.getBoundingClientRect().height : 0)"
        )


@pytest.fixture(scope="module")
def web_server(host: Host, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ComfyServer]:
    """A server of our own, as ComfyUI serves no files of a folder with a space in its name."""
    models = tmp_path_factory.mktemp("models")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(comfy_server, "PACK_FOLDER", "ComfyUI-weighted.clip")
        with running_server(host, models, tmp_path_factory.mktemp("comfyui") / "base", with_pack=True) as server:
            server.request("/settings", {"Comfy.TutorialCompleted": True})  # no dialog on the first visit
            yield server


@pytest.fixture(scope="module")
def browser(web_server: ComfyServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    """A browser that has seen nothing yet."""
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    chromedriver = shutil.which("chromedriver")
    if chromium is None or chromedriver is None:
        pytest.skip("no chromium or no chromedriver")
    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for argument in (*ARGUMENTS, f"--user-data-dir={tmp_path_factory.mktemp('browser')}"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(chromedriver))
    try:
        driver.set_script_timeout(SECONDS)
        yield Page(driver, f"http://127.0.0.1:{web_server.port}/")
    finally:
        driver.quit()


@pytest.fixture(params=[False, True], ids=["canvas", "Nodes 2.0"])
def page(browser: Page, request: pytest.FixtureRequest) -> Page:
    """The page, freshly loaded, with nodes drawn in either way."""
    browser.open()
    browser.set_nodes_2(request.param)
    return browser


def test_problems_come_and_go(page: Page) -> None:
    page.load(UNCLOSED)
    assert page.shown() == [[]]
    assert page.heights() == [0]

    page.queue()
    ((problem, _),) = page.wait_for("2/75 tokens")
    assert "never closed" in problem
    page.wait("return document.querySelector('.weighted-clip-problems > div').getBoundingClientRect().height > 30")
    roles = page.run("return [...document.querySelectorAll('.weighted-clip-problems [role=status] p')].length")
    assert roles == 1

    page.set_text("<b>a</b> (cat")
    page.queue()
    page.wait("return document.querySelector('.weighted-clip-problems').innerText.includes('at 9')")
    assert len(page.shown()[0]) == 2

    page.set_text("cat " * 80)
    page.queue()
    assert page.wait_for("80 tokens in 2 chunks") == [["80 tokens in 2 chunks"]]


def test_the_widget_stays_inside_the_node(page: Page) -> None:
    page.load("(" * 40)
    page.queue()
    page.wait("return document.querySelectorAll('.weighted-clip-problems p').length === 41")
    page.wait(
        "const node = app.graph.nodes[0];"
        "const box = document.querySelector('.weighted-clip-problems > div').getBoundingClientRect();"
        "const [, bottom] = app.canvasPosToClientPos([0, node.pos[1] + node.size[1]]);"
        "return box.height > 100 && box.height < 250 && box.bottom <= bottom"
    )


def test_a_workflow_that_is_loaded_has_no_problems_yet(page: Page) -> None:
    page.load(UNCLOSED)
    page.queue()
    page.wait_for("2/75 tokens")
    page.run("await app.loadGraphData(app.graph.serialize())")
    page.wait("return document.querySelectorAll('.weighted-clip-problems').length === 1")
    assert page.shown() == [[]]
    page.load("another text under the same id")
    assert page.shown() == [[]]


def test_the_widget_is_not_saved(page: Page) -> None:
    page.load(UNCLOSED)
    page.queue()
    page.wait_for("2/75 tokens")
    assert page.run("return app.graph.serialize().nodes[0].widgets_values") == [UNCLOSED, "a1111", "as syntax"]
    inputs = page.run("return Object.values((await app.graphToPrompt()).output)[0].inputs")
    assert inputs == {"text": UNCLOSED, "syntax": "a1111", "chunking": "as syntax"}


def test_a_pasted_node_has_a_widget_of_its_own(page: Page) -> None:
    page.load(UNCLOSED)
    page.queue()
    page.wait_for("2/75 tokens")
    page.run(
        "const [node] = app.graph.nodes; app.canvas.selectNode(node);"
        "app.canvas.copyToClipboard([node]); app.canvas.pasteFromClipboard()"
    )
    page.wait("return document.querySelectorAll('.weighted-clip-problems').length === 2")
    assert sorted(len(lines) for lines in page.shown()) == [0, 2]
    page.queue()
    page.wait("return document.querySelectorAll('.weighted-clip-problems p').length === 4")


def test_problems_survive_a_change_of_how_nodes_are_drawn(page: Page) -> None:
    page.load(UNCLOSED)
    page.queue()
    before = page.wait_for("2/75 tokens")
    was_on = page.run("return app.extensionManager.setting.get(args[0])", NODES_2)
    for is_on in (not was_on, was_on):
        page.set_nodes_2(is_on)
        page.wait("return document.querySelector('.weighted-clip-problems > div')?.getBoundingClientRect().height > 30")
        assert page.shown() == before
