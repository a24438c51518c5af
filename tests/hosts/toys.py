"""Small models of every family that Attention Weights knows, with the rows of words that are weighed in the checks.

For scripts that test_comfyui_inprocess.py runs in ComfyUI's own Python; see inprocess.py.
"""

# pyright: reportMissingImports=false

from __future__ import annotations

import base64
import importlib
import importlib.util
import inspect
import io
import json
import random
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import cache, partial
from types import MappingProxyType, SimpleNamespace
from typing import Any, NamedTuple
from unittest.mock import patch

import torch
from inprocess import T5_SIZES, WIDTHS, draw, make_clip, tower_sizes

TEXT = "a (red:1.7) cat on a (mat:0.4), (oil painting:-0.6) in (snow:0)"
PLAIN = "a red cat on a mat, oil painting in snow"
WORDS = {"red": 1.7, "mat": 0.4, "oil": -0.6, "painting": -0.6, "snow": 0.0}
"""Words of `TEXT`; each is one piece in the vocabularies of CLIP, T5 and Qwen."""
NEGATIVE = "blurry, ugly"
SHORT_NEGATIVE = "a photo of a dog"
"""Its pieces are among the first of T5, of which small encoders have no more."""
CORPUS = [PLAIN, SHORT_NEGATIVE, "a dog", "a painting of a red dog in the snow on the mat"] * 4
"""Training texts of the small vocabularies, with all words of `WORDS`."""
LATENT = (14, 22)
"""Half of it is 7 by 11 places: 77, as many as a chunk has rows. What tells text by its shape fails."""
WIDE_LATENT = (32, 64)
"""Half of it is 16 by 32 places: 512, as many as Anima and Wan have rows of text; no shape tells them apart."""
SMALL_LATENT = (8, 16)
"""It has 128 places, as many as LTX-Video has rows of text."""
Weights = dict[int, float]
"""Weight of each row that has one, determined by hand from the words of a text: BOS is row 0."""


# ---- vocabularies that come with a checkpoint, in the formats of the real ones


def make_sentencepiece(texts: list[str], **settings: Any) -> torch.Tensor:
    """Bytes of a SentencePiece model."""
    import sentencepiece

    written = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(texts),
        model_writer=written,
        hard_vocab_limit=False,
        byte_fallback=True,
        minloglevel=2,
        **settings,
    )
    return torch.frombuffer(bytearray(written.getvalue()), dtype=torch.uint8)


@cache
def make_umt5() -> torch.Tensor:
    """A SentencePiece model of the words of our texts, as a checkpoint of UMT5 brings it."""
    words = f"{PLAIN}, {NEGATIVE}, a dog".replace(",", " ,").split()
    choose = random.Random(0).choices
    texts = [" ".join(choose(words, k=8)) for _ in range(500)]
    ids = {"pad_id": 0, "eos_id": 1, "unk_id": 2, "bos_id": -1}
    return make_sentencepiece(texts, vocab_size=320, character_coverage=1.0, num_threads=1, **ids)


def make_gemma() -> torch.Tensor:
    """A SentencePiece model with the settings of Gemma's: BPE, bytes for what is unknown, no dummy prefix."""
    return make_sentencepiece(
        CORPUS,
        model_type="bpe",
        vocab_size=330,
        pad_id=0,
        eos_id=1,
        bos_id=2,
        unk_id=3,
        add_dummy_prefix=False,
        remove_extra_whitespaces=False,
        normalization_rule_name="identity",
    )


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
    """A small tokenizer with Llama 3's special tokens, and others of Hunyuan Video's template, at their places."""
    import tokenizers
    from tokenizers import processors
    from transformers import PreTrainedTokenizerFast

    begin, end = "<|begin_of_text|>", "<|eot_id|>"
    special = {begin: 128000, "<|start_header_id|>": 128006, "<|end_header_id|>": 128007, end: 128009}
    special |= {"user": 882, "\n\n": 271, "<image>": 128257}
    described = json.loads(make_bpe().to_str())
    vocabulary = described["model"]["vocab"]
    (moved,) = (piece for piece, place in vocabulary.items() if place == special["\n\n"])
    vocabulary[moved] = 882 - 1
    taken = {*vocabulary.values(), *special.values()}
    vocabulary |= {f"<unused {place}>": place for place in range(128257) if place not in taken} | special
    bpe = tokenizers.Tokenizer.from_str(json.dumps(described))
    bpe.add_special_tokens([*special])
    bpe.post_processor = processors.TemplateProcessing(f"{begin} $A", special_tokens=[(begin, 128000)])
    return PreTrainedTokenizerFast(tokenizer_object=bpe)


# ---- text encoders

LAYERS = {"num_attention_heads": 2, "num_key_value_heads": 2, "hidden_size": 64, "intermediate_size": 128}
"""Sizes of the small language models."""
ONE_HEAD = {**LAYERS, "num_attention_heads": 1, "num_key_value_heads": 1}
CLIPS = {"SD 3": "SD3", "SD 3.5": "SD3", "SD 3 without T5": "SD3 without T5"}
"""Families with another name in `make_clip`."""


class Encoder(NamedTuple):
    """A text encoder of the host."""

    module: str
    """Module of the host that has it; an older host may not."""
    model: str
    tokenizer: str
    sizes: dict[str, dict[str, Any]]
    """By the host's names for its parts."""
    vocabularies: Mapping[str, Callable[[], torch.Tensor]] = MappingProxyType({})
    """Functions that make the vocabularies that its checkpoint brings, by the host's names for them."""
    replaced: tuple[tuple[str, str, Any], ...] = ()
    """Things of the host's modules of text encoders that are replaced while it is made: module, name and value."""
    options: Callable[[], dict[str, Any]] = dict
    """Function that gives more options of the host's for its model."""
    arguments: Mapping[str, Any] = MappingProxyType({})
    """Arguments of the host's function that makes the class of its model."""


ENCODERS = {
    "Chroma": Encoder("pixart_t5", "pixart_te", "PixArtTokenizer", {"t5xxl": T5_SIZES, "clip_t5xxl": T5_SIZES}),
    "Qwen-Image": Encoder("qwen_image", "te", "QwenImageTokenizer", {"qwen25_7b": LAYERS | {"num_hidden_layers": 2}}),
    "Z-Image": Encoder("z_image", "te", "ZImageTokenizer", {"qwen3_4b": LAYERS | {"num_hidden_layers": 3}}),
    # of its 36 layers Krea 2 takes twelve
    "Krea 2": Encoder("krea2", "te", "Krea2Tokenizer", {"qwen3vl_4b": ONE_HEAD | {"num_hidden_layers": 36}}),
    "Anima": Encoder("anima", "te", "AnimaTokenizer", {"qwen3_06b": ONE_HEAD | {"num_hidden_layers": 2}}),
    "Wan": Encoder(
        "wan", "te", "WanT5Tokenizer", {"umt5xxl": {**T5_SIZES, "vocab_size": 320}}, {"spiece_model": make_umt5}
    ),
    "LTX-Video": Encoder("lt", "ltxv_te", "LTXVT5Tokenizer", {"t5xxl": T5_SIZES}),
    "Lumina 2": Encoder(
        "lumina2",
        "te",
        "LuminaTokenizer",
        {"gemma2_2b": LAYERS | {"num_hidden_layers": 3, "vocab_size": 512}},
        {"spiece_model": make_gemma},
    ),
    "Flux 2 Klein": Encoder("flux", "klein_te", "KleinTokenizer", {"qwen3_4b": LAYERS | {"num_hidden_layers": 28}}),
    "Flux 2": Encoder(
        "flux",
        "flux2_te",
        "Flux2Tokenizer",
        {"mistral3_24b": LAYERS | {"num_hidden_layers": 30, "vocab_size": 512}},
        {"tekken_model": make_tekken},
    ),
    "HiDream": Encoder(
        "hidream",
        "hidream_clip",
        "HiDreamTokenizer",
        {"t5xxl": T5_SIZES, "llama": LAYERS | {"num_hidden_layers": 3}, **tower_sizes()},
    ),
    "Mochi": Encoder("genmo", "mochi_te", "MochiT5Tokenizer", {"t5xxl": T5_SIZES}),
    "Ovis": Encoder("ovis", "te", "OvisTokenizer", {"qwen3_2b": LAYERS | {"num_hidden_layers": 2}}),
}


def there(*families: str) -> tuple[str, ...]:
    """Those of some families whose text encoder this ComfyUI has."""

    def is_there(family: str) -> bool:
        described = ENCODERS.get("Wan" if family.startswith("Wan") else family)
        module = f"comfy.text_encoders.{described.module if described else 'sd3_clip'}"
        if importlib.util.find_spec(module) is None:
            return False
        return described is None or hasattr(importlib.import_module(module), described.tokenizer)

    return tuple(filter(is_there, families))


def weighable(*families: str) -> tuple[str, ...]:
    """Those of some families whose blocks this ComfyUI tells apart; Attention Weights refuses the others."""
    from comfy.ldm.flux import model

    tells_apart = '"block_type"' in inspect.getsource(model)
    return tuple(family for family in families if tells_apart or family in ("SD1", "SD2", "SDXL"))


def make_text_encoder(family: str, **arguments: Any) -> Any:
    """A small CLIP of a family with the host's own tokenizer."""
    import comfy.sd
    from comfy.text_encoders import flux

    family = "Wan" if family.startswith("Wan") else family
    if family not in ENCODERS:
        return make_clip(CLIPS.get(family, family))
    described = ENCODERS[family]
    theirs = importlib.import_module(f"comfy.text_encoders.{described.module}")
    with ExitStack() as replaced:
        for module, name, value in (
            # eyes, which text has no use for, have half a billion weights
            ("qwen_vl", "Qwen2VLVisionTransformer", lambda *_, **__: torch.nn.Identity()),
            ("qwen3vl", "Qwen3VLVisionModel", lambda *_, **__: torch.nn.Identity()),
            ("hunyuan_video", "LlamaTokenizerFast", SimpleNamespace(from_pretrained=read_llama)),
            *described.replaced,
        ):
            if importlib.util.find_spec(f"comfy.text_encoders.{module}"):
                where = importlib.import_module(f"comfy.text_encoders.{module}")
                replaced.enter_context(patch.object(where, name, value))
        vocabularies = {name: make() for name, make in described.vocabularies.items()}
        if family == "Flux 2":
            arguments["pruned"] = True
        if "tekken_model" in vocabularies:
            try:
                flux.load_mistral_tokenizer(make_tekken())
            except TypeError:
                replaced.enter_context(patch.object(flux, "load_mistral_tokenizer", read_tekken))
        sizes = {f"{name}_model_config": config for name, config in described.sizes.items()}
        *elsewhere, name = described.model.split(".")  # a few are in another module than their tokenizer
        model = getattr(
            importlib.import_module(f"comfy.text_encoders.{'.'.join(elsewhere)}") if elsewhere else theirs, name
        )
        tokenizer = getattr(theirs, described.tokenizer)
        if not inspect.isclass(model):
            model = model(**{**described.arguments, **arguments})
        clip = comfy.sd.CLIP(
            target=SimpleNamespace(params={}, clip=model, tokenizer=tokenizer),
            tokenizer_data=vocabularies,
            model_options={**sizes, **described.options(), "dtype": torch.float32},
        )
    draw(clip.cond_stage_model)
    return clip


def unheard(clip: Any) -> Any:
    """A CLIP whose tokenizer is of a class that nobody knows, with another method for its tokens."""
    theirs = type(clip.tokenizer)
    clip.tokenizer.__class__ = type("Unheard", (theirs,), {"tokenize_with_weights": theirs.tokenize_with_weights})
    return clip


# ---- models


class Toy(NamedTuple):
    """A diffusion model with a few narrow layers, and where its words are."""

    config: str
    """The host's class of its configuration."""
    sizes: dict[str, Any]
    keys: tuple[str, ...]
    """The host's names for the tokens whose rows the model reads, in their order."""
    num_layers: int = 2
    """Attention layers in which weights act."""
    lora: str = ""
    """Layers that a LoRA of the checks changes."""
    negative: str = NEGATIVE
    latent: tuple[int, int] = LATENT


def unet_sizes(context_dim: int, adm: int | None = None, channels: int = 64, depth: int = 2) -> dict[str, Any]:
    """Sizes of a U-Net of Stable Diffusion with two levels."""
    return {
        "image_size": 32,
        "in_channels": 4,
        "out_channels": 4,
        "model_channels": channels,
        "num_res_blocks": [1, 1],
        "channel_mult": [1, 2],
        "transformer_depth": [1, depth],
        "transformer_depth_middle": 1,
        "transformer_depth_output": [1, 1, depth, depth],
        "use_spatial_transformer": True,
        "context_dim": context_dim,
        "num_classes": None if adm is None else "sequential",
        "adm_in_channels": adm,
        "legacy": False,
    }


FLUX = {
    "axes_dim": [4, 6, 6],
    "num_heads": 2,
    "hidden_size": 32,
    "mlp_ratio": 2.0,
    "theta": 10000,
    "qkv_bias": True,
    "txt_ids_dims": [],
    "patch_size": 2,
    "depth": 2,
    "depth_single_blocks": 2,
    "context_in_dim": 64,
    "vec_in_dim": WIDTHS["l"],
}
CHROMA = {"in_dim": 64, "out_dim": 32, "hidden_dim": 48, "n_layers": 2, "in_channels": 64, "out_channels": 64}
QWEN = {
    "num_layers": 2,
    "attention_head_dim": 16,
    "num_attention_heads": 2,
    "joint_attention_dim": 64,
    "axes_dims_rope": (4, 6, 6),
}
LUMINA = {
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
Z_IMAGE = {
    **LUMINA,
    "dim": 256,  # no less, for the width of what the time step becomes
    "n_kv_heads": 2,
    "axes_dims": [32, 48, 48],
    "z_image_modulation": True,
    "time_scale": 1000.0,
    "pad_tokens_multiple": 32,
}
KREA_2 = {"features": 64, "heads": 4, "kvheads": 2, "layers": 2, "txtdim": 64, "txtheads": 4, "txtkvheads": 2}
ANIMA = {
    **{"max_img_h": 240, "max_img_w": 240, "max_frames": 128, "in_channels": 16, "out_channels": 16},
    **{"patch_spatial": 2, "patch_temporal": 1, "concat_padding_mask": True, "model_channels": 64},
    **{"num_blocks": 2, "num_heads": 4, "crossattn_emb_channels": 64, "pos_emb_cls": "rope3d"},
    **{"pos_emb_learnable": True, "use_adaln_lora": True, "adaln_lora_dim": 16, "mlp_ratio": 2.0},
}
LTX = {
    **{"num_layers": 2, "num_attention_heads": 2, "attention_head_dim": 32},
    **{"cross_attention_dim": 64, "caption_channels": 64},
}
WAN = {"dim": 48, "ffn_dim": 64, "freq_dim": 32, "text_dim": 64, "num_heads": 2, "num_layers": 2}
POOLED = WIDTHS["l"] + WIDTHS["g"]
SD3 = {
    "depth": 2,  # the width in 64ths as well
    "num_blocks": 3,
    "input_size": None,
    "adm_in_channels": POOLED,
    "context_embedder_config": {
        "target": "torch.nn.Linear",
        "params": {"in_features": 4096, "out_features": 128},
    },
    "pos_embed_max_size": 16,
    "num_patches": 256,
    "qk_norm": "rms",
    "x_block_self_attn_layers": [],
}
FLUX_2 = {
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
}
HIDREAM = {
    "patch_size": 2,
    "in_channels": 16,
    "num_layers": 2,
    "num_single_layers": 2,
    "attention_head_dim": 32,
    "num_attention_heads": 2,
    "caption_channels": [64, 64],
    "text_emb_dim": POOLED,
    "num_routed_experts": 2,
    "num_activated_experts": 2,
    "axes_dims_rope": (16, 8, 8),
    "llama_layers": [0, 1, 1, 2],
}
UNET_LORA, FLUX_LORA, WAN_LORA = r"attn2\.to_[kv]", r"attn\.(qkv|proj)", r"cross_attn\.[kv]"

wide = partial(Toy, latent=WIDE_LATENT)
later = partial(Toy, negative=SHORT_NEGATIVE)
TOYS = {
    "SD1": Toy("SD15", unet_sizes(WIDTHS["l"]), ("l",), lora=UNET_LORA),
    "SD2": Toy("SD20", unet_sizes(WIDTHS["h"]), ("h",)),
    "SDXL": Toy("SDXL", unet_sizes(POOLED, WIDTHS["g"] + 6 * 256), ("l",)),
    "Flux": Toy(
        "Flux", {**FLUX, "in_channels": 16, "out_channels": 16, "guidance_embed": True}, ("t5xxl",), 4, FLUX_LORA
    ),
    "Chroma": Toy("Chroma", {**FLUX, **CHROMA}, ("t5xxl",), 4, FLUX_LORA),
    "Qwen-Image": Toy("QwenImage", QWEN, ("qwen25_7b",), lora=r"attn\.to_[kv]"),
    "Z-Image": Toy("ZImage", Z_IMAGE, ("qwen3_4b",), lora="qkv"),
    "Krea 2": wide("Krea2", KREA_2, ("qwen3vl_4b",), lora=r"blocks.*attn\.w[kv]"),
    "Anima": wide("Anima", ANIMA, ("t5xxl",), lora=r"cross_attn\.[kv]_proj"),
    "Wan": wide("WAN21_T2V", WAN, ("umt5xxl",), lora=WAN_LORA),
    # image to video without an image reads the text twice in each of its layers; VACE has as many layers again
    "Wan image to video": wide("WAN21_I2V", WAN, ("umt5xxl",), 4),
    "Wan VACE": wide("WAN21_Vace", {**WAN, "vace_layers": 2, "vace_in_dim": 96}, ("umt5xxl",), 4),
    "Wan Camera": wide("WAN21_Camera", WAN, ("umt5xxl",), 4),
    "LTX-Video": Toy("LTXV", LTX, ("t5xxl",), lora=UNET_LORA, latent=SMALL_LATENT),
    "SD 3": later("SD3", SD3, ("l", "t5xxl"), 3),
    "SD 3.5": later("SD3", {**SD3, "x_block_self_attn_layers": [0, 2]}, ("l", "t5xxl"), 3),
    "SD 3 without T5": later("SD3", SD3, ("l",), 3),
    "HiDream": later("HiDream", HIDREAM, ("t5xxl", "llama"), 4),
    "Lumina 2": later("Lumina2", LUMINA, ("gemma2_2b",)),
    "Flux 2 Klein": later("Flux2", {**FLUX_2, "guidance_embed": False}, ("qwen3_4b",), 4),
    "Flux 2": later("Flux2", {**FLUX_2, "guidance_embed": True}, ("mistral3_24b",), 4),
}


def make_model(family: str) -> Any:
    """A MODEL of a family with a few narrow layers."""

    if family != "Anima":
        model = build(TOYS[family].config, TOYS[family].sizes)
    else:
        from comfy.ldm.anima import model as anima_model

        small = {"source_dim": 64, "target_dim": 64, "model_dim": 64, "num_layers": 2, "num_heads": 4}
        with patch.object(anima_model, "LLMAdapter", partial(anima_model.LLMAdapter, **small)):
            model = build(TOYS[family].config, TOYS[family].sizes)
    network = model.model.diffusion_model
    if family.startswith(("Flux 2", "LTX-2", "CogVideoX")):  # of many rows: so a word has a share that can be seen
        for name, parameter in network.named_parameters():
            if "query_norm" in name or "attn2.q_norm" in name or ".norm_q.weight" in name:
                parameter.data *= 3
    if family.startswith("SD 3"):
        network.pos_embed.normal_(generator=torch.Generator().manual_seed(1))
    model.model.toy = TOYS[family]  # clones of a MODEL share it
    return model


def build(config: str, sizes: dict[str, Any]) -> Any:
    """A MODEL of one of the host's configurations, with random weights."""
    from comfy import model_patcher, supported_models

    config_class = getattr(supported_models, config)
    extra = {name: value for name, value in config_class.unet_extra_config.items() if name not in sizes}
    with patch.object(config_class, "unet_extra_config", extra):
        described = config_class({**config_class.unet_config, **sizes, "dtype": torch.float32})
    cpu = torch.device("cpu")
    model = described.get_model({}, device=cpu)
    draw(model.diffusion_model)
    return model_patcher.ModelPatcher(model, load_device=cpu, offload_device=cpu)


def make_unet() -> Any:
    """A MODEL of Stable Diffusion 1 with fewer and narrower layers, for checks of what it is given."""
    return build("SD15", unet_sizes(WIDTHS["l"], channels=32, depth=1))


def sampled(
    model: Any, positive: Any, negative: Any, *, batch: int = 1, steps: int | None = None, cfg: float | None = None
) -> torch.Tensor:
    """Output of the node KSampler."""
    import nodes

    form, toy = model.model.latent_format, model.model.toy
    frames = () if form.latent_dimensions == 2 else (1,)
    latent = {"samples": torch.zeros(batch, form.latent_channels, *frames, *toy.latent)}
    if toy.config == "LTXAV":  # and its sound
        from comfy.nested_tensor import NestedTensor

        latent = {"samples": NestedTensor((latent["samples"], torch.zeros(batch, 8, 5, 16)))}
    is_unet = hasattr(model.model.diffusion_model, "input_blocks")
    steps, cfg = steps or (3 if is_unet else 2), cfg or (4.0 if is_unet else 2.0)
    scheduler = "normal" if is_unet else "simple"
    drawn = nodes.KSampler().sample(model, 1, steps, cfg, "euler", scheduler, positive, negative, latent)[0]["samples"]
    return torch.cat([one.flatten(1) for one in drawn.unbind()], 1) if drawn.is_nested else drawn


def rows_by_hand(family: str, clip: Any, text: str = PLAIN, words: dict[str, float] = WORDS) -> Weights:
    """Weight of each row of a text, from the pieces that the host's tokenizers name, in words of their own."""
    tokens = clip.tokenize(text)
    found: Weights = {}
    start = 0
    for key in TOYS[family].keys:
        inner = getattr(clip.tokenizer, key, None) or getattr(clip.tokenizer, f"clip_{key}")
        ids = [pair[0] for chunk in tokens[key] for pair in chunk]
        pieces = [inner.inv_vocab.get(token_id, "").replace("</w>", "").strip("▁Ġ") for token_id in ids]
        if family in (
            "Qwen-Image",
            "Krea 2",
            "Hunyuan Video 1.5",
            "Hunyuan Image 2.1",
            "Kandinsky 5",
            "Kandinsky 5 Image",
        ):
            # after the second turn and its heading: <|im_start|> user \n
            pieces = pieces[[place for place, piece in enumerate(pieces) if piece == "<|im_start|>"][1] + 3 :]
        if family == "Hunyuan Video":  # after the user's heading and a blank line
            pieces = pieces[pieces.index("user") + 3 :]
        if getattr(inner, "pad_left", False):  # the host takes the padding away
            pieces = pieces[next(place for place, token_id in enumerate(ids) if token_id != inner.pad_token) :]
        rows = {piece: start + row for row, piece in enumerate(pieces)}  # of a piece that a template has too, the last
        found |= {rows[word]: weight for word, weight in words.items()}
        start += len(ids)
    return found
