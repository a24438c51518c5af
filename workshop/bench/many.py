"""Speed, memory and disk space of ``encode --batch`` for files of many prompts, beside transformers.

The prompts are those of a file of the user, or made by `made_prompts`.
"""

from __future__ import annotations

import importlib
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import pairwise, repeat, takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..peers.transformers import Transformers, transformers_of
from .page import NOT_FOUND, Request, Section, in_process, table, times
from .scale import Scale
from .texts import made_prompts
from .timing import MIB, TRANSFORMERS, MemoryPeak, Run, best_batch, compare, measured, times_in_turn

if TYPE_CHECKING:
    from ...weighting.reading import ReadPrompt

OURS = "encode --batch"
HEAD = (
    *("By", "Prompts", "Tokens", "Tokens/s", "Prompts/s", "Ours / peer", "Middle half"),
    *("Peak memory, MiB", "On disk, MiB", "Whole command, s"),
)
NOT_MEASURED = "not measured"
SECONDS = 36_000


def many_block(request: Request) -> str:
    """Section in Markdown: the prompts, and a row for each program and file.

    It raises ValueError if the file of prompts is missing, not UTF-8 or too short, or a process fails.
    """
    scale, file = request.scale, request.prompts
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
    """Prompts of a UTF-8 file, one in each line; empty lines are left out."""
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
    model = scale.model()
    save_model(model, weights)
    CHOICE.answered()
    CHOICE.now()  # the fastest kernel is chosen once on each machine, and not while a file is timed
    plain = [plain_text(read) for read in reads]
    rows: list[list[str]] = []
    peer = transformers_of(model)
    best = None if peer is None else _best_batch(peer, plain[: scale.num_prompts], scale)
    for size in sizes:
        prompts = write_prompts(texts[:size], folder / "prompts.txt")
        is_compared = size <= scale.many_beside
        runs = {OURS: partial(ours, prompts, weights, folder, scale.shard_size)}
        if best is not None and is_compared:
            file = write_prompts(plain[:size], folder / "plain.txt")
            runs[TRANSFORMERS] = partial(theirs, file, weights, folder, scale.shard_size, best)
        results, taken = _in_turn(runs, scale.many[size])
        num_tokens = sum(map(count_tokens, reads[:size]))
        beside = [[result["seconds"] for result in rounds] for rounds in results.values()]
        ratio = times(compare(*beside))[2:] if len(beside) > 1 else ("-", "-")
        own = results[OURS]
        rows.append([*_cells(OURS, own, own[0]["prompts"], num_tokens, ratio), f"{statistics.median(taken[OURS]):.3g}"])
        if TRANSFORMERS in results:
            other = results[TRANSFORMERS]
            name = f"{TRANSFORMERS}, batches of {best}"
            rows.append([*_cells(name, other, size, other[0]["tokens"], ("-", "-")), "-"])
        elif is_compared:
            rows.append([TRANSFORMERS, f"{size:,}", *["-"] * (len(HEAD) - 3), NOT_FOUND])
    return rows


def _cells(
    name: str, rounds: Sequence[Mapping[str, Any]], num_prompts: int, num_tokens: int, ratio: Sequence[str]
) -> list[str]:
    """Cells of `HEAD` but the last, from what each round of a program found on a file; tokens without BOS and EOS."""
    seconds = statistics.median(found["seconds"] for found in rounds)
    speeds = (f"{number / seconds:.3g}" for number in (num_tokens, num_prompts))
    peaks = [found["peak"] for found in rounds if found["peak"] is not None]
    peak = f"{max(peaks) / MIB:.0f}" if peaks else NOT_MEASURED
    return [name, f"{num_prompts:,}", f"{num_tokens:,}", *speeds, *ratio, peak, f"{rounds[-1]['disk'] / MIB:.3g}"]


def _best_batch(peer: Transformers, texts: Sequence[str], scale: Scale) -> int:
    """Fastest of the batch sizes for the peer."""
    import torch

    with torch.inference_mode():
        return best_batch(peer, lambda: repeat(texts), scale.batches, scale.many_tries)


def _in_turn(
    runs: Mapping[str, Callable[[], dict[str, Any]]], repetitions: int
) -> tuple[dict[str, list[dict[str, Any]]], dict[str, list[float]]]:
    """Results of each round, and its time in seconds as seen from here, by name."""
    results: dict[str, list[dict[str, Any]]] = {name: [] for name in runs}

    def kept(name: str) -> Run:
        return lambda: results[name].append(runs[name]())

    return results, times_in_turn({name: kept(name) for name in runs}, repetitions=repetitions, warm_up=0)


MANY = Section("many", many_block)


# ---- programs, each in a process of its own


def write_prompts(texts: Sequence[str], path: Path) -> Path:
    """Write a file with a prompt in each line; return its path."""
    path.write_text("".join(f"{text}\n" for text in texts), encoding="utf-8", newline="\n")
    return path


def ours(prompts: Path, weights: Path, folder: Path, shard_size: int) -> dict[str, Any]:
    """Run ``encode --batch`` on a file of prompts in a new process, and remove what it wrote.

    The result is what `Watch` found, with ``disk``, bytes of the files written, and ``prompts``, their number in them.
    """
    from ...output.shards import read_head, shard_files

    out = folder / "ours"
    given = {"--batch": prompts, "--weights": weights, "--out": out, "--shard-size": shard_size}
    arguments = [str(part) for option in given.items() for part in option]
    found = in_process(f"{OURS} did not run", run_command, {"arguments": arguments}, seconds=SECONDS)
    num_prompts = sum(len(read_head(path).texts) for _, path in shard_files(out))
    return {**found, "disk": _removed(out), "prompts": num_prompts}


def theirs(prompts: Path, weights: Path, folder: Path, shard_size: int, batch: int) -> dict[str, Any]:
    """The same for transformers, so many prompts at once, with the number of ``tokens`` instead of that of prompts."""
    out = folder / "theirs"
    out.mkdir()
    job = {"prompts": str(prompts), "weights": str(weights), "out": str(out), "batch": batch, "shard_size": shard_size}
    found = in_process(f"{TRANSFORMERS} did not run", encode_file, job, seconds=SECONDS)
    return {**found, "disk": _removed(out)}


def _removed(folder: Path) -> int:
    """Bytes of the files of a folder, which is removed."""
    size = sum(path.stat().st_size for path in folder.iterdir())
    shutil.rmtree(folder)
    return size


# ---- in these processes


class Watch:
    """Time and peak of memory since it was made."""

    def __init__(self) -> None:
        self._memory, self._start = MemoryPeak(), time.perf_counter()

    def found(self) -> dict[str, Any]:
        """Return ``seconds``, and ``peak`` in bytes, or None if the system does not report it."""
        return {"seconds": time.perf_counter() - self._start, "peak": self._memory.taken()}


def run_command(job: dict[str, Any]) -> dict[str, Any]:
    """Run ``encode`` with arguments, and measure from when the model is loaded to when the last prompt is written."""
    # by name: the commands stand above the workshop
    bulk = importlib.import_module("...commands.bulk", __package__)
    program = importlib.import_module("...commands.program", __package__)
    found: dict[str, Any] = {}

    class Watched(bulk.Report):  # one is made when the model is loaded, and ended when all is written
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            self._watch = Watch()

        def end(self, how: str) -> None:
            found.update(self._watch.found())
            super().end(how)

    vars(bulk)["Report"] = Watched
    if program.main(["encode", *job["arguments"]]):
        raise SystemExit(1)
    return found


def encode_file(job: dict[str, Any]) -> dict[str, Any]:
    """Encode ``prompts`` (a file with a prompt in each line, without weights) by transformers.

    ``batch`` prompts are encoded at once and written into files of ``shard_size`` in the folder ``out``.
    """
    import torch

    theirs = _loaded(job["weights"])
    texts = Path(job["prompts"]).read_text(encoding="utf-8").split("\n")[:-1]
    with torch.inference_mode():
        theirs.batch(repeat(texts[: job["batch"]]), job["batch"])()  # what is done once is not timed
        watch = Watch()
        num_tokens = encode_shards(theirs, texts, Path(job["out"]), job["batch"], job["shard_size"])
        return watch.found() | {"tokens": num_tokens}


def _loaded(weights: str) -> Transformers:
    from ...encoder.files.checkpoint import load_text_models
    from ...training.distributed import declare_missing_operators

    declare_missing_operators()
    theirs = transformers_of(load_text_models(Path(weights))[0]["clip_l"])
    assert theirs is not None
    for parameter in theirs.model.parameters():
        parameter.sum()  # a mapped file is resident once it has been read
    return theirs


def encode_shards(theirs: Transformers, texts: Sequence[str], folder: Path, batch: int, shard_size: int) -> int:
    """Encode texts by transformers, each cut and padded to 77 positions, and write as many files as ours does.

    In a file ``hidden`` is ``[prompts, 77, dim]`` and ``pooled`` is ``[prompts, dim]``. The result is the number of
    tokens encoded, without BOS, EOS and padding.
    """
    import torch
    from safetensors.torch import save_file

    config, num_tokens = theirs.model.config, 0
    for first in range(0, len(texts), shard_size):
        some = texts[first : first + shard_size]
        hidden = torch.empty(len(some), config.max_position_embeddings, config.hidden_size)
        pooled = torch.empty(len(some), config.hidden_size)
        for start in range(0, len(some), batch):
            part = slice(start, start + batch)
            tokens = theirs.tokenizer(some[part], padding="max_length", truncation=True, return_tensors="pt")
            found = theirs.model(tokens["input_ids"])
            hidden[part], pooled[part] = found.last_hidden_state, found.pooler_output
            num_tokens += int((tokens["attention_mask"].sum(dim=1) - 2).sum())
        save_file({"hidden": hidden, "pooled": pooled}, folder / f"{first:08d}.safetensors")
    return num_tokens
