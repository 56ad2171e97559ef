"""From a model's tokens and boxes back to the pixels of a page, drawn over it.

A page is planned for a model; a box that the model could have written is decoded, the tokens that see it are found, and
it is cut out of the original with all its pixels.

Run it: python examples/find_the_way_back.py [--out FOLDER]
"""

from __future__ import annotations

import argparse
from pathlib import Path

import mrope
from mrope.data import asset
from mrope.vision import crop, draw, region, tokens_in

WRITTEN = [[80, 72, 585, 114], [512, 488, 920, 616]]
"""Boxes in thousandths of the page, as Qwen3-VL writes them."""


def main(out: Path) -> None:
    """Print what is where, and draw it into `out`."""
    page = asset("page.png")
    family = mrope.family("qwen3-vl")
    plan = family.plan(page)
    print(f"{page.name}: {plan.original} -> {plan.resized}, {plan.tokens} tokens of {plan.factor} pixels a side")
    boxes = plan.decode_boxes(WRITTEN)
    for written, box in zip(WRITTEN, boxes, strict=True):
        print(f"written {written}: pixels {[round(side, 1) for side in box]}, {tokens_in(plan, box).sum()} tokens")
    print(f"token 137 sees {region(plan, 137).round(1).tolist()}")
    closer = crop(page, plan, WRITTEN[0], margin=0.1)
    again = family.plan(closer.pixels)
    print(f"cut out at {closer.corner}: {again.original} -> {again.resized}, {again.tokens} tokens of its own")
    print(f"its middle on the page: {closer.to_whole(again.decode_boxes([[500, 500]]))}")
    out.mkdir(parents=True, exist_ok=True)
    drawing = draw(page, plan, boxes=boxes, labels=["title", "table"], tokens=tokens_in(plan, boxes[1], share=0.5))
    drawing.save(out / "way_back.png")
    print("drawn: way_back.png")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--out", type=Path, default=Path("out"), help="folder for the drawing")
    main(parser.parse_args().out)
