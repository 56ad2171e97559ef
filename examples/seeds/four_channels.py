"""The rotary position of a token with four channels, worked step by step.

Four channels are two pairs. Pair j turns by base ** (-2j / 4) radians per position: 1 and 0.01 for the base 10000
(RoFormer, arXiv:2104.09864, section 3.2.2). The token is a patch at row h = 3 and column w = 5; the first pair reads h
and the second w, so that their angles are 3 x 1 and 5 x 0.01. Turning the pair (a, b) by an angle gives

    (a cos - b sin, b cos + a sin)

That is all. What is left to choose is which channels are a pair: "half" takes channel j with channel j + 2, "adjacent"
takes neighbours. The two differ by a fixed permutation of the channels alone, which goes into the rows of a trained
weight once and for all.

Run it: python examples/seeds/four_channels.py
"""

from __future__ import annotations

import math

import torch

from mrope import AxisSplit, Frequencies, Rotary
from mrope.rotary import Pairing

BASE, H, W = 10000.0, 3, 5
TOKEN = [1.0, 2.0, 3.0, 4.0]
PAIRS: dict[Pairing, tuple[tuple[int, int], ...]] = {"half": ((0, 2), (1, 3)), "adjacent": ((0, 1), (2, 3))}


def by_hand(pairs: tuple[tuple[int, int], ...]) -> list[float]:
    """The token with channels `pairs[0]` turned by its row and `pairs[1]` by its column; prints every product."""
    turned = list(TOKEN)
    for j, ((one, other), position, axis) in enumerate(zip(pairs, (H, W), "hw", strict=True)):
        angle = position * BASE ** (-2 * j / 4)
        cos, sin, a, b = math.cos(angle), math.sin(angle), TOKEN[one], TOKEN[other]
        turned[one], turned[other] = a * cos - b * sin, b * cos + a * sin
        print(f"  pair {j}, channels {one} and {other}: {axis} = {position}, angle {angle:.2f}", end=", ")
        print(f"cos {cos:.4f}, sin {sin:.4f}")
        print(f"    {a:.0f} x {cos:.4f} - {b:.0f} x {sin:.4f} = {turned[one]:.4f}")
        print(f"    {b:.0f} x {cos:.4f} + {a:.0f} x {sin:.4f} = {turned[other]:.4f}")
    return turned


def by_mrope(token: list[float], pairing: Pairing) -> list[float]:
    """The same by the library, which takes queries and keys (heads, tokens, channels) and ids (axes, tokens)."""
    rotary = Rotary(AxisSplit((1, 1)), Frequencies(BASE), pairing)
    x = torch.tensor([[token]])
    return rotary(x, x, torch.tensor([[H], [W]]))[0].flatten().tolist()


def main() -> dict[str, list[float]]:
    """Print the rotation of one token by hand and by mrope, for both pairings, and return the rotated tokens."""
    numbers: dict[str, list[float]] = {}
    for pairing, pairs in PAIRS.items():
        print(f"{pairing}: {TOKEN} at h = {H}, w = {W}")
        numbers[pairing] = by_hand(pairs)
        numbers[f"{pairing} by mrope"] = by_mrope(TOKEN, pairing)
        print("  by mrope:", " ".join(f"{value:.4f}" for value in numbers[f"{pairing} by mrope"]))
    print(f"norm before {math.hypot(*TOKEN):.4f}, after {math.hypot(*numbers['half']):.4f}")

    # Adjacent pairs (0, 1) and (2, 3), dealt to channels (0, 2) and (1, 3): turned as "half", and put back.
    dealt = by_mrope([TOKEN[channel] for channel in (0, 2, 1, 3)], "half")
    numbers["permuted"] = [dealt[channel] for channel in (0, 2, 1, 3)]
    print("adjacent as half of permuted channels:", " ".join(f"{value:.4f}" for value in numbers["permuted"]))
    return numbers


if __name__ == "__main__":
    main()
