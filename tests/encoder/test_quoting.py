"""Foreign values in messages: no more text is made than is shown."""

from __future__ import annotations

import re
import tracemalloc
from pathlib import Path

import pytest
from weighted_clip.encoder.quoting import quote

ROOT = Path(__file__).resolve().parents[2]


def nested(levels: int, width: int) -> list[object]:
    """A list whose text would have width ** levels entries, held in a few objects."""
    value: list[object] = ["x"]
    for _ in range(levels):
        value = [value] * width
    return value


class Endless:
    """An object whose own text cannot be made."""

    def __repr__(self) -> str:
        raise AssertionError("its text was made")

    __str__ = __repr__


LARGE = {
    "text": "a" * 10**7,
    "bytes": b"\xff" * 10**7,
    "nested": nested(40, 9),
    "deep": nested(10**5, 1),
    "dictionary": {f"key{i}": nested(20, 9) for i in range(10**5)},
    "key": {("x" * 10**7, 1): Endless()},
    "set": {"a" * 10**6, 1},
    "number": 10**5000,
    "object": [Endless()],
    "tuple": (0,) * 10**6,
}


@pytest.mark.parametrize("value", LARGE.values(), ids=LARGE)
def test_no_more_text_is_made_than_is_shown(value: object) -> None:
    tracemalloc.start()
    text = quote(value)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert 0 < len(text) <= 81
    assert most < 100_000


@pytest.mark.parametrize(
    "value", ["a 'red' cat", "", b"\0", 1, -2.5, None, True, [1, "a"], ("a", 2), {"a": [None]}, []]
)
def test_small_values_look_as_in_repr(value: object) -> None:
    assert quote(value) == repr(value)


def test_subclasses_of_texts_and_numbers_do_not_say_their_own_text() -> None:
    class Word(str):
        def __repr__(self) -> str:
            raise AssertionError("its text was made")

    assert quote(Word("cat")) == "'cat'"


def test_no_message_makes_a_whole_text_and_cuts_it_then() -> None:
    """Formats such as ``{value!r:.80}``, and ``str(value)[:80]``: they make all of a value's text before its end."""
    cut = re.compile(r"![rsa]:\.\d|\b(?:repr|str)\([^()]*\)\[:")
    rooms = (
        "encoder",
        "hosts",
        "nodes",
        "studio",
        "web",
        "weighting",
    )
    files = [path for room in rooms for path in (ROOT / room).rglob("*.py") if path.name != "quoting.py"]
    assert len(files) > 100
    assert [path for path in files if cut.search(path.read_text(encoding="utf-8"))] == []
