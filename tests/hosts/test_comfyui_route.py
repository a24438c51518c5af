"""The token ruler's route in a real ComfyUI: what it answers, to whom, and while an image is drawn."""

from __future__ import annotations

import json
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import save_file
from weighted_clip.encoder.files.checkpoint import hugging_face_tensors, seeded_text_model
from weighted_clip.encoder.models.config import TextConfig

from .comfy_server import CHECKPOINT, LORA, ComfyServer, add_picture, with_clip

pytestmark = pytest.mark.host

PATHS = ("/weighted_clip/inspect", "/api/weighted_clip/inspect")
TEXT = "a (red:1.3) cat, [photo] and (dog)0.5 in a bowl"
MAX_BYTES = 64 * 1024


def asked(text: str, **values: Any) -> dict[str, Any]:
    """A request of the node for text, or of that for timed prompts."""
    node = "WeightedCLIPA1111Encode" if "steps" in values else "WeightedCLIPTextEncode"
    return {"node": node, "text": text, "values": values}


def ask(server: ComfyServer, path: str = PATHS[0], *, text: str, **values: Any) -> dict[str, Any]:
    """The answer to a request that is answered, once the server has time for it."""
    request = asked(text, **values)
    while (answered := server.request(path, request))[0] == 429:
        time.sleep(0.01)
    status, body = answered
    assert status == 200, body
    return json.loads(body)


def words(answer: dict[str, Any]) -> list[str]:
    """The tokens of the first view."""
    return [chip["text"] for chunk in answer["views"][0]["chunks"] for chip in chunk["chips"]]


@pytest.mark.parametrize("path", PATHS)
def test_every_syntax_and_chunk_rule_is_answered(server: ComfyServer, path: str) -> None:
    widgets = server.inputs("WeightedCLIPTextEncode")
    counts: set[int] = set()
    for syntax in widgets["syntax"][0]:
        for chunking in widgets["chunking"][0]:
            answer = ask(server, path, text=TEXT, syntax=syntax, chunking=chunking)
            assert {"red", "cat", "dog", "bowl"} <= set(words(answer)), (syntax, chunking)
            counts.add(answer["views"][0]["num_tokens"])
    assert len(counts) > 1  # what is text in one syntax is not in another


def test_a_timed_prompt_has_a_view_for_each_text(server: ComfyServer) -> None:
    answer = ask(server, text="a [cat:dog:0.5]", steps=10, counter="as written")
    assert [view["steps"] for view in answer["views"]] == [[[1, 5]], [[6, 10]]]


def test_embeddings_are_known_by_name(server: ComfyServer) -> None:
    for syntax, text in (("a1111", "a seeded-eight cat"), ("comfy", "a embedding:seeded-eight cat")):
        (view,) = ask(server, text=text, syntax=syntax)["views"]
        assert not view["issues"]
        assert any("seeded-eight" in chip["text"] for chunk in view["chunks"] for chip in chunk["chips"]), view
    (view,) = ask(server, text="a embedding:not-there cat", syntax="comfy")["views"]
    assert any("not-there" in issue["message"] for issue in view["issues"])


def test_chunks_are_as_long_as_the_text_encoders_file_says(server: ComfyServer) -> None:
    folder = server.base / "models" / "text_encoders"
    folder.mkdir(exist_ok=True)
    config = TextConfig(hidden_dim=64, num_heads=1, num_layers=2, mlp_dim=64, context_length=248)
    save_file(hugging_face_tensors(seeded_text_model(config)), folder / "long.safetensors")
    for files, chunks in ((["text_encoders/long.safetensors"], [(100, 246)]), ([], [(75, 75), (25, 75)])):
        status, body = server.request(PATHS[0], {**asked("cat " * 100), "files": files})
        assert status == 200, body
        (view,) = json.loads(body)["views"]
        assert [(chunk["num_tokens"], chunk["capacity"]) for chunk in view["chunks"]] == chunks


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        (b"", 400, ""),
        (b"{", 400, ""),
        (b"\xff\xfe", 400, ""),
        (b"[1]", 400, "text"),
        (b"{}", 400, "text"),
        (b"[" * 5000, 400, "deep"),
        (b'{"node": "nonsense", "text": "a", "values": {}}', 400, "WeightedCLIPTextEncode"),
        (asked(1), 400, "text"),
        (asked("a", syntax="nonsense"), 400, "a1111"),
        (asked("a", nonsense=1), 400, "nonsense"),
        (asked("a", steps=0), 400, "steps"),
        (asked("\ud800"), 400, "surrogate"),
        ({**asked("a"), "files": "a"}, 400, "files must be a list of at most 4 strings"),
        (b'{"text": "' + b"a" * MAX_BYTES + b'"}', 413, str(MAX_BYTES)),
        (asked("a," * 30_000), 400, "1024 KiB"),
    ],
    ids=lambda value: repr(value)[:30],
)
def test_what_is_no_request_is_refused_in_words(
    server: ComfyServer, path: str, body: Any, status: int, words: str
) -> None:
    answered, text = server.request(path, body)
    answer = json.loads(text)
    assert answered == status
    assert answer.keys() == {"error"}
    assert answer["error"]
    assert words in answer["error"]


def test_other_sites_are_refused_as_for_the_hosts_own_routes(server: ComfyServer) -> None:
    own = {"Origin": f"http://127.0.0.1:{server.port}"}
    for path, data in (*((path, asked("a")) for path in PATHS), ("/queue", {})):
        assert server.request(path, data, own)[0] == 200
        assert server.request(path, data, {"Origin": "http://example.com"})[0] == 403
    assert server.request(PATHS[0])[0] in (404, 405)  # GET


def test_many_requests_at_once(server: ComfyServer) -> None:
    def one(number: int) -> list[str]:
        return words(ask(server, text=f"cat{number} (dog:1.2) " * 20, syntax="a1111"))

    with ThreadPoolExecutor(100) as pool:
        answers = list(pool.map(one, range(100)))
    assert answers == [one(number) for number in range(100)]


def test_of_long_requests_at_once_two_are_read_and_the_others_refused_in_words(server: ComfyServer) -> None:
    with ThreadPoolExecutor(40) as pool:
        answers = list(pool.map(lambda _: server.request(PATHS[0], asked("a," * 30_000)), range(40)))
    messages = {status: json.loads(body)["error"] for status, body in answers}
    assert messages.keys() == {400, 429}
    assert messages[429] == "2 prompts are being read: ask again"
    assert words(ask(server, text="a cat")) == ["a", "cat"]


def test_it_answers_while_an_image_is_drawn(server: ComfyServer) -> None:
    ask(server, text=TEXT)
    graph, clip = with_clip()
    add_picture(graph, server.add_ours(graph, "WeightedCLIPTextEncode", clip=clip, text=TEXT), seed=77)
    prompt_id = server.queue(graph)
    num_answers = 0
    while True:
        ask(server, text=TEXT)
        running = [one[1] for one in server.get("/queue")["queue_running"]]
        if prompt_id in running:
            num_answers += 1
        elif server.get(f"/history/{prompt_id}"):
            break
        time.sleep(0.05)
    server.result(prompt_id)
    assert num_answers > 3


def convert_request(**changed: Any) -> dict[str, Any]:
    return {"text": "a [cat]", "from": "a1111", "to": "comfy", "is_cleaned": True, **changed}


@pytest.mark.parametrize("path", ["/weighted_clip/convert", "/api/weighted_clip/convert"])
def test_a_prompt_is_converted(server: ComfyServer, path: str) -> None:
    status, body = server.request(path, convert_request(text="a [cat] BREAK b"))
    answer = json.loads(body)
    assert (status, answer["text"]) == (200, "a (cat:0.90909091) b")
    assert any("BREAK" in issue for issue in answer["issues"])
    for wrong in (
        convert_request(text=1),
        convert_request(to="none"),
        convert_request(more=1),
        [],
        convert_request(text="\ud800"),
    ):
        status, body = server.request(path, wrong)
        assert status == 400
        assert json.loads(body)["error"]


def test_generation_data_is_taken_apart(server: ComfyServer) -> None:
    path, text = "/weighted_clip/infotext", "a cat\nNegative prompt: dog\nSteps: 2, Sampler: Euler, Seed: 1"
    status, body = server.request(path, {"text": text})
    settings = {"Steps": "2", "Sampler": "Euler", "Seed": "1"}
    expected = {"prompt": "a cat", "negative": "dog", "settings": settings, "problems": [], "writer": ""}
    assert status == 200
    assert json.loads(body).items() >= expected.items()
    for wrong in ({"text": 1}, {"text": "a", "more": 1}, [], {"text": "\ud800"}):
        status, body = server.request(path, wrong)
        assert (status, list(json.loads(body))) == (400, ["error"])
    assert server.request(path, {"text": "x" * 70000})[0] == 413


SETTINGS = "Steps: 2, Sampler: Euler, CFG scale: 7, Seed: 1, Size: 64x64"


def files_of(server: ComfyServer, text: str) -> tuple[int, dict[str, Any]]:
    """The answer about files that generation data names, once the server has time for it."""
    while (answered := server.request("/weighted_clip/picture", {"text": text}))[0] == 429:
        time.sleep(0.01)
    return answered[0], json.loads(answered[1])


def test_files_of_a_picture_are_looked_for(server: ComfyServer) -> None:
    model, lora, embedding = Path(CHECKPOINT).stem, Path(LORA).stem, "seeded-embedding"
    there = f"a <lora:{lora}:1> {embedding}\n{SETTINGS}, Model: {model}, TI: {embedding}"
    assert files_of(server, there) == (200, {"checkpoint": CHECKPOINT, "missing": []})
    status, answer = files_of(server, f"a <lora:ink:1>\n{SETTINGS}, Model: other, TI: badhands")
    assert (status, answer["checkpoint"]) == (200, "")
    assert [line.split(":")[0] for line in answer["missing"]] == ["Model", "LoRA", "TI"]
    assert all("models" in line or "embeddings" in line for line in answer["missing"])


@pytest.mark.parametrize(
    "name", ["../../etc/passwd", "/etc/passwd", "a\\..\\b", "<img src=x>", "\x01", ".", "", "x" * 20_000]
)
def test_names_of_strangers_lead_to_no_file(server: ComfyServer, name: str) -> None:
    quoted = json.dumps(name)
    status, answer = files_of(server, f"a\n{SETTINGS}, Model: {quoted}, TI: {quoted}, TI hashes: {quoted}")
    assert (status, answer["checkpoint"]) == (200, "")
    assert all(len(line) < 1000 for line in answer["missing"])
    status, answer = files_of(server, f"a <lora:{name}:1>\n{SETTINGS}")
    assert status == 200


def test_requests_about_pictures_that_are_none_are_refused(server: ComfyServer) -> None:
    for wrong in ({"text": 1}, {"text": None}, {"text": "a", "more": 1}, [], "a", {"text": "\ud800"}, {}):
        status, body = server.request("/weighted_clip/picture", wrong)
        assert (status, list(json.loads(body))) == (400, ["error"])
    for text in (
        "a cat",
        "a\nSteps: 2",
        f"a\n{SETTINGS.replace('Euler', 'Restart')}",
        f"a AND b:{'9' * 400}\n{SETTINGS}",
    ):
        status, answer = files_of(server, text)
        assert (status, list(answer)) == (400, ["error"])
        assert len(answer["error"]) < 1000
    assert server.request("/weighted_clip/picture", {"text": "x" * 70000})[0] == 413


def test_pictures_asked_about_at_once_are_all_answered(server: ComfyServer) -> None:
    text = f'a {"<lora:ink:1>" * 1000}\n{SETTINGS}, TI hashes: "{", ".join(f"e{i}: 00" for i in range(2000))}"'
    start = time.monotonic()
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda _: files_of(server, text), range(8)))
    assert {status for status, _ in answers} == {200}
    assert all(len(answer["missing"]) <= 20 for _, answer in answers)
    assert time.monotonic() - start < 60
