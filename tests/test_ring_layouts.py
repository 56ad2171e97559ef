"""Circle, ring and anchored layouts and merged tokens: values worked by hand, masks, layers, turns and refusals.

What these layouts share with all others is tested in `test_layouts`, on the cases of `cases_rings`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from cases_rings import CASES, rings
from hypothesis import given, settings
from hypothesis import strategies as st
from layout_cases import Case, images
from torch import Tensor

import mrope
from mrope import AxisSplit, Frequencies, GridLayout, Image, Positions, Rotary, Sliced, Span, Target, Text, Video
from mrope.layouts.anchored import AnchoredLayout
from mrope.layouts.circle import CircleLayout
from mrope.layouts.members import merge_clusters
from mrope.layouts.rings import PypeLayout, RingLayout

quick = settings(max_examples=60, deadline=None)


def held(tensor: Tensor | None) -> Tensor:
    """What positions must have here."""
    assert tensor is not None
    return tensor


def image(rows: int, cols: int) -> Image:
    """An image of so many tokens."""
    return Image((1, 2 * rows, 2 * cols))


# ------------------------------------------------------------------------------------------------------------- rings


@pytest.mark.evidence("worked", "RingLayout")
@pytest.mark.parametrize(
    ("kind", "rows", "cols", "wanted", "following"),
    [
        ("chebyshev", 4, 4, "3333 3443 3443 3333", 5),
        ("chebyshev", 3, 5, "33333 34443 33333", 5),
        ("chebyshev", 5, 3, "333 343 343 343 333", 5),
        ("chebyshev", 5, 6, "333333 344443 345543 344443 333333", 6),
        ("chebyshev", 1, 4, "3333", 4),
        ("manhattan", 4, 4, "3443 4554 4554 3443", 6),
        ("manhattan", 3, 5, "34543 45654 34543", 7),
        ("manhattan", 5, 3, "343 454 565 454 343", 7),
        ("manhattan", 1, 4, "3443", 5),
        ("manhattan", 1, 1, "3", 4),
    ],
)
def test_rings_by_hand(kind: Any, rows: int, cols: int, wanted: str, following: int) -> None:
    positions = RingLayout(kind=kind)([Text(3), image(rows, cols), Text(2)])
    ids = [0, 1, 2, *map(int, wanted.replace(" ", "")), following, following + 1]
    assert positions.ids.tolist() == [ids] * 3
    assert positions.next == following + 2


@pytest.mark.evidence("worked", "RingLayout")
def test_the_papers_picture_takes_as_many_positions_as_the_released_codes_say() -> None:
    for kind, growth in (("chebyshev", 12), ("manhattan", 23)):
        assert RingLayout(kind=kind)([Text(3), image(24, 24)]).next == 3 + growth  # pyright: ignore[reportArgumentType]
    for kind, distinct in (("chebyshev", 4), ("manhattan", 9)):
        ids = RingLayout(kind=kind)([image(8, 12)]).ids  # pyright: ignore[reportArgumentType]
        assert (ids.shape[1], len(ids[0].unique())) == (96, distinct)


def test_rings_number_the_pictures_of_a_row_over_turns() -> None:
    layout = RingLayout()
    first = layout([Text(1), image(1, 2), image(1, 1), Text(1)])
    second = layout([Text(1), image(2, 1)], first)
    assert held(first.pictures).tolist() == [-1, 0, 0, 1, -1]
    assert held(second.pictures).tolist() == [-1, 2, 2]
    assert held(layout([]).pictures).tolist() == []
    assert held(layout([Text(2)]).decode(2).pictures).tolist() == [-1, -1]


def slow_mask(positions: Positions) -> list[list[bool]]:
    """Who sees whom, from the definition: inside a picture by ids, else by slots; padding sees itself."""
    ids, slots = positions.ids[0].tolist(), positions.text.tolist()
    pictures, documents = held(positions.pictures).tolist(), positions.segments.tolist()
    mask = []
    for q in range(len(ids)):
        row = []
        for k in range(len(ids)):
            if documents[q] == -1 or documents[k] == -1:
                row.append(q == k)
            elif documents[q] != documents[k]:
                row.append(False)
            elif pictures[q] == pictures[k] != -1:
                row.append(ids[k] <= ids[q])
            else:
                row.append(slots[k] <= slots[q])
        mask.append(row)
    return mask


@pytest.mark.evidence("oracle")
@pytest.mark.parametrize("layout", [RingLayout(), RingLayout(kind="manhattan"), PypeLayout(layers=4, jump=1)])
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_the_mask_is_the_definition(layout: RingLayout | PypeLayout, data: st.DataObject) -> None:
    case = Case(layout, images(2), rings(), max_media=3)
    rows = [layout(data.draw(case.prompts())).pad(multiple=2, side="left") for _ in range(2)]
    packed = mrope.pack(rows)
    for number in range(len(packed.layers) or 1):
        of_layer = packed.layer(number)
        assert of_layer.mask().tolist() == slow_mask(of_layer)


@pytest.mark.evidence("worked", "RingLayout")
def test_the_mask_of_a_square_picture_by_hand() -> None:
    mask = RingLayout()([Text(1), image(3, 3), Text(1)]).mask()
    border, centre = [1, 2, 3, 4, 6, 7, 8, 9], 5
    for cell in border:
        assert mask[cell].nonzero()[:, 0].tolist() == [0, *border]
    assert mask[centre].nonzero()[:, 0].tolist() == list(range(10))
    assert mask[0].sum() == 1
    assert mask[10].all()


@pytest.mark.evidence("shapes", "RingLayout")
@quick
@given(data=st.data())
def test_a_later_turn_sees_what_it_saw_in_the_whole(data: st.DataObject) -> None:
    case = CASES["rings"]
    spans = data.draw(case.prompts())
    cut = data.draw(st.integers(0, len(spans)))
    whole, first = case.layout(spans), case.layout(spans[:cut])
    assert torch.equal(case.layout(spans[cut:], first).mask(whole), whole.mask()[first.length :])


# ----------------------------------------------------------------------------------------------- rings, by layer


@pytest.mark.evidence("worked", "PypeLayout")
def test_pype_by_hand() -> None:
    spans = [Text(3), image(5, 6), image(3, 3), Text(2)]
    positions = PypeLayout(layers=7, jump=2)(spans)
    assert positions.layers == (0, 0, 1, 1, 2, 2, 3)
    wanted = {
        0: "012 333333344443345543344443333333 666676666 89",
        1: "012 333333344443344443344443333333 555555555 67",
        2: "012 333333333333333333333333333333 444444444 56",
        3: "012 333333333333333333333333333333 444444444 56",
    }
    for layer, variant in enumerate(positions.layers):
        of_layer = positions.layer(layer)
        ids = [int(digit) for digit in wanted[variant].replace(" ", "")]
        assert of_layer.ids.tolist() == [ids] * 3
        assert of_layer.next == ids[-1] + 1
        assert of_layer.offset == of_layer.next - 44
        # what is decoded after it, and the next turn
        assert positions.decode(3, 1).layer(layer).ids[0].tolist() == [ids[-1] + 2, ids[-1] + 3, ids[-1] + 4]
        later = PypeLayout(layers=7, jump=2)([Text(1), image(3, 3)], positions).layer(layer)
        assert later.ids[0, :2].tolist() == [ids[-1] + 1, ids[-1] + 2]
        assert later.text.tolist() == list(range(44, 54))
        assert held(later.pictures).tolist() == [-1] + [2] * 9
    with pytest.raises(ValueError, match="layer is 7"):
        positions.layer(7)


@pytest.mark.evidence("worked", "PypeLayout")
def test_pype_as_released() -> None:
    # 24 x 24 tokens, 32 layers: k = min(l // J + 1, 12), P = 13 - k, ids up to P - 1, text goes on at s + P.
    for jump in (1, 2, 3):
        positions = PypeLayout(layers=32, jump=jump)([Text(5), image(24, 24), Text(1)])
        assert len(positions.variants) == (31 // jump) + 1
        for layer in range(32):
            p = 13 - min(layer // jump + 1, 12)
            ids = positions.layer(layer).ids[0]
            assert ids[5:-1].unique().tolist() == list(range(5, 5 + p))
            assert ids[-1] == 5 + p
        assert torch.equal(positions.layer(0).ids, RingLayout()([Text(5), image(24, 24), Text(1)]).ids)


@pytest.mark.evidence("oracle", "PypeLayout")
@quick
@given(data=st.data(), layer=st.integers(0, 6), start=st.integers(0, 50))
def test_each_layer_of_pype_is_the_oracles(data: st.DataObject, layer: int, start: int) -> None:
    case = Case(PypeLayout(layers=7, jump=2), images(2, side=7), rings(level=layer // 2 + 1))
    spans = data.draw(case.prompts())
    ids, following = case.oracle(spans, start)
    of_layer = case.layout(spans, start).layer(layer)
    assert of_layer.ids.T.tolist() == [list(token) for token in ids]
    assert of_layer.next == following


@pytest.mark.evidence("shapes", "PypeLayout")
def test_layers_stay_together_in_batches_and_packed_rows() -> None:
    layout = PypeLayout(layers=3, jump=1)
    rows = [layout([Text(2), image(5, 5), Text(1)]), layout([image(3, 4)]), layout([Text(4)])]
    batch, packed = mrope.batch(rows), mrope.pack(rows)
    for layer in range(3):
        singles = [row.layer(layer) for row in rows]
        assert torch.equal(batch.layer(layer).ids, mrope.batch(singles).ids)
        assert torch.equal(batch.decode(2, 1).layer(layer).ids, mrope.batch([one.decode(2, 1) for one in singles]).ids)
        assert torch.equal(packed.layer(layer).ids, mrope.pack(singles).ids)
        assert [row.layer(layer).next for row in packed.unpack()] == [one.next for one in singles]


# ------------------------------------------------------------------------------------------------------------ circle

SIXTH, HALF = 1 / math.sqrt(6), 1 / math.sqrt(2)


def on_circle(turn: float, radius: float = 10) -> list[float]:
    """The token that has turned by so many degrees."""
    sin, cos = math.sin(math.radians(turn)), math.cos(math.radians(turn))
    return [radius * 2 * sin * SIXTH, radius * (cos * HALF - sin * SIXTH), radius * (-cos * HALF - sin * SIXTH)]


@pytest.mark.evidence("worked")
@pytest.mark.parametrize(
    ("layout", "rows", "cols", "turns"),
    [
        # half of the stretched angles (360, 0), half of (0, 180)
        (CircleLayout(), 1, 2, [180, 90]),
        (CircleLayout(), 2, 1, [0, 270]),
        # angles 180, 0 (the centre), 0
        (CircleLayout(), 1, 3, [180, 60, 120]),
        # angles -90, 0 (the centre), 90
        (CircleLayout(), 3, 1, [0, 150, 300]),
        # angles -135, -45, 135, 45: stretched 0, 120, 360, 240; by number 0, 90, 180, 270
        (CircleLayout(), 2, 2, [0, 105, 270, 255]),
        (CircleLayout(alpha=0), 2, 2, [0, 90, 180, 270]),
        (CircleLayout(alpha=1), 2, 2, [0, 120, 360, 240]),
        (CircleLayout(), 1, 1, [0]),
    ],
)
def test_the_circle_by_hand(layout: CircleLayout, rows: int, cols: int, turns: list[float]) -> None:
    positions = layout([Text(3), image(rows, cols), Text(2)])
    wanted = torch.tensor([on_circle(turn) for turn in turns], dtype=torch.float64).T + 3
    assert positions.ids.dtype == torch.float64
    torch.testing.assert_close(positions.ids[:, 3:-2], wanted, rtol=1e-6, atol=1e-5)
    following = 1 + float(wanted.max())
    text = torch.tensor([following, following + 1], dtype=torch.float64).expand(3, -1)
    torch.testing.assert_close(positions.ids[:, -2:], text, rtol=1e-6, atol=1e-5)
    assert positions.next == pytest.approx(following + 2, abs=1e-5)


@pytest.mark.evidence("worked", "CircleLayout")
def test_all_tokens_of_a_picture_are_equally_far_from_any_text() -> None:
    # The paper's per-token distance is 0, for 9 tokens of a picture and 5 of text.
    ids = CircleLayout()([Text(5), image(3, 3)]).ids.double()
    text, picture = ids[:, :5], ids[:, 5:]
    distances = (text[:, :, None] - picture[:, None]).norm(dim=0)
    assert (distances - distances.mean(dim=1, keepdim=True)).abs().max() < 1e-5
    torch.testing.assert_close((picture - 5).norm(dim=0), torch.full((9,), 10.0).double(), rtol=1e-6, atol=1e-5)
    torch.testing.assert_close(picture.sum(dim=0), torch.full((9,), 15.0).double(), rtol=1e-6, atol=1e-5)


@pytest.mark.evidence("worked", "CircleLayout")
@pytest.mark.parametrize(("rows", "cols", "largest"), [(3, 5, 2), (5, 3, 2), (2, 4, 1.5), (1, 1, 0)])
@pytest.mark.parametrize("factor", [None, 2, 0.5])
def test_a_radius_that_goes_by_the_size(rows: int, cols: int, largest: float, factor: float | None) -> None:
    ids = CircleLayout(radius="auto", factor=factor)([image(rows, cols)]).ids.double()
    wanted = torch.full((rows * cols,), largest * (factor or 1), dtype=torch.float64)
    torch.testing.assert_close(ids.norm(dim=0), wanted, rtol=1e-6, atol=1e-6)


@pytest.mark.evidence("worked", "CircleLayout")
@pytest.mark.parametrize(
    ("layers", "alternate", "circles"),
    [
        (6, None, [0, 2, 4]),
        (5, "even", [0, 2, 4]),
        (36, "first", list(range(18))),
        (36, "last", list(range(18, 36))),
        (5, "first", [0, 1, 2]),
        (5, "last", [3, 4]),
        (3, "all", [0, 1, 2]),
    ],
)
def test_which_layers_use_the_circle(layers: int, alternate: Any, circles: list[int]) -> None:
    layout = CircleLayout(layers=layers, alternate=alternate)
    spans: list[Span] = [Text(3), image(3, 5), image(2, 2), Text(2)]
    positions = layout(spans)
    assert len(positions.layers) == layers
    for layer in range(layers):
        alone = (CircleLayout() if layer in circles else GridLayout())(spans)
        assert torch.equal(positions.layer(layer).ids, alone.ids)
        assert positions.layer(layer).ends == alone.ends


def test_each_kind_of_layer_goes_on_from_its_own_end() -> None:
    layout, spans = CircleLayout(layers=2), [Text(3), image(3, 5), Text(2)]
    first = layout(spans)
    second = layout([Text(1), image(2, 2)], first)
    for layer, alone in enumerate((CircleLayout(), GridLayout())):
        assert torch.equal(second.layer(layer).ids, alone([Text(1), image(2, 2)], alone(spans)).ids)
        assert torch.equal(first.decode(2).layer(layer).ids, alone(spans).decode(2).ids)
    # text 0 1 2, a picture of 3 x 5 tokens, text 8 9: the grid's decoding goes on at 10
    assert first.layer(1).decode(1).ids[0].tolist() == [10]


# ---------------------------------------------------------------------------------------------------------- anchored


@pytest.mark.evidence("worked", "AnchoredLayout")
def test_anchors_by_hand() -> None:
    layout = AnchoredLayout(GridLayout())
    first = layout([Text(1), Text(2), image(2, 3), image(1, 2), Text(2)])
    assert first.ids[2].tolist() == [0, 1, 2, 3, 4, 5, 3, 4, 5, 6, 7, 8, 9]
    assert held(first.query).tolist() == [[0, 0, 0, 3, 3, 3, 3, 3, 3, 6, 6, 8, 8]] * 3
    decoded = first.decode(3, 1)
    assert held(decoded.query).tolist() == [[8, 8, 8]] * 3
    # The run of text goes on over turns, also those that bring nothing else.
    second = layout([Text(1)], first)
    assert held(second.query).tolist() == [[8]] * 3
    third = layout([Text(2), image(1, 1), Text(1)], second)
    assert held(third.query).tolist() == [[8, 8, 13, 14]] * 3
    # A turn behind a picture begins a run of its own.
    behind = layout([Text(2)], layout([Text(1), image(2, 2)]))
    assert held(behind.query).tolist() == [[3, 3]] * 3
    nothing = layout([], first)
    assert held(nothing.query).shape == (3, 0)


@pytest.mark.evidence("worked", "AnchoredLayout")
def test_each_step_of_a_clip_with_text_between_its_steps_is_a_segment() -> None:
    layout = AnchoredLayout(GridLayout(time="stamps"))
    positions = layout([Text(2), Video((3, 2, 4), stamp=(1, 0, 2)), Text(1)])
    assert positions.ids[2].tolist() == [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11]
    assert held(positions.query).tolist() == [[0, 0, 0, 3, 3, 5, 5, 7, 7, 9, 9, 11]] * 3
    # Without text between its steps a clip is one.
    plain = AnchoredLayout(GridLayout())([Text(1), Video((2, 2, 4)), Text(1)])
    assert held(plain.query).tolist() == [[0, 1, 1, 1, 1, 3]] * 3


def anchors(spans: list[Span], case: Case, start: float) -> list[float]:
    """The first id of each token's segment, token by token."""
    found: list[float] = []
    previous = None
    for number, span in enumerate(spans):
        before, _ = case.oracle(spans[:number], start)
        after, _ = case.oracle(spans[: number + 1], start)
        if not (isinstance(span, Text) and isinstance(previous, Text)):
            anchor = after[len(before)][0]
        found += [anchor] * (len(after) - len(before))
        previous = span
    return found


@pytest.mark.evidence("oracle", "AnchoredLayout")
@quick
@given(data=st.data(), start=st.integers(0, 50))
def test_anchors_are_the_oracles(data: st.DataObject, start: int) -> None:
    case = CASES["anchored"]
    spans = data.draw(case.prompts())
    assert held(case.layout(spans, start).query).tolist() == [anchors(spans, case, start)] * 3


def test_a_base_whose_layers_differ_has_anchors_in_each() -> None:
    layout, spans = AnchoredLayout(CircleLayout(layers=2)), [Text(2), image(2, 2), Text(1), Text(1)]
    first = layout(spans)
    second = layout([Text(1), image(1, 2), Text(1)], first)
    for layer, base in enumerate((CircleLayout(), GridLayout())):
        alone = AnchoredLayout(base)
        for positions, single in (
            (first, alone(spans)),
            (second, alone([Text(1), image(1, 2), Text(1)], alone(spans))),
        ):
            assert torch.equal(held(positions.layer(layer).query), held(single.query))
    assert held(second.layer(1).query).tolist() == [[4, 7, 7, 9]] * 3


@pytest.mark.evidence("shapes", "AnchoredLayout")
def test_queries_are_the_same_in_batches_and_packed_rows() -> None:
    layout = AnchoredLayout(GridLayout())
    rows = [layout([Text(2), image(2, 2), Text(1)]), layout([image(1, 3)])]
    batch, packed = mrope.batch(rows), mrope.pack(rows)
    assert held(batch.query)[0].tolist() == [[0, 0, 2, 2, 2, 2, 4], [0] * 7]
    assert held(packed.query)[0].tolist() == [0, 0, 2, 2, 2, 2, 4, 0, 0, 0]


def test_what_the_base_declares_holds_for_the_anchored_layout() -> None:
    layout = AnchoredLayout(GridLayout(merge=3))
    assert (layout.merge, layout.traits, layout.growth(2, 3, 5)) == (3, GridLayout().traits, 5)
    assert layout.tokens(Video((2, 6, 3))) == 4


# ----------------------------------------------------------------------------------------------------------- members


def slow_members(clusters: list[int], k: int) -> list[list[int]]:
    """The members of each merged token in order of the row: from the last one back, and over again."""
    groups: dict[object, list[int]] = {}
    for token, number in enumerate(clusters):
        groups.setdefault(("alone", token) if number < 0 else number, []).append(token)
    columns = []
    for tokens in sorted(groups.values(), key=lambda tokens: tokens[-1]):
        backwards = tokens[::-1]
        columns.append([backwards[n % len(backwards)] for n in range(k)])
    return columns


def test_members_by_hand() -> None:
    positions = GridLayout()([Text(1), image(2, 3), Text(2)])
    # text, then (1,1,1) (1,1,2) (1,1,3) (1,2,1) (1,2,2) (1,2,3), then text 4 5
    merged = merge_clusters(positions, torch.tensor([-1, 7, 2, 2, 7, 7, 0, -5, -1]), k=2)
    assert merged.ids.T.tolist() == [[0] * 3, [1, 1, 3], [1, 2, 2], [1, 2, 3], [4] * 3, [5] * 3]
    assert held(merged.members).shape == (2, 3, 6)
    assert torch.equal(held(merged.members)[0], merged.ids)
    assert held(merged.members)[1].T.tolist() == [[0] * 3, [1, 1, 2], [1, 2, 1], [1, 2, 3], [4] * 3, [5] * 3]
    assert merged.text.tolist() == [0, 1, 2, 3, 4, 5]
    assert (merged.next, merged.length, merged.offset) == (6, 6, 0)
    decoded = merged.decode(2)
    assert held(decoded.members).tolist() == [[[6, 7]] * 3] * 2


@quick
@given(data=st.data(), k=st.integers(1, 9))
def test_members_are_the_oracles(data: st.DataObject, k: int) -> None:
    case = CASES["anchored"]
    rows = [case.layout(data.draw(case.prompts())).pad(multiple=4) for _ in range(data.draw(st.integers(1, 2)))]
    packed = mrope.pack(rows)
    clusters, first = [], 0
    for row in rows:
        numbers = st.integers(-1, 4).map(lambda number, first=first: number if number < 0 else first + number)
        clusters += data.draw(st.lists(numbers, min_size=row.ids.shape[1], max_size=row.ids.shape[1]))
        first += 5
    clusters = [-1 if segment < 0 else number for number, segment in zip(clusters, packed.segments, strict=True)]
    merged = merge_clusters(packed, torch.tensor(clusters, dtype=torch.int64), k)
    columns = slow_members(clusters, k)
    wanted = [[packed.ids[:, token].tolist() for token in column] for column in columns]
    members = merged.ids[None] if k == 1 else held(merged.members)
    assert members.permute(2, 0, 1).tolist() == wanted
    assert merged.segments.tolist() == [packed.segments[column[0]] for column in columns]
    assert merged.ends[-1].next == packed.ends[-1].next


def test_the_pairs_of_ppe_turn_by_the_members() -> None:
    positions = GridLayout()([Text(2), image(3, 4), Text(2)])
    frequencies = Frequencies(1e6)
    k, runs = 8, (2,) * 8 + (3,) * 16
    alone = merge_clusters(positions, torch.full((16,), -1), k)
    split = Rotary(AxisSplit(runs), frequencies)
    whole = Rotary(AxisSplit((16, 24, 24)), frequencies)
    # Without merging it is M-RoPE, to the bit.
    for one, other in zip(
        split.cos_sin(held(alone.members).movedim(0, 1).flatten(0, 1)), whole.cos_sin(alone.ids), strict=True
    ):
        assert torch.equal(one, other)
    # Merged: pair by pair, run j of each axis reads member j of the cluster.
    merged = merge_clusters(positions, torch.tensor([-1, -1, *[0] * 3, *[1] * 9, -1, -1]), k)
    cos, _ = split.cos_sin(held(merged.members).movedim(0, 1).flatten(0, 1))
    inv_freq = frequencies.inv_freq(128).tolist()
    pair = 0
    for axis, length in enumerate((2, 3, 3)):
        for run in range(k):
            for _ in range(length):
                token = 4 - run % 3  # of the cluster of tokens 2, 3, 4
                angle = float(positions.ids[axis, token]) * inv_freq[pair]
                assert cos[2, pair] == pytest.approx(math.cos(angle), abs=1e-6)
                token = 13 - run  # of tokens 5 to 13, the first of which is left out
                angle = float(positions.ids[axis, token]) * inv_freq[pair]
                assert cos[3, pair] == pytest.approx(math.cos(angle), abs=1e-6)
                pair += 1
    assert pair == 64


def test_merging_again_keeps_the_members_of_the_last_token() -> None:
    once = merge_clusters(GridLayout()([image(2, 4)]), torch.tensor([0, 0, 1, 1, 0, 2, 2, 2]), k=3)
    twice = merge_clusters(once, torch.tensor([3, 4, 3]), k=1)
    assert torch.equal(held(twice.members), held(once.members)[:, :, 1:])
    assert torch.equal(twice.ids, once.ids[:, 1:])


def test_merging_reaches_all_layers_and_keeps_rings_and_queries() -> None:
    spans = [Text(1), image(2, 2), Text(1)]
    clusters = torch.tensor([-1, 0, 1, 0, 1, -1])
    layered = merge_clusters(PypeLayout(layers=2, jump=1)(spans), clusters, k=2)
    for layer in range(2):
        one = layered.layer(layer)
        assert torch.equal(held(one.members)[0], one.ids)
        assert held(one.pictures).tolist() == [-1, 0, 0, -1]
    anchored = merge_clusters(AnchoredLayout(GridLayout())(spans), clusters, k=2)
    assert held(anchored.query)[0].tolist() == [0, 1, 1, 3]


def test_nothing_merges_to_nothing() -> None:
    assert merge_clusters(GridLayout()([]), torch.zeros(0, dtype=torch.int64)).length == 0


# ---------------------------------------------------------------------------------------------------------- refusals

STEP = torch.tensor([0, 0, 1, 1])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: RingLayout(merge=0), "merge is 0; expected at least 1"),
        (lambda: RingLayout(flat=-1), "flat is -1; expected at least 0"),
        (lambda: RingLayout()([Video((2, 4, 4))]), "video grid 2x4x4 has no place in RingLayout"),
        (lambda: RingLayout()([Sliced((1, 4, 4))]), "sliced grid 1x4x4 has no place in RingLayout"),
        (lambda: RingLayout()([Image((1, 3, 4))]), "image grid 1x3x4 is not divisible"),
        (lambda: PypeLayout(layers=0, jump=1), "layers is 0; expected at least 1"),
        (lambda: PypeLayout(layers=4, jump=0), "jump is 0; expected at least 1"),
        (lambda: PypeLayout(layers=4, jump=1)([Video((2, 4, 4))]), "video grid 2x4x4 has no place in RingLayout"),
        (
            lambda: PypeLayout(layers=4, jump=1)([Text(1)], PypeLayout(layers=4, jump=2)([Text(1)])),
            "start has 2 variants for 4 layers; expected positions that this layout made, of 4 variants for 4 layers",
        ),
        (lambda: CircleLayout(layers=2)([Text(1)], CircleLayout()([Text(1)])), "start has 0 variants for 0 layers"),
        (lambda: CircleLayout(radius=0), r"radius \(where it is not \"auto\"\) is 0; expected a finite number above 0"),
        (lambda: CircleLayout(factor=2), "factor is 2 with radius=10; it goes with radius='auto'"),
        (lambda: CircleLayout(radius="auto", factor=-1), "factor is -1; expected a finite number above 0"),
        (lambda: CircleLayout(alpha=1.5), "alpha is 1.5; expected a number from 0 to 1"),
        (lambda: CircleLayout(alpha=math.nan), "alpha is nan; expected a number from 0 to 1"),
        (lambda: CircleLayout(layers=0), "layers is 0; expected at least 1"),
        (lambda: CircleLayout(alternate="first"), "alternate is 'first' and layers is None; expected the number of"),
        (lambda: CircleLayout()([Video((2, 4, 4))]), "video grid 2x4x4 has no place in CircleLayout"),
        (lambda: CircleLayout(layers=2)([Target((1, 4, 4))]), "target grid 1x4x4 has no place in CircleLayout"),
        (lambda: AnchoredLayout(GridLayout())([Sliced((1, 4, 4))]), "sliced grid 1x4x4 has no segments"),
        (lambda: AnchoredLayout(GridLayout()).tokens(mrope.Audio(4)), "audio of 4 tokens has no segments"),
        (
            lambda: AnchoredLayout(GridLayout())([Video((2, 4, 4), seconds=1.0, audio=3)]),
            "video grid 2x4x4 has no segments in AnchoredLayout: only text, images and silent clips do",
        ),
        (lambda: merge_clusters(GridLayout()([Text(5)]), STEP), r"clusters has shape \(4,\); expected \(5,\)"),
        (lambda: merge_clusters(GridLayout()([Text(4)]), STEP, k=0), "k is 0; expected at least 1"),
        (
            lambda: merge_clusters(mrope.pack([GridLayout()([Text(1)]), GridLayout()([Text(3)])]), STEP),
            "members must be of one document",
        ),
    ],
)
def test_refusals(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize(
    "make",
    [
        lambda: RingLayout(kind="euclid"),  # pyright: ignore[reportArgumentType]
        lambda: CircleLayout(layers=2, alternate="odd"),  # pyright: ignore[reportArgumentType]
        lambda: CircleLayout(radius="large"),  # pyright: ignore[reportArgumentType]
        lambda: AnchoredLayout(None),  # pyright: ignore[reportArgumentType]
    ],
)
def test_what_is_no_such_word_is_refused(make: Callable[[], Any]) -> None:
    # Run-time checks of the annotations may come first in tests.
    with pytest.raises((ValueError, TypeError), match=r"Literal|[Ee]xpected"):
        make()
