"""Small models of further families of video, added to those of toys.py.

For scripts that test_comfyui_inprocess.py runs in ComfyUI's own Python; see inprocess.py.
"""

# pyright: reportMissingImports=false

from __future__ import annotations

from functools import partial
from typing import Any

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

wide = partial(Toy, keys=("umt5xxl",), latent=WIDE_LATENT)
later = partial(Toy, negative=SHORT_NEGATIVE)
TOYS |= {
    # each block has two layers that read text: those of the picture and of the sound
    "LTX-2": later("LTXAV", SIZES_OF_LTX_2, ("gemma3_12b",), 4, UNET_LORA, latent=SMALL_LATENT),
    "LTX-2.3": later("LTXAV", SIZES_OF_LTX_2_3, ("gemma3_12b",), 4, UNET_LORA, latent=SMALL_LATENT),
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
VARIANTS_OF_WAN = ("Wan FlowRVS", "Wan Animate", "Wan HuMo", "Wan S2V", "Wan SCAIL", "Wan SCAIL 2", "Wan Dancer")
