"""Processes of the section on many prompts: the command ``encode --batch`` observed, and transformers.

Both take the time from when the model is loaded to when the last prompt is written, and the peak of memory in it.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from functools import partial
from itertools import repeat
from pathlib import Path
from typing import Any

from .memory import MemoryPeak
from .runs import Transformers, best_batch, transformers_of


class Watch:
    """Time and peak of memory since it was made."""

    def __init__(self) -> None:
        self._memory, self._start = MemoryPeak(), time.perf_counter()

    def found(self) -> dict[str, Any]:
        """Return ``seconds``, and ``peak`` in bytes, or None if the system does not report it."""
        return {"seconds": time.perf_counter() - self._start, "peak": self._memory.taken()}


def watched(report: Any, result: str) -> Any:
    """Make a report of ``encode --batch`` that also measures.

    Args:
        report: The command's class of reports. One is made when the model is loaded, and ended when all is written.
        result: File for time and memory, as JSON.

    Returns:
        The class to use instead.
    """

    class Watched(report):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            self._watch = Watch()

        def end(self, how: str) -> None:
            Path(result).write_text(json.dumps(self._watch.found()), encoding="utf-8")
            super().end(how)

    return Watched


def serve(weights: str) -> None:
    """Encode files by transformers, as told by lines of standard input.

    Each is a job as JSON: ``prompts`` (a file with a prompt in each line, without weights) and ``batch`` (prompts at
    once), ``out`` (a folder) and ``shard_size``; or instead of the last three ``batches`` (sizes to try) and
    ``repetitions``. The answer is a line of JSON: what `Watch` found, with the number of ``tokens``; or ``best``.

    Args:
        weights: File with the text encoder.

    Raises:
        ValueError: If the file cannot be used.
    """
    import torch

    from ...encoder.files.checkpoint import load_text_models
    from ...training.torchvision_operators import declare_missing_operators

    declare_missing_operators()
    model = load_text_models(Path(weights))[0]["clip_l"]
    theirs = transformers_of(model)
    assert theirs is not None
    for parameter in theirs.model.parameters():
        parameter.sum()  # a mapped file is resident once it has been read
    with torch.inference_mode():
        for line in sys.stdin:
            job = json.loads(line)
            texts = Path(job["prompts"]).read_text(encoding="utf-8").split("\n")[:-1]
            if "batches" in job:
                found = {"best": best_batch(theirs, partial(repeat, texts), job["batches"], job["repetitions"])}
            else:
                watch = Watch()
                num_tokens = encode_shards(theirs, texts, Path(job["out"]), job["batch"], job["shard_size"])
                found = watch.found() | {"tokens": num_tokens}
            sys.stdout.write(json.dumps(found) + "\n")
            sys.stdout.flush()


def encode_shards(theirs: Transformers, texts: Sequence[str], folder: Path, batch: int, shard_size: int) -> int:
    """Encode texts by transformers, each cut and padded to 77 positions, and write as many files as ours does.

    Args:
        theirs: Tokenizer and model.
        texts: The texts.
        folder: Existing folder for the files, in which ``hidden`` is ``[prompts, 77, dim]`` and ``pooled`` is
            ``[prompts, dim]``.
        batch: Texts at once.
        shard_size: Texts in a file.

    Returns:
        Number of tokens encoded, without BOS, EOS and padding.
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
