"""Checks of models that hear (the thinkers of Qwen-Omni), whose index scans prompts for words."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch

from mrope.hf.checkup.compare import PLUG, attempt, first_difference, ids_at
from mrope.hf.checkup.prompts import WIDE, batch, clip, fitted, text_ids, text_words
from mrope.hf.checkup.report import Finding
from mrope.hf.checkup.subject import Subject
from mrope.layouts import OmniLayout
from mrope.spans import Text, Video

_SOUND = 6  # tokens


def odd_prompts(subject: Subject) -> Iterator[Finding]:
    """Odd prompts are laid out, too."""
    if not isinstance(subject.layout, OmniLayout):
        return
    start = subject.small.vision_start_token_id

    def plain() -> dict[str, Any]:
        return batch(subject, [[Text(4), WIDE, Text(4)]])

    def without_mask() -> dict[str, Any]:
        return {name: value for name, value in plain().items() if name != "attention_mask"}

    def text_alone() -> dict[str, Any]:
        return {"input_ids": text_ids(subject, 5)}

    def ending_on_start() -> dict[str, Any]:
        inputs = plain()
        inputs["input_ids"][0, -1] = start
        return inputs

    def stray_start() -> dict[str, Any]:
        inputs = plain()
        inputs["input_ids"][0, 1] = start
        return inputs

    def without_seconds() -> dict[str, Any]:
        inputs = batch(subject, [[Text(4), clip(subject, (2, 4, 8)), Text(4)]])
        return {name: value for name, value in inputs.items() if name != "second_per_grids"}

    cases: dict[str, Callable[[], dict[str, Any]]] = {
        "a picture without attention_mask": without_mask,
        "text without attention_mask": text_alone,
        "a row that ends on <vision_start>": ending_on_start,
        "a <vision_start> in the text": stray_start,
        "a clip without second_per_grids": without_seconds,
    }
    for what, make in cases.items():
        inputs = make()
        right, unknown = attempt(lambda inputs=inputs: subject.trained(inputs))
        ids, error = attempt(lambda inputs=inputs: subject.index(inputs))
        place = None if error or unknown else first_difference(ids, right)
        if error is not None and ("Error: " not in error or "second_per_grid" not in error):
            yield Finding(
                check="odd-prompts",
                level="risky",
                rule=f"{what} is laid out, or refused in words",
                seen=f"get_rope_index raises {error}",
                right="an error that names second_per_grids" if unknown else ids_at(right, 0, -1),
                fix=f"{PLUG}, or pass what is missing",
            )
        elif place is not None:
            yield Finding(
                check="odd-prompts",
                level="wrong",
                rule=f"{what} is laid out as in training",
                seen=f"token {place[1]} is at {ids_at(ids, *place)}",
                right=ids_at(right, *place),
                fix=f"{PLUG}, or pass position_ids",
            )


def silent_clips(subject: Subject) -> Iterator[Finding]:
    """A clip with sound and a silent one go together."""
    if not isinstance(subject.layout, OmniLayout):
        return
    loud = Video((2, 4, 8), seconds=1.0, audio=_SOUND)
    silent = Video((2, 8, 4), seconds=1.0)
    for what, clips in (("behind one with sound", (loud, silent)), ("before one with sound", (silent, loud))):
        inputs = _with_sound(subject, clips)
        right = subject.trained(inputs)
        ids, error = attempt(lambda inputs=inputs: subject.index({**inputs, "use_audio_in_video": True}))
        place = None if error else first_difference(ids, right)
        if error or place is not None:
            yield Finding(
                check="silent-clips",
                level="risky" if error else "wrong",
                rule=f"with use_audio_in_video a silent clip {what} is laid out as a clip",
                seen=f"get_rope_index raises {error}"
                if place is None
                else f"token {place[1]} is at {ids_at(ids, *place)}",
                right=ids_at(right, *(place or (0, -1))),
                fix=f"{PLUG}, or keep silent clips in prompts of their own",
            )


def clip_seconds(subject: Subject) -> Iterator[Finding]:
    """The processor says how long a step of a clip lasts by the clip's own rate."""
    if not isinstance(subject.family.layout, OmniLayout):
        return
    made, rate = subject.processor, 4
    # Every sixth frame of a clip with 24 a second.
    metadata = {"total_num_frames": 48, "fps": 24.0, "frames_indices": list(range(0, 48, 6)), "duration": 2.0}
    inputs = made(
        text=[made.video_token],
        videos=[torch.zeros((8, 3, 56, 84), dtype=torch.uint8)],
        video_metadata=[metadata],
        do_sample_frames=False,
    )
    right = made.video_processor.temporal_patch_size / rate
    seen = float(torch.as_tensor(inputs["video_second_per_grid"])[0])
    if seen != right:
        yield Finding(
            check="clip-seconds",
            level="wrong",
            rule=f"{type(made).__name__} takes the seconds of a step of a clip from the clip's own frames",
            seen=f"video_second_per_grid is {seen:g} for {rate} frames a second",
            right=f"{right:g}",
            fix=f"pass fps={rate}, the rate of the frames that the model is to see",
        )


def sound_lengths(subject: Subject) -> Iterator[Finding]:
    """The lengths of sounds that a caller states are used."""
    if not isinstance(subject.layout, OmniLayout) or not subject.takes("audio_feature_lengths"):
        return
    config = subject.small
    inputs = batch(subject, [[Text(4), WIDE, Text(3)]], pixels=True)
    heard = torch.tensor(
        [[config.audio_start_token_id, *[config.audio_token_id] * _SOUND, config.audio_end_token_id]],
        device=subject.device,
    )
    inputs["input_ids"] = torch.cat([inputs["input_ids"], heard], dim=1)
    inputs["attention_mask"] = torch.ones_like(inputs["input_ids"])
    lengths = torch.tensor([_frames(subject)], device=subject.device)
    right = subject.trained({**inputs, "audio_seqlens": lengths})
    ids, error = attempt(lambda: subject.run({**inputs, "audio_feature_lengths": lengths})[0])
    if error is not None or first_difference(ids, right) is not None:
        yield Finding(
            check="sound-lengths",
            level="risky" if error else "wrong",
            rule="forward takes audio_feature_lengths without a feature_attention_mask",
            seen=f"it raises {error}" if error else f"the last token is at {ids_at(ids, 0, -1)}",
            right=ids_at(right, 0, -1),
            fix=f"pass feature_attention_mask, {PLUG}, or pass position_ids",
        )


def _frames(subject: Subject) -> int:
    """The mel frames of a sound of `_SOUND` tokens."""
    assert isinstance(subject.layout, OmniLayout)
    return (4 if subject.layout.weave == "chunks" else 8) * _SOUND


def _with_sound(subject: Subject, clips: tuple[Video, ...]) -> dict[str, Any]:
    """A prompt of these clips, with text around each."""
    config, layout, clips = subject.small, subject.layout, tuple(fitted(subject, each) for each in clips)
    assert isinstance(layout, OmniLayout)
    row = text_words(subject, 3)
    for each in clips:
        shown = [config.video_token_id] * layout.tokens(Video(each.grid, seconds=each.seconds))
        if each.audio is not None:
            heard = layout.sound_of(each).tolist()
            shown = [config.audio_token_id if sound else config.video_token_id for sound in heard]
            shown = [config.audio_start_token_id, *shown, config.audio_end_token_id]
        row += [config.vision_start_token_id, *shown, config.vision_end_token_id, *text_words(subject, 3)]
    inputs = {
        "input_ids": torch.tensor([row]),
        "attention_mask": torch.ones(1, len(row), dtype=torch.int64),
        "video_grid_thw": torch.tensor([each.grid for each in clips]),
        "second_per_grids": torch.tensor([float(each.seconds or 1) for each in clips]),
        "audio_seqlens": torch.tensor([_frames(subject)]),
    }
    return {name: value.to(subject.device) for name, value in inputs.items()}
