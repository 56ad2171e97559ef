"""Every example in a docstring does what it says."""

from __future__ import annotations

import doctest
import importlib

import pytest
from sources import modules


@pytest.mark.parametrize("name", modules())
def test_examples(name: str) -> None:
    assert doctest.testmod(importlib.import_module(name)).failed == 0
