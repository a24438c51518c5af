"""The nodes of the discrete VAE in a real ComfyUI, over HTTP, with a dVAE whose tokens are known: 125 plain colours."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image
from weighted_clip.studio.dalle.tokens import read_tokens
from weighted_clip.studio.dalle.weight_files import save_dvae

from ..dalle.models import nearest_colors, palette, palette_dvae, pictures
from .comfy_server import ComfyServer, Graph, Node, template

pytestmark = pytest.mark.host

FILE = "vae/palette.safetensors"
HEIGHT, WIDTH = 50, 67  # no multiples of 4


@pytest.fixture(scope="module")
def image(server: ComfyServer) -> torch.Tensor:
    """``[1, 3, h, w]``, as it lies in the server's input folder; the dVAE is in its models."""
    folder = server.base / "models" / "vae"
    folder.mkdir(parents=True, exist_ok=True)
    save_dvae(palette_dvae(), server.base / "models" / FILE)
    (folder / "decoder.pkl").write_bytes(b"\x80\x04.")
    pixels = (pictures(1, 52, 68, 5)[..., :HEIGHT, :WIDTH] * 255).round().byte()
    Image.fromarray(pixels[0].movedim(0, -1).numpy()).save(server.base / "input" / "dvae.png")
    return pixels.float() / 255


def encode(graph: Graph, server: ComfyServer) -> tuple[Node, Node]:
    """The dVAE, and Image to Tokens."""
    dvae = server.add_ours(graph, "WeightedCLIPLoadDVAE", file=FILE)
    loaded = graph.add("LoadImage", image="dvae.png")
    return dvae, server.add_ours(graph, "WeightedCLIPImageToTokens", dvae=dvae, image=loaded)


def test_tokens_of_an_image_are_swapped_and_decoded(server: ComfyServer, image: torch.Tensor) -> None:
    graph = Graph()
    dvae, encoded = encode(graph, server)
    numbers, report = (graph.add("PreviewAny", source=encoded[slot]) for slot in (2, 3))
    grid = graph.add("PreviewImage", images=encoded[1])
    decoded = server.add_ours(
        graph, "WeightedCLIPTokensToImage", dvae=dvae, tokens=encoded[0], swap="2, 3 = 124\n5-6, 1-2 = 0"
    )
    swapped, told = graph.add("PreviewImage", images=decoded), graph.add("PreviewAny", source=decoded[2])
    typed = server.add_ours(graph, "WeightedCLIPTokensToImage", dvae=dvae, swap="", numbers=encoded[2])
    plain = graph.add("PreviewImage", images=typed)
    result = server.run(graph)

    expected = nearest_colors(image[..., 1:49, 1:65])
    assert torch.equal(read_tokens(result.outputs[numbers.id]["text"][0], 125), expected)
    lines = result.outputs[report.id]["text"][0].splitlines()
    assert lines[0] == "12 x 16 tokens of 4 x 4 pixels"
    assert lines[-1] == "cut from 67 x 50 to 64 x 48 pixels, multiples of 4, at both ends"
    assert server.picture(result, grid).shape[1] > 16 * 38
    assert result.outputs[encoded.id]["images"][0]["type"] == "temp"
    before = int(expected[0, 1, 2])
    assert result.outputs[told.id]["text"][0].splitlines()[0] == f"row 2, column 3: {before} -> 124"
    for shown in (plain, swapped):
        if shown is swapped:
            expected[0, 1, 2] = 124
            expected[0, 4:6, 0:2] = 0
        colors = palette()[expected[0]].repeat_interleave(4, 0).repeat_interleave(4, 1).numpy() * 255
        assert np.abs(server.picture(result, shown) - colors).max() <= 1


@pytest.mark.parametrize(
    ("swap", "told"),
    [
        ("13, 1 = 0", "swap, line 1, “13, 1 = 0”: there is no row 13; this grid has rows 1 to 12"),
        ("1, 1 = 125", "there is no token 125; this dVAE has 0 to 124"),
    ],
)
def test_a_swap_that_cannot_be_is_refused_by_its_line(
    server: ComfyServer, image: torch.Tensor, swap: str, told: str
) -> None:
    graph = Graph()
    dvae, encoded = encode(graph, server)
    decoded = server.add_ours(graph, "WeightedCLIPTokensToImage", dvae=dvae, tokens=encoded[0], swap=swap)
    graph.add("PreviewImage", images=decoded)
    error = server.failure(graph)
    assert told in error.details["exception_message"]


def test_a_pickle_is_refused_and_the_way_out_is_named(server: ComfyServer, image: torch.Tensor) -> None:
    graph = Graph()
    dvae = server.add_ours(graph, "WeightedCLIPLoadDVAE", file="vae/decoder.pkl")
    loaded = graph.add("LoadImage", image="dvae.png")
    server.add_ours(graph, "WeightedCLIPImageToTokens", dvae=dvae, image=loaded)
    error = server.failure(graph)
    assert "python run.py convert-dvae" in error.details["exception_message"]


def test_the_template_runs(server: ComfyServer, image: torch.Tensor) -> None:
    """Without a browser: its nodes and links as a prompt, on the small dVAE and a picture of 64 x 64 pixels."""
    graph = template("17 Swap image tokens")
    for node in graph.nodes.values():
        if node["class_type"] == "WeightedCLIPLoadDVAE":
            node["inputs"]["file"] = FILE
        elif node["class_type"] == "LoadImage":
            node["inputs"] = {"image": "dvae.png"}
        elif node["class_type"] == "ImageScale":
            node["inputs"] |= {"width": 64, "height": 64}
    result = server.run(graph)
    shown = [Node(name) for name, node in graph.nodes.items() if node["class_type"] == "PreviewImage"]
    swapped, plain = (server.picture(result, node).astype(int) for node in shown)
    changed = np.abs(swapped - plain).max(-1) > 2
    rows, columns = np.nonzero(changed)
    assert len(rows) > 0
    squares = {(row // 4 + 1, column // 4 + 1) for row, column in zip(rows, columns, strict=True)}
    assert squares <= {*((row, column) for row in (6, 7, 8) for column in range(5, 13)), (10, 10)}
