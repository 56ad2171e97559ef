"""Patches equal transformers' processors to the bit, lie in merge-block order, and give the picture back."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pictures import encoded, exif, noise, photograph
from PIL import Image, ImageSequence
from torch import Tensor
from transformers import Qwen2VLImageProcessor, Qwen2VLVideoProcessor, Qwen3VLVideoProcessor

from mrope import Family, family, family_names
from mrope.vision import Patches, Resized, load, patchify, patchify_video, plan, plan_video, read_clip, unpatchify

QWEN2, QWEN3 = family("qwen2-vl"), family("qwen3-vl")
FAMILIES = pytest.mark.parametrize("record", [QWEN2, QWEN3], ids=lambda record: record.name)


def settings(record: Family, limits: tuple[int, int]) -> dict[str, Any]:
    """A family as the keyword arguments of a transformers processor."""
    return {
        "size": {"shortest_edge": limits[0], "longest_edge": limits[1]},
        "patch_size": record.patch,
        "temporal_patch_size": record.temporal_patch,
        "merge_size": record.merge,
        "image_mean": list(record.mean),
        "image_std": list(record.std),
    }


def reference(record: Family, images: list[Any], tokens: tuple[int, int] | None = None) -> tuple[Tensor, Tensor]:
    assert record.image_tokens is not None
    least, most = record.image_tokens if tokens is None else tokens
    processor = Qwen2VLImageProcessor(**settings(record, (least * record.factor**2, most * record.factor**2)))
    batch = processor(images, return_tensors="pt")
    return batch["pixel_values"], batch["image_grid_thw"]


def reference_video(record: Family, frames: Tensor) -> tuple[Tensor, Tensor]:
    assert record.video_pixels is not None
    made = Qwen2VLVideoProcessor if record.video_budget == "frame" else Qwen3VLVideoProcessor
    processor = made(**settings(record, record.video_pixels), do_sample_frames=False, cap_pixels_per_frame=False)
    batch = processor([frames], return_tensors="pt")
    return batch["pixel_values_videos"], batch["video_grid_thw"]


def assert_same(patches: Patches, expected: tuple[Tensor, Tensor]) -> None:
    values, grids = expected
    assert torch.equal(patches.grids, grids)
    assert torch.equal(patches.values, values)


@FAMILIES
@pytest.mark.parametrize("name", ["astronaut", "coffee", "chelsea", "rocket"])
@pytest.mark.parametrize("tokens", [None, (64, 100), (500, 900)], ids=["family", "smaller", "larger"])
def test_photographs_equal_transformers(record: Family, name: str, tokens: tuple[int, int] | None) -> None:
    photo = photograph(name)
    least, most = tokens or (None, None)
    assert_same(patchify(photo, record, min_tokens=least, max_tokens=most), reference(record, [photo], tokens))


@FAMILIES
@pytest.mark.parametrize("size", [(1, 1), (480, 640), (3, 500), (639, 31), (100, 17), (56, 84)], ids=str)
def test_odd_sizes_equal_transformers(record: Family, size: tuple[int, int]) -> None:
    image = Image.fromarray(noise(*size))
    assert_same(patchify(image, record), reference(record, [image]))


@FAMILIES
def test_a_list_equals_transformers(record: Family, tmp_path: Path) -> None:
    photos = [photograph("coffee"), photograph("chelsea"), photograph("coffee").crop((0, 0, 300, 451)).rotate(5)]
    path = tmp_path / "chelsea.jpg"
    photos[1].save(path)
    photos[1] = Image.open(path)
    sources = [np.array(photos[0]), path, torch.from_numpy(np.array(photos[2])).permute(2, 0, 1)]
    patches = patchify(sources, record, max_tokens=200)
    assert record.image_tokens is not None
    assert_same(patches, reference(record, photos, (record.image_tokens[0], 200)))
    assert patches.plans == tuple(plan(source, record, max_tokens=200) for source in sources)
    assert_same(record.patchify(sources, max_tokens=200), (patches.values, patches.grids))


def test_turned_and_transparent_pictures_equal_transformers_on_the_upright_opaque_one() -> None:
    photo = photograph("chelsea")
    turned = encoded(photo, "PNG", exif=exif(8))
    patches = patchify(turned, QWEN2, max_tokens=100)
    assert_same(patches, reference(QWEN2, [photo.rotate(90, expand=True)], (4, 100)))
    assert (patches.plans[0].original, patches.plans[0].orientation) == ((451, 300), 8)
    photo.putalpha(Image.linear_gradient("L").resize(photo.size))
    assert_same(patchify(encoded(photo, "PNG"), QWEN2), reference(QWEN2, [photo]))


def test_merge_block_order() -> None:
    numbers = torch.arange(16, dtype=torch.uint8).reshape(4, 4)
    picture = numbers.repeat_interleave(14, dim=0).repeat_interleave(14, dim=1)
    patches = patchify(picture, QWEN2)
    order = [int(patch.mul(QWEN2.std[0] * 255).add(QWEN2.mean[0] * 255).round()) for patch in patches.values[:, 0]]
    assert order == [0, 1, 4, 5, 2, 3, 6, 7, 8, 9, 12, 13, 10, 11, 14, 15]


def test_inside_of_a_patch() -> None:
    picture = torch.from_numpy(noise(56, 84)).permute(2, 0, 1)
    patches = patchify(picture, QWEN2)
    # Patch 6 in merge-block order stands in patch row 1, column 2; its values run channel, frame, row, column.
    cut = picture[:, 14:28, 28:42].double() / 255
    mean, std = (torch.tensor(colour, dtype=torch.float64).view(3, 1, 1) for colour in (QWEN2.mean, QWEN2.std))
    expected = ((cut - mean) / std).unsqueeze(1).expand(3, 2, 14, 14).float()
    torch.testing.assert_close(patches.values[6].view(3, 2, 14, 14), expected, rtol=1e-6, atol=1e-6)
    assert patches.grids.tolist() == [[1, 4, 6]]


@FAMILIES
def test_unpatchify_gives_back_every_level_of_every_channel(record: Family) -> None:
    height, width = 4 * record.factor, 9 * record.factor
    pixels = torch.arange(3 * height * width).reshape(3, height, width)
    picture = ((pixels + 85 * torch.arange(3).view(3, 1, 1)) % 256).to(torch.uint8)
    (again,) = unpatchify(patchify(picture, record, min_tokens=1))
    assert torch.equal(again, picture)


@FAMILIES
def test_unpatchify_gives_back_the_resized_pictures(record: Family) -> None:
    from torchvision.transforms.v2 import InterpolationMode
    from torchvision.transforms.v2.functional import resize

    photos = [photograph("coffee"), photograph("rocket")]
    patches = patchify(photos, record, max_tokens=150)
    for photo, planned, again in zip(photos, patches.plans, unpatchify(patches), strict=True):
        pixels = load(photo).contiguous()
        assert torch.equal(again, resize(pixels, list(planned.resized), InterpolationMode.BICUBIC, antialias=True))


def clip(frames: int, height: int = 90, width: int = 140) -> Tensor:
    """Neighbouring cuts of a photograph: (frames, 3, height, width)."""
    photo = load(photograph("astronaut")).contiguous()
    return torch.stack([photo[:, 7 * k : 7 * k + height, 9 * k : 9 * k + width] for k in range(frames)])


@FAMILIES
@pytest.mark.parametrize("frames", [2, 3, 4, 5, 8])
def test_clips_equal_transformers(record: Family, frames: int) -> None:
    patches = patchify_video(clip(frames), record, fps=4.0)
    assert_same(patches, reference_video(record, clip(frames)))
    assert patches.plans[0].seconds == 0.5
    assert_same(record.patchify_video(clip(frames).numpy()), (patches.values, patches.grids))


@FAMILIES
def test_a_small_budget_equals_transformers(record: Family) -> None:
    tokens = 12 if record.video_budget == "frame" else 36
    unit = record.factor**2 * (1 if record.video_budget == "frame" else record.temporal_patch)
    limited = replace(record, video_pixels=(unit, tokens * unit))
    patches = patchify_video(clip(6), record, min_tokens=1, max_tokens=tokens)
    assert_same(patches, reference_video(limited, clip(6)))
    assert patches.plans[0].tokens <= tokens * (3 if record.video_budget == "frame" else 1)


@FAMILIES
def test_one_frame_is_repeated(record: Family) -> None:
    patches = patchify_video(clip(1), record)
    assert_same(patches, reference_video(record, clip(1).repeat(2, 1, 1, 1)))
    assert patches.plans[0].frames == 1


@FAMILIES
@pytest.mark.parametrize("frames", [1, 4, 5])
def test_unpatchify_clips(record: Family, frames: int) -> None:
    height, width = 3 * record.factor, 5 * record.factor
    (again,) = unpatchify(patchify_video(clip(frames, height, width), record))
    assert torch.equal(again, clip(frames, height, width))


@pytest.mark.parametrize("kind", ["GIF", "WEBP", "PNG"])
def test_animated_files(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "clip"
    images = [Image.fromarray(frame.permute(1, 2, 0).numpy()) for frame in clip(3)]
    images[0].save(path, kind, save_all=True, append_images=images[1:], duration=250)
    with Image.open(path) as file:
        frames = torch.stack(
            [torch.from_numpy(np.array(frame.convert("RGB"))) for frame in ImageSequence.Iterator(file)]
        )
    expected = patchify_video(frames.permute(0, 3, 1, 2), QWEN2, fps=4.0)
    whole = read_clip(path, indices=range(3))
    patches = patchify_video(whole, QWEN2)
    assert_same(patches, (expected.values, expected.grids))
    assert patches.plans == (replace(expected.plans[0], source=str(path)),)
    assert patches.plans == (plan_video(whole, QWEN2),)
    sampled, again = patchify_video(path, QWEN2), patchify_video(read_clip(path, QWEN2), QWEN2)
    assert_same(sampled, (again.values, again.grids))
    assert sampled.plans == again.plans == (QWEN2.plan_video(path),)
    assert sampled.plans[0].frames == 2


def test_inputs_are_not_written_to() -> None:
    picture, frames = noise(60, 90), clip(3)
    before = picture.copy(), frames.clone()
    patchify(picture, QWEN2)
    patchify_video(frames, QWEN2)
    np.testing.assert_array_equal(picture, before[0])
    assert torch.equal(frames, before[1])


def test_errors_name_the_picture(tmp_path: Path) -> None:
    good, thin, broken = noise(60, 90), noise(2, 500), tmp_path / "broken.jpg"
    broken.write_bytes(encoded(photograph("chelsea"), "JPEG")[:5000])
    with pytest.raises(ValueError, match=r"^picture 1: 500 wide x 2 high is 250\.0 to 1"):
        patchify([good, thin], QWEN2)
    with pytest.raises(ValueError, match=r"broken\.jpg: broken or unreadable picture"):
        patchify([good, broken], QWEN2)
    with pytest.raises(ValueError, match="images is empty"):
        patchify([], QWEN2)


@pytest.mark.parametrize(
    ("frames", "message"),
    [
        (torch.zeros(4, 60, 90, 3, dtype=torch.uint8), r"shape \(4, 60, 90, 3\); expected uint8 \(frames, 3, H, W\)"),
        (torch.zeros(4, 3, 60, 90), "torch.float32 of shape"),
        (torch.zeros(0, 3, 60, 90, dtype=torch.uint8), r"shape \(0, 3, 60, 90\); expected"),
    ],
)
def test_refused_frames(frames: Tensor, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        patchify_video(frames, QWEN2)


def test_patches_check_themselves() -> None:
    patches = patchify(noise(60, 90), QWEN2)
    with pytest.raises(ValueError, match="are not those of the plans"):
        replace(patches, grids=patches.grids[:, [0, 2, 1]])
    with pytest.raises(ValueError, match="do not fill the grids"):
        replace(patches, values=patches.values[1:])


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_devices_agree() -> None:
    photo = photograph("coffee")
    assert torch.equal(patchify(photo, QWEN3, device="cuda").values.cpu(), patchify(photo, QWEN3).values)


def test_plans_that_were_made_before() -> None:
    pictures = [noise(60, 90), noise(300, 200)]
    plans = plan(pictures, QWEN2, max_tokens=40)
    before, now = patchify(pictures, QWEN2, plans=plans), patchify(pictures, QWEN2, max_tokens=40)
    assert_same(before, (now.values, now.grids))
    with pytest.raises(ValueError, match="plan 0 is of a picture for qwen2-vl; expected one of a picture for qwen3-vl"):
        patchify(pictures, QWEN3, plans=plans)
    # The same patches and tokens a side, but other limits.
    with pytest.raises(ValueError, match=r"plan 0 is of a picture for qwen2-vl; expected .* for qwen2.5-vl"):
        patchify(pictures, family("qwen2.5-vl"), plans=plans)
    clip = QWEN2.plan_video((4, 60, 90))
    with pytest.raises(ValueError, match="plan 1 is of a clip for qwen2-vl; expected one of a picture for qwen2-vl"):
        patchify(pictures, QWEN2, plans=[plans[0], clip])
    with pytest.raises(ValueError, match="2 plans came for 1 pictures"):
        patchify(pictures[:1], QWEN2, plans=plans)
    with pytest.raises(ValueError, match="expected one each, and no limits nor conflict"):
        patchify(pictures, QWEN2, plans=plans, max_tokens=9)
    with pytest.raises(ValueError, match=r"picture 0: decoded to \(300, 200\) .* its plan is for \(60, 90\)"):
        patchify(pictures[::-1], QWEN2, plans=plans)


def test_one_plan_for_one_picture_comes_in_a_list() -> None:
    picture = noise(60, 90)
    with pytest.raises(TypeError, match="plans"):
        patchify(picture, QWEN2, plans=plan(picture, QWEN2))  # pyright: ignore[reportArgumentType]


def test_resized_pixels_of_another_family_or_kind_are_refused() -> None:
    still = Resized(torch.zeros(3, 56, 84, dtype=torch.uint8), QWEN2.plan((56, 84)))
    moving = Resized(torch.zeros(4, 3, 56, 84, dtype=torch.uint8), QWEN2.plan_video((4, 56, 84), min_tokens=1))
    assert patchify(still, QWEN2).plans == (still.plan,)
    assert patchify_video(moving, QWEN2).plans == (moving.plan,)
    for make in (lambda: patchify(still, family("qwen2.5-vl")), lambda: plan([still], family("qwen2.5-vl"))):
        with pytest.raises(
            ValueError, match=r"is of a picture for qwen2-vl; expected one of a picture for qwen2\.5-vl"
        ):
            make()
    with pytest.raises(ValueError, match="is of a clip for qwen2-vl; expected one of a picture for qwen2-vl"):
        patchify(moving, QWEN2)
    with pytest.raises(ValueError, match="is of a picture for qwen2-vl; expected one of a clip for qwen2-vl"):
        patchify_video(still, QWEN2)


def test_wrong_settings_are_no_fault_of_the_pictures() -> None:
    picture, out = noise(56, 84), torch.zeros(24, QWEN2.patch_dim, requires_grad=True)
    with pytest.raises(ValueError, match=r"^out requires a gradient, and is written to; give out\.detach\(\)"):
        patchify(picture, QWEN2, out=out)
    with pytest.raises(TypeError, match="max_pixels"):
        patchify(picture, QWEN2, max_pixels=None)  # pyright: ignore[reportArgumentType]
    with pytest.raises(TypeError, match="patches"):
        unpatchify(out)  # pyright: ignore[reportArgumentType]


def test_the_background_and_the_limit_reach_the_loading(tmp_path: Path) -> None:
    clear = encoded(Image.new("RGBA", (56, 56)), "PNG")
    (white,), (blue,) = (unpatchify(patchify(clear, QWEN2, background=colour)) for colour in ("white", "blue"))
    assert white.unique().tolist() == [255]
    assert blue.flatten(1).unique(dim=1).T.tolist() == [[0, 0, 255]]
    with pytest.raises(ValueError, match=r"more than .*3000"):
        patchify(clear, QWEN2, max_pixels=3000)


@pytest.mark.parametrize("name", family_names())
def test_pictures_cut_in_strips_are_those_cut_whole(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # Turned and gray by Pillow, plain, thin, and larger than one strip; some fill up whole tokens with black.
    record, photo = family(name), photograph("coffee")
    pictures = [
        encoded(photo.resize((431, 333)).convert("L"), "PNG", exif=exif(6)),
        encoded(photo, "JPEG", exif=exif(7)),
        Image.fromarray(noise(590, 611, 4)),
        noise(120, 400),
    ]
    whole = patchify(pictures, record, conflict="family")
    monkeypatch.setattr("mrope.vision.cutting.patches.LARGE", 1)
    assert torch.equal(patchify(pictures, record, conflict="family").values, whole.values)


def test_peak_memory_is_one_picture_and_strips() -> None:
    """Above the result, in a process of its own; the picture as its decoder holds it."""
    code = """if True:
        import io, sys
        from pathlib import Path
        import numpy as np, torch
        from PIL import Image
        import mrope
        from mrope.vision import patchify
        torch.set_num_threads(1)
        family = mrope.family("qwen2-vl")
        tile = np.random.default_rng(0).integers(0, 256, (200, 300, 3), np.uint8)
        def kilobytes(name):
            return int(next(line for line in open("/proc/self/status") if line.startswith(name)).split()[1])
        def peak(kind, orientation):
            exif, file = Image.Exif(), io.BytesIO()
            exif[0x0112] = orientation
            Image.fromarray(np.tile(tile, (10, 10, 1))).save(file, kind, exif=exif, quality=90)
            data = file.getvalue()
            del file
            patchify(data, family, max_tokens=400)
            Path("/proc/self/clear_refs").write_text("5")
            before = kilobytes("VmRSS")
            found = patchify(data, family, max_tokens=400)
            return (kilobytes("VmHWM") - before) * 1024 - found.values.nbytes
        for kind in sys.argv[1:]:
            print(peak(kind[:-1], int(kind[-1])))
    """
    if not Path("/proc/self/clear_refs").exists():
        pytest.skip("the system does not tell a process's peak")
    strips, pixel = 2 * 3 * 3000 * 8 * 28, {"JPEG1": 3, "JPEG6": 3, "WEBP8": 3, "PNG6": 4, "PNG1": 4}  # bytes
    done = subprocess.run(
        [sys.executable, "-c", code, *pixel],
        env=os.environ | {"MALLOC_MMAP_THRESHOLD_": "65536", "PYTHONPATH": str(Path(__file__).parents[1])},
        capture_output=True,
        text=True,
        check=False,
    )
    assert not done.returncode, done.stderr
    for (kind, held), peak in zip(pixel.items(), done.stdout.split(), strict=True):
        assert int(peak) < held * 2000 * 3000 + strips, kind


def test_a_picture_that_does_not_fit_its_plan_is_named(tmp_path: Path) -> None:
    path = tmp_path / "photo.jpg"
    path.write_bytes(encoded(Image.fromarray(noise(60, 90)), "JPEG"))
    with pytest.raises(ValueError, match=r"photo\.jpg: decoded to \(60, 90\) .* its plan is for \(90, 60\)"):
        patchify(str(path), QWEN2, plans=[plan((90, 60), QWEN2)])
    with pytest.raises(ValueError, match="and no limits nor conflict"):
        patchify(str(path), QWEN2, plans=[plan((60, 90), QWEN2)], conflict="pad")
    with pytest.raises(ValueError, match="device is 'nonsense'; expected one that torch finds here"):
        patchify(str(path), QWEN2, device="nonsense")


def test_padded_clips_are_black_beyond_their_frames() -> None:
    clip = torch.full((3, 3, 150, 500), 255, dtype=torch.uint8)
    with pytest.raises(ValueError, match='or conflict="pad"'):
        patchify_video(clip, QWEN3, max_tokens=5, min_tokens=1)
    cut = patchify_video(clip, QWEN3, max_tokens=5, min_tokens=1, conflict="pad", dtype="uint8")
    (planned,) = cut.plans
    assert (planned.resized, planned.grid, planned.tokens) == ((19, 64), (2, 2, 4), 4)
    (frames,) = unpatchify(cut)
    assert frames.shape == (3, 3, *planned.resized)
    assert bool((frames == 255).all())
    height, width = planned.resized
    black = planned.canvas[0] * planned.canvas[1] - height * width
    assert int((cut.values == 0).sum()) == 4 * 3 * black  # four frames, the last one twice
