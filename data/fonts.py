"""The text faces that ship with the project: small, free to change and to pass on, split by family.

No family stands in both splits, so a reader that was trained on "train" has met no letter of "held-out" in any weight.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

_FOLDER = Path(__file__).parent / "fonts"

Split = Literal["train", "held-out", "all"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Font:
    """One TrueType face with printable ASCII, and what must be known to pass it on.

    `weight` is the CSS number (400 regular, 700 bold), `style` a few words such as "sans condensed bold", `licence` the
    name of the text in `fonts/LICENSES`, `source` the package that the face was cut from.
    """

    name: str
    family: str
    file: str
    style: str
    weight: int
    slant: Literal["normal", "italic"]
    split: Literal["train", "held-out"]
    licence: str
    copyright: str
    source: str

    @property
    def path(self) -> Path:
        """The font file."""
        return _FOLDER / self.file

    @property
    def licence_path(self) -> Path:
        """The text of the licence."""
        return _FOLDER / "LICENSES" / f"{self.licence}.txt"


@cache
def _manifest() -> tuple[Font, ...]:
    return tuple(Font(**entry) for entry in json.loads((_FOLDER / "fonts.json").read_text(encoding="utf-8")))


def fonts(split: Split = "all") -> tuple[Font, ...]:
    """Return the faces of a split, in the fixed order of the manifest.

    Raises:
        ValueError: the split is none of "train", "held-out", "all".

    Example:
        >>> {font.family for font in fonts("train")} & {font.family for font in fonts("held-out")}
        set()
    """
    if split not in ("train", "held-out", "all"):
        raise ValueError(f"split is {split!r}; it can be 'train', 'held-out' or 'all'")
    return tuple(font for font in _manifest() if split in (font.split, "all"))


def font(name: str) -> Font:
    """Return the face of that name, such as "Inter-Bold".

    Raises:
        ValueError: there is no such face.

    Example:
        >>> font("Inter-Bold").weight
        700
    """
    for entry in _manifest():
        if entry.name == name:
            return entry
    raise ValueError(f"no font {name!r}; there are {', '.join(entry.name for entry in _manifest())}")
