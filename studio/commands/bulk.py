"""The command ``encode --batch``: a file of prompts, one per line, into a folder of shards.

Lines are read, encoded and written shard by shard, so that memory does not grow with the file. An existing shard made
with the same options, weights and texts is not made again. Prompts with the same beginning are encoded together.

Source: docs/command-line.md, "Many prompts".
"""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from .console import PROGRESS_SECONDS, show
from .processes import INTERRUPTED, alone, process_of
from .prompt_lines import PromptLines, shards
from .prompt_options import (
    DTYPES,
    add_flag,
    add_value,
    dtype_named,
    embedding_folders,
    encoders_of,
    options_of,
    readers_of,
)

if TYPE_CHECKING:
    import torch

    from ...encoder.encoding import Encoding
    from ...encoder.models.text_model import TextEncoder
    from ...weighting.encoders import EncodedTowers, Encoders
    from ...weighting.options import EncodeOptions
    from ...weighting.reading.prompt_reader import ReadPrompt
    from ..output.shards import ShardHead

MAX_SHOWN = 20
"""Maximum number of problems printed; the rest are only counted."""


class BulkReport:
    """Counts the work, and reports it on the error stream."""

    def __init__(self, lines: PromptLines, size: int) -> None:
        self.lines = lines
        self.size = size
        self.num_written = self.num_there = self.num_prompts = self.num_problems = 0
        self._began = self._told = time.monotonic()

    def tell(self, line: int, problems: Sequence[str]) -> None:
        """Print the problems of a prompt, or only count them if there were many."""
        for problem in problems:
            self.num_problems += 1
            if self.num_problems <= MAX_SHOWN:
                _tell(f"{self.lines.where(line + 1)}: {problem}")
            elif self.num_problems == MAX_SHOWN + 1:
                _tell("further problems are only counted")

    def add(self, num_prompts: int) -> None:
        """Count a written shard, and report from time to time."""
        self.num_written += 1
        self.num_prompts += num_prompts
        if time.monotonic() - self._told >= PROGRESS_SECONDS:
            self._told = time.monotonic()
            _tell(self._counts())

    def end(self, how: str) -> None:
        """Print the last line."""
        _tell(f"{how}: {self._counts()}")

    def _counts(self) -> str:
        total = ""
        if self.lines.num_lines is not None:
            total = f" of {-(-self.lines.num_lines // self.size)}"
        existing = f" ({self.num_there} were there)" if self.num_there else ""
        rate = self.num_prompts / max(time.monotonic() - self._began, 1e-9)
        problems = "1 problem" if self.num_problems == 1 else f"{self.num_problems} problems"
        return (
            f"{self.num_written + self.num_there}{total} shards{existing}, {self.num_prompts} prompts encoded, "
            f"{rate:.1f} a second, {problems}"
        )


def _tell(text: str) -> None:
    show(text, sys.stderr, flush=True)


WINDOW_CHUNKS = 64
"""Number of chunks at which prompts are encoded together."""


class BulkEncoder:
    """Encoder of texts for saving."""

    def __init__(self, encoders: Encoders, options: EncodeOptions, dtype: torch.dtype) -> None:
        self.encoders = encoders
        self.options = options
        self.dtype = dtype

    def encode(self, texts: Sequence[str], first: int, report: BulkReport) -> Iterator[Encoding]:
        """Encode prompts.

        Yields hidden states ``[rows, dim]`` and pooled vectors ``[pooled_dim]``, on the CPU.
        """
        reads = list(self._read(texts, first, report))
        order = sorted(range(len(reads)), key=lambda index: _tokens(reads[index]))
        encodings = dict(zip(order, self._in_order(reads, order), strict=True))
        for index in range(len(reads)):
            saved, problems = encodings.pop(index)
            report.tell(first + index, problems)
            yield saved

    def _in_order(
        self, reads: Sequence[dict[str, ReadPrompt]], order: Sequence[int]
    ) -> Iterator[tuple[Encoding, list[str]]]:
        """Yield the saved encoding and the problems of each prompt, in the given order."""
        from ...encoder.encoding import Encoding

        for encoded in self._in_windows(reads[index] for index in order):
            saved = Encoding(self._saved(encoded.hidden[0]), self._saved(encoded.pooled[0]))
            problems = [issue.line for prompt in encoded.prompts.values() for issue in prompt.read.issues]
            if not (saved.hidden.isfinite().all() and saved.pooled.isfinite().all()):
                problems.append(f"Some of its numbers are too large for {self.dtype}, or not finite.")
            yield saved, list(dict.fromkeys(problems))

    def _saved(self, tensor: torch.Tensor) -> torch.Tensor:
        """Copy a tensor, so that the batch it is part of can be freed."""
        return tensor.to("cpu", self.dtype, copy=True).contiguous()

    def _read(self, texts: Sequence[str], first: int, report: BulkReport) -> Iterator[dict[str, ReadPrompt]]:
        from ...weighting.encoders import Prepared, TooManyEncodings
        from ...weighting.phrases.bind import BindError
        from ...weighting.schemes.negpip import NegPipError, check_without_signs
        from ...weighting.schemes.repeat import RepeatError
        from ...weighting.text.prompt import PromptError

        for number, text in enumerate(texts, first + 1):
            try:
                prompts = self.encoders.read(text, self.options)
                check_without_signs(prompts.values(), "a file")
                # refuses it before any is encoded
                Prepared(self.encoders, {name: [prompt] for name, prompt in prompts.items()})
            except (PromptError, RepeatError, NegPipError, BindError, TooManyEncodings) as error:
                raise ValueError(f"{report.lines.where(number)}: {error}") from error
            yield prompts

    def _in_windows(self, reads: Iterable[dict[str, ReadPrompt]]) -> Iterator[EncodedTowers]:
        """Encode prompts together as soon as there are enough chunks."""
        window: list[dict[str, ReadPrompt]] = []
        num_chunks = 0
        for prompts in reads:
            window.append(prompts)
            num_chunks += max(len(prompt.chunks) for prompt in prompts.values())
            if num_chunks >= WINDOW_CHUNKS:
                yield from self.encoders.plan(window).run()
                window, num_chunks = [], 0
        yield from self.encoders.plan(window).run()


def _tokens(prompts: dict[str, ReadPrompt]) -> list[tuple[int, ...]]:
    """Sort key that puts prompts with the same beginning next to each other."""
    return [chunk.plain_ids for prompt in prompts.values() for chunk in prompt.chunks]


SHARD_SIZE = 256
"""Default number of prompts in a file: 60 MB for CLIP-L in float32 if each fits one chunk."""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options for encoding many prompts."""
    group = parser.add_argument_group("many prompts")
    add_value(group, "--batch", str, "FILE", "UTF-8 file of prompts, one per line; - reads standard input")
    add_value(group, "--shard-size", int, "N", f"prompts per output file ({SHARD_SIZE})")
    group.add_argument("--save-dtype", choices=DTYPES, help="type of the numbers in the files (fp32)")
    add_flag(group, "--overwrite", "replace shards of other options, weights or prompts, instead of stopping")


def check_use(arguments: argparse.Namespace) -> None:
    """Check that the arguments of ``encode`` are compatible."""
    if arguments.batch is None:
        if arguments.text is None:
            raise ValueError("encode needs a prompt, or --batch FILE with a prompt in each line")
        if arguments.shard_size is not None or arguments.save_dtype is not None or arguments.overwrite:
            raise ValueError("--shard-size, --save-dtype and --overwrite are for --batch FILE")
        check_name(arguments.name or "")
        return
    if arguments.text is not None:
        raise ValueError("encode takes either a prompt or --batch FILE, not both")
    if arguments.name is not None:
        raise ValueError("--name is for a single prompt; the files of --batch are named after their first line")
    if process_of(os.environ).num_processes > 1:
        raise ValueError(
            "encode --batch runs in one process: divide the file, and give each part a folder and a device of its own"
        )
    if arguments.shard_size is not None and arguments.shard_size < 1:
        raise ValueError(f"--shard-size must be at least 1, got {arguments.shard_size}")


def check_name(name: str, system: str = os.name) -> None:
    """Refuse names with which Windows writes elsewhere: ``a:b`` is a hidden part of ``a``, ``con`` the console."""
    if system == "nt" and re.search(r"[<>:\"|?*]|(^|[/\\])(con|prn|aux|nul|(com|lpt)\d) *(\.|$)", name, re.IGNORECASE):
        raise ValueError(f"--name {name}: Windows has no such files; use letters, digits, - and _")


@alone
def run(arguments: argparse.Namespace) -> int:
    """Encode the lines of a file by the arguments of ``encode``; return the exit status.

    ValueError if the file, an option or an existing shard cannot be used, or a prompt is refused in strict mode.
    """
    from ...weighting.encoders import Encoders

    lines = PromptLines(arguments.batch)
    folder, size = arguments.out, arguments.shard_size or SHARD_SIZE
    _clear(folder, size, lines.num_lines, overwrite=arguments.overwrite)

    towers, source = encoders_of(arguments)
    encoders = Encoders(readers_of(arguments, towers), towers)
    options = replace(options_of(arguments), binds_some=True)  # lines need not have the same phrases
    encoder = BulkEncoder(encoders, options, dtype_named(arguments.save_dtype or "fp32"))
    metadata = {name: str(value) for name, value in vars(encoder.options).items()} | {
        "clip_skip": str(arguments.clip_skip),
        "dtype": arguments.dtype,
        "save_dtype": arguments.save_dtype or "fp32",
        "shard_size": str(size),
        "weights": source,
        "weights_sha256": _weights_digest(towers),
        "embeddings_sha256": _embeddings_digest(embedding_folders(arguments)),
    }
    total, scheme = "" if lines.num_lines is None else f"{lines.num_lines} ", encoder.options.scheme
    summary = f"{total}prompts of {lines.name} -> {folder}, {size} a file; {' + '.join(towers)}: {scheme}"
    show(f"{summary}, weights: {source}", flush=True)

    report = BulkReport(lines, size)
    try:
        _encode_shards(lines, encoder, report, folder, metadata, overwrite=arguments.overwrite)
    except KeyboardInterrupt:
        report.end("interrupted; the same command goes on from here")
        return INTERRUPTED
    if lines.num_lines is None:
        _clear(folder, size, lines.num_read, overwrite=arguments.overwrite)
    report.end("done")
    return 0


def _encode_shards(
    lines: PromptLines,
    encoder: BulkEncoder,
    report: BulkReport,
    folder: Path,
    metadata: Mapping[str, str],
    *,
    overwrite: bool,
) -> None:
    from ..output.shards import ShardHead, shard_path, write_shard

    for first, texts in shards(lines, report.size):
        path, head = shard_path(folder, first), ShardHead(first, texts, metadata)
        if _is_written(path, head, overwrite=overwrite):
            report.num_there += 1
            continue
        rows = list(encoder.encode(texts, first, report))
        write_shard(path, head, rows)
        del rows  # before those of the next shard are made
        report.add(len(texts))


def _is_written(path: Path, head: ShardHead, *, overwrite: bool) -> bool:
    """Whether an existing shard can be kept; one that lacks lines added to the file since cannot."""
    from ..output.shards import ShardError, read_head

    if not path.exists():
        return False
    try:
        existing = read_head(path)
    except ShardError as error:
        problem = str(error)
    else:
        differences = existing.differences(head, informative=("weights",))
        if not differences:
            return len(existing.texts) == len(head.texts)
        problem = f"{path} was made otherwise: {'; '.join(differences)}"
    if overwrite:
        return False
    raise ValueError(f"{problem}. Choose another folder with --out, or replace such files with --overwrite")


def _clear(folder: Path, size: int, num_lines: int | None, *, overwrite: bool) -> None:
    """Check that no shard is out of place.

    Such a shard has another size, or more lines. With ``overwrite`` it is removed.
    """
    from ..output.shards import shard_files

    for first, path in sorted(shard_files(folder)):
        if first % size:
            problem = f"no shard of {size} prompts begins at line {first + 1}"
        elif num_lines is not None and first >= num_lines:
            problem = f"it begins at line {first + 1}, and there are only {num_lines} now"
        else:
            continue
        if not overwrite:
            advice = "Choose another folder with --out, or remove such files with --overwrite"
            raise ValueError(f"{path} is of another run: {problem}. {advice}")
        path.unlink(missing_ok=True)


def _weights_digest(encoders: Mapping[str, TextEncoder]) -> str:
    """Digest of all weights, as files of different models often have the same name."""
    import torch

    digest = hashlib.sha256()
    for name, encoder in encoders.items():
        for key, tensor in encoder.model.state_dict().items():
            digest.update(f"{name}.{key} {tensor.dtype} {list(tensor.shape)}".encode())
            digest.update(tensor.cpu().contiguous().reshape(-1).view(torch.uint8).numpy())
    return digest.hexdigest()


def _embeddings_digest(folders: Sequence[Path]) -> str:
    """Digest of the names and bytes of all embeddings a prompt can name; empty if there are none."""
    from ...encoder.files.textual_inversion import SUFFIX

    digest = hashlib.sha256()
    for folder in folders:
        files = [path for path in folder.rglob("*") if path.suffix.lower() == SUFFIX and path.is_file()]
        for path in sorted(files, key=lambda path: path.parts):  # Windows alone would not distinguish capitals
            digest.update(path.relative_to(folder).as_posix().encode("utf-8", "surrogateescape"))
            digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest() if folders else ""
