"""Where the attention of a model goes: between the cells of a picture, from words to pictures, and as a map.

Letters: L layers with attention, B rows, N tokens, H heads, D distances.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int64
from torch import Tensor

from mrope.checks import one_of, whole
from mrope.probes.inside.places import Places, places_of
from mrope.probes.inside.watching import batches_of, config_of, numbers_of, watch
from mrope.spans import Grid

REACH: Grid = (4, 16, 16)
"""How far attention is told apart by default: steps, rows and columns in each direction."""

_QUERIES = 128  # that are counted at once, since pairs are many
_MOST = 2**18  # differences that are told apart, as each head of each layer holds a number for each
_ROUNDING = 0.01  # of the sum of a row in a short dtype
_AXES = ("t", "h", "w")


@dataclass(frozen=True, slots=True, eq=False)
class RelativeAttention:
    """The mean weight that a cell of a picture gives to another one of it, by where that one is as seen from it.

    Args:
        layers: their numbers.
        reach: steps, rows and columns in each direction; pairs that are further apart are left out.
        pairs: (2 T + 1, 2 R + 1, 2 C + 1) how many pairs of cells are so far apart. [T, R, C] is a cell and itself,
            [T, R - 1, C] the one above, [T, R, C - 1] the one to the left, [T - 1, R, C] the same one a step before.
        weight: (L, H, 2 T + 1, 2 R + 1, 2 C + 1) the mean over these pairs, NaN where there is none. A pair that the
            model's mask forbids has weight 0 and counts.
    """

    layers: tuple[int, ...]
    reach: Grid
    pairs: Int64[Tensor, "t r c"]
    weight: Float[Tensor, "l h t r c"]

    def at(self, dt: int, dh: int, dw: int) -> Float[Tensor, "l h"]:
        """The mean weight of the cell that is `dt` steps later, `dh` rows below and `dw` columns to the right."""
        place = tuple(by + most for by, most in zip((dt, dh, dw), self.reach, strict=True))
        if any(not 0 <= at <= 2 * most for at, most in zip(place, self.reach, strict=True)):
            raise ValueError(f"difference is {(dt, dh, dw)}; expected at most {self.reach} in each direction")
        return self.weight[:, :, place[0], place[1], place[2]]

    def along(self, axis: str) -> Float[Tensor, "l h d"]:
        """The mean weight by the difference on one axis ("t", "h" or "w"), over all pairs with that difference."""
        one_of("axis", axis, _AXES)
        others = [dim for dim, name in enumerate(_AXES) if name != axis]
        sums = (self.weight.nan_to_num() * self.pairs).sum([2 + dim for dim in others])
        return sums / self.pairs.sum(others)

    def strongest(self) -> tuple[tuple[int, int, int], ...]:
        """Of each layer: the difference (dt, dh, dw) with the largest mean weight over the heads.

        A cell itself, (0, 0, 0), is left out, unless there are no others.
        """
        mean = self.weight.mean(1).nan_to_num(-2)
        t, h, w = self.reach
        mean[:, t, h, w] = -1
        sides = mean.shape[1:]
        places = (np.unravel_index(at, sides) for at in mean.flatten(1).argmax(1).tolist())
        return tuple((int(at[0]) - t, int(at[1]) - h, int(at[2]) - w) for at in places)


@dataclass(frozen=True, slots=True, eq=False)
class VisionShare:
    """How much of its attention a word behind the pictures of a row gives to their cells, by its distance from them.

    Args:
        layers: their numbers.
        distance: (D,) the number of the word behind the last cell, from 1.
        words: (D,) how many words are so far behind.
        share: (L, H, D) the mean over these words of the sum of their weights to all cells of the row.
        even: (D,) what it were if each gave the same weight to all tokens up to itself.
    """

    layers: tuple[int, ...]
    distance: Int64[Tensor, " d"]
    words: Int64[Tensor, " d"]
    share: Float[Tensor, "l h d"]
    even: Float[Tensor, " d"]


@dataclass(frozen=True, slots=True, eq=False)
class AttentionMap:
    """The attention of the asking tokens of a row to each cell of a picture or clip.

    Args:
        layers: their numbers.
        batch: the number of the batch.
        row: of that batch.
        picture: its number in that batch.
        weight: (L, H, steps, rows, columns). Tokens that share a cell are summed up.
    """

    layers: tuple[int, ...]
    batch: int
    row: int
    picture: int
    weight: Float[Tensor, "l h t r c"]


@dataclass(frozen=True, slots=True, eq=False)
class AttentionInside:
    """Where the attention of a model goes.

    Args:
        layers: the numbers of those that have attention.
        relative: between the cells of a picture.
        share: from the words behind the pictures to their cells.
        maps: of each picture and clip, batch by batch.
        places: of each batch.
    """

    layers: tuple[int, ...]
    relative: RelativeAttention
    share: VisionShare
    maps: tuple[AttentionMap, ...]
    places: tuple[Places, ...]


def attention_inside(
    model: Any,
    inputs: Mapping[str, Any] | Sequence[Mapping[str, Any]],
    *,
    layers: Sequence[int] | None = None,
    reach: Grid = REACH,
    token: int | None = -1,
) -> AttentionInside:
    """Run a model, and measure where the attention of its language model goes. Its vision tower is not looked into.

    The model runs once a batch, with eager attention, whatever it has otherwise; the weights of one layer are held at a
    time. Afterwards it is as it was. Layers without attention, such as linear ones, are left out. Without pixels,
    placeholders are words, all of them the same one, and positions alone tell cells apart.

    Args:
        model: a transformers model of one of our families, plugged or not, or what `build_vlm` made.
        inputs: a batch by name, as the model takes it, or several: what `processor.apply_chat_template(messages,
            tokenize=True, return_dict=True, return_tensors="pt")` gives. All are counted together; maps are apart.
        layers: the numbers of layers; by default all.
        reach: how many steps, rows and columns in each direction are told apart.
        token: whose attention the maps show: its number in its row without padding, from the end where it is negative;
            None for the mean of all words behind the pictures.

    Raises:
        TypeError: the model is none of ours, or an argument is of another kind.
        ValueError: there is no picture, no such layer or token, or no such layer has attention; `reach` tells more than
            2^18 differences apart; a batch has a name that the model does not take, or numbers that are not finite, or
            does not run through it; or the weights of a layer are none.

    >>> from transformers import Qwen2VLConfig, Qwen2VLModel
    >>> from mrope.hf import plug
    >>> text = {"hidden_size": 128, "num_attention_heads": 1, "num_key_value_heads": 1, "num_hidden_layers": 1}
    >>> vision = {"depth": 1, "embed_dim": 16, "num_heads": 1, "hidden_size": 128}
    >>> text |= {"intermediate_size": 8, "vocab_size": 8, "bos_token_id": None, "eos_token_id": None}
    >>> model = Qwen2VLModel(Qwen2VLConfig(text_config=text, vision_config=vision, image_token_id=6, video_token_id=7))
    >>> batch = {"input_ids": torch.tensor([[1, 6, 6, 2]]), "image_grid_thw": torch.tensor([[1, 2, 4]])}
    >>> with plug(model):
    ...     seen = attention_inside(model, batch)
    >>> seen.maps[0].weight.shape  # of 1 layer and 1 head, to 1 step of 1 row and 2 columns
    torch.Size([1, 1, 1, 1, 2])
    """
    numbers, config = numbers_of(model, layers), config_of(model)
    batches = batches_of(inputs, model)
    places = tuple(places_of(batch, config) for batch in batches)
    tally = _Tally(places, reach, token)
    for number, batch in enumerate(batches):
        tally.begin(number)
        watch(model, batch, weights=lambda layer, weights: tally.add(layer, weights) if layer in numbers else None)
    if not tally.relative:
        raise ValueError(f"layers {numbers} have no attention whose weights can be seen; expected one that has")
    return tally.result()


def measure_attention(
    weights: Mapping[int, Float[Tensor, "b h n n"]], places: Places, *, reach: Grid = REACH, token: int | None = -1
) -> AttentionInside:
    """Where attention goes whose weights are known, such as that of a model of your own: see `attention_inside`.

    Args:
        weights: number of a layer -> its weights behind the softmax, from queries to keys, in float of any width. Rows
            may sum to less than 1, as they do beside a sink; those of padding are not looked at.
        places: of the tokens.
        reach: how many steps, rows and columns in each direction are told apart.
        token: whose attention the maps show.

    Raises:
        TypeError: an argument is of another kind, such as weights in integers.
        ValueError: there is no picture, no layer or no such token; `reach` tells more than 2^18 differences apart; or
            weights are of another number of tokens, or none: below 0, NaN, or with a row that sums to more than 1.
    """
    if not isinstance(places, Places):
        raise TypeError(f"places are a {type(places).__name__}; expected what mrope.probes.inside.places_of gives")
    if not isinstance(weights, Mapping):
        raise TypeError(f"weights are a {type(weights).__name__}; expected number of a layer -> its weights")
    if not weights:
        raise ValueError("weights are empty; expected those of one layer at least")
    tally = _Tally((places,), reach, token)
    tally.begin(0)
    rows, length = places.picture.shape
    for layer, each in weights.items():
        number = whole("layer", layer, 0)
        if not isinstance(each, Tensor) or not each.is_floating_point():
            kind = f"of {each.dtype}" if isinstance(each, Tensor) else f"a {type(each).__name__}"
            raise TypeError(f"weights of layer {number} are {kind}; expected a tensor in float")
        if each.dim() != 4 or not each.shape[1] or each.shape != (rows, each.shape[1], length, length):
            raise ValueError(
                f"weights of layer {number} have shape {tuple(each.shape)}; expected ({rows}, H, {length}, {length})"
            )
        tally.add(number, each.float())
    return tally.result()


def _checked(reach: Any) -> Grid:
    if not isinstance(reach, Sequence) or len(reach) != 3:
        raise TypeError(f"reach is {reach!r}; expected three numbers: steps, rows and columns")
    t, h, w = (whole("reach", most, 0) for most in reach)
    count = (2 * t + 1) * (2 * h + 1) * (2 * w + 1)
    if count > _MOST:
        raise ValueError(f"reach is {(t, h, w)}, {count:,} differences; expected at most {_MOST:,} of them")
    return t, h, w


def _asking(places: Places, token: int | None) -> Tensor:
    """(B, N) the tokens whose attention maps show; none in a row without pictures."""
    if token is None:
        return places.behind > 0
    at, chosen = whole("token", token, -(2**31)), torch.zeros_like(places.tokens, dtype=torch.bool)
    for row in sorted(set(places.rows)):
        count = int(places.tokens[row].max()) + 1
        if not -count <= at < count:
            raise ValueError(f"token is {at}; expected one of the {count} tokens of row {row}")
        chosen[row] = places.tokens[row] == at % count
    return chosen


class _Tally:
    """The sums of what is measured, over batches."""

    def __init__(self, places: tuple[Places, ...], reach: Grid, token: int | None) -> None:
        if not any(each.grids for each in places):
            raise ValueError("inputs have no picture and no clip; expected at least one")
        self.all, self.reach = places, _checked(reach)
        self.every_asking = [_asking(each, token) for each in places]
        self.sides = tuple(2 * most + 1 for most in self.reach)
        words = max(int(each.behind.max()) for each in places)
        self.relative: dict[int, Tensor] = {}  # layer -> (H, differences) float64
        self.share: dict[int, Tensor] = {}  # layer -> (H, D + 1) float64
        self.maps: dict[tuple[int, int], dict[int, Tensor]] = {}  # (batch, picture) -> layer -> (H, t, r, c)
        self.pairs = torch.zeros(self.sides, dtype=torch.int64).flatten()
        self.words = torch.zeros(words + 1, dtype=torch.int64)
        self.even = torch.zeros(words + 1, dtype=torch.float64)

    def begin(self, number: int) -> None:
        """Count what is the same in all layers of a batch."""
        self.number, self.places, self.asking = number, self.all[number], self.every_asking[number]
        places = self.places
        self.members = [(places.picture == each).nonzero() for each in range(len(places.grids))]
        for at in self.members:
            for queries in at.split(_QUERIES):
                self.pairs += torch.bincount(self._bins(queries, at)[0], minlength=len(self.pairs))
        self.words += torch.bincount(places.behind.flatten(), minlength=len(self.words))
        cells = (places.picture >= 0).sum(1, keepdim=True)
        even = (cells / (places.tokens + 1).clamp(min=1)).double() * (places.behind > 0)
        self.even.index_add_(0, places.behind.flatten(), even.flatten())

    def _bins(self, queries: Tensor, keys: Tensor) -> tuple[Tensor, Tensor]:
        """The number of the difference of each pair that is near enough, and (queries, keys) which these are."""
        (row, q), k = queries.T, keys[:, 1]
        cells = self.places.cells[:, row[0]]
        apart = cells[:, None, k] - cells[:, q, None]
        most = torch.tensor(self.reach)[:, None, None]
        near = (apart.abs() <= most).all(0)
        t, r, c = apart + most
        return ((t * self.sides[1] + r) * self.sides[2] + c)[near], near

    def add(self, layer: int, weights: Float[Tensor, "b h n n"]) -> None:
        """Count the weights of one layer of the batch that has begun."""
        places, heads = self.places, weights.shape[1]
        total, least = weights.sum(-1), weights.amin(-1)
        fits = (least >= 0) & (total <= 1 + _ROUNDING)  # NaN does not
        wrong = (~fits & (places.tokens >= 0).to(fits.device)[:, None]).nonzero()
        if len(wrong):
            row, head, query = wrong[0].tolist()
            raise ValueError(
                f"weights of layer {layer} sum to {total[row, head, query]:.4g} for token {query} of row {row} in head "
                f"{head}, the least is {least[row, head, query]:.4g}; expected those behind a softmax: none below 0, "
                "and a sum of 1 at most"
            )
        relative = self.relative.setdefault(layer, torch.zeros(heads, len(self.pairs), dtype=torch.float64))
        for picture, at in enumerate(self.members):
            row, keys = int(at[0, 0]), at[:, 1].to(weights.device)
            own = weights[row]
            for queries in at.split(_QUERIES):
                bins, near = self._bins(queries, at)
                block = own[:, queries[:, 1].to(weights.device)][:, :, keys].cpu()
                relative.index_add_(1, bins, block[:, near].double())
            asking = self.asking[row].to(weights.device)
            given = own[:, asking][:, :, keys].double().mean(1).cpu()  # NaN where nobody asks
            drawn = torch.zeros(heads, *places.grids[picture], dtype=torch.float64)
            t, r, c = places.cells[:, row, at[:, 1]]
            drawn.index_put_((torch.arange(heads)[:, None], t, r, c), given, accumulate=True)
            self.maps.setdefault((self.number, picture), {})[layer] = drawn
        seen = (places.picture >= 0).to(weights.device)
        given = (weights @ seen[:, None, :, None].to(weights.dtype))[..., 0].double().cpu()  # (B, H, N)
        share = self.share.setdefault(layer, torch.zeros(heads, len(self.words), dtype=torch.float64))
        share.index_add_(1, places.behind.flatten(), given.transpose(0, 1).flatten(1))

    def result(self) -> AttentionInside:
        layers = tuple(sorted(self.relative))
        sums = torch.stack([self.relative[layer] for layer in layers]) / self.pairs
        distance = self.words.nonzero()[:, 0]
        distance = distance[distance > 0]
        words = self.words[distance]
        shares = torch.stack([self.share[layer] for layer in layers])[:, :, distance] / words
        maps = [
            AttentionMap(
                layers,
                batch,
                self.all[batch].rows[picture],
                picture,
                torch.stack([own[each] for each in layers]).float(),
            )
            for (batch, picture), own in sorted(self.maps.items())
        ]
        return AttentionInside(
            layers,
            RelativeAttention(
                layers, self.reach, self.pairs.unflatten(0, self.sides), sums.unflatten(-1, self.sides).float()
            ),
            VisionShare(layers, distance, words, shares.float(), (self.even[distance] / words).float()),
            tuple(maps),
            self.all,
        )
