"""Write a Stable Diffusion 1.5 of random weights, with a LoRA, a text encoder and embeddings to go with it.

Runs in a ComfyUI's own Python with that checkout as working directory, because ComfyUI's classes know the names and
shapes. Every tensor is drawn from a generator seeded by its own name, so that any version writes the same numbers.

    python make_checkpoint.py FOLDER

Norm gains are around 1 and biases around 0 with real spread: with 1 and 0 the mean of a hidden state would be rounding
noise, and schemes that restore it would be tested on nothing.
"""

# pyright: reportMissingImports=false

from __future__ import annotations

import hashlib
import re
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file

CHECKPOINT = Path("checkpoints", "seeded-sd15.safetensors")
LORA = Path("loras", "seeded-clip-lora.safetensors")
TEXT_ENCODER = Path("text_encoders", "seeded-clip-l.safetensors")
EMBEDDINGS = Path("embeddings")
WHOLE_CLIP = Path("clip_vision", "seeded-whole.safetensors")

TEXT_PREFIX = "cond_stage_model.transformer."
LORA_RANK = 4
VAE = {
    "double_z": True,
    "z_channels": 4,
    "resolution": 256,
    "in_channels": 3,
    "out_ch": 3,
    "ch": 128,
    "ch_mult": [1, 2, 4, 4],
    "num_res_blocks": 2,
    "attn_resolutions": [],
    "dropout": 0.0,
}


def main(folder: Path) -> None:
    """Write all files, each in the folder where ComfyUI looks for its kind."""
    modules = {"model.diffusion_model.": unet(), "first_stage_model.": vae(), TEXT_PREFIX: text_encoder()}
    state: dict[str, torch.Tensor] = {}
    for prefix, module in modules.items():
        for name, tensor in module.state_dict().items():
            if name != "text_projection.weight":  # SD 1.x has none
                state[prefix + name] = drawn(prefix + name, tensor.shape).half()
    state[TEXT_PREFIX + "text_model.embeddings.position_ids"] = torch.arange(77).unsqueeze(0)
    write(state, folder / CHECKPOINT)

    text = {name.removeprefix(TEXT_PREFIX): tensor for name, tensor in state.items() if name.startswith(TEXT_PREFIX)}
    write(text, folder / TEXT_ENCODER)
    write(lora(text), folder / LORA)
    write({"clip_l": 0.05 * normal("embedding", (2, 768))}, folder / EMBEDDINGS / "seeded-embedding.safetensors")
    write_more_embeddings(folder)


def write_more_embeddings(folder: Path) -> None:
    """Write an embedding in diffusers' format and a pickled one in that of the WebUI's trainer; needs no ComfyUI."""
    write({"<any>": 0.05 * normal("one", (768,))}, folder / EMBEDDINGS / "seeded-one.safetensors")
    trained = {"string_to_token": {"*": 265}, "string_to_param": {"*": 0.05 * normal("eight", (8, 768))}}
    unfinished = folder / EMBEDDINGS / "seeded-eight.unfinished"
    torch.save(trained, unfinished)
    unfinished.replace(unfinished.with_suffix(".pt"))


def write_whole_clip(folder: Path) -> None:
    """Write a tiny CLIP of both halves, as transformers writes one; needs no ComfyUI.

    Two layers of 64 wide in each half, images of 56 x 56 in patches of 14, features of 32.
    """
    width, inner, features = 64, 128, 32
    shapes: dict[str, tuple[int, ...]] = {
        "text_model.embeddings.token_embedding.weight": (49408, width),
        "text_model.embeddings.position_embedding.weight": (77, width),
        "vision_model.embeddings.class_embedding": (width,),
        "vision_model.embeddings.patch_embedding.weight": (width, 3, 14, 14),
        "vision_model.embeddings.position_embedding.weight": (17, width),
        "text_projection.weight": (features, width),
        "visual_projection.weight": (features, width),
    }
    matrices = {f"self_attn.{name}_proj": (width, width) for name in ("q", "k", "v", "out")}
    matrices |= {"mlp.fc1": (inner, width), "mlp.fc2": (width, inner)}
    norms = ["text_model.final_layer_norm", "vision_model.pre_layrnorm", "vision_model.post_layernorm"]
    for half in ("text_model", "vision_model"):
        for layer in (f"{half}.encoder.layers.{number}" for number in (0, 1)):
            norms += [f"{layer}.layer_norm1", f"{layer}.layer_norm2"]
            for name, shape in matrices.items():
                shapes |= {f"{layer}.{name}.weight": shape, f"{layer}.{name}.bias": shape[:1]}
    for name in norms:
        shapes |= {f"{name}.weight": (width,), f"{name}.bias": (width,)}
    state = {name: drawn(name, torch.Size(shape)) for name, shape in shapes.items()}
    write({**state, "logit_scale": torch.tensor(4.0)}, folder / WHOLE_CLIP)


def unet() -> torch.nn.Module:
    """ComfyUI's U-Net in the size of SD 1.5, without memory."""
    from comfy.ldm.modules.diffusionmodules.openaimodel import UNetModel

    depth = [1, 1, 1, 1, 1, 1, 0, 0]
    return UNetModel(
        image_size=32,
        in_channels=4,
        out_channels=4,
        model_channels=320,
        num_res_blocks=[2, 2, 2, 2],
        channel_mult=[1, 2, 4, 4],
        num_heads=8,
        use_spatial_transformer=True,
        transformer_depth=list(depth),
        transformer_depth_middle=1,
        transformer_depth_output=[1, 1, 1, 1, 1, 1, 1, 1, 1, 0, 0, 0],
        context_dim=768,
        legacy=False,
        device="meta",
    )


def vae() -> torch.nn.Module:
    """ComfyUI's autoencoder in the size of SD 1.5, without memory."""
    from comfy.ldm.models.autoencoder import AutoencoderKL

    with torch.device("meta"):
        return AutoencoderKL(ddconfig=VAE, embed_dim=4)


def text_encoder() -> torch.nn.Module:
    """ComfyUI's text model in the size of CLIP-L, without memory."""
    import comfy.ops
    from comfy.sd1_clip import SDClipModel

    return SDClipModel(
        device="meta", dtype=torch.float32, model_options={"custom_operations": comfy.ops.manual_cast}
    ).transformer


def lora(text: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """A LoRA of rank 4 on every linear layer of the text encoder, by the names of kohya's trainer."""
    state: dict[str, torch.Tensor] = {}
    for name, tensor in text.items():
        if not re.fullmatch(r"text_model\.encoder\..*(_proj|fc[12])\.weight", name):
            continue
        rows, columns = tensor.shape
        key = "lora_te_" + name.removesuffix(".weight").replace(".", "_")
        state[key + ".lora_down.weight"] = normal(key + "down", (LORA_RANK, columns)) / columns**0.5
        state[key + ".lora_up.weight"] = 0.2 * normal(key + "up", (rows, LORA_RANK))
        state[key + ".alpha"] = torch.tensor(float(LORA_RANK))
    return state


def drawn(name: str, shape: torch.Size) -> torch.Tensor:
    """The weights of one parameter, scaled by what it is for."""
    values = normal(name, shape)
    if name.endswith(".bias"):
        return 0.1 * values
    if len(shape) == 1:
        return 1 + 0.2 * values  # the gain of a norm
    if "embedding.weight" in name:
        return 0.05 * values
    return values / shape[1:].numel() ** 0.5  # keeps the size of what goes in


def normal(name: str, shape: tuple[int, ...] | torch.Size) -> torch.Tensor:
    """Standard normal numbers, float32, seeded by a name."""
    seed = int.from_bytes(hashlib.sha256(name.encode()).digest()[:7], "big")
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def write(state: dict[str, torch.Tensor], path: Path) -> None:
    """Save, so that the file is whole as soon as it is there."""
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_suffix(".unfinished")
    save_file({name: tensor.contiguous() for name, tensor in state.items()}, unfinished)
    unfinished.replace(path)


if __name__ == "__main__":
    sys.path.insert(0, str(Path.cwd()))
    from comfy.cli_args import args

    args.cpu = True
    with torch.no_grad():
        main(Path(sys.argv[1]))
