"""Time-aligned M-RoPE (TMRoPE) of Qwen2.5-Omni and Qwen3-Omni: clips, sound, and the sound of clips on one clock.

Letters: T temporal steps, H and W the merged grid (one token a cell), n tokens.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from mrope.checks import Number, one_of, positive
from mrope.layouts.layout import SpanLayout, Traits, fill_cells, line
from mrope.positions import End
from mrope.spans import Audio, Image, Video

Weave = Literal["chunks", "time"]


@dataclass(frozen=True, slots=True)
class OmniLayout(SpanLayout):
    """Pictures and clips as blocks, clips by the clock: step f of a clip that starts at s has t = s + f seconds ids.

    A sound takes one position a token. The sound of a clip starts with the clip, inside one span: two start tokens,
    both contents woven together, two end tokens. A span ends at the largest position of what was laid last, and the
    next starts one further. Sources: arXiv:2503.20215 and the vendor's code in transformers 5.24 (qwen2_5_omni,
    qwen3_omni_moe).

    Args:
        merge: patches per token and side.
        ids_per_second: positions per second; 25 in Qwen2.5-Omni, 13 in Qwen3-Omni as released.
        weave: how the sound of a clip is woven in. "chunks" (Qwen2.5-Omni): whole ids; pieces of `seconds_per_chunk` of
            the clip and of the sound take turns, and each pair of start or end tokens shares one position. "time"
            (Qwen3-Omni): real ids; tokens in the order of their time, the clip's first, and start and end tokens each
            have their own position.
        seconds_per_chunk: goes with weave="chunks"; 2 by default, as in Qwen2.5-Omni.

    >>> OmniLayout(ids_per_second=2)([Video((2, 2, 4), seconds=1.5, audio=4)]).ids[0].tolist()
    [0, 0, 1, 1, 4, 4, 1, 2, 3, 4, 5, 5]
    """

    ids_per_second: Number = 25
    weave: Weave = "chunks"
    seconds_per_chunk: Number | None = None

    def __post_init__(self) -> None:
        SpanLayout.__post_init__(self)
        one_of("weave", self.weave, ("chunks", "time"))
        object.__setattr__(self, "ids_per_second", positive("ids_per_second", self.ids_per_second))
        if self.weave == "time" and self.seconds_per_chunk is not None:
            raise ValueError(f"seconds_per_chunk is {self.seconds_per_chunk} with weave='time'; it goes with 'chunks'")
        if self.weave == "chunks":
            seconds = 2 if self.seconds_per_chunk is None else self.seconds_per_chunk
            object.__setattr__(self, "seconds_per_chunk", positive("seconds_per_chunk", seconds))
            if self.ids_per_second * seconds < 1:
                raise ValueError(f"a chunk of {seconds:g} seconds holds no id at {self.ids_per_second:g} ids a second")

    @property
    def dtype(self) -> Any:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Whole ids where clips come in chunks, real ones where they follow the clock."""
        return np.int64 if self.weave == "chunks" else np.float32

    @property
    def traits(self) -> Traits:
        """What the layout promises."""
        return Traits()

    def growth(self, t: int, h: int, w: int) -> Number:
        """The positions of a picture, or of a clip of one second a step without sound."""
        return max((t - 1) * self.ids_per_second + 1, h, w)

    def media_tokens(self, span: Any) -> int:
        """See `tokens`."""
        if isinstance(span, Audio):
            return span.length
        if not isinstance(span, (Image, Video)):
            raise self.refuse(span)
        t, rows, cols = self.grid(span)
        if isinstance(span, Image):
            return rows * cols
        if span.seconds is None or span.stamp is not None:
            raise self.refuse(span, "write @SECONDS, and no stamp, after the grid")
        return t * rows * cols + (0 if span.audio is None else span.audio + 4)

    def place(self, block: np.ndarray, span: Any, end: End) -> Number:
        """See `SpanLayout.place`."""
        if isinstance(span, Audio):
            block[:] = line(end.next, span.length, self.dtype)
            return self._after(block)
        if isinstance(span, Image) or span.audio is None:
            self._fill(block, span, end.next)
            return self._after(block)
        return self._place_with_sound(block, span, end.next)

    def sound_of(self, video: Video) -> np.ndarray:
        """(n,) bool, which tokens of a clip with sound are sound, the start and end tokens around them left away."""
        _, order, _ = self._woven(video, 0)
        return order >= len(order) - (video.audio or 0)

    def _place_with_sound(self, block: np.ndarray, video: Video, start: Number) -> Number:
        apart = 1 if self.weave == "time" else 0  # between the two start tokens, and the two end tokens
        woven, order, laid = self._woven(video, start + 1 + apart)
        block[:, 0], block[:, 1] = start, start + apart
        block[:, 2:-2] = woven
        # What was laid last: the last chunk, or by time all that follows the last change between clip and sound.
        if self.weave == "time":
            laid = order >= len(order) - (video.audio or 0)
        other = np.flatnonzero(laid != laid[-1])
        last = self._after(woven[:, other[-1] + 1 if len(other) else 0 :])
        block[:, -2], block[:, -1] = last, last + apart
        return last + apart + 1

    def _woven(self, video: Video, begin: Number) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The ids of clip and sound in the order of the prompt; where each token was before; and by what it came."""
        t, rows, cols = self.grid(video)
        count, audio = t * rows * cols, video.audio or 0
        ids = np.empty((3, count + audio), dtype=self.dtype)
        self._fill(ids[:, :count], video, begin)
        ids[:, count:] = line(begin, audio, self.dtype)
        sound = np.arange(count + audio) >= count
        key = ids[0] if self.weave == "time" else 2 * self._chunks(ids[0] - begin, count) + sound
        order = key.argsort(kind="stable")  # the clip stands in front, so that it comes first in a tie
        return ids[:, order], order, key[order]

    def _chunks(self, times: np.ndarray, count: int) -> np.ndarray:
        """(n,) int64, the chunk of each token, of the clip's `count` and of its sound.

        The vendor's counter moves by one a token at most, also where the time jumps over a whole chunk.
        """
        chunks = times // int(self.ids_per_second * (self.seconds_per_chunk or 2))
        for part in (chunks[:count], chunks[count:]):
            steps = np.arange(len(part))
            part -= steps
            np.minimum.accumulate(part, out=part)
            part += steps
        return chunks

    def _fill(self, block: np.ndarray, span: Image | Video, start: Number) -> None:
        t, rows, cols = self.grid(span)
        times = np.zeros(t, dtype=np.float32)
        if isinstance(span, Video) and span.seconds is not None:
            # float32 in this order, as in the models: near a whole number others truncate otherwise
            times = np.arange(t, dtype=np.float32) * np.float32(span.seconds) * np.float32(self.ids_per_second)
        first = self.dtype(start)
        places = (side.astype(self.dtype) for side in (times, np.arange(rows), np.arange(cols)))
        fill_cells(block, *(first + place for place in places))

    def _after(self, block: np.ndarray) -> Number:
        return (block.max() + self.dtype(1)).item()
