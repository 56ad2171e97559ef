"""The record of one family: everything that must be agreed on before the model's first matrix product."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from os import PathLike
from typing import TYPE_CHECKING, Any, Literal, overload

from mrope.axes import AxisSplit
from mrope.checks import Number, one_of, positive, whole
from mrope.frequencies import Frequencies
from mrope.layouts import GridLayout, Layout
from mrope.positions import Positions
from mrope.rotary import Pairing, Rotary
from mrope.spans import Span, parse_span

if TYPE_CHECKING:
    from mrope.vision import Patches, Plan
else:  # annotations are looked up at run time in tests, and vision is loaded only when it is used
    Patches = Plan = Any

Boxes = Literal["processed-pixels", "0-1000"]
VideoBudget = Literal["frame", "clip"]
Range = tuple[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """What one published vision-language model chose.

    Args:
        name: how `mrope.family` calls it.
        model_types: the `model_type` words of its transformers configurations.
        patch: side of a patch in pixels.
        temporal_patch: frames per temporal step.
        merge: patches per LLM token and side.
        mean: of each colour channel (r, g, b), for pixel values in 0..1.
        std: the same.
        image_tokens: least and most LLM tokens of one image.
        image_pixels: the same limits in pixels, where a checkpoint states some that are no whole number of tokens.
        video_pixels: least and most pixels of a clip, counted as `video_budget` says.
        video_budget: "frame" limits h * w of each frame, "clip" limits frames * h * w of the whole clip.
        layout: the rule from spans to coordinates.
        split: the rotary pairs of each axis.
        pairing: which channels make a rotary pair.
        frequencies: radians per position of each pair.
        head_dim: channels of one attention head of the language model.
        boxes: how the model writes box corners: pixels of the resized picture, or thousandths of its sides.
        sources: field name -> where its value was found.

    Raises:
        ValueError: values contradict each other.
    """

    name: str
    model_types: tuple[str, ...]
    patch: int
    temporal_patch: int
    merge: int
    mean: tuple[Number, Number, Number]
    std: tuple[Number, Number, Number]
    image_tokens: Range
    image_pixels: Range | None = None
    video_pixels: Range
    video_budget: VideoBudget
    layout: Layout
    split: AxisSplit
    pairing: Pairing
    frequencies: Frequencies
    head_dim: int
    boxes: Boxes
    sources: Mapping[str, str] = field(hash=False, compare=False)

    def __post_init__(self) -> None:
        for name in ("patch", "temporal_patch", "merge", "head_dim"):
            whole(name, getattr(self, name), 1)
        for name in ("image_tokens", "video_pixels"):
            _check_range(name, getattr(self, name))
        one_of("video_budget", self.video_budget, ("frame", "clip"))
        one_of("boxes", self.boxes, ("processed-pixels", "0-1000"))
        if len(self.mean) != 3 or len(self.std) != 3:
            raise ValueError(f"mean {self.mean} and std {self.std} must have 3 entries each: r, g, b")
        for value in self.std:
            positive("std", value)
        if self.image_pixels is not None and tokens_of(self.image_pixels, self.factor) != self.image_tokens:
            raise ValueError(
                f"image_pixels {self.image_pixels} hold {tokens_of(self.image_pixels, self.factor)} tokens of "
                f"{self.factor}x{self.factor} pixels; image_tokens is {self.image_tokens}"
            )
        if isinstance(self.layout, GridLayout) and self.layout.merge != self.merge:
            raise ValueError(f"merge is {self.merge}, but the layout merges {self.layout.merge}")
        self.split.check_fits(self.head_dim)

    @property
    def factor(self) -> int:
        """Side of one LLM token in pixels: both sides of a resized picture are multiples of it."""
        return self.patch * self.merge

    @property
    def patch_dim(self) -> int:
        """Values of one patch: 3 channels * temporal_patch * patch * patch."""
        return 3 * self.temporal_patch * self.patch * self.patch

    @property
    def pixel_limits(self) -> Range:
        """Least and most pixels of one image: what the checkpoint states, else `image_tokens` in pixels."""
        if self.image_pixels is not None:
            return self.image_pixels
        least, most = self.image_tokens
        return least * self.factor**2, most * self.factor**2

    def positions(self, spans: Sequence[Span | str]) -> Positions:
        """The positions of a prompt, given as its spans in order; strings are read by `parse_span`.

        Raises:
            ValueError: a span cannot be read, or does not fit the family.

        >>> import mrope
        >>> mrope.family("qwen2.5-vl").positions(["text:4", "image:1x34x46", "text:1"]).ids[:, -1].tolist()
        [27, 27, 27]
        """
        if isinstance(spans, str):
            raise TypeError(f"spans is the string {spans!r}; expected a list of spans, such as [{spans!r}]")
        return self.layout([parse_span(span) if isinstance(span, str) else span for span in spans])

    def rotary(self) -> Rotary:
        """The rotary encoding of the language model."""
        return Rotary(self.split, self.frequencies, self.pairing)

    @overload
    def plan(
        self, source: list[Any], *, min_tokens: int | None = None, max_tokens: int | None = None
    ) -> list[Plan]: ...
    @overload
    def plan(self, source: Any, *, min_tokens: int | None = None, max_tokens: int | None = None) -> Plan: ...
    def plan(self, source: Any, *, min_tokens: int | None = None, max_tokens: int | None = None) -> Plan | list[Plan]:
        """What will happen to a picture, or to each of a list: see `mrope.vision.plan`."""
        from mrope.vision import plan

        return plan(source, self, min_tokens=min_tokens, max_tokens=max_tokens)

    def patchify(
        self, images: Any, *, min_tokens: int | None = None, max_tokens: int | None = None, device: Any = None
    ) -> Patches:
        """The patches of one or several pictures: see `mrope.vision.patchify`."""
        from mrope.vision import patchify

        return patchify(images, self, min_tokens=min_tokens, max_tokens=max_tokens, device=device)

    def plan_video(
        self, source: Any, *, fps: Number | None = None, min_tokens: int | None = None, max_tokens: int | None = None
    ) -> Plan:
        """What will happen to a clip: see `mrope.vision.plan_video`."""
        from mrope.vision import plan_video

        return plan_video(source, self, fps=fps, min_tokens=min_tokens, max_tokens=max_tokens)

    def patchify_video(
        self,
        frames: Any,
        *,
        fps: Number | None = None,
        min_tokens: int | None = None,
        max_tokens: int | None = None,
        device: Any = None,
    ) -> Patches:
        """The patches of a clip: see `mrope.vision.patchify_video`."""
        from mrope.vision import patchify_video

        return patchify_video(frames, self, fps=fps, min_tokens=min_tokens, max_tokens=max_tokens, device=device)

    @classmethod
    def from_config(cls, config: str | PathLike[str] | Mapping[str, Any] | Any) -> Family:
        """The family of one checkpoint: what it states, and the record's value where it states nothing.

        Args:
            config: the checkpoint's folder (config.json and its preprocessor files are read), the content of its
                config.json, or a transformers configuration. Of a configuration object that was loaded from a folder
                or from the hub's cache, the JSON is read, because the object mixes in the class defaults of
                transformers; what was changed on the object since counts. An object without a JSON is taken at its
                word, defaults too: a model made from it computes with them, and nothing tells the two apart.

        Raises:
            ValueError: the model type is unknown, a value is missing its meaning here (such as a rope scaling), or two
                values contradict each other.
        """
        from mrope.families.checkpoint import read_checkpoint

        return read_checkpoint(config)


def tokens_of(pixels: Range, factor: int) -> Range:
    """The whole LLM tokens between two pixel limits, `factor` x `factor` pixels each."""
    area = factor * factor
    return math.ceil(pixels[0] / area), pixels[1] // area


def _check_range(name: str, limits: Range) -> None:
    least, most = limits
    whole(f"least of {name}", least, 1)
    if most < least:
        raise ValueError(f"{name} {limits}: the most is below the least")
