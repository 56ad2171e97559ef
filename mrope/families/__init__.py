"""Families: frozen records of what published vision-language models chose."""

from __future__ import annotations

from mrope.families.baidu import BAIDU
from mrope.families.glm import GLM
from mrope.families.others import OTHERS
from mrope.families.qwen import QWEN
from mrope.families.record import VERSIONS, Boxes, Family, PatchOrder
from mrope.families.sampling import QWEN_VL_UTILS, Sampling, Stamp
from mrope.families.tencent import TENCENT

__all__ = [
    "QWEN_VL_UTILS",
    "VERSIONS",
    "Boxes",
    "Family",
    "PatchOrder",
    "Sampling",
    "Stamp",
    "family",
    "family_names",
]

_RECORDS = {record.name: record for record in (*QWEN, *GLM, *BAIDU, *TENCENT, *OTHERS)}


def family_names() -> tuple[str, ...]:
    """The names of all recorded families.

    >>> family_names()[:3]
    ('qwen2-vl', 'qwen2.5-vl', 'qwen3-vl')
    """
    return tuple(_RECORDS)


def family(name: str) -> Family:
    """The record called `name`: the values of the released checkpoints, where they were found, and class defaults.

    Raises:
        ValueError: there is no such record.

    >>> family("qwen3-vl").factor
    32
    """
    if name not in _RECORDS:
        raise ValueError(f"unknown family {name!r}; known are {', '.join(_RECORDS)}")
    return _RECORDS[name]
