"""Many pictures: in order, bounded, lazily, and none that stops the others."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pictures import encoded, noise, photograph
from PIL import Image
from sources import ROOT

import mrope
from mrope.vision import Failure, Patches, PdfPage, Resized, patchify, patchify_all, plan

QWEN2 = mrope.family("qwen2-vl")
SIZES = [(30, 90), (400, 30), (60, 61), (29, 200), (90, 30), (500, 300), (28, 28)]


def pictures() -> list[np.ndarray]:
    return [noise(*size) for size in SIZES]


def workers_alive() -> int:
    return sum(thread.name.startswith("mrope") for thread in threading.enumerate())


@pytest.fixture(autouse=True)
def _all_threads_end() -> Iterator[None]:
    yield
    assert workers_alive() == 0


@pytest.mark.parametrize(("workers", "ahead"), [(1, 0), (2, 2), (3, 0), (9, 5), (None, 2)])
def test_results_are_those_of_patchify_in_order(workers: int | None, ahead: int) -> None:
    sources = pictures()
    found = list(patchify_all(sources, QWEN2, workers=workers, ahead=ahead, max_tokens=60))
    assert len(found) == len(sources)
    for patches, source in zip(found, sources, strict=True):
        expected = patchify(source, QWEN2, max_tokens=60)
        assert isinstance(patches, Patches)
        assert patches.plans == expected.plans
        assert torch.equal(patches.values, expected.values)


def test_order_does_not_depend_on_who_is_done_first(monkeypatch: pytest.MonkeyPatch) -> None:
    def slow(source: Any, *given: Any, **settings: Any) -> Patches:
        time.sleep(0.1 if source.shape[0] == 30 else 0)
        return patchify(source, *given, **settings)

    monkeypatch.setattr("mrope.vision.cutting.pool.patchify", slow)
    found = list(patchify_all(pictures(), QWEN2, workers=3))
    assert [outcome.plans[0].original for outcome in found if isinstance(outcome, Patches)] == SIZES


@pytest.mark.parametrize(("name", "value"), [("dtype", "uint8"), ("dtype", "bfloat16"), ("impl", "eager")])
def test_settings_reach_patchify(name: str, value: Any) -> None:
    (patches,) = patchify_all([noise(60, 90)], QWEN2, **{name: value})
    assert isinstance(patches, Patches)
    assert patches.values.dtype == getattr(torch, value if name == "dtype" else "float32")
    (small,) = patchify_all([noise(100, 9)], QWEN2, min_tokens=1, max_tokens=2, conflict="family")
    assert isinstance(small, Patches)
    assert (
        small.values.shape[0]
        == patchify(noise(100, 9), QWEN2, min_tokens=1, max_tokens=2, conflict="family").plans[0].patches
    )


def test_settings_of_loading_reach_load() -> None:
    sheet = encoded(Image.new("RGBA", (30, 60), (0, 0, 0, 0)), "PNG")
    (patches,) = patchify_all([sheet], QWEN2, background=(255, 0, 0), dtype="uint8")
    assert isinstance(patches, Patches)
    assert patches.values.view(-1, 3, 14 * 14)[:, :, 0].unique(dim=0).tolist() == [[255, 0, 0]]
    stream = patchify_all([sheet], QWEN2, max_pixels=100, on_error="skip")
    assert list(stream) == []
    assert "max_pixels=100" in str(stream.skipped[0].error)


@pytest.mark.parametrize(("workers", "ahead"), [(1, 0), (2, 0), (2, 3)])
def test_sources_are_taken_when_there_is_room(workers: int, ahead: int) -> None:
    taken = []

    def endless() -> Iterator[np.ndarray]:
        while True:
            taken.append(len(taken))
            yield noise(30, 60)

    stream = patchify_all(endless(), QWEN2, workers=workers, ahead=ahead)
    assert not taken
    for given in range(5):
        next(stream)
        assert len(taken) == given + workers + ahead  # those in the pool, and the one given out
    stream.close()
    assert workers_alive() == 0
    assert list(stream) == []


def test_no_more_pictures_are_alive_than_promised(monkeypatch: pytest.MonkeyPatch) -> None:
    import weakref

    alive: weakref.WeakSet[Any] = weakref.WeakSet()
    most = 0

    class Counted(np.ndarray):
        pass

    def counted() -> Iterator[np.ndarray]:
        nonlocal most
        for _ in range(30):
            source = noise(30, 60).view(Counted)
            alive.add(_Key(source))
            most = max(most, len(alive))
            yield source
            del source

    class _Key:
        """Lives as long as the array, which it is stored on."""

        def __init__(self, array: Any) -> None:
            array.key = self

    for _ in patchify_all(counted(), QWEN2, workers=2, ahead=1):
        time.sleep(0.001)
    assert 2 <= most <= 2 + 1 + 1  # one is made before the pool asks whether there is room for the next


def broken_files(tmp_path: Path) -> list[Any]:
    good, cut = tmp_path / "good.jpg", tmp_path / "cut.jpg"
    data = encoded(photograph("chelsea"), "JPEG")
    good.write_bytes(data)
    cut.write_bytes(data[:4000])
    return [good, cut, noise(60, 90), tmp_path / "missing.png", noise(2, 900), object(), good]


def test_a_bad_picture_raises_in_its_turn_and_names_its_file(tmp_path: Path) -> None:
    stream = patchify_all(broken_files(tmp_path), QWEN2, workers=3, max_tokens=64)
    assert isinstance(next(stream), Patches)
    with pytest.raises(ValueError, match=r"cut\.jpg: broken or unreadable"):
        next(stream)
    assert workers_alive() == 0
    with pytest.raises(StopIteration):
        next(stream)


@pytest.mark.parametrize("workers", [1, 3])
def test_bad_pictures_are_skipped_and_listed(tmp_path: Path, workers: int) -> None:
    stream = patchify_all(broken_files(tmp_path), QWEN2, workers=workers, on_error="skip", max_tokens=64)
    found = list(stream)
    assert [isinstance(patches, Patches) for patches in found] == [True] * 3
    assert [failure.index for failure in stream.skipped] == [1, 3, 4, 5]
    assert [Path(failure.name).name for failure in stream.skipped] == [
        "cut.jpg",
        "missing.png",
        "picture 4",
        "picture 5",
    ]
    errors = [failure.error for failure in stream.skipped]
    assert [type(error) for error in errors[:3]] == [ValueError, FileNotFoundError, ValueError]
    assert "cut.jpg" in str(errors[0])
    assert "missing.png" in str(errors[1])
    assert str(errors[2]).startswith("picture 4: 900 wide x 2 high")


def test_bad_pictures_are_kept_in_their_places(tmp_path: Path) -> None:
    stream = patchify_all(broken_files(tmp_path), QWEN2, workers=2, on_error="keep", max_tokens=64)
    found = list(stream)
    assert [outcome.index if isinstance(outcome, Failure) else None for outcome in found] == [
        None, 1, None, 3, 4, 5, None,
    ]  # fmt: skip
    assert stream.skipped == []


def test_whatever_happens_in_one_picture_the_others_come(monkeypatch: pytest.MonkeyPatch) -> None:
    def fragile(source: Any, *given: Any, **settings: Any) -> Patches:
        if source.shape[0] == 60:
            raise MemoryError("no room")
        return patchify(source, *given, **settings)

    monkeypatch.setattr("mrope.vision.cutting.pool.patchify", fragile)
    stream = patchify_all(pictures(), QWEN2, workers=2, on_error="skip")
    assert len(list(stream)) == len(SIZES) - 1
    assert isinstance(stream.skipped[0].error, MemoryError)


def test_a_missing_package_is_no_picture_s_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mrope.vision.cutting.fused.installed", lambda: False)
    with pytest.raises(ImportError, match=r"mrope\[fast\]"):
        list(patchify_all(pictures(), QWEN2, on_error="skip", impl="numba"))


def test_an_error_of_the_sources_is_theirs() -> None:
    def failing() -> Iterator[np.ndarray]:
        yield noise(30, 60)
        raise RuntimeError("the disk is gone")

    with pytest.raises(RuntimeError, match="the disk is gone"):
        list(patchify_all(failing(), QWEN2, workers=2, on_error="skip"))


def test_leaving_early_stops_the_pool() -> None:
    with patchify_all(pictures(), QWEN2, workers=2) as stream:
        next(stream)
    assert workers_alive() == 0
    for _ in patchify_all(pictures(), QWEN2, workers=2):
        break
    assert workers_alive() == 0  # the iterator is gone


def test_torch_keeps_its_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    inside = []

    def watched(*given: Any, **settings: Any) -> Patches:
        inside.append(torch.get_num_threads())
        return patchify(*given, **settings)

    def of_a_new_thread() -> int:
        found: list[int] = []
        thread = threading.Thread(target=lambda: found.append(torch.get_num_threads()))
        thread.start()
        thread.join()
        return found[0]

    monkeypatch.setattr("mrope.vision.cutting.pool.patchify", watched)
    torch.set_num_threads(3)
    try:
        list(patchify_all(pictures(), QWEN2, workers=2))
        assert (inside[0], set(inside[1:])) == (3, {1})  # the first tries the settings, before the pool
        assert (torch.get_num_threads(), of_a_new_thread()) == (3, 3)
    finally:
        torch.set_num_threads(1)


def test_progress(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    list(patchify_all(broken_files(tmp_path), QWEN2, on_error="keep", progress=True, max_tokens=64))
    out, err = capsys.readouterr()
    assert out == ""
    assert "pictures, 4 failed" in err
    assert "7/7" in err


def test_interrupted() -> None:
    # The caller waits for a large picture when the signal comes: inside a lock of Python's it could hang any program.
    code = """
import itertools, os, signal, threading, mrope, numpy
from mrope.vision import patchify_all
small, large = (numpy.zeros(shape, numpy.uint8) for shape in ((30, 40), (6000, 5000)))
pictures = itertools.chain([small], itertools.repeat(large))
signal.signal(signal.SIGINT, signal.default_int_handler)  # what a shell starts in the background ignores it
stream = patchify_all(pictures, mrope.family("qwen2-vl"), workers=2, dtype="uint8")
next(stream)
threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
try:
    with stream:  # the signal may also come between two results, where only the caller can close
        for patches in stream: pass
except KeyboardInterrupt:
    print("stopped", sum(thread.name.startswith("mrope") for thread in threading.enumerate()))
"""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False, timeout=120
    )
    assert done.stdout == "stopped 0\n", done.stderr


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"workers": 0}, "workers is 0; expected at least 1"),
        ({"ahead": -1}, "ahead is -1; expected at least 0"),
        ({"max_tokens": 0}, "max_tokens is 0; expected at least 1"),
        ({"min_tokens": 90, "max_tokens": 80}, "min_tokens is 90"),
        ({"background": "nocolour"}, "nocolour"),
        ({"device": "meta", "impl": "numba"}, "impl 'numba' needs CPU tensors"),
        ({"device": "cuda:99"}, "device is 'cuda:99'; expected one that torch finds here"),
        ({"device": "abacus"}, "device is 'abacus'; expected one that torch finds here"),
        ({"background": (300, 0, 0)}, r"background is \(300, 0, 0\)"),
        ({"max_pixels": None}, "max_pixels"),
        ({"max_pixels": 1e6}, "max_pixels"),
        ({"max_pixels": 0}, "max_pixels is 0"),
        ({"max_tokens": 1.5}, "max_tokens"),
        ({"max_tokens": "9"}, "max_tokens"),
    ],
)
def test_wrong_settings_are_refused_at_once_and_name_no_picture(settings: dict[str, Any], message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message) as caught:
        patchify_all(pictures(), QWEN2, on_error="skip", **settings)
    assert "picture 0" not in str(caught.value)


def test_a_limit_that_the_rule_lacks_is_a_mistake_of_the_call() -> None:
    with pytest.raises(ValueError, match=r"^min_tokens is 5; the resize rule 'padded' of neomme has no least"):
        patchify_all(pictures(), mrope.family("neomme"), on_error="skip", min_tokens=5)
    # Limits that need no memory before a picture asks for it.
    assert isinstance(patchify_all([], QWEN2, min_tokens=10**9, max_tokens=10**9), Iterator)


@pytest.mark.parametrize(
    "one",
    [
        "photo.jpg",
        b"bytes of a file",
        noise(60, 90),
        noise(60, 90)[..., 0],
        torch.zeros(3, 60, 90, dtype=torch.uint8),
        Image.new("RGB", (90, 60)),
        PdfPage("a.pdf", 1, (841.89, 595.28)),
        (60, 90),
        {"name": noise(60, 90)},
        Resized(torch.zeros(3, 56, 84, dtype=torch.uint8), plan((60, 90), QWEN2)),
    ],
    ids=lambda one: type(one).__name__,
)
def test_one_picture_is_not_taken_for_its_rows(one: Any) -> None:
    with pytest.raises((TypeError, ValueError), match=r"expected several pictures, such as \[picture\]|sources"):
        patchify_all(one, QWEN2)


def test_an_array_of_four_axes_is_many_pictures() -> None:
    batch = torch.from_numpy(np.stack([noise(60, 90), noise(60, 90)])).permute(0, 3, 1, 2)
    for sources in (batch, batch.numpy()):
        found = [outcome for outcome in patchify_all(sources, QWEN2) if isinstance(outcome, Patches)]
        assert [outcome.plans[0].original for outcome in found] == [(60, 90)] * 2
        assert torch.equal(found[1].values, patchify(batch[1], QWEN2).values)


def test_what_is_no_picture_is_called_by_its_place() -> None:
    sources: list[Any] = [noise(60, 90), object(), [noise(60, 90)] * 2]
    stream = patchify_all(sources, QWEN2, on_error="keep")
    errors = [str(outcome.error) for outcome in stream if isinstance(outcome, Failure)]
    assert [error.split(" is ")[0] for error in errors] == ["picture 1", "picture 2"]


def test_what_came_before_the_iterator_broke_is_given_out() -> None:
    def sources() -> Iterator[np.ndarray]:
        for side in (56, 84, 112, 140, 168):
            yield noise(56, side)
        raise RuntimeError("the disk is gone")

    stream, grids = patchify_all(sources(), mrope.family("qwen2-vl"), workers=2), []
    with pytest.raises(RuntimeError, match="the disk is gone"):
        grids.extend(one.grids.tolist() for one in stream if isinstance(one, Patches))
    assert grids == [[[1, 4, cols]] for cols in (4, 6, 8, 10, 12)]
