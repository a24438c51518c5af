"""The lab's page in a browser: its user's actions, and what is visible. The same in every gradio."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from ..patience import SECONDS
from .chromium import Tab

ROOT = Path(__file__).resolve().parents[2]
SHOWN_TEXT = "document.querySelector('#weighted_clip_' + args[0])?.innerText ?? ''"


@contextlib.contextmanager
def running_lab(folder: Path, *options: str, browser: Path | None = None) -> Iterator[str]:
    """The stand-alone lab as its command starts it in a folder, with a browser the home; its address."""
    pytest.importorskip("gradio", reason="gradio is not installed: python run.py test installs it")
    command = [sys.executable, "-P", str(ROOT / "__main__.py"), "lab", "--port", "0", *options]
    if browser is None:
        command, given = [*command, "--no-browser"], {**os.environ}
    else:
        given = {**os.environ, "BROWSER": f"{browser} %s", "HOME": str(folder)}
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    with subprocess.Popen(command, cwd=folder, env=given, **pipes) as lab:
        try:
            assert lab.stdout
            lines = iter(lab.stdout.readline, "")
            yield next(line for line in lines if line.startswith("Prompt Lab: ")).split()[2]
        finally:
            lab.send_signal(signal.SIGTERM)


class LabPage:
    """The page, on which everything is addressed by the id of its component without our prefix."""

    def __init__(self, tab: Tab) -> None:
        self.tab = tab

    def open(self, address: str, *, host_tab: str = "") -> None:
        """Load it and wait until its strip is drawn; ``host_tab`` is where a WebUI has it."""
        self.tab.open(address)
        if host_tab:
            self.tab.wait(
                "const tab = [...document.querySelectorAll('button')].find((b) => b.textContent.trim() === args[0]);"
                "tab?.click(); return !!document.querySelector('#weighted_clip_prompt textarea')?.offsetParent",
                host_tab,
            )
        self.tab.wait("return document.querySelectorAll('.wcr-chip').length > 0")
        # what is typed before gradio is done is lost
        self.tab.wait("return document.readyState === 'complete'")

    def focus(self, name: str) -> None:
        """Put the cursor into a text box and select what is in it."""
        self.tab.run(
            "const box = document.querySelector(`#weighted_clip_${args[0]} :is(textarea, input)`);"
            "box.focus(); box.select()",
            name,
        )

    def fill(self, name: str, text: str) -> None:
        """Replace what is in a text box, all at once."""
        self.focus(name)
        if text:
            self.tab.paste(text)
        else:
            self.tab.press_backspace()

    def fill_new(self, name: str, text: str) -> None:
        """As `fill`, in a new tab; again where gradio, which fills it twice, forgets what was typed."""
        settled = 0
        while settled < 5:
            if self.value(name) != text:
                self.fill(name, text)
                settled = 0
            time.sleep(0.1)
            settled = settled + 1 if self.value(name) == text else 0

    def choose(self, name: str, value: str) -> None:
        """Choose in a menu."""
        end = time.monotonic() + SECONDS
        while not self.shows(name, value):
            assert time.monotonic() < end, f"{name} stays {self.value(name)}"
            self.tab.run(
                "const field = () => document.querySelector(`#weighted_clip_${args[0]} input`);"
                "if (!field()?.offsetParent) document.querySelector('#weighted_clip_more .label-wrap').click();"
                "field()?.focus()",
                name,
            )
            time.sleep(0.2)  # a list that was open before is gone by then, and this one there
            self.tab.run(
                "const places = [`#weighted_clip_${args[0]}`, 'ul[role=listbox]'];"
                "const labels = [`='${args[1]}'`, `^='${args[1]}: '`];"
                "const options = places.flatMap((place) => labels.map((label) =>"
                "  `${place} [data-testid=dropdown-option][aria-label${label}]`));"
                "document.querySelector(options.join())"
                "  ?.dispatchEvent(new MouseEvent('mousedown', {bubbles: true, cancelable: true}))",
                *(name, value),
            )
            self.tab.run("document.activeElement.blur()")
            time.sleep(0.2)

    def shows(self, name: str, value: str) -> bool:
        """Whether a menu shows a choice, with or without what it does."""
        return self.value(name).split(": ")[0] == value

    def give_files(self, name: str, paths: Sequence[Path]) -> None:
        """Choose files, and wait until the page lists them all."""
        box = f"#weighted_clip_{name} input[type=file]"
        self.tab.wait("return !!document.querySelector(args[0])", box)
        root = self.tab.call("DOM.getDocument")["root"]["nodeId"]
        node = self.tab.call("DOM.querySelector", nodeId=root, selector=box)["nodeId"]
        self.tab.call("DOM.setFileInputFiles", nodeId=node, files=[str(path) for path in paths])
        for path in paths:
            self.wait_for_text(name, path.stem)

    def check(self, name: str, *values: str) -> None:
        """Click the boxes of these names in a group; again where gradio, which fills a new tab twice, forgets it."""
        labels = (
            "const labels = [...document.querySelectorAll(`#weighted_clip_${args[0]} label`)]"
            "  .filter((label) => args[1].includes(label.textContent.trim().split(': ')[0]));"
        )
        wanted: list[bool] = self.tab.wait(
            f"{labels} return labels.length === args[1].length"
            "  && labels.map((label) => !label.querySelector('input').checked)",
            *(name, list(values)),
        )
        settled = 0
        while settled < 5:
            time.sleep(0.1)
            num_clicked: int = self.tab.run(
                f"{labels} const boxes = labels.map((label) => label.querySelector('input'));"
                "const wrong = boxes.filter((box, index) => box.checked !== args[2][index]);"
                "for (const box of wrong) box.click(); return wrong.length",
                *(name, list(values), wanted),
            )
            settled = 0 if num_clicked else settled + 1

    def click(self, name: str) -> None:
        """Click a button, as soon as it can be."""
        self.tab.wait(
            "const button = document.querySelector(`button#weighted_clip_${args[0]}`);"
            "if (!button || button.disabled) return false; button.click(); return true",
            name,
        )

    def open_part(self, name: str) -> None:
        """Open one of the tabs below the prompt."""
        self.tab.wait(
            "const tabs = [...document.querySelectorAll('#weighted_clip_tabs button')];"
            "const tab = tabs.filter((one) => one.textContent.trim() === args[0]).at(-1); tab?.click(); return !!tab",
            name,
        )

    def chips(self) -> list[str]:
        """Text and weight of each chip."""
        return self.tab.run(
            "return [...document.querySelectorAll('.wcr-chip')].map((chip) =>"
            "  [...chip.querySelectorAll('.wcr-text, .wcr-note')].map((part) => part.textContent).join(' '))"
        )

    def wait_for_chips(self, chips: list[str]) -> None:
        """Wait until just these chips are there."""
        end = time.monotonic() + SECONDS
        while self.chips() != chips:
            assert time.monotonic() < end, f"{self.chips()}, not {chips}"
            time.sleep(0.05)

    def count_line(self) -> str:
        """Line below the chips."""
        return self.tab.run("return document.querySelector('.wcr-bar')?.innerText ?? ''")

    def wait_until_read(self, text: str) -> None:
        """Wait until the strip is of this prompt."""
        self.tab.wait(
            "const strip = document.querySelector('#weighted_clip_strip [data-strip]');"
            "return JSON.parse(strip.dataset.weightedClipInputs).weighted_clip_prompt === args[0]",
            *(text,),
        )

    def text(self, name: str) -> str:
        """Visible text of a component."""
        return self.tab.run(f"return {SHOWN_TEXT}", name)

    def value(self, name: str) -> str:
        """Content of a text box."""
        return self.tab.run(
            "return document.querySelector(`#weighted_clip_${args[0]} :is(textarea, input)`)?.value ?? ''", name
        )

    def wait_for_text(self, name: str, part: str) -> str:
        """Wait until a component says something; all that it says."""
        self.tab.wait(f"return ({SHOWN_TEXT}).includes(args[1])", name, part)
        return self.text(name)

    def wait_for_value(self, name: str, value: str) -> None:
        """Wait until a text box holds something, or a menu shows it, with or without what it does."""
        self.tab.wait(
            "const box = document.querySelector(`#weighted_clip_${args[0]} :is(textarea, input)`);"
            "return box?.value === args[1] || (box?.matches('input') && box.value.split(': ')[0] === args[1])",
            *(name, value),
        )

    def pictures(self, name: str) -> list[dict[str, Any]]:
        """Alternative text and size of each picture in a component."""
        return self.tab.run(
            "return [...document.querySelectorAll(`#weighted_clip_${args[0]} img`)].map((picture) =>"
            "  ({alt: picture.alt, width: picture.naturalWidth, height: picture.naturalHeight}))",
            name,
        )

    def wait_for_pictures(self, name: str, number: int) -> list[dict[str, Any]]:
        """Wait until a component shows as many pictures, or more."""
        self.tab.wait(
            "const all = [...document.querySelectorAll(`#weighted_clip_${args[0]} img`)];"
            "return all.length >= args[1] && all.every((one) => one.complete && one.naturalWidth)",
            *(name, number),
        )
        return self.pictures(name)
