"""Checks of Attention Weights on families whose text has rows of its own, apart from CLIP's.

In Flux, Chroma, Qwen-Image and Z-Image text and image share an attention; Krea 2, Anima, Wan and LTX-Video come after
them, and the way ``krea2`` is compared with ComfyUI-KJNodes. Run by test_comfyui_inprocess.py in ComfyUI's own Python;
see inprocess.py.
"""

# pyright: reportMissingImports=false

from __future__ import annotations

import importlib.util
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch
from inprocess import CLOSE, compares, main, pack_of, refusal, run_ours, stock
from inprocess_attention import (
    NODE,
    compiled_models_are_weighed,
    draws_as_written_out,
    is_close,
    layouts,
    lora_hooks_and_weights_act,
    weighed,
    weight_one_is_stock,
    weights_equal_ones_written_out,
    weights_stay_with_their_entry,
    what_acts_is_said,
)
from inprocess_places import encoded, placed
from toys import LATENT, NEGATIVE, PLAIN, TEXT, WIDE_LATENT, make_model, make_text_encoder, rows_by_hand, sampled
from written_out import written_out

JOINT = ("Flux", "Chroma", "Qwen-Image", "Z-Image")
CROSS = ("Krea 2", "Anima", "Wan", "LTX-Video", "Wan image to video", "Wan VACE", "Wan Camera")
TEXT_ENCODERS = CROSS[:4]
"""Families of a text encoder each."""
REPLACED = {"Wan": "blocks.1.cross_attn", "LTX-Video": "transformer_blocks.1.attn2"}
"""Layers of text that another pack replaces."""
FILLED = ", and" * 32
"""Makes a text of Z-Image 65 to 96 tokens long, which it pads to 96, as it does the 77 patches of an image: the layers
that refine text alone and image alone then have the same shapes."""


@compares("Attention Weights at weight 1, Flux, Chroma, Qwen-Image and Z-Image, small, with stock")
def check_joint_families_at_weight_one_are_stock() -> None:
    weight_one_is_stock(JOINT)


@compares(
    "Attention Weights on Flux, Chroma, Qwen-Image and Z-Image, small, KSampler, with a softmax written out, likewise",
    limit=CLOSE,
)
def check_weighed_joint_attention_equals_one_written_out() -> None:
    weights_equal_ones_written_out(JOINT, ("value", "bias"))


@compares("The same on Z-Image with as many rows as patches, likewise", limit=CLOSE)
def check_refiners_of_equal_shapes_are_told_apart() -> None:
    clip, model = make_text_encoder("Z-Image"), make_model("Z-Image")
    plain, negative = stock(clip, PLAIN + FILLED), stock(clip, NEGATIVE)
    assert 64 < plain[0][0].shape[1] <= 96
    known = (plain, rows_by_hand("Z-Image", clip))
    draws_as_written_out(model, weighed(clip, TEXT + FILLED), plain, negative, known)


@compares("The same on Z-Image behind reference images with texts of their own, likewise", limit=CLOSE)
def check_texts_of_reference_images_before_the_text_are_none_of_it() -> None:
    """As the node TextEncodeZImageOmni puts them: a text for each image, and one more behind the prompt."""
    import node_helpers

    clip, model = make_text_encoder("Z-Image"), make_model("Z-Image")
    generator = torch.Generator().manual_seed(8)
    images = [torch.randn(1, 16, 16, width, generator=generator) for width in (16, 24)]
    texts = [stock(clip, text)[0][0] for text in ("a house", "a dog in the snow", "a mat")]
    rows = rows_by_hand("Z-Image", clip)
    for number in (0, 1, 2, 3):
        values = {"reference_latents": images, "reference_latents_text_embeds": texts[:number]}

        def with_images(conditioning: Any, values: dict[str, Any] = values) -> Any:
            return node_helpers.conditioning_set_values(conditioning, values)

        plain, negative = with_images(stock(clip, PLAIN)), stock(clip, NEGATIVE)
        draws_as_written_out(model, with_images(weighed(clip)), plain, negative, (plain, rows), name=f"{number}")
    ours = with_images(placed(encoded(clip), "red", area="left half"))
    assert "beside reference images" in refusal(lambda: sampled(model, ours, negative))


@compares("The same in masks, two conditionings, time ranges and batches, likewise", limit=CLOSE)
def check_joint_weights_stay_with_their_entry() -> None:
    weights_stay_with_their_entry(JOINT, layouts(LATENT, columns=12))


@compares("The same with LoRA hooks, likewise", limit=CLOSE)
def check_joint_weights_and_lora_hooks_act_together() -> None:
    lora_hooks_and_weights_act(JOINT)


@compares("The same in compiled models, likewise", limit=CLOSE)
def check_compiled_joint_families_are_weighed_as_well() -> None:
    compiled_models_are_weighed(JOINT)


@compares("The same on Flux with EasyCache, likewise", limit=CLOSE)
def check_a_cache_that_answers_for_steps_is_let_be() -> None:
    from comfy_extras.nodes_easycache import EasyCacheNode

    clip, model = make_text_encoder("Flux"), make_model("Flux")
    (cached,) = EasyCacheNode.execute(model, 3.0, 0.1, 0.95, False).args
    plain, negative = stock(clip, PLAIN), stock(clip, NEGATIVE)
    with written_out(model, "bias", (plain, rows_by_hand("Flux", clip))):
        reference = sampled(cached, plain, negative, steps=6)
        assert not torch.equal(sampled(model, plain, negative, steps=6), reference)  # it did answer
    ours = sampled(cached, weighed(clip), negative, steps=6)
    is_close(ours, reference, sampled(cached, plain, negative, steps=6))


def check_joint_families_say_what_acts_and_refuse_what_does_not() -> None:
    for family in JOINT:
        clip, model = make_text_encoder(family), make_model(family)
        negative = stock(clip, NEGATIVE)
        conditioning = what_acts_is_said(family, clip, model, negative)
        if family in ("Flux", "Qwen-Image"):  # the others have no such patch
            moving = model.clone()
            moving.set_model_patch(lambda inputs: inputs, "post_input")
            message = refusal(lambda m=moving, c=conditioning, n=negative: sampled(m, c, n))
            assert "post_input" in message, message
        view = run_ours(NODE, clip=clip, text="a pain(ting:2) BREAK cat", syntax="a1111")["ui"]["weighted_clip"][0]
        assert [issue["code"] for issue in view["issues"]] == ["one-token"]
        assert [chip["text"] for chip in view["chunks"][0]["chips"]][-2:] == ["pain(ting", "cat"]
        if family != "Flux":  # its CLIP-L can be weighed by the other nodes
            message = refusal(lambda clip=clip: run_ours("WeightedCLIPMaskControl", clip=clip, text="a cat"))
            assert f"for weights in {family} the node Attention Weights" in message


# ---- Krea 2, Anima, Wan and LTX-Video


def with_image(conditioning: Any) -> Any:
    """A conditioning with what CLIP sees in an image, for image to video."""
    import node_helpers

    states = torch.randn(1, 257, 1280, generator=torch.Generator().manual_seed(7))
    values = {"clip_vision_output": SimpleNamespace(penultimate_hidden_states=states)}
    return node_helpers.conditioning_set_values(conditioning, values)


@compares("Attention Weights at weight 1, Krea 2, Anima, Wan and LTX-Video, small, with stock")
def check_cross_families_at_weight_one_are_stock() -> None:
    weight_one_is_stock(TEXT_ENCODERS)


@compares(
    "Attention Weights on Krea 2, Anima, Wan and LTX-Video (text, image, VACE and Camera to video), small, "
    "KSampler, with a softmax written out, likewise",
    limit=CLOSE,
)
def check_weighed_cross_families_equal_one_written_out() -> None:
    weights_equal_ones_written_out(CROSS, ("value", "krea2", "bias"))


@compares("The same on Wan with an image that CLIP saw, likewise", limit=CLOSE)
def check_an_image_to_be_moved_is_read_without_weights() -> None:
    for family in ("Wan image to video", "Wan Camera"):
        clip, model = make_text_encoder(family), make_model(family)
        plain, negative = with_image(stock(clip, PLAIN)), with_image(stock(clip, NEGATIVE))
        known = (plain, rows_by_hand(family, clip))
        for how in ("value", "bias"):
            ours = with_image(weighed(clip, how=how))
            draws_as_written_out(model, ours, plain, negative, known, how=how, name=f"{family}, {how}")


@compares("The same on Krea 2 with a reference image, likewise", limit=CLOSE)
def check_reference_images_behind_the_text_are_none_of_it() -> None:
    import node_helpers

    clip, model = make_text_encoder("Krea 2"), make_model("Krea 2")
    images = [torch.randn(1, 16, 1, 16, 16, generator=torch.Generator().manual_seed(8))]

    def with_images(conditioning: Any) -> Any:
        return node_helpers.conditioning_set_values(conditioning, {"reference_latents": images})

    plain, negative = with_images(stock(clip, PLAIN)), stock(clip, NEGATIVE)
    known = (plain, rows_by_hand("Krea 2", clip))
    draws_as_written_out(model, with_images(weighed(clip)), plain, negative, known)


@compares(
    "Krea 2, Anima, Wan and LTX-Video in masks, two conditionings, time ranges and batches, likewise", limit=CLOSE
)
def check_cross_weights_stay_with_their_entry() -> None:
    weights_stay_with_their_entry(TEXT_ENCODERS, layouts(WIDE_LATENT, columns=30))


@compares("Wan in context windows, likewise", limit=CLOSE)
def check_each_window_of_a_long_video_is_weighed() -> None:
    from comfy_extras.nodes_context_windows import WanContextWindowsManualNode

    import nodes

    clip, model = make_text_encoder("Wan"), make_model("Wan")
    plain, negative = stock(clip, PLAIN), stock(clip, NEGATIVE)
    # of 3 latent frames, of which neighbours share 1; all but the first get the frame before them as well
    (windows,) = WanContextWindowsManualNode.execute(model, 9, 4, "standard_static", 1, False, "pyramid", False).args
    calls: list[int] = []

    def note(apply_model: Any, call: dict[str, Any]) -> torch.Tensor:
        calls.append(call["input"].shape[2])
        return apply_model(call["input"], call["timestep"], **call["c"])

    windows.set_model_unet_function_wrapper(note)

    def drawn(positive: Any) -> torch.Tensor:
        latent = {"samples": torch.zeros(1, 16, 7, 8, 16)}
        return nodes.KSampler().sample(windows, 1, 2, 2.0, "euler", "simple", positive, negative, latent)[0]["samples"]

    with written_out(model, "bias", (plain, rows_by_hand("Wan", clip))):
        reference = drawn(plain)
    assert calls == 2 * [3, 4, 4], calls
    is_close(drawn(weighed(clip)), reference, drawn(plain))


@compares("Krea 2, Anima, Wan and LTX-Video with LoRA hooks, likewise", limit=CLOSE)
def check_cross_weights_and_lora_hooks_act_together() -> None:
    lora_hooks_and_weights_act(TEXT_ENCODERS)


@compares(
    "Krea 2, Anima, Wan and LTX-Video, positive and negative weighed, with another pack's attention, likewise",
    limit=CLOSE,
)
def check_two_nodes_and_anothers_attention_all_act() -> None:
    for family in TEXT_ENCODERS:
        clip, model = make_text_encoder(family), make_model(family)
        plain, bad = stock(clip, PLAIN), stock(clip, "a dog")
        calls = 0

        def foreign(function: Any, *inputs: Any, **choices: Any) -> torch.Tensor:
            nonlocal calls
            calls += 1
            return function(*inputs, **choices)

        theirs = model.clone()
        theirs.model_options["transformer_options"]["optimized_attention_override"] = foreign
        heavy = rows_by_hand(family, clip, "a dog", {"dog": 2.0})
        with written_out(model, "bias", (plain, rows_by_hand(family, clip)), (bad, heavy)):
            reference = sampled(model, plain, bad)
        without = sampled(theirs, plain, bad)
        expected, calls = calls, 0
        positive, _, once = run_ours(NODE, clip=clip, text=TEXT, model=theirs)["result"]
        for negative in (
            weighed(clip, "a (dog:2)"),
            run_ours(NODE, clip=clip, text="a (dog:2)", model=once)["result"][0],
        ):
            is_close(sampled(once, positive, negative), reference, without, family)
            assert calls == expected, (family, calls, expected)
            calls = 0


@compares("Krea 2, Anima, Wan and LTX-Video compiled, likewise", limit=CLOSE)
def check_compiled_cross_families_are_weighed_as_well() -> None:
    compiled_models_are_weighed(TEXT_ENCODERS, by_block=True)


@compares(
    "Attention Weights at krea2 on Krea 2, small, one pass, with Krea2PromptWeight of ComfyUI-KJNodes, likewise",
    limit=CLOSE,
)
def check_krea2_equals_the_node_of_kjnodes() -> None:
    module = pack_of("ComfyUI-KJNodes") / "nodes" / "model_optimization_nodes.py"
    described = importlib.util.spec_from_file_location("kjnodes_model_optimization", module)
    assert described is not None and described.loader is not None
    theirs = importlib.util.module_from_spec(described)
    described.loader.exec_module(theirs)
    clip, model = make_text_encoder("Krea 2"), make_model("Krea 2")
    plain = stock(clip, PLAIN)
    without = one_pass(model, plain)
    for text in (
        "a (red:1.7) cat on a (mat:0.4), (oil painting:-0.6) in (snow:0)",
        "a (red:0.5) cat on a mat, oil (painting:-1) in snow",
        "a red (cat:1.2) on a mat, oil painting in (snow:2.5)",
    ):
        for strength in (1.0, 0.5, 1.6):
            reference_model, conditioning = theirs.Krea2PromptWeight().encode(clip, model, text, strength)
            assert torch.equal(conditioning[0][0], plain[0][0])
            ours = one_pass(model, weighed(clip, text, how="krea2", strength=strength))
            is_close(ours, one_pass(reference_model, conditioning), without, text)
    assert torch.equal(one_pass(model, plain), without)


def one_pass(model: Any, positive: Any) -> torch.Tensor:
    """One pass: theirs weighs the negative as well, so there is none."""
    import nodes

    latent = {"samples": torch.zeros(1, 16, 1, *WIDE_LATENT)}
    return nodes.KSampler().sample(model, 1, 1, 1.0, "euler", "simple", positive, positive, latent)[0]["samples"]


def check_cross_families_say_what_acts_and_refuse_what_does_not() -> None:
    import nodes

    for family in CROSS:
        clip, model = make_text_encoder(family), make_model(family)
        negative = stock(clip, NEGATIVE)
        conditioning = what_acts_is_said(family, clip, model, negative)
        view = run_ours(NODE, clip=clip, text="a pain(ting:2) BREAK cat", syntax="a1111")["ui"]["weighted_clip"][0]
        assert [issue["code"] for issue in view["issues"]] == ["one-token"]
        assert view["chunks"][0]["chips"][-1]["text"] == "cat"
        if family == "Krea 2":
            moving = model.clone()
            moving.set_model_patch(lambda inputs: inputs, "post_input")
            assert "post_input" in refusal(lambda m=moving, c=conditioning, n=negative: sampled(m, c, n))
        if family in REPLACED:
            replacing, name = model.clone(), f"diffusion_model.{REPLACED[family]}.forward"
            replacing.add_object_patch(name, partial(model.get_model_object(name)))
            assert "NAG" in refusal(lambda m=replacing, c=conditioning, n=negative: sampled(m, c, n))
            sampled(model, conditioning, negative)  # it was the other's alone
        if family == "Wan":
            # a character that is not a piece is spelled in three bytes, after its own space
            assert "'猫' 2: rows 2-4" in run_ours(NODE, clip=clip, text="a (猫:2) cat")["result"][1]
        if family in ("Krea 2", "Wan", "LTX-Video"):
            (joined,) = nodes.ConditioningConcat().concat(conditioning, negative)
            assert "has changed them" in refusal(lambda m=model, c=joined, n=negative: sampled(m, c, n))
        message = refusal(lambda clip=clip: run_ours("WeightedCLIPMaskControl", clip=clip, text="a cat"))
        title = family if family == "Krea 2" else family.split()[0]
        assert f"for weights in {title} the node Attention Weights" in message, message


if __name__ == "__main__":
    main(globals())
