"""ComfyUI nodes. They read inputs, call ``hosts`` and ``weighting``, and wrap results, without arithmetic."""

from __future__ import annotations

from .a1111 import WeightedCLIPA1111Encode
from .bind import WeightedCLIPBindPhrases
from .convert import WeightedCLIPConvert
from .dalle import WeightedCLIPDalleSample, WeightedCLIPLoadDalle
from .difference import WeightedCLIPDifference
from .dvae import WeightedCLIPImageToTokens, WeightedCLIPLoadDVAE, WeightedCLIPTokensToImage
from .full_clip import WeightedCLIPLoadFull, WeightedCLIPRerank, WeightedCLIPSimilarity
from .inspect import WeightedCLIPInspect
from .load import WeightedCLIPLoad
from .loras import WeightedCLIPLoadPromptLoras
from .mask_control import WeightedCLIPMaskControl, WeightedCLIPMaskedBlend
from .remember import WeightedCLIPRemember
from .sdxl import WeightedCLIPSDXLEncode
from .text_encode import WeightedCLIPTextEncode
from .weigh_attention import WeightedCLIPWeighAttention

_NODES = {
    WeightedCLIPTextEncode: "CLIP Text Encode (Weighted)",
    WeightedCLIPA1111Encode: "A1111 Prompt",
    WeightedCLIPMaskedBlend: "Down-Weight (Masked Blend)",
    WeightedCLIPMaskControl: "Mask Control",
    WeightedCLIPBindPhrases: "Bind Phrases",
    WeightedCLIPSDXLEncode: "CLIP Text Encode SDXL (Weighted)",
    WeightedCLIPWeighAttention: "Weigh Attention",
    WeightedCLIPConvert: "Convert Prompt Syntax",
    WeightedCLIPInspect: "Inspect Prompt",
    WeightedCLIPLoad: "Load CLIP Encoder (native)",
    WeightedCLIPRemember: "Remember Encodings",
    WeightedCLIPLoadPromptLoras: "Load LoRAs from Prompt",
    WeightedCLIPLoadFull: "Load CLIP (text + image)",
    WeightedCLIPRerank: "Rerank by CLIP",
    WeightedCLIPSimilarity: "CLIP Similarity Matrix",
    WeightedCLIPDifference: "CLIP Difference",
    WeightedCLIPLoadDVAE: "Load dVAE",
    WeightedCLIPImageToTokens: "Image to Tokens",
    WeightedCLIPTokensToImage: "Tokens to Image",
    WeightedCLIPLoadDalle: "Load DALL·E",
    WeightedCLIPDalleSample: "DALL·E Sample",
}
"""Display names of the nodes, which may change. Class names are ids: permanent, as saved workflows store them."""

NODE_CLASS_MAPPINGS = {node.__name__: node for node in _NODES}
NODE_DISPLAY_NAME_MAPPINGS = {node.__name__: title for node, title in _NODES.items()}
