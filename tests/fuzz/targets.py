"""All targets by name, and those at the front ends: requests of the ruler, handlers of the lab, commands, infotexts."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from functools import cache
from typing import Any
from unittest.mock import patch

from weighted_clip.encoder.models.config import TextConfig
from weighted_clip.hosts.webui.engines import WebUIError
from weighted_clip.hosts.webui.settings import Settings, infotext_key, pasted, take, untaken
from weighted_clip.nodes.encode import EMPHASIS
from weighted_clip.studio.commands import program
from weighted_clip.web.inspection import MAX_VIEWS, RequestError, inspect
from weighted_clip.weighting.options import EncodeOptions
from weighted_clip.weighting.reading import convert
from weighted_clip.weighting.schemes import SCHEMES

from ..ruler_route import NODES, post, route_host
from .drawing import Draw
from .file_targets import FILE_TARGETS
from .text_targets import CHOICES, STEPS, TEXT_TARGETS

NAMES = ["style", "a", "bad hands", "sub/style.pt", "..pt"]
CONFIG = TextConfig(hidden_dim=64, num_layers=1, num_heads=1, mlp_dim=64)


def route(data: bytes) -> None:
    """Any bytes as the body of a request."""
    with route_host(NAMES):
        status, answer = post(data)
    assert status in (200, 400, 413)
    assert json.dumps(answer, allow_nan=False)
    assert "views" in answer if status == 200 else answer["error"]


def node(data: bytes) -> None:
    """A request of a node, with values of its inputs that are allowed or any other."""
    draw = Draw(data)
    name = draw.pick([*NODES])
    values: dict[str, Any] = {}
    for _ in range(draw.number(4)):
        value = draw.pick([*NODES[name].defaults, "spin"])
        some = {**CHOICES, "steps": STEPS, "emphasis": [*EMPHASIS]}.get(value, ("style", True))
        values[value] = draw.pick(some) if draw.number(3) else draw.value()
    asked = {"node": name if draw.number(15) else draw.value(), "text": draw.rest(), "values": values}
    with route_host(NAMES):
        status, answer = post(json.dumps(asked).encode())
    assert status == 200 or (status == 400 and answer["error"])


def request(data: bytes) -> None:
    """A request of the known fields, with values that are allowed or any other."""
    draw = Draw(data)
    fields: dict[str, Any] = {}
    for _ in range(draw.number(4)):
        name = draw.pick([*CHOICES, "steps", "counter", "hide", "from_phrases", "strict", "quirks", "filler"])
        is_allowed = draw.number(3)
        some = {**CHOICES, "steps": STEPS}.get(name, ("style", True))
        fields[name] = draw.pick(some) if is_allowed else draw.value()
    if draw.number(15):
        fields["text"] = draw.rest()
    try:
        views = inspect(fields, NAMES)["views"]
    except RequestError as error:
        assert str(error)
        return
    assert 1 <= len(views) <= MAX_VIEWS
    assert json.dumps(views, allow_nan=False)


@cache
def _lab() -> Any:
    """The lab's handlers, without a model and with a small one, and how many values they take."""
    from weighted_clip.web.lab.handlers import OPTIONS, Handlers
    from weighted_clip.web.lab.model import LabError
    from weighted_clip.web.lab.native import LoadSettings as LabSettings
    from weighted_clip.web.lab.native import random_model

    model, base = random_model(LabSettings(), config=CONFIG), EncodeOptions(syntax="a1111", scheme="masked_blend")

    def none() -> Any:
        raise LabError("No model is loaded yet.")

    return OPTIONS, base, (Handlers(none, base), Handlers(lambda: model, base))


def lab(data: bytes) -> None:
    """Every handler of the lab but export, with any value for each control."""
    from weighted_clip.web.lab.tabs.prompt_tabs import CompareTab, ConvertTab, MasksTab, ScheduleTab, TokensTab

    draw = Draw(data)
    options, base, both = _lab()
    handlers, which = draw.pick(both), draw.number(3)
    values = [draw.pick(CHOICES.get(name, (getattr(base, name),))) for name in options]
    for _ in range(draw.number(2)):
        values[draw.number(len(values) - 1)] = draw.value()
    control = draw.value()
    text = draw.rest()[:300] if draw.number(15) else draw.value()
    if which == 0:
        assert len(handlers.read(text, *values)) == 8
    elif which == 1:
        chunk, target = draw.pick([1, control]), draw.pick([*convert.TARGETS, control])
        assert len(TokensTab(handlers).show(text, *values)) == 1
        assert len(MasksTab(handlers).show(chunk, text, *values)) == 2
        assert len(ConvertTab(handlers).show(target, text, *values)) == 2
        assert len(ScheduleTab(handlers).show(text, *values, control, control, control)) == 1
    else:
        schemes = control if which == 2 else draw.pick([["comfy"], list(SCHEMES)[:3], [control]])
        for step in CompareTab(handlers).compare({}, schemes, text, *values):
            assert len(step) == 4


def command(data: bytes) -> None:
    """The commands that only read text."""
    draw = Draw(data)
    name = draw.pick(["inspect", "convert", "schedule"])
    arguments = {
        "inspect": ["--syntax", draw.pick(list(CHOICES["syntax"])), *draw.pick([[], ["--json"], ["--strict"]])],
        "convert": ["--from", draw.pick(list(CHOICES["syntax"])), "--to", draw.pick(convert.TARGETS)],
        "schedule": ["--steps", str(draw.pick([20, 1, 0, -5, 10**30]))],
    }[name]
    out, errors = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(errors), patch.object(sys, "stdin", io.StringIO(draw.rest())):
        status = program.main([name, "-", *arguments])
    assert status == 0 or errors.getvalue().startswith("weighted-clip: ")


def infotext(data: bytes) -> None:
    """Parameters of an image as somebody else wrote them: options, or an error that lists those allowed."""
    draw = Draw(data)
    names = list(vars(Settings()))
    parameters = {infotext_key(draw.pick(names)): draw.value() for _ in range(draw.number(4))}
    parameters |= {draw.text(20): draw.value() for _ in range(draw.number(2))}
    given = [draw.value() for _ in range(draw.number(len(names) + 2))]
    for look in (lambda: [pasted(name, parameters) for name in names], lambda: given):
        try:
            Settings.of(look()).options()
        except WebUIError as error:
            assert 0 < len(str(error)) < 1000
    take(parameters)
    values = [pasted(name, parameters) for name in names]
    if values[0]:
        Settings.of(values).options()
    json.dumps([Settings.of(values).infotext(), untaken(parameters)])


TARGETS: dict[str, Callable[[bytes], None]] = {
    **TEXT_TARGETS,
    **FILE_TARGETS,
    "route": route,
    "request": request,
    "node": node,
    "lab": lab,
    "command": command,
    "infotext": infotext,
}
