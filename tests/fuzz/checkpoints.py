"""Damaged checkpoints of training runs: each damage is a function that changes the files of a run's folder.

The folder is that of a run that was stopped, with some steps left. After any of these damages its command with
``--resume`` must end with status 1 and one line that names the file, and write nothing.
"""

from __future__ import annotations

import math
import pickle
import zipfile
from collections import OrderedDict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .model_files import entries, hashed, whole

Damage = Callable[[Path], None]
NAME = "checkpoint.pt"
LONG = "7" * 5000

# ---- values in place of others

NUMBERS: dict[str, Any] = {
    "1e9": 10**9,
    "-1": -1,
    "nan": math.nan,
    "inf": math.inf,
    "1e308": 1e308,
    "half": 2.5,
    "a bool": True,
    "5,000 digits as text": LONG,
    "5,000 digits": int("9" * 4000) ** 2,
    "none": None,
    "a list": [1],
    "a tensor": torch.ones(3),
    "text": "3",
}
OTHERS: dict[str, Any] = {
    "none": None,
    "text": "x" * 5000,
    "a list": [1, 2],
    "a number": 10**30,
    "empty": {},
    "a tensor": torch.ones(2, 2),
}


class Code:
    """Writes a file named "run" into the working folder when it is unpickled."""

    def __reduce__(self) -> tuple[Any, tuple[str, str]]:
        return open, ("run", "w")


# ---- the file as bytes


def _bytes(change: Callable[[bytes], bytes]) -> Damage:
    def damage(folder: Path) -> None:
        path = folder / NAME
        path.write_bytes(change(path.read_bytes()))

    return damage


def _flipped(content: bytes) -> bytes:
    """Flip bits all over the pickle."""
    place = content.index(b"data.pkl") + 200
    return content[:place] + bytes(byte ^ 0x55 for byte in content[place : place + 40]) + content[place + 40 :]


def _folder_in_its_place(folder: Path) -> None:
    (folder / NAME).unlink()
    (folder / NAME).mkdir()


def _rezipped(change: Callable[[str, bytes], bytes | None], how: int = zipfile.ZIP_STORED) -> Damage:
    """Change or leave out entries of the archive."""

    def damage(folder: Path) -> None:
        path = folder / NAME
        with zipfile.ZipFile(path) as archive:
            entries = [(one.filename, archive.read(one)) for one in archive.infolist()]
        with zipfile.ZipFile(path, "w", how) as archive:
            for name, content in entries:
                changed = change(name, content)
                if changed is not None:
                    archive.writestr(name, changed)

    return damage


def _pickled(value: Any) -> Damage:
    return _bytes(lambda content: pickle.dumps(value))


def _saved(make: Callable[[dict[str, Any]], Any]) -> Damage:
    """Save something else in place of a state."""

    def damage(folder: Path) -> None:
        path = folder / NAME
        changed = make(torch.load(path, weights_only=True))
        torch.save(changed, path)

    return damage


# ---- the state


def _changed(change: Callable[[dict[str, Any]], object]) -> Damage:
    """Change a state in place."""

    def make(state: dict[str, Any]) -> dict[str, Any]:
        change(state)
        return state

    return _saved(make)


def _put(value: Any, *keys: str) -> Damage:
    def change(state: Any) -> None:
        for key in keys[:-1]:
            state = state[key]
        state[keys[-1]] = value

    return _changed(change)


def _first(state: dict[str, Any]) -> tuple[dict[str, Any], str]:
    """The model, and the name of its first matrix."""
    model = state["model"]
    return model, next(name for name, one in model.items() if one.ndim >= 2)


def _weight(change: Callable[[Tensor], Any]) -> Damage:
    """Change a matrix of the model."""

    def replace(state: dict[str, Any]) -> None:
        model, name = _first(state)
        model[name] = change(model[name])

    return _changed(replace)


def _moments(change: Callable[[dict[str, Any]], object]) -> Damage:
    """Change what the optimizer keeps of its first parameter."""
    return _changed(lambda state: change(state["optimizer"]["state"][0]))


def _groups(change: Callable[[list[dict[str, Any]]], object]) -> Damage:
    return _changed(lambda state: change(state["optimizer"]["param_groups"]))


def _one(tensor: Tensor, value: float) -> Tensor:
    changed = tensor.clone()
    changed.view(-1)[-1] = value
    return changed


def _renamed(state: dict[str, Any]) -> None:
    model, name = _first(state)
    model[f"{name}_"] = model.pop(name)


def _log(content: bytes) -> Damage:
    def damage(folder: Path) -> None:
        with (folder / "log.jsonl").open("ab") as file:
            file.write(content)

    return damage


def damages() -> Iterator[tuple[str, Damage]]:
    """All damages, by name."""
    yield from {
        "empty": _bytes(lambda content: b""),
        "one byte": _bytes(lambda content: b"P"),
        "cut in half": _bytes(lambda content: content[: len(content) // 2]),
        "cut by a byte": _bytes(lambda content: content[:-1]),
        "without its beginning": _bytes(lambda content: content[64:]),
        "zeros": _bytes(lambda content: bytes(len(content))),
        "text": _bytes(lambda content: b"not a checkpoint\n" * 100),
        "flipped bits in the pickle": _bytes(_flipped),
        "a folder": _folder_in_its_place,
        "an archive of nothing": _rezipped(lambda name, content: None),
        "without its pickle": _rezipped(lambda name, content: None if name.endswith("data.pkl") else content),
        "without tensors": _rezipped(lambda name, content: None if "/data/" in name else content),
        "short tensors": _rezipped(lambda name, content: content[:3] if "/data/" in name else content),
        "code in a pickle": _pickled(Code()),
        "code in a state": _pickled({"about": {}, "step": Code()}),
        "a pickle of a dict": _pickled({"step": 3}),
        "code in a checkpoint": _saved(lambda state: {**state, "more": Code()}),
        "a model by itself": _saved(lambda state: state["model"]),
        "a list": _saved(lambda state: list(state.values())),
        "a tensor": _saved(lambda state: torch.ones(5)),
        "a number": _saved(lambda state: 3),
        "nothing in a dict": _saved(lambda state: {}),
        "a key that is a number": _saved(lambda state: {**state, 7: 7}),
        "a key too many": _saved(lambda state: {**state, "else": 1}),
        "an ordered dict of other keys": _saved(
            lambda state: OrderedDict((f"{key}_", one) for key, one in state.items())
        ),
    }.items()
    for name, value in hashed():
        pickle = whole(entries({"about": value}))
        yield name, _rezipped(lambda name, content, pickle=pickle: pickle if name.endswith("data.pkl") else content)
    for key in ("about", "step", "model", "optimizer", "average", "scales", "scaler"):
        yield f"without {key}", _changed(lambda state, key=key: state.pop(key))
    for name, value in NUMBERS.items():
        yield f"step: {name}", _put(value, "step")
    for key in ("about", "model", "optimizer"):
        for name, value in OTHERS.items():
            yield f"{key}: {name}", _put(value, key)
    yield "average of none", _put({"n_averaged": torch.tensor(3)}, "average")
    yield "scales of none", _put({"step": 10**9, "scales": [math.nan], "divided": [None]}, "scales")
    yield "scaler of none", _put({"scale": math.nan}, "scaler")
    yield "another seed", _put("123456", "about", "options.seed")
    yield "a tensor in about", _put(torch.ones(3), "about", "processes")
    yield "5,000 digits in about", _put(LONG, "about", "options.seed")
    yield "a bool in about", _put(True, "about", "processes")
    yield "another data set", _put("0" * 32, "about", "data")
    yield "an option that is not there", _put("1", "about", "options.else")
    yield "weights: nan", _weight(lambda one: _one(one, math.nan))
    yield "weights: inf", _weight(lambda one: _one(one, -math.inf))
    yield "weights: 1e30", _weight(lambda one: _one(one, 1e30))
    yield "weights: another shape", _weight(lambda one: one[:-1].clone())
    yield "weights: transposed and flat", _weight(lambda one: one.flatten())
    yield "weights: another type", _weight(lambda one: one.half())
    yield "weights: whole numbers", _weight(lambda one: one.long())
    yield "weights: a list", _weight(lambda one: one.tolist())
    yield "weights: none", _weight(lambda one: None)
    yield "weights: of 4 TB", _weight(lambda one: torch.zeros(1).expand(10**12))
    yield "weights: sparse", _weight(lambda one: one.to_sparse())
    yield "weights: without memory", _weight(lambda one: one.to("meta"))
    yield "weights: renamed", _changed(_renamed)
    yield "weights: missing", _changed(lambda state: state["model"].pop(_first(state)[1]))
    yield "weights: one too many", _changed(lambda state: state["model"].update(more=torch.ones(2)))
    yield "moments: nan", _moments(lambda one: one.update(exp_avg=_one(one["exp_avg"], math.nan)))
    yield "moments: inf", _moments(lambda one: one.update(exp_avg_sq=_one(one["exp_avg_sq"], math.inf)))
    yield "moments: below 0", _moments(lambda one: one.update(exp_avg_sq=_one(one["exp_avg_sq"], -1.0)))
    yield "moments: another shape", _moments(lambda one: one.update(exp_avg=torch.zeros(3, 5, 7)))
    yield "moments: another type", _moments(lambda one: one.update(exp_avg=one["exp_avg"].double()))
    yield "moments: a number", _moments(lambda one: one.update(exp_avg=0.5))
    yield "moments: missing", _moments(lambda one: one.pop("exp_avg_sq"))
    yield "moments: one too many", _moments(lambda one: one.update(more=torch.ones(2)))
    for name, value in {"-1": -1.0, "1e9": 1e9, "nan": math.nan}.items():
        yield f"moments: step {name}", _moments(lambda one, value=value: one.update(step=torch.tensor(value)))
    yield "moments: of no parameter", _changed(lambda state: state["optimizer"]["state"].pop(0))
    yield "moments: none", _changed(lambda state: state["optimizer"]["state"].clear())
    yield "moments: of one too many", _changed(lambda state: state["optimizer"]["state"].update({10**6: {}}))
    yield "moments: a list", _changed(lambda state: state["optimizer"].update(state=[]))
    yield "groups: none", _groups(lambda groups: groups.clear())
    yield "groups: one too many", _groups(lambda groups: groups.append(dict(groups[0])))
    yield "groups: text", _groups(lambda groups: groups.__setitem__(0, "text"))
    yield "groups: without parameters", _groups(lambda groups: groups[0].pop("params"))
    yield "groups: other parameters", _groups(lambda groups: groups[0].update(params=[0]))
    yield "groups: rate nan", _groups(lambda groups: groups[0].update(lr=math.nan))
    yield "groups: rate text", _groups(lambda groups: groups[0].update(lr="x"))
    yield "groups: betas above 1", _groups(lambda groups: groups[0].update(betas=(2.0, 2.0)))
    yield "groups: decay 1e308", _groups(lambda groups: groups[0].update(weight_decay=1e308))
    yield "groups: epsilon 0", _groups(lambda groups: groups[0].update(eps=0.0))
    yield "log: no JSON", _log(b"{nonsense}\n")
    yield "log: without a step", _log(b'{"loss": 1.0}\n')
    yield "log: step text", _log(b'{"step": "x", "loss": 1.0}\n')
    yield "log: 5,000 digits", _log(b'{"step": 1, "loss": %s}\n' % LONG.encode())
    yield "log: 1,000 digits", _log(b'{"step": 1, "loss": %s}\n' % LONG[:1000].encode())
    yield "log: not UTF-8", _log(b'{"step": 1, "\xff": 1.0}\n')
    yield "log: a list in an entry", _log(b'{"step": 1, "loss": [1]}\n')
