"""Requirements of a new scheme, syntax, node or model family besides its code, which no other test covers.

Other tests find missing translations, help pages, example workflows and generated tables.
"""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType

import pytest
from weighted_clip.hosts.comfy.families.families import FAMILIES, OUT_OF_REACH
from weighted_clip.nodes import NODE_CLASS_MAPPINGS
from weighted_clip.weighting.schemes import SCHEMES
from weighted_clip.weighting.syntax import SYNTAXES
from weighted_clip.workshop.peers.diffusers import SCHEME_OF

from .weighting.test_schemes import OURS

ROOT = Path(__file__).resolve().parents[1]


def page(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def modules_of(package: str) -> list[ModuleType]:
    folder = ROOT.joinpath(*package.split("."))
    return [importlib.import_module(f"weighted_clip.{package}.{path.stem}") for path in folder.glob("[!_]*.py")]


# ---- schemes


def test_every_scheme_has_numbers_of_its_program_or_is_known_to_have_none() -> None:
    numeric = {case["scheme"] for case in json.loads(page("tests/cases/weighting_numeric.json"))["cases"]}
    assert OURS.keys() <= numeric
    pipelines = {case["pipeline"] for case in json.loads(page("tests/cases/lpw_numeric.json"))["cases"]}
    with_cases = {*OURS.values(), "compel", "masked_blend", "negpip", *(SCHEME_OF[name] for name in pipelines)}
    compared = {name for name, scheme in SCHEMES.items() if scheme.is_compared and scheme.is_weighing}
    assert compared == with_cases


# ---- syntaxes


def test_every_record_of_a_syntax_is_in_the_menus() -> None:
    records = [module.SYNTAX for module in modules_of("weighting.syntax") if hasattr(module, "SYNTAX")]
    assert len(records) >= 3
    assert [record for record in records if record not in SYNTAXES.values()] == []


@pytest.mark.parametrize("name", [name for name in SYNTAXES if name != "none"])
def test_every_syntax_has_case_files_that_are_read(name: str) -> None:
    assert json.loads(page(f"tests/cases/{name}_syntax.json"))["cases"]


# ---- nodes


def test_every_node_class_is_in_the_menus() -> None:
    classes = {name for module in modules_of("nodes") for name in vars(module) if name.startswith("WeightedCLIP")}
    assert classes == NODE_CLASS_MAPPINGS.keys()


# ---- model families


def test_every_class_of_a_tokenizer_is_in_one_family() -> None:
    names = [name for family in FAMILIES for name in family.tokenizers]
    assert len(names) == len(set(names))
    assert all(family.tokenizers for family in FAMILIES if family.loader is not None)


def test_families_that_share_a_network_have_the_same_method_and_layout() -> None:
    records = {(name, family.weigh, family.layout) for family in FAMILIES for name in family.networks}
    assert len(records) == len({name for name, *_ in records})


def test_no_network_of_a_family_is_refused_as_out_of_reach() -> None:
    assert {name for family in FAMILIES for name in family.networks}.isdisjoint(OUT_OF_REACH)


@pytest.mark.parametrize("table", ["docs/reference/attention.md", "docs/models.md"])
def test_every_family_has_a_row_of_the_tables(table: str) -> None:
    text = page(table).casefold()
    assert [family.title for family in FAMILIES if family.title.split(" and ")[0].casefold() not in text] == []
