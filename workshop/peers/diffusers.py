"""diffusers' community pipelines named lpw, from a checkout: their results on transformers' towers.

Only their path from texts to hidden states is run.
"""

# pyright: reportMissingImports=false, reportPrivateImportUsage=false

from __future__ import annotations

import runpy
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ...encoder.files.checkpoint import seeded_text_model
from ...encoder.models.config import TextConfig
from ...encoder.models.text_model import TextModel
from ..find_hosts import folders_in
from .transformers import transformers_projected_model, transformers_text_model, transformers_tokenizer

FILES = {"sd": "lpw_stable_diffusion.py", "sdxl": "lpw_stable_diffusion_xl.py"}
"""The pipelines for Stable Diffusion 1.x and for SDXL."""
SCHEME_OF = {"sd": "lpw", "sdxl": "lerp_last"}
"""The scheme named after each."""
_FOLDER = Path("examples", "community")
SDXL = {
    "clip_l": TextConfig(hidden_dim=128, num_heads=2, num_layers=4, mlp_dim=256),
    "clip_g": TextConfig(
        hidden_dim=192, num_heads=3, num_layers=5, mlp_dim=384, activation="gelu", projection_dim=160, pad_id=0
    ),
}
"""Small towers instead of SDXL's. States of its penultimate layer pass no norm: in full size with random weights they
are up to 60 large, and so is their rounding."""


def sdxl_models() -> dict[str, TextModel]:
    """The towers of `SDXL` with seeded weights."""
    return {name: seeded_text_model(config, seed=seed) for seed, (name, config) in enumerate(SDXL.items(), 1)}


class PromptPair(NamedTuple):
    """Results of a prompt and a negative prompt."""

    hidden: tuple[Tensor, Tensor]
    """``[1, rows, dim]``, SDXL's towers side by side."""
    pooled: tuple[Tensor, Tensor] | None
    """``[1, dim]``; None for Stable Diffusion 1.x."""


def find_checkout(folder: Path) -> Path | None:
    """The first checkout of diffusers in a folder, or the folder itself; None if there is none."""
    places = (folder.resolve(), *folders_in(folder.resolve()))
    return next((place for place in places if all((place / _FOLDER / file).is_file() for file in FILES.values())), None)


class Pipelines:
    """Both pipelines on towers of transformers with our weights."""

    def __init__(self, checkout: Path, models: Mapping[str, Mapping[str, TextModel]]) -> None:
        """Load both pipelines; ``models`` are towers by ComfyUI's names, for each key of `FILES`."""
        self._globals = {name: runpy.run_path(str(checkout / _FOLDER / file)) for name, file in FILES.items()}
        tokenizer = transformers_tokenizer()
        first = transformers_text_model(models["sd"]["clip_l"])
        if not hasattr(
            first, "text_model"
        ):  # transformers 5 has the parts at the top, which the pipeline does not expect
            vars(first)["text_model"] = first
        self._sd = SimpleNamespace(tokenizer=tokenizer, text_encoder=first, device="cpu")
        self._sdxl = SimpleNamespace(
            tokenizer=tokenizer,
            tokenizer_2=tokenizer,
            text_encoder=transformers_text_model(models["sdxl"]["clip_l"]),
            text_encoder_2=transformers_projected_model(models["sdxl"]["clip_g"]),
            _execution_device="cpu",
        )

    def encode(self, name: str, prompt: str, negative: str, **settings: Any) -> PromptPair:
        """Encode a pair of texts by the pipeline of that name, with further arguments of its function.

        It raises ValueError for texts that it cannot read: a weight that is not a number, and in SDXL two empty texts.
        """
        with torch.inference_mode():
            if name == "sd":
                hidden = self._globals[name]["get_weighted_text_embeddings"](self._sd, prompt, negative, **settings)
                return PromptPair(hidden, None)
            encode = self._globals[name]["get_weighted_text_embeddings_sdxl"]
            embeddings = encode(self._sdxl, prompt=prompt, neg_prompt=negative, **settings)
            return PromptPair(embeddings[:2], embeddings[2:])
