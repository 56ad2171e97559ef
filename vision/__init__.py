"""Pictures and clips at native resolution: sizes planned from headers, pixels to patches and back."""

from .cutting.fold import fold_normalization
from .cutting.normalize import normalize
from .cutting.packing import PackedRows, cu_seqlens, pack_patches, patch_ids
from .cutting.patches import Patches, patchify, patchify_video, unpatchify
from .cutting.pool import Failure, PatchStream, patchify_all
from .cutting.resize import resize
from .encoders.encoder import WindowEncoder
from .encoders.from_timm import from_timm
from .encoders.tables import Aspect, TableKind, axis_weights, resample_table, table_for
from .encoders.vit import Features, VisionEncoder, VitConfig
from .loading.clips import Clip, clip_of, read_clip
from .loading.files import MAX_PIXELS
from .loading.load import decode_jpeg_on, load, measure
from .loading.pdf import PdfPage, pdf_pages, render
from .loading.reels import ClipSize, measure_clip
from .places.draw import draw
from .places.labels import LabelTransform, transform_labels
from .places.regions import (
    Crop,
    crop,
    patch_regions,
    region,
    token_frames,
    token_grids,
    token_map,
    token_regions,
    tokens_in,
)
from .plans.advise import NEEDS, Advice, Task, advise, x_heights
from .plans.boxes import clipped, into_window, rounded, turned
from .plans.budget import WorstCase, plan_many, worst_case
from .plans.explain import explain, settings
from .plans.fitting import Conflict
from .plans.plan import Part, Plan, Resized
from .plans.planning import SizePlans, plan, plan_sizes, plan_video
from .plans.scan import (
    BROKEN_SHARD,
    PICTURES,
    Scan,
    Scanned,
    Summary,
    header_of,
    matching,
    row_paths,
    scan,
    shard_members,
    summarize,
    unbraced,
    walk,
)

__all__ = [
    "BROKEN_SHARD",
    "MAX_PIXELS",
    "NEEDS",
    "PICTURES",
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
    "header_of",
    "into_window",
    "load",
    "matching",
    "measure",
    "measure_clip",
    "normalize",
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
    "row_paths",
    "scan",
    "settings",
    "shard_members",
    "summarize",
    "table_for",
    "token_frames",
    "token_grids",
    "token_map",
    "token_regions",
    "tokens_in",
    "transform_labels",
    "turned",
    "unbraced",
    "unpatchify",
    "walk",
    "worst_case",
    "x_heights",
]
