"""Markup as text: elements of HTML and SVG, tables, inlined pictures, and colours that follow light and dark."""

from __future__ import annotations

import base64
import hashlib
import io
from collections.abc import Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING, Any

from mrope.data import font

if TYPE_CHECKING:
    from PIL.Image import Image
else:
    Image = Any

LIGHT = {
    "paper": "#ffffff",
    "ink": "#1d2430",
    "muted": "#5f6b7a",
    "rule": "#d9dee5",
    "wash": "#f3f5f8",
    "t": "#7a3fa6",
    "h": "#bf4316",
    "w": "#0a63a5",
    "twin-1": "#8a6d00",
    "twin-2": "#6b7480",
    "good": "#1f7a4d",
    "bad": "#b3261e",
    "cold": "#dfe8ee",
    "warm": "#b22616",
}
"""The colour of each role on light paper; t, h and w keep theirs in every figure."""

DARK = {
    "paper": "#14181f",
    "ink": "#e6e9ee",
    "muted": "#9aa5b3",
    "rule": "#323a46",
    "wash": "#1c222b",
    "t": "#c89af0",
    "h": "#ff9a6b",
    "w": "#6fbcff",
    "twin-1": "#dcb93c",
    "twin-2": "#97a1ad",
    "good": "#5cc08c",
    "bad": "#ff8a80",
    "cold": "#2a3743",
    "warm": "#f0604d",
}
"""The same roles on dark paper."""


_VOID = ("img", "input", "meta")
_FACES = (
    ("Head", 500, "EBGaramond-Medium"),
    ("Body", 400, "Inter-Regular"),
    ("Body", 700, "Inter-Bold"),
    ("Mono", 400, "JetBrainsMono-Regular"),
)


def element(tag: str, inner: str = "", /, **attributes: object) -> str:
    """One SVG or HTML element around `inner`, which is markup already; ``class_`` and ``stroke_width`` are read as
    ``class`` and ``stroke-width``, real numbers are written to a hundredth, and None leaves an attribute away.

    >>> element("rect", x=1.5, width=2, class_="cell")
    '<rect x="1.5" width="2" class="cell"></rect>'
    """
    written = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escape(number(value) if isinstance(value, float) else str(value))}"'
        for key, value in attributes.items()
        if value is not None
    )
    return f"<{tag}{written}/>" if tag in _VOID else f"<{tag}{written}>{inner}</{tag}>"


def text(words: str, left: float, base: float, /, **attributes: object) -> str:
    """A line of text whose baseline is `base` and whose left end (or anchor) is `left`, in the drawing's units."""
    return element("text", escape(words, quote=False), x=left, y=base, **attributes)


def number(value: float) -> str:
    """A coordinate with at most two decimals."""
    return f"{value:.2f}".rstrip("0").rstrip(".")


def palette() -> str:
    """CSS: every colour as a variable, the dark ones where the reader's system asks for dark."""
    light, dark = map(_variables, (LIGHT, DARK))
    return f":root{{color-scheme:light dark;{light}}}@media (prefers-color-scheme:dark){{:root{{{dark}}}}}"


def switched() -> str:
    """CSS beside `palette`: ``data-theme`` of the root, "light" or "dark", overrules the reader's system."""
    pairs = (("light", LIGHT), ("dark", DARK))
    return "".join(f":root[data-theme={name}]{{color-scheme:{name};{_variables(its)}}}" for name, its in pairs)


def _variables(colours: Mapping[str, str]) -> str:
    return "".join(f"--{role}:{colour};" for role, colour in colours.items())


def faces() -> str:
    """CSS: the faces that ship with the project, inlined, so that a page looks the same everywhere."""
    rules = []
    for family, weight, name in _FACES:
        content = base64.b64encode(font(name).path.read_bytes()).decode()
        source = f"url(data:font/ttf;base64,{content})"
        rules.append(f"@font-face{{font-family:{family};font-weight:{weight};font-display:block;src:{source}}}")
    return "".join(rules)


def document(title: str, style: str, body: str, *, head: str = "") -> str:
    """A whole HTML page in our faces and colours; `head` is further markup for its head."""
    return (
        '<!doctype html>\n<html lang="en">\n<head>'
        + element("meta", charset="utf-8")
        + element("meta", name="viewport", content="width=device-width,initial-scale=1")
        + head
        + element("title", escape(title, quote=False))
        + element("style", palette() + faces() + style)
        + "</head>\n<body>"
        + body
        + "</body>\n</html>\n"
    )


def table(
    columns: Sequence[str], rows: Sequence[Sequence[str]], *, numeric: Sequence[int] = (), **attributes: object
) -> str:
    """A table whose cells are markup already; the columns numbered in `numeric` are set as figures, to the right."""
    classes = ["num" if index in numeric else None for index in range(len(columns))]
    head = "".join(element("th", name, class_=cls, scope="col") for name, cls in zip(columns, classes, strict=True))
    body = "".join(
        element("tr", "".join(element("td", cell, class_=cls) for cell, cls in zip(row, classes, strict=True)))
        for row in rows
    )
    return element("table", element("thead", element("tr", head)) + element("tbody", body), **attributes)


def ids(position: Sequence[int]) -> str:
    """A position (t, h, w), each number in the colour of its axis."""
    words = (element("span", str(value), class_=axis) for axis, value in zip("thw", position, strict=True))
    return element("span", " ".join(words), class_="ids")


def inlined(picture: Image, words: str) -> str:
    """An image element that holds the picture itself: PNG where it has few colours, else JPEG; `words` describe it."""
    picture = picture.convert("RGB")
    kind = "jpeg" if picture.getcolors(4096) is None else "png"
    file = io.BytesIO()
    picture.save(file, kind, **({"quality": 88, "subsampling": 0} if kind == "jpeg" else {}))
    source = f"data:image/{kind};base64,{base64.b64encode(file.getvalue()).decode()}"
    return element("img", src=source, width=picture.width, height=picture.height, alt=words)


def policy(script: str) -> str:
    """What the browser may do: show what is inlined and run this one script, so that no text can do a thing."""
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    rules = (
        f"default-src 'none'; img-src data:; font-src data:; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
    )
    return element("meta", http_equiv="Content-Security-Policy", content=rules)
