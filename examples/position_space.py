"""The position space of two prompts, as numbers and as a picture.

Every token has three positions (t, h, w). A word moves all three by one; a picture is a block in h and w; a clip is a
stack of such blocks in t; and text goes on after the largest position so far.

Run it: python examples/position_space.py [FILE.svg]
"""

from __future__ import annotations

import sys
from pathlib import Path

import mrope
from mrope.probes import Panel, position_space

PICTURE = ("text:3", "image:1x6x8", "text:2")
CLIP = ("text:2", "video:3x4x6@1.0", "text:2")


DRAWING = Path(__file__).with_suffix(".svg")


def main(target: Path = DRAWING) -> None:
    """Print the ids of both prompts and draw them into `target`."""
    family = mrope.family("qwen2.5-vl")
    for spans in (PICTURE, CLIP):
        positions = family.positions(spans)
        print(" ".join(spans))
        for axis, ids in zip("thw", positions.ids.tolist(), strict=True):
            print(f"  {axis} {' '.join(map(str, ids))}")
        print(f"  {positions.length} tokens, the next one is at {positions.next}: offset {positions.offset}")
    panels = [
        Panel(family, PICTURE, "Text, a picture, text: seen along t", down="h", across="w"),
        Panel(family, CLIP, "Text, a clip, text: seen along w", down="h", across="t"),
    ]
    target.write_text(position_space(panels) + "\n", encoding="utf-8")
    print(f"drawn: {target.name}")


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
