"""The small worlds as ComfyUI's own MODEL, CLIP and VAE: its classes with other sizes, so that every stock node works.

Source: behaviour of ComfyUI 0.3.64 and 0.29.0, whose ``load_checkpoint_guess_config`` makes such objects of a file.
"""

from __future__ import annotations

from dataclasses import asdict
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ....studio.world.model import JOINT, QWEN, TEXT, TRAINED, UNET, JointWorld, UNetWorld, load_world
from ..contract import host
from ..types import Clip, ModelPatcher
from .models import managed


def load_hosted_world(path: str | Path = TRAINED, device: str = "auto") -> tuple[ModelPatcher, Clip, Any]:
    """Read a small world and let the host manage its memory; all in float32.

    Args:
        path: File of a world; by default the pack's own.
        device: ``auto`` for the host's choice of device for each of the three, or ``cpu``.

    Returns:
        Values of the links MODEL, CLIP and VAE.

    Raises:
        WorldError: If the file is missing, damaged or of something else.
    """
    world, _ = load_world(path)
    if isinstance(world, JointWorld):
        return _joint_model(world, device), _joint_clip(world, device), _vae(device)
    assert isinstance(world, UNetWorld)
    return _model(world.network, device), _clip(world.whole_text(), device), _vae(device)


def _model(unet: nn.Module, device: str) -> ModelPatcher:
    model = _settings(UNET.for_host(), 1000).get_model({}, "", device=torch.device("cpu"))
    model.diffusion_model.load_state_dict(unet.state_dict(), strict=True)
    return managed(model, device, "diffusion_model")


def _joint_model(world: JointWorld, device: str) -> ModelPatcher:
    settings = _settings(JOINT.for_host(), 1)
    try:
        model = host("comfy.model_base").Flux(settings, settings.model_type(), device=torch.device("cpu"))
    except TypeError as error:
        raise ValueError(
            "The joint world needs a newer ComfyUI, 0.3.76 or later: this one's Flux is another."
        ) from error
    state = {key.replace("_norm.scale", "_norm.weight"): value for key, value in world.network.state_dict().items()}
    model.diffusion_model.load_state_dict(state, strict=True)
    return managed(model, device, "diffusion_model")


def _settings(sizes: dict[str, Any], multiplier: int) -> Any:
    """The host's record of a family of models, with a small world's sizes; its network is told times up to a number."""
    latent = host("comfy.latent_formats").LatentFormat()
    latent.latent_channels, latent.spacial_downscale_ratio = UNET.in_channels, 2
    # a channel of `to_latents` is a colour at one of four pixels: a preview is their mean
    latent.latent_rgb_factors = [
        [0.25 if color == channel // 4 else 0.0 for color in range(3)] for channel in range(UNET.in_channels)
    ]
    flow = host("comfy.model_base").ModelType.FLOW

    settings = host("comfy.supported_models_base").BASE({})
    settings.unet_config = sizes  # by the constructor, the host's sizes of heads would replace ours
    settings.latent_format = latent
    settings.sampling_settings = {"shift": 1.0, "multiplier": multiplier}
    settings.supported_inference_dtypes = [torch.float32]
    settings.set_inference_dtype(torch.float32, None)
    settings.model_type = lambda *_: flow
    settings.inpaint_model = lambda: False  # by the host's rule more than four channels are those of inpainting
    return settings


def _clip(text: nn.Module, device: str) -> Clip:
    classes = host("comfy.sd1_clip")
    sizes = {
        "num_hidden_layers": TEXT.num_layers,
        "hidden_size": TEXT.hidden_dim,
        "num_attention_heads": TEXT.num_heads,
        "intermediate_size": TEXT.mlp_dim,
    }
    clip = _host_clip(classes.SD1ClipModel, classes.SD1Tokenizer, {"clip_l_model_config": sizes}, device)
    clip.tokenizer.clip_l.embedding_size = TEXT.hidden_dim
    tower = clip.cond_stage_model.clip_l.transformer.text_model
    tower.load_state_dict(text.state_dict(), strict=True)
    return clip


def _joint_clip(world: JointWorld, device: str) -> Clip:
    classes = host("comfy.text_encoders.z_image")
    # of Z-Image's many layers the last but one is read; here the last is
    name = "qwen3_4b"
    options = {f"{name}_class": partial(classes.Qwen3_4BModel, layer="last"), f"{name}_model_config": asdict(QWEN)}
    clip = _host_clip(classes.te(), classes.ZImageTokenizer, options, device)
    getattr(clip.tokenizer, name).embedding_size = QWEN.hidden_size
    language_model = getattr(clip.cond_stage_model, name).transformer.model
    language_model.load_state_dict(world.whole_text(language_model.vocab_size), strict=True)
    return clip


def _host_clip(model: Any, tokenizer: Any, options: dict[str, Any], device: str) -> Any:
    options = {**options, "dtype": torch.float32}
    if device == "cpu":
        options["load_device"] = options["offload_device"] = torch.device("cpu")
    return host("comfy.sd").CLIP(
        SimpleNamespace(params={}, clip=model, tokenizer=tokenizer),
        embedding_directory=host("folder_paths").get_folder_paths("embeddings"),
        model_options=options,
    )


class PixelShuffle(nn.Module):
    """VAE without learned weights: the four pixels of each square of 2 x 2 are put into channels, and back."""

    def __init__(self) -> None:
        super().__init__()
        self.pixel_space_vae = nn.Parameter(torch.tensor(1.0))

    def encode(self, pixels: Tensor, *_: Any, **__: Any) -> Tensor:
        """Latents ``[b, 12, h / 2, w / 2]`` of pixels ``[b, 3, h, w]`` in -1..1."""
        return F.pixel_unshuffle(pixels, 2)

    def decode(self, latents: Tensor, *_: Any, **__: Any) -> Tensor:
        """Pixels of latents."""
        return F.pixel_shuffle(latents, 2)


def _vae(device: str) -> Any:
    shuffle = PixelShuffle()
    chosen = None if device == "auto" else torch.device(device)
    vae = host("comfy.sd").VAE(sd=shuffle.state_dict(), device=chosen, dtype=torch.float32)
    vae.first_stage_model = shuffle.eval()
    vae.patcher = managed(shuffle, device, "vae")
    vae.downscale_ratio = vae.upscale_ratio = 2
    vae.latent_channels = UNET.in_channels
    return vae
