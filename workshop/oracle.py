"""Compare the numbers of two states of the code: another commit and the working tree, in one environment.

    python workshop/oracle.py COMMIT [--prompts 2000] [--threads 1] [--tolerance 0] [--batched]

Prompts are encoded alone, several together, and as the WebUI encodes the texts of one image, under a covering array of
the options that both have: every pair of two options' values occurs. By default the encoder takes each chunk by itself,
so that its numbers depend only on the chunk and its mask, and both states must agree to the bit. ``--batched`` uses the
encoder that users get, whose last digits depend on the number of chunks in a batch: give a tolerance with it.
"""

from __future__ import annotations

import argparse
import importlib
import json
import random
import runpy
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import combinations, islice
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = "weighted_clip"
OTHERS: dict[str, tuple[Any, ...]] = {
    "is_causal": (True, False),
    "hide": ("", "cat\nblue house", "a"),
    "from_phrases": ("", "dog\nmat"),
    "filler": ("+", "the"),
}
"""Values of options that are no menus."""
PIECES = (
    *("cat", "dog", "a blue house", "mat", "café", "猫", "🐱", "supercalifragilistic", "the", "of", ", ", ". ", "\n"),
    *("(", ")", "[", "]", "((", "))", ":1.2)", ":0.5)", ":0)", ":-0.5)", ":1.4)", "\\(", "\\", '"', "|", ":", ":0.5]"),
    *("+", "++", "-", "---", ")1.3", ")0.4", ")0", ")++", ")--", " BREAK ", " AND ", "<lora:x:1>", "embedding:x "),
    *(
        '("a cat", "a dog+").blend(0.7, 0.3)',
        '("a (mat)0.5", "dog").and(1, 0.5)',
        '("a", "b").blend(1, -1, no_normalize)',
    ),
)


# ---- states of the code


@contextmanager
def checked_out(commit: str) -> Iterator[Path]:
    """Check out a commit into a folder for the duration of the context."""
    git = ["git", "-C", str(ROOT)]
    with tempfile.TemporaryDirectory() as folder:
        checkout = Path(folder, "other")
        subprocess.run([*git, "worktree", "add", "--quiet", "--detach", str(checkout), commit], check=True)
        try:
            yield checkout
        finally:
            subprocess.run([*git, "worktree", "remove", "--force", str(checkout)], check=True)


def load_package(root: Path) -> None:
    """Load a folder as this process's package, whatever the folder is called."""
    runpy.run_path(str(root / "__main__.py"))["load_package"]()


def part(name: str) -> Any:
    """A module of the loaded package."""
    return importlib.import_module(f"{PACKAGE}.{name}")


# ---- prompts under options


def values_of_options(root: Path = ROOT) -> dict[str, tuple[Any, ...]]:
    """All choices of each option of a state of the code, but those of bound phrases, which most prompts do not have."""
    load_package(root)
    declared = part("weighting.options").OPTIONS
    menus = {
        name: option.choices for name, option in declared.items() if option.choices and not name.startswith("bind")
    }
    return {**menus, **OTHERS}


def covering_rows(options: dict[str, tuple[Any, ...]], generator: random.Random) -> list[dict[str, Any]]:
    """Choices that cover every pair of values of two options, found greedily."""
    names = list(options)
    missing = {
        ((first, a), (second, b))
        for first, second in combinations(names, 2)
        for a in options[first]
        for b in options[second]
    }
    rows: list[dict[str, Any]] = []
    while missing:
        (first, a), (second, b) = min(missing, key=repr)
        best: tuple[int, dict[str, Any]] = (-1, {})
        for _ in range(40):
            row = {name: generator.choice(values) for name, values in options.items()} | {first: a, second: b}
            best = max(best, (len(missing & _pairs(row, names)), row), key=lambda scored: scored[0])
        missing -= _pairs(best[1], names)
        rows.append(best[1])
    return rows


def _pairs(row: dict[str, Any], names: Sequence[str]) -> set[Any]:
    return {((first, row[first]), (second, row[second])) for first, second in combinations(names, 2)}


def prompts() -> Iterator[str]:
    """Real prompts from the tests' files and the parity command, then endless random ones."""
    written = json.loads((ROOT / "tests/data/conversion_prompts.json").read_text(encoding="utf-8"))
    real = [case["prompt"] for case in written]
    for path in sorted((ROOT / "tests/cases").glob("*.json")):
        cases = json.loads(path.read_text(encoding="utf-8"))["cases"]
        real += [case[key] for case in cases for key in ("prompt", "text") if isinstance(case.get(key), str)]
    generator = random.Random(0)
    real = list(dict.fromkeys(text for text in real if len(text) < 3000))
    generator.shuffle(real)
    for text in real:
        yield text
        yield "".join(
            generator.choice((" ", "", " ")) + generator.choice(PIECES) for _ in range(generator.randint(1, 40))
        )
    while True:
        yield " ".join(generator.choices(PIECES, k=generator.randint(1, 90)))


def work(root: Path, jobs: Path, out: Path, *, threads: int, is_batched: bool) -> None:
    """Encode all jobs with the code in one folder, and write tensors and problems to a file."""
    import torch

    torch.set_num_threads(threads)
    load_package(root)
    new_options = part("weighting.options").EncodeOptions
    read_prompt = part("weighting.reading.prompt_reader").read_prompt
    encode = _encoder(is_batched=is_batched)
    tokenize = part("encoder.tokenizer").default_tokenizer()
    results: list[Any] = []
    for job in json.loads(jobs.read_text(encoding="utf-8")):
        try:
            options = new_options(**job["options"])
        except ValueError:
            results.append(None)  # this state does not have the choice
            continue
        try:
            reads = [read_prompt(text, options, tokenize) for text in job["texts"]]
            encoded = _encoded(reads, encode, tokenize, job["way"])
            results.append(
                [(prompt.hidden, prompt.pooled, [issue.line for issue in prompt.read.issues]) for prompt in encoded]
            )
        except ValueError as error:
            results.append(str(error))
    torch.save(results, out)


def _encoder(*, is_batched: bool) -> Any:
    import torch

    config = part("encoder.models.config").TextConfig
    seeded = part("encoder.files.checkpoint").seeded_text_model
    model = seeded(config(hidden_dim=16, num_heads=2, num_layers=2, mlp_dim=32), seed=1)
    if is_batched:
        return part("encoder.models.prefix").encoders_for({"clip_l": model}, max_bytes=0)[1]["clip_l"]
    text_model = part("encoder.models.text_model")
    encoder = text_model.TextEncoder(model)

    def one_by_one(ids: Any, mask: Any = None, *, is_causal: bool = True) -> Any:
        length = len(ids[0])
        everything = torch.ones(len(ids), 1, length, dtype=torch.bool)
        masks = everything if mask is None else mask.expand(len(ids), -1, length)
        rows = [encoder([chunk], masks[row : row + 1], is_causal=is_causal) for row, chunk in enumerate(ids)]
        return text_model.Encoding(*map(torch.cat, zip(*rows, strict=True)))

    return one_by_one


def _encoded(reads: Any, encode: Any, tokenize: Any, way: str) -> Any:
    """Encode prompts in one of the ways."""
    encoders = part("weighting.encoders").Encoders(
        {"clip_l": part("weighting.towers").Reader(tokenize)},
        {"clip_l": encode},
        max_chunks=5,
        keeps_calls=way != "together",
    )
    if way == "alone":
        return [prompt for parsed in reads for prompt in encoders.plan([{"clip_l": parsed}]).run_tower("clip_l")]
    if way == "together":
        return encoders.plan([{"clip_l": parsed} for parsed in reads]).run_tower("clip_l")
    prepared = encoders.prepare_together([parsed.prompt.source for parsed in reads], reads[0].options)
    return prepared.run_tower("clip_l")


def compare(before: Sequence[Any], after: Sequence[Any], jobs: Sequence[Any], tolerance: float) -> int:
    """Print differences; return the number of jobs with any. A new choice in the working tree cannot be compared."""
    import torch

    differing, worst = 0, 0.0
    for expected, actual, job in zip(before, after, jobs, strict=True):
        why = ""
        if expected is None:
            continue
        if actual is None:
            why = "options that are no longer known"
        elif isinstance(expected, str) or isinstance(actual, str):
            why = "" if expected == actual else f"{expected!s:.200} | {actual!s:.200}"
        else:
            for (hidden, pooled, issues), (its_hidden, its_pooled, its_issues) in zip(expected, actual, strict=True):
                if issues != its_issues:
                    why = f"problems {issues} | {its_issues}"
                for a, b in ((hidden, its_hidden), (pooled, its_pooled)):
                    if a.shape != b.shape:
                        why = f"shapes {list(a.shape)} | {list(b.shape)}"
                    elif not torch.equal(a.nan_to_num(7.0), b.nan_to_num(7.0)):
                        scale = max(1.0, float(a.abs().nan_to_num(0.0, 0.0).max()))
                        far = float((a - b).abs().nan_to_num(float("inf"), float("inf")).max()) / scale
                        worst = max(worst, far)
                        why = f"off by {far:.3g} of the largest number" if far > tolerance else why
        if why:
            differing += 1
            if differing <= 10:
                print(f"{why}\n    {job}")
    new = sum(expected is None for expected in before)
    print(f"{len(jobs)} jobs, {differing} differ; the farthest numbers are {worst:.3g} apart")
    if new:
        print(f"{new} jobs were left out: they have a choice that is new")
    return differing


def main() -> int:
    """Run the tool."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("commit", help="what to compare with")
    parser.add_argument("--prompts", type=int, default=2000)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--tolerance", type=float, default=0.0, help="relative to the largest number of a tensor")
    parser.add_argument("--batched", action="store_true")
    parser.add_argument("--work", nargs=3, type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--names", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.names:
        print(json.dumps([*values_of_options(arguments.names)]))
        return 0
    if arguments.work:
        work(*arguments.work, threads=arguments.threads, is_batched=arguments.batched)
        return 0
    import torch

    texts = list(islice(prompts(), arguments.prompts))
    jobs: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as name, checked_out(arguments.commit) as checkout:
        folder, itself = Path(name), [sys.executable, "-B", __file__, arguments.commit]
        names = json.loads(subprocess.check_output([*itself, "--names", str(checkout)], cwd=folder))
        values = {option: choices for option, choices in values_of_options().items() if option in names}
        rows = covering_rows(values, random.Random(0))
        for index, text in enumerate(texts):
            way = ("alone", "alone", "together", "columns")[index // len(rows) % 4]
            batch = [text] if way == "alone" else [text, texts[index - 1], texts[index - 7]]
            jobs.append({"texts": batch, "options": rows[index % len(rows)], "way": way})
        (folder / "jobs.json").write_text(json.dumps(jobs), encoding="utf-8")
        results: list[Any] = []
        for root in (checkout, ROOT):
            out = folder / f"{len(results)}.pt"
            flags = ["--threads", str(arguments.threads), *(["--batched"] if arguments.batched else [])]
            command = [*itself, *flags, "--work", str(root), str(folder / "jobs.json"), str(out)]
            subprocess.run(command, check=True, cwd=folder)
            results.append(torch.load(out))
    print(f"{len(texts)} prompts, {len(rows)} rows of options cover every pair")
    return int(compare(results[0], results[1], jobs, arguments.tolerance) > 0)


if __name__ == "__main__":
    sys.exit(main())
