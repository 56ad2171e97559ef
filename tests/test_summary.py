"""What records come to, against counts by hand."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from mrope.probes.spatial.comparing import compare_runs
from mrope.probes.spatial.requirements import check_requirements, shortfalls
from mrope.probes.spatial.summary import score, summarise, wilson, write_summary
from mrope.probes.spatial.table import comparison_table, summary_table


def record(number: int, outcome: str, **more: Any) -> dict[str, Any]:
    made = {
        "task": "cell",
        "seed": 0,
        "id": f"cell/{number}",
        "kind": "choice",
        "prompt": ["?"],
        "pictures": ["a.png"],
        "answer": "A",
        "box": None,
        "group": "",
        "tags": {},
        "chance": 0.25,
        "outcome": outcome,
        "share": float(outcome == "right"),
        "read": "A" if outcome == "right" else "B",
    }
    return made | more


def test_outcomes_are_counted_apart() -> None:
    words = ["right"] * 5 + ["wrong", "empty", "unread", "several", "failed", "refused"]
    (one,) = summarise(record(number, word) for number, word in enumerate(words))
    assert (one.asked, one.refused) == (10, 1)
    assert one.outcomes == {"right": 5, "wrong": 1, "empty": 1, "unread": 1, "several": 1, "failed": 1}
    assert (one.accuracy.value, one.accuracy.count, one.chance) == (0.5, 10, 0.25)
    assert (round(one.accuracy.low, 4), round(one.accuracy.high, 4)) == (0.2366, 0.7634)  # Wilson's, of 5 in 10


def test_interval_over_seeds() -> None:
    # Seeds at 1/4, 2/4, 3/4: the standard error is 0.25 / sqrt(3), Student's factor of two degrees 4.303.
    records = [
        record(number, "right" if number < rights else "wrong", seed=seed)
        for seed, rights in enumerate((1, 2, 3))
        for number in range(4)
    ]
    accuracy = summarise(records)[0].accuracy
    assert accuracy.value == 0.5
    assert accuracy.error == pytest.approx(0.25 / 3**0.5)
    assert (accuracy.low, accuracy.high) == (0.0, 1.0)  # 0.5 +- 0.62 is held inside
    apart = [
        record(n, "right" if n < rights else "wrong", seed=seed)
        for seed, rights in enumerate((20, 50, 80))
        for n in range(100)
    ]
    accuracy = summarise(apart)[0].accuracy  # 0.5 +- 0.3 / sqrt(3) * 4.303 is beyond both ends
    assert (accuracy.low, accuracy.high) == (0.0, 1.0)
    near = [record(n, "right" if n < 40 + seed else "wrong", seed=seed) for seed in range(4) for n in range(100)]
    accuracy = summarise(near)[0].accuracy  # seeds differ by less than samples do: Wilson's, of 166 in 400
    assert (accuracy.low, accuracy.high) == pytest.approx(wilson(0.415, 400))
    shares = [record(n, "wrong", kind="list", seed=n, share=share) for n, share in enumerate((0.4, 0.5, 0.6))]
    share = summarise(shares)[0].share
    assert share is not None
    assert share.high - share.value == pytest.approx(4.303 * 0.1 / 3**0.5)


def test_sets_and_agreement() -> None:
    rows = [("right", "g1", "A"), ("right", "g1", "B"), ("right", "g2", "A"), ("wrong", "g2", "C"), ("right", "", "A")]
    (one,) = summarise(record(i, word, group=group, answer=answer) for i, (word, group, answer) in enumerate(rows))
    assert one.sets is not None
    assert (one.sets.value, one.sets.count, one.agreement) == (0.5, 2, None)
    # One question in several pictures: wrong alike is agreement, as right alike is; two empty replies are not.
    reads = [("right", "A"), ("right", "A"), ("wrong", "B"), ("wrong", "B"), ("right", "A"), ("wrong", "B")]
    reads += [("empty", ""), ("empty", "")]
    (one,) = summarise(record(i, word, group=f"g{i // 2}", read=read) for i, (word, read) in enumerate(reads))
    assert one.agreement is not None
    assert (one.agreement.value, one.agreement.count, one.sets) == (0.5, 4, None)


def test_failures_do_not_agree_and_the_table_says_so() -> None:
    reads = [("right", "A"), ("failed", ""), ("right", "A"), ("right", "A"), ("failed", ""), ("failed", "")]
    (one,) = summarise(record(i, word, group=f"g{i // 2}", read=read) for i, (word, read) in enumerate(reads))
    assert one.agreement is not None
    assert (one.agreement.value, one.agreement.count) == (pytest.approx(1 / 3), 3)
    (line,) = (line for line in summary_table([one]).splitlines() if "agreement" in line)
    assert line.split("|")[-2].strip() == "3 failed"


def test_groups_of_two_seeds_are_two() -> None:
    rows = [(0, "A"), (0, "B"), (1, "A"), (1, "B")]
    (one,) = summarise(record(i, "right", seed=seed, group="g", answer=answer) for i, (seed, answer) in enumerate(rows))
    assert one.sets is not None
    assert one.sets.count == 2


def test_curves_parts_and_the_largest_size() -> None:
    rows = [("right", 2, 3), ("right", 2, 3), ("right", 4, 5), ("wrong", 4, 5)] * 5 + [("right", 9, 9)] * 9
    (one,) = summarise(
        record(i, word, tags={"rows": h, "cols": w, "relation": "left" if i % 2 else "right"})
        for i, (word, h, w) in enumerate(rows)
    )
    assert {at: each.value for at, each in one.curves["cells"].items()} == {6: 1.0, 20: 0.5, 81: 1.0}
    assert one.best == {"cells": 6}  # nine samples are too few to say anything of 81 cells
    assert {at: each.count for at, each in one.parts["relation"].items()} == {"left": 14, "right": 15}


def test_smallest_print_is_the_hardest() -> None:
    rows = [("right", 20), ("right", 9), ("wrong", 7)] * 10
    (one,) = summarise(record(i, word, tags={"height": height}) for i, (word, height) in enumerate(rows))
    assert one.best == {"height": 9}


def test_heat_map_has_rows_down_and_columns_across() -> None:
    rows = [("right", 0, 2), ("wrong", 1, 0), ("right", 1, 0)]
    (one,) = summarise(
        record(i, word, tags={"rows": 2, "cols": 3, "row": row, "col": col}) for i, (word, row, col) in enumerate(rows)
    )
    assert one.heat == {"2 x 3": [[None, None, 1.0], [0.5, None, None]]}


def test_shares_of_lists_have_their_own_mean() -> None:
    (one,) = summarise([record(0, "right", kind="list"), record(1, "wrong", kind="list", share=0.5)])
    assert one.share is not None
    assert (one.accuracy.value, one.share.value) == (0.5, 0.75)


def test_summary_file_is_json_without_nan(tmp_path: Path) -> None:
    path = write_summary(summarise([record(0, "refused")]), tmp_path)
    read = json.loads(path.read_text(), parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    assert read["tasks"][0]["accuracy"]["value"] is None
    assert [each.name for each in tmp_path.iterdir()] == ["summary.json"]


def test_wilson_holds_at_the_ends() -> None:
    assert wilson(0.0, 10) == (0.0, pytest.approx(0.2775, abs=1e-4))
    assert wilson(1.0, 10) == (pytest.approx(0.7225, abs=1e-4), pytest.approx(1.0))


def test_score_of_nothing() -> None:
    assert math.isnan(score([], lambda one: 1.0).value)


def test_comparison_is_paired() -> None:
    before = [record(i, word) for i, word in enumerate(["right", "wrong", "wrong", "wrong", "wrong", "wrong", "right"])]
    after = [
        record(i, word) for i, word in enumerate(["right", "right", "right", "right", "right", "right", "refused"])
    ]
    (one,) = compare_runs(before, after)
    assert (one.won, one.lost, one.p) == (5, 0, 0.0625)
    assert (one.baseline, one.accuracy) == (pytest.approx(1 / 6), 1.0)
    assert one.difference.value == pytest.approx(5 / 6)
    assert "5 / 0" in comparison_table([one])


def test_comparison_of_a_loss_is_negative() -> None:
    pair = [[record(i, word) for i in range(4)] for word in ("right", "wrong")]
    (one,) = compare_runs(*pair)
    assert (one.difference.value, one.lost, one.p) == (-1.0, 4, 0.125)


def test_other_samples_are_not_compared() -> None:
    with pytest.raises(ValueError, match="share no sample"):
        compare_runs([record(0, "right")], [record(1, "right")])
    with pytest.raises(ValueError, match="another answer"):
        compare_runs([record(0, "right")], [record(0, "right", answer="B")])


def test_thresholds() -> None:
    summaries = summarise([record(0, "right"), record(1, "wrong")])
    assert shortfalls(summaries, {"cell": 0.5}) == ()
    assert shortfalls(summaries, {"cell": 0.51}) == ("cell is 0.5000, below 0.51",)
    assert shortfalls(summaries, {"cell.sets": 0.5}) == ("cell.sets was not measured",)
    for wrong, message in (
        ({"other": 0.5}, "task of a threshold is 'other'"),
        ({"cell.best": 0.5}, "metric of threshold 'cell.best'"),
        ({"cell": 2}, "threshold cell is 2"),
    ):
        with pytest.raises(ValueError, match=message):
            check_requirements(wrong, ("cell",))


def test_table_is_markdown_with_chance_and_error() -> None:
    words = ["right"] * 5 + ["wrong"] * 4 + ["failed"]
    lines = summary_table(summarise(record(i, word) for i, word in enumerate(words))).splitlines()
    assert lines[0].startswith("|Task")
    assert set(lines[1]) == {"|", "-"}
    cells = [cell.strip() for cell in lines[2].split("|")[1:-1]]
    assert cells == ["cell", "accuracy", "↑", "0.5000", "±", "0.1667", "0.237 to 0.763", "10", "0.2500", "1"]
    assert len({len(line) for line in lines}) == 1
