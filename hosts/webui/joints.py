"""Prompts joined by AND_PERP, AND_SALT and AND_TOPK in the WebUI: a prediction for each, made into one in each step.

While the host makes the conditioning of prompts, its function that cuts them at AND is ours: it gets the joined prompts
with AND between them. While it samples, its function that makes one prediction of several is ours: in A1111 a method of
its denoiser, in Forge one in front of the guidance.

Source: behaviour of stable-diffusion-webui 1.10, of stable-diffusion-webui-forge dfdcbab6 (2025-06), and of
sd-webui-neutral-prompt 64ee2be (2024-03); docs/timed.md, "AND_PERP, AND_SALT, AND_TOPK".
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor

from ...weighting.composing import composed
from ...weighting.timed.joining import Joined, JoinedCut, cut_at_joints
from .engines import Generation, WebUIError, calling_with, host_option, is_ended

CUTTER = "get_multicond_prompt_list"
"""Name of the host's function that cuts prompts at AND."""
FORGE, A1111 = "backend.sampling.sampling_function", "modules.sd_samplers_cfg_denoiser"
"""Modules in which predictions are made into one."""
WORDS = "AND_PERP, AND_SALT and AND_TOPK"
THEIRS_JOINS = f"the extension Neutral Prompt is active: it reads {WORDS}, not Weighted CLIP."


def is_neutral_prompt_active() -> bool:
    """Whether the extension neutral-prompt is there and switched on."""
    parser = sys.modules.get("modules.prompt_parser")
    is_on = bool(host_option("neutral_prompt_enabled", default=True))
    return hasattr(parser, "__neutral_prompt_hijacker") and is_on


class Joints:
    """Joined prompts of one generation."""

    def __init__(self) -> None:
        self._cuts: dict[str, JoinedCut | None] = {}
        self._has_cut = self._has_composed = False

    def cutting(self, function: Callable[..., Any], make: Callable[..., Any]) -> Callable[..., Any]:
        """Our function around one of the host's that makes conditioning, with prompts cut at all these words."""
        names: dict[str, Any] = getattr(function, "__globals__", {})
        inner: Callable[..., Any] | None = names.get(CUTTER)
        if inner is None:
            return make

        def cut(prompts: Any) -> Any:
            written = [_with_and(joined) if (joined := self._cut(prompt)) else prompt for prompt in prompts]
            is_listed = hasattr(prompts, "is_negative_prompt")
            return inner(type(prompts)(written, copy_from=prompts) if is_listed else written)

        return calling_with(make, names, CUTTER, cut)

    def _cut(self, prompt: str) -> JoinedCut | None:
        if prompt not in self._cuts:
            self._cuts[prompt] = cut_at_joints(prompt)
            self._has_cut |= self._cuts[prompt] is not None
        return self._cuts[prompt]

    @contextmanager
    def acting(self, p: Generation) -> Iterator[None]:
        """Make one prediction of those of joined prompts for the duration of the context.

        Raises `WebUIError` if none was made although nobody has interrupted it.
        """
        self._has_composed = False
        with ExitStack() as undone:
            if (forge := sys.modules.get(FORGE)) is not None:
                _replace(undone, forge, "calc_cond_uncond_batch", self._predicting(p, forge.calc_cond_uncond_batch))
                _replace(undone, forge, "sampling_function_inner", self._guiding(p, forge.sampling_function_inner))
            elif (module := sys.modules.get(A1111)) is not None:
                kind = module.CFGDenoiser
                _replace(undone, kind, "combine_denoised", self._combining(p, kind.combine_denoised))
            yield
        if self._has_cut and not self._has_composed and not is_ended():
            raise WebUIError(
                f"This WebUI sampled in a way that Weighted CLIP does not know, so {WORDS} did not act: take them out "
                "of the prompt."
            )

    def _trees(self, p: Any, num_pictures: int) -> list[Joined | None]:
        """What joins the prompts of each picture of a batch; None if nothing but AND does."""
        prompts: Sequence[str] = p.hr_prompts if getattr(p, "is_hr_pass", False) else p.prompts
        cuts = [self._cut(prompt) for prompt in prompts]
        if len(cuts) != num_pictures and any(cuts):
            raise WebUIError(f"Another extension changes how many pictures are drawn: take {WORDS} out of the prompt.")
        return [None if cut is None else cut.joined for cut in cuts]

    def _combining(self, p: Generation, combine: Callable[..., Tensor]) -> Callable[..., Tensor]:
        """A1111's method, given the predictions of a batch, those without prompts last."""

        def combine_denoised(
            denoiser: Any, x_out: Tensor, conds_list: Sequence[Any], uncond: Any, cond_scale: float, *rest: Any
        ) -> Tensor:
            denoised = combine(denoiser, x_out, conds_list, uncond, cond_scale, *rest)
            for number, tree in enumerate(self._trees(p, len(conds_list))):
                if tree is not None:
                    without = x_out[-len(denoised) :][number : number + 1]
                    each = [x_out[index : index + 1] for index, _ in conds_list[number]]
                    denoised[number] = (without + cond_scale * self._composed([tree], each, without))[0]
            return denoised

        return combine_denoised

    def _predicting(self, p: Generation, calculate: Callable[..., Any]) -> Callable[..., Any]:
        """Forge's function for predictions with and without prompts, averaged by weights that `_with_and` wrote."""

        def calc_cond_uncond_batch(model: Any, cond: Any, uncond: Any, x_in: Tensor, *rest: Any) -> Any:
            trees = [tree for tree in self._trees(p, len(x_in)) if tree is not None]
            if not trees:
                return calculate(model, cond, uncond, x_in, *rest)
            if len(trees) != len(x_in) or len({tree.num_prompts for tree in trees}) > 1:
                raise WebUIError(
                    f"Prompts of one batch must all have {WORDS}, or none of them, and the same number of parts: set "
                    "the batch size to 1."
                )
            if uncond is None:
                raise WebUIError(
                    f"{WORDS} need the prediction without the prompt, which this WebUI does not make at CFG scale 1: "
                    "set it to 1.01 or more, and that of hires. fix as well."
                )
            each: list[Tensor] = []
            without: Tensor | None = None
            for entry in cond:
                alone, found = calculate(model, [{**entry, "strength": 1.0}], None if each else uncond, x_in, *rest)
                each.append(alone)
                without = found if without is None else without
            assert without is not None
            return without + self._composed(trees, each, without), without

        return calc_cond_uncond_batch

    def _guiding(self, p: Generation, guide: Callable[..., Any]) -> Callable[..., Any]:
        """Forge's function for a guided prediction, which at CFG 1 leaves out that without a prompt."""

        def sampling_function_inner(*arguments: Any, **named: Any) -> Any:
            model, x, timestep, uncond, cond, scale, options, *rest = arguments
            if any(self._trees(p, len(x))):
                options = {**options, "disable_cfg1_optimization": True}
            return guide(model, x, timestep, uncond, cond, scale, options, *rest, **named)

        return sampling_function_inner

    def _composed(self, trees: Sequence[Joined], each: Sequence[Tensor], without: Tensor) -> Tensor:
        """Difference that joined prompts make to the predictions of a batch, which each has its own ones."""
        if any(tree.num_prompts != len(each) for tree in trees):
            raise WebUIError(
                f"Another extension changes how many prompts there are: switch it off, or take {WORDS} out."
            )
        self._has_composed = True
        pictures = (slice(number, number + 1) for number in range(len(trees)))
        return torch.cat(
            [
                composed(tree, [prediction[picture] for prediction in each], without[picture])
                for tree, picture in zip(trees, pictures, strict=True)
            ]
        )


def _with_and(cut: JoinedCut) -> str:
    """A prompt for the host: the first one has weight 1, the others have 0, so that they sum to 1.

    >>> _with_and(cut_at_joints("[a cat AND_SALT fur] AND_PERP a dog:-0.5"))
    'a cat :1 AND  fur :0 AND  a dog :0'
    """
    text = cut.fragment.text
    return " AND ".join(f"{text[slice(*span)]} :{0 if number else 1}" for number, span in enumerate(cut.spans))


def _replace(undone: ExitStack, owner: Any, name: str, function: Callable[..., Any]) -> None:
    """Replace a function of a module or class until a stack is undone."""
    undone.callback(setattr, owner, name, getattr(owner, name))
    setattr(owner, name, function)
