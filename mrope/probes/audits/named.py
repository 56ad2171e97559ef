"""Targets of an audit by their names: what `mrope audit` takes for its argument."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

import mrope.layouts
from mrope import encodings
from mrope.axes import AxisSplit, HeadSplit
from mrope.checks import Number, positive
from mrope.encoding import Encoding
from mrope.extensions import At, Extension, parse_extension
from mrope.families import family, family_names
from mrope.frequencies import Frequencies
from mrope.layouts import Layout
from mrope.probes.audits.frequencies import TRAINED, extensions_of_axes
from mrope.probes.audits.target import AXES, Target, both, of_encoding, of_layout, of_object, of_rotary
from mrope.rotary import Rotary

LAYOUTS: Mapping[str, Callable[..., Layout]] = {
    name.removesuffix("Layout").lower(): getattr(mrope.layouts, name)
    for name in mrope.layouts.__all__
    if name.endswith("Layout") and name not in ("Layout", "SpanLayout", "AnchoredLayout")
}
"""Name -> class of each layout whose settings are words and numbers."""

_HEAD = 64
_SPLIT = AxisSplit((8, 12, 12))
_SHARES = ("comrope-ap", "comrope-ld", "dinov3", "golden-gate", "liere")  # coordinates are shares of a picture
ENCODINGS: Mapping[str, Callable[[], Encoding]] = {
    "axial": lambda: encodings.AxialRope(_HEAD),
    "circulant-string": lambda: encodings.CirculantRope(_HEAD),
    "comrope-ap": lambda: encodings.ComRope(_HEAD, kind="AP"),
    "comrope-ld": lambda: encodings.ComRope(_HEAD, kind="LD"),
    "dinov3": lambda: encodings.Dinov3Rope(_HEAD),
    "eva-02": lambda: encodings.Eva02Rope(_HEAD),
    "golden-gate": lambda: encodings.GoldenGateRope(_HEAD, heads=2),
    "grape": lambda: encodings.GrapeRope(_HEAD, mode="mixed"),
    "liere": lambda: encodings.LieRope(_HEAD),
    "mixed": lambda: encodings.MixedRope(_HEAD, heads=2),
    "moonvit": lambda: encodings.MoonVitRope(_HEAD),
    "pixtral": lambda: encodings.PixtralRope(_HEAD),
    "pope": lambda: encodings.Pope(_SPLIT, 2),
    "qwen-vision": lambda: encodings.QwenVisionRope(_HEAD),
    "spiral": lambda: encodings.SpiralRope(_HEAD, directions=4),
    "string": lambda: encodings.StringRope(_HEAD),
    "xpos": lambda: encodings.XPos(_SPLIT),
}
"""Name -> an encoding of 64 channels as it is made; of PoPE, whose pairs are single channels, of 32."""


def read_target(
    words: str,
    like: Target | None = None,
    *,
    said: str = "target",
    base: Number | None = None,
    extend: Sequence[str] = (),
    trained: int | None = None,
    length: int | None = None,
) -> Target:
    """What a name names.

    Args:
        words: a family; "hf:" and a model class, model_type, folder or JSON of transformers; "python:" and a module
            (or file.py), a colon and the name of a callable; LAYOUT+SPLIT; a layout, split or encoding alone.
        like: what a callable is meant to be.
        said: the name of the argument that it came by, for refusals.
        base: of the frequencies of a SPLIT, 1e6 by default.
        extend: context extensions, "yarn:4" or "t=ntk:4", in the place of the family's own.
        trained: the trained length that these go by; by default the family's, where it is known.
        length: how long rows are, for extensions that depend on it.

    Raises:
        ValueError: nothing has this name, the parts do not go together, or a number would change nothing.
    """
    if base is not None:
        positive("base", base)
    kind, _, rest = words.partition(":")
    if kind == "hf":
        from mrope.probes.audits.installed import of_installed

        try:
            found = of_installed(rest)
        except ValueError as error:
            raise ValueError(str(error).replace(f"target is {rest!r}", f"{said} is {words!r}")) from None
    elif kind == "python":
        found = of_object(_import(rest), rest, like)
    else:
        found = _of_parts(words, said, base)
    if base is not None and not _takes_base(words):
        raise ValueError(f"base is {base:g} for {words}; expected a SPLIT such as HW*24 T*16, which has no own base")
    if not extend:
        for name, value in (("trained", trained), ("length", length)):
            if value is not None:
                raise ValueError(f"{name} is {value}, and nothing is extended; expected extend, such as yarn:4")
        return found
    if trained is not None and (stated := next((word for word in extend if "," in word), None)):
        raise ValueError(f"trained is {trained}, and extend is {stated!r}; expected the trained length in one of them")
    if found.rotary is None:
        raise ValueError(f"extend is {', '.join(extend)} for {words}; expected frequencies of ours, as of a family")
    known = TRAINED.get(words)
    if trained is None and known is not None:
        trained = known.length
    own = extended(found.rotary, found.axes, extend, trained)
    longer = _held(own, length)
    if length is not None and longer == _held(own, 2 * length):
        raise ValueError(f"length is {length} for {', '.join(extend)}; expected an extension that depends on a length")
    turned = of_rotary(longer, found.name, axes=found.axes)
    return both(found, turned, found.name) if found.lay is not None else turned


def _takes_base(words: str) -> bool:
    """Whether a SPLIT of its own is named, and no family's."""
    split = words.rpartition("+")[2].strip()
    return split not in family_names() and _rotary(split, 1e6) is not None


def _of_parts(words: str, said: str, base: Number | None) -> Target:
    base = 1e6 if base is None else base
    layout, plus, split = (part.strip() for part in words.partition("+"))
    if plus:
        laid, turned = _layout(layout), _rotary(split, base)
        if laid is None or turned is None:
            part, known = (layout, [*LAYOUTS, *family_names()]) if laid is None else (split, ["a family", "HW*24 T*16"])
            raise ValueError(f"{said} is {words!r}, and {part!r} is unknown; expected {', '.join(known)}")
        return both(laid, turned, words)
    if words in family_names():
        record = family(words)
        laid = replace(of_layout(record.layout, words, axes=record.axes, merge=record.merge), name=words)
        turned = of_rotary(_held(record.rotary(), None), words, axes=record.axes)
        return replace(both(laid, turned, words), head_dim=record.head_dim)
    if words in ENCODINGS:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            made = ENCODINGS[words]()
        return of_encoding(
            made,
            words,
            axes=AXES[made.axes or 2],
            head_dim=_HEAD // 2 if words == "pope" else _HEAD,
            heads=getattr(made, "heads", 1),
            extent=1 if words in _SHARES else 50,
        )
    found = _layout(words) or _rotary(words, base)
    if found is None:
        raise ValueError(
            f"{said} is {words!r}; expected a family ({', '.join(family_names())}), LAYOUT+SPLIT, a layout "
            f"({', '.join(LAYOUTS)}), an encoding ({', '.join(ENCODINGS)}), hf:MODEL or python:MODULE:NAME"
        )
    return found


def _layout(words: str) -> Target | None:
    """A family's layout, or NAME(setting=value,...); None: nothing is called so."""
    name, version = (part.strip() for part in (*words.split("@", 1), "")[:2])
    if name in family_names():
        record = family(name)
        return of_layout(record.layout_named(version or "trained"), words, axes=record.axes, merge=record.merge)
    match = re.fullmatch(r"([a-z0-9]+)(?:\((.*)\))?", words)
    if match is None or match[1] not in LAYOUTS:
        return None
    settings = {}
    for part in filter(None, (match[2] or "").split(",")):
        key, equals, value = (piece.strip() for piece in part.partition("="))
        if not equals:
            raise ValueError(f"layout is {words!r}, and {part!r} is no setting; expected such as grid(merge=1)")
        settings[key] = _value(value)
    missing = [
        each.name
        for each in inspect.signature(LAYOUTS[match[1]]).parameters.values()
        if each.default is each.empty and each.name not in settings
    ]
    if missing:
        such = ",".join(f"{name}=2" for name in missing)
        raise ValueError(f"layout is {words!r} without {', '.join(missing)}; expected such as {match[1]}({such})")
    try:
        return of_layout(LAYOUTS[match[1]](**settings), words)
    except TypeError as error:
        raise ValueError(f"layout is {words!r}: {error}") from None


def _value(text: str) -> Any:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def _rotary(words: str, base: Number) -> Target | None:
    """A family's rotary, "heads 2,3,3" of keys for axes, or a pattern; None: it is none."""
    if words in family_names():
        record = family(words)
        return of_rotary(_held(record.rotary(), None), words, axes=record.axes)
    if words.startswith("heads"):
        counts = re.findall(r"\d+", words)
        return of_rotary(Rotary(HeadSplit(tuple(map(int, counts)), pairs=64), Frequencies(base)), words)
    if not re.search(r"[*A-Z0-9]", words) or not re.fullmatch(r"[A-Z0-9*\u00d7 ()]+", words):
        return None
    try:
        split = AxisSplit.parse(words)
    except ValueError as error:  # letters can be named in Python alone
        wrong = str(error).partition("; expected each")[0]
        raise ValueError(f"{wrong}; expected axes T, H and W, or digits, as in 0123*16") from None
    return of_rotary(Rotary(split, Frequencies(base)), words)


def extended(rotary: Rotary, axes: Sequence[str], words: Sequence[str], trained: int | None) -> Rotary:
    """With extensions in the place of its own; axes that none of several words names keep theirs.

    Args:
        rotary: with the extensions that it has.
        axes: names of its axes.
        words: "yarn:4", or one for some axes by their first letters each: "t=ntk:4", "hw=linear:2".
        trained: the trained length, for words that have none.

    Raises:
        ValueError: an axis is unknown or named twice, or a word is no extension.
    """
    if not words:
        return rotary
    if len(words) == 1 and "=" not in words[0]:
        extension = parse_extension(words[0], trained)
        return replace(rotary, frequencies=replace(rotary.frequencies, extension=extension))
    each, letters, given = list(extensions_of_axes(rotary)), [name[0] for name in axes], ""
    for word in words:
        names, equals, text = word.rpartition("=")
        if not equals:
            raise ValueError(f"extend {word!r} names no axes beside others; expected one word for all, or t=ntk:4")
        for letter in names or "?":
            if letter not in letters or letter in given:
                again = " again" * (letter in given)
                known = ", ".join(letters)
                raise ValueError(
                    f"extend {word!r} names the axis {letter!r}{again}; expected each of {known} once at most"
                )
            given += letter
            each[letters.index(letter)] = parse_extension(text, trained)
    return replace(rotary, frequencies=replace(rotary.frequencies, extension=tuple(each)))


def _held(rotary: Rotary, length: int | None) -> Rotary:
    """Frequencies that depend on a length held at one."""
    frequencies = rotary.frequencies
    if not frequencies.needs_length:
        return rotary
    if length is None:
        raise ValueError("the frequencies of this extension depend on how long the row is; expected a length")

    def held(extension: Extension | None) -> Extension | None:
        return At(extension, length) if extension is not None and extension.needs_length else extension

    own = frequencies.extension
    kept = tuple(map(held, own)) if isinstance(own, tuple) else held(own)
    return replace(rotary, frequencies=replace(frequencies, extension=kept))


def _import(words: str) -> Any:
    """The object of MODULE:NAME or FILE.py:NAME; modules are looked for in the working folder, too."""
    module, colon, name = words.rpartition(":")
    if not colon or not name:
        raise ValueError(f"target is 'python:{words}'; expected python:MODULE:NAME, such as python:my.model:rotate")
    if module.endswith(".py"):
        path = Path(module)
        if not path.is_file():
            raise ValueError(f"target is 'python:{words}', and {module} is no file")
        spec = importlib.util.spec_from_file_location(path.stem, path)
        assert spec is not None
        assert spec.loader is not None  # of a .py file
        found = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(found)
    else:
        if "" not in sys.path:
            sys.path.insert(0, "")
        try:
            found = importlib.import_module(module)
        except ModuleNotFoundError as error:
            raise ValueError(f"target is 'python:{words}': {error}") from None
    for part in name.split("."):
        if not hasattr(found, part):
            raise ValueError(f"target is 'python:{words}', and {module} has no {name}")
        found = getattr(found, part)
    return found
