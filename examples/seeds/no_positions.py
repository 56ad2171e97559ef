"""Attention without positions reads a bag of words.

An output of attention is a mean of values, weighted by how well queries fit keys. Nothing in it says which token came
first: permute the tokens, and the same outputs come out, permuted (attention is permutation-equivariant). A picture cut
into patches might as well have been shaken.

Rotary positions end this. A token in another place has another output, since places turn queries and keys. And they are
all that ends it: let the positions travel with their tokens, and the order of the rows is again without meaning.

Letters: N tokens, C channels.

Run it: python examples/seeds/no_positions.py
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from mrope import AxisSplit, Frequencies, Rotary
from mrope.encoding import Encoding
from mrope.encodings import NoPe

HEIGHT, WIDTH, CHANNELS = 3, 5, 32
ROTARY = Rotary(AxisSplit((8, 8)), Frequencies(100.0))


def attend(x: Tensor, places: Tensor, weights: Tensor, encoding: Encoding) -> Tensor:
    """One head of attention: tokens x (N, C) at places (2, N), weights (3, C, C) of queries, keys and values."""
    q, k, v = (x @ weights)[:, None]  # (1, N, C) each: one head
    q, k = encoding.rotate(q, k, places)
    return scaled_dot_product_attention(q, k, v)[0]


def main() -> dict[str, float]:
    """Print by how much a permutation of the tokens changes their outputs, and return it."""
    torch.manual_seed(0)
    tokens = HEIGHT * WIDTH
    places = torch.cartesian_prod(torch.arange(HEIGHT), torch.arange(WIDTH)).T  # (h, w) of each patch
    x = torch.randn(tokens, CHANNELS)
    weights = torch.randn(3, CHANNELS, CHANNELS) / CHANNELS**0.5
    order = torch.randperm(tokens)

    def change(encoding: Encoding, new_places: Tensor) -> float:
        """The largest difference to the permuted outputs, in parts of the largest output."""
        before = attend(x, places, weights, encoding)[order]
        after = attend(x[order], new_places, weights, encoding)
        return ((after - before).abs().max() / before.abs().max()).item()

    changes = {
        "none": change(NoPe(), places),
        "rotary": change(ROTARY, places),
        "carried": change(ROTARY, places[:, order]),
        "transposed": change(ROTARY, places[:, order].flip(0)),
    }
    print(f"A picture of {HEIGHT} x {WIDTH} patches, shuffled. By how much its outputs change, apart from their order:")
    print(f"  no positions                                   {changes['none']:.0e}")
    print(f"  rotary, positions of the places                {changes['rotary']:.2f}")
    print(f"  rotary, every token keeps its position         {changes['carried']:.0e}")
    print(f"  ... but with height and width exchanged        {changes['transposed']:.2f}")
    return changes


if __name__ == "__main__":
    main()
