"""The drawing of the position space: each token in the cell that its position names."""

from __future__ import annotations

import re
import subprocess
import sys
from xml.etree import ElementTree

import pytest
from sources import ROOT

import mrope
from mrope.probes import Panel, position_space
from mrope.probes.space import CELL

SVG = "{http://www.w3.org/2000/svg}"


def cards(panel: Panel, kind: str) -> list[tuple[int, int]]:
    """The (down, across) cells of all cards of one kind, in drawing order."""
    (plane,) = ElementTree.fromstring(position_space([panel])).findall(f"{SVG}g/{SVG}g[1]/{SVG}g")
    found = [each for each in plane.findall(f"{SVG}rect") if each.get("class") == kind]
    return [(int(float(each.get("y", "")) // CELL), int(float(each.get("x", "")) // CELL)) for each in found]


def test_a_picture_is_a_block_and_text_is_the_diagonal():
    panel = Panel(mrope.family("qwen2-vl"), ("text:2", "image:1x4x6", "text:1"), "a prompt")
    assert cards(panel, "text") == [(0, 0), (1, 1), (5, 5)]
    assert cards(panel, "vision") == [(row, col) for row in (2, 3) for col in (2, 3, 4)]
    assert cards(panel, "next") == [(6, 6)]
    assert cards(panel, "hull") == [(2, 2)]


def test_a_clip_from_the_side_stacks_its_columns():
    panel = Panel(mrope.family("qwen2.5-vl"), ("text:1", "video:2x2x6@1.0", "text:1"), "a clip", across="t")
    assert set(cards(panel, "vision")) == {(1, 1), (1, 3)} | {(0, 1), (0, 3)}, "cards behind peep out one cell up"
    assert len(cards(panel, "vision")) == 2 * 3
    assert cards(panel, "text") == [(0, 0), (4, 4)]


def test_every_position_is_written_in_its_cell():
    family = mrope.family("qwen2-vl")
    drawing = position_space([Panel(family, ("image:1x4x6",), "a picture")])
    written = re.findall(
        r'<tspan class="t">(\d)</tspan><tspan dx="5" class="h">(\d)</tspan><tspan dx="5" class="w">(\d)', drawing
    )
    expected = [*map(tuple, family.positions(["image:1x4x6"]).ids.T.tolist()), (3, 3, 3)]
    assert [tuple(map(int, each)) for each in written] == expected


@pytest.mark.parametrize("axes", [("h", "h"), ("x", "w")])
def test_axes_that_are_no_plane_are_refused(axes):
    with pytest.raises(ValueError, match="two of t, h and w"):
        Panel(mrope.family("qwen2-vl"), ("text:1",), "a prompt", *axes)


def test_the_example_prints_and_draws_what_is_kept_beside_it(tmp_path):
    example = ROOT / "examples" / "position_space.py"
    run = subprocess.run(
        [sys.executable, str(example), str(tmp_path / "position_space.svg")],
        capture_output=True, text=True, check=True, env={"PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert "17 tokens, the next one is at 9: offset -8" in run.stdout
    assert "t 0 1 2 2 2 2 2 2 4 4 4 4 4 4 6 6 6 6 6 6 7 8" in run.stdout
    drawing = (tmp_path / "position_space.svg").read_text()
    assert drawing == example.with_suffix(".svg").read_text()
    ElementTree.fromstring(drawing)
