"""Names of schemes and syntaxes are compared nowhere: a record says what is true of one alone."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from weighted_clip.weighting.schemes import SCHEMES
from weighted_clip.weighting.syntax import SYNTAXES

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = sorted({"scripts", *(path.parent.name for path in ROOT.glob("*/__init__.py"))} - {"tests"})
NAMES = {*SCHEMES, *SYNTAXES}
OTHER_THINGS = {"compel", "none"}
"""Names that are also those of a law, a normalization and the like: they count only beside the words below."""
DEFENDED = {
    # ComfyUI-ppm's own functions have the name in theirs
    "hosts/comfy/clip/schemes.py": ["'negpip' in name"],
    # no syntax by itself: the WebUI's where its Emphasis mode is None, with the chunks that it cuts
    "weighting/options.py": ["(self.syntax, self.chunking) == ('none', 'a1111')"],
    # patterns of a word in each syntax, for the host's X/Y/Z plot alone
    "hosts/webui/script/axis_values.py": ["syntax in _GROUPS"],
}
"""Comparisons with a name that stay, by file."""


def names_in(node: ast.AST) -> set[str]:
    """Names that an expression lists: itself, or as the parts or keys of what it builds."""
    if isinstance(node, ast.Constant):
        return {node.value} & NAMES if isinstance(node.value, str) else set()
    parts = node.keys if isinstance(node, ast.Dict) else getattr(node, "elts", [])
    return {name for part in parts if part is not None for name in names_in(part)}


def lists_in(tree: ast.Module) -> dict[str, set[str]]:
    """Constants of a file that list names, such as ``SIGNED = ("negpip", ...)``."""
    found: dict[str, set[str]] = {}
    for node in tree.body:
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        value = getattr(node, "value", None)
        parts = value.keys if isinstance(value, ast.Dict) else getattr(value, "elts", [])
        if names := {name for part in parts if isinstance(part, ast.Constant) for name in names_in(part)}:
            found |= {target.id: names for target in targets if isinstance(target, ast.Name)}
    return found


def compared(tree: ast.Module, lists: dict[str, set[str]]) -> Iterator[str]:
    """Comparisons with names, or with a list of them; and cases of ``match``."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
            listed = {name for side in sides if isinstance(side, ast.Name) for name in lists.get(side.id, ())}
            names = listed.union(*map(names_in, sides))
        elif isinstance(node, ast.MatchValue):
            names = names_in(node.value)
        else:
            continue
        told = ast.unparse(node)
        if names - OTHER_THINGS or (names and ("scheme" in told or "syntax" in told)):
            yield told


def test_no_name_is_compared_outside_its_record() -> None:
    sources = {
        path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8")
        for folder in FOLDERS
        for path in (ROOT / folder).rglob("*.py")
    }
    assert {"weighting", "hosts", "nodes", "web", "studio", "workshop"} <= set(FOLDERS)
    trees = {path: ast.parse(source) for path, source in sources.items()}
    tables = {"SCHEMES", "SYNTAXES", "CHUNKINGS", "WAYS"}  # to ask whether they have a name is no comparison with one
    lists = {name: names for tree in trees.values() for name, names in lists_in(tree).items() if name not in tables}
    found = {path: list(compared(tree, lists)) for path, tree in trees.items()}
    assert {path: told for path, told in found.items() if told} == DEFENDED
