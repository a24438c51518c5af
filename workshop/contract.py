"""Check hosts/comfy/contract.py against a ComfyUI's files, which are only read, and list the names it lacks.

    python workshop/contract.py DIR ...

DIR is a checkout of ComfyUI, or a folder with some of its files. None of its code is run. For each it prints the
version, the number of names found, and every name that is missing or whose file does not exist. The exit status is 1 if
a name is missing.
"""

from __future__ import annotations

import argparse
import ast
import runpy
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from types import SimpleNamespace
from typing import Any

ROOT = Path(__file__).resolve().parent.parent


@dataclass
class Compared:
    """Parts of the contract in a ComfyUI."""

    version: str
    num_found: int = 0
    missing: list[str] = field(default_factory=list)
    """Names that it lacks."""
    unread: list[str] = field(default_factory=list)
    """Modules without a file."""


class Checkout:
    """The files of a ComfyUI."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._trees: dict[str, ast.Module | None] = {}

    @cached_property
    def version(self) -> str:
        """Version stated in its files."""
        tree = self.tree("comfyui_version")
        values = [ast.literal_eval(node.value) for node in tree.body if isinstance(node, ast.Assign)] if tree else []
        return values[0] if values else "unknown"

    def tree(self, module: str) -> ast.Module | None:
        """Parsed source of a module; None if its file does not exist."""
        if module not in self._trees:
            place = self._folder.joinpath(*module.split("."))
            files = [file for file in (place.with_suffix(".py"), place / "__init__.py") if file.is_file()]
            self._trees[module] = ast.parse(files[0].read_text(encoding="utf-8")) if files else None
        return self._trees[module]

    def defines(self, module: str, name: str) -> bool:
        """Whether a module has a name: one that it defines or imports."""
        tree = self.tree(module)
        return tree is not None and any(name in names_of(node) for node in outer_statements(tree))

    def has(self, kind: str, name: str) -> bool:
        """Whether objects of a class have an attribute: set in it or its bases, by methods, or where it is made."""
        module, _, class_name = kind.rpartition(".")
        attributes = given_after_making(self.tree(module) or ast.Module([], []), class_name)
        return name in attributes or any(name in attributes_of(node) for node in self.classes(kind))

    def classes(self, kind: str) -> Iterator[ast.ClassDef]:
        """A class and its bases, as far as their files exist."""
        module, _, name = kind.rpartition(".")
        tree = self.tree(module)
        for node in outer_statements(tree) if tree else ():
            if isinstance(node, ast.ClassDef) and node.name == name:
                yield node
                for base in node.bases:
                    yield from self.classes(self._resolved(module, ast.unparse(base)))
            elif isinstance(node, ast.ImportFrom) and any((alias.asname or alias.name) == name for alias in node.names):
                yield from self.classes(self._resolved(module, name))

    def _resolved(self, module: str, name: str) -> str:
        """Full name of an object that a module refers to by a name."""
        head, _, rest = name.partition(".")
        for node in outer_statements(self.tree(module) or ast.Module([], [])):
            if isinstance(node, ast.ImportFrom):
                package = ".".join(module.split(".")[: -node.level]) if node.level else ""
                source = ".".join(filter(None, (package, node.module)))
                for alias in node.names:
                    if (alias.asname or alias.name) == head:
                        return f"{source}.{alias.name}{'.' * bool(rest)}{rest}"
            elif isinstance(node, ast.Import):
                for alias in node.names:
                    if alias.asname == head:
                        return f"{alias.name}.{rest}"
                    if name.startswith(f"{alias.name}."):
                        return name
        return f"{module}.{name}"

    def says(self, module: str, key: str) -> bool:
        """Whether a string occurs in a module, whole or as the beginning of a composed one."""
        tree = self.tree(module)
        return tree is not None and any(isinstance(node, ast.Constant) and node.value == key for node in ast.walk(tree))


def outer_statements(tree: ast.Module) -> Iterator[ast.stmt]:
    """Statements of a module, including those under its conditions."""
    for node in tree.body:
        yield node
        if isinstance(node, ast.If | ast.Try):
            inner = [*node.body, *node.orelse]
            if isinstance(node, ast.Try):
                inner += [statement for handler in node.handlers for statement in handler.body]
            yield from inner


def names_of(node: ast.stmt) -> set[str]:
    """Names that a statement defines."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return {node.name}
    if isinstance(node, ast.Import | ast.ImportFrom):
        return {alias.asname or alias.name for alias in node.names}
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    return {target.id for target in targets if isinstance(target, ast.Name)}


def attributes_of(node: ast.ClassDef) -> set[str]:
    """Names that a class defines, and those its methods set on ``self``."""
    names = {name for statement in node.body for name in names_of(statement)}
    for inner in ast.walk(node):
        if isinstance(inner, ast.Attribute) and isinstance(inner.ctx, ast.Store):
            # on self, or on the class, as in PromptServer.instance = self
            names |= {inner.attr} if ast.unparse(inner.value) in ("self", node.name) else set()
        elif isinstance(inner, ast.Call) and ast.unparse(inner.func) == "self.register_buffer":
            names |= {str(argument.value) for argument in inner.args[:1] if isinstance(argument, ast.Constant)}
    return names


def given_after_making(tree: ast.Module, kind: str) -> set[str]:
    """Attributes that functions of a module set on a variable to which they assign an object of a class."""
    attributes: set[str] = set()
    for function in (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)):
        nodes = list(ast.walk(function))
        variables: set[str] = set()
        for node in nodes:
            if (
                isinstance(node, ast.Assign)
                and isinstance(node.value, ast.Call)
                and ast.unparse(node.value.func) == kind
            ):
                variables |= names_of(node)
        stored = [node for node in nodes if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)]
        attributes |= {node.attr for node in stored if ast.unparse(node.value) in variables}
    return attributes


def compare(folder: Path, contract: Any) -> Compared:
    """Check the contract against the files of a ComfyUI."""
    checkout = Checkout(folder)
    compared = Compared(checkout.version)

    def note(what: str, *, is_there: bool) -> None:
        if is_there:
            compared.num_found += 1
        else:
            compared.missing.append(what)

    def readable(
        table: Mapping[str, tuple[str, ...]], *, has_classes: bool = False
    ) -> Iterator[tuple[str, Sequence[str]]]:
        """Entries whose module's file is there."""
        for place, names in table.items():
            module = place.rpartition(".")[0] if has_classes else place
            if checkout.tree(module) is None:
                compared.unread.append(module)
            else:
                yield place, names

    for module, names in readable(contract.MODULES):
        for name in names:
            note(f"{module}.{name}", is_there=checkout.defines(module, name))
    for kind, names in readable(contract.OBJECTS, has_classes=True):
        note(kind, is_there=any(True for _ in checkout.classes(kind)))
        for name in names:
            note(f"{kind}.{name}", is_there=checkout.has(kind, name))
    for module, keys in readable(contract.KEYS):
        for key in keys:
            note(f'"{key}" in {module}', is_there=checkout.says(module, key))
    compared.unread = sorted(set(compared.unread))
    return compared


def main(arguments: list[str] | None = None) -> int:
    """Print each ComfyUI's part of the contract."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="+", metavar="DIR", help="a checkout, or some of its files")
    contract = SimpleNamespace(**runpy.run_path(str(ROOT / "hosts" / "comfy" / "contract.py")))  # without the pack
    status = 0
    for folder in parser.parse_args(arguments).folder:
        compared = compare(folder, contract)
        lines = [f"ComfyUI {compared.version}: {compared.num_found} names found, {len(compared.missing)} missing"]
        lines += [f"  missing: {name}" for name in compared.missing]
        lines += [f"  no file: {module}" for module in compared.unread]
        sys.stdout.write("\n".join(lines) + "\n")
        status |= bool(compared.missing)
    return status


if __name__ == "__main__":
    sys.exit(main())
