"""The rotation of queries and keys: against complex numbers, and every implementation against the specification."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib.util import find_spec
from itertools import product

import numpy as np
import pytest
import torch
from sources import ROOT
from torch import Tensor
from torch.autograd import forward_ad
from transformers.models.qwen2_vl.modeling_qwen2_vl import apply_rotary_pos_emb

from mrope.ops import angles, choose, cpu, dispatch, gpu, rotate, rotate_qk, rotate_qk_, rotate_qk_from_ids
from mrope.ops.strides import shared

PAIRINGS = ("half", "adjacent")
TABLES = ("one", "rows", "heads", "heads of rows")
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
on_triton = pytest.mark.skipif(
    not (torch.cuda.is_available() or INTERPRETED) or find_spec("triton") is None,
    reason="needs Triton, and a CUDA device or TRITON_INTERPRET=1",
)


def table(kind: str, tokens: int, pairs: int, *, batch: int = 2, heads: int = 2) -> tuple[Tensor, Tensor]:
    shapes = {"one": (), "rows": (batch,), "heads": (1, heads), "heads of rows": (batch, heads)}
    angle = torch.rand(*shapes[kind], tokens, pairs) * 6
    return angle.cos(), angle.sin()


def heads_last(batch: int, heads: int, tokens: int, channels: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """(B, H, N, D) as projections give it: a transposed view of (B, N, H, D)."""
    return torch.randn(batch, tokens, heads, channels).to(dtype).transpose(1, 2)


def by_complex_numbers(x: Tensor, cos: Tensor, sin: Tensor, pairing: str) -> np.ndarray:
    """One token, head and pair at a time: x (B, H, N, D)."""
    out, pairs, heads = x.double().numpy().copy(), cos.shape[-1], x.shape[1]
    for b, h, n, j in np.ndindex(*x.shape[:3], pairs):
        spot = {2: (n, j), 3: (b, n, j), 4: (b % len(cos), h * (cos.shape[1] if cos.dim() == 4 else 1) // heads, n, j)}
        turn = complex(cos[spot[cos.dim()]].item(), sin[spot[cos.dim()]].item())
        one, other = (j, j + pairs) if pairing == "half" else (2 * j, 2 * j + 1)
        turned = complex(*out[b, h, n, [one, other]]) * turn
        out[b, h, n, [one, other]] = turned.real, turned.imag
    return out


# ------------------------------------------------------------------------------------------------- the specification


@pytest.mark.evidence("definition", "Rotary")
@pytest.mark.parametrize("kind", TABLES)
@pytest.mark.parametrize("pairing", PAIRINGS)
@pytest.mark.parametrize("channels", [8, 11])
def test_each_pair_turns_as_a_complex_number(kind: str, pairing, channels: int) -> None:
    x, (cos, sin) = torch.randn(2, 4, 5, channels), table(kind, 5, 4)
    rotated = rotate(x, cos, sin, pairing)
    np.testing.assert_allclose(rotated.numpy(), by_complex_numbers(x, cos, sin, pairing), atol=1e-5, rtol=0)
    assert torch.equal(rotated[..., 8:], x[..., 8:])


@pytest.mark.parametrize("pairing", PAIRINGS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_form_for_compilers_has_the_same_bits(monkeypatch: pytest.MonkeyPatch, pairing, dtype: torch.dtype) -> None:
    x, (cos, sin) = torch.randn(2, 4, 5, 11).to(dtype), table("heads", 5, 4)
    expected = rotate(x, cos, sin, pairing)
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    assert torch.equal(rotate(x, cos, sin, pairing), expected)


@pytest.mark.evidence("gradient", "Rotary")
@pytest.mark.parametrize("pairing", PAIRINGS)
def test_gradients_of_any_order_are_right(pairing) -> None:
    q, k = (torch.randn(2, heads, 2, 5, dtype=torch.float64, requires_grad=True) for heads in (2, 1))
    cos, sin = (part.double().requires_grad_() for part in table("heads of rows", 2, 2, heads=1))

    def turned(*tensors: Tensor) -> tuple[Tensor, Tensor]:
        return rotate_qk(*tensors, pairing=pairing)

    assert torch.autograd.gradcheck(turned, (q, k, cos, sin))
    assert torch.autograd.gradgradcheck(turned, (q, k, cos, sin))


def test_a_compiled_call_is_one_graph_for_any_length() -> None:
    # In a process of its own: the checks of shapes that tests put into our functions would be traced as well.
    script = """
import torch
from mrope.ops import rotate_qk, rotate_qk_

graphs = []

def backend(graph, inputs):
    graphs.append(graph)
    return graph.forward

for pairing in ("half", "adjacent"):
    graphs.clear()
    call = torch.compile(lambda *x: rotate_qk(*x, pairing=pairing), backend=backend, fullgraph=True, dynamic=True)
    for tokens in (5, 6, 300):
        q, k = torch.randn(2, 4, tokens, 8), torch.randn(2, 2, tokens, 8)
        angle = torch.rand(tokens, 3)
        tables = angle.cos(), angle.sin()
        for ours, expected in zip(call(q, k, *tables), rotate_qk(q, k, *tables, pairing=pairing, impl="eager")):
            assert torch.equal(ours, expected)
    assert len(graphs) == 1

graphs.clear()
call = torch.compile(rotate_qk_, backend=backend, fullgraph=True, dynamic=True)
for tokens in (5, 6, 300):
    q, k, angle = torch.randn(2, 4, tokens, 8), torch.randn(2, 2, tokens, 8), torch.rand(tokens, 3)
    tables = angle.cos(), angle.sin()
    expected = rotate_qk(q, k, *tables, impl="eager")
    call(q, k, *tables)
    assert torch.equal(q, expected[0]) and torch.equal(k, expected[1])
assert len(graphs) == 1
"""
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


# ------------------------------------------------------------------------------------------------------------ angles


def test_angles_are_those_of_the_axis_of_each_pair() -> None:
    ids, axis = torch.randint(0, 9000, (3, 2, 7)), torch.tensor([2, 0, 1, 1, 0])
    inv_freq = 100.0 ** (-torch.arange(5) / 5)
    scale = torch.tensor([1.0, 2.0, 1.0, 0.5, 1.5])
    cos, sin = angles(ids, axis, inv_freq)
    scaled = angles(ids, axis, inv_freq, scale=scale)
    for b, n, j in np.ndindex(2, 7, 5):
        angle = ids[axis[j], b, n].float() * inv_freq[j]
        assert cos[b, n, j] == angle.cos()
        assert sin[b, n, j] == angle.sin()
        assert scaled[1][b, n, j] == angle.sin() * scale[j]
    assert not torch.equal(angles(ids[[0, 2, 1]], axis, inv_freq)[0], cos)


def test_angles_in_float64_are_true_far_out() -> None:
    ids = torch.arange(9_999_990, 10_000_000)[None]
    inv_freq = 1e6 ** (-torch.arange(64, dtype=torch.float64) / 64)
    cos, sin = angles(ids, torch.zeros(64, dtype=torch.int64), inv_freq)
    angle = ids[0].numpy()[:, None] * inv_freq.numpy()
    assert cos.dtype == torch.float32
    np.testing.assert_allclose(cos.numpy(), np.cos(angle), atol=1e-7, rtol=0)
    np.testing.assert_allclose(sin.numpy(), np.sin(angle), atol=1e-7, rtol=0)


def test_whole_positions_have_the_same_angles_as_real_numbers() -> None:
    axis, inv_freq = torch.tensor([2, 0, 1, 1, 0]), torch.rand(5)
    for ids in (torch.randint(-9, 9000, (3, 2, 7)), torch.randint(0, 9000, (3, 7))):
        whole, real = angles(ids, axis, inv_freq), angles(ids.double(), axis, inv_freq)
        for ours, theirs in zip(whole, real, strict=True):
            assert torch.equal(ours, theirs)
            assert theirs.is_contiguous()


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_a_position_that_is_no_number_spoils_its_own_axis_alone(value: float) -> None:
    ids, axis, inv_freq = torch.rand(3, 2, 7) * 9, torch.tensor([2, 0, 1, 1, 0]), torch.rand(5)
    expected = angles(ids, axis, inv_freq)[0]
    ids[1, 0, 4] = value
    cos = angles(ids, axis, inv_freq)[0]
    assert cos[0, 4, 2:4].isnan().all()
    cos[0, 4, 2:4] = expected[0, 4, 2:4]
    assert torch.equal(cos, expected)


def test_frequencies_may_learn() -> None:
    ids, axis = torch.randint(0, 5, (2, 4)).double(), torch.tensor([1, 0, 1])
    inv_freq = torch.rand(3, dtype=torch.float64, requires_grad=True)
    slope = torch.autograd.grad(angles(ids, axis, inv_freq)[1].sum(), inv_freq)[0]
    expected = (ids[axis].T * torch.cos(ids[axis].T * inv_freq)).sum(0)
    torch.testing.assert_close(slope, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("impl", ["auto", "eager", "numba"])
def test_positions_turn_as_their_table_does(impl) -> None:
    q, k = heads_last(2, 4, 9, 12), heads_last(2, 2, 9, 12)
    ids, axis, inv_freq = torch.randint(0, 99, (3, 2, 9)), torch.arange(6) % 3, torch.rand(6)
    turned = rotate_qk_from_ids(q, k, ids, axis, inv_freq, scale=1.25, pairing="adjacent", impl=impl)
    cos, sin = angles(ids, axis, inv_freq, scale=1.25)
    for ours, x in zip(turned, (q, k), strict=True):
        assert torch.equal(ours, rotate(x, cos, sin, "adjacent"))


# ------------------------------------------------------------------------------------------------------------- Numba


def check_against_eager(impl, q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, pairing, exact: bool = True) -> None:
    """Out of place with what it reads left alone, in place, and the gradient, against the specification."""

    def close(ours: Tensor | None, expected: Tensor | None) -> None:
        if exact:
            torch.testing.assert_close(ours, expected, atol=0, rtol=0, equal_nan=True)
        else:
            torch.testing.assert_close(ours, expected, atol=0.06, rtol=0.02)

    expected = [rotate(x, cos, sin, pairing) for x in (q, k)]
    before = q.clone(), k.clone()
    wanted = [x.detach().clone().requires_grad_() for x in (q, k)]
    learned = q.detach().clone().requires_grad_(), k.detach().clone().requires_grad_()
    turned = rotate_qk(*learned, cos, sin, pairing=pairing, impl=impl)
    loss = [x.float().square().sum() for x in (*turned, *(rotate(x, cos, sin, pairing) for x in wanted))]
    (loss[0] + loss[1]).backward()
    (loss[2] + loss[3]).backward()
    for ours, theirs in zip((*turned, *(x.grad for x in learned)), (*expected, *(x.grad for x in wanted)), strict=True):
        close(ours, theirs)
    strided = rotate_qk(q, k, cos, sin, pairing=pairing, impl=impl)
    for ours, theirs, x, old in zip(strided, expected, (q, k), before, strict=True):
        close(ours, theirs)
        assert torch.equal(x.nan_to_num(), old.nan_to_num())
    assert rotate_qk_(q, k, cos, sin, pairing=pairing, impl=impl) is None
    close(q, expected[0])
    close(k, expected[1])


@pytest.fixture
def _poisoned(monkeypatch: pytest.MonkeyPatch) -> None:
    """Results are made of NaN, so that what a kernel does not write is seen."""
    monkeypatch.setattr(torch, "empty_like", lambda x: torch.full_like(x, torch.nan))


@pytest.mark.evidence("kernels", "Rotary")
@pytest.mark.usefixtures("_poisoned")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("pairing", PAIRINGS)
@pytest.mark.parametrize("kind", TABLES)
@pytest.mark.parametrize(("pairs", "channels"), [(32, 64), (18, 48)])
def test_numba_has_the_bits_of_the_specification(kind: str, pairing, dtype: torch.dtype, pairs, channels) -> None:
    q, k = heads_last(2, 6, 13, channels, dtype), heads_last(2, 2, 13, channels, dtype)
    check_against_eager("numba", q, k, *table(kind, 13, pairs), pairing)


@pytest.mark.evidence("kernels", "Rotary")
@pytest.mark.usefixtures("_poisoned")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_numba_takes_any_strides(dtype: torch.dtype) -> None:
    packed = torch.randn(2, 9, 3, 4, 64).to(dtype)  # q, k and v of one projection
    for q, k in (
        (packed[:, :, 0].transpose(1, 2), packed[:, :, 1].transpose(1, 2)),
        (packed[0, :, 0].transpose(0, 1), packed[0, :, 1].transpose(0, 1)),
        (torch.randn(2, 4, 9, 64).to(dtype), torch.randn(2, 1, 9, 64).to(dtype)),
        (torch.randn(2, 4, 20, 64).to(dtype)[:, 1:, 2::2], torch.randn(2, 4, 9, 70).to(dtype)[..., 6:]),
    ):
        check_against_eager("numba", q, k, *table("one", 9, 32), "half")
    value = packed[:, :, 2].clone()
    rotate_qk_(packed[:, :, 0].transpose(1, 2), packed[:, :, 1].transpose(1, 2), *table("one", 9, 32), impl="numba")
    assert torch.equal(packed[:, :, 2], value)
    expanded = torch.randn(2, 1, 9, 64).to(dtype).expand(2, 4, 9, 64)
    across = torch.randn(2, 4, 64, 9).to(dtype).transpose(2, 3)
    cos, sin = table("rows", 9, 32)
    for ours, x in zip(rotate_qk(expanded, across, cos, sin, impl="numba"), (expanded, across), strict=True):
        assert torch.equal(ours, rotate(x, cos, sin))


@pytest.mark.evidence("kernels", "Rotary")
@pytest.mark.parametrize("pairing", PAIRINGS)
def test_every_bfloat16_is_rounded_as_torch_rounds(pairing) -> None:
    every = torch.arange(-(2**15), 2**15, dtype=torch.int16).view(torch.bfloat16)
    q = torch.stack((every, every.roll(12345)), dim=-1).view(1, 64, 16, 128)  # with infinities, NaN and subnormals
    check_against_eager("numba", q, q[:, 8:16].clone(), *table("one", 16, 64), pairing)


def test_threads_share_the_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu, "SHARE", 64)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    q, k = heads_last(2, 6, 13, 32), heads_last(2, 2, 13, 32)
    check_against_eager("numba", q, k, *table("rows", 13, 16), "half")


@pytest.mark.evidence("library", "Rotary")
def test_rotated_queries_and_keys_are_those_of_transformers_to_the_bit() -> None:
    q, k, (cos, sin) = heads_last(2, 28, 131, 128), heads_last(2, 4, 131, 128), table("rows", 131, 64)
    theirs = apply_rotary_pos_emb(q, k, torch.cat((cos, cos), -1), torch.cat((sin, sin), -1))
    for impl in ("eager", "numba"):
        for ours, reference in zip(rotate_qk(q, k, cos, sin, impl=impl), theirs, strict=True):
            assert torch.equal(ours, reference)


def test_a_fused_turn_has_gradients_of_any_order() -> None:
    q, k, (cos, sin) = heads_last(1, 2, 5, 8), heads_last(1, 1, 5, 8), table("one", 5, 3)
    found = []
    for impl in ("eager", "numba"):
        learned = q.detach().requires_grad_()
        (first,) = torch.autograd.grad(
            rotate_qk(learned, k, cos, sin, impl=impl)[0].pow(3).sum(), learned, create_graph=True
        )
        found.append(torch.autograd.grad(first.square().sum(), learned)[0])
    torch.testing.assert_close(found[0], found[1])


def test_nothing_to_turn_is_no_error() -> None:
    q, k = torch.ones(2, 4, 0, 8), torch.ones(2, 2, 0, 8)
    for impl in ("auto", "eager", "numba"):
        assert rotate_qk(q, k, *table("one", 0, 4), impl=impl)[0].shape == q.shape


def test_a_folder_that_cannot_be_written_costs_the_cache_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    import numba

    compile_ = numba.njit

    def njit(*, nogil: bool, cache: bool = False):
        if cache:
            raise RuntimeError("cannot cache function 'turn': no locator available")
        return compile_(nogil=nogil)

    monkeypatch.setattr(numba, "njit", njit)
    kernel = cpu._kernel.__wrapped__("torch.float32", "half", 1)
    x, ones = np.array([3, 4], np.float32), np.array([0], np.float32)
    kernel(x, x, ones, ones + 1, (1, 1, 2, 1), (0, 0, 2), (0, 0, 2), (0, 0, 1), False, 0, 1)
    assert x.tolist() == [-4, 3]


# ------------------------------------------------------------------------------------------------------------ Triton


@on_triton
@pytest.mark.gpu
@pytest.mark.usefixtures("_poisoned")
@pytest.mark.parametrize(
    ("heads", "tokens", "kind", "pairs", "pairing", "dtype"),
    [
        ((28, 4), 19, "one", 48, "half", torch.float32),
        ((28, 4), 19, "heads", 20, "adjacent", torch.float32),
        ((8, 8), 19, "rows", 20, "half", torch.bfloat16),
        ((6, 1), 131, "heads of rows", 48, "adjacent", torch.bfloat16),
        ((6, 1), 131, "rows", 20, "half", torch.float32),
    ],
)
def test_triton_does_what_is_specified(heads, tokens: int, kind: str, pairs: int, pairing, dtype: torch.dtype) -> None:
    device = "cpu" if INTERPRETED else "cuda"
    q, k = (heads_last(2, each, tokens, 96, dtype).to(device) for each in heads)
    cos, sin = (part.to(device) for part in table(kind, tokens, pairs, heads=heads[1]))
    # The interpreter cuts bfloat16 off where a device rounds it.
    check_against_eager("triton", q, k, cos, sin, pairing, exact=dtype == torch.float32 or not INTERPRETED)


@on_triton
@pytest.mark.gpu
@pytest.mark.usefixtures("_poisoned")
@pytest.mark.parametrize(("rows", "pairing"), [(True, "half"), (False, "adjacent")])
def test_triton_turns_by_positions(rows: bool, pairing) -> None:
    device = "cpu" if INTERPRETED else "cuda"
    q, k = heads_last(2, 6, 19, 96).to(device), heads_last(2, 2, 19, 96).to(device)
    ids = torch.randint(0, 300, (3, 2, 19), device=device)
    ids = ids.float() / 2 if rows else ids[:, 0]
    axis, inv_freq = torch.arange(40, device=device) % 3, 1e4 ** (-torch.arange(40, device=device) / 40)
    found = []
    for impl in ("triton", "eager"):
        learned = q.detach().clone().requires_grad_()
        turned = rotate_qk_from_ids(learned, k, ids, axis, inv_freq, scale=1.25, pairing=pairing, impl=impl)
        (grad,) = torch.autograd.grad(turned[0].pow(3).sum(), learned)
        found.append((*turned, grad))
    for ours, expected in zip(*found, strict=True):
        torch.testing.assert_close(ours, expected, atol=1e-3, rtol=1e-4)
    swapped = rotate_qk_from_ids(q, k, ids[[0, 2, 1]], axis, inv_freq, scale=1.25, pairing=pairing, impl="triton")[0]
    assert (swapped - found[0][0]).abs().max() > 0.1


@on_triton
@pytest.mark.gpu
def test_triton_reads_no_axis_that_is_not_there() -> None:
    device = "cpu" if INTERPRETED else "cuda"
    q, k = heads_last(2, 4, 5, 8).to(device), heads_last(2, 2, 5, 8).to(device)
    around = torch.full((6, 2, 5), torch.nan, device=device)  # what lies before and after the ids
    ids, axis = around[2:4].fill_(3), torch.tensor([0, -1, 1, 2], device=device)
    ones, out_q, out_k = torch.ones(4, device=device), torch.empty_like(q), torch.empty_like(k)
    gpu.turn_from_ids(q, k, out_q, out_k, ids, axis, ones, ones, 1.0, "half")
    angle = torch.tensor([3.0, 0, 3, 0], device=device).expand(5, 4)
    for ours, x in ((out_q, q), (out_k, k)):
        torch.testing.assert_close(ours, rotate(x, angle.cos(), angle.sin()))
    with pytest.raises(ValueError, match="requires a gradient, which impl 'triton' cannot give"):
        rotate_qk_from_ids(q, k, ids.clone().requires_grad_(), axis.clamp(0, 1), ones, impl="triton")


@pytest.mark.evidence("kernels", "Rotary")
@pytest.mark.skipif(find_spec("triton") is None, reason="needs Triton")
@pytest.mark.skipif(INTERPRETED, reason="is the interpreter")
def test_triton_kernels_are_right_in_the_interpreter() -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", __file__, "-k", "test_triton"]
    environment = os.environ | {"TRITON_INTERPRET": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    assert re.search(r"8 passed, 1 skipped", done.stdout), done.stdout


# ------------------------------------------------------------------------------------------------------------ choice


def test_auto_says_what_it_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    few, many = heads_last(1, 2, 4, 64), heads_last(1, 8, 200, 64)
    for x, dtype, expected in (
        (few, torch.float32, "eager"),
        (many, torch.float32, "numba"),
        (many, torch.bfloat16, "numba"),
        (many, torch.float16, "eager"),
        (many, torch.float64, "eager"),
    ):
        cos, sin = table("one", x.shape[2], 32)
        assert choose(x.to(dtype), x.to(dtype), cos, sin) == expected
    assert choose(many, many, cos, sin.requires_grad_()) == "eager"
    cos, sin = table("one", 200, 32)
    across = torch.randn(1, 8, 64, 200).transpose(2, 3)
    assert choose(across, across, cos, sin) == "numba"
    assert choose(across, across, cos, sin, in_place=True) == "eager"
    odd = torch.randn(1, 8, 200, 65).bfloat16()
    assert choose(odd, odd, cos, sin) == "eager"
    monkeypatch.setattr(cpu, "_installed", lambda: False)
    assert choose(many, many, cos, sin) == "eager"


def test_auto_is_exact_whatever_it_takes() -> None:
    q, k, (cos, sin) = heads_last(1, 8, 200, 64), heads_last(1, 2, 200, 64), table("one", 200, 24)
    check_against_eager("auto", q, k, cos, sin, "half")
    across = torch.randn(1, 8, 64, 200).transpose(2, 3)
    expected = rotate(across, cos, sin)
    rotate_qk_(across, k, cos, sin)
    assert torch.equal(across, expected)


def test_a_turn_in_place_is_seen_by_autograd() -> None:
    weight = torch.ones(64, requires_grad=True)
    for impl in ("eager", "numba"):
        q, k, (cos, sin) = heads_last(1, 8, 9, 64), heads_last(1, 2, 9, 64), table("one", 9, 24)
        product_ = (q * weight).sum()  # keeps q for its gradient
        rotate_qk_(q, k, cos, sin, impl=impl)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            product_.backward()
        with torch.inference_mode():
            rotate_qk_(q.clone(), k.clone(), cos, sin, impl=impl)


# --------------------------------------------------------------------------------------------------- blocks and memory


@pytest.mark.usefixtures("_poisoned")
@pytest.mark.parametrize("kind", TABLES)
@pytest.mark.parametrize("dtype", [torch.float16, torch.float64])
def test_eager_torch_needs_memory_for_a_few_tokens_at_once(monkeypatch: pytest.MonkeyPatch, kind: str, dtype) -> None:
    sizes, turned = [], dispatch.turned

    def watched(x: Tensor, *table: Tensor | str) -> Tensor:
        sizes.append(x.numel())
        return turned(x, *table)  # pyright: ignore[reportArgumentType]

    q, k, (cos, sin) = heads_last(2, 4, 13, 11, dtype), heads_last(2, 2, 13, 11, dtype), table(kind, 13, 4)
    expected = [rotate(x, cos, sin, "adjacent") for x in (q, k)]
    monkeypatch.setattr(dispatch, "BLOCK", 300)
    monkeypatch.setattr(dispatch, "turned", watched)
    copies = rotate_qk(q, k, cos, sin, pairing="adjacent")
    rotate_qk_(q, k, cos, sin, pairing="adjacent")
    assert max(sizes) <= 300
    assert len(sizes) > 8
    for x, copy, theirs in zip((q, k), copies, expected, strict=True):
        assert torch.equal(x, theirs)
        assert torch.equal(copy, theirs)
    learned = q.clone().requires_grad_()
    (grad,) = torch.autograd.grad(rotate_qk(learned, k, cos, sin)[0].float().square().sum(), learned)
    torch.testing.assert_close(grad, 2 * q, atol=0.02, rtol=0.01)


def addresses(x: Tensor) -> set[int]:
    """Of all bytes of x."""
    return {
        x.data_ptr() + x.itemsize * sum(i * step for i, step in zip(spot, x.stride(), strict=True)) + byte
        for spot in np.ndindex(*x.shape)
        for byte in range(x.itemsize)
    }


def test_memory_in_common_is_found_byte_by_byte() -> None:
    draw, buffer = np.random.default_rng(0), torch.zeros(400)
    steps = ((60, 20, 5, 1), (60, 5, 20, 1), (100, 20, 10, 2), (48, 4, 12, 1))
    found = []
    for _ in range(500):
        q, k = (
            buffer.as_strided(tuple(draw.integers(1, 4, 4).tolist()), steps[draw.integers(4)], int(draw.integers(60)))
            for _ in range(2)
        )
        found.append(shared(q, k))
        assert found[-1] == bool(addresses(q) & addresses(k))
    assert 50 < sum(found) < 450


@pytest.mark.parametrize("impl", ["eager", "numba"])
def test_parts_of_one_buffer_turn_in_place(impl) -> None:
    cos, sin = table("rows", 5, 4)

    def parts() -> list[tuple[Tensor, Tensor]]:
        projected, single = torch.randn(2, 5, 7, 8), torch.randn(2, 1, 5, 24)
        grouped, both = torch.randn(2, 5, 3, 24).transpose(1, 2), torch.randn(2, 5, 48)
        q, k = both.split((32, 16), dim=-1)
        return [
            (projected[:, :, :4].transpose(1, 2), projected[:, :, 4:6].transpose(1, 2)),
            (single[..., :8], single[..., 8:16]),
            (grouped[..., :8], grouped[..., 8:16]),  # q, k and v side by side in each head
            (q.unflatten(-1, (4, 8)).transpose(1, 2), k.unflatten(-1, (2, 8)).transpose(1, 2)),
            (projected.transpose(1, 2)[:, ::2], projected.transpose(1, 2)[:, 1::2]),
        ]

    for q, k in parts():
        expected = rotate(q, cos, sin), rotate(k, cos, sin)
        assert rotate_qk_(q, k, cos, sin, impl=impl) is None
        assert torch.equal(q, expected[0])
        assert torch.equal(k, expected[1])


def test_queries_and_keys_that_overlap_are_not_turned_twice() -> None:
    cos, sin = table("one", 5, 4)
    buffer, tokens = torch.randn(2, 6, 5, 10), torch.randn(2, 6, 9, 8)
    row, before = np.ones(2 * 4 * 5 * 8 + 8, np.float32), buffer.clone()
    for q, k in (
        (buffer[:, :4], buffer[:, 2:]),
        (buffer[:, :4], buffer[:, 3:4]),
        (buffer[:, :3, :, :8], buffer[:, :3, :, 2:]),
        (tokens[:, :, :5], tokens[:, :, 4:]),
        tuple(torch.from_numpy(part).view(2, 4, 5, 8) for part in (row[:-8], row[8:])),  # no common storage
    ):
        with pytest.raises(ValueError, match="q and k may have memory in common, which would be turned twice; clone"):
            rotate_qk_(q, k, cos, sin)
    assert torch.equal(buffer, before)


# ------------------------------------------------------------------------------------------------------ transforms


def transformed(impl) -> dict[str, tuple[Tensor, ...]]:
    """Results under everything that hands a function other tensors than those in memory, of a size that Numba takes."""
    torch.manual_seed(0)
    q, k, (cos, sin) = heads_last(2, 4, 300, 64), heads_last(2, 2, 300, 64), table("one", 300, 32)
    weight = q.clone().requires_grad_()

    def turn(q: Tensor, cos: Tensor = cos) -> Tensor:
        return rotate_qk(q, k, cos, sin, impl=impl)[0]

    def loss(q: Tensor, cos: Tensor = cos) -> Tensor:
        return turn(q, cos).pow(3).sum()

    def in_place(q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        rotate_qk_(q, k, cos, sin, impl=impl)
        return q, k

    twice = torch.stack((q, -q)), torch.stack((k, 2 * k))
    found = {
        "grad": torch.func.grad(loss, (0, 1))(q, cos),
        "grad of grad": (torch.func.grad(lambda q: torch.func.grad(loss)(q).pow(2).sum())(q),),
        "grad past it": (torch.func.grad(lambda z: (turn(weight) * z).sum())(torch.ones(1)),),
        "vmap": (torch.func.vmap(turn)(twice[0]),),
        "vmap past it": (torch.func.vmap(lambda z: turn(weight) * z)(torch.ones(2, 1)),),
        "vmap in place": torch.func.vmap(in_place)(*(each.clone() for each in twice)),
        "jvp": torch.func.jvp(turn, (q, cos), (q + 1, cos + 1)),
        "functionalize": (torch.func.functionalize(turn)(q),),
        "many gradients": torch.autograd.grad(turn(weight), weight, twice[0], is_grads_batched=True),
        "negated": (turn(torch.complex(q, q).conj().imag),),
    }
    for name, dual in (("q", (q, 0)), ("cos", (cos, 1))):
        with forward_ad.dual_level():
            inputs = [q, cos]
            inputs[dual[1]] = forward_ad.make_dual(dual[0], dual[0] + 1)
            turned = forward_ad.unpack_dual(turn(*inputs))
            found[f"dual {name}"] = turned.primal, turned.tangent
    return found


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")  # torch.func.jvp calls it
def test_auto_takes_eager_under_transforms() -> None:
    expected, found = transformed("eager"), transformed("auto")
    for name, tensors in expected.items():
        for ours, theirs in zip(found[name], tensors, strict=True):
            torch.testing.assert_close(ours, theirs, msg=lambda text, name=name: f"{name}: {text}")
    x, (cos, sin) = heads_last(2, 4, 300, 64), table("one", 300, 32)
    torch.func.grad(lambda q: (choose(q, x, cos, sin) == "eager") * q.sum())(x)
    with pytest.raises(ValueError, match=r"impl 'numba' reads memory, past torch.func and forward AD; take 'auto'"):
        torch.func.vmap(lambda q: rotate_qk(q, x, cos, sin, impl="numba")[0])(x[None])


def test_a_gradient_that_numba_cannot_take_is_turned_by_eager() -> None:
    grads = []
    for impl in ("eager", "numba"):
        learned = torch.linspace(-1, 1, 2 * 4 * 9 * 64).view(2, 4, 9, 64).bfloat16().requires_grad_()
        cos, sin = (part.view(1, 1).expand(9, 32) for part in (torch.tensor(0.6), torch.tensor(0.8)))
        turned = rotate_qk(learned, learned.detach(), cos, sin, impl=impl)[0]
        # A column before it: the rows of its gradient begin in the midst of 32-bit words.
        torch.cat((turned.detach()[..., :1], turned), dim=-1).pow(3).sum().backward()
        grads.append(learned.grad)
    assert torch.equal(*grads)


# ---------------------------------------------------------------------------------------------------------- refusals

REFUSED = {
    "rotate(q.int(), cos, sin)": "ValueError: x has dtype torch.int32; expected float16, bfloat16, float32 or float64",
    "rotate_qk(q.int(), k.int(), cos, sin)": "ValueError: q has dtype torch.int32; expected float16, bfloat16,",
    "rotate_qk_(q.bool(), k.bool(), cos, sin)": "ValueError: q has dtype torch.bool;",
    "rotate_qk(q + 0j, k + 0j, cos, sin)": "ValueError: q has dtype torch.complex64;",
    "rotate_qk(q, k.to(torch.float8_e4m3fn), cos, sin)": "ValueError: k has dtype torch.float8_e4m3fn;",
    "rotate_qk(q, k, cos.int(), sin)": "ValueError: cos has dtype torch.int32;",
    "rotate_qk(q.to_sparse(), k, cos, sin)": "ValueError: q has layout torch.sparse_coo; expected a dense tensor",
    "rotate_qk(q, k, cos.tolist(), sin)": "TypeError: cos is a list; expected a torch.Tensor",
    "rotate_qk(q.numpy(), k, cos, sin)": "TypeError: q is a ndarray; expected a torch.Tensor",
    "rotate_qk_(q, None, cos, sin)": "TypeError: k is a NoneType; expected a torch.Tensor",
    "rotate(q[0, 0], cos, sin)": "ValueError: x has shape (5, 8); expected (B, H, N, D) or (H, N, D)",
    "rotate_qk(q[None], k, cos, sin)": "ValueError: q has shape (1, 2, 4, 5, 8); expected (B, H, N, D) or (H, N, D)",
    "rotate_qk(q, k, cos[0], sin[0])": "ValueError: cos has shape (4,); expected (N, F), (B, N, F) or",
    "rotate_qk(q, k[:, :, :4], cos, sin)": "ValueError: cos has shape (5, 4); k of shape (2, 2, 4, 8) takes (4, 4) or",
    "rotate_qk(q, k.requires_grad_(), cos, inferred)": "ValueError: sin was made in inference mode, so that k can",
    "angles(ids.tolist(), axis, inv_freq)": "TypeError: ids is a list; expected a torch.Tensor",
    "angles(ids[0, 0], axis, inv_freq)": "ValueError: ids have shape (5,); expected (A, N) or (A, B, N), of an axis at",
    "angles(ids[:0], axis, inv_freq)": "ValueError: ids have shape (0, 2, 5); expected",
    "angles(ids.bool(), axis, inv_freq)": "ValueError: ids have dtype torch.bool; expected whole or real numbers",
    "angles(ids + 0j, axis, inv_freq)": "ValueError: ids have dtype torch.complex64; expected whole or real numbers",
    "angles(ids, axis[:3], inv_freq)": "ValueError: axis has shape (3,); expected that of inv_freq, (4,)",
    "angles(ids, axis.int(), inv_freq)": "ValueError: axis has dtype torch.int32; expected torch.int64",
    "angles(ids, axis + 1, inv_freq)": "ValueError: axis has 1 to 3; expected 0 to 2, as ids have 3 axes",
    "angles(ids, axis - 1, inv_freq)": "ValueError: axis has -1 to 1; expected 0 to 2",
    "angles(ids, axis, inv_freq.half())": "ValueError: inv_freq is torch.float16 of shape (4,); expected (F,) of",
    "angles(ids, axis, inv_freq.int())": "ValueError: inv_freq has dtype torch.int32;",
    "angles(ids, axis, inv_freq[None])": "ValueError: inv_freq is torch.float32 of shape (1, 4); expected (F,)",
    "angles(ids, axis, inv_freq, scale=cos)": "ValueError: scale has shape (5, 4); expected that of inv_freq, (4,)",
    "angles(ids, axis, inv_freq, scale=axis)": "ValueError: scale has dtype torch.int64;",
    "angles(ids, axis, inv_freq, scale='1')": "TypeError: scale is '1'; expected a number, or a tensor of one",
    "angles(ids.to('meta'), axis, inv_freq)": "ValueError: ids is on meta, inv_freq on cpu; expected the same device",
    "rotate_qk_from_ids(q, k, ids, axis + 1, inv_freq)": "ValueError: axis has 1 to 3; expected 0 to 2",
    "rotate_qk_from_ids(q, k, ids[..., :4], axis, inv_freq)": (
        "ValueError: ids have shape (3, 2, 4); q of shape (2, 4, 5, 8) takes (3, 5) or (3, 2, 5)"
    ),
    "rotate_qk_from_ids(q[0], k[0], ids, axis, inv_freq)": (
        "ValueError: ids have shape (3, 2, 5); q of shape (4, 5, 8) takes (3, 5)\n"
    ),
}


def test_what_cannot_be_turned_is_refused_by_name() -> None:
    # In a process of its own: the checks of types that tests put into our functions would come first.
    script = """
import sys
import torch
from mrope.ops import angles, rotate, rotate_qk, rotate_qk_, rotate_qk_from_ids

for call in sys.argv[1:]:
    q, k, cos, sin = torch.ones(2, 4, 5, 8), torch.ones(2, 2, 5, 8), torch.ones(5, 4), torch.ones(5, 4)
    ids, axis, inv_freq = torch.ones(3, 2, 5), torch.tensor([0, 1, 2, 1]), torch.ones(4)
    with torch.inference_mode():
        inferred = torch.ones(5, 4)
    try:
        eval(call)
    except (TypeError, ValueError) as error:
        print(f"{type(error).__name__}: {error}")
    else:
        print("no error")
"""
    command = [sys.executable, "-c", script, *REFUSED]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for (call, expected), line in zip(REFUSED.items(), done.stdout.splitlines(keepends=True), strict=True):
        assert line.startswith(expected), f"{call}: {line}"


@pytest.mark.parametrize(
    ("shape", "lead", "why"),
    [
        ((1, 2, 5, 6), (5,), "q has 6 channels; a table of 4 pairs rotates 8"),
        ((1, 2, 5, 8), (4,), r"q of shape \(1, 2, 5, 8\) takes \(5, 4\) or \(1, 5, 4\)"),
        ((3, 2, 5, 8), (2, 5), r"takes \(5, 4\) or \(3, 5, 4\)"),
        ((2, 5, 8), (2, 5), r"takes \(5, 4\), or a table of its own for each head: \(1, 2 or a divisor, 5, 4\)"),
        ((3, 4, 5, 8), (1, 3, 5), r"for each head: \(3 or 1, 4 or a divisor, 5, 4\)"),
        ((3, 4, 5, 8), (2, 4, 5), r"for each head: \(3 or 1, 4 or a divisor, 5, 4\)"),
    ],
)
def test_a_table_that_does_not_fit_is_refused(shape: tuple, lead: tuple, why: str) -> None:
    part = torch.ones(*lead, 4)
    with pytest.raises(ValueError, match=why):
        rotate_qk(torch.ones(shape), torch.ones(shape), part, part)


def test_tensors_of_two_kinds_are_refused() -> None:
    x, (cos, sin) = torch.ones(1, 2, 5, 8), table("one", 5, 4)
    with pytest.raises(ValueError, match=r"q is torch.float32 on cpu, k is torch.bfloat16 on cpu"):
        rotate_qk(x, x.bfloat16(), cos, sin)
    with pytest.raises(ValueError, match=r"q is torch.float32 on cpu, k is torch.float32 on meta"):
        rotate_qk(x, x.to("meta"), cos, sin)
    with pytest.raises(ValueError, match="sin is on meta, q on cpu"):
        rotate_qk(x, x, cos, sin.to("meta"))


def test_what_cannot_be_turned_in_place_is_refused() -> None:
    x, (cos, sin) = torch.ones(1, 2, 5, 8), table("one", 5, 4)
    with pytest.raises(ValueError, match="k requires a gradient, which a rotation in place cannot give; use rotate_qk"):
        rotate_qk_(x, x.clone().requires_grad_(), cos, sin)
    with pytest.raises(ValueError, match="cos requires a gradient"):
        rotate_qk_(x, x.clone(), cos.clone().requires_grad_(), sin)
    for folded in (x[:, :1].expand(1, 2, 5, 8), torch.ones(50).as_strided((1, 2, 5, 8), (40, 8, 4, 1))):
        with pytest.raises(ValueError, match=r"q of shape .* so that elements share memory; clone it"):
            rotate_qk_(folded, x, cos, sin)
    with pytest.raises(ValueError, match="would be turned twice"):
        rotate_qk_(x, x, cos, sin)


def test_an_implementation_that_cannot_run_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    x, (cos, sin) = torch.ones(1, 2, 5, 8), table("one", 5, 4)
    across = torch.ones(1, 2, 8, 5).transpose(2, 3)
    for impl, place, why in product(("numba", "triton"), (rotate_qk, rotate_qk_), ("learned", "wide")):
        if impl == "triton" and not INTERPRETED:
            continue
        learned, wide = why == "learned", why == "wide"
        with pytest.raises(ValueError, match="requires a gradient" if learned else f"impl '{impl}' takes"):
            place(
                x.double() if wide else x,
                x.double() if wide else x.clone(),
                cos.requires_grad_(learned),
                sin,
                impl=impl,
            )
    cos = cos.detach()
    if not INTERPRETED:
        with pytest.raises(ValueError, match="impl 'triton' takes CUDA tensors, not cpu; 'auto' chooses"):
            rotate_qk(x, x, cos, sin, impl="triton")
    with pytest.raises(ValueError, match="impl 'numba' takes CPU tensors, not meta"):
        rotate_qk(x.to("meta"), x.to("meta"), cos.to("meta"), sin.to("meta"), impl="numba")
    with pytest.raises(ValueError, match="with stride 1; 'eager' takes any"):
        rotate_qk_(across, x, cos, sin, impl="numba")
    with pytest.raises(ValueError, match="impl 'numba' takes bfloat16 two channels at a time"):
        rotate_qk(x.bfloat16(), x.bfloat16(), *table("one", 5, 3), impl="numba")
    monkeypatch.setattr(cpu, "_installed", lambda: False)
    monkeypatch.setattr(dispatch.gpu, "find_spec", lambda name: None)
    for name in ("numba", "triton"):
        with pytest.raises(ImportError, match=f"impl '{name}' needs .*, which is not installed: pip install"):
            rotate_qk(x, x, cos, sin, impl=name)
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    with pytest.raises(ValueError, match=r"cannot be traced by torch.compile; take 'auto' or 'eager'"):
        rotate_qk(x, x, cos, sin, impl="numba")


def test_words_that_mean_nothing_are_refused() -> None:
    x, part = torch.ones(1, 2, 5, 8), torch.ones(5, 4)
    with pytest.raises(Exception, match="pairing"):
        rotate_qk(x, x, part, part, pairing="halves")  # pyright: ignore[reportArgumentType]
    with pytest.raises(Exception, match="impl"):
        rotate_qk(x, x, part, part, impl="cuda")  # pyright: ignore[reportArgumentType]


def test_nothing_heavy_is_loaded_before_it_is_used() -> None:
    probe = "import sys, mrope.ops, mrope.ops.cpu, mrope.ops.gpu; print(*{'numba', 'triton'} & sys.modules.keys())"
    done = subprocess.run([sys.executable, "-c", probe], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.split() == []
