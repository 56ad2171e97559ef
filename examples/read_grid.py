"""Draw a picture of letters in a font that the reader never saw, and ask what stands where.

Run it: python examples/read_grid.py [FILE.png]
"""

import sys

import numpy as np

from mrope.data import draw_grid, fonts, sample_key
from mrope.reader import Reader


def main(target: str = "grid.png") -> None:
    """Draw 4 rows of 7 letters into `target`, read them, and ask three questions."""
    rng = np.random.default_rng(7)
    grid = draw_grid(sample_key(4, 7, rng), fonts("held-out"), rng)
    grid.picture.save(target)
    print(f"{target}: {grid.picture.width} wide x {grid.picture.height} high")
    reader = Reader.load()
    for said, true in zip(reader.read(target), grid.text().splitlines(), strict=True):
        print(said, "as drawn" if said == true else f"but drawn was {true}")
    questions = [("right", (1, 2)), ("above", (3, 6)), ("below", (0, 0))]
    for (relation, cell), answer in zip(questions, reader.ask(target, questions), strict=True):
        print(f"{relation}, seen from row {cell[0]}, column {cell[1]}: {answer.glyph}, {answer.probability:.0%} sure")


if __name__ == "__main__":
    main(*sys.argv[1:])
