"""Speed, memory and disk space of ``encode --batch`` for files of many prompts, beside transformers.

The prompts are those of a file of the user, or made by `made_prompts`.
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import pairwise, takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from .machine import measured
from .made_prompts import made_prompts
from .many_runs import Job, ours, transformers_process, write_prompts
from .memory import MIB
from .page import NOT_FOUND, table, times
from .runs import TRANSFORMERS
from .scale import Scale
from .timing import Ratio, Run, compare, times_in_turn

if TYPE_CHECKING:
    from ...weighting.reading import ReadPrompt

OURS = "encode --batch"
HEAD = (
    *("By", "Prompts", "Tokens", "Tokens/s", "Prompts/s", "Ours / peer", "Middle half"),
    *("Peak memory, MiB", "On disk, MiB", "Whole command, s"),
)
NOT_MEASURED = "not measured"


class Figures(NamedTuple):
    """Measurements of one program on one file of prompts."""

    num_prompts: int
    num_tokens: int
    """Tokens encoded, without BOS, EOS and padding."""
    seconds: list[float]
    """Time of each round, from the loaded model to the last prompt written."""
    peak: float | None
    """Largest peak of resident memory beside the loaded model, MiB; None if it cannot be measured here."""
    disk: float
    """Size of the files written, MiB."""
    whole: float | None = None
    """Median time of the whole process, seconds."""

    def cells(self, name: str, ratio: Ratio | None) -> list[str]:
        """Cells of `HEAD`."""
        seconds = statistics.median(self.seconds)
        speeds = (f"{number / seconds:.3g}" for number in (self.num_tokens, self.num_prompts))
        compared = ("-", "-") if ratio is None else times(ratio)[2:]
        peak = NOT_MEASURED if self.peak is None else f"{self.peak:.0f}"
        whole = "-" if self.whole is None else f"{self.whole:.3g}"
        counts = (f"{number:,}" for number in (self.num_prompts, self.num_tokens))
        return [name, *counts, *speeds, *compared, peak, f"{self.disk:.3g}", whole]


def many_block(scale: Scale, file: Path | None = None) -> str:
    """Make the section in Markdown: the prompts, and a row for each program and file.

    Args:
        scale: Sizes and counts.
        file: File with a prompt in each line; None: prompts are made.

    Raises:
        ValueError: If the file is missing, not UTF-8 or too short, or a process fails.
    """
    about = measured(TRANSFORMERS)
    texts = made_prompts(max(scale.many)) if file is None else prompts_of(file)
    sizes = [size for size in scale.many if size <= len(texts)]
    if not sizes:
        raise ValueError(f"--prompts {file}: at least {min(scale.many)} prompts are needed, found {len(texts)}")
    texts = texts[: max(sizes)]
    reads = read_prompts(texts)
    with tempfile.TemporaryDirectory() as temporary:
        rows = _measured(texts, reads, sizes, scale, Path(temporary))
    listed = _about_prompts(texts, reads, scale.shard_size, is_real=file is not None)
    return "\n\n".join([listed, table(HEAD, rows, num_left=1), about])


# ---- prompts


def prompts_of(file: Path) -> list[str]:
    """Read the prompts of a file, one in each line; empty lines are left out.

    Args:
        file: A UTF-8 file.

    Raises:
        ValueError: If it is missing or not UTF-8.
    """
    try:
        lines = file.read_text(encoding="utf-8-sig").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"--prompts {file}: {error}") from error
    return [text for text in (line.strip() for line in lines) if text]


def read_prompts(texts: Sequence[str]) -> list[ReadPrompt]:
    """Read prompts as ``encode --batch`` does by default."""
    from ...encoder.tokenizer import default_tokenizer
    from ...weighting.options import EncodeOptions
    from ...weighting.reading import read_prompt

    return [read_prompt(text, EncodeOptions(syntax="a1111"), default_tokenizer()) for text in texts]


def count_tokens(read: ReadPrompt) -> int:
    """Number of tokens of a prompt, without BOS, EOS and padding."""
    return sum(chunk.num_content for chunk in read.chunks)


def plain_text(read: ReadPrompt) -> str:
    """Text of a prompt without its weights, for a program that has none.

    >>> plain_text(read_prompts(["a (red:1.3) fox, [snow]"])[0])
    'a red fox, snow'
    """
    from ...weighting.prompt import Fragment

    return "".join(part.text if isinstance(part, Fragment) else " " for part in read.prompt.parts)


def tokens_shared(reads: Sequence[ReadPrompt], shard_size: int) -> float:
    """Mean number of tokens that a prompt has in common with the one before, sorted by tokens within each shard."""
    ids = [[token for chunk in read.chunks for token in chunk.plain_ids[1 : 1 + chunk.num_content]] for read in reads]
    shards = (sorted(ids[first : first + shard_size]) for first in range(0, len(ids), shard_size))
    pairs = (pair for shard in shards for pair in pairwise(shard))
    counts = [sum(1 for _ in takewhile(lambda both: both[0] == both[1], zip(*pair, strict=False))) for pair in pairs]
    return statistics.mean(counts) if counts else 0.0


def _about_prompts(texts: Sequence[str], reads: Sequence[ReadPrompt], shard_size: int, *, is_real: bool) -> str:
    """List that says which prompts they are, their lengths, and their tokens in common."""
    num_words = [len(plain_text(read).split()) for read in reads]
    num_long = sum(len(read.chunks) > 1 for read in reads)
    num_weighted = sum(any(token.weight != 1.0 for chunk in read.chunks for token in chunk.tokens) for read in reads)
    origin = "lines of a file given with `--prompts`" if is_real else "made from word lists by a seeded generator"
    lines = [
        f"prompts: {len(texts):,}, {len(set(texts)):,} of them different, {origin}",
        f"words: {min(num_words)} to {max(num_words)}, median {statistics.median(num_words):g}; "
        f"with weights: {num_weighted / len(texts):.1%}; longer than one chunk: {num_long / len(texts):.1%}",
        "tokens in common with the prompt before, when those of a shard are sorted: "
        f"{tokens_shared(reads, shard_size):.1f} in the mean",
    ]
    return "\n".join(f"- {line}" for line in lines)


# ---- measurements


def _measured(
    texts: Sequence[str], reads: Sequence[ReadPrompt], sizes: Sequence[int], scale: Scale, folder: Path
) -> list[list[str]]:
    """Cells of `HEAD`."""
    from ...encoder.kernels import CHOICE  # these import torch
    from ..parity.native import save_model

    weights = folder / "model.safetensors"
    save_model(scale.model(), weights)
    CHOICE.answered()
    CHOICE.now()  # the fastest kernel is chosen once on each machine, and not while a file is timed
    plain = [plain_text(read) for read in reads]
    rows: list[list[str]] = []
    with transformers_process(weights, folder) as ask:
        best = 0 if ask is None else _best_batch(ask, plain[: scale.num_prompts], scale, folder)
        for size in sizes:
            prompts = write_prompts(texts[:size], folder / "prompts.txt")
            job = {"prompts": str(write_prompts(plain[:size], folder / "plain.txt")), "shard_size": scale.shard_size}
            is_compared = size <= scale.many_beside
            runs: dict[str, Callable[[], dict[str, Any]]] = {
                OURS: partial(ours, prompts, weights, folder, scale.shard_size)
            }
            if ask is not None and is_compared:
                runs[TRANSFORMERS] = partial(ask, {**job, "batch": best})
            results, taken = _in_turn(runs, scale.many[size])
            num_tokens = sum(map(count_tokens, reads[:size]))
            own = _figures(results[OURS], results[OURS][0]["prompts"], num_tokens)
            own = own._replace(whole=statistics.median(taken[OURS]))
            if TRANSFORMERS in results:
                theirs = _figures(results[TRANSFORMERS], size, results[TRANSFORMERS][0]["tokens"])
                rows.append(own.cells(OURS, compare(own.seconds, theirs.seconds)))
                rows.append(theirs.cells(f"{TRANSFORMERS}, batches of {best}", None))
                continue
            rows.append(own.cells(OURS, None))
            if is_compared:
                rows.append([TRANSFORMERS, f"{size:,}", *["-"] * (len(HEAD) - 3), NOT_FOUND])
    return rows


def _best_batch(ask: Job, texts: Sequence[str], scale: Scale, folder: Path) -> int:
    """Fastest of the batch sizes for the peer."""
    prompts = write_prompts(texts, folder / "tried.txt")
    return ask({"prompts": str(prompts), "batches": scale.batches, "repetitions": scale.many_tries})["best"]


def _in_turn(
    runs: Mapping[str, Callable[[], dict[str, Any]]], repetitions: int
) -> tuple[dict[str, list[dict[str, Any]]], dict[str, list[float]]]:
    """Results of each round, and its time in seconds as seen from here, by name."""
    results: dict[str, list[dict[str, Any]]] = {name: [] for name in runs}

    def kept(name: str) -> Run:
        return lambda: results[name].append(runs[name]())

    return results, times_in_turn({name: kept(name) for name in runs}, repetitions=repetitions, warm_up=0)


def _figures(results: Sequence[Mapping[str, Any]], num_prompts: int, num_tokens: int) -> Figures:
    peaks = [result["peak"] for result in results if result["peak"] is not None]
    return Figures(
        num_prompts,
        num_tokens,
        [result["seconds"] for result in results],
        max(peaks) / MIB if peaks else None,
        results[-1]["disk"] / MIB,
    )
