"""Generation data as JSON: a table of the programs that write it, and how each names what the WebUI's nodes can take.

Source: pictures' metadata as each program documents it; NovelAI's as stable-diffusion-webui-forge dfdcbab6 reads it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from itertools import islice
from types import MappingProxyType
from typing import Any, NamedTuple, cast

from .graph import is_graph, read_graph
from .names import SETTINGS, webui_settings
from .record import MAX_SETTINGS, Infotext, in_line

Values = Mapping[str, Any]

PROMPT, NEGATIVE = "prompt", "negative"
_PROMPTS = {
    PROMPT: ("prompt", "Prompt", "positive_prompt", "positivePrompt"),
    NEGATIVE: ("negative_prompt", "Negative Prompt", "negativePrompt", "negativeprompt", "uc"),
}
_TAKEN = frozenset({*SETTINGS, "ENSD"})
"""Settings that are taken over from other programs than the WebUI; all others are named as left out."""
_OBJECT = re.compile(r"\s*\{\s*\"")
_DREAM = re.compile(r'"([^"]*)"((?:\s+-\w+(?:\s+[^\s-]\S*)?)*)\s*')
_OPTION = re.compile(r"-(\w+)\s+([^\s-]\S*)")
_NEGATIVE_IN_BRACKETS = re.compile(r"\[([^\[\]]*)\]")


class Writer(NamedTuple):
    """A program that writes generation data as JSON."""

    name: str
    """Its name."""
    marks: tuple[str, ...]
    """Keys by which its data is known: all are there."""
    names: Values = MappingProxyType({})
    """The WebUI's names by its own, where `webui_settings` does not know them."""
    unpack: Callable[[Values], Values] = dict
    """First step, which gives the object with prompts and settings."""
    note: str = "it draws pictures differently, so the picture will differ."
    """End of a sentence that begins with its name."""
    has_webui_settings: bool = False
    """Whether what it writes are the WebUI's settings, of which none is left out."""


def _unpack_nai(values: Values) -> Values:
    comment = _loads(values.get("Comment"))
    unpacked = {**comment, "ENSD": 31337, "clip_skip": 2}
    unpacked.update({key: values[key] for key in ("width", "height") if key in values})
    if isinstance(values.get("Description"), str):
        unpacked[PROMPT] = values["Description"]
    return unpacked


def _unpack_invoke(values: Values) -> Values:
    skipped = values.get("clip_skip")
    return {
        **values,
        "clip_skip": skipped + 1 if isinstance(skipped, int) else None,
        "model": _model(values.get("model")),
    }


def _unpack_old_invoke(values: Values) -> Values:
    image = {**_mapping(values.get("image")), "model": values.get("model_weights")}
    if prompts := _list(image.get("prompt")):
        image["prompt"] = _mapping(prompts[0]).get("prompt")
    return _with_brackets(image)


def _unpack_dream(values: Values) -> Values:
    command = _DREAM.fullmatch(_string(values["Dream"]))
    if not command:
        return {}
    options: list[tuple[str, str]] = _OPTION.findall(command[2])
    keys = {"s": "steps", "S": "seed", "C": "cfg_scale", "A": "sampler", "W": "width", "H": "height"}
    return _with_brackets({"prompt": command[1], **{keys.get(key, key): value for key, value in options}})


def _with_brackets(values: dict[str, Any]) -> Values:
    """InvokeAI before version 3 wrote the negative prompt in square brackets into the prompt."""
    prompt = values.get("prompt")
    if not isinstance(prompt, str):
        return values
    negative = ", ".join(_NEGATIVE_IN_BRACKETS.findall(prompt))
    return {**values, "prompt": _NEGATIVE_IN_BRACKETS.sub("", prompt).strip(), "negative_prompt": negative}


def _unpack_fooocus(values: Values) -> Values:
    sides = re.fullmatch(r"\(?(\d{1,5}), ?(\d{1,5})\)?", _string(values.get("resolution")))
    return {**values, "Size": f"{sides[1]}x{sides[2]}" if sides else None}


def _unpack_easy(values: Values) -> Values:
    unpacked = dict(values)
    path = [unpacked.pop(key, None) for key in ("use_stable_diffusion_model", "Stable Diffusion model")]
    skips = [unpacked.pop(key, None) for key in ("clip_skip", "Clip Skip")]
    is_skipped = any(skip is True or skip in ("True", "true") for skip in skips)
    return {**unpacked, "Model": _stem(path[0] or path[1]), "Clip skip": 2 if is_skipped else None}


def _unpack_swarm(values: Values) -> Values:
    unpacked = _mapping(values["sui_image_params"])
    return {**unpacked, "model": _stem(unpacked.get("model"))}


WRITERS = (
    Writer("SwarmUI", ("sui_image_params",), {"comfyuisampler": "Sampler"}, _unpack_swarm),
    Writer(
        *("NovelAI", ("Software", "Comment"), {"scale": "CFG scale", "uc": NEGATIVE}, _unpack_nai),
        "its models differ from A1111's, and its weights are braces.",
    ),
    Writer("InvokeAI", ("positive_prompt", "seed"), {"scheduler": "Sampler"}, _unpack_invoke),
    Writer("InvokeAI", ("image", "model_weights"), {}, _unpack_old_invoke),
    Writer("InvokeAI", ("Dream",), {}, _unpack_dream),
    Writer("Draw Things", ("c", "uc"), {"c": PROMPT, "uc": NEGATIVE, "scale": "CFG scale"}),
    Writer("Fooocus", ("prompt", "performance"), {"base_model": "Model"}, _unpack_fooocus),
    Writer("Easy Diffusion", ("prompt", "num_inference_steps"), {}, _unpack_easy),
    Writer("Easy Diffusion", ("Prompt", "Guidance Scale"), {}, _unpack_easy),
    Writer("Tensor.Art", ("prompt", "samplerName"), note="", has_webui_settings=True),
    Writer("Civitai", ("prompt", "cfgScale"), note="", has_webui_settings=True),
    Writer("Civitai", ("prompt", "resources"), note="", has_webui_settings=True),
    Writer("a program that writes JSON", ("prompt", "steps")),
)
"""Programs that write generation data as JSON; the first whose marks are there is taken."""


def read_json(text: str) -> Infotext | None:
    """Read generation data that is JSON as a whole; None for any other text.

    >>> read_json('{"c": "a cat", "uc": "", "steps": 20, "seed": 7, "sampler": "Euler a"}').writer
    'Draw Things'
    """
    if not _OBJECT.match(text):
        return None
    values = _loads(text)
    problems: list[str] = []
    if pictures := _list(values.get("items")):  # an answer of Civitai's API
        values = _mapping(pictures[0])
        if len(pictures) > 1:
            problems.append(f"The first of {len(pictures):,} pictures is read.")
    if isinstance(values.get("meta"), dict):
        values = _mapping(values["meta"])
    if is_graph(values):
        return read_graph(values)
    writer = next((writer for writer in WRITERS if all(mark in values for mark in writer.marks)), None)
    if writer is None:
        return None
    return _read(writer, writer.unpack(values)).with_problems(*problems)


def _read(writer: Writer, values: Values) -> Infotext:
    """Take the prompts and settings out of a program's data."""
    texts: dict[str, str] = {}
    left: list[str] = []
    for key, value in values.items():
        name = writer.names.get(key, next((prompt_name for prompt_name, keys in _PROMPTS.items() if key in keys), key))
        if isinstance(value, (str, int, float)) and not isinstance(value, bool):
            texts[name] = str(value)
        elif value and writer.has_webui_settings:
            texts[name] = json.dumps(value, ensure_ascii=False)
        elif value:
            left.append(key)
    prompt, negative = texts.pop(PROMPT, ""), texts.pop(NEGATIVE, "")
    settings, problems = webui_settings(texts)
    if not writer.has_webui_settings:
        left += [name for name in settings if name not in _TAKEN]
        settings = {name: value for name, value in settings.items() if name in _TAKEN}
        problems.insert(0, f"Written by {writer.name}: {writer.note}")
    elif len(settings) > MAX_SETTINGS:
        settings = dict(islice(settings.items(), MAX_SETTINGS))
        problems.append(f"Only the first {MAX_SETTINGS:,} settings are read.")
    if left:
        names = ", ".join(map(in_line, left[:20]))
        more = f" and {len(left) - 20:,} more" if len(left) > 20 else ""
        problems.append(f"Of {writer.name}'s data, this is not read: {names}{more}.")
    if not prompt.strip():
        problems.append("The prompt is empty.")
    return Infotext(prompt, negative, settings, writer=writer.name).with_problems(*problems)


def _loads(text: object) -> dict[str, Any]:
    """Object of a JSON text; empty for any other."""
    try:
        return _mapping(json.loads(text)) if isinstance(text, str) else {}
    except (ValueError, RecursionError):
        return {}


def _string(value: object) -> str:
    return value if isinstance(value, str) else ""


def _list(value: object) -> list[Any]:
    return cast("list[Any]", value) if isinstance(value, list) else []


def _mapping(value: object) -> dict[str, Any]:
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def _model(value: object) -> object:
    """Name of InvokeAI's model, which is a record or a name."""
    record = _mapping(value)
    return record.get("name", record.get("model_name")) if record else value


def _stem(path: object) -> str:
    """Name of a model's file without its folders and suffix, in any system's form."""
    name = _string(path).replace("\\", "/").rpartition("/")[2]
    return re.sub(r"\.(?:safetensors|ckpt|pt|sft)\Z", "", name)
