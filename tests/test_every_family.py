"""Every family: thousands of prompts against an oracle of its own and against the installed library."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import jaxtyping
import pytest
import torch
import transformers
from every_family import (
    DOCUMENT,
    IMG,
    MODEL_TYPES,
    OMNI,
    Batch,
    case_of,
    config_of,
    declared,
    encode,
    installed,
    model_of,
    rows_of,
    trained_rows_of,
)
from layout_cases import assert_as_oracle
from torch import Tensor

import mrope
from mrope import Image, Sliced, Span, Target, Text, Video
from mrope.hf import batch_positions, layout_of, read_positions, read_spans
from mrope.hf.reading import record_of
from mrope.positions import End

VERSION = "transformers-5.24"
PROMPTS = 2000  # of each family, against its oracle and against the library
MISSING = [name for name in MODEL_TYPES if not installed(name)]
every_family = pytest.mark.parametrize(
    "model_type",
    [
        pytest.param(
            name,
            marks=pytest.mark.skipif(name in MISSING, reason=f"transformers {transformers.__version__} has no {name}"),
        )
        for name in MODEL_TYPES
    ],
)
this_version = pytest.mark.skipif(
    not transformers.__version__.startswith("5.24."), reason=f"{VERSION} is compared on that version only"
)
clips_may_be_fast = pytest.mark.filterwarnings("ignore:.*temporal steps share")


@pytest.fixture
def unchecked() -> Iterator[None]:
    """Without the run-time checks of annotations, which take nine tenths of the time and which all other tests have."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


@this_version
def test_families_of_this_version() -> None:
    """Every model of transformers with a rope index is a family here; the others are refused by name."""
    models = Path(transformers.__file__).parent / "models"
    having = {code.parent.name for code in models.glob("*/modeling_*.py") if b"def get_rope_index" in code.read_bytes()}
    types = {model_type for name in mrope.family_names() for model_type in mrope.family(name).model_types}
    assert having <= types
    assert {record_of(config_of(name)).name for name in MODEL_TYPES} == set(mrope.family_names())
    with pytest.raises(TypeError, match="model_type is 'llava', which is no family of ours"):
        record_of(transformers.LlavaConfig())


def test_families_that_this_version_lacks() -> None:
    if MISSING:
        pytest.skip(f"{len(MISSING)} of {len(MODEL_TYPES)} are not compared: {', '.join(MISSING)}")


# ------------------------------------------------------------------------------------------------- against the oracle


def prompts_of(model_type: str, count: int) -> Iterator[list[Span]]:
    """Random prompts, always the same."""
    rng = Random(0)
    return itertools.islice((row for _ in itertools.count() for row in trained_rows_of(model_type, rng)), count)


@pytest.mark.evidence("oracle", prompts=PROMPTS)
@every_family
@clips_may_be_fast
def test_ids_are_the_oracles(model_type: str, unchecked: None) -> None:
    case, config = case_of(model_type), config_of(model_type)
    assert layout_of(config) == record_of(config).layout == case.layout
    for spans in prompts_of(model_type, PROMPTS):
        assert_as_oracle(case, spans, case.layout(spans))


def sides(span: Span) -> tuple[int, int]:
    """Rows and columns of what a span shows, in patches."""
    if isinstance(span, Sliced):
        (rows, cols), (_, h, w) = span.slices or (1, 1), span.slice_grid or span.thumbnail
        return rows * h, cols * w
    return span.grid[1:] if isinstance(span, (Image, Video)) else (0, 0)


@pytest.mark.evidence("swap")
@every_family
@clips_may_be_fast
def test_swapped_rows_and_columns_turn_it_red(model_type: str, unchecked: None) -> None:
    case, turned = case_of(model_type), 0
    one, other = case.swapped or (0, 0)
    order = list(range(case.axes))
    order[one], order[other] = other, one
    for spans in prompts_of(model_type, 200):
        positions = case.layout(spans)
        assert_as_oracle(case, spans, positions)
        if any(rows != cols for rows, cols in map(sides, spans)):
            with pytest.raises(AssertionError):
                assert_as_oracle(case, spans, replace(positions, ids=positions.ids[order]))
            turned += 1
    assert turned >= 50


@pytest.mark.evidence("shapes")
@every_family
@clips_may_be_fast
def test_every_shape_of_a_batch_holds_the_oracles_ids(model_type: str) -> None:
    case = case_of(model_type)
    for seed in range(20):
        rng = Random(seed)
        prompts = trained_rows_of(model_type, rng)
        rows = [case.layout(spans) for spans in prompts]
        for spans, row in zip(prompts, rows, strict=True):
            assert_as_oracle(case, spans, row)
            assert torch.equal(torch.cat([chunk.ids for chunk in row.chunks(rng.randint(1, 9))], dim=1), row.ids)
            keep = torch.tensor([rng.random() < 0.5 for _ in range(row.length)])
            assert torch.equal(row.prune(keep).ids, row.ids[:, keep])
            if not case.alone and row.planned is None:
                cut = rng.randint(0, len(spans))
                first = case.layout(spans[:cut])
                turns = first, case.layout(spans[cut:], first), row.decode(3)
                assert_as_oracle(case, [*spans, Text(3)], replace(mrope.pack(turns), ends=turns[-1].ends))

        batch = mrope.batch(rows, rng.choice(("left", "right")), multiple=rng.randint(1, 8))
        for number, row in enumerate(rows):
            assert torch.equal(batch.ids[:, number, batch.mask[number]], row.ids)
        if any(row.planned is not None for row in rows):
            continue
        packed = mrope.pack([row.pad(multiple=4, side="right") for row in rows])
        index = mrope.shard_index(packed.segments, 2)
        shards = [packed.shard(rank, 2).ids for rank in range(2)]
        assert torch.equal(mrope.unshard(shards, index), packed.ids)
        for document, row in zip(packed.unpack(), rows, strict=True):
            assert torch.equal(document.ids, row.ids)


# ------------------------------------------------------------------------------------------------ against the library


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


@pytest.mark.evidence("parity", prompts=PROMPTS)
@every_family
@this_version
@clips_may_be_fast
def test_positions_are_the_installed_librarys(model_type: str, unchecked: None) -> None:
    seen = 0
    for seed in itertools.count():
        rng = Random(seed)
        batch = encode(model_type, rows_of(model_type, rng, most=25), side=rng.choice(("left", "right")), seed=seed)
        ids = library_index(model_type, batch)
        mask = batch.inputs["attention_mask"].bool()
        ours = our_ids(model_type, batch, read_spans(batch.inputs, config_of(model_type)))
        if model_type != "hunyuan_vl":  # whose pictures the library numbers through the batch
            assert torch.equal(read_positions(batch.inputs, config_of(model_type), layout=VERSION), ours), seed
        if ids.is_floating_point():  # real ids, or whole ones that the library returns as real
            torch.testing.assert_close(ours.to(ids.dtype)[:, mask], ids[:, mask], rtol=1e-6, atol=1e-5)
        else:
            assert torch.equal(ours[:, mask], ids[:, mask]), seed
        assert not ours[:, ~mask].any()
        seen += len(mask)
        if seen >= PROMPTS:
            return


@pytest.mark.evidence("parity", "glm-image")
@this_version
def test_targets_are_planned_as_in_the_installed_library() -> None:
    planned = 0
    for seed in range(100):
        rows = rows_of("glm_image", Random(seed))
        model_of("glm_image").get_rope_index(**encode("glm_image", rows).inputs)
        tables = model_of("glm_image")._cached_decode_position_ids
        drawing = [
            row for row in rows if any(isinstance(span, (Image, Target)) for span in row)
        ]  # others have no table
        for table, row in zip(() if tables is None else tables, drawing, strict=True):
            positions = mrope.family("glm-image").positions(row)
            count = 0 if positions.planned is None else positions.planned.shape[1]
            assert torch.equal(positions.decode(count + 1).ids, table[:, : count + 1])  # and the end marker
            planned += count
    assert planned > 1000


@every_family
def test_spans_are_read_back(model_type: str) -> None:
    config = config_of(model_type)
    for seed in range(40):
        rng = Random(seed)
        rows = rows_of(model_type, rng)
        batch = encode(model_type, rows, side=rng.choice(("left", "right")), seed=seed)
        assert read_spans(batch.inputs, config) == declared(model_type, rows), seed
        if batch.inputs.pop("mm_token_type_ids", None) is not None:
            assert read_spans(batch.inputs, config) == declared(model_type, rows), seed
