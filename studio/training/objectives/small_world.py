"""Training of a small world: a text encoder and the network that reads it, from pictures drawn as they are needed."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn import functional as F

from ...world.evaluation import held_out_scenes, rightness, training_example
from ...world.lora import add_lora, check_mark, marked, save_lora
from ...world.model import WORLDS, World, load_world, save_world, to_latents, trained
from ..loop import Loop, listed
from ..optimizer import AdamW, by_decay
from ..options import WorldOptions

if TYPE_CHECKING:
    from accelerate import Accelerator

NAME = "world.safetensors"
LORA_NAME = "lora.safetensors"
NUM_MEASURED = 64
"""Pictures of held-out captions that a run is measured by."""
NUM_MEASURED_OF_LORA = 16
"""The same for a LoRA, whose whole run takes ten minutes."""
DROPPED = 0.1
"""Share of captions replaced by an empty one, for guidance."""


class WorldRun(Loop):
    """One run."""

    what = "pictures"
    least_between = 100  # steps of some 0.2 s, and a measurement takes ten times as long
    options: WorldOptions
    trained: World

    def __init__(
        self, folder: Path, options: WorldOptions, accelerator: Accelerator, say: Callable[[str], None]
    ) -> None:
        super().__init__(folder, options, accelerator, say, clip=options.clip)
        self.num_steps = options.steps
        processes = accelerator.num_processes
        if options.batch % processes:
            raise ValueError(f"a batch of {options.batch} pictures cannot be shared by {processes} processes")
        self._share = options.batch // processes
        make = WORLDS[options.kind]
        self.held = held_out_scenes(NUM_MEASURED, make.kinds)
        if options.lora:
            check_mark(options.mark, make.kinds)
            self.held = [marked(scene, options.mark) for scene in self.held[:NUM_MEASURED_OF_LORA]]
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(options.seed)
            world = load_world(trained(options.kind))[0].train() if options.lora else make()
            if options.text:
                world.keep_text(options.text)
            if options.lora:
                add_lora(world, options.lora)
        trainable = [parameter for parameter in world.parameters() if parameter.requires_grad]
        groups = by_decay(trainable, 1.0, options.weight_decay)
        self.prepare(world, groups, partial(AdamW, betas=(0.9, 0.99)))

    def factor(self, step: int) -> float:
        """The step size itself."""
        progress = step / self.num_steps
        return self.options.rate * min(1.0, (step + 1) / self.options.warmup, max(0.05, 2 * (1 - progress)))

    def _load(self, pool: ThreadPoolExecutor, step: int) -> Future[tuple[Tensor, Tensor, Tensor, Tensor]]:
        return pool.submit(self._drawn, step)

    def _drawn(self, step: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """This process's share of a step: latents, ids, times and noise, which depend on seed and step alone."""
        rank = self.accelerator.process_index
        rng = random.Random(f"{self.options.seed}/{step}/{rank}")
        generator = torch.Generator().manual_seed(rng.getrandbits(62))
        mark = self.options.mark if self.options.lora else ""
        pictures, captions = training_example(rng, self._share, self.trained.kinds, mark=mark)
        captions = ["" if rng.random() < DROPPED else caption for caption in captions]
        latents = to_latents(pictures)
        times = torch.randn(self._share, generator=generator).sigmoid()
        return latents, self.trained.ids(captions), times, torch.randn(latents.shape, generator=generator)

    def _backward(self, loaded: Future[tuple[Tensor, Tensor, Tensor, Tensor]]) -> dict[str, float]:
        latents, ids, times, noise = (tensor.to(self.accelerator.device) for tensor in loaded.result())
        part = times[:, None, None, None]
        velocity = self.model((1 - part) * latents + part * noise, times, ids)
        loss = F.mse_loss(velocity.float(), noise - latents)
        self.accelerator.backward(loss)
        return {"loss": loss.item()}

    @torch.no_grad()
    def measure(self, *, is_quiet: bool = False) -> dict[str, float]:
        """Share of right colours and kinds in pictures of held-out captions."""
        world = self.result
        world.eval()
        figures = rightness(world, self.held).means()
        world.train()
        if not is_quiet:
            self.say(
                f"{len(self.held)} pictures of held-out captions after {self.step:,} steps: "
                f"{figures['colors']:.1%} right colours, {figures['kinds']:.1%} right kinds"
            )
        return figures

    def _progress(self, entry: Mapping[str, float], speed: float) -> str:
        return f"loss {entry['loss']:.4f}, {speed:.0f} pictures/s"

    def about(self) -> dict[str, Any]:
        """Properties that a resumed run must share with the one it continues; each process draws its own pictures."""
        return {"processes": self.accelerator.num_processes, **listed(self.options)}

    def _write(self, result: World) -> None:
        recipe = {**asdict(self.options), "pictures": self.step * self.options.batch}
        recipe["text"] = self.options.text and Path(self.options.text).name
        if self.options.lora:
            save_lora(result, self.folder / LORA_NAME, recipe)
        else:
            save_world(result, self.folder / NAME, recipe)
