"""Axes of the host's X/Y/Z plot: the script's menus, and the weight of a word.

The host's script copies a generation for each cell, lets every axis change the copy, and makes its images. A menu's
value is stored on the copy, where `on_axes` finds it when the cell begins. The weight of a word is written into the
prompt, so that it also acts without our script and appears in the image's parameters.

Source: behaviour of stable-diffusion-webui 1.10 and stable-diffusion-webui-forge dfdcbab6 (2025-06).
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from ...weighting.options import OPTIONS, PLACE_OPTIONS
from ...weighting.schemes import SCHEMES
from ...weighting.syntax import SYNTAXES
from ...weighting.syntax.record import decimal
from .engines import Generation, WebUIError
from .settings import INFOTEXT, NAMES, Settings

OFF = "off"
"""Value of the scheme axis for images without our script, and of the axis of places for those without places."""
MENUS: dict[str, tuple[str, tuple[str, ...]]] = {
    name: (OPTIONS[name].label, (*((OFF,) if name == "scheme" else ()), *OPTIONS[name].choices))
    for name in ("scheme", "normalization", "law", "mask_method", "padding")
}
"""Title and values of each axis that is a menu, by name of its setting."""
LABEL = f"[{INFOTEXT}] "
"""Prefix of our axes in the host's menus, as in other extensions."""
WEIGHT = "Weight of a word"
PLACES = PLACE_OPTIONS["places"].label
MAX_WEIGHTS = 100
"""Maximum number of values in a range."""
PROMPTS = ("prompt", "negative_prompt", "hr_prompt", "hr_negative_prompt")
"""Attributes of a generation that are searched for words."""

_AXES = "weighted_clip_axes"
"""Attribute of a generation: axis values by name of their setting."""
_NUMBER = r"[+-]?(?:\d+(?:\.\d*)?|\.\d+)"
_SINGLE = re.compile(_NUMBER)
_BRACKETS = re.compile(r"[()\[\]\\<>]")
_RANGE = re.compile(rf"({_NUMBER})\s*-\s*({_NUMBER})\s*(?:\(\s*\+?({_NUMBER})\s*\)|\[\s*(\d{{1,12}})\s*\])?")
_BEFORE, _BEHIND = r"(?<!\w)(?<!\w-)", r"(?!\w)(?!-\w)"
_GROUPS = {
    "comfy": rf"(?<!\\)\(\s*(?P<inside>{{word}})\s*(?::\s*{_NUMBER}\s*)?\)",
    "a1111": rf"(?<!\\)(?:\(\s*(?P<inside>{{word}})\s*(?::\s*{_NUMBER}\s*)?\)|\[\s*(?P<square>{{word}})\s*\])",
    "compel": rf"(?<!\\)\(\s*(?P<inside>{{word}})\s*\)(?:\++|-+(?!\d)|{_NUMBER})?",
}
"""Pattern of the word alone in a group with a weight, by syntax."""
_SIGNS = {"compel": r"(?:\++|-+(?!\w))?"}
"""Pattern of signs that weight the word before them, by syntax."""


def add_axes() -> None:
    """Add our axes to the X/Y/Z plot, if there is one. For the host's callback before its page is built."""
    from modules import scripts  # pyright: ignore[reportMissingImports]

    for loaded in scripts.scripts_data:
        options, axis_option = (getattr(loaded.module, name, None) for name in ("axis_options", "AxisOption"))
        if Path(loaded.path).name != "xyz_grid.py" or options is None or axis_option is None:
            continue
        known = {option.label for option in options}
        options += [axis for axis in _axes(axis_option) if axis.label not in known]


def _axes(axis_option: Any) -> Iterator[Any]:
    for name, (title, choices) in MENUS.items():
        yield axis_option(
            LABEL + title,
            str,
            partial(_choose, name),
            format_value=partial(_titled, title),
            confirm=partial(_confirm_choices, title, choices),
            choices=partial(list, choices),
        )
    yield axis_option(LABEL + WEIGHT, str, _weigh, format_value=_value, confirm=_confirm_weights, prepare=weights)
    yield axis_option(LABEL + PLACES, str, _place, format_value=_value, confirm=_confirm_places)


def on_axes(p: Generation, values: Sequence[Any]) -> tuple[Sequence[Any], str | None]:
    """Values of the controls, in the order of `Settings`, with those of axes in a cell of the X/Y/Z plot; and a note.

    Our axes switch the script on, except for the scheme `OFF`, which switches it off. Outside cells nothing changes.
    """
    axes: dict[str, str] = getattr(p, _AXES, {})
    if not axes:
        return values, None
    if axes.get("scheme") == OFF:
        return [False], None
    defaults = list(vars(Settings()).values())
    found = [True, *values[1:], *defaults[max(1, len(values)) :]]
    for name, value in axes.items():
        index = NAMES.index(name)
        found[index] = _with_lines(found[index], value) if name == "places" else value
    scheme = found[NAMES.index("scheme")]
    unread = [
        MENUS[option][0] for name, one in SCHEMES.items() for option in one.options if option in axes and name != scheme
    ]
    if unread:
        return found, f"The axis {' and the axis '.join(unread)} changes nothing: the scheme {scheme} does not read it."
    return found, None


def settle(p: Generation, values: Sequence[Any]) -> tuple[Sequence[Any], str | None]:
    """Same as `on_axes`, also replacing the generation's own list of values, for later use, e.g. by ADetailer."""
    found, note = on_axes(p, values)
    if found is not values and (ours := _our_values(p)) is not None:
        every = list(p.script_args)
        count = len(every[ours])
        every[ours] = [*found, *every[ours][len(found) :]][:count]
        p.script_args = every
    return found, note


def weights(text: str) -> list[str]:
    """Values of the axis of weights, each with its word, from the user's input ``word: values``.

    A value is a weight, or a range as on the host's own axes. A word applies until another is named.

    >>> weights("dog: 0-1 [3], red cat: 0.5, 1.2")
    ['dog: 0', 'dog: 0.5', 'dog: 1', 'red cat: 0.5', 'red cat: 1.2']
    """
    found: list[str] = []
    word = ""
    for item in next(csv.reader([text.replace("\n", " ")], skipinitialspace=True), []):
        named, colon, written = item.rpartition(":")
        word = named.strip() if colon else word
        if not word or _BRACKETS.search(word):
            raise WebUIError(
                f"{WEIGHT}: expected a word without brackets, a colon and weights, such as dog: 0-1 [5]; got "
                f"“{item.strip()}”"
            )
        found += [f"{word}: {decimal(weight)}" for weight in _weights(written.strip())]
    return found


def _weights(written: str) -> list[float]:
    """Numbers of one value: itself, or those of a range, both ends included."""
    if _SINGLE.fullmatch(written):
        return [float(written)]
    found = _RANGE.fullmatch(written)
    if found is None:
        raise WebUIError(
            f"{WEIGHT}: expected a weight such as 0.5, or a range such as 0-1 [5] or 0-1 (+0.25); got “{written}”"
        )
    start, end, step = float(found[1]), float(found[2]), float(found[3] or 1.0)
    if found[4] is not None:
        count = int(found[4])
        step = (end - start) / max(1, count - 1)
    else:
        count = int((end - start) / step + 1e-6) + 1 if step and (end - start) * step >= 0 else 0
    if not 1 <= count <= MAX_WEIGHTS:
        raise WebUIError(f"{WEIGHT}: “{written}” has {count} weights; 1 to {MAX_WEIGHTS} are allowed")
    return [round(start + index * step, 4) for index in range(count)]


def _titled(title: str, p: Generation, option: Any, value: str) -> str:
    """Text of the grid at a row or column."""
    return f"{title}: {value}"


def _value(p: Generation, option: Any, value: str) -> str:
    return value


def _choose(name: str, p: Generation, value: str, values: Sequence[str]) -> None:
    """Store a menu's value for the coming cell, which is a copy that shares attributes with others."""
    setattr(p, _AXES, {**getattr(p, _AXES, {}), name: value})


def _place(p: Generation, value: str, values: Sequence[str]) -> None:
    """Store a line of Places for the coming cell, below one of another axis."""
    _choose("places", p, "\n".join(filter(None, [getattr(p, _AXES, {}).get("places"), value])), values)


def _with_lines(text: object, lines: str) -> object:
    r"""Text of Places with the lines of cells in place of those of their phrases; `OFF` takes all lines out.

    >>> _with_lines("red cat: left\nblue dog: right", "Red cat: top")
    'blue dog: right\nRed cat: top'
    """
    kept = text.splitlines() if isinstance(text, str) else []
    for line in lines.splitlines():
        if line == OFF:
            kept.clear()
        else:
            kept = [*(one for one in kept if _phrase_of(one) != _phrase_of(line)), line]
    return "\n".join(kept)


def _phrase_of(line: str) -> list[str]:
    return line.rpartition(":")[0].casefold().split()


def _confirm_places(p: Generation, values: Sequence[str]) -> None:
    if not values:
        raise WebUIError(f"{PLACES}: write a line for each value, in quotes if it has a comma")
    for value in values:
        if value != OFF:
            Settings(places=value).placed()


def _confirm_choices(title: str, choices: Sequence[str], p: Generation, values: Sequence[str]) -> None:
    if not values:
        raise WebUIError(f"{title}: choose at least one value")
    for value in values:
        if value not in choices:
            raise WebUIError(f"{title} must be one of: {', '.join(choices)}; got “{value}”")


def _confirm_weights(p: Generation, values: Sequence[str]) -> None:
    if not values:
        raise WebUIError(f"{WEIGHT}: name a word and weights, such as dog: 0-1 [5]")
    for value in dict.fromkeys(values):
        _weighed(p, value)


def _weigh(p: Generation, value: str, values: Sequence[str]) -> None:
    """Write the weight of a word into the prompts of the coming cell."""
    for name, prompt in _weighed(p, value).items():
        setattr(p, name, prompt)


def _weighed(p: Generation, value: str) -> dict[str, str]:
    """Prompts of a generation that contain a word, with its weight inserted; refused if none contains it."""
    word, _, weight = value.rpartition(": ")
    syntax = _syntax_of(p)
    prompts = {name: prompt for name in PROMPTS if isinstance(prompt := getattr(p, name, None), str)}
    changed = {name: with_weight(prompt, word, float(weight), syntax) for name, prompt in prompts.items()}
    found = {name: prompt for name, prompt in changed.items() if prompt is not None}
    if not found:
        raise WebUIError(
            f"{WEIGHT}: “{word}” is neither in the prompt nor in the negative prompt, where it must stand as a "
            "word of its own"
        )
    return found


def _our_values(p: Generation) -> slice | None:
    """Position of our script's values among those of all scripts."""
    scripts = getattr(getattr(p, "scripts", None), "alwayson_scripts", ())
    return next((slice(one.args_from, one.args_to) for one in scripts if one.title() == INFOTEXT), None)


def _syntax_of(p: Generation) -> str:
    """Syntax of a generation's prompts: the script's, if it is on or will be."""
    ours = _our_values(p)
    values, _ = on_axes(p, [] if ours is None else p.script_args[ours])
    index = NAMES.index("syntax")
    return values[index] if values and values[0] and len(values) > index else Settings.syntax


def with_weight(prompt: str, word: str, weight: float, syntax: str) -> str | None:
    """Give a word a weight wherever it occurs in a prompt; None if it does not.

    A word is one or more words, in any case, without brackets; LoRAs and other tags in angle brackets are none. The
    weight replaces one in the word's own brackets; brackets around it and other words still multiply. Refused if the
    syntax has no weights, or not this one.

    >>> with_weight("a dog, (Dog:1.2), hotdog <lora:dog:1>", "dog", 0.5, "a1111")
    'a (dog:0.5), (Dog:0.5), hotdog <lora:dog:1>'
    >>> with_weight("a dog+ and (a cat)1.2", "a cat", 0.5, "compel")
    'a dog+ and (a cat)0.5'
    """
    write = SYNTAXES[syntax].write if syntax in _GROUPS else None
    if write is None:
        raise WebUIError(f"{WEIGHT}: the syntax {syntax} has no weights; allowed: {', '.join(_GROUPS)}")
    is_found = False

    def replaced(match: re.Match[str]) -> str:
        nonlocal is_found
        inside = next(filter(None, match.groups()), None)
        if inside is None:
            return match[0]
        is_found = True
        written = next(write(inside, weight), None)
        if written is None:
            raise WebUIError(f"{WEIGHT}: the syntax {syntax} has no weight {weight:g}")
        return written

    form = form_of(word, syntax)
    result = form.sub(replaced, prompt)
    return result if is_found else None


def form_of(word: str, syntax: str) -> re.Pattern[str]:
    """Pattern of a word, alone in a weighted group or bare; it also matches tags, without a group of the pattern."""
    spaced = r"\s+".join(map(re.escape, word.split()))
    group = _GROUPS[syntax].replace("{word}", spaced)
    return re.compile(rf"<[^<>]*>|{group}|{_BEFORE}(?P<word>{spaced}){_BEHIND}{_SIGNS.get(syntax, '')}", re.IGNORECASE)
