"""Nodes that are being edited, as far as the page knows them, and the problems that their classes find in that.

A node class finds them in ``problems``, by the functions that its run calls, so that page and run refuse the same.
Nodes with a prompt box show them with their prompt's problems (web/inspection.py), all others by a separate request.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Any

from ...encoder.quoting import quote, raising
from ...hosts.comfy.placing.upstream import UNKNOWN, Prompts, UpstreamNode, blended, source_of
from ...web.inspection import RequestError, RulerNode, prompt_words
from ...weighting.text.problems import Problem, refused
from .node import Node, checked
from .node_state import NodeState

WEIGHTED_CLIP = "WeightedCLIP"
"""Id of the node after which other packs' nodes carry words too."""
MAX_PROBLEMS = 20
"""Maximum number of problems in an answer."""
MAX_WORDS = 400
"""Maximum number of words that are offered, of all prompts together."""
MAX_WORD = 60
"""Maximum length of one of them."""
MAX_NUMBER = 2**65
"""Largest number: seeds have 64 bits, which the page rounds up."""
MAX_CHOICES = 64
"""Maximum number of choices of a menu that are checked; longer menus are lists of files."""
_TYPES = {"STRING": str, "INT": int, "FLOAT": (int, float), "BOOLEAN": bool}
_CALLED = {"STRING": "a text", "INT": "a whole number", "FLOAT": "a number", "BOOLEAN": "true or false"}


def answer_check(asked: object, classes: Mapping[str, type[Node]], nodes: Mapping[str, RulerNode]) -> dict[str, Any]:
    """Answer a request for a node's problems.

    Args:
        asked: An object with ``node``, its id; ``values``, its inputs; and, if known, ``links``, by input a node as in
            `source_of`; and ``size``, height and width of the picture.
        classes: All nodes by id.
        nodes: Those with a prompt box.

    Returns:
        ``problems``, each with ``message``, ``input`` and ``is_refused``; and ``words`` of each of its prompts, which
        its input with the mark `node.WORDS` takes.

    Raises:
        RequestError: If the request is malformed.
    """
    if not isinstance(asked, dict) or asked.keys() - {"links", "size"} != {"node", "values"}:
        raise RequestError('a request is an object with "node", "values" and perhaps "links" and "size"')
    name, values, links, size = asked["node"], asked["values"], asked.get("links", {}), asked.get("size")
    node = classes.get(name) if isinstance(name, str) else None
    if node is None:
        raise RequestError(f"node must be the id of a node of Weighted CLIP, got {quote(name)}")
    if not isinstance(values, dict) or not isinstance(links, dict):
        raise RequestError(f"values and links must be objects, got {quote([values, links])}")
    if size is not None and not (
        isinstance(size, list) and len(size) == 2 and all(type(side) is int and 0 < side < 2**20 for side in size)
    ):
        raise RequestError(f"size must be two numbers of pixels, got {quote(size)}")
    with raising(RequestError):
        sources = {key: source_of(link) for key, link in links.items()}
    state = NodeState(
        values, sources, lambda source: prompts_of_node(source, nodes), (size[0], size[1]) if size is not None else None
    )
    problems = list(islice(_of_types(node, values), MAX_PROBLEMS)) or list(islice(node.problems(state), MAX_PROBLEMS))
    return {"problems": [problem._asdict() for problem in problems], "words": list(_first_words(node.words(state)))}


def _of_types(node: type[Node], values: Mapping[str, Any]) -> Iterator[Problem]:
    """Problems of values that are of another type than their input, or no choice of its menu."""
    types = node.INPUT_TYPES()
    inputs = {**types.get("required", {}), **types.get("optional", {})}
    for name, value in values.items():
        if name not in inputs:
            raise RequestError(f"unknown value {quote(name)}; allowed: {', '.join(inputs)}")
        kind = inputs[name][0]
        if isinstance(kind, list) and len(kind) <= MAX_CHOICES:
            yield from refused(name, checked, name, value, kind)
        elif isinstance(kind, str) and kind in _TYPES:
            is_typed = isinstance(value, _TYPES[kind]) and (kind == "BOOLEAN") == isinstance(value, bool)
            if not is_typed or (isinstance(value, (int, float)) and not abs(value) <= MAX_NUMBER):
                yield Problem(f"{name} must be {_CALLED[kind]}, got {quote(value)}.", name)


def _first_words(prompts: Iterable[list[str]]) -> Iterator[list[str]]:
    """Words of prompts, as many as are shown."""
    room = MAX_WORDS
    for words in prompts:
        kept_words = [word for word in words if len(word) <= MAX_WORD][:room]
        room -= len(kept_words)
        if kept_words:
            yield kept_words


def prompts_of_node(source: UpstreamNode, nodes: Mapping[str, RulerNode]) -> Prompts | None:
    """Prompts of a node that encodes, one of ours or one that a Weighted CLIP serves; UNKNOWN where they are computed.

    None for any other node.
    """
    kind, names, chosen = source.kind, (), source.values
    if source.served:
        kind, names, chosen = WEIGHTED_CLIP, source.served.texts, source.served.values
    node = nodes.get(kind)
    if node is None or source.type != "CONDITIONING":
        return None
    names = names or node.texts
    texts = [text for name in names if isinstance(text := source.values.get(name), str)]
    if not texts or len(texts) < len(names) or not node.defaults.keys() <= chosen.keys():
        return UNKNOWN
    values = {name: chosen[name] for name in node.defaults}
    parsed = [_prompts_of_text(node, text, values) for text in dict.fromkeys(texts)]
    first = parsed[0]
    return (
        first._replace(words=tuple(words for prompts in parsed for words in prompts.words))
        if len(parsed) > 1
        else first
    )


def _prompts_of_text(node: RulerNode, text: str, values: Mapping[str, Any]) -> Prompts:
    try:
        prompt = prompt_words({**node.fields({**node.defaults, **values}), "text": text})
    except (TypeError, ValueError):  # that node says so
        return UNKNOWN
    return Prompts(prompt.words, True, prompt.num_entries, refusal=blended if prompt.is_blend else None)
