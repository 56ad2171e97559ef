"""Records that do not fit together are refused by their number, and those of every family's processor are taken."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from every_family import config_of, model_of
from test_processor import CLIPS, MODELS, QWEN, SHOWN, TEMPLATE, WRAPPED, clip, ours, photos, theirs, this_version
from test_training_shapes import talk
from tiny_models import IMAGE, VIDEO, VISION_END, VISION_START, sample, tiny_config, tiny_model
from tiny_models import clip as timed

import mrope
from mrope import GridLayout, Image, Text
from mrope.hf import Collator, plug
from mrope.hf.collator import IGNORED
from mrope.layouts import VideoRopeLayout
from mrope.vision import clip_of, normalize, patchify, patchify_video

# transformers hands tensors to numpy.
pytestmark = pytest.mark.filterwarnings("ignore:__array:DeprecationWarning")
PICTURES = [name for name in MODELS if name != "minicpm-v4.7"]  # whose pictures are no grids
ANSWERED = [name for name in PICTURES if name != "glm-image"]
MOVING = [name for name in PICTURES if name in CLIPS]


def shown(name: str, kind: str) -> str:
    """The placeholder of a picture or clip, with what a prompt has around it."""
    mine = ours(name)
    if kind == "image":
        begin, end = WRAPPED.get(name, QWEN)
        return f"{begin}{mine.image_token}{end}"
    begin, end = SHOWN.get(name, ("", ""))
    return f"{begin}{mine.video_token}{end}"


def picture_record(name: str, number: int = 0) -> dict[str, Any]:
    """What the family's processor makes of a prompt with a picture."""
    text = f"what is {shown(name, 'image')} this ?"
    return dict(ours(name)(text=text, images=photos()[number], return_tensors="pt"))


def clip_record(name: str, frames: int = 4, height: int = 70, width: int = 170) -> dict[str, Any]:
    pixels, about = clip(frames, height, width)
    seen = {"videos": [pixels], "video_metadata": [about], "do_sample_frames": False}
    made = ours(name)(text=f"what is {shown(name, 'video')} this ?", return_tensors="pt", **seen)
    return {key: value for key, value in made.items() if key != "video_metadata"}


# -------------------------------------------------------------------------------------------------- pixels and grids


@pytest.mark.parametrize("name", PICTURES)
def test_patches_that_are_not_those_of_the_pictures_are_refused(name: str) -> None:
    collate, records = Collator(config_of(MODELS[name])), [picture_record(name), picture_record(name, 1)]
    first, second = (record["pixel_values"] for record in records)
    assert len(collate(records)["pixel_values"]) == len(first) + len(second)
    # One patch too many and one too few: as many as the batch needs in all.
    moved = [records[0] | {"pixel_values": first[:-1]}, records[1] | {"pixel_values": torch.cat([first[-1:], second])}]
    message = rf"pixel_values of record 0 has {len(first) - 1} patches; expected {len(first)}, those of its grids"
    with pytest.raises(ValueError, match=message):
        collate(moved)
    with pytest.raises(ValueError, match=rf"pixel_values of record 1 has {len(second) + 1} patches"):
        collate([records[0], moved[1]])
    with pytest.raises(ValueError, match=rf"pixel_values of record 0 has 0 patches; expected {len(first)}"):
        collate([{key: value for key, value in records[0].items() if key != "pixel_values"}])


@pytest.mark.parametrize("name", MOVING)
def test_patches_that_are_not_those_of_the_clips_are_refused(name: str) -> None:
    collate, records = Collator(config_of(MODELS[name])), [clip_record(name), clip_record(name, 6, 170, 70)]
    assert records[0]["video_grid_thw"][0, 0] > 1
    first, second = (record["pixel_values_videos"] for record in records)
    assert torch.equal(collate(records)["pixel_values_videos"], torch.cat([first, second]))
    moved = records[1] | {"pixel_values_videos": torch.cat([first[-1:], second])}
    message = rf"pixel_values_videos of record 1 has {len(second) + 1} patches; expected {len(second)}"
    with pytest.raises(ValueError, match=message):
        collate([records[0], moved])


def test_patches_without_a_picture_are_refused() -> None:
    record = {"input_ids": [4, 5], "pixel_values": torch.zeros(4, 1176)}
    with pytest.raises(ValueError, match="pixel_values of record 0 has 4 patches; expected 0"):
        Collator(tiny_config("qwen2-vl"))([record])


def test_patches_of_several_sizes_are_refused() -> None:
    records = [picture_record("qwen2-vl"), picture_record("qwen2-vl", 1)]
    records[1]["pixel_values"] = records[1]["pixel_values"][:, :588]
    message = r"pixel_values of record 1 have \(588,\) numbers a patch; expected \(1176,\), as in record 0"
    with pytest.raises(ValueError, match=message):
        Collator(tiny_config("qwen2-vl"))(records)


@pytest.mark.parametrize(
    ("kind", "key"), [("qwen2.5-vl", "second_per_grid_ts"), ("qwen2.5-vl", "mm_token_type_ids")], ids=str
)
def test_what_some_clips_have_and_others_lack_is_refused(kind: str, key: str) -> None:
    whole, less = clip_record(kind), {name: value for name, value in clip_record(kind, 6).items() if name != key}
    assert key in whole
    with pytest.raises(ValueError, match=rf"record 1 has no {key}, others have; expected all or none"):
        Collator(tiny_config(kind))([whole, less, {"input_ids": [4, 5]}])
    assert key not in Collator(tiny_config(kind))([less, {"input_ids": [4, 5]}])


# ------------------------------------------------------------------------------------------------ nothing to learn


@pytest.mark.parametrize("pack", [True, False])
@pytest.mark.parametrize(
    "record",
    [
        {"input_ids": [4, 5, 6], "labels": [-100] * 3},
        {"input_ids": [4, 5, 6], "labels": [4, -100, -100]},  # nothing stands before the first
        {"input_ids": [4]},
        {"input_ids": []},
        {"input_ids": [4, 5], "attention_mask": [0, 0]},
        {"input_ids": [4, 5, 6], "attention_mask": [0, 1, 1], "labels": [4, 5, -100]},
        {"input_ids": [4, IMAGE], "image_grid_thw": [[1, 2, 2]], "pixel_values": torch.zeros(4, 1176)},
    ],
    ids=str,
)
def test_records_without_anything_to_learn_are_refused(record: dict[str, Any], pack: bool) -> None:
    with pytest.raises(ValueError, match=r"record 1 has nothing to learn in its \d tokens; expected a label"):
        Collator(tiny_config("qwen2-vl"), pack=pack)([{"input_ids": [4, 5]}, record])


def test_an_answer_that_is_cut_off_whole_is_refused() -> None:
    processor, model = ours("qwen2-vl"), tiny_model("qwen2-vl")
    record = talk(photos()[0], ["5 3"])
    record["messages"][0]["content"].append({"type": "text", "text": " what" * 20})
    labels = Collator(model, processor)([record])["labels"][0]
    first = int((labels != -100).nonzero()[0])
    message = rf"max_length is {first}; the first token of record 0 that is to be learnt is token {first + 1}: expected"
    with pytest.raises(ValueError, match=message):
        Collator(model, processor, max_length=first)([record])
    batch = Collator(model, processor, max_length=first + 1)([record])
    assert batch["labels"][0].tolist() == [-100] * first + [int(labels[first])]
    assert bool(model(**batch).loss.isfinite())


# ------------------------------------------------------------------------------------- what the processors make


@pytest.mark.parametrize("name", PICTURES)
def test_records_of_every_familys_processor_become_a_batch(name: str) -> None:
    config = config_of(MODELS[name])
    records = [picture_record(name), picture_record(name, 1)]
    batch = Collator(config, side="left")(records)
    model = model_of(MODELS[name])
    assert batch.keys() - {"labels", "position_ids"} == records[0].keys()
    for row, record in enumerate(records):
        kept = batch["attention_mask"][row].bool()
        for key in ("input_ids", "mm_token_type_ids", "moe_mm_token_type_ids"):
            if key in record:
                assert torch.equal(batch[key][row, kept], record[key][0]), key
                assert not batch[key][row, ~kept].any(), key
        taken = {key: value for key, value in record.items() if key in model.get_rope_index.__code__.co_varnames}
        ids, _ = model.get_rope_index(**taken)
        assert torch.equal(batch["position_ids"][-len(ids) :, row, kept], ids[:, 0])
    pixels = torch.cat([record["pixel_values"] for record in records])
    assert torch.equal(batch["pixel_values"], pixels)
    assert torch.equal(batch["image_grid_thw"], torch.cat([record["image_grid_thw"] for record in records]))


@pytest.mark.parametrize("name", ["qwen2.5-omni", "qwen3-omni"])
def test_clips_without_sound_of_omni_families_become_a_batch(name: str) -> None:
    config = config_of(MODELS[name])
    records = [clip_record(name), {"input_ids": [[24, 25, 26]]}, clip_record(name, 6, 170, 70)]
    batch = Collator(config)(records)
    seconds = [record["video_second_per_grid"] for record in (records[0], records[2])]
    assert torch.equal(batch["video_second_per_grid"], torch.cat([torch.as_tensor(one) for one in seconds]))
    positions = ours(name)._positions(records[2])[:, 0]
    assert torch.equal(batch["position_ids"][1:, 2, : positions.shape[1]], positions)


@pytest.mark.parametrize("name", ANSWERED)
def test_conversations_of_every_family_become_a_batch(name: str) -> None:
    processor = ours(name)
    begin, end = WRAPPED.get(name, QWEN)
    image = f"{begin}{processor.image_token}{end}"
    processor.chat_template = TEMPLATE.replace(f"{QWEN[0]}<|image_pad|>{QWEN[1]}", image)
    records = [talk(photos()[0], ["5 3"]), talk(photos()[1], ["7", "2 4 6"]), talk(photos()[2], ["1"])]
    del records[2]["messages"][0]["content"][0]  # text alone
    batch = Collator(config_of(MODELS[name]), processor)(records)
    learnt = [processor.tokenizer.decode(row[row != -100]) for row in batch["labels"]]
    assert [[word for word in text if word.isdigit()] for text in learnt] == [["5", "3"], ["7", "2", "4", "6"], ["1"]]
    assert len(batch["image_grid_thw"]) == 2


@pytest.mark.skipif("ernie4.5-vl" not in MODELS, reason="this version of transformers has no Ernie")
def test_experts_of_ernie_are_told_apart_in_text_too() -> None:
    records = [picture_record("ernie4.5-vl"), {"input_ids": [24, 25, 26]}]
    batch = Collator(config_of("ernie4_5_vl_moe"), pack=True)(records)
    expected = torch.cat([records[0]["moe_mm_token_type_ids"][0], torch.zeros(3, dtype=torch.int64)])
    assert torch.equal(batch["moe_mm_token_type_ids"][0], expected)


@pytest.mark.skipif("glm-image" not in MODELS, reason="this version of transformers has no GLM-Image")
def test_conversations_of_a_family_that_answers_in_pictures_are_refused() -> None:
    with pytest.raises(ValueError, match="record 0 has messages and glm_image answers in pictures; expected input_ids"):
        Collator(config_of("glm_image"), ours("glm-image"))([talk(photos()[0], ["5"])])


@this_version
@pytest.mark.parametrize("name", ["qwen2-vl", "qwen3-vl"])
def test_the_librarys_own_processor_makes_the_same_batch(name: str) -> None:
    model, mine = tiny_model(name), ours(name)
    records = [talk(photos()[0], ["5 3"]), talk(photos()[1], ["7", "2 4 6"])]
    for record in records:
        record["messages"][0]["content"][0]["image"] = photos()[0]
    expected, made = (Collator(model, one)(records) for one in (mine, theirs(name, mine)))
    assert made.keys() == expected.keys()
    assert all(torch.equal(made[key], value) for key, value in expected.items())


@pytest.mark.parametrize("name", ["qwen2-vl", "qwen2.5-vl", "qwen3-vl"])
def test_frames_of_a_clip_are_a_record_with_their_times(name: str) -> None:
    processor, frames = ours(name), clip(6, 70, 170)[0]
    record = talk(photos()[0], ["5"])
    record["messages"][0]["content"].append({"type": "video", "video": clip_of(frames, fps=4)})
    batch = Collator(tiny_model(name), processor)([record])
    about = {"total_num_frames": 6, "fps": 4.0, "frames_indices": list(range(6))}
    prompt = processor.apply_chat_template(record["messages"])
    expected = processor(
        text=prompt,
        images=photos()[0],
        videos=[frames],
        video_metadata=[about],
        do_sample_frames=False,
        return_tensors="pt",
        return_positions=True,
    )
    for key in ("input_ids", "pixel_values", "pixel_values_videos", "video_grid_thw", "mm_token_type_ids"):
        assert torch.equal(batch[key], expected[key]), key
    assert torch.equal(batch["position_ids"][1:], expected["position_ids"])
    record["messages"][0]["content"][-1]["video"] = frames
    if name == "qwen3-vl":  # which samples by itself
        with pytest.raises(ValueError, match=r"video_metadata has no fps; .* mrope\.vision\.clip_of\(frames, fps=2\)"):
            Collator(tiny_model(name), processor)([record])


# ------------------------------------------------------------------------------------------------- conversations


def test_tools_of_a_record_reach_the_template() -> None:
    processor = ours("qwen2-vl")
    processor.chat_template = "{% if tools %}{{ tools[0].function.name }} {{ tools | length }} {% endif %}" + TEMPLATE
    record = talk(photos()[0], ["5 3", "7"])
    tools = [{"type": "function", "function": {"name": "this", "description": "what", "parameters": {}}}]
    batch = Collator(tiny_model("qwen2-vl"), processor)([record | {"tools": tools}, record | {"tools": None}])
    expected = processor.apply_chat_template(
        record["messages"], tools=tools, tokenize=True, return_dict=True, return_tensors="pt"
    )
    assert torch.equal(batch["input_ids"][0], expected["input_ids"][0])
    assert int(batch["attention_mask"][0].sum()) > int(batch["attention_mask"][1].sum())
    learnt = [row[row != -100].tolist() for row in batch["labels"]]
    assert learnt[0] == learnt[1]


def test_tools_that_the_template_does_not_read_are_refused() -> None:
    record, tools = talk(photos()[0], ["5"]), [{"type": "function", "function": {"name": "this"}}]
    collate = Collator(tiny_model("qwen2-vl"), ours("qwen2-vl"))
    with pytest.raises(ValueError, match=r"record 0 has tools, which the chat template does not read; expected"):
        collate([record | {"tools": tools}])
    for wrong in ({}, 3, "this"):
        with pytest.raises(TypeError, match=r"tools of record 0 is .*; expected a list of them"):
            collate([record | {"tools": wrong}])
    assert torch.equal(collate([record | {"tools": []}])["input_ids"], collate([record])["input_ids"])


@pytest.mark.parametrize(("key", "value"), [("train", False), ("weight", 0), ("tool_calls", [{"id": "1"}])])
def test_what_a_message_says_and_the_template_does_not_read_is_refused(key: str, value: Any) -> None:
    record, processor = talk(photos()[0], ["5", "3"]), ours("qwen2-vl")
    last = len(record["messages"]) - 1
    said = record | {"messages": [*record["messages"][:-1], record["messages"][-1] | {key: value, "name": "this"}]}
    with pytest.raises(ValueError, match=rf"message {last} of record 0 holds {key}, which the chat template does not"):
        Collator(tiny_model("qwen2-vl"), processor)([said])
    plain = Collator(tiny_model("qwen2-vl"), processor)([record])
    processor.chat_template = TEMPLATE.replace("{{ message.role }}", f"{{{{ message.role if message.{key} or 1 }}}}")
    assert torch.equal(Collator(tiny_model("qwen2-vl"), processor)([said])["labels"], plain["labels"])


def test_columns_that_nobody_reads_are_refused_in_both_kinds_of_records() -> None:
    collate = Collator(tiny_model("qwen2-vl"), ours("qwen2-vl"))
    for record in (talk(photos()[0], ["5"]), {"input_ids": [4, 5], "id": 7}):
        assert "id" in record
        collate([record | {"images": None}])
        with pytest.raises(ValueError, match=r"record 0 holds weight; expected only "):
            collate([record | {"weight": 2.0}])


def test_a_role_is_not_learnt_where_the_template_does_not_write_it_before_an_answer() -> None:
    processor = ours("qwen2-vl")
    processor.chat_template = TEMPLATE.partition("{% if add_generation_prompt %}")[0]
    with pytest.raises(ValueError, match=r"turn 1 of record 0 has no beginning, as the chat template writes nothing"):
        Collator(tiny_model("qwen2-vl"), processor)([talk(photos()[0], ["5"])])


@pytest.mark.parametrize(
    ("messages", "message"),
    [
        ([], "record 0 has no words of an assistant"),
        ([{"role": "assistant", "content": "5"}, {"role": "user", "content": "what"}], "record 0 opens with the"),
        ([{"content": "5"}], "messages of record 0 is .*; expected a list of"),
        ("what is this", "messages of record 0 is 'what is this'; expected a list of"),
        ([[{"role": "user", "content": "what"}]], "messages of record 0 is .*; expected a list of"),
    ],
    ids=str,
)
def test_conversations_of_other_kinds_are_refused(messages: Any, message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        Collator(tiny_model("qwen2-vl"), ours("qwen2-vl"))([{"messages": messages}])


# ------------------------------------------------------------------------------------------- arguments and tokens


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ({"input_ids": [1.5, 2.5]}, r"input_ids of record 0 is of torch\.float32; expected whole numbers"),
        ({"input_ids": [4, 5], "labels": [4.0, 5.0]}, r"labels of record 0 is of torch\.float32"),
        ({"input_ids": [4, 5], "attention_mask": [0.0, -9.0]}, r"attention_mask of record 0 is of torch\.float32"),
        ({"input_ids": "what"}, "input_ids of record 0 is 'what'; expected whole numbers"),
        ({"input_ids": [4, -1]}, "input_ids of record 0 hold -1; expected at least 0"),
        ({"input_ids": None}, r"record 0 is \[\]; expected a mapping .* without remove_unused_columns=False"),
        (None, "record"),
    ],
    ids=str,
)
def test_tokens_of_other_kinds_are_refused(record: Any, message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        Collator(tiny_config("qwen2-vl"))([record])


def test_arguments_of_other_kinds_are_refused() -> None:
    config, processor = tiny_config("qwen2-vl"), ours("qwen2-vl")
    for model in ("qwen2-vl", None):
        with pytest.raises(TypeError, match=r"model is .*; expected a transformers model or its configuration"):
            Collator(model)
    with pytest.raises(TypeError, match=r"processor is a \w*Tokenizer\w*; expected what mrope\.hf\.processor makes"):
        Collator(config, processor.tokenizer)
    options: dict[str, Any] = {"pack": "no", "layout": "grid"}
    for name, value in options.items():
        with pytest.raises(TypeError, match=name):
            Collator(config, **{name: value})
    with pytest.raises(ValueError, match="side is 'left' and pack is True, which pads nothing; expected one of the tw"):
        Collator(config, pack=True, side="left")
    config.image_token_id = 77
    with pytest.raises(ValueError, match="processor writes 500 for a picture and the model reads 77"):
        Collator(config, processor)


@pytest.mark.parametrize(
    ("written", "changes", "message"),
    [
        ("qwen2.5-vl", {}, r"family of the processor is qwen2\.5-vl; expected qwen3-vl, as the model has"),
        ("theirs", {"patch_size": 14}, r"patch size of the processor is 14; expected 16, as the model has"),
        ("theirs", {"merge_size": 4}, r"merge size of the processor is 4; expected 2, as the model has"),
        (
            "theirs",
            {"temporal_patch_size": 1},
            r"temporal patch size of the processor is 1; expected 2, as the model has",
        ),
    ],
    ids=str,
)
def test_a_processor_of_another_family_is_refused(written: str, changes: dict[str, int], message: str) -> None:
    model, mine = tiny_model("qwen3-vl"), ours("qwen3-vl")
    Collator(model, mine)
    processor = theirs("qwen3-vl", mine) if written == "theirs" else ours(written)
    for name, value in changes.items():
        setattr(processor.image_processor, name, value)
    with pytest.raises(ValueError, match=message):
        Collator(model, processor)


@pytest.mark.parametrize("name", ["input_ids", "labels"])
@pytest.mark.parametrize("beyond", [0, 7])
def test_tokens_behind_the_vocabulary_are_refused(name: str, beyond: int) -> None:
    config = tiny_config("qwen2-vl")
    words = config.text_config.vocab_size
    record = {"input_ids": [4, 5, words - 1], "labels": [IGNORED, IGNORED, words - 1]}
    Collator(config)([record])
    row = [*record[name][:2], words + beyond]
    message = rf"{name} of record 0 hold {words + beyond}; expected words of the model, 0 to {words - 1}"
    with pytest.raises(ValueError, match=message):
        Collator(config)([record | {name: row}])
    with pytest.raises(ValueError, match=r"labels of record 0 hold -1; .*, or -100"):
        Collator(config)([record | {"labels": [IGNORED, -1, 5]}])


def test_positions_of_a_record_are_made_again() -> None:
    batch = Collator(tiny_config("qwen2-vl"))([{"input_ids": [4, 5, 6], "position_ids": [50, 51, 52]}])
    assert batch["position_ids"][:, 0].tolist() == [[0, 1, 2]] * 4


def test_a_plugged_model_says_its_own_layout() -> None:
    model, layout = tiny_model("qwen2-vl"), VideoRopeLayout(delta=2)
    record = {"input_ids": [7, *[VIDEO] * 12, 9], "video_grid_thw": [[6, 4, 2]]}
    record |= {"pixel_values_videos": torch.zeros(48, 1176)}
    trained = Collator(model)([record])["position_ids"]
    with plug(model, layout=layout):
        plugged = Collator(model)([record])["position_ids"]
        again = Collator(model, layout=GridLayout())([record])["position_ids"]
    # A clip of six steps of 2 x 1 behind one token: steps 2 apart, and text behind all of them.
    assert plugged[1, 0].tolist() == [0, *[1 + 2 * step for step in range(6) for _ in range(2)], 12]
    assert trained[1, 0].tolist() == [0, *[1 + step for step in range(6) for _ in range(2)], 7]
    assert torch.equal(again, trained)
    assert torch.equal(Collator(model)([record])["position_ids"], trained)
    assert torch.equal(Collator(model, layout=layout)([record])["position_ids"], plugged)


@pytest.mark.parametrize("name", ["qwen2-vl", "qwen2.5-vl", "qwen3-vl"])
def test_another_layout_places_clips_as_the_plug_does(name: str) -> None:
    model, layout, record = tiny_model(name), VideoRopeLayout(delta=2), clip_record(name)
    batch = Collator(model, layout=layout)([record])
    with plug(model, layout=layout) as plugged, torch.no_grad():
        inputs = {key: value for key, value in batch.items() if key not in ("position_ids", "labels")}
        expected = plugged(**inputs).logits
    with torch.no_grad():
        assert torch.equal(model(**inputs, position_ids=batch["position_ids"]).logits, expected)
        assert not torch.equal(model(**inputs, position_ids=Collator(model)([record])["position_ids"]).logits, expected)


# ----------------------------------------------------------------------------------------------------- bytes and floats


def bytes_record(name: str, number: int = 0) -> dict[str, Any]:
    """A record with the patches of a picture as bytes."""
    family = mrope.family(name)
    seen = patchify(torch.randint(256, (3, 70 + 56 * number, 170), dtype=torch.uint8), family, dtype="uint8")
    tokens = sum(plan.tokens for plan in seen.plans)
    return {"input_ids": [7, *[IMAGE] * tokens, 8], "pixel_values": seen.values, "image_grid_thw": seen.grids}


@pytest.mark.parametrize("name", ["qwen2-vl", "qwen2.5-vl", "qwen3-vl"])
@pytest.mark.parametrize("pack", [True, False])
def test_bytes_stay_bytes_and_are_normalised_behind_the_collator(name: str, pack: bool) -> None:
    family, records = mrope.family(name), [bytes_record(name), {"input_ids": [4, 5]}, bytes_record(name, 1)]
    batch = Collator(tiny_config(name), pack=pack)(records)
    assert batch["pixel_values"].dtype == torch.uint8
    assert torch.equal(batch["pixel_values"], torch.cat([records[0]["pixel_values"], records[2]["pixel_values"]]))
    # One picture alone, from its bytes laid out by hand: (byte / 255 - mean) / std, the frame twice.
    first = records[0]["pixel_values"].double().view(-1, 3, 1, family.patch**2).repeat(1, 1, 2, 1)
    mean, std = (torch.tensor(one, dtype=torch.float64).view(3, 1, 1) for one in (family.mean, family.std))
    made = normalize(batch["pixel_values"], family)
    torch.testing.assert_close(
        made[: len(first)].double(), ((first / 255 - mean) / std).flatten(1), atol=1e-6, rtol=1e-6
    )


@pytest.mark.parametrize("name", ["qwen2-vl", "qwen3-vl", "cohere-compass", "hunyuan-vl", "minicpm-v4.7"])
@pytest.mark.parametrize("kind", ["picture", "clip"])
def test_normalised_bytes_are_what_patchify_makes(name: str, kind: Any) -> None:
    family = mrope.family(name)
    if kind == "clip" and family.sampling is None:
        pytest.skip(f"{name} takes no clips")
    cut: Any = patchify if kind == "picture" else patchify_video
    pixels = torch.randint(256, (3, 70, 170) if kind == "picture" else (5, 3, 70, 170), dtype=torch.uint8)
    more = {"fps": 2.0} if kind == "clip" else {}
    raw, whole = (cut(pixels, family, dtype=dtype, **more).values for dtype in ("uint8", "float32"))
    assert torch.equal(normalize(raw, family, kind=kind), whole)
    with pytest.raises((ValueError, TypeError), match="values"):
        normalize(raw[:, 1:], family, kind=kind)


def test_bytes_and_normalised_values_are_not_mixed() -> None:
    one, other = bytes_record("qwen2-vl"), picture_record("qwen2-vl", 1) | {"mm_token_type_ids": None}
    message = r"pixel_values of record 1 are torch.float32, pixel_values of record 0 are torch.uint8; expected bytes"
    with pytest.raises(ValueError, match=message):
        Collator(tiny_config("qwen2-vl"))([one, other])


def test_bytes_of_pictures_and_normalised_clips_are_not_mixed() -> None:
    message = r"pixel_values_videos of record 1 are torch.float32, pixel_values of record 0 are torch.uint8"
    with pytest.raises(ValueError, match=message):
        Collator(tiny_config("qwen2-vl"))(
            [bytes_record("qwen2-vl"), clip_record("qwen2-vl") | {"mm_token_type_ids": None}]
        )


# ------------------------------------------------------------------------------------------------------------ too long


def long_record() -> dict[str, Any]:
    """4 words, a picture of 6 tokens, 3 words, one of 3 tokens, 5 words of which the last 3 are learnt: 21 tokens."""
    made = dict(sample("qwen2-vl", [[Text(4), Image((1, 4, 6)), Text(3), Image((1, 6, 2)), Text(5)]]).inputs)
    labels = made["input_ids"].clone()
    labels[:, :-3] = IGNORED
    return {**made, "labels": labels}


def without(record: dict[str, Any], places: list[int], pictures: list[int]) -> dict[str, Any]:
    """A record without these tokens and with these pictures alone."""
    kept = [place for place in range(record["input_ids"].shape[1]) if place not in places]
    made = {name: record[name][:, kept] for name in ("input_ids", "attention_mask", "mm_token_type_ids", "labels")}
    if pictures:
        patches = record["pixel_values"].split(record["image_grid_thw"].prod(-1).tolist())
        made |= {"image_grid_thw": record["image_grid_thw"][pictures]}
        made |= {"pixel_values": torch.cat([patches[picture] for picture in pictures])}
    return made


def assert_same(batch: dict[str, Any], expected: dict[str, Any]) -> None:
    assert batch.keys() == expected.keys()
    for name, value in expected.items():
        assert batch[name] is value or torch.equal(batch[name], value), name


@pytest.mark.parametrize("pack", [True, False])
@pytest.mark.parametrize(
    ("most", "gone", "cut", "pictures"),
    [
        (20, [], 1, [0, 1]),  # a word of the answer is enough
        (18, [13, 14, 15], 0, [0]),  # 18 tokens end where the answer begins
        (17, [13, 14, 15], 1, [0]),
        (13, [*range(4, 10), 13, 14, 15], 0, []),
        (11, [*range(4, 10), 13, 14, 15], 1, []),
    ],
)
def test_pictures_are_dropped_with_their_placeholders_and_patches(
    most: int, gone: list[int], cut: int, pictures: list[int], pack: bool
) -> None:
    record, config = long_record(), tiny_config("qwen2-vl")
    expected = without(record, [*gone, *range(21 - cut, 21)], pictures)
    assert (expected["image_grid_thw"].tolist() if pictures else []) == [[1, 4, 6], [1, 6, 2]][: len(pictures)]
    collate = Collator(config, pack=pack, max_length=most, truncate="drop-pictures")
    if gone:
        with pytest.warns(UserWarning, match="pictures of records beyond max_length are dropped"):
            batch = collate([record, {"input_ids": [4, 5]}])
    else:
        batch = collate([record, {"input_ids": [4, 5]}])
    assert_same(batch, Collator(config, pack=pack)([expected, {"input_ids": [4, 5]}]))
    assert record["input_ids"].shape == (1, 21)


def test_the_words_around_a_dropped_picture_go_with_it() -> None:
    record = long_record()
    record["input_ids"][0, [3, 10, 12, 16]] = torch.tensor([VISION_START, VISION_END, VISION_START, VISION_END])
    expected = without(record, [12, 13, 14, 15, 16], [0])
    config = tiny_config("qwen2-vl")
    with pytest.warns(UserWarning, match="are dropped"):
        batch = Collator(config, max_length=18, truncate="drop-pictures")([record])
    assert_same(batch, Collator(config)([expected]))


@pytest.mark.parametrize(
    "name",
    ["qwen2-vl", "qwen3-vl", "qwen2.5-omni", "qwen3.5", "paddleocr-vl", "hunyuan-vl", "hy-v4-vl", "cosmos3-omni"],
)
def test_what_is_left_is_what_the_processor_makes_of_the_pictures_that_are_left(name: str) -> None:
    picture, config = shown(name, "image"), config_of(MODELS[name])
    two, one = (
        dict(ours(name)(text=f"what is {picture} this {more} ?", images=photos()[:count], return_tensors="pt"))
        for count, more in ((2, picture), (1, ""))
    )
    for record in (two, one):
        record["labels"] = record["input_ids"].clone()
        record["labels"][:, :-1] = IGNORED
    length = two["input_ids"].shape[1]
    with pytest.warns(UserWarning, match="are dropped"):
        batch = Collator(config, max_length=length - 1, truncate="drop-pictures")([two])
    assert_same(batch, Collator(config)([one]))


@pytest.mark.parametrize("kind", ["qwen2-vl", "qwen3-vl"])
def test_clips_are_not_dropped_and_a_picture_before_them_is(kind: str) -> None:
    spans = [Text(3), Image((1, 2, 8)), Text(2), timed(kind, (3, 4, 2)), Text(4)]
    record, config = dict(sample(kind, [spans]).inputs), tiny_config(kind)
    length = record["input_ids"].shape[1]
    collate = Collator(config, max_length=length - 5, truncate="drop-pictures")
    with pytest.warns(UserWarning, match="are dropped"):
        batch = collate([record])
    assert batch["input_ids"].shape[1] == length - 5
    assert "pixel_values" not in batch
    assert torch.equal(batch["pixel_values_videos"], record["pixel_values_videos"])
    assert not (batch["input_ids"] == IMAGE).any()
    with (
        pytest.warns(UserWarning, match="are dropped"),
        pytest.raises(ValueError, match="max_length is 7; the last picture or clip of record 0 ends at token"),
    ):
        Collator(config, max_length=7, truncate="drop-pictures")([record])


def test_a_record_whose_only_answer_begins_it_without_its_picture_is_refused() -> None:
    record = {"input_ids": [*[IMAGE] * 6, 5], "image_grid_thw": [[1, 4, 6]], "pixel_values": torch.zeros(24, 1176)}
    with (
        pytest.warns(UserWarning, match="are dropped"),
        pytest.raises(ValueError, match="max_length is 3; record 0 has nothing to learn without its pictures"),
    ):
        Collator(tiny_config("qwen2-vl"), max_length=3, truncate="drop-pictures")([record])


def test_a_picture_of_a_family_that_answers_in_pictures_is_not_dropped() -> None:
    picture = shown("glm-image", "image")
    record = dict(ours("glm-image")(text=f"what is {picture} ?", images=photos()[:1], return_tensors="pt"))
    collate = Collator(config_of(MODELS["glm-image"]), max_length=5, truncate="drop-pictures")
    with pytest.raises(ValueError, match="max_length is 5; the last picture or clip"):
        collate([record])


def test_longer_records_are_refused_when_asked() -> None:
    collate = Collator(tiny_config("qwen2-vl"), max_length=20, truncate="error")
    with pytest.raises(
        ValueError, match=r"max_length is 20; record 1 has 21 tokens: expected at most that, or another"
    ):
        collate([{"input_ids": [4, 5]}, long_record()])
    assert Collator(tiny_config("qwen2-vl"), max_length=21, truncate="error")([long_record()])["labels"].shape == (
        1,
        21,
    )


@pytest.mark.parametrize("pack", [True, False])
def test_longer_records_are_left_out_and_counted(pack: bool) -> None:
    config, short = tiny_config("qwen2-vl"), picture_record("qwen2-vl")
    length = short["input_ids"].shape[1]
    long = picture_record("qwen2-vl")
    long["input_ids"], long["attention_mask"] = (
        torch.cat([long[name], long[name][:, -1:]], dim=1) for name in ("input_ids", "attention_mask")
    )
    long.pop("mm_token_type_ids", None)
    records = [{"input_ids": [4, 5]}, long, {name: value for name, value in short.items() if name in long}]
    collate = Collator(config, pack=pack, max_length=length, truncate="skip")
    with pytest.warns(UserWarning, match="records beyond max_length are left out; Collator.skipped counts them"):
        batch = collate(records)
    assert collate.skipped == 1
    assert_same(batch, Collator(config, pack=pack)([records[0], records[2]]))
    with pytest.raises(ValueError, match=rf"max_length is {length}, and all 2 records have more tokens"):
        collate([long, long])
    assert collate.skipped == 3


def test_a_policy_without_a_limit_is_refused() -> None:
    config = tiny_config("qwen2-vl")
    with pytest.raises(ValueError, match="truncate is 'skip' and max_length is None; expected a max_length"):
        Collator(config, truncate="skip")
    with pytest.raises((ValueError, TypeError), match="truncate"):
        Collator(config, max_length=4, truncate="drop")  # pyright: ignore[reportArgumentType]
