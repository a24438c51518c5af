"""The A1111 Prompt node: the WebUI's syntax, chunks, emphasis modes, prompt editing and AND."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from ..hosts.comfy.clip import EitherClip, is_stable_diffusion
from ..hosts.comfy.live_tokenizers import as_by_host
from ..hosts.comfy.timed import encode_timed, timing_of, uniform_timing
from ..hosts.comfy.types import ModelPatcher
from ..weighting.options import EncodeOptions
from ..weighting.timed.schedule import COUNTERS, MAX_STEPS, Counter, read_timed
from . import common
from .common import EncodeNode
from .results import timed_result

EMPHASIS: dict[str, dict[str, Any]] = {
    "Original": {"syntax": "a1111", "scheme": "a1111"},
    "No norm": {"syntax": "a1111", "scheme": "a1111_no_norm"},
    "Ignore": {"syntax": "a1111", "scheme": "unweighted"},
    "None": {"syntax": "none", "scheme": "unweighted"},
}
"""The WebUI's emphasis modes, default first."""

EMPHASIS_INPUT = common.menu(
    EMPHASIS,
    "Original: rows are scaled and each chunk's mean restored. No norm: only scaled. Ignore: weights are read and not "
    "applied. None: brackets are text.",
    counts=True,
)
STEPS_INPUT = common.make_input(
    "INT",
    "The sampler's steps, which times such as [cat:dog:10] count. Not used where sigmas are connected.",
    {"default": 20, "min": 1, "max": MAX_STEPS},
    counts=True,
)
COUNTER_INPUT = common.menu(
    COUNTERS,
    "When a text changes. as the WebUI counts: one step later than written, as A1111 and Forge do. as written: "
    "[cat:dog:10] is ten steps of cat.",
    counts=True,
)
SIGMAS_INPUT = common.make_input(
    "SIGMAS",
    "The sampler's noise levels, as from BasicScheduler: texts then change on exactly their step.",
    counts=True,
)
MODEL_INPUT = common.make_input(
    "MODEL",
    "Connect it along with sigmas if the model is not Stable Diffusion 1, 2 or XL, or has changed noise levels.",
)


class WeightedCLIPA1111Encode(EncodeNode):
    """Reads and encodes a prompt as the A1111 WebUI and Forge do: brackets, BREAK, 75-token chunks cut at commas,
    emphasis modes, embeddings by name, prompt editing [from:to:when], alternation and AND.
    """

    title = "A1111 Prompt"
    aliases = (
        "a1111, webui, forge, emphasis, break, prompt, prompt editing, prompt scheduling, alternation, AND, "
        "composable, prompt weight, wildcard"
    )

    @classmethod
    def INPUT_TYPES(cls) -> dict[str, Any]:
        """ComfyUI's description of the inputs."""
        return {
            "required": {
                **common.inputs("clip", "text"),
                "emphasis": EMPHASIS_INPUT,
                **common.inputs("comma_backtrack", "padding"),
            },
            # optional, so that requests saved before they existed stay valid
            "optional": {
                "steps": STEPS_INPUT,
                "counter": COUNTER_INPUT,
                "sigmas": SIGMAS_INPUT,
                "model": MODEL_INPUT,
                **common.inputs("cleaning"),
            },
            "hidden": common.METADATA,
        }

    reads_as = staticmethod(as_by_host)
    """Reading of prompts for T5, Qwen and others."""

    @staticmethod
    def options(emphasis: str, **choices: Any) -> EncodeOptions:
        """Options from the inputs, except for times."""
        mode = EMPHASIS[common.checked("emphasis", emphasis, EMPHASIS)]
        return EncodeOptions(**mode, chunking="a1111", **choices)

    def encode(
        self,
        clip: EitherClip,
        text: str,
        emphasis: str,
        comma_backtrack: int,
        padding: str,
        steps: int = 20,
        counter: Counter = COUNTERS[0],
        sigmas: Tensor | None = None,
        model: ModelPatcher | None = None,
        **choices: Any,
    ) -> dict[str, Any]:
        """Encode by the WebUI's rules; ``choices`` are the other menus."""
        common.checked("counter", counter, COUNTERS)
        options = self.options(emphasis, comma_backtrack=comma_backtrack, padding=padding, **choices)
        if sigmas is None:
            timing = uniform_timing(steps)
        else:
            timing = timing_of(sigmas.tolist(), model, is_stable_diffusion=is_stable_diffusion(clip))
        prompt = read_timed(text, timing.steps, has_comments=options.is_cleaned)
        return timed_result(prompt, encode_timed(clip, prompt, options, timing, counter), timing, counter)
