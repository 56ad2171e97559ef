"""One budget for many pictures: never exceeded, spent as far as whole tokens allow; the worst case is the worst."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from pictures import encoded, exif, photograph

from mrope import Family, family
from mrope.vision import explain, plan, plan_many, plan_sizes, plan_video, settings, worst_case

QWEN2, QWEN3, HUNYUAN = family("qwen2.5-vl"), family("qwen3-vl"), family("hunyuan-vl")
SIZES = [(3024, 4032), (200, 300), (1080, 1920), (2200, 1700), (40, 3000), (480, 640)]
FAMILIES = ("qwen2.5-vl", "qwen3-vl", "glm4v", "paddleocr-vl", "hunyuan-vl", "minicpm-v4.7", "neomme", "glm-image")


def random_sizes(count: int, seed: int = 0) -> list[tuple[int, int]]:
    rng = np.random.default_rng(seed)
    return [(int(h), int(w)) for h, w in rng.integers(400, 1500, (count, 2))]


def next_size(record: Family, size: tuple[int, int], tokens: int) -> int | None:
    """The tokens of the next larger version of a picture, by trying every limit."""
    needed = plan(size, record).tokens
    for limit in range(tokens + 1, needed + 1):
        found = plan_sizes([size], record, max_tokens=limit, conflict="skip")
        if found.fits[0] and found.tokens[0] > tokens:
            return int(found.tokens[0])
    return None if tokens >= needed else needed


def test_a_worked_budget() -> None:
    # 4032 x 3024 at 972 tokens is 36 x 27; the next larger would be 37 x 27 = 999, and 2 * 972 + 54 = 1998.
    plans = plan_many([(3024, 4032), (3024, 4032), (200, 300)], QWEN3, budget=2000, min_tokens=1)
    assert [one.tokens for one in plans] == [972, 972, 54]
    assert plans[0].grid == (1, 54, 72)


def test_what_a_small_picture_does_not_need_goes_to_the_others() -> None:
    alone = plan((200, 300), QWEN2).tokens
    plans = plan_many([(200, 300), (3024, 4032), (4032, 3024)], QWEN2, budget=3000)
    assert plans[0].tokens == alone
    assert plans[1].tokens == plans[2].tokens
    assert plans[1].resized == plans[2].resized[::-1]
    assert 3000 - alone - 2 * plans[1].tokens < 60


def test_enough_for_all_is_what_plan_says() -> None:
    assert plan_many(SIZES, QWEN2, budget=10**6) == [plan(size, QWEN2) for size in SIZES]
    limited = [plan(size, QWEN2, max_tokens=700) for size in SIZES]
    assert plan_many(SIZES, QWEN2, budget=sum(one.tokens for one in limited), max_tokens=700) == limited


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("share", [0.9, 0.7])
def test_never_above_and_nothing_fits_any_more(name: str, share: float) -> None:
    record = family(name)
    sizes = [(768, 1024), (1024, 768), (1000, 700), (900, 901), (1100, 1300)]
    budget = int(share * sum(plan(size, record).tokens for size in sizes))
    if record.image_tokens is not None:
        budget = max(budget, len(sizes) * record.image_tokens[0] + 60)
    plans = plan_many(sizes, record, budget=budget)
    assert plan_many(sizes, record, budget=budget) == plans
    rest = budget - sum(one.tokens for one in plans)
    assert rest >= 0
    for size, one in zip(sizes, plans, strict=True):
        larger = next_size(record, size, one.tokens)
        assert larger is None or larger - one.tokens > rest


def test_prompt_tokens_can_be_what_counts() -> None:
    sizes = [(1000, 1500), (1500, 1000), (700, 800)]
    plans = plan_many(sizes, HUNYUAN, budget=2400, count="prompt")
    assert sum(one.prompt_tokens or 0 for one in plans) <= 2400 < sum(one.prompt_tokens or 0 for one in plans) + 60
    assert sum(one.tokens for one in plans) < 2340


def test_floors_and_priorities() -> None:
    sizes = [(2000, 3000)] * 4
    plans = plan_many(sizes, QWEN2, budget=2000, floors=[1000, 1, 1, 1])
    assert plans[0].tokens >= 1000
    assert max(one.tokens for one in plans[1:]) < 360
    small = plan_many([(200, 300), *sizes], QWEN2, budget=2000, floors=300)
    assert small[0].tokens == plan((200, 300), QWEN2).tokens  # all that it needs
    assert min(one.tokens for one in small[1:]) >= 300
    first, second, third = plan_many(sizes[:3], QWEN2, budget=3500, priorities=[4, 2, 1])
    assert abs(first.tokens - 2000) < 90
    assert abs(second.tokens - 1000) < 70
    assert abs(third.tokens - 500) < 50


def test_a_thousand_pictures() -> None:
    sizes = random_sizes(1000)
    plans = plan_many(sizes, QWEN3, budget=500_000)
    total = sum(one.tokens for one in plans)
    assert 500_000 - 80 < total <= 500_000
    assert [one.original for one in plans] == sizes


def test_files_are_planned_upright() -> None:
    data = encoded(photograph("chelsea"), "JPEG", exif=exif(6))
    (one,) = plan_many([data], QWEN2, budget=100)
    assert (one.original, one.orientation) == ((451, 300), 6)
    assert one.tokens <= 100
    assert plan_many([], QWEN2, budget=1) == []


def test_a_budget_below_the_floors_says_what_would_do() -> None:
    with pytest.raises(ValueError, match=r"budget is 100, but the floors of 3 pictures take 192; budget=192 would do"):
        plan_many([(512, 512)] * 3, QWEN3, budget=100)
    assert sum(one.tokens for one in plan_many([(512, 512)] * 3, QWEN3, budget=192)) == 192
    with pytest.raises(ValueError, match=r"budget is 300, .* take (\d+); ") as caught:
        plan_many(SIZES, QWEN2, budget=300, floors=100)
    enough = int(str(caught.value).split("budget=")[1].split()[0])
    assert sum(one.tokens for one in plan_many(SIZES, QWEN2, budget=enough, floors=100)) == enough


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"budget": 0}, "budget is 0"),
        ({"floors": [1, 2]}, "floors has 2 values for 6 pictures"),
        ({"priorities": [1.0]}, "priorities has 1 values for 6"),
        ({"priorities": [1.0, 1.0, 0.0, 1.0, 1.0, 1.0]}, r"priorities\[2\] is 0"),
        ({"priorities": [1.0, float("nan"), 1.0, 1.0, 1.0, 1.0]}, r"priorities\[1\] is nan"),
        ({"floors": [1, 1, 1, 1, 0, 1]}, r"floors\[4\] is 0"),
        ({"floors": np.array([1, 1, 1, 1, 0, 1])}, r"floors\[4\] is 0"),
        ({"floors": 0}, "floors is 0"),
    ],
)
def test_refused_budgets(options: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        plan_many(SIZES, QWEN2, **{"budget": 5000, **options})  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="picture 1: 10000 wide x 20 high is 500"):
        plan_many([(480, 640), (20, 10000)], QWEN2, budget=5000)


def test_floors_and_priorities_may_be_arrays() -> None:
    lists = plan_many(SIZES, QWEN2, budget=3000, floors=[9, 8, 7, 6, 5, 4], priorities=[1, 2, 3, 1, 2, 3])
    arrays: dict[str, Any] = {"floors": np.array([9, 8, 7, 6, 5, 4]), "priorities": np.array([1.0, 2, 3, 1, 2, 3])}
    assert plan_many(SIZES, QWEN2, budget=3000, **arrays) == lists
    assert plan_many(iter(SIZES), QWEN2, budget=3000, **arrays) == lists
    assert plan_many(SIZES, QWEN2, budget=3000, floors=np.array(8)) == plan_many(SIZES, QWEN2, budget=3000, floors=8)


@pytest.mark.parametrize(
    "one", [(480, 640), "photo.jpg", np.zeros((60, 90, 3), np.uint8), np.zeros((60, 90), np.uint8)]
)
def test_one_picture_is_no_list_of_pictures(one: Any) -> None:
    with pytest.raises(TypeError, match=r"expected several pictures, such as \[picture\]|sources"):
        plan_many(one, QWEN2, budget=500)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ((3, 480, 640), r"picture 1 is \(3, 480, 640\); expected \(height, width\): plan clips with plan_video"),
        ((480, 0), "width of picture 1 is 0"),
        ((480, "640"), "width of picture 1 is '640'"),
        (object(), "picture 1 is a object; expected a path, "),
        (b"no picture", "picture of 10 bytes: not a picture"),
    ],
)
def test_a_budget_names_the_source_that_is_wrong(wrong: Any, message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        plan_many([(480, 640), wrong], QWEN2, budget=500)


@pytest.mark.parametrize("name", ["qwen2.5-vl", "glm4v", "paddleocr-vl", "hunyuan-vl", "neomme", "qwen3-omni"])
@pytest.mark.parametrize("count", ["tokens", "prompt"])
@pytest.mark.parametrize("most", [7, 13])
def test_worst_case_is_the_worst_of_all_sizes(name: str, count: str, most: int) -> None:
    # A smaller twin of the family, whose tokens are 4 pixels a side: every size up to 13 tokens a side and more.
    record = replace(family(name), patch=4 // family(name).merge, image_pixels=None)
    if record.image_tokens is not None:
        record = replace(record, image_tokens=(1, 16384))
    sides = np.arange(1, 4 * most + 9)
    sizes = np.stack(np.meshgrid(sides, sides, indexing="ij"), -1).reshape(-1, 2)
    found = plan_sizes(sizes, record, max_tokens=most, conflict="skip")
    worst = worst_case(record, max_tokens=most, count=count)  # type: ignore[arg-type]
    assert worst.tokens <= most
    costs = found.tokens if count == "tokens" else found.prompt_tokens
    assert (worst.tokens if count == "tokens" else worst.prompt_tokens) == costs[found.fits].max()


def test_worst_case_of_halved_and_sliced_pictures() -> None:
    halved = replace(family("glm-image"), patch=2, image_tokens=(4, 100))
    sides = np.arange(1, 60)
    sizes = np.stack(np.meshgrid(sides, sides, indexing="ij"), -1).reshape(-1, 2)
    found = plan_sizes(sizes, halved, conflict="skip")
    assert worst_case(halved).tokens == found.tokens.max()
    sliced = replace(family("minicpm-v4.7"), patch=1, slices=(16, 4))
    found = plan_sizes(np.concatenate([sizes, sizes * 2]), sliced, max_tokens=70, conflict="skip")
    assert worst_case(sliced, max_tokens=70).tokens >= found.tokens[found.fits].max()


def test_the_worst_case_is_no_square() -> None:
    # The report: a square stands for 3,721 tokens where 2366 x 1402 pixels take 4,200.
    assert plan((1402, 2366), QWEN2).tokens == 4200
    worst = worst_case(QWEN2, max_tokens=4200, pictures=3, dtype="uint8")
    assert worst.plan.tokens == 4200
    assert plan((1792, 1792), QWEN2, max_tokens=4200).tokens == 4096
    assert (worst.tokens, worst.prompt_tokens, worst.patches) == (12600, 12606, 50400)
    assert worst.values_bytes == 50400 * 3 * 14 * 14
    assert worst_case(QWEN2, max_tokens=4200).values_bytes == 16800 * 3 * 2 * 14 * 14 * 4
    tall = worst_case(HUNYUAN, count="prompt").plan
    assert tall.original[0] > 100 * tall.original[1]  # a newline behind each row
    with pytest.raises(ValueError, match="give max_tokens"):
        worst_case(family("neomme"))


def test_explain_the_reported_clip() -> None:
    text = explain((60, 720, 1280), QWEN3, fps=1)
    assert "grid 30 x 30 x 52 patches" in text
    assert "tokens: 30 steps x 15 rows x 26 cols = 11700" in text
    # 5 stamps of 6 tokens (<0.5 seconds> ...) and 25 of 7, and 30 x 2 markers
    assert "prompt: 11700 + 265 of markers, newlines, time stamps = 11965" in text
    assert "unknown without the frame rate" in explain((60, 720, 1280), QWEN3)
    assert "unknown without the family's tokenizer" in explain((60, 720, 1280), family("glm4v"), fps=1)


def test_explain_parts_and_padding() -> None:
    sliced = explain((768, 1024), family("minicpm-v4.7"))
    assert "4 windows of 504 wide x 392 high, each grid 1 x 28 x 36" in sliced
    assert "tokens: 5 x 7 rows x 9 cols = 315" in sliced
    assert "filled up with black to 128 wide x 96 high" in explain((70, 100), family("neomme"))
    tiled = explain((20, 2048), QWEN2, max_tokens=37, conflict="tile")
    assert "tokens: 1 rows x 31 cols + 1 rows x 30 cols = 61" in tiled
    assert explain(plan((480, 640), QWEN2), QWEN2) == explain((480, 640), QWEN2)
    with pytest.raises(ValueError, match="left out by conflict"):
        explain((9, 3000), QWEN2, conflict="skip")


def test_a_plan_is_explained_with_the_limits_that_it_was_made_with() -> None:
    small = plan((480, 640), QWEN2, max_tokens=100)
    assert explain(small, QWEN2, max_tokens=100) == explain((480, 640), QWEN2, max_tokens=100)
    with pytest.raises(ValueError, match=r"of 88 tokens .* one of 391 tokens and grid \(1, 34, 46\); give the limits"):
        explain(small, QWEN2)
    tiles = plan((20, 2048), QWEN2, max_tokens=37, conflict="tile")
    with pytest.raises(ValueError, match="these limits give none"):
        explain(tiles, QWEN2, max_tokens=37)
    assert "61" in explain(tiles, QWEN2, max_tokens=37, conflict="tile")
    clip = plan_video((4, 480, 640), QWEN3, fps=2, max_tokens=300)
    assert explain(clip, QWEN3, max_tokens=300) == explain((4, 480, 640), QWEN3, fps=2, max_tokens=300)
    with pytest.raises(ValueError, match="give the limits"):
        explain(clip, QWEN3)
    with pytest.raises(ValueError, match="max_tokens is 0"):
        explain(small, QWEN2, max_tokens=0)


def test_a_plan_of_another_family_is_not_explained() -> None:
    with pytest.raises(ValueError, match=r"qwen2\.5-vl; expected .* qwen3-vl"):
        explain(plan((480, 640), QWEN2), QWEN3)


@pytest.mark.parametrize("source", [(480, 640), plan((480, 640), QWEN2), plan_video((4, 480, 640), QWEN2, fps=2)])
def test_a_frame_rate_that_nothing_takes_is_refused(source: Any) -> None:
    with pytest.raises(ValueError, match="fps is 3"):
        explain(source, QWEN2, fps=3)


@pytest.mark.parametrize("conflict", ["skip", "tile"])
def test_policies_of_pictures_are_refused_for_clips(conflict: Any) -> None:
    with pytest.raises(ValueError, match=f"conflict is '{conflict}'; expected one of error, pad, family"):
        explain((5, 480, 640), QWEN3, conflict=conflict)
    with pytest.raises(ValueError, match=f"conflict is '{conflict}'; expected one of error, pad, family"):
        settings(QWEN3, conflict=conflict, clips=True)


def test_settings_of_clips_that_a_family_lacks() -> None:
    with pytest.raises(ValueError, match="glm-image has no limits for clips"):
        settings(family("glm-image"), clips=True)
    assert settings(family("minicpm-v4.7"), max_tokens=640, clips=True)["limits"].startswith("up to 640 tokens a frame")


@pytest.mark.parametrize("name", FAMILIES)
def test_settings_name_the_limits(name: str) -> None:
    record = family(name)
    words = settings(record)
    limits = ("none",) if record.image_tokens is None else map(str, (*record.image_tokens, *record.pixel_limits))
    assert all(limit in words["limits"] for limit in limits)
    assert words["patch order"] == record.patch_order


def test_what_is_left_of_a_budget_is_less_than_any_next_size() -> None:
    record, rng = family("qwen2.5-vl"), np.random.default_rng(0)
    (first, second) = plan_many([(1512, 1664), (1936, 924)], family("qwen2-vl"), budget=1817)
    assert (first.tokens, second.tokens) == (868, 945)  # which takes a limit of 967
    cases = [([(1858, 1677), (1425, 303)], 1078), ([(362, 1764), (1943, 55)], 236)]
    cases += [([tuple(rng.integers(28, 2500, 2).tolist()) for _ in range(3)], 700 + 23 * n) for n in range(60)]
    for sizes, budget in cases:
        plans = plan_many(sizes, record, budget=budget)
        rest = budget - sum(one.tokens for one in plans)
        assert rest >= 0
        for size, one in zip(sizes, plans, strict=True):
            limit = one.tokens + rest
            if one.tokens < plan(size, record).tokens:
                larger = plan_sizes([size], record, max_tokens=limit, conflict="skip")
                assert larger.tokens[0] <= one.tokens


@pytest.mark.parametrize("limit", [100, 430, 670, 1270, None])
def test_the_worst_case_of_slices_is_not_beaten(limit: int | None) -> None:
    record, rng = family("minicpm-v4.7"), np.random.default_rng(1)
    limit = 10**6 if limit is None else limit
    ratios = np.exp(rng.uniform(-np.log(200), np.log(200), 40_000))
    areas = np.exp(rng.uniform(np.log(2000), np.log(9e6), 40_000))
    sizes = np.stack([np.sqrt(areas * ratios), np.sqrt(areas / ratios)], axis=1).round().clip(1).astype(np.int64)
    sizes = np.concatenate([sizes[sizes.max(1) <= 200 * sizes.min(1)], [(5657, 119), (126, 9666)]])
    found = plan_sizes(sizes, record, max_tokens=limit, conflict="skip")
    assert worst_case(record, max_tokens=limit).tokens >= found.tokens.max()
    assert worst_case(record, max_tokens=limit, count="prompt").prompt_tokens >= found.prompt_tokens.max()
