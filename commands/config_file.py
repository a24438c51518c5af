"""Options of a command in a YAML file: read before its other arguments, and written by each run."""

from __future__ import annotations

import argparse
import difflib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..output.files import written_whole

CONFIG_FLAG = "--config"
CONFIG_NAME = "run.yaml"
"""File in a run's folder with its own options."""
MOST_BYTES = 64 * 1024
_NOT_WRITTEN = ("run", "config", "resume")


def config_arguments(parser: argparse.ArgumentParser, given: Sequence[str]) -> list[str]:
    """Arguments to put before those given, from the file that these name; none if they name none.

    Options that are given count instead of the file's; those that may be given several times are added to it.

    Raises:
        ValueError: If the file cannot be read, or is not a mapping of the parser's options.
    """
    finder = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    finder.add_argument(CONFIG_FLAG, action="append", nargs="?")
    found = [path for path in finder.parse_known_args(list(given))[0].config or () if path]
    if not found:
        return []
    if len(found) > 1:
        raise ValueError(f"{CONFIG_FLAG} is given {len(found)} times: one file has all options")
    flags: dict[str, argparse.Action] = {
        flag.removeprefix("--"): action for flag, action in parser._option_string_actions.items() if flag != "--help"
    }
    places = {action.dest: action for action in parser._actions if not action.option_strings}
    words: list[str] = []
    for key, value in _read(Path(found[0])):
        name, where = key.replace("_", "-"), f"{CONFIG_FLAG} {found[0]}: {key}"
        if key in places:
            _give(places[key], value, where)
        elif name in flags and name != "config":
            words += _words(flags[name], name, value, where)
        else:
            near = difflib.get_close_matches(name, [*flags, *places], 1)
            advice = "".join(f"; did you mean {one}?" for one in near)
            raise ValueError(f"{CONFIG_FLAG} {found[0]}: {key!r} is no option of this command{advice}")
    return words


def _read(path: Path) -> list[tuple[str, Any]]:
    """Keys and values of a file, in its order."""
    try:
        import yaml
    except ModuleNotFoundError as error:
        raise ValueError(f"{CONFIG_FLAG} needs PyYAML, which python run.py installs") from error
    try:
        if path.stat().st_size > MOST_BYTES:
            raise ValueError(f"{CONFIG_FLAG} {path}: it is larger than {MOST_BYTES // 1024} KiB, so not of options")
        text = path.read_text(encoding="utf-8")
        loader = yaml.SafeLoader(text)
        root = loader.get_single_node()
        if not isinstance(root, yaml.MappingNode):
            raise ValueError(f"{CONFIG_FLAG} {path}: write an option a line, such as “steps: 500”")
        found = [(str(key.value), loader.construct_object(value, deep=True)) for key, value in root.value]
    except OSError as error:
        raise ValueError(f"{CONFIG_FLAG} {path} cannot be read: {error.strerror or error}") from error
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
        told = " ".join(str(error).split()) or "it is nested too deeply"
        raise ValueError(f"{CONFIG_FLAG} {path} cannot be read: {told}") from error
    keys = [key for key, _ in found]
    if twice := [key for key in keys if keys.count(key) > 1]:
        raise ValueError(f"{CONFIG_FLAG} {path}: {twice[0]!r} is there twice")
    return found


def _give(place: argparse.Action, value: Any, where: str) -> None:
    """Let a positional argument have a value if it is not given."""
    place.nargs, place.required = "?", False
    place.default = place.type(_text(value, where)) if callable(place.type) else _text(value, where)


def _words(action: argparse.Action, name: str, value: Any, where: str) -> list[str]:
    """Words of the command line for an option."""
    if value is None:
        return []
    if isinstance(action, argparse._StoreTrueAction):
        if not isinstance(value, bool):
            raise ValueError(f"{where}: write true or false, not {value!r}")
        return [f"--{name}"] if value else []
    is_list = isinstance(value, list) and isinstance(action, argparse._AppendAction)
    return [f"--{name}={_text(one, where)}" for one in (value if is_list else [value])]


def _text(value: Any, where: str) -> str:
    if isinstance(value, (bool, list, dict, bytes)) or value is None:
        raise ValueError(f"{where}: write one number or text, not {str(value)[:60]}")
    return str(value)


def write_config(path: Path, arguments: argparse.Namespace) -> None:
    """Write the arguments of a command as a file that `config_arguments` reads."""
    import yaml

    values = {name: value for name, value in vars(arguments).items() if name not in _NOT_WRITTEN and value is not None}
    if values.get("steps") is not None:
        values.pop("epochs", None)
    plain = {name: str(value) if isinstance(value, Path) else value for name, value in values.items()}
    with written_whole(path) as place:
        place.write_text(yaml.safe_dump(plain, sort_keys=False, allow_unicode=True), encoding="utf-8")
