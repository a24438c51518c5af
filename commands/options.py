"""Command line arguments made of declared options (``encoder/option.py``)."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any

from ..encoder.option import Option


def add_arguments(
    parser: argparse._ActionsContainer, declared: Mapping[str, Option], *names: str, **defaults: Any
) -> None:
    """Add some declared options as flags, in this order; ``defaults`` replace those declared."""
    for name in names:
        about = declared[name]
        flag, help_line = f"--{name.replace('_', '-')}", about.help or None
        if isinstance(about.default, bool):
            parser.add_argument(flag, action="store_true", help=help_line)
        elif about.is_lines:
            parser.add_argument(flag, action="append", default=[], metavar=about.metavar, help=help_line)
        else:
            parser.add_argument(
                flag,
                type=type(about.default),
                choices=about.choices or None,
                default=defaults.get(name, about.default),
                metavar=about.metavar,
                help=help_line,
            )


def given_of(arguments: argparse.Namespace, declared: Mapping[str, Option]) -> dict[str, Any]:
    """Values of declared options among the arguments; repeated ones are joined, one per line."""
    given = {name: value for name, value in vars(arguments).items() if name in declared}
    return {name: "\n".join(value) if declared[name].is_lines else value for name, value in given.items()}
