"""ComfyUI's page in headless Chromium, driven through selenium.

Needs selenium (``pip install selenium``; not among the test requirements), Chromium and its chromedriver; what uses it
is skipped, with the reason, where one is missing.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from ..patience import SECONDS

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


@contextmanager
def running_browser(profile: Path) -> Iterator[Any]:
    """Start a browser that has seen nothing yet, and end it.

    Args:
        profile: An empty folder for what it keeps.
    """
    webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    chromedriver = shutil.which("chromedriver")
    if chromium is None or chromedriver is None:
        pytest.skip("no chromium or no chromedriver")
    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for argument in (*ARGUMENTS, f"--user-data-dir={profile}"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(chromedriver))
    try:
        driver.set_script_timeout(SECONDS)
        yield driver
    finally:
        driver.quit()


class Page:
    """ComfyUI's page in a browser."""

    def __init__(self, driver: Any, port: int) -> None:
        self.driver = driver
        self.address = f"http://127.0.0.1:{port}/"

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

    def wait(self, script: str, *arguments: Any) -> Any:
        """Run a function body until its value is true."""
        end = time.monotonic() + SECONDS
        while time.monotonic() < end:
            value = self.run(script, *arguments)
            if value:
                return value
            time.sleep(0.05)
        raise AssertionError(f"never true: {script}\n{self.state()}\n{self.driver.get_log('browser')[-10:]}")

    def state(self) -> Any:
        """State of the page for the message after a timeout."""
        return ""

    def open(self) -> None:
        """Reload the page and wait until our nodes are there."""
        self.driver.get(self.address)
        self.wait("return Boolean(window.app?.vueAppReady && app.canvas?.graph)")
        self.wait("return 'WeightedCLIPInspect' in LiteGraph.registered_node_types")

    def point_at(self, element: Any) -> None:
        """Move the mouse over an element."""
        from selenium.webdriver import ActionChains

        ActionChains(self.driver).move_to_element(element).perform()
