"""Everything in the repository that is made from the code: tables of documents, locales, permanent names, and pictures.

    python workshop generate                            # all but pictures
    python workshop generate --pictures weights places  # draws these; without a name, all (two minutes)

`test_generated_files_are_current` holds all but pictures. The Chinese locale, the list of nodes and the permanent names
keep what is in them and get what they lack, so that nothing new needs an entry by hand. Pictures may come out a little
different on another machine: commit those that changed for a reason.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from ..encoder.option import choice_line
from ..nodes import NODE_CLASS_MAPPINGS, NODE_DISPLAY_NAME_MAPPINGS
from ..studio.world.questions import JOINT_QUESTIONS, QUESTIONS, Question
from ..studio.world.tables import of_answer, picked, read_measured, summary
from ..weighting.options import OPTIONS
from ..weighting.schemes import SCHEMES
from ..weighting.syntax import SYNTAXES
from .blueprints import BLUEPRINTS, blueprint
from .coverage import with_block
from .pictures.docs_pictures import JOINT_MEASURED, MEASURED

ROOT = Path(__file__).resolve().parents[1]
GUIDE, REFERENCE = "docs/weighting.md", "docs/reference/schemes.md"
MEANING, JOINT_MEANING = "docs/evidence/meaning.md", "docs/evidence/meaning-joint.md"
"""The pages about pictures, of each world."""
LOCALE, CHINESE = (f"locales/{language}/nodeDefs.json" for language in ("en", "zh"))
NODES, NAMES, COMPLETION = "docs/nodes.md", "tests/data/names.json", "web/comfyui/ruler/names.js"
CASES, MODELS = "tests/cases/README.md", "docs/models.md"
ANSWERS, MORE_ANSWERS = (
    ("expected", "chunks", "rows", "sd", "sdxl"),
    ("error", "flat", "pooled", "token_count", "chunks_clip_g"),
)
"""Keys of a case with an answer; conformance.py beside the page compares the former."""
TEMPLATES = "example_workflows"
QUALITY = 50
"""Quality of thumbnails: all of them are in the archive of the registry."""
INSPECT, CONVERT = (f"web/comfyui/docs/WeightedCLIP{name}.md" for name in ("Inspect", "Convert"))
COMPILED = set("{}|@")
"""Characters that the front end reads as its message syntax in display names and descriptions, and before 1.47 in
tooltips."""


# ---- tables


def with_table(page: str, head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    r"""A page with other rows in its table of that head.

    >>> print(with_table("| A | B |\n| - | - |\n| 1 | 2 |\n\nEnd", ["A", "B"], [["3", "4"]]))
    | A | B |
    | - | - |
    | 3 | 4 |
    <BLANKLINE>
    End
    """
    line = f"| {' | '.join(head)} |\n"
    before, head_line, rest = page.partition(line)
    if not head_line:
        raise ValueError(f"no table has the head {line.strip()}")
    rule, _, rest = rest.partition("\n")
    after = re.sub(r"\A(?:\|.*\n)*", "", rest)
    return f"{before}{line}{rule}\n" + "".join(f"| {' | '.join(row)} |\n" for row in rows) + after


def guide() -> str:
    """The guide to weighting, with its tables of schemes."""
    page = (ROOT / GUIDE).read_text(encoding="utf-8")
    rows = [(f"`{name}`", scheme.short) for name, scheme in SCHEMES.items()]
    page = with_table(page, ("Scheme", "What a weight does"), rows)
    chosen: dict[str, list[str]] = {}
    for name, scheme in SCHEMES.items():
        chosen.setdefault(scheme.choose, []).append(f"`{name}`")
    return with_table(page, ("Choose", "When"), ((", ".join(names), choose) for choose, names in chosen.items()))


def reference() -> str:
    """The reference of schemes, with its table of formulas."""
    page = (ROOT / REFERENCE).read_text(encoding="utf-8")
    rows = [(f"`{name}`", scheme.formula, scheme.equals, scheme.cost) for name, scheme in SCHEMES.items()]
    page = with_table(page, ("Scheme", "Row j", "Equals", "Chunks encoded, for n"), rows)
    return with_table(page, ("Scheme", "Encoders that it acts on"), _encoders_by_scheme())


def _encoders_by_scheme() -> list[tuple[str, str]]:
    """Schemes that act on the same text encoders, and those in words."""
    by_encoders: dict[str, list[str]] = {}
    for name, scheme in SCHEMES.items():
        encoders = ["CLIP"]
        if scheme.by_host:
            encoders.append("all others, as far as ComfyUI weights them")
        if scheme.t5 is not None:
            encoders.append(f"T5 of {' and '.join(scheme.t5.models)}, as in {scheme.t5.program}")
        by_encoders.setdefault("; ".join(encoders), []).append(f"`{name}`")
    return [(", ".join(names), encoders) for encoders, names in by_encoders.items()]


SHOWN = {
    "absence": (("present", 0.0), ("present", 0.5)),
    "color": (("present", 0.0), ("present", 0.5), ("leaked", 0.0), ("leaked", 0.5), ("leaked", 1.5)),
    "padding": (("present", 0.0), ("present", 0.5), ("present", 1.0)),
    "apart": (("leaked", 1.0),),
    "three apart": (("kinds", 1.0), ("leaked", 1.0)),
    "four apart": (("kinds", 1.0), ("leaked", 1.0)),
    "regions": (("placed", 1.0), ("present", 1.0), ("kinds", 1.0)),
    "maps": (("favoured", 1.0), ("inside", 1.0), ("distance", 1.0)),
}
"""Tables of the page about pictures: answers, each at a weight, by question."""
JOINT_SHOWN = {
    **SHOWN,
    "kind": (("right", 0.0), ("right", 0.5), ("right", 1.5)),
    "one": (("present", 0.0), ("present", 0.5)),
    "three": (("present", 0.0), ("present", 0.5), ("others", 0.5), ("others", 1.5)),
}
"""The same of the page about the joint world."""
BY_WEIGHT = {"places": "placed", "maps weighted": "read"}
"""Tables with a column for each weight: the answer, by question."""
NOT_SHOWN = ("first half", "second half")
"""Parts of names of ways that hardly differ from others."""


def meaning(path: str, csv: str, questions: Iterable[Question], shown: Mapping[str, Any] = SHOWN) -> str:
    """A page about pictures, with tables of what was measured."""
    page, measured = (ROOT / path).read_text(encoding="utf-8"), read_measured(ROOT / csv)
    for question in questions:
        asked = question.weights[0], question.answers[0]
        ways = [way for way in question.ways if (question.name, way.name, *asked) in measured]
        if not ways:
            continue
        question = question._replace(ways=tuple(way for way in ways if not way.name.endswith(NOT_SHOWN)))
        if question.name in shown:
            page = with_table(page, *picked(measured, question, shown[question.name]))
        elif question.name in BY_WEIGHT:
            page = with_table(page, *of_answer(measured, question, BY_WEIGHT[question.name]))
        elif question.name == "phrase":
            page = with_table(page, *summary(measured, question))
    return page


def locale() -> str:
    """Texts of all nodes in the form of a locale, without those that it cannot hold: these are left to the class."""
    return to_json(without_compiled(of_all_nodes(texts_of)))


def chinese() -> str:
    """The Chinese locale: a text without a translation is in English, and so is a value that a menu's text lacks."""
    return to_json(without_compiled(translated(of_all_nodes(texts_of), read_json(CHINESE))))


def translated(texts: Mapping[str, Any], translations: Mapping[str, Any]) -> dict[str, Any]:
    """Texts, each in translation where there is one.

    Raises:
        ValueError: If a value of a menu is told in words that would put its whole text out of the locales.
    """
    merged = {
        key: translated(value, translations.get(key, {})) if isinstance(value, dict) else translations.get(key, value)
        for key, value in texts.items()
    }
    for name, entry in merged.get("inputs", {}).items() if "outputs" in merged else ():
        tooltip = texts["inputs"][name]["tooltip"]
        for value, said in OPTIONS[name].meanings.items() if name in OPTIONS else ():
            line = choice_line((value, said))
            if line in tooltip and not re.search(rf"(?<!\w){re.escape(value)}(?!\w)", entry["tooltip"]):
                if COMPILED & set(said):
                    signs = " ".join(sorted(COMPILED))
                    raise ValueError(f"no locale can hold {said!r}: tell what {value} does without any of {signs}")
                entry["tooltip"] += f"\n{line}"
    return merged


def of_all_nodes(make: Callable[[str], Any]) -> dict[str, Any]:
    """Something of each node by its id, where the host lists no files for the menus of loaders."""
    no_files: Any = SimpleNamespace(get_filename_list=lambda kind: [], get_input_directory=lambda: "no folder")
    with patch.dict(sys.modules, folder_paths=no_files):
        return {node_id: make(node_id) for node_id in NODE_CLASS_MAPPINGS}


def to_json(texts: Any) -> str:
    """JSON as it stands in locales."""
    return json.dumps(texts, indent=2, ensure_ascii=False) + "\n"


def read_json(name: str) -> Any:
    """A file of the repository."""
    return json.loads((ROOT / name).read_text(encoding="utf-8"))


def inputs_of(node_id: str) -> dict[str, tuple[Any, dict[str, Any]]]:
    """Inputs of a node that users see."""
    sections = NODE_CLASS_MAPPINGS[node_id].INPUT_TYPES()
    return {name: declared for key in ("required", "optional") for name, declared in sections.get(key, {}).items()}


def texts_of(node_id: str) -> dict[str, Any]:
    """Texts of a node's class."""
    node = NODE_CLASS_MAPPINGS[node_id]
    outputs = zip(node.RETURN_NAMES, node.OUTPUT_TOOLTIPS, strict=True)
    return {
        "display_name": NODE_DISPLAY_NAME_MAPPINGS[node_id],
        "description": node.DESCRIPTION,
        "inputs": {
            name: {"name": name, "tooltip": declared[1]["tooltip"]} for name, declared in inputs_of(node_id).items()
        },
        "outputs": {str(number): {"name": name, "tooltip": tooltip} for number, (name, tooltip) in enumerate(outputs)},
    }


def without_compiled(texts: Mapping[str, Any]) -> dict[str, Any]:
    """Texts without those that have one of the characters `COMPILED`."""
    return {
        key: without_compiled(value) if isinstance(value, dict) else value
        for key, value in texts.items()
        if isinstance(value, dict) or not COMPILED & set(value)
    }


# ---- names


def names() -> str:
    """Ids of nodes, and the names and order of what they have, which saved workflows hold.

    Raises:
        ValueError: If one that is in the file would go, or change its place.
    """
    recorded, now = read_json(NAMES), of_all_nodes(names_of)
    if gone := [name for name, entry in recorded.items() if not is_grown(now.get(name), entry)]:
        raise ValueError(f"names are for ever (docs/releasing.md), but some go, or move, in: {', '.join(gone)}")
    return (
        re.sub(r"\[\s+([^]]*?)\s+\]", lambda match: f"[{' '.join(match[1].split())}]", json.dumps(now, indent=1)) + "\n"
    )


def names_of(node_id: str) -> dict[str, Any]:
    """Inputs of a node with the choices of each menu, and the types of its outputs, in their order."""
    kinds = {name: "files" if kind == [] else kind for name, (kind, _) in inputs_of(node_id).items()}
    return {"inputs": kinds, "outputs": list(NODE_CLASS_MAPPINGS[node_id].RETURN_TYPES)}


def is_grown(now: Any, recorded: Any) -> bool:
    """Whether names are those that were kept, with more behind them; a menu may get more anywhere."""
    if isinstance(recorded, dict):
        recorded = {name: dict(enumerate(entry)) if name == "outputs" else entry for name, entry in recorded.items()}
        now = {name: dict(enumerate(entry)) if name == "outputs" else entry for name, entry in (now or {}).items()}
        return list(now)[: len(recorded)] == list(recorded) and all(
            is_grown(now[name], entry) for name, entry in recorded.items()
        )
    if isinstance(recorded, list) and isinstance(now, list):
        return [value for value in now if value in recorded] == recorded
    return now == recorded


def completion() -> str:
    """The ruler's completion of names, with the reading of embeddings in each syntax."""
    rules = ", ".join(f'{name}: "{syntax.chunking.split()[0]}"' for name, syntax in SYNTAXES.items())
    script = (ROOT / COMPLETION).read_text(encoding="utf-8")
    return re.sub(r"(?<=const RULES = \{ ).*?(?= \};)", rules, script)


# ---- pages


def nodes() -> str:
    """The page of nodes, whose tables have every node and every template."""
    page = (ROOT / NODES).read_text(encoding="utf-8")
    said = dict(re.findall(r"^\| (.+?) \| (.+) \|$", page, re.MULTILINE))
    rows = [
        (title, said.get(title, NODE_CLASS_MAPPINGS[node_id].DESCRIPTION.removesuffix(".")))
        for node_id, title in NODE_DISPLAY_NAME_MAPPINGS.items()
    ]
    page = with_table(page, ("Node", "What it does"), rows)
    templates = sorted((ROOT / TEMPLATES).glob("*.json"))
    templates_shown = ((path.stem, said.get(path.stem, used_in(path))) for path in templates)
    return with_table(page, ("Template", "What it shows"), templates_shown)


def case_files() -> str:
    """The page about the case files, with a table of them."""
    head = ("File", "Cases", "A case has", "Answer", "Made with", "Its form")
    rows = []
    for path in sorted((ROOT / CASES).parent.glob("*.json")):
        data = json.loads(path.read_text(encoding="utf-8"))
        keys = dict.fromkeys(key for case in data["cases"] for key in case)
        inputs = [key for key in keys if key not in (*ANSWERS, *MORE_ANSWERS)]
        answer = [key for key in ANSWERS if key in keys]
        named = ((f"`{key}`" for key in group) for group in (inputs, answer))
        texts = (data[key].replace("|", "\\|") for key in ("source", "format"))
        rows.append((f"`{path.name}`", str(len(data["cases"])), *(", ".join(group) for group in named), *texts))
    return with_table((ROOT / CASES).read_text(encoding="utf-8"), head, rows)


def used_in(template: Path) -> str:
    """Titles of our nodes in a template, each once."""
    types = dict.fromkeys(node["type"] for node in json.loads(template.read_text(encoding="utf-8"))["nodes"])
    return ", ".join(NODE_DISPLAY_NAME_MAPPINGS[name] for name in types if name in NODE_DISPLAY_NAME_MAPPINGS)


def inspected() -> str:
    """The help page of Show Tokens, which quotes a report."""
    prompt = "a (red:1.4) cat, [photorealistic] BREAK (sharp focus"
    node: Any = NODE_CLASS_MAPPINGS["WeightedCLIPInspect"]()
    return with_quotation(INSPECT, node.inspect(prompt, syntax="a1111", chunking="as syntax")["result"][2])


def converted() -> str:
    """The help page of Convert Prompt Syntax, which quotes a prompt."""
    node: Any = NODE_CLASS_MAPPINGS["WeightedCLIPConvert"]()
    result = node.convert("a ((red)) [cat], (dog:1.3)", **{"from": "a1111", "to": "comfy"})
    return with_quotation(CONVERT, result["result"][0])


def with_quotation(name: str, quoted: str) -> str:
    """A page with another text in its first block of code."""
    before, _, after = (ROOT / name).read_text(encoding="utf-8").split("\n```\n", 2)
    return f"{before}\n```\n{quoted}\n```\n{after}"


MADE = {
    **{GUIDE: guide, REFERENCE: reference, NODES: nodes, INSPECT: inspected},
    MEANING: partial(meaning, MEANING, MEASURED, QUESTIONS),
    JOINT_MEANING: partial(meaning, JOINT_MEANING, JOINT_MEASURED, JOINT_QUESTIONS, JOINT_SHOWN),
    **{CONVERT: converted, LOCALE: locale, CHINESE: chinese, NAMES: names, COMPLETION: completion, CASES: case_files},
    MODELS: with_block,
    **{f"subgraphs/{name}.json": partial(blueprint, name) for name in BLUEPRINTS},
}
"""Functions that make the text of a file, by its path."""


def main(arguments: list[str]) -> None:
    """Write what is asked for; without options, all files of `MADE`."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pictures", nargs="*", metavar="NAME", help="draw these pictures, or all")
    options = parser.parse_args(arguments)
    if options.pictures is not None:
        draw(options.pictures)
    else:
        for name, make in MADE.items():
            (ROOT / name).write_text(make(), encoding="utf-8")


def draw(names: Sequence[str]) -> None:
    """Draw pictures of documents, help pages and templates by name, or all, as small files."""
    from .pictures import docs_pictures, help_pictures, thumbnails

    for name in [name for name in thumbnails.PICTURES if not names or name in names]:
        thumbnails.PICTURES[name]().save(ROOT / TEMPLATES / f"{name}.jpg", optimize=True, quality=QUALITY)
    folders = {
        ROOT / "docs" / "images": docs_pictures.PICTURES,
        ROOT / "web" / "comfyui" / "docs" / "images": help_pictures.PICTURES,
    }
    for folder, pictures in folders.items():
        for name in [name for name in pictures if not names or name in names]:
            pictures[name]().quantize(128, kmeans=2).save(folder / f"{name}.png", optimize=True)
