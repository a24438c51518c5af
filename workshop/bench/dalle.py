"""Times of drawing image tokens and training the prior: with and without a cache, and compared with dalle-pytorch.

``--hosts DIR`` may contain a virtual environment ``dalle-venv`` with dalle-pytorch and our requirements: then all are
timed in its Python, in one process, in turn. Without it only ours is timed, in our own Python.
"""

# pyright: reportMissingImports=false

from __future__ import annotations

import importlib
import importlib.metadata
import platform
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ..find_hosts import python_of
from .page import NOT_FOUND, Goal, Request, Section, in_process, table, times
from .timing import compare, load, times_in_turn

if TYPE_CHECKING:
    from torch import Tensor, nn

OURS, WITHOUT_CACHE, FULL, SPARSE = "ours", "without cache", "full", "sparse"
"""Contestants in a job."""
TOP_SHARE = 0.1
"""Share of the likeliest values that can be drawn, by all contestants."""
SEED = 0
ENVIRONMENT = "dalle-venv"
DRAWING, TRAINING = "drawing", "training"
HEAD = (
    *("Work", "Images", "Peer", "Ours, ms", "Peer, ms", "Ours / peer", "Middle half"),
    *("Tokens/s, ours", "Tokens/s, peer", "Same tokens"),
)
OWN = "ours, without cache"
DRAWERS = {FULL: "dalle-pytorch, full attention, cache", SPARSE: "dalle-pytorch, row and column attention, cache"}
TRAINERS = {FULL: "dalle-pytorch, full attention", SPARSE: "dalle-pytorch, row, column, convolutional"}


def dalle_block(request: Request) -> str:
    """Section in Markdown: what ran, and a row for each peer."""
    folder, say = request.hosts, request.say
    python = None if folder is None else python_of(folder.resolve(), (ENVIRONMENT,))
    busy = load("the minute before")
    job = {**request.scale.dalle, "has_peer": python is not None}
    try:
        found = in_process("dalle-pytorch did not run" if python else "failed", run, job, python)
    except ValueError as error:
        say(str(error))
        return table(HEAD, _rows(job, None, "failed"), num_left=3)
    names = {OURS: "ours", FULL: "dalle-pytorch", SPARSE: "dalle-pytorch with row and column attention"}
    sizes = ", ".join(f"{names[name]} {number / 1e6:.2f} million" for name, number in found["parameters"].items())
    lines = [
        ", ".join(f"{name} {value}" for name, value in found["about"].items()),
        f"parameters: {sizes}",
        *busy,
    ]
    return "\n".join([*(f"- {line}" for line in lines), "", table(HEAD, _rows(job, found, NOT_FOUND), num_left=3)])


def _rows(job: dict[str, Any], found: dict[str, Any] | None, why: str) -> list[list[str]]:
    """Cells of `HEAD`; ``why`` is the reason for a missing peer."""
    sizes = job["sizes"]
    per_image = sizes["rows"] * sizes["columns"]
    rows: list[list[str]] = []

    def row(work: str, images: int, peer: str, taken: dict[str, list[float]] | None, key: str, tokens: int) -> None:
        about = [work, str(images), peer]
        if taken is None or key not in taken:
            rows.append([*about, *["-"] * 6, why])
            return
        ratio = compare(taken[OURS], taken[key])
        speeds = [f"{tokens / seconds:.3g}" for seconds in (ratio.ours, ratio.peer)]
        rows.append([*about, *times(ratio), *speeds, "-"])

    for images in job["images"]:
        drawn = None if found is None else found["drawing"][str(images)]
        row(DRAWING, images, OWN, drawn and drawn["cache"], WITHOUT_CACHE, images * per_image)
        if drawn:
            rows[-1][-1] = f"{drawn['same']:.1%}"
        for key, peer in DRAWERS.items():
            row(DRAWING, images, peer, drawn and drawn["times"], key, images * per_image)
    pairs = job["pairs"]
    for key, peer in TRAINERS.items():
        row(TRAINING, pairs, peer, found and found["training"], key, pairs * (per_image + sizes["text_length"]))
    return rows


DALLE = Section(
    "dalle",
    dalle_block,
    "Image tokens",
    (
        Goal("Drawing 1,024 image tokens", "our own full passes", {"Work": (DRAWING,), "Peer": (OWN,)}, 10.0),
        Goal(
            "Drawing 1,024 image tokens",
            "dalle-pytorch's cache",
            {"Work": (DRAWING,), "Peer": tuple(DRAWERS.values())},
            1.0,
        ),
        Goal(
            "A step of training a prior", "dalle-pytorch", {"Work": (TRAINING,), "Peer": tuple(TRAINERS.values())}, 1.0
        ),
    ),
)


# ---- in that process


def run(job: dict[str, Any]) -> dict[str, Any]:
    """Run a job, in the Python of an environment that has dalle-pytorch, or in our own.

    It has ``sizes`` (fields of `PriorConfig`), ``has_peer``, ``images`` (one or more numbers of images drawn at once),
    ``pairs`` (per training step), ``steps`` (per round), and rounds: ``repetitions`` of drawing with a cache,
    ``uncached_repetitions`` without, ``training_repetitions``. The result holds all times, parameters of both, the
    share of tokens that agree with and without a cache, and versions.
    """
    import torch

    torch.manual_seed(SEED)
    prior = our_prior(job["sizes"])
    about = {"Python": platform.python_version(), "torch": torch.__version__, "threads": torch.get_num_threads()}
    if job["has_peer"]:
        from ...training.distributed import declare_missing_operators

        declare_missing_operators()
        about["dalle-pytorch"] = importlib.metadata.version("dalle-pytorch")
    peers = _peers(job, for_drawing=True)
    drawing = {str(count): drawn(job, prior, peers, count) for count in job["images"]}
    peers = _peers(job, for_drawing=False)
    return {
        "about": about,
        "parameters": {name: count(model) for name, model in {OURS: prior, **peers}.items()},
        "drawing": drawing,
        "training": trained(job, prior, peers),
    }


def _peers(job: dict[str, Any], *, for_drawing: bool) -> dict[str, Any]:
    """dalle-pytorch's models, if it is here."""
    if not job["has_peer"]:
        return {}
    return {
        name: _open_peer(job["sizes"], is_sparse=is_sparse, for_drawing=for_drawing)
        for name, is_sparse in ((FULL, False), (SPARSE, True))
    }


def count(model: nn.Module) -> int:
    """Number of trainable parameters."""
    return sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)


# ---- models


def our_prior(sizes: dict[str, Any]) -> Any:
    """Our prior with random weights, as at the start of training except for the heads, which are not 0."""
    import torch

    from ...dalle.config import PriorConfig
    from ...dalle.prior import Prior, initialise

    prior = Prior(PriorConfig(**sizes))
    initialise(prior)
    for head in (prior.text_head, prior.image_head):
        torch.nn.init.normal_(head.weight, std=0.05)
    return prior.eval()


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


def _open_peer(sizes: dict[str, Any], *, is_sparse: bool, for_drawing: bool) -> Any:
    """Its model of the same depth, width, heads, vocabularies and lengths as our prior of these sizes.

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
    if is_sparse:
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
        optimize_for_inference=for_drawing and is_sparse,
        rotary_emb=False,
        shift_tokens=False,
    )
    if for_drawing:  # its own version drops the cache without guidance
        model.forward_with_cond_scale = lambda text, image, cond_scale, cache: model(text, image, cache=cache)
    return model.eval()


# ---- drawing


def drawn(job: dict[str, Any], prior: Any, peers: dict[str, Any], images: int) -> dict[str, Any]:
    """Seconds for all tokens of some images, by each contestant."""
    import torch

    from ...dalle.sampling import SampleOptions, sample

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
