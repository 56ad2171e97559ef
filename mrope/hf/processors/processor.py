"""A processor of transformers whose pictures are planned, decoded and cut here.

Everything else is the family's own processor: words, chat template, decoding, saving.
"""

from __future__ import annotations

import inspect
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from mrope.families import Family, family, family_names
from mrope.families.settings import Kind, options_of
from mrope.hf.processors.pixels import (
    Images,
    Made,
    Videos,
    clips_of,
    framed,
    held,
    named,
    pictures_of,
    planning,
    subclass,
    turned_into,
)
from mrope.hf.processors.settings import limits_words, stated_in, template_in
from mrope.hf.reading import read_positions, record_of
from mrope.layouts import CanvasLayout, OmniLayout, XdLayout
from mrope.vision import Plan

_QWEN2 = ("Qwen2VLImageProcessor", "Qwen2VLVideoProcessor")
_QWEN3 = ("Qwen3VLProcessor", "Qwen2VLImageProcessor", "Qwen3VLVideoProcessor")
_GLM4V = ("Glm4vProcessor", "Glm4vImageProcessor", "Glm4vVideoProcessor")
_GLM46V = ("Glm46VProcessor", "Glm46VImageProcessor", "Glm46VVideoProcessor")
_CLASSES: dict[str, tuple[str, ...]] = {
    "qwen2-vl": ("Qwen2VLProcessor", *_QWEN2),
    "qwen2.5-vl": ("Qwen2_5_VLProcessor", *_QWEN2),
    "qwen2.5-omni": ("Qwen2_5OmniProcessor", *_QWEN2),
    "qwen3-omni": ("Qwen3OmniMoeProcessor", *_QWEN2),
    **dict.fromkeys(("qwen3-vl", "qwen3.5", "qwen4-exp", "cosmos3-omni"), _QWEN3),
    "cosmos3-edge": ("Cosmos3EdgeProcessor", "Cosmos3EdgeImageProcessor", "Cosmos3EdgeVideoProcessor"),
    "cohere-compass": ("CohereCompassProcessor", "CohereCompassImageProcessor", "CohereCompassVideoProcessor"),
    **dict.fromkeys(("glm4v", "glm4v-moe"), _GLM4V),
    **dict.fromkeys(("glm46v", "glm-ocr"), _GLM46V),
    "glmga": ("Glm46VProcessor", "GlmgaImageProcessor", "GlmgaVideoProcessor"),
    "glm-image": ("GlmImageProcessor", "GlmImageImageProcessor"),
    "ernie4.5-vl": ("Ernie4_5_VLMoeProcessor", "Ernie4_5_VLMoeImageProcessor", "Ernie4_5_VLMoeVideoProcessor"),
    "paddleocr-vl": ("PaddleOCRVLProcessor", "PaddleOCRVLImageProcessor"),
    "hunyuan-vl": ("HunYuanVLProcessor", "HunYuanVLImageProcessor"),
    "hy-v4-vl": ("HYV4VLProcessor", "HYV4VLImageProcessor", "HYV4VLVideoProcessor"),
    "minicpm-v4.7": ("MiniCPMV4_7Processor", "MiniCPMV4_6ImageProcessor", "MiniCPMV4_6VideoProcessor"),
    "neomme": ("NeoMMEProcessor", "NeoMMEImageProcessor"),
}
"""Family -> the names of its processor, image processor and video processor in transformers."""


@dataclass(frozen=True, slots=True)
class PlannedPrompt:
    """What becomes of the pictures and clips of a prompt, or of a batch, before any is decoded.

    Args:
        images: the plan of each picture, in order.
        videos: the plan of each clip, in order.
        tokens: of each row, padding left out.
    """

    images: tuple[Plan, ...]
    videos: tuple[Plan, ...]
    tokens: tuple[int, ...]


def processor(source: Any, *, tokenizer: Any = None) -> Any:
    """The family's processor of transformers, with our plans and patches in it.

    It is called like that one, and gives the same keys and numbers: `input_ids`, `attention_mask`,
    `mm_token_type_ids`, `pixel_values`, `image_grid_thw` and what else the family has. It is an instance of the
    family's class, with `apply_chat_template`, `decode`, `batch_decode` and `save_pretrained`, and more:

    - pictures and clips may be all that `mrope.vision.load` and `read_clip` take; `load` says how they are decoded
      (upright, over white). A file is decoded once, straight into its patches. Frames of a clip are picked by their
      number and told by number / fps, as transformers does.
    - `return_positions=True` in a call adds `position_ids` (axes, rows, tokens), by the rule that the weights were
      trained with, which the model's forward and `generate` take; the rows must have one length.
    - `plan(messages)` gives the plans and the number of tokens before any pixel is loaded. A `Plan` maps boxes:
      `plan.images[0].decode_boxes(written)` are pixels of the picture.
    - `family` is the record with the limits of the pictures; `sources` says where limits, tokenizer and template are
      from.

    Sizes follow the family's rule even where it passes the upper limit. Where transformers 5.24 leaves what the weights
    were trained with, that holds: the pair of markers that a chat template writes around a clip goes where each frame
    has its own (Qwen3-VL and those with its processor, Cohere Compass), a clip may have one frame (Qwen3-VL), frames
    are sampled without `fps` as the family does (Qwen2-VL), the metadata that are given are not written to, and
    Cosmos3-Edge gives `mm_token_type_ids` and takes clips.

    Frames that are not to be sampled (`do_sample_frames=False`) and come without metadata count as 24 a second, as in
    transformers; `mrope.vision.clip_of(frames, fps=2)` knows better.

    Refused is what transformers takes and the weights were not trained with, or what would have to be guessed:
    `do_resize=False` where the family would resize a picture or clip (a size that it keeps is taken, so that those of
    qwen-vl-utils are), `do_rescale=False`, `do_normalize=False`, another `resample` or `rescale_factor`; pixels in
    floating point that are neither shares from 0 to 1 nor whole numbers of 0 to 255; media without a placeholder each;
    and frames that are to be sampled and come without their frame rate (Qwen3-VL; `mrope.vision.clip_of` makes a clip
    of frames that were picked already).

    Args:
        source: a checkpoint's folder, whose own files give limits, tokenizer and chat template, with its config.json;
            or the name of a family or its record, whose limits count; or a model that `build_vlm` made of a family,
            or its configuration. What comes of such a model is saved into its folder, which is a source from then on.
        tokenizer: of transformers, with the family's special tokens; needed with a family or a built model, and instead
            of a folder's.

    Raises:
        TypeError: the source or the tokenizer is of another kind.
        ValueError: neither a folder nor a family; no tokenizer; a setting of a checkpoint that is not built here; or
            this version of transformers does not have the family's processor.
    """
    if tokenizer is not None and not hasattr(tokenizer, "convert_tokens_to_ids"):
        raise TypeError(f"tokenizer is {tokenizer!r:.80}; expected a tokenizer of transformers")
    built = getattr(getattr(source, "config", source), "record", None)  # of a model that build_vlm made
    if isinstance(built, Family):
        source = built
    if isinstance(source, Family) or source in family_names():
        record = source if isinstance(source, Family) else family(str(source))
        if tokenizer is None:
            raise ValueError(f"tokenizer is None; expected one with the special tokens of {record.name}, or a folder")
        return _filled(_of_record(record, tokenizer), record, None, None)
    if not isinstance(source, (str, os.PathLike)):
        raise TypeError(
            f"source is a {type(source).__name__}; expected a folder, the name of a family or its record, or what "
            "build_vlm made"
        )
    folder = Path(source)
    if not folder.is_dir():
        raise ValueError(f"source is {os.fspath(source)!r}; expected a folder or one of {', '.join(family_names())}")
    if not (folder / "config.json").exists():
        raise ValueError(
            f"{folder} has no config.json, which names the model; expected a checkpoint's folder: save the model's "
            "configuration there, too"
        )
    from transformers import AutoConfig, AutoProcessor

    import mrope.vlm.config  # noqa: F401  # makes built models known to transformers

    config = AutoConfig.from_pretrained(folder, local_files_only=True)
    record = record_of(config)
    lacking = "expected the files of both, which processor(family, tokenizer=...).save_pretrained writes"
    try:
        made = AutoProcessor.from_pretrained(folder, local_files_only=True)
    except OSError as error:  # where the tokenizer names a processor
        raise ValueError(f"{folder} has no tokenizer or no image processor; {lacking}") from error
    if not hasattr(made, "image_processor"):
        raise ValueError(f"{folder} has a {type(made).__name__} without an image processor; {lacking}")
    if tokenizer is not None:
        parts = {name: getattr(made, name) for name in made.get_attributes()} | {"tokenizer": tokenizer}
        made = type(made)(**parts, chat_template=made.chat_template)
    return _filled(made, record, config, folder)


def _of_record(record: Family, tokenizer: Any) -> Any:
    """The processor of transformers for the limits of a record."""
    import transformers

    if record.name not in _CLASSES:
        raise ValueError(f"family is {record.name!r}; expected one of {', '.join(_CLASSES)}")
    names = _CLASSES[record.name]
    classes = [getattr(transformers, name, None) for name in names]
    if missing := [name for name, found in zip(names, classes, strict=True) if found is None]:
        raise ValueError(f"transformers {transformers.__version__} has no {missing[0]}, the processor of {record.name}")
    whole, images, *videos = classes
    assert whole is not None
    assert images is not None
    parts = {"tokenizer": tokenizer, "image_processor": images(**options_of(record, "picture"))}
    if videos:
        parts["video_processor"] = videos[0](**options_of(record, "clip"))  # pyright: ignore[reportOptionalCall]
    if isinstance(record.layout, OmniLayout):
        parts["feature_extractor"] = transformers.WhisperFeatureExtractor(
            feature_size=128, return_attention_mask=True, sampling_rate=16000
        )
    return whole(**parts, chat_template=getattr(tokenizer, "chat_template", None))


def _filled(made: Any, record: Family, config: Any, folder: Path | None) -> Any:
    """`made`, a processor of transformers, with our image and video processor, and as one of our subclass."""
    made.config = config
    made.sources = {
        "tokenizer": "argument" if folder is None else str(folder),
        "chat_template": "tokenizer" if folder is None else template_in(folder),
    }
    kinds: tuple[tuple[Kind, str, type], ...] = (
        ("picture", "image_processor", Images),
        ("clip", "video_processor", Videos),
    )
    for _, name, mixin in kinds:
        if (part := getattr(made, name, None)) is not None:
            setattr(made, name, turned_into(part, mixin, record))
    made.__class__ = subclass(type(made), _Processor, record)
    for kind, name, _ in kinds:
        if (part := getattr(made, name, None)) is not None:
            size = {"size": made.videos_kwargs["size"]} if kind == "clip" and "size" in made.videos_kwargs else {}
            where = f"record of {record.name}" if folder is None else stated_in(folder, kind)
            where = f"class default of {made.base.__name__}" if size else where
            try:
                limits = limits_words(part.tuned(**size), kind)
            except ValueError as error:
                if kind == "picture":
                    raise
                limits = f"clips are refused, {error}"  # a call may set it right, and pictures are taken
            made.sources[name] = f"{limits}: {where}"
    return made


class _Processor(Made):
    """What is done in another way than by the family's processor."""

    config: Any
    sources: dict[str, str]
    tokenizer: Any
    image_processor: Any
    chat_template: Any
    valid_processor_kwargs: Any

    @property
    def family(self) -> Family:
        """The record with the limits and colours of this processor's pictures."""
        return self.image_processor.tuned()

    @property
    def videos_kwargs(self) -> dict[str, Any]:
        """What each call says to the video processor; the times of frames are needed where they are written."""
        stated = dict(getattr(self.base, "videos_kwargs", {}))
        if self.config is None:  # the limits of the record are in the video processor
            stated.pop("size", None)
        return {**stated, "return_metadata": True} if self.record.stamp is not None else stated

    @property
    def return_mm_token_type_ids(self) -> bool:
        # The model of Cosmos3-Edge refuses what its processor in transformers 5.24 leaves out.
        return getattr(self.base, "return_mm_token_type_ids", False) or self.record.name == "cosmos3-edge"

    def __call__(self, *args: Any, return_positions: bool = False, **kwargs: Any) -> Any:
        if not isinstance(return_positions, bool):
            raise TypeError(f"return_positions is {return_positions!r:.80}; expected True or False")
        for name, right in _OTHER_WORDS.items():
            if name in kwargs:
                raise TypeError(f"{name} is no option of {type(self).__name__}; expected {right}")
        given = dict(zip(list(inspect.signature(self.base.__call__).parameters)[1:], args, strict=False)) | kwargs
        text = given.get("text")
        rows = [text] if isinstance(text, str) else text
        for name, several, stand_in in (("images", pictures_of, framed), ("videos", clips_of, named)):
            found = [] if (media := given.pop(name, None)) is None else several(media)
            if rows is not None and not given.get("sanitize_control_tokens"):
                self._check_counts(name, rows, media, several)
            if found:
                given[name] = [stand_in(one) for one in found]
        made = super().__call__(**given)  # pyright: ignore[reportAttributeAccessIssue]
        if return_positions and "position_ids" not in made:
            if "input_ids" not in made:
                raise ValueError("text is None and return_positions is True; expected text, which has positions")
            made["position_ids"] = self._positions(made)
        return made

    def apply_chat_template(self, conversation: Any, *args: Any, **kwargs: Any) -> Any:
        return super().apply_chat_template(held(conversation), *args, **kwargs)  # pyright: ignore[reportAttributeAccessIssue]

    def plan(
        self, messages: Sequence[Any], *, processor_kwargs: Mapping[str, Any] | None = None, **options: Any
    ) -> PlannedPrompt:
        """The plans and tokens of a conversation, or of each of several, before any picture or clip is decoded.

        Args:
            messages: what `apply_chat_template` takes.
            processor_kwargs: what a call takes, such as `size` or `fps`.
            options: what `apply_chat_template` takes, such as `add_generation_prompt`, `tools` and words of the
                template; what a call takes may stand among them.

        Raises:
            TypeError: `messages` is no list, or an option is none of theirs.
            ValueError: there are no messages, or what a call refuses.

        >>> plans = processor.plan(messages)  # doctest: +SKIP
        >>> plans.images[0].grid, plans.tokens  # doctest: +SKIP
        ((1, 34, 46), (412,))
        """
        if not isinstance(messages, (list, tuple)):
            raise TypeError(f"messages is {messages!r:.80}; expected a list of messages, or of conversations")
        if not messages:
            raise ValueError("messages is empty; expected at least one")
        template = f"{self.chat_template} {options.get('chat_template')}"
        known, words, call = self._call_options(), {}, dict(processor_kwargs or {})
        for name, value in options.items():
            written = name in _TEMPLATE or (name not in known and re.search(rf"\b{re.escape(name)}\b", template))
            (words if written else call)[name] = value
        if unknown := sorted(call.keys() - known):
            raise TypeError(
                f"{unknown[0]} is no word of the chat template and no option of {type(self).__name__}; expected what "
                "apply_chat_template or a call takes"
            )
        with planning() as planned:
            made = self.apply_chat_template(messages, tokenize=True, return_dict=True, processor_kwargs=call, **words)
        masks = made.get("attention_mask")
        rows = made["input_ids"] if masks is None else masks
        tokens = tuple(len(row) if masks is None else int(sum(row)) for row in rows)
        return PlannedPrompt(tuple(planned.images), tuple(planned.videos), tokens)

    def _call_options(self) -> set[str]:
        """What a call takes beside text and media."""
        stated = self.valid_processor_kwargs.__annotations__
        parts = [getattr(self, f"{name}_processor", None) for name in ("image", "video")]
        groups = [*stated.values(), *(part.valid_kwargs for part in parts if part is not None)]
        known = {name for group in groups for name in getattr(group, "__annotations__", ())}
        return known | set(stated) | {"min_pixels", "max_pixels", "return_positions"}

    def _check_counts(self, name: str, rows: Sequence[str], media: Any, several: Any) -> None:
        """Refuse pictures without a placeholder, and placeholders without a picture."""
        token = getattr(self, f"{name.removesuffix('s')}_token", None)
        if token is None:
            if media is not None:
                raise ValueError(f"{name} came, and {self.record.name} takes none; expected None")
            return
        counts = [row.count(token) for row in rows]
        nested = isinstance(media, (list, tuple)) and len(media) == len(rows) and name == "images"
        nested = nested and all(isinstance(one, (list, tuple)) for one in media)
        came = [len(several(one)) for one in media] if nested else [0 if media is None else len(several(media))]
        if any(came) and self.tokenizer.convert_tokens_to_ids(token) in (None, self.tokenizer.unk_token_id):
            raise ValueError(f"{name} came, and the tokenizer has no {token}; expected the one of {self.record.name}")
        wanted = counts if nested else [sum(counts)]
        for row, (want, have) in enumerate(zip(wanted, came, strict=True)):
            if want != have:
                place = f"row {row} of text" if nested else "text"
                raise ValueError(f"{name} has {have} for {place}, which has {want} {token}; expected one for each")

    def _check_special_mm_tokens(self, text: Sequence[str], text_inputs: Any, modalities: Sequence[str]) -> None:
        """Refuse a truncation that cuts a picture, in words that say what would do."""
        try:
            super()._check_special_mm_tokens(text, text_inputs, modalities)  # pyright: ignore[reportAttributeAccessIssue]
        except ValueError as error:
            lengths = [len(row) for row in self.tokenizer(list(text)).input_ids]
            raise ValueError(
                f"rows of {lengths} tokens were truncated inside a picture or clip; expected max_length={max(lengths)} "
                "or more, or fewer tokens a picture"
            ) from error

    def get_text_with_replacements(self, text: list[str], *args: Any, **kwargs: Any) -> Any:
        """The prompts with their pictures; markers around a clip give way to those around each of its frames."""
        parent = super().get_text_with_replacements  # pyright: ignore[reportAttributeAccessIssue]
        # Cosmos3-Edge does so by itself.
        if self.record.stamp is None or (self.record.clip_markers, self.record.step_markers) != (0, 2):
            return parent(text, *args, **kwargs)
        start, token, end = (getattr(self, name) for name in ("vision_start_token", "video_token", "vision_end_token"))
        either = re.compile(f"({re.escape(start + token + end)})|{re.escape(token)}")
        pairs = [[found[1] is not None for found in either.finditer(row)] for row in text]
        made, offsets = parent([either.sub(lambda _: token, row) for row in text], *args, **kwargs)
        for row, wrapped in zip(offsets, pairs, strict=False):  # there are none where no picture and no clip came
            left_out, clips = 0, iter(wrapped)
            for entry in row:
                first, last = entry["span"]
                around = len(start) + len(end) if entry["type"] == "video" and next(clips) else 0
                entry["span"] = (first + left_out, last + left_out + around)
                left_out += around
        return made, offsets

    def _positions(self, inputs: Mapping[str, Any]) -> torch.Tensor:
        """The ids of the rows, by the rule that the weights were trained with."""
        rows = inputs["input_ids"]
        if len({len(row) for row in rows}) > 1:
            raise ValueError(
                f"rows have {sorted({len(row) for row in rows})} tokens; return_positions needs padding=True"
            )
        whole = ("input_ids", "attention_mask", "mm_token_type_ids")
        ready = {name: torch.as_tensor(value) if name in whole else value for name, value in inputs.items()}
        own = _like_config(self)
        try:
            return read_positions(ready, own if self.config is None else self.config)
        except ValueError as error:
            config = getattr(self.config, "thinker_config", self.config)
            for name in _PLACEHOLDERS:
                stated, written = getattr(config, name, None), getattr(own, name, None)
                if None not in (stated, written) and stated != written:
                    raise ValueError(
                        f"{name} of the configuration is {stated}, and the tokenizer has {written}; expected the files "
                        "of one checkpoint"
                    ) from error
            raise


def _like_config(made: Any) -> SimpleNamespace:
    """What `read_positions` asks of a model's configuration, from the record and the words of a processor."""
    record, layout = made.record, made.record.layout
    words = made.tokenizer.convert_tokens_to_ids
    of: dict[str, Any] = {
        f"{kind}_token_id": words(token) if (token := getattr(made, f"{kind}_token", None)) is not None else None
        for kind in ("image", "video", "audio")
    }
    of |= {
        # GLM shows clips by the placeholder of pictures, between these words.
        "video_start_token_id": getattr(made, "video_start_id", None),
        "video_end_token_id": getattr(made, "video_end_id", None),
        "vision_config": SimpleNamespace(
            spatial_merge_size=made.family.merge, tokens_per_second=getattr(layout, "ids_per_second", None)
        ),
    }
    if isinstance(layout, OmniLayout):
        of |= {"position_id_per_seconds": layout.ids_per_second, "seconds_per_chunk": layout.seconds_per_chunk}
    if isinstance(layout, XdLayout):
        parameters = {"mrope_section": list(record.split.counts)}
        of["text_config"] = SimpleNamespace(rope_parameters=parameters)
    if isinstance(layout, CanvasLayout):
        of |= {f"{name}_id": words(getattr(made, f"{name}_token")) for name in _AROUND}
        of["newline_id"] = made.tokenizer("\n", add_special_tokens=False).input_ids[-1]
        of["downsample_mode"] = made.image_processor.downsample_mode
    return SimpleNamespace(model_type=record.model_types[0], **of)


# Words of other functions here, and what a processor calls it.
_LIMIT = 'max_pixels=..., or size={"shortest_edge": ..., "longest_edge": ...}, in pixels'
_OTHER_WORDS = {
    "max_tokens": f"max_length=... for the words of a row, and for a picture {_LIMIT}",
    "picture_tokens": _LIMIT,
    "conflict": "none of it, as sizes follow the family's rule even where it passes the upper limit",
}
_AROUND = ("image_start", "image_end", "slice_start", "slice_end")
_PLACEHOLDERS = ("image_token_id", "video_token_id", "audio_token_id", "video_start_token_id", "video_end_token_id")
# What `apply_chat_template` takes by name, but for what `plan` says itself.
_TEMPLATE = (
    *("chat_template", "tools", "documents", "add_generation_prompt", "continue_final_message", "return_tensors"),
    *("return_assistant_tokens_mask", "load_audio_from_video", "sanitize_control_tokens"),
)
