"""Phrases placed in the picture and in time: weights by place in the cross attention of Forge's U-Net.

The rows of each text are noted when they are encoded, and known again by their numbers when the U-Net reads them. So it
does not matter what the host does with them in between: prompt editing, AND, batches, rows repeated to equal lengths.
While an image is sampled, hooks give the cross attention weights as a mask. The hooks are always removed afterwards.

Source: docs/reference/attention.md, "Places and times"; behaviour of stable-diffusion-webui-forge dfdcbab6 (2025-06).
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from hashlib import blake2b
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ...weighting.areas import area_mask
from ...weighting.fields import acts_at, levels_of_steps, logarithms, means, weights_by_place
from ...weighting.pipeline import EncodedPrompt
from ...weighting.places import PlacedPhrase
from ...weighting.prompt import shortened
from ...weighting.syntax import parse
from ...weighting.view import counted
from ...weighting.words import Words, rows_in_towers, words_of, words_of_towers
from .conditioning import Run
from .engines import Generation, Model, Watched, WebUIError, is_ended, unet_of
from .pairs import check_one_unet

ATTENTIONS = ("attention_basic", "attention_pytorch", "attention_split", "attention_sub_quad")
"""Names of the host's functions that take a mask with a number for each query and key."""
LEVELS = "get_sigmas"
"""Method by which the host's sampler makes the noise levels of its steps."""
STEP = "callback_state"
"""Method by which the host's sampler is told of each step, after the first call of the U-Net in it."""


class Text(NamedTuple):
    """A text as it is sampled."""

    rows: Tensor
    """``[rows, dim]``, in pairs if they are to be read in pairs."""
    found: tuple[tuple[int, ...], ...] = ()
    """Rows of each placed phrase; none for a negative prompt."""


class _Pass:
    """Steps of a sampling, counted from 0."""

    def __init__(self, title: str, num_places: int) -> None:
        self.title = title
        self.steps: set[int] = set()
        self.of_places: list[set[int]] = [set() for _ in range(num_places)]
        """Steps in which each placed phrase acted."""


class _Call:
    """Weights by place in calls of the U-Net that read the same rows of the same size."""

    def __init__(self, shape: torch.Size, num_keys: int, fields: Sequence[Sequence[tuple[list[int], Tensor]]]) -> None:
        """Store the context's shape, the keys made of its rows, and the fields of each picture.

        A field is the keys it is for and their weights by place, ``[height, width]``.
        """
        self.shape, self._num_keys, self._fields = shape, num_keys, fields
        self._by_grid: dict[tuple[tuple[int, int], torch.dtype], Tensor] = {}

    def bias(self, grid: tuple[int, int], query: Tensor) -> Tensor:
        """Bias of each key's logit at each query of a grid: ``[batch, 1, queries, keys]``, like the query."""
        key = grid, query.dtype
        if key not in self._by_grid:
            bias = torch.zeros(len(self._fields), 1, math.prod(grid), self._num_keys)
            for picture, fields in zip(bias, self._fields, strict=True):
                for keys, weights in fields:
                    picture[0, :, keys] += logarithms(weights, grid)[:, None]
            self._by_grid[key] = bias.to(query)
        return self._by_grid[key]


class Placing:
    """Placed phrases of a generation."""

    def __init__(self, places: Sequence[PlacedPhrase], *, in_pairs: bool) -> None:
        """Store the phrases, and whether rows are in pairs of key and value."""
        self._places, self._pair = places, 2 if in_pairs else 1
        self._texts: dict[tuple[bool, bool], list[Text]] = {}
        """Texts by what they belong to, as in `watched`."""
        self._known: dict[tuple[int, torch.dtype], dict[bytes, tuple[Text, int]]] = {}
        """Texts by what identifies their rows, each with the number after which they repeat; by number and type."""
        self._passes: list[_Pass] = []
        self._levels: list[float] | None = None
        self._cells: tuple[int, int] | None = None
        self._waiting: tuple[float, set[int]] | None = None
        """Noise level of the last calls, and the phrases that acted in them."""
        self._calls: dict[object, _Call] = {}
        self._call: _Call | None = None
        self._grid = (0, 0)

    # Before an image is sampled

    def check(self, p: Generation) -> None:
        """Raise if a generation cannot have placed phrases."""
        check_one_unet(p, "Places works", "leave Places empty")
        unet = unet_of(p.sd_model)
        if unet is None or not hasattr(p.sd_model, "forge_objects"):
            raise WebUIError(
                f"Places works in Forge with Stable Diffusion 1, 2 and XL, and does not know the U-Net of this model "
                f"({type(p.sd_model).__name__}) in this WebUI: leave Places empty."
            )
        attention = next(module for name, module in unet.named_modules() if name.endswith("attn2"))
        function = getattr(sys.modules[type(attention).__module__], "attention_function", None)
        name = getattr(function, "__name__", "")
        if name not in ATTENTIONS:
            raise WebUIError(
                f"Places does not work with this WebUI's attention ({name or 'unknown'}), which takes no weights by "
                "place: start Forge with --attention-pytorch and without xformers, or leave Places empty."
            )

    def check_phrases(self, words: Sequence[Words], others: Callable[[], Iterable[str]], syntax: str) -> None:
        """Raise if a phrase is in no text.

        Args:
            words: Words of the texts that are to be encoded now.
            others: Makes all texts of the generation.
            syntax: Their syntax.
        """
        missing = {one.phrase: one for one in self._places if not any(some.numbers_of(one.phrase) for some in words)}
        if not missing:
            return
        more = [words_of(parse(text, syntax).parts) for text in dict.fromkeys(others())]
        for phrase, place in missing.items():
            if not any(some.numbers_of(phrase) for some in more):
                raise WebUIError(
                    f"Places, “{shortened(place.line)}”: “{shortened(phrase)}” is in none of the prompts. Write words "
                    "as they stand there, without weights; negative prompts do not count."
                )

    def watched(self, model: Model, run: Run, kind: tuple[bool, bool]) -> Watched:
        """A model whose texts are noted when it encodes them.

        Args:
            model: The host's.
            run: Encodings that are made meanwhile.
            kind: Whether the texts are those of a negative prompt, and of hires. fix; those noted before are forgotten.
        """
        noted = self._texts[kind] = []
        self._known.clear()

        def encode(texts: Sequence[str]) -> Any:
            result = model.get_learned_conditioning(texts)
            rows = result["crossattn"] if isinstance(result, Mapping) else result
            for own, prompts in zip(rows, run.encoded_by_tower(texts), strict=True):
                is_negative, _ = kind
                found = [] if is_negative else [self._rows_of(one.phrase, prompts, len(own)) for one in self._places]
                noted.append(Text(own, tuple(found)))
            return result

        return Watched(model, encode)

    def _rows_of(self, phrase: str, prompts: Mapping[str, EncodedPrompt], num_rows: int) -> tuple[int, ...]:
        words = words_of_towers(prompts)
        if words is None:
            raise WebUIError(f"“{phrase}” cannot be placed: the rows of this prompt are a blend of several prompts.")
        found = rows_in_towers(words, phrase, num_rows // self._pair)
        if any(prompt.signs and any(prompt.signs[row] < 0 for row in found) for prompt in prompts.values()):
            raise WebUIError(
                f"“{phrase}” has a weight below 0, which takes it away in the attention: it cannot be placed. Take a "
                "weight of 0 or above, or its line out of Places."
            )
        return found

    # While an image is sampled

    @contextmanager
    def acting(self, p: Generation) -> Iterator[None]:
        """Place the phrases for the duration of the context.

        Raises `WebUIError` if the U-Net did not act within the context although nobody has interrupted it.
        """
        unet = unet_of(p.sd_model)
        assert unet is not None
        self._passes.clear()
        self._waiting = self._call = None
        with ExitStack() as self._undone:
            hooked = self._undone.enter_context
            hooked(unet.register_forward_pre_hook(lambda _, *given: self._begin(p, *given), with_kwargs=True))
            for name, module in unet.named_modules():
                if name.endswith("attn2"):
                    layer = unet.get_submodule(name.partition(".transformer_blocks.")[0])
                    hooked(layer.register_forward_pre_hook(self._see))
                    hooked(module.register_forward_pre_hook(self._give_bias, with_kwargs=True))
            yield
        if not any(one.steps for one in self._passes) and not is_ended():
            raise WebUIError(
                "This WebUI sampled without the U-Net that Weighted CLIP knows, so Places did not act: leave it empty."
            )

    def begin_pass(self, p: Any, latent: Tensor) -> None:
        """Note the size of the latent that is to be sampled, and let the sampler tell of its steps."""
        is_second = bool(getattr(p, "is_hr_pass", False))
        if len(self._passes) <= is_second:  # the host tells its second pass twice
            self._passes.append(_Pass(" of hires. fix" if is_second else "", len(self._places)))
        self._levels, self._cells = None, (latent.shape[-2], latent.shape[-1])
        self._calls.clear()
        self._after(p.sampler, LEVELS, self._note_levels)
        self._after(p.sampler, STEP, self._end_step)

    def _after(self, sampler: Any, name: str, note: Callable[[Any, Any], None]) -> None:
        """Let a method of the host's sampler tell its last argument and its result; undone when sampling ends."""
        inner = getattr(sampler, name, None)
        if inner is None or name in vars(sampler):
            return

        def noted(*args: Any, **kwargs: Any) -> Any:
            result = inner(*args, **kwargs)
            note(args[-1] if args else None, result)
            return result

        setattr(sampler, name, noted)
        self._undone.callback(vars(sampler).pop, name, None)

    def _note_levels(self, _: Any, levels: Tensor) -> None:
        self._levels = levels.tolist()

    def _end_step(self, told: Mapping[str, Any], _: Any) -> None:
        """Count the last calls to a step."""
        if self._waiting is not None:
            self._passes[-1].steps.add(told["i"])
            for index in self._waiting[1]:
                self._passes[-1].of_places[index].add(told["i"])

    def _begin(self, p: Any, args: tuple[Any, ...], inputs: Mapping[str, Any]) -> None:
        """Prepare a call of the U-Net."""
        latent, context, options = args[0], inputs["context"], inputs["transformer_options"]
        if not self._passes:
            raise WebUIError("This WebUI does not tell its scripts before it samples: leave Places empty.")
        sigma = float(options["sigmas"].flatten()[0])
        if self._waiting is None or self._waiting[0] != sigma:  # prompt and negative prompt may have calls of their own
            self._waiting = sigma, set()
        self._call, acted = None, self._waiting[1]
        acting = [
            index
            for index, place in enumerate(self._places)
            if not place.is_neutral and acts_at(sigma, *self._range_of(p, place))
        ]
        if not acting:
            return
        kinds = options["cond_or_uncond"]
        each = len(context) // len(kinds)
        found = [
            self._found_in(rows, is_negative=kinds[index // each] == 1) for index, rows in enumerate(context.cpu())
        ]
        fields = tuple(tuple((index, own[index]) for index in acting if own[index]) for own in found)
        acted |= {index for some in fields for index, _ in some}
        if not any(fields):
            return
        if options.get("patches_replace", {}).get("attn2"):
            raise WebUIError(
                "Another extension, such as IP-Adapter, replaces the cross attention, where Places acts: switch it "
                "off, or leave Places empty."
            )
        if self._cells != tuple(latent.shape[-2:]):
            raise WebUIError(
                "Another extension cuts the picture into parts, such as tiles: nobody can tell then where in the "
                "picture a part is. Switch it off, or leave Places empty."
            )
        key = context.shape, fields
        if key not in self._calls:
            weights = {index: self._weights_of(p, self._places[index]) for index in acting}
            by_picture = [[(list(keys), weights[index]) for index, keys in some] for some in fields]
            self._calls[key] = _Call(context.shape, context.shape[1] // self._pair, by_picture)
        self._call = self._calls[key]

    def _found_in(self, rows: Tensor, *, is_negative: bool) -> Sequence[tuple[int, ...]]:
        """Keys of each placed phrase among rows that the U-Net reads."""
        nothing = [()] * len(self._places)
        if is_negative:
            return nothing
        key = len(rows), rows.dtype
        if key not in self._known:
            self._known[key] = dict(_identified([text for some in self._texts.values() for text in some], *key))
        text, period = self._known[key].get(_digest(rows), (None, 0))
        if text is None:
            raise WebUIError(
                "Another extension has changed the rows of the prompt, so nobody can tell which of them are the "
                "phrases of Places: switch it off, or leave Places empty."
            )
        starts = range(0, len(rows) // self._pair, period // self._pair)
        return [tuple(start + row for start in starts for row in own) for own in text.found] or nothing

    def _range_of(self, p: Any, place: PlacedPhrase) -> tuple[float, float]:
        """Noise levels of a place's start and end."""
        if not place.in_steps:
            convert = p.sd_model.forge_objects.unet.model.predictor.percent_to_sigma
            return convert(place.start), convert(place.end)
        if self._levels is None:
            raise WebUIError(
                f"“{place.line}” counts steps, but the sampler {getattr(p, 'sampler_name', '')} does not say at which "
                "noise its steps are: write the time in parts of the way, such as 0-0.4, or take another sampler."
            )
        num_steps = _state().sampling_steps  # img2img leaves out the first ones
        return levels_of_steps(int(place.start), int(place.end), self._levels[-num_steps - 1 :])

    def _weights_of(self, p: Any, place: PlacedPhrase) -> Tensor:
        """Weights of a phrase at the latent's places, ``[height, width]``."""
        assert self._cells is not None
        mask = torch.ones(self._cells)
        if place.area is not None:
            try:
                mask = _mask_of(p, place, self._cells)
            except ValueError as error:
                raise WebUIError(f"Places, “{place.line}”: {error}") from error
        return weights_by_place(mask, place.inside, place.outside)

    def _see(self, layer: nn.Module, args: tuple[Any, ...]) -> None:
        """Note the grid of a layer."""
        self._grid = tuple(args[0].shape[-2:])

    def _give_bias(self, module: nn.Module, args: tuple[Any, ...], inputs: dict[str, Any]) -> Any:
        """Give a cross attention its mask."""
        if self._call is None:
            return None
        query, context = args[0], inputs.get("context")
        if context is None or context.shape != self._call.shape or query.shape[1] != math.prod(self._grid):
            raise WebUIError(
                "Another extension, such as Forge Couple, changes what the cross attention reads, where Places acts: "
                "switch it off, or leave Places empty."
            )
        return args, {**inputs, "mask": self._call.bias(self._grid, query)}

    # Afterwards

    def report(self) -> Iterator[str]:
        """A line about each placed phrase: in which texts it is, and in how many steps it acted."""
        texts = [text for some in self._texts.values() for text in some if text.found]
        for index, place in enumerate(self._places):
            name = f"“{place.line}”"
            if place.is_neutral:
                yield f"{name} changes nothing: its weight is 1 everywhere."
                continue
            num_found = sum(bool(text.found[index]) for text in texts)
            if not num_found:
                yield f"{name} is in none of the texts of these images."
                continue
            where = f" is in {num_found} of {counted(len(texts), 'text')} and" if num_found < len(texts) else ""
            counts = [(len(one.of_places[index]), len(one.steps), one.title) for one in self._passes if one.steps]
            acted = " and ".join(f"in {num} of {counted(total, 'step')}{title}" for num, total, title in counts)
            if any(num for num, _, _ in counts):
                yield f"{name}{where} acted {acted}."
            elif counts:
                yield f"Warning: {name}{where} acted {acted}: no step is in its time."


def _identified(texts: Sequence[Text], num_rows: int, dtype: torch.dtype) -> Iterator[tuple[bytes, tuple[Text, int]]]:
    """Texts by what identifies their rows once the host has made them ``num_rows``.

    It fills those of a batch up with copies of their last row, and repeats those of prompt and negative prompt.
    """
    for text in sorted(texts, key=lambda text: bool(text.found)):  # a prompt counts before an equal negative one
        rows = text.rows.detach().cpu()
        for period in range(len(rows), num_rows + 1):
            if num_rows % period == 0:
                filled = torch.cat([rows, rows[-1:].expand(period - len(rows), -1)])
                yield _digest(filled.repeat(num_rows // period, 1).to(dtype)), (text, period)


def _digest(rows: Tensor) -> bytes:
    return blake2b(rows.contiguous().view(torch.uint8).numpy().tobytes()).digest()


def _mask_of(p: Any, place: PlacedPhrase, cells: tuple[int, int]) -> Tensor:
    """Share of each cell of the latent that lies in the area of a place.

    In img2img with “Only masked” the latent is a part of the picture.
    """
    assert place.area is not None
    pasted, pictures = getattr(p, "paste_to", None), getattr(p, "overlay_images", None)
    if not pasted or not pictures:
        return area_mask(place.area, cells, (p.height, p.width))
    left, top, width, height = pasted
    size = pictures[0].height, pictures[0].width
    mask = area_mask(place.area, size, size)
    return means(mask[top : top + height, left : left + width], cells).float()


def _state() -> Any:
    """The host's state of the generation."""
    from modules import shared  # pyright: ignore[reportMissingImports]

    return shared.state
