"""Adding a position to a token is a concatenation whose two projections are tied.

Let x be a token and p the code of its position. Concatenate them and project: [x, p] [A; B] = x A + p B. Add them and
project: (x + p) A. So adding is the concatenation with B = A, at half the weights and half the width.

What is paid shows in the scores. With queries (x + p) A and keys (x + p) C, the score of tokens m and n has four terms:

    x_m A C' x_n     what is said by what is said
    x_m A C' p_n     what is said by where: "the" asks for the next place
    p_m A C' x_n     where by what is said
    p_m A C' p_n     where by where

Move both tokens by the same step: the first term stays, the other three change, each of them by about as much. A
concatenation can leave the two middle ones out, if x and p are projected into channels of their own. Even then p with p
depends on where both tokens stand, and not on their difference alone; see score_depends_on_the_difference.py.

Run it: python examples/seeds/add_or_concatenate.py
"""

from __future__ import annotations

import torch
from torch import Tensor

from mrope.encodings import Sinusoidal

HEIGHT, WIDTH, CHANNELS, HEAD = 3, 5, 64, 16
DOWN, RIGHT = 1, 2


def main() -> dict[str, float]:
    """Print the four terms of a score, how a shift changes them, and what a concatenation does; return the numbers."""
    torch.manual_seed(0)
    sinusoidal = Sinusoidal(CHANNELS, axes=2)
    grid = torch.cartesian_prod(torch.arange(HEIGHT), torch.arange(WIDTH)).T
    p = sinusoidal.table(grid)
    moved = sinusoidal.table(grid + torch.tensor([[DOWN], [RIGHT]]))
    x = torch.randn(HEIGHT * WIDTH, CHANNELS) * p.norm() / (HEIGHT * WIDTH * CHANNELS) ** 0.5  # as large as p
    to_q, to_k = torch.randn(2, CHANNELS, HEAD) / CHANNELS**0.5

    def scores(one: Tensor, other: Tensor) -> Tensor:
        return (one @ to_q) @ (other @ to_k).T / HEAD**0.5

    def size(values: Tensor) -> float:
        return values.square().mean().sqrt().item()

    terms = {"x.x": (x, x, x, x), "x.p": (x, p, x, moved), "p.x": (p, x, moved, x), "p.p": (p, p, moved, moved)}
    numbers: dict[str, float] = {}
    print(f"Scores of {HEIGHT} x {WIDTH} patches, as a sum of four terms, and {DOWN} down, {RIGHT} to the right:")
    print("  term   size   change when both tokens move")
    for name, (q, k, moved_q, moved_k) in terms.items():
        numbers[name] = size(scores(q, k))
        numbers[f"{name} moved"] = size(scores(moved_q, moved_k) - scores(q, k))
        print(f"  {name}   {numbers[name]:.2f}   {numbers[f'{name} moved']:.2f}")
    added = scores(x + p, x + p)
    numbers["sum"] = (sum(scores(q, k) for q, k, _, _ in terms.values()) - added).abs().max().item()
    print(f"  their sum is the score of x + p: largest difference {numbers['sum']:.0e}")

    def concatenated(block_q: Tensor, block_k: Tensor) -> Tensor:
        both = torch.cat((x, p), dim=-1)
        return (both @ block_q) @ (both @ block_k).T / HEAD**0.5

    tied = concatenated(torch.cat((to_q, to_q)), torch.cat((to_k, to_k)))
    numbers["tied"] = (tied - added).abs().max().item()
    numbers["weights added"], numbers["weights concatenated"] = to_q.numel(), 2 * to_q.numel()
    print(f"[x, p] with the blocks [A; A], {2 * to_q.numel()} weights for {to_q.numel()}:")
    print(f"  the same scores: largest difference {numbers['tied']:.0e}")

    apart = concatenated(torch.block_diag(to_q, to_q), torch.block_diag(to_k, to_k))
    numbers["apart"] = (apart - scores(x, x) - scores(p, p)).abs().max().item()
    print("[x, p] with the blocks [A, 0; 0, A], channels of their own:")
    print(f"  x.x + p.p and no cross terms: largest difference {numbers['apart']:.0e}")
    return numbers


if __name__ == "__main__":
    main()
