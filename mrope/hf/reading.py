"""From a transformers batch to spans, for every family: what each model calls its placeholders, grids and lengths.

Letters: B batch, N tokens.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int64
from torch import Tensor

from mrope.families import Family, family, family_names
from mrope.hf.batch import (
    AUDIO,
    IMAGE,
    TEXT,
    VIDEO,
    Supply,
    batch_positions,
    batch_spans,
    check_kinds,
    check_mask,
    grids_of,
    grids_of_rows,
    runs_of,
    token_kinds,
)
from mrope.hf.runs import grid_ids
from mrope.layouts import CanvasLayout, GenerationLayout, GridLayout, OmniLayout, PageLayout, SpanLayout, XdLayout
from mrope.spans import Audio, Grid, Image, Sliced, Span, Target, Text, Video


def record_of(config: Any) -> Family:
    """The record of the family that a transformers configuration belongs to, a thinker's included.

    A model that `build_vlm` made has that of its family, or one of its own.

    Raises:
        TypeError: its model_type is none of ours.
    """
    if isinstance(own := getattr(config, "record", None), Family):
        return own
    stem = _thinker(config).model_type.removesuffix("_thinker")
    for record in map(family, family_names()):
        if stem in record.model_types:
            return record
    raise TypeError(f"the model's model_type is {config.model_type!r}, which is no family of ours")


def _thinker(config: Any) -> Any:
    """The part of an omni model that reads its prompts; any other configuration itself."""
    return getattr(config, "thinker_config", config)


def layout_of(config: Any, layout: str = "trained") -> SpanLayout:
    """The layout of the model with this configuration: its family's rule with the sizes that the configuration states.

    Args:
        config: a transformers configuration.
        layout: "trained", or the rule of a library version: see `Family.positions`.

    Raises:
        TypeError: its model_type is none of ours.
        ValueError: there is no such layout.
    """
    config = _thinker(config)
    rule = record_of(config).layout_named(layout)
    if hasattr(config, "record"):  # of a built model, which states no other sizes
        assert isinstance(rule, SpanLayout)  # or it could not have been built
        return rule
    vision = getattr(config, "vision_config", None)
    merge = getattr(vision, "spatial_merge_size", None)
    if isinstance(rule, CanvasLayout):
        return replace(rule, merge=2 if config.downsample_mode == "4x" else 4)
    if isinstance(rule, (GenerationLayout, PageLayout)):
        return rule
    if isinstance(rule, OmniLayout):
        stated = {"ids_per_second": config.position_id_per_seconds}
        if rule.weave == "chunks":
            stated["seconds_per_chunk"] = config.seconds_per_chunk
        return replace(rule, merge=merge, **stated)
    if isinstance(rule, XdLayout):
        return replace(rule, merge=merge, axes=len(config.text_config.rope_parameters["mrope_section"]))
    assert isinstance(rule, SpanLayout)  # all records
    if isinstance(rule, GridLayout) and rule.time == "seconds":
        return replace(rule, merge=merge, ids_per_second=getattr(vision, "tokens_per_second", rule.ids_per_second))
    return replace(rule, merge=merge)


def read_spans(inputs: Mapping[str, Any], config: Any) -> list[list[Span]]:
    """The spans of each row of a batch, from what the family's transformers model takes: tokens, grids and lengths.

    Args:
        inputs: by name: input_ids (B, N), and, where there are such, attention_mask, mm_token_type_ids and the grids,
            target sizes, seconds and lengths, called as a processor or the model's get_rope_index calls them.
        config: the model's configuration, which knows the placeholders.

    Returns:
        The spans of each row without its padding. A clip of a layout with time stamps comes frame by frame.

    Raises:
        TypeError: the model is none of ours.
        ValueError: placeholders do not fit what came with them; the row and the span are named.
    """
    config, layout = _thinker(config), layout_of(config)
    tokens, mask = _tokens(inputs)
    kinds = _kinds(inputs, tokens, mask, config)
    if isinstance(layout, CanvasLayout):
        return _canvas_spans(inputs, tokens, mask, kinds, config, layout)
    if isinstance(layout, OmniLayout):
        return _omni_spans(inputs, mask, kinds, layout)
    if isinstance(layout, GenerationLayout):
        return _generation_spans(inputs, mask, kinds, layout)
    if isinstance(layout, PageLayout):
        return _page_spans(inputs, mask, kinds, layout)
    media = {key: inputs.get(key) for key in ("image_grid_thw", "video_grid_thw", "second_per_grid_ts")}
    return batch_spans(kinds, mask, layout=layout, **media)


def read_positions(
    inputs: Mapping[str, Any], config: Any, *, layout: str | SpanLayout = "trained"
) -> Int64[Tensor, "a b n"] | Float[Tensor, "a b n"]:
    """The ids (A, B, N) of a batch of a transformers model, 0 in padding: what it takes as `position_ids`.

    Args:
        inputs: as `read_spans` takes them.
        config: the model's configuration.
        layout: "trained", or the rule of a library version: see `Family.positions`. Or what `layout_of` made of the
            configuration, which a loop makes once.

    Raises:
        TypeError: the model is none of ours.
        ValueError: as `read_spans`, or there is no such layout.
    """
    rule = layout_of(config, layout) if isinstance(layout, str) else layout
    tokens, mask = _tokens(inputs)
    if isinstance(rule, GridLayout):
        kinds = _kinds_at_once(inputs, tokens, mask, config)
        ids = None if kinds is None else grid_ids(kinds, mask.cpu().numpy(), rule, inputs)
        if ids is not None:
            return torch.from_numpy(ids).to(tokens.device)
    return batch_positions(read_spans(inputs, config), mask, layout=rule)


def _kinds_at_once(inputs: Mapping[str, Any], tokens: Tensor, mask: Tensor, config: Any) -> np.ndarray | None:
    """(B, N) the kind of each token; None where token types and placeholders must be looked at one by one."""
    words, types = tokens.cpu().numpy(), inputs.get("mm_token_type_ids")
    images, videos = words == config.image_token_id, words == getattr(config, "video_token_id", None)
    if getattr(config, "video_start_token_id", None) is not None and inputs.get("video_grid_thw") is not None:
        return None  # a clip may use the placeholder of pictures
    if types is None:
        return images * np.int8(IMAGE) + videos * np.int8(VIDEO)
    kinds = torch.as_tensor(types).cpu().numpy()
    if kinds.shape != words.shape:
        return None
    wrong = ((kinds == IMAGE) != images) | ((kinds == VIDEO) != videos)
    return None if (wrong & mask.cpu().numpy()).any() else kinds


def _tokens(inputs: Mapping[str, Any]) -> tuple[Tensor, Tensor]:
    """input_ids (B, N), and where they are no padding."""
    if inputs.get("input_ids") is None:
        raise ValueError("there are no input_ids: spans are read from tokens")
    tokens = torch.as_tensor(inputs["input_ids"])
    if tokens.dim() != 2:
        raise ValueError(f"input_ids have shape {tuple(tokens.shape)}; expected (B, N)")
    if inputs.get("attention_mask") is None:
        return tokens, torch.ones_like(tokens, dtype=torch.bool)
    mask = torch.as_tensor(inputs["attention_mask"])
    values = (mask.float() if mask.is_floating_point() else mask).cpu().numpy()  # which compares several times as fast
    kept = values != 0
    if (values != kept).any():
        raise ValueError("attention_mask holds other values than 0 and 1; expected 1 for tokens and 0 for padding")
    check_mask(mask, tokens)
    return tokens, torch.from_numpy(kept).to(tokens.device)


def placeholders(tokens: Tensor, config: Any) -> Tensor:
    """(B, N) the kind of each token as the placeholders of the model with this configuration say."""
    config = _thinker(config)
    brackets = getattr(config, "video_start_token_id", None), getattr(config, "video_end_token_id", None)
    return token_kinds(
        tokens,
        image_token_id=config.image_token_id,
        video_token_id=getattr(config, "video_token_id", None),
        audio_token_id=getattr(config, "audio_token_id", None),
        video_brackets=None if None in brackets else brackets,  # pyright: ignore[reportArgumentType]
    )


def _kinds(inputs: Mapping[str, Any], tokens: Tensor, mask: Tensor, config: Any) -> Tensor:
    """(B, N) the kind of each token: as the batch says, which the placeholders must agree with."""
    seen = placeholders(tokens, config)
    types = inputs.get("mm_token_type_ids")
    if types is None:
        return seen
    types = torch.as_tensor(types)
    if types.shape != tokens.shape:
        raise ValueError(
            f"mm_token_type_ids have shape {tuple(types.shape)}; expected {tuple(tokens.shape)}, one for each token"
        )
    check_kinds(types, seen, mask)
    return types


# ------------------------------------------------------------------------------------------- thumbnails and slices


def _canvas_spans(
    inputs: Mapping[str, Any], tokens: Tensor, mask: Tensor, kinds: Tensor, config: Any, layout: CanvasLayout
) -> list[list[Span]]:
    crops = {
        IMAGE: iter(grids_of("target_sizes", inputs.get("target_sizes"), sides=2)),
        VIDEO: iter(grids_of("target_sizes_videos", inputs.get("target_sizes_videos"), sides=2)),
    }
    words, kept, types = tokens.cpu().numpy(), mask.cpu().numpy(), kinds.cpu().numpy()
    rows = [
        _Canvas(number, row[keep], type_row[keep], crops, config, layout).spans()
        for number, (row, keep, type_row) in enumerate(zip(words, kept, types, strict=True))
    ]
    for kind, argument in ((IMAGE, "target_sizes"), (VIDEO, "target_sizes_videos")):
        if left := list(crops[kind]):
            raise ValueError(f"{argument} has {len(left)} crops more than the prompts have placeholders for")
    return rows


class _Canvas:
    """One row of a MiniCPM-V prompt: its crops, and the words around them."""

    def __init__(
        self,
        row: int,
        tokens: np.ndarray,
        kinds: np.ndarray,
        sizes: Mapping[int, Iterator[tuple[int, ...]]],
        config: Any,
        layout: CanvasLayout,
    ) -> None:
        self.row, self.tokens, self.sizes, self.layout = row, tokens, sizes, layout
        self.thumb_words = (config.image_start_id, config.image_end_id)
        self.slice_words = (config.slice_start_id, config.slice_end_id)
        self.newline = config.newline_id
        changes = np.flatnonzero(kinds[1:] != kinds[:-1]) + 1
        edges = [0, *changes.tolist(), len(kinds)]
        self.crops = [
            (begin, end, int(kinds[begin])) for begin, end in pairwise(edges) if end > begin and kinds[begin] != TEXT
        ]

    def spans(self) -> list[Span]:
        spans: list[Span] = []
        done, at = 0, 0
        while at < len(self.crops):
            first = at
            at += 1
            while at < len(self.crops) and self._word(self.crops[at][0] - 1) == self.slice_words[0]:
                at += 1
            picture, begin, end = self._picture(self.crops[first], self.crops[first + 1 : at])
            spans += [Text(begin - done)] if begin > done else []
            spans.append(picture)
            done = end
        return [*spans, Text(len(self.tokens) - done)] if done < len(self.tokens) else spans

    def _picture(self, thumb: tuple[int, int, int], slices: Sequence[tuple[int, int, int]]) -> tuple[Sliced, int, int]:
        """The picture, and where it begins and ends in the row."""
        thumbnail = self._size(thumb, self.thumb_words)
        if not slices:
            return self._closed(Sliced(thumbnail), thumb[0] - 1, thumb[1] + 1)
        grids = {self._size(crop, self.slice_words) for crop in slices}
        if len(grids) > 1:
            raise ValueError(f"row {self.row} has slices of {len(grids)} sizes in one picture; expected one size")
        gaps = [later[0] - earlier[1] for earlier, later in pairwise(slices)]
        cols = next((n for n, gap in enumerate(gaps, 1) if gap > 2), len(slices))
        rows = len(slices) // cols
        expected = [3 if n % cols == 0 else 2 for n in range(1, len(slices))]
        if rows * cols != len(slices) or gaps != expected or slices[0][0] - thumb[1] != 2:
            raise ValueError(
                f"row {self.row} has {len(slices)} slices with {gaps} words between them; expected full rows, 2 words "
                "between slices, and a newline more between rows"
            )
        return self._closed(Sliced(thumbnail, (rows, cols), grids.pop()), thumb[0] - 1, slices[-1][1] + 1)

    def _closed(self, picture: Sliced, begin: int, end: int) -> tuple[Sliced, int, int]:
        """With the newlines behind it."""
        behind = end
        while self._word(behind) == self.newline:
            behind += 1
        return replace(picture, newlines=behind - end), begin, behind

    def _size(self, crop: tuple[int, int, int], around: tuple[int, int]) -> Grid:
        begin, end, kind = crop
        argument = "target_sizes" if kind == IMAGE else "target_sizes_videos"
        size = next(self.sizes[kind], None)
        if size is None:
            raise ValueError(f"row {self.row} has a crop of {end - begin} tokens, but {argument} has no more sizes")
        cells = (size[0] // self.layout.merge) * (size[1] // self.layout.merge)
        if cells != end - begin:
            raise ValueError(
                f"row {self.row} has a crop of {end - begin} tokens where {argument} has {size[0]}x{size[1]} patches, "
                f"which take {cells}: the prompt was truncated, or crops and sizes come in different orders"
            )
        if (self._word(begin - 1), self._word(end)) != around:
            raise ValueError(f"row {self.row} has a crop of {end - begin} tokens without the two words around it")
        return 1, size[0], size[1]

    def _word(self, index: int) -> int | None:
        return int(self.tokens[index]) if 0 <= index < len(self.tokens) else None


# ------------------------------------------------------------------------------------------------ clips with sound


def _omni_spans(inputs: Mapping[str, Any], mask: Tensor, kinds: Tensor, layout: OmniLayout) -> list[list[Span]]:
    videos = grids_of("video_grid_thw", inputs.get("video_grid_thw"))
    seconds = _first(inputs, "second_per_grids", "video_second_per_grid")
    each = [] if seconds is None else torch.as_tensor(seconds).tolist()
    if len(each) != len(videos):
        raise ValueError(f"second_per_grids has {len(each)} entries for {len(videos)} clips; expected one a clip")
    clips = [Video((t, h, w), seconds=second) for (t, h, w), second in zip(videos, each, strict=True)]
    images = [Image((t, h, w)) for t, h, w in grids_of("image_grid_thw", inputs.get("image_grid_thw"))]
    lengths, heard = inputs.get("audio_seqlens"), inputs.get("feature_attention_mask")
    if lengths is None and heard is not None:
        lengths = torch.as_tensor(heard).sum(-1)
    frames = [] if lengths is None else torch.as_tensor(lengths).tolist()
    supply = {
        IMAGE: Supply("image", "image_grid_thw", images, layout),
        VIDEO: Supply("video", "video_grid_thw", clips, layout),
        AUDIO: Supply("audio", "audio_seqlens", [Audio(audio_tokens(n, layout)) for n in frames], layout),
    }
    types, kept = kinds.cpu().numpy(), mask.cpu().numpy()
    rows = [
        _omni_row(number, row[keep], supply, layout) for number, (row, keep) in enumerate(zip(types, kept, strict=True))
    ]
    for source in supply.values():
        source.check_empty()
    return rows


def _first(inputs: Mapping[str, Any], *names: str) -> Any:
    """What came under the first of these names that something came under."""
    return next((inputs[name] for name in names if inputs.get(name) is not None), None)


def _omni_row(number: int, kinds: np.ndarray, supply: Mapping[int, Supply], layout: OmniLayout) -> list[Span]:
    spans: list[Span] = []
    moving = np.isin(kinds, (VIDEO, AUDIO))
    group = np.where(moving, VIDEO, kinds)  # a clip and its sound are one run
    edges = [0, *(np.flatnonzero(group[1:] != group[:-1]) + 1).tolist(), len(group)]
    borrowed = 0  # end tokens of a clip with sound, which belong to its span
    for begin, end in pairwise(edges):
        run = kinds[begin:end]
        if not len(run):
            continue
        if group[begin] == TEXT:
            length = len(run) - borrowed
            spans += [Text(length)] if length > 0 else []
            borrowed = 0
        elif (run == run[0]).all():
            spans += supply[int(run[0])].take(number, len(run))
        else:
            spans[-1:] = _without_starts(number, spans)
            spans.append(_clip_with_sound(number, run, supply, layout))
            borrowed = 2
            if end + 2 > len(kinds) or (kinds[end : end + 2] != TEXT).any():
                raise ValueError(f"row {number} has a clip with sound without the two end tokens behind it")
    return spans


def _without_starts(number: int, spans: Sequence[Span]) -> list[Span]:
    """The text before a clip with sound, without the two start tokens, which belong to the clip's span."""
    before = spans[-1] if spans else None
    if not isinstance(before, Text) or before.length < 2:
        raise ValueError(f"row {number} has a clip with sound without the two start tokens before it")
    return [Text(before.length - 2)] if before.length > 2 else []


def _clip_with_sound(number: int, run: np.ndarray, supply: Mapping[int, Supply], layout: OmniLayout) -> Video:
    sound = run == AUDIO
    clips = supply[VIDEO].take(number, int((~sound).sum()))
    sounds = supply[AUDIO].take(number, int(sound.sum()))
    if len(clips) != 1 or len(sounds) != 1:
        raise ValueError(
            f"row {number} has {len(clips)} clips and {len(sounds)} sounds in one run; expected one of each"
        )
    clip, heard = clips[0], sounds[0]
    assert isinstance(clip, Video)
    assert isinstance(heard, Audio)
    video = replace(clip, audio=heard.length)
    if (layout.sound_of(video) != sound).any():
        raise ValueError(
            f"row {number} has a clip and its sound woven in another order than {layout.ids_per_second:g} ids a second "
            f"and weave={layout.weave!r} give: the processor used another rate"
        )
    return video


def audio_tokens(frames: int, layout: OmniLayout) -> int:
    """The tokens of a sound of `frames` mel frames: two convolutions of Qwen2.5-Omni, three in windows of Qwen3-Omni.

    >>> audio_tokens(100, OmniLayout()), audio_tokens(100, OmniLayout(weave="time"))
    (25, 13)
    """
    if layout.weave == "chunks":
        return ((frames - 1) // 2 + 1 - 2) // 2 + 1
    windows, rest = divmod(frames, 100)
    for _ in range(3):
        rest = (rest - 1) // 2 + 1
    return 13 * windows + rest


# ------------------------------------------------------------------------------------------ generation, and pages


def _generation_spans(
    inputs: Mapping[str, Any], mask: Tensor, kinds: Tensor, layout: GenerationLayout
) -> list[list[Span]]:
    grids = grids_of("image_grid_thw", inputs.get("image_grid_thw"))
    per_row = inputs.get("images_per_sample")
    counts = [len(grids)] if per_row is None else torch.as_tensor(per_row).tolist()
    if per_row is None and not grids:
        counts = [0] * len(kinds)
    if len(counts) != len(kinds) or sum(counts) != len(grids) or min(counts) < 0:
        raise ValueError(
            f"images_per_sample is {None if per_row is None else counts} for {len(kinds)} rows and {len(grids)} grids; "
            "expected the number of grids of each row, the pictures to be generated among them"
        )
    rows, first = [], 0
    for number, (runs, count) in enumerate(zip(runs_of(kinds, mask), counts, strict=True)):
        own = [Image((t, h, w)) for t, h, w in grids[first : first + count]]
        supply = Supply("image", "image_grid_thw", own, layout)
        spans: list[Span] = []
        for kind, kept, length in runs:
            run = [Text(length)] if kind == TEXT else supply.take(number, length)
            spans += run if kept else []
        # The last grid is generated first.
        spans += [Target(image.grid) for image in reversed(own[supply.taken :])]
        rows.append(spans)
        first += count
    return rows


def _page_spans(inputs: Mapping[str, Any], mask: Tensor, kinds: Tensor, layout: PageLayout) -> list[list[Span]]:
    # Words stand between the placeholders of a page, which fills its row: one before them, and one behind each line.
    pages, lengths = ((kinds != TEXT) & mask).any(-1).tolist(), mask.sum(-1).tolist()
    given = inputs.get("image_grid_hw")
    if given is None:  # the processor keeps it to itself
        lines = (((kinds == TEXT) & mask).sum(-1) - 1).tolist()
        given = [(h, (n - 2) // max(h, 1) - 1) for page, h, n in zip(pages, lines, lengths, strict=True) if page]
    sizes = grids_of("image_grid_hw", given, sides=2)
    supply = Supply("page", "image_grid_hw", [Image((1, h, w)) for h, w in sizes], layout)
    rows: list[list[Span]] = []
    for number, (page, length) in enumerate(zip(pages, lengths, strict=True)):
        rows.append(supply.take(number, length) if page else [Text(length)] if length else [])
        if page and len(rows[-1]) == 1 and isinstance(span := rows[-1][0], Image):
            _, h, w = span.grid
            if kinds[number][mask[number]].tolist() != [TEXT, IMAGE, *([IMAGE] * w + [TEXT]) * h]:
                raise ValueError(
                    f"row {number} is no page of {h} x {w} patches, with a word before and behind each line"
                )
    supply.check_empty()
    return rows


# ---------------------------------------------------------------------------------------- rows with their media


_BY_ROW = ("input_ids", "attention_mask", "mm_token_type_ids", "labels")
_BY_MEDIUM = (("image_grid_thw", "pixel_values", Image), ("video_grid_thw", "pixel_values_videos", Video))


def take_rows(inputs: Mapping[str, Any], rows: Sequence[int], config: Any) -> dict[str, Any]:
    """The rows with these numbers of a batch, repeats allowed, each with its own pictures and clips in whole.

    Beams and groups repeat rows ([0, 0, 1, 1]), devices and micro-batches split them. The first dim of `pixel_values`
    is patches, not rows, so that it can be neither repeated nor cut like a row. For families whose pictures come as
    image_grid_thw and pixel_values.

    Args:
        inputs: input_ids, attention_mask, mm_token_type_ids and labels (B, N), and grids with their patches.
        rows: numbers of rows.
        config: the model's configuration.

    Raises:
        ValueError: something else is among the inputs, or the pictures do not fit the placeholders.
    """
    inputs = {key: value for key, value in inputs.items() if value is not None}
    known = {*_BY_ROW, "second_per_grid_ts", *(key for keys in _BY_MEDIUM for key in keys[:2])}
    if unknown := sorted(set(inputs) - known):
        raise ValueError(f"inputs hold {', '.join(unknown)}, which cannot be taken by rows; known are {sorted(known)}")
    spans = read_spans(inputs, config)
    if wrong := [row for row in rows if not 0 <= row < len(spans)]:
        raise ValueError(f"row {wrong[0]} is not among the {len(spans)} rows of the batch")
    index = torch.tensor(list(rows), dtype=torch.int64)
    taken = {key: inputs[key][index.to(inputs[key].device)] for key in _BY_ROW if key in inputs}
    for grid_key, pixel_key, kind in _BY_MEDIUM:
        if inputs.get(grid_key) is None:
            continue
        grids = torch.as_tensor(inputs[grid_key])
        chosen = grids_of_rows(grid_key, grids, spans, kind, rows)
        taken[grid_key] = grids[chosen]
        if kind is Video and "second_per_grid_ts" in inputs:
            taken["second_per_grid_ts"] = torch.as_tensor(inputs["second_per_grid_ts"])[chosen]
        if pixel_key in inputs:
            patches = inputs[pixel_key].split(grids.prod(-1).tolist())
            taken[pixel_key] = torch.cat([patches[grid] for grid in chosen] or [inputs[pixel_key][:0]])
    return taken
