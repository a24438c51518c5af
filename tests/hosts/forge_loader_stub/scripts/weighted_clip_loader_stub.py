"""An extension for the tests of Weighted CLIP: Forge loads small models of its own classes in place of large files.

A checkpoint ``small-Flux.ckpt`` is an empty file; what is loaded for it is forge_joint.py's model of that name, with
random weights, and its latents are pictures without a VAE. ``small-Unknown.ckpt`` is Chroma with a text encoder under
another name.
"""

# pyright: reportMissingImports=false

import sys
from pathlib import Path
from types import SimpleNamespace

import torch
from modules import sd_models

PROGRAMS = Path(__file__).resolve().parents[2]
KINDS = {"Flux": "Flux", "Chroma": "Chroma", "SD35": "Stable Diffusion 3.5", "Unknown": "Chroma"}
"""Models of forge_joint.py by the name of their checkpoint."""


class Pixels:
    """In place of a VAE: the first channels of a latent are the colours of its picture."""

    latent_channels = 16
    first_stage_model = SimpleNamespace(process_in=lambda latent: latent, process_out=lambda latent: latent)

    def decode(self, latent):
        """Pictures of latents, with values from 0 to 1."""
        return latent[:, :3].sigmoid().repeat_interleave(8, 2).repeat_interleave(8, 3).movedim(1, -1)

    def encode(self, pictures):
        """Latents of pictures."""
        small = torch.nn.functional.avg_pool2d(pictures.movedim(-1, 1), 8)
        return small.repeat(1, 6, 1, 1)[:, :16]


def load(file, additional_state_dicts=None):
    """Load a model as the host does, or a small one."""
    kind = Path(str(file)).stem.removeprefix("small-")
    if kind not in KINDS:
        return host_loader(file, additional_state_dicts=additional_state_dicts)
    sys.path.append(str(PROGRAMS))
    try:
        [model] = __import__("forge_joint").make_models(kinds=[KINDS[kind]]).values()
    finally:
        sys.path.remove(str(PROGRAMS))
    model.model_config, model.current_lora_hash = SimpleNamespace(), "[]"
    objects = model.forge_objects.shallow_copy()
    objects.vae = Pixels()
    model.forge_objects = model.forge_objects_original = model.forge_objects_after_applying_lora = objects
    return as_unknown(model) if kind == "Unknown" else model


def as_unknown(model):
    """A model whose text encoder stands under another name, and whose network is of another class."""
    engine = vars(model).pop("text_processing_engine_t5")
    kind = type(
        "QwenImage",
        (type(model),),
        {
            "get_learned_conditioning": lambda self, prompts: self.text_processing_engine_qwen(prompts),
            "get_prompt_lengths_on_ui": lambda self, prompt: (len(prompt.split()), 255),
        },
    )
    model.__class__ = kind
    model.text_processing_engine_qwen = engine
    network = model.forge_objects.unet.model.diffusion_model
    parts = {name: part for name, part in vars(type(network)).items() if name not in ("__dict__", "__weakref__")}
    network.__class__ = type("QwenImageNetwork", type(network).__bases__, {**parts, "__qualname__": "QwenImageNetwork"})
    return model


host_loader = sd_models.forge_loader
sd_models.forge_loader = load
