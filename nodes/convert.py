"""The Convert node: a prompt in another syntax."""

from __future__ import annotations

from typing import Any

from ..encoder.tokenizer import default_tokenizer
from ..weighting.convert import TARGETS, convert
from ..weighting.options import EncodeOptions
from ..weighting.reading import read_prompt
from ..weighting.syntax import SYNTAXES
from . import common
from .common import Node, Out
from .results import node_result


class WeightedCLIPConvert(Node):
    """Rewrites a prompt for another program: every token keeps its id and its weight. What the other syntax cannot say
    is named.
    """

    title = "Convert Prompt Syntax"
    aliases = "convert prompt, syntax, a1111 to comfy, compel, translate prompt"
    outputs = (
        Out("STRING", "text", "The prompt in the other syntax."),
        Out("STRING", "report", "What could not be kept, or that everything was."),
    )
    FUNCTION = "convert"

    @classmethod
    def INPUT_TYPES(cls) -> dict[str, Any]:
        """ComfyUI's description of the inputs."""
        sources = common.with_first("a1111", SYNTAXES)
        return {
            "required": {
                **common.inputs("text"),
                "from": common.menu(sources, "The syntax the prompt is in.", counts=True),
                "to": common.menu(TARGETS, "The syntax wanted."),
            },
            # optional, so that requests saved before it existed stay valid
            "optional": common.inputs("cleaning"),
        }

    @staticmethod
    def options(**choices: Any) -> EncodeOptions:
        """Options for reading the prompt."""
        return EncodeOptions(**{"syntax" if name == "from" else name: value for name, value in choices.items()})

    def convert(self, text: str, to: str, **choices: Any) -> dict[str, Any]:
        """Convert; ``choices`` are the other menus, since ``from`` is not a valid Python name."""
        options = self.options(**choices)
        is_cleaned = options.cleaning == "as Forge"
        result = convert(text, options.syntax, to, default_tokenizer(), is_cleaned=is_cleaned)
        report = "\n".join(issue.line for issue in result.issues) or "Every token keeps its id and its weight."
        read = read_prompt(text, options, default_tokenizer())
        return node_result((result.text, report), [read._replace(issues=result.issues)])
