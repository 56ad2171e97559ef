"""Pictures and clips at native resolution: sizes planned from headers, pixels to patches and back."""

from .advise import NEEDS, Advice, Task, advise, x_heights
from .boxes import clipped, rounded
from .budget import WorstCase, plan_many, worst_case
from .clips import Clip, clip_of, read_clip
from .draw import draw
from .encoder import WindowEncoder
from .explain import explain, settings
from .files import MAX_PIXELS
from .fitting import Conflict
from .fold import fold_normalization
from .from_timm import from_timm
from .labels import LabelTransform, transform_labels
from .load import decode_jpeg_on, load, measure
from .packing import PackedRows, cu_seqlens, pack_patches, patch_ids
from .patches import Patches, patchify, patchify_video, unpatchify
from .pdf import PdfPage, pdf_pages, render
from .plan import Part, Plan, Resized
from .planning import SizePlans, plan, plan_sizes, plan_video
from .pool import Failure, PatchStream, patchify_all
from .reels import ClipSize, measure_clip
from .regions import Crop, crop, patch_regions, region, token_frames, token_grids, token_map, token_regions, tokens_in
from .resize import resize
from .scan import Scan, Scanned, Summary, scan, summarize
from .tables import Aspect, TableKind, axis_weights, resample_table, table_for
from .vit import Features, VisionEncoder, VitConfig

__all__ = [
    "MAX_PIXELS",
    "NEEDS",
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
    "Task",
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
    "decode_jpeg_on",
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
    "render",
    "resample_table",
    "resize",
    "rounded",
    "scan",
    "settings",
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
    "x_heights",
]
