"""What any task is, and what all of them share."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar, Protocol, TypeAlias, runtime_checkable

import numpy as np

from .checks import whole
from .sample import Sample

Shape: TypeAlias = tuple[int, int]
"""(rows, columns), or (height, width) in pixels."""


@runtime_checkable
class Task(Protocol):
    """A frozen dataclass of settings, which draws samples.

    Attributes:
        name: in `TASKS`.
        summary: one line, what it asks.
        large: settings for a machine with a GPU, where they are others than the defaults.
    """

    name: ClassVar[str]
    summary: ClassVar[str]
    large: ClassVar[Mapping[str, Any]]
    __dataclass_fields__: ClassVar[dict[str, Any]]

    def __len__(self) -> int:
        """How many samples there are."""
        ...

    def samples(self, seed: int = 0) -> Iterator[Sample]:
        """Draw them one by one; the same seed and settings draw the same ones, to the pixel.

        Sizes take turns, so that the first few have some of each.
        """
        ...


def generator(name: str, seed: int, *place: int) -> np.random.Generator:
    """Random numbers of their own for each place of each task, so that no sample depends on those before it."""
    return np.random.default_rng([whole("seed", seed, 0), *name.encode(), *place])


def check_shapes(shapes: Sequence[Shape]) -> None:
    """Refuse shapes that are no pairs of 1 and more, that come twice, or that are none at all."""
    check_each("shapes", shapes)
    for shape in shapes:
        check_pair("shape", shape, 1)


def check_pair(name: str, pair: Any, least: int) -> None:
    """Refuse what is no pair of whole numbers of `least` and more."""
    if not isinstance(pair, tuple) or len(pair) != 2:
        raise ValueError(f"{name} is {pair!r}; expected two whole numbers")
    for side in pair:
        whole(f"side of {name} {pair}", side, least)


def check_each(name: str, values: Any) -> None:
    """Refuse an empty row of settings, or one in which a value comes twice."""
    if not isinstance(values, tuple) or not values or len(set(values)) != len(values):
        raise ValueError(f"{name} are {values!r}; expected a list of at least one, each once")


def either(words: Sequence[str]) -> str:
    """The words as a choice: "A, B or C"."""
    return f"{', '.join(words[:-1])} or {words[-1]}" if len(words) > 1 else words[0]
