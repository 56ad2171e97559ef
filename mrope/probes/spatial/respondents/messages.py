"""A sample as a message of a chat, and what else all models need to be asked."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from mrope.data import Clip, Sample
from mrope.probes.spatial.reply import Reply

Show = Callable[[Any], list[dict[str, Any]]]
"""The parts of a message that show one picture or `Clip`."""


def message(sample: Sample, show: Show) -> dict[str, Any]:
    """The sample as one message of a user, pictures where its prompt has them."""
    content: list[dict[str, Any]] = []
    for part in sample.prompt:
        content += [{"type": "text", "text": part}] if isinstance(part, str) else show(sample.pictures[part])
    return {"role": "user", "content": content}


def media(sample: Sample) -> Iterator[tuple[int, Any]]:
    """The pictures and clips that the prompt shows, in its order, each with its index in `sample.pictures`."""
    for part in sample.prompt:
        if not isinstance(part, str):
            yield part, sample.pictures[part]


def has_clips(sample: Sample) -> bool:
    """Whether the prompt shows a clip."""
    return any(isinstance(one, Clip) for _, one in media(sample))


def failed(error: BaseException, seconds: float = 0.0) -> Reply:
    """The reply where an exception is all that came, on one line."""
    said = " ".join(str(error).split())
    return Reply(failure=f"{type(error).__name__}: {said}" if said else type(error).__name__, seconds=seconds)


def true_or_false(name: str, value: Any, *, more: str = "") -> bool:
    """`value`, or one line that says that it is neither true nor false, and what else would do."""
    if not isinstance(value, bool):
        raise TypeError(f"{name} is {value!r}; expected true or false{more}")
    return value


def as_pictures(one: Any) -> list[dict[str, Any]]:
    """A picture, or the frames of a clip as pictures, the time of each before it."""
    if not isinstance(one, Clip):
        return [{"type": "image", "image": one}]
    shown: list[dict[str, Any]] = []
    for frame, second in zip(one.frames, one.seconds, strict=True):
        shown += [{"type": "text", "text": f"{second:g} seconds:"}, {"type": "image", "image": frame}]
    return shown
