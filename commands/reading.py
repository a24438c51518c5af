"""The commands ``inspect``, ``schedule`` and ``convert``, which need no model but for attention."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import Command
from .console import json_text, show, standard_input
from .loading import add_embeddings_option, embedding_folders, embeddings_of
from .options import add_arguments, given_of

if TYPE_CHECKING:
    from ..weighting.options import EncodeOptions

MAX_POSITIONS = 16384
"""Maximum positions of a chunk, as in files of text encoders; importing that constant would take torch."""


def _add_inspect_arguments(inspect: argparse.ArgumentParser) -> None:
    add_reading_options(inspect)
    inspect.add_argument(
        "--positions",
        type=int,
        default=77,
        metavar="N",
        help="positions of a chunk (77); 248 for a Long-CLIP, or as many as `stretch` made",
    )
    inspect.add_argument("--json", action="store_true", help="print all that is known of them as JSON")
    inspect.add_argument(
        "--attention",
        metavar="WORD",
        help="also how much of each other token a layer takes into this one; loads a CLIP",
    )
    inspect.add_argument("--layer", type=int, default=1, metavar="N", help="--attention: 1 = the first (1)")
    inspect.add_argument("--head", type=int, default=0, metavar="N", help="--attention: 0 = the mean of all (0)")
    inspect.add_argument(
        "--weights", type=Path, metavar="FILE", help="--attention: .safetensors file with the text encoders (random)"
    )


def _add_schedule_arguments(timed: argparse.ArgumentParser) -> None:
    from ..weighting.timed.schedule import COUNTERS

    timed.add_argument("text", help="a prompt with [from:to:when], [a|b] or AND; - reads it from standard input")
    timed.add_argument("--steps", type=int, default=20, metavar="N", help="sampling steps (20)")
    timed.add_argument("--counter", choices=COUNTERS, default=COUNTERS[0], help="how steps are counted (%(default)s)")
    add_options(timed, "cleaning")


def _add_convert_arguments(rewrite: argparse.ArgumentParser) -> None:
    from ..weighting.convert import TARGETS
    from ..weighting.syntax import SYNTAXES

    rewrite.add_argument("text", help="the prompt; - reads it from standard input")
    rewrite.add_argument("--from", dest="source", choices=list(SYNTAXES), default="a1111", help="its syntax (a1111)")
    rewrite.add_argument("--to", dest="target", choices=TARGETS, default="comfy", help="the syntax wanted (comfy)")
    add_options(rewrite, "cleaning")


def add_reading_options(parser: argparse.ArgumentParser, *, is_text_needed: bool = True) -> None:
    """Add the prompt, which some commands do not require, and the options for reading it."""
    count = None if is_text_needed else "?"
    parser.add_argument("text", nargs=count, help="the prompt; - reads it from standard input")
    add_options(parser, "syntax", "chunking", "comma_backtrack", "normalization", "cleaning", "strict", "quirks")
    add_embeddings_option(parser)


def add_options(parser: argparse.ArgumentParser, *names: str) -> None:
    """Add options for encoding as flags; prompts are in the WebUI's syntax and weighted as by the WebUI by default."""
    from ..weighting.options import OPTIONS

    add_arguments(parser, OPTIONS, *names, syntax="a1111", scheme="a1111")


def text_of(arguments: argparse.Namespace) -> str:
    """The prompt, from the command line or standard input."""
    return standard_input() if arguments.text == "-" else arguments.text


def options_of(arguments: argparse.Namespace) -> EncodeOptions:
    """Options among the arguments."""
    from ..weighting.options import OPTIONS, EncodeOptions

    return EncodeOptions(**given_of(arguments, OPTIONS))


def _inspect(arguments: argparse.Namespace) -> int:
    from ..encoder.config import CLIP_L
    from ..encoder.tokenizer import default_tokenizer
    from ..weighting.chunks import ChunkLayout
    from ..weighting.reading import read_prompt, told_here
    from ..weighting.syntax.a1111 import TIMED_READER
    from ..weighting.view import counted, token_table, view

    if arguments.attention is None and (arguments.layer != 1 or arguments.head or arguments.weights):
        raise ValueError("--layer, --head and --weights count with --attention WORD only")
    embeddings = embeddings_of(arguments, "clip_l", CLIP_L.hidden_dim)
    if arguments.positions > MAX_POSITIONS:
        raise ValueError(f"--positions {arguments.positions}: a chunk has at most {MAX_POSITIONS:,}")
    layout = ChunkLayout(length=arguments.positions)
    read = read_prompt(text_of(arguments), options_of(arguments), default_tokenizer(), layout, embeddings=embeddings)
    read = told_here(read, TIMED_READER, "The command schedule shows how")
    shown = view(read)
    found = [] if arguments.attention is None else _attention(arguments, read.prompt.source)
    if found:
        shown["attention"] = [one for one, _ in found]
    show(json_text(shown) if arguments.json else "\n".join([token_table(read), *(lines for _, lines in found)]))
    if arguments.json and not sys.stdout.isatty():  # nothing is displayed
        tokens, chunks = counted(shown["num_tokens"], "token"), counted(len(read.chunks), "chunk")
        problems = counted(len(read.issues), "problem")
        show(f"{tokens} in {chunks}, {problems}: written as JSON to the standard output", sys.stderr)
    return 0


def _attention(arguments: argparse.Namespace, text: str) -> list[tuple[dict[str, Any], str]]:
    """Weights of each token that is the word, as data and as lines of text."""
    from ..web.lab.attending import Choice, find_attention, row_of
    from ..web.lab.model import LabError
    from ..web.lab.native import RANDOM_WARNING, Settings, file_model, random_model

    settings = Settings(embedding_folders(arguments))
    model = random_model(settings) if arguments.weights is None else file_model(arguments.weights, settings)
    tower, config = next(iter(model.sizes().items()))
    for name, least, most in (("layer", 1, config.num_layers), ("head", 0, config.num_heads)):
        if not least <= getattr(arguments, name) <= most:
            raise ValueError(f"--{name} {getattr(arguments, name)}: {tower} has {least} to {most}")
    if arguments.weights is None:
        show(f"*** {RANDOM_WARNING} ***\n", sys.stderr)
    else:
        show(f"{model.title}; {model.origin}", sys.stderr)
    found: list[tuple[dict[str, Any], str]] = []
    labels: list[str] = []
    chunk, num_chunks = 0, 1
    while chunk < num_chunks:
        chunk += 1
        choice = Choice(arguments.layer, arguments.head, 1, chunk, 1)
        try:
            attended, _, _, num_chunks, _ = find_attention(model, text, options_of(arguments), choice, MAX_POSITIONS)
        except LabError as error:
            raise ValueError(str(error)) from error
        labels += attended.labels
        for query, label in enumerate(attended.labels):
            if label.casefold() != arguments.attention.strip().casefold():
                continue
            told, texts, shares = row_of(attended, query)
            keys = list(zip(attended.labels, texts, shares, attended.allowed[query], strict=True))
            data = {"chunk": chunk, "position": query, "text": label, "layer": arguments.layer, "head": arguments.head}
            data["weights"] = [[key, share] for key, _, share, is_open in keys if is_open]
            lines = [f"{attended.told}: {told}"]
            lines += [f"{place:>5}  {key!r:<24}{text:>8}" for place, (key, text, _, can) in enumerate(keys) if can]
            found.append((data, "\n".join(lines)))
    if not found:
        there = ", ".join(dict.fromkeys(labels))
        raise ValueError(f"--attention {arguments.attention}: no token is this; there are {there:.400}")
    return found


def _schedule(arguments: argparse.Namespace) -> int:
    from ..weighting.timed.schedule import read_timed, runs

    has_comments = arguments.cleaning == "as Forge"
    prompt = read_timed(text_of(arguments), arguments.steps, has_comments=has_comments)
    for number, branch in enumerate(prompt.branches, 1):
        if len(prompt.branches) > 1:
            show(f"part {number} of {len(prompt.branches)}, weight {branch.weight:g}")
        for run in runs(branch, arguments.steps, arguments.counter):
            steps = f"step {run.end}" if run.end == run.first + 1 else f"steps {run.first + 1} to {run.end}"
            show(f"{steps:>18}  {run.fragment.text!r}")
    for issue in prompt.issues:
        show(f"  {issue.line}", sys.stderr)
    return 0


def _convert(arguments: argparse.Namespace) -> int:
    from ..encoder.tokenizer import default_tokenizer
    from ..weighting.convert import convert

    is_cleaned = arguments.cleaning == "as Forge"
    result = convert(text_of(arguments), arguments.source, arguments.target, default_tokenizer(), is_cleaned=is_cleaned)
    show(result.text)
    for issue in result.issues:
        show(f"  {issue.line}", sys.stderr)
    return 0


INSPECT = Command(
    "inspect",
    "show tokens, weights, chunks and problems",
    _add_inspect_arguments,
    _inspect,
    (
        '"a (red:1.4) cat, [blurry]"',
        '"a (red)1.4 cat" --syntax compel',
        "- --json < prompt.txt > tokens.json",
        '"a red cat" --attention cat --layer 6 --weights sd15.safetensors',
    ),
)
SCHEDULE = Command(
    "schedule",
    "show which text of an A1111 prompt stands at which step",
    _add_schedule_arguments,
    _schedule,
    ('"a [cat:dog:0.5] in a [red|blue] hat" --steps 20', '"a cat AND a dog:0.5" --counter "as written"'),
)
CONVERT = Command(
    "convert",
    "rewrite a prompt in another syntax",
    _add_convert_arguments,
    _convert,
    ('"a ((red)) [cat]" --to compel', '"(cat:0.8)" --from comfy --to a1111'),
)
