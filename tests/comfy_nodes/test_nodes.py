"""The ComfyUI nodes on a fake host: their contract, their results, what they refuse."""

import json
import logging
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from weighted_clip import NODE_CLASS_MAPPINGS, NODE_DISPLAY_NAME_MAPPINGS
from weighted_clip.encoder.files.checkpoint import seeded_text_model
from weighted_clip.encoder.models.linear import ONEDNN
from weighted_clip.encoder.models.text_model import TextEncoder
from weighted_clip.encoder.tokenizer import default_tokenizer
from weighted_clip.hosts.comfy.attention.words import WORDS
from weighted_clip.nodes.base.node import MARK, RARE
from weighted_clip.nodes.base.node import PROMPT as PROMPT_BOX
from weighted_clip.weighting.options import EncodeOptions
from weighted_clip.weighting.padding import PADDINGS
from weighted_clip.weighting.reading.prompt_reader import read_prompt
from weighted_clip.weighting.schemes import SCHEMES

from ..door import encode_prompt
from .fake_comfy import CONFIG, FakeClip, defaults, encode, inputs_of, install, load_tiny, native, node, rows

ROOT = Path(__file__).parents[2]
PROMPT = "a (red:1.4) cat and a (dog:0.5) in a bowl"


@pytest.mark.parametrize("name", NODE_CLASS_MAPPINGS)
def test_every_node_fulfils_the_hosts_contract(name: str) -> None:
    cls = NODE_CLASS_MAPPINGS[name]
    assert name.startswith("WeightedCLIP")
    assert NODE_DISPLAY_NAME_MAPPINGS[name]
    assert callable(getattr(cls, cls.FUNCTION))
    assert cls.CATEGORY.split("/")[0] == "Weighted CLIP"
    assert cls.DESCRIPTION
    assert cls.SEARCH_ALIASES
    assert len(cls.RETURN_TYPES) == len(cls.RETURN_NAMES) == len(cls.OUTPUT_TOOLTIPS)
    for kind, options in inputs_of(name).values():
        assert options["tooltip"].strip()
        if isinstance(kind, list) and kind:
            assert options.get("default", kind[0]) in kind


def test_few_nodes_stand_in_the_menu_itself() -> None:
    first = {name for name, cls in NODE_CLASS_MAPPINGS.items() if cls.CATEGORY == "Weighted CLIP"}
    assert "WeightedCLIPTextEncode" in first and len(first) <= 9
    assert not any(NODE_CLASS_MAPPINGS[name].EXPERIMENTAL for name in first)
    marked = {name.removeprefix("WeightedCLIP") for name, cls in NODE_CLASS_MAPPINGS.items() if cls.EXPERIMENTAL}
    assert marked == {"Difference", "LoadDVAE", "ImageToTokens", "TokensToImage", "LoadDalle", "DalleSample"}


def test_all_nodes_have_one_syntax_and_the_same_advanced_inputs() -> None:
    menus = {name: inputs_of(name).get("syntax") for name in NODE_CLASS_MAPPINGS}
    assert {menu[1]["default"] for menu in menus.values() if menu} == {"comfy"}
    all_inputs = [
        (name, options) for node_id in NODE_CLASS_MAPPINGS for name, (_, options) in inputs_of(node_id).items()
    ]
    rare = {name for name, options in all_inputs if name in RARE and not options.get("advanced")}
    assert rare == set()
    assert not any(options.get("advanced") for _, options in all_inputs if options.get(MARK) == PROMPT_BOX)


def test_a_request_keeps_the_syntax_it_was_saved_with() -> None:
    """As by 0.2.0, whose default was a1111 in Fade Words: there [cat] is at 1 / 1.1, for comfy it is text."""
    asked = {**defaults("MaskedBlend"), "clip": FakeClip(), "text": "a [cat]"}
    for syntax, plain in (("a1111", "a cat"), ("comfy", "a [cat]")):
        found = node("MaskedBlend").encode(**{**asked, "syntax": syntax})["result"][0][0][0]
        weight = 1 / 1.1 if syntax == "a1111" else 1.0
        written = plain.replace("cat", f"(cat:{weight})") if weight != 1 else plain
        torch.testing.assert_close(found, native(written, syntax="comfy", scheme="masked_blend"))
    assert asked["syntax"] == "comfy"


def test_dropped_in_unchanged_it_gives_what_the_stock_node_gives() -> None:
    clip = FakeClip()
    for text in ("a red cat", ""):
        ids = [(i, 1.0) for i in read_prompt(text, EncodeOptions(), default_tokenizer()).chunks[0].ids]
        stock = clip.encode_from_tokens_scheduled({"l": [ids]})
        ((hidden, extra),) = encode("TextEncode", clip, text)["result"][0]
        assert torch.equal(hidden, stock[0][0])
        assert torch.equal(extra["pooled_output"], stock[0][1]["pooled_output"])


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("padding", PADDINGS)
def test_text_encode_runs_every_scheme_on_the_hosts_tower(scheme: str, padding: str) -> None:
    hidden = rows(FakeClip(), PROMPT, scheme=scheme, padding=padding)
    torch.testing.assert_close(hidden, native(PROMPT, scheme=scheme, padding=padding), rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("emphasis", "syntax", "scheme"),
    [
        ("Original", "a1111", "a1111"),
        ("No norm", "a1111", "a1111_no_norm"),
        ("Ignore", "a1111", "unweighted"),
        ("None", "none", "unweighted"),
    ],
)
def test_a1111_encode_is_the_webuis_emphasis_mode(emphasis: str, syntax: str, scheme: str) -> None:
    text = "a (red:1.4) cat BREAK [dog] " + "word, " * 45
    result = node("A1111Encode").encode(FakeClip(), text, emphasis, 20, "attend")
    expected = native(text, syntax=syntax, scheme=scheme, chunking="a1111")
    torch.testing.assert_close(result["result"][0][0][0], expected, rtol=0, atol=1e-5)
    assert "chunk 2 of" in result["result"][1]


@pytest.mark.parametrize("mask_method", ["attention", "token", "remove"])
@pytest.mark.parametrize("law", ["nested", "compel"])
def test_masked_blend_equals_the_native_encoder(law: str, mask_method: str) -> None:
    choices = {"syntax": "a1111", "law": law, "mask_method": mask_method, "filler": "+", "padding": "attend"}
    hidden = rows(FakeClip(), PROMPT, "MaskedBlend", **choices, pooled="weighted")
    torch.testing.assert_close(hidden, native(PROMPT, scheme="masked_blend", **choices), rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", ["TextEncode", "MaskedBlend"])
def test_the_native_encoder_takes_the_same_nodes(name: str) -> None:
    skipped, clip_skipped = node("Load").load("checkpoints/sub/sd.safetensors", 2, "fp32", "cpu")
    ours = rows(load_tiny(), PROMPT, name)
    torch.testing.assert_close(ours, rows(FakeClip(), PROMPT, name), rtol=0, atol=1e-5)
    assert torch.equal(ours, rows(load_tiny(1), PROMPT, name))
    assert not torch.allclose(ours, rows(skipped, PROMPT, name), atol=1e-3)
    assert torch.equal(rows(skipped, PROMPT, name), rows(clip_skipped, PROMPT, name))


@pytest.mark.skipif(ONEDNN is None, reason="needs oneDNN on x86")
@pytest.mark.parametrize(("pack_weights", "told"), [("auto", "on a copy of the weights, "), ("off", "without a copy")])
def test_the_report_tells_how_the_native_encoder_computed(pack_weights: str, told: str) -> None:
    clip, _ = node("Load").load("text_encoders/tiny.safetensors", 1, "fp32", "auto", 64, pack_weights)
    report = encode("TextEncode", clip, PROMPT)["result"][-1]
    assert f"\nclip_l: matrix products by oneDNN {told}" in report
    assert "matrix products" not in encode("TextEncode", text=PROMPT)["result"][-1]


def test_clip_skip_is_the_hosts() -> None:
    clip = FakeClip()
    tower = clip.cond_stage_model.clip_l
    tower.layer, tower.layer_idx = "hidden", -2
    for padding in ("attend", "mask"):
        hidden = rows(clip, PROMPT, padding=padding)
        model = seeded_text_model(CONFIG)
        encoder, tokenize = TextEncoder(model, clip_skip=2), default_tokenizer()
        expected = encode_prompt(read_prompt(PROMPT, EncodeOptions(padding=padding), tokenize), encoder, tokenize)
        torch.testing.assert_close(hidden, expected.hidden, rtol=0, atol=1e-5)


def test_problems_reach_the_front_end_and_the_report() -> None:
    result = node("A1111Encode").encode(FakeClip(), "a (red cat", "Original", 20, "attend")
    assert len(result["ui"]["text"]) == 1
    assert "never closed" in result["ui"]["text"][0]
    assert result["ui"]["weighted_clip"][0]["issues"][0]["code"] == "unclosed-bracket"
    assert "never closed" in result["result"][1]


def test_embeddings_come_from_the_host() -> None:
    known = encode("TextEncode", text="a (embedding:known:1.2) cat")
    assert known["ui"]["text"] == []
    chips = known["ui"]["weighted_clip"][0]["chunks"][0]["chips"]
    assert [chip["ids"] for chip in chips] == [[320], ["known[0]", "known[1]"], [2368]]
    missing = encode("TextEncode", text="a embedding:nothing cat")
    assert "no embedding “nothing”" in missing["ui"]["text"][0]
    assert torch.equal(missing["result"][0][0][0], rows(FakeClip(), "a cat"))


@pytest.mark.parametrize("name", ["TextEncode", "MaskedBlend", "MaskControl", "WeighAttention"])
def test_nothing_stays_on_the_hosts_tower_nor_on_its_patcher(name: str) -> None:
    clip = FakeClip()
    tower = clip.cond_stage_model.clip_l
    clip.patcher.load()
    before = {part: vars(part).copy() for part in clip.cond_stage_model.modules()}
    encode(name, clip, PROMPT)
    assert {part: vars(part) for part in clip.cond_stage_model.modules()} == before
    assert clip.cond_stage_model.clip_l is tower
    assert clip.patcher.object_patches == {}


def other_rule(pairs: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Another pack's way to encode: rows that hold the weights."""
    weights = torch.tensor([[weight for _, weight in chunk] for chunk in pairs]).flatten()
    return weights.expand(1, CONFIG.hidden_dim, -1).mT, torch.ones(1, CONFIG.hidden_dim)


@pytest.mark.parametrize(
    ("name", "more"), [("TextEncode", {}), ("MaskedBlend", {}), ("WeighAttention", {"how": "bias"})]
)
def test_another_packs_rule_acts_on_its_clip_and_is_said(name: str, more: dict[str, Any], caplog) -> None:
    plain = FakeClip()
    patched = plain.clone()
    patched.patcher.object_patches["clip_l.encode_token_weights"] = other_rule
    expected = torch.tensor([1.0] if name == "WeighAttention" else [0.5, 1.0, 1.4])
    for _ in range(2):
        with caplog.at_level(logging.WARNING):
            result = encode(name, patched, PROMPT, **more)
        assert torch.equal(result["result"][0][0][0].unique(), expected)
        (issue,) = (one for one in result["ui"]["weighted_clip"][0]["issues"] if one["code"] == "other-rule")
        assert __name__ in issue["message"]
        assert __name__ in caplog.text
    assert torch.equal(rows(FakeClip(), PROMPT, name, **more), rows(plain, PROMPT, name, **more))


def test_another_packs_rule_is_not_given_prompts_to_mix() -> None:
    clip = FakeClip()
    clip.patcher.object_patches["clip_l.encode_token_weights"] = other_rule
    with pytest.raises(ValueError, match=r"\.blend do not act"):
        encode("TextEncode", clip, '("a cat", "a dog").blend(0.5, 0.5)', syntax="compel")


def test_a_host_that_does_not_ask_us_is_an_error_and_not_wrong_conditioning() -> None:
    clip = FakeClip()

    class Deaf(FakeClip):
        def encode_from_tokens_scheduled(self, tokens, add_dict=None):
            return [[torch.zeros(1, 77, 64), {}]]

    clip.clone = lambda: Deaf(clip.cond_stage_model)
    with pytest.raises(RuntimeError, match=r"without asking Weighted CLIP \(clip_l\)"):
        encode("TextEncode", clip, "a")


def test_a_clip_of_another_family_is_refused_by_name() -> None:
    model = torch.nn.Module()
    model.t5xxl = torch.nn.Linear(1, 1)
    with pytest.raises(ValueError, match=r"holds no CLIP text encoder, only: t5xxl"):
        encode("MaskControl", FakeClip(model), "a")
    with pytest.raises(ValueError, match="clip input is None"):
        node("TextEncode").encode(None, "a", **defaults("TextEncode"))


def test_inspect_counts_and_draws() -> None:
    result = node("Inspect").inspect("a (red:1.2) cat (x", syntax="a1111", chunking="as syntax")
    image, count, report = result["result"]
    assert image.dtype == torch.float32
    assert image.ndim == 4
    assert image.shape[0] == 1
    assert image.shape[3] == 3
    assert 0 <= image.min() < image.max() <= 1
    assert count == 4
    assert "chunk 1 of 1: 4/75 tokens" in report
    assert result["ui"]["weighted_clip"][0]["num_tokens"] == 4
    with_clip = node("Inspect").inspect("a embedding:known", FakeClip(), syntax="comfy", chunking="as syntax")
    assert with_clip["result"][1] == 3


def test_convert_rewrites_and_names_what_is_lost() -> None:
    result = node("Convert").convert("a ((red)) [cat]", **{"from": "a1111", "to": "comfy"})
    assert result["result"] == ("a (red:1.21) (cat:0.90909091)", "Every token keeps its id and its weight.")
    lost = node("Convert").convert("a BREAK b", **{"from": "a1111", "to": "comfy"})
    assert "BREAK cannot be written" in lost["ui"]["text"][0]
    assert lost["ui"]["text"][0] in lost["result"][1]


def test_the_loader_lists_what_is_there_and_says_what_is_wrong(monkeypatch, tmp_path) -> None:
    files, _ = NODE_CLASS_MAPPINGS["WeightedCLIPLoad"].INPUT_TYPES()["required"]["file"]
    assert files == ["text_encoders/tiny.safetensors", "checkpoints/sub/sd.safetensors"]
    broken = tmp_path / "broken.safetensors"
    broken.write_bytes(b"no")
    install(monkeypatch, {"text_encoders": {"broken.safetensors": str(broken)}})
    with pytest.raises(ValueError, match=r"broken\.safetensors: it is not read: it is a text"):
        node("Load").load("text_encoders/broken.safetensors", 1, "fp32", "auto")


@pytest.mark.parametrize("folder", ["ComfyUI-weighted-clip", "my pack", "a.b"])
def test_import_in_any_folder_loads_no_heavy_library(tmp_path: Path, folder: str) -> None:
    """The pack is imported as ComfyUI does it, in a process of its own."""
    link = tmp_path / folder
    try:
        link.symlink_to(ROOT, target_is_directory=True)
    except OSError:
        pytest.skip("this system does not allow symbolic links")
    script = """
import importlib.util, json, sys
folder = sys.argv[1]
name = folder.replace(".", "_x_")
spec = importlib.util.spec_from_file_location(name, folder + "/__init__.py")
module = sys.modules[name] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
print(json.dumps([list(module.NODE_CLASS_MAPPINGS), list(sys.modules)]))
"""
    run = subprocess.run([sys.executable, "-c", script, str(link)], capture_output=True, text=True, cwd=tmp_path)
    assert run.returncode == 0, run.stderr
    nodes, modules = json.loads(run.stdout)
    assert nodes == list(NODE_CLASS_MAPPINGS)
    assert not {"transformers", "gradio", "compel", "tokenizers", "PIL", "weighted_clip"} & set(modules)


# ---- SDXL: two towers

SIZES = {"width": 1024, "height": 768, "crop_w": 8, "crop_h": 16, "target_width": 512, "target_height": 640}
LONG = "a red cat, " * 40


def encode_sdxl(text_g: str, text_l: str, towers=("clip_l", "clip_g"), **choices) -> dict:
    inputs = defaults("SDXLEncode") | SIZES | choices
    return node("SDXLEncode").encode(FakeClip(towers=towers), text_g, text_l, **inputs)


def test_each_tower_has_its_own_text_and_the_sizes_go_along() -> None:
    ((hidden, values),) = encode_sdxl("a (dog:1.2)", "a cat")["result"][0]
    assert hidden.shape == (1, 77, 128)
    assert {key: values[key] for key in SIZES} == SIZES
    only_l = rows(FakeClip(), "a cat")
    ((only_g, g_values),) = encode("TextEncode", FakeClip(towers=("clip_g",)), "a (dog:1.2)")["result"][0]
    assert torch.equal(hidden, torch.cat([only_l, only_g], dim=-1))
    assert torch.equal(values["pooled_output"], g_values["pooled_output"])


@pytest.mark.parametrize(("text_g", "text_l"), [(LONG, "a cat"), ("a dog", LONG), ("", LONG)])
@pytest.mark.parametrize("scheme", ["comfy", "a1111", "masked_blend"])
def test_the_shorter_text_is_followed_by_empty_chunks(text_g: str, text_l: str, scheme: str) -> None:
    ((hidden, _),) = encode_sdxl(text_g, text_l, scheme=scheme)["result"][0]
    assert hidden.shape[1] == 77 * 3
    short, columns = (text_l, slice(0, 64)) if text_g == LONG else (text_g, slice(64, 128))
    ((empty, _),) = encode_sdxl("", "")["result"][0]
    ((alone, _),) = encode_sdxl(short, short, scheme=scheme)["result"][0]
    torch.testing.assert_close(hidden[:, :77, columns], alone[..., columns], rtol=0, atol=1e-5)
    torch.testing.assert_close(hidden[:, 77:154, columns], empty[..., columns], rtol=0, atol=1e-5)


def test_blends_of_unequal_length_are_filled_too() -> None:
    text = f'("{LONG}", "a cat").blend(1, 1) '
    ((hidden, _),) = encode_sdxl(text, "a dog", syntax="compel")["result"][0]
    assert hidden.shape[1] % 77 == 0
    ((empty, _),) = encode_sdxl("", "")["result"][0]
    torch.testing.assert_close(hidden[:, 77:154, :64], empty[..., :64], rtol=0, atol=1e-5)


def test_the_refiner_takes_one_text_and_a_score() -> None:
    result = encode_sdxl("a cat", "a cat", towers=("clip_g",), aesthetic_score=2.5)
    ((hidden, values),) = result["result"][0]
    assert hidden.shape == (1, 77, 64)
    assert values.keys() == {"pooled_output", "width", "height", "aesthetic_score", WORDS}
    assert values["aesthetic_score"] == 2.5
    assert result["ui"]["text"] == []
    assert "text_l is not used" in encode_sdxl("a cat", "a dog", towers=("clip_g",))["ui"]["text"][0]


def test_a_clip_without_clip_g_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="holds clip_l, no clip_g: it is not SDXL's"):
        encode_sdxl("a", "a", towers=("clip_l",))


def test_two_texts_are_two_views_and_one_text_is_one() -> None:
    assert [view["text"] for view in encode_sdxl("a dog", "a cat")["ui"]["weighted_clip"]] == ["a cat", "a dog"]
    result = encode_sdxl("a (cat", "a (cat")
    assert len(result["ui"]["weighted_clip"]) == len(result["ui"]["text"]) == 1
    assert "clip_l: comfy" in result["result"][1]
    assert "clip_g: comfy" in result["result"][1]
