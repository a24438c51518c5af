"""The commands of a prompt: ``inspect``, ``schedule``, ``convert`` and ``encode``.

``encode --batch`` is in ``bulk.py``. Of the others only ``inspect --attention`` needs a model.
"""

from __future__ import annotations

import argparse
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...encoder.models.config import MAX_POSITIONS
from . import Command, bulk
from .console import json_text, show
from .prompt_options import (
    add_flag,
    add_loading_options,
    add_options,
    add_reading_options,
    add_value,
    embedding_folders,
    embeddings_of,
    encoders_of,
    options_of,
    readers_of,
    text_of,
)

if TYPE_CHECKING:
    from PIL import Image


def _add_inspect_arguments(inspect: argparse.ArgumentParser) -> None:
    add_reading_options(inspect)
    add_value(
        inspect, "--positions", 77, "N", "positions of a chunk (77); 248 for a Long-CLIP, or as many as `stretch` made"
    )
    add_flag(inspect, "--json", "print everything as JSON")
    inspect.add_argument(
        "--attention",
        metavar="WORD",
        help="also show how much attention this token pays to each other one; loads a CLIP",
    )
    add_value(inspect, "--layer", 1, "N", "--attention: 1 = the first (1)")
    add_value(inspect, "--head", 0, "N", "--attention: 0 = the mean of all (0)")
    add_value(inspect, "--weights", Path, "FILE", "--attention: .safetensors file with the text encoders (random)")


def _add_schedule_arguments(timed: argparse.ArgumentParser) -> None:
    from ...weighting.timed.glides import GLIDES
    from ...weighting.timed.joining import JOINS
    from ...weighting.timed.schedule import COUNTERS

    timed.add_argument("text", help="a prompt with [from:to:when], [a|b] or AND; - reads it from standard input")
    add_value(timed, "--steps", 20, "N", "sampling steps (20)")
    timed.add_argument("--counter", choices=COUNTERS, default=COUNTERS[0], help="how steps are counted (%(default)s)")
    timed.add_argument("--glides", choices=GLIDES, default=GLIDES[0], help="[a:b:0.2,0.8], (a:0.2@0,1@1) (%(default)s)")
    timed.add_argument("--joins", choices=JOINS, default=JOINS[0], help="words that join prompts (%(default)s)")
    add_options(timed, "cleaning", "comments")


def _add_convert_arguments(rewrite: argparse.ArgumentParser) -> None:
    from ...weighting.reading.convert import TARGETS
    from ...weighting.syntax import SYNTAXES

    rewrite.add_argument("text", help="the prompt; - reads it from standard input")
    rewrite.add_argument("--from", dest="source", choices=list(SYNTAXES), default="a1111", help="its syntax (a1111)")
    rewrite.add_argument("--to", dest="target", choices=TARGETS, default="comfy", help="target syntax (comfy)")
    add_options(rewrite, "cleaning", "comments")


def _inspect(arguments: argparse.Namespace) -> int:
    from ...encoder.models.config import CLIP_L
    from ...encoder.tokenizer import default_tokenizer
    from ...weighting.reading.prompt_reader import read_prompt, reworded
    from ...weighting.reading.view import counted, token_table, view
    from ...weighting.syntax.a1111 import TIMED_READER
    from ...weighting.text.chunks import ChunkLayout

    if arguments.attention is None and (arguments.layer != 1 or arguments.head or arguments.weights):
        raise ValueError("--layer, --head and --weights count with --attention WORD only")
    embeddings = embeddings_of(arguments, "clip_l", CLIP_L.hidden_dim)
    if arguments.positions > MAX_POSITIONS:
        raise ValueError(f"--positions {arguments.positions}: a chunk has at most {MAX_POSITIONS:,}")
    layout = ChunkLayout(length=arguments.positions)
    prompt = read_prompt(text_of(arguments), options_of(arguments), default_tokenizer(), layout, embeddings=embeddings)
    prompt = reworded(prompt, TIMED_READER, "The command schedule shows how")
    data = view(prompt)
    attention = [] if arguments.attention is None else _attention(arguments, prompt.prompt.source)
    if attention:
        data["attention"] = [entry for entry, _ in attention]
    show(json_text(data) if arguments.json else "\n".join([token_table(prompt), *(lines for _, lines in attention)]))
    if arguments.json and not sys.stdout.isatty():  # nothing is displayed
        tokens, chunks = counted(data["num_tokens"], "token"), counted(len(prompt.chunks), "chunk")
        problems = counted(len(prompt.issues), "problem")
        show(f"{tokens} in {chunks}, {problems}: written as JSON to the standard output", sys.stderr)
    return 0


def _attention(arguments: argparse.Namespace, text: str) -> list[tuple[dict[str, Any], str]]:
    """Weights of each token that is the word, as data and as lines of text."""
    from ...web.lab.model import LabError
    from ...web.lab.native import RANDOM_WARNING, LoadSettings, file_model, random_model
    from ...web.lab.tabs.attention_view import AttentionChoice, find_attention, row_of

    settings = LoadSettings(embedding_folders(arguments))
    model = random_model(settings) if arguments.weights is None else file_model(arguments.weights, settings)
    tower, config = next(iter(model.sizes().items()))
    for name, lowest, highest in (("layer", 1, config.num_layers), ("head", 0, config.num_heads)):
        if not lowest <= getattr(arguments, name) <= highest:
            raise ValueError(f"--{name} {getattr(arguments, name)}: {tower} has {lowest} to {highest}")
    if arguments.weights is None:
        show(f"*** {RANDOM_WARNING} ***\n", sys.stderr)
    else:
        show(f"{model.title}; {model.origin}", sys.stderr)
    entries: list[tuple[dict[str, Any], str]] = []
    labels: list[str] = []
    chunk, num_chunks = 0, 1
    while chunk < num_chunks:
        chunk += 1
        choice = AttentionChoice(arguments.layer, arguments.head, 1, chunk, 1)
        try:
            attended, _, _, num_chunks, _ = find_attention(model, text, options_of(arguments), choice, MAX_POSITIONS)
        except LabError as error:
            raise ValueError(str(error)) from error
        labels += attended.labels
        for query, label in enumerate(attended.labels):
            if label.casefold() != arguments.attention.strip().casefold():
                continue
            title, texts, shares = row_of(attended, query)
            keys = list(zip(attended.labels, texts, shares, attended.allowed[query], strict=True))
            data = {"chunk": chunk, "position": query, "text": label, "layer": arguments.layer, "head": arguments.head}
            data["weights"] = [[key, share] for key, _, share, is_open in keys if is_open]
            lines = [f"{attended.subject}: {title}"]
            lines += [f"{place:>5}  {key!r:<24}{text:>8}" for place, (key, text, _, can) in enumerate(keys) if can]
            entries.append((data, "\n".join(lines)))
    if not entries:
        tokens = ", ".join(dict.fromkeys(labels))
        raise ValueError(f"--attention {arguments.attention}: no token is this; there are {tokens:.400}")
    return entries


MAX_SHOWN = 8
"""Maximum number of mixed texts listed for a step."""


def _schedule(arguments: argparse.Namespace) -> int:
    from ...weighting.options import EncodeOptions
    from ...weighting.timed.joining import JOINTS
    from ...weighting.timed.schedule import read_timed, runs

    options = EncodeOptions(syntax="a1111", cleaning=arguments.cleaning, comments=arguments.comments)
    prompt = read_timed(
        text_of(arguments),
        arguments.steps,
        has_comments=options.comment_marks,
        glides=arguments.glides,
        counter=arguments.counter,
        joins=arguments.joins,
    )
    for number, branch in enumerate(prompt.branches, 1):
        if len(prompt.branches) > 1:
            joint = "" if branch.joint == JOINTS[0] else f"{branch.joint}, "
            show(f"part {number} of {len(prompt.branches)}, {joint}weight {branch.weight:g}")
        for run in runs(branch, arguments.steps, arguments.counter):
            steps = f"step {run.end}" if run.end == run.first + 1 else f"steps {run.first + 1} to {run.end}"
            for share, fragment in run.shares[:MAX_SHOWN]:
                show(f"{steps:>18}  {f'{share:.4g} of ' if run.mixture else ''}{fragment.text!r}")
                steps = ""
            if len(run.shares) > MAX_SHOWN:
                show(f"{'':>18}  and {len(run.shares) - MAX_SHOWN} more texts")
    for issue in prompt.issues:
        show(f"  {issue.line}", sys.stderr)
    return 0


def _convert(arguments: argparse.Namespace) -> int:
    from ...encoder.tokenizer import default_tokenizer
    from ...weighting.options import EncodeOptions
    from ...weighting.reading.convert import convert

    chosen = {"cleaning": arguments.cleaning, "comments": arguments.comments}
    marks = EncodeOptions(syntax=arguments.source, **chosen).comment_marks
    is_cleaned = arguments.cleaning == "as Forge"
    text, tokenize = text_of(arguments), default_tokenizer()
    result = convert(text, arguments.source, arguments.target, tokenize, is_cleaned=is_cleaned, marks=marks)
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
    "show which text of an A1111 prompt is used at each step",
    _add_schedule_arguments,
    _schedule,
    (
        '"a [cat:dog:0.5] in a [red|blue] hat" --steps 20',
        '"a cat AND a dog:0.5" --counter "as written"',
        '"a [cat:dog:0.2,0.8]" --glides prompt-fusion',
    ),
)
CONVERT = Command(
    "convert",
    "rewrite a prompt in another syntax",
    _add_convert_arguments,
    _convert,
    ('"a ((red)) [cat]" --to compel', '"(cat:0.8)" --from comfy --to a1111'),
)


NAME = "prompt"
"""Default beginning of the files' names."""


def _add_encode_arguments(encode: argparse.ArgumentParser) -> None:
    add_reading_options(encode, is_text_needed=False)
    add_options(encode, "scheme", "padding", "pooled", "law", "mask_method", "filler", "finest_step")
    add_options(encode, "bind", "bind_rest", "bind_strength", "bind_hide", "bind_words", "eos_rows")
    add_value(encode, "--weights", Path, "FILE", ".safetensors file with the text encoders of SD 1.x, 2.x or SDXL")
    encode.add_argument("--seed", type=int, default=0, help="of the random weights used without --weights (0)")
    add_loading_options(encode)
    encode.add_argument("--out", type=Path, default=Path("out"), metavar="DIR", help="folder for the files (out)")
    encode.add_argument("--name", help=f"first part of the files' names ({NAME})")
    encode.add_argument("--no-pictures", dest="pictures", action="store_false", help="write the tensors only")
    bulk.add_options(encode)


def _encode(arguments: argparse.Namespace) -> int:
    bulk.check_use(arguments)
    return _encode_one(arguments) if arguments.batch is None else bulk.run(arguments)


def _encode_one(arguments: argparse.Namespace) -> int:
    from ...encoder.encoding import Encoding
    from ...weighting.encoders import Encoders
    from ...weighting.reading.view import bound_text, counted, token_table, view
    from ...weighting.schemes.negpip import check_without_signs
    from ..output.export import write_conditioning
    from ..output.files import written_whole

    text = text_of(arguments)
    towers, source = encoders_of(arguments)
    readers = readers_of(arguments, towers)
    prepared = Encoders(readers, towers).prepare([text], options_of(arguments))
    first = next(iter(readers))
    first_prompt = prepared.reads[first][0]
    show(token_table(first_prompt), flush=True)

    check_without_signs((reads[0] for reads in prepared.reads.values()), "a file")
    encoded = prepared.run()[0]
    issues = [issue for prompt in encoded.prompts.values() for issue in prompt.read.issues]
    for issue in dict.fromkeys(issues):
        if issue not in first_prompt.issues:
            show(f"  {issue.line}")
    show()
    for name, prompt in encoded.prompts.items():
        rows, dim = prompt.hidden.shape[1:]
        count = counted(prompt.num_encodings, "encoding")
        description = ", ".join(filter(None, (prompt.read.options.scheme, bound_text(prompt.read), count)))
        show(f"{name}: {description} -> {rows} rows of {dim}, weights: {source}")

    drawn: dict[str, Image.Image] = {}  # by suffix of their file names
    if arguments.pictures:
        from ...web import pictures

        drawn["tokens"] = pictures.draw_tokens(view(first_prompt))
        drawn["masks"] = pictures.draw_encoding_masks(first_prompt, encoded.prompts[first].variants())
    arguments.out.mkdir(parents=True, exist_ok=True)
    name = arguments.name or NAME
    files = {arguments.out / f"{name}-{part}.png": picture for part, picture in drawn.items()}
    tensors = arguments.out / f"{name}.safetensors"
    metadata = {"weights": source, "clip_skip": str(arguments.clip_skip)}
    with ExitStack() as stack:  # files are moved to their destinations when all are written
        for path, picture in files.items():
            picture.save(stack.enter_context(written_whole(path)))
        write_conditioning(tensors, Encoding(encoded.hidden, encoded.pooled), text, options_of(arguments), metadata)
    show("wrote " + "\n      ".join(map(str, [tensors, *files])))
    return 0


ENCODE = Command(
    "encode",
    "encode a prompt, or a file of them, into safetensors, with pictures",
    _add_encode_arguments,
    _encode,
    (
        '"a (red:1.4) cat" --scheme masked_blend --weights sd15.safetensors',
        '"a red cat and a blue dog" --bind "red cat" --bind "blue dog" --weights sd15.safetensors',
        "--batch prompts.txt --weights sdxl.safetensors --save-dtype fp16 --out encoded",
    ),
)
