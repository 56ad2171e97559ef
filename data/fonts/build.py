"""Make the fonts of this folder again from unpacked packages: `python data/fonts/build.py NODE_MODULES DEJAVU_FOLDER`.

NODE_MODULES is what `npm install @fontsource/...` leaves (packages and versions are in fonts.json), DEJAVU_FOLDER holds
the DejaVu files and their LICENSE_DEJAVU, such as `matplotlib/mpl-data/fonts/ttf`. Needs fontTools, uses no network.
Each face is cut down to printable ASCII, without hints, kerning and other features; its copyright lines stay inside.
Families whose licence reserves the font name are refused: a changed copy of those must not keep its name.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from fontTools.subset import Options, Subsetter  # pyright: ignore[reportMissingImports]
from fontTools.ttLib import TTFont  # pyright: ignore[reportMissingImports]

HERE = Path(__file__).parent
CHANGES = "Cut down to printable ASCII without hints and layout features for mrope."
COPYRIGHT, VERSION, DESCRIPTION, LICENCE_URL = 0, 5, 10, 14
KEPT_NAMES = [COPYRIGHT, 1, 2, 4, VERSION, 6, DESCRIPTION, 13, LICENCE_URL]

# family, package, weight, slant, style, split; a family stands in one split only
FACES = [
    ("Alegreya Sans", "alegreya-sans", 500, "normal", "sans, old-style digits", "train"),
    ("Arimo", "arimo", 400, "normal", "sans", "train"),
    ("Barlow Condensed", "barlow-condensed", 500, "normal", "sans condensed", "train"),
    ("Bitter", "bitter", 700, "normal", "slab bold", "train"),
    ("Courier Prime", "courier-prime", 400, "normal", "mono slab", "train"),
    ("Cousine", "cousine", 700, "normal", "mono bold", "train"),
    ("Crimson Pro", "crimson-pro", 600, "normal", "serif", "train"),
    ("DejaVu Sans", "dejavu", 400, "normal", "sans", "train"),
    ("DejaVu Serif", "dejavu", 700, "normal", "serif bold", "train"),
    ("EB Garamond", "eb-garamond", 500, "normal", "serif", "train"),
    ("Fira Sans", "fira-sans", 400, "italic", "sans italic", "train"),
    ("Gelasio", "gelasio", 400, "normal", "serif, old-style digits", "train"),
    ("Inter", "inter", 400, "normal", "sans", "train"),
    ("Inter", "inter", 700, "normal", "sans bold", "train"),
    ("JetBrains Mono", "jetbrains-mono", 400, "normal", "mono", "train"),
    ("Karla", "karla", 400, "normal", "sans", "train"),
    ("Montserrat", "montserrat", 600, "normal", "sans bold", "train"),
    ("Noto Serif", "noto-serif", 400, "normal", "serif", "train"),
    ("Noto Serif", "noto-serif", 700, "normal", "serif bold", "train"),
    ("Noto Serif", "noto-serif", 400, "italic", "serif italic", "train"),
    ("Nunito", "nunito", 400, "normal", "sans rounded", "train"),
    ("Open Sans", "open-sans", 700, "italic", "sans bold italic", "train"),
    ("Overpass Mono", "overpass-mono", 400, "normal", "mono", "train"),
    ("Roboto Mono", "roboto-mono", 400, "normal", "mono", "train"),
    ("Roboto Slab", "roboto-slab", 400, "normal", "slab", "train"),
    ("Rubik", "rubik", 500, "normal", "sans", "train"),
    ("Spectral", "spectral", 400, "normal", "serif", "train"),
    ("Tinos", "tinos", 400, "italic", "serif italic", "train"),
    ("Vollkorn", "vollkorn", 500, "normal", "serif, old-style digits", "train"),
    ("Archivo Narrow", "archivo-narrow", 600, "normal", "sans condensed bold", "held-out"),
    ("Cabin", "cabin", 400, "italic", "sans italic", "held-out"),
    ("Domine", "domine", 700, "normal", "serif bold", "held-out"),
    ("Inconsolata", "inconsolata", 500, "normal", "mono", "held-out"),
    ("Libre Baskerville", "libre-baskerville", 400, "normal", "serif", "held-out"),
    ("Libre Franklin", "libre-franklin", 700, "normal", "sans bold", "held-out"),
    ("Work Sans", "work-sans", 400, "normal", "sans", "held-out"),
    ("Zilla Slab", "zilla-slab", 500, "normal", "slab", "held-out"),
]


def subset(source: Path, target: Path) -> str:
    """Write the reduced copy of `source` and return its copyright line."""
    options = Options()
    options.hinting = False
    options.layout_features = []
    options.drop_tables += ["GDEF", "GPOS", "GSUB", "STAT", "DSIG", "meta", "kern", "gasp", "FFTM", "MATH"]
    options.name_IDs = KEPT_NAMES
    options.name_languages = [0x409]
    options.notdef_outline = True
    options.recalc_timestamp = False
    font = TTFont(source, recalcTimestamp=False)
    for record in font["name"].names:
        if "reserved font name" in record.toUnicode().lower():
            raise ValueError(f"{source.name}: {record.toUnicode()!r} forbids a changed copy under this name")
    font["name"].setName(CHANGES, DESCRIPTION, 3, 1, 0x409)
    subsetter = Subsetter(options)
    subsetter.populate(unicodes=range(0x20, 0x7F))
    subsetter.subset(font)
    font.flavor = None
    font.save(target, reorderTables=True)
    return str(font["name"].getDebugName(COPYRIGHT))


def licence_body(package: Path) -> tuple[str, str]:
    """Return the licence's SPDX word and its text without the copyright lines on top."""
    spdx = json.loads((package / "package.json").read_text())["license"]
    text = (package / "LICENSE").read_text()
    if spdx == "OFL-1.1":
        header, start, body = text.partition("This Font Software is licensed under the SIL Open Font License")
        if "reserved font name" in header.lower() or not start:
            raise ValueError(f"{package.name}: the OFL header reserves a name or is not what it should be")
        return spdx, start + body
    return spdx, text


def main(node_modules: Path, dejavu: Path) -> None:
    (HERE / "LICENSES").mkdir(exist_ok=True)
    manifest = []
    for family, package, weight, slant, style, split in FACES:
        word = {400: "Regular", 500: "Medium", 600: "SemiBold", 700: "Bold"}[weight]
        word = word if slant == "normal" else f"{word.replace('Regular', '')}Italic"
        name = f"{family.replace(' ', '')}-{word}"
        if package == "dejavu":
            source = dejavu / (family.replace(" ", "") + ("-Bold.ttf" if weight == 700 else ".ttf"))
            spdx, text, origin = "Bitstream-Vera", (dejavu / "LICENSE_DEJAVU").read_text(), "DejaVu fonts 2.37"
        else:
            folder = node_modules / "@fontsource" / package
            source = folder / "files" / f"{package}-latin-{weight}-{slant}.woff"
            spdx, text = licence_body(folder)
            origin = f"@fontsource/{package}@{json.loads((folder / 'package.json').read_text())['version']}"
        licence = HERE / "LICENSES" / f"{spdx}.txt"
        licence.write_text("\n".join(line.rstrip() for line in text.strip().splitlines()) + "\n")
        notice = subset(source, HERE / f"{name}.ttf")
        manifest.append(
            {"name": name, "family": family, "file": f"{name}.ttf", "style": style, "weight": weight, "slant": slant}
            | {"split": split, "licence": spdx, "copyright": notice, "source": origin}
        )
    (HERE / "fonts.json").write_text(json.dumps(manifest, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
