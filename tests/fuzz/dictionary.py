"""Words that prompts and files are made of, and inputs to begin with. Needs nothing of the pack."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path

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
