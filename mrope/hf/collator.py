"""From records to a training batch for transformers' Trainer or a plain loop: padded, or packed into one row.

Letters: A axes, B rows, N slots.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping, Sequence
from math import prod
from typing import Any, Literal, TypeAlias, get_args

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from mrope.batches import batch as stacked
from mrope.checks import one_of, whole
from mrope.families import Family
from mrope.hf.batch import TEXT, batch_spans, token_kinds
from mrope.hf.call import Border, document_mask
from mrope.hf.plugging import _PLUG
from mrope.hf.processors.pixels import planning
from mrope.hf.reading import read_spans, record_of
from mrope.layouts import GenerationLayout, SpanLayout
from mrope.positions import Side
from mrope.positions import pack as joined
from mrope.spans import Image, Span, Text, Video

Truncate: TypeAlias = Literal["text", "error", "drop-pictures", "skip"]

IGNORED = -100  # the label of a token that is not learnt
_TYPES = ("mm_token_type_ids", "moe_mm_token_type_ids")  # the second are Ernie's, for its experts
_BY_TOKEN = ("input_ids", "attention_mask", *_TYPES, "labels")
_GRIDS = ("image_grid_thw", "video_grid_thw")
_TIMES = ("second_per_grid_ts", "video_second_per_grid")
_SIZES = (*_GRIDS, *_TIMES, "images_per_sample")
_PIXELS = {"pixel_values": Image, "pixel_values_videos": Video}
_MEDIA = (*_SIZES, *_PIXELS)
# What all records have that hold one of these, or none: a batch of some of them would say another thing.
_BESIDE = {**dict.fromkeys(_TYPES, _GRIDS), **dict.fromkeys(_TIMES, _GRIDS[1:]), "images_per_sample": ("input_ids",)}
_TALK = ("messages", "tools")
# What configurations call the words around a picture.
_AROUND = (
    *("vision_start_token_id", "vision_end_token_id", "image_start_token_id", "image_end_token_id"),
    *("im_start_id", "im_end_id"),  # Hunyuan's
)
# What messages may have whether or not a chat template reads it; all else it has to read.
_MESSAGE = ("role", "content", "name", "tool_call_id")


class Collator:
    """Makes a batch of records: the `data_collator` of transformers' Trainer, or the `collate_fn` of a DataLoader.

    A record is a conversation, or what a processor made of one:

    - {"messages": [...], "tools": [...]}, as `apply_chat_template` takes them, goes through `processor`. Learnt are the
      turns of the assistant behind what the chat template writes for `add_generation_prompt`, up to the end of the
      turn; all else has the label -100. Frames of a clip come as `mrope.vision.clip_of` makes one of them, which knows
      their times. A message holds what the chat template reads, and nothing else but its role, content, name and
      tool_call_id.
    - {"input_ids": ..., "pixel_values": ..., "image_grid_thw": ..., ...}, one row with or without a dim of 1 before its
      tokens. Its `labels` count where it has some; else all tokens of text are learnt. Its `position_ids` do not count:
      they are made again.

    The `id` of a record is left out, and so is what is None. The first token of a record is not learnt, as nothing of
    it stands before.

    A batch has `input_ids` and `labels` (B, N), the pictures of all rows, and `position_ids` by the rule that the
    weights were trained with, the text row first, so that it does not matter whether the model is plugged. Padded, it
    has an `attention_mask`. Packed, all records stand in one row without a mask: the text row counts from 0 in each,
    and from it transformers tells the documents apart, in eager attention and SDPA as in FlashAttention, whose
    boundaries are its zeros. `use_cache` is False, as transformers looks for documents only where there is no cache.
    HunyuanVL and Cosmos3-Edge take no text row: theirs is a mask of pairs (1, 1, N, N), for eager attention and SDPA.

    Patches of uint8, as `patchify(..., dtype="uint8")` and `mrope export` make them, stay bytes: an eighth of what goes
    to the device. There `mrope.vision.normalize` makes of them what `patchify` makes, or an embedding that
    `fold_normalization` changed takes them as they are. Records of bytes and of normalised values are never mixed.

    Trainer drops what the model's forward does not name: set `remove_unused_columns=False` for records of messages.

    Args:
        model: the model, or its configuration: of one of our families, or what `build_vlm` made.
        processor: what `mrope.hf.processor` made, for records of messages.
        pack: put all records of a batch into one row.
        side: where shorter rows are padded; packed, none are.
        max_length: most tokens of a record.
        truncate: what becomes of a longer record. A picture is never cut. "text" cuts off text behind the last picture
            or clip, and refuses a record whose pictures, or all that is to be learnt, lie beyond; "error" refuses all
            longer ones. "drop-pictures" does what "text" does, but of a record that it refuses takes out the last
            picture, with its placeholders, its patches and the two words of the model around it, until it is not
            refused: text that speaks of the picture stays, and clips do. "skip" leaves longer records out of the batch;
            `skipped` counts them. Both warn.
        layout: another rule; by default the one that the model is plugged with at this moment, or else was trained
            with.

    Raises:
        TypeError: the model is none of ours, the processor or the layout is none, or a record or what it holds is of
            another kind.
        ValueError: in a call, pictures do not fit their placeholders or their patches, a record is longer than
            `max_length` and `truncate` refuses it, or none is left, a record has nothing to learn, holds what cannot be
            put together or words behind the vocabulary, or the chat template reads no tools though some came, does not
            read what a message holds, or writes nothing for `add_generation_prompt`. Before, `pack` came with a `side`
            or for a family whose layers mix what stands in one row, or the processor's family, patches or placeholder
            are not the model's.

    >>> from transformers import Qwen2VLConfig
    >>> collator = Collator(Qwen2VLConfig(image_token_id=6, video_token_id=7), pack=True)
    >>> picture = {"image_grid_thw": [[1, 2, 4]], "pixel_values": torch.zeros(8, 1176)}
    >>> batch = collator([{"input_ids": [1, 6, 6, 2], **picture}, {"input_ids": [3, 4]}])
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
        truncate: Truncate = "text",
        layout: SpanLayout | None = None,
    ) -> None:
        one_of("padding side", side, ("left", "right"))
        one_of("truncate", truncate, get_args(Truncate))
        if truncate != "text" and max_length is None:
            raise ValueError(f"truncate is {truncate!r} and max_length is None; expected a max_length")
        self.config = config = getattr(model, "config", model)
        if not isinstance(getattr(config, "model_type", None), str):
            raise TypeError(f"model is {model!r:.80}; expected a transformers model or its configuration")
        if processor is not None and not hasattr(processor, "image_processor"):
            raise TypeError(f"processor is a {type(processor).__name__}; expected what mrope.hf.processor makes")
        if not isinstance(pack, bool):
            raise TypeError(f"pack is {pack!r}; expected True or False")
        if pack and side != "right":
            raise ValueError(f"side is {side!r} and pack is True, which pads nothing; expected one of the two")
        if layout is not None and not isinstance(layout, SpanLayout):
            raise TypeError(f"layout is {layout!r:.80}; expected a layout that places one span after the other")
        own: Any = getattr(config, "layout", None)  # of a model that build_vlm made
        self.border = None if isinstance(own, SpanLayout) else _border(model, config, layout)
        self.layout: Any = own if layout is None else layout
        self.with_text = self.border is None or self.border.takes_text_row
        written, read = (getattr(one, "image_token_id", None) for one in (processor, _reader(config)))
        if written not in (None, read):
            raise ValueError(
                f"processor writes {written} for a picture and the model reads {read}; expected the files of one model"
            )
        if processor is not None:
            _check_processor(processor, record_of(config))
        mixing = (Border(config, own, own) if self.border is None else self.border).mixing
        if pack and mixing:
            raise ValueError(
                f"pack is True and {config.model_type} has {mixing}, which mixes documents; expected pack=False"
            )
        text = _reader(config).get_text_config()
        self.words: int = text.vocab_size
        self.padding = getattr(config.get_text_config(), "pad_token_id", None) or 0
        dtype = getattr(model, "dtype", None)
        self.dtype = dtype if isinstance(dtype, torch.dtype) else torch.float32
        self.processor: Any = processor
        self.pack = pack
        self.side: Side = side
        self.max_length = None if max_length is None else whole("max_length", max_length, 1)
        self.truncate: Truncate = truncate
        self.skipped = 0

    def __call__(self, records: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """The batch of some records."""
        if not isinstance(records, Sequence) or isinstance(records, str):
            raise TypeError(f"records is a {type(records).__name__}; expected a list of them")
        if not records:
            raise ValueError("records is empty; expected at least one")
        rows, placed = [], []
        for number, record in enumerate(records):
            row = self._row(number, record)
            try:
                spans = self._spans(row)
            except ValueError as error:
                raise ValueError(f"record {number}: {error}") from error
            _check_pixels(number, row, spans)
            if self.max_length is not None and len(row["input_ids"]) > self.max_length:
                if self.truncate == "skip":
                    self.skipped += 1
                    continue
                row, spans = self._cut(number, row, spans)
            placed.append(self.layout(spans) if self.border is None else self.border._row(spans, 0))
            rows.append(row)
        if len(rows) < len(records):
            if not rows:
                raise ValueError(
                    f"max_length is {self.max_length}, and all {len(records)} records have more tokens; expected one "
                    "that fits"
                )
            warnings.warn("records beyond max_length are left out; Collator.skipped counts them", stacklevel=2)
        _check_together(rows)
        batch: dict[str, Any] = {name: torch.cat(values) for name in _MEDIA if (values := _all_of(rows, name))}
        fills = {"input_ids": self.padding, "attention_mask": 0, **dict.fromkeys(_TYPES, TEXT), "labels": IGNORED}
        if self.pack:
            made = joined(placed)
            ids = torch.cat([made.text[None].to(made.ids.dtype), made.ids])[:, None]
            batch["use_cache"] = False
            fills.pop("attention_mask")
            if not self.with_text:
                ids, batch["attention_mask"] = ids[1:], document_mask(made.text[None], self.dtype)
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
        if isinstance(record, Mapping):
            record = {key: value for key, value in record.items() if value is not None and key != "id"}
        if not isinstance(record, dict) or not {"messages", "input_ids"} & record.keys():
            keys = sorted(record) if isinstance(record, dict) else type(record).__name__
            why = "" if keys else " (Trainer drops the others without remove_unused_columns=False)"
            raise TypeError(f"record {number} is {keys}; expected a mapping with messages, or with input_ids{why}")
        if "input_ids" not in record:
            _check_keys(number, record, _TALK)
            record = self._talk(number, record["messages"], record.get("tools"))
        _check_keys(number, record, (*_BY_TOKEN, *_MEDIA, "position_ids"))
        made = {name: torch.as_tensor(record[name]) for name in _MEDIA if name in record}
        row = {name: value for name, value in made.items() if value.numel()}
        for name in _BY_TOKEN:
            if name in record:
                value = _whole_numbers(f"{name} of record {number}", record[name])
                row[name] = value[0] if value.dim() == 2 and len(value) == 1 else value
                if row[name].shape != row["input_ids"].shape or value.dim() > 2 or row[name].dim() != 1:
                    raise ValueError(
                        f"{name} of record {number} has shape {tuple(value.shape)}; expected one row, as long as its "
                        f"input_ids, which have {tuple(row['input_ids'].shape)}"
                    )
        kept = row.pop("attention_mask", torch.ones_like(row["input_ids"])) != 0
        row = {name: value[kept] if name in _BY_TOKEN else value for name, value in row.items()}
        if bool((row["input_ids"] < 0).any()):
            raise ValueError(f"input_ids of record {number} hold {int(row['input_ids'].min())}; expected at least 0")
        seen = self._kinds(row) != TEXT
        for name in ("input_ids", "labels"):
            values = row.get(name, row["input_ids"])
            if bool((beyond := ~seen & (values != IGNORED) & ((values < 0) | (values >= self.words))).any()):
                raise ValueError(
                    f"{name} of record {number} hold {int(values[beyond][0])}; expected words of the model, 0 to "
                    f"{self.words - 1}" + (f", or {IGNORED}" if name == "labels" else "")
                )
        row["attention_mask"] = torch.ones_like(row["input_ids"])
        row["labels"] = row.get("labels", row["input_ids"]).masked_fill(seen, IGNORED)
        row["labels"][:1] = IGNORED
        if bool((row["labels"] == IGNORED).all()):
            raise ValueError(
                f"record {number} has nothing to learn in its {len(seen)} tokens; expected a label that is not "
                f"{IGNORED} for a token of text behind the first"
            )
        return row

    def _talk(self, number: int, messages: Any, tools: Any) -> dict[str, Any]:
        """What the processor makes of a conversation, with labels for the turns of the assistant."""
        if self.processor is None:
            raise ValueError(f"record {number} has messages and processor is None; expected mrope.hf.processor(...)")
        if self.border is not None and isinstance(self.border.trained, GenerationLayout):
            raise ValueError(
                f"record {number} has messages and {self.config.model_type} answers in pictures; expected input_ids"
            )
        if not isinstance(messages, (list, tuple)) or not all(
            isinstance(message, Mapping) and isinstance(message.get("role"), str) for message in messages
        ):
            raise TypeError(
                f'messages of record {number} is {messages!r:.80}; expected a list of {{"role": ..., "content": ...}}'
            )
        roles = [message["role"] for message in messages]
        if "assistant" not in roles:
            raise ValueError(f"record {number} has no words of an assistant; expected at least one such message")
        if roles[0] == "assistant":
            raise ValueError(f"record {number} opens with the assistant; expected what it answers to before")
        for turn, message in enumerate(messages):
            told = f"{self.processor.chat_template}"
            if unread := sorted(
                key
                for key, value in message.items()
                if value is not None and key not in _MESSAGE and not re.search(rf"\b{re.escape(key)}\b", told)
            ):
                raise ValueError(
                    f"message {turn} of record {number} holds {', '.join(unread)}, which the chat template does not "
                    f"read; expected {', '.join(_MESSAGE)}, or what it reads"
                )
        if tools is not None and not isinstance(tools, (list, tuple)):
            raise TypeError(f"tools of record {number} is {tools!r:.80}; expected a list of them")
        words: dict[str, Any] = {"tools": tools} if tools else {}
        if words and self._text(messages) == self._text(messages, **words):
            raise ValueError(
                f"record {number} has tools, which the chat template does not read; expected a template that does, or "
                "no tools"
            )
        made = self.processor.apply_chat_template(
            messages, tokenize=True, return_dict=True, return_tensors="pt", **words
        )
        ids = made["input_ids"][0].tolist()
        labels = torch.full((len(ids),), IGNORED)
        for turn, role in enumerate(roles):
            if role == "assistant":
                before = self._tokens(messages[:turn], add_generation_prompt=True, **words)
                after = self._tokens(messages[: turn + 1], **words)
                talk, asked = (self._text(messages[:turn], add_generation_prompt=one, **words) for one in (False, True))
                if talk == asked:
                    raise ValueError(
                        f"turn {turn} of record {number} has no beginning, as the chat template writes nothing for "
                        "add_generation_prompt; expected a template that does"
                    )
                begin, end = _shared(ids, before), _shared(ids, after)
                # The last word before a seam may be joined to the first one behind it.
                if begin < len(before) - 1 or end < len(after) - 1:
                    raise ValueError(
                        f"turn {turn} of record {number} reads otherwise when the conversation ends there, by the chat "
                        "template; expected records that end with their only answer"
                    )
                labels[begin:end] = torch.tensor(ids[begin:end])
        return {**made, "labels": labels[None]}

    def _text(self, messages: Any, **options: Any) -> Any:
        """A conversation as the chat template writes it."""
        return self.processor.apply_chat_template(messages, **options)

    def _tokens(self, messages: Any, **options: Any) -> list[int]:
        """The tokens of a conversation whose pictures are planned and not decoded."""
        with planning():
            made = self.processor.apply_chat_template(messages, tokenize=True, return_dict=True, **options)
        return list(made["input_ids"][0])

    def _kinds(self, row: Mapping[str, Tensor]) -> Tensor:
        """(N,) 0 where there is text, another number where there are pictures, clips or sounds."""
        tokens, config = row["input_ids"], _reader(self.config)
        words = {name: getattr(config, name, None) for name in ("video_token_id", "audio_token_id")}
        return token_kinds(tokens[None], image_token_id=config.image_token_id, **words)[0]

    def _spans(self, row: dict[str, Tensor]) -> list[Span]:
        """The spans of one row."""
        media = {name: row.get(name) for name in _SIZES}
        if self.border is None:
            grids = {name: media[name] for name in (*_GRIDS, "second_per_grid_ts")}
            mask = torch.ones(1, len(row["input_ids"]), dtype=torch.bool)
            return batch_spans(self._kinds(row)[None], mask, layout=self.config.layout, **grids)[0]
        inputs = {name: row[name][None] for name in ("input_ids", "mm_token_type_ids") if name in row}
        return read_spans({**inputs, **media}, self.config)[0]

    def _cut(self, number: int, row: dict[str, Tensor], spans: list[Span]) -> tuple[dict[str, Tensor], list[Span]]:
        """A row of more than `max_length` tokens cut to them, and its spans."""
        while refused := self._refused(number, row, spans):
            pictures = [place for place, span in enumerate(spans) if isinstance(span, Image)]
            if self.truncate != "drop-pictures" or not pictures or "images_per_sample" in row:
                raise ValueError(refused)
            warnings.warn("pictures of records beyond max_length are dropped", stacklevel=3)
            row = self._without(row, spans, pictures[-1])
            spans = self._spans(row)
        length, last = len(row["input_ids"]), spans[-1]
        row = {name: value[: self.max_length] if name in _BY_TOKEN else value for name, value in row.items()}
        if isinstance(last, Text):
            left = last.length - (length - len(row["input_ids"]))
            spans = [*spans[:-1], Text(left)] if left else spans[:-1]
        return row, spans

    def _refused(self, number: int, row: Mapping[str, Tensor], spans: Sequence[Span]) -> str | None:
        """Why a row cannot be cut to `max_length` tokens of which some are to be learnt, by its text alone."""
        assert self.max_length is not None  # or nothing is cut
        length, last = len(row["input_ids"]), spans[-1]
        end = length - (last.length if isinstance(last, Text) else 0)
        learnt = (row["labels"] != IGNORED).nonzero()[:, 0].tolist()
        told = f"max_length is {self.max_length}; "
        if self.truncate == "error":
            return f"{told}record {number} has {length} tokens: expected at most that, or another truncate than 'error'"
        if len(spans) > 1 and end > self.max_length:
            return (
                f"{told}the last picture or clip of record {number} ends at token {end}: expected at least that, or "
                "fewer tokens a picture"
            )
        if not learnt:
            return f"{told}record {number} has nothing to learn without its pictures: expected a longer one"
        if learnt[0] >= self.max_length:
            return (
                f"{told}the first token of record {number} that is to be learnt is token {learnt[0] + 1}: expected at "
                "least that, or fewer tokens before it"
            )
        return None

    def _without(self, row: Mapping[str, Tensor], spans: Sequence[Span], place: int) -> dict[str, Tensor]:
        """A row without one of its pictures."""
        layout: Any = self.config.layout if self.border is None else self.border.trained
        begin, end = (sum(map(layout.tokens, spans[:to])) for to in (place, place + 1))
        around = {getattr(_reader(self.config), name, None) for name in _AROUND} - {None}
        if begin and {*row["input_ids"][begin - 1 : end + 1].tolist()[:: end - begin + 1]} <= around:
            begin, end = begin - 1, end + 1
        before = [span for span in spans[:place] if isinstance(span, Image)]
        grid = spans[place].grid  # pyright: ignore[reportAttributeAccessIssue]
        patch = sum(prod(span.grid) for span in before)
        gone = {
            **dict.fromkeys(_BY_TOKEN, (begin, end)),
            "image_grid_thw": (len(before), len(before) + 1),
            "pixel_values": (patch, patch + prod(grid)),
        }
        made = {
            name: torch.cat((value[: gone[name][0]], value[gone[name][1] :])) if name in gone else value
            for name, value in row.items()
        }
        made["labels"][:1] = IGNORED  # nothing stands before the first token
        return {name: value for name, value in made.items() if value.numel()}


def _shared(one: Sequence[int], other: Sequence[int]) -> int:
    """How many tokens both begin with."""
    return next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


def _border(model: Any, config: Any, layout: SpanLayout | None) -> Border:
    """How batches of a model of a family are read and laid out; as its plug does where it has one."""
    modules = model.modules() if isinstance(model, nn.Module) and layout is None else ()
    plug = next((module.__dict__[_PLUG] for module in modules if _PLUG in module.__dict__), None)
    return Border.of(config, layout) if plug is None else plug.border


def _reader(config: Any) -> Any:
    """The part of a configuration that knows the placeholders."""
    return getattr(config, "thinker_config", config)


def _check_processor(processor: Any, record: Family) -> None:
    """Refuse a processor that cuts or writes pictures for models of another kind."""
    pictures = processor.image_processor
    own = getattr(processor, "record", record) if record.model_types else record  # a built model may be of no family
    frames = None if record.temporal_merge > 1 else getattr(pictures, "temporal_patch_size", None)
    for name, came, wanted in (
        ("family", own.name, record.name),
        ("patch size", getattr(pictures, "patch_size", None), record.patch),
        ("merge size", getattr(pictures, "merge_size", None), record.merge),
        ("temporal patch size", frames, record.temporal_patch),
    ):
        if came not in (None, wanted):
            raise ValueError(f"{name} of the processor is {came}; expected {wanted}, as the model has")


def _check_keys(number: int, record: Mapping[str, Any], known: Sequence[str]) -> None:
    """Refuse what has no place in a batch."""
    if unknown := sorted(record.keys() - {*known}):
        raise ValueError(f"record {number} holds {', '.join(unknown)}; expected only {', '.join(sorted(known))}")


def _whole_numbers(name: str, value: Any) -> Tensor:
    """`value` as a tensor of whole numbers or of truths."""
    try:
        made = torch.as_tensor(value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise TypeError(f"{name} is {value!r:.80}; expected whole numbers") from error
    if made.numel() and (made.is_floating_point() or made.is_complex()):
        raise TypeError(f"{name} is of {made.dtype}; expected whole numbers")
    return made.long()


def _check_pixels(number: int, row: Mapping[str, Tensor], spans: Sequence[Span]) -> None:
    """Refuse patches that are not those of the pictures or clips."""
    for name, kind in _PIXELS.items():
        wanted = sum(prod(span.grid) for span in spans if isinstance(span, (Image, Video)) and isinstance(span, kind))
        came = len(row[name]) if name in row else 0
        if came != wanted:
            raise ValueError(f"{name} of record {number} has {came} patches; expected {wanted}, those of its grids")


def _check_together(rows: Sequence[Mapping[str, Tensor]]) -> None:
    """Refuse records that have what others lack, or patches of another size."""
    for name, others in _BESIDE.items():
        if any(name in row for row in rows):
            for number, row in enumerate(rows):
                if name not in row and any(other in row for other in others):
                    raise ValueError(f"record {number} has no {name}, others have; expected all or none")
    kinds = [(number, name, row[name].dtype) for number, row in enumerate(rows) for name in _PIXELS if name in row]
    for number, name, dtype in kinds:
        if (dtype == torch.uint8) != (kinds[0][2] == torch.uint8):
            raise ValueError(
                f"{name} of record {number} are {dtype}, {kinds[0][1]} of record {kinds[0][0]} are {kinds[0][2]}; "
                "expected bytes (uint8) in all, or normalised values in all"
            )
    for name in _PIXELS:
        shapes = [(number, tuple(row[name].shape[1:])) for number, row in enumerate(rows) if name in row]
        for number, shape in shapes:
            if shape != shapes[0][1]:
                raise ValueError(
                    f"{name} of record {number} have {shape} numbers a patch; expected {shapes[0][1]}, as in record "
                    f"{shapes[0][0]}"
                )


def _all_of(rows: Sequence[Mapping[str, Tensor]], name: str) -> list[Tensor]:
    """What the rows have by this name; text among rows that say token types has the type of text."""
    if name in _TYPES and any(name in row for row in rows):
        return [row.get(name, torch.full_like(row["input_ids"], TEXT)) for row in rows]
    return [row[name] for row in rows if name in row]
