"""The configuration of a built model: that of its language model, and how pictures are cut, seen and placed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import isqrt
from typing import Any, cast

from transformers import AutoConfig, PretrainedConfig

from mrope.axes import Allocation, AxisSplit
from mrope.checks import whole
from mrope.families import Family, family
from mrope.frequencies import Frequencies
from mrope.layouts import GridLayout
from mrope.vision import VitConfig


class VlmConfig(PretrainedConfig):
    """What `build_vlm` decided, for `save_pretrained` and `from_pretrained`.

    Args:
        text_config: of the language model, as transformers has it, or its content.
        encoder: the vision encoder, as `mrope.vlm.encoder.describe` tells it.
        family: the name of the family whose resize rule, patches and layout the model takes; None: `patch`, `merge`,
            `mean` and `std` say how pictures are cut.
        patch: side of a patch in pixels.
        merge: patches per LLM token and side.
        mean: of each colour channel (r, g, b), for pixel values in 0..1.
        std: the same.
        mrope_section: rotary pairs of (t, h, w).
        allocation: which pair reads which axis: see `mrope.AxisSplit`.
        order: the same, of "by-hand" alone.
        image_token_id: the placeholder of a picture's tokens, in the vocabulary or behind it; -1 is no token.
        video_token_id: that of a clip's.
        deepstack: numbers of the encoder's blocks whose patches are added to the tokens behind the first layers of the
            language model.
    """

    model_type = "mrope_vlm"
    # What is annotated becomes a field in some versions of transformers.
    sub_configs = {"text_config": AutoConfig}  # noqa: RUF012 # pyright: ignore[reportAssignmentType]
    has_no_defaults_at_init = True
    keys_to_ignore_at_inference = ["past_key_values", "cache"]  # noqa: RUF012

    def __init__(
        self,
        text_config: Any = None,
        encoder: Mapping[str, Any] | None = None,
        family: str | None = None,
        patch: int = 16,
        merge: int = 2,
        mean: Sequence[float] = (0.5, 0.5, 0.5),
        std: Sequence[float] = (0.5, 0.5, 0.5),
        mrope_section: Sequence[int] = (16, 24, 24),
        allocation: str = "chunked",
        order: Sequence[int] = (),
        image_token_id: int = -1,
        video_token_id: int = -1,
        deepstack: Sequence[int] = (),
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        self.text_config = AutoConfig.for_model(**text_config) if isinstance(text_config, Mapping) else text_config
        if kwargs.get("attn_implementation") is not None:
            self._attn_implementation = kwargs["attn_implementation"]  # that of the language model, too
        self.encoder = None if encoder is None else dict(encoder)
        self.family, self.patch, self.merge = family, patch, merge
        self.mean, self.std = list(mean), list(std)
        self.mrope_section, self.allocation, self.order = list(mrope_section), allocation, list(order)
        self.image_token_id, self.video_token_id = image_token_id, video_token_id
        self.deepstack = list(deepstack)

    @property
    def split(self) -> AxisSplit:
        """Which rotary pair of the language model reads which axis."""
        return AxisSplit(tuple(self.mrope_section), cast(Allocation, self.allocation), tuple(self.order))

    @property
    def record(self) -> Family:
        """How pictures are planned, cut and placed; the rotary encoding is the language model's own."""
        if self.family is not None:
            return family(self.family)
        return own_record(self.patch, self.merge, self.mean, self.std, self.split)

    @property
    def layout(self) -> GridLayout:
        """The rule that gives tokens their positions."""
        return grid_layout(self.record)

    def check(self, vit: VitConfig) -> None:
        """Refuse a configuration that an encoder of this shape does not go with.

        Raises:
            TypeError: a number is none.
            ValueError: a number is too small, or another one than the encoder's or the family's.
        """
        for name in ("image_token_id", "video_token_id"):
            whole(name, getattr(self, name), -1)
        record = self.record
        for name, came, wanted in (
            ("patch", self.patch, record.patch),
            ("merge", self.merge, record.merge),
            ("merge of the encoder", vit.merge, record.merge),
            ("patch_dim of the encoder", vit.patch_dim, record.patch_dim),
        ):
            if came != wanted:
                raise ValueError(f"{name} is {came!r}; expected {wanted}")
        if any(number not in range(vit.depth) for number in self.deepstack):
            raise ValueError(f"deepstack is {self.deepstack}; expected numbers of the {vit.depth} blocks, from 0")


def own_record(
    patch: int, merge: int, mean: Sequence[float], std: Sequence[float], split: AxisSplit | None = None
) -> Family:
    """A record of no published family: as in Qwen2-VL, but one frame a patch, and at most 16384 tokens a clip, too."""
    split = split or AxisSplit()
    base = family("qwen2-vl")
    token = (whole("patch", patch, 1) * whole("merge", merge, 1)) ** 2  # pixels
    assert base.sampling is not None
    return replace(
        base,
        name="vlm",
        model_types=(),
        patch=patch,
        temporal_patch=1,
        merge=merge,
        mean=tuple(mean),
        std=tuple(std),
        image_tokens=(1, 16384),
        image_pixels=None,
        video_pixels=(token, 16384 * token),
        video_budget="clip",
        sampling=replace(base.sampling, multiple=1),
        markers=0,
        layout=GridLayout(merge),
        deviations={},
        split=split,
        frequencies=Frequencies(1e4),
        head_dim=split.rotary_dim,
        boxes="0-1000",
        sources={},
    )


def grid_layout(record: Family) -> GridLayout:
    """The layout of a family whose pictures a built model can place.

    Raises:
        ValueError: it places them by another rule, or joins temporal steps.
    """
    if not isinstance(record.layout, GridLayout) or record.layout.temporal_merge != 1:
        raise ValueError(
            f"family {record.name} lays its pictures out by {record.layout}; expected one with a GridLayout that joins "
            "no temporal steps, such as qwen2-vl or qwen3-vl"
        )
    return record.layout


def patch_side(patch_dim: int, frames: int = 1) -> int:
    """Pixels on a side of a patch of `patch_dim` values, of 3 channels and `frames` frames.

    Raises:
        ValueError: there is no such square.
    """
    side = isqrt(patch_dim // (3 * frames))
    if 3 * frames * side * side != patch_dim:
        raise ValueError(f"patch_dim is {patch_dim}; expected 3 channels of a square, with {frames} frames a patch")
    return side


AutoConfig.register(VlmConfig.model_type, VlmConfig, exist_ok=True)
