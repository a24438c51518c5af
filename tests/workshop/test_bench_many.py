"""The section of the command ``bench`` on files of many prompts. Nothing looks at how long anything takes."""

from __future__ import annotations

import re
import statistics
import sys
from dataclasses import replace
from itertools import repeat
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from weighted_clip.commands.bulk import SHARD_SIZE
from weighted_clip.encoder.prefix import LEAST_SHARED, num_shared
from weighted_clip.encoder.text_model import TextEncoder
from weighted_clip.encoder.tokenizer import default_tokenizer
from weighted_clip.weighting.encoders import Encoders
from weighted_clip.weighting.options import EncodeOptions
from weighted_clip.weighting.reading import read_prompt
from weighted_clip.workshop.bench import timing
from weighted_clip.workshop.bench.encoding import SYNTAXES, timed
from weighted_clip.workshop.bench.many import (
    HEAD,
    OURS,
    Watch,
    count_tokens,
    encode_shards,
    many_block,
    ours,
    plain_text,
    prompts_of,
    read_prompts,
    theirs,
    tokens_shared,
    write_prompts,
)
from weighted_clip.workshop.bench.page import Request, table_rows
from weighted_clip.workshop.bench.scale import FULL, QUICK
from weighted_clip.workshop.bench.texts import (
    BEGINNING,
    FEWEST_WORDS,
    FOUR_DOWN,
    MEDIAN_WORDS,
    MOST_WORDS,
    NEGATIVE,
    PROMPTS,
    TEXTS,
    fresh,
    grids,
    made_prompts,
    text_of,
    typed,
    words,
    written,
)
from weighted_clip.workshop.bench.timing import TRANSFORMERS, best_batch, native
from weighted_clip.workshop.bench.timing import ours as our_run
from weighted_clip.workshop.parity.native import save_model
from weighted_clip.workshop.peers.transformers import transformers_of, transformers_tokenizer

from ..libraries import library

ODD = [
    "a ((red)) [cat], (dog:1.3) \\(film\\)",
    "a cat BREAK a (dog:0.5)",
    "café, 花, 🌉 bridge",
    "so <lora:x:0.5>",
    "(a",
]
SIZES = replace(QUICK, many={4: 1, 9: 1})
"""Two files, of which the peer encodes the first."""


# ---- prompts


def test_the_same_seed_makes_the_same_prompts() -> None:
    prompts = made_prompts(300)
    assert made_prompts(300) == prompts
    assert made_prompts(20) == prompts[:20]
    assert len(set(prompts)) == 300
    assert not set(prompts) & set(made_prompts(300, seed=1))


def test_prompts_have_as_many_words_as_they_should() -> None:
    counts = [len(re.sub(r":\d\.\d\)|[()\[\]]", "", prompt).split()) for prompt in made_prompts(2000)]
    assert (min(counts), max(counts)) == (FEWEST_WORDS, MOST_WORDS)
    assert statistics.median(counts) == pytest.approx(MEDIAN_WORDS, abs=2)
    assert statistics.mean(counts) > statistics.median(counts)  # short ones are common, long ones rare


def test_some_prompts_have_weights_and_none_has_a_problem() -> None:
    reads = read_prompts(made_prompts(500))
    weighted = [{token.weight for token in read.chunks[0].tokens} - {1.0} for read in reads]
    assert 0.1 < sum(map(bool, weighted)) / 500 < 0.3
    assert {0.6, 0.8, 1.2, 1.4} < set().union(*weighted)
    assert [issue.line for read in reads for issue in read.issues if issue.severity != "info"] == []


def test_tokens_are_counted_as_by_transformers() -> None:
    library("transformers", "5")
    tokenizer = transformers_tokenizer()
    for read in read_prompts([*made_prompts(200), *ODD]):
        assert count_tokens(read) == len(tokenizer(plain_text(read), add_special_tokens=False)["input_ids"])


def test_a_plain_prompt_has_the_words_and_no_weights() -> None:
    plain = [plain_text(read) for read in read_prompts(ODD)]
    assert plain == ["a red cat, dog (film)", "a cat a dog", "café, 花, 🌉 bridge", "so ", "a"]


def test_tokens_in_common_are_those_of_neighbours_in_a_shard() -> None:
    prompts = ["red fox in snow", "blue fox", "red fox", "red cat", "red fox in rain", "blue fox"]
    # "blue fox", "red cat", "red fox", "red fox in snow" are the first shard in order, the other two the second
    counts = [0, 1, 2, 0]
    assert tokens_shared(read_prompts(prompts), 4) == statistics.mean(counts)
    assert tokens_shared(read_prompts(prompts[:1]), 4) == 0


def test_a_file_of_prompts_is_read_by_lines(tmp_path: Path) -> None:
    file = tmp_path / "prompts.txt"
    file.write_bytes("\ufeffa cat\r\n\n  café\u2028dog \n\na fox".encode())
    assert prompts_of(file) == ["a cat", "café\u2028dog", "a fox"]
    file.write_bytes(b"caf\xe9")
    with pytest.raises(ValueError, match=r"--prompts .*prompts\.txt: .*utf-8"):
        prompts_of(file)
    with pytest.raises(ValueError, match=r"--prompts .*nowhere\.txt"):
        prompts_of(tmp_path / "nowhere.txt")


# ---- programs


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny text encoder."""
    path = tmp_path_factory.mktemp("weights") / "model.safetensors"
    save_model(QUICK.model(), path)
    return path


def test_a_shard_is_as_large_as_by_default() -> None:
    assert FULL.shard_size == SHARD_SIZE
    assert list(FULL.many) == [100, 1_000, 10_000]
    assert FULL.many_beside == 1_000


@pytest.mark.parametrize("count", [1, 4, 9])
def test_a_file_holds_as_many_prompts_as_it_should(count: int, tmp_path: Path) -> None:
    file = write_prompts(made_prompts(count), tmp_path / "prompts.txt")
    assert file.read_bytes().count(b"\n") == count
    assert prompts_of(file) == made_prompts(count)


def test_the_command_encodes_every_prompt_of_a_file(weights: Path, tmp_path: Path) -> None:
    found = ours(write_prompts(made_prompts(6), tmp_path / "prompts.txt"), weights, tmp_path, 4)
    assert found["prompts"] == 6
    numbers = 6 * (77 + 1) * 64 * 4  # hidden states and pooled vector
    assert numbers < found["disk"] < numbers + 10_000
    assert found["seconds"] > 0
    assert (found["peak"] is not None) == Path("/proc/self/clear_refs").exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["prompts.txt"]


def test_what_the_command_says_is_told_if_it_fails(weights: Path, tmp_path: Path) -> None:
    file = tmp_path / "prompts.txt"
    file.write_bytes(b"a cat\ncaf\xe9\n")
    with pytest.raises(ValueError, match=r"encode --batch did not run:(.|\n)*prompts\.txt:2: .*UTF-8"):
        ours(file, weights, tmp_path, 4)


def test_the_peer_encodes_the_same_texts_to_the_same_states(tmp_path: Path) -> None:
    library("transformers", "5")
    model = QUICK.model()
    theirs = transformers_of(model)
    assert theirs is not None
    plain = [plain_text(read) for read in read_prompts(made_prompts(60))]
    texts = [text for text in plain if len(theirs.tokenizer(text)["input_ids"]) <= 77][:7]
    encoders = Encoders.of_models({"clip_l": model})
    encoders.encoders = {"clip_l": TextEncoder(model)}
    with torch.no_grad():
        expected = [encoders(text, syntax="none") for text in texts]
        num_tokens = encode_shards(theirs, texts, tmp_path, 3, 4)
    files = [load_file(path) for path in sorted(tmp_path.iterdir())]
    assert [len(file["hidden"]) for file in files] == [4, 3]
    for name, index in (("hidden", 0), ("pooled", 1)):
        found = torch.cat([file[name] for file in files])
        torch.testing.assert_close(found, torch.cat([one[index] for one in expected]), atol=1e-5, rtol=0)
    assert num_tokens == sum(map(count_tokens, read_prompts(texts)))


def test_the_peer_counts_no_token_it_cuts_off(tmp_path: Path) -> None:
    library("transformers", "5")
    theirs = transformers_of(QUICK.model())
    assert theirs is not None
    with torch.no_grad():
        assert encode_shards(theirs, ["cat " * 100, "a cat", ""], tmp_path, 2, 4) == 75 + 2 + 0


def test_the_batch_of_the_least_time_is_the_best(monkeypatch: pytest.MonkeyPatch) -> None:
    taken = {"1": [3.0, 3.0], "4": [1.0, 2.0], "8": [2.0, 2.0]}
    monkeypatch.setattr(timing, "times_in_turn", lambda contestants, **_: {name: taken[name] for name in contestants})
    theirs = transformers_of(QUICK.model()) if library("transformers", "5") else None
    assert best_batch(theirs, lambda: repeat(["a cat"]), [1, 4, 8]) == 4


def test_what_the_peer_says_is_told_if_it_fails(tmp_path: Path) -> None:
    library("transformers", "5")
    file = write_prompts(ODD, tmp_path / "prompts.txt")
    with pytest.raises(ValueError, match=r"transformers did not run:\n(.|\n)*no such model"):
        theirs(file, tmp_path / "no such model", tmp_path, 4, 2)


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="needs Linux, to measure the peak of memory")
def test_the_peak_is_that_since_the_watch_was_made() -> None:
    before = bytearray(b"x") * (96 * 2**20)
    del before
    watch = Watch()
    held = bytearray(b"x") * (32 * 2**20)
    del held
    found = watch.found()
    assert 31 < found["peak"] / 2**20 < 64
    assert found["seconds"] > 0


# ---- the section


def test_the_section_has_rows_of_both() -> None:
    library("transformers", "5")
    tokenizer = transformers_tokenizer()
    block = many_block(Request(SIZES))
    rows = [row for row in table_rows(block) if HEAD[0] in row]
    assert [(row["By"].split(", batches of ")[0], row["Prompts"]) for row in rows] == [
        (OURS, "4"),
        (TRANSFORMERS, "4"),
        (OURS, "9"),
    ]
    assert rows[1]["By"].split()[-1] in ("1", "4")
    plain = [plain_text(read) for read in read_prompts(made_prompts(9))]
    for row in rows:
        ids = [tokenizer(text, add_special_tokens=False)["input_ids"] for text in plain[: int(row["Prompts"])]]
        assert int(row["Tokens"].replace(",", "")) == sum(map(len, ids))
        speeds = [float(row[name]) for name in ("Tokens/s", "Prompts/s")]
        assert speeds[0] / speeds[1] == pytest.approx(sum(map(len, ids)) / len(ids), rel=0.02)
        numbers = len(ids) * (77 + 1) * 64 * 4 / 2**20
        assert numbers * 0.99 < float(row["On disk, MiB"]) < numbers + 0.01
    assert float(rows[0]["Ours / peer"]) == pytest.approx(
        float(rows[1]["Prompts/s"]) / float(rows[0]["Prompts/s"]), rel=0.02
    )
    assert [row["Ours / peer"] for row in rows[1:]] == ["-", "-"]
    assert [float(rows[0]["Whole command, s"]) > 0, rows[1]["Whole command, s"]] == [True, "-"]
    assert "made from word lists" in block


def test_prompts_of_a_file_are_named_so_and_a_missing_peer_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    file = write_prompts(ODD, tmp_path / "prompts.txt")
    block = many_block(Request(SIZES, prompts=file))
    rows = list(table_rows(block))
    assert [(row["By"], row["Prompts"], row["Whole command, s"]) for row in rows[1:]] == [
        (TRANSFORMERS, "4", "not found")
    ]
    assert (rows[0]["By"], rows[0]["Prompts"]) == (OURS, "4")
    assert "given with `--prompts`" in block
    write_prompts(ODD[:3], file)
    with pytest.raises(ValueError, match="at least 4 prompts are needed, found 3"):
        many_block(Request(QUICK, prompts=file))


# ---- prompts that are timed one by one


@pytest.mark.parametrize("template", [*PROMPTS.values(), NEGATIVE])
def test_a_fresh_prompt_has_as_many_tokens_and_nothing_in_common(template: str) -> None:
    tokenize = default_tokenizer()
    usual = [token.id for token in tokenize(written(template, "none"))]
    texts = fresh(template, "none")
    found = [[token.id for token in tokenize(next(texts))] for _ in range(200)]
    assert all(ids[1:] == usual[1:] for ids in found)
    assert len({ids[0] for ids in found}) == 200
    assert len(words()) > 1000


def test_only_the_empty_prompt_of_a_fresh_prompt_is_remembered() -> None:
    encoder = native(QUICK.model())
    asked: list[int] = []
    run_of = encoder._run
    encoder._run = lambda ids, *rest, **named: asked.append(len(ids)) or run_of(ids, *rest, **named)
    run = our_run(encoder, fresh(PROMPTS["one word up"], "comfy"))
    assert [run().shape for _ in range(3)] == [(1, 77, 64)] * 3
    assert asked == [2, 1, 1]  # the prompt and the empty one, then the prompt
    remembered = encoder.encodings.keys()
    keys = [key for _, key in remembered]
    assert max(num_shared(one, other) for one in keys for other in keys if one != other) < LEAST_SHARED


def test_a_typed_prompt_has_three_chunks_and_another_last_word() -> None:
    texts = typed()
    one, other = (read_prompt(next(texts), EncodeOptions(), default_tokenizer()).chunks for _ in range(2))
    assert len(one) == 3
    assert one[:2] == other[:2]
    ids = list(zip(one[2].ids, other[2].ids, strict=True))
    assert [place for place, (this, that) in enumerate(ids) if this != that] == [one[2].num_content]


def test_prompts_of_a_grid_have_their_beginning_in_common() -> None:
    tokenize = default_tokenizer()
    assert len(tokenize(BEGINNING)) == 40
    rounds = grids(3)
    found = [[[token.id for token in tokenize(text)] for text in next(rounds)] for _ in range(2)]
    assert {len(ids) for grid in found for ids in grid} == {60}
    assert len({tuple(ids[:40]) for grid in found for ids in grid}) == 1
    assert len({tuple(ids) for grid in found for ids in grid}) == 6
    assert next(grids(3)) == next(grids(3))


def test_a_timed_prompt_has_four_texts() -> None:
    texts = timed()
    one, other = next(texts), next(texts)
    assert len(set(one)) == len(one) == len(other) == 4
    assert not set(one) & set(other)
    assert all(len(read_prompt(text, EncodeOptions(syntax="a1111"), default_tokenizer()).chunks) == 1 for text in one)


@pytest.mark.parametrize("length", [300, 10_000])
@pytest.mark.parametrize("name", TEXTS)
def test_texts_have_the_length_they_claim(name: str, length: int) -> None:
    assert all(len(text_of(name, syntax, length)) == length for syntax in SYNTAXES)


@pytest.mark.parametrize("syntax", ["comfy", "compel"])
def test_prompts_carry_the_weights_they_claim(syntax: str) -> None:
    def weights(name: str) -> list[float]:
        read = read_prompt(written(PROMPTS[name], syntax), EncodeOptions(syntax=syntax), default_tokenizer())
        assert len(read.chunks) == 1
        return [fragment.weight for fragment in read.prompt.fragments if fragment.weight != 1.0]

    assert weights("plain") == []
    assert weights("one word up") == [1.4]
    assert weights("four words down") == [0.2, 0.4, 0.6, 0.8]
    assert len(default_tokenizer()(written(FOUR_DOWN, "none"))) == 60
