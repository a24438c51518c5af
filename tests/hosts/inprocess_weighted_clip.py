"""Checks of the node Weighted CLIP in ComfyUI's own Python: stock nodes on its CLIP, with our own encode nodes.

Run by test_comfyui_inprocess.py; see inprocess.py.
"""

# pyright: reportMissingImports=false

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from inprocess import (
    TEXTS,
    apart,
    compares,
    difference,
    main,
    make_clip,
    make_lora,
    ours,
    refusal,
    run_ours,
    stock,
    with_lora,
)
from inprocess_traces import LORA, hooked, leaves_nothing
from served_clip import MARKER, effects, served
from toys import PLAIN, TEXT, WORDS, make_text_encoder, rows_by_hand, there, unheard, weighable
from toys_pictures import FAMILIES, known, rows_by_change
from toys_video import LATER_VIDEO

CLIPS = ("SD1", "SD2", "SDXL", "SDXL refiner")
CHOICES: tuple[dict[str, Any], ...] = (
    {"syntax": "a1111", "scheme": "masked_blend"},
    {"syntax": "a1111", "scheme": "a1111"},
    {"scheme": "comfy", "normalization": "length+mean"},
    {"syntax": "compel", "scheme": "compel"},
    {"scheme": "down_weight", "padding": "drop"},
    {"scheme": "perp", "pooled": "raw text"},
    {"scheme": "negpip"},
    {"syntax": "a1111", "scheme": "lerp_last"},
)
OTHERS = (
    *("Flux", "Chroma", "Qwen-Image", "Z-Image", "Krea 2", "Anima", "Wan", "LTX-Video", "SD 3", "SD 3 without T5"),
    *("Lumina 2", "Flux 2 Klein", "Flux 2", "HiDream"),
    *FAMILIES,
    *LATER_VIDEO,
)
"""Families whose prompts are not read by CLIP text towers alone."""


def encoders(*families: str) -> Iterator[tuple[str, Any]]:
    """Small CLIPs of those families that this ComfyUI has."""
    for family in weighable(*there(*families)):
        if family in FAMILIES and family not in known(family):
            continue
        yield family, make_text_encoder(family)


def sdxl(clip: Any, text_g: str, text_l: str) -> Any:
    """The stock node with a text for each encoder."""
    from comfy_extras.nodes_clip_sdxl import CLIPTextEncodeSDXL

    return CLIPTextEncodeSDXL.execute(clip, 1024, 1024, 0, 0, 1024, 1024, text_g, text_l).result[0]


def versions(family: str) -> Iterator[Any]:
    """CLIPs of a family as workflows make them, with what stands before the node."""
    clip = make_clip(family)
    yield clip
    skipped = clip.clone()
    skipped.clip_layer(-2)
    yield skipped
    yield with_lora(clip, make_lora(clip.cond_stage_model, LORA), 0.7)


@compares("Stock CLIP Text Encode on a Weighted CLIP at its defaults, small, with stock")
def check_defaults_equal_stock() -> None:
    for family in (*CLIPS, "Stable Cascade"):
        for clip in versions(family):
            for text in TEXTS:
                expected = stock(clip, text)
                with leaves_nothing(clip, f"{family}, {text!r}"):
                    found = stock(served(clip), text)
                difference(found, expected)
                difference(stock(clip, text), expected)
    clip = make_clip("SDXL")
    for texts in zip(TEXTS, reversed(TEXTS), strict=True):
        difference(sdxl(served(clip), *texts), sdxl(clip, *texts))


@compares("Prompts without weights on a Weighted CLIP, every family, small, with stock")
def check_prompts_without_weights_equal_stock() -> None:
    for family, clip in encoders(*OTHERS, "Ovis"):
        for text in ("", PLAIN):
            expected = stock(clip, text)
            with leaves_nothing(clip, f"{family}, {text!r}"):
                found = stock(served(clip), text)
            difference(found, expected)
            difference(stock(clip, text), expected)


@compares("Stock CLIP Text Encode on a Weighted CLIP with a scheme, small, with Weighted Prompt")
def check_schemes_equal_our_own_node() -> None:
    for family in (*CLIPS, "SD3", "SD3 without T5"):
        for clip in versions(family):
            for choices in CHOICES:
                if choices["scheme"] == "negpip" and family not in CLIPS:
                    continue
                for text in TEXTS:
                    difference(stock(served(clip, **choices), text), ours(clip, text, **choices))


@compares("CLIP Text Encode SDXL with two texts on a Weighted CLIP, small, with Weighted Prompt (SDXL)")
def check_two_texts_equal_our_own_node() -> None:
    clip = make_clip("SDXL")
    for choices in CHOICES[:4]:
        for text_g, text_l in zip(TEXTS, reversed(TEXTS), strict=True):
            expected = run_ours("WeightedCLIPSDXLEncode", clip=clip, text_g=text_g, text_l=text_l, **choices)["result"]
            found = sdxl(served(clip, **choices), text_g, text_l)
            assert apart_rows(found, expected[0]) == 0.0


def apart_rows(found: Any, expected: Any) -> float:
    """Difference of rows and pooled vectors."""
    pairs = [(found[0][0], expected[0][0]), (found[0][1]["pooled_output"], expected[0][1]["pooled_output"])]
    return max(difference(one, other) for one, other in pairs)


@compares("Weighted CLIP before and behind a LoRA, clip skip and hooks, small, with Weighted Prompt")
def check_what_stands_behind_it_acts() -> None:
    for family in ("SD1", "SDXL"):
        clip = make_clip(family)
        lora = make_lora(clip.cond_stage_model, LORA)
        for choices in CHOICES[:2]:
            expected = ours(with_lora(clip, lora, 0.7), TEXTS[1], **choices)
            assert apart(expected, ours(clip, TEXTS[1], **choices)) > 1e-3
            difference(stock(with_lora(served(clip, **choices), lora, 0.7), TEXTS[1]), expected)
            skipped = served(clip, **choices).clone()
            skipped.clip_layer(-2)
            plain = clip.clone()
            plain.clip_layer(-2)
            difference(stock(skipped, TEXTS[1]), ours(plain, TEXTS[1], **choices))
            for is_scheduled in (False, True):
                found = stock(hooked(served(clip, **choices), is_scheduled), TEXTS[1])
                expected = ours(hooked(clip, is_scheduled), TEXTS[1], **choices)
                assert len(found) == len(expected)
                for (one, _), (other, _) in zip(found, expected, strict=True):
                    difference(one, other)


@compares("Weights in the attention by a Weighted CLIP, every family, small: rows and effects, with Attention Weights")
def check_attention_equals_attention_weights() -> None:
    for family, clip in encoders("SD1", "SDXL", *OTHERS):
        for how in ("bias", "value", "krea2"):
            expected = run_ours("WeightedCLIPWeighAttention", clip=clip, text=TEXT, how=how, strength=0.5)["result"][0]
            found = stock(served(clip, scheme=f"attention: {how}", strength=0.5), TEXT)
            difference(found[0][0], expected[0][0])
            difference(effects(found), effects(expected))
            assert effects(found).unique().numel() > 2, family


QWEN_EDIT = (
    "<|im_start|>system\nSay what a cat in the picture does.<|im_end|>\n<|im_start|>user\n{}<|im_end|>\n"
    "<|im_start|>assistant\n"
)


@compares("Rows of words in the templates of edit nodes and of nodes with several texts, small, counted by hand")
def check_templates_of_nodes_keep_rows_and_words_apart() -> None:
    """The template has words of the prompt as well, which must not be weighted."""
    for family, clip in encoders("Qwen-Image", "Z-Image"):
        key = {"Qwen-Image": "qwen25_7b", "Z-Image": "qwen3_4b"}[family]
        work = served(clip, scheme="attention: value")
        tokens = work.tokenize("Picture 1: <|vision_start|><|vision_end|>" + TEXT, llama_template=QWEN_EDIT)
        plain = clip.tokenize("Picture 1: <|vision_start|><|vision_end|>" + PLAIN, llama_template=QWEN_EDIT)
        assert [[int(one[0]) for one in chunk] for chunk in tokens[key]] == [
            [one[0] for one in chunk] for chunk in plain[key]
        ]
        found = work.encode_from_tokens_scheduled(tokens)
        difference(found[0][0], clip.encode_from_tokens_scheduled(plain)[0][0])
        inner = getattr(clip.tokenizer, key)
        names = [inner.inv_vocab[one[0]].strip("Ġ") for one in plain[key][0]]
        start = len(names) - found[0][0].shape[1]
        begin = names.index("<|vision_end|>")  # the prompt's words stand behind it
        factors = effects(found)[0].view(2, -1)[1].tolist()
        expected = [WORDS.get(name, 1.0) if place > begin else 1.0 for place, name in enumerate(names)]
        assert factors == [float(torch.tensor(weight)) for weight in expected[start:]], (family, factors)


@compares("Tokens that other nodes have joined, scaled or made anew on a Weighted CLIP, small, with our own node")
def check_edited_tokens_are_weighed_as_they_stand() -> None:
    parts = "a (red:1.3) cat", "on a (mat:0.4)"
    for family in ("SD1", "SDXL"):
        clip = make_clip(family)
        for choices in ({"scheme": "comfy"}, *CHOICES[:2], {"syntax": "a1111", "scheme": "down_weight"}):
            work = served(clip, **choices)
            tokens = work.tokenize(parts[0])
            for key, chunks in work.tokenize(parts[1]).items():
                tokens[key].extend(chunks)
            joined = ours(clip, " BREAK ".join(parts), **{**choices, "syntax": "a1111"})
            difference(work.encode_from_tokens_scheduled(tokens)[0][0], joined[0][0])
            scaled = {
                key: [[(one[0], 1.0 if one[1] == 1.0 else one[1] * 0.5) for one in chunk] for chunk in chunks]
                for key, chunks in work.tokenize("a (red:1.5) cat on a (mat:0.5)").items()
            }
            by_hand = ours(clip, "a (red:0.75) cat on a (mat:0.25)", **choices)
            difference(work.encode_from_tokens_scheduled(scaled)[0][0], by_hand[0][0])
            bare = {
                key: [[(int(one[0]), float(one[1])) for one in chunk] for chunk in chunks]
                for key, chunks in work.tokenize(parts[0]).items()
            }
            difference(work.encode_from_tokens_scheduled(bare)[0][0], ours(clip, parts[0], **choices)[0][0])
            rows, pooled = work.encode_from_tokens(work.tokenize(parts[0]), return_pooled=True)
            expected = ours(clip, parts[0], **choices)
            difference(rows, expected[0][0])
            difference(pooled, expected[0][1]["pooled_output"])
            tower = work.cond_stage_model.clip_l
            work.encode_from_tokens(work.tokenize(""))  # the host's choice of layer
            direct = tower.encode_token_weights(work.tokenize(parts[0])["l"])[0]
            difference(direct, expected[0][0][..., : direct.shape[-1]])


@compares("Prompts that change and parts joined by AND on a Weighted CLIP, small, with A1111/Forge Prompt")
def check_timed_prompts_equal_our_own_node() -> None:
    text = "a [red:(blue:1.4):0.5] cat AND a (mat:0.4) :0.6"
    for family in ("SD1", "SDXL"):
        clip = make_clip(family)
        expected = run_ours("WeightedCLIPA1111Encode", clip=clip, text=text, steps=8)["result"][0]
        found = stock(served(clip, syntax="a1111", scheme="a1111", timed=True, steps=8), text)
        assert len(found) == len(expected) == 3
        for (rows, values), (other_rows, others) in zip(found, expected, strict=True):
            difference(rows, other_rows)
            for name in ("start_percent", "end_percent", "strength"):
                assert values.get(name) == others.get(name), name
        work = served(clip, timed=True)
        assert "one encoding" in refusal(lambda work=work: work.encode_from_tokens(work.tokenize("[a:b:0.5]")))
    clip = make_clip("SDXL")
    assert "mixed" in refusal(lambda: sdxl(served(clip, timed=True), "[a:b:0.5]", "[c:d:0.5]"))


def check_wrong_input_is_refused_in_words() -> None:
    import comfy.sd

    assert "None" in refusal(lambda: served(None))
    assert "takes a CLIP of ComfyUI" in refusal(lambda: served(torch.nn.Linear(1, 1)))
    clip = make_clip("SD1")
    assert "scheme must be one of" in refusal(lambda: served(clip, scheme="strongest"))
    assert "finite" in refusal(lambda: served(clip, strength=float("nan")))
    assert "steps" in refusal(lambda: served(clip, timed=True, steps=0))
    for _, other in encoders("Qwen-Image"):
        assert "does not know" in refusal(lambda other=other: served(unheard(other), scheme="attention: bias"))

    class Others(comfy.sd.CLIP):
        pass

    other = clip.clone()
    other.__class__ = Others
    work = served(other)
    assert isinstance(work, Others)
    assert not apart(stock(work, TEXTS[1]), stock(clip, TEXTS[1]))


@compares("Two Weighted CLIPs in a row, and our encode nodes behind one, small: the last one's settings")
def check_the_last_settings_count() -> None:
    for family in ("SD1", "SDXL"):
        clip = make_clip(family)
        twice = served(served(clip, **CHOICES[0]), **CHOICES[1])
        difference(stock(twice, TEXTS[1]), ours(clip, TEXTS[1], **CHOICES[1]))
        difference(ours(served(clip, **CHOICES[0]), TEXTS[1], **CHOICES[1]), ours(clip, TEXTS[1], **CHOICES[1]))
    for _, clip in encoders("Qwen-Image", "SD 3"):
        choices = {"how": "bias", "strength": 1.0}
        expected = run_ours("WeightedCLIPWeighAttention", clip=clip, text=TEXT, **choices)["result"][0]
        found = run_ours("WeightedCLIPWeighAttention", clip=served(clip), text=TEXT, **choices)["result"][0]
        difference(found[0][0], expected[0][0])
        assert torch.equal(effects(found), effects(expected))


def check_words_of_stock_boxes_are_known() -> None:
    """Place Phrase, Regional Prompt and Watch Words take what stock nodes encode."""
    import nodes

    place = nodes.NODE_CLASS_MAPPINGS["WeightedCLIPPlace"]
    for family, clip in encoders("SD1", "SDXL", *OTHERS):
        for text in (PLAIN, TEXT):
            conditioning = stock(served(clip), text)
            inputs = {
                name: options["default"]
                for name, (_, options) in place.INPUT_TYPES()["required"].items()
                if "default" in options
            }
            result = place().place(
                **{**inputs, "conditioning": conditioning, "phrase": "red cat", "area": "left half"}
            )["result"][0]
            (entry,) = result
            rows = next(value for name, value in entry[1]["model_conds"].items() if MARKER in name).fields[0].rows
            by_word = rows_by_change(family, clip) if family in FAMILIES else rows_by_hand(family, clip)
            red = min(row for row, weight in by_word.items() if weight == WORDS["red"])
            assert red in rows and red + 1 in rows and len(rows) in (2, 4), (family, rows, red)


if __name__ == "__main__":
    main(globals())
