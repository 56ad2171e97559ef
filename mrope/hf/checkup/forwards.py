"""Checks that run whole forwards and `generate`, with pictures, caches and what one call leaves to the next.

Seen are the ids that reach the language model. Letters: A axes, B rows, N tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from mrope.hf.checkup.compare import PLUG, attempt, finding, first_difference, ids_at, next_ids, share_off
from mrope.hf.checkup.prompts import TALL, WIDE, batch, clip, columns, has_clips, text_ids
from mrope.hf.checkup.report import Finding
from mrope.hf.checkup.subject import Subject
from mrope.layouts import CanvasLayout, GenerationLayout
from mrope.spans import Image, Text


def decoding(subject: Subject) -> Iterator[Finding]:
    """A forward that goes on from a cache gives the new token the next position, with and without a mask."""
    inputs = batch(subject, [[Text(4), WIDE, Text(3)]], pixels=True)
    right = next_ids(subject, inputs)[:, :, None]
    token = text_ids(subject, 1)
    mask = torch.cat([inputs["attention_mask"], torch.ones_like(token)], dim=1)
    for name, more in (("cache", {}), ("attention_mask of all tokens, cache", {"attention_mask": mask})):
        _, cache = subject.run(inputs)
        step = {"input_ids": token, subject.cache_name: cache, **more}
        ids, error = attempt(lambda step=step: subject.run(step)[0])
        silent = error is None and first_difference(ids, right) is not None
        if error is not None or silent:
            shape = f"ids of shape {tuple(ids.shape)}" if silent and ids.shape != right.shape else None
            yield finding(
                "decode",
                "wrong" if silent else "risky",
                rule=f"forward(token, {name}) goes on where the cache ends",
                seen=f"it raises {error}" if error else f"it gives {shape or ids_at(ids, 0, 0)}",
                right=ids_at(right, 0, 0),
            )


def mixed_media(subject: Subject) -> Iterator[Finding]:
    """A picture and a clip go together."""
    if not has_clips(subject) or subject.family.video_pixels is None:
        return
    inputs = batch(subject, [[Text(4), WIDE, Text(3), clip(subject, (2, 8, 4)), Text(3)]], pixels=True)
    _, alone = attempt(lambda: subject.run(batch(subject, [[Text(4), clip(subject, (2, 8, 4)), Text(3)]], pixels=True)))
    _, error = attempt(lambda: subject.run(inputs))
    if error is not None and alone is None:
        yield finding(
            "picture-and-clip",
            "risky",
            rule="a prompt may hold a picture and a clip",
            seen=f"forward raises {error}",
            right="no error",
            fix="keep them in separate prompts, or pass the clip as pictures",
        )


def token_types(subject: Subject) -> Iterator[Finding]:
    """Without mm_token_type_ids a picture is laid out all the same, or refused."""
    if not subject.takes("mm_token_type_ids"):
        return
    inputs = batch(subject, [[Text(4), WIDE, Text(3)]], pixels=True)
    right = subject.trained(inputs)
    del inputs["mm_token_type_ids"]
    calls: dict[str, Callable[[], Tensor]] = {"forward": lambda: subject.run(inputs)[0]}
    if hasattr(subject.model, "generate"):
        calls["generate"] = lambda: _generated(subject, inputs, 1)[0]
    for name, call in calls.items():
        ids, error = attempt(call)
        if error is None and (place := first_difference(ids, right)) is not None:
            yield finding(
                "token-types",
                "wrong",
                rule=f"{name} without mm_token_type_ids lays pictures out, or refuses them",
                seen=f"it gives token {place[1]} the id {ids_at(ids, *place)}",
                right=ids_at(right, *place),
                fix=f"pass the mm_token_type_ids of the processor, {PLUG}, or mrope.hf.token_kinds(input_ids, ...)",
            )


def _generated(subject: Subject, inputs: dict[str, Any], count: int) -> list[Tensor]:
    """The ids of the prompt and of each step of `generate`."""
    with subject.seen() as ids:
        subject.model.generate(**inputs, max_new_tokens=count, min_new_tokens=count, do_sample=False, num_beams=1)
    return ids


def next_turn(subject: Subject) -> Iterator[Finding]:
    """A new picture may come on top of a cache."""
    if isinstance(subject.layout, GenerationLayout):
        return  # a prompt of this family ends where a picture is generated
    rows = [[Text(4), WIDE, Text(4), TALL, Text(2)]]
    both, first = batch(subject, rows, pixels=True), batch(subject, [rows[0][:3]], pixels=True)
    past = first["input_ids"].shape[1]
    right = subject.trained(both)[..., past:]
    new = columns(both, slice(past, None)) | _media(batch(subject, [rows[0][3:]], pixels=True))
    attempts = {
        "the new tokens, grid and pixels": {key: value for key, value in new.items() if key != "attention_mask"},
        "these and the whole mask": new | {"attention_mask": both["attention_mask"]},
        "the new tokens, all grids and pixels, and the whole mask": columns(both, slice(past, None))
        | {"attention_mask": both["attention_mask"]},
    }
    seen = []
    for name, inputs in attempts.items():
        _, cache = subject.run(first)
        ids, error = attempt(lambda inputs=inputs, cache=cache: subject.run({**inputs, subject.cache_name: cache})[0])
        if error is None:
            place = first_difference(ids, right)
            if place is None:
                return
            seen.append((name, f"gives token {place[1]} the id {ids_at(ids, *place)}", ids_at(right, *place)))
        else:
            seen.append((name, f"raises {error}", ids_at(right, 0, 0)))
    silent = next((each for each in seen if each[1].startswith("gives")), None)
    name, what, wanted = silent or seen[0]
    yield finding(
        "next-turn",
        "wrong" if silent else "risky",
        rule="a turn with a new picture goes on from the cache",
        seen=f"forward with {name} {what}",
        right=wanted,
        fix=f"{PLUG}, or prefill the whole conversation again",
    )


def _media(inputs: dict[str, Any]) -> dict[str, Any]:
    kept = ("image_grid_thw", "pixel_values", "target_sizes", "images_per_sample")
    return {key: value for key, value in inputs.items() if key in kept}


def stale_offset(subject: Subject) -> Iterator[Finding]:
    """What a forward leaves on the model does not reach the next request."""
    rows = [[Text(4), Image((1, 4, 16)), Text(3)], [Text(4), Image((1, 16, 4)), Text(5)]]
    embeds = subject.base.get_input_embeddings()(text_ids(subject, 6))
    right = torch.arange(6).expand(subject.layout.axes, 1, 6)
    for rows_before in (rows[:1], rows):
        subject.run(batch(subject, rows_before, pixels=True))
        ids, error = attempt(lambda: subject.run({"inputs_embeds": embeds})[0])
        if error is not None or first_difference(ids, right) is not None:
            yield finding(
                "stale-offset",
                "risky",
                rule="a request of text begins at 0, whatever the model computed before",
                seen=f"after {len(rows_before)} rows with pictures inputs_embeds of one row "
                + (f"raise {error}" if error else f"begin at {ids_at(ids, 0, 0)}"),
                right=ids_at(right, 0, 0),
                fix=f"model.model.rope_deltas = None between requests, or {PLUG}",
            )
            return


def ends_on_picture(subject: Subject) -> Iterator[Finding]:
    """`generate` goes on at the largest position + 1, also behind a picture."""
    if not hasattr(subject.model, "generate") or isinstance(subject.layout, (GenerationLayout, CanvasLayout)):
        return
    inputs = batch(subject, [[Text(4), WIDE]], pixels=True)
    if inputs["input_ids"][0, -1] != subject.small.image_token_id:
        inputs = columns(inputs, slice(0, -1))
    if attempt(lambda: subject.run(inputs))[1] is not None:
        return  # a family whose pictures need a word behind them
    right = next_ids(subject, inputs)[:, :, None]
    steps = _generated(subject, inputs, 2)
    ids = steps[1][..., -1:]
    if first_difference(ids, right) is not None:
        yield finding(
            "ends-on-picture",
            "wrong",
            rule="the first new token behind a picture is at the largest position + 1",
            seen=f"generate puts it at {ids_at(ids, 0, 0)}",
            right=ids_at(right, 0, 0),
            fix=f"end the prompt on text, or {PLUG}",
        )


def beams(subject: Subject) -> Iterator[Finding]:
    """Each beam of a row sees the pictures and clips of that row, in order."""
    if not hasattr(subject.model, "generate"):
        return
    rows = {"pictures": [[Text(3), WIDE, Text(2), TALL, Text(3)], [Text(4), WIDE, Text(3)]]}
    if has_clips(subject) and subject.family.video_pixels is not None:
        wide, tall = clip(subject, (2, 4, 8)), clip(subject, (2, 8, 4))
        rows["clips"] = [[Text(3), wide, Text(2), tall, Text(3)], [Text(4), wide, Text(3)]]
    for what, each in rows.items():
        inputs = batch(subject, each, pixels=True)
        if "second_per_grids" in inputs:  # which forwards of models that hear call otherwise than their index
            inputs["video_second_per_grid"] = inputs.pop("second_per_grids")
        right, alone = attempt(lambda inputs=inputs: _first_logits(subject, inputs, 1))
        seen, error = attempt(lambda inputs=inputs: _first_logits(subject, inputs, 2))
        if alone is not None:
            continue  # no fault of beams
        off = {} if error else {row: share_off(seen[2 * row : 2 * row + 2], right[row]) for row in range(len(each))}
        row = max(off, key=off.__getitem__, default=0)
        if error is not None or off[row]:
            yield finding(
                "beams",
                "risky" if error else "wrong",
                rule=f"with num_beams=2 each beam sees the {what} of its own row, in order",
                seen=f"generate raises {error}"
                if error
                else f"the logits of row {row} are off by {off[row]:.2g} of their size",
                right="the logits of num_beams=1",
                fix=f"{PLUG}, or num_beams=1 and num_return_sequences=1",
            )


def _first_logits(subject: Subject, inputs: dict[str, Any], beams: int) -> Tensor:
    """(B * `beams`, V) of the first token that `generate` makes."""
    options = {"do_sample": False, "output_logits": True, "return_dict_in_generate": True}
    return subject.model.generate(**inputs, **options, max_new_tokens=1, num_beams=beams).logits[0]


def generated_pictures(subject: Subject) -> Iterator[Finding]:
    """GLM-Image: each row generates its own pictures, and may go on behind them."""
    if not isinstance(subject.layout, GenerationLayout):
        return
    config = subject.small
    words = text_ids(subject, 5).repeat(2, 1)
    words[:, -1] = config.image_start_token_id
    targets = torch.tensor([[1, 4, 6], [1, 6, 4]], device=subject.device)
    mask = torch.ones_like(words)
    base, tables = subject.base, []
    for more in ({"images_per_sample": torch.tensor([1, 1])}, {}):
        _, error = attempt(
            lambda more=more: base.get_rope_index(words, image_grid_thw=targets, attention_mask=mask, **more)
        )
        planned = None if error else getattr(base, "_cached_decode_position_ids", None)
        tables.append(None if planned is None else planned.shape[-1])
    if None not in tables and tables[0] != tables[1]:
        yield finding(
            "generated-pictures",
            "wrong",
            rule="each of two rows plans one picture of 4 x 6 and the end token",
            seen=f"without images_per_sample {tables[1]} ids are planned for each",
            right=f"{tables[0]}, or an error",
            fix="pass images_per_sample",
        )
    one = {"input_ids": words[:1], "image_grid_thw": targets[:1], "images_per_sample": torch.tensor([1])}
    _, error = attempt(lambda: _generated(subject, {**one, "attention_mask": mask[:1]}, 4 * 6 + 4))
    if error is not None:
        yield finding(
            "generated-pictures",
            "risky",
            rule="generation may go on behind the planned picture",
            seen=f"generate of 28 tokens for a picture of 24 raises {error}",
            right="text positions behind the end token",
            fix="set max_new_tokens to the tokens of the picture + 1",
        )
