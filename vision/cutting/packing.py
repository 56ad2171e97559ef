"""How the patches of many pictures lie behind one another, and how they share rows (NaViT).

Letters: P pictures (clips, parts of pictures: whatever has a grid), N patches of all of them, R rows of L slots.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, get_args

import torch
from jaxtyping import Bool, Int, Int32, Int64, Shaped
from torch import Tensor

from mrope.attention import Mask, Tokens
from mrope.checks import one_of, whole
from mrope.families import PatchOrder
from mrope.shards import PADDING

from .orders import in_order

Fit: TypeAlias = Literal["decreasing", "ordered"]
Per: TypeAlias = Literal["picture", "frame"]


def cu_seqlens(grids: Int[Tensor, "p 3"], per: Per = "picture") -> Int32[Tensor, " s"]:
    """(S + 1,) int32: the patches before each segment of attention and after the last, as FlashAttention takes them.

    Args:
        grids: (P, 3) int64 or int32, (t, h, w) in patches.
        per: what is a segment: the picture or clip whole, or each temporal step of it alone (the encoders of Qwen2-VL
            to Qwen3-VL and of GLM-4V).

    Raises:
        TypeError, ValueError: `grids` are none, have a side below 1, or more patches than int32 counts.

    >>> grids = torch.tensor([[1, 4, 6], [3, 2, 2]])
    >>> cu_seqlens(grids).tolist(), cu_seqlens(grids, "frame").tolist()
    ([0, 24, 36], [0, 24, 28, 32, 36])
    """
    one_of("per", per, get_args(Per))
    check_grids(grids)
    t, h, w = grids.long().unbind(1)
    lengths = t * h * w if per == "picture" else (h * w).repeat_interleave(t)
    ends = torch.nn.functional.pad(lengths.cumsum(0), (1, 0))
    if ends[-1] > torch.iinfo(torch.int32).max:
        raise ValueError(f"grids hold {int(ends[-1])} patches, more than int32 counts; expected fewer pictures")
    return ends.int()


def patch_ids(grids: Int[Tensor, "p 3"], *, order: PatchOrder, merge: int) -> Int64[Tensor, "2 n"]:
    """(row, col) of each patch in the picture that it is of, as the patches of packed pictures lie.

    Args:
        grids: (P, 3) int64 or int32, (t, h, w) in patches; each temporal step has the same ids.
        order: of the patches, `Family.patch_order`.
        merge: patches per LLM token and side.

    Raises:
        TypeError, ValueError: `grids` are none, or have a side below 1 or one that is no multiple of `merge`.

    >>> patch_ids(torch.tensor([[1, 2, 4]]), order="blocks", merge=2).tolist()
    [[0, 0, 1, 1, 0, 0, 1, 1], [0, 1, 0, 1, 2, 3, 2, 3]]
    """
    check_order(grids, order, merge)
    pieces = [torch.empty(0, 2, dtype=torch.int64)]
    for t, h, w in grids.tolist():
        rows, cols = torch.meshgrid(torch.arange(h), torch.arange(w), indexing="ij")
        pieces.append(in_order(torch.stack((rows, cols), -1), order, merge).repeat(t, 1))
    return torch.cat(pieces).T.contiguous().to(grids.device)


def check_grids(grids: Any) -> None:
    """Refuse what is no grids, and grids without patches."""
    if not isinstance(grids, Tensor):
        raise TypeError(f"grids is {grids!r}; expected a tensor (pictures, 3) of (t, h, w) in patches")
    if grids.dim() != 2 or grids.shape[1] != 3 or grids.dtype not in (torch.int64, torch.int32):
        raise ValueError(
            f"grids are {grids.dtype} of shape {tuple(grids.shape)}; expected int64 or int32 (pictures, 3), (t, h, w) "
            "in patches"
        )
    if len(grids) and grids.min() < 1:
        raise ValueError(f"grids are {grids.tolist()}; expected at least 1 patch along t, h and w")


def check_order(grids: Any, order: PatchOrder, merge: int) -> None:
    """Refuse grids that are no whole tokens, and an order that is none."""
    one_of("order", order, get_args(PatchOrder))
    whole("merge", merge, 1)
    check_grids(grids)
    for t, h, w in grids.tolist():
        if h % merge or w % merge:
            raise ValueError(f"the grid {(t, h, w)} is not cut into tokens by merge {merge}; expected multiples of it")


@dataclass(frozen=True, slots=True, eq=False)
class PackedRows:
    """Where each of N patches lies in R rows of L slots; made by `pack_patches`.

    Args:
        slots: (N,) int64, of each patch: row * L + the place in the row.
        segments: (R, L) int64, the picture of each slot, counted from 0 in its row; -1 in padding.
        ids: (2, R, L) int64, (row, col) of each patch in its picture; 0 in padding.
        places: (P, 2) int64, of each picture: its row, and its first place there.
    """

    slots: Int64[Tensor, " n"]
    segments: Int64[Tensor, "r l"]
    ids: Int64[Tensor, "2 r l"]
    places: Int64[Tensor, "p 2"]

    @property
    def efficiency(self) -> float:
        """The share of the slots that hold a patch; 1 where there are none."""
        return len(self.slots) / self.segments.numel() if self.segments.numel() else 1.0

    def pack(self, values: Shaped[Tensor, "n *v"]) -> Shaped[Tensor, "r l *v"]:
        """(R, L, ..): what belongs to N patches, `Patches.values` say, in rows; zeros in padding.

        Raises:
            ValueError: there are more or fewer patches than were packed.
        """
        if len(values) != len(self.slots):
            raise ValueError(f"values are of {len(values)} patches; these rows hold {len(self.slots)}")
        flat = values.new_zeros(self.segments.numel(), *values.shape[1:])
        return flat.index_copy(0, self.slots.to(values.device), values).view(*self.segments.shape, *values.shape[1:])

    def unpack(self, rows: Shaped[Tensor, "r l *v"]) -> Shaped[Tensor, "n *v"]:
        """(N, ..): what rows hold for the patches, an encoder's output say, in the order in which they came.

        Raises:
            ValueError: the rows are of another shape.
        """
        if rows.shape[:2] != self.segments.shape:
            raise ValueError(f"rows have shape {tuple(rows.shape)}; expected {tuple(self.segments.shape)} before all")
        return rows.flatten(0, 1)[self.slots.to(rows.device)]

    def tokens(self) -> Tokens:
        """The same for the masks of `mrope.attention`: ``Mask("all").mask_mod(rows.tokens())`` is FlexAttention's."""
        number = torch.arange(self.segments.shape[1], device=self.segments.device)
        starts = torch.where(self.segments.diff(dim=1, prepend=self.segments[:, :1]) != 0, number, 0).cummax(1).values
        return Tokens(self.ids, number - starts, self.segments, attend="all")

    def mask(self) -> Bool[Tensor, "r 1 l l"]:
        """(R, 1, L, L) True where a patch may look at another: both are of one picture. It is made by this call."""
        return Mask("all").dense(self.tokens())


def pack_patches(
    grids: Int[Tensor, "p 3"], length: int, *, order: PatchOrder, merge: int, fit: Fit = "decreasing"
) -> PackedRows:
    """Many pictures in few rows: Patch n' Pack (NaViT, arXiv:2307.06304). Grids are enough: no pixel is needed.

    The patches of a picture stay together, in the order in which they lie in `Patches`.

    Args:
        grids: (P, 3) int64 or int32, (t, h, w) in patches; to pack the frames of clips one by one, give each a grid of
            its own.
        length: L, the slots of a row.
        order: of the patches, `Family.patch_order`.
        merge: patches per LLM token and side.
        fit: "decreasing" takes the largest picture first, and for each the fullest row that has room (best-fit
            decreasing); inside a row, pictures lie in their order. "ordered" keeps the order over all rows: a row ends
            where the next picture has no room.

    Raises:
        TypeError, ValueError: `grids` are none, a picture has more patches than a row has slots, or its sides are no
            multiples of `merge`.

    >>> rows = pack_patches(torch.tensor([[1, 2, 2], [1, 2, 4], [1, 4, 1]]), 8, order="raster", merge=1)
    >>> rows.segments.tolist()
    [[0, 0, 0, 0, 0, 0, 0, 0], [0, 0, 0, 0, 1, 1, 1, 1]]
    >>> rows.places.tolist(), rows.efficiency
    ([[1, 0], [0, 0], [1, 4]], 1.0)
    >>> rows.unpack(rows.pack(torch.arange(16.0))).equal(torch.arange(16.0))
    True
    """
    one_of("fit", fit, get_args(Fit))
    length = whole("length", length, 1)
    ids = patch_ids(grids, order=order, merge=merge)
    counts = grids.prod(1).tolist()
    for number, (count, grid) in enumerate(zip(counts, grids.tolist(), strict=True)):
        if count > length:
            raise ValueError(
                f"picture {number} has {count} patches (grid {tuple(grid)}); length is {length}, "
                f"and {max(counts)} would do for all"
            )
    rows = (_decreasing if fit == "decreasing" else _ordered)(counts, length)

    places, numbers = [(0, 0)] * len(counts), [0] * len(counts)
    for row, members in enumerate(rows):
        start = 0
        for number, picture in enumerate(members):
            places[picture], numbers[picture] = (row, start), number
            start += counts[picture]
    where = torch.tensor(places, dtype=torch.int64, device=grids.device).view(-1, 2)
    sizes = grids.prod(1)
    first = where[:, 0] * length + where[:, 1]
    slots = (first - sizes.cumsum(0) + sizes).repeat_interleave(sizes) + torch.arange(sum(counts), device=grids.device)

    def spread(values: Tensor, padding: int) -> Tensor:
        """(A, N) to (A, R, L)."""
        flat = values.new_full((len(values), len(rows) * length), padding)
        return flat.index_copy(1, slots, values).view(len(values), len(rows), length)

    owner = torch.tensor(numbers, dtype=torch.int64, device=grids.device).repeat_interleave(sizes)
    return PackedRows(slots, spread(owner[None], PADDING)[0], spread(ids, 0), where)


def _decreasing(counts: list[int], length: int) -> list[list[int]]:
    """The pictures of each row."""
    rows: list[list[int]] = []
    room: list[tuple[int, int]] = []  # (free slots, row), sorted
    for picture in sorted(range(len(counts)), key=lambda picture: -counts[picture]):
        place = bisect_left(room, (counts[picture], 0))
        if place == len(room):
            rows.append([])
            free, row = length, len(rows) - 1
        else:
            free, row = room.pop(place)
        rows[row].append(picture)
        insort(room, (free - counts[picture], row))
    return [sorted(members) for members in rows]


def _ordered(counts: list[int], length: int) -> list[list[int]]:
    """The pictures of each row."""
    rows: list[list[int]] = []
    free = 0
    for picture, count in enumerate(counts):
        if not rows or count > free:
            rows.append([])
            free = length
        rows[-1].append(picture)
        free -= count
    return rows
