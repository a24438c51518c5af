"""Draw image tokens from a prior one by one, with a key-value cache.

Shapes: n = images, T = positions of text, K = values of an image token, s = T + image tokens, h = heads, e = head_dim.

The masks are known beforehand, so a step reads only the keys and values that its mask allows.

Source: A. Ramesh et al., "Zero-Shot Text-to-Image Generation", 2021, sections 2.6 and 3.3; A. Holtzman et al., "The
Curious Case of Neural Text Degeneration", 2020, for top-p.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from ...encoder.quoting import quote
from .prior import Prior

MEMORY_BUDGET = 1024**3
"""Memory limit for the keys and values of images drawn together, in bytes."""

OnToken = Callable[[int, Tensor], None]
"""Callback after each token, given the number of finished images and the tokens so far of those being drawn, ``[images,
k]``. An exception it raises ends the work."""


@dataclass(frozen=True)
class SampleOptions:
    """Sampling options for a token.

    Raises:
        ValueError: If a number is out of range.
    """

    temperature: float = 1.0
    """Divisor of the logits; 0 takes the likeliest token."""
    top_k: int = 0
    """Draw only from the k likeliest values; 0 for all of them. Ties with the last of them are kept."""
    top_p: float = 1.0
    """Draw only from the likeliest values that together reach this probability; 1 for all of them."""

    def __post_init__(self) -> None:
        if not 0 <= self.temperature < math.inf:
            raise ValueError(f"temperature must be a number from 0, got {self.temperature}")
        if type(self.top_k) is not int or self.top_k < 0:
            raise ValueError(f"top_k must be a whole number from 0, got {quote(self.top_k)}")
        if not 0 < self.top_p <= 1:
            raise ValueError(f"top_p must be above 0 and at most 1, got {self.top_p}")


def probabilities(logits: Tensor, options: SampleOptions) -> Tensor:
    """Probabilities, ``[n, K]``, float64: after temperature, then top-k, then top-p, as in transformers."""
    logits = logits.double()
    if options.temperature == 0:
        return torch.zeros_like(logits).scatter_(1, logits.argmax(1, keepdim=True), 1.0)
    logits = logits / options.temperature
    if 0 < options.top_k < logits.shape[1]:
        threshold = logits.topk(options.top_k).values[:, -1:]
        logits = logits.masked_fill(logits < threshold, -math.inf)
    shares = logits.softmax(1)
    if options.top_p < 1:
        ordered, order = shares.sort(dim=1, descending=True, stable=True)
        before = ordered.cumsum(1) - ordered  # probability of all likelier values
        shares = shares.masked_fill((before >= options.top_p).gather(1, order.argsort(1)), 0.0)
        shares = shares / shares.sum(1, keepdim=True)
    return shares


def draw(shares: Tensor, numbers: Tensor) -> Tensor:
    """Draw one value for each row.

    ``shares`` are ``[n, K]``, ``numbers`` ``[n]`` in [0, 1). A value of probability 0 is never drawn.
    """
    sums = shares.cumsum(1)
    total = sums[:, -1:]
    chosen = torch.minimum(numbers.to(sums).unsqueeze(1) * total, torch.nextafter(total, torch.zeros_like(total)))
    return torch.searchsorted(sums, chosen, right=True).squeeze(1)


def sample(
    prior: Prior,
    text: Tensor,
    seeds: Sequence[int],
    options: SampleOptions | None = None,
    *,
    prefix: Tensor | None = None,
    memory_budget: int = MEMORY_BUDGET,
    on_token: OnToken | None = None,
) -> Tensor:
    """Draw images, as many at a time as the memory budget allows.

    Args:
        prior: The model.
        text: ``[T]``, int64: one caption, as a row of `Prior.padded`.
        seeds: One per image. An image's random numbers depend on its seed alone, not on the images drawn with it.
        options: Sampling options.
        prefix: First tokens of every image in raster order, int64.
        memory_budget: Bytes for keys and values; at least one image is drawn at a time.
        on_token: See `OnToken`.

    Returns:
        ``[n, rows, columns]``, int64, on the CPU.

    Raises:
        ValueError: If text or prefix do not fit the model, or its outputs are not finite.
    """
    config, options = prior.config, options or SampleOptions()
    prefix_tokens = torch.zeros(0, dtype=torch.long) if prefix is None else prefix
    if text.shape != (config.text_length,):
        raise ValueError(f"text must be [{config.text_length}], got {list(text.shape)}")
    if prefix_tokens.ndim != 1 or len(prefix_tokens) > config.num_image_tokens:
        raise ValueError(
            f"a prefix must be up to {config.num_image_tokens} tokens in raster order, got {list(prefix_tokens.shape)}"
        )
    if len(prefix_tokens) and not 0 <= int(prefix_tokens.min()) <= int(prefix_tokens.max()) < config.image_vocab_size:
        raise ValueError(f"tokens of a prefix must be from 0 to {config.image_vocab_size - 1}")
    together = images_at_once(prior, memory_budget)
    batches: list[Tensor] = []
    for start in range(0, len(seeds), together):
        tokens = torch.zeros(0)
        for tokens in steps(prior, text, seeds[start : start + together], options, prefix_tokens):
            if on_token is not None:
                on_token(start, tokens)
        batches.append(tokens.cpu())
    whole = torch.cat(batches) if batches else torch.zeros(0, config.num_image_tokens, dtype=torch.long)
    return whole.unflatten(1, config.grid)


@torch.inference_mode()
def steps(prior: Prior, text: Tensor, seeds: Sequence[int], options: SampleOptions, prefix: Tensor) -> Iterator[Tensor]:
    """Draw some images at once, yielding the tokens so far after each step, ``[n, k]``; first the prefix, if any.

    Arguments as in `sample`.
    """
    config = prior.config
    device = prior.final_layer_norm.weight.device
    count, length = len(seeds), config.num_image_tokens
    numbers = torch.stack(
        [torch.rand(length, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)) for seed in seeds]
    ).to(device)
    tokens = torch.empty(count, length, dtype=torch.long, device=device)
    tokens[:, : len(prefix)] = prefix.to(device)
    if len(prefix):
        yield tokens[:, : len(prefix)]
    if len(prefix) == length:
        return
    cache = Cache(prior, count)
    embedded = torch.cat(
        [prior.embedded_text(text.to(device)[None]), prior.embedded_image(tokens[:1, : len(prefix)])], 1
    )
    hidden = prior.run(embedded, 0, cache.pasts(0)).expand(count, -1, -1)
    for number in range(len(prefix), length):
        shares = probabilities(prior.image_head(hidden[:, -1]), options)
        if bool(shares.isnan().any()):
            raise ValueError("the model's outputs are no numbers (NaN): its weights, or their type, are of no use")
        tokens[:, number] = draw(shares, numbers[:, number])
        yield tokens[:, : number + 1]
        if number + 1 < length:
            start = config.first_image_position + number
            newest = prior.embedded_image(tokens[:, number : number + 1], number)
            hidden = prior.run(newest, start, cache.pasts(start))


class Cache:
    """Keys and values of all positions so far, of every layer."""

    def __init__(self, prior: Prior, count: int) -> None:
        """Allocate the cache."""
        config, weight = prior.config, prior.image_head.weight
        head_dim = config.hidden_dim // config.num_heads
        shape = (2, count, config.num_heads, config.length, head_dim)
        self._states = [torch.empty(shape, dtype=weight.dtype, device=weight.device) for _ in prior.layers]
        self._kinds = prior.kinds
        self._masks = {kind: prior.mask(index)[0, 0] for index, kind in enumerate(prior.kinds)}

    def pasts(self, start: int) -> list[Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]]:
        """Cache access of each layer at a position, counted from 0, which also stores the new keys and values."""
        attended = {kind: mask[start, : start + 1].nonzero().squeeze(1) for kind, mask in self._masks.items()}
        layers = zip(self._states, self._kinds, strict=True)
        return [partial(_remembered, states, attended[kind], start) for states, kind in layers]


def _remembered(states: Tensor, attended: Tensor, start: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
    """Store keys and values from a position on; return those that it attends to."""
    # at first all images have the same keys and values
    states[0, :, :, start : start + keys.shape[2]] = keys
    states[1, :, :, start : start + keys.shape[2]] = values
    if not start:
        return keys, values
    attended_states = states.index_select(3, attended)
    return attended_states[0], attended_states[1]


def images_at_once(prior: Prior, memory_budget: int = MEMORY_BUDGET) -> int:
    """Number of images drawn together, at least 1, within a budget in bytes for keys and values."""
    return max(1, memory_budget // bytes_per_image(prior))


def bytes_per_image(prior: Prior) -> int:
    """Approximate memory per image for keys and values, including the copy made by a step."""
    config = prior.config
    return 2 * (config.num_layers + 1) * config.length * config.hidden_dim * prior.image_head.weight.element_size()
