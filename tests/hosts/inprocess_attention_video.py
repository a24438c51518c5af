"""Checks of Attention Weights on models of video that came after those of inprocess_attention_joint.py.

Run by test_comfyui_inprocess.py in ComfyUI's own Python; see inprocess.py.
"""

# pyright: reportMissingImports=false

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import Any

import torch
from inprocess import CLOSE, compares, difference, main, refusal, stock
from inprocess_attention import (
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
from inprocess_places import by_rows, draws_by_place, encoded, half, placed, result_of
from served_clip import effects, served
from toys import (
    NEGATIVE,
    PLAIN,
    SHORT_NEGATIVE,
    SMALL_LATENT,
    TEXT,
    make_model,
    make_text_encoder,
    rows_by_hand,
    sampled,
    there,
)
from toys_video import LATER_VIDEO, LTX_2, VARIANTS_OF_WAN, WIDE_LATENT
from written_out import written_out

TIMES = layouts((8, 8), 4)["times"]


def noise(*shape: int) -> torch.Tensor:
    """Random numbers, the same for a shape."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(7))


def watched(conditioning: Any) -> Any:
    """A conditioning whose words are watched."""
    import nodes

    return nodes.NODE_CLASS_MAPPINGS["WeightedCLIPWatch"]().watch(conditioning, "cat", 1, "all")[0]


@compares("Attention Weights at weight 1, LTX-2 and later models of video, small, with stock")
def check_later_video_at_weight_one_is_stock() -> None:
    weight_one_is_stock(there(*LATER_VIDEO))


@compares(
    "Attention Weights on LTX-2, Hunyuan Video 1 and 1.5, Hunyuan Image, Kandinsky 5, CogVideoX and Mochi, small, "
    "KSampler, with a softmax written out, likewise",
    limit=CLOSE,
)
def check_weights_in_later_video_equal_ones_written_out() -> None:
    weights_equal_ones_written_out(there(*LATER_VIDEO), ("value", "bias"))


@compares("The same in two conditionings, time ranges and batches, likewise", limit=CLOSE)
def check_weights_in_later_video_stay_with_their_entry() -> None:
    weights_stay_with_their_entry(there(*LATER_VIDEO), {"two": lambda one, two: [*one, *two]})
    # the first step of CogVideoX is all noise
    weights_stay_with_their_entry(there(*(one for one in LATER_VIDEO if one != "CogVideoX")), {"times": TIMES})


@compares("The same with LoRA hooks, likewise", limit=CLOSE)
def check_weights_in_later_video_and_lora_hooks_act_together() -> None:
    lora_hooks_and_weights_act(there(*LTX_2))


@compares("The same compiled, likewise", limit=CLOSE)
def check_compiled_later_video_is_weighed_as_well() -> None:
    compiled_models_are_weighed(there(*LATER_VIDEO))


@compares("The same with more tokens than the connectors of LTX-2 have rows of their own, likewise", limit=CLOSE)
def check_more_tokens_than_rows_of_connectors_are_counted() -> None:
    for family in there("LTX-2"):
        clip, model = make_text_encoder(family), make_model(family)
        photos = "photo " * 1030
        plain, negative = stock(clip, f"{photos}cat"), stock(clip, SHORT_NEGATIVE)
        rows = rows_by_hand(family, clip, f"{photos}cat", {"cat": 3.0})
        assert plain[0][0].shape[1] > 1024
        draws_as_written_out(model, weighed(clip, f"{photos}(cat:3)"), plain, negative, (plain, rows))


@compares("The same with rows that the encoder of old files has put through the connectors of LTX-2", limit=CLOSE)
def check_rows_that_were_connected_by_the_encoder_are_weighed() -> None:
    for family in there("LTX-2"):
        clip, model = make_text_encoder(family), make_model(family)
        theirs, network = clip.cond_stage_model, model.model.diffusion_model
        for name in ("video_embeddings_connector", "audio_embeddings_connector"):
            setattr(theirs, name, getattr(network, name))
        theirs.compat_mode = True
        plain, negative = stock(clip, PLAIN), stock(clip, SHORT_NEGATIVE)
        assert plain[0][0].shape[1:] == (1024, 128)
        draws_as_written_out(model, weighed(clip), plain, negative, (plain, rows_by_hand(family, clip)))


@compares("The same beside rows of an image and of texts in quotation marks, likewise", limit=CLOSE)
def check_rows_in_front_of_the_text_are_none_of_it() -> None:
    import node_helpers

    text, plain_text = 'a (red:1.7) cat on a (mat:0.4), "oil (painting:0)"', 'a red cat on a mat, "oil painting"'
    eyes = {"clip_vision_output": SimpleNamespace(last_hidden_state=noise(1, 9, 32))}
    for family in there("Hunyuan Video 1.5", "Hunyuan Image 2.1"):
        clip, model = make_text_encoder(family), make_model(family)
        values = eyes if family == "Hunyuan Video 1.5" else {}
        plain, ours = (
            node_helpers.conditioning_set_values(one, values) for one in (stock(clip, plain_text), weighed(clip, text))
        )
        assert plain[0][1]["conditioning_byt5small"].shape[1] > 20
        rows = rows_by_hand(family, clip, plain_text, {"red": 1.7, "mat": 0.4, "painting": 0.0})
        draws_as_written_out(model, ours, plain, stock(clip, SHORT_NEGATIVE), (plain, rows), name=family)


@compares("Rows of Hunyuan Video's prompt with an image, small, with the host's")
def check_what_stands_behind_the_users_turn_has_no_rows() -> None:
    """Hunyuan Video cuts the template for images after the user's turn, and puts the image in front."""
    from comfy_extras.nodes_hunyuan import TextEncodeHunyuanVideo_ImageToVideo as Node

    clip = make_text_encoder("Hunyuan Video")
    eyes = SimpleNamespace(mm_projected=noise(1, 16, 64))
    work = served(clip, scheme="attention: value")
    (plain,), (ours,) = (Node.execute(one, eyes, text, 2).args for one, text in ((clip, PLAIN), (work, TEXT)))
    difference(ours[0][0], plain[0][0])
    rows = {8 + row: weight for row, weight in rows_by_hand("Hunyuan Video", clip).items()}  # of 16, every second
    factors = effects(ours)[0].view(2, -1)[1]
    expected = torch.tensor([rows.get(row, 1.0) for row in range(plain[0][0].shape[1])])
    assert torch.equal(factors, expected), factors


@compares("LTX-2 with a guide behind the video, likewise", limit=CLOSE)
def check_guides_of_ltx_2_are_let_be() -> None:
    import node_helpers
    from comfy.nested_tensor import NestedTensor

    import nodes

    clip, model = make_text_encoder("LTX-2"), make_model("LTX-2")
    cells = torch.stack(torch.meshgrid(*(torch.arange(size) for size in (1, *SMALL_LATENT)), indexing="ij")).flatten(1)
    guide = {"keyframe_idxs": torch.stack([cells, cells + 1], -1)[None].float()}
    plain, ours = (node_helpers.conditioning_set_values(one, guide) for one in (stock(clip, PLAIN), weighed(clip)))
    negative = node_helpers.conditioning_set_values(stock(clip, SHORT_NEGATIVE), guide)

    def drawn(positive: Any) -> torch.Tensor:
        is_drawn = torch.tensor([1.0, 0.5]).view(1, 1, 2, 1, 1).expand(1, 1, 2, *SMALL_LATENT)  # of the frames
        latent = {
            "samples": NestedTensor((noise(1, 128, 2, *SMALL_LATENT), torch.zeros(1, 8, 5, 16))),
            "noise_mask": NestedTensor((is_drawn, torch.ones(1, 8, 5, 16))),
        }
        result = nodes.KSampler().sample(model, 1, 2, 2.0, "euler", "simple", positive, negative, latent)[0]["samples"]
        return torch.cat([one.flatten(1) for one in result.unbind()], 1)

    with written_out(model, "bias", (plain, rows_by_hand("LTX-2", clip))):
        reference = drawn(plain)
    is_close(drawn(ours), reference, drawn(plain))


def check_later_video_says_what_acts_and_refuses_what_does_not() -> None:
    import nodes

    for family in there(*LTX_2):
        clip, model = make_text_encoder(family), make_model(family)
        negative = stock(clip, SHORT_NEGATIVE)
        conditioning = what_acts_is_said(family, clip, model, negative)
        (joined,) = nodes.ConditioningConcat().concat(conditioning, negative)
        assert "has changed them" in refusal(lambda m=model, c=joined, n=negative: sampled(m, c, n))
        for layer in ("attn2", "audio_attn2"):
            replacing, name = model.clone(), f"diffusion_model.transformer_blocks.1.{layer}.forward"
            replacing.add_object_patch(name, partial(model.get_model_object(name)))
            assert "NAG" in refusal(lambda m=replacing, c=conditioning, n=negative: sampled(m, c, n))
        region = result_of("WeightedCLIPRegion", conditioning, negative)[0]
        for one in (placed(conditioning, "cat", inside=0.5), region, watched(conditioning)):
            message = refusal(lambda m=model, c=one, n=negative: sampled(m, c, n))
            assert "where in the picture the places of this" in message, message


# ---- variants of Wan


def beside_wan(family: str) -> dict[str, Any]:
    """Inputs of a variant of Wan beside the text: sound, poses, pictures of reference, what CLIP saw in them."""
    height, width = WIDE_LATENT
    references = {"reference_latents": [noise(1, 16, 1, height, width)]}
    poses = {"pose_video_latent": noise(1, 16, 1, height // 2, width // 2)}
    eyes = SimpleNamespace(penultimate_hidden_states=noise(1, 257, 1280))
    return {
        "Wan Animate": {"clip_vision_output": eyes, "pose_video_latent": noise(1, 16, 1, height, width)},
        "Wan HuMo": {"audio_embed": noise(1, 1, 8, 5, 1280), **references},
        "Wan S2V": {
            "audio_embed": noise(1, 25, 32, 4),
            "reference_motion": noise(1, 16, 19, *WIDE_LATENT),
            **references,
        },
        "Wan SCAIL": {**references, **poses, "clip_vision_output": eyes},
        "Wan SCAIL 2": {**references, **poses},
        "Wan Dancer": {"audio_embed": noise(1, 8, 35), "clip_vision_output": eyes, "clip_vision_output_ref": eyes},
    }.get(family, {})


def with_all(family: str, conditioning: Any) -> Any:
    """A conditioning with all that a variant of Wan reads beside it."""
    import node_helpers

    return node_helpers.conditioning_set_values(conditioning, beside_wan(family))


@compares("Attention Weights on FlowRVS, Animate, HuMo, S2V, SCAIL and Dancer of Wan, small, likewise", limit=CLOSE)
def check_weights_in_variants_of_wan_equal_ones_written_out() -> None:
    weights_equal_ones_written_out(VARIANTS_OF_WAN[:-1], ("value", "bias"))
    for family in VARIANTS_OF_WAN:
        clip, model = make_text_encoder(family), make_model(family)
        plain, negative = (with_all(family, stock(clip, text)) for text in (PLAIN, NEGATIVE))
        known = (plain, rows_by_hand(family, clip))
        draws_as_written_out(model, with_all(family, weighed(clip)), plain, negative, known, name=family)


@compares("Place Phrase in the same, with sound, poses and references, likewise", limit=CLOSE)
def check_places_in_variants_of_wan_equal_ones_written_out() -> None:
    for family in VARIANTS_OF_WAN:
        clip, model = make_text_encoder(family), make_model(family)
        plain, negative = (with_all(family, stock(clip, text)) for text in (PLAIN, NEGATIVE))
        fields = (plain, by_rows(family, clip, ("red cat", half(2.0, 0.3))))
        ours = with_all(family, placed(encoded(clip), "red cat", area="left half", inside=2.0, outside=0.3))
        draws_by_place(model, ours, plain, negative, fields, name=family)


def check_causal_wan_is_refused() -> None:
    clip, model = make_text_encoder("Wan causal"), make_model("Wan causal")
    negative = stock(clip, NEGATIVE)
    assert "part by part" in refusal(lambda: sampled(model, weighed(clip), negative))


if __name__ == "__main__":
    main(globals())
