"""The score of a rotated query and key depends on the difference of their positions alone, axis by axis.

Turn q by m and k by n: their score is the score of q with k turned by n - m, since a rotation keeps every angle and
every length. With three axes each pair has its own m - n. So a picture looks the same to a question wherever both
stand; to move one of the two is another matter, that is what positions are for. Two ways to lose it:

* Rotate the values too. Scores do not change, but the output is a mean of rotated values and turns with the place.
  (Turned back by the position of its query it is a function of the differences again.)
* Take an odd head size. The last channel has no partner. With a partner of 0 that is cut off again, its rotation
  x -> x cos is none: it shrinks, and the score has the term x y cos(m) cos(n), which is no function of m - n. mrope
  refuses an odd number of rotary channels; on an odd head it turns an even number of them, and leaves the last alone.

Letters: N tokens.

Run it: python examples/seeds/score_depends_on_the_difference.py
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad, scaled_dot_product_attention

from mrope import AxisSplit, Frequencies, Rotary, apply_rotary

GRID = (2, 3, 5)  # frames, height, width
ROTARY = Rotary(AxisSplit((4, 6, 6)), Frequencies(1e4), angles="exact")
STEP = 7


def with_fake_partner(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """What not to do: an odd number of channels, padded with a zero, turned, and cut."""
    return apply_rotary(pad(x, (0, 1)), cos, sin, pairing="adjacent")[..., :-1]


def main() -> dict[str, float]:
    """Print what changes when all tokens move by the same step, and return the largest changes."""
    torch.manual_seed(0)
    ids = torch.cartesian_prod(*(torch.arange(size) for size in GRID)).T  # (3, N)
    q, k, v = torch.randn(3, 1, ids.shape[1], ROTARY.split.rotary_dim)
    shifts = {axis: ids + STEP * torch.eye(3, dtype=torch.int64)[:, [a]] for a, axis in enumerate("thw")}
    numbers: dict[str, float] = {}

    def scores(positions: Tensor) -> Tensor:
        turned_q, turned_k = ROTARY(q, k, positions)
        return turned_q @ turned_k.mT

    print(f"{GRID[0]} frames of {GRID[1]} x {GRID[2]} patches; the largest change of a score when")
    for axis, moved in shifts.items():
        numbers[axis] = (scores(moved) - scores(ids)).abs().max().item()
        print(f"  all move by {STEP} along {axis}             {numbers[axis]:.0e}")
    one_moved = ids.where(torch.arange(ids.shape[1]) > 0, shifts["h"])
    numbers["one"] = (scores(one_moved) - scores(ids)).abs().max().item()
    print(f"  the first token alone moves along h  {numbers['one']:.1f}")

    def output(positions: Tensor, values: str) -> Tensor:
        cos, sin = ROTARY.cos_sin(positions)
        turned_q, turned_k = ROTARY(q, k, positions)
        out = scaled_dot_product_attention(
            turned_q, turned_k, v if values == "as they are" else apply_rotary(v, cos, sin)
        )
        return apply_rotary(out, cos, -sin) if values == "turned, and back" else out

    print(f"the largest change of an output of attention when all move by {STEP} along h, with the values")
    for values in ("as they are", "turned", "turned, and back"):
        numbers[f"values {values}"] = (output(shifts["h"], values) - output(ids, values)).abs().max().item()
        print(f"  {values:16}                     {numbers[f'values {values}']:.1g}")

    odd_q, odd_k = q[..., :5], k[..., :5]
    print(f"5 channels of a head; the largest change of a score when all move by {STEP}, with the last channel")
    index = torch.arange(ids.shape[1])[None]
    three, two = (Rotary(AxisSplit((pairs,)), Frequencies(10.0), "adjacent", "exact") for pairs in (3, 2))

    def odd_scores(positions: Tensor, rule: str) -> Tensor:
        if rule == "left alone":
            turned_q, turned_k = two(odd_q, odd_k, positions)
        else:
            turned_q, turned_k = (with_fake_partner(x, *three.cos_sin(positions)) for x in (odd_q, odd_k))
        return turned_q @ turned_k.mT

    for rule in ("left alone", "with a partner of 0"):
        numbers[f"odd, {rule}"] = (odd_scores(index + STEP, rule) - odd_scores(index, rule)).abs().max().item()
        print(f"  {rule:19}                  {numbers[f'odd, {rule}']:.1g}")
    shrunk = with_fake_partner(odd_q, *three.cos_sin(index)).norm(dim=-1) / odd_q.norm(dim=-1)
    numbers["shrunk"] = shrunk.min().item()
    print(f"  and a query keeps at least {numbers['shrunk']:.0%} of its length, where a rotation keeps all of it")
    try:
        AxisSplit((1, 1)).check_fits(5)
    except ValueError as refusal:
        print(f"mrope: {refusal}")
    return numbers


if __name__ == "__main__":
    main()
