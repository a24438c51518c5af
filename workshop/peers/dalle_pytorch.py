"""dalle-pytorch: its transformer over text and image tokens, with full attention or with layers as sparse as ours."""

from __future__ import annotations

import importlib
from typing import Any


def open_peer(sizes: dict[str, Any], *, is_sparse: bool, for_drawing: bool) -> Any:
    """Its model of the same depth, width, heads, vocabularies and lengths as our prior of these sizes.

    Its rotary positions and shifted tokens, which cost time and which ours lacks, are off. Its own discrete VAE is as
    small as possible: nothing is decoded.
    """
    dalle = importlib.import_module("dalle_pytorch")
    side = sizes["rows"]
    vae = dalle.DiscreteVAE(
        image_size=2 * side, num_layers=1, num_tokens=sizes["image_vocab_size"], codebook_dim=2, hidden_dim=2
    )
    vae.decode = lambda tokens: tokens
    types = None
    if is_sparse:
        from ...encoder.sparse_masks import layer_schedule

        names = {"row": "axial_row", "column": "axial_col", "convolutional": "conv_like"}
        if for_drawing:  # it has no cache for convolutional layers
            names["convolutional"] = "axial_row"
        types = tuple(names[layer] for layer in layer_schedule(sizes["num_layers"]))
    model = dalle.DALLE(
        dim=sizes["hidden_dim"],
        vae=vae,
        num_text_tokens=sizes["text_vocab_size"],
        text_seq_len=sizes["text_length"],
        depth=sizes["num_layers"],
        heads=sizes["num_heads"],
        dim_head=sizes["hidden_dim"] // sizes["num_heads"],
        attn_types=types,
        optimize_for_inference=for_drawing and is_sparse,
        rotary_emb=False,
        shift_tokens=False,
    )
    if for_drawing:  # its own version drops the cache without guidance
        model.forward_with_cond_scale = lambda text, image, cond_scale, cache: model(text, image, cache=cache)
    return model.eval()
