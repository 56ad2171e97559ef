"""Context extensions by their formulas in float64, whole and per axis, and rotary with an axis for each head."""

from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sources import ROOT

import mrope
from mrope import AxisSplit, Frequencies, Rotary
from mrope.attention import KVCache, attend
from mrope.axes import HeadSplit
from mrope.extensions import (
    NAMES,
    At,
    DynamicNtk,
    Extension,
    Learned,
    Linear,
    Llama3,
    LongRope,
    Ntk,
    Proportional,
    Yarn,
    Zero,
    parse_extension,
)
from mrope.layouts import AnchoredLayout, PypeLayout, merge_clusters
from mrope.probes.audits.encoding import audit_encoding

BASE, DIM = 1e6, 128


def yarn(j: int, theta: float) -> float:
    def pair(turns: float) -> float:
        return DIM * math.log(32768 / (turns * 2 * math.pi)) / (2 * math.log(BASE))

    low, high = math.floor(pair(32)), math.ceil(pair(1))
    slowed = min(1.0, max(0.0, (j - low) / (high - low)))
    return slowed * theta / 4 + (1 - slowed) * theta


def llama3(_: int, theta: float) -> float:
    length = 2 * math.pi / theta
    if length < 8192 / 4:
        return theta
    if length > 8192:
        return theta / 8
    smooth = (8192 / length - 1) / 3
    return (1 - smooth) * theta / 8 + smooth * theta


# Each extension, and what it makes of frequency j, which is theta.
FORMULAS: dict[str, tuple[Extension, Callable[[int, float], float]]] = {
    "linear": (Linear(4), lambda j, theta: theta / 4),
    "ntk": (Ntk(4), lambda j, theta: (BASE * 4 ** (128 / 126)) ** (-j / 64)),
    "dynamic": (DynamicNtk(2, 4096), lambda j, theta: (BASE * (2 * 10_000 / 4096 - 1) ** (128 / 126)) ** (-j / 64)),
    "dynamic, within": (DynamicNtk(2, 16384), lambda j, theta: theta),
    "yarn": (Yarn(4, 32768), yarn),
    "llama3": (Llama3(8, 8192), llama3),
    "longrope": (
        LongRope(4, 4096, (1.0,) * 64, tuple(1 + j / 10 for j in range(64))),
        lambda j, theta: theta / (1 + j / 10),
    ),
    "longrope, within": (
        LongRope(4, 16384, tuple(1 + j / 10 for j in range(64)), (9.0,) * 64),
        lambda j, theta: theta / (1 + j / 10),
    ),
    "proportional": (Proportional(0.25, 2), lambda j, theta: theta / 2 if j < 16 else 0.0),
    "zero": (Zero(), lambda j, theta: 0.0),
    "learned": (Learned(torch.linspace(1, 2, 64)), lambda j, theta: 1 + j / 63),
}


@pytest.mark.evidence("definition", "Rotary")
@pytest.mark.parametrize("name", FORMULAS)
def test_each_extension_is_its_formula(name: str) -> None:
    extension, formula = FORMULAS[name]
    wanted = np.array([formula(j, BASE ** (-j / 64)) for j in range(64)])
    exact = Frequencies(BASE, extension).inv_freq(DIM, dtype=torch.float64, length=10_000)
    np.testing.assert_allclose(exact.numpy(), wanted, rtol=1e-6 if name == "learned" else 1e-12, atol=0)
    float32 = Frequencies(BASE, extension).inv_freq(DIM, length=10_000)
    assert float32.dtype == torch.float32
    np.testing.assert_allclose(float32.numpy(), wanted, rtol=3e-6, atol=0)


def test_the_ends_of_ntk_are_the_trained_and_the_interpolated() -> None:
    plain, stretched = (Frequencies(BASE, each).inv_freq(DIM, dtype=torch.float64) for each in (None, Ntk(4)))
    assert stretched[0] == plain[0]
    assert stretched[-1].item() == pytest.approx(plain[-1].item() / 4)


def test_attention_factors() -> None:
    worked = {
        Linear(4): 1.0,
        Yarn(4, 32768): 1.1386294361,  # 0.1 ln 4 + 1
        Yarn(1, 32768): 1.0,
        Yarn(4, 32768, attention=1): 1.0,
        Yarn(40, 4096, mscale=1.0, mscale_all_dim=1.0): 1.0,
        LongRope(32, 4096, (1.0,), (1.0,)): 1.1902380714,  # sqrt(1 + ln 32 / ln 4096) = sqrt(1 + 5 / 12)
    }
    for extension, factor in worked.items():
        assert extension.attention_factor == pytest.approx(factor, rel=1e-9)


# ----------------------------------------------------------------------------------------------------------- per axis


def test_an_axis_has_an_extension_of_its_own() -> None:
    split = AxisSplit((24, 20, 20), "interleaved")
    frequencies = Frequencies(5e6, (Linear(4), None, Ntk(2)))
    inv_freq = frequencies.inv_freq(128, split.axis)
    alone = [Frequencies(5e6, extension).inv_freq(128) for extension in (Linear(4), None, Ntk(2))]
    for j, axis in enumerate(split.axis.tolist()):
        assert inv_freq[j] == alone[axis][j]
    same = Frequencies(5e6, (Linear(4),) * 3)
    assert torch.equal(same.inv_freq(128, split.axis), alone[0])


@settings(deadline=None)
@given(st.permutations([None, Linear(3), Ntk(2), Yarn(4, 512)]), st.sampled_from([(8, 4, 4), (6, 5, 5)]))
def test_the_other_axes_stay_as_they_are(extensions: list[Extension | None], counts: tuple[int, int, int]) -> None:
    split = AxisSplit(counts)
    rotary = Rotary(split, Frequencies(1e4, tuple(extensions[:3])))
    ids = torch.arange(3 * 20).reshape(3, 20) * 37
    cos, _ = rotary.cos_sin(ids)
    for axis, extension in enumerate(extensions[:3]):
        alone, _ = Rotary(split, Frequencies(1e4, extension)).cos_sin(ids)
        of_axis = split.axis == axis
        torch.testing.assert_close(cos[:, of_axis], alone[:, of_axis], rtol=2e-7, atol=0)


def test_videoropes_extension_stretches_time_alone() -> None:
    """VideoRoPE++ leaves the 48 spatial pairs and gives time the base b ((L f - 1) / (L - 1)) ** (d / (d - 2))."""
    split, factor = AxisSplit.parse("HW*24 T*16"), (32768 * 4 - 1) / (32768 - 1)
    inv_freq = Frequencies(1e6, (Ntk(factor), None, None)).inv_freq(128, split.axis, dtype=torch.float64)
    stretched = 1e6 * factor ** (128 / 126)
    wanted = [1e6 ** (-j / 64) if j < 48 else stretched ** (-j / 64) for j in range(64)]
    np.testing.assert_allclose(inv_freq.numpy(), wanted, rtol=1e-12)


@pytest.mark.evidence("properties", "Rotary")
def test_hope_forgets_time_and_is_no_rope_for_text() -> None:
    rotary = Rotary(AxisSplit.parse("HW*24 T*16"), Frequencies(1e6, (Zero(), None, None)))
    ids = torch.randint(0, 500, (3, 30))
    later = ids + torch.tensor([[70], [0], [0]])
    assert torch.equal(rotary.cos_sin(ids)[0], rotary.cos_sin(later)[0])
    assert torch.equal(rotary.cos_sin(ids)[0][:, 48:], torch.ones(30, 16))
    measured = audit_encoding(rotary, axes=3, head_dim=128)
    assert measured == rotary.properties
    assert not measured.text_is_rope


def test_extensions_for_other_axes_are_refused() -> None:
    with pytest.raises(ValueError, match="there are extensions of 2 axes; the split has 3"):
        Rotary(AxisSplit(), Frequencies(1e6, (None, Linear(2))))
    with pytest.raises(ValueError, match="pass axis=, which pair reads which"):
        Frequencies(1e6, (None, Linear(2))).inv_freq(8)


# ---------------------------------------------------------------------------------------------------------- properties

ROTARIES = {
    "chunked": Rotary(AxisSplit((8, 12, 12)), Frequencies(1e4)),
    "interleaved, adjacent": Rotary(AxisSplit((11, 11, 10), "interleaved"), Frequencies(1e4), "adjacent"),
    "by hand": Rotary(AxisSplit.parse("TTHWHWHW*4"), Frequencies(1e4)),
    "four axes": Rotary(AxisSplit.parse("0123*8"), Frequencies(1e4)),
    "one axis": Rotary(AxisSplit((32,)), Frequencies(1e4)),
    "yarn": Rotary(AxisSplit((8, 12, 12)), Frequencies(1e4, Yarn(4, 512))),
    "yarn of one axis": Rotary(AxisSplit((8, 12, 12)), Frequencies(1e4, (Yarn(4, 512), None, None))),
    "exact": Rotary(AxisSplit((8, 12, 12)), Frequencies(1e4), angles="exact"),
    "heads": Rotary(HeadSplit((1, 1, 2), pairs=32), Frequencies(1e4)),
}


@pytest.mark.evidence("properties", "Rotary")
@pytest.mark.parametrize("name", ROTARIES)
def test_declared_properties_are_those_measured(name: str) -> None:
    rotary = ROTARIES[name]
    heads = 4 if isinstance(rotary.split, HeadSplit) else 2
    measured = audit_encoding(rotary, axes=rotary.axes, head_dim=72, heads=heads)
    assert measured == rotary.properties
    assert measured.shift
    assert measured.norm == ("yarn" not in name)


# --------------------------------------------------------------------------------------------------------------- heads


@pytest.mark.evidence("definition", "Rotary")
@pytest.mark.parametrize("batched", [False, True])
def test_heads_turn_by_their_axis_and_spare_heads_do_not(batched: bool) -> None:
    rotary = Rotary(HeadSplit((1, 2, 1), pairs=8, heads=5), Frequencies(100.0))
    ids = torch.randint(0, 50, (3, 2, 7) if batched else (3, 7))
    q, k = (torch.randn(*((2,) if batched else ()), heads, 7, 20) for heads in (10, 5))
    turned_q, turned_k = rotary(q, k, ids)
    for head, axis in enumerate((0, 1, 1, 2, None)):
        plain = Rotary(AxisSplit((8,)), Frequencies(100.0))
        index = torch.zeros_like(ids[:1]) if axis is None else ids[axis : axis + 1]
        group = slice(2 * head, 2 * head + 2)  # queries go with the keys that they look at
        wanted_q, wanted_k = plain(q[..., group, :, :], k[..., head : head + 1, :, :], index)
        assert torch.equal(turned_q[..., group, :, :], wanted_q)
        assert torch.equal(turned_k[..., head : head + 1, :, :], wanted_k)
    assert torch.equal(turned_k[..., 4, :, :], k[..., 4, :, :])


def test_heads_that_do_not_divide_are_refused() -> None:
    rotary = Rotary(HeadSplit((1, 1, 1), pairs=2), Frequencies(100.0))
    with pytest.raises(ValueError, match=r"k has 3 heads and q 4; the split \(1, 1, 1\) was made for 3 heads of keys"):
        rotary(torch.ones(4, 4, 4), torch.ones(3, 4, 4), torch.zeros(3, 4))


# ------------------------------------------------------------------------------------------------------------- learned


@pytest.mark.evidence("gradient", "Rotary")
def test_frequencies_learn_through_the_rotation() -> None:
    values = torch.nn.Parameter(torch.tensor([1.0, 0.3, 0.1, 0.01]))
    rotary = Rotary(AxisSplit((2, 1, 1)), Frequencies(1e4, Learned(values)))
    ids, q, k = torch.randint(0, 9, (3, 6)), torch.randn(2, 6, 8), torch.randn(2, 6, 8)
    wanted = 0.5 * values.detach().clone()
    target = Rotary(AxisSplit((2, 1, 1)), Frequencies(1e4, Learned(wanted)))(q, k, ids)[0]
    (rotary(q, k, ids)[0] - target).square().sum().backward()
    assert values.grad is not None
    step, difference = 1e-3, values.grad.clone()

    def loss(at: torch.Tensor) -> float:
        turned = Rotary(AxisSplit((2, 1, 1)), Frequencies(1e4, Learned(at)))(q.double(), k.double(), ids)[0]
        return (turned - target.double()).square().sum().item()

    for j in range(4):
        nudge = torch.zeros(4)
        nudge[j] = step
        slope = (loss(values.detach() + nudge) - loss(values.detach() - nudge)) / (2 * step)
        assert difference[j].item() == pytest.approx(slope, rel=0.02, abs=0.02)


# ------------------------------------------------------------------------------------------------------- command words


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("linear:4", Linear(4.0)),
        ("pi:2", Linear(2.0)),
        ("ntk:4", Ntk(4.0)),
        ("yarn:4", Yarn(4.0, 32768)),
        ("yarn:4,4096", Yarn(4.0, 4096)),
        ("ntk-by-parts:4", Yarn(4.0, 32768, attention=1)),
        ("dynamic:2", DynamicNtk(2.0, 32768)),
        ("llama3:8,8192", Llama3(8.0, 8192)),
        ("proportional:0.25", Proportional(0.25)),
        ("zero", Zero()),
    ],
)
def test_extensions_are_read_from_words(text: str, expected: Extension) -> None:
    assert parse_extension(text, trained=32768) == expected


def test_every_name_has_a_word() -> None:
    assert set(NAMES) >= {"linear", "ntk", "dynamic", "yarn", "llama3", "proportional", "zero", "ntk-by-parts"}


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("yarm:4", "extension is 'yarm'; expected one of linear, pi, ntk"),
        ("yarn:four", "extension 'yarn:four' has 'four'; expected numbers, as in yarn:4,32768"),
        ("yarn", "extension 'yarn' has no factor; yarn takes factor, trained"),
        ("yarn:4", "extension 'yarn:4' has no trained"),
        ("ntk:4,5", "has 2 numbers; ntk takes factor"),
        ("zero:1", "zero takes none"),
        ("ntk:0.5", "factor is 0.5; expected from 1 to 1e30"),
        ("dynamic:2,inf", "has '2,inf'; expected finite numbers"),
        ("yarn:4,0.5", "trained is 0.5; expected a whole number"),
    ],
)
def test_words_that_are_no_extension_are_refused(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        parse_extension(text)


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda: Yarn(4, 32768, beta_fast=1, beta_slow=32), "beta_fast 1 is not above beta_slow 32"),
        (lambda: Yarn(4, 5), "trained is 5; expected at least 7"),
        (lambda: Yarn(4, 512).inv_freq(1.0, 8), "is 1; YaRN needs one above 1"),
        (lambda: Llama3(8, 8192, low=4, high=1), "high 1 is not above low 4"),
        (lambda: Proportional(1.5), "share is 1.5; expected at most 1"),
        (lambda: Ntk(2).inv_freq(1e4, 2), "rotary_dim is 2; NTK needs at least two pairs"),
        (lambda: Learned(torch.ones(3)).inv_freq(1e4, 8), "values has 3 frequencies; 8 rotary channels need 4"),
    ],
)
def test_extensions_that_make_no_sense_are_refused(make, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        make()


def test_a_family_with_yarn_keeps_the_layout_and_the_split() -> None:
    config = {
        "model_type": "qwen2_5_vl",
        "rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768},
    }
    family = mrope.Family.from_config(config)
    assert family.rotary() == Rotary(AxisSplit(), Frequencies(1e6, Yarn(4.0, 32768)))
    assert family.layout == mrope.family("qwen2.5-vl").layout


# ---------------------------------------------------------------------------------------------------------- one length


def test_an_extension_can_be_held_at_one_length() -> None:
    held = Frequencies(1e6, At(DynamicNtk(2, 32), 50))
    assert not held.needs_length
    assert torch.equal(held.inv_freq(128), Frequencies(1e6, DynamicNtk(2, 32)).inv_freq(128, length=50))
    longrope = LongRope(4, 512, (1.0,) * 4, (2.0,) * 4)
    assert At(longrope, 600).attention_factor == longrope.attention_factor


def test_a_cache_wants_frequencies_of_one_length() -> None:
    positions = mrope.family("qwen2-vl").positions(["text:40"])
    q = torch.randn(1, 2, 40, 128)
    growing = Rotary(AxisSplit(), Frequencies(1e6, DynamicNtk(2, 32)))
    with pytest.raises(ValueError, match=r"depend on the length of the row, .* hold them at one length"):
        attend(q, q, q, encoding=growing, positions=positions, cache=KVCache())
    held = Rotary(AxisSplit(), Frequencies(1e6, At(DynamicNtk(2, 32), 40)))
    cached = attend(q, q, q, encoding=held, positions=positions, cache=KVCache())
    torch.testing.assert_close(cached, attend(q, q, q, encoding=growing, positions=positions))


# ------------------------------------------------------------------------------------------------------------ compiled


def test_every_kind_of_rotary_compiles_without_a_break() -> None:
    # In a process of its own: the checks of shapes that tests put into our functions would be traced as well.
    script = """
import torch
from mrope import AxisSplit, Frequencies, GridLayout, HeadSplit, Rotary, Text
from mrope.extensions import Ntk, Yarn, Zero

for rotary in (
    Rotary(AxisSplit((8, 12, 12)), Frequencies(1e4)),
    Rotary(AxisSplit.parse("TTHWHWHW*4"), Frequencies(1e4, Yarn(4, 512)), "adjacent"),
    Rotary(AxisSplit((11, 11, 10), "interleaved"), Frequencies(1e4, (Ntk(2), None, Zero()))),
    Rotary(AxisSplit((8, 12, 12)), Frequencies(1e4), angles="exact"),
    Rotary(HeadSplit((1, 1, 2), pairs=32), Frequencies(1e4)),
):
    torch._dynamo.reset()
    compiled = torch.compile(rotary.rotate, fullgraph=True, backend="eager", dynamic=True)
    positions, x = GridLayout()([Text(15)]), torch.randn(4, 15, 72)  # as they come, with fields that are not made yet
    assert torch.equal(compiled(x, x, positions)[0], rotary.rotate(x, x, positions)[0])
    for tokens in (7, 9):
        q, k, ids = torch.randn(2, 4, tokens, 72), torch.randn(2, 4, tokens, 72), torch.randint(0, 99, (3, 2, tokens))
        assert all(map(torch.equal, compiled(q, k, ids), rotary.rotate(q, k, ids)))
"""
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


# --------------------------------------------------------------------------------------------- positions of other kinds


def test_positions_with_several_ids_a_token_are_refused_by_what_to_pass() -> None:
    rotary, q = Rotary(AxisSplit((2, 1, 1)), Frequencies(1e4)), torch.randn(1, 21, 8)
    layered = PypeLayout(layers=8, jump=2)([mrope.Text(3), mrope.Image((1, 8, 8)), mrope.Text(2)])
    with pytest.raises(ValueError, match=r"differ from layer to layer; expected those of one: positions\.layer"):
        rotary(q, q, layered)
    rotary(q, q, layered.layer(7))
    anchored = AnchoredLayout(mrope.GridLayout())([mrope.Text(3), mrope.Image((1, 8, 8)), mrope.Text(2)])
    with pytest.raises(ValueError, match="have second ids for queries"):
        rotary(q, q, anchored)
    with pytest.raises(ValueError, match="have second ids for queries"):
        rotary.cos_sin(mrope.batch([anchored]))
    merged = merge_clusters(mrope.GridLayout()([mrope.Text(3)]), torch.tensor([0, 0, 1]), k=2)
    with pytest.raises(ValueError, match=r"ids of merged tokens; expected those of all members"):
        rotary.cos_sin(merged)


def test_a_default_device_changes_nothing() -> None:
    rotary, ids = (
        Rotary(AxisSplit((2, 1, 1)), Frequencies(1e4, (Yarn(4, 512), None, Ntk(2)))),
        torch.arange(9).repeat(3, 1),
    )
    wanted = rotary.cos_sin(ids)
    with torch.device("meta"):
        assert all(map(torch.equal, rotary.cos_sin(ids), wanted))


@pytest.mark.parametrize("length", [float("nan"), float("inf"), -5, 0])
def test_a_length_that_is_none_is_refused(length: float) -> None:
    with pytest.raises(ValueError, match=r"length is .*; expected a finite number above 0"):
        Frequencies(1e4, DynamicNtk(4, 100)).inv_freq(8, length=length)


@pytest.mark.parametrize(
    ("make", "error", "why"),
    [
        (lambda: Ntk(1e308), ValueError, r"factor is 1e\+308; expected from 1 to 1e30"),
        (lambda: Frequencies(0.5), ValueError, "is 0.5; expected at least 1, so that later pairs are slower"),
        (
            lambda: Frequencies(1e4).inv_freq(8, dtype=torch.bfloat16),
            ValueError,
            "expected torch.float32 or torch.float64",
        ),
        (
            lambda: Frequencies(1e4).inv_freq(8, torch.tensor([0, 1])),
            ValueError,
            "axis has 2 pairs; 8 rotary channels have 4",
        ),
        (lambda: LongRope(4, 4096, (1, 2), (1, 2, 3)), ValueError, "short has 2 divisors, long 3"),
        (lambda: At(Yarn(4, 512), 5), TypeError, "expected one that depends on the length"),
        (lambda: HeadSplit((2, 3, 3), 64, 7), ValueError, r"take 8 heads of 7; .* as in \(2, 3, 2\)"),
    ],
)
def test_what_makes_no_sense_is_refused(make, error: type[Exception], why: str) -> None:
    with pytest.raises(error, match=why):
        make()


def test_wrong_types_are_named() -> None:
    # In a process of its own, without the checks of types that tests put into our functions.
    script = """
from mrope import *
from mrope.extensions import Learned
rotary = Rotary(AxisSplit((2, 1, 1)), Frequencies(1e4))
for make in (
    lambda: Rotary((16, 24, 24), Frequencies()),
    lambda: Rotary(AxisSplit(), 1e6),
    lambda: rotary.cos_sin([[0], [1], [2]]),
    lambda: rotary.cos_sin(None),
    lambda: Learned([1.0, 2.0]),
):
    try:
        make()
    except TypeError as error:
        print(error)
"""
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True)
    lines = done.stdout.splitlines()
    assert [line.split(" is ")[0] for line in lines] == ["split", "frequencies", "positions", "positions", "values"]
    assert all("; expected " in line for line in lines)
