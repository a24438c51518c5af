"""Prompts and settings in a graph of ComfyUI, as it saves one in its own pictures."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from .names import webui_settings
from .record import Infotext

WRITER = "ComfyUI"
_TEXTS = ("text", "text_g", "clip_l", "prompt", "string", "value")
_LINKS = ("conditioning", "conditioning_1", "positive", "cond")
_MAX_HOPS = 20


def is_graph(values: Mapping[str, Any]) -> bool:
    """Whether an object is a graph of ComfyUI in the form of its API."""
    return bool(values) and all(isinstance(node, dict) and "class_type" in node for node in values.values())


def read_graph(graph: Mapping[str, Any]) -> Infotext:
    """Read the first sampler of a graph, and the texts at its two ends.

    >>> text = {"class_type": "CLIPTextEncode", "inputs": {"text": "a cat"}}
    >>> sampler = {"class_type": "KSampler", "inputs": {"seed": 7, "steps": 20, "positive": ["1", 0]}}
    >>> read_graph({"1": text, "2": sampler}).prompt
    'a cat'
    """
    problems = ["Written by ComfyUI: drop the picture on its page to open the graph that drew it."]
    samplers = [inputs for inputs in map(_inputs, graph.values()) if "steps" in inputs and "positive" in inputs]
    if not samplers:
        problems.append("No node in it has steps and a positive prompt: nothing is read.")
        return Infotext("", writer=WRITER, problems=tuple(problems))
    if len(samplers) > 1:
        problems.append(f"The first of {len(samplers):,} samplers is read.")
    sampler = samplers[0]
    texts = [_text_of(graph, sampler.get(end)) for end in ("positive", "negative")]
    if not texts[0]:
        problems.append("The prompt is empty: no node before the sampler has it as a text.")
    names = {
        "cfg": "CFG scale",
        "denoise": "Denoising strength",
        "scheduler": "Schedule type",
        "sampler_name": "Sampler",
    }
    names |= {"seed": "Seed", "noise_seed": "Seed", "steps": "Steps"}
    values = {
        webui_name: _plain(sampler.get(comfy_name))
        for comfy_name, webui_name in names.items()
        if _plain(sampler.get(comfy_name))
    }
    if values.get("Denoising strength") in ("1", "1.0"):
        del values["Denoising strength"]
    values |= dict(_of_others(graph))
    settings, _ = webui_settings(values)
    return Infotext(texts[0], texts[1], settings, writer=WRITER, problems=tuple(problems))


def _of_others(graph: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Model and size, if one node alone has them."""
    nodes = [_inputs(node) for node in graph.values()]
    models = {_plain(inputs.get("ckpt_name")) for inputs in nodes} - {""}
    sizes = {
        f"{_plain(inputs['width'])}x{_plain(inputs['height'])}"
        for inputs in nodes
        if "batch_size" in inputs and {"width", "height"} <= inputs.keys()
    }
    if len(models) == 1:
        yield "Model", models.pop().replace("\\", "/").rpartition("/")[2].rpartition(".")[0]
    if len(sizes) == 1:
        yield "Size", sizes.pop()


def _text_of(graph: Mapping[str, Any], link: object) -> str:
    """The text at the end of a link; nothing if there is none within `_MAX_HOPS` nodes."""
    for _ in range(_MAX_HOPS):
        if not (isinstance(link, list) and link and isinstance(link[0], (str, int))):
            break
        inputs = _inputs(graph.get(str(link[0])))
        value = next((inputs[name] for name in (*_TEXTS, *_LINKS) if name in inputs), None)
        if isinstance(value, str):
            return value
        link = value
    return ""


def _inputs(node: object) -> dict[str, Any]:
    inputs = node.get("inputs") if isinstance(node, dict) else None
    return inputs if isinstance(inputs, dict) else {}


def _plain(value: object) -> str:
    """A number or text as text; nothing for a link or anything else."""
    return str(value) if isinstance(value, (str, int, float)) and not isinstance(value, bool) else ""
