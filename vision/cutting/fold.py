"""Normalisation as part of the patch embedding: raw bytes in, the embedding of normalised pixels out.

Letters: N patches, E channels of the embedding, T frames and p pixels a side of a patch.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Literal, TypeAlias, get_args

import torch
from jaxtyping import Float, Shaped
from torch import Tensor, nn

from mrope.checks import Number, one_of, positive, whole
from mrope.encodings.operands import without_autocast
from mrope.families import PatchOrder

Colour: TypeAlias = tuple[Number, Number, Number]
Frames: TypeAlias = Literal["repeated", "distinct"]


class _OfBytes(nn.Module):
    """Takes uint8 (or the same bytes as floats) and gives `output`, whatever autocast says: float32 weights count.

    Floats are not looked at, since models cast their patches before they embed them: of normalised ones the result is
    wrong.
    """

    output: torch.dtype
    weight: nn.Parameter

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> _OfBytes:
        """A cast of the module (`half()`, `to(dtype)`) is one of its output; weights stay float32 at least."""

        def exact(tensor: Tensor) -> Tensor:
            new = fn(tensor)
            if new.dtype == tensor.dtype:
                return new
            return tensor.to(new.device, torch.promote_types(new.dtype, torch.float32))

        self.output = fn(torch.empty(0, dtype=self.output, device=self.weight.device)).dtype
        return super()._apply(exact, recurse)

    def forward(self, pixels: Shaped[Tensor, "..."]) -> Float[Tensor, "..."]:
        with without_autocast(pixels.device):
            return super().forward(pixels.to(self.weight.dtype)).to(self.output)


class BytesLinear(_OfBytes, nn.Linear):
    """`nn.Linear` over raw bytes; made by `fold_normalization`."""


class BytesConv2d(_OfBytes, nn.Conv2d):
    """`nn.Conv2d` over raw bytes; made by `fold_normalization`."""


class BytesConv3d(_OfBytes, nn.Conv3d):
    """`nn.Conv3d` over raw bytes; made by `fold_normalization`."""


def fold_normalization(
    embed: nn.Linear | nn.Conv2d | nn.Conv3d,
    *,
    mean: Colour,
    std: Colour,
    temporal_patch: int = 1,
    order: PatchOrder = "blocks",
    frames: Frames = "repeated",
) -> BytesLinear | BytesConv2d | BytesConv3d:
    """A patch embedding that takes pixels 0..255 and gives what `embed` gives for ``(pixels / 255 - mean) / std``.

    The weights become ``weight / (255 std)``, the bias loses the sum of ``weight mean / std``; both are summed in
    float64. They are float32 at least: in bfloat16 the error of the embedding would be 1.8 times that of a bfloat16
    `embed` (pixels reach 255, and mean and bias cancel). The output has the dtype of `embed`. Of a picture, whose frame
    fills all T slots of a patch, one frame is taken, and the weights of the T slots are summed: an eighth of the bytes
    of float32 patches for T = 2.

    Args:
        embed: over 3 channels, without padding. It stays as it is; the result has parameters of its own.
        mean: (r, g, b) that was subtracted, of pixels in 0..1: `Family.mean`.
        std: (r, g, b) that was divided by: `Family.std`.
        temporal_patch: T of `embed`: `Family.temporal_patch`.
        order: of the values of a patch, `Family.patch_order`: a Linear needs to know where the channels are; a
            convolution has channels first.
        frames: "repeated" for pictures: the result takes T = 1. "distinct" for clips: T stays.

    Raises:
        TypeError: `embed` is none of the three, or `mean` or `std` no three numbers.
        ValueError: `embed` does not take patches of 3 channels and T frames, pads them, or takes bytes already; or
            `mean` or `std` lies outside 0..1.

    >>> embed = nn.Linear(3 * 2 * 4 * 4, 8)
    >>> folded = fold_normalization(embed, mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5), temporal_patch=2)
    >>> pixels = torch.randint(256, (5, 3, 1, 4, 4), dtype=torch.uint8)
    >>> normalised = (pixels / 255 - 0.5) / 0.5
    >>> expected = embed(normalised.expand(-1, -1, 2, -1, -1).flatten(1))
    >>> torch.allclose(folded(pixels.flatten(1)), expected, atol=1e-5)
    True
    """
    one_of("order", order, get_args(PatchOrder))
    one_of("frames", frames, get_args(Frames))
    whole("temporal_patch", temporal_patch, 1)
    if isinstance(embed, _OfBytes):
        raise ValueError(f"embed is a {type(embed).__name__}, which takes bytes already; expected the embedding before")
    means = torch.tensor(_colour("mean", mean), dtype=torch.float64)
    divisors = torch.tensor([positive("std", value) for value in _colour("std", std)], dtype=torch.float64)

    with torch.no_grad():
        canonical = _canonical(embed, temporal_patch, order).cpu().double()
        if frames == "repeated":
            canonical = canonical.sum(2, keepdim=True)
        spread = canonical / divisors.view(3, 1, 1)
        bias = -(spread * means.view(3, 1, 1)).sum((1, 2, 3))
        if embed.bias is not None:
            bias += embed.bias.cpu().double()
        return _made(embed, spread / 255, bias, order)


def _colour(name: str, colour: Any) -> list[float]:
    """(r, g, b) as floats, or one line that says what came."""
    try:
        values = [float(value + 0) for value in colour]  # a string is no number
    except TypeError:
        raise TypeError(f"{name} is {colour!r}; expected three numbers, (r, g, b)") from None
    if len(values) != 3 or not all(0 <= value <= 1 for value in values):
        raise ValueError(f"{name} is {colour}; expected (r, g, b) in 0..1, which is that of 0..255 divided by 255")
    return values


def _canonical(embed: Any, temporal_patch: int, order: PatchOrder) -> Tensor:
    """The weights as (E, 3, T, S): channels, frames and the pixels of one frame."""
    last = order.endswith("channels-last")
    if isinstance(embed, nn.Linear):
        side = math.isqrt(embed.in_features // (3 * temporal_patch))
        if 3 * temporal_patch * side * side != embed.in_features:
            raise ValueError(
                f"embed takes {embed.in_features} values; expected 3 * temporal_patch * p * p, a square patch of "
                f"3 channels and {temporal_patch} frames"
            )
        if last:
            return embed.weight.view(-1, side * side, 3, temporal_patch).permute(0, 2, 3, 1)
        return embed.weight.view(-1, 3, temporal_patch, side * side)
    if not isinstance(embed, (nn.Conv2d, nn.Conv3d)):
        raise TypeError(f"embed is a {type(embed).__name__}; expected nn.Linear, nn.Conv2d or nn.Conv3d")
    if last:
        raise ValueError(
            f"order is {order!r}; a convolution has channels first: expected 'blocks', 'raster' or 'strip'"
        )
    if embed.in_channels != 3 or embed.groups != 1:
        raise ValueError(f"embed is {embed}; expected one group of 3 input channels: r, g, b")
    if embed.padding != "valid" and (isinstance(embed.padding, str) or any(embed.padding)):
        raise ValueError(
            f"embed pads by {embed.padding!r}: with the mean colour before, with black after; expected no padding"
        )
    weight = embed.weight if isinstance(embed, nn.Conv3d) else embed.weight.unsqueeze(2)
    if weight.shape[2] != temporal_patch:
        raise ValueError(f"temporal_patch is {temporal_patch}; the kernel of embed spans {weight.shape[2]} frames")
    return weight.flatten(3)


def _made(
    embed: nn.Linear | nn.Conv2d | nn.Conv3d, canonical: Tensor, bias: Tensor, order: PatchOrder
) -> BytesLinear | BytesConv2d | BytesConv3d:
    out, _, t, _ = canonical.shape
    if isinstance(embed, nn.Linear):
        weight = canonical.permute(0, 3, 1, 2) if order.endswith("channels-last") else canonical
        made, weight = BytesLinear(canonical[0].numel(), out, device="meta"), weight.flatten(1)
    else:
        kernel: Any = embed.kernel_size
        stride: Any = embed.stride
        dilation: Any = embed.dilation
        if isinstance(embed, nn.Conv3d):
            kernel, stride = (t, *kernel[1:]), (min(t, stride[0]), *stride[1:])
        made = (BytesConv3d if isinstance(embed, nn.Conv3d) else BytesConv2d)(
            3, out, kernel, stride, dilation=dilation, device="meta"
        )
        weight = canonical.view(out, 3, *kernel)
    source = embed.weight
    dtype = torch.promote_types(source.dtype, torch.float32)
    made.weight, made.bias = (
        nn.Parameter(new.to(source.device, dtype).contiguous(), requires_grad=source.requires_grad)
        for new in (weight, bias)
    )
    made.output = source.dtype
    return made.train(embed.training)
