"""ComfyUI's page with token rulers on its nodes, for the tests of test_browser*.py."""

from __future__ import annotations

import time
from typing import Any

import pytest

from .browser import SECONDS, Page

NODES_2 = "Comfy.VueNodes.Enabled"
PALETTE = "Comfy.ColorPalette"
SWITCH = "WeightedCLIP.TokenRuler"
UNCLOSED = "a (cat"
INSPECT = "WeightedCLIPInspect"
WEB_FOLDER = "ComfyUI-weighted.clip"
"""Name of our folder in custom_nodes: ComfyUI serves no files of one with a space in it."""
VALUE = "return app.graph.nodes[0].widgets.find(({ name }) => name === 'text').value"
"""The text of the first node."""

ADD = """
const node = LiteGraph.createNode(args[0]);
node.pos = [300, 60];
app.graph.add(node);
app.canvas.ds.scale = 1;
app.canvas.ds.offset = [0, 0];
app.canvas.setDirty(true, true);
"""
"""Puts a new node on the canvas."""
READ = """
const texts = (root, selector) => [...root.querySelectorAll(selector)].map((element) => element.innerText.trim());
return [...document.querySelectorAll('.weighted-clip-ruler')].map((ruler) => ({
    chips: texts(ruler, '.wcr-chip').map((text) => text.replace(/\\s+/g, ' ')),
    labels: texts(ruler, '.wcr-label'),
    count: texts(ruler, '.wcr-bar .wcr-count').join(),
    bar: texts(ruler, '.wcr-bar').join(),
    problems: texts(ruler, '.wcr-problems p'),
    more: texts(ruler, '.wcr-more').join(),
    isStale: ruler.firstChild.classList.contains('wcr-stale'),
    height: ruler.checkVisibility() ? ruler.firstChild.getBoundingClientRect().height : 0,
}));
"""
COUNT_REQUESTS = """
window.numAsked = 0;
window.numChecked = 0;
window.numQueued = 0;
const fetchApi = app.api.fetchApi;
app.api.fetchApi = function (path, ...others) {
    if (path.startsWith('/weighted_clip/')) window.numAsked += 1;
    if (path === '/prompt') window.numQueued += 1;
    const answer = fetchApi.call(this, path, ...others);
    if (path === '/weighted_clip/check') answer.finally(() => { window.numChecked += 1; }).catch(() => {});
    return answer;
};
"""


class RulerPage(Page):
    """With what reads and changes nodes and their rulers."""

    is_nodes_2 = False

    def open(self) -> None:
        """Reload the page, and count its requests to the server."""
        super().open()
        self.run(COUNT_REQUESTS)

    def state(self) -> Any:
        """State of the rulers."""
        return f"rulers: {self.shown()}"

    def set(self, setting: str, value: Any) -> None:
        """Change a setting of ComfyUI."""
        self.run("await app.extensionManager.setting.set(args[0], args[1])", setting, value)

    def set_nodes_2(self, is_on: bool) -> None:
        """Choose how nodes are drawn."""
        self.set(NODES_2, is_on)
        self.is_nodes_2 = is_on

    def open_drawn(self, *, is_nodes_2: bool) -> None:
        """Reload the page, with nodes drawn in either way; skip if it cannot show rulers then."""
        self.open()
        self.set_nodes_2(is_nodes_2)
        if not self.can_show():
            pytest.skip("this front end's Nodes 2.0 shows no DOM widgets at all")

    def can_show(self) -> bool:
        """Whether this front end shows DOM widgets in this mode: Nodes 2.0 has since 1.28."""
        version = self.run("return window.__COMFYUI_FRONTEND_VERSION__ ?? '0.0'")
        return not self.is_nodes_2 or tuple(map(int, version.split(".")[:2])) >= (1, 28)

    def load(self, *nodes: dict[str, Any], num_rulers: int | None = None) -> None:
        """Replace the workflow by nodes in the form that /prompt takes; by default all of ours have rulers."""
        graph = {str(number): node for number, node in enumerate(nodes, 1)}
        self.run("await app.loadApiJson(args[0], 'test')", graph)
        if num_rulers is None:
            num_rulers = sum(node["class_type"].startswith("WeightedCLIP") for node in nodes)
        self.wait("return document.querySelectorAll('.weighted-clip-ruler').length === args[0]", num_rulers)
        self.run("app.canvas.ds.scale = 1; app.canvas.ds.offset = [0, 0]; app.canvas.setDirty(true, true)")

    def load_inspect(self, *texts: str, syntax: str = "a1111") -> None:
        """An Inspect node for each text."""
        self.load(*(inspect_node(text, syntax) for text in texts))

    def set_widget(self, name: str, value: Any, node: int = 0) -> None:
        """Choose in a menu, as the host does it."""
        self.run(
            "const widget = app.graph.nodes[args[2]].widgets.find(({ name }) => name === args[0]);"
            "widget.value = args[1]; widget.callback?.(args[1])",
            name,
            value,
            node,
        )

    def text_area(self, number: int = 0) -> Any:
        """A prompt box that can be seen."""
        self.wait("return [...document.querySelectorAll('textarea')].some((box) => box.checkVisibility())")
        boxes = [box for box in self.driver.find_elements("css selector", "textarea") if box.is_displayed()]
        return boxes[number]

    def press(self, *keys: str, control: bool = False) -> None:
        """Press keys where the focus is, perhaps with Ctrl; other texts are typed."""
        from selenium.webdriver import ActionChains
        from selenium.webdriver.common.keys import Keys

        for key in keys:
            chain = ActionChains(self.driver)
            (chain.key_down(Keys.CONTROL) if control else chain).send_keys(getattr(Keys, key, key))
            (chain.key_up(Keys.CONTROL) if control else chain).perform()

    def queue(self) -> None:
        """Run the workflow, as the button does."""
        self.run("await app.queuePrompt(0)")

    def shown(self) -> list[dict[str, Any]]:
        """Text shown by each ruler."""
        return self.run(READ)

    def wait_for(self, *, ruler: int = 0, **wanted: Any) -> dict[str, Any]:
        """Wait until a ruler shows these things."""
        end = time.monotonic() + SECONDS
        shown: list[dict[str, Any]] = []
        while time.monotonic() < end:
            shown = self.shown()
            if len(shown) > ruler and all(shown[ruler][key] == value for key, value in wanted.items()):
                return shown[ruler]
            time.sleep(0.05)
        raise AssertionError(f"never {wanted}\nrulers: {shown}\n{self.driver.get_log('browser')[-10:]}")


def inspect_node(text: Any, syntax: str = "a1111") -> dict[str, Any]:
    return {"class_type": INSPECT, "inputs": {"text": text, "syntax": syntax, "chunking": "as syntax"}}
