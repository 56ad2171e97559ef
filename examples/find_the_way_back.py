"""From a model's tokens, boxes, points and polygons back to the pixels of a page, drawn over it.

A page is planned for a model; shapes that the model could have written are decoded, the tokens that see them are found,
and one is cut out of the original with all its pixels. The drawing shows the token grid, the shapes, what one token
sees and, tinted, the tokens that see a region.

Run it: python examples/find_the_way_back.py [--out FOLDER]
"""

from __future__ import annotations

import argparse
from pathlib import Path

import mrope
from mrope.data import asset
from mrope.vision import crop, draw, region, tokens_in

BOXES = [[80, 72, 585, 114], [512, 488, 920, 616]]
POINT = [411, 946]
POLYGON = [[82, 799], [486, 799], [486, 817], [342, 817], [342, 833], [82, 833]]
"""The title and the table, a word of the small print and a paragraph of a line and a half, in thousandths of the page,
as Qwen3-VL writes them."""
TOKEN = 137


def main(out: Path) -> None:
    """Print what is where, and draw it into `out`."""
    page = asset("page.png")
    family = mrope.family("qwen3-vl")
    plan = family.plan(page)
    print(f"{page.name}: {plan.original} -> {plan.resized}, {plan.tokens} tokens of {plan.factor} pixels a side")
    boxes, point, polygon = plan.decode_boxes([BOXES, POINT, POLYGON])
    for written, box in zip(BOXES, boxes, strict=True):
        print(f"box {written}: pixels {[round(side, 1) for side in box]}, {tokens_in(plan, box).sum()} tokens")
    print(f"point {POINT}: pixel {[round(side, 1) for side in point]}")
    print(f"polygon of {len(POLYGON)} corners: {tokens_in(plan, polygon).sum()} tokens")
    seen = region(plan, TOKEN)
    print(f"token {TOKEN} sees {seen.round(1).tolist()}")
    closer = crop(page, plan, BOXES[0], margin=0.1)
    again = family.plan(closer.pixels)
    print(f"cut out at {closer.corner}: {again.original} -> {again.resized}, {again.tokens} tokens of its own")
    print(f"its middle on the page: {closer.to_whole(again.decode_boxes([[500, 500]]))}")
    out.mkdir(parents=True, exist_ok=True)
    drawing = draw(
        page,
        plan,
        boxes=[*boxes, seen],
        points=point,
        polygons=polygon,
        labels=["title", "table", f"token {TOKEN}", "word", "paragraph"],
        tokens=tokens_in(plan, boxes[1], share=0.5) | tokens_in(plan, polygon, share=0.5),
    )
    drawing.save(out / "way_back.png")
    print("drawn: way_back.png")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--out", type=Path, default=Path("out"), help="folder for the drawing")
    main(parser.parse_args().out)
