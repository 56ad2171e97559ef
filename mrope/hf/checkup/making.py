"""The processor of a model: its folder's own, or one of the library's class."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

# What processors ask their tokenizer for.
_SPECIAL = {
    "image_token": "<|image_pad|>",
    "video_token": "<|video_pad|>",
    "audio_token": "<|audio_pad|>",
    "vision_start_token": "<|vision_start|>",
    "vision_end_token": "<|vision_end|>",
    "vision_bos_token": "<|vision_start|>",
    "vision_eos_token": "<|vision_end|>",
    "audio_bos_token": "<|audio_start|>",
    "audio_eos_token": "<|audio_end|>",
    "image_start_token": "<image>",
    "image_end_token": "</image>",
    "slice_start_token": "<slice>",
    "slice_end_token": "</slice>",
    "image_id_start_token": "<image_id>",
    "image_id_end_token": "</image_id>",
    "video_start_token": "<|VIDEO_START|>",
    "video_end_token": "<|VIDEO_END|>",
    "begin_of_video_token": "<|begin_of_video|>",
    "end_of_video_token": "<|end_of_video|>",
    "begin_of_image_token": "<|begin_of_image|>",
    "end_of_image_token": "<|end_of_image|>",
    "grid_bos_token": "<sop>",
    "grid_eos_token": "<eop>",
}
_COMPASS = {  # Cohere Compass writes them in capitals
    "image_token": "<|IMAGE_PAD|>",
    "video_token": "<|VIDEO_PAD|>",
    "vision_start_token": "<|VISION_START|>",
    "vision_end_token": "<|VISION_END|>",
}
# The checkpoints of these have the processor of another model type, and the library names none.
_AS = {
    "qwen3_vl_moe": "qwen3_vl",
    "cosmos3_omni": "qwen3_vl",
    "glm4v_moe": "glm4v",
    "glm_ocr": "glm46v",
    "glmga": "glm46v",
}
_TOKENIZERS = ("tokenizer.json", "tokenizer_config.json", "vocab.json")


def own_processor(folder: Path) -> Any:
    """The processor in a folder; None where it is not whole."""
    from transformers import AutoProcessor

    if not any((folder / name).exists() for name in _TOKENIZERS):
        return None
    try:
        own = AutoProcessor.from_pretrained(folder, local_files_only=True)
    except Exception:  # the library raises whatever its files run into
        return None
    return own if hasattr(own, "tokenizer") else None


@cache
def made_processor(model_type: str) -> Any:
    """The class of the library, with a tokenizer of a few words.

    Raises:
        ValueError: the library names none for this model type.
    """
    import transformers
    from transformers.models.auto.image_processing_auto import IMAGE_PROCESSOR_MAPPING
    from transformers.models.auto.processing_auto import PROCESSOR_MAPPING
    from transformers.models.auto.video_processing_auto import VIDEO_PROCESSOR_MAPPING

    config: Any = transformers.CONFIG_MAPPING[model_type]
    stem = config.__name__.removesuffix("Config")
    key: Any = transformers.CONFIG_MAPPING[_AS.get(model_type, model_type)]
    if key not in PROCESSOR_MAPPING or key not in IMAGE_PROCESSOR_MAPPING:
        raise ValueError(f"transformers {transformers.__version__} names no processor for {model_type}")

    def part(suffix: str, mapping: Any) -> Any:
        found = getattr(transformers, stem + suffix, None) or mapping[key]
        found = found["torchvision"] if isinstance(found, dict) else found
        return (found[-1] if isinstance(found, tuple) else found)()  # (slow, fast) in old versions

    parts: dict[str, Any] = {
        "image_processor": part("ImageProcessor", IMAGE_PROCESSOR_MAPPING),
        "tokenizer": _tokenizer("compass" in model_type),
    }
    if key in VIDEO_PROCESSOR_MAPPING:
        parts["video_processor"] = part("VideoProcessor", VIDEO_PROCESSOR_MAPPING)
        if hasattr(parts["video_processor"], "draw_on_frames"):
            parts["video_processor"].draw_on_frames = False  # Ernie's stamps, which need a font
    if "omni" in model_type and "cosmos" not in model_type:
        parts["feature_extractor"] = transformers.WhisperFeatureExtractor()
    made: Any = PROCESSOR_MAPPING[key]
    return made(**parts)


@cache
def _tokenizer(capitals: bool) -> Any:
    """Of special words, and one word for all others."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    special = _SPECIAL | (_COMPASS if capitals else {})
    words = {word: number for number, word in enumerate(("<unk>", *dict.fromkeys(special.values())))}
    split = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    split.pre_tokenizer = pre_tokenizers.Whitespace()  # pyright: ignore[reportAttributeAccessIssue]
    return PreTrainedTokenizerFast(
        tokenizer_object=split, unk_token="<unk>", pad_token="<unk>", extra_special_tokens=special
    )
