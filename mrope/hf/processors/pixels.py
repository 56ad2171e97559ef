"""The image and video processors of transformers, whose pixels become patches in `mrope.vision`.

A class is made for each: a subclass of the family's own, so that it is loaded, saved and passed around like that one.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from mrope.checks import positive, whole
from mrope.families import Family
from mrope.families.settings import Kind, tuned
from mrope.spans import Sliced
from mrope.vision import (
    Clip,
    PdfPage,
    Plan,
    Resized,
    clip_of,
    measure_clip,
    patchify,
    patchify_video,
    plan,
    plan_video,
    read_clip,
)

if TYPE_CHECKING:
    from transformers.video_utils import VideoMetadata
else:
    VideoMetadata = Any


@dataclass
class Planned:
    """The plans of a prompt whose pixels are not wanted."""

    images: list[Plan] = field(default_factory=list)
    videos: list[Plan] = field(default_factory=list)


_PLANNING: ContextVar[Planned | None] = ContextVar("mrope_planning", default=None)


@contextmanager
def planning() -> Iterator[Planned]:
    """Within it, pictures and clips are planned and not decoded."""
    planned = Planned()
    token = _PLANNING.set(planned)
    try:
        yield planned
    finally:
        _PLANNING.reset(token)


@cache
def subclass(base: type, mixin: type, record: Family) -> type:
    """A subclass of `base` that does what `mixin` does, for the family of `record`; called like `base` when saved."""
    return type(base.__name__, (mixin, base), {"base": base, "mixin": mixin, "record": record})


def turned_into(part: Any, mixin: type, record: Family) -> Any:
    """`part`, an object of a class of transformers that nobody else holds, as one of its subclass."""
    part.__class__ = subclass(type(part), mixin, record)
    return part


def restored(base: type, mixin: type, record: Family, state: dict[str, Any]) -> Any:
    """An object of a subclass, from what pickle kept of it."""
    made = object.__new__(subclass(base, mixin, record))
    made.__dict__.update(state)
    return made


class Made:
    """What the subclasses share: they are pickled by what they are made of, as no module holds them."""

    base: ClassVar[type]
    mixin: ClassVar[type]
    record: ClassVar[Family]

    def __reduce__(self) -> Any:
        return restored, (self.base, self.mixin, self.record, self.__dict__)


class _Pixels(Made):
    valid_kwargs: Any
    kind: ClassVar[Kind]

    def settings(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """Each setting by name, that of this call before that of the processor."""
        known = set(self.valid_kwargs.__annotations__)
        if unknown := sorted(set(options) - known - {"return_tensors", "min_pixels", "max_pixels"}):
            raise TypeError(
                f"{unknown[0]} is no setting of {type(self).__name__}; known are {', '.join(sorted(known))}"
            )
        own = {name: getattr(self, name) for name in sorted(known | set(_CLASS_SETTINGS)) if hasattr(self, name)}
        given = {name: value for name, value in options.items() if value is not None}
        for name, other in (("fps", "num_frames"), ("num_frames", "fps")):
            if name in given and other not in given:
                own[other] = None  # one of them says how many frames are looked at
        if isinstance(given.get("fps"), (int, float)):
            positive("fps", given["fps"])
        if "size" in given and not hasattr(given["size"], "keys"):
            raise TypeError(f'size is {given["size"]!r:.80}; expected {{"shortest_edge": ..., "longest_edge": ...}}')
        if "size" in given:  # the other words for it, in the processors of older versions
            own |= {"min_pixels": None, "max_pixels": None}
        made = own | given
        if {"min_pixels", "max_pixels"} & given.keys():
            self._check_limits(made)
        return made

    def _check_limits(self, settings: Mapping[str, Any]) -> None:
        """Refuse limits in pixels that no size keeps."""
        size = settings.get("size") or {}
        limits = []
        for name, edge in (("min_pixels", "shortest_edge"), ("max_pixels", "longest_edge")):
            value = size.get(edge) if settings.get(name) is None else settings[name]
            limits.append(None if value is None else whole(name, value, 1))
        least, most = limits
        if least is not None and most is not None and most < least:
            raise ValueError(f"max_pixels is {most}; expected at least min_pixels, here {least}")

    def tuned(self, **options: Any) -> Family:
        """The family as this processor is set, with the settings of a call."""
        return self._tuned(self.settings(options))

    def _tuned(self, settings: Mapping[str, Any]) -> Family:
        """The family by these settings; without resizing it is the same, and `_check_kept` has a look at sizes."""
        kept = settings.get("do_resize") is False and self.record.slices is None
        return tuned(self.record, {**settings, "do_resize": True} if kept else settings, self.kind)

    def _check_kept(self, settings: Mapping[str, Any], plans: Sequence[Plan]) -> None:
        """Refuse sizes that the family would change where nothing is to be resized."""
        for number, one in enumerate(plans):
            if settings.get("do_resize") is False and one.original != one.resized:
                (height, width), (best_height, best_width) = one.original, one.resized
                raise ValueError(
                    f"do_resize is False and {self.kind} {number} is {height} high x {width} wide; expected a size "
                    f"that {self.record.name} keeps, here {best_height} x {best_width}, or do_resize=True"
                )


_CLASS_SETTINGS = ("rescale_factor", "spatial_patch_size", "max_image_size")


class Images(_Pixels):
    """An image processor: pictures that `mrope.vision.load` takes, and lists of them."""

    kind = "picture"

    def fetch_images(self, images: Any) -> Any:
        return images

    def preprocess(self, images: Any, *_: Any, **options: Any) -> Any:
        from transformers import BatchFeature

        settings = self.settings(options)
        family = self._tuned(settings)
        pictures = [_picture(one) for one in pictures_of(images)]
        planned = _PLANNING.get()
        if planned is None:
            patches = patchify(pictures, family, conflict="family", device=settings.get("device"))
            plans = patches.plans
            values = {"pixel_values": _shaped(patches.values, family, plans)}
        else:
            plans, values = tuple(plan(one, family, conflict="family") for one in pictures), {}
            planned.images += plans
        self._check_kept(settings, plans)
        grids = [list(part.grid) for one in plans for part in one.parts]
        kept: list[str] = []
        if family.resize == "slices":
            values |= {"target_sizes": torch.tensor([grid[1:] for grid in grids], dtype=torch.int32)}
            values |= {
                "grids": [_slices(one) for one in plans],
                "num_patches_per_image": [len(one.parts) for one in plans],
            }
            kept = ["grids", "num_patches_per_image"]
        elif family.resize == "padded":
            values["image_grid_hw"] = torch.tensor([grid[1:] for grid in grids])
        else:
            values["image_grid_thw"] = torch.tensor(grids)
        return _feature(BatchFeature, values, settings.get("return_tensors"), kept)


class Videos(_Pixels):
    """A video processor: clips as files, arrays, tensors, lists of frames and `Clip`s, and lists of them."""

    kind = "clip"

    def preprocess(self, videos: Any, **options: Any) -> Any:
        from transformers import BatchFeature

        settings = self.settings(options)
        family = self._tuned(settings)
        clips = [one.clip if isinstance(one, Named) else one for one in clips_of(videos)]
        given = _metadata(settings.get("video_metadata"), len(clips))
        planned = _PLANNING.get()
        plans: list[Plan] = []
        values: list[Tensor] = []
        metadata: list[VideoMetadata] = []
        for clip, about in zip(clips, given, strict=True):
            footage, about = self._looked_at(clip, about, settings, pixels=planned is None)
            metadata.append(about)
            if planned is None:
                patches = patchify_video(footage, family, conflict="family", device=settings.get("device"))
                plans += patches.plans
                values.append(patches.values)
            else:
                plans.append(plan_video(footage, family, conflict="family"))
        self._check_kept(settings, plans)
        data: dict[str, Any] = {}
        if planned is None:
            data["pixel_values_videos"] = _shaped(torch.cat(values) if len(values) > 1 else values[0], family, plans)
        else:
            planned.videos += plans
        kept: list[str] = []
        if family.resize == "slices":
            sizes = [part.grid[1:] for one in plans for part in one.parts]
            frames = [one.frames or 0 for one in plans]
            parts = [len(one.parts) // count for one, count in zip(plans, frames, strict=True) for _ in range(count)]
            grids = [_slices(one) for one, count in zip(plans, frames, strict=True) for _ in range(count)]
            data["target_sizes_videos"] = torch.tensor(sizes, dtype=torch.int32)
            data["grids_videos"] = torch.tensor(grids, dtype=torch.int32)
            data["num_patches_per_frame"] = torch.tensor(parts, dtype=torch.int32)
            data["num_frames_per_video"] = frames
            kept = ["grids_videos", "num_patches_per_frame", "num_frames_per_video"]
        else:
            data["video_grid_thw"] = torch.tensor([list(one.grid) for one in plans])
        made = _feature(BatchFeature, data, settings.get("return_tensors"), kept)
        if settings.get("return_metadata"):
            made["video_metadata"] = metadata
        return made

    def _looked_at(
        self, clip: Any, about: VideoMetadata | None, settings: Mapping[str, Any], *, pixels: bool
    ) -> tuple[Clip, VideoMetadata]:
        """The frames that are looked at, and what is known of them; blank frames of a file if no pixels are wanted."""
        clip = _as_bytes(clip)
        about = _known_of(clip) if about is None or isinstance(clip, (*_FILE, Clip)) else about
        assert about is not None
        if settings.get("do_sample_frames") and not isinstance(clip, Clip):
            if not isinstance(clip, _FILE) and about.total_num_frames != len(clip):
                raise ValueError(
                    f"video_metadata has total_num_frames {about.total_num_frames} for {len(clip)} frames; expected "
                    "those of the whole clip, or do_sample_frames=False for frames that were picked already"
                )
            chosen = indices = np.asarray(self._picks(clip, about, settings)).astype(int).tolist()
        else:
            chosen = list(range(about.total_num_frames if isinstance(clip, _FILE) else _count(clip)))
            indices = chosen if about.frames_indices is None else list(about.frames_indices)
        if len(indices) != len(chosen):
            raise ValueError(
                f"video_metadata has {len(indices)} frames_indices for {len(chosen)} frames; expected one a frame"
            )
        about.frames_indices = indices
        # 24 frames a second are what transformers takes, too, where nothing is known.
        seconds = [index / (about.fps or 24) for index in indices]
        if isinstance(clip, Clip):
            frames = clip.frames
        elif not isinstance(clip, _FILE):
            frames = clip_of([clip[one] for one in chosen], seconds=seconds).frames
        elif pixels:
            frames = read_clip(clip, indices=chosen).frames
        else:
            height, width = about.height or 1, about.width or 1
            frames = torch.zeros(1, 1, 1, 1, dtype=torch.uint8).expand(len(chosen), 3, height, width)
        return Clip(frames=frames, seconds=torch.tensor(seconds, dtype=torch.float64), rate=about.sampled_fps), about

    def _picks(self, clip: Any, about: VideoMetadata, settings: Mapping[str, Any]) -> Any:
        """The frames that the family's own video processor picks."""
        rule = {name: value for name, value in settings.items() if name not in ("video_metadata", "do_sample_frames")}
        sampling = self.record.sampling
        if sampling is not None and sampling.rule == "spaced" and rule.get("fps") is rule.get("num_frames") is None:
            rule["fps"] = sampling.fps  # transformers 5.24 compares None with a number
        if about.fps is None and rule.get("fps") is not None:
            if isinstance(clip, _FILE):
                shown = f"{clip!r:.80}" if isinstance(clip, bytes) else repr(str(clip))
                raise ValueError(f"video is {shown}, without a frame rate; expected a clip, or a list of frames")
            raise ValueError(
                "video_metadata has no fps; expected it, say video_metadata=[{'total_num_frames': 90, 'fps': 30}], or "
                "for frames that were picked already mrope.vision.clip_of(frames, fps=2) or do_sample_frames=False"
            )
        return self.sample_frames(metadata=about, **rule)  # pyright: ignore[reportAttributeAccessIssue]


_FILE = (str, bytes, os.PathLike)


class Named(str):
    """A clip where transformers wants the name of a file: it counts and passes on names without a look inside."""

    clip: Any


def named(clip: Any) -> Named:
    """`clip` with a name, which is its own where it is a path."""
    if isinstance(clip, Named):
        return clip
    made = Named(os.fsdecode(clip) if isinstance(clip, (str, os.PathLike)) else "clip")
    made.clip = clip
    return made


def framed(picture: Any) -> Any:
    """`picture` where transformers wants a PIL image: one of a single pixel that knows it."""
    from PIL import Image

    if hasattr(picture, "picture"):
        return picture
    made = Image.new("L", (1, 1))
    made.picture = picture  # pyright: ignore[reportAttributeAccessIssue]
    return made


def held(messages: Any) -> Any:
    """`messages` with stand-ins for our clips and pictures, which are dataclasses: transformers makes dicts of such."""
    if isinstance(messages, dict):
        return {key: held(value) for key, value in messages.items()}
    if isinstance(messages, (list, tuple)):
        return [held(one) for one in messages]
    if isinstance(messages, Clip):
        return named(messages)
    return framed(messages) if isinstance(messages, (PdfPage, Resized)) else messages


def pictures_of(images: Any) -> list[Any]:
    """The pictures of a list of any depth; an array of four axes is a list, too."""
    if isinstance(images, (list, tuple)) or getattr(images, "ndim", 0) == 4:
        return [one for entry in images for one in pictures_of(entry)]
    return [images]


def clips_of(videos: Any) -> list[Any]:
    """The clips of a list of any depth.

    A list of frames (PIL images, arrays of three axes) is a clip, and so is, two lists deep, one of their paths.
    """
    if _is_frame(videos):
        return [[videos]]
    if not isinstance(videos, (list, tuple)):
        return list(videos) if getattr(videos, "ndim", 4) == 5 else [videos]
    if videos and all(_is_frame(one) for one in videos):
        return [videos]
    first = videos[0] if videos else ()
    if (
        isinstance(first, (list, tuple))
        and first
        and isinstance(first[0], (list, tuple))
        and isinstance(first[0][0], str)
    ):
        return [clip for row in videos for clip in row]
    return [one for entry in videos for one in clips_of(entry)]


def _is_frame(one: Any) -> bool:
    return getattr(one, "ndim", 0) == 3 or (hasattr(one, "getexif") and hasattr(one, "size"))


def _picture(picture: Any) -> Any:
    """What `load` takes: what a stand-in holds, and what is behind an address or in a text of base64."""
    picture = getattr(picture, "picture", picture)
    if isinstance(picture, str) and not os.path.exists(picture):
        from transformers.image_utils import load_image

        return load_image(picture)
    return _as_bytes(picture)


def _as_bytes(pixels: Any) -> Any:
    """An array of whole numbers of 0 to 255 in floating point, as qwen-vl-utils makes of a clip, as uint8."""
    values = pixels
    if isinstance(pixels, np.ndarray) and pixels.dtype.kind == "f":
        values = torch.from_numpy(np.ascontiguousarray(pixels))
    if not isinstance(values, Tensor) or not values.is_floating_point():
        return pixels
    made = values.to(torch.uint8)
    return made if values.numel() and made.max() > 1 and torch.equal(made.to(values.dtype), values) else pixels


def _count(frames: Any) -> int:
    return len(frames.frames) if isinstance(frames, Clip) else len(frames)


def _known_of(clip: Any) -> VideoMetadata:
    """What transformers calls the metadata of a clip, as far as they are known."""
    from transformers.video_utils import VideoMetadata

    if isinstance(clip, _FILE):
        if isinstance(clip, str) and clip.startswith(("http://", "https://")):
            raise ValueError(f"video is {clip}; expected a file here, as clips are not fetched")
        size = measure_clip(clip)
        return VideoMetadata(
            size.frames,
            fps=size.fps,
            width=size.width,
            height=size.height,
            duration=size.duration,
            video_backend="pyav",
        )
    count = _count(clip)
    if isinstance(clip, Clip) and clip.rate and clip.fps and clip.indices is not None:
        return VideoMetadata(round(count * clip.fps / clip.rate), fps=clip.fps, frames_indices=list(clip.indices))
    return VideoMetadata(count, fps=clip.rate if isinstance(clip, Clip) else None, frames_indices=list(range(count)))


def _metadata(given: Any, clips: int) -> list[VideoMetadata | None]:
    """What the caller says of each clip, copied; None where nothing is said."""
    from transformers.video_utils import VideoMetadata

    if given is None:
        return [None] * clips
    rows = [given] if isinstance(given, Mapping) else list(given)
    flat = [one for row in rows for one in (row if isinstance(row, (list, tuple)) else [row])]
    if len(flat) != clips:
        raise ValueError(f"video_metadata has {len(flat)} entries for {clips} clips; expected one a clip")
    made: list[VideoMetadata | None] = [VideoMetadata(**dict(one)) for one in flat]
    for one in made:
        if one is not None and one.fps is not None:
            positive("fps of video_metadata", one.fps)
    return made


def _slices(planned: Plan) -> list[int]:
    """Rows and columns of the slices of a picture or of each frame, zeros where there are none."""
    first = planned.spans[0] if planned.spans else None
    return list(first.slices) if isinstance(first, Sliced) and first.slices else [0, 0]


def _shaped(values: Tensor, family: Family, plans: Sequence[Plan]) -> Tensor:
    """Patches (N, V) in the shape that the family's model takes."""
    patch = plans[0].patch
    if family.patch_order == "strip":
        return values.view(-1, 3, patch, patch).permute(1, 2, 0, 3).reshape(1, 3, patch, -1)
    return values.view(len(values), -1, patch, patch) if family.resize == "short-side" else values


def _feature(feature: type, data: dict[str, Any], tensors: Any, kept: Sequence[str]) -> Any:
    return feature(data, tensor_type=tensors, **({"skip_tensor_conversion": list(kept)} if kept else {}))
