"""Position tables at any grid: as the encoders of transformers and timm resample theirs, and by torch in float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, get_args

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from timm.layers.pos_embed import resample_abs_pos_embed
from timm.models.naflexvit import NaFlexVit, NaFlexVitCfg
from torch import Tensor, nn
from torch.nn.functional import grid_sample, interpolate
from transformers.models.cosmos3_edge.modeling_cosmos3_edge import Cosmos3EdgeVisionEmbeddings
from transformers.models.glm4v import Glm4vVisionConfig
from transformers.models.glm4v.modeling_glm4v import Glm4vVisionEmbeddings
from transformers.models.glm_image.configuration_glm_image import GlmImageVisionConfig
from transformers.models.glm_image.modeling_glm_image import GlmImageVisionEmbeddings
from transformers.models.hunyuan_vl.configuration_hunyuan_vl import HunYuanVLVisionConfig
from transformers.models.hunyuan_vl.modeling_hunyuan_vl import HunYuanVLVisionPatchEmbed
from transformers.models.hy_v4_vl.configuration_hy_v4_vl import HYV4VLVisionConfig
from transformers.models.hy_v4_vl.modeling_hy_v4_vl import HYV4VLVisionPatchEmbed
from transformers.models.minicpmv4_7.configuration_minicpmv4_7 import MiniCPMV4_7VisionConfig
from transformers.models.minicpmv4_7.modeling_minicpmv4_7 import MiniCPMV4_7VisionEmbeddings
from transformers.models.paddleocr_vl.configuration_paddleocr_vl import PaddleOCRVisionConfig
from transformers.models.paddleocr_vl.modeling_paddleocr_vl import PaddleOCRVisionEmbeddings
from transformers.models.qwen3_vl.configuration_qwen3_vl import Qwen3VLVisionConfig
from transformers.models.qwen3_vl.modeling_qwen3_vl import Qwen3VLVisionModel
from transformers.models.siglip2.modeling_siglip2 import Siglip2VisionEmbeddings
from transformers.vision_utils import get_vision_nearest_position_ids, get_vision_position_ids

from mrope import family
from mrope.vision import TableKind, axis_weights, patch_ids, resample_table, table_for

SIDE, DIM, PATCH = 6, 8, 4
KINDS = get_args(TableKind)
each_kind = pytest.mark.parametrize("kind", KINDS)
# Of the table's own size, a clip, smaller on one side, of its own on one, larger on both, one token, one grid twice.
GRIDS = torch.tensor([[1, 6, 6], [3, 4, 10], [1, 12, 2], [1, 6, 8], [1, 14, 26], [2, 2, 2], [1, 4, 10]])


def drawn(module: nn.Module) -> Any:
    """A module whose position table is random and whose patch embedding gives zeros: its output is the table alone."""
    for name, parameter in module.named_parameters():
        nn.init.normal_(parameter) if "pos" in name else nn.init.zeros_(parameter)
    return module


def pixels(grids: Tensor) -> Tensor:
    return torch.zeros(int(grids.prod(1).sum()), 3, PATCH, PATCH)


def qwen3_vl(grids: Tensor) -> tuple[Tensor, Tensor]:
    config = Qwen3VLVisionConfig(
        depth=1,
        hidden_size=DIM,
        intermediate_size=8,
        num_heads=2,
        patch_size=PATCH,
        out_hidden_size=8,
        num_position_embeddings=SIDE**2,
        deepstack_visual_indexes=[],
    )
    model: Any = Qwen3VLVisionModel(config)
    drawn(model.pos_embed)
    nn.init.normal_(model.pos_embed.weight)
    drawn(model.patch_embed)
    seen = []
    model.blocks[0].register_forward_pre_hook(lambda block, args: seen.append(args[0]))
    model(torch.zeros(int(grids.prod(1).sum()), 3 * 2 * PATCH**2), grids)
    return model.pos_embed.weight.view(SIDE, SIDE, DIM), seen[0]


def of_glm(module: Any, grids: Tensor, merge: int) -> tuple[Tensor, Tensor]:
    """GLM's encoders look at a clip as at so many pictures, and are told where each patch lies."""
    flat = torch.cat([torch.tensor([[1, h, w]] * t) for t, h, w in grids.tolist()])
    places = get_vision_position_ids(flat, merge)
    zeros = torch.zeros(len(places), DIM)
    return (
        drawn(module).position_embedding.weight.view(SIDE, SIDE, DIM),
        module(zeros, flat.prod(1).tolist(), flat, *places.T),
    )


def glm4v(grids: Tensor) -> tuple[Tensor, Tensor]:
    config = Glm4vVisionConfig(hidden_size=DIM, image_size=SIDE * PATCH, patch_size=PATCH)
    return of_glm(Glm4vVisionEmbeddings(config), grids, 2)


def glm_image(grids: Tensor) -> tuple[Tensor, Tensor]:
    config = GlmImageVisionConfig(hidden_size=DIM, image_size=SIDE * PATCH, patch_size=PATCH)
    return of_glm(GlmImageVisionEmbeddings(config), grids, 1)


def paddleocr(grids: Tensor) -> tuple[Tensor, Tensor]:
    config = PaddleOCRVisionConfig(hidden_size=DIM, image_size=SIDE * PATCH, patch_size=PATCH)
    module = drawn(PaddleOCRVisionEmbeddings(config))
    return module.position_embedding.weight.view(SIDE, SIDE, DIM), module(pixels(grids)[None], grids)


def cosmos3_edge(grids: Tensor) -> tuple[Tensor, Tensor]:
    table = torch.randn(SIDE, SIDE, DIM)
    module: Any = Cosmos3EdgeVisionEmbeddings
    return table, module.resize_positional_embeddings(table, grids, 2)


def siglip2(grids: Tensor) -> tuple[Tensor, Tensor]:
    table, most = torch.randn(SIDE, SIDE, DIM), int(grids[:, 1:].prod(1).max())
    module: Any = Siglip2VisionEmbeddings
    padded = module.resize_positional_embeddings(table, grids[:, 1:], most)
    return table, torch.cat(
        [rows[: h * w].repeat(t, 1) for rows, (t, h, w) in zip(padded, grids.tolist(), strict=True)]
    )


def of_tencent(module: Any, grids: Tensor) -> tuple[Tensor, Tensor]:
    out = drawn(module)(pixels(grids).flatten(1), grids.tolist())
    return module.position_embedding.weight[1:].view(SIDE, SIDE, DIM), out[0]


def hunyuan(grids: Tensor) -> tuple[Tensor, Tensor]:
    config = HunYuanVLVisionConfig(hidden_size=DIM, max_image_size=SIDE * PATCH, patch_size=PATCH)
    return of_tencent(HunYuanVLVisionPatchEmbed(config), grids)


def hy_v4(grids: Tensor) -> tuple[Tensor, Tensor]:
    config = HYV4VLVisionConfig(hidden_size=DIM, max_image_size=SIDE * PATCH, patch_size=PATCH)
    return of_tencent(HYV4VLVisionPatchEmbed(config), grids)


def minicpm(grids: Tensor) -> tuple[Tensor, Tensor]:
    config = MiniCPMV4_7VisionConfig(hidden_size=DIM, image_size=SIDE * PATCH, patch_size=PATCH)
    module = drawn(MiniCPMV4_7VisionEmbeddings(config))
    flat = torch.cat([torch.tensor([[h, w]] * t) for t, h, w in grids.tolist()])
    strip = torch.zeros(1, 3, PATCH, PATCH * int(flat.prod(1).sum()))
    return module.position_embedding.weight.view(SIDE, SIDE, DIM), module(strip, flat)[0]


@pytest.mark.parametrize(
    ("reference", "kind", "order", "merge"),
    [
        (qwen3_vl, "bilinear-corners", "blocks", 2),
        (glm4v, "bicubic", "blocks", 2),
        (paddleocr, "bilinear", "raster", 2),
        (cosmos3_edge, "bilinear-antialias", "blocks-channels-last", 2),
        (siglip2, "bilinear-antialias", "raster-channels-last", 1),
        (hunyuan, "bilinear", "raster", 2),
        (hy_v4, "bilinear-shifted", "raster", 2),
        (glm_image, "bilinear", "blocks", 1),
        (minicpm, "nearest", "strip", 2),
    ],
    ids=lambda value: value.__name__ if callable(value) else str(value),
)
def test_the_encoders_of_transformers(
    reference: Callable[[Tensor], tuple[Tensor, Tensor]], kind: TableKind, order: Any, merge: int
) -> None:
    grids = torch.cat((GRIDS, torch.tensor([[1, 1, 1], [1, 1, 5]]))) if merge == 1 else GRIDS
    with torch.no_grad():
        table, expected = reference(grids)
        rows = table_for(table, grids, kind, order=order, merge=merge)
    torch.testing.assert_close(rows, expected.reshape(-1, DIM), rtol=1e-5, atol=2e-5)
    assert rows.std() > 0.3


@pytest.mark.parametrize(("name", "order"), [("qwen3-vl", "blocks"), ("hunyuan-vl", "raster"), ("glm4v", "blocks")])
def test_ids_of_patches_are_those_of_transformers(name: str, order: str) -> None:
    record = family(name)
    assert record.patch_order == order
    ids = patch_ids(GRIDS, order=record.patch_order, merge=record.merge)
    assert torch.equal(ids.T, get_vision_position_ids(GRIDS, record.merge if order == "blocks" else 1))


@pytest.mark.parametrize("grid", [(1, 1), (4, 7), (5, 3), (9, 2), (13, 11), (1, 8)], ids=str)
def test_vits_of_timm(grid: tuple[int, int]) -> None:
    table = torch.randn(5, 3, DIM)
    expected = resample_abs_pos_embed(table.view(1, 15, DIM), list(grid), old_size=[5, 3], num_prefix_tokens=0)
    rows = resample_table(table, grid, "bicubic-antialias")
    torch.testing.assert_close(rows, expected[0], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("kind", "mode", "antialias", "corners"),
    [
        ("bicubic-antialias", "bicubic", True, False),
        ("bilinear-antialias", "bilinear", True, False),
        ("bilinear", "bilinear", False, False),
        ("bilinear-corners", "bilinear", False, True),
    ],
)
@pytest.mark.parametrize("aspect", ["stretched", "square"])
@pytest.mark.parametrize("grid", [(4, 7), (5, 3), (9, 2), (11, 13), (1, 1)], ids=str)
def test_naflexvits_of_timm(
    kind: TableKind, mode: str, antialias: bool, corners: bool, aspect: Any, grid: tuple[int, int]
) -> None:
    config = NaFlexVitCfg(
        patch_size=PATCH,
        embed_dim=DIM,
        depth=1,
        num_heads=2,
        pos_embed_grid_size=(5, 3),
        pos_embed_interp_mode=mode,
        pos_embed_antialias=antialias,
        pos_embed_align_corners=corners,
        pos_embed_ar_preserving=aspect == "square",
    )
    embeds: Any = NaFlexVit(config).embeds
    nn.init.normal_(embeds.pos_embed)
    expected = torch.zeros(1, grid[0] * grid[1], DIM)
    with torch.no_grad():
        embeds._apply_learned_pos_embed(expected, list(grid))
        rows = resample_table(embeds.pos_embed[0], grid, kind, aspect=aspect)
    torch.testing.assert_close(rows, expected[0], rtol=1e-5, atol=1e-5)


def by_torch(table: Tensor, grid: tuple[int, int], kind: TableKind) -> Tensor:
    """(h * w, C) by torch's own resampling."""
    h, w = grid
    if kind.endswith("antialias") and w == 1 < h:  # torch 2.14 on the CPU gets one column wrong, but not one row
        return by_torch(table.transpose(0, 1), (w, h), kind)
    planes = table.movedim(-1, 0)[None]
    mode = "bicubic" if kind.startswith("bicubic") else "bilinear"
    if kind == "bilinear-shifted":
        factors = tuple((new + 0.1) / old for new, old in zip(grid, table.shape, strict=False))
        planes = interpolate(planes, scale_factor=factors, mode=mode, align_corners=False)
    else:
        corners = kind == "bilinear-corners"
        planes = interpolate(planes, grid, mode=mode, align_corners=corners, antialias=kind.endswith("antialias"))
    return planes[0].movedim(0, -1).flatten(0, 1)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "nearest"])
@given(table=st.tuples(*[st.integers(1, 9)] * 2), grid=st.tuples(*[st.integers(1, 20)] * 2))
@settings(max_examples=60, deadline=None)
def test_any_table_at_any_grid(kind: TableKind, table: tuple[int, int], grid: tuple[int, int]) -> None:
    values = torch.randn(*table, 3, dtype=torch.float64)
    torch.testing.assert_close(resample_table(values, grid, kind), by_torch(values, grid, kind), rtol=0, atol=1e-11)


@pytest.mark.parametrize(("kind", "mode"), [("bilinear", "bilinear"), ("bicubic", "bicubic")])
def test_samples_at_points_are_the_same_rule(kind: TableKind, mode: str) -> None:
    table, (h, w) = torch.randn(5, 3, DIM, dtype=torch.float64), (7, 11)
    rows, cols = (2 * (torch.arange(n, dtype=torch.float64) + 0.5) / n - 1 for n in (h, w))
    points = torch.stack(torch.meshgrid(rows, cols, indexing="ij")[::-1], -1)[None]
    planes = grid_sample(table.movedim(-1, 0)[None], points, mode=mode, padding_mode="border", align_corners=False)
    torch.testing.assert_close(resample_table(table, (h, w), kind), planes[0].movedim(0, -1).flatten(0, 1))


def test_nearest_rows_are_those_of_transformers_at_every_size() -> None:
    side = 70
    for h, w in [(size, 201 - size) for size in range(1, 201)]:
        ids = get_vision_nearest_position_ids(torch.tensor([[h, w]]), side)
        rows, cols = (axis_weights(size, side, "nearest").argmax(1) for size in (h, w))
        assert torch.equal((rows[:, None] * side + cols).flatten(), ids)


def test_nearest_worked_by_hand() -> None:
    table = torch.arange(6.0).view(2, 3, 1)
    # Rows 0, 0, 1, 1 of 2 at 0, 1/4, 1/2, 3/4; columns 0 and 1 of 3 at 0 and 1/2.
    assert resample_table(table, (4, 2), "nearest")[:, 0].tolist() == [0, 1, 0, 1, 3, 4, 3, 4]
    assert resample_table(table, (1, 1), "nearest")[:, 0].tolist() == [0]


def test_boxes_do_not_scale_outward_from_the_centre() -> None:
    """1792 x 2560 pixels of Qwen3-VL: without aligned corners, patches say that they lie 1.2 and 1.5 % further out."""
    h, w, side = 1792 // 16, 2560 // 16, 48
    table = torch.stack(torch.meshgrid(*[torch.arange(side, dtype=torch.float64)] * 2, indexing="ij"), -1)
    at = {kind: resample_table(table, (h, w), kind).view(h, w, 2) for kind in ("bilinear", "bilinear-corners")}
    steps = {
        kind: (place[56, 80, 0] - place[55, 80, 0], place[56, 80, 1] - place[56, 79, 1]) for kind, place in at.items()
    }
    error = [float(wrong / right) for wrong, right in zip(steps["bilinear"], steps["bilinear-corners"], strict=True)]
    assert error == pytest.approx([1.0122, 1.0149], abs=5e-5)
    centre = torch.tensor([47 / 2, 47 / 2], dtype=torch.float64)
    for place in at.values():  # both agree about the centre
        torch.testing.assert_close(place[55:57, 79:81].mean((0, 1)), centre)
    assert at["bilinear-corners"][0, 0].tolist() == [0, 0]
    assert at["bilinear-corners"][-1, -1].tolist() == [47, 47]


@each_kind
def test_the_table_itself_at_its_own_size(kind: TableKind) -> None:
    table = torch.randn(5, 7, DIM)
    assert torch.equal(resample_table(table, (5, 7), kind), table.flatten(0, 1))


def test_one_column_antialiased() -> None:
    """Which torch gets wrong on the CPU, and with it timm."""
    table = torch.tensor([[[0.0]], [[6.0]]])
    assert resample_table(table, (3, 1), "bilinear-antialias")[:, 0].tolist() == [0, 3, 6]


@each_kind
@pytest.mark.parametrize("grid", [(2, 9), (1, 1), (8, 3)], ids=str)
def test_gradients_reach_the_table(kind: TableKind, grid: tuple[int, int]) -> None:
    table = torch.randn(3, 4, 2, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda table: resample_table(table, grid, kind), table)


def test_gradients_of_all_pictures_add_up() -> None:
    table = torch.randn(3, 4, 2, dtype=torch.float64, requires_grad=True)
    grids = torch.tensor([[2, 2, 6], [1, 4, 2], [1, 2, 6]])
    made = lambda table: table_for(table, grids, "bicubic", order="blocks", merge=2)  # noqa: E731
    assert torch.autograd.gradcheck(made, table)


@each_kind
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_half_precision_is_float32_rounded_once(kind: TableKind, dtype: torch.dtype) -> None:
    table = torch.randn(5, 3, DIM).to(dtype)
    expected = resample_table(table.float(), (7, 8), kind).to(dtype)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        rows = resample_table(table, (7, 8), kind)
    assert rows.dtype == dtype
    assert torch.equal(rows, expected)


@each_kind
def test_weights_of_a_position_sum_to_1(kind: TableKind) -> None:
    for size, side in [(1, 1), (1, 5), (5, 1), (4, 9), (9, 4)]:
        weights = axis_weights(size, side, kind)
        assert weights.shape == (size, side)
        torch.testing.assert_close(weights.sum(1), torch.ones(size, dtype=torch.float64))


def test_no_pictures() -> None:
    assert table_for(torch.randn(3, 4, 2), GRIDS[:0], "bilinear", order="raster", merge=1).shape == (0, 2)


def test_refusals() -> None:
    table, one = torch.randn(3, 4, 2), torch.tensor([[1, 4, 6]])
    with pytest.raises(ValueError, match=r"the grid \(1, 4, 6\) is not cut into tokens by merge 4"):
        table_for(table, one, "bilinear", order="raster", merge=4)
    with pytest.raises(ValueError, match=r"grids are \[\[1, 0, 6\]\]; expected at least 1 patch"):
        table_for(table, torch.tensor([[1, 0, 6]]), "bilinear", order="raster", merge=1)
    with pytest.raises(ValueError, match="merge is 0; expected at least 1"):
        table_for(table, one[:0], "bilinear", order="raster", merge=0)
    with pytest.raises(ValueError, match="grid entry is 0; expected at least 1"):
        resample_table(table, (0, 4), "bilinear")
    with pytest.raises(ValueError, match="side is 0; expected at least 1"):
        resample_table(table[:0], (2, 4), "bilinear")
