"""Checks of Weigh Attention if a word is in several places, or the vocabulary comes with the checkpoint.

Stable Diffusion 3, Lumina 2, Flux 2 and HiDream, small. Run by test_comfyui_inprocess.py in ComfyUI's own Python; see
inprocess.py.
"""

# pyright: reportMissingImports=false

from __future__ import annotations

import base64
import importlib
import io
import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
from inprocess import CLOSE, T5_SIZES, WIDTHS, compares, draw, main, make_clip, refusal, run_ours, stock
from inprocess_attention import NODE, PLAIN, TEXT, Weights, is_close, logged, weighed
from inprocess_attention_joint import LATENT, WORDS
from inprocess_families import (
    Toys,
    layouts,
    read_out,
    weight_one_is_stock,
    weights_equal_ones_written_out,
    weights_stay_with_their_entry,
)

OF_EVERY_HOST = ("SD 3", "SD 3.5", "SD 3 without T5", "HiDream")
"""Families of every host. Some blocks of Stable Diffusion 3.5 Medium have an attention of the image alone as well."""
FAMILIES = (*OF_EVERY_HOST, "Lumina 2", "Flux 2 Klein", "Flux 2")
NEGATIVE = "a photo of a dog"
"""Its pieces are among the first of T5, of which small encoders have no more."""
CORPUS = [PLAIN, NEGATIVE, "a dog", "a painting of a red dog in the snow on the mat"] * 4
"""Training texts of the small vocabularies, with all words of `WORDS`."""
LAYERS = {"num_attention_heads": 2, "num_key_value_heads": 2, "hidden_size": 64, "intermediate_size": 128}
"""Sizes of the small language models."""


def families() -> tuple[str, ...]:
    """Those that this ComfyUI has, and whose blocks it tells apart."""
    from comfy import supported_models

    return FAMILIES if hasattr(supported_models, "Flux2") else OF_EVERY_HOST


# ---- vocabularies that come with a checkpoint, in the formats of the real ones


def make_sentencepiece() -> torch.Tensor:
    """Bytes of a SentencePiece model with the settings of Gemma's: BPE, bytes for what is unknown, no dummy prefix."""
    import sentencepiece

    written = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(CORPUS),
        model_writer=written,
        model_type="bpe",
        vocab_size=330,
        hard_vocab_limit=False,
        pad_id=0,
        eos_id=1,
        bos_id=2,
        unk_id=3,
        byte_fallback=True,
        add_dummy_prefix=False,
        remove_extra_whitespaces=False,
        normalization_rule_name="identity",
        minloglevel=2,
    )
    return torch.ByteTensor(list(written.getvalue()))


def make_bpe() -> Any:
    """A BPE of bytes learnt from `CORPUS`, words with the space before them."""
    import tokenizers
    from tokenizers import decoders, models, pre_tokenizers, trainers

    bpe = tokenizers.Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    bpe.train_from_iterator(CORPUS, trainers.BpeTrainer(vocab_size=400, initial_alphabet=alphabet, show_progress=False))
    return bpe


def make_tekken() -> torch.Tensor:
    """Bytes of a small vocabulary in the format of Mistral's."""
    from tokenizers import pre_tokenizers

    def as_bytes(piece: str) -> bytes:
        return bytes(byte_of[character] for character in piece)

    shown = {chr(byte) for byte in (*range(33, 127), *range(161, 173), *range(174, 256))}
    hidden = [byte for byte in range(256) if chr(byte) not in shown]
    byte_of = {character: ord(character) for character in shown}
    byte_of |= {chr(256 + index): byte for index, byte in enumerate(hidden)}
    assert byte_of.keys() == set(pre_tokenizers.ByteLevel.alphabet())
    learnt = [as_bytes(piece) for piece in make_bpe().get_vocab()]
    pieces = sorted(learnt, key=lambda piece: (len(piece), piece))
    special = ["<unk>", "<s>", "</s>", "[INST]", "[/INST]", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]"]
    special += [f"<SPECIAL_{index}>" for index in range(len(special), 11)] + ["<pad>"]
    vocabulary = {
        "config": {
            "default_vocab_size": len(pieces) + len(special),
            "pattern": r" ?\p{L}+| ?\p{N}| ?[^\s\p{L}\p{N}]+|\s+",
        },
        "special_tokens": [{"rank": rank, "token_str": token} for rank, token in enumerate(special)],
        "vocab": [{"rank": rank, "token_bytes": base64.b64encode(piece).decode()} for rank, piece in enumerate(pieces)],
    }
    return torch.ByteTensor(list(json.dumps(vocabulary).encode()))


def read_tekken(data: torch.Tensor) -> dict[str, Any]:
    """A tokenizer of `make_tekken`, where the host's own reader does not go with its transformers (from 5.20 or so)."""
    import tokenizers
    from tokenizers import processors

    bpe = make_bpe()
    special = [one["token_str"] for one in json.loads(data.numpy().tobytes())["special_tokens"]]
    described = json.loads(bpe.to_str())
    vocabulary = {token: place for place, token in enumerate(special)}
    vocabulary |= {piece: place + len(special) for piece, place in bpe.get_vocab().items()}
    described["model"]["vocab"] = vocabulary
    bpe = tokenizers.Tokenizer.from_str(json.dumps(described))
    bpe.add_special_tokens(special)
    bpe.post_processor = processors.TemplateProcessing("<s> $A", special_tokens=[("<s>", 1)])
    return {"tokenizer_object": bpe, "legacy": False}


def read_llama(*_: Any, **__: Any) -> Any:
    """A small tokenizer with Llama 3's special tokens, at their places."""
    import tokenizers
    from tokenizers import processors
    from transformers import PreTrainedTokenizerFast

    begin, end = "<|begin_of_text|>", "<|eot_id|>"
    described = json.loads(make_bpe().to_str())
    vocabulary = described["model"]["vocab"]
    vocabulary |= {f"<unused {place}>": place for place in range(len(vocabulary), 128009)}
    del vocabulary["<unused 128000>"]
    vocabulary |= {begin: 128000, end: 128009}
    bpe = tokenizers.Tokenizer.from_str(json.dumps(described))
    bpe.add_special_tokens([begin, end])
    bpe.post_processor = processors.TemplateProcessing(f"{begin} $A", special_tokens=[(begin, 128000)])
    return PreTrainedTokenizerFast(tokenizer_object=bpe)


# ---- models


def small_sizes() -> dict[str, Any]:
    """Sizes in the form that the host expects for text encoders."""
    sizes: dict[str, Any] = {
        f"clip_{tower}_model_config": {
            "num_hidden_layers": 4,
            "hidden_size": width,
            "num_attention_heads": width // 64,
            "intermediate_size": 2 * width,
        }
        for tower, width in WIDTHS.items()
    }
    return sizes | {
        "t5xxl_model_config": T5_SIZES,
        "gemma2_2b_model_config": LAYERS | {"num_hidden_layers": 3, "vocab_size": 512},
        "qwen3_4b_model_config": LAYERS | {"num_hidden_layers": 28},
        "mistral3_24b_model_config": LAYERS | {"num_hidden_layers": 30, "vocab_size": 512},
        "llama_model_config": LAYERS | {"num_hidden_layers": 3},
    }


def make_text_encoder(family: str) -> Any:
    """A small CLIP of a family with the host's own tokenizer."""
    import comfy.sd
    from comfy.text_encoders import flux, hidream, hunyuan_video, lumina2

    if family.startswith("SD 3"):
        return make_clip("SD3 without T5" if "without" in family else "SD3")
    module, model, tokenizer = {
        "Lumina 2": (lumina2, "te", "LuminaTokenizer"),
        "Flux 2 Klein": (flux, "klein_te", "KleinTokenizer"),
        "Flux 2": (flux, "flux2_te", "Flux2Tokenizer"),
        "HiDream": (hidream, "hidream_clip", "HiDreamTokenizer"),
    }[family]
    readers = ExitStack()
    readers.enter_context(
        patch.object(hunyuan_video, "LlamaTokenizerFast", SimpleNamespace(from_pretrained=read_llama))
    )
    if family == "Flux 2":
        try:
            flux.load_mistral_tokenizer(make_tekken())
        except TypeError:
            readers.enter_context(patch.object(flux, "load_mistral_tokenizer", read_tekken))
    with readers:
        clip = comfy.sd.CLIP(
            target=SimpleNamespace(
                params={},
                clip=getattr(module, model)(**({"pruned": True} if family == "Flux 2" else {})),
                tokenizer=getattr(module, tokenizer),
            ),
            tokenizer_data={"spiece_model": make_sentencepiece(), "tekken_model": make_tekken()},
            model_options={**small_sizes(), "dtype": torch.float32},
        )
    draw(clip.cond_stage_model)
    return clip


def make_model(family: str) -> Any:
    """A MODEL of a family with a few narrow layers."""
    from comfy import model_patcher, supported_models

    pooled = WIDTHS["l"] + WIDTHS["g"]
    sd3 = {
        "depth": 2,  # the width in 64ths as well
        "num_blocks": 3,
        "input_size": None,
        "adm_in_channels": pooled,
        "context_embedder_config": {
            "target": "torch.nn.Linear",
            "params": {"in_features": 4096, "out_features": 128},
        },
        "pos_embed_max_size": 16,
        "num_patches": 256,
        "qk_norm": "rms",
        "x_block_self_attn_layers": [0, 2] if family == "SD 3.5" else [],
    }
    lumina = {
        "in_channels": 16,
        "dim": 64,
        "n_layers": 2,
        "n_refiner_layers": 2,
        "n_heads": 2,
        "n_kv_heads": 1,
        "axes_dims": [8, 12, 12],
        "axes_lens": [512, 64, 64],
        "qk_norm": True,
        "cap_feat_dim": 64,
    }
    flux2 = {
        "image_model": "flux2",
        "in_channels": 128,
        "out_channels": 128,
        "axes_dim": [4, 4, 4, 4],
        "num_heads": 2,
        "hidden_size": 32,
        "mlp_ratio": 3.0,
        "theta": 2000,
        "qkv_bias": False,
        "ops_bias": False,
        "txt_ids_dims": [3],
        "patch_size": 1,
        "depth": 2,
        "depth_single_blocks": 2,
        "context_in_dim": 192,
        "vec_in_dim": None,
        "global_modulation": True,
        "mlp_silu_act": True,
        "guidance_embed": family == "Flux 2",
    }
    hidream = {
        "patch_size": 2,
        "in_channels": 16,
        "num_layers": 2,
        "num_single_layers": 2,
        "attention_head_dim": 32,
        "num_attention_heads": 2,
        "caption_channels": [64, 64],
        "text_emb_dim": pooled,
        "num_routed_experts": 2,
        "num_activated_experts": 2,
        "axes_dims_rope": (16, 8, 8),
        "llama_layers": [0, 1, 1, 2],
    }
    name, sizes = next(
        (name, sizes)
        for name, sizes in (("SD3", sd3), ("Lumina2", lumina), ("Flux2", flux2), ("HiDream", hidream))
        if family.replace(" ", "").startswith(name)
    )
    config_class = getattr(supported_models, name)
    config = config_class({**config_class.unet_config, **sizes, "dtype": torch.float32})
    cpu = torch.device("cpu")
    model = config.get_model({}, device=cpu)
    draw(model.diffusion_model)
    for name, parameter in model.diffusion_model.named_parameters():
        if "query_norm" in name:  # of Flux 2, whose text has 512 rows: a word has a share that can be seen
            parameter.data *= 3
    if family.startswith("SD 3"):
        model.diffusion_model.pos_embed.normal_(generator=torch.Generator().manual_seed(1))
    return model_patcher.ModelPatcher(model, load_device=cpu, offload_device=cpu)


def sampled(model: Any, positive: Any, negative: Any, *, batch: int = 1, steps: int = 2) -> torch.Tensor:
    """Output of the node KSampler."""
    import nodes

    latent = {"samples": torch.zeros(batch, model.model.latent_format.latent_channels, *LATENT)}
    return nodes.KSampler().sample(model, 1, steps, 2.0, "euler", "simple", positive, negative, latent)[0]["samples"]


# ---- the reference


@contextmanager
def written_out(model: Any, how: str, *texts: tuple[Any, Weights], skipped: tuple[int, ...] = ()) -> Iterator[None]:
    """All attention of a MODEL written out, in float64, with weights for the rows of known encodings.

    Attentions are identified by the order of the network's own layers; ``skipped`` are blocks of Stable Diffusion 3
    that do not run.
    """
    from comfy.ldm.flux import math as flux_math
    from comfy.ldm.hidream import model as hidream_model
    from comfy.ldm.lumina import model as lumina_model
    from comfy.ldm.modules.diffusionmodules import mmdit

    network = model.model.diffusion_model
    forward = network.forward
    weights = torch.ones(1, 1)
    parts: list[str] = []
    order = [f"{part} alone" for part in ("text", "image") for _ in getattr(network, "context_refiner", ())]
    order += ["both"] * len([*getattr(network, "layers", ()), *getattr(network, "double_blocks", ())])
    order += ["both"] * len(getattr(network, "single_blocks", ()))
    for index, block in enumerate(getattr(network, "joint_blocks", ())):
        if index not in skipped:
            order += ["both", "image alone"] if block.x_block.x_block_self_attn else ["both"]
    order += ["image first"] * (getattr(network, "num_layers", 0) + getattr(network, "num_single_layers", 0))

    def note(x: torch.Tensor, timestep: torch.Tensor, context: torch.Tensor, **named: Any) -> torch.Tensor:
        nonlocal weights
        assert not parts
        parts[:] = order
        llama = named.get("encoder_hidden_states_llama3")
        num_rows = context.shape[1] + (0 if llama is None else llama.shape[2])
        weights = torch.ones(len(context), num_rows, dtype=torch.float64)
        for index, one in enumerate(context):
            for conditioning, by_row in texts:
                rows = conditioning[0][0][0]
                start = len(one) - len(rows)  # Flux 2 has rows of zeros in front
                if torch.equal(one[start:], rows):
                    assert not one[:start].any()
                    for row, weight in by_row.items():
                        weights[index, start + row] = weight
        if llama is not None:
            weights = torch.cat([weights, weights[:, context.shape[1] :]], 1)
        return forward(x, timestep, context=context, **named)

    def attend(q: Any, k: Any, v: Any, heads: int, mask: Any = None, skip_reshape: bool = False, **_: Any) -> Any:
        assert mask is None
        if not skip_reshape:
            q, k, v = (one.reshape(*one.shape[:2], heads, -1).transpose(1, 2) for one in (q, k, v))
        part = parts.pop(0)
        own = torch.where(weights == 0, 0.0, 1.0).double() if part == "text alone" else weights
        if part == "image alone" or (part == "text alone" and how == "value"):
            own = torch.ones(len(q), 0)
        num_others = k.shape[2] - own.shape[1]
        assert part == "text alone" or num_others >= 35, "the image, or an area of it, is missing"
        if part == "image first":
            own = torch.cat([torch.ones(len(own), num_others), own], 1)
        return read_out(q, k, v, how, own)

    with (
        patch.object(flux_math, "optimized_attention", attend),
        patch.object(hidream_model, "optimized_attention", attend),
        patch.object(lumina_model, "optimized_attention_masked", attend),
        patch.object(mmdit, "optimized_attention", attend),
        patch.object(network, "forward", note),
    ):
        yield


def rows_by_hand(family: str, clip: Any, text: str = PLAIN) -> Weights:
    """Weight of each row of `TEXT`, from the pieces that the host's tokenizers name, in words of their own."""
    tokens = clip.tokenize(text)
    keys = {"SD 3": ["l", "t5xxl"], "SD 3.5": ["l", "t5xxl"], "SD 3 without T5": ["l"], "HiDream": ["t5xxl", "llama"]}
    found: Weights = {}
    start = 0
    for key in keys.get(family, tokens):
        inner = getattr(clip.tokenizer, key, None) or getattr(clip.tokenizer, f"clip_{key}")
        ids = [pair[0] for chunk in tokens[key] for pair in chunk]
        pieces = [inner.inv_vocab.get(token_id, "").replace("</w>", "").strip("▁Ġ") for token_id in ids]
        rows = {
            piece: start + row for row, piece in enumerate(pieces)
        }  # of a piece that the template has too, the last
        found |= {rows[word]: weight for word, weight in WORDS.items()}
        start += len(ids)
    return found


TOYS = Toys(make_text_encoder, make_model, rows_by_hand, written_out, sampled, NEGATIVE)


# ---- checks


@compares("Weigh Attention at weight 1, SD3, Lumina 2, Flux 2 and HiDream, small, with stock")
def check_other_families_at_weight_one_are_stock() -> None:
    weight_one_is_stock(TOYS, families())


@compares(
    "Weigh Attention on SD3, SD3.5, Lumina 2, Flux 2 and HiDream, small, KSampler, with a softmax "
    "written out, likewise",
    limit=CLOSE,
)
def check_weights_in_other_families_equal_ones_written_out() -> None:
    weights_equal_ones_written_out(TOYS, families(), ("value", "bias"))


@compares("The same in areas, masks, two conditionings, time ranges and batches, likewise", limit=CLOSE)
def check_weights_in_other_families_stay_with_their_entry() -> None:
    import nodes

    def area(one: Any, two: Any) -> Any:
        return [*nodes.ConditioningSetArea().append(one, 88, 112, 0, 0, 1.0)[0], *two]

    weights_stay_with_their_entry(TOYS, families(), {"areas": area, **layouts(LATENT, left=12)})


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

    with written_out(model, "bias", (plain, rows_by_hand("SD 3.5", clip))):
        reference = sampled(model, plain, negative)
    is_close(sampled(with_patch(0, call), weighed(clip), negative), reference, sampled(model, plain, negative))
    assert called
    skipping = with_patch(0, lambda block, extra: block)
    with written_out(model, "bias", (plain, rows_by_hand("SD 3.5", clip)), skipped=(0,)):
        reference = sampled(skipping, plain, negative)
    without = sampled(skipping, plain, negative)
    is_close(sampled(skipping, weighed(clip), negative), reference, without)


@compares("The same on SD3.5, compiled, likewise", limit=CLOSE)
def check_a_compiled_stable_diffusion_3_is_weighed_as_well() -> None:
    from comfy_api.torch_helpers import set_torch_compile_wrapper

    clip, model = make_text_encoder("SD 3.5"), make_model("SD 3.5")
    plain, negative = stock(clip, PLAIN), stock(clip, NEGATIVE)
    with written_out(model, "bias", (plain, rows_by_hand("SD 3.5", clip))):
        reference = sampled(model, plain, negative)
    compiled = model.clone()
    set_torch_compile_wrapper(compiled, backend="eager")
    is_close(sampled(compiled, weighed(clip), negative), reference, sampled(compiled, plain, negative))


@compares("The same on Lumina 2, as many rows as patches, likewise", limit=CLOSE)
def check_as_many_rows_as_patches_do_not_confuse_lumina() -> None:
    clip, model = make_text_encoder("Lumina 2"), make_model("Lumina 2")
    if "Lumina 2" not in families():
        assert "too old to tell" in refusal(lambda: sampled(model, weighed(clip), stock(clip, NEGATIVE)))
        return
    filler = next(" a" * count for count in range(100) if stock(clip, PLAIN + " a" * count)[0][0].shape[1] == 77)
    plain, negative = stock(clip, PLAIN + filler), stock(clip, NEGATIVE)
    with written_out(model, "bias", (plain, rows_by_hand("Lumina 2", clip, PLAIN + filler))):
        reference = sampled(model, plain, negative)
    is_close(sampled(model, weighed(clip, TEXT + filler), negative), reference, sampled(model, plain, negative))


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
        with written_out(model, "bias", (plain, rows)):
            reference = sampled(model, plain, negative)
        without = sampled(model, plain, negative)
        is_close(sampled(model, conditioning, negative), reference, without, family)


def check_encoders_that_are_not_loaded_leave_no_gap() -> None:
    import comfy.sd
    from comfy.text_encoders import hidream, hunyuan_video

    rows = run_ours(NODE, clip=make_clip("SD3 with T5 alone"), text="a (red:2) cat")
    assert "'red' 2: row 2" in rows["result"][1]  # T5 has two pieces for the first "a"
    for missing, found in (("llama", "row 2"), ("t5", "row 130")):
        with patch.object(hunyuan_video, "LlamaTokenizerFast", SimpleNamespace(from_pretrained=read_llama)):
            clip = comfy.sd.CLIP(
                target=SimpleNamespace(
                    params={}, clip=hidream.hidream_clip(**{missing: False}), tokenizer=hidream.HiDreamTokenizer
                ),
                model_options={**small_sizes(), "dtype": torch.float32},
            )
        draw(clip.cond_stage_model)
        assert f"'red' 2: {found}" in run_ours(NODE, clip=clip, text="a (red:2) cat")["result"][1], missing


def check_every_byte_of_a_character_is_weighed() -> None:
    """SentencePiece gives a position only for the last byte of a character that it has no piece for."""
    clip = make_text_encoder("Lumina 2")
    report = run_ours(NODE, clip=clip, text="a (猫:2) d\u00f6g, (\U0001f600:0.5)")["result"][1]
    # <s>, a, the space, three bytes; the space, d, two bytes, g, the comma, the space, four bytes
    assert "'猫' 2: rows 3-5" in report and "'\U0001f600' 0.5: rows 13-16" in report, report


def check_other_families_say_what_acts_and_refuse_what_does_not() -> None:
    import nodes

    num_layers = {"Lumina 2": 2, "Flux 2 Klein": 4, "Flux 2": 4, "HiDream": 4}
    for family in families():
        clip, model = make_text_encoder(family), make_model(family)
        negative = stock(clip, NEGATIVE)
        conditioning, report, _ = run_ours(NODE, clip=clip, text=TEXT)["result"]
        rows = rows_by_hand(family, clip)
        for word in ("red", "mat", "snow"):
            found = [str(row) for row, weight in rows.items() if weight == WORDS[word]]
            assert f"{word!r} {WORDS[word]:g}: row{'s' if len(found) > 1 else ''} {', '.join(found)}\n" in report, (
                report
            )
        assert logged(lambda m=model, c=conditioning, n=negative: sampled(m, c, n)) == [
            f"Weigh Attention: {len(rows)} rows in {num_layers.get(family, 3)} attention layers"
        ]
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
        assert f"expects {conditioning[0][0].shape[1]} rows of text in each block" in message, message


def check_the_ruler_shows_the_same_tokens_while_typing() -> None:
    import nodes

    ruler = importlib.import_module(f"{nodes.NODE_CLASS_MAPPINGS[NODE].__module__.rpartition('.')[0]}.routes")
    inspection = importlib.import_module(f"{ruler.__name__.removesuffix('.nodes.routes')}.web.inspection")
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
