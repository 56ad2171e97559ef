"""Pages of a PDF are measured from their boxes, and rendered at exactly the size that is asked for."""

from __future__ import annotations

import builtins
import pickle
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from bad_files import encrypted_pdf, pdf
from pictures import encoded, photograph
from torch import Tensor

import mrope
from mrope.vision import PdfPage, load, measure, patchify, pdf_pages, plan, render, unpatchify

# The page of 300 x 200 points: red at its lower left, 60 wide and 50 high; green at its upper right, 90 x 40.
CONTENT = b"1 0 0 rg 0 0 60 50 re f 0 1 0 rg 210 160 90 40 re f"
TEXT = b"BT /F 24 Tf 40 90 Td (Seen at its own size) Tj ET"


def shown(pixels: Tensor) -> list[list[tuple[int, int, int]]]:
    """The colours at the four corners, row by row."""
    corners = pixels[:, [0, -1]][:, :, [0, -1]].permute(1, 2, 0).tolist()
    return [[tuple(colour) for colour in row] for row in corners]


RED, GREEN, WHITE = (255, 0, 0), (0, 255, 0), (255, 255, 255)


@pytest.mark.parametrize(
    ("entries", "size", "corners"),
    [
        (b"", (200, 300), [[WHITE, GREEN], [RED, WHITE]]),
        (b"/Rotate 90", (300, 200), [[RED, WHITE], [WHITE, GREEN]]),
        (b"/Rotate 180", (200, 300), [[WHITE, RED], [GREEN, WHITE]]),
        (b"/CropBox [0 0 100 60]", (60, 100), [[WHITE, WHITE], [RED, WHITE]]),
        (b"/CropBox [200 40 300 200] /Rotate 270", (100, 160), [[GREEN, WHITE], [WHITE, WHITE]]),
    ],
    ids=["plain", "turned", "upside down", "cropped", "cropped and turned"],
)
def test_boxes_and_rotation(
    entries: bytes, size: tuple[int, int], corners: list[list[tuple[int, int, int]]], tmp_path: Path
) -> None:
    path = tmp_path / "some.pdf"
    path.write_bytes(pdf([CONTENT], entries=entries))
    for source in (path, str(path), path.read_bytes()):
        (page,) = pdf_pages(source, dpi=72)
        assert measure(page) == (size, 1)
        assert shown(load(page)) == corners


def test_size_in_pixels() -> None:
    (page,) = pdf_pages(pdf(box=(0, 0, 612, 792.1)))
    assert page.size == (2200, 1700)
    assert page.dpi == 200
    assert pdf_pages(pdf(box=(0, 0, 612, 792)), dpi=36.5)[0].size == (402, 310)
    assert pdf_pages(pdf(box=(0, 0, 0.5, 500)), dpi=72)[0].size == (500, 1)


def test_each_side_is_scaled_on_its_own() -> None:
    (page,) = pdf_pages(pdf([CONTENT]))
    pixels = render(page, (100, 900))
    assert pixels.shape == (3, 100, 900)
    assert pixels.dtype == torch.uint8
    assert pixels.stride() == (1, 2700, 3)
    expected = np.full((100, 900, 3), 255)
    expected[75:, :180] = RED  # 50 of 200 points high, 60 of 300 wide
    expected[:20, 630:] = GREEN
    np.testing.assert_array_equal(pixels.permute(1, 2, 0).numpy(), expected)
    pixels.add_(1)  # writable


def test_a_picture_on_a_page() -> None:
    photo = photograph("coffee")
    (page,) = pdf_pages(encoded(photo, "PDF", resolution=72, quality=100, subsampling=0), dpi=72)
    difference = load(page).permute(1, 2, 0).numpy().astype(int) - np.asarray(photo)
    assert difference.shape == (400, 600, 3)
    assert np.abs(difference).mean() < 2


def test_text_has_gray_edges() -> None:
    (page,) = pdf_pages(pdf([TEXT]))
    pixels = render(page, (400, 600))
    assert torch.equal(pixels[0], pixels[1])  # no colours of LCD subpixels
    assert torch.equal(pixels[0], pixels[2])
    assert 0.01 < (pixels < 128).float().mean() < 0.1
    rows = (pixels[0] < 128).any(dim=1).nonzero()[[0, -1], 0]
    assert 170 < rows[0] < rows[1] < 235  # capitals end 18 points above the base line at 90 of 200 points from below


def test_pages_of_a_long_file_are_their_own(tmp_path: Path) -> None:
    path = tmp_path / "long.pdf"
    path.write_bytes(pdf([b"%g g 0 0 300 200 re f" % (number / 255) for number in range(200)]))
    pages = pdf_pages(path, dpi=10)
    assert [page.number for page in pages] == list(range(1, 201))
    with ThreadPoolExecutor(4) as pool:
        colours = [int(pixels[0, 5, 5]) for pixels in pool.map(load, pages)]
    assert colours == list(range(200))


def test_a_page_is_a_picture_to_plans_and_patches() -> None:
    family = mrope.family("qwen2.5-vl")
    (page,) = pdf_pages(pdf([CONTENT]), dpi=72)
    assert plan(page, family).grid == plan((200, 300), family).grid
    patches = patchify(load(page), family)
    assert torch.equal(patchify(page, family).grids, patches.grids)
    (shown_again,) = unpatchify(patchify(page, family))
    assert shown(shown_again) == [[WHITE, GREEN], [RED, WHITE]]


def test_a_page_can_be_sent(tmp_path: Path) -> None:
    path = tmp_path / "some.pdf"
    path.write_bytes(pdf([CONTENT]))
    for source in (path, path.read_bytes()):
        (page,) = pdf_pages(source, dpi=30)
        sent = pickle.loads(pickle.dumps(page))
        assert sent == page
        assert torch.equal(load(sent), load(page))


def test_huge_pages_are_refused_before_they_are_rendered(tmp_path: Path) -> None:
    path = tmp_path / "huge.pdf"
    path.write_bytes(pdf(box=(0, 0, 14400, 14000)))
    (page,) = pdf_pages(path)
    assert measure(page)[0] == (38889, 40000)
    with pytest.raises(ValueError, match=r"huge\.pdf, page 1: 40000 wide x 38889 high .* max_pixels=.* smaller dpi"):
        load(page)
    with pytest.raises(ValueError, match="more than max_pixels=99"):
        render(page, (10, 10), max_pixels=99)
    assert render(page, (10, 12)).shape == (3, 10, 12)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "the file is empty"),
        (b"%PDF-1.7", "broken or no PDF"),
        (pdf()[:200], "broken or no PDF"),
        (encoded(photograph("coffee"), "PNG"), "broken or no PDF"),
        (encrypted_pdf(), "encrypted"),
    ],
    ids=["empty", "header", "cut", "PNG", "encrypted"],
)
def test_broken_files(content: bytes, message: str, tmp_path: Path) -> None:
    path = tmp_path / "some.pdf"
    path.write_bytes(content)
    for source, name in ((path, r"some\.pdf"), (content, f"PDF of {len(content)} bytes")):
        with pytest.raises(ValueError, match=f"{name}: {message}") as caught:
            pdf_pages(source)
        assert "\n" not in str(caught.value)
        with pytest.raises(ValueError, match=f"{name}: {message}"):
            load(PdfPage(source, 1, (200, 300)))


def test_damage_gives_pages_or_one_line() -> None:
    file, random = pdf([CONTENT, TEXT]), np.random.default_rng(0)
    for _ in range(150):
        broken = np.frombuffer(file, np.uint8).copy()
        broken[random.integers(0, len(file), 4)] = random.integers(0, 256, 4)
        message = None
        try:
            for page in pdf_pages(broken.tobytes(), dpi=10):
                load(page, max_pixels=10**6)
        except ValueError as error:
            message = str(error)
        assert message is None or re.fullmatch(rf"PDF of {len(file)} bytes.+", message)


def test_refused_arguments(tmp_path: Path) -> None:
    source = pdf()
    with pytest.raises(ValueError, match="page 3: the last page of the file is 1"):
        load(PdfPage(source, 3, (200, 300)))
    with pytest.raises(ValueError, match="number is 0; expected at least 1"):
        PdfPage(source, 0, (200, 300))
    with pytest.raises(ValueError, match="dpi is 0; expected a finite number above 0"):
        pdf_pages(source, dpi=0)
    with pytest.raises(ValueError, match="points is -1; expected a finite number above 0"):
        PdfPage(source, 1, (200, -1))
    with pytest.raises(ValueError, match="size is 0; expected at least 1"):
        render(pdf_pages(source)[0], (0, 5))
    for path in (tmp_path / "missing.pdf", tmp_path):
        with pytest.raises(OSError, match=path.name):
            pdf_pages(path)


def test_without_pypdfium2_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    found = builtins.__import__

    def missing(name: str, *args: Any, **options: Any) -> Any:
        if name.startswith("pypdfium2"):
            raise ImportError(name)
        return found(name, *args, **options)

    monkeypatch.setattr(builtins, "__import__", missing)
    with pytest.raises(ImportError, match=r"need pypdfium2, .* pip install 'mrope\[pdf\]'"):
        pdf_pages(pdf())
