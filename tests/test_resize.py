"""Resized bytes equal torchvision's, lie interleaved, and are what the filter's formula says."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as some
from pictures import photograph
from torch import Tensor
from torchvision.transforms.v2 import InterpolationMode
from torchvision.transforms.v2.functional import resize as reference

from mrope.vision import resize
from mrope.vision.cutting.resize import Filter, interleaved
from mrope.vision.cutting.strips import strips
from mrope.vision.loading.pages import fresh

MODES: dict[Filter, InterpolationMode] = {
    "bicubic": InterpolationMode.BICUBIC,
    "bilinear": InterpolationMode.BILINEAR,
}
FILTERS = pytest.mark.parametrize("kind", MODES)
SIDES = some.integers(1, 90)


def photo(name: str = "coffee") -> Tensor:
    return torch.from_numpy(np.array(photograph(name))).permute(2, 0, 1)


def expected_of(pixels: Tensor, size: tuple[int, int], kind: Filter) -> Tensor:
    return reference(pixels.contiguous(), list(size), interpolation=MODES[kind], antialias=True)


@FILTERS
@pytest.mark.parametrize("size", [(280, 420), (476, 644), (400, 602), (399, 600), (28, 1400), (1, 2)], ids=str)
def test_photographs_equal_torchvision(kind: Filter, size: tuple[int, int]) -> None:
    for pixels in (photo(), photo().contiguous(), photo("astronaut")[:, 17:417:2, 9:]):
        resized = resize(pixels, size, filter=kind)
        assert torch.equal(resized, expected_of(pixels, size, kind))
        assert resized.permute(1, 2, 0).is_contiguous()


@settings(max_examples=60, deadline=None)
@given(sides=some.tuples(SIDES, SIDES), size=some.tuples(SIDES, SIDES), kind=some.sampled_from(sorted(MODES)))
def test_any_size_equals_torchvision(sides: tuple[int, int], size: tuple[int, int], kind: Filter) -> None:
    assume(size != (1, 1))  # torch stops at an internal error there, if the pixels are planes
    pixels = torch.randint(0, 256, (*sides, 3), dtype=torch.uint8).permute(2, 0, 1)
    assert torch.equal(resize(pixels, size, filter=kind), expected_of(pixels, size, kind))


@FILTERS
@pytest.mark.parametrize("rows", [1, 28, 100, 900])
@pytest.mark.parametrize("size", [(280, 420), (476, 644), (400, 602), (399, 600), (28, 1400), (400, 600)], ids=str)
def test_strips_are_the_whole_in_pieces(kind: Filter, rows: int, size: tuple[int, int]) -> None:
    for pixels in (photo(), photo().contiguous()):
        found = [strip.clone() for strip in strips(pixels, size, rows, filter=kind)]
        assert [strip.shape[1] for strip in found[:-1]] == [rows] * ((size[0] - 1) // rows)
        assert torch.equal(torch.cat(found, dim=1), resize(pixels, size, filter=kind))
    assert torch.equal(pixels, photo())


@settings(max_examples=100, deadline=None)
@given(
    sides=some.tuples(SIDES, SIDES), size=some.tuples(some.integers(1, 300), SIDES), rows=some.integers(1, 40),
    kind=some.sampled_from(sorted(MODES)), seed=some.integers(0, 9),
)  # fmt: skip
def test_strips_of_any_size(sides: tuple[int, int], size: tuple[int, int], rows: int, kind: Filter, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    # Black and white are where rounding and clipping show.
    pixels = (torch.randint(0, 2, (*sides, 3), generator=generator) * 255).to(torch.uint8).permute(2, 0, 1)
    found = torch.cat([strip.clone() for strip in strips(pixels, size, rows, filter=kind)], dim=1)
    assert torch.equal(found, resize(pixels, size, filter=kind))


@FILTERS
def test_strips_without_numba_or_whole_numbers(kind: Filter, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = resize(photo(), (476, 644), filter=kind)
    with monkeypatch.context() as patched:
        patched.setattr("mrope.vision.cutting.fused.installed", lambda: False)
        assert torch.equal(torch.cat(list(strips(photo(), (476, 644), 28, filter=kind)), dim=1), expected)
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "DEFAULT")
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    found = torch.cat(list(strips(photo(), (476, 644), 28, filter=kind)), dim=1)
    assert torch.equal(found, resize(photo(), (476, 644), filter=kind))


def test_strips_refuse_what_resize_refuses() -> None:
    for size, rows, message in [((5, 6), 0, "rows is 0"), ((0, 6), 3, "height is 0"), ((6, 0), 3, "width is 0")]:
        with pytest.raises(ValueError, match=message):
            next(strips(photo(), size, rows))
    with pytest.raises(ValueError, match="are none"):
        next(strips(torch.zeros(3, 0, 7, dtype=torch.uint8), (5, 6), 3))


def weights(source: int, target: int, support: float, kind: Filter) -> np.ndarray:
    """(target, source): the share of each source pixel, from the filter's formula in float64 (Keys 1981, a = -0.5)."""
    scale = source / target
    stretch = max(scale, 1.0)
    result = np.zeros((target, source))
    for to in range(target):
        centre = scale * (to + 0.5)
        for of in range(
            max(0, int(centre - support * stretch + 0.5)), min(source, int(centre + support * stretch + 0.5))
        ):
            away = abs((of + 0.5 - centre) / stretch)
            if kind == "bilinear":
                result[to, of] = max(0.0, 1 - away)
            elif away < 1:
                result[to, of] = 1.5 * away**3 - 2.5 * away**2 + 1
            elif away < 2:
                result[to, of] = -0.5 * away**3 + 2.5 * away**2 - 4 * away + 2
    return result / result.sum(axis=1, keepdims=True)


@FILTERS
@pytest.mark.parametrize("size", [(23, 31), (70, 20), (90, 110), (1, 1)], ids=str)
def test_the_formula(kind: Filter, size: tuple[int, int]) -> None:
    pixels = photo("chelsea")[:, 100:150, 200:260]
    support = 2.0 if kind == "bicubic" else 1.0
    down, right = (weights(*pair, support, kind) for pair in zip(pixels.shape[1:], size, strict=True))
    # Rows first, rounded to bytes in between, as the whole-number resize does it.
    across = np.clip(np.round(pixels.numpy() @ right.T), 0, 255)
    expected = np.clip(np.round(down @ across), 0, 255)
    assert np.abs(resize(pixels, size, filter=kind).numpy() - expected).max() <= 1


def test_same_size_is_returned_as_it_is() -> None:
    pixels = photo()
    assert resize(pixels, (400, 600)) is pixels
    out = torch.zeros(400, 600, 3, dtype=torch.uint8).permute(2, 0, 1)
    assert resize(pixels, (400, 600), out=out) is out
    assert torch.equal(out, pixels)


@FILTERS
def test_out_is_written_and_nothing_else(kind: Filter) -> None:
    pixels = photo()
    before = pixels.clone()
    memory = torch.full((304, 500, 3), 77, dtype=torch.uint8)
    out = memory[2:302].permute(2, 0, 1)
    assert resize(pixels, (300, 500), filter=kind, out=out) is out
    assert torch.equal(out, expected_of(pixels, (300, 500), kind))
    assert (memory[:2] == 77).all()
    assert (memory[302:] == 77).all()
    assert torch.equal(pixels, before)


@FILTERS
def test_processors_without_whole_numbers_equal_torchvision(kind: Filter, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "DEFAULT")
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    assert torch.equal(resize(photo(), (301, 502), filter=kind), expected_of(photo(), (301, 502), kind))


@pytest.mark.parametrize(
    ("size", "options", "message"),
    [
        ((0, 5), {}, "height is 0"),
        ((5, -1), {}, "width is -1"),
        ((5, 6), {"out": torch.zeros(3, 5, 6, dtype=torch.uint8)}, r"strides \(30, 6, 1\) on cpu; expected a view of"),
        ((5, 6), {"out": torch.zeros(6, 5, 3, dtype=torch.uint8).permute(2, 0, 1)}, r"contiguous \(5, 6, 3\)"),
    ],
)
def test_refused(size: tuple[int, int], options: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        resize(photo(), size, **options)


def test_no_pixels() -> None:
    with pytest.raises(ValueError, match=r"\(3, 0, 7\) are none"):
        resize(torch.zeros(3, 0, 7, dtype=torch.uint8), (5, 6))


def test_interleaved() -> None:
    pixels = photo()
    assert interleaved(pixels).data_ptr() == pixels.data_ptr()
    assert interleaved(pixels.contiguous()).stride() == pixels.stride()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.uint8], ids=str)
@pytest.mark.parametrize("shape", [(3, 5, 7), (0, 4), (1200, 1300)], ids=str)
def test_fresh_memory(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    tensor = fresh(shape, dtype)
    assert (tensor.shape, tensor.dtype, tensor.is_contiguous()) == (shape, dtype, True)
    assert torch.equal(tensor.fill_(3), torch.full(shape, 3, dtype=dtype))
    assert fresh((2,), dtype, "meta").is_meta


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@FILTERS
def test_on_a_gpu(kind: Filter) -> None:
    pixels = photo().cuda()
    assert torch.equal(resize(pixels, (301, 502), filter=kind), expected_of(pixels, (301, 502), kind))
