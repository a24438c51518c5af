"""Optimizers: the trained parameters, their learning rates and weight decay.

Source: A. Radford et al., 2021, section 2.5 and table 18 for the constants of AdamW; open_clip 3.3.0 for the parameters
without decay, and for the cooldown.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Iterable
from functools import partial
from inspect import unwrap
from typing import Any, cast

import torch
from torch import nn

from .finetuning.lora import is_lora
from .options import PARTS, Course, Optimizer, Rates, TrainOptions

BETAS = (0.9, 0.98)
EPS = 1e-6

Groups = list[dict[str, Any]]
"""Parameter groups of an optimizer."""


def part_of(name: str) -> str:
    """Part, one of `PARTS`, that a parameter of `Towers` or a `Classifier` belongs to.

    >>> part_of("text.embeddings.token_embedding.weight"), part_of("loss.logit_scale"), part_of("head.bias")
    ('embeddings', 'scale', 'head')
    """
    if name.startswith("word."):
        return "embeddings"
    if name.startswith("text."):
        return next((part for part in PARTS if part in name.split(".")[1]), "layers")
    return {"vision": "image", "head": "head"}.get(name.split(".")[0], "scale")


def groups_of(model: nn.Module, rates: Rates, unlocked: int | None = None) -> Groups:
    """Freeze parameters that are not trained, and group the rest: norms, biases and the scale do not decay.

    With a LoRA, only the LoRA and the scale of the loss are trained. With a new word, only its vectors are, without
    decay. If ``unlocked`` is given, only that many last layers of the image tower are trained, and what follows them.
    """
    sorted_out: dict[tuple[int, bool], list[nn.Parameter]] = {}
    has_lora = any(is_lora(name) for name, _ in model.named_parameters())
    has_word = any(name.startswith("word.") for name, _ in model.named_parameters())
    for name, parameter in model.named_parameters():
        part, is_word = part_of(name), name.startswith("word.")
        layer = name.split(".")[3] if name.startswith("text.encoder.layers.") else ""
        is_frozen = rates.of(part) == 0 or (layer.isdecimal() and int(layer) < rates.frozen_layers)
        is_frozen |= unlocked is not None and _is_locked(name, cast("Any", model).vision.config.num_layers - unlocked)
        is_frozen |= has_lora and not is_lora(name) and part != "scale"
        is_frozen |= has_word and not is_word
        parameter.requires_grad_(not is_frozen)
        if not is_frozen:
            sorted_out.setdefault((PARTS.index(part), parameter.ndim >= 2 and not is_word), []).append(parameter)
    if not any(part != PARTS.index("scale") for part, _ in sorted_out):
        raise ValueError("nothing is left to train: every part is frozen")
    return [
        {"params": sorted_out[key], "lr": rates.of(PARTS[key[0]]), "weight_decay": rates.weight_decay * key[1]}
        for key in sorted(sorted_out)
    ]


def _is_locked(name: str, first: int) -> bool:
    """Whether a parameter is of the image tower, in front of one of its layers."""
    _, *parts = name.split(".")
    is_layer = parts[:2] == ["encoder", "layers"]
    is_behind = int(parts[2]) >= first if is_layer else parts[0] in ("post_layer_norm", "visual_projection")
    return name.startswith("vision.") and not is_behind


class AdamW(torch.optim.AdamW):
    """PyTorch's own, without what its methods do for the compiler's sake, whose import takes more than a second."""

    add_param_group = unwrap(torch.optim.AdamW.add_param_group)
    zero_grad = unwrap(torch.optim.AdamW.zero_grad)
    state_dict = unwrap(torch.optim.AdamW.state_dict)
    load_state_dict = unwrap(torch.optim.AdamW.load_state_dict)
    step = torch.no_grad()(unwrap(torch.optim.AdamW.step))


def adamw(groups: Groups, betas: tuple[float, float] = BETAS, eps: float = EPS) -> torch.optim.Optimizer:
    """AdamW, by default with the constants of CLIP's own training, fused where PyTorch supports it."""
    try:
        return AdamW(groups, betas=betas, eps=eps, fused=True)
    except RuntimeError:  # before PyTorch 2.4 not on a CPU
        return AdamW(groups, betas=betas, eps=eps)


def adafactor(groups: Groups) -> torch.optim.Optimizer:
    """PyTorch's Adafactor, which stores a row and a column per matrix instead of two whole matrices.

    Its rates are relative to each tensor's root mean square.
    """
    if not hasattr(torch.optim, "Adafactor"):
        raise ValueError(f"--optimizer adafactor needs PyTorch 2.5 or newer, this is {torch.__version__}")
    return torch.optim.Adafactor(groups)


def adamw8bit(groups: Groups, betas: tuple[float, float] = BETAS, eps: float = EPS) -> torch.optim.Optimizer:
    """Same as `adamw` with 8-bit state, by bitsandbytes."""
    try:
        bitsandbytes = importlib.import_module("bitsandbytes")
    except ImportError as error:
        raise ValueError(
            f"--optimizer adamw8bit needs bitsandbytes, which cannot be imported ({error}): install it into .venv, or "
            "use adafactor, which saves memory too"
        ) from error
    return bitsandbytes.optim.AdamW8bit(groups, betas=betas, eps=eps)


def by_decay(parameters: Iterable[nn.Parameter], rate: float, weight_decay: float) -> Groups:
    """Parameter groups in which matrices decay, and gains and biases do not."""
    matrices, vectors = list[nn.Parameter](), list[nn.Parameter]()
    for parameter in parameters:
        (matrices if parameter.ndim >= 2 else vectors).append(parameter)
    return [
        {"params": matrices, "lr": rate, "weight_decay": weight_decay},
        {"params": vectors, "lr": rate, "weight_decay": 0.0},
    ]


OPTIMIZERS: dict[Optimizer, Callable[..., torch.optim.Optimizer]] = {
    "adamw": adamw,
    "adafactor": adafactor,
    "adamw8bit": adamw8bit,
}
"""Optimizers by name, default first."""


def optimizer_of(options: TrainOptions) -> Callable[[Groups], torch.optim.Optimizer]:
    """Function that creates the optimizer of a run."""
    make = OPTIMIZERS[options.optimizer]
    has_betas = options.optimizer != "adafactor"
    return partial(make, betas=(options.beta1, options.beta2), eps=options.eps) if has_betas else make


def factor(
    step: int,
    warmup: int,
    num_steps: int,
    course: Course = "cosine",
    cooldown: int = 0,
    power: float = 1.0,
    end: float = 0.0,
) -> float:
    """Factor of the learning rate at an update, counted from 0: it rises along a line, then takes its course.

    Over the last ``cooldown`` steps it falls from where it is to ``end``, along a power of the steps that are left, as
    open_clip's constant course with a cooldown.

    >>> [factor(step, 2, 6) for step in (0, 1, 2, 4, 6)]
    [0.5, 1.0, 1.0, 0.5, 0.0]
    >>> [factor(step, 2, 6, "linear") for step in (1, 2, 3, 6)]
    [1.0, 1.0, 0.75, 0.0]
    >>> [factor(step, 0, 8, "constant", cooldown=4, power=2.0) for step in (3, 4, 6, 7)]
    [1.0, 1.0, 0.25, 0.0625]
    """
    if step < warmup:
        return (step + 1) / warmup
    start = max(warmup, num_steps - cooldown)
    progress, whole = min(step, start) - warmup if cooldown else step - warmup, max(1, num_steps - warmup)
    on_course = {
        "cosine": (1 + math.cos(math.pi * progress / whole)) / 2,
        "linear": 1 - progress / whole,
        "constant": 1.0,
    }
    if not cooldown or step < start:
        return on_course[course]
    return (1 - (step - start) / max(1, num_steps - start)) ** power * (on_course[course] - end) + end


def factor_of(options: TrainOptions, step: int, num_steps: int) -> float:
    """`factor` for the options of a run of some length."""
    cooldown = options.cooldown, options.cooldown_power, options.cooldown_end
    return factor(step, options.rates.warmup, num_steps, options.schedule, *cooldown)
