"""Checks of Weigh Attention: small diffusion models draw what a softmax written out draws, and stock stays stock.

Run by test_comfyui_inprocess.py in ComfyUI's own Python; see inprocess.py.
"""

# pyright: reportMissingImports=false

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from typing import Any

import torch
from inprocess import (
    CLOSE,
    WIDTHS,
    compares,
    difference,
    draw,
    main,
    make_clip,
    make_lora,
    note,
    refusal,
    run_ours,
    stock,
)

NODE = "WeightedCLIPWeighAttention"
TEXT = "a (red:1.7) cat on a (mat:0.4), (oil painting:-0.6) in (snow:0)"
PLAIN = "a red cat on a mat, oil painting in snow"
NEGATIVE = "blurry, ugly"
LATENT = (14, 22)
"""Half of it is 7 by 11 places: 77, as many as a chunk has rows. What tells text by its shape fails."""
Weights = dict[int, float]
"""Weight of each row that has one, determined by hand from the words of a text: BOS is row 0."""
WEIGHTS: Weights = {2: 1.7, 6: 0.4, 8: -0.6, 9: -0.6, 11: 0.0}
"""Weights of `TEXT`, one word per row."""


# ---- models


def make_model(family: str) -> Any:
    """A MODEL of a family with a few narrow layers."""
    from comfy import model_patcher, supported_models

    config_class, context_dim, adm = {
        "SD1": (supported_models.SD15, WIDTHS["l"], None),
        "SD2": (supported_models.SD20, WIDTHS["h"], None),
        "SDXL": (supported_models.SDXL, WIDTHS["l"] + WIDTHS["g"], WIDTHS["g"] + 6 * 256),
    }[family]
    config = config_class(
        {
            **config_class.unet_config,
            "image_size": 32,
            "in_channels": 4,
            "out_channels": 4,
            "model_channels": 64,
            "num_res_blocks": [1, 1],
            "channel_mult": [1, 2],
            "transformer_depth": [1, 2],
            "transformer_depth_middle": 1,
            "transformer_depth_output": [1, 1, 2, 2],
            "use_spatial_transformer": True,
            "context_dim": context_dim,
            "num_classes": None if adm is None else "sequential",
            "adm_in_channels": adm,
            "legacy": False,
            "dtype": torch.float32,
        }
    )
    cpu = torch.device("cpu")
    model = config.get_model({}, device=cpu)
    draw(model.diffusion_model)
    return model_patcher.ModelPatcher(model, load_device=cpu, offload_device=cpu)


def written_out(family: str, how: str, *texts: tuple[Any, Weights]) -> Any:
    """A MODEL whose cross attention is written out, in float64, with weights for the rows of known encodings.

    Args:
        family: As in `make_model`, whose weights it has.
        how: ``bias`` or ``value``.
        texts: Stock conditionings and their weights; all other text has none.
    """
    from comfy.ldm.modules.attention import CrossAttention

    model = make_model(family)

    def weights_of(context: torch.Tensor) -> torch.Tensor:
        weights = torch.ones(context.shape[0], dtype=torch.float64)
        for conditioning, by_row in texts:
            rows = conditioning[0][0][0]
            if context.shape[0] % rows.shape[0] == 0 and torch.equal(
                context, rows.repeat(context.shape[0] // rows.shape[0], 1)
            ):
                for row, weight in by_row.items():
                    weights[row :: rows.shape[0]] = weight
        return weights

    def replace(module: CrossAttention) -> Callable[..., torch.Tensor]:
        def forward(x: torch.Tensor, context: torch.Tensor, **_: Any) -> torch.Tensor:
            weights = torch.stack([weights_of(one) for one in context])[:, None]  # [batch, 1, keys]
            heads = module.heads
            q, k, v = (
                part(tensor).double().unflatten(-1, (heads, -1)).transpose(1, 2)
                for part, tensor in ((module.to_q, x), (module.to_k, context), (module.to_v, context))
            )
            logits = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
            shares = torch.exp(logits - logits.amax(-1, keepdim=True))
            if how == "bias":
                shares = shares * weights.abs()[:, None]
                v = v * weights.sign().masked_fill(weights == 0, 1)[..., None]
            else:
                v = v * weights[..., None]
            shares = shares / shares.sum(-1, keepdim=True)
            return module.to_out((shares @ v).transpose(1, 2).flatten(2).to(x.dtype))

        return forward

    for name, module in model.model.diffusion_model.named_modules():
        if name.endswith("attn2"):
            assert isinstance(module, CrossAttention)
            module.forward = replace(module)
    return model


# ---- sampling


def sampled(model: Any, positive: Any, negative: Any, *, batch: int = 1, steps: int = 3) -> torch.Tensor:
    """Output of the node KSampler."""
    import nodes

    latent = {"samples": torch.zeros(batch, 4, *LATENT)}
    return nodes.KSampler().sample(model, 1, steps, 4.0, "euler", "normal", positive, negative, latent)[0]["samples"]


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
    assert rel(without, reference) > 100 * CLOSE, (name, rel(without, reference))
    distance = note(rel(ours, reference))
    assert distance <= CLOSE, (name, distance)


# ---- what is drawn


@compares("Weigh Attention at weight 1, small, with stock")
def check_weight_one_gives_the_stock_conditioning_and_model() -> None:
    for family in ("SD1", "SD2", "SDXL"):
        clip, model = make_clip(family), make_model(family)
        expected = stock(clip, PLAIN)
        for inputs in ({"text": PLAIN}, {"text": "a (red:1) cat on a mat, oil painting in snow"}, {"strength": 0.0}):
            conditioning, report, same = run_ours(NODE, clip=clip, model=model, **{"text": TEXT, **inputs})["result"]
            assert same is model
            assert "no word is weighed" in report
            difference(conditioning, expected)


@compares(
    "Weigh Attention on SD1, SD2 and SDXL, small, KSampler, with a softmax written out, relative to the largest",
    limit=CLOSE,
)
def check_weighed_attention_equals_one_written_out() -> None:
    for family in ("SD1", "SD2", "SDXL"):
        clip, model = make_clip(family), make_model(family)
        plain, negative = stock(clip, PLAIN), stock(clip, NEGATIVE)
        without = sampled(model, plain, negative)
        for how in ("bias", "value"):
            reference = sampled(written_out(family, how, (plain, WEIGHTS)), plain, negative)
            is_close(sampled(model, weighed(clip, how=how), negative), reference, without)
            conditioning, _, with_wrappers = run_ours(NODE, clip=clip, text=TEXT, how=how, model=model)["result"]
            assert "hooks" not in conditioning[0][1]
            is_close(sampled(with_wrappers, conditioning, negative), reference, without)


@compares("Weigh Attention, strength 0.5, likewise", limit=CLOSE)
def check_strength_takes_weights_part_of_the_way() -> None:
    clip, model = make_clip("SD1"), make_model("SD1")
    plain, negative = stock(clip, PLAIN), stock(clip, NEGATIVE)
    half = {row: 1 + 0.5 * (weight - 1) for row, weight in WEIGHTS.items()}
    reference = sampled(written_out("SD1", "bias", (plain, half)), plain, negative)
    is_close(sampled(model, weighed(clip, strength=0.5), negative), reference, sampled(model, plain, negative))


@compares("Weigh Attention in areas, masks, two conditionings and time ranges, likewise", limit=CLOSE)
def check_weights_stay_with_their_entry_in_areas_masks_and_time() -> None:
    import nodes

    clip, model = make_clip("SD1"), make_model("SD1")
    left, plain, other, negative = weighed(clip), *(stock(clip, text) for text in (PLAIN, "a dog", NEGATIVE))
    turned = weighed(clip, "a (dog:2.5)")
    reference_model = written_out("SD1", "bias", (plain, WEIGHTS), (other, {2: 2.5}))
    mask = torch.zeros(1, *(8 * size for size in LATENT))
    mask[:, :, : 8 * 12] = 1

    def area(conditioning: Any, x: int) -> Any:
        return nodes.ConditioningSetArea().append(conditioning, 88, 112, x, 0, 1.0)[0]

    def masked(conditioning: Any, where: torch.Tensor, bounds: str) -> Any:
        return nodes.ConditioningSetMask().append(conditioning, where, bounds, 1.0)[0]

    def timed(conditioning: Any, start: float, end: float) -> Any:
        return nodes.ConditioningSetTimestepRange().set_range(conditioning, start, end)[0]

    layouts: dict[str, Callable[[Any, Any], Any]] = {
        "areas": lambda one, two: [*area(one, 0), *area(two, 88)],
        "areas, turned": lambda one, two: [*area(two, 0), *area(one, 88)],
        "area over a whole": lambda one, two: [*two, *area(one, 40)],
        "masks": lambda one, two: [*masked(one, mask, "default"), *masked(two, 1 - mask, "default")],
        "bounds": lambda one, two: [*masked(one, mask, "mask bounds"), *two],
        "two": lambda one, two: [*one, *two],
        "times": lambda one, two: [*timed(one, 0.0, 0.2), *timed(two, 0.2, 1.0)],
    }
    for name, layout in layouts.items():
        without = sampled(model, layout(plain, other), negative)
        for one, two in ((left, other), (plain, turned), (left, turned)):
            by_hand = [(plain, WEIGHTS if one is left else {}), (other, {2: 2.5} if two is turned else {})]
            reference_model = written_out("SD1", "bias", *by_hand)
            reference = sampled(reference_model, layout(plain, other), negative)
            is_close(sampled(model, layout(one, two), negative), reference, without, name)
    # on the side of the negative, and an area that only the positive has
    for positive, ours, stocks in ((area(other, 0) + other, left, plain), (other, area(left, 40) + other, None)):
        against = area(plain, 40) + other if stocks is None else stocks
        reference = sampled(written_out("SD1", "bias", (plain, WEIGHTS)), positive, against)
        is_close(sampled(model, positive, ours), reference, sampled(model, positive, against))


@compares("Weigh Attention, batches, long prompts, likewise", limit=CLOSE)
def check_batches_and_texts_of_other_lengths_are_weighed_alike() -> None:
    clip, model = make_clip("SD1"), make_model("SD1")
    plain, negative = stock(clip, PLAIN), stock(clip, "blurry, " * 60)
    assert negative[0][0].shape[1] == 2 * 77
    for batch in (2, 3):
        reference = sampled(written_out("SD1", "bias", (plain, WEIGHTS)), plain, negative, batch=batch)
        without = sampled(model, plain, negative, batch=batch)
        is_close(sampled(model, weighed(clip), negative, batch=batch), reference, without)
    for text in ("a photo, " * 40 + "(cat:2)", "(a:0.3) photo, " * 40):
        long_plain = stock(clip, text.replace("(", "").replace(":2)", "").replace(":0.3)", ""))
        # 75 tokens a chunk, three in each "a photo,": the last word is in the second chunk
        rows = {77 + 1 + 120 - 75: 2.0} if "cat" in text else {i + 1 + 2 * (i // 75): 0.3 for i in range(0, 120, 3)}
        reference = sampled(written_out("SD1", "bias", (long_plain, rows)), long_plain, plain)
        without = sampled(model, long_plain, plain)
        is_close(sampled(model, weighed(clip, text), plain), reference, without)


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


@compares("Weigh Attention with another pack's attention, likewise", limit=CLOSE)
def check_anothers_function_around_the_attention_is_called_as_well() -> None:
    from comfy.ldm.modules.attention import attention_basic

    clip, model = make_clip("SD1"), make_model("SD1")
    plain, negative = stock(clip, PLAIN), stock(clip, NEGATIVE)
    seen: list[bool] = []

    def foreign(function: Any, *args: Any, **kwargs: Any) -> torch.Tensor:
        seen.append(len(args) > 4 and args[4] is not None)
        kwargs.pop("transformer_options", None)
        return attention_basic(*args, **kwargs) * 1.25

    def foreign_model(model: Any) -> Any:
        work = model.clone()
        work.model_options["transformer_options"]["optimized_attention_override"] = foreign
        return work

    ours = sampled(foreign_model(model), weighed(clip), negative)
    assert any(seen) and not all(seen)
    reference = written_out("SD1", "bias", (plain, WEIGHTS))
    for name, module in reference.model.diffusion_model.named_modules():
        if name.endswith("attn2"):  # what theirs does, here between the attention and its projection
            module.to_out.register_forward_pre_hook(lambda _, inputs: (inputs[0] * 1.25,))
    expected = sampled(foreign_model(reference), plain, negative)
    is_close(ours, expected, sampled(foreign_model(model), plain, negative))


@compares("Weigh Attention with LoRA hooks, likewise", limit=CLOSE)
def check_lora_hooks_and_weights_act_together() -> None:
    import comfy.hooks

    clip, model = make_clip("SD1"), make_model("SD1")
    plain, negative = stock(clip, PLAIN), stock(clip, NEGATIVE)

    def with_hooked_lora(model: Any, conditioning: Any) -> tuple[Any, Any]:
        lora = make_lora(model.model, r"attn2\.to_[kv]")
        hooked, _, hooks = comfy.hooks.load_hook_lora_for_models(model, None, lora, 1.0, 0.0)
        return hooked, comfy.hooks.set_hooks_for_conditioning(conditioning, hooks)

    for ours, stocks in ((weighed(clip), plain), ([*weighed(clip), *negative], [*plain, *negative])):
        reference_model, positive = with_hooked_lora(written_out("SD1", "bias", (plain, WEIGHTS)), stocks)
        reference = sampled(reference_model, positive, negative)
        without = sampled(*with_hooked_lora(model, stocks), negative)
        assert rel(without, sampled(model, stocks, negative)) > 100 * CLOSE
        is_close(sampled(*with_hooked_lora(model, ours), negative), reference, without)


@compares("Weigh Attention in a compiled model, likewise", limit=CLOSE)
def check_a_compiled_model_is_weighed_as_well() -> None:
    from comfy_api.torch_helpers import set_torch_compile_wrapper

    clip, model = make_clip("SD1"), make_model("SD1")
    plain, negative = stock(clip, PLAIN), stock(clip, NEGATIVE)
    reference = sampled(written_out("SD1", "bias", (plain, WEIGHTS)), plain, negative)
    compiled = model.clone()
    set_torch_compile_wrapper(compiled, backend="eager")
    is_close(sampled(compiled, weighed(clip), negative), reference, sampled(compiled, plain, negative))


@compares("Weigh Attention twice, positive and negative, likewise", limit=CLOSE)
def check_two_nodes_on_one_model_both_act() -> None:
    clip, model = make_clip("SD1"), make_model("SD1")
    plain, bad = stock(clip, PLAIN), stock(clip, "blurry, ugly")
    positive, _, once = run_ours(NODE, clip=clip, text=TEXT, model=model)["result"]
    negative, _, twice = run_ours(NODE, clip=clip, text="(blurry:2), ugly", model=once)["result"]
    reference = sampled(written_out("SD1", "bias", (plain, WEIGHTS), (bad, {1: 2.0})), plain, bad)
    without = sampled(model, plain, bad)
    is_close(sampled(twice, positive, negative), reference, without)
    # one of them by hooks, the other through the model: our wrappers are there twice
    is_close(sampled(once, positive, weighed(clip, "(blurry:2), ugly")), reference, without)


@compares("Stock after Weigh Attention on the same model and CLIP, with before")
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
    assert "weighed 77 rows of text, but the sampler got 154" in refusal(lambda: sampled(model, joined, negative))

    unknown = model.clone()
    network = unknown.model.diffusion_model
    network.__class__ = type("Unheard", (type(network),), {})
    try:
        assert "Unheard" in refusal(lambda: sampled(unknown, ours, negative))
        sampled(unknown, plain, negative)
    finally:
        network.__class__ = type(network).__mro__[1]

    for family, message in (("SD3", "which rows are a word's"), ("SD3 with T5 alone", "holds no CLIP text encoder")):
        other = make_clip(family)
        other.tokenizer.__class__ = type("Unheard", (type(other.tokenizer),), {})
        assert message in refusal(lambda other=other: weighed(other))
    assert ".and and .blend" in refusal(lambda: weighed(clip, '("a cat", "a dog").blend(1, 1)', syntax="compel"))


def logged(action: Callable[[], Any]) -> list[str]:
    """Log messages of our modules within the context."""
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
    return [record.getMessage() for record in records if "Weigh Attention" in record.getMessage()]


def check_report_and_log_say_what_acts() -> None:
    clip, model = make_clip("SD1"), make_model("SD1")
    negative = stock(clip, NEGATIVE)
    conditioning, report, none = run_ours(NODE, clip=clip, text=TEXT)["result"]
    assert none is None
    for line in ("'red' 1.7: row 2", "'mat' 0.4: row 6", "'oil painting' -0.6: rows 8-9", "'snow' 0: row 11"):
        assert line in report, report
    assert "not weighed: the pooled vector, and what a ControlNet reads" in report
    num_layers = sum(name.endswith("attn2") for name, _ in model.model.diffusion_model.named_modules())
    assert logged(lambda: sampled(model, conditioning, negative)) == [
        f"Weigh Attention: 5 rows in {num_layers} attention layers"
    ]
    assert logged(lambda: sampled(model, negative, negative)) == []


if __name__ == "__main__":
    main(globals())
