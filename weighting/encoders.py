"""`Encoders`: the interface by which every front end, and a user's program, has prompts encoded.

Prompts are read and planned; then their plans are carried out together. The number of encodings is known before
anything is encoded.

Source: docs/performance.md, "Plans".
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..encoder.encoding import EncodeFn, Encoding
from ..encoder.files.checkpoint import load_text_models
from ..encoder.models.prefix import encoders_for
from ..encoder.models.text_model import TextModel
from .options import EncodeOptions
from .pipeline import Check, EncodedPrompt, ask, is_in_columns, plan_columns, plan_prompt
from .plan import Plan, Variant, different_asks, gathered, variant_mask
from .reading.prompt_reader import ReadPrompt
from .schemes import SCHEMES
from .schemes.negpip import check_without_signs
from .towers import Reader, in_folders, joined, native_readers, read_for_towers, read_together

MAX_CHUNKS = 32
"""Chunks per call of our own encoder: at most two seconds' work for two CPU cores."""
MAX_ENCODINGS = 4096
"""Maximum number of different encodings for the prompts of one run, unless an environment variable overrides it."""
VARIABLE = "WEIGHTED_CLIP_MAX_ENCODINGS"


class TooManyEncodings(ValueError):
    """Raised for prompts that take more encodings than allowed."""


class EncodedTowers(NamedTuple):
    """A prompt encoded by every tower."""

    hidden: Tensor
    """``[1, rows, sum of the towers' dims]``: rows common to all towers, in the order of ``prompts``."""
    pooled: Tensor
    """``[1, pooled_dim]`` of the last tower, in SDXL CLIP-G."""
    prompts: dict[str, EncodedPrompt]
    """Prompts by tower."""


class VersionMask(NamedTuple):
    """Attention mask of a prompt in one encoded version of it."""

    title: str
    """Title, such as ``the prompt``; several versions can have the same."""
    mask: Tensor
    """Bool ``[chunks, 77, 77]``, query by key, True = may be attended, causality included."""


class Encoders:
    """Text towers with their prompt readers.

    >>> from ..encoder.files.checkpoint import seeded_text_model
    >>> from ..encoder.models.config import TextConfig
    >>> model = seeded_text_model(TextConfig(hidden_dim=8, num_heads=2, num_layers=2, mlp_dim=16))
    >>> encoders = Encoders.of_models({"clip_l": model})
    >>> hidden, pooled = encoders("a (red:1.4) cat and a (dog:0.5)", syntax="a1111", scheme="masked_blend")
    >>> tuple(hidden.shape), tuple(pooled.shape)
    ((1, 77, 8), (1, 8))
    >>> encoders.prepare(["a cat", "a (dog:0.5)"], scheme="masked_blend").num_encodings
    3
    """

    def __init__(
        self,
        readers: Mapping[str, Reader],
        encoders: Mapping[str, EncodeFn] | None = None,
        *,
        max_chunks: int = MAX_CHUNKS,
        keeps_calls: bool = False,
        max_encodings: int | None = None,
    ) -> None:
        """Combine readers and towers; most callers use `load`."""
        self.readers = readers
        self.encoders = encoders or {}
        self.max_chunks = max_chunks
        self.keeps_calls = keeps_calls
        self.max_encodings = _default_max_encodings() if max_encodings is None else max_encodings

    @classmethod
    def load(
        cls,
        path: str | Path,
        *,
        clip_skip: int = 1,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
        embeddings: Iterable[str | Path] = (),
    ) -> Encoders:
        """Load the text towers of a safetensors file, in any common layout.

        Args:
            path: Text encoders or a checkpoint of Stable Diffusion 1.x, 2.x or SDXL.
            clip_skip: 1 = last layer, 2 = penultimate, ... as in the WebUI.
            dtype: Type of the weights and of the computation.
            device: Device of the weights.
            embeddings: Folders of textual inversions.

        Returns:
            The encoders.

        Raises:
            CheckpointError: If the file cannot be used.
            ValueError: If ``clip_skip`` is out of range.
        """
        models, _ = load_text_models(path, dtype=dtype, device=device)
        return cls.of_models(models, clip_skip=clip_skip, embeddings=embeddings)

    @classmethod
    def of_models(
        cls, models: Mapping[str, TextModel], *, clip_skip: int = 1, embeddings: Iterable[str | Path] = ()
    ) -> Encoders:
        """Same as `load`, for loaded towers, by ComfyUI's names."""
        encoders = encoders_for(models, clip_skip)[1]
        configs = {name: encoder.config for name, encoder in encoders.items()}
        return cls(native_readers(configs, in_folders(embeddings)), encoders)

    def __call__(self, text: str | Mapping[str, str], **choices: Any) -> Encoding:
        """Encode one prompt."""
        prepared = self.prepare([text], **choices)
        check_without_signs((parsed for reads in prepared.reads.values() for parsed in reads), "an `Encoding`")
        encoded = prepared.run()[0]
        return Encoding(encoded.hidden, encoded.pooled)

    def prepare(
        self, texts: Sequence[str | Mapping[str, str]], options: EncodeOptions | None = None, **choices: Any
    ) -> Prepared:
        """Read and plan prompts, without an encoder.

        Args:
            texts: Prompts, each one text, or one per tower by name.
            options: Options for reading and weighting them; or
            choices: Fields of `EncodeOptions`.

        Returns:
            The prepared prompts.

        Raises:
            TooManyEncodings: If they take more encodings than allowed.
            RepeatError: If the scheme ``repeat`` cannot weight one of them.
            NegPipError: If the scheme ``negpip`` or ``negpip_apart`` cannot.
            BindError: If its phrases cannot be bound.
            PromptError: In strict mode, if the reference raises.
            ValueError: If an option is out of range, or the filler is not exactly one token.
        """
        options = EncodeOptions(**choices) if options is None else options
        return self.plan([self.read(text, options) for text in texts])

    def read(self, text: str | Mapping[str, str], options: EncodeOptions) -> dict[str, ReadPrompt]:
        """Read one prompt for every tower, as `read_for_towers` does; for callers that plan many later.

        Raises:
            RepeatError: If the scheme ``repeat`` cannot weight it.
            NegPipError: If the scheme ``negpip_apart`` cannot.
            PromptError: In strict mode, if the reference raises.
            ValueError: If an option is out of range.
        """
        reads = read_for_towers(text, options, self.readers)
        _check(reads)
        return reads

    def plan(self, reads: Sequence[Mapping[str, ReadPrompt]]) -> Prepared:
        """Plan prompts returned by `by_tower`.

        Raises:
            As in `prepare`.
        """
        return Prepared(self, {name: [by_tower[name] for by_tower in reads] for name in self.readers})

    def prepare_together(self, texts: Sequence[str], options: EncodeOptions, kept: Sequence[int] = ()) -> Prepared:
        """Same as `prepare`, for texts that alternate while an image is made in the WebUI.

        Args:
            texts: The texts, at least one.
            options: Options for reading and weighting them.
            kept: As in `read_together`.

        Returns:
            The prepared texts, all with the same number of rows, except under the scheme ``repeat``.

        Raises:
            As in `prepare`.
        """
        reads = read_together(texts, options, self.readers, kept)
        for tower_reads in zip(*reads.values(), strict=True):
            _check(dict(zip(reads, tower_reads, strict=True)))
        return Prepared(self, reads, is_together=True)


class Prepared:
    """Prompts that have been read and planned. They can be encoded repeatedly, with other encoders too."""

    def __init__(
        self, encoders: Encoders, reads: Mapping[str, Sequence[ReadPrompt]], *, is_together: bool = False
    ) -> None:
        """Plan prompts that have been read."""
        self.reads = reads
        """Prompts as read, by tower."""
        self._encoders = encoders
        self._counts: dict[str, list[int]] = {}
        self._variants: dict[str, list[Callable[[], Iterable[Variant]]]] = {}
        self._plans: dict[str, Plan[list[EncodedPrompt]]] = {}
        for name, prompts in reads.items():
            tokenize = encoders.readers[name].tokenize
            plans = [plan_prompt(parsed, tokenize) for parsed in prompts]
            self._counts[name] = [self._counted(plan) for plan in plans]
            self._variants[name] = [plan.variants for plan in plans]
            has_columns = is_together and prompts and is_in_columns(prompts)
            self._plans[name] = plan_columns(prompts, tokenize) if has_columns else gathered(plans)

    @property
    def num_encodings(self) -> int:
        """Number of different encodings for the prompts, over all towers."""
        return sum(map(self._counted, self._plans.values()))

    @property
    def masks(self) -> list[list[VersionMask]]:
        """For each prompt, the masks of all versions encoded by the first tower, made without an encoder.

        They take 6 kB for each chunk of each version. The empty prompt, which some schemes also need, has none.
        """
        name, reads = next(iter(self.reads.items()))
        return [
            [
                VersionMask(variant.title, variant_mask(variant, parsed.layout.length))
                for variant in variants()
                if not variant.is_aside
            ]
            for variants, parsed in zip(self._variants[name], reads, strict=True)
        ]

    def run(self, check: Check | None = None) -> list[EncodedTowers]:
        """Encode the prompts with every tower.

        Args:
            check: Called before each call of a tower. An exception it raises ends the work.

        Returns:
            One result for each prompt.
        """
        by_tower = {name: self.run_tower(name, check=check) for name in self._plans}
        prompts = (dict(zip(by_tower, towers, strict=True)) for towers in zip(*by_tower.values(), strict=True))
        return [EncodedTowers(*joined(towers), towers) for towers in prompts]

    def run_tower(self, name: str, encode: EncodeFn | None = None, check: Check | None = None) -> list[EncodedPrompt]:
        """Encode the prompts with one tower.

        Args:
            name: Name of the tower.
            encode: The tower; by default the one of the encoders.
            check: As in `run`.

        Returns:
            One result for each prompt.
        """
        owner = self._encoders
        encode = owner.encoders[name] if encode is None else encode
        plan = self._plans[name]
        results = ask(plan, encode, max_chunks=owner.max_chunks, keeps_calls=owner.keeps_calls, check=check)
        return [
            result._replace(num_encodings=count, variants=variants)
            for result, count, variants in zip(results, self._counts[name], self._variants[name], strict=True)
        ]

    def _counted(self, plan: Plan[Any]) -> int:
        limit = self._encoders.max_encodings
        count = different_asks(plan.variants(), limit)
        if count > limit:
            raise TooManyEncodings(
                f"This takes more than {limit:,} different encodings, as the scheme encodes the prompt anew for its "
                f"weighted words: choose another scheme, such as comfy, or a larger number in {VARIABLE}."
            )
        return count


def _check(reads: Mapping[str, ReadPrompt]) -> None:
    """Raise if its scheme cannot weight a prompt, as read by each tower."""
    check = SCHEMES[next(iter(reads.values())).options.scheme].check
    if check is not None:
        check(reads)


def _default_max_encodings() -> int:
    written = os.environ.get(VARIABLE, "").strip() or str(MAX_ENCODINGS)
    if not written.isdecimal():
        raise ValueError(f"{VARIABLE}={written} is not a number of encodings; the default is {MAX_ENCODINGS}")
    return int(written)
