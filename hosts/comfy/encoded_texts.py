"""The prompts as they were encoded, in the metadata of saved images.

ComfyUI's save nodes write every entry of EXTRA_PNGINFO into the file. This dictionary comes with each request, and
nodes may add to it; ours add `KEY`. A node whose outputs ComfyUI has cached does not run, so its texts are remembered
here as well, and found again by everything that its outputs depend on.

Source: behaviour of ComfyUI 0.3.64 and 0.29.0.
"""

from __future__ import annotations

import hashlib
import json
from collections import OrderedDict
from collections.abc import Collection, Mapping
from functools import cache
from typing import Any

from .contract import host, running_server

KEY = "weighted_clip"
"""Entry of EXTRA_PNGINFO, and so the keyword of a PNG."""
MAX_REMEMBERED = 1000
"""Nodes whose texts are remembered, each with all its inputs and what these depend on."""

Runs = list[dict[str, str]]
"""The texts of a node by input: once, or for each time that a list made it run."""


class TextMemory:
    """Texts that nodes encoded, found by signature; the oldest are forgotten first."""

    def __init__(self) -> None:
        """Start empty."""
        self._nodes: OrderedDict[str, dict[str, Runs]] = OrderedDict()

    def put(self, signature: str, suffix: str, runs: Runs) -> None:
        """Remember the runs of a node, or, by the suffix of its id, of one that it was expanded into."""
        self._nodes[signature] = {**self._nodes.get(signature, {}), suffix: runs}
        self._nodes.move_to_end(signature)
        while len(self._nodes) > MAX_REMEMBERED:
            self._nodes.popitem(last=False)

    def get(self, signature: str) -> Mapping[str, Runs]:
        """The runs by suffix; empty for an unknown node."""
        return self._nodes.get(signature, {})


class EncodedTexts(dict[str, Any]):
    """Texts that our nodes encoded in one request, by node id. It is a dictionary, so that it can be written as JSON.

    Nodes that did not run are looked up when it is written, as their signatures are not known before.
    """

    def __init__(self, prompt: Mapping[str, Any], ids: Collection[str], memory: TextMemory) -> None:
        """Prepare for a request: the very object that ComfyUI runs, nodes by id, and which of them are ours."""
        super().__init__(dict.fromkeys(ids))  # one without entries would be written without being asked for them
        self._prompt = prompt
        self._memory = memory
        self._runs: dict[str, Runs] = {}

    def add(self, node_id: str, texts: dict[str, str]) -> None:
        """Add the texts that a node has encoded, by input, each time that it has run."""
        runs = self._runs[node_id] = [*self._runs.get(node_id, []), texts]
        self[node_id] = _written(runs)
        # a node that another was expanded into is remembered with that one
        owner = node_id if node_id in self._prompt else node_id.partition(".")[0]
        signature = _signature(self._prompt, owner, {})
        if signature is not None:
            self._memory.put(signature, node_id.removeprefix(owner), runs)

    def items(self) -> Any:
        """Node ids with their texts: nodes that ran, and those whose outputs ComfyUI had cached."""
        signatures: dict[str, str | None] = {}
        cached_runs: dict[str, Runs] = {}
        for node_id in self._prompt:
            signature = _signature(self._prompt, node_id, signatures)
            for suffix, runs in self._memory.get(signature).items() if signature else ():
                cached_runs[node_id + suffix] = runs
        return {node_id: _written(runs) for node_id, runs in {**cached_runs, **self._runs}.items()}.items()

    def __reduce__(self) -> tuple[type[dict[str, Any]], tuple[dict[str, Any]]]:
        """A copy is a plain dictionary."""
        return dict, (dict(self.items()),)


def add_texts(classes: Mapping[str, Any]) -> None:
    """Let requests to the running server, if there is one, collect the texts our nodes (by id) encode."""
    server = running_server()
    add_handler = getattr(server, "add_on_prompt_handler", None)
    if add_handler is not None:
        memory = TextMemory()

        @cache
        def encoding() -> frozenset[str]:  # asked of the nodes at the first request: some list the host's files
            return frozenset(name for name, node in classes.items() if "EXTRA_PNGINFO" in _hidden(node))

        add_handler(lambda request: with_texts(request, encoding(), memory))


def with_texts(request: Any, classes: Collection[str], memory: TextMemory) -> Any:
    """Add our entry to the metadata of a request, if it has metadata and a node of these classes."""
    extra = request.get("extra_data") if isinstance(request, dict) else None
    info = extra.get("extra_pnginfo") if isinstance(extra, dict) else None
    prompt = request.get("prompt") if isinstance(request, dict) else None
    if isinstance(info, dict) and isinstance(prompt, dict):
        ids = [id_ for id_, node in prompt.items() if isinstance(node, dict) and node.get("class_type") in classes]
        if ids:
            info[KEY] = EncodedTexts(prompt, ids, memory)
    return request


def note_texts(extra_pnginfo: Any, texts: dict[str, str]) -> None:
    """Add texts of the running node, by input, to the metadata of its request (EXTRA_PNGINFO), if it has any."""
    if not isinstance(extra_pnginfo, dict):
        return
    context = host("comfy_execution.utils").get_executing_context()
    if context is None:
        return
    request_texts = extra_pnginfo.get(KEY)
    if not isinstance(request_texts, EncodedTexts):  # the request did not come by the server, or something copied it
        request_texts = extra_pnginfo[KEY] = EncodedTexts({}, (), TextMemory())
    request_texts.add(context.node_id, texts)


def _written(runs: Runs) -> dict[str, Any]:
    """The texts by input; of several runs a list each."""
    if len(runs) == 1:
        return dict(runs[0])
    return {name: [run.get(name, "") for run in runs] for name in runs[0]}


def _signature(prompt: Mapping[str, Any], node_id: str, signatures: dict[str, str | None]) -> str | None:
    """Hash of all that the outputs of a node depend on, as ComfyUI sees it; None if they are never cached."""
    if node_id not in signatures:
        signatures[node_id] = None
        node = prompt.get(node_id)
        if isinstance(node, dict) and isinstance(node.get("inputs"), dict):
            signatures[node_id] = _hash_of(prompt, node_id, node, signatures)
    return signatures[node_id]


def _hash_of(
    prompt: Mapping[str, Any], node_id: str, node: Mapping[str, Any], signatures: dict[str, str | None]
) -> str | None:
    inputs: list[Any] = []
    for name, value in sorted(node["inputs"].items()):
        if isinstance(value, list) and len(value) == 2 and isinstance(value[0], str) and value[0] in prompt:
            source = _signature(prompt, value[0], signatures)
            if source is None:
                return None
            inputs.append([name, source, value[1]])
        else:
            inputs.append([name, value])
    kind = node.get("class_type")
    own_id = node_id if _counts_id(kind) else None
    try:
        # ComfyUI notes there what IS_CHANGED returned; NaN equals nothing
        text = json.dumps([kind, node.get("is_changed"), own_id, inputs], sort_keys=True, allow_nan=False)
    except (TypeError, ValueError):
        return None
    return hashlib.sha256(text.encode()).hexdigest()


def _counts_id(kind: Any) -> bool:
    """Whether the outputs of a class of nodes depend on the id of the node."""
    node = host("nodes").NODE_CLASS_MAPPINGS.get(kind)
    return bool(getattr(node, "NOT_IDEMPOTENT", False)) or "UNIQUE_ID" in _hidden(node)


def _hidden(node: Any) -> Collection[str]:
    return node.INPUT_TYPES().get("hidden", {}).values() if hasattr(node, "INPUT_TYPES") else ()
