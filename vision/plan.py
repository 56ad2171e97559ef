"""What will happen to one picture or clip: the only place that holds its sizes."""

from __future__ import annotations

from dataclasses import dataclass

from mrope.families import Boxes

from . import boxes as box
from .boxes import BoxArray

Size = tuple[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What becomes of one picture or clip: its sizes, its patches and tokens, and the way of its boxes.

    Args:
        source: path of the file, None if there is none.
        original: (height, width) in pixels, after the EXIF orientation.
        resized: (height, width) in pixels that are cut into patches.
        grid: (t, h, w) in patches.
        patch: side of a patch in pixels.
        merge: patches per LLM token and side.
        boxes: how the model writes box corners: pixels of the resized picture, thousandths of its sides, not at all
            ("none"), or in a way that was not found ("unknown").
        orientation: EXIF orientation that was applied, 1..8 (1: none).
        frames: frames of a clip before padding, None for a picture.
        seconds: seconds per temporal step of a clip, None if its frame rate is unknown.

    Boxes are arrays or tensors (..., 4) of [left, top, right, bottom]; results are float64, not rounded nor cut off.
    """

    source: str | None
    original: Size
    resized: Size
    grid: tuple[int, int, int]
    patch: int
    merge: int
    boxes: Boxes
    orientation: int = 1
    frames: int | None = None
    seconds: float | None = None

    def __post_init__(self) -> None:
        _, h, w = self.grid
        if self.resized != (h * self.patch, w * self.patch) or h % self.merge or w % self.merge:
            raise ValueError(
                f"grid {self.grid} does not cut {self.resized} (height, width) into patches of {self.patch} pixels, "
                f"{self.merge} x {self.merge} a token"
            )

    @property
    def factor(self) -> int:
        """Side of one LLM token in pixels of the resized picture."""
        return self.patch * self.merge

    @property
    def tokens(self) -> int:
        """LLM tokens of the whole picture or clip, without markers and time stamps."""
        t, h, w = self.grid
        return t * h * w // self.merge**2

    @property
    def scale(self) -> tuple[float, float]:
        """(height, width) of the resized over the original picture."""
        return self.resized[0] / self.original[0], self.resized[1] / self.original[1]

    @property
    def stored(self) -> Size:
        """(height, width) of the picture as the file stores it, before the EXIF orientation is applied."""
        height, width = self.original
        return (width, height) if self.orientation >= 5 else (height, width)

    def to_resized(self, boxes: BoxArray) -> BoxArray:
        """Boxes of the original picture in pixels of the resized one.

        >>> import mrope, numpy
        >>> mrope.family("qwen2-vl").plan((480, 640)).to_resized(numpy.array([320, 240, 640, 480]))
        array([322., 238., 644., 476.])
        """
        return box.scaled(boxes, self.original, self.resized)

    def to_original(self, boxes: BoxArray) -> BoxArray:
        """Boxes of the resized picture in pixels of the original one."""
        return box.scaled(boxes, self.resized, self.original)

    def from_stored(self, boxes: BoxArray) -> BoxArray:
        """Boxes drawn on the stored pixels (by a tool that ignores EXIF), in pixels of the upright picture."""
        return box.turned(boxes, self.stored, self.orientation)

    def to_stored(self, boxes: BoxArray) -> BoxArray:
        """Boxes of the upright picture in the stored pixels, the inverse of `from_stored`."""
        return box.turned_back(boxes, self.stored, self.orientation)

    def encode_boxes(self, boxes: BoxArray) -> BoxArray:
        """Boxes of the original picture in the coordinates that the model reads and writes.

        Raises:
            ValueError: the model has none, or none that are known.
        """
        return box.scaled(boxes, self.original, self._model_size())

    def decode_boxes(self, boxes: BoxArray) -> BoxArray:
        """Boxes that the model wrote, in pixels of the original picture.

        Raises:
            ValueError: the model writes none, or none that are known.

        >>> import mrope, numpy
        >>> mrope.family("qwen3-vl").plan((800, 800)).decode_boxes(numpy.array([100, 200, 300, 400]))
        array([ 80., 160., 240., 320.])
        """
        return box.scaled(boxes, self._model_size(), self.original)

    def _model_size(self) -> Size:
        if self.boxes == "none":
            raise ValueError("boxes is 'none': this family's model reads and writes none")
        if self.boxes == "unknown":
            raise ValueError("boxes is 'unknown': how this family's model writes them was not found")
        return self.resized if self.boxes == "processed-pixels" else (1000, 1000)
