"""Image files that somebody else made: formats, sizes and damage, and that a picture is opened in one place only."""

from __future__ import annotations

import ast
import io
import os
import random
import struct
import subprocess
import sys
import warnings
import zlib
from pathlib import Path

import PIL.EpsImagePlugin
import pytest
from PIL import Image, features
from weighted_clip.encoder import image_file
from weighted_clip.encoder.image_file import MAX_PIXELS, open_image

ROOT = Path(__file__).resolve().parents[2]
NO_IMAGE = (
    "no image of a kind that is read: PNG, JPEG, WEBP, BMP, GIF, "
    "TIFF (8 or 16 bits; uncompressed, LZW, Deflate or PackBits), AVIF"
)
POSTSCRIPT = b"""%!PS-Adobe-3.0 EPSF-3.0
%%BoundingBox: 0 0 20 20
%%EndComments
(written) (w) file (x) writestring
showpage
%%EOF
"""
AVIF = pytest.mark.skipif(not features.check("avif"), reason="this Pillow has no AVIF")


def saved(kind: str, mode: str = "RGB", **options: object) -> bytearray:
    """A gradient as a file of some format."""
    buffer = io.BytesIO()
    gradient = Image.radial_gradient("L").resize((40, 40))
    image = Image.new(mode, gradient.size) if mode == "LAB" else gradient.convert(mode)
    image.save(buffer, kind, **options)
    return bytearray(buffer.getvalue())


def refusal(path: Path, data: bytes) -> str:
    """Message about a file, after its name."""
    path.write_bytes(data)
    with pytest.raises(ValueError) as caught:
        open_image(path)
    name, text = str(caught.value)[: len(str(path))], str(caught.value)[len(str(path)) :]
    assert name == str(path)
    return text.removeprefix(": ")


# ---- formats


@pytest.mark.skipif(os.name == "nt", reason="the program is a shell script")
@pytest.mark.parametrize("name", ["cat.png", "cat.eps", "cat"])
def test_postscript_never_reaches_ghostscript(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program, trace = tmp_path / "bin" / "gs", tmp_path / "trace"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\necho "$@" >> "{trace}"\n', encoding="utf-8")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}{os.pathsep}{os.environ['PATH']}")
    # where Pillow from 10 on remembers whether it found the program
    monkeypatch.setattr(PIL.EpsImagePlugin, "gs_binary", None, raising=False)
    said = refusal(tmp_path / name, POSTSCRIPT)
    assert not trace.exists()
    assert said.startswith(NO_IMAGE)
    # what Pillow does unasked, so that the trace can be seen at all
    with pytest.raises(OSError), Image.open(tmp_path / name) as image:
        image.load()
    assert trace.exists()


def spider() -> bytearray:
    """Says that it is an image of a stack, and is none."""
    data = saved("SPIDER", "F")
    data[26 * 4 : 27 * 4] = struct.pack("<f", 2.0)
    return data


def changed(data: bytearray, place: int, value: bytes) -> bytearray:
    data[place : place + len(value)] = value
    return data


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(lambda: changed(saved("DDS"), 80, b"\x80\0\0\0"), id="DDS of an unknown layout"),
        pytest.param(lambda: changed(saved("BLP", "P"), 4, b"\x63\0\0\0"), id="BLP of an unknown compression"),
        pytest.param(spider, id="SPIDER without its stack"),
        *(pytest.param(lambda kind=kind: saved(kind), id=kind) for kind in ("PPM", "TGA", "SGI", "ICO", "PCX", "DDS")),
    ],
)
def test_other_formats_are_refused_in_words_whatever_the_name(data, tmp_path: Path) -> None:
    assert refusal(tmp_path / "cat.png", data()).startswith(NO_IMAGE)


@pytest.mark.parametrize(
    "suffix", [".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif", ".tif", ".tiff", pytest.param(".avif", marks=AVIF)]
)
def test_every_kind_of_image_is_read(suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"image{suffix}"
    Image.new("RGB", (20, 10), (200, 30, 40)).save(path)
    image = open_image(path).convert("RGB")
    assert image.size == (20, 10)
    assert all(abs(a - b) < 8 for a, b in zip(image.getpixel((5, 5)), (200, 30, 40), strict=True))


def test_the_first_frame_upright_and_in_8_bits(tmp_path: Path) -> None:
    frames = [Image.new("RGB", (8, 8), color) for color in ("red", "blue")]
    frames[0].save(tmp_path / "a.gif", save_all=True, append_images=frames[1:])
    assert open_image(tmp_path / "a.gif").convert("RGB").getpixel((3, 3)) == (255, 0, 0)
    exif = Image.Exif()
    exif[0x0112] = 6  # turned by a quarter
    Image.new("RGB", (20, 10)).save(tmp_path / "b.jpg", exif=exif)
    assert open_image(tmp_path / "b.jpg").size == (10, 20)
    Image.new("I;16", (8, 8), 0x8000).save(tmp_path / "c.png")
    deep = open_image(tmp_path / "c.png")
    assert deep.mode == "L"
    assert deep.tobytes()[:1] in (b"\x7f", b"\x80")


@AVIF
def test_a_broken_avif_is_refused_in_words(tmp_path: Path) -> None:
    data = saved("AVIF")
    start = data.index(b"mdat") + 4
    assert refusal(tmp_path / "cat.png", changed(data, start, bytes(len(data) - start))).startswith("broken image: ")


def test_a_pillow_without_a_format_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = b"\0\0\0 ftypavif\0\0\0\0avifmif1miafMA1B"
    check = features.check
    monkeypatch.setattr(features, "check", lambda name: name != "avif" and check(name))
    monkeypatch.delitem(Image.OPEN, "AVIF", raising=False)
    missing = f"; this Pillow, {PIL.__version__}, has no AVIF"
    assert refusal(tmp_path / "cat.avif", data) == NO_IMAGE + missing


@pytest.mark.parametrize("compression", ["raw", "tiff_lzw", "tiff_adobe_deflate", "tiff_deflate", "packbits"])
def test_usual_tiffs_are_read(compression: str, tmp_path: Path) -> None:
    path = tmp_path / "cat.tiff"
    Image.new("RGB", (20, 10), (200, 30, 40)).save(path, compression=compression)
    assert open_image(path).getpixel((5, 5)) == (200, 30, 40)


@pytest.mark.parametrize(
    ("compression", "mode"),
    [("jpeg", "RGB"), ("group4", "1"), ("group3", "1"), ("lzma", "RGB"), ("raw", "I"), ("raw", "F"), ("raw", "LAB")],
)
def test_rare_tiffs_are_refused_in_words(compression: str, mode: str, tmp_path: Path) -> None:
    assert refusal(tmp_path / "cat.tif", saved("TIFF", mode, compression=compression)).startswith(NO_IMAGE)


def test_a_tiff_is_turned_upright_once(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # turned by a quarter
    image = Image.new("RGB", (20, 10), "blue")
    image.paste("red", (0, 0, 10, 10))  # to the left, so upright above
    image.save(tmp_path / "cat.tif", exif=exif)
    upright = open_image(tmp_path / "cat.tif")
    assert upright.size == (10, 20)
    assert [upright.getpixel((5, y)) for y in (2, 17)] == [(255, 0, 0), (0, 0, 255)]


# ---- sizes


def png(width: int, height: int) -> bytes:
    """A picture of one grey."""

    def part(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    packer = zlib.compressobj(9)
    rows = b"".join(packer.compress(bytes(width + 1)) for _ in range(height)) + packer.flush()
    head = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + part(b"IHDR", head) + part(b"IDAT", rows) + part(b"IEND", b"")


def tiff(width: int, height: int, side: int) -> bytes:
    """A black TIFF of one deflated tile, which may be much larger than the picture."""
    tile = zlib.compress(bytes(side * side), 9)
    tags = {256: width, 257: height, 258: 8, 259: 8, 262: 1, 277: 1, 322: side, 323: side, 324: 8, 325: len(tile)}
    entries = b"".join(struct.pack("<HHII", tag, 4, 1, value) for tag, value in tags.items())
    return b"II*\0" + struct.pack("<I", 8 + len(tile)) + tile + struct.pack("<H", len(tags)) + entries + bytes(4)


def gif(width: int, height: int) -> bytes:
    """Two frames of a pixel on a large screen."""
    frame = b"\x2c" + struct.pack("<HHHHB", 0, 0, 1, 1, 0) + b"\x02\x02\x44\x01\x00"
    head = b"GIF89a" + struct.pack("<HHBBB", width, height, 0x80, 0, 0) + bytes(6)
    return head + frame + frame + b";"


TOO_LARGE = "too large: at most 67,108,864 pixels are read, as 8192 x 8192 has; make it smaller first"


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(lambda: png(8193, 8192), id="a row more"),
        pytest.param(lambda: png(10_000, 10_000), id="of which Pillow warns"),
        pytest.param(lambda: png(14_000, 14_000), id="which Pillow refuses"),
        pytest.param(lambda: gif(9000, 9000), id="animated"),
        pytest.param(lambda: tiff(16, 16, 8208), id="a small TIFF of a large tile"),
    ],
)
@pytest.mark.parametrize("action", ["error", "default"])
def test_large_images_are_refused_before_a_pixel_is_read(
    data, action: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, recwarn: pytest.WarningsRecorder
) -> None:
    warnings.simplefilter(action)  # whatever the caller does with warnings

    def load(image: Image.Image) -> None:
        raise AssertionError("it is read")

    for kind in ("PngImagePlugin.PngImageFile", "GifImagePlugin.GifImageFile", "TiffImagePlugin.TiffImageFile"):
        monkeypatch.setattr(f"PIL.{kind}.load", load)
    assert refusal(tmp_path / "cat.png", data()) == TOO_LARGE
    assert not list(recwarn)


def test_the_largest_image_is_read(tmp_path: Path) -> None:
    path = tmp_path / "cat.png"
    path.write_bytes(png(8192, 8192))
    assert open_image(path).size == (8192, 8192)
    assert MAX_PIXELS == 8192 * 8192


@pytest.mark.skipif(os.name == "nt", reason="needs resource")
@pytest.mark.parametrize(
    "data",
    [pytest.param(lambda: png(13_000, 13_000), id="PNG"), pytest.param(lambda: tiff(16, 16, 20_000), id="TIFF")],
)
def test_a_small_file_takes_little_memory(data, tmp_path: Path) -> None:
    path = tmp_path / "cat.png"
    path.write_bytes(data())
    assert path.stat().st_size < 2**20
    program = (
        "import resource, runpy\n"
        f"runpy.run_path({str(ROOT / '__main__.py')!r})['load_package']()\n"
        "from PIL import Image\n"
        "from pathlib import Path\n"
        "from weighted_clip.encoder import images, image_file\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "try:\n"
        f"    image_file.open_image(Path({str(path)!r}))\n"
        "except ValueError:\n"
        "    pass\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 100 * 1024  # KiB


def test_what_is_no_file_or_too_long_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="not a file"):
        open_image(tmp_path)
    long = tmp_path / "long.webp"
    long.write_bytes(saved("WEBP"))
    os.truncate(long, image_file.MAX_BYTES + 1)
    with pytest.raises(ValueError, match="at most 536,870,912 are read"):
        open_image(long)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no pipes in folders")
def test_nobody_waits_for_a_pipe(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "cat.png")
    with pytest.raises(ValueError, match="a pipe"):
        open_image(tmp_path / "cat.png")


# ---- damage


KINDS = [
    ("PNG", {}),
    ("JPEG", {}),
    ("WEBP", {}),
    ("BMP", {}),
    ("GIF", {}),
    pytest.param("AVIF", {}, marks=AVIF),
    *(("TIFF", {"compression": name}) for name in ("raw", "tiff_lzw", "tiff_adobe_deflate", "packbits", "jpeg")),
]


@pytest.mark.parametrize(("kind", "options"), KINDS)
def test_damaged_files_are_read_or_refused_in_words(kind: str, options: dict[str, str], tmp_path: Path) -> None:
    rng = random.Random(0)
    whole = saved(kind, **options)
    path = tmp_path / "damaged.png"
    num_refused = 0
    for number in range(150):
        data = bytearray(whole)
        for _ in range(rng.randint(1, 5)):
            data[rng.randrange(min(len(data), 60 if number % 2 else len(data)))] = rng.choice(
                [0, 255, rng.randrange(256)]
            )
        path.write_bytes(data[: rng.randrange(len(data))] if number % 3 == 0 else data)
        try:
            open_image(path).convert("RGB")
        except ValueError as error:
            assert str(path) in str(error)
            num_refused += 1
    assert num_refused > 20


# ---- one place


def test_pictures_are_opened_in_one_place_only() -> None:
    parts = (
        "encoder",
        "hosts",
        "nodes",
        "scripts",
        "studio",
        "web",
        "weighting",
        "workshop",
    )
    files = [path for part in parts for path in (ROOT / part).rglob("*.py")]
    calls = [
        path.relative_to(ROOT).as_posix()
        for path in files
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Attribute) and node.attr == "open" and ast.unparse(node.value).endswith("Image")
    ]
    assert calls == ["encoder/image_file.py"]
