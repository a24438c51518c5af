"""The parts of the loss compared with torch's own distributions and functions; schedules at their ends."""

from __future__ import annotations

import math

import pytest
import torch
from torch import distributions as dist
from torch.nn import functional
from weighted_clip.studio.dalle.dvae import map_pixels
from weighted_clip.studio.training.objectives.dalle_options import (
    KL_WEIGHT,
    NUM_STEPS,
    STEP_SIZE,
    TEMPERATURE,
    Schedule,
)
from weighted_clip.studio.training.objectives.dvae import (
    gumbel_noise,
    hard_tokens,
    kl_to_uniform,
    logit_laplace_nll,
    negative_elb,
    perplexity,
    relaxed_tokens,
)


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_the_likelihood_equals_torchs_laplace_through_a_sigmoid() -> None:
    """Over every 8-bit value, at means inside and outside and at wide and narrow scales."""
    x = map_pixels(torch.arange(256, dtype=torch.float64) / 255).expand(40, 256)
    mu = (4 * random(40, 1)).expand(40, 256)
    log_scale = torch.linspace(-3, 2, 40, dtype=torch.float64)[:, None].expand(40, 256)
    reference = dist.TransformedDistribution(dist.Laplace(mu, log_scale.exp()), [dist.SigmoidTransform()])
    ours = logit_laplace_nll(x, mu, log_scale)
    assert (ours + reference.log_prob(x)).abs().max() < 1e-12 * 100  # the largest is 100 nats
    relative = (ours + reference.log_prob(x)).abs() / reference.log_prob(x).abs().clamp_min(1)
    assert relative.max() <= 1e-12
    assert ours.max() > 50
    assert torch.equal(logit_laplace_nll(x, mu, 0.25), logit_laplace_nll(x, mu, torch.full_like(mu, 0.25)))


def test_the_likelihood_is_a_density() -> None:
    x = torch.linspace(0, 1, 200_001, dtype=torch.float64)[1:-1]
    density = torch.exp(-logit_laplace_nll(x, torch.full_like(x, 0.7), -0.5))
    assert density.sum().item() / 200_000 == pytest.approx(1, abs=1e-4)


def test_the_divergence_equals_torchs() -> None:
    logits = 3 * random(2, 50, 3, 4)
    ours = kl_to_uniform(logits)
    uniform = dist.Categorical(logits=torch.zeros(50, dtype=torch.float64))
    theirs = dist.kl_divergence(dist.Categorical(logits=logits.permute(0, 2, 3, 1)), uniform)
    assert ours.shape == (2, 3, 4)
    assert (ours - theirs).abs().max() < 1e-12
    assert kl_to_uniform(torch.zeros(1, 50, 1, 1)).item() == pytest.approx(0, abs=1e-6)
    sure = torch.zeros(1, 50, 1, 1, dtype=torch.float64)
    sure[0, 7] = 1e3
    assert kl_to_uniform(sure).item() == pytest.approx(math.log(50))


@pytest.mark.parametrize("temperature", [1.0, 0.3, 1 / 16])
def test_relaxed_tokens_are_those_of_torchs_gumbel_softmax(temperature: float) -> None:
    logits = random(2, 20, 3, 4)
    torch.manual_seed(5)
    theirs = functional.gumbel_softmax(logits, tau=temperature, dim=1)
    noise = gumbel_noise(logits, torch.Generator().manual_seed(5))
    ours = relaxed_tokens(logits, temperature, noise)
    assert (ours - theirs).abs().max() < 1e-14
    torch.manual_seed(5)
    hard = functional.gumbel_softmax(logits, tau=temperature, dim=1, hard=True)
    assert torch.equal(hard_tokens(logits, noise), hard.round())
    assert torch.equal(relaxed_tokens(logits, 1.0, None), logits.softmax(1))


def test_hard_tokens_come_as_often_as_their_shares_say() -> None:
    logits = random(1, 6, 1, 1).expand(1, 6, 300, 300)
    found = hard_tokens(logits, gumbel_noise(logits, torch.Generator().manual_seed(0)))
    assert (found.mean((0, 2, 3)) - logits[0, :, 0, 0].softmax(0)).abs().max() < 0.005


@pytest.mark.parametrize(("downsampling", "side"), [(8, 256), (4, 48)])
def test_the_loss_is_that_of_all_values_and_positions_divided_by_the_number_of_values(
    downsampling: int, side: int
) -> None:
    nll = random(2, 3, side, side)
    kl = random(2, side // downsampling, side // downsampling, seed=1).abs()
    by_image = nll.sum((1, 2, 3)) + 6.6 * kl.sum((1, 2))
    expected = (by_image / (side * side * 3)).mean()
    assert negative_elb(nll, kl, 6.6, downsampling).item() == pytest.approx(expected.item(), rel=1e-12)
    without = negative_elb(nll, kl, 0.0, downsampling)
    share = {8: 192, 4: 48}[downsampling]
    assert (negative_elb(nll, kl, 6.6, downsampling) - without).item() == pytest.approx(
        6.6 / share * kl.mean().item(), rel=1e-9
    )


def test_perplexity_counts_what_is_in_use() -> None:
    assert perplexity(torch.tensor([3, 0, 0])) == 1
    assert perplexity(torch.ones(128)) == pytest.approx(128)
    assert 1 < perplexity(torch.tensor([9, 1])) < 2


@pytest.mark.parametrize(
    ("schedule", "first", "middle", "last", "steps"),
    [
        (KL_WEIGHT, 0.0, 3.3, 6.6, 5_000),
        (TEMPERATURE, 1.0, 0.53125, 0.0625, 150_000),
        (STEP_SIZE, 1e-4, 5.0625e-5, 1.25e-6, 1_200_000),
    ],
)
def test_the_papers_schedules_are_exact_at_their_ends(
    schedule: Schedule, first: float, middle: float, last: float, steps: int
) -> None:
    assert schedule(0) == first
    assert schedule(steps) == schedule(NUM_STEPS) == last
    assert schedule(steps // 2) == pytest.approx(middle, rel=1e-12)
    assert schedule(steps // 4) == pytest.approx(last + (first - last) * (1 + math.cos(math.pi / 4)) / 2, rel=1e-12)
    assert min(first, last) < schedule(1) < max(first, last)
    assert min(first, last) < schedule(steps - 1) < max(first, last)


def test_other_courses_and_a_later_beginning() -> None:
    late = Schedule(1.0, 1 / 8, 300, 100, "geometric")
    assert [late(step) for step in (0, 100, 400, 900)] == [1, 1, 1 / 8, 1 / 8]
    assert late(200) == pytest.approx(1 / 2)
    assert Schedule(0.0, 0.2, 10, course="linear")(5) == pytest.approx(0.1)
    assert str(late) == "1 to 0.125 within 300 updates after 100 (geometric)"
    bad = [{"steps": 0}, {"first": -1.0}, {"course": "steep"}, {"begin": -1}, {"first": 0.0, "course": "geometric"}]
    for wrong in bad:
        with pytest.raises(ValueError, match=r"schedule|course"):
            Schedule(**{"first": 1.0, "last": 2.0, "steps": 3, **wrong})
