"""The positions of one forward of a transformers model, from its arguments and its cache.

Letters: A axes, B batch, N new tokens of this forward.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int64
from torch import Tensor

from mrope.hf.batch import TEXT, batch_spans
from mrope.hf.cache import cache_of, cached_tokens, check_mask, next_starts, with_rows
from mrope.hf.reading import layout_of, placeholders, read_spans
from mrope.layouts import CanvasLayout, GridLayout, Layout, NewlineLayout, PageLayout, SpanLayout, XdLayout
from mrope.layouts.layout import name_of
from mrope.positions import Positions
from mrope.spans import Image, Span, Text, Video

# The pixels and sounds of new tokens, and what says how large they are.
_PIXELS = ("pixel_values", "pixel_values_videos", "input_features", "mm_encoder_outputs")
_SIZES = (
    *("image_grid_thw", "video_grid_thw", "second_per_grid_ts", "target_sizes", "target_sizes_videos"),
    *("images_per_sample", "second_per_grids", "video_second_per_grid", "feature_attention_mask", "audio_seqlens"),
)
SHAPES = {
    "input_ids": "(B, N)",
    "inputs_embeds": "(B, N, C)",
    "mm_token_type_ids": "(B, N)",
    "pixel_values": "(P, V)",
    "pixel_values_videos": "(P, V)",
    "image_grid_thw": "(n, 3)",
    "video_grid_thw": "(n, 3)",
}
"""The tensors of a forward, and their shapes in most families."""
_BY_TYPES = (GridLayout, NewlineLayout, XdLayout)  # whose spans are read from token types and grids alone


@dataclass(frozen=True, slots=True, eq=False)
class Border:
    """What one model's configuration says about its batches, and the layout that gives them positions.

    Args:
        config: of the model.
        layout: what lays out the spans.
        trained: the model's own layout, by which its prompts were made.
    """

    config: Any
    layout: SpanLayout
    trained: SpanLayout

    @classmethod
    def of(cls, config: Any, layout: Layout | str | None = None) -> Border:
        """The border of the model with this configuration.

        Raises:
            TypeError: the configuration is none of ours, or `layout` is no layout.
            ValueError: there is no layout of this name, or its positions are more than ids for attention as it is.
        """
        trained = layout_of(config)
        if layout is None:
            return cls(config, trained, trained)
        if isinstance(layout, str):
            return cls(config, layout_of(config, layout), trained)
        if not isinstance(layout, SpanLayout):
            raise TypeError(
                f"layout is {layout!r}; expected a layout that places one span after the other, or a version's name"
            )
        if layout.merge != trained.merge:
            raise ValueError(f"layout merges {layout.merge} patches a side; the model merges {trained.merge}")
        made = layout([Text(1), Image((1, layout.merge, 2 * layout.merge)), Text(1)])
        if made.layers or made.query is not None or made.attend != "causal":
            raise ValueError(
                f"layout is {layout!r}, whose ids differ by layer, between queries and keys, or change who attends to "
                "whom; expected one that gives a causal model one set of ids"
            )
        return cls(config, layout, trained)

    @property
    def axes(self) -> int:
        """A."""
        return self.layout.axes

    @property
    def takes_text_row(self) -> bool:
        """Whether the model takes (1 + A, B, N) with the text row first, from which it tells packed documents apart."""
        if isinstance(self.trained, (XdLayout, PageLayout)):
            return False
        # Cosmos3-Edge of earlier versions takes bare axes; four of them would be read as the text row and three.
        return self.axes == 4 or self.config.model_type != "cosmos3_edge"

    @property
    def mixing(self) -> str:
        """What mixes documents that are packed into one row, in words; "" where they can be kept apart."""
        if isinstance(self.trained, PageLayout):
            return "attention in both directions"
        kinds = getattr(self.config.get_text_config(), "layer_types", None) or ()
        return ", ".join(f"layers of {kind}" for kind in sorted({*kinds}) if "linear" in kind)

    @property
    def rows(self) -> tuple[int, ...]:
        """How many rows position ids (., B, N) may have."""
        bare = isinstance(self.trained, (XdLayout, PageLayout))
        return (self.axes,) if bare else (self.axes, 1 + self.axes)

    def packed(self, call: Mapping[str, Any], given: Tensor | None) -> Tensor | None:
        """The text row (B, N) for rows of packed documents, with each token of padding on its own; None for other rows.

        Documents are packed where the ids that the caller gave start again between two tokens. Transformers tells them
        apart by their text row, but only without a mask and without a cache. A compiled forward is not looked into.

        Raises:
            ValueError: a cache is asked for, or the documents cannot be kept apart.
        """
        mask = call.get("attention_mask")
        of_tokens = mask is None or (isinstance(mask, Tensor) and mask.dim() == 2)
        tokens = call.get("inputs_embeds") if call.get("input_ids") is None else call["input_ids"]
        if torch.compiler.is_compiling() or given is None or tokens is None or not of_tokens or given.shape[-1] == 1:
            return None
        batch, length = tokens.shape[:2]
        kept = token_mask(mask, batch, length, given.device, cached_tokens(call))
        counted = given.dim() == 2 or len(given) == self.axes + 1 or isinstance(self.layout, XdLayout)
        if counted:
            text_ids = given if given.dim() == 2 else given[0]
            again = text_ids[:, 1:] <= text_ids[:, :-1]
        elif self.layout is self.trained:
            # Two tokens of one document are never both at 0 on all axes, unless they are padding.
            first, text_ids = (given == 0).all(0), given[0]
            more = (~first).flip(-1).cumsum(-1).flip(-1) > 0
            again = first[:, 1:] & ~first[:, :-1] & more[:, 1:]
        else:
            return None
        again = again & kept[:, 1:] & kept[:, :-1]
        if not bool(again.any()):
            return None
        row, column = again.nonzero()[0].tolist()
        where = f"position_ids start again at token {column + 1} of row {row}, as packed documents do"
        if call.get("use_cache") or cache_of(call) is not None:
            raise ValueError(
                f"{where}, and a cache is asked for; expected use_cache=False, as nothing goes on behind several "
                "documents"
            )
        if call.get("cu_seq_lens_q") is not None:
            return torch.where(kept, text_ids, 0) if counted else None
        if self.mixing:
            raise ValueError(
                f"{where}, which {self.mixing} of {self.config.model_type} would mix; expected a row a document"
            )
        if not counted:
            raise ValueError(
                f"{where}, but have {len(given)} rows, which do not tell documents apart; expected {1 + self.axes}, "
                "those of the text first, which count from 0 in each document"
            )
        return torch.where(kept, text_ids, 0)

    def positions(self, call: Mapping[str, Any]) -> Int64[Tensor, "a b n"] | Float[Tensor, "a b n"]:
        """The positions (A, B, N) of the tokens that a forward with the arguments `call` adds, 0 in padding.

        They go on where the cache ends. Pictures and clips are those among the new tokens, and the grids are theirs.

        Raises:
            ValueError: placeholders and grids do not match, the mask is no (B, N) mask or contradicts the one that the
                cached tokens came with, or the cache is not ours.
        """
        mode = call.get("downsample_mode")  # of MiniCPM-V, which may say another one in a call
        if isinstance(self.trained, CanvasLayout) and mode not in (None, self.config.downsample_mode):
            config = copy(self.config)
            config.downsample_mode = mode
            layout = None if self.layout is self.trained else self.layout
            return Border.of(config, layout).positions({**call, "downsample_mode": None})
        tokens = call.get("input_ids")
        carriers = (tokens, call.get("inputs_embeds"), call.get("attention_mask"))
        carrier = next((value for value in carriers if value is not None), None)
        if carrier is None:
            raise ValueError("there are no input_ids and no inputs_embeds: nothing to give positions to")
        batch, length = carrier.shape[:2]
        check_boundaries(call)
        past = cached_tokens(call)
        starts = next_starts(cache_of(call), past, batch)
        mask = token_mask(call.get("attention_mask"), batch, length, carrier.device, past)
        check_mask(cache_of(call), past, call.get("attention_mask"))
        try:
            spans = self._spans(call, tokens, mask, past)
        except ValueError as error:
            if past:
                raise ValueError(f"{error}; on a cache come the grids and pixels of new tokens alone") from error
            raise
        kept = mask.cpu().numpy()
        placed = np.zeros((self.axes, batch, length), dtype=self.layout.dtype)
        rows = []
        for row, (own, start) in enumerate(zip(spans, starts, strict=True)):
            rows.append(self._row(own, start))
            placed[:, row, kept[row]] = rows[-1].ids.numpy()
        return with_rows(torch.from_numpy(placed).to(carrier.device), rows)

    def _row(self, spans: Sequence[Span], start: Any) -> Positions:
        if isinstance(start, Positions) and start.planned is not None:
            return start.decode(sum(map(self.trained.tokens, spans)))  # what the row is to generate
        if (
            isinstance(self.layout, XdLayout)
            and not isinstance(start, Positions)
            and start
            and any(isinstance(span, Image) for span in spans)
        ):
            raise ValueError(
                "the cache does not know how many pictures it holds, and the new one needs its number: prefill again, "
                "or pass position_ids"
            )
        if self.layout is not self.trained:
            spans = [self._declared(span) for span in spans]
        return self.layout(spans, start)

    def _declared(self, span: Span) -> Span:
        """`span` as the layout takes it: one that knows no seconds gets none, and a frame behind a stamp is a picture.

        Raises:
            ValueError: the layout has no rule for it, or would have another number of tokens.
        """
        wanted = self.trained.tokens(span)
        try:
            count = self.layout.tokens(span)
        except ValueError:
            if isinstance(span, Video) and span.stamp is not None:
                span = Image(span.grid)
            elif isinstance(span, Video) and span.seconds is not None:
                span = replace(span, seconds=None)
            count = self.layout.tokens(span)
        if count != wanted:
            raise ValueError(
                f"layout {type(self.layout).__name__} takes {count} tokens for {name_of(span)}; the prompt has {wanted}"
            )
        return span

    def _spans(
        self, call: Mapping[str, Any], tokens: Tensor | None, mask: Tensor, past: int
    ) -> Sequence[Sequence[Span]]:
        """The spans of each row of new tokens."""
        types, length = self._types(call, past, mask), mask.shape[1]
        # A loop that keeps handing over the prompt's grids while it decodes text means no new pictures.
        has_media = any(call.get(key) is not None for key in _PIXELS) or (types is not None and _any(types))
        if tokens is not None and length > 1:  # a placeholder alone is a word that the model wrote
            has_media = has_media or _any(placeholders(tokens, self.config) * mask)
        if past and not has_media:
            return _text(mask)
        sizes: dict[str, Any] = {key: call.get(key) for key in _SIZES}
        if sizes["audio_seqlens"] is None:
            sizes["audio_seqlens"] = call.get("audio_feature_lengths")
        if tokens is not None:
            inputs = {**sizes, "input_ids": tokens, "attention_mask": mask, "mm_token_type_ids": types}
            return read_spans(inputs, self.config)
        if types is not None and isinstance(self.trained, _BY_TYPES):
            return batch_spans(
                types,
                mask,
                layout=self.trained,
                **{key: sizes[key] for key in ("image_grid_thw", "video_grid_thw", "second_per_grid_ts")},
            )
        if any(value is not None for value in sizes.values()):
            raise ValueError(
                "inputs_embeds do not show which tokens are a picture's: pass mm_token_type_ids as well"
                if isinstance(self.trained, _BY_TYPES)
                else "inputs_embeds do not show which tokens are a picture's: pass input_ids, or position_ids"
            )
        return _text(mask)

    def _types(self, call: Mapping[str, Any], past: int, mask: Tensor) -> Tensor | None:
        """(B, N) mm_token_type_ids of the new tokens; None if there are none for them."""
        types, (batch, length) = call.get("mm_token_type_ids"), mask.shape
        if types is None or types.shape in ((batch, length), (batch, past + length)):
            return None if types is None else types[:, -length:]
        if not past:
            raise ValueError(
                f"mm_token_type_ids have shape {tuple(types.shape)}; expected {(batch, length)}, one for each token"
            )
        return None


def _any(types: Tensor) -> bool:
    return bool((types != TEXT).any())


def _text(mask: Tensor) -> list[list[Span]]:
    """Rows of nothing but text."""
    return [[Text(count)] if count else [] for count in mask.sum(-1).tolist()]


def check_tensors(call: Mapping[str, Any]) -> None:
    """Refuse lists and other kinds of arguments of a forward.

    Raises:
        TypeError: one is no tensor.
    """
    for name, shape in SHAPES.items():
        value = call.get(name)
        if value is not None and not isinstance(value, Tensor):
            raise TypeError(f"{name} is a {type(value).__name__}; expected a tensor {shape}")


def check_boundaries(call: Mapping[str, Any]) -> None:
    """Refuse a forward that says where documents end, and leaves their positions to us, who lay out one.

    Raises:
        ValueError: it does.
    """
    if call.get("cu_seq_lens_q") is not None:
        raise ValueError(
            "cu_seq_lens_q came without position_ids, which say where documents begin: pass those of the packed row"
        )


def document_mask(text_ids: Tensor, dtype: torch.dtype) -> Tensor:
    """(B, 1, N, N) to add to the scores of causal attention: 0 within a document, the least number elsewhere.

    Args:
        text_ids: (B, N), which count on by 1 within a document.
        dtype: of the scores.
    """
    first = torch.ones_like(text_ids[:, :1], dtype=torch.bool)
    number = torch.cat([first, text_ids.diff(dim=-1) != 1], dim=-1).cumsum(-1)
    seen = (number[:, :, None] == number[:, None, :]).tril()
    return torch.zeros_like(seen, dtype=dtype).masked_fill(~seen, torch.finfo(dtype).min)[:, None]


def ids_of_batch(border: Border, given: Any, tokens: Tensor) -> Tensor:
    """The position ids of the caller, with a row for each of the `tokens`, words (B, N) or embeddings (B, N, C).

    Raises:
        TypeError: they are no tensor of integers, and the layout has no fractions.
        ValueError: they have another shape, or put the tokens of a picture on the line of text.
    """
    kinds = "integers" if np.issubdtype(border.layout.dtype, np.integer) else "numbers"
    if not isinstance(given, Tensor) or given.dtype == torch.bool or (given.is_floating_point() and kinds != "numbers"):
        came = f"are {given.dtype}" if isinstance(given, Tensor) else f"is a {type(given).__name__}"
        raise TypeError(f"position_ids {came}; expected a tensor of {kinds}")
    shape, (batch, length) = tuple(given.shape), tokens.shape[:2]
    if shape[-1:] != (length,) or shape[-2:-1] not in ((1,), (batch,)) or shape[:-2] not in {(), *zip(border.rows)}:
        axes, *more = ((rows, batch, length) for rows in border.rows)
        text = f"{more[0]} with those of the text first, or " if more else "or "
        raise ValueError(f"position_ids have shape {shape}; expected {axes}, {text}{(batch, length)} for text")
    if given.dim() == 2 and tokens.dim() == 2 and length > 1 and not torch.compiler.is_compiling():
        pictures = placeholders(tokens, border.config) != TEXT
        if bool(pictures.any()):
            row, column = pictures.nonzero()[0].tolist()
            raise ValueError(
                f"position_ids have shape {shape}, the same place on all axes, and token {column} of row {row} is a "
                f"picture's; expected {(border.rows[-1], batch, length)}, or none"
            )
    return given if shape[-2] == batch else given.expand(*shape[:-2], batch, length)


def token_mask(mask: Any, batch: int, length: int, device: torch.device, past: int = 0) -> Tensor:
    """(B, N) bool, which of the new tokens are tokens and no padding; of a mask of them and of `past` cached ones.

    Raises:
        ValueError: the mask has another shape, or other values than 0 and 1.
    """
    if mask is None:
        return torch.ones(batch, length, dtype=torch.bool, device=device)
    whole = past + length
    of_tokens = isinstance(mask, Tensor) and mask.dim() == 2 and len(mask) == batch and mask.shape[1] >= whole
    # A mask as long as a static cache ends on zeros.
    if not of_tokens or (mask.shape[1] > whole and bool(mask[:, whole:].any())):
        shape = f"shape {tuple(mask.shape)}" if isinstance(mask, Tensor) else f"type {type(mask).__name__}"
        cached = f" behind {past} on the cache" if past else ""
        raise ValueError(
            f"attention_mask has {shape}, which does not show the padding of {batch} rows of {length} tokens{cached}: "
            f"pass a mask {(batch, whole)}, or position_ids"
        )
    kept = mask != 0
    if bool((mask != kept).any()):
        raise ValueError(
            "attention_mask holds other values than 0 and 1; expected 1 for tokens and 0 for padding; documents that "
            "are packed into one row show by position_ids that start again"
        )
    return kept[:, past:whole].to(device)
