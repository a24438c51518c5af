"""The look at pickles: all that PyTorch writes of models and runs passes, and nothing that it would lose itself in."""

from __future__ import annotations

import io
import pickle
import zipfile
from collections import OrderedDict
from typing import Any

import pytest
import torch
from torch import nn
from weighted_clip.encoder.files.pickles import check_pickle
from weighted_clip.encoder.files.torch_archive import GLOBALS

from ..fuzz.model_files import doubled, entries, hashed, whole

LARGE = 2**24
ADDED = {"collections.OrderedDict", "__builtin__.set", "collections.Counter"}


def pickle_of(value: Any) -> bytes:
    file = io.BytesIO()
    torch.save(value, file)
    with zipfile.ZipFile(file) as archive:
        return archive.read(next(name for name in archive.namelist() if name.endswith("data.pkl")))


def optimizer_state() -> dict[str, Any]:
    model = nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4))
    optimizer = torch.optim.AdamW(model.parameters(), amsgrad=True)
    model(torch.ones(2, 3)).sum().backward()
    optimizer.step()
    return optimizer.state_dict()


SHARED = (1, 2.5)
PASSING = {
    "a state dict": nn.TransformerEncoderLayer(8, 2).state_dict(),
    "an optimizer": optimizer_state(),
    "parameters": nn.ParameterList([nn.Parameter(torch.ones(2, dtype=torch.float16))]).state_dict(keep_vars=True),
    "plain values": {"a": [1, -1, 2**40, 2.5, None, True, "é", (1, (2, 3))], 7: {}, "b": [SHARED, SHARED]},
    "ordered": OrderedDict(a=torch.ones(1), b=OrderedDict(c=torch.arange(3))),
    "views": [torch.ones(4)[1:], torch.ones(4, 4).T, *[torch.zeros(1).expand(3)] * 3],
    "2,000 tensors": {str(number): torch.ones(1) for number in range(2_000)},
}


@pytest.mark.parametrize("name", PASSING)
def test_what_pytorch_writes_passes(name: str) -> None:
    check_pickle(pickle_of(PASSING[name]), GLOBALS, LARGE)


def test_pickles_behind_each_other_are_looked_at_one_by_one() -> None:
    file = io.BytesIO(pickle.dumps({"a": 1}, 2) + pickle.dumps(["b"], 2) + whole(b"}" + doubled(b")", b"\x86") + b"Ns"))
    check_pickle(file, GLOBALS, LARGE)
    check_pickle(file, GLOBALS, LARGE)
    with pytest.raises(ValueError, match="nested and shared"):
        check_pickle(file, GLOBALS, LARGE)


@pytest.mark.parametrize(("name", "value"), list(hashed()))
def test_what_pytorch_would_lose_itself_in_is_refused(name: str, value: bytes) -> None:
    with pytest.raises((ValueError, pickle.UnpicklingError)):
        check_pickle(whole(entries({"x": value})), GLOBALS | ADDED, LARGE)


@pytest.mark.parametrize(
    "value",
    [b"}" + b"K\x01)\x86" + b"Ns", b"}NNs", b"]N\x94a", b"0", b"]h\x05a", b"K\x01Nb", b"c__main__\nx\n"],
)
def test_what_pytorch_does_not_write_is_refused(value: bytes) -> None:
    with pytest.raises((ValueError, pickle.UnpicklingError)):
        check_pickle(whole(value), GLOBALS, LARGE)


def test_a_long_pickle_is_refused() -> None:
    with pytest.raises(ValueError, match="more than 1,000 bytes"):
        check_pickle(whole(b"](" + b"N" * 2_000 + b"e"), GLOBALS, 1_000)
