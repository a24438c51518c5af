"""Files that a request to the stand-alone lab names in place of a value: none is copied to where it can be fetched."""

from __future__ import annotations

import asyncio
import encodings.idna  # noqa: F401 - by the client, which may not read it any more
import http.client
import json
import os
import re
import traceback
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import pytest
from PIL import Image
from weighted_clip.encoder.models.config import TextConfig
from weighted_clip.web.lab.native import Settings, Shelf, random_model
from weighted_clip.web.lab.tabs.image_tokens import TokenLab
from weighted_clip.web.lab.tabs.text_to_image import TextToImageLab

from ..dalle.models import palette_dvae
from ..patience import SECONDS
from .conftest import PRIOR, dalle_of

pytest.importorskip("gradio", reason="gradio is not installed: python run.py test installs it")

import gradio as gr
from gradio.context import LocalContext
from gradio.state_holder import SessionState
from weighted_clip.web.lab.page import build_page

WORDS = "known to its owner alone"
NOBODY = 65534
META = {"meta": {"_type": "gradio.FileData"}}
FORMS: dict[str, Callable[[str], Any]] = {
    "a file": lambda path: {"path": path, **META},
    "in a list": lambda path: [{"path": path, **META}],
    "deep in lists": lambda path: [["a"], [[{"path": path, **META}]]],
    "in an object": lambda path: {"value": {"path": path, **META}},
    "in a file's object": lambda path: {"path": {"path": path, **META}, **META},
    "in what says that it is one": lambda path: {"path": "", "meta": {"_type": "", "one": {"path": path, **META}}},
    "a stream": lambda path: {"path": path, "is_stream": True, "url": None, "orig_name": "a.png", **META},
    "without what says that it is one": lambda path: {"path": path},
    "by a way through the folder": lambda path: {"path": f"{os.environ['GRADIO_TEMP_DIR']}/../{path}", **META},
    "of another server": lambda path: {"path": f"http://127.0.0.1:9/{quote(path)}", **META},
    "as an address": lambda path: {"path": f"file://{path}", **META},
    "with a NUL": lambda path: {"path": f"{path}\0", **META},
}
"""Ways to name a file in a value."""


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[gr.Blocks]:
    """The stand-alone lab's page with all of its tabs."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GRADIO_TEMP_DIR", str(tmp_path_factory.mktemp("uploads")))
        config = TextConfig(hidden_dim=64, num_heads=1, num_layers=2, mlp_dim=64)
        shelf = Shelf(random_model(Settings(), config=config), "random weights", Settings(), {})
        yield build_page(
            shelf.source,
            image_tokens=TokenLab(palette_dvae()),
            text_to_image=TextToImageLab(dalle_of(PRIOR)),
            is_alone=True,
            shelf=shelf,
        )


def inputs_of(page: gr.Blocks) -> list[tuple[Any, int]]:
    """Every input of every handler, but those that gradio takes from the session; one event of each handler."""
    handlers = {
        (listener.fn, tuple(map(id, listener.inputs))): listener for listener in page.fns.values() if listener.fn
    }
    return [
        (listener, index)
        for listener in handlers.values()
        for index, part in enumerate(listener.inputs)
        if not part.stateful
    ]


def refusals(page: gr.Blocks, value: Any, inputs: list[tuple[Any, int]]) -> set[str]:
    """Messages for a value at each of some inputs; it has to be refused everywhere."""
    found: set[str] = set()

    async def ask() -> None:
        LocalContext.blocks.set(page)
        session = SessionState(page)
        for listener, index in inputs:
            values = [part.value for part in listener.inputs]
            values[index] = value
            with pytest.raises(Exception) as caught:
                await page.preprocess_data(listener, values, session)
            found.add("".join(traceback.format_exception(caught.value)))

    asyncio.run(ask())
    return found


@pytest.mark.parametrize("form", FORMS)
def test_no_input_of_any_handler_takes_a_file_that_was_not_uploaded(page: gr.Blocks, form: str, tmp_path: Path) -> None:
    secret = tmp_path / "secret.txt"
    secret.write_text(WORDS, encoding="utf-8")
    inputs = inputs_of(page)
    assert len(inputs) > 200
    kinds = {type(listener.inputs[index]).__name__ for listener, index in inputs}
    assert {"Textbox", "Dropdown", "Radio", "CheckboxGroup", "Slider", "Number", "File", "Image"} <= kinds
    refusals(page, FORMS[form](str(secret)), inputs)
    assert [*Path(os.environ["GRADIO_TEMP_DIR"]).rglob("*.txt")] == []


@pytest.mark.parametrize("form", ["a file", "in a list", "in an object", "without what says that it is one"])
def test_an_uploaded_file_in_place_of_another_value_is_refused_without_its_folder(page: gr.Blocks, form: str) -> None:
    folder = Path(os.environ["GRADIO_TEMP_DIR"])
    uploaded = folder / "0123" / "mine.png"
    uploaded.parent.mkdir(exist_ok=True)
    Image.new("RGB", (8, 8)).save(uploaded)
    inputs = [one for one in inputs_of(page) if not isinstance(one[0].inputs[one[1]], (gr.File, gr.Image))]
    messages = refusals(page, FORMS[form](str(uploaded)), inputs)
    assert messages
    assert [one for one in messages if str(folder) in one or "0123" in one] == []


def test_an_uploaded_picture_is_taken(page: gr.Blocks) -> None:
    uploaded = Path(os.environ["GRADIO_TEMP_DIR"]) / "mine.png"
    Image.new("RGB", (8, 8)).save(uploaded)
    given = {"path": str(uploaded), **META}

    async def taken(listener: Any, index: int) -> Any:
        LocalContext.blocks.set(page)
        values = [part.value for part in listener.inputs]
        values[index] = [given] if isinstance(listener.inputs[index], gr.File) else given
        return (await page.preprocess_data(listener, values, SessionState(page)))[index]

    several = [one for one in inputs_of(page) if getattr(one[0].inputs[one[1]], "elem_id", "").endswith("_pictures")]
    pictures = [one for one in inputs_of(page) if isinstance(one[0].inputs[one[1]], gr.Image)]
    assert several
    assert len(pictures) == 2
    assert [asyncio.run(taken(*one))[0] for one in several] == [str(uploaded)] * len(several)
    assert [asyncio.run(taken(*one))["path"] for one in pictures] == [str(uploaded)] * 2


# --- as a program of another user


class Client:
    """A program that knows the lab's address."""

    def __init__(self, address: str) -> None:
        _, self.netloc, self.root, *_ = urlsplit(address.rstrip("/"))
        self.config = json.loads(self.ask("GET", "/config"))

    def ask(self, method: str, path: str, body: bytes | None = None, kind: str = "application/json") -> bytes:
        """Body of an answer, whatever its status."""
        with closing(http.client.HTTPConnection(self.netloc, timeout=SECONDS)) as connection:
            connection.request(method, self.root + path, body, {"Content-Type": kind})
            return connection.getresponse().read()

    def call(self, listener: dict[str, Any], values: list[Any]) -> str:
        """All that is said of a call of a handler."""
        session = uuid.uuid4().hex
        event = {"data": values, "fn_index": listener["id"], "session_hash": session}
        joined = self.ask("POST", "/gradio_api/queue/join", json.dumps(event).encode()).decode()
        if "event_id" not in joined:
            return joined
        with closing(http.client.HTTPConnection(self.netloc, timeout=SECONDS)) as connection:
            connection.request("GET", f"{self.root}/gradio_api/queue/data?session_hash={session}")
            lines: list[str] = []
            for line in connection.getresponse():
                lines.append(line.decode())
                if "process_completed" in lines[-1] or "close_stream" in lines[-1]:
                    break
            return "".join(lines)

    def each_kind(self) -> Iterator[tuple[dict[str, Any], list[Any], int]]:
        """A handler for each kind of component, its first values, and the place of that component."""
        parts = {one["id"]: one for one in self.config["components"]}
        seen: set[str] = set()
        for listener in self.config["dependencies"]:
            for index, number in enumerate(listener["inputs"]):
                if listener["backend_fn"] and parts[number]["type"] not in {"state", *seen}:
                    seen.add(parts[number]["type"])
                    yield listener, [parts[one]["props"].get("value") for one in listener["inputs"]], index

    def upload(self, name: str, data: bytes) -> str:
        """Path of a file after its upload."""
        head = f'--b\r\nContent-Disposition: form-data; name="files"; filename="{name}"\r\n\r\n'.encode()
        kind = "multipart/form-data; boundary=b"
        return json.loads(self.ask("POST", "/gradio_api/upload", head + data + b"\r\n--b--\r\n", kind))[0]


def fetched(address: str, secret: str) -> dict[str, Any]:
    """Content of a file as far as a program of this user gets it, and the temporary paths that it is told."""
    client = Client(address)
    answers: dict[str, str] = {}
    for listener, values, index in client.each_kind():
        values[index] = {"path": secret, **META}
        answers[f"{listener['api_name']} {index}"] = client.call(listener, values)
    paths = {path for text in answers.values() for path in re.findall(r"/[^\s'\"\\]*secret\.txt", text)} | {secret}
    files = [client.ask("GET", f"/gradio_api/file={quote(path)}").decode("utf-8", "replace") for path in sorted(paths)]
    try:
        directly = Path(secret).read_text(encoding="utf-8")
    except OSError:
        directly = ""
    return {"directly": directly, "files": files, "paths": sorted(paths - {secret}), "answers": answers}


def as_nobody(function: Callable[..., Any], *arguments: Any) -> Any:
    """Result of a function in a process of another user."""
    if not hasattr(os, "geteuid") or os.geteuid() != 0:
        pytest.skip("only root may act as another user")
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.setgroups([])
            os.setgid(NOBODY)
            os.setuid(NOBODY)
            result = json.dumps([os.geteuid(), function(*arguments)])
        except BaseException:
            result = json.dumps([None, traceback.format_exc()])
        with os.fdopen(writing, "w", encoding="utf-8") as pipe:
            pipe.write(result)
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, encoding="utf-8") as pipe:
        user, result = json.loads(pipe.read())
    os.waitpid(child, 0)
    assert user == NOBODY, result
    return result


@pytest.fixture
def secret(tmp_path: Path) -> str:
    """A file that only its owner can read."""
    path = tmp_path / "secret.txt"
    path.write_text(WORDS, encoding="utf-8")
    path.chmod(0o600)
    return str(path)


def test_another_user_who_knows_the_address_gets_no_file_of_the_labs_user(small_lab: str, secret: str) -> None:
    found = as_nobody(fetched, small_lab, secret)
    assert found["directly"] == ""
    assert len(found["answers"]) == 8
    assert [one for one in found["files"] if WORDS in one] == []
    assert found["paths"] == []


def test_another_user_who_does_not_know_the_secret_gets_nothing_at_all(small_lab: str) -> None:
    def ask(address: str) -> list[list[Any]]:
        netloc, found = urlsplit(address).netloc, []
        for path in ("/", "/config", "/gradio_api/info", f"/{'0' * 32}/config", "/weighted-clip/style.css"):
            with closing(http.client.HTTPConnection(netloc, timeout=SECONDS)) as connection:
                connection.request("GET", path)
                answer = connection.getresponse()
                found.append([answer.status, answer.read().decode()])
        return found

    for status, text in as_nobody(ask, small_lab):
        assert status == 403
        assert "which the lab printed" in json.loads(text)["error"]


@pytest.mark.parametrize(
    ("handler", "name", "data"),
    [
        ("encode", "broken.png", b"no picture"),
        ("encode", "picture.eps", b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\nshowpage\n"),
        ("draw", "broken.png", b"\x89PNG\r\n\x1a\n" + bytes(30)),
        ("rank", "broken.png", b"no picture"),
        ("_drop", "broken.safetensors", b"no safetensors file"),
    ],
)
def test_a_broken_upload_is_told_by_its_name_alone(small_lab: str, handler: str, name: str, data: bytes) -> None:
    client = Client(small_lab)
    listener = next(one for one in client.config["dependencies"] if one["api_name"] == handler)
    parts = {one["id"]: one for one in client.config["components"]}
    path = client.upload(name, data)
    values = [parts[one]["props"].get("value") for one in listener["inputs"]]
    for index, number in enumerate(listener["inputs"]):
        if parts[number]["type"] in ("image", "file"):
            file = {"path": path, "orig_name": name, **META}
            values[index] = [file] if parts[number]["props"].get("file_count") == "multiple" else file
        elif parts[number]["props"].get("elem_id") == "weighted_clip_caption":
            values[index] = "a small red ring"
    told = client.call(listener, values)
    assert f"{name}: " in told
    assert Path(path).name == name
    assert str(Path(path).parent.parent) not in told
