"""Subjects of comparison: each reference's name for a way of weighting, ours, and the allowed difference.

Limits are on the largest absolute difference of hidden states, which are between -7 and 7 on the seeded model.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Any

from ...nodes.old_workflows import INTERPRETATIONS
from .prompts import PROMPTS

LIMIT = 1e-5
"""Rounding of float32 through twelve layers by kernels with another order of summation."""
RATIO_LIMIT = 3e-5
"""The same after the scheme multiplied everything by a ratio of two means. Each is small compared with the values it
averages, so an encoder's rounding changes the ratio more. With the host's own encoder the limit is `LIMIT`."""

TWO_HOSTS_LIMIT = 1e-4
"""Limit between two hosts, each with its own encoder and torch."""

AFFECTED_BY_NUMPY_2 = frozenset({"compel", "comfy++", "down_weight"})
"""Styles of ComfyUI_ADV_CLIP_emb and prompt-control that find words through numpy.unique's inverse, whose shape changed
in numpy 2."""


@dataclass(frozen=True)
class Subject:
    """One line of the table: a reference's way of weighting and ours."""

    reference: str
    """Key of `REFERENCES`."""
    name: str
    """Name in the reference, unique there."""
    prompts: str
    """Key of `PROMPTS`."""
    settings: dict[str, Any]
    """Settings of the reference."""
    options: dict[str, Any]
    """Our settings: fields of `EncodeOptions`."""
    limit: float = LIMIT
    """Largest difference allowed between the reference and our native encoder."""
    host_limit: float | None = None
    """The same for our path through the reference's own encoder; None if there is none."""
    comfyui_limit: float | None = None
    """The same for our node in ComfyUI; None if that is not compared."""

    @property
    def key(self) -> str:
        """Its name in files of tensors."""
        return f"{self.reference}/{self.name}"

    def asked(self, step: int) -> dict[str, str]:
        """Every n-th prompt by its name in files of tensors."""
        prompts = PROMPTS[self.prompts]
        return {f"{self.key}/{number}": prompts[number] for number in range(0, len(prompts), step)}


REFERENCES = {
    "transformers": "transformers",
    "open_clip": "open_clip",
    "compel": "compel",
    "diffusers": "diffusers",
    "comfyui": "ComfyUI",
    "adv_clip_emb": "ComfyUI_ADV_CLIP_emb",
    "prompt_control": "prompt-control",
    "ppm": "ComfyUI-ppm",
    "forge": "Forge",
}
"""Names of the references. Those from ``diffusers`` on need --hosts."""

HOST_REFERENCES = ("comfyui", "adv_clip_emb", "prompt_control", "ppm", "forge")

_TRUNCATED = {"syntax": "compel", "scheme": "compel", "chunking": "compel truncate"}


def _transformers() -> list[Subject]:
    options = {"scheme": "unweighted"}
    return [
        Subject("transformers", f"CLIPTextModel, {attention}", "comfy", {"attention": attention}, options)
        for attention in ("sdpa", "eager")
    ]


def _compel() -> list[Subject]:
    removing = {**_TRUNCATED, "scheme": "masked_blend", "law": "compel", "mask_method": "remove"}
    hidden_padding = {**_TRUNCATED, "padding": "mask"}
    subjects = [
        Subject("compel", "defaults", "compel", {}, _TRUNCATED),
        Subject("compel", "DownweightMode.REMOVE", "compel", {"downweight_mode": "REMOVE"}, removing),
        Subject("compel", "padding hidden", "compel", {"padding_attention_mask_value": 0}, hidden_padding),
        Subject("compel", "long, truncated", "compel long", {}, _TRUNCATED),
    ]
    for mode in ("SENTENCES", "PHRASES", "WORDS", "BRUTAL"):
        options = {"syntax": "compel", "scheme": "compel", "chunking": f"compel {mode.lower()}"}
        subjects.append(Subject("compel", f"long, {mode}", "compel long", {"split": [mode]}, options))
    for flag, rows in (("COPY_FIRST_CLS_TOKEN", "first"), ("MERGE_CLS_TOKENS", "mean")):
        options = {"syntax": "compel", "scheme": "compel", "chunking": "compel sentences", "eos_rows": rows}
        settings = {"split": ["SENTENCES", flag]}
        subjects.append(Subject("compel", f"long, SENTENCES | {flag}", "compel long", settings, options))
    return subjects


def _diffusers() -> list[Subject]:
    """The lpw pipelines; the one for Stable Diffusion 1.x with its default call, and with its other setting."""
    reading = {"syntax": "a1111", "chunking": "compel brutal", "cleaning": "none"}
    ways = {
        "lpw_stable_diffusion": ({"pipeline": "sd"}, "a1111_global_norm", RATIO_LIMIT),
        "lpw_stable_diffusion, no_boseos_middle": ({"pipeline": "sd", "no_boseos_middle": True}, "lpw", RATIO_LIMIT),
        "lpw_stable_diffusion_xl": ({"pipeline": "sdxl"}, "lerp_last", LIMIT),
    }
    return [
        Subject("diffusers", name, "a1111", settings, {"scheme": scheme, **reading}, limit)
        for name, (settings, scheme, limit) in ways.items()
    ]


def _peer(reference: str, styles: dict[str, str], on_host: Collection[str]) -> list[Subject]:
    """Styles and normalisations of a pack; those in ``on_host`` also on our path through the host's encoder."""

    def subject(style: str, normalization: str) -> Subject:
        name = style if normalization == "none" else f"{style}, {normalization}"
        settings = {"style": style, "normalization": normalization}
        options = {"scheme": styles[style], "normalization": normalization}
        limit = RATIO_LIMIT if style == "A1111" else LIMIT
        return Subject(reference, name, "comfy", settings, options, limit, LIMIT if style in on_host else None)

    normalizations = ("mean", "length", "length+mean")
    return [*(subject(style, "none") for style in styles), *(subject("comfy", rule) for rule in normalizations)]


def _forge() -> list[Subject]:
    emphases = {"Original": "a1111", "No norm": "a1111_no_norm", "Ignore": "unweighted"}

    def subject(emphasis: str, options: dict[str, Any]) -> Subject:
        return Subject(
            "forge", emphasis, "a1111", {"emphasis": emphasis}, options, host_limit=0.0, comfyui_limit=TWO_HOSTS_LIMIT
        )

    subjects = [subject(emphasis, {"syntax": "a1111", "scheme": scheme}) for emphasis, scheme in emphases.items()]
    subjects.append(subject("None", {"syntax": "none", "scheme": "a1111", "chunking": "a1111"}))
    subjects += [replace(subject, name=f"{subject.name}, cleaned", prompts="cleaned") for subject in subjects]
    for family, quirks in (("embeddings", {}), ("embeddings moved", {"quirks": True})):
        subjects += [
            replace(
                plain,
                name=f"{plain.name}, {family}",
                prompts=family,
                options={**plain.options, **quirks},
                comfyui_limit=None,
            )
            for plain in subjects[: len(emphases)]
        ]
    return subjects


SUBJECTS: tuple[Subject, ...] = (
    *_transformers(),
    *_compel(),
    *_diffusers(),
    Subject("comfyui", "CLIP Text Encode", "comfy", {}, {"scheme": "comfy"}, LIMIT, 0.0),
    *_peer("adv_clip_emb", INTERPRETATIONS, on_host=INTERPRETATIONS),
    *_peer("prompt_control", {**INTERPRETATIONS, "perp": "perp"}, on_host=["perp"]),
    Subject("ppm", "CLIP NegPip", "comfy", {}, {"scheme": "negpip"}, LIMIT, 0.0),
    *_forge(),
)
"""All comparisons, in the order of the table. Our results through ComfyUI's encoder do not depend on the pack, so they
are compared with one of them only."""
