"""Pictures packed in rows: every patch once, no row over-full, and all of it undone."""

from __future__ import annotations

import inspect
from math import prod
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from transformers.models.qwen3_vl.configuration_qwen3_vl import Qwen3VLVisionConfig
from transformers.vision_utils import get_vision_attention_seqlens

from mrope.attention import Mask
from mrope.encodings import QwenVisionRope
from mrope.vision import cu_seqlens, pack_patches, patch_ids, table_for

GRIDS = torch.tensor([[1, 2, 6], [3, 2, 4], [1, 4, 2], [1, 6, 4]])

grids_of_tokens = st.lists(st.tuples(st.integers(1, 3), st.integers(1, 4), st.integers(1, 5)), max_size=9)
orders = st.sampled_from(["blocks", "raster", "blocks-channels-last", "strip"])
each_fit = pytest.mark.parametrize("fit", ["decreasing", "ordered"])


def walked(grid: tuple[int, int, int], order: str, merge: int) -> list[tuple[int, int]]:
    """(row, col) of each patch, walked through one by one."""
    t, h, w = grid
    side = merge if order.startswith("blocks") else 1
    return [
        (a * side + i, b * side + j)
        for _ in range(t)
        for a in range(h // side)
        for b in range(w // side)
        for i in range(side)
        for j in range(side)
    ]


@each_fit
@given(tokens=grids_of_tokens, order=orders, merge=st.integers(1, 2), spare=st.integers(0, 40))
@settings(max_examples=150, deadline=None)
def test_every_patch_lies_once_where_it_should(fit: Any, tokens: list, order: Any, merge: int, spare: int) -> None:
    grids = [(t, h * merge, w * merge) for t, h, w in tokens]
    counts = [prod(grid) for grid in grids]
    length = max(counts, default=1) + spare
    rows = pack_patches(torch.tensor(grids, dtype=torch.int64).view(-1, 3), length, order=order, merge=merge, fit=fit)
    numbers = rows.pack(torch.arange(1, sum(counts) + 1))
    assert numbers.shape == rows.segments.shape
    assert numbers.shape[1] == length
    assert sorted(numbers[numbers > 0].tolist()) == list(range(1, sum(counts) + 1))
    assert torch.equal(numbers > 0, rows.segments >= 0)
    assert torch.equal(rows.unpack(numbers), torch.arange(1, sum(counts) + 1))

    seen = torch.full_like(rows.segments, -1)
    first = 1
    for grid, count, (row, start) in zip(grids, counts, rows.places.tolist(), strict=True):
        here = slice(start, start + count)
        assert numbers[row, here].tolist() == list(range(first, first + count))
        assert rows.ids[:, row, here].T.tolist() == [list(place) for place in walked(grid, order, merge)]
        assert rows.segments[row, here].unique().numel() == 1
        seen[row, here] = rows.segments[row, here]
        first += count
    assert torch.equal(seen, rows.segments)
    for segments in rows.segments.tolist():  # pictures of a row are numbered from 0, and padding comes last
        used = [number for number in segments if number >= 0]
        assert used == sorted(used)
        assert set(used) == set(range(max(used) + 1))
        assert segments == used + [-1] * (length - len(used))
    assert rows.efficiency == (sum(counts) / numbers.numel() if counts else 1)
    # Two rows (of "ordered", two neighbours) never fit in one.
    assert len(numbers) < 2 * sum(counts) / length + 1


@given(counts=st.lists(st.integers(1, 30), min_size=1, max_size=40))
@settings(max_examples=100, deadline=None)
def test_order_is_kept_where_it_is_asked_for(counts: list[int]) -> None:
    grids = torch.tensor([[1, 1, count] for count in counts])
    rows = pack_patches(grids, 30, order="raster", merge=1, fit="ordered")
    assert rows.slots.tolist() == sorted(rows.slots.tolist())
    for (row, _), (after, start), count in zip(
        rows.places.tolist(), rows.places.tolist()[1:], counts[1:], strict=False
    ):
        assert after in (row, row + 1)
        if after != row:  # only for want of room
            assert start == 0
            assert int((rows.segments[row] == -1).sum()) < count


def test_the_largest_first_in_the_fullest_row() -> None:
    grids = torch.tensor([[1, 1, side] for side in (3, 7, 1, 6, 3)])
    rows = pack_patches(grids, 10, order="raster", merge=1)
    # Sizes in order 7, 6, 3, 3, 1: the 7 takes the first 3, the 6 the second, and the 1 what is left behind them.
    assert rows.places.tolist() == [[0, 0], [0, 3], [1, 0], [1, 1], [1, 7]]
    assert rows.segments.tolist() == [[0] * 3 + [1] * 7, [0] + [1] * 6 + [2] * 3]
    ordered = pack_patches(grids, 10, order="raster", merge=1, fit="ordered")
    assert ordered.places.tolist() == [[0, 0], [0, 3], [1, 0], [1, 1], [1, 7]]
    ordered = pack_patches(grids.flip(0), 10, order="raster", merge=1, fit="ordered")
    assert ordered.places.tolist() == [[0, 0], [0, 3], [0, 9], [1, 0], [1, 7]]
    assert ordered.efficiency == 1


def test_decreasing_packs_tighter() -> None:
    sides = torch.randint(1, 30, (200, 2))
    grids = torch.cat((torch.ones(200, 1, dtype=torch.int64), sides), 1)
    tight, loose = (pack_patches(grids, 1024, order="raster", merge=1, fit=fit) for fit in ("decreasing", "ordered"))
    needed = -(-int(grids.prod(1).sum()) // 1024)
    assert needed <= len(tight.segments) <= needed + 1
    assert tight.efficiency > 0.95 > loose.efficiency


def attended(x: Tensor, ids: Tensor, mask: Tensor | None = None) -> Tensor:
    q, k = QwenVisionRope(x.shape[-1]).rotate(x, x, ids)
    return scaled_dot_product_attention(q, k, x, attn_mask=mask)


def test_attention_in_rows_is_that_of_each_picture_alone() -> None:
    rows = pack_patches(GRIDS, 40, order="blocks", merge=2)
    heads, dim = 2, 8
    x = torch.randn(int(GRIDS.prod(1).sum()), heads, dim)
    packed = rows.pack(x).transpose(1, 2)
    alone = torch.cat(
        [
            attended(part.transpose(0, 1)[None], ids)[0].transpose(0, 1)
            for part, ids in zip(
                x.split(GRIDS.prod(1).tolist()),
                patch_ids(GRIDS, order="blocks", merge=2).split(GRIDS.prod(1).tolist(), dim=1),
                strict=True,
            )
        ]
    )
    mask = rows.mask()
    assert mask.shape == (len(packed), 1, 40, 40)
    for row, segments in enumerate(rows.segments.tolist()):
        expected = [[one == other and one >= 0 for other in segments] for one in segments]
        assert mask[row, 0].tolist() == expected
    blind = ~mask.any(-1, keepdim=True)
    masked = attended(packed, rows.ids, mask | blind)
    torch.testing.assert_close(rows.unpack(masked.transpose(1, 2)), alone)
    flex = Mask().mask_mod(rows.tokens())
    index = torch.arange(40)
    assert torch.equal(flex(torch.tensor(1), torch.tensor(0), index[:, None], index), mask[1, 0])


def test_windows_count_inside_a_picture() -> None:
    rows = pack_patches(torch.tensor([[1, 1, 3], [1, 1, 2]]), 6, order="raster", merge=1)
    assert rows.tokens().slots[0, :5].tolist() == [0, 1, 2, 0, 1]


@each_fit
def test_gradients_go_through_rows_and_back(fit: Any) -> None:
    rows = pack_patches(GRIDS, 50, order="blocks", merge=2, fit=fit)
    x = torch.randn(len(rows.slots), 2, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: rows.unpack(rows.pack(x).sin()), x)


def test_bytes_and_bfloat16_keep_their_dtype() -> None:
    rows = pack_patches(GRIDS, 24, order="raster", merge=1)
    for dtype in (torch.uint8, torch.bfloat16):
        values = torch.randint(256, (len(rows.slots), 5)).to(dtype)
        packed = rows.pack(values)
        assert packed.dtype == dtype
        assert torch.equal(rows.unpack(packed), values)


@pytest.mark.parametrize("per", ["picture", "frame"])
def test_cu_seqlens(per: Any) -> None:
    ends = cu_seqlens(GRIDS, per)
    assert ends.dtype == torch.int32
    expected = {"picture": [0, 12, 36, 44, 68], "frame": [0, 12, 20, 28, 36, 44, 68]}
    assert ends.tolist() == expected[per]
    assert cu_seqlens(GRIDS[:0], per).tolist() == [0]


def test_cu_seqlens_of_frames_are_those_of_transformers() -> None:
    expected, _ = get_vision_attention_seqlens(GRIDS, Qwen3VLVisionConfig())
    assert torch.equal(cu_seqlens(GRIDS, "frame"), expected.int())


def test_refusals() -> None:
    with pytest.raises(
        ValueError, match=r"picture 1 has 24 patches \(grid \(3, 2, 4\)\); length is 20, and 24 would do"
    ):
        pack_patches(GRIDS, 20, order="raster", merge=1)
    with pytest.raises(ValueError, match="length is 0; expected at least 1"):
        pack_patches(GRIDS, 0, order="raster", merge=1)
    with pytest.raises(ValueError, match=r"the grid \(1, 2, 6\) is not cut into tokens by merge 4"):
        pack_patches(GRIDS, 24, order="blocks", merge=4)
    with pytest.raises(ValueError, match="expected at least 1 patch along t, h and w"):
        cu_seqlens(torch.tensor([[1, 4, 0]]))
    with pytest.raises(ValueError, match="more than int32 counts"):
        cu_seqlens(torch.tensor([[1, 65536, 65536]]))
    rows = pack_patches(GRIDS, 24, order="raster", merge=1)
    with pytest.raises(ValueError, match=r"values are of 3 patches; these rows hold 68"):
        rows.pack(torch.zeros(3, 2))
    with pytest.raises(ValueError, match=r"rows have shape \(3, 23, 2\); expected \(3, 24\) before all"):
        rows.unpack(torch.zeros(3, 23, 2))


# ------------------------------------------------------------------------------------------------------------- grids

TAKERS: dict[str, Any] = {
    "cu_seqlens": cu_seqlens,
    "patch_ids": lambda grids: inspect.unwrap(patch_ids)(grids, order="blocks", merge=2),
    "table_for": lambda grids: inspect.unwrap(table_for)(torch.eye(6), grids, "bilinear", order="blocks", merge=2),
}


@pytest.mark.parametrize("grids", [[[1, 2, 4]], [(1, 2, 4)], (1, 2, 4), None], ids=str)
@pytest.mark.parametrize("taker", TAKERS)
def test_grids_that_are_no_tensor_are_named(taker: str, grids: Any) -> None:
    with pytest.raises(TypeError, match=r"^grids is .*; expected a tensor \(pictures, 3\) of \(t, h, w\)"):
        inspect.unwrap(TAKERS[taker])(grids)
    with pytest.raises(TypeError, match="grids"):
        pack_patches(grids, 40, order="blocks", merge=2)


@pytest.mark.parametrize(
    "grids",
    [
        torch.tensor([[2, 4], [4, 6]]),
        torch.tensor([1, 2, 4]),
        torch.tensor([[1.0, 2.0, 4.0]]),
        torch.tensor([[1, 2, 4, 1]]),
        torch.tensor([[[1, 2, 4]]]),
        torch.tensor([[1, 2, 4]], dtype=torch.uint8),
        torch.tensor([[True, True, True]]),
    ],
    ids=lambda grids: f"{grids.dtype}-{tuple(grids.shape)}",
)
@pytest.mark.parametrize("taker", TAKERS)
def test_grids_of_another_shape_or_dtype_are_named(taker: str, grids: Tensor) -> None:
    with pytest.raises(ValueError, match=r"^grids are torch\.\w+ of shape .*; expected int64 or int32 \(pictures, 3\)"):
        inspect.unwrap(TAKERS[taker])(grids)
    with pytest.raises((TypeError, ValueError), match="grids"):
        pack_patches(grids, 40, order="blocks", merge=2)


def test_int32_grids_are_those_of_int64() -> None:
    short = GRIDS.int()
    for per in ("picture", "frame"):
        assert torch.equal(cu_seqlens(short, per), cu_seqlens(GRIDS, per))
    assert torch.equal(patch_ids(short, order="blocks", merge=2), patch_ids(GRIDS, order="blocks", merge=2))
    one, other = (pack_patches(grids, 40, order="blocks", merge=2) for grids in (short, GRIDS))
    for name in ("slots", "segments", "ids", "places"):
        assert getattr(one, name).dtype == torch.int64
        assert torch.equal(getattr(one, name), getattr(other, name))
    table = torch.randn(3, 5, 2)
    rows, expected = (table_for(table, grids, "bilinear", order="blocks", merge=2) for grids in (short, GRIDS))
    assert torch.equal(rows, expected)
    # A product of two sides that int32 does not hold.
    with pytest.raises(ValueError, match="grids hold 4295098368 patches, more than int32 counts"):
        cu_seqlens(torch.tensor([[1, 65536, 65538]], dtype=torch.int32), "frame")
