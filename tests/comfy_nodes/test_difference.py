"""The node CLIP Difference on a fake host: its numbers compared with the host's own call and with transformers."""

import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file
from weighted_clip.encoder.files.checkpoint import seeded_text_model
from weighted_clip.encoder.models.config import TextConfig
from weighted_clip.encoder.tokenizer import default_tokenizer
from weighted_clip.web import difference as chart

from ..weighting.tiny import encode
from .fake_comfy import CONFIG, FakeClip, Tower, install, node

TEXT = "a (red:1.4) photorealistic cat"
TOKENS = ["BOS", "a", "red", "photo", "realistic", "cat", "EOS"]


def trained(towers: tuple[str, ...] = ("clip_l",), amount: float = 0.1) -> FakeClip:
    """A CLIP whose weights are no longer those of `FakeClip`."""
    clip = FakeClip(towers=towers)
    generator = torch.Generator().manual_seed(3)
    for parameter in clip.cond_stage_model.parameters():
        # not in place: all towers have one table
        parameter.data = parameter.data + amount * parameter.data.std() * torch.randn(
            parameter.shape, generator=generator
        )
    return clip


def run(clip: Any, clip_changed: Any, text: str = TEXT, syntax: str = "comfy") -> dict[str, Any]:
    return node("Difference").compare(clip=clip, clip_changed=clip_changed, text=text, syntax=syntax)


def listed(report: str) -> dict[tuple[str, int, int, str], float]:
    """The relative changes of a report, in percent, by encoder, chunk, position and text."""
    found: dict[tuple[str, int, int, str], float] = {}
    tower = ""
    for line in report.splitlines():
        if line.startswith("clip_"):
            tower = line.partition(":")[0]
        if match := re.match(r" *(\S+) %  '(.*)' +chunk (\d+), position (\d+)", line):
            found[tower, int(match[3]), int(match[4]), match[2]] = float(match[1])
        elif match := re.match(r" *(\S+) %  pooled vector", line):
            found[tower, 0, 0, "pooled"] = float(match[1])
    return found


def relative(before: torch.Tensor, after: torch.Tensor) -> list[float]:
    """In percent, by numpy."""
    one, other = before.double().numpy(), after.double().numpy()
    return [100 * float(np.sqrt(((b - a) ** 2).sum() / (a**2).sum())) for a, b in zip(one, other, strict=True)]


def stock_rows(clip: FakeClip, text: str) -> list[Any]:
    """Rows and pooled vector of each tower by the host's own call, for a text of one chunk."""
    ids = [49406, *(token.id for token in default_tokenizer()(text)), 49407]
    found: list[Any] = []
    for name in clip.towers:
        pad = getattr(clip.tokenizer, name).pad_token
        pairs = [(token, 1.0) for token in [*ids, *[pad] * (77 - len(ids))]]
        hidden, pooled = getattr(clip.cond_stage_model, name).encode_token_weights([pairs])
        found.append((hidden[0], pooled))
    return found


def test_changes_are_those_of_the_hosts_own_encodings() -> None:
    towers = ("clip_l", "clip_g")
    clip, changed = FakeClip(towers=towers), trained(towers)
    plain = TEXT.replace("(red:1.4)", "red")
    expected: dict[tuple[str, int, int, str], float] = {}
    for name, (before, pooled), (after, pooled_after) in zip(
        towers, stock_rows(clip, plain), stock_rows(changed, plain), strict=True
    ):
        changes = relative(before, after)
        assert min(changes[1:7]) > 0.1
        expected |= {(name, 1, place, text): changes[place] for place, text in enumerate(TOKENS)}
        expected[name, 0, 0, "pooled"] = relative(pooled, pooled_after)[0]
    report = run(clip, changed)["result"][1]
    assert listed(report) == {key: pytest.approx(value, rel=5.1e-4) for key, value in expected.items()}
    for name in towers:
        values = [value for key, value in listed(report).items() if key[0] == name and key[1]]
        assert values == sorted(values, reverse=True)


def test_native_encoders_differ_as_in_transformers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers import CLIPTextConfig, CLIPTextModel

    config = CLIPTextConfig(
        hidden_size=64, num_attention_heads=1, num_hidden_layers=2, intermediate_size=128, hidden_act="quick_gelu",
        bos_token_id=49406, eos_token_id=49407, pad_token_id=49407,
    )  # fmt: skip
    ids = [49406, *(token.id for token in default_tokenizer()("a red photorealistic cat"))]
    states, clips = [], []
    files: dict[str, str] = {}
    for seed in (1, 2):
        torch.manual_seed(seed)
        model = CLIPTextModel(config).eval()
        norm = next(module for name, module in model.named_modules() if name.endswith("final_layer_norm"))
        # rows of other lengths, so that it shows which of them is the measure
        norm.weight.data *= seed  # pyright: ignore[reportOperatorIssue]
        files[f"{seed}.safetensors"] = str(tmp_path / f"{seed}.safetensors")
        weights = {name: value for name, value in model.state_dict().items() if "position_ids" not in name}
        prefix = "" if any(name.startswith("text_model.") for name in weights) else "text_model."
        save_file({prefix + name: value for name, value in weights.items()}, files[f"{seed}.safetensors"])
        with torch.no_grad():
            out = model(torch.tensor([[*ids, *[49407] * (77 - len(ids))]]))
        states.append((out.last_hidden_state[0], out.pooler_output))
    install(monkeypatch, {"text_encoders": files}, tmp_path / "temp")
    for name in files:
        clips += node("Load").load(f"text_encoders/{name}", 1, "fp32", "cpu", 0)[:1]
    (before, pooled), (after, pooled_after) = states
    changes = relative(before, after)
    expected = {("clip_l", 1, place, text): changes[place] for place, text in enumerate(TOKENS)}
    expected["clip_l", 0, 0, "pooled"] = relative(pooled, pooled_after)[0]
    found = listed(run(*clips)["result"][1])
    assert found == {key: pytest.approx(value, rel=6e-4) for key, value in expected.items()}


def test_the_chart_is_of_these_encodings_and_is_shown_on_the_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clip, changed = FakeClip(), trained()
    [(before, _)], [(after, _)] = (stock_rows(one, "a red photorealistic cat") for one in (clip, changed))
    drawn: list[Any] = []
    draw = chart.draw_changes

    def noted(rows: Any, labels: Any, *args: Any, **options: Any) -> Image.Image:
        drawn.append((rows, labels))
        return draw(rows, labels, *args, **options)

    monkeypatch.setattr(chart, "draw_changes", noted)
    result = run(clip, changed)
    [([row], labels)] = drawn
    assert list(labels) == TOKENS
    for place, change in enumerate(row.changes):
        one, other = before[place].double().numpy(), after[place].double().numpy()
        lengths = np.linalg.norm(one), np.linalg.norm(other)
        assert change.ratio == pytest.approx(lengths[1] / lengths[0], rel=1e-5)
        cosine = float(one @ other / lengths[0] / lengths[1])
        assert change.angle == pytest.approx(np.degrees(np.arccos(cosine)), rel=1e-3)
    picture, _ = result["result"]
    [shown] = result["ui"]["images"]
    with Image.open(tmp_path / "temp" / shown["filename"]) as opened:
        assert np.array_equal(np.asarray(opened, dtype=np.float32) / 255, picture[0].numpy())


def test_the_same_clip_twice_differs_in_nothing_and_weights_do_not_count() -> None:
    clip = FakeClip()
    result = run(clip, clip.clone())
    assert set(listed(result["result"][1]).values()) == {0.0}
    assert result["result"][1].endswith("at 3: This scheme applies no weights.")
    plain, weighted = (run(clip, trained(), text)["result"][1] for text in ("a red cat", "a (red:1.4) cat"))
    assert listed(plain) == listed(weighted)
    assert listed(run(clip, trained(), "a (red)1.5 cat", "compel")["result"][1]) == listed(plain)


def test_every_chunk_of_a_long_prompt_is_compared() -> None:
    found = listed(run(FakeClip(), trained(), "cat " * 80)["result"][1])
    assert {key[1:3] for key in found} == {(0, 0), *((1, place) for place in range(77)), *((2, p) for p in range(7))}


def test_rows_that_are_no_numbers_are_listed_first() -> None:
    original = encode("a red cat")
    hidden = original.hidden.clone()
    hidden[0, 2] = math.nan
    hidden[0, 3] *= 2
    report = chart.difference_report([chart.difference("clip_l", original, original._replace(hidden=hidden))])
    _, first, second, *_ = report.splitlines()
    assert first.split()[:3] == ["no", "number", "'red'"]
    assert second.split()[:3] == ["100", "%", "'cat'"]


def test_rows_that_clip_negpip_adds_are_left_out() -> None:
    """ComfyUI-ppm's CLIP NegPip doubles the rows of its CLIP; the other one may be without."""

    def encode_token_weights_negpip(pairs: Any) -> None:
        raise AssertionError

    patched = trained()
    patched.patcher.object_patches["clip_l.encode_token_weights"] = encode_token_weights_negpip
    assert listed(run(FakeClip(), patched)["result"][1]) == listed(run(FakeClip(), trained())["result"][1])


def native(config: TextConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    file = tmp_path / f"{config.context_length}.safetensors"
    save_file({"text_model." + key: value for key, value in seeded_text_model(config).state_dict().items()}, file)
    install(monkeypatch, {"text_encoders": {file.name: str(file)}}, tmp_path / "temp")
    return node("Load").load(f"text_encoders/{file.name}", 1, "fp32", "cpu", 0)[0]


def test_a_hosts_clip_is_compared_with_a_native_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = listed(run(FakeClip(), native(CONFIG, tmp_path, monkeypatch))["result"][1])
    assert len(found) == 8
    assert max(found.values()) < 1e-3


def test_what_cannot_be_compared_is_refused_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match=r"^The input clip is None"):
        run(None, FakeClip())
    with pytest.raises(ValueError, match=r"^The input clip_changed is None"):
        run(FakeClip(), None)
    other = FakeClip(towers=("t5xxl",))
    other.cond_stage_model.t5xxl = torch.nn.Linear(1, 1)
    with pytest.raises(ValueError, match=r"The input clip_changed \(Module\) holds no CLIP text encoder"):
        run(FakeClip(), other)
    both = FakeClip(towers=("clip_l", "clip_g"))
    with pytest.raises(ValueError, match=r"clip holds clip_l, clip_g \(Module\), and clip_changed clip_l \(Module\)"):
        run(both, FakeClip())

    class FluxClipModel_(torch.nn.Module):
        pass

    model = FluxClipModel_()
    model.clip_l, model.t5xxl = Tower(), torch.nn.Linear(1, 1)
    with pytest.raises(ValueError, match=r"clip_changed clip_l, t5xxl \(FluxClipModel\): CLIP Difference compares"):
        run(FakeClip(), FakeClip(model))
    ours = native(CONFIG, tmp_path, monkeypatch)
    with pytest.raises(ValueError, match=r"clip holds clip_l \(SD 1.x\), and clip_changed clip_l, t5xxl"):
        run(ours, FakeClip(model))
    long = TextConfig(hidden_dim=64, num_heads=1, num_layers=2, mlp_dim=128, context_length=248)
    longer = native(long, tmp_path, monkeypatch)
    with pytest.raises(ValueError, match=r"clip_l of clip has 77 rows of 64 for a chunk, and .*changed 248 rows of 64"):
        run(ours, longer)
    misread = FakeClip()
    misread.tokenizer.clip_l.pad_token = 0
    with pytest.raises(ValueError, match="read this text as different tokens"):
        run(ours, misread)
