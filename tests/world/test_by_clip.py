"""Weights measured in the pictures of a ComfyUI by a CLIP: numbers, what is found and what is not, and bad answers."""

from __future__ import annotations

import hashlib
import io
import json
import math
import re
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import numpy as np
import pytest
import torch
from PIL import Image
from weighted_clip.commands import comfy_http
from weighted_clip.commands.images import text_features_of
from weighted_clip.commands.program import main
from weighted_clip.encoder.clip import load_full_clip
from weighted_clip.encoder.config import TextConfig, VisionConfig
from weighted_clip.encoder.files.checkpoint import seeded_text_model, seeded_vision_model
from weighted_clip.encoder.images import image_features
from weighted_clip.nodes.node import NODES
from weighted_clip.world.by_clip import PROMPTS, WEIGHTS, Marked, beyond_chance, check_prompts, marked, sureness

from ..transformers_clip import write_clip

SIDE = 28
TEXT = TextConfig(hidden_dim=64, num_heads=1, num_layers=2, mlp_dim=64, projection_dim=32)
VISION = VisionConfig(image_size=SIDE, hidden_dim=64, num_heads=1, num_layers=2, mlp_dim=64, projection_dim=32)
CHECKPOINTS = ["one.safetensors"]
OURS = ("WeightedCLIPTextEncode", "WeightedCLIPMaskedBlend", "WeightedCLIPWeighAttention")
NUM_PICTURES = len(PROMPTS) * (1 + 2 * (len(WEIGHTS) - 1))
"""Pictures of two ways with one seed."""


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny whole CLIP with seeded weights."""
    path = tmp_path_factory.mktemp("clip") / "clip.safetensors"
    return write_clip(path, seeded_text_model(TEXT), seeded_vision_model(VISION), 100.0)


def noise(*of: object) -> np.ndarray:
    """Random pixels, the same for the same values."""
    seed = int.from_bytes(hashlib.sha256(repr(of).encode()).digest()[:4], "big")
    return np.random.default_rng(seed).random((SIDE, SIDE, 3))


@pytest.fixture(scope="module")
def seen(clip: Path) -> dict[str, np.ndarray]:
    """For each phrase, of many pictures the one in which the CLIP sees it most."""
    model = load_full_clip(clip)
    pool = [0.4 * noise(number) + 0.6 * noise(number).mean((0, 1)) for number in range(200)]
    pictures = [Image.fromarray((255 * pixels).astype(np.uint8)) for pixels in pool]
    features = image_features(model, pictures)
    phrases = [prompt.phrase for prompt in PROMPTS]
    texts = torch.stack([text_features_of(model, phrase, "none").vector for phrase in phrases])
    best = (100 * texts @ features.T).softmax(0).argmax(1).tolist()
    return {phrase: pool[index] for phrase, index in zip(phrases, best, strict=True)}


class Fake:
    """Answers of a ComfyUI, with pictures made by a function of text and seed."""

    def __init__(self, draw: Callable[[str, int], np.ndarray]) -> None:
        self.draw = draw
        self.graphs: list[dict[str, Any]] = []
        self.deleted: list[str] = []
        self.instead: dict[str, Callable[[], tuple[int, bytes, dict[str, str]]]] = {}
        """Other answers, by the beginning of the path."""
        self.address = ""

    def answer(self, path: str, data: Any) -> tuple[int, bytes, dict[str, str]]:
        parts = urlsplit(path)
        for start, instead in self.instead.items():
            if parts.path.startswith(start):
                return instead()
        name = parts.path.rsplit("/", 1)[-1]
        if parts.path.startswith("/object_info/"):
            return told(self.described(name))
        if parts.path == "/prompt":
            self.graphs.append(data["prompt"])
            return told({"prompt_id": f"job-{len(self.graphs) - 1}"})
        if parts.path.startswith("/history/"):
            image = {"filename": f"{name}.png", "subfolder": "", "type": "temp"}
            return told({name: {"status": {"status_str": "success"}, "outputs": {"7": {"images": [image]}}}})
        if parts.path == "/queue":
            self.deleted += data["delete"] if data else []
            return told({"queue_running": [], "queue_pending": []})
        assert parts.path == "/view"
        number = int(re.findall(r"\d+", parse_qs(parts.query)["filename"][0])[0])
        graph = self.graphs[number]
        pixels = self.draw(graph["2"]["inputs"]["text"], graph["5"]["inputs"]["seed"])
        file = io.BytesIO()
        Image.fromarray((255 * pixels.clip(0, 1)).astype(np.uint8)).save(file, "PNG")
        return 200, file.getvalue(), {}

    def described(self, name: str) -> dict[str, Any]:
        if name == "CheckpointLoaderSimple":
            return {name: {"input": {"required": {"ckpt_name": [CHECKPOINTS]}}}}
        return {name: {"input": NODES[name].INPUT_TYPES()}} if name in OURS else {}  # pyright: ignore[reportAttributeAccessIssue]


def told(data: Any, status: int = 200, **headers: str) -> tuple[int, bytes, dict[str, str]]:
    return status, data if isinstance(data, bytes) else json.dumps(data).encode(), headers


class Handler(BaseHTTPRequestHandler):
    fake: Fake

    def do_GET(self) -> None:
        self._answer(None)

    def do_POST(self) -> None:
        self._answer(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

    def _answer(self, data: Any) -> None:
        status, body, headers = self.fake.answer(self.path, data)
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Write nothing."""


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Callable[[str, int], np.ndarray]], Fake]]:
    """Starts a fake ComfyUI."""
    monkeypatch.setattr(comfy_http, "POLL_SECONDS", 0.001)
    servers: list[ThreadingHTTPServer] = []

    def start(draw: Callable[[str, int], np.ndarray]) -> Fake:
        fake = Fake(draw)
        server = ThreadingHTTPServer(("127.0.0.1", 0), type("Own", (Handler,), {"fake": fake}))
        servers.append(server)
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        fake.address = f"http://127.0.0.1:{server.server_port}"
        return fake

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


@pytest.fixture
def grey(serve: Callable[..., Fake]) -> Fake:
    """A ComfyUI whose pictures are all the same."""
    return serve(lambda text, seed: np.full((SIDE, SIDE, 3), 0.5))


def measure(fake: Fake, clip: Path, out: Path, *more: str) -> int:
    given = ["--comfy", fake.address, "--clip", str(clip), "--out", str(out), "--seeds", "1", "--size", "64"]
    return main(["world", "measure", *given, "--way", "comfy", "--way", "attention bias", *more])


def weight_in(text: str) -> tuple[str, float]:
    [(phrase, weight)] = re.findall(r"\(([^()]*):([\d.]+)\)", text)
    return phrase, float(weight)


# ---- what is found


def test_weights_that_act_are_found_with_their_direction(
    serve: Callable[..., Fake], clip: Path, seen: dict[str, np.ndarray], tmp_path: Path, capsys: Any
) -> None:
    def draw(text: str, seed: int) -> np.ndarray:
        phrase, weight = weight_in(text)
        share = min(weight, 1.0)
        return share * seen[phrase] + (1 - share) * noise(seed)

    fake = serve(draw)
    assert measure(fake, clip, tmp_path) == 0
    shown = capsys.readouterr().out
    assert f"{NUM_PICTURES} pictures to draw" in shown
    assert len(fake.graphs) == NUM_PICTURES
    report = (tmp_path / "comfy.md").read_text(encoding="utf-8")
    assert "ound nothing" not in report
    table = report.split("| Sureness of the phrase: change from weight 1 | 0 | 0.5 | 1.5 | 2 |\n")[1].splitlines()
    for row in table[1:3]:  # less at 0 and 0.5, the same above 1
        cells = row.split(" | ")[1:]
        assert cells[0].startswith("-") and cells[0].endswith("*")
        assert cells[2].strip(" |") == cells[3].strip(" |") == "+0"
    with Image.open(tmp_path / "comfy-grid.png") as grid:
        assert grid.width > len(WEIGHTS) * 128
    nodes = {graph["2"]["class_type"] for graph in fake.graphs}
    assert nodes == {"WeightedCLIPTextEncode", "WeightedCLIPWeighAttention"}
    assert {graph["2"]["inputs"]["how"] for graph in fake.graphs if "how" in graph["2"]["inputs"]} == {"bias"}


@pytest.mark.parametrize("of", ["seed", "text"])
def test_pictures_that_ignore_weights_or_words_show_nothing(
    serve: Callable[..., Fake], clip: Path, tmp_path: Path, capsys: Any, of: str
) -> None:
    fake = serve(lambda text, seed: noise(seed) if of == "seed" else noise(text, seed))
    assert measure(fake, clip, tmp_path) == 0
    assert "Found nothing" in capsys.readouterr().out
    assert "*" not in (tmp_path / "comfy.md").read_text(encoding="utf-8")


def test_a_change_of_all_pictures_alike_is_none_of_the_phrase(
    serve: Callable[..., Fake], clip: Path, tmp_path: Path, capsys: Any
) -> None:
    fake = serve(lambda text, seed: noise(seed) * (0.4 + 0.3 * weight_in(text)[1]))
    assert measure(fake, clip, tmp_path) == 0
    assert "Found nothing" in capsys.readouterr().out


# ---- numbers


def test_sureness_is_the_probability_of_the_own_text() -> None:
    rng = np.random.default_rng(0)
    texts, pictures = rng.normal(size=(4, 8)), rng.normal(size=(5, 3, 8))
    own = [0, 1, 2, 3, 1]
    found = sureness(torch.tensor(texts), own, torch.tensor(pictures), 20.0)
    for prompt in range(5):
        for seed in range(3):
            picture = pictures[prompt, seed]
            cosines = [float(text @ picture / math.hypot(*text) / math.hypot(*picture)) for text in texts]
            powers = [math.exp(20 * cosine) for cosine in cosines]
            assert found[prompt][seed] == pytest.approx(powers[own[prompt]] / sum(powers), rel=1e-6)
    with pytest.raises(ValueError, match="not finite"):
        sureness(torch.tensor(texts) * math.nan, own, torch.tensor(pictures), 20.0)


@pytest.mark.parametrize("num_prompts", [6, 14])
def test_chance_is_taken_for_an_effect_in_one_of_twenty_measurements(num_prompts: int) -> None:
    rng = np.random.default_rng(1)
    false = 0
    for _ in range(200):
        common = rng.standard_t(3, size=(num_prompts, 2))  # ways act alike
        changes = {("phrase", f"way {n}", 0.0): (common + rng.normal(size=(num_prompts, 2))).tolist() for n in range(8)}
        false += bool(beyond_chance(changes))
    assert 1 <= false <= 18  # 10 on average; more than 18 in 4 of 1,000 such tests


def test_an_effect_is_found_among_many_without_any() -> None:
    rng = np.random.default_rng(2)
    changes = {("phrase", f"way {n}", 0.0): rng.normal(size=(12, 2)).tolist() for n in range(20)}
    changes["phrase", "acts", 0.0] = rng.normal(-3, 1, size=(12, 2)).tolist()
    changes["phrase", "same", 0.0] = np.zeros((12, 2)).tolist()
    assert beyond_chance(changes) == {("phrase", "acts", 0.0)}


def test_prompts_are_read_by_their_mark() -> None:
    prompt = marked("a (blue:1.2) table, (a red cup:1) on it")
    assert prompt == Marked("a (blue:1.2) table, ", "a red cup", " on it")
    assert prompt.text(0.5) == "a (blue:1.2) table, (a red cup:0.5) on it"
    assert prompt.rest == "a (blue:1.2) table, on it"
    for line in ("a cup", "(a cup:1) and (a table:1)", "(:1) cup", "( :1) cup", "(a cup:1.0) on a table"):
        with pytest.raises(ValueError, match="marked phrases"):
            marked(line)
    check_prompts(PROMPTS)


# ---- the folder


def test_what_is_there_is_not_drawn_again_and_more_can_be_added(
    grey: Fake, clip: Path, tmp_path: Path, capsys: Any
) -> None:
    assert measure(grey, clip, tmp_path) == 0
    report = (tmp_path / "comfy.md").read_bytes()
    grey.graphs.clear()
    (tmp_path / "pictures" / "weight 1" / "003-001.png").unlink()
    assert measure(grey, clip, tmp_path) == 0
    assert len(grey.graphs) == 1
    assert grey.graphs[0]["2"]["inputs"]["text"] == PROMPTS[2].text(1)
    assert (tmp_path / "comfy.md").read_bytes() == report
    grey.graphs.clear()
    assert measure(grey, clip, tmp_path, "--way", "masked_blend nested remove") == 0
    assert len(grey.graphs) == len(PROMPTS) * (len(WEIGHTS) - 1)
    choices = {"law": "nested", "mask_method": "remove", "syntax": "comfy"}
    assert choices.items() <= grey.graphs[0]["2"]["inputs"].items()
    capsys.readouterr()
    assert measure(grey, clip, tmp_path, "--steps", "21") == 1
    assert "(steps: 20, now 21)" in capsys.readouterr().err


@pytest.mark.parametrize("left", ["points", "pictures", "comfy.json"])
def test_the_folder_of_another_measurement_is_refused(
    grey: Fake, clip: Path, tmp_path: Path, capsys: Any, left: str
) -> None:
    (tmp_path / left).write_text("[" * 100_000, encoding="utf-8")
    assert measure(grey, clip, tmp_path) == 1
    assert "choose another folder" in capsys.readouterr().err
    assert not grey.graphs


def test_ctrl_c_keeps_what_is_drawn_and_takes_the_next_out_of_the_queue(
    grey: Fake, clip: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(_: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(comfy_http.time, "sleep", stop)
    history = grey.answer

    def answer(path: str, data: Any) -> Any:
        return told({}) if path == "/history/job-3" else history(path, data)

    monkeypatch.setattr(grey, "answer", answer)
    assert measure(grey, clip, tmp_path) == 130
    assert grey.deleted == ["job-3"]
    assert len(list((tmp_path / "pictures").rglob("*.png"))) == 3
    monkeypatch.undo()
    assert measure(grey, clip, tmp_path) == 0


# ---- bad input


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--quick"], "--quick and --comfy are two measurements"),
        (["world.safetensors"], "the world world.safetensors and --comfy"),
        (["--seeds", "0"], "--seeds must be from 1 to 100, got 0"),
        (["--size", "65"], "multiple of 8, got 65"),
        (["--steps", "0"], "--steps must be from 1 to 1,000"),
        (["--guidance", "nan"], "--guidance must be from 0 to 100, got nan"),
        (["--way", "comfyui"], "--way 'comfyui' is unknown; known are: comfy, "),
        (["--checkpoint", "two"], "has none of this name; it has: one.safetensors"),
        (["--prompts", "nowhere.txt"], "there is no such file"),
        (["--clip", "nowhere.safetensors"], "nowhere.safetensors"),
        (["--comfy", "localhost:8188"], "'localhost:8188' is no address of a ComfyUI"),
        (["--comfy", "file:///etc/passwd"], "is no address"),
        (["--comfy", "http://a b"], "is no address"),
        (["--comfy", "http://me:secret@127.0.0.1"], "is no address"),
        (["--comfy", "http://127.0.0.1:99999"], "is no address"),
        (["--comfy", "http://127.0.0.1:1"], "http://127.0.0.1:1 does not answer"),
    ],
)
def test_bad_options_are_refused_in_words(
    grey: Fake, clip: Path, tmp_path: Path, capsys: Any, more: list[str], message: str
) -> None:
    assert measure(grey, clip, tmp_path / "out", *more) == 1
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
    assert not grey.graphs


def test_options_for_comfyui_are_refused_without_it(clip: Path, tmp_path: Path, capsys: Any) -> None:
    for given in (["--clip", str(clip)], ["--seeds", "3"], ["--way", "comfy"], ["--device", "cuda"]):
        assert main(["world", "measure", "--out", str(tmp_path / "out"), *given]) == 1
        assert f"{given[0]} counts with --comfy URL only" in capsys.readouterr().err
    assert main(["world", "measure", "--comfy", "http://127.0.0.1:1", "--out", str(tmp_path / "out")]) == 1
    assert "--comfy needs --clip FILE" in capsys.readouterr().err


def test_prompts_of_a_file(grey: Fake, clip: Path, tmp_path: Path, capsys: Any) -> None:
    file = tmp_path / "prompts.txt"
    lines = [f"({color} cup:1) on a table" for color in ("red", "blue", "green", "white", "black", "brown")]
    file.write_text("\n\n".join(lines), encoding="utf-8")
    assert measure(grey, clip, tmp_path / "out", "--prompts", str(file)) == 0
    assert {graph["2"]["inputs"]["text"].split(" on ")[0] for graph in grey.graphs} >= {"(red cup:0)", "(blue cup:2)"}
    for bad, message in (
        (["a cup", *lines], "prompts.txt:1: 'a cup' has 0 marked phrases"),
        (lines[1:], "prompts.txt: there are 5 prompts, and at least 6"),
        ([*lines, "(Red cup:1) in a hand"], "the phrase 'red cup' is in two prompts"),
    ):
        file.write_text("\n".join(bad), encoding="utf-8")
        assert measure(grey, clip, tmp_path / "out", "--prompts", str(file)) == 1
        assert message in capsys.readouterr().err


def test_a_clip_without_its_image_half_is_refused_before_anything_is_drawn(
    grey: Fake, clip: Path, tmp_path: Path, capsys: Any
) -> None:
    from safetensors.torch import load_file, save_file

    half = tmp_path / "half.safetensors"
    save_file({key: tensor for key, tensor in load_file(clip).items() if key.startswith("text")}, half)
    assert measure(grey, half, tmp_path / "out") == 1
    assert "no CLIP image encoder in it" in capsys.readouterr().err
    assert not grey.graphs


ERROR = {"node_type": "KSampler", "exception_message": "out of memory"}
DONE = {"status_str": "success", "messages": []}
REFUSED = {"errors": [{"message": "Value not in list", "details": "scheme: 'new'"}], "class_type": OURS[0]}


@pytest.mark.parametrize(
    ("path", "answer", "message"),
    [
        ("/object_info/CheckpointLoaderSimple", told({}), "is no ComfyUI, or has no node CheckpointLoaderSimple"),
        ("/object_info", told(b"<html>hello</html>"), "is no ComfyUI, or one of an unknown kind: it answered"),
        ("/object_info", told(b"[" * 50_000), "no JSON"),
        ("/object_info", told({}, 404), "status 404"),
        ("/object_info", told([1]), "has no node CheckpointLoaderSimple"),
        ("/object_info", told(b"", 302, Location="http://example.org/"), "a redirect to 'http://example.org/'"),
        ("/object_info", told(b"x" * 100_001), "more than 100,000 bytes"),
        ("/object_info/Weighted", told({}), "install Weighted CLIP there"),
        ("/object_info/Weighted", told({OURS[0]: {"input": None}}), "other data than ComfyUI's"),
        ("/prompt", told({"node_errors": {"2": REFUSED}}, 400), "Value not in list (scheme: 'new')"),
        ("/prompt", told({"error": {"message": "no prompt"}, "node_errors": {}}, 400), "no prompt"),
        ("/prompt", told({"prompt": math.nan}), "other data than ComfyUI's"),
        ("/prompt", told([math.nan], 400), "other data than ComfyUI's"),
        (
            "/history",
            told({"job-0": {"status": {"status_str": "error", "messages": [["execution_error", ERROR]]}}}),
            "the node KSampler failed: out of memory",
        ),
        ("/history", told({"job-0": {"status": {"status_str": "error", "messages": []}}}), "was interrupted"),
        ("/history", told({"job-0": {"status": None}}), "other data than ComfyUI's"),
        ("/history", told({"job-0": {"status": DONE, "outputs": {"7": {"images": []}}}}), "other data than ComfyUI's"),
        ("/history", told({}), "no longer knows the workflow"),
        ("/view", told(b"no picture"), "no image of a kind that is read"),
        ("/view", told(b"", 404), "status 404"),
    ],
)
def test_odd_answers_are_told_in_words(
    grey: Fake, clip: Path, tmp_path: Path, monkeypatch: Any, capsys: Any, path: str, answer: Any, message: str
) -> None:
    monkeypatch.setattr(comfy_http, "MAX_REPLY", 100_000)
    grey.instead[path] = lambda: answer
    assert measure(grey, clip, tmp_path / "out") == 1
    told_words = capsys.readouterr().err
    assert message in told_words
    assert "Traceback" not in told_words
    assert not list((tmp_path / "out").rglob("*.png"))


def test_several_checkpoints_are_listed(
    grey: Fake, clip: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.setattr(f"{__name__}.CHECKPOINTS", ["one.safetensors", "two.safetensors"])
    assert measure(grey, clip, tmp_path) == 1
    assert "choose one by --checkpoint NAME: one.safetensors, two.safetensors" in capsys.readouterr().err
    assert measure(grey, clip, tmp_path, "--checkpoint", "two.safetensors") == 0
    assert grey.graphs[0]["1"]["inputs"] == {"ckpt_name": "two.safetensors"}
