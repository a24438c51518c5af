"""The discrete VAE compared with OpenAI's own and transformers' copy of its encoder; tiles; bad input."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import torch
from torch import nn
from weighted_clip.studio.dalle import dvae as module
from weighted_clip.studio.dalle.config import PUBLISHED, SMALL, DVAEConfig
from weighted_clip.studio.dalle.dvae import DVAE, map_pixels, unmap_pixels

from ..libraries import library
from .models import TINY, TINY_SMALL, dall_e, formula_picture, pictures, reference, seeded, set_by_formula

RECORDED = Path(__file__).resolve().parents[1] / "data" / "dalle_dvae.json"

# ---- compared with OpenAI's package


@pytest.mark.parametrize(
    "config",
    [
        pytest.param(PUBLISHED, marks=pytest.mark.long, id="published"),
        pytest.param(TINY, id="tiny"),
        pytest.param(DVAEConfig(vocab_size=600, hidden_dim=72, num_blocks=3, init_dim=24), id="odd"),
    ],
)
def test_encoder_and_decoder_equal_those_of_openai_to_the_bit(config: DVAEConfig) -> None:
    encoder, decoder = reference(config)
    ours = seeded(config)
    encoder.load_state_dict(ours.encoder.state_dict())  # strict: the names are the same, one to one
    decoder.load_state_dict(ours.decoder.state_dict())
    pixels = map_pixels(pictures(2, 32, 48))
    logits = encoder(pixels)
    assert logits.shape == (2, config.vocab_size, 4, 6)
    assert logits.std() > 0.01
    assert torch.equal(ours.encoder(pixels), logits)
    shares = logits.softmax(1)
    found = decoder(shares)
    assert found.shape == (2, 6, 32, 48)
    assert torch.equal(ours.decoder(shares), found)
    # as OpenAI's notebook uses them
    tokens = torch.argmax(encoder(pixels), axis=1)
    one_hot = nn.functional.one_hot(tokens, num_classes=config.vocab_size).permute(0, 3, 1, 2).float()
    expected = dall_e().unmap_pixels(torch.sigmoid(decoder(one_hot).float()[:, :3]))
    assert torch.equal(ours.tokens(pictures(2, 32, 48)), tokens)
    assert torch.equal(ours.images(tokens), expected)


def test_what_openais_package_gave_once_comes_out_again() -> None:
    """Runs even if the package itself is not installed."""
    recorded = json.loads(RECORDED.read_text(encoding="utf-8"))
    ours = DVAE(TINY)
    set_by_formula(ours.encoder)
    set_by_formula(ours.decoder)
    with torch.no_grad():
        logits = ours.encoder(map_pixels(formula_picture()))
        decoded = ours.decoder(logits.softmax(1))
    assert logits.flatten()[::101].tolist() == pytest.approx(recorded["logits"], abs=2e-5)
    assert decoded.flatten()[::97].tolist() == pytest.approx(recorded["decoded"], abs=2e-5)


def test_pixels_are_mapped_as_by_openai_to_the_bit() -> None:
    theirs = dall_e()
    pixels = torch.rand(1, 3, 16, 16) * 1.4 - 0.2
    assert torch.equal(map_pixels(pixels), theirs.map_pixels(pixels))
    assert torch.equal(unmap_pixels(pixels), theirs.unmap_pixels(pixels))


def test_new_weights_are_spread_as_openai_spreads_them() -> None:
    encoder, decoder = reference(TINY)
    torch.manual_seed(0)
    ours = DVAE(TINY)
    for mine, theirs in ((ours.encoder, encoder), (ours.decoder, decoder)):
        for (name, parameter), (other, expected) in zip(
            mine.named_parameters(), theirs.named_parameters(), strict=True
        ):
            assert name == other
            if name.endswith(".b"):
                assert not parameter.any()
                assert not expected.any()
            else:
                assert parameter.std().item() == pytest.approx(expected.std().item(), rel=0.15)


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
