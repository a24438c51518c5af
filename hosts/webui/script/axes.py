"""Axes of the host's X/Y/Z plot: the script's menus, and the weight of a word.

The host's script copies a generation for each cell, lets every axis change the copy, and makes its images. A menu's
value is stored on the copy, where `on_axes` finds it when the cell begins. The weight of a word is written into the
prompt, so that it also acts without our script and appears in the image's parameters.

Source: behaviour of stable-diffusion-webui 1.10 and stable-diffusion-webui-forge dfdcbab6 (2025-06).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from ....weighting.options import OPTIONS, PLACE_OPTIONS
from ....weighting.text.prompt import shortened
from ..engines import Generation, WebUIError
from ..settings import INFOTEXT, NAMES, Settings
from .axis_values import WEIGHT, strengths, values_of, weights, with_weight
from .typed_prompts import read_for_generation

OFF = "off"
"""Value of the scheme axis for images without our script, and of the axis of places for those without places."""
MENUS: dict[str, tuple[str, tuple[str, ...]]] = {
    name: (option.label, (*((OFF,) if name == "scheme" else ()), *option.choices))
    for name in ("scheme", "normalization", "law", "mask_method", "padding", "above_one", "syntax", "attention")
    for option in [{**OPTIONS, **PLACE_OPTIONS}[name]]
}
"""Title and values of each axis that is a menu, by name of its setting."""
LABEL = f"[{INFOTEXT}] "
"""Prefix of our axes in the host's menus, as in other extensions."""
PLACES, BIND = PLACE_OPTIONS["places"].label, OPTIONS["bind"].label
MAX_TOLD = 5
"""Maximum number of unknown values that are quoted."""
DEFAULT_STEPS = 20
"""Number of steps of a generation that does not say it."""
BETWEEN_PHRASES = " / "
"""Stands between the phrases of one value of the axis of phrases that are kept apart."""
PROMPTS = ("prompt", "negative_prompt", "hr_prompt", "hr_negative_prompt")
"""Attributes of a generation that are searched for words."""

_AXES = "weighted_clip_axes"
"""Attribute of a generation: axis values by name of their setting."""
_WRITTEN = "weighted_clip_weights"
"""Attribute of a generation: the weights of words that were written into its prompts, and these before and after."""
_SEEN = "weighted_clip_seen"
"""Attribute of a generation: values of the axes of weights and of syntaxes, as far as they were confirmed."""


def add_axes() -> None:
    """Add our axes to the X/Y/Z plot, if there is one. For the host's callback before its page is built."""
    from modules import scripts  # pyright: ignore[reportMissingImports]

    for loaded in scripts.scripts_data:
        options, axis_option = (getattr(loaded.module, name, None) for name in ("axis_options", "AxisOption"))
        if Path(loaded.path).name != "xyz_grid.py" or options is None or axis_option is None:
            continue
        labels = {option.label for option in options}
        options += [axis for axis in _axes(axis_option) if axis.label not in labels]


def _axes(axis_option: Any) -> Iterator[Any]:
    """Our axes, in the order in which a request counts them: new ones are only ever appended."""
    menus = iter(MENUS)
    yield from (_menu(axis_option, name) for name in islice(menus, 5))
    yield axis_option(LABEL + WEIGHT, str, _weigh, format_value=_value, confirm=_confirm_weights, prepare=weights)
    for title, apply, confirm in (
        (PLACES, _place, _confirm_places),
        (BIND, partial(_choose, "bind", phrases_of), _confirm_bound),
    ):
        if title == BIND:
            yield from (_menu(axis_option, name) for name in islice(menus, 2))
        prepare = partial(values_of, title)
        yield axis_option(LABEL + title, str, apply, format_value=_value, confirm=confirm, prepare=prepare)
    yield _strengths(axis_option, "bind_strength")
    yield from (_menu(axis_option, name) for name in menus)
    yield _strengths(axis_option, "attention_strength")


def _strengths(axis_option: Any, name: str) -> Any:
    """Axis of a setting that is a strength."""
    title = {**OPTIONS, **PLACE_OPTIONS}[name].label
    return axis_option(
        LABEL + title,
        str,
        partial(_choose, name, float),
        format_value=partial(_titled, title),
        confirm=partial(_confirm_there, f"{title}: write numbers, such as 0-1 [5]"),
        prepare=partial(strengths, name=name),
    )


def _menu(axis_option: Any, name: str) -> Any:
    title, choices = MENUS[name]
    return axis_option(
        LABEL + title,
        str,
        partial(_choose, name, str),
        format_value=partial(_titled, title),
        confirm=partial(_confirm_choices, name),
        choices=partial(list, choices),
        prepare=partial(values_of, title),
    )


def on_axes(p: Generation, values: Sequence[Any]) -> Sequence[Any]:
    """Values of the controls, in the order of `Settings`; in a cell of the X/Y/Z plot, axes replace some of them.

    Our axes switch the script on, except for the scheme `OFF`, which switches it off. Outside cells nothing changes.
    """
    axes: dict[str, Any] = getattr(p, _AXES, {})
    if not axes:
        return values
    if axes.get("scheme") == OFF:
        return [False]
    defaults = list(vars(Settings()).values())
    settled = [True, *values[1:], *defaults[max(1, len(values)) :]]
    for name, value in axes.items():
        index = NAMES.index(name)
        settled[index] = _with_lines(settled[index], value) if name == "places" else value
    return settled


def settle(p: Generation, values: Sequence[Any]) -> Sequence[Any]:
    """Same as `on_axes`, also replacing the generation's own list of values, for later use, e.g. by ADetailer."""
    settled = on_axes(p, values)
    if settled is not values and (value_slice := _our_values(p)) is not None:
        every = list(p.script_args)
        count = len(every[value_slice])
        every[value_slice] = [*settled, *every[value_slice][len(settled) :]][:count]
        p.script_args = every
    return settled


def _titled(title: str, p: Generation, option: Any, value: str) -> str:
    """Text of the grid at a row or column."""
    return f"{title}: {value}"


def _value(p: Generation, option: Any, value: str) -> str:
    return value


def _choose(name: str, read: Callable[[str], Any], p: Generation, value: str, values: Sequence[str]) -> None:
    """Store a setting's value for the coming cell, which is a copy that shares attributes with others."""
    setattr(p, _AXES, {**getattr(p, _AXES, {}), name: read(value)})
    if name == "syntax":
        _write_again(p)


def phrases_of(value: str) -> str:
    """Lines of phrases that are kept apart, from one value of their axis."""
    return "" if value == OFF else "\n".join(map(str.strip, value.split(BETWEEN_PHRASES.strip())))


def _place(p: Generation, value: str, values: Sequence[str]) -> None:
    """Store a line of Places for the coming cell, below one of another axis."""
    lines = filter(None, [getattr(p, _AXES, {}).get("places"), value])
    _choose("places", str, p, "\n".join(lines), values)


def _with_lines(text: object, lines: str) -> object:
    r"""Text of Places; a cell's line replaces the line of the same phrase, and `OFF` takes all lines out.

    >>> _with_lines("red cat: left\nblue dog: right", "Red cat: top")
    'blue dog: right\nRed cat: top'
    """
    place_lines = text.splitlines() if isinstance(text, str) else []
    for line in lines.splitlines():
        if line == OFF:
            place_lines.clear()
        else:
            place_lines = [
                *(place_line for place_line in place_lines if _phrase_of(place_line) != _phrase_of(line)),
                line,
            ]
    return "\n".join(place_lines)


def _phrase_of(line: str) -> list[str]:
    return line.rpartition(":")[0].casefold().split()


def _confirm_there(otherwise: str, p: Generation, values: Sequence[str]) -> None:
    """Raise if an axis has no values, or an empty one."""
    if not all(values) or not values:
        raise WebUIError(otherwise)


def _confirm_places(p: Generation, values: Sequence[str]) -> None:
    _confirm_there(f"{PLACES}: write a line for each value, in quotes if it has a comma", p, values)
    for value in values:
        if value != OFF:
            _confirm_in_prompt(p, replace(_settings_of(p), places=value))


def _confirm_bound(p: Generation, values: Sequence[str]) -> None:
    example = f"red cat{BETWEEN_PHRASES}blue dog"
    _confirm_there(f"{BIND}: write the phrases of each value, such as {example}, or {OFF} for none", p, values)
    for value in values:
        _confirm_in_prompt(p, replace(_settings_of(p), bind=phrases_of(value)))


def _confirm_in_prompt(p: Generation, settings: Settings) -> None:
    """Raise for phrases that are not in the prompt, as all cells have it; what styles add is not known yet."""
    settings.options()
    if getattr(p, "styles", None):
        return
    prompts = [prompt for name, prompt in _prompts_of(p).items() if prompt and name in ("prompt", "hr_prompt")]
    lines = [
        next(read_for_generation(prompt, getattr(p, "steps", DEFAULT_STEPS), settings).missing_phrases(), None)
        for prompt in dict.fromkeys(prompts)
    ]
    if lines and lines[0] and all(lines):
        raise WebUIError(lines[0][0])


def _confirm_choices(name: str, p: Generation, values: Sequence[str]) -> None:
    title, choices = MENUS[name]
    if not values:
        raise WebUIError(f"{title}: choose at least one value in its menu; typed text only counts with text inputs")
    if unknown := [value for value in values if value not in choices]:
        quoted = " and ".join(f"“{shortened(value)}”" for value in unknown[:MAX_TOLD])
        more = f" and {len(unknown) - MAX_TOLD} more" if len(unknown) > MAX_TOLD else ""
        raise WebUIError(f"{title} must be one of: {', '.join(choices)}; got {quoted}{more}")
    if name == "syntax":
        _confirm_written(p, syntaxes=values)


def _confirm_weights(p: Generation, values: Sequence[str]) -> None:
    _confirm_there(f"{WEIGHT}: name a word and weights, such as dog: 0-1 [5]", p, values)
    _confirm_written(p, weights=values)


def _confirm_written(p: Generation, **seen: Sequence[str]) -> None:
    """Raise if a weight cannot be written in a syntax; values of other axes were confirmed before or come later."""
    setattr(p, _SEEN, {**getattr(p, _SEEN, {}), **seen})
    confirmed: Mapping[str, Sequence[str]] = getattr(p, _SEEN)
    for syntax in dict.fromkeys(confirmed.get("syntaxes", [_settings_of(p).syntax])):
        for value in dict.fromkeys(confirmed.get("weights", [])):
            _weighed(p, value, syntax)


def _weigh(p: Generation, value: str, values: Sequence[str]) -> None:
    """Write the weight of a word into the prompts of the coming cell."""
    before = _prompts_of(p)
    for name, prompt in _weighed(p, value, _settings_of(p).syntax).items():
        setattr(p, name, prompt)
    setattr(p, _WRITTEN, (*getattr(p, _WRITTEN, ()), (value, before, _prompts_of(p))))


def _write_again(p: Generation) -> None:
    """Write the weights of words again, in the syntax that a cell turns out to have."""
    written: tuple[tuple[str, dict[str, str], dict[str, str]], ...] = getattr(p, _WRITTEN, ())
    if not written:
        return
    if _prompts_of(p) != written[-1][2]:
        raise WebUIError(f"Put the axis {MENUS['syntax'][0]} before those that change the prompt.")
    setattr(p, _WRITTEN, ())
    for name, prompt in written[0][1].items():
        setattr(p, name, prompt)
    for value, _, _ in written:
        _weigh(p, value, ())


def _prompts_of(p: Generation) -> dict[str, str]:
    return {name: prompt for name in PROMPTS if isinstance(prompt := getattr(p, name, None), str)}


def _weighed(p: Generation, value: str, syntax: str) -> dict[str, str]:
    """Prompts of a generation that contain a word, with its weight inserted; refused if none contains it."""
    word, _, weight = value.rpartition(": ")
    prompts = _prompts_of(p)
    changed = {name: with_weight(prompt, word, float(weight), syntax) for name, prompt in prompts.items()}
    weighted = {name: prompt for name, prompt in changed.items() if prompt is not None}
    if not weighted:
        raise WebUIError(f"{WEIGHT}: “{shortened(word)}” is in none of the prompts as a separate word")
    return weighted


def _our_values(p: Generation) -> slice | None:
    """Position of our script's values among the values of all scripts."""
    scripts = getattr(getattr(p, "scripts", None), "alwayson_scripts", ())
    return next((slice(script.args_from, script.args_to) for script in scripts if script.title() == INFOTEXT), None)


def _settings_of(p: Generation) -> Settings:
    """Settings of a generation's script, if it is on or will be, and otherwise the defaults."""
    value_slice = _our_values(p)
    values = on_axes(p, [] if value_slice is None else p.script_args[value_slice])
    return Settings.of(values[: len(NAMES)]) if values and values[0] else Settings()
