"""Time drawing of image tokens and training steps of our prior, and of dalle-pytorch in the same process.

Called by dalle.py in the Python of an environment that has dalle-pytorch, or in our own. A job is ``sizes`` (fields of
`PriorConfig`), ``has_peer``, ``images`` (one or more numbers of images drawn at once), ``pairs`` (per training step),
``steps`` (per round), and rounds: ``repetitions`` of drawing with a cache, ``uncached_repetitions`` without,
``training_repetitions``.

The result holds all times, parameters of both, the share of tokens that agree with and without a cache, and versions.
"""

# pyright: reportMissingImports=false

from __future__ import annotations

import importlib
import importlib.metadata
import platform
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor, nn

OURS, WITHOUT_CACHE, FULL, SPARSE = "ours", "without cache", "full", "sparse"
"""Contestants, as named in dalle.py."""
TOP_SHARE = 0.1
"""Share of the likeliest values that can be drawn, by all contestants."""
SEED = 0


def run(job: dict[str, Any]) -> dict[str, Any]:
    """Run a job."""
    import torch

    torch.manual_seed(SEED)
    prior = our_prior(job["sizes"])
    about = {"Python": platform.python_version(), "torch": torch.__version__, "threads": torch.get_num_threads()}
    peers: dict[str, Any] = {}
    if job["has_peer"]:
        from ...training.torchvision_operators import declare_missing_operators

        declare_missing_operators()
        about["dalle-pytorch"] = importlib.metadata.version("dalle-pytorch")
        peers = {name: peer_of(job["sizes"], name, for_drawing=True) for name in (FULL, SPARSE)}
    drawing = {str(count): drawn(job, prior, peers, count) for count in job["images"]}
    if job["has_peer"]:
        peers = {name: peer_of(job["sizes"], name, for_drawing=False) for name in (FULL, SPARSE)}
    return {
        "about": about,
        "parameters": {name: count(model) for name, model in {OURS: prior, **peers}.items()},
        "drawing": drawing,
        "training": trained(job, prior, peers),
    }


def count(model: nn.Module) -> int:
    """Number of trainable parameters."""
    return sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)


# ---- models


def our_prior(sizes: dict[str, Any]) -> Any:
    """Our prior with random weights, as at the start of training except for the heads, which are not 0."""
    import torch

    from ...dalle.prior import Prior, initialise
    from ...dalle.prior_config import PriorConfig

    prior = Prior(PriorConfig(**sizes))
    initialise(prior)
    for head in (prior.text_head, prior.image_head):
        torch.nn.init.normal_(head.weight, std=0.05)
    return prior.eval()


def peer_of(sizes: dict[str, Any], kind: str, *, for_drawing: bool) -> Any:
    """dalle-pytorch's model of the same depth, width, heads, vocabularies and lengths.

    Its rotary positions and shifted tokens, which cost time and which ours lacks, are off. Its own discrete VAE is as
    small as possible: nothing is decoded.
    """
    dalle = importlib.import_module("dalle_pytorch")
    side = sizes["rows"]
    vae = dalle.DiscreteVAE(
        image_size=2 * side, num_layers=1, num_tokens=sizes["image_vocab_size"], codebook_dim=2, hidden_dim=2
    )
    vae.decode = lambda tokens: tokens
    types = None
    if kind == SPARSE:
        from ...encoder.sparse_masks import layer_schedule

        names = {"row": "axial_row", "column": "axial_col", "convolutional": "conv_like"}
        if for_drawing:  # it has no cache for convolutional layers
            names["convolutional"] = "axial_row"
        types = tuple(names[layer] for layer in layer_schedule(sizes["num_layers"]))
    model = dalle.DALLE(
        dim=sizes["hidden_dim"],
        vae=vae,
        num_text_tokens=sizes["text_vocab_size"],
        text_seq_len=sizes["text_length"],
        depth=sizes["num_layers"],
        heads=sizes["num_heads"],
        dim_head=sizes["hidden_dim"] // sizes["num_heads"],
        attn_types=types,
        optimize_for_inference=for_drawing and kind == SPARSE,
        rotary_emb=False,
        shift_tokens=False,
    )
    if for_drawing:  # its own version drops the cache without guidance
        model.forward_with_cond_scale = lambda text, image, cond_scale, cache: model(text, image, cache=cache)
    return model.eval()


def caption(sizes: dict[str, Any], pairs: int) -> Tensor:
    """``[pairs, T]``: pieces from 1 on in half of the positions; then 0, dalle-pytorch's padding."""
    import torch

    generator = torch.Generator().manual_seed(SEED)
    text = torch.randint(1, sizes["text_vocab_size"], (pairs, sizes["text_length"]), generator=generator)
    text[:, sizes["text_length"] // 2 :] = 0
    return text


def padded(prior: Any, text: Tensor) -> Tensor:
    """The same captions with our padding."""
    return prior.padded([[piece for piece in row if piece] for row in text.tolist()])


# ---- drawing


def drawn(job: dict[str, Any], prior: Any, peers: dict[str, Any], images: int) -> dict[str, Any]:
    """Seconds for all tokens of some images, by each contestant."""
    import torch

    from ...dalle.sampling import SampleOptions, sample
    from .timing import times_in_turn

    text = caption(job["sizes"], 1)
    ours_text, several = padded(prior, text)[0], text.expand(images, -1)
    options = SampleOptions(top_k=max(1, int(TOP_SHARE * job["sizes"]["image_vocab_size"])))
    seeds = range(images)
    runs: dict[str, Callable[[], Any]] = {OURS: lambda: sample(prior, ours_text, seeds, options)}
    for name, peer in peers.items():
        runs[name] = lambda peer=peer: peer.generate_images(several, filter_thres=1 - TOP_SHARE, use_cache=True)
    times = times_in_turn(runs, repetitions=job["repetitions"], warm_up=1)
    found: dict[str, Tensor] = {}
    with_and_without = {
        OURS: lambda: found.update({OURS: sample(prior, ours_text, seeds, options).flatten(1)}),
        WITHOUT_CACHE: lambda: found.update({WITHOUT_CACHE: without_cache(prior, ours_text, seeds, options)}),
    }
    both = times_in_turn(with_and_without, repetitions=job["uncached_repetitions"], warm_up=0)
    same = (found[OURS] == found[WITHOUT_CACHE]).to(torch.float64).mean().item()
    return {"times": times, "cache": both, "same": same}


def without_cache(prior: Any, text: Tensor, seeds: range, options: Any) -> Tensor:
    """Draw by a full pass over everything so far for each token; ``[n, tokens]``."""
    import torch

    from ...dalle.sampling import draw, probabilities

    length = prior.config.num_image_tokens
    numbers = torch.stack(
        [torch.rand(length, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)) for seed in seeds]
    )
    tokens = torch.empty(len(seeds), 0, dtype=torch.long)
    with torch.inference_mode():
        known = prior.embedded_text(text.expand(len(seeds), -1))
        for number in range(length):
            hidden = prior.run(torch.cat([known, prior.embedded_image(tokens)], 1))
            shares = probabilities(prior.image_head(hidden[:, -1]), options)
            tokens = torch.cat([tokens, draw(shares, numbers[:, number]).unsqueeze(1)], 1)
    return tokens


# ---- training


def trained(job: dict[str, Any], prior: Any, peers: dict[str, Any]) -> dict[str, list[float]]:
    """Seconds for some steps by each, with the same captions and image tokens, loss weights, clipping and AdamW."""
    import torch
    from torch.nn.functional import cross_entropy

    from ...training.optimizer import adamw
    from .timing import times_in_turn

    sizes, pairs = job["sizes"], job["pairs"]
    text = caption(sizes, pairs)
    shape = (pairs, sizes["rows"] * sizes["columns"])
    image = torch.randint(sizes["image_vocab_size"], shape, generator=torch.Generator().manual_seed(SEED))
    own = padded(prior, text)

    def our_loss() -> Tensor:
        logits = prior(own, image)
        of_text = cross_entropy(logits.text.flatten(0, 1), own[:, 1:].flatten())  # padding counts, as in dalle-pytorch
        return of_text / 8 + cross_entropy(logits.image.flatten(0, 1), image.flatten()) * 7 / 8

    def steps(model: nn.Module, loss_of: Callable[[], Tensor]) -> Callable[[], None]:
        parameters = [parameter for parameter in model.train().parameters() if parameter.requires_grad]
        optimizer = adamw([{"params": parameters, "lr": 1e-4, "weight_decay": 0.045}])

        def run() -> None:
            for _ in range(job["steps"]):
                loss_of().backward()
                torch.nn.utils.clip_grad_norm_(parameters, 4.0)
                optimizer.step()
                optimizer.zero_grad()

        return run

    runs = {OURS: steps(prior.requires_grad_(True), our_loss)}
    for name, peer in peers.items():
        runs[name] = steps(peer, lambda peer=peer: peer(text, image, return_loss=True))
    taken = times_in_turn(runs, repetitions=job["training_repetitions"], warm_up=1)
    return {name: [one / job["steps"] for one in times] for name, times in taken.items()}
