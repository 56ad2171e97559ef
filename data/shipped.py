"""The demo pictures that lie in the package, and how each file was written."""

from __future__ import annotations

from pathlib import Path

from PIL import ExifTags, Image

from .chart import draw_chart
from .clip import FRAMES_PER_SECOND, draw_clip
from .page import draw_page
from .photo import draw_photo

_FOLDER = Path(__file__).parent / "assets"

ASSETS: tuple[str, ...] = ("page.png", "chart.png", "photo.jpg", "clip.webp")
"""A document page, a chart, a photograph-like picture that lies on its side (EXIF orientation 6), a clip."""


def asset(name: str) -> Path:
    """Return the file of a demo picture.

    Raises:
        ValueError: there is no such picture.

    Example:
        >>> asset("chart.png").name
        'chart.png'
    """
    if name not in ASSETS:
        raise ValueError(f"no demo picture {name!r}; there are {', '.join(ASSETS)}")
    return _FOLDER / name


def write_asset(name: str, folder: Path) -> Path:
    """Draw one of the demo pictures and write it into a folder that exists.

    Raises:
        ValueError: there is no such picture.
    """
    path = folder / asset(name).name
    if name == "page.png":
        _few_colours(draw_page()).save(path, optimize=True)
    elif name == "chart.png":
        _few_colours(draw_chart()).save(path, optimize=True)
    elif name == "photo.jpg":
        exif = Image.Exif()
        exif[ExifTags.Base.ImageDescription] = "Pool balls, traced by mrope.data.photo"
        exif[ExifTags.Base.Orientation] = 6
        # As a camera held upright would store it: lying on its side, the tag says to turn it a quarter clockwise.
        lying = draw_photo().transpose(Image.Transpose.ROTATE_90)
        lying.save(path, quality=88, optimize=True, exif=exif)
    else:
        first, *others = draw_clip()
        milliseconds = 1000 // FRAMES_PER_SECOND
        first.save(path, save_all=True, append_images=others, duration=milliseconds, loop=0, lossless=True, method=6)
    return path


def _few_colours(picture: Image.Image) -> Image.Image:
    """Reduce smooth edges on flat colours to 128 colours: a third of the bytes, no difference to the eye."""
    return picture.quantize(128, method=Image.Quantize.MEDIANCUT, kmeans=2, dither=Image.Dither.NONE)
