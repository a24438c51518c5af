"""Checks of our nodes on CLIPs without a CLIP text tower: T5 and Qwen, small, with the host's own tokenizers.

Run by test_comfyui_inprocess.py in ComfyUI's own Python; see inprocess.py.
"""

# pyright: reportMissingImports=false

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
from inprocess import (
    CLOSE,
    TEXTS,
    WORDS,
    compares,
    difference,
    issues_in,
    main,
    make_clip,
    ours,
    pack_module,
    refusal,
    run_ours,
    stock,
)
from inprocess_attention import draws_as_written_out
from toys import make_model, make_text_encoder, sampled, there, unheard

NODE = "WeightedCLIPTextEncode"
WEIGH = "WeightedCLIPWeighAttention"
WEIGHING = ("Chroma", "SD3 with T5 alone")
READING = ("Qwen-Image", "Z-Image")
PHRASES = {
    "WeightedCLIPMaskControl": {"hidden_from": "everything"},
    "WeightedCLIPBindPhrases": {"rest": "full"},
}
"""Inputs without a default."""
TEXT = r"a (red:1.3) cat, (photo:1.2)graph of \(it\), embedding:nothing"
PLAIN = "a red cat, photograph of (it), embedding:nothing"


def chips(result: dict[str, Any]) -> list[tuple[str, str]]:
    return [(chip["text"], chip["note"]) for chip in result["ui"]["weighted_clip"][0]["chunks"][0]["chips"]]


@compares("T5 alone, Chroma's and SD3's, small, with stock")
def check_encoders_that_weigh_rows_equal_stock() -> None:
    for family in WEIGHING:
        clip = make_text_encoder(family)
        for text in TEXTS if "SD3" in family else (*TEXTS, TEXT):  # which has a small vocabulary
            difference(ours(clip, text), stock(clip, text))
        for scheme in ("unweighted", "comfy") if family == "Chroma" else ():
            expected = stock(clip, r"a cat \(on a mat:0.4\)")
            difference(ours(clip, "a cat (on a mat:0.4)", syntax="none", scheme=scheme), expected)
        difference(ours(clip, "a (cat:0.4)", scheme="unweighted"), stock(clip, "a cat"))


@compares("T5 alone, prompts in A1111's and compel's syntax, with stock and the same weights in its own")
def check_other_syntaxes_are_weighed_like_the_same_weights_in_comfys() -> None:
    for family in WEIGHING:
        clip = make_text_encoder(family)
        for syntax, text, same in (
            ("a1111", "a ((red)) [cat] on <lora:x:1>", f"a (red:{1.1 * 1.1!r}) (cat:{1 / 1.1!r}) on "),
            ("compel", "a (red)1.5 cat++", f"a (red:1.5) (cat:{1.1**2!r})"),
        ):
            difference(ours(clip, text, syntax=syntax), stock(clip, same))


@compares("Qwen-Image's Qwen, and Z-Image's where it is there, small, with stock and the prompt without its syntax")
def check_encoders_that_read_weights_as_text_get_the_prompt_without_them() -> None:
    for family in there(*READING):
        clip = make_text_encoder(family)
        for scheme in ("comfy", "unweighted"):
            result = run_ours(NODE, clip=clip, text=TEXT, scheme=scheme)
            difference(result["result"][0], stock(clip, PLAIN))
            codes = [issue["code"] for issue in issues_in(result)]
            assert codes == ["weights-left-out"] * (scheme == "comfy"), codes
        assert "Attention Weights applies them" in run_ours(NODE, clip=clip, text=TEXT)["result"][1]
        for text in ("a red cat", "", "a (red:1) cat, [dog]"):
            result = run_ours(NODE, clip=clip, text=text)
            assert [issue["code"] for issue in issues_in(result)] == ["foreign-syntax"] * ("[" in text)
            expected = stock(clip, text.replace("(red:1)", "red"))
            difference(result["result"][0], expected)
        # as typed
        difference(ours(clip, TEXT, syntax="none"), stock(clip, TEXT))


@compares("T5 and Qwen, timed prompts, with stock and each text")
def check_prompts_that_change_are_encoded_text_by_text() -> None:
    for family in there(*WEIGHING, *READING):
        clip = make_text_encoder(family)
        conditioning = run_ours("WeightedCLIPA1111Encode", clip=clip, text="a [cat:dog:0.5]")["result"][0]
        assert len(conditioning) == 2
        for (rows, values), text in zip(conditioning, ("a cat", "a dog"), strict=True):
            ((expected, stock_values),) = stock(clip, text)
            assert values.keys() == {*stock_values, WORDS, "start_percent", "end_percent"}
            difference(rows, expected)


@compares("Mochi's T5, and Ovis's Qwen where it is there, small, with stock")
def check_unknown_encoders_are_left_to_comfyui() -> None:
    for family in there("Mochi", "Ovis"):
        clip, is_weighing = unheard(make_text_encoder(family)), family == "Mochi"
        result = run_ours(NODE, clip=clip, text=TEXT)
        difference(result["result"][0], stock(clip, TEXT if is_weighing else PLAIN))
        assert result["ui"]["weighted_clip"][0]["notes"] == ["encoded as by ComfyUI's own node"]
        assert "encoded as by ComfyUI's own node" in result["result"][1]
        assert [issue["code"] for issue in issues_in(result)] == ["weights-left-out"] * (not is_weighing)


def check_the_encoders_own_tokens_are_shown() -> None:
    chroma = run_ours(NODE, clip=make_text_encoder("Chroma"), text="a (photo:1.2)graph BREAK of it")
    assert chips(chroma)[:3] == [("a", "×2"), ("photo", "1.2"), ("graph", "")]
    (view,) = chroma["ui"]["weighted_clip"]
    assert view["notes"] == ["ComfyUI's own node weighs rows here"]
    assert view["chunks"][0]["capacity"] is None
    qwen = run_ours(NODE, clip=make_text_encoder("Qwen-Image"), text="a photo BREAK of it", syntax="a1111")
    assert chips(qwen) == [("a", ""), ("photo", ""), ("of", ""), ("it", "")]
    assert [issue["code"] for issue in issues_in(qwen)] == ["break-is-a-space"]
    assert qwen["ui"]["weighted_clip"][0]["notes"] == ["ComfyUI's own node reads weights as text here"]
    assert "4 tokens" in qwen["result"][1]


def check_what_is_shown_while_typing_is_what_a_run_shows() -> None:
    import nodes

    ruler, inspection = pack_module("nodes.base.routes"), pack_module("web.inspection")
    ruler_nodes = ruler.ruler_nodes({name: nodes.NODE_CLASS_MAPPINGS[name] for name in (NODE, WEIGH)})
    for family in there("Flux", "Chroma", "Krea 2", "Anima", *READING):
        clip = make_text_encoder(family)
        for node in (NODE, WEIGH) if family != "Flux" else (WEIGH,):
            bracketed = TEXT.partition(", embedding")[0]
            for text, syntax in ((bracketed, "comfy"), ("a ((red)) [cat] BREAK", "a1111"), ("", "compel")):
                (run,) = run_ours(node, clip=clip, text=text, syntax=syntax)["ui"]["weighted_clip"]
                asked = {"node": node, "text": text, "values": {"syntax": syntax}, "encoder": run["encoder"]}
                reader = inspection.reader_of(asked, ruler_nodes)
                (typed,) = inspection.inspect(inspection.request_of(asked, ruler_nodes), [], reader)["views"]
                assert typed == {key: run[key] for key in typed}, (family, typed, run)
                assert typed["encoder"].endswith("Tokenizer") and typed["notes"]
    # its vocabulary is in the checkpoint
    (run,) = run_ours(WEIGH, clip=make_text_encoder("Wan"), text="a cat")["ui"]["weighted_clip"]
    asked = {"node": WEIGH, "text": "a cat", "values": {}, "encoder": run["encoder"]}
    assert run["encoder"].endswith("WanT5Tokenizer") and inspection.reader_of(asked, ruler_nodes) is None


def with_embeddings(folder: Path) -> Any:
    """A small Flux CLIP with an embedding of three vectors for T5, and for Qwen, and one of a wrong width."""
    from safetensors.torch import save_file

    generator = torch.Generator().manual_seed(3)
    vectors = torch.randn(3, 64, generator=generator)
    style = {"t5xxl": vectors, "qwen3_4b": vectors.clone(), "clip_l": torch.randn(1, 128, generator=generator)}
    save_file(style, folder / "style.safetensors")
    save_file({"t5xxl": torch.ones(1, 32), "clip_l": torch.ones(1, 128)}, folder / "narrow.safetensors")
    clip = make_clip("Flux", embeddings=folder)
    clip.tokenizer.t5xxl.embedding_size = 64
    return clip


@compares(
    "Attention Weights on Flux, small, with embeddings for T5, with a softmax written out, relative to the largest",
    limit=CLOSE,
)
def check_rows_of_embeddings_are_counted_and_weighed() -> None:
    model = make_model("Flux")
    with TemporaryDirectory() as name:
        clip = with_embeddings(Path(name))
        negative = stock(clip, "")
        for text, plain, weight in (
            ("a embedding:style, (red:1.7) cat", "a embedding:style, red cat", 1.0),
            ("a (embedding:style:0.4) (red:1.7)", "a embedding:style red", 0.4),
            ("embedding:style embedding:style (red:1.7)", "embedding:style embedding:style red", 1.0),
        ):
            (pairs,) = clip.tokenize(plain)["t5xxl"]
            red = clip.tokenizer.t5xxl.tokenizer.convert_tokens_to_ids("▁red")
            vectors = [row for row, (token, _) in enumerate(pairs) if isinstance(token, torch.Tensor)]
            (word,) = [row for row, (token, _) in enumerate(pairs) if row not in vectors and token == red]
            weights = {**dict.fromkeys(vectors, weight), word: 1.7}
            assert len(vectors) == 3 * plain.count("embedding")
            result = run_ours(WEIGH, clip=clip, text=text)
            conditioning, report, _ = result["result"]
            encoded = stock(clip, plain)
            assert torch.equal(conditioning[0][0], encoded[0][0]), text
            assert "'red' 1.7: row" in report, report
            draws_as_written_out(model, conditioning, encoded, negative, (encoded, weights), name=text)
        report = run_ours(WEIGH, clip=clip, text="a (embedding:style:0.4)")["result"][1]
        assert "'embedding:style' 0.4: rows 2-4" in report, report
        assert ("embedding:style", "×3") in chips(run_ours(WEIGH, clip=clip, text="a embedding:style cat"))
        z_image = make_text_encoder("Z-Image")
        inner = z_image.tokenizer.qwen3_4b
        inner.embedding_directory, inner.embedding_size = [name], 64
        result = run_ours(WEIGH, clip=z_image, text="a (embedding:style:0.4), (red:2) cat")
        space = ("#220", "")  # of the part before the embedding
        style = ("embedding:style", "×3 0.4")
        assert chips(result) == [("a", ""), space, style, (",", ""), ("red", "2"), ("cat", "")]
        assert torch.equal(result["result"][0][0][0], stock(z_image, "a embedding:style, red cat")[0][0])
        anima = make_text_encoder("Anima")
        anima.tokenizer.t5xxl.embedding_directory, anima.tokenizer.t5xxl.embedding_size = [name], 64
        message = refusal(lambda: run_ours(WEIGH, clip=anima, text="a embedding:style (cat:2)"))
        assert "takes no embeddings with Anima" in message
        for name, message in (("nothing", "no embedding “nothing” for t5xxl"), ("narrow", "32 wide, t5xxl takes 64")):
            assert message in refusal(lambda name=name: run_ours(WEIGH, clip=clip, text=f"a embedding:{name} (cat:2)"))


@compares("Chroma's T5, small, with embeddings, with stock")
def check_embeddings_in_t5_alone_equal_stock() -> None:
    with TemporaryDirectory() as name:
        embeddings = with_embeddings(Path(name)).tokenizer.t5xxl.embedding_directory
        clip = make_text_encoder("Chroma")
        inner = clip.tokenizer.clip_t5xxl
        inner.embedding_directory, inner.embedding_size = embeddings, 64
        for text, codes in (
            ("a (embedding:style:1.3), (red:0.5) cat", []),
            ("a embedding:nothing cat", ["unknown-embedding"]),
            ("a embedding:narrow cat", ["unusable-embedding"]),
        ):
            result = run_ours(NODE, clip=clip, text=text)
            difference(result["result"][0], stock(clip, text))
            assert [issue["code"] for issue in issues_in(result)] == codes
        assert chips(run_ours(NODE, clip=clip, text="(embedding:style:1.3), a cat"))[0] == ("embedding:style", "×3 1.3")


def check_what_takes_a_clip_text_tower_is_refused_by_name() -> None:
    for family in there(*WEIGHING, *READING):
        clip = make_text_encoder(family)

        def message(node: str = NODE, clip: Any = clip, **inputs: Any) -> str:
            return refusal(lambda: run_ours(node, **{"clip": clip, "text": "a (cat:0.5)", **inputs}))

        assert "The scheme masked_blend takes a CLIP text encoder" in message(scheme="masked_blend")
        assert "The scheme masked_blend" in message("WeightedCLIPMaskedBlend", text="a (cat:0.5)")
        assert "The scheme a1111" in message("WeightedCLIPA1111Encode")
        for name, value in (
            ("padding", "mask"),
            ("padding", "clean"),
            ("normalization", "mean"),
            ("pooled", "weighted"),
        ):
            assert f"“{name} {value}”" in message(**{name: value}, text="a cat")
        for node in ("WeightedCLIPMaskControl", "WeightedCLIPBindPhrases"):
            assert "holds no CLIP text encoder, only: " in message(node, text="a cat", **PHRASES[node])
        run_ours(NODE, clip=clip, text="a cat", scheme="masked_blend")  # without weights all schemes are one


def told(action: Callable[[], Any]) -> dict[str, str]:
    """Messages to the nodes on the page within the context, by node."""
    found: dict[str, str] = {}

    def send(event: str, data: dict[str, str], client: str) -> None:
        assert (event, client) == ("weighted_clip.weighed", "me")
        found[data["node"]] = data["text"]

    server = SimpleNamespace(PromptServer=SimpleNamespace(instance=SimpleNamespace(client_id="me", send_sync=send)))
    with patch.dict(sys.modules, {"server": server}):
        action()
    return found


def check_nodes_are_told_where_their_weights_acted() -> None:
    import nodes

    clip, model = make_clip("SD1"), make_model("SD1")
    num_layers = sum(name.endswith("attn2") for name, _ in model.model.diffusion_model.named_modules())

    def weigh(text: str, node_id: str | None, **more: Any) -> Any:
        return run_ours(WEIGH, clip=clip, text=text, unique_id=node_id, **more)["result"]

    red, two = weigh("a (red:1.5) cat", "7")[0], weigh("an (oil painting:0.5)", "3:9")[0]
    without = weigh("a (blue:1.5) cat", None)[0]
    one, more = f"1 row in {num_layers} attention layers", f"2 rows in {num_layers} attention layers"
    assert told(lambda: sampled(model, red, two)) == {"7": one, "3:9": more}
    assert told(lambda: sampled(model, [*red, *without], stock(clip, ""), batch=2)) == {"7": one}
    area = nodes.ConditioningSetArea()
    placed = [*area.append(red, 64, 64, 0, 0, 1.0)[0], *area.append(two, 64, 64, 64, 0, 1.0)[0]]
    assert told(lambda: sampled(model, placed, stock(clip, ""))) == {"7": one, "3:9": more}
    assert told(lambda: sampled(model, stock(clip, ""), stock(clip, ""))) == {}
    conditioning, _, with_wrappers = weigh("a (red:1.5) cat", "8", model=model)
    assert told(lambda: sampled(with_wrappers, conditioning, two)) == {"8": one, "3:9": more}
    never = nodes.ConditioningSetTimestepRange().set_range(red, 1.0, 1.0)[0]
    assert told(lambda: sampled(model, [*never, *two], stock(clip, ""))) == {"3:9": more}


def check_weights_that_would_be_lost_are_an_error() -> None:
    import comfy.hooks

    clip, model = make_clip("SD1"), make_model("SD1")
    conditioning = run_ours(WEIGH, clip=clip, text="a (red:1.5) cat")["result"][0]
    group = comfy.hooks.HookGroup()
    group.add(comfy.hooks.TransformerOptionsHook({"another": 1}))
    replaced = comfy.hooks.set_hooks_for_conditioning(conditioning, group, append_hooks=False)
    assert "would be lost" in refusal(lambda: sampled(model, replaced, stock(clip, "")))
    added = comfy.hooks.set_hooks_for_conditioning(conditioning, group, append_hooks=True)
    sampled(model, added, stock(clip, ""))
    elsewhere = run_ours(WEIGH, clip=clip, text="a (red:1.5) cat", model=model)["result"]
    assert "Sample with the MODEL output" in refusal(lambda: sampled(model, elsewhere[0], stock(clip, "")))
    sampled(elsewhere[2], elsewhere[0], stock(clip, ""))
    sampled(model, stock(clip, "a"), stock(clip, ""))


if __name__ == "__main__":
    main(globals())
