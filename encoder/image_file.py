"""Opening untrusted image files: few formats, a bounded size, and one kind of error.

Pillow goes by a file's first bytes, whatever its name, and passes PostScript to a program that runs it. So formats are
restricted here, and this is the only place in the pack that opens pictures.
"""

from __future__ import annotations

import io
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

from .regular_file import stat_of

if TYPE_CHECKING:
    from PIL import Image, ImageFile
    from torch import Tensor

FORMATS = {
    "PNG": (".png",),
    "JPEG": (".jpg", ".jpeg"),
    "WEBP": (".webp",),
    "BMP": (".bmp",),
    "GIF": (".gif",),
    "TIFF": (".tif", ".tiff"),
    "AVIF": (".avif",),
}
"""Supported formats by Pillow's names, with their file suffixes."""
SUFFIXES = tuple(suffix for suffixes in FORMATS.values() for suffix in suffixes)
"""Suffixes of image files."""
TIFF_COMPRESSIONS = ("raw", "tiff_lzw", "tiff_adobe_deflate", "tiff_deflate", "packbits")
"""Supported compressions of a TIFF, which can have many more, by Pillow's names."""
MAX_PIXELS = 8192 * 8192
"""Largest image, in pixels; also the largest tile of a TIFF, whose size is independent."""
MAX_BYTES = 512 * 2**20
"""Maximum file size: an image of `MAX_PIXELS` with four channels of 16 bits. Some formats are read whole."""

_TILE_WIDTH, _TILE_LENGTH = 322, 323  # tags of TIFF 6.0


def open_image(path: Path, data: bytes | None = None) -> Image.Image:
    """Read the first frame of an image file, oriented by its EXIF data, in 8 bits.

    Args:
        path: The file, whatever its name.
        data: Its bytes, if it is part of another file; then ``path`` only names it.

    Returns:
        The fully loaded image.

    Raises:
        ValueError: If it is not a file, not in one of `FORMATS`, broken, too large or too thin.
    """
    from PIL import Image, ImageOps, UnidentifiedImageError

    from .images import MAX_RATIO

    Image.init()  # an older Pillow does not load all formats by itself
    formats = [name for name in FORMATS if name in Image.OPEN]
    try:
        # refused, like what would block, such as a pipe: some formats are read whole
        if data is None and (size := stat_of(path).st_size) > MAX_BYTES:
            raise OSError(f"it has {size:,} bytes, at most {MAX_BYTES:,} are read")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about odd headers, and sizes from half of Pillow's own limit on
            with Image.open(path if data is None else io.BytesIO(data), formats=formats) as file:
                _check_head(file)
                file.load()
                # Pillow rotates a TIFF when reading it; older versions keep the tag, but a copy has none
                image = file.copy() if file.format == "TIFF" else ImageOps.exif_transpose(file)
    except Image.DecompressionBombError:  # Pillow's own limit, or ours
        advice = f"at most {MAX_PIXELS:,} pixels are read, as 8192 x 8192 has"
        raise ValueError(f"{path}: too large: {advice}; make it smaller first") from None
    except UnidentifiedImageError as error:
        raise ValueError(f"{path}: no image of a kind that is read: {_kinds()}") from error
    except Exception as error:  # broken files fail in many ways, depending on the format
        reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
        raise ValueError(f"{path}: broken image: {reason}") from error
    if max(image.size) > MAX_RATIO * min(image.size):
        raise ValueError(f"{path}: too thin: {image.width} x {image.height} pixels")
    if image.mode.startswith("I"):  # 16 bits; Pillow would clip them at 255
        return image.convert("I").point(lambda value: value / 257).convert("L")
    return image


def _kinds() -> str:
    """Supported formats, and those missing in this Pillow."""
    import PIL
    from PIL import features

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Pillow before 11.3 warns about an unknown name
        missing = [name for name in ("WEBP", "AVIF") if not features.check(name.lower())]
    kinds = ", ".join(FORMATS).replace("TIFF", "TIFF (8 or 16 bits; uncompressed, LZW, Deflate or PackBits)")
    return kinds + "".join(f"; this Pillow, {PIL.__version__}, has no {name}" for name in missing)


def _check_head(file: ImageFile.ImageFile) -> None:
    """Refuse files that are too large, or a TIFF of a rare kind, before any pixel is read."""
    from PIL import Image, UnidentifiedImageError

    num_pixels = file.width * file.height
    if file.format == "TIFF":
        if file.info["compression"] not in TIFF_COMPRESSIONS or file.mode in ("I", "F", "LAB"):
            raise UnidentifiedImageError
        tags = file.tag_v2  # pyright: ignore[reportAttributeAccessIssue]
        num_pixels = max(num_pixels, tags.get(_TILE_WIDTH, 0) * tags.get(_TILE_LENGTH, 0))
    if num_pixels > MAX_PIXELS:
        raise Image.DecompressionBombError


def image_of(pixels: Tensor) -> Image.Image:
    """Picture of pixels ``[3, h, w]`` in 0..1."""
    from PIL import Image

    return Image.fromarray((pixels * 255).round().byte().permute(1, 2, 0).contiguous().numpy())
