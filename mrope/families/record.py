"""The record of one family: everything that must be agreed on before the model's first matrix product."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from os import PathLike
from typing import TYPE_CHECKING, Any, Literal, TypeVar, get_args, overload

from mrope.axes import AxisSplit
from mrope.checks import Number, one_of, positive, whole
from mrope.families.sampling import Sampling, Stamp
from mrope.frequencies import Frequencies
from mrope.layouts import GridLayout, Layout, SpanLayout
from mrope.positions import Positions
from mrope.rotary import Pairing, Rotary
from mrope.spans import Span, parse_span

if TYPE_CHECKING:
    from mrope.vision import Patches, Plan
else:  # annotations are looked up at run time in tests, and vision is loaded only when it is used
    Patches = Plan = Any

Boxes = Literal["processed-pixels", "0-1000", "0-1", "none", "unknown"]
Evidence = Literal["confirmed", "unconfirmed"]
PatchOrder = Literal["blocks", "blocks-channels-last", "raster", "raster-channels-last", "strip"]
Resize = Literal["area", "volume", "short-side", "two-sided", "newline", "slices", "padded"]
VideoBudget = Literal["frame", "clip"]
Filter = Literal["bicubic", "bilinear"]
Range = tuple[int, int]
Colour = tuple[Number, Number, Number]
T = TypeVar("T")

_WORDS = {"resize": Resize, "filter": Filter, "patch_order": PatchOrder, "rule": Evidence, "boxes": Boxes}

VERSIONS = ("transformers-5.24",)
"""The library versions whose positions `Family.positions` can give where they are not the trained ones."""


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
        image_tokens: least and most LLM tokens of one image, newlines and markers not counted; None where the resize
            rule has no such limits ("slices", "padded").
        image_pixels: the same limits in pixels, where a checkpoint states some that are no whole number of tokens.
        video_pixels: least and most pixels of a clip, counted as `video_budget` says; None in a family without clips.
        video_budget: "frame" limits h * w of each frame, "clip" limits frames * h * w of the whole clip; None with
            `video_pixels`.
        frame_pixels: most pixels of one frame, where the budget is of the clip and there is such a limit too.
        video_colours: (mean, std) of clips, where they are others than those of pictures.
        slices: with resize "slices", the side in pixels of the square that has a slice's area, and the most slices.
        resize: how pictures and clips get their size.
            "area": each side to the nearest multiple of a token's, then height * width into the limits (Qwen2-VL); a
            clip goes by "volume" where its budget is of the whole clip (Qwen3-VL).
            "volume": a side below a token's is first scaled up to it; the limits hold for frames * height * width, and
            a picture counts as one temporal patch (GLM-V).
            "short-side": one side after the other is first brought up to a token's; then as "area" (PaddleOCR-VL).
            "two-sided": the shorter side up to the root of the least pixels, the longer one down to that of the most,
            both halved before they are rounded (GLM-Image).
            "newline": a picture as by "area"; a clip never grows, and its tokens count with a newline behind each row
            (HY-V4-VL).
            "slices": a thumbnail, and for a large picture a grid of slices of the thumbnail's area (MiniCPM-V).
            "padded": the size that it has, filled up to whole patches at the right and at the bottom (NeoMME).
        filter: how pixels are resampled, with antialiasing.
        patch_order: how the patches lie.
            "blocks": the patches of a token side by side; each runs through channels, frames, rows, columns.
            "blocks-channels-last": the same; each runs through rows, columns, channels, frames.
            "raster": row by row of the picture; each runs as in "blocks".
            "raster-channels-last": row by row of the picture; each runs through rows, columns, channels.
            "strip": as "raster", but handed to the model as one picture that is a patch high (`Patches.strip`).
        markers: text tokens around a picture, as the family's prompts have them; those that the layout places itself
            are not counted.
        clip_markers: the same around a clip.
        step_markers: the same around each temporal step of a clip.
        sampling: which frames of a clip are looked at; None in a family without clips.
        stamp: how the time of each temporal step of a clip is written into the prompt; None where it is not.
        layout: the rule from spans to coordinates, as the released weights were trained with it.
        deviations: the rule of a library version in `VERSIONS` where it is another one.
        rule: "confirmed" where the layout was found in the vendor's own or in several independent codes, "unconfirmed"
            where it was found in one code alone or codes contradict each other.
        axes: what the axes of the layout are called.
        split: the rotary pairs of each axis.
        pairing: which channels make a rotary pair.
        frequencies: radians per position of each pair.
        head_dim: channels of one attention head of the language model.
        partial_rotary: the share of them that rotates.
        other_layers: type of layer -> its rotary encoding, where it is another one than the fields above make.
        boxes: how the model writes box corners: pixels of the resized picture, thousandths of its sides, shares of them
            ("0-1"), not at all ("none"), or in a way that was not found ("unknown").
        sources: field name -> where its value was found. No checkpoint was opened for any of them.

    Raises:
        ValueError: values contradict each other.
    """

    name: str
    model_types: tuple[str, ...]
    patch: int
    temporal_patch: int
    merge: int
    mean: Colour
    std: Colour
    image_tokens: Range | None
    image_pixels: Range | None = None
    video_pixels: Range | None
    video_budget: VideoBudget | None
    frame_pixels: int | None = None
    video_colours: tuple[Colour, Colour] | None = None
    slices: Range | None = None
    resize: Resize = "area"
    filter: Filter = "bicubic"
    patch_order: PatchOrder = "blocks"
    markers: int = 2
    clip_markers: int = 2
    step_markers: int = 0
    sampling: Sampling | None = None
    stamp: Stamp | None = None
    layout: Layout
    deviations: Mapping[str, Layout] = field(default_factory=dict, hash=False, compare=False)
    rule: Evidence = "confirmed"
    axes: tuple[str, ...] = ("t", "h", "w")
    split: AxisSplit
    pairing: Pairing
    frequencies: Frequencies
    head_dim: int
    partial_rotary: Number = 1
    other_layers: Mapping[str, Rotary] = field(default_factory=dict, hash=False)
    boxes: Boxes
    sources: Mapping[str, str] = field(hash=False, compare=False)

    def __post_init__(self) -> None:
        for name in ("patch", "temporal_patch", "merge", "head_dim"):
            whole(name, getattr(self, name), 1)
        for name, words in _WORDS.items():
            one_of(name, getattr(self, name), get_args(words))
        self._check_pictures()
        self._check_positions()
        for name in ("deviations", "other_layers", "sources"):
            object.__setattr__(self, name, _Frozen(getattr(self, name)))

    def _check_pictures(self) -> None:
        for name in ("image_tokens", "image_pixels", "video_pixels"):
            if (limits := getattr(self, name)) is not None:
                _check_range(name, limits)
        for mean, std in ((self.mean, self.std), self.colours("clip")):
            if len(mean) != 3 or len(std) != 3:
                raise ValueError(f"mean {mean} and std {std} must have 3 entries each: r, g, b")
            for value in std:
                positive("std", value)
        for name in ("markers", "clip_markers", "step_markers"):
            whole(name, getattr(self, name), 0)
        if (self.slices is None) != (self.resize != "slices"):
            raise ValueError(f"slices is {self.slices} with resize={self.resize!r}; expected both or neither")
        if (self.image_tokens is None) != (self.resize in ("slices", "padded")):
            raise ValueError(
                f"image_tokens is {self.image_tokens} with resize={self.resize!r}; expected None with slices "
                "and padded, and two numbers with the others"
            )
        if self.image_pixels is not None and tokens_of(self.image_pixels, self.factor) != self.image_tokens:
            raise ValueError(
                f"image_pixels {self.image_pixels} hold {tokens_of(self.image_pixels, self.factor)} tokens of "
                f"{self.factor}x{self.factor} pixels; image_tokens is {self.image_tokens}"
            )
        if (self.video_pixels is None) != (self.video_budget is None):
            raise ValueError(
                f"video_pixels is {self.video_pixels} and video_budget is {self.video_budget}; expected both or neither"
            )
        if self.video_budget is not None:
            one_of("video_budget", self.video_budget, get_args(VideoBudget))

    def _check_positions(self) -> None:
        for layout in (self.layout, *self.deviations.values()):
            if isinstance(layout, SpanLayout) and layout.merge != self.merge:
                raise ValueError(f"merge is {self.merge}, but the layout merges {layout.merge}")
            if isinstance(layout, SpanLayout) and layout.axes != len(self.axes):
                raise ValueError(f"axes are {', '.join(self.axes)}, but the layout has {layout.axes}")
        for version in self.deviations:
            one_of("a key of deviations", version, VERSIONS)
        if len(self.axes) != len(self.split.counts):
            raise ValueError(f"axes are {', '.join(self.axes)}, but mrope_section is {self.split.counts}")
        rotary = self.head_dim * positive("partial_rotary", self.partial_rotary)
        if self.partial_rotary > 1 or rotary != int(rotary):
            raise ValueError(
                f"partial_rotary is {self.partial_rotary}; expected a share of the {self.head_dim} channels of a head"
            )
        self.split.check_fits(int(rotary))

    @property
    def factor(self) -> int:
        """Side of one LLM token in pixels: both sides of a resized picture are multiples of it."""
        return self.patch * self.merge

    @property
    def patch_dim(self) -> int:
        """Values of one patch: 3 channels * temporal_patch * patch * patch."""
        return 3 * self.temporal_patch * self.patch * self.patch

    @property
    def temporal_merge(self) -> int:
        """Temporal steps of a clip that become one step of LLM tokens."""
        return self.layout.temporal_merge if isinstance(self.layout, GridLayout) else 1

    def colours(self, kind: Literal["picture", "clip"]) -> tuple[Colour, Colour]:
        """Mean and std of each channel (r, g, b), for pixel values in 0..1."""
        return self.video_colours if kind == "clip" and self.video_colours is not None else (self.mean, self.std)

    @property
    def pixel_limits(self) -> Range:
        """Least and most pixels of one image: what the checkpoint states, else `image_tokens` in pixels.

        Raises:
            ValueError: the resize rule has no such limits.
        """
        if self.image_pixels is not None:
            return self.image_pixels
        if self.image_tokens is None:
            raise ValueError(f"the resize rule {self.resize!r} of {self.name} has no limits in pixels")
        least, most = self.image_tokens
        return least * self.factor**2, most * self.factor**2

    def positions(
        self, spans: Sequence[Span | str], start: Number | Positions = 0, *, layout: str = "trained"
    ) -> Positions:
        """The positions of a prompt.

        Args:
            spans: what the tokens are, in the order of the prompt; strings are read by `parse_span`.
            start: the position of the first token, or the positions that these spans go on from: see `Layout`.
            layout: "trained", or one of `VERSIONS` for what that version computes, in comparisons.

        Raises:
            ValueError: a span cannot be read, or does not fit the family, or there is no such layout.

        >>> import mrope
        >>> mrope.family("qwen2.5-vl").positions(["text:4", "image:1x34x46", "text:1"]).ids[:, -1].tolist()
        [27, 27, 27]
        >>> clip = ["video:40x8x8", "text:1"]
        >>> [mrope.family("qwen2-vl").positions(clip, layout=rule).next for rule in ("trained", "transformers-5.24")]
        [41, 5]
        """
        if isinstance(spans, str) or not isinstance(spans, (list, tuple, Sequence)):
            raise TypeError(f"spans is {spans!r}; expected a list of spans, such as ['text:3', 'image:1x4x8']")
        read = [parse_span(span) if isinstance(span, str) else span for span in spans]
        return self.layout_named(layout)(read, start)

    def layout_named(self, name: str) -> Layout:
        """The layout "trained", or that of a library version; where no deviation is recorded, it is the trained one.

        Raises:
            ValueError: `name` is neither "trained" nor in `VERSIONS`.
        """
        one_of("layout", name, ("trained", *VERSIONS))
        return self.deviations.get(name, self.layout)

    def rotary(self) -> Rotary:
        """The rotary encoding of the language model, in all layers but `other_layers`."""
        return Rotary(self.split, self.frequencies, self.pairing)

    @overload
    def plan(
        self, source: list[Any], *, min_tokens: int | None = None, max_tokens: int | None = None
    ) -> list[Plan]: ...
    @overload
    def plan(self, source: Any, *, min_tokens: int | None = None, max_tokens: int | None = None) -> Plan: ...
    def plan(self, source: Any, *, min_tokens: int | None = None, max_tokens: int | None = None) -> Plan | list[Plan]:
        """What will happen to a picture, (height, width) or a file, or to each of a list: see `mrope.vision.plan`."""
        from mrope.vision import plan

        return plan(source, self, min_tokens=min_tokens, max_tokens=max_tokens)

    def patchify(
        self, images: Any, *, min_tokens: int | None = None, max_tokens: int | None = None, device: Any = None
    ) -> Patches:
        """The patches of one or several pictures: see `mrope.vision.patchify`, which can more."""
        from mrope.vision import patchify

        return patchify(images, self, min_tokens=min_tokens, max_tokens=max_tokens, device=device)

    def plan_video(
        self, source: Any, *, fps: Number | None = None, min_tokens: int | None = None, max_tokens: int | None = None
    ) -> Plan:
        """What will happen to a clip, (frames, height, width) or a file: see `mrope.vision.plan_video`."""
        from mrope.vision import plan_video

        return plan_video(source, self, fps=fps, min_tokens=min_tokens, max_tokens=max_tokens)

    def patchify_video(
        self,
        source: Any,
        *,
        fps: Number | None = None,
        min_tokens: int | None = None,
        max_tokens: int | None = None,
        device: Any = None,
    ) -> Patches:
        """The patches of a clip: see `mrope.vision.patchify_video`, which can more."""
        from mrope.vision import patchify_video

        return patchify_video(source, self, fps=fps, min_tokens=min_tokens, max_tokens=max_tokens, device=device)

    @classmethod
    def from_config(cls, config: str | PathLike[str] | Mapping[str, Any] | Any) -> Family:
        """The family of one checkpoint: what it states, and the record's value where it states nothing.

        Args:
            config: the checkpoint's folder (config.json and the files of its processors are read), the content of its
                config.json, or a transformers configuration. Of a configuration object that was loaded from a folder
                or from the hub's cache, the JSON is read, because the object mixes in the class defaults of
                transformers; what was changed on the object since counts. An object without a JSON is taken at its
                word, defaults too: a model made from it computes with them, and nothing tells the two apart.

        Raises:
            TypeError: `config` is none of these, or a value is of another type than it must be, as "14" for a patch.
            ValueError: the model type is unknown, a value has no meaning here, or two values contradict each other.
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


class _Frozen(Mapping[str, T]):
    """A mapping that nobody can change; types.MappingProxyType can be neither copied nor pickled."""

    __slots__ = ("_items",)

    def __init__(self, items: Mapping[str, T]) -> None:
        self._items = dict(items)

    def __getitem__(self, key: str) -> T:
        return self._items[key]

    def get(self, key: str, default: Any = None) -> Any:
        return self._items.get(key, default)

    def __iter__(self) -> Iterator[str]:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)

    def __repr__(self) -> str:
        return repr(self._items)
