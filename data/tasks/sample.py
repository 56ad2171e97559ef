"""One question about drawn pictures or clips, and its right answer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from PIL import Image

Kind: TypeAlias = Literal["choice", "number", "text", "list", "point", "box"]
Box: TypeAlias = tuple[float, float, float, float]
"""(left, top, right, bottom) in pixels of the picture as drawn."""


@dataclass(frozen=True, slots=True, eq=False)
class Clip:
    """Frames of one size, and when each is seen.

    Args:
        frames: RGB.
        seconds: of each frame, rising.
    """

    frames: tuple[Image.Image, ...]
    seconds: tuple[float, ...]


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Sample:
    """One question and its right answer.

    Args:
        id: unique in its task, and the same for the same settings and seed, such as "cell/4x7/3/right-1-2".
        task: the name of its task.
        pictures: what is shown.
        prompt: words, and between them the index of each picture where it stands.
        kind: how an answer is read: one of `choices`, a whole number, free text, a list of words in order, a point
            inside the box, or a box.
        answer: the right one; of kind "list" its words with spaces between, of "point" and "box" "".
        choices: the closed set; () where there is none.
        box: of kind "point" and "box" the right one, in pixels of picture `where`.
        where: the index of the picture that `box` lies in.
        group: samples of one group belong together: all must be right (sets), or all answers must agree (the same
            picture moved, scaled, at another budget). "" for none.
        tags: what results are split by: rows, cols, row, col (from 0, where words count from 1), relation, words, ...
        ask: the same question as data, for models that take no words: see `mrope.reader`.
        max_tokens: most LLM tokens of one picture, where the sample wants a budget of its own.
    """

    id: str
    task: str
    pictures: tuple[Image.Image | Clip, ...]
    prompt: tuple[str | int, ...]
    kind: Kind
    answer: str = ""
    choices: tuple[str, ...] = ()
    box: Box | None = None
    where: int = 0
    group: str = ""
    tags: Mapping[str, str | int | float] = field(default_factory=dict)
    ask: Mapping[str, Any] | None = None
    max_tokens: int | None = None

    @property
    def chance(self) -> float:
        """Accuracy of a guess: among the choices, of a point the share of the picture that is right, else 0."""
        shown = self.pictures[self.where] if self.kind == "point" else None
        if self.box is not None and isinstance(shown, Image.Image):
            left, top, right, bottom = self.box
            return (right - left) * (bottom - top) / (shown.width * shown.height)
        return 1 / len(self.choices) if self.choices else 0.0

    @property
    def words(self) -> str:
        """The prompt as text, with <picture 0> where a picture stands."""
        return "".join(part if isinstance(part, str) else f"<picture {part}>" for part in self.prompt)
