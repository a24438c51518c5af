"""Bugs found by fuzzing and by reading the code with a fuzzer's eyes: one test each, with the input that showed it."""

import json
import math
import os
import struct
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from weighted_clip.encoder.files import safetensors_file, tensor_file
from weighted_clip.encoder.files.checkpoint import load_text_models
from weighted_clip.encoder.files.tensor_file import CheckpointError
from weighted_clip.encoder.files.textual_inversion import EmbeddingFileError, read_embedding_file
from weighted_clip.encoder.models.clip import load_full_clip
from weighted_clip.encoder.tokenizer import default_tokenizer
from weighted_clip.studio.output.shards import ShardError, read_shards
from weighted_clip.web import inspection
from weighted_clip.web.inspection import MAX_VIEWS, inspect
from weighted_clip.weighting.options import EncodeOptions
from weighted_clip.weighting.reading.convert import convert
from weighted_clip.weighting.reading.prompt_reader import read_prompt
from weighted_clip.weighting.text.chunks import ChunkLayout
from weighted_clip.weighting.text.embedding_folder import MAX_DEPTH, EmbeddingFolder
from weighted_clip.weighting.text.embeddings import EmbeddingError
from weighted_clip.weighting.timed.schedule import read_timed

from .drawing import Draw
from .file_targets import checkpoint_header, shard_header

TOKENIZE = default_tokenizer()
WHOLE = bytes([4])
"""Chooses the file with both towers."""
needs_pipes = pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")


def counted(read: Callable[..., Any], calls: list[Any]) -> Callable[..., Any]:
    """The function, with its first argument remembered."""

    def counting(first: Any, *rest: Any, **named: Any) -> Any:
        calls.append(first)
        return read(first, *rest, **named)

    return counting


# -- prompts ----------------------------------------------------------------------------------------------------------


def test_hidden_phrases_are_tokenized_once_however_many_sections_a_prompt_has() -> None:
    texts: list[str] = []
    tokenize = counted(TOKENIZE, texts)
    text = "(" + ",".join(['"a"'] * 50) + ").and()"
    read = read_prompt(text, EncodeOptions(syntax="compel", hide="b c d"), tokenize)
    assert len(read.sections) == 50
    assert texts.count("b c d") == 1


@pytest.mark.parametrize("chunking", ["comfy segment", "comfy word", "a1111", "compel brutal", "compel words"])
def test_groups_that_fit_no_chunk_are_cut(chunking: str) -> None:
    options = EncodeOptions(chunking=chunking, comma_backtrack=0, syntax="none")
    read = read_prompt("one photorealistic_cat", options, TOKENIZE, ChunkLayout(length=4))
    ids = [token.id for chunk in read.chunks for token in chunk.content]
    assert ids == [token.id for token in TOKENIZE("one photorealistic_cat")]
    with pytest.raises(ValueError, match="at least 3 positions, got 2"):
        ChunkLayout(length=2)


def test_what_all_parts_of_a_timed_prompt_take_together_is_bounded() -> None:
    with pytest.raises(ValueError, match="99 edits and alternations over 10000 steps are too many"):
        read_timed(" AND ".join(["[a|b]" * 99] * 12), 10_000)
    with pytest.raises(ValueError, match=r"texts of more than 4,000,000 characters"):
        read_timed("[" + "|".join(map(str, range(3000))) + "]" + " word" * 2000, 3000)


def test_a_lora_of_infinite_strength_is_not_left_out_in_silence() -> None:
    result = convert("a withLora(ink, " + "9" * 400 + ")", "compel", "a1111", TOKENIZE)
    assert "not-expressible" in [issue.code for issue in result.issues]
    result = convert("a withLora(ink, 0.5)", "compel", "comfy", TOKENIZE)
    assert "not-expressible" in [issue.code for issue in result.issues]


@pytest.mark.parametrize("value", [[], {}, None, 5])
def test_a_choice_that_is_no_text_is_refused_with_those_allowed(value: object) -> None:
    with pytest.raises(ValueError, match=r"syntax must be one of: comfy, .*; got"):
        EncodeOptions(syntax=value)


# -- requests ---------------------------------------------------------------------------------------------------------


def test_only_the_texts_that_are_shown_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    texts: list[str] = []
    monkeypatch.setattr(inspection, "read_prompt", counted(inspection.read_prompt, texts))
    options = "|".join(map(str, range(300)))
    views = inspect({"text": f"[{options}]", "syntax": "a1111", "steps": 300, "counter": "as written"})["views"]
    assert len(views) == len(texts) == MAX_VIEWS
    assert views[-1]["num_more"] == 300 - MAX_VIEWS
    text = "[" + "|".join("abcdefghi") + "]" + " " + "ha" * 20_000
    views = inspect({"text": text, "syntax": "a1111", "steps": 9, "counter": "as written"})["views"]
    assert len(views) == 3  # of 40,000 characters each
    assert views[-1]["num_more"] == 9 - 3


@pytest.mark.parametrize("chunk", [float("nan"), float("inf"), -float("inf"), 1e300, "3", None, [], {}])
def test_the_lab_explains_values_that_its_page_cannot_send(chunk: Any) -> None:
    pytest.importorskip("gradio", reason="gradio is not installed: python run.py test installs it")
    from weighted_clip.web.lab.handlers import OPTIONS, Handlers
    from weighted_clip.web.lab.model import LabError
    from weighted_clip.web.lab.tabs.prompt_tabs import CompareTab, MasksTab

    def none() -> Any:
        raise LabError("No model is loaded yet.")

    base = EncodeOptions(syntax="a1111")
    handlers, values = Handlers(none, base), [getattr(base, name) for name in OPTIONS]
    masks = MasksTab(handlers).show(chunk, "a cat", *values)[1]
    assert ("figcaption" if chunk == 1e300 else "Chunk must be a whole number, 1 to 1") in masks  # beyond: the last
    assert "Prompt must be a text" in handlers.read(None, *values)[1]
    assert "Syntax must be a text, got []" in handlers.read("a", [], *values[1:])[1]
    assert handlers.read("a", values[0], [], *values[2:])[2] == ""
    assert "no such scheme" in next(iter(CompareTab(handlers).compare({}, [chunk], "a", *values)))[2]


# -- files ------------------------------------------------------------------------------------------------------------


def changed(path: Path, tensors: dict[str, Any], values: bytes = b"") -> Path:
    """A whole CLIP with other types and shapes of some tensors, which come first."""
    header = checkpoint_header(Draw(WHOLE))
    header.tensors = tensors | {key: one for key, one in header.tensors.items() if key not in tensors}
    header.values = values
    header.write(path, Draw(b""))
    return path


def test_a_small_whole_clip_is_read(tmp_path: Path) -> None:
    clip = load_full_clip(changed(tmp_path / "x.safetensors", {}))
    assert (clip.text.config.hidden_dim, clip.vision.config.image_size, clip.logit_scale) == (64, 4, 1.0)


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ({"text_model.embeddings.position_embedding.weight": ("F32", [0, 64])}, "0 is not between 1 and 16384"),
        (
            {"text_model.embeddings.position_embedding.weight": ("F32", [1, 64])},
            "1 positions; BOS, a token and EOS need 3",
        ),
        ({"text_model.encoder.layers.0.mlp.fc1.weight": ("F32", [0, 64])}, "0 is not between 1 and 65536"),
        ({"text_projection.weight": ("F32", [0, 64])}, "0 is not between 1 and 8192"),
        ({"vision_model.embeddings.patch_embedding.weight": ("F32", [64, 3, 0, 0])}, "0 is not between 1 and 2048"),
        ({"vision_model.embeddings.patch_embedding.weight": ("F32", [64, 3, 2, 1500])}, "pictures of 3000 pixels"),
        ({"text_model.embeddings.token_embedding.weight": ("F8_E4M3", [49408, 64_000_000])}, "x.safetensors: "),
        ({"text_model.final_layer_norm.bias": ("F4", [64])}, "holds F4, expected floating point numbers"),
        ({f"text_model.encoder.layers.{i}.x": ("F32", [0]) for i in range(257)}, "257 layers in one encoder, at most"),
        ({"text_model.encoder.layers.0." + "x" * 100_000: ("F32", [1])}, "is in no layer of a plain CLIP encoder"),
        ({"logit_scale": ("F32", [2])}, r"shape \[2\], expected one number"),
    ],
)
def test_sizes_and_types_that_make_no_model_are_refused(tmp_path: Path, tensors: dict[str, Any], message: str) -> None:
    path = changed(tmp_path / "x.safetensors", tensors)
    with pytest.raises(CheckpointError, match=message) as caught:
        load_full_clip(path)
    assert len(str(caught.value)) < 1000


def with_scale(path: Path, logarithm: float) -> Path:
    return changed(path, {"logit_scale": ("F32", [])}, struct.pack("<f", logarithm))


@pytest.mark.parametrize("logarithm", [1000, -1000, 20.5, -20.5])
def test_a_scale_beyond_floating_point_is_refused(tmp_path: Path, logarithm: float) -> None:
    told = f"'logit_scale' holds {logarithm:g}, the logarithm of a scale is -20 to 20"
    with pytest.raises(CheckpointError, match=told):
        load_full_clip(with_scale(tmp_path / "x.safetensors", logarithm))


@pytest.mark.parametrize("logarithm", [20, -20])
def test_the_largest_and_the_smallest_scale_are_read(tmp_path: Path, logarithm: float) -> None:
    scale = load_full_clip(with_scale(tmp_path / "x.safetensors", logarithm)).logit_scale
    assert scale == pytest.approx(math.exp(logarithm), rel=1e-5)


def test_an_encoder_of_three_positions_is_read(tmp_path: Path) -> None:
    path = changed(tmp_path / "x.safetensors", {"text_model.embeddings.position_embedding.weight": ("F32", [3, 64])})
    assert load_full_clip(path).text.config.context_length == 3


def test_an_encoder_of_more_parameters_than_any_is_refused_before_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = changed(tmp_path / "x.safetensors", {})
    monkeypatch.setattr(tensor_file, "MAX_PARAMETERS", 1_000_000)
    monkeypatch.setattr(tensor_file.TensorFile, "tensor", lambda *_: pytest.fail("a tensor was read"))
    with pytest.raises(CheckpointError, match=r"3,\d{3},\d{3} parameters, at most 1,000,000 are read"):
        load_text_models(path)


def test_a_report_does_not_grow_with_the_keys_that_were_ignored(tmp_path: Path) -> None:
    others = {f"other{number}.weight": ("F32", [0]) for number in range(5000)}
    _, report = load_text_models(changed(tmp_path / "x.safetensors", others))
    assert "and 49" in str(report)
    assert len(str(report)) < 2000


@pytest.mark.parametrize("name", ["a\0b", "x" * 5000, "x/" * 5000])
def test_a_name_that_no_file_can_have_is_no_file(name: str) -> None:
    with pytest.raises(CheckpointError, match=r"no such file|cannot be read"):
        load_text_models(name)
    with pytest.raises(EmbeddingFileError, match="it cannot be read: "):
        read_embedding_file(name)


READERS: Sequence[tuple[Callable[[Path], object], type[Exception]]] = (
    (load_text_models, CheckpointError),
    (load_full_clip, CheckpointError),
    (read_embedding_file, EmbeddingFileError),
    (lambda path: list(read_shards(path.parent)), ShardError),
)
NAME = "prompts-00000000.safetensors"


@needs_pipes
@pytest.mark.parametrize(("read", "error"), READERS)
def test_a_pipe_in_the_place_of_a_file_is_refused_unopened(tmp_path: Path, read: Any, error: type[Exception]) -> None:
    os.mkfifo(tmp_path / NAME)
    with pytest.raises(error, match="a folder, a pipe or a device, and not a file"):
        read(tmp_path / NAME)


@pytest.mark.parametrize(("read", "error"), READERS)
def test_a_file_larger_than_the_system_can_map_is_refused(tmp_path: Path, read: Any, error: type[Exception]) -> None:
    size = 10**12
    header = json.dumps({"x": {"dtype": "F32", "shape": [1000, size // 4000], "data_offsets": [0, size]}}).encode()
    with (tmp_path / NAME).open("wb") as file:
        file.write(struct.pack("<Q", len(header)) + header)
        try:
            file.truncate(8 + len(header) + size)
        except OSError:
            pytest.skip("no files of this size here")
    with pytest.raises(error):
        read(tmp_path / NAME)


@pytest.mark.parametrize(("read", "error"), READERS[:3])
@pytest.mark.parametrize("is_beyond", [False, True])
def test_a_header_out_of_proportion_is_refused_before_it_is_parsed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, read: Any, error: type[Exception], is_beyond: bool
) -> None:
    parsed: list[Any] = []
    monkeypatch.setattr(safetensors_file, "safe_open", counted(safetensors_file.safe_open, parsed))
    most = 2**20 if read is read_embedding_file else 2**24
    size = most + is_beyond
    with (tmp_path / NAME).open("wb") as file:
        file.write(struct.pack("<Q", size) + b"{}" + b" " * (size - 2))
    message = (
        f"it is not read: its header has {size:,} bytes, at most {most:,} are read"
        if is_beyond
        else "no tensor|no CLIP"
    )
    with pytest.raises(error, match=message):
        read(tmp_path / NAME)
    assert len(parsed) == (not is_beyond)


@pytest.mark.parametrize(("read", "error"), READERS[:3])
def test_a_tensor_of_thousands_of_axes_is_refused_in_a_short_message(
    tmp_path: Path, read: Any, error: type[Exception]
) -> None:
    axes = {"dtype": "F32", "shape": [0] * 100_000, "data_offsets": [0, 0]}
    keys = ("text_model.embeddings.token_embedding.weight", "vision_model.embeddings.class_embedding")
    header = json.dumps(dict.fromkeys(keys[: 1 if read is read_embedding_file else 2], axes)).encode()
    (tmp_path / NAME).write_bytes(struct.pack("<Q", len(header)) + header)
    with pytest.raises(error, match=r"has shape \[0, 0, 0") as caught:
        read(tmp_path / NAME)
    assert len(str(caught.value)) < 1000


@pytest.mark.parametrize("shape", [[0, 4], [2**62, 0, 2**62], [3, 4, 1], [4]])
def test_a_shard_whose_tensors_have_another_form_is_refused(tmp_path: Path, shape: list[int]) -> None:
    header = shard_header(Draw(b""))
    header.tensors["00000000.hidden"] = "F32", shape
    header.write(tmp_path / NAME, Draw(b""))
    with pytest.raises(ShardError, match=r"'00000000\.hidden' has shape .*, expected 2 axes"):
        list(read_shards(tmp_path))


@pytest.mark.parametrize(
    "about", [{"last_line": "-1"}, {"last_line": "1", "00000001.text": "b"}, {"first_line": "9" * 5000}]
)
def test_a_shard_that_lacks_what_it_speaks_of_is_refused(tmp_path: Path, about: dict[str, str]) -> None:
    metadata = {"format": "weighted-clip shard 1", "first_line": "0", "last_line": "0", "00000000.text": "a", **about}
    tensors = {"00000000.hidden": torch.zeros(3, 4), "00000000.pooled": torch.zeros(4)}
    save_file(tensors, tmp_path / NAME, metadata=metadata)
    with pytest.raises(ShardError, match=NAME):
        list(read_shards(tmp_path))


# -- folders of embeddings --------------------------------------------------------------------------------------------


def embedding(folder: Path, name: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    save_file({"emb_params": torch.ones(1, 8)}, folder / f"{name}.safetensors")


def test_folders_are_looked_into_down_to_a_depth(tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    for level in range(1200):  # from the inside out, as no path may be this long
        if level in (10, 1200 - MAX_DEPTH + 1, 1200 - MAX_DEPTH):
            embedding(root, f"at-{level}")
        outer = tmp_path / "outer"
        outer.mkdir()
        root.rename(outer / "d")
        outer.rename(root)
    try:
        folder = EmbeddingFolder([root], "clip_l", 8)
        assert folder.names() == (f"at-{1200 - MAX_DEPTH}", f"at-{1200 - MAX_DEPTH + 1}")
        assert folder.find("at-10") is None
    finally:
        for _ in range(1200):  # nothing that removes folders goes this deep
            (root / "d").rename(tmp_path / "inner")
            for left in root.iterdir():
                left.unlink()
            root.rmdir()
            (tmp_path / "inner").rename(root)


def test_a_folder_that_has_become_a_file_has_no_embeddings_any_more(tmp_path: Path) -> None:
    embedding(tmp_path / "sub", "cat")
    folder = EmbeddingFolder([tmp_path], "clip_l", 8)
    assert folder.find("cat") is not None
    listing = folder._listed()
    folder._listed = lambda: listing  # between listing and reading
    (tmp_path / "sub" / "cat.safetensors").unlink()
    (tmp_path / "sub").rmdir()
    (tmp_path / "sub").write_bytes(b"")
    assert folder.find("cat") is None


def test_links_that_lead_to_themselves_are_no_embeddings(tmp_path: Path) -> None:
    try:
        (tmp_path / "loop").symlink_to(tmp_path / "loop")
        (tmp_path / "x.safetensors").symlink_to(tmp_path / "x.safetensors")
        (tmp_path / "up").symlink_to(tmp_path, target_is_directory=True)
    except OSError:
        pytest.skip("no links here")
    embedding(tmp_path, "cat")
    assert EmbeddingFolder([tmp_path / "loop", tmp_path], "clip_l", 8).names() == ("cat",)


@pytest.mark.parametrize("name", ["is_file", "stat"])
def test_what_may_not_be_looked_at_is_left_out_or_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    embedding(tmp_path, "cat")
    embedding(tmp_path, "dog")
    folder = EmbeddingFolder([tmp_path], "clip_l", 8)
    listing, allowed = folder._listed(), getattr(Path, name)

    def refused(path: Path, **named: Any) -> Any:
        if path.stem == "cat":
            raise PermissionError(13, "Permission denied")
        return allowed(path, **named)

    monkeypatch.setattr(Path, name, refused)
    if name == "is_file":
        assert EmbeddingFolder([tmp_path], "clip_l", 8).names() == ("dog",)
    else:
        folder._listed = lambda: listing
        with pytest.raises(EmbeddingError, match="The embedding “cat” cannot be read: Permission denied"):
            folder.find("cat")
        assert folder.find("dog") is not None


@needs_pipes
def test_a_pipe_in_a_folder_is_no_embedding(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.safetensors")
    embedding(tmp_path, "cat")
    assert EmbeddingFolder([tmp_path], "clip_l", 8).names() == ("cat",)


@pytest.mark.parametrize(
    "name", ["../x", "/etc/passwd", "a\0b", "x" * 100_000, "C:\\x", "..\\x", "CON", "", ".", "..", "\ud800"]
)
def test_a_name_is_one_of_those_listed_or_none(tmp_path: Path, name: str) -> None:
    embedding(tmp_path, "x")
    embedding(tmp_path / "in", ".")  # the file is called “..safetensors”
    folder = EmbeddingFolder([tmp_path / "in"], "clip_l", 8)
    assert (folder.find(name) is not None) == (name == ".")
