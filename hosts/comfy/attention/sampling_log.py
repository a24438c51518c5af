"""What weights, places, regions and watched words do in one sampling of ComfyUI, and what they keep from step to step.

What they have done is told to the log and the page afterwards.

Source: behaviour of ComfyUI 0.29.0; docs/reference/attention.md, "Weights in the attention".
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import torch
from torch import Tensor

from ....weighting.placing.fields import small_picture
from ....weighting.reading.view import counted
from ..contract import running_server
from ..titles import PLACE_PHRASE, REGIONAL_PROMPT
from .fields import Step, Where, steps_of
from .recorder import Due, Maps, Records
from .regions import Region
from .steps import StepRows, Weights

logger = logging.getLogger(__name__)

MOST_KEPT = 2**28
"""Most bytes that are kept from step to step, but for those of the last call of the model."""
ONE_CALL = (
    *("euler", "euler_ancestral", "dpmpp_2m", "dpmpp_2m_sde", "dpmpp_2m_sde_gpu", "dpmpp_3m_sde", "dpmpp_3m_sde_gpu"),
    *("ddpm", "lcm", "lms", "ipndm", "ipndm_v", "deis", "res_multistep"),
)
"""Samplers of the host that call the model once a step, at the step's own noise level, if they have no options."""
SAMPLERS = "comfy.k_diffusion.sampling"
"""Module of the host that has them."""
EVENT = "weighted_clip.weighed"
"""Message to the page after a sampling: the node whose weights acted, and where (web/comfyui/ruler.js)."""


class SamplingLog:
    """Record of the weights' effects in one sampling."""

    def __init__(self) -> None:
        self.num_rows = 0
        self.num_layers = 0
        self.has_control = False
        self.are_finite: list[Tensor] = []
        """For each call of the model, whether its multiplied values are numbers; read once, after the last step."""
        self.node_ids: dict[Any, str] = {}
        """Node that weighted each entry, by the host's id of the entry."""
        self.of_nodes: dict[str, tuple[int, int]] = {}
        """Rows and layers in which the weights of a node acted."""
        self.of_places: dict[tuple[str | None, str, str], set[int]] = {}
        """Steps in which each placed phrase and each region acts, by its node, the node's name and its own."""
        self.pictures: dict[tuple[str | None, str], list[list[float]]] = {}
        """Small picture of the mask of each placed phrase and region that has acted, by its node and name."""
        self.noted: set[tuple[int, float | None, float | None]] = set()
        """Phrases and regions recorded there, by their identity, with the first and last level of their entry."""
        self.num_steps = 0
        self.levels: list[float] | None = None
        """Noise levels of all steps and the one after the last, as far as they are known."""
        self.of_times: dict[float, float] = {}
        """Levels of parts of the way, as `Step` keeps them."""
        self.num_done: int | None = None
        """Steps that are over, where the sampler calls the model once in each."""
        self.rows: dict[Hashable, tuple[Any, StepRows]] = {}
        """Rows of a marker by what they depend on, with the marker."""
        self._weights: dict[Hashable, Weights] = {}
        self.masks: dict[tuple[int, torch.Size], Tensor | None] = {}
        """Masks of placed phrases and regions, as `Step` keeps them."""
        self.texts: dict[Hashable, Tensor] = {}
        """Rows that the model has made of a region's, or without hidden ones, by identity of the region or marker.

        Those of regions with number type and device.
        """
        self.records = Records()
        self.due: tuple[Due, ...] = ()
        """Words that are watched in this step, by entry."""

    def counting(self, sampler: Any, callback: Callable[..., Any] | None) -> Callable[..., Any] | None:
        """A sampler's callback that counts its steps, if it calls the model once in each; else the one given."""
        function = getattr(sampler, "sampler_function", None)
        name, module = getattr(function, "__name__", ""), getattr(function, "__module__", "")
        if name.removeprefix("sample_") not in ONE_CALL or module != SAMPLERS or sampler.extra_options:
            return callback
        self.num_done = 0

        def counted_step(step: int, *rest: Any) -> None:
            self.num_done = step + 1
            if callback is not None:
                callback(step, *rest)

        return counted_step

    def level_of_call(self, sigma: Tensor) -> list[float]:
        """Noise level of a call of the model, for `Step.known`, where it can be told without waiting for a GPU."""
        if self.num_done is None or self.levels is None:
            return []
        if self.num_done == 0:  # in the first step it is read, to see that the sampler does as expected
            level = float(sigma)
            self.num_done = self.num_done if level == self.levels[0] else None
            return [level]
        return [self.levels[self.num_done]] if self.num_done < len(self.levels) - 1 else []

    def weights(self, key: Hashable, make: Callable[[], Weights]) -> Weights:
        """Weights of calls of the model with the same key, made once, unless too many are kept; None is no key."""
        if key is None:
            return make()
        found = self._weights.pop(key, None)
        self._weights[key] = found or make()
        while len(self._weights) > 1 and sum(each.num_bytes for each in self._weights.values()) > MOST_KEPT:
            self._weights.pop(next(iter(self._weights)))
        return self._weights[key]

    def all_finite(self, result: Tensor) -> bool:
        """Whether a result is made of finite numbers, and all values that were multiplied; read at once."""
        return bool(torch.stack([*self.are_finite, result.isfinite().all()]).all())

    def note(self, uuid: Any, num_rows: int, num_layers: int) -> None:
        """Record that weights of an entry have acted."""
        if num_rows and uuid in self.node_ids:
            rows, layers = self.of_nodes.get(self.node_ids[uuid], (0, 0))
            self.of_nodes[self.node_ids[uuid]] = max(rows, num_rows), max(layers, num_layers)

    def note_places(self, marker: Any, step: Step, start: float | None, end: float | None) -> None:
        """Record in which steps the placed phrases and regions of an entry act; it has a first and a last level."""
        if step.sigmas is None:
            return
        self.num_steps = len(step.sigmas) - 1
        for placed in (*marker.fields, *marker.regions):
            if (id(placed), start, end) in self.noted:  # in a step before
                continue
            self.noted.add((id(placed), start, end))
            if isinstance(placed, Region):
                self._of(REGIONAL_PROMPT, placed.where).update(placed.steps(step, start, end))
            else:
                self._of(PLACE_PHRASE, placed.where).update(steps_of(placed.where, step, start, end))
        for where in (placed.where for placed in (*marker.fields, *marker.regions)):
            key, mask_key = (where.node_id, where.name), (id(where), step.latent.shape)
            if (where.watch is not None or key not in self.pictures) and mask_key in self.masks:
                mask = self.masks[mask_key]
                self.pictures[key] = [[1.0]] if mask is None else small_picture(mask.flatten(0, -3).mean(0))

    def _of(self, title: str, where: Where) -> set[int]:
        return self.of_places.setdefault((where.node_id, title, where.name), set())

    def note_maps(self, maps: Maps, entries: Sequence[int]) -> None:
        """Record the maps of a call of the model, given the number of each image's entry."""
        for due in self.due:
            if due.number not in entries:
                continue
            image, start = entries.index(due.number), 0
            images = slice(image, image + entries.count(due.number))
            for watched in due.watches:
                words = slice(start, start + len(watched.rows))
                are_present = [bool(rows) for rows in watched.rows]
                self.records.by_watch[watched.watch].add(are_present, maps, images, words, due.area)
                start = words.stop

    def report(self) -> None:
        """Say where weights, places and regions have acted."""
        for (node_id, title, name), steps in self.of_places.items():
            text = f"{name} acted in {len(steps)} of {counted(self.num_steps, 'step')}"
            logger.log(logging.INFO if steps else logging.WARNING, "%s: %s", title, text)
            if node_id is None:
                continue
            place = {"name": name, "steps": sorted(steps), "num_steps": self.num_steps}
            place["picture"] = self.pictures.get((node_id, name))
            _tell(node_id, text, place=place)
        if not self.num_rows:
            return
        logger.info("Attention Weights: %s", _in_words(self.num_rows, self.num_layers))
        for node_id, counts in self.of_nodes.items():
            _tell(node_id, _in_words(*counts))
        if self.has_control:
            logger.info(
                "Attention Weights: the ControlNet read them at weight 1; it has no weights in its own attention"
            )


def _in_words(num_rows: int, num_layers: int) -> str:
    return f"{counted(num_rows, 'row')} in {counted(num_layers, 'attention layer')}"


def _tell(node_id: str, text: str, **more: Any) -> None:
    """Send a text, and more values, to a node on the page, if the host's server runs."""
    server = running_server()
    if server is not None:
        server.send_sync(EVENT, {"node": node_id, "text": text, **more}, server.client_id)
