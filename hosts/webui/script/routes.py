"""Additions to the WebUI's server: a route for the rulers, and a look at the API's requests.

``POST /weighted-clip/ruler`` is for the rulers below the prompt boxes. A request is an object with ``text``;
``is_negative``; ``steps``, the number of sampling steps; ``syntax``, for the texts that the WebUI makes of the
prompt; and perhaps ``settings``, what stands in the fields of our script, as in `settings_of`, whose syntax counts if
it is switched on; and ``is_part``, whether styles or hires. fix add other prompts. The answer has ``views``, from
`webui_view`, and ``notes``. Nothing is loaded or encoded for it.

The host's API takes no more values for our script than there are controls, says nothing about further ones, and fails
over anything but a list. So the method by which it reads a request is replaced, on that one object, by one that looks
first.

Source: behaviour of stable-diffusion-webui 1.10 and stable-diffusion-webui-forge dfdcbab6 (2025-06).
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from ....encoder.foreign_text import parse_json
from ....encoder.quoting import quote
from ....weighting.reading.prompt_reader import ReadPrompt
from ....weighting.reading.timed_view import TimedRead, webui_view
from ....weighting.reading.view import min_size
from ....weighting.timed.schedule import MAX_STEPS
from ..attention.joint_models import idle_lines
from ..engines import UnknownEncodersError, WebUIError, host_option
from ..model_readers import POOLED, model_in_memory, readers_of
from ..settings import INFOTEXT, NAMES, Settings
from .exchange import settings_of
from .typed_prompts import WebUIPrompt, read_for_generation

PATH = "/weighted-clip/ruler"
SETTING = "weighted_clip_ruler"
"""Name of the host's setting that switches the rulers on."""
MAX_BYTES = 64 * 1024
"""Maximum size of a request."""
MAX_ANSWER = 1024 * 1024
"""Maximum size of an answer, in bytes."""
MAX_AT_ONCE = 2
"""Maximum number of requests handled at once; others are told to ask again."""
FIELDS = {"text": str, "is_negative": bool, "steps": int, "syntax": str, "settings": dict, "is_part": bool}
"""Fields of a request, with their types."""
OPTIONAL = {"settings", "is_part"}
"""Those that may be left out."""
REFUSED = "refused"
"""Code of lines about what a generation refuses or does not do. They are about no place of the prompt; ``about`` is the
name of the setting whose lines they are about, or ""."""
METHOD = "init_script_args"
"""Method of the host's API that is replaced."""
UNKNOWN = "no tokens are shown for this model: its text encoder is not supported"
IGNORED = "Emphasis mode Ignore: weights have no effect"

_running = 0


def add_to(callbacks: Any) -> None:
    """Let the host's ``script_callbacks`` call us when its settings, and when its app with the API, are there."""
    callbacks.on_ui_settings(_add_setting)
    callbacks.on_app_started(lambda page, app: app.add_route(PATH, answer, methods=["POST"]))  # an app of FastAPI
    callbacks.on_app_started(look_at_requests)


def _add_setting() -> None:
    from modules import shared  # pyright: ignore[reportMissingImports]

    option = shared.OptionInfo(True, "Show the tokens of prompts below their boxes in txt2img and img2img")
    option.section = ("weighted_clip", INFOTEXT)
    shared.opts.add_option(SETTING, option)


async def answer(request: Any) -> Any:
    """Answer a Starlette request: the prompt as read, or 400, 413 or 429 with ``error``."""
    from starlette.concurrency import run_in_threadpool
    from starlette.responses import JSONResponse, Response

    global _running
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > MAX_BYTES:
            return JSONResponse({"error": f"longer than {MAX_BYTES // 1024} KiB: not shown"}, 413)
    if _running >= MAX_AT_ONCE:
        return JSONResponse({"error": f"{MAX_AT_ONCE} prompts are being read: ask again"}, 429)
    _running += 1
    try:
        answer_text = await run_in_threadpool(_answered, body)
    except (ValueError, WebUIError) as error:
        return JSONResponse({"error": str(error)}, 400)
    except RecursionError:
        return JSONResponse({"error": "the request is nested too deep"}, 400)
    finally:
        _running -= 1
    return Response(answer_text, media_type="application/json")


def _answered(body: bytes) -> str:
    text = json.dumps(inspected(parse_json(body)), separators=(",", ":"))
    _check_size(len(text))
    return text


def _check_size(size: int) -> None:
    """Refuse an answer of more bytes than `MAX_ANSWER`."""
    if size > MAX_ANSWER:
        raise ValueError(f"more tokens and problems than {MAX_ANSWER // 1024} KiB hold: not shown")


def inspected(request: object) -> dict[str, Any]:
    """Reading of a prompt by the WebUI: ``views`` and ``notes``; refuses malformed requests and too much text."""
    if not isinstance(request, dict) or request.keys() | OPTIONAL != FIELDS.keys():
        needed = ", ".join(name for name in FIELDS if name not in OPTIONAL)
        raise ValueError(f"a request is an object with {needed}, and optionally {', '.join(sorted(OPTIONAL))}")
    for name, kind in FIELDS.items():
        if name in request and type(request[name]) is not kind:
            raise ValueError(f"{name} must be of type {kind.__name__}, got {quote(request[name])}")
    if not 1 <= request["steps"] <= MAX_STEPS:
        raise ValueError(f"steps must be 1 to {MAX_STEPS}, got {quote(request['steps'])}")
    text = request["text"].encode("utf-8", "replace").decode()  # lone surrogates are not allowed
    settings = settings_of(request.get("settings", {}))
    model: Any = model_in_memory()
    try:
        readers = readers_of(model)
    except UnknownEncodersError:
        return {"views": [], "notes": [UNKNOWN, *(idle_lines(settings, model) if settings.enabled else ())]}
    except WebUIError as error:
        return {"views": [], "notes": [str(error)]}
    settings = settings if settings.enabled else replace(settings, syntax=request["syntax"])
    prompt = read_for_generation(text, request["steps"], settings, readers, is_negative=request["is_negative"])
    texts = [timed for encoder_texts in prompt.by_encoder.values() for timed in encoder_texts]
    _check_size(sum(min_size(timed.read) for timed in texts))  # before the views are made
    views = list(_views(prompt))
    views[-1]["num_more"] = len(prompt.unread_texts)
    views[0]["issues"] += [
        {"code": REFUSED, "message": line, "start": 0, "end": 0, "about": name}
        for line, name in prompt.refusals(is_part=request.get("is_part", False)).items()
    ]
    is_ignored = not settings.enabled and host_option("emphasis", default="Original") == "Ignore"
    return {"views": views, "notes": [*readers.notes(), *([IGNORED] if is_ignored and _has_weights(texts) else [])]}


def _has_weights(texts: Iterable[TimedRead]) -> bool:
    """Whether any token of some texts has a weight."""
    return any(token.weight != 1 for timed in texts for chunk in timed.read.chunks for token in chunk.content)


def _views(prompt: WebUIPrompt) -> Iterator[dict[str, Any]]:
    """Views of each text by each text encoder, with the number of its tokens as ``total``.

    In a model with more than CLIP they name the ``encoder``, and tell with ``is_beside`` those after the first.
    """
    readers = prompt.readers
    for texts in zip(*prompt.by_encoder.values(), strict=True):
        for number, (title, timed) in enumerate(zip(prompt.by_encoder, texts, strict=True)):
            view = webui_view(timed)
            if number and not readers.weighs_clip and _has_weights(texts):
                view["notes"] = [POOLED.format(title)]
            if prompt.weights is not None:
                view["scheme"] = f"attention {prompt.weights.way}"
            elif prompt.rule is not None:
                view["scheme"] = prompt.settings.scheme
            if readers.t5 is not None and number == 0:
                view["total"] = readers.t5.total(timed.read, prompt.rule)
            else:  # without a model the host counts differently
                view["total"] = "" if readers.model is None else _total(timed.read)
            yield {**view, "encoder": title, "is_beside": number > 0} if readers.is_beyond_clip else view


def _total(prompt: ReadPrompt) -> str:
    """Number of tokens in a text, counted as in the host: all chunks but the last are full."""
    capacity = prompt.layout.capacity
    count = (len(prompt.chunks) - 1) * capacity + prompt.chunks[-1].num_content
    return f"{count}/{math.ceil(max(count, 1) / capacity) * capacity}"


def check(scripts: Mapping[str, Any]) -> None:
    """Check what the ``alwayson_scripts`` of a request have for our script: an object with ``args``, not too many."""
    for name, script_request in scripts.items():
        if name.lower() != INFOTEXT.lower() or script_request == {}:
            continue
        values = script_request.get("args") if isinstance(script_request, dict) else None
        if not isinstance(values, list):
            raise WebUIError(
                f"“{INFOTEXT.lower()}” in alwayson_scripts is an object with args, a list of values in this order: "
                f"{', '.join(NAMES)}; got {quote(script_request)}"
            )
        if extra_keys := [key for key in script_request if key != "args"]:
            raise WebUIError(f"“{INFOTEXT.lower()}” in alwayson_scripts takes only args; also got {quote(extra_keys)}")
        Settings.of(values)


def look_at_requests(page: object, app: Any) -> None:
    """Replace the method, if the host has an API."""
    owners = [getattr(getattr(route, "endpoint", None), "__self__", None) for route in app.routes]
    owner: Any = next((candidate for candidate in owners if hasattr(candidate, METHOD)), None)
    if owner is None or METHOD in vars(owner):
        return
    inner = getattr(owner, METHOD)

    def init_script_args(request: Any, *args: Any, **kwargs: Any) -> Any:
        check(request.alwayson_scripts or {})
        return inner(request, *args, **kwargs)

    setattr(owner, METHOD, init_script_args)
