"""A node that is being edited, as far as the page knows it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from ...hosts.comfy.placing.upstream import UNKNOWN, Prompts, UpstreamNode, prompts_before


class NodeState(NamedTuple):
    """A node as far as the page knows it."""

    values: Mapping[str, Any]
    """Values of its inputs, without those that are computed."""
    sources: Mapping[str, UpstreamNode | None] = {}
    """Nodes that its linked inputs come from; None for one that is computed."""
    read_prompts: Callable[[UpstreamNode], Prompts | None] = lambda source: None
    """Function from a node that encodes a prompt to its prompts; None for any other node."""
    size: tuple[int, int] | None = None
    """Height and width in pixels of the picture that it is for, if it is known."""

    def has(self, *names: str) -> bool:
        """Whether the values of some inputs are known."""
        return all(name in self.values for name in names)

    def prompts(self, name: str) -> Prompts:
        """Prompts of an input for a CONDITIONING."""
        return self.prompts_of(self.sources.get(name))

    def typed_words(self, name: str) -> Iterator[list[str]]:
        """Words of each prompt of such an input, as typed."""
        for words in dict.fromkeys(self.prompts(name).words):
            yield [word.typed for word in words.words if word is not None]

    def prompts_of(self, source: UpstreamNode | None) -> Prompts:
        """Prompts of a CONDITIONING that comes from a node."""
        return prompts_before(source, self.read_prompts) if source else UNKNOWN
