"""Runs the examples in the docstrings of every module of the package."""

import doctest
import importlib
import pkgutil
from types import ModuleType

import pytest
import weighted_clip

MODULES = [
    name
    for _, name, _ in pkgutil.walk_packages(weighted_clip.__path__, "weighted_clip.")
    if not name.startswith(("weighted_clip.tests", "weighted_clip.run"))
]


def imported(name: str) -> ModuleType | None:
    """A module; None for one of the lab's page where gradio is not installed."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name != "gradio" or ".web.lab" not in name:
            raise
        return None


@pytest.mark.parametrize("name", MODULES)
def test_examples_in_docstrings_are_true(name: str) -> None:
    module = imported(name)
    if module is None:
        pytest.skip("gradio is not installed: python run.py test installs it")
    assert doctest.testmod(module).failed == 0


def test_there_are_examples() -> None:
    finder = doctest.DocTestFinder()
    modules = filter(None, map(imported, MODULES))
    examples = [test for module in modules for test in finder.find(module) if test.examples]
    assert len(examples) > 15
