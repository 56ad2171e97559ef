"""Who may look at whom: one rule, as a dense mask and as the function that FlexAttention takes.

Letters: A axes, B rows, N queries, M keys, D head dim.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias, get_args, no_type_check

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from mrope.batches import BatchPositions
from mrope.checks import one_of, whole
from mrope.encoding import Where, read_ids
from mrope.layouts import Layout
from mrope.positions import NO_PICTURE
from mrope.shards import PADDING
from mrope.spans import Audio, Span, Text

Rule: TypeAlias = Literal["positions", "causal", "pictures", "rings", "all"]


@dataclass(frozen=True, slots=True, eq=False)
class Tokens:
    """What attention must know of the tokens of a batch, whether they were given or lie in a cache: see `read_tokens`.

    Args:
        ids: (A, B, N) their positions.
        slots: (B, N) int64, the index of each in its document.
        segments: (B, N) int64, the document of each in its row; -1 where there is padding.
        pictures: (B, N) int64, the picture of each and -1 for text; None where nobody numbered them.
        attend: the rule that "positions" stands for.
    """

    ids: Int64[Tensor, "a b n"] | Float[Tensor, "a b n"]
    slots: Int64[Tensor, "b n"]
    segments: Int64[Tensor, "b n"]
    pictures: Int64[Tensor, "b n"] | None = None
    attend: Literal["causal", "rings", "all"] = "causal"

    def _columns(self) -> dict[str, Tensor]:
        """(B, N) each: all that a mask reads."""
        numbers = {} if self.pictures is None else {"pictures": self.pictures}
        return {"slots": self.slots, "segments": self.segments, "rings": self.ids[0]} | numbers


def read_tokens(
    positions: Where | Tokens, shape: tuple[int, int] | None = None, axes: int | None = None, name: str = "positions"
) -> Tokens:
    """The tokens that `positions` are of. One row of positions serves all rows of a batch.

    Args:
        positions: ids alone mean whole documents, one a row, in order and without padding.
        shape: (B, N) that they must have.
        axes: A that they must have.
        name: of the argument, for errors.

    Raises:
        ValueError: they are of another batch or length, or the axes do not come first.

    >>> import mrope
    >>> rows = [mrope.family("qwen2-vl").positions([span]) for span in ("text:3", "image:1x2x4")]
    >>> read_tokens(mrope.batch(rows), (2, 3)).slots.tolist()
    [[0, 1, 2], [0, 0, 1]]
    """
    ids = read_ids(positions.ids if isinstance(positions, Tokens) else positions, axes, name)
    rows, length = (1 if ids.dim() == 2 else ids.shape[1], ids.shape[-1]) if shape is None else shape
    if ids.shape[-1] != length or (ids.dim() == 3 and ids.shape[1] != rows):
        raise ValueError(
            f"{name} have shape {tuple(ids.shape)}; {rows} rows of {length} tokens take ({len(ids)}, {length}) or "
            f"({len(ids)}, {rows}, {length})"
        )
    if isinstance(positions, Tokens):
        return positions
    if ids.dim() == 2:
        ids = ids[:, None].expand(-1, rows, -1)
    if isinstance(positions, Tensor):
        slots = torch.arange(length, device=ids.device).expand(rows, -1)
        whole_ids = ids if ids.is_floating_point() else ids.long()
        return Tokens(whole_ids, slots, torch.zeros_like(slots))
    return Tokens(
        ids,
        positions.text.expand(rows, -1),
        positions.segments.expand(rows, -1),
        None if positions.pictures is None else positions.pictures.expand(rows, -1),
        (positions.rows[0] if isinstance(positions, BatchPositions) else positions).attend,
    )


@dataclass(frozen=True, slots=True)
class Mask:
    """Which keys a query may look at: never those of another document, and never padding.

    "causal": those whose slot is not behind its own. "pictures": also all tokens of its own picture. "rings": in its
    own picture those whose first id is not larger (CCA, MCA-LLaVA, PyPE: see `RingLayout`), causal elsewhere. "all":
    all of its document. "positions": the one of these that the layout wants, `Positions.attend`.

    "pictures" must know the picture of each token, which only the layouts of "rings" say by themselves.

    Args:
        rule: as above.
        window: how many slots back a query sees, its own among them, and as many ahead under "all". A picture sees
            itself whole under "pictures" and "rings", whatever the window (as in Gemma 3). None: no limit.

    >>> here = read_tokens(torch.arange(4)[None])
    >>> Mask("causal", window=2).dense(here)[0, 0].int().tolist()
    [[1, 0, 0, 0], [1, 1, 0, 0], [0, 1, 1, 0], [0, 0, 1, 1]]
    >>> from mrope import GridLayout, Image, Text
    >>> spans, layout = [Text(1), Image((1, 1, 2)), Text(1)], GridLayout(merge=1)
    >>> positions = replace(layout(spans), pictures=picture_numbers(spans, layout))  # of dataclasses
    >>> Mask("pictures").dense(read_tokens(positions))[0, 0].int().tolist()
    [[1, 0, 0, 0], [1, 1, 1, 0], [1, 1, 1, 0], [1, 1, 1, 1]]
    """

    rule: Rule = "positions"
    window: int | None = None

    def __post_init__(self) -> None:
        one_of("mask rule", self.rule, get_args(Rule))
        if self.window is not None:
            object.__setattr__(self, "window", whole("window", self.window, 1))

    def of(self, queries: Tokens, keys: Tokens) -> Mask:
        """This mask with the rule that "positions" stands for, if these tokens can have it.

        Raises:
            ValueError: pictures must be told apart, and nobody numbered them.
        """
        mask = replace(self, rule=queries.attend) if self.rule == "positions" else self
        if mask.rule in ("pictures", "rings") and (queries.pictures is None or keys.pictures is None):
            raise ValueError(
                f"mask rule {mask.rule!r} needs to know the picture of each token: "
                "replace(positions, pictures=picture_numbers(spans, layout))"
            )
        return mask

    def dense(self, queries: Tokens, keys: Tokens | None = None) -> Bool[Tensor, "b 1 n m"]:
        """(B, 1, N, M), True where a query may look; `keys` are by default the queries' own tokens."""
        seen = queries if keys is None else keys
        one, other = queries._columns(), seen._columns()
        mask = self.of(queries, seen)
        return mask._allows(lambda name: one[name][:, None, :, None], lambda name: other[name][:, None, None, :])

    def mask_mod(
        self, queries: Tokens, keys: Tokens | None = None
    ) -> Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]:
        """The same for FlexAttention: a function of the numbers of row, head, query and key."""
        seen = queries if keys is None else keys
        one, other = queries._columns(), seen._columns()
        mask = self.of(queries, seen)
        return lambda b, h, n, m: mask._allows(lambda name: one[name][b, n], lambda name: other[name][b, m])

    @no_type_check  # which FlexAttention, that traces it, could not take
    def _allows(self, query: Callable[[str], Tensor], key: Callable[[str], Tensor]) -> Tensor:
        """The rule, once for both forms: `query` and `key` give the columns of `Tokens` in shapes that broadcast."""
        one_document = (query("segments") == key("segments")) & (key("segments") != PADDING)
        behind = query("slots") - key("slots")
        if self.rule == "all":
            return one_document if self.window is None else one_document & (behind.abs() < self.window)
        allowed = behind >= 0
        if self.window is not None:
            allowed = allowed & (behind < self.window)
        if self.rule in ("pictures", "rings"):
            inside = (query("pictures") == key("pictures")) & (key("pictures") != NO_PICTURE)
            wanted = query("rings") >= key("rings") if self.rule == "rings" else inside
            allowed = torch.where(inside, wanted, allowed)
        return allowed & one_document


def picture_numbers(spans: Sequence[Span], layout: Layout) -> Int64[Tensor, " n"]:
    """(N,) the picture or clip of each token of a prompt, from 0, and -1 for text and sound: `Positions.pictures`.

    All tokens of a span count, those of the text that belongs to it (time stamps) among them.

    Args:
        spans: what the positions were made from.
        layout: what made them.

    >>> from mrope import GridLayout, Image
    >>> picture_numbers([Text(2), Image((1, 1, 3)), Text(1), Image((1, 2, 1))], GridLayout(merge=1)).tolist()
    [-1, -1, 0, 0, 0, -1, 1, 1]
    """
    is_picture = torch.tensor([not isinstance(span, (Text, Audio)) for span in spans], dtype=torch.bool)
    numbers = torch.where(is_picture, is_picture.cumsum(0) - 1, NO_PICTURE)
    return numbers.repeat_interleave(torch.tensor([layout.tokens(span) for span in spans], dtype=torch.int64))
