"""Small models of further families of video, added to those of toys.py.

For scripts that test_comfyui_inprocess.py runs in ComfyUI's own Python; see inprocess.py.
"""

# pyright: reportMissingImports=false

from __future__ import annotations

from functools import partial
from typing import Any

from inprocess import T5_SIZES, WIDTHS, tower_sizes
from toys import (
    ENCODERS,
    LAYERS,
    SHORT_NEGATIVE,
    SMALL_LATENT,
    TOYS,
    UNET_LORA,
    WAN,
    WIDE_LATENT,
    Encoder,
    Toy,
    make_gemma,
)

# ---- text encoders

NARROW = {3840 * 49: 64 * 4, 3840: 64, 4096: 64, 2048: 32, 1152: 16, 4304: 16}
"""Widths in the small text encoder of LTX-2, by those that the host has written down."""
GEMMA = LAYERS | {"num_hidden_layers": 3, "vocab_size": 512}


def narrow_options() -> dict[str, Any]:
    """Options for narrow layers where the host has written down how wide they are."""
    from comfy import ops

    class Operations(ops.manual_cast):
        class Linear(ops.manual_cast.Linear):
            def __init__(self, wide: int, out: int, **settings: Any) -> None:
                super().__init__(NARROW.get(wide, wide), NARROW.get(out, out), **settings)

    return {"custom_operations": Operations}


gemma_3 = partial(
    Encoder,
    *("lt", "ltxav_te", "LTXAVGemmaTokenizer", {"": GEMMA}, {"spiece_model": make_gemma}),
    options=narrow_options,
)
TWO = LAYERS | {"num_hidden_layers": 2}
FOUR = LAYERS | {"num_hidden_layers": 4}
BYT5 = {"num_layers": 1, "num_heads": 2, "d_kv": 16, "d_ff": 32}
"""Sizes of the small encoder of texts in quotation marks, as wide as the real one."""
ENCODERS |= {
    "Hunyuan Video": Encoder(
        "hunyuan_video", "hunyuan_video_clip", "HunyuanVideoTokenizer", {"llama": FOUR, **tower_sizes()}
    ),
    "Hunyuan Video 1.5": Encoder(
        "hunyuan_video", "hunyuan_image.te", "HunyuanVideo15Tokenizer", {"qwen25_7b": FOUR, "": BYT5}
    ),
    "Hunyuan Image 2.1": Encoder("hunyuan_image", "te", "HunyuanImageTokenizer", {"qwen25_7b": FOUR, "": BYT5}),
    "Kandinsky 5": Encoder("kandinsky5", "te", "Kandinsky5Tokenizer", {"qwen25_7b": TWO, **tower_sizes()}),
    "Kandinsky 5 Image": Encoder("kandinsky5", "te", "Kandinsky5TokenizerImage", {"qwen25_7b": TWO, **tower_sizes()}),
    "CogVideoX": Encoder("cogvideo", "cogvideo_te", "CogVideoXTokenizer", {"t5xxl": T5_SIZES}),
}
ENCODERS |= {"LTX-2": gemma_3(), "LTX-2.3": gemma_3(arguments={"text_projection_type": "dual_linear"})}


# ---- models

SIZES_OF_LTX_2 = {
    **{"num_layers": 2, "num_attention_heads": 2, "attention_head_dim": 32, "cross_attention_dim": 64},
    **{"audio_num_attention_heads": 2, "audio_attention_head_dim": 16, "audio_cross_attention_dim": 32},
    **{"connector_attention_head_dim": 32, "connector_num_attention_heads": 2, "connector_num_layers": 2},
    **{"caption_channels": 64, "apply_gated_attention": True},
}
SIZES_OF_LTX_2_3 = {
    **{**SIZES_OF_LTX_2, "audio_connector_attention_head_dim": 16, "caption_proj_before_connector": True},
    **{"caption_projection_first_linear": False, "cross_attention_adaln": True},
}

HUNYUAN = {
    **{"in_channels": 16, "out_channels": 16, "patch_size": [1, 2, 2], "vec_in_dim": WIDTHS["l"], "context_in_dim": 64},
    **{"hidden_size": 32, "mlp_ratio": 2.0, "num_heads": 2, "depth": 2, "depth_single_blocks": 2, "theta": 256},
    **{"axes_dim": [4, 6, 6], "qkv_bias": True, "guidance_embed": True, "byt5": False, "meanflow": False},
    **{"use_cond_type_embedding": False, "vision_in_dim": None, "meanflow_sum": False},
}
HUNYUAN_15 = {
    **{**HUNYUAN, "in_channels": 65, "out_channels": 32, "patch_size": [1, 1, 1], "vec_in_dim": None, "byt5": True},
    **{"guidance_embed": False, "use_cond_type_embedding": True, "vision_in_dim": 32, "meanflow_sum": True},
}
HUNYUAN_IMAGE = {
    **{**HUNYUAN, "in_channels": 64, "out_channels": 64, "patch_size": [1, 1], "vec_in_dim": None, "byt5": True},
    **{"axes_dim": [8, 8], "meanflow": False},
}
KANDINSKY = {
    **{"in_visual_dim": 16, "out_visual_dim": 16, "in_text_dim": 64, "in_text_dim2": WIDTHS["l"], "time_dim": 32},
    **{"model_dim": 32, "ff_dim": 64, "visual_embed_dim": 132, "num_visual_blocks": 2, "axes_dims": (4, 6, 6)},
}
COG = {
    **{"num_attention_heads": 2, "attention_head_dim": 32, "in_channels": 16, "out_channels": 16, "num_layers": 2},
    **{"time_embed_dim": 32, "text_embed_dim": 64, "use_rotary_positional_embeddings": True},
}
MOCHI = {
    **{"hidden_size_x": 64, "hidden_size_y": 32, "depth": 3, "num_heads": 2, "mlp_ratio_x": 192.0, "in_channels": 12},
    **{"qk_norm": True, "qkv_bias": False, "out_bias": True, "attn_drop": 0.0, "patch_embed_bias": True},
    **{"timestep_mlp_bias": True, "timestep_scale": 1000.0, "t5_feat_dim": 64, "use_t5": True, "learn_sigma": False},
}

HALF_LATENT = (7, 11)
"""As many places as a larger one has in patches of two by two."""
wide = partial(Toy, keys=("umt5xxl",), latent=WIDE_LATENT)
later = partial(Toy, negative=SHORT_NEGATIVE)
TOYS |= {
    # each block has two layers that read text: those of the picture and of the sound
    "LTX-2": later("LTXAV", SIZES_OF_LTX_2, ("gemma3_12b",), 4, UNET_LORA, latent=SMALL_LATENT),
    "LTX-2.3": later("LTXAV", SIZES_OF_LTX_2_3, ("gemma3_12b",), 4, UNET_LORA, latent=SMALL_LATENT),
    "Hunyuan Video": later("HunyuanVideo", HUNYUAN, ("llama",), 4),
    "Hunyuan Video 1.5": later("HunyuanVideo15", HUNYUAN_15, ("qwen25_7b",), 4, latent=HALF_LATENT),
    "Hunyuan Image 2.1": later("HunyuanImage21", HUNYUAN_IMAGE, ("qwen25_7b",), 4, latent=HALF_LATENT),
    "Kandinsky 5": later("Kandinsky5", KANDINSKY, ("qwen25_7b",)),
    "Kandinsky 5 Image": later("Kandinsky5Image", {**KANDINSKY, "visual_embed_dim": 64}, ("qwen25_7b",)),
    "CogVideoX": later("CogVideoX_T2V", COG, ("t5xxl",)),
    "Mochi": later("GenmoMochi", MOCHI, ("t5xxl",), 3),
    "Wan FlowRVS": wide("WAN21_FlowRVS", WAN),
    "Wan Animate": wide("WAN22_Animate", {**WAN, "in_dim": 36}, num_layers=4),
    "Wan HuMo": wide("WAN21_HuMo", WAN),
    "Wan S2V": wide("WAN22_S2V", {**WAN, "audio_dim": 32, "audio_inject_layers": [0, 1]}),
    "Wan SCAIL": wide("WAN21_SCAIL", {**WAN, "in_dim": 20}, num_layers=4),
    "Wan SCAIL 2": wide("WAN21_SCAIL2", {**WAN, "in_dim": 20}, num_layers=4),
    "Wan Dancer": wide("WAN22_WanDancer", {**WAN, "in_dim": 36, "audio_inject_layers": [0, 1]}),
    "Wan causal": wide("WAN21_CausalAR_T2V", WAN),
}
LTX_2 = ("LTX-2", "LTX-2.3")
LATER_VIDEO = (
    *LTX_2,
    *(
        "Hunyuan Video",
        "Hunyuan Video 1.5",
        "Hunyuan Image 2.1",
        "Kandinsky 5",
        "Kandinsky 5 Image",
        "CogVideoX",
        "Mochi",
    ),
)
"""Families of a text encoder each."""
VARIANTS_OF_WAN = ("Wan FlowRVS", "Wan Animate", "Wan HuMo", "Wan S2V", "Wan SCAIL", "Wan SCAIL 2", "Wan Dancer")
