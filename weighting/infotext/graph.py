"""Prompts and settings in a graph of ComfyUI, as it saves one in its own pictures: from the sampler up its links.

Source: form of the key ``prompt`` in pictures of ComfyUI 0.29.0, and inputs of its nodes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from .names import file_name, lora_problem, webui_settings
from .record import Infotext, in_line
from .text import read_lines

WRITER = "ComfyUI"
MAX_VISITED = 2000
"""Maximum number of nodes visited from one input."""
MAX_SAMPLERS = 20
"""Maximum number of samplers that are put in order."""
_MAX_NAMED = 3
"""Maximum number of texts or nodes named in a sentence."""
_TEXTS = ("populated_text", "text", "text_g", "t5xxl", "clip_g", "clip_l", "text_l", "prompt", "string", "value")
"""Inputs that hold text, the most telling first."""
_NUMBERS = ("value", "int", "float", "number", "seed", "noise_seed")
_LATENTS = ("latent_image", "latent", "samples")
_NAMES = {
    **{"seed": "Seed", "noise_seed": "Seed", "steps": "Steps", "cfg": "CFG scale", "denoise": "Denoising strength"},
    **{"sampler_name": "Sampler", "scheduler": "Schedule type", "sampler": "Sampler", "schedule": "Schedule type"},
}
_PARTS = ("noise", "sampler", "sigmas", "guider")
"""Inputs of samplers whose nodes have some of their settings."""
READER = "WeightedCLIPReadParameters"
"""Our node that reads generation data."""
_STOCK = ("CLIPTextEncode", "WeightedCLIP")
"""Beginnings of the names of nodes whose rule of weights is known."""


def is_graph(values: Mapping[str, Any]) -> bool:
    """Whether an object is a graph of ComfyUI in the form of its API."""
    return bool(values) and all(isinstance(node, dict) and "class_type" in node for node in values.values())


def is_workflow(values: Mapping[str, Any]) -> bool:
    """Whether an object is a graph in the form of ComfyUI's page, which has values without their names."""
    return isinstance(values.get("nodes"), list) and isinstance(values.get("links"), list)


def read_workflow() -> Infotext:
    """Say that a graph in the form of the page is not read."""
    problem = "It is ComfyUI's workflow, whose values have no names: drop it on ComfyUI's page. Nothing of it is read."
    return Infotext("", writer=WRITER, is_foreign=True, problems=(problem,))


def read_graph(graph: Mapping[str, Any]) -> Infotext:
    """Read the sampler of a graph that draws first, and the texts at its two ends.

    >>> text = {"class_type": "CLIPTextEncode", "inputs": {"text": "a cat"}}
    >>> sampler = {"class_type": "KSampler", "inputs": {"seed": 7, "steps": 20, "positive": ["1", 0]}}
    >>> read_graph({"1": text, "2": sampler}).prompt
    'a cat'
    """
    reader = _Reader(graph)
    reader.problems.append("Written by ComfyUI: drop the picture on its page to open the graph that drew it.")
    sampler = reader.first_sampler()
    if sampler is None:
        reader.problems.append("No node in it has steps and a positive prompt: nothing is read.")
        return Infotext("", writer=WRITER, is_foreign=True, problems=tuple(reader.problems))
    ends = reader.parts_of(sampler)
    for part in ends:
        if reader.kind(part) == READER:
            return _read_again(reader.inputs(part))
    parts = [reader.inputs(node) for node in (sampler, *ends)]
    positive, negative = (reader.prompt(parts, end) for end in ("positive", "negative"))
    values = reader.numbers(parts)
    if size := reader.size(parts):
        values["Size"] = size
    values |= reader.model(parts)
    if skip := reader.clip_skip(positive.encoder):
        values["Clip skip"] = skip
    if values.get("Denoising strength") in ("1", "1.0"):
        del values["Denoising strength"]
    settings, problems = webui_settings(values)
    if not positive.text.strip():
        reader.problems.append("The prompt is empty: no node before the sampler has it as a text.")
    syntax, scheme = reader.reading(positive.encoder)
    data = Infotext(positive.text, negative.text, settings, (), WRITER, syntax, scheme, is_foreign=True)
    return data.with_problems(*dict.fromkeys([*reader.problems, *problems]))


def _read_again(inputs: Mapping[str, Any]) -> Infotext:
    """Generation data that a graph was made to draw again."""
    text, image = (value if isinstance(value := inputs.get(name), str) else "" for name in ("text", "image"))
    if text.strip():
        return read_lines(text).with_problems("It was drawn again in ComfyUI, from this data.")
    problem = f"It was drawn again in ComfyUI from the picture “{in_line(image)}”: read that."
    return Infotext("", writer=WRITER, is_foreign=True, problems=(problem,))


class _Prompt(NamedTuple):
    """A prompt at an end of a sampler."""

    text: str = ""
    encoder: str = ""
    """Id of the node that has it; empty for none."""


class _Reader:
    """A graph that is being read, and sentences on what is left out or unclear."""

    def __init__(self, graph: Mapping[str, Any]) -> None:
        self.graph = graph
        self.problems: list[str] = []

    def inputs(self, node: str) -> Mapping[str, Any]:
        """Inputs of a node; none if there is no such node."""
        found = self.graph.get(node)
        inputs = found.get("inputs") if isinstance(found, dict) else None
        return inputs if isinstance(inputs, dict) else {}

    def kind(self, node: str) -> str:
        """Class of a node."""
        found = self.graph.get(node)
        kind = found.get("class_type") if isinstance(found, dict) else None
        return in_line(kind) if isinstance(kind, str) else "no node"

    def named(self, node: str) -> str:
        """A node in a sentence."""
        return f"{self.kind(node)} (node {in_line(node, 20)})"

    def walk(self, link: object, following: Callable[[str, int], Sequence[object]]) -> Iterator[tuple[str, int]]:
        """Nodes up from a link, each once, with the output that is linked; a node's first link comes first."""
        stack, seen = [link], set[tuple[str, int]]()
        while stack:
            if (end := _end(stack.pop())) is None or end in seen or end[0] not in self.graph:
                continue
            if len(seen) == MAX_VISITED:
                self.problems.append(f"Only {MAX_VISITED:,} nodes before an input are looked at.")
                return
            seen.add(end)
            yield end
            stack.extend(reversed(following(*end)))

    def all_links(self, node: str, slot: int = 0) -> list[object]:
        """All links of a node."""
        return [value for value in self.inputs(node).values() if _end(value)]

    def first_sampler(self) -> str | None:
        """Id of the sampler that begins; others are said."""
        samplers = [node for node in self.graph if _is_sampler(self.inputs(node))]
        if len(samplers) > MAX_SAMPLERS:
            self.problems.append(f"The first of {len(samplers):,} samplers is read.")
            return samplers[0]
        others = set(samplers)
        first: list[str] = []
        for sampler in samplers:
            inputs = self.inputs(sampler)
            latent = next((inputs[name] for name in _LATENTS if name in inputs), None)
            if not any(node in others and node != sampler for node, _ in self.walk(latent, self.all_links)):
                first.append(sampler)
        first = first or samplers
        if len(first) > 1:
            names = ", ".join(map(self.named, first[1 : _MAX_NAMED + 1]))
            self.problems.append(f"{len(first)} samplers begin a picture: {self.named(first[0])} is read, not {names}.")
        elif len(samplers) > 1:
            names = ", ".join(self.named(node) for node in samplers if node != first[0])
            self.problems.append(f"A further pass follows, which is not read: {in_line(names, 120)}.")
        return first[0] if first else None

    def parts_of(self, sampler: str) -> list[str]:
        """Ids of the nodes that have a sampler's settings for it."""
        inputs = self.inputs(sampler)
        ends = [_end(inputs.get(name)) for name in _PARTS]
        return [end[0] for end in ends if end]

    def prompt(self, parts: Sequence[Mapping[str, Any]], end: str) -> _Prompt:
        """The prompt at an end of a sampler or its guider."""
        names = (end, "conditioning") if end == "positive" else (end,)
        link = next((part[name] for part in parts for name in names if _end(part.get(name))), None)
        found: dict[str, str] = {}
        added: dict[str, str] = {}  # by nodes that add one to a conditioning
        for node, slot in self.walk(link, lambda node, slot: self.conditionings(node, slot, end)):
            if self.kind(node) == "ConditioningZeroOut":
                self.problems.append(f"The {end} prompt's rows are replaced by zeros, by {self.named(node)}.")
                continue
            text, before = self.text_in(node, end), self.conditionings(node, slot, end)
            if text is not None:
                (added if before else found).setdefault(text, node)
            elif not before:
                self.problems.append(f"The {end} prompt comes from {self.named(node)}, which has no text: not read.")
        found |= {text: node for text, node in added.items() if text not in found}
        if not found:
            return _Prompt()
        text, *others = found
        if others:
            named = ", ".join(f"“{in_line(other)}”" for other in others[:_MAX_NAMED])
            self.problems.append(
                f"{len(found):,} texts are in the {end} prompt: “{in_line(text)}” is read, not {named}."
            )
        return _Prompt(text, found[text])

    def conditionings(self, node: str, slot: int, end: str) -> list[object]:
        """Links of a node up to where its conditioning comes from."""
        inputs = self.inputs(node)
        links = {name: value for name, value in inputs.items() if _end(value)}
        if {"positive", "negative"} <= links.keys():  # with an output for each
            return [links[{0: "positive", 1: "negative"}.get(slot, end)]]
        chosen = [value for name, value in links.items() if name.startswith("cond") or name == end]
        if chosen or any(name in inputs for name in _TEXTS):
            return chosen
        return list(links.values()) if len(links) == 1 else []

    def text_in(self, node: str, end: str) -> str | None:
        """The text of a node that encodes one; None if it has none."""
        inputs = self.inputs(node)
        names = [name for name in _TEXTS if isinstance(inputs.get(name), str) or _end(inputs.get(name))]
        if not names:
            return None
        texts = {name: self.string(inputs[name], end) for name in names}
        chosen = next((text for text in texts.values() if text), "")
        if len({text for text in texts.values() if text}) > 1:
            name = next(name for name, text in texts.items() if text)
            self.problems.append(f"{self.named(node)} has several texts: that of {name} is read.")
        return chosen

    def string(self, value: object, end: str, depth: int = 0) -> str:
        """A text, or the one at the end of a link."""
        if isinstance(value, str):
            return value
        for node, _ in self.walk(value, lambda node, slot: ()) if depth < MAX_VISITED // 100 else ():
            inputs = self.inputs(node)
            if self.kind(node) == "StringConcatenate":
                joined = [self.string(inputs.get(name), end, depth + 5) for name in ("string_a", "string_b")]
                return self.string(inputs.get("delimiter"), end, depth + 5).join(joined)
            sided = [name for name in inputs if isinstance(inputs[name], str) and end in name.lower()]
            own = [name for name in inputs if isinstance(inputs[name], str)]
            names = [name for name in (*_TEXTS, *sided) if isinstance(inputs.get(name), str) or _end(inputs.get(name))]
            if not names and len(own) == 1:
                names = own
            if names:
                text = self.string(inputs[names[0]], end, depth + 1)
                if text and not self.kind(node).startswith("Primitive"):
                    self.problems.append(f"{self.named(node)} gives a text, which it may change in the run.")
                return text
        self.problems.append(f"A text of the {end} prompt is made in the run{self.by(value)}: not read.")
        return ""

    def by(self, value: object) -> str:
        """The node at the end of a link, in a sentence."""
        end = _end(value)
        return f" by {self.named(end[0])}" if end else ""

    def numbers(self, parts: Sequence[Mapping[str, Any]]) -> dict[str, str]:
        """Settings of a sampler by the WebUI's names."""
        values: dict[str, str] = {}
        for part in parts:
            for name, webui_name in _NAMES.items():
                if name in part and webui_name not in values and not (name in _PARTS and _end(part[name])):
                    value = self.plain(part[name], name)
                    if value:
                        values[webui_name] = value
                    else:
                        self.problems.append(f"{webui_name} is made in the run{self.by(part[name])}: not read.")
        return values

    def plain(self, value: object, name: str) -> str:
        """A number or name as text, also at the end of links; empty if it is none."""
        for _ in range(MAX_VISITED // 100):
            if isinstance(value, (str, int, float)) and not isinstance(value, bool):
                return str(value)
            end = _end(value)
            inputs = self.inputs(end[0]) if end else {}
            value = next((inputs[key] for key in (name, *_NUMBERS) if key in inputs), None)
        return ""

    def size(self, parts: Sequence[Mapping[str, Any]]) -> str:
        """Width and height of the empty latent that a sampler begins with."""
        latent = next((part[name] for part in parts for name in _LATENTS if name in part), None)
        kinds: list[str] = []
        for node, _ in self.walk(latent, self.all_links):
            inputs = self.inputs(node)
            if {"width", "height"} <= inputs.keys():
                width, height = (self.plain(inputs[name], name) for name in ("width", "height"))
                return f"{width}x{height}" if width and height else ""
            kinds.append(self.kind(node))
        if any("VAEEncode" in kind for kind in kinds):
            self.problems.append("It begins with a picture, which is not read.")
        return ""

    def model(self, parts: Sequence[Mapping[str, Any]]) -> dict[str, str]:
        """Name of the checkpoint; LoRAs on the way to it are said."""
        link = next((part["model"] for part in parts if _end(part.get("model"))), None)
        loras: list[tuple[str, object]] = []
        model = ""
        for node, _ in self.walk(link, lambda node, _: [self.inputs(node).get("model")]):
            inputs = self.inputs(node)
            if isinstance(name := inputs.get("lora_name"), str):
                loras.append((name, inputs.get("strength_model", 1)))
            model = next((inputs[key] for key in ("ckpt_name", "unet_name") if isinstance(inputs.get(key), str)), model)
        self.problems += lora_problem(loras)
        return {"Model": file_name(model)} if model else {}

    def clip_skip(self, encoder: str) -> str:
        """The last layer of the text encoder, if a node sets it."""
        for node, _ in self.walk(self.inputs(encoder).get("clip"), lambda node, _: [self.inputs(node).get("clip")]):
            if "stop_at_clip_layer" in self.inputs(node):
                return self.plain(self.inputs(node)["stop_at_clip_layer"], "stop_at_clip_layer")
        return ""

    def reading(self, encoder: str) -> tuple[str, str]:
        """Syntax and scheme of a node that encodes; empty for the WebUI's, with its times."""
        kind, inputs = self.kind(encoder), self.inputs(encoder)
        if kind == "WeightedCLIPA1111Encode":
            return "", ""
        if encoder and not kind.startswith(_STOCK):
            self.problems.append(f"{self.named(encoder)} may read weights otherwise than ComfyUI.")
        syntax, scheme = (
            inputs.get(name) if kind.startswith("WeightedCLIP") else None for name in ("syntax", "scheme")
        )
        return (syntax if isinstance(syntax, str) else "comfy"), (scheme if isinstance(scheme, str) else "comfy")


def _is_sampler(inputs: Mapping[str, Any]) -> bool:
    return ("positive" in inputs and ("steps" in inputs or "sigmas" in inputs)) or {"guider", "sigmas"} <= inputs.keys()


def _end(value: object) -> tuple[str, int] | None:
    """Node and output that a value links to; None for no link."""
    if isinstance(value, list) and len(value) == 2 and isinstance(value[0], (str, int)) and isinstance(value[1], int):
        return str(value[0]), int(value[1])
    return None
