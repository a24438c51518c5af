"""The commands that need no model: ``inspect``, ``schedule`` and ``convert``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from .console import json_text, show, standard_input
from .loading import add_embeddings_option, embeddings_of

if TYPE_CHECKING:
    from ..weighting.options import EncodeOptions

MAX_POSITIONS = 16384
"""Maximum positions of a chunk, as in files of text encoders; importing that constant would take torch."""


def add_commands(commands: Any) -> None:
    """Add the commands to the parser."""
    from ..weighting.convert import TARGETS
    from ..weighting.options import CLEANINGS
    from ..weighting.syntax import SYNTAXES
    from ..weighting.timed.schedule import COUNTERS

    inspect = commands.add_parser("inspect", help="show tokens, weights, chunks and problems")
    add_reading_options(inspect)
    inspect.add_argument(
        "--positions",
        type=int,
        default=77,
        metavar="N",
        help="positions of a chunk (77); 248 for a Long-CLIP, or as many as `stretch` made",
    )
    inspect.add_argument("--json", action="store_true", help="print all that is known of them as JSON")
    inspect.set_defaults(run=_inspect)

    timed = commands.add_parser("schedule", help="show which text of an A1111 prompt stands at which step")
    timed.add_argument("text", help="a prompt with [from:to:when], [a|b] or AND; - reads it from standard input")
    timed.add_argument("--steps", type=int, default=20, metavar="N", help="sampling steps (20)")
    timed.add_argument("--counter", choices=COUNTERS, default=COUNTERS[0], help="how steps are counted (%(default)s)")
    add_cleaning_option(timed, CLEANINGS)
    timed.set_defaults(run=_schedule)

    rewrite = commands.add_parser("convert", help="rewrite a prompt in another syntax")
    rewrite.add_argument("text", help="the prompt; - reads it from standard input")
    rewrite.add_argument("--from", dest="source", choices=list(SYNTAXES), default="a1111", help="its syntax (a1111)")
    rewrite.add_argument("--to", dest="target", choices=TARGETS, default="comfy", help="the syntax wanted (comfy)")
    add_cleaning_option(rewrite, CLEANINGS)
    rewrite.set_defaults(run=_convert)


def add_reading_options(parser: argparse.ArgumentParser, *, is_text_needed: bool = True) -> None:
    """Add the prompt, which some commands do not require, and the options for reading it."""
    from ..weighting.normalize import NORMALIZATIONS
    from ..weighting.options import CHUNKING_CHOICES, CLEANINGS
    from ..weighting.syntax import SYNTAXES

    count = None if is_text_needed else "?"
    parser.add_argument("text", nargs=count, help="the prompt; - reads it from standard input")
    parser.add_argument("--syntax", choices=list(SYNTAXES), default="a1111", help="how weights are written (a1111)")
    parser.add_argument("--chunking", choices=CHUNKING_CHOICES, default="as syntax", help="where long prompts are cut")
    parser.add_argument(
        "--comma-backtrack", type=int, default=20, metavar="N", help="for chunking a1111, in tokens (20)"
    )
    parser.add_argument("--normalization", choices=NORMALIZATIONS, default="none", help="changes the weights first")
    add_cleaning_option(parser, CLEANINGS)
    parser.add_argument("--strict", action="store_true", help="refuse what the program of that syntax refuses")
    parser.add_argument("--quirks", action="store_true", help="chunking a1111: reproduce the WebUI where it is wrong")
    add_embeddings_option(parser)


def add_cleaning_option(parser: argparse.ArgumentParser, choices: Sequence[str]) -> None:
    """Add the option for cleaning text in the A1111 syntax."""
    parser.add_argument(
        "--cleaning", choices=choices, default=choices[0], help="syntax a1111: comments and curly quotes (%(default)s)"
    )


def text_of(arguments: argparse.Namespace) -> str:
    """The prompt, from the command line or standard input."""
    return standard_input() if arguments.text == "-" else arguments.text


def options_of(arguments: argparse.Namespace) -> EncodeOptions:
    """Options among the arguments. Repeated ones are joined, one per line."""
    from ..weighting.options import EncodeOptions

    given = vars(arguments)
    chosen: dict[str, Any] = {field.name: given[field.name] for field in fields(EncodeOptions) if field.name in given}
    lines = {name: "\n".join(value) for name, value in chosen.items() if isinstance(value, list)}
    return EncodeOptions(**{**chosen, **lines})


def _inspect(arguments: argparse.Namespace) -> int:
    from ..encoder.config import CLIP_L
    from ..encoder.tokenizer import default_tokenizer
    from ..weighting.chunks import ChunkLayout
    from ..weighting.reading import read_prompt, told_here
    from ..weighting.syntax.a1111 import TIMED_READER
    from ..weighting.view import counted, token_table, view

    embeddings = embeddings_of(arguments, "clip_l", CLIP_L.hidden_dim)
    if arguments.positions > MAX_POSITIONS:
        raise ValueError(f"--positions {arguments.positions}: a chunk has at most {MAX_POSITIONS:,}")
    layout = ChunkLayout(length=arguments.positions)
    read = read_prompt(text_of(arguments), options_of(arguments), default_tokenizer(), layout, embeddings=embeddings)
    read = told_here(read, TIMED_READER, "The command schedule shows how")
    shown = view(read)
    show(json_text(shown) if arguments.json else token_table(read))
    if arguments.json and not sys.stdout.isatty():  # nothing is displayed
        tokens, chunks = counted(shown["num_tokens"], "token"), counted(len(read.chunks), "chunk")
        problems = counted(len(read.issues), "problem")
        show(f"{tokens} in {chunks}, {problems}: written as JSON to the standard output", sys.stderr)
    return 0


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
