"""open_clip: its tokenizer."""

# pyright: reportMissingImports=false

from __future__ import annotations

from collections.abc import Callable


def ids_of_open_clip() -> Callable[[str], list[int]]:
    """Its tokenizer."""
    from open_clip.tokenizer import SimpleTokenizer

    return SimpleTokenizer().encode
