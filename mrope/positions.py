"""Positions: the coordinates of each token of a row, where decoding goes on, and the shapes that a row is brought into.

Letters: A axes (3: t, h, w), N tokens, K new tokens, M members of a merged token, S documents of a packed row, Q
queries.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import torch
from jaxtyping import Bool, Float, Int, Int32, Int64
from torch import Tensor
from torch.nn.functional import pad

from mrope.checks import Number, one_of, whole
from mrope.shards import PADDING, Scheme, shard_index

Side = Literal["left", "right"]
NO_PICTURE = -1  # the picture of a token of text


@dataclass(frozen=True, slots=True)
class End:
    """Where a document goes on: what its next text token gets.

    Args:
        next: its position, on all axes.
        slot: its index in the document and in the KV cache; another counter, as a picture takes fewer positions than
            tokens.
        pictures: the pictures and clips before it, for layouts that number them.
        run: the position at which the run of text that it belongs to began.
    """

    next: Number = 0
    slot: int = 0
    pictures: int = 0
    run: Number = 0

    @property
    def offset(self) -> Number:
        """What decoding adds to a token's slot to get its position."""
        return self.next - self.slot


@dataclass(frozen=True, slots=True, eq=False)
class Positions:
    """The positions of one row of tokens; what changes it returns a new object, which may share its memory.

    Args:
        ids: (A, N) int64, the position of each token on each axis, in the order (t, h, w); 0 in padded slots. Float64
            in real-valued layouts, float32 in one whose model was trained so (Qwen3-Omni).
        text: (N,) int64, the slot of each token: its index inside its document; 0 in padded slots. Masks are made from
            it, never from the ids.
        segments: (N,) int64, the document of each token, from 0; -1 in padded slots.
        ends: where each document goes on.
        planned: (A, K) the ids of the tokens that are to be generated before text goes on (image generation).
        query: (A, N) a second set of ids, for queries that look at another modality (DIPE); None in other layouts.
        members: (M, A, N) the ids of the tokens that were merged into each, itself first; None without merging.
        pictures: (N,) int64, the picture or clip of each token and -1 for text, in layouts whose attention must tell
            them apart; None in others.
        attend: "causal"; "rings" where tokens of one picture attend by their ids and not by their order (CCA, MCA,
            PyPE); "all" in an encoder.
        variants: the positions of each group of layers, where layers differ (PyPE, Circle-RoPE); the first are these.
        layers: the index in `variants` of each layer.

    >>> import mrope
    >>> p = mrope.family("qwen2-vl").positions(["text:2", "image:1x4x8", "text:1"])
    >>> p.ids[:, -2:].tolist(), p.next, p.length, p.offset
    ([[2, 6], [3, 6], [5, 6]], 7, 11, -4)
    """

    ids: Int64[Tensor, "a n"] | Float[Tensor, "a n"]
    text: Int64[Tensor, " n"]
    segments: Int64[Tensor, " n"]
    ends: tuple[End, ...]
    planned: Int64[Tensor, "a k"] | Float[Tensor, "a k"] | None = None
    query: Int64[Tensor, "a n"] | Float[Tensor, "a n"] | None = None
    members: Int64[Tensor, "m a n"] | Float[Tensor, "m a n"] | None = None
    pictures: Int64[Tensor, " n"] | None = None
    attend: Literal["causal", "rings", "all"] = "causal"
    variants: tuple[Positions, ...] = ()
    layers: tuple[int, ...] = ()

    @classmethod
    def of_document(cls, ids: Tensor, end: End) -> Positions:
        """One document without padding that ends at `end`: all else is made when it is first read."""
        row = object.__new__(cls)
        object.__setattr__(row, "ids", ids)
        object.__setattr__(row, "ends", (end,))
        return row

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """A field that `of_document` has left open."""
            if name == "text":
                value = torch.arange(self.ends[0].slot - self.ids.shape[1], self.ends[0].slot)
            elif name == "segments":
                value = torch.zeros(self.ids.shape[1], dtype=torch.int64)
            elif name in _NOTHING_MORE:
                value = _NOTHING_MORE[name]
            else:
                raise AttributeError(f"Positions has no attribute {name!r}")
            object.__setattr__(self, name, value)
            return value

    @property
    def length(self) -> int:
        """How many tokens there are, padding not counted."""
        return int((self.segments != PADDING).sum())

    @property
    def end(self) -> End:
        """Where the document goes on with text, behind what is planned.

        Raises:
            ValueError: the row is packed from several documents, which go on one by one.
        """
        if len(self.ends) != 1:
            raise ValueError(
                f"this row is packed from {len(self.ends)} documents that go on one by one: unpack it first"
            )
        return self.ends[0]

    @property
    def next(self) -> Number:
        """The position, on all axes, of the text token that follows."""
        return self.end.next

    @property
    def offset(self) -> Number:
        """What decoding adds to a token's slot to get its position: one number per request, kept by pads and cuts."""
        return self.end.offset

    @property
    def cu_seqlens(self) -> Int32[Tensor, " s"]:
        """(S + 1,) int32, where each document begins and where the row ends, as varlen attention takes it.

        It comes from the segments alone. A run of padding is a document of its own here.

        >>> import mrope
        >>> family = mrope.family("qwen2-vl")
        >>> mrope.pack([family.positions(["image:1x4x8"]), family.positions(["text:3"])]).cu_seqlens.tolist()
        [0, 8, 11]
        """
        edges = torch.ones(len(self.segments) + 1, dtype=torch.bool, device=self.segments.device)
        edges[1:-1] = self.segments[1:] != self.segments[:-1]
        return edges.nonzero()[:, 0].to(torch.int32)

    def layer(self, index: int) -> Positions:
        """The positions of layer `index`, from 0; the same ones for all where layers do not differ.

        Raises:
            ValueError: layers differ, and these positions were made for fewer.
        """
        if not self.layers:
            return self
        if not 0 <= index < len(self.layers):
            raise ValueError(f"layer is {index}; these positions were made for {len(self.layers)} layers")
        return self.variants[self.layers[index]]

    def mask(self, keys: Positions | None = None) -> Bool[Tensor, "q n"]:
        """(Q, N) bool, which of `keys` (by default this row) each token may attend to; a padded slot sees itself.

        Causal inside each document, or as the layout has it: see `attend`.
        """
        seen = self if keys is None else keys
        allowed = self.text[:, None] >= seen.text
        if self.attend == "rings" and self.pictures is not None and seen.pictures is not None:
            inside = (self.pictures[:, None] == seen.pictures) & (self.pictures[:, None] != NO_PICTURE)
            allowed = torch.where(inside, self.ids[0][:, None] >= seen.ids[0], allowed)
        if self.attend == "all":
            allowed = torch.ones_like(allowed)
        allowed &= (self.segments[:, None] == seen.segments) & (seen.segments != PADDING)
        if keys is None:
            allowed |= torch.diag(self.segments == PADDING)
        return allowed

    def decode(self, k: int, skip: int = 0) -> Positions:
        """The positions of `k` tokens that are generated after this row, the first `skip` generated ones left out.

        Their `ids` are positions and their `text` slots. A speculative step that keeps 2 of 5 drafts asks for
        `decode(5)` and goes on with `decode(5, skip=2)`; thrown-away drafts leave no trace.

        Raises:
            ValueError: a count is negative, the row is packed, or the model is an encoder.

        >>> import mrope
        >>> drafts = mrope.family("qwen2-vl").positions(["image:1x4x8"]).decode(3)
        >>> drafts.ids[0].tolist(), drafts.text.tolist()
        ([4, 5, 6], [8, 9, 10])
        """
        if self.attend == "all":
            raise ValueError("an encoder generates no tokens: there is nothing to decode behind this row")
        last = whole("skip", skip, 0) + whole("number of new tokens", k, 0)
        planned = self.ids[:, :0] if self.planned is None else self.planned
        behind = max(last - planned.shape[1], 0)  # tokens of text, behind the planned ones
        end = self.end
        count_dtype = torch.float64 if self.ids.is_floating_point() else torch.int64  # real ids are rounded once
        text = (end.next + torch.arange(behind, dtype=count_dtype, device=self.ids.device)).to(self.ids.dtype)
        ids = torch.cat((planned, text.expand(len(self.ids), -1)), dim=1)[:, skip:last]
        first_slot = end.slot - planned.shape[1] + skip
        slots = torch.arange(first_slot, first_slot + k, device=self.ids.device)
        return Positions(
            ids=ids,
            text=slots,
            segments=torch.zeros_like(slots),
            ends=(replace(end, next=end.next + behind, slot=end.slot + behind),),
            planned=planned[:, last:] if planned.shape[1] > last else None,
            query=None if self.query is None else torch.full_like(ids, end.run),
            members=None if self.members is None else ids.repeat(len(self.members), 1, 1),
            pictures=None if self.pictures is None else torch.full_like(slots, NO_PICTURE),
            attend=self.attend,
            variants=tuple(variant.decode(k, skip) for variant in self.variants),
            layers=self.layers,
        )

    def pad(self, length: int | None = None, side: Side = "left", *, multiple: int | None = None) -> Positions:
        """Padded to `length` slots in all, or to the next multiple of `multiple`; the tokens keep their ids.

        Raises:
            ValueError: there are more slots than `length` already, `side` is neither "left" nor "right", or not
                exactly one of `length` and `multiple` is given.
        """
        one_of("padding side", side, ("left", "right"))
        slots = self.ids.shape[1]
        if (length is None) == (multiple is None):
            raise ValueError(f"padded length is {length} and multiple is {multiple}; expected one of them")
        if length is None:
            length = slots + -slots % whole("multiple", multiple, 1)
        missing = whole("padded length", length, 0) - slots
        if missing < 0:
            raise ValueError(f"padded length is {length}; there are {slots} slots already")
        widths = (missing, 0) if side == "left" else (0, missing)
        return self._each(lambda tensor, fill: pad(tensor, widths, value=fill))

    def chunk(self, start: int, stop: int) -> Positions:
        """The slots from `start` up to `stop`, for prefilling in pieces; where decoding goes on stays the whole row's.

        Raises:
            ValueError: the piece does not lie inside the row.
        """
        if not 0 <= whole("start", start, 0) <= whole("stop", stop, 0) <= self.ids.shape[1]:
            raise ValueError(f"chunk {start}..{stop} does not lie inside the {self.ids.shape[1]} slots of the row")
        return self._each(lambda tensor, _: tensor[..., start:stop])

    def chunks(self, size: int) -> list[Positions]:
        """The row in pieces of `size` slots, the last one shorter; a cut may fall inside a picture."""
        step, slots = whole("chunk size", size, 1), self.ids.shape[1]
        return [self.chunk(start, min(start + step, slots)) for start in range(0, slots, step)]

    def take(self, index: Int[Tensor, " m"]) -> Positions:
        """The slots with these indices; all keep what they have, and decoding goes on as before."""
        return self._each(lambda tensor, _: tensor[..., index])

    def shard(self, rank: int, world: int, scheme: Scheme = "zigzag") -> Positions:
        """The slots of one of `world` context-parallel ranks: see `mrope.shard_index`.

        Raises:
            ValueError: there is no such rank, or a document does not divide.
        """
        if not 0 <= whole("rank", rank, 0) < whole("world", world, 1):
            raise ValueError(f"rank is {rank}; expected 0 to {world - 1}")
        return self.take(shard_index(self.segments, world, scheme)[rank])

    def prune(self, keep: Bool[Tensor, " n"]) -> Positions:
        """Without the tokens where `keep` is False; the others keep their coordinates and close up in their slots.

        Prune a row before it is cut or sharded: pieces know nothing of what was pruned from one another.

        Raises:
            ValueError: `keep` has another shape.
        """
        if keep.shape != self.segments.shape:
            raise ValueError(f"keep has shape {tuple(keep.shape)}; expected {tuple(self.segments.shape)}")
        return self.merge(keep.nonzero().T)

    def merge(self, members: Int64[Tensor, "m n2"]) -> Positions:
        """Tokens merged: new token i stands for the tokens members[:, i] and takes the first one's coordinates.

        The ids of all of them stay in `members`, (M, A, N), for encodings that read several (PPE, arXiv:2510.22936).
        Slots close up, and a token that is in no column is gone.

        Raises:
            ValueError: the tokens of a column are of several documents, or columns are not in the row's order.
        """
        if members.dim() != 2:
            raise ValueError(f"members has shape {tuple(members.shape)}; expected (M, new tokens)")
        first, documents = members[0], self.segments[members]
        if (documents != documents[:1]).any() or (first[1:] <= first[:-1]).any():
            raise ValueError("members must be of one document in each column, and columns in the row's order")
        merged = self.take(first)
        text, ends = merged.text.clone(), []
        for number, end in enumerate(self.ends):
            before, after = self.segments == number, merged.segments == number
            gone = self.text[before][~torch.isin(self.text[before], text[after])].sort().values
            text[after] -= torch.searchsorted(gone, text[after])
            ends.append(replace(end, slot=end.slot - len(gone)))
        return replace(
            merged,
            text=text,
            ends=tuple(ends),
            members=self.ids[:, members].movedim(1, 0) if len(members) > 1 else merged.members,
            variants=tuple(variant.merge(members) for variant in self.variants),
        )

    def shift(self, delta: Number) -> Positions:
        """All tokens moved by `delta` on all axes; a rotary model must not notice."""
        step = delta * (self.segments != PADDING)
        return replace(
            self,
            ids=self.ids + step,
            ends=tuple(replace(end, next=end.next + delta, run=end.run + delta) for end in self.ends),
            planned=None if self.planned is None else self.planned + delta,
            query=None if self.query is None else self.query + step,
            members=None if self.members is None else self.members + step,
            variants=tuple(variant.shift(delta) for variant in self.variants),
        )

    def unpack(self) -> list[Positions]:
        """The documents of a packed row, without padding: what `pack` was given."""
        return [self._document(number) for number in range(len(self.ends))]

    def to(self, device: torch.device | str) -> Positions:
        """On `device`: one copy of the row for each dtype and group of layers, whatever the row holds."""
        names = [name for name in _TENSORS if getattr(self, name) is not None]
        moved = moved_together([getattr(self, name) for name in names], device)
        variants = tuple(variant.to(device) for variant in self.variants)
        return replace(self, variants=variants, **dict(zip(names, moved, strict=True)))

    def _document(self, number: int) -> Positions:
        document = self.take((self.segments == number).nonzero()[:, 0])
        return replace(
            document,
            segments=torch.zeros_like(document.segments),
            ends=(self.ends[number],),
            variants=tuple(variant._document(number) for variant in self.variants),
        )

    def _each(self, change: Callable[[Tensor, int], Tensor]) -> Positions:
        """Each tensor that has one entry a slot, in its last dim, put through `change(tensor, fill of padding)`."""
        changed = {
            name: change(tensor, fill)
            for name, fill in _PER_SLOT.items()
            if (tensor := getattr(self, name)) is not None
        }
        return replace(self, variants=tuple(variant._each(change) for variant in self.variants), **changed)


_NOTHING_MORE = {"planned": None, "query": None, "members": None, "pictures": None} | {
    "attend": "causal",
    "variants": (),
    "layers": (),
}
_PER_SLOT = {"ids": 0, "text": 0, "segments": PADDING, "query": 0, "members": 0, "pictures": NO_PICTURE}
_TENSORS = (*_PER_SLOT, "planned")


def pack(rows: Sequence[Positions]) -> Positions:
    """Documents behind one another in one row: each keeps its ids and slots, and gets a number in `segments`.

    Padding that a document has stays with it, so that all can first be padded to a multiple.

    Raises:
        ValueError: there are no rows, they differ in their axes, dtype or layers, or one has planned tokens.

    >>> import mrope
    >>> family = mrope.family("qwen2-vl")
    >>> packed = pack([family.positions(["image:1x4x8"]), family.positions(["text:3"])])
    >>> packed.ids[2].tolist(), packed.segments.tolist()
    ([0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2], [0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1])
    """
    rows = list(rows)
    check_alike("pack", rows)
    if any(row.planned is not None for row in rows):
        raise ValueError("pack got a row with planned tokens; what is generated next belongs to one row")
    firsts = [sum(len(row.ends) for row in rows[:i]) for i in range(len(rows))]
    numbered = [
        replace(row, segments=torch.where(row.segments == PADDING, PADDING, row.segments + first))
        for row, first in zip(rows, firsts, strict=True)
    ]
    return _joined(numbered, tuple(end for row in rows for end in row.ends))


def _joined(rows: Sequence[Positions], ends: tuple[End, ...]) -> Positions:
    """`rows` behind one another, each tensor as it is."""
    joined = {
        name: torch.cat([getattr(row, name) for row in rows], dim=-1)
        for name in _PER_SLOT
        if getattr(rows[0], name) is not None
    }
    groups = zip(*(row.variants for row in rows), strict=True)
    variants = tuple(
        _joined(
            [replace(v, segments=row.segments) for v, row in zip(group, rows, strict=True)],
            tuple(end for v in group for end in v.ends),
        )
        for group in groups
    )
    return replace(rows[0], ends=ends, variants=variants, **joined)


def check_alike(verb: str, rows: Sequence[Positions]) -> None:
    """Refuse rows that cannot stand in one tensor."""
    if not rows:
        raise ValueError(f"{verb} got no rows; expected at least one Positions")
    if strangers := [row for row in rows if not isinstance(row, Positions)]:
        raise TypeError(
            f"{verb} got {strangers[0]!r} among its rows; expected Positions, such as family.positions gives"
        )
    axes = sorted({row.ids.shape[0] for row in rows})
    if len(axes) > 1:
        raise ValueError(f"{verb} got rows of {' and '.join(map(str, axes))} axes; expected one number of axes")
    kinds = {
        (type(row), row.ids.dtype, row.attend, row.layers, *(getattr(row, name) is None for name in _PER_SLOT))
        for row in rows
    }
    if len(kinds) > 1:
        raise ValueError(f"{verb} got rows of different layouts; expected rows that one layout made")


def moved_together(tensors: Sequence[Tensor], device: torch.device | str) -> list[Tensor]:
    """`tensors` on `device`, with one copy for each dtype."""
    moved: dict[int, Tensor] = {}
    for dtype in {tensor.dtype for tensor in tensors}:
        group = [i for i, tensor in enumerate(tensors) if tensor.dtype == dtype]
        flat = torch.cat([tensors[i].reshape(-1) for i in group])
        flat = flat.to(device, non_blocking=torch.device(device).type != "cpu")  # the host must not read too early
        parts = flat.split([tensors[i].numel() for i in group])
        moved |= {i: part.view(tensors[i].shape) for i, part in zip(group, parts, strict=True)}
    return [moved[i] for i in range(len(tensors))]
