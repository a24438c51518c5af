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
    """A declared field of options, with the texts that pages and menus derive from it."""

    default: Any
    label: str
    """Label of its control on a page; empty if it has none."""
    text: str
    """Description in a sentence or two."""
    choices: tuple[str, ...]
    """Allowed values in the order of menus, default first; empty if it is no menu."""
    meanings: Mapping[str, str]
    """Meanings of choices, in a few words; choices that need none are left out."""
    minimum: float | None
    maximum: float | None
    step: float | None
    is_lines: bool
    """Whether it is a text of several lines, one phrase per line; on the command line a flag for each."""
    metavar: str | None
    """Placeholder of its value in ``--help``."""
    kind: type
    """Type of its value."""
    short_help: str
    """Line of ``--help``, if it is not the text."""

    @property
    def info(self) -> str:
        """Line below its control on a page: the first sentence of its text."""
        return self.text.split(". ")[0].removesuffix(".")

    @property
    def help(self) -> str:
        """Line of ``--help``."""
        return self.short_help or self.info[:1].lower() + self.info[1:]

    @property
    def tooltip(self) -> str:
        """Its text, and a line for each choice with a meaning."""
        return with_choices(self.text, self.meanings)

    def shown(self, choice: str) -> str:
        """A choice as pages show it."""
        meaning = self.meanings.get(choice)
        return f"{choice}: {meaning}" if meaning else choice

    def chosen(self, shown: str) -> str:
        """The choice that a page shows in these words; other words are returned as they are."""
        return next((choice for choice in self.choices if shown == self.shown(choice)), shown)


def option(
    default: Any,
    label: str = "",
    text: str = "",
    *,
    help: str = "",
    choices: Mapping[str, str] | Iterable[str] = (),
    minimum: float | None = None,
    maximum: float | None = None,
    step: float | None = None,
    is_lines: bool = False,
    metavar: str | None = None,
    kind: type | None = None,
) -> Any:
    """Declare a field of options: its default, and its `Option`.

    Args:
        default: Value if none is given.
        label: As in `Option`.
        text: As in `Option`.
        help: Line of ``--help``; by default the text.
        choices: Allowed values; as a mapping with the meaning of each, which may be empty.
        minimum: Smallest number; it is checked.
        maximum: Largest number; it is checked.
        step: Distance between two values of a slider.
        is_lines: As in `Option`.
        metavar: As in `Option`.
        kind: As in `Option`; by default the type of the default value; text for None.
    """
    meanings = {value: meaning for value, meaning in choices.items() if meaning} if isinstance(choices, Mapping) else {}
    declaration = Option(
        *(default, label, text, tuple(choices), meanings, minimum, maximum, step, is_lines, metavar),
        *(kind or (str if default is None else type(default)), help),
    )
    return dataclasses.field(default=default, metadata={"option": declaration})


def with_choices(text: str, meanings: Mapping[str, str]) -> str:
    """A tooltip: a text, and the meaning of each choice on a line of its own."""
    return "\n".join([text, *map(choice_line, meanings.items())])


def choice_line(choice: tuple[str, str]) -> str:
    """A choice and its meaning as a line of a tooltip."""
    value, meaning = choice
    return f"{value}: {meaning}{'' if meaning.endswith('…') else '.'}"


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
    """Check an object's values against the declarations of its fields.

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
