"""Every encoding behind the three verbs of `mrope.encoding`: embed, rotate, bias.

`mrope.Rotary` is M-RoPE in all its allocations, and RoPE along one axis.
"""

from __future__ import annotations

from collections.abc import Mapping

from mrope.encoding import Encoding, Properties
from mrope.encodings.additive import LearnedTable, NoPe, Sinusoidal
from mrope.encodings.bias import Alibi, ContinuousBias, ShawBias, T5Bias
from mrope.encodings.coordinates import augment, patch_coordinates
from mrope.encodings.directional import GoldenGateRope, MixedRope, SpiralRope, WaveRope
from mrope.encodings.groups import CirculantRope, ComRope, GrapeRope, LieRope, StringRope
from mrope.encodings.planar import (
    AxialRope,
    Dinov3Rope,
    Eva02Rope,
    LinearRope,
    MoonVitRope,
    PixtralRope,
    QwenVisionRope,
)
from mrope.encodings.scaled import Pope, XPos
from mrope.rotary import Rotary

__all__ = [
    "Alibi",
    "AxialRope",
    "CirculantRope",
    "ComRope",
    "ContinuousBias",
    "Dinov3Rope",
    "Encoding",
    "Eva02Rope",
    "GoldenGateRope",
    "GrapeRope",
    "LearnedTable",
    "LieRope",
    "LinearRope",
    "MixedRope",
    "MoonVitRope",
    "NoPe",
    "PixtralRope",
    "Pope",
    "Properties",
    "QwenVisionRope",
    "Rotary",
    "ShawBias",
    "Sinusoidal",
    "SpiralRope",
    "StringRope",
    "T5Bias",
    "WaveRope",
    "XPos",
    "augment",
    "encoding",
    "encoding_names",
    "patch_coordinates",
]

_BY_NAME: Mapping[str, type[Encoding]] = {
    "alibi": Alibi,
    "axial": AxialRope,
    "circulant-string": CirculantRope,
    "comrope": ComRope,
    "continuous-bias": ContinuousBias,
    "dinov3": Dinov3Rope,
    "eva-02": Eva02Rope,
    "golden-gate": GoldenGateRope,
    "grape": GrapeRope,
    "learned": LearnedTable,
    "liere": LieRope,
    "mixed": MixedRope,
    "moonvit": MoonVitRope,
    "nope": NoPe,
    "pixtral": PixtralRope,
    "pope": Pope,
    "qwen-vision": QwenVisionRope,
    "rotary": Rotary,
    "shaw": ShawBias,
    "sinusoidal": Sinusoidal,
    "spiral": SpiralRope,
    "string": StringRope,
    "t5": T5Bias,
    "wave": WaveRope,
    "xpos": XPos,
}


def encoding_names() -> tuple[str, ...]:
    """The names of all encodings, each of which has a full row in COVERAGE.md."""
    return tuple(_BY_NAME)


def encoding(name: str) -> type[Encoding]:
    """The class of the encoding called `name`.

    Raises:
        ValueError: there is no such encoding.

    >>> encoding("alibi")(heads=8, axes=2)
    Alibi(heads=8, axes=2)
    """
    if not isinstance(name, str) or name not in _BY_NAME:
        raise ValueError(f"unknown encoding {name!r}; known are {', '.join(_BY_NAME)}")
    return _BY_NAME[name]
