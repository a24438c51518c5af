"""Everything around the nodes: texts, help pages, translations, example workflows, and the links of every page.

Covers: every input and output is explained; the ruler knows every prompt; locales have the keys of the nodes, and
English their texts; the saved workflows fit the nodes; every node has its help page; no link leads nowhere.
That a real ComfyUI shows and runs all of it is tested in tests/hosts/test_templates.py.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from weighted_clip.nodes import NODE_CLASS_MAPPINGS, NODE_DISPLAY_NAME_MAPPINGS
from weighted_clip.nodes.base.node import CATEGORY, EncodeNode
from weighted_clip.nodes.old_workflows import OldNodes
from weighted_clip.workshop.generate import COMPILED

ROOT = Path(__file__).resolve().parents[1]
HELP = ROOT / "web" / "comfyui" / "docs"
LOCALES = ROOT / "locales"
WORLD = "WeightedCLIPLoadWorld"
"""Node of a model that comes with the pack."""
TEMPLATES = sorted((ROOT / "example_workflows").glob("*.json"))
PAGES = [
    path
    for folder in (ROOT, ROOT / "docs", ROOT / "docs" / "reference", ROOT / "docs" / "evidence", HELP)
    for path in sorted(folder.glob("*.md"))
]

CHECKPOINTS = ["v1-5-pruned-emaonly-fp16.safetensors", "sd_xl_base_1.0.safetensors"]
"""Those of ComfyUI's own templates."""
WHOLE_CLIP = "clip-vit-large-patch14.safetensors"
DVAE = "dall-e.safetensors"
DALLE = "dalle.safetensors"
CONTROLS = ("fixed", "increment", "decrement", "randomize")
"""Possible values of the front end's widget after a seed."""
TITLE_HEIGHT = 30
"""Height of a node's title on the canvas, above its position."""
FOLDED_WIDTH = 225
"""Width of a folded node with a short title in Nodes 2.0; on the canvas it is narrower."""
FIT_SHARE, FIT_PADDING = 0.75, 10
"""The template dialog fits the nodes, with so many pixels around them, into this share of the page's width and height.
The canvas is as large as the page, and the view that the file has is not used (front end 1.47)."""
WINDOWS = {(1366, 768): 0.6, (1920, 1080): 0.7}
"""Sizes of a page, and the least zoom in it: below 0.5 the canvas draws blank boxes."""
pytestmark = pytest.mark.usefixtures("folders")


@pytest.fixture
def folders(monkeypatch: pytest.MonkeyPatch) -> None:
    """The host's folders, with the files that the workflows name."""
    paths = ModuleType("folder_paths")
    files = {"checkpoints": [*CHECKPOINTS, DALLE], "clip_vision": [WHOLE_CLIP], "vae": [DVAE]}
    paths.get_filename_list = lambda kind: files.get(kind, [])
    paths.get_input_directory = lambda: "no folder"
    monkeypatch.setitem(sys.modules, "folder_paths", paths)


def inputs_of(node_id: str) -> dict[str, tuple[Any, dict[str, Any]]]:
    """Type and options of every input, in order."""
    sections = NODE_CLASS_MAPPINGS[node_id].INPUT_TYPES()
    return {
        name: (kind, options[0] if options else {})
        for section in ("required", "optional")
        for name, (kind, *options) in sections.get(section, {}).items()
    }


def widgets_of(node_id: str) -> dict[str, tuple[Any, dict[str, Any]]]:
    """The inputs that the front end draws as widgets."""
    return {
        name: (kind, options)
        for name, (kind, options) in inputs_of(node_id).items()
        if isinstance(kind, list) or (kind in ("INT", "FLOAT", "STRING", "BOOLEAN") and not options.get("forceInput"))
    }


def read_json(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


# ---- nodes


@pytest.mark.parametrize("node_id", NODE_CLASS_MAPPINGS)
def test_every_node_and_all_that_goes_in_and_out_is_explained(node_id: str) -> None:
    node = NODE_CLASS_MAPPINGS[node_id]
    assert NODE_DISPLAY_NAME_MAPPINGS[node_id] not in ("", node_id)
    assert node.DESCRIPTION.endswith(".")
    assert len(node.SEARCH_ALIASES) >= 3
    assert {name: options for name, (_, options) in inputs_of(node_id).items() if not options.get("tooltip")} == {}
    assert len(node.RETURN_TYPES) == len(node.RETURN_NAMES) == len(node.OUTPUT_TOOLTIPS)
    assert all(node.OUTPUT_TOOLTIPS)


# ---- locales


def leaves(texts: Any, path: tuple[str, ...] = ()) -> dict[tuple[str, ...], str]:
    if not isinstance(texts, dict):
        return {path: texts}
    return {key: text for name, value in texts.items() for key, text in leaves(value, (*path, name)).items()}


@pytest.mark.parametrize("language", ["en", "zh"])
def test_no_locale_holds_what_the_front_end_would_compile(language: str) -> None:
    for path in (LOCALES / language).glob("*.json"):
        assert {key: text for key, text in leaves(read_json(path)).items() if COMPILED & set(text)} == {}


def test_the_setting_is_translated() -> None:
    scripts = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "web" / "comfyui").rglob("*.js"))
    english_texts, chinese_texts = (read_json(LOCALES / language / "settings.json") for language in ("en", "zh"))
    assert leaves(english_texts).keys() == leaves(chinese_texts).keys()
    for key, texts in english_texts.items():
        for text in (key.replace("_", "."), *texts.values()):
            assert json.dumps(text) in scripts
    categories = [read_json(LOCALES / language / "main.json")["settingsCategories"] for language in ("en", "zh")]
    assert categories[0].keys() == categories[1].keys()
    assert all(json.dumps(name) in scripts for name in categories[0])


def test_the_menus_of_nodes_are_translated() -> None:
    menus = {part for node in NODE_CLASS_MAPPINGS.values() for part in node.CATEGORY.split("/")} - {CATEGORY}
    chinese = read_json(LOCALES / "zh" / "main.json")["nodeCategories"]
    assert chinese.keys() == menus
    assert all(chinese.values())


# ---- help pages


def test_every_node_has_a_help_page_and_every_page_and_picture_is_used() -> None:
    assert {path.stem for path in HELP.glob("*.md")} == set(NODE_CLASS_MAPPINGS)
    assert {path.parent.name for path in HELP.glob("*/zh.md")} == set(NODE_CLASS_MAPPINGS)
    used = {picture for path in HELP.glob("*.md") for picture in pictures(path)}
    assert used == {path for path in HELP.rglob("*") if path.is_file() and path.suffix != ".md"}


def parts_of(page: Path) -> tuple[list[str], dict[str, str]]:
    """Paragraphs that a help page shows, and what it folds by its headings."""
    text = page.read_text(encoding="utf-8")
    shown, *folded = re.split(r"\n<details>\n<summary>", text)
    assert all(one.count("\n</details>\n") == 1 for one in folded)
    return shown.strip().split("\n\n"), dict(one.split("\n</details>")[0].split("</summary>\n\n") for one in folded)


@pytest.mark.parametrize("node_id", NODE_CLASS_MAPPINGS)
def test_a_help_page_speaks_of_inputs_and_templates_that_exist(node_id: str) -> None:
    text = (HELP / f"{node_id}.md").read_text(encoding="utf-8")
    inputs = parts_of(HELP / f"{node_id}.md")[1]["Inputs"]
    named = [name for line in re.findall(r"^- \*\*([^*]+)\*\*", inputs, re.MULTILINE) for name in line.split(", ")]
    assert named
    assert set(named) <= inputs_of(node_id).keys()
    templates = {name for match in re.findall(r"template \*([^*]+)\*", text) for name in [" ".join(match.split())]}
    assert templates <= {path.stem for path in TEMPLATES}


def texts_in(texts: Any) -> list[str]:
    return [text for value in texts.values() for text in ([value] if isinstance(value, str) else texts_in(value))]


def pictures(page: Path) -> list[Path]:
    return [(page.parent / name) for name in re.findall(r"!\[[^]]+\]\(([^)]+)\)", page.read_text(encoding="utf-8"))]


# ---- links


def anchors(page: Path) -> set[str]:
    """Anchors that GitHub makes from a page's headings."""
    result: set[str] = set()
    for heading in re.findall(r"^#+ +(.+?) *$", without_code_blocks(page), re.MULTILINE):
        slug = re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
        number = 0
        while (f"{slug}-{number}" if number else slug) in result:
            number += 1
        result.add(f"{slug}-{number}" if number else slug)
    return result


def without_code_blocks(page: Path) -> str:
    return re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)


def links(page: Path) -> Iterator[str]:
    text = re.sub(r"`[^`\n]*`", "", without_code_blocks(page))
    yield from re.findall(r"\]\(([^)\s]+)\)", text)
    yield from re.findall(r"^\[[^]]+\]: *(\S+)", text, re.MULTILINE)


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_link_of_a_page_leads_nowhere(page: Path) -> None:
    for link in links(page):
        if re.match(r"(https?|mailto):", link):
            continue
        name, _, anchor = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        assert target.exists(), link
        if anchor:
            assert anchor in anchors(target), link


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_files_of_ours_that_a_page_names_exist(page: Path) -> None:
    folders = "|".join(["docs", "locales", *(path.parent.name for path in ROOT.glob("*/__init__.py"))])
    code = " ".join(re.findall(r"`([^`\n]*)`", page.read_text(encoding="utf-8")))
    named = {name.rstrip(".") for name in re.findall(rf"(?<![\w/.])(?:{folders})/[\w./*-]*", code)}
    whole = [name for name in named if not re.search(r"\*|NAME", name)]
    assert [name for name in whole if not (ROOT / name).exists()] == []


# ---- example workflows


def test_there_are_workflows_and_each_has_a_thumbnail() -> None:
    names = {path.stem for path in TEMPLATES}
    assert len(names) >= 7
    assert {path.name for path in (ROOT / "example_workflows").iterdir()} == {
        f"{name}.{suffix}" for name in names for suffix in ("json", "jpg")
    }


@pytest.mark.parametrize("path", TEMPLATES, ids=lambda path: path.stem)
def test_nodes_of_ours_in_a_workflow_fit_their_classes(path: Path) -> None:
    ours = [node for node in read_json(path)["nodes"] if node["type"].startswith("WeightedCLIP")]
    assert ours
    for node in ours:
        node_class = NODE_CLASS_MAPPINGS[node["type"]]
        assert [slot["name"] for slot in node["outputs"]] == list(node_class.RETURN_NAMES)
        assert [slot["type"] for slot in node["outputs"]] == list(node_class.RETURN_TYPES)
        inputs = inputs_of(node["type"])
        for slot in node["inputs"]:
            kind, _ = inputs[slot["name"]]
            assert slot["type"] == ("COMBO" if isinstance(kind, list) else kind)
        widgets = widgets_of(node["type"])
        linked = {slot["name"] for slot in node["inputs"] if slot["link"] is not None}
        assert node_class.INPUT_TYPES()["required"].keys() - widgets.keys() <= linked
        values = iter(node["widgets_values"])
        for name, (kind, options) in widgets.items():
            value = next(values)
            assert is_valid(value, kind, options), f"{node['type']}, {name}: {value!r}"
            if options.get("control_after_generate"):
                assert next(values) in CONTROLS
        assert list(values) == []


def is_valid(value: Any, kind: Any, options: dict[str, Any]) -> bool:
    """Whether a widget may have a value, as ComfyUI checks it."""
    if isinstance(kind, list):
        return value in kind
    if kind == "STRING":
        return isinstance(value, str)
    if kind == "BOOLEAN":
        return isinstance(value, bool)
    is_number = isinstance(value, int if kind == "INT" else (int, float)) and not isinstance(value, bool)
    return is_number and options["min"] <= value <= options["max"]


@pytest.mark.parametrize("path", TEMPLATES, ids=lambda path: path.stem)
def test_the_links_of_a_workflow_are_consistent(path: Path) -> None:
    workflow = read_json(path)
    nodes = {node["id"]: node for node in workflow["nodes"]}
    assert len(nodes) == len(workflow["nodes"])
    assert max(nodes) <= workflow["last_node_id"]
    numbers = [link[0] for link in workflow["links"]]
    assert len(set(numbers)) == len(numbers)
    assert max(numbers) <= workflow["last_link_id"]
    for number, source, output, target, slot, kind in workflow["links"]:
        sender, receiver = nodes[source]["outputs"][output], nodes[target]["inputs"][slot]
        assert receiver["link"] == number
        assert number in sender["links"]
        assert sender["type"] == kind
        assert "*" in (kind, receiver["type"]) or kind in receiver["type"].split(",")
    ends = [slot["link"] for node in nodes.values() for slot in node.get("inputs", []) if slot["link"] is not None]
    starts = [link for node in nodes.values() for slot in node.get("outputs", []) for link in slot["links"] or ()]
    assert sorted(ends) == sorted(starts) == sorted(numbers)


@pytest.mark.parametrize("path", TEMPLATES, ids=lambda path: path.stem)
def test_a_workflow_is_tidy_and_says_what_to_look_at(path: Path) -> None:
    workflow = read_json(path)
    for one, other in combinations(workflow["nodes"], 2):
        (left, top, right, bottom), (other_left, other_top, other_right, other_bottom) = ends(one), ends(other)
        is_beside = right <= other_left or other_right <= left
        assert is_beside or bottom <= other_top or other_bottom <= top, f"{one['type']} and {other['type']}"
    note, start = [node for node in workflow["nodes"] if node["type"] == "MarkdownNote"]
    assert (note["title"], start["title"]) == ("Note", "Start here")
    assert note.get("bgcolor") == start.get("bgcolor")
    assert "`" not in note["widgets_values"][0] + start["widgets_values"][0]  # Nodes 2.0 draws code blue on blue
    assert len(re.findall(r"[.!?](?:\s|$)", note["widgets_values"][0])) >= 2
    assert len(workflow["groups"]) >= 3
    loaders = [node for node in workflow["nodes"] if node["type"] == "CheckpointLoaderSimple"]
    without = ("WeightedCLIPLoadDVAE", "WeightedCLIPLoadDalle", WORLD)
    others = [node for node in workflow["nodes"] if node["type"] in without]
    assert loaders or others
    for loader in loaders:
        assert loader["widgets_values"][0] in CHECKPOINTS
        assert [model["name"] for model in loader["properties"]["models"]] == loader["widgets_values"]


@pytest.mark.parametrize("path", TEMPLATES, ids=lambda path: path.stem)
@pytest.mark.parametrize(("window", "least"), WINDOWS.items(), ids=lambda value: str(value))
def test_a_workflow_can_be_read_when_the_template_dialog_has_opened_it(
    path: Path, window: tuple[int, int], least: float
) -> None:
    boxes = [ends({**node, "flags": {}}) for node in read_json(path)["nodes"]]  # Nodes 2.0 folds them afterwards
    width = max(box[2] for box in boxes) - min(box[0] for box in boxes) + 2 * FIT_PADDING
    height = max(box[3] for box in boxes) - min(box[1] for box in boxes) + 2 * FIT_PADDING
    assert FIT_SHARE * min(window[0] / width, window[1] / height) >= least


def ends(node: dict[str, Any]) -> tuple[float, float, float, float]:
    """Left, top, right and bottom of a node with its title."""
    (x, y), (width, height) = node["pos"], node["size"]
    if (node.get("flags") or {}).get("collapsed"):
        width, height = FOLDED_WIDTH, 0
    return x, y - TITLE_HEIGHT, x + width, y + height


def test_the_workflows_show_every_node_that_encodes() -> None:
    shown = {node["type"] for path in TEMPLATES for node in read_json(path)["nodes"]}
    nodes = NODE_CLASS_MAPPINGS.items()
    encoding = {name for name, node in nodes if issubclass(node, EncodeNode) and not issubclass(node, OldNodes)}
    assert encoding <= shown
