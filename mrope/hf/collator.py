"""From records to a training batch for transformers' Trainer or a plain loop: padded, or packed into one row.

Letters: A axes, B rows, N slots.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from mrope.batches import batch as stacked
from mrope.checks import one_of, whole
from mrope.hf.batch import TEXT, batch_spans, token_kinds
from mrope.hf.call import Border
from mrope.hf.processors.pixels import planning
from mrope.hf.reading import layout_of, read_spans
from mrope.layouts import SpanLayout
from mrope.positions import Side
from mrope.positions import pack as joined
from mrope.spans import Span, Text

IGNORED = -100  # the label of a token that is not learnt
_BY_TOKEN = ("input_ids", "attention_mask", "mm_token_type_ids", "labels")
_GRIDS = ("image_grid_thw", "video_grid_thw", "second_per_grid_ts")
_MEDIA = (*_GRIDS, "pixel_values", "pixel_values_videos")


class Collator:
    """Makes a batch of records: the `data_collator` of transformers' Trainer, or the `collate_fn` of a DataLoader.

    A record is a conversation, or what a processor made of one:

    - {"messages": [...]}, as `apply_chat_template` takes them, goes through `processor`. Learnt are the turns of the
      assistant, up to the end of the turn; all else has the label -100.
    - {"input_ids": ..., "pixel_values": ..., "image_grid_thw": ..., ...}, one row with or without a dim of 1 before its
      tokens. Its `labels` count where it has some; else all tokens of text are learnt.

    A batch has `input_ids` and `labels` (B, N), the pictures of all rows, and `position_ids` by the rule that the
    weights were trained with, the text row first, so that it does not matter whether the model is plugged. Padded, it
    has an `attention_mask`. Packed, all records stand in one row without a mask: the text row counts from 0 in each,
    and from it transformers tells the documents apart, in eager attention and SDPA as in FlashAttention, whose
    boundaries are its zeros. The first token of each is not learnt, as it stands behind another document, and
    `use_cache` is False, as transformers looks for documents only where there is no cache.

    Trainer drops what the model's forward does not name: set `remove_unused_columns=False` for records of messages.

    Args:
        model: the model, or its configuration: of one of our families, or what `build_vlm` made.
        processor: what `mrope.hf.processor` made, for records of messages.
        pack: put all records of a batch into one row.
        side: where shorter rows are padded.
        max_length: most tokens of a record; what is beyond them is cut off if it is text.
        layout: the rule, where the model was plugged with another one.

    Raises:
        TypeError: the model is none of ours, or a record is none.
        ValueError: in a call, pictures do not fit their placeholders, a record would be cut inside a picture or before
            its last one, a conversation has nothing to learn, or a record holds what cannot be put together. Before,
            `pack` came for a family whose layers mix what stands in one row.

    >>> from transformers import Qwen2VLConfig
    >>> collator = Collator(Qwen2VLConfig(image_token_id=6, video_token_id=7), pack=True)
    >>> batch = collator([{"input_ids": [1, 6, 6, 2], "image_grid_thw": [[1, 2, 4]]}, {"input_ids": [3, 4]}])
    >>> batch["position_ids"][:, 0].tolist()
    [[0, 1, 2, 3, 0, 1], [0, 1, 1, 3, 0, 1], [0, 1, 1, 3, 0, 1], [0, 1, 2, 3, 0, 1]]
    >>> batch["labels"].tolist()
    [[-100, -100, -100, 2, -100, 4]]
    """

    def __init__(
        self,
        model: Any,
        processor: Any = None,
        *,
        pack: bool = False,
        side: Side = "right",
        max_length: int | None = None,
        layout: SpanLayout | None = None,
    ) -> None:
        one_of("padding side", side, ("left", "right"))
        self.config = config = getattr(model, "config", model)
        own = getattr(config, "layout", None)  # of a model that build_vlm made
        self.built = isinstance(own, SpanLayout)
        self.with_text = self.built or Border.of(config).takes_text_row
        rule = layout if layout is not None else own if isinstance(own, SpanLayout) else layout_of(config)
        self.layout: SpanLayout = rule
        text = config.get_text_config()
        mixing = sorted({kind for kind in getattr(text, "layer_types", None) or () if "linear" in kind})
        if pack and (mixing or not self.with_text):
            why = f"layers of {', '.join(mixing)}" if mixing else "no text row among its position_ids"
            raise ValueError(
                f"pack is True and {config.model_type} has {why}, which mixes documents; expected pack=False"
            )
        self.padding = getattr(text, "pad_token_id", None) or 0
        self.processor, self.pack = processor, pack
        self.side: Side = side
        self.max_length = None if max_length is None else whole("max_length", max_length, 1)

    def __call__(self, records: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """The batch of some records."""
        if not records:
            raise ValueError("records is empty; expected at least one")
        rows, placed = [], []
        for number, record in enumerate(records):
            row = self._row(number, record)
            try:
                spans = self._spans(row)
            except ValueError as error:
                raise ValueError(f"record {number}: {error}") from error
            placed.append(self.layout(self._cut(number, row, spans)))
            rows.append(row)
        batch: dict[str, Any] = {name: torch.cat(values) for name in _MEDIA if (values := _all_of(rows, name))}
        fills = {"input_ids": self.padding, "attention_mask": 0, "mm_token_type_ids": TEXT, "labels": IGNORED}
        if self.pack:
            for row in rows:
                row["labels"][:1] = IGNORED
            made = joined(placed)
            ids = torch.cat([made.text[None].to(made.ids.dtype), made.ids])[:, None]
            batch["use_cache"] = False
            fills.pop("attention_mask")
        else:
            made = stacked(placed, self.side)
            ids = made.with_text if self.with_text else made.ids
        for name, fill in fills.items():
            values = _all_of(rows, name)
            if values and self.pack:
                batch[name] = torch.cat(values)[None]
            elif values:
                batch[name] = pad_sequence(values, batch_first=True, padding_value=fill, padding_side=self.side)
        return batch | {"position_ids": ids}

    def _row(self, number: int, record: Mapping[str, Any]) -> dict[str, Tensor]:
        """One record as tensors: (N,) a token, and media; without padding."""
        if not isinstance(record, Mapping) or not {"messages", "input_ids"} & record.keys():
            keys = sorted(record) if isinstance(record, Mapping) else type(record).__name__
            raise TypeError(f"record {number} is {keys}; expected a mapping with messages, or with input_ids")
        if "input_ids" not in record:
            record = self._talk(number, record["messages"])
        known = {*_BY_TOKEN, *_MEDIA, "position_ids"}  # the last are made again
        if unknown := sorted({key for key, value in record.items() if value is not None} - known):
            raise ValueError(f"record {number} holds {', '.join(unknown)}; expected only {', '.join(sorted(known))}")
        row = {name: torch.as_tensor(record[name]) for name in _MEDIA if record.get(name) is not None}
        for name in _BY_TOKEN:
            if record.get(name) is not None:
                value = torch.as_tensor(record[name])
                row[name] = value[0] if value.dim() == 2 and len(value) == 1 else value
                if row[name].shape != row["input_ids"].shape or value.dim() > 2 or row[name].dim() != 1:
                    raise ValueError(
                        f"{name} of record {number} has shape {tuple(value.shape)}; expected one row, as long as its "
                        f"input_ids, which have {tuple(row['input_ids'].shape)}"
                    )
        kept = row.pop("attention_mask", torch.ones_like(row["input_ids"])) != 0
        row = {name: value[kept] if name in _BY_TOKEN else value for name, value in row.items()}
        seen = self._kinds(row) != TEXT
        row["attention_mask"] = torch.ones_like(row["input_ids"])
        row["labels"] = row.get("labels", row["input_ids"]).masked_fill(seen, IGNORED)
        return row

    def _talk(self, number: int, messages: Any) -> dict[str, Any]:
        """What the processor makes of a conversation, with labels for the turns of the assistant."""
        if self.processor is None:
            raise ValueError(f"record {number} has messages and processor is None; expected mrope.hf.processor(...)")
        made = self.processor.apply_chat_template(messages, tokenize=True, return_dict=True, return_tensors="pt")
        ids = made["input_ids"][0].tolist()
        labels = torch.full((len(ids),), IGNORED)
        for turn, message in enumerate(messages):
            if message["role"] == "assistant":
                before = self._tokens(messages[:turn], add_generation_prompt=True)
                after = self._tokens(messages[: turn + 1])
                begin, end = _shared(ids, before), _shared(ids, after)
                # The last word before a seam may be joined to the first one behind it.
                if begin < len(before) - 1 or end < len(after) - 1:
                    raise ValueError(
                        f"turn {turn} of record {number} reads otherwise when the conversation ends there, by the chat "
                        "template; expected records that end with their only answer"
                    )
                labels[begin:end] = torch.tensor(ids[begin:end])
        if bool((labels == IGNORED).all()):
            raise ValueError(f"record {number} has no words of an assistant; expected at least one such message")
        return {**made, "labels": labels[None]}

    def _tokens(self, messages: Any, **options: Any) -> list[int]:
        """The tokens of a conversation whose pictures are planned and not decoded."""
        with planning():
            made = self.processor.apply_chat_template(messages, tokenize=True, return_dict=True, **options)
        return list(made["input_ids"][0])

    def _kinds(self, row: Mapping[str, Tensor]) -> Tensor:
        """(N,) 0 where there is text, another number where there are pictures, clips or sounds."""
        tokens, config = row["input_ids"], getattr(self.config, "thinker_config", self.config)
        words = {name: getattr(config, name, None) for name in ("video_token_id", "audio_token_id")}
        return token_kinds(tokens[None], image_token_id=config.image_token_id, **words)[0]

    def _spans(self, row: dict[str, Tensor]) -> list[Span]:
        """The spans of one row."""
        media = {name: row.get(name) for name in _GRIDS}
        if self.built:
            mask = torch.ones(1, len(row["input_ids"]), dtype=torch.bool)
            return batch_spans(self._kinds(row)[None], mask, layout=self.config.layout, **media)[0]
        inputs = {name: row[name][None] for name in ("input_ids", "mm_token_type_ids") if name in row}
        return read_spans({**inputs, **media}, self.config)[0]

    def _cut(self, number: int, row: dict[str, Tensor], spans: list[Span]) -> list[Span]:
        """The spans of a row of at most `max_length` tokens, and `row` cut to them."""
        length = len(row["input_ids"])
        if self.max_length is None or length <= self.max_length:
            return spans
        last = spans[-1]
        behind = last.length if isinstance(last, Text) else 0
        if len(spans) > 1 and length - behind > self.max_length:
            raise ValueError(
                f"max_length is {self.max_length}; the last picture or clip of record {number} ends at token "
                f"{length - behind}: expected at least that, or fewer tokens a picture"
            )
        for name in _BY_TOKEN:
            if name in row:
                row[name] = row[name][: self.max_length]
        left = self.max_length - (length - behind)
        return [*spans[:-1], Text(left)] if left else spans[:-1]


def _shared(one: Sequence[int], other: Sequence[int]) -> int:
    """How many tokens both begin with."""
    return next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


def _all_of(rows: Sequence[Mapping[str, Tensor]], name: str) -> list[Tensor]:
    """What the rows have by this name; text among rows that say token types has the type of text."""
    values = [row.get(name) for row in rows]
    if name == "mm_token_type_ids" and any(value is not None for value in values):
        for number, (value, row) in enumerate(zip(values, rows, strict=True)):
            if value is None and any(row.get(grids) is not None for grids in _GRIDS):
                raise ValueError(f"record {number} has no mm_token_type_ids, others have; expected all or none")
        values = [torch.zeros_like(row["input_ids"]) if v is None else v for v, row in zip(values, rows, strict=True)]
    return [value for value in values if value is not None]
