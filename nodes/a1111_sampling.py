"""Nodes that draw the picture that A1111 or Forge draw: their noise, samplers and schedules."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ..hosts.comfy.a1111.files import file_rows, widths_of_model, with_loras_by_hash
from ..hosts.comfy.a1111.image_text import image_path, list_images, read_image_data
from ..hosts.comfy.a1111.noise import SOURCES, A1111Noise
from ..hosts.comfy.a1111.parameters import read_parameters
from ..hosts.comfy.a1111.samplers import AUTOMATIC, KINDS, check_denoise, make_run, make_sampler, model_sigmas
from ..hosts.comfy.a1111.schedules import SCHEDULES
from ..hosts.comfy.titles import READ_GENERATION_DATA
from ..hosts.comfy.types import ModelPatcher
from ..weighting.infotext import Infotext, read_infotext
from ..weighting.text.problems import Problem, refused
from .base.node import CATEGORY, CHECKED, PROMPT_SETTINGS, Node, Out, checked, make_input, number
from .base.node_state import NodeState
from .base.results import shown_result

SEED = number(0, 0, 2**64 - 1)
SAMPLING = (
    Out("SAMPLER", "SAMPLER", "The sampler, for SamplerCustomAdvanced."),
    Out("SIGMAS", "SIGMAS", "Its noise levels, for the same node, and for sigmas of A1111/Forge Prompt."),
)
NOISE = Out("NOISE", "NOISE", "The noise, for SamplerCustomAdvanced and for A1111 Sampler.")


class WeightedCLIPA1111Noise(Node):
    """Makes the noise of A1111 and Forge, to the bit: one generator for each picture of a batch, variations by a second
    seed, and noise for A1111 Sampler's later steps. For SamplerCustomAdvanced.
    """

    title = "A1111 Noise"
    CATEGORY = f"{CATEGORY}/same picture"
    aliases = (
        "same picture, same seed, automatic1111, forge, webui, random noise, variation seed, subseed, ENSD, NV, CPU"
    )
    outputs = (NOISE,)
    required = {
        "seed": make_input("INT", "The picture's seed; the next pictures of a batch follow by 1.", **SEED),
        "source": make_input(
            SOURCES,
            "The WebUI's setting Random number generator source: NV for NV and for GPU, which is nearly the same, CPU "
            "for CPU.",
        ),
        "ensd": make_input(
            "INT",
            "The WebUI's Eta noise seed delta: added to the seed for noise after the first.",
            **number(0, -(2**31), 2**31),
        ),
        "subseed": make_input("INT", "Variation seed.", **SEED),
        "subseed_strength": make_input(
            "FLOAT", "Variation strength: 0: seed alone; 1: variation seed alone.", **number(0.0, 0.0, 1.0, 0.01)
        ),
        "resize_width": make_input(
            "INT",
            "Resize seed from width, in pixels: keeps what a picture of this size has. 0: off.",
            **number(0, 0, 16384, 8),
        ),
        "resize_height": make_input("INT", "Resize seed from height, in pixels. 0: off.", **number(0, 0, 16384, 8)),
    }

    @classmethod
    def problems(cls, state: NodeState) -> Iterator[Problem]:
        """Problems of its inputs before a run."""
        if state.has("subseed_strength"):
            strength = state.values["subseed_strength"]
            yield from refused("subseed_strength", A1111Noise, 0, subseed_strength=strength)

    def run(self, **inputs: Any) -> tuple[A1111Noise]:
        """Put the noise together; nothing is drawn yet."""
        checked("source", inputs["source"], SOURCES)
        return (A1111Noise(**inputs),)


class WeightedCLIPA1111Sampler(Node):
    """Samples as A1111 and Forge do: their noise in every step, their schedules, and their own DDIM, PLMS, UniPC and
    LCM. For SamplerCustomAdvanced, with A1111 Noise; SD 1.x, SD 2.x and SDXL.
    """

    title = "A1111 Sampler"
    CATEGORY = f"{CATEGORY}/same picture"
    aliases = "same picture, automatic1111, forge, webui, euler a, DPM++ 2M Karras, DDIM, UniPC, schedule type, sigmas"
    outputs = SAMPLING
    required = {
        "model": make_input("MODEL", "The diffusion model, for its noise levels."),
        "noise": make_input("NOISE", "From A1111 Noise."),
        "sampler": make_input(KINDS, "Sampling method, as the WebUI names it."),
        "schedule": make_input(
            [AUTOMATIC, *SCHEDULES],
            "Schedule type, as the WebUI names it. Automatic is the sampler's own; DDIM, PLMS and UniPC have no other.",
        ),
        "steps": make_input("INT", "Sampling steps.", **number(20, 1, 1000)),
        "denoise": make_input("FLOAT", "Denoising strength; 1: from noise alone.", **number(1.0, 0.0, 1.0, 0.01)),
        "exact_steps": make_input(
            "BOOLEAN",
            "With denoise below 1: do all the steps, as Hires. fix does; off: a share of them, as img2img does.",
            default=False,
        ),
    }

    @classmethod
    def problems(cls, state: NodeState) -> Iterator[Problem]:
        """Problems of its inputs before a run."""
        names = ("sampler", "steps", "denoise", "exact_steps")
        if state.has(*names):
            sampler, steps, denoise, exact = (state.values[name] for name in names)
            yield from refused("denoise", check_denoise, sampler, steps, denoise, exact=exact)

    def run(
        self,
        model: ModelPatcher,
        noise: Any,
        sampler: str,
        schedule: str,
        steps: int,
        denoise: float,
        exact_steps: bool,
    ) -> tuple[Any, Any]:
        """Make the sampler and its noise levels."""
        if not isinstance(noise, A1111Noise):
            raise ValueError("A1111 Sampler: noise must come from A1111 Noise, whose generators go on in the steps")
        checked("sampler", sampler, KINDS)
        checked("schedule", schedule, [AUTOMATIC, *SCHEDULES])
        sigmas = model_sigmas(model)
        way = make_run(sigmas, sampler, schedule, steps, denoise, exact=exact_steps)
        levels = way.sigmas if exact_steps and denoise < 1 else way.timed(sampler, steps)
        return make_sampler(sampler, way, noise, sigmas), levels


class WeightedCLIPReadParameters(Node):
    """Reads what A1111, Forge or Civitai say about a picture, from its file or as text, for the nodes that draw it
    again: prompt, sampler, noise and all numbers. Prompt, seed and numbers also of InvokeAI, SwarmUI, Fooocus, NovelAI,
    Draw Things, Easy Diffusion and ComfyUI. What is not used is in the report.
    """

    title = READ_GENERATION_DATA
    CATEGORY = f"{CATEGORY}/same picture"
    aliases = (
        "read a1111 parameters, same picture, infotext, png info, generation data, civitai, metadata, automatic1111, "
        "forge, webui, novelai, invokeai, swarmui, fooocus, draw things, easy diffusion"
    )
    outputs = (
        Out("STRING", "prompt", "The prompt, for A1111/Forge Prompt."),
        Out("STRING", "negative", "The negative prompt, for A1111/Forge Prompt."),
        *SAMPLING,
        NOISE,
        Out("FLOAT", "cfg", "For CFGGuider; times the sum of the weights of a prompt's parts between ANDs."),
        Out("INT", "width", "For Empty Latent Image, in pixels."),
        Out("INT", "height", "For Empty Latent Image, in pixels."),
        Out("INT", "steps", "Sampling steps."),
        Out("INT", "seed", "The seed."),
        Out("INT", "clip_skip", "For CLIP Set Last Layer: the layer that the WebUI ends with for this model."),
        Out("STRING", "checkpoint", "Name of the checkpoint; with its hash, if the text gives it."),
        Out(
            "STRING",
            "report",
            "Values that are not used, values that were reinterpreted, and where all the others went.",
        ),
        Out(PROMPT_SETTINGS, "settings", "How the prompt was read and weighted, for A1111/Forge Prompt."),
        Out(PROMPT_SETTINGS, "negative_settings", "The same for the negative prompt."),
    )
    required = {
        "model": make_input("MODEL", "The diffusion model, for its noise levels."),
        "text": ("STRING", {"multiline": True, "tooltip": "Generation data. Empty: that of the image."}),
        "source": make_input(
            SOURCES, "Random numbers of a picture that does not name them: of a graphics card, or CPU."
        ),
    }

    @classmethod
    def INPUT_TYPES(cls) -> dict[str, Any]:
        """ComfyUI's description of the inputs, with the current images."""
        types = super().INPUT_TYPES()
        tooltip = "A picture as its program saved it: its generation data is read. Used where text is empty."
        image = (["", *list_images()], {"image_upload": True, CHECKED: True, "tooltip": tooltip})
        return {**types, "required": {**types["required"], "image": image}}

    @classmethod
    def IS_CHANGED(cls, image: str, **inputs: Any) -> Any:
        """Time of the image file, whose name may stay."""
        try:
            return image_path(image).stat().st_mtime_ns
        except (ValueError, OSError):
            return None

    @classmethod
    def problems(cls, state: NodeState) -> Iterator[Problem]:
        """Problems of its inputs before a run."""
        if state.has("text", "source", "image"):
            text, source, image = (state.values[key] for key in ("text", "source", "image"))
            name = "text" if text.strip() else "image"
            yield from refused(name, lambda: read_parameters(cls._infotext(text, source, image), source))

    @staticmethod
    def _infotext(text: str, source: str, image: str) -> Infotext:
        checked("source", source, SOURCES)
        return read_infotext(text) if text.strip() else read_image_data(image_path(image))

    def run(self, model: ModelPatcher, text: str, source: str, image: str) -> dict[str, Any]:
        """Read the text, or the image's."""
        infotext = self._infotext(text, source, image)
        widths = widths_of_model(model)
        params = read_parameters(infotext, source, widths)
        infotext, renamed = with_loras_by_hash(infotext, hashes_files=True)
        sigmas = model_sigmas(model)
        way = make_run(sigmas, params.sampler, params.schedule, params.steps, 1.0, exact=False)
        lines = params.report([*renamed, *file_rows(infotext, widths)])
        checkpoint = f"{params.model} [{params.model_hash}]" if params.model_hash else params.model
        sampler, levels = (
            make_sampler(params.sampler, way, params.noise, sigmas),
            way.timed(params.sampler, params.steps),
        )
        outputs = (
            *(infotext.prompt, infotext.negative, sampler, levels),
            *(params.noise, params.cfg, params.width, params.height, params.steps, params.noise.seed, params.clip_skip),
            *(checkpoint, "\n".join(lines), params.settings, params.negative_settings),
        )
        return shown_result(outputs, lines)
