"""The nodes for whole CLIPs on a fake host, with a tiny seeded model: what they choose, write and refuse."""

from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from safetensors.torch import save_file
from torch import Tensor
from weighted_clip.encoder.files.checkpoint import seeded_text_model, seeded_vision_model
from weighted_clip.encoder.images import preprocess
from weighted_clip.encoder.models.config import TextConfig, VisionConfig
from weighted_clip.encoder.models.text_model import TextModel
from weighted_clip.encoder.models.vision_model import VisionModel
from weighted_clip.encoder.tokenizer import default_tokenizer

from .fake_comfy import install, interrupt, node, progress

TEXT = TextConfig(hidden_dim=64, num_heads=1, num_layers=2, mlp_dim=128, projection_dim=32)
VISION = VisionConfig(image_size=28, hidden_dim=64, num_heads=1, num_layers=2, mlp_dim=128, projection_dim=32)


def transformers_names(text: TextModel, vision: VisionModel) -> dict[str, Tensor]:
    renamed = {"pre_layer_norm": "pre_layrnorm", "post_layer_norm": "post_layernorm"}
    tensors: dict[str, Tensor] = {}
    for prefix, model in (("text_model", text), ("vision_model", vision)):
        for name, tensor in model.state_dict().items():
            for ours, theirs in renamed.items():
                name = name.replace(ours, theirs)
            tensors[name if "projection." in name else f"{prefix}.{name}"] = tensor
    return tensors


@pytest.fixture
def models() -> tuple[TextModel, VisionModel]:
    return seeded_text_model(TEXT), seeded_vision_model(VISION)


@pytest.fixture
def clip_full(models: tuple[TextModel, VisionModel], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    file = tmp_path / "whole.safetensors"
    save_file({**transformers_names(*models), "logit_scale": torch.tensor(4.0)}, file)
    alone = tmp_path / "text.safetensors"
    save_file({key: t for key, t in transformers_names(*models).items() if "vision" not in key}, alone)
    install(
        monkeypatch,
        {"clip_vision": {file.name: str(file)}, "text_encoders": {alone.name: str(alone)}},
        tmp_path / "temp",
    )
    [loaded] = node("LoadFull").load("clip_vision/whole.safetensors", "fp32", "auto", "as released")
    return loaded


def some_images(count: int) -> Tensor:
    return torch.rand(count, 40, 36, 3, generator=torch.Generator().manual_seed(0))


def cosines(models: tuple[TextModel, VisionModel], images: Tensor, *texts: str) -> Tensor:
    text_model, vision = models
    ids = [[49406, *(token.id for token in default_tokenizer()(text)), 49407] for text in texts]
    chunks = torch.tensor([[*row, *[49407] * (77 - len(row))] for row in ids])
    with torch.no_grad():
        one, other = text_model(chunks).projected, vision(preprocess(images, 28)).projected
    assert one is not None
    assert other is not None
    return torch.nn.functional.cosine_similarity(one.unsqueeze(1), other.unsqueeze(0), dim=-1)


def test_rerank_keeps_the_best_in_order(clip_full: Any, models: tuple[TextModel, VisionModel], tmp_path: Path) -> None:
    images = some_images(9)
    result = node("Rerank").rerank(clip_full, images, "a red cat", 4, "center", "none")
    kept, scores, chart = result["result"]
    expected = cosines(models, images, "a red cat")[0]
    order = expected.argsort(descending=True)
    assert torch.equal(kept, images[order[:4]])
    lines = scores.splitlines()
    assert len(lines) == 9
    for rank, index in enumerate(order.tolist()):
        head, value = lines[rank].rsplit(" ", 1)
        assert head == f"{rank + 1}. image {index + 1}:"
        assert float(value) == pytest.approx(float(expected[index]), abs=6e-5)
    assert chart.shape[0] == 1
    [preview] = result["ui"]["images"]
    with Image.open(tmp_path / "temp" / preview["filename"]) as picture:
        assert picture.size == (chart.shape[2], chart.shape[1])
    assert progress()[-1][0] == 9


def test_rerank_reads_weights_and_leaves_them_out(clip_full: Any, models: tuple[TextModel, VisionModel]) -> None:
    images = some_images(3)
    plain = node("Rerank").rerank(clip_full, images, "a red cat", 1, "center", "comfy")
    weighted = node("Rerank").rerank(clip_full, images, "a (red:1.4) cat", 1, "center", "comfy")
    assert weighted["result"][1].splitlines()[:3] == plain["result"][1].splitlines()
    assert "Similarity has no weights" in weighted["result"][1].splitlines()[3]
    bare = node("Rerank").rerank(clip_full, images, "a (red:1.4) cat", 1, "center", "none")
    assert bare["result"][1].splitlines()[:3] != plain["result"][1].splitlines()[:3]


def test_more_is_kept_than_there_is(clip_full: Any) -> None:
    kept, *_ = node("Rerank").rerank(clip_full, some_images(2), "a cat", 50, "letterbox", "comfy")["result"]
    assert len(kept) == 2


@pytest.mark.parametrize("softmax", ["none", "over texts", "over images"])
@pytest.mark.parametrize("temperature", [0.0, 0.5])
def test_matrix_is_that_of_the_model(
    clip_full: Any, models: tuple[TextModel, VisionModel], softmax: str, temperature: float
) -> None:
    images = some_images(3)
    texts = "a cat\n\n  a dog  \nstill life"
    result = node("Similarity").compare(clip_full, images, texts, softmax, temperature, "center", "none")
    expected = cosines(models, images, "a cat", "a dog", "still life")
    if softmax != "none":
        scale = 1 / temperature if temperature else torch.tensor(4.0).exp()
        expected = (expected * scale).softmax(0 if softmax == "over texts" else 1)
    table = [line.split("\t") for line in result["result"][1].splitlines()]
    assert [row[0] for row in table] == ["a cat", "a dog", "still life"]
    found = torch.tensor([[float(value) for value in row[1:]] for row in table])
    torch.testing.assert_close(found, expected, atol=6e-5, rtol=0)


def test_what_cannot_be_compared_is_refused_in_words(clip_full: Any) -> None:
    with pytest.raises(ValueError, match=r"text\.safetensors: no CLIP image encoder in it\. It is a CLIP without"):
        node("LoadFull").load("text_encoders/text.safetensors", "fp32", "auto", "as released")
    with pytest.raises(ValueError, match="the batch is empty"):
        node("Rerank").rerank(clip_full, some_images(0), "a cat", 1, "center", "comfy")
    with pytest.raises(ValueError, match="there are no texts to compare with: write one per line"):
        node("Similarity").compare(clip_full, some_images(1), " \n ", "none", 0.0, "center", "comfy")


def test_an_interrupt_ends_the_work(clip_full: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    interrupt(monkeypatch)
    with pytest.raises(InterruptedError):
        node("Rerank").rerank(clip_full, some_images(3), "a cat", 1, "center", "comfy")


def test_loader_lists_both_folders(clip_full: Any) -> None:
    files = type(node("LoadFull")).INPUT_TYPES()["required"]["file"][0]
    assert files == ["clip_vision/whole.safetensors", "text_encoders/text.safetensors"]
