"""Prompts joined by AND_PERP and its like in Forge's own sampler, compared with the code of neutral-prompt.

Run by test_webui_python.py in Forge's own Python, with its checkout as working directory:

    python forge_joints.py PACKAGE EXTENSION OUTCOME --always-cpu --data-dir DIR

Neutral-prompt combines in a method that Forge has and does not call. Here Forge's guidance is replaced by that method,
given a prediction for each prompt; its parser says which prompts there are. Weights, places, glides and edits are our
script's on both sides.

Writes for each case the largest difference and the largest change by the joints, both relative to the largest number.
"""

# pyright: reportMissingImports=false

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import patch

import torch
from forge_places import run_cases, sampled, script
from webui_engines import ours

EXTENSION = Path(sys.argv.pop(2))
JOINS = {"joins": "neutral-prompt"}
TWO = "a red cat AND_PERP a blue dog:-0.7"


def extension() -> tuple[Any, Any, Any]:
    """Parser, state and guidance of the extension, without its hooks on the host."""
    hijacks: Any = ModuleType("lib_neutral_prompt.hijacker")
    hijacks.ModuleHijacker = type(
        "ModuleHijacker",
        (),
        {
            "install_or_get": staticmethod(lambda **_: hijacks.ModuleHijacker()),
            "hijack": lambda self, name: lambda function: function,
        },
    )
    package = ModuleType("lib_neutral_prompt")
    package.__path__ = [str(EXTENSION / "lib_neutral_prompt")]  # type: ignore[attr-defined]
    package.hijacker = hijacks  # type: ignore[attr-defined]
    known = {"lib_neutral_prompt": package, "lib_neutral_prompt.hijacker": hijacks}
    with patch.dict(sys.modules, known):
        names = ("neutral_prompt_parser", "global_state", "cfg_denoiser_hijack")
        return tuple(importlib.import_module(f"lib_neutral_prompt.{name}") for name in names)  # type: ignore[return-value]


def leaves(expression: Any) -> list[Any]:
    """Prompts in one of the extension's expressions, in order."""
    children = getattr(expression, "children", None)
    return [expression] if children is None else [leaf for child in children for leaf in leaves(child)]


def combine_denoised(x_out: torch.Tensor, conds_list: Any, uncond: torch.Tensor, cond_scale: float) -> torch.Tensor:
    """A1111's method, written out."""
    without = x_out[-len(uncond) :]
    pictures = zip(conds_list, without, strict=True)
    sums = [sum(weight * (x_out[index] - alone) for index, weight in conds) for conds, alone in pictures]
    return without + cond_scale * torch.stack(sums)


@contextmanager
def joined_by_extension(expressions: Sequence[Any], state: Any, guidance: Any) -> Iterator[None]:
    """Let Forge guide by the extension's method; ``expressions`` are those of the pictures of a batch."""
    host = importlib.import_module("backend.sampling.sampling_function")

    def guide(
        model: Any, x: Any, timestep: Any, uncond: Any, cond: Any, scale: float, options: Any, *_: Any, **__: Any
    ) -> Any:
        def alone(entry: Any, negative: Any = None) -> Any:
            return host.calc_cond_uncond_batch(model, [{**entry, "strength": 1.0}], negative, x, timestep, options)

        first, without = alone(cond[0], uncond)
        x_out = torch.cat([first, *(alone(entry)[0] for entry in cond[1:]), without])
        conds = [
            [(number * len(x) + picture, leaf.weight) for number, leaf in enumerate(leaves(expression))]
            for picture, expression in enumerate(expressions)
        ]
        denoised = guidance.combine_denoised_hijack(x_out, conds, without, scale, combine_denoised)
        return denoised, denoised, without

    given = patch.multiple(state, is_enabled=True, prompt_exprs=list(expressions), cfg_rescale=0.0)
    with given, patch.object(host, "sampling_function_inner", guide):
        yield


def compared(model: Any, case: Mapping[str, Any]) -> tuple[float, float, list[str]]:
    """Difference of a case from the extension's, the change by the joints, and what is told."""
    parser, state, guidance = extension()
    prompts, fields, lines = case["prompts"], case.get("fields", {}), case.get("lines", ())
    settings = case.get("settings", {})
    joined = sampled(model, *prompts, script=script(*lines, **JOINS, **settings), **fields)
    plain = sampled(model, *prompts, script=script(*case.get("plain", lines), **settings), **fields)
    expressions = [parser.parse_root(prompt) for prompt in prompts]
    written = [
        " AND ".join(f"{leaf.prompt} :{number + 1}" for number, leaf in enumerate(leaves(each))) for each in expressions
    ]
    with joined_by_extension(expressions, state, guidance):
        expected = sampled(model, *written, script=script(*lines, **settings), **fields).samples
    scale = float(expected.abs().max())
    # AND_SALT gives each number to the most salient prompt: where two are equal up to rounding, either may have it
    num_ties = int(any("AND_SALT" in prompt for prompt in prompts))
    difference, change = (
        float((one.samples - expected).abs().flatten().kthvalue(expected.numel() - num_ties).values) / scale
        for one in (joined, plain)
    )
    assert joined.extra_generation_params["Weighted CLIP joins"] == JOINS["joins"]
    return difference, change, list(joined.comments)


def cases(model: Any) -> dict[str, dict[str, Any]]:
    """Everything that is compared, by name."""
    found: dict[str, dict[str, Any]] = {
        "AND_PERP": {"prompts": [TWO]},
        "AND_SALT": {"prompts": ["a red cat AND_SALT a blue dog:0.7 AND_SALT a mat:0.5"]},
        "AND_TOPK of a bracket": {"prompts": ["a red cat AND_TOPK [a blue dog AND a mat:-0.5]:2"]},
        "a bracket first": {"prompts": ["[a red cat AND_PERP a hat]:0.7 AND a blue dog AND_SALT a (green:1.4) mat"]},
        "a batch of two": {"prompts": [TWO, "a green hat:0.8 AND_TOPK [a mat]:3"]},
        "edits": {"prompts": ["a [red cat:green hat:0.5] AND_PERP [a|two] blue dog"]},
        "glides": {"prompts": ["a [cat:hat:0.2,0.8] AND_PERP a dog"], "settings": {"glides": "prompt-fusion"}},
        "places": {
            "prompts": ["a red cat AND_PERP a blue dog"],
            "lines": ["red cat: left half", "blue dog: right half"],
        },
        "masked_blend": {
            "prompts": ["a (red:0.5) cat AND_PERP a (blue:0.3) dog"],
            "settings": {"scheme": "masked_blend"},
        },
        "hires. fix": {
            "prompts": [TWO],
            "fields": {
                **{"enable_hr": True, "hr_scale": 1.5, "hr_upscaler": "Latent", "denoising_strength": 0.6},
                **{"hr_second_pass_steps": 3, "hr_cfg": 3.0, "hr_additional_modules": ["Use same choices"]},
            },
        },
    }
    for sampler in ("Heun", "DPM++ 2M", "DDIM", "UniPC"):
        found[sampler] = {"prompts": [TWO], "fields": {"sampler_name": sampler}}
    return found


def refused(model: Any, case: Mapping[str, Any]) -> str:
    """The words with which a generation is refused."""
    try:
        sampled(model, *case["prompts"], script=script(**JOINS), **case.get("fields", {}))
    except ours("hosts.webui.engines").WebUIError as error:
        return str(error)
    return ""


def run(model: Any, case: Mapping[str, Any]) -> Any:
    """A comparison, or the refusal that a case wants."""
    if "refused" not in case:
        return compared(model, case)
    message = refused(model, case)
    assert case["refused"] in message, message
    return 0.0, 1.0, [message]


def all_cases(model: Any) -> dict[str, dict[str, Any]]:
    """Comparisons and refusals."""
    return {
        **cases(model),
        "refused: guidance 1": {"prompts": [TWO], "fields": {"cfg_scale": 1.0}, "refused": "at CFG scale 1"},
        "refused: a mixed batch": {"prompts": [TWO, "a mat"], "refused": "batch size to 1"},
        "refused: an infinite weight": {"prompts": [f"a (cat:{'9' * 400}) AND_PERP b"], "refused": "finite"},
    }


if __name__ == "__main__":
    run_cases(all_cases, run)
