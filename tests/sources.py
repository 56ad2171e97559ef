"""Where the sources lie, and the names by which they are imported."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parents[1]
IMPORT_NAMES = {"mrope": "mrope", "vision": "mrope.vision", "data": "mrope.data"}  # of the folders at the top


def modules() -> dict[str, Path]:
    """File of each module and package by its import name; a script in a folder that is no package is neither."""
    return {
        ".".join([name, *path.relative_to(ROOT / folder).with_suffix("").parts]).removesuffix(".__init__"): path
        for folder, name in IMPORT_NAMES.items()
        for path in sorted((ROOT / folder).rglob("*.py"))
        if (path.parent / "__init__.py").exists()
    }


def packages() -> list[str]:
    """Import names of the folders that have an `__init__.py`."""
    return sorted(name for name, path in modules().items() if path.stem == "__init__")
