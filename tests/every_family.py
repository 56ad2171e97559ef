"""Every family of transformers with positions on several axes: a tiny configuration, batches, and an oracle.

Models are built on the meta device: a rope index reads the configuration and no weight.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

import torch
import transformers
from layout_cases import CASES, Case
from torch import Tensor

from mrope import Audio, Image, Sliced, Span, Target, Text, Video, family
from mrope.layouts import OmniLayout

IMG, VID, AUD = 500, 501, 502
VISION_START, VISION_END, AUDIO_START, AUDIO_END = 503, 504, 505, 506
IMAGE_START, IMAGE_END, VIDEO_START, VIDEO_END = 507, 508, 509, 510
SLICE_START, SLICE_END, NEWLINE, DOCUMENT = 496, 497, 498, 5
_SHAPES: dict[str, Any] = {"num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1}
_WORD_IDS: dict[str, Any] = {"vocab_size": 512, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
_TEXT: dict[str, Any] = {"hidden_size": 256, "intermediate_size": 64, "head_dim": 128, **_SHAPES, **_WORD_IDS}
_EXPERTS: dict[str, Any] = {"moe_intermediate_size": 32, "num_experts": 4, "num_experts_per_tok": 2}
_HYBRID: dict[str, Any] = {
    "head_dim": 256,
    "num_hidden_layers": 2,
    "layer_types": ["linear_attention", "full_attention"],
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
}
_SPARSE = "qwen_sparse_attention" if transformers.__version__.startswith("5.17.") else "indexed_attention"
_VISION: dict[str, Any] = {"depth": 1, "hidden_size": 32, "intermediate_size": 64, "num_heads": 2, "patch_size": 16}
_SIGLIP: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "patch_size": 16,
}
_SOUND: dict[str, Any] = {
    "encoder_layers": 1,
    "encoder_attention_heads": 2,
    "encoder_ffn_dim": 32,
    "d_model": 32,
    "num_mel_bins": 16,
}


def _rope(*section: int, **more: Any) -> dict[str, Any]:
    return {"rope_parameters": {"rope_type": "default", "rope_theta": 1e6, "mrope_section": list(section), **more}}


# model_type -> (class that owns the rope index, text, vision and further arguments of the configuration)
_CONFIGS: dict[str, tuple[str, dict[str, Any], dict[str, Any], dict[str, Any]]] = {
    "qwen2_vl": ("Qwen2VLModel", _rope(16, 24, 24), {"embed_dim": 32}, {}),
    "qwen2_5_vl": ("Qwen2_5_VLModel", _rope(16, 24, 24), {"tokens_per_second": 2}, {}),
    "qwen3_vl": ("Qwen3VLModel", _rope(24, 20, 20), {}, {}),
    "qwen3_vl_moe": ("Qwen3VLMoeModel", {**_rope(24, 20, 20), **_EXPERTS}, {}, {}),
    "qwen3_5": ("Qwen3_5Model", {**_HYBRID, **_rope(11, 11, 10, partial_rotary_factor=0.25)}, {}, {}),
    "qwen3_5_moe": (
        "Qwen3_5MoeModel",
        {**_HYBRID, **_rope(11, 11, 10, partial_rotary_factor=0.25), **_EXPERTS, "shared_expert_intermediate_size": 32},
        {},
        {},
    ),
    "qwen4_exp": (
        "Qwen4ExpModel",
        {
            **_HYBRID,
            **_rope(11, 11, 10, partial_rotary_factor=0.25),
            **_EXPERTS,
            "shared_expert_intermediate_size": 32,
            "layer_types": ["linear_attention", _SPARSE],
            "indexer_n_heads": 2,
            "indexer_kv_heads": 1,
            "indexer_head_dim": 64,
            "indexer_budget": 16,
            "indexer_compress_ratio": 4,
        },
        {},
        {},
    ),
    "glm4v": ("Glm4vModel", _rope(8, 12, 12, partial_rotary_factor=0.5), {}, {}),
    "glm46v": (
        "Glm46VModel",
        {"model_type": "glm4v_text", **_rope(8, 12, 12, partial_rotary_factor=0.5)},
        {"model_type": "glm4v_vision"},
        {},
    ),
    "glmga": (
        "GlmgaModel",
        {"model_type": "glm4v_text", **_rope(8, 12, 12, partial_rotary_factor=0.5)},
        {"model_type": "glm4v_vision"},
        {},
    ),
    "glm4v_moe": ("Glm4vMoeModel", _rope(8, 12, 12, partial_rotary_factor=0.5), {}, {}),
    "glm_ocr": ("GlmOcrModel", _rope(16, 24, 24), {}, {}),
    "glm_image": (
        "GlmImageModel",
        {**_rope(8, 12, 12, partial_rotary_factor=0.5), "vision_vocab_size": 512},
        {"image_size": 64},
        {},
    ),
    "cohere_compass": (
        "CohereCompassModel",
        {
            "layer_types": ["full_attention"],
            "rope_parameters": {"full_attention": _rope(24, 20, 20)["rope_parameters"]},
        },
        {},
        {},
    ),
    "cosmos3_omni": ("Cosmos3OmniModel", _rope(24, 20, 20), {}, {}),
    "cosmos3_edge": ("Cosmos3EdgeModel", _rope(24, 20, 20), {**_SIGLIP, "num_patches": 16}, {}),
    "ernie4_5_vl_moe": ("Ernie4_5_VLMoeModel", {**_rope(22, 22, 20), "moe_intermediate_size": [32, 16]}, {}, {}),
    "paddleocr_vl": ("PaddleOCRVLModel", _rope(16, 24, 24), {**_SIGLIP, "image_size": 56}, {}),
    "hunyuan_vl": (
        "HunYuanVLModel",
        _rope(16, 16, 16, 16),
        {**_SIGLIP, "max_image_size": 128, "text_hidden_size": 256, "out_hidden_size": 256},
        {"im_start_id": IMAGE_START, "im_end_id": IMAGE_END, "im_newline_id": NEWLINE},
    ),
    "hy_v4_vl": (
        "HYV4VLModel",
        {**_rope(12, 10, 10), "qk_rope_head_dim": 64, "n_routed_experts": 4, "num_experts_per_tok": 2},
        {**_SIGLIP, "max_image_size": 128, "out_hidden_size": 256},
        {},
    ),
    "minicpmv4_7": (
        "MiniCPMV4_7Model",
        {"model_type": "qwen3_5_text", **_HYBRID, **_rope(11, 11, 10, partial_rotary_factor=0.25)},
        {**_SIGLIP, "image_size": 64},
        {
            "insert_layer_id": 0,
            "image_start_id": IMAGE_START,
            "image_end_id": IMAGE_END,
            "slice_start_id": SLICE_START,
            "slice_end_id": SLICE_END,
            "newline_id": NEWLINE,
        },
    ),
    "qwen2_5_omni_thinker": (
        "Qwen2_5OmniThinkerModel",
        _rope(16, 24, 24),
        {},
        {"audio_config": {**_SOUND, "output_dim": 256}},
    ),
    "qwen3_omni_moe_thinker": (
        "Qwen3OmniMoeThinkerModel",
        {**_rope(24, 20, 20), **_EXPERTS},
        {},
        {
            "audio_config": {**_SOUND, "output_dim": 256, "downsample_hidden_size": 8},
            "position_id_per_seconds": 13,  # as released; the class default is 25
        },
    ),
}
MODEL_TYPES = (*_CONFIGS, "neomme")
_WORDS = {
    "vision_start_token_id": VISION_START,
    "vision_end_token_id": VISION_END,
    "audio_start_token_id": AUDIO_START,
    "audio_end_token_id": AUDIO_END,
}
_GLM = ("glm4v", "glm46v", "glmga", "glm4v_moe", "glm_ocr", "ernie4_5_vl_moe")


def installed(model_type: str) -> bool:
    """Whether this transformers has the family."""
    return model_type in transformers.CONFIG_MAPPING


@functools.cache
def config_of(model_type: str) -> Any:
    """A tiny configuration with the real head and rotary split, the same small vocabulary in all families."""
    make: Any = transformers.CONFIG_MAPPING[model_type]
    if model_type == "neomme":
        return make(vocab_size=512, image_token_id=IMG, document_token_id=DOCUMENT)
    _, text, vision, more = _CONFIGS[model_type]
    words: dict[str, Any] = dict(_WORDS)
    if model_type in _GLM or model_type == "glm_image":
        words = {"image_start_token_id": IMAGE_START, "image_end_token_id": IMAGE_END}
        if model_type in _GLM:
            words |= {"video_start_token_id": VIDEO_START, "video_end_token_id": VIDEO_END}
    suffix = "token_index" if "2_5_omni" in model_type else "token_id"
    words |= {f"image_{suffix}": IMG, f"video_{suffix}": VID, f"audio_{suffix}": AUD}
    if model_type in ("hunyuan_vl", "glm_image"):
        del words[f"video_{suffix}"]
    if "omni_" not in model_type or "cosmos" in model_type:
        words = {name: word for name, word in words.items() if "audio" not in name}
    vision = vision if "hidden_size" in vision else {**_VISION, **vision}
    return make(text_config={**_TEXT, **text}, vision_config=vision, **words, **more)


@functools.cache
def model_of(model_type: str) -> Any:
    """The transformers model that owns the rope index, without weights."""
    with torch.device("meta"):
        return _model_class(model_type)(config_of(model_type))


def _model_class(model_type: str) -> Any:
    name = _CONFIGS[model_type][0]
    if hasattr(transformers, name):
        return getattr(transformers, name)
    return transformers.MODEL_MAPPING[type(config_of(model_type))]


# ------------------------------------------------------------------------------------------------------------ batches


@dataclass(frozen=True)
class Batch:
    """What a rope index takes, and the spans that it was made from."""

    inputs: dict[str, Any]
    rows: tuple[tuple[Span, ...], ...]


STAMPED = (
    "qwen3_vl",
    "qwen3_vl_moe",
    "qwen3_5",
    "qwen3_5_moe",
    "qwen4_exp",
    "glm4v",
    "glm46v",
    "glmga",
    "glm4v_moe",
    "glm_ocr",
    "cohere_compass",
    "cosmos3_omni",
    "cosmos3_edge",
)
OMNI = ("qwen2_5_omni_thinker", "qwen3_omni_moe_thinker")
_CASES = {
    **dict.fromkeys(STAMPED, "grid, stamps"),
    "qwen2_vl": "grid",
    "qwen2_5_vl": "grid, seconds",
    "paddleocr_vl": "grid, seconds",
    "ernie4_5_vl_moe": "grid, temporal merge",
    "qwen2_5_omni_thinker": "omni, chunks",
    "qwen3_omni_moe_thinker": "omni, time",
    "glm_image": "generation",
    "hunyuan_vl": "xd",
    "hy_v4_vl": "newline",
    "minicpmv4_7": "canvas",
    "neomme": "page",
}


def case_of(model_type: str) -> Case:
    """The rule that the family was trained with, with its oracle."""
    return CASES[_CASES[model_type]]


def trained_rows_of(model_type: str, rng: Random) -> list[list[Span]]:
    """`rows_of` for the trained rule: PaddleOCR-VL has clips by the clock, for which the library has no rule."""
    return rows_of("qwen2_5_vl" if model_type == "paddleocr_vl" else model_type, rng)


def rows_of(model_type: str, rng: Random, most: int = 3) -> list[list[Span]]:
    """One to `most` random rows: text between the media, as the library needs it, with room for words around them."""
    if model_type == "neomme":
        pages: list[list[Span]] = [[_medium(model_type, rng)] for _ in range(rng.randint(1, most - 1))]
        return rng.sample([*pages, [Text(rng.randint(1, 9))]], k=len(pages) + 1)
    # The flag of the omni models: all clips of a batch have sound, or none.
    with_sound = model_type in OMNI and rng.random() < 0.5
    rows: list[list[Span]] = []
    for _ in range(rng.randint(1, most)):
        row: list[Span] = [Text(rng.randint(2, 6))]
        for _ in range(rng.randint(0, 3)):
            row += [_medium(model_type, rng, with_sound), Text(rng.randint(2, 6))]
        if model_type == "glm_image":
            row += [Target(_grid(rng, 1, 6)) for _ in range(rng.randint(0, 2))]
        rows.append(row)
    return rows


def _grid(rng: Random, merge: int, most: int, steps: int = 1) -> tuple[int, int, int]:
    return rng.randint(1, steps), merge * rng.randint(1, most), merge * rng.randint(1, most)


def _medium(model_type: str, rng: Random, with_sound: bool = False) -> Span:
    """A picture, clip or sound as the family declares it, t > 1 and h != w among them."""
    if model_type == "minicpmv4_7":
        newlines = rng.randint(0, 2)
        if rng.random() < 0.5:
            return Sliced(_grid(rng, 4, 5), newlines=newlines)
        return Sliced(_grid(rng, 4, 5), (rng.randint(1, 3), rng.randint(1, 3)), _grid(rng, 4, 5), newlines)
    if model_type in ("glm_image", "neomme"):
        return Image(_grid(rng, 1, 7))
    if model_type in ("paddleocr_vl", "hunyuan_vl") or rng.random() < 0.4:
        return Image(_grid(rng, 2, 5))
    clip = _grid(rng, 2, 5, steps=7)
    seconds = rng.randint(1, 40) / 8  # eighths are exact in any float
    if model_type in OMNI and not with_sound and rng.random() < 0.4:
        return Audio(rng.randint(1, 60))
    if model_type in OMNI:
        return Video(clip, seconds=seconds, audio=rng.randint(1, 120) if with_sound else None)
    if model_type == "qwen2_5_vl":
        return Video(clip, seconds=seconds)
    if model_type in STAMPED:
        return Video(clip, stamp=rng.randint(1, 5))
    return Video((2 * clip[0], *clip[1:])) if model_type == "ernie4_5_vl_moe" else Video(clip)


def encode(model_type: str, rows: Sequence[Sequence[Span]], *, side: str = "left", seed: int = 0) -> Batch:
    """A batch of `rows` as the family's processor would make it, with random words as text."""
    generator = torch.Generator().manual_seed(seed)
    encoder = _Encoder(model_type, generator)
    encoded = [encoder.row(row) for row in rows]
    tokens = [torch.tensor(words) for words, _ in encoded]
    kinds = [torch.tensor(types, dtype=torch.int32) for _, types in encoded]
    inputs: dict[str, Any] = {
        "input_ids": _padded(tokens, side),
        "attention_mask": _padded([torch.ones_like(row) for row in tokens], side),
    }
    if model_type not in (*OMNI, "glm_image", "neomme"):
        inputs["mm_token_type_ids"] = _padded(kinds, side)
    return Batch(inputs | encoder.tables(rows), tuple(tuple(row) for row in rows))


def _padded(rows: Sequence[Tensor], side: str) -> Tensor:
    return torch.nn.utils.rnn.pad_sequence(list(rows), batch_first=True, padding_side=side)


class _Encoder:
    """Words and token types of spans, and the tables that come with them."""

    def __init__(self, model_type: str, generator: torch.Generator) -> None:
        self.model_type, self.generator = model_type, generator
        self.images: list[tuple[int, ...]] = []
        self.videos: list[tuple[int, ...]] = []
        self.seconds: list[float] = []
        self.sounds: list[int] = []
        self.crops: dict[int, list[tuple[int, int]]] = {1: [], 2: []}

    def row(self, spans: Sequence[Span]) -> tuple[list[int], list[int]]:
        words: list[int] = []
        kinds: list[int] = []
        for span in spans:
            more, types = self._span(span)
            if not isinstance(span, (Text, Target)) and words:
                start, end = self._around(span)
                if start is not None:
                    words[-1] = start
            elif isinstance(span, Text) and words and end is not None:
                more[0] = end
            end = None if isinstance(span, Text) else self._around(span)[1]
            words += more
            kinds += types
        return words, kinds

    def _around(self, span: Span) -> tuple[int | None, int | None]:
        """The words before and behind a span."""
        if isinstance(span, Audio):
            return AUDIO_START, AUDIO_END
        if self.model_type in OMNI and not (isinstance(span, Video) and span.audio is not None):
            return VISION_START, VISION_END
        if isinstance(span, Video) and self.model_type in _GLM:
            return VIDEO_START, VIDEO_END
        return (IMAGE_START, IMAGE_END) if self.model_type == "glm_image" else (None, None)

    def _text(self, count: int) -> list[int]:
        return torch.randint(10, 490, (count,), generator=self.generator).tolist()

    def _span(self, span: Span) -> tuple[list[int], list[int]]:
        if isinstance(span, Text):
            return self._text(span.length), [0] * span.length
        if isinstance(span, Audio):
            self.sounds.append(self._mel_frames(span.length))
            return [AUD] * span.length, [3] * span.length
        if isinstance(span, Sliced):
            return self._sliced(span)
        if isinstance(span, Target):
            return [], []
        if isinstance(span, Image):
            self.images.append(span.grid)
            if self.model_type == "neomme":
                _, h, w = span.grid
                words = [DOCUMENT, IMG, *([IMG] * w + [7]) * h]
                return words, [int(word == IMG) for word in words]
            count = self._tokens(span.grid)
            return [IMG] * count, [1] * count
        return self._video(span)

    def _video(self, span: Video) -> tuple[list[int], list[int]]:
        self.videos.append(span.grid)
        if span.seconds is not None:
            self.seconds.append(float(span.seconds))
        if span.audio is not None:
            self.sounds.append(self._mel_frames(span.audio))
            layout = family("qwen2.5-omni" if "2_5" in self.model_type else "qwen3-omni").layout
            assert isinstance(layout, OmniLayout)
            sound = layout.sound_of(span).tolist()
            words = [VISION_START, AUDIO_START, *(AUD if heard else VID for heard in sound), AUDIO_END, VISION_END]
            return words, [0, 0, *(3 if heard else 2 for heard in sound), 0, 0]
        word = IMG if self.model_type in _GLM and self.model_type != "ernie4_5_vl_moe" else VID
        if span.stamp is None:
            count = self._tokens(span.grid)
            return [word] * count, [2] * count
        assert isinstance(span.stamp, int)
        t, h, w = span.grid
        cells = self._tokens((1, h, w))
        words = [each for _ in range(t) for each in (*self._text(span.stamp), *[word] * cells)]
        return words, [each for _ in range(t) for each in (*[0] * span.stamp, *[2] * cells)]

    def _sliced(self, span: Sliced) -> tuple[list[int], list[int]]:
        kind = 1 + len(self.crops[1]) % 2  # frames of clips are pictures of another table
        word = {1: IMG, 2: VID}[kind]
        words: list[int] = []

        def crop(grid: tuple[int, int, int], start: int, end: int) -> None:
            self.crops[kind].append(grid[1:])
            words.extend((start, *[word] * (grid[1] * grid[2] // 16), end))

        crop(span.thumbnail, IMAGE_START, IMAGE_END)
        rows, cols = span.slices or (0, 0)
        for row in range(rows):
            for _ in range(cols):
                assert span.slice_grid is not None
                crop(span.slice_grid, SLICE_START, SLICE_END)
            words.extend([NEWLINE] * (row < rows - 1))
        words.extend([NEWLINE] * span.newlines)
        return words, [kind if each == word else 0 for each in words]

    def _tokens(self, grid: tuple[int, int, int]) -> int:
        t, h, w = grid
        return {
            "glm_image": h * w,
            "hunyuan_vl": (h // 2) * (w // 2 + 1) + 2,
            "hy_v4_vl": t * (h // 2) * (w // 2 + 1),
            "ernie4_5_vl_moe": max(t // 2, 1) * h * w // 4,
        }.get(self.model_type, t * h * w // 4)

    def _mel_frames(self, tokens: int) -> int:
        """A length of sound that becomes this many tokens."""
        return 4 * tokens if "2_5" in self.model_type else 100 * (tokens // 13) + 8 * (tokens % 13)

    def tables(self, rows: Sequence[Sequence[Span]]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        if self.model_type == "neomme":
            return {"image_grid_hw": [list(grid[1:]) for grid in self.images]}
        if self.model_type == "minicpmv4_7":
            names = {1: "target_sizes", 2: "target_sizes_videos"}
            return {names[kind]: torch.tensor(sizes) for kind, sizes in self.crops.items() if sizes}
        if self.model_type == "glm_image":
            grids_: list[tuple[int, ...]] = []
            for row in rows:
                grids_ += [span.grid for span in row if isinstance(span, Image)]
                grids_ += [span.grid for span in reversed(row) if isinstance(span, Target)]
            counts = [sum(isinstance(span, (Image, Target)) for span in row) for row in rows]
            return {"image_grid_thw": torch.tensor(grids_).view(-1, 3), "images_per_sample": torch.tensor(counts)}
        if self.images:
            found["image_grid_thw"] = torch.tensor(self.images)
        if self.videos:
            found["video_grid_thw"] = torch.tensor(self.videos)
        if self.seconds:
            found["second_per_grids" if self.model_type in OMNI else "second_per_grid_ts"] = torch.tensor(self.seconds)
        if self.sounds:
            found["audio_seqlens"] = torch.tensor(self.sounds)
        return found


def declared(model_type: str, rows: Sequence[Sequence[Span]]) -> list[list[Span]]:
    """`rows` as they are read back: clips with stamps frame by frame, and neighbouring text as one span."""
    read: list[list[Span]] = []
    for row in rows:
        spans: list[Span] = []
        for span in row:
            if isinstance(span, Video) and span.stamp is not None:
                for _ in range(span.grid[0]):
                    spans += [Text(int(span.stamp)), Video((1, *span.grid[1:]), stamp=0)]  # pyright: ignore[reportArgumentType]
            else:
                spans.append(span)
        joined: list[Span] = []
        for span in spans:
            last = joined[-1] if joined else None
            if isinstance(span, Text) and isinstance(last, Text):
                joined[-1] = Text(last.length + span.length)
            else:
                joined.append(span)
        read.append(joined)
    return read
