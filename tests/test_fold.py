"""Folded patch embeddings: bytes in, and out what transformers' own embeddings make of normalised patches."""

from __future__ import annotations

import copy
import inspect
import pickle
from typing import Any

import pytest
import torch
from pictures import photograph
from torch import Tensor, nn
from transformers import Qwen2VLImageProcessor, Qwen2VLVideoProcessor, SiglipVisionConfig
from transformers.models.cosmos3_edge.configuration_cosmos3_edge import Cosmos3EdgeVisionConfig
from transformers.models.cosmos3_edge.image_processing_cosmos3_edge import Cosmos3EdgeImageProcessor
from transformers.models.cosmos3_edge.modeling_cosmos3_edge import Cosmos3EdgeVisionEmbeddings
from transformers.models.qwen2_vl.modeling_qwen2_vl import PatchEmbed
from transformers.models.siglip.modeling_siglip import SiglipVisionEmbeddings

from mrope import family, family_names
from mrope.vision import fold_normalization

QWEN, EDGE = family("qwen2-vl"), family("cosmos3-edge")
COLOURS: dict[str, Any] = {"mean": (0.1, 0.45, 0.6), "std": (0.2, 0.5, 0.35)}  # all of them differ


def bytes_of(values: Tensor, mean: Any, std: Any) -> Tensor:
    """The bytes behind normalised values (.., 3, T, p, p)."""
    mean, std = (torch.tensor(colour, dtype=torch.float64).view(3, 1, 1, 1) for colour in (mean, std))
    exact = (values.double() * std + mean) * 255
    assert (exact - exact.round()).abs().max() < 1e-3
    return exact.round().to(torch.uint8)


def normalised(pixels: Tensor, mean: Any, std: Any) -> Tensor:
    """(.., 3, T, p, p) in float64."""
    mean, std = (torch.tensor(colour, dtype=torch.float64).view(3, 1, 1, 1) for colour in (mean, std))
    return (pixels.double() / 255 - mean) / std


def noise(*shape: int) -> Tensor:
    return torch.randint(256, shape, dtype=torch.uint8)


def worst(one: Tensor, other: Tensor) -> float:
    return float((one.double() - other.double()).abs().max())


@torch.no_grad()
def test_qwen2_vl_of_a_photograph() -> None:
    embed = PatchEmbed(QWEN.patch, QWEN.temporal_patch, embed_dim=1280)
    processor = Qwen2VLImageProcessor(patch_size=QWEN.patch, temporal_patch_size=2, merge_size=2)
    values = processor(photograph("coffee"), return_tensors="pt")["pixel_values"]
    pixels = bytes_of(values.view(-1, 3, 2, 14, 14), QWEN.mean, QWEN.std)
    assert torch.equal(pixels[:, :, 0], pixels[:, :, 1])
    exact = copy.deepcopy(embed).double()(normalised(pixels, QWEN.mean, QWEN.std).flatten(1))

    folded = fold_normalization(embed.proj, mean=QWEN.mean, std=QWEN.std, temporal_patch=2)
    assert folded.kernel_size == (1, 14, 14)
    rows = folded(pixels[:, :, :1]).flatten(1)
    assert rows.dtype == torch.float32
    torch.testing.assert_close(rows, embed(values), rtol=0, atol=2e-5)
    # What was measured when the rule was found: 3.1e-6, where the embedding of float32 values is itself 1.4e-6 off.
    assert worst(rows, exact) < 3.1 / 1.4 * worst(embed(values), exact)

    # The module of transformers itself, told that a patch has one frame.
    embed.register_module("proj", folded)
    embed.temporal_patch_size = 1
    assert torch.equal(embed(pixels[:, :, :1].flatten(1)), rows)


@torch.no_grad()
def test_qwen2_vl_of_a_clip() -> None:
    embed = PatchEmbed(QWEN.patch, QWEN.temporal_patch, embed_dim=64)
    settings = {"patch_size": 14, "temporal_patch_size": 2, "merge_size": 2, "do_sample_frames": False}
    size = {"shortest_edge": 784, "longest_edge": 602112}
    processor = Qwen2VLVideoProcessor(size=size, cap_pixels_per_frame=False, **settings)
    values = processor([noise(3, 3, 56, 84)], return_tensors="pt")["pixel_values_videos"]
    pixels = bytes_of(values.view(-1, 3, 2, 14, 14), QWEN.mean, QWEN.std)
    folded = fold_normalization(embed.proj, mean=QWEN.mean, std=QWEN.std, temporal_patch=2, frames="distinct")
    assert folded.kernel_size == (2, 14, 14)
    torch.testing.assert_close(folded(pixels).flatten(1), embed(values), rtol=0, atol=2e-5)


@torch.no_grad()
def test_cosmos3_edge_has_channels_last() -> None:
    embed = Cosmos3EdgeVisionEmbeddings(Cosmos3EdgeVisionConfig(hidden_size=256, patch_size=EDGE.patch)).patch_embedding
    values = Cosmos3EdgeImageProcessor()(photograph("chelsea"), return_tensors="pt")["pixel_values"]
    rows_cols_first = values.view(-1, 16, 16, 3).permute(0, 3, 1, 2).unsqueeze(2)
    pixels = bytes_of(rows_cols_first, EDGE.mean, EDGE.std)[:, :, 0].permute(0, 2, 3, 1).flatten(1)
    folded = fold_normalization(embed, mean=EDGE.mean, std=EDGE.std, order=EDGE.patch_order)
    torch.testing.assert_close(folded(pixels), embed(values), rtol=0, atol=2e-5)


@torch.no_grad()
def test_siglip_of_whole_pictures() -> None:
    config = SiglipVisionConfig(hidden_size=64, image_size=56, patch_size=14)
    embed = SiglipVisionEmbeddings(config).patch_embedding
    pixels = noise(2, 3, 42, 56)
    exact = copy.deepcopy(embed).double()(normalised(pixels.unsqueeze(2), **COLOURS).squeeze(2))
    folded = fold_normalization(embed, **COLOURS)
    assert folded(pixels).shape == (2, 64, 3, 4)
    assert worst(folded(pixels), exact) < 2e-5


@pytest.mark.parametrize("frames", ["repeated", "distinct"])
@pytest.mark.parametrize("order", ["blocks", "blocks-channels-last", "raster", "raster-channels-last", "strip"])
@torch.no_grad()
def test_linear_in_every_order(order: Any, frames: Any) -> None:
    embed = nn.Linear(3 * 3 * 5 * 5, 7).double()
    pixels = noise(11, 3, 1 if frames == "repeated" else 3, 5, 5)
    dims = (0, 3, 4, 1, 2) if order.endswith("last") else (0, 1, 2, 3, 4)
    values = normalised(pixels, **COLOURS).expand(-1, -1, 3, -1, -1).permute(dims).flatten(1)
    folded = fold_normalization(embed, **COLOURS, temporal_patch=3, order=order, frames=frames)
    assert folded.in_features == pixels[0].numel()
    torch.testing.assert_close(folded(pixels.permute(dims).flatten(1)), embed(values), rtol=0, atol=1e-12)


@pytest.mark.parametrize("bias", [True, False])
@torch.no_grad()
def test_convolutions_keep_strides_and_uneven_kernels(bias: bool) -> None:
    pixels = noise(2, 3, 1, 13, 17)
    values = normalised(pixels, **COLOURS)
    flat = nn.Conv2d(3, 4, (2, 3), stride=(3, 2), dilation=(2, 1), bias=bias).double()
    torch.testing.assert_close(
        fold_normalization(flat, **COLOURS)(pixels[:, :, 0]), flat(values[:, :, 0]), rtol=0, atol=1e-12
    )
    deep = nn.Conv3d(3, 4, (2, 2, 3), stride=(2, 3, 2), bias=bias).double()
    folded = fold_normalization(deep, **COLOURS, temporal_patch=2)
    torch.testing.assert_close(folded(pixels), deep(values.expand(-1, -1, 2, -1, -1)), rtol=0, atol=1e-12)


@pytest.mark.parametrize("context", [torch.autocast("cpu", dtype=torch.bfloat16, enabled=on) for on in (True, False)])
@torch.no_grad()
def test_bfloat16_is_computed_in_float32_and_rounded_once(context: Any) -> None:
    embed = nn.Linear(3 * 14 * 14, 64).bfloat16()
    pixels = noise(33, 3, 1, 14, 14)
    exact = copy.deepcopy(embed).double()(normalised(pixels, **COLOURS).flatten(1))
    folded = fold_normalization(embed, **COLOURS)
    assert {parameter.dtype for parameter in folded.parameters()} == {torch.float32}
    with context:
        rows = folded(pixels.flatten(1))
    assert rows.dtype == torch.bfloat16
    own = embed(normalised(pixels, **COLOURS).flatten(1).bfloat16())
    assert worst(rows, exact) < worst(own, exact)
    torch.testing.assert_close(rows.double(), exact, rtol=2**-8, atol=1e-5)  # half a unit in the last of 8 places


def test_bytes_as_floats_are_the_same_bytes() -> None:
    folded = fold_normalization(nn.Linear(48, 5), **COLOURS)
    pixels = noise(9, 48)
    for dtype in (torch.float32, torch.bfloat16):  # a module of transformers casts what it is given
        assert torch.equal(folded(pixels.to(dtype)), folded(pixels))


def test_gradients_flow_and_the_original_stays() -> None:
    embed = nn.Linear(3 * 2 * 2 * 2, 5).double()
    before = copy.deepcopy(embed.state_dict())
    folded = fold_normalization(embed, **COLOURS, temporal_patch=2)
    pixels = noise(6, 12)
    assert folded.bias is not None

    def embedded(weight: Tensor, bias: Tensor) -> Tensor:
        return torch.func.functional_call(folded, {"weight": weight, "bias": bias}, pixels.double())

    assert torch.autograd.gradcheck(embedded, (folded.weight, folded.bias))
    folded(pixels).square().sum().backward()
    with torch.no_grad():
        folded.weight.add_(1)
    assert folded.weight.grad is not None
    assert folded.weight.grad.abs().min() > 0
    assert embed.weight.grad is None
    assert all(torch.equal(value, before[name]) for name, value in embed.state_dict().items())


def test_frozen_stays_frozen_and_modes_are_kept() -> None:
    embed = nn.Conv2d(3, 4, 2).requires_grad_(False).eval()
    folded = fold_normalization(embed, **COLOURS)
    assert not folded.training
    assert not any(parameter.requires_grad for parameter in folded.parameters())
    assert isinstance(folded, nn.Conv2d)


def test_copies_and_files() -> None:
    folded = fold_normalization(nn.Linear(12, 5), **COLOURS)
    pixels = noise(3, 12)
    for again in (copy.deepcopy(folded), pickle.loads(pickle.dumps(folded))):
        assert torch.equal(again(pixels), folded(pixels))
    assert sorted(folded.state_dict()) == ["bias", "weight"]


def test_refusals() -> None:
    with pytest.raises(ValueError, match=r"embed takes 50 values; expected 3 \* temporal_patch \* p \* p"):
        fold_normalization(nn.Linear(50, 4), **COLOURS)
    with pytest.raises(ValueError, match=r"a square patch of 3 channels and 3 frames"):
        fold_normalization(nn.Linear(3 * 2 * 16, 4), **COLOURS, temporal_patch=3)
    with pytest.raises(ValueError, match="temporal_patch is 1; the kernel of embed spans 2 frames"):
        fold_normalization(nn.Conv3d(3, 4, (2, 3, 3)), **COLOURS)
    with pytest.raises(ValueError, match="temporal_patch is 2; the kernel of embed spans 1 frames"):
        fold_normalization(nn.Conv2d(3, 4, 3), **COLOURS, temporal_patch=2)
    with pytest.raises(ValueError, match="a convolution has channels first"):
        fold_normalization(nn.Conv2d(3, 4, 3), **COLOURS, order="blocks-channels-last")
    for conv in (nn.Conv2d(1, 4, 3), nn.Conv2d(3, 3, 3, groups=3)):
        with pytest.raises(ValueError, match="expected one group of 3 input channels"):
            fold_normalization(conv, **COLOURS)
    for padding in (1, "same"):
        with pytest.raises(ValueError, match=r"embed pads by .*; expected no padding|embed pads by 'same'"):
            fold_normalization(nn.Conv2d(3, 4, 3, padding=padding), **COLOURS)
    with pytest.raises(ValueError, match="std is 0; expected a finite number above 0"):
        fold_normalization(nn.Linear(12, 4), mean=(0, 0, 0), std=(1, 0, 1))
    with pytest.raises(ValueError, match="temporal_patch is 0; expected at least 1"):
        fold_normalization(nn.Linear(12, 4), **COLOURS, temporal_patch=0)


@pytest.mark.parametrize(
    ("colours", "message"),
    [
        ({"mean": (123.7, 116.3, 103.5)}, r"^mean is \(123.7, 116.3, 103.5\); expected .* in 0..1, .* divided by 255$"),
        ({"std": (58.4, 57.1, 57.4)}, r"^std is \(58.4, 57.1, 57.4\); expected .* in 0..1, .* divided by 255$"),
        ({"mean": (-0.1, 0.5, 0.5)}, r"^mean is \(-0.1, 0.5, 0.5\); expected"),
        ({"mean": (0.5, float("nan"), 0.5)}, r"^mean is \(0.5, nan, 0.5\); expected"),
        ({"std": (0.5, float("nan"), 0.5)}, r"^std is \(0.5, nan, 0.5\); expected"),
        ({"mean": 0.5}, r"^mean is 0.5; expected three numbers, \(r, g, b\)$"),
        ({"std": None}, r"^std is None; expected three numbers, \(r, g, b\)$"),
        ({"mean": "abc"}, r"^mean is 'abc'; expected three numbers, \(r, g, b\)$"),
        ({"mean": (0.5,)}, r"^mean is \(0.5,\); expected \(r, g, b\) in 0..1"),
    ],
    ids=str,
)
def test_colours_of_bytes_and_no_colours_are_refused(colours: dict[str, Any], message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        inspect.unwrap(fold_normalization)(nn.Linear(12, 4), **COLOURS | colours)


@torch.no_grad()
def test_colours_of_every_family_pass() -> None:
    pixels = noise(5, 3, 1, 2, 2)
    for name in family_names():
        colours: dict[str, Any] = {"mean": family(name).mean, "std": family(name).std}
        embed = nn.Linear(12, 4)
        rows = fold_normalization(embed, **colours)(pixels.flatten(1))
        torch.testing.assert_close(rows, embed(normalised(pixels, **colours).float().flatten(1)), rtol=0, atol=1e-4)
    lone: dict[str, Any] = {"mean": (0.0, 0.0, 0.0), "std": (1.0, 1.0, 1.0)}  # pixels of 0..1 as they are
    torch.testing.assert_close(fold_normalization(embed, **lone)(pixels.flatten(1)), embed(pixels.flatten(1) / 255))


def test_a_folded_embedding_is_not_folded_again() -> None:
    folded = fold_normalization(nn.Linear(12, 4), **COLOURS)
    with pytest.raises(ValueError, match="embed is a BytesLinear, which takes bytes already"):
        fold_normalization(folded, **COLOURS)


@torch.no_grad()
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_cast_of_the_model_leaves_folded_weights_exact(dtype: torch.dtype) -> None:
    embed = nn.Linear(48, 5)
    pixels = torch.randint(256, (7, 48), dtype=torch.uint8)
    folded = fold_normalization(embed, mean=(0.4, 0.5, 0.6), std=(0.2, 0.3, 0.4))
    exact = folded(pixels)
    model = nn.Sequential(folded, nn.Linear(5, 2)).to(dtype)
    assert folded.weight.dtype == torch.float32
    assert torch.equal(folded(pixels), exact.to(dtype))
    assert model(pixels).dtype == dtype
    assert torch.equal(model.float()[0](pixels), exact)
    assert model.double()[0](pixels).dtype == torch.float64
