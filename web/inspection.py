"""Reading, converting and taking apart of prompts for a front end: a request as plain data in, views or prompts out.

Nothing is encoded, and no file is read except the vocabulary of a text encoder, once. Only the names of embeddings are
known, so each counts as one vector.

Source: the views are from weighting/reading/view.py. The page sends a node and its inputs, which the node translates
(nodes/base/routes.py).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import partial
from itertools import accumulate, islice, takewhile
from typing import Any, NamedTuple, Protocol

from ..encoder.quoting import checked, quote, raising
from ..encoder.tokenizer import default_tokenizer
from ..weighting.infotext import read_infotext
from ..weighting.options import EncodeOptions
from ..weighting.phrases.words import Words, words_of
from ..weighting.pipeline import plan_prompt
from ..weighting.plan import different_asks
from ..weighting.reading.convert import convert
from ..weighting.reading.prompt_reader import ReadPrompt, parse_encoded, read_prompt
from ..weighting.reading.sweep import read_sweep
from ..weighting.reading.timed_view import read_standing, standing_texts, timed_view, with_lora_times, without_issues
from ..weighting.reading.view import counted, encodings_text, min_size, view
from ..weighting.text.chunks import CLIP_L_LAYOUT
from ..weighting.text.problems import Problem
from ..weighting.text.prompt import Issue
from ..weighting.text.tags import bare, read_loras
from ..weighting.timed.glides import GLIDES
from ..weighting.timed.joining import JOINS
from ..weighting.timed.loras import LORAS, LoraTimes, constant, lora_times, with_times, without_repeated
from ..weighting.timed.regions import REGIONS
from ..weighting.timed.schedule import COUNTERS, TimedPrompt, read_timed, runs

MAX_BYTES = 64 * 1024
"""Maximum size of a request."""
MAX_VIEWS = 20
"""Maximum number of texts of a timed prompt that are read and shown."""
MAX_CHARACTERS = 2 * MAX_BYTES
"""Maximum length of all texts shown together; later ones are left out like those beyond `MAX_VIEWS`."""
MAX_ENCODINGS = 100
"""Maximum number of encodings that is shown exactly."""
MAX_ASKS = 1000
"""Chunks of 77 positions, over versions of a prompt, examined to count its encodings: 35 ms for 600 words. Fewer for
longer chunks."""
MAX_CHUNKS = 20
"""Maximum number of chunks for which encodings are counted."""
MAX_POSITIONS = 1024
"""Maximum chunk length for which they are counted: a version's mask may have this number squared of flags."""
MAX_FILES = 4
"""Maximum number of text encoder files in a request; ComfyUI loads no more at once."""
MAX_ANSWER = 1024 * 1024
"""Maximum size of an answer, in bytes. Eight chunks of 75 tokens take some 75,000."""

TOO_LONG = f"more tokens and problems than {MAX_ANSWER // 1024} KiB hold: shown after the run"
_OPTIONS = {field.name: type(field.default) for field in fields(EncodeOptions)}
_AROUND_VIEWS = 200
"""Maximum size of an answer outside its views, in bytes."""
_OTHERS = {
    **{"text": str, "steps": int, "counter": str, "regions": str, "loras": str, "glides": str, "joins": str},
    "second_pass": bool,
}
_JSON_NAMES = {str: "a string", int: "an integer", bool: "true or false"}
_json_text = partial(json.dumps, separators=(",", ":"))
_SURROGATE = re.compile("[\ud800-\udfff]")


class RequestError(ValueError):
    """Raised for a request that cannot be answered; the message quotes it and names the allowed values."""


@dataclass(frozen=True)
class KnownNames:
    """Embeddings known only by name."""

    embedding_names: frozenset[str]

    def names(self) -> Sequence[str]:
        """All names."""
        return sorted(self.embedding_names)

    def find(self, name: str) -> list[None] | None:
        """One placeholder vector for a known name."""
        return [None] if name in self.embedding_names else None


class TextReader(Protocol):
    """Prompt reader of a text encoder other than CLIP, such as `LiveReader` in `hosts.comfy.weighted_clip`."""

    @property
    def name(self) -> str:
        """Name used in requests."""
        ...

    @property
    def note(self) -> str:
        """Note shown with each prompt."""
        ...

    def read(self, text: str, options: EncodeOptions, /) -> ReadPrompt:
        """Read a prompt."""
        ...


class RulerNode(NamedTuple):
    """A node that the ruler can request."""

    defaults: Mapping[str, Any]
    """Inputs whose values a request may contain, with their defaults."""
    fields: Callable[[Mapping[str, Any]], dict[str, Any]]
    """Function from those values to the fields of a request to `inspect`, except the text."""
    reader: Callable[[str, Mapping[str, Any]], TextReader | None] = lambda name, values: None
    """Function from the name of a text encoder and its inputs to its prompt reader; None for CLIP's tokenizer."""
    texts: tuple[str, ...] = ("text",)
    """Names of its prompt boxes."""
    problems: Callable[[Mapping[str, Any]], Iterable[Problem]] = lambda values: ()
    """Function from its inputs and prompt to problems of the other inputs."""
    lora_issues: Callable[[Sequence[LoraTimes]], Sequence[Issue]] | None = None
    """Function from LoRAs of a prompt to issues about them; None if it loads none."""
    is_swept: bool = False
    """Whether its prompt has weights that are tried at several values."""


def request_of(asked: object, nodes: Mapping[str, RulerNode]) -> dict[str, Any]:
    """Request to `inspect` for a prompt box of a node; types of its fields are not checked yet.

    ``asked`` is an object with ``node``, the node's id; ``text``; ``values``, an object with the node's inputs; and, if
    known, ``encoder``, the name of a text encoder for `reader_of`, and ``files``, for `files_of`.
    """
    if not isinstance(asked, dict) or asked.keys() - {"encoder", "files"} != {"node", "text", "values"}:
        raise RequestError(
            'a request is an object with "node", a string "text", "values" and perhaps "encoder" and "files"'
        )
    name, values = asked["node"], asked["values"]
    if not isinstance(values, dict):
        raise RequestError(f"values must be an object with the node's inputs, got {quote(values)}")
    node = nodes.get(name) if isinstance(name, str) else None
    if node is None:
        raise RequestError(f"node must be one of: {', '.join(nodes)}; got {quote(name)}")
    for value in values:
        if value not in node.defaults:
            raise RequestError(f"unknown value {quote(value)}; {name} has: {', '.join(node.defaults) or 'none'}")
    with raising(RequestError):
        return {**node.fields({**node.defaults, **values}), "text": asked["text"]}


def reader_of(asked: Mapping[str, Any], nodes: Mapping[str, RulerNode]) -> TextReader | None:
    """Prompt reader for a request accepted by `request_of`; None for CLIP's tokenizer."""
    encoder = asked.get("encoder", "")
    if not isinstance(encoder, str):
        raise RequestError(f"encoder must be a string, got {quote(encoder)}")
    node = nodes[asked["node"]]
    return node.reader(encoder, {**node.defaults, **asked["values"]}) if encoder else None


def files_of(asked: Mapping[str, Any]) -> list[str]:
    """Files of the text encoders in a request accepted by `request_of`, as ``folder/name``."""
    files = asked.get("files", [])
    if not isinstance(files, list) or len(files) > MAX_FILES or not all(isinstance(file, str) for file in files):
        raise RequestError(f"files must be a list of at most {MAX_FILES} strings, got {quote(files)}")
    return files


def inspect(
    request: object,
    embedding_names: Sequence[str] | None = None,
    reader: TextReader | None = None,
    positions: int = CLIP_L_LAYOUT.length,
    *,
    lora_issues: Callable[[Sequence[LoraTimes]], Sequence[Issue]] | None = None,
) -> dict[str, Any]:
    """Answer a request.

    Args:
        request: An object with ``text`` and, as in the nodes, any field of `EncodeOptions`; with ``steps``, and
            optionally ``counter``, ``regions``, ``glides``, ``joins`` and ``loras``, the text is a timed prompt; not
            with ``loras`` at ``as A1111`` and without ``regions``, where nothing is encoded.
        embedding_names: Names for ``embedding:name`` or bare names; None if there are no embeddings.
        reader: Prompt reader instead of CLIP's tokenizer; each view then has its name, ``encoder``, and ``notes``.
        positions: Positions of a chunk, for CLIP's tokenizer.
        lora_issues: `RulerNode.lora_issues`.

    Returns:
        ``views``: one per text, from `weighting.reading.view.view`; for a timed prompt each with ``branch``, ``weight``
        and ``steps`` (first and last of each run, counted from 1), and the last with ``num_more`` if there are more
        than `MAX_VIEWS`, or more text than `MAX_CHARACTERS`.

    Raises:
        RequestError: If the request is malformed, an option is not allowed, or the answer would be too long.

    >>> [chip["text"] for chip in inspect({"text": "a cat"})["views"][0]["chunks"][0]["chips"]]
    ['a', 'cat']
    """
    data = _checked(request)
    embeddings = None if embedding_names is None else KnownNames(frozenset(embedding_names))
    with raising(RequestError):
        options = EncodeOptions(**{name: value for name, value in data.items() if name in _OPTIONS})
        layout = replace(CLIP_L_LAYOUT, length=positions)

        def read(text: str) -> ReadPrompt:
            if reader is not None:
                return reader.read(text, options)
            return read_prompt(text, options, default_tokenizer(), layout, embeddings=embeddings)

        def shown(parsed: ReadPrompt, as_view: dict[str, Any]) -> dict[str, Any]:
            if reader is not None:
                return {**as_view, "notes": [reader.note], "encoder": reader.name}
            encodings, refusal = _planned(parsed)
            return with_problems({**as_view, "encodings": encodings}, refusal)

        if "steps" not in data:
            prompt = read(data["text"])
            check_size(min_size(prompt))
            return {"views": [shown(prompt, view(prompt))]}
        return {"views": _timed_views(data, read, shown, lora_issues, has_comments=options.comment_marks)}


def with_problems(as_view: dict[str, Any], *messages: str) -> dict[str, Any]:
    """A view with problems of the whole prompt before its own."""
    shown_messages = {"", *(issue["message"] for issue in as_view["issues"])}
    new = [
        {"code": "refused", "message": message, "start": 0, "end": 0}
        for message in messages
        if message not in shown_messages
    ]
    for chip in (chip for chunk in as_view["chunks"] for chip in chunk["chips"]):
        chip["problems"] = [number + len(new) for number in chip["problems"]]
    return {**as_view, "issues": [*new, *as_view["issues"]]}


def _planned(parsed: ReadPrompt) -> tuple[str, str]:
    """Number of encodings of a prompt, if quickly determined and not few; and why a run would refuse it."""
    try:
        plan = plan_prompt(parsed, default_tokenizer())
    except ValueError as error:
        is_named = any(issue.message in str(error) for issue in parsed.issues)
        return "", "" if is_named else str(error)
    num_chunks, length = len(parsed.chunks), parsed.layout.length
    if num_chunks > MAX_CHUNKS or length > MAX_POSITIONS:
        return "", ""
    max_asks = MAX_ASKS * CLIP_L_LAYOUT.length // length
    variants = iter(plan.variants())
    number = different_asks(islice(variants, max_asks // num_chunks), MAX_ENCODINGS)
    if number > MAX_ENCODINGS:
        return f"more than {MAX_ENCODINGS} encodings", ""
    return (encodings_text(number, num_chunks) if next(variants, None) is None else ""), ""


def inspect_sweep(request: Mapping[str, Any], *options: Any) -> dict[str, Any]:
    """Same as `inspect` for ranges of weights: a view for each of the first prompts, with its ``label``."""
    try:
        data = _checked(request)
        options_of_text = EncodeOptions(**{name: value for name, value in data.items() if name in _OPTIONS})
        swept = read_sweep(data["text"], options_of_text.comment_marks)
    except RequestError:
        raise
    except ValueError:  # which is among the node's problems
        return inspect(request, *options)
    lengths = accumulate(map(len, swept.texts[:MAX_VIEWS]))
    count = max(1, sum(length <= MAX_CHARACTERS for length in lengths))
    views: list[dict[str, Any]] = []
    for label, text in zip(swept.labels[:count], swept.texts[:count], strict=True):
        (as_view,) = inspect({**request, "text": text}, *options)["views"]
        views.append({**as_view, "label": label})
    views[0]["notes"] = [*views[0].get("notes", ()), f"{counted(len(swept.labels), 'picture')}, one for each"]
    if len(swept.labels) > count:
        views[-1]["num_more"] = len(swept.labels) - count
    return {"views": views}


class PromptWords(NamedTuple):
    """Words of a prompt before a run."""

    words: tuple[Words, ...]
    """Words of each text."""
    num_entries: int
    """Number of entries of its conditioning, if they are sampled at the same time; else 1."""
    is_blend: bool
    """Whether its rows are a blend of several prompts."""


def prompt_words(request: object) -> PromptWords:
    """Words of a prompt as a run would carry them; ``request`` and errors as in `inspect`."""
    data = _checked(request)
    options = EncodeOptions(**{name: value for name, value in data.items() if name in _OPTIONS})
    if "steps" not in data:
        texts, num_entries, standing = [data["text"]], 1, []
    else:
        counter = _choice(data, "counter", COUNTERS)
        timed = _read_timed(data, has_comments=options.comment_marks)
        standing = standing_texts(timed, timed.steps, counter)
        texts = [text.fragment.text for text in standing]
        is_joined = any(branch.place is not None and branch.place.is_coupled for branch in timed.branches)
        is_parted = len(timed.branches) > 1 and not is_joined
        num_entries = sum(len(runs(branch, timed.steps, counter)) for branch in timed.branches) if is_parted else 1
    prompts = [parse_encoded(text, options) for text in texts]
    is_blend = any(len(section.prompts) > 1 for prompt in prompts for section in prompt.sections)
    is_blend = is_blend or ("steps" in data and any(text.shares for text in standing))
    return PromptWords(tuple(words_of(prompt.parts) for prompt in prompts), num_entries, is_blend)


def check_size(min_bytes: int) -> None:
    """Refuse an answer of at least ``min_bytes`` that would be too long, before it is made."""
    if min_bytes > MAX_ANSWER:
        raise RequestError(TOO_LONG)


def as_json(answer: Mapping[str, Any]) -> str:
    """Answer of `inspect` as ASCII JSON of at most `MAX_ANSWER` bytes.

    Texts of a timed prompt that do not fit are left out like those beyond `MAX_VIEWS`.
    """
    views = answer["views"]
    ends = accumulate(len(_json_text(view)) + 1 for view in views)
    count = sum(1 for _ in takewhile(lambda end: end <= MAX_ANSWER - _AROUND_VIEWS, ends))
    if not count:
        raise RequestError(TOO_LONG)
    if count < len(views):
        num_more = len(views) - count + views[-1].get("num_more", 0)
        views = [*views[: count - 1], {**views[count - 1], "num_more": num_more}]
    return _json_text({"views": views})


def _choice(data: Mapping[str, Any], name: str, allowed: Sequence[Any]) -> Any:
    """A choice in a request, the first if it is not there."""
    return checked(name, data.get(name, allowed[0]), allowed, RequestError)


def _lora_times(data: Mapping[str, Any], *, has_comments: bool | tuple[str, ...]) -> list[LoraTimes]:
    """LoRAs that act in time, if the request asks for them."""
    counter, regions = _choice(data, "counter", COUNTERS), _choice(data, "regions", REGIONS)
    if _choice(data, "loras", LORAS) == LORAS[0]:
        return []
    return lora_times(
        *(data["text"], data["steps"], counter),
        has_comments=has_comments,
        regions=regions,
        second_pass=data.get("second_pass", False),
    )


def _read_timed(data: Mapping[str, Any], *, has_comments: bool | tuple[str, ...]) -> TimedPrompt:
    """The timed prompt of a request."""
    return read_timed(
        data["text"],
        data["steps"],
        has_comments=has_comments,
        regions=_choice(data, "regions", REGIONS),
        glides=_choice(data, "glides", GLIDES),
        counter=_choice(data, "counter", COUNTERS),
        joins=_choice(data, "joins", JOINS),
    )


def _timed_views(
    data: Mapping[str, Any],
    read_text: Callable[[str], ReadPrompt],
    shown_as: Callable[[ReadPrompt, dict[str, Any]], dict[str, Any]],
    lora_issues: Callable[[Sequence[LoraTimes]], Sequence[Issue]] | None,
    *,
    has_comments: bool | tuple[str, ...],
) -> list[dict[str, Any]]:
    counter = _choice(data, "counter", COUNTERS)
    times = _lora_times(data, has_comments=has_comments)
    prompt = _read_timed(data, has_comments=has_comments)
    by_part = data.get("loras") == LORAS[2]
    prompt = with_times(prompt, times, by_part=by_part)
    loaded: Sequence[str] = ()
    if "regions" not in data and data.get("loras") == LORAS[0] and lora_issues is not None:  # LoRA Tag Loader
        tags, _ = read_loras(
            bare(data["text"], has_comments=has_comments, has_tags=True).tags,
            second_pass=data.get("second_pass", False),
        )
        issues, loaded, prompt = lora_issues([constant(tag) for tag in tags]), ("lora",), without_repeated(prompt)
    else:
        issues = lora_issues(times) if lora_issues is not None else ()
    texts = standing_texts(prompt, prompt.steps, counter)
    lengths = accumulate(len(text.fragment.text) for text in texts[1:MAX_VIEWS])
    room = MAX_CHARACTERS - len(texts[0].fragment.text)
    count = 1 + sum(length <= room for length in lengths)
    issues = [issue for issue in issues if issue not in prompt.issues]
    reads = read_standing(prompt, texts[:count], read_text, issues)
    check_size(min_size(reads[0].read))
    views = [
        shown_as(timed.read, with_lora_times(without_issues(timed_view(timed), loaded), times, by_part=by_part))
        for timed in reads
    ]
    if num_passes := sum(
        branch.place is not None
        and branch.place.is_coupled
        and any(lora.part == number and any(lora.model) for lora in times)
        for number, branch in enumerate(prompt.branches if by_part else ())
    ):
        note = f"{counted(num_passes, 'more call')} of the model a step, for LoRAs of regions"
        views[0]["notes"] = [*views[0].get("notes", ()), note]
    if len(texts) > count:
        views[-1]["num_more"] = len(texts) - count
    return views


def _checked(request: object) -> dict[str, Any]:
    """The request, with the types of all fields checked."""
    if not isinstance(request, dict) or not isinstance(request.get("text"), str):
        raise RequestError('a request is an object with a string "text"')
    allowed = {**_OPTIONS, **_OTHERS}
    for name, value in request.items():
        if name not in allowed:
            raise RequestError(f"unknown field {quote(name)}; allowed: {', '.join(allowed)}")
        if type(value) is not allowed[name]:
            raise RequestError(f"{name} must be {_JSON_NAMES[allowed[name]]}, got {quote(value)}")
        if isinstance(value, str) and _SURROGATE.search(value):
            raise RequestError(f"{name} holds a lone surrogate, which is no character: {quote(value)}")
    return request


_CONVERSION_KEYS = ("text", "from", "to", "is_cleaned")


def conversion(asked: object) -> dict[str, Any]:
    """Answer a request to convert a prompt; ``is_cleaned`` says whether A1111's comments are removed.

    It may have ``comments``, a choice of the option of that name.

    >>> conversion({"text": "a [cat]", "from": "a1111", "to": "comfy", "is_cleaned": True})
    {'text': 'a (cat:0.90909091)', 'issues': []}
    """
    if not isinstance(asked, Mapping) or set(asked) - {"comments"} != set(_CONVERSION_KEYS):
        raise RequestError(f"a request is an object with {', '.join(_CONVERSION_KEYS)}")
    *texts, is_cleaned = (asked[key] for key in _CONVERSION_KEYS)
    comments = asked.get("comments", "as syntax")
    if not all(isinstance(text, str) for text in (*texts, comments)) or not isinstance(is_cleaned, bool):
        raise RequestError("text, from, to and comments must be strings, and is_cleaned true or false")
    text, source, target = texts
    try:
        text.encode()
        cleaning = EncodeOptions.cleaning if is_cleaned else "none"
        marks = EncodeOptions(syntax=source, comments=comments, cleaning=cleaning).comment_marks
        converted = convert(text, source, target, default_tokenizer(), is_cleaned=is_cleaned, marks=marks)
    except UnicodeEncodeError as error:
        raise RequestError("text holds a lone surrogate, which is no character") from error
    except ValueError as error:
        raise RequestError(str(error)) from error
    return {"text": converted.text, "issues": [issue.line for issue in converted.issues]}


def generation_data(asked: object) -> dict[str, Any]:
    r"""Answer a request to take generation data apart.

    >>> data = generation_data({"text": "a cat\nNegative prompt: dog"})
    >>> data["prompt"], data["negative"]
    ('a cat', 'dog')
    """
    return asdict(read_infotext(text_of(asked)))


def text_of(asked: object) -> str:
    """Text of a request that has nothing else."""
    if not isinstance(asked, Mapping) or set(asked) != {"text"} or not isinstance(asked["text"], str):
        raise RequestError('a request is an object with a string "text"')
    if _SURROGATE.search(asked["text"]):
        raise RequestError("text holds a lone surrogate, which is no character")
    return asked["text"]
