"""Rotary tables and rotation against transformers, against complex numbers, and by their properties."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tiny_models import FAMILIES, clip, tiny_model
from torch import Tensor
from transformers.models.qwen2_vl.modeling_qwen2_vl import apply_rotary_pos_emb
from transformers.models.qwen3_vl.modeling_qwen3_vl import apply_rotary_pos_emb as apply_rotary_pos_emb_qwen3

import mrope
from mrope import AxisSplit, Frequencies, Rotary, apply_rotary

PAIRINGS = ("half", "adjacent")
SPLITS = {
    "chunked": AxisSplit((3, 2, 1)),
    "interleaved": AxisSplit((3, 2, 1), "interleaved"),
}


def prompt(name: str) -> mrope.BatchPositions:
    family = mrope.family(name)
    long = family.positions(["text:900", "image:1x34x46", "text:3", clip(name, (5, 6, 14)), "text:2"])
    return mrope.batch([long, family.positions(["image:1x6x2", "text:40"])])


def random_ids(*shape: int, high: int = 500) -> Tensor:
    return torch.randint(0, high, shape)


# ------------------------------------------------------------------------------------------------ against transformers


@pytest.mark.parametrize("name", FAMILIES)
def test_cos_and_sin_are_those_of_transformers_to_the_bit(name: str) -> None:
    module = tiny_model(name).model.language_model.rotary_emb
    for ids in (prompt(name).ids, random_ids(3, 2, 65, high=40_000)):
        cos, sin = mrope.family(name).rotary().cos_sin(ids)
        theirs = module(torch.zeros(1), ids)
        for ours, reference in zip((cos, sin), theirs, strict=True):
            assert ours.dtype == torch.float32
            assert torch.equal(torch.cat((ours, ours), dim=-1), reference)


@pytest.mark.parametrize("name", FAMILIES)
def test_rotated_queries_and_keys_are_those_of_transformers_to_the_bit(name: str) -> None:
    positions = prompt(name)
    module = tiny_model(name).model.language_model.rotary_emb
    apply = apply_rotary_pos_emb_qwen3 if name == "qwen3-vl" else apply_rotary_pos_emb
    length = positions.ids.shape[-1]
    q, k = torch.randn(2, 4, length, 128), torch.randn(2, 1, length, 128)
    theirs = apply(q, k, *module(q, positions.ids))
    for ours, reference in zip(mrope.family(name).rotary()(q, k, positions), theirs, strict=True):
        assert torch.equal(ours, reference)


# ------------------------------------------------------------------------------------- against complex multiplication


def by_complex_numbers(x: Tensor, ids: Tensor, rotary: Rotary) -> np.ndarray:
    """One token, head and pair at a time: x (B, H, N, D), ids (A, B, N)."""
    out = x.double().numpy().copy()
    pairs, axis = rotary.split.pairs, rotary.split.axis.tolist()
    for b, h, n in np.ndindex(*x.shape[:3]):
        for j in range(pairs):
            one, other = (j, j + pairs) if rotary.pairing == "half" else (2 * j, 2 * j + 1)
            angle = ids[axis[j], b, n].item() * rotary.frequencies.base ** (-j / pairs)
            turned = complex(*out[b, h, n, [one, other]]) * np.exp(1j * angle)
            out[b, h, n, [one, other]] = turned.real, turned.imag
    return out


@pytest.mark.parametrize("angles", ["float32", "exact"])
@pytest.mark.parametrize("pairing", PAIRINGS)
@pytest.mark.parametrize("split", SPLITS.values(), ids=SPLITS.keys())
@pytest.mark.parametrize("channels", [12, 15])
def test_each_pair_turns_by_its_axis(split: AxisSplit, pairing, angles, channels: int) -> None:
    rotary = Rotary(split, Frequencies(100.0), pairing, angles)
    ids = random_ids(3, 2, 5)
    q, k = torch.randn(2, 2, 5, channels), torch.randn(2, 1, 5, channels)
    for x, rotated in zip((q, k), rotary(q, k, ids), strict=True):
        np.testing.assert_allclose(rotated.numpy(), by_complex_numbers(x, ids, rotary), atol=2e-4, rtol=0)
        assert torch.equal(rotated[..., 12:], x[..., 12:])
    swapped = rotary(q, k, ids[[0, 2, 1]])[0]
    assert (swapped - rotary(q, k, ids)[0]).abs().max() > 0.1


def test_four_axes_and_one_axis_work() -> None:
    for counts in ((2, 1, 2, 1), (6,)):
        rotary = Rotary(AxisSplit(counts), Frequencies(100.0))
        ids, x = random_ids(len(counts), 1, 4), torch.randn(1, 1, 4, 12)
        np.testing.assert_allclose(rotary(x, x, ids)[0].numpy(), by_complex_numbers(x, ids, rotary), atol=2e-4, rtol=0)


# -------------------------------------------------------------------------------------------------------- properties

ROTARY = Rotary(AxisSplit((8, 12, 12)), Frequencies(1e4))


@pytest.mark.parametrize("pairing", PAIRINGS)
def test_the_norm_is_kept(pairing) -> None:
    x = torch.randn(2, 3, 7, 64)
    rotated, _ = Rotary(AxisSplit((8, 12, 12)), Frequencies(1e4), pairing)(x, x, random_ids(3, 2, 7))
    torch.testing.assert_close(rotated.norm(dim=-1), x.norm(dim=-1))


@pytest.mark.parametrize("name", FAMILIES)
def test_scores_depend_only_on_differences_on_each_axis(name: str) -> None:
    rotary = mrope.family(name).rotary()
    q, k = torch.randn(1, 2, 9, 128, dtype=torch.float64), torch.randn(1, 1, 9, 128, dtype=torch.float64)
    ids = random_ids(3, 1, 9)

    def scores(positions: Tensor) -> Tensor:
        rotated_q, rotated_k = rotary(q, k, positions)
        return rotated_q @ rotated_k.transpose(-1, -2)

    moved = ids + torch.tensor([70, -30, 11]).view(3, 1, 1)  # each axis by its own amount
    torch.testing.assert_close(scores(moved), scores(ids), atol=2e-3, rtol=0)
    bent = ids.clone()
    bent[1, :, :4] += 1
    assert (scores(bent) - scores(ids)).abs().max() > 0.1


@pytest.mark.parametrize("split", SPLITS.values(), ids=SPLITS.keys())
def test_equal_axes_are_plain_rotary(split: AxisSplit) -> None:
    index = torch.arange(40)
    plain = Rotary(AxisSplit((6,)), Frequencies(1e4)).cos_sin(index[None])
    for ours, one_axis in zip(Rotary(split, Frequencies(1e4)).cos_sin(index.repeat(3, 1)), plain, strict=True):
        assert torch.equal(ours, one_axis)


def test_rows_of_a_batch_are_rotated_by_their_own_positions() -> None:
    ids, x = random_ids(3, 3, 6), torch.randn(3, 2, 6, 64)
    together, _ = ROTARY(x, x, ids)
    for row in range(3):
        assert torch.equal(together[row], ROTARY(x[row], x[row], ids[:, row])[0])


# ---------------------------------------------------------------------------------------------------------- numerics


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("pairing", PAIRINGS)
def test_half_precision_is_the_float32_result_rounded_once(dtype: torch.dtype, pairing) -> None:
    rotary = Rotary(AxisSplit((8, 12, 12)), Frequencies(1e4), pairing)
    ids, x = random_ids(3, 2, 7, high=20_000), torch.randn(2, 3, 7, 72).to(dtype)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        rotated, _ = rotary(x, x, ids)
    assert rotated.dtype == dtype
    assert torch.equal(rotated, rotary(x.float(), x.float(), ids)[0].to(dtype))


def test_large_positions_stay_apart() -> None:
    cos, _ = ROTARY.cos_sin(torch.arange(15_962, 15_970).repeat(3, 1))
    assert len(cos[:, 0].unique()) == 8  # bfloat16 would fold them into one


@pytest.mark.parametrize("last", [1_000_000, 10_000_000])
def test_exact_angles_are_better_far_out(last: int) -> None:
    ids = torch.arange(last - 1_000, last).repeat(3, 1)
    angle = np.arange(last - 1_000, last)[:, None] * 1e6 ** (-np.arange(64) / 64)
    exact, float32 = (
        np.abs(Rotary(AxisSplit(), Frequencies(1e6), angles=angles).cos_sin(ids)[0].numpy() - np.cos(angle)).max()
        for angles in ("exact", "float32")
    )
    assert exact < 1e-7
    assert float32 > 1e-2


def test_positions_may_be_real() -> None:
    halves = torch.arange(8).repeat(3, 1) / 2
    cos, sin = ROTARY.cos_sin(halves)
    whole_cos, whole_sin = ROTARY.cos_sin(torch.arange(4).repeat(3, 1))
    assert torch.equal(cos[::2], whole_cos)
    assert torch.equal(sin[::2], whole_sin)
    assert not torch.equal(cos[1::2], whole_cos)


def test_inputs_are_left_alone_and_gradients_flow_back() -> None:
    ids, x = random_ids(3, 1, 4), torch.randn(1, 2, 4, 66, requires_grad=True)
    before = x.detach().clone(), ids.clone()
    rotated, _ = ROTARY(x, x, ids)
    assert torch.equal(x.detach(), before[0])
    assert torch.equal(ids, before[1])
    # The gradient of |rotated|^2 / 2 is x itself, as a rotation keeps the norm.
    (rotated.square().sum() / 2).backward()
    torch.testing.assert_close(x.grad, x.detach())


def test_strided_queries_work() -> None:
    ids, packed = random_ids(3, 1, 5), torch.randn(1, 5, 4, 64)
    strided = packed.transpose(1, 2)
    assert torch.equal(ROTARY(strided, strided, ids)[0], ROTARY(strided.contiguous(), strided, ids)[0])


# ----------------------------------------------------------------------------------------------------------- refusals


def test_ids_with_other_axes_are_refused() -> None:
    for ids in (torch.zeros(2, 5), torch.zeros(4, 1, 5), torch.zeros(5)):
        with pytest.raises(ValueError, match=r"positions have shape .*; expected \(3, N\) or \(3, B, N\)"):
            ROTARY.cos_sin(ids)


@pytest.mark.parametrize(
    ("x_shape", "table_shape", "why"),
    [
        ((1, 2, 5, 60), (5, 32), "x has 60 channels; a table of 32 pairs rotates 64"),
        ((1, 2, 5, 64), (4, 32), r"x of shape \(1, 2, 5, 64\) takes \(5, 32\) or \(1, 5, 32\)"),
        ((3, 2, 5, 64), (2, 5, 32), r"takes \(5, 32\) or \(3, 5, 32\)"),
        ((2, 5, 64), (2, 5, 32), r"takes \(5, 32\)"),
    ],
)
def test_a_table_that_does_not_fit_is_refused(x_shape: tuple, table_shape: tuple, why: str) -> None:
    table = torch.ones(table_shape)
    with pytest.raises(ValueError, match=why):
        apply_rotary(torch.ones(x_shape), table, table)


@pytest.mark.parametrize(
    ("base", "dim", "why"),
    [
        (0.0, 8, r"rope base \(rope_theta\) is 0; expected a finite number above 0"),
        (float("inf"), 8, "is inf"),
        (1e4, 7, "rotary_dim 7 is odd; a rotary pair takes two channels"),
        (1e4, 0, "rotary_dim is 0; expected at least 2"),
    ],
)
def test_frequencies_that_make_no_sense_are_refused(base: float, dim: int, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        Frequencies(base).inv_freq(dim)
