"""Pictures and clips at native resolution: sizes planned from headers, pixels to patches and back."""

from .encoder import WindowEncoder
from .load import load
from .patches import Patches, patchify, patchify_video, unpatchify
from .plan import Plan
from .planning import plan, plan_video
from .sizes import clip_size, picture_size

__all__ = [
    "Patches",
    "Plan",
    "WindowEncoder",
    "clip_size",
    "load",
    "patchify",
    "patchify_video",
    "picture_size",
    "plan",
    "plan_video",
    "unpatchify",
]
