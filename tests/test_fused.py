"""The pass in Numba writes what a table says, for every order of patches, dtype and stride, and nothing else."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as some
from torch import Tensor

from mrope.vision.cutting.fused import DTYPES, fill_, unfit

# Where the eight dimensions of a step (rows, cols, mi, mj, channel, frame, y, x) lie in memory, outermost first.
ORDERS = {
    "blocks": (0, 1, 2, 3, 4, 5, 6, 7),
    "blocks-channels-last": (0, 1, 2, 3, 6, 7, 4, 5),
    "raster": (0, 2, 1, 3, 4, 5, 6, 7),
    "raster-channels-last": (0, 2, 1, 3, 6, 7, 4, 5),
    "strip": (4, 5, 6, 0, 2, 1, 3, 7),
}
NAMES = {torch.float32: "float32", torch.bfloat16: "bfloat16", torch.uint8: "uint8"}
KINDS = pytest.mark.parametrize("dtype", DTYPES, ids=NAMES.get)


def table_of(dtype: torch.dtype) -> Tensor:
    """Other values for each channel, of which no two bytes share one."""
    if dtype == torch.uint8:
        return torch.stack([torch.arange(256).roll(channel).to(dtype) for channel in range(3)])
    mean, std = torch.tensor([[120.0], [100.0], [90.0]]), torch.tensor([[60.0], [50.0], [40.0]])
    return ((torch.arange(256) - mean) / std).to(dtype)


def empty_step(order: str, sizes: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """A step of these sizes in canonical order, whose memory lies in another order, full of 77."""
    lie = ORDERS[order]
    memory = torch.full([sizes[axis] for axis in lie], 77, dtype=dtype)
    return memory.permute([lie.index(axis) for axis in range(8)])


def expected_of(step: Tensor, pixels: Tensor, table: Tensor) -> np.ndarray:
    """The definition, one index at a time: value [row, col, i, j, c, t, y, x] stands for one pixel."""
    rows, cols, mi, mj, _, _, p, _ = step.shape
    row, col, i, j, channel, _, y, x = np.indices(step.shape)
    down, right = (row * mi + i) * p + y, (col * mj + j) * p + x
    assert (down.max(), right.max()) == (rows * mi * p - 1, cols * mj * p - 1)
    return table.double().numpy()[channel, pixels.numpy()[channel, down, right]]


def noise(step: Tensor) -> Tensor:
    rows, cols, mi, mj, _, _, p, _ = step.shape
    return torch.randint(0, 256, (rows * mi * p, cols * mj * p, 3), dtype=torch.uint8).permute(2, 0, 1)


@KINDS
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize(
    "sizes", [(2, 3, 2, 2, 3, 2, 14, 14), (3, 2, 1, 1, 3, 1, 16, 16), (1, 2, 2, 3, 3, 3, 5, 5)], ids=str
)
def test_every_order_and_dtype(order: str, sizes: tuple[int, ...], dtype: torch.dtype) -> None:
    step, table = empty_step(order, sizes, dtype), table_of(dtype)
    pixels = noise(step)
    before = pixels.clone(), table.clone()
    fill_(step, pixels, table)
    np.testing.assert_array_equal(step.double().numpy(), expected_of(step, pixels, table))
    assert torch.equal(pixels, before[0])
    assert torch.equal(table, before[1])


@settings(max_examples=25, deadline=None)
@given(
    sizes=some.tuples(*[some.integers(1, 4)] * 4), frames=some.integers(1, 2), patch=some.sampled_from([1, 3]),
    order=some.sampled_from(sorted(ORDERS)), seed=some.integers(0, 99), threads=some.integers(1, 3),
)  # fmt: skip
def test_any_sizes(sizes: tuple[int, ...], frames: int, patch: int, order: str, seed: int, threads: int) -> None:
    torch.manual_seed(seed)
    step = empty_step(order, (*sizes, 3, frames, patch, patch), torch.float32)
    pixels, table = noise(step), table_of(torch.float32)
    fill_(step, pixels, table, threads=threads)
    np.testing.assert_array_equal(step.double().numpy(), expected_of(step, pixels, table))


@KINDS
@pytest.mark.parametrize("order", ["blocks", "raster-channels-last"])
def test_some_frames_of_some_rows_leave_the_others_alone(order: str, dtype: torch.dtype) -> None:
    whole = empty_step(order, (4, 3, 2, 2, 3, 3, 4, 4), dtype)
    step, table = whole[1:3, ..., 1:2, :, :], table_of(dtype)
    pixels = noise(step)
    fill_(step, pixels, table)
    expected = np.full(whole.shape, 77.0)
    expected[1:3, ..., 1:2, :, :] = expected_of(step, pixels, table)
    np.testing.assert_array_equal(whole.double().numpy(), expected)


@pytest.mark.parametrize("threads", [1, 2, 9])
def test_threads_share_the_rows(threads: int) -> None:
    step, table = empty_step("blocks", (5, 3, 2, 2, 3, 2, 4, 4), torch.float32), table_of(torch.float32)
    pixels = noise(step)
    fill_(step, pixels, table, threads=threads)
    np.testing.assert_array_equal(step.double().numpy(), expected_of(step, pixels, table))


def test_pixels_of_any_strides() -> None:
    table = table_of(torch.uint8)
    step = empty_step("blocks", (2, 3, 2, 2, 3, 1, 5, 5), torch.uint8)
    large = torch.randint(0, 256, (3, 40, 70), dtype=torch.uint8)
    interleaved = large.permute(1, 2, 0).contiguous().permute(2, 0, 1)
    for pixels in (large[:, 3:23, 7:37], interleaved[:, 3:23, 7:37], large[:, ::2, ::2][:, :20, :30]):
        fill_(step, pixels, table)
        np.testing.assert_array_equal(step.double().numpy(), expected_of(step, pixels, table))


def test_rows_and_columns_are_not_swapped() -> None:
    step = torch.zeros(1, 2, 1, 1, 3, 1, 2, 2, dtype=torch.uint8)
    identity = torch.arange(256, dtype=torch.uint8).repeat(3, 1)
    fill_(step, torch.arange(24, dtype=torch.uint8).view(3, 2, 4), identity)
    assert step[0, :, 0, 0, 0, 0].tolist() == [[[0, 1], [4, 5]], [[2, 3], [6, 7]]]
    assert step[0, 1, 0, 0, :, 0, 1, 0].tolist() == [6, 14, 22]


def test_nothing_to_do() -> None:
    step = torch.zeros(0, 2, 1, 1, 3, 1, 2, 2)
    fill_(step, torch.zeros(3, 0, 4, dtype=torch.uint8), table_of(torch.float32))


STEP = torch.zeros(1, 2, 1, 1, 3, 1, 2, 2)
PIXELS = torch.zeros(3, 2, 4, dtype=torch.uint8)


@pytest.mark.parametrize(
    ("arguments", "threads", "message"),
    [
        ((STEP, PIXELS.mT, torch.zeros(3, 256)), 1, r"pixels are \(4, 2\) \(height, width\); .* hold \(2, 4\)"),
        ((STEP, PIXELS, torch.zeros(3, 256).double()), 1, "table is torch.float64, step is torch.float32"),
        ((STEP.double(), PIXELS, torch.zeros(3, 256).double()), 1, "float32, bfloat16 or uint8, not torch.float64"),
        ((STEP.to("meta"), PIXELS, torch.zeros(3, 256)), 1, "needs CPU tensors, not step on meta and pixels on cpu"),
        ((STEP, PIXELS, torch.zeros(3, 256)), 0, "threads is 0; expected at least 1"),
    ],
    ids=["swapped", "table", "dtype", "device", "threads"],
)
def test_refused(arguments: Any, threads: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        fill_(*arguments, threads=threads)


def test_without_numba(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mrope.vision.cutting.fused.installed", lambda: False)
    assert isinstance(unfit(STEP, PIXELS), ImportError)
    with pytest.raises(ImportError, match=r"mrope\[fast\]"):
        fill_(STEP, PIXELS, torch.zeros(3, 256))
