"""Pictures and clips of every family: sizes, grids and patches equal to its processors in transformers."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st
from pictures import noise, photograph
from torch import Tensor

import mrope
from mrope import Family
from mrope.vision import Patches, Plan, Resized, patchify, patchify_video, plan, plan_sizes, plan_video, unpatchify

ALL = mrope.family_names()
every_family = pytest.mark.parametrize("name", ALL)
SIDES = st.one_of(st.integers(1, 300), st.integers(1, 6000))


def processor_class(*names: str) -> tuple[Any, Any]:
    """Image and video processor of a family; installed versions of transformers may lack some."""
    found = [getattr(transformers, name, None) if name else None for name in names]
    return found[0], found[1]


QWEN2 = processor_class("Qwen2VLImageProcessor", "Qwen2VLVideoProcessor")
QWEN3 = processor_class("Qwen2VLImageProcessor", "Qwen3VLVideoProcessor")
GLM4V = processor_class("Glm4vImageProcessor", "Glm4vVideoProcessor")
GLM46V = processor_class("Glm46VImageProcessor", "Glm46VVideoProcessor")
PROCESSORS = {
    "qwen2-vl": QWEN2,
    "qwen2.5-vl": QWEN2,
    "qwen3-vl": QWEN3,
    "qwen2.5-omni": QWEN2,
    "qwen3-omni": QWEN2,
    "qwen3.5": QWEN3,
    "qwen4-exp": QWEN3,
    "glm4v": GLM4V,
    "glm4v-moe": GLM4V,
    "glm46v": GLM46V,
    "glmga": processor_class("GlmgaImageProcessor", "GlmgaVideoProcessor"),
    "glm-ocr": GLM46V,
    "glm-image": processor_class("GlmImageImageProcessor", ""),
    "ernie4.5-vl": processor_class("Ernie4_5_VLMoeImageProcessor", "Ernie4_5_VLMoeVideoProcessor"),
    "paddleocr-vl": processor_class("PaddleOCRVLImageProcessor", ""),
    "hunyuan-vl": processor_class("HunYuanVLImageProcessor", ""),
    "hy-v4-vl": processor_class("HYV4VLImageProcessor", "HYV4VLVideoProcessor"),
    "minicpm-v4.7": processor_class("MiniCPMV4_6ImageProcessor", "MiniCPMV4_6VideoProcessor"),
    "cohere-compass": processor_class("CohereCompassImageProcessor", "CohereCompassVideoProcessor"),
    "cosmos3-omni": QWEN3,
    "cosmos3-edge": processor_class("Cosmos3EdgeImageProcessor", "Cosmos3EdgeVideoProcessor"),
    "neomme": processor_class("NeoMMEImageProcessor", ""),
}
CLIPS = [name for name in ALL if mrope.family(name).video_pixels is not None or name == "minicpm-v4.7"]


@dataclass(frozen=True)
class Reference:
    """What transformers makes: values (N, V) in the family's order, grids (parts, 3)."""

    values: Tensor
    grids: list[list[int]]


def colours(family: Family, kind: Any) -> dict[str, Any]:
    mean, std = family.colours(kind)
    return {"image_mean": list(mean), "image_std": list(std)}


def reference(family: Family, picture: Any, tokens: tuple[int, int] | None = None) -> Reference:
    """A picture through the image processor of transformers, made for this family's record."""
    made, _ = PROCESSORS[family.name]
    if made is None:
        pytest.skip(f"this version of transformers has no image processor of {family.name}")
    options = colours(family, "picture")
    if family.resize == "padded":
        out = made(**options, patch_size=family.patch)([picture], return_tensors="pt")
        return Reference(out["pixel_values"], [[1, *grid] for grid in out["image_grid_hw"].tolist()])
    if family.resize == "slices":
        assert family.slices is not None
        side, most = family.slices
        out = made(**options, patch_size=family.patch, scale_resolution=side, max_slice_nums=most)(
            [picture], return_tensors="pt"
        )
        return from_strip(out["pixel_values"], out["target_sizes"], family)
    frames = family.temporal_patch if family.resize == "volume" else 1
    limits = family.pixel_limits if tokens is None else tuple(count * family.factor**2 for count in tokens)
    out = made(
        **options,
        size={"shortest_edge": limits[0] * frames, "longest_edge": limits[1] * frames},
        patch_size=family.patch,
        temporal_patch_size=family.temporal_patch,
        merge_size=family.merge,
    )([picture], return_tensors="pt")
    return Reference(out["pixel_values"].flatten(1), out["image_grid_thw"].tolist())


def from_strip(strip: Tensor, sizes: Tensor, family: Family) -> Reference:
    patches = strip.reshape(3, family.patch, -1, family.patch).permute(2, 0, 1, 3)
    return Reference(patches.flatten(1), [[1, *size] for size in sizes.tolist()])


def reference_clip(family: Family, clip: Tensor) -> Reference:
    """A clip through the video processor of transformers."""
    _, made = PROCESSORS[family.name]
    if made is None:
        pytest.skip(f"this version of transformers has no video processor of {family.name}")
    options = {**colours(family, "clip"), "patch_size": family.patch, "do_sample_frames": False}
    if family.resize == "slices":
        assert family.slices is not None
        side, most = family.slices
        out = made(**options, scale_resolution=side, max_slice_nums=most)([clip], return_tensors="pt")
        return from_strip(out["pixel_values_videos"], out["target_sizes_videos"], family)
    assert family.video_pixels is not None
    options["size"] = dict(zip(("shortest_edge", "longest_edge"), family.video_pixels, strict=True))
    options |= {"temporal_patch_size": family.temporal_patch, "merge_size": family.merge}
    if family.name == "ernie4.5-vl":
        options |= {"draw_on_frames": False, "temporal_patch_size": family.temporal_merge}
    if made is QWEN2[1]:
        options["cap_pixels_per_frame"] = False
    out = made(**options)([clip], return_tensors="pt")
    return Reference(out["pixel_values_videos"].flatten(1), out["video_grid_thw"].tolist())


def assert_same(patches: Patches, expected: Reference) -> None:
    assert patches.grids.tolist() == expected.grids
    assert torch.equal(patches.values, expected.values)


def photo(width: int, height: int) -> np.ndarray:
    return np.array(photograph("coffee").resize((width, height)))


def clip_of(frames: int, height: int, width: int) -> Tensor:
    whole = torch.from_numpy(noise(frames * height, width)).view(frames, height, width, 3)
    return whole.permute(0, 3, 1, 2).contiguous()


# ----------------------------------------------------------------------------------------------------------- pictures


@every_family
@pytest.mark.parametrize("size", [(451, 300), (333, 777), (1000, 460), (70, 90)], ids=str)
def test_pictures_equal_transformers(name: str, size: tuple[int, int]) -> None:
    family = mrope.family(name)
    picture = torch.from_numpy(photo(*size)).permute(2, 0, 1)
    for impl in ("eager", "numba"):
        assert_same(patchify(picture, family, impl=impl), reference(family, picture))


@pytest.mark.parametrize("name", [name for name in ALL if mrope.family(name).image_tokens is not None])
def test_limits_in_tokens_equal_transformers(name: str) -> None:
    family = mrope.family(name)
    picture = torch.from_numpy(photo(500, 390)).permute(2, 0, 1)
    for least, most in ((50, 90), (300, 700)):
        ours = patchify(picture, family, min_tokens=least, max_tokens=most)
        assert_same(ours, reference(family, picture, (least, most)))
        assert ours.plans[0].tokens <= most


@every_family
@settings(max_examples=40, deadline=None)
@given(height=SIDES, width=SIDES, least=st.integers(1, 60), more=st.integers(0, 3000))
def test_sizes_are_those_of_the_published_rule(name: str, height: int, width: int, least: int, more: int) -> None:
    family = mrope.family(name)
    expected = published_size(family, height, width, least, least + more)
    limits = {} if family.image_tokens is None else {"min_tokens": least, "max_tokens": least + more}
    try:
        ours = plan((height, width), family, conflict="family", **limits)
    except ValueError:
        assert expected is None
        return
    assert [part.resized for part in ours.parts] == expected


def published_size(family: Family, height: int, width: int, least: int, most: int) -> list[tuple[int, int]] | None:
    """The sizes that the code of transformers gives; None where it refuses."""
    from transformers.models.glm4v.image_processing_glm4v import smart_resize as volume
    from transformers.models.qwen2_vl.image_processing_qwen2_vl import smart_resize as area

    unit = family.factor**2
    limits = {"factor": family.factor, "min_pixels": least * unit, "max_pixels": most * unit}
    made = PROCESSORS[family.name][0]
    if made is None:
        pytest.skip(f"this version of transformers has no image processor of {family.name}")
    try:
        if family.resize == "padded":
            return [(height, width)]
        if family.resize == "slices":
            return published_slices(made, family, height, width)
        if family.resize == "volume":
            frames = family.temporal_patch
            limits |= {"min_pixels": least * unit * frames, "max_pixels": most * unit * frames}
            return [volume(frames, height, width, frames, **limits)]
        if family.resize == "short-side":
            from transformers.models.paddleocr_vl.image_processing_paddleocr_vl import smart_resize as short_side

            return [short_side(height, width, **limits)]
        if family.resize == "two-sided":
            from transformers.models.glm_image.image_processing_glm_image import smart_resize as two_sided

            return [two_sided(height, width, **limits)]
        return [area(height, width, **limits)]
    except ValueError:
        return None


def published_slices(made: Any, family: Family, height: int, width: int) -> list[tuple[int, int]]:
    assert family.slices is not None
    side, most = family.slices
    processor = made()
    cut = processor.get_sliced_grid((height, width), most, side)
    thumbnail = processor.find_best_resize((height, width), side, family.patch, "16x", allow_upscale=cut is None)
    if cut is None:
        return [thumbnail]
    whole = processor.get_refine_size((height, width), cut, side, family.patch, "16x", allow_upscale=True)
    return [thumbnail, *[whole] * (cut[0] * cut[1])]


@pytest.mark.parametrize(
    ("name", "patch", "grid", "tokens", "prompt"),
    [  # a picture of 1024 x 768, in the patch sizes that the facts were measured with
        ("qwen2-vl", 14, (1, 54, 74), 999, 1001),
        ("glm4v", 14, (1, 54, 74), 999, 1001),
        ("paddleocr-vl", 14, (1, 54, 74), 999, 1001),
        ("qwen3-vl", 16, (1, 48, 64), 768, 770),
        ("hunyuan-vl", 16, (1, 48, 64), 768, 794 + 2),
        ("hy-v4-vl", 16, (1, 48, 64), 768, 792),
        ("minicpm-v4.7", 16, (1, 24, 32), 5 * 48, 5 * 48 + 5 * 2 + 1),
        ("glm-image", 16, (1, 24, 32), 768, 770),
        ("neomme", 32, (1, 24, 32), 768, 794),
    ],
)
def test_worked_tokens(name: str, patch: int, grid: tuple[int, int, int], tokens: int, prompt: int) -> None:
    family = replace(mrope.family(name), patch=patch)
    planned = plan((768, 1024), family)
    assert (planned.grid, planned.tokens, planned.prompt_tokens) == (grid, tokens, prompt)
    assert family.positions(planned.spans or ()).length == prompt


@every_family
def test_the_positions_of_a_plan_hold_its_tokens(name: str) -> None:
    family = mrope.family(name)
    planned = plan((620, 870), family)
    assert planned.spans is not None
    assert family.positions(planned.spans).length == planned.prompt_tokens
    assert (
        planned.patches
        == sum(prod(part.grid) for part in planned.parts)
        == patchify(photo(870, 620), family).values.shape[0]
    )


@every_family
@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(SIDES, SIDES), max_size=8))
def test_many_sizes_at_once_are_planned_as_one_by_one(name: str, sizes: list[tuple[int, int]]) -> None:
    family = mrope.family(name)
    many = plan_sizes(sizes, family, conflict="skip")
    for number, size in enumerate(sizes):
        one: Plan | None = plan(size, family, conflict="skip")
        assert bool(many.fits[number]) == (one is not None)
        if one is None:
            assert many.tokens[number] == many.prompt_tokens[number] == 0
            continue
        assert (tuple(many.resized[number]), tuple(many.grids[number])) == (one.resized, one.grid)
        assert (many.tokens[number], many.prompt_tokens[number]) == (one.tokens, one.prompt_tokens)
        assert 1 + prod(many.slices[number]) == len(one.parts)


# -------------------------------------------------------------------------------------------------------------- clips


@pytest.mark.parametrize("name", CLIPS)
@pytest.mark.parametrize("frames", [4, 5])
def test_clips_equal_transformers(name: str, frames: int) -> None:
    family = mrope.family(name)
    clip = clip_of(frames, 180, 250)
    ours = patchify_video(clip, family, conflict="family")
    assert_same(ours, reference_clip(family, clip))
    assert ours.plans[0].tokens == ours.values.shape[0] // (family.merge**2 * family.temporal_merge)


@settings(max_examples=200, deadline=None)
@given(st.integers(1, 60), SIDES, SIDES, st.integers(1, 4000))
def test_clips_that_never_grow_have_the_published_size(frames: int, height: int, width: int, most: int) -> None:
    made = PROCESSORS["hy-v4-vl"][1]
    if made is None:
        pytest.skip("this version of transformers has no video processor of hy-v4-vl")
    family = mrope.family("hy-v4-vl")
    try:
        expected = made.smart_resize(height, width, frames, factor=32, max_pixels=most * 1024)
    except ValueError:
        expected = None
    try:
        ours = plan_video((frames, height, width), family, max_tokens=most, conflict="family").resized
    except ValueError:
        ours = None
    assert ours == expected


def test_what_a_newline_costs_counts_in_a_clip() -> None:
    family = mrope.family("hy-v4-vl")
    planned = plan_video((4, 320, 640), family, max_tokens=4 * 5 * 11)
    rows, cols = planned.grid[1] // 2, planned.grid[2] // 2
    assert planned.prompt_tokens == 4 * rows * (cols + 1) <= 220
    with pytest.raises(
        ValueError, match=r"max_tokens is 7, .* 32 wide x 32 high in 4 frames = 8 tokens; max_tokens=8 would"
    ):
        plan_video((4, 320, 640), family, max_tokens=7)
    with pytest.raises(ValueError, match="min_tokens is 5; clips of hy-v4-vl have no lower limit"):
        plan_video((4, 320, 640), family, min_tokens=5)


def test_clips_without_a_rule_are_refused_by_name() -> None:
    for name in ("glm-image", "paddleocr-vl", "hunyuan-vl", "neomme"):
        with pytest.raises(ValueError, match=f"{name} has no limits for clips"):
            plan_video((4, 320, 640), mrope.family(name))


# -------------------------------------------------------------------------------------------------- and the way back


@every_family
@pytest.mark.parametrize("dtype", ["float32", "uint8"])
def test_unpatchify_gives_the_resized_picture(name: str, dtype: Any) -> None:
    family = mrope.family(name)
    picture = torch.from_numpy(photo(333, 250)).permute(2, 0, 1)
    patches = patchify(picture, family, dtype=dtype)
    back = unpatchify(patches)
    assert [tuple(one.shape[1:]) for one in back] == [part.window for part in patches.plans[0].parts]
    from torchvision.transforms.v2 import InterpolationMode
    from torchvision.transforms.v2.functional import resize

    for one, part in zip(back, patches.plans[0].parts, strict=True):
        whole = resize(picture, list(part.resized), InterpolationMode(family.filter), antialias=True)
        (top, left), (height, width) = part.corner, part.window
        assert torch.equal(one, whole[:, top : top + height, left : left + width])


@pytest.mark.parametrize("name", CLIPS)
@pytest.mark.parametrize("dtype", ["float32", "uint8"])
def test_unpatchify_gives_the_frames(name: str, dtype: Any) -> None:
    family = mrope.family(name)
    clip = clip_of(3, 64, 96)
    back = unpatchify(patchify_video(clip, family, dtype=dtype, conflict="family"))
    frames = torch.cat(back[:: len(back) // 3]) if family.resize == "slices" else back[0]
    assert frames.shape[:2] == (3, 3)
    same = unpatchify(patchify_video(clip, family, dtype="uint8", conflict="family"))
    assert all(torch.equal(a, b) for a, b in zip(back, same, strict=True))


@every_family
def test_what_is_resized_is_never_planned_again(name: str) -> None:
    family = mrope.family(name)
    patches = patchify(photo(200, 150), family)
    if len(patches.plans[0].parts) > 1:
        pytest.skip("a picture of several parts has no single size")
    again = Resized(unpatchify(patches)[0], patches.plans[0])
    assert family.plan(again) is patches.plans[0]
    assert torch.equal(patchify(again, family).values, patches.values)
    with pytest.raises(ValueError, match="resized to a plan already"):
        plan(again, family, max_tokens=1)


def test_the_rules_are_not_idempotent() -> None:
    family = mrope.family("glm-image")
    once = plan((768, 1024), family)
    assert plan(once.resized, family).resized != once.resized


@every_family
def test_values_of_every_dtype(name: str) -> None:
    family = mrope.family(name)
    picture = photo(200, 150)
    whole, half, raw = (patchify(picture, family, dtype=dtype) for dtype in ("float32", "bfloat16", "uint8"))
    assert torch.equal(half.values, whole.values.to(torch.bfloat16))
    assert raw.values.shape[1] == whole.values.shape[1] // family.temporal_patch
    assert raw.values.dtype == torch.uint8
    mean, std = torch.tensor(family.mean).view(3, 1), torch.tensor(family.std).view(3, 1)
    if family.patch_order in ("blocks", "raster", "strip"):
        pixels = raw.values.view(len(raw.values), 3, 1, -1)
        expected = whole.values.view(len(whole.values), 3, family.temporal_patch, -1)
        torch.testing.assert_close(((pixels / 255) - mean[..., None]) / std[..., None] + 0 * expected, expected)


def test_the_strip_of_minicpm() -> None:
    family = mrope.family("minicpm-v4.7")
    picture = torch.from_numpy(photo(451, 300)).permute(2, 0, 1)
    made, _ = PROCESSORS[family.name]
    if made is None:
        pytest.skip("this version of transformers has no image processor of minicpm-v4.7")
    out = made(**colours(family, "picture"), patch_size=family.patch)([picture], return_tensors="pt")
    assert torch.equal(patchify(picture, family).strip(), out["pixel_values"])
    with pytest.raises(ValueError, match="'blocks' order"):
        patchify(picture, mrope.family("qwen2-vl")).strip()


def test_a_buffer_is_used_again() -> None:
    family, picture = mrope.family("qwen2-vl"), photo(200, 150)
    room = torch.full((500, family.patch_dim), torch.nan)
    fresh = patchify(picture, family)
    for impl in ("eager", "numba"):
        kept = patchify(picture, family, out=room, impl=impl)
        assert torch.equal(kept.values, fresh.values)
        assert kept.values.data_ptr() == room.data_ptr()
    options: Any
    for wrong, options in (
        (room[:3], {}),
        (room[:, :9], {}),
        (room.double(), {}),
        (room, {"dtype": "uint8"}),
        (room.T.contiguous().T, {}),
    ):
        with pytest.raises(ValueError, match=r"out is torch\.\w+ of shape .*; expected torch\.\w+, contiguous, of "):
            patchify(picture, family, out=wrong, **options)


# -------------------------------------------------------------------------------------------------- limits that collide


THIN = pytest.mark.parametrize("size", [(9, 2048), (2048, 9)], ids=str)


@THIN
def test_a_thin_picture_is_refused_skipped_padded_or_tiled(size: tuple[int, int]) -> None:
    family = mrope.family("qwen2-vl")
    with pytest.raises(
        ValueError, match=r'227\.6 to 1, the limit is 200 to 1; crop it, or plan it with conflict="pad"'
    ):
        plan(size, family)
    with pytest.raises(ValueError, match=r"227\.6 to 1"):
        plan(size, family, conflict="family")
    assert plan([(480, 640), size], family, conflict="skip")[1] is None
    padded = plan(size, family, conflict="pad")
    assert (padded.resized, sorted(padded.canvas), padded.tokens) == (size, [28, 2072], 74)
    tiled = plan(size, family, conflict="tile")
    assert sum(part.grid[1] * part.grid[2] for part in tiled.parts) == 4 * 73
    picture = noise(*size)
    back = unpatchify(patchify(picture, family, conflict="pad"))[0]
    assert torch.equal(back.permute(1, 2, 0), torch.from_numpy(picture))
    assert patchify(picture, family, conflict="tile").grids.tolist() == [list(part.grid) for part in tiled.parts]


def test_what_the_padding_shows_is_black() -> None:
    family = mrope.family("qwen2-vl")
    (patches,) = [patchify(np.full((9, 2048, 3), 255, np.uint8), family, conflict="pad")]
    frames = patches.values.view(-1, 3, 2, 14, 14)
    white = (1 - torch.tensor(family.mean)) / torch.tensor(family.std)
    black = -torch.tensor(family.mean) / torch.tensor(family.std)
    torch.testing.assert_close(frames[0, :, 0, 8, 0], white)
    torch.testing.assert_close(frames[0, :, 1, 9, 0], black)


@every_family
@settings(max_examples=50, deadline=None)
@given(SIDES, SIDES, st.integers(1, 400), st.sampled_from(["error", "pad", "tile"]))
def test_no_policy_but_the_familys_own_passes_the_limit(
    name: str, height: int, width: int, most: int, conflict: Any
) -> None:
    family = mrope.family(name)
    limits = {"max_tokens": most} if family.image_tokens is None else {"min_tokens": 1, "max_tokens": most}
    try:
        planned = plan((height, width), family, conflict=conflict, **limits)
    except ValueError:
        assert conflict == "error" or family.resize == "slices" or conflict == "tile"
        return
    each = [prod(part.grid) // family.merge**2 for part in planned.parts]
    assert (max(each) if conflict == "tile" else sum(each)) <= most
    assert all(min(part.window) >= 1 for part in planned.parts)


@pytest.mark.parametrize(
    ("name", "size", "options", "message"),
    [
        ("glm-image", (100, 500), {}, r"500 wide x 100 high is 5\.0 to 1, the limit is 4 to 1"),
        ("glm-image", (15, 40), {}, "40 wide x 15 high has a side below 16 pixels, the least of glm-image"),
        ("minicpm-v4.7", (100, 500), {"min_tokens": 5}, "min_tokens is 5; the resize rule 'slices' .* has no least"),
        ("minicpm-v4.7", (500, 500), {"max_tokens": 5}, "max_tokens is 5, .* tokens; max_tokens=64 would do"),
        ("neomme", (100, 500), {"min_tokens": 5}, "the resize rule 'padded' of neomme has no least"),
    ],
)
def test_what_a_rule_cannot_do_is_refused(name: str, size: tuple[int, int], options: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        plan(size, mrope.family(name), **options)


def test_fewer_slices_keep_a_limit() -> None:
    family = mrope.family("minicpm-v4.7")
    free, bound = plan((2000, 3000), family), plan((2000, 3000), family, max_tokens=350)
    assert (len(free.parts), len(bound.parts)) == (9, 5)
    assert bound.tokens <= 350 < free.tokens


@settings(max_examples=50, deadline=None)
@given(SIDES, SIDES, st.integers(1, 300))
def test_a_page_fills_its_limit_as_far_as_whole_tokens_allow(height: int, width: int, most: int) -> None:
    family = mrope.family("neomme")
    planned = plan((height, width), family, max_tokens=most)
    assert planned.tokens <= most
    if plan((height, width), family).tokens <= most:
        assert planned.resized == (height, width)


def test_sizes_are_checked() -> None:
    family = mrope.family("qwen2-vl")
    assert plan_sizes([], family).tokens.shape == (0,)
    for wrong in ([(5, 5, 5)], [(5.0, 5.0)], [5, 5]):
        with pytest.raises(TypeError, match="sizes"):
            plan_sizes(wrong, family)  # pyright: ignore
    with pytest.raises(ValueError, match=r"size 1 is \[0, 5\] \(height, width\); expected 1 to 16777216 each"):
        plan_sizes([(5, 5), (0, 5)], family)
    with pytest.raises(ValueError, match=r"size 1: 2048 wide x 9 high is 227\.6 to 1"):
        plan_sizes([(5, 5), (9, 2048)], family)
