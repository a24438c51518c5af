"""Finds ComfyUI checkouts, runs one as a server of its own, and speaks its HTTP interface.

A server has a base directory of its own, so that nothing is written into the checkout, and listens on loopback only.
With WEIGHTED_CLIP_FRONT_END=DIR in the environment it serves the front end in that folder instead of the one that is
installed with it: a folder with an ``index.html``, or the folder into which pip put ``comfyui-frontend-package``.
With WEIGHTED_CLIP_PACK=DIR hosts are given that folder as our pack, such as the unpacked archive of a release, instead
of the repository; the tests themselves compare with the repository.
"""

from __future__ import annotations

import io
import json
import os
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from safetensors import safe_open
from weighted_clip.workshop.find_hosts import Host
from weighted_clip.workshop.job import own_environment, run_in_host

TESTS = Path(__file__).resolve().parent
REPOSITORY = TESTS.parent.parent
PACK_FOLDER = "ComfyUI weighted-clip"
"""Name of our folder in custom_nodes: neither an identifier nor a plain word."""
PROBE_FOLDERS = {"comfy_probe": "weighted_clip_probe", "comfy_probe_faults": "weighted_clip_probe_faults"}
"""Node packs for tests, and what they are called in custom_nodes."""
CACHE_FOLDER = ".weighted_clip_cache"
CACHE_VERSION = "1"
"""To be raised when make_checkpoint.py writes other numbers."""

CLIENT = "weighted-clip-tests"
"""Id of the client whose prompts these are."""
START_SECONDS = 600
PROMPT_SECONDS = 600
SCRIPT_SECONDS = 1200
CHECKPOINT = "seeded-sd15.safetensors"
LORA = "seeded-clip-lora.safetensors"
TEXT_ENCODER = "seeded-clip-l.safetensors"
"""The files of make_checkpoint.py."""
FRONT_END = "WEIGHTED_CLIP_FRONT_END"
"""The environment variable with the folder of another front end."""
PACK = "WEIGHTED_CLIP_PACK"
"""The environment variable with the folder of another copy of our pack."""
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


def pack_folder() -> Path:
    """Folder that hosts are given as our pack: the one that the environment names, or else the repository."""
    given = os.environ.get(PACK)
    if not given:
        return REPOSITORY
    folder = Path(given).resolve()
    assert (folder / "nodes" / "__init__.py").is_file(), f"{PACK}={given}: our pack is not in it"
    return folder


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


def add_picture(graph: Graph, positive: Any, *, number: int = 0, seed: int = 1) -> Node:
    """Sample a conditioning in two steps, decode and save: the SaveImage node."""
    model, clip, vae = add_checkpoint(graph, number=number)
    latent = graph.add("EmptyLatentImage", width=64, height=64, batch_size=1)
    settings = {"seed": seed, "steps": 2, "cfg": 7.0, "sampler_name": "euler", "scheduler": "normal", "denoise": 1.0}
    negative = graph.add("CLIPTextEncode", clip=clip, text="")
    samples = graph.add("KSampler", model=model, positive=positive, negative=negative, latent_image=latent, **settings)
    return graph.add("SaveImage", images=graph.add("VAEDecode", samples=samples, vae=vae), filename_prefix="test")


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
    """For each entry, what is no tensor."""

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


@dataclass
class ComfyServer:
    """A running ComfyUI."""

    host: Host
    port: int
    base: Path
    log: Path
    process: subprocess.Popen[bytes]
    count: int = field(default=0)
    """Number of files requested from the probe."""
    info: dict[str, Any] = field(default_factory=dict)
    """The server's information about node classes."""

    def request(self, path: str, data: Any = None, headers: Mapping[str, str] | None = None) -> tuple[int, bytes]:
        """GET, or POST if there is data, bytes or what is sent as JSON: the status and the body, also of an error."""
        body = data if data is None or isinstance(data, bytes) else json.dumps(data).encode()
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}{path}",
            data=body,
            headers={"Content-Type": "application/json", **(headers or {})},
        )
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with opener.open(request, timeout=60) as response:
                return response.status, response.read()
        except urllib.error.HTTPError as error:
            return error.code, error.read()

    def get(self, path: str) -> Any:
        """A JSON document of the server."""
        status, body = self.request(path)
        assert status == 200, f"GET {path}: {status}\n{self.log_tail()}"
        return json.loads(body)

    def run(self, graph: Graph) -> Result:
        """Queue a workflow and wait until it is done.

        Raises:
            PromptError: If it is refused or a node fails.
        """
        return self.result(self.queue(graph))

    def queue(self, graph: Graph) -> str:
        """Queue a workflow; its id.

        Raises:
            PromptError: If it is refused.
        """
        status, body = self.request("/prompt", {"prompt": graph.nodes, "client_id": CLIENT})
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
        history = _wait(
            lambda: self.get(path), PROMPT_SECONDS, self.alive, lambda: f"the prompt did not end\n{self.log_tail()}"
        )
        entry = history[prompt_id]
        messages = dict(entry["status"]["messages"])
        if entry["status"]["status_str"] != "success":
            raise PromptError(200, messages.get("execution_error", messages), self.log_tail())
        return Result(entry["outputs"], frozenset(messages.get("execution_cached", {}).get("nodes", ())))

    def add_ours(self, graph: Graph, class_type: str, **inputs: Any) -> Node:
        """Add a node of our pack; widgets that are not named have their defaults."""
        if class_type not in self.info:
            self.info[class_type] = self.get(f"/object_info/{class_type}")[class_type]
        described = self.info[class_type]["input"]["required"]
        defaults = {name: options["default"] for name, (_, options) in described.items() if "default" in options}
        return graph.add(class_type, **{**defaults, **inputs})

    def probe(self, graph: Graph, conditioning: Node) -> Node:
        """Add a node that saves a conditioning; its id leads `conditioning` to the file."""
        self.count += 1
        return graph.add("WeightedCLIPTestSaveConditioning", conditioning=conditioning, file=f"probe-{self.count}")

    def conditioning(self, result: Result, probe: Node) -> Conditioning:
        """Conditioning saved by a probe."""
        (path,) = result.outputs[probe.id]["conditioning"]
        with safe_open(path, "pt") as file:
            names = file.keys()  # it is no dictionary
            return Conditioning({name: file.get_tensor(name) for name in names}, json.loads(file.metadata()["entries"]))

    def picture(self, result: Result, node: Node) -> np.ndarray:
        """The pixels that SaveImage or PreviewImage wrote: ``[height, width, 3]``, bytes."""
        (image,) = result.outputs[node.id]["images"]
        status, body = self.request("/view?" + urllib.parse.urlencode(image))
        assert status == 200, f"/view: {status}"
        with Image.open(io.BytesIO(body)) as opened:
            assert opened.format == "PNG"
            return np.asarray(opened.convert("RGB"))

    def alive(self) -> bool:
        """Whether the server still runs."""
        return self.process.poll() is None

    def log_text(self) -> str:
        """All that the server wrote."""
        return self.log.read_text(encoding="utf-8", errors="replace") if self.log.exists() else ""

    def log_tail(self) -> str:
        """The last lines that the server wrote."""
        return self.log_text()[-5000:]


@contextmanager
def running_server(host: Host, models: Path, base: Path, *, with_pack: bool) -> Iterator[ComfyServer]:
    """Start ComfyUI on the CPU with float32 everywhere, with our pack or without, and stop it in the end.

    Args:
        host: The checkout.
        models: Folder with `MODEL_FOLDERS`.
        base: An empty folder for custom_nodes, output, user and so on.
        with_pack: Whether our pack is in custom_nodes; the probe always is.
    """
    make_base(base)
    if with_pack:
        link_folder(pack_folder(), base / "custom_nodes" / PACK_FOLDER)
    with serving(host, models, base) as server:
        yield server


def make_base(base: Path) -> None:
    """Make the folders in which a server keeps what is its user's, with the probes in custom_nodes."""
    for name in ("custom_nodes", "input", "output", "temp", "user", "models"):
        (base / name).mkdir(parents=True)
    for folder, name in PROBE_FOLDERS.items():
        link_folder(TESTS / folder, base / "custom_nodes" / name)


@contextmanager
def serving(host: Host, models: Path, base: Path) -> Iterator[ComfyServer]:
    """Start ComfyUI as `running_server` does, on folders that are there, and stop it in the end."""
    paths = base / "model_paths.yaml"  # JSON is YAML too
    paths.write_text(json.dumps({"tests": {"base_path": str(models), **{name: name for name in MODEL_FOLDERS}}}))
    port, log = _free_port(), base / "server.log"
    command = [
        *(str(host.python), "main.py", "--cpu", "--listen", "127.0.0.1", "--port", str(port)),
        *("--base-directory", str(base), "--extra-model-paths-config", str(paths)),
        *("--force-fp32", "--fp32-text-enc", "--force-channels-last"),  # channels last: convolutions are faster
        *("--disable-api-nodes", "--disable-auto-launch"),
        *("--database-url", "sqlite:///:memory:"),
    ]
    if (front_end := front_end_folder()) is not None:
        command += ["--front-end-root", str(front_end)]
    with log.open("wb") as stream:
        process = subprocess.Popen(
            command, cwd=host.folder, env=_environment(), stdin=subprocess.DEVNULL, stdout=stream, stderr=stream
        )
        try:
            server = ComfyServer(host, port, base, log, process)
            _wait(lambda: _is_up(server), START_SECONDS, server.alive, lambda: f"no server\n{server.log_tail()}")
            yield server
        finally:
            process.terminate()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(20)


def make_models(host: Host, cache: Path) -> Path:
    """The folder with the seeded models, made with this host if it is not there yet."""
    models = cache / f"models-{CACHE_VERSION}"
    if not (models / "complete").exists():
        run_script(host, TESTS / "make_checkpoint.py", models)
        (models / "complete").touch()
    return models


def _is_up(server: ComfyServer) -> bool:
    try:
        return server.request("/system_stats")[0] == 200
    except OSError:
        return False


def _wait(ask: Callable[[], Any], seconds: float, alive: Callable[[], bool], problem: str | Callable[[], str]) -> Any:
    """Ask until there is an answer; fail when the time is over or the process has ended."""
    end = time.monotonic() + seconds
    while time.monotonic() < end and alive():
        answer = ask()
        if answer:
            return answer
        time.sleep(0.05)
    raise AssertionError(problem if isinstance(problem, str) else problem())


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def link_folder(source: Path, target: Path) -> None:
    """Make a folder appear in another place: by a link or, where links are not allowed, as a copy."""
    try:
        target.symlink_to(source, target_is_directory=True)
    except OSError:
        ignored = shutil.ignore_patterns(".*", "__pycache__", "tests", "build", "dist")
        shutil.copytree(source, target, ignore=ignored)
