"""Every target of targets.py on likely text and mutated files."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from .drawing import SURROGATES, TEXTS, WORDS, seeds
from .targets import TARGETS

EXAMPLES = {"lab": 25, "checkpoint": 30, "whole_clip": 30, "reading": 60, "route": 60, "command": 60, "timed": 80}
"""Examples for targets that take longer than others."""

LIKELY = st.lists(
    st.one_of(
        st.sampled_from(WORDS),
        st.sampled_from(TEXTS).map(str.encode),
        st.sampled_from(SURROGATES),
        st.text(max_size=6).map(str.encode),
    ),
    max_size=30,
).map(b"".join)
DATA = st.tuples(st.binary(max_size=24), LIKELY).map(b"".join)
"""Bytes that choose options or say how a file is mutated, and text."""


@pytest.mark.parametrize("name", TARGETS)
def test_no_input_raises_what_is_not_documented(name: str) -> None:
    if name == "lab":
        pytest.importorskip("gradio", reason="gradio is not installed: python run.py test installs it")

    @settings(max_examples=EXAMPLES.get(name, 150), database=None)
    @given(DATA)
    def check(data: bytes) -> None:
        TARGETS[name](data)

    check()


@pytest.mark.parametrize("name", TARGETS)
def test_every_seed_passes(name: str) -> None:
    if name == "lab":
        pytest.importorskip("gradio", reason="gradio is not installed: python run.py test installs it")
    given = list(seeds())
    for data in given[:: max(1, len(given) // EXAMPLES.get(name, 150))]:
        TARGETS[name](data)
