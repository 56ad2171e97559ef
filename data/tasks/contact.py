"""Contact sheets: samples side by side, each with its question and its answer."""

from __future__ import annotations

from collections.abc import Sequence

from PIL import Image, ImageDraw

from ..canvas import BLUE, GREY, INK, RULE, Canvas, text_width
from .checks import whole
from .sample import Box, Clip, Sample

_WIDE, _HIGH, _MARGIN = 400, 260, 14
_FACE, _BOLD, _SIZE, _LEADING = "Inter-Regular", "Inter-Bold", 13, 18
FRAME = (230, 30, 90)
_MOST = 12
"""Pictures of one sample that are shown, evenly from its first to its last."""


def contact_sheet(samples: Sequence[Sample], *, columns: int = 3) -> Image.Image:
    """Samples side by side: pictures (boxes drawn in), question, answer. Long prompts and haystacks are shortened.

    Args:
        samples: at least one.
        columns: samples in a row.

    Returns:
        RGB.

    Example:
        >>> from mrope.data import task
        >>> contact_sheet(list(task("cell", each=1).samples())).width
        1256
    """
    if not samples:
        raise ValueError("samples is empty; expected at least one")
    texts = [_wrapped(_brief(_words(sample))) for sample in samples]
    high = _HIGH + max(map(len, texts)) * _LEADING + 2 * _LEADING + 3 * _MARGIN
    columns = min(whole("columns", columns, 1), len(samples))
    rows = -(-len(samples) // columns)
    canvas = Canvas(rows * high, columns * (_WIDE + _MARGIN) + _MARGIN, (255, 255, 255))
    for place, (sample, lines) in enumerate(zip(samples, texts, strict=True)):
        top, left = place // columns * high + _MARGIN, place % columns * (_WIDE + _MARGIN) + _MARGIN
        canvas.text(sample.id, (top + _SIZE, left), face=_BOLD, size=_SIZE, ink=BLUE)
        for number, line in enumerate(lines):
            row = top + _HIGH + _MARGIN + (number + 2) * _LEADING
            canvas.text(line, (row, left), face=_FACE, size=_SIZE, ink=INK)
        answer = sample.answer or " ".join(f"{side:.0f}" for side in sample.box or ())
        canvas.text(
            _brief(answer, 52), (top + _HIGH + _MARGIN + (len(lines) + 2) * _LEADING, left), face=_BOLD, size=_SIZE
        )
        canvas.line([(top - _MARGIN / 2, left), (top - _MARGIN / 2, left + _WIDE)], ink=RULE)
    picture = canvas.picture()
    for place, sample in enumerate(samples):
        top, left = place // columns * high + _MARGIN + _LEADING, place % columns * (_WIDE + _MARGIN) + _MARGIN
        picture.paste(_strip(sample), (left, top + 6))
    return picture


def _strip(sample: Sample) -> Image.Image:
    """The pictures of a sample, in rows, as large as fits."""
    shown: list[tuple[Image.Image, str, Box | None]] = []
    for index, picture in enumerate(sample.pictures):
        if isinstance(picture, Clip):
            times = (f"{second:g} s" for second in picture.seconds)
            shown += [(frame, time, None) for frame, time in zip(picture.frames, times, strict=True)]
        else:
            shown.append((picture, "", sample.box if index == sample.where else None))
    if len(shown) > _MOST:
        shown = [shown[round(place * (len(shown) - 1) / (_MOST - 1))] for place in range(_MOST)]
    across = 1 if len(shown) == 1 else 2 if len(shown) <= 4 else 4
    down = -(-len(shown) // across)
    high, wide = _HIGH // down - 4, _WIDE // across - 4
    strip = Image.new("RGB", (_WIDE, _HIGH), (255, 255, 255))
    for place, (picture, time, box) in enumerate(shown):
        factor = min(wide / picture.width, (high - (12 if time else 0)) / picture.height, 3)
        size = max(1, round(picture.width * factor)), max(1, round(picture.height * factor))
        left, top = place % across * (wide + 4), place // across * (high + 4)
        strip.paste(picture.resize(size, Image.Resampling.LANCZOS), (left, top))
        pen = ImageDraw.Draw(strip)
        pen.text((left, top + size[1]), time, fill=GREY)
        if box:
            corners = zip(box, (left, top, left, top), strict=True)
            pen.rectangle([corner + side * factor for side, corner in corners], outline=FRAME, width=2)
    return strip


def _words(sample: Sample) -> str:
    """The prompt, with a run of pictures in brief."""
    runs: list[str | list[int]] = []
    for part in sample.prompt:
        if isinstance(part, int) and runs and isinstance(runs[-1], list):
            runs[-1].append(part)
        else:
            runs.append([part] if isinstance(part, int) else part)
    return "".join(
        run if isinstance(run, str) else f"<picture {run[0]}{f' to {run[-1]}' if len(run) > 1 else ''}>" for run in runs
    )


def _brief(text: str, most: int = 420) -> str:
    text = " ".join(text.split())
    return text if len(text) <= most else f"{text[: most // 2]} ... {text[-most // 2 :]}"


def _wrapped(text: str) -> list[str]:
    lines = [""]
    for word in text.split():
        longer = f"{lines[-1]} {word}".strip()
        if lines[-1] and text_width(longer, face=_FACE, size=_SIZE) > _WIDE:
            lines.append(word)
        else:
            lines[-1] = longer
    return lines
