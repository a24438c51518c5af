"""Every regular expression of the pack, found in its source and its modules, and texts that make each work hard."""

from __future__ import annotations

import ast
import importlib
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

if sys.version_info >= (3, 11):
    from re import _compiler as compiler  # pyright: ignore[reportAttributeAccessIssue]
    from re import _constants as constants  # pyright: ignore[reportAttributeAccessIssue]
    from re import _parser as parser  # pyright: ignore[reportAttributeAccessIssue]
else:
    import sre_compile as compiler
    import sre_constants as constants
    import sre_parse as parser

ROOT = Path(__file__).resolve().parents[2]
SKIPPED = frozenset(("tests", "workshop"))
"""Folders that read no text of strangers."""
METHODS = frozenset(("search", "match", "fullmatch", "finditer", "findall", "split", "sub", "subn"))
OPTIONAL = frozenset(("gradio", "aiohttp", "accelerate"))
"""Modules that need one of these are read where it is installed."""

MADE_OF_WORDS: Mapping[str, Callable[[Any], list[re.Pattern[str]]]] = {
    "hosts/webui/script/axis_values.py": lambda axis_values: [
        axis_values.form_of("a red cat", syntax) for syntax in ("comfy", "a1111", "compel")
    ],
    "studio/training/data/captions.py": lambda captions: [captions.NewWord("<mine>", 1).pattern],
}
"""Files that compile patterns from a user's words, with examples of these patterns, which are tried with ``sub``."""

CHARACTERS = "a1 \\()[]<>:|'\",.+-=_*/\t\n\r\f2AZzéе猫\u0301\x00\ud800"
"""Input of a repeat: one character of each set that a pattern never distinguishes, if the repeat accepts it."""
ENDS = ("", "\x00", "\n", "a", "猫")
"""Endings that may keep a match from succeeding."""


class Use(NamedTuple):
    """A pattern and a method it is used with."""

    where: str
    pattern: re.Pattern[Any]
    method: str

    def __str__(self) -> str:
        return f"{self.where}: {self.pattern.pattern!r}.{self.method}"

    def __call__(self, text: str) -> None:
        is_of_bytes = isinstance(self.pattern.pattern, bytes)
        given, nothing = (text.encode("utf-8", "surrogatepass"), b"") if is_of_bytes else (text, "")
        if self.method == "finditer":
            for _ in self.pattern.finditer(given):
                pass
        elif self.method in ("sub", "subn"):
            getattr(self.pattern, self.method)(nothing, given)
        else:
            getattr(self.pattern, self.method)(given)


def uses() -> list[Use]:
    """Every pattern with every method it is used with; an `AssertionError` for anything undecidable."""
    modules = dict(_modules())
    named = [
        (f"{module.__name__.partition('.')[2]}.{name}", pattern)
        for module in modules.values()
        for name, value in vars(module).items()
        for pattern in _patterns_in(value)
    ]
    found: dict[tuple[str, int, str], Use] = {}
    for path, module in modules.items():
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for place, pattern, method in (*_inline(tree, path), *_methods(tree, vars(module))):
            where = next((name for name, one in named if one is pattern), f"{path.relative_to(ROOT)}:{place}")
            found.setdefault((pattern.pattern, pattern.flags, method), Use(where, pattern, method))
        for pattern in MADE_OF_WORDS.get(path.relative_to(ROOT).as_posix(), lambda _: [])(module):
            found[pattern.pattern, pattern.flags, "sub"] = Use(f"{path.relative_to(ROOT)}", pattern, "sub")
    used = {id(use.pattern) for use in found.values()} | {key[:2] for key in found}
    lost = {where for where, one in named if id(one) not in used and (one.pattern, one.flags) not in used}
    assert not lost, f"it cannot be told how these are used: {lost}"
    return list(found.values())


def _modules() -> Iterator[tuple[Path, Any]]:
    for package in sorted(ROOT.glob("*/__init__.py")):
        for path in sorted(package.parent.rglob("*.py")) if package.parent.name not in SKIPPED else ():
            parts = path.relative_to(ROOT).with_suffix("").parts
            name = ".".join(("weighted_clip", *parts[: -1 if parts[-1] == "__init__" else None]))
            try:
                yield path, importlib.import_module(name)
            except ModuleNotFoundError as error:
                assert error.name in OPTIONAL, error


def _patterns_in(value: object) -> Iterator[re.Pattern[str]]:
    """The patterns in a module's variable: itself, or what is in a container or a class of the pack."""
    if isinstance(value, re.Pattern):
        yield value
    elif isinstance(value, (tuple, list, set, frozenset)):
        for item in value:
            yield from _patterns_in(item)
    elif isinstance(value, dict):
        yield from _patterns_in(list(value.values()))
    elif isinstance(value, type) and value.__module__.startswith("weighted_clip."):
        yield from (item for item in vars(value).values() if isinstance(item, re.Pattern))


def _inline(tree: ast.Module, path: Path) -> Iterator[tuple[int, re.Pattern[str], str]]:
    """Patterns given to a function of ``re``; what is compiled must be so where a module or class is made."""
    compiled: list[ast.Call] = []
    for node in ast.walk(tree):
        assert not (isinstance(node, ast.ImportFrom) and node.module == "re"), f"{path}: write “import re”"
        if isinstance(node, ast.Import):
            assert ("re", None) in [(name.name, name.asname) for name in node.names] or not any(
                name.name in ("re", "regex") for name in node.names
            ), f"{path}: write “import re”"
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
            continue
        if not (isinstance(node.func.value, ast.Name) and node.func.value.id == "re") or node.func.attr == "escape":
            continue
        if node.func.attr == "compile":
            compiled.append(node)
            continue
        assert isinstance(node.args[0], ast.Constant), f"{path}:{node.lineno}: give the pattern a name"
        flags = [
            getattr(re, part.attr)
            for part in ast.walk(node)
            if isinstance(part, ast.Attribute) and isinstance(getattr(re, part.attr, None), re.RegexFlag)
        ]
        yield node.lineno, re.compile(node.args[0].value, sum(flags)), node.func.attr
    if compiled and path.relative_to(ROOT).as_posix() not in MADE_OF_WORDS:
        inside = {
            node
            for function in ast.walk(tree)
            if isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
            for node in ast.walk(function)
        }
        late = [f"{path}:{node.lineno}" for node in compiled if node in inside]
        assert not late, f"{late}: compile it once, where the module is made"


def _methods(tree: ast.Module, variables: dict[str, Any]) -> Iterator[tuple[int, re.Pattern[str], str]]:
    """The methods that a module names: of a pattern itself, or of something that may be any of those in a container."""
    held = [
        pattern for value in variables.values() if not isinstance(value, re.Pattern) for pattern in _patterns_in(value)
    ]
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr in METHODS:
            name = node.value.id if isinstance(node.value, ast.Name) else None
            owner = variables.get(name or "")
            if isinstance(owner, re.Pattern):
                yield node.lineno, owner, node.attr
            elif name != "re":
                yield from ((node.lineno, pattern, node.attr) for pattern in held)


class Pumped(NamedTuple):
    """A text of any length that keeps a repeat of a pattern busy."""

    prefix: str
    unit: str
    suffix: str

    def text(self, size: int) -> str:
        """About as many characters."""
        return self.prefix + self.unit * max(1, (size - len(self.prefix + self.suffix)) // len(self.unit)) + self.suffix


def pumped(pattern: re.Pattern[str]) -> list[Pumped]:
    """Texts made of a pattern: for each repeat what reaches it, what it takes many times, and an end that fails.

    The unit also includes the text before, so that a search restarts in it.
    """
    tree = parser.parse(pattern.pattern, pattern.flags & ~re.UNICODE)
    characters = _told_apart(tree)
    found: dict[Pumped, None] = {}
    for prefix, repeated in _repeats(tree):
        for unit in _units(repeated, characters):
            for end in ENDS:
                found[Pumped(prefix, unit, end)] = None
                found[Pumped("", prefix + unit, end)] = None
                found[Pumped(prefix + unit, unit + prefix, end)] = None
    whole = _sample(tree)
    for unit in filter(None, (whole, whole[:-1], whole[1:])):
        found[Pumped("", unit, "")] = None
    return list(found)


def _inner(operator: Any, argument: Any) -> list[Any]:
    """The patterns inside a node of a parsed pattern."""
    if operator in _REPEATS:
        return [argument[2]]
    if operator is constants.SUBPATTERN:
        return [argument[3]]
    if operator is constants.BRANCH:
        return list(argument[1])
    if operator in (constants.ASSERT, constants.ASSERT_NOT):
        return [argument[1]]
    return [argument] if operator is getattr(constants, "ATOMIC_GROUP", None) else []


def _repeats(tree: Iterable[Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Each repeat of a parsed pattern, with a text that leads to it."""
    for operator, argument in tree:
        if operator in _REPEATS and argument[1] > 1:
            yield prefix, argument[2]
        for inner in _inner(operator, argument):
            yield from _repeats(inner, prefix)
        prefix += _sample([(operator, argument)])


def _told_apart(tree: Iterable[Any]) -> list[str]:
    """One of `CHARACTERS` for each way in which the pattern's sets take them or not."""
    sets = list(_sets(tree))
    kept: dict[tuple[bool, ...], str] = {}
    for character in CHARACTERS:
        kept.setdefault(tuple(one.fullmatch(character) is not None for one in sets), character)
    return list(kept.values())


def _sets(tree: Iterable[Any]) -> Iterator[re.Pattern[str]]:
    """Whatever takes one character, on its own."""
    for operator, argument in tree:
        if operator in _CHARACTER:
            yield _single(operator, argument)
        for inner in _inner(operator, argument):
            yield from _sets(inner)


def _single(operator: Any, argument: Any) -> re.Pattern[str]:
    return compiler.compile(parser.SubPattern(parser.State(), [(operator, argument)]))


_REPEATS = {getattr(constants, name, None) for name in ("MAX_REPEAT", "MIN_REPEAT", "POSSESSIVE_REPEAT")} - {None}
_CHARACTER = {constants.IN, constants.ANY, constants.LITERAL, constants.NOT_LITERAL}


def _units(repeated: Any, characters: Iterable[str]) -> list[str]:
    """Texts that a repeat takes once: of a set the characters it takes, of several branches one for each."""
    operator, argument = repeated[0]
    if len(repeated) > 1:
        return [_sample(repeated)]
    if operator in _CHARACTER:
        one = _single(operator, argument)
        return [character for character in characters if one.fullmatch(character)]
    return [unit for inner in _inner(operator, argument) for unit in _units(inner, characters)]


def _sample(tree: Iterable[Any]) -> str:
    """A text that a parsed pattern is likely to take; each repeat as often as it must, at least once."""
    return "".join(_sample_of(operator, argument) for operator, argument in tree)


def _sample_of(operator: Any, argument: Any) -> str:
    if operator in _CHARACTER:
        one = _single(operator, argument)
        # a literal may be none of ours
        more = chr(argument) if operator is constants.LITERAL else ""
        return next((character for character in more + CHARACTERS if one.fullmatch(character)), "")
    if operator in (constants.ASSERT, constants.ASSERT_NOT):
        return ""  # it is outside the text
    inner = _inner(operator, argument)
    return _sample(inner[0]) * (max(1, argument[0]) if operator in _REPEATS else 1) if inner else ""
