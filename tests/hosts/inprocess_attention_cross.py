"""Checks of Weigh Attention on Krea 2, Anima and Wan, small, and of its way ``krea2`` compared with ComfyUI-KJNodes.

Run by test_comfyui_inprocess.py in ComfyUI's own Python; see inprocess.py.
"""

# pyright: reportMissingImports=false

from __future__ import annotations

import importlib
import importlib.util
import io
import random
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from functools import cache, partial
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
from inprocess import CLOSE, T5_SIZES, compares, draw, main, make_lora, pack_of, refusal, run_ours, stock
from inprocess_attention import NEGATIVE, NODE, PLAIN, TEXT, Weights, is_close, logged, rel, weighed
from inprocess_attention_joint import WORDS
from inprocess_attention_joint import sampled as sampled_at
from inprocess_families import (
    Toys,
    layouts,
    read_out,
    weight_one_is_stock,
    weights_equal_ones_written_out,
    weights_stay_with_their_entry,
)

FAMILIES = ("Krea 2", "Anima", "Wan", "Wan image to video", "Wan VACE", "Wan Camera")
TEXT_ENCODERS = FAMILIES[:3]
"""Families of a text encoder each."""
LATENT = (32, 64)
"""Half of it is 16 by 32 places: 512, as many as Anima and Wan have rows of text; no shape tells them apart."""
WIDTH = 64

sampled = partial(sampled_at, size=LATENT)


# ---- models


@cache
def vocabulary() -> torch.Tensor:
    """A sentencepiece model of the words of our texts, as a checkpoint of UMT5 brings it."""
    import sentencepiece

    words = f"{PLAIN}, {NEGATIVE}, a dog".replace(",", " ,").split()
    choose = random.Random(0).choices
    written = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter([" ".join(choose(words, k=8)) for _ in range(500)]),
        model_writer=written,
        vocab_size=320,
        hard_vocab_limit=False,
        byte_fallback=True,
        character_coverage=1.0,
        num_threads=1,
        minloglevel=2,
        pad_id=0,
        eos_id=1,
        unk_id=2,
        bos_id=-1,
    )
    return torch.frombuffer(bytearray(written.getvalue()), dtype=torch.uint8)


def make_text_encoder(family: str) -> Any:
    """A small CLIP of a family with the host's own tokenizer."""
    import comfy.sd

    module, tokenizer = {"Krea 2": ("krea2", "Krea2Tokenizer"), "Anima": ("anima", "AnimaTokenizer")}.get(
        family, ("wan", "WanT5Tokenizer")
    )
    theirs = importlib.import_module(f"comfy.text_encoders.{module}")  # not all of them in an older ComfyUI
    qwen = {"hidden_size": WIDTH, "intermediate_size": 128, "num_attention_heads": 1, "num_key_value_heads": 1}
    sizes = {
        "qwen3vl_4b": {**qwen, "num_hidden_layers": 36},  # of which Krea 2 takes twelve
        "qwen3_06b": {**qwen, "num_hidden_layers": 2},
        "umt5xxl": {**T5_SIZES, "vocab_size": 320},
    }
    with without_eyes() if family == "Krea 2" else nullcontext():
        clip = comfy.sd.CLIP(
            target=SimpleNamespace(params={}, clip=theirs.te(), tokenizer=getattr(theirs, tokenizer)),
            tokenizer_data={"spiece_model": vocabulary()},
            model_options={f"{name}_model_config": config for name, config in sizes.items()} | {"dtype": torch.float32},
        )
    draw(clip.cond_stage_model)
    return clip


def without_eyes() -> Any:
    """Makes a Qwen3-VL without what sees, which text has no use for."""
    from comfy.text_encoders import qwen3vl

    return patch.object(qwen3vl, "Qwen3VLVisionModel", lambda *_, **__: torch.nn.Identity())


def make_model(family: str) -> Any:
    """A MODEL of a family with a few narrow layers."""
    from comfy import model_patcher, supported_models
    from comfy.ldm.anima import model as anima_model

    krea2 = {"features": 64, "heads": 4, "kvheads": 2, "layers": 2, "txtdim": WIDTH, "txtheads": 4, "txtkvheads": 2}
    anima = {
        **{"max_img_h": 240, "max_img_w": 240, "max_frames": 128, "in_channels": 16, "out_channels": 16},
        **{"patch_spatial": 2, "patch_temporal": 1, "concat_padding_mask": True, "model_channels": 64},
        **{"num_blocks": 2, "num_heads": 4, "crossattn_emb_channels": WIDTH, "pos_emb_cls": "rope3d"},
        **{"pos_emb_learnable": True, "use_adaln_lora": True, "adaln_lora_dim": 16, "mlp_ratio": 2.0},
    }
    wan = {"dim": 48, "ffn_dim": 64, "freq_dim": 32, "text_dim": WIDTH, "num_heads": 2, "num_layers": 2}
    config_class, sizes = {
        "Krea 2": (supported_models.Krea2, krea2),
        "Anima": (supported_models.Anima, anima),
        "Wan": (supported_models.WAN21_T2V, wan),
        "Wan image to video": (supported_models.WAN21_I2V, wan),
        "Wan VACE": (supported_models.WAN21_Vace, {**wan, "vace_layers": 2, "vace_in_dim": 96}),
        "Wan Camera": (supported_models.WAN21_Camera, wan),
    }[family]
    config = config_class({**config_class.unet_config, **sizes, "dtype": torch.float32})
    cpu = torch.device("cpu")
    small = {"source_dim": WIDTH, "target_dim": WIDTH, "model_dim": WIDTH, "num_layers": 2, "num_heads": 4}
    with patch.object(anima_model, "LLMAdapter", partial(anima_model.LLMAdapter, **small)):
        model = config.get_model({}, device=cpu)
    draw(model.diffusion_model)
    return model_patcher.ModelPatcher(model, load_device=cpu, offload_device=cpu)


def with_image(conditioning: Any) -> Any:
    """A conditioning with what CLIP sees in an image, for image to video."""
    import node_helpers

    states = torch.randn(1, 257, 1280, generator=torch.Generator().manual_seed(7))
    values = {"clip_vision_output": SimpleNamespace(penultimate_hidden_states=states)}
    return node_helpers.conditioning_set_values(conditioning, values)


# ---- written out


@contextmanager
def written_out(model: Any, how: str, *texts: tuple[Any, Weights]) -> Iterator[None]:
    """The attention of a MODEL that reads text written out, with weights for the rows of known encodings.

    Which attention that is, is known here from its place in the model.
    """
    from comfy.ldm.cosmos import predict2
    from comfy.ldm.flux.math import apply_rope
    from comfy.ldm.krea2 import model as krea2_model
    from comfy.ldm.wan import model as wan_model

    network = model.model.diffusion_model
    forward = network.forward
    weights = torch.ones(1, 1)
    known = [(rows_read(network, conditioning), by_row) for conditioning, by_row in texts]

    def note(x: torch.Tensor, timestep: torch.Tensor, context: torch.Tensor, *rest: Any, **named: Any) -> torch.Tensor:
        nonlocal weights
        weights = torch.ones(context.shape[:2], dtype=torch.float64)
        for index, one in enumerate(context):
            for rows, by_row in known:
                if torch.equal(one, rows):
                    for row, weight in by_row.items():
                        weights[index, row] = weight
        return forward(x, timestep, context, *rest, **named)

    def split(tensor: torch.Tensor, heads: int) -> torch.Tensor:
        return tensor.unflatten(-1, (heads, -1)).transpose(1, 2)

    def wan_cross(self: Any, x: Any, context: Any, transformer_options: Any = None, **named: Any) -> torch.Tensor:
        heads, length = self.num_heads, named.get("context_img_len")
        has_eyes = hasattr(self, "k_img")
        text = context[:, length:] if has_eyes else context
        q = split(self.norm_q(self.q(x)), heads)
        k, v = self.norm_k(self.k(text)), self.v(text)
        read = read_out(q, split(k, heads), split(v, heads), how, weights)
        if has_eyes:
            image = context[:, :length]
            k, v = self.norm_k_img(self.k_img(image)), self.v_img(image)
            own = weights if length is None else torch.ones(len(context), 0, dtype=torch.float64)
            read = read + read_out(q, split(k, heads), split(v, heads), how, own)
        return self.o(read)

    cosmos = predict2.Attention.forward

    def anima_cross(self: Any, x: Any, context: Any = None, **named: Any) -> torch.Tensor:
        if self.is_selfattn:
            return cosmos(self, x, context, **named)
        q, k, v = (
            split(part(tensor), self.n_heads)
            for part, tensor in ((self.q_proj, x), (self.k_proj, context), (self.v_proj, context))
        )
        return self.output_proj(read_out(self.q_norm(q), self.k_norm(k), v, how, weights))

    krea2 = krea2_model.Attention.forward
    joint = {id(block.attn) for block in getattr(network, "blocks", ()) if hasattr(block, "attn")}
    refined = {id(block.attn) for block in getattr(getattr(network, "txtfusion", None), "refiner_blocks", ())}

    def krea2_joint(self: Any, x: Any, freqs: Any = None, mask: Any = None, **named: Any) -> torch.Tensor:
        if id(self) not in joint | refined:
            return krea2(self, x, freqs, mask, **named)
        own = weights if id(self) in joint else torch.where((weights == 0) & (how == "bias"), 0.0, 1.0).double()
        q, k = self.qknorm(split(self.wq(x), self.heads), split(self.wk(x), self.kvheads))
        if freqs is not None:
            q, k = apply_rope(q, k, freqs)
        k, v = (each.repeat_interleave(self.heads // self.kvheads, 1) for each in (k, split(self.wv(x), self.kvheads)))
        return self.wo(read_out(q, k, v, how, own) * torch.sigmoid(self.gate(x)))

    replaced = {
        wan_model.WanT2VCrossAttention: wan_cross,
        wan_model.WanI2VCrossAttention: wan_cross,
        predict2.Attention: anima_cross,
        krea2_model.Attention: krea2_joint,
    }
    with ExitStack() as stack:
        stack.enter_context(patch.object(network, "forward", note))
        for attention, by_hand in replaced.items():
            stack.enter_context(patch.object(attention, "forward", by_hand))
        yield


def rows_read(network: Any, conditioning: Any) -> torch.Tensor:
    """The rows of text that a model gets of a stock conditioning; Anima's makes them itself."""
    ((rows, values),) = conditioning
    if "t5xxl_ids" in values:
        ids, weights = values["t5xxl_ids"][None], values["t5xxl_weights"][None, :, None]
        rows = network.preprocess_text_embeds(rows, ids, t5xxl_weights=weights)
        assert rows.shape[1] == 512
    return rows[0]


def rows_by_hand(family: str, clip: Any, text: str = PLAIN, words: dict[str, float] = WORDS) -> Weights:
    """Weight of each row of a text, from the pieces that the host's tokenizer names, in words of their own."""
    key = {"Krea 2": "qwen3vl_4b", "Anima": "t5xxl"}.get(family, "umt5xxl")
    inner = getattr(clip.tokenizer, key, None) or getattr(clip.tokenizer, f"clip_{key}")
    (pairs,) = clip.tokenize(text)[key]
    pieces = [inner.inv_vocab[pair[0]].replace("▁", "").replace("Ġ", "") for pair in pairs]
    if family == "Krea 2":
        # after the second turn and its heading: <|im_start|> user \n
        pieces = pieces[[place for place, piece in enumerate(pieces) if piece == "<|im_start|>"][1] + 3 :]
    found = {row: words[piece] for row, piece in enumerate(pieces) if piece in words}
    assert len(found) == len(words), (pieces, found)
    return found


TOYS = Toys(make_text_encoder, make_model, rows_by_hand, written_out, sampled)


# ---- what is drawn


@compares("Weigh Attention at weight 1, Krea 2, Anima and Wan, small, with stock")
def check_cross_families_at_weight_one_are_stock() -> None:
    weight_one_is_stock(TOYS, TEXT_ENCODERS)


@compares(
    "Weigh Attention on Krea 2, Anima and Wan (text, image, VACE and Camera to video), small, "
    "KSampler, with a softmax written out, likewise",
    limit=CLOSE,
)
def check_weighed_cross_families_equal_one_written_out() -> None:
    weights_equal_ones_written_out(TOYS, FAMILIES, ("value", "krea2", "bias"))


@compares("The same on Wan with an image that CLIP saw, likewise", limit=CLOSE)
def check_an_image_to_be_moved_is_read_without_weights() -> None:
    for family in ("Wan image to video", "Wan Camera"):
        clip, model = make_text_encoder(family), make_model(family)
        plain, negative = with_image(stock(clip, PLAIN)), with_image(stock(clip, NEGATIVE))
        without = sampled(model, plain, negative)
        for how in ("value", "bias"):
            with written_out(model, how, (plain, rows_by_hand(family, clip))):
                reference = sampled(model, plain, negative)
            ours = sampled(model, with_image(weighed(clip, how=how)), negative)
            is_close(ours, reference, without, f"{family}, {how}")


@compares("The same on Krea 2 with a reference image, likewise", limit=CLOSE)
def check_reference_images_behind_the_text_are_none_of_it() -> None:
    import node_helpers

    clip, model = make_text_encoder("Krea 2"), make_model("Krea 2")
    images = [torch.randn(1, 16, 1, 16, 16, generator=torch.Generator().manual_seed(8))]

    def with_images(conditioning: Any) -> Any:
        return node_helpers.conditioning_set_values(conditioning, {"reference_latents": images})

    plain, negative = with_images(stock(clip, PLAIN)), stock(clip, NEGATIVE)
    with written_out(model, "bias", (plain, rows_by_hand("Krea 2", clip))):
        reference = sampled(model, plain, negative)
    is_close(sampled(model, with_images(weighed(clip)), negative), reference, sampled(model, plain, negative))


@compares("Krea 2, Anima and Wan in masks, two conditionings, time ranges and batches, likewise", limit=CLOSE)
def check_cross_weights_stay_with_their_entry() -> None:
    weights_stay_with_their_entry(TOYS, TEXT_ENCODERS, layouts(LATENT, left=30))


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


# ---- together with other packs


@compares("Krea 2, Anima and Wan with LoRA hooks, likewise", limit=CLOSE)
def check_cross_weights_and_lora_hooks_act_together() -> None:
    import comfy.hooks

    layers = {"Krea 2": r"blocks.*attn\.w[kv]", "Anima": r"cross_attn\.[kv]_proj", "Wan": r"cross_attn\.[kv]"}
    for family, pattern in layers.items():
        clip, model = make_text_encoder(family), make_model(family)
        plain, negative = stock(clip, PLAIN), stock(clip, NEGATIVE)
        lora = make_lora(model.model, pattern)
        hooked, _, hooks = comfy.hooks.load_hook_lora_for_models(model, None, lora, 1.0, 0.0)

        def with_lora(conditioning: Any, hooks: Any = hooks) -> Any:
            return comfy.hooks.set_hooks_for_conditioning(conditioning, hooks)

        with written_out(model, "bias", (plain, rows_by_hand(family, clip))):
            reference = sampled(hooked, with_lora(plain), negative)
        without = sampled(hooked, with_lora(plain), negative)
        assert rel(without, sampled(model, plain, negative)) > 100 * CLOSE
        ours = sampled(hooked, with_lora(weighed(clip)), negative)
        is_close(ours, reference, without, family)


@compares("Krea 2, Anima and Wan, positive and negative weighed, with another pack's attention, likewise", limit=CLOSE)
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


@compares("Krea 2, Anima and Wan compiled, likewise", limit=CLOSE)
def check_compiled_cross_families_are_weighed_as_well() -> None:
    from comfy_api.torch_helpers import set_torch_compile_wrapper

    for family in TEXT_ENCODERS:
        clip, model = make_text_encoder(family), make_model(family)
        plain, negative = stock(clip, PLAIN), stock(clip, NEGATIVE)
        with written_out(model, "bias", (plain, rows_by_hand(family, clip))):
            reference = sampled(model, plain, negative)
        without = sampled(model, plain, negative)
        for keys in (["diffusion_model"], [f"diffusion_model.blocks.{index}" for index in range(2)]):
            compiled = model.clone()
            set_torch_compile_wrapper(compiled, backend="eager", keys=keys)
            is_close(sampled(compiled, weighed(clip), negative), reference, without, family)


@compares(
    "Weigh Attention at krea2 on Krea 2, small, one pass, with Krea2PromptWeight of ComfyUI-KJNodes, likewise",
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
    without = forward(model, plain)
    for text in (
        "a (red:1.7) cat on a (mat:0.4), (oil painting:-0.6) in (snow:0)",
        "a (red:0.5) cat on a mat, oil (painting:-1) in snow",
        "a red (cat:1.2) on a mat, oil painting in (snow:2.5)",
    ):
        for strength in (1.0, 0.5, 1.6):
            reference_model, conditioning = theirs.Krea2PromptWeight().encode(clip, model, text, strength)
            assert torch.equal(conditioning[0][0], plain[0][0])
            ours = forward(model, weighed(clip, text, how="krea2", strength=strength))
            is_close(ours, forward(reference_model, conditioning), without, text)
    assert torch.equal(forward(model, plain), without)


def forward(model: Any, positive: Any) -> torch.Tensor:
    """One pass: theirs weighs the negative as well, so there is none."""
    import nodes

    latent = {"samples": torch.zeros(1, 16, 1, *LATENT)}
    return nodes.KSampler().sample(model, 1, 1, 1.0, "euler", "simple", positive, positive, latent)[0]["samples"]


def check_cross_families_say_what_acts_and_refuse_what_does_not() -> None:
    import nodes

    for family in FAMILIES:
        clip, model = make_text_encoder(family), make_model(family)
        negative = stock(clip, NEGATIVE)
        conditioning, report, _ = run_ours(NODE, clip=clip, text=TEXT)["result"]
        rows = rows_by_hand(family, clip)
        for word in ("red", "mat", "snow"):
            (row,) = [row for row, weight in rows.items() if weight == WORDS[word]]
            assert f"{word!r} {WORDS[word]:g}: row {row}" in report, report
        # image to video without an image reads the text twice in each of its layers; VACE has as many layers again
        layers = 2 if family in TEXT_ENCODERS else 4
        assert logged(lambda m=model, c=conditioning, n=negative: sampled(m, c, n)) == [
            f"Weigh Attention: {len(rows)} rows in {layers} attention layers"
        ]
        view = run_ours(NODE, clip=clip, text="a pain(ting:2) BREAK cat", syntax="a1111")["ui"]["weighted_clip"][0]
        assert [issue["code"] for issue in view["issues"]] == ["one-token"]
        assert view["chunks"][0]["chips"][-1]["text"] == "cat"
        if family == "Krea 2":
            moving = model.clone()
            moving.set_model_patch(lambda inputs: inputs, "post_input")
            assert "post_input" in refusal(lambda m=moving, c=conditioning, n=negative: sampled(m, c, n))
        if family == "Wan":
            replacing = model.clone()
            forward_of = model.model.diffusion_model.blocks[1].cross_attn.forward
            replacing.add_object_patch("diffusion_model.blocks.1.cross_attn.forward", partial(forward_of))
            assert "NAG" in refusal(lambda m=replacing, c=conditioning, n=negative: sampled(m, c, n))
            sampled(model, conditioning, negative)  # it was the other's alone
            # a character that is not a piece is spelled in three bytes, after its own space
            assert "'猫' 2: rows 2-4" in run_ours(NODE, clip=clip, text="a (猫:2) cat")["result"][1]
        if family in ("Krea 2", "Wan"):
            (joined,) = nodes.ConditioningConcat().concat(conditioning, negative)
            assert "has changed them" in refusal(lambda m=model, c=joined, n=negative: sampled(m, c, n))
        message = refusal(lambda clip=clip: run_ours("WeightedCLIPMaskControl", clip=clip, text="a cat"))
        title = family if family == "Krea 2" else family.split()[0]
        assert f"for weights in {title} the node Weigh Attention" in message, message


if __name__ == "__main__":
    main(globals())
