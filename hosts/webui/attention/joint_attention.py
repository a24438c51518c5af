"""Weights, places and word maps in Forge's models in which text and picture share an attention.

While an image is sampled, the function that the host's module calls for each attention of such a network is another
one, which acts in calls of this network alone, and passes all others on. It is always put back afterwards, and does
nothing any more where another extension has wrapped it meanwhile.

Source: docs/reference/beyond-clip.md, "How"; behaviour of stable-diffusion-webui-forge dfdcbab6 (2025-06).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial, wraps
from typing import Any

import torch
from torch import Tensor, nn

from ....weighting.key_weights import AttentionWeighting
from ....weighting.placing.field_bias import FieldBias, least_bias
from ....weighting.placing.queries import Queries
from ....weighting.reading.view import counted
from ..engines import Generation, WebUIError, is_ended
from .cross_attention import ATTENTIONS, AttentionHooks
from .joint_models import JointFamily, family_of, network_of
from .known_texts import RecognizedText, Texts, rows_in
from .map_recorder import WordMaps
from .placed_phrases import PlaceHooks

PATCH = 2
"""Places of the latent along a side of one of the picture's in these networks; at the edges they may reach over it."""
DENOISER = "model_wrap_cfg"
"""Attribute of the host's sampler: the module that it calls in each step, with all texts."""
WITH_KEYS = ("attention_pytorch", "attention")
"""Names of the host's functions that take a mask that is the same for all queries."""


class ForgeWeighting(AttentionWeighting):
    """Weights for one call of a network of Forge."""

    of_others = (
        "Another extension changes what the attention reads, where Weighted CLIP acts: switch it off, or Weighted CLIP."
    )
    unplaced = (
        "Places and Word maps need to know where in the picture each of {num_queries} places is, but here "
        "{num_expected} are known, the picture's being {grid}: another extension joins other pictures. Switch it off, "
        "or leave Places empty and switch Word maps off."
    )
    too_large = (
        "Places would take {gib:.1f} GiB in this model at this size, for the weights of {keys:,} rows at {queries:,} "
        "places in {prompts}; it takes 1 GiB at most. Take a smaller picture, or leave Places empty."
    )


class JointAttention:
    """Weights, places and word maps of a generation in the attention that its text and picture share."""

    def __init__(self, texts: Texts, placing: PlaceHooks | None, word_maps: WordMaps | None) -> None:
        """Store the texts, whose rows have effects, and what else acts."""
        self._texts, self._placing, self._word_maps = texts, placing, word_maps
        self._call: ForgeWeighting | None = None
        """Weights in the call of the network that is going on, if any act in it."""
        self._family: JointFamily | None = None
        self._is_first = False
        """Whether the next attention is the first one of its block."""
        self._active: dict[bool, list[set[int]]] = {}
        """Texts of each image in this step, by the address of their rows; by whether they are of negative prompts."""
        self._is_ambiguous = False
        self._num_acted = self._num_changed = 0
        self._are_finite: list[Tensor] = []
        self._undone = ExitStack()

    @property
    def _hooks(self) -> list[AttentionHooks]:
        return [hooks for hooks in (self._placing, self._word_maps) if hooks is not None]

    @contextmanager
    def acting(self, p: Generation) -> Iterator[None]:
        """Act for the duration of the context; places and word maps act in it too.

        Raises `WebUIError` afterwards if the weights have produced values that are not finite.
        """
        self._call, self._active = None, {}
        self._is_ambiguous, self._num_acted, self._num_changed = False, 0, 0
        self._are_finite.clear()
        network, self._family = network_of(p.sd_model), family_of(p.sd_model)
        with ExitStack() as self._undone:
            if self._family is not None and (self._hooks or any(text.effects for text in self._texts)):
                hooked = self._undone.enter_context
                hooked(network.register_forward_pre_hook(partial(self._begin, p), with_kwargs=True))
                hooked(network.register_forward_hook(self._end, always_call=True))
                for block in getattr(network, self._family.blocks) if self._family.blocks else ():
                    hooked(block.register_forward_pre_hook(self._begin_block))
                hooked(_around(sys.modules[self._family.module], self._family.function, self._attend))
            yield
        if not all(map(bool, self._are_finite)):
            raise WebUIError(
                "With these weights the picture is no longer made of finite numbers: they multiply by more than this "
                "model's number type can hold. Take weights nearer to 1."
            )

    def begin_pass(self, p: Any, latent: Tensor) -> None:
        """Let the sampler tell which texts it reads in each step."""
        denoiser = getattr(p.sampler, DENOISER, None)
        if isinstance(denoiser, nn.Module):
            self._undone.enter_context(denoiser.register_forward_pre_hook(self._note_step, with_kwargs=True))

    def _note_step(self, denoiser: Any, _: Any, inputs: Mapping[str, Any]) -> None:
        """Note the texts of each image in a step."""
        cond, uncond, step = inputs.get("cond"), inputs.get("uncond"), denoiser.step
        batches = ([part.schedules for part in parts] for parts in getattr(cond, "batch", ()))
        self._active = {
            False: [{_address(schedule, step) for schedule in schedules} for schedules in batches],
            True: [{_address(schedule, step)} for schedule in uncond or ()],
        }

    # In a call of the network

    def _begin(self, p: Any, _: nn.Module, args: tuple[Any, ...], inputs: Mapping[str, Any]) -> None:
        """Prepare a call."""
        self._call = None
        for hooks in self._hooks:
            hooks.begin_call()
        context, options = inputs.get("context"), inputs.get("transformer_options")
        if context is not None and options is not None and context.shape[1]:
            self._call = self._weighing(p, args[0], context, options)

    def _end(self, *_: Any) -> None:
        if self._call is not None:
            self._num_acted += bool(self._call.num_layers)
            if (is_finite := self._call.is_finite) is not None:
                self._are_finite.append(is_finite)
        self._call = None

    def _weighing(self, p: Any, latent: Tensor, context: Tensor, options: Mapping[str, Any]) -> ForgeWeighting | None:
        """Weights in a call; None if nothing acts in it."""
        kinds: Sequence[int] = options["cond_or_uncond"]
        each = len(context) // len(kinds)
        texts_read = [
            self._known(rows, index % each, is_negative=kinds[index // each] == 1)
            for index, rows in enumerate(context.cpu())
        ]

        def read(hooks: AttentionHooks) -> list[RecognizedText | None]:
            for index, text_read in enumerate(texts_read):
                if text_read is None and kinds[index // each] != 1:
                    hooks.refuse_changed()
            return [None if kinds[index // each] == 1 else text_read for index, text_read in enumerate(texts_read)]

        bias, factor = torch.zeros(context.shape[:2]), torch.ones(context.shape[:2])
        for index, text_read in enumerate(texts_read):
            if text_read is not None and text_read.text.effects:
                for start in text_read.starts:
                    text_rows = slice(start, start + text_read.text.num_rows)
                    bias[index, text_rows], factor[index, text_rows] = torch.tensor(text_read.text.effects).T
        call_weights = ForgeWeighting(bias, factor, latent.device)
        grid = tuple(-(-side // PATCH) for side in latent.shape[-2:])
        call_weights.queries = Queries(grid, before=context.shape[1], text=range(context.shape[1]))
        if self._placing is not None:
            placing = self._placing
            fields = placing.fields(p, latent, options, lambda: read(placing))
            call_weights.places = None if fields is None else _places(*fields, context)
        if self._word_maps is not None:
            call_weights.maps = self._word_maps.readings(latent, context, options, read(self._word_maps))
        is_plain = not bool((bias != 0).any()) and bool((factor == 1).all())
        return None if is_plain and not call_weights.has_places else call_weights

    def _known(self, rows: Tensor, image: int, *, is_negative: bool) -> RecognizedText | None:
        """Text that an image reads in a step, of several with the same rows the one that the sampler has told."""
        matches = self._texts.known(rows, is_negative=is_negative)
        if len({match.text.effects for match in matches}) > 1:
            active = self._active.get(is_negative, [])
            addresses = active[image] if image < len(active) else set[int]()
            matches = [match for match in matches if match.text.rows.data_ptr() in addresses] or matches
            self._is_ambiguous = self._is_ambiguous or len({match.text.effects for match in matches}) > 1
        if not matches and any(text.effects for text in self._texts if text.is_negative == is_negative):
            self._num_changed += 1
        return matches[0] if matches else None

    def _begin_block(self, *_: Any) -> None:
        self._is_first = True

    def _attend(self, function: Callable[..., Tensor], *inputs: Any, **choices: Any) -> Tensor:
        """An attention of the host, in which weights act if it reads text in such a call."""
        assert self._family is not None
        reads_text = self._is_first or not self._family.blocks
        self._is_first = False
        if self._call is None or not reads_text:
            return function(*inputs, **choices)

        def attention(
            query: Tensor, key: Tensor, value: Tensor, heads: int, mask: Tensor | None = None, **more: Any
        ) -> Tensor:
            name = getattr(function, "__name__", "")
            if mask is None:
                return function(query, key, value, heads, **more)
            if name not in (*ATTENTIONS, *WITH_KEYS):  # takes no mask of this form
                pytorch = sys.modules["backend.attention"].attention_pytorch
                return pytorch(query, key, value, heads, mask, **more)
            if name not in WITH_KEYS:
                mask = mask.expand(-1, -1, query.shape[-2], -1)
            return function(query, key, value, heads, mask, **more)

        try:
            return self._call.attend(attention, *inputs, **choices)
        except WebUIError:
            raise
        except ValueError as error:
            raise WebUIError(str(error)) from error

    # Afterwards

    def report(self) -> Iterator[str]:
        """Lines about weights that have not acted as they are written."""
        if self._is_ambiguous:
            yield (
                "The same words stand with other weights in two parts between ANDs, which nobody can tell apart while "
                "the picture is made: those of the first part acted in both."
            )
        if self._num_changed:
            yield (
                f"Weights did not act in {counted(self._num_changed, 'reading')} of a prompt: another extension has "
                "changed its rows, so nobody can tell which of them are the words."
            )
        has_effects = self._family is not None and any(text.effects for text in self._texts)
        if has_effects and not self._num_acted and not self._num_changed and not is_ended():
            yield "Warning: no attention of this model has read the text, so weights did not act in it."


def _address(schedule: Sequence[Any], step: int) -> int:
    """Address of the rows of the text that a schedule has in a step, as the host finds it."""
    entry = next((candidate for candidate in schedule if step <= candidate.end_at_step), schedule[0])
    return rows_in(entry.cond).data_ptr()


def _places(fields: Any, weights: Mapping[int, Tensor], context: Tensor) -> FieldBias:
    """Weights by place in a call with rows ``[batch, rows, dim]``, as `PlaceHooks.fields` has them."""
    by_place = torch.stack(list(weights.values()))[None].expand(len(context), -1, -1, -1)
    rows = torch.zeros(len(context), len(weights), context.shape[1])
    order = {index: number for number, index in enumerate(weights)}
    for image, image_fields in enumerate(fields):
        for index, keys in image_fields:
            rows[image, order[index], list(keys)] = 1.0
    unplaced_bias = torch.cat([least_bias(by_place[:1], image_rows) for image_rows in rows])
    return FieldBias(by_place, rows, unplaced_bias, context.device)


@contextmanager
def _around(module: Any, name: str, act: Callable[..., Tensor]) -> Iterator[None]:
    """Let a module of the host call a function around one of its own for the duration of the context."""
    inner = getattr(module, name)
    is_acting = True

    @wraps(inner)
    def attention(*inputs: Any, **choices: Any) -> Tensor:
        return act(inner, *inputs, **choices) if is_acting else inner(*inputs, **choices)

    setattr(module, name, attention)
    try:
        yield
    finally:
        is_acting = False
        if getattr(module, name) is attention:
            setattr(module, name, inner)
