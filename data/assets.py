"""Make the demo pictures again: `python -m mrope.data.assets FOLDER`; the shipped ones lie in `assets/` beside it."""

from __future__ import annotations

import sys
from pathlib import Path

from .shipped import ASSETS, write_asset


def main(arguments: list[str]) -> int:
    """Write all demo pictures into the folder named."""
    if len(arguments) != 1 or not Path(arguments[0]).is_dir():
        print("usage: python -m mrope.data.assets FOLDER  (a folder that exists)", file=sys.stderr)
        return 2
    for name in ASSETS:
        print(write_asset(name, Path(arguments[0])), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
