"""Files that the command ``train`` writes, in real hosts: they load, encode as our own encoder does, and draw pictures.

Both trainings are runs of the command on a whole CLIP of full size, whose text encoder is that of make_checkpoint.py,
so that the LoRA belongs to that checkpoint. The rates are such that two steps move the hidden states a good way.
"""

from __future__ import annotations

import math
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from weighted_clip.encoder.files.checkpoint import hugging_face_tensors, seeded_vision_model
from weighted_clip.workshop.find_hosts import Host

from ..libraries import library
from ..patience import SECONDS
from ..training.runs import write_pairs
from .comfy_server import (
    ComfyServer,
    Conditioning,
    Graph,
    Node,
    add_checkpoint,
    add_picture,
    assert_is_picture,
)
from .make_checkpoint import TEXT_ENCODER, normal
from .parity import Figures
from .server import pack_folder
from .webui_server import Generation, WebUIServer, native_encoder, running_webui

pytestmark = [pytest.mark.host, pytest.mark.slow]

CLOSE, CLOSE_TEXT = 1e-5, "at most 1e-5"
TEXTS = (
    "a photo of a red cat on a mat, oil painting",
    "",
    "small dog sits, large bird runs 0, " * 16,
    "café 東京 🐈 sleeps",
)
"""Without weights, which hosts give different meanings."""
MOVED = 0.1
"""Minimum change of hidden states by training, as a share of their length, so that an ignored file is noticed."""


NUM_PAIRS = 4
RUNS = {"full": ("--towers", "text", "--rate", "1e-4"), "lora": ("--lora", "4", "--rate", "1e-2")}


@dataclass(frozen=True)
class Trained:
    """Files that the command wrote for hosts, and the one that it began with."""

    before: Path
    """The text encoder of the checkpoint."""
    full: Path
    """``text_encoder.safetensors`` of a training of all weights."""
    merged: Path
    """``text_encoder.safetensors`` of the training of a LoRA."""
    lora: Path
    """``lora.safetensors`` of the same."""


def train(models: Path, folder: Path) -> Trained:
    """Run the command twice.

    Args:
        models: Folder of make_checkpoint.py.
        folder: For all files; empty. It takes 5 GB while this runs, and 1 GB afterwards.
    """
    before = models / TEXT_ENCODER
    weights = write_clip(before, folder / "clip-l.safetensors")
    data = write_pairs(folder / "pairs", NUM_PAIRS)
    for name, options in RUNS.items():
        out = folder / name
        run("train", data, "--weights", weights, "--out", out, *options)
        for large in ("checkpoint.pt", "clip.safetensors"):
            (out / large).unlink()
    weights.unlink()
    text, lora = "text_encoder.safetensors", "lora.safetensors"
    return Trained(before, folder / "full" / text, folder / "lora" / text, folder / "lora" / lora)


def write_clip(text: Path, path: Path) -> Path:
    """Write a whole CLIP ViT-L/14 around a text encoder, with random weights from a fixed seed."""
    width = 768
    tensors = {
        **load_file(text),
        **hugging_face_tensors(seeded_vision_model(dtype=torch.float16)),
        "text_projection.weight": (normal("text_projection", (width, width)) / width**0.5).half(),
        "logit_scale": torch.tensor(math.log(1 / 0.07)),
    }
    save_file(tensors, path)
    return path


def run(*arguments: object) -> None:
    """Run a command of ours in a process of its own, for two steps."""
    usual = ("--steps", "2", "--batch", str(NUM_PAIRS), "--accumulate", "1", "--held-out", "0", "--device", "cpu")
    done = subprocess.run(
        [sys.executable, "-P", str(pack_folder() / "__main__.py"), *map(str, (*arguments, *usual))],
        env={"OMP_NUM_THREADS": "2", **os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]


@pytest.fixture(scope="session")
def trained(webui_models: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trained]:
    """Output of two runs of the command, the same for all hosts."""
    library("accelerate")
    library("peft")
    folder = tmp_path_factory.mktemp("trained")
    yield train(webui_models, folder)
    shutil.rmtree(folder)


def moved(before: torch.Tensor, after: torch.Tensor) -> float:
    """Change of hidden states, as a share of their length."""
    return float((after - before).norm() / before.norm())


# ComfyUI


class Encoder(NamedTuple):
    """A way to the results of a training in ComfyUI."""

    clip: Callable[[Graph], Any]
    """Adds the stock nodes that load it, and returns the link to their CLIP."""
    same: str
    """The file that holds the same encoder."""
    what: str
    """In words."""


FULL, MERGED, LORA = "trained-full.safetensors", "trained-merged.safetensors", "trained-lora.safetensors"


def load_clip(graph: Graph) -> Node:
    return graph.add("CLIPLoader", clip_name=FULL, type="stable_diffusion")


def load_lora(graph: Graph) -> list[Any]:
    model, clip, _ = add_checkpoint(graph)
    strengths = {"strength_model": 1.0, "strength_clip": 1.0}
    return graph.add("LoraLoader", model=model, clip=clip, lora_name=LORA, **strengths)[1]


Files = Mapping[str, Path]
"""Text encoders by what they are called in the server's folder."""
ENCODERS = {
    "text encoder": Encoder(load_clip, FULL, "Trained text encoder in Load CLIP"),
    "LoRA": Encoder(load_lora, MERGED, "Trained LoRA in Load LoRA"),
}
COMPLAINTS = ("clip missing", "lora key not loaded", "NOT LOADED", "NOT MERGED", "ERROR")
"""Text in ComfyUI's log about a file that does not fit. It ignores unknown keys silently."""


@pytest.fixture(scope="module")
def files(server: ComfyServer, trained: Trained) -> Files:
    """The results in the server's folders of models."""
    places = {"text_encoders": {FULL: trained.full, MERGED: trained.merged}, "loras": {LORA: trained.lora}}
    for folder, named in places.items():
        target = server.base / "models" / folder
        target.mkdir(parents=True, exist_ok=True)
        for name, file in named.items():
            shutil.copyfile(file, target / name)
    return {FULL: trained.full, MERGED: trained.merged}


def weights_in_comfyui(server: ComfyServer, encoder: Encoder, name: str) -> dict[str, torch.Tensor]:
    """Output of the node Save CLIP: the loaded weights, with the updates of a LoRA added."""
    told = len(server.log_text())
    graph = Graph()
    graph.add("CLIPSave", clip=encoder.clip(graph), filename_prefix=name)
    server.run(graph)
    log = server.log_text()[told:]
    assert not [words for words in COMPLAINTS if words in log], log
    (path,) = (server.base / "output").glob(f"{name}_clip_l_*.safetensors")
    weights = load_file(path)
    path.unlink()
    del weights["logit_scale"]  # ComfyUI's class has one, which it does not use
    return weights


def test_comfyui_loads_every_weight_of_the_file(
    server: ComfyServer, trained: Trained, files: Files, figures: Figures
) -> None:
    encoder = ENCODERS["text encoder"]
    found, written = weights_in_comfyui(server, encoder, "saved-full"), load_file(files[FULL])
    assert found.keys() == written.keys()
    for name, tensor in written.items():
        figures.add(f"{encoder.what}: weights, with the file", float((found[name] - tensor).abs().max()))
        assert torch.equal(found[name], tensor), name
    before = load_file(trained.before)
    assert written.keys() - before.keys() == {"text_projection.weight"}
    assert not [name for name in written.keys() & before.keys() if torch.equal(written[name], before[name].float())]


def test_comfyui_adds_the_lora_as_it_was_merged(
    server: ComfyServer, trained: Trained, files: Files, figures: Figures
) -> None:
    encoder = ENCODERS["LoRA"]
    found, merged = weights_in_comfyui(server, encoder, "saved-lora"), load_file(files[MERGED])
    before = load_file(trained.before)
    changed = {
        name for name, tensor in merged.items() if name in before and not torch.equal(tensor, before[name].float())
    }
    assert len(changed) == 12 * 6
    for name in merged.keys() & before.keys():
        difference = float((found[name] - merged[name]).abs().max())
        subject = f"{encoder.what}: weights, with those merged in training"
        figures.add(subject, difference, required=CLOSE_TEXT)
        assert difference <= CLOSE, name


@pytest.mark.parametrize("name", ENCODERS)
def test_comfyui_encodes_and_draws_with_what_was_trained(
    server: ComfyServer, files: Files, figures: Figures, name: str
) -> None:
    encoder = ENCODERS[name]
    graph = Graph()
    _, untrained, _ = add_checkpoint(graph)
    own = server.add_ours(graph, "WeightedCLIPLoad", file=f"text_encoders/{encoder.same}")
    nodes = [
        (
            graph.add("CLIPTextEncode", clip=encoder.clip(graph), text=text),
            server.add_ours(graph, "WeightedCLIPTextEncode", clip=own, text=text),
            graph.add("CLIPTextEncode", clip=untrained, text=text),
        )
        for text in TEXTS
    ]
    probes = [[server.probe(graph, node) for node in each] for each in nodes]
    drawn = [add_picture(graph, node) for node in (nodes[0][0], nodes[0][2])]
    result = server.run(graph)
    for each in probes:
        theirs, ours, before = (server.conditioning(result, probe) for probe in each)
        if name == "LoRA":  # the checkpoint has no text projection, so pooled vectors are other ones
            theirs, ours = (Conditioning({"0.hidden": one.hidden}, one.others) for one in (theirs, ours))
        difference = ours.difference(theirs)
        figures.add(f"{encoder.what}, with our native encoder", difference, required=CLOSE_TEXT)
        assert difference <= CLOSE
        assert theirs.is_finite()
        assert moved(before.hidden, theirs.hidden) > MOVED
    picture, untouched = (server.picture(result, node) for node in drawn)
    assert_is_picture(picture)
    assert not np.array_equal(picture, untouched)


# Forge


class Made(NamedTuple):
    """Forge's result for one of `TEXTS`."""

    hidden: torch.Tensor
    picture: np.ndarray


@pytest.fixture(scope="module")
def forge(
    webui_host: Host, webui_models: Path, trained: Trained, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[WebUIServer]:
    """A running Forge without our extension, with the results in its folders of models."""
    if webui_host.kind != "Forge":
        pytest.skip("A1111 has no choice of text encoders")
    base = tmp_path_factory.mktemp("trained-forge") / "data"
    encoders = base / "models" / "text_encoder"
    encoders.mkdir(parents=True)  # Forge looks into it as it starts
    for name, file in ((FULL, trained.full), (MERGED, trained.merged)):
        shutil.copyfile(file, encoders / name)
    arguments = ["--clip-in-fp32"]  # else Forge rounds text encoders to half precision
    with running_webui(webui_host, webui_models, base, with_ours=False, arguments=arguments) as server:
        shutil.copyfile(trained.lora, base / "models" / "Lora" / LORA)
        yield server


@pytest.fixture(scope="module")
def made(forge: WebUIServer) -> Mapping[str, list[Made]]:
    """Results for all texts, with the checkpoint alone, and with the trained files."""

    def make(file: str | None, suffix: str = "") -> list[Made]:
        forge.api("/sdapi/v1/options", {"forge_additional_modules": [] if file is None else [file]})
        return [made_of(forge.txt2img(text + suffix, probe=True)) for text in TEXTS]

    tag = f"<lora:{Path(LORA).stem}:1>"
    return {"before": make(None), "LoRA": make(None, tag), FULL: make(FULL), MERGED: make(MERGED)}


def made_of(generation: Generation) -> Made:
    assert generation.seen is not None
    return Made(generation.seen.cond, generation.pictures[0])


@pytest.mark.parametrize("name", ["LoRA", FULL, MERGED])
def test_forge_encodes_and_draws_with_what_was_trained(
    made: Mapping[str, list[Made]], trained: Trained, webui_figures: Figures, name: str
) -> None:
    encode = native_encoder(trained.full if name == FULL else trained.merged)
    what = "Trained LoRA by its tag" if name == "LoRA" else "Trained text encoder in VAE / Text Encoder"
    for text, before, after in zip(TEXTS, made["before"], made[name], strict=True):
        difference = float((after.hidden - encode(text)).abs().max())
        webui_figures.add(f"{what}: hidden states, with our native encoder", difference, required=CLOSE_TEXT)
        assert difference <= CLOSE
        assert moved(before.hidden, after.hidden) > MOVED
        assert_is_picture(after.picture)
        assert not np.array_equal(after.picture, before.picture)


def test_forge_has_the_same_encoder_by_the_lora_and_by_the_merged_file(
    made: Mapping[str, list[Made]], webui_figures: Figures
) -> None:
    for by_lora, by_file in zip(made["LoRA"], made[MERGED], strict=True):
        difference = float((by_lora.hidden - by_file.hidden).abs().max())
        subject = "Trained LoRA by its tag: hidden states, with the text encoder that has it merged"
        webui_figures.add(subject, difference, required=CLOSE_TEXT)
        assert difference <= CLOSE


def test_forge_misses_no_key_and_knows_all_that_it_uses(forge: WebUIServer, made: Mapping[str, list[Made]]) -> None:
    assert made
    log = forge.log_text()
    assert "with 72 keys at weight 1.0 (skipped 0 keys)" in log
    told = set(re.findall(r"(?:Missing|Unexpected): \[.*\]", log))
    # Stable Diffusion 1 does not use the projection, and Forge looks for it under a name of its own
    assert told == {"Unexpected: ['transformer.text_model.text_projection.weight']"}
    for words in ("unmatched keys", "version mismatch", "[LORA] Mismatch"):
        assert words not in log, log[-5000:]
