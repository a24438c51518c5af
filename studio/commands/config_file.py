"""Options of a command in a YAML file, which replaces the defaults; each run writes its own.

Such a file may be a stranger's. It is read as a flat table of texts from YAML's events, so nothing in it is expanded,
resolved or built; each text is then converted as if it had been typed.
"""

from __future__ import annotations

import argparse
import copy
import difflib
import math
import re
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, NoReturn, cast

from ...encoder.quoting import quote
from ...encoder.regular_file import read_regular
from ...weighting.text.prompt import shortened
from ..output.files import write_text

CONFIG_FLAG = "--config"
CONFIG_NAME = "run.yaml"
"""File in a run's folder with its own options."""
MOST_BYTES = 64 * 1024
_NOT_WRITTEN = ("run", "config", "resume")
_NO_OPTIONS = ("help", "config")
_FLAGS = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}
_NOTHING = ("", "~", "null", "Null", "NULL")
"""Unquoted texts that YAML reads as null; such an option counts as left out."""
_OCTAL = re.compile("[-+]?0[0-9_]+")
_UTF_16 = (b"\xff\xfe", b"\xfe\xff")


class _Scalar(NamedTuple):
    """A text of a file."""

    value: str
    line: int
    is_plain: bool
    """Whether it is without quotes."""


class _OptionsFile(NamedTuple):
    """A file of options."""

    path: Path
    text: str

    def error(self, line: int, problem: str) -> ValueError:
        """An error in a line, counted from 1."""
        return ValueError(f"{CONFIG_FLAG} {self.path}, line {line}: {problem}")

    def entries(self) -> Iterator[tuple[_Scalar, _Scalar | list[_Scalar]]]:
        """Keys with their text or list of texts; ValueError if the file holds anything else."""
        import yaml

        try:
            events = (self._checked(event) for event in yaml.parse(self.text, yaml.SafeLoader))
            root = next(islice(events, 2, None), None)  # after those of the stream and the document
            if not isinstance(root, yaml.MappingStartEvent):
                self._refuse(root, "write an option a line, such as “steps: 500”")
            while not isinstance(event := next(events), yaml.MappingEndEvent):
                key = self._text(event, "write an option's name")
                yield key, self._value(next(events), events, f"{quote(key.value)}: write one number or text")
            next(events)
            if not isinstance(more := next(events), yaml.StreamEndEvent):
                self._refuse(more, "a second document begins; write all options in one")
        except yaml.reader.ReaderError as error:
            line = self.text.count("\n", 0, error.position) + 1
            raise self.error(line, f"the character {ord(self.text[error.position]):#06x} is not of a text") from error
        except yaml.MarkedYAMLError as error:
            mark = error.problem_mark or error.context_mark
            raise self.error(mark.line + 1 if mark else 1, f"no YAML: {shortened(str(error.problem))}") from error

    def _checked(self, event: Any) -> Any:
        """An event, unless it refers to others or asks for a type."""
        if getattr(event, "anchor", None) is not None:
            self._refuse(event, "write each value in its place: anchors and aliases (& and *) are not read")
        if getattr(event, "tag", None) is not None:
            self._refuse(event, f"leave out the tag {quote(event.tag)}: values are read as the option needs them")
        return event

    def _text(self, event: Any, problem: str) -> _Scalar:
        import yaml

        if not isinstance(event, yaml.ScalarEvent):
            self._refuse(event, f"{problem}, not a list or table")
        return _Scalar(event.value, event.start_mark.line + 1, event.style is None)

    def _value(self, event: Any, events: Iterator[Any], problem: str) -> _Scalar | list[_Scalar]:
        import yaml

        if not isinstance(event, yaml.SequenceStartEvent):
            return self._text(event, problem)
        texts: list[_Scalar] = []
        while not isinstance(event := next(events), yaml.SequenceEndEvent):
            texts.append(self._text(event, problem))
        return texts

    def _refuse(self, event: Any, problem: str) -> NoReturn:
        raise self.error(event.start_mark.line + 1 if event else 1, problem)


def _read(path: Path) -> _OptionsFile:
    """A file's text; ValueError if it has none."""
    try:
        content = read_regular(path, MOST_BYTES)
    except OSError as error:
        raise ValueError(f"{CONFIG_FLAG} {path} cannot be read: {error.strerror or error}") from error
    try:
        return _OptionsFile(path, content.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        kind = "UTF-16" if content.startswith(_UTF_16) else "not UTF-8"
        line = content.count(b"\n", 0, error.start) + 1
        raise ValueError(f"{CONFIG_FLAG} {path}, line {line}: the file is {kind}; save it as UTF-8") from error


def add_negations(parser: argparse.ArgumentParser) -> None:
    """Add a ``--no-…`` flag for each option, to cancel what a file sets; the help does not list them."""
    for action in list(parser._actions):
        is_flag = isinstance(action, argparse._StoreTrueAction)
        has_value = isinstance(action, (argparse._StoreAction, argparse._AppendAction)) and not action.required
        if not action.option_strings or not (is_flag or has_value) or action.dest in _NOT_WRITTEN:
            continue
        parser.add_argument(
            *(f"--no-{flag.removeprefix('--')}" for flag in action.option_strings),
            dest=action.dest,
            action="store_const",
            const=action.default,
            default=argparse.SUPPRESS,
            help=argparse.SUPPRESS,
        )


def apply_config(parser: argparse.ArgumentParser, words: Sequence[str]) -> None:
    """Make the values of the file given by ``--config``, if any, a parser's defaults.

    What is typed counts instead of them, and instead of those that exclude it; options that may be typed several times
    are added to the file's. ValueError if the file cannot be read, or is not a table of the parser's options.
    """
    typed, rest = _typed(parser, words)
    paths: list[str] = typed.pop("config", [])
    if not paths:
        return
    if len(paths) > 1:
        raise ValueError(f"{CONFIG_FLAG} is given {len(paths)} times: one file has all options")
    try:
        import yaml  # noqa: F401
    except ModuleNotFoundError as error:
        raise ValueError(f"{CONFIG_FLAG} needs PyYAML, which python run.py installs") from error
    table = _read(Path(paths[0]))
    values = dict(_values(parser, table))
    for group in parser._mutually_exclusive_groups:
        rivals = [action for action in group._group_actions if action in values]
        if any(action.dest in typed for action in group._group_actions):
            values = {action: value for action, value in values.items() if action not in rivals}
        elif len(rivals) > 1:
            names = " and ".join(_name(action) for action in rivals)
            raise ValueError(f"{CONFIG_FLAG} {table.path}: {names} exclude each other; leave out one of them")
        elif rivals:
            group.required = False
    is_unknown = any(word.startswith("-") for word in rest)  # whose value may be among the others, too
    for action, value in values.items():
        if action.option_strings:
            action.required, action.default = False, value
        elif is_unknown or not rest:
            action.required, action.nargs, action.default = False, "?", value


def _typed(parser: argparse.ArgumentParser, words: Sequence[str]) -> tuple[dict[str, Any], list[str]]:
    """Typed options by name, parsed without defaults, and all other words."""
    bare = copy.deepcopy(parser)
    options = [
        action for action in bare._actions if action.option_strings and not isinstance(action, argparse._HelpAction)
    ]
    flags = {flag: action for flag, action in bare._option_string_actions.items() if action in options}
    vars(bare).update(_actions=options, _option_string_actions=flags, _defaults={})
    for action in options:
        action.required, action.default = False, argparse.SUPPRESS
    for group in bare._mutually_exclusive_groups:
        group.required = False
    options_typed, rest = argparse.ArgumentParser.parse_known_args(bare, list(words), argparse.Namespace())
    return vars(options_typed), rest


def _values(parser: argparse.ArgumentParser, table: _OptionsFile) -> Iterator[tuple[argparse.Action, Any]]:
    """Actions with their values from a file, in its order."""
    actions = {
        _name(action): action
        for action in parser._actions
        if isinstance(action, (argparse._StoreAction, argparse._AppendAction, argparse._StoreTrueAction))
        and _name(action) not in _NO_OPTIONS
    }
    lines: dict[argparse.Action, int] = {}
    for key, value in table.entries():
        name = key.value.replace("_", "-") if len(key.value) <= max(map(len, actions)) else ""
        action = actions.get(name)
        if action is None:
            near = difflib.get_close_matches(name, actions, 1)
            advice = "".join(f"; did you mean {option}?" for option in near)
            if name in _NO_OPTIONS:
                raise table.error(key.line, f"--{name} is only typed: take it out of the file")
            raise table.error(key.line, f"{quote(key.value)} is no option of this command{advice}")
        if action in lines:
            raise table.error(key.line, f"{quote(key.value)} is there a second time, after line {lines[action]}")
        lines[action] = key.line
        texts = value if isinstance(value, list) else [value]
        if isinstance(value, list) and not isinstance(action, argparse._AppendAction):
            raise table.error(key.line, f"{quote(key.value)}: write one number or text, not a list or table")
        if not isinstance(value, list) and value.is_plain and value.value in _NOTHING:
            continue
        values = [_converted(action, text, f"{quote(key.value)}: ", table) for text in texts]
        yield action, values if isinstance(action, argparse._AppendAction) else values[0]


def _converted(action: argparse.Action, text: _Scalar, key: str, table: _OptionsFile) -> Any:
    """A text as the option's type."""
    value, quoted = text.value, quote(text.value)
    if isinstance(action, argparse._StoreTrueAction):
        if value.lower() not in _FLAGS:
            raise table.error(text.line, f"{key}write true or false, not {quoted}")
        return _FLAGS[value.lower()]
    if text.is_plain and _OCTAL.fullmatch(value):
        raise table.error(
            text.line, f"{key}{quoted} is octal in YAML: write a number without the first 0, or a text in quotes"
        )
    kind: Any = action.type or str
    try:
        converted = kind(value)
    except (ValueError, TypeError, argparse.ArgumentTypeError) as error:
        needed = {int: "a whole number", float: "a number"}.get(kind, "another value")
        raise table.error(text.line, f"{key}write {needed}, not {quoted}") from error
    if action.choices is not None and converted not in action.choices:
        raise table.error(text.line, f"{key}write one of {', '.join(map(str, action.choices))}, not {quoted}")
    return converted


def _name(action: argparse.Action) -> str:
    """An option's name in a file, with hyphens."""
    return action.option_strings[-1].removeprefix("--") if action.option_strings else action.dest.replace("_", "-")


def write_config(path: Path, arguments: argparse.Namespace) -> None:
    """Write the arguments of a command as a file that `apply_config` reads."""
    import yaml

    values = {name: value for name, value in vars(arguments).items() if name not in _NOT_WRITTEN and value is not None}
    if values.get("steps") is not None:
        values.pop("epochs", None)
    plain = {name: _plain(value) for name, value in values.items()}
    write_text(path, yaml.safe_dump(plain, sort_keys=False, allow_unicode=True))


def _plain(value: Any) -> Any:
    """A value as YAML that reads back as it would be typed."""
    if isinstance(value, list):  # a copy: YAML would write one that is there twice as an alias
        return [_plain(entry) for entry in cast("list[Any]", value)]
    is_number = isinstance(value, (bool, int)) or (isinstance(value, float) and math.isfinite(value))
    return value if is_number else str(value)
