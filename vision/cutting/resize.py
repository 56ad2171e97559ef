"""Bytes to bytes of another size, in interleaved memory: rows, columns, channels.

Images of torch are planes, and a resize of planes packs and unpacks them: for a 12-megapixel photograph that takes
several times as long as the resize itself. Decoders write pixel after pixel, and so does this.
"""

from __future__ import annotations

from typing import get_args

import torch
from jaxtyping import UInt8
from torch import Tensor

from mrope.checks import one_of, whole
from mrope.families.record import Filter

from ..loading.pages import fresh


def resize(
    pixels: UInt8[Tensor, "3 h w"],
    size: tuple[int, int],
    *,
    filter: Filter = "bicubic",  # noqa: A002
    out: UInt8[Tensor, "3 h2 w2"] | None = None,
) -> UInt8[Tensor, "3 h2 w2"]:
    """The pixels at another size, where a filter as wide as the reduction averages them (no aliasing).

    On the CPU the result equals that of torchvision's `resize(..., antialias=True)`, which transformers calls, to the
    bit; on other devices it is computed in float32, as there.

    Args:
        pixels: (3, height, width) uint8; fastest if it is a view of contiguous (height, width, 3), as `load` gives it.
        size: (height, width) in pixels.
        filter: "bicubic" (Keys, a = -0.5) or "bilinear".
        out: (3, height, width) to write to and return, a view of contiguous (height, width, 3).

    Returns:
        a view of contiguous (height, width, 3); `pixels` itself where it has the size already and `out` is not given.

    Raises:
        ValueError: the size is not positive, the filter has another name, or `out` does not fit.

    >>> resize(torch.full((3, 4, 6), 7, dtype=torch.uint8), (2, 9))[0]
    tensor([[7, 7, 7, 7, 7, 7, 7, 7, 7],
            [7, 7, 7, 7, 7, 7, 7, 7, 7]], dtype=torch.uint8)
    """
    one_of("filter", filter, get_args(Filter))
    height, width = (whole(name, side, 1) for name, side in zip(("height", "width"), size, strict=True))
    if not pixels.numel():
        raise ValueError(f"pixels of shape {tuple(pixels.shape)} are none")
    if out is not None and (
        out.shape[1:] != (height, width) or out.device != pixels.device or not out.permute(1, 2, 0).is_contiguous()
    ):
        raise ValueError(
            f"out has shape {tuple(out.shape)}, strides {out.stride()} on {out.device}; expected a view of contiguous "
            f"({height}, {width}, 3) on {pixels.device}"
        )
    if pixels.shape[1:] == (height, width):
        return pixels if out is None else out.copy_(pixels)
    if out is None:
        out = fresh((height, width, 3), torch.uint8, pixels.device).permute(2, 0, 1)
    return _resize(interleaved(pixels), out, filter)


def interleaved(pixels: UInt8[Tensor, "3 h w"]) -> UInt8[Tensor, "3 h w"]:
    """The same pixels as a view of contiguous (height, width, 3), copied if need be."""
    return pixels.permute(1, 2, 0).contiguous().permute(2, 0, 1)


def _resize(pixels: Tensor, out: Tensor, kind: str) -> Tensor:
    """Write interleaved pixels into interleaved `out`, by what torchvision calls as well."""
    resample = getattr(torch.ops.aten, f"_upsample_{kind}2d_aa")
    sizes = list(out.shape[1:])
    if pixels.device.type == "cpu" and (kind == "bicubic" or _whole_numbers()):
        resample.out(_batch(pixels), sizes, False, None, None, out=_batch(out))
        return out
    return out.copy_(resample(_batch(pixels).float(), sizes, False, None, None)[0].clamp_(0, 255).round_())


def _batch(pixels: Tensor) -> Tensor:
    """(1, 3, H, W) whose strides, unlike those of `unsqueeze`, tell torch that channels come last."""
    _, height, width = pixels.shape
    return pixels.as_strided((1, 3, height, width), (3 * height * width, 1, 3 * width, 3))


def _whole_numbers() -> bool:
    """Whether torchvision computes "bilinear" in whole numbers here; without these instructions it takes float32."""
    from platform import machine

    return torch.backends.cpu.get_cpu_capability() in ("AVX2", "AVX512") or machine() in ("aarch64", "arm64")
