"""Boxes, points and polygons find their way into each model's coordinates and back, and labels go with them."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from pictures import UPRIGHT, encoded, exif
from PIL import Image

from mrope import family, family_names
from mrope.vision import LabelTransform, Plan, clipped, rounded, transform_labels
from mrope.vision import plan as plan_of

CONVENTIONS = ("0-1000", "0-1", "processed-pixels")
SHAPES = np.array([[[10.0, 20.0, 300.5, 77.0], [0, 0, 640, 90]], [[-3, 40, 1e4, 41], [5, 5, 5, 5]]])


def plans() -> dict[str, Plan]:
    """A plan of each family, of a picture of its own ratio, and of one that the limits do not allow by each policy."""
    made = {}
    for name in family_names():
        made[name] = family(name).plan((481, 1203))
        if family(name).video_pixels is not None:
            made[f"{name} clip"] = family(name).plan_video((3, 131, 333))
        if family(name).resize in ("slices", "padded", "two-sided"):
            continue
        for conflict in ("pad", "tile", "family"):
            made[f"{name} {conflict}"] = plan_of(
                (70, 5600), family(name), min_tokens=4, max_tokens=60, conflict=conflict
            )
    return made


PLANS = plans()


def in_model(plan: Plan, number: int, convention: str, x: float, y: float) -> tuple[float, float]:
    """Where a point of the original lies, in the model's coordinates: one number after the other."""
    part = plan.parts[number]
    x = x / plan.original[1] * part.resized[1] - part.corner[1]
    y = y / plan.original[0] * part.resized[0] - part.corner[0]
    if convention == "processed-pixels":
        return x, y
    most = 1000 if convention == "0-1000" else 1
    return x / (part.grid[2] * plan.patch) * most, y / (part.grid[1] * plan.patch) * most


def test_the_plans_cover_what_they_should() -> None:
    assert {name.split()[0] for name in PLANS} == set(family_names())
    assert any(plan.parts[0].window != plan.canvas for plan in PLANS.values())  # padding
    assert len(PLANS["qwen2.5-vl tile"].parts) > 1 < len(PLANS["minicpm-v4.7"].parts)
    assert all(plan.original[0] != plan.original[1] for plan in PLANS.values())


@pytest.mark.parametrize("orientation", UPRIGHT)
@pytest.mark.parametrize("name", PLANS)
def test_there_and_back_for_every_family_policy_part_and_orientation(name: str, orientation: int) -> None:
    plan = replace(PLANS[name], orientation=orientation)
    upright = plan.from_stored(SHAPES)
    np.testing.assert_allclose(plan.to_stored(upright), SHAPES, atol=1e-9)
    for number in {0, (orientation - 1) % len(plan.parts)}:  # all orientations together see up to eight parts
        resized = plan.to_resized(upright, part=number)
        np.testing.assert_allclose(plan.to_original(resized, part=number), upright, atol=1e-9)
        for convention in CONVENTIONS:
            written = plan.encode_boxes(upright, part=number, convention=convention)
            back = plan.decode_boxes(written, part=number, convention=convention)
            np.testing.assert_allclose(plan.to_stored(back), SHAPES, atol=1e-8)
            shapes = [*map(tuple, upright[0].tolist()), upright[1].reshape(-1, 2)]  # boxes as tuples, and a polygon
            mixed = plan.encode_boxes(tuple(shapes), part=number, convention=convention)
            assert isinstance(mixed, list)
            assert isinstance(mixed[0], list)
            np.testing.assert_array_equal(mixed[:2], written[0])
            np.testing.assert_array_equal(mixed[2].reshape(-1, 4), written[1])
            for box, mapped in zip(upright.reshape(-1, 4), written.reshape(-1, 4), strict=True):
                expected = [
                    *in_model(plan, number, convention, *box[:2]),
                    *in_model(plan, number, convention, *box[2:]),
                ]
                np.testing.assert_allclose(mapped, expected, rtol=1e-9, atol=1e-8)


@pytest.mark.parametrize("orientation", UPRIGHT)
def test_points_and_polygons_there_and_back(orientation: int) -> None:
    shapes = [(10.0, 20.0), [(0.0, 90.0), (640.0, 3.0), (-7.0, 5.5)], [[1.0, 2.0], [3.0, 5.0], [8.0, 13.0], [2.0, 9.0]]]
    for upright in PLANS.values():
        plan = replace(upright, orientation=orientation)
        part = (orientation - 1) % len(plan.parts)
        convention = CONVENTIONS[orientation % 3]
        written = plan.encode_boxes(plan.from_stored(shapes), part=part, convention=convention)
        back = plan.to_stored(plan.decode_boxes(written, part=part, convention=convention))
        for one, came in zip(shapes, back, strict=True):
            np.testing.assert_allclose(came, one, atol=1e-8)


@hypothesis_settings(deadline=None, max_examples=60)
@given(
    name=st.sampled_from(sorted(family_names())),
    size=st.tuples(st.integers(40, 3000), st.integers(40, 3000)),
    orientation=st.sampled_from(sorted(UPRIGHT)),
    box=st.tuples(*[st.floats(-1e4, 1e4)] * 4),
    data=st.data(),
)
def test_there_and_back_at_any_size(name: str, size: Any, orientation: int, box: Any, data: Any) -> None:
    conflict = "error" if family(name).resize in ("slices", "padded", "two-sided") else "tile"
    if family(name).resize == "two-sided" and max(size) > 3 * min(size):
        size = (size[0], size[0] + 40)
    plan = replace(plan_of(size, family(name), conflict=conflict), orientation=orientation)
    number, convention = data.draw(st.integers(0, len(plan.parts) - 1)), data.draw(st.sampled_from(CONVENTIONS))
    boxes = np.array([box])
    written = plan.encode_boxes(plan.from_stored(boxes), part=number, convention=convention)
    back = plan.to_stored(plan.decode_boxes(written, part=number, convention=convention))
    np.testing.assert_allclose(back, boxes, atol=1e-6)


def test_through_whole_thousandths_a_corner_moves_by_half_of_one_at_most() -> None:
    plan = family("qwen3-vl").plan((600, 1100))
    boxes = np.random.default_rng(0).uniform(0, 1, (500, 4)) * [1100, 600, 1100, 600]
    written = rounded(plan.encode_boxes(boxes))
    assert written.dtype == np.int64
    moved = np.abs(plan.decode_boxes(written) - boxes)
    assert (moved <= np.array([1100, 600, 1100, 600]) / 2000 + 1e-9).all()
    assert (moved.max(axis=0) > np.array([1100, 600, 1100, 600]) / 2100).all()


def test_worked_values() -> None:
    # 640 wide x 480 high becomes 644 x 476; thousandths do not care; padding does.
    assert family("qwen2.5-vl").plan((480, 640)).encode_boxes([64, 48, 320, 120]) == pytest.approx(
        [64.4, 47.6, 322, 119]
    )
    assert family("qwen3-vl").plan((600, 800)).encode_boxes([100, 100, 200, 200]) == pytest.approx(
        [125, 500 / 3, 250, 1000 / 3]
    )
    neo = family("neomme").plan((40, 100))  # on a canvas of 64 x 128
    assert neo.encode_boxes([[50, 20]], convention="0-1000") == [[50 / 128 * 1000, 20 / 64 * 1000]]
    assert neo.encode_boxes([[50, 20]], convention="0-1") == [[50 / 128, 20 / 64]]


def test_a_tile_has_coordinates_of_its_own() -> None:
    plan = plan_of((9, 4096), family("qwen2.5-vl"), max_tokens=74, conflict="tile")
    first, second = plan.parts[:2]
    scale = first.resized[1] / 4096
    (x, _), *_ = plan.encode_boxes([[first.window[1] / scale + 10, 3.0]], part=1)
    assert second.corner == (0, first.window[1])
    assert x == pytest.approx(10 * scale)
    with pytest.raises(ValueError, match=rf"cut into {len(plan.parts)} tiles .* expected a part, 0\.\."):
        plan.encode_boxes([[10, 3]])
    with pytest.raises(ValueError, match=f"part is 99; the picture has {len(plan.parts)}"):
        plan.decode_boxes([[10, 3]], part=99)


@pytest.mark.parametrize("orientation", UPRIGHT)
def test_points_turn_as_the_corners_of_boxes_do(orientation: int) -> None:
    plan = replace(family("qwen2-vl").plan((480, 640)), orientation=orientation)
    left, top, right, bottom = plan.from_stored(np.array([5.0, 7.0, 11.0, 30.0]))
    corners = plan.from_stored(np.array([[5.0, 7.0], [11.0, 30.0]]))
    assert sorted(corners[:, 0]) == [left, right]
    assert sorted(corners[:, 1]) == [top, bottom]
    np.testing.assert_array_equal(plan.to_stored(corners), [[5, 7], [11, 30]])


def test_kinds_of_shapes() -> None:
    plan = family("qwen3-vl").plan((600, 800))
    ragged = [np.array([[0, 0], [80, 0], [80, 60]]), np.array([[8.0, 6.0]])]
    for one, mapped in zip(ragged, plan.encode_boxes(ragged), strict=True):
        np.testing.assert_allclose(mapped, one / [0.8, 0.6])
    assert plan.encode_boxes([[[0, 0], [80, 0], [80, 60]], [[8, 6]]]) == [[[0, 0], [100, 0], [100, 100]], [[10, 10]]]
    assert plan.encode_boxes([]) == []
    assert plan.encode_boxes(np.zeros((0, 4), np.int32)).shape == (0, 4)
    whole = plan.encode_boxes(torch.tensor([[80, 60, 160, 120]]))
    assert (whole.dtype, whole.tolist()) == (torch.float64, [[100, 100, 200, 200]])
    boxes = torch.tensor([[80.0, 60.0, 160.0, 120.0]], requires_grad=True)
    plan.encode_boxes(boxes).sum().backward()
    assert boxes.grad is not None
    torch.testing.assert_close(boxes.grad, torch.tensor([[1 / 0.8, 1 / 0.6, 1 / 0.8, 1 / 0.6]]))
    turned = replace(plan, orientation=6, original=(800, 600), parts=family("qwen3-vl").plan((800, 600)).parts)
    points = torch.rand(5, 4, 2, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda points: turned.encode_boxes(turned.from_stored(points)), points)


def test_what_a_model_wrote_wrongly_is_passed_on() -> None:
    plan = family("qwen3-vl").plan((600, 800))
    assert plan.decode_boxes([500, 400, 100, 1200]) == [400, 240, 80, 720]  # corners in the wrong order, too far down
    assert np.isnan(plan.decode_boxes(np.array([np.nan, 0, 1, 1]))[0])


def test_inputs_stay() -> None:
    boxes = SHAPES.copy()
    replace(family("qwen2.5-vl").plan((480, 640)), orientation=3).from_stored(boxes)
    rounded(boxes)
    clipped(boxes, (3, 4))
    np.testing.assert_array_equal(boxes, SHAPES)


def test_clipped_and_rounded() -> None:
    np.testing.assert_array_equal(clipped(np.array([[-5, 10.5, 70, 90]]), (80, 60)), [[0, 10.5, 60, 80]])
    assert rounded([0.12345, 0.5], digits=3) == [0.123, 0.5]
    assert json.dumps(rounded([1.6, 2.2, 3.0, 4.0])) == "[2, 2, 3, 4]"
    with pytest.raises(ValueError, match="holds NaN or infinity"):
        rounded(np.array([np.nan, 1]))


@pytest.mark.parametrize("shape", [(6,), (2, 3), ()], ids=str)
def test_other_shapes_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"expected \(\.\.\., 4\) of left, top, right, bottom, or"):
        family("qwen2-vl").plan((480, 640)).to_resized(np.zeros(shape))


@pytest.mark.parametrize(
    ("wrong", "came"),
    [
        (["a", "b"], "'a'"),
        ([["a", 1, 2, 3]], r"\['a', 1, 2, 3\]"),
        ([[1, 2, 3, 4], None], "None"),
        ([1, 2, 3, None], r"\[1, 2, 3, None\]"),
        (({"box": 1},), r"\{'box': 1\}"),
        ("1234", "'1234'"),
        (np.array([1, None]), "an array of object"),
        (np.array([["a", "b"]]), "an array of <U1"),
    ],
    ids=str,
)
def test_what_is_no_number_is_named(wrong: Any, came: str) -> None:
    plan = family("qwen2-vl").plan((480, 640))
    for use in (plan.encode_boxes, plan.decode_boxes, plan.from_stored, rounded, lambda boxes: clipped(boxes, (3, 4))):
        with pytest.raises(
            TypeError, match=f"a box or point is {came}; expected an array or tensor of numbers, or a list"
        ):
            use(wrong)


def test_tuples_give_lists() -> None:
    plan = family("qwen3-vl").plan((600, 800))
    assert plan.encode_boxes((80, 60, 160, 120)) == [100, 100, 200, 200]
    assert plan.decode_boxes(((100, 200), [300, np.float32(400)])) == [[80, 120], [240, 240]]
    assert replace(plan, orientation=6).to_stored(((1, 2),)) == [[2, 799]]
    assert rounded((1.6, 2.2)) == [2, 2]
    assert clipped(((-5, 90),), (80, 60)) == [[0, 80]]
    assert plan.encode_boxes(()) == []


def test_a_convention_that_the_family_does_not_tell() -> None:
    plan = family("paddleocr-vl").plan((480, 640))
    with pytest.raises(ValueError, match=r"'unknown'.*give convention"):
        plan.encode_boxes([[1, 2]])
    assert plan.encode_boxes([[320, 240]], convention="0-1000") == [[500, 500]]


def test_labels_follow_the_plan() -> None:
    record = {"boxes": [[80, 60, 160, 120]], "polygons": [[[0, 0], [80, 60]], [[8, 6]]], "text": "cat", "points": None}
    before = json.dumps(record)
    plan = family("qwen3-vl").plan((600, 800))
    assert transform_labels(record, plan, digits=0) == {
        "boxes": [[100, 100, 200, 200]],
        "polygons": [[[0, 0], [100, 100]], [[10, 10]]],
        "text": "cat",
        "points": None,
    }
    assert json.dumps(record) == before
    many = transform_labels([{"bbox": [80, 60, 160, 120]}, {"bbox": [0, 0, 8, 6], "id": 3}], plan)
    assert many == [{"bbox": [100, 100, 200, 200]}, {"bbox": [0, 0, 10, 10], "id": 3}]
    assert transform_labels([], plan) == []
    assert transform_labels({"where": [8, 6]}, plan, keys=("where",)) == {"where": [10, 10]}
    with pytest.raises(ValueError, match="none of the keys box, boxes"):
        transform_labels({"Boxes": [[1, 2, 3, 4]]}, plan)


def test_labels_on_stored_pixels_turn_with_the_picture() -> None:
    photo = encoded(Image.new("RGB", (24, 16)), "JPEG", exif=exif(6))
    transform = LabelTransform(family=family("qwen3-vl"), frame="stored", objects="objects")
    got = transform({"image": photo, "objects": [{"box": [1, 2, 3, 4]}, {"point": [0, 16]}]})
    # Upright it is 16 wide, 24 high; the stored top left corner is at the top right.
    assert got["objects"] == [{"box": [750, 1000 / 24, 875, 125]}, {"point": [0, 0]}]
    assert got["image"] is photo


def test_a_label_transform_plans_with_its_own_limits() -> None:
    family_, record = family("qwen2.5-vl"), {"image": [1000, 2000], "boxes": [[200, 100, 2000, 1000]]}
    plan = family_.plan((1000, 2000), max_tokens=100)
    transform = LabelTransform(family=family_, max_tokens=100)
    height, width = plan.resized
    expected = [[width / 10, height / 10, width, height]]
    assert transform(record)["boxes"] == [pytest.approx(expected[0])]
    assert [one["boxes"] for one in transform([record, record])] == [transform(record)["boxes"]] * 2
    with pytest.raises(ValueError, match="the record has no 'image', only 'boxes'"):
        transform({"boxes": []})


@pytest.mark.parametrize("kind", [list, tuple, np.array, torch.tensor])
def test_boxes_of_coco_come_out_as_corners(kind: Any) -> None:
    plan = family("qwen3-vl").plan((600, 800))
    record = {"bbox": kind([80.0, 60.0, 80.0, 240.0]), "point": kind([8.0, 60.0]), "iscrowd": 0}
    got = transform_labels(record, plan, box_format="xywh")
    assert isinstance(got["bbox"], type(record["bbox"]) if kind not in (list, tuple) else list)
    assert list(got["bbox"]) == [100, 100, 200, 500]
    assert list(got["point"]) == [10, 100]
    assert transform_labels({"where": [[80, 60, 0, 0]]}, plan, keys=["where"], box_format="xywh") == {
        "where": [[100, 100, 100, 100]]
    }
    photo = encoded(Image.new("RGB", (24, 16)), "JPEG", exif=exif(6))
    stored = LabelTransform(family=family("qwen3-vl"), frame="stored", box_format="xywh")
    corners = LabelTransform(family=family("qwen3-vl"), frame="stored")
    assert (
        stored({"image": photo, "bbox": [1, 2, 2, 9]})["bbox"]
        == corners({"image": photo, "bbox": [1, 2, 3, 11]})["bbox"]
    )


@pytest.mark.parametrize("box", [[300, 60, 100, 400], [80, 300, 100, 200]], ids=["right of left", "top of bottom"])
def test_boxes_of_coco_are_not_taken_for_corners(box: list[int]) -> None:
    plan = family("qwen3-vl").plan((600, 800))
    for value in (box, [[1, 2, 3, 4], box], np.array([[box]]), torch.tensor(box)):
        with pytest.raises(
            ValueError, match=r"bbox: \[.*\] came; expected \[left, top, right, bottom\] .*box_format='xywh'"
        ):
            transform_labels({"bbox": value}, plan)
    with pytest.raises(ValueError, match="with no side below 0"):
        transform_labels({"bbox": [100, 60, -50, 8]}, plan, box_format="xywh")


def test_a_key_says_whether_it_holds_boxes_or_points() -> None:
    plan = family("qwen3-vl").plan((600, 800))
    wrong: Any
    for wrong in ({"point": [1, 2, 3, 4]}, {"polygons": [[[1, 2], [3, 4], [5, 6]], [1, 2, 3, 4]]}):
        with pytest.raises(ValueError, match=r"shape \(4,\) came; expected points \(..., 2\)"):
            transform_labels(wrong, plan)
    for wrong in ({"bbox": [1, 2]}, {"boxes": [[1, 2, 3, 4], [1, 2]]}):
        with pytest.raises(ValueError, match=r"shape \(2,\) came; expected boxes \(..., 4\)"):
            transform_labels(wrong, plan)
    either = transform_labels({"where": [[80, 60, 160, 120], [8, 6]]}, plan, keys=("where",))
    assert either == {"where": [[100, 100, 200, 200], [10, 10]]}


def test_wrong_arguments_of_labels_are_named() -> None:
    plan, record = family("qwen3-vl").plan((600, 800)), {"bbox": [1, 2, 3, 4]}
    call: Any = transform_labels
    for arguments, options, message in (
        ((record, None), {}, "plan is a NoneType; expected the Plan of the one picture"),
        ((record, [plan]), {}, "plan is a list; expected the Plan of the one picture"),
        ((record, plan), {"keys": "bbox"}, r"keys is 'bbox'; expected a list or tuple of names, such as \['bbox'\]"),
        ((None, plan), {}, "a NoneType; expected a dict or a list of dicts"),
        (([record, [record]], plan), {}, "a list; expected a dict or a list of dicts"),
        (({"bbox": [["1", 2, 3, 4]]}, plan), {}, r"a box or point is \['1', 2, 3, 4\]"),
    ):
        with pytest.raises(TypeError, match=message):
            call(*arguments, **options)
    with pytest.raises(TypeError, match="keys is 'bbox'"):
        LabelTransform(family=family("qwen3-vl"), keys="bbox")({"image": (600, 800), **record})
    assert transform_labels((record, record), plan) == transform_labels([record, record], plan)
    assert transform_labels({"points": ((8, 6), (80, 60))}, plan) == {"points": [[10, 10], [100, 100]]}


def test_a_batch_of_columns_is_transformed_row_by_row() -> None:
    # As `datasets` hands it to `map(batched=True)` and `with_transform`: a dict of lists.
    photos = [encoded(Image.new("RGB", size), "JPEG", exif=exif(6)) for size in ((24, 16), (40, 30))]
    transform = LabelTransform(family=family("qwen3-vl"), frame="stored")
    rows: list[dict[str, Any]] = [
        {"image": photos[0], "boxes": [[1, 2, 3, 4], [0, 0, 24, 16]], "points": None, "text": "one"},
        {"image": photos[1], "boxes": [], "points": [(0, 30)], "text": "two"},
    ]
    batch = {key: [row[key] for row in rows] for key in rows[0]}
    got = transform(batch)
    assert got == {key: [transform(row)[key] for row in rows] for key in rows[0]}
    assert got["boxes"] == [[[750, 1000 / 24, 875, 125], [0, 0, 1000, 1000]], []]
    assert got["points"] == [None, [[0, 0]]]
    objects = LabelTransform(family=family("qwen3-vl"), frame="stored", objects="objects", box_format="xywh")
    held = objects({"image": photos, "objects": [{"bbox": [[1, 2, 2, 2]], "id": [7]}, [{"bbox": [0, 0, 40, 30]}]]})
    assert held["objects"] == [{"bbox": [[750, 1000 / 24, 875, 125]], "id": [7]}, [{"bbox": [0, 0, 1000, 1000]}]]
    assert transform({"image": [], "boxes": []}) == {"image": [], "boxes": []}


def test_a_list_of_two_numbers_is_a_size_and_no_batch() -> None:
    transform = LabelTransform(family=family("qwen3-vl"))
    assert transform({"image": [600, 800], "points": [[80, 60], [8, 6]]})["points"] == [[100, 100], [10, 10]]
    batch = {"image": [[600, 800], (300, 800)], "points": [[[80, 60]], [[8, 6]]]}
    assert transform(batch)["points"] == [[[100, 100]], [[10, 20]]]


def test_columns_that_do_not_fit_a_batch_are_refused() -> None:
    transform = LabelTransform(family=family("qwen3-vl"))
    for column, came in (([[[8, 6]]], "list of 1"), (None, "NoneType"), ("ab", "str")):
        with pytest.raises(ValueError, match=f"points is a {came}; expected a list of 2, one entry for each picture"):
            transform({"image": [(600, 800), (300, 800)], "points": column})
    with pytest.raises(ValueError, match="none of the keys"):
        transform({"image": [(600, 800)], "text": ["a"]})


def test_shares_have_digits() -> None:
    planned = plan_of((600, 800), family("qwen3-vl"))
    with pytest.raises(ValueError, match=r"digits is 0, and this model writes shares of 0\.\.1; expected 3 or more"):
        transform_labels({"bbox": [1, 2, 3, 4]}, planned, convention="0-1", digits=0)
    found = transform_labels({"bbox": [80, 60, 160, 300]}, planned, convention="0-1", digits=3)
    assert found == {"bbox": [0.1, 0.1, 0.2, 0.5]}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"keys": "bbox"}, "keys"),
        ({"digits": -1}, "digits is -1"),
        ({"min_tokens": 10, "max_tokens": 5}, "min_tokens is 10, above max_tokens 5"),
        ({"conflict": "tile"}, "conflict"),
        ({"conflict": "skip"}, "conflict"),
        ({"convention": "pixels"}, "convention"),
        ({"family": "qwen2-vl"}, "family"),
    ],
)
def test_wrong_settings_of_a_label_transform_are_refused_when_it_is_made(settings: Any, message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        LabelTransform(**{"family": family("qwen2-vl"), **settings})


@pytest.mark.parametrize("kind", [np.array, torch.tensor], ids=["array", "tensor"])
def test_sizes_come_as_arrays_too(kind: Any) -> None:
    transform = LabelTransform(family=family("qwen2.5-vl"), picture="size", digits=0)
    assert transform({"size": kind([480, 640]), "points": [[320, 240]]})["points"] == [[322, 238]]
    batch = {"size": kind([[480, 640], [960, 640]]), "points": [[[320, 240]], [[320, 240]]]}
    assert transform(batch)["points"] == [[[322, 238]], [[322, 238]]]


def test_flat_polygons_are_refused_by_their_key() -> None:
    planned = plan_of((600, 800), family("qwen3-vl"))
    for key in ("polygon", "segmentation"):
        with pytest.raises(ValueError, match=rf"{key}: boxes or points have shape \(6,\); .* a row for each corner"):
            transform_labels({key: [1, 2, 30, 4, 5, 60]}, planned, keys=(key,))
    with pytest.raises(TypeError, match="size"):
        clipped([[1, 2]], 1000)  # pyright: ignore[reportArgumentType]
