"""The token ruler without its hosts: drawn by headless Chromium from views that `inspect` makes.

One page draws every prompt in every theme, drives a ruler on a made-up node, and writes down what there is to see.
Another stands for the WebUI's, with the rulers of javascript/weighted_clip_prompts.mjs.
"""

from __future__ import annotations

import contextlib
import functools
import http.server
import itertools
import json
import re
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from weighted_clip.encoder.tokenizer import default_tokenizer
from weighted_clip.hosts.comfy.attention.fields import Field, Where
from weighted_clip.hosts.comfy.attention.regions import Region
from weighted_clip.hosts.comfy.attention.steps import MARKER
from weighted_clip.hosts.comfy.attention.words import WORDS, Carried
from weighted_clip.hosts.comfy.placing.placed_view import placed_views
from weighted_clip.nodes import NODE_CLASS_MAPPINGS
from weighted_clip.nodes.base.node import Loader
from weighted_clip.nodes.base.routes import ruler_nodes
from weighted_clip.web.inspection import inspect, request_of
from weighted_clip.web.pictures import style
from weighted_clip.web.pictures.tokens import Chip, strip_items
from weighted_clip.weighting.options import EncodeOptions
from weighted_clip.weighting.phrases.words import words_of
from weighted_clip.weighting.placing.areas import read_area
from weighted_clip.weighting.reading.prompt_reader import read_prompt
from weighted_clip.weighting.reading.view import view, weight_text
from weighted_clip.weighting.syntax import parse

from ..patience import SECONDS
from .chromium import ARGUMENTS, BROWSERS, Browser, Tab

HERE = Path(__file__).resolve().parent
COMFYUI = HERE.parent.parent / "web" / "comfyui"
NODES = ruler_nodes(NODE_CLASS_MAPPINGS)
NUM_REFUSED = 2
"""Requests that the server is too busy for."""
THEMES = ("dark", "light", "solarized")
WEIGHTS = (1.0, 1.1, 1.4, 2.0, 5.0, 0.91, 0.5, 0.0, -0.3, -2.0, 1e30)
HOST_TEXTS = (
    "a // b",
    "a /* b */ c",
    "{x|y} z",
    "{only}",
    r"\{kept\}",
    "{dusk",
    "{a{b|c}|d}",
    "[a|b] 50% } ok",
    "{a|b} {c}",
)

WEIGHED = (
    ("a red cat", "cat", {"comfy": 1.05, "a1111": 1.05, "compel": 1.05, "novelai": 1.05}),
    ("a {{red cat}}, dog", "red", {"novelai": 1.05**2 + 0.05}),
    ("1.5::red cat::, [dog]", "cat", {"novelai": 1.55}),
    ("1.5::red cat::, [dog]", "dog", {"novelai": 1.0024}),
    ("a (red cat:1.2)!", "cat", {"comfy": 1.25, "a1111": 1.25}),
    ("a ((red cat))", "red", {"comfy": 1.15, "a1111": 1.1 * 1.15, "compel": 1.05}),
    ("(a (red:1.3) cat) (dog", "cat", {"comfy": 1.15, "a1111": 1.15}),
    (r"a \(red\) cat", "red", {"comfy": 1.05, "a1111": 1.05}),
    ("a (red cat)1.2, dog", "cat", {"compel": 1.25}),
    ("a cat++, (dog)--", "cat", {"compel": 1.26}),
    ("a cat++, (dog)--", "dog", {"compel": 0.86}),
    ("a half-cat.", "cat", {"comfy": 1.05, "a1111": 1.05, "compel": 1.05}),
    ('a "red cat", dog', "cat", {"compel": 1.05}),
    ('("a cat", "b").blend(1, 2)', "cat", {"compel": 1.05}),
    ('("a cat", "b").and()', "b", {"compel": 1.05}),
    ("cat.swap(dog) hat", "hat", {"compel": 1.05}),
    ("1girl, (best quality), 森", "quality", {"comfy": 1.15, "a1111": 1.15, "compel": 1.05}),
    ("1girl, (best quality), 森", "森", {"comfy": 1.05, "a1111": 1.05, "compel": 1.05}),
)
"""Prompts, a word of each, and what it weighs in each syntax after one step up."""
UNWEIGHED = (
    ('("a cat", "b").blend(1, 2)', "2", "compel"),
    ("cat.swap(dog)", "cat", "compel"),
    ("a withLora(ink, 0.5) cat", "ink", "compel"),
    ("a , b", ",", "compel"),
    ("a cat", "cat", "none"),
    ("a <lora:ink> cat", "ink", "a1111"),
    ("{a {b} c", "b", "novelai"),
    ("2::a {b}, c", "c", "novelai"),
)
CHANGED: tuple[tuple[tuple[str, int, int, str, dict[str, float]], str], ...] = (
    (("a (red cat:1.2)!", 3, 10, "comfy", {"by": 0.05}), "a (red cat:1.25)!"),
    (("a (red cat:1.2)!", 2, 15, "a1111", {"by": 0.05}), "a (red cat:1.25)!"),
    (("a (red cat:1.2)!", 3, 6, "comfy", {"by": 0.05}), "a ((red:1.05) cat:1.2)!"),
    (("a (cat:0.05)", 4, 4, "comfy", {"by": -0.1}), "a (cat:-0.05)"),
    (("a (cat)0.05 dog", 4, 4, "compel", {"by": -0.1}), "a (cat)0.0 dog"),
    (("a (cat:1.2) dog", 4, 4, "a1111", {"to": 1}), "a cat dog"),
    (("a -1::cat:: dog", 7, 7, "novelai", {"to": 1}), "a cat dog"),
)
"""Selections in a prompt with a change of its weight, and the prompt after it."""

EXAMPLE = "a photo of a (red:1.4) cat and a (dog:0.5) in a [wooden] bowl, chiaroscuro"
PROBLEMS = "masterpiece, cinematic light BREAK a lighthouse, (best quality, (soft glow:1.2), dusk"
A1111 = {"syntax": "a1111", "scheme": "a1111"}
TIMED = "a [red:blue:0.5] cat, (sharp:1.2) AND [foggy|sunny] field :0.5"
PLACED = "MASK(0 0.5) a cat :0.5 AND a dog AREA(0 1, 0 0.25, 0.9) AND fog COUPLE(0.5 1) [sun|moon]"
EVIL = '<img src=x onerror="document.title=1"> <b>(bold:1.2)</b> <script>alert(1)</script>'


def views_of(text: str, **options: Any) -> list[dict[str, Any]]:
    return inspect({"text": text, **options}, ["easy"])["views"]


def placed() -> list[dict[str, Any]]:
    """A text with placed phrases, of which the first two acted in some steps and in none."""
    text = "a Red cat, a blue dog BREAK red cat"
    words = words_of(parse(text, "a1111").parts, (), ())
    mask = torch.zeros(1, 64, 128)
    mask[:, :8, 64:] = 1
    areas = map(read_area, ("left half", "0 1, 0 0.25", "", "64 320, 0 1"))
    first, second, painted, pixels = areas
    fields = (
        Field((2, 3), 1.0, 0.0, Where("“red cat”", first, None, 0.25, 0.5, False, "4"), "red cat"),
        Field((7,), 0.5, 2.0, Where("“blue”", second, None, 0, 3, True, "5"), "blue"),
        Field((7, 8), 1.0, 0.25, Where("“blue dog”", painted, mask, node_id="6"), "blue dog"),
        Field((8,), 1.0, 0.0, Where("“dog”", pixels), "dog"),
    )
    values = {
        WORDS: Carried(({"clip_l": words},), torch.zeros(1)),
        "model_conds": {MARKER: SimpleNamespace(fields=fields)},
    }
    (view,) = placed_views([[torch.zeros(1, 77, 4), values]], "5")
    assert [one["is_own"] for one in view["places"]] == [False, True, False, False]
    view["places"][0]["acted"] = {"steps": [1, 3], "num_steps": 4}
    view["places"][1]["acted"] = {"steps": [], "num_steps": 4}
    return json.loads(json.dumps([view]))


def regions() -> list[dict[str, Any]]:
    """A base without known words and two regions, of which the second acted in no step."""
    words = Carried(({"clip_l": words_of(parse("a blue dog", "a1111").parts)},), torch.zeros(1))
    rows = torch.zeros(1, 77, 4)
    left, right = map(read_area, ("left half", "right half"))
    both = (
        Region(rows, range(77, 154), 0.5, Where("region 1", left, None, 0.25, 0.5, node_id="4"), words=words),
        Region(rows, range(154, 231), 1.0, Where("region 2", right, node_id="5")),
    )
    values = {"model_conds": {MARKER: SimpleNamespace(fields=(), regions=both)}}
    (view,) = placed_views([[rows, values]], "5")
    view["places"][1]["acted"] = {"steps": [], "num_steps": 4}
    return json.loads(json.dumps([view]))


def cases() -> dict[str, dict[str, Any]]:
    """Drawings of the page, by name."""
    vectors = views_of("an embedding:easy cat")
    (chip,) = (one for one in vectors[0]["chunks"][0]["chips"] if one["ids"] == ["easy[0]"])
    chip |= {"ids": [f"easy[{i}]" for i in range(3)], "note": "×3"}
    mixed = [{**one, "left_to_host": ["t5xxl"]} for one in views_of("a cat", **A1111)]
    many = "".join(f"[w{i}:w{i}b:{i}]" for i in range(1, 40))
    texts: dict[str, Any] = {
        "plain": views_of(EXAMPLE, **A1111),
        "problems": views_of(PROBLEMS, **A1111),
        "weights": views_of("(up:1.5) (down:0.3) (gone:0) (minus:-0.5) (one:1.0) (huge:1e20)", syntax="comfy"),
        "chunks": views_of("cat " * 80),
        "breaks": views_of("a BREAK b BREAK", **A1111),
        "empty": views_of(""),
        "only a problem": views_of("(", **A1111),
        "hidden": views_of("a lighthouse at dusk", hide="lighthouse"),
        "lora": views_of("a <lora:ink:0.8> cat", **A1111),
        "embedding": vectors,
        "emoji": views_of("a 🦊 in 森の中, naïve café"),
        "hebrew": views_of("חתול (שחור:1.3) קטן"),
        "evil": views_of(EVIL),
        "timed": views_of(TIMED, steps=20, **A1111),
        "four periods": views_of("[a|b]", steps=9, **A1111),
        "many texts": views_of(many, steps=60, **A1111),
        "long": views_of("(cat:1.1) dog, " * 1667),
        "t5": mixed,
        "encodings": views_of("(a:0.5) (red:0.6) (cat:0.7)", scheme="masked_blend"),
        "contractions": views_of("don't stop 1girl 2025 ---"),
    }
    drawn: dict[str, dict[str, Any]] = {name: {"views": views} for name, views in texts.items()}
    drawn["evil"]["content"] = {"label": EVIL}
    drawn["plain"]["content"] = {"hasScheme": True}
    drawn["stale"] = {"views": texts["plain"], "content": {"isStale": True, "message": "The server does not answer"}}
    drawn["problems only"] = {"views": texts["problems"], "content": {"hasChips": False}}
    places = views_of(PLACED, steps=20, regions="prompt-control", **A1111)
    drawn["places of parts"] = {"views": places}
    drawn["placed"] = {"views": placed(), "content": {"total": ""}}
    drawn["regions"] = {"views": regions(), "content": {"total": ""}}
    drawn["notes"] = {"views": [], "content": {"notes": ["text linked: shown after the run"]}}
    return drawn


class _Page(http.server.SimpleHTTPRequestHandler):
    """Serves a page at the root, and files."""

    page: bytes

    def do_GET(self) -> None:
        if self.path == "/":
            self.answer(200, self.page, "text/html; charset=utf-8")
        else:
            super().do_GET()

    def asked_for(self) -> dict[str, Any]:
        """Body of the request."""
        return json.loads(self.rfile.read(int(self.headers["Content-Length"])))

    def answer(self, status: int, body: bytes, kind: str = "application/json") -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:  # the base class's names
        del format, args


@contextlib.contextmanager
def serving(handler: Callable[..., http.server.BaseHTTPRequestHandler]) -> Iterator[str]:
    """Address of a server that runs meanwhile."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/"
        finally:
            server.shutdown()


class _Drawings(_Page):
    """Serves the page that draws all; of what the ruler asks, the first requests are refused."""

    asked: list[tuple[str, int]]
    """Text and status of each request."""
    running: list[str]
    """Texts that wait for their answer."""
    num_running: list[int]
    """Number that ran, each time."""

    def translate_path(self, path: str) -> str:
        if path.startswith("/comfyui/"):
            return str(COMFYUI / path.removeprefix("/comfyui/"))
        return str(HERE / "ruler" / path.lstrip("/"))

    def do_POST(self) -> None:
        request = self.asked_for()
        self.running.append(request["text"])
        time.sleep(0.05)  # for others to come
        self.num_running.append(len(self.running))
        status = 429 if len(self.asked) < NUM_REFUSED else 200
        self.asked.append((request["text"], status))
        answer = inspect(request_of(request, NODES)) if status == 200 else {"error": "ask again"}
        body = json.dumps(answer).encode()
        self.running.remove(request["text"])
        self.answer(status, body)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """Results written by the page."""
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        pytest.skip(f"no browser ({', '.join(BROWSERS)}): apt-get install chromium")
    rules = [
        {name: getattr(theme, name) for name in ("surface", "up", "down", "negative")}
        for theme in style.THEMES.values()
    ]
    page = (HERE / "ruler" / "page.html").read_text(encoding="utf-8")
    page = page.replace("CASES", as_json(cases()))
    shared = {"weights": WEIGHTS, "themes": rules, "hostTexts": HOST_TEXTS, "definitions": definitions()}
    page = page.replace("WEIGHTS", as_json({**shared, "reweighted": changes()}))
    handler = type("Handler", (_Drawings,), {"page": page.encode(), "asked": [], "running": [], "num_running": []})
    arguments = (*ARGUMENTS, "--window-size=800,600", f"--user-data-dir={tmp_path_factory.mktemp('browser')}")
    with serving(handler) as address:
        done = subprocess.run(
            [browser, *arguments, "--virtual-time-budget=60000", "--dump-dom", address],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            encoding="utf-8",
            timeout=SECONDS,
            check=False,
        )
    found = re.search(r'<script type="application/json" id="results">(.*?)</script>', done.stdout, re.DOTALL)
    assert found, f"{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    results = json.loads(found[1])
    assert results["errors"] == []
    yield {**results, "asked": handler.asked, "num_running": handler.num_running}


def changes() -> list[tuple[str, int, int, str, dict[str, float]]]:
    """Arguments for `reweighted` of weights.js."""
    weighed = [(text, word, syntax) for text, word, wanted in WEIGHED for syntax in wanted]
    places = [(text, text.index(word), syntax) for text, word, syntax in (*weighed, *UNWEIGHED)]
    places.append(("a <lora:ink:0.8:te=1> cat", 5, "a1111"))
    stepped = [(text, start, start, syntax, {"by": 0.05}) for text, start, syntax in places]
    return [*stepped, *(one for one, _ in CHANGED)]


def definitions() -> dict[str, Any]:
    """Our nodes with a fixed list of inputs as ComfyUI's server describes them."""
    return {
        name: {"name": name, "input": node.INPUT_TYPES(), "output": list(node.RETURN_TYPES)}
        for name, node in NODE_CLASS_MAPPINGS.items()
        if not issubclass(node, Loader) and name != "WeightedCLIPReadParameters"
    }


def as_json(data: Any) -> str:
    """JSON that can be put into a script element."""
    return json.dumps(data).replace("<", "\\u003c")


@pytest.fixture(scope="module", params=THEMES)
def drawn(request: pytest.FixtureRequest, served: dict[str, Any]) -> dict[str, Any]:
    """Drawings in one theme, by case."""
    return served["cases"][request.param]


def items_of(drawn_case: dict[str, Any]) -> list[dict[str, Any]]:
    return [item for section in drawn_case["sections"] for item in section["items"]]


def chip_of(drawn_case: dict[str, Any], text: str) -> dict[str, Any]:
    (found,) = (item for item in items_of(drawn_case) if item["text"] == text)
    return found


@pytest.mark.parametrize(
    "name", ["plain", "problems", "weights", "chunks", "breaks", "hidden", "embedding", "emoji", "hebrew", "evil"]
)
def test_the_strip_is_that_of_the_pictures(drawn: dict[str, Any], name: str) -> None:
    expected = [item for one in cases()[name]["views"] for item in strip_items(one)]
    found = items_of(drawn[name])
    assert len(found) == len(expected)
    for ours, theirs in zip(found, expected, strict=True):
        if isinstance(theirs, Chip):
            assert (ours["kind"], ours["text"], ours["note"]) == ("chip", theirs.text, theirs.note)
            classes = {
                "hidden": theirs.is_hidden,
                "problem-here": theirs.has_problem,
                "joins": theirs.joins,
                "joined": theirs.is_joined,
            }
            assert {key: key in ours["classes"] for key in classes} == classes
        else:
            assert (ours["kind"], ours["text"].replace("BREAK", "  BREAK")) == ("border", theirs.text)


def test_colours_are_those_of_the_pictures(served: dict[str, Any]) -> None:
    expected = [[list(style.weight_color(weight, theme)) for weight in WEIGHTS] for theme in style.THEMES.values()]
    assert served["colors"] == expected


def test_weights_are_written_as_in_the_pictures(drawn: dict[str, Any]) -> None:
    notes = {item["text"]: item["note"] for item in items_of(drawn["weights"])}
    assert notes == {"up": "1.5", "down": "0.3", "gone": "0", "minus": "-0.5", "one": "", "huge": weight_text(1e20)}
    kinds = {item["text"]: item["classes"][0] for item in items_of(drawn["weights"])}
    assert kinds == {"up": "up", "down": "down", "gone": "down", "minus": "negative", "one": "plain", "huge": "up"}
    backgrounds = {item["text"]: item["background"] for item in items_of(drawn["weights"])}
    assert len(set(backgrounds.values())) == 6


def test_text_can_be_read(drawn: dict[str, Any]) -> None:
    """Everything but what is grey because it is old has the contrast that WCAG AA asks for."""
    for name, case in drawn.items():
        too_low = {part: value for part, value in case["contrasts"].items() if value < style.MIN_CONTRAST}
        assert not too_low, name


def test_pieces_of_a_word_touch(drawn: dict[str, Any]) -> None:
    words = drawn["plain"]["sections"][0]["words"]
    assert [word for word in words if len(word) > 1] == [["chi", "ar", "osc", "uro"]]
    pieces = [chip_of(drawn["plain"], text)["rect"] for text in ("chi", "ar", "osc", "uro")]
    for before, behind in itertools.pairwise(pieces):
        assert before[2] == pytest.approx(behind[0])
    bowl, comma = chip_of(drawn["plain"], "bowl"), chip_of(drawn["plain"], ",")
    assert comma["rect"][0] - bowl["rect"][2] > 1 or comma["rect"][1] > bowl["rect"][1]
    assert drawn["contractions"]["sections"][0]["words"][0] == ["don", "'t"]


def test_tokens_of_one_place_are_one_chip(drawn: dict[str, Any]) -> None:
    vectors = chip_of(drawn["embedding"], "embedding:easy")
    assert vectors["note"] == "×3"
    assert "embedding" in vectors["classes"]
    assert vectors["border"] == "dashed"
    assert chip_of(drawn["embedding"], "cat")["border"] == "solid"
    assert chip_of(drawn["emoji"], "森")["note"].startswith("×")


def test_count_line(drawn: dict[str, Any]) -> None:
    assert drawn["plain"]["bar"] == ["", "18 / 75", "a1111"]
    assert drawn["chunks"]["count"] == "5 / 75 in chunk 2 of 2"
    assert drawn["breaks"]["count"] == "1 / 75 in chunk 2 of 2"
    assert drawn["empty"]["count"] == "0 / 75"
    assert drawn["empty"]["meter"] == "0%"
    assert drawn["empty"]["sections"] == []
    assert "1 token hidden" in drawn["hidden"]["bar"]
    assert "t5xxl is encoded by ComfyUI itself" in drawn["t5"]["bar"]
    assert drawn["encodings"]["bar"] == ["", "3 / 75", "4 encodings", "comfy"]
    assert drawn["notes"]["bar"] == ["text linked: shown after the run"]


def test_what_is_hidden_is_struck_through(drawn: dict[str, Any]) -> None:
    assert chip_of(drawn["hidden"], "lighthouse")["line"] == "line-through"
    assert chip_of(drawn["hidden"], "dusk")["line"] == "none"


def test_a_tag_of_a_lora_is_a_chip_struck_through_that_has_its_problem(drawn: dict[str, Any]) -> None:
    case = drawn["lora"]
    assert [item["text"] for item in items_of(case)] == ["a", "<lora:ink:0.8>", "cat"]
    tag = chip_of(case, "<lora:ink:0.8>")
    assert (tag["line"], tag["lineStyle"], tag["wave"]) == ("line-through", "solid", "underline wavy")
    assert case["problems"] == [tag["problem"]]
    assert not chip_of(case, "cat")["problem"]
    assert case["count"] == "2 / 75"
    assert not any("hidden" in part for part in case["bar"])


def test_problems(drawn: dict[str, Any]) -> None:
    case = drawn["problems"]
    (message,) = case["problems"]
    assert "never closed" in message
    marked = [item for item in items_of(case) if item.get("problem")]
    assert [item["text"] for item in marked] == ["best"]
    assert marked[0]["problem"] == message
    assert marked[0]["described"] == [message]
    assert (marked[0]["line"], marked[0]["wave"], marked[0]["tabIndex"]) == ("none", "underline wavy", 0)
    assert all(item["tabIndex"] == -1 for item in items_of(case) if item["kind"] == "chip" and not item["problem"])
    tooltips = case["tooltips"]
    assert (tooltips["hover"], tooltips["focus"], tooltips["left"], tooltips["escaped"]) == (message, message, "", "")
    assert len(drawn["only a problem"]["problems"]) == 1
    assert drawn["problems only"]["problems"] == [message]
    assert drawn["problems only"]["sections"] == []


def test_a_screen_reader_is_told_the_last_state_after_a_while(served: dict[str, Any]) -> None:
    assert served["toldAtOnce"] == ""
    assert served["toldLater"].startswith("10 / 75 in chunk 2 of 2 tokens. 1 problem: ")


def test_texts_of_a_timed_prompt_have_a_row_each(drawn: dict[str, Any]) -> None:
    case = drawn["timed"]
    assert [section["label"] for section in case["sections"]] == [
        "steps 1–11",
        "steps 12–20",
        "AND ×0.5, steps 1–2, 4, 6, … 20",
        "AND ×0.5, steps 3, 5, 7, … 19",
    ]
    assert all("/ 75" in section["head"] for section in case["sections"])
    assert case["count"] == "4 texts"
    all_periods = [section["label"] for section in drawn["four periods"]["sections"]]
    assert all_periods == ["steps 1–2, 4, 6, 8", "steps 3, 5, 7, 9"]
    many = drawn["many texts"]
    assert len(many["sections"]) == 20
    assert many["count"].endswith("texts")
    assert any("more texts not shown" in part for part in many["bar"])


def test_long_prompts_are_cut(drawn: dict[str, Any]) -> None:
    case = drawn["long"]
    assert len([item for item in items_of(case) if item["kind"] == "chip"]) <= 600
    assert re.search(r"… 4,4\d\d more tokens", case["more"])
    assert case["height"] < 400
    more = case["afterMore"]
    assert more["numChips"] == 5001
    assert more["more"] == ""
    assert more["height"] < 400
    assert more["tabIndex"] == 0


def test_prompts_stay_text(drawn: dict[str, Any], served: dict[str, Any]) -> None:
    assert served["images"] == 0
    assert drawn["evil"]["bar"][0] == EVIL
    assert "".join(item["text"] for item in items_of(drawn["evil"])) == "".join(EVIL.split()).replace(
        "(bold:1.2)", "bold"
    ).replace("(1)", "1")


def test_a_placed_phrase_is_marked_and_pictured(drawn: dict[str, Any]) -> None:
    case = drawn["placed"]
    chips = [(item["text"], len(item["areas"])) for item in items_of(case) if item["kind"] == "chip"]
    marked = {"Red": 1, "cat": 1, "blue": 2, "dog": 1, "red": 1}  # an area in pixels has no picture yet
    words = ["a", "Red", "cat", ",", "a", "blue", "dog", "red", "cat"]
    assert chips == [(text, marked.get(text, 0)) for text in words]
    assert [item["text"] for item in items_of(case) if item["kind"] == "border"] == ["BREAK"]
    left = [[1.0] * 8 + [0.0] * 8] * 16
    quarter = [[1.0] * 16] * 4 + [[0.0] * 16] * 12
    corner = [[0.0] * 8 + [1.0] * 8] + [[0.0] * 16] * 7
    assert [row["area"] for row in case["places"]] == [left, quarter, corner, None]
    assert chip_of(case, "blue")["areas"] == [quarter, corner]
    assert [row["label"] for row in case["places"]] == [f"{share} % of the picture" for share in (50, 25, 6)] + [""]
    edges = case["places"][2]["size"]
    assert (edges[2] - edges[0] - 2) / (edges[3] - edges[1] - 2) == pytest.approx(2, abs=0.1)  # as wide as the mask is
    first, dog = chip_of(case, "Red"), chip_of(case, "dog")
    assert first["tabIndex"] == dog["tabIndex"] == 0
    acted = "“red cat”: left half, weight 1, outside 0, from 0.25 to 0.5 of the way, acted in 2 of 4 steps"
    assert first["place"] == acted and len(first["described"]) == 1 and len(dog["described"]) == 2
    assert all(part in first["described"][0] for part in ("“red cat”", "left half", "acted in 2 of 4 steps"))


def test_parts_of_a_prompt_have_their_places(drawn: dict[str, Any]) -> None:
    case = drawn["places of parts"]
    functions = ["MASK(0 0.5)", "AREA(0 1, 0 0.25, 0.9)", "COUPLE(0.5 1)", "COUPLE(0.5 1)"]
    assert [row["texts"] for row in case["places"]] == [[text] for text in functions]
    left, quarter = [[1.0] * 8 + [0.0] * 8] * 16, [[1.0] * 16] * 4 + [[0.0] * 16] * 12
    right = [[0.0] * 8 + [1.0] * 8] * 16
    assert [row["area"] for row in case["places"]] == [left, quarter, right, right]
    chips = [(item["text"], item["areas"], item["place"]) for item in items_of(case)]
    assert chips[0] == ("a", [left], "MASK(0 0.5)") and chips[1][0] == "cat"
    assert chips[2] == ("a", [quarter], "AREA(0 1, 0 0.25, 0.9)")
    assert [one[0] for one in chips if one[1]] == ["a", "a", "sun", "moon"]
    assert [section["label"] for section in case["sections"]] == [
        *("×0.5, all steps", "AND ×0.9, all steps", "AND, all steps"),
        *("COUPLE, steps 1–2, 4, 6, … 20", "COUPLE, steps 3, 5, 7, … 19"),
    ]


def test_the_time_of_a_placed_phrase_is_a_strip(drawn: dict[str, Any]) -> None:
    rows = drawn["placed"]["places"]
    assert [row["times"] for row in rows] == [
        [pytest.approx([0.25, 0.5], abs=0.01), pytest.approx([0.75, 1.0], abs=0.01)],  # the second and the last of 4
        [],
        [pytest.approx([0, 1], abs=0.01)],
        [pytest.approx([0, 1], abs=0.01)],
    ]
    assert [row["isMissed"] for row in rows] == [False, True, False, False]
    assert rows[1]["texts"][-2:] == ["from step 0 to before step 3", "acted in 0 of 4 steps"]


def test_regions_are_listed_below_the_words_of_their_base(drawn: dict[str, Any]) -> None:
    case = drawn["regions"]
    assert items_of(case) == [] and (case["count"], case["meter"]) == ("", "")
    assert [row["texts"] for row in case["places"]] == [
        ["region 1 “a blue dog”", "left half", "strength 0.5", "from 0.25 to 0.5 of the way"],
        ["region 2", "right half", "strength 1", "acted in 0 of 4 steps"],
    ]
    left, right = [1.0] * 8 + [0.0] * 8, [0.0] * 8 + [1.0] * 8
    assert [row["area"] for row in case["places"]] == [[left] * 16, [right] * 16]
    assert case["places"][0]["times"] == [pytest.approx([0.25, 0.5], abs=0.01)]
    assert [row["isMissed"] for row in case["places"]] == [False, True]


def test_region_shows_its_run_and_where_it_acted(served: dict[str, Any]) -> None:
    found = served["node"]["regions"]
    assert [found[name]["rows"] for name in ("executed", "acted")] == [["", ""], ["acted in 2 of 4 steps", ""]]
    assert found["acted"]["pictures"] == [2, 16]
    assert [found[name]["isStale"] for name in ("executed", "changed", "back")] == [False, True, False]


def test_place_phrase_shows_its_run_and_where_it_acted(served: dict[str, Any]) -> None:
    found = served["node"]["places"]
    words = "a Red cat , a blue dog red cat"
    acted = ["acted in 2 of 4 steps", "acted in 0 of 4 steps", "", ""]
    assert (found["otherRestored"]["chips"], found["executed"]["chips"]) == ("", words)
    # a node that ComfyUI did not run again since the page was opened
    assert [found[name]["message"] for name in ("foreign", "lone", "executed")] == ["", "“blue” acted", ""]
    assert found["acted"]["rows"] == found["again"]["rows"] == acted
    assert found["acted"]["pictures"] == [2, 16, 16, 0]
    assert [found[name]["isStale"] for name in ("executed", "changed", "back")] == [False, True, False]
    assert (found["off"]["chips"], found["off"]["message"].endswith("acted in 0 of 4 steps")) == ("", True)
    assert (found["anew"]["rows"], found["anew"]["pictures"]) == ([""] * 4, [16, 16, 16, 0])
    assert (found["late"]["rows"], found["late"]["pictures"]) == (["acted in 2 of 4 steps", *[""] * 3], [2, 16, 16, 0])


def test_right_to_left(drawn: dict[str, Any]) -> None:
    (section,) = drawn["hebrew"]["sections"]
    assert section["direction"] == "rtl"
    assert section["items"][0]["rect"][0] > section["items"][-1]["rect"][0]
    assert drawn["plain"]["sections"][0]["direction"] == "ltr"


def test_old_chips_are_grey(drawn: dict[str, Any]) -> None:
    assert drawn["stale"]["isStale"]
    assert drawn["stale"]["message"] == "The server does not answer"
    assert not drawn["plain"]["isStale"]


def test_the_theme_may_change(served: dict[str, Any]) -> None:
    redrawn = served["redrawn"]
    assert redrawn["dark"] == redrawn["expected"]
    assert redrawn["light"] != redrawn["dark"]
    assert redrawn["empty"] == 0


def test_the_hosts_comments_and_choices(served: dict[str, Any]) -> None:
    assert served["hostTexts"] == [
        {"text": "a ", "hasChoice": False},
        {"text": "a  c", "hasChoice": False},
        {"text": "x z", "hasChoice": True},
        {"text": "only", "hasChoice": False},
        {"text": "{kept}", "hasChoice": False},
        {"text": "dusk", "hasChoice": False},
        {"text": "ab", "hasChoice": True},
        {"text": "[a|b] 50% } ok", "hasChoice": False},
        {"text": "a c", "hasChoice": True},
    ]


def test_comments_that_the_page_takes_out_are_grey_chips_and_no_tokens(served: dict[str, Any]) -> None:
    assert served["comments"] == [[{"text": "// b", "at": 2}], [{"text": "/* b */", "at": 2}], *[[]] * 7]
    commented = served["commented"]
    words, comments = ("a", "c", "e"), ("// b", "/* d */", "// f")
    assert commented["shown"] == [
        [text, text in comments] for both in zip(words, comments, strict=True) for text in both
    ]
    assert served["commentsOfParts"] == [["// 1"], ["// 2"], ["// 3"], ["// 3"]]
    assert commented["isUntouched"] and "3" in commented["count"] and "4" not in commented["count"]


def letters(text: str, syntax: str) -> list[tuple[str, float]]:
    """Each character that is no white space, with its weight."""
    fragments = parse(text, syntax).fragments
    return [(one, fragment.weight) for fragment in fragments for one in fragment.text if not one.isspace()]


def test_a_changed_weight_is_read_as_such_and_all_else_stays(served: dict[str, Any]) -> None:
    """By our parsers, which are tested against the programs."""
    results = iter(served["reweighted"])
    for text, word, wanted in WEIGHED:
        for syntax, weight in wanted.items():
            found = next(results)
            assert found, (text, syntax)
            before, behind = letters(text, syntax), letters(found, syntax)
            assert [one for one, _ in behind] == [one for one, _ in before], found
            changed = [one for one, other in zip(behind, before, strict=True) if one != other]
            assert word in "".join(one for one, _ in changed), found
            assert {round(new, 6) for _, new in changed} >= {round(weight, 6)}, found
            # what was weighed alike is weighed alike, so nothing else has changed
            assert len({new / old for (_, new), (_, old) in zip(behind, before, strict=True)} - {1.0}) <= 2, found
    assert list(results) == [*[None] * len(UNWEIGHED), "a <lora:ink:0.85:te=1> cat", *(text for _, text in CHANGED)]


def test_the_server_is_asked_once_for_what_is_typed_quickly(served: dict[str, Any]) -> None:
    node = served["node"]
    values = {"syntax": "comfy", "scheme": "comfy", "normalization": "none", "chunking": "as syntax"}
    assert node["typed"] == [{"node": "WeightedCLIPTextEncode", "text": "a cat", "values": values}]
    assert node["lastWins"]["chips"] == "a cat sat"
    assert node["numAskedUnchanged"] == 2


def test_a_failure_keeps_the_old_chips(served: dict[str, Any]) -> None:
    failed, too_long = served["node"]["failed"], served["node"]["tooLong"]
    assert failed["isStale"]
    assert failed["chips"] == "a cat sat"
    assert "The server does not answer" in failed["bar"]
    assert "longer than 64 KiB" in too_long["bar"]
    assert (too_long["numAsked"], too_long["chips"]) == (3, "")


def test_a_busy_server_is_asked_again_for_the_last_text_without_a_word(served: dict[str, Any]) -> None:
    assert served["busy"]["chips"] == "a dog"
    assert served["busy"]["messages"] == []
    assert [status for _, status in served["asked"][: NUM_REFUSED + 1]] == [429] * NUM_REFUSED + [200]
    assert served["asked"][NUM_REFUSED][0] == "a dog"


def test_nodes_that_are_opened_together_ask_one_after_another(served: dict[str, Any]) -> None:
    assert served["busy"]["opened"] == ["a", "b", "c", "d"]
    assert max(served["num_running"]) == 1


def test_a_run_counts_until_the_text_changes(served: dict[str, Any]) -> None:
    node = served["node"]
    assert (node["executed"]["chips"], node["executed"]["numAsked"]) == ("a dog", 3)
    assert node["executedLate"]["asked"] == "a dog!"


def test_where_weights_acted_is_shown_until_the_node_changes(served: dict[str, Any]) -> None:
    found = served["node"]["encoders"]
    assert found["weighed"].endswith("last sampling: 1 row in 2 attention layers")
    assert "last sampling" not in found["told"]["bar"]


def test_the_switch(served: dict[str, Any]) -> None:
    node = served["node"]
    assert node["off"]["chips"] == ""
    assert node["numAskedOff"] == 4
    assert (node["askedOn"], node["askedGone"]) == ("while off", "while off")


def test_linked_text_waits_for_the_run(served: dict[str, Any]) -> None:
    node = served["node"]
    assert node["waiting"]["numAsked"] == 0
    assert "text linked: shown after the run" in node["waiting"]["bar"]
    assert node["arrived"]["chips"] == "from elsewhere"
    assert "as of the last run" in node["arrived"]["bar"]


def test_linked_text_is_that_of_the_node_that_it_comes_from(served: dict[str, Any]) -> None:
    linked = served["node"]["linked"]
    for way, text, origin in (
        ("text", "a cat", "PrimitiveString"),
        ("reroute", "a cat", "PrimitiveString"),
        ("primitive", "a ", "PrimitiveNode"),  # the page takes comments out of our box, into which it puts the value
    ):
        assert linked[way]["asked"] == [text]
        assert f"text linked: comes from {origin}" in linked[way]["bar"]
        assert linked[way]["boxes"] == ([origin] if text == "a cat" else [])
        assert linked[way]["isLinked"]
    for way in ("circle", "computed", "replaced"):
        assert linked[way]["asked"] == linked[way]["boxes"] == []
        assert "text linked: shown after the run" in linked[way]["bar"]
    assert "text_g, text_l linked: comes from PrimitiveString" in linked["twoBoxes"]["bar"]
    assert linked["twoBoxes"]["boxes"] == [True]  # once, though both boxes have it
    assert (linked["steps"]["asked"], linked["steps"]["is"]) == (30, 30)
    assert "linked" not in linked["steps"]["bar"]


def test_two_boxes_have_a_group_each(served: dict[str, Any]) -> None:
    node = served["node"]
    assert (node["sdxlSame"]["labels"], node["sdxlSame"]["numAsked"]) == (["text_g, text_l"], 1)
    assert (node["sdxl"]["labels"], node["sdxl"]["chips"]) == (["text_g", "text_l"], "a b")
    assert (node["sdxlExecuted"]["labels"], node["sdxlExecuted"]["chips"]) == (["text_g", "text_l"], "a b")


def test_what_each_node_asks(served: dict[str, Any]) -> None:
    node = served["node"]
    values = {"emphasis": "No norm", "comma_backtrack": 20, "padding": "attend"}
    values |= {"steps": 30, "counter": "as written"}
    assert node["a1111"]["body"] == {"node": "WeightedCLIPA1111Encode", "text": "a ", "values": values}
    assert "sigmas linked: exact after the run" in node["a1111"]["bar"]
    values = {"hide": "cat", "hidden_from": "everything", "from_phrases": "", "causal": True}
    assert node["masks"] == {"node": "WeightedCLIPMaskControl", "text": "a cat", "values": values}
    asked = {"node": "WeightedCLIPRerank", "text": "a (red:1.4) cat", "values": {"syntax": "a1111"}}
    assert node["rerank"] == asked
    checked = {name for name in definitions() if "problems" in vars(NODE_CLASS_MAPPINGS[name])}
    assert set(node["withRuler"]) == {*NODES, *checked}
    assert node["foreign"] == [None, None]


def test_a_clip_of_another_family_is_named_before_the_run(served: dict[str, Any]) -> None:
    bars = served["node"]["clip"]
    note = "These are CLIP's tokens. A CLIP of type wan has its own and may take no weights: known after a run"
    assert note in bars["wan"]
    assert not any("CLIP's tokens" in bar for type_, bar in bars.items() if type_ != "wan")


def test_the_text_encoder_is_asked_for_that_a_run_has_told(served: dict[str, Any]) -> None:
    found = served["node"]["encoders"]
    assert (found["before"]["encoder"], found["numAsked"]) == ("CLIPLoader lumina2", 1)
    assert "These are CLIP's tokens" in found["before"]["bar"]
    assert found["after"]["encoder"] == "a.Tokenizer"
    assert found["after"]["bar"].startswith("2 tokens")
    assert "weighs rows" in found["after"]["bar"]
    assert "CLIP's tokens" not in found["after"]["bar"]
    assert found["other"]["encoder"] == "CLIPLoader lumina2"  # another file: what the run reported no longer applies
    assert found["told"]["encoder"] is None  # a run with CLIP's tokens


def test_the_files_of_the_text_encoder_are_asked_for(served: dict[str, Any]) -> None:
    """By them the server knows how long its chunks are. Boxes for several towers have chunks of several lengths."""
    assert served["node"]["files"] == {
        "CLIPLoader": ["text_encoders/one.pt"],
        "DualCLIPLoader": ["text_encoders/a/one.pt", "text_encoders/two.pt"],
        "WeightedCLIPLoad": ["checkpoints/one.pt"],
        "CheckpointLoaderSimple": None,
        "linked": ["text_encoders/two.pt"],
        "twoBoxes": None,
    }


def test_views_of_a_run_have_what_the_ruler_reads() -> None:
    """The route's view and that of a node are made by the same function."""
    read = read_prompt("a (cat:1.2)", EncodeOptions(), default_tokenizer())
    assert view(read) == views_of("a (cat:1.2)")[0]


ROOT = Path(__file__).resolve().parents[2]
PAGE = """<!doctype html><meta charset=utf-8><script type=module src=/javascript/weighted_clip_prompts.mjs></script>
<div class=prompt-row><div id=txt2img_prompt><textarea></textarea></div></div>
<div id=txt2img_token_counter><div class=wrap></div><span>0/75</span></div>
<div id=script_txt2img_weighted_clip_enabled><input type=checkbox></div>
<div id=script_txt2img_weighted_clip_syntax><input value=compel></div>"""
COUNTED = (
    "return document.querySelector('#weighted_clip_ruler_txt2img_prompt .wcr-bar .wcr-count')?.textContent === args[0]"
)


class _Boxes(_Page):
    """Serves the page with a prompt box, and reads prompts."""

    page = PAGE.encode()

    def do_POST(self) -> None:
        request = self.asked_for()
        views = inspect({"text": request["text"], "syntax": request["syntax"]})["views"]
        views = [{**view, "total": f"{view['num_tokens']}/75"} for view in views]
        if request["text"].startswith("flux "):
            views = list(itertools.chain.from_iterable(map(by_two, views)))
        answer = {"views": views, "notes": []}
        self.answer(200, json.dumps(answer).encode())


def by_two(clip: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """A view as the WebUI's route gives it for a model with T5 and CLIP."""
    open_chunks = [{**chunk, "capacity": None} for chunk in clip["chunks"]]
    chunks = [{**one, "chips": [{**chip, "problems": []} for chip in one["chips"]]} for one in clip["chunks"]]
    yield {**clip, "chunks": open_chunks, "total": f"{clip['num_tokens']}/255", "encoder": "T5", "is_beside": False}
    yield {**clip, "chunks": chunks, "issues": [], "encoder": "CLIP-L", "is_beside": True}


@pytest.fixture(scope="module")
def boxes_address() -> Iterator[str]:
    with serving(functools.partial(_Boxes, directory=str(ROOT))) as address:
        yield address


@pytest.fixture
def boxes(browser: Browser, boxes_address: str) -> Iterator[Tab]:
    """The page with a prompt box, newly opened."""
    with browser.tab(width=800, height=600) as tab:
        tab.open(boxes_address)
        tab.wait("return document.readyState === 'complete' && !!document.querySelector('textarea')")
        yield tab


def type_prompt(tab: Tab, text: str) -> None:
    tab.run("document.querySelector('textarea').focus()")
    tab.paste(text)


def test_seconds_that_gradio_counts_are_no_tokens(boxes: Tab) -> None:
    count = "document.querySelector('#txt2img_token_counter .wrap').textContent = args[0];"
    boxes.run(f"{count} document.querySelector('#txt2img_token_counter span').textContent = args[1]", "1.6s ", "3/75")
    type_prompt(boxes, "a red cat")
    boxes.wait(COUNTED, "3/75")
    boxes.run(count, "")
    boxes.run("document.querySelector('#txt2img_token_counter span').textContent = '?/?'")
    boxes.wait("return !document.querySelector('.wcr-bar .wcr-count')")


def test_a_number_that_comes_later_does_not_keep_the_tokens_from_being_announced(boxes: Tab) -> None:
    type_prompt(boxes, "a red cat")
    boxes.wait("return document.querySelectorAll('.wcr-chip').length === 3")
    boxes.run("document.querySelector('#txt2img_token_counter span').textContent = '3/75'")
    boxes.wait("return document.querySelector('[role=status]').textContent === '3 / 75 tokens.'")


def test_in_another_syntax_it_says_how_many_tokens_that_syntax_reads(boxes: Tab) -> None:
    boxes.run("document.querySelector('#txt2img_token_counter span').textContent = '3/75'")
    type_prompt(boxes, "(a:2) cat")
    boxes.wait(COUNTED, "3/75")
    boxes.run("document.querySelector('[type=checkbox]').click()")
    boxes.wait(COUNTED, "4/75")


def test_each_text_is_shown_as_t5_and_clip_read_it(boxes: Tab) -> None:
    boxes.run("document.querySelector('#txt2img_token_counter span').textContent = '9/255'")
    type_prompt(boxes, "flux (cat")
    count = views_of("flux (cat", syntax="a1111")[0]["num_tokens"]
    heads = (
        "const texts = (selector) => [...document.querySelectorAll(selector)].map((one) => one.textContent);"
        "return JSON.stringify([texts('.wcr-head'), texts('.wcr-bar'), texts('.wcr-problems p').length]) === args[0]"
    )
    boxes.wait(heads, json.dumps([[f"T5{count}/255", f"CLIP-L{count}/75"], [], 1], separators=(",", ":")))
    told = f"{count} tokens. 1 problem: "
    boxes.wait("return document.querySelector('[role=status]').textContent.startsWith(args[0])", told)
    weight = (
        "const chip = document.querySelectorAll('[data-section=\"1\"] .wcr-chip')[0];"
        "chip.dispatchEvent(new KeyboardEvent('keydown', {key: 'ArrowUp', bubbles: true}));"
        "return document.querySelector('textarea').value"
    )
    assert boxes.run(weight) == "(flux:1.05) (cat"


def test_the_server_is_asked_again_once_another_model_may_be_there(boxes: Tab) -> None:
    boxes.run(
        "const before = fetch; window.asked = 0;"
        "window.fetch = (...all) => { window.asked += String(all[0]).includes('ruler'); return before(...all); }"
    )
    type_prompt(boxes, "a red cat")
    boxes.wait("return window.asked === 1")
    boxes.run("window.dispatchEvent(new Event('focus'))")
    boxes.wait("return window.asked === 2")
    boxes.run(
        "document.body.append(Object.assign(document.createElement('div'), {className: 'model_selection'}));"
        "document.querySelector('.model_selection').append(document.createElement('input'));"
        "document.querySelector('.model_selection input').value = 'flux'"
    )
    boxes.wait("return window.asked === 4")  # and once more when the host has taken it
    time.sleep(1.5)
    assert boxes.run("return window.asked") == 4


def test_names_are_chosen_by_bare_keys_and_others_stay_the_boxs(served: dict[str, Any]) -> None:
    names = served["names"]
    first, second = ["easynegative *", "easyone"], ["easynegative", "easyone *"]
    assert names["shown"] == ["easynegative", "easyone"]
    assert names["down"] == [True, "a eas", first]
    assert names["held"] == [[False, "a eas", first]] * 16  # Shift, Ctrl, Alt or Meta with each of four keys
    assert names["up"] == [True, "a eas", second]
    assert names["enter"] == [True, "a easyone", []]


def test_word_maps_show_a_word_over_the_picture_and_the_words_of_a_place(served: dict[str, Any]) -> None:
    maps = served["maps"]
    assert maps["cat"][0] > 250 and max(maps["cat"][1:]) < 130  # between cells it fades
    assert max(maps["a"]) < 60 and maps["label"] == "Map of “a”"  # a fifth of the largest share
    assert maps["kept"] == [maps["a"], "true", "Map of “a”"]
    assert maps["middle"] == ["a 10.0 %", "cat 0.0 %"]
    assert maps["left"] == ["cat 50.0 %", "a 10.0 %"]
    assert maps["told"] == "cat 50.0 %, a 10.0 %"
    assert maps["gone"] == [] and maps["corner"] == ["a 10.0 %", "cat 0.0 %"]


def test_word_maps_of_each_picture_on_either_scale(served: dict[str, Any]) -> None:
    maps = served["maps"]
    assert maps["buttons"] == [True, False]
    assert maps["next"] == ["picture 2 of 3", [False, True]]
    assert all(120 < light < 136 for light in maps["second"])  # 0.2 of 0.4
    assert maps["flat"] == [0, 0, 0]  # its own scale has no range
    assert maps["asked"] == 0 and maps["file"] == [{"filename": "x y.png", "subfolder": "", "type": "temp"}]
    assert maps["title"] != "bad" and maps["empty"] == 0
