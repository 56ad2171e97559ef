"""Which device to compute on."""

from __future__ import annotations

import torch

DEVICES = ("auto", "cpu", "cuda")


def choose_device(name: str) -> str:
    """Turn "auto", "cpu" or "cuda" into "cpu" or "cuda"; "auto" takes a GPU where there is one.

    Raises:
        ValueError: the name is none of these, or "cuda" is asked for where PyTorch finds no GPU.
    """
    if name not in DEVICES:
        raise ValueError(f"device is {name!r}; expected one of {', '.join(DEVICES)}")
    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cuda" and not torch.cuda.is_available():
        raise ValueError("device is 'cuda', but PyTorch finds no GPU here; use 'cpu' or 'auto'")
    return name


def check_device(device: torch.device | str | None) -> None:
    """Refuse a device that torch does not find here."""
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, TypeError) as error:
        why = (str(error).splitlines() or [type(error).__name__])[0]
        raise ValueError(f"device is {str(device)!r}; expected one that torch finds here ({why})") from None
