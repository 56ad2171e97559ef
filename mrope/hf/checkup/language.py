"""Checks of the language model alone: its rotary tables, and packed rows. Letters: B rows, N tokens."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from mrope.hf.checkup.compare import attempt, finding
from mrope.hf.checkup.prompts import text_ids
from mrope.hf.checkup.report import Finding
from mrope.hf.checkup.subject import Subject

_SAME = 1e-3  # hidden states that are farther apart, as a share of their size, have seen other tokens


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
    apart = [f"{words} with ids {name}" for name, words in seen.items() if words]
    if not apart:
        return
    right = next((name for name, words in seen.items() if not words), None)
    yield finding(
        "packing",
        "wrong" if any("changes" in words for words in apart) else "risky",
        rule="with position ids that begin again a packed document is computed as alone",
        seen="a document before it " + "; ".join(apart),
        right="no change",
        fix=f"pass {right} ids, text row first" if right else "do not pack, or use FlashAttention with cu_seq_lens",
    )


def leaks(subject: Subject, rows: int) -> str | None:
    """What the document before it does to a packed document, in words; None if nothing.

    Args:
        subject: whose language model is run.
        rows: rows of ids beside the text row; 0 for ids (B, N).
    """
    lengths = (5, 7)
    ids = torch.cat([torch.arange(length, device=subject.device) for length in lengths])[None]
    embeds = subject.base.get_input_embeddings()(text_ids(subject, sum(lengths)))

    def run(part: slice, given: Tensor) -> Tensor:
        model = subject.base.language_model
        return model(inputs_embeds=embeds[:, part], position_ids=given, use_cache=False).last_hidden_state

    alone = run(slice(lengths[0], None), ids[:, lengths[0] :])
    packed = ids[None].expand(rows + 1, -1, -1) if rows else ids
    hidden, error = attempt(lambda: run(slice(None), packed))
    if error is not None:
        return f"raises {error}"
    off = float((hidden[:, lengths[0] :] - alone).abs().amax() / alone.abs().amax())
    same = max(_SAME, 4 * torch.finfo(alone.dtype).eps)
    return f"changes its hidden states by {off:.2g} of their size" if off > same else None
