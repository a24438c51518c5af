"""Docstrings name the thing, by a noun phrase or a verb: "Number of rows." and not "How many rows there are."."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = (
    "encoder",
    "hosts",
    "nodes",
    "scripts",
    "tests",
    "studio",
    "web",
    "weighting",
    "workshop",
)
FILES = sorted([*ROOT.glob("*.py"), *(path for name in FOLDERS for path in (ROOT / name).rglob("*.py"))])
BEGINNING = re.compile(r"\s*(Of|What|How|Where|Which|When|Who|Whose|Why)\b")
"""Words that begin half a sentence, whose other half is the name above it."""
ENTRY = re.compile(
    r"^ +(?:\*{0,2}\w+:|(?:Returns|Yields):\n) +(?:Of|What|How|Where|Which|When|Who|Whose|Why)\b.*", re.MULTILINE
)
"""The same at the beginning of a description of an argument, an error or a result."""


def docstrings(tree: ast.Module) -> Iterator[ast.Constant]:
    """Docstrings of modules, classes, functions and attributes: all strings that are statements."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node.value


def half_sentences(source: str) -> list[tuple[int, str]]:
    """Line and text of each docstring, or description in it, that begins with one of these words."""
    found: list[tuple[int, str]] = []
    for docstring in docstrings(ast.parse(source)):
        text = str(docstring.value)
        if BEGINNING.match(text):
            found.append((docstring.lineno, text.strip().partition("\n")[0]))
        for match in ENTRY.finditer(text):
            found.append((docstring.lineno + text.count("\n", 0, match.end()), match[0].split("\n")[-1].strip()))
    return sorted(found)


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ('SIDE = 8\n"""Of the image, in pixels."""\n', [(2, "Of the image, in pixels.")]),
        ('SIDE = 8\n"""Side of the image, in pixels."""\n', []),
        ('"""Whether it fits. How it does is left out."""\n', []),
        (
            'def f(side):\n    """Draw it.\n\n    Args:\n        side: Of the image.\n    """\n',
            [(5, "side: Of the image.")],
        ),
        ('def f(side):\n    """How many there are."""\n', [(2, "How many there are.")]),
        ('def f():\n    """Count.\n\n    Returns:\n        How many.\n    """\n', [(5, "How many.")]),
    ],
)
def test_half_sentences_are_found(source: str, expected: list[tuple[int, str]]) -> None:
    assert half_sentences(source) == expected


def test_no_docstring_is_half_a_sentence() -> None:
    found = [
        f"{path.relative_to(ROOT).as_posix()}:{line}: {text}"
        for path in FILES
        for line, text in half_sentences(path.read_text(encoding="utf-8"))
    ]
    assert len(FILES) > 300
    assert not found, "\n".join(
        ["begin with a noun phrase or a verb, as “Number of rows.” or “Return the rows.”:", *found]
    )
