"""Runs the examples in the docstrings of every module of the package."""

import doctest
import importlib
import pkgutil

import pytest
import weighted_clip

MODULES = [
    name
    for _, name, _ in pkgutil.walk_packages(weighted_clip.__path__, "weighted_clip.")
    if not name.startswith(("weighted_clip.tests", "weighted_clip.run"))
]


@pytest.mark.parametrize("name", MODULES)
def test_examples_in_docstrings_are_true(name: str) -> None:
    assert doctest.testmod(importlib.import_module(name)).failed == 0


def test_there_are_examples() -> None:
    finder = doctest.DocTestFinder()
    examples = [test for name in MODULES for test in finder.find(importlib.import_module(name)) if test.examples]
    assert len(examples) > 15
