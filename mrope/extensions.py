"""Context extensions: what is done to the frequencies of a trained rotary so that it reaches further.

Letters: R rotary channels, F = R/2 pairs, L0 the trained length, L the length now, s the factor. Pair j turns by
theta_j = base ** (-2j / R) radians per position before, and has the wavelength 2 pi / theta_j.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from jaxtyping import Float
from torch import Tensor

from mrope.checks import Number, one_of, positive, whole


def default_inv_freq(base: float | Tensor, rotary_dim: int, dtype: torch.dtype = torch.float32) -> Float[Tensor, " f"]:
    """(F,) theta, without any extension, in the arithmetic of transformers."""
    return 1.0 / _powers(base, rotary_dim, dtype)


def _powers(base: float | Tensor, rotary_dim: int, dtype: torch.dtype) -> Tensor:
    return base ** (torch.arange(0, rotary_dim, 2, dtype=dtype, device="cpu") / rotary_dim)


def ntk_base(base: float, factor: float | Tensor, rotary_dim: int) -> float | Tensor:
    """The base with which the slowest pair is `factor` times slower and the fastest turns as before.

    Raises:
        ValueError: there is one pair alone, which cannot be both.
    """
    if rotary_dim <= 2:
        raise ValueError(f"rotary_dim is {rotary_dim}; NTK needs at least two pairs, a fast and a slow one")
    return base * factor ** (rotary_dim / (rotary_dim - 2))


class Extension(ABC):
    """What makes other frequencies of a base: one of the classes below, or your own."""

    __slots__ = ()

    needs_length: ClassVar[bool] = False
    """Whether the frequencies depend on how long the row is."""

    @abstractmethod
    def inv_freq(
        self, base: float, rotary_dim: int, dtype: torch.dtype = torch.float32, length: Number | None = None
    ) -> Float[Tensor, " f"]:
        """(F,) radians per position.

        Args:
            base: of the trained frequencies.
            rotary_dim: channels R that rotate.
            dtype: float32 is the arithmetic of transformers, to the bit; float64 the exact value.
            length: the largest position + 1 of the row, where `needs_length`.
        """

    @property
    def attention_factor(self) -> float:
        """What cos and sin are multiplied with, so that scores grow by its square."""
        return 1.0


def _factor(extension: Any) -> None:
    """Every factor stretches, and none so far that float32 frequencies vanish."""
    value = positive("factor", extension.factor)
    if not 1 <= value <= 1e30:
        raise ValueError(f"factor is {value:g}; expected from 1 to 1e30, how many times the trained length")


@dataclass(frozen=True, slots=True)
class Linear(Extension):
    """Position interpolation (arXiv:2306.15595): every pair turns `factor` times slower."""

    factor: Number

    def __post_init__(self) -> None:
        _factor(self)

    def inv_freq(
        self, base: float, rotary_dim: int, dtype: torch.dtype = torch.float32, length: Number | None = None
    ) -> Tensor:
        """See `Extension.inv_freq`."""
        return default_inv_freq(base, rotary_dim, dtype) / self.factor


@dataclass(frozen=True, slots=True)
class Ntk(Extension):
    """NTK-aware: the base is base * s ** (R / (R - 2)), so that fast pairs keep their pace and the slowest is s times
    slower. HunyuanVL calls s alpha."""

    factor: Number

    def __post_init__(self) -> None:
        _factor(self)

    def inv_freq(
        self, base: float, rotary_dim: int, dtype: torch.dtype = torch.float32, length: Number | None = None
    ) -> Tensor:
        """See `Extension.inv_freq`."""
        return default_inv_freq(ntk_base(base, self.factor, rotary_dim), rotary_dim, dtype)


@dataclass(frozen=True, slots=True)
class DynamicNtk(Extension):
    """NTK-aware with the factor s L / L0 - (s - 1), which grows with the row and is 1 up to the trained length.

    A row's frequencies change while it grows, so that keys that were cached earlier no longer fit: shift invariance
    holds within one length alone.
    """

    factor: Number
    trained: int

    needs_length: ClassVar[bool] = True

    def __post_init__(self) -> None:
        _factor(self)
        whole("trained", self.trained, 1)

    def inv_freq(
        self, base: float, rotary_dim: int, dtype: torch.dtype = torch.float32, length: Number | None = None
    ) -> Tensor:
        """See `Extension.inv_freq`."""
        if (longest := _length(self, length)) <= self.trained:
            return default_inv_freq(base, rotary_dim, dtype)
        # As transformers, which has the length in a tensor: what is made of it is rounded to float32 at each step.
        grown = torch.tensor(longest, dtype=dtype, device="cpu") * self.factor / self.trained - (self.factor - 1)
        return default_inv_freq(ntk_base(base, grown, rotary_dim), rotary_dim, dtype)


@dataclass(frozen=True, slots=True)
class Yarn(Extension):
    """YaRN (arXiv:2309.00071): pairs that turn often within the trained length keep their pace (NTK by parts).

    A pair that turns more than `beta_fast` times within `trained` positions keeps its frequency, one that turns less
    than `beta_slow` times becomes `factor` times slower, and between them a ramp over the pairs' numbers leads from the
    one to the other. Scores are sharpened by a temperature: cos and sin are multiplied with 0.1 ln s + 1.

    Args:
        factor: s.
        trained: L0 in positions.
        beta_fast: turns.
        beta_slow: turns.
        attention: what cos and sin are multiplied with; None for the formula, 1 for plain NTK by parts.
        mscale: scales the logarithm in the formula, where `mscale_all_dim` is given too (DeepSeek): the factor is then
            the quotient of the formula with the one and with the other.
        mscale_all_dim: see `mscale`.
        ends: of the ramp: "whole" pairs, as in the authors' code, or "exact".
    """

    factor: Number
    trained: int
    beta_fast: Number = 32
    beta_slow: Number = 1
    attention: Number | None = None
    mscale: Number | None = None
    mscale_all_dim: Number | None = None
    ends: Literal["whole", "exact"] = "whole"

    def __post_init__(self) -> None:
        _factor(self)
        whole("trained", self.trained, 7)  # below, no pair turns once, and no ramp leads anywhere
        one_of("ends", self.ends, ("whole", "exact"))
        if not 0 < positive("beta_slow", self.beta_slow) < positive("beta_fast", self.beta_fast):
            raise ValueError(
                f"beta_fast {self.beta_fast} is not above beta_slow {self.beta_slow}; expected such as 32, 1"
            )
        for name in ("attention", "mscale", "mscale_all_dim"):
            if getattr(self, name) is not None:
                positive(name, getattr(self, name))

    @property
    def attention_factor(self) -> float:
        """See `Extension.attention_factor`."""
        if self.attention is not None:
            return float(self.attention)
        if self.mscale and self.mscale_all_dim:
            return self._temperature(self.mscale) / self._temperature(self.mscale_all_dim)
        return self._temperature(1)

    def _temperature(self, scale: Number) -> float:
        return 0.1 * scale * math.log(self.factor) + 1.0 if self.factor > 1 else 1.0

    def ramp(self, base: float, rotary_dim: int) -> tuple[float, float]:
        """The pairs between which it leads from kept to slowed: up to the first all keep, from the second all slow.

        Raises:
            ValueError: the base is 1 or less, so that later pairs are no slower.
        """
        if base <= 1:
            raise ValueError(f"rope base (rope_theta) is {base:g}; YaRN needs one above 1")

        def pair(turns: Number) -> float:
            return rotary_dim * math.log(self.trained / (turns * 2 * math.pi)) / (2 * math.log(base))

        low, high = pair(self.beta_fast), pair(self.beta_slow)
        if self.ends == "whole":
            low, high = math.floor(low), math.ceil(high)
        return max(low, 0), min(high, rotary_dim - 1)

    def inv_freq(
        self, base: float, rotary_dim: int, dtype: torch.dtype = torch.float32, length: Number | None = None
    ) -> Tensor:
        """See `Extension.inv_freq`."""
        low, high = self.ramp(base, rotary_dim)
        high = high + 0.001 if low == high else high
        slowed = ((torch.arange(rotary_dim // 2, dtype=dtype, device="cpu") - low) / (high - low)).clamp(0, 1)
        kept = 1 - slowed
        powers = _powers(base, rotary_dim, dtype)
        return 1.0 / (self.factor * powers) * (1 - kept) + 1.0 / powers * kept


@dataclass(frozen=True, slots=True)
class LongRope(Extension):
    """LongRoPE (arXiv:2402.13753): a divisor of its own for each pair, found by search; one set up to the trained
    length, one beyond. Cos and sin are multiplied with sqrt(1 + ln s / ln L0).

    Args:
        factor: s.
        trained: L0 in positions.
        short: (F,) divisors up to the trained length.
        long: (F,) divisors beyond.
        attention: what cos and sin are multiplied with; None for the formula.
    """

    factor: Number
    trained: int
    short: tuple[Number, ...]
    long: tuple[Number, ...]
    attention: Number | None = None

    needs_length: ClassVar[bool] = True

    def __post_init__(self) -> None:
        _factor(self)
        whole("trained", self.trained, 2)
        for name in ("short", "long"):
            object.__setattr__(self, name, tuple(positive(f"{name} entry", value) for value in getattr(self, name)))
        if len(self.short) != len(self.long):
            raise ValueError(
                f"short has {len(self.short)} divisors, long {len(self.long)}; expected one a pair in both"
            )
        if self.attention is not None:
            positive("attention", self.attention)

    @property
    def attention_factor(self) -> float:
        """See `Extension.attention_factor`."""
        if self.attention is not None:
            return float(self.attention)
        return math.sqrt(1 + math.log(self.factor) / math.log(self.trained)) if self.factor > 1 else 1.0

    def inv_freq(
        self, base: float, rotary_dim: int, dtype: torch.dtype = torch.float32, length: Number | None = None
    ) -> Tensor:
        """See `Extension.inv_freq`."""
        name = "long" if _length(self, length) > self.trained else "short"
        divisors = getattr(self, name)
        if 2 * len(divisors) != rotary_dim:
            raise ValueError(
                f"{name} has {len(divisors)} divisors; {rotary_dim} rotary channels need {rotary_dim // 2}"
            )
        return 1.0 / (torch.tensor(divisors, dtype=dtype, device="cpu") * _powers(base, rotary_dim, dtype))


@dataclass(frozen=True, slots=True)
class Llama3(Extension):
    """Llama 3.1: by wavelength. Up to L0 / high a pair keeps its frequency, from L0 / low on it is s times slower.

    Args:
        factor: s.
        trained: L0 in positions.
        low: turns within the trained length below which a pair is slowed.
        high: turns above which it is kept.
    """

    factor: Number
    trained: int
    low: Number = 1
    high: Number = 4

    def __post_init__(self) -> None:
        _factor(self)
        whole("trained", self.trained, 1)
        if not positive("low", self.low) < positive("high", self.high):
            raise ValueError(f"high {self.high} is not above low {self.low}; expected such as 4 and 1")

    def inv_freq(
        self, base: float, rotary_dim: int, dtype: torch.dtype = torch.float32, length: Number | None = None
    ) -> Tensor:
        """See `Extension.inv_freq`."""
        theta = default_inv_freq(base, rotary_dim, dtype)
        wavelength = 2 * math.pi / theta
        short, long = wavelength < self.trained / self.high, wavelength > self.trained / self.low
        smooth = (self.trained / wavelength - self.low) / (self.high - self.low)
        between = (1 - smooth) * theta / self.factor + smooth * theta
        return torch.where(short, theta, torch.where(long, theta / self.factor, between))


@dataclass(frozen=True, slots=True)
class Proportional(Extension):
    """The first `share` of the pairs turns, `factor` times slower, and the slow rest does not turn (Gemma 4)."""

    share: Number
    factor: Number = 1

    def __post_init__(self) -> None:
        _factor(self)
        if positive("share", self.share) > 1:
            raise ValueError(f"share is {self.share}; expected at most 1, all pairs")

    def inv_freq(
        self, base: float, rotary_dim: int, dtype: torch.dtype = torch.float32, length: Number | None = None
    ) -> Tensor:
        """See `Extension.inv_freq`."""
        turning = torch.arange(rotary_dim // 2, device="cpu") < int(self.share * rotary_dim // 2)
        return torch.where(turning, default_inv_freq(base, rotary_dim, dtype), 0.0) / self.factor


@dataclass(frozen=True, slots=True)
class Zero(Extension):
    """No pair turns. Of the time axis alone it is HoPE (arXiv:2505.20444), whose slow temporal pairs hold still."""

    def inv_freq(
        self, base: float, rotary_dim: int, dtype: torch.dtype = torch.float32, length: Number | None = None
    ) -> Tensor:
        """See `Extension.inv_freq`."""
        return torch.zeros(rotary_dim // 2, dtype=dtype, device="cpu")


@dataclass(frozen=True, slots=True)
class At(Extension):
    """An extension that depends on the length, held at one: keys that are cached stay right while a row grows."""

    extension: Extension
    length: Number

    def __post_init__(self) -> None:
        positive("length", self.length)
        if not isinstance(self.extension, Extension) or not self.extension.needs_length:
            raise TypeError(f"extension is {self.extension!r}; expected one that depends on the length, as DynamicNtk")

    @property
    def attention_factor(self) -> float:
        """See `Extension.attention_factor`."""
        return self.extension.attention_factor

    def inv_freq(
        self, base: float, rotary_dim: int, dtype: torch.dtype = torch.float32, length: Number | None = None
    ) -> Tensor:
        """See `Extension.inv_freq`."""
        return self.extension.inv_freq(base, rotary_dim, dtype, self.length)


@dataclass(frozen=True, slots=True, eq=False)
class Learned(Extension):
    """Frequencies that are given, such as an `nn.Parameter`: gradients reach it through cos and sin.

    No module knows of the parameter through this; register it where it is made.

    Args:
        values: (F,) radians per position, of a floating dtype.
    """

    values: Float[Tensor, " f"]

    def __post_init__(self) -> None:
        if not isinstance(self.values, Tensor) or self.values.dim() != 1 or not self.values.is_floating_point():
            raise TypeError(f"values is {self.values!r}; expected a tensor (F,) of a floating dtype")

    def inv_freq(
        self, base: float, rotary_dim: int, dtype: torch.dtype = torch.float32, length: Number | None = None
    ) -> Tensor:
        """See `Extension.inv_freq`."""
        if 2 * len(self.values) != rotary_dim:
            raise ValueError(
                f"values has {len(self.values)} frequencies; {rotary_dim} rotary channels need {rotary_dim // 2}"
            )
        return self.values.to(dtype)


def _length(extension: Extension, length: Number | None) -> Number:
    if length is None:
        raise ValueError(
            f"{type(extension).__name__} depends on the length of the row; pass length=, the largest position + 1, or "
            "positions that know it"
        )
    return positive("length", length)


# What the command line calls them -> the class, and the numbers that it takes, in their order.
NAMES: Mapping[str, tuple[type[Extension], tuple[str, ...]]] = {
    "linear": (Linear, ("factor",)),
    "pi": (Linear, ("factor",)),
    "ntk": (Ntk, ("factor",)),
    "ntk-alpha": (Ntk, ("factor",)),
    "dynamic": (DynamicNtk, ("factor", "trained")),
    "yarn": (Yarn, ("factor", "trained")),
    "ntk-by-parts": (Yarn, ("factor", "trained")),
    "llama3": (Llama3, ("factor", "trained")),
    "proportional": (Proportional, ("share",)),
    "zero": (Zero, ()),
}

# What a configuration calls them, and the keys whose meaning is known.
_DEFAULT = ("default", "mrope")
_READERS = ("linear", "dynamic", "xdrope", "yarn", "longrope", "llama3", "proportional")
_KEYS = {
    *("rope_type", "type", "rope_theta", "factor", "original_max_position_embeddings", "attention_factor"),
    *("beta_fast", "beta_slow", "mscale", "mscale_all_dim", "truncate", "short_factor", "long_factor"),
    *("low_freq_factor", "high_freq_factor", "partial_rotary_factor", "alpha", "mrope_section", "xdrope_section"),
    "mrope_interleaved",
}


def parse_extension(text: str, trained: int | None = None) -> Extension:
    """The extension that `text` names, with its numbers behind a colon: "yarn:4", "yarn:4,32768", "zero".

    LongRoPE and learned frequencies take lists, and are made by their classes.

    Args:
        text: a name of `NAMES`, and up to two numbers.
        trained: the trained length L0, where the text has none.

    Raises:
        ValueError: there is no such extension, or a number is missing, too many or no number.

    >>> parse_extension("llama3:8", trained=8192)
    Llama3(factor=8.0, trained=8192, low=1, high=4)
    """
    name, _, listed = text.partition(":")
    one_of("extension", name, tuple(NAMES))
    kind, names = NAMES[name]
    try:
        numbers = [float(number) for number in listed.split(",")] if listed else []
    except ValueError:
        raise ValueError(f"extension {text!r} has {listed!r}; expected numbers, as in yarn:4,32768") from None
    if len(numbers) > len(names):
        raise ValueError(f"extension {text!r} has {len(numbers)} numbers; {name} takes {', '.join(names) or 'none'}")
    if not all(map(math.isfinite, numbers)):
        raise ValueError(f"extension {text!r} has {listed!r}; expected finite numbers, as in yarn:4,32768")
    given: dict[str, Any] = {"trained": trained, **dict(zip(names, numbers, strict=False))}
    if missing := [number for number in names if given.get(number) is None]:
        raise ValueError(f"extension {text!r} has no {missing[0]}; {name} takes {', '.join(names)}, as in yarn:4,32768")
    if given["trained"] is not None:
        given["trained"] = _whole_float("trained", given["trained"])
    plain = {"attention": 1} if name == "ntk-by-parts" else {}
    return kind(**{number: given[number] for number in names}, **plain)


def both_parameters(parameters: Mapping[str, Any], scaling: Mapping[str, Any]) -> dict[str, Any]:
    """`rope_parameters` and `rope_scaling` of one configuration; what the latter states was added by hand, and wins."""
    kind = {"rope_type", "type"}
    replaced = kind if kind & scaling.keys() else set()
    return {**{key: value for key, value in parameters.items() if key not in replaced}, **scaling}


def read_extension(parameters: Mapping[str, Any], longest: int | None = None) -> Extension | None:
    """The extension that the rope parameters of a transformers configuration state; None for the default.

    Args:
        parameters: `rope_parameters`, or `rope_scaling` of transformers 4.
        longest: `max_position_embeddings` of the configuration.

    Raises:
        ValueError: the type or a key is unknown, or one is missing.

    >>> read_extension({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}).factor
    4.0
    """
    if unknown := parameters.keys() - _KEYS:
        raise ValueError(
            f"rope parameters have {', '.join(sorted(unknown))}, which are not known here, "
            "and ignoring them would be wrong"
        )
    kind = parameters.get("rope_type", parameters.get("type", "default"))
    one_of("rope_type", kind, (*_DEFAULT, *_READERS))
    if kind in _DEFAULT:
        return None

    def listed(key: str) -> tuple[Number, ...]:
        if not isinstance(value := stated(key), (list, tuple)):
            raise ValueError(f"{key} is {value!r}; expected a list, a divisor for each pair")
        return tuple(value)

    def stated(key: str, otherwise: Any = None) -> Any:
        value = parameters.get(key)
        if value is None and otherwise is None:
            raise ValueError(f"rope parameters of type {kind!r} have no {key}: {dict(parameters)}")
        return otherwise if value is None else value

    def trained() -> int:
        return whole("original_max_position_embeddings", stated("original_max_position_embeddings", longest), 1)

    def factor() -> Number:  # where none is stated, transformers takes the quotient of the lengths
        return stated("factor", None if longest is None else longest / trained())

    if kind == "linear":
        return Linear(stated("factor"))
    if kind == "llama3":
        return Llama3(stated("factor"), trained(), stated("low_freq_factor"), stated("high_freq_factor"))
    if kind == "proportional":
        return Proportional(stated("partial_rotary_factor", 1.0), stated("factor", 1.0))
    if kind == "xdrope" or (kind == "dynamic" and parameters.get("alpha")):  # HunyuanVL: a fixed factor
        return Ntk(stated("alpha"))
    if kind == "dynamic":
        if longest is None:
            raise ValueError("rope parameters of type 'dynamic' go by max_position_embeddings, which is not stated")
        return DynamicNtk(stated("factor"), longest)
    attention = parameters.get("attention_factor")
    if kind == "yarn":
        return Yarn(
            factor(),
            trained(),
            stated("beta_fast", 32),
            stated("beta_slow", 1),
            attention,
            parameters.get("mscale"),
            parameters.get("mscale_all_dim"),
            "whole" if stated("truncate", True) else "exact",
        )
    return LongRope(factor(), trained(), listed("short_factor"), listed("long_factor"), attention)


def _whole_float(name: str, value: Any) -> int:
    if float(value) != int(value):
        raise ValueError(f"{name} is {value}; expected a whole number")
    return int(value)
