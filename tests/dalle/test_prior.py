"""The prior: what each position sees, padding, loss; its cache; how tokens are drawn; compared with transformers."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor
from weighted_clip.encoder.models.config import MASK_VARIANTS
from weighted_clip.encoder.sparse_masks import convolutional_mask
from weighted_clip.studio.dalle import sampling
from weighted_clip.studio.dalle.config import PriorConfig
from weighted_clip.studio.dalle.prior import Prior, initialise
from weighted_clip.studio.dalle.sampling import SampleOptions, bytes_per_image, draw, probabilities, sample

from ..libraries import library

CONFIG = PriorConfig(
    text_vocab_size=20,
    text_length=5,
    rows=4,
    columns=3,
    image_vocab_size=11,
    hidden_dim=16,
    num_heads=2,
    num_layers=6,
    mlp_dim=32,
    kernel_size=3,
)


def seeded(config: PriorConfig = CONFIG, dtype: torch.dtype = torch.float64) -> Prior:
    """One whose outputs differ much between tokens."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        prior = Prior(config)
        initialise(prior)
        for name, parameter in prior.named_parameters():
            if "embedding" in name or "head" in name:
                torch.nn.init.normal_(parameter, std=0.7)
    return prior.to(dtype).eval().requires_grad_(False)


def pairs(count: int = 2) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    return (
        torch.randint(CONFIG.text_vocab_size, (count, CONFIG.text_length), generator=generator),
        torch.randint(CONFIG.image_vocab_size, (count, CONFIG.num_image_tokens), generator=generator),
    )


# ---- the model


@pytest.mark.parametrize(("grid", "most"), [((4, 3), 11), ((3, 9), 17), ((7, 2), 13)])
def test_a_kernel_larger_than_the_image_is_refused_and_none_would_change_anything(
    grid: tuple[int, int], most: int
) -> None:
    sizes = {**vars(CONFIG), "rows": grid[0], "columns": grid[1]}
    assert PriorConfig(**{**sizes, "kernel_size": most}).kernel_size == most
    with pytest.raises(ValueError, match=f"kernel_size must be at most {most} for .* image tokens, got {most + 2}"):
        PriorConfig(**{**sizes, "kernel_size": most + 2})
    for variant in MASK_VARIANTS:
        largest, larger = (convolutional_mask(2, grid, kernel_size=size, variant=variant) for size in (most, 2**31 + 1))
        assert torch.equal(largest, larger)


def test_a_prior_that_has_drawn_can_be_trained() -> None:
    prior, (text, image) = seeded(), pairs()
    sample(prior, text[0], [0])
    prior.requires_grad_(True)
    prior(text, image).image.sum().backward()
    assert all(parameter.grad is not None for parameter in prior.layers.parameters())


def test_an_output_depends_on_what_comes_before_it_and_on_nothing_else() -> None:
    prior, (text, image) = seeded(), pairs(1)
    before = prior(text, image)
    for place in range(CONFIG.length):
        others = text.clone(), image.clone()
        which, number = (0, place) if place < CONFIG.text_length else (1, place - CONFIG.text_length)
        others[which][0, number] = (others[which][0, number] + 1) % 11
        after = prior(*others)
        changed = torch.cat(
            [(one != other).any(-1)[0] for one, other in zip(before, after, strict=True)]
        )  # [T - 1 + n]: of position 1 on
        assert not changed[:place].any()
        assert changed[place:].all()


def test_layers_have_the_papers_masks_and_image_tokens_read_all_of_the_text() -> None:
    prior = seeded()
    assert prior.kinds == ["row", "column", "row", "row", "row", "convolutional"]
    assert seeded(PriorConfig(**{**vars(CONFIG), "num_layers": 7})).kinds[5] == "column"
    for index in range(6):
        mask = prior.mask(index)[0, 0]
        assert mask[CONFIG.text_length :, : CONFIG.text_length].all()
        assert torch.equal(mask[:5, :5], torch.ones(5, 5, dtype=torch.bool).tril())


def test_padding_has_a_token_of_its_own_at_each_position() -> None:
    prior = seeded()
    text = prior.padded([[3, 4], [], [1, 2, 3, 4, 5]])
    assert text.tolist() == [[3, 4, 22, 23, 24], [20, 21, 22, 23, 24], [1, 2, 3, 4, 5]]
    with pytest.raises(ValueError, match="a caption of 6 pieces: this model reads at most 5"):
        prior.padded([[1] * 6])
    with pytest.raises(ValueError, match="piece 20 is unknown: this model has pieces 0 to 19"):
        prior.padded([[20]])


def test_layers_are_those_of_gpt_2() -> None:
    """Pre-norm blocks of transformers' GPT-2 under our masks, one block for each."""
    gpt2 = library("transformers").models.gpt2.modeling_gpt2
    prior = seeded(PriorConfig(**{**vars(CONFIG), "activation": "gelu"}))
    config = library("transformers").GPT2Config(
        n_embd=16, n_head=2, n_inner=32, activation_function="gelu", attn_implementation="eager"
    )
    hidden = torch.randn(2, CONFIG.length, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    for index, layer in enumerate(prior.layers):
        block = gpt2.GPT2Block(config, layer_idx=index).double().eval()
        ours = layer.state_dict()
        attention = [f"self_attn.{name}_proj" for name in "qkv"]
        theirs = {
            "ln_1.weight": ours["layer_norm1.weight"],
            "ln_1.bias": ours["layer_norm1.bias"],
            "ln_2.weight": ours["layer_norm2.weight"],
            "ln_2.bias": ours["layer_norm2.bias"],
            "attn.c_attn.weight": torch.cat([ours[f"{name}.weight"] for name in attention]).T,
            "attn.c_attn.bias": torch.cat([ours[f"{name}.bias"] for name in attention]),
            "attn.c_proj.weight": ours["self_attn.out_proj.weight"].T,
            "attn.c_proj.bias": ours["self_attn.out_proj.bias"],
            "mlp.c_fc.weight": ours["mlp.fc1.weight"].T,
            "mlp.c_fc.bias": ours["mlp.fc1.bias"],
            "mlp.c_proj.weight": ours["mlp.fc2.weight"].T,
            "mlp.c_proj.bias": ours["mlp.fc2.bias"],
        }
        block.load_state_dict(theirs)
        mask = prior.mask(index)
        added = torch.zeros(mask.shape, dtype=torch.float64).masked_fill(~mask, -math.inf)
        found = block(hidden, attention_mask=added)
        found = found[0] if isinstance(found, tuple) else found
        assert (layer(hidden, mask, is_causal=False) - found).abs().max() < 1e-12


def test_checkpointed_layers_give_the_same_gradients() -> None:
    prior, (text, image) = seeded().requires_grad_(True), pairs()
    gradients = []
    for is_checkpointed in (False, True):
        prior.is_checkpointed = is_checkpointed
        prior.zero_grad()
        sum(logits.square().sum() for logits in prior(text, image)).backward()
        gradients.append([parameter.grad.clone() for parameter in prior.parameters()])
    assert all(torch.equal(one, other) for one, other in zip(*gradients, strict=True))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rows": 0}, "rows must be a whole number from 1 to"),
        ({"num_layers": 257}, "num_layers must be a whole number from 1 to 256, got 257"),
        ({"columns": 2.0}, "columns must be a whole number"),
        ({"num_heads": 3}, "hidden_dim 16 is not a multiple of num_heads 3"),
        ({"kernel_size": 4}, "kernel_size must be an odd number"),
        ({"rows": 100, "columns": 100}, "5 positions of text and 100 x 100 image tokens are 10,005 together"),
        ({"activation": "relu"}, "got 'relu'"),
        ({"layer_norm_eps": 0}, "layer_norm_eps must be a number between 0 and 1"),
    ],
)
def test_sizes_that_cannot_be(change: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        PriorConfig(**{**vars(CONFIG), **change})


def test_tokens_that_do_not_fit_are_refused() -> None:
    text, image = pairs()
    with pytest.raises(
        ValueError, match=r"text must be \[pairs, 5\] and image \[pairs, 12\], got \[2, 5\] and \[2, 11"
    ):
        seeded()(text, image[:, :-1])


# ---- sampling


def full_logits(prior: Prior, text: Tensor, tokens: Tensor) -> Tensor:
    """Logits of the next token, without a cache."""
    image = torch.zeros(len(tokens), CONFIG.num_image_tokens, dtype=torch.long)
    image[:, : tokens.shape[1]] = tokens
    return prior(text.expand(len(tokens), -1), image).image[:, tokens.shape[1]]


@pytest.mark.parametrize("num_given", [0, 1, 4, 11])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_cached_logits_are_those_of_the_full_pass(
    num_given: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    prior, (text, image) = seeded(dtype=dtype), pairs(1)
    seen: list[Tensor] = []

    def kept(logits: Tensor, options: SampleOptions) -> Tensor:
        seen.append(logits)
        return probabilities(logits, options)

    monkeypatch.setattr(sampling, "probabilities", kept)
    tokens = sample(prior, text[0], range(3), prefix=image[0, :num_given]).flatten(1)
    assert torch.equal(tokens[:, :num_given], image[:, :num_given].expand(3, -1))
    assert len(seen) == CONFIG.num_image_tokens - num_given
    for number, logits in enumerate(seen, num_given):
        expected = full_logits(prior, text, tokens[:, :number])
        assert (logits - expected).abs().max() < (1e-12 if dtype == torch.float64 else 1e-5)
    assert len({tuple(row) for row in tokens.tolist()}) > 1 or num_given == 11


def test_an_image_follows_from_its_seed_however_many_are_drawn_at_once() -> None:
    prior, (text, _) = seeded(), pairs(1)
    whole = sample(prior, text[0], [5, 6, 7, 8, 9])
    assert torch.equal(sample(prior, text[0], [8, 5]), whole[[3, 0]])
    counts: list[tuple[int, tuple[int, ...]]] = []
    parts = sample(
        prior,
        text[0],
        [5, 6, 7, 8, 9],
        memory_budget=2 * bytes_per_image(prior),
        on_token=lambda done, tokens: counts.append((done, tuple(tokens.shape))),
    )
    assert torch.equal(parts, whole)
    assert counts[0] == (0, (2, 1))
    assert counts[-1] == (4, (1, 12))
    assert len(counts) == 36
    assert len({tuple(one.flatten().tolist()) for one in whole}) == 5


def test_drawing_ends_within_a_token() -> None:
    prior, (text, _) = seeded(), pairs(1)
    calls = 0

    def interrupt(done: int, tokens: Tensor) -> None:
        nonlocal calls
        calls += 1
        if calls == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        sample(prior, text[0], range(3), on_token=interrupt)
    assert calls == 4


def test_tokens_come_as_often_as_they_are_probable() -> None:
    """The first token's frequencies among many images, within four standard deviations."""
    prior, (text, _) = seeded(), pairs(1)
    expected = full_logits(prior, text, torch.zeros(1, 0, dtype=torch.long)).softmax(-1)[0]
    numbers = torch.stack(
        [torch.rand(12, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) for seed in range(4000)]
    )
    drawn = draw(expected.expand(4000, -1), numbers[:, 0])
    found = torch.bincount(drawn, minlength=11) / 4000
    assert ((found - expected).abs() < 4 * (expected * (1 - expected) / 4000).sqrt() + 1e-9).all()


def test_a_value_without_probability_is_never_drawn() -> None:
    shares = torch.tensor([[0.0, 0.5, 0.0, 0.5, 0.0]], dtype=torch.float64).expand(4, -1)
    numbers = torch.tensor([0.0, math.nextafter(0.5, 0), 0.5, math.nextafter(1, 0)], dtype=torch.float64)
    assert draw(shares, numbers).tolist() == [1, 1, 3, 3]


@pytest.mark.parametrize(
    "options",
    [
        *({}, {"temperature": 0.7}, {"top_k": 4}, {"top_k": 29}, {"top_k": 30}, {"top_p": 0.8}),
        {"temperature": 1.3, "top_k": 7, "top_p": 0.6},
    ],
)
def test_probabilities_are_those_of_transformers(options: dict[str, float]) -> None:
    process = library("transformers").generation.logits_process
    logits = torch.randn(50, 30, generator=torch.Generator().manual_seed(0), dtype=torch.float64) * 2
    warpers = [
        process.TemperatureLogitsWarper(options.get("temperature", 1.0)),
        process.TopKLogitsWarper(int(options.get("top_k", 30))),
        process.TopPLogitsWarper(options.get("top_p", 1.0)),
    ]
    expected = logits.clone()
    for warper in warpers:
        expected = warper(None, expected)
    found = probabilities(logits, SampleOptions(**options))  # pyright: ignore[reportArgumentType]
    assert (found - expected.softmax(-1)).abs().max() < 1e-12
    assert torch.equal(found > 0, expected.softmax(-1) > 0)


def test_values_behind_those_that_just_reach_the_probability_are_left_out() -> None:
    assert probabilities(torch.zeros(1, 4), SampleOptions(top_p=0.5)).tolist() == [[0.5, 0.5, 0.0, 0.0]]


def test_temperature_0_takes_the_likeliest() -> None:
    prior, (text, _) = seeded(), pairs(1)
    [grid] = sample(prior, text[0], [0], SampleOptions(temperature=0))
    tokens = grid.flatten()[None]
    for number in range(CONFIG.num_image_tokens):
        assert full_logits(prior, text, tokens[:, :number]).argmax() == tokens[0, number]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"temperature": -1.0}, "temperature must be a number from 0, got -1"),
        ({"temperature": math.nan}, "temperature must be a number from 0, got nan"),
        ({"top_k": -1}, "top_k must be a whole number from 0, got -1"),
        ({"top_p": 0.0}, "top_p must be above 0 and at most 1, got 0"),
    ],
)
def test_options_that_cannot_be(options: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        SampleOptions(**options)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(
    ("prefix", "message"),
    [
        ([0] * 13, "a prefix must be up to 12 tokens in raster order"),
        ([3, 11], "tokens of a prefix must be from 0 to 10"),
    ],
)
def test_prefixes_that_do_not_fit(prefix: Sequence[int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        sample(seeded(), pairs(1)[0][0], [0], prefix=torch.tensor(prefix))


def test_a_model_that_gives_no_numbers_is_named() -> None:
    prior = seeded()
    prior.image_head.bias.fill_(torch.nan)
    with pytest.raises(ValueError, match=r"the model's outputs are no numbers \(NaN\)"):
        sample(prior, pairs(1)[0][0], [0])


def test_the_whole_image_can_be_given() -> None:
    text, image = pairs(1)
    assert torch.equal(sample(seeded(), text[0], [0], prefix=image[0]).flatten(1), image)
    assert sample(seeded(), text[0], []).shape == (0, 4, 3)
