"""Answers kept in a folder, by the content of what was asked: a run that was killed asks nothing twice."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Kept:
    """A folder of answers, one file each; several processes may use it at once.

    Args:
        folder: is made with the first answer.
    """

    folder: Path

    def get(self, asked: Mapping[str, Any]) -> dict[str, Any] | None:
        """What was answered, or None: not yet, or the file is broken."""
        try:
            kept = json.loads(self._path(asked).read_bytes())
        except (FileNotFoundError, ValueError):
            return None
        return kept if isinstance(kept, dict) else None

    def put(self, asked: Mapping[str, Any], answer: Mapping[str, Any]) -> None:
        """Keep an answer: the whole file appears at once."""
        path = self._path(asked)
        path.parent.mkdir(parents=True, exist_ok=True)
        number, part = tempfile.mkstemp(dir=path.parent, suffix=".part")
        try:
            with os.fdopen(number, "w") as file:
                json.dump(answer, file)
            os.replace(part, path)
        except BaseException:
            Path(part).unlink(missing_ok=True)
            raise

    def _path(self, asked: Mapping[str, Any]) -> Path:
        name = hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()
        return self.folder / name[:2] / f"{name}.json"
