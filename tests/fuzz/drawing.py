"""Words that prompts and files are made of, and choices, numbers and texts out of bytes. Needs nothing of the pack.

A coverage-guided fuzzer and hypothesis thus drive the same targets.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

PROMPTS = Path(__file__).resolve().parents[1] / "data" / "conversion_prompts.json"

TEXTS = (
    *("(", ")", "[", "]", ":", "::", "|", "\\", "\\(", '"', '\\"', "+", "-", "++", ",", ", ", ".", "=", "_", "<", ">"),
    *(
        "BREAK",
        " BREAK ",
        "AND",
        " AND ",
        "(a:1.2)",
        "[a:b:0.5]",
        "[a|b]",
        "((a))",
        "[[a]]",
        "(a)1.2",
        "(a)++",
        ":1.5)",
    ),
    *(
        ".and(",
        ".blend(",
        ".swap(",
        ".attend(",
        '("a", "b")',
        "withLora(",
        "no_normalize",
        "s_start=",
        "shape_freedom=",
    ),
    *("embedding:", "style", "broken", "gone", "bad hands", "<lora:", "<lora:a:0.5:te=1>", "<lyco:a>", "te=", "unet="),
    *("1", "0", "1.5", "-1", "1e400", "nan", "inf", "9" * 40, "1_0", "0." + "0" * 30 + "1", "\u0661", "\uff11"),
    *(
        "é",
        "e\u0301",
        "\u0301",
        "猫",
        "🦊",
        "👩‍👩‍👧",
        "\u202e",
        "\u200b",
        "\u200d",
        "\ufeff",
        "ß",
        "İ",
        "\x00",
        "\u2028",
    ),
    *("'s", "'LL", "<|endoftext|>", "<|startoftext|>", "<|ENDOFTEXT|>", "a", "cat", "photorealistic", " ", "\n", "\t"),
)
JSON_TEXTS = (
    *('{"text":"', '"}', '"steps":', '"syntax":"a1111"', '"syntax":"compel"', '"strict":true', '"hide":"', "\\ud800"),
    *('"dtype":"F32"', '"shape":[', '"data_offsets":[', '"__metadata__":{', "null", "true", "NaN", "1e999"),
    *(
        "Weighted CLIP",
        ".layers.0.",
        ".layers.1.",
        "layers.99999999999999999.",
        "clip_l",
        "../",
        "C:\\",
        "CON",
        "/etc/x",
    ),
)
SURROGATES = (b"\xed\xa0\x80", b"\xff", b"\x80")
"""No UTF-8: lone surrogates in the text that targets make of them."""

WORDS = tuple(text.encode() for text in (*TEXTS, *JSON_TEXTS)) + SURROGATES


def seeds() -> Iterator[bytes]:
    """Some prompts after selecting bytes, a request, and bytes alone, which mutate a small valid file."""
    rng = random.Random(0)
    prompts = json.loads(PROMPTS.read_text(encoding="utf-8"))
    for prompt in rng.sample(prompts, 60):
        for count in (1, 2, 6, 20):
            yield rng.randbytes(count) + prompt["prompt"].encode()
    for count in range(40):
        yield rng.randbytes(count)
    yield json.dumps({"text": "a (cat:1.2) [b:c:5]", "syntax": "a1111", "steps": 20}).encode()


T = TypeVar("T")


class Draw:
    """Reads bytes from the front; after their end everything is 0 or empty."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def __bool__(self) -> bool:
        return self._at < len(self._data)

    def take(self, count: int) -> bytes:
        part = self._data[self._at : self._at + count]
        self._at += count
        return part

    def number(self, most: int) -> int:
        """0 to ``most``."""
        size = (most.bit_length() + 7) // 8
        return int.from_bytes(self.take(size), "little") % (most + 1)

    def flag(self) -> bool:
        return bool(self.number(1))

    def pick(self, some: Sequence[T]) -> T:
        return some[self.number(len(some) - 1)] if len(some) > 1 else some[0]

    def text(self, most: int = 255) -> str:
        return as_text(self.take(self.number(most)))

    def rest(self) -> str:
        return as_text(self.take(len(self._data)))

    def value(self) -> Any:
        """Values that JSON can hold, and numbers that it should not."""
        kind = self.number(11)
        if kind == 0:
            return [self.value() for _ in range(self.number(3))]
        if kind == 1:
            return {self.text(12): self.value() for _ in range(self.number(3))}
        odd = (None, True, False, -1, 2**70, 0.5, float("nan"), float("inf"), "")
        return odd[kind - 2] if kind < 11 else self.text(40)


def as_text(data: bytes) -> str:
    """Any bytes as text; what is no UTF-8 becomes lone surrogates."""
    return data.decode("utf-8", "surrogateescape")
