"""Our conditioning in one generation of the WebUI, from its script's ``process`` to its ``postprocess``.

The host's caches of conditioning ignore our settings, so our generations get their own caches. The extension ADetailer
redraws parts of an image with only those scripts that its setting names.

Source: docs/reference/hosts.md, "In the WebUI"; behaviour of stable-diffusion-webui 1.10, stable-diffusion-webui-forge
dfdcbab6 (2025-06) and adetailer 25.3.0 (36189cb).
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import Any

import torch
from torch import Tensor

from ...weighting.options import AS_HOST, PLACE_OPTIONS, PlaceOptions
from ...weighting.placing.places import PlacedPhrase
from ...weighting.schemes import SCHEMES
from ...weighting.script_settings import ACTED_BY
from ...weighting.text.tags import bare
from ...weighting.timed.editing import glides_in
from .attention.cross_attention import AttentionHooks
from .attention.joint_attention import JointAttention
from .attention.joint_models import acted_by, family_of, idle_lines, is_beyond_clip, t5_rule, title_of
from .attention.known_texts import Texts
from .attention.map_recorder import WordMaps
from .attention.pairs import check_one_unet, is_theirs_active, reading_pairs
from .attention.placed_phrases import PlaceHooks
from .conditioning import cannot_be_bound, refuse_infinite_parts, refuse_padded_prompts, swapped
from .engines import (
    Generation,
    HostModel,
    InterceptedModel,
    Processed,
    WebUIError,
    as_emphasized,
    engines_of,
    is_ended,
)
from .gliding import NO_PLACES, THEIRS_GLIDES, is_fusion_active, with_glides
from .joint_texts import JointTexts, Weights
from .joints import THEIRS_JOINS, Joints, is_neutral_prompt_active
from .script.axes import settle
from .script.notes import LEFT_OUT, Problems, idle_emphasis, leaves_us_out, sampler_lines
from .settings import FIRST, INFOTEXT, Settings
from .t5_rows import hosts_own

logger = logging.getLogger(__name__)

CACHES = ("cached_c", "cached_uc", "cached_hr_c", "cached_hr_uc")
"""Attributes in which a generation keeps conditioning: shared with all others, unless replaced."""
ONLY_CLIP = "this model reads text by CLIP alone, where the scheme acts."
THEIRS_ACT = "the extension NegPiP is active: it is what takes words of weights below 0 away, not Weighted CLIP."
THEIRS_BESIDE_REPEAT = (
    "The extension NegPiP, which is active, tells rows by how many there are, and the scheme repeat changes that: "
    "switch one of the two off."
)
PROBLEMS = f"{INFOTEXT} problems"
"""Key in the API's ``info`` for the lines shown below the image."""
_SAMPLING = "weighted_clip_sampling"
"""Attribute of an armed generation: its `_Sampling`."""
MAX_COMMENTS = 20
"""Maximum number of problems listed; the rest are only counted."""
PARSER = "get_learned_conditioning_prompt_schedules"
"""Name of the host's function that reads the times of prompts."""


def arm(p: Generation, values: Sequence[Any]) -> None:
    """Make the coming generation use our conditioning, if the script is enabled. For the script's ``process``.

    Problems are raised when the host requests conditioning, as it swallows exceptions raised here. ``values`` are those
    of the script's controls, in the order of `Settings`.
    """
    _disarm(p)
    values = settle(p, values)
    if not values or values[0] is None or values[0] is False:
        return
    inner = getattr(p, "get_conds_with_caching", None)
    if inner is None:
        _comment(p, f"{INFOTEXT} is not used: this WebUI computes conditioning in a way it does not know.")
        return
    _empty_caches(p)
    comments: dict[str, None] = dict.fromkeys([LEFT_OUT] if leaves_us_out(p) else [])
    shown_lines: list[str] = []
    problems = Problems(p)
    absent: set[str] | None = None

    def tell(lines: Iterable[str] = ()) -> None:
        comments.update(dict.fromkeys(lines))
        shown_lines[:] = _shown(comments)
        for text in shown_lines:
            _comment(p, f"{INFOTEXT}: {text}")

    sampling = _arm_sampling(p, tell)

    def get_conds(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        settings = Settings.of(values)
        options, places = settings.options(), settings.placed()
        comments.update(dict.fromkeys(settings.unread()))
        glides = settings.glides != PlaceOptions.glides
        if glides and is_fusion_active():
            glides = False
            comments[THEIRS_GLIDES] = None
        sampling.joints = (sampling.joints or Joints()) if settings.joins != PlaceOptions.joins else None
        if sampling.joints is not None and is_neutral_prompt_active():
            sampling.joints = None
            comments[THEIRS_JOINS] = None
        if is_beyond_clip(p.sd_model):
            if glides:
                comments[f"{PLACE_OPTIONS['glides'].label} are not read in {title_of(p.sd_model)}, but text."] = None
            sampling.in_pairs = False
            make = beyond_clip(p, sampling, settings, comments, problems)(function)
            result = inner(sampling.cutting(function, make), *args, **kwargs)
            sampling.end_cut_short(p)
            tell()
            return result
        comments.update(dict.fromkeys(idle_emphasis(p, options)))
        sampling.joint = None
        if settings.attention not in (AS_HOST, FIRST["attention"]):
            comments[f"{PLACE_OPTIONS['attention'].label} {settings.attention} changes nothing: {ONLY_CLIP}"] = None
        sampling.in_pairs = SCHEMES[options.scheme].is_signed
        if sampling.in_pairs and is_theirs_active(p):
            sampling.in_pairs = False
            comments[THEIRS_ACT] = None
        if sampling.in_pairs:
            check_one_unet(p, "The schemes negpip and negpip_apart work", "another scheme")
            refuse_padded_prompts(options.scheme)
        if places or settings.word_maps:
            sampling.watch(places, has_word_maps=settings.word_maps)
        for hooks in sampling.hooks:
            hooks.check(p)

        make = with_glides(function) if glides else function

        def encoded(model: HostModel, prompts: Any, *rest: Any, **named: Any) -> Any:
            nonlocal absent
            _raise_if_ended()
            if glides and sampling.texts is not None and any(map(glides_in, prompts)):
                raise WebUIError(NO_PLACES)
            engines = engines_of(model)
            # with the host's own settings for reading prompts
            reading = as_emphasized(replace(options, comma_backtrack=next(iter(engines.values())).comma_backtrack))
            is_negative = getattr(prompts, "is_negative_prompt", False)
            if is_negative:
                reading = replace(reading, bind_strength=0.0)
            texts = _texts_of(make, model, prompts, *rest, **named)
            with swapped(engines, reading, texts, check=_raise_if_ended, in_pairs=sampling.in_pairs) as run:
                missing = run.absent()  # these refusals come before anything is encoded
                if run.stack.is_repeating:
                    refuse_padded_prompts(options.scheme)
                    if is_theirs_active(p):
                        raise WebUIError(THEIRS_BESIDE_REPEAT)
                if reading.binds:
                    absent = missing if absent is None else absent & missing
                    if absent:
                        raise WebUIError(cannot_be_bound(absent))
                if sampling.texts is None:
                    result = make(model, prompts, *rest, **named)
                else:
                    if sampling.placing is not None and not is_negative:
                        sampling.placing.check_phrases(
                            run.words(),
                            lambda: chain(*_texts_of(function, model, _prompts_of(p), *rest, **named)),
                            reading.syntax,
                        )
                    kind = is_negative, _is_of_hires(p, *rest, **named)
                    result = function(sampling.texts.watched(model, run, kind), prompts, *rest, **named)
                    for hooks in sampling.hooks:
                        hooks.find()
            refuse_infinite_parts(result)
            if not run.encoded:
                raise WebUIError(f"This WebUI encoded without asking {INFOTEXT}: the weights would be its own.")
            if reading.binds:
                comments.update(dict.fromkeys([*run.passes(), *sorted(missing)]))
            comments.update(dict.fromkeys(problems.lines(run.problems(), is_negative=is_negative)))
            return result

        result = inner(sampling.cutting(function, sampling.unless_ended(function, encoded)), *args, **kwargs)
        sampling.end_cut_short(p)
        tell()
        return result

    get_conds.lines = shown_lines  # pyright: ignore[reportFunctionMemberAccess]
    p.get_conds_with_caching = get_conds
    with contextlib.suppress(WebUIError):  # raised again above
        settings = Settings.of(values)
        _leave_out_comments(p, settings.options().comment_marks)
        # not changed in place: the cells of X/Y/Z plot are copies that share the dictionary
        entries = settings.infotext(is_beyond_clip=is_beyond_clip(p.sd_model))
        p.extra_generation_params = {**p.extra_generation_params, **entries}


def report(p: Generation, processed: Processed) -> None:
    """Add the lines shown below the image to the API's ``info``. For the script's ``postprocess``.

    Files are already written and do not change.
    """
    shown_lines = getattr(vars(p).get("get_conds_with_caching"), "lines", ())
    if shown_lines:
        processed.extra_generation_params = {**processed.extra_generation_params, PROBLEMS: list(shown_lines)}


def add_word_maps(p: Generation, processed: Processed, draw: Callable[..., Any]) -> None:
    """Add word maps to the gallery, if they were made. For the script's ``postprocess``.

    ``draw`` is `draw_word_maps`.
    """
    sampling: _Sampling | None = getattr(p, _SAMPLING, None)
    if sampling is not None and sampling.word_maps is not None:
        sampling.word_maps.add_grids(p, processed, draw)


def _shown(comments: Iterable[str]) -> list[str]:
    """The first lines, and the number of further ones."""
    every = list(comments)
    rest = len(every) - MAX_COMMENTS
    return [*every[:MAX_COMMENTS], f"and {rest} more problems."] if rest > 0 else every


class _Sampling:
    """Parts of a generation in which the U-Net reads otherwise than the host has it."""

    in_pairs = False
    """Whether rows are in pairs."""
    texts: Texts | None = None
    """Texts whose rows must be known while it samples."""
    placing: PlaceHooks | None = None
    """Phrases that are placed in the picture."""
    word_maps: WordMaps | None = None
    """Maps of words that are made meanwhile."""
    joint: JointAttention | None = None
    """Weights, places and word maps in a model in which text and picture share an attention."""
    joints: Joints | None = None
    """Prompts joined by more than AND."""
    is_cut_short = False
    """Whether the host's user has ended the encoding, so that what was encoded is the host's own."""

    def end_cut_short(self, p: Generation) -> None:
        """Forget what was encoded for a generation if that was ended: after Skip there may be more of its images."""
        if self.is_cut_short:
            self.is_cut_short = False
            _empty_caches(p)

    def unless_ended(self, function: Callable[..., Any], encode: Callable[..., Any]) -> Callable[..., Any]:
        """Our function for one of the host's that encodes prompts; the host's once its user ends the encoding."""

        def encoded(*args: Any, **kwargs: Any) -> Any:
            try:
                with parsed_once(function):
                    return encode(*args, **kwargs)
            except _Ended:
                # the host's samplers end before they read it
                self.in_pairs, self.is_cut_short = False, True
                return function(*args, **kwargs)

        return encoded

    def cutting(self, function: Callable[..., Any], make: Callable[..., Any]) -> Callable[..., Any]:
        """Our function around one of the host's that encodes prompts, which joins them if that is asked for."""
        return make if self.joints is None else self.joints.cutting(function, make)

    @property
    def hooks(self) -> list[AttentionHooks]:
        """All of these that act in the cross attention."""
        return [hooks for hooks in (self.placing, self.word_maps) if hooks is not None]

    @property
    def in_joint(self) -> list[JointAttention]:
        """The same, if there is any of them."""
        return [] if self.joint is None else [self.joint]

    def watch(self, places: Sequence[PlacedPhrase], *, has_word_maps: bool) -> Texts:
        """Note the texts of the generation, to place phrases and to make maps of their words."""
        texts = self.texts = self.texts or Texts(in_pairs=bool(self.in_pairs))
        if places:
            self.placing = self.placing or PlaceHooks(places, texts)
        if has_word_maps:
            self.word_maps = self.word_maps or WordMaps(texts)
        return texts


def _arm_sampling(p: Generation, tell: Callable[[Iterable[str]], None]) -> _Sampling:
    """Let the U-Net read as it turns out to be needed while a generation samples, and tell lines about it then."""
    sampling = _Sampling()
    inner = p.sample

    def sample(*args: Any, **kwargs: Any) -> Any:
        with contextlib.ExitStack() as reading:
            if sampling.in_pairs:
                reading.enter_context(reading_pairs(p.sd_model))
            for hooks in (*sampling.hooks, *sampling.in_joint, *([sampling.joints] if sampling.joints else [])):
                reading.enter_context(hooks.acting(p))
            result = inner(*args, **kwargs)
        parts = (sampling.placing, sampling.word_maps, sampling.joint)
        if lines := [line for part in parts if part is not None for line in part.report()] + [*sampler_lines(p)]:
            tell(lines)
        return result

    sample.earlier = vars(p).get("sample")  # pyright: ignore[reportFunctionMemberAccess]
    p.sample = sample
    setattr(p, _SAMPLING, sampling)
    return sampling


def beyond_clip(
    p: Generation, sampling: _Sampling, settings: Settings, comments: dict[str, None], problems: Problems
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """A wrapper for the host's functions that encode prompts, for a model beyond CLIP.

    The host encodes; what cannot act is told in ``comments`` and in the image's parameters.
    """
    family, rule = family_of(p.sd_model), t5_rule(settings, p.sd_model)
    comments.update(dict.fromkeys(idle_lines(settings, p.sd_model)))
    if rule is not None:
        comments.update(dict.fromkeys(idle_emphasis(p, settings.options())))
    weights: Weights | None = None
    if family is not None and settings.attention != AS_HOST:
        try:
            check_one_unet(p, "Weights in the attention act", f"set {PLACE_OPTIONS['attention'].label} to {AS_HOST}")
            keeps = settings.above_one == "as the WebUI"
            weights = Weights(settings.attention, settings.attention_strength, keeps)
        except WebUIError as error:
            comments[str(error)] = None

    def note_actor(actor: str) -> None:
        p.extra_generation_params = {**p.extra_generation_params, ACTED_BY: actor}

    def tell_hosts_own(reason: str, *, is_negative: bool) -> None:
        comments[hosts_own(reason, is_negative=is_negative)] = None
        if not is_negative:
            note_actor(acted_by(settings, is_known=False))

    if rule is None:  # or it is the scheme
        note_actor(acted_by(settings, is_known=weights is not None))
    places = settings.placed()
    is_watching = bool(weights or places or settings.word_maps)
    if family is None or not (is_watching or rule):
        sampling.joint = None
        return lambda function: function
    texts = sampling.watch(places, has_word_maps=settings.word_maps) if is_watching else Texts(in_pairs=False)
    if is_watching:
        sampling.joint = sampling.joint or JointAttention(texts, sampling.placing, sampling.word_maps)
    else:
        sampling.joint = None
    for hooks in sampling.hooks:
        hooks.check(p)

    def around(function: Callable[..., Any]) -> Callable[..., Any]:
        def encoded(model: HostModel, prompts: Any, *rest: Any, **named: Any) -> Any:
            is_negative = bool(getattr(prompts, "is_negative_prompt", False))
            joint_texts = JointTexts(model, settings.options(), weights)
            with contextlib.ExitStack() as ruling:
                if rule is not None:
                    groups = _texts_of(function, model, prompts, *rest, **named)
                    tell = partial(tell_hosts_own, is_negative=is_negative)
                    ruling.enter_context(joint_texts.by_rule(rule, groups, _raise_if_ended, tell))
                if sampling.placing is not None and not is_negative:
                    now = chain(*_texts_of(function, model, prompts, *rest, **named))
                    sampling.placing.check_phrases(
                        joint_texts.words_in(list(now)),
                        lambda: chain(*_texts_of(function, model, _prompts_of(p), *rest, **named)),
                        joint_texts.syntax,
                    )
                noted = texts.begin((is_negative, _is_of_hires(p, *rest, **named)))

                def encode(group: Sequence[str]) -> Any:
                    host_encoded = joint_texts.encode(group, is_negative=is_negative)
                    noted.extend(host_encoded.texts)
                    comments.update(dict.fromkeys(problems.lines(host_encoded.issues, is_negative=is_negative)))
                    return host_encoded.result

                result = function(InterceptedModel(model, encode), prompts, *rest, **named)
            for hooks in sampling.hooks:
                hooks.find()
            refuse_infinite_parts(result)
            return result

        return sampling.unless_ended(function, encoded)

    return around


def _is_of_hires(p: Generation, _: Any = None, hires_steps: Any = None, *rest: Any, **named: Any) -> bool:
    """Whether texts with these numbers of steps are those of hires. fix, which are encoded before its first pass."""
    return hires_steps is not None or bool(getattr(p, "is_hr_pass", False))


def begin_pass(p: Generation, latent: Tensor) -> None:
    """Note what is about to be sampled. For the script's ``process_before_every_sampling``."""
    sampling: _Sampling | None = getattr(p, _SAMPLING, None)
    for hooks in (*sampling.hooks, *sampling.in_joint) if sampling is not None else ():
        hooks.begin_pass(p, latent)


class _Ended(Exception):
    """Raised when the host's user has pressed Interrupt or Skip while a prompt is encoded."""


def _raise_if_ended() -> None:
    """End our work as soon as the host's would end: the host itself looks for that only while it samples."""
    if is_ended():
        raise _Ended


def _disarm(p: Generation) -> None:
    """Undo an earlier `arm`: img2img batches and loops reuse one generation object many times.

    A copy of an armed object is disarmed too: its functions are bound to the original. Our parameters are removed from
    both: copies share them with the armed generation.
    """
    if any(key.startswith(INFOTEXT) for key in p.extra_generation_params):
        params = p.extra_generation_params.items()
        p.extra_generation_params = {key: value for key, value in params if not key.startswith(INFOTEXT)}
    if getattr(vars(p).get("get_conds_with_caching"), "__module__", None) != __name__:
        return
    del p.get_conds_with_caching
    sample: Any = vars(p).get("sample")
    if getattr(sample, "__module__", None) == __name__:
        del p.sample
        if sample.earlier is not None:
            p.sample = sample.earlier
    vars(p).pop(_SAMPLING, None)
    _empty_caches(p)


def _empty_caches(p: Generation) -> None:
    """Give a generation its own caches."""
    for name in CACHES:
        if hasattr(p, name):
            setattr(p, name, [None] * len(getattr(p, name)))


def _texts_of(
    function: Callable[..., Any], model: HostModel, prompts: Any, *args: Any, **kwargs: Any
) -> list[list[str]]:
    """All texts that a function of the host has a model encode, found by running it on one that only records them."""
    texts: list[list[str]] = []

    def record(group: Sequence[str]) -> Tensor:
        texts.append(list(group))
        return torch.zeros(len(group), 1, 1)

    function(InterceptedModel(model, record), prompts, *args, **kwargs)
    return texts


@contextlib.contextmanager
def parsed_once(function: Callable[..., Any]) -> Iterator[None]:
    """Let a function of the host, which is called several times, parse its prompts once in the context.

    The host parses in a time that grows with the cube of a prompt's length.
    """
    names: dict[str, Any] = getattr(function, "__globals__", {})
    parse: Callable[..., Any] | None = names.get(PARSER)
    if parse is None:
        yield
        return
    parsed: dict[str, Any] = {}

    def parsed_before(*args: Any, **kwargs: Any) -> Any:
        key = repr((args, kwargs))
        if key not in parsed:
            parsed[key] = parse(*args, **kwargs)
        return parsed[key]

    names[PARSER] = parsed_before
    try:
        yield
    finally:
        names[PARSER] = parse


def _prompts_of(p: Generation) -> list[str]:
    """Prompts of all images of a generation."""
    names = ("all_prompts", "all_hr_prompts")
    return [prompt for name in names for prompt in getattr(p, name, None) or ()]


def _leave_out_comments(p: Generation, marks: tuple[str, ...]) -> None:
    """Take comments out of all prompts, as the host does with its own before it reads anything else of them."""

    def left(prompt: str) -> str:
        return bare(prompt, has_comments=marks, has_tags=False).fragment.text

    for kind in ("", "negative_", "hr_", "hr_negative_"):
        if prompts := getattr(p, f"all_{kind}prompts", None):
            setattr(p, f"all_{kind}prompts", list(map(left, prompts)))
        if isinstance(prompt := getattr(p, f"main_{kind}prompt", None), str):
            setattr(p, f"main_{kind}prompt", left(prompt))


def _comment(p: Generation, text: str) -> None:
    """Show a line below the image, if possible, and in the host's console; once per generation and its copies."""
    if text not in getattr(p, "comments", {}):
        logger.warning(text)
    if hasattr(p, "comment"):
        p.comment(text)
