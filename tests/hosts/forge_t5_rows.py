"""T5's rows in Forge's Flux under the schemes compel and lpw, compared with formulas in float64 and with the programs.

Run by test_webui_python.py in Forge's own Python, with its checkout as working directory:

    python forge_t5_rows.py PACKAGE COMPEL OUTCOME --always-cpu --data-dir DIR

COMPEL is the folder of compel's package; sd_embed is used if its checkout is next to Forge. The models are those of
forge_joint.py. The reference's T5 is transformers', with the same weights; what it reads of a text, and each weight, is
written down here by hand.

Writes for each case the largest difference and the largest change by the scheme, both relative to the largest number,
and the lines that are told.
"""

# pyright: reportMissingImports=false

from __future__ import annotations

import math
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from forge_joint import TEXT, WIDTH, Weighed, compared_stock, is_clean, make_models, read_otherwise
from forge_places import LEFT, Field, run_cases, sampled, script
from pack_code import package
from t5_programs import A1111, COMPEL, by_compel, by_sd_embed

COMPEL_FOLDER = Path(sys.argv.pop(2))
SD_EMBED = Path.cwd().parent / "sd_embed"
END, PADDING = 1, 0
BELOW_511 = "at most 511 tokens of T5"
UNEQUAL = "rows of one text and"
Fragments = Sequence[tuple[str, float]]
"""Stretches of a text, each with its weight."""
WEIGHTED = "a (red:1.3) cat on a (mat:0.4)"
IN_WEIGHTED: Fragments = (("a ", 1.0), ("red", 1.3), (" cat on a ", 1.0), ("mat", 0.4))
TWICE = "(cat:0.3) on a (mat:0.6)"
IN_TWICE: Fragments = (("cat", 0.3), (" on a ", 1.0), ("mat", 0.6))
NOTHING: Fragments = (("empty", 1.0),)
"""sd_embed's stand-in for no text; the pooled vector here is that of no text."""


# The reference


def transformers_t5(model: Any) -> Any:
    """transformers' T5 in float64, with the weights of a model's."""
    from transformers import T5Config, T5EncoderModel

    host = model.text_processing_engine_t5.text_encoder.inner
    sizes = {"d_model": WIDTH, "d_kv": WIDTH // 4, "d_ff": 128, "num_layers": 2, "num_heads": 4}
    t5 = T5EncoderModel(T5Config(**sizes, vocab_size=32128, feed_forward_proj="gated-gelu")).double().eval()
    missing, unexpected = t5.load_state_dict({name: one.double() for name, one in host.state_dict().items()}, False)
    assert not unexpected and set(missing) <= {"encoder.embed_tokens.weight"}, (missing, unexpected)
    return t5


def rows_of(model: Any, ids: Sequence[int], hidden: Sequence[int] = ()) -> torch.Tensor:
    """Rows of ids, by a T5 that does not see some of them: ``[rows, dim]``, float64."""
    seen = torch.ones(1, len(ids), dtype=torch.long)
    seen[0, list(hidden)] = 0
    return transformers_t5(model)(input_ids=torch.tensor([ids]), attention_mask=seen).last_hidden_state[0]


def ids_of(model: Any, text: str) -> list[int]:
    return model.text_processing_engine_t5.tokenizer(text, add_special_tokens=False)["input_ids"]


def of_sd_embed(model: Any, fragments: Fragments) -> torch.Tensor:
    """Rows by sd_embed's rule: an end token behind each stretch, no padding, rows times weights."""
    parts = [([*ids_of(model, text), END], weight) for text, weight in fragments]
    weights = [weight for ids, weight in parts for _ in ids]
    return rows_of(model, [token for ids, _ in parts for token in ids]) * torch.tensor(weights).double()[:, None]


def of_compel(model: Any, fragments: Fragments) -> torch.Tensor:
    """Rows by compel's rule: padding up to 512, lerp from the empty prompt's, and blends without what fades."""
    ids: list[int] = []
    weights: list[float] = []
    faded: list[tuple[list[int], float]] = []
    for text, weight in fragments:
        own = ids_of(model, text)
        if weight < 1:
            faded.append(([*range(len(ids), len(ids) + len(own))], weight))
        ids, weights = ids + own, weights + [weight] * len(own)
    ids, weights = [*ids, END, *[PADDING] * (511 - len(ids))], [*weights, *[1.0] * (512 - len(ids))]
    empty = rows_of(model, [END, *[PADDING] * 511])
    scale = torch.tensor(weights).double()[:, None]
    blended = total = torch.zeros((), dtype=torch.float64)
    for hidden, share in [([], 1.0), *((rows, math.tan((1 - weight) * math.pi / 2)) for rows, weight in faded)]:
        blended = blended + share * (empty + (rows_of(model, ids, hidden) - empty) * scale)
        total = total + share
    return blended / total


RULES: Mapping[str, Callable[[Any, Fragments], torch.Tensor]] = {"lpw": of_sd_embed, "compel": of_compel}


# What is compared


def by(scheme: str, *lines: str, **settings: Any) -> list[Any]:
    """Values of the script's controls for a scheme that acts on T5's rows."""
    return script(*lines, **{"scheme": scheme, "attention": "as the WebUI", **settings})


def texts_in(p: Any) -> list[Any]:
    """What a generation's network is given of each text: those of the prompts in order, then the negative ones."""
    schedules = [part.schedules for parts in p.c.batch for part in parts] + list(p.uc or ())
    return [entry.cond for schedule in schedules for entry in schedule]


def assert_clean(model: Any) -> None:
    """Nothing of ours is left in a model."""
    engine = model.text_processing_engine_t5
    left = {"tokenize_line", "process_tokens", "process_texts"} & {
        *vars(engine),
        *vars(getattr(model, "text_processing_engine_l", engine)),
    }
    hooks = [one for one in engine.text_encoder.modules() if one._forward_pre_hooks or one._forward_hooks]
    assert not left and not hooks and is_clean(model), (left, hooks)


def compared_rows(model: Any, case: Mapping[str, Any]) -> tuple[float, float, list[str]]:
    """Difference of the rows of each text from a rule written out, and of pooled vectors from those without weights.

    The picture without the script is the same before and after it, to the bit.
    """
    fields = {"steps": 1, **case.get("fields", {})}
    stock = sampled(model, *case["prompts"], **fields)
    acted = sampled(model, *case["prompts"], script=by(case["scheme"], **case.get("settings", {})), **fields)
    assert_clean(model)
    assert torch.equal(sampled(model, *case["prompts"], **fields).samples, stock.samples)
    assert not torch.equal(acted.samples, stock.samples)
    assert "Weighted CLIP acted by" not in acted.extra_generation_params, acted.comments
    found = texts_in(acted)
    assert len(found) == len(case["texts"]), len(found)
    difference = change = 0.0
    for cond, fragments in zip(found, case["texts"], strict=True):
        expected = RULES[case["scheme"]](model, fragments)
        rows, scale = cond["crossattn"], float(expected.abs().max())
        assert rows.shape == expected.shape, (rows.shape, expected.shape)
        plain = RULES[case["scheme"]](model, [(text, 1.0) for text, _ in fragments])
        difference = max(difference, float((rows - expected).abs().max()) / scale)
        change = max(change, float((plain - expected).abs().max()) / scale)
        read = "" if fragments == NOTHING else "".join(text for text, _ in fragments)
        pooled = model.text_processing_engine_l([read])
        pooled = pooled[1] if isinstance(pooled, tuple) else pooled.pooled
        difference = max(difference, float((cond["vector"] - pooled[0]).abs().max() / pooled.abs().max()))
    return difference, change, list(acted.comments)


def compared_program(model: Any, case: Mapping[str, Any]) -> tuple[float, float, list[str]]:
    """Largest difference of the rows of texts from those of a program's own code, and the change by weights."""
    t5 = model.text_processing_engine_t5.text_encoder.inner
    difference, rows = 0.0, list[torch.Tensor]()
    for text in case["prompts"]:
        chosen = by(case["scheme"], **case.get("settings", {}))
        acted = sampled(model, text, script=chosen, negative="", steps=1, cfg_scale=1.0)
        found, expected = texts_in(acted)[0]["crossattn"], case["program"](model, t5, text)[0]
        assert found.shape == expected.shape, (text, found.shape, expected.shape)
        difference = max(difference, float((found - expected).abs().max() / expected.abs().max()))
        rows.append(found)
    return difference, float((rows[2][:3] - rows[3][:3]).abs().max() / rows[2].abs().max()), []


def program_of_compel(model: Any, t5: Any, text: str) -> torch.Tensor:
    if "compel" not in sys.modules:
        package("compel", COMPEL_FOLDER)
    return by_compel(model.text_processing_engine_t5.tokenizer, t5, text)


def program_of_sd_embed(model: Any, t5: Any, text: str) -> torch.Tensor:
    tokenizers = model.text_processing_engine_l.tokenizer, model.text_processing_engine_t5.tokenizer
    return by_sd_embed(SD_EMBED, *tokenizers, t5, text)


def compared_told(model: Any, case: Mapping[str, Any]) -> tuple[float, float, list[str]]:
    """Difference from the host's own picture, which must be 0, where a rule cannot be followed; that is told."""
    acted = {**case, "settings": {"attention": "as the WebUI", **case["settings"]}, "hosts": case["prompts"]}
    difference, change, lines = compared_stock(model, acted)
    assert_clean(model)
    assert [line for line in lines if case["told"] in line], lines
    return difference, change, lines


def compared_placed(model: Any, case: Mapping[str, Any]) -> tuple[float, float, list[str]]:
    """Difference of a picture with rows by a rule and a placed phrase from an attention written out."""
    chosen = case["scheme"], case["settings"]
    placed = sampled(model, case["prompt"], script=by(chosen[0], *case["lines"], **chosen[1], word_maps=True))
    assert_clean(model)
    plain = sampled(model, case["prompt"], script=by(chosen[0], **chosen[1]))
    rows = [cond["crossattn"] for cond in texts_in(plain)]
    texts = [(rows[0], case["text"]), (rows[1], Weighed({}, is_negative=True))]
    with read_otherwise(model, texts, []):
        expected = sampled(model, case["prompt"], script=by(chosen[0], **chosen[1])).samples
    scale = float(expected.abs().max())
    difference, change = (float((one.samples - expected).abs().max()) / scale for one in (placed, plain))
    return difference, change, list(placed.comments)


@contextmanager
def encoding_otherwise(model: Any, encode: Callable[[Callable[..., Any], Any], Any]) -> Iterator[None]:
    """Let a model's T5 encode by a function that is given its own."""
    engine = model.text_processing_engine_t5
    inner = engine.encode_with_transformers
    with patch.object(engine, "encode_with_transformers", lambda tokens: encode(inner, tokens)):
        yield


def compared_broken(model: Any, case: Mapping[str, Any]) -> tuple[float, float, list[str]]:
    """Difference from the host's own picture after T5 has failed while a mask was in its hook."""
    stock = sampled(model, TWICE).samples
    host = model.text_processing_engine_t5.text_encoder.inner.encoder
    calls = list[int]()

    def fail(_: Any, __: Any, inputs: Mapping[str, Any]) -> None:
        calls.append(1)
        if inputs.get("attention_mask") is not None:
            raise MemoryError

    handle = host.register_forward_pre_hook(fail, with_kwargs=True)
    try:
        sampled(model, TWICE, script=by("compel"), negative="")
    except MemoryError:
        pass
    else:
        raise AssertionError("T5 did not fail")
    finally:
        handle.remove()
    assert len(calls) > 2  # of the negative prompt, and of the prompt without a mask
    assert_clean(model)
    return 0.0 if torch.equal(sampled(model, TWICE).samples, stock) else 1.0, 1.0, []


def compared_cut_short(model: Any, case: Mapping[str, Any]) -> tuple[float, float, list[str]]:
    """Difference from the picture by a rule after an earlier one was skipped while its prompt was encoded."""
    from modules import shared

    expected = sampled(model, TWICE, script=by("compel"))
    stock = sampled(model, TWICE).samples

    def skip(encode: Callable[..., Any], tokens: Any) -> Any:
        shared.state.skipped = True
        return encode(tokens)

    try:
        with encoding_otherwise(model, skip):
            cut = sampled(model, TWICE, script=by("compel"))
    finally:
        shared.state.skipped = False
    assert_clean(model)
    assert cut.cached_c[1] is None or cut.cached_c[0] is None, cut.cached_c
    assert torch.equal(sampled(model, TWICE).samples, stock)
    again = sampled(model, TWICE, script=by("compel"))
    return 0.0 if torch.equal(again.samples, expected.samples) else 1.0, 1.0, []


def compared_asked_meanwhile(model: Any, case: Mapping[str, Any]) -> tuple[float, float, list[str]]:
    """Difference of what another thread is told of a text while ours is encoded: it must be the host's answer."""
    engine = model.text_processing_engine_t5
    expected = engine.tokenize_line("a (red:1.3) cat")[0][0].multipliers
    answers = list[Any]()

    def ask(encode: Callable[..., Any], tokens: Any) -> Any:
        thread = threading.Thread(
            target=lambda: answers.append(engine.tokenize_line("a (red:1.3) cat")[0][0].multipliers)
        )
        thread.start()
        thread.join()
        return encode(tokens)

    with encoding_otherwise(model, ask):
        sampled(model, TWICE, script=by("compel"), steps=1)
    assert len(answers) > 2
    return 0.0 if all(answer == expected for answer in answers) else 1.0, 1.0, []


def cases(model: Any) -> dict[str, dict[str, Any]]:
    """Everything that is compared for a model, by name."""
    weighted = {"prompts": (WEIGHTED,), "texts": [IN_WEIGHTED, (("ugly, blurry", 1.0),)]}
    long = "cat, " * 300
    if type(model).__name__ != "Flux":
        return {
            f"{scheme} is the host's": {
                "compare": compared_told,
                "settings": {"scheme": scheme},
                "prompts": (WEIGHTED,),
                "told": f"scheme {scheme} cannot act",
            }
            for scheme in RULES
        }
    words = {ids_of(model, word)[0]: word for word in ("red", "mat")}
    in_lpw = [token for text, _ in IN_WEIGHTED for token in (*ids_of(model, text), END)]
    known = [words.get(token, "") for token in in_lpw]
    found: dict[str, dict[str, Any]] = {
        **{scheme: {**weighted, "scheme": scheme} for scheme in RULES},
        "lpw, no text": {
            "prompts": ("(a cat:1.4)",),
            "scheme": "lpw",
            "fields": {"negative": ""},
            "texts": [(("a cat", 1.4),), NOTHING],
        },
        "compel, two words fade": {
            "prompts": (TWICE,),
            "scheme": "compel",
            "texts": [IN_TWICE, (("ugly, blurry", 1.0),)],
        },
        "compel's syntax": {
            "prompts": ("a (red)1.3 cat on a (mat)0.4",),
            "scheme": "compel",
            "settings": {"syntax": "compel"},
            "texts": weighted["texts"],
        },
        "a negative prompt": {
            "prompts": (WEIGHTED,),
            "scheme": "compel",
            "fields": {"negative": "(ugly:0.5) dog"},
            "texts": [IN_WEIGHTED, (("ugly", 0.5), (" dog", 1.0))],
        },
        "a batch": {
            "prompts": (WEIGHTED, TWICE),
            "scheme": "compel",
            "texts": [IN_WEIGHTED, IN_TWICE, *[(("ugly, blurry", 1.0),)] * 2],
        },
        "AND": {
            "prompts": ("(cat:1.5) AND (mat:0.5) :0.7",),
            "scheme": "compel",
            "texts": [(("cat", 1.5),), ((" ", 1.0), ("mat", 0.5)), (("ugly, blurry", 1.0),)],
        },
        "prompt editing": {
            "prompts": ("red [(cat:0.5):(dog:1.5):0.5]",),
            "scheme": "lpw",
            "fields": {"steps": 2},
            "texts": [
                (("red ", 1.0), ("cat", 0.5)),
                (("red ", 1.0), ("dog", 1.5)),
                (("ugly, blurry", 1.0),),
            ],
        },
        "a1111 is the host's": {
            "compare": compared_stock,
            "settings": {"scheme": "a1111", "attention": "as the WebUI"},
            "prompts": (WEIGHTED,),
            "hosts": (WEIGHTED,),
        },
        "more tokens than compel takes": {
            "compare": compared_told,
            "settings": {"scheme": "compel"},
            "prompts": (long,),
            "fields": {"cfg_scale": 1.0},
            "told": BELOW_511,
        },
        "editing to another number of rows": {
            "compare": compared_told,
            "settings": {"scheme": "lpw"},
            "prompts": ("a [(cat:0.5):(dog:1.5) on a mat:0.5]",),
            "fields": {"cfg_scale": 1.0},
            "told": UNEQUAL,
        },
        "a batch of unlike numbers of rows": {
            "compare": compared_told,
            "settings": {"scheme": "lpw"},
            "prompts": ("a cat", "a (cat:0.5) on a mat"),
            "fields": {"cfg_scale": 1.0},
            "told": UNEQUAL,
        },
        "weights by attention": {
            "compare": compared_told,
            "settings": {"scheme": "compel", "attention": "bias"},
            "prompts": ("a red cat",),
            "told": "only while Beyond CLIP is at as the WebUI",
        },
        "compel with a place": {
            "compare": compared_placed,
            "scheme": "compel",
            "settings": {},
            "prompt": TEXT,
            "lines": ["red cat: left half"],
            "text": Weighed({}, [("red cat", Field((), LEFT))]),
        },
        "lpw with a place": {
            "compare": compared_placed,
            "scheme": "lpw",
            "settings": {},
            "prompt": WEIGHTED,
            "lines": ["mat: left half"],
            "text": Weighed({}, [("mat", Field((), LEFT))], known=known),
        },
        "T5 fails": {"compare": compared_broken},
        "skipped": {"compare": compared_cut_short},
        "asked meanwhile": {"compare": compared_asked_meanwhile},
        "as compel": {
            "compare": compared_program,
            "scheme": "compel",
            "settings": {"syntax": "compel"},
            "prompts": COMPEL,
            "program": program_of_compel,
        },
    }  # fmt: skip
    if SD_EMBED.is_dir():
        found["as sd_embed"] = {
            "compare": compared_program,
            "scheme": "lpw",
            "prompts": tuple(text for text in A1111 if text != "  "),  # on which it fails
            "program": program_of_sd_embed,
        }
    return found


def compare(model: Any, case: Mapping[str, Any]) -> object:
    own: Callable[..., object] = case.get("compare", compared_rows)
    return own(model, case)


if __name__ == "__main__":
    run_cases(cases, compare, make_models)
