"""diffusers' community pipelines named lpw, from a checkout: their results on transformers' towers.

Only their path from texts to hidden states is run.
"""

# pyright: reportMissingImports=false, reportPrivateImportUsage=false

from __future__ import annotations

import importlib.util
import re
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType, SimpleNamespace
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


class Pair(NamedTuple):
    """Results of a prompt and a negative prompt."""

    hidden: tuple[Tensor, Tensor]
    """``[1, rows, dim]``, SDXL's towers side by side."""
    pooled: tuple[Tensor, Tensor] | None
    """``[1, dim]``; None for Stable Diffusion 1.x."""


def find_checkout(folder: Path) -> Path | None:
    """The first checkout of diffusers in a folder, or the folder itself; None if there is none."""
    places = (folder.resolve(), *folders_in(folder.resolve()))
    return next((place for place in places if all((place / _FOLDER / file).is_file() for file in FILES.values())), None)


def version_of_checkout(checkout: Path) -> str:
    """Version stated in its setup.py."""
    place = checkout / "setup.py"
    found = re.search(r'version="(\S+)"', place.read_text(encoding="utf-8")) if place.is_file() else None
    return found[1] if found else "unknown"


def load_pipeline(checkout: Path, name: str) -> ModuleType:
    """Import a pipeline's file; ``name`` is a key of `FILES`."""
    path = checkout / _FOLDER / FILES[name]
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Pipelines:
    """Both pipelines on towers of transformers with our weights."""

    def __init__(self, checkout: Path, models: Mapping[str, Mapping[str, TextModel]]) -> None:
        """Load both pipelines; ``models`` are towers by ComfyUI's names, for each key of `FILES`."""
        self.modules = {name: load_pipeline(checkout, name) for name in FILES}
        """Modules of the pipelines."""
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

    def encode(self, name: str, prompt: str, negative: str, **settings: Any) -> Pair:
        """Encode a pair of texts by the pipeline of that name, with further arguments of its function.

        It raises ValueError for texts that it cannot read: a weight that is not a number, and in SDXL two empty texts.
        """
        with torch.inference_mode():
            if name == "sd":
                hidden = self.modules[name].get_weighted_text_embeddings(self._sd, prompt, negative, **settings)
                return Pair(hidden, None)
            encode = self.modules[name].get_weighted_text_embeddings_sdxl
            found = encode(self._sdxl, prompt=prompt, neg_prompt=negative, **settings)
            return Pair(found[:2], found[2:])
