"""Set up before any test: shapes and types checked at run time, one thread, fixed seeds, no network."""

from __future__ import annotations

import os
import random

import numpy
import pytest
import torch
from jaxtyping import install_import_hook

# Every function and dataclass of ours (mrope.vision and mrope.data included) checks its annotations in tests; as for a
# static checker, an int will do for a float.
install_import_hook("mrope", "beartype.beartype(conf=beartype.BeartypeConf(is_pep484_tower=True))")

# Commands that tests start inherit the environment; this process has loaded torch already.
os.environ |= {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _seeds() -> None:
    random.seed(0)
    numpy.random.seed(0)
    torch.manual_seed(0)
