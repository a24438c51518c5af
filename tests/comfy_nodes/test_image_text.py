"""Generation data of image files in the manner of the programs that write it, and of those that mean harm."""

from __future__ import annotations

import gzip
import html
import json
import tracemalloc
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest
from PIL import Image, features
from weighted_clip.hosts.comfy.a1111.image_text import read_image_text
from weighted_clip.weighting.infotext import MAX_CHARACTERS, read_infotext

from .picture_files import (
    ASCII,
    BYTE,
    DESCRIPTION,
    MODEL,
    SHORT,
    UNDEFINED,
    USER_COMMENT,
    WINDOWS_COMMENT,
    exif_block,
    hidden_bits,
    png,
    saved,
    with_hidden_bits,
    xmp,
)

TEXT = "ein Käfer, 猫 🦊\nNegative prompt: blurry\nSteps: 20, Sampler: Euler a, Seed: 7, CFG scale: 7, Size: 64x96"
LATIN = TEXT.replace("猫 🦊", "x")
UNICODE, IN_ASCII = b"UNICODE\0", b"ASCII\0\0\0"
DRAW_THINGS = {"c": "a cat", "uc": "blurry", "steps": 20, "seed": 7, "sampler": "Euler a", "scale": 7, "size": "64x96"}
NAI = {"uc": "blurry", "steps": 28, "sampler": "k_euler", "seed": 7, "scale": 11.0}
SWARM = {"sui_image_params": {"prompt": "a cat", "seed": 7, "steps": 20, "cfgscale": 7}}
INVOKE = {"positive_prompt": "a cat", "negative_prompt": "blurry", "seed": 7, "steps": 20, "cfg_scale": 7}
NODE = {"class_type": "KSampler", "inputs": {"seed": 7, "steps": 20, "cfg": 7, "positive": ["1", 0]}}
GRAPH = {"1": {"class_type": "CLIPTextEncode", "inputs": {"text": "a cat"}}, "2": NODE}


def jpeg(comment: bytes | None = None, order: str = ">", **first: tuple[int, bytes]) -> bytes:
    tags = {"comment": USER_COMMENT, "description": DESCRIPTION, "model": MODEL, "windows": WINDOWS_COMMENT}
    entries = {tags[name.removeprefix("in_")]: entry for name, entry in first.items()}
    return saved("JPEG", exif=exif_block(comment, order=order, first=entries))


def hidden(text: str | bytes, channels: str, *, is_compressed: bool, length: int | None = None) -> bytes:
    bits = hidden_bits(text, channels, is_compressed=is_compressed, length=length)
    return saved("PNG", with_hidden_bits(bits, channels))


def chunk(kind: bytes, data: bytes) -> bytes:
    return len(data).to_bytes(4, "big") + kind + data + zlib.crc32(kind + data).to_bytes(4, "big")


def with_chunk(kind: bytes, data: bytes) -> bytes:
    """A PNG with one more chunk behind its head."""
    plain = saved("PNG")
    return plain[:33] + chunk(kind, data) + plain[33:]


FILES: dict[str, Callable[[], bytes]] = {
    # A1111 and Forge
    "PNG": lambda: png(parameters=TEXT),
    "PNG, compressed text": lambda: png(parameters=TEXT, is_compressed=True),
    "JPEG": lambda: jpeg(UNICODE + TEXT.encode("utf-16-be")),
    "WebP": lambda: saved("WEBP", exif=exif_block(UNICODE + TEXT.encode("utf-16-be"))),
    "GIF": lambda: saved("GIF", comment=TEXT.encode()),
    "PNG with EXIF": lambda: saved("PNG", exif=exif_block(UNICODE + TEXT.encode("utf-16-be"))),
    "alpha": lambda: hidden(TEXT, "A", is_compressed=False),
    "alpha, compressed": lambda: hidden(TEXT, "A", is_compressed=True),
    "colours": lambda: hidden(TEXT, "RGB", is_compressed=False),
    "colours, compressed": lambda: hidden(TEXT, "RGB", is_compressed=True),
    "PNG, UTF-8 as Latin 1": lambda: with_chunk(b"tEXt", b"parameters\0" + TEXT.encode()),
    # other encodings of EXIF's user comment
    "JPEG comment segment": lambda: saved("JPEG", comment=TEXT.encode()),
    "smaller byte first": lambda: jpeg(UNICODE + TEXT.encode("utf-16-le")),
    "smaller byte first, in a file of that order": lambda: jpeg(UNICODE + TEXT.encode("utf-16-le"), "<"),
    "larger byte first, in a file of the other order": lambda: jpeg(UNICODE + TEXT.encode("utf-16-be"), "<"),
    "UTF-16 with its mark": lambda: jpeg(UNICODE + b"\xff\xfe" + TEXT.encode("utf-16-le")),
    "UTF-16 with its mark, larger byte first": lambda: jpeg(UNICODE + b"\xfe\xff" + TEXT.encode("utf-16-be")),
    "UTF-8 behind UNICODE": lambda: jpeg(UNICODE + TEXT.encode()),
    "UTF-8 behind ASCII": lambda: jpeg(IN_ASCII + TEXT.encode()),
    "UTF-8 with its mark behind ASCII": lambda: jpeg(IN_ASCII + b"\xef\xbb\xbf" + TEXT.encode()),
    "UTF-8 behind zeros": lambda: jpeg(b"\0" * 8 + TEXT.encode()),
    "UTF-8 without a mark": lambda: jpeg(TEXT.encode()),
    "UTF-16 without a mark": lambda: jpeg(TEXT.encode("utf-16-le")),
    "zeros behind the text": lambda: jpeg(UNICODE + TEXT.encode("utf-16-be") + b"\0" * 20),
    "comment in the first directory": lambda: jpeg(None, in_comment=(UNDEFINED, UNICODE + TEXT.encode("utf-16-be"))),
    "comment as a text": lambda: jpeg(None, in_comment=(ASCII, TEXT.encode() + b"\0")),
    "comment as bytes": lambda: jpeg(None, in_comment=(BYTE, IN_ASCII + TEXT.encode())),
    "Windows' comment": lambda: jpeg(None, in_windows=(BYTE, TEXT.encode("utf-16-le") + b"\0\0")),
    "description": lambda: jpeg(None, in_description=(ASCII, TEXT.encode() + b"\0")),
    "beside a camera's comment": lambda: jpeg(IN_ASCII + b" " * 40, in_description=(ASCII, TEXT.encode() + b"\0")),
}
LATIN_FILES: dict[str, Callable[[], bytes]] = {
    "PNG, Latin 1": lambda: with_chunk(b"tEXt", b"parameters\0" + LATIN.encode("latin-1")),
    "Latin letters": lambda: jpeg(IN_ASCII + LATIN.encode("cp1252")),
    "Latin letters without a mark": lambda: jpeg(LATIN.encode("cp1252")),
}


@pytest.mark.parametrize("make", FILES.values(), ids=FILES)
def test_the_text_of_a_file_comes_back(make: Callable[[], bytes], tmp_path: Path) -> None:
    path = tmp_path / "picture.png"
    path.write_bytes(make())
    assert read_image_text(path)[0] == TEXT


@pytest.mark.parametrize("make", LATIN_FILES.values(), ids=LATIN_FILES)
def test_western_letters_of_one_byte_come_back(make: Callable[[], bytes], tmp_path: Path) -> None:
    path = tmp_path / "picture.jpg"
    path.write_bytes(make())
    assert read_image_text(path)[0] == LATIN


@pytest.mark.skipif(not features.check("avif"), reason="this Pillow has no AVIF")
def test_the_text_of_an_avif_comes_back(tmp_path: Path) -> None:
    path = tmp_path / "picture.avif"
    path.write_bytes(saved("AVIF", exif=exif_block(UNICODE + TEXT.encode("utf-16-be"))))
    assert read_image_text(path)[0] == TEXT


OF_OTHERS: dict[str, tuple[str, Callable[[], bytes]]] = {
    "NovelAI": ("NovelAI", lambda: png(Software="NovelAI", Description="a cat", Comment=json.dumps(NAI))),
    "NovelAI, hidden": (
        "NovelAI",
        lambda: hidden(
            json.dumps({"Software": "NovelAI", "Description": "a cat", "Comment": json.dumps(NAI)}),
            "A",
            is_compressed=True,
        ),
    ),
    "InvokeAI": ("InvokeAI", lambda: png(invokeai_metadata=json.dumps(INVOKE))),
    "InvokeAI's command": ("InvokeAI", lambda: png(Dream='"a cat [blurry]" -s 20 -S 7 -W 64 -H 96 -C 7 -A k_lms')),
    "Draw Things": (
        "Draw Things",
        lambda: png(**{"XML:com.adobe.xmp": xmp(exif_UserComment=html.escape(json.dumps(DRAW_THINGS)))}),
    ),
    "Draw Things, JPEG": (
        "Draw Things",
        lambda: saved("JPEG", xmp=xmp(exif_UserComment=html.escape(json.dumps(DRAW_THINGS))).encode()),
    ),
    "Easy Diffusion": (
        "Easy Diffusion",
        lambda: png(prompt="a cat", negative_prompt="", seed="7", num_inference_steps="20", guidance_scale="7"),
    ),
    "Easy Diffusion, labels": (
        "Easy Diffusion",
        lambda: png(Prompt="a cat", Negative__Prompt="", Seed="7", Steps="20", Guidance__Scale="7"),
    ),
    "SwarmUI": ("SwarmUI", lambda: png(parameters=json.dumps(SWARM))),
    "SwarmUI, JPEG": ("SwarmUI", lambda: jpeg(UNICODE + json.dumps(SWARM).encode("utf-16-le"))),
    "SwarmUI, old JPEG": ("SwarmUI", lambda: jpeg(None, in_model=(ASCII, json.dumps(SWARM).encode() + b"\0"))),
    "Fooocus": (
        "Fooocus",
        lambda: png(parameters=json.dumps({"prompt": "a cat", "performance": "Speed", "steps": 20, "seed": "7"})),
    ),
    "Fooocus, old": (
        "Fooocus",
        lambda: png(Comment=json.dumps({"prompt": "a cat", "performance": "Speed", "steps": 20, "seed": 7})),
    ),
    "ComfyUI": ("ComfyUI", lambda: png(prompt=json.dumps(GRAPH), workflow="{}")),
    "ComfyUI, WebP": (
        "ComfyUI",
        lambda: saved("WEBP", exif=exif_block(first={MODEL: (ASCII, b"prompt:" + json.dumps(GRAPH).encode() + b"\0")})),
    ),
    "Tensor.Art": (
        "Tensor.Art",
        lambda: png(generation_data=json.dumps({"prompt": "a cat", "samplerName": "euler", "seed": "7", "steps": 20})),
    ),
}


@pytest.mark.parametrize(("writer", "make"), OF_OTHERS.values(), ids=OF_OTHERS)
def test_the_writer_of_a_file_is_named_and_its_prompt_read(
    writer: str, make: Callable[[], bytes], tmp_path: Path
) -> None:
    path = tmp_path / "picture.png"
    path.write_bytes(make())
    data = read_infotext(read_image_text(path)[0])
    assert (data.writer, data.prompt, data.settings["Seed"]) == (writer, "a cat", "7")
    assert data.settings["Steps"] == ("28" if writer == "NovelAI" else "20")


def test_generation_data_is_found_beside_other_texts(tmp_path: Path) -> None:
    path = tmp_path / "picture.png"
    path.write_bytes(png(Software="an editor", comment="made with an editor", parameters=TEXT, prompt="{}"))
    assert read_image_text(path)[0] == TEXT
    path.write_bytes(saved("PNG", exif=exif_block(IN_ASCII + b"SUMMER")))
    assert read_image_text(path)[0] == "SUMMER"
    path.write_bytes(jpeg(None, in_model=(ASCII, b"NIKON D70\0")))
    with pytest.raises(ValueError, match="holds no generation data"):
        read_image_text(path)


def test_a_writer_is_named_though_nothing_can_be_read(tmp_path: Path) -> None:
    path = tmp_path / "picture.png"
    path.write_bytes(png(prompt=json.dumps({"1": GRAPH["1"]}), workflow="{}"))
    data = read_infotext(read_image_text(path)[0])
    assert data.writer == "ComfyUI" and "nothing is read" in data.problems[-1]
    path.write_bytes(png(Software="an editor", comment="a picture"))
    with pytest.raises(ValueError, match="holds no generation data; it was written by “an editor”"):
        read_image_text(path)


def test_novelais_settings_are_forges(tmp_path: Path) -> None:
    """Values are those of the text that Forge makes of this file, in its PNG Info."""
    path = tmp_path / "picture.png"
    path.write_bytes(png(Software="NovelAI", Description="a cat", Comment=json.dumps(NAI)))
    data = read_infotext(read_image_text(path)[0])
    assert (data.prompt, data.negative) == ("a cat", "blurry")
    assert data.settings == {
        **{"Steps": "28", "Sampler": "Euler", "CFG scale": "11.0", "Seed": "7", "Size": "6x8", "Clip skip": "2"},
        "ENSD": "31337",
    }


def test_a_turned_picture_keeps_its_text(tmp_path: Path) -> None:
    path, turned = tmp_path / "picture.jpg", (SHORT, b"\0\6")
    path.write_bytes(saved("JPEG", exif=exif_block(UNICODE + TEXT.encode("utf-16-be"), first={0x0112: turned})))
    assert read_image_text(path)[0] == TEXT


@pytest.mark.parametrize(
    ("bits", "channels", "message"),
    [
        (hidden_bits("a", "A", is_compressed=False, length=2**32 - 1), "A", "should have 4,294,967,295 bits"),
        (hidden_bits("a", "RGB", is_compressed=True, length=64), "RGB", "ends early"),
        (hidden_bits(b"\x1f\x8bnothing", "RGB", is_compressed=True), "RGB", "cannot be decompressed"),
        (hidden_bits(gzip.compress(b"a" * 99)[:-12], "A", is_compressed=True), "A", "ends early"),
    ],
    ids=["a length of 512 MiB", "a wrong length", "no gzip", "cut off"],
)
def test_hidden_text_that_is_damaged_is_named(bits: str, channels: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "picture.png"
    path.write_bytes(saved("PNG", with_hidden_bits(bits, channels)))
    with pytest.raises(ValueError, match=message):
        read_image_text(path)


def test_hidden_text_that_expands_is_refused_before_it_does(tmp_path: Path) -> None:
    path, bomb = tmp_path / "picture.png", gzip.compress(bytes(2**25))
    path.write_bytes(saved("PNG", with_hidden_bits(hidden_bits(bomb, "A", is_compressed=True), "A", (640, 480))))
    tracemalloc.start()
    with pytest.raises(ValueError, match=r"more than 4,194,304 bytes"):
        read_image_text(path)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 2**24


def test_a_mark_alone_is_no_text(tmp_path: Path) -> None:
    path = tmp_path / "picture.png"
    for size in ((1, 1), (8, 6), (10, 12)):  # too small for a mark; for a length
        bits = hidden_bits("", "A", is_compressed=False)
        path.write_bytes(saved("PNG", with_hidden_bits(bits, "A", size)))
        with pytest.raises(ValueError, match=r"holds no generation data|should have"):
            read_image_text(path)


@pytest.mark.parametrize(
    "data",
    [
        with_chunk(b"tEXt", b"parameters\0" + b"a: b, " * 10**6),
        with_chunk(b"zTXt", b"parameters\0\0" + zlib.compress(b"a: b, " * 10**7)),
        with_chunk(b"iTXt", b"parameters\0\1\0\0\0" + zlib.compress(bytes(10**8))),
        with_chunk(b"iTXt", b"XML:com.adobe.xmp\0\0\0\0\0" + b"<exif:UserComment" * 60_000),
        with_chunk(b"iTXt", b"XML:com.adobe.xmp\0\0\0\0\0" + b"<exif:UserComment>" + b"<rdf:Alt>" * 100_000),
        with_chunk(b"eXIf", b"MM\0*\0\0\0\x08\xff\xff" + b"\x92\x86\0\x07\xff\xff\xff\xff\0\0\0\0" * 1000),
        with_chunk(b"eXIf", b"MM\0*\xff\xff\xff\xff"),
        jpeg(None, in_comment=(SHORT, b"\0\1" * 100)),
        jpeg(b""),
        jpeg(UNICODE),
        jpeg(UNICODE + b"\xd8"),
        png(Software="NovelAI", Comment="[" * 100_000),
        png(Software="NovelAI", Description="a", Comment='{"steps": NaN, "seed": Infinity, "uc": 1, "sampler": []}'),
        png(
            prompt=json.dumps({"1": {"class_type": 1, "inputs": {"steps": 1, "positive": ["1", 0], "text": ["1", 0]}}})
        ),
        png(invokeai_metadata='{"positive_prompt": [], "seed": ' + "9" * 5000 + "}"),
        png(invokeai_metadata=json.dumps({"positive_prompt": None, "seed": {}, "model": [], "clip_skip": 1e308})),
        png(parameters="{" * 100_000),
    ],
    ids=[
        *("6 MB of settings", "a bomb of settings", "a bomb of zeros", "open tags", "nested tags", "false counts"),
        *("a false place", "numbers", "nothing", "a mark", "half a letter", "deep JSON", "no numbers"),
        *("a circle", "a long number", "wrong types", "braces"),
    ],
)
def test_hostile_metadata_is_read_or_refused_within_bounds(data: bytes, tmp_path: Path) -> None:
    path = tmp_path / "picture.png"
    path.write_bytes(data)
    try:
        text = read_image_text(path)[0]
    except ValueError as error:
        assert len(str(error)) < 1000
        return
    data_of_text = read_infotext(text)
    assert len(data_of_text.settings) <= 1001 and len(data_of_text.problems) <= 22
    assert sum(map(len, data_of_text.problems)) < 10_000


def test_broken_exif_data_hides_no_other_text(tmp_path: Path) -> None:
    path = tmp_path / "picture.png"
    plain = png(parameters=TEXT)
    path.write_bytes(plain[:33] + chunk(b"eXIf", b"MM\0*\0\0\0\x08\xff\xff") + plain[33:])
    assert read_image_text(path)[0] == TEXT


def test_long_text_is_bounded() -> None:
    data = read_infotext("a, " * MAX_CHARACTERS + "\nSteps: 20, Sampler: Euler a, Seed: 7")
    assert data.settings["Seed"] == "7" and "characters" in data.problems[-1]


def test_a_gray_picture_with_alpha_has_no_hidden_text(tmp_path: Path) -> None:
    path = tmp_path / "picture.png"
    Image.new("LA", (40, 40)).save(path)
    with pytest.raises(ValueError, match="holds no generation data"):
        read_image_text(path)
