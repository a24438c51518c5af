"""Tokens of T5 in a real Forge's own engine and tokenizers, compared with those of the strip below the prompt boxes."""

from __future__ import annotations

import json
import random
from itertools import islice
from typing import Any

import pytest
from weighted_clip.workshop.find_hosts import Host

from .server import TESTS
from .test_webui_tokens import prompts
from .webui_server import run_in_webui

pytestmark = pytest.mark.host

NUM_PROMPTS = 400
BREAKS = (
    "a BREAK b",
    "BREAK",
    " BREAK a",
    "a BREAK",
    "a BREAK BREAK b",
    "(a BREAK b:1.2)",
    "x BREAK\n(y:0.5) z",
    "abBREAKc",
)
PIECES = (
    "a",
    " ",
    "  ",
    "(",
    ")",
    "[",
    "]",
    ":",
    "1.2",
    ":1.3)",
    "\\",
    "\\(",
    "BREAK",
    "red cat",
    ",",
    "🦊",
    "é",
    "\n",
    "</s>",
)


def glued(dice: random.Random) -> str:
    """Pieces that a parser cares for, in any order."""
    return "".join(dice.choices(PIECES, k=dice.randint(0, 14)))


@pytest.fixture(scope="module")
def found(webui_host: Host, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Results of forge_t5_tokens.py."""
    if webui_host.kind != "Forge":
        pytest.skip("of the WebUIs Forge alone has T5")
    folder = tmp_path_factory.mktemp("t5")
    dice = random.Random(11)
    texts = [*BREAKS, "", "word " * 600, *islice(prompts(), NUM_PROMPTS), *(glued(dice) for _ in range(NUM_PROMPTS))]
    (folder / "prompts.json").write_text(json.dumps(texts), encoding="utf-8")
    return run_in_webui(webui_host, TESTS / "forge_t5_tokens.py", folder, folder / "prompts.json")


def test_tokens_weights_and_rows_are_those_of_the_host(found: dict[str, Any]) -> None:
    assert found["num_prompts"] > 2 * NUM_PROMPTS
    assert len(found["different"]) == 7
    assert {name: texts for name, texts in found["different"].items() if texts} == {}


def test_each_token_stands_at_its_letters(found: dict[str, Any]) -> None:
    assert found["num_placed"] > 10_000
    assert found["misplaced"] == []


def test_what_the_strip_says_of_break_is_so(found: dict[str, Any]) -> None:
    """Behind it nothing is read, texts of a prompt that changes are mixed up, and Stable Diffusion 3 stops."""
    assert found["breaks"] == {
        "Flux: a cat BREAK a dog": ["a cat"],
        "Flux: a [cat:fox:0.5] BREAK a dog": ["a cat", "a dog"],
        "StableDiffusion3: a cat BREAK a dog": "RuntimeError",
        "StableDiffusion3: a [cat:fox:0.5] BREAK a dog": "RuntimeError",
    }
