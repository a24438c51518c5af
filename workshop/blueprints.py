"""Blueprints of ComfyUI, which its node library offers as nodes: subgraphs with a Weighted CLIP before their prompts.

Source: behaviour of ComfyUI 0.29.0, which serves ``subgraphs/*.json`` of a pack.
"""

from __future__ import annotations

import json
import uuid
from typing import Any, NamedTuple

from ..nodes import NODE_CLASS_MAPPINGS

SERVER = "WeightedCLIP"
STOCK: dict[str, tuple[dict[str, str], dict[str, Any], list[tuple[str, str]]]] = {
    "CheckpointLoaderSimple": (
        {},
        {"ckpt_name": "v1-5-pruned-emaonly-fp16.safetensors"},
        [("MODEL", "MODEL"), ("CLIP", "CLIP"), ("VAE", "VAE")],
    ),
    "CLIPTextEncode": ({"clip": "CLIP"}, {"text": ""}, [("CONDITIONING", "CONDITIONING")]),
    "EmptyLatentImage": ({}, {"width": 512, "height": 512, "batch_size": 1}, [("LATENT", "LATENT")]),
    "KSampler": (
        {"model": "MODEL", "positive": "CONDITIONING", "negative": "CONDITIONING", "latent_image": "LATENT"},
        {"seed": 0, "steps": 20, "cfg": 7.0, "sampler_name": "euler", "scheduler": "normal", "denoise": 1.0},
        [("LATENT", "LATENT")],
    ),
    "VAEDecode": ({"samples": "LATENT", "vae": "VAE"}, {}, [("IMAGE", "IMAGE")]),
}
"""ComfyUI's nodes: inputs with their types, widgets with their values, outputs."""
KINDS = {str: "STRING", int: "INT", float: "FLOAT", bool: "BOOLEAN"}
MENUS = ("ckpt_name", "sampler_name", "scheduler")
INPUT, OUTPUT = -10, -20
"""Ids of a subgraph's ends."""


class Blueprint(NamedTuple):
    """A subgraph."""

    description: str
    nodes: dict[int, str]
    """Classes of its nodes by id."""
    links: list[tuple[int, str, int, str]]
    """Links from an output of a node, by name, to an input of another."""
    inputs: dict[str, list[tuple[int, str]]]
    """Inputs of the subgraph, each with the inputs of nodes that it goes to."""
    outputs: dict[str, tuple[int, str]]
    """Outputs of the subgraph, each with the output of a node that it comes from."""
    at: dict[int, tuple[int, int]]
    """Places of its nodes."""


PROMPTS = {"prompt": [(2, "text")], "negative": [(3, "text")]}
WEIGHING = {"syntax": [(1, "syntax")], "scheme": [(1, "scheme")], "strength": [(1, "strength")]}
BLUEPRINTS = {
    "Weighted prompts": Blueprint(
        "A prompt and a negative prompt whose weights act in any model, between the loader's CLIP and the sampler.",
        {1: SERVER, 2: "CLIPTextEncode", 3: "CLIPTextEncode"},
        [(1, "CLIP", 2, "clip"), (1, "CLIP", 3, "clip")],
        {"clip": [(1, "clip")], **PROMPTS, **WEIGHING},
        {"positive": (2, "CONDITIONING"), "negative": (3, "CONDITIONING")},
        {1: (0, 0), 2: (450, 0), 3: (450, 250)},
    ),
    "Weighted text to image": Blueprint(
        "A picture of a prompt with weights, by a checkpoint of Stable Diffusion.",
        {
            **{1: SERVER, 2: "CLIPTextEncode", 3: "CLIPTextEncode", 4: "CheckpointLoaderSimple"},
            **{5: "EmptyLatentImage", 6: "KSampler", 7: "VAEDecode"},
        },
        [
            *((4, "CLIP", 1, "clip"), (1, "CLIP", 2, "clip"), (1, "CLIP", 3, "clip"), (4, "MODEL", 6, "model")),
            *((2, "CONDITIONING", 6, "positive"), (3, "CONDITIONING", 6, "negative")),
            *((5, "LATENT", 6, "latent_image"), (6, "LATENT", 7, "samples"), (4, "VAE", 7, "vae")),
        ],
        {
            **{"checkpoint": [(4, "ckpt_name")], **PROMPTS, **WEIGHING},
            **{name: [(5, name)] for name in ("width", "height")},
            **{name: [(6, name)] for name in ("seed", "steps", "cfg")},
        },
        {"IMAGE": (7, "IMAGE")},
        {4: (-450, 0), 1: (0, 0), 2: (450, 0), 3: (450, 250), 5: (450, 500), 6: (900, 0), 7: (1300, 0)},
    ),
}
"""All blueprints by name."""


def parts_of(kind: str) -> tuple[dict[str, str], dict[str, Any], list[tuple[str, str]]]:
    """Inputs, widgets and outputs of a node, as in `STOCK`."""
    if kind in STOCK:
        return STOCK[kind]
    node = NODE_CLASS_MAPPINGS[kind]
    sections = node.INPUT_TYPES()
    declared = {**sections["required"], **sections.get("optional", {})}
    widgets = {name: options["default"] for name, (_, options) in declared.items() if "default" in options}
    inputs = {name: kind for name, (kind, _) in declared.items() if name not in widgets}
    return inputs, widgets, list(zip(node.RETURN_NAMES, node.RETURN_TYPES, strict=True))


def kind_of(node: str, name: str) -> str:
    """Type of a node's input."""
    inputs, widgets, _ = parts_of(node)
    if name in inputs:
        return inputs[name]
    declared = {} if node in STOCK else NODE_CLASS_MAPPINGS[node].INPUT_TYPES()["required"]
    is_menu = name in MENUS or isinstance(declared.get(name, ("",))[0], list)
    return "COMBO" if is_menu else KINDS[type(widgets[name])]


def blueprint(name: str) -> str:
    """The file of a blueprint: a workflow of one node, which is the subgraph."""
    design = BLUEPRINTS[name]
    links: list[dict[str, Any]] = []

    def link(origin: int, slot: int, target: int, end: int, kind: str) -> int:
        number = len(links) + 1
        ids = {"id": number, "origin_id": origin, "origin_slot": slot, "target_id": target, "target_slot": end}
        links.append({**ids, "type": kind})
        return number

    incoming: dict[tuple[int, str], int] = {}
    outgoing: dict[tuple[int, str], list[int]] = {}

    def slots(node: int) -> list[str]:
        inputs, widgets, _ = parts_of(design.nodes[node])
        return [*inputs, *widgets]

    def outputs(node: int) -> list[str]:
        return [title for title, _ in parts_of(design.nodes[node])[2]]

    for origin, slot, target, end in design.links:
        kind = kind_of(design.nodes[target], end)
        number = link(origin, outputs(origin).index(slot), target, slots(target).index(end), kind)
        incoming[target, end] = number
        outgoing.setdefault((origin, slot), []).append(number)
    entries = []
    for place, (title, targets) in enumerate(design.inputs.items()):
        kind = kind_of(design.nodes[targets[0][0]], targets[0][1])
        numbers = [link(INPUT, place, node, slots(node).index(end), kind) for node, end in targets]
        incoming |= dict(zip(targets, numbers, strict=True))
        entries.append({"id": _uuid(name, title), "name": title, "type": kind, "linkIds": numbers})
    exits = []
    for place, (title, (node, slot)) in enumerate(design.outputs.items()):
        kind = dict(parts_of(design.nodes[node])[2])[slot]
        number = link(node, outputs(node).index(slot), OUTPUT, place, kind)
        outgoing.setdefault((node, slot), []).append(number)
        exits.append({"id": _uuid(name, f"{title}, out"), "name": title, "type": kind, "linkIds": [number]})
    nodes = []
    for order, (number, kind) in enumerate(design.nodes.items()):
        inputs, widgets, node_outputs = parts_of(kind)
        values = list(widgets.values())
        if "seed" in widgets:
            values.insert(1, "randomize")
        input_slots = [
            {"name": slot, "type": kind_of(kind, slot), "link": incoming.get((number, slot))} for slot in inputs
        ]
        input_slots += [
            {"name": slot, "type": kind_of(kind, slot), "widget": {"name": slot}, "link": incoming.get((number, slot))}
            for slot in widgets
        ]
        results = [{"name": slot, "type": of, "links": outgoing.get((number, slot), [])} for slot, of in node_outputs]
        header = {"id": number, "type": kind, "pos": design.at[number], "size": [400, 200], "flags": {}, "order": order}
        nodes.append(
            {**header, "mode": 0, "inputs": input_slots, "outputs": results, "properties": {}, "widgets_values": values}
        )
    promoted = [
        (title, (node, slot))
        for title, [(node, slot), *_] in design.inputs.items()
        if slot in parts_of(design.nodes[node])[1]
    ]
    subgraph = {
        **{"id": _uuid(name), "version": 1, "revision": 0, "config": {}, "name": name, "category": "Weighted CLIP"},
        "state": {"lastGroupId": 0, "lastNodeId": max(design.nodes), "lastLinkId": len(links), "lastRerouteId": 0},
        "description": design.description,
        "inputNode": {"id": INPUT, "bounding": [-750, 0, 120, 160]},
        "outputNode": {"id": OUTPUT, "bounding": [1700, 0, 120, 80]},
        **{
            "inputs": entries,
            "outputs": exits,
            "widgets": [],
            "nodes": nodes,
            "groups": [],
            "links": links,
            "extra": {},
        },
    }
    outer_inputs = [
        {"name": entry["name"], "type": entry["type"], "link": None}
        | ({"widget": {"name": entry["name"]}} if entry["name"] in dict(promoted) else {})
        for entry in entries
    ]
    outer_outputs = [{"name": slot["name"], "type": slot["type"], "links": []} for slot in exits]
    outer = {
        **{"id": 1, "type": _uuid(name), "pos": [0, 0], "size": [400, 500], "flags": {}, "order": 0, "mode": 0},
        **{"inputs": outer_inputs, "outputs": outer_outputs},
        "properties": {"proxyWidgets": [[str(node), end] for _, (node, end) in promoted]},
        **{"widgets_values": [], "title": name},
    }
    whole = {"revision": 0, "last_node_id": 1, "last_link_id": 0, "nodes": [outer], "links": [], "version": 0.4}
    return json.dumps({**whole, "definitions": {"subgraphs": [subgraph]}, "extra": {}}, indent=1) + "\n"


def _uuid(*names: str) -> str:
    return str(uuid.uuid5(uuid.NAMESPACE_URL, "/".join(["weighted-clip", *names])))
