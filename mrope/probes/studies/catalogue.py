"""The studies by name."""

from __future__ import annotations

from collections.abc import Mapping

from mrope.checks import one_of
from mrope.probes.studies.distance import DISTANCE
from mrope.probes.studies.encodings import ENCODINGS
from mrope.probes.studies.extension import EXTENSION
from mrope.probes.studies.nope import NOPE
from mrope.probes.studies.study import Study
from mrope.probes.studies.wrong import WRONG

STUDIES: Mapping[str, Study] = {study.name: study for study in (ENCODINGS, EXTENSION, WRONG, DISTANCE, NOPE)}
"""In the order in which they run; later ones take up models that earlier ones trained."""


def study(name: str) -> Study:
    """The study of this name.

    Raises:
        ValueError: there is none.
    """
    one_of("study", name, tuple(STUDIES))
    return STUDIES[name]
