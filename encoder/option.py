"""Options, each declared once: as a field of a frozen dataclass, with everything that menus, pages and commands say.

It stands in the lowest room so that every room can declare options. Importing it takes no torch.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from .quoting import quote


class Option(NamedTuple):
    """A field of options, as all fronts show it."""

    default: Any
    label: str
    """Label of its control on a page; empty if it has none."""
    info: str
    """A few words below the control."""
    tooltip: str
    """Whole sentences, followed by what is said of each choice, a line each."""
    help: str
    """Line of ``--help``."""
    choices: tuple[str, ...]
    """Allowed values in the order of menus, default first; empty if it is no menu."""
    said: Mapping[str, str]
    """Sentences of the tooltip about choices; those that need none are left out."""
    called: Mapping[str, str]
    """Choices in a few words, which a page shows after their names; may be empty."""
    minimum: float | None
    maximum: float | None
    step: float | None
    is_lines: bool
    """Whether it is a text of several lines, one phrase per line; on the command line a flag for each."""
    metavar: str | None
    """Placeholder of its value in ``--help``."""
    kind: type
    """Type of its value."""

    def shown(self, choice: str) -> str:
        """A choice as pages show it."""
        called = self.called.get(choice)
        return f"{choice}: {called}" if called else choice

    def chosen(self, shown: str) -> str:
        """The choice that a page shows in these words; other words are returned as they are."""
        return next((choice for choice in self.choices if shown == self.shown(choice)), shown)


def option(
    default: Any,
    label: str = "",
    info: str = "",
    tooltip: str = "",
    *,
    help: str = "",
    choices: Mapping[str, str] | Iterable[str] = (),
    called: Mapping[str, str] | None = None,
    minimum: float | None = None,
    maximum: float | None = None,
    step: float | None = None,
    is_lines: bool = False,
    metavar: str | None = None,
    kind: type | None = None,
) -> Any:
    """Declare a field of options: its default, and what its `Option` says of it.

    Args:
        default: Value if none is given.
        label: As in `Option`.
        info: As in `Option`.
        tooltip: The first sentences of the tooltip; by default ``info`` as a sentence.
        help: As in `Option`; by default ``info`` in lower case.
        choices: Allowed values; with what the tooltip says of each, in sentences, where that needs saying.
        called: As in `Option`.
        minimum: Smallest number; it is checked.
        maximum: Largest number; it is checked.
        step: Distance between two values of a slider.
        is_lines: As in `Option`.
        metavar: As in `Option`.
        kind: As in `Option`; by default that of the default, and text for None.
    """
    said = {value: text for value, text in choices.items() if text} if isinstance(choices, Mapping) else {}
    words = help or info[:1].lower() + info[1:]
    declaration = Option(
        *(default, label, info, with_choices(tooltip or f"{info}.", said), words, tuple(choices), said, called or {}),
        *(minimum, maximum, step, is_lines, metavar, kind or (str if default is None else type(default))),
    )
    return dataclasses.field(default=default, metadata={"option": declaration})


def with_choices(first: str, said: Mapping[str, str]) -> str:
    """A tooltip of some sentences, with what is said of each choice on a line of its own."""
    return "\n".join([first, *(f"{value}: {text}" for value, text in said.items())])


def options_in(cls: Any) -> dict[str, Option]:
    """Declaration of each field of a dataclass, in order."""
    return {field.name: field.metadata["option"] for field in dataclasses.fields(cls) if "option" in field.metadata}


class OptionError(ValueError):
    """Raised for a value that an option does not allow."""

    def __init__(self, name: str, label: str, reason: str) -> None:
        """Name the option by its field; ``reason`` says what it must be, and what it is."""
        super().__init__(f"{name} {reason}")
        self.on_page = f"{label or name} {reason}"
        """The message for a page, which shows the option's label."""


def check_options(options: Any, declared: Mapping[str, Option]) -> None:
    """Check the values of an object against what is declared of its fields.

    Raises:
        OptionError: If a choice is not allowed, a text of lines is no text, a float is no number or out of range.
    """
    for name, declaration in declared.items():
        value: object = getattr(options, name)
        if (
            declaration.choices and value not in declaration.choices
        ):  # in a tuple, as a caller's value may not be hashable
            raise OptionError(
                name, declaration.label, f"must be one of: {', '.join(declaration.choices)}; got {quote(value)}"
            )
    for name, declaration in declared.items():
        value = getattr(options, name)
        if declaration.is_lines and not isinstance(value, str):
            raise OptionError(name, declaration.label, f"must be a text, got {quote(value)}")
        if isinstance(declaration.default, float):
            _check_number(name, value, declaration)


def _check_number(name: str, value: object, declaration: Option) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise OptionError(name, declaration.label, f"must be a number, got {quote(value)}")
    if declaration.minimum is None or declaration.maximum is None:
        if not math.isfinite(value):
            raise OptionError(name, declaration.label, f"must be a finite number, got {quote(value)}")
    elif not declaration.minimum <= value <= declaration.maximum:
        raise OptionError(
            name, declaration.label, f"must be {declaration.minimum:g} to {declaration.maximum:g}, got {quote(value)}"
        )
