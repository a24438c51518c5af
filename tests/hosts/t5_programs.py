"""Rows of T5 by programs that weigh them: compel's and sd_embed's own code for Flux, on a T5 of any host.

Source: compel c60b9fb (2026-05) and sd_embed 4a47f71 (2025-04).
"""

from __future__ import annotations

import gc
import importlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from pack_code import definitions, package

LONG = "a (photo:1.2) of a cat on a (mat:0.8), " * 24
A1111 = (
    "",
    "  ",
    "a red cat on a mat",
    "a (red:1.3) cat on a (mat:0.4), oil painting",
    "((a cat)) [on a mat] \\(in snow\\) (of:0.0)",
    "(photo:1.2)realistic, a (cat (on a:0.6) mat:0.8)(dog:-0.5)",
    LONG,
)
COMPEL = (
    "",
    "a red cat on a mat",
    "a (red)1.3 cat on a (mat)0.4, oil painting",
    "a+ cat++ on- a (mat)0",
    '("a (red)1.4 cat", "a (dog)0.6").and(1, 0.5)',
    "a (photo)1.2 of a cat on a (mat)0.8, " * 24,
)


class T5(torch.nn.Module):
    """A host's T5 as the programs call it."""

    dtype, device = torch.float32, torch.device("cpu")

    def __init__(self, network: Any) -> None:
        """Take a network with ``shared``, which is called with ids and perhaps a mask, and returns rows."""
        super().__init__()
        self.network, self.shared = network, network.shared

    def forward(self, input_ids: Any, attention_mask: Any = None, **_: Any) -> Any:
        from transformers.modeling_outputs import BaseModelOutput

        return BaseModelOutput(self.network(input_ids, attention_mask))


def by_compel(tokenizer: Any, t5: Any, text: str) -> torch.Tensor:
    """Rows by compel, as its class for Flux uses it; ImportError if it is not there."""
    compel = importlib.import_module("compel.compel").Compel(tokenizer=tokenizer, text_encoder=T5(t5), device="cpu")
    return compel(text)


def by_sd_embed(folder: Path, clip_tokenizer: Any, tokenizer: Any, t5: Any, text: str) -> torch.Tensor:
    """Rows by sd_embed's function for Flux; ``folder`` is its checkout."""
    source = folder / "src" / "sd_embed"
    file = source / "embedding_funcs.py"
    package("sd_embed", source)
    given = {
        "parse_prompt_attention": importlib.import_module("sd_embed.prompt_parser").parse_prompt_attention,
        **dict.fromkeys(("CLIPTokenizer", "T5Tokenizer", "FluxPipeline"), object),
        **{"Tuple": tuple, "gc": gc},
    }
    names = ("get_prompts_tokens_with_weights", "get_prompts_tokens_with_weights_t5", "group_tokens_and_weights")
    function = "get_weighted_text_embeddings_flux1"
    encode = getattr(definitions(file, *names, function, **given), function)

    class Pooled(torch.nn.Module):
        dtype = torch.float32

        def forward(self, *_: Any, **__: Any) -> Any:
            return SimpleNamespace(pooler_output=torch.zeros(1, 8))

    device = torch.device("cpu")
    pipe = SimpleNamespace(
        device=device,
        tokenizer=clip_tokenizer,
        tokenizer_2=tokenizer,
        text_encoder=Pooled(),
        text_encoder_2=T5(t5),
    )
    return encode(pipe, text, device=device)[0]
