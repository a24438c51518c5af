"""Checks of weights by guidance: small models of every family draw what predictions mixed in float64 draw.

Run by test_comfyui_inprocess.py in ComfyUI's own Python; see inprocess.py.
"""

# pyright: reportMissingImports=false

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from inprocess import CLOSE, compares, difference, main, make_lora, refusal, run_ours, stock
from inprocess_attention import NODE, area, is_close, masked, rel, timed
from inprocess_places import placed
from served_clip import served
from toys import PLAIN, TEXT, TOYS, make_model, make_text_encoder, sampled, there, unheard

BENT = 0.4**0.6
"""Share of the word of weight 0.4, the only one between 0 and 1."""
FORMS: dict[str, float] = {
    PLAIN: -0.6 + (1.7 - 1.0),
    "a red cat on a mat, in snow": 0.0 - -0.6,
    "a red cat on a mat, in": BENT - 0.0,
    "a red cat on a, in": 1.0 - BENT,
    "a cat on a mat, oil painting in snow": -(1.7 - 1.0),
}
"""Share of each form of `TEXT`, by hand: words that fade go one after the other, the weakest first."""
ONE, WITHOUT = "a red cat on a mat, (oil painting:0.25) in snow", "a red cat on a mat, in snow"
SHARES = {PLAIN: 0.25**0.6, WITHOUT: 1 - 0.25**0.6}


def guided(clip: Any, text: str = TEXT, **inputs: Any) -> Any:
    """Our node's conditioning."""
    return run_ours(NODE, clip=clip, text=text, how="guidance", **inputs)["result"][0]


def mixed(model: Any, shares: Sequence[float]) -> Any:
    """A MODEL that mixes the predictions of a positive prompt's entries in float64, each predicted alone."""

    def predict(executor: Callable[..., Any], base: Any, conds: Any, *given: Any, **named: Any) -> Any:
        results = []
        for entries in conds:
            if entries is not None and len(entries) == len(shares):
                alone = [executor(base, [[entry]], *given, **named)[0].double() for entry in entries]
                results.append(sum(share * one for share, one in zip(shares, alone, strict=True)).float())
            else:
                results += executor(base, [entries], *given, **named)
        return results

    work = model.clone()
    work.add_wrapper_with_key("calc_cond_batch", "written out", predict)
    return work


def by_hand(clip: Any, forms: dict[str, float] = FORMS) -> tuple[Any, list[float]]:
    """Stock's conditioning of each form, and the shares."""
    return [entry for text in forms for entry in stock(clip, text)], [*forms.values()]


@compares("Attention Weights by guidance at weight 1, every family, small, with stock")
def check_weight_one_is_stock() -> None:
    for family in there(*TOYS):
        clip, model = make_text_encoder(family), make_model(family)
        expected = stock(clip, PLAIN)
        for inputs in ({"text": PLAIN}, {"text": "a (red:1) cat on a mat, oil painting in snow"}, {"strength": 0.0}):
            result = run_ours(NODE, clip=clip, model=model, how="guidance", **{"text": TEXT, **inputs})["result"]
            assert result[2] is model and "no word is weighted" in result[1]
            difference(result[0], expected)
        difference(stock(served(clip, scheme="guidance"), PLAIN), expected)


@compares(
    "Attention Weights by guidance, every family, small, KSampler, with predictions mixed in float64", limit=CLOSE
)
def check_guidance_equals_predictions_mixed_in_float64() -> None:
    for family in there(*TOYS):
        clip, model = make_text_encoder(family), make_model(family)
        negative = stock(clip, TOYS[family].negative)
        positive, shares = by_hand(clip)
        reference = sampled(mixed(model, shares), positive, negative)
        without = sampled(model, stock(clip, PLAIN), negative)
        is_close(sampled(model, guided(clip), negative), reference, without, family)
        conditioning, _, wrapped = run_ours(NODE, clip=clip, text=TEXT, how="guidance", model=model)["result"]
        assert "hooks" not in conditioning[0][1]
        is_close(sampled(wrapped, conditioning, negative), reference, without, family)
        is_close(sampled(model, stock(served(clip, scheme="guidance"), TEXT), negative), reference, without, family)
        assert torch.equal(sampled(model, stock(clip, PLAIN), negative), without)


@compares("Attention Weights by guidance at weight 0, small, with stock without the word", limit=CLOSE)
def check_weight_zero_is_the_prompt_without_the_word() -> None:
    for family in there(*TOYS):
        clip = make_text_encoder(family)
        found = guided(clip, "a red cat on a mat, (oil painting:0) in snow")
        assert len(found) == 1 and "hooks" not in found[0][1]
        difference(found, stock(clip, WITHOUT))


@compares("The same in areas, masks, times and batches and at cfg 1, with strengths of stock, likewise", limit=CLOSE)
def check_shares_stay_with_their_entries() -> None:
    clip = model = negative = forms = None
    for family in there("SD1", "Flux"):
        clip, model = make_text_encoder(family), make_model(family)
        negative, plain = stock(clip, TOYS[family].negative), stock(clip, PLAIN)
        entries, shares = by_hand(clip, SHARES)
        forms = [[rows, {**values, "strength": share}] for (rows, values), share in zip(entries, shares, strict=True)]
        mask = torch.zeros(1, *(8 * side for side in TOYS[family].latent))
        mask[:, :, : mask.shape[2] // 2] = 1
        some = guided(clip, ONE), forms, plain
        layouts = {
            "mask": [[*masked(one, mask), *masked(plain, 1 - mask)] for one in some],
            "time": [[*timed(one, 0.0, 0.4), *timed(plain, 0.4, 1.0)] for one in some],
            "two": [[*one, *stock(clip, "a dog")] for one in some],
            "two, one weaker": [[*halved(one), *stock(clip, "a dog")] for one in some],
        }
        for name, positives in layouts.items():
            for settings in ({}, {"batch": 2}, {"cfg": 1.0}):
                is_close(*(sampled(model, one, negative, **settings) for one in positives), f"{family}, {name}")
    in_part = area(guided(clip, ONE), 0)  # sets a strength, which is a factor of the shares
    assert [values["strength"] for _, values in in_part] == [1.0, 1.0]
    difference(sampled(model, in_part, negative), sampled(model, area_of(forms), negative))


def halved(conditioning: Any) -> Any:
    """A conditioning with half the strength, as ComfyUI's nodes for areas set it."""
    return [[rows, {**values, "strength": 0.5 * values.get("strength", 1.0)}] for rows, values in conditioning]


def area_of(forms: Any) -> Any:
    """Forms in the area of `area`, each with its own strength."""
    return [
        [rows, {**values, "strength": own["strength"]}]
        for (rows, values), (_, own) in zip(area(forms, 0), forms, strict=True)
    ]


@compares("Attention Weights by guidance beside Place Phrase, small, likewise", limit=CLOSE)
def check_guidance_acts_beside_placed_phrases() -> None:
    for family in there("SD1", "Flux"):
        clip, model = make_text_encoder(family), make_model(family)
        negative = stock(clip, TOYS[family].negative)
        both = placed(guided(clip, ONE), "cat", area="left half", inside=2.0)
        _, shares = by_hand(clip, SHARES)
        alone = [
            placed(run_ours(NODE, clip=clip, text=text)["result"][0], "cat", area="left half", inside=2.0)
            for text in SHARES
        ]
        reference = sampled(mixed(model, shares), [entry for some in alone for entry in some], negative)
        is_close(sampled(model, both, negative), reference, sampled(model, guided(clip, ONE), negative), family)


@compares("Attention Weights by guidance with LoRA hooks and with a ControlNet, small, likewise", limit=CLOSE)
def check_guidance_acts_beside_hooks_and_control() -> None:
    import comfy.hooks
    from comfy.controlnet import ControlBase

    class Control(ControlBase):
        """A ControlNet that adds to the middle of the U-Net."""

        def get_control(self, x: Any, *_: Any) -> Any:
            return {"input": [], "middle": [torch.full((1, 1, 1, 1), 0.5).to(x)], "output": []}

    clip, model = make_text_encoder("SD1"), make_model("SD1")
    negative, ours, (forms, shares) = stock(clip, TOYS["SD1"].negative), guided(clip, ONE), by_hand(clip, SHARES)
    lora = make_lora(model.model, TOYS["SD1"].lora)
    hooked, _, hooks = comfy.hooks.load_hook_lora_for_models(model, None, lora, 1.0, 0.0)
    control = {"control": Control(), "control_apply_to_uncond": False}
    without = sampled(model, ours, negative)
    for work, changed in (
        (hooked, lambda one: comfy.hooks.set_hooks_for_conditioning(one, hooks)),
        (model, lambda one: [[rows, {**values, **control}] for rows, values in one]),
    ):
        reference = sampled(mixed(work, shares), changed(forms), negative)
        is_close(sampled(work, changed(ours), negative), reference, without, "SD1")


def check_an_interrupted_picture_leaves_nothing_behind() -> None:
    from comfy import model_management

    clip, model = make_text_encoder("SD1"), make_model("SD1")
    negative, plain = stock(clip, TOYS["SD1"].negative), stock(clip, PLAIN)
    before, ours = sampled(model, plain, negative), guided(clip, ONE)
    expected = sampled(model, ours, negative)

    def interrupt(apply: Any, about: Any) -> Any:
        model_management.interrupt_current_processing()
        model_management.throw_exception_if_processing_interrupted()
        return apply(about["input"], about["timestep"], **about["c"])

    stopped = model.clone()
    stopped.set_model_unet_function_wrapper(interrupt)
    try:
        sampled(stopped, ours, negative)
    except model_management.InterruptProcessingException:
        pass
    else:
        raise AssertionError("it was not interrupted")
    assert torch.equal(sampled(model, plain, negative), before)
    assert torch.equal(sampled(model, ours, negative), expected)


def check_unknown_encoders_are_guided() -> None:
    for family in there("Flux", "Qwen-Image"):
        clip, model = unheard(make_text_encoder(family)), make_model(family)
        refusal(partial(run_ours, NODE, clip=clip, text=ONE))  # in the attention
        entries, shares = by_hand(clip, SHARES)
        reference = sampled(mixed(model, shares), entries, stock(clip, TOYS[family].negative))
        found = sampled(model, guided(clip, ONE), stock(clip, TOYS[family].negative))
        assert rel(found, reference) <= CLOSE, family


def check_what_would_be_lost_is_refused() -> None:
    clip, model = make_text_encoder("SD1"), make_model("SD1")
    negative, ours = stock(clip, TOYS["SD1"].negative), guided(clip, ONE)
    assert "left out some" in refusal(lambda: sampled(model, ours[:1], negative))
    unhooked = [[rows, {key: value for key, value in values.items() if key != "hooks"}] for rows, values in ours]
    assert "would be lost" in refusal(lambda: sampled(model, unhooked, negative))
    assert ".and" in refusal(lambda: guided(clip, '("a cat", "(a dog)0.5").and()', syntax="compel"))
    weighted = served(clip, scheme="guidance")
    tokens = weighted.tokenize(ONE)
    tokens["l"][0][2] = (tokens["l"][0][2][0], 1.3, *tokens["l"][0][2][2:])
    assert "edited" in refusal(lambda: weighted.encode_from_tokens_scheduled(tokens))


def check_calls_of_the_model_are_as_said() -> None:
    clip, model = make_text_encoder("SD1"), make_model("SD1")
    negative = stock(clip, TOYS["SD1"].negative)
    numbers: list[int] = []

    def count(apply: Any, about: Any) -> Any:
        numbers.append(len(about["cond_or_uncond"]))
        return apply(about["input"], about["timestep"], **about["c"])

    work = model.clone()
    work.set_model_unet_function_wrapper(count)
    for text, more in ((PLAIN, 0), (ONE, 1), (TEXT, 4), ("a (cat:0)", 0)):
        numbers.clear()
        conditioning, report, _ = run_ours(NODE, clip=clip, text=text, how="guidance")["result"]
        sampled(work, conditioning, negative, steps=2)
        assert numbers == [2 + more] * 2, (text, numbers)  # all in one batch
        assert (f"{more} more call" in report) == bool(more), report


if __name__ == "__main__":
    main(globals())
