"""Options that are wrong or do not go together: refused in one line before anything is trained."""

from __future__ import annotations

import pytest

from .runs import Start

MLM = ["--objective", "mlm", "--held-out", "4"]
CLASSIFY = ["--objective", "classify"]
IMAGES = [*CLASSIFY, "--towers", "image"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--batch", "0"], "batch must be at least 1, got 0"),
        (["--rate-of", "heart=1"], "'heart'; parts are layers, embeddings"),
        (["--lora", "-1"], "at least 1, got -1"),
        (["--lora", "2", "--towers", "both"], "leave out --towers both"),
        (["--rate-of", "image"], "--rate-of image: write PART=X"),
        (["--tag-dropout", "1"], "from 0 to below 1, got 1.0"),
        (["--held-out", "40"], "32 usable pairs, 40 of them held out"),
        (["--held-out", "-1"], "at least 0, got -1"),
        (["--ema", "1"], "below 1, got 1.0"),
        (["--rate", "0"], "nothing is left to train"),
        (["--weights", "nowhere.safetensors"], "nowhere.safetensors"),
        (["--keep", "-1"], "weight of kept prompts must be a number from 0, got -1.0"),
        (["--patience", "0"], "patience must be at least 1, got 0"),
        (["--patience", "2", "--held-out", "0"], "none are held out: use --held-out"),
        # merging
        (["--merge", "-0.5"], "strength to merge with must be a number from 0, got -0.5"),
        (["--merge", "nan"], "from 0, got nan"),
        (["--merge", "0.5", "--word", "<mine>"], "leave out --merge"),
        # a new word
        (["--word", "<yours>"], "no caption to train on has the word '<yours>'"),
        (["--word", "<>"], "'<>' has no letter or digit"),
        (["--word", "<mine>", "--word-vectors", "0"], "1 to 75 vectors, got 0"),
        (["--word", "<mine>", "--word-vectors", "76"], "1 to 75 vectors, got 76"),
        (["--word", "cat", "--word-from", " "], "cannot begin with ' ', which has no token"),
        (["--word", "<mine>", "--keep", "1", "--watch", "x"], "leave out --keep, --watch"),
        # a new text tower
        (["--context-length", "100"], "--context-length is of a new text encoder: add --new-text"),
        (["--new-text", "--context-length", "2"], "a text encoder has 3 to 16,384 positions, got 2"),
        (["--new-text", "--lora", "4", "--keep", "1"], "nothing of the old text encoder: leave out --lora, --keep"),
        (["--new-text", "--merge", "0.5"], "leave out --merge"),
        # captions alone
        ([*MLM, "--towers", "both", "--lora", "4"], "a LoRA is of the text encoder alone"),
        ([*MLM, "--towers", "both"], "on captions alone, as a warm-up: leave out --towers both"),
        ([*MLM, "--patience", "3", "--rate-of", "layers=0"], "leave out --patience, --rate-of"),
        ([*MLM, "--optimizer", "adafactor", "--crop", "stretch"], "leave out --optimizer adafactor, --crop stretch"),
        ([*MLM, "--held-out", "32"], "32 captions, 32 of them held out: none is left to train on"),
        ([*MLM, "--compress", "4"], "there is only one: leave it out"),
        # classifiers
        (["--towers", "image"], "--towers image and --rate-of head=X are for --objective classify"),
        ([*MLM, "--rate-of", "head=1"], "leave out --rate-of"),
        (["--rate-of", "head=1"], "--towers image and --rate-of head=X are for --objective classify"),
        ([*CLASSIFY, "--towers", "both", "--word", "cat"], "leave out --towers both"),
        ([*CLASSIFY, "--lora", "4", "--watch", "x", "--keep", "1"], "and a head: leave out --lora, --watch, --keep"),
        (
            [*CLASSIFY, "--merge", "0.5", "--patience", "3"],
            "trains the text encoder (--towers) and a head: leave out --me",
        ),
        ([*CLASSIFY, "--write-for", "open_clip", "--crop", "stretch"], "leave out --write-for, --crop stretch"),
        ([*IMAGES, "--optimizer", "adafactor"], "leave out --optimizer adafactor"),
        ([*IMAGES, "--new-text", "--freeze-layers", "1"], "leave out --new-text, --freeze-layers"),
        ([*IMAGES, "--shuffle-tags"], "trains the image encoder (--towers) and a head: leave out --shuffle-tags"),
        ([*CLASSIFY, "--mirror"], "--random-crop and --mirror want --towers both, or image"),
        ([*IMAGES, "--shard"], "--objective classify does not go with --shard"),
        # several processes
        (["--compress", "4"], "--compress 4 is about what processes send each other, and there is only one"),
        (["--compress", "-1"], "the rank of compressed gradients must be at least 1, got -1"),
        (["--shard", "--precision", "fp16"], "--shard does not go with --precision fp16"),
        (["--shard", "--optimizer", "adafactor"], "--shard does not go with --optimizer adafactor"),
        (["--shard", "--word", "cat"], "--shard does not go with --word"),
        (["--shard", "--val", "x", "--objective", "mlm"], "--objective mlm does not go with --val, --shard"),
    ],
)
def test_wrong_options_are_refused_in_a_line(
    start: Start, capsys: pytest.CaptureFixture[str], options: list[str], message: str
) -> None:
    assert start("--steps", "1", *options) == 1
    told = capsys.readouterr().err
    assert message in told
    assert len(told.strip().splitlines()) == 1
