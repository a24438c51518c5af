"""The ruler while a prompt is typed: which problems wait, which offer what was meant, and when it comes back."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import pytest
from PIL import Image

from ..typing_cases import LINKED, PLACE, PLACED_WRONG, REGION, Case
from .comfy_server import ComfyServer, Graph, Node
from .ruler_page import VALUE, RulerPage, inspect_node

pytestmark = pytest.mark.host

MASKED = "right-half.png"
BUTTONS = "return [...document.querySelectorAll('.wcr-problems .wcr-button')].map((button) => button.innerText)"
BREAK_SERVER = """
window.fetchApi = app.api.fetchApi;
app.api.fetchApi = (path, ...others) => path.startsWith('/weighted_clip/')
    ? Promise.reject(new TypeError('Failed to fetch')) : window.fetchApi.call(app.api, path, ...others);
"""


def load(page: RulerPage, text: str = "", syntax: str = "comfy") -> Any:
    """An Inspect node; its box, with the focus and the caret at the end."""
    page.load_inspect(text, syntax=syntax)
    page.wait("return document.querySelectorAll('.wcr-count').length > 0")
    area = page.text_area()
    area.click()
    page.run("args[0].setSelectionRange(args[0].value.length, args[0].value.length)", area)
    return area


def click_button(page: RulerPage, text: str) -> None:
    """Click a button at a problem, with the mouse."""
    page.wait(f"return (() => {{ {BUTTONS} }})().includes(args[0])", text)
    buttons = page.driver.find_elements("css selector", ".wcr-problems .wcr-button")
    next(button for button in buttons if button.text == text).click()


@pytest.mark.parametrize("syntax", ["comfy", "a1111"])
def test_a_bracket_that_is_being_written_is_no_problem_yet(page: RulerPage, syntax: str) -> None:
    area = load(page, syntax=syntax)
    area.send_keys("a (cat")
    page.wait_for(problems=[], count="3 / 75" if syntax == "comfy" else "2 / 75")
    height = page.shown()[0]["height"]
    area.send_keys(":13")
    page.run("await new Promise((done) => setTimeout(done, 500))")
    assert (page.shown()[0]["problems"], page.shown()[0]["height"]) == ([], height)
    area.send_keys(")")
    page.wait("return document.querySelector('.wcr-problems p')?.innerText.includes('1.3')")
    area.send_keys("\b\b\b")
    page.wait_for(problems=[])
    page.press(*["ARROW_LEFT"] * 6)
    page.wait("return document.querySelectorAll('.wcr-problems p').length === 1")
    area.send_keys("b ")  # before the bracket
    page.wait_for(count="4 / 75" if syntax == "comfy" else "3 / 75")
    assert len(page.shown()[0]["problems"]) == 1


def test_leaving_the_box_tells_the_problem(page: RulerPage) -> None:
    area = load(page)
    area.send_keys("a (cat")
    page.wait_for(chips=["a", "(", "cat"], problems=[])
    page.run("document.activeElement.blur()")
    page.wait("return document.querySelectorAll('.wcr-problems p').length === 1")
    area.click()  # clicked into, not typed
    page.run("await new Promise((done) => setTimeout(done, 300))")
    assert len(page.shown()[0]["problems"]) == 1


def test_a_button_can_be_pressed_while_a_bracket_is_being_written(page: RulerPage) -> None:
    area = load(page)
    area.send_keys("fox:1.2, a (cat")
    click_button(page, "Write (fox:1.2)")
    page.wait(f"return (() => {{ {VALUE} }})() === '(fox:1.2), a (cat'")


@pytest.mark.parametrize(
    ("text", "button", "fixed"),
    [
        ("a (cat:13) 🦊", "Write 1.3", "a (cat:1.3) 🦊"),
        ("🦊 cat:1.2", "Write (cat:1.2)", "🦊 (cat:1.2)"),
        ("🦊 saber_(fate)", r"Write saber_\(fate\)", r"🦊 saber_\(fate\)"),
        ("a （dog：1.3） b", "Write (dog:1.3)", "a (dog:1.3) b"),
        ("（a：1.3）, 🦊, （b：0．5）", "All 2", "(a:1.3), 🦊, (b:0.5)"),
    ],
)
def test_what_was_probably_meant_is_written_by_one_click_and_undone_by_one_key(
    page: RulerPage, text: str, button: str, fixed: str
) -> None:
    area = load(page, text)
    click_button(page, button)
    assert page.run(VALUE) == fixed
    page.wait_for(problems=[])
    area.click()
    page.press("z", control=True)
    assert page.run(VALUE) == text


def test_a_scheme_says_when_there_is_nothing_for_it(page: RulerPage) -> None:
    page.load({"class_type": "WeightedCLIPTextEncode", "inputs": {"text": "a cat"}})
    idle = "nothing to change"
    assert idle not in page.wait_for(chips=["a", "cat"])["bar"]
    page.set_widget("scheme", "compel")
    page.wait(f"return document.querySelector('.wcr-bar').innerText.includes('{idle}')")
    page.set_widget("text", "a (cat:1.2)")
    page.wait(f"return !document.querySelector('.wcr-bar').innerText.includes('{idle}')")
    page.set_widget("scheme", "comfy")
    page.set_widget("text", "a dog")
    assert idle not in page.wait_for(chips=["a", "dog"])["bar"]


@pytest.mark.parametrize("mode", [2, 4], ids=["muted", "bypassed"])
def test_the_ruler_fades_with_its_node(page: RulerPage, mode: int) -> None:
    page.load_inspect("a cat", "a dog")
    page.wait("return document.querySelectorAll('.wcr-chip').length === 4")
    opacity = "return [...document.querySelectorAll('.wcr-box')].map((box) => Number(getComputedStyle(box).opacity))"
    page.run("app.graph.nodes[1].mode = args[0]", mode)
    page.wait(f"const [one, other] = (() => {{ {opacity} }})(); return one === 1 && other < 0.6")
    page.run("app.graph.nodes[1].mode = 0")
    page.wait(f"return (() => {{ {opacity} }})().every((one) => one === 1)")


def test_the_ruler_comes_back_when_the_server_does(page: RulerPage) -> None:
    page.load(inspect_node("a cat"))
    page.wait_for(chips=["a", "cat"])
    page.run(BREAK_SERVER)
    page.set_widget("text", "a dog")
    page.wait_for(isStale=True)
    page.run("app.api.fetchApi = window.fetchApi; app.api.dispatchEvent(new CustomEvent('reconnected'))")
    page.wait_for(isStale=False, chips=["a", "dog"])


# What a run refuses


PROBLEMS = """
const ruler = app.graph.getNodeById(args[0]).widgets.find(({ name }) => name === 'ruler').element;
return [...ruler.querySelectorAll('.wcr-problems p')].map((row) => row.innerText.trim());
"""
SET = """
const node = app.graph.getNodeById(args[0]);
for (const [name, value] of Object.entries(args[1])) {
    const widget = node.widgets.find((one) => one.name === name);
    widget.value = value;
    widget.callback?.(value);
}
"""
CHOICES = {"scheme": "comfy", "normalization": "none", "chunking": "as syntax", "padding": "attend"}
CHOICES |= {"pooled": "unweighted", "cleaning": "as Forge", "finest_step": "auto"}
ALWAYS = {"start": 0.0, "end": 1.0, "unit": "percent"}
DEFAULTS = {
    PLACE: {"inside": 1.0, "outside": 0.0, **ALWAYS},
    REGION: {"strength": 1.0, **ALWAYS, "blocks": "all"},
}


def workflow(case: Case, linked: dict[str, str]) -> tuple[Graph, Node]:
    """A workflow with what a case links, and the node that is edited."""
    graph = Graph()
    world = graph.add("WeightedCLIPLoadWorld", device="cpu")

    def encoded(text: str, syntax: str = "comfy") -> Node:
        return graph.add("WeightedCLIPTextEncode", clip=world[1], text=text, syntax=syntax, **CHOICES)

    made: dict[str, Callable[[], Node]] = {
        "ours": lambda: encoded(case.text, case.syntax),
        "other": lambda: encoded("a green owl"),
        "stock": lambda: graph.add("CLIPTextEncode", clip=world[1], text=case.text),
        "concatenated": lambda: graph.add(
            "ConditioningConcat", conditioning_to=made["ours"](), conditioning_from=made["other"]()
        ),
        "combined": lambda: graph.add(
            "ConditioningCombine", conditioning_1=made["ours"](), conditioning_2=made["other"]()
        ),
        "masked": lambda: graph.add(
            "ConditioningSetMask",
            conditioning=made["ours"](),
            mask=graph.add("SolidMask", value=1.0, width=64, height=64),
            strength=1.0,
            set_cond_area="default",
        ),
        "regional": lambda: graph.add(REGION, base=made["ours"](), region=made["other"](), area="", **DEFAULTS[REGION]),
        "empty": lambda: graph.add("SolidMask", value=0.0, width=64, height=64),
        "right half": lambda: graph.add("LoadImage", image=MASKED)[1],
    }
    inputs: dict[str, Any] = {key: made[value]() if key in LINKED else value for key, value in linked.items()}
    for key, value in linked.items():
        if type(value) is float and value < 0:  # which the page lets nobody type, but a link gives
            inputs[key] = graph.add("PrimitiveFloat", value=value)
    node = graph.add(case.node, **{**DEFAULTS[case.node], **inputs})
    graph.add(
        "KSampler",
        **{"model": world[0], "positive": node, "negative": made["other"](), "seed": 1, "steps": 4, "cfg": 1.0},
        **{"sampler_name": "euler", "scheduler": "simple", "denoise": 1.0},
        latent_image=graph.add("EmptyLatentImage", width=case.size, height=case.size, batch_size=1),
    )
    return graph, node


def is_linked(case: Case) -> bool:
    """Whether what is wrong comes by a link."""
    return any(key in LINKED or (isinstance(value, float) and value < 0) for key, value in case.changes.items())


def load_case(page: RulerPage, case: Case, inputs: dict[str, str]) -> int:
    """Open the workflow; the id of the node that is edited."""
    graph, node = workflow(case, inputs)
    nodes = graph.nodes.values()
    num_rulers = sum(node["class_type"].startswith("WeightedCLIP") for node in nodes) - 1  # Load Small World has none
    page.load(*nodes, num_rulers=num_rulers)
    return int(node.id)


def wait_for_problems(page: RulerPage, number: int, *messages: str) -> list[str]:
    """Wait until a node has as many problems as messages, each in one; what there is, after a while."""
    end = time.monotonic() + 20
    shown: list[str] = []
    while time.monotonic() < end:
        shown = page.run(PROBLEMS, number)
        if len(shown) == len(messages) and all(map(str.__contains__, shown, messages)):
            break
        time.sleep(0.03)
    return shown


@pytest.fixture
def masked(ruler_server: ComfyServer) -> None:
    """A picture that is painted in its right half, where Load Image finds it."""
    picture = Image.new("RGBA", (64, 64), (0, 0, 0, 255))
    picture.paste((0, 0, 0, 0), (32, 0, 64, 64))
    folder = ruler_server.base / "input"
    folder.mkdir(exist_ok=True)
    picture.save(folder / MASKED)


def test_what_a_run_would_refuse_is_said_before_it_and_goes_when_it_is_corrected(page: RulerPage, masked: None) -> None:
    missed = []
    opened, number = "", 0
    for case in PLACED_WRONG:
        is_typed = bool(case.changes) and not is_linked(case)
        if not is_typed or opened != case.node:
            number = load_case(page, case, {**case.right} if is_typed else case.inputs)
            opened = case.node if is_typed else ""
        if is_typed:
            missed += [(f"right {case}", shown) for shown in [wait_for_problems(page, number)] if shown]
            page.run(SET, number, case.changes)
        shown = wait_for_problems(page, number, case.message)
        missed += [(str(case), shown)] if len(shown) != 1 or case.message not in shown[0] else []
        page.run(SET, number, {key: {**DEFAULTS[case.node], **case.right}[key] for key in case.changes if is_typed})
    assert missed == []
    assert page.run("return window.numQueued") == 0


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a (dog:0..1:5) on (grass:0..1:5)", "these are 25 prompts"),
        ("((dog:0..1:5) on grass:0..1:6)", "these are 30 prompts"),
        ("a dog", "write one or two weights as a range"),
        ("a (dog:0..1:1)", "must be from 2 to 32"),
        ("dog:0..1:5)", "no bracket in front"),
    ],
)
def test_a_sweep_says_before_a_run_what_is_wrong(page: RulerPage, text: str, message: str) -> None:
    page.load({"class_type": "WeightedCLIPSweep", "inputs": {"text": text}})
    assert any(message in shown for shown in wait_for_problems(page, 1, message))
    page.run(SET, 1, {"text": "a (dog:0..1:5)"})
    assert wait_for_problems(page, 1) == []
    shown = page.wait_for(labels=[f"dog {weight}" for weight in ("0", "0.25", "0.5", "0.75", "1")])
    assert "5 pictures" in shown["bar"]


def test_a_sweep_of_many_is_asked_for_and_shows_what_applies(page: RulerPage) -> None:
    page.load({"class_type": "WeightedCLIPSweep", "inputs": {"text": "a (dog:0..13:14) (cat:0..1:2)"}})
    assert "these are 28 prompts" in wait_for_problems(page, 1, "these are 28 prompts", "weight 11", "")[0]
    page.set_widget("many", True)
    page.wait("return !document.querySelector('.wcr-problems')?.innerText.includes('these are')")
    page.wait("return document.querySelector('.wcr-bar').innerText.includes('28 pictures')")
    if page.is_nodes_2:
        return
    seen = page.run("return app.graph.nodes[0].widgets.filter((one) => !one.hidden).map(({ name }) => name)")
    assert {"text", "syntax", "scheme"} <= {*seen} and not {*seen} & {"normalization", "padding", "finest_step"}


def test_a_lora_that_is_not_there_is_named_while_it_is_typed(page: RulerPage, ruler_server: ComfyServer) -> None:
    file = ruler_server.base / "models" / "loras" / "there.safetensors"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(b"")
    page.load({"class_type": "WeightedCLIPLoadPromptLoras", "inputs": {"text": "a cat <lora:gone:0.8>"}})
    (shown,) = wait_for_problems(page, 1, "There is no LoRA “gone”")
    assert "There is no LoRA “gone”" in shown
    page.run(SET, 1, {"text": "a cat <lora:there:0.8>"})
    assert wait_for_problems(page, 1) == []
    file.unlink()  # the server is other tests' too


OFFERED = """
const ruler = app.graph.getNodeById(args[0]).widgets.find(({ name }) => name === 'ruler').element;
return [...ruler.querySelectorAll('.wcr-offered')].map((chip) => [chip.innerText.trim(), chip.ariaPressed === 'true']);
"""
INPUT = "return app.graph.getNodeById(args[0]).widgets.find(({ name }) => name === args[1]).value"
CLICK = """
const ruler = app.graph.getNodeById(args[0]).widgets.find(({ name }) => name === 'ruler').element;
ruler.querySelectorAll('.wcr-offered')[args[1]].click();
"""


def words_offered(page: RulerPage, number: int, chosen: list[str]) -> list[str]:
    """Words on chips, once those are chosen."""
    wanted = "const shown = (() => { %s })(); return shown.length && shown.filter(([, is]) => is).map(([text]) => text)"
    page.wait(
        f"return JSON.stringify((() => {{ {wanted % OFFERED} }})()) === args[1]",
        number,
        json.dumps(chosen, separators=(",", ":")),
    )
    return [text for text, _ in page.run(OFFERED, number)]


def test_the_words_of_the_prompt_are_offered_to_the_phrase(page: RulerPage) -> None:
    number = load_case(page, Case(PLACE, {}), {"conditioning": "ours", "phrase": "", "area": "left half"})
    words = words_offered(page, number, [])
    assert words == ["a", "red", "cat", "and", "a", "blue", "dog", "on", "a", "mat"]
    wait_for_problems(page, number, "phrase is empty")
    page.run(CLICK, number, 1)
    assert page.run(INPUT, number, "phrase") == "red"
    words_offered(page, number, ["red"])
    page.run(CLICK, number, 2)
    assert page.run(INPUT, number, "phrase") == "red cat"
    words_offered(page, number, ["red", "cat"])
    assert wait_for_problems(page, number) == []
    # by keys
    page.run(
        "const ruler = app.graph.getNodeById(args[0]).widgets.find(({ name }) => name === 'ruler').element;"
        "ruler.querySelector('.wcr-offered').focus()",
        number,
    )
    page.press(*["ARROW_RIGHT"] * 6, "ENTER")
    assert page.run(INPUT, number, "phrase") == "dog"
    words_offered(page, number, ["dog"])
    assert page.run("return document.activeElement.innerText") == "dog"
    # the prompt is typed on
    encoder = page.run("return app.graph.nodes.find(({ comfyClass }) => comfyClass === 'WeightedCLIPTextEncode').id")
    page.run(SET, encoder, {"text": "an owl"})
    assert wait_for_problems(page, number, "“dog” is not in the prompt")
    assert words_offered(page, number, []) == ["an", "owl"]


def test_words_are_offered_to_watch_words_line_by_line(page: RulerPage) -> None:
    graph, _ = workflow(Case(PLACE, {}), {"conditioning": "ours", "phrase": "red", "area": ""})
    watch = graph.add("WeightedCLIPWatch", conditioning=["2", 0], words="", every=1, layers="all")
    maps = graph.add("WeightedCLIPWordMaps", watch=watch[1], scale="one for all", word="")
    page.load(*graph.nodes.values(), num_rulers=5)
    number = int(watch.id)
    words_offered(page, number, [])
    page.run(CLICK, number, 1)
    page.run(CLICK, number, 2)
    assert page.run(INPUT, number, "words") == "red\ncat"
    words_offered(page, number, ["red", "cat"])
    page.run(CLICK, number, 1)
    assert page.run(INPUT, number, "words") == "cat"
    page.wait(f"return (() => {{ {OFFERED} }})().map(([text]) => text).join() === 'cat'", int(maps.id))
    page.run(CLICK, int(maps.id), 0)
    assert page.run(INPUT, int(maps.id), "word") == "cat"
    page.run(SET, int(maps.id), {"word": "dog"})
    assert "must be one that is watched" in wait_for_problems(page, int(maps.id), "must be one that is watched")[0]


@pytest.mark.parametrize("way", ["subgraph", "reroute", "bypassed"])
def test_the_prompt_is_found_behind_other_nodes(page: RulerPage, way: str) -> None:
    number = load_case(page, Case(PLACE, {}), {"conditioning": "combined", "phrase": "unicorn", "area": "left half"})
    assert wait_for_problems(page, number, "“unicorn” is not in the prompt")
    page.run(
        """
        const [place, way] = [app.graph.getNodeById(args[0]), args[1]];
        const combine = app.graph.nodes.find(({ comfyClass }) => comfyClass === 'ConditioningCombine');
        if (way === 'bypassed') combine.mode = 4;
        if (way === 'subgraph') app.graph.convertToSubgraph(new Set([combine]));
        if (way === 'reroute') {
            const reroute = LiteGraph.createNode('Reroute');
            app.graph.add(reroute);
            combine.connect(0, reroute, 0);
            reroute.connect(0, place, 0);
        }
        """,
        number,
        way,
    )
    page.run(SET, number, {"phrase": "owl"})
    messages = ["“owl” is not in the prompt"] if way == "bypassed" else []
    assert len(wait_for_problems(page, number, *messages)) == len(messages)
    page.run(SET, number, {"phrase": "griffin"})
    assert wait_for_problems(page, number, "“griffin” is not in the prompt")
