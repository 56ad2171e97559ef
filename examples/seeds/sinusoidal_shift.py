"""A shift of a sinusoidal code is one linear map, the same wherever it starts.

The code of position p is the pairs (sin(p f), cos(p f)) of a few frequencies f ("Attention Is All You Need",
arXiv:1706.03762, section 3.5). By the sum formulas of sine and cosine, s positions further each pair is turned by s f:

    sin((p + s) f) =  cos(s f) sin(p f) + sin(s f) cos(p f)
    cos((p + s) f) = -sin(s f) sin(p f) + cos(s f) cos(p f)

The matrix knows s and not p, so that one projection can learn "three to the right". Here it is not even told the
formula: least squares finds it from the codes. Of a table of learned codes there is no such matrix.

With two axes each has its half of the channels, and a shift has a block for each axis.

Letters: N positions, D channels.

Run it: python examples/seeds/sinusoidal_shift.py
"""

from __future__ import annotations

import torch
from torch import Tensor

from mrope.encodings import Sinusoidal

POSITIONS, SHIFT = 200, 3
HEIGHT, WIDTH, DOWN, RIGHT = 12, 20, 2, 5


def block(angle: Tensor) -> Tensor:
    """(2, 2): what turns (sin a, cos a) into (sin(a + angle), cos(a + angle))."""
    sin, cos = angle.sin(), angle.cos()
    return torch.stack((torch.stack((cos, sin)), torch.stack((-sin, cos))))


def fitted(before: Tensor, after: Tensor) -> tuple[Tensor, float]:
    """The matrix M (D, D) with M before = after for all rows (N, D), as well as one can, and its largest error."""
    matrix = torch.linalg.lstsq(before, after).solution.T
    return matrix, (before @ matrix.T - after).abs().max().item()


def main() -> dict[str, float]:
    """Print the matrix of a shift, fitted and by formula, and return the errors."""
    torch.manual_seed(0)
    print(f"One axis, 4 channels: code(p + {SHIFT}) = M code(p), fitted to p = 0 .. {POSITIONS - 1}")
    code = Sinusoidal(4, base=100.0).table(torch.arange(POSITIONS + SHIFT)[None]).double()
    matrix, error = fitted(code[:-SHIFT], code[SHIFT:])
    for row in matrix:
        print("  ", " ".join(f"{round(value, 4) + 0.0:7.4f}" for value in row.tolist()))
    exact = torch.block_diag(*(block(torch.tensor(SHIFT * pace, dtype=torch.float64)) for pace in (1.0, 0.1)))
    off = (matrix - exact).abs().max().item()
    print(
        f"  largest error over the positions {error:.0e}; distance to the rotation by {SHIFT} and 0.{SHIFT}: {off:.0e}"
    )
    learned = torch.randn(POSITIONS + SHIFT, 4, dtype=torch.float64) / 2**0.5  # the same size of entries
    _, error_learned = fitted(learned[:-SHIFT], learned[SHIFT:])
    print(f"  largest error of a random table's best matrix {error_learned:.1f}")

    print(f"Two axes, 8 channels: {DOWN} down and {RIGHT} to the right in a picture of {HEIGHT} x {WIDTH}")
    sinusoidal = Sinusoidal(8, axes=2, base=100.0)
    grid = torch.cartesian_prod(torch.arange(HEIGHT), torch.arange(WIDTH)).T

    def moved(down: int, right: int) -> Tensor:
        return sinusoidal.table(grid + torch.tensor([[down], [right]])).double()

    angles = [DOWN * 1.0, DOWN * 0.1, RIGHT * 1.0, RIGHT * 0.1]
    by_axis = torch.block_diag(*(block(torch.tensor(angle, dtype=torch.float64)) for angle in angles))
    error_2d = (moved(0, 0) @ by_axis.T - moved(DOWN, RIGHT)).abs().max().item()
    error_swapped = (moved(0, 0) @ by_axis.T - moved(RIGHT, DOWN)).abs().max().item()
    print(f"  a rotation of the first half by {DOWN} steps, of the second by {RIGHT}: largest error {error_2d:.0e}")
    print(f"  for {RIGHT} down and {DOWN} to the right it is the wrong matrix: {error_swapped:.1f}")
    return {
        "error": error,
        "off": off,
        "error_learned": error_learned,
        "error_2d": error_2d,
        "error_swapped": error_swapped,
    }


if __name__ == "__main__":
    main()
