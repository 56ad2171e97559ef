"""How families pick the frames of a clip, and how they write the time of a frame into the prompt.

Time is in seconds, `fps` in frames a second; frames are numbered from 0 in the order in which they are shown.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from mrope.checks import Number, one_of, positive, whole

SamplingRule = Literal["spaced", "stride", "even", "seconds-ceil", "seconds-floor", "ticks", "whole-ticks"]
StampPlace = Literal["before", "after"]
StampTime = Literal["mean", "first"]

_BY_COUNT = ("spaced", "stride", "even")


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """Which frames of a clip a family looks at.

    Args:
        rule: where the frames stand.
            "spaced": frame floor(k * total / n) for k in 0..n - 1, n a whole number (Qwen2-VL in transformers).
            "stride": the same, but where `fps` asks for a broken number n, it is not cut off (Ernie 4.5 VL).
            "even": from the first frame to the last, round(linspace(0, total - 1, n)) (Qwen3-VL, qwen-vl-utils).
            "seconds-ceil": the first frame at or after each multiple of 1 / fps; in a clip above `max_seconds`, as many
            moments as fit there, from its start to its end (GLM-4V).
            "seconds-floor": the frame that is shown at each multiple of 1 / fps; in a clip with more than `max_frames`
            of them, so many of its tenths of a second (MiniCPM-V).
            "ticks": one frame at or after each tick of 1 / fps, until one tick before the end, spread anew where these
            are not clip seconds * fps or are above `max_frames` (GLM-GA).
            "whole-ticks": the same, until the last whole second (GLM-4.6V).
        fps: frames a second of the clip, None for all frames that the limits allow.
        slower: (seconds, fps): in clips longer than that, so many frames a second instead; longer ones later.
        min_frames: least number of frames, where the clip has them ("spaced", "stride" and "even").
        max_frames: most frames, None for no limit.
        max_seconds: of "seconds-ceil", the longest clip with `fps` frames a second; None for no limit.
        multiple: the number of frames is a multiple of it: rounded down in the rules that `min_frames` is for, filled
            up with the last frame in the others.

    Raises:
        ValueError: values contradict each other.

    The rules are those of the video processors of transformers 5.24 and of qwen-vl-utils (both are public code). They
    give at least `multiple` frames for every clip, while some of the originals fail on very short ones. "spaced" and
    "stride" count in whole numbers; the originals multiply floats, and now and then get one frame more, or pick the
    frame beside: of 768 picks of 25,471 frames, "spaced" gives frame 21258 for pick 641, and the original 21259.
    A rule knows one rate: of a clip whose rate varies it is the mean, and `mrope.vision.read_clip` takes the frames
    that are shown at the moments k / rate of the picks k, while transformers takes the frames of those numbers.

    >>> Sampling(rule="even", fps=2, min_frames=4, max_frames=768).indices(90, 30)
    [0, 18, 36, 53, 71, 89]
    """

    rule: SamplingRule
    fps: Number | None = None
    slower: tuple[tuple[Number, Number], ...] = ()
    min_frames: int = 1
    max_frames: int | None = None
    max_seconds: Number | None = None
    multiple: int = 1

    def __post_init__(self) -> None:
        one_of("rule", self.rule, get_args(SamplingRule))
        for name, value in (("fps", self.fps), ("max_seconds", self.max_seconds)):
            if value is not None:
                positive(name, value)
        for seconds, fps in self.slower:
            positive("seconds of slower", seconds)
            positive("fps of slower", fps)
        whole("multiple", self.multiple, 1)
        whole("min_frames", self.min_frames, 1)
        if self.max_frames is not None:
            whole("max_frames", self.max_frames, max(self.multiple, self.min_frames))
        if self.fps is None and self.rule not in _BY_COUNT:
            raise ValueError(f"fps is None; the rule {self.rule!r} needs a number of frames a second")
        if self.max_seconds is not None and self.rule != "seconds-ceil":
            raise ValueError(f"max_seconds is {self.max_seconds}; only the rule 'seconds-ceil' has one")
        if self.min_frames > 1 and self.rule not in _BY_COUNT:
            raise ValueError(f"min_frames is {self.min_frames}; the rule {self.rule!r} has none")

    def indices(
        self,
        total: int,
        source_fps: Number,
        *,
        fps: Number | None = None,
        frames: int | None = None,
        max_frames: int | None = None,
    ) -> list[int]:
        """The frames to look at, in order; one comes twice where the clip has too few for a multiple of `multiple`.

        Args:
            total: frames of the clip.
            source_fps: frames a second of the clip.
            fps: frames a second to look at, instead of the family's.
            frames: how many frames to look at, at most `total`; rounded to a multiple of `multiple`, and neither limit
                counts then.
            max_frames: most frames, instead of the family's.

        Raises:
            ValueError: a number is out of range, `frames` is above `total`, or it comes with `fps` or `max_frames`.

        >>> Sampling(rule="spaced", fps=2, min_frames=4, max_frames=768, multiple=2).indices(100, 25, frames=5)
        [0, 25, 50, 75]
        """
        total, source_fps = whole("total", total, 1), positive("source_fps", source_fps)
        if frames is not None:
            if fps is not None or max_frames is not None:
                raise ValueError(
                    f"frames is {frames} together with {'fps' if fps is not None else 'max_frames'}; give frames "
                    "alone, or fps with max_frames as the most that it may come to"
                )
            if whole("frames", frames, 1) > total:
                raise ValueError(
                    f"frames is {frames}, and there are {total}; expected at most {total}, or max_frames={frames} "
                    "instead, which takes fewer from a short clip"
                )
            count = round(frames / self.multiple) * self.multiple
            return self._spread(total, source_fps, max(count, self.multiple))
        rate = self._rate(total / source_fps) if fps is None else positive("fps", fps)
        most = self.max_frames if max_frames is None else whole("max_frames", max_frames, self.multiple)
        most = None if most is None else most // self.multiple * self.multiple
        if rate is None or self.rule in _BY_COUNT:
            return self._counted(total, source_fps, rate, most)
        picks = list(dict.fromkeys(self._timed(total, source_fps, rate, most)))
        return picks + [picks[-1]] * (-len(picks) % self.multiple)

    def _rate(self, seconds: float) -> Number | None:
        return next((fps for above, fps in reversed(self.slower) if seconds > above), self.fps)

    def _counted(self, total: int, source_fps: float, rate: Number | None, most: int | None) -> list[int]:
        """The rules that first count the frames, then lay them out."""
        wanted = total if rate is None else total / source_fps * rate
        available = total // self.multiple * self.multiple
        wanted = min(max(wanted, self.min_frames), available if most is None else min(most, available))
        if self.rule == "stride" and wanted >= self.multiple:
            # A broken number of steps; the digits that are cut off are those of the two divisions.
            steps = range(math.ceil(round(wanted, 6)))
            return [min(int(round(step * total / wanted, 6)), total - 1) for step in steps]
        return self._spread(total, source_fps, max(int(wanted // self.multiple) * self.multiple, self.multiple))

    def _timed(self, total: int, source_fps: float, rate: Number, most: int | None) -> list[int]:
        """The rules that go by seconds; frames may repeat."""
        seconds, last = total / source_fps, total - 1
        if self.rule in ("ticks", "whole-ticks"):
            return self._ticks(total, source_fps, rate, most)
        if self.rule == "seconds-floor":
            count = math.ceil(seconds * rate)
            if most is None or count <= most:
                return [min(int(step * source_fps / rate), last) for step in range(count)]
            return self._spread(total, source_fps, most)
        longest = seconds if self.max_seconds is None else self.max_seconds
        count = max(math.floor(min(seconds, longest) * rate), 1)
        if most is not None and count > most:
            return self._spread(total, source_fps, most)
        if seconds <= longest:
            return [min(math.ceil(step * source_fps / rate), last) for step in range(count)]
        return list(range(total)) if count >= total else self._spread(total, source_fps, count)

    def _ticks(self, total: int, source_fps: float, rate: Number, most: int | None) -> list[int]:
        seconds, tick = total / source_fps, 1 / rate
        wanted = max(int(seconds * rate), 1)
        wanted = wanted if most is None else min(wanted, most)
        if total < wanted:
            return list(range(total))
        end = int(seconds) if self.rule == "whole-ticks" else seconds - tick
        # The ticks are sums and no products: the original adds one up after the other, with the same roundings.
        ticks = np.concatenate([[0.0], np.cumsum(np.full(math.ceil(seconds * rate) + 1, tick))])
        ticks = ticks[: max(int(np.searchsorted(ticks, end)), 1)]
        order = np.arange(len(ticks))
        # The first frame at or after each tick, and a frame for one tick only.
        picks = np.searchsorted(np.arange(total) * (1 / source_fps), ticks)
        picks = np.maximum.accumulate(picks - order) + order
        picks = picks[picks < total].tolist()
        if len(picks) > wanted:
            return self._spread(total, source_fps, wanted)
        return picks if len(picks) == wanted else np.linspace(picks[0], picks[-1], wanted, dtype=int).tolist()

    def _spread(self, total: int, source_fps: float, count: int) -> list[int]:
        """`count` frames over the whole clip."""
        seconds, last = total / source_fps, total - 1
        if self.rule in ("spaced", "stride"):
            return [step * total // count for step in range(count)]
        if self.rule == "seconds-ceil":
            return [min(math.ceil(second * source_fps), last) for second in np.linspace(0, seconds, count).tolist()]
        if self.rule == "seconds-floor":
            tenths = [min(int(round(step * 0.1, 1) * source_fps), last) for step in range(max(int(seconds / 0.1), 1))]
            return [tenths[step] for step in np.linspace(0, len(tenths) - 1, count, dtype=int)]
        if self.rule == "even":
            return np.linspace(0, last, count).round().astype(int).tolist()
        return np.linspace(0, last, count, dtype=int).tolist()  # cut off


QWEN_VL_UTILS = Sampling(rule="even", fps=2, min_frames=4, max_frames=768, multiple=2)
"""What qwen-vl-utils of the Qwen team does before the processors of Qwen2-VL, Qwen2.5-VL and Qwen3-VL see a clip."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stamp:
    """How a family writes the time of each temporal step as text.

    Args:
        template: the text; `{seconds}` is the time (a format such as `{seconds:.1f}` rounds halves to even, as Python
            does), `{whole}` its whole seconds.
        place: before or after the tokens of the step.
        time: of a step: the "first" frame's, or the "mean" of the first and the last one's.
        pieces: tokens of the text beside its digits, where each digit is known to be a token of its own; None where
            the tokenizer may join digits.

    >>> Stamp(template="<{seconds:.1f} seconds>", place="before", time="mean").text(10.25)
    '<10.2 seconds>'
    """

    template: str
    place: StampPlace
    time: StampTime
    pieces: int | None = None

    def __post_init__(self) -> None:
        one_of("place", self.place, get_args(StampPlace))
        one_of("time", self.time, get_args(StampTime))
        if self.pieces is not None:
            whole("pieces", self.pieces, 0)

    def text(self, seconds: Number) -> str:
        """What stands in the prompt for a step at `seconds`."""
        return self.template.format(seconds=seconds, whole=int(seconds))

    def tokens(self, texts: Sequence[str], tokenizer: Callable[[str], Sequence[int]] | None = None) -> list[int]:
        """How many text tokens each stamp is.

        Args:
            texts: stamps, as `text` and `Clip.stamps` write them.
            tokenizer: text -> its token ids, without special tokens; by default digits and `pieces` are counted.

        Raises:
            ValueError: no tokenizer was given, and it is not known how the family's joins digits.

        >>> Stamp(template="<{seconds:.1f} seconds>", place="before", time="mean", pieces=4).tokens(["<10.2 seconds>"])
        [7]
        """
        if tokenizer is not None:
            try:
                return [len(tokenizer(text)) for text in texts]
            except TypeError as error:
                raise TypeError(f"tokenizer gives no token ids of a text ({error}); expected a list of them") from error
        if self.pieces is None:
            raise ValueError(
                "tokenizer is None, and it is not known how this family's tokenizer splits time stamps; give it, such "
                "as tokenizer=lambda text: hf_tokenizer(text, add_special_tokens=False).input_ids"
            )
        return [self.pieces + sum(letter.isdecimal() for letter in text) for text in texts]
