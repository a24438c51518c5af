r"""Division of a caption: its pieces as readable lines.

>>> print("\n".join(piece_lines(Pieces([("r", "e"), ("re", "d</w>")]), "Red bé")))
    1     513  'red'
    2      65  'b' +
    3     127  b'\xc3' +
    4     358  b'\xa9'
"""

from __future__ import annotations

from ..encoder.tokenizer import END_OF_WORD, bytes_of
from .pieces import Pieces


def piece_lines(pieces: Pieces, caption: str) -> list[str]:
    """List the pieces of a caption: place, number and text, with a plus if the word continues in the next piece.

    Args:
        pieces: Merges to divide it by.
        caption: Any string.

    Returns:
        One line per piece, texts in quotation marks; parts of a character as bytes.
    """
    lines: list[str] = []
    for place, piece in enumerate(pieces(caption), 1):
        symbol = pieces.symbol(piece)
        lines.append(
            f"{place:>5} {piece:>7}  {_text(bytes_of(symbol))!r}{'' if symbol.endswith(END_OF_WORD) else ' +'}"
        )
    return lines


def _text(part: bytes) -> str | bytes:
    try:
        return part.decode()
    except UnicodeDecodeError:  # part of a character
        return part
