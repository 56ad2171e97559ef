"""Pictures and clips at native resolution: sizes planned from headers, pixels to patches and back."""

from .encoder import WindowEncoder
from .load import load
from .patches import Patches, patchify, patchify_video, unpatchify
from .fitting import Conflict
from .plan import Part, Plan
from .planning import Resized, SizePlans, plan, plan_sizes, plan_video

__all__ = [
    "Conflict",
    "Part",
    "Patches",
    "Plan",
    "Resized",
    "SizePlans",
    "WindowEncoder",
    "load",
    "patchify",
    "patchify_video",
    "plan",
    "plan_sizes",
    "plan_video",
    "unpatchify",
]
