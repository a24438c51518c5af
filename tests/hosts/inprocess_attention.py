"""Checks of Attention Weights: small diffusion models draw what a softmax written out draws, and stock stays stock.

The first part is for every family of models, the second for Stable Diffusion 1, 2 and XL. Run by
test_comfyui_inprocess.py in ComfyUI's own Python; see inprocess.py.
"""

# pyright: reportMissingImports=false

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from typing import Any

import torch
from inprocess import CLOSE, compares, difference, main, make_clip, make_lora, note, refusal, run_ours, stock
from toys import (
    LATENT,
    NEGATIVE,
    PLAIN,
    TEXT,
    TOYS,
    WORDS,
    Weights,
    make_model,
    make_text_encoder,
    rows_by_hand,
    sampled,
    unheard,
)
from written_out import written_out

NODE = "WeightedCLIPWeighAttention"
WEIGHTS: Weights = {2: 1.7, 6: 0.4, 8: -0.6, 9: -0.6, 11: 0.0}
"""Weights of `TEXT` in Stable Diffusion, one word per row."""
Layout = Callable[[Any, Any], Any]
"""From two conditionings to a list of entries."""


# ---- what is drawn by every family


def draws_as_written_out(
    model: Any,
    weighed: Any,
    plain: Any,
    negative: Any,
    *texts: tuple[Any, Weights],
    how: str = "bias",
    on: Any = None,
    name: str = "",
    **settings: Any,
) -> None:
    """A weighed prompt draws what stock's draws with the attention written out.

    Args:
        model: The MODEL whose attention is written out.
        weighed: Our conditioning.
        plain: Stock's.
        negative: The negative prompt of both.
        texts: As in `written_out`.
        how: As in our node.
        on: The MODEL to sample with, if it is another one.
        name: Beginning of the message if they differ.
        settings: As in `sampled`.
    """
    work = on or model
    with written_out(model, how, *texts):
        reference = sampled(work, plain, negative, **settings)
    without = sampled(work, plain, negative, **settings)
    is_close(sampled(work, weighed, negative, **settings), reference, without, name)


def weight_one_is_stock(families: Iterable[str]) -> None:
    """Prompts without an effect give what the stock node gives, and the MODEL that came in."""
    for family in families:
        clip, model = make_text_encoder(family), make_model(family)
        expected = stock(clip, PLAIN)
        for inputs in ({"text": PLAIN}, {"text": "a (red:1) cat on a mat, oil painting in snow"}, {"strength": 0.0}):
            conditioning, report, same = run_ours(NODE, clip=clip, model=model, **{"text": TEXT, **inputs})["result"]
            assert same is model and "no word is weighted" in report
            difference(conditioning, expected)


def weights_equal_ones_written_out(families: Iterable[str], hows: Iterable[str]) -> None:
    """In every way of weighing, as hooks and on the MODEL; stock is stock afterwards."""
    for family in families:
        clip, model = make_text_encoder(family), make_model(family)
        plain, negative = stock(clip, PLAIN), stock(clip, TOYS[family].negative)
        rows = rows_by_hand(family, clip)
        without = sampled(model, plain, negative)
        for how in hows:
            with written_out(model, how, (plain, rows)):
                reference = sampled(model, plain, negative)
            ours = sampled(model, weighed(clip, how=how), negative)
            is_close(ours, reference, without, f"{family}, {how}")
            conditioning, _, wrapped = run_ours(NODE, clip=clip, text=TEXT, how=how, model=model)["result"]
            assert "hooks" not in conditioning[0][1]
            is_close(sampled(wrapped, conditioning, negative), reference, without, family)
        assert torch.equal(sampled(model, plain, negative), without)


def area(conditioning: Any, x: int) -> Any:
    """A conditioning in a part of the picture that begins at a column."""
    import nodes

    return nodes.ConditioningSetArea().append(conditioning, 88, 112, x, 0, 1.0)[0]


def masked(conditioning: Any, where: torch.Tensor, bounds: str = "default") -> Any:
    """A conditioning in a mask."""
    import nodes

    return nodes.ConditioningSetMask().append(conditioning, where, bounds, 1.0)[0]


def timed(conditioning: Any, start: float, end: float) -> Any:
    """A conditioning in a part of the steps."""
    import nodes

    return nodes.ConditioningSetTimestepRange().set_range(conditioning, start, end)[0]


def left_of(size: tuple[int, int], columns: int) -> torch.Tensor:
    """The mask of the first columns of a latent."""
    mask = torch.zeros(1, *(8 * one for one in size))
    mask[:, :, : 8 * columns] = 1
    return mask


def layouts(size: tuple[int, int], columns: int) -> dict[str, Layout]:
    """Ways in which two conditionings share a picture, of which the first has so many columns of the latent."""
    mask = left_of(size, columns)
    return {
        "masks": lambda one, two: [*masked(one, mask), *masked(two, 1 - mask)],
        "times": lambda one, two: [*timed(one, 0.0, 0.3), *timed(two, 0.3, 1.0)],
        "two": lambda one, two: [*one, *two],
    }


def weights_stay_with_their_entry(families: Iterable[str], ways: Mapping[str, Layout]) -> None:
    """In a picture that two conditionings share, and where it is the negative prompt that is weighed."""
    for family in families:
        clip, model = make_text_encoder(family), make_model(family)
        plain, other, negative = (stock(clip, text) for text in (PLAIN, "a dog", TOYS[family].negative))
        known = (plain, rows_by_hand(family, clip))
        for name, layout in ways.items():
            for batch in (1, 2):
                ours, stocks = layout(weighed(clip), other), layout(plain, other)
                draws_as_written_out(model, ours, stocks, negative, known, batch=batch, name=f"{family}, {name}")
        with written_out(model, "bias", known):
            reference = sampled(model, other, plain)
        ours, without = sampled(model, other, weighed(clip)), sampled(model, other, plain)
        is_close(ours, reference, without, f"{family}, the negative prompt")


def lora_hooks_and_weights_act(families: Iterable[str], *, joined: bool = False) -> None:
    """With LoRA hooks on the weighed prompt, and if ``joined`` on a prompt of it and another."""
    import comfy.hooks

    for family in families:
        clip, model = make_text_encoder(family), make_model(family)
        plain, negative = stock(clip, PLAIN), stock(clip, NEGATIVE)
        lora = make_lora(model.model, TOYS[family].lora)
        hooked, _, hooks = comfy.hooks.load_hook_lora_for_models(model, None, lora, 1.0, 0.0)
        pairs = [(weighed(clip), plain)]
        if joined:
            pairs.append(([*weighed(clip), *negative], [*plain, *negative]))
        for pair in pairs:
            ours, stocks = (comfy.hooks.set_hooks_for_conditioning(one, hooks) for one in pair)
            assert rel(sampled(hooked, stocks, negative), sampled(model, pair[1], negative)) > 100 * CLOSE, family
            known = (plain, rows_by_hand(family, clip))
            draws_as_written_out(model, ours, stocks, negative, known, on=hooked, name=family)


def compiled_models_are_weighed(families: Iterable[str], *, by_block: bool = False) -> None:
    """Compiled as a whole, and if ``by_block`` block by block."""
    from comfy_api.torch_helpers import set_torch_compile_wrapper

    for family in families:
        clip, model = make_text_encoder(family), make_model(family)
        parts = [["diffusion_model"]]
        if by_block:
            blocks = "transformer_blocks" if family == "LTX-Video" else "blocks"
            parts.append([f"diffusion_model.{blocks}.{index}" for index in range(2)])
        plain, negative = stock(clip, PLAIN), stock(clip, TOYS[family].negative)
        with written_out(model, "bias", (plain, rows_by_hand(family, clip))):
            reference = sampled(model, plain, negative)
        for keys in parts:
            compiled = model.clone()
            set_torch_compile_wrapper(compiled, backend="eager", keys=keys)
            without = sampled(compiled, plain, negative)
            is_close(sampled(compiled, weighed(clip), negative), reference, without, family)


def what_acts_is_said(family: str, clip: Any, model: Any, negative: Any) -> Any:
    """Report and log name rows and layers; our conditioning."""
    conditioning, report, _ = run_ours(NODE, clip=clip, text=TEXT)["result"]
    rows = rows_by_hand(family, clip)
    for word in ("red", "mat", "snow"):
        found = [str(row) for row, weight in rows.items() if weight == WORDS[word]]
        assert f"{word!r} {WORDS[word]:g}: row{'s' if len(found) > 1 else ''} {', '.join(found)}\n" in report, report
    assert logged(lambda: sampled(model, conditioning, negative)) == [
        f"Attention Weights: {len(rows)} rows in {TOYS[family].num_layers} attention layers"
    ]
    return conditioning


def num_calls(model: Any, positive: Any, negative: Any) -> int:
    """Passes through the diffusion model that a step takes."""
    calls = 0

    def count(apply_model: Any, arguments: dict[str, Any]) -> Any:
        nonlocal calls
        calls += 1
        return apply_model(arguments["input"], arguments["timestep"], **arguments["c"])

    counted = model.clone()
    counted.set_model_unet_function_wrapper(count)
    sampled(counted, positive, negative, steps=1)
    return calls


def rel(one: torch.Tensor, other: torch.Tensor) -> float:
    """The largest difference over the largest number."""
    assert one.shape == other.shape and bool(one.isfinite().all() and other.isfinite().all())
    return float((one - other).abs().max() / other.abs().max())


def weighed(clip: Any, text: str = TEXT, **inputs: Any) -> Any:
    """Our node's conditioning."""
    return run_ours(NODE, clip=clip, text=text, **inputs)["result"][0]


def is_close(ours: torch.Tensor, reference: torch.Tensor, without: torch.Tensor, name: str = "") -> None:
    """Distance of ours from the reference, which is far from the result without weights."""
    assert rel(without, reference) > 100 * CLOSE, (
        f"{name}: the reference is {rel(without, reference):.1g} from stock. Either weights do nothing in this small "
        "model, or written_out.py does not know where it reads text: `FUNCTIONS`, `BLOCKS`, `order`"
    )
    distance = note(rel(ours, reference))
    assert distance <= CLOSE, (name, distance)


def logged(action: Callable[[], Any], node: str = "Attention Weights") -> list[str]:
    """Log messages about a node while something is done."""
    records: list[logging.LogRecord] = []
    handler = logging.Handler()
    handler.emit = records.append  # type: ignore[method-assign]
    root = logging.getLogger()
    root.addHandler(handler)
    level = root.level
    root.setLevel(logging.INFO)
    try:
        action()
    finally:
        root.removeHandler(handler)
        root.setLevel(level)
    return [record.getMessage() for record in records if node in record.getMessage()]


# ---- what Stable Diffusion 1, 2 and XL draw

STABLE_DIFFUSION = ("SD1", "SD2", "SDXL")


@compares("Attention Weights at weight 1, small, with stock")
def check_weight_one_gives_the_stock_conditioning_and_model() -> None:
    weight_one_is_stock(STABLE_DIFFUSION)


@compares(
    "Attention Weights on SD1, SD2 and SDXL, small, KSampler, with a softmax written out, relative to the largest",
    limit=CLOSE,
)
def check_weighed_attention_equals_one_written_out() -> None:
    weights_equal_ones_written_out(STABLE_DIFFUSION, ("bias", "value"))


@compares("Attention Weights, strength 0.5, likewise", limit=CLOSE)
def check_strength_takes_weights_part_of_the_way() -> None:
    clip, model = make_clip("SD1"), make_model("SD1")
    plain, negative = stock(clip, PLAIN), stock(clip, NEGATIVE)
    half = {row: 1 + 0.5 * (weight - 1) for row, weight in WEIGHTS.items()}
    draws_as_written_out(model, weighed(clip, strength=0.5), plain, negative, (plain, half))


@compares("Attention Weights in areas, masks, two conditionings and time ranges, likewise", limit=CLOSE)
def check_weights_stay_with_their_entry_in_areas_masks_and_time() -> None:
    clip, model = make_clip("SD1"), make_model("SD1")
    left, plain, other, negative = weighed(clip), *(stock(clip, text) for text in (PLAIN, "a dog", NEGATIVE))
    turned = weighed(clip, "a (dog:2.5)")
    mask = left_of(LATENT, 12)
    ways: dict[str, Layout] = {
        "areas": lambda one, two: [*area(one, 0), *area(two, 88)],
        "areas, turned": lambda one, two: [*area(two, 0), *area(one, 88)],
        "area over a whole": lambda one, two: [*two, *area(one, 40)],
        "masks": lambda one, two: [*masked(one, mask), *masked(two, 1 - mask)],
        "bounds": lambda one, two: [*masked(one, mask, "mask bounds"), *two],
        "two": lambda one, two: [*one, *two],
        "times": lambda one, two: [*timed(one, 0.0, 0.2), *timed(two, 0.2, 1.0)],
    }
    for name, layout in ways.items():
        for one, two in ((left, other), (plain, turned), (left, turned)):
            by_hand = [(plain, WEIGHTS if one is left else {}), (other, {2: 2.5} if two is turned else {})]
            draws_as_written_out(model, layout(one, two), layout(plain, other), negative, *by_hand, name=name)
    # on the side of the negative, and an area that only the positive has
    for positive, ours, stocks in ((area(other, 0) + other, left, plain), (other, area(left, 40) + other, None)):
        against = area(plain, 40) + other if stocks is None else stocks
        with written_out(model, "bias", (plain, WEIGHTS)):
            reference = sampled(model, positive, against)
        is_close(sampled(model, positive, ours), reference, sampled(model, positive, against))


@compares("Attention Weights, batches, long prompts, likewise", limit=CLOSE)
def check_batches_and_texts_of_other_lengths_are_weighed_alike() -> None:
    clip, model = make_clip("SD1"), make_model("SD1")
    plain, negative = stock(clip, PLAIN), stock(clip, "blurry, " * 60)
    assert negative[0][0].shape[1] == 2 * 77
    for batch in (2, 3):
        draws_as_written_out(model, weighed(clip), plain, negative, (plain, WEIGHTS), batch=batch)
    for text in ("a photo, " * 40 + "(cat:2)", "(a:0.3) photo, " * 40):
        long_plain = stock(clip, text.replace("(", "").replace(":2)", "").replace(":0.3)", ""))
        # 75 tokens a chunk, three in each "a photo,": the last word is in the second chunk
        rows = {77 + 1 + 120 - 75: 2.0} if "cat" in text else {i + 1 + 2 * (i // 75): 0.3 for i in range(0, 120, 3)}
        draws_as_written_out(model, weighed(clip, text), long_plain, plain, (long_plain, rows))


def check_weights_take_no_more_passes_than_stock() -> None:
    clip, model = make_clip("SD1"), make_model("SD1")
    plain, negative = stock(clip, PLAIN), stock(clip, NEGATIVE)
    assert num_calls(model, plain, negative) == 1
    for how in ("bias", "value"):
        assert num_calls(model, weighed(clip, how=how), negative) == 1
        assert num_calls(model, negative, weighed(clip, how=how)) == 1
        conditioning, _, with_wrappers = run_ours(NODE, clip=clip, text=TEXT, how=how, model=model)["result"]
        assert num_calls(with_wrappers, conditioning, negative) == 1


# ---- together with other packs


@compares("Attention Weights with another pack's attention, likewise", limit=CLOSE)
def check_anothers_function_around_the_attention_is_called_as_well() -> None:
    from comfy.ldm.modules.attention import attention_basic

    clip, model = make_clip("SD1"), make_model("SD1")
    plain, negative = stock(clip, PLAIN), stock(clip, NEGATIVE)
    seen: list[bool] = []

    def foreign(function: Any, *args: Any, **kwargs: Any) -> torch.Tensor:
        seen.append(len(args) > 4 and args[4] is not None)
        kwargs.pop("transformer_options", None)
        return attention_basic(*args, **kwargs) * 1.25

    theirs = model.clone()
    theirs.model_options["transformer_options"]["optimized_attention_override"] = foreign
    ours = sampled(theirs, weighed(clip), negative)
    assert any(seen) and not all(seen)
    layers = [module for name, module in model.model.diffusion_model.named_modules() if name.endswith("attn2")]
    with written_out(model, "bias", (plain, WEIGHTS)), ExitStack() as hooks:
        for layer in layers:  # what theirs does, here between the attention and its projection
            handle = layer.to_out.register_forward_pre_hook(lambda _, inputs: (inputs[0] * 1.25,))
            hooks.callback(handle.remove)
        expected = sampled(theirs, plain, negative)
    is_close(ours, expected, sampled(theirs, plain, negative))


@compares("Attention Weights with LoRA hooks, likewise", limit=CLOSE)
def check_lora_hooks_and_weights_act_together() -> None:
    lora_hooks_and_weights_act(["SD1"], joined=True)


@compares("Attention Weights in a compiled model, likewise", limit=CLOSE)
def check_a_compiled_model_is_weighed_as_well() -> None:
    compiled_models_are_weighed(["SD1"])


@compares("Attention Weights twice, positive and negative, likewise", limit=CLOSE)
def check_two_nodes_on_one_model_both_act() -> None:
    clip, model = make_clip("SD1"), make_model("SD1")
    plain, bad = stock(clip, PLAIN), stock(clip, "blurry, ugly")
    positive, _, once = run_ours(NODE, clip=clip, text=TEXT, model=model)["result"]
    negative, _, twice = run_ours(NODE, clip=clip, text="(blurry:2), ugly", model=once)["result"]
    with written_out(model, "bias", (plain, WEIGHTS), (bad, {1: 2.0})):
        reference = sampled(model, plain, bad)
    without = sampled(model, plain, bad)
    is_close(sampled(twice, positive, negative), reference, without)
    # one of them by hooks, the other through the model: our wrappers are there twice
    is_close(sampled(once, positive, weighed(clip, "(blurry:2), ugly")), reference, without)


@compares("Stock after Attention Weights on the same model and CLIP, with before")
def check_stock_is_stock_afterwards() -> None:
    clip, model = make_clip("SD1"), make_model("SD1")
    plain, negative = stock(clip, PLAIN), stock(clip, NEGATIVE)
    before = sampled(model, plain, negative)
    options = repr(model.model_options), repr(model.wrappers), repr(model.object_patches)
    for inputs in ({}, {"how": "value"}, {"model": model}):
        conditioning, _, with_wrappers = run_ours(NODE, clip=clip, text=TEXT, **inputs)["result"]
        drawn = sampled(with_wrappers or model, conditioning, negative)
        assert not torch.equal(drawn, before)
        for one in (model, with_wrappers or model):
            difference(sampled(one, plain, negative), before)
        difference(stock(clip, PLAIN), plain)
    assert options == (repr(model.model_options), repr(model.wrappers), repr(model.object_patches))


# ---- what is refused, and what is said


def check_what_would_lose_the_weights_is_refused_in_words() -> None:
    import nodes

    clip, model = make_clip("SD1"), make_model("SD1")
    ours, plain, negative = weighed(clip), stock(clip, PLAIN), stock(clip, NEGATIVE)

    replacing = model.clone()
    replacing.set_model_attn2_replace(lambda q, k, v, options: v, "middle", 0)
    assert "attn2_replace" in refusal(lambda: sampled(replacing, ours, negative))
    sampled(replacing, negative, negative)  # theirs alone is none of our business

    halving = model.clone()
    halving.set_model_attn2_patch(lambda n, context, value, options: (n, context[:, ::2], value[:, ::2]))
    assert "has made them 39" in refusal(lambda: sampled(halving, ours, negative))

    (joined,) = nodes.ConditioningConcat().concat(ours, plain)
    assert "got 77 rows of text, but the sampler got 154" in refusal(lambda: sampled(model, joined, negative))

    network = model.model.diffusion_model
    kind, subclass_drawn = type(network), torch.empty(0)
    for changed in ({"forward": lambda *inputs, **named: kind.forward(*inputs, **named)}, {}):
        network.__class__ = type("Unheard", (kind,), changed)
        try:
            if changed:
                message = refusal(lambda: sampled(model, ours, negative))
                assert "Unheard) reads text: it is a UNetModel with another forward" in message, message
            else:  # nothing but its name
                subclass_drawn = sampled(model, ours, negative)
            sampled(model, plain, negative)
        finally:
            network.__class__ = kind
    assert torch.equal(subclass_drawn, sampled(model, ours, negative))

    for family, message in (("SD3", "which rows are a word's"), ("SD3 with T5 alone", "holds no CLIP text encoder")):
        assert message in refusal(lambda family=family: weighed(unheard(make_clip(family))))
    assert ".and and .blend" in refusal(lambda: weighed(clip, '("a cat", "a dog").blend(1, 1)', syntax="compel"))


def check_report_and_log_say_what_acts() -> None:
    clip, model = make_clip("SD1"), make_model("SD1")
    negative = stock(clip, NEGATIVE)
    conditioning, report, none = run_ours(NODE, clip=clip, text=TEXT)["result"]
    assert none is None
    for line in ("'red' 1.7: row 2", "'mat' 0.4: row 6", "'oil painting' -0.6: rows 8-9", "'snow' 0: row 11"):
        assert line in report, report
    assert "not weighted: the pooled vector, and what a ControlNet reads" in report
    num_layers = sum(name.endswith("attn2") for name, _ in model.model.diffusion_model.named_modules())
    assert logged(lambda: sampled(model, conditioning, negative)) == [
        f"Attention Weights: 5 rows in {num_layers} attention layers"
    ]
    assert logged(lambda: sampled(model, negative, negative)) == []


if __name__ == "__main__":
    main(globals())
