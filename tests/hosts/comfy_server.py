"""Finds ComfyUI checkouts, runs one as a server of its own, and speaks its HTTP interface.

A server has a base directory of its own, so that nothing is written into the checkout, and listens on loopback only.
With WEIGHTED_CLIP_FRONT_END=DIR in the environment it serves the front end in that folder instead of the one that is
installed with it: a folder with an ``index.html``, or the folder into which pip put ``comfyui-frontend-package``.
"""

from __future__ import annotations

import io
import json
import os
import socket
import threading
import urllib.parse
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors import safe_open
from weighted_clip.hosts.comfy.attention.words import WORDS
from weighted_clip.workshop.find_hosts import Host
from weighted_clip.workshop.job import own_environment, run_in_host

from ..patience import SECONDS
from .make_checkpoint import write_more_embeddings
from .server import REPOSITORY, TESTS, Server, free_port, link_folder, pack_folder, started

PACK_FOLDER = "ComfyUI weighted-clip"
"""Name of our folder in custom_nodes: neither an identifier nor a plain word."""
CACHE_FOLDER = ".weighted_clip_cache"
CACHE_VERSION = "1"
"""To be raised when make_checkpoint.py writes other numbers."""

CLIENT = "weighted-clip-tests"
"""Id of the client whose prompts these are."""
START_SECONDS = 2 * SECONDS
PROMPT_SECONDS = 2 * SECONDS
KERNELS = ("--force-channels-last",)
"""Start options of kernels: convolutions are faster."""
SCRIPT_SECONDS = 4 * SECONDS
CHECKPOINT = "seeded-sd15.safetensors"
LORA = "seeded-clip-lora.safetensors"
TEXT_ENCODER = "seeded-clip-l.safetensors"
"""The files of make_checkpoint.py."""
FRONT_END = "WEIGHTED_CLIP_FRONT_END"
"""The environment variable with the folder of another front end."""
MODEL_FOLDERS = ("checkpoints", "loras", "text_encoders", "embeddings")


def run_script(host: Host, script: Path, *arguments: Any, seconds: float = SCRIPT_SECONDS) -> str:
    """Run a Python file in a host's environment with the checkout as working directory; what it wrote."""
    done = run_in_host(
        host.python, [script, *map(str, arguments)], folder=host.folder, environment=_environment(), seconds=seconds
    )
    assert done.returncode == 0, f"{script.name} failed in ComfyUI {host.version}:\n{done.stdout[-6000:]}"
    return done.stdout


def front_end_folder() -> Path | None:
    """The folder of the front end that the environment names; None for the one that is installed with the host."""
    given = os.environ.get(FRONT_END)
    if not given:
        return None
    folder = Path(given).resolve()
    places = (folder, folder / "static", folder / "comfyui_frontend_package" / "static")
    found = next((place for place in places if (place / "index.html").is_file()), None)
    assert found is not None, f"{FRONT_END}={given}: there is no index.html in it, nor a comfyui_frontend_package"
    return found


def _environment() -> dict[str, str]:
    """The caller's, without what would lead a host's Python to our packages; writes no bytecode into the checkout.

    One thread, unless the caller says otherwise: on a busy machine, several wait for each other most of the time.
    """
    kept = {name: value for name, value in own_environment().items() if not name.startswith("PYTEST")}
    return {"OMP_NUM_THREADS": "1", **kept, "PYTHONDONTWRITEBYTECODE": "1"}


@dataclass(frozen=True)
class Node:
    """A node of a graph under construction; ``node[slot]`` is a link from one of its outputs."""

    id: str

    def __getitem__(self, slot: int) -> list[Any]:
        return [self.id, slot]


class Graph:
    """A workflow in the form that /prompt takes."""

    def __init__(self) -> None:
        self.nodes: dict[str, dict[str, Any]] = {}

    def add(self, class_type: str, **inputs: Any) -> Node:
        """Add a node. An input that is a node means that node's first output."""
        node = Node(str(len(self.nodes) + 1))
        linked = {name: value[0] if isinstance(value, Node) else value for name, value in inputs.items()}
        self.nodes[node.id] = {"class_type": class_type, "inputs": linked}
        return node


def add_checkpoint(graph: Graph, *, number: int = 0) -> tuple[Node, Any, Any]:
    """The seeded checkpoint's model, CLIP and VAE; with another number, ComfyUI encodes texts again."""
    loader = graph.add("CheckpointLoaderSimple", ckpt_name=CHECKPOINT)
    return loader, graph.add("WeightedCLIPTestSameClip", clip=loader[1], number=number), loader[2]


def with_clip(*, number: int = 0) -> tuple[Graph, Node]:
    """A workflow that loads the seeded checkpoint, and its CLIP."""
    graph = Graph()
    return graph, add_checkpoint(graph, number=number)[1]


def add_picture(
    graph: Graph,
    positive: Any,
    negative: Any = None,
    *,
    model: Any = None,
    number: int = 0,
    seed: int = 1,
    steps: int = 2,
) -> Node:
    """Sample a conditioning, decode and save: the SaveImage node."""
    checkpoint, clip, vae = add_checkpoint(graph, number=number)
    samples = graph.add(
        "KSampler",
        model=model or checkpoint,
        positive=positive,
        negative=negative or graph.add("CLIPTextEncode", clip=clip, text=""),
        latent_image=graph.add("EmptyLatentImage", width=64, height=64, batch_size=1),
        **{"seed": seed, "steps": steps, "cfg": 7.0, "sampler_name": "euler", "scheduler": "normal", "denoise": 1.0},
    )
    return graph.add("SaveImage", images=graph.add("VAEDecode", samples=samples, vae=vae), filename_prefix="test")


def add_scheduled_lora(graph: Graph, clip: Any, strengths: Mapping[float, float]) -> Node:
    """A CLIP whose LoRA has a strength from each share of the sampling on."""
    hooks: Any = graph.add("CreateHookLora", lora_name=LORA, strength_model=0.0, strength_clip=1.0)
    previous: dict[str, Node] = {}
    for percent, strength in strengths.items():
        keyframe = graph.add("CreateHookKeyframe", strength_mult=strength, start_percent=percent, **previous)
        previous = {"prev_hook_kf": keyframe}
    hooks = graph.add("SetHookKeyframes", hooks=hooks, hook_kf=previous["prev_hook_kf"])
    return graph.add("SetClipHooks", clip=clip, hooks=hooks, apply_to_conds=True, schedule_clip=True)


def template(name: str) -> Graph:
    """An example workflow as the page sends it."""
    workflow = json.loads((REPOSITORY / "example_workflows" / f"{name}.json").read_text(encoding="utf-8"))
    nodes = [node for node in workflow["nodes"] if node["type"] != "MarkdownNote"]
    ids = {node["id"]: str(number) for number, node in enumerate(nodes, 1)}
    origins = {link[0]: [ids[link[1]], link[2]] for link in workflow["links"]}
    graph = Graph()
    for node in nodes:
        values = iter(node.get("widgets_values") or ())
        inputs: dict[str, Any] = {}
        for slot in node["inputs"]:
            if "widget" in slot:
                inputs[slot["name"]] = next(values)
            if slot["name"] in ("seed", "noise_seed"):
                next(values)  # what happens to it after a run
            if slot["link"] is not None:
                inputs[slot["name"]] = origins[slot["link"]]
        graph.nodes[ids[node["id"]]] = {"class_type": node["type"], "inputs": inputs}
    return graph


def pixel_difference(one: np.ndarray, other: np.ndarray) -> float:
    """The largest difference between two pictures."""
    return float(np.abs(one.astype(int) - other).max())


def assert_is_picture(picture: np.ndarray) -> None:
    """Random weights draw coloured noise; NaN would be drawn black, and values out of range all black or white."""
    assert picture.shape == (64, 64, 3)
    assert picture.std() > 10
    assert 10 < picture.mean() < 245


class PromptError(AssertionError):
    """ComfyUI did not run a workflow to its end."""

    def __init__(self, status: int, details: Any, log: str) -> None:
        super().__init__(f"{json.dumps(details, indent=1)[:4000]}\n--- end of the server's log ---\n{log}")
        self.status = status
        """The HTTP status: 400 if it was refused, 200 if it failed while running."""
        self.details = details
        """The answer, or what the message ``execution_error`` carries."""


@dataclass(frozen=True)
class Result:
    """A workflow that ran."""

    outputs: Mapping[str, Any]
    """Output of each node to the front end, by its id."""
    cached: frozenset[str]
    """Ids of nodes that ComfyUI did not run because it remembered their outputs."""


@dataclass(frozen=True)
class Conditioning:
    """A CONDITIONING as the probe found it."""

    tensors: Mapping[str, torch.Tensor]
    """``0.hidden``, ``0.pooled_output``, ``1.hidden``, ..."""
    others: list[dict[str, Any]]
    """For each entry, what is no tensor, without the words of our rows, which ComfyUI does not read."""

    @property
    def hidden(self) -> torch.Tensor:
        """Hidden states of the first entry."""
        return self.tensors["0.hidden"]

    def __eq__(self, other: object) -> bool:
        """Whether all of it is the same, tensors bit for bit."""
        return (
            isinstance(other, Conditioning)
            and self.others == other.others
            and self.tensors.keys() == other.tensors.keys()
            and all(torch.equal(tensor, other.tensors[key]) for key, tensor in self.tensors.items())
        )

    __hash__ = None  # type: ignore[assignment]

    def difference(self, other: Conditioning) -> float:
        """The largest absolute difference between tensors; infinite if they do not match."""
        if self.tensors.keys() != other.tensors.keys() or self.hidden.shape != other.hidden.shape:
            return float("inf")
        return max(float((tensor - other.tensors[key]).abs().max()) for key, tensor in self.tensors.items())

    def is_finite(self) -> bool:
        """Whether there is no NaN and no infinity in it."""
        return all(bool(tensor.isfinite().all()) for tensor in self.tensors.values())


def read_conditioning(path: str) -> Conditioning:
    """Read a file of the probe."""
    with safe_open(path, "pt") as file:
        names = file.keys()  # it is no dictionary
        entries = [{k: v for k, v in one.items() if k != WORDS} for one in json.loads(file.metadata()["entries"])]
        return Conditioning({name: file.get_tensor(name) for name in names}, entries)


@dataclass
class ComfyServer(Server):
    """A running ComfyUI."""

    host: Host
    base: Path
    count: int = field(default=0)
    """Number of files requested from the probe."""
    info: dict[str, Any] = field(default_factory=dict)
    """The server's information about node classes."""

    def get(self, path: str) -> Any:
        """A JSON document of the server."""
        status, body = self.request(path)
        assert status == 200, f"GET {path}: {status}\n{self.log_tail()}"
        return json.loads(body)

    def run(self, graph: Graph, extra: Mapping[str, Any] | None = None) -> Result:
        """Queue a workflow, with extra data if it has any, and wait until it is done.

        Raises:
            PromptError: If it is refused or a node fails.
        """
        return self.result(self.queue(graph, extra))

    def failure(self, graph: Graph) -> PromptError:
        """The error of a workflow that is refused, or of which a node fails."""
        with pytest.raises(PromptError) as caught:
            self.run(graph)
        return caught.value

    def queue(self, graph: Graph, extra: Mapping[str, Any] | None = None) -> str:
        """Queue a workflow; its id.

        Raises:
            PromptError: If it is refused.
        """
        data = {"prompt": graph.nodes, "client_id": CLIENT, "extra_data": extra or {}}
        status, body = self.request("/prompt", data)
        answer = json.loads(body)
        if status != 200:
            raise PromptError(status, answer, self.log_tail())
        return answer["prompt_id"]

    def result(self, prompt_id: str) -> Result:
        """Wait until a workflow is done.

        Raises:
            PromptError: If a node fails or it is interrupted.
        """
        path = f"/history/{prompt_id}"
        history = self.wait(lambda: self.get(path), PROMPT_SECONDS, "the prompt did not end")
        entry = history[prompt_id]
        messages = dict(entry["status"]["messages"])
        if entry["status"]["status_str"] != "success":
            raise PromptError(200, messages.get("execution_error", messages), self.log_tail())
        return Result(entry["outputs"], frozenset(messages.get("execution_cached", {}).get("nodes", ())))

    def inputs(self, class_type: str) -> dict[str, Any]:
        """The required inputs of a node class, as the page is told them."""
        if class_type not in self.info:
            self.info[class_type] = self.get(f"/object_info/{class_type}")[class_type]
        return self.info[class_type]["input"]["required"]

    def add_ours(self, graph: Graph, class_type: str, **inputs: Any) -> Node:
        """Add a node of our pack; widgets that are not named have their defaults."""
        described = self.inputs(class_type).items()
        defaults = {name: options["default"] for name, (_, options) in described if "default" in options}
        return graph.add(class_type, **{**defaults, **inputs})

    def probe(self, graph: Graph, conditioning: Node) -> Node:
        """Add a node that saves a conditioning; its id leads `conditioning` to the file."""
        self.count += 1
        return graph.add("WeightedCLIPTestSaveConditioning", conditioning=conditioning, file=f"probe-{self.count}")

    def conditioning(self, result: Result, probe: Node) -> Conditioning:
        """Conditioning saved by a probe."""
        (path,) = result.outputs[probe.id]["conditioning"]
        return read_conditioning(path)

    def conditionings(self, graph: Graph, *nodes: Node) -> list[Conditioning]:
        """Run a workflow: what some of its nodes made."""
        probes = [self.probe(graph, node) for node in nodes]
        result = self.run(graph)
        return [self.conditioning(result, probe) for probe in probes]

    def picture(self, result: Result, node: Node) -> np.ndarray:
        """The only picture that SaveImage or PreviewImage wrote: ``[height, width, 3]``, bytes."""
        (picture,) = self.pictures(result, node)
        return picture

    def pictures(self, result: Result, node: Node) -> list[np.ndarray]:
        """All pictures that a node wrote."""
        found: list[np.ndarray] = []
        for image in result.outputs[node.id]["images"]:
            status, body = self.request("/view?" + urllib.parse.urlencode(image))
            assert status == 200, f"/view: {status}"
            with Image.open(io.BytesIO(body)) as opened:
                assert opened.format == "PNG"
                found.append(np.asarray(opened.convert("RGB")))
        return found


@contextmanager
def running_server(
    host: Host,
    models: Path,
    base: Path,
    *,
    with_pack: bool,
    folder: str = PACK_FOLDER,
    others: Mapping[str, Path] | None = None,
    kernels: Sequence[str] = KERNELS,
) -> Iterator[ComfyServer]:
    """Start ComfyUI on the CPU with float32 everywhere, with our pack or without, and stop it in the end.

    Args:
        host: The checkout.
        models: Folder with `MODEL_FOLDERS`.
        base: An empty folder for custom_nodes, output, user and so on.
        with_pack: Whether our pack is in custom_nodes; the probe always is.
        folder: Name of our folder there.
        others: More packs: the name of each, and its folder.
        kernels: Start options of attention and convolutions.
    """
    make_base(base)
    packs = {**(others or {}), **({folder: pack_folder()} if with_pack else {})}
    for name, source in packs.items():
        link_folder(source, base / "custom_nodes" / name)
    with serving(host, models, base, kernels) as server:
        yield server


def make_base(base: Path) -> None:
    """Make the folders in which a server keeps what is its user's, with the probe in custom_nodes."""
    for name in ("custom_nodes", "input", "output", "temp", "user", "models"):
        (base / name).mkdir(parents=True)
    link_folder(TESTS / "comfy_probe", base / "custom_nodes" / "weighted_clip_probe")


@contextmanager
def serving(host: Host, models: Path, base: Path, kernels: Sequence[str] = KERNELS) -> Iterator[ComfyServer]:
    """Start ComfyUI as `running_server` does, on folders that are there, and stop it in the end."""
    paths = base / "model_paths.yaml"  # JSON is YAML too
    paths.write_text(json.dumps({"tests": {"base_path": str(models), **{name: name for name in MODEL_FOLDERS}}}))
    port, log = free_port(), base / "server.log"
    command = [
        *(str(host.python), "main.py", "--cpu", "--listen", "127.0.0.1", "--port", str(port)),
        *("--base-directory", str(base), "--extra-model-paths-config", str(paths)),
        *("--force-fp32", "--fp32-text-enc", *kernels),
        *("--disable-api-nodes", "--disable-auto-launch"),
        *("--database-url", "sqlite:///:memory:"),
    ]
    if (front_end := front_end_folder()) is not None:
        command += ["--front-end-root", str(front_end)]
    with started(command, log, folder=host.folder, environment=_environment()) as process:
        server = ComfyServer(port, log, process, host, base)
        server.wait(lambda: server.answers("/system_stats"), START_SECONDS, "no server")
        yield server


def make_models(host: Host, cache: Path) -> Path:
    """The folder with the seeded models, made with this host if it is not there yet; small files are written anew."""
    models = cache / f"models-{CACHE_VERSION}"
    if not (models / "complete").exists():
        run_script(host, TESTS / "make_checkpoint.py", models)
        (models / "complete").touch()
    write_more_embeddings(models)
    return models


# Messages to the page: progress and previews, over a WebSocket (RFC 6455)

_TEXT, _BINARY, _CLOSE = 1, 2, 8
_PREVIEW = 1
"""Number of a picture event; it is followed by that of the format, then by the file."""
_KEY = "MDEyMzQ1Njc4OWFiY2RlZg=="


@dataclass
class Messages:
    """Messages so far."""

    events: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    """Types of the messages in words, with their data."""
    previews: list[Image.Image] = field(default_factory=list)
    """The pictures."""
    has_begun: threading.Event = field(default_factory=threading.Event)
    """Set by the first progress."""

    def progress(self, node_id: str) -> list[tuple[int, int]]:
        """Value and end of each progress of a node."""
        told = (data for kind, data in self.events if kind == "progress")
        return [(data["value"], data["max"]) for data in told if data["node"] == node_id]

    def _add(self, kind: int, data: bytes) -> None:
        if kind == _TEXT:
            message = json.loads(data)
            self.events.append((message["type"], message["data"]))
            if message["type"] == "progress":
                self.has_begun.set()
        elif kind == _BINARY and int.from_bytes(data[:4], "big") == _PREVIEW:
            picture = Image.open(io.BytesIO(data[8:]))
            picture.load()
            self.previews.append(picture)


@contextmanager
def listening(port: int, client: str) -> Iterator[Messages]:
    """Receive what a server tells a client, in a thread of its own.

    Args:
        port: Port of the server on this machine.
        client: The client's id, as in the prompts it queues.
    """
    messages = Messages()
    with socket.create_connection(("127.0.0.1", port), 60) as connection, connection.makefile("rb") as stream:
        connection.sendall(
            f"GET /ws?clientId={client} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nUpgrade: websocket\r\n"
            f"Connection: Upgrade\r\nSec-WebSocket-Key: {_KEY}\r\nSec-WebSocket-Version: 13\r\n\r\n".encode()
        )
        status = stream.readline()
        assert b" 101 " in status, status
        while stream.readline() != b"\r\n":
            pass
        connection.settimeout(None)
        thread = threading.Thread(target=_receive, args=(stream, messages), daemon=True)
        thread.start()
        try:
            yield messages
        finally:
            connection.shutdown(socket.SHUT_RDWR)
            thread.join(10)


def _receive(stream: io.BufferedReader, messages: Messages) -> None:
    """Read frames until there are no more; a server's are not masked."""
    kind, data = 0, b""
    while len(head := stream.read(2)) == 2:
        length = head[1] & 127
        if length >= 126:
            length = int.from_bytes(stream.read(2 if length == 126 else 8), "big")
        part = stream.read(length)
        code = head[0] & 15
        if code == _CLOSE:
            return
        if code > _CLOSE:
            continue  # a ping
        kind, data = code or kind, data + part if code == 0 else part
        if head[0] & 128:
            messages._add(kind, data)
