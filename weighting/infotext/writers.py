"""Generation data as JSON: a table of the programs that write it, and how each names what the WebUI's nodes can take.

Source: what each program writes and reads, in InvokeAI 6 (2026-08), SwarmUI (2026-08), Fooocus 2.5.5, Easy Diffusion
3.5, Draw Things (draw-things-community 2026-08) and ComfyUI 0.29.0; NovelAI's pictures as stable-diffusion-webui-forge
dfdcbab6 reads them, and of 2025.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from itertools import islice
from types import MappingProxyType
from typing import Any, NamedTuple, cast

from .graph import is_graph, is_workflow, read_graph, read_workflow
from .names import SETTINGS, file_name, lora_problem, webui_settings
from .record import MAX_SETTINGS, Infotext, in_line

Values = Mapping[str, Any]

PROMPT, NEGATIVE = "prompt", "negative"
_PROMPTS = {
    PROMPT: ("prompt", "Prompt", "positive_prompt", "positivePrompt"),
    NEGATIVE: ("negative_prompt", "Negative Prompt", "negativePrompt", "negativeprompt", "uc"),
}
_TAKEN = frozenset({*SETTINGS, "ENSD", "RNG"})
"""Settings that are taken over from other programs than the WebUI; all others are named as left out."""
_MAX_QUOTED = 3
"""Maximum number of texts quoted in a sentence."""
_OBJECT = re.compile(r"\s*\{\s*\"")
_DREAM = re.compile(r'"([^"]*)"((?:\s+-\w+(?:\s+[^\s-]\S*)?)*)\s*')
_OPTION = re.compile(r"-(\w+)\s+([^\s-]\S*)")
_LABEL = re.compile(
    r"^[ \t]*(Prompt|Negative Prompt|Seed|Stable Diffusion model|Clip Skip|VAE model|Sampler|Scheduler|Width|Height"
    r"|Steps|(?:Distilled )?Guidance(?: Scale)?|Prompt Strength|ControlNet (?:model|Filter|Strength)"
    r"|LoRA (?:model|Strength)|Hypernetwork (?:model|Strength)|Embedding models|Seamless Tiling|Use Face Correction"
    r"|Use Upscaling|Upscale By|Latent Upscaler Steps):",
    re.MULTILINE,
)
"""Beginnings of the lines of Easy Diffusion's text files."""
_NEGATIVE_IN_BRACKETS = re.compile(r"\[([^\[\]]*)\]")


class Writer(NamedTuple):
    """A program that writes generation data as JSON."""

    name: str
    """Its name."""
    marks: tuple[str, ...]
    """Keys by which its data is known: all are there."""
    names: Values = MappingProxyType({})
    """The WebUI's names by its own, where `webui_settings` does not know them."""
    unpack: Callable[[Values, list[str]], Values] = lambda values, problems: values
    """First step, which gives the object with prompts and settings, and adds sentences about it."""
    note: str = "it draws pictures differently, so the picture will differ."
    """End of a sentence that begins with its name."""
    syntax: str = ""
    """Syntax of its prompts, by its name among ours."""
    scheme: str = ""
    """Scheme that does what its weights do, or the nearest."""
    has_webui_settings: bool = False
    """Whether what it writes are the WebUI's settings, of which none is left out."""


def _unpack_nai(values: Values, problems: list[str]) -> Values:
    text = values.get("Comment")
    comment = _loads(text)
    if isinstance(text, str) and not comment:
        problems.append(
            f"NovelAI's Comment is damaged: {_fault(text)}. It has no steps, no seed and no negative prompt."
        )
    unpacked = {**comment, "ENSD": 31337, "clip_skip": 2}
    unpacked.update({key: values[key] for key in ("width", "height") if key in values})
    captions = [_mapping(unpacked.pop(key, None)) for key in ("v4_prompt", "v4_negative_prompt")]
    for caption, key in zip(captions, (PROMPT, "uc"), strict=True):
        caption = _mapping(caption.get("caption"))
        unpacked.setdefault(key, caption.get("base_caption"))
        characters = [_string(_mapping(each).get("char_caption")) for each in _list(caption.get("char_captions"))]
        if characters := list(filter(None, characters)):
            kind = "prompts" if key == PROMPT else "negative prompts"
            problems.append(f"The {kind} of its characters are not read: {_quoted(characters)}.")
    if isinstance(description := values.get("Description"), str):
        if _string(unpacked.get(PROMPT)) not in ("", description):
            problems.append(f"Description has another prompt, which is not read: {_quoted([description])}.")
        unpacked[PROMPT] = unpacked.get(PROMPT) or description
    return unpacked


def _unpack_invoke(values: Values, _: list[str]) -> Values:
    skipped, scheduler = values.get("clip_skip"), _string(values.get("scheduler"))
    scheduler = re.sub(r"_k\Z", "_karras", scheduler.replace("kdpm_2", "dpm_2"))
    return {
        **values,
        "clip_skip": skipped + 1 if isinstance(skipped, int) and not isinstance(skipped, bool) else None,
        "model": _model(values.get("model")),
        "vae": _model(values.get("vae")),
        "scheduler": {"pndm": "plms"}.get(scheduler, scheduler),
        **_random({"cpu": "CPU", "cuda": "GPU"}, "rand_device", values),
    }


def _unpack_old_invoke(values: Values, _: list[str]) -> Values:
    image = {**_mapping(values.get("image")), "model": values.get("model_weights")}
    if prompts := _list(image.get("prompt")):
        image["prompt"] = _mapping(prompts[0]).get("prompt")
        image["further prompts"] = prompts[1:]
    return _with_brackets(image)


def _unpack_dream(values: Values, problems: list[str]) -> Values:
    command = _DREAM.fullmatch(_string(values["Dream"]))
    if not command:
        problems.append("Its command is not understood: nothing is read.")
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


def _unpack_fooocus(values: Values, problems: list[str]) -> Values:
    sides = re.fullmatch(r"\(?(\d{1,5}), ?(\d{1,5})\)?", _string(values.get("resolution")))
    size = f"{sides[1]}x{sides[2]}" if sides else values.get("Size")
    if _string(values.get("styles")).strip("[] ") or "Raw prompt" in values:
        problems.append("The prompt is as it was typed, without the words of its styles.")
    raw = {key: values[name] for key, name in (("prompt", "Raw prompt"), ("negative_prompt", "Raw negative prompt"))
           if name in values}  # fmt: skip
    used = {"resolution"} if sides else set[str]()
    rest = {key: value for key, value in values.items() if not key.startswith("Raw ") and key not in used}
    vae = values.get("vae", values.get("VAE"))
    return {**rest, **raw, "Size": size, **({"vae": None, "VAE": None} if vae == "Default (model)" else {})}


def _unpack_easy(values: Values, _: list[str]) -> Values:
    unpacked = dict(values)
    path = [unpacked.pop(key, None) for key in ("use_stable_diffusion_model", "Stable Diffusion model")]
    vae = [unpacked.pop(key, None) for key in ("use_vae_model", "VAE model")]
    skips = [unpacked.pop(key, None) for key in ("clip_skip", "Clip Skip")]
    is_skipped = any(skip is True or skip in ("True", "true") for skip in skips)
    names = {"Model": file_name(_string(path[0] or path[1])), "VAE": file_name(_string(vae[0] or vae[1]))}
    return {**unpacked, **names, "Clip skip": 2 if is_skipped else None}


def _unpack_swarm(values: Values, problems: list[str]) -> Values:
    unpacked = _mapping(values["sui_image_params"])
    layer = unpacked.get("clipstopatlayer")
    if "<embed:" in _string(unpacked.get("prompt")):
        problems.append("“<embed:name>” is text here: write embedding:name.")
    return {**unpacked, "model": file_name(_string(unpacked.get("model"))), "Clip skip": layer}


def _unpack_draw_things(values: Values, _: list[str]) -> Values:
    modes = {"NVIDIA GPU Compatible": "NV", "Torch CPU Compatible": "CPU"}
    return {**values, **_random(modes, "seed_mode" if "seed_mode" in values else "Seed Mode", values)}


def _random(sources: Mapping[str, str], key: str, values: Values) -> dict[str, str]:
    """Source of random numbers by the value of a key, which it replaces."""
    source = sources.get(_string(values.get(key)))
    return {key: "", "RNG": source} if source else {}


DRAW_THINGS = Writer(
    *("Draw Things", ("c", "uc"), {"c": PROMPT, "uc": NEGATIVE, "scale": "CFG scale"}, _unpack_draw_things),
    syntax="a1111",
)
FOOOCUS = Writer(
    *("Fooocus", ("prompt", "performance"), {"base_model": "Model", "base_model_hash": "Model hash"}, _unpack_fooocus),
    syntax="comfy",
    scheme="comfy",
)
_EASY: dict[str, Any] = {"unpack": _unpack_easy, "syntax": "compel", "scheme": "compel"}
EASY_LABELS = Writer("Easy Diffusion", ("Prompt", "Guidance Scale"), {}, **_EASY)
_INVOKE: dict[str, Any] = {"syntax": "compel", "scheme": "compel"}
WRITERS = (
    Writer(
        *("SwarmUI", ("sui_image_params",), {"comfyuisampler": "Sampler"}, _unpack_swarm),
        syntax="comfy",
        scheme="comfy",
    ),
    Writer(
        *("NovelAI", ("Software", "Comment"), {"scale": "CFG scale", "noise_schedule": "Schedule type"}, _unpack_nai),
        note="its models differ from A1111's, and its weights are braces and numbers.",
        syntax="novelai",
    ),
    Writer("InvokeAI", ("positive_prompt", "seed"), {"scheduler": "Sampler"}, _unpack_invoke, **_INVOKE),
    Writer("InvokeAI", ("image", "model_weights"), {}, _unpack_old_invoke, **_INVOKE),
    Writer("InvokeAI", ("Dream",), {}, _unpack_dream, **_INVOKE),
    DRAW_THINGS,
    FOOOCUS,
    Writer("Easy Diffusion", ("prompt", "num_inference_steps"), {"scheduler_name": "Schedule type"}, **_EASY),
    EASY_LABELS,
    Writer("Tensor.Art", ("prompt", "samplerName"), note="", has_webui_settings=True),
    Writer("Civitai", ("prompt", "cfgScale"), note="", has_webui_settings=True),
    Writer("Civitai", ("prompt", "resources"), note="", has_webui_settings=True),
    Writer("a program that writes JSON", ("prompt", "steps")),
)
"""Programs that write generation data as JSON; the first whose marks are there is taken."""
_COMMENT_OF_NOVELAI = ({"v4_prompt"}, {"uc", "scale", "sampler"})
"""Keys of NovelAI's Comment, which people copy without the rest."""


def read_json(text: str) -> Infotext | None:
    """Read generation data that is JSON as a whole, or was before it was damaged; None for any other text.

    >>> read_json('{"c": "a cat", "uc": "", "steps": 20, "seed": 7, "sampler": "Euler a"}').writer
    'Draw Things'
    """
    if not _OBJECT.match(text):
        return None
    values = _loads(text)
    if not values:
        return _damaged(text)
    problems: list[str] = []
    if pictures := _list(values.get("items")):  # an answer of Civitai's API
        values = _mapping(pictures[0])
        if len(pictures) > 1:
            problems.append(f"The first of {len(pictures):,} pictures is read.")
    if isinstance(values.get("meta"), dict):
        values = _mapping(values["meta"])
    graph = _mapping(values.get("prompt")) or values
    if is_graph(graph):
        return read_graph(graph)
    if is_workflow(values):
        return read_workflow()
    if "c" not in values and any(keys <= values.keys() for keys in _COMMENT_OF_NOVELAI):
        values = {"Software": "NovelAI", "Comment": text}
    writer = next((writer for writer in WRITERS if all(mark in values for mark in writer.marks)), None)
    if writer is None:
        return None
    return _read(writer, values).with_problems(*problems)


def read_labels(text: str) -> Infotext | None:
    r"""Read the text files that Easy Diffusion writes beside pictures; None for any other text.

    >>> read_labels("Prompt: a cat\nNegative Prompt: dog\nSeed: 7\nSteps: 20\nGuidance Scale: 7.5").settings["Seed"]
    '7'
    """
    if not text.lstrip().startswith("Prompt:") or "\nGuidance Scale:" not in text:
        return None
    labels = [*_LABEL.finditer(text)]
    ends = [*(label.start() for label in labels[1:]), len(text)]
    values = {label[1]: text[label.end() : end].strip() for label, end in zip(labels, ends, strict=True)}
    return _read(EASY_LABELS, values)


def as_written(data: Infotext) -> Infotext:
    r"""Generation data in the WebUI's form, by the rules of the program that has written it, if that is another.

    >>> from .text import read_lines
    >>> as_written(read_lines("a cat\n-dog\nSteps: 20, Guidance Scale: 7.0, Seed: 7, Seed Mode: Legacy")).negative
    'dog'
    """
    settings: dict[str, Any] = dict(data.settings)
    if data.settings.get("Version", "").startswith("Fooocus"):
        return _read(FOOOCUS, {"prompt": data.prompt, "negative_prompt": data.negative, **settings}).with_problems(
            *data.problems
        )
    if "Seed Mode" in data.settings:
        prompt, dash, negative = data.prompt.partition("\n-")
        problems = [*data.problems]
        if "\n-" in negative:
            problems.append("Several lines begin with “-”: at the first of them the negative prompt is taken to begin.")
        return _read(DRAW_THINGS, {"c": prompt, "uc": negative if dash else data.negative, **settings}).with_problems(
            *problems
        )
    return data


def _read(writer: Writer, values: Values) -> Infotext:
    """Take the prompts and settings out of a program's data."""
    said: list[str] = []
    values = writer.unpack(values, said)
    texts: dict[str, str] = {}
    left: list[str] = []
    loras = [] if writer.has_webui_settings else list(_loras(values))
    for key, value in values.items():
        name = writer.names.get(key, next((prompt_name for prompt_name, keys in _PROMPTS.items() if key in keys), key))
        if isinstance(value, (str, int, float)) and not isinstance(value, bool):
            if value != "None" or name in (PROMPT, NEGATIVE):  # as Python writes nothing
                texts[name] = str(value)
        elif value and writer.has_webui_settings:
            texts[name] = json.dumps(value, ensure_ascii=False)
        elif value and not (loras and key in _LORA_KEYS):
            left.append(key)
    prompt, negative = texts.pop(PROMPT, ""), texts.pop(NEGATIVE, "")
    texts = {name: text for name, text in texts.items() if text or writer.has_webui_settings}
    settings, problems = webui_settings(texts)
    if not writer.has_webui_settings:
        left += [name for name in settings if name not in _TAKEN and not (loras and _is_lora_key(name))]
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
    data = Infotext(prompt, negative, settings, (), writer.name, writer.syntax, writer.scheme)
    data = replace(data, is_foreign=not writer.has_webui_settings)
    return data.with_problems(*problems, *said, *lora_problem(loras))


_LORA_KEYS = ("loras", "loraweights", "lora", "use_lora_model", "lora_alpha", "LoRA model", "LoRA Strength")
"""Keys of LoRAs and their strengths."""


def _is_lora_key(name: str) -> bool:
    return name in (*_LORA_KEYS, "Lora weights", "Lora hashes") or name.startswith("lora_combined_")


def _loras(values: Values) -> Iterator[tuple[str, object]]:
    """Files and strengths of LoRAs that are no part of the prompt."""
    for name, strength in (("loras", "loraweights"), ("lora", ""), ("use_lora_model", "lora_alpha"),
                           ("LoRA model", "LoRA Strength")):  # fmt: skip
        entries, strengths = _listed(values.get(name)), _listed(values.get(strength))
        for index, entry in enumerate(entries):
            if isinstance(entry, dict):  # InvokeAI's, Draw Things'
                record = _mapping(entry)
                file = _model(record.get("model") or record.get("lora"))
                yield _string(file) or "?", record.get("weight", 1)
            elif isinstance(entry, list):  # Fooocus's
                yield _string([*entry, ""][0]) or "?", [*entry[1:2], 1][0]
            elif isinstance(entry, str):
                yield entry, [*strengths[index : index + 1], 1][0]
    if "loras" not in values:
        for key, value in values.items():
            if key.startswith("lora_combined_") and isinstance(value, str):
                file, _, strength = value.removeprefix("True : ").rpartition(" : ")
                yield file, strength
            elif key == "Lora weights" and isinstance(value, str):
                yield from (
                    (file, strength) for file, _, strength in (part.rpartition(": ") for part in value.split(", "))
                )


def _listed(value: object) -> list[Any]:
    """A list, also one as Python or Easy Diffusion writes it."""
    if isinstance(value, str) and value not in ("", "None"):
        return [part.strip(" '\"") for part in value.strip("[]").split(",")]
    return [value] if isinstance(value, (int, float)) else _list(value)


def _quoted(texts: list[str]) -> str:
    more = f" and {len(texts) - _MAX_QUOTED:,} more" if len(texts) > _MAX_QUOTED else ""
    return ", ".join(f"“{in_line(text)}”" for text in texts[:_MAX_QUOTED]) + more


def _damaged(text: str) -> Infotext | None:
    """What can be said of a text that was JSON of a known program; None if there is no sign of one."""
    named = next((each.name for each in WRITERS[:-1] if all(f'"{mark}"' in text for mark in each.marks)), "")
    if '"class_type"' in text:
        named = "ComfyUI"
    if not named:
        return None
    problem = f"{named}'s data is damaged: {_fault(text)}. Nothing of it is read."
    return Infotext("", writer=named, is_foreign=True, problems=(problem,))


def _fault(text: str) -> str:
    """Reason why a text is no JSON object."""
    try:
        json.loads(text)
    except RecursionError:
        return "it is nested too deeply"
    except json.JSONDecodeError as error:
        return f"it is no JSON from character {error.pos:,} on, of {len(text):,}"
    except ValueError:  # numbers of thousands of digits
        return "it has a number that is too long"
    return "it has no names with values"


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
