"""The rotation of queries and keys: eager torch is the specification, Numba and Triton do the same faster."""

from mrope.ops.dispatch import Impl, choose, rotate_qk, rotate_qk_, rotate_qk_from_ids
from mrope.ops.eager import Pairing, angles, rotate

__all__ = ["Impl", "Pairing", "angles", "choose", "rotate", "rotate_qk", "rotate_qk_", "rotate_qk_from_ids"]
