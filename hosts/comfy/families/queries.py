"""Layouts of queries in the attention of ComfyUI's diffusion models: places of the picture, rows of text, and others.

What they consist of is in ``weighting/placing/queries.py``.

Source: behaviour of ComfyUI 0.29.0; docs/reference/attention.md, "Places and times".
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from torch import Tensor

from ....weighting.placing.queries import Queries
from ..types import TransformerOptions


class ModelCall(NamedTuple):
    """Arguments of a call of a model."""

    network: Any
    """The model's ``diffusion_model``."""
    options: TransformerOptions
    """Its ``transformer_options``."""
    inputs: Mapping[str, Any]
    """Its other inputs by name."""
    size: tuple[int, ...] = ()
    """Height and width of the latent, for video frames in front."""


Layout = Callable[[ModelCall, int], Queries]
"""From a call of a model and its number of text rows, repeated for layers that read some twice, to its queries."""


def _patches(size: Sequence[int], patch: int) -> tuple[int, ...]:
    """Grid of a latent in square patches; those at the lower and right edges may reach over it."""
    return *size[:-2], *(-(-side // patch) for side in size[-2:])


def told_by_layer(call: ModelCall, num_text: int) -> Queries:
    """U-Nets: unknown until `of_layer`."""
    return Queries((0, 0))


def of_layer(options: Mapping[str, Any]) -> Queries:
    """Layout of a layer of a U-Net, from the host's options for its patches."""
    return Queries(tuple(options.get("activations_shape", (0, 0))[-2:]))


def text_in_front(call: ModelCall, num_text: int) -> Queries:
    """Flux, Chroma, Qwen-Image, Stable Diffusion 3, Krea 2: text, picture, reference images."""
    patch = getattr(call.network, "patch", None) or call.network.patch_size  # Krea 2's, else
    return Queries(_patches(call.size, patch), before=num_text, text=range(num_text))


def text_before_cells(call: ModelCall, num_text: int) -> Queries:
    """Ideogram 4: text, then the cells of the latent."""
    return Queries(tuple(call.size), before=num_text, text=range(num_text))


def text_before_references(call: ModelCall, num_text: int) -> Queries:
    """OmniGen 2 and Boogu: text, reference images, picture."""
    return Queries(
        _patches(call.size, call.network.patch_size), num_text + _num_of_references(call), 0, range(num_text)
    )


def _num_of_references(call: ModelCall) -> int:
    """Number of queries of reference images cut into the patches of a picture, ``[..., 1, 2, 2]`` or one side's."""
    patch = call.network.patch_size
    side = patch if isinstance(patch, int) else patch[-1]
    return sum(math.prod(_patches(latent.shape[2:], side)) for latent in call.inputs.get("ref_latents") or ())


def pad_multiple(network: Any) -> int:
    """Multiple to which a NextDiT fills up text and picture with rows of its own, each by itself; 1 if it does not."""
    return getattr(network, "pad_tokens_multiple", None) or 1


def text_in_front_padded(call: ModelCall, num_text: int) -> Queries:
    """Z-Image pads both text and picture with rows of its own; Lumina 2 neither."""
    grid = _patches(call.size, call.network.patch_size)
    multiple = pad_multiple(call.network)
    num_places = math.prod(grid)
    return Queries(grid, num_text + -num_text % multiple, -num_places % multiple, range(num_text))


def text_behind(call: ModelCall, num_text: int) -> Queries:
    """HiDream: picture, then text."""
    grid = _patches(call.size, call.network.patch_size)
    num_places = math.prod(grid)
    return Queries(grid, behind=num_text, text=range(num_places, num_places + num_text))


def text_behind_cells(call: ModelCall, num_text: int) -> Queries:
    """Lens: the cells of the latent, then text."""
    num_places = math.prod(call.size)
    return Queries(tuple(call.size), behind=num_text, text=range(num_places, num_places + num_text))


def text_behind_references(call: ModelCall, num_text: int) -> Queries:
    """JoyImage: picture, reference images, text."""
    grid = _patches(call.size, call.network.patch_size[-1])
    first = math.prod(grid) + _num_of_references(call)
    return Queries(grid, behind=first - math.prod(grid) + num_text, text=range(first, first + num_text))


def picture_alone(call: ModelCall, num_text: int) -> Queries:
    """Anima, Cosmos 1, Cosmos Predict 2, PixArt."""
    return Queries(_patches(call.size, getattr(call.network, "patch_spatial", None) or call.network.patch_size))


def num_guides(keyframes: Tensor | None, size: Sequence[int]) -> int:
    """Number of last frames of a latent that are guides, of which LTX-Video gets the coordinates.

    Args:
        keyframes: Coordinates of all their cells, ``[batch, 3, cells, 2]``; None if there are none.
        size: Frames, height and width of the latent.
    """
    if keyframes is None:
        return 0
    return min(-(-keyframes.shape[2] // math.prod(size[-2:])), size[0] - 1)


def before_guides(call: ModelCall, num_text: int) -> Queries:
    """LTX-Video: picture, then guides; the model leaves out guide cells below 0 in the mask of noise."""
    frames, *cells = call.size
    guides = num_guides(call.inputs.get("keyframe_idxs"), call.size)
    num_behind, noise = guides * math.prod(cells), call.inputs.get("denoise_mask")
    if guides and noise is not None:
        num_behind = int((noise[0, :, -guides:] >= 0).all(0).sum())
    return Queries((frames - guides, *cells), behind=num_behind)


def between_references(call: ModelCall, num_text: int) -> Queries:
    """Wan: a reference image if there is one, the picture, then frames and pictures of reference.

    SCAIL has its references before the picture and poses after it; HuMo and S2V have references after it, S2V also
    motion.
    """
    network, inputs = call.network, call.inputs
    _, down, across = network.patch_size
    grid = _patches(call.size, down)
    num_before, counts_behind = 0, []
    reference, frames = inputs.get("reference_latent"), inputs.get("time_dim_concat")
    if reference is not None:
        places = (*reference.shape[2:-2], reference.shape[-2] // down, reference.shape[-1] // across)
        if hasattr(network, "patch_embedding_pose"):
            num_before = math.prod(_patches(reference.shape[2:], down))
        elif getattr(network, "ref_conv", None) is not None:
            num_before = math.prod(places)
        elif hasattr(network, "audio_proj") or hasattr(network, "frame_packer"):
            counts_behind.append(math.prod(places))
    if frames is not None:
        counts_behind.append(frames.shape[-3] * math.prod(grid[-2:]))
    for picture in inputs.get("context_latents") or ():
        counts_behind.append(math.prod(_patches(picture.shape[-3:], down)))
    if (poses := inputs.get("pose_latents")) is not None and hasattr(network, "patch_embedding_pose"):
        counts_behind.append(math.prod(_patches(poses.shape[2:], down)))
    if (motion := inputs.get("reference_motion")) is not None:  # a frame, two more as one, sixteen as four
        height, width = motion.shape[-2:]
        counts_behind += [frames * (height // side) * (width // side) for frames, side in ((1, 2), (1, 4), (4, 8))]
    return Queries(grid, num_before, sum(counts_behind))
