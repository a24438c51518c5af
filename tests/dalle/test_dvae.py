"""The discrete VAE compared with OpenAI's own and transformers' copy of its encoder; tiles; bad input."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import torch
from weighted_clip.studio.dalle import dvae as module
from weighted_clip.studio.dalle.config import SMALL, DVAEConfig
from weighted_clip.studio.dalle.dvae import DVAE, map_pixels

from ..libraries import library
from .models import TINY, TINY_SMALL, formula_picture, pictures, seeded, set_by_formula

RECORDED = Path(__file__).resolve().parents[1] / "data" / "dalle_dvae.json"

# ---- compared with OpenAI's package


def test_what_openais_package_gave_once_comes_out_again() -> None:
    recorded = json.loads(RECORDED.read_text(encoding="utf-8"))
    ours = DVAE(TINY)
    set_by_formula(ours.encoder)
    set_by_formula(ours.decoder)
    with torch.no_grad():
        logits = ours.encoder(map_pixels(formula_picture()))
        decoded = ours.decoder(logits.softmax(1))
    assert logits.flatten()[::101].tolist() == pytest.approx(recorded["logits"], abs=2e-5)
    assert decoded.flatten()[::97].tolist() == pytest.approx(recorded["decoded"], abs=2e-5)


def test_the_sizes_are_those_of_the_paper() -> None:
    with torch.device("meta"):
        model = DVAE()
        small = DVAE(SMALL)
    counts = [sum(parameter.numel() for parameter in part.parameters()) for part in (model.encoder, model.decoder)]
    assert [round(count / 1e6, 2) for count in counts] == [53.79, 43.83]
    assert round(sum(parameter.numel() for parameter in small.parameters()) / 1e6, 2) == 0.23


# ---- compared with transformers


def flava_name(name: str) -> str:
    """transformers' name of a parameter of ours."""
    name = re.sub(r"^blocks\.(input|output)\.", r"blocks.\1.", name)
    name = re.sub(r"group_(\d)\.block_(\d)\.", r"group_\1.group.block_\2.", name)
    name = name.replace(".res_path.", ".res_path.path.")
    return re.sub(r"\.([wb])$", lambda found: {"w": ".weight", "b": ".bias"}[found[1]], name)


@pytest.mark.slow
def test_the_encoder_equals_transformers_codebook_after_renaming() -> None:
    library("transformers")
    from transformers import FlavaImageCodebookConfig
    from transformers.models.flava.modeling_flava import FlavaImageCodebook

    config = DVAEConfig(vocab_size=64, hidden_dim=32, num_blocks=2)
    theirs = FlavaImageCodebook(
        FlavaImageCodebookConfig(hidden_size=config.hidden_dim, vocab_size=config.vocab_size)
    ).eval()
    ours = seeded(config)
    theirs.load_state_dict({flava_name(name): tensor for name, tensor in ours.encoder.state_dict().items()})
    images = pictures(2, 40, 32)
    assert torch.equal(theirs(map_pixels(images)), ours.encoder(map_pixels(images)))
    assert torch.equal(theirs.get_codebook_indices(map_pixels(images)), ours.tokens(images))


# ---- tokens and images of any size


@pytest.mark.parametrize("config", [TINY, TINY_SMALL, DVAEConfig("small", 16, 16, num_blocks=3)], ids=str)
def test_tiles_give_what_the_whole_gives(config: DVAEConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    model = seeded(config).double()
    f, halo = config.downsampling, model.halo
    images = pictures(2, (3 * halo + 9) * f, (2 * halo + 5) * f).double()
    tokens, calls = model.tokens(images), []
    back = model.images(tokens)
    assert len(tokens.unique()) > 4
    monkeypatch.setattr(module, "MAX_PIXELS", 1)
    monkeypatch.setattr(module, "_CORE", (halo + 4) * f)
    assert torch.equal(model.tokens(images, lambda: calls.append(1)), tokens)
    assert len(calls) == 2 * 3 * 2
    assert (model.images(tokens) - back).abs().max() < 1e-12
    assert back.std() > 0.01
    monkeypatch.setattr(DVAE, "halo", halo - 1)  # so that the test sees a reach that is too short
    assert (model.images(tokens) - back).abs().max() > 1e-12


def test_many_images_go_a_few_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    model, images, seen = seeded(TINY_SMALL), pictures(7, 16, 16), []
    tokens = model.tokens(images)
    monkeypatch.setattr(module, "MAX_PIXELS", 2 * 16 * 16 // 16)
    real = model.encoder.forward
    monkeypatch.setattr(model.encoder, "forward", lambda pixels: seen.append(len(pixels)) or real(pixels))
    assert torch.equal(model.tokens(images), tokens)
    assert seen == [2, 2, 2, 1]


def test_a_cancelled_call_ends_before_its_next_part() -> None:
    def cancel() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        seeded(TINY_SMALL).tokens(pictures(1, 16, 16), cancel)


@pytest.mark.parametrize(
    ("images", "message"),
    [
        (torch.rand(1, 3, 20, 16), "images of 16 x 20 pixels: both sides must be multiples of 8"),
        (torch.rand(1, 4, 16, 16), r"\[images, 3, height, width\] in 0..1, got float32 \[1, 4, 16, 16\]"),
        (torch.rand(3, 16, 16), r"got float32 \[3, 16, 16\]"),
        (torch.zeros(0, 3, 16, 16), r"got float32 \[0, 3, 16, 16\]"),
        (torch.zeros(1, 3, 16, 16, dtype=torch.uint8), r"got uint8 \[1, 3, 16, 16\]"),
    ],
)
def test_images_of_another_form_are_refused(images: torch.Tensor, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        seeded(TINY).tokens(images)


@pytest.mark.parametrize(
    ("tokens", "message"),
    [
        (torch.tensor([[[1, 512]]]), "token 512: this dVAE has tokens from 0 to 511"),
        (torch.tensor([[[-1, 5]]]), "token -1: this dVAE has tokens from 0 to 511"),
        (torch.ones(1, 2, 2), r"whole numbers \[images, rows, columns\], got float32 \[1, 2, 2\]"),
        (torch.tensor([[1, 2]]), r"got int64 \[1, 2\]"),
    ],
)
def test_tokens_of_another_form_are_refused(tokens: torch.Tensor, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        seeded(TINY).images(tokens)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"architecture": "vqgan"}, "one of dall-e, small, got 'vqgan'"),
        ({"vocab_size": 1}, "vocab_size must be a whole number from 2 to 65536, got 1"),
        ({"hidden_dim": 30}, "multiple of 4, got 30"),
        ({"num_blocks": 2.0}, "num_blocks must be a whole number from 1 to 16, got 2.0"),
    ],
)
def test_sizes_that_cannot_be_are_refused(options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        DVAEConfig(**options)
