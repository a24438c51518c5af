"""The command ``encode --batch``: numbers, lines, going on after an end, memory; and its shards."""

import io
import os
import subprocess
import sys
import time
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from weighted_clip.encoder.files.checkpoint import load_text_models, seeded_text_model
from weighted_clip.encoder.models.config import TextConfig
from weighted_clip.encoder.models.text_model import TextEncoder
from weighted_clip.encoder.tokenizer import default_tokenizer
from weighted_clip.studio.commands import bulk
from weighted_clip.studio.commands.bulk import BulkEncoder
from weighted_clip.studio.commands.processes import process_of
from weighted_clip.studio.commands.program import main
from weighted_clip.studio.commands.prompt_lines import MAX_LINE_BYTES, PromptLines
from weighted_clip.studio.output import shards as shard_files
from weighted_clip.studio.output.shards import ShardError, read_head, read_shards
from weighted_clip.weighting.encoders import Encoders
from weighted_clip.weighting.options import EncodeOptions
from weighted_clip.weighting.towers import Reader, joined, layout_of, read_for_towers

from .door import encode_prompt
from .patience import SECONDS

ROOT = Path(__file__).resolve().parents[1]
L = TextConfig(hidden_dim=64, num_heads=1, num_layers=2, mlp_dim=64)
G = TextConfig(hidden_dim=128, num_heads=2, num_layers=2, mlp_dim=64, activation="gelu", projection_dim=32, pad_id=0)
LONG = ", ".join(["a red fox in deep snow"] * 20)
TEXTS = [
    "a (red:1.4) cat",
    "",
    "a (dog:0.5) in a [bowl]",
    LONG,
    "ein Fuchs – 狐",
    "  two  spaces ",
    "a cat",
    "(b:0.2) c",
]


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny CLIP-L."""
    return saved(tmp_path_factory.mktemp("weights") / "clip_l.safetensors", seed=0)


@pytest.fixture(scope="module")
def sdxl(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two tiny towers as ComfyUI saves SDXL's."""
    tensors = {}
    for tower, config in (("clip_l", L), ("clip_g", G)):
        for name, tensor in seeded_text_model(config).state_dict().items():
            place = "" if name.startswith("text_projection") else "text_model."
            tensors[f"text_encoders.{tower}.transformer.{place}{name}"] = tensor
    path = tmp_path_factory.mktemp("weights") / "sdxl.safetensors"
    save_file(tensors, path)
    return path


def saved(path: Path, *, seed: int) -> Path:
    model = seeded_text_model(L, seed=seed)
    save_file({f"text_model.{name}": tensor for name, tensor in model.state_dict().items()}, path)
    return path


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    return written(tmp_path, TEXTS)


def written(folder: Path, texts: list[str]) -> Path:
    path = folder / "prompts.txt"
    path.write_bytes("".join(f"{text}\n" for text in texts).encode())
    return path


def encode(prompts: Path | str, weights: Path, out: Path, *arguments: object) -> int:
    given = ["--batch", prompts, "--weights", weights, "--out", out, "--shard-size", 3, *arguments]
    return main(["encode", *map(str, given)])


def environ_with_package(folder: Path) -> dict[str, str]:
    """An environment in which the repository can be imported by the package's name."""
    package = folder / "path" / "weighted_clip"
    package.parent.mkdir(exist_ok=True)
    if not package.exists():
        package.symlink_to(ROOT)
    return {**os.environ, "PYTHONPATH": str(package.parent), "OMP_NUM_THREADS": "1"}


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def assert_same(folder: Path, other: Path) -> None:
    assert names(folder) == names(other)
    for one, two in zip(read_shards(folder), read_shards(other), strict=True):
        assert one[:2] == two[:2]
        torch.testing.assert_close(one[2:], two[2:], atol=1e-5, rtol=0)


def is_as_alone(folder: Path, texts: list[str], weights: Path, options: EncodeOptions, clip_skip: int = 1) -> bool:
    """Whether the shards hold what each text is when it goes through the plain encoders alone."""
    models, _ = load_text_models(weights)
    is_sdxl = len(models) == 2
    encoders = {
        name: TextEncoder(model, clip_skip=clip_skip, final_norm=not is_sdxl, projected=name == "clip_g")
        for name, model in models.items()
    }
    readers = {name: Reader(default_tokenizer(), layout_of(model.config)) for name, model in models.items()}
    for line, (text, one) in enumerate(zip(texts, read_shards(folder), strict=True)):
        assert (one.line, one.text) == (line, text)
        reads = read_for_towers(dict.fromkeys(models, text), options, readers)
        alone = joined({name: encode_prompt(read, encoders[name], default_tokenizer()) for name, read in reads.items()})
        torch.testing.assert_close(one.hidden, alone.hidden[0], atol=1e-5, rtol=0)
        torch.testing.assert_close(one.pooled, alone.pooled[0], atol=1e-5, rtol=0)
    return True


# ---- numbers and files


@pytest.mark.parametrize("scheme", ["a1111", "comfy", "masked_blend", "down_weight", "lpw", "repeat"])
def test_every_prompt_is_as_alone(scheme: str, prompts: Path, weights: Path, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(bulk, "WINDOW_CHUNKS", 2)  # several windows in a shard
    out = tmp_path / "out"
    assert encode(prompts, weights, out, "--scheme", scheme) == 0
    assert is_as_alone(out, TEXTS, weights, EncodeOptions(syntax="a1111", scheme=scheme))


def test_a_prompt_whose_rows_cannot_be_repeated_is_named_by_its_line(weights: Path, tmp_path: Path, capsys) -> None:
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("a (cat:1.3)\na (dog:3000)\n", encoding="utf-8")
    assert encode(prompts, weights, tmp_path / "out", "--scheme", "repeat", "--finest-step", "2") == 1
    assert "prompts.txt:2: Repeated by their weights these would be 3,076 rows" in capsys.readouterr().err
    prompts.write_text("a (cat:1.3)\na (dog:1.5)\n", encoding="utf-8")
    assert encode(prompts, weights, tmp_path / "out", "--scheme", "repeat", "--finest-step", "2") == 0
    assert [row.hidden.shape[0] for row in read_shards(tmp_path / "out")] == [155, 155]
    assert "acts as 1.5 here" in capsys.readouterr().err


def test_a_prompt_of_which_words_are_to_be_taken_away_is_named_by_its_line(
    weights: Path, tmp_path: Path, capsys
) -> None:
    prompts = tmp_path / "prompts.txt"
    for scheme in ("negpip", "negpip_apart"):
        prompts.write_text("a (cat:1.3)\na (dog:-1)\n", encoding="utf-8")
        assert encode(prompts, weights, tmp_path / scheme, "--scheme", scheme) == 1
        assert "prompts.txt:2: A file cannot hold that a word" in capsys.readouterr().err
        prompts.write_text("a (cat:1.3)\n", encoding="utf-8")
        assert encode(prompts, weights, tmp_path / scheme, "--scheme", scheme) == 0
        capsys.readouterr()


def test_the_towers_of_sdxl_stand_side_by_side(prompts: Path, sdxl: Path, tmp_path: Path, capsys) -> None:
    out = tmp_path / "out"
    assert encode(prompts, sdxl, out) == 0
    first = next(read_shards(out))
    assert (first.hidden.shape, first.pooled.shape) == ((77, 64 + 128), (32,))
    assert is_as_alone(out, TEXTS, sdxl, EncodeOptions(syntax="a1111", scheme="a1111"), clip_skip=2)
    assert "clip_l + clip_g: a1111" in capsys.readouterr().out


def test_a_shard_says_what_is_in_it(prompts: Path, weights: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert encode(prompts, weights, out, "--padding", "mask") == 0
    assert names(out) == [f"prompts-0000000{first}.safetensors" for first in (0, 3, 6)]
    with safe_open(out / "prompts-00000003.safetensors", "pt") as file:
        metadata = file.metadata()
        assert sorted(file.keys()) == [f"0000000{line}.{part}" for line in (3, 4, 5) for part in ("hidden", "pooled")]
    assert [metadata[f"0000000{line}.text"] for line in (3, 4, 5)] == TEXTS[3:6]
    assert {field.name for field in fields(EncodeOptions)} <= metadata.keys()
    assert (
        metadata.items()
        >= {
            "format": "weighted-clip shard 1",
            "first_line": "3",
            "last_line": "5",
            "padding": "mask",
            "clip_skip": "1",
            "weights": "clip_l.safetensors (Hugging Face text model)",
        }.items()
    )
    last = read_head(out / "prompts-00000006.safetensors")
    assert (last.first, last.texts) == (6, ("a cat", "(b:0.2) c"))


@pytest.mark.parametrize(
    ("name", "dtype"), [("fp32", torch.float32), ("fp16", torch.float16), ("bf16", torch.bfloat16)]
)
def test_numbers_are_saved_in_the_type_wanted(
    name: str, dtype: torch.dtype, prompts: Path, weights: Path, tmp_path: Path
) -> None:
    plain, out = tmp_path / "plain", tmp_path / "out"
    assert encode(prompts, weights, plain) == 0
    assert encode(prompts, weights, out, "--save-dtype", name) == 0
    for one, two in zip(read_shards(plain), read_shards(out), strict=True):
        assert two.hidden.dtype == two.pooled.dtype == dtype
        torch.testing.assert_close(two.hidden, one.hidden.to(dtype))


# ---- lines


@pytest.mark.parametrize(
    ("content", "texts"),
    [
        (b"a\nb\n", ["a", "b"]),
        (b"a\nb", ["a", "b"]),
        (b"a\r\nb\r\n", ["a", "b"]),
        (b"\n\na\n\n", ["", "", "a", ""]),
        (b"\r\n", [""]),
        (b"\xef\xbb\xbfa\nb\n", ["a", "b"]),
        (b"\xef\xbb\xbf\na\n", ["", "a"]),
        (b"a\n\xef\xbb\xbfb\n", ["a", "\ufeffb"]),
        ("a\u2028b\x0bc\x85d\re\n".encode(), ["a\u2028b\x0bc\x85d\re"]),
        (b"a\x00b\n", ["a\x00b"]),
        (b"\xef\xbb\xbf" + b"x" * MAX_LINE_BYTES + b"\r\ny\r\n", ["x" * MAX_LINE_BYTES, "y"]),
    ],
)
def test_a_line_is_a_prompt(content: bytes, texts: list[str], tmp_path: Path) -> None:
    path = tmp_path / "prompts.txt"
    path.write_bytes(content)
    lines = PromptLines(str(path))
    assert lines.num_lines == len(texts)
    assert list(lines) == texts


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"a\nb\n caf\xe9\n", "prompts.txt:3: byte 5 of this line, 0xe9, is not UTF-8; save the file as UTF-8"),
        ("a\n".encode("utf-16"), "prompts.txt:1: byte 1 of this line, 0xff, is not UTF-8"),
        (b"a\n" + b"x" * (MAX_LINE_BYTES + 1) + b"\n", "prompts.txt:2: this line is longer than 65536 bytes"),
        (b"\xef\xbb\xbf" + b"x" * (MAX_LINE_BYTES + 9), "prompts.txt:1: this line is longer than 65536 bytes"),
        (b"", "prompts.txt: the file is empty"),
        (b"\xef\xbb\xbf", "prompts.txt: the file is empty"),
    ],
)
def test_a_line_that_cannot_be_read_is_named_before_anything_is_encoded(
    content: bytes, message: str, weights: Path, tmp_path: Path, capsys
) -> None:
    path = tmp_path / "prompts.txt"
    path.write_bytes(content)
    assert encode(path, weights, tmp_path / "out") == 1
    out, err = capsys.readouterr()
    assert message in err
    assert out == ""
    assert not (tmp_path / "out").exists()


@pytest.fixture
def standard_input(prompts: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(prompts.read_bytes())))


@pytest.mark.usefixtures("standard_input")
def test_prompts_can_come_from_standard_input(prompts: Path, weights: Path, tmp_path: Path, capsys) -> None:
    assert encode("-", weights, tmp_path / "one") == 0
    out, err = capsys.readouterr()
    assert "\nprompts of standard input -> " in out
    assert "done: 3 shards, 8 prompts encoded" in err
    assert encode(prompts, weights, tmp_path / "two") == 0
    assert_same(tmp_path / "one", tmp_path / "two")


@pytest.mark.usefixtures("standard_input")
def test_fewer_prompts_from_standard_input_are_noticed_at_their_end(
    prompts: Path, weights: Path, tmp_path: Path, monkeypatch, capsys
) -> None:
    assert encode("-", weights, tmp_path / "out") == 0
    six = b"".join(prompts.read_bytes().splitlines(keepends=True)[:6])
    for arguments, status in (((), 1), (("--overwrite",), 0)):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(six)))
        assert encode("-", weights, tmp_path / "out", *arguments) == status
    assert "prompts-00000006.safetensors is of another run: it begins at line 7, and there are only 6 now" in (
        capsys.readouterr().err
    )
    assert len(list(read_shards(tmp_path / "out"))) == 6


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes here")
def test_a_pipe_is_read_once(prompts: Path, weights: Path, tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = subprocess.Popen(["sh", "-c", f"cat '{prompts}' > '{pipe}'"])
    assert encode(pipe, weights, tmp_path / "out") == 0
    assert writer.wait() == 0
    assert [one.text for one in read_shards(tmp_path / "out")] == TEXTS


# ---- going on


class Died(BaseException):
    """Not to be caught by anything."""


@pytest.fixture
def encoded_lines(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """First lines of the shards that are encoded from here on."""
    firsts: list[int] = []
    encode_shard = BulkEncoder.encode

    def counted(self, texts, first, report):
        firsts.append(first)
        return encode_shard(self, texts, first, report)

    monkeypatch.setattr(BulkEncoder, "encode", counted)
    return firsts


def test_a_run_that_died_in_the_second_shard_goes_on_there(
    prompts: Path, weights: Path, tmp_path: Path, monkeypatch, encoded_lines: list[int], capsys
) -> None:
    out = tmp_path / "out"
    with monkeypatch.context() as patch:
        tell = bulk.BulkReport.tell

        def dies(self, line, problems):
            if line == 4:
                raise Died
            tell(self, line, problems)

        patch.setattr(bulk.BulkReport, "tell", dies)
        with pytest.raises(Died):
            encode(prompts, weights, out)
    assert names(out) == ["prompts-00000000.safetensors"]
    before = (out / "prompts-00000000.safetensors").stat()
    encoded_lines.clear()
    assert encode(prompts, weights, out) == 0
    assert encoded_lines == [3, 6]
    assert (out / "prompts-00000000.safetensors").stat().st_mtime_ns == before.st_mtime_ns
    assert "done: 3 of 3 shards (1 were there), 5 prompts encoded" in capsys.readouterr().err
    assert is_as_alone(out, TEXTS, weights, EncodeOptions(syntax="a1111", scheme="a1111"))
    assert encode(prompts, weights, out) == 0
    assert encoded_lines == [3, 6]


def test_ctrl_c_says_how_to_go_on(prompts: Path, weights: Path, tmp_path: Path, monkeypatch, capsys) -> None:
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(bulk.BulkReport, "add", interrupted)
    assert encode(prompts, weights, tmp_path / "out") == 130
    assert "interrupted; the same command goes on from here: " in capsys.readouterr().err
    assert names(tmp_path / "out") == ["prompts-00000000.safetensors"]


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no SIGTERM that a program can handle")
def test_a_terminated_program_says_how_to_go_on_and_leaves_nothing_half_written(weights: Path, tmp_path: Path) -> None:
    prompts, out = written(tmp_path, TEXTS * 200), tmp_path / "out"
    given = ["--batch", prompts, "--weights", weights, "--out", out, "--shard-size", "3"]
    with subprocess.Popen(
        [sys.executable, str(ROOT), "encode", *map(str, given)], stderr=subprocess.PIPE, text=True
    ) as process:
        end = time.monotonic() + SECONDS
        while len([*out.glob("*.safetensors")]) < 2 and time.monotonic() < end:
            time.sleep(0.01)
        process.terminate()
        _, told = process.communicate(timeout=SECONDS)
    assert process.returncode == 143
    assert told.startswith("interrupted; the same command goes on from here: ")
    assert len(told.splitlines()) == 1
    assert 2 <= len(names(out)) < 534
    assert all(name.endswith(".safetensors") for name in names(out))


def test_lines_that_were_added_are_encoded(
    prompts: Path, weights: Path, tmp_path: Path, encoded_lines: list[int]
) -> None:
    out = tmp_path / "out"
    assert encode(prompts, weights, out) == 0
    encoded_lines.clear()
    written(tmp_path, [*TEXTS, "one more", "and one more"])
    assert encode(prompts, weights, out) == 0
    assert encoded_lines == [6, 9]
    assert [one.text for one in read_shards(out)] == [*TEXTS, "one more", "and one more"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--scheme", "comfy"], "scheme: 'a1111' there, 'comfy' now"),
        (["--clip-skip", "2"], "clip_skip: '1' there, '2' now"),
        (["--save-dtype", "fp16"], "save_dtype: 'fp32' there, 'fp16' now"),
        (["--dtype", "bf16"], "dtype: 'fp32' there, 'bf16' now"),
        (["--shard-size", "2"], "no shard of 2 prompts begins at line 4"),
        (["--shard-size", "1"], "shard_size: '3' there, '1' now; 3 lines there, 1 now"),
        (["--embeddings", "."], "embeddings_sha256: '' there, "),
    ],
)
def test_shards_of_other_options_are_refused_or_replaced(
    arguments: list[str], message: str, prompts: Path, weights: Path, tmp_path: Path, monkeypatch, capsys
) -> None:
    monkeypatch.chdir(tmp_path)
    out = tmp_path / "out"
    assert encode(prompts, weights, out) == 0
    before = {path: path.stat().st_mtime_ns for path in out.iterdir()}
    assert encode(prompts, weights, out, *arguments) == 1
    error = capsys.readouterr().err
    assert message in error
    assert f"weighted-clip: {out}/prompts-0000000" in error
    assert "another folder with --out" in error
    assert "with --overwrite" in error
    assert {path: path.stat().st_mtime_ns for path in out.iterdir()} == before
    assert encode(prompts, weights, out, *arguments, "--overwrite") == 0
    assert encode(prompts, weights, tmp_path / "fresh", *arguments) == 0
    assert_same(out, tmp_path / "fresh")


def test_other_weights_are_told_by_their_numbers_and_not_by_their_name(
    prompts: Path, weights: Path, tmp_path: Path, encoded_lines: list[int], capsys
) -> None:
    out, other = tmp_path / "out", tmp_path / "other.safetensors"
    assert encode(prompts, weights, out) == 0
    saved(other, seed=1)
    assert encode(prompts, other, out) == 1
    error = capsys.readouterr().err
    assert "weights_sha256: " in error
    assert "weights: 'clip_l.safetensors (Hugging Face text model)' there, 'other.safetensors (" in error
    other.replace(other.with_name(weights.name))
    assert encode(prompts, other.with_name(weights.name), out) == 1
    error = capsys.readouterr().err
    assert "weights_sha256: " in error
    assert "weights: " not in error
    encoded_lines.clear()
    renamed = tmp_path / "renamed.safetensors"
    renamed.write_bytes(weights.read_bytes())
    assert encode(prompts, renamed, out) == 0
    assert encoded_lines == []


def test_another_embedding_of_the_same_name_is_noticed(weights: Path, tmp_path: Path, capsys) -> None:
    prompts, folder, out = written(tmp_path, ["a style cat"]), tmp_path / "embeddings", tmp_path / "out"
    folder.mkdir()
    for value, status in ((0.1, 0), (0.1, 0), (0.2, 1)):
        save_file({"clip_l": torch.full((2, 64), value)}, folder / "style.safetensors")
        assert encode(prompts, weights, out, "--embeddings", folder) == status
    assert "embeddings_sha256" in capsys.readouterr().err


def test_other_texts_are_refused_and_only_their_shards_replaced(
    prompts: Path, weights: Path, tmp_path: Path, encoded_lines: list[int], capsys
) -> None:
    out = tmp_path / "out"
    assert encode(prompts, weights, out) == 0
    texts = [*TEXTS[:4], "ein Hund", *TEXTS[5:]]
    written(tmp_path, texts)
    encoded_lines.clear()
    assert encode(prompts, weights, out) == 1
    error = capsys.readouterr().err
    assert "prompts-00000003.safetensors was made otherwise: line 5: 'ein Fuchs – 狐' there, 'ein Hund' now." in error
    assert encode(prompts, weights, out, "--overwrite") == 0
    assert encoded_lines == [3]
    assert is_as_alone(out, texts, weights, EncodeOptions(syntax="a1111", scheme="a1111"))


def test_fewer_lines_are_refused_and_with_overwrite_their_shards_go(
    prompts: Path, weights: Path, tmp_path: Path, capsys
) -> None:
    out = tmp_path / "out"
    assert encode(prompts, weights, out) == 0
    for count, message in ((7, "2 lines there, 1 now"), (3, "it begins at line 4, and there are only 3 now")):
        written(tmp_path, TEXTS[:count])
        assert encode(prompts, weights, out) == 1
        assert message in capsys.readouterr().err
        assert encode(prompts, weights, out, "--overwrite") == 0
        assert [one.text for one in read_shards(out)] == TEXTS[:count]


def test_a_file_that_is_no_whole_shard_is_refused_or_replaced(
    prompts: Path, weights: Path, tmp_path: Path, capsys
) -> None:
    out = tmp_path / "out"
    assert encode(prompts, weights, out) == 0
    shard = out / "prompts-00000003.safetensors"
    whole = shard.read_bytes()
    other = tmp_path / "other.safetensors"
    save_file({"a": torch.zeros(1)}, other)
    for content in (whole[:-5], whole[:4], b"", other.read_bytes()):
        shard.write_bytes(content)
        assert encode(prompts, weights, out) == 1
        assert str(shard) in capsys.readouterr().err
        with pytest.raises(ShardError, match=r"prompts-00000003\.safetensors"):
            list(read_shards(out))
        assert encode(prompts, weights, out, "--overwrite") == 0
        assert len(list(read_shards(out))) == len(TEXTS)


def test_reading_does_not_pass_over_a_missing_shard(prompts: Path, weights: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert encode(prompts, weights, out) == 0
    (out / "prompts-00000003.safetensors").unlink()
    with pytest.raises(ShardError, match=r"line 4 is not encoded yet; prompts-00000006\.safetensors comes next"):
        list(read_shards(out))


def test_other_files_in_the_folder_are_left_alone(prompts: Path, weights: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    others = ["prompt.safetensors", "prompts-1.safetensors", "prompts-00000001.txt", "x.tmp"]
    for name in others:
        (out / name).write_text("mine")
    assert encode(prompts, weights, out, "--overwrite") == 0
    assert all((out / name).read_text() == "mine" for name in others)


# ---- what goes wrong while writing


def test_texts_too_long_to_be_read_again_are_refused(
    prompts: Path, weights: Path, tmp_path: Path, monkeypatch, capsys
) -> None:
    (tmp_path / "out").mkdir()
    monkeypatch.setattr(shard_files, "MAX_HEADER_BYTES", 100)
    assert encode(prompts, weights, tmp_path / "out") == 1
    assert "its texts are too long for one file; choose smaller shards" in capsys.readouterr().err
    assert names(tmp_path / "out") == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "encode needs a prompt, or --batch FILE with a prompt in each line"),
        (["a cat", "--batch", "{prompts}"], "encode takes either a prompt or --batch FILE, not both"),
        (["", "--batch", "{prompts}"], "encode takes either a prompt or --batch FILE, not both"),
        (["a cat", "--shard-size", "5"], "--shard-size, --save-dtype and --overwrite are for --batch FILE"),
        (["a cat", "--overwrite"], "--shard-size, --save-dtype and --overwrite are for --batch FILE"),
        (["--batch", "{prompts}", "--name", "x"], "--name is for a single prompt"),
        (["--batch", "{prompts}", "--shard-size", "0"], "--shard-size must be at least 1, got 0"),
        (["--batch", "nowhere.txt"], "--batch nowhere.txt: there is no such file"),
        (["--batch", "."], "--batch .: this is a folder"),
        (["--batch", "{prompts}", "--out", "{prompts}"], "prompts.txt"),
        (["--batch", "{prompts}", "--filler", "two words"], "the filler must be exactly one token"),
        (["--batch", "{prompts}", "--embeddings", "nowhere"], "--embeddings nowhere: there is no such folder"),
    ],
)
def test_what_cannot_be_done_is_said_without_a_traceback(
    arguments: list[str], message: str, prompts: Path, weights: Path, tmp_path: Path, monkeypatch, capsys
) -> None:
    monkeypatch.chdir(tmp_path)
    given = [argument.format(prompts=prompts) for argument in arguments]
    assert main(["encode", "--weights", str(weights), *given]) == 1
    assert message in capsys.readouterr().err
    assert not list(tmp_path.rglob("prompts-*"))


# ---- messages


def test_problems_come_with_the_line_and_after_some_are_counted(
    weights: Path, tmp_path: Path, monkeypatch, capsys
) -> None:
    monkeypatch.setattr(bulk, "PROGRESS_SECONDS", 0)
    prompts = written(tmp_path, ["a cat", *["(a cat"] * 25])
    assert encode(prompts, weights, tmp_path / "out", "--shard-size", 13) == 0
    lines = capsys.readouterr().err.splitlines()
    problems = [line for line in lines if "is never closed" in line]
    assert len(problems) == 20
    assert problems[0].startswith(f"{prompts}:2: at 0: “(” is never closed")
    assert [line for line in lines if "counted" in line] == ["further problems are only counted"]
    progress = [line.split(",") for line in lines if " shards, " in line]
    assert [(parts[0], parts[1], parts[-1]) for parts in progress] == [
        ("1 of 2 shards", " 13 prompts encoded", " 12 problems"),
        ("2 of 2 shards", " 26 prompts encoded", " 25 problems"),
        ("done: 2 of 2 shards", " 26 prompts encoded", " 25 problems"),
    ]


def test_a_problem_of_both_towers_is_told_once(sdxl: Path, tmp_path: Path, capsys) -> None:
    assert encode(written(tmp_path, ["(a cat"]), sdxl, tmp_path / "out") == 0
    error = capsys.readouterr().err
    assert error.count("is never closed") == 1
    assert error.endswith(" 1 problem\n")


def test_strict_stops_at_the_line_and_keeps_the_shards_before(
    prompts: Path, weights: Path, tmp_path: Path, capsys
) -> None:
    written(tmp_path, [*TEXTS[:4], "(a:1.2.3)", "b"])
    assert encode(prompts, weights, tmp_path / "out", "--strict") == 1
    assert f"weighted-clip: {prompts}:5: " in capsys.readouterr().err
    assert names(tmp_path / "out") == ["prompts-00000000.safetensors"]


def test_numbers_that_do_not_fit_are_told(weights: Path, tmp_path: Path, capsys) -> None:
    prompts = written(tmp_path, ["a cat", "a (cat:1000000)"])
    arguments = ("--scheme", "a1111_no_norm", "--save-dtype", "fp16")
    assert encode(prompts, weights, tmp_path / "out", *arguments) == 0
    assert f"{prompts}:2: Some of its numbers are too large for torch.float16" in capsys.readouterr().err


# ---- processes


def test_several_processes_are_refused_before_anything_is_written(
    prompts: Path, weights: Path, tmp_path: Path, monkeypatch, capsys
) -> None:
    for rank in ("0", "1"):
        monkeypatch.setenv("RANK", rank)
        monkeypatch.setenv("WORLD_SIZE", "2")
        assert encode(prompts, weights, tmp_path / "out") == 1
        assert "encode --batch runs in one process: divide the file" in capsys.readouterr().err
        assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "environ",
    [{"RANK": "x"}, {"RANK": "2", "WORLD_SIZE": "2"}, {"RANK": "-1"}, {"WORLD_SIZE": "0"}, {"LOCAL_RANK": "-1"}],
)
def test_a_place_that_is_none_is_refused(environ: dict[str, str]) -> None:
    with pytest.raises(ValueError, match="start them with torchrun, or unset these"):
        process_of(environ)


# ---- memory


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="no /proc here")
def test_memory_does_not_grow_with_the_file(weights: Path, tmp_path: Path) -> None:
    """The program's own peak, which counts all that Python and torch hold."""
    script = (
        "import pathlib, sys; from weighted_clip.studio.commands.program import main; assert main(sys.argv[1:]) == 0;"
        "print(pathlib.Path('/proc/self/status').read_text().split('VmHWM:')[1].split()[0])"
    )
    environ = {**environ_with_package(tmp_path), "WEIGHTED_CLIP_MEMORY_MB": "0"}  # what encoders keep is bounded too
    peaks: list[int] = []
    for num_lines in (100, 1000):
        prompts = written(tmp_path, [f"cat {number}" for number in range(num_lines)])
        given = ["--batch", prompts, "--weights", weights, "--out", tmp_path / str(num_lines), "--shard-size", "8"]
        command = [sys.executable, "-c", script, "encode", *map(str, given)]
        done = subprocess.run(command, capture_output=True, text=True, env=environ, check=True)
        peaks.append(int(done.stdout.split()[-1]))
    assert peaks[1] - peaks[0] < 12 * 1024, peaks  # KiB; what 900 prompts more come to is 18 MB


def test_prompts_that_begin_alike_are_encoded_together_and_written_in_order(
    weights: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    windows: list[set[str]] = []
    plan = Encoders.plan

    def watched(encoders: Encoders, reads: Any) -> Any:
        windows.append({read["clip_l"].prompt.source.split()[0] for read in reads})
        return plan(encoders, reads)

    monkeypatch.setattr(Encoders, "plan", watched)
    monkeypatch.setattr(bulk, "WINDOW_CHUNKS", 4)
    texts = [f"{('ink', 'oil')[number % 2]} drawing of {number} foxes" for number in range(8)]
    assert encode(written(tmp_path, texts), weights, tmp_path / "out", "--shard-size", 8) == 0
    assert sorted(map(sorted, filter(None, windows))) == [["ink"], ["oil"]]
    monkeypatch.undo()
    assert is_as_alone(tmp_path / "out", texts, weights, EncodeOptions(syntax="a1111", scheme="a1111"))
