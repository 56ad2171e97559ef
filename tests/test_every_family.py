"""Every family: its spans read back from a batch of its own, its positions those of the installed library."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import replace
from random import Random
from typing import Any

import pytest
import torch
import transformers
from every_family import (
    DOCUMENT,
    IMG,
    MODEL_TYPES,
    OMNI,
    Batch,
    config_of,
    declared,
    encode,
    installed,
    model_of,
    rows_of,
)
from torch import Tensor

from mrope import Span, Text
from mrope.hf import batch_positions, layout_of, read_spans
from mrope.positions import End

VERSION = "transformers-5.24"
every_family = pytest.mark.parametrize(
    "model_type",
    [
        pytest.param(
            name,
            marks=pytest.mark.skipif(
                not installed(name), reason=f"transformers {transformers.__version__} has no {name}"
            ),
        )
        for name in MODEL_TYPES
    ],
)
this_version = pytest.mark.skipif(
    not transformers.__version__.startswith("5.24."), reason=f"{VERSION} is compared on that version only"
)


def library_index(model_type: str, batch: Batch) -> Tensor:
    """The ids (A, B, N) of the library."""
    inputs = dict(batch.inputs)
    if model_type == "neomme":
        return neomme_processor()._build_position_ids(**inputs)
    if model_type in OMNI:
        inputs["use_audio_in_video"] = any(getattr(span, "audio", None) for row in batch.rows for span in row)
    return model_of(model_type).get_rope_index(**inputs)[0]


@functools.cache
def neomme_processor() -> Any:
    """The real processor, whose positions these are, with a vocabulary of three words."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel

    words = {"<pad>": 0, "<unk>": 1, "<doc>": DOCUMENT, "<row>": 7, "<img>": IMG}
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(WordLevel(words, unk_token="<unk>")),
        pad_token="<pad>",
        unk_token="<unk>",
        extra_special_tokens={"document_token": "<doc>", "image_token": "<img>", "row_token": "<row>"},
    )
    return transformers.NeoMMEProcessor(transformers.NeoMMEImageProcessor(), tokenizer)


def our_ids(model_type: str, batch: Batch, spans: Sequence[Sequence[Span]]) -> Tensor:
    """Our ids of the rule that this version of the library has."""
    layout = layout_of(config_of(model_type), VERSION)
    mask = batch.inputs["attention_mask"].bool()
    starts: Any = None
    if model_type == "hunyuan_vl":  # the library numbers pictures through the batch
        counts = [sum(not isinstance(span, Text) for span in row) for row in spans]
        starts = [replace(layout([]), ends=(End(pictures=sum(counts[:row])),)) for row in range(len(spans))]
    return batch_positions(spans, mask, layout=layout, starts=starts)


@every_family
@this_version
@pytest.mark.filterwarnings("ignore:.*temporal steps share")
def test_positions_are_the_installed_librarys(model_type: str) -> None:
    seen = 0
    for seed in range(500):
        rng = Random(seed)
        batch = encode(model_type, rows_of(model_type, rng), side=rng.choice(("left", "right")), seed=seed)
        ids = library_index(model_type, batch)
        mask = batch.inputs["attention_mask"].bool()
        ours = our_ids(model_type, batch, read_spans(batch.inputs, config_of(model_type)))
        if ids.is_floating_point():  # real ids, or whole ones that the library returns as real
            torch.testing.assert_close(ours.to(ids.dtype)[:, mask], ids[:, mask], rtol=1e-6, atol=1e-5)
        else:
            assert torch.equal(ours[:, mask], ids[:, mask]), seed
        assert not ours[:, ~mask].any()
        seen += len(mask)
    assert seen >= 750


@every_family
def test_spans_are_read_back(model_type: str) -> None:
    config = config_of(model_type)
    for seed in range(200):
        rng = Random(seed)
        rows = rows_of(model_type, rng)
        batch = encode(model_type, rows, side=rng.choice(("left", "right")), seed=seed)
        assert read_spans(batch.inputs, config) == declared(model_type, rows), seed
        if batch.inputs.pop("mm_token_type_ids", None) is not None:
            assert read_spans(batch.inputs, config) == declared(model_type, rows), seed
