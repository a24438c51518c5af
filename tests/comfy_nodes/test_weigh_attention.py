"""The node Attention Weights on a fake host: what it attaches to a conditioning, what it says, and what it refuses."""

import pytest
import torch
from weighted_clip.hosts.comfy.attention.steps import MARKER
from weighted_clip.weighting.attention import effect_of

from .fake_comfy import FakeClip, encode, node, rows

PROMPT = "a (red:1.4) cat and a (photorealistic dog:0.5)"
WRAPPED = ("outer_sample", "prepare_sampling", "sampler_sample", "calc_cond_batch", "apply_model")
ROWS = {2: 1.4, 6: 0.5, 7: 0.5, 8: 0.5}


class Model:
    """A MODEL that knows its wrappers by kind and key."""

    def __init__(self, wrappers=None) -> None:
        self.wrappers = wrappers or {}

    def clone(self):
        return Model({key: list(value) for key, value in self.wrappers.items()})

    def add_wrapper_with_key(self, kind, key, wrapper):
        self.wrappers.setdefault((kind, key), []).append(wrapper)

    def remove_wrappers_with_key(self, kind, key):
        self.wrappers.pop((kind, key), None)


def run(clip=None, text=PROMPT, **inputs):
    return encode("WeighAttention", clip, text, **inputs)["result"]


def unweighted(clip, text):
    """Result of the node for unweighted rows."""
    return encode("TextEncode", clip, text, scheme="unweighted")["result"][0]


@pytest.mark.parametrize(("how", "strength"), [("bias", 1.0), ("value", 1.0), ("bias", 0.5)])
def test_each_row_carries_what_its_weight_does(how, strength) -> None:
    clip = FakeClip()
    ((found, values),), report, model = run(clip, how=how, strength=strength)
    assert model is None
    assert "applies no weights" not in report  # here they act later
    assert torch.equal(found, unweighted(clip, PROMPT)[0][0])
    (hook,) = values["hooks"].hooks
    assert hook.transformers_dict["wrappers"].keys() == set(WRAPPED)
    effects = [effect_of(ROWS.get(row, 1.0), how, strength) for row in range(77)]
    bias, factor = values["model_conds"][MARKER].cond.view(2, 77)
    torch.testing.assert_close(bias.tolist(), [effect.bias for effect in effects])
    torch.testing.assert_close(factor.tolist(), [effect.factor for effect in effects])


@pytest.mark.parametrize("strength", [1.0, 0.5])
def test_by_negpip_rows_are_those_of_the_scheme_and_carry_its_signs(strength) -> None:
    clip, text = FakeClip(), "a (red:1.4) cat, (oil painting:-2) in (snow:-0.5)"
    ((found, values),), report, _ = run(clip, text, how="negpip", strength=strength)
    taken = {weight: 1 + strength * (weight - 1) for weight in (1.4, -2, -0.5)}
    by_comfy = text
    for weight, other in taken.items():
        by_comfy = by_comfy.replace(f":{weight})", f":{abs(other)})")
    torch.testing.assert_close(found, rows(clip, by_comfy), rtol=0, atol=1e-6)
    bias, factor = values["model_conds"][MARKER].cond.view(2, 77)
    assert not bias.any()
    negative = {5, 6, 8} if strength == 1 else {5, 6}
    assert [row for row in range(77) if factor[row] < 0] == sorted(negative)
    assert "'oil painting' -2: rows 5-6" in report and "'red' 1.4: row 2" in report


def test_the_scheme_negpip_carries_signs_in_every_node() -> None:
    ((_, values),) = encode("TextEncode", text="a (cat:-1)", scheme="negpip")["result"][0]
    assert values["model_conds"][MARKER].cond.view(2, 77)[1].tolist() == [1.0, 1.0, -1.0, *[1.0] * 74]
    ((apart, values),) = encode("TextEncode", text="a (cat:-1)", scheme="negpip_apart", syntax="a1111")["result"][0]
    assert apart.shape[1] == 79
    assert values["model_conds"][MARKER].cond.view(2, 79)[1].tolist() == [1.0] * 77 + [-1.0, -1.0]
    for scheme in ("negpip", "negpip_apart"):
        ((_, values),) = encode("TextEncode", text="a (cat:2)", scheme=scheme)["result"][0]
        assert "model_conds" not in values and "hooks" not in values


def test_with_a_model_the_wrappers_are_on_its_clone_once() -> None:
    model = Model()
    _, _, once = run(model=model)
    ((_, values),), _, twice = run(model=once)
    assert model.wrappers == {}
    assert "hooks" not in values
    assert once.wrappers == twice.wrappers
    assert [len(wrappers) for wrappers in twice.wrappers.values()] == [1] * len(WRAPPED)


@pytest.mark.parametrize(("text", "strength"), [("a red cat", 1.0), ("a (red:1) cat", 1.0), (PROMPT, 0.0)])
def test_without_an_effect_nothing_is_attached(text, strength) -> None:
    clip, model = FakeClip(), Model()
    ((found, values),), report, same = run(clip, text, strength=strength, model=model)
    ((plain, plain_values),) = unweighted(clip, text)
    assert same is model
    assert torch.equal(found, plain)
    assert values.keys() == plain_values.keys()
    assert "no word is weighted" in report


def test_the_node_travels_with_its_weights_and_they_reach_no_model_without_the_wrappers() -> None:
    conditioning = run(unique_id="3:9")[0]
    marker = conditioning[0][1]["model_conds"][MARKER]
    assert marker.node_id == marker._copy_with(marker.cond).node_id == "3:9"
    with pytest.raises(ValueError, match="would be lost: another node has replaced the hooks"):
        marker.process_cond(batch_size=1)


def test_words_in_later_chunks_have_their_own_rows() -> None:
    ((found, values),), report, _ = run(text="word " * 76 + "(cat:2)")
    assert found.shape[1] == 154
    bias = values["model_conds"][MARKER].cond.view(2, 154)[0]
    assert bias.nonzero().flatten().tolist() == [77 + 2]
    assert "'cat' 2: row 79" in report


def test_the_report_names_words_rows_and_what_is_not_weighed() -> None:
    report = run()[1]
    assert "weighted in the attention by bias, strength 1:" in report
    assert "'red' 1.4: row 2\n" in report
    assert "'photorealistic dog' 0.5: rows 6-8\n" in report
    assert "not weighted: the pooled vector, and what a ControlNet reads" in report


@pytest.mark.parametrize("how", ["bias", "negpip"])
def test_reports_name_the_regions_of_other_packs_in_which_nothing_acts(how) -> None:
    assert run(text="a cat, (snow:-1.5)", how=how)[1].count("Attention Couple") == 1
    assert "Attention Couple" not in run(text="a cat, snow", how=how)[1]
    for text, count in (("(snow:-1.5)", 1), ("(snow:1.5)", 0)):
        report = encode("TextEncode", text=text, scheme="negpip")["result"][1]
        assert report.count("Attention Couple") == count


def test_several_prompts_in_one_are_refused() -> None:
    for text in ('("a cat", "a dog").blend(1, 1)', '("a cat", "a dog").and()'):
        with pytest.raises(ValueError, match=r"\.and and \.blend"):
            run(text=text, syntax="compel")


def test_an_unknown_way_from_a_link_is_refused() -> None:
    with pytest.raises(ValueError, match="how must be one of: bias, value, negpip, krea2, guidance; got 'louder'"):
        run(how="louder")


def test_a_none_for_a_clip_is_explained() -> None:
    with pytest.raises(ValueError, match="holds no text encoder"):
        node("WeighAttention").encode(None, "a cat", "bias", 1.0, syntax="comfy")
