"""Attention through encodings: against slow formulas and transformers, masks in both forms, and what is refused."""

from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sources import ROOT
from tiny_models import FAMILIES, tiny_model
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

import mrope
from mrope import AxisSplit, Frequencies, GridLayout, Image, Layout, Positions, Rotary, Text
from mrope.attention import (
    Attention,
    EncodedAttention,
    LinearAttention,
    Mask,
    attend,
    linear_attend,
    picture_numbers,
    read_tokens,
)
from mrope.encoding import Encoding, Where, read_ids
from mrope.encodings import AxialRope, LieRope, Pope, ShawBias, XPos
from mrope.extensions import DynamicNtk, Yarn
from mrope.layouts.rings import RingLayout

ROTARY = Rotary(AxisSplit((2, 1, 1)), Frequencies(100.0))
LAYOUT = GridLayout(merge=1)
LONG = [Text(2), Image((1, 2, 3)), Text(2), Image((1, 3, 1)), Text(1)]
SHORT = [Image((1, 1, 3)), Text(3)]
flex_on_cpu = pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")


class Slopes(Encoding):
    """ALiBi with the distance summed over the axes: head h has the slope 2 ** -(h + 1)."""

    def bias(self, q: Tensor, positions: Where, keys: Where | None = None) -> Tensor:
        asking, seen = (read_ids(x).to(q.dtype) for x in (positions, positions if keys is None else keys))
        distance = (asking[..., :, None] - seen[..., None, :]).abs().sum(0).unsqueeze(-3)
        slopes = 2.0 ** -torch.arange(1, q.shape[1] + 1, dtype=q.dtype)
        return (-slopes[:, None, None] * distance).expand(*q.shape[:-1], -1)


def row(spans: list, layout: Layout = LAYOUT) -> Positions:
    return replace(layout(spans), pictures=picture_numbers(spans, layout))


def batch() -> mrope.BatchPositions:
    return mrope.batch([row(LONG), row(SHORT)])


def random_qkv(tokens: int, heads: int = 4, kv_heads: int = 2, rows: int = 2, value_dim: int = 6) -> tuple:
    shapes = ((heads, 8), (kv_heads, 8), (kv_heads, value_dim))
    return tuple(torch.randn(rows, h, tokens, d, dtype=torch.float64) for h, d in shapes)


# ---------------------------------------------------------------------------------------------- against a slow formula


def sees(rule: str, window: int | None, one: dict, other: dict) -> bool:
    """Whether token `one` may look at token `other`, both told by slot, segment, picture and first id."""
    if one["segment"] != other["segment"] or other["segment"] < 0:
        return False
    back = one["slot"] - other["slot"]
    if rule == "all":
        return window is None or -window < back < window
    if rule in ("pictures", "rings") and one["picture"] >= 0 and one["picture"] == other["picture"]:
        return rule == "pictures" or one["first"] >= other["first"]
    return back >= 0 and (window is None or back < window)


def told(positions: Positions) -> list[dict]:
    pictures = positions.pictures
    return [
        {
            "slot": int(positions.text[n]),
            "segment": int(positions.segments[n]),
            "picture": -1 if pictures is None else int(pictures[n]),
            "first": float(positions.ids[0, n]),
        }
        for n in range(positions.ids.shape[1])
    ]


def turned(x: np.ndarray, ids: np.ndarray) -> np.ndarray:
    """A vector of 8 channels turned as `ROTARY` does, pair by pair: axes t, t, h, w, bases 100 ** (-j / 4)."""
    out = x.copy()
    for pair, axis in enumerate((0, 0, 1, 2)):
        angle = ids[axis] * 100.0 ** (-pair / 4)
        a, b = x[pair], x[pair + 4]
        out[pair] = a * math.cos(angle) - b * math.sin(angle)
        out[pair + 4] = b * math.cos(angle) + a * math.sin(angle)
    return out


def slow_attention(qkv, rows: list[Positions], kind: str, rule: str = "causal", window: int | None = None) -> Tensor:
    """One row, head and query at a time."""
    q, k, v = (x.numpy() for x in qkv)
    out = np.zeros((*q.shape[:3], v.shape[-1]))
    for b, h, n in np.ndindex(*q.shape[:3]):
        tokens, ids, group = told(rows[b]), rows[b].ids.numpy(), h // (q.shape[1] // k.shape[1])
        seen = [m for m in range(k.shape[2]) if sees(rule, window, tokens[n], tokens[m])]
        scores = []
        for m in seen:
            one, other = q[b, h, n], k[b, group, m]
            if kind == "rotary":
                one, other = turned(one, ids[:, n]), turned(other, ids[:, m])
            score = sum(one * other) / math.sqrt(8)
            if kind == "slopes":
                score -= 2.0 ** -(h + 1) * sum(abs(int(ids[a, n]) - int(ids[a, m])) for a in range(3))
            scores.append(math.exp(score))
        for weight, m in zip(scores, seen, strict=True):
            out[b, h, n] += weight / sum(scores) * v[b, group, m]
    return torch.from_numpy(out)


ENCODINGS: dict[str, Encoding] = {"rotary": ROTARY, "slopes": Slopes(), "none": Encoding()}


@pytest.mark.parametrize("kv_heads", [4, 2, 1])
@pytest.mark.parametrize("kind", ENCODINGS)
def test_attention_is_the_slow_formula(kind: str, kv_heads: int) -> None:
    positions = batch()
    qkv = random_qkv(14, kv_heads=kv_heads)
    ours = attend(*qkv, encoding=ENCODINGS[kind], positions=positions)
    torch.testing.assert_close(ours, slow_attention(qkv, list(positions.rows), kind), atol=1e-5, rtol=0)


@pytest.mark.parametrize(
    "mask", [Mask("causal", 3), Mask("pictures"), Mask("pictures", 2), Mask("all"), Mask("all", 4)], ids=str
)
def test_each_mask_is_the_slow_formula(mask: Mask) -> None:
    packed = mrope.pack([row(SHORT), row(LONG)]).pad(23)
    qkv = random_qkv(23, rows=1)
    ours = attend(*qkv, encoding=ROTARY, positions=packed, mask=mask)
    slow = slow_attention(qkv, [packed], "rotary", mask.rule, mask.window)
    torch.testing.assert_close(ours, slow, atol=1e-5, rtol=0)


def test_swapping_height_and_width_moves_the_output() -> None:
    positions, qkv = row(LONG), random_qkv(14, rows=1)
    swapped = replace(positions, ids=positions.ids[[0, 2, 1]])
    ours, other = (attend(*qkv, encoding=ROTARY, positions=p) for p in (positions, swapped))
    assert (ours - other).abs().max() > 0.01


def test_one_row_of_positions_serves_a_batch_and_ids_alone_are_a_document() -> None:
    positions, qkv = row(LONG), random_qkv(14)
    together = attend(*qkv, encoding=ROTARY, positions=positions)
    torch.testing.assert_close(together, attend(*qkv, encoding=ROTARY, positions=mrope.batch([positions] * 2)))
    torch.testing.assert_close(together, attend(*qkv, encoding=ROTARY, positions=positions.ids))


def test_the_scale_is_that_of_the_head_before_it_is_turned() -> None:
    class Doubled(Encoding):
        def rotate(self, q: Tensor, k: Tensor, positions: Where) -> tuple[Tensor, Tensor]:
            return torch.cat((q, torch.zeros_like(q)), dim=-1), torch.cat((k, k), dim=-1)

    qkv = random_qkv(14)
    plain = attend(*qkv, encoding=Encoding(), positions=batch())
    torch.testing.assert_close(attend(*qkv, encoding=Doubled(), positions=batch()), plain)
    q, k, v = qkv
    torch.testing.assert_close(attend(2 * q, k, v, encoding=Encoding(), positions=batch(), scale=8**-0.5 / 2), plain)


def test_keys_of_other_tokens_have_their_own_positions() -> None:
    asking, seen = row(SHORT), row(LONG)
    q, (_, k, v) = random_qkv(6, rows=1)[0], random_qkv(14, rows=1)
    ours = attend(q, k, v, encoding=ROTARY, positions=asking, keys=seen, mask=Mask("all"))
    # The same as the tail of one document of both, in which only the first 14 tokens are seen.
    rotated_q, _ = ROTARY(q, q, asking)
    _, rotated_k = ROTARY(k, k, seen)
    weights = (rotated_q @ rotated_k.repeat_interleave(2, dim=1).mT / math.sqrt(8)).softmax(-1)
    torch.testing.assert_close(ours, weights @ v.repeat_interleave(2, dim=1))


# ---------------------------------------------------------------------------------------------- against other attention


@pytest.mark.parametrize("name", FAMILIES)
def test_attention_is_that_of_transformers(name: str) -> None:
    language = tiny_model(name).model.language_model
    theirs = language.layers[0].self_attn
    family = mrope.family(name)
    positions = family.positions(["text:5", "image:1x4x6", "text:2", "image:1x8x4", "text:3"])
    x = torch.randn(1, positions.length, 256)
    q, k, v = (each(x).unflatten(-1, (-1, 128)) for each in (theirs.q_proj, theirs.k_proj, theirs.v_proj))
    if name == "qwen3-vl":
        q, k = theirs.q_norm(q), theirs.k_norm(k)
    q, k, v = (each.transpose(1, 2) for each in (q, k, v))
    ours = attend(q, k, v, encoding=family.rotary(), positions=positions)
    table = language.rotary_emb(x, positions.ids[:, None])
    causal = torch.zeros(1, 1, positions.length, positions.length).masked_fill(~positions.mask(), -torch.inf)
    reference, _ = theirs(x, attention_mask=causal, position_embeddings=table)
    torch.testing.assert_close(theirs.o_proj(ours.transpose(1, 2).flatten(2)), reference, atol=1e-5, rtol=1e-4)


def test_the_readers_own_attention_is_the_same() -> None:
    positions, x = row(LONG), torch.randn(2, 14, 32)
    own, encoded = Attention(32, 4), EncodedAttention(32, 4, encoding=ROTARY)
    with torch.no_grad():
        for part, weight in zip((encoded.q, encoded.k, encoded.v), own.qkv.weight.chunk(3), strict=True):
            part.weight.copy_(weight)
        encoded.out.weight.copy_(own.out.weight)
    torch.testing.assert_close(encoded(x, positions), own(x, ROTARY.cos_sin(positions), positions.mask()))


# --------------------------------------------------------------------------------------------------------------- masks


@st.composite
def rows_of_spans(draw: st.DrawFn) -> Positions:
    """Documents of text and pictures of any sides, packed and padded, on a grid or in rings."""
    size = st.integers(1, 4)
    span = st.one_of(size.map(Text), st.tuples(st.just(1), size, size).map(Image))
    layout = draw(st.sampled_from([LAYOUT, RingLayout(merge=1)]))
    documents = draw(st.lists(st.lists(span, min_size=1, max_size=4), min_size=1, max_size=3))
    packed = mrope.pack([row(spans, layout) for spans in documents])
    length = packed.ids.shape[1] + draw(st.integers(0, 3))
    return packed.pad(length, draw(st.sampled_from(["left", "right"])))


@settings(deadline=None, max_examples=60)
@given(
    positions=rows_of_spans(),
    rule=st.sampled_from(["causal", "pictures", "rings", "all"]),
    window=st.none() | st.integers(1, 5),
    data=st.data(),
)
def test_both_forms_of_a_mask_are_the_rule_on_every_pair(positions: Positions, rule, window, data) -> None:
    slots = positions.ids.shape[1]
    start = data.draw(st.integers(0, slots - 1), label="first query")
    queries, keys = positions.chunk(start, slots), positions
    asking, seen = read_tokens(queries), read_tokens(keys)
    mask = Mask(rule, window)
    dense = mask.dense(asking, seen)
    slow = [[sees(rule, window, one, other) for other in told(keys)] for one in told(queries)]
    assert dense.shape == (1, 1, slots - start, slots)
    assert dense[0, 0].tolist() == slow
    n, m = torch.meshgrid(torch.arange(slots - start), torch.arange(slots), indexing="ij")
    zero = torch.zeros_like(n)
    assert torch.equal(mask.mask_mod(asking, seen)(zero, zero, n, m), dense[0, 0])


@settings(deadline=None, max_examples=40)
@given(positions=rows_of_spans())
def test_the_mask_of_the_positions_is_theirs(positions: Positions) -> None:
    dense = Mask().dense(read_tokens(positions))[0, 0]
    padding = positions.segments < 0
    assert torch.equal(dense | torch.diag(padding), positions.mask())
    everyone = replace(positions, attend="all")
    assert torch.equal(Mask().dense(read_tokens(everyone))[0, 0] | torch.diag(padding), everyone.mask())


def test_pictures_are_numbered_span_by_span() -> None:
    spans = [Image((1, 4, 2)), Text(2), mrope.Video((2, 2, 4)), Image((1, 2, 2))]
    assert picture_numbers(spans, GridLayout()).tolist() == [0, 0, -1, -1, 1, 1, 1, 1, 2]
    assert picture_numbers([Text(3)], GridLayout()).tolist() == [-1, -1, -1]
    omni = mrope.family("qwen3-omni").layout
    numbers = picture_numbers([mrope.Audio(3), Image((1, 2, 4))], omni)
    assert numbers.tolist() == [-1] * omni.tokens(mrope.Audio(3)) + [0] * omni.tokens(Image((1, 2, 4)))


def test_a_picture_sees_itself_whole_and_text_what_went_before() -> None:
    seen = Mask("pictures").dense(read_tokens(row([Text(1), Image((1, 1, 2)), Text(1)])))[0, 0]
    assert seen.int().tolist() == [[1, 0, 0, 0], [1, 1, 1, 0], [1, 1, 1, 0], [1, 1, 1, 1]]


# ------------------------------------------------------------------------------------------------------------ backends


@flex_on_cpu
@pytest.mark.parametrize("kind", ENCODINGS)
@pytest.mark.parametrize("mask", [Mask(), Mask("pictures", 3), Mask("all")], ids=str)
def test_flex_is_sdpa(kind: str, mask: Mask) -> None:
    qkv = random_qkv(14)
    ours, flex = (
        attend(*qkv, encoding=ENCODINGS[kind], positions=batch(), mask=mask, backend=backend)
        for backend in ("sdpa", "flex")
    )
    torch.testing.assert_close(flex, ours, atol=1e-6, rtol=1e-5)


@flex_on_cpu
@pytest.mark.parametrize("backend", ["sdpa", "flex"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_padded_queries_give_zeros(backend, dtype: torch.dtype) -> None:
    q, k, v = (x.to(dtype) for x in random_qkv(14, value_dim=8))
    out = attend(q, k, v, encoding=Slopes(), positions=batch(), backend=backend)
    assert out.dtype == dtype
    assert torch.equal(out[1, :, :8], torch.zeros_like(out[1, :, :8]))
    assert out[1, :, 8:].abs().min() > 0
    assert out.isfinite().all()


@pytest.mark.parametrize("encoding", [ROTARY, Slopes()], ids=["rotary", "slopes"])
def test_gradients_flow_through_queries_keys_and_values(encoding: Encoding) -> None:
    positions = mrope.batch([row([Text(1), Image((1, 1, 2))]), row([Text(2)])])
    qkv = [x.requires_grad_() for x in random_qkv(3, heads=2, kv_heads=1, value_dim=3)]
    assert torch.autograd.gradcheck(lambda *x: attend(*x, encoding=encoding, positions=positions), qkv)


def test_nothing_is_written_into() -> None:
    qkv, positions = random_qkv(14), batch()
    before = [x.clone() for x in (*qkv, positions.ids)]
    attend(*qkv, encoding=ROTARY, positions=positions)
    linear_attend(qkv[0][:, :2], *qkv[1:], encoding=ROTARY, positions=positions)
    assert all(torch.equal(x, was) for x, was in zip((*qkv, positions.ids), before, strict=True))


# ------------------------------------------------------------------------------------------------------------- modules


def test_the_module_is_its_projections_around_attend() -> None:
    attention = EncodedAttention(32, 4, kv_heads=2, encoding=ROTARY, mask=Mask("pictures"))
    assert [tuple(p.shape) for p in attention.parameters()] == [(32, 32), (16, 32), (16, 32), (32, 32)]
    x, positions = torch.randn(2, 14, 32), batch()
    q, k, v = (
        (x @ part.weight.T).reshape(2, 14, -1, 8).transpose(1, 2) for part in (attention.q, attention.k, attention.v)
    )
    seen = attend(q, k, v, encoding=ROTARY, positions=positions, mask=Mask("pictures"))
    torch.testing.assert_close(
        attention(x, positions), seen.transpose(1, 2).reshape(2, 14, 32) @ attention.out.weight.T
    )


def test_an_encoding_that_learns_is_part_of_the_module() -> None:
    class Learned(torch.nn.Module, Slopes):
        def __init__(self) -> None:
            super().__init__()
            self.strength = torch.nn.Parameter(torch.ones(()))

        def bias(self, q: Tensor, positions: Where, keys: Where | None = None) -> Tensor:
            return self.strength * Slopes.bias(self, q, positions, keys)

    attention = EncodedAttention(32, 4, encoding=Learned())
    attention(torch.randn(2, 14, 32), batch()).sum().backward()
    strength = dict(attention.named_parameters())["encoding.strength"]
    assert strength.grad is not None
    assert strength.grad.abs() > 0


# ------------------------------------------------------------------------------------------------------------- refusals


def refused(text: str, **changes) -> None:
    sizes = {name: changes.pop(name) for name in ("heads", "kv_heads") if name in changes}
    arguments = {"encoding": ROTARY, "positions": batch()} | changes
    with pytest.raises(ValueError, match=text):
        attend(*random_qkv(14, **sizes), **arguments)


def test_what_does_not_fit_is_refused() -> None:
    refused("Hq a multiple of Hk", heads=4, kv_heads=3)
    refused(r"axes lie last, so that positions.movedim\(-1, 0\) would do", positions=batch().ids.movedim(0, -1))
    refused(r"positions have shape \(3, 1, 14\); 2 rows of 14 tokens", positions=mrope.batch([row(LONG)]))
    refused(r"positions have shape \(3, 2, 15\); 2 rows of 14 tokens", positions=mrope.batch(batch().rows, multiple=5))
    refused(r"positions have shape \(3, 13\)", positions=row(LONG).chunk(0, 13))
    refused(r"keys have shape \(3, 6\); 2 rows of 14 tokens", keys=row(SHORT))
    refused(
        "mask rule 'pictures' needs to know the picture",
        positions=mrope.batch([LAYOUT(LONG)] * 2),
        mask=Mask("pictures"),
    )
    refused("scale is -1", scale=-1.0)


def test_queries_and_keys_of_other_numbers_need_keys() -> None:
    q, k, v = random_qkv(14)
    with pytest.raises(ValueError, match=r"k has 14 tokens, q has 1; .* hand in the new tokens alone"):
        attend(q[:, :, -1:], k, v, encoding=ROTARY, positions=batch())


def test_an_odd_head_size_is_refused() -> None:
    x = torch.randn(1, 2, 14, 7)
    with pytest.raises(ValueError, match="head dim 7 is odd; Rotary turns pairs of channels"):
        attend(x, x, x, encoding=ROTARY, positions=row(LONG))
    x = torch.randn(1, 2, 14, 17)  # which would pass as one that turns 8 of its channels
    for call in (attend, linear_attend):
        with pytest.raises(ValueError, match="head dim 17 is odd; Rotary turns pairs of channels"):
            call(x, x, x, encoding=ROTARY, positions=row(LONG))
    for module in (EncodedAttention, LinearAttention):
        with pytest.raises(ValueError, match="head dim 9 is odd; AxialRope turns pairs of channels"):
            module(18, 2, encoding=AxialRope(8))
    x = torch.randn(1, 2, 14, 9)
    rope = LieRope(9)  # one block turns all of its channels, odd or not
    assert attend(x, x, x, encoding=rope, positions=row(LONG).ids[:2]).shape == x.shape


def test_masks_and_modules_say_what_is_wrong() -> None:
    for make, text in (
        (lambda: Mask("causal", 0), "window is 0; expected at least 1"),
        (lambda: EncodedAttention(30, 4, encoding=ROTARY), "dim 30 does not split into 4 heads"),
        (lambda: EncodedAttention(32, 4, kv_heads=3, encoding=ROTARY), "heads 4 is no multiple of kv_heads 3"),
        (lambda: LinearAttention(30, 4, encoding=ROTARY), "dim 30 does not split into 4 heads"),
    ):
        with pytest.raises((ValueError, TypeError), match=text):
            make()


@flex_on_cpu
@pytest.mark.parametrize("rest", [torch.nan, torch.inf])
@pytest.mark.parametrize("encoding", [ROTARY, ShawBias(8, 3, axes=3).double()], ids=lambda x: type(x).__name__)
@pytest.mark.parametrize("backend", ["sdpa", "flex"])
def test_nan_in_padding_reaches_no_token(backend, encoding: Encoding, rest: float) -> None:
    positions, qkv = batch(), random_qkv(14, value_dim=8)
    padding = (positions.segments < 0)[:, None, :, None]
    broken = [x.masked_fill(padding, rest) for x in qkv]
    with torch.no_grad():
        outs = [attend(*x, encoding=encoding, positions=positions, backend=backend) for x in (broken, qkv)]
    torch.testing.assert_close(*outs, atol=0, rtol=0)
    if backend == "flex":
        return
    q, k, v = (x.requires_grad_() for x in broken)
    attend(q, k, v, encoding=encoding, positions=positions).sum().backward()
    assert all(x.grad is not None and x.grad.isfinite().all() for x in (q, k, v))


@flex_on_cpu
@pytest.mark.parametrize("backend", ["sdpa", "flex"])
@pytest.mark.parametrize(("rows", "tokens"), [(2, 0), (0, 3)])
def test_attention_of_nothing_is_empty(rows: int, tokens: int, backend) -> None:
    qkv, ids = random_qkv(tokens, rows=rows), torch.zeros(3, tokens, dtype=torch.int64)
    for encoding in (ROTARY, Encoding()):
        assert attend(*qkv, encoding=encoding, positions=ids, backend=backend).shape == (rows, 4, tokens, 6)
        assert linear_attend(*qkv, encoding=encoding, positions=ids).values.shape == (rows, 4, tokens, 6)


def test_queries_that_see_no_keys_give_zeros() -> None:
    q, (_, k, v) = random_qkv(3)[0], random_qkv(0)
    ids = torch.zeros(3, 3, dtype=torch.int64)
    out = attend(q, k, v, encoding=ROTARY, positions=ids, keys=ids[:, :0])
    assert torch.equal(out, torch.zeros(2, 4, 3, 6, dtype=torch.float64))


@flex_on_cpu
def test_flex_on_a_cpu_says_that_it_gives_no_gradients() -> None:
    q, k, v = random_qkv(14, value_dim=8)
    with pytest.raises(ValueError, match=r'no gradients on a CPU; .* backend="sdpa"'):
        attend(q.requires_grad_(), k, v, encoding=ROTARY, positions=batch(), backend="flex")
    module = EncodedAttention(32, 4, encoding=ROTARY, backend="flex")
    with pytest.raises(ValueError, match=r'no gradients on a CPU; .* backend="sdpa"'):
        module(torch.randn(2, 14, 32), batch())
    with torch.no_grad():
        assert module(torch.randn(2, 14, 32), batch()).shape == (2, 14, 32)


def test_frequencies_of_a_length_take_no_keys_of_other_tokens_and_no_state() -> None:
    growing = Rotary(AxisSplit((2, 1, 1)), Frequencies(100.0, DynamicNtk(2.0, 4)))
    refused("depend on the length of the row, and keys .* mrope.extensions.At", encoding=growing, keys=batch())
    qkv, positions = random_qkv(14, heads=2), batch()
    state = linear_attend(*qkv, encoding=growing, positions=positions).state
    with pytest.raises(ValueError, match=r"depend on the length of the row, and the state .* mrope.extensions.At"):
        linear_attend(*random_qkv(1, heads=2), encoding=growing, positions=positions.decode(1), state=state)


def test_tensors_that_do_not_go_together_are_refused() -> None:
    q, k, v = random_qkv(14)
    for parts, text in (
        ((q, k, v.float()), "q is torch.float64 on cpu, v is torch.float32 on cpu"),
        ((q, k.float(), v), "q is torch.float64 on cpu, k is torch.float32 on cpu"),
        ((q, k.to("meta"), v), "q is torch.float64 on cpu, k is torch.float64 on meta"),
        ((q[:, :0], k[:, :0], v[:, :0]), "Hq a multiple of Hk"),
        ((q[..., :0], k[..., :0], v), "Hq a multiple of Hk"),
    ):
        for call in (attend, linear_attend):
            with pytest.raises(ValueError, match=text):
                call(*parts, encoding=Encoding(), positions=batch())


_SAYS = """
import math, torch, mrope
from mrope.attention import *
from mrope.encoding import Encoding
from mrope.encodings import *
from mrope.probes import audit_attention, audit_encoding
rotary = mrope.Rotary(mrope.AxisSplit((2, 1, 1)), mrope.Frequencies(100.0))
q, ids = torch.ones(2, 2, 3, 8), torch.arange(3).repeat(3, 1)
whole = dict(positions=ids, encoding=rotary)
for call in {calls!r}:
    try:
        print(eval(call))
    except (TypeError, ValueError) as error:
        print(type(error).__name__, error)
"""


def says(*calls: str) -> list[str]:
    """A line of each call in a fresh interpreter, where annotations are not checked: our own checks alone answer."""
    run = subprocess.run(
        [sys.executable, "-c", _SAYS.format(calls=calls)], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return run.stdout.splitlines()


def all_say(cases: dict[str, str]) -> None:
    for call, line in zip(cases, says(*cases), strict=True):
        assert cases[call] in line, (call, line)


def test_what_is_no_encoding_mask_or_state_is_told_so() -> None:
    no_encoding = "expected an instance of an mrope.encoding.Encoding"
    all_say(
        {
            "attend(q, q, q, positions=ids, encoding=None)": "TypeError encoding is None; " + no_encoding,
            "attend(q, q, q, positions=ids, encoding=mrope.Rotary)": no_encoding,
            "linear_attend(q, q, q, positions=ids, encoding=mrope.Rotary)": no_encoding,
            "EncodedAttention(32, 4, encoding=None)": no_encoding,
            "LinearAttention(32, 4, encoding=None)": no_encoding,
            "audit_encoding(mrope.Rotary, axes=3, head_dim=8)": no_encoding,
            "attend(q, q, q, mask='causal', **whole)": "TypeError mask is 'causal'; expected a Mask",
            "attend(q, q, q, mask=None, **whole)": "TypeError mask is None; expected a Mask",
            "EncodedAttention(32, 4, encoding=rotary, mask=None)": "TypeError mask is None; expected a Mask",
            "linear_attend(q, q, q, state=3, **whole)": "TypeError state is 3; expected the state of an earlier",
            "attend(q.long(), q, q, **whole)": "TypeError q has dtype torch.int64; expected a floating one",
            "attend(q, q, q > 0, **whole)": "TypeError v has dtype torch.bool; expected a floating one",
            "attend(q, q, q, **whole, backend='flex').shape": "torch.Size([2, 2, 3, 8])",
            "attend(*[q.int()] * 3, **whole, backend='flex')": "TypeError q has dtype torch.int32",
            "linear_attend(q, q + 0j, q, **whole)": "TypeError k has dtype torch.complex64",
            "attend(q[0], q, q, **whole)": "ValueError q, k and v have shapes (2, 3, 8)",
            "EncodedAttention(8, 0, kv_heads=1, encoding=rotary)": "ValueError heads is 0; expected at least 1",
            "Attention(8, 0)": "ValueError heads is 0; expected at least 1",
            "LinearAttention(8, 2, kv_heads=0, encoding=rotary)": "ValueError kv_heads is 0; expected at least 1",
            "audit_attention(lambda *x: None)": "TypeError the attention returns None; expected a tensor",
            "audit_attention(lambda q, k, v, p: q[0])": "ValueError the attention returns shape (4, 22, 16)",
            "audit_attention(lambda q, k, v, p: q, head_dim=0)": "ValueError head_dim is 0",
            "audit_attention(lambda q, k, v, p: q, layout=3)": "TypeError layout is 3; expected something to call",
            "audit_attention(None)": "TypeError attend is None; expected something to call",
            "audit_attention(lambda q, k, v, p: q, encoding=3)": "TypeError encoding is 3",
        }
    )


# ---------------------------------------------------------------------------------------------------- linear attention


def slow_linear(qkv, rows: list[Positions], rule: str = "causal") -> Tensor:
    """RoFormer's equation 19 (arXiv:2104.09864), one row, head and query at a time."""
    q, k, v = (x.numpy() for x in qkv)
    phi = lambda x: np.where(x > 0, x + 1, np.exp(np.minimum(x, 0)))  # noqa: E731
    out = np.zeros((*q.shape[:3], v.shape[-1]))
    for b, h, n in np.ndindex(*q.shape[:3]):
        tokens, ids = told(rows[b]), rows[b].ids.numpy()
        above, below = np.zeros(v.shape[-1]), 0.0
        for m in range(k.shape[2]):
            if sees(rule, None, tokens[n], tokens[m]):
                one, other = phi(q[b, h, n]), phi(k[b, h, m])
                above += turned(one, ids[:, n]) @ turned(other, ids[:, m]) * v[b, h, m]
                below += one @ other
        if below:
            out[b, h, n] = above / below
    return torch.from_numpy(out)


@pytest.mark.parametrize("chunk", [1, 5, 64])
@pytest.mark.parametrize("rule", ["causal", "all"])
def test_linear_attention_is_the_slow_formula(rule, chunk: int) -> None:
    packed = mrope.pack([row(SHORT).pad(8, "right"), row(LONG), row(SHORT)]).pad(30)
    positions = mrope.batch([packed, row(LONG)])
    qkv = random_qkv(30, heads=2)
    ours = linear_attend(*qkv, encoding=ROTARY, positions=positions, rule=rule, chunk=chunk)
    torch.testing.assert_close(ours.values, slow_linear(qkv, list(positions.rows), rule), atol=1e-5, rtol=0)
    assert (ours.state is None) == (rule == "all")


@pytest.mark.parametrize("pieces", [[14], [6, 3, 4, 1], [13, 1], [0, 14]], ids=str)
def test_linear_attention_goes_on_from_its_state(pieces: list[int]) -> None:
    positions = batch()
    attention = LinearAttention(32, 4, encoding=ROTARY, chunk=3)
    x, more = torch.randn(2, 14, 32), torch.randn(2, 2, 32)
    state, out, start = None, [], 0
    for size in pieces:
        piece = mrope.batch([each.chunk(start, start + size) for each in positions.rows])
        got = attention(x[:, start : start + size], piece, state=state)
        state, start = got.state, start + size
        out.append(got.values)
    decoded = attention(more, positions.decode(2), state=state)
    whole = attention(x, positions)
    torch.testing.assert_close(torch.cat(out, dim=1), whole.values)
    torch.testing.assert_close(decoded.values, attention(more, positions.decode(2), state=whole.state).values)
    full = [torch.cat((part(x), part(more)), dim=1) for part in (attention.q, attention.k, attention.v)]
    heads = [each.detach().double().unflatten(-1, (4, 8)).transpose(1, 2) for each in full]
    longer = [row([*spans[:-1], Text(spans[-1].length + 2)]) for spans in (LONG, SHORT)]
    padded = list(mrope.batch(longer).rows)
    slow = slow_linear(heads, padded).transpose(1, 2).flatten(2)[:, -2:]
    torch.testing.assert_close(decoded.values.double(), slow @ attention.out.weight.double().T, atol=1e-4, rtol=0)


def test_linear_attention_costs_as_much_a_token_in_a_longer_row() -> None:
    def cost(tokens: int, rule) -> int:
        q, k, v = torch.randn(3, 1, 2, tokens, 8)
        with FlopCounterMode(display=False) as counter:
            linear_attend(q, k, v, encoding=ROTARY, positions=LAYOUT([Text(tokens)]), rule=rule, chunk=16)
        return counter.get_total_flops()

    for rule in ("causal", "all"):
        assert cost(256, rule) == 4 * cost(64, rule)


@pytest.mark.parametrize("rule", ["causal", "all"])
def test_gradients_flow_through_linear_attention(rule) -> None:
    positions = mrope.batch([row([Text(1), Image((1, 1, 2))]), row([Text(2)])])
    qkv = [x.requires_grad_() for x in random_qkv(3, heads=1, kv_heads=1, value_dim=3)]
    gradcheck: Callable = torch.autograd.gradcheck
    assert gradcheck(lambda *x: linear_attend(*x, encoding=ROTARY, positions=positions, rule=rule, chunk=2).values, qkv)


def test_half_precision_is_rounded_once() -> None:
    qkv = [x.bfloat16() for x in random_qkv(14, heads=2)]
    for rule in ("causal", "all"):
        ours = linear_attend(*qkv, encoding=ROTARY, positions=batch(), rule=rule).values
        exact = linear_attend(*(x.float() for x in qkv), encoding=ROTARY, positions=batch(), rule=rule).values
        assert torch.equal(ours, exact.bfloat16())


@pytest.mark.parametrize("rule", ["causal", "all"])
@pytest.mark.parametrize("kv_heads", [2, 1])
def test_linear_attention_of_grouped_heads_is_that_of_repeated_ones(kv_heads: int, rule) -> None:
    q, k, v = random_qkv(14, kv_heads=kv_heads)
    repeated = (x.repeat_interleave(4 // kv_heads, dim=1) for x in (k, v))
    whole = linear_attend(q, *repeated, encoding=ROTARY, positions=batch(), rule=rule)
    grouped = linear_attend(q, k, v, encoding=ROTARY, positions=batch(), rule=rule)
    torch.testing.assert_close(grouped.values, whole.values)
    torch.testing.assert_close(
        grouped.values,
        slow_linear((q, *(x.repeat_interleave(4 // kv_heads, 1) for x in (k, v))), list(batch().rows), rule),
        atol=1e-5,
        rtol=0,
    )
    attention = LinearAttention(32, 4, kv_heads=kv_heads, encoding=ROTARY, rule=rule)
    assert attention.k.weight.shape == (8 * kv_heads, 32)
    assert attention(torch.randn(2, 14, 32), batch()).values.shape == (2, 14, 32)


def test_weights_of_far_negative_features_do_not_cancel() -> None:
    x, v = torch.full((1, 1, 3, 8), -20.0), torch.randn(1, 1, 3, 6)
    ids = torch.zeros(3, 3, dtype=torch.int64)
    values = linear_attend(x, x, v, encoding=Encoding(), positions=ids).values
    means = v.cumsum(dim=2) / torch.arange(1, 4)[:, None]  # all keys are alike
    torch.testing.assert_close(values, means)


def test_large_features_have_finite_gradients() -> None:
    q = torch.full((1, 1, 3, 8), 100.0, requires_grad=True)
    v = torch.randn(1, 1, 3, 6)
    linear_attend(q, q, v, encoding=ROTARY, positions=row(SHORT).chunk(0, 3)).values.sum().backward()
    assert q.grad is not None
    assert q.grad.isfinite().all()


@pytest.mark.parametrize("rule", ["causal", "all"])
def test_nan_in_padding_reaches_no_token_of_linear_attention(rule) -> None:
    qkv, positions = random_qkv(14), batch()
    padding = (positions.segments < 0)[:, None, :, None]
    outs = [
        linear_attend(*x, encoding=ROTARY, positions=positions, rule=rule).values
        for x in ([x.masked_fill(padding, torch.nan) for x in qkv], qkv)
    ]
    torch.testing.assert_close(*outs, atol=0, rtol=0)


def test_encodings_that_scale_are_no_turns_of_linear_attention() -> None:
    qkv = random_qkv(14, heads=2)
    yarn = Yarn(4.0, 8)
    for name, encoding, positions in (
        ("Pope", Pope(AxisSplit((4, 2, 2)), 2), batch()),
        ("XPos", XPos(AxisSplit((2, 1, 1))), batch()),
        ("Rotary", Rotary(AxisSplit((2, 1, 1)), Frequencies(100.0, yarn)), batch()),
    ):
        with pytest.raises(ValueError, match=f"{name} does not declare that it keeps norms"):
            linear_attend(*qkv, encoding=encoding, positions=positions)
        with pytest.raises(ValueError, match=f"{name} does not declare that it keeps norms"):
            LinearAttention(16, 2, encoding=encoding)


def test_a_state_of_other_rows_heads_or_dtype_is_refused() -> None:
    qkv, positions = random_qkv(14, heads=2), batch()
    state = linear_attend(*qkv, encoding=ROTARY, positions=positions).state
    assert state is not None
    next_qkv, one = random_qkv(1, heads=2), positions.decode(1)
    for changes, text in (
        ({"kv": state.kv[:1], "keys": state.keys[:1], "segments": state.segments[:1]}, r"kv of shape \(1, 2, 8, 6\)"),
        ({"kv": state.kv[:, :1]}, r"kv of shape \(2, 1, 8, 6\)"),
        ({"kv": state.kv[:, :, :6], "keys": state.keys[..., :6]}, r"kv of shape \(2, 2, 6, 6\).*\(2, 2, 8, 6\)"),
        ({"kv": state.kv.float()}, "kv of shape .* torch.float32 on cpu; these tokens take .*torch.float64"),
        ({"segments": state.segments[:1]}, r"segments of shape \(1,\)"),
        ({"slots": state.slots[:1]}, r"slots of shape \(1,\)"),
    ):
        with pytest.raises((ValueError, TypeError), match=text):
            linear_attend(*next_qkv, encoding=ROTARY, positions=one, state=unchecked_replace(state, **changes))


def unchecked_replace(state, **changes):
    """A state whose parts do not fit one another."""
    new = object.__new__(type(state))
    for name in ("kv", "keys", "segments", "slots"):
        object.__setattr__(new, name, changes.get(name, getattr(state, name)))
    return new


def test_a_state_takes_no_token_twice_and_none_ahead_of_its_turn() -> None:
    qkv, positions = random_qkv(14, heads=2), batch()
    state = linear_attend(*qkv, encoding=ROTARY, positions=positions).state
    assert state is not None
    assert state.slots.tolist() == [13, 5]
    for again, text in (
        (positions, "row 0 have slot 0 of document 0 behind slot 13"),
        (positions.decode(1, skip=1), "row 0 have slot 15 of document 0 behind slot 13"),
        (positions.decode(1, skip=[0, 2]), "row 1 have slot 8 of document 0 behind slot 5"),
    ):
        parts = random_qkv(again.ids.shape[2], heads=2)
        with pytest.raises(ValueError, match=text):
            linear_attend(*parts, encoding=ROTARY, positions=again, state=state)
    # Ids alone know no slots: they go on.
    on = linear_attend(*random_qkv(1, heads=2), encoding=ROTARY, positions=positions.decode(1).ids, state=state).state
    assert on is not None
    assert on.slots.tolist() == [14, 6]


def test_linear_attention_refuses_what_it_cannot_do() -> None:
    qkv, positions = random_qkv(14, heads=2), batch()
    state = linear_attend(*qkv, encoding=ROTARY, positions=positions).state
    backwards = replace(row(LONG), segments=torch.arange(14).flip(0))
    for changes, text in (
        ({"encoding": Slopes()}, "Slopes adds a bias to scores"),
        ({"rule": "all", "state": state}, "goes on from none"),
        ({"positions": backwards}, "documents in the order of their numbers"),
        ({"positions": row(SHORT)}, "2 rows of 14 tokens"),
        ({"chunk": 0}, "chunk is 0"),
        ({"positions": positions.ids.movedim(0, -1)}, "axes lie last"),
    ):
        with pytest.raises(ValueError, match=text):
            linear_attend(*qkv, **({"encoding": ROTARY, "positions": positions} | changes))


# ------------------------------------------------------------------------------------------------------------- compile

_COMPILED = """
import torch, mrope
from mrope.attention import LinearState, Mask, attend, linear_attend
from mrope.encodings import LearnedTable, LieRope, ShawBias
rotary = mrope.Rotary(mrope.AxisSplit((2, 1, 1)), mrope.Frequencies(100.0))
spans = [mrope.Text(3), mrope.Image((1, 2, 3))]
positions = mrope.batch([mrope.GridLayout(merge=1)(spans)] * 2)
q, k, v = (torch.randn(2, heads, 9, 8) for heads in (4, 2, 2))
for backend in ("sdpa", "flex"):
    def run(q, k, v):
        return attend(q, k, v, encoding=rotary, positions=positions, mask=Mask(window=4), backend=backend)
    whole = torch.compile(run, fullgraph=True, backend="eager")
    torch.testing.assert_close(whole(q, k, v), run(q, k, v))

def linear(q, k, v):
    return linear_attend(q, k, v, encoding=rotary, positions=positions, chunk=4).values
def stepped(q, ids, kv, keys, segments, slots):
    state = LinearState(kv, keys, segments, slots)
    return linear_attend(q, q, q, encoding=rotary, positions=ids, state=state).values
def added(x, ids):
    return table.embed(x, ids)
def biased(q, ids):
    return shaw.bias(q, ids)
def turned(q, ids):
    return lie.rotate(q, q, ids)[0]
table, shaw, lie = LearnedTable(8, (5, 7)), ShawBias(8, 3, axes=2), LieRope(8)
ids, ids_of_step = torch.tensor([[0, 1, 4], [6, 2, 3]]), torch.full((3, 2, 1), 9)
before = linear_attend(q, q, q, encoding=rotary, positions=positions.ids).state
for call, parts in (
    (linear, (q, k, v)),
    (stepped, (q[:, :, :1], ids_of_step, before.kv, before.keys, before.segments, before.slots)),
    (added, (torch.randn(3, 8), ids)),
    (biased, (torch.randn(2, 3, 8), ids)),
    (turned, (torch.randn(2, 3, 8), ids)),
):
    whole = torch.compile(call, fullgraph=True, backend="eager")
    torch.testing.assert_close(whole(*parts), call(*parts))
try:
    torch.compile(added, fullgraph=True, backend="eager")(torch.randn(3, 8), ids + 4)
except (IndexError, RuntimeError):
    pass
else:
    raise AssertionError("a row outside of the table was read")
"""


def test_attention_and_encodings_are_one_graph() -> None:
    # In a fresh interpreter, since the checks of shapes that tests switch on would break the graph.
    run = subprocess.run([sys.executable, "-c", _COMPILED], cwd=ROOT, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
