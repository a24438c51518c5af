"""Checks of Attention Weights if a word is in several places, or the vocabulary comes with the checkpoint.

Stable Diffusion 3, Lumina 2, Flux 2 and HiDream, small. Run by test_comfyui_inprocess.py in ComfyUI's own Python; see
inprocess.py.
"""

# pyright: reportMissingImports=false

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from inprocess import CLOSE, compares, main, make_clip, pack_module, refusal, run_ours, stock
from inprocess_attention import (
    NODE,
    area,
    compiled_models_are_weighed,
    draws_as_written_out,
    is_close,
    layouts,
    weighed,
    weight_one_is_stock,
    weights_equal_ones_written_out,
    weights_stay_with_their_entry,
    what_acts_is_said,
)
from toys import LATENT, PLAIN, TEXT, make_model, make_text_encoder, rows_by_hand, sampled
from toys import SHORT_NEGATIVE as NEGATIVE
from written_out import written_out

OF_EVERY_HOST = ("SD 3", "SD 3.5", "SD 3 without T5", "HiDream")
"""Families of every host. Some blocks of Stable Diffusion 3.5 Medium have an attention of the image alone as well."""
FAMILIES = (*OF_EVERY_HOST, "Lumina 2", "Flux 2 Klein", "Flux 2")


def families() -> tuple[str, ...]:
    """Those that this ComfyUI has, and whose blocks it tells apart."""
    from comfy import supported_models

    return FAMILIES if hasattr(supported_models, "Flux2") else OF_EVERY_HOST


@compares("Attention Weights at weight 1, SD3, Lumina 2, Flux 2 and HiDream, small, with stock")
def check_other_families_at_weight_one_are_stock() -> None:
    weight_one_is_stock(families())


@compares(
    "Attention Weights on SD3, SD3.5, Lumina 2, Flux 2 and HiDream, small, KSampler, with a softmax "
    "written out, likewise",
    limit=CLOSE,
)
def check_weights_in_other_families_equal_ones_written_out() -> None:
    weights_equal_ones_written_out(families(), ("value", "bias"))


@compares("The same in areas, masks, two conditionings, time ranges and batches, likewise", limit=CLOSE)
def check_weights_in_other_families_stay_with_their_entry() -> None:
    ways = {"areas": lambda one, two: [*area(one, 0), *two], **layouts(LATENT, columns=12)}
    weights_stay_with_their_entry(families(), ways)


@compares("The same on SD3.5 with a block left out, likewise", limit=CLOSE)
def check_blocks_that_another_pack_leaves_out_do_not_confuse() -> None:
    """As Skip Layer Guidance does it, and one that calls the block of Stable Diffusion 3.5 itself."""
    clip, model = make_text_encoder("SD 3.5"), make_model("SD 3.5")
    plain, negative = stock(clip, PLAIN), stock(clip, NEGATIVE)
    called: list[int] = []

    def with_patch(index: int, replacement: Callable[[Any, Any], Any]) -> Any:
        patched = model.clone()
        patched.set_model_patch_replace(replacement, "dit", "double_block", index)
        return patched

    def call(block: Any, extra: Any) -> Any:
        called.append(1)
        return extra["original_block"](block)

    known = (plain, rows_by_hand("SD 3.5", clip))
    draws_as_written_out(model, weighed(clip), plain, negative, known, on=with_patch(0, call))
    assert called
    skipping = with_patch(0, lambda block, extra: block)
    with written_out(model, "bias", known, skipped=(0,)):
        reference = sampled(skipping, plain, negative)
    is_close(sampled(skipping, weighed(clip), negative), reference, sampled(skipping, plain, negative))


@compares("The same on SD3.5, compiled, likewise", limit=CLOSE)
def check_a_compiled_stable_diffusion_3_is_weighed_as_well() -> None:
    compiled_models_are_weighed(["SD 3.5"])


@compares("The same on Lumina 2, as many rows as patches, likewise", limit=CLOSE)
def check_as_many_rows_as_patches_do_not_confuse_lumina() -> None:
    clip, model = make_text_encoder("Lumina 2"), make_model("Lumina 2")
    if "Lumina 2" not in families():
        assert "too old to tell" in refusal(lambda: sampled(model, weighed(clip), stock(clip, NEGATIVE)))
        return
    filler = next(" a" * count for count in range(100) if stock(clip, PLAIN + " a" * count)[0][0].shape[1] == 77)
    plain, negative = stock(clip, PLAIN + filler), stock(clip, NEGATIVE)
    known = (plain, rows_by_hand("Lumina 2", clip, PLAIN + filler))
    draws_as_written_out(model, weighed(clip, TEXT + filler), plain, negative, known)


@compares("The same on SD3.5 and HiDream with long prompts, likewise", limit=CLOSE)
def check_long_prompts_are_weighed_in_every_chunk() -> None:
    """A chunk of CLIP has 75 tokens; T5 of HiDream reads no more than 128."""
    for family, count in (("SD 3.5", 76), ("SD 3 without T5", 76), ("HiDream", 130)):
        clip, model = make_text_encoder(family), make_model(family)
        photos = "photo " * count
        plain, negative = stock(clip, photos + "cat"), stock(clip, NEGATIVE)
        result = run_ours(NODE, clip=clip, text=photos + "(cat:2)")
        conditioning, report, _ = result["result"]
        if family == "HiDream":
            pieces = [clip.tokenizer.llama.inv_vocab[pair[0]] for pair in clip.tokenize(photos + "cat")["llama"][0]]
            rows = {128 + pieces.index("Ġcat"): 2.0}
            (issue,) = result["ui"]["weighted_clip"][0]["issues"]
            assert issue["code"] == "rows-cut" and "t5xxl reads no more than 128 tokens" in issue["message"]
        else:  # the second token of CLIP's second chunk; the 77th of T5
            rows = {77 + 2: 2.0} if "without" in family else {77 + 2: 2.0, 2 * 77 + 76: 2.0}
        assert f"'cat' 2: row{'s' if len(rows) > 1 else ''} {', '.join(map(str, rows))}" in report, report
        draws_as_written_out(model, conditioning, plain, negative, (plain, rows), name=family)


def check_encoders_that_are_not_loaded_leave_no_gap() -> None:
    rows = run_ours(NODE, clip=make_clip("SD3 with T5 alone"), text="a (red:2) cat")
    assert "'red' 2: row 2" in rows["result"][1]  # T5 has two pieces for the first "a"
    for missing, found in (("llama", "row 2"), ("t5", "row 130")):
        clip = make_text_encoder("HiDream", **{missing: False})
        assert f"'red' 2: {found}" in run_ours(NODE, clip=clip, text="a (red:2) cat")["result"][1], missing


def check_every_byte_of_a_character_is_weighed() -> None:
    """SentencePiece gives a position only for the last byte of a character that it has no piece for."""
    clip = make_text_encoder("Lumina 2")
    report = run_ours(NODE, clip=clip, text="a (猫:2) d\u00f6g, (\U0001f600:0.5)")["result"][1]
    # <s>, a, the space, three bytes; the space, d, two bytes, g, the comma, the space, four bytes
    assert "'猫' 2: rows 3-5" in report and "'\U0001f600' 0.5: rows 13-16" in report, report


def check_other_families_say_what_acts_and_refuse_what_does_not() -> None:
    import nodes

    for family in families():
        clip, model = make_text_encoder(family), make_model(family)
        negative = stock(clip, NEGATIVE)
        conditioning = what_acts_is_said(family, clip, model, negative)
        (joined,) = nodes.ConditioningConcat().concat(conditioning, negative)
        message = refusal(lambda m=model, c=joined, n=negative: sampled(m, c, n))
        assert "Conditioning (Concat)" in message, message
        if not family.startswith("SD 3"):
            continue
        longer = model.clone()
        longer.set_model_patch_replace(
            lambda block, extra: extra["original_block"]({**block, "txt": block["txt"].repeat(1, 2, 1)}),
            *("dit", "double_block", 1),
        )
        message = refusal(lambda m=longer, c=conditioning, n=negative: sampled(m, c, n))
        assert f"expect {conditioning[0][0].shape[1]} rows of text in each block" in message, message


def check_the_ruler_shows_the_same_tokens_while_typing() -> None:
    import nodes

    ruler, inspection = pack_module("nodes.base.routes"), pack_module("web.inspection")
    ruler_nodes = ruler.ruler_nodes({NODE: nodes.NODE_CLASS_MAPPINGS[NODE]})
    for family in ("SD 3", "Flux 2 Klein"):
        if family not in families():
            continue
        (run,) = run_ours(NODE, clip=make_text_encoder(family), text=TEXT)["ui"]["weighted_clip"]
        asked = {"node": NODE, "text": TEXT, "values": {}, "encoder": run["encoder"]}
        reader = inspection.reader_of(asked, ruler_nodes)
        (typed,) = inspection.inspect(inspection.request_of(asked, ruler_nodes), [], reader)["views"]
        assert typed == {key: run[key] for key in typed}, (family, typed, run)


def check_a_tokenizer_that_loses_letters_is_refused() -> None:
    clip = make_text_encoder("HiDream")
    tokenizer = clip.tokenizer.llama.tokenizer

    class Shifting:
        """Says places as if the text had no spaces, as Llama's class does in some versions of transformers."""

        def __call__(self, text: str, return_offsets_mapping: bool = False) -> Any:
            found = tokenizer(text, return_offsets_mapping=True)
            places = [(max(0, start - 3), max(0, end - 3)) for start, end in found["offset_mapping"]]
            return {"input_ids": found["input_ids"], "offset_mapping": places}

    clip.tokenizer.llama.tokenizer = Shifting()
    message = refusal(lambda: run_ours(NODE, clip=clip, text="a (red:2) cat"))
    assert "Shifting of the transformers that ComfyUI has installed does not say where" in message, message


if __name__ == "__main__":
    main(globals())
