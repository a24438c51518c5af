"""Weights on their way into a model's attention, without a host: its wrappers, and the function around its attention.

What real models draw with them is tested in tests/hosts.
"""

import math
from types import SimpleNamespace

import pytest
import torch
from weighted_clip.hosts.comfy import contract
from weighted_clip.hosts.comfy.attention import attention, sampling_log, wrappers
from weighted_clip.hosts.comfy.attention.fields import Field, Step, Where
from weighted_clip.hosts.comfy.attention.marker import marker_class
from weighted_clip.hosts.comfy.attention.steps import MARKER, UNMARKED, StepRows
from weighted_clip.hosts.comfy.families import attention_layers, families
from weighted_clip.hosts.comfy.families.attention_layers import (
    OVERRIDE,
    ComfyWeighting,
    ModelCall,
    in_cross_attention,
    in_joint_attention,
    in_joint_blocks,
)
from weighted_clip.weighting.attention import RowEffect

ROWS, QUERIES, DIM = 5, 4, 8
BIAS = torch.tensor([[0.0, math.log(2), -math.inf, 0.0, 0.0]])
FACTOR = torch.tensor([[1.0, -1.0, 1.0, 0.5, 1.0]])


def random(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


def attention_pytorch(q, k, v, heads, mask=None, skip_reshape=False, transformer_options=None):
    """A host's attention function, one head, or with heads in front."""
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask if mask is None else mask[:, 0])


def written_out(q, k, v, bias, factor, hidden=None):
    logits = q.double() @ k.double().transpose(-1, -2) / math.sqrt(q.shape[-1]) + bias[:, None].double()
    if hidden is not None:
        logits = logits.masked_fill(hidden, -math.inf)
    return (torch.softmax(logits, -1) @ (v * factor[..., None]).double()).float()


def test_weights_act_on_the_first_keys_alone() -> None:
    q, k, v = random(1, QUERIES, DIM), random(1, ROWS + 3, DIM), random(1, ROWS + 3, DIM) + 1
    weighing = ComfyWeighting(BIAS, FACTOR)
    bias, factor = torch.cat([BIAS, torch.zeros(1, 3)], 1), torch.cat([FACTOR, torch.ones(1, 3)], 1)
    torch.testing.assert_close(weighing.attend(attention_pytorch, q, k, v, 1), written_out(q, k, v, bias, factor))
    assert weighing.num_layers == 1


def test_the_last_keys_may_be_read_twice() -> None:
    q, k, v = random(1, QUERIES, DIM), random(1, ROWS + 2, DIM), random(1, ROWS + 2, DIM)
    weighing = ComfyWeighting(BIAS, FACTOR)
    weighing.read_again(2)
    bias, factor = (torch.cat([rows, rows[:, -2:]], 1) for rows in (BIAS, FACTOR))
    torch.testing.assert_close(weighing.attend(attention_pytorch, q, k, v, 1), written_out(q, k, v, bias, factor))


@pytest.mark.parametrize("kind", [torch.bool, torch.float32])
def test_what_the_host_hides_stays_hidden(kind) -> None:
    q, k, v = random(1, QUERIES, DIM), random(1, ROWS, DIM), random(1, ROWS, DIM)
    hidden = torch.zeros(QUERIES, ROWS, dtype=torch.bool)
    hidden[:, 1] = hidden[0, 3] = True
    mask = ~hidden if kind == torch.bool else torch.zeros(QUERIES, ROWS).masked_fill(hidden, -math.inf)
    for shaped in (mask, mask[None], mask[None, None]):
        read = ComfyWeighting(BIAS, FACTOR).attend(attention_pytorch, q, k, v, 1, shaped)
        torch.testing.assert_close(read, written_out(q, k, v, BIAS, FACTOR, hidden))


def test_a_text_that_nothing_reads_gives_numbers_in_half_precision() -> None:
    q, k, v = (random(1, count, DIM).half() for count in (QUERIES, ROWS, ROWS))
    bias = torch.full((1, ROWS), -math.inf)
    assert ComfyWeighting(bias, torch.ones(1, ROWS)).attend(attention_pytorch, q, k, v, 1).isfinite().all()


@pytest.mark.parametrize("kind", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("bias", [40000.0, 1e30, math.inf, -1e30, -math.inf])
@pytest.mark.parametrize("is_masked", [False, True])
def test_a_bias_of_any_size_gives_numbers(is_masked, bias, kind) -> None:
    q, k, v = (random(1, count, DIM).to(kind) for count in (QUERIES, ROWS, ROWS))
    weighing = ComfyWeighting(torch.tensor([[0.0, bias, bias, 0.0, 0.0]]), torch.ones(1, ROWS))
    mask = torch.tensor([True, True, False, True, True]).expand(QUERIES, ROWS) if is_masked else None
    read = weighing.attend(attention_pytorch, q, k, v, 1, mask)
    assert read.isfinite().all() and weighing.is_finite is None  # nothing was multiplied
    if bias > 0 and is_masked:  # one key has all shares
        torch.testing.assert_close(read, v[:, 1:2].expand_as(read), rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize(
    ("kind", "factor", "is_finite"),
    [
        (torch.float16, 1e6, False),
        (torch.float16, -60000.0, False),
        (torch.float16, 100.0, True),
        (torch.float16, -1.0, True),
        (torch.bfloat16, 1e6, True),
        (torch.float32, 1e6, True),
        (torch.float32, math.inf, False),
    ],
)
def test_values_beyond_their_number_type_are_noticed(kind, factor, is_finite) -> None:
    q, k, v = (random(1, count, DIM).to(kind) + 2 for count in (QUERIES, ROWS, ROWS))
    weighing = ComfyWeighting(torch.zeros(1, ROWS), torch.tensor([[1.0, factor, 1.0, 1.0, 1.0]]))
    for _ in range(2):
        weighing.attend(attention_pytorch, q, k, v, 1)
    assert (weighing.is_finite is None or bool(weighing.is_finite)) is is_finite


def test_in_a_unet_only_the_attention_behind_the_patch_is_weighed() -> None:
    q, k, v = random(1, QUERIES, DIM), random(1, ROWS, DIM), random(1, ROWS, DIM)
    theirs = SimpleNamespace(patches=[lambda n, context, value, extra: (n, context, value)])
    call = ModelCall(None, {"patches": {"attn2_patch": theirs.patches}}, {})
    options = in_cross_attention(ComfyWeighting(BIAS, FACTOR), call)
    assert len(theirs.patches) == 1
    plain = attention_pytorch(q, k, v, 1)
    assert torch.equal(options[OVERRIDE](attention_pytorch, q, k, v, 1), plain)
    for patch in options["patches"]["attn2_patch"]:
        patch(q, k, v, {})
    expected = written_out(q, k, v, BIAS, FACTOR)
    torch.testing.assert_close(options[OVERRIDE](attention_pytorch, q, k, v, 1), expected)
    assert torch.equal(options[OVERRIDE](attention_pytorch, q, k, v, 1), plain)


def test_a_patch_that_is_told_names_gives_back_what_has_changed() -> None:
    q, k, v = random(1, QUERIES, DIM), random(1, ROWS, DIM), random(1, ROWS, DIM)
    options = in_cross_attention(ComfyWeighting(BIAS, FACTOR), ModelCall(None, {}, {}))
    (patch,) = options["patches"]["attn2_patch"]
    assert patch(q, k, v, pe=None, attn_mask=None, extra_options={}) == {}
    expected = written_out(q, k, v, BIAS, FACTOR)
    torch.testing.assert_close(options[OVERRIDE](attention_pytorch, q, k, v, 1), expected)


def test_values_with_heads_behind_the_keys_are_weighed_as_well() -> None:
    q, k, v = random(1, QUERIES, DIM), random(1, ROWS, DIM), random(1, ROWS, DIM) + 1

    def of_heads(q, k, v, heads, mask):
        return attention_pytorch(q, k, v.flatten(2), heads, mask)

    read = ComfyWeighting(BIAS, FACTOR).attend(of_heads, q, k, v.unflatten(2, (2, -1)), 1)
    torch.testing.assert_close(read, written_out(q, k, v, BIAS, FACTOR))


def test_a_variant_of_stable_diffusion_3_that_refines_the_text_is_refused() -> None:
    network = SimpleNamespace(context_processor="layers of its own")
    with pytest.raises(ValueError, match="this variant of Stable Diffusion 3"):
        in_joint_blocks(ComfyWeighting(BIAS, FACTOR), ModelCall(network, {}, {}))


def test_where_another_patch_moves_rows_it_is_refused() -> None:
    with pytest.raises(ValueError, match="post_input"):
        in_joint_attention(ComfyWeighting(BIAS, FACTOR), ModelCall(None, {"patches": {"post_input": ["theirs"]}}, {}))


def test_kernels_that_take_no_bias_are_not_given_one(monkeypatch) -> None:
    import sys

    layers = SimpleNamespace(attention_pytorch=attention_pytorch)
    monkeypatch.setitem(sys.modules, "comfy.ldm.modules.attention", layers)
    for name in ("comfy", "comfy.ldm", "comfy.ldm.modules"):
        monkeypatch.setitem(sys.modules, name, SimpleNamespace(__path__=[]))

    def attention_sage(q, k, v, heads, mask=None, **_):
        assert mask is None
        return attention_pytorch(q, k, v, heads)

    q, k, v = random(1, QUERIES, DIM), random(1, ROWS, DIM), random(1, ROWS, DIM)
    weighing = ComfyWeighting(BIAS, FACTOR)
    options = attention_layers.around_attention({}, weighing.attend, weighing)
    torch.testing.assert_close(options[OVERRIDE](attention_sage, q, k, v, 1), written_out(q, k, v, BIAS, FACTOR))


class Network:
    """A diffusion model of nobody's."""


def test_an_unknown_model_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match=r"this model \(SimpleNamespace, Network\)"):
        families.weighting_function(SimpleNamespace(diffusion_model=Network()))


# ---- the wrappers


@pytest.fixture
def known(monkeypatch) -> None:
    """`Network` reads text in its cross attention."""
    name = f"{Network.__module__}.{Network.__qualname__}"
    monkeypatch.setattr(families, "WEIGHERS", {name: in_cross_attention})
    monkeypatch.setattr(contract, "OBJECTS", {**contract.OBJECTS, name: ()})


def entry(num_rows, marker=None, **values):
    """An entry of a conditioning in the host's sampler."""
    inputs = {"c_crossattn": SimpleNamespace(cond=random(1, num_rows, DIM))}
    if marker is not None:
        inputs[MARKER] = marker_class()(marker, torch.empty(0))
    return {"model_conds": inputs, **values}


def marker_of(num_rows, **effects):
    """Bias and factor of each row, ``[1, 2 * rows]``."""
    rows = [effects.get(f"row{row}", RowEffect()) for row in range(num_rows)]
    return torch.tensor([[row.bias for row in rows] + [row.factor for row in rows]])


def read_by(marker):
    """The rows of an image, as a call of the model gets them."""
    num_rows = marker.shape[1] // 2
    return StepRows(marker.view(2, -1), torch.zeros(num_rows), torch.zeros(1, num_rows), torch.zeros(0, num_rows))


def predicted(conds, x, executor=None, **more):
    """What each entry reads in a step, in which the host joins all of them in one call of the model."""

    def calc_cond_batch(model, conds):
        entries = [each["model_conds"] for group in conds if group is not None for each in group]
        texts = [each["c_crossattn"].cond for each in entries]
        longest = math.lcm(*(text.shape[1] for text in texts))
        text = torch.cat([text.repeat(1, longest // text.shape[1], 1) for text in texts])
        ours = [each[MARKER].process_cond(batch_size=1, area=None) for each in entries]
        assert all(ours[0].can_concat(each) for each in ours)
        options = {"cond_or_uncond": [0] * len(entries)}
        inputs = {MARKER: ours[0].concat(ours[1:]), **more}
        batch = x.repeat(len(entries), 1, 1)
        return wrappers.apply(executor or CrossAttention(), batch, "t", None, text, None, options, **inputs)

    return wrappers.predict(calc_cond_batch, "model", conds)


@pytest.mark.usefixtures("known")
def test_all_entries_of_a_step_share_a_call_of_the_model() -> None:
    conds = [[entry(4, marker_of(4, row1=RowEffect(1.0)), hooks=wrappers.MARKERS.hooks)], None, [entry(6)]]
    x = random(1, QUERIES, DIM)
    read = predicted(conds, x)
    for image, bias, entries in zip(read, ([0.0, 1.0, 0.0, 0.0], [0.0] * 6), (conds[0], conds[2]), strict=True):
        text = entries[0]["model_conds"]["c_crossattn"].cond
        expected = written_out(x, text, text, torch.tensor([bias]), torch.ones(1, text.shape[1]))
        torch.testing.assert_close(image[None], expected)
    seen = []
    wrappers.predict(lambda model, conds: seen.append(conds), "model", conds)
    ((one,), none, _) = seen[0]
    assert none is None
    assert one["hooks"] is None
    assert conds[0][0]["hooks"] is wrappers.MARKERS.hooks
    wrappers.predict(lambda model, again: seen.append(again), "model", seen[0])  # our wrappers may be there twice
    assert seen[1] is seen[0]
    plain = [[entry(4)]]
    wrappers.predict(lambda model, same: seen.append(same), "model", plain)
    assert seen[2] is plain


@pytest.mark.usefixtures("known")
def test_rows_that_have_changed_are_refused() -> None:
    with pytest.raises(ValueError, match=r"got 4 rows of text, but the sampler got 8.*Concat"):
        wrappers.predict(lambda *_: None, "model", [[entry(8, marker_of(4))]])


class Guider:
    """Samples with its conds, and is the object that wrappers around a sampling see."""

    def __init__(self, **conds) -> None:
        self.class_obj, self.conds = self, conds

    def __call__(self, *given, **named):
        return self.conds, given, named


def weighed_entry(rows, **more):
    """An entry whose first row has an effect, before the host adds the model's inputs."""
    effects = [RowEffect(0.5, -1.0), *[RowEffect()] * (rows.shape[1] - 1)]
    ((_, values),), _ = attention.with_effects([[rows, {}]], effects)
    return {"cross_attn": rows, **values, **more}


@pytest.mark.usefixtures("known")
@pytest.mark.parametrize(
    "as_sampled",
    [
        lambda rows: rows,
        lambda rows: rows.half(),
        lambda rows: rows.bfloat16().float(),
        lambda rows: rows.repeat(2, 1, 1),
        lambda rows: torch.lerp(random(1, 4, DIM) + 9, rows, 1.0),
    ],
    ids=["the same", "half", "bfloat16 and back", "of a batch", "average at 1"],
)
def test_rows_are_known_again_in_other_types_and_batches(as_sampled) -> None:
    one, plain = weighed_entry(40 * random(1, 4, DIM)), {"cross_attn": random(1, 3, DIM), "model_conds": {}}
    changed = {**one, "cross_attn": as_sampled(one["cross_attn"])}
    conds, given, named = wrappers.check_rows(Guider(positive=[changed, plain], negative=[plain]), 1, seed=2)
    assert (given, named) == ((1,), {"seed": 2})
    assert conds["positive"][0] is changed and conds["positive"][1] is conds["negative"][0] is plain


@pytest.mark.usefixtures("known")
@pytest.mark.parametrize(
    ("as_sampled", "found"),
    [
        (lambda rows: 0.98 * rows + 0.02 * random(1, 4, 64), "others"),
        (lambda rows: 1.1 * rows, "others"),
        (lambda rows: rows[:, [1, 0, 2, 3]], "others"),
        (lambda rows: torch.cat([rows[:, :3], torch.zeros_like(rows[:, :1])], 1), "others"),
        (lambda rows: torch.cat([rows, rows], 1), "8"),
        (lambda rows: rows[:, :3], "3"),
    ],
    ids=["average", "multiplied", "moved", "partly zeros", "joined", "cut"],
)
def test_rows_that_others_changed_are_refused_before_the_first_step(as_sampled, found) -> None:
    one = weighed_entry(torch.randn(1, 4, 64, generator=torch.Generator().manual_seed(3)))
    guider = Guider(positive=[], negative=[{**one, "cross_attn": as_sampled(one["cross_attn"])}])
    with pytest.raises(ValueError, match=rf"got 4 rows of text, but the sampler got {found}: .*Average.*Combine"):
        wrappers.check_rows(guider)


@pytest.mark.usefixtures("known")
def test_rows_of_zeros_have_no_weights_and_the_hosts_entry_stays() -> None:
    one = weighed_entry(random(1, 4, DIM), uuid=1)
    zeroed = {**one, "cross_attn": torch.zeros(1, 4, DIM)}
    before = dict(zeroed["model_conds"])
    conds, _, _ = wrappers.check_rows(Guider(positive=[one], negative=[zeroed]))
    assert conds["positive"][0] is one
    assert conds["negative"][0]["model_conds"][MARKER].cond.tolist() == [[0.0] * 4 + [1.0] * 4]
    assert conds["negative"][0]["uuid"] == 1
    assert zeroed["model_conds"] == before


@pytest.mark.usefixtures("known")
def test_rows_that_a_model_puts_in_front_are_plain(monkeypatch) -> None:
    monkeypatch.setattr(families, "FILLED_IN_FRONT", ("builtins.str",))
    one = entry(6, marker_of(4, row1=RowEffect(1.0)), cross_attn=random(1, 4, DIM))
    x, text = random(1, QUERIES, DIM), one["model_conds"]["c_crossattn"].cond
    expected = written_out(x, text, text, torch.tensor([[0.0, 0.0, 0.0, 1.0, 0.0, 0.0]]), torch.ones(1, 6))
    torch.testing.assert_close(predicted([[one, entry(6)]], x)[:1], expected)
    # beside an area the host gives this prompt's inputs to an entry that has the rows of another
    torch.testing.assert_close(predicted([[{**one, "cross_attn": None}]], x), expected)


@pytest.mark.usefixtures("known")
def test_rows_of_llama_are_counted_with_the_text() -> None:
    llama = random(1, 3, 2, DIM)
    one = entry(4, marker_of(6, row5=RowEffect(1.0)))
    one["model_conds"]["encoder_hidden_states_llama3"] = SimpleNamespace(cond=llama)
    x, text = random(1, QUERIES, DIM), torch.cat([one["model_conds"]["c_crossattn"].cond, llama[:, 0]], 1)

    class TwoTexts(CrossAttention):
        def __call__(self, x, t, c_concat, c_crossattn, control, options, **inputs):
            return super().__call__(x, t, c_concat, text, control, options)

    read = predicted([[one]], x, TwoTexts(), encoder_hidden_states_llama3=llama)
    expected = written_out(x, text, text, torch.tensor([[0.0] * 5 + [1.0]]), torch.ones(1, 6))
    torch.testing.assert_close(read, expected)
    rows, values = random(1, 4, DIM), {"conditioning_llama3": llama}
    with pytest.raises(ValueError, match="gave 6 rows, but the prompt was read as 4"):
        attention.with_effects([[rows, values]], [RowEffect(1.0)] * 4)


@pytest.mark.usefixtures("known")
def test_a_call_of_the_model_acts_on_its_own_rows_of_the_batch() -> None:
    seen = {}

    class Executor(CrossAttention):
        def __call__(self, x, t, c_concat, c_crossattn, control, options, **inputs):
            seen.update(options=options, inputs=inputs)
            return super().__call__(x, t, c_concat, c_crossattn, control, options)

    x, text = random(2, QUERIES, DIM), random(2, 4, DIM)
    # the first has two rows, which the host has repeated; the second has none of ours
    images = [read_by(torch.tensor([[0.5, 0.0, 1.0, 2.0]])), UNMARKED]
    noted = sampling_log.SamplingLog()
    given = {"cond_or_uncond": [0, 1], MARKER: noted}
    read = wrappers.apply(Executor(), x, "t", None, text, {"middle": []}, given, **{MARKER: images, "y": 1})
    assert (noted.num_rows, noted.num_layers, noted.has_control) == (2, 1, True)
    bias = torch.tensor([[0.5, 0.0, 0.5, 0.0], [0.0] * 4])
    factor = torch.tensor([[1.0, 2.0, 1.0, 2.0], [1.0] * 4])
    torch.testing.assert_close(read, written_out(x, text, text, bias, factor))
    assert seen["inputs"] == {"y": 1}
    assert given == {"cond_or_uncond": [0, 1], MARKER: noted}
    # nothing to do: the options stay as they are
    wrappers.apply(Executor(), x, "t", None, text, None, given, **{MARKER: [read_by(marker_of(4)), UNMARKED]})
    assert seen["options"] == given
    assert MARKER not in seen["inputs"]


class CrossAttention:
    """A model whose one layer runs the patches of its cross attention, then the attention, as the host's U-Net does."""

    class_obj = SimpleNamespace(diffusion_model=Network())

    def __call__(self, x, t, c_concat, c_crossattn, control, options, **_):
        n, context, value = x, c_crossattn, c_crossattn
        for patch in options.get("patches", {}).get("attn2_patch", ()):
            n, context, value = patch(n, context, value, {"cond_or_uncond": options["cond_or_uncond"]})
        override = options.get(OVERRIDE, lambda function, *inputs: function(*inputs))
        return override(attention_pytorch, n, context, value, 1)


def couple(num_rows, is_even=False):
    """A patch that reads a region beside each positive prompt, as attention couple does: a larger batch.

    ComfyUI-ppm and prompt-control repeat each positive's queries for its regions; sd-forge-couple, with ``is_even``,
    then also fills up to an even number.
    """

    def patch(n, context, value, extra):
        kinds = extra["cond_or_uncond"]
        region = random(1, num_rows, DIM).repeat(len(n) // len(kinds), 1, 1)
        queries, keys = [], []
        for kind, query, key in zip(kinds, n.chunk(len(kinds)), context.chunk(len(kinds)), strict=True):
            both = [key] if kind == 1 else [key, region]
            queries += [query for _ in both]
            longest = math.lcm(context.shape[1], num_rows)
            keys += [rows.repeat(1, longest // rows.shape[1], 1) for rows in both]
        if is_even and sum(map(len, queries)) % 2:
            queries.append(torch.zeros_like(n[:1]))
            keys.append(torch.zeros_like(keys[0][:1]))
        keys = torch.cat(keys)
        return torch.cat(queries), keys, keys

    return patch


@pytest.mark.usefixtures("known")
@pytest.mark.parametrize("effect", [RowEffect(0.5), RowEffect(0.0, -1.0)], ids=["bias", "negpip"])
@pytest.mark.parametrize("patch", [couple(4), couple(6), couple(4, is_even=True)], ids=["as many rows", "more", "even"])
@pytest.mark.parametrize("kinds", [[0], [1, 0], [0, 0]], ids=["cfg 1", "joined", "two prompts"])
@pytest.mark.parametrize("batch", [1, 2])
def test_a_patch_that_enlarges_the_batch_is_refused_in_words(batch, kinds, patch, effect) -> None:
    num_texts = batch * len(kinds)
    x, text = random(num_texts, QUERIES, DIM), random(num_texts, 4, DIM)
    options = {"patches": {"attn2_patch": [patch]}, "cond_or_uncond": kinds}

    def apply(marker):
        inputs = {MARKER: [read_by(marker)] * num_texts}
        return wrappers.apply(CrossAttention(), x, "t", None, text, None, options, **inputs)

    with pytest.raises(ValueError, match=r"Attention Couple: .* Regional Prompt\."):
        apply(marker_of(4, row0=effect))
    apply(marker_of(4))  # without weights it is none of our business


@pytest.mark.usefixtures("known")
def test_a_coupling_hook_that_breaks_beside_ours_is_refused_in_words() -> None:
    class AttentionCoupleHook:
        """A copy of prompt-control's, as the host makes it."""

    hook = AttentionCoupleHook()
    marker, both = marker_of(4, row1=RowEffect(1.0)), [*wrappers.MARKERS.hooks.hooks, hook]
    weighed, plain = entry(4, marker, hooks=SimpleNamespace(hooks=both)), entry(4, hooks=SimpleNamespace(hooks=[hook]))
    with pytest.raises(ValueError, match=r"Attention Couple: .* Regional Prompt\."):
        wrappers.predict(lambda *_: hook.comfy_conds, "model", [[weighed], [entry(4)]])
    # beside a prompt of ours in another place it is theirs alone
    elsewhere = entry(4, marker, hooks=wrappers.MARKERS.hooks)
    with pytest.raises(AttributeError, match="comfy_conds"):
        wrappers.predict(lambda *_: hook.comfy_conds, "model", [[plain], [elsewhere]])


@pytest.mark.usefixtures("known")
def test_a_negative_prompt_beside_coupled_ones_is_weighed() -> None:
    x, text, marker = random(2, QUERIES, DIM), random(2, 4, DIM), marker_of(4, row1=RowEffect(0.5, -1.0))
    options = {"patches": {"attn2_patch": [couple(4)]}, "cond_or_uncond": [1]}
    read = wrappers.apply(CrossAttention(), x, "t", None, text, None, options, **{MARKER: [read_by(marker)] * 2})
    torch.testing.assert_close(read, written_out(x, text, text, *marker.view(2, 1, 4)))


@pytest.mark.usefixtures("known")
@pytest.mark.parametrize("batch", [1, 2, 4])
def test_a_batch_is_weighed_and_so_are_tiles_of_one_picture(batch) -> None:
    marker = marker_of(4, row0=RowEffect(0.5), row1=RowEffect(0.0, -1.0))
    x, text = random(batch, QUERIES, DIM), random(batch, 4, DIM)
    options = {"cond_or_uncond": [0]}
    expected = written_out(x, text, text, *marker.view(2, 1, 4))
    # the second way: a wrapper that cuts a picture into tiles has repeated its text, but not our marker
    for images in ([read_by(marker)] * batch, [read_by(marker)]):
        read = wrappers.apply(CrossAttention(), x, "t", None, text, None, options, **{MARKER: images})
        torch.testing.assert_close(read, expected)


@pytest.mark.usefixtures("known")
def test_a_picture_without_numbers_is_an_error_if_weights_acted() -> None:
    x, text = random(1, QUERIES, DIM), random(1, 4, DIM)

    def sampled(factor, drawn):
        def sampling(model, sigmas, extra_args, callback):
            options = {**extra_args["model_options"]["transformer_options"], "cond_or_uncond": [0]}
            images = [read_by(marker_of(4, row1=RowEffect(0.0, factor)))]
            wrappers.apply(CrossAttention(), x, "t", None, text, None, options, **{MARKER: images})
            return drawn

        return wrappers.sample(sampling, "model", "sigmas", {"model_options": {}})

    fine, broken = torch.zeros(2), torch.tensor([0.0, math.nan])
    assert sampled(2.0, fine) is fine
    assert sampled(1.0, broken) is broken  # nothing is weighed: it is not ours
    for factor, drawn in ((2.0, broken), (math.inf, fine)):
        with pytest.raises(ValueError, match="no longer made of finite numbers"):
            sampled(factor, drawn)


@pytest.mark.usefixtures("known")
def test_a_step_that_a_cache_answers_is_none_of_our_business() -> None:
    class Executor:
        class_obj = SimpleNamespace(diffusion_model=Network())

        def __call__(self, x, *_, **__):
            return x

    x, noted = random(1, 2, DIM), sampling_log.SamplingLog()
    marker = [read_by(torch.tensor([[0.5, 0.0, 1.0, 1.0]]))]
    with pytest.raises(ValueError, match="found no attention layer"):
        wrappers.apply(Executor(), x, "t", None, x, None, {MARKER: noted}, **{MARKER: marker})
    noted.num_rows, noted.num_layers = 1, 16  # an earlier step's
    assert wrappers.apply(Executor(), x, "t", None, x, None, {MARKER: noted}, **{MARKER: marker}) is x


def test_after_sampling_the_log_says_what_acted(caplog) -> None:
    caplog.set_level("INFO")

    def sampling(model, sigmas, extra_args, callback):
        seen = extra_args["model_options"]["transformer_options"][MARKER]
        seen.num_rows, seen.num_layers, seen.has_control = 2, 16, True
        return latent

    latent, arguments = torch.zeros(1), {"model_options": {}}
    twice = lambda *given: wrappers.sample(sampling, *given)  # noqa: E731 - our wrappers may be there twice
    assert wrappers.sample(twice, "model", "sigmas", arguments) is latent
    assert [record.getMessage() for record in caplog.records] == [
        "Attention Weights: 2 rows in 16 attention layers",
        "Attention Weights: the ControlNet read them at weight 1; it has no weights in its own attention",
    ]


def test_a_phrase_counts_the_steps_of_all_times_of_its_entries(caplog) -> None:
    caplog.set_level("INFO")
    sampling = SimpleNamespace(percent_to_sigma=lambda part: 5 * (1 - part))
    levels = [4.0, 3.0, 2.0, 1.0, 0.0]
    step = Step(SimpleNamespace(model_sampling=sampling), torch.zeros(1, 4, 2, 2), torch.tensor(4.0), levels, {})
    log, field = sampling_log.SamplingLog(), Field((0,), 2, 1, Where("“cat”"), "cat")
    for times in ((4.0, 3.0), (1.0, 0.0)):
        log.note_places(SimpleNamespace(fields=[field], regions=[]), step, *times)
    log.report()
    assert [record.getMessage() for record in caplog.records] == ["Place Phrase: “cat” acted in 3 of 4 steps"]
