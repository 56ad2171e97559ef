"""What commands read from files: a saved batch, and the model of a checkpoint folder."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from mrope.hf.checkup.subject import model_class, read_subject

BESIDE = ("image_sizes", "boxes")  # what a saved batch may hold for `mrope doctor`, and no model takes


def load_batch(given: Mapping[str, Any] | str | os.PathLike[str]) -> Mapping[str, Any]:
    """A batch by name, or the one in a file that `torch.save(dict(inputs), file)` wrote.

    Raises:
        OSError: the file cannot be read.
        ValueError: it holds something else.
    """
    if isinstance(given, Mapping):
        return given
    try:
        loaded = torch.load(Path(given), map_location="cpu", weights_only=True)
    except OSError:
        raise
    except Exception:  # of the file's pickle, whatever stands in it
        raise ValueError(
            f"{given} holds no plain tensors by name; save it with torch.save(dict(inputs), file)"
        ) from None
    if not isinstance(loaded, Mapping):
        raise ValueError(f"{given} holds a {type(loaded).__name__}; expected a dict of tensors by name")
    return loaded


def load_model(folder: str | os.PathLike[str]) -> Any:
    """The model of a checkpoint folder, of a family or built by `build_vlm`, on the CPU and in eval mode.

    The dtype is that of its weights.

    Raises:
        OSError, TypeError, ValueError: the folder is no such checkpoint.
    """
    if not Path(folder).is_dir():
        raise ValueError(f"{folder} is not a folder; expected a checkpoint folder with config.json")
    import mrope.vlm.model  # noqa: F401  # makes built models known to transformers

    config = read_subject(folder).config
    return model_class(config).from_pretrained(folder, config=config, local_files_only=True, dtype="auto").eval()
