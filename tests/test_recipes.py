"""Requirements of a new scheme, syntax or node besides its code: places listed in CONTRIBUTING.md and covered by no
other test.

Other tests find missing translations, help pages and example workflows; these find tables and lists in which a name was
forgotten.
"""

from __future__ import annotations

import importlib.util
import json
import re
from pathlib import Path
from types import ModuleType

import pytest
from weighted_clip.nodes import NODE_CLASS_MAPPINGS, NODE_DISPLAY_NAME_MAPPINGS
from weighted_clip.nodes.common import INPUTS
from weighted_clip.weighting.convert import TARGETS
from weighted_clip.weighting.schemes import SCHEMES
from weighted_clip.weighting.syntax import SYNTAXES
from weighted_clip.workshop.bench.encoding import SYNTAXES as TIMED_SYNTAXES
from weighted_clip.workshop.bench.texts import PROMPTS, written
from weighted_clip.workshop.peers.diffusers import SCHEME_OF

from .weighting.test_schemes import OURS

ROOT = Path(__file__).resolve().parents[1]


def page(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def section(text: str, heading: str) -> str:
    """Text below a heading, up to the next."""
    return re.split(r"^#+ ", text.split(f"\n## {heading}\n", 1)[1], maxsplit=1, flags=re.MULTILINE)[0]


def modules_of(package: str) -> list[ModuleType]:
    folder = ROOT.joinpath(*package.split("."))
    return [importlib.import_module(f"weighted_clip.{package}.{path.stem}") for path in folder.glob("[!_]*.py")]


def first_cells(text: str) -> list[str]:
    """The first column of the first table in a text, without its heading."""
    table = text[text.index("\n|") :].strip().split("\n\n")[0]
    return [line.split("|")[1].strip() for line in table.splitlines()[2:]]


# ---- schemes


def test_every_scheme_has_numbers_of_its_program_or_is_known_to_have_none() -> None:
    numeric = {case["scheme"] for case in json.loads(page("tests/cases/weighting_numeric.json"))["cases"]}
    assert OURS.keys() <= numeric
    pipelines = {case["pipeline"] for case in json.loads(page("tests/cases/lpw_numeric.json"))["cases"]}
    with_cases = {*OURS.values(), "compel", "masked_blend", "negpip", *(SCHEME_OF[name] for name in pipelines)}
    # the encoding itself; copies of its rows, in test_repeat.py; a1111's and their signs, in test_negpip.py
    without_cases = {"unweighted", "repeat", "negpip_apart"}
    assert SCHEMES.keys() == with_cases | without_cases


# ---- syntaxes


def test_every_record_of_a_syntax_is_in_the_menus() -> None:
    records = [module.SYNTAX for module in modules_of("weighting.syntax") if hasattr(module, "SYNTAX")]
    assert len(records) >= 3
    assert [record for record in records if record not in SYNTAXES.values()] == []


@pytest.mark.parametrize(("node", "name"), [("TextEncode", "syntax"), ("Convert", "from")])
def test_help_pages_that_explain_the_syntaxes_explain_all(node: str, name: str) -> None:
    inputs = section(page(f"web/comfyui/docs/WeightedCLIP{node}.md"), "Inputs")
    (explained,) = [entry for entry in inputs.split("\n- ") if entry.startswith(f"**{name}**")]
    assert set(re.findall(r"`(\w+)`:", explained)) == set(SYNTAXES)


@pytest.mark.parametrize("name", [name for name in SYNTAXES if name != "none"])
def test_every_syntax_has_case_files_that_are_read_and_a_section(name: str) -> None:
    assert json.loads(page(f"tests/cases/{name}_syntax.json"))["cases"]
    assert f'"{name}_syntax"' in page("tests/weighting/test_syntax.py")
    headings = re.findall(r"^## (\w+) syntax$", page("docs/reference/syntaxes.md"), re.MULTILINE)
    assert any(heading.lower().startswith(name) for heading in headings)


def test_every_syntax_is_in_the_lists_of_guide_and_tooltip() -> None:
    (listed,) = re.findall(r"The syntaxes are (.*?)\. ", page("docs/weighting.md"), re.DOTALL)
    assert re.findall(r"`([^`]+)`", listed) == list(SYNTAXES)
    assert re.findall(r"(\w+): ", INPUTS["syntax"][1]["tooltip"]) == list(SYNTAXES)


@pytest.mark.parametrize("target", TARGETS)
def test_every_syntax_that_can_be_written_is_benchmarked(target: str) -> None:
    assert target in TIMED_SYNTAXES
    assert "{" not in written(PROMPTS["four words down"], target)


# ---- schemes, syntaxes and nodes


def test_what_a_user_can_choose_is_in_the_changelog() -> None:
    text = " ".join(page("CHANGELOG.md").split())
    names = [*(f"`{name}`" for name in (*SCHEMES, *SYNTAXES)), *NODE_DISPLAY_NAME_MAPPINGS.values()]
    assert [name for name in names if name not in text] == []


def test_every_node_class_is_in_the_menus() -> None:
    classes = {name for module in modules_of("nodes") for name in vars(module) if name.startswith("WeightedCLIP")}
    assert classes == NODE_CLASS_MAPPINGS.keys()


def test_the_table_of_nodes_is_complete() -> None:
    rows = first_cells(section(page("docs/nodes.md"), "Nodes"))
    assert sorted(rows) == sorted(NODE_DISPLAY_NAME_MAPPINGS.values())
