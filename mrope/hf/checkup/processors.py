"""Checks of the processor that the installed library has for a model: what it makes of small pictures and clips."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from mrope.hf.checkup.compare import attempt, finding
from mrope.hf.checkup.report import Finding
from mrope.hf.checkup.subject import Subject, model_forward

_PICTURE, _CLIP = (3, 96, 160), (4, 3, 96, 160)


def _pixels(shape: tuple[int, ...]) -> Tensor:
    return torch.zeros(shape, dtype=torch.uint8)


def _metadata(frames: int, step: int = 12) -> Any:
    """Of every `step`-th frame of a clip with 24 a second."""
    from transformers.video_utils import VideoMetadata

    total = step * frames
    indices = [step * number for number in range(frames)]
    return VideoMetadata(total_num_frames=total, fps=24.0, frames_indices=indices, duration=total / 24)


def has_clips(made: Any) -> bool:
    """Whether a processor takes clips."""
    return getattr(made, "video_processor", None) is not None and hasattr(made, "video_token")


def pictures(subject: Subject) -> Iterator[Finding]:
    """What the model asks for comes from its processor."""
    if "mm_token_type_ids" not in model_forward(subject.config):
        return
    made = subject.processor
    around = ("<image>", "</image>") if subject.family.name == "hunyuan-vl" else ("", "")
    calls = {
        "a picture": lambda: made(text=[made.image_token.join(around)], images=[_pixels(_PICTURE)], return_tensors="pt")
    }
    if has_clips(made):
        calls["a clip"] = lambda: made(
            text=[made.video_token],
            videos=[_pixels(_CLIP)],
            video_metadata=[_metadata(_CLIP[0])],
            do_sample_frames=False,
            return_tensors="pt",
        )
    for what, call in calls.items():
        inputs, error = attempt(call)
        if error is not None:
            yield finding(
                "processor",
                "risky",
                rule=f"{type(made).__name__} takes {what}",
                seen=f"it raises {error}",
                right="no error",
                fix="pass return_metadata=True" if "metadata" in error else "mrope.hf.processor(...)",
            )
        elif "mm_token_type_ids" not in inputs:
            yield finding(
                "processor",
                "wrong",
                rule="the processor returns all that its model takes",
                seen=f"{type(made).__name__} returns no mm_token_type_ids with {what}",
                right="mm_token_type_ids",
                fix="pass return_mm_token_type_ids=True, or mrope.hf.token_kinds(input_ids, ...)",
            )


def wrappers(subject: Subject) -> Iterator[Finding]:
    """The words around a clip in a chat template make way for those around its frames."""
    made = subject.processor
    start, end = getattr(made, "vision_start_token", None), getattr(made, "vision_end_token", None)
    if not has_clips(made) or start is None or getattr(subject.family.layout, "time", None) != "stamps":
        return
    inputs = made(
        text=[f"a {start}{made.video_token}{end} a"],
        videos=[_pixels(_CLIP)],
        video_metadata=[_metadata(_CLIP[0])],
        do_sample_frames=False,
        return_metadata=True,
    )
    ids = torch.as_tensor(inputs["input_ids"]).flatten()
    frames = int(torch.as_tensor(inputs["video_grid_thw"])[0, 0])
    starts = int((ids == made.tokenizer.convert_tokens_to_ids(start)).sum())
    if starts != frames:
        yield finding(
            "clip-prompt",
            "wrong",
            rule="each frame of a clip has one pair of vision words around it, and no more",
            seen=f"{starts} {start} for {frames} frames: the pair of the chat template stays",
            right=f"{frames}",
            fix="leave the pair out of the template, or mrope.hf.processor(...): later positions are 1 and 2 too high",
        )


def clip_budget(subject: Subject) -> Iterator[Finding]:
    """A clip keeps within its budget of pixels."""
    made = subject.processor
    if not has_clips(made) or subject.family.video_budget != "clip" or subject.family.resize == "newline":
        return
    videos = made.video_processor
    worst = (1.0, 0, 0, 0)
    for frames in (3, 5, 7, 9):
        limit = frames * 256 * 320
        size = {"shortest_edge": 4096, "longest_edge": limit}
        inputs = videos(videos=[_pixels((frames, 3, 360, 500))], size=size, do_sample_frames=False, return_tensors="pt")
        used = int(inputs["video_grid_thw"][0].prod()) * videos.patch_size**2 * videos.temporal_patch_size
        worst = max(worst, (used / limit, frames, used, limit))
    share, frames, used, limit = worst
    if share > 1:
        yield finding(
            "clip-budget",
            "wrong",
            rule="longest_edge is the most pixels of a clip, with the frame that fills it up",
            seen=f"{type(videos).__name__} makes {used} pixels of {frames} frames with a longest_edge of {limit}",
            right=f"at most {limit}",
            fix="plan_video(...) of mrope.vision, or an even number of frames",
        )


def counts(subject: Subject) -> Iterator[Finding]:
    """Patches are counted as they are cut."""
    yield from _counted(subject.processor.image_processor)


def clip_calls(subject: Subject) -> Iterator[Finding]:
    """Calls that a processor of clips should take."""
    made = subject.processor
    if not has_clips(made):
        return
    videos = made.video_processor
    name = type(videos).__name__
    calls: dict[str, tuple[Callable[[], Any], str]] = {
        "a clip of one frame": (
            lambda: videos(videos=[_pixels((1, *_CLIP[1:]))], do_sample_frames=False),
            "repeat the frame",
        ),
        "do_sample_frames=True alone": (
            lambda: videos(
                videos=[_pixels((48, *_CLIP[1:]))], video_metadata=[_metadata(48, step=1)], do_sample_frames=True
            ),
            "state fps or num_frames as well",
        ),
    }
    if hasattr(videos, "get_num_of_video_patches"):
        calls["get_num_of_video_patches of a size alone"] = (
            lambda: videos.get_num_of_video_patches(4, 96, 160),
            "plan_video((frames, height, width), family) of mrope.vision, which counts tokens",
        )
    for what, (call, fix) in calls.items():
        _, error = attempt(call)
        if error is not None:
            yield finding(
                "clip-calls",
                "risky",
                rule=f"{name} takes {what}",
                seen=f"it raises {error}",
                right="no error",
                fix=fix,
            )
    inputs, _ = attempt(
        lambda: made(
            text=[made.video_token],
            videos=[_pixels((3, *_CLIP[1:]))],
            video_metadata=[_metadata(3)],
            do_sample_frames=False,
            return_metadata=True,
        )
    )
    told = (inputs or {}).get("video_metadata")
    if told is not None and len(told[0].frames_indices) != 3:
        yield finding(
            "clip-calls",
            "risky",
            rule=f"{type(made).__name__} leaves frames_indices as they are",
            seen=f"of 3 frames the metadata that comes back names {len(told[0].frames_indices)}",
            right="3",
            fix="use the metadata that went in",
        )


def _counted(images: Any) -> Iterator[Finding]:
    """The patches that are counted, and those that the twin for PIL cuts, are those that are cut."""
    import transformers

    if not hasattr(images, "get_number_of_image_patches"):
        return
    name = type(images).__name__
    twin = getattr(transformers, f"{name}Pil", None)
    options = {"patch_expand_factor": 2} if hasattr(images, "patch_expand_factor") else {}
    if options:
        images = type(images)(**options)
    picture = _pixels((3, 300, 410))
    cut, failed = attempt(lambda: images(images=[picture], return_tensors="pt")["image_grid_thw"][0].tolist())
    counted, _ = attempt(lambda: images.get_number_of_image_patches(300, 410, {}))
    if failed is None and isinstance(counted, int) and counted != math.prod(cut):
        yield finding(
            "counts",
            "wrong",
            rule="get_number_of_image_patches counts the patches that are cut",
            seen=f"{name} counts {counted} for 300 x 410",
            right=f"{math.prod(cut)}, grid {cut}",
            fix="plan(...) of mrope.vision",
        )
    if not options or failed is not None or twin is None:
        return
    other, error = attempt(lambda: twin(**options)(images=[picture], return_tensors="pt")["image_grid_thw"][0].tolist())
    if error is None and other != cut:
        yield finding(
            "counts",
            "wrong",
            rule=f"{name} and {twin.__name__} cut alike",
            seen=f"with patch_expand_factor 2 grid {other} of 300 x 410",
            right=f"{cut}",
            fix="use the one of torchvision",
        )
