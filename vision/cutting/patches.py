"""Pixels to patches and back.

Letters: N patches of all pictures, V = 3 * T * p * p values of a patch of T frames and p pixels a side.
In merge-block order, which most families have, the merge * merge patches of one LLM token are neighbours, tokens run
row by row, temporal steps one after the other. With merge 2, a picture of 4 x 4 patches is laid out as

     0  1 |  4  5
     2  3 |  6  7
    ------+------
     8  9 | 12 13
    10 11 | 14 15

In raster order patches run row by row of the picture.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Any, Literal, get_args

import numpy as np
import torch
from jaxtyping import Int64, Shaped, UInt8
from torch import Tensor

from mrope.checks import Number, one_of, whole
from mrope.devices import check_device
from mrope.families import Family, PatchOrder

from ..loading.clips import Clip
from ..loading.decoded import Decoded
from ..loading.files import MAX_PIXELS, File, is_file, naming
from ..loading.load import Background, decode, decode_jpeg_on
from ..loading.pages import fresh
from ..loading.pdf import PdfPage, render
from ..loading.pictures import Picture, check_kind, name_of
from ..plans.fitting import ClipConflict, check_clips, check_family
from ..plans.footage import footage
from ..plans.plan import Part, Plan, Resized, Size
from ..plans.planning import check_plan, plan, plan_footage, resized_plan
from ..plans.prompt import Tokenizer
from . import fused
from .orders import by_token
from .resize import resize
from .strips import strips

Colour = tuple[float, float, float]
Dtype = Literal["float32", "bfloat16", "uint8"]
Impl = Literal["auto", "eager", "numba"]
Out = Shaped[Tensor, "n v"]
LARGE, STRIP = 1 << 21, 4
"""Pixels of a picture from which on it is resized and cut in strips, and rows of tokens in each."""
PAYS = 1 << 18
"""Bytes of a picture from which on a compiled pass is worth its start: it is loaded once a process."""


@dataclass(frozen=True, slots=True, eq=False)
class Patches:
    """Pictures or clips as the patches that a vision encoder embeds.

    Args:
        values: (N, V), picture after picture, part after part: float32 or bfloat16, normalised; or uint8, the bytes
            themselves, which `fold_normalization` lets an encoder take, with one frame (T = 1) for a picture.
        grids: (parts, 3) int64, (t, h, w) in patches of each part of each picture.
        plans: of each picture.
        mean: that was, or with uint8 is to be, subtracted, of each colour channel in 0..1.
        std: that was, or is to be, divided by.
        order: how patches and their values lie; see `Family`. "strip" lies as "raster" here.
    """

    values: Shaped[Tensor, "n v"]
    grids: Int64[Tensor, "parts 3"]
    plans: tuple[Plan, ...]
    mean: Colour
    std: Colour
    order: PatchOrder = "blocks"

    def __post_init__(self) -> None:
        grids = [list(part.grid) for plan in self.plans for part in plan.parts]
        if self.grids.tolist() != grids:
            raise ValueError(f"grids {self.grids.tolist()} are not those of the plans")
        if len(self.values) != sum(plan.patches for plan in self.plans):
            raise ValueError(f"{len(self.values)} patches do not fill the grids {self.grids.tolist()}")

    def strip(self) -> Shaped[Tensor, "1 3 p n_p"]:
        """The patches side by side as one picture that is a patch high, as MiniCPM-V takes them: (1, 3, p, N * p).

        Raises:
            ValueError: the patches are of another order, or have several frames.
        """
        patch = self.plans[0].patch if self.plans else 1
        if self.order not in ("strip", "raster") or self.values.shape[1] != 3 * patch * patch:
            raise ValueError(f"patches of {self.order!r} order and {self.values.shape[1]} values do not make a strip")
        return self.values.view(-1, 3, patch, patch).permute(1, 2, 0, 3).reshape(1, 3, patch, -1)


def patchify(
    images: Picture | Resized | Sequence[Picture | Resized],
    family: Family,
    *,
    min_tokens: int | None = None,
    max_tokens: int | None = None,
    conflict: Literal["error", "pad", "tile", "family"] = "error",
    plans: Sequence[Plan] | None = None,
    background: Background = "white",
    max_pixels: int = MAX_PIXELS,
    dtype: Dtype = "float32",
    out: Out | None = None,
    device: torch.device | str | None = None,
    impl: Impl = "auto",
) -> Patches:
    """The patches of one picture or of a list, as `plan` foresees them.

    Values are equal to those of transformers' image processor (torchvision backend on the CPU) for the same pixels.
    Pictures are decoded and resized one after the other, each straight into its place in the result; a page of a PDF is
    rendered at the very size that its plan wants.

    Args:
        images: what `load` takes, or a list of that; what is `Resized` is not resized again.
        min_tokens: least LLM tokens of one picture, by default the family's.
        max_tokens: most LLM tokens of one picture, by default the family's.
        conflict: as in `plan`, without "skip".
        plans: what was planned for the pictures, one each; limits are those of the plans then.
        background: as in `load`.
        max_pixels: as in `load`.
        dtype: of the values. "uint8" leaves normalisation to the encoder: an eighth of the bytes for a picture.
        out: (N or more, V) of that dtype, whose first N rows become the values: a buffer that is used again costs no
            fresh memory.
        device: where pictures are resized and values built, by default the CPU. On CUDA nvJPEG decodes plain JPEGs, and
            pixels may differ by a level or two from the CPU's.
        impl: "eager" is plain torch, "numba" one compiled pass, "auto" the latter where it is installed and fits; they
            are equal to the bit.

    Raises:
        OSError, ValueError, TypeError: as `plan` and `load`; headers are checked before any picture is decoded.

    >>> import mrope
    >>> patchify(np.zeros((56, 84, 3), dtype=np.uint8), mrope.family("qwen2-vl")).grids
    tensor([[1, 4, 6]])
    """
    pictures: Sequence[Any] = images if isinstance(images, (list, tuple)) else [images]
    if not pictures:
        raise ValueError("images is empty; expected at least one picture")
    one_of("conflict", conflict, ("error", "pad", "tile", "family"))
    check_family(family)
    whole("max_pixels", max_pixels, 1)
    check_device(device)
    names = [name_of(picture) or f"picture {number}" for number, picture in enumerate(pictures)]
    for number, picture in enumerate(pictures):
        if not isinstance(picture, Resized):
            check_kind(picture, f"picture {number}")
    if plans is None:
        plans = []
        for name, picture in zip(names, pictures, strict=True):
            with naming(name):
                plans.append(plan(picture, family, min_tokens=min_tokens, max_tokens=max_tokens, conflict=conflict))
    elif not isinstance(plans, (list, tuple)):
        raise TypeError(f"plans is a {type(plans).__name__}; expected a list with one plan a picture")
    elif (min_tokens, max_tokens, conflict, len(plans)) != (None, None, "error", len(pictures)):
        raise ValueError(
            f"{len(plans)} plans came for {len(pictures)} pictures; expected one each, and no limits nor conflict"
        )
    else:
        for number, one in enumerate(plans):
            check_plan(one, family, clip=False, name=f"plan {number}")
    cutter = _Cutter(family, "picture", plans, dtype, out, device, impl)
    for name, picture, one in zip(names, pictures, plans, strict=True):
        with naming(name):
            cutter.cut(_decoder(picture, cutter.values.device, background, max_pixels), one)
    return cutter.patches()


def patchify_video(
    source: Clip | Resized | File | UInt8[Tensor, "t 3 h w"] | np.ndarray,
    family: Family,
    *,
    fps: Number | None = None,
    frames: int | None = None,
    max_frames: int | None = None,
    min_tokens: int | None = None,
    max_tokens: int | None = None,
    conflict: ClipConflict = "error",
    tokenizer: Tokenizer | None = None,
    dtype: Dtype = "float32",
    out: Out | None = None,
    device: torch.device | str | None = None,
    impl: Impl = "auto",
) -> Patches:
    """The patches of one clip, as `plan_video` foresees them.

    Values are equal to those of transformers' video processor for the same frames. The last frame is repeated until
    the frames fill whole temporal patches; no frame is left out. Frames of a file are decoded one after the other.

    Args:
        source: what `plan_video` takes, but for a size.
        fps: as in `plan_video`.
        frames: as in `plan_video`.
        max_frames: as in `plan_video`.
        min_tokens: as in `plan_video`.
        max_tokens: as in `plan_video`.
        conflict: as in `plan_video`.
        tokenizer: as in `plan_video`.
        dtype: as in `patchify`; "uint8" keeps all frames of a temporal patch.
        out: as in `patchify`.
        device: as in `patchify`.
        impl: as in `patchify`.

    Raises:
        OSError, ValueError, TypeError, ImportError: as `plan_video`.

    >>> import mrope
    >>> frames = torch.zeros(3, 3, 56, 84, dtype=torch.uint8)
    >>> patchify_video(frames, mrope.family("qwen2-vl"), fps=2.0).grids
    tensor([[2, 4, 6]])
    """
    one_of("conflict", conflict, get_args(ClipConflict))
    check_clips(family)
    check_device(device)
    if isinstance(source, tuple):
        raise TypeError(f"a clip is a path, bytes, Clip, array or tensor; {source} is a size, which plan_video takes")
    if isinstance(source, Resized):
        planned = resized_plan(
            source, family, clip=True, fps=fps, frames=frames, max_frames=max_frames, tokenizer=tokenizer,
            min_tokens=min_tokens, max_tokens=max_tokens,
        )  # fmt: skip
        pictures = iter(source.pixels)
    else:
        seen = footage(source, family, fps=fps, frames=frames, max_frames=max_frames)
        planned = plan_footage(seen, family, min_tokens, max_tokens, conflict, tokenizer)
        pictures = seen.pictures()
    cutter = _Cutter(family, "clip", [planned], dtype, out, device, impl)
    cutter.cut_clip(pictures, planned)
    return cutter.patches()


def unpatchify(patches: Patches) -> list[Tensor]:
    """The resized pictures that `patches` were cut from, to the byte.

    Returns:
        Of each part of each picture uint8 (3, height, width), of a clip (frames, 3, height, width), without padding. A
        picture has one part, but for slices and tiles.

    Raises:
        ValueError: bfloat16 values, which do not hold the bytes.

    >>> import mrope
    >>> picture = torch.arange(56 * 84, dtype=torch.uint8).reshape(56, 84)
    >>> torch.equal(unpatchify(patchify(picture, mrope.family("qwen2-vl")))[0][0], picture)
    True
    """
    if not isinstance(patches, Patches):
        raise TypeError(f"patches is a {type(patches).__name__}; expected Patches, which know their grids")
    values = patches.values
    if values.dtype not in (torch.float32, torch.uint8):
        raise ValueError(f"values are {values.dtype}, which do not hold all bytes; expected float32 or uint8")
    mean, std = scaled_colours(patches.mean, patches.std, values.device)
    pictures = []
    for planned, part, tokens in _parts_of(values, patches.plans, patches.order):
        if planned.frames is None:
            tokens = tokens[..., :1, :, :]  # every frame of the temporal patch is the picture
        # (t, rows, cols, merge, merge, 3, T, p, p) -> (t, T, 3, rows, merge, p, cols, merge, p)
        _, h, w = part.grid
        frames = tokens.permute(0, 6, 5, 1, 3, 7, 2, 4, 8).reshape(-1, 3, h * planned.patch, w * planned.patch)
        if values.dtype == torch.float32:
            frames = (frames * std).add_(mean).round_().clamp_(0, 255).to(torch.uint8)
        height, width = part.window
        frames = frames[..., :height, :width]
        pictures.append(frames[0] if planned.frames is None else frames[: planned.frames - part.frame])
    return pictures


class _Cutter:
    """Values with room for all pictures, which are cut into it one after the other."""

    def __init__(
        self,
        family: Family,
        kind: Literal["picture", "clip"],
        plans: Sequence[Plan],
        dtype: Dtype,
        out: Tensor | None,
        device: torch.device | str | None,
        impl: Impl,
    ) -> None:
        one_of("dtype", dtype, get_args(Dtype))
        one_of("impl", impl, get_args(Impl))
        self.family, self.plans, self.impl = family, tuple(plans), impl
        self.mean, self.std = family.colours(kind)
        frames = 1 if dtype == "uint8" and kind == "picture" else family.temporal_patch
        shape = (sum(one.patches for one in plans), 3 * frames * family.patch**2)
        self.values = _room(shape, getattr(torch, dtype), out, device)
        self.raw = dtype == "uint8"
        self.colours = scaled_colours(self.mean, self.std, self.values.device)
        self.steps = _parts_of(self.values, self.plans, family.patch_order)

    def cut(self, decoded: Callable[[Size], Decoded], planned: Plan) -> None:
        """Cut the next picture, which `decoded` gives, at a size if it can choose."""
        whole = None
        for part in planned.parts:
            _, _, tokens = next(self.steps)
            if whole is None or whole.shape[1:] != part.resized:
                picture = decoded(part.resized)
                if prod(picture.size) >= LARGE and part.window == part.resized:
                    self.cut_strips(tokens[0], picture, planned, part)
                    continue
                whole = self.resized(picture.all(), planned, part)
            self.fill(tokens[0], whole, part)

    def cut_strips(self, step: Tensor, picture: Decoded, planned: Plan, part: Part) -> None:
        """Cut a large picture, which is never whole at its new size, some rows of tokens at a time."""
        self.check(picture.size, planned, part)
        if self.values.device.type != "cpu":
            picture = Decoded(picture.all().to(self.values.device))
        resized = strips(picture, part.resized, STRIP * planned.factor, filter=self.family.filter)
        for tokens, strip in zip(step.split(STRIP), resized, strict=True):
            self.write(tokens, strip)

    def cut_clip(self, frames: Iterable[Tensor], planned: Plan) -> None:
        """Cut a clip frame by frame: the last one fills what is left of its temporal patch, and of the steps."""
        parts = list(self.steps)
        last = (planned.frames or 1) - 1
        for number, frame in enumerate(frames):
            whole = None
            for _, part, tokens in parts:
                step, slot = divmod(number - part.frame, tokens.shape[6])
                if not 0 <= step < len(tokens):
                    continue
                if whole is None or whole.shape[1:] != part.resized:
                    whole = self.resized(frame, planned, part)
                self.fill(tokens[step][..., slot : None if number == last else slot + 1, :, :], whole, part)
                for left in tokens[step + 1 :] if number == last else ():
                    self.fill(left, whole, part)

    def resized(self, pixels: Tensor, planned: Plan, part: Part) -> Tensor:
        """The whole picture at the size that a part wants."""
        self.check((pixels.shape[1], pixels.shape[2]), planned, part)
        return resize(pixels.to(self.values.device), part.resized, filter=self.family.filter)

    def check(self, size: Size, planned: Plan, part: Part) -> None:
        """Refuse pixels of another size than was planned for."""
        if size not in (planned.original, part.resized):
            raise ValueError(f"decoded to {size} (height, width), its plan is for {planned.original}")

    def fill(self, step: Tensor, whole: Tensor, part: Part) -> None:
        """Write the window of a part into one step of its patches."""
        (top, left), (height, width) = part.corner, part.window
        self.write(step, whole[:, top : top + height, left : left + width])

    def write(self, step: Tensor, pixels: Tensor) -> None:
        """Write pixels into their patches; what these have beyond them, at the bottom and at the right, is black."""
        rows, cols, merge, _, _, _, patch, _ = step.shape
        canvas = (rows * merge * patch, cols * merge * patch)
        if pixels.shape[1:] != canvas:
            padded = pixels.new_zeros(*canvas, 3).permute(2, 0, 1)
            padded[:, : pixels.shape[1], : pixels.shape[2]] = pixels
            pixels = padded
        if self.impl == "numba" or (self.impl == "auto" and _pays(step, pixels)):
            fused.fill_(step, pixels, self.table)
        else:
            fill_(step, pixels, None if self.raw else self.colours)

    @cached_property
    def table(self) -> Tensor:
        """(3, 256) what each byte of each channel becomes."""
        every = torch.arange(256).repeat(3, 1)
        if self.raw:
            return every.to(self.values.dtype)
        mean, std = (colour.view(3, 1) for colour in self.colours)
        return every.to(torch.float32).sub_(mean).div_(std).to(self.values.dtype)

    def patches(self) -> Patches:
        """What was cut."""
        grids = torch.tensor([part.grid for one in self.plans for part in one.parts])
        return Patches(self.values, grids, self.plans, self.mean, self.std, self.family.patch_order)


def _decoder(picture: Any, device: torch.device, background: Background, max_pixels: int) -> Callable[[Size], Decoded]:
    """What gives the pixels of a picture: a page of a PDF at any size, and all else at its own, decoded once."""
    if isinstance(picture, PdfPage):
        return lambda size: Decoded(render(picture, size, max_pixels=max_pixels))
    if isinstance(picture, Resized):
        pixels = Decoded(picture.pixels)
    elif device.type == "cuda" and is_file(picture):
        pixels = Decoded(decode_jpeg_on(picture, device, background=background, max_pixels=max_pixels))
    else:
        pixels = decode(picture, background=background, max_pixels=max_pixels)
    return lambda _: pixels


def fill_(
    step: Shaped[Tensor, "rows cols m m 3 frames p p"],
    pixels: UInt8[Tensor, "3 h w"],
    colours: tuple[Tensor, Tensor] | None,
) -> None:
    """Write one frame into its patches, into each of their T frames: the specification of `fused.fill_`.

    One row of tokens at a time: what is normalised then still lies in the processor's cache when it is spread out.

    Args:
        step: the patches by token, a view of any strides.
        pixels: that fill them exactly.
        colours: mean and std (3, 1, 1) in 0..255; None leaves the bytes as they are.
    """
    _, cols, merge, _, _, _, patch, _ = step.shape
    dtype = torch.uint8 if colours is None else torch.float32
    band = torch.empty(3, merge * patch, cols * merge * patch, dtype=dtype, device=step.device)
    tokens = band.view(3, merge, patch, cols, merge, patch).permute(3, 1, 4, 0, 2, 5).unsqueeze(4)
    for row, source in zip(step, pixels.split(merge * patch, dim=1), strict=True):
        band.copy_(source)
        if colours is not None:
            mean, std = colours
            band.sub_(mean).div_(std)
        row.copy_(tokens.expand_as(row))


def scaled_colours(mean: Colour, std: Colour, device: torch.device) -> tuple[Tensor, Tensor]:
    """Mean and std (3, 1, 1) of each channel in 0..255, in float32 as transformers folds its 1/255 into them."""
    scaled = (torch.tensor(colour).view(3, 1, 1) * (1 / (1 / 255)) for colour in (mean, std))
    mean_, std_ = (colour.to(device) for colour in scaled)
    return mean_, std_


def _pays(step: Tensor, pixels: Tensor) -> bool:
    """Whether a compiled pass is worth its start."""
    return pixels.numel() >= PAYS and fused.unfit(step, pixels) is None


def _room(shape: tuple[int, int], dtype: torch.dtype, out: Tensor | None, device: torch.device | str | None) -> Tensor:
    if out is None:
        return fresh(shape, dtype, device)
    if not isinstance(out, Tensor):
        raise TypeError(f"out is a {type(out).__name__}; expected a tensor")
    if device is not None and out.device != torch.device(device):
        raise ValueError(f"out lies on {out.device}, and device is {device}; give one of them")
    if out.dtype != dtype or out.ndim != 2 or out.shape[1] != shape[1] or len(out) < shape[0] or out.stride(1) != 1:
        raise ValueError(
            f"out is {out.dtype} of shape {tuple(out.shape)}; expected {dtype}, contiguous, of {shape[0]} or more rows "
            f"of {shape[1]}"
        )
    if out.requires_grad:
        raise ValueError("out requires a gradient, and is written to; give out.detach()")
    return out[: shape[0]]


def _parts_of(values: Tensor, plans: Sequence[Plan], order: PatchOrder) -> Iterator[tuple[Plan, Part, Tensor]]:
    """Each part of each picture, with its patches seen by token."""
    first = 0
    for one in plans:
        for part in one.parts:
            last = first + prod(part.grid)
            yield one, part, by_token(values[first:last], part.grid, patch=one.patch, merge=one.merge, order=order)
            first = last
