"""Patches of bytes to those of normalised values, on the device that they were brought to.

Letters: N patches, V = 3 * T * p * p values of a patch of T frames and p pixels a side.
"""

from __future__ import annotations

from typing import Literal, get_args

from jaxtyping import Float32, UInt8
from torch import Tensor

from mrope.checks import one_of
from mrope.families import Family

from ..plans.fitting import check_family
from .patches import scaled_colours

Kind = Literal["picture", "clip"]


def normalize(values: UInt8[Tensor, "n v"], family: Family, *, kind: Kind = "picture") -> Float32[Tensor, "n v2"]:
    """The values that `patchify` makes, of those that it makes with dtype "uint8".

    They are equal to the bit on the CPU. A step of training is cheaper by `fold_normalization`, whose weights are
    others, though: what trains the embedding from the start takes normalised values.

    Args:
        values: (N, 3 * p * p) of pictures, or (N, V) of clips, in the family's order.
        family: whose patches they are.
        kind: what they were cut from.

    Returns:
        (N, V): the frame of a picture fills all T of a patch.

    Raises:
        TypeError, ValueError: values are no bytes, or patches have another number of them.

    >>> import mrope, torch
    >>> family = mrope.family("qwen2-vl")
    >>> picture = torch.arange(56 * 84, dtype=torch.uint8).reshape(56, 84)
    >>> raw, made = (mrope.vision.patchify(picture, family, dtype=dtype).values for dtype in ("uint8", "float32"))
    >>> raw.shape, torch.equal(normalize(raw, family), made)
    (torch.Size([24, 588]), True)
    """
    one_of("kind", kind, get_args(Kind))
    check_family(family)
    frames = 1 if kind == "picture" else family.temporal_patch
    wide = 3 * frames * family.patch**2
    if values.shape[1] != wide:
        raise ValueError(
            f"values have {values.shape[1]} numbers a patch; expected {wide}, of a {kind} of {family.name}"
        )
    mean, std = (colour.view(3, 1) for colour in scaled_colours(*family.colours(kind), values.device))
    last = family.patch_order.endswith("channels-last")  # a patch is (p * p, 3, T) then, and (3, T, p * p) else
    if last:
        seen = values.view(-1, family.patch**2, 3, frames)
    else:
        seen, mean, std = values.view(-1, 3, frames, family.patch**2), mean[..., None], std[..., None]
    made = seen.float().sub_(mean).div_(std)
    times = family.temporal_patch // frames
    return made.repeat(1, 1, 1, times).flatten(1) if last else made.repeat(1, 1, times, 1).flatten(1)
