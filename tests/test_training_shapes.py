"""Batches for training: padded, packed and sharded over two processes, all learn what each record alone does."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
import transformers
import two_processes
from every_family import config_of, installed
from pictures import photograph
from sources import ROOT
from test_processor import movie, ours
from tiny_models import IMAGE, VIDEO, clip, sample, tiny_model
from torch import Tensor

from mrope import AxisSplit, Image, Span, Text
from mrope.hf import Collator, build_vlm, plug
from mrope.positions import Side

ROUNDING: dict[str, Any] = {"rtol": 1e-4, "atol": 1e-5}
THREE = ("qwen2-vl", "qwen2.5-vl", "qwen3-vl")
KINDS = (*THREE, "built")
by_kind = pytest.mark.parametrize("kind", KINDS)
# transformers hands tensors to numpy.
pytestmark = pytest.mark.filterwarnings("ignore:__array:DeprecationWarning")


def model_of(kind: str) -> Any:
    """A tiny model, in training mode, whose attention is sharp enough to show positions."""
    if kind != "built":
        model = tiny_model(kind)
        layers = model.model.language_model.layers
    else:
        torch.manual_seed(0)
        text = transformers.Qwen3Config(
            vocab_size=512,
            hidden_size=64,
            intermediate_size=96,
            num_hidden_layers=2,
            num_attention_heads=2,
            num_key_value_heads=1,
            head_dim=32,
            pad_token_id=0,
        )
        text._attn_implementation = "eager"
        vit = timm.create_model("vit_tiny_patch16_224", pretrained=False, depth=1, embed_dim=24, num_heads=3)
        split = AxisSplit((6, 5, 5))
        model = build_vlm(vit, text, split=split, merge=2, image_token_id=IMAGE, video_token_id=VIDEO)
        layers = model.get_decoder().layers
    for layer in layers:
        for projection in (layer.self_attn.q_proj, layer.self_attn.k_proj):
            projection.weight.data *= 5
    return model.train()


def spans_of(kind: str) -> list[list[Span]]:
    """Two pictures, a clip that lasts longer than it is wide, and text; of different lengths."""
    return [
        [Text(4), Image((1, 4, 6)), Text(3), Image((1, 6, 2)), Text(5)],
        [Text(3), clip(kind, (5, 4, 2), seconds=0.75), Text(2), Image((1, 2, 8)), Text(9)],
        [Text(7)],
    ]


@cache
def records_of(kind: str) -> list[dict[str, Any]]:
    """The same as records: each what a processor makes of one prompt."""
    records = []
    for number, row in enumerate(spans_of(kind)):
        made = dict(sample(kind, [row], seed=number).inputs)
        if kind == "built":  # patches of one frame of 16 x 16
            for name in ("pixel_values", "pixel_values_videos"):
                if name in made:
                    made[name] = made[name][:, :588].repeat(1, 2)[:, :768]
        if "mm_token_type_ids" not in transformers.Qwen2VLForConditionalGeneration.forward.__annotations__:
            made.pop("mm_token_type_ids", None)
        records.append(made)
    return records


def alone(kind: str, model: Any) -> list[Tensor]:
    """The logits of each record by itself."""
    with torch.no_grad():
        if kind == "built":
            return [model(**record).logits[0] for record in records_of(kind)]
        with plug(model):
            return [model(**record).logits[0] for record in records_of(kind)]


def weight_of(kind: str, model: Any) -> Tensor:
    decoder = model.get_decoder() if kind == "built" else model.model.language_model
    return decoder.layers[0].self_attn.q_proj.weight


@by_kind
@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("plugged", [True, False])
def test_padded_rows_are_the_records(kind: str, side: Side, plugged: bool) -> None:
    model = model_of(kind)
    wanted, batch = alone(kind, model), Collator(model, side=side)(records_of(kind))
    if plugged and kind != "built":
        plug(model)
    with torch.no_grad():
        got = model(**batch).logits
    for row, mask, expected in zip(got, batch["attention_mask"].bool(), wanted, strict=True):
        torch.testing.assert_close(row[mask], expected, **ROUNDING)
    lengths = [len(expected) for expected in wanted]
    assert batch["position_ids"].shape == (4, 3, max(lengths))
    labels, kept = batch["labels"], batch["attention_mask"].bool()
    text = kept & (batch["input_ids"] != IMAGE) & (batch["input_ids"] != VIDEO)
    for row, length in zip(text, lengths, strict=True):  # nothing of a record stands before its first token
        row[-length if side == "left" else 0] = False
    assert torch.equal(labels != -100, text)
    assert torch.equal(labels[text], batch["input_ids"][text])


@by_kind
def test_packed_rows_are_the_records(kind: str) -> None:
    model = model_of(kind)
    model.config.use_cache = model.config.get_text_config().use_cache = True  # which would hide the documents
    wanted, batch = alone(kind, model), Collator(model, pack=True)(records_of(kind))
    with torch.no_grad():
        got = model(**batch).logits[0]
    torch.testing.assert_close(got, torch.cat(wanted), **ROUNDING)
    assert "attention_mask" not in batch
    starts = [0, len(wanted[0]), len(wanted[0]) + len(wanted[1])]
    assert batch["labels"][0, starts].tolist() == [-100] * 3
    assert batch["labels"][0, 1] != -100


@by_kind
def test_boundaries_that_flash_attention_reads_are_those_of_the_documents(kind: str) -> None:
    from transformers.modeling_flash_attention_utils import _is_packed_sequence, prepare_fa_kwargs_from_position_ids

    model = model_of(kind)
    batch = Collator(model, pack=True)(records_of(kind))
    lengths = [record["input_ids"].shape[1] for record in records_of(kind)]
    text = batch["position_ids"][0]
    (queries, keys), (longest, _) = prepare_fa_kwargs_from_position_ids(text)
    ends = [0, lengths[0], lengths[0] + lengths[1], sum(lengths)]
    assert queries.tolist() == keys.tolist() == ends
    assert int(longest) == max(lengths)
    assert bool(_is_packed_sequence(text, 1))


@by_kind
@pytest.mark.parametrize(("pack", "side"), [(True, "right"), (False, "right"), (False, "left")])
def test_gradients_are_the_sum_over_records(kind: str, pack: bool, side: Side) -> None:
    model = model_of(kind)
    weight, total = weight_of(kind, model), torch.zeros(())
    wanted = torch.zeros_like(weight)
    for record in records_of(kind):
        batch = Collator(model)([record])
        count = two_processes.learnt(batch)
        wanted += torch.autograd.grad(model(**batch).loss * count, weight)[0]
        total += count
    batch = Collator(model, pack=pack, side=side)(records_of(kind))
    assert two_processes.learnt(batch) == total
    got = torch.autograd.grad(model(**batch).loss * total, weight)[0]
    torch.testing.assert_close(got, wanted, rtol=1e-3, atol=1e-4 * float(wanted.abs().max()))


# ---------------------------------------------------------------------------------------------------- conversations


def talk(source: Any, answers: list[str]) -> dict[str, Any]:
    """A conversation about a picture, with one answer or more."""
    messages: list[dict[str, Any]] = []
    for number, answer in enumerate(answers):
        picture = [{"type": "image", "image": source}] if number == 0 else []
        messages.append({"role": "user", "content": [*picture, {"type": "text", "text": "what is this?"}]})
        messages.append({"role": "assistant", "content": [{"type": "text", "text": answer}]})
    return {"messages": messages, "id": 7}


def conversations() -> list[dict[str, Any]]:
    sizes = {"coffee": (310, 170), "chelsea": (130, 290)}
    first, second = (photograph(name).resize(size) for name, size in sizes.items())
    return [talk(first, ["5 3"]), talk(second, ["7", "2 4 6"])]


@pytest.mark.parametrize("name", THREE)
def test_answers_are_learnt_and_nothing_else(name: str) -> None:
    processor = ours(name)
    batch = Collator(tiny_model(name), processor)(conversations())
    learnt = [processor.tokenizer.decode(row[row != -100]) for row in batch["labels"]]
    digits = [[word for word in text if word.isdigit()] for text in learnt]
    assert digits == [["5", "3"], ["7", "2", "4", "6"]]
    assert all(not set(text) - set("0123456789 ") for text in learnt)
    expected = processor.apply_chat_template(
        conversations()[1]["messages"], tokenize=True, return_dict=True, return_tensors="pt"
    )
    mask = batch["attention_mask"][1].bool()
    assert torch.equal(batch["input_ids"][1][mask], expected["input_ids"][0])
    assert torch.equal(batch["pixel_values"][-len(expected["pixel_values"]) :], expected["pixel_values"])
    assert batch["image_grid_thw"][1].tolist() == expected["image_grid_thw"][0].tolist()


@pytest.mark.filterwarnings("ignore:video .* share:UserWarning")  # as all frames of the clip are taken
@pytest.mark.parametrize("name", THREE)
def test_a_clip_and_a_picture_in_one_conversation(name: str, tmp_path: Path) -> None:
    processor, film = ours(name), movie(tmp_path / "clip.mov", 60, 64, 90)
    record = conversations()[0]
    record["messages"][0]["content"].append({"type": "video", "path": str(film)})
    batch = Collator(tiny_model(name), processor)([record, conversations()[1]])
    learnt = processor.tokenizer.decode(batch["labels"][0][batch["labels"][0] != -100])
    assert [word for word in learnt if word.isdigit()] == ["5", "3"]
    expected = processor.apply_chat_template(
        record["messages"],
        tokenize=True,
        return_dict=True,
        return_tensors="pt",
        processor_kwargs={"return_positions": True},
    )
    length = expected["input_ids"].shape[1]
    assert expected["video_grid_thw"][0, 0] > 1
    assert torch.equal(batch["pixel_values_videos"], expected["pixel_values_videos"])
    assert torch.equal(batch["position_ids"][1:, 0, :length], expected["position_ids"][:, 0])
    assert batch["position_ids"][0, 0, :length].tolist() == list(range(length))


@pytest.mark.parametrize("kind", ["qwen2.5-vl", "built"])
@pytest.mark.parametrize("pack", [True, False])
def test_transformers_trainer_learns_from_conversations(kind: str, pack: bool, tmp_path: Path) -> None:
    pytest.importorskip("accelerate", reason="transformers' Trainer needs accelerate")
    model = model_of(kind)
    # The patches of the built one are of one frame of 16 x 16, so its records are processed already.
    processor = ours("qwen2.5-vl") if kind == "qwen2.5-vl" else None
    records = records_of(kind) if processor is None else conversations()
    collator = Collator(model, processor, pack=pack)
    options = transformers.TrainingArguments(
        str(tmp_path),
        max_steps=6,
        per_device_train_batch_size=2,
        learning_rate=1e-3,
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
        remove_unused_columns=False,
        save_strategy="no",
        logging_steps=1,
    )
    trainer = transformers.Trainer(model, options, train_dataset=records, data_collator=collator)  # pyright: ignore[reportArgumentType]
    trainer.train()
    losses = [float(entry["loss"]) for entry in trainer.state.log_history if "loss" in entry]
    assert losses[-1] < 0.9 * losses[0]


def test_a_conversation_without_an_answer_or_a_processor_is_refused() -> None:
    model, processor = tiny_model("qwen2-vl"), ours("qwen2-vl")
    record = {"messages": conversations()[0]["messages"][:1]}
    with pytest.raises(ValueError, match=r"record 0 has no words of an assistant"):
        Collator(model, processor)([record])
    with pytest.raises(ValueError, match=r"record 0 has messages and processor is None"):
        Collator(model)([record])


def test_a_processor_of_other_patches_than_a_built_models_is_refused() -> None:
    model = model_of("built")
    with pytest.raises(ValueError, match=r"patch size of the processor is 14; expected 16, as the model has"):
        Collator(model, ours("qwen2.5-vl"))


# ---------------------------------------------------------------------------------------------------------- limits


@by_kind
@pytest.mark.parametrize("pack", [True, False])
def test_text_is_cut_and_pictures_are_not(kind: str, pack: bool) -> None:
    model, record = model_of(kind), records_of(kind)[0]
    length = record["input_ids"].shape[1]  # the last picture ends 5 tokens before
    short = Collator(model, pack=pack, max_length=length - 4)([record])
    whole = Collator(model, pack=pack)([record])
    for name in ("input_ids", "labels"):
        assert torch.equal(short[name], whole[name][:, :-4])
    assert torch.equal(short["position_ids"], whole["position_ids"][..., :-4])
    assert torch.equal(short["pixel_values"], whole["pixel_values"])
    at_the_end = Collator(model, pack=pack, max_length=length - 5)([record])
    assert at_the_end["input_ids"].shape[1] == length - 5
    for most in (length - 6, 6, 2):
        with pytest.raises(ValueError, match=rf"max_length is {most}; the last picture .* ends at token {length - 5}"):
            Collator(model, pack=pack, max_length=most)([record])


def test_a_record_that_was_cut_inside_a_picture_is_refused() -> None:
    model, record = tiny_model("qwen2-vl"), dict(records_of("qwen2-vl")[0])
    for name in ("input_ids", "attention_mask", "mm_token_type_ids"):
        if name in record:
            record[name] = record[name][:, :8]
    with pytest.raises(ValueError, match=r"record 1: .*the prompt was truncated"):
        Collator(model)([records_of("qwen2-vl")[2], record])


def test_records_of_lists_and_own_labels() -> None:
    config = tiny_model("qwen2-vl").config
    picture = {"image_grid_thw": [[1, 4, 2]], "pixel_values": torch.zeros(8, 1176)}
    own = {"input_ids": [4, IMAGE, IMAGE, 5, 6], "labels": [-100] * 4 + [6], **picture}
    batch = Collator(config)([own, {"input_ids": [7, 8]}])
    assert batch["labels"].tolist() == [[-100, -100, -100, -100, 6], [-100, 8, -100, -100, -100]]
    assert batch["attention_mask"].tolist() == [[1] * 5, [1, 1, 0, 0, 0]]
    assert batch["position_ids"][:, 0].tolist() == [[0, 1, 2, 3, 4], [0, 1, 1, 3, 4], [0, 1, 2, 3, 4], [0, 1, 1, 3, 4]]


def test_what_is_refused() -> None:
    model = tiny_model("qwen2-vl")
    with pytest.raises((TypeError, ValueError), match=r"records is empty"):
        Collator(model)([])
    with pytest.raises(TypeError, match=r"record 0 is \['text'\]; expected a mapping with messages"):
        Collator(model)([{"text": "hello"}])
    with pytest.raises(ValueError, match=r"record 0 holds target_sizes; expected only"):
        Collator(model)([{"input_ids": [4, 5], "target_sizes": [[2, 4]]}])
    with pytest.raises(ValueError, match=r"labels of record 0 has shape \(1,\)"):
        Collator(model)([{"input_ids": [4, 5], "labels": [4]}])
    with pytest.raises(ValueError, match=r"input_ids of record 0 has shape \(2, 2\)"):
        Collator(model)([{"input_ids": [[4, 5], [6, 7]]}])


@pytest.mark.parametrize("model_type", ["qwen3_5", "qwen4_exp"])
def test_families_that_mix_documents_are_not_packed(model_type: str) -> None:
    if not installed(model_type):
        pytest.skip(f"this transformers has no {model_type}")
    with pytest.raises(ValueError, match=rf"pack is True and {model_type} has .* expected pack=False"):
        Collator(config_of(model_type), pack=True)
    batch = Collator(config_of(model_type))([{"input_ids": [4, 5, 6]}, {"input_ids": [7, 8]}])
    assert batch["attention_mask"].tolist() == [[1, 1, 1], [1, 1, 0]]


# --------------------------------------------------------------------------------------------------- two processes


def in_two(what: str, path: Path) -> dict[str, Tensor]:
    """What rank 0 of two processes saved, started by torchrun."""
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    command = [*launcher, str(ROOT / "tests" / "two_processes.py"), what, str(path)]
    paths = os.pathsep.join([str(ROOT), str(ROOT / "tests")])
    done = subprocess.run(
        command, env=os.environ | {"PYTHONPATH": paths}, capture_output=True, text=True, timeout=200, check=False
    )
    assert done.returncode == 0, done.stderr
    return torch.load(path)


def test_fully_sharded_training_is_that_of_one_process(tmp_path: Path) -> None:
    got, wanted = in_two("fsdp", tmp_path / "made.pt"), two_processes.fully_sharded()
    assert got.keys() == wanted.keys()
    torch.testing.assert_close(got["loss"], wanted["loss"], **ROUNDING)
    for name, grad in wanted.items():
        atol = 1e-4 * float(grad.abs().max())
        torch.testing.assert_close(got[name], grad, rtol=1e-3, atol=atol, msg=lambda text, name=name: f"{name}: {text}")


def test_context_parallel_attention_is_that_of_one_process(tmp_path: Path) -> None:
    got, wanted = in_two("context", tmp_path / "made.pt"), two_processes.context_parallel()
    assert got.keys() == wanted.keys()
    assert torch.equal(got["ids"], wanted["ids"])
    for name, value in wanted.items():
        torch.testing.assert_close(got[name], value, **ROUNDING)
    assert not torch.equal(got["ids"][[0, 2, 1]], got["ids"])
