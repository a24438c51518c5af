"""The ruler's request: views out of text and options, chunks as long as files say, and messages for all else."""

import asyncio
import json
import sys
import threading
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file
from weighted_clip import NODE_CLASS_MAPPINGS
from weighted_clip.encoder.files.checkpoint import hugging_face_tensors, seeded_text_model
from weighted_clip.encoder.models.config import TextConfig
from weighted_clip.encoder.tokenizer import default_tokenizer
from weighted_clip.nodes.base import routes
from weighted_clip.web import inspection
from weighted_clip.web.inspection import (
    MAX_ANSWER,
    MAX_BYTES,
    MAX_FILES,
    MAX_VIEWS,
    RequestError,
    as_json,
    files_of,
    inspect,
    request_of,
    with_problems,
)
from weighted_clip.weighting.encoders import Encoders
from weighted_clip.weighting.options import EncodeOptions
from weighted_clip.weighting.reading.prompt_reader import read_prompt
from weighted_clip.weighting.reading.view import view
from weighted_clip.weighting.syntax import SYNTAXES
from weighted_clip.weighting.text.chunks import ChunkLayout

from ..ruler_route import NODES, Request, post, route_host


def asked(text: object, node: object = "WeightedCLIPTextEncode", **values: object) -> dict:
    """The page's request."""
    return {"node": node, "text": text, "values": values}


def texts(request: dict, **options) -> list[str]:
    (view,) = inspect(request, **options)["views"]
    return [chip["text"] for chunk in view["chunks"] for chip in chunk["chips"]]


def test_a_prompt_is_read_by_its_syntax() -> None:
    assert texts({"text": "[cat]", "syntax": "a1111"}) == ["cat"]
    assert texts({"text": "[cat]", "syntax": "comfy"}) == ["[", "cat", "]"]


def test_known_embeddings_stand_for_one_vector() -> None:
    request = {"text": "a embedding:style cat"}
    (view,) = inspect(request, embedding_names=["style"])["views"]
    assert [chip["ids"] for chip in view["chunks"][0]["chips"]] == [[320], ["style[0]"], [2368]]
    assert inspect(request, embedding_names=[])["views"][0]["issues"][0]["code"] == "unknown-embedding"
    bare = {"text": "a style cat", "syntax": "a1111"}
    assert inspect(bare, embedding_names=["style"])["views"][0]["chunks"][0]["chips"][1]["ids"] == ["style[0]"]


def test_a_timed_prompt_has_a_view_for_each_text() -> None:
    views = inspect({"text": "a [cat:dog:3]", "syntax": "a1111", "steps": 5, "counter": "as written"})["views"]
    assert [view["steps"] for view in views] == [[[1, 3]], [[4, 5]]]
    many = inspect({"text": "[" + "|".join("abcdefghijklmnopqrstuvwxyz") + "]", "steps": 100, "syntax": "a1111"})
    assert len(many["views"]) == MAX_VIEWS
    assert many["views"][-1]["num_more"] == 26 - MAX_VIEWS


def test_a_problem_of_a_part_stands_at_its_first_text() -> None:
    outside, area, lora = "[dog:wolf:9]", "AREA(0.5 1, 0.5 0.25)", "<lora:ink:1>"
    text = f"a [cat|{outside}] AND 😀 {lora} [fox|owl] {area} COUPLE(0 0.5) a hen AND {area} an emu"
    views = inspect({"text": text, "syntax": "a1111", "steps": 5, "regions": "prompt-control"})["views"]
    assert [[issue["code"] for issue in view["issues"]] for view in views] == [
        *(["edit-without-change"], [], ["lora", "area-size"], [], [], ["area-size"]),
    ]
    last = views[-1]["chunks"][0]["chips"]
    assert [(chip["text"], chip["problems"]) for chip in last] == [("an", [0]), ("emu", [])]
    many = inspect({"text": " AND ".join(["a"] * (MAX_VIEWS + 1)) + f" {lora}", "syntax": "a1111", "steps": 5})
    assert [issue["code"] for issue in many["views"][-1]["issues"]] == ["lora"]


@pytest.mark.parametrize(("room", "num_more"), [(8, 0), (7, 1), (5, 1), (4, 2), (1, 2)])
def test_texts_of_as_many_characters_as_there_is_room_for_are_shown(
    monkeypatch: pytest.MonkeyPatch, room: int, num_more: int
) -> None:
    monkeypatch.setattr(inspection, "MAX_CHARACTERS", room)
    views = inspect({"text": "ab AND cd AND ef", "syntax": "a1111", "steps": 5})["views"]  # “ab”, “ cd” and “ ef”
    assert (len(views), views[-1].get("num_more", 0)) == (3 - num_more, num_more)


def test_chips_keep_their_problems_when_one_of_the_whole_prompt_comes_first() -> None:
    def problems(as_view: dict) -> list[tuple[str, list[str]]]:
        chips = [chip for chunk in as_view["chunks"] for chip in chunk["chips"]]
        return [(chip["text"], [as_view["issues"][number]["code"] for number in chip["problems"]]) for chip in chips]

    request = {"text": "a \\cat (dog", "syntax": "a1111"}
    before = problems(inspect(request)["views"][0])
    assert any(codes for _, codes in before)
    refused = with_problems(inspect(request)["views"][0], "This is refused.")
    assert refused["issues"][0]["message"] == "This is refused."
    assert problems(refused) == before


def test_hidden_phrases_are_marked() -> None:
    (view,) = inspect({"text": "a red cat", "hide": "red"})["views"]
    assert [chip["hidden"] for chip in view["chunks"][0]["chips"]] == [False, True, False]


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        (None, 'an object with a string "text"'),
        ([], 'an object with a string "text"'),
        ({}, 'an object with a string "text"'),
        ({"text": 1}, 'an object with a string "text"'),
        ({"text": "a", "weights": 1}, "unknown field 'weights'; allowed: syntax"),
        ({"text": "a", "syntax": "latin"}, "syntax must be one of: comfy, a1111"),
        ({"text": "a", "comma_backtrack": True}, "comma_backtrack must be an integer, got True"),
        ({"text": "a", "comma_backtrack": 75}, "0 to 74 tokens, got 75"),
        ({"text": "a", "steps": 0}, "steps must be 1 to 10000, got 0"),
        ({"text": "a", "steps": 5, "counter": "backwards"}, "counter must be one of"),
        ({"text": "\ud800"}, "lone surrogate"),
        ({"text": "(a:1.2.3)", "syntax": "a1111", "strict": True}, "1.2.3"),
    ],
)
def test_bad_requests_are_refused_with_a_message(request_: object, message: str) -> None:
    with pytest.raises(RequestError) as caught:
        inspect(request_)
    assert message in str(caught.value)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=10), inner, max_size=3),
    max_leaves=6,
)
FIELDS = st.sampled_from(["text", "syntax", "chunking", "scheme", "steps", "counter", "hide", "padding", "strict"])


@given(st.dictionaries(FIELDS, JSON) | JSON)
def test_any_request_is_answered_or_refused(request_: object) -> None:
    try:
        answer = inspect(request_, ["style"])
    except RequestError:
        return
    assert json.dumps(answer)


@pytest.fixture
def host():
    with route_host(["sub/style.pt"]):
        yield


def test_the_route_answers_with_views(host) -> None:
    status, answer = post(json.dumps(asked("a style, embedding:sub/style", chunking="comfy segment")).encode())
    assert status == 200
    assert answer["views"][0]["chunks"][0]["chips"][-1]["ids"] == ["sub/style[0]"]


@pytest.mark.parametrize(
    ("body", "status", "message"),
    [
        (b"", 400, "Expecting value"),
        (b"no json", 400, "Expecting value"),
        (b'"\xff"', 400, "not UTF-8"),
        (b"[" * 60_000, 400, ""),
        (b'{"text":"a","steps":' + b"9" * 5000 + b"}", 400, "4,300 digits"),
        (json.dumps(asked("\ud800")).encode(), 400, "lone surrogate"),
        (json.dumps(asked(1)).encode(), 400, 'a string "text"'),
        (b"[1]", 400, 'an object with "node", a string "text", "values" and perhaps'),
        (b'{"text": "a"}', 400, 'an object with "node", a string "text", "values" and perhaps'),
        (b'{"node": "WeightedCLIPInspect", "text": "a", "values": [1]}', 400, "values must be an object"),
        (json.dumps(asked("a", "CLIPTextEncode")).encode(), 400, "node must be one of: WeightedCLIP, "),
        (json.dumps(asked("a", ["x"])).encode(), 400, "node must be one of: WeightedCLIP, "),
        (
            json.dumps(asked("a", strict=True)).encode(),
            400,
            "unknown value 'strict'; WeightedCLIPTextEncode has: s",
        ),
        (json.dumps(asked("a", syntax="latin")).encode(), 400, "syntax must be one of: comfy, a1111"),
        (json.dumps(asked("a", syntax=["comfy"])).encode(), 400, "syntax must be one of: comfy, a1111"),
        (json.dumps(asked("a", "WeightedCLIPA1111Encode", emphasis="Loud")).encode(), 400, "emphasis must be one of"),
        (json.dumps(asked("a", "WeightedCLIPA1111Encode", steps=0)).encode(), 400, "steps must be 1 to 10000"),
        (json.dumps(asked("a", "WeightedCLIPA1111Encode", steps="1")).encode(), 400, "steps must be an integer"),
        (json.dumps(asked("a", "WeightedCLIPMaskControl", causal=0)).encode(), 400, "is_causal must be true or false"),
        (b" " * (MAX_BYTES + 1), 413, "65536 bytes at most"),
    ],
)
def test_the_route_refuses_with_a_message(host, body: bytes, status: int, message: str) -> None:
    found, answer = post(body)
    assert found == status
    assert message in answer["error"]


def longest(unit: str, **options) -> dict:
    """A request as long as is allowed."""
    room = MAX_BYTES - len(json.dumps(asked("", **options)))
    return asked(unit * (room // len(json.dumps(unit)[1:-1])), **options)


def test_the_longest_request_is_answered(host) -> None:
    request = longest("[", syntax="a1111")
    status, answer = post(json.dumps(request).encode())
    assert status == 200
    assert answer["views"][0]["text"] == request["text"]


ALTERNATING = "[" + "|".join(f"word{i}" for i in range(MAX_VIEWS + 5)) + "] "
TIMED = {"node": "WeightedCLIPA1111Encode", "steps": 50, "counter": "as written"}


@pytest.mark.parametrize("text", ["(cat:1.1) dog; " * 150, "森の中" * 100, "a," * 300])
def test_eight_chunks_take_a_tenth_of_the_longest_answer(text: str) -> None:
    answer = inspect({"text": text})
    assert 400 < answer["views"][0]["num_tokens"] <= 600
    assert json.loads(as_json(answer)) == answer
    assert len(as_json(answer)) < MAX_ANSWER / 10


@pytest.mark.parametrize("unit", ["(", "a,", "1", "森", "; a"])
def test_a_prompt_of_too_many_tokens_is_refused_in_words(host, unit: str) -> None:
    status, answer = post(json.dumps(longest(unit)).encode())
    assert (status, answer) == (400, {"error": "more tokens and problems than 1024 KiB hold: shown after the run"})


@pytest.mark.parametrize("options", [{}, {"steps": 20}])
def test_what_will_be_too_long_is_refused_before_it_is_made(monkeypatch, options: dict) -> None:
    text = "森の猫 " * 5000
    assert len(inspect({"text": text[: len(text) // 5], **options})["views"]) == 1
    for name in ("view", "timed_view", "plan_prompt"):
        monkeypatch.setattr(f"weighted_clip.web.inspection.{name}", lambda *_: pytest.fail("it is made"))
    with pytest.raises(RequestError, match="1024 KiB"):
        inspect({"text": text, **options})


@pytest.mark.parametrize("count", [4000, 1500, 700])
def test_texts_that_do_not_fit_into_the_answer_are_counted(host, count: int) -> None:
    request = asked(ALTERNATING + "a," * (count // 2), **TIMED)
    whole = inspect(request_of(request, NODES))["views"]
    status, answer = post(json.dumps(request).encode())
    views = answer["views"]
    assert status == 200
    assert 0 < len(views) < MAX_VIEWS == len(whole)
    assert views[-1].pop("num_more") == MAX_VIEWS + 5 - len(views)
    assert views == whole[: len(views)]
    assert len(as_json({"views": whole})) <= MAX_ANSWER
    longer = json.dumps({"views": whole[: len(views) + 1]}, separators=(",", ":"))
    assert len(longer) > MAX_ANSWER - 500  # one more does not fit


def test_nothing_of_an_answer_is_made_on_the_servers_loop(host, monkeypatch) -> None:
    threads = []
    body = json.dumps(asked("a cat")).encode()
    encode = json.JSONEncoder.encode
    monkeypatch.setattr(
        json.JSONEncoder, "encode", lambda self, data: threads.append(threading.get_ident()) or encode(self, data)
    )
    assert post(body)[0] == 200
    assert threads
    assert threading.get_ident() not in threads


def test_the_route_is_added_to_a_server_and_to_nothing_else(host, monkeypatch) -> None:
    added = {}
    instance = SimpleNamespace(
        routes=SimpleNamespace(post=lambda path: lambda handler: added.setdefault(path, handler))
    )
    monkeypatch.setitem(sys.modules, "server", SimpleNamespace(PromptServer=SimpleNamespace(instance=instance)))
    routes.add_routes(NODES, NODE_CLASS_MAPPINGS)
    names = ("inspect", "check", "convert", "infotext", "picture")
    assert list(added) == [f"/weighted_clip/{name}" for name in names]
    assert [asyncio.run(answer(Request(b"")))[0] for answer in added.values()] == [400] * 5
    for server in (SimpleNamespace(), SimpleNamespace(PromptServer=SimpleNamespace())):  # no server, or not ComfyUI's
        monkeypatch.setitem(sys.modules, "server", server)
        routes.add_routes(NODES, NODE_CLASS_MAPPINGS)
    monkeypatch.delitem(sys.modules, "server")
    routes.add_routes(NODES, NODE_CLASS_MAPPINGS)


SMALL = TextConfig(hidden_dim=64, num_heads=1, num_layers=2, mlp_dim=64)
PROMPT = "a (red:1.2) cat, " * 100
"""400 tokens."""


def write(path: Path, *, positions: int, tower: str = "", hidden_dim: int = 64) -> Path:
    config = replace(SMALL, context_length=positions, hidden_dim=hidden_dim, num_heads=hidden_dim // 64)
    tensors = hugging_face_tensors(seeded_text_model(config))
    path.parent.mkdir(parents=True, exist_ok=True)
    save_file({tower + key: tensor for key, tensor in tensors.items()}, path)
    return path


@pytest.fixture
def models(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The host's folder of models."""
    paths = ModuleType("folder_paths")

    def get_full_path(folder: str, name: str) -> str | None:
        path = tmp_path / folder / name
        return str(path) if path.is_file() else None

    paths.__dict__.update(get_full_path=get_full_path, get_filename_list=lambda kind: [])
    monkeypatch.setitem(sys.modules, "folder_paths", paths)
    return tmp_path


@pytest.mark.parametrize("syntax", SYNTAXES)
@pytest.mark.parametrize("positions", [134, 248])
def test_chunks_are_those_of_an_encoder_of_that_length(syntax: str, positions: int) -> None:
    (found,) = inspect({"text": PROMPT, "syntax": syntax}, positions=positions)["views"]
    options = EncodeOptions(syntax=syntax)
    layout = ChunkLayout(length=positions)
    expected = view(read_prompt(PROMPT, options, default_tokenizer(), layout))
    assert {**found, "encodings": ""} == expected
    assert {chunk["capacity"] for chunk in found["chunks"]} == {positions - 2}
    encoder = Encoders.of_models({"clip_l": seeded_text_model(replace(SMALL, context_length=positions))})
    read = encoder.prepare([PROMPT], options).reads["clip_l"][0]
    assert [chunk["num_tokens"] for chunk in found["chunks"]] == [chunk.num_content for chunk in read.chunks]


def test_nothing_changes_for_77_positions() -> None:
    request = {"text": PROMPT, "syntax": "a1111", "scheme": "masked_blend"}
    assert inspect(request) == inspect(request, positions=77)
    assert [chunk["capacity"] for chunk in inspect(request)["views"][0]["chunks"]] == [75] * 6


def test_encodings_are_counted_in_longer_chunks_up_to_a_bound() -> None:
    request = {"text": "a (red:0.5) cat, (small:0.3) and (old:0.8)", "scheme": "masked_blend"}
    told = [inspect(request, positions=positions)["views"][0]["encodings"] for positions in (77, 248, 1025)]
    assert told == ["4 encodings", "4 encodings", ""]


def test_the_files_tell_how_long_chunks_are(models: Path) -> None:
    write(models / "text_encoders" / "long.safetensors", positions=248)
    write(models / "text_encoders" / "short.safetensors", positions=77)
    write(models / "text_encoders" / "g.safetensors", positions=77, hidden_dim=1280)
    write(models / "checkpoints" / "sd.safetensors", positions=134, tower="cond_stage_model.transformer.")
    (models / "text_encoders" / "old.pt").write_bytes(b"pickled")
    (models / "text_encoders" / "cut.safetensors").write_bytes(b"cut")
    for files, positions in (
        (["text_encoders/long.safetensors"], 248),
        (["text_encoders/short.safetensors"], 77),
        (["checkpoints/sd.safetensors"], 134),
        # the first tower's, in whatever order the loader has them, as in the view of a run
        (["text_encoders/g.safetensors", "text_encoders/long.safetensors"], 248),
        (["text_encoders/g.safetensors"], 77),
        (["text_encoders/old.pt"], 77),
        (["text_encoders/cut.safetensors"], 77),
        (["text_encoders/none.safetensors"], 77),
        (["text_encoders/long.safetensors\0"], 77),
        (["loras/long.safetensors"], 77),
        (["long.safetensors"], 77),
        ([], 77),
    ):
        assert routes.positions_in(files) == positions, files


def test_a_file_that_was_replaced_is_read_again(models: Path) -> None:
    path = write(models / "text_encoders" / "one.safetensors", positions=248)
    assert routes.positions_in(["text_encoders/one.safetensors"]) == 248
    path.unlink()
    assert routes.positions_in(["text_encoders/one.safetensors"]) == 77
    write(path, positions=134)
    assert routes.positions_in(["text_encoders/one.safetensors"]) == 134


def test_a_request_names_the_files(models: Path) -> None:
    write(models / "text_encoders" / "long.safetensors", positions=248)
    asked = {"node": "WeightedCLIPTextEncode", "text": PROMPT, "values": {}}
    answers = [
        json.loads(routes._read(json.dumps(request).encode(), NODES))["views"][0]
        for request in (asked, {**asked, "files": ["text_encoders/long.safetensors"]})
    ]
    assert [[chunk["capacity"] for chunk in answer["chunks"]] for answer in answers] == [[75] * 6, [246] * 2]


def test_as_many_files_as_are_allowed_are_taken() -> None:
    assert files_of({"files": ["a"] * 4}) == ["a"] * 4


@pytest.mark.parametrize("files", ["a", None, 1, {}, [1], ["a"] * (MAX_FILES + 1), [["a"]]])
def test_other_names_are_refused(files: object) -> None:
    asked = {"node": "WeightedCLIPTextEncode", "text": "a", "values": {}, "files": files}
    assert request_of(asked, NODES)
    with pytest.raises(RequestError, match="files must be a list of at most 4 strings, got "):
        files_of(asked)


def test_a_file_without_rights_is_no_error(models: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(models / "text_encoders" / "one.safetensors", positions=248)

    def stat(path: Path) -> SimpleNamespace:
        raise PermissionError(13, "denied", str(path))

    monkeypatch.setattr(routes, "Path", lambda path: SimpleNamespace(stat=lambda: stat(path)))
    assert routes.positions_in(["text_encoders/one.safetensors"]) == 77
