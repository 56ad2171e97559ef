"""Pictures and clips at native resolution: sizes planned from headers, pixels to patches and back."""

from .advise import Advice, advise
from .boxes import clipped, rounded
from .budget import WorstCase, plan_many, worst_case
from .clips import Clip, clip_of, read_clip
from .draw import draw
from .encoder import WindowEncoder
from .explain import explain
from .fitting import Conflict
from .fold import fold_normalization
from .from_timm import from_timm
from .labels import LabelTransform, transform_labels
from .load import load, measure
from .packing import PackedRows, cu_seqlens, pack_patches, patch_ids
from .patches import Patches, patchify, patchify_video, unpatchify
from .pdf import PdfPage, pdf_pages
from .plan import Part, Plan, Resized
from .planning import SizePlans, plan, plan_sizes, plan_video
from .pool import Failure, PatchStream, patchify_all
from .reels import ClipSize, measure_clip
from .regions import Crop, crop, patch_regions, region, token_frames, token_grids, token_map, token_regions, tokens_in
from .scan import Scan, Scanned, Summary, scan, summarize
from .tables import Aspect, TableKind, axis_weights, resample_table, table_for
from .vit import Features, VisionEncoder, VitConfig

__all__ = [
    "Advice",
    "Aspect",
    "Clip",
    "ClipSize",
    "Conflict",
    "Crop",
    "Failure",
    "Features",
    "LabelTransform",
    "PackedRows",
    "Part",
    "PatchStream",
    "Patches",
    "PdfPage",
    "Plan",
    "Resized",
    "Scan",
    "Scanned",
    "SizePlans",
    "Summary",
    "TableKind",
    "VisionEncoder",
    "VitConfig",
    "WindowEncoder",
    "WorstCase",
    "advise",
    "axis_weights",
    "clip_of",
    "clipped",
    "crop",
    "cu_seqlens",
    "draw",
    "explain",
    "fold_normalization",
    "from_timm",
    "load",
    "measure",
    "measure_clip",
    "pack_patches",
    "patch_ids",
    "patch_regions",
    "patchify",
    "patchify_all",
    "patchify_video",
    "pdf_pages",
    "plan",
    "plan_many",
    "plan_sizes",
    "plan_video",
    "read_clip",
    "region",
    "resample_table",
    "rounded",
    "scan",
    "summarize",
    "table_for",
    "token_frames",
    "token_grids",
    "token_map",
    "token_regions",
    "tokens_in",
    "transform_labels",
    "unpatchify",
    "worst_case",
]
