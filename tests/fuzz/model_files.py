"""Model files of strangers, by name: pickles and zips that take all memory or never end, safetensors files that lie.

``hostile_files()`` yields for each a name, a function that writes it to a path, and the command line that reads it,
with ``{file}`` and ``{out}`` in place of the file and of what is to be written. Each file is small, and each is to be
refused in words, at once and in little memory. ``controls()`` yields files of the same makers that are in order.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import torch
from torch import Tensor
from weighted_clip.encoder.models.text_model import TextModel
from weighted_clip.studio.dalle.full_model import save_dalle

from ..dalle.models import PRIOR, TINY, TINY_SMALL, seeded, tiny_dalle
from ..dalle.rudalle import formula_state
from ..encoder.files import hugging_face
from .file_targets import TEXT

Write = Callable[[Path], None]

CONVERT_DVAE = ["convert-dvae", "{file}", "{file}", "{out}.safetensors"]
CONVERT_RUDALLE = ["convert-rudalle", "{file}", "{out}.safetensors", "--variant", "rudalle-v3", "--heads", "4"]
SAMPLE = ["dalle", "sample", "{file}", "a red ring", "--out", "{out}", "--count", "1"]
ENCODE = ["encode", "a cat", "--weights", "{file}", "--no-pictures", "--out", "{out}"]


class ModelFile(NamedTuple):
    """A file, and what reads it."""

    name: str
    write: Write
    command: list[str]

    def written(self, folder: Path) -> list[str]:
        """Write it into a folder of its own, and return the command line that reads it there."""
        path = folder / ("model.bin" if self.command[0].startswith("convert") else "model.safetensors")
        self.write(path)
        return [part.replace("{file}", str(path)).replace("{out}", str(folder / "out")) for part in self.command]


# ---- pickles, made of their opcodes


def number(value: int) -> bytes:
    """A whole number of any size."""
    data = value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True)
    return b"\x8a" + bytes([len(data)]) + data


def text(value: str) -> bytes:
    """A string."""
    data = value.encode()
    return b"X" + struct.pack("<I", len(data)) + data


def named(module: str, name: str) -> bytes:
    """A global."""
    return f"c{module}\n{name}\n".encode()


def several(*parts: bytes) -> bytes:
    """A tuple."""
    return b"(" + b"".join(parts) + b"t"


def entries(items: dict[str, bytes]) -> bytes:
    """A dict by strings."""
    return b"}(" + b"".join(text(key) + value for key, value in items.items()) + b"u"


def called(module: str, name: str, *arguments: bytes) -> bytes:
    """The result of a call."""
    return named(module, name) + several(*arguments) + b"R"


ORDERED = called("collections", "OrderedDict")


def made(module: str, name: str, **attributes: bytes) -> bytes:
    """An object with attributes."""
    return named(module, name) + b")\x81" + entries(attributes) + b"b"


def stored(key: str, count: int, kind: str = "FloatStorage") -> bytes:
    """A storage of the file."""
    return several(text("storage"), named("torch", kind), text(key), text("cpu"), number(count)) + b"Q"


def tensor(storage: bytes, shape: Sequence[int], stride: Sequence[int], offset: int = 0) -> bytes:
    """A tensor on a storage."""
    sizes = (several(*map(number, shape)), several(*map(number, stride)))
    return called("torch._utils", "_rebuild_tensor_v2", storage, number(offset), *sizes, b"\x89", ORDERED)


def whole(inner: bytes) -> bytes:
    """A pickle, in the second protocol."""
    return b"\x80\x02" + inner + b"."


def doubled(inner: bytes, join: bytes, levels: int = 60, place: int = 100) -> bytes:
    """A value joined with itself again and again: ``2 ** levels`` parts in some 6 bytes for each level."""
    return inner + b"".join(b"q%ch%c%s" % (at, at, join) for at in range(place, place + levels))


def hashed() -> Iterator[tuple[str, bytes]]:
    """Values that never end, or take a square of time, where they are hashed, compared or shown."""
    tuples = doubled(b")", b"\x86")
    yield "a key of shared tuples", b"}" + tuples + b"K\x01s"
    yield "keys of shared tuples", b"}(" + tuples + b"K\x01" + text("a") + b"K\x02u"
    yield "shared tuples with a list in them", b"}" + doubled(b"]", b"\x86") + b"K\x01s"
    yield "an ordered dict of shared tuples", called("collections", "OrderedDict", b"]" + tuples + b"K\x01\x86a")
    yield "an ordered dict with a key of shared tuples", ORDERED + tuples + b"K\x01s"
    yield "a set of shared tuples", called("__builtin__", "set", b"]" + tuples + b"a")
    yield "a set that is shared tuples", called("__builtin__", "set", tuples)
    yield "a counter of shared tuples", called("collections", "Counter", b"]" + tuples + b"a")
    storage = text("storage") + named("torch", "FloatStorage")
    yield "a storage whose name is shared tuples", b"(" + storage + tuples + text("cpu") + number(16) + b"tQ"
    yield "shared tuples", tuples
    shared = b"]"
    for place in range(20):
        shared = b"](" + shared + b"q%c" % place + b"h%c" % place * 8 + b"e"
    yield "shared lists", shared
    yield "a list filled after its use", b"]q\x01]q\x02(h\x01h\x01eh\x01(h\x02h\x02e0"
    yield "tuples 100,000 deep", b")" + b"\x85" * 100_000
    yield "lists 100,000 deep", b"](" * 100_000 + b"e" * 100_000
    yield "a tuple of 100,000 parts", several(*[b"N"] * 100_000)
    one_hash = b"".join(number(at * (2**61 - 1)) + b"N" for at in range(80_000))
    yield "80,000 keys of one hash", b"}(" + one_hash + b"u"
    fractions = b"".join(b"G" + struct.pack(">d", 2.0**at) + b"N" for at in range(-1000, 1000))
    yield "keys with a fraction", b"}(" + fractions + b"u"


def module(inner: dict[str, Any], kind: tuple[str, str]) -> bytes:
    """A module of OpenAI's, with those within it as dicts and its parameters as pickled tensors."""
    parameters = {name: part for name, part in inner.items() if isinstance(part, bytes)}
    modules = {
        name: module(part, ("torch.nn.modules.container", "Sequential"))
        for name, part in inner.items()
        if isinstance(part, dict)
    }
    return made(*kind, _parameters=entries(parameters), _modules=entries(modules))


ENCODER, DECODER = ("dall_e.encoder", "Encoder"), ("dall_e.decoder", "Decoder")


def half(state: dict[str, Tensor], kind: tuple[str, str] = ENCODER, **changed: bytes) -> tuple[bytes, list[bytes]]:
    """A pickled half of OpenAI's dVAE with some of its parameters exchanged, and its storages."""
    tree: dict[str, Any] = {}
    storages: list[bytes] = []
    for name, value in state.items():
        *path, last = name.split(".")
        place = tree
        for part in path:
            place = place.setdefault(part, {})
        plain = tensor(stored(str(len(storages)), value.numel()), value.shape, value.stride())
        place[last] = changed.get(name.replace(".", "_"), plain)
        storages.append(value.numpy().tobytes())
    return whole(module(tree, kind)), storages


# ---- zips


@dataclass
class Entry:
    """An entry of a zip, and how its directory lies about it."""

    name: str
    data: bytes
    """Its bytes in the file."""
    size: int | None = None
    """Size that it is said to have once unpacked."""
    is_deflated: bool = False
    crc: int | None = None
    same_as: int | None = None
    """Number of an entry before it, whose bytes are its own too."""
    packed: int | None = None
    """Size that it is said to have in the file."""


def zipped(parts: Sequence[Entry], comment: bytes = b"", shift: int = 0, count: int | None = None) -> bytes:
    """A zip of entries; ``shift`` and ``count`` are lies about where its directory begins and how long it is."""
    body, directory, offsets = bytearray(), bytearray(), list[int]()
    for part in parts:
        name, size = part.name.encode(), len(part.data) if part.size is None else part.size
        packed = len(part.data) if part.packed is None else part.packed
        crc = zlib.crc32(part.data) if part.crc is None else part.crc
        fields = struct.pack("<5H3I2H", 20, 0, 8 * part.is_deflated, 0, 33, crc, packed, size, len(name), 0)
        offset = len(body) if part.same_as is None else offsets[part.same_as]
        offsets.append(offset)
        if part.same_as is None:
            body += b"PK\3\4" + fields + name + part.data
        directory += b"PK\1\2" + struct.pack("<H", 20) + fields + struct.pack("<3H2I", 0, 0, 0, 0, offset) + name
    number_of = len(parts) if count is None else count
    end = struct.pack("<4H2IH", 0, 0, number_of, number_of, len(directory), len(body) + shift, len(comment))
    return bytes(body + directory + b"PK\5\6" + end + comment)


@cache
def _zeros(count: int) -> tuple[bytes, int]:
    """Deflated mebibytes of zeros, and their checksum."""
    mebibyte = bytes(2**20)
    packer = zlib.compressobj(1, zlib.DEFLATED, -15)
    block = packer.compress(mebibyte) + packer.flush(zlib.Z_FULL_FLUSH)
    crc = 0
    for _ in range(count):
        crc = zlib.crc32(mebibyte, crc)
    return block * count + packer.flush(zlib.Z_FINISH), crc


def bomb(name: str, count: int = 991) -> Entry:
    """An entry that inflates to mebibytes of zeros."""
    data, crc = _zeros(count)
    return Entry(name, data, count * 2**20, True, crc)


def deflated(data: bytes) -> bytes:
    """The bytes of a deflated entry."""
    packer = zlib.compressobj(1, zlib.DEFLATED, -15)
    return packer.compress(data) + packer.flush()


def pickled_parts(pickle: bytes, storages: Sequence[bytes] = ()) -> list[Entry]:
    """The entries of a file of ``torch.save``."""
    return [
        Entry("archive/data.pkl", pickle),
        Entry("archive/byteorder", b"little"),
        *(Entry(f"archive/data/{index}", data) for index, data in enumerate(storages)),
        Entry("archive/version", b"3\n"),
    ]


def pickled(pickle: bytes, storages: Sequence[bytes] = ()) -> bytes:
    """A file of ``torch.save``."""
    return zipped(pickled_parts(pickle, storages))


@cache
def encoder_state() -> dict[str, Tensor]:
    """Parameters of a small dVAE's encoder."""
    return {name: value.contiguous() for name, value in seeded(TINY).encoder.state_dict().items()}


def _tower(depth: int, width: int) -> bytes:
    """Modules that each hold the one below them several times: width to the power of depth if all are walked."""
    inner = made("torch.nn.modules.activation", "ReLU") + b"q\x00"
    for level in range(1, depth + 1):
        again = [b"h" + bytes([level - 1])] * (width - 1)
        parts = {str(index): part for index, part in enumerate([inner, *again])}
        kind = ENCODER if level == depth else ("torch.nn.modules.container", "Sequential")
        inner = made(*kind, _modules=entries(parts)) + b"q" + bytes([level])
    return whole(inner)


def _chain(depth: int) -> bytes:
    """Modules within modules."""
    inner = made("torch.nn.modules.activation", "ReLU")
    for level in range(depth):
        kind = ENCODER if level == depth - 1 else ("torch.nn.modules.container", "Sequential")
        inner = made(*kind, _modules=entries({"x": inner}))
    return whole(inner)


def _encoder(**attributes: bytes) -> bytes:
    return whole(made(*ENCODER, **attributes))


def _values(value: bytes) -> list[tuple[list[str], tuple[bytes, list[bytes]]]]:
    """A pickled value as an entry of a state dict and as an encoder's only parameter, each for its command."""
    return [
        (CONVERT_RUDALLE, (whole(entries({"w": value})), [bytes(64)])),
        (CONVERT_DVAE, (_encoder(_parameters=entries({"w": value})), [bytes(64)])),
    ]


def _tensors() -> Iterator[tuple[str, bytes]]:
    """Tensors that are none, or more than their storage."""
    sixteen = stored("0", 16)
    for exponent in (10, 20, 30, 31, 40, 60, 62):
        yield f"2^{exponent} elements with stride 0", tensor(sixteen, [2**exponent], [0])
        yield f"2^{exponent} elements behind each other", tensor(sixteen, [2**exponent], [1])
        yield f"a storage that is said to have 2^{exponent} elements", tensor(stored("0", 2**exponent), [16], [1])
        yield (
            f"a storage and a tensor that are said to have 2^{exponent} elements",
            tensor(stored("0", 2**exponent), [2**exponent], [1]),
        )
    yield "two axes of stride 0", tensor(sixteen, [2**20, 2**20], [0, 0])
    yield "sixty axes of stride 0", tensor(sixteen, [2] * 40, [0] * 40)
    yield "an offset beyond the storage", tensor(sixteen, [4], [1], 2**40)
    yield "a negative offset", tensor(sixteen, [4], [1], -4)
    yield "a negative size", tensor(sixteen, [-4], [1])
    yield "a negative stride", tensor(sixteen, [4], [-1])
    yield "a size of 255 bytes", tensor(sixteen, [2**2000], [1])
    yield "a storage with fewer than 0 elements", tensor(stored("0", -(2**40)), [16], [1])
    yield "a storage that is not there", tensor(stored("9", 16), [16], [1])
    yield "a storage in another folder", tensor(stored("../version", 16), [16], [1])
    yield "no elements", tensor(sixteen, [0], [1])
    shape, stride = several(number(2**40)), several(number(1))
    meta = named("torch", "float32"), shape, stride, b"\x89"
    yield "a tensor without memory", called("torch._utils", "_rebuild_meta_tensor_no_storage", *meta)
    index = tensor(stored("0", 2, "LongStorage"), [1, 2], [2, 1])
    value = tensor(stored("1", 2), [2], [1])
    sparse = called("torch.serialization", "_get_layout", text("torch.sparse_coo"))
    yield (
        "a sparse tensor",
        called(
            "torch._utils", "_rebuild_sparse_tensor", sparse, several(index, value, several(number(2**40)), b"\x88")
        ),
    )
    yield "a tensor made by its class", called("torch", "FloatTensor", number(2**36))
    yield "a byte array of 16 GiB", called("builtins", "bytearray", number(2**34))
    inner = called("_codecs", "encode", text("aaaa"), text("ascii"))
    for _ in range(29):
        inner = called("_codecs", "encode", inner, text("hex_codec"))
    yield "letters that are doubled 29 times", inner
    yield "a number", number(2**2000)
    yield "nothing", b"N"
    yield "a set", called("builtins", "set", b"]")
    yield "itself", b"}q\x00h\x00"
    yield "a call of the system", called("os", "system", text("true"))


def _pickles() -> Iterator[tuple[str, list[str], bytes]]:
    """Pickles by name, with the command that reads them, as whole files."""
    for place, (name, value) in enumerate((*_tensors(), *hashed())):  # the second reads most of them by the same code
        for command, (pickle, storages) in _values(value)[: 2 if place % 4 == 0 else 1]:
            yield name, command, pickled(pickle, storages)
    for depth, width in ((14, 8), (14, 2), (8, 8), (3, 200), (100, 2)):
        yield f"modules {width} at a time, {depth} deep", CONVERT_DVAE, pickled(_tower(depth, width))
    for depth in (17, 200, 2_000):
        yield f"modules {depth} deep", CONVERT_DVAE, pickled(_chain(depth))
    itself = whole(named(*ENCODER) + b")\x81q\x00" + entries({"_modules": entries({"x": b"h\x00"})}) + b"b")
    yield "a module within itself", CONVERT_DVAE, pickled(itself)
    state = encoder_state()
    for name in ("blocks.input.w", "blocks.output.conv.w"):
        shape = [2**14, *state[name].shape[1:]]
        wide = tensor(stored("0", state[name].numel()), shape, [0] * 4)
        changed = {name.replace(".", "_"): wide}
        yield f"{name} wider than its storage", CONVERT_DVAE, pickled(*half(state, **changed))
    lying = stored("0", 2**28)
    changed = {"blocks_input_w": tensor(lying, state["blocks.input.w"].shape, state["blocks.input.w"].stride(), 2**27)}
    yield "a parameter far behind its bytes", CONVERT_DVAE, pickled(*half(state, **changed))
    many = entries({f"w{index}": b"h\x00" for index in range(20_000)})
    once = tensor(stored("0", 2**20), [2**20], [1]) + b"q\x000"
    for command, pickle in (
        (CONVERT_DVAE, whole(once + made(*ENCODER, _parameters=many))),
        (CONVERT_RUDALLE, whole(once + many)),
    ):
        yield "a storage under 20,000 names", command, pickled(pickle, [bytes(2**22)])
    shared = entries({f"w{index}": number(1) for index in range(3)})
    twice = {"_modules": entries({str(i): made(*ENCODER, _parameters=b"h\x00") for i in range(4)})}
    yield "parameters of several modules", CONVERT_DVAE, pickled(whole(shared + b"q\x000" + made(*ENCODER, **twice)))
    for length in (0, 1, 2, 5):
        yield f"a pickle of {length} bytes", CONVERT_RUDALLE, pickled(b"\x80\x02}q\x00."[:length])
    yield "five million lists", CONVERT_RUDALLE, pickled(whole(b"](" + b"]" * 5_000_000 + b"e"))
    yield "marks alone", CONVERT_RUDALLE, pickled(whole(b"(" * 1_000_000))
    yield "a place in the memo of four billion", CONVERT_RUDALLE, pickled(whole(b"}r\xff\xff\xff\xff"))
    yield "a string of four billion bytes", CONVERT_RUDALLE, pickled(whole(b"X\xff\xff\xff\xff" + b"a"))
    yield "bytes of eight exbibytes", CONVERT_RUDALLE, pickled(whole(b"\x8e" + b"\xff" * 7 + b"\x7f"))
    yield "a frame of eight exbibytes", CONVERT_RUDALLE, pickled(b"\x80\x04\x95" + b"\xff" * 7 + b"\x7f}.")
    yield "an unknown opcode", CONVERT_RUDALLE, pickled(whole(b"\xfe"))
    yield "the protocol 200", CONVERT_RUDALLE, pickled(b"\x80\xc8}.")


def rudalle_parts() -> list[Entry]:
    """The entries of a small model of ru-DALL-E."""
    state = formula_state()
    tensors = {
        name: tensor(stored(str(index), value.numel()), value.shape, value.stride())
        for index, (name, value) in enumerate(state.items())
    }
    return pickled_parts(whole(entries(tensors)), [value.numpy().tobytes() for value in state.values()])


def _zips() -> Iterator[tuple[str, list[str], bytes]]:
    """Zips by name, with the command that reads them."""
    million = b"\x80\x02](" + b"]" * 20_000_000 + b"e."
    lists = Entry("archive/data.pkl", deflated(million), len(million), True, zlib.crc32(million))
    command, parts = CONVERT_RUDALLE, rudalle_parts()
    first, *rest = parts

    def replaced(number: int, entry: Entry) -> bytes:
        return zipped([*parts[:number], entry, *parts[number + 1 :]])

    yield "a pickle that inflates to 991 MiB", command, replaced(0, bomb(first.name))
    yield "a pickle that inflates to 20 million lists", command, replaced(0, lists)
    yield "a storage that inflates to 991 MiB", command, replaced(2, bomb(rest[1].name))
    yield "an entry more, which inflates to 991 MiB", command, zipped([*parts, bomb("archive/x")])
    yield "a byte order that inflates to 991 MiB", command, replaced(1, bomb(rest[0].name))
    yield "a version that inflates to 991 MiB", command, replaced(len(parts) - 1, bomb(rest[-1].name))
    for size in (2**31, 2**32 - 2):
        for place, what in ((0, "a pickle"), (2, "a storage")):
            name, data = parts[place].name, parts[place].data
            yield f"{what} that is said to have {size} bytes", command, replaced(place, Entry(name, data, size))
            longer = Entry(name, data, size, packed=size)
            yield f"{what} that is said to take {size} bytes", command, replaced(place, longer)
            packed = Entry(name, deflated(data), size, True)
            yield f"{what}, deflated, that is said to have {size} bytes", command, replaced(place, packed)
    large = Entry("archive/large", bytes(2**20))
    crc = zlib.crc32(large.data)
    overlapping = [Entry(f"archive/{index}", large.data, crc=crc, same_as=0) for index in range(5_000)]
    yield "5,000 entries of the same bytes", command, zipped([large, *overlapping, *parts])
    yield "60,000 entries", command, zipped([*parts, *(Entry(f"archive/{index}", b"") for index in range(60_000))])
    yield "two pickles", command, zipped([*parts, Entry("archive/data.pkl", whole(b"}"))])
    yield (
        "two pickles whose names differ in case",
        command,
        zipped([Entry("archive/DATA.PKL", whole(b"}")), *parts]),
    )
    yield "a pickle in another folder", command, zipped([Entry("a/version", b"3\n"), *parts])
    yield "a zip in a zip", command, zipped([Entry("archive/data.pkl", zipped(parts)), *rest])
    yield "a comment", command, zipped(parts, b"x" * 60_000)
    yield "another end in its comment", command, zipped(parts, zipped([]))
    yield "bytes before it", command, b"PK\3\4" + zipped(parts)
    for shift in (-100, 100, 2**31):
        yield f"a directory {shift} bytes away", command, zipped(parts, shift=shift)
    for count in (0, 1, 65_535):
        yield f"a directory that is said to have {count} entries", command, zipped(parts, count=count)
    file = zipped(parts)
    for cut in (1, 22, 100, len(file) // 2, len(file) - 5):
        yield f"{cut} bytes cut off", command, file[:-cut]
    yield "no entries", command, b"PK\3\4" + zipped([])
    yield "a version of a thousand digits", command, replaced(len(parts) - 1, Entry(rest[-1].name, b"9" * 1000))
    yield "a TorchScript archive", command, zipped([*parts, Entry("archive/constants.pkl", whole(b")"))])


# ---- safetensors


@cache
def dalle_file() -> tuple[dict[str, Any], bytes]:
    """Header and data of a small DALL·E."""
    with TemporaryDirectory(prefix="fuzz-") as folder:
        path = Path(folder, "dalle.safetensors")
        save_dalle(tiny_dalle(), path)
        file = path.read_bytes()
    length = int.from_bytes(file[:8], "little")
    return json.loads(file[8 : 8 + length]), file[8 + length :]


def lying(header: str | bytes, data: bytes, length: int | None = None, cut: int = 0) -> Write:
    """A writer of a safetensors file whose header may be said to be longer or shorter, and whose end may be missing."""
    head = header if isinstance(header, bytes) else header.encode("utf-8", "surrogatepass")

    def write(path: Path) -> None:
        file = struct.pack("<Q", len(head) if length is None else length) + head + data
        path.write_bytes(file[: len(file) - cut])

    return write


VALUES = {
    "0": "0",
    "-1": "-1",
    "true": "true",
    "null": "null",
    "a string": '"8"',
    "a string of 5,000 digits": '"' + "9" * 5000 + '"',
    "a number of 4,000 digits": "9" * 4000,
    "a number of 5,000 digits": "9" * 5000,
    "NaN": "NaN",
    "Infinity": "-Infinity",
    "1e308": "1e308",
    "a fraction": "2.5",
    "2^31": str(2**31),
    "2^63": str(2**63),
    "2^64": str(2**64),
    "131,071": "131071",
    "20,001": "20001",
    "a list": "[]",
    "an object": "{}",
    "a list 900 deep": "[" * 900 + "]" * 900,
    "a list 100,000 deep": "[" * 100_000 + "]" * 100_000,
}
"""Values that are no size of a small model, in JSON."""


def _sizes() -> Iterator[tuple[str, Write]]:
    """A DALL·E with one of its sizes exchanged."""
    header, data = dalle_file()
    for part, config in (("prior", PRIOR), ("dvae", TINY_SMALL)):
        for field in vars(config):
            if field == "init_dim":  # no part of the small architecture
                continue
            for name, value in VALUES.items():
                sizes = {**vars(config), field: "@"}
                said = json.dumps(sizes).replace('"@"', value)
                metadata = {**header["__metadata__"], part: said}
                yield f"{part}.{field} is {name}", lying(json.dumps({**header, "__metadata__": metadata}), data)
    for part in ("prior", "dvae", "merges", "format"):
        for name, value in VALUES.items():
            metadata = {**header["__metadata__"], part: value}
            yield f"{part} is {name}", lying(json.dumps({**header, "__metadata__": metadata}), data)
    for kernel in (5_001, 2**17 + 1):
        sizes = json.dumps({**vars(PRIOR), "kernel_size": kernel})
        metadata = {**header["__metadata__"], "prior": sizes}
        yield f"a kernel of {kernel}", lying(json.dumps({**header, "__metadata__": metadata}), data)
    for length, rows, columns in ((5_000, 3, 4), (12, 2_500, 2), (12, 1, 5_000), (1, 70, 70)):
        sizes = json.dumps({**vars(PRIOR), "text_length": length, "rows": rows, "columns": columns})
        metadata = {**header["__metadata__"], "prior": sizes}
        yield (
            f"{length} pieces and {rows} x {columns} tokens",
            lying(json.dumps({**header, "__metadata__": metadata}), data),
        )
    merges = "\n".join(f"{'a' * 2**index} {'a' * 2**index}" for index in range(17))
    for name, value in (
        ("merges that double", merges),
        ("merges of nothing", " \n" * 50_000),
        ("200,000 merges", "\n".join(["a b"] * 200_000)),
        ("a merge of a million letters", "a" * 1_000_000 + " b"),
    ):
        metadata = {**header["__metadata__"], "merges": value}
        yield name, lying(json.dumps({**header, "__metadata__": metadata}), data)


def _headers(header: dict[str, Any], data: bytes) -> Iterator[tuple[str, Write]]:
    """A safetensors file whose header lies."""
    plain = json.dumps(header)
    key, *_, last = (key for key in header if key != "__metadata__")
    begin, end = header[key]["data_offsets"]

    def changed(**entry: Any) -> Write:
        return lying(json.dumps({**header, key: {**header[key], **entry}}), data)

    for offsets in (
        [begin + 4, end + 4],
        [begin, end + 4],
        [end, begin],
        [-4, end],
        [begin, 2**31],
        [begin, 2**63],
        [begin, 2**64 - 1],
        [2**63, 2**63],
        [2**64, 2**64 + 4],
        [0.5, 4.5],
        [begin],
        [],
        None,
        "0",
        header[last]["data_offsets"],
    ):
        yield f"offsets {offsets}", changed(data_offsets=offsets)
    for shape in ([2**31, 2**31], [2**63], [2**64], [-1], [0], [], [1.5], ["1"], None, 7, [1] * 10_000, [2**20] * 4):
        yield f"shape {str(shape)[:60]}", changed(shape=shape)
    for dtype in ("F99", "", "f32", "C64", "I64", "BOOL", "F4", None, 32, [], "F" * 100_000):
        yield f"type {str(dtype)[:20]!r}", changed(dtype=dtype)
    for length in (0, 1, 7, len(plain) - 1, len(plain) + 1, 2**20 + 1, 2**24 + 1, 10**8, 2**31, 2**63, 2**64 - 1):
        yield f"a header that is said to have {length} bytes", lying(plain, data, length)
    for cut in (1, 100, len(data) // 2, len(data), len(data) + 10, len(data) + len(plain), len(data) + len(plain) + 5):
        yield f"{cut} bytes cut off", lying(plain, data, cut=cut)
    entry = json.dumps(header[key])
    yield "a key twice", lying(f"{plain[:-1]}, {json.dumps(key)}: {entry}}}", data)
    yield "metadata twice", lying(f'{plain[:-1]}, "__metadata__": {{"format": "dalle"}}}}', data)
    for value in (None, [], 3, "x", {"format": 3}, {"format": {"a": "b"}}, {}):
        yield f"metadata {value}", lying(json.dumps({**header, "__metadata__": value}), data)
    yield "a header of lists", lying("[" * 100_000 + "]" * 100_000, data)
    yield "a header of objects", lying('{"a":' * 100_000 + "1" + "}" * 100_000, data)
    yield "a header that is a list", lying("[]", data)
    yield "a header that is no text", lying(b"\xff\xfe" * 50, data)
    yield "a header that is not JSON", lying(plain[:-1], data)
    yield "something behind the header", lying(plain + "{}", data)
    yield (
        "10,000 keys more",
        lying(
            json.dumps(
                header | {f"x{index}": {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]} for index in range(9000)}
            ),
            data,
        ),
    )
    for name in ("x" * 100_000, "\0", "", "\ud800", "../x", "__metadata__ "):
        moved = {name if one == key else one: entry for one, entry in header.items()}
        yield f"a key {name[:12]!r}", lying(json.dumps(moved), data)
    yield "bytes behind it", lying(plain, data + bytes(4))
    yield "values that are no numbers", lying(plain, b"\xff" * len(data))
    for name, file in (("no bytes", b""), ("zeros", bytes(100_000)), ("a pickle", pickled(whole(b"}")))):
        yield name, partial(_bytes_to, file)


@cache
def encoder_file() -> tuple[dict[str, Any], bytes]:
    """Header and data of a small text encoder, in numbers of 8 bits, as its vocabulary alone takes megabytes."""
    header: dict[str, Any] = {}
    end = 0
    with torch.device("meta"):
        tensors = hugging_face(dict(TextModel(TEXT).named_parameters()), "")
    for name, value in tensors.items():
        begin, end = end, end + value.numel()
        header[name] = {"dtype": "F8_E4M3", "shape": list(value.shape), "data_offsets": [begin, end]}
    return header, bytes(end)


CONFIG = {
    "model_type": "clip_text_model",
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 1,
    "projection_dim": 64,
}


def _configs() -> Iterator[tuple[str, str]]:
    """Contents of a ``config.json`` beside an encoder that it fits but for one entry."""
    for field in ("num_attention_heads", "hidden_act", "layer_norm_eps"):
        for name, value in VALUES.items():
            yield f"config.json: {field} is {name}", json.dumps({**CONFIG, field: "@"}).replace('"@"', value)
    yield "config.json: three heads", json.dumps({**CONFIG, "num_attention_heads": 3})
    for name, value in (
        ("lists", "[" * 500_000 + "]" * 500_000),
        ("objects", '{"text_config":' * 100_000 + "{}" + "}" * 100_000),
        ("cut off", '{"model_type": "clip_text_model"'),
        ("two megabytes", json.dumps({**CONFIG, "x": "x" * 2**21})),
    ):
        yield f"config.json: {name}", value


# ---- all of them


def _bytes_to(data: bytes, path: Path) -> None:
    path.write_bytes(data)


def _sparse(path: Path, data: bytes, size: int) -> None:
    with path.open("wb") as file:
        file.write(data)
        file.truncate(size)


def _beside(path: Path, config: str | None, size: int | None = None) -> None:
    """An encoder, and what is beside it."""
    header, data = encoder_file()
    lying(json.dumps(header), data)(path)
    if config is not None:
        path.with_name("config.json").write_text(config, encoding="utf-8")
    if size is not None:
        _sparse(path.with_name("config.json"), b"{", size)


def hostile_files() -> Iterator[ModelFile]:
    """All files that are to be refused, or read as if nothing were. Each needs a folder of its own."""
    for name, command, data in (*_pickles(), *_zips()):
        yield ModelFile(f"{command[0]}: {name}", partial(_bytes_to, data), command)
    for name, write in (*_sizes(), *_headers(*dalle_file())):
        yield ModelFile(f"dalle sample: {name}", write, SAMPLE)
    for name, write in _headers(*encoder_file()):
        yield ModelFile(f"encode: {name}", write, ENCODE)
    for size in (2**33, 2**40):
        hole = partial(_sparse, data=struct.pack("<Q", size - 8), size=size)
        yield ModelFile(f"dalle sample: a header of {size} bytes, most of them a hole", hole, SAMPLE)
        yield ModelFile(f"encode: a header of {size} bytes, most of them a hole", hole, ENCODE)
    for name, config in _configs():
        yield ModelFile(f"encode: {name}", partial(_beside, config=config), ENCODE)
    for size in (5 * 10**9, 2**40):
        yield ModelFile(f"encode: config.json of {size} bytes", partial(_beside, config=None, size=size), ENCODE)


def controls() -> Iterator[ModelFile]:
    """Files of the same makers that are in order, and are read."""
    decoder = {name: value.contiguous() for name, value in seeded(TINY).decoder.state_dict().items()}

    def halves(path: Path) -> None:
        path.write_bytes(pickled(*half(encoder_state())))
        path.with_name(f"{path.name}.decoder").write_bytes(pickled(*half(decoder, DECODER)))

    yield ModelFile("convert-dvae", halves, ["convert-dvae", "{file}", "{file}.decoder", "{out}.safetensors"])
    yield ModelFile("convert-rudalle", partial(_bytes_to, zipped(rudalle_parts())), CONVERT_RUDALLE)
    header, data = dalle_file()
    yield ModelFile("dalle sample", lying(json.dumps(header), data), SAMPLE)
    yield ModelFile("encode", partial(_beside, config=None), ENCODE)
    yield ModelFile("encode with config.json", partial(_beside, config=json.dumps(CONFIG)), ENCODE)
