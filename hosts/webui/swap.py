"""Our conditioning in the WebUI: for one generation, or for one prompt of the lab.

While the host computes the conditioning of a generation, two methods of its text encoders are replaced on the instance:
the one that cuts texts into chunks, where all texts are read and encoded at once, and the one that encodes a chunk,
which then returns the results. Both are always restored afterwards. The host's caches of conditioning ignore our
settings, so our generations get their own caches.

Source: docs/reference/hosts.md, "In the WebUI"; behaviour of stable-diffusion-webui 1.10 and
stable-diffusion-webui-forge dfdcbab6 (2025-06).
"""

from __future__ import annotations

import contextlib
import logging
import math
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from ...weighting.bind import ABSENT, bound_passes
from ...weighting.embeddings import EmbeddingVector
from ...weighting.encoders import Encoders, Prepared
from ...weighting.options import EncodeOptions
from ...weighting.pipeline import Check, EncodedPrompt
from ...weighting.prompt import shortened
from ...weighting.reading import ReadPrompt
from ...weighting.schemes import SCHEMES
from ...weighting.schemes.negpip import paired
from ...weighting.schemes.repeat import Copies, copies_of
from ...weighting.syntax import parse
from ...weighting.towers import num_rows, read_together
from ...weighting.view import bound_text, counted
from .adetailer import LEFT_OUT, leaves_us_out
from .axes import settle
from .engines import METHODS, Engine, WebUIError, as_emphasized, engines_of, host_option, is_ended
from .pairs import check_one_unet, is_theirs_active, reading_pairs
from .settings import INFOTEXT, Settings
from .types import Generation, Model, Processed

logger = logging.getLogger(__name__)

CACHES = ("cached_c", "cached_uc", "cached_hr_c", "cached_hr_uc")
"""Attributes in which a generation keeps conditioning: shared with all others, unless replaced."""
PADDING_SETTINGS = {
    "pad_cond_uncond": "Pad prompt/negative prompt",
    "pad_cond_uncond_v0": "Pad prompt/negative prompt (v0)",
}
"""Settings by which the host adds rows to prompts, by name and title on its page."""
THEIRS_ACT = "the extension NegPiP is active: it is what takes words of weights below 0 away, not Weighted CLIP."
THEIRS_BESIDE_REPEAT = (
    "The extension NegPiP, which is active, tells rows by how many there are, and the scheme repeat changes that: "
    "switch one of the two off."
)
PROBLEMS = f"{INFOTEXT} problems"
"""Key in the API's ``info`` for the lines shown below the image."""
MAX_COMMENTS = 20
"""Maximum number of problems listed; the rest are only counted."""
FAR = 10.0
"""Weights beyond plus and minus this are named below the image."""
MAX_CHUNKS = 32
"""Chunks per call of the host's encoder, except for columns of chunks that the host itself would encode."""


def arm(p: Generation, values: Sequence[Any]) -> None:
    """Make the coming generation use our conditioning, if the script is enabled. For the script's ``process``.

    Problems are raised when the host requests conditioning, as it swallows exceptions raised here.

    Args:
        p: The host's generation.
        values: Values of the script's controls, in the order of `Settings`.
    """
    _disarm(p)
    values, note = settle(p, values)
    if not values or values[0] is None or values[0] is False:
        return
    inner = getattr(p, "get_conds_with_caching", None)
    if inner is None:
        _comment(p, f"{INFOTEXT} is not used: this WebUI computes conditioning in a way it does not know.")
        return
    _empty_caches(p)
    notes = [note, LEFT_OUT if leaves_us_out(p) else None]
    comments: dict[str, None] = dict.fromkeys(filter(None, notes))
    told: list[str] = []
    absent: set[str] | None = None
    pairing = _arm_sampling(p)

    def get_conds(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        options = Settings.of(values).options()
        pairing.is_on = SCHEMES[options.scheme].is_signed
        if pairing.is_on and is_theirs_active(p):
            pairing.is_on = False
            comments[THEIRS_ACT] = None
        if pairing.is_on:
            check_one_unet(p)
            _refuse_padded_prompts(options.scheme)

        def encoded(model: Model, prompts: Any, *rest: Any, **named: Any) -> Any:
            nonlocal absent
            engines = engines_of(model)
            reading = _as_host_reads(options, engines)
            if getattr(prompts, "is_negative_prompt", False):
                reading = replace(reading, bind_strength=0.0)
            texts = _texts_of(function, model, prompts, *rest, **named)
            with swapped(engines, reading, texts, check=_raise_if_ended, in_pairs=pairing.is_on) as run:
                missing = run.absent()  # these refusals come before anything is encoded
                if run.is_repeating:
                    _refuse_padded_prompts(options.scheme)
                    if is_theirs_active(p):
                        raise WebUIError(THEIRS_BESIDE_REPEAT)
                if reading.binds:
                    absent = missing if absent is None else absent & missing
                    if absent:
                        raise WebUIError(f"These phrases cannot be bound: {' '.join(sorted(absent))}")
                result = function(model, prompts, *rest, **named)
            if not run.encoded:
                raise WebUIError(f"This WebUI encoded without asking {INFOTEXT}: the weights would be its own.")
            if reading.binds:
                comments.update(dict.fromkeys([*run.passes(), *sorted(missing)]))
            comments.update(dict.fromkeys(run.problems()))
            return result

        is_cut_short = False

        def with_ours(model: Model, *rest: Any, **named: Any) -> Any:
            nonlocal is_cut_short
            try:
                _raise_if_ended()
                return encoded(model, *rest, **named)
            except _Ended:
                # the host's samplers end before they read it
                pairing.is_on, is_cut_short = False, True
                return function(model, *rest, **named)

        result = inner(with_ours, *args, **kwargs)
        if is_cut_short:  # after Skip there may be more images of the same prompts
            _empty_caches(p)
        told[:] = _shown(comments)
        for text in told:
            _comment(p, f"{INFOTEXT}: {text}")
        return result

    get_conds.told = told  # pyright: ignore[reportFunctionMemberAccess]
    p.get_conds_with_caching = get_conds
    with contextlib.suppress(WebUIError):  # raised again above
        settings = Settings.of(values)
        settings.options()
        # not changed in place: the cells of X/Y/Z plot are copies that share the dictionary
        p.extra_generation_params = {**p.extra_generation_params, **settings.infotext()}


def report(p: Generation, processed: Processed) -> None:
    """Add the lines shown below the image to the API's ``info``. For the script's ``postprocess``.

    Args:
        p: The host's generation.
        processed: Its result; the files are already written and do not change.
    """
    told = getattr(vars(p).get("get_conds_with_caching"), "told", ())
    if told:
        processed.extra_generation_params = {**processed.extra_generation_params, PROBLEMS: list(told)}


def _shown(comments: Iterable[str]) -> list[str]:
    """The first lines, and the number of further ones."""
    every = list(comments)
    rest = len(every) - MAX_COMMENTS
    return [*every[:MAX_COMMENTS], f"and {rest} more problems."] if rest > 0 else every


class _Pairing:
    """Whether the rows of a generation are in pairs."""

    is_on = False


def _arm_sampling(p: Generation) -> _Pairing:
    """Let the U-Net read rows in pairs while a generation samples, if they turn out to be in pairs."""
    pairing = _Pairing()
    inner = p.sample

    def sample(*args: Any, **kwargs: Any) -> Any:
        with reading_pairs(p.sd_model) if pairing.is_on else contextlib.nullcontext():
            return inner(*args, **kwargs)

    sample.earlier = vars(p).get("sample")  # pyright: ignore[reportFunctionMemberAccess]
    p.sample = sample
    return pairing


def _refuse_padded_prompts(scheme: str) -> None:
    """Raise if the host adds rows to the shorter one of prompt and negative prompt."""
    for name, title in PADDING_SETTINGS.items():
        if host_option(name, default=False):
            raise WebUIError(
                f"The setting “{title}” adds rows to a prompt, which would change what the rows of the scheme {scheme} "
                "weigh: switch that setting off, or take another scheme."
            )


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
    _empty_caches(p)


def _empty_caches(p: Generation) -> None:
    """Give a generation its own caches."""
    for name in CACHES:
        if hasattr(p, name):
            setattr(p, name, [None] * len(getattr(p, name)))


class Run:
    """Encodings made while the encoders were ours."""

    def __init__(
        self,
        engines: Mapping[str, Engine],
        options: EncodeOptions,
        texts: Sequence[Sequence[str]],
        check: Check | None,
        *,
        in_pairs: bool | None = None,
    ) -> None:
        readers = {tower: engine.reader() for tower, engine in engines.items()}
        self._encoders = Encoders(readers, engines, max_chunks=MAX_CHUNKS, keeps_calls=True)
        self._options = options
        self._check = check
        self._prepared: dict[tuple[str, ...], Prepared] = {}
        self.encoded: dict[tuple[str, tuple[str, ...]], list[EncodedPrompt]] = {}
        """Encoded prompts by tower and texts."""
        self._copies: dict[Copies, int] = {}
        """Scheme ``repeat``: repetitions of rows in the texts so far, with their numbers of rows."""
        self._num_rows: dict[int, bool] = {}
        """Scheme ``negpip_apart``: numbers of rows of the texts so far, and whether any text of that number has
        appended rows."""
        self.in_pairs = in_pairs
        """As in `swapped`."""
        self._far: dict[str, None] = {}
        """Lines about weights beyond `FAR`."""
        self._kept: tuple[int, ...] = ()
        if options.drops_padding and (some := list(dict.fromkeys(chain.from_iterable(texts)))):
            with _told_by_the_host():
                self._kept = next(iter(read_together(some, options, readers).values()))[0].kept or ()
        for group in texts:
            self.prepare(group)

    def prepare(self, texts: Sequence[str]) -> Prepared:
        """Read and plan texts for all towers, with equal numbers of chunks and kept rows."""
        key = tuple(texts)
        if key not in self._prepared:
            self._far.update(dict.fromkeys(line for text in texts for line in _far_weights(text, self._options.syntax)))
            with _told_by_the_host():
                prepared = self._encoders.prepare_together(texts, self._options, self._kept)
            if SCHEMES[self._options.scheme].is_repeating:
                self._check_rows(next(iter(prepared.reads.values())))
            if SCHEMES[self._options.scheme].is_signed:
                self._check_signs(next(iter(prepared.reads.values())))
            self._prepared[key] = prepared
        return self._prepared[key]

    @property
    def is_repeating(self) -> bool:
        """Whether the scheme ``repeat`` repeated or left out any rows."""
        return any(copies.is_repeating for copies in self._copies)

    def _check_rows(self, reads: Sequence[ReadPrompt]) -> None:
        """Raise if weights give the texts so far different numbers of rows."""
        for read in reads:
            copies = copies_of(read)
            self._copies[copies] = copies.count(read.kept)
        counts = sorted(set(self._copies.values()))
        if len(counts) > 1 and self.is_repeating:
            raise WebUIError(
                f"By their weights the scheme repeat makes {counts[0]} rows of one text and {counts[-1]} of another. "
                "Texts that this WebUI stacks must have the same number of rows, or it fills the shorter ones with "
                "copies of their last row: the prompts of a batch, the parts between ANDs, and what prompt editing "
                "makes of a prompt. Use the same weights on as many tokens in all of them, one prompt a batch, or "
                "another scheme."
            )

    def _check_signs(self, reads: Sequence[ReadPrompt]) -> None:
        """Raise if rows have signs that cannot be carried, or texts so far have different numbers of appended rows."""
        if self.in_pairs is False and any(read.has_signs for read in reads):
            raise WebUIError(
                "The extension NegPiP is active and has left a weight below 0 in the prompt, which Weighted CLIP "
                "cannot take away beside it: switch one of the two off."
            )
        for read in reads:
            count = num_rows(read)
            self._num_rows[count] = self._num_rows.get(count, False) or bool(read.terms)
        counts = sorted(self._num_rows)
        if len(counts) > 1 and any(self._num_rows.values()):
            raise WebUIError(
                f"By the terms that the scheme negpip_apart appends, one text has {counts[0]} rows and another "
                f"{counts[-1]}. Texts that this WebUI stacks must have the same number of rows, or it fills the "
                "shorter ones with copies of their last row: the prompts of a batch, the parts between ANDs, and what "
                "prompt editing makes of a prompt. Use terms of as many tokens in all of them, or the scheme negpip."
            )

    def encode(self, tower: str, texts: Sequence[str]) -> list[EncodedPrompt]:
        """Encode texts for one tower."""
        key = (tower, tuple(texts))
        if key not in self.encoded:
            self.encoded[key] = self.prepare(texts).run_tower(tower, check=self._check)
        return self.encoded[key]

    def absent(self) -> set[str]:
        """Messages about bound phrases that occur in none of the texts."""
        reads = [read for one in self._prepared.values() for some in one.reads.values() for read in some]
        said = [{issue.line for issue in read.issues if issue.code == ABSENT} for read in reads]
        return set.intersection(*said) if said else set()

    def passes(self) -> list[str]:
        """Numbers of passes for bound phrases, one line per text with any."""
        prompts = [prompt for prompts in self.encoded.values() for prompt in prompts]
        return [
            f"{bound_text(prompt.read)}, {counted(prompt.num_encodings, 'encoding')}"
            for prompt in prompts
            if bound_passes(prompt.read.chunks, self._options.bind_rest)
        ]

    def problems(self) -> list[str]:
        """All problems of all texts, one line each, without those covered by `absent`."""
        issues = [issue for prompts in self.encoded.values() for prompt in prompts for issue in prompt.read.issues]
        return [*self._far, *(issue.line for issue in issues if issue.code != ABSENT)]


@contextlib.contextmanager
def _told_by_the_host() -> Iterator[None]:
    """Turn an error about a prompt into one that the host tells without the name of a class."""
    try:
        yield
    except ValueError as error:
        raise WebUIError(str(error)) from error


def _far_weights(text: str, syntax: str) -> list[str]:
    """Lines about weights beyond `FAR`, as written in a text; one that is not finite is refused."""
    prompt = parse(text, syntax)
    lines: list[str] = []
    for fragment in prompt.fragments:
        told = f"at {fragment.span.start}: “{shortened(fragment.text.strip())}” has the weight {fragment.weight:g}"
        if not math.isfinite(fragment.weight):
            raise WebUIError(f"{told}: it must be a finite number.")
        if abs(fragment.weight) > FAR:
            lines.append(f"{told}, beyond -{FAR:g} to {FAR:g}.")
    for issue in prompt.issues:
        if issue.code == "infinite-weight":
            raise WebUIError(issue.line)
    return lines


@contextlib.contextmanager
def swapped(
    engines: Mapping[str, Engine],
    options: EncodeOptions,
    texts: Sequence[Sequence[str]] = (),
    *,
    check: Check | None = None,
    in_pairs: bool | None = None,
) -> Iterator[Run]:
    """Replace the text encoders of a model by ours for the duration of the context, for this thread.

    Args:
        engines: The encoders.
        options: Options for reading and encoding.
        texts: Texts that are to be encoded, in groups that are encoded together. They are read and planned at once, so
            that none is encoded if one is refused. If padding is dropped, all keep the rows needed by any of them.
        check: Called before each call of an encoder. An exception it raises ends the work.
        in_pairs: Whether to return rows in pairs of key and value, as read by `reading_pairs`; None if nothing is
            sampled with them.

    Yields:
        Encodings made within the context.
    """
    run = Run(engines, options, texts, check, in_pairs=in_pairs)
    try:
        for tower, engine in engines.items():
            _swap(engine, tower, run, threading.get_ident())
        yield run
    finally:
        for engine in engines.values():
            for name in METHODS:
                vars(engine.owner).pop(name, None)
            engine.fixes_owner.fixes = None


def _as_host_reads(options: EncodeOptions, engines: Mapping[str, Engine]) -> EncodeOptions:
    """Options with the host's own settings for reading prompts."""
    return as_emphasized(replace(options, comma_backtrack=next(iter(engines.values())).comma_backtrack))


def _swap(engine: Engine, tower: str, run: Run, thread: int) -> None:
    """Replace the two methods of one engine."""
    owner = engine.owner
    process_texts, process_tokens = (getattr(owner, name) for name in METHODS)
    asked: list[str] = []

    def our_texts(texts: Sequence[str]) -> Any:
        # the page's token counters ask at any time
        if threading.get_ident() != thread:
            return process_texts(texts)
        asked[:] = texts
        reads = run.prepare(texts).reads[tower]
        count = max(sum(chunk.num_content for chunk in read.chunks) for read in reads)
        # one chunk per text, as each text is encoded at once
        return [[_stand_in(read, engine)] for read in reads], count

    def our_tokens(tokens: Any, multipliers: Any) -> Tensor:
        if threading.get_ident() != thread:
            return process_tokens(tokens, multipliers)
        prompts = run.encode(tower, asked)
        rows = [paired(prompt.hidden, prompt.signs) if run.in_pairs else prompt.hidden for prompt in prompts]
        hidden = torch.cat(rows)
        hidden.pooled = torch.cat([prompt.pooled for prompt in prompts])  # pyright: ignore[reportAttributeAccessIssue]
        return hidden

    owner.process_texts, owner.process_tokens = our_texts, our_tokens


def _stand_in(read: ReadPrompt, engine: Engine) -> Any:
    """Replacement for the host's chunk, from which it reads the names of embeddings for the image's parameters."""
    chunk = read.chunks[0]
    names = dict.fromkeys(t.id.name for c in read.chunks for t in c.tokens if isinstance(t.id, EmbeddingVector))
    fixes = [(0, engine.database.word_embeddings[name]) for name in names]
    return SimpleNamespace(tokens=list(chunk.plain_ids), multipliers=list(chunk.weights), fixes=fixes)


class _Recorder:
    """A model that records the texts it is to encode, in groups that are encoded together."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self.texts: list[list[str]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def get_learned_conditioning(self, texts: Sequence[str]) -> Tensor:
        self.texts.append(list(texts))
        return torch.zeros(len(texts), 1, 1)


def _texts_of(function: Callable[..., Any], model: Model, prompts: Any, *args: Any, **kwargs: Any) -> list[list[str]]:
    """All texts that a function of the host has a model encode, found by running it on one that only records them."""
    recorder = _Recorder(model)
    function(recorder, prompts, *args, **kwargs)
    return recorder.texts


def _comment(p: Generation, text: str) -> None:
    """Show a line below the image, if possible, and in the host's console; once per generation and its copies."""
    if text not in getattr(p, "comments", {}):
        logger.warning(text)
    if hasattr(p, "comment"):
        p.comment(text)
