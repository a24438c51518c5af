"""Pictures of eight programs, and those with damage: prompt and seed are right, and what is left out is said."""

from __future__ import annotations

import json
import time
import tracemalloc
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from weighted_clip.hosts.comfy.a1111.image_text import read_image_data
from weighted_clip.hosts.comfy.a1111.parameters import Parameters, read_parameters
from weighted_clip.weighting.infotext import MAX_CHARACTERS, Infotext, read_infotext

from .picture_files import exif_block, png, saved
from .writers import CFG, HEIGHT, STEPS, WIDTH, WRITERS, Said, basic, in_comment, node, novelai

SAID = [
    Said("a cat", "blurry", 7),
    Said("a (red:1.3) cat, (dog)1.2, bird++, {{fox}}, 1.5::owl::, [hen]", "(bad:1.2)", 4294967295),
    Said("ein Käfer, 猫 🦊", "unscharf, ぼけ", 0),
    Said("a cat,\na dog", "blurry,\nugly", 3735928559),
    Said('a "red" cat AND a dog, C:\\x, <b> & 50% // not # gone', "", 1),
    Said("a cat [in:on:0.5] a [red|blue] bowl", "a, b: c", 123456789),
    Said("cat, " * 400 + "end", "blurry", 42),
    Said("a cat, level 5", "Worst quality", 2147483648),
]
PICTURES = [(writer, number) for writer in WRITERS for number in range(len(SAID))]


def read(data: bytes, folder: Path) -> tuple[Infotext, Parameters]:
    """What is read of a picture, and its values for the nodes."""
    path = folder / "picture.png"
    path.write_bytes(data)
    infotext = read_image_data(path)
    return infotext, read_parameters(infotext, "NV")


@pytest.mark.parametrize(("writer", "number"), PICTURES)
def test_prompt_seed_and_settings_are_those_of_the_picture(writer: str, number: int, tmp_path: Path) -> None:
    write, syntax = WRITERS[writer]
    said = SAID[number]
    infotext, values = read(write(said, number), tmp_path)
    assert (infotext.writer, infotext.prompt, infotext.negative) == (writer, said.prompt, said.negative)
    assert values.noise.seed == said.seed
    parts = 1 if writer else said.prompt.count(" AND ") + 1  # the WebUI adds their guidance up
    assert (values.steps, values.cfg, values.width, values.height) == (STEPS, CFG * parts, WIDTH, HEIGHT)
    for settings in (values.settings, values.negative_settings):
        assert settings.options.syntax == (syntax or "a1111")
        assert settings.is_timed == (writer == "")
    report = "\n".join(values.report())
    if writer:
        assert report.count(f"Written by {writer}") == 1


def test_a_picture_has_its_lora_further_pass_and_characters_said(tmp_path: Path) -> None:
    for writer in ("InvokeAI", "SwarmUI", "Fooocus", "Draw Things", "Easy Diffusion", "ComfyUI"):
        infotext, _ = read(WRITERS[writer][0](SAID[0], 1), tmp_path)
        name = "ink_lora_f16" if writer == "Draw Things" else "ink"
        assert any(f"<lora:{name}:0.75>" in problem for problem in infotext.problems), writer
    infotext, _ = read(WRITERS["ComfyUI"][0](SAID[0], 3), tmp_path)
    assert any("further pass" in problem and "node 2" in problem for problem in infotext.problems)
    infotext, _ = read(novelai(SAID[0], 1), tmp_path)
    assert any("girl, {red hair}" in problem for problem in infotext.problems)


def test_a_sampler_that_is_not_ours_is_replaced_and_said(tmp_path: Path) -> None:
    _, values = read(WRITERS["InvokeAI"][0](SAID[0], 2), tmp_path)
    assert values.sampler == "Euler"
    assert any(row.name == "Sampler" and row.value == "deis" and row.advice for row in values.rows)


def test_what_a_program_does_not_say_is_taken_and_said() -> None:
    values = read_parameters(read_infotext(json.dumps({"sui_image_params": {"prompt": "a cat"}})), "NV")
    assert (values.steps, values.cfg, values.sampler, values.noise.seed) == (20, 7.0, "Euler", 0)
    for name in ("Seed", "Steps", "CFG scale", "Sampler"):
        assert any(note.startswith(f"{name} is not given") for note in values.notes)


def swarm(**values: Any) -> str:
    return json.dumps({"sui_image_params": {"prompt": "a cat", "steps": 20, "cfgscale": 7, **values}})


@pytest.mark.parametrize("seed", [-1, 1.5, "x", "1_000", 2**64, float("nan"), float("inf"), "9" * 400, "-0.5"])
def test_a_seed_that_is_none_is_quoted(seed: Any) -> None:
    with pytest.raises(ValueError, match="Seed must be a whole number") as error:
        read_parameters(read_infotext(swarm(seed=seed)), "NV")
    assert len(str(error.value)) < 300


@pytest.mark.parametrize("seed", [[7], {"a": 7}, None, True])
def test_a_seed_of_another_kind_is_not_taken_and_said(seed: Any) -> None:
    values = read_parameters(read_infotext(swarm(seed=seed)), "NV")
    assert values.noise.seed == 0 and "Seed is not given: 0 is taken" in values.notes


@pytest.mark.parametrize("seed", ["7", 7.0, " 7 "])
def test_a_seed_that_is_written_otherwise_is_taken(seed: Any) -> None:
    assert read_parameters(read_infotext(swarm(seed=seed)), "NV").noise.seed == 7


@pytest.mark.parametrize(
    ("texts", "writer", "said"),
    [
        ({"parameters": swarm(seed=7)[:40]}, "SwarmUI", "is damaged"),
        ({"invokeai_metadata": '{"positive_prompt": "a cat", "seed": 7,}'}, "InvokeAI", "is damaged"),
        ({"prompt": json.dumps(basic(SAID[0]))[:200]}, "ComfyUI", "is damaged"),
        ({"prompt": '{"1": {"class_type": "KSampler", "inputs": ' + "[" * 100_000}, "ComfyUI", "nested too deeply"),
        ({"Software": "NovelAI", "Comment": '{"steps": 28, "se'}, "NovelAI", "Comment is damaged"),
        ({"workflow": json.dumps({"nodes": [], "links": []})}, "ComfyUI", "It is ComfyUI's workflow"),
        ({"Dream": "a cat"}, "InvokeAI", "command is not understood"),
    ],
    ids=["SwarmUI", "InvokeAI", "ComfyUI", "deep", "NovelAI", "workflow", "InvokeAI's command"],
)
def test_damaged_data_is_said_with_its_writer(texts: dict[str, str], writer: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "picture.png"
    path.write_bytes(png(**texts))
    data = read_image_data(path)
    assert (data.writer, data.prompt) == (writer, "")
    assert any(said in problem for problem in data.problems), data.problems
    if writer != "NovelAI":
        with pytest.raises(ValueError, match="Read Generation Data: ") as error:
            read_parameters(data, "NV")
        assert len(str(error.value)) < 1000


def test_two_writers_in_one_file_are_said(tmp_path: Path) -> None:
    path = tmp_path / "picture.png"
    webui = "a cat\nSteps: 20, Sampler: Euler a, Seed: 7, CFG scale: 7, Size: 64x64"
    path.write_bytes(png(parameters=webui, prompt=json.dumps(basic(Said("a dog", "", 8)))))
    data = read_image_data(path)
    assert data.prompt == "a cat"
    assert any("also has data of ComfyUI" in problem for problem in data.problems)
    path.write_bytes(png(parameters=webui, prompt=json.dumps(basic(Said("a cat", "", 7)))))  # one picture, said twice
    assert not read_image_data(path).problems
    path.write_bytes(png(parameters=webui, invokeai_metadata='{"positive_prompt": "x", "seed": '))
    assert any("InvokeAI's data is damaged" in problem for problem in read_image_data(path).problems)


def test_a_text_that_is_too_long_is_said(tmp_path: Path) -> None:
    path = tmp_path / "picture.png"
    path.write_bytes(png(prompt=json.dumps({str(n): node("Note", text="x" * 100) for n in range(10_000)})))
    with pytest.raises(ValueError, match=f"over {MAX_CHARACTERS:,}: not read"):
        read_image_data(path)


@pytest.mark.parametrize(
    "make", [lambda text: png(parameters=text), lambda text: in_comment(text)], ids=["PNG", "EXIF"]
)
def test_fifty_megabytes_are_read_within_bounds(make: Any, tmp_path: Path) -> None:
    path = tmp_path / "picture.jpg"
    text = '{"sui_image_params": {"prompt": "' + "a cat, " * (7 * 10**6) + '"}}'
    try:
        path.write_bytes(make(text))
    except (ValueError, OSError):  # longer than EXIF data can be
        path.write_bytes(saved("WEBP", exif=exif_block(b"UNICODE\0" + text.encode("utf-16-be"))))
    tracemalloc.start()
    start = time.process_time()
    try:
        data = read_image_data(path)
    except ValueError as error:
        assert len(str(error)) < 1000
    else:
        assert len(data.problems) > 0 and not data.settings
    assert time.process_time() - start < 20
    assert tracemalloc.get_traced_memory()[1] < 2**29
    tracemalloc.stop()


@pytest.mark.parametrize("depth", [100, 900, 5000])
def test_deep_values_are_read_or_refused(depth: int) -> None:
    deep = "[" * depth + "]" * depth
    for text in (
        f'{{"sui_image_params": {{"prompt": {deep}, "seed": {deep}, "loras": [{deep}], "loraweights": [{deep}]}}}}',
        f'{{"positive_prompt": "a", "seed": 1, "loras": [{{"model": {deep}, "weight": {deep}}}], "model": {deep}}}',
        f'{{"prompt": "a", "performance": 1, "loras": [[{deep}, {deep}]], "styles": {deep}}}',
        f'{{"1": {{"class_type": {deep}, "inputs": {{"steps": {deep}, "positive": [{deep}, 0], "text": {deep}}}}}}}',
    ):
        data = read_infotext(text)
        assert data.problems and all(len(problem) < 1000 for problem in data.problems)


def graph_of(**changes: Any) -> dict[str, Any]:
    graph = basic(SAID[0])
    for number, inputs in changes.items():
        graph[number[1:]] = inputs
    return graph


GRAPHS: dict[str, tuple[dict[str, Any], str, str]] = {
    "a circle of texts": (
        graph_of(_6=node("CLIPTextEncode", text=["20", 0]), _20=node("Text", text=["6", 0])),
        "",
        "made in the run",
    ),
    "a circle of conditionings": (
        graph_of(
            _6=node("ConditioningSetMask", conditioning=["20", 0]), _20=node("FluxGuidance", conditioning=["6", 0])
        ),
        "",
        "The prompt is empty",
    ),
    "a sampler before itself": (
        graph_of(_3=node("KSampler", **{**basic(SAID[0])["3"]["inputs"], "latent_image": ["3", 0]})),
        "a cat",
        "Written by ComfyUI",
    ),
    "two texts": (
        graph_of(
            _20=node("CLIPTextEncode", text="a dog"),
            _21=node("CLIPTextEncode", text="a cat"),
            _6=node("ConditioningCombine", conditioning_1=["20", 0], conditioning_2=["21", 0]),
        ),
        "a dog",
        "2 texts are in the positive prompt: “a dog” is read, not “a cat”",
    ),
    "two towers": (
        graph_of(_6=node("CLIPTextEncodeFlux", clip_l="short", t5xxl="a long text", guidance=3.5)),
        "a long text",
        "has several texts: that of t5xxl is read",
    ),
    "a node that is not known": (graph_of(_6=node("Whatever", thing=1)), "", "comes from Whatever (node 6)"),
    "a text that a node makes": (
        graph_of(_6=node("CLIPTextEncode", text=["20", 0]), _20=node("Gen", a="x", b="y")),
        "",
        "made in the run by Gen (node 20)",
    ),
    "a link to nothing": (graph_of(_6=node("CLIPTextEncode", text=["99", 0])), "", "made in the run"),
    "zeros": (
        graph_of(_7=node("ConditioningZeroOut", conditioning=["6", 0])),
        "a cat",
        "The negative prompt's rows are replaced by zeros",
    ),
    "another pack": (
        graph_of(_6=node("BNK_CLIPTextEncodeAdvanced", text="a cat")),
        "a cat",
        "may read weights otherwise",
    ),
    "two pictures": (
        graph_of(_50=node("KSampler", **{**basic(SAID[0])["3"]["inputs"], "seed": 9})),
        "a cat",
        "2 samplers begin a picture: KSampler (node 3) is read, not KSampler (node 50)",
    ),
    "a seed that is made": (
        graph_of(
            _3=node("KSampler", **{**basic(SAID[0])["3"]["inputs"], "seed": ["20", 0]}), _20=node("Clock", mode="now")
        ),
        "a cat",
        "Seed is made in the run by Clock (node 20)",
    ),
    "wrong kinds": (
        {"1": {"class_type": ["KSampler"], "inputs": [1]}, "2": node("X", positive=5, steps=None)},
        "",
        "The prompt is empty",
    ),
    "a picture before": (
        graph_of(_5=node("VAEEncode", pixels=["51", 0]), _51=node("LoadImage", image="x.png")),
        "a cat",
        "It begins with a picture",
    ),
}


@pytest.mark.parametrize(("graph", "prompt", "said"), GRAPHS.values(), ids=GRAPHS)
def test_what_is_unclear_in_a_graph_is_said(graph: dict[str, Any], prompt: str, said: str) -> None:
    data = read_infotext(json.dumps(graph))
    assert (data.writer, data.prompt) == ("ComfyUI", prompt)
    assert any(said in problem for problem in data.problems), data.problems


def test_a_graph_of_ours_has_its_syntax_and_scheme() -> None:
    weighted = node("WeightedCLIPTextEncode", text="a cat++", syntax="compel", scheme="masked_blend")
    values = read_parameters(read_infotext(json.dumps(graph_of(_6=weighted))), "NV")
    assert (values.settings.options.syntax, values.settings.options.scheme) == ("compel", "masked_blend")
    values = read_parameters(
        read_infotext(json.dumps(graph_of(_6=node("WeightedCLIPA1111Encode", text="a cat")))), "NV"
    )
    assert values.settings.options.syntax == "a1111" and values.settings.is_timed
    strange = node("WeightedCLIPTextEncode", text="a cat", syntax="x" * 10**5, scheme="comfy")
    values = read_parameters(read_infotext(json.dumps(graph_of(_6=strange))), "NV")
    assert any(row.name == "syntax" and row.advice for row in values.rows)
    assert len("\n".join(values.report())) < 5000


def test_a_picture_drawn_again_is_that_picture() -> None:
    data = "a cat\nSteps: 20, Sampler: Euler a, Seed: 7, CFG scale: 7, Size: 64x64"
    reader = node("WeightedCLIPReadParameters", text=data, source="NV", image="")
    sampler = node("SamplerCustomAdvanced", noise=["1", 4], sampler=["1", 2], sigmas=["1", 3], guider=["3", 0])
    text = read_infotext(json.dumps({"1": reader, "2": sampler}))
    assert (text.prompt, text.settings["Seed"], text.is_foreign) == ("a cat", "7", False)
    reader["inputs"] |= {"text": "", "image": "x.png"}
    assert "from the picture “x.png”" in read_infotext(json.dumps({"1": reader, "2": sampler})).problems[-1]


@pytest.mark.parametrize("kind", ["a chain", "a fan", "samplers"])
def test_ten_thousand_nodes_are_read_in_linear_time(kind: str) -> None:
    graph = basic(SAID[0])
    names = [f"n{number}" for number in range(10_000)]
    if kind == "a chain":
        graph |= {a: {"class_type": "R", "inputs": {"conditioning": [b, 0]}} for a, b in pairwise(names)}
        graph["6"] = node("R", conditioning=["n0", 0])
    elif kind == "a fan":
        graph |= {name: {"class_type": "T", "inputs": {"text": name}} for name in names}
        graph["6"] = node("R", **{f"conditioning_{name}": [name, 0] for name in names})
    else:
        graph |= {
            name: {"class_type": "K", "inputs": {"steps": 1, "positive": ["6", 0], "latent": ["3", 0]}}
            for name in names
        }
    start = time.process_time()
    data = read_infotext(json.dumps(graph))
    assert time.process_time() - start < 3
    assert len(data.problems) <= 21 and sum(map(len, data.problems)) < 5000
    assert any("Only 2,000 nodes" in p or "The first of 10,001 samplers" in p for p in data.problems), data.problems
