"""Checks of what the model does with text: its rotary tables, and packed rows. Letters: B rows, N tokens."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from mrope.hf.checkup.compare import PLUG, attempt, finding, share_off
from mrope.hf.checkup.prompts import text_ids
from mrope.hf.checkup.report import Finding
from mrope.hf.checkup.subject import Subject

BARE = "use_cache=False and no attention_mask"
"""How transformers must be called so that it looks for documents in a row."""


def rotation(subject: Subject) -> Iterator[Finding]:
    """The rotary tables turn: both channels of each pair have one angle."""
    module = getattr(subject.base.language_model, "rotary_emb", None)
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(0, 50, (subject.layout.axes, 1, 6), generator=generator).to(subject.device)
    table = None if module is None else attempt(lambda: module(torch.zeros(1, 6, 8), ids))[0]
    if table is None or table[0].dim() != 3:
        return  # tables by layer type or by axis, which the attention takes pairs from
    section, pairs = getattr(module, "mrope_section", None), table[0].shape[-1] // 2
    if section and sum(section) != pairs:
        yield finding(
            "rotation",
            "wrong",
            rule="mrope_section deals out all rotary pairs",
            seen=f"its rotary module turns {pairs} pairs by a section of {sum(section)}: {list(section)}",
            right=f"{sum(section)} pairs, or a section of {pairs}",
            fix="state partial_rotary_factor and mrope_section",
        )
    for name, values in zip(("cos", "sin"), table, strict=True):
        halves = (values[..., : values.shape[-1] // 2] - values[..., values.shape[-1] // 2 :]).abs().amax()
        pairs = (values[..., ::2] - values[..., 1::2]).abs().amax()
        off = float(torch.minimum(halves, pairs))
        if off > 1e-5:
            yield finding(
                "rotation",
                "wrong",
                rule="both channels of a rotary pair are turned by one angle, and lengths stay",
                seen=f"{name} of the two channels differs by up to {off:.2f} where the axes differ",
                right="0",
                fix="mrope.hf.plug(model, rotary=True), or mrope.Rotary.from_config(config), which split the pairs",
            )
            return


def packing(subject: Subject) -> Iterator[Finding]:
    """Documents in one row do not see each other."""
    shapes = {"(B, N)": 0, f"({subject.layout.axes + 1}, B, N)": subject.layout.axes}
    seen = {name: leaks(subject, rows) for name, rows in shapes.items()}
    right = next((name for name, words in seen.items() if not words), None)
    # A shape that is refused is no fault where another one is right.
    places = {f"with ids {name}": words for name, words in seen.items() if words and not (right and "raises" in words)}
    level = "wrong" if any("changes" in words for words in places.values()) else "risky"
    fix = "do not pack, or use FlashAttention with cu_seq_lens"
    if right is not None:
        calls = {
            f"with ids {right} unless use_cache=False": leaks(subject, shapes[right], use_cache=None),
            f"with ids {right} and an attention_mask": leaks(subject, shapes[right], masked=True),
        }
        hidden = {place: words for place, words in calls.items() if words}
        places |= hidden
        fix = f"pass {right} ids{', text row first' * bool(shapes[right])}{f', {BARE}' * bool(hidden)}, or {PLUG}"
    if places:
        told = {words: [place for place, each in places.items() if each == words] for words in places.values()}
        yield finding(
            "packing",
            level,
            rule="with position ids that begin again a packed document is computed as alone",
            seen="; ".join(f"{words} {', '.join(each)}" for words, each in told.items()),
            right="no change",
            fix=fix,
        )


def leaks(subject: Subject, rows: int, *, masked: bool = False, use_cache: bool | None = False) -> str | None:
    """What the document before it does to a packed document, in words; None if nothing.

    Args:
        subject: whose base model is run.
        rows: rows of ids beside the first one; 0 for ids (B, N).
        masked: pass an attention mask of ones.
        use_cache: what the call says of a cache; None if nothing, so that the configuration decides.
    """
    lengths = (5, 7)
    ids = torch.cat([torch.arange(length, device=subject.device) for length in lengths])[None]
    words = text_ids(subject, sum(lengths))

    def run(part: slice, given: Tensor, **more: Any) -> Tensor:
        return subject.base(input_ids=words[:, part], position_ids=given, **more).last_hidden_state

    call: dict[str, Any] = {} if use_cache is None else {"use_cache": use_cache}
    call |= {"attention_mask": torch.ones_like(words)} if masked else {}
    alone = run(slice(lengths[0], None), ids[:, lengths[0] :], use_cache=False)
    packed = ids[None].expand(rows + 1, -1, -1) if rows else ids
    hidden, error = attempt(lambda: run(slice(None), packed, **call))
    if error is not None:
        return f"it raises {error}"
    off = share_off(hidden[:, lengths[0] :], alone)
    return f"the document before it changes its hidden states by {off:.2g} of their size" if off else None
