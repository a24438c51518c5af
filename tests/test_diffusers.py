"""The lines of README.md about diffusers, in small pipelines of its own: they draw what transformers' encoders draw."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from weighted_clip import Encoders
from weighted_clip.encoder.files.checkpoint import hugging_face_tensors, seeded_text_model
from weighted_clip.encoder.models.config import TextConfig, sizes_of
from weighted_clip.encoder.models.text_model import TextModel
from weighted_clip.encoder.tokenizer import default_tokenizer

from .libraries import library
from .test_from_python import lines_of

SIZES = {"num_heads": 2, "num_layers": 3}
TOWERS = {
    "clip_l": TextConfig(hidden_dim=32, mlp_dim=64, **SIZES),
    "clip_g": TextConfig(hidden_dim=64, mlp_dim=128, projection_dim=64, activation="gelu", pad_id=0, **SIZES),
}
PLAIN = "a red cat and a dog"


def theirs(model: TextModel, config: TextConfig) -> Any:
    """transformers' text tower with the weights of ours."""
    transformers = library("transformers", "4.46")
    kinds = {"hidden_act": config.activation, "bos_token_id": 49406, "eos_token_id": 49407}
    made = transformers.CLIPTextConfig(
        **sizes_of(config), **kinds, vocab_size=49408, projection_dim=config.projection_dim
    )
    tower = transformers.CLIPTextModelWithProjection if config.projection_dim else transformers.CLIPTextModel
    found = tower(made).eval()
    tensors = hugging_face_tensors(model)
    if not hasattr(found, "text_model"):
        tensors = {name.removeprefix("text_model."): tensor for name, tensor in tensors.items()}
    missing, unexpected = found.load_state_dict(tensors, strict=False)
    assert unexpected == [] and all("position_ids" in name for name in missing)
    return found


def ids_of(text: str, config: TextConfig) -> torch.Tensor:
    ids = [49406, *(token.id for token in default_tokenizer()(text)), 49407]
    return torch.tensor([ids + [config.pad_id] * (77 - len(ids))])


@pytest.fixture(scope="module")
def towers() -> dict[str, TextModel]:
    return {name: seeded_text_model(config, seed=number) for number, (name, config) in enumerate(TOWERS.items())}


def unet(width: int, **more: Any) -> Any:
    torch.manual_seed(0)
    blocks = {"down_block_types": ("CrossAttnDownBlock2D",), "up_block_types": ("CrossAttnUpBlock2D",)}
    return library("diffusers").UNet2DConditionModel(
        block_out_channels=(32,), layers_per_block=1, cross_attention_dim=width, norm_num_groups=8, **blocks, **more
    )


def pipeline(kind: str, towers: dict[str, Any]) -> Any:
    """A small pipeline with random weights, that draws 16 x 16 pixels in two steps."""
    diffusers = library("diffusers")
    torch.manual_seed(1)
    vae = diffusers.AutoencoderKL(block_out_channels=(8,), norm_num_groups=4)
    parts = {"vae": vae, "scheduler": diffusers.EulerDiscreteScheduler(steps_offset=1), "tokenizer": None}
    if kind == "SDXL":
        added = {"addition_embed_type": "text_time", "addition_time_embed_dim": 8}
        made = unet(96, **added, projection_class_embeddings_input_dim=6 * 8 + 64)
        pipe = diffusers.StableDiffusionXLPipeline(
            **parts,
            unet=made,
            text_encoder=towers["clip_l"],
            text_encoder_2=towers["clip_g"],
            tokenizer_2=None,
            add_watermarker=False,
        )
    else:
        checker = {"safety_checker": None, "feature_extractor": None, "requires_safety_checker": False}
        pipe = diffusers.StableDiffusionPipeline(**parts, unet=unet(32), text_encoder=towers["clip_l"], **checker)
    pipe.set_progress_bar_config(disable=True)

    def draw(**embeds: torch.Tensor) -> Any:
        generator = torch.Generator().manual_seed(2)
        return pipe(**embeds, height=16, width=16, num_inference_steps=2, generator=generator, output_type="pt")

    return draw


def reference(kind: str, towers: dict[str, Any], text: str) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Rows and pooled vector as the pipelines take them from transformers: SDXL reads the layer before the last."""
    with torch.no_grad():
        low = towers["clip_l"](ids_of(text, TOWERS["clip_l"]), output_hidden_states=True)
        if kind != "SDXL":
            return low.last_hidden_state, None
        high = towers["clip_g"](ids_of(text, TOWERS["clip_g"]), output_hidden_states=True)
    return torch.cat([low.hidden_states[-2], high.hidden_states[-2]], -1), high.text_embeds


def embeds_of(kind: str, two: list[tuple[Any, Any]]) -> dict[str, Any]:
    (rows, pooled), (other_rows, other_pooled) = two
    found = {"prompt_embeds": rows, "negative_prompt_embeds": other_rows}
    more = {"pooled_prompt_embeds": pooled, "negative_pooled_prompt_embeds": other_pooled}
    return {**found, **(more if kind == "SDXL" else {})}


@pytest.mark.parametrize("kind", ["SD 1", "SDXL"])
def test_the_lines_draw_with_weights(kind: str, towers: dict[str, TextModel], monkeypatch: pytest.MonkeyPatch) -> None:
    diffusers = library("diffusers")
    ours = towers if kind == "SDXL" else {"clip_l": towers["clip_l"]}
    peers = {name: theirs(model, TOWERS[name]) for name, model in ours.items()}
    draw = pipeline(kind, peers)
    lines = lines_of("README.md", "In diffusers")
    if kind != "SDXL":
        lines = "\n".join(line for line in lines.splitlines() if "# SDXL only" not in line)
        lines = lines.replace("StableDiffusionXLPipeline", "StableDiffusionPipeline")
    name = "StableDiffusionXLPipeline" if kind == "SDXL" else "StableDiffusionPipeline"
    monkeypatch.setattr(getattr(diffusers, name), "from_single_file", lambda file: draw)
    monkeypatch.setattr(Encoders, "load", lambda file: Encoders.of_models(ours))
    found: dict[str, Any] = {}
    exec(lines, found)
    expected = draw(**embeds_of(kind, [reference(kind, peers, text) for text in (PLAIN, "blurry")])).images[0]

    encode = Encoders.of_models(ours)
    plain = [encode(text, scheme="masked_blend") for text in (PLAIN, "blurry")]
    for one, text in zip(plain, (PLAIN, "blurry"), strict=True):
        rows, pooled = reference(kind, peers, text)
        torch.testing.assert_close(one.hidden, rows, rtol=0, atol=1e-5)
        if pooled is not None:
            torch.testing.assert_close(one.pooled, pooled, rtol=0, atol=1e-5)
    same = draw(**embeds_of(kind, [(one.hidden, one.pooled) for one in plain])).images[0]
    torch.testing.assert_close(same, expected, rtol=0, atol=1e-4)
    assert found["image"].shape == expected.shape
    assert (found["image"] - expected).abs().max() > 1e-3  # the weights act
