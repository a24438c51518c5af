"""Small models of further families of pictures, added to those of toys.py.

For scripts that test_comfyui_inprocess.py runs in ComfyUI's own Python; see inprocess.py.
"""

# pyright: reportMissingImports=false

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import Any

import torch
from inprocess import T5_SIZES
from toys import (
    CHROMA,
    CORPUS,
    ENCODERS,
    FLUX,
    LAYERS,
    LUMINA,
    ONE_HEAD,
    PLAIN,
    QWEN,
    SHORT_NEGATIVE,
    TOYS,
    WORDS,
    Z_IMAGE,
    Encoder,
    Toy,
    Weights,
    make_gemma,
    make_tekken,
    rows_by_hand,
    there,
)

# ---- text encoders


def make_gpt_oss() -> torch.Tensor:
    """A small vocabulary of GPT-OSS in the file that its checkpoint brings, with the words of Lens's template."""
    import tokenizers
    from comfy.text_encoders import gpt_oss
    from tokenizers import decoders, models, pre_tokenizers, trainers

    bpe = tokenizers.Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    special = ["<|start|>", "<|message|>", "<|end|>", "<|channel|>"]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=1000, initial_alphabet=alphabet, special_tokens=special, show_progress=False
    )
    bpe.train_from_iterator([*CORPUS, *4 * [gpt_oss._lens_render_chat("")]], trainer)
    return torch.frombuffer(bytearray(bpe.to_str().encode()), dtype=torch.uint8)


def gpt_oss_options() -> dict[str, Any]:
    """Sizes of a small GPT-OSS, of which Lens takes four layers."""
    from comfy import ops

    class Experts(ops.mixed_precision_ops({}, torch.float32).MoEExperts):
        """The host's, whose weights are there without a checkpoint."""

        def __init__(self, num_experts: int, in_features: int, out_features: int, **settings: Any) -> None:
            super().__init__(num_experts, in_features, out_features, **settings)
            del self.weight
            self.weight = torch.nn.Parameter(torch.empty(num_experts, out_features, in_features))

    class Operations(ops.manual_cast):
        MoEExperts = Experts

    sizes = {
        **{"hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 4, "num_attention_heads": 4},
        **{"num_key_value_heads": 2, "head_dim": 16, "num_local_experts": 4, "num_experts_per_tok": 2},
        "vocab_size": 1024,
    }
    return {"gpt_oss_config": sizes, "selected_layers": (0, 1, 2, 3), "custom_operations": Operations}


def make_jina() -> torch.Tensor:
    """A SentencePiece model for the CLIP of NewBie, whose pooled vector its model reads."""
    from toys import make_sentencepiece

    return make_sentencepiece(CORPUS, vocab_size=330, bos_id=0, pad_id=1, eos_id=2, unk_id=3)


TWO = LAYERS | {"num_hidden_layers": 2}
ALL = ONE_HEAD | {"num_hidden_layers": 36}
"""As many layers as the real one has, of which Ideogram 4 takes thirteen."""
GEMMA = LAYERS | {"num_hidden_layers": 3, "vocab_size": 512}
SMALL_JINA = {
    **{"vocab_size": 512, "type_vocab_size": 1, "hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2},
    **{"rotary_emb_base": 20000.0, "intermediate_size": 64, "hidden_act": "gelu", "hidden_dropout_prob": 0.1},
    **{"attention_probs_dropout_prob": 0.1, "layer_norm_eps": 1e-05, "pad_token_id": 1},
}
"""Sizes of NewBie's CLIP, which the host would take from those of Gemma."""

ENCODERS |= {
    "Mage-Flow": Encoder("mage_flow", "te", "MageFlowTokenizer", {"qwen3vl_4b": TWO}),
    "Boogu": Encoder("boogu", "te", "BooguTokenizer", {"qwen3vl_8b": TWO}),
    "Ideogram 4": Encoder("ideogram4", "te_qwen3vl", "Ideogram4Qwen3VLTokenizer", {"qwen3vl_8b": ALL}),
    "Ideogram 4 without eyes": Encoder("ideogram4", "te", "Ideogram4Tokenizer", {"qwen3vl_8b": ALL}),
    "OmniGen 2": Encoder("omnigen2", "te", "Omnigen2Tokenizer", {"qwen25_3b": TWO}),
    "HiDream-O1": Encoder("hidream_o1", "HiDreamO1TE", "HiDreamO1Tokenizer", {}),
    "Ernie-Image": Encoder("ernie", "te", "ErnieTokenizer", {"ministral3_3b": GEMMA}, {"tekken_model": make_tekken}),
    "LongCat-Image": Encoder("longcat_image", "te", "LongCatImageTokenizer", {"qwen25_7b": TWO}),
    "Lens": Encoder(
        *("gpt_oss", "lens_te", "LensTokenizer", {}, {"tokenizer_json": make_gpt_oss}),
        options=gpt_oss_options,
    ),
    "JoyImage": Encoder("joyimage", "te", "JoyImageTokenizer", {"qwen3vl_8b": TWO}),
    "PixelDiT": Encoder(
        "pixeldit", "pixeldit_te", "PixelDiTGemma2Tokenizer", {"gemma2_2b": GEMMA}, {"spiece_model": make_gemma}
    ),
    "Ovis-Image": ENCODERS["Ovis"],
    "NewBie": Encoder(
        *("newbie", "te", "NewBieTokenizer", {"": GEMMA}),
        {"gemma_spiece_model": make_gemma, "jina_spiece_model": make_jina},
        (("jina_clip_2", "XLMRobertaConfig", lambda **_: SimpleNamespace(**SMALL_JINA)),),
    ),
    "AuraFlow": Encoder("aura_t5", "AuraT5Model", "AuraT5Tokenizer", {"pile_t5xl": T5_SIZES}),
    "Cosmos Predict 2": Encoder("cosmos", "te", "CosmosT5Tokenizer", {"t5xxl": T5_SIZES}),
}
for other, family in (
    ("Cosmos 1", "Cosmos Predict 2"),
    ("Chroma Radiance", "Chroma"),
    ("PixArt", "Chroma"),
    ("Z-Image in pixels", "Z-Image"),
):
    ENCODERS[other] = ENCODERS[family]


# ---- models

MAGE_FLOW = {**QWEN, "in_channels": 128, "out_channels": 128}
OMNIGEN = {
    **{"hidden_size": 48, "num_layers": 2, "num_refiner_layers": 2, "num_attention_heads": 4, "num_kv_heads": 2},
    **{"multiple_of": 8, "axes_dim_rope": (4, 4, 4), "axes_lens": (512, 64, 64), "in_channels": 16, "patch_size": 2},
}
IDEOGRAM = {
    **{"num_layers": 2, "num_attention_heads": 2, "attention_head_dim": 32, "intermediate_size": 64},
    **{"adaln_dim": 32, "llm_features_dim": 13 * 64, "mrope_section": (6, 5, 5)},
}
HIDREAM_O1 = {
    "text_config_overrides": {
        **{"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2},
        **{"num_key_value_heads": 1, "head_dim": 32, "rope_dims": [6, 5, 5]},
    },
    "vision_config_overrides": {
        **{"hidden_size": 32, "num_heads": 2, "intermediate_size": 32, "depth": 1, "num_position_embeddings": 16},
        "deepstack_visual_indexes": (),
    },
}
ERNIE = {
    **{"hidden_size": 32, "num_attention_heads": 2, "num_layers": 2, "ffn_hidden_size": 64, "text_in_dim": 64},
    "rope_axes_dim": (4, 6, 6),
}
LENS = {
    **{"num_layers": 2, "attention_head_dim": 16, "num_attention_heads": 2, "enc_hidden_dim": 64},
    **{"axes_dims_rope": (4, 6, 6), "selected_layer_index": (0, 1, 2, 3)},
}
JOY = {"hidden_size": 32, "num_attention_heads": 2, "text_dim": 64, "num_layers": 2, "rope_dim_list": [4, 6, 6]}
PIXELDIT = {
    **{"num_groups": 2, "hidden_size": 32, "pixel_hidden_size": 8, "pixel_attn_hidden_size": 32},
    **{"pixel_num_groups": 2, "patch_depth": 2, "pixel_depth": 1, "patch_size": 4, "txt_embed_dim": 64},
}
RADIANCE = {
    **{"in_channels": 3, "out_channels": 3, "patch_size": 4, "nerf_hidden_size": 8, "nerf_mlp_ratio": 1},
    **{"nerf_depth": 1, "nerf_max_freqs": 2, "nerf_tile_size": 0, "nerf_final_head_type": "conv"},
    **{"nerf_embedder_dtype": torch.float32, "use_x0": False, "use_sequential_txt_ids": True},
}
PIXELS = {"in_channels": 3, "patch_size": 4, "decoder_hidden_size": 32, "decoder_num_res_blocks": 1}
AURA = {
    "n_layers": 3,
    "n_double_layers": 1,
    "dim": 64,
    "n_heads": 2,
    "global_conddim": 64,
    "max_seq": 256,
    "cond_seq_dim": 64,
}
COSMOS = {
    **{"max_img_h": 240, "max_img_w": 240, "max_frames": 128, "in_channels": 16, "out_channels": 16},
    **{"patch_spatial": 2, "patch_temporal": 1, "model_channels": 64, "num_blocks": 2, "num_heads": 4},
    **{"crossattn_emb_channels": 64, "pos_emb_cls": "rope3d", "use_adaln_lora": True, "adaln_lora_dim": 16},
    "mlp_ratio": 2.0,
}
LEARNABLE = {"extra_per_block_abs_pos_emb_type": "learnable", "affline_emb_norm": True}
PIXART = {
    "hidden_size": 48,
    "num_heads": 2,
    "depth": 2,
    "caption_channels": 64,
    "in_channels": 4,
    "patch_size": 2,
    "micro_condition": False,
}
FLUX_WITHOUT_CLIP = {**FLUX, "in_channels": 16, "out_channels": 16, "vec_in_dim": None, "guidance_embed": False}
LARGE = (28, 44)
"""A picture of pixels, of which a patch has 4 by 4; the host divides by zero in smaller latents of PixArt."""

later = partial(Toy, negative=SHORT_NEGATIVE)
TOYS_OF_PICTURES = {
    "Mage-Flow": later("MageFlow", MAGE_FLOW, ("qwen3vl_4b",)),
    "Boogu": later("Boogu", {**OMNIGEN, "num_double_stream_layers": 2, "instruction_feat_dim": 64}, ("qwen3vl_8b",), 4),
    "Ideogram 4": later("Ideogram4", IDEOGRAM, ("qwen3vl_8b",)),
    "Ideogram 4 without eyes": later("Ideogram4", IDEOGRAM, ("qwen3vl_8b",)),
    "OmniGen 2": later("Omnigen2", {**OMNIGEN, "text_feat_dim": 64}, ("qwen25_3b",)),
    "HiDream-O1": later("HiDreamO1", HIDREAM_O1, ("hidream_o1",), latent=(7 * 32, 11 * 32)),
    "Ernie-Image": later("ErnieImage", ERNIE, ("ministral3_3b",)),
    "LongCat-Image": later("LongCatImage", {**FLUX_WITHOUT_CLIP, "txt_ids_dims": [1, 2]}, ("qwen25_7b",), 4),
    "Lens": later("Lens", LENS, ("gpt_oss",)),
    "JoyImage": later("JoyImage", JOY, ("qwen3vl_8b",)),
    "PixelDiT": later("PixelDiTT2I", PIXELDIT, ("gemma2_2b",), latent=LARGE),
    "Ovis-Image": later(
        "Flux",
        {**FLUX_WITHOUT_CLIP, "txt_ids_dims": [1, 2], "yak_mlp": True, "txt_norm": True},
        ("qwen3_2b",),
        4,
    ),
    "NewBie": later("Lumina2", {**LUMINA, "clip_text_dim": 64}, ("gemma",)),
    "Chroma Radiance": later("ChromaRadiance", {**FLUX, **CHROMA, **RADIANCE}, ("t5xxl",), 4, latent=LARGE),
    "Z-Image in pixels": later("ZImagePixelSpace", {**Z_IMAGE, **PIXELS}, ("qwen3_4b",), latent=LARGE),
    "AuraFlow": later("AuraFlow", AURA, ("pile_t5xl",), 3),
    "Cosmos 1": later(
        "CosmosT2V",
        {**COSMOS, "block_x_format": "THWBD", "extra_per_block_abs_pos_emb": True, **LEARNABLE},
        ("t5xxl",),
    ),
    "Cosmos Predict 2": later("CosmosT2IPredict2", COSMOS, ("t5xxl",)),
    "PixArt": later("PixArtSigma", PIXART, ("t5xxl",), lora=r"cross_attn\.kv_linear", latent=LARGE),
}
TOYS |= TOYS_OF_PICTURES
FAMILIES = tuple(TOYS_OF_PICTURES)
ENCODERS["PiD"] = ENCODERS["PixelDiT"]
LOW_QUALITY = {"lq_hidden_dim": 16, "lq_num_res_blocks": 1, "pit_lq_inject": True}
TOYS["PiD"] = later("PiD", {**PIXELDIT, **LOW_QUALITY}, ("gemma2_2b",), latent=LARGE)
"""It enlarges a latent, which its conditioning brings."""


# ---- rows of words

BOTH_WAYS = ("Chroma Radiance", "AuraFlow", "Cosmos 1", "Cosmos Predict 2", "PixArt")
"""Families whose text encoder, T5, reads in both directions; it has a row for each token."""


def known(*families: str) -> tuple[str, ...]:
    """Those of some families that this ComfyUI has."""
    from comfy import supported_models

    return tuple(family for family in there(*families) if hasattr(supported_models, TOYS[family].config))


def tokens_of(family: str, clip: Any) -> tuple[Any, list[Any], dict[str, int]]:
    """The host's tokens of our text, those of the encoder with the words, and their places there, the last of each."""
    tokens, (key,) = clip.tokenize(PLAIN), TOYS[family].keys
    ((*pairs,),) = tokens[key]
    inner = getattr(clip.tokenizer, key, None) or getattr(clip.tokenizer, f"clip_{key}")
    places = {inner.inv_vocab.get(pair[0], "").strip("▁Ġ"): place for place, pair in enumerate(pairs)}
    return tokens, pairs, {word: places[word] for word in WORDS}


def rows_by_change(family: str, clip: Any) -> Weights:
    """Weight of each row of our text: of a word that of the first row which another token in its place changes."""
    if family in BOTH_WAYS:
        return rows_by_hand(family, clip)
    tokens, pairs, places = tokens_of(family, clip)
    (key,) = TOYS[family].keys
    plain = clip.encode_from_tokens_scheduled(tokens)[0][0][0]
    found: Weights = {}
    for word, place in places.items():
        other = [*pairs[:place], (pairs[place][0] + 1, *pairs[place][1:]), *pairs[place + 1 :]]
        changed = clip.encode_from_tokens_scheduled({**tokens, key: [other]})[0][0][0]
        found[int((changed != plain).any(1).nonzero()[0])] = WORDS[word]
    assert len(found) == len(WORDS)
    return found
