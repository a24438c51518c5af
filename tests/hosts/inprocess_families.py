"""Checks of Weigh Attention for every family of models, and attention written out.

For scripts that test_comfyui_inprocess.py runs in ComfyUI's own Python; see inprocess.py.
"""

# pyright: reportMissingImports=false

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

import torch
from inprocess import difference, run_ours, stock
from inprocess_attention import NEGATIVE, NODE, PLAIN, TEXT, Weights, is_close, weighed

Layout = Callable[[Any, Any], Any]
"""From two conditionings to a list of entries."""


class Toys(NamedTuple):
    """Small models by the name of their family, and what they should draw."""

    make_text_encoder: Callable[[str], Any]
    make_model: Callable[[str], Any]
    rows_by_hand: Callable[[str, Any], Weights]
    """Weight of each row of `TEXT`, from family and CLIP."""
    written_out: Callable[..., AbstractContextManager[None]]
    """All attention of a MODEL written out, by ``how``, with weights for the rows of encodings."""
    sampled: Callable[..., torch.Tensor]
    """Output of the node KSampler with a MODEL, a positive and a negative prompt."""
    negative: str = NEGATIVE


def read_out(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, how: str, weights: torch.Tensor) -> torch.Tensor:
    """Attention written out, in float64.

    Args:
        q: ``[batch, heads, queries, dim]``.
        k: The same with keys.
        v: As ``k``.
        how: As in our node.
        weights: ``[batch, rows]``, of the first keys; the others weigh 1.

    Returns:
        ``[batch, queries, heads * dim]``.
    """
    ones = torch.ones(len(weights), k.shape[2] - weights.shape[1], dtype=torch.float64)
    weights = torch.cat([weights, ones], 1)[:, None]  # [batch, 1, keys]
    logits = q.double() @ k.double().transpose(-1, -2) / q.shape[-1] ** 0.5
    shares = torch.exp(logits - logits.amax(-1, keepdim=True))
    times, factor = {
        "bias": (weights.abs(), weights.sign().masked_fill(weights == 0, 1)),
        "value": (torch.ones_like(weights), weights),
        "krea2": (torch.exp(2 * (weights - 1).clamp(min=0)), weights.clamp(max=1)),
    }[how]
    shares = shares * times[:, None]
    shares = shares / shares.sum(-1, keepdim=True)
    return (shares @ (v.double() * factor[..., None])).transpose(1, 2).flatten(2).float()


def weight_one_is_stock(toys: Toys, families: Iterable[str]) -> None:
    """Prompts without an effect give what the stock node gives, and the MODEL that came in."""
    for family in families:
        clip, model = toys.make_text_encoder(family), toys.make_model(family)
        expected = stock(clip, PLAIN)
        for inputs in ({"text": PLAIN}, {"text": "a (red:1) cat on a mat, oil painting in snow"}, {"strength": 0.0}):
            conditioning, report, same = run_ours(NODE, clip=clip, model=model, **{"text": TEXT, **inputs})["result"]
            assert same is model and "no word is weighed" in report
            difference(conditioning, expected)


def weights_equal_ones_written_out(toys: Toys, families: Iterable[str], hows: Iterable[str]) -> None:
    """In every way of weighing, as hooks and on the MODEL; stock is stock afterwards."""
    for family in families:
        clip, model = toys.make_text_encoder(family), toys.make_model(family)
        plain, negative = stock(clip, PLAIN), stock(clip, toys.negative)
        rows = toys.rows_by_hand(family, clip)
        without = toys.sampled(model, plain, negative)
        for how in hows:
            with toys.written_out(model, how, (plain, rows)):
                reference = toys.sampled(model, plain, negative)
            ours = toys.sampled(model, weighed(clip, how=how), negative)
            is_close(ours, reference, without, f"{family}, {how}")
            conditioning, _, wrapped = run_ours(NODE, clip=clip, text=TEXT, how=how, model=model)["result"]
            is_close(toys.sampled(wrapped, conditioning, negative), reference, without, family)
        assert torch.equal(toys.sampled(model, plain, negative), without)


def layouts(size: tuple[int, int], left: int) -> dict[str, Layout]:
    """Ways in which two conditionings share a picture.

    Args:
        size: Height and width of the latent.
        left: Columns of the latent that belong to the first.
    """
    import nodes

    mask = torch.zeros(1, *(8 * one for one in size))
    mask[:, :, : 8 * left] = 1

    def masked(one: Any, two: Any) -> Any:
        node = nodes.ConditioningSetMask()
        return [*node.append(one, mask, "default", 1.0)[0], *node.append(two, 1 - mask, "default", 1.0)[0]]

    def timed(one: Any, two: Any) -> Any:
        node = nodes.ConditioningSetTimestepRange()
        return [*node.set_range(one, 0.0, 0.3)[0], *node.set_range(two, 0.3, 1.0)[0]]

    return {"masks": masked, "times": timed, "two": lambda one, two: [*one, *two]}


def weights_stay_with_their_entry(toys: Toys, families: Iterable[str], ways: Mapping[str, Layout]) -> None:
    """In a picture that two conditionings share, and where it is the negative prompt that is weighed."""
    for family in families:
        clip, model = toys.make_text_encoder(family), toys.make_model(family)
        plain, other, negative = (stock(clip, text) for text in (PLAIN, "a dog", toys.negative))
        rows = toys.rows_by_hand(family, clip)
        for name, layout in ways.items():
            for batch in (1, 2):
                with toys.written_out(model, "bias", (plain, rows)):
                    reference = toys.sampled(model, layout(plain, other), negative, batch=batch)
                without = toys.sampled(model, layout(plain, other), negative, batch=batch)
                ours = toys.sampled(model, layout(weighed(clip), other), negative, batch=batch)
                is_close(ours, reference, without, f"{family}, {name}")
        with toys.written_out(model, "bias", (plain, rows)):
            reference = toys.sampled(model, other, plain)
        ours, without = toys.sampled(model, other, weighed(clip)), toys.sampled(model, other, plain)
        is_close(ours, reference, without, f"{family}, the negative prompt")
