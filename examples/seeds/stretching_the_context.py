"""PI, NTK and YaRN reach four times as far. What does each cost, and on which axis?

A pair of wavelength longer than the trained length L0 never went full circle in training: beyond L0 it comes to angles
that the weights have not met. A fast pair met them all, but it is what tells neighbours apart. So there are three
numbers to look at, for each axis, with K(d) the mean of cos(d f) over the frequencies f of its pairs:

* step: 1 - K(1), what one position makes of a score, in parts of the trained one.
* far: K at the end of the range, L0 in training and 4 L0 after.
* strange: how many pairs come to unmet angles before the end.

PI (arXiv:2306.15595) divides all frequencies by 4: nothing is strange, far is what it was, and a step is 1/16. NTK
changes the base: the fast pairs stay, and of the slow ones all but the last come a little too far. YaRN
(arXiv:2309.00071) leaves the fast pairs alone, divides the slow ones by 4, and multiplies cos and sin by a temperature.

Written for one axis, YaRN knows nothing of three. On the chunked split of Qwen2-VL time has the fast pairs and keeps
its pace, and width has the slow ones and is squeezed as by PI: pictures shrink and clips do not. The interleaved split
of Qwen3-VL gives every axis some of both.

Run it: python examples/seeds/stretching_the_context.py
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

import mrope
from mrope import AxisSplit, Frequencies
from mrope.extensions import Linear, Ntk, Yarn

FACTOR = 4
TRAINED = {"qwen2-vl": 32768, "qwen3-vl": 262144}  # positions
AXES = "    t     h     w"


def kernel(inv_freq: Tensor, distance: int) -> float:
    """K: the mean of cos(distance x frequency) over pairs."""
    return (distance * inv_freq).cos().mean().item()


def main() -> dict[str, float]:
    """Print what each extension does to groups of pairs and to axes, and return the numbers."""
    numbers: dict[str, float] = {}
    for name, trained in TRAINED.items():
        rotary = mrope.family(name).rotary()
        assert rotary is not None
        split, base = rotary.split, rotary.frequencies.base
        assert isinstance(split, AxisSplit)
        rules = {
            "trained": (None, 1),
            "as it is": (None, FACTOR),
            "PI": (Linear(FACTOR), FACTOR),
            "NTK": (Ntk(FACTOR), FACTOR),
            "YaRN": (Yarn(FACTOR, trained), FACTOR),
        }
        trained_freq = Frequencies(base).inv_freq(split.rotary_dim, dtype=torch.float64)
        circles = trained_freq * trained / (2 * math.pi)  # in training
        print(f"{name}: {split.pattern()}, base {base:.0f}, from {trained} to {FACTOR} x {trained} positions")
        print(f"{'':10}{'frequency / trained, pairs by 8':39}   {'step':17}   {'far':17}   strange")
        print(f"{'':10}{'fast':35}slow   {AXES:17}   {AXES:17}    t  h  w")
        for rule, (extension, reach) in rules.items():
            inv_freq = Frequencies(base, extension).inv_freq(split.rotary_dim, dtype=torch.float64)
            quotients = inv_freq / trained_freq
            strange = (circles < 1) & (quotients * reach > 1 + 1e-9)
            row: dict[str, float] = {"fast": quotients[0].item(), "slow": quotients[-1].item()}
            for a, axis in enumerate("thw"):
                own = split.axis == a
                row[f"step {axis}"] = (1 - kernel(inv_freq[own], 1)) / (1 - kernel(trained_freq[own], 1))
                row[f"far {axis}"] = kernel(inv_freq[own], reach * trained)
                row[f"strange {axis}"] = int(strange[own].sum())
                row[f"slowed {axis}"] = int((quotients[own] < 1).sum())
            groups = " ".join(f"{group:.2f}" for group in quotients.unflatten(0, (8, -1)).mean(-1).tolist())
            step, far = (" ".join(f"{row[f'{what} {axis}']:5.2f}" for axis in "thw") for what in ("step", "far"))
            counts = " ".join(f"{row[f'strange {axis}']:2}" for axis in "thw")
            print(f"{rule:8}  {groups}   {step}   {far}   {counts}")
            numbers |= {f"{name} {rule} {what}": value for what, value in row.items()}
        slowed = ", ".join(
            f"{numbers[f'{name} YaRN slowed {axis}']} of {count} pairs of {axis}"
            for axis, count in zip("thw", split.counts, strict=True)
        )
        print(f"YaRN slows {slowed}")
    numbers["temperature"] = Yarn(FACTOR, TRAINED["qwen2-vl"]).attention_factor
    print(f"and multiplies cos and sin by {numbers['temperature']:.3f}, so that scores grow by its square")
    return numbers


if __name__ == "__main__":
    main()
