"""The nodes for whole CLIPs in a real ComfyUI, over HTTP: images that are loaded, compared, chosen and shown.

The scores are those of transformers' CLIPModel on the same file, and of our library in this process. One CLIP is tiny
and seeded; the other has learned pictures of coloured shapes (tests/encoder/trained_clip.py), so that the best is
known.
"""

from __future__ import annotations

import itertools
import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from torch import Tensor
from weighted_clip.encoder.images import preprocess
from weighted_clip.encoder.models.clip import FullClip, load_full_clip
from weighted_clip.encoder.similarity import similarity
from weighted_clip.encoder.tokenizer import default_tokenizer

from ..transformers_clip import write_clip
from .comfy_server import CHECKPOINT, TEXT_ENCODER, ComfyServer, Graph, Node, Result
from .make_checkpoint import WHOLE_CLIP, write_whole_clip

pytestmark = pytest.mark.host

TEXT = "a red cat on a mat"
KEEP = 3
COUNT = 8
SIDE = 56
"""Side of the tiny model's images, in pixels: those of this size are not resized, so that scores agree to the last
digit shown by the node."""
CLOSE = 6e-5
"""Scores are written with four digits."""
SHAPES = "clip_vision/learned-shapes.safetensors"


@pytest.fixture(scope="module")
def whole(server: ComfyServer) -> Path:
    """The tiny CLIP's file in the server's own models; and as a choice of the loader."""
    write_whole_clip(server.base / "models")
    return server.base / "models" / WHOLE_CLIP


@pytest.fixture(scope="module")
def images(server: ComfyServer) -> list[Image.Image]:
    """Eight pictures in the server's input folder, each of another colour and grain."""
    generator = np.random.default_rng(3)
    pictures: list[Image.Image] = []
    for _ in range(COUNT):
        color = generator.integers(0, 256, (1, 1, 3))
        grain = generator.normal(0, 40, (SIDE, SIDE, 3))
        pictures.append(Image.fromarray((color + grain).clip(0, 255).astype(np.uint8)))
    save(server, "some", pictures)
    return pictures


def save(server: ComfyServer, name: str, pictures: list[Image.Image]) -> None:
    for number, picture in enumerate(pictures):
        picture.save(server.base / "input" / f"{name}-{number}.png")


def batch(graph: Graph, name: str, count: int = COUNT) -> Node:
    """A batch of images from the input folder."""
    result = graph.add("LoadImage", image=f"{name}-0.png")
    for number in range(1, count):
        result = graph.add("ImageBatch", image1=result, image2=graph.add("LoadImage", image=f"{name}-{number}.png"))
    return result


def blank(graph: Graph) -> Node:
    return graph.add("EmptyImage", width=SIDE, height=SIDE, batch_size=2, color=0)


def load(graph: Graph, server: ComfyServer, file: str = WHOLE_CLIP.as_posix()) -> Node:
    return server.add_ours(graph, "WeightedCLIPLoadFull", file=file)


def rerank(graph: Graph, server: ComfyServer, clip: Any, loaded: Node, **choices: Any) -> tuple[Node, Node, Node]:
    """The node, the preview of what it keeps, and what shows its scores."""
    given = {"text": TEXT, "keep": KEEP, "syntax": "none", **choices}
    node = server.add_ours(graph, "WeightedCLIPRerank", clip_full=clip, images=loaded, **given)
    return node, graph.add("PreviewImage", images=node), graph.add("PreviewAny", source=node[1])


def scores_of(result: Result, shown: Node) -> tuple[list[int], list[float]]:
    """Indices of the images, best first, and their scores in the same order, as the node wrote them."""
    order: list[int] = []
    scores: list[float] = []
    for rank, line in enumerate(result.outputs[shown.id]["text"][0].splitlines(), 1):
        head, value = line.rsplit(" ", 1)
        number, _, image = head.partition(". image ")
        assert number == str(rank)
        order.append(int(image.removesuffix(":")) - 1)
        scores.append(float(value))
    return order, scores


def by_transformers(file: Path, pictures: list[Image.Image], text: str) -> Tensor:
    """Scores of CLIPModel on the same file."""
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 1}
    config = transformers.CLIPConfig(
        text_config={**sizes, "projection_dim": 32, "eos_token_id": 49407, "bos_token_id": 49406},
        vision_config={**sizes, "image_size": SIDE, "patch_size": 14, "projection_dim": 32},
        projection_dim=32,
    )
    model = transformers.CLIPModel(config).eval()
    missing, unknown = model.load_state_dict(load_file(file), strict=False)
    assert [key for key in missing if "position_ids" not in key] == unknown == []
    size = {"height": SIDE, "width": SIDE}
    processor = transformers.CLIPImageProcessorPil(size={"shortest_edge": SIDE}, crop_size=size)
    with torch.no_grad():
        found = model(input_ids=chunk(text), **processor(pictures, return_tensors="pt"))
    return torch.nn.functional.cosine_similarity(found.text_embeds, found.image_embeds)


def chunk(text: str) -> Tensor:
    """``[1, 77]``, made by hand."""
    ids = [49406, *(token.id for token in default_tokenizer()(text)), 49407]
    return torch.tensor([[*ids, *[49407] * (77 - len(ids))]])


def by_library(file: Path, pictures: list[Image.Image], *texts: str) -> Tensor:
    """``[texts, images]``, with the images as floats, as the host has them."""
    clip = load_full_clip(file)
    pixels = torch.stack([torch.from_numpy(np.asarray(picture).astype(np.float32) / 255) for picture in pictures])
    features = clip.image_features(preprocess(pixels, clip.vision.config.image_size))
    return similarity(torch.cat([clip.text_features(chunk(text).tolist()) for text in texts]), features)


def test_the_best_three_of_eight_come_out_in_order(server: ComfyServer, whole: Path, images: list[Image.Image]) -> None:
    graph = Graph()
    node, kept, shown = rerank(graph, server, load(graph, server), batch(graph, "some"))
    chart = graph.add("PreviewImage", images=node[2])
    result = server.run(graph)

    order, scores = scores_of(result, shown)
    for expected in (by_library(whole, images, TEXT)[0], by_transformers(whole, images, TEXT)):
        assert order == expected.argsort(descending=True).tolist()
        assert scores == pytest.approx(expected[order].tolist(), abs=CLOSE)
    assert order != sorted(order)
    assert min(before - behind for before, behind in itertools.pairwise(scores)) > 2 * CLOSE

    pictures = server.pictures(result, kept)
    assert len(pictures) == KEEP
    for picture, index in zip(pictures, order, strict=False):
        assert np.abs(picture.astype(int) - np.asarray(images[index])).max() <= 1  # the host cuts off when it saves

    [on_node] = server.pictures(result, node)
    [of_output] = server.pictures(result, chart)
    assert on_node.shape == of_output.shape
    assert np.abs(on_node.astype(int) - of_output).max() <= 1
    assert {"type": "temp"}.items() <= result.outputs[node.id]["images"][0].items()
    [view] = result.outputs[node.id]["weighted_clip"]
    assert view["text"] == TEXT
    assert view["issues"] == []


def test_another_text_reads_the_model_only_once(server: ComfyServer, whole: Path, images: list[Image.Image]) -> None:
    texts = [TEXT, "a (blue:1.4) dog", "two lamps at night"]
    orders: list[list[int]] = []
    for text in texts:
        graph = Graph()
        loader = load(graph, server)
        _, _, shown = rerank(graph, server, loader, batch(graph, "some"), text=text)
        result = server.run(graph)
        orders.append(scores_of(result, shown)[0])
        if text != TEXT:
            assert loader.id in result.cached
    assert orders == [row.argsort(descending=True).tolist() for row in by_library(whole, images, *texts)]
    assert len({tuple(order) for order in orders}) > 1


def test_weights_are_left_out_and_the_node_says_so(server: ComfyServer, whole: Path, images: list[Image.Image]) -> None:
    graph = Graph()
    clip, loaded = load(graph, server), batch(graph, "some")
    plain = rerank(graph, server, clip, loaded, text="a red cat")
    weighted = rerank(graph, server, clip, loaded, text="a (red:1.4) cat", syntax="a1111")
    result = server.run(graph)
    lines = [result.outputs[node[2].id]["text"][0].splitlines() for node in (plain, weighted)]
    assert lines[1][:COUNT] == lines[0]
    assert "Similarity has no weights: they are left out." in lines[1][COUNT]
    assert result.outputs[weighted[0].id]["text"] == ["at 3: Similarity has no weights: they are left out."]


@pytest.mark.parametrize("softmax", ["none", "over texts", "over images"])
def test_the_matrix_is_that_of_the_model(
    server: ComfyServer, whole: Path, images: list[Image.Image], softmax: str
) -> None:
    texts = ["a cat", "a dog", "still life"]
    graph = Graph()
    node = server.add_ours(
        graph,
        "WeightedCLIPSimilarity",
        clip_full=load(graph, server),
        images=batch(graph, "some"),
        texts="\n".join(texts),
        softmax=softmax,
        syntax="none",
    )
    shown = graph.add("PreviewAny", source=node[1])
    result = server.run(graph)
    table = [line.split("\t") for line in result.outputs[shown.id]["text"][0].splitlines()]
    assert [row[0] for row in table] == texts
    expected = by_library(whole, images, *texts)
    if softmax != "none":  # temperature 0: as the file's logit_scale says
        expected = (expected * np.exp(4.0)).softmax(0 if softmax == "over texts" else 1)
    found = torch.tensor([[float(value) for value in row[1:]] for row in table])
    torch.testing.assert_close(found, expected, atol=CLOSE, rtol=0)
    [picture] = server.pictures(result, node)
    assert picture.std() > 10


def test_a_file_that_lacks_a_half_is_refused_in_words(server: ComfyServer, whole: Path, models: Path) -> None:
    """A text encoder, such as that of Stable Diffusion, and an image encoder alone, as the host's own nodes use it."""
    alone = whole.with_name("image-alone.safetensors")
    save_file({key: tensor for key, tensor in load_file(whole).items() if not key.startswith("text")}, alone)
    messages = {
        f"text_encoders/{TEXT_ENCODER}": f"{TEXT_ENCODER}: no CLIP image encoder in it. It is a CLIP without its image "
        "half. Fetch a whole CLIP: model.safetensors",
        f"clip_vision/{alone.name}": f"{alone.name}: no CLIP text encoder in it",
    }
    for file, message in messages.items():
        graph = Graph()
        rerank(graph, server, load(graph, server, file), blank(graph))
        error = server.failure(graph)
        assert error.details["node_type"] == "WeightedCLIPLoadFull"
        assert message in error.details["exception_message"]


def test_checkpoints_are_not_offered(server: ComfyServer, whole: Path) -> None:
    graph = Graph()
    rerank(
        graph,
        server,
        load(graph, server, f"checkpoints/{CHECKPOINT}"),
        blank(graph),
    )
    error = server.failure(graph)
    assert error.status == 400
    assert "value_not_in_list" in json.dumps(error.details)
    described = server.inputs("WeightedCLIPLoadFull")["file"][0]
    assert WHOLE_CLIP.as_posix() in described
    assert f"text_encoders/{TEXT_ENCODER}" in described


def test_links_of_another_type_are_refused_by_the_host(server: ComfyServer, whole: Path) -> None:
    """The checkpoint's CLIP is no whole one, and a whole one is no CLIP that could make a conditioning."""
    graph = Graph()
    checkpoint = graph.add("CheckpointLoaderSimple", ckpt_name=CHECKPOINT)
    rerank(graph, server, checkpoint[1], blank(graph))
    encoding = Graph()
    text = server.add_ours(encoding, "WeightedCLIPTextEncode", clip=load(encoding, server), text=TEXT)
    server.probe(encoding, text)
    for refused in (graph, encoding):
        error = server.failure(refused)
        assert error.status == 400
        assert "return_type_mismatch" in json.dumps(error.details)


@pytest.fixture(scope="module")
def learned(server: ComfyServer, trained_clip: FullClip) -> str:
    """A CLIP that has learned coloured shapes, in the server's models."""
    path = server.base / "models" / SHAPES
    path.parent.mkdir(parents=True, exist_ok=True)
    write_clip(path, trained_clip.text, trained_clip.vision, trained_clip.logit_scale)
    return SHAPES


@pytest.mark.slow
def test_a_model_that_has_learned_finds_the_picture_of_a_text(server: ComfyServer, learned: str) -> None:
    """Finds, among eight pictures that it never saw, those named by their captions; the image is resized on the way."""
    from ..encoder.trained_clip import picture_of, split

    shapes = split()[1][:COUNT]
    rng = random.Random(5)
    save(server, "shape", [picture_of(shape, rng, 128) for shape in shapes])
    graph = Graph()
    clip, loaded = load(graph, server, learned), batch(graph, "shape")
    nodes = [rerank(graph, server, clip, loaded, text=shape.caption) for shape in shapes]
    result = server.run(graph)
    firsts = [scores_of(result, shown)[0][0] for _, _, shown in nodes]
    assert sum(first == number for number, first in enumerate(firsts)) >= COUNT - 1
    originals = [np.asarray(Image.open(server.base / "input" / f"shape-{number}.png")) for number in range(COUNT)]
    for _, kept, shown in nodes:
        order, _ = scores_of(result, shown)
        for picture, index in zip(server.pictures(result, kept), order, strict=False):
            assert np.abs(picture.astype(int) - originals[index]).max() <= 1
