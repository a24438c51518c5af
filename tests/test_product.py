"""Everything around the nodes: texts, help pages, translations, example workflows, and the links of every page.

Covers: every input and output is explained; the ruler knows every prompt; locales have the keys of the nodes, and
English their texts; the saved workflows fit the nodes; help pages have an example and a picture; no link leads nowhere;
pages for users are short.
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
from PIL import Image
from weighted_clip.nodes import NODE_CLASS_MAPPINGS, NODE_DISPLAY_NAME_MAPPINGS
from weighted_clip.nodes.base.node import CATEGORY, EncodeNode
from weighted_clip.nodes.old_workflows import OldNodes
from weighted_clip.weighting.options import OPTIONS
from weighted_clip.workshop.generate import COMPILED

ROOT = Path(__file__).resolve().parents[1]
HELP = ROOT / "web" / "comfyui" / "docs"
LOCALES = ROOT / "locales"
LOADERS = {
    "WeightedCLIPLoad": "",  # of the same file as Load Checkpoint
    "WeightedCLIPLoadFull": "clip_vision",
    "WeightedCLIPLoadDVAE": "vae",
    "WeightedCLIPLoadDalle": "checkpoints",
}
"""Nodes that load a file, and the folder in which a template expects it."""
WORLD = "WeightedCLIPLoadWorld"
"""Node of a model that comes with the pack."""
TEMPLATES = sorted((ROOT / "example_workflows").glob("*.json"))
PAGES = [
    path
    for folder in (ROOT, ROOT / "docs", ROOT / "docs" / "reference", ROOT / "docs" / "evidence", HELP)
    for path in sorted(folder.glob("*.md"))
]
USER_PAGES = [path for path in PAGES if path.parent in (ROOT / "docs", HELP)] + [ROOT / "README.md"]
MAX_WORDS = 1200

CHECKPOINTS = ["v1-5-pruned-emaonly-fp16.safetensors", "sd_xl_base_1.0.safetensors"]
"""Those of ComfyUI's own templates."""
WHOLE_CLIP = "clip-vit-large-patch14.safetensors"
DVAE = "dall-e.safetensors"
DALLE = "dalle.safetensors"
CONTROLS = ("fixed", "increment", "decrement", "randomize")
"""Possible values of the front end's widget after a seed."""
MAX_PICTURE_BYTES = 60_000
MAX_PICTURE_WIDTH = 360
"""Pixels. The panel that shows help pages is hardly wider."""
MAX_THUMBNAIL_BYTES = 50_000
"""They are 400 pixels wide, and all of them go with every download from the Comfy Registry."""
TITLE_HEIGHT = 30
FOLDED_WIDTH = 225
"""Width of a folded node with a short title in Nodes 2.0; on the canvas it is narrower."""
FIT_SHARE, FIT_PADDING = 0.75, 10
"""The template dialog fits the nodes, with so many pixels around them, into this share of the page's width and height.
The canvas is as large as the page, and the view that the file has is not used (front end 1.47)."""
WINDOWS = {(1366, 768): 0.6, (1920, 1080): 0.7}
"""Sizes of a page, and the least zoom in it: below 0.5 the canvas draws blank boxes."""
"""Height of a node's title on the canvas, above its position."""
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


@pytest.mark.parametrize("node_id", NODE_CLASS_MAPPINGS)
def test_no_tooltip_speaks_of_an_input_that_the_node_has_not(node_id: str) -> None:
    inputs = inputs_of(node_id)
    options = {*OPTIONS, "hide", "softmax"} - inputs.keys() - ({"syntax"} if "from" in inputs else set())
    told = [options["tooltip"] for _, options in inputs.values()]
    assert [text for text in told if set(re.findall(r"\b[Ww]ith (\w+)", text)) & options] == []


@pytest.mark.parametrize("language", ["en", "zh"])
def test_no_locale_holds_what_the_front_end_would_compile(language: str) -> None:
    for path in (LOCALES / language).glob("*.json"):
        assert {key: text for key, text in leaves(read_json(path)).items() if COMPILED & set(text)} == {}


@pytest.mark.parametrize("node_id", NODE_CLASS_MAPPINGS)
def test_translated_tooltips_name_every_value_of_a_menu_that_the_english_ones_name(node_id: str) -> None:
    inputs = read_json(LOCALES / "zh" / "nodeDefs.json")[node_id]["inputs"]
    for name, (kind, options) in inputs_of(node_id).items():
        for value in kind if isinstance(kind, list) else ():
            if re.search(rf"(?<!\w){re.escape(value)}(?!\w)[:,]", options["tooltip"]):
                assert value in inputs[name]["tooltip"], f"{node_id}, {name}"


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


@pytest.mark.parametrize("page", sorted(HELP.rglob("*.md")), ids=lambda page: page.relative_to(HELP).as_posix())
def test_a_help_page_begins_with_a_picture_and_three_sentences_and_folds_the_rest(page: Path) -> None:
    (title, picture, *captions, lead), folded = parts_of(page)
    assert title.startswith("# ")
    assert picture.startswith("![")
    sentence = r"[.!?](?=\s|$|\*)|[。！？]"
    assert [len(re.findall(sentence, one)) for one in captions] in ([], [1])
    assert all(one.startswith("*") for one in captions)
    assert 1 <= len(re.findall(sentence, lead)) <= 3
    assert len(folded) >= 3
    assert not re.search(r"^#+ ", "\n".join([lead, *folded.values()]), re.MULTILINE)


@pytest.mark.parametrize("node_id", NODE_CLASS_MAPPINGS)
def test_a_help_page_has_a_title_an_example_and_a_picture(node_id: str) -> None:
    shown, folded = parts_of(HELP / f"{node_id}.md")
    assert shown[0] == f"# {NODE_DISPLAY_NAME_MAPPINGS[node_id]}"
    assert {"Example", "Inputs", "Worth knowing"} <= folded.keys()
    assert "`" in folded["Example"]  # something to type in
    (picture,) = pictures(HELP / f"{node_id}.md")
    assert picture.stat().st_size < MAX_PICTURE_BYTES
    with Image.open(picture) as opened:
        assert opened.format == "PNG"
        assert opened.width <= MAX_PICTURE_WIDTH


@pytest.mark.parametrize("node_id", NODE_CLASS_MAPPINGS)
def test_a_help_page_speaks_of_inputs_and_templates_that_exist(node_id: str) -> None:
    text = (HELP / f"{node_id}.md").read_text(encoding="utf-8")
    inputs = parts_of(HELP / f"{node_id}.md")[1]["Inputs"]
    named = [name for line in re.findall(r"^- \*\*([^*]+)\*\*", inputs, re.MULTILINE) for name in line.split(", ")]
    assert named
    assert set(named) <= inputs_of(node_id).keys()
    templates = {name for match in re.findall(r"template \*([^*]+)\*", text) for name in [" ".join(match.split())]}
    assert templates <= {path.stem for path in TEMPLATES}


@pytest.mark.parametrize("page", sorted(HELP.rglob("zh.md")), ids=lambda page: page.parent.name)
def test_a_chinese_page_has_the_parts_and_the_code_of_the_english_one(page: Path) -> None:
    """ComfyUI looks for pictures next to the English page, whatever the language."""
    node_id = page.parent.name
    names = read_json(LOCALES / "zh" / "nodeDefs.json")[node_id]
    texts = [path.read_text(encoding="utf-8") for path in (HELP / f"{node_id}.md", page)]
    assert texts[1].startswith(f"# {names['display_name']}\n")
    for pattern in (
        r"^#+ |<summary>",
        r"^- \*\*",
        r"^\| `[^`]+` \|",
        r"!\[[^]]+\]\(([^)]+)\)",
        r"(?:template|模板)\s\*[^*]+\*",
    ):
        english, chinese = (re.findall(pattern, text, re.MULTILINE) for text in texts)
        assert len(chinese) == len(english), pattern
    assert re.findall(r"!\[[^]]+\]\(([^)]+)\)", texts[1]) == re.findall(r"!\[[^]]+\]\(([^)]+)\)", texts[0])
    english, chinese = (set(re.findall(r"(?s)```.*?```|`[^`]+`", text)) for text in texts)
    assert english - {f"`{name}`" for name in inputs_of(node_id)} == chinese
    inputs = parts_of(page)[1]["输入"]
    named = [name for line in re.findall(r"^- \*\*([^*]+)\*\*", inputs, re.MULTILINE) for name in line.split("、")]
    assert set(named) <= {given["name"] for given in names["inputs"].values()}


RETIRED = (
    *("CLIP Text Encode (Weighted)", "CLIP Text Encode SDXL (Weighted)", "Down-Weight (Masked Blend)"),
    *("Mask Control", "Bind Phrases", "Inspect Prompt", "Rerank by CLIP", "CLIP Similarity Matrix", "A1111 Prompt"),
    *("CLIP文本编码（加权）", "降低权重（遮罩混合）", "遮罩控制", "检查提示词", "按CLIP重排", "CLIP相似度矩阵"),
)
"""Display names that nodes no longer have."""
SPOKEN = [
    *(*PAGES, *TEMPLATES, *HELP.rglob("*.md"), *LOCALES.rglob("*.json")),
    *(path for room in ("hosts", "nodes", "weighting", "web", "encoder") for path in (ROOT / room).rglob("*.[pj]*")),
]
"""Files with texts that users read, and that name nodes."""


def test_no_text_names_a_node_by_a_name_that_it_no_longer_has() -> None:
    found = {
        (path.relative_to(ROOT), name)
        for path in {*SPOKEN} - {ROOT / "CHANGELOG.md"}
        if path.suffix in (".md", ".json", ".py", ".js")
        for text in [" ".join(path.read_text(encoding="utf-8").split())]
        for name in RETIRED
        if name in text
    }
    assert found == set()


def test_chinese_texts_name_nodes_in_chinese() -> None:
    chinese = {node_id: names["display_name"] for node_id, names in read_json(LOCALES / "zh" / "nodeDefs.json").items()}
    others = {NODE_DISPLAY_NAME_MAPPINGS[node_id] for node_id, name in chinese.items()} - set(chinese.values())
    told = [text for names in read_json(LOCALES / "zh" / "nodeDefs.json").values() for text in texts_in(names)]
    told += read_json(ROOT / "web" / "comfyui" / "ruler" / "languages" / "zh.json").values()
    told += [re.sub(r"`[^`]*`|\*[^*]*\*", "", page.read_text(encoding="utf-8")) for page in HELP.rglob("zh.md")]
    assert [(name, text[:200]) for text in told for name in others if name in text] == []


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


def test_pages_and_sections_that_the_code_names_exist() -> None:
    modules = [path for path in ROOT.glob("*/**/*.py") if ".venv" not in path.relative_to(ROOT).parts]
    named = {page for path in modules for page in re.findall(r"docs/[\w/-]+\.md", path.read_text(encoding="utf-8"))}
    assert [page for page in named if not (ROOT / page).exists()] == []
    cited = {
        (page, title)
        for path in modules
        for page, titles in re.findall(
            r'(docs/[\w/-]+\.md), ((?:"[^"]+"(?: and )?)+)', path.read_text(encoding="utf-8")
        )
        for title in re.findall(r'"([^"]+)"', titles)
    }
    assert len(cited) > 15
    for page, title in cited:
        headings = re.findall(r"^#+ +(.+?) *$", without_code_blocks(ROOT / page), re.MULTILINE)
        assert title in headings, f"{page}, {title}"


def test_links_are_found() -> None:
    assert sum(len(list(links(page))) for page in PAGES) > 20
    assert "docs/weighting.md" in links(ROOT / "README.md")
    assert "licence" in anchors(ROOT / "README.md")


# ---- length


@pytest.mark.parametrize("page", USER_PAGES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_a_page_for_users_is_short(page: Path) -> None:
    words = sum(bool(re.search(r"\w", word)) for word in page.read_text(encoding="utf-8").split())
    assert words <= MAX_WORDS, "move rules and figures to docs/reference or docs/evidence"


# ---- example workflows


def test_there_are_workflows_and_each_has_a_thumbnail() -> None:
    names = {path.stem for path in TEMPLATES}
    assert len(names) >= 7
    assert {path.name for path in (ROOT / "example_workflows").iterdir()} == {
        f"{name}.{suffix}" for name in names for suffix in ("json", "jpg")
    }


@pytest.mark.parametrize("path", TEMPLATES, ids=lambda path: path.stem)
def test_a_thumbnail_is_small_and_square(path: Path) -> None:
    thumbnail = path.with_suffix(".jpg")
    assert thumbnail.stat().st_size <= MAX_THUMBNAIL_BYTES
    with Image.open(thumbnail) as opened:
        assert opened.format == "JPEG"
        assert opened.width == opened.height  # as the library's cards are


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
def test_a_workflow_says_where_its_files_are_chosen(path: Path) -> None:
    """Each node that names a file, and the folder of that file; the note is below one of these, or the world's."""
    workflow = read_json(path)
    (start,) = [node for node in workflow["nodes"] if node.get("title") == "Start here"]
    (text,) = start["widgets_values"]
    loaders = [node for node in workflow["nodes"] if node["type"] in (*LOADERS, "CheckpointLoaderSimple")]
    titles = {**NODE_DISPLAY_NAME_MAPPINGS, "CheckpointLoaderSimple": "Load Checkpoint"}
    for loader in loaders:
        assert f"**{titles[loader['type']]}**" in text
        widget = "ckpt_name" if loader["type"] == "CheckpointLoaderSimple" else "file"
        assert f"**{widget}**" in text
        folder = LOADERS.get(loader["type"], "checkpoints")
        assert not folder or f"*models/{folder}*" in text
    worlds = [node for node in workflow["nodes"] if node["type"] == WORLD]
    assert any(
        start["pos"][0] == loader["pos"][0] and 0 <= start["pos"][1] - sum_of(loader, 1) <= 100
        for loader in loaders + worlds
    )
    # both can be read when the workflow is opened
    (left, top), scale = workflow["extra"]["ds"]["offset"], workflow["extra"]["ds"]["scale"]
    assert scale >= 0.7
    assert (start["pos"][0] + left) * scale >= 60
    assert (sum_of(start, 1) + top) * scale <= 900


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


def sum_of(node: dict[str, Any], axis: int) -> float:
    """End of a node along an axis, from its position and size."""
    return node["pos"][axis] + node["size"][axis]


def test_the_workflows_show_every_node_that_encodes() -> None:
    shown = {node["type"] for path in TEMPLATES for node in read_json(path)["nodes"]}
    nodes = NODE_CLASS_MAPPINGS.items()
    encoding = {name for name, node in nodes if issubclass(node, EncodeNode) and not issubclass(node, OldNodes)}
    assert encoding <= shown
