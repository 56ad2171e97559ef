"""Pictures and clips at native resolution: sizes planned from headers, pixels to patches and back."""

from .clips import Clip, clip_of, read_clip
from .encoder import WindowEncoder
from .fitting import Conflict
from .fold import fold_normalization
from .from_timm import from_timm
from .load import load, measure
from .packing import PackedRows, cu_seqlens, pack_patches, patch_ids
from .patches import Patches, patchify, patchify_video, unpatchify
from .pdf import PdfPage, pdf_pages
from .plan import Part, Plan, Resized
from .planning import SizePlans, plan, plan_sizes, plan_video
from .reels import ClipSize, measure_clip
from .tables import Aspect, TableKind, axis_weights, resample_table, table_for
from .vit import Features, VisionEncoder, VitConfig

__all__ = [
    "Aspect",
    "Clip",
    "ClipSize",
    "Conflict",
    "Features",
    "PackedRows",
    "Part",
    "Patches",
    "PdfPage",
    "Plan",
    "Resized",
    "SizePlans",
    "TableKind",
    "VisionEncoder",
    "VitConfig",
    "WindowEncoder",
    "axis_weights",
    "clip_of",
    "cu_seqlens",
    "fold_normalization",
    "from_timm",
    "load",
    "measure",
    "measure_clip",
    "pack_patches",
    "patch_ids",
    "patchify",
    "patchify_video",
    "pdf_pages",
    "plan",
    "plan_sizes",
    "plan_video",
    "read_clip",
    "resample_table",
    "table_for",
    "unpatchify",
]
