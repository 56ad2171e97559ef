"""Text is measured as it was set, and the advised budget is the smallest that keeps it legible."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import cast

import numpy as np
import pytest
import torch
from pictures import encoded, photograph
from PIL import Image, ImageDraw, ImageFont, ImageOps

from mrope import family
from mrope.data import draw_page, font
from mrope.vision import NEEDS, Task, advise, patchify, plan, unpatchify, x_heights

QWEN2 = family("qwen2.5-vl")
TEXT = """A model that first squeezes every picture into the same square has lost the small print before it reads a word
This note follows one page the other way keep its shape cut it into patches give each patch a place in time"""
WORDS = TEXT.split()


def set_page(face: str, size: int, *, height: int = 700, width: int = 900) -> tuple[Image.Image, int]:
    """A page of text, and the height of its x as the font says."""
    letters = ImageFont.truetype(str(font(face).path), size, layout_engine=ImageFont.Layout.BASIC)
    image = Image.new("RGB", (width, height), "white")
    draw, words, row = ImageDraw.Draw(image), WORDS * 40, 2 * size
    while row < height - size:
        line = [words.pop(0)]
        while letters.getlength(" ".join([*line, words[0]])) < width - 80:
            line.append(words.pop(0))
        draw.text((40, row), " ".join(line), font=letters, fill=(20, 20, 30), anchor="ls")
        row += size * 3 // 2
    _, top, _, bottom = letters.getbbox("x", anchor="ls")
    return image, int(bottom - top)


@pytest.mark.parametrize("face", ["NotoSerif-Regular", "Inter-Regular", "Bitter-Bold", "Tinos-Italic"])
@pytest.mark.parametrize("size", [11, 14, 19, 30, 48])
def test_the_x_height_is_that_of_the_font(face: str, size: int) -> None:
    image, expected = set_page(face, size)
    heights = x_heights(image)
    assert len(heights) > 100
    assert abs(np.quantile(heights, 0.05) - expected) <= 1
    assert abs(np.median(heights) - expected) <= 1


def test_dark_mode_noise_jpeg_and_a_photograph_beside() -> None:
    image, expected = set_page("NotoSerif-Regular", 19)
    noise = np.random.default_rng(0).normal(0, 25, (700, 900, 1))
    noisy = np.clip(np.asarray(image) + noise, 0, 255).astype(np.uint8)
    beside = image.copy()
    beside.paste(photograph("coffee").resize((300, 200)), (500, 300))
    faint = Image.eval(image, lambda value: 120 + value // 4)
    for page in (ImageOps.invert(image), noisy, encoded(image, "JPEG", quality=30), beside, faint):
        assert abs(np.quantile(x_heights(page), 0.05) - expected) <= 1
    assert len(x_heights(photograph("chelsea"))) < 20


def test_both_polarities_on_one_page() -> None:
    image, expected = set_page("Inter-Regular", 19)
    image.paste(ImageOps.invert(image.crop((0, 0, 900, 200))), (0, 0))
    plain, _ = set_page("Inter-Regular", 19)
    assert abs(len(x_heights(image)) - len(x_heights(plain))) < 0.1 * len(x_heights(plain))
    assert abs(np.quantile(x_heights(image), 0.05) - expected) <= 1


@pytest.mark.parametrize("name", ["qwen2.5-vl", "qwen3-vl", "glm4v", "hunyuan-vl", "minicpm-v4.7"])
@pytest.mark.parametrize("task", list(NEEDS))
def test_the_budget_is_the_smallest(name: str, task: Task) -> None:
    record, page = family(name), draw_page()
    advice = advise(page, record, task)
    assert advice.warning is None
    assert advice.plan == plan(page, record, max_tokens=advice.max_tokens)
    need, most = NEEDS[task], plan(page, record).tokens

    def legible(limit: int) -> bool:
        one = plan(page, record, max_tokens=limit)
        largest = one.parts[-1].resized  # of a thumbnail and slices, the slices
        scale = min(largest[0] / 1754, largest[1] / 1240)
        return scale * advice.x_height / min(record.patch, 16) >= need.x_height and one.tokens >= min(need.tokens, most)

    assert legible(advice.max_tokens)
    assert not any(legible(limit) for limit in range(advice.max_tokens - 120, advice.max_tokens))


def test_a_wide_page_is_judged_by_the_side_that_shrinks_more() -> None:
    wide, tall = (advise(np.zeros(size, np.uint8), QWEN2, x_height=12) for size in ((500, 3000), (3000, 500)))
    assert wide.plan.resized == tall.plan.resized[::-1]
    assert wide.reached >= 0.46
    assert wide.reached == pytest.approx(min(wide.plan.scale) * 12 / 14)
    assert wide.glyphs == 0


def test_small_print_is_a_matter_of_share() -> None:
    image, small = set_page("Inter-Regular", 14, height=900)
    large_page, large = set_page("Inter-Regular", 40, height=700)
    image.paste(large_page, (0, 200))
    assert advise(image, QWEN2, share=1).x_height <= small
    assert abs(advise(image, QWEN2, share=0.1).x_height - large) <= 1
    assert advise(image, QWEN2, share=1).max_tokens > advise(image, QWEN2, share=0.1).max_tokens


def test_warnings() -> None:
    page = np.zeros((2200, 1700), np.uint8)
    capped = advise(page, QWEN2, x_height=9, max_tokens=500)
    assert "the limit of" in str(capped.warning)
    assert capped.plan == plan(page, QWEN2, max_tokens=500)
    assert capped.reached < 0.46
    small = advise(page, QWEN2, x_height=4)
    assert "4 pixels high, ocr needs 6.44: no budget helps" in str(small.warning)
    assert small.plan.tokens == plan(page, QWEN2).tokens
    assert advise(page, QWEN2, x_height=200).warning is None


def test_the_warning_names_the_rule_where_no_limit_shrinks_the_page() -> None:
    page = np.zeros((1754, 1240), np.uint8)
    halved = advise(page, family("glm-image"), x_height=10)  # half of 10 pixels is 0.31 of a patch of 16
    assert halved.reached == pytest.approx(5 / 16, abs=0.01)
    assert "the resize rule of glm-image shrinks the page to 0.50 of its size whatever the limit" in str(halved.warning)
    assert "max_tokens" not in str(halved.warning)
    sliced = advise(page, family("minicpm-v4.7"), x_height=4)  # 9 slices of 448 x 448 pixels are 0.83 of its area
    assert "the resize rule of minicpm-v4.7 shrinks the page to 0.89" in str(sliced.warning)
    assert "cut the page into pieces" in str(sliced.warning)
    limited = advise(page, family("minicpm-v4.7"), x_height=9, max_tokens=300)
    assert str(limited.warning).startswith("the limit of 300 tokens shrinks the page")


def test_a_rule_that_halves_takes_fewer_tokens_than_the_limit() -> None:
    page, record = np.zeros((1754, 1240), np.uint8), family("glm-image")
    advice = advise(page, record, x_height=20)
    assert (advice.warning, advice.plan) == (None, plan(page, record, max_tokens=advice.max_tokens))
    assert 0.46 <= advice.reached < 0.48
    below = plan(page, record, max_tokens=advice.max_tokens - 1)
    assert min(below.resized[0] / 1754, below.resized[1] / 1240) * 20 / 16 < 0.46


def test_a_small_page_that_the_family_enlarges_is_legible() -> None:
    advice = advise(np.zeros((60, 100), np.uint8), family("paddleocr-vl"), x_height=5)
    assert advice.reached > 0.46
    assert advice.warning is None
    beyond_help = advise(np.zeros((1754, 1240), np.uint8), QWEN2, x_height=4, max_tokens=300)
    assert "no budget helps" in str(beyond_help.warning)  # nor would a higher limit


def test_refusals() -> None:
    with pytest.raises(ValueError, match="no lines of text were found on the page; give x_height"):
        advise(np.zeros((300, 200), np.uint8), QWEN2)
    with pytest.raises(ValueError, match="share is 0"):
        advise(np.zeros((300, 200), np.uint8), QWEN2, share=0, x_height=9)
    with pytest.raises(ValueError, match="x_height is -1"):
        advise(np.zeros((300, 200), np.uint8), QWEN2, x_height=-1)
    with pytest.raises((TypeError, ValueError), match="task"):
        advise(np.zeros((300, 200), np.uint8), QWEN2, cast(Task, "poetry"))


@pytest.mark.skipif(shutil.which("tesseract") is None, reason="needs tesseract: apt install tesseract-ocr")
def test_tesseract_reads_at_the_advised_size_and_not_at_a_quarter(tmp_path: Path) -> None:
    image, _ = set_page("NotoSerif-Regular", 26, height=1400, width=1300)
    advice = advise(image, QWEN2)
    recall = []
    for limit in (advice.max_tokens, advice.max_tokens // 4):
        (pixels,) = unpatchify(patchify(image, QWEN2, max_tokens=limit))
        path = tmp_path / f"{limit}.png"
        Image.fromarray(pixels.permute(1, 2, 0).contiguous().to(torch.uint8).numpy()).save(path)
        command = ["tesseract", str(path), "-", "--psm", "6"]
        read = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        found = set(re.findall(r"\w+", read))
        recall.append(len(found & set(WORDS)) / len(set(WORDS)))
    assert recall[0] > 0.9
    assert recall[1] < 0.5
