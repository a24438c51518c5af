"""The command ``stretch``: which tensors of a file change, and which files it refuses."""

import json
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor
from weighted_clip.encoder.files.checkpoint import (
    hugging_face_tensors,
    load_text_models,
    position_metadata,
    seeded_text_model,
    seeded_vision_model,
)
from weighted_clip.encoder.files.stretching import stretched
from weighted_clip.encoder.models.clip import load_full_clip
from weighted_clip.studio.commands.program import main
from weighted_clip.studio.output.rewriting import rewrite

from .encoder.files import Tensors, hugging_face, old_clip_save, openclip, openclip_linear, transformers_5
from .faults.disks import file_limit
from .training.models import VISION, WIDE
from .transformers_clip import write_clip

Naming = Callable[[Tensors, str], Tensors]

POSITIONS = "text_model.embeddings.position_embedding.weight"


def contents(path: Path) -> tuple[Tensors, dict[str, str]]:
    with safe_open(path, framework="pt") as file:
        return {key: file.get_tensor(key) for key in file.keys()}, file.metadata() or {}  # noqa: SIM118


def text_tensors() -> Tensors:
    return dict(seeded_text_model(WIDE).state_dict())


def is_same(one: Tensor, other: Tensor) -> bool:
    one, other = one.reshape(-1), other.reshape(-1)
    return one.dtype == other.dtype and torch.equal(one.view(torch.uint8), other.view(torch.uint8))


@pytest.fixture
def clip(tmp_path: Path) -> Path:
    """A text encoder alone in a folder."""
    path = tmp_path / "clip.safetensors"
    save_file(hugging_face_tensors(seeded_text_model(WIDE)), path)
    return path


def stretch(path: Path, *options: str) -> int:
    return main(["stretch", str(path), *options])


LAYOUTS = [
    (hugging_face, "", "text_model.embeddings.position_embedding.weight"),
    (transformers_5, "", "embeddings.position_embedding.weight"),
    (old_clip_save, "", "text_model.embeddings.position_embedding.weight"),
    (openclip, "", "positional_embedding"),
    (openclip_linear, "", "positional_embedding"),
    (openclip, "text.", "text.positional_embedding"),
    (hugging_face, "clip_l.transformer.", "clip_l.transformer.text_model.embeddings.position_embedding.weight"),
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("naming", "prefix", "key"), LAYOUTS)
def test_only_the_position_table_of_a_file_changes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], naming: Naming, prefix: str, key: str, dtype: torch.dtype
) -> None:
    """In every layout that is read; what else is in the file is of any type."""
    others = {
        "logit_scale": torch.tensor(4.6),
        "unknown.of.8.bits": torch.arange(5.0).to(torch.float8_e4m3fn),
        "unknown.empty": torch.zeros(0, 3),
        "unknown.numbers": torch.arange(7),
    }
    tensors = naming(text_tensors(), prefix)
    before = {name: tensor.to(dtype).contiguous() for name, tensor in tensors.items()} | others
    path, out = tmp_path / "clip.safetensors", tmp_path / "clip-248.safetensors"
    save_file(before, path, metadata={"format": "pt", "title": "größer"})
    given = path.read_bytes()
    assert stretch(path) == 0
    assert path.read_bytes() == given
    after, metadata = contents(out)
    assert set(after) == set(before)
    assert is_same(after[key], stretched(before[key], 248))
    assert all(is_same(after[name], before[name]) for name in set(before) - {key})
    assert metadata == {
        "format": "pt",
        "title": "größer",
        "stretched_from": "clip.safetensors",
        "stretched_by": "weighted-clip stretch",
        "stretched": "77 to 248, by Long-CLIP's rule: 20 positions kept, 4 made of each other",
    }
    assert "248 positions in place of 77, so 246 tokens in each chunk" in capsys.readouterr().out
    (model,) = load_text_models(out)[0].values()
    assert model.config.context_length == 248


@pytest.mark.parametrize("shape", [(1, -1), (-1,)])
def test_what_tells_of_the_number_of_rows_changes_too(shape: tuple[int, ...], tmp_path: Path) -> None:
    """The numbers of positions in older files of transformers, and the length in OpenAI's release."""
    ids = {
        "text_model.embeddings.position_ids": torch.arange(77).view(shape),
        "vision_model.embeddings.position_ids": torch.arange(5).unsqueeze(0),
    }
    counts = {"context_length": torch.tensor(77), "input_resolution": torch.tensor(224)}
    path = tmp_path / "clip.safetensors"
    for tensors in (hugging_face(text_tensors(), "") | ids, openclip(text_tensors(), "") | counts):
        save_file({key: tensor.contiguous() for key, tensor in tensors.items()}, path)
        out = tmp_path / f"{len(tensors)}.safetensors"
        assert stretch(path, "--positions", "305", "--out", str(out)) == 0
        after, _ = contents(out)
        if "context_length" in after:
            assert after["context_length"].equal(torch.tensor(305))
            assert after["input_resolution"].equal(torch.tensor(224))
        else:
            assert after["text_model.embeddings.position_ids"].equal(torch.arange(305).view(shape))
            assert after["vision_model.embeddings.position_ids"].equal(torch.arange(5).unsqueeze(0))


def test_both_tables_of_long_clips_own_layout_are_stretched(tmp_path: Path) -> None:
    table, later = (seeded_text_model(WIDE, seed=seed).embeddings.position_embedding.weight for seed in (0, 1))
    tensors = openclip(text_tensors(), "") | {"positional_embedding": table, "positional_embedding_res": later}
    path = tmp_path / "long.safetensors"
    save_file({key: tensor.contiguous() for key, tensor in tensors.items()}, path)
    assert stretch(path, "--out", str(tmp_path / "longer.safetensors")) == 0
    after, _ = contents(tmp_path / "longer.safetensors")
    expected = stretched(torch.cat([table[:20], later[20:]]), 248)
    assert after["positional_embedding"].equal(expected)
    assert after["positional_embedding_res"].equal(expected)


def test_a_stretched_clip_answers_short_texts_as_before(tmp_path: Path, clip: Path) -> None:
    """The first 20 positions are kept, so nothing changes for texts that end there."""
    assert stretch(clip) == 0
    (before,), (after,) = (load_text_models(each)[0].values() for each in (clip, tmp_path / "clip-248.safetensors"))
    ids = torch.tensor([[WIDE.bos_id, *range(100, 118), WIDE.eos_id]])
    assert torch.equal(before(ids).hidden, after(ids).hidden)
    longer = torch.tensor([[WIDE.bos_id, *range(100, 120), WIDE.eos_id]])
    assert not torch.allclose(before(longer).hidden, after(longer).hidden)


def test_a_whole_clip_is_stretched(tmp_path: Path) -> None:
    vision = seeded_vision_model(VISION)
    write_clip(tmp_path / "clip.safetensors", seeded_text_model(WIDE), vision)
    assert stretch(tmp_path / "clip.safetensors", "--positions", "134") == 0
    clip = load_full_clip(tmp_path / "clip-134.safetensors")
    assert clip.text.config.context_length == 134
    before, after = vision.state_dict(), clip.vision.state_dict()
    assert all(torch.equal(before[key], tensor) for key, tensor in after.items())


def two_towers() -> Tensors:
    return {
        **hugging_face(text_tensors(), "clip_l.transformer."),
        **hugging_face(text_tensors(), "clip_g.transformer."),
    }


def with_large_end() -> Tensors:
    tensors = hugging_face({key: tensor.half() for key, tensor in text_tensors().items()}, "")
    tensors[POSITIONS][75:] = torch.tensor([-65000.0, 65000.0]).unsqueeze(1)
    return tensors


def without_its_end() -> Tensors:
    return {key: tensor for key, tensor in hugging_face(text_tensors(), "").items() if "final" not in key}


REFUSED: list[tuple[Callable[[], Tensors], str]] = [
    (
        lambda: hugging_face(text_tensors(), "cond_stage_model.transformer."),
        "this is a file of the layout “Stable Diffusion 1.x checkpoint”: hosts read checkpoints with 77 positions only",
    ),
    (lambda: openclip(text_tensors(), "conditioner.embedders.1.model."), "“SDXL checkpoint”"),
    (two_towers, "it holds several text encoders (clip_l, clip_g): give a file of one"),
    (lambda: {"lora_te_x.lora_up.weight": torch.zeros(2, 2)}, "no CLIP text encoder in it"),
    (with_large_end, "holds values so large that the stretched ones are beyond its type"),
    (without_its_end, "key 'text_model.final_layer_norm.weight' is missing; the file looks incomplete"),
]


@pytest.mark.parametrize(("tensors", "said"), REFUSED)
def test_other_files_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], tensors: Callable[[], Tensors], said: str
) -> None:
    path = tmp_path / "given.safetensors"
    save_file({key: tensor.contiguous() for key, tensor in tensors().items()}, path)
    assert stretch(path) == 1
    told = capsys.readouterr().err
    assert said in told
    assert str(path) in told
    assert list(tmp_path.iterdir()) == [path]


def test_rotary_positions_are_not_stretched(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = seeded_text_model(replace(WIDE, positions="rotary"))
    path = tmp_path / "rotary.safetensors"
    save_file(hugging_face_tensors(model), path, metadata=position_metadata(model.config))
    assert stretch(path) == 1
    assert "it has rotary positions, of which there is no table to stretch" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == [path]


def test_bad_options_are_told(tmp_path: Path, clip: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = clip.read_bytes()
    for options, said in (
        (["--positions", "250"], "250 positions cannot be made of 77"),
        (["--out", str(clip)], f"{clip} is there already; choose another name"),
        (["--out", str(tmp_path / "clip.pt")], "clip.pt: the name of the file to write must end in .safetensors"),
        (["--out", str(tmp_path / "no" / "clip.safetensors")], "clip.safetensors cannot be written: No such file"),
    ):
        assert stretch(clip, *options) == 1
        assert said in capsys.readouterr().err
    assert stretch(tmp_path / "clip.ckpt") == 1
    assert "pickled checkpoints are not loaded" in capsys.readouterr().err
    assert stretch(tmp_path / "none.safetensors") == 1
    assert "none.safetensors: there is no such file" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == [clip]
    assert clip.read_bytes() == given


def test_a_second_run_leaves_the_first_ones_file(
    tmp_path: Path, clip: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert stretch(clip) == 0
    first = (tmp_path / "clip-248.safetensors").read_bytes()
    assert stretch(clip) == 1
    assert "clip-248.safetensors is there already" in capsys.readouterr().err
    assert (tmp_path / "clip-248.safetensors").read_bytes() == first


def test_the_header_is_written_as_safetensors_wants_it(tmp_path: Path, clip: Path) -> None:
    assert stretch(clip) == 0
    data = (tmp_path / "clip-248.safetensors").read_bytes()
    length = int.from_bytes(data[:8], "little")
    assert length % 8 == 0  # so that the tensors after it are aligned for their types
    header = json.loads(data[8 : 8 + length])
    ends = sorted(entry["data_offsets"] for key, entry in header.items() if key != "__metadata__")
    assert ends[0][0] == 0
    assert all(one[1] == other[0] for one, other in pairwise(ends))
    assert ends[-1][1] == len(data) - 8 - length
    assert in_order(tmp_path / "clip-248.safetensors") == in_order(clip)


def in_order(path: Path) -> list[str]:
    """The keys of a file in the order of their data."""
    data = path.read_bytes()
    header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    header.pop("__metadata__", None)
    return sorted(header, key=lambda key: header[key]["data_offsets"])


def test_nothing_is_left_where_there_is_no_room(tmp_path: Path, clip: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with file_limit(64 * 1024):
        assert stretch(clip) == 1
    assert "clip-248.safetensors cannot be written: " in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == [clip]


def test_the_rest_of_a_file_is_copied_in_pieces(tmp_path: Path) -> None:
    path, out = tmp_path / "clip.safetensors", tmp_path / "out.safetensors"
    save_file({"table": torch.zeros(77, 8), "rest": torch.ones(16, 1 << 20)}, path)
    tracemalloc.start()
    try:
        rewrite(path, out, {"table": torch.zeros(248, 8)}, {})
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert path.stat().st_size > 64 * 2**20
    assert peak < 10 * 2**20
    assert bool((contents(out)[0]["rest"] == 1).all())


def test_it_says_what_comfyui_does_not_load(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, hidden_dim in (("h", 1024), ("g", 1280)):
        path = tmp_path / f"{name}.safetensors"
        save_file(hugging_face_tensors(seeded_text_model(replace(WIDE, hidden_dim=hidden_dim, num_heads=16))), path)
        assert stretch(path) == 0
        assert ("ComfyUI 0.29 loads a CLIP-H with 77 positions only" in capsys.readouterr().out) == (name == "h")


def test_inspect_counts_in_longer_chunks(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", "cat " * 250, "--positions", "248"]) == 0
    told = capsys.readouterr().out
    assert "chunk 1 of 2: 246/246 tokens" in told
    assert "chunk 2 of 2: 4/246 tokens" in told
    for positions, said in (("2", "at least 3 positions, got 2"), ("16385", "16385: a chunk has at most 16,384")):
        assert main(["inspect", "cat", "--positions", positions]) == 1
        assert said in capsys.readouterr().err
