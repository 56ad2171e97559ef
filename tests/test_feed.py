"""Augmentation moves labels along: as torchvision does, as by hand, and where the marked pixels of a picture go."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from torchvision import tv_tensors
from torchvision.transforms import v2

import mrope
from mrope.data import Augment, RandomCrop, RandomFlip, RandomPad, RandomScale, RandomTurn
from mrope.vision import transform_labels

HEIGHT, WIDTH = 60, 92
BOXES = [[10.0, 5.0, 40.0, 25.0], [50.0, 30.0, 91.0, 58.0], [0.0, 0.0, 92.0, 60.0]]


def picture() -> torch.Tensor:
    return torch.randint(256, (3, HEIGHT, WIDTH), dtype=torch.uint8)


def labels() -> list[dict[str, Any]]:
    return [{"box": box, "text": f"word {number}"} for number, box in enumerate(BOXES)]


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def torchvisions(pixels: torch.Tensor, change: Any, boxes: list[list[float]] = BOXES) -> tuple[torch.Tensor, Any]:
    """What torchvision makes of pixels and boxes."""
    shape: Any = tuple(pixels.shape[1:])
    tracked = tv_tensors.BoundingBoxes(boxes, format="XYXY", canvas_size=shape, clamping_mode=None)  # pyright: ignore[reportCallIssue]
    seen, moved = change(tv_tensors.Image(pixels), tracked)
    return torch.as_tensor(seen), torch.as_tensor(moved).tolist()


def of(made: Any) -> list[list[float]]:
    return [one["box"] for one in made.labels]


# ----------------------------------------------------------------------------------------------- torchvision as oracle


def test_a_flip_is_that_of_torchvision() -> None:
    pixels = picture()
    made = Augment([RandomFlip(chance=1)])(pixels, labels(), rng())
    wanted, boxes = torchvisions(pixels, v2.RandomHorizontalFlip(1.0))
    assert torch.equal(made.pixels, wanted)
    assert of(made) == boxes
    assert [one["text"] for one in made.labels] == ["word 0", "word 1", "word 2"]


@pytest.mark.parametrize("quarters", [0, 1, 2, 3])
def test_a_turn_is_that_of_torchvision(quarters: int) -> None:
    pixels = picture()
    made = Augment([RandomTurn(quarters=(quarters,))])(pixels, labels(), rng())
    wanted, boxes = torchvisions(pixels, v2.RandomRotation((-90 * quarters, -90 * quarters), expand=True))  # pyright: ignore[reportArgumentType]
    assert torch.equal(made.pixels, wanted)
    torch.testing.assert_close(torch.tensor(of(made)), torch.tensor(boxes), atol=1e-4, rtol=0)
    assert made.pixels.shape[1:] == ((HEIGHT, WIDTH) if quarters % 2 == 0 else (WIDTH, HEIGHT))


@pytest.mark.parametrize("factor", [0.5, 1.7])
def test_a_scale_is_that_of_torchvision(factor: float) -> None:
    pixels, size = picture(), [round(HEIGHT * factor), round(WIDTH * factor)]
    made = Augment([RandomScale(factor=(factor, factor))])(pixels, labels(), rng())
    wanted, boxes = torchvisions(pixels, v2.Resize(size, v2.InterpolationMode.BICUBIC, antialias=True))
    assert torch.equal(made.pixels, wanted)
    torch.testing.assert_close(torch.tensor(of(made)), torch.tensor(boxes), atol=1e-3, rtol=1e-5)


def test_a_pad_is_that_of_torchvision() -> None:
    pixels = picture()
    made = Augment([RandomPad(most=0.8, colour=(1, 2, 3))])(pixels, labels(), rng(3))
    left, top, right, bottom = of(made)[2]  # the box of the whole picture
    height, width = made.pixels.shape[1:]
    assert min(left, top, width - right, height - bottom) > 0
    edges = [int(edge) for edge in (left, top, width - right, height - bottom)]
    wanted, boxes = torchvisions(pixels, v2.Pad(edges, fill=[1, 2, 3]))
    assert torch.equal(made.pixels, wanted)
    assert of(made) == boxes


def test_a_crop_is_that_of_torchvision() -> None:
    for seed in range(8):
        pixels = picture()
        step = RandomCrop(area=(0.3, 0.9), ratio=1.5, visible=0)
        made = Augment([step])(pixels, labels(), rng(seed))
        height, width = made.pixels.shape[1:]
        flat = width / height / (WIDTH / HEIGHT)
        assert 1 / 1.55 < flat < 1.55
        assert 0.28 < height * width / (HEIGHT * WIDTH) < 0.92
        found = [
            (top, left)
            for top in range(HEIGHT - height + 1)
            for left in range(WIDTH - width + 1)
            if torch.equal(pixels[:, top : top + height, left : left + width], made.pixels)
        ]
        assert len(found) == 1
        (top, left) = found[0]
        cut = v2.Lambda(lambda one, top=top, left=left, size=(height, width): v2.functional.crop(one, top, left, *size))
        _, boxes = torchvisions(pixels, cut)
        clamped = np.clip(boxes, 0, [width, height] * 2).tolist()
        assert of(made) == [box for box in clamped if box[2] > box[0] and box[3] > box[1]]


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 10_000), st.integers(20, 70), st.integers(20, 70), st.data())
def test_boxes_go_where_their_pixels_go(seed: int, height: int, width: int, data: st.DataObject) -> None:
    """A box painted white on black is found again by its colour, through any row of exact steps."""
    left, top = data.draw(st.integers(0, width - 2)), data.draw(st.integers(0, height - 2))
    right, bottom = data.draw(st.integers(left + 1, width)), data.draw(st.integers(top + 1, height))
    pixels = np.zeros((height, width, 3), np.uint8)
    pixels[top:bottom, left:right] = 255
    steps = data.draw(
        st.permutations(
            [RandomCrop(area=(0.3, 1), visible=0), RandomFlip(), RandomTurn(), RandomPad(most=0.3, colour=(0, 0, 0))]
        )
    )
    made = Augment(steps)(pixels, [{"box": [left, top, right, bottom]}], rng(seed))
    rows, cols = made.pixels[0].nonzero().T if bool(made.pixels.any()) else (None, None)
    if rows is None or cols is None:
        assert made.labels == []
    else:
        found = [int(cols.min()), int(rows.min()), int(cols.max()) + 1, int(rows.max()) + 1]
        assert of(made) == [found]


# ------------------------------------------------------------------------------------------------------------- by hand


class Window:
    """A crop that is not drawn: what `RandomCrop` does at one place."""

    def __init__(self, top: int, left: int, height: int, width: int, visible: float = 0.5) -> None:
        self.corner, self.size, self.visible = (top, left), (height, width), visible

    def __call__(self, pixels: Any, objects: Any, generator: Any) -> Any:
        drawn: Any = Drawn([*self.size, *self.corner], _sides(pixels))
        return RandomCrop(area=(0.0001, 1), ratio=1000, visible=self.visible)(pixels, objects, drawn)


class Drawn(np.random.Generator):
    """A generator of the numbers that make `RandomCrop` take one window."""

    def __init__(self, window: list[int], size: tuple[int, int]) -> None:
        super().__init__(np.random.PCG64(0))
        (height, width), (rows, cols) = size, window[:2]
        flat = cols / rows * height / width
        self.numbers = [rows * cols / height / width, float(np.log(flat) / np.log(1000)), *window[2:]]

    def uniform(self, *bounds: Any) -> Any:
        return self.numbers.pop(0)

    def integers(self, *bounds: Any) -> Any:
        return self.numbers.pop(0)


def _sides(pixels: Any) -> tuple[int, int]:
    return pixels.shape[1], pixels.shape[2]


def cut(objects: Any, *, visible: float = 0.5, box_format: Any = "xyxy") -> Any:
    """`objects` behind a crop of rows 10 to 40 and columns 20 to 80."""
    made = Augment([Window(10, 20, 30, 60, visible)], box_format=box_format)(picture(), objects, rng())
    assert made.pixels.shape == (3, 30, 60)
    return made.labels


def test_a_box_of_which_too_little_is_inside_is_left_out_with_its_words() -> None:
    # Of the first a quarter is inside, of the second exactly the half, of the third nothing.
    objects = [
        {"box": [0, 0, 40, 20], "text": "a quarter"},
        {"box": [70, 20, 90, 30], "text": "the half"},
        {"box": [0, 50, 92, 60], "text": "nothing"},
        {"text": "no box"},
    ]
    assert cut(objects) == [{"box": [50.0, 10.0, 60.0, 20.0], "text": "the half"}, {"text": "no box"}]
    assert [one["text"] for one in cut(objects, visible=0.25)] == ["a quarter", "the half", "no box"]
    assert cut(objects, visible=0.25)[0]["box"] == [0.0, 0.0, 20.0, 10.0]
    assert [one["text"] for one in cut(objects, visible=0)] == ["a quarter", "the half", "no box"]


def test_a_box_that_only_touches_the_crop_is_left_out() -> None:
    assert cut([{"box": [0, 10, 20, 40]}, {"box": [30, 40, 50, 60]}], visible=0) == []


def test_columns_lose_the_same_entries() -> None:
    columns = {"bbox": np.array([[0, 0, 10, 5], [30, 12, 20, 8]]), "category": [3, 7], "id": torch.tensor([5, 6])}
    made = cut({**columns, "width": 92}, box_format="xywh")
    assert made == {"bbox": [[10.0, 2.0, 20.0, 8.0]], "category": [7], "id": [6], "width": 92}


def test_polygons_are_cut_at_the_border() -> None:
    # A triangle whose tip looks out of the crop at the left: the cut is at columns 20, half way down its sides.
    triangle = [[10, 20], [30, 10], [30, 30]]
    (made,) = cut([{"polygon": triangle}])
    assert made["polygon"] == [[0.0, 5.0], [10.0, 0.0], [10.0, 20.0], [0.0, 15.0]]
    assert cut([{"polygon": triangle}], visible=0.76) == []  # three quarters of its area are inside
    (made,) = cut([{"polygons": [triangle, [[0, 0], [5, 0], [5, 5]]]}])
    assert len(made["polygons"]) == 1


def test_points_outside_are_left_out() -> None:
    assert cut([{"point": [19, 20], "n": 0}, {"point": [25, 20], "n": 1}]) == [{"point": [5.0, 10.0], "n": 1}]
    assert cut([{"points": [[19, 20], [25, 20], [30, 39]]}]) == [{"points": [[5.0, 10.0], [10.0, 29.0]]}]
    assert cut([{"points": [[19, 20], [25, 20], [30, 41]]}]) == []  # a third


def test_a_box_says_whether_its_points_and_polygons_stay() -> None:
    objects = [
        {"box": [30, 20, 50, 40], "points": [[0, 0], [30, 20]], "point": [0, 0], "polygon": [[0, 0], [9, 0], [9, 9]]}
    ]
    assert cut(objects) == [{"box": [10.0, 10.0, 30.0, 30.0], "points": [[10.0, 10.0]], "point": None, "polygon": None}]


TURN = Augment([RandomTurn(quarters=(1,))], keys=["bbox_2d", "where", "box"])  # (x, y) goes to (60 - y, x)


def test_boxes_and_points_under_keys_of_ones_own_move_with_the_picture() -> None:
    objects = [
        {"bbox_2d": [10, 5, 40, 25], "where": [[3, 4], [50, 20]], "bbox": [1, 2, 3, 4], "label": "a cat"},
        {"bbox_2d": None, "where": np.array([9, 8]), "box": [0, 10, 20, 40]},
        {"bbox_2d": [], "label": "nothing"},
    ]
    made = TURN(picture(), objects, rng())
    assert made.labels == [
        {
            "bbox_2d": [35.0, 10.0, 55.0, 40.0],
            "where": [[56.0, 3.0], [40.0, 50.0]],
            "bbox": [1, 2, 3, 4],
            "label": "a cat",
        },
        {"bbox_2d": None, "where": [52.0, 9.0], "box": [20.0, 0.0, 50.0, 20.0]},
        {"bbox_2d": [], "label": "nothing"},
    ]
    assert objects[0]["bbox_2d"] == [10, 5, 40, 25]


def test_keys_of_ones_own_are_cut_and_are_columns_too() -> None:
    columns = {"bbox_2d": [[0, 0, 10, 5], [30, 12, 20, 8]], "category": [3, 7], "width": 92}
    augment = Augment([Window(10, 20, 30, 60)], keys=("bbox_2d",), box_format="xywh")
    made = augment(picture(), columns, rng())
    assert made.labels == {"bbox_2d": [[10.0, 2.0, 20.0, 8.0]], "category": [7], "width": 92}
    made = augment(picture(), [{"bbox_2d": [70, 10, 20, 10], "box": [1, 2, 3, 4]}], rng())
    assert made.labels == [{"bbox_2d": [50.0, 0.0, 10.0, 10.0], "box": [1, 2, 3, 4]}]


def test_labels_under_unknown_keys_are_refused_and_do_not_stay_where_they_were() -> None:
    told = "labels have none of the keys box, bbox, boxes, .*; name those of theirs in keys"
    for came in ([{"bbox_2d": [10, 5, 40, 25]}], {"bbox_2d": [[10, 5, 40, 25]]}, {"objects": {"bbox": BOXES}}, [{}]):
        with pytest.raises(ValueError, match=told):
            Augment([RandomFlip()])(picture(), came, rng())
    assert Augment([RandomFlip()])(picture(), [], rng()).labels == []
    assert Augment([RandomFlip()])(picture(), {"bbox": [], "text": []}, rng()).labels == {"bbox": [], "text": []}


@pytest.mark.parametrize("box", [[50, 20, 94, 30], [50, 20, 60, 62], [-2, 20, 60, 40], [5, -1, 60, 40]])
def test_boxes_beyond_the_picture_are_refused(box: list[float]) -> None:
    with pytest.raises(ValueError, match=r"box of object 1 is .*, and the picture is 60 x 92 .* a box inside"):
        Augment([RandomFlip()])(picture(), [{"box": BOXES[0]}, {"box": box}], rng())
    sides = [box[0], box[1], box[2] - box[0], box[3] - box[1]]
    with pytest.raises(ValueError, match=rf"bbox of object 0 is \[{sides[0]}.0, .*, and the picture is 60 x 92"):
        Augment([RandomFlip()], box_format="xywh")(picture(), {"bbox": [sides]}, rng())


def test_boxes_may_stand_out_by_what_rounding_adds() -> None:
    made = Augment([RandomFlip(chance=1)], box_format="xywh")(picture(), [{"box": [0.1, 0.2, 91.9, 59.8000001]}], rng())
    assert made.labels[0]["box"] == pytest.approx([0, 0.2, 91.9, 59.8000001])


# --------------------------------------------------------------------------------------------------- seeds and pictures


def test_the_same_seed_gives_the_same_picture_and_another_one_another() -> None:
    pixels = picture()
    augment = Augment([RandomCrop(), RandomFlip(), RandomTurn(), RandomScale(), RandomPad()])
    one, same, other = (augment(pixels, labels(), rng(seed)) for seed in (4, 4, 5))
    assert torch.equal(one.pixels, same.pixels)
    assert one.labels == same.labels
    assert one.pixels.shape != other.pixels.shape
    assert labels()[0]["box"] == [10.0, 5.0, 40.0, 25.0]


def test_every_turn_and_both_sides_of_a_flip_are_drawn() -> None:
    pixels = picture()
    augment = Augment([RandomTurn(), RandomFlip()])
    generator = rng()
    seen = {tuple(augment(pixels, labels()[:1], generator).labels[0]["box"]) for _ in range(80)}
    assert len(seen) == 8


def test_labels_stand_on_the_upright_picture(tmp_path: Any) -> None:
    stored = np.zeros((HEIGHT, WIDTH, 3), np.uint8)
    exif = Image.Exif()
    exif[0x0112] = 6  # a quarter clockwise
    Image.fromarray(stored).save(tmp_path / "turned.png", exif=exif)
    made = Augment([RandomFlip(chance=1)])(tmp_path / "turned.png", [{"box": [0, 0, 10, 92]}], rng())
    assert made.pixels.shape == (3, WIDTH, HEIGHT)
    assert of(made) == [[50.0, 0.0, 60.0, 92.0]]


def test_what_comes_out_is_planned_and_its_labels_are_transformed() -> None:
    family = mrope.family("qwen3-vl")
    made = Augment([RandomTurn(quarters=(1,)), RandomScale(factor=(4, 4))])(picture(), labels(), rng())
    plan = family.plan(made.pixels)
    assert plan.original == (4 * WIDTH, 4 * HEIGHT)
    written = transform_labels(made.labels, plan, digits=0)
    assert written[2]["box"] == [0, 0, 1000, 1000]
    assert written[0]["box"] == [583, 109, 917, 435]  # [35, 10, 55, 40] of 60 x 92


# ------------------------------------------------------------------------------------------------------------ refusals


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([{"box": [10, 5, 4, 25]}], "box of object 0 is .*; expected left <= right and top <= bottom, or box_format"),
        ([{"box": [1, 2, 3]}], r"box of object 0 is \[1.0, 2.0, 3.0\]; expected one of the boxes of four numbers"),
        ([{"box": [1, 2, float("nan"), 4]}], "finite"),
        ([{"polygon": [[1, 2], [3, 4]]}], "expected one of the polygons"),
        ([{"point": [[1, 2, 3]]}], "expected one of the points of left, top"),
        ({"bbox": BOXES, "text": ["one"]}, r"columns of the labels have \{'bbox': 3, 'text': 1\} entries"),
        ({"box": [1, 2, 3, 4]}, "box of object 0 is 1.0; expected"),
        ([{"where": [1, 2, 3]}], r"where of object 0 is \[1.0, 2.0, 3.0\]; expected boxes of four numbers or points"),
        ([{"where": [[[1, 2], [3, 4]]]}], "expected one of the points of left, top"),
    ],
)
def test_labels_that_are_none_are_refused(given: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Augment([RandomFlip()], keys=["box", "bbox", "polygon", "point", "where"])(picture(), given, rng())


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("a cat", "labels is 'a cat'; expected a list"),
        ([[1, 2, 3, 4]], "expected a list of one dict an object"),
        ([{"box": "1 2 3 4"}], "box of object 0 holds '1 2 3 4'"),
        ([{"box": [True, 2, 3, 4]}], "holds True"),
        ({"box": "1 2 3 4"}, "box of the labels is '1 2 3 4'; expected a list, one entry an object"),
    ],
)
def test_labels_of_other_kinds_are_refused(given: Any, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        Augment([RandomFlip()])(picture(), given, rng())


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: RandomCrop(area=(0, 1)), "area is 0; expected a finite number above 0"),
        (lambda: RandomCrop(area=(0.5, 1.5)), r"area is \(0.5, 1.5\); expected 0 < least <= greatest <= 1"),
        (lambda: RandomCrop(ratio=0.5), "ratio is 0.5; expected at least 1"),
        (lambda: RandomCrop(visible=2), "visible is 2; expected a share"),
        (lambda: RandomFlip(chance=-1), "chance is -1"),
        (lambda: RandomTurn(quarters=()), r"quarters is \(\); expected some of 0, 1, 2, 3"),
        (lambda: RandomTurn(quarters=(4,)), "expected some of 0, 1, 2, 3"),
        (lambda: RandomTurn(quarters=1), "quarters is 1; expected some of 0, 1, 2, 3|quarters"),  # pyright: ignore[reportArgumentType]
        (lambda: RandomTurn(quarters=(1.0,)), "quarters is 1.0; expected a whole number|quarters"),  # pyright: ignore[reportArgumentType]
        (lambda: RandomScale(factor=(2, 1)), r"factor is \(2, 1\); expected 0 < least <= greatest"),
        (lambda: RandomPad(most=-0.1), "most is -0.1"),
        (lambda: RandomPad(colour=(0, 0, 256)), "colour is"),
        (lambda: RandomPad(colour=255), "colour is 255; expected|colour"),  # pyright: ignore[reportArgumentType]
        (lambda: Augment(RandomFlip()), "steps is RandomFlip.*; expected a list of them|steps"),  # pyright: ignore[reportArgumentType]
        (lambda: Augment([RandomFlip()], keys="bbox"), "keys is 'bbox'; expected a list or tuple of names"),
        (lambda: Augment([RandomFlip()], box_format="coco"), "box_format"),  # pyright: ignore[reportArgumentType]
    ],
)
def test_settings_that_are_none_are_refused(make: Any, message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        make()
